"""What a campaign opens, described: events, the sensitivity of one client, the collisions of public hashes.

An `Event` says what one client is exposed to, never a number of privacy: a ledger stores events.
What they cost is in `accounting`, which imports this module; importing this one is cheap.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from fractions import Fraction
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from fedtally import _validate
from fedtally.errors import InvalidInputError

I64 = npt.NDArray[np.int64]
SCHEMA = "fedtally-event/1"
MAX_PARTICIPATIONS = 2**20
# an event's record may lack them
_OPTIONAL = ("variance", "clip_norm", "honest_survivors", "collisions", "trust")


class _Named(StrEnum):
    @classmethod
    def parse(cls, name: str) -> Self:
        """Return the member of that name."""
        try:
            return cls(name)
        except ValueError:
            kind = cls.__name__.lower()
            raise InvalidInputError(
                f"{kind} must be one of {', '.join(cls)}, got {name!r}"
            ) from None


class Mechanism(_Named):
    """The closed list of mechanisms.

    `ROUNDED_GAUSSIAN`: whoever opens a sum adds it once to what is opened. `SKELLAM`: every client
    adds a share of it before secure summation.
    """

    ROUNDED_GAUSSIAN = "rounded-gaussian"
    SKELLAM = "skellam"


class Trust(_Named):
    """Whom a guarantee trusts.

    `CENTRAL`: an aggregator, which sees the sums and adds the noise. `DISTRIBUTED`: no one party
    that opens. The honest clients add shares of Skellam noise; or each of two servers adds the
    whole rounded Gaussian noise before anything is opened, and one of them is honest: the other's
    noise is not counted.
    """

    CENTRAL = "central"
    DISTRIBUTED = "distributed"


class Relation(_Named):
    """Which two data sets shall look alike.

    `ZERO_OUT`: one client's contribution is replaced by zeros. `REPLACE_ONE`: it is replaced by any
    other. In both, who takes part in which round is public, the same in both data sets, and must
    not depend on the data: a client that moves to another round is not covered. `ADD_REMOVE`: the
    client is there or not; every release then holds the number of its clients as one more counter,
    with the same noise.
    """

    ZERO_OUT = "zero-out"
    REPLACE_ONE = "replace-one"
    ADD_REMOVE = "add-remove"


class Collisions(NamedTuple):
    """How two candidate items may meet under the public hashes: from `certify`.

    Attributes:
        opposite: the most rows in which two items share a cell with opposite signs.
        excess: the most such rows less the rows in which the same two share a cell with the same
            sign; at least 0.
    """

    opposite: int
    excess: int


@dataclass(frozen=True)
class Event:
    """What one client's contribution to a campaign, or to a pilot, is exposed to.

    Args:
        mechanism: the noise, or its name.
        rows: L; an item adds +1 or -1 to one counter of each row.
        relation: the neighbouring relation, or its name; `add-remove` under central trust alone.
        variance: of the noise in one counter of one release; None: still to be found, by
            `calibrate`.
        max_items: the most distinct items of one client in one round.
        clip_norm: the largest Euclidean norm of one client's sketch in one round, which the client
            enforces; None: no such bound, and all items may share their cells.
        participations: the most rounds that hold a contribution of one client; the client counts
            them.
        per_release: the most of these whose rounds are added up before anything is opened. 1: every
            round is opened; `participations`: only their total is.
        honest_survivors: n_h, the honest clients whose shares make up `variance`, min_survivors -
            C; for Skellam noise.
        collisions: certified for the hashes of all rounds, for replace-one over a closed domain,
            clients of one item and rounds opened one by one. None: any two items may collide in all
            rows.
        total_variation: between the noise as drawn and the ideal distribution, over all draws of
            one release together.
        trust: whom the noise trusts, or its name; None: `distributed` for Skellam, which is never
            anything else, and `central` for rounded Gaussian noise.

    Raises:
        InvalidInputError: a value is out of bounds, or two do not fit each other.

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

    def __post_init__(self) -> None:
        def keep(**checked: Any) -> None:
            for name, value in checked.items():
                object.__setattr__(self, name, value)

        keep(mechanism=Mechanism.parse(self.mechanism), relation=Relation.parse(self.relation))
        keep(rows=_validate.integer(1, 1024, rows=self.rows))
        keep(max_items=_validate.integer(1, 2**20, max_items=self.max_items))
        keep(
            participations=_validate.integer(
                1, MAX_PARTICIPATIONS, participations=self.participations
            )
        )
        keep(per_release=_validate.integer(1, self.participations, per_release=self.per_release))
        keep(total_variation=_validate.real(0.0, 1.0, total_variation=self.total_variation))
        for name, most in (("variance", 1e18), ("clip_norm", 1e9)):
            if getattr(self, name) is not None:
                keep(**{name: _validate.real(1e-9, most, **{name: getattr(self, name)})})
        if self.mechanism is Mechanism.SKELLAM:
            keep(honest_survivors=_validate.integer(1, honest_survivors=self.honest_survivors))
        elif self.honest_survivors is not None:
            raise InvalidInputError(
                "honest_survivors belongs to skellam: rounded-gaussian noise is drawn at once"
            )
        keep(trust=self._checked_trust())
        if self.collisions is not None:
            keep(collisions=self._checked_collisions(self.collisions))

    def _checked_trust(self) -> Trust:
        is_skellam = self.mechanism is Mechanism.SKELLAM
        own = Trust.DISTRIBUTED if is_skellam else Trust.CENTRAL
        trust = own if self.trust is None else Trust.parse(self.trust)
        if is_skellam and trust is Trust.CENTRAL:
            raise InvalidInputError(
                "trust in skellam noise is distributed, since clients add it: choose that, or"
                " rounded-gaussian noise"
            )
        if self.relation is Relation.ADD_REMOVE and trust is Trust.DISTRIBUTED:
            raise InvalidInputError(
                "add-remove needs the number of clients with noise, which a secure sum reveals: "
                "choose zero-out or replace-one, or rounded-gaussian noise under central trust"
            )
        return trust

    def _checked_collisions(self, collisions: Collisions) -> Collisions:
        if self.relation is not Relation.REPLACE_ONE or self.max_items > 1 or self.per_release > 1:
            raise InvalidInputError(
                "collisions are certified for replace-one, max_items 1 and per_release 1, "
                f"not for {self.relation}, {self.max_items} and {self.per_release}: leave them out"
            )
        opposite, excess = _pair(collisions)
        opposite = _validate.integer(0, self.rows, opposite=opposite)
        return Collisions(opposite, _validate.integer(0, opposite, excess=excess))

    @property
    def releases(self) -> list[tuple[int, int]]:
        """The worst releases for a client, as (participations in it, number of such releases)."""
        full, rest = divmod(self.participations, self.per_release)
        return [(self.per_release, full), *([(rest, 1)] if rest else [])]

    @property
    def num_releases(self) -> int:
        """How many releases that holds."""
        return sum(number for _, number in self.releases)

    @property
    def l2_sensitivity(self) -> float:
        """The largest distance of what neighbours add to all releases: docs/privacy-proofs/sensitivity.md."""
        return math.sqrt(self.round_square * sum(number * r * r for r, number in self.releases))

    @property
    def is_clipped(self) -> bool:
        """Whether the clip bounds more than the number of items does."""
        return self.clip_norm is not None and self.clip_norm < self.max_items * math.sqrt(self.rows)

    @property
    def round_square(self) -> float:
        """The square of the l2 sensitivity of one participation: docs/privacy-proofs/sensitivity.md."""
        if self.collisions is not None:
            return 2.0 * (self.rows + self.collisions.excess)
        # Counters are integers, so the square is one: the client compares with the floor too
        # (sketch/clip.py).
        clip = (
            math.inf
            if self.clip_norm is None
            else max(1, math.floor(Fraction(self.clip_norm) ** 2))
        )
        own = min(self.max_items**2 * self.rows, clip)
        return {
            Relation.ZERO_OUT: own,
            Relation.REPLACE_ONE: 4 * own,
            Relation.ADD_REMOVE: own + 1,
        }[self.relation]

    @property
    def shifts(self) -> Counter[int]:
        """How often the distribution of a counter is shifted by how much, at worst and without a clip, as {shift:
        number}.

        Shifts and numbers are at least 1. Source: the lemma of docs/privacy-proofs/sensitivity.md.
        """
        shifts: Counter[int] = Counter()
        worlds = 2 if self.relation is Relation.REPLACE_ONE else 1
        for r, number in self.releases:
            if self.collisions is None:
                shifts[worlds * self.max_items * r] += self.rows * number
            else:
                shifts[2] += self.collisions.opposite * number
                shifts[1] += 2 * (self.rows - self.collisions.opposite) * number
            if self.relation is Relation.ADD_REMOVE:
                shifts[r] += number
        return +shifts

    @property
    def noise_variance(self) -> float:
        """The variance; an error where it is still to be found."""
        if self.variance is None:
            raise InvalidInputError("the event has no variance yet: find one with calibrate")
        return self.variance

    def under(self, relation: Relation | str) -> Event:
        """Return what the same campaign exposes for another relation, zero-out or replace-one, or its name.

        Without `collisions`: they are the word of who certified them.

        Raises:
            InvalidInputError: as `countable`.

        >>> event = Event("rounded-gaussian", rows=16, relation="zero-out")
        >>> event.under(Relation.REPLACE_ONE).l2_sensitivity / event.l2_sensitivity
        2.0
        """
        return replace(self, relation=countable(relation), collisions=None)

    def to_dict(self) -> dict[str, Any]:
        """Return the event as JSON-able values."""
        values = {name: value for name, value in asdict(self).items() if value is not None}
        values |= {name: str(values[name]) for name in ("mechanism", "relation", "trust")}
        if self.collisions is not None:
            values["collisions"] = list(self.collisions)
        return {"schema": SCHEMA, **values}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Event:
        """Return the event that `to_dict` described.

        Raises:
            InvalidInputError: another schema, an unknown or missing entry, or a value out of
                bounds.
        """
        # its entries may be others
        if isinstance(values, Mapping) and values.get("schema") != SCHEMA:
            raise InvalidInputError(
                f"an event is a table of schema {SCHEMA!r}, got {values.get('schema')!r}"
            )
        found = _validate.table(
            "an event", values, ["schema", *(field.name for field in fields(cls))], _OPTIONAL
        )
        del found["schema"]
        if "collisions" in found:
            found["collisions"] = _pair(found["collisions"])
        return cls(**found)


