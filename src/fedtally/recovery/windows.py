"""Estimates counts in some rounds of a campaign, a window, with help from the rounds near them.

Sums are linear, so a window needs no other sums than those of its rounds. A round that took place
is called landed. A *history* is the window with the landed rounds near it. One fit of a whole
history knows more about the items than a fit of the window alone. The values in the window use this
fit, but their errors come from the window's own signs.

How long the history should be is decided from the sums: ids that no client holds (phantoms) show
how large the window's errors are. The rest of the history also serves as a prior of the window's
counts (`history.py`) if it raises the likelihood of the window's values. Limits use only the
values, never this prior.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fedtally.base import validate
from fedtally.domain import Domain
from fedtally.errors import InvalidInputError, opt
from fedtally.recovery.decoders import Recovery
from fedtally.recovery.decoders.kind import CampaignDecoder, FittedDecoder
from fedtally.recovery.history import History, Part
from fedtally.recovery.linear_system import F64, U64, Bools, Candidates, Ids, check_landed
from fedtally.recovery.shrinkage import EXACT, NORMAL, Noisy
from fedtally.sketch import CountSketch, SketchSpec

LONGEST = 64  # the most rounds in a history, before its batches are completed
Make = Callable[[list[int]], CampaignDecoder]  # makes the decoder of the landed rounds in the list
# A history that is longer than its window gets so few rounds that the product of candidates, rows
# and rounds is at most this. Then its batches are completed. With belief propagation this bounds
# the number of messages, which must fit into memory. Other decoders have the same limit.
_ROOM = 1 << 24
# The lengths of windows, in batches, that `shortest_enough` compares; the whole history is added.
LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 48)
_STANDS_OUT = 5.0  # standard deviations: windows are judged by items with larger values
_BEYOND = 2.5  # standard deviations: a smaller difference is regarded as chance
# The largest error in a window is assumed to be this many times its largest standard deviation. A
# normal variable is rarely larger, and only few items are heavy enough to have that deviation.
_OWN = 2.0
_TIMES = (1, 2, 4, 8)  # lengths of histories that are tried, in windows; the longest is added
_JUDGED = 4096  # candidates whose standard deviations say how large the errors are
# Histories are compared by the error of the window's values. A history is regarded as equally good
# as the best one if its error is at most this share larger.
_EQUAL = 0.01


class WindowedDecoder(CampaignDecoder):
    """Estimates the counts in a window, with the rest of a history as a prior.

    Attributes:
        window: the decoder of the window. Limits are made from it, since it does not use the prior.
        history: what was learned from the window and the rest of the history.

    Args:
        window: a decoder of the window.
        rest: a decoder of the other rounds of the history.
        domain: the candidate items.
    """

    def __init__(self, window: FittedDecoder, rest: FittedDecoder, domain: Domain) -> None:
        self.window, self._rest = window, rest
        self.spec, self.num_clients = window.spec, window.num_clients
        ids = Candidates(domain).ids(np.arange(domain.size))
        self.history = History(*self._parts(ids))

    def _parts(self, ids: Ids) -> tuple[Part, Part]:
        one, other = (
            Part(*decoder.measured(ids), float(decoder.num_clients))
            for decoder in (self.window, self._rest)
        )
        return one, other

    def at(self, ids: U64) -> F64:
        """Return the expected count of each id in the window: float64 [n]."""
        return self.history.means(*self._parts(ids))

    def range(self, first_id: int, count: int) -> F64:
        """Return the expected counts of the ids from `first_id` on (mod 2^64): float64 [count]."""
        return self.history.means(*self._parts(range(first_id, first_id + count)))

    def noisy(self, candidates: Candidates) -> Noisy:
        """Return the estimates, with noise 0: they are posterior means, which need no shrinking."""
        return Noisy(0.0, NORMAL, lambda ids: (_ask(self, ids), 1.0))

    @property
    def recovery(self) -> str:  # type: ignore[override]
        """The name of the window's decoder, as in `Recovery`."""
        return self.window.recovery


def _ask(decoder: CampaignDecoder, ids: Ids) -> F64:
    if isinstance(ids, range):
        return decoder.range(ids.start, len(ids))
    return decoder.at(ids)


