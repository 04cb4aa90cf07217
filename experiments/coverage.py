"""How often the 95 % intervals of joint recovery hold, and how wide they are, by an item's rank.

Campaigns of 10 rounds with d = 100,000 items and N = 1,000,000 clients, or real tables with their
own d and N; without noise and with that of differential privacy (epsilon = 1, delta = 1e-6,
zero-out, one item a client), drawn by the package's sampler; every interval is compared with the
item's frequency among the clients that took part. Items are ranked by the population's frequencies
and counted in bands of ranks, apart for items on and off the support of the fit. A cell is one
population, schedule, size and kind of noise; each of its seeds draws clients, hashes and noise
anew.

The width of an interval is compared with an oracle's: 1.96 root mean square errors of the released
estimates of the same band. Where a whole band's estimates are exact to within a client, the
intervals' floor of one client rules; such cells (at least half of the half-widths at the floor) do
not count towards the bound on the width.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

import click
import numpy as np
import numpy.typing as npt

from experiments import options, output, promises, rounds
from experiments.privacy import add_noise, calibrated
from experiments.recovery import SCHEDULES
from fedtally.domain import IntegerRange
from fedtally.errors import InvalidInputError
from fedtally.privacy.mechanism import rounded_gaussian, skellam
from fedtally.recovery.decoders.joint.joint import JointDecoder
from fedtally.recovery.intervals import Limits, make_intervals
from fedtally.sketch import CountSketch, Schedule, SketchSpec

U64 = npt.NDArray[np.uint64]
NUM_ROUNDS = 10
LIGHT = 20_000
BANDS = (
    (0, 20),
    (20, 100),
    (100, 500),
    (500, 1000),
    (1000, 1500),
    (1500, 2500),
    (2500, 5000),
    (LIGHT, None),
)
LAWS = ("1.1", "1.5", "2", "zm")
REAL = {  # file, clients: as many as the study that the table stands for
    "gowalla": ("gowalla_us_grid.npz", 175_000),
    "brightkite": ("brightkite_us_grid.npz", 175_000),
    "c4": ("c4_count_surrogate.npz", 150_000),
    "sentiment140": ("sentiment140_words.parquet", 659_497),
}
REAL_ROUNDS = {"hours": "brightkite_us_hourly.npz", "decades": "us_baby_names.parquet"}
NOISES = ("off", "on", "skellam")
ROUNDS = (
    *("gamma 0.5", "gamma 2", "one round", "1..10", "1..100", "missing"),
    *("gamma 2, 1..10", "one round, 1..10"),
)
# The worst lies where the items are about to be found: there one more or less tips the others.
PLATEAUS = ("plateau:0.05:8", "plateau:0.1:9", "plateau:0.2:8", "plateau:0.2:12")
BATCHED = ("batched:2", "batched:5")
UNUSUAL_SIZES = ("3x1600", "4x1200", "6x800")  # few rows, even numbers of rows
ZERO = 1e-3  # clients: an error below is none

LEAST = 0.93
PLATEAU, OTHERS = "plateau", "others"  # the bands of a population that has a plateau
# fitted items beyond rank 20,000 are false positives almost all: the winner's curse
UNJUDGED = (("on", f"{LIGHT}-"), ("on", OTHERS))
LEAST_LIGHT_FITTED = 0.88
MOST_LIGHT = 0.975
WIDEST = 1.4
FEWEST = 40  # items that a share is judged on
KNOWN = 0.01  # standard error of the share of a single population


class Case(NamedTuple):
    """One cell of the experiment.

    Attributes:
        population: a law or table of `promises`, the name of a real table, or plateau:SHARE:Z
            (`plateau`).
        schedule: shared, fresh, hybrid or batched:B.
        rows: of the sketch.
        width: of the sketch.
        noise: off; on, central trust: rounded Gaussian, once in what a batch of rounds adds up to;
            or skellam, distributed trust: Skellam in the sum of every round.
        rounds: equal, or one of `ROUNDS`: how rounds differ.
    """

    population: str
    schedule: str
    rows: int
    width: int
    noise: str
    rounds: str = "equal"

    @property
    def size(self) -> str:
        """Rows and width, as they are given on the command line."""
        return f"{self.rows}x{self.width}"

    @property
    def flat(self) -> bool:
        """Whether the population is a plateau."""
        return self.population.startswith("plateau:")

    @property
    def raised(self) -> int:
        """The number of items on the plateau."""
        return max(1, int(float(self.population.split(":")[1]) * self.rows * self.width))


class Scale(NamedTuple):
    """The populations: items and clients of synthetic ones, folder of the tables, base seed."""

    items: int = 100_000
    clients: int = 1_000_000
    data: Path | None = None
    seed: int = 0


class Tally(NamedTuple):
    """Sums over the items of one band; errors and half-widths in clients.

    Attributes:
        items: how many.
        held: how many whose interval holds.
        fitted: how many on the support.
        fitted_held: how many of those whose interval holds.
        half: sum of the half-widths.
        squares: sum of squared errors of the released estimates.
        own: sum of squared errors of the leave-one-out values that the intervals are around.
        floor: how many half-widths are one client.
        zeros: how many estimates have no error.
        spread: the variance of `held`, from how campaigns of a cell differ.
    """

    items: float = 0.0
    held: float = 0.0
    fitted: float = 0.0
    fitted_held: float = 0.0
    half: float = 0.0
    squares: float = 0.0
    own: float = 0.0
    floor: float = 0.0
    zeros: float = 0.0
    spread: float = 0.0

    def coverage(self, which: str) -> tuple[float, int]:
        """Return the share of intervals that hold, and the number: `all`, `on` the support, `off`.

        >>> Tally(items=10, held=9, fitted=5, fitted_held=5).coverage("off")
        (0.8, 5)
        """
        held, number = {
            "all": (self.held, self.items),
            "on": (self.fitted_held, self.fitted),
            "off": (self.held - self.fitted_held, self.items - self.fitted),
        }[which]
        return held / number if number else float("nan"), int(number)

    def error(self, which: str) -> float:
        """Return the standard error of the share of intervals that hold.

        That of all items is over campaigns, since items of one campaign share its hashes. On and
        off the support it is that of as many independent intervals.
        """
        if which == "all":
            return float(np.sqrt(self.spread) / self.items)
        return float(np.sqrt(0.05 * 0.95 / self.coverage(which)[1]))

    def oracle(self, of: str = "squares") -> float:
        """Return the half-width, in clients, of an oracle that knows one sum of squared errors."""
        return float(1.96 * np.sqrt(getattr(self, of) / self.items))

    @property
    def at_floor(self) -> bool:
        """Whether the floor of one client rules: at least half of the half-widths."""
        return 2 * self.floor >= self.items


Tallies = dict[str, Tally]  # by band
Result = TypeVar("Result")
Cell = TypeVar("Cell", bound=tuple[object, ...])


def pool(tallies: Iterable[Tally]) -> Tally:
    """Return the sum."""
    return Tally(*(sum(column) for column in zip(*tallies, strict=True)))


# ---- one campaign ----


@functools.cache
def population(name: str, scale: Scale) -> tuple[rounds.F64, int]:
    """Return the rounds' laws by falling total, float64 [1 or rounds, d], and all clients.

    Rows are weighted by clients.

    Raises:
        InvalidInputError: a real table, and no folder or no such file.
    """
    if name not in (*REAL, *REAL_ROUNDS):
        return promises.law(name, scale.items, scale.data)[None], scale.clients
    file, clients = REAL[name] if name in REAL else (REAL_ROUNDS[name], scale.clients)
    if scale.data is None or not (scale.data / file).is_file():
        raise InvalidInputError(
            f"the population {name} needs the folder of {file}: name it with --data"
        )
    table = _read(scale.data / file)
    return table[:, np.argsort(-table.sum(axis=0), kind="stable")], clients


def plateau(case: Case, scale: Scale) -> rounds.F64:
    """Return a law of items alike above many others alike: float64 [1, d].

    The population is plateau:SHARE:Z. The items above the others are SHARE times as many as the
    cells, and each stands out by Z standard deviations of the errors that the others and the noise
    cause.
    """
    deviations = float(case.population.split(":")[2])
    batches = Schedule.parse(case.schedule).num_batches(NUM_ROUNDS)
    few, many = case.raised, scale.items - case.raised
    noise = batches * noise_variance(case)
    low, high = 0.0, scale.clients / few
    for _ in range(60):
        count = (low + high) / 2
        other = (scale.clients - few * count) / many
        # of the sum of squares of Poisson counts, each batch's own
        square = many * (other + other**2 / batches) / case.width + noise
        error = np.sqrt(square / case.rows)
        low, high = (count, high) if count < deviations * error else (low, count)
    other = (scale.clients - few * low) / many
    found: rounds.F64 = np.repeat([low, other], [few, many])[None] / scale.clients
    return found


def noise_variance(case: Case) -> float:
    """Return the variance of the noise in a counter of a batch's sum."""
    if case.noise == "off":
        return 0.0
    kind = {"on": "rounded-gaussian", "skellam": "skellam"}[case.noise]
    batches = Schedule.parse(case.schedule).num_batches(NUM_ROUNDS)
    draws = NUM_ROUNDS / batches if case.noise == "skellam" else 1.0
    return draws * calibrated(kind, case.rows).noise_variance


