"""Shared by all tests: the Hypothesis profile, what is kept from them, the kernels to test, a slow,
independent oracle, and which tests run where."""

from __future__ import annotations

import gc
import hashlib
import importlib.util
import inspect
import os
import re
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from fedtally import kernels

pytest_plugins = ("databases", "durations")
PROJECT = Path(__file__).parent / "project"
collect_ignore = ["light.py"]  # to look for its doctests would hide packages from all other tests
EXTRAS = {"jinja2", "matplotlib", "pandas", "polars", "psycopg"}
# modules whose examples draw
DRAWING = tuple(f"fedtally.answer.{name}." for name in ("charts", "figures", "maps"))
# The packages whose branches are counted: as in pyproject.toml, for coverage.
COUNTED = re.compile(r"\bfedtally\.(campaign|crypto|dap|flp|plan|secagg)\b")

# Files of tests that take these packages, but no branch that others do not take as well: to trace a
# test takes as long as to run it. Where the count misses a branch that is taken here, take the file
# off.
UNTRACED = {
    "attacks": "authority peers work_before_checks",
    "protocol": "agent agent_calendar secagg_attacks secagg_wire",
    "statistical": "audit_engine",
    "system": "agent_consent cli cli_plan cohorts private_rows put_back unit",
    "unit": (
        "agent_settings answer_windows bill errors estimate geometric joint local "
        "local_silos mechanism open_plans plan_page proof_kernels report seeds "
        "store studies trends"
    ),
}

