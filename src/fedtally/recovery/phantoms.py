"""Ids that no client holds, which suffer the errors of candidates, and their random generator."""

from __future__ import annotations

import hashlib

import numpy as np

NUM_PHANTOMS = 20_000  # phantoms that show the scale of the errors


def generator(seed: bytes, purpose: bytes) -> np.random.Generator:
    """Return the generator of a decoder's own draws.

    The generator's seed follows from the sketches' seed, so that the same sums give the same
    answers. Each purpose has a generator of its own.
    """
    return np.random.default_rng(
        int.from_bytes(
            hashlib.shake_256(b"fedtally/1/recovery\x00" + purpose + b"\x00" + seed).digest(32),
            "little",
        )
    )