def _read(path: Path) -> rounds.F64:
    """Return a table of counts, or of shares: float64 [rounds, d], in all items that have any."""
    if path.suffix == ".parquet":
        from pyarrow import parquet

        columns = parquet.read_table(path)
        counts: rounds.F64 = columns["count"].to_numpy().astype(np.float64)
        if "year" not in columns.column_names:
            return counts.reshape(1, -1)
        items = np.unique(columns["name"].to_numpy(), return_inverse=True)[1]
        decade = columns["year"].to_numpy() // 10
        return _rounds(decade - decade.min(), items, counts)
    with np.load(path) as arrays:
        if "hour" in arrays:
            items = np.unique(arrays["hour_cell"], return_inverse=True)[1]
            return _rounds(arrays["hour"], items, arrays["hour_count"].astype(float))
        [name] = {"reconstructed", "counts", "pmf"} & set(arrays)
        table: rounds.F64 = arrays[name].astype(float).reshape(1, -1)
        return table


def _rounds(place: rounds.I64, items: rounds.I64, counts: rounds.F64) -> rounds.F64:
    table = np.zeros((int(place.max()) + 1, int(items.max()) + 1))
    np.add.at(table, (place, items), counts)
    return table


def draw(laws: rounds.F64, clients: int, kind: str, rng: np.random.Generator) -> rounds.I64:
    """Draw how many clients hold each item in each round: int64 [rounds, d].

    Args:
        laws: float64 [1, d], one law for 10 rounds of equal size; or [rounds, d], counts of each
            round.
        clients: all rounds together, about.
        kind: equal; `gamma C`, each item's share in each round times a gamma variable of mean 1 and
            coefficient of variation C; `one round`, each item in one round only; `1..K`, rounds
            from 1 to K parts in equal ratios; or several of these, with commas.
        rng: what draws.
    """
    if len(laws) > 1:
        return np.stack(
            [rng.multinomial(round(clients * p.sum() / laws.sum()), p / p.sum()) for p in laws]
        )
    parts = np.ones(NUM_ROUNDS)
    shares: rounds.F64 = np.repeat(laws, NUM_ROUNDS, axis=0)
    for one in kind.split(", "):
        first, _, last = one.partition(" ")
        if first == "gamma":
            shares *= rng.gamma(float(last) ** -2, size=shares.shape)
        elif one == "one round":
            held_in = rng.integers(NUM_ROUNDS, size=shares.shape[1])
            shares *= np.arange(NUM_ROUNDS)[:, None] == held_in
        elif one.startswith("1.."):
            parts = rng.permutation(np.geomspace(1, float(one[3:]), NUM_ROUNDS))
    sizes = (clients * parts / parts.sum()).astype(int)
    return np.stack([rng.multinomial(n, p / p.sum()) for n, p in zip(sizes, shares, strict=True)])


