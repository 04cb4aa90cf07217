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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from fedtally.base import validate
from fedtally.base.encoding import Encoding
from fedtally.crypto.keys import KEY_BYTES, Secret
from fedtally.dap.state import Store, Table
from fedtally.dap.task import Task
from fedtally.errors import InvalidInputError
from fedtally.privacy.events import Event, Mechanism, Relation, Trust

if TYPE_CHECKING:
    from fedtally.privacy.budget import Charge
    from fedtally.privacy.config import PrivacyConfig
    from fedtally.store import Ledger

_OWNER = b"owner"  # in the table of terms: this server's name in its ledger


@dataclass(frozen=True, kw_only=True)
class DapNoise:
    """What both operators agreed on: each of the two servers adds this noise to every counter.

    Args:
        epsilon: 0.001 to 100, for a report.
        delta: between 0 and 1, exclusive.
        variance: the variance of the noise in a counter, as `propose` finds it.
        population: the population whose budget is charged.
        ledger: the path or URL of this operator's ledger; None: a collector charges none.

    >>> noise = DapNoise(epsilon=1.0, delta=1e-6, variance=36.0)
    >>> DapNoise.from_dict(noise.to_dict()) == noise
    True
    """

    epsilon: float
    delta: float
    variance: float
    population: str = "clients"
    ledger: str | None = None

    @classmethod
    def propose(cls, task: Task, *, epsilon: float, delta: float, **own: str) -> Self:
        """Return the least noise that guarantees epsilon at delta.

        Args:
            task: the task.
            epsilon: the epsilon of the guarantee.
            delta: the delta of the guarantee.
            own: the operator's population and ledger.

        Raises:
            InvalidInputError: a value is out of bounds, or the task is a vector of sums.
        """
        from fedtally.privacy import config

        task.check_noise()
        terms = config.propose(
            epsilon=epsilon,
            delta=delta,
            rows=1,
            width=task.prio3.circuit.length,
            relation=Relation.REPLACE_ONE,
            trust=Trust.DISTRIBUTED,
            encoding=Encoding.HISTOGRAM,
        )
        return cls(epsilon=epsilon, delta=delta, variance=terms.event.noise_variance, **own)

    @property
    def agreed(self) -> bytes:
        """What must be the same at both servers."""
        values = {name: getattr(self, name) for name in ("epsilon", "delta", "variance")}
        return json.dumps(values, sort_keys=True).encode()

    def terms(self, task: Task) -> PrivacyConfig:
        """Return the guarantee for a report of a task, which is proven anew.

        Raises:
            InvalidInputError: the noise is too little for it, or the task is a vector of sums.
        """
        from fedtally.privacy import config
        from fedtally.privacy.laws import LAWS

        task.check_noise()
        mechanism, counters = Mechanism.ROUNDED_GAUSSIAN, task.prio3.circuit.length
        event = Event(
            mechanism,
            rows=1,
            relation=Relation.REPLACE_ONE,
            variance=self.variance,
            total_variation=LAWS[mechanism].total_variation(Trust.DISTRIBUTED, counters, 1),
            trust=Trust.DISTRIBUTED,
            encoding=Encoding.HISTOGRAM,
        )
        return config.PrivacyConfig(
            epsilon=self.epsilon, delta=self.delta, event=event, population=self.population
        )

    def charge(self, task: Task, batch: int) -> Charge:
        """Return the charge of a batch; the task is charged with its first one."""
        from fedtally.privacy.budget import Charge

        return Charge(self.population, task.id.hex(), batch, self.terms(task).event)

    def check(self, task: Task) -> None:
        """Refuse noise that cannot be charged now: before there are reports, that can be mended.

        Raises:
            InvalidInputError: there is no ledger, nothing was granted, too little is left, or the
                noise is too little for its guarantee.
            UnreadableFileError: the ledger cannot be read.
        """
        self.open_ledger().check_charge(self.charge(task, 0))

    def open_ledger(self) -> Ledger:
        """Open this operator's ledger.

        Raises:
            InvalidInputError: none is named.
            UnreadableFileError: it cannot be read.
        """
        from fedtally.store import Ledger

        if self.ledger is None:
            raise InvalidInputError(
                "noise is charged to a ledger: name yours, which fedtally ledger grant makes"
            )
        return Ledger.open(self.ledger)

    def absolute(self) -> DapNoise:
        """Return the noise with a ledger that is found in every working directory."""
        if self.ledger is None or "://" in self.ledger:
            return self
        return replace(self, ledger=str(Path(self.ledger).absolute()))

    def to_dict(self) -> dict[str, Any]:
        """Return the entries of a settings file."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: value for name, value in values.items() if value is not None}

    @classmethod
    def from_dict(cls, values: Any) -> Self:
        """Return the noise of a settings file.

        Raises:
            InvalidInputError: an entry is missing or unknown.
        """
        names = list(cls.__dataclass_fields__)
        entries = validate.table("noise", values, names, optional=("ledger",))
        if not isinstance(entries.get("ledger", ""), str):
            raise InvalidInputError(f"ledger of noise must be a text, got {entries['ledger']!r}")
        return cls(**entries)


class LedgerNoise:
    """The noise of one server, charged to its operator's ledger before it is drawn: a `dap.Noise`.

    Args:
        noise: the agreed noise.
        task: the task.
        store: what the server keeps.
        clock: returns the time, Unix seconds.
        random: returns random bytes, as many as it is told.

    Raises:
        InvalidInputError: as for `DapNoise.check`.
    """

    def __init__(
        self,
        noise: DapNoise,
        task: Task,
        store: Store,
        *,
        clock: Callable[[], int],
        random: Callable[[int], bytes],
    ) -> None:
        noise.check(task)
        self.terms = noise.agreed
        self._noise, self._task = noise, task
        self._clock, self._random = clock, random
        self._ledger, self._owner = noise.open_ledger(), _owner(store, random)

    def charge(self, batch: int) -> None:
        """Charge a batch; the task is charged with its first one.

        Raises:
            OverspentError: the population has too little left.
            AlreadySpentError: another server with a store of its own charged the task.
            InvalidInputError: nothing was granted.
        """
        self._ledger.reserve(self._noise.charge(self._task, batch), self._owner, self._clock())

    def draw(self, counters: int) -> npt.NDArray[np.int64]:
        """Return all of the noise that the guarantee needs."""
        drawn = self._noise.terms(self._task).noise()
        return drawn.draw(Secret(self._random(KEY_BYTES)), counters)


def _owner(store: Store, random: Callable[[int], bytes]) -> str:
    """Return the name of a store in a ledger: of a second store the same task is refused."""
    kept = store.get(Table.TERMS, _OWNER)
    if kept is None:
        kept = random(KEY_BYTES)
        store.put(Table.TERMS, _OWNER, kept)
    return kept.hex()
