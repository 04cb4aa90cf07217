"""What the noise of a whole row adds up to: proven, and seen never to be exceeded."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtally.crypto.keys import Secret
from fedtally.plan.parts.protection import Protection
from fedtally.privacy.config import PrivacyConfig, propose
from fedtally.sketch import Schedule

SERVERS: dict[str, Any] = {"delta": 1e-6, "trust": "distributed"}
SHARES = SERVERS | {"honest_survivors": 500, "most_clients": 600}


def terms_of(asked: dict[str, Any], epsilon: float, rows: int, width: int) -> PrivacyConfig:
    return propose(**asked, epsilon=epsilon, rows=rows, width=width)


def row_bound(terms: PrivacyConfig, rows: int, width: int, clients: int) -> int:
    protection = Protection(terms, Schedule.parse("shared"), 1, has_secure_sum=True)
    return protection.row_bound(rows, width, clients)


def distribution(terms: PrivacyConfig, clients: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the chances of -m .. m in one counter of a sum, by a convolution where two servers
    draw."""
    noise = terms.share(clients) if terms.by_clients else terms.noise()
    one = np.array([noise.pmf().get(k, 0.0) for k in range(-noise.largest, noise.largest + 1)])
    return one if terms.by_clients else np.convolve(one, one)


@pytest.mark.parametrize("asked", [SERVERS, SHARES])
@pytest.mark.parametrize(
    ("epsilon", "rows", "width"), [(8.0, 3, 1), (4.0, 3, 16), (1.0, 3, 64), (20.0, 5, 200)]
)
def test_a_row_exceeds_the_bound_with_less_than_its_chance(
    asked: dict[str, Any], epsilon: float, rows: int, width: int
) -> None:
    """By the exact distribution of the sum: sizes convolved `width` times, so that no row of all
    exceeds it but for
    2^-40.
    """
    terms = terms_of(asked, epsilon, rows, width)
    single = distribution(terms, 600)
    middle = len(single) // 2
    size = np.append(single[middle], 2 * single[middle + 1 :])
    size = np.append(size[: np.flatnonzero(size).max()], size[np.flatnonzero(size).max()])
    whole = np.ones(1)
    for _ in range(width):
        whole = np.convolve(whole, size)
        whole = whole[: np.flatnonzero(whole > 1e-60).max() + 1]  # far below what counts here
    bound = row_bound(terms, rows, width, 600)
    above = rows * whole[bound + 1 :].sum()
    assert above <= 2**-40
    assert rows * whole[int(0.8 * bound) :].sum() > 2**-40  # and not much more than is needed


@settings(max_examples=25, deadline=None)
@given(
    asked=st.sampled_from([SERVERS, SHARES]),
    epsilon=st.sampled_from([1.0, 4.0]),
    rows=st.sampled_from([3, 5]),
    width=st.sampled_from([1, 16, 300]),
    seed=st.integers(0, 2**64 - 1),
)
def test_drawn_noise_stays_below_the_bound(
    asked: dict[str, Any], epsilon: float, rows: int, width: int, seed: int
) -> None:
    """Fails for an honest sum with a probability of 2^-40."""
    terms = terms_of(asked, epsilon, rows, width)
    noise, draws = (terms.share(600), 1) if terms.by_clients else (terms.noise(), 2)
    keys = (Secret(seed.to_bytes(8, "little") + bytes([draw]) * 24) for draw in range(draws))
    total = np.sum([noise.draw(key, rows * width) for key in keys], axis=0)
    sizes = np.abs(total).reshape(rows, width).sum(axis=1)
    assert sizes.max() <= row_bound(terms, rows, width, 600)


@pytest.mark.parametrize("asked", [SERVERS, SHARES])
def test_the_drawn_rows_are_far_from_the_bound(asked: dict[str, Any]) -> None:
    """Of 2,000 rows of 1,000 counters; the deviation of one is at most sqrt(W) sigma, six of the
    mean's are allowed.

    None comes as near the bound as one such deviation; the bound is within ten of the mean.
    """
    terms = terms_of(asked, 1.0, 5, 1000)
    noise, draws = (terms.share(600), 1) if terms.by_clients else (terms.noise(), 2)
    total = sum(noise.draw(Secret(bytes([draw]) * 32), 2_000_000) for draw in range(draws))
    sizes = np.abs(np.asarray(total)).reshape(2000, 1000).sum(axis=1)
    chances = distribution(terms, 600)
    mean = 1000 * float(np.sum(chances * np.abs(np.arange(len(chances)) - len(chances) // 2)))
    stddev = math.sqrt(1000) * terms.largest_stddev(600)
    bound = row_bound(terms, 5, 1000, 600)
    assert abs(sizes.mean() - mean) < 6 * stddev / math.sqrt(2000)
    assert sizes.max() + stddev < bound < mean + 10 * stddev


def test_noise_that_is_added_afterwards_counts_for_nothing() -> None:
    assert row_bound(propose(epsilon=1.0, delta=1e-6, rows=3, width=16), 3, 16, 600) == 0