def sums(
    counts: rounds.I64, ids: U64, schedule: str, rows: int, width: int, rng: np.random.Generator
) -> list[CountSketch]:
    """Return the sum of every round.

    Args:
        counts: int64 [rounds, d], how many clients hold each item.
        ids: uint64 [d], the items' ids.
        schedule: shared, fresh, hybrid or batched:B.
        rows: of the sketch.
        width: of the sketch.
        rng: draws the public seed.
    """
    spec = SketchSpec(rows, width, Schedule.parse(schedule), len(counts), rng.bytes(32))
    found = []
    for m, held in enumerate(counts):
        found.append(CountSketch(spec, m))
        found[-1].add(ids, held)
    return found


def protect(sketches: Sequence[CountSketch], noise: str, rng: np.random.Generator) -> None:
    """Add the noise of differential privacy to the sums that landed, in place.

    Args:
        sketches: of one campaign.
        noise: off, on or skellam: see `Case`. Rounds with equal hashes are added up when they are
            decoded, so that what is drawn once for a batch may lie in any of them.
        rng: makes the keys.
    """
    spec = sketches[0].spec
    if noise == "on":
        batches = {
            spec.schedule.batch_of(sketch.round, spec.num_rounds): sketch for sketch in sketches
        }
        add_noise(
            batches.values(),
            rounded_gaussian(calibrated("rounded-gaussian", spec.rows).noise_variance),
            rng,
        )
    elif noise == "skellam":
        add_noise(sketches, skellam(calibrated("skellam", spec.rows).noise_variance), rng)


