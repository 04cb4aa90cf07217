"""Whole rounds: the sum is exact, whoever drops out and whenever."""

from __future__ import annotations

import numpy as np
import pytest
from secagg_cohort import Cohort

from fedtally.secagg.messages import ClientState, ServerState
from fedtally.secagg.params import Adversary

EARLY_AND_LATE = {"share": [3], "mask": [5, 9], "confirm": [6], "unmask": [7]}


@pytest.mark.parametrize("adversary", Adversary)
@pytest.mark.parametrize("dropped", [{}, EARLY_AND_LATE])
def test_the_sum_is_exactly_that_of_the_survivors(adversary: Adversary, dropped: dict[str, list[int]]) -> None:
    cohort = Cohort(24, adversary=adversary, max_dropout=0.25, dropped=dropped)
    server = cohort.run()
    assert server.state is ServerState.DONE
    assert server.outcome is not None
    gone = {i for phase in ("share", "mask") for i in dropped.get(phase, ())}
    assert server.outcome.survivors == 24 - len(gone)
    np.testing.assert_array_equal(server.outcome.total, cohort.expected)
    told = [i for i, client in enumerate(cohort.clients) if client.state is ClientState.DONE]
    assert all(cohort.clients[i].result == cohort.clients[told[0]].result for i in told)
