"""The `Plan`: all public parameters of a campaign, checked together, with a fingerprint.

A plan is immutable and contains nothing private. If the domain was made from the clients' own
items, the plan contains only the domain's size. A plan is written as TOML or JSON; its fingerprint
is the SHA-256 of its canonical JSON. docs/plan.md describes the file and the fingerprint.

A plan is first made without keys. `Plan.with_keys` adds the public keys and returns the published
plan, which is another plan with another fingerprint. Clients and servers refuse a plan that lacks a
key (`Plan.check_published`).
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from fedtally.base import toml, validate
from fedtally.base.archive import replacing
from fedtally.base.encoding import Encoding, values_of_sum
from fedtally.errors import InvalidInputError, UnreadableFileError, opt, reason
from fedtally.plan.calendar import Calendar
from fedtally.plan.form import canonical_json, check_form, json_object
from fedtally.plan.parts.candidates import Candidates, checked_domain
from fedtally.plan.parts.clients import Clients
from fedtally.plan.parts.guarantee import (
    check_candidates,
    check_collisions,
    check_delta,
    check_honest,
    check_number,
)
from fedtally.plan.parts.protection import Protection, Sums
from fedtally.plan.parts.summing import Summing
from fedtally.plan.parts.vector import Vector
from fedtally.plan.stopping import (
    LEAST_NOISED_ROUNDS,
    LEAST_ROUNDS,
    Stopping,
    check_stopping,
)
from fedtally.plan.target import Target
from fedtally.recovery.decoders import Recovery
from fedtally.sketch import NoiseMark, Schedule, SketchSpec, Spelling
from fedtally.sketch.clip import Clip
from fedtally.sketch.schedule import OWN_HASHES

if TYPE_CHECKING:
    from fedtally.privacy.config import PrivacyConfig
    from fedtally.secagg.config import Terms
    from fedtally.secagg.two_server import ReportProof

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
SCHEMA = "fedtally-plan/1"
_TERMS = ("secure_sum", "privacy", "target", "calendar")  # tables that a plan need not have
_OPTIONAL = (*_TERMS, "people", "spelling", "encoding")  # entries that a plan need not have
# entries that a file must leave out if they have the usual value; for each, the values that the
# file may state, and what to do instead of stating the usual value
_USUAL = {
    "people": ("at least 2", "leave the entry out for 1"),
    "encoding": ("histogram", "leave the entry out for a sketch"),
}
_OF_FILES = ("schema", "fingerprint")  # entries that only a file can have, and need not have
# The largest `num_clients` and `max_items` of a plan. Even at both limits, a sum of all clients'
# items fits a signed 64-bit counter.
MAX_CLIENTS = 2**40
MAX_ITEMS = 2**20
MAX_BYTES = 2**20  # the most bytes of a plan's file: far more than needed


@dataclass(frozen=True)
class Plan:
    """The public parameters of a campaign.

    Args:
        rows: the number of rows of the sketch, 1 .. 1024; 1 for a histogram.
        width: the number of counters in a row, 1 .. 2^24.
        schedule: which rounds share the locations (counters) and the signs of items: a `Schedule`
            or its name.
        num_rounds: the number of planned rounds.
        num_clients: the number of clients of all rounds together, at least 1. A client counts once
            for each round that it is in.
        max_round_clients: the number of clients in the largest round.
        domain: the public description of the candidates, as `Domain.describe()` returns it: kind,
            size, public, and the parameters of the kind.
        max_items: the most items that one client contributes in a round.
        seed: the 32 bytes from which the hashes are derived; they are public.
        secure_sum: the terms of the protocol that sums the vectors; None: a trusted server sums
            (ideal). The terms may lack keys: then the plan can be sized and simulated, but cannot
            be run.
        privacy: the differential privacy that the plan guarantees, with the noise for this
            guarantee; None: no privacy.
        target: the largest error that the plan was made for; None: no target was requested.
        people: the most people whose items one client holds. Above 1 the clients are silos, such as
            hospitals. Then `max_items`, the clip and the privacy apply to one person, `num_clients`
            counts silos, and each client sends the number of its people as one more counter.
        spelling: the size of the sketches from which names are read, for an open domain; None for a
            list of candidates. The spelling and the domain must have the same maximum length of
            names.
        encoding: whether items are counted in a "sketch" or in a "histogram". A histogram has one
            row, one counter for each candidate, and the schedule shared.
        calendar: the times when each round is open; None: the server decides when rounds are open.
            With a calendar each round has its own hashes or signs, and there are at most 4096
            rounds.

    Raises:
        InvalidInputError: a value is out of bounds, or two values contradict each other.

    >>> domain = {"kind": "range", "size": 150_868, "public": True, "first": 1, "last": 150_868}
    >>> plan = Plan(rows=7, width=2000, schedule="hybrid", num_rounds=10, num_clients=150_000,
    ...             max_round_clients=15_000, domain=domain, max_items=1, seed=bytes(32))
    >>> plan.modulus_bits, plan.bytes_per_client
    (15, 26250)
    >>> plan.one_hot_bytes_per_client, plan.binary_bytes_per_client
    (264019, 3)
    >>> Plan.from_toml(plan.to_toml()) == plan
    True
    """

    rows: int
    width: int
    schedule: Schedule
    num_rounds: int
    num_clients: int
    max_round_clients: int
    domain: Mapping[str, Any]
    max_items: int
    seed: bytes
    secure_sum: Terms | None = None
    privacy: PrivacyConfig | None = None
    target: Target | None = None
    people: int = 1
    spelling: Spelling | None = None
    encoding: Encoding = Encoding.SKETCH
    calendar: Calendar | None = None

    def __post_init__(self) -> None:
        self._parse()
        # the order matters: a check relies on the parts that were checked before it
        self.candidates.check_spelling(self.spelling)
        check_collisions(self.privacy, self.candidates)
        self.vector.check(self.candidates, self.width)
        # take these from the spec, which has checked them and made NumPy integers plain ones
        for name in ("rows", "width", "num_rounds"):
            object.__setattr__(self, name, getattr(self.spec, name))
        self._check_rounds()
        self._check_calendar(self.calendar)
        if self.target is not None:
            Recovery(self.target.recovery).check_encoding(self.encoding)
            Recovery(self.target.recovery).check_rows(self.rows)
        self.summing.check(self.clients)
        if self.privacy is not None:
            self._check_privacy(self.privacy)
        if self.secure_sum is not None:
            self._check_secure_sum(self.secure_sum)
        if (rule := self.stopping) is not None:
            names = ("candidates", "vector", "clients", "summing", "protection", "num_clients")
            parts = {name: getattr(self, name) for name in names}
            check_stopping(rule, self.spec, **parts)

    def _parse(self) -> None:
        """Convert names and numbers to plain values, and check the bounds of single values."""
        object.__setattr__(self, "schedule", Schedule.parse(self.schedule))
        object.__setattr__(self, "encoding", Encoding.parse(self.encoding))
        object.__setattr__(self, "domain", checked_domain(self.domain))
        for name, most in (
            ("num_clients", MAX_CLIENTS),
            ("max_round_clients", MAX_CLIENTS),
            ("max_items", MAX_ITEMS),
            ("people", MAX_CLIENTS),
        ):
            object.__setattr__(self, name, validate.integer(1, most, **{name: getattr(self, name)}))
        if self.num_clients * self.people > MAX_CLIENTS:
            raise InvalidInputError(
                f"num_clients times people must be at most {MAX_CLIENTS}, so that no sum overflows,"
                f" got {self.num_clients} times {self.people}"
            )

    def _check_rounds(self) -> None:
        """Refuse a `max_round_clients` above `num_clients`, or too small to reach `num_clients`.

        All rounds together must be able to reach `num_clients`.
        """
        if self.max_round_clients > self.num_clients:
            raise InvalidInputError(
                f"max_round_clients must be at most num_clients, {self.num_clients}, got"
                f" {self.max_round_clients}"
            )
        if self.max_round_clients * self.num_rounds < self.num_clients:
            raise InvalidInputError(
                f"{self.num_rounds} rounds of at most {self.max_round_clients} clients cannot hold "
                f"num_clients {self.num_clients}; raise max_round_clients or num_rounds"
            )

    def _check_calendar(self, calendar: Calendar | None) -> None:
        """Refuse a calendar that contradicts the rounds, the schedule or the privacy of the plan.

        With a calendar, the sum of each round must be opened by itself. Without a calendar, terms
        of privacy with `per_rounds` are refused.
        """
        event = None if self.privacy is None else self.privacy.event
        if calendar is None:
            if event is not None and event.per_rounds is not None:
                raise InvalidInputError(
                    "privacy.event.per_rounds goes with a calendar, which says when rounds are: add"
                    f" one ({opt.start}), or leave per_rounds and num_rounds out of the event"
                )
            return
        if calendar.num_rounds != self.num_rounds:
            raise InvalidInputError(
                f"the calendar must be of the rounds of the plan, {self.num_rounds}, got"
                f" {calendar.num_rounds}"
            )
        if self.spec.schedule.kind not in OWN_HASHES:
            raise InvalidInputError(
                "the schedule must be hybrid or fresh with a calendar, so that each round is opened"
                f" by itself, got {self.spec.schedule}"
            )
        if event is not None and event.relation.hides_number:
            raise InvalidInputError(
                "add-remove does not go with a calendar: its number of clients is noised over all"
                " rounds together; use zero-out or replace-one"
            )

    def _check_privacy(self, privacy: PrivacyConfig) -> None:
        """Refuse terms of privacy whose guarantee this plan would not keep."""
        from fedtally.privacy.config import Opened, check_event

        opened = Opened(
            rows=self.spec.touched,
            counters=self.spec.vector_length,
            max_items=self.max_items,
            encoding=self.encoding,
            num_rounds=self.num_rounds,
            clients=self.summing.most_clients,
            releases=self.releases,
            is_two_server=self.summing.servers is not None,
            people=self.people,
        )
        check_event(privacy.event, opened)
        check_candidates(privacy, self.candidates)
        check_number(privacy, self.clients, self.summing)
        rounds = 1 if self.calendar is None else self.protection.lifetime
        check_delta(privacy, self.clients, self.num_clients, rounds)
        check_honest(privacy, self.clients, self.summing, self.protection)

    def _check_secure_sum(self, agreed: Terms) -> None:
        """Refuse terms of a secure sum that do not suit the vectors of this plan."""
        # imported only here: a plan without a secure sum then loads no cryptography
        from fedtally.secagg.config import check_terms

        check_terms(
            agreed,
            self.vector_length,
            self.largest_entry,
            min(self.num_clients, self.max_round_clients * max(map(len, self.releases))),
            self.noise_bound,
            self.most_items,
            folds=self.protection.sums is Sums.SECRET,
            signed=self.encoding.is_signed,
        )

    def __eq__(self, other: object) -> bool:
        # 1, 1.0 and True are equal in Python, but differ in a file: so compare fingerprints
        return self.fingerprint == other.fingerprint if isinstance(other, Plan) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def has_domain(self, described: Mapping[str, Any]) -> bool:
        """Return whether a domain has the same description as the domain of this plan.

        Types count, too: the integer 1, the float 1.0 and True are three different values, since
        plans with them have different fingerprints.

        Args:
            described: the description of the domain, which `Domain.describe()` returned.
        """
        return canonical_json(self.domain) == canonical_json(described)

    @cached_property
    def clients(self) -> Clients:
        """The kind of clients: persons or silos."""
        return Clients(self.people, self.max_items)

    @cached_property
    def candidates(self) -> Candidates:
        """The candidates: the items that may be counted."""
        return Candidates(self.domain)

    @cached_property
    def vector(self) -> Vector:
        """The kind of vector that a client sends: sketch or histogram."""
        return Vector(self.encoding)

    @cached_property
    def summing(self) -> Summing:
        """The way to sum the vectors of a round."""
        return Summing(self.secure_sum, self.max_round_clients)

    @property
    def fewest_clients(self) -> int:
        """The fewest different clients that can fill all rounds as planned, rounded down.

        `num_clients` counts a client once for each round that it is in. So there are fewest clients
        if each takes part in as many rounds as it may. A plan with a calendar was made for this
        number of clients.
        """
        return self.num_clients // self.protection.lifetime

    @property
    def fleet(self) -> int:
        """The number of clients that may take part. With a calendar, it is `fewest_clients`.

        Without a calendar, it is `num_clients`.
        """
        return self.num_clients if self.calendar is None else self.fewest_clients

    @cached_property
    def protection(self) -> Protection:
        """The party that adds the noise, and what follows from it."""
        return Protection(
            self.privacy, self.schedule, self.num_rounds, has_secure_sum=self.secure_sum is not None
        )

    @cached_property
    def spec(self) -> SketchSpec:
        """The parameters that all sketches of this campaign share."""
        return SketchSpec(
            self.rows,
            self.width,
            self.schedule,
            self.num_rounds,
            self.seed,
            self.spelling,
            self.vector.first_id(self.candidates),
        )

    @property
    def is_histogram(self) -> bool:
        """Whether each candidate has its own counter, so that nothing is hashed."""
        return self.encoding is Encoding.HISTOGRAM

    @property
    def is_open(self) -> bool:
        """Whether the domain is open: there is no list, and clients spell the names of items."""
        return self.spelling is not None

    def clip(self, round: int, spell: Callable[[U64], U64] | None = None) -> Clip | None:
        """Return the bound on the norm of a client's sketch in a round; None if nothing is bounded.

        Args:
            round: the number of the round, 0 .. num_rounds - 1.
            spell: for an open domain, a function that returns how the names of items are encoded in
                counters (see `Clip`); None for a list of candidates.
        """
        norm = self.protection.clip_norm
        return None if norm is None else Clip(self.spec, round, norm, spell)

    @property
    def domain_size(self) -> int:
        """The number of candidates; for an open domain, the number of possible hashes."""
        return int(self.domain["size"])

    @property
    def is_two_server(self) -> bool:
        """Whether two servers sum the clients' vectors."""
        return self.summing.servers is not None

    @cached_property
    def report_proof(self) -> ReportProof | None:
        """The proof that each client's report to two servers has; None if reports have no proof.

        The proof shows that a report is valid. If the plan lacks a key, the returned proof serves
        only to count bytes.
        """
        agreed = self.summing.servers
        if agreed is None or not agreed.has_proofs:
            return None
        fingerprint = bytes.fromhex(self.fingerprint)
        widths = self.spec.row_widths
        signed = self.encoding.is_signed
        parameters = (
            agreed.parameters(fingerprint, widths, signed=signed)
            if self.is_published
            else replace(agreed.sizing, signed=signed)
        )
        # With privacy a client without an item reports zeros. The proof must allow this, and must
        # not show it.
        abstain = self.protection.is_charged
        return agreed.proof(parameters, widths, abstain=abstain)

    @property
    def why_no_proofs(self) -> str:
        """The reason why reports cannot have proofs, as a text for an error; "" if they can."""
        from fedtally.secagg.config import why_no_proofs

        return why_no_proofs(
            items=self.most_items,
            clients=self.summing.most_clients,
            noise=self.noise_bound,
            signed=self.encoding.is_signed,
        )

    @property
    def nouns(self) -> tuple[str, str]:
        """The English noun for what the answer counts, in the singular and in the plural."""
        return self.clients.counted

    @property
    def stopping(self) -> Stopping | None:
        """The rule by which the campaign may end early; None: the campaign runs all its rounds."""
        target = self.target
        if target is None or target.until_known is None:
            return None
        least = LEAST_NOISED_ROUNDS if self.protection.is_charged else LEAST_ROUNDS
        asked = target.linf, target.failure_probability, target.recovery
        return Stopping(*asked, least, target.until_known)

    def until_known(self, least_clients: int | None = None) -> Self:
        """Return this plan with a rule by which the campaign may end before its last round.

        The campaign ends early once the largest error is estimated to be within the target, and
        enough rounds and clients took part (`Stopping`).

        Args:
            least_clients: the fewest clients that must have taken part before the end; None: 1.

        Raises:
            InvalidInputError: the plan has no target, `check_stopping` refuses the rule for this
                plan, or `least_clients` is not at least 1.
        """
        if self.target is None:
            raise InvalidInputError(f"{opt.until_known} goes with {opt.tau}: give one")
        least = 1 if least_clients is None else validate.integer(1, min_clients=least_clients)
        return replace(self, target=replace(self.target, until_known=least))

    @property
    def rounds_noun(self) -> str:
        """The English noun for rounds, in the plural: "rounds", or for example "days".

        It depends on the calendar, if the plan has one.
        """
        return "rounds" if self.calendar is None else self.calendar.noun

    @property
    def is_of_silos(self) -> bool:
        """Whether clients are silos: each client may hold the items of several people."""
        return self.people > 1

    @property
    def vector_length(self) -> int:
        """The number of entries of a client's vector: the counters, and for a silo 1 more.

        The additional entry is the silo's number of people.
        """
        return self.spec.vector_length + self.clients.entries

    @property
    def largest_entry(self) -> int:
        """The most (absolute value) that one client adds to an entry of a sum, without noise."""
        return self.clients.largest_entry(self.encoding)

    @property
    def most_items(self) -> int:
        """The most items that one client contributes in a round; for a silo, of all its people."""
        return self.clients.most_items

    @property
    def missing_keys(self) -> tuple[str, ...]:
        """The names of the public keys that the secure sum needs and the plan does not have yet."""
        return self.summing.missing_keys

    @property
    def is_published(self) -> bool:
        """Whether no key is missing, so that clients and servers may run the plan."""
        return not self.missing_keys

    def check_published(self) -> None:
        """Refuse a plan that may not be run because a key of its secure sum is missing.

        Raises:
            InvalidInputError: a key is missing.
        """
        if self.missing_keys:
            raise InvalidInputError(
                f"the plan lacks {' and '.join(self.missing_keys)}, so nobody may run it: add what"
                " is missing by Plan.with_keys or fedtally keys add (fedtally keys new makes a"
                " server's key)"
            )

    def why_not_all_land(self) -> str:
        """Return why there are too few clients for a sum of each round, or "" if there are enough.

        The text is also "" if the plan does not use secagg. Names of options in the text are
        marked, as in error messages.
        """
        if self.summing.cohorts is None:
            return ""
        least, rounds = self.summing.least_clients, self.num_rounds
        most = self.num_clients // least
        if most >= rounds:
            return ""
        return (
            f"each of {rounds:,} rounds needs {least:,} clients (n_min), and {self.num_clients:,}"
            f" clients are enough for {most:,} round{'s' * (most != 1)}; plan it anew with smaller"
            f" cohorts ({opt.cohort_min}) or fewer rounds ({opt.num_rounds})"
        )

    def with_keys(
        self,
        *,
        server_key: bytes | None = None,
        leader_key: bytes | None = None,
        helper_key: bytes | None = None,
        allow_list: bytes | None = None,
        may_lack: bool = False,
    ) -> Plan:
        """Return this plan with added public keys. A plan that lacks no key is a published plan.

        The published plan is another plan with another fingerprint, and a ledger charges this plan
        and the published plan separately. If this plan is published twice with different keys, the
        two published plans are two campaigns. A key that is None is not added: the plan keeps the
        key that it has, if any.

        Args:
            server_key: for secagg, the server's Ed25519 public key, 32 bytes: it verifies the
                server's Invite messages.
            leader_key: for two-server, the leader's X25519 public key, 32 bytes: clients encrypt to
                the leader with it.
            helper_key: for two-server, the helper's X25519 public key, 32 bytes.
            allow_list: the `AllowList.digest` of the clients' public keys, 32 bytes; for
                two-server, and for secagg against an active adversary.
            may_lack: whether keys may still be missing afterwards, because several parties add
                their keys one after the other.

        Raises:
            InvalidInputError: a key is missing, and `may_lack` is False; a key is not valid; the
                secure sum does not use a given key; or the plan already has another key of this
                name.

        >>> domain = {"kind": "range", "size": 9, "public": True, "first": 1, "last": 9}
        >>> ideal = Plan(7, 20, "shared", 1, 50, 50, domain, 1, bytes(32))
        >>> ideal.is_published, ideal.with_keys() == ideal
        (True, True)
        """
        named = {
            "server_key": server_key,
            "leader_key": leader_key,
            "helper_key": helper_key,
            "allow_list": allow_list,
        }
        given = {name: key for name, key in named.items() if key is not None}
        plan = self
        if given:
            from fedtally.secagg.config import add_keys, check_keys
            from fedtally.secagg.params import Adversary

            if self.secure_sum is None:
                check_keys("ideal", Adversary.SEMI_HONEST, given)
            else:
                plan = replace(self, secure_sum=add_keys(self.secure_sum, given))
        if not may_lack:
            plan.check_published()
        return plan

    def without_keys(self) -> Plan:
        """Return this plan without its keys, so that it can be published with other keys.

        After a simulation the plan has the keys of the simulation. These must not be published:
        their secret keys are lost, or, if the user chose a seed, can be computed from this seed.
        """
        if self.secure_sum is None:
            return self
        from fedtally.secagg.config import remove_keys

        return replace(self, secure_sum=remove_keys(self.secure_sum))

    @property
    def releases(self) -> list[range]:
        """The releases: for each sum that is opened, the range of rounds that it adds up.

        If the clients add noise, or nobody adds noise, each round is a release. Otherwise a release
        adds up the rounds that share all hashes and signs.
        """
        return self.protection.releases

    @property
    def noise_mark(self) -> NoiseMark | None:
        """The mark of the sums that hold this plan's noise; None without privacy.

        The mark says who added the noise, and under which plan.
        """
        return self.protection.mark(self.fingerprint)

    @property
    def noise_bound(self) -> int:
        """A bound on the absolute value of the noise in every counter of a secure sum.

        The noise in some counter exceeds the bound with a probability of at most 2^-40. The bound
        is 0 if the secure sum holds no noise: the plan has no privacy, or an aggregator adds the
        noise later.
        """
        return self.protection.bound(self.vector_length, self.summing.most_clients)

    def row_noise_bound(self, width: int) -> int:
        """Return a bound on the sum of the absolute values of the noise in a row of a secure sum.

        The noise in some row exceeds the bound with a probability of at most 2^-40. The bound is 0
        if the secure sum holds no noise. Each cohort's sum is checked with this bound, before the
        sums of the cohorts are added up.

        Args:
            width: the number of counters in the row.
        """
        return self.protection.row_bound(self.spec.touched, width, self.summing.most_clients)

    @property
    def modulus_bits(self) -> int:
        """The number of bits of a counter in an upload, so that no sum overflows.

        If a secure sum holds noise, a sum may overflow with a probability of at most 2^-40.
        """
        if self.secure_sum is not None:
            return self.secure_sum.bits
        signed = self.encoding.is_signed
        sums = self.max_round_clients, self.largest_entry, self.noise_bound
        return modulus_bits(*sums, signed=signed)

    def read_sum(self, total: I64) -> I64:
        """Return the entries of a secure sum as integers: int64 [entries].

        A secure sum is known only modulo the modulus. The entries of sketches lie around 0. In
        histograms only noise is negative, so that the range of the entries is mostly above 0
        (`fedtally.base.encoding.values_of_sum`). The sum of sketches, and any sum of a trusted
        server, is returned unchanged.

        Args:
            total: int64 [entries], the sum as integers around 0, or a sum that this function
                returned.
        """
        if self.encoding.is_signed or self.secure_sum is None:
            return total
        from fedtally.secagg.packing import lifted

        return lifted(total, -self.noise_bound, self.secure_sum.modulus)

    @property
    def bytes_per_client(self) -> int:
        """The most bytes that a client uploads in its round, in all messages together.

        These are its counters and what the protocol adds, with a proof if reports have proofs.
        """
        if self.secure_sum is not None:
            added = 0 if self.report_proof is None else self.report_proof.added_bytes
            return self.secure_sum.upload_bytes + added
        return -(-self.vector_length * self.modulus_bits // 8)

    @property
    def one_hot_bytes_per_client(self) -> int:
        """The most bytes that a client would upload with one counter for each candidate.

        The way to sum is this plan's. The protocol is assumed to add as many bytes as it adds for
        this plan's vectors.
        """
        sketch = -(-self.vector_length * self.modulus_bits // 8)
        one_hot = -(-self.domain_size * self._one_hot_bits // 8)
        return self.bytes_per_client - sketch + one_hot  # what the protocol adds is taken as equal

    @property
    def _one_hot_bits(self) -> int:
        """The number of bits of a histogram's counter with this plan's clients and noise bound."""
        largest = self.clients.largest_entry(Encoding.HISTOGRAM)
        if self.secure_sum is None:
            sums = self.max_round_clients, largest, self.noise_bound
            return modulus_bits(*sums, signed=False)
        from fedtally.secagg.config import whole_bits  # imported late: it loads cryptography

        return whole_bits(
            self.secure_sum.most_clients,
            largest,
            self.noise_bound,
            folds=self.protection.sums is Sums.SECRET,
            signed=False,
            proofs=self.report_proof is not None,
        )

    @property
    def binary_bytes_per_client(self) -> int:
        """The bytes that a client would upload if it sent the number (id) of each of its items.

        Secure summation cannot sum such numbers, so that the server would see each client's items.
        """
        return -(-self.most_items * max(1, (self.domain_size - 1).bit_length()) // 8)

    @property
    def canonical(self) -> str:
        """The canonical JSON text of this plan, in ASCII; its SHA-256 gives the fingerprint."""
        return canonical_json(self.to_dict())

    @cached_property
    def fingerprint(self) -> str:
        """The fingerprint: 64 hexadecimal digits of a SHA-256, as docs/plan.md defines it."""
        return hashlib.sha256(f"{SCHEMA}\n{self.canonical}".encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Return the parameters as values for JSON, by name; the seed is in hexadecimal.

        Three kinds of entries are left out: entries that are None, `people` if it is 1, and
        `encoding` if it is a sketch.
        """
        return {
            "rows": self.rows,
            "width": self.width,
            "schedule": str(self.schedule),
            "num_rounds": self.num_rounds,
            "num_clients": self.num_clients,
            "max_round_clients": self.max_round_clients,
            "max_items": self.max_items,
            "seed": self.seed.hex(),
            "domain": dict(self.domain),
            # left out if it is 1: otherwise the fingerprints of plans without silos would change
            **({"people": self.people} if self.is_of_silos else {}),
            # the maximum length of names is missing here, because the domain has it
            **(
                {}
                if self.spelling is None
                else {"spelling": {"rows": self.spelling.rows, "width": self.spelling.width}}
            ),
            **({"encoding": str(self.encoding)} if self.is_histogram else {}),
        } | {name: terms.to_dict() for name in _TERMS if (terms := getattr(self, name)) is not None}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Plan:
        """Return the plan with the entries `values`, which `to_dict` returned or a file contains.

        Raises:
            InvalidInputError: an entry is missing, unknown or out of bounds; or it is not written
                in the form that docs/plan.md demands; or the schema or the fingerprint does not
                match.
        """
        # Check the schema first. Otherwise the error for a plan of another schema would name an
        # entry that this version does not know, and not the schema.
        if isinstance(values, Mapping) and values.get("schema", SCHEMA) != SCHEMA:
            raise InvalidInputError(
                f"the plan is of schema {values['schema']!r}, this version reads {SCHEMA!r}: make"
                " it anew (fedtally plan)"
            )
        known = [*cls.__dataclass_fields__, *_OF_FILES]
        written = validate.table("the plan", values, known, optional=(*_OPTIONAL, *_OF_FILES))
        # The fingerprint is checked only if there is one: a person who edits a plan deletes it.
        fingerprint = written.pop("fingerprint", None)
        written.pop("schema", None)
        if not isinstance(written["domain"], Mapping):
            raise InvalidInputError(f"domain must be a table, got {written['domain']!r}")
        plan = cls(**{name: _read(name, entry, written) for name, entry in written.items()})
        for name, usual in _USUAL.items():
            if name in written and name not in plan.to_dict():
                raise InvalidInputError(f"{name} must be {usual[0]} in a plan: {usual[1]}")
        check_form(written, plan.to_dict())
        if "fingerprint" in values and fingerprint != plan.fingerprint:
            raise InvalidInputError(
                "the plan was changed after it was written: its fingerprint does not match; "
                "remove that line to accept the change"
            )
        return plan

    def to_toml(self) -> str:
        """Return the plan as TOML text, with its fingerprint."""
        values = {"schema": SCHEMA, "fingerprint": self.fingerprint, **self.to_dict()}
        return toml.document(values)

    @classmethod
    def from_toml(cls, text: str) -> Plan:
        """Return the plan that is written in a TOML text.

        Raises:
            UnreadableFileError: the text is not TOML.
            InvalidInputError: the TOML is not a plan, or a value in it contains a line end CR LF.
        """
        try:
            values = toml.loads(text)
            # This TOML reader turns CR LF within a value into LF, and other readers do not. They
            # would compute another fingerprint. To find such values, replace CR LF by LF LF in the
            # text: only these values change.
            if "\r\n" in text and toml.loads(text.replace("\r\n", "\n\n")) != values:
                raise InvalidInputError(
                    "a text of the plan holds the line end CR LF, which TOML readers may turn into"
                    " LF: "
                    r"write \r\n within quotes on one line, or end its lines with LF"
                )
            return cls.from_dict(values)
        except InvalidInputError:
            raise
        except ValueError as error:
            raise UnreadableFileError(f"the plan is not valid TOML: {error}") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan to a file: as JSON if the path ends in .json, otherwise as TOML.

        An existing file is replaced at once, or not at all.
        """
        document = {"schema": SCHEMA, "fingerprint": self.fingerprint, **self.to_dict()}
        text = json.dumps(document, indent=2) + "\n" if _is_json(path) else self.to_toml()
        with replacing(path) as temporary:
            Path(temporary).write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Read a plan from a file, which `save` or a person wrote.

        The file is read as JSON if the path ends in .json, otherwise as TOML.

        Raises:
            UnreadableFileError: the file cannot be read, is neither TOML nor JSON, or is not a
                valid plan.
        """
        try:
            with open(path, "rb") as file:
                data = file.read(MAX_BYTES + 1)  # bounded: the path may name an endless device
            if len(data) > MAX_BYTES:
                raise InvalidInputError(
                    f"a plan has at most {MAX_BYTES:,} bytes, and this file has more: give the file"
                    " that fedtally plan wrote"
                )
            # not read as text: Python would convert line ends, which `from_toml` must check
            text = data.decode()
            return cls.from_dict(json_object(text)) if _is_json(path) else cls.from_toml(text)
        except InvalidInputError as error:  # the message of this error does not name the file
            raise UnreadableFileError(f"{os.fspath(path)}{reason(error)}") from error
        except UnicodeDecodeError as error:
            raise UnreadableFileError(
                f"{os.fspath(path)} is no plan: give the text file, .toml or .json, that fedtally"
                " plan wrote (fedtally inspect says what is in another file of fedtally)"
            ) from error
        except (OSError, ValueError, RecursionError) as error:
            shown, why = shlex.quote(os.fspath(path)), getattr(error, "strerror", None) or error
            raise UnreadableFileError(
                f"cannot read the plan {shown} ({why}): give the file, .toml or .json,"
                " that fedtally plan wrote"
            ) from error


def modulus_bits(
    max_round_clients: int, largest_entry: int, noise: int = 0, *, signed: bool = True
) -> int:
    """Return the number of bits of a counter that can hold every sum of a round.

    With signed entries a counter lies in -a .. a, where a = max_round_clients * largest_entry +
    noise. Otherwise it lies in -noise .. a.

    Args:
        max_round_clients: the most clients in a sum.
        largest_entry: the most that one client adds to a counter, without noise.
        noise: a bound on the absolute value of the noise in a counter.
        signed: whether an item may subtract from a counter, as in a sketch (`Encoding.is_signed`).

    >>> modulus_bits(15_000, 1), modulus_bits(15_000, 1, signed=False)
    (15, 14)
    """
    values = values_of_sum(max_round_clients * largest_entry, noise, signed=signed)
    return (values - 1).bit_length()


def _read(name: str, entry: Any, plan: Mapping[str, Any]) -> Any:
    """Return an entry of a plan's file, converted to an argument of `Plan`.

    Args:
        name: the name of the entry.
        entry: the value of the entry, from JSON or TOML.
        plan: all entries of the file, by name.

    Raises:
        InvalidInputError: the value is not valid for this entry.
    """
    match name:
        case "seed":
            return _read_seed(entry)
        case "secure_sum":
            # imported only here: a plan without a secure sum then loads no cryptography
            from fedtally.secagg.config import terms_from_dict

            return terms_from_dict(entry)
        case "privacy":
            from fedtally.privacy.config import PrivacyConfig

            return PrivacyConfig.from_dict(entry)
        case "target":
            return Target.from_dict(entry)
        case "calendar":
            return Calendar.from_dict(entry, plan["num_rounds"])
        case "spelling":
            size = validate.table("spelling", entry, ["rows", "width"])
            return Spelling(**size, max_length=plan["domain"].get("max_length", 0))
        case _:
            return entry


def _read_seed(text: Any) -> bytes:
    try:
        return bytes.fromhex(text)
    except (TypeError, ValueError):
        raise InvalidInputError(f"seed must be 64 hexadecimal digits, got {text!r}") from None


def _is_json(path: str | os.PathLike[str]) -> bool:
    return os.fspath(path).endswith(".json")