def campaign(case: Case, scale: Scale, repeat: int) -> tuple[rounds.I64, U64, list[CountSketch]]:
    """Run one campaign; return counts of the rounds that landed, the items' ids, and the sums.

    Ids are in random order: an order by frequency would settle ties in favour of what is there.
    """
    rng = np.random.default_rng([scale.seed, repeat, zlib.crc32(repr(tuple(case)).encode())])
    laws, clients = (
        (plateau(case, scale), scale.clients) if case.flat else population(case.population, scale)
    )
    counts = draw(laws, clients, case.rounds, rng)
    ids = rounds.FIRST_ID + rng.permutation(counts.shape[1]).astype(np.uint64)
    sketches = sums(counts, ids, case.schedule, case.rows, case.width, rng)
    if case.rounds == "missing":
        landed = np.sort(rng.permutation(len(counts))[2:])
        counts, sketches = counts[landed], [sketches[m] for m in landed]
    protect(sketches, case.noise, rng)
    return counts, ids, sketches


def holds(limits: Limits, truth: rounds.I64, clients: int) -> npt.NDArray[np.bool_]:
    """Return which intervals contain the truth, to a millionth of a client: bool [d].

    Args:
        limits: frequencies.
        truth: int64 [d], counts.
        clients: all.
    """
    within: npt.NDArray[np.bool_] = (limits.low * clients - 1e-6 <= truth) & (
        truth <= limits.high * clients + 1e-6
    )
    return within


def measure(case: Case, scale: Scale, repeat: int) -> Tallies:
    """Run one campaign and count, in every band, which intervals hold."""
    counts, ids, sketches = campaign(case, scale, repeat)
    size, clients, truth = counts.shape[1], int(counts.sum()), counts.sum(axis=0)
    domain = IntegerRange(rounds.FIRST_ID, size)
    decoder = JointDecoder(sketches, domain)
    limits = make_intervals(decoder, sketches, domain).at(ids)
    held = holds(limits, truth, clients)
    items = decoder.fit.leave_one_out(ids)
    half = (limits.high - limits.low) * clients / 2
    errors = decoder.at(ids) - truth
    own = items.values * clients - truth
    columns = (
        *(np.ones(size), held, items.fitted, held & items.fitted),
        *(half, errors**2, own**2, half < 1 + ZERO, np.abs(errors) < ZERO),
    )
    bands = {f"{first}-{last or ''}": (first, last) for first, last in BANDS if first < size}
    if case.flat:
        bands = {PLATEAU: (0, case.raised), OTHERS: (case.raised, None)}
    return {
        band: Tally(*(float(column[first:last].sum()) for column in columns))
        for band, (first, last) in bands.items()
    }


