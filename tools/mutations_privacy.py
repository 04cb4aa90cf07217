"""Check that a test fails where privacy is broken.

Errors are planted into a copy of the package, one at a time. mutations.toml lists them.

    python tools/mutations_privacy.py          # all: a table; exits 1 if no test catches one
    python tools/mutations_privacy.py --only noise-small --only same-key
    python tools/mutations_privacy.py --jobs 4
    python tools/mutations_privacy.py --check  # only: can each be planted, and imported?

The package that this Python imports is copied to a temporary folder, with its compiled kernels.
Each mutation replaces one text in one file of a copy; then the tests that should see it run against
the copy until the first one fails, and the text is put back. Before that all these tests must pass
on a copy without any error. A mutation counts as caught if a test fails; one that keeps the tests
from running at all is an error of the list.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.abc import InspectLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "fedtally"
LIST = Path(__file__).with_name("mutations.toml")
TIMEOUT = 900  # seconds for the tests of one mutation
_FAILED = 1  # pytest's exit code where tests ran and some failed
_RUNNER = """\
import sys
# An editable installation finds its own source first.
sys.meta_path[:] = [f for f in sys.meta_path if type(f).__name__ != "ScikitBuildRedirectingFinder"]
sys.path.insert(0, sys.argv[1])
import fedtally, pytest
assert fedtally.__file__.startswith(sys.argv[1]), fedtally.__file__
sys.exit(pytest.main(sys.argv[2:]))
"""


class Mutation(NamedTuple):
    """One error: a text of a file of the package, which is there once, and what stands in for it.

    Attributes:
        name: for --only.
        file: below src/fedtally.
        old: the text.
        new: the error.
        tests: files or tests that should see it. A file may be in any folder below tests/.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


AUDIT = ("test_audit_engine.py",)  # sees an error that names no tests


def listed(text: str) -> tuple[Mutation, ...]:
    """Return the errors that a list in TOML describes, each under its name."""
    return tuple(
        Mutation(name, entry["file"], entry["old"], entry["new"], tuple(entry.get("tests", AUDIT)))
        for name, entry in tomllib.loads(text).items()
    )


MUTATIONS = listed(LIST.read_text("utf-8"))


class Outcome(NamedTuple):
    """The outcome of a mutation: the test that failed, or what went wrong (`caught_by` is "")."""

    mutation: Mutation
    caught_by: str
    problem: str
    seconds: float


def applied(mutation: Mutation, text: str) -> str:
    """Return a file's text with the error in it.

    Raises:
        ValueError: the text is not there exactly once, or stays as it is, or what comes of it is no
            Python.
    """
    if mutation.new == mutation.old:
        raise ValueError(f"{mutation.name}: it changes nothing")
    found = text.count(mutation.old)
    if found != 1:
        raise ValueError(
            f"{mutation.name}: its text is {found} times in {mutation.file}, and must be there once"
        )
    changed = text.replace(mutation.old, mutation.new)
    try:
        compile(changed, mutation.file, "exec")
    except SyntaxError as error:
        raise ValueError(
            f"{mutation.name}: what it makes of {mutation.file} is no Python: {error}"
        ) from error
    return changed


class _Planted(InspectLoader):
    """Loads a module from a text."""

    def __init__(self, text: str, is_package: bool) -> None:
        self._text, self._is_package = text, is_package

    def get_source(self, fullname: str) -> str:
        return self._text

    def is_package(self, fullname: str) -> bool:
        return self._is_package


def check_import(mutation: Mutation, text: str) -> None:
    """Import a module with the error in it, beside the right one.

    Raises:
        ValueError: it cannot be imported, so that no test would run.
    """
    parts = ("fedtally", *Path(mutation.file).with_suffix("").parts)
    is_package = parts[-1] == "__init__"
    name = ".".join(parts[:-1] if is_package else parts)
    loader = _Planted(text, is_package)
    spec = spec_from_loader(name, loader)
    assert spec is not None
    try:
        importlib.import_module(name)  # with what it needs, and what needs it
        loader.exec_module(module_from_spec(spec))
    except Exception as error:
        raise ValueError(
            f"{mutation.name}: {mutation.file} cannot be imported with it: {error!r}"
        ) from error


def problems(mutations: Sequence[Mutation]) -> list[str]:
    """Return the reasons why mutations cannot be applied, or their tests cannot be found."""
    found = []
    for mutation in mutations:
        try:
            text = (PACKAGE / mutation.file).read_text(encoding="utf-8")
            check_import(mutation, applied(mutation, text))
        except (OSError, ValueError) as error:
            found.append(str(error))
        for test in mutation.tests:
            path, name = located(test)
            if path is None or f"def {name}" not in path.read_text(encoding="utf-8"):
                found.append(f"{mutation.name}: there is no test {test}")
    return found


