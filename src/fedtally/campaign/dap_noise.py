"""The noise of a DAP server: how much a privacy guarantee needs, and the ledger that is charged.

A DAP task is what two servers sum for a collector, in batches of reports. The guarantee protects a
report: if one report of a batch were replaced by any other, the collector could hardly tell. It
does not protect a person who sends several reports. DAP does not identify people, so it cannot
limit the reports of a person. The number of reports is published exactly.

A report is in at most one batch. So all batches of a task together cost as much privacy budget as
one batch. A count is charged like a histogram of two buckets, although it shows only one of the
two buckets. So counts and histograms can be charged to the same population's budget.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
import numpy.typing as npt

from fedtally.base import validate
from fedtally.base.encoding import Encoding
from fedtally.crypto.keys import KEY_BYTES, Secret
from fedtally.dap.state import Store, Table
from fedtally.dap.task import Task
from fedtally.errors import FedtallyError, InvalidInputError
from fedtally.privacy.events import Event, Mechanism, Relation, Trust

if TYPE_CHECKING:
    from fedtally.privacy.budget import Charge
    from fedtally.privacy.config import PrivacyConfig
    from fedtally.privacy.mechanism import Noise
    from fedtally.store import Ledger


class UnchargedError(FedtallyError):
    """Say that the ledger cannot be charged, although it could when the server was started."""


# The server charges its ledger under a name. This is the key of the name in the store's table of
# terms, see `_owner`.
_OWNER = b"owner"


@dataclass(frozen=True, kw_only=True)
class DapNoise:
    """The noise that each of the two servers adds to every counter, as both operators agreed on it.

    Args:
        epsilon: the epsilon of the guarantee for a report, 0.001 to 100.
        delta: the delta of the guarantee, between 0 and 1, exclusive.
        variance: the variance of one server's noise in a counter. `propose` computes it.
        population: the name of the population whose privacy budget is charged.
        ledger: the path or URL of this operator's ledger of privacy budgets. None at a collector,
            which charges nothing.

    The values are checked when they are used: see `terms`.

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
        """Return noise with which a report has the guarantee `epsilon` at `delta`.

        Args:
            task: the task.
            epsilon: the epsilon of the guarantee.
            delta: the delta of the guarantee.
            own: `population` and `ledger` of this operator, as in `DapNoise`.

        Raises:
            InvalidInputError: `epsilon` or `delta` is out of bounds, or the task sums vectors.
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
        """Epsilon, delta and variance, which must be equal at both servers, as JSON bytes."""
        values = {name: getattr(self, name) for name in ("epsilon", "delta", "variance")}
        return json.dumps(values, sort_keys=True).encode()

    def terms(self, task: Task) -> PrivacyConfig:
        """Return the privacy guarantee for a report, after checking that the noise gives it.

        Raises:
            InvalidInputError: the variance is too small for the guarantee, epsilon or delta is out
                of bounds, or the task sums vectors.
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
        """Return the charge of a batch for the ledger; only a task's first batch costs budget."""
        from fedtally.privacy.budget import Charge

        return Charge(self.population, task.id.hex(), batch, self.terms(task).event)

    def check(self, task: Task, owner: str = "") -> None:
        """Refuse noise that cannot be charged to the ledger now.

        Call this before there are reports, when the operator can still correct the settings.

        Args:
            task: the task.
            owner: the name under which the server charges the ledger; "" for a server that has
                charged nothing yet.

        Raises:
            InvalidInputError: there is no ledger, the ledger grants no budget to the population or
                has too little left, another server charged the task to it, or `terms` refuses the
                noise.
            UnreadableFileError: the ledger cannot be read.
        """
        from fedtally.privacy.budget import AlreadySpentError

        ledger = self.open_ledger()
        try:
            ledger.check_charge(self.charge(task, 0), owner)
        except AlreadySpentError as error:
            raise InvalidInputError(
                f"another server charged this task to the ledger {ledger.name}, and no other may"
                " give its sums away: go on with the folder of that server, or begin a new task"
            ) from error

    def open_ledger(self) -> Ledger:
        """Open the operator's ledger of privacy budgets, and return it.

        Raises:
            InvalidInputError: `ledger` is None.
            UnreadableFileError: the ledger cannot be read.
        """
        from fedtally.store import Ledger

        if self.ledger is None:
            raise InvalidInputError(
                "noise is charged to a ledger: name yours, which fedtally ledger grant makes"
            )
        return Ledger.open(self.ledger)

    def to_dict(self) -> dict[str, Any]:
        """Return the values by name, as entries of a settings file; no `ledger` if it is None."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: value for name, value in values.items() if value is not None}

    @classmethod
    def from_dict(cls, values: Any) -> Self:
        """Return the noise that the entries of a settings file describe.

        Raises:
            InvalidInputError: an entry is missing or unknown, or `ledger` is no text.
        """
        names = list(cls.__dataclass_fields__)
        entries = validate.table("noise", values, names, optional=("ledger",))
        if not isinstance(entries.get("ledger", ""), str):
            raise InvalidInputError(f"ledger of noise must be a text, got {entries['ledger']!r}")
        return cls(**entries)


class LedgerNoise:
    """The noise of one server, which is charged to its operator's ledger before it is drawn.

    The class implements `dap.Noise`. Call `charge` for a batch before `draw`, which charges
    nothing.

    Args:
        noise: the noise that both operators agreed on.
        task: the task.
        store: the database of the server.
        clock: returns the time in Unix seconds.
        random: a cryptographic source; `random(n)` returns n uniform bytes.

    Raises:
        InvalidInputError, UnreadableFileError: as for `DapNoise.check`.
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
        self._owner = _owner(store, random)
        noise.check(task, self._owner)
        self.terms = noise.agreed
        self._noise, self._task = noise, task
        self._clock, self._random = clock, random
        self._ledger = noise.open_ledger()

    def charge(self, batch: int) -> None:
        """Charge a batch to the ledger; only the first batch of a task costs budget.

        The same batch may be charged again, for instance after a crash. This costs nothing.

        Raises:
            OverspentError: the population has too little budget left.
            AlreadySpentError: a server with another database has charged this task.
            UnchargedError: the ledger cannot charge the batch for another reason, for instance
                because it has no grant for the population any more, or has charged this task with
                different noise.
        """
        from fedtally.privacy.budget import AlreadySpentError, OverspentError

        charge = self._noise.charge(self._task, batch)
        try:
            self._ledger.reserve(charge, self._owner, self._clock())
        except (AlreadySpentError, OverspentError):
            raise
        except InvalidInputError as error:
            raise UnchargedError(
                f"the ledger {self._ledger.name} covered the noise when this server started, and"
                f" does not now; if it was replaced, put back the one that this server charged:"
                f" {error}"
            ) from error

    def draw(self, counters: int) -> npt.NDArray[np.int64]:
        """Return this server's noise for each counter, int64 [counters].

        The noise of one server is enough for the guarantee, even if the other server adds no noise.
        The other server may time the answer, so a small table is read in constant time.
        """
        drawn = cast("Noise", self._noise.terms(self._task).noise())  # rounded Gaussian noise
        key = Secret(self._random(KEY_BYTES))
        return drawn.draw(key, counters, constant_time=drawn.is_small)


def _owner(store: Store, random: Callable[[int], bytes]) -> str:
    """Return the name under which a server charges its ledger, 64 hexadecimal digits.

    The name is drawn once and kept in the server's store. A server with another store has another
    name, so the ledger refuses its charge of the same task.
    """
    kept = store.get(Table.TERMS, _OWNER)
    if kept is None:
        kept = random(KEY_BYTES)
        store.put(Table.TERMS, _OWNER, kept)
    return kept.hex()
