"""Events: what a campaign exposes of one client, and its sensitivity.

An `Event` describes what one client is exposed to. It holds no epsilon: a ledger stores events, and
the module `accounting` computes what they cost together. `events` is cheap to import.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedtally.base import validate
from fedtally.base.encoding import Encoding
from fedtally.base.named import Named
from fedtally.errors import InvalidInputError

I64 = npt.NDArray[np.int64]
SCHEMA = "fedtally-event/1"  # the form of an event's record; other entries need another name
MAX_PARTICIPATIONS = 2**20  # rounds of a client: an event's sums stay exact in doubles
# Entries that a record may lack. All others must be there: they change what is charged, so that a
# default must not replace them. Four of these entries change it too, and are written only if they
# are not usual: `silos_per_person` above 1, an `encoding` other than sketch, and `per_rounds` and
# `num_rounds` if given. A reader that does not know an entry refuses the record.
_OPTIONAL = (
    "variance",
    "clip_norm",
    "honest_survivors",
    "collisions",
    "trust",
    "silos_per_person",
    "encoding",
    "per_rounds",
    "num_rounds",
)


class Mechanism(Named, option="mechanism"):
    """The closed list of mechanisms.

    `ROUNDED_GAUSSIAN`: the party that opens a sum adds the noise once. `SKELLAM`: every client adds
    a share of the noise before secure summation. `GEOMETRIC`: an aggregator adds the noise to a
    histogram once, and the guarantee needs no delta.
    """

    ROUNDED_GAUSSIAN = "rounded-gaussian"
    SKELLAM = "skellam"
    GEOMETRIC = "geometric"

    @property
    def is_pure(self) -> bool:
        """Whether the guarantee of this noise needs no delta: pure differential privacy.

        >>> [str(mechanism) for mechanism in Mechanism if mechanism.is_pure]
        ['geometric']
        """
        return {
            Mechanism.ROUNDED_GAUSSIAN: False,
            Mechanism.SKELLAM: False,
            Mechanism.GEOMETRIC: True,
        }[self]

    @property
    def encodings(self) -> tuple[Encoding, ...]:
        """The encodings that the noise is for; in a sketch geometric noise would be larger.

        >>> [str(encoding) for encoding in Mechanism.GEOMETRIC.encodings]
        ['histogram']
        """
        return {
            Mechanism.ROUNDED_GAUSSIAN: tuple(Encoding),
            Mechanism.SKELLAM: tuple(Encoding),
            Mechanism.GEOMETRIC: (Encoding.HISTOGRAM,),
        }[self]


class Trust(Named, option="trust"):
    """The parties that a guarantee trusts.

    `CENTRAL`: an aggregator is trusted; it sees the exact sums and adds the noise. `DISTRIBUTED`:
    no single party that opens a sum is trusted. Either each client adds a share of Skellam noise,
    and the shares of the honest clients count. Or each of two servers adds the whole rounded
    Gaussian noise before anything is opened. One of the two must be honest, and only its noise
    counts.
    """

    CENTRAL = "central"
    DISTRIBUTED = "distributed"


class NoiseBy(StrEnum):
    """The closed list of parties that add the noise, before anybody may read a sum.

    `AGGREGATOR`: the party that is trusted with the exact sum adds it once. `CLIENTS`: each client
    adds a share. `SERVERS`: each of two servers adds all of it, since the other one may add none.
    """

    AGGREGATOR = "aggregator"
    CLIENTS = "clients"
    SERVERS = "servers"

    @classmethod
    def of(cls, trust: Trust | None, *, is_two_server: bool) -> NoiseBy:
        """Return the parties that add the noise, from a campaign's trust and number of servers.

        Args:
            trust: the trust of the campaign; None is central.
            is_two_server: whether two servers sum a round, and not one.

        >>> NoiseBy.of(Trust.DISTRIBUTED, is_two_server=False)
        <NoiseBy.CLIENTS: 'clients'>
        """
        if trust is not Trust.DISTRIBUTED:
            return cls.AGGREGATOR
        return cls.SERVERS if is_two_server else cls.CLIENTS

    @property
    def mechanisms(self) -> tuple[Mechanism, ...]:
        """The mechanisms of noise that these parties may add; the first is the usual one."""
        return {
            NoiseBy.AGGREGATOR: (Mechanism.ROUNDED_GAUSSIAN, Mechanism.GEOMETRIC),
            NoiseBy.CLIENTS: (Mechanism.SKELLAM,),
            NoiseBy.SERVERS: (Mechanism.ROUNDED_GAUSSIAN,),
        }[self]

    @property
    def trust(self) -> Trust:
        """The trust of a campaign in which these parties add the noise."""
        return Trust.CENTRAL if self is NoiseBy.AGGREGATOR else Trust.DISTRIBUTED


class Relation(Named, option="relation"):
    """The neighbouring relation: which pairs of data sets a guarantee makes hard to tell apart.

    `ZERO_OUT`: one client's contribution is replaced by zeros. `REPLACE_ONE`: it is replaced by any
    other contribution. In both relations the clients of each round are public, and the same in both
    data sets. They must not depend on the data: a client that moves to another round is not
    covered. `ADD_REMOVE`: one client takes part in one data set and not in the other. Every release
    then holds the number of its clients as one more counter, with the same noise.

    In a plan of silos (`Plan.people`) the unit is a person, not a client: silos are public, and the
    number of people behind them is not.
    """

    ZERO_OUT = "zero-out"
    REPLACE_ONE = "replace-one"
    ADD_REMOVE = "add-remove"

    # The tables below name every relation, and a lookup fails for a relation that they lack. With a
    # comparison instead, a new relation would be charged as if it were one of the old ones.

    @property
    def contributions(self) -> int:
        """The number of contributions, taken away or put in, by which two neighbours differ.

        >>> Relation.ZERO_OUT.contributions, Relation.REPLACE_ONE.contributions
        (1, 2)
        """
        return {Relation.ZERO_OUT: 1, Relation.REPLACE_ONE: 2, Relation.ADD_REMOVE: 1}[self]

    @property
    def hides_number(self) -> bool:
        """Whether the number of clients (or of people in silos) is secret.

        A secret number is released with noise, as one more counter.

        >>> [str(relation) for relation in Relation if relation.hides_number]
        ['add-remove']
        """
        return {
            Relation.ZERO_OUT: False,
            Relation.REPLACE_ONE: False,
            Relation.ADD_REMOVE: True,
        }[self]


class Collisions(NamedTuple):
    """The worst collisions of two candidate items under the public hashes: from `certify`.

    Attributes:
        opposite: the most rows in which two items share a cell with opposite signs.
        excess: the largest difference, over all pairs of items: rows in which the two share a cell
            with opposite signs, less rows in which they share a cell with equal signs. At least 0.
    """

    opposite: int
    excess: int


@dataclass(frozen=True)
class Event:
    """The exposure of one client's contribution to a campaign, or to a pilot.

    Args:
        mechanism: the noise, or its name.
        rows: the number of rows, L; an item adds +1 or -1 to one counter of each row.
        relation: the neighbouring relation, or its name. `add-remove` goes with central trust, and
            with Skellam noise of silos, each of which adds the number of its people as one more
            counter.
        variance: the variance of the noise in one counter of one release. None: it is not chosen
            yet (see `accounting.calibrate`).
        max_items: the most distinct items of one client in one round.
        clip_norm: the largest Euclidean norm of one client's sketch in one round, which the client
            enforces. None: there is no such bound, and all items of a client may share their cells.
        participations: the most rounds that a client contributes to, of all rounds or, with
            `per_rounds`, of any such number of rounds in a row. The client enforces it.
        per_release: the most rounds of one client that are added up before anything is opened. 1:
            every round is opened. `participations`: only the total is opened.
        honest_survivors: the number of honest clients whose shares add up to `variance`: the fewest
            survivors of a round less the corrupt clients. For Skellam noise only.
        collisions: the worst collisions, certified for the hashes of all rounds (`certify`). Only
            for replace-one over a closed domain, clients of one item and rounds opened one by one.
            None: any two items may collide in all rows.
        total_variation: the distance between the noise as drawn and the ideal distribution, over
            all draws of one release together.
        trust: the parties that the noise trusts, or its name. None: `distributed` for Skellam
            noise, which allows nothing else, and `central` for other noise.
        silos_per_person: the most silos that hold data of one person; each of them takes part in
            `participations` rounds. 1 unless the clients are silos.
        encoding: how items become counters, or its name. In a histogram an item changes one
            counter, which no other item changes: there are neither a clip nor collisions.
        per_rounds: the number of rounds in a row, wherever they begin, in which a client
            contributes at most `participations` times. None: the limit is for all rounds. The
            charge is for all contributions that this allows in `num_rounds` rounds (`lifetime`).
        num_rounds: the number of rounds of the campaign, with `per_rounds`; else None.

    Raises:
        InvalidInputError: a value is out of bounds, or two do not fit each other.

    >>> weekly = Event("rounded-gaussian", 16, "zero-out", per_rounds=7, num_rounds=28)
    >>> weekly.lifetime, weekly.in_a_row.lifetime
    (4, 1)
    >>> event = Event("rounded-gaussian", rows=16, relation="zero-out", participations=4)
    >>> event.l2_sensitivity, str(event.trust)
    (8.0, 'central')
    >>> Event.from_dict(event.to_dict()) == event
    True
    """

    mechanism: Mechanism
    rows: int
    relation: Relation
    variance: float | None = None
    max_items: int = 1
    clip_norm: float | None = None
    participations: int = 1
    per_release: int = 1
    honest_survivors: int | None = None
    collisions: Collisions | None = None
    total_variation: float = 0.0
    trust: Trust | None = None
    silos_per_person: int = 1
    encoding: Encoding = Encoding.SKETCH
    per_rounds: int | None = None
    num_rounds: int | None = None

    def __post_init__(self) -> None:
        self._keep(
            mechanism=Mechanism.parse(self.mechanism), relation=Relation.parse(self.relation)
        )
        self._check_numbers()
        self._keep(trust=self._checked_trust(), encoding=Encoding.parse(self.encoding))
        if self.encoding is Encoding.HISTOGRAM:
            self._check_histogram()
        if self.mechanism.is_pure:
            self._check_pure()
        if self.collisions is not None:
            self._keep(collisions=self._checked_collisions(self.collisions))

    def _keep(self, **checked: Any) -> None:
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def _check_numbers(self) -> None:
        """Check the numbers against their bounds, and convert them to plain int and float."""
        for name, most in (
            ("rows", 1024),
            ("max_items", 2**20),
            ("participations", MAX_PARTICIPATIONS),
            ("silos_per_person", MAX_PARTICIPATIONS),
        ):
            self._keep(**{name: validate.integer(1, most, **{name: getattr(self, name)})})
        together = validate.integer(1, self.participations, per_release=self.per_release)
        self._keep(per_release=together)
        self._check_in_a_row()
        # the contributions of one person must be few enough to be exact in float64
        which = "participations" if self.per_rounds is None else "participations in all rounds"
        product = {f"{which} times silos_per_person": self.contributions}
        validate.integer(1, MAX_PARTICIPATIONS, **product)
        self._keep(total_variation=validate.real(0.0, 1.0, total_variation=self.total_variation))
        for name, bound in (("variance", 1e18), ("clip_norm", 1e9)):
            if getattr(self, name) is not None:
                self._keep(**{name: validate.real(1e-9, bound, **{name: getattr(self, name)})})
        self._check_survivors()

    def _check_in_a_row(self) -> None:
        """Refuse a `per_rounds` below `participations` or above `num_rounds`."""
        if self.per_rounds is None:
            if self.num_rounds is not None:
                raise InvalidInputError("num_rounds goes with per_rounds in an event: leave it out")
            return
        rounds = validate.integer(1, MAX_PARTICIPATIONS, num_rounds=self.num_rounds)
        in_a_row = validate.integer(self.participations, rounds, per_rounds=self.per_rounds)
        self._keep(num_rounds=rounds, per_rounds=in_a_row)
        if self.per_release > 1:
            raise InvalidInputError(
                "per_release must be 1 with per_rounds, since each round is opened by itself, got"
                f" {self.per_release}: leave per_rounds out, or use the schedule hybrid or fresh"
            )

    def _check_survivors(self) -> None:
        """Refuse Skellam noise without `honest_survivors`, and other noise with it."""
        if self.mechanism is Mechanism.SKELLAM:
            honest = validate.integer(1, honest_survivors=self.honest_survivors)
            self._keep(honest_survivors=honest)
        elif self.honest_survivors is not None:
            raise InvalidInputError(
                f"honest_survivors belongs to skellam: {self.mechanism} noise is drawn at once"
            )

    def _check_histogram(self) -> None:
        if self.rows != 1:
            raise InvalidInputError(f"rows must be 1 in a histogram, got {self.rows}")
        for name in ("clip_norm", "collisions"):
            if getattr(self, name) is not None:
                raise InvalidInputError(
                    f"{name} belongs to a sketch: no two items share a counter of a histogram, so"
                    " leave it out"
                )

    def _check_pure(self) -> None:
        if self.encoding not in self.mechanism.encodings:
            raise InvalidInputError(
                f"{self.mechanism} noise is for a histogram: in a sketch of {self.rows} rows it"
                " would be larger than rounded-gaussian noise, so take that, or the encoding"
                " histogram"
            )
        if self.trust is not Trust.CENTRAL:
            raise InvalidInputError(
                f"{self.mechanism} noise is added by an aggregator, got {self.trust} trust: take"
                " central trust, or rounded-gaussian or skellam noise"
            )
        if self.total_variation:
            raise InvalidInputError(
                f"total_variation must be 0 for {self.mechanism} noise, which is drawn exactly, got"
                f" {self.total_variation:g}: leave it out"
            )

    def _checked_trust(self) -> Trust:
        is_skellam = self.mechanism is Mechanism.SKELLAM
        own = Trust.DISTRIBUTED if is_skellam else Trust.CENTRAL
        trust = own if self.trust is None else Trust.parse(self.trust)
        if is_skellam and trust is Trust.CENTRAL:
            raise InvalidInputError(
                "trust in skellam noise is distributed, since clients add it: choose that, or"
                " rounded-gaussian noise"
            )
        # Silos add the number of their people as one more counter, with shares of noise. Two
        # servers count their reports, and nothing hides that number.
        if self.relation.hides_number and trust is Trust.DISTRIBUTED and not is_skellam:
            raise InvalidInputError(
                "add-remove needs the number of clients with noise, which two servers reveal: "
                "choose zero-out or replace-one, or rounded-gaussian noise under central trust"
            )
        return trust

    def _checked_collisions(self, collisions: Collisions) -> Collisions:
        if (
            self.relation is not Relation.REPLACE_ONE
            or self.max_items > 1
            or self.per_release * self.silos_per_person > 1
        ):
            raise InvalidInputError(
                "collisions are certified for replace-one, max_items 1, per_release 1 and"
                f" silos_per_person 1, not for {self.relation}, {self.max_items},"
                f" {self.per_release} and {self.silos_per_person}: leave them out"
            )
        opposite, excess = _pair(collisions)
        opposite = validate.integer(0, self.rows, opposite=opposite)
        return Collisions(opposite, validate.integer(0, opposite, excess=excess))

    @property
    def draws_of_sum(self) -> int:
        """The number of draws of noise in a counter of an opened sum: 2 with two servers, else 1.

        The shares of all clients together count as one draw.
        """
        is_by_servers = self.trust is Trust.DISTRIBUTED and self.honest_survivors is None
        return 2 if is_by_servers else 1

    @property
    def lifetime(self) -> int:
        """The most rounds that one client contributes to in the whole campaign.

        Proof: docs/privacy-proofs/calendar.md.
        """
        return most_rounds(self.participations, self.per_rounds, self.num_rounds or 0)

    @property
    def in_a_row(self) -> Event:
        """The event of any `per_rounds` rounds in a row; without `per_rounds`, of all rounds."""
        return replace(self, per_rounds=None, num_rounds=None)

    def of_parts(self, number: int) -> Event:
        """Return the event of some contributions of one client, in whichever rounds they are.

        Args:
            number: the number of contributions, at least 1.
        """
        together = min(self.per_release, number)
        return replace(self.in_a_row, participations=number, per_release=together)

    def allows(self, taken: Collection[int], round: int) -> bool:
        """Return whether a client may contribute to a round, in whatever order rounds come.

        Args:
            taken: the rounds that the client contributed to, each once.
            round: another round, before, after or between the rounds of `taken`.

        >>> weekly = Event("rounded-gaussian", 16, "zero-out", per_rounds=7, num_rounds=28)
        >>> weekly.allows([3, 17], 10), weekly.allows([3, 17], 11)
        (True, False)
        """
        most = self.participations
        if self.per_rounds is None:
            return len(taken) < most
        rounds = sorted([*taken, round])
        # no `most` + 1 of these rounds may lie within `per_rounds` rounds in a row
        return all(
            last - first >= self.per_rounds
            for first, last in zip(rounds, rounds[most:], strict=False)
        )

    @property
    def contributions(self) -> int:
        """The most contributions of one client, or of one person in several silos."""
        return self.lifetime * self.silos_per_person

    @property
    def releases(self) -> list[tuple[int, int]]:
        """How a client's contributions fall into releases in the worst case.

        A list of pairs: the client's contributions to a release, and the number of such releases.
        All silos of a person may be in the same sums: docs/privacy-proofs/silos.md.
        """
        full, rest = divmod(self.lifetime, self.per_release)
        parts = [(self.per_release, full), *([(rest, 1)] if rest else [])]
        return [(self.silos_per_person * rounds, number) for rounds, number in parts]

    @property
    def num_releases(self) -> int:
        """The number of releases that hold a contribution of one client, in the worst case."""
        return sum(number for _, number in self.releases)

    @property
    def l2_sensitivity(self) -> float:
        """The largest Euclidean distance between all releases of two neighbours, without noise.

        Proof: docs/privacy-proofs/sensitivity.md.
        """
        return math.sqrt(self.round_square * sum(number * r * r for r, number in self.releases))

    @property
    def is_clipped(self) -> bool:
        """Whether the clip bounds more than the number of items does."""
        return self.clip_norm is not None and self.clip_norm < self.max_items * math.sqrt(self.rows)

    @property
    def round_square(self) -> float:
        """The square of the l2 sensitivity of one participation.

        Proof: docs/privacy-proofs/sensitivity.md.
        """
        if self.collisions is not None:
            return 2.0 * (self.rows + self.collisions.excess)
        # Counters are integers, so the square of a norm is an integer too. It is at most the floor
        # of the clip's square. The client compares with the same floor, as an exact fraction
        # (sketch/clip.py). If one side rounded otherwise, a client could contribute more than is
        # charged.
        clip = (
            math.inf
            if self.clip_norm is None
            else max(1, math.floor(Fraction(self.clip_norm) ** 2))
        )
        one = self.encoding.exposure(self.rows, self.max_items).square
        own = min(one, clip)
        # replace-one: two contributions to a sketch may point in opposite directions, so that their
        # distance is twice the norm; two contributions to a histogram are at a right angle;
        # add-remove: the number of clients is one more counter, which changes by 1
        return {
            Relation.ZERO_OUT: own,
            Relation.REPLACE_ONE: own
            * (self.encoding.exposure(self.rows, self.max_items, 2).square // one),
            Relation.ADD_REMOVE: own + 1,
        }[self.relation]

    @property
    def shifts(self) -> Counter[int]:
        """The worst shifts of counters between two neighbours, without a clip.

        Maps each shift to the number of counters with that shift, both at least 1. Proof: the lemma
        of docs/privacy-proofs/sensitivity.md.
        """
        shifts: Counter[int] = Counter()
        contributions = self.relation.contributions
        for r, number in self.releases:
            if self.collisions is None:
                # The lemma: in a sketch the worst case is all items in the same cell of every row;
                # in a histogram it is the same items in every contribution.
                shift, counters = self.encoding.exposure(self.rows, self.max_items, contributions)
                shifts[shift * r] += counters * number
            else:
                # Two items that share a cell with opposite signs shift one counter by 2. Two items
                # that share no cell shift two counters by 1.
                shifts[2] += self.collisions.opposite * number
                shifts[1] += 2 * (self.rows - self.collisions.opposite) * number
            if self.relation.hides_number:
                shifts[r] += number  # the counter that holds the number of clients
        return +shifts

    @property
    def noise_variance(self) -> float:
        """The variance of the noise; raises InvalidInputError if the event has none yet."""
        if self.variance is None:
            raise InvalidInputError("the event has no variance yet: find one with calibrate")
        return self.variance

    def under(self, relation: Relation | str) -> Event:
        """Return the event of the same campaign for another neighbouring relation.

        The new event has no `collisions`: the caller did not certify them itself, and must not rely
        on those that a plan states.

        Raises:
            InvalidInputError: as `countable`; an event of add-remove may have any relation.

        >>> event = Event("rounded-gaussian", rows=16, relation="zero-out")
        >>> event.under(Relation.REPLACE_ONE).l2_sensitivity / event.l2_sensitivity
        2.0
        """
        # add-remove holds only where the number of clients has noise, as in an event of add-remove
        asked = relation if self.relation.hides_number else countable(relation)
        return replace(self, relation=Relation.parse(asked), collisions=None)

    def to_dict(self) -> dict[str, Any]:
        """Return the event as JSON-able values."""
        values = {name: value for name, value in asdict(self).items() if value is not None}
        values |= {name: str(values[name]) for name in ("mechanism", "relation", "trust")}
        if self.collisions is not None:
            values["collisions"] = list(self.collisions)
        values["encoding"] = str(self.encoding)
        for name, usual in (("silos_per_person", 1), ("encoding", "sketch")):
            if values[name] == usual:  # left out, so that fingerprints of older plans do not change
                del values[name]
        return {"schema": SCHEMA, **values}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Event:
        """Return the event that `to_dict` described.

        Raises:
            InvalidInputError: another schema, an unknown or missing entry, or a value out of
                bounds.
        """
        # The schema is checked first. A record of another schema may have other entries, and
        # `table` would report those as the error.
        if isinstance(values, Mapping) and values.get("schema") != SCHEMA:
            raise InvalidInputError(
                f"an event is a table of schema {SCHEMA!r}, got {values.get('schema')!r}"
            )
        found = validate.table(
            "an event", values, ["schema", *(field.name for field in fields(cls))], _OPTIONAL
        )
        del found["schema"]
        if "collisions" in found:
            found["collisions"] = _pair(found["collisions"])
        event = cls(**found)
        if "silos_per_person" in found and event.silos_per_person == 1:  # one form alone
            raise InvalidInputError(
                "silos_per_person must be at least 2 in an event: leave the entry out for 1"
            )
        if "encoding" in found and event.encoding is Encoding.SKETCH:
            raise InvalidInputError(
                "encoding must be histogram in an event: leave the entry out for a sketch"
            )
        return event


def most_rounds(participations: int, per_rounds: int | None, num_rounds: int) -> int:
    """Return the most rounds that one client contributes to: k floor(M / R) + min(k, M mod R).

    M rounds are floor(M / R) blocks of R rounds and a shorter block. A client contributes to at
    most k rounds of each block.

    Args:
        participations: k, the most rounds of a client among any R rounds in a row.
        per_rounds: R, the number of rounds in a row; None: k is the limit for all rounds.
        num_rounds: M, the number of all rounds.

    >>> most_rounds(1, 7, 28), most_rounds(2, 7, 30), most_rounds(2, None, 30)
    (4, 10, 2)
    """
    if per_rounds is None:
        return participations
    blocks, rest = divmod(num_rounds, per_rounds)
    return participations * blocks + min(participations, rest)


def _pair(collisions: Any) -> Collisions:
    if not isinstance(collisions, list | tuple) or len(collisions) != 2:
        raise InvalidInputError(f"collisions must be two integers, got {collisions!r}")
    return Collisions(*collisions)


def under_demand(events: Sequence[Event], relation: Relation) -> list[Event]:
    """Return the events of campaigns under the neighbouring relation of a demand.

    A demand is a cap or a policy of a client. Normally all events get its relation. But a campaign
    of silos hides how many people they have, and its relation is add-remove. If there is one and
    the demand is for zero-out, all events get add-remove. The cost of the other events is then a
    little too high.

    Args:
        events: the events of the campaigns.
        relation: the relation of the demand, zero-out or replace-one.

    >>> silo = Event("skellam", 3, "add-remove", honest_survivors=4)
    >>> client = Event("skellam", 3, "zero-out", honest_survivors=4)
    >>> [str(event.relation) for event in under_demand([silo, client], Relation.ZERO_OUT)]
    ['add-remove', 'add-remove']
    >>> [str(event.relation) for event in under_demand([silo], Relation.REPLACE_ONE)]
    ['replace-one']
    """
    is_hidden = any(event.relation.hides_number for event in events)
    if relation is Relation.ZERO_OUT and is_hidden:
        return [replace(event, relation=Relation.ADD_REMOVE, collisions=None) for event in events]
    return [event.under(relation) for event in events]


def countable(relation: Relation | str) -> Relation:
    """Return a relation, or the relation of a name, if it does not hide the number of clients.

    Every secure sum shows the number of its clients, so that no guarantee can hide it.

    Raises:
        InvalidInputError: the relation is add-remove, or no relation has that name.

    >>> countable("zero-out")
    <Relation.ZERO_OUT: 'zero-out'>
    """
    found = Relation.parse(relation)
    if found.hides_number:
        raise InvalidInputError(
            "add-remove hides the number of clients, which every secure sum shows: ask for zero-out"
            " or replace-one"
        )
    return found


def default_clip_norm(rows: int, width: int, max_items: int) -> float:
    """Return a clip norm that hardly any client's sketch exceeds.

    For k items in a sketch of L rows and width W it is sqrt(k L (1 + 4 sqrt(2 / (L W)))). The
    squared norm of a sketch of k items has mean k L and, relative to the mean, a standard deviation
    of sqrt(2 (1 - 1/k) / (L W)). The clip lies four standard deviations above the mean. Every clip
    is private, but a smaller clip drops more items.

    Args:
        rows: the rows of the sketch, L.
        width: the counters in a row, W.
        max_items: the most items of a client, k.

    >>> round(default_clip_norm(5, 1000, 20), 3)
    10.392
    """
    rows, width = validate.integer(1, rows=rows), validate.integer(1, width=width)
    max_items = validate.integer(1, max_items=max_items)
    return math.sqrt(max_items * rows * (1 + 4 * math.sqrt(2 / (rows * width))))


def certify(hashes: Iterable[tuple[npt.NDArray[np.integer[Any]], I64]]) -> Collisions:
    """Return the worst collisions of any two candidate items in any round, by enumeration.

    In a sketch of L rows, let two items share cells with opposite signs in o rows, and with equal
    signs in s rows. Their distance is sqrt(2 L + 2 (o - s)): docs/privacy-proofs/sensitivity.md.
    Pairs with o >= 2 are found by looking up the cells of two rows together. If there are none, one
    row is enough. For d items and width W, the time is O(L^2 d log d), plus the number of pairs
    that share cells in two rows, about L^2 d^2 / (2 W)^2.

    Args:
        hashes: a pair (locations, signs) for each round, integers [L, d]: the cell of each item in
            each row, and the item's sign there, +1 or -1.

    Raises:
        InvalidInputError: there are no rounds, or arrays of other shapes.

    >>> certify([(np.zeros((3, 2), np.int64), np.array([[1, -1], [1, -1], [1, 1]]))])
    Collisions(opposite=2, excess=1)
    """
    found = [
        _certify_round(np.asarray(locations), np.asarray(signs)) for locations, signs in hashes
    ]
    if not found:
        raise InvalidInputError("hashes must hold at least one round, got none")
    return Collisions(max(one.opposite for one in found), max(one.excess for one in found))


def _certify_round(locations: npt.NDArray[np.integer[Any]], signs: I64) -> Collisions:
    if locations.ndim != 2 or locations.shape != signs.shape or not locations.size:
        raise InvalidInputError(
            f"locations and signs must be [rows, items] of one shape, got {locations.shape} and"
            f" {signs.shape}"
        )
    rows, cells = len(locations), locations.astype(np.int64)
    cells_of, signs_of = cells.T.copy(), signs.T.copy()
    opposite, excess = 0, 0

    def consider(first: I64, second: I64) -> None:
        nonlocal opposite, excess
        meet = cells_of[first] == cells_of[second]
        differ = (meet & (signs_of[first] != signs_of[second])).sum(axis=1)
        opposite = max(opposite, int(differ.max(initial=0)))
        excess = max(excess, int((2 * differ - meet.sum(axis=1)).max(initial=0)))

    for a in range(rows):
        for b in range(a + 1, rows):
            # Two items have opposite signs in both rows only if, for both items, the product of
            # their signs in the two rows is the same. This product is one bit of the key.
            alike = (signs[a] == signs[b]).astype(np.int64)
            key = (cells[a] * (int(cells[b].max()) + 1) + cells[b]) * 2 + alike
            for pair in _opposite_pairs(key, signs[a]):
                consider(*pair)
            if excess == rows:  # opposite signs in all rows: no pair can be worse
                return Collisions(opposite, excess)
    for a in range(rows):
        for pair in _opposite_pairs(cells[a], signs[a]):
            if excess >= 1:  # an excess above 1 needs two rows, and those pairs were checked above
                return Collisions(opposite, excess)
            consider(*pair)
    return Collisions(opposite, excess)


def _opposite_pairs(key: I64, sign: I64) -> Iterator[tuple[I64, I64]]:
    """Yield all pairs of items of equal key and opposite sign, as two int64 arrays of items.

    Each yield has at most as many pairs as there are items, so that memory stays small.
    """
    order = np.argsort(key, kind="stable")
    key = key[order]
    # Sorted, equal keys lie side by side. Each step pairs every item with the step-th one after it.
    for step in range(1, len(key)):
        start = np.flatnonzero(key[step:] == key[:-step])
        if not len(start):
            return
        first, second = order[start], order[start + step]
        differ = sign[first] != sign[second]
        yield first[differ], second[differ]
