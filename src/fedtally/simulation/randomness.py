"""Seeds of a simulated campaign: of its hashes, of its keys and noise, and of its other draws."""

from __future__ import annotations

import hashlib
import itertools
import secrets
from collections.abc import Callable

import numpy as np


def campaign_seed(seed: int | str | bytes | None) -> bytes:
    """Return the 32 bytes from which a campaign's hashes are derived.

    They come from the seed that a person chose; without one, from the operating system.

    >>> campaign_seed(1) == campaign_seed("1"), campaign_seed(None) == campaign_seed(None)
    (True, False)
    """
    if seed is None:
        return secrets.token_bytes(32)
    # 1 and "1" are the same seed: on a command line they cannot be told apart. The prefix, here and
    # below, keeps streams of one seed for different uses apart.
    raw = seed if isinstance(seed, bytes) else str(seed).encode()
    return hashlib.shake_256(b"fedtally/1/campaign\x00" + raw).digest(32)


def key_bytes(seed: int | str | bytes | None, purpose: bytes) -> Callable[[int], bytes]:
    """Return the source of the bytes for the keys and the noise of a simulation.

    It is the operating system, unless a seed was chosen.

    Args:
        seed: the seed that a person chose, or None.
        purpose: the name of the stream; two streams of one seed have nothing in common.
    """
    if seed is None:
        return secrets.token_bytes
    counted = itertools.count()  # each call hashes another number, so that no bytes come twice
    chosen = b"fedtally/1/simulated keys\x00" + purpose + b"\x00" + campaign_seed(seed)
    return lambda size: hashlib.shake_256(chosen + next(counted).to_bytes(8, "little")).digest(size)


def simulation_rng(
    seed: bytes, own: int | str | bytes | None, *, is_private: bool, has_plan: bool
) -> np.random.Generator:
    """Return the generator of the simulated draws: rounds, and the items that a client contributes.

    The hashes do not depend on this generator. Its seed is secret and drawn by the operating system
    if the campaign is private and nobody chose a seed. Else it is the chosen seed, if a plan sets
    the hashes and a seed was chosen. Else it is the seed of the hashes.

    Args:
        seed: the seed of the hashes, which is public.
        own: the seed that a person chose, or None.
        is_private: whether the campaign is private.
        has_plan: whether a given plan sets the seed of the hashes, in place of the chosen seed.
    """
    # All runs of a plan have the same seed of the hashes. So the chosen seed must decide the draws.
    chosen = seed if not has_plan or own is None else campaign_seed(own)
    if is_private and own is None:
        chosen = secrets.token_bytes(32)
    return np.random.default_rng(
        int.from_bytes(
            hashlib.shake_256(b"fedtally/1/simulation\x00" + chosen).digest(32), "little"
        )
    )


def population_rng(seed: int | str | bytes | None) -> np.random.Generator:
    """Return the generator that a synthetic population is drawn with.

    It is a stream of the seed that nothing else uses. So the same seed gives the same population,
    whatever the campaign on it draws.
    """
    stream = hashlib.shake_256(b"fedtally/1/source\x00" + campaign_seed(seed)).digest(32)
    return np.random.default_rng(int.from_bytes(stream, "little"))
