"""The noise of a server of DAP: how much a guarantee needs, and the ledger that it is charged to.

The unit is a report: one report of a batch may be replaced by any other, and what the collector
learns looks alike. How many reports a person sends is not bounded, since DAP has no identities.
The number of reports is exact. A report is in one batch at most, so that all batches of a task
together cost what one of them costs. A count is charged as a histogram of two buckets is, though
it shows one of them alone: so both kinds of task compose in one population.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from fedtally.base import validate
from fedtally.base.encoding import Encoding
from fedtally.crypto.keys import KEY_BYTES, Secret
from fedtally.dap.state import Store, Table
from fedtally.dap.task import Task
from fedtally.privacy import config
from fedtally.privacy.budget import Charge
from fedtally.privacy.config import POPULATION, PrivacyConfig
from fedtally.privacy.events import Event, Mechanism, Relation, Trust
from fedtally.store import Ledger

_OWNER = b"owner"  # in the table of terms: this server's name in its ledger


@dataclass(frozen=True, kw_only=True)
class DapNoise:
    """What both operators agreed on: each of the two servers adds this noise to every counter.

    Args:
        epsilon: 0.001 to 100, for a report.
        delta: between 0 and 1, exclusive.
        variance: the variance of the noise in a counter, as `propose` finds it.
        population: the population whose budget is charged, in this operator's ledger.

    >>> noise = DapNoise(epsilon=1.0, delta=1e-6, variance=36.0)
    >>> DapNoise.from_dict(noise.to_dict()) == noise
    True
    """

    epsilon: float
    delta: float
    variance: float
    population: str = POPULATION

    @classmethod
    def propose(
        cls, task: Task, *, epsilon: float, delta: float, population: str = POPULATION
    ) -> Self:
        """Return the least noise that guarantees epsilon at delta.

        Raises:
            InvalidInputError: a value is out of bounds, or the task is a vector of sums.
        """
        task.check_noise()
        terms = config.propose(
            epsilon=epsilon,
            delta=delta,
            rows=1,
            width=task.prio3.circuit.length,
            relation=Relation.REPLACE_ONE,
            trust=Trust.DISTRIBUTED,
            population=population,
            encoding=Encoding.HISTOGRAM,
        )
        variance = terms.event.noise_variance
        return cls(epsilon=epsilon, delta=delta, variance=variance, population=population)

    @property
    def agreed(self) -> bytes:
        """What must be the same at both servers."""
        values = {name: value for name, value in self.to_dict().items() if name != "population"}
        return json.dumps(values, sort_keys=True).encode()

    def terms(self, task: Task) -> PrivacyConfig:
        """Return the guarantee for a report of a task, which is proven anew.

        Raises:
            InvalidInputError: the noise is too little for it, or the task is a vector of sums.
        """
        task.check_noise()
        mechanism, counters = Mechanism.ROUNDED_GAUSSIAN, task.prio3.circuit.length
        event = Event(
            mechanism,
            rows=1,
            relation=Relation.REPLACE_ONE,
            variance=self.variance,
            total_variation=config.total_variation(mechanism, Trust.DISTRIBUTED, counters, 1),
            trust=Trust.DISTRIBUTED,
            encoding=Encoding.HISTOGRAM,
        )
        return PrivacyConfig(
            epsilon=self.epsilon, delta=self.delta, event=event, population=self.population
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the entries of a settings file."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def from_dict(cls, values: Any) -> Self:
        """Return the noise of a settings file.

        Raises:
            InvalidInputError: an entry is missing or unknown.
        """
        return cls(**validate.table("noise", values, list(cls.__dataclass_fields__)))


class LedgerNoise:
    """The noise of one server, charged to its operator's ledger before it is drawn: a `dap.Noise`.

    Args:
        noise: the agreed noise.
        task: the task.
        store: what the server keeps.
        ledger: this operator's.
        clock: returns the time, Unix seconds.
        random: returns random bytes, as many as it is told.

    Raises:
        InvalidInputError: the noise is too little for its guarantee, or the ledger would refuse the
            first batch now: before there are reports, it can be mended.
    """

    def __init__(
        self,
        noise: DapNoise,
        task: Task,
        store: Store,
        ledger: Ledger,
        *,
        clock: Callable[[], int],
        random: Callable[[int], bytes],
    ) -> None:
        self.terms = noise.agreed
        self._config = noise.terms(task)
        self._plan, self._ledger = task.id.hex(), ledger
        self._clock, self._random = clock, random
        ledger.check_charge(self._charge(0))
        self._owner = _owner(store, random)

    def charge(self, batch: int) -> None:
        """Charge a batch; the task is charged with its first one.

        Raises:
            OverspentError: the population has too little left.
            AlreadySpentError: another server with a store of its own charged the task.
            InvalidInputError: nothing was granted.
        """
        self._ledger.reserve(self._charge(batch), self._owner, self._clock())

    def _charge(self, batch: int) -> Charge:
        return Charge(self._config.population, self._plan, batch, self._config.event)

    def draw(self, counters: int) -> npt.NDArray[np.int64]:
        """Return all of the noise that the guarantee needs."""
        return self._config.noise().draw(Secret(self._random(KEY_BYTES)), counters)


def _owner(store: Store, random: Callable[[int], bytes]) -> str:
    """Return the name of a store in a ledger: of a second store the same task is refused."""
    with store.transaction():
        kept = store.get(Table.TERMS, _OWNER)
        if kept is None:
            kept = random(KEY_BYTES)
            store.put(Table.TERMS, _OWNER, kept)
    return kept.hex()
