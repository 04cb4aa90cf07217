"""Events: what a campaign exposes of one client, and its sensitivity.

An `Event` holds what the accountant must know of a campaign: its noise, and how much one client can
change its sums. It holds no epsilon: a ledger stores events, and the module `accounting` computes
the epsilon of several events together. This module is cheap to import.
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
SCHEMA = "fedtally-event/1"  # the form of an event's record: a new form gets a new name
MAX_PARTICIPATIONS = 2**20  # most rounds of a client: sums over them stay exact in doubles
# Entries that an event's record may lack. Every other entry must be there: it changes the charge,
# so that no default may replace it. `silos_per_person`, `encoding`, `per_rounds` and `num_rounds`
# change the charge, too, but are younger: they are written only if they differ from their default.
# A reader that does not know them refuses the record, and so never charges too little.
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
    """The kind of noise that is added to a sum.

    `ROUNDED_GAUSSIAN`: the party that opens a sum adds all of the noise, or each of two servers
    does. `SKELLAM`: every client adds a share of the noise to its own vector, before the secure
    sum. `GEOMETRIC`: an aggregator adds the noise to a histogram, and the guarantee needs no delta.
    """

    ROUNDED_GAUSSIAN = "rounded-gaussian"
    SKELLAM = "skellam"
    GEOMETRIC = "geometric"

    @property
    def is_pure(self) -> bool:
        """Whether this noise gives pure differential privacy: a guarantee with delta 0.

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
        """The encodings of clients' vectors that may have this noise, as a tuple.

        Geometric noise is for histograms: in a sketch it would be larger than rounded Gaussian
        noise.

        >>> [str(encoding) for encoding in Mechanism.GEOMETRIC.encodings]
        ['histogram']
        """
        return {
            Mechanism.ROUNDED_GAUSSIAN: tuple(Encoding),
            Mechanism.SKELLAM: tuple(Encoding),
            Mechanism.GEOMETRIC: (Encoding.HISTOGRAM,),
        }[self]


class Trust(Named, option="trust"):
    """Who must be honest for a guarantee to hold.

    `CENTRAL`: an aggregator, which sees the exact sums and adds the noise. `DISTRIBUTED`: nobody
    need be trusted with an exact sum. There are two ways. Each client adds a share of Skellam
    noise, and only the shares of honest clients count. Or each of two servers adds all of the
    rounded Gaussian noise before anything is opened; one of the two servers must be honest, and
    only the noise of this server counts.
    """

    CENTRAL = "central"
    DISTRIBUTED = "distributed"


class NoiseBy(StrEnum):
    """Who adds the noise to a sum before anybody may read it.

    `AGGREGATOR`: the party that is trusted with the exact sum. `CLIENTS`: each client adds a share.
    `SERVERS`: each of two servers adds all of the noise, since the other server may add none.
    """

    AGGREGATOR = "aggregator"
    CLIENTS = "clients"
    SERVERS = "servers"

    @classmethod
    def of(cls, trust: Trust | None, *, is_two_server: bool) -> NoiseBy:
        """Return who adds the noise in a campaign with this trust and this number of servers.

        Args:
            trust: who must be honest; None stands for central trust.
            is_two_server: whether two servers sum a round, and not one.

        >>> NoiseBy.of(Trust.DISTRIBUTED, is_two_server=False)
        <NoiseBy.CLIENTS: 'clients'>
        """
        if trust is not Trust.DISTRIBUTED:
            return cls.AGGREGATOR
        return cls.SERVERS if is_two_server else cls.CLIENTS

    @property
    def mechanisms(self) -> tuple[Mechanism, ...]:
        """The mechanisms of noise that these parties may add, as a tuple; the default is first."""
        return {
            NoiseBy.AGGREGATOR: (Mechanism.ROUNDED_GAUSSIAN, Mechanism.GEOMETRIC),
            NoiseBy.CLIENTS: (Mechanism.SKELLAM,),
            NoiseBy.SERVERS: (Mechanism.ROUNDED_GAUSSIAN,),
        }[self]

    @property
    def trust(self) -> Trust:
        """The trust of a campaign whose noise these parties add."""
        return Trust.CENTRAL if self is NoiseBy.AGGREGATOR else Trust.DISTRIBUTED