# A shared machine outlasts the usual 200 ms. The fixture `backend` is the same for all examples of
# a test, so that its scope does no harm.
settings.register_profile(
    "fedtally",
    deadline=None,
    derandomize="CI" in os.environ,
    max_examples=80,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
# For what other tests draw enough of: NumPy's kernels without a compiler, and sanitizers.
settings.register_profile("few", settings.get_profile("fedtally"), max_examples=3)
settings.load_profile("fedtally")


def pytest_configure(config: pytest.Config) -> None:
    """Give linear algebra one thread in each worker of pytest-xdist, which inherits this.

    There is a worker for each core. More threads would wait for each other in loops that do
    nothing: that doubles the processor time of some tests.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector away from what lives until the end: modules and tests.

    They are millions of objects. To walk over them again and again takes a third of the time in
    which tests are collected, and each worker of pytest-xdist collects all tests.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep the user's cache away: no test depends on what is there, or leaves anything."""
    users = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        if "MPLCONFIGDIR" not in os.environ:  # matplotlib takes seconds to list the fonts again
            patch.setenv("MPLCONFIGDIR", str(users / "matplotlib"))
        yield folder


@pytest.fixture(scope="session", autouse=True)
def nothing_takes_long() -> Iterator[None]:
    """Keep lines on what takes long from what tests compare: a busy machine has more of them."""
    from fedtally.cli import console

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(console, "SOON", 86_400.0)
        yield


@pytest.fixture(params=kernels.available_backends())
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test once with each implementation of the kernels that this machine can run."""
    name = str(request.param)
    monkeypatch.setenv("FEDTALLY_KERNELS", name)
    return name


@pytest.fixture
def matrix(request: pytest.FixtureRequest) -> bool:
    """Say whether a test shall run all of its cases (--matrix), and not only a sample of them."""
    return bool(request.config.option.matrix)


_PREDICTED: dict[tuple[object, ...], object] = {}  # of all modules that use `errors_once`


@pytest.fixture(scope="module")
def errors_once() -> Iterator[None]:
    """Predict the same error of a sketch once, for tests whose plans are much alike."""
    import numpy as np

    from fedtally.recovery.decoders.joint import joint_error

    predict = joint_error._fitted

    def once(frequencies, shape, number):  # type: ignore[no-untyped-def]
        arrays = (np.asarray(array).tobytes() for array in (frequencies, shape.sizes, number))
        key = (*arrays, shape._replace(sizes=None))
        if key not in _PREDICTED:
            _PREDICTED[key] = predict(frequencies, shape, number)
        return _PREDICTED[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joint_error, "_fitted", once)
        yield


@pytest.fixture
def oracle() -> type[Oracle]:
    """Give the slow oracle."""
    return Oracle


@cache
def _table(seed: bytes, row: int, group: int) -> list[int]:
    label = (
        b"fedtally/1/tabulation\x00"
        + seed
        + b"\x00"
        + row.to_bytes(4, "little")
        + group.to_bytes(4, "little")
    )
    raw = hashlib.shake_256(label).digest(8192)
    return [int.from_bytes(raw[at : at + 4], "little") for at in range(0, 8192, 4)]


def _word(seed: bytes, row: int, group: int, id_: int) -> int:
    table, word = _table(seed, row, group), 0
    for character in range(8):
        word ^= table[256 * character + (id_ >> (8 * character)) % 256]
    return word


class Oracle:
    """A campaign in plain Python: counters in dictionaries, medians by sorting.
    It shares no code with the package.
    """

    def __init__(self, schedule: str, rows: int, width: int, num_rounds: int, seed: bytes) -> None:
        self.schedule, _, batches = schedule.partition(":")
        self.rows, self.width, self.num_rounds, self.seed = rows, width, num_rounds, seed
        self.batches: list[int] = []
        for batch in range(int(batches or 0)):
            size = num_rounds // int(batches) + (batch < num_rounds % int(batches))
            self.batches += [batch] * size
        self.cells: dict[int, dict[tuple[int, int], int]] = {}

    def place(self, row: int, round: int, id_: int) -> tuple[int, int]:
        """Return the cell and the sign of an id."""
        seed, number = self.seed, 0
        if self.schedule == "fresh":
            seed = hashlib.shake_256(
                b"fedtally/1/round\x00" + seed + round.to_bytes(4, "little")
            ).digest(32)
        elif self.schedule == "hybrid":
            number = round
        elif self.schedule == "batched":
            number = self.batches[round]
        cell = (_word(seed, row, 0, id_) >> 8) * self.width // 2**24
        return cell, -1 if _word(seed, row, number // 8, id_) >> (number % 8) & 1 else 1

    def add(self, round: int, ids: Iterable[int], counts: Iterable[int]) -> None:
        """Add items to a round, which thereby has landed."""
        cells = self.cells.setdefault(round, defaultdict(int))
        for id_, count in zip(ids, counts, strict=True):
            for row in range(self.rows):
                cell, sign = self.place(row, round, id_)
                cells[row, cell] += sign * count

    def counters(self, round: int) -> list[list[int]]:
        """Return the counters of a landed round."""
        return [
            [self.cells[round].get((row, cell), 0) for cell in range(self.width)]
            for row in range(self.rows)
        ]

    def estimate(self, id_: int) -> float:
        """Return the estimated count of an id over the landed rounds."""
        by_round = []
        for round, cells in self.cells.items():
            places = [self.place(row, round, id_) for row in range(self.rows)]
            by_round.append(
                [sign * cells.get((row, cell), 0) for row, (cell, sign) in enumerate(places)]
            )
        if self.schedule == "fresh":
            return sum(self.median(rows) for rows in by_round)
        return self.median([sum(rows) for rows in zip(*by_round, strict=True)])

    @staticmethod
    def median(values: list[int]) -> float:
        """Return the middle value, or the mean of the two middle ones."""
        ordered = sorted(values)
        return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def is_traced(file: Path) -> bool:
    """Whether the branches that the tests of a file take are counted."""
    folder, name = file.parent.name, file.stem.removeprefix("test_")
    return name not in UNTRACED.get(folder, "").split() and takes_counted(file)


@cache
def takes_counted(file: Path) -> bool:
    """Whether a file of tests takes counted packages, by itself or through a file beside this."""
    text = file.read_text(encoding="utf-8")
    beside = (Path(__file__).with_name(f"{name}.py") for name in _taken(text))
    return bool(COUNTED.search(text)) or any(one.exists() and takes_counted(one) for one in beside)


def _taken(text: str) -> list[str]:
    return re.findall(r"^ *(?:from|import) (\w+)", text, re.MULTILINE)


@pytest.hookimpl(tryfirst=True)  # pytest chooses by marks after this
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests of this repository, and tests that need an extra; examples that draw are among
    these, and cannot skip themselves.

    Tests of files that take no counted package are not traced, and neither are examples: what they
    reach of one, others reach as well, or a run that counts fails.
    """
    drawn = importlib.util.find_spec("matplotlib") is not None
    counts = config.pluginmanager.hasplugin("_cov")
    for item in items:
        if PROJECT in item.path.parents:
            item.add_marker(pytest.mark.project)
        if counts and (isinstance(item, pytest.DoctestItem) or not is_traced(item.path)):
            item.add_marker(pytest.mark.no_cover)
        if item.name.startswith("fedtally.simulation.dataframe.dask."):
            item.add_marker(pytest.mark.dask)
        code = getattr(inspect.unwrap(getattr(item, "function", None)), "__code__", None)
        draws = item.name.startswith(DRAWING)
        # `pytest.importorskip("pandas")` leaves its argument among the constants of the test.
        if draws or (code and not EXTRAS.isdisjoint(code.co_consts)):
            item.add_marker(pytest.mark.extras)
        if draws and not drawn:
            item.add_marker(pytest.mark.skip(reason="drawing needs the extra `plot`"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Start a worker more than there are cores, and none for single files.

    Some tests wait for a deadline or a process, and others compute in the meantime. Most files take
    less time than workers take to start.
    """
    if any(a.startswith(("-n", "--numprocesses")) for a in config.invocation_params.args):
        return None
    return 0 if all(".py" in argument for argument in config.args) else (os.cpu_count() or 1) + 1
