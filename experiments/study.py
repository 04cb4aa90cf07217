"""The run of an experiment: tasks kept as they end, then a table, a text and a picture.

A `Study` is a list of tasks and a function that measures one. `run` leaves in a folder, by default
``results``,

- NAME.parquet: a row for every campaign (or whatever is measured), with its seed, plan and
  fedtally's version,
- NAME.md: the tables that are also printed, NAME.png and NAME.svg: the picture.

A run that is stopped goes on where it was when the same command is given again: what a task
measured is appended to NAME-FINGERPRINT.partial.jsonl as soon as the task ends. The fingerprint is
of the version and of all settings, so that runs of different settings never mix. The file goes when
the run is whole.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

import fedtally
from experiments import output
from fedtally.answer import figures
from fedtally.base.archive import replacing
from fedtally.cli.console import Progress
from fedtally.errors import InvalidInputError
from fedtally.sketch import SketchSpec

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = dict[str, Any]
NEEDED = ("seed", "plan")  # keys of every row


class Study(NamedTuple):
    """What is measured, and what is made of it.

    Attributes:
        name: of the files.
        tasks: what there is to do, in the order of the rows; each is told from the others by its
            `repr`, which holds everything that its rows depend on, and can be sent to another
            process.
        measure: a function of a module, from a task to its rows; every row has the same keys,
            `seed` and `plan` among them, whose values are numbers, texts, truth values or None.
        summarise: from all rows to the tables, title -> rows, that are printed and written to
            NAME.md.
        draw: from all rows to the picture; None where there is none.
        about: a paragraph for NAME.md: what was measured, and what stands in for what.
    """

    name: str
    tasks: Sequence[Any]
    measure: Callable[[Any], list[Row]]
    summarise: Callable[[list[Row]], Mapping[str, Sequence[Row]]]
    draw: Callable[[list[Row]], Figure] | None = None
    about: str = ""


def describe(spec: SketchSpec, clients: int) -> str:
    """Return the column `plan` of a campaign: what it takes to draw its hashes again, as JSON.

    >>> describe(SketchSpec(5, 200, "hybrid", 10, bytes(32)), 150_000)
    '{"rows": 5, "width": 200, "schedule": "hybrid", "num_rounds": 10, "num_clients": 150000, ...
    """
    plan = {
        "rows": spec.rows,
        "width": spec.width,
        "schedule": str(spec.schedule),
        "num_rounds": spec.num_rounds,
    }
    return json.dumps(plan | {"num_clients": clients, "hash_seed": spec.seed.hex()})


def run(study: Study, folder: Path, jobs: int = 1, plot: bool = True) -> list[Row]:
    """Do what is left to do of a study, write its files, print its tables and return all rows.

    Raises:
        InvalidInputError: the folder or a file in it cannot be written.
        MissingExtraError: a picture is wanted, and matplotlib is not installed; nothing has been
            measured then.
    """
    files = [folder / f"{study.name}{suffix}" for suffix in (".parquet", ".md")]
    pictures = (
        [folder / f"{study.name}{suffix}" for suffix in (".png", ".svg")]
        if plot and study.draw
        else []
    )
    for picture in pictures:
        figures.check(picture)
    output.make_folder(folder)
    partial = folder / f"{study.name}-{fingerprint(study)}.partial.jsonl"
    rows = [row | {"version": fedtally.__version__} for row in _measured(study, partial, jobs)]
    output.save(rows, files[0])
    tables = study.summarise(rows)
    with replacing(files[1]) as temporary:
        Path(temporary).write_text(markdown(study, tables))
    if pictures:
        assert study.draw is not None
        figure = study.draw(rows)
        for picture in pictures:
            with replacing(picture) as temporary:
                figure.savefig(temporary, dpi=160)
    partial.unlink(missing_ok=True)
    for title, table in tables.items():
        click.echo(f"\n{title}")
        output.show(table)
    click.echo(f"\nwrote {', '.join(str(path) for path in (*files, *pictures))}")
    return rows


def fingerprint(study: Study) -> str:
    """Return what tells runs of different settings or versions apart: 12 hexadecimal digits."""
    said = "\n".join([fedtally.__version__, study.name, *map(repr, study.tasks)])
    return hashlib.sha256(said.encode()).hexdigest()[:12]


def markdown(study: Study, tables: Mapping[str, Sequence[Row]]) -> str:
    """Return the text of NAME.md."""
    blocks = [f"# {study.name}", *([study.about] if study.about else [])]
    for title, table in tables.items():
        lines = [
            list(table[0]),
            ["---"] * len(table[0]),
            *([output.text(v) for v in row.values()] for row in table),
        ]
        blocks += [f"## {title}", "\n".join(f"| {' | '.join(line)} |" for line in lines)]
    return "\n\n".join([*blocks, f"fedtally {fedtally.__version__}"]) + "\n"


def _measured(study: Study, partial: Path, jobs: int) -> list[Row]:
    """Return the rows of all tasks, in order; those in the partial file are not run again."""
    keys = [repr(task) for task in study.tasks]
    if len(set(keys)) < len(keys):
        raise ValueError(f"tasks of {study.name} must differ in what they print")
    found = dict(_kept(partial))
    left = [task for task, key in zip(study.tasks, keys, strict=True) if key not in found]
    if len(left) < len(keys):
        click.echo(
            f"{study.name}: {len(keys) - len(left)} of {len(keys)} tasks were done before", err=True
        )
    with _stopped(study, partial), partial.open("a") as file, Progress() as progress:
        for task, rows in _results(study.measure, left, jobs):
            for row in rows:
                if missing := [key for key in NEEDED if key not in row]:
                    raise ValueError(f"rows of {study.name} lack {', '.join(missing)}")
            try:
                file.write(json.dumps([repr(task), rows]) + "\n")
                file.flush()
            except OSError as error:
                raise InvalidInputError(
                    f"cannot write {partial}: {error.strerror}; make room, and go on"
                ) from error
            found[repr(task)] = rows
            progress(study.name, len(found), len(keys))
    return [row for key in keys for row in found[key]]


def _kept(partial: Path) -> Iterator[tuple[str, list[Row]]]:
    """Yield the tasks of a partial file and their rows; cut off a last line that is not whole."""
    if not partial.exists():
        return
    lines = partial.read_text().splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines.pop()
        partial.write_text("".join(lines))
    for number, line in enumerate(lines, start=1):
        try:
            key, rows = json.loads(line)
        except ValueError:
            click.echo(f"line {number} of {partial} is damaged: its task is done again", err=True)
        else:
            yield key, rows


def _results(
    measure: Callable[[Any], list[Row]], tasks: Sequence[Any], jobs: int
) -> Iterator[tuple[Any, list[Row]]]:
    if jobs == 1 or len(tasks) < 2:
        for task in tasks:
            yield task, measure(task)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as processes:
        running = {processes.submit(measure, task): task for task in tasks}
        try:
            for done in as_completed(running):
                yield running[done], done.result()
        finally:
            processes.shutdown(wait=False, cancel_futures=True)


@contextmanager
def _stopped(study: Study, partial: Path) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        click.echo(
            f"\nstopped; what is done is in {partial}, and the same command goes on from there",
            err=True,
        )
        raise