def repeated(case: Case, scale: Scale, repeats: int) -> Tallies:
    """Return the tallies of one cell, over all its seeds."""
    runs = [measure(case, scale, repeat) for repeat in range(repeats)]
    found = {band: pool(one[band] for one in runs) for band in runs[0]}
    if repeats == 1:  # nothing to compare it with
        return {band: total._replace(spread=np.inf) for band, total in found.items()}
    return {
        band: total._replace(
            spread=repeats * float(np.var([one[band].held for one in runs], ddof=1))
        )
        for band, total in found.items()
    }


def in_turn(
    cases: Sequence[Cell], work: Callable[[Cell], Result], jobs: int
) -> Iterator[tuple[Cell, Result]]:
    """Yield every case with its result, in order, by several processes; report the progress."""
    with ProcessPoolExecutor(jobs) if jobs > 1 else contextlib.nullcontext() as workers:
        results = map(work, cases) if workers is None else workers.map(work, cases)
        for number, (case, result) in enumerate(zip(cases, results, strict=True), start=1):
            click.echo(f"{number}/{len(cases)} {' '.join(map(str, case))}", err=True)
            yield case, result


# ---- what is said of it ----


def line(tallies: Sequence[Tally]) -> dict[str, object]:
    """Return coverage, numbers and widths of one band, pooled over cells: a row of the table.

    The pooled width is over the cells where the floor of one client does not rule, each against its
    own oracle; a dash where it rules in all.
    """
    total = pool(tallies)
    shares = {which: total.coverage(which) for which in ("all", "on", "off")}
    return {
        **{which: share if number else "." for which, (share, number) in shares.items()},
        "items": shares["all"][1],
        "on S": shares["on"][1],
        "width": _text(width(tallies)),
        "of own": _text(width(tallies, "own")),
        "at floor": total.floor / total.items,
        "zeros": total.zeros / total.items,
    }


def width(tallies: Sequence[Tally], of: str = "squares") -> float | None:
    """Return the mean half-width over the oracle's, where the floor does not rule, or None.

    >>> width([Tally(items=100, half=392, squares=100), Tally(items=100, half=100, floor=100)])
    2.0
    """
    wide = [tally for tally in tallies if not tally.at_floor]
    if not wide:
        return None
    oracle = sum(t.items * t.oracle(of) for t in wide)
    return sum(t.half for t in wide) / oracle if oracle else float("inf")


def _text(figure: float | None) -> float | str:
    return "-" if figure is None else figure


class Check(NamedTuple):
    """One bound: its subject, the worst figure with its place, and whether it holds, if judged."""

    what: str
    figure: float | None
    where: str
    bound: str
    holds: bool | None


