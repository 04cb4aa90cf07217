"""Phantoms: random ids that no client holds. Their estimates show the errors of candidates."""

from __future__ import annotations

import hashlib

import numpy as np

NUM_PHANTOMS = 20_000  # enough to measure the errors of candidates


def generator(seed: bytes, purpose: bytes) -> np.random.Generator:
    """Return the random generator of a decoder for one purpose.

    It is seeded from the seed of the sketches, so that the same sums always give the same answers.
    Each purpose gets independent draws.

    Args:
        seed: the seed of the sketches.
        purpose: a name for what is drawn.
    """
    return np.random.default_rng(
        int.from_bytes(
            hashlib.shake_256(b"fedtally/1/recovery\x00" + purpose + b"\x00" + seed).digest(32),
            "little",
        )
    )
