"""Integer noise on one thread, in one run: bits, every backend, NumPy's searchsorted, goals.

A rate is of draws, the bits of AES-256 included, also in NumPy's.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from itertools import accumulate

import click
import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from benchmarks.measure import Case, Goal, Report, environment, interleaved, machine
from fedtally import kernels
from fedtally.crypto.keys import KEY_BYTES, Secret
from fedtally.crypto.prg import Masking
from fedtally.privacy.geometric import Geometric
from fedtally.privacy.mechanism import Noise, rounded_gaussian, skellam

KEY = bytes(KEY_BYTES)
BITS = "bits, 64 a draw"
CLIENT = "Skellam 0.289"
SCAN = f"{CLIENT}, constant time"
FACTORS = {
    CLIENT: 3.0,
    "Skellam 289": 5.0,
    "Gaussian 289": 5.0,
    "Skellam 22500": 5.0,
    "Gaussian 22500": 5.0,
}


def noises() -> dict[str, Noise]:
    """Make the distributions to draw from."""
    noises = {f"Skellam {variance:g}": skellam(variance) for variance in (0.289, 289.0, 22500.0)}
    return noises | {
        f"Gaussian {variance:g}": rounded_gaussian(variance) for variance in (289.0, 22500.0)
    }


def stream(size: int) -> npt.NDArray[np.uint64]:
    """Return the words that the sampler uses."""
    words = np.zeros(size, "<u8")
    Masking(words).add(Secret(KEY))
    return words


def bit_cases(size: int) -> list[Case]:
    """The sampler's bits, and AES-256 in counter mode as the library gives it."""
    zeros, output = bytes(8 * size), bytearray(8 * size + 16)

    def counter_mode() -> None:
        Cipher(algorithms.AES(KEY), modes.CTR(bytes(16))).encryptor().update_into(zeros, output)

    return [
        Case(BITS, "prg", partial(stream, size), size, "M/s"),
        Case(BITS, "AES-CTR", counter_mode, size, "M/s"),
    ]


def draw_cases(backend: str, size: int) -> list[Case]:
    """Draw from every distribution, and from the small one in constant time."""

    def case(name: str, noise: Noise, constant_time: bool = False) -> Case:
        def run() -> None:
            with environment(FEDTALLY_KERNELS=backend):
                noise.draw(Secret(KEY), size, constant_time)

        return Case(name, backend, run, size, "M/s")

    found = noises()
    return [*(case(name, noise) for name, noise in found.items()), case(SCAN, found[CLIENT], True)]


def exact_cases(size: int) -> list[Case]:
    """Draw geometric noise, which is no table and has no kernels."""
    return [
        Case(
            name, "exact", partial(lambda noise: noise.draw(Secret(KEY), size), noise), size, "M/s"
        )
        for name, noise in ((f"geometric {at:g}", Geometric(at)) for at in (1.84, 289.0))
    ]


def peer_cases(size: int) -> list[Case]:
    """NumPy's searchsorted on the upper halves of the same tables."""

    def search(noise: Noise) -> Callable[[], object]:
        table = np.array([entry >> 64 for entry in accumulate(noise.masses[:-1])], np.uint64)
        return lambda: np.searchsorted(table, stream(size)) - noise.largest

    return [
        Case(name, "searchsorted", search(noise), size, "M/s") for name, noise in noises().items()
    ]


def judge(report: Report, levels: list[str]) -> None:
    """Append the goals, each as a ratio within this run, for every compiled level."""
    bits = max(report.best(BITS, source) for source in ("prg", "AES-CTR"))
    for level in levels:
        for name, factor in FACTORS.items():
            rate = report.best(name, level)
            report.goals.append(
                Goal(
                    f"{level}: {name} / searchsorted",
                    rate / report.best(name, "searchsorted"),
                    factor,
                    "x",
                )
            )
            report.goals.append(Goal(f"{level}: bits / {name}", bits / rate, 3, "x", at_most=True))


def measure(size: int, turns: int) -> Report:
    """Run everything on one thread; NumPy draws a sixteenth as many."""
    levels = [name for name in kernels.available_backends() if name != "numpy"]
    report = Report(
        machine() | {"backends": ", ".join(kernels.available_backends()), "draws": f"{size:,}"}
    )
    small = max(size // 16, 1)
    cases = bit_cases(size) + peer_cases(small) + draw_cases("numpy", small) + exact_cases(small)
    for level in levels:
        cases += draw_cases(level, size)
    report.rates = sorted(interleaved(cases, turns), key=lambda rate: rate.name)
    if levels:
        judge(report, levels)
    else:
        report.notes.append("nothing was compiled: no goal applies to the NumPy kernels")
    return report


@click.command("noise")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option(
    "--quick", is_flag=True, help="Few draws, few turns: shows that it runs, the rates mean little."
)
def command(as_json: bool, quick: bool) -> None:
    """Measure the integer noise and its bits against NumPy's search of the same table."""
    os.environ.pop("FEDTALLY_KERNELS", None)
    (measure(1 << 12, 2) if quick else measure(1_000_000, 25)).emit(as_json)