def checks(found: dict[Case, Tallies]) -> list[Check]:
    """Return the bounds on one schedule and size, over cells of all populations and noises."""
    bands = list(dict.fromkeys(band for tallies in found.values() for band in tallies))
    light = f"{LIGHT}-"
    by_band = {
        band: [tallies[band] for tallies in found.values() if band in tallies] for band in bands
    }
    made = []
    for which in ("all", "on", "off"):
        shares = [
            (*pool(by_band[band]).coverage(which), f"rank {band}")
            for band in bands
            if (which, band) not in UNJUDGED
        ]
        made.append(_least(f"coverage, {which}", shares, LEAST))
    shares = [
        (*pool(by_band[band]).coverage("on"), f"rank {band}") for band in bands if band == light
    ]
    made.append(_least(f"coverage, on, rank {LIGHT:,} and beyond", shares, LEAST_LIGHT_FITTED))
    cells = [
        (case, band, tally) for case, tallies in found.items() for band, tally in tallies.items()
    ]
    single = [
        (*tally.coverage(which), f"{_place(case, band)}, {which}")
        for case, band, tally in cells
        for which in ("on", "off")
    ]
    made.append(_least("coverage, lowest of one population", single, None))
    uncertain = [
        (tally.coverage("all")[0], _place(case, band), tally.at_floor)
        for case, band, tally in cells
        if band == light and tally.zeros <= 0.9 * tally.items
    ]
    outside = [(share, place) for share, place, at_floor in uncertain if not at_floor]
    made.append(_most("coverage, light, of one population", outside, MOST_LIGHT))
    made.append(_most("the same, at the floor too", [place[:2] for place in uncertain], None))
    made.append(_most("width", [(width(by_band[band]), f"rank {band}") for band in bands], WIDEST))
    for what, of in (
        ("width, of one population", "squares"),
        ("the same, to the errors of its own middle", "own"),
    ):
        made.append(
            _most(
                what,
                [(width([tally], of), _place(case, band)) for case, band, tally in cells],
                None,
            )
        )
    return made


def _place(case: Case, band: str) -> str:
    return f"{case.population} noise {case.noise} rank {band}"


def _least(what: str, shares: Sequence[tuple[float, int, str]], bound: float | None) -> Check:
    judged = [
        (share, f"{where}, {number:,} items") for share, number, where in shares if number >= FEWEST
    ]
    if not judged:
        return Check(what, None, "too few items", "", None)
    share, where = min(judged)
    return Check(
        what,
        share,
        where,
        *("", None) if bound is None else (f"at least {bound:g}", share >= bound),
    )


def _most(what: str, figures: Sequence[tuple[float | None, str]], bound: float | None) -> Check:
    judged = [(figure, where) for figure, where in figures if figure is not None]
    if not judged:
        return Check(what, None, "errors are zero, or within the floor of one client", "", None)
    figure, where = max(judged)
    return Check(
        what,
        figure,
        where,
        *("", None) if bound is None else (f"at most {bound:g}", figure <= bound),
    )


def lowest(found: dict[Case, Tallies], bands: Sequence[str]) -> dict[str, object]:
    """Return the coverage of every band, pooled over cells, and the lowest with its place.

    `of one` is the lowest of a single population that is known to .01.
    """
    pooled = {
        band: pool(tallies[band] for tallies in found.values() if band in tallies)
        for band in bands
        if any(band in tallies for tallies in found.values())
    }
    places = [
        (*pooled[band].coverage(which), band, which)
        for band in pooled
        for which in ("all", "on", "off")
        if (which, band) not in UNJUDGED
    ]
    share, number, band, which = min(place for place in places if place[1] >= FEWEST)
    single = [
        (tally.coverage("all")[0], f"{case.population}, {one}")
        for case, tallies in found.items()
        for one, tally in tallies.items()
        if tally.error("all") <= KNOWN
    ]
    alone, where = min(single, default=(".", ""))
    shares: dict[str, object] = {
        one: pooled[one].coverage("all")[0] if one in pooled else "." for one in bands
    }
    return shares | {
        "lowest": share,
        "+-": pooled[band].error(which),
        "of": f"{band}, {which} {number:,}",
        "of one": alone,
        "which": where,
        "width": _text(width(list(pooled.values()))),
    }


# ---- the command ----


def main_cases(
    populations: Sequence[str],
    schedules: Sequence[str],
    sizes: Sequence[str],
    noises: Sequence[str],
) -> list[Case]:
    """Return the cells whose bounds are judged."""
    return [
        Case(name, schedule, *parse_size(size), noise)
        for schedule in schedules
        for size in sizes
        for name in populations
        for noise in noises
    ]


