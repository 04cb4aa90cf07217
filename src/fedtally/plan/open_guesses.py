"""Sizes for an open domain that may meet its target, guessed in closed form.

They are of many numbers of rounds, rows of the finder and rows of the spelling.
`fedtally.plan.open_domain` computes the widths of those that look best.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import NamedTuple

from fedtally.domain import OpenStrings
from fedtally.errors import InvalidInputError
from fedtally.kernels import MAX_WIDTH
from fedtally.plan.design import Design
from fedtally.plan.frequencies.distribution import Frequencies
from fedtally.plan.rare_names import WARNED
from fedtally.plan.readable_names import NAME_LENGTH, SPARE, Speller
from fedtally.plan.request import CampaignSpec
from fedtally.plan.rounds import numbers_of_batches
from fedtally.plan.sizes import UnreachableError
from fedtally.recovery.decoders import OPEN
from fedtally.sketch import Schedule, Spelling
from fedtally.sketch.schedule import AUTO

# Times the finder's width that a law asks which is only assumed. Words and names have about twice
# the energy below tau that i^-1.1 has, which no other exponent over a million strings has. It is a
# margin and no theorem: `python -m experiments open-tau` measures it.
FINDER_SPARE = 1.6
_FINDER_ROWS = (4, 5, 6, 8, 10, 12, 16, 20)
_SPELLING_ROWS = (3, 4, 5)
_LINF = 6.2  # standard errors of the largest error of all hashes, about; then it is computed


@dataclass(frozen=True)
class Wanted:
    """What is asked of the names of an open domain, beside the target.

    Attributes:
        length: bytes that 9 of 10 frequent names do not exceed.
        allow_rare: plan even if whoever opens a sum can read what single clients hold.
        spare: times the finder's width that the law asks; 1 where the law is known.
    """

    length: int = NAME_LENGTH
    allow_rare: bool = False
    spare: float = FINDER_SPARE


class Guess(NamedTuple):
    """A size, about: its widths are not computed yet.

    Attributes:
        risk: 0 where single clients hardly show, 1 where they do, 2 where that must be allowed.
        size: bytes of a client.
        design: the plan to be, with its number of rounds and its size.
    """

    risk: int
    size: int
    design: Design


class _Shared(NamedTuple):
    """What the sizes of one schedule share: sums over the law, above all.

    Attributes:
        tau: the largest error of the finder.
        clients: the number that frequencies are shares of.
        batches: the batches of rounds.
        blocks: the positions that a client spells.
        noise: the variance in all rounds together, for each row.
        spread: the finder's squared error by rare strings, times its counters.
        frequent: the strings of at least twice that error.
        speller: what spells names; its rows and its noise are still open.
        rarer: what `Speller.rarer` says of the names that are asked for.
        people: the clients of a sum; infinite where noise protects them.
    """

    tau: float
    clients: int
    batches: int
    blocks: int
    noise: float
    spread: float
    frequent: float
    speller: Speller
    rarer: tuple[float, float]
    people: float

    def risk(self, counters: int) -> int:
        """Return about how much the sums show of single clients, as in `Guess`."""
        return (counters * WARNED > self.people) + (counters > self.people)


@dataclass(frozen=True)
class Guesses:
    """The sizes that may do for a design, and what they are guessed from.

    Args:
        design: the plan to be: its request has a tau, or bytes, or both. Without a number of
            rounds in its request, the number is chosen.
        law: the frequencies of the strings.
        wanted: the names that are asked for.
    """

    design: Design
    law: Frequencies
    wanted: Wanted

    def of(self, design: Design) -> Guesses:
        """Return the guesses for another design."""
        return replace(self, design=design)

    @property
    def spec(self) -> CampaignSpec:
        """What is asked."""
        return self.design.spec

    @property
    def domain(self) -> OpenStrings:
        """The open domain."""
        return OpenStrings.of(self.design.domain)

    @property
    def length(self) -> int:
        """The bytes of a name that is to be read."""
        return min(self.wanted.length, self.domain.max_length)

    @property
    def tau(self) -> float:
        """The target, which there must be."""
        assert self.spec.tau is not None
        return self.spec.tau

    @property
    def budget(self) -> float:
        """The bytes of a client."""
        return self.spec.size.max_bytes or math.inf

    @property
    def most_risk(self) -> int:
        """The most risk that is allowed, as `Guess` has it."""
        return 2 if self.wanted.allow_rare else 1

    @cached_property
    def ranked(self) -> list[Guess]:
        """Sizes that may meet the target, the best first: with little risk, and few bytes."""
        return sorted(self._guesses(), key=lambda guess: guess[:2])

    def affordable(self, risk: int) -> list[Guess]:
        """Return the guesses that fit into the bytes, of at most that risk."""
        with suppress(InvalidInputError):  # fewer clients than a secure sum needs
            return [
                guess for guess in self.ranked if guess.risk <= risk and guess.size <= self.budget
            ]
        return []

    def affords(self, risk: int) -> bool:
        """Return whether a guess fits into the bytes, of at most that risk."""
        with suppress(InvalidInputError):
            return any(
                guess.risk <= risk and guess.size <= self.budget for guess in self._guesses()
            )
        return False

    def reaches(self) -> bool:
        """Whether a guess says that some size meets the target, within the bytes if there are."""
        return self.affords(self.most_risk)

    @cached_property
    def designs(self) -> list[Design]:
        """The designs of all numbers of rounds that may be chosen, without a size.

        Raises:
            InvalidInputError: cohorts that were asked for do not fit the rounds.
        """
        designs, refused = [], None
        for number in self._numbers_of_rounds():
            try:
                designs.append(of_rounds(self.design, number))
            except InvalidInputError as error:  # so many rounds are not summed safely
                refused = refused or error
        if refused is not None and not designs:
            raise refused
        return designs

    def _numbers_of_rounds(self) -> list[int]:
        """Return the numbers of rounds to choose from: for each number of blocks the least."""
        if self.spec.size.num_rounds is not None:
            return [self.spec.size.num_rounds]
        if self.spec.size.schedule != AUTO:
            return [1]
        positions = self.domain.max_length + 1
        blocks = {-(-positions // rounds) for rounds in range(1, positions + 1)}
        return sorted({-(-positions // number) for number in blocks if number} | {1})

    def _guesses(self) -> Iterator[Guess]:
        """Yield the guesses, in any order; what is refused altogether is refused before the first.

        Whoever needs one that fits need not wait for the others.
        """
        asked = [one for design in self.designs for one in self._schedules_of(design)]
        for design, schedule, tau in asked:
            yield from self._guesses_of(design, schedule, tau)

    def _schedules_of(self, design: Design) -> Iterator[tuple[Design, Schedule, float]]:
        """Yield a design with each schedule that may do, and the largest error of its finder."""
        try:
            tau = design.tau_of_sketch(self.law)
        except UnreachableError:
            return
        _ = design.honest_clients  # that no noise is sure says its own error
        for schedule in self._schedules(design):
            yield design, schedule, tau

    def _guesses_of(self, design: Design, schedule: Schedule, tau: float) -> Iterator[Guess]:
        """Yield a guess for each number of rows of the finder, if some width may do."""
        with suppress(InvalidInputError):  # too many positions for the code of long names
            shape = Spelling(1, 1, self.domain.max_length)
            shape.check_batches(schedule.num_batches(design.num_rounds))
            shared = self._shared(design, schedule, shape, tau)
            theta, length = 2 * self.tau, self.length

            @cache  # without noise it is the same for all rows of the finder
            def columns_of(spelled: int, noise: float) -> int | None:
                speller = replace(shared.speller, rows=spelled, noise=noise / shared.batches)
                return speller.width(theta, length, shared.rarer)

            for rows in _FINDER_ROWS if self.spec.size.rows is None else (self.spec.size.rows,):
                guess = self._guess(design, schedule, rows, shared, columns_of)
                if guess is not None:
                    yield guess

    def _shared(self, design: Design, schedule: Schedule, shape: Spelling, tau: float) -> _Shared:
        """Return what the sizes of a schedule share; `tau` is the largest error of the finder."""
        f, number, clients = self.law.frequencies, self.law.numbers, design.expected
        batches, rare = schedule.num_batches(design.num_rounds), f < tau
        speller = Speller(self.law, 1, shape.positions(batches), clients / batches, 0.0)
        people = self.spec.summation.clients_of_sum(float(min(design.people)))
        return _Shared(
            tau,
            clients,
            batches,
            shape.blocks(batches),
            design.noise(1, schedule) ** 2 * design.num_rounds,  # in proportion to the rows
            float(number[rare] @ (f[rare] ** 2 / batches + f[rare] / clients)),
            float(number[f >= 2 * tau].sum()),
            speller,
            speller.rarer(2 * self.tau),
            math.inf if self.spec.is_private else people,
        )

    def _guess(
        self,
        design: Design,
        schedule: Schedule,
        rows: int,
        shared: _Shared,
        columns_of: Callable[[int, float], int | None],
    ) -> Guess | None:
        """Return about the narrowest size that may do; None: no width does.

        Of the numbers of rows of the spelling it has that of the fewest bytes.

        Args:
            design: the plan to be, with its number of rounds.
            schedule: the hashes of each round.
            rows: the rows of the finder.
            shared: what the sizes of the schedule share.
            columns_of: gives the width of the spelling, for its rows and the noise of all rounds.
        """
        found = []
        for spelled in _SPELLING_ROWS:
            touched = rows + shared.blocks * spelled
            noise = shared.noise * touched
            width = self._finder_width(shared, noise, rows)
            columns = columns_of(spelled, noise)
            if width is None or columns is None:
                continue
            counters = rows * width + shared.blocks * spelled * columns
            size = design.bytes_of_counters(touched, counters, schedule)
            found.append((shared.risk(counters), size, width, spelled, columns))
        if not found:
            return None
        risk, size, width, spelled, columns = min(found, key=lambda one: one[:2])
        spelling = Spelling(spelled, columns, self.domain.max_length)
        return Guess(risk, size, design.with_size(schedule, rows, width, spelling))

    def _schedules(self, design: Design) -> list[Schedule]:
        name, rounds = design.spec.size.schedule, design.num_rounds
        if name != AUTO:
            return [Schedule.parse(name)]
        if rounds == 1:
            return [Schedule.parse("shared")]
        if self.spec.size.num_rounds is None or not design.is_noised_once:
            return [Schedule.parse("hybrid")]
        few = sorted(numbers_of_batches(rounds) - {1, rounds})
        names = ("shared", *(f"batched:{number}" for number in few), "hybrid")
        return [Schedule.parse(one) for one in names]

    def _finder_width(self, shared: _Shared, noise: float, rows: int) -> int | None:
        """Return about the width with which the errors of all hashes are at most tau, and spare.

        Args:
            shared: what the sizes of the schedule share.
            noise: the variance in all rounds together.
            rows: the rows of the finder.
        """
        left = rows * (shared.tau / _LINF) ** 2 - noise / shared.clients**2
        if left <= 0:
            return None
        most = OPEN.kind.largest_support[shared.batches > 1] / SPARE
        spread = self.wanted.spare * max(shared.spread / left, 2.0)
        found = max(spread, shared.frequent / (most * rows))
        return math.ceil(found) if found < MAX_WIDTH else None


def of_rounds(design: Design, num_rounds: int) -> Design:
    """Return a design of a number of rounds.

    Raises:
        InvalidInputError: cohorts that were asked for do not fit the rounds.
    """
    made = design.with_rounds(num_rounds)
    made.check_even_rounds()
    return made
