"""Fuzz the parsers of what strangers send, and the kernels, with inputs that coverage chooses.

    python tools/fuzz.py                           # all targets, a minute: as CI does
    python tools/fuzz.py plan dap --seconds 3600   # an hour of each
    python tools/fuzz.py --keep --seconds 600      # then keep what found new code in tests/corpus/
    python tools/fuzz.py --plant                   # errors in parsers, each of which must be found

A target may raise the errors of its row alone, take 10 seconds and 2 GB at most, and encodes what
it took as it was given. `fuzz_targets.py` has the rows, and `tests/corpus/` their inputs. It needs
Atheris (`pip install atheris`). The exit status is 1 on a failure, which is printed with its input
in hexadecimal digits: mend the parser, and put the input into the corpus, which tests replay.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterable, Sequence
from contextlib import nullcontext, redirect_stderr
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

CORPUS = Path(__file__).resolve().parent.parent / "tests" / "corpus"
MOST_BYTES = 4096  # of an input
SECONDS, MEMORY = 10, 2048  # of one input; megabytes of the process
RUNS = 1000  # of each target, without --seconds


class Plant(NamedTuple):
    """An error in a parser: a text of a file of the package, which is there once, and a new one."""

    target: str
    file: str
    old: str
    new: str


PLANTS = (  # lengths that are not checked, in parsers of seven families
    Plant("dap", "dap/presentation.py", "if not self.is_empty:", "if False:"),
    Plant("frames", "secagg/wire.py", "if len(body) != length:", "if False:"),
    Plant("public-key", "campaign/key_files.py", '{%d}" % (2 * KEY_BYTES)', '+"'),
    Plant("dap-share", "flp/prio3.py", "if len(share) != size:", "if False:"),
    Plant("report", "secagg/two_server/servers.py", " or len(body) != size:", ":"),
    Plant("tokens", "campaign/transports/https/tokens.py", "{64}", "*"),
    Plant("state", "campaign/transports/https/resource.py", "if len(found) ==", "if 1 or"),
)


def finds_all(work: Path) -> bool:
    """Return whether the target of each error fails with a copy of the package that has them all.

    One copy is faster than many, of which each would be instrumented.
    """
    spec = find_spec("fedtally")
    assert spec is not None and spec.origin is not None
    shutil.copytree(Path(spec.origin).parent, work / "fedtally")
    for plant in PLANTS:
        place = work / "fedtally" / plant.file
        text = place.read_text(encoding="utf-8")
        if text.count(plant.old) != 1:
            raise SystemExit(f"{plant.old!r} is not once in {plant.file}: change the row of PLANTS")
        place.write_text(text.replace(plant.old, plant.new), encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, __file__, *(plant.target for plant in PLANTS)],
        env=os.environ | {"PYTHONPATH": str(work)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    said = dict(re.findall(r"^FAILED: (\S+)\n(Failure: .*)", ended.stdout, re.MULTILINE))
    for plant in PLANTS:
        found = said.get(plant.target, "NOT FOUND")
        print(f"{plant.file} without {plant.old!r}: {found}", flush=True)
    return said.keys() == {plant.target for plant in PLANTS}


def load(*, covered: bool = True) -> ModuleType:
    """Return the table of targets, whose parsers say what code an input reaches, if `covered`."""
    import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]

    watch = atheris.instrument_imports(include=["fedtally"]) if covered else nullcontext()
    with redirect_stderr(StringIO()), watch:
        import fuzz_targets  # a line for each module would be printed
    return fuzz_targets


def corpus(table: ModuleType, name: str, place: Path) -> Path:
    """Write the first inputs of a target to a folder, and return it."""
    place.mkdir()
    for number, data in enumerate(table.TARGETS[name].valid()):
        (place / f"valid-{number}").write_bytes(data)
    for file in sorted((CORPUS / name).glob("*")):
        shutil.copy(file, place)
    return place


def fuzz(table: ModuleType, name: str, place: Path, options: Iterable[str]) -> int:
    """Fuzz a target in a process of its own; return its exit status.

    Args:
        table: what `load` returned.
        name: the target.
        place: the folder of its inputs, which gets those that reach new code.
        options: options of libFuzzer.
    """
    import atheris

    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        out = os.open(place.parent / f"{name}.log", os.O_WRONLY | os.O_CREAT)
        os.dup2(out, 1)
        os.dup2(out, 2)
        limits = [f"-max_len={MOST_BYTES}", f"-timeout={SECONDS}", f"-rss_limit_mb={MEMORY}"]
        found = f"-artifact_prefix={place.parent}/failed-{name}-"
        every = ["fuzz", *limits, found, *options, str(place)]
        atheris.Setup(every, lambda data: table.check(name, data))
        atheris.Fuzz()  # ends the process
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)  # never what the parent has to do at its end


def keep(name: str, grown: Path) -> None:
    """Put the inputs that reached new code into tests/corpus/."""
    kept = CORPUS / name
    kept.mkdir(parents=True, exist_ok=True)
    for file in grown.iterdir():
        if not file.name.startswith("valid-"):
            shutil.copy(file, kept / file.name[:16])


def report(name: str, work: Path) -> None:
    """Print what failed, and its input."""
    log = (work / f"{name}.log").read_text(errors="replace").splitlines()
    said = [line for line in log if "Failure" in line or "ERROR" in line]
    print("\n".join([f"FAILED: {name}", *(said[:3] or log[-20:])]))
    for file in work.glob(f"failed-{name}-*"):
        print(f"input: {file.read_bytes().hex()}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz; 1 if something was found, or if a planted error was not."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("targets", nargs="*", help="all by default")
    parser.add_argument("--seconds", type=int, help=f"of each target, and not {RUNS} runs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="add what found new code to the corpus")
    parser.add_argument("--plant", action="store_true", help="find planted errors")
    chosen = parser.parse_args(arguments)
    warnings.simplefilter("ignore")  # of NumPy and zipfile, about damaged files
    if chosen.plant:
        with tempfile.TemporaryDirectory() as folder:
            return not finds_all(Path(folder))
    # The kernels are no Python: what it reaches chooses none of their inputs.
    table, failed = load(covered=chosen.targets != ["kernels"]), []
    length = f"-max_total_time={chosen.seconds}" if chosen.seconds else f"-runs={RUNS}"
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        for name in chosen.targets or table.TARGETS:
            begun, place = time.monotonic(), corpus(table, name, work / name)
            first = len(list(place.iterdir()))
            if fuzz(table, name, place, [length, f"-seed={chosen.seed}"]):
                failed.append(name)
                report(name, work)
            elif chosen.keep:
                keep(name, place)
            print(
                f"{name:12} {first:4} inputs, then {len(list(place.iterdir())):4},"
                f" {time.monotonic() - begun:5.1f} s",
                flush=True,
            )
    return bool(failed)


if __name__ == "__main__":
    raise SystemExit(main())