def _pair(collisions: Any) -> Collisions:
    if not isinstance(collisions, list | tuple) or len(collisions) != 2:
        raise InvalidInputError(f"collisions must be two integers, got {collisions!r}")
    return Collisions(*collisions)


def countable(relation: Relation | str) -> Relation:
    """Return the relation of that name, if both its data sets have as many clients: every secure sum shows how many.

    Raises:
        InvalidInputError: it is add-remove, or none.

    >>> countable("zero-out")
    <Relation.ZERO_OUT: 'zero-out'>
    """
    found = Relation.parse(relation)
    if found is Relation.ADD_REMOVE:
        raise InvalidInputError(
            "add-remove hides the number of clients, which every secure sum shows: ask for zero-out"
            " or replace-one"
        )
    return found


def default_clip_norm(rows: int, width: int, max_items: int) -> float:
    """Return a clip that hardly ever binds: sqrt(k L (1 + 4 sqrt(2 / (L W)))) for k items.

    The squared norm of a sketch of k items has mean k L and, relative to it, a standard deviation
    of sqrt(2 (1 - 1/k) / (L W)): this is four of them above. Any clip is private; a smaller one
    drops items.

    >>> round(default_clip_norm(5, 1000, 20), 3)
    10.392
    """
    rows, width = _validate.integer(1, rows=rows), _validate.integer(1, width=width)
    max_items = _validate.integer(1, max_items=max_items)
    return math.sqrt(max_items * rows * (1 + 4 * math.sqrt(2 / (rows * width))))


