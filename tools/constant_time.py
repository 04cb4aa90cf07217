"""Measure which steps that touch secrets take a time that depends on them.

    python tools/constant_time.py                  # all rows of the table; minutes
    python tools/constant_time.py --memory         # the compiled kernels alone, under valgrind
    python tools/constant_time.py --memory --objects build   # the objects of a build, as CI does
    python tools/constant_time.py --time           # the others, by the clock

`STEPS` is the table, and docs/evidence.md says it in words. A step is measured in one of two
ways. *Memory*: its secrets are marked as undefined, and valgrind reports each branch and address
that depends on them. That is exact for the inputs that it ran with, at the levels `baseline` and
`v3`, which valgrind knows. It does not see instructions whose time depends on their operands.
*Time*: calls with one fixed secret and with fresh ones, in random order, are compared by Welch's t
(Reparaz, Balasch and Verbauwhede 2017: "Dude, is my code constant time?"). |t| above 10 shows a
difference. |t| up to 4.5 shows only that none was found in so many calls. Between the two the step
is measured again, with more calls.

The exit status is 1 where a step is not as the table says, also where one that depends on its
secret, or a planted one, was not found: then the check sees nothing.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from campaign_world import DOMAIN, plan_of  # noqa: E402

from fedtally.campaign.client import FrequencyClient  # noqa: E402
from fedtally.crypto import shamir  # noqa: E402
from fedtally.crypto.keys import Secret  # noqa: E402
from fedtally.crypto.prg import Masking  # noqa: E402
from fedtally.flp.prio3 import Prio3  # noqa: E402
from fedtally.kernels.inversion import Inversion  # noqa: E402
from fedtally.secagg.packing import pack  # noqa: E402

# |t| up to DOUBT shows no difference, and above FOUND it is one: the bounds of the paper and of its
# program, dudect. Between them a step is measured again with AGAIN times the calls, which doubles
# the |t| of a difference, and leaves that of chance as it is.
DOUBT, FOUND, AGAIN, TURNS = 4.5, 10.0, 4, 3
CROPS = (50, 80, 95, 100)  # percentiles: what a busy machine adds is cut off
BLOCK = 200  # calls whose inputs are made beforehand
LEVELS = ("baseline", "v3")

Draw = Callable[[bool, np.random.Generator], Any]  # an input, with the fixed secret or a fresh one
Place = Callable[[Any], Callable[[], object]]  # of an input: the call, which is ready
Shape = tuple[int, ...]
DType = type[np.uint32] | type[np.uint64]


@dataclass(frozen=True)
class Step:
    """A row of the table.

    Attributes:
        name: what it is called, here and in tools/constant_time.cpp.
        depends: whether its time depends on the secret.
        make: returns the parts of a measurement by time; None: it is by memory.
        calls: how many calls are timed.
    """

    name: str
    depends: bool = False
    make: Callable[[], tuple[Draw, Place]] | None = None
    calls: int = 20_000


# ---- by time ----
#
# A step has three parts. `draw` makes an input, for a whole block of calls before the first of
# them. `place` puts it where the call finds it: arrays into one memory, which all calls share.
# So what comes just before a call is the same for both classes. Only the call is timed.


def _filled(value: int, rng: np.random.Generator, most: int, shape: Shape, dtype: DType) -> Any:
    """Return an array of random numbers below `most`; or of one number, if it is not negative."""
    fresh = rng.integers(most, size=shape, dtype=dtype)
    made = np.empty_like(fresh)
    np.copyto(made, fresh if value < 0 else np.full_like(fresh, value))
    return made


def _one_memory(call: Callable[..., object], *inputs: Any) -> Place:
    """Return the `place` of a step: it copies its inputs over these arrays, and calls with them."""

    def ready() -> object:
        return call(*inputs)

    def place(given: Any) -> Callable[[], object]:
        for memory, one in zip(inputs, given, strict=True):
            np.copyto(memory, one)
        return ready

    return place


def _arrays(call: Callable[..., object], draw: Draw) -> tuple[Draw, Place]:
    """Return the parts of a step whose inputs are arrays."""
    return draw, _one_memory(call, *draw(False, np.random.default_rng(0)))


def _elements(is_fixed: bool, rng: np.random.Generator, *shape: int) -> Any:
    return _filled(0 if is_fixed else -1, rng, shamir.PRIME, shape, np.uint32)


def _split() -> tuple[Draw, Place]:
    return _arrays(
        lambda secret, coefficients: shamir.split(secret, coefficients, 40),
        lambda is_fixed, rng: (_elements(is_fixed, rng, 5), _elements(False, rng, 20, 5)),
    )


def _combine() -> tuple[Draw, Place]:
    points = np.arange(1, 22)
    return _arrays(
        lambda shares: shamir.combine(points, shares),
        lambda is_fixed, rng: (_elements(is_fixed, rng, 21, 5),),
    )


def _mask() -> tuple[Draw, Place]:
    vector = np.zeros(2000, np.uint32)
    masking = Masking(vector)

    def place(given: Any) -> Callable[[], object]:
        np.copyto(vector, given[0])
        key = Secret(given[1])
        return lambda: masking.add(key)

    return lambda is_fixed, rng: (_elements(is_fixed, rng, 2000), rng.bytes(32)), place


def _pack() -> tuple[Draw, Place]:
    def draw(is_fixed: bool, rng: np.random.Generator) -> tuple[Any]:
        vector = _filled(0 if is_fixed else -1, rng, 2**20, (2000,), np.uint32)
        # `pack` looks at the maximum, and Python keeps the integers up to 256: a vector of zeros
        # alone takes nanoseconds less. A masked vector is none.
        vector[-1] = 2**20 - 1
        return (vector,)

    return _arrays(lambda vector: pack(vector, 20), draw)


_TABLE = Inversion([(i + 1) * 2**122 for i in range(63)], -31)  # as large as a scanned one may be


def _noise(scan: bool) -> tuple[Draw, Place]:
    fixed = 2**63 + 2**50  # one draw each time
    return _arrays(
        lambda words: _TABLE.draw(words, scan=scan),
        lambda is_fixed, rng: (
            _filled(fixed if is_fixed else -1, rng, 2**64 - 1, (2000,), np.uint64),
        ),
    )


def _differing(is_fixed: bool, rng: np.random.Generator) -> bytes:
    """Return 32 bytes that are 0 but for one: the first one, or the last one if `is_fixed`.

    So the answer to whether they are 32 zeros is no in both classes.
    """
    given = bytearray(32)
    given[-is_fixed] = rng.integers(1, 256)
    return bytes(given)


def _compare() -> tuple[Draw, Place]:
    held = Secret(bytes(32))

    def place(data: Any) -> Callable[[], object]:
        given = Secret(data)
        return lambda: given == held

    return _differing, place


def _early_exit() -> tuple[Draw, Place]:
    held = bytes(32)

    def place(given: Any) -> Callable[[], object]:
        return lambda: all(a == b for a, b in zip(given, held, strict=True))

    return _differing, place


_PLAN = plan_of(trust="distributed")


def _contribution(empty: bool) -> tuple[Draw, Place]:
    random = np.random.default_rng().bytes

    def draw(is_fixed: bool, rng: np.random.Generator) -> list[int]:
        item = int(rng.integers(1, 51))
        return ([] if empty else [1]) if is_fixed else [item]

    def place(items: Any) -> Callable[[], object]:
        client = FrequencyClient(_PLAN, DOMAIN, items)
        return lambda: client.contribution(0, random)

    return draw, place


_COUNT = Prio3.histogram(100, 10, context=b"timed")


def _prio3() -> tuple[Draw, Place]:
    def draw(is_fixed: bool, rng: np.random.Generator) -> tuple[int, bytes, bytes]:
        at = int(rng.integers(100))
        return (0 if is_fixed else at), rng.bytes(16), rng.bytes(_COUNT.random_bytes)

    return draw, lambda given: lambda: _COUNT.shard(*given)


STEPS = (
    Step("noise, scanned"),
    Step("noise, by a guide", depends=True),
    Step("cells of an item", depends=True),
    Step("words of a mask", depends=True),
    Step("shares mod p", depends=True),
    Step("proof: inputs"),
    Step("proof: made"),
    Step("proof: checked"),
    Step("planted: a branch", depends=True),
    Step("planted: a lookup", depends=True),
    Step("secrets compared", make=_compare),
    Step("Shamir: shares made", make=_split, calls=5_000),
    Step("Shamir: a secret back", make=_combine, calls=5_000),
    Step("a mask added", make=_mask),
    Step("a vector packed", make=_pack),
    Step("noise, scanned, all levels", make=partial(_noise, scan=True)),
    Step("noise, by a guide, all levels", depends=True, make=partial(_noise, scan=False)),
    Step("a contribution: which item", make=partial(_contribution, empty=False), calls=5_000),
    Step("a contribution: an item or none", True, partial(_contribution, empty=True), 5_000),
    Step("Prio3: which item", make=_prio3, calls=1_000),
    Step("planted: an early exit", depends=True, make=_early_exit, calls=5_000),
)


def welch(times: np.ndarray[Any, Any], fixed: np.ndarray[Any, Any]) -> float:
    """Return the largest |t| of Welch's test over the crops.

    Args:
        times: nanoseconds [n] of calls.
        fixed: bool [n], whether the call had the fixed secret.
    """
    largest = 0.0
    for percentile in CROPS:
        kept = times <= np.percentile(times, percentile)
        one, other = times[kept & fixed], times[kept & ~fixed]
        if min(len(one), len(other)) < 2:  # far apart, so that one kind alone is in this crop
            continue
        if one.var() == 0 == other.var():  # nothing but two constants: equal, or never
            largest = max(largest, 0.0 if one.mean() == other.mean() else float("inf"))
            continue
        largest = max(largest, abs(float(stats.ttest_ind(one, other, equal_var=False).statistic)))
    return largest


def timed(step: Step, calls: int) -> tuple[float, float]:
    """Return the |t| of a step (see `welch`), and how much longer fresh secrets take.

    The second is the difference of the medians over the median of the fixed secret.
    """
    assert step.make is not None
    rng, (draw, place) = np.random.default_rng(), step.make()
    times, fixed = np.empty(calls), np.empty(calls, bool)
    clock = time.perf_counter_ns
    gc.disable()
    for first in range(0, calls, BLOCK):
        number = min(BLOCK, calls - first)
        classes = rng.permutation(np.arange(number) % 2).astype(bool)
        fixed[first : first + number] = classes
        inputs = [draw(is_fixed, rng) for is_fixed in classes.tolist()]
        gc.collect()
        for i, given in enumerate(inputs, first):
            call = place(given)
            begin = clock()
            call()
            times[i] = clock() - begin
    gc.enable()
    times, fixed = times[calls // 20 :], fixed[calls // 20 :]  # the first ones warm up
    usual = float(np.median(times[fixed]))
    return welch(times, fixed), float(np.median(times[~fixed])) / usual - 1


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def _kernels(level: str, objects: Path | None, place: Path) -> Path:
    """Return the object file of a level: of a build, or compiled in `place` as CMake does."""
    if objects is not None:
        found = list(objects.rglob(f"kernels_{level}.cpp.o"))
        if not found:
            raise SystemExit(f"no kernels of level {level} below {objects}: was the build pure?")
        return max(found, key=lambda path: path.stat().st_mtime)  # of the last build
    networks = place / "median_networks.h"
    _run(sys.executable, str(ROOT / "tools/gen_median_networks.py"), str(networks))
    flags = ["-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", f"-I{place}"]
    flags += [] if level == "baseline" else [f"-march=x86-64-{level}"]
    made = place / f"kernels_{level}.o"
    _run("g++", *flags, "-c", str(ROOT / f"native/kernels_{level}.cpp"), "-o", str(made))
    return made


def remembered(level: str, objects: Path | None) -> dict[str, int]:
    """Return how often each step took a branch or an address that depends on its secrets.

    Args:
        level: of the kernels.
        objects: the folder of a build; None: compile them.
    """
    with tempfile.TemporaryDirectory() as folder:
        driver = f"{folder}/constant_time"
        kernels = _kernels(level, objects, Path(folder))
        source = str(ROOT / "tools/constant_time.cpp")
        flags = ["-std=c++17", "-O3", f"-DFEDTALLY_HAVE_{level}"]
        flags += [f"-DFEDTALLY_KERNELS=kernels_{level}"]
        _run("g++", *flags, source, str(kernels), "-o", driver)
        said = _run("valgrind", "-q", "--error-limit=no", driver)
    rows = (line.split("\t") for line in said.splitlines())
    return {name: int(count) for name, count in rows}


def _levels() -> list[str]:
    """Return the levels that valgrind and this processor run."""
    flags = Path("/proc/cpuinfo").read_text()
    return [level for level in LEVELS if level == "baseline" or " avx2 " in flags]


def by_memory(objects: Path | None) -> Iterator[tuple[Step, str, bool | None]]:
    """Yield each step that is measured by memory, what was found, and whether it depends."""
    if shutil.which("valgrind") is None or platform.machine() != "x86_64":
        raise SystemExit("--memory needs valgrind on x86-64: apt-get install valgrind")
    steps = {step.name: step for step in STEPS if step.make is None}
    for level in _levels():
        for name, found in remembered(level, objects).items():
            yield steps[name], f"{level}: {found} branches or addresses", found > 0


def by_time(factor: float) -> Iterator[tuple[Step, str, bool | None]]:
    """Yield each step that is measured by time, its |t|, and whether it depends; None: in doubt.

    Args:
        factor: on the number of calls.
    """
    for step in STEPS:
        if step.make is None:
            continue
        calls = max(1000, int(factor * step.calls))
        for _ in range(TURNS):
            t, longer = timed(step, calls)
            said = f"|t| {t:.1f} in {calls:,} calls, {longer:+.2%}"
            if not DOUBT < t <= FOUND:
                break
            calls *= AGAIN
        yield step, said, None if DOUBT < t <= FOUND else t > FOUND


def main() -> int:
    """Measure; return the status of the process."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--memory", action="store_true", help="the kernels alone, under valgrind")
    parser.add_argument("--time", action="store_true", help="the other steps alone")
    parser.add_argument("--objects", type=Path, help="a build, whose kernels are measured")
    parser.add_argument("--calls", type=float, default=1.0, metavar="FACTOR", help="more calls")
    asked = parser.parse_args()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    both = asked.memory == asked.time
    wrong = 0
    for wanted, found in (
        (both or asked.memory, by_memory(asked.objects)),
        (both or asked.time, by_time(asked.calls)),
    ):
        for step, said, depends in found if wanted else ():
            is_wrong = depends != step.depends
            wrong += is_wrong
            verdict = {True: "depends", False: "constant", None: "in doubt"}[depends]
            print(f"{step.name:32} {verdict:9} {said}{'   NOT AS THE TABLE SAYS' * is_wrong}")
    print(f"{wrong} steps are not as the table says")
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