@dataclass(frozen=True)
class Decoded:
    """The decoder of a window, and the rounds that it uses.

    Attributes:
        decoder: the decoder that gives the estimates.
        limits: the decoder from which limits are made: that of the window without the prior.
        rounds: the rounds of the window, ascending.
        history: the rounds of the fit that the window's values use, ascending. If more rounds did
            not help, these are only the window's rounds.
        prior: the rounds that serve as the prior of the window's counts, ascending. Empty if no
            prior is used, for example because it did not raise the likelihood.
    """

    decoder: CampaignDecoder
    limits: CampaignDecoder
    rounds: list[int]
    history: list[int]
    prior: list[int]


def last(sketches: Sequence[CountSketch], number: int) -> list[int]:
    """Return the last `number` landed rounds, ascending, or all if there are fewer.

    Raises:
        InvalidInputError: `number` is below 1, no round has landed, or two sums are of one round.
        IncompatibleError: the specs of the sums differ.

    >>> from fedtally.sketch import SketchSpec
    >>> spec = SketchSpec(rows=1, width=2, schedule="hybrid", num_rounds=9, seed=bytes(32))
    >>> last([CountSketch(spec, m) for m in (0, 3, 8)], 2)
    [3, 8]
    """
    check_landed(sketches)
    number = validate.integer(1, last=number)
    return sorted(sketch.round for sketch in sketches)[-number:]


def longest(sketches: Sequence[CountSketch], domain: Domain, most: int = LONGEST) -> list[int]:
    """Return the last landed rounds that one fit may use, ascending.

    They are whole batches, at least one. A larger domain allows fewer rounds.

    Args:
        sketches: the landed sums.
        domain: the candidates.
        most: the most rounds, before the batches that they belong to are completed; LONGEST is
            another limit.

    >>> from fedtally.domain import IntegerRange
    >>> from fedtally.sketch import SketchSpec
    >>> spec = SketchSpec(rows=1, width=2, schedule="hybrid", num_rounds=99, seed=bytes(32))
    >>> landed = [CountSketch(spec, m) for m in range(99)]
    >>> [len(longest(landed, IntegerRange(1, size))) for size in (10, 1 << 20, 1 << 30)]
    [64, 16, 1]
    """
    spec = check_landed(sketches)
    least = last(sketches, max(1, min(most, LONGEST, _room(domain, spec.rows))))
    return _whole_batches(spec, [sketch.round for sketch in sketches], least)


def _whole_batches(spec: SketchSpec, landed: Iterable[int], rounds: Iterable[int]) -> list[int]:
    """Return the landed rounds of all batches to which `rounds` belong, ascending."""
    batches = {spec.schedule.batch_of(number, spec.num_rounds) for number in rounds}
    return sorted(
        number for number in landed if spec.schedule.batch_of(number, spec.num_rounds) in batches
    )


def _room(domain: Domain, rows: int) -> int:
    """Return the most rounds of a history for which the messages fit into memory."""
    return _ROOM // max(1, domain.size * rows)


def decode(
    sketches: Sequence[CountSketch],
    domain: Domain,
    rounds: Sequence[int],
    recovery: Recovery,
    history: int = LONGEST,
    make: Make | None = None,
) -> Decoded:
    """Return a decoder of the counts in a window of landed rounds.

    It is the usual decoder of the window's sums, with identical results, in these cases:

    - The plan has only one batch of rounds, so all rounds have equal signs.
    - `recovery` does not fit items.
    - No history may be longer than the window. The bounds on its length are `history`, LONGEST, the
      number of landed rounds, and the memory for the messages (`_ROOM`).

    Args:
        sketches: the landed sums of all rounds.
        domain: the candidate items.
        rounds: the rounds of the window, all of them landed. If the plan has several batches
            (rounds with equal signs), the window must contain all landed rounds of each batch that
            it touches. With one batch any rounds are allowed, and they are decoded alone.
        recovery: the decoder to use.
        history: the most landed rounds that the fit may use; LONGEST and the memory are further
            limits. Batches of which the history holds some rounds are completed. 0: only the rounds
            of the window.
        make: a function that makes the decoder of some rounds, for example from a cache; None: make
            it in the usual way.

    Raises:
        InvalidInputError: the window has no round, a round that did not land, or only a part of a
            batch; `history` is below 0; or the decoder refuses the sums.
        IncompatibleError: the specs of the sums differ.
    """
    check_landed(sketches)
    by_round = {sketch.round: sketch for sketch in sketches}
    chosen = sorted(set(rounds))
    _check_rounds(chosen, by_round)
    fits = _Fits(by_round, domain, recovery, chosen, make)
    lengths = fits.lengths(min(validate.integer(0, history=history), len(by_round)))
    if not lengths:
        alone = fits.of(chosen)
        return Decoded(alone, alone, chosen, chosen, [])
    window, length = fits.best(lengths)
    used = fits.nearest(length)
    rest = fits.rest(lengths[-1])
    if rest is None or not isinstance(window, FittedDecoder) or not window.has_fit:
        return Decoded(window, window, chosen, used, [])
    if _typical(window, domain) <= EXACT:  # a prior cannot improve exact values
        return Decoded(window, window, chosen, used, [])
    joined = WindowedDecoder(window, rest, domain)
    if joined.history.gain <= 0.0:
        return Decoded(window, window, chosen, used, [])
    others = sorted(set(fits.nearest(lengths[-1])) - set(chosen))
    return Decoded(joined, window, chosen, used, others)


