"""Windows of streams: errors with and without history, coverage of limits, the window for now."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from scipy.special import ndtri

from experiments import drift, rounds, study
from experiments.drift import F64, Stream
from fedtally.recovery import changes, windows
from fedtally.recovery.decoders import Recovery
from fedtally.recovery.decoders.kind import CampaignDecoder, FittedDecoder
from fedtally.recovery.intervals import make_intervals
from fedtally.recovery.linear_system import Bools
from fedtally.recovery.shrinkage import ShrunkDecoder

LENGTHS = (1, 4, 12)  # of windows, in rounds
BAND = 500  # items of similar frequencies, whose coverage is one number
CONFIDENCE = 0.95
# Clients of a round of a real stream, and its noise in multiples of the noise of the laws.
REAL_CLIENTS, REAL_NOISE = 20_000, 2.0


class Scale(NamedTuple):
    """The size of a campaign made by law; of real tables, the sketch and the noise alone."""

    num_rounds: int
    clients: int
    size: int
    rows: int
    width: int


class Campaign(NamedTuple):
    """A stream that is decoded.

    Attributes:
        stream: its name in `drift.KINDS` or `drift.REAL`.
        noise: standard deviation of a counter of a round.
        seed: the seed of all draws.
        scale: its size.
        data: folder of the real tables; "" for none.
    """

    stream: str
    noise: float
    seed: int
    scale: Scale
    data: str = ""


class Task(Protocol):
    """What rows say of every task."""

    @property
    def seed(self) -> int:
        """The seed of all draws."""

    @property
    def noise(self) -> float:
        """The standard deviation of a counter of a round."""


def row(
    task: Task, plan: str, stream: str, window: str, what: str, value: float, band: int = -1
) -> study.Row:
    """Return one measured number; `band` is the band of its items, or -1."""
    return {
        "seed": task.seed,
        "plan": plan,
        "stream": stream,
        "noise": task.noise,
        "window": window,
        "what": what,
        "band": band,
        "value": value,
    }


def made(task: Campaign) -> Stream:
    """Return the campaign: the same for equal streams and seeds, but for the noise."""
    scale = task.scale
    rng = np.random.default_rng([task.seed, zlib.crc32(task.stream.encode())])
    if task.stream in drift.REAL:
        laws, people = drift.real(task.stream, Path(task.data)), REAL_CLIENTS
        noise = REAL_NOISE * task.noise
    else:
        laws = drift.laws(task.stream, scale.num_rounds, scale.size, rng)
        people, noise = scale.clients, task.noise
    counts = drift.deal(laws, people, rng)
    return drift.land(laws, counts, (scale.rows, scale.width), noise, rng)


def measure(task: Campaign) -> list[study.Row]:
    """Decode a campaign, and measure its windows, its lines and its choice of a window."""
    stream = made(task)
    fit = Recovery.BELIEF.kind.make(stream.sketches, stream.domain)
    assert isinstance(fit, FittedDecoder)
    plan = study.describe(stream.sketches[0].spec, int(stream.counts.sum()))
    parts = {
        f"last:{length}": _window(stream, length, task.noise)
        for length in LENGTHS
        if length < len(stream.counts)
    }
    parts |= {
        "each round": _line(stream, fit),
        "difference": _difference(stream, fit),
        "auto": _auto(stream, fit, task.noise),
    }
    return [
        row(task, plan, task.stream, name, *one) for name, said in parts.items() for one in said
    ]


Said = Iterator[tuple[str, float] | tuple[str, float, int]]


def _estimates(decoder: CampaignDecoder, stream: Stream, noise: float) -> F64:
    """Return the frequencies that are estimated: under noise, those of objective l2."""
    answers = ShrunkDecoder(decoder, stream.domain) if noise else decoder
    return answers.range(rounds.FIRST_ID, stream.domain.size) / decoder.num_clients


def errors(found: F64, truth: F64) -> tuple[float, float]:
    """Return the largest error and the l2 error."""
    return float(np.abs(found - truth).max()), float(np.linalg.norm(found - truth))


def _window(stream: Stream, length: int, noise: float) -> Said:
    chosen = windows.last(stream.sketches, length)
    held = stream.counts[chosen].sum(axis=0)
    truth = held / held.sum()
    for name, history in (("alone", 0), ("history", windows.LONGEST)):
        decoded = windows.decode(stream.sketches, stream.domain, chosen, Recovery.BELIEF, history)
        largest, l2 = errors(_estimates(decoded.decoder, stream, noise), truth)
        yield f"{name} largest", largest
        yield f"{name} l2", l2
    yield "rounds of the fit", float(len(decoded.history))
    yield "rounds of the prior", float(len(decoded.prior))
    some = [stream.sketches[m] for m in chosen]
    limits = make_intervals(decoded.limits, some, stream.domain, CONFIDENCE)
    low, high = limits.at(_ids(stream))
    slack = 1e-12  # limits of no width are compared in floating point
    yield from _by_band((low <= truth + slack) & (truth - slack <= high), truth)


def _by_band(holds: Bools, frequency: F64) -> Said:
    """Yield the share of the limits that hold, by band of items of falling frequency."""
    shares = holds.reshape(len(frequency), -1).mean(axis=1)[np.argsort(-frequency, kind="stable")]
    for start in range(0, len(shares) // BAND * BAND, BAND):
        yield "held", float(shares[start : start + BAND].mean()), start // BAND


def _ids(stream: Stream) -> range:
    return range(rounds.FIRST_ID, rounds.FIRST_ID + stream.domain.size)


def _line(stream: Stream, fit: FittedDecoder) -> Said:
    """Yield the coverage of the values of single rounds, no closer than a client."""
    if not fit.has_fit:
        return
    found = changes.round_values(fit, _ids(stream))
    z = float(-ndtri((1 - CONFIDENCE) / 2))
    away = np.abs(found.value - stream.counts.T)
    yield from _by_band(away <= np.maximum(z * found.stddev, 1.0), stream.counts.sum(axis=0) * 1.0)


def _difference(stream: Stream, fit: FittedDecoder) -> Said:
    """Yield the coverage of the difference between the last 4 rounds and the 4 before."""
    places = np.arange(len(stream.counts))
    if not fit.has_fit or len(places) < 8:
        return
    parts = [places >= len(places) - 4, (places >= len(places) - 8) & (places < len(places) - 4)]
    now, before = (fit.window(part, learned=False).measured(_ids(stream)) for part in parts)
    held = [stream.counts[part].sum(axis=0) for part in parts]
    people = [int(one.sum()) for one in held]
    found = changes.difference(now, people[0], before, people[1], CONFIDENCE)
    truth = held[0] / people[0] - held[1] / people[1]
    holds = (found.low <= truth) & (truth <= found.high)
    yield from _by_band(holds, (held[0] + held[1]) * 1.0)


def _auto(stream: Stream, fit: FittedDecoder, noise: float) -> Said:
    """Yield the errors of the frequency now in the window that the sums chose.

    They are divided by those of the best window in hindsight. All are windows of the fit of all
    rounds.
    """
    if not fit.has_fit:
        return
    number = len(stream.counts)
    lengths = [length for length in windows.LENGTHS if length < number] + [number]
    chosen = windows.shortest_enough(fit, stream.domain)
    found = []
    for length in lengths:
        part = np.arange(number) >= number - length
        window = fit if length == number else fit.window(part)
        found.append(errors(_estimates(window, stream, noise), stream.laws[-1]))
    taken, best = found[lengths.index(chosen)], np.min(found, axis=0)
    yield "rounds", float(chosen)
    yield "best for the largest", float(lengths[int(np.argmin([one[0] for one in found]))])
    yield "best for l2", float(lengths[int(np.argmin([one[1] for one in found]))])
    yield "largest ratio", taken[0] / float(best[0])
    yield "l2 ratio", taken[1] / float(best[1])