def robust_cases(
    populations: Sequence[str],
    schedules: Sequence[str],
    sizes: Sequence[str],
    noises: Sequence[str],
    real: bool,
) -> list[Case]:
    """Return unusual cells; rounds that differ matter where a fit tells rounds apart."""
    apart = [schedule for schedule in schedules if schedule != "shared"]
    batched = [schedule for schedule in schedules if schedule not in SCHEDULES]
    return [
        *(
            case._replace(rounds=kind)
            for kind in ROUNDS
            for case in main_cases(populations, apart, sizes, noises)
        ),
        *main_cases(populations, batched, sizes, noises),
        *main_cases(populations, schedules, sizes, ("skellam",)),
        *main_cases(populations, schedules, UNUSUAL_SIZES, noises),
        *(main_cases(tuple(REAL_ROUNDS), schedules, sizes, noises) if real else ()),
    ]


def parse_size(size: str) -> tuple[int, int]:
    """Return rows and width.

    >>> parse_size("5x1000")
    (5, 1000)
    """
    rows, cross, wide = size.partition("x")
    if not (cross and rows.isdigit() and wide.isdigit()):
        raise InvalidInputError(f"--size must be rows x width, for example 5x1000, got {size!r}")
    return int(rows), int(wide)


def _key(case: Case) -> tuple[str, str]:
    return case.schedule, case.size


def _robust_key(case: Case) -> tuple[str, ...]:
    if case.flat:
        return case.population, case.rounds, case.schedule, case.size, case.noise
    what = f"real rounds, {case.population}" if case.population in REAL_ROUNDS else case.rounds
    return what, case.schedule, case.size, case.noise


def group(
    found: dict[Case, Tallies], key: Callable[[Case], tuple[str, ...]]
) -> dict[tuple[str, ...], dict[Case, Tallies]]:
    """Return the cells by what they have in common."""
    groups: dict[tuple[str, ...], dict[Case, Tallies]] = {}
    for case, tallies in found.items():
        groups.setdefault(key(case), {})[case] = tallies
    return groups


def report(found: dict[Case, Tallies]) -> bool:
    """Print the table and the bounds of every schedule and size; return whether all bounds hold."""
    table, judged = [], []
    for (schedule, size), cells in group(found, _key).items():
        bands = dict.fromkeys(band for tallies in cells.values() for band in tallies)
        table += [
            {"schedule": schedule, "size": size, "rank": band}
            | line([tallies[band] for tallies in cells.values() if band in tallies])
            for band in bands
        ]
        judged += [(schedule, size, check) for check in checks(cells)]
    output.show(table)
    click.echo(
        "coverage of all items, on and off the support; half-widths over the oracle's for the"
        " released estimates, and"
    )
    click.echo(
        "for the intervals' own middles, where the floor of one client does not rule; shares of"
        " half-widths at that"
    )
    click.echo("floor, of estimates without error\n")
    for schedule, size, check in judged:
        verdict = {True: "PASS", False: "MISS", None: "----"}[check.holds]
        figure = [] if check.figure is None else [f"{check.figure:.4f}", check.bound]
        words = ", ".join(filter(None, [*figure, check.where]))
        click.echo(f"{verdict}  {schedule} {size}  {check.what}: {words}")
    return all(check.holds is not False for _, _, check in judged)


def report_lowest(found: dict[Case, Tallies]) -> bool:
    """Print a line for every kind of rounds, or plateau, schedule, size and noise.

    Return whether every band holds in as many cases as it must.
    """
    flat = ["population"] if any(case.flat for case in found) else []
    names = (*flat, "rounds", "schedule", "size", "noise")
    bands = list(dict.fromkeys(band for tallies in found.values() for band in tallies))
    lines = {
        key: dict(zip(names, key, strict=True)) | lowest(alike, bands)
        for key, alike in group(found, _robust_key).items()
    }
    output.show(list(lines.values()))
    click.echo(
        "coverage by band, pooled over populations; the lowest of a band, over all items, on or off"
        " the support,"
    )
    click.echo(
        "with its standard error: over campaigns for all items, else of as many independent items;"
        " the lowest of"
    )
    click.echo(f"one population that is known to {KNOWN:g}; half-widths over the oracle's")
    shares = [line[band] for line in lines.values() for band in bands]
    return all(share >= LEAST for share in shares if isinstance(share, float))


