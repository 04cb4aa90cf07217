"""Which tests are slow: a committed list, which keeps itself.

`durations.json` gives the processor seconds of each test function, all its cases together, that
takes half a second or more. Its tests are marked `slow`, and a run leaves them out unless it says
`--all`, chooses by the mark (`-m slow`), or names a test by its node id.

A run says at its end which tests are not on the list and have taken five seconds of processor
time. It fails if one has taken thirty, or if the list names a test that is no more.
A slow test of one second or more is also `long`, and `.ci/run` leaves it out, unless it shows that
a promise is kept: of privacy, of an exact sum, of what a crash may lose, or of what a page lets
its readers type.
Some tests have more cases than every run of CI needs. Cases marked `matrix` are left out, and a
test with the fixture `matrix` takes a sample; `--matrix` runs these tests alone, whole.

`python -m pytest --renew-durations` writes the list anew. Processor time, not time by the clock,
decides: other work on the machine hardly changes it.
"""

from __future__ import annotations

import json
import pydoc
import time
from collections import Counter
from collections.abc import Callable, Generator
from functools import cache
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

import pytest
from _pytest.doctest import DoctestModule

from fedtally import kernels

TESTS = Path(__file__).parent
LIST = TESTS / "durations.json"
BOUND = 0.5  # seconds, from which on a test function is on the list
LONG = 2 * BOUND  # seconds, from which on a test is `long`, unless it is of a promise
PUBLIC = "system/test_cli.py"  # which, as the examples of the package do, names all that is public
PROMISES = ("attacks", "protocol")  # whose tests all are; elsewhere a test or its file is marked
SAID = 10 * BOUND  # seconds, from which on a run says that a test is not on the list
# Seconds that fail a run. On a busy machine, with another processor or under coverage a test was
# seen to take ten times as long as where the list was made, and a run must not fail for that.
TOLERANCE = 60 * BOUND
_PROPERTY = "processor_seconds"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("slow tests")
    group.addoption("--all", action="store_true", help="run slow tests too")
    group.addoption(
        "--matrix", action="store_true", help="run only the tests that sample cases, with all cases"
    )
    group.addoption(
        "--renew-durations",
        action="store_true",
        help=f"run slow tests too, and write what each took to tests/{LIST.name}",
    )


def pytest_configure(config: pytest.Config) -> None:
    parts = config.option.keyword or config.option.markexpr or any("[" in a for a in config.args)
    if config.option.renew_durations and (parts or config.option.matrix):
        raise pytest.UsageError(
            "--renew-durations measures what CI runs of a test: leave -k, -m and --matrix out"
        )
    if not hasattr(config, "workerinput"):  # a worker of pytest-xdist hands on what it measures
        config.pluginmanager.register(Durations(config))


def listed() -> dict[str, float]:
    """Return the list: a name as of `name_of`, and seconds."""
    return json.loads(LIST.read_text(encoding="utf-8")) if LIST.exists() else {}


@cache
def _listed_files() -> set[str]:
    """Return the files that the list names, as paths below tests/ or beside the package."""
    files: set[str] = set()
    for name in listed():
        path, found, _ = name.partition("::")
        parts = path.split(".")  # of an example: a module, and perhaps a class and a method
        files |= {path} if found else {"/".join(parts[:end]) for end in range(2, len(parts))}
    return files


def is_public(file: Path) -> bool:
    """Return whether a file names what is public: a module of the package, or a command."""
    return not file.is_relative_to(TESTS) or file == TESTS / PUBLIC


def may_be_slow(file: Path) -> bool:
    """Return whether a file may hold a slow test: one that is listed, or of middle kernels."""
    if file.is_relative_to(TESTS):
        is_listed = file.relative_to(TESTS).as_posix() in _listed_files()
        return is_listed or "backend" in file.read_text(encoding="utf-8")
    package = Path(kernels.__file__).parents[1]
    if not file.is_relative_to(package):
        return True
    module = file.parent if file.name == "__init__.py" else file.with_suffix("")
    return module.relative_to(package.parent).as_posix() in _listed_files()


def name_of(nodeid: str) -> str:
    """Return the name of a test function: its file below tests/, and its name without its case.

    An example of the package is named by where it stands, wherever the package is installed.
    """
    path, _, name = nodeid.partition("[")[0].partition("::")
    if not path.startswith(f"{TESTS.name}/"):
        return name
    return f"{path.removeprefix(TESTS.name + '/')}::{name}"


def is_there(name: str) -> bool:
    """Return whether a listed test exists. Its file is read, because a run may leave it out."""
    path, found, test = name.partition("::")
    if not found:
        return pydoc.locate(path) is not None
    file = TESTS / path
    kind, _, _ = test.partition("::")
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    return any(start in text for start in (f"def {kind}(", f"class {kind}", f"\n{kind} = "))


