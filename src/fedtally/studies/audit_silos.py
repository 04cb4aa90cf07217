"""The invented clients for an audit of a plan of silos.

A silo is a client with the items of many people. In this module, as in `audit_clients`, "client"
means a person in the silos. For some people, a coin decides whether the person takes part. Such a
person is in as many silos as the plan allows.
"""

from __future__ import annotations

import math

import numpy as np

from fedtally.errors import InvalidInputError
from fedtally.plan import Plan
from fedtally.studies.audit_clients import USUAL_CLIENTS, Crowd, Design, law_of


def design_of(
    plan: Plan, rng: np.random.Generator, *, clients: int | None, dropout: float
) -> Design:
    """Return the invented clients for an audit of a plan.

    For a plan of silos, the result is a `People`. For any other plan it is a `Design`.

    Args:
        plan: a plan with privacy.
        rng: the random generator that draws the clients and their items.
        clients: the number of clients (or silos) of a round; None: the number follows from the
            plan.
        dropout: the share of clients that drop out, 0 <= dropout < 1.

    Raises:
        InvalidInputError: no clients can be invented that the plan accepts; the message says why.
    """
    made = People if plan.is_of_silos else Design
    return made(plan, rng, clients=clients, dropout=dropout)


class People(Design):
    """The people in the silos of a plan. Each silo has equally many people.

    Each person is in every round in which one of the person's silos takes part.
    """

    def crowds(self, rng: np.random.Generator) -> list[Crowd]:
        """Return the crowds of `Design.crowds`, and a crowd of people who are in too many silos.

        The additional crowd is left out if it could not show that the bound on silos is missing.
        """
        found = super().crowds(rng)
        silos = self._crowd("silos", 1, rng) if self.are_rounds_known else None
        return found if silos is None else [*found, silos]

    def _are_rounds_named(self) -> bool:
        together, rounds = self.terms.event.participations, self.plan.num_rounds
        if 1 < together < rounds:
            raise InvalidInputError(
                f"the plan protects the people of a silo in {together:,}"
                f" of {rounds:,} rounds, and simulated silos are in one or in all of"
                " them: audit a plan with as many rounds as a silo takes part in"
            )
        return together > 1

    def _vectors_of(self, number: int) -> int:
        return self._num_silos

    def _crowd_places(self, bound: str) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        places, each = self._places(), self.terms.event.silos_per_person
        if bound != "silos":
            return [(rounds, self._silos_of(i)) for i, rounds in enumerate(places)]
        if self._num_silos <= each:
            return []
        # The people of this crowd are in all silos. If the bound on silos is enforced, the engine
        # leaves out a person's rows in further silos.
        every = tuple(range(self._num_silos))
        return [(rounds, every) for rounds in places[: len(places) * each // self._num_silos]]

    def _silos_of(self, number: int) -> tuple[int, ...]:
        each = self.terms.event.silos_per_person
        return tuple(sorted((number + i) % self._num_silos for i in range(each)))

    @property
    def _num_sure(self) -> int:
        # Every silo has a person without a coin, because it is public which silos take part.
        return self._num_silos

    def _gap(self, bound: str, length: float, most: float) -> float:
        if bound != "silos":
            return super()._gap(bound, length, most)
        # without the bound, a person contributes in each silo
        return length**2 * (self._num_silos / self.terms.event.silos_per_person) - most

    @property
    def _num_silos(self) -> int:
        """The number of silos in a round.

        If it is not known which silos are in which round, it is the number of silos in all rounds
        together.
        """
        if not self._names_rounds and self.plan.num_rounds > 1:
            return self.plan.num_clients
        least = max(self._fewest(), 1)
        usual = least if self.plan.secure_sum is not None else self.plan.max_round_clients
        asked = max(self._asked or min(usual, USUAL_CLIENTS), least)
        number = math.ceil(asked / (1 - self._dropout))
        return max(min(number, self.plan.max_round_clients), self.terms.event.silos_per_person)

    def _places(self, most_usual: int = USUAL_CLIENTS) -> list[tuple[int, ...]]:
        """Return the numbers of the rounds of each person.

        The number of people is a multiple of the number of silos. `most_usual` is not used.

        Raises:
            InvalidInputError: the plan's silos have too few people, compared with the noise on
                their number.
        """
        releases, silos = len(self._releases_of_plan), self._num_silos
        each = self.terms.event.silos_per_person
        # There must be enough people in each release. Otherwise noise could make their number
        # negative.
        drawn = 1 if self._names_rounds else releases
        noise = math.sqrt(law_of(self.terms, silos).variance)
        wanted = USUAL_CLIENTS + math.ceil(24 * noise) * drawn
        most = self.plan.people // each * silos
        if most < 12 * noise * drawn:
            raise InvalidInputError(
                f"silos of {self.plan.people:,} people are too small for an audit, whose people"
                f" must be more than the noise on their number takes away: allow at least"
                f" {math.ceil(12 * noise * drawn * each / silos):,}"
            )
        number = min(-(-wanted // silos) * silos, most)
        rounds = tuple(range(self.plan.num_rounds)) if self._names_rounds else (0,)
        return [rounds] * number
