"""The costs of fedtally before it does anything: import, help, start, demo, wheel, installation.

Import, help and demo are of the fedtally that this Python imports. The wheel is built from this
repository; the installation is a temporary virtual environment with it and its dependencies, and
needs a package index.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click

from benchmarks.measure import Goal, Report, machine

ROOT = Path(__file__).parents[1]
PLAN = (
    "plan --clients 1000000 --domain-size 100000 --rounds 10 --tau 0.001 --epsilon 1"
    " --secure-sum secagg"
)
COMMAND = "import sys; from fedtally.cli import main; sys.exit(main({!r}))"


def python(code: str, source: Path | None = None) -> tuple[float, float]:
    """Run code in a fresh interpreter; return its wall and CPU seconds.

    Args:
        code: the code.
        source: a folder whose fedtally it imports; None: the one that is imported here.
    """
    path = {} if source is None else {"PYTHONPATH": str(source)}
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | path,
    )
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise click.ClickException(f"{code!r} failed:\n{done.stderr}")
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def import_goals(turns: int) -> list[Goal | str]:
    """Time `import fedtally` above a bare interpreter; the two take turns."""
    pairs = [(python("pass")[0], python("import fedtally")[0]) for _ in range(turns)]
    bare, loaded = (min(times) for times in zip(*pairs, strict=True))
    return [
        Goal("import fedtally, above bare Python", 1e3 * (loaded - bare), 60, " ms", at_most=True)
    ]


def help_goals(turns: int) -> list[Goal | str]:
    """Take the CPU time of `fedtally --help`, interpreter included."""
    best = min(python(COMMAND.format(["--help"]))[1] for _ in range(turns))
    return [Goal("fedtally --help, CPU", 1e3 * best, 200, " ms", at_most=True)]


def start_goals(turns: int) -> list[Goal | str]:
    """Compare the CPU time of short commands with what importing click and NumPy takes, in turns.

    A note says that of README's plan.
    """
    missing = (
        "import sys; from fedtally.cli.app import run;"
        " sys.exit(run(['estimate', 'nowhere.csv']) != 2)"
    )
    lines = [
        "import click, numpy",
        COMMAND.format(["--version"]),
        missing,
        COMMAND.format(PLAN.split()),
    ]
    times = [[python(line)[1] for line in lines] for _ in range(turns)]
    imports, start, refused, planned = (min(one) for one in zip(*times, strict=True))
    return [
        Goal("fedtally --version / import click, numpy", start / imports, 1.5, "x", at_most=True),
        Goal("a missing file / import click, numpy", refused / imports, 1.5, "x", at_most=True),
        f"fedtally plan of README: {planned:.2f} s of CPU",
    ]


def beside_goals(turns: int, checkout: Path) -> list[Goal | str]:
    """Compare README's plan with that of a checkout, in turns, in CPU time."""
    sources = Path(__file__).parents[1] / "src", checkout / "src"
    line = COMMAND.format(PLAN.split())
    pairs = [[python(line, source)[1] for source in sources] for _ in range(turns)]
    here, there = (min(times) for times in zip(*pairs, strict=True))
    accountant = min(python("import click, numpy, dp_accounting")[1] for _ in range(turns))
    note = (
        f"fedtally plan of README: {here:.2f} s of CPU here and {there:.2f} s beside; to import"
        f" click, NumPy and dp-accounting takes {accountant:.2f} s"
    )
    return [
        Goal("fedtally plan of README, by that beside", here / there, 0.6, "x", at_most=True),
        note,
    ]


def demo_goals(turns: int) -> list[Goal | str]:
    """Time `fedtally demo`."""
    best = min(python(COMMAND.format(["demo"]))[0] for _ in range(min(turns, 3)))
    return [Goal("fedtally demo", best, 5, " s", at_most=True)]


def wheel_goals(_: int) -> list[Goal | str]:
    """Weigh the wheel."""
    with tempfile.TemporaryDirectory() as folder:
        return [
            Goal("wheel", build_wheel(Path(folder)).stat().st_size / 1e6, 2, " MB", at_most=True)
        ]


def install_goals(_: int) -> list[Goal | str]:
    """Weigh a fresh virtual environment with fedtally and all base dependencies, pip included.

    The largest packages in it follow as a note.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel = build_wheel(folder)
        environment = folder / "environment"
        _call([sys.executable, "-m", "venv", str(environment)])
        pip = environment / ("Scripts" if os.name == "nt" else "bin") / "pip"
        _call([str(pip), "install", "--quiet", "--disable-pip-version-check", str(wheel)])
        sizes: Counter[str] = Counter()
        for path in environment.rglob("*"):
            if path.is_file() and not path.is_symlink():
                found, inside = str(path).partition("site-packages" + os.sep)[1:]
                # libraries that a wheel brings lie beside its package
                package = inside.split(os.sep)[0].removesuffix(".libs") if found else "other"
                sizes[package] += path.stat().st_size
    largest = ", ".join(f"{package} {own / 1e6:.0f}" for package, own in sizes.most_common(8))
    total = sum(sizes.values()) / 1e6
    return [
        Goal("fresh installation with all base dependencies", total, 500, " MB", at_most=True),
        f"the largest packages of it, in MB: {largest}",
    ]


PARTS = {
    "import": import_goals,
    "help": help_goals,
    "start": start_goals,
    "demo": demo_goals,
    "wheel": wheel_goals,
    "install": install_goals,
}


def build_wheel(folder: Path) -> Path:
    """Build the wheel, compiled, into a folder and return its path."""
    arguments = [
        "wheel",
        "--quiet",
        "--no-deps",
        "--disable-pip-version-check",
        "--wheel-dir",
        str(folder),
        str(ROOT),
    ]
    _call([sys.executable, "-m", "pip", *arguments], FEDTALLY_REQUIRE_COMPILED="1")
    [wheel] = folder.glob("*.whl")
    return wheel


def _call(arguments: Sequence[str], **variables: str) -> None:
    done = subprocess.run(
        arguments, capture_output=True, text=True, check=False, env={**os.environ, **variables}
    )
    if done.returncode:
        raise click.ClickException(f"{' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")


@click.command("footprint")
@click.option(
    "--part",
    "parts",
    multiple=True,
    type=click.Choice(list(PARTS)),
    help="Only this part; may be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option(
    "--quick",
    is_flag=True,
    help="One turn each; nothing is built or installed unless named by --part.",
)
@click.option(
    "--beside",
    metavar="CHECKOUT",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Only compare README's plan with that of a checkout with compiled kernels.",
)
def command(parts: tuple[str, ...], as_json: bool, quick: bool, beside: Path | None) -> None:
    """Measure import, --help, start, demo, wheel and installation."""
    turns = 1 if quick else 10
    chosen = parts or [part for part in PARTS if not (quick and part in ("wheel", "install"))]
    found = (
        [each for part in chosen for each in PARTS[part](turns)]
        if beside is None
        else beside_goals(turns, beside.resolve())
    )
    goals = [each for each in found if isinstance(each, Goal)]
    Report(machine(), goals=goals, notes=[x for x in found if isinstance(x, str)]).emit(as_json)