def is_of_other_machines(item: pytest.Item) -> bool:
    """Return whether a case is of kernels between the reference and the best ones of this machine.

    CI runs them all.
    """
    callspec = getattr(item, "callspec", None)
    return callspec is not None and (
        callspec.params.get("backend") in kernels.available_backends()[1:-1]
    )


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(
    file_path: Path,
) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Look for examples only in files that have some: each worker of pytest-xdist looks."""
    found = yield
    if not any(isinstance(each, DoctestModule) for each in found):
        return found
    has_examples = ">>> " in file_path.read_text(encoding="utf-8")
    return [each for each in found if has_examples or not isinstance(each, DoctestModule)]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import what can hold none of the tests that are asked for, where these are slow ones.

    That is most of the files, and each worker of pytest-xdist imports them all.
    """
    asked = config.option.markexpr.partition(" and ")[0]
    if asked not in ("slow", "long", "(slow or public)") or collection_path.suffix != ".py":
        return None
    is_asked_for = may_be_slow(collection_path) or (
        "public" in asked and is_public(collection_path)
    )
    return None if is_asked_for else True


@pytest.hookimpl(tryfirst=True)  # pytest chooses by marks after this
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark slow tests, and leave them out where they are not asked for."""
    slow = listed()
    for item in items:
        if is_public(item.path):
            item.add_marker(pytest.mark.public)
        seconds = slow.get(name_of(item.nodeid), 0)
        if seconds or is_of_other_machines(item):
            item.add_marker(pytest.mark.slow)
        if seconds >= LONG and not is_of_a_promise(item):
            item.add_marker(pytest.mark.long)
    named = any("::" in argument for argument in config.args)
    if config.option.matrix:
        leave_out(config, items, lambda item: not is_of_matrix(item))
        return
    if not named:
        leave_out(config, items, lambda item: item.get_closest_marker("matrix") is not None)
    if not (
        named
        or config.option.all
        or config.option.renew_durations
        or any(mark in config.option.markexpr for mark in ("slow", "long"))
    ):
        leave_out(config, items, lambda item: item.get_closest_marker("slow") is not None)


def is_of_a_promise(item: pytest.Item) -> bool:
    """Return whether a test shows that a promise is kept: CI runs it however long it takes."""
    return item.path.parent.name in PROMISES or item.get_closest_marker("promise") is not None


def is_of_matrix(item: pytest.Item) -> bool:
    """Return whether --matrix runs a test: without it, it is left out or runs a sample."""
    named = getattr(item, "fixturenames", ())
    return "matrix" in named or item.get_closest_marker("matrix") is not None


def leave_out(
    config: pytest.Config, items: list[pytest.Item], is_out: Callable[[pytest.Item], bool]
) -> None:
    """Take tests out of a run, and have them counted."""
    if left_out := [item for item in items if is_out(item)]:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not is_out(item)]


def _processor_seconds() -> float:
    """Return the processor time of this process, with its threads, and of children that ended."""
    children = getrusage(RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Measure a test without its fixtures, which several tests may share."""
    __tracebackhide__ = True
    start = _processor_seconds()
    try:
        yield
    finally:
        if not is_of_other_machines(item):
            item.user_properties.append((_PROPERTY, _processor_seconds() - start))


class Durations:
    """Adds up what the tests of a run take, and compares it with the list at the end."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.seconds: Counter[str] = Counter()
        self.problems: list[str] = []
        self.unlisted: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self.seconds[name_of(report.nodeid)] += dict(report.user_properties).get(_PROPERTY, 0)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.config.option.collectonly:
            return
        if self.config.option.renew_durations:
            self.renew()
        slow = listed()
        self.problems = [f"{name}: there is no such test" for name in slow if not is_there(name)]
        if len(kernels.available_backends()) > 1:  # without compiled kernels much is slower
            for name, seconds in self.seconds.most_common():
                if seconds > SAID and name not in slow:
                    said = self.problems if seconds > TOLERANCE else self.unlisted
                    said.append(f"{name}: {seconds:.1f} s, and it is not on the list")
        if self.problems and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def renew(self) -> None:
        """Write the list: of tests that did not run now it keeps what it says."""
        kept = {name: seconds for name, seconds in listed().items() if is_there(name)}
        kept |= {name: round(seconds, 1) for name, seconds in self.seconds.items()}
        found = {name: seconds for name, seconds in sorted(kept.items()) if seconds >= BOUND}
        LIST.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.problems or self.unlisted:
            terminalreporter.section(f"tests/{LIST.name} is out of date", red=bool(self.problems))
            for problem in [*self.problems, *self.unlisted]:
                terminalreporter.line(problem)
            terminalreporter.line(
                "Make the test quicker, or renew the list: python -m pytest --renew-durations PATH"
            )
