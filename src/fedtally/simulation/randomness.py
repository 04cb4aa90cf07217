"""The randomness of a simulated campaign: random bytes, and random generators.

The bytes are for hashes, keys and noise. The generators are for all other draws, such as the round
of each client.
"""

from __future__ import annotations

import hashlib
import itertools
import secrets
from collections.abc import Callable

import numpy as np


def campaign_seed(seed: int | str | bytes | None) -> bytes:
    """Return the 32-byte seed of a campaign's hashes.

    It follows from the seed that a person chose. If `seed` is None, the operating system draws it.

    >>> campaign_seed(1) == campaign_seed("1"), campaign_seed(None) == campaign_seed(None)
    (True, False)
    """
    if seed is None:
        return secrets.token_bytes(32)
    # 1 and "1" give the same seed: on a command line they look the same. Each function of this
    # module hashes another prefix, so that the streams of one seed are independent.
    raw = seed if isinstance(seed, bytes) else str(seed).encode()
    return hashlib.shake_256(b"fedtally/1/campaign\x00" + raw).digest(32)


def key_bytes(seed: int | str | bytes | None, purpose: bytes) -> Callable[[int], bytes]:
    """Return a function that returns a given number of random bytes, for keys and noise.

    If a seed was chosen, the bytes follow from it. Otherwise they come from the operating system.

    Args:
        seed: the seed that a person chose, or None.
        purpose: the name of the stream of bytes; streams of one seed with different names are
            independent.
    """
    if seed is None:
        return secrets.token_bytes
    counted = itertools.count()  # a number for each call, so that no bytes repeat
    chosen = b"fedtally/1/simulated keys\x00" + purpose + b"\x00" + campaign_seed(seed)
    return lambda size: hashlib.shake_256(chosen + next(counted).to_bytes(8, "little")).digest(size)


def simulation_rng(
    seed: bytes, own: int | str | bytes | None, *, is_private: bool, has_plan: bool
) -> np.random.Generator:
    """Return the generator for a simulation's draws, such as clients' rounds and items.

    It is not used for hashes. Its seed is the first of these that applies:

    1. in a private campaign without a chosen seed: a secret seed from the operating system;
    2. with a given plan and a chosen seed: the chosen seed;
    3. in all other cases: the seed of the hashes.

    Args:
        seed: the seed of the hashes, which is public.
        own: the seed that a person chose, or None.
        is_private: whether the campaign is private.
        has_plan: whether the seed of the hashes comes from a given plan, and not from the chosen
            seed.
    """
    # All runs of a plan share the seed of the hashes. So draws must depend on the chosen seed.
    chosen = seed if not has_plan or own is None else campaign_seed(own)
    if is_private and own is None:
        chosen = secrets.token_bytes(32)
    return np.random.default_rng(
        int.from_bytes(
            hashlib.shake_256(b"fedtally/1/simulation\x00" + chosen).digest(32), "little"
        )
    )


def population_rng(seed: int | str | bytes | None) -> np.random.Generator:
    """Return the generator with which a synthetic population is drawn.

    Nothing else uses its stream. So a seed gives the same population, whatever the campaign draws.
    If `seed` is None, the operating system draws a seed.
    """
    stream = hashlib.shake_256(b"fedtally/1/source\x00" + campaign_seed(seed)).digest(32)
    return np.random.default_rng(int.from_bytes(stream, "little"))