def located(test: str) -> tuple[Path | None, str]:
    """Return the file of a test, in whichever folder below tests/ it is, and its name in there."""
    file, _, name = test.partition("::")
    return next((ROOT / "tests").rglob(file), None), name


def copied(folder: Path) -> Path:
    """Copy the package into a folder, with the kernels that this Python runs; return the copy."""
    from fedtally import kernels

    copy = folder / "fedtally"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    native = getattr(kernels, "_native", None)
    if native is not None:
        shutil.copy(native.__file__, copy / "kernels")
    return copy


def tested(folder: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Run tests of the package in a folder until one fails; return the exit code and that test."""
    options = [
        "-x",
        "-q",
        "--all",  # slow tests too: a planted error may be what one of them is there for
        "--no-header",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(ROOT),
        "-c",
        str(ROOT / "pyproject.toml"),
    ]
    paths = [
        f"{path}::{name}" if name else str(path) for path, name in (located(test) for test in tests)
    ]
    command = [
        sys.executable,
        "-B",
        "-c",
        _RUNNER,
        str(folder),
        *options,
        *paths,
    ]
    # Options for a run around this one, such as to measure coverage, are not for the copy.
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return -1, f"no answer within {TIMEOUT} s"
    failed = re.findall(r"^(?:FAILED|ERROR) (?:\S*/)?(\S+::.*?)(?: - .*)?$", done.stdout, re.M)
    return done.returncode, failed[0] if failed else (done.stdout + done.stderr)[-2000:]


def tried(mutation: Mutation, folder: Path) -> Outcome:
    """Plant an error into a copy, run its tests, and take it out."""
    path, start = folder / "fedtally" / mutation.file, time.monotonic()
    text = path.read_text(encoding="utf-8")
    path.write_text(applied(mutation, text), encoding="utf-8")
    try:
        code, said = tested(folder, mutation.tests)
    finally:
        path.write_text(text, encoding="utf-8")
    seconds = time.monotonic() - start
    if code == _FAILED:
        return Outcome(mutation, said, "", seconds)
    return Outcome(
        mutation,
        "",
        "no test fails" if code == 0 else f"tests did not run ({code}): {said}",
        seconds,
    )


@contextmanager
def copies(number: int) -> Iterator[SimpleQueue[Path]]:
    """Yield as many copies of the package as run at once."""
    with tempfile.TemporaryDirectory() as name:
        free: SimpleQueue[Path] = SimpleQueue()
        for i in range(number):
            folder = Path(name) / str(i)
            folder.mkdir()
            copied(folder)
            free.put(folder)
        yield free


def run(mutations: Sequence[Mutation], jobs: int) -> int:
    """Try mutations and print what came of them; return how many were not caught."""
    with copies(jobs) as free, ThreadPoolExecutor(jobs) as pool:
        folder = free.get()
        tests = sorted({test for mutation in mutations for test in mutation.tests})
        whole = {test for test in tests if "::" not in test}
        code, said = tested(
            folder,
            [test for test in tests if test in whole or test.partition("::")[0] not in whole],
        )
        free.put(folder)
        if code:
            print(f"the tests do not pass without any error planted ({code}): {said}")
            return len(mutations)

        def one(mutation: Mutation) -> Outcome:
            folder = free.get()
            try:
                return tried(mutation, folder)
            finally:
                free.put(folder)

        survived = 0
        width = max(len(mutation.name) for mutation in mutations)
        for outcome in pool.map(one, mutations):
            caught = outcome.caught_by or f"SURVIVES: {outcome.problem}"
            print(
                f"{outcome.mutation.name:<{width}}  {outcome.seconds:6.1f} s  {caught}", flush=True
            )
            survived += not outcome.caught_by
    print(f"{len(mutations)} mutations, {survived} survive")
    return survived


def main() -> int:
    """Return the exit code: 1 if an error is caught by no test, or cannot be planted."""
    names = [mutation.name for mutation in MUTATIONS]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=names,
        metavar="NAME",
        help="try this one; may be repeated",
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="how many run at once (1)")
    parser.add_argument("--check", action="store_true", help="do not run tests")
    options = parser.parse_args()
    chosen = [
        mutation for mutation in MUTATIONS if not options.only or mutation.name in options.only
    ]
    if found := problems(chosen):
        print("\n".join(found))
        return 1
    return 0 if options.check else int(run(chosen, max(1, options.jobs)) > 0)


if __name__ == "__main__":
    sys.exit(main())
