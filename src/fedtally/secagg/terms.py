"""What a plan says of secure summation: which protocol sums a round, between whom, and under whose keys."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self, TypeVar, cast

from fedtally.crypto.keys import KEY_BYTES, check_identity
from fedtally.errors import InvalidInputError
from fedtally.secagg.params import Adversary, Parameters, modulus_bits
from fedtally.secagg.two_server import TwoServerParameters
from fedtally.secagg.wire import upload_bytes

_T = TypeVar("_T")


class SecureSum(StrEnum):
    """The closed list of ways to sum a round: `IDEAL` trusts one server with the vectors, the others are protocols."""

    IDEAL = "ideal"
    SECAGG = "secagg"
    TWO_SERVER = "two-server"

    @classmethod
    def parse(cls, name: str) -> SecureSum:
        """Return the member of that name.

        >>> SecureSum.parse("secagg") is SecureSum.SECAGG
        True
        """
        try:
            return cls(name)
        except ValueError:
            *others, last = cls
            raise InvalidInputError(f"secure_sum must be {', '.join(others)} or {last}, got {name!r}") from None


@dataclass(frozen=True, kw_only=True)
class SecAggTerms:
    """A round's cohorts sum among themselves, with one server (``fedtally-secagg/1``).

    Args:
        parameters: of every cohort.
        server_key: the Ed25519 public key that signs Invites, 32 bytes.
        allow_list: the digest of the identities that may take part, 32 bytes: only and always in `active`.

    Raises:
        InvalidInputError: a key or the digest is missing or not valid, or the graph protects no roster of the smallest
            or of the largest size.
    """

    parameters: Parameters
    server_key: bytes
    allow_list: bytes | None = None

    method = SecureSum.SECAGG

    def __post_init__(self) -> None:
        _check_bytes(server_key=self.server_key)
        check_identity(self.server_key)
        for n in (self.parameters.n_min, self.parameters.n_max):
            self.parameters.check_roster(n)
        if (self.allow_list is not None) != (self.parameters.adversary is Adversary.ACTIVE):
            raise InvalidInputError(f"an allow_list goes with the adversary active, got {self.parameters.adversary}")
        if self.allow_list is not None:
            _check_bytes(allow_list=self.allow_list)

    @property
    def length(self) -> int:
        """Entries of a client's vector, V."""
        return self.parameters.length

    @property
    def bits(self) -> int:
        """Bits of an entry, b."""
        return self.parameters.bits

    @property
    def most_clients(self) -> int:
        """The most clients in one sum."""
        return self.parameters.n_max

    @property
    def honest_survivors(self) -> int:
        """The fewest honest clients in one sum."""
        return self.parameters.honest_survivors

    @property
    def upload_bytes(self) -> int:
        """The most that a client sends in its round, all messages together."""
        return upload_bytes(self.parameters, self.parameters.n_max)

    def summary(self) -> dict[str, Any]:
        """Return what a reader of a sum must know of how it was made, as JSON-able values."""
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
        """Return the terms as JSON-able values, keys in hexadecimal."""
        values = dataclasses.asdict(self.parameters) | {"adversary": str(self.parameters.adversary)}
        listed = {} if self.allow_list is None else {"allow_list": self.allow_list.hex()}
        return {"method": str(self.method), **values, "server_key": self.server_key.hex(), **listed}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the terms that `to_dict` described."""
        found = dict(values)
        keys = {name: _unhex(name, found.pop(name)) for name in ("server_key", "allow_list") if name in found}
        return _built(cls, parameters=_built(Parameters, **found), **keys)


@dataclass(frozen=True, kw_only=True)
class TwoServerTerms:
    """Clients report to two servers that do not collude; the fields are those of `TwoServerParameters`."""

    length: int
    bits: int
    n_max: int
    min_batch: int
    corrupt: int
    helper_key: bytes
    allow_list: bytes
    largest_entry: int = 1
    noise: int = 0

    method = SecureSum.TWO_SERVER

    def __post_init__(self) -> None:
        checked = self.parameters(bytes(KEY_BYTES))
        for each in dataclasses.fields(self):
            object.__setattr__(self, each.name, getattr(checked, each.name))

    def parameters(self, fingerprint: bytes) -> TwoServerParameters:
        """Return the parameters of the protocol, for the plan with that fingerprint."""
        return TwoServerParameters(
            fingerprint=fingerprint, **{f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        )

    @property
    def most_clients(self) -> int:
        """The most clients in one sum."""
        return self.n_max

    @property
    def honest_survivors(self) -> int:
        """The fewest honest clients in one sum."""
        return self.min_batch - self.corrupt

    @property
    def upload_bytes(self) -> int:
        """What a client sends, to both servers together."""
        return self.parameters(bytes(KEY_BYTES)).report_bytes

    def summary(self) -> dict[str, Any]:
        """Return what a reader of a sum must know of how it was made, as JSON-able values."""
        return {"method": str(self.method), "corrupt": self.corrupt, "min_survivors": self.min_batch, "bits": self.bits}

    def to_dict(self) -> dict[str, Any]:
        """Return the terms as JSON-able values, keys in hexadecimal."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        shown = {name: value.hex() if isinstance(value, bytes) else value for name, value in values.items()}
        return {"method": str(self.method), **shown}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the terms that `to_dict` described."""
        keys = {name: _unhex(name, values[name]) for name in ("helper_key", "allow_list") if name in values}
        return _built(cls, **{**values, **keys})


Terms = SecAggTerms | TwoServerTerms
METHODS: dict[str, type[SecAggTerms] | type[TwoServerTerms]] = {
    terms.method: terms for terms in (SecAggTerms, TwoServerTerms)
}


def terms_from_dict(values: Any) -> Terms:
    """Return the terms of either protocol.

    Raises:
        InvalidInputError: a value is missing, unknown or out of bounds.

    >>> terms_from_dict({"method": "trust me"})
    Traceback (most recent call last):
    ...
    fedtally.errors.InvalidInputError: secure_sum.method must be secagg or two-server, got 'trust me'
    """
    if not isinstance(values, Mapping):
        raise InvalidInputError(f"secure_sum must be a table, got {values!r}")
    found = dict(values)
    method = found.pop("method", None)
    if not isinstance(method, str) or method not in METHODS:
        raise InvalidInputError(f"secure_sum.method must be {' or '.join(METHODS)}, got {method!r}")
    return METHODS[method].from_dict(found)


def check_terms(terms: Terms, counters: int, max_items: int, most: int, noise: int) -> None:
    """Refuse terms that do not fit sketches of so many counters, of clients of at most so many items.

    Args:
        terms: of a plan.
        counters: rows times width.
        max_items: the most items of a client.
        most: clients in what is opened at once, at most.
        noise: what noise may add to a counter, at most.

    Raises:
        InvalidInputError: another length, sums that could overflow, or more clients asked for than a round has.
    """
    least = terms.parameters.n_min if isinstance(terms, SecAggTerms) else terms.min_batch
    if least > most:
        raise InvalidInputError(
            f"secure_sum asks for at least {least} clients, and the largest round has {most}; use a larger cohort"
        )
    if isinstance(terms, TwoServerTerms) and terms.noise != noise:
        raise InvalidInputError(f"secure_sum.noise must be {noise}, that of the plan's privacy, got {terms.noise}")
    if isinstance(terms, TwoServerTerms) and terms.largest_entry != max_items:
        raise InvalidInputError(
            f"secure_sum.largest_entry must be max_items, {max_items}: who could not report else would show by that "
            f"what it holds, got {terms.largest_entry}"
        )
    if terms.length != counters:
        raise InvalidInputError(f"secure_sum.length must be rows times width, {counters}, got {terms.length}")
    needed = modulus_bits(terms.most_clients, max_items, noise, multiple=1)
    if terms.bits < needed:
        raise InvalidInputError(
            f"secure_sum.bits must be at least {needed}: sums of {terms.most_clients} clients of {max_items} items "
            f"{f'and noise up to {noise} ' if noise else ''}could overflow, got {terms.bits}"
        )


def _check_bytes(**named: Any) -> None:
    ((name, value),) = named.items()
    if not isinstance(value, bytes) or len(value) != KEY_BYTES:
        raise InvalidInputError(f"secure_sum.{name} must be {KEY_BYTES} bytes")


def _unhex(name: str, value: Any) -> bytes:
    try:
        return bytes.fromhex(value)
    except (TypeError, ValueError):
        raise InvalidInputError(
            f"secure_sum.{name} must be {2 * KEY_BYTES} hexadecimal digits, got {value!r}"
        ) from None


def _built(kind: type[_T], **values: Any) -> _T:
    """Return an object of these fields, of which none may be missing or unknown."""
    known = {f.name: f.default is dataclasses.MISSING for f in dataclasses.fields(cast(Any, kind))}
    missing = [name for name, needed in known.items() if needed and name not in values]
    unknown = [name for name in values if name not in known]
    if missing or unknown:
        problem = f"lacks {', '.join(missing)}" if missing else f"has unknown entries {', '.join(unknown)}"
        raise InvalidInputError(f"secure_sum {problem}")
    return kind(**values)
