"""Messages of belief propagation: every compiled level against the NumPy reference, and the door
that guards both."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtally.errors import InvalidInputError
from fedtally.kernels import propagation
from fedtally.kernels.propagation import COLUMNS, LANES, Cells, Rule, Table

F32 = npt.NDArray[np.float32]
U32 = npt.NDArray[np.uint32]


def drawn(
    seed: int, rows: int, width: int, batches: int, count: int, fresh: bool
) -> tuple[Cells, U32, F32, F32]:
    rng = np.random.default_rng(seed)
    kinds, groups = (batches, batches) if fresh else (1, -(-batches // 8))
    cells = Cells(
        rng.normal(0.0, 300.0, (rows, width, batches)),
        rng.gamma(2.0, 400.0, (rows, width, kinds)),
        fresh,
        1.1,
    )
    words = propagation.pack_words(rng.integers(2**32, size=(groups, rows, count), dtype=np.uint32))
    shape = len(words), rows, batches, LANES
    beliefs = rng.gamma(0.2, 200.0, shape).astype(np.float32)
    unsure = rng.gamma(0.5, 300.0, (len(words), rows, kinds, LANES)).astype(np.float32)
    return cells, words, beliefs, unsure


def ruled(seed: int, batches: int, fresh: bool, gate: float) -> Rule:
    rng = np.random.default_rng(seed + 1)
    # a batch that did not land has no clients
    weights = rng.gamma(0.5, 1.0, batches) * (rng.random(batches) > 0.1) + 1e-9
    shares = np.ones(batches) if fresh else rng.gamma(2.0, 1.0, batches)
    z = np.linspace(-propagation.FAR, propagation.FAR, COLUMNS)
    means = np.log1p(np.exp(z - rng.normal(0.0, 1.0, (4, 1))))
    table = Table(3.0, 0.7, np.stack([means, rng.gamma(4.0, 0.2, means.shape)], axis=2))
    return Rule(table, weights / weights.sum(), shares / shares.mean(), 1.5, 0.8, gate)


@settings(max_examples=40)
@given(
    st.integers(0, 2**32),
    st.integers(2, 18),
    st.integers(1, 40),
    st.integers(1, 18),
    st.integers(1, 100),
    st.booleans(),
    st.sampled_from([-np.inf, 0.0, 1.5]),
)
def test_messages_match_the_reference(
    backend: str,
    seed: int,
    rows: int,
    width: int,
    batches: int,
    count: int,
    fresh: bool,
    gate: float,
) -> None:
    cells, words, beliefs, unsure = drawn(seed, rows, width, batches, count, fresh)
    rule = ruled(seed, batches, fresh, gate)
    ours, own = beliefs.copy(), unsure.copy()
    expected = propagation._exchanged(cells, words, count, beliefs, unsure, rule)
    found = propagation.exchange_messages(cells, words, count, ours, own, rule)
    close = {"rtol": 2e-5, "atol": 1e-2}  # single precision of messages of up to 1,000s of clients
    live = np.arange(len(words) * LANES).reshape(-1, LANES) < count
    for mine, theirs in ((ours, beliefs), (own, unsure)):
        shown = np.broadcast_to(live[:, None, None], mine.shape)
        assert np.allclose(mine[shown], theirs[shown], **close)
    assert np.allclose(found.explained, expected.explained, **close)
    assert np.allclose(found.unknown, expected.unknown, **close)
    assert np.allclose(found.read.value, expected.read.value, rtol=1e-9, atol=1e-7)
    assert np.allclose(found.read.stddev, expected.read.stddev, rtol=1e-9)
    assert np.allclose(found.read.scales, expected.read.scales, rtol=1e-9)
    assert found.moved == pytest.approx(expected.moved, rel=1e-6)
    assert np.allclose(found.fits, expected.fits, rtol=1e-6)
    assert np.array_equal(found.numbers, expected.numbers)
    silent = propagation.read_messages(cells, words, count)
    reference = propagation._joined(cells, words, count, None, None)[0]
    assert np.allclose(silent.value, reference.value, rtol=1e-9, atol=1e-7)


def test_the_number_of_threads_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are the same for any number of threads, so the sums are equal bit by bit."""
    cells, words, beliefs, unsure = drawn(1, 3, 50, 4, 5000, False)
    rule, found = ruled(1, 4, False, 0.0), []
    for threads in ("1", "3"):
        monkeypatch.setenv("FEDTALLY_NUM_THREADS", threads)
        found.append(
            propagation.exchange_messages(cells, words, 5000, beliefs.copy(), unsure.copy(), rule)
        )
    assert np.array_equal(found[0].explained, found[1].explained)
    assert np.array_equal(found[0].read.value, found[1].read.value)
    assert found[0].moved == found[1].moved


def test_what_the_door_refuses() -> None:
    """With other shapes the compiled kernel would read and write beyond arrays."""
    cells, words, beliefs, unsure = drawn(2, 3, 10, 4, 40, False)
    rule = ruled(2, 4, False, 0.0)

    def refused(match: str, **changed: object) -> None:
        given = {
            "cells": cells,
            "words": words,
            "count": 40,
            "beliefs": beliefs,
            "unsure": unsure,
            "rule": rule,
        }
        with pytest.raises(InvalidInputError, match=match):
            propagation.exchange_messages(**(given | changed))  # type: ignore[arg-type]

    refused("words must be", words=words[:1])
    refused("words must be", count=70)
    refused("beliefs must be", beliefs=beliefs.astype(float))
    refused("beliefs must be", beliefs=beliefs[..., ::-1])
    refused("unsure must be", unsure=unsure[:, :2])
    refused("variance must be", cells=cells._replace(fresh=True))
    refused("residual must be", cells=cells._replace(residual=cells.residual.astype(np.float32)))
    refused("weights and shares", rule=rule._replace(weights=np.ones(3)))
    short = Table(0.0, 1.0, rule.table.entries[:1])
    refused("a table must be", rule=rule._replace(table=short))
    refused("count must be at least 1", count=0)
    alone = drawn(3, 1, 10, 4, 40, False)
    with pytest.raises(InvalidInputError, match="at least 2 rows, got 1"):
        propagation.read_messages(alone[0], alone[1], 40)
