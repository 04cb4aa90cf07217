"""Windows and flags of frequencies that change, beside what they are held to.

Six kinds of drift (`experiments.drift`) in 48 rounds of 5,000 clients, d = 20,000 items, hybrid
5 x 400, without noise and with noise of standard deviation 10 on each counter of a round; real
streams with `--data`, of 20,000 clients a round, and twice that noise. *Alone* is a window without
history; under noise both answers use objective l2. Errors are of all candidates, against
frequencies among the window's own clients, and are means over seeds.

Limits are of 95 %. Their coverage is the share that holds in each band of 500 items, over seeds:
limits of windows; values of each round, read from one fit; differences of the last four rounds and
the four before. `auto` is the window that the sums choose for the frequency now. Its error is
divided by that of the best window in hindsight, both read from one fit of all rounds.

Flags are at alpha = .05. Quiet streams have 24 rounds of 1,000 clients, d = 2,000, hybrid 5 x 100.
Changed streams are decoded anew after each round from the change on, at two thirds of the rounds.

Bounds are for this size, and for at least 4 seeds, 400 quiet streams, 40 watched ones and 7 changed
ones of each kind: smaller runs are not judged.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from experiments import drift, options, stream_flags, study
from experiments import stream_windows as windows
from experiments.stream_flags import Changed, Quiet
from experiments.stream_windows import Campaign, Scale

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FULL = Scale(48, 5000, 20_000, 5, 400)
QUIET_SCALE = Scale(24, 1000, 2000, 5, 100)
SEEDS, QUIET, WATCHED, CHANGED = 4, 400, 40, 7  # the fewest that are judged
STILL = ("none", "step", "linear", "periodic", "births")  # kinds whose past tells of a window
_FEW_BIRTHS = {"births": 0.95}
# Ratios of errors with history and alone: window -> largest, l2, of the kinds above.
EXACT_BOUNDS = {"last:1": (0.8, 0.82), "last:4": (0.9, 0.86), "last:12": (1.0, 0.95)}
SPIKES_BOUND = 1.1
COVERAGE = (0.93, 0.97)
AUTO_LARGEST, AUTO_L2 = 1.5, 1.4  # the first in all kinds but one
FALSE = {False: 8, True: 2}  # of the quiet streams, and of those that are watched
DELAYS = {"1 %, flagged after": 4.0, ".4 %, flagged after": 9.0}  # rounds, medians
MISSED = "MISSED"
_COLORS = {"last:1": "#0969DA", "last:4": "#8250DF", "last:12": "#24292F"}
Table = list[study.Row]
Groups = dict[tuple[Any, ...], list[float]]


def measure(task: Campaign | Quiet | Changed) -> list[study.Row]:
    """Return the rows of a task."""
    if isinstance(task, Campaign):
        return windows.measure(task)
    if isinstance(task, Quiet):
        return stream_flags.measure_quiet(task)
    return stream_flags.measure_changed(task)


def bound(stream: str, noise: float, window: str, what: str) -> float | None:
    """Return the bound on the ratio of errors with history and alone; None where there is none.

    >>> bound("births", 0.0, "last:1", "largest"), bound("births", 10.0, "last:1", "largest")
    (0.8, 0.95)
    """
    if stream == "spikes":
        return SPIKES_BOUND
    if stream not in STILL:
        return None
    if not noise:
        return EXACT_BOUNDS[window][what == "l2"]
    noisy = {
        ("last:1", "l2"): 0.75,
        ("last:1", "largest"): _FEW_BIRTHS.get(stream, 0.65),
        ("last:4", "l2"): 0.85,
    }
    return noisy.get((window, what))


def _verdict(value: float, most: float | None, judged: bool, name: str = "") -> study.Row:
    """Return the columns of a bound and of what came of it; none where nothing is judged."""
    if not judged:
        return {}
    said = "" if most is None else "met" if value <= most else MISSED
    return {f"{name}bound": "" if most is None else most, f"{name}verdict": said}


def _grouped(rows: Sequence[study.Row], *keys: str) -> Groups:
    found: Groups = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in keys), []).append(row["value"])
    return found


def _ratios(rows: Sequence[study.Row]) -> Iterator[tuple[str, float, str, dict[str, list[float]]]]:
    """Yield the stream, the noise, the window and all that was measured of its errors."""
    found = _grouped(rows, "stream", "noise", "window", "what")
    cells = [key[:3] for key in found if key[3] == "alone largest"]
    for cell in cells:
        yield *cell, {key[3]: values for key, values in found.items() if key[:3] == cell}


def errors(rows: Sequence[study.Row], judged: bool) -> Table:
    """Return the errors of windows with history and alone, and their ratios."""
    table: Table = []
    for stream, noise, window, found in _ratios(rows):
        line: study.Row = {"stream": stream, "noise": noise, "window": window}
        for what, unit in (("largest", 1e-5), ("l2", 1e-4)):
            alone, helped = (
                float(np.mean(found[f"{name} {what}"])) for name in ("alone", "history")
            )
            ratio = helped / alone if alone else 1.0
            line |= {f"{what} alone": alone / unit, what: helped / unit, f"{what} ratio": ratio}
            line |= _verdict(ratio, bound(stream, noise, window, what), judged, f"{what} ")
        used = sorted({int(number) for number in found["rounds of the fit"]})
        with_prior = np.count_nonzero(found["rounds of the prior"])
        line |= {"fit": "/".join(map(str, used)), "with prior": int(with_prior)}
        table.append(line)
    return table


def coverage(rows: Sequence[study.Row], judged: bool) -> Table:
    """Return the least and the largest share of limits that hold in a band."""
    held = [row for row in rows if row["what"] == "held"]
    bands = {
        key: float(np.mean(values))
        for key, values in _grouped(held, "stream", "noise", "window", "band").items()
    }
    table: Table = []
    for cell in dict.fromkeys(key[:3] for key in bands):
        shares = [share for key, share in bands.items() if key[:3] == cell]
        line: study.Row = dict(zip(("stream", "noise", "window"), cell, strict=True))
        line |= {"bands": len(shares), "least": min(shares), "mean": float(np.mean(shares))}
        line |= {"largest": max(shares)}
        outside = sum(not COVERAGE[0] <= share <= COVERAGE[1] for share in shares)
        line |= {"outside .93 to .97": outside}
        table.append(line | ({"verdict": MISSED if outside else "met"} if judged else {}))
    return table


def auto(rows: Sequence[study.Row], judged: bool) -> Table:
    """Return the errors of the chosen window over those of the best one."""
    found = _grouped([row for row in rows if row["window"] == "auto"], "stream", "noise", "what")
    table: Table = []
    for stream, noise in dict.fromkeys(key[:2] for key in found):
        said = {what: found[stream, noise, what] for _, _, what in found}
        line: study.Row = {"stream": stream, "noise": noise}
        for name in ("rounds", "best for the largest", "best for l2"):
            line[name] = "/".join(str(int(value)) for value in said[name])
        known = stream in drift.KINDS
        for what, most in (("largest", AUTO_LARGEST), ("l2", AUTO_L2)):
            line[f"{what} ratio"] = float(np.mean(said[f"{what} ratio"]))
            line |= _verdict(line[f"{what} ratio"], most if known else None, judged, f"{what} ")
        table.append(line)
    return _but_one(table)


def _but_one(table: Table) -> Table:
    """Let the largest error of one kind at each noise exceed its bound."""
    for noise in {line["noise"] for line in table}:
        over = [
            line
            for line in table
            if line["noise"] == noise and line.get("largest verdict") == MISSED
        ]
        if len(over) == 1:
            over[0]["largest verdict"] = "the one that may"
    return table


def quiet(rows: Sequence[study.Row], judged: bool) -> Table:
    """Return how many quiet streams were flagged, and how near to it the others were."""
    found = _grouped([row for row in rows if row["stream"].startswith("quiet")], "stream", "what")
    table: Table = []
    for watched in (False, True):
        names = [s for s in dict.fromkeys(s for s, _ in found) if s.endswith("watched") == watched]
        for name in [*names, None]:
            chosen = names if name is None else [name]
            flags = [number for one in chosen for number in found[one, "false flags"]]
            if not flags:
                continue
            most = None if name else FALSE[watched]
            false = int(np.count_nonzero(flags))
            line: study.Row = {
                "streams": name or ("all that are watched" if watched else "all"),
                "number": len(flags),
                "flagged": false,
                "largest log e": max(max(found[one, "largest log e"]) for one in chosen),
                "threshold": float(np.log(QUIET_SCALE.size / stream_flags.ALPHA)),
            }
            table.append(line | _verdict(false, most, judged))
    return table


def delays(rows: Sequence[study.Row], judged: bool) -> Table:
    """Return how many rounds after its change an item is found, and the false items."""
    changed = [row for row in rows if row["stream"] in stream_flags.CHANGES]
    table: Table = []
    for (stream, noise, what), values in _grouped(changed, "stream", "noise", "what").items():
        line: study.Row = {"stream": stream, "noise": noise, "what": what, "items": len(values)}
        if what.startswith("false"):
            line |= {"items": int(sum(values)), "found": "", "median": ""}
            table.append(line | _verdict(0.0, None, judged))
        else:
            table.append(line | _delay(values, noise, what, judged))
    return table + _together(table, changed, judged)


def _delay(values: Sequence[float], noise: float, what: str, judged: bool) -> study.Row:
    found = float(np.mean(np.array(values) < stream_flags.NEVER))
    median = float(np.median(values))
    line: study.Row = {"found": found, "median": median if found > 0.5 else "never"}
    if what == "born, listed after" and not noise and judged:
        return line | {"bound": "all", "verdict": "met" if found == 1 else MISSED}
    return line | _verdict(median, None if noise else DELAYS.get(what), judged)


def _together(table: Table, changed: Sequence[study.Row], judged: bool) -> Table:
    """Return the lines of items of one size, be they doubled or halved."""
    found: Table = []
    for noise in dict.fromkeys(line["noise"] for line in table):
        for what in DELAYS:
            size, rule = what.split(", ")
            names = [f"{size} {way}, {rule}" for way in ("doubled", "halved")]
            values = [
                row["value"] for row in changed if row["noise"] == noise and row["what"] in names
            ]
            if values:
                line = {"stream": "doubled or halved", "noise": noise, "what": what}
                line |= {"items": len(values)}
                found.append(line | _delay(values, noise, what, judged))
    return found


TABLES: dict[str, Callable[[Sequence[study.Row], bool], Table]] = {
    "Errors of windows with history and alone, largest x 1e-5, l2 x 1e-4": errors,
    "Limits that hold, by bands of 500 items": coverage,
    "The window for the frequencies now, against the best in hindsight": auto,
    "Flags in streams that do not change": quiet,
    "Rounds until an item that changes is found": delays,
}


def tables(rows: Sequence[study.Row], judged: bool) -> Mapping[str, Table]:
    """Return the tables that have lines."""
    made = {title: table(rows, judged) for title, table in TABLES.items()}
    return {title: table for title, table in made.items() if table}


def draw(rows: Sequence[study.Row], judged: bool) -> Figure:
    """Draw the errors of windows with history over those alone, by stream, and their bounds."""
    from matplotlib.figure import Figure

    table = errors(rows, judged)
    kinds = {(line["stream"], line["noise"]) for line in table}
    order = [*drift.KINDS, *drift.REAL]
    streams = sorted(kinds, key=lambda one: (one[1], order.index(one[0])))[::-1]
    figure = Figure(figsize=(9.0, 2.0 + 0.3 * len(streams)), layout="constrained")
    figure.set_facecolor("white")
    for axes, what in zip(figure.subplots(1, 2, sharey=True), ("largest", "l2"), strict=True):
        axes.axvline(1.0, color="#8C959F", linewidth=1)
        for place, (name, color) in enumerate(_COLORS.items()):
            lines = [line for line in table if line["window"] == name]
            at = [streams.index((one["stream"], one["noise"])) + 0.2 * (1 - place) for one in lines]
            axes.plot([one[f"{what} ratio"] for one in lines], at, "o", color=color, label=name)
            bounds = [one.get(f"{what} bound") or np.nan for one in lines]
            axes.plot(bounds, at, "|", color=color, markersize=9)
        axes.set_xlabel(f"{what} error: with history / alone" + "; |: bound" * judged)
        axes.set_yticks(range(len(streams)), [_named(*stream) for stream in streams])
        axes.set_yticks(np.arange(len(streams) - 1) + 0.5, minor=True)
        axes.grid(axis="y", which="minor", color="#D0D7DE", linewidth=0.6)
        axes.tick_params(axis="y", which="both", length=0)
        axes.set_ylim(-0.6, len(streams) - 0.4)
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(_COLORS), frameon=False)
    usual = np.median([line["l2 ratio"] for line in table if line["window"] == "last:1"])
    figure.suptitle(f"With its history, the last round's l2 error is {usual:.0%} as large (median)")
    return figure


def _named(stream: str, noise: float) -> str:
    return f"{stream}, noise {noise:g}" if noise else stream


@click.command("streams")
@options.study(
    kinds=("none",),
    seeds=1,
    quiet=20,
    watched=1,
    changed=1,
    num_rounds=16,
    clients=1000,
    domain_size=2000,
    width=100,
)
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice(list(drift.KINDS)),
    default=tuple(drift.KINDS),
    help="Kind of drift.",
)
@click.option(
    "--noise",
    "noises",
    multiple=True,
    type=click.FloatRange(0),
    default=(0.0, 10.0),
    help="Standard deviation of each counter of a round.",
)
@click.option("--seeds", type=click.IntRange(1), default=SEEDS, help="Campaigns of each cell.")
@click.option("--quiet", type=click.IntRange(0), default=QUIET, help="Streams without changes.")
@click.option(
    "--watched", type=click.IntRange(0), default=WATCHED, help="Streams decoded after each round."
)
@click.option(
    "--changed", type=click.IntRange(0), default=CHANGED, help="Streams of each sudden change."
)
@click.option(
    "--rounds",
    "num_rounds",
    type=click.IntRange(2),
    default=FULL.num_rounds,
    help="Rounds of a campaign.",
)
@options.clients(FULL.clients, help="Clients of each round.")
@options.domain_size(FULL.size, least=100)
@click.option("--width", type=click.IntRange(2), default=FULL.width, help="Counters of a row.")
@options.data("Folder of the real tables, to decode their streams, too.")
def command(
    folder: Path,
    jobs: int,
    plot: bool,
    kinds: tuple[str, ...],
    noises: tuple[float, ...],
    seeds: int,
    quiet: int,
    watched: int,
    changed: int,
    num_rounds: int,
    clients: int,
    domain_size: int,
    width: int,
    data: Path | None,
) -> None:
    """Measure windows, their limits and flags where frequencies change over the rounds."""
    scale = Scale(num_rounds, clients, domain_size, FULL.rows, width)
    todo = [
        *campaigns(kinds, noises, seeds, scale, data),
        *flags(quiet, watched, changed, noises, scale),
    ]
    enough = seeds >= SEEDS and quiet >= QUIET and watched >= WATCHED and changed >= CHANGED
    judged = enough and scale == FULL

    def summarise(rows: list[study.Row]) -> Mapping[str, Sequence[study.Row]]:
        return tables(rows, judged)

    def picture(rows: list[study.Row]) -> Figure:
        return draw(rows, judged)

    about = (__doc__ or "").strip()
    rows = study.run(
        study.Study("streams", todo, measure, summarise, picture, about), folder, jobs, plot
    )
    if not judged:
        click.echo("not judged: smaller than what the bounds are for")
        return
    lines = [line for table in tables(rows, judged).values() for line in table]
    said = [text for line in lines for text in line.values()]
    missed, met = said.count(MISSED), said.count("met")
    click.echo(f"{missed} of {missed + met} bounds are missed")
    if missed:
        sys.exit(1)


def campaigns(
    kinds: Sequence[str], noises: Sequence[float], seeds: int, scale: Scale, data: Path | None
) -> list[Campaign]:
    """Return the campaigns of all kinds, and of the real streams where there is a folder.

    >>> len(campaigns(["none", "step"], [0.0, 10.0], 4, FULL, None))
    16
    """
    real = list(drift.REAL) if data else []
    for name in real:
        drift.real(name, data or Path())  # what is missing is said before the work starts
    return [
        Campaign(stream, noise, seed, scale, str(data) if stream in real else "")
        for stream in [*kinds, *real]
        for noise in noises
        for seed in range(1, seeds + 1)
    ]


def flags(
    quiet: int, watched: int, changed: int, noises: Sequence[float], scale: Scale
) -> list[Quiet | Changed]:
    """Return the streams for flags: those without changes in turn of equal and other rounds."""
    kinds = stream_flags.QUIET
    return [
        *(Quiet(kinds[n % len(kinds)], QUIET_SCALE, n) for n in range(quiet)),
        *(Quiet(kinds[n % len(kinds)], QUIET_SCALE, n, watched=True) for n in range(watched)),
        *(
            Changed(change, scale, n, noise)
            for change in stream_flags.CHANGES
            for noise in noises
            for n in range(changed)
        ),
    ]