def shortest_enough(decoder: FittedDecoder, domain: Domain) -> int:
    """Return how many of the last batches with clients estimate the present frequencies best.

    A longer window has smaller random errors, but its frequencies are older. Two numbers are added
    for each window. The first is its distance from the present: the largest difference from shorter
    windows that is not chance. The second is how large its random errors may be. Both are for the
    worst item. The window with the smallest sum is chosen (Goldenshluger and Lepski 2011). If no
    item stands out from the noise, the result is the number of all batches with clients.

    Args:
        decoder: the decoder of a history, with a fit (`has_fit`).
        domain: the candidate items.
    """
    lasting = np.flatnonzero(decoder.clients)
    lengths = [one for one in LENGTHS if one < len(lasting)] + [len(lasting)]
    ids = Candidates(domain).ids(np.arange(domain.size))
    frequency, error = np.empty((2, len(lengths), domain.size))
    for place, length in enumerate(lengths):
        chosen = np.isin(np.arange(len(decoder.clients)), lasting[-length:])
        window = decoder if length == len(lasting) else decoder.window(chosen, learned=False)
        value, stddev = window.measured(ids)
        frequency[place] = value / window.num_clients
        error[place] = np.sqrt(stddev**2 + np.maximum(value, stddev)) / window.num_clients
    seen = (frequency / error).max(axis=0) > _STANDS_OUT
    if not seen.any():  # nothing exceeds the noise, which is smallest in the longest window
        return lengths[-1]
    return lengths[_least_off(lengths, frequency[:, seen], error[:, seen])]


def _least_off(lengths: list[int], frequency: F64, error: F64) -> int:
    """Return the index of the best window, as `shortest_enough` defines it.

    If a frequency moves steadily, its mean over k batches is (k - 1) / 2 batches old. This is
    (k - j) / 2 batches more than for its mean over j < k batches. So the distance of the longer
    window from the present is (k - 1) / (k - j) times its distance from the shorter window.

    Args:
        lengths: the lengths of the windows in batches, ascending.
        frequency: the frequencies of items, float64 [windows, items].
        error: the standard deviations of these frequencies, float64 [windows, items].
    """
    off = np.zeros(len(lengths))
    for k, longer in enumerate(lengths):
        for j, shorter in enumerate(lengths[:k]):
            # The longer window holds the rounds of the shorter one, so the variance of the
            # difference is the difference of the variances.
            chance = _BEYOND * np.sqrt(np.maximum(error[j] ** 2 - error[k] ** 2, 0.0))
            beyond = float((np.abs(frequency[j] - frequency[k]) - chance).max())
            off[k] = max(off[k], beyond * (longer - 1) / (longer - shorter))
    return int(np.argmin(off + _OWN * error.max(axis=1)))


def _check_rounds(chosen: list[int], landed: dict[int, CountSketch]) -> None:
    if not chosen:
        raise InvalidInputError("a window must hold at least one round, got none")
    absent = [number for number in chosen if number not in landed]
    if absent:
        raise InvalidInputError(
            f"a window must be of rounds that landed, and round {absent[0]} did not; leave it out"
        )
    spec = landed[chosen[0]].spec
    if spec.num_batches == 1:
        return
    cut = set(_whole_batches(spec, landed, chosen)).difference(chosen)
    if cut:
        raise InvalidInputError(
            f"a window must be of whole batches, and round {min(cut)} has the signs of a round in"
            f" it; take it into the window, or use {opt.schedule('hybrid')}, without batches"
        )