class Relation(Named, option="relation"):
    """The neighbouring relation: which pairs of data sets must be hard to tell apart.

    Two data sets are neighbours if one client differs. `ZERO_OUT`: in one of them the client's
    vectors are zeros. `REPLACE_ONE`: the client has any other items. In both relations the clients
    of each round are public, and the same in both data sets: they must not be chosen by their
    items. `ADD_REMOVE`: the client takes part in one data set only. The number of clients is then
    secret: every release holds it as one more counter, with the same noise.

    In a plan of silos (`Plan.people`), one person differs, not one client: the silos are public,
    but the number of people in each is not.
    """

    ZERO_OUT = "zero-out"
    REPLACE_ONE = "replace-one"
    ADD_REMOVE = "add-remove"

    # Each table below names every relation, so that a lookup fails for a new relation that is not
    # in it. A comparison instead would charge the new relation as if it were one of the old ones.

    @property
    def contributions(self) -> int:
        """The number of contributions by which neighbours differ: 1, or 2 if one replaces another.

        >>> Relation.ZERO_OUT.contributions, Relation.REPLACE_ONE.contributions
        (1, 2)
        """
        return {Relation.ZERO_OUT: 1, Relation.REPLACE_ONE: 2, Relation.ADD_REMOVE: 1}[self]

    @property
    def hides_number(self) -> bool:
        """Whether the number of clients is secret (in a plan of silos: the number of people).

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
    """How badly any two candidate items collide under the public hashes, as `certify` finds it.

    Two items collide in a row if both change the same counter (cell) of this row.

    Attributes:
        opposite: the largest number of rows in which two items collide with opposite signs.
        excess: the largest value, over all pairs of items, of (rows in which the two items collide
            with opposite signs) - (rows in which they collide with equal signs). At least 0.
    """

    opposite: int
    excess: int


@dataclass(frozen=True)
class Event:
    """What a campaign, or a pilot, exposes of one client: all that the accountant must know of it.

    A *release* is one sum that is opened: the sum of one round, or of several rounds together.

    Args:
        mechanism: the mechanism of the noise, or its name.
        rows: the number of rows, L; an item adds +1 or -1 to one counter of each row.
        relation: the neighbouring relation, or its name. `add-remove` needs central trust or
            Skellam noise. Skellam noise with `add-remove` is for silos: each silo sends the number
            of its people as one more counter.
        variance: the variance of the noise in one counter of one release: of a Gaussian before it
            is rounded, and of the noise of one of two servers. None: not chosen yet
            (`accounting.calibrate` chooses it).
        max_items: the most distinct items of one client in one round.
        clip_norm: the largest Euclidean norm of one client's sketch in one round; the client
            enforces it. None: the norm has no such bound, so that the charge for a sketch allows
            for all items of a client in the same cells.
        participations: the most rounds that a client contributes to. With `per_rounds` = R, this is
            the limit for any R rounds in a row, else for the whole campaign. The client enforces
            it.
        per_release: the most rounds of one client in one release. 1: each of the client's rounds is
            opened by itself. `participations`: only the total of all of them is opened.
        honest_survivors: the number of honest clients whose shares of noise add up to `variance`.
            It is the fewest clients that may remain in a round's sum, less the clients that may be
            corrupt. Skellam noise needs it; with other noise it must be None.
        collisions: the worst collisions under the hashes of all rounds, from `certify`. None: the
            charge for a sketch allows for items that collide in all rows. Collisions are allowed
            only for a sketch and replace-one, if `max_items`, `per_release` and `silos_per_person`
            are 1.
        total_variation: the total variation distance between the noise that is drawn and the ideal
            noise, for all draws of one release together.
        trust: who must be honest, or the name of this trust. None: `distributed` for Skellam noise,
            which allows nothing else, and `central` for other noise.
        silos_per_person: the most silos that hold data of one person; each of these silos may take
            part in `participations` rounds. 1 if the clients are not silos.
        encoding: how items become counters, or the name of this encoding. In a histogram each item
            has a counter of its own, so that `clip_norm` and `collisions` must be None.
        per_rounds: R, the number of rounds in a row in which a client contributes at most
            `participations` times, wherever these R rounds begin. The charge is for all
            contributions that this rule allows in the whole campaign (`lifetime`). None:
            `participations` is the limit for the whole campaign.
        num_rounds: the number of rounds of the whole campaign, if `per_rounds` is given; else it
            must be None.

    Raises:
        InvalidInputError: a value is out of bounds, or two values contradict each other.

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
        """Refuse numbers out of their bounds; store the other numbers as plain int and float."""
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
        # With more than MAX_PARTICIPATIONS contributions of one person, sums over them would not be
        # exact in float64.
        which = "participations" if self.per_rounds is None else "participations in all rounds"
        product = {f"{which} times silos_per_person": self.contributions}
        validate.integer(1, MAX_PARTICIPATIONS, **product)
        self._keep(total_variation=validate.real(0.0, 1.0, total_variation=self.total_variation))
        for name, bound in (("variance", 1e18), ("clip_norm", 1e9)):
            if getattr(self, name) is not None:
                self._keep(**{name: validate.real(1e-9, bound, **{name: getattr(self, name)})})
        self._check_survivors()

    def _check_in_a_row(self) -> None:
        """Check `per_rounds`, `num_rounds` and `per_release` against each other.

        With `per_rounds`, `participations` <= `per_rounds` <= `num_rounds` must hold, and
        `per_release` must be 1. Without `per_rounds` there must be no `num_rounds`.
        """
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
        """Refuse Skellam noise without `honest_survivors`, and other noise that has it."""
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
        # add-remove hides how many take part. Silos can: each adds the number of its people as one
        # more counter, with a share of noise. Two servers cannot: they see the number of reports.
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
        """The number of times that the full noise is in each counter of an opened sum.

        It is 2 with two servers, each of which adds the full noise, else 1. The shares of all
        clients together count as 1.
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
        """The event of any `per_rounds` rounds in a row or, without `per_rounds`, of all rounds."""
        return replace(self, per_rounds=None, num_rounds=None)

    def of_parts(self, number: int) -> Event:
        """Return the event of a client that contributes this number of times, in whichever rounds.

        It has no `per_rounds`, and this number is its `participations`.

        Args:
            number: the number of the client's contributions, at least 1; one contribution a round.
        """
        together = min(self.per_release, number)
        return replace(self.in_a_row, participations=number, per_release=together)

    def allows(self, taken: Collection[int], round: int) -> bool:
        """Return whether a client may contribute to one more round.

        Args:
            taken: the numbers of the rounds that the client contributed to, each once.
            round: the number of the new round, not in `taken`; it may lie before rounds of `taken`.

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
        """The most contributions of one person in the whole campaign, over all silos.

        If clients are not silos, the person is the client.
        """
        return self.lifetime * self.silos_per_person

    @property
    def releases(self) -> list[tuple[int, int]]:
        """The worst case of how a client's contributions are spread over releases.

        A list of pairs (r, number): in `number` releases, r contributions of the client (or of the
        person, in silos) are added up. All silos of a person may be in the same sums:
        docs/privacy-proofs/silos.md.
        """
        full, rest = divmod(self.lifetime, self.per_release)
        parts = [(self.per_release, full), *([(rest, 1)] if rest else [])]
        return [(self.silos_per_person * rounds, number) for rounds, number in parts]

    @property
    def num_releases(self) -> int:
        """The number of releases in the worst case that `releases` describes.

        A client's contributions may be spread over more releases, each with fewer of them.
        """
        return sum(number for _, number in self.releases)

    @property
    def l2_sensitivity(self) -> float:
        """A bound on the Euclidean distance between all exact counters of two neighbours.

        All counters of all releases together are one vector. Proof:
        docs/privacy-proofs/sensitivity.md.
        """
        return math.sqrt(self.round_square * sum(number * r * r for r, number in self.releases))

    @property
    def is_clipped(self) -> bool:
        """Whether the clip norm is below the largest norm that `max_items` items can have."""
        return self.clip_norm is not None and self.clip_norm < self.max_items * math.sqrt(self.rows)

    @property
    def round_square(self) -> float:
        """The square of the l2 sensitivity of one contribution: of one client in one round.

        Proof: docs/privacy-proofs/sensitivity.md.
        """
        if self.collisions is not None:
            return 2.0 * (self.rows + self.collisions.excess)
        # Counters are integers, so the square of a norm is an integer, too, and at most the floor
        # of the clip's square. This code and the client (sketch/clip.py) both compute the floor of
        # an exact fraction. If they rounded differently, a client could contribute more than is
        # charged.
        clip = (
            math.inf
            if self.clip_norm is None
            else max(1, math.floor(Fraction(self.clip_norm) ** 2))
        )
        one = self.encoding.exposure(self.rows, self.max_items).square
        own = min(one, clip)
        # replace-one: two vectors of a sketch may point in opposite directions. The square of their
        # distance is then 4 times the square of the norm. Two vectors of a histogram are at worst
        # at a right angle. The square of their distance is then twice the square of the norm.
        # add-remove: the number of clients is one more counter, which changes by 1.
        return {
            Relation.ZERO_OUT: own,
            Relation.REPLACE_ONE: own
            * (self.encoding.exposure(self.rows, self.max_items, 2).square // one),
            Relation.ADD_REMOVE: own + 1,
        }[self.relation]

    @property
    def shifts(self) -> Counter[int]:
        """How far the counters of two neighbours differ in the worst case, if no clip limits it.

        A Counter: it maps each shift (the difference in one counter) to the number of counters with
        this shift, in all releases together; both are at least 1. Proof: the lemma of
        docs/privacy-proofs/sensitivity.md.
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
        """The `variance`: that of the noise in one counter of one release.

        Raises InvalidInputError if `variance` is None.
        """
        if self.variance is None:
            raise InvalidInputError("the event has no variance yet: find one with calibrate")
        return self.variance

    def under(self, relation: Relation | str) -> Event:
        """Return this event, with another neighbouring relation and without `collisions`.

        `collisions` is dropped since the caller did not certify it, and must not rely on what a
        plan says.

        Raises:
            InvalidInputError: the new relation is add-remove, but this event has another relation;
                or no relation has that name.

        >>> event = Event("rounded-gaussian", rows=16, relation="zero-out")
        >>> event.under(Relation.REPLACE_ONE).l2_sensitivity / event.l2_sensitivity
        2.0
        """
        # Only an event of add-remove has noise on the number of clients. So no other event can get
        # this relation.
        asked = relation if self.relation.hides_number else countable(relation)
        return replace(self, relation=Relation.parse(asked), collisions=None)

    def to_dict(self) -> dict[str, Any]:
        """Return the event as a dict of JSON-able values, for `from_dict`.

        The dict has an entry `schema`. Entries that are None are left out. So are
        `silos_per_person` if it is 1, and `encoding` if it is `sketch`.
        """
        values = {name: value for name, value in asdict(self).items() if value is not None}
        values |= {name: str(values[name]) for name in ("mechanism", "relation", "trust")}
        if self.collisions is not None:
            values["collisions"] = list(self.collisions)
        values["encoding"] = str(self.encoding)
        for name, usual in (("silos_per_person", 1), ("encoding", "sketch")):
            if values[name] == usual:  # otherwise fingerprints of older plans would change
                del values[name]
        return {"schema": SCHEMA, **values}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Event:
        """Return the event of a dict that `to_dict` made.

        Raises:
            InvalidInputError: the schema is another one, an entry is unknown or missing, or a value
                is out of bounds. Also if `silos_per_person` is given as 1, or `encoding` as
                `sketch`: `to_dict` leaves these out, so that an event has only one record.
        """
        # The schema is checked first. Otherwise the error for a record of another schema would name
        # its entries, not its schema.
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
        if "silos_per_person" in found and event.silos_per_person == 1:  # one event, one record
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

    The M rounds are floor(M / R) blocks of R rounds and one shorter block. A client contributes to
    at most k rounds of each block. Without R, the result is k.

    Args:
        participations: k, the most rounds of one client in any R rounds in a row.
        per_rounds: R, the number of rounds in a row that k is for; None: k is for all M rounds.
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
    """Return the events with one neighbouring relation, so that their costs can be added.

    All events get the relation of a demand (a client's cap or policy), except in one case: if the
    demand is for zero-out and an event is of add-remove (a plan of silos that hides how many people
    they have), all events get add-remove. This makes the cost of the other events higher.

    Two servers see the number of reports, so that no plan of two servers has add-remove. If an
    event of two servers gets add-remove here, it also becomes an event of one trusted server, with
    the noise of one of the two servers. Its cost is then at least its cost for zero-out, since one
    more counter changes.

    Args:
        events: the events of the campaigns, of any relations.
        relation: the relation of the demand, zero-out or replace-one.

    >>> silo = Event("skellam", 3, "add-remove", honest_survivors=4)
    >>> client = Event("skellam", 3, "zero-out", honest_survivors=4)
    >>> [str(event.relation) for event in under_demand([silo, client], Relation.ZERO_OUT)]
    ['add-remove', 'add-remove']
    >>> [str(event.relation) for event in under_demand([silo], Relation.REPLACE_ONE)]
    ['replace-one']
    >>> servers = Event("rounded-gaussian", 3, "zero-out", trust="distributed")
    >>> [str(event.relation) for event in under_demand([silo, servers], Relation.ZERO_OUT)]
    ['add-remove', 'add-remove']
    """
    is_hidden = any(event.relation.hides_number for event in events)
    if relation is Relation.ZERO_OUT and is_hidden:
        return [
            replace(
                event,
                relation=Relation.ADD_REMOVE,
                collisions=None,
                trust=Trust.CENTRAL if event.draws_of_sum > 1 else event.trust,
            )
            for event in events
        ]
    return [event.under(relation) for event in events]


def countable(relation: Relation | str) -> Relation:
    """Return the given relation, if it does not hide the number of clients.

    A secure sum always shows the number of its clients, so that no guarantee can hide it.

    Args:
        relation: the neighbouring relation, or its name.

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
    """Return a clip norm for sketches, so large that hardly any client's sketch exceeds it.

    For k items in a sketch of L rows and width W it is sqrt(k L (1 + 4 sqrt(2 / (L W)))). Over
    random hashes, the squared norm of k items has mean k L and standard deviation k L sqrt(2 (1 -
    1/k) / (L W)). The clip's square lies at least four standard deviations above the mean. With a
    smaller clip, less noise gives the same epsilon, but more items are dropped.

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
    """Return how badly any two candidate items collide in any round, by checking pairs of items.

    Let two items collide (share a cell) with opposite signs in o rows, and with equal signs in s
    rows, of L rows. Then their sketches have the distance sqrt(2 L + 2 (o - s)):
    docs/privacy-proofs/sensitivity.md. Pairs with o >= 2 are found by looking up the cells of two
    rows together. Pairs with o = 1 are looked up only if no other pair has o > s. For d items and
    width W, the time is O(L^2 d log d), plus the number of pairs that share cells in two rows,
    about L^2 d^2 / (2 W)^2.

    Args:
        hashes: a pair (locations, signs) for each round, integers [L, d]: the cell of each item in
            each row, and the item's sign there, +1 or -1.

    Raises:
        InvalidInputError: there are no rounds, or the arrays of a round differ in shape, are empty
            or have other than two dimensions.

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
            # If two items have opposite signs in both rows, then the product of an item's signs in
            # rows a and b is the same for both items. So this product is one bit of the key.
            alike = (signs[a] == signs[b]).astype(np.int64)
            key = (cells[a] * (int(cells[b].max()) + 1) + cells[b]) * 2 + alike
            for pair in _opposite_pairs(key, signs[a]):
                consider(*pair)
            if excess == rows:  # opposite signs in all rows: no pair can be worse
                return Collisions(opposite, excess)
    for a in range(rows):
        for pair in _opposite_pairs(cells[a], signs[a]):
            if excess >= 1:  # a larger excess needs opposite signs in two rows: see above
                return Collisions(opposite, excess)
            consider(*pair)
    return Collisions(opposite, excess)


def _opposite_pairs(key: I64, sign: I64) -> Iterator[tuple[I64, I64]]:
    """Yield all pairs of items with equal key and opposite sign, as two int64 arrays of indices.

    Pairs come in several steps, each of fewer pairs than there are items, so that memory stays
    small.

    Args:
        key: the key of each item, int64 [items].
        sign: the sign of each item, +1 or -1, int64 [items].
    """
    order = np.argsort(key, kind="stable")
    key = key[order]
    # Sorted, equal keys are neighbours. Each step pairs every item with the item `step` places
    # later.
    for step in range(1, len(key)):
        start = np.flatnonzero(key[step:] == key[:-step])
        if not len(start):
            return
        first, second = order[start], order[start + step]
        differ = sign[first] != sign[second]
        yield first[differ], second[differ]
