"""The items that changed over the rounds of a campaign, and the shares of items by round.

An item is listed if its e-value (evidence for a change, see `recovery.changes`) is large enough: a
change of level then explains the item's values much better than no change does. A look is one list
of changed items. The error rate holds for any single look, on whatever day. Its proof assumes
normal errors (`recovery.changes`). The size of a change is the difference between the item's shares
in two windows of rounds. The share in a window, and its limits, use no prior from rounds outside
this window.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri

from fedtally.answer.by_round import ByRound
from fedtally.answer.frames import Table
from fedtally.answer.part import Part
from fedtally.answer.window import ALL, Window, read
from fedtally.base import validate
from fedtally.errors import InvalidInputError, arg, opt
from fedtally.recovery import changes
from fedtally.recovery.changes import Changes, Kind, RoundValues
from fedtally.recovery.decoders.kind import FittedDecoder, Measured
from fedtally.recovery.decoding import kind_of
from fedtally.recovery.limits import Limits, check_confidence
from fedtally.recovery.linear_system import F64, I64, U64, Bools, Candidates
from fedtally.recovery.windows import LONGEST, last

MOST_LINES = 7  # the most lines of a chart, so that their colours can be told apart
USUAL_ALPHA = 0.05
_LAST = "last:1"
_WITHOUT = "ask for the answer of all rounds (fedtally query)"


@dataclass(frozen=True, slots=True)
class Change:
    """An item whose frequency changed.

    Attributes:
        item: the label of the item.
        kind: "rising", "falling", "new" or "gone". A new item was not visible before the change:
            its share could not be told from 0. An item that is gone has not been visible since the
            change.
        frequency: the item's share in the window of current rounds, estimated without other rounds
            as a prior; it may be below 0.
        low, high: the limits of `frequency`, 0 to 1.
        before: the item's share in the earlier rounds, with which the window is compared; it may be
            below 0.
        before_low, before_high: the limits of `before`, 0 to 1.
        change: `frequency` minus `before`.
        change_low, change_high: the limits of `change`.
        since: the likeliest first round of the new level: the round's label, or its number if it
            has none.
        since_low, since_high: the earliest and the latest round that may well be the first round of
            the new level.
        log_e: the natural logarithm of the e-value: the larger it is, the stronger is the evidence
            for a change.
        flagged: whether a stricter rule lists the item, too. With a probability of at least 1 -
            alpha, no unchanged item meets the stricter rule at any of all looks (lists made on
            different days). If old rounds were left out (`Trends.earlier`), this holds only for all
            looks at the examined rounds.
    """

    item: str | int
    kind: str
    frequency: float
    low: float
    high: float
    before: float
    before_low: float
    before_high: float
    change: float
    change_low: float
    change_high: float
    since: str | int
    since_low: str | int
    since_high: str | int
    log_e: float
    flagged: bool


@dataclass(frozen=True, slots=True)
class Point:
    """The share of an item in one round, or in several rounds with the same hashes.

    Attributes:
        item: the label of the item.
        round: the number of the first of these rounds, from 0.
        last_round: the number of the last of these rounds.
        label: the label of the first round; None: rounds have only numbers.
        clients: the number of contributions in these rounds.
        frequency: the share in these rounds, estimated without other rounds as a prior; it may be
            below 0.
        low, high: the limits of `frequency`, 0 to 1.
    """

    item: str | int
    round: int
    last_round: int
    label: str | None
    clients: int
    frequency: float
    low: float
    high: float


class Series(Table):
    """The shares of items in each of the last landed rounds, as a table of `Point`.

    A round has landed if the server has its sum.

    Attributes:
        points: the rows of the table: item by item, and for each item by round.
        confidence: the confidence of the limits. If `whole`, it holds for all points of an item
            together, else for each point.
        whole: whether the limits of an item hold in all rounds at once.
        not_private: the warning of a run whose noise guarantees no privacy; "" for other runs.

    >>> import fedtally
    >>> result = fedtally.estimate(["tea", "milk", "tea"] * 40, rounds=[1, 2, 3] * 40, seed=1)
    >>> [(p.label, p.frequency) for p in result.series(["milk"]).points]
    [('1', 0.0), ('2', 1.0), ('3', 0.0)]
    """

    def __init__(
        self, points: Sequence[Point], confidence: float, whole: bool, not_private: str = ""
    ) -> None:
        self.points, self.confidence, self.whole = list(points), confidence, whole
        self.not_private = not_private

    def __len__(self) -> int:
        """Return the number of points, which are the rows of the table: items times rounds."""
        return len(self.points)

    @property
    def items(self) -> list[str | int]:
        """The items of the points, each once, in the order of the points."""
        return list(dict.fromkeys(point.item for point in self.points))

    @property
    def held(self) -> str:
        """Where limits hold with the confidence, in words: in each round, or in all at once.

        A point may be of several rounds with the same hashes, a batch.
        """
        are_batches = any(point.round < point.last_round for point in self.points)
        one, several = ("batch", "batches") if are_batches else ("round", "rounds")
        return f"in all {several} at once" if self.whole else f"in each {one}"

    def of(self, item: str | int) -> list[Point]:
        """Return the points of an item, in the order of the rounds; [] if no point is about it."""
        return [point for point in self.points if point.item == item]

    def to_arrow(self, memory: int | None = None) -> Any:
        """Return a `pyarrow.Table` with a row for each point.

        Its columns are the fields of `Point`. If `not_private` has a warning, a column `note`
        repeats it.

        Args:
            memory: ignored: the rows are few.
        """
        return _table(Point, self.points, self.not_private)

    def plot(self, path: str | os.PathLike[str] | None = None, *, narrow: bool = False) -> Any:
        """Return a matplotlib figure with a line and a band for each item; also write it to `path`.

        Args:
            path: the path of the image file, which ends in .png, .svg or .pdf; None: no file is
                written.
            narrow: whether the figure is for a phone.

        Raises:
            MissingExtraError: matplotlib is not installed.
            InvalidInputError: there are more than seven items, the path has another suffix, or the
                file cannot be written.
        """
        return self._drawn({}, "Shares by round", path, narrow)

    def _drawn(
        self,
        since: dict[str | int, int],
        title: str,
        path: str | os.PathLike[str] | None,
        narrow: bool,
    ) -> Any:
        from fedtally.answer import charts

        if len(self.items) > MOST_LINES:
            raise InvalidInputError(
                f"a plot has at most {MOST_LINES} lines, got {len(self.items)} items: name fewer"
            )
        labels = {point.round: point.label for point in self.points if point.label is not None}
        return charts.lines_by_round(
            {item: self.of(item) for item in self.items},
            labels,
            since=since,
            confidence=self.confidence,
            held=self.held,
            title=title,
            narrow=narrow,
            note=self.not_private,
            path=path,
        )


class Trends(Table):
    """The items that changed, the latest change first, as a table of `Change`.

    On average, at most a share `alpha` of the listed items did not change. This holds for a single
    list, made on whatever day. It does not hold for several lists taken together.

    Attributes:
        changed: the rows of the table.
        window: the rounds of the current shares.
        against: the earlier rounds with which the window is compared.
        rounds: all examined rounds that have clients.
        earlier: the number of landed sums that were not examined, since they are older than the
            examined ones.
        no_clients: the examined rounds that have no clients, ascending. They have no shares, so the
            windows leave them out.
        tested: the number of items that were tested: all candidates.
        batches: the number of batches of rounds that were told apart. Rounds are a batch if they
            have the same hashes.
        fewest_batches: the least batches in which an item that alone changes can be listed, however
            much it changes. If there are fewer, an empty list says nothing.
        alpha: the largest expected share of unchanged items in the list.
        confidence: the confidence of the limits of each item. They do not allow for selection: they
            hold for an item named beforehand.
        not_private: the warning of a run whose noise guarantees no privacy; "" for other runs.
    """

    def __init__(
        self,
        changed: Sequence[Change],
        window: Window,
        against: Window,
        rounds: Window,
        *,
        tested: int,
        batches: int,
        alpha: float,
        confidence: float,
        lines: Callable[[Sequence[str | int]], Series],
        since: dict[str | int, int],
        earlier: int = 0,
        no_clients: Sequence[int] = (),
        not_private: str = "",
    ) -> None:
        self.earlier, self.no_clients = earlier, tuple(no_clients)
        self.changed = list(changed)
        self.window, self.against, self.rounds = window, against, rounds
        self.tested, self.alpha, self.confidence = tested, alpha, confidence
        self.batches, self.fewest_batches = batches, changes.fewest_batches(tested, alpha)
        self.not_private = not_private
        self._lines, self._since = lines, since

    def __len__(self) -> int:
        """Return the number of listed items: those that changed, which are the rows of the table.

        It is 0 if no item changed. `tested` is the number of items that were tested.
        """
        return len(self.changed)

    def of(self, kind: str) -> list[Change]:
        """Return the changed items of one kind, in the order of the list.

        Args:
            kind: "rising", "falling", "new" or "gone".

        Raises:
            ValueError: there is no such kind.
        """
        chosen = Kind(kind)
        return [change for change in self.changed if change.kind == chosen]

    @property
    def rising(self) -> list[Change]:
        """The changes of the kind "rising": the share rose, and could be told from 0 before."""
        return self.of(Kind.RISING)

    @property
    def falling(self) -> list[Change]:
        """The changes of the kind "falling": the share fell, and can still be told from 0."""
        return self.of(Kind.FALLING)

    @property
    def new(self) -> list[Change]:
        """The changes of the kind "new": items whose share could not be told from 0 before."""
        return self.of(Kind.NEW)

    @property
    def gone(self) -> list[Change]:
        """The changes of the kind "gone": items whose share cannot be told from 0 since then."""
        return self.of(Kind.GONE)

    @property
    def ways(self) -> str:
        """The number of changed items of each kind, in words, such as "2 rising, 1 new".

        It is "" if no item changed.
        """
        return ", ".join(f"{len(self.of(kind)):,} {kind}" for kind in Kind if self.of(kind))

    def to_arrow(self, memory: int | None = None) -> Any:
        """Return a `pyarrow.Table` with a row for each item that changed.

        Its columns are the fields of `Change`. If `not_private` has a warning, a column `note`
        repeats it.

        Args:
            memory: ignored: the rows are few.
        """
        return _table(Change, self.changed, self.not_private)

    @property
    def series(self) -> Series:
        """The shares by round of the first seven items of the list.

        Raises InvalidInputError if no item changed.
        """
        return self._lines([change.item for change in self.changed[:MOST_LINES]])

    def plot(self, path: str | os.PathLike[str] | None = None, *, narrow: bool = False) -> Any:
        """Return a matplotlib figure of `series`, as `Series.plot` does; also write it to `path`.

        A circle marks the round of each item's change.

        Args:
            path: the path of the image file, which ends in .png, .svg or .pdf; None: no file is
                written.
            narrow: whether the figure is for a phone.

        Raises:
            MissingExtraError: matplotlib is not installed.
            InvalidInputError: no item changed, the path has another suffix, or the file cannot be
                written.
        """
        if not self.changed:
            raise InvalidInputError(
                "no item changed, so there is no line to draw: name items"
                " (fedtally trends RESULT --item ITEM --plot FILE)"
            )
        number, shown = len(self.changed), min(len(self.changed), MOST_LINES)
        first = f"; the latest {shown}" if shown < number else ""
        title = f"{number:,} of {self.tested:,} items changed: {self.ways}{first}"
        return self.series._drawn(self._since, title, path, narrow)


def _table(kind: type[Any], rows: Sequence[Any], not_private: str) -> Any:
    import pyarrow as pa

    names = [field.name for field in fields(kind)]
    columns = {name: [getattr(row, name) for row in rows] for name in names}
    return pa.table(columns | ({"note": [not_private] * len(rows)} if not_private else {}))


# ---- from a result ----

_NUMBERS = [field.name for field in fields(Change)][2:11]  # from `frequency` to `change_high`


def trends_of(
    sums: ByRound,
    window: str,
    against: int | None,
    alpha: float,
    history: int,
) -> Trends:
    """Return the items that changed.

    `sums` are the landed sums by round. All arguments but `sums` are as in `Result.trends`.
    """
    read_rounds, part = _Rounds.of(sums, history), sums.part
    window = read_rounds.usual(window)
    now = read_rounds.places(_asked(sums, window))
    before = read_rounds.before(now, against)
    candidates = Candidates(part.domain)
    ids = candidates.ids(np.arange(part.domain.size))
    values = read_rounds.by_round(ids)
    found = changes.find_changes(values)
    chosen = np.flatnonzero(changes.listed(found, alpha))
    chosen = chosen[np.lexsort((-found.log_e[chosen], -found.since[chosen]))]
    return Trends(
        _changes(part, read_rounds, found, chosen, ids, (now, before), alpha),
        read_rounds.window(window, now),
        read_rounds.window("before" if against is None else str(against), before),
        read_rounds.window("all", np.ones(len(now), bool)),
        tested=part.domain.size,
        batches=len(values.batches),
        alpha=alpha,
        confidence=part.confidence,
        lines=lambda items: _series(part, read_rounds, items, whole=False),
        since=_since(part, read_rounds, found, chosen),
        earlier=len(part.sketches) - read_rounds.num_sums,
        no_clients=read_rounds.no_clients,
        not_private=part.not_private,
    )


def series_of(sums: ByRound, items: Sequence[str | int], whole: bool, history: int) -> Series:
    """Return the shares of items by round.

    `sums` are the landed sums by round. All arguments but `sums` are as in `Result.series`.
    """
    return _series(sums.part, _Rounds.of(sums, history), items, whole)


def _asked(sums: ByRound, window: str) -> list[int]:
    asked = read(window)
    if asked == ALL:
        raise InvalidInputError(
            f"{arg.window} must leave rounds to compare with, got all: write {opt.window('last:7')}"
        )
    return sums.chosen(asked)


def _changes(
    part: Part,
    read_rounds: _Rounds,
    found: Changes,
    chosen: I64,
    ids: U64,
    windows: tuple[Bools, Bools],
    alpha: float,
) -> list[Change]:
    """Return the rows of the table for the items that are listed.

    Args:
        part: the sums of the plan, with their decoder.
        read_rounds: the values of items by round.
        found: the results of the tests of all candidates.
        chosen: the positions of the listed items in the domain, in the order of the rows.
        ids: the ids of all candidates, by position.
        windows: two masks of columns (see `_Column`), bool [columns] each: the columns of the
            current window, and the columns of the earlier window.
        alpha: the largest expected share of unchanged items.
    """
    confidence = part.confidence
    (now, clients), (before, others) = (read_rounds.together(ids[chosen], one) for one in windows)
    differ = changes.difference(now, clients, before, others, confidence)
    columns = (
        now.value / clients,
        *_limits(now, clients, confidence),
        before.value / others,
        *_limits(before, others, confidence),
        *differ,
    )
    numbers: list[dict[str, Any]] = [
        dict(zip(_NUMBERS, row, strict=True)) for row in np.stack(columns, axis=1).tolist()
    ]
    kinds, flagged = changes.kinds(_of(found, chosen)), changes.flagged(found, alpha)[chosen]
    return [
        Change(
            item=item,
            kind=str(kinds[row]),
            since=read_rounds.named(int(found.since[place])),
            since_low=read_rounds.named(int(found.since_low[place])),
            since_high=read_rounds.named(int(found.since_high[place])),
            log_e=float(found.log_e[place]),
            flagged=bool(flagged[row]),
            **numbers[row],
        )
        for row, (item, place) in enumerate(zip(part.domain.labels(chosen), chosen, strict=True))
    ]


def _of(found: Changes, chosen: I64) -> Changes:
    return found._replace(
        before=changes.Level(*(part[chosen] for part in found.before)),
        after=changes.Level(*(part[chosen] for part in found.after)),
    )


def _since(part: Part, read_rounds: _Rounds, found: Changes, chosen: I64) -> dict[str | int, int]:
    """Return a dict: the label of each listed item -> the first round of its new level."""
    labels = part.domain.labels(chosen)
    return {
        item: read_rounds.columns[int(found.since[place])].rounds[0]
        for item, place in zip(labels, chosen, strict=True)
    }


def _series(part: Part, read_rounds: _Rounds, items: Sequence[str | int], whole: bool) -> Series:
    if not items:
        raise InvalidInputError("no item is named: a line is of an item")
    values = read_rounds.by_round(part.domain.encode(list(items)))
    confidence = part.confidence
    each = 1.0 - (1.0 - confidence) / len(values.clients) if whole else confidence
    measured = Measured(values.value, values.stddev)
    limits = _limits(measured, values.clients, each)
    points = [
        Point(
            label,
            column.rounds[0],
            column.rounds[-1],
            read_rounds.label(place),
            int(values.clients[place]),
            float(values.value[row, place] / values.clients[place]),
            float(limits.low[row, place]),
            float(limits.high[row, place]),
        )
        for row, label in enumerate(items)
        for place, column in enumerate(read_rounds.columns)
    ]
    return Series(points, confidence, whole, part.not_private)


def _limits(measured: Measured, clients: float | F64, confidence: float) -> Limits:
    """Return the limits of items' shares, clipped to 0 and 1, in the shape of the measured counts.

    Args:
        measured: counts of items and their standard deviations, in clients.
        clients: the counts are divided by this number of clients. An array has one number for each
            column.
        confidence: the confidence of the limits. A limit is at least one client away from the
            count.
    """
    z = float(-ndtri((1.0 - check_confidence(confidence)) / 2))
    half = np.maximum(z * measured.stddev, 1.0)
    return Limits(
        np.clip((measured.value - half) / clients, 0.0, 1.0),
        np.clip((measured.value + half) / clients, 0.0, 1.0),
    )


# ---- values by round ----


class _Column(NamedTuple):
    """One round, or several rounds with the same hashes, in which an item has a single value.

    Attributes:
        sums: the numbers of the sums of these rounds. If a sum adds up several rounds, its number
            is the number of the first of these rounds.
        rounds: the numbers of these rounds, ascending.
        noise: the standard deviation of the noise on the number of clients; 0: no noise.
    """

    sums: list[int]
    rounds: list[int]
    noise: float


class _Rounds(ABC):
    """The values of items in the last landed rounds, in columns.

    A column is one round, or several rounds with the same hashes (see `_Column`). The errors of
    different columns are independent.

    Args:
        sums: the landed sums by round.
        columns: the examined columns, by their rounds.
        empty: the columns that were examined, too, but have no values, since they have no clients.
    """

    def __init__(
        self, sums: ByRound, columns: Sequence[_Column], empty: Sequence[_Column] = ()
    ) -> None:
        self.columns, self._labels, self._landed = list(columns), sums.labels, sums.landed
        self._empty = list(empty)

    @staticmethod
    def of(sums: ByRound, history: int) -> _Rounds:
        """Return an object with the values of the last landed rounds; at least two columns.

        Args:
            sums: the landed sums by round.
            history: the most rounds to read (see `Result.trends`).

        Raises:
            InvalidInputError: there can be no trend: for example, the answer is about a window, the
                domain is open, or the decoder has no values for single rounds. The message says
                why.
        """
        part = sums.part
        if part.span is not None:
            raise InvalidInputError("trends are of the result of all rounds: ask that result")
        part.plan.candidates.check_listed("trends look", "declare candidates")
        if part.confidence == 0:
            raise InvalidInputError(
                f"trends have limits, and this answer has none: set {opt.confidence(0.95)}"
            )
        sums.landed.check(_WITHOUT)
        if validate.integer(0, history=history) < 2:
            raise InvalidInputError(
                f"{arg.history} must be at least 2 rounds for a trend, got {history}"
            )
        found = _read(sums, history)
        if len(found.columns) < 2:
            clients = " with clients" if found._empty else ""
            raise InvalidInputError(
                "trends compare rounds of different hashes, and there is one set of them"
                f"{clients} here: {_WITHOUT}"
            )
        return found

    @property
    def num_sums(self) -> int:
        """The number of sums that were examined, with those of no clients."""
        return sum(len(one.sums) for one in [*self.columns, *self._empty])

    @property
    def no_clients(self) -> list[int]:
        """The numbers of the examined rounds that have no clients, ascending."""
        return sorted(number for one in self._empty for number in one.rounds)

    @abstractmethod
    def _measured(self, ids: U64, places: Bools) -> tuple[Measured, float]:
        """Return what `together` returns, but without the noise on the number of clients.

        The number counts as exact, so the standard deviations include only errors of the counts.
        """

    @abstractmethod
    def _values(self, ids: U64) -> RoundValues:
        """Return what `by_round` returns, but without the noise on the numbers of clients.

        The numbers count as exact, so the standard deviations include only errors of the counts.
        """

    def together(self, ids: U64, places: Bools) -> tuple[Measured, float]:
        """Return the counts of items in some columns together, and the number of clients in them.

        A column is one round, or several rounds with the same hashes. The counts are a `Measured`:
        values and standard deviations in clients, float64 [n] each. If the number of clients is
        noisy, every share of this number is noisy, too. The standard deviations include that error.

        Args:
            ids: the ids of the items, uint64 [n].
            places: whether each column is chosen, bool [columns].
        """
        found, clients = self._measured(ids, places)
        noise = [self.columns[place].noise for place in np.flatnonzero(places)]
        # The noise in the number of clients is an error of every share.
        relative = float(np.hypot.reduce(noise)) / clients
        return found._replace(stddev=np.hypot(found.stddev, relative * found.value)), clients

    def by_round(self, ids: U64) -> RoundValues:
        """Return the counts of items in each column, and their errors: float64 [n, columns] each.

        A column is one round, or several rounds with the same hashes. The errors are standard
        deviations, in clients. If the numbers of clients are noisy, the errors include this noise.

        Args:
            ids: the ids of the items, uint64 [n].
        """
        found = self._values(ids)
        noise = np.array([column.noise for column in self.columns])
        if not noise.any():
            return found
        mean = np.maximum(found.value.sum(axis=1, keepdims=True) / found.clients.sum(), 0.0)
        return found._replace(stddev=np.hypot(found.stddev, noise * mean))

    def usual(self, window: str) -> str:
        """Return `window` unchanged, unless it is "last:1".

        "last:1" becomes a window with all rounds of the last column with clients, and the rounds
        without clients after it, such as "last:4". A column is one round, or several rounds with
        the same hashes.
        """
        if window != _LAST:
            return window
        newest = self.columns[-1].rounds
        after = sum(number > newest[-1] for number in self.no_clients)
        return f"last:{len(newest) + after}"

    def places(self, sums: Sequence[int]) -> Bools:
        """Return which columns are in a window, bool [columns].

        A column is one round, or several rounds with the same hashes. Rounds without clients are in
        no column, and are left out.

        Args:
            sums: the numbers of the window's sums (see `_Column.sums`).

        Raises:
            InvalidInputError: the window has only a part of a column, no round with clients, or a
                sum that is older than the examined rounds.
        """
        wanted = set(sums)
        for column in self.columns:
            wanted_here = wanted.intersection(column.sums)
            if wanted_here and len(wanted_here) < len(column.sums):
                raise InvalidInputError(
                    f"rounds {column.rounds[0]} to {column.rounds[-1]} have one set of hashes, and"
                    " a window holds all of them or none: take them in, or leave them out"
                )
        bare = [str(each) for one in self._empty if wanted & {*one.sums} for each in one.rounds]
        wanted = wanted.difference(*(one.sums for one in self._empty))
        if bare and not wanted:
            raise InvalidInputError(
                f"the window has only rounds without clients ({', '.join(bare)}), which have no"
                " shares to compare: take a window with others"
            )
        if early := wanted.difference(*(column.sums for column in self.columns)):
            rounds = [each for one in [*self.columns, *self._empty] for each in one.rounds]
            raise InvalidInputError(
                f"trends look at the last {len(rounds)} rounds here, from round {min(rounds)} on,"
                f" got round {min(early)}"
            )
        return np.array([bool(wanted.intersection(one.sums)) for one in self.columns])

    def before(self, now: Bools, number: int | None) -> Bools:
        """Return which columns to compare a window with, bool [columns]: the last ones before it.

        Args:
            now: the columns of the window, bool [columns].
            number: the number of sums to compare with. Columns are taken whole, so there may be
                more sums. None: all columns before the window.

        Raises:
            InvalidInputError: there is no column before the window, or `number` is below 1.
        """
        first = int(np.flatnonzero(now)[0])
        if number is not None:
            validate.integer(1, against=number)
        before, held = np.zeros(len(now), bool), 0
        for place in range(first - 1, -1, -1):
            if number is not None and held >= number:
                break
            before[place] = True
            held += len(self.columns[place].sums)
        if not held:
            raise InvalidInputError(
                "no round before the window landed, so there is nothing to compare it with: take"
                f" later rounds, such as {opt.window(_LAST)}"
            )
        return before

    def window(self, asked: str, places: Bools) -> Window:
        """Return a `Window` of the rounds in some columns.

        Its `history` is the number of all columns, and its `prior` is 0.

        Args:
            asked: the window as it was asked for.
            places: whether each column is in the window, bool [columns].
        """
        sums = sorted(
            number for place in np.flatnonzero(places) for number in self.columns[place].sums
        )
        return self._landed.window(asked, sums, len(self.columns), 0)

    def label(self, place: int) -> str | None:
        """Return the label of the first round of the column with the index `place`, from 0.

        Returns None if rounds have only numbers.
        """
        return None if self._labels is None else self._labels[self.columns[place].rounds[0]]

    def named(self, place: int) -> str | int:
        """Return the label of the first round of the column with the index `place`, from 0.

        If rounds have no labels, return the number of the round.
        """
        label = self.label(place)
        return self.columns[place].rounds[0] if label is None else label


class _Fitted(_Rounds):
    """The values of items by round, read from one decoder that fits all these rounds together.

    A column is a batch: all examined rounds with the same hashes. Batches without clients are left
    out.
    """

    def __init__(self, sums: ByRound, fit: FittedDecoder) -> None:
        self._fit = fit
        self._there = np.flatnonzero(fit.clients)
        by_batch: dict[int, list[int]] = {batch: [] for batch in fit.batches}
        for number in sorted(sketch.round for sketch in sums.part.sketches):
            if (batch := sums.batch(number)) in by_batch:
                by_batch[batch].append(number)
        columns = [_column(sums, by_batch[batch]) for batch in fit.batches]
        empty = [columns[place] for place in np.flatnonzero(fit.clients == 0)]
        super().__init__(sums, [columns[place] for place in self._there], empty)

    def _measured(self, ids: U64, places: Bools) -> tuple[Measured, float]:
        chosen = np.zeros(len(self._fit.clients), bool)
        chosen[self._there[places]] = True
        window = self._fit.window(chosen, learned=False)
        return window.measured(ids), float(window.num_clients)

    def _values(self, ids: U64) -> RoundValues:
        return changes.round_values(self._fit, ids)


class _Counted(_Rounds):
    """The values of items by round, read from histograms: one column for each sum.

    The counts are exact, or have the plan's noise. Sums without clients are left out.
    """

    def __init__(self, sums: ByRound, history: int) -> None:
        examined = last(sums.part.sketches, min(history, LONGEST))
        clients = np.array([sums.sums([number])[0].num_clients for number in examined])
        columns = [_column(sums, [number]) for number in examined]
        empty = [columns[place] for place in np.flatnonzero(clients <= 0)]
        super().__init__(sums, [columns[place] for place in np.flatnonzero(clients > 0)], empty)
        chosen = [column.sums[0] for column in self.columns]
        self._decoders = [sums.alone(number) for number in chosen]
        candidates = Candidates(sums.part.domain)
        self._noise = np.array([one.noisy(candidates).stddev for one in self._decoders])
        self._clients = np.array([float(one.num_clients) for one in self._decoders])

    def _values(self, ids: U64) -> RoundValues:
        counts = np.stack([decoder.at(ids) for decoder in self._decoders], axis=1)
        noise = np.broadcast_to(self._noise, counts.shape)
        return RoundValues(counts, noise, self._clients, list(range(len(self.columns))))

    def _measured(self, ids: U64, places: Bools) -> tuple[Measured, float]:
        found = self._values(ids)
        stddev = np.full(len(ids), float(np.hypot.reduce(self._noise[places])))
        total = found.value[:, places].sum(axis=1)
        return Measured(total, stddev), float(self._clients[places].sum())


def _read(sums: ByRound, history: int) -> _Rounds:
    if not kind_of(sums.part.recovery).has_collisions:
        return _Counted(sums, history)
    fit = sums.history(history)
    if fit is None:
        raise InvalidInputError(
            f"trends need a fit of several rounds, and there is none by {sums.part.recovery}"
            f" recovery: decode by {opt.recovery('joint')}, or take more bytes"
        )
    return _Fitted(sums, fit)


def _column(sums: ByRound, numbers: list[int]) -> _Column:
    """Return the `_Column` of the landed sums with these numbers (see `ByRound.sums`)."""
    plan = sums.part.plan
    release = {rounds.start: rounds for rounds in plan.releases}
    rounds = [each for one in numbers for each in release.get(one, range(one, one + 1))]
    noise, terms = 0.0, plan.privacy
    if terms is not None and terms.event.relation == "add-remove":
        silos = sum(sketch.num_silos for sketch in sums.sums(numbers))
        noise = plan.protection.stddev(silos, len(numbers))
    return _Column(numbers, rounds, noise)