def details(found: dict[Case, Tallies]) -> list[dict[str, object]]:
    """Return one row per cell and band, for a file."""
    table = []
    for case, tallies in found.items():
        for band, tally in tallies.items():
            row = case._asdict() | {"rank": band} | tally._asdict()
            row |= {which: tally.coverage(which)[0] for which in ("all", "on", "off")}
            table.append(
                row
                | {
                    "oracle": tally.oracle(),
                    "half/oracle": width([tally]),
                    "half/own": width([tally], "own"),
                }
            )
    return table


@click.command("coverage")
@options.quick(
    laws=("1.5",), sizes=("5x200",), noises=("off",), domain_size=2_000, clients=20_000, repeats=1
)
@options.schedules(help="[default: shared, fresh, hybrid; robustness: batched too]")
@options.sizes(help="Rows x width.  [default: 5x1000, 16x200, 16x1000]")
@options.laws(
    help="An exponent, zm, a real table, or plateau:SHARE:Z, so many items as a share of the cells"
    " that stand out by Z standard deviations; or a law of promises. [default: 1.1, 1.5, 2, zm;"
    " tables with --data]"
)
@click.option(
    "--rounds",
    "kinds",
    multiple=True,
    help="How rounds differ: one of " + "; ".join(ROUNDS) + ". Bands are judged pooled over laws.",
)
@click.option("--noise", "noises", multiple=True, type=click.Choice(NOISES), default=("off", "on"))
@options.data()
@click.option(
    "--robustness",
    is_flag=True,
    help="Measure other rounds, batches, noise and sizes instead.",
)
@click.option(
    "--plateaus", is_flag=True, help="Measure items alike about the threshold of the fit instead."
)
@options.domain_size(100_000, help="Of the synthetic populations.")
@options.clients(1_000_000, help="Of the synthetic populations.")
@options.repeats(8, help="Seeds of each cell.")
@options.seed
@options.jobs
@options.table
def command(
    schedules: tuple[str, ...],
    sizes: tuple[str, ...],
    laws: tuple[str, ...],
    kinds: tuple[str, ...],
    noises: tuple[str, ...],
    data: Path | None,
    robustness: bool,
    plateaus: bool,
    domain_size: int,
    clients: int,
    repeats: int,
    seed: int,
    jobs: int,
    path: Path | None,
) -> None:
    """Count how often the intervals of joint recovery hold; fail where a bound does not."""
    output.check_path(path)
    for kind in kinds:
        if kind not in ("equal", *ROUNDS):
            raise InvalidInputError(
                f"--rounds must be equal or one of {'; '.join(ROUNDS)}, got {kind!r}"
            )
    work = functools.partial(
        repeated, scale=Scale(domain_size, clients, data, seed), repeats=repeats
    )
    if robustness:
        schedules, sizes = schedules or (*SCHEDULES, *BATCHED), sizes or ("5x1000", "16x200")
        cases = robust_cases(laws or LAWS, schedules, sizes, noises, data is not None)
    elif plateaus:
        cases = main_cases(
            [law for law in laws if law.startswith("plateau:")] or PLATEAUS,
            schedules or ("shared", "hybrid", "batched:2"),
            sizes or ("5x500", UNUSUAL_SIZES[0]),
            noises,
        )
    else:
        populations = laws or (LAWS if data is None else (*LAWS, *REAL))
        cases = main_cases(
            populations, schedules or SCHEDULES, sizes or ("5x1000", "16x200", "16x1000"), noises
        )
    if kinds and not robustness:
        cases = [case._replace(rounds=kind) for kind in kinds for case in cases]
    found = dict(in_turn(cases, work, jobs))
    output.save(details(found), path)
    if robustness:
        report_lowest(found)
    elif not (report_lowest(found) if plateaus or kinds else report(found)):
        sys.exit(1)