def certify(hashes: Iterable[tuple[npt.NDArray[np.integer[Any]], I64]]) -> Collisions:
    """Return how any two of the candidate items collide at worst, over all rounds: exact, by enumeration.

    What that means for the distance of two neighbours: docs/privacy-proofs/sensitivity.md.

    Two items that share cells in opposite signs in o rows and in equal signs in s are sqrt(2 L + 2
    (o - s)) apart in a sketch. Pairs with o >= 2 are found by the cells of two rows together; where
    there is none, one row decides. Time: O(L^2 d log d), and the pairs that meet in two rows, about
    L^2 d^2 / (2 W)^2.

    Args:
        hashes: for each round (locations, signs): integers [L, d], cells of a row and +1 or -1.

    Raises:
        InvalidInputError: no rounds, or other shapes.

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
            # where both signs differ, their products are equal
            alike = (signs[a] == signs[b]).astype(np.int64)
            key = (cells[a] * (int(cells[b].max()) + 1) + cells[b]) * 2 + alike
            for pair in _opposite_pairs(key, signs[a]):
                consider(*pair)
            if excess == rows:
                return Collisions(opposite, excess)
    for a in range(rows):
        for pair in _opposite_pairs(cells[a], signs[a]):
            if excess >= 1:  # more than 1 takes two rows: all such pairs were met above
                return Collisions(opposite, excess)
            consider(*pair)
    return Collisions(opposite, excess)


def _opposite_pairs(key: I64, sign: I64) -> Iterator[tuple[I64, I64]]:
    """Yield all pairs of items of equal key and opposite sign, in blocks of at most as many as items."""
    order = np.argsort(key, kind="stable")
    key = key[order]
    for step in range(1, len(key)):
        start = np.flatnonzero(key[step:] == key[:-step])
        if not len(start):
            return
        first, second = order[start], order[start + step]
        differ = sign[first] != sign[second]
        yield first[differ], second[differ]