class _Fits:
    """Makes the fits of a window's histories, each only once."""

    def __init__(
        self,
        landed: dict[int, CountSketch],
        domain: Domain,
        recovery: Recovery,
        chosen: list[int],
        make: Make | None,
    ) -> None:
        self._landed, self._domain, self._recovery = landed, domain, recovery
        self._make = make
        self._chosen = chosen
        self._made: dict[int, CampaignDecoder] = {}
        # The window's rounds come first, then the nearest in time, which are most similar. Of two
        # rounds at equal distance the earlier one comes first.
        low, high = chosen[0], chosen[-1]
        away = {number: max(low - number, number - high, 0) for number in landed}
        inside = set(chosen)
        self._order = sorted(landed, key=lambda m: (m not in inside, away[m], m))

    def lengths(self, most: int) -> list[int]:
        """Return the lengths of histories to try, in rounds, ascending; empty if none can help.

        Args:
            most: the most rounds of a history.
        """
        own, spec = len(self._chosen), self._landed[self._chosen[0]].spec
        number = min(most, LONGEST, _room(self._domain, spec.rows))
        # Rounds with equal signs do not help each other.
        if number <= own or spec.num_batches == 1 or not self._recovery.kind.fits_items:
            return []
        return sorted({min(own * times, number) for times in _TIMES} | {number})

    def nearest(self, length: int) -> list[int]:
        """Return the rounds of a history of this length, ascending.

        They are the window and the rounds nearest to it, `length` in all. Batches of which some
        rounds are included are completed, so that there may be more rounds.
        """
        spec = self._landed[self._chosen[0]].spec
        return _whole_batches(spec, self._landed, self._order[:length])

    def of(self, rounds: list[int]) -> CampaignDecoder:
        """Return the decoder of these rounds; the function `make` makes it, if it was given."""
        if self._make is not None:
            return self._make(rounds)
        return self._recovery.kind.make([self._landed[number] for number in rounds], self._domain)

    def fit(self, length: int) -> CampaignDecoder:
        """Return the decoder of the history of `length` rounds; each such decoder is made once."""
        if length not in self._made:
            self._made[length] = self.of(self.nearest(length))
        return self._made[length]

    def _places(self, decoder: FittedDecoder) -> Bools:
        spec = decoder.spec
        own = {spec.schedule.batch_of(number, spec.num_rounds) for number in self._chosen}
        found: Bools = np.isin(decoder.batches, sorted(own))
        return found

    def window(self, length: int) -> CampaignDecoder | None:
        """Return the decoder of the window that uses the fit of a history of `length` rounds.

        If this history has no fit, return the history's decoder if the history is the window
        itself, and otherwise None.
        """
        decoder = self.fit(length)
        if not isinstance(decoder, FittedDecoder) or not decoder.has_fit:
            return decoder if self.nearest(length) == self._chosen else None
        chosen = self._places(decoder)
        return decoder if chosen.all() else decoder.window(chosen)

    def rest(self, length: int) -> FittedDecoder | None:
        """Return the decoder of a history's rounds outside the window, from the history's fit.

        Returns None if the history has no fit, or if no client took part in these rounds.
        """
        decoder = self.fit(length)
        if not isinstance(decoder, FittedDecoder) or not decoder.has_fit:
            return None
        others = ~self._places(decoder)
        return decoder.window(others, learned=False) if decoder.clients[others].any() else None

    def best(self, lengths: list[int]) -> tuple[CampaignDecoder, int]:
        """Return the decoder of the window with the smallest errors, and its history's length.

        The errors are compared by the typical standard deviation, which phantoms calibrate. If
        several are nearly equal, the longest history is used. If no history has a fit, the window
        is decoded alone.
        """
        found: list[tuple[float, CampaignDecoder, int]] = []
        for length in lengths:
            decoder = self.window(length)
            if isinstance(decoder, FittedDecoder) and decoder.has_fit:
                found.append((_typical(decoder, self._domain), decoder, length))
        if not found:
            own = len(self._chosen)
            return self.fit(own), own
        least = min(error for error, *_ in found)
        _, decoder, length = [one for one in found if one[0] <= (1 + _EQUAL) * least][-1]
        return decoder, length


def _typical(decoder: FittedDecoder, domain: Domain) -> float:
    """Return the median standard deviation of the values of some candidates, in clients.

    They are at most 4096 candidates, evenly spaced in the domain.
    """
    step = -(-domain.size // _JUDGED)
    ids = Candidates(domain).ids(np.arange(0, domain.size, step))
    return float(np.median(decoder.measured(ids).stddev))
