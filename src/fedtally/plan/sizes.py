"""The size of a sketch (rows and width), for a target error tau or for a budget of bytes.

`size_by_model` finds the smallest size whose largest error exceeds tau with probability at most p.
`within` finds the size with the smallest error within a budget of bytes. Both predict errors with a
`Predictor`. `fedtally.plan.paper` has the sizes of the paper.

By default sizes are chosen for the errors of joint recovery, and belief propagation decodes the
answer. Belief propagation has smaller errors. The difference is a margin for frequencies that
differ from the assumed ones. If the frequencies come from a pilot, whose clients were drawn from
the same population, a smaller margin is enough. Then `size_by_answer` may find a smaller size, for
the errors of the decoder that answers. The margin of this size must still cover errors of the
pilot. A pilot's errors are largest if many items have nearly the same frequency, because a pilot
may not show such a group of items.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace

from scipy.special import ndtr

from fedtally.base import validate
from fedtally.errors import InvalidInputError, opt
from fedtally.kernels import MAX_WIDTH
from fedtally.plan.frequencies.distribution import Frequencies
from fedtally.plan.paper import Size, linear, minimax, oracle, two_phase
from fedtally.plan.predictor import FALL, JUMP, TELLING, Predictor
from fedtally.plan.trials import MOST_CELLS, Trials
from fedtally.recovery.decoding import kind_of, recovery_of
from fedtally.sketch import Schedule

__all__ = [
    "FALL",
    "FEW",
    "JUMP",
    "MARGIN",
    "RISK",
    "SHAPE",
    "TOO_UNCERTAIN",
    "Predictor",
    "Size",
    "UnreachableError",
    "linear",
    "minimax",
    "oracle",
    "size_by_answer",
    "size_by_model",
    "two_phase",
    "within",
]

MARGIN = 1.1  # the width is this factor above the predicted width
# The share of the failure probability p that predicted errors may use: they may exceed tau with
# probability RISK * p. The rest of p is for errors of a pilot.
RISK = 0.5
# A pilot is not used if the hardness of its frequencies (`Frequencies.hardness`: how wide a sketch
# they need) has a larger relative standard error.
TOO_UNCERTAIN = 0.5
FEW = 3.0  # a pilot shows little of items with fewer holders than this among its clients
# If the largest possible hardness is more than this times the estimated one, a message says that
# the width relies on a guess.
SHAPE = 1.5
_FACTOR = (
    2.0  # trials are run if the predicted width is at most this many times their largest width
)
# In `size_by_answer`, where another decoder than joint recovery decodes the answer, the error of
# joint recovery may be up to tau / SHARE.
SHARE = 0.9
# The share of p that the decoder of the answer may use: its error may exceed tau with probability
# TRUSTED * p. The share is small, because this error depends on rare items, about which a pilot
# tells little.
TRUSTED = 0.2


class UnreachableError(InvalidInputError):
    """No sketch meets the target error, or none fits the budget of bytes."""


def size_by_model(
    distribution: Frequencies,
    tau: float,
    predictor: Predictor,
    *,
    p: float = 0.1,
    rows: Iterable[int] | int | None = None,
    margin: float = MARGIN,
    risk: float = RISK,
    with_linf: bool = True,
) -> Size:
    """Return the smallest size that is predicted to meet `tau`, with a margin on the width.

    The smallest size is the one with the fewest counters, rows times width. If the frequencies come
    from a pilot that is too uncertain (`TOO_UNCERTAIN`), the result is the paper's size for the
    worst frequencies, with a message and without a predicted error.

    Args:
        distribution: the known frequencies.
        tau: the largest error that any frequency may have, above 0 and below 1.
        predictor: the predictor of errors; it knows the clients, rounds, decoder and noise.
        p: the probability with which the largest error may exceed tau, above 0 and below 1.
        rows: the numbers of rows to try, or one number. None: 3 .. 31 for the median decoder, 7 ..
            16 for joint recovery.
        margin: about the factor by which the width exceeds the smallest width that is predicted to
            meet tau, at least 1.
        risk: the share of p that the predicted error may use, 1e-6 .. 1; the rest is for errors of
            the frequencies.
        with_linf: whether to predict the largest error of the size, too. This takes as long as the
            search. If False, the error in the result is None.

    Raises:
        InvalidInputError: a value is out of its range.
        UnreachableError: no width up to 2^24 meets tau, for example because noise alone exceeds it.

    >>> distribution = Frequencies.from_frequencies([i**-1.5 / 2.6 for i in range(1, 10_001)])
    >>> predictor = Predictor(10_000, recovery="median")
    >>> size_by_model(distribution, 0.01, predictor, rows=15, margin=1.0, risk=1.0).width
    66
    """
    tau, p = validate.inside(tau=tau), validate.inside(p=p)
    margin, planned = validate.real(1.0, margin=margin), p * validate.real(1e-6, 1.0, risk=risk)
    searched = predictor.searched_rows(rows)
    if distribution.uncertainty(tau) > TOO_UNCERTAIN:
        return _worst_case(distribution, tau, predictor, p, searched)

    def fails(rows: int, width: int) -> bool:
        return any(one > planned for one in predictor.failures(distribution, tau, rows, width))

    found = _smallest(fails, searched)
    if found is None:
        raise UnreachableError(
            f"tau {tau:g} is not reached with a width of up to {MAX_WIDTH}: take a larger tau, more"
            " clients or less noise"
        )
    width = _tried(predictor, distribution, tau, planned, *found, margin)
    if width is None:
        width, most = min(math.ceil(found[1] * margin), MAX_WIDTH), min(2 * found[1] + 9, MAX_WIDTH)
        # The width with the margin may be predicted to fail, although the smaller width is not:
        # joint recovery fits other items at each width. Then take a slightly larger width.
        while fails(found[0], width) and width < most:
            width += max(1, width // 50)
    linf = predictor.linf(distribution, planned, found[0], width) if with_linf else None
    return Size("model", found[0], width, linf, _guessed(distribution, tau, predictor))


def _worst_case(
    distribution: Frequencies, tau: float, predictor: Predictor, p: float, searched: Sequence[int]
) -> Size:
    """Return the paper's size for the worst frequencies.

    It is for a pilot that is too uncertain. The message of the size tells this to the user.

    Args:
        distribution: the frequencies that the pilot suggests.
        tau: the largest error that any frequency may have.
        predictor: the predictor of errors.
        p: the probability with which the largest error may exceed tau.
        searched: the numbers of rows to try; if there are several, the paper chooses the number.

    Raises:
        UnreachableError: noise alone exceeds tau.
    """
    uncertainty = distribution.uncertainty(tau)
    size = minimax(
        tau,
        num_clients=predictor.num_clients,
        domain_size=distribution.domain_size,
        p=p,
        rows=searched[0] if len(searched) == 1 else None,
    )
    if _noise_exceeds(predictor, tau, size.rows, distribution.domain_size) > p:
        raise UnreachableError(f"tau {tau:g} is below what noise alone leaves, whatever the width")
    why = (
        "its sketch is too small"
        if math.isinf(uncertainty)
        else f"it is known to {uncertainty:.0%} at best"
    )
    message = (
        f"the pilot does not tell the width for tau {tau:g} ({why}): the worst case is assumed;"
        " take more clients"
    )
    return replace(size, message=message)


def _tried(
    predictor: Predictor,
    distribution: Frequencies,
    tau: float,
    p: float,
    rows: int,
    width: int,
    margin: float,
) -> int | None:
    """Return the smallest width that meets `tau` in simulated campaigns (trials), with a margin.

    Trials are run for sketches of at most `MOST_CELLS` counters. If `width` can be tried, but no
    tried width meets `tau`, the result is one more than the largest width that can be tried.

    Returns None if trials are not possible at all. Returns None, too, if `width` is too large for
    trials, and the largest width that can be tried misses `tau` or is below half of `width`.

    Args:
        predictor: the predictor of errors, which runs the trials.
        distribution: the known frequencies.
        tau: the largest error that any frequency may have.
        p: the probability with which this error may be exceeded.
        rows: the number of rows of the sketch.
        width: the smallest width that the error model predicts to meet tau.
        margin: the factor by which the result exceeds the smallest width, as in `size_by_model`.
    """
    tried: list[Trials] = []

    def fails(width: int) -> bool:
        trials = predictor.trials(distribution, rows, width)
        assert trials is not None
        like = min(tried, key=lambda one: abs(one.width - width), default=None)
        tried.append(trials)
        return trials.exceeds(tau, max(p, TELLING / predictor.repeats), predictor.repeats, like)

    most = MOST_CELLS // rows
    if (
        width > _FACTOR * most
        or predictor.trials(distribution, rows, 2) is None
        or (width > most and fails(most))
    ):
        return None
    high = min(width, most)
    if width <= most and fails(width):
        high += max(1, high // 8)
        while high <= most and fails(high):
            high += max(1, high // 8)
    else:  # the smallest width is usually a little below the predicted one: search from there
        low, step = max(high - 1, 1), 2
        while low > 1 and not fails(low):
            low, high, step = max(low - step, 1), low, 2 * step
        while high - low > 1:
            middle = max(math.isqrt(low * high), low + 1)
            low, high = (middle, high) if fails(middle) else (low, middle)
    # The margin is rounded, not rounded up: in a small sketch one more counter per row is often
    # more than the margin. The width stays at most `most`, because above it the error model
    # predicts the error, which may be larger.
    found = max(high, min(round(high * margin), most)) if high <= most else most + 1
    # If p is so small that no trial is expected to fail, trials show nothing: take at least the
    # width that the error model predicts.
    return found if p * predictor.repeats >= TELLING else max(found, math.ceil(width * margin))


def _noise_exceeds(predictor: Predictor, tau: float, rows: int, domain_size: int) -> float:
    """Return the probability that noise alone exceeds tau in the estimate of some item.

    An estimate is taken as the mean over the rows, so that its noise is smaller than a counter's.
    """
    scale = (
        predictor.noise_of(rows) * math.sqrt(predictor.num_rounds / rows) / predictor.num_clients
    )
    return (
        0.0
        if scale == 0.0
        else -math.expm1(domain_size * math.log1p(-min(2 * float(ndtr(-tau / scale)), 0.999)))
    )


def _guessed(distribution: Frequencies, tau: float, predictor: Predictor) -> str:
    """Return a note for the user if the size relies on a guess about rare items, otherwise ""."""
    if distribution.fit is None:
        return ""
    if tau * distribution.fit.clients < FEW:
        return (
            f"tau {tau:g} is {tau * distribution.fit.clients:.2g} of the pilot's"
            f" {distribution.fit.clients:,} clients: how many items are about as frequent hardly"
            " shows, and the width may be too small; take a larger pilot"
        )
    if kind_of(predictor.recovery).fits_items:
        if tau >= distribution.fit.resolved:
            return ""
        return (
            f"the pilot tells items below {distribution.fit.resolved:.2g} by their sum alone: "
            f"those below {min(tau, distribution.fit.resolved / 2):.2g} are taken to be alike, the "
            "hardest case for joint recovery; after a larger pilot fewer bytes may do"
        )
    if distribution.hardest(tau) <= SHAPE * distribution.hardness(tau):
        return ""
    return (
        f"the pilot does not show all items above tau {tau:g} one by one: were the tail no power"
        " law, the width could have to be up to"
        f" {distribution.hardest(tau) / distribution.hardness(tau):.1f} times larger; take more"
        " clients or a larger pilot"
    )


def _smallest(fails: Callable[[int, int], bool], rows: Sequence[int]) -> tuple[int, int] | None:
    """Return the rows and the width, at least 2, of the smallest sketch that does not fail.

    The smallest sketch has the fewest cells (counters), rows times width. Returns None if all
    sketches fail.

    Args:
        fails: a function that returns whether the sketch with these rows and this width fails.
        rows: the numbers of rows to try.
    """
    best: tuple[int, int] | None = None
    for one in rows:
        # Only sizes with fewer cells than the best so far are of interest. If the widest of them
        # fails, no other width with these rows is tried.
        high = MAX_WIDTH if best is None else min((best[0] * best[1] - 1) // one, MAX_WIDTH)
        if high < 2 or fails(one, high):
            continue
        low = 1
        while best is None and 2 * low < high:
            if not fails(one, 2 * low):
                high = 2 * low
                break
            low *= 2
        step = max(high // 16, 1)
        # For other rows the smallest width usually has slightly fewer cells than the best so far.
        while best is not None and high - step > low:
            if fails(one, high - step):
                low = high - step
                break
            high, step = high - step, 2 * step
        while high - low > 1:
            middle = max(math.isqrt(low * high), low + 1)
            low, high = (middle, high) if fails(one, middle) else (low, middle)
        best = one, high
    return best


def within(
    distribution: Frequencies,
    max_bytes: int,
    bytes_of: Callable[[int, int], int],
    predictor: Predictor,
    *,
    p: float = 0.1,
    rows: Iterable[int] | int | None = None,
    risk: float = RISK,
) -> Size:
    """Return the size with the smallest predicted largest error within a budget of bytes.

    Args:
        distribution: the known frequencies.
        max_bytes: the most bytes that a client may upload in its round.
        bytes_of: a function that returns the upload bytes for rows and width; they must not fall as
            the width grows.
        predictor: the predictor of errors; it knows the clients, rounds, decoder and noise.
        p: the probability with which the largest error may be exceeded, above 0 and below 1.
        rows: the numbers of rows to try, or one number; None as for `size_by_model`.
        risk: the share of p that the predicted error may use, 1e-6 .. 1.

    Raises:
        InvalidInputError: a value is out of its range.
        UnreachableError: not even a sketch of width 2 fits the budget.
    """
    planned = validate.inside(p=p) * validate.real(1e-6, 1.0, risk=risk)
    max_bytes = validate.integer(1, max_bytes=max_bytes)
    sizes = []
    for one in predictor.searched_rows(rows):
        most = bisect_right(
            range(1, MAX_WIDTH + 1), max_bytes, key=lambda width: bytes_of(one, width)
        )
        if most >= 2:
            sizes.append(
                (predictor.modelled_linf(distribution, planned, one, most), one * most, one, most)
            )
    if not sizes:
        least = min(bytes_of(one, 2) for one in predictor.searched_rows(rows))
        raise UnreachableError(
            f"{opt.max_bytes(max_bytes)} buys no sketch of width 2: give at least {least}"
        )
    _, _, one, width = min(sizes)
    linf = predictor.linf(distribution, planned, one, width)
    # `uncertainty` needs a tau above 0. If the predicted error is 0, use the error of one client.
    unknown = (
        distribution.uncertainty(min(max(linf, 1 / predictor.num_clients), 0.5)) > TOO_UNCERTAIN
    )
    message = (
        "the pilot is too small to predict so small an error: take more clients" if unknown else ""
    )
    return Size("budget", one, width, linf, message)


# ---- after a pilot, by the decoder that answers ----


@dataclass(frozen=True)
class Answering(Predictor):
    """A predictor for two decoders: the one that decodes the answer, and joint recovery.

    Args:
        answer: the name of the decoder that decodes the answer.
    """

    answer: str = ""

    def failures(
        self, distribution: Frequencies, tau: float, rows: int, width: int
    ) -> Iterator[float]:
        """Yield numbers that must all be at most p, so that the answer meets tau.

        The last number is for the decoder that answers: the probability that its error exceeds tau,
        divided by `TRUSTED`, because this decoder relies on rare items, about which a pilot tells
        little. The other numbers are for joint recovery: probabilities that its error exceeds tau /
        `SHARE` (`Predictor.failures`).
        """
        yield from super().failures(distribution, tau / SHARE, rows, width)
        known, numbers = distribution.rising
        sums = self._sums(distribution, rows, width)
        yield kind_of(self.answer).failure(known, sums, numbers, tau) / TRUSTED

    def modelled_linf(self, distribution: Frequencies, p: float, rows: int, width: int) -> float:
        """Return the larger of two errors: the answer's, and joint recovery's times `SHARE`.

        Joint recovery exceeds its error with probability p. The decoder that answers exceeds its
        error only with probability `TRUSTED` times p.
        """
        known, numbers = distribution.rising
        sums = self._sums(distribution, rows, width)
        own = kind_of(self.answer).predict(known, sums, numbers, p * TRUSTED).linf
        return max(SHARE * super().modelled_linf(distribution, p, rows, width), own)

    def answers(self, rows: int, width: int) -> bool:
        """Return whether a sketch of this size is large enough for the decoder that answers.

        It is large enough if it has at least `fewest_cells` counters, over all batches (groups of
        rounds that share all hashes and signs).
        """
        batches = Schedule.parse(self.schedule).num_batches(self.num_rounds)
        return rows * width * batches >= kind_of(self.answer).fewest_cells

    def _careful(self, distribution: Frequencies, tau: float) -> Frequencies:
        """Return the distribution unchanged, unlike `Predictor._careful`.

        `Predictor._careful` gives all rare items one common frequency, the hardest case for joint
        recovery. For the decoder that answers, this would not be careful: with such frequencies
        that decoder is better than joint recovery by the most.
        """
        return distribution


def size_by_answer(
    distribution: Frequencies,
    tau: float,
    predictor: Predictor,
    asked: str,
    *,
    p: float = 0.1,
    rows: Iterable[int] | int | None = None,
    with_linf: bool = True,
) -> Size | None:
    """Return the smallest size with which the decoder of the answer is predicted to meet tau.

    If the pilot is too uncertain (`TOO_UNCERTAIN`), the result is the paper's size, as for
    `size_by_model`. Returns None in these cases:

    - the frequencies are not from a pilot, or the pilot has too few clients for `tau` (`FEW`);
    - there is noise, clients may hold several items, or frequencies differ between rounds;
    - the decoder of the answer does not build on joint recovery (`rests_on`), for example because
      there are too many candidates;
    - the decoder of the answer is not the same for all numbers of rows in `rows`;
    - no size meets `tau`, or the smallest size is too small for the decoder of the answer
      (`Answering.answers`).

    Args:
        distribution: the frequencies that a pilot suggests.
        tau: the largest error that any frequency may have, above 0 and below 1.
        predictor: the predictor of the errors of joint recovery.
        asked: the name of the decoder that the user wants, or "auto".
        p: the probability with which the largest error may exceed tau, above 0 and below 1.
        rows: the numbers of rows to try, or one number; None as for `size_by_model`.
        with_linf: whether to predict the largest error of the size, too.
    """
    answering = _answering(distribution, tau, predictor, asked, predictor.searched_rows(rows))
    if answering is None:
        return None
    try:
        size = size_by_model(
            distribution,
            tau,
            answering,
            p=p,
            rows=rows,
            margin=1.0,
            risk=1.0,
            with_linf=with_linf,
        )
    except UnreachableError:
        return None
    if not answering.answers(size.rows, size.width):
        return None
    return replace(size, recovery=answering.answer, message="")


def _answering(
    distribution: Frequencies, tau: float, predictor: Predictor, asked: str, rows: list[int]
) -> Answering | None:
    """Return a predictor for the decoder that answers; None if its errors are not predictable."""
    fit, size = distribution.fit, distribution.domain_size
    if fit is None or fit.clients * tau < FEW:
        return None
    if distribution.max_items > 1 or distribution.heterogeneity > 1.0:
        return None
    if any(map(predictor.noise_of, rows)):
        return None
    batches = Schedule.parse(predictor.schedule).num_batches(predictor.num_rounds)
    answers = {recovery_of(asked, size, one, batches=batches) for one in rows}
    if len(answers) > 1 or not (answer := answers.pop()).kind.rests_on:
        return None
    given = {field.name: getattr(predictor, field.name) for field in fields(predictor)}
    # with `repeats` 0 no trials are run: trials would decode by joint recovery, not by `answer`
    return Answering(**given | {"repeats": 0, "recovery": answer.kind.rests_on}, answer=str(answer))
