"""The counts of some of a table's rows, which can be added to the counts of the other rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence, Set, Sized
from typing import Any, NamedTuple

import numpy as np

from fedtally.base.dropped import NOTHING, Dropped
from fedtally.errors import InvalidInputError
from fedtally.simulation.round_tally import U64, Histogram, RoundTally

# The most rounds that rows may name. A column with more distinct values hardly names rounds, and
# each round costs a histogram and a sketch.
MAX_NATURAL_ROUNDS = 1 << 16
MOST_SAMPLED = 1 << 16  # the most hashes of clients that a part keeps, to find clients in two parts


class Part(NamedTuple):
    """The counts of some of the rows (a part), which can be added up over all parts.

    Attributes:
        labels: the names of the rounds, in order, if the rows name their rounds; else empty.
        rounds: if rows name rounds: the tally of each of these rounds. If rows name no rounds, but
            name their clients: the tally of each round; each client's round is already drawn. If
            rows name neither: one tally of all clients.
        by_client: whether the rows name their clients. If so, each client in `rounds` already has
            at most the number of items that the campaign allows (`max_items`).
        has_counts: whether one row may stand for several clients.
        rows: the number of rows that were read, including rows that lack an entry.
        dropped: the numbers of rows and items that were left out, by reason.
        most_clients: an upper bound on the number of clients: a client counts once for each of its
            rows.
        sample: the smallest hashes of the clients that rows name, uint64, at most 2^16. A client
            has the same hash in all parts.
        has_integer_clients: whether the names of clients are integers (True) or text (False); None
            if no row names a client.
    """

    labels: tuple[str | int, ...]
    rounds: tuple[RoundTally, ...]
    by_client: bool
    has_counts: bool
    rows: int
    dropped: Dropped
    most_clients: float
    sample: U64
    has_integer_clients: bool | None = None

    @classmethod
    def sum(cls, parts: Sequence[Part]) -> Part:
        """Return the counts of all parts together.

        Args:
            parts: the parts, at least one.

        Raises:
            InvalidInputError: names of clients or rounds are integers in one part and text in
                another; rows name more than 65,536 rounds; or the samples show that a client is in
                two parts.

        >>> tea = RoundTally(2, np.array([7], np.uint64), np.array([2]))
        >>> part = Part((), (tea,), False, False, 2, NOTHING, 2.0, np.empty(0, np.uint64))
        >>> Part.sum([part, part]).rounds[0].counts.tolist()
        [4]
        """
        kinds_of_clients = {part.has_integer_clients for part in parts} - {None}
        check_one_kind("clients", kinds_of_clients)
        named = [label for part in parts for label in part.labels]
        check_one_kind("rounds", {isinstance(label, int) for label in named})
        sample = _all_sampled(parts)
        labels = tuple(in_order(set(named)))
        check_few(labels, "round", MAX_NATURAL_ROUNDS)
        return cls(
            labels,
            _added_up(parts, labels),
            any(part.by_client for part in parts),
            any(part.has_counts for part in parts),
            sum(part.rows for part in parts),
            sum((part.dropped for part in parts), NOTHING),
            sum(part.most_clients for part in parts),
            sample[:MOST_SAMPLED],
            next(iter(kinds_of_clients), None),
        )


def _all_sampled(parts: Sequence[Part]) -> U64:
    """Return the hashes in all samples, in rising order; refuse a hash that is in two samples."""
    sample = np.sort(np.concatenate([part.sample for part in parts]))
    if np.any(sample[1:] == sample[:-1]):
        raise InvalidInputError(
            "a client is in two partitions: bring all rows of a client into one (shuffle the"
            " table by client), or its bound is not kept"
        )
    return sample


def _added_up(parts: Sequence[Part], labels: Sequence[Any]) -> tuple[RoundTally, ...]:
    """Return the tally of each round, added up over all parts.

    Args:
        parts: the parts.
        labels: the names of the rounds, in the order of the result. Empty: the rounds of the parts
            are matched by their places.
    """
    by_round: dict[Any, list[RoundTally]] = {}
    for part in parts:
        for label, tally in zip(part.labels or range(len(part.rounds)), part.rounds, strict=True):
            by_round.setdefault(label, []).append(tally)
    return tuple(_sum_of(by_round[label]) for label in labels or range(len(by_round)))


def _sum_of(tallies: Sequence[RoundTally]) -> RoundTally:
    histogram = Histogram()
    for tally in tallies:
        histogram.add(tally.ids, tally.counts)
    return RoundTally(sum(tally.num_clients for tally in tallies), *histogram.finish())


def check_one_kind(what: str, kinds: Set[object]) -> None:
    """Refuse names that are integers in one part and text in another: 8 and "8" would be two names.

    Args:
        what: the plural noun for the things that a column names.
        kinds: the kinds of names in the parts: True for integers, False for text.
    """
    if len(kinds) > 1:
        raise InvalidInputError(
            f"the {what} of some partitions are integers and of some text, so that 8 and '8' are"
            " two: give their column one type in all partitions (pandas makes floats of integers"
            " where a value is missing; its type Int64 does not)"
        )


def check_few(labels: Sized, what: str, most: int) -> None:
    """Refuse a column with more than `most` distinct values, which hardly names rounds or silos.

    Args:
        labels: the distinct values.
        what: the singular noun for what the column names, for the error.
        most: the largest number of distinct values.
    """
    if len(labels) > most:
        raise InvalidInputError(
            f"the {what} column has more than {most:,} distinct values; is it a {what}?"
        )


def in_order(labels: Iterable[Any]) -> list[Any]:
    """Return the names of rounds sorted as numbers, or else as text with numbers in it.

    They are sorted as numbers if each name is an integer, or the text of an integer of at most 18
    digits. In other texts, too, digits that stand together are a number.

    >>> in_order(["10", "9", "-1"]), in_order(["w10", "w9", "a"])
    (['-1', '9', '10'], ['a', 'w9', 'w10'])
    """
    listed = list(labels)
    if all(isinstance(label, int) or re.fullmatch(r"[+-]?[0-9]{1,18}", label) for label in listed):
        return sorted(listed, key=lambda label: (int(label), str(label)))
    return sorted(listed, key=lambda label: (_text_and_numbers(str(label)), str(label)))


def _text_and_numbers(label: str) -> list[str | int]:
    """Return the parts of a text: its even ones are text, and its odd ones numbers."""
    parts = re.split(r"([0-9]{1,18})", label)
    return [int(part) if place % 2 else part for place, part in enumerate(parts)]
