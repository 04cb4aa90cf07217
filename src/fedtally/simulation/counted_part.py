"""The counts of a part of a table's rows: numbers that add up over the parts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence, Set, Sized
from typing import Any, NamedTuple

import numpy as np

from fedtally.base.dropped import NOTHING, Dropped
from fedtally.errors import InvalidInputError
from fedtally.simulation.round_tally import U64, Histogram, RoundTally

# A column with more values is hardly one of rounds. Each value costs a histogram and a sketch.
MAX_NATURAL_ROUNDS = 1 << 16
MOST_SAMPLED = 1 << 16  # hashes of clients that a part keeps, to find clients that are in two parts


class Part(NamedTuple):
    """The counts of a part of the rows: numbers that add up over the parts.

    Attributes:
        labels: the natural rounds, in order; empty where the rows name none.
        rounds: the tally of each natural round; or of each drawn round, if clients are named; or
            one tally of all clients.
        by_client: whether the rows name their clients. Then `rounds` are bounded, and final.
        has_counts: whether the rows stand for several clients.
        rows: the number of rows that were read, with those that lack something.
        dropped: the rows and items that are left out, by reason.
        most_clients: an upper bound on the number of clients.
        sample: the smallest hashes of named clients, uint64, at most 2^16. The same client has the
            same hash in all parts.
        has_integer_clients: True if clients are named by integers, False if by text, None if not
            named.
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
        """Return the counts of all parts together, at least one.

        Raises:
            InvalidInputError: clients or rounds are integers in one part and text in another; there
                are too many rounds; or a client is in two parts, as far as the samples show.

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
    """Return the hashes of all sampled clients, rising; refuse a client of two parts."""
    sample = np.sort(np.concatenate([part.sample for part in parts]))
    if np.any(sample[1:] == sample[:-1]):
        raise InvalidInputError(
            "a client is in two partitions: bring all rows of a client into one (shuffle the"
            " table by client), or its bound is not kept"
        )
    return sample


def _added_up(parts: Sequence[Part], labels: Sequence[Any]) -> tuple[RoundTally, ...]:
    """Return the tally of each round over all parts.

    Args:
        parts: the parts.
        labels: the labels of natural rounds, in the order of the answer. Empty: rounds are matched
            by their place in each part.
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
    """Refuse integers in one part and text in another: 8 and "8" would be two.

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
    """Refuse a column of more than `most` distinct values: it is hardly one of rounds or silos.

    Args:
        labels: the distinct values.
        what: the singular noun for what the column names.
        most: the largest number of distinct values.
    """
    if len(labels) > most:
        raise InvalidInputError(
            f"the {what} column has more than {most:,} distinct values; is it a {what}?"
        )


def in_order(labels: Iterable[Any]) -> list[Any]:
    """Return the labels of rounds in order: by number if all are numbers, else by text.

    Numbers may be written as text.

    >>> in_order(["10", "9", "1"]), in_order(["b", "10", "a"])
    (['1', '9', '10'], ['10', 'a', 'b'])
    """
    listed = list(labels)
    if all(isinstance(label, int) or re.fullmatch(r"[+-]?[0-9]{1,18}", label) for label in listed):
        return sorted(listed, key=lambda label: (int(label), str(label)))
    return sorted(listed, key=str)
