"""The rare strings that sums without noise reveal, if the domain is open (without a list).

The vectors of an open domain contain the clients' strings in compressed form. Without noise nothing
limits what a sum of them reveals. If a sum has few clients and many counters, whoever opens it can
read the strings of single clients. The attack needs a list of likely strings (docs/open-domain.md;
a test shows the attack).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from fedtally.errors import InvalidInputError, opt
from fedtally.plan import Plan

_SHORT = 4  # the number of symbols of a short name: three bytes and the mark of its end
WARNED = 5  # with fewer clients than this for each counter of a sum, the answer has a warning


class RareNames(NamedTuple):
    """The smallest sum of a plan, which reveals most: its counters and its clients.

    Attributes:
        counters: the number of counters of the sum.
        position: the number of counters that spell one position (one byte) of a name.
        clients: the number of clients in the sum; for silos, the number of people in it.
        positions: the number of positions of a name that all rounds together spell.
    """

    counters: int
    position: int
    clients: int
    positions: int

    @property
    def confirmed(self) -> float:
        """About the fewest holders with which the sum confirms a string that somebody suspects."""
        return 4.0 * math.sqrt(self.clients / self.counters)

    @property
    def read(self) -> float:
        """About the fewest holders with which an unknown string of three bytes may be read.

        If there are more positions than the string needs, each symbol is spelled several times.
        These copies add up, so that fewer holders are enough than for `read_longest`.
        """
        return self.read_longest * math.sqrt(_SHORT / self.positions)

    @property
    def read_longest(self) -> float:
        """About the fewest holders with which an unknown string of the greatest length is read."""
        return 4.9 * math.sqrt(self.clients / self.position)

    @property
    def is_warned(self) -> bool:
        """Whether a list of likely strings suffices to read most strings of single clients.

        This is so if the sum has fewer than `WARNED` clients for each counter.
        """
        return self.counters * WARNED > self.clients

    @property
    def is_refused(self) -> bool:
        """Whether the sum has fewer clients than counters; the user must then allow such sums."""
        return self.counters > self.clients

    def check(self) -> None:
        """Refuse a sum that has fewer clients than counters.

        Raises:
            InvalidInputError: the sum has fewer clients than counters; the message says how to
                allow it.
        """
        if self.is_refused:
            clients = f"{self.clients:,} client{'s' * (self.clients != 1)}"
            raise InvalidInputError(
                f"without epsilon, sums of {clients} in {self.counters:,} counters"
                " show what single clients hold to whoever opens them, if it has a list of likely"
                " strings: give fewer bytes, have fewer rounds or larger cohorts, add epsilon,"
                f" or allow it ({opt.allow_rare_names(True)})"
            )

    def to_dict(self) -> dict[str, float]:
        """Return the four attributes and the three numbers of holders, as values for JSON."""
        numbers = {name: getattr(self, name) for name in ("confirmed", "read", "read_longest")}
        return {**self._asdict(), **numbers}

    @property
    def notes(self) -> list[str]:
        """A list with one text for the reader of the answer: what the sums show about clients."""
        said = (
            f"without epsilon nothing bounds what the sums show: in a sum of {self.clients:,}"
            f" clients and {self.counters:,} counters a string that the server suspects is"
            f" confirmed from about {max(1.0, self.confirmed):,.0f} holders on, and one that"
            f" nobody suspects may be read from about {max(1.0, self.read):,.0f} on if it has"
            f" 3 bytes, and from about {max(1.0, self.read_longest):,.0f} on at any length"
        )
        if self.is_warned:
            return [f"{said}; with a list of likely strings most of what rare clients hold is read"]
        known = f"{self.counters:,} strings or fewer that has all that clients hold"
        return [f"{said}; with a list of {known} every count is read"]


def of_plan(plan: Plan, sizes: Sequence[int], people: Sequence[int]) -> RareNames | None:
    """Return the smallest sum of a plan; None if the plan has noise or a list of candidates.

    Args:
        plan: the plan.
        sizes: the number of clients of each round.
        people: the number of people behind the clients of each round: equal to `sizes` unless
            clients are silos.
    """
    if plan.spelling is None or plan.privacy is not None:
        return None
    fewest = plan.summing.fewest_summed or max(sizes)
    # the plan does not say how many people a cohort has, so all silos count as equally large
    rounds = [(size, held) for size, held in zip(sizes, people, strict=True) if size]
    clients = min(held * min(size, fewest) // size for size, held in rounds)
    spec, spelling = plan.spec, plan.spelling
    size = spelling.rows * spelling.width
    return RareNames(spec.vector_length, size, clients, spec.num_positions)
