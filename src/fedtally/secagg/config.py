"""Keep the terms of secure summation in a plan: the protocol, its parameters and its public keys.

The terms may lack their keys at first: a plan is made, and the sizes of its messages are computed,
before anybody has made keys. The sizes do not depend on the keys. `missing_keys` names the missing
keys, and `add_keys` adds them. No vectors may be summed before that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from fedtally.base import validate
from fedtally.base.named import Named
from fedtally.crypto.keys import KEY_BYTES, RejectedError, check_identity, check_point
from fedtally.errors import InvalidInputError, arg
from fedtally.secagg.params import Adversary, Parameters, Validity, modulus_bits
from fedtally.secagg.wire import upload_bytes

if TYPE_CHECKING:  # loaded only when needed: plans of one server need neither class
    from fedtally.secagg.two_server import ReportProof, TwoServerParameters

# The keys of both methods, secagg and two-server, and the digest of the allow-list. A plan may lack
# them at first.
KEYS = ("server_key", "leader_key", "helper_key", "allow_list")
# Two points of X25519 that stand for public keys while sizes are computed and there are no keys
# yet. Never send bytes that are sealed to them: nobody has chosen a secret key for them. The first
# one, 9, is the base point: the shared secret is then the public ephemeral key, so that anybody can
# open the bytes.
_STAND_IN, _OTHER_STAND_IN = (point.to_bytes(KEY_BYTES, "little") for point in (9, 10))


class SecureSum(Named, option="secure_sum"):
    """Name the way in which the vectors of a round are summed.

    `IDEAL`: one trusted server sees the vectors. `SECAGG`: a protocol of clients and one server.
    `TWO_SERVER`: a protocol of clients and two servers.
    """

    IDEAL = "ideal"
    SECAGG = "secagg"
    TWO_SERVER = "two-server"


@dataclass(frozen=True, kw_only=True)
class SecAggConfig:
    """Hold the terms of a secure sum in cohorts with one server (``fedtally-secagg/1``).

    A cohort is a group of clients whose vectors are added up in one session.

    Args:
        parameters: the parameters of every cohort.
        server_key: the Ed25519 public key with which the server signs Invites, 32 bytes; None: not
            added yet.
        allow_list: the digest of the list of clients that may take part, 32 bytes, only in
            `active`. None: not added yet, or not used, as in `semi-honest`.

    Raises:
        InvalidInputError: a key or the digest is not valid, `semi-honest` has an allow-list, or the
            graph does not protect a roster of the smallest or of the largest size.
    """

    parameters: Parameters
    server_key: bytes | None = None
    allow_list: bytes | None = None

    method = SecureSum.SECAGG

    def __post_init__(self) -> None:
        check_key("server_key", self.server_key)
        # Without this check an unsafe size would be found only when a client refuses the roster,
        # after the campaign has begun.
        for n in (self.parameters.n_min, self.parameters.n_max):
            self.parameters.check_roster(n)
        if self.allow_list is not None and not self.parameters.adversary.has_identities:
            raise InvalidInputError(
                f"an allow_list goes with the adversary active, got {self.parameters.adversary}"
            )
        check_key("allow_list", self.allow_list)

    @property
    def needed_keys(self) -> tuple[str, ...]:
        """The names of the keys without which no vectors may be summed."""
        return needed_keys(self.method, self.parameters.adversary)

    @property
    def missing_keys(self) -> tuple[str, ...]:
        """The names of `needed_keys` that are None: not added yet."""
        return _missing(self)

    @property
    def length(self) -> int:
        """V, the number of entries of a client's vector, without checksum entries."""
        return self.parameters.length

    @property
    def bits(self) -> int:
        """b, the number of bits of an entry."""
        return self.parameters.bits

    @property
    def modulus(self) -> int:
        """The modulus of the sums: 2^b."""
        return 1 << self.bits

    @property
    def least_clients(self) -> int:
        """The fewest clients in a roster; the sum may have fewer, since clients may drop out."""
        return self.parameters.n_min

    @property
    def most_clients(self) -> int:
        """The most clients in one sum."""
        return self.parameters.n_max

    def with_room(self, bits: int, _noise: int) -> Self:
        """Return a copy of these terms with `bits` bits for an entry; the noise is ignored."""
        return dataclasses.replace(self, parameters=dataclasses.replace(self.parameters, bits=bits))

    @property
    def corrupt(self) -> int:
        """The most corrupt clients in one sum, C."""
        return self.parameters.corrupt

    @property
    def honest_survivors(self) -> int:
        """The fewest honest clients in one sum."""
        return self.parameters.honest_survivors

    @property
    def upload_bytes(self) -> int:
        """The most bytes that a client sends in a session with n_max clients, in all messages."""
        return upload_bytes(self.parameters, self.parameters.n_max)

    def bytes_besides(self, _widths: Sequence[int], *, abstain: bool) -> int:
        """Return the most bytes that a client sends besides its counters, all messages together.

        Its counters are the V entries of its vector, without checksum entries. Both arguments are
        ignored; `TwoServerConfig.bytes_besides` needs them.
        """
        return self.upload_bytes - -(-self.length * self.bits // 8)

    def summary(self) -> dict[str, Any]:
        """Return the protocol and its main parameters, for readers of a result, as JSON values."""
        graph = self.parameters.graph(self.parameters.n_max)
        return {
            "method": str(self.method),
            "adversary": str(self.parameters.adversary),
            "neighbours": graph.neighbours,
            "threshold": graph.threshold,
            "corrupt": self.parameters.corrupt,
            "max_dropout": self.parameters.max_dropout_ppm / 1e6,
            "min_survivors": self.parameters.min_survivors,
            "bits": self.bits,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the terms as values for JSON, with keys in hexadecimal.

        A key that is missing has no entry.
        """
        values = dataclasses.asdict(self.parameters) | {"adversary": str(self.parameters.adversary)}
        return {"method": str(self.method), **values, **_hex_keys(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Make the terms from what `to_dict` returned, without its entry "method".

        Raises:
            InvalidInputError: an entry is missing, unknown or not valid.
        """
        names = [f.name for f in dataclasses.fields(Parameters)]
        own = ["server_key", "allow_list"]
        found = validate.table("secure_sum", values, [*names, *own], optional=own)
        keys = {name: _unhex(name, value) for name, value in found.items() if name not in names}
        return cls(parameters=Parameters(**{name: found[name] for name in names}), **keys)


@dataclass(frozen=True, kw_only=True)
class TwoServerConfig:
    """Hold the terms of a secure sum by two servers that do not collude.

    `TwoServerParameters` describes the fields that are not listed here. `leader_key`, `helper_key`
    and `allow_list` are None until they are added. The widths of the rows are not a field: the
    plan's encoding has them.

    Args:
        length: V, the number of entries of the vector, without checksum entries.
        validity: whether each report has a proof that its vector is valid: a `Validity`, or its
            name. With proofs `largest_entry` must be 1. The sums are then computed modulo the prime
            p of a field of the proofs (`flp.one_hot`), and `bits` must be the number of bits of p.

    Raises:
        InvalidInputError: as for `TwoServerParameters`, or the proofs do not fit the other fields.
    """

    length: int
    bits: int
    n_max: int
    min_batch: int
    corrupt: int
    leader_key: bytes | None = None
    helper_key: bytes | None = None
    allow_list: bytes | None = None
    largest_entry: int = 1
    noise: int = 0
    validity: Validity | str = Validity.NONE

    method = SecureSum.TWO_SERVER

    def __post_init__(self) -> None:
        check_key("leader_key", self.leader_key)
        check_key("helper_key", self.helper_key)
        if self.leader_key is not None and self.leader_key == self.helper_key:
            raise InvalidInputError(
                "secure_sum.leader_key and helper_key must be the keys of two servers, got one key"
                " for both"
            )
        check_key("allow_list", self.allow_list)
        object.__setattr__(self, "validity", Validity.parse(self.validity))
        validate.integer(1, length=self.length)
        checked = self.sizing
        for name in _NUMBERS:  # NumPy integers become Python integers
            object.__setattr__(self, name, getattr(checked, name))
        if self.has_proofs:
            # This makes a proof system, whose constructor refuses wrong bits, and a `largest_entry`
            # above 1. The proof system itself is not used.
            self._any_proof()

    @property
    def needed_keys(self) -> tuple[str, ...]:
        """The names of the keys without which no vectors may be summed."""
        return needed_keys(self.method)

    @property
    def missing_keys(self) -> tuple[str, ...]:
        """The names of `needed_keys` that are None: not added yet."""
        return _missing(self)

    def parameters(
        self, fingerprint: bytes, widths: Sequence[int], *, signed: bool
    ) -> TwoServerParameters:
        """Return the parameters of the protocol for the plan that has these terms.

        Args:
            fingerprint: the plan's fingerprint, 32 bytes.
            widths: the number of counters in each row of a client's vector.
            signed: whether an entry without noise may be negative: True for a sketch, False for a
                histogram.

        Raises:
            InvalidInputError: a key is missing, the sum of the widths is not `length`, or a sum
                does not fit `bits`.
        """
        if self.missing_keys:
            raise InvalidInputError(
                f"secure_sum lacks {' and '.join(self.missing_keys)}; add_keys adds them"
            )
        from fedtally.secagg.two_server import TwoServerParameters

        keys = {name: getattr(self, name) for name in self.needed_keys}
        return TwoServerParameters(
            widths=self._rows(widths),
            **self._bounds,
            **keys,
            fingerprint=fingerprint,
            signed=signed,
        )

    def _rows(self, widths: Sequence[int]) -> tuple[int, ...]:
        """Return the widths as a tuple; raise an InvalidInputError if their sum is not `length`."""
        if sum(widths) != self.length:
            raise InvalidInputError(
                f"widths must sum to the length, {self.length}, got {sum(widths)}"
            )
        return tuple(widths)

    @property
    def _bounds(self) -> dict[str, Any]:
        """The numeric fields by name, except `length`: the protocol computes it from the widths."""
        return {name: getattr(self, name) for name in _BOUNDS}

    @property
    def has_proofs(self) -> bool:
        """Whether each report has a proof that its vector is valid."""
        return self.validity is Validity.PROOFS

    @property
    def modulus(self) -> int:
        """The modulus of the sums: 2^b, or with proofs the prime of the field of the proofs."""
        if not self.has_proofs:
            return 1 << self.bits
        return self._any_proof().modulus

    def _any_proof(self, *, signed: bool = False) -> ReportProof:
        given = dataclasses.replace(self.sizing, signed=signed)
        return self.proof(given, (self.length,), abstain=False)

    def proof(
        self, parameters: TwoServerParameters, widths: Sequence[int], *, abstain: bool
    ) -> ReportProof:
        """Return the proof system of the reports.

        Args:
            parameters: the result of `self.parameters` or `self.sizing`; its widths are replaced.
            widths: the number of counters in each row of a client's vector.
            abstain: whether a client without an item may report the zero vector.

        Raises:
            InvalidInputError: the reports of these terms have no proofs, the sum of the widths is
                not `length`, or `bits` is not the number of bits of the prime of a field for these
                sums.
        """
        if not self.has_proofs:
            raise InvalidInputError("the reports of these terms have no proofs (validity none)")
        from fedtally.secagg.two_server import ReportProof

        return ReportProof(dataclasses.replace(parameters, widths=self._rows(widths)), abstain)

    @property
    def sizing(self) -> TwoServerParameters:
        """Parameters with stand-ins for the keys, to check the fields and to count bytes.

        Never run the protocol with these parameters: anybody can open what is sealed to the helper.
        `signed` is False in them: sums of a histogram need fewer bits than sums of a sketch, and
        these terms do not say which of the two they are for.
        """
        from fedtally.secagg.two_server import TwoServerParameters

        nobody = bytes(KEY_BYTES)  # zeros, in the place of two digests
        return TwoServerParameters(
            widths=(self.length,),
            **self._bounds,
            leader_key=_OTHER_STAND_IN,
            helper_key=_STAND_IN,
            allow_list=nobody,
            fingerprint=nobody,
            signed=False,
        )

    @property
    def least_clients(self) -> int:
        """The fewest clients in one sum."""
        return self.min_batch

    @property
    def most_clients(self) -> int:
        """The most clients in one sum."""
        return self.n_max

    def with_room(self, bits: int, noise: int) -> Self:
        """Return a copy with `bits` bits for an entry and with noise of at most `noise`."""
        return dataclasses.replace(self, bits=bits, noise=noise)

    @property
    def honest_survivors(self) -> int:
        """The fewest honest clients in one sum."""
        return self.min_batch - self.corrupt

    @property
    def upload_bytes(self) -> int:
        """The number of bytes of a report to both servers together, its proof not counted."""
        return self.sizing.report_bytes

    def bytes_besides(self, widths: Sequence[int], *, abstain: bool) -> int:
        """Return the number of bytes of a client's report, with its proof, besides its counters.

        Args:
            widths: the number of counters in each row of the vector; the size of the proof depends
                on them.
            abstain: whether a client without an item may report the zero vector.
        """
        sized, added = self, 0
        if self.has_proofs:
            sized = dataclasses.replace(self, length=sum(widths))
            added = sized.proof(sized.sizing, widths, abstain=abstain).added_bytes
        return sized.upload_bytes + added - -(-sized.length * sized.bits // 8)

    def summary(self) -> dict[str, Any]:
        """Return the protocol and its main parameters, for readers of a result, as JSON values."""
        return {
            "method": str(self.method),
            "corrupt": self.corrupt,
            "min_survivors": self.min_batch,
            "bits": self.bits,
            "validity": str(self.validity),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the terms as values for JSON, with keys in hexadecimal.

        A key that is missing has no entry. `validity` has an entry only with proofs: otherwise
        plans that were made before there were proofs would get other fingerprints.
        """
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        validity = {"validity": str(self.validity)} if self.has_proofs else {}
        return {"method": str(self.method), **numbers, **validity, **_hex_keys(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Make the terms from what `to_dict` returned, without its entry "method".

        Raises:
            InvalidInputError: an entry is missing, unknown or not valid, or says that validity is
                none.
        """
        fields = dataclasses.fields(cls)
        optional = [f.name for f in fields if f.default is not dataclasses.MISSING]
        found = validate.table("secure_sum", values, [f.name for f in fields], optional)
        for name in ("leader_key", "helper_key", "allow_list"):
            if name in found:
                found[name] = _unhex(name, found[name])
        made = cls(**found)
        if "validity" in found and not made.has_proofs:
            raise InvalidInputError(
                "secure_sum.validity must be proofs in a plan: leave the entry out for none"
            )
        return made


# The numeric fields of `TwoServerConfig` that `TwoServerParameters` has, too.
_BOUNDS = tuple(
    f.name
    for f in dataclasses.fields(TwoServerConfig)
    if f.name not in ("length", *KEYS, "validity")
)
_NUMBERS = ("length", *_BOUNDS)
Terms = SecAggConfig | TwoServerConfig
METHODS: dict[str, type[SecAggConfig] | type[TwoServerConfig]] = {
    terms.method: terms for terms in (SecAggConfig, TwoServerConfig)
}


def terms_from_dict(values: Any) -> Terms:
    """Make the terms from what `to_dict` of `SecAggConfig` or `TwoServerConfig` returned.

    Raises:
        InvalidInputError: an entry is missing, unknown or not valid.

    >>> terms_from_dict({"method": "trust me"})
    Traceback (most recent call last):
    ...
    fedtally.errors.InvalidInputError: secure_sum.method must be secagg or two-server, got ...
    """
    if not isinstance(values, Mapping):
        raise InvalidInputError(f"secure_sum must be a table, got {type(values).__name__}")
    found = dict(values)
    method = found.pop("method", None)
    if not isinstance(method, str) or method not in METHODS:
        raise InvalidInputError(f"secure_sum.method must be {' or '.join(METHODS)}, got {method!r}")
    return METHODS[method].from_dict(found)


def needed_keys(method: str, adversary: Adversary = Adversary.SEMI_HONEST) -> tuple[str, ...]:
    """Return the names of the keys without which a secure sum may not run.

    Args:
        method: "ideal", "secagg" or "two-server".
        adversary: the kind of server that "secagg" protects against; ignored for the others.

    >>> needed_keys("secagg"), needed_keys("secagg", Adversary.ACTIVE)
    (('server_key',), ('server_key', 'allow_list'))
    >>> needed_keys("two-server"), needed_keys("ideal", Adversary.ACTIVE)
    (('leader_key', 'helper_key', 'allow_list'), ())
    """
    listed = ("allow_list",) if adversary.has_identities else ()
    return {
        "ideal": (),
        "secagg": ("server_key", *listed),
        "two-server": ("leader_key", "helper_key", "allow_list"),
    }[method]


def check_keys(method: str, adversary: Adversary, given: Mapping[str, bytes]) -> None:
    """Raise an error for a key that a secure sum does not use, or that is not valid.

    A key that the secure sum does not use is refused and not ignored: a caller that gives it
    probably means another plan.

    Args:
        method: "ideal", "secagg" or "two-server".
        adversary: the kind of server to protect against, as in `needed_keys`.
        given: the keys, 32 bytes each, by their names.

    Raises:
        InvalidInputError: a key is not used (the message names all such keys), or is not valid.
    """
    needed = needed_keys(method, adversary)
    surplus = [name for name in given if name not in needed]
    if surplus:
        shown = f"{method} ({adversary})" if method == "secagg" else method
        none = " or ".join(arg[name] for name in surplus)
        used = " and ".join(arg[name] for name in needed)
        raise InvalidInputError(
            f"the secure sum {shown} has no {none}: it uses {used or 'no key'}; leave out what it"
            " does not use"
        )
    for name, value in given.items():
        check_key(name, value)


def check_key(name: str, value: Any) -> None:
    """Raise an error if a value is not a valid key; None passes.

    A valid key has 32 bytes, is canonical, and is not of low order: under a key of low order
    anybody can sign, or open what is sealed to it. The `server_key` is an Ed25519 key; the
    `leader_key` and the `helper_key` are X25519 keys. Only the length is checked of the digest
    of an allow-list.

    Args:
        name: one of `KEYS`.
        value: the key, or the digest, 32 bytes; None: not added yet.

    Raises:
        InvalidInputError: the value is not a valid key; the message says why.
    """
    if value is None:
        return
    if not isinstance(value, bytes) or len(value) != KEY_BYTES:
        raise InvalidInputError(f"secure_sum.{name} must be {KEY_BYTES} bytes")
    try:
        if name == "server_key":
            check_identity(value)
        elif name != "allow_list":
            check_point(value)
    except RejectedError as error:
        raise InvalidInputError(f"secure_sum.{name} is no valid key: {error}") from error


def add_keys(terms: Terms, given: Mapping[str, bytes]) -> Terms:
    """Return a copy of the terms with keys added.

    Args:
        terms: the terms of a plan.
        given: the keys, 32 bytes each, by their names: some or all of `terms.missing_keys`. A key
            that the terms have already may be given again if it is the same.

    Raises:
        InvalidInputError: a key is not valid, is not used by the protocol, differs from the key
            that the terms have already, or would be the key of both servers.
    """
    adversary = (
        terms.parameters.adversary if isinstance(terms, SecAggConfig) else Adversary.SEMI_HONEST
    )
    check_keys(terms.method, adversary, given)
    for name, value in given.items():
        # A client trusts the plan whose fingerprint it knows, and the fingerprint covers the keys.
        # If keys could be replaced, whoever passes the plan on could put in the keys of another
        # server.
        there = getattr(terms, name)
        if there is not None and there != value:
            raise InvalidInputError(
                f"the plan has another {arg[name]}, {there.hex()[:16]}...: keys of a published plan"
                " are not replaced; add yours to the plan without keys (Plan.without_keys), which"
                " makes another plan"
            )
    changes: dict[str, Any] = dict(given)
    return dataclasses.replace(terms, **changes)


def remove_keys(terms: Terms) -> Terms:
    """Return a copy of the terms in which every key is None."""
    nothing: dict[str, Any] = dict.fromkeys(terms.needed_keys)
    return dataclasses.replace(terms, **nothing)


def why_no_proofs(*, items: int, clients: int, noise: int, signed: bool) -> str:
    """Return why reports cannot have proofs, in words, or "" if they can.

    Args:
        items: the most items that one client contributes, `Plan.most_items`. This number does not
            follow from the largest entry: in a histogram each of several items adds 1 to a
            counter of its own.
        clients: the most clients in a sum.
        noise: the largest absolute value of the noise in a counter.
        signed: whether an entry may be -1, as in a sketch.

    >>> why_no_proofs(items=3, clients=9, noise=0, signed=True)
    'a proof is of one item a client, and here a client contributes up to 3'
    """
    if items > 1:
        return f"a proof is of one item a client, and here a client contributes up to {items:,}"
    from fedtally.flp.one_hot import field_for_sums

    try:
        field_for_sums(clients, noise, signed=signed)
    except InvalidInputError as error:
        return f"no field of proofs holds such sums ({error})"
    return ""


def whole_bits(
    clients: int, largest_entry: int, noise: int, *, folds: bool, signed: bool, proofs: bool = False
) -> int:
    """Return the number of bits, a multiple of 8, of a counter that can hold every sum.

    Args:
        clients: the most clients in a sum.
        largest_entry: the most that one client adds to a counter, without noise.
        noise: the largest absolute value of the noise that a counter has before the sum is opened.
        folds: whether sums are folded before noise is added, see `check_terms`. Then the counters
            must be able to hold sums of `2 * clients` clients.
        signed: whether an entry without noise may be negative (`Encoding.is_signed`).
        proofs: whether reports have proofs. Then a counter is an integer mod p, the prime of the
            smallest field for the sums. The largest entry is then 1, whatever `largest_entry` says.

    Raises:
        InvalidInputError: the sums need more bits than a counter can have.
    """
    if proofs:
        from fedtally.flp.one_hot import field_for_sums

        return field_for_sums((1 + folds) * clients, noise, signed=signed).prime.bit_length()
    return modulus_bits(clients, (1 + folds) * largest_entry, noise, signed=signed)


def with_proofs(terms: TwoServerConfig, *, folds: bool = False, signed: bool) -> TwoServerConfig:
    """Return a copy of the terms with proofs, and with the bits of the smallest field for the sums.

    Args:
        terms: the terms of a plan.
        folds: whether sums are folded before noise is added, see `check_terms`.
        signed: whether an entry may be -1, as in a sketch.

    Raises:
        InvalidInputError: no field of proofs can hold the sums, or `largest_entry` is not 1.
    """
    bits = whole_bits(terms.n_max, 1, terms.noise, folds=folds, signed=signed, proofs=True)
    return dataclasses.replace(terms, validity=Validity.PROOFS, bits=bits)


def check_terms(
    terms: Terms,
    counters: int,
    largest_entry: int,
    most: int,
    noise: int,
    items: int,
    *,
    folds: bool,
    signed: bool,
) -> None:
    """Raise an error if terms do not fit the vectors of a plan.

    Args:
        terms: the terms of the plan.
        counters: the number of entries of a client's vector, `Plan.vector_length`.
        largest_entry: the most that one client adds to an entry, without noise.
        most: the most clients in a sum that is opened.
        noise: the largest absolute value of the noise in a counter.
        items: the most items that one client contributes, `Plan.most_items`.
        folds: whether sums are opened without noise, and are folded before noise is added: entries
            that no honest clients can have are brought into the range of honest sums
            (`campaign.release.folded`). Then the modulus must be at least four times the largest
            entry of an honest sum, or twice if no entry is negative.
        signed: whether an entry without noise may be negative (`Encoding.is_signed`).

    Raises:
        InvalidInputError: the length of the terms, or (two servers) their largest entry or noise,
            is not the plan's; a sum could overflow, or reveal one client's items; the terms need
            more than `most` clients; or the vectors cannot have the proofs that the terms ask for.
    """
    # A sum that wraps around the modulus is wrong, and nobody notices. So the bounds below are
    # exact.
    if terms.least_clients > most:
        raise InvalidInputError(
            f"secure_sum asks for at least {terms.least_clients} clients, and the largest round has"
            f" {most}; use a larger cohort"
        )
    if isinstance(terms, TwoServerConfig) and terms.has_proofs:
        why = why_no_proofs(items=items, clients=terms.n_max, noise=terms.noise, signed=signed)
        if why:
            raise InvalidInputError(f"secure_sum.validity cannot be proofs: {why}; leave it out")
        terms._any_proof(signed=signed)  # it refuses the bits of a field that is too small
    if isinstance(terms, TwoServerConfig) and terms.noise != noise:
        raise InvalidInputError(
            f"secure_sum.noise must be {noise}, that of the plan's privacy, got {terms.noise}"
        )
    # If the largest entry of the terms were lower, some clients could not report, because their
    # entries are too large. A client that is silent would so reveal something about its items.
    if isinstance(terms, TwoServerConfig) and terms.largest_entry != largest_entry:
        raise InvalidInputError(
            f"secure_sum.largest_entry must be {largest_entry}, the most that max_items items add"
            " to a counter: who could not report else would show by that what it holds, got"
            f" {terms.largest_entry}"
        )
    if terms.length != counters:
        raise InvalidInputError(
            f"secure_sum.length must be rows times width (and 1 for silos), {counters}, got"
            f" {terms.length}"
        )
    needed = modulus_bits(terms.most_clients, largest_entry, noise, multiple=1, signed=signed)
    if terms.bits < needed:
        raise InvalidInputError(
            f"secure_sum.bits must be at least {needed}: sums of {terms.most_clients} clients of"
            f" {largest_entry} items {f'and noise up to {noise} ' if noise else ''}could overflow,"
            f" got {terms.bits}"
        )
    times = 4 if signed else 2
    room = times * terms.most_clients * largest_entry
    if folds and terms.modulus < room:
        raise InvalidInputError(
            f"secure_sum.bits must be more than {terms.bits}: under central trust the modulus must"
            f" be at least {room}, {times} times the largest honest entry, got {terms.modulus};"
            " else who lies could make an exact sum wrap around it, and see in the answer what one"
            " other client holds"
        )


def _missing(terms: Terms) -> tuple[str, ...]:
    return tuple(name for name in terms.needed_keys if getattr(terms, name) is None)


def _hex_keys(terms: Terms) -> dict[str, str]:
    return {
        name: getattr(terms, name).hex()
        for name in terms.needed_keys
        if getattr(terms, name) is not None
    }


def _unhex(name: str, value: Any) -> bytes:
    try:
        return bytes.fromhex(value)
    except (TypeError, ValueError):
        raise InvalidInputError(
            f"secure_sum.{name} must be {2 * KEY_BYTES} hexadecimal digits, got {value!r}"
        ) from None
