"""The compiled loops of the reader of names, beside their definitions in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtally import kernels
from fedtally.domain import symbols
from fedtally.recovery import names

pytestmark = pytest.mark.skipif(
    kernels.available_backends() == ("numpy",), reason="nothing is compiled here"
)
WORDS = ("tea", "coffee", "water", "tea shop", "weak tea", "café")


def both(call: Any, *arguments: Any) -> tuple[Any, Any]:
    """Return what a function gives by NumPy, and by the fastest kernels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDTALLY_KERNELS", "numpy")
        defined = call(*arguments)
        patch.setenv("FEDTALLY_KERNELS", kernels.available_backends()[-1])
        return defined, call(*arguments)


def prior(learnt: int) -> names._Prior:
    found = names._Prior()
    for word in WORDS[:learnt]:
        found.learn(np.frombuffer(word.encode(), np.uint8))
    return found


def scores(seed: int, places: int, spread: float = 3.0) -> Any:
    found = np.random.default_rng(seed).normal(0, spread, (places, 256))
    found[:, symbols.FIRST_UNUSED :] = -np.inf
    return found


SEEDS, LEARNT = st.integers(0, 1000), st.integers(0, len(WORDS))


@given(SEEDS, LEARNT, st.lists(st.integers(0, 30), max_size=4))
def test_posteriors_are_those_of_the_chain(seed: int, learnt: int, sizes: list[int]) -> None:
    every = [scores(seed + place, size) for place, size in enumerate(sizes)]
    defined, found = both(names._posteriors, every, prior(learnt))
    assert [one.shape for one in found] == [one.shape for one in defined]
    for one, other in zip(defined, found, strict=True):
        np.testing.assert_allclose(np.exp(other), np.exp(one), rtol=1e-9, atol=1e-15)


@given(SEEDS, LEARNT, st.integers(1, 20), st.sampled_from([16, 64, 512]))
def test_the_likeliest_words_are_the_same(seed: int, learnt: int, places: int, most: int) -> None:
    copies, chain = scores(seed, places), prior(learnt)
    [posterior] = names._posteriors([copies], chain)
    defined, found = both(names._likeliest, copies, posterior, chain, most)
    assert found.dtype == np.uint8 and found.tolist() == defined.tolist()


@given(
    SEEDS,
    st.integers(2, 24),
    st.integers(1, 23),
    st.sampled_from([names._QUICK, names._PATIENT]),
)
def test_interpolated_words_are_the_same(
    seed: int, size: int, parity: int, effort: names._Effort
) -> None:
    rng = np.random.default_rng(seed)
    name = np.append(rng.integers(97, 123, size - 1), symbols.END).astype(np.uint8)
    wanted = symbols.parity_of(size, size + min(parity, size - 1))
    rest = symbols.interpolate(tuple(range(size)), name[None], wanted)[0]
    posterior, more = scores(seed, size - 1, 2.0), rng.normal(0, 2.0, (len(wanted), 256))
    posterior[np.arange(size - 1), name[:-1]] += 6.0
    more[np.arange(len(wanted)), rest] += 6.0
    defined, found = both(names._interpolated, posterior, more, effort)
    assert found.tolist() == defined.tolist()
