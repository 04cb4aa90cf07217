"""Estimate, in closed form, sizes for an open domain that may meet its target.

A vector of an open domain has two parts: the *finder* is the sketch that finds the hashes of
frequent strings, and the *spelling* has the sketches from which their names are read. There is a
guess for each number of rounds, each schedule and each number of rows of the finder. Each guess has
the number of rows of the spelling that suits it best. `fedtally.plan.open_domain` then computes
exact widths for the best guesses.
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

# The factor by which the finder is widened if the frequencies (the law) are only assumed. In words
# and names, the strings below tau have about twice the energy (sum of f^2) that the power law
# i^-1.1 gives them. No other exponent over a million strings gives that much. This margin has no
# proof: `python -m experiments open-tau` measures it.
FINDER_SPARE = 1.6
_FINDER_ROWS = (4, 5, 6, 8, 10, 12, 16, 20)
_SPELLING_ROWS = (3, 4, 5)
_LINF = 6.2  # about the largest error of all hashes, in standard errors; later computed exactly


@dataclass(frozen=True)
class Wanted:
    """The request about the names of an open domain, besides the target.

    Attributes:
        length: the length in bytes that 9 of 10 frequent names do not exceed.
        allow_rare: whether to allow plans whose sums show the items of single clients to whoever
            opens them.
        spare: the factor by which the finder is wider than the frequencies demand; 1 if the
            frequencies are known.
    """

    length: int = NAME_LENGTH
    allow_rare: bool = False
    spare: float = FINDER_SPARE


class Guess(NamedTuple):
    """An estimated size, whose exact widths are not computed yet.

    Attributes:
        risk: how much the sums show of single clients: 0 hardly anything, 1 something, 2 so that
            the user must allow it.
        size: the upload bytes of a client in its round.
        design: the design, with its number of rounds and this size.
    """

    risk: int
    size: int
    design: Design


class _Shared(NamedTuple):
    """The values that all sizes under one schedule have in common, mostly sums over frequencies.

    Attributes:
        tau: the largest error that the finder may have.
        clients: the number that frequencies are shares of.
        batches: the number of batches of rounds.
        blocks: the number of positions that a client spells.
        noise: the variance of the noise in a counter over all rounds, divided by the rows of the
            vector: it grows in proportion to them.
        spread: the squared error that strings below tau cause in the finder, times its counters.
        frequent: the number of strings whose frequency is at least 2 tau.
        speller: the sketches that spell names; their rows and noise are not chosen yet.
        rarer: the result of `Speller.rarer` for twice the target tau, from which names are read.
        people: about the number of people in the smallest sum; infinite if noise protects them.
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
        """Return the estimated risk of sums with this number of counters, 0 to 2, as in `Guess`."""
        return (counters * WARNED > self.people) + (counters > self.people)


@dataclass(frozen=True)
class Guesses:
    """The guesses of sizes that may suffice for a design.

    Args:
        design: the design; its request has a tau, or bytes, or both. If the request has no number
            of rounds, the number is chosen.
        law: the frequencies of the strings.
        wanted: the request about names.
    """

    design: Design
    law: Frequencies
    wanted: Wanted

    def of(self, design: Design) -> Guesses:
        """Return the guesses for another design, with the same frequencies and wanted names."""
        return replace(self, design=design)

    @property
    def spec(self) -> CampaignSpec:
        """The resolved request of the design."""
        return self.design.spec

    @property
    def domain(self) -> OpenStrings:
        """The open domain."""
        return OpenStrings.of(self.design.domain)

    @property
    def length(self) -> int:
        """The length in bytes of the names that must be read."""
        return min(self.wanted.length, self.domain.max_length)

    @property
    def tau(self) -> float:
        """The target, the largest error; the request must have one."""
        assert self.spec.tau is not None
        return self.spec.tau

    @property
    def budget(self) -> float:
        """The most upload bytes of a client; infinite if the request does not limit them."""
        return self.spec.size.max_bytes or math.inf

    @property
    def most_risk(self) -> int:
        """The highest risk, in the sense of `Guess`, that is allowed."""
        return 2 if self.wanted.allow_rare else 1

    @cached_property
    def ranked(self) -> list[Guess]:
        """The sizes that may meet the target, the lowest risk first, and then the fewest bytes."""
        return sorted(self._guesses(), key=lambda guess: guess[:2])

    def affordable(self, risk: int) -> list[Guess]:
        """Return the guesses within the budget of bytes whose risk is at most `risk`."""
        with suppress(InvalidInputError):  # fewer clients than a secure sum needs
            return [
                guess for guess in self.ranked if guess.risk <= risk and guess.size <= self.budget
            ]
        return []

    def affords(self, risk: int) -> bool:
        """Return whether some guess within the budget of bytes has a risk of at most `risk`."""
        with suppress(InvalidInputError):
            return any(
                guess.risk <= risk and guess.size <= self.budget for guess in self._guesses()
            )
        return False

    def reaches(self) -> bool:
        """Return whether some guess meets the target within the bytes and the allowed risk."""
        return self.affords(self.most_risk)

    @cached_property
    def designs(self) -> list[Design]:
        """The designs, without a size, for each number of rounds that may be chosen.

        Numbers whose rounds cannot be summed as requested are left out.

        Raises:
            InvalidInputError: all numbers are left out.
        """
        designs, refused = [], None
        for number in self._numbers_of_rounds():
            try:
                designs.append(of_rounds(self.design, number))
            except InvalidInputError as error:  # rounds this small cannot be summed as requested
                refused = refused or error
        if refused is not None and not designs:
            raise refused
        return designs

    def _numbers_of_rounds(self) -> list[int]:
        """Return the numbers of rounds to choose from.

        More rounds let each client spell fewer positions. Of the numbers of rounds with the same
        number of positions, only the least is returned.
        """
        if self.spec.size.num_rounds is not None:
            return [self.spec.size.num_rounds]
        if self.spec.size.schedule != AUTO:
            return [1]
        positions = self.domain.max_length + 1
        blocks = {-(-positions // rounds) for rounds in range(1, positions + 1)}
        return sorted({-(-positions // number) for number in blocks if number} | {1})

    def _guesses(self) -> Iterator[Guess]:
        """Yield the guesses in any order, so that a caller can stop at the first that fits.

        If the request must be refused, the error is raised before the first guess.
        """
        asked = [one for design in self.designs for one in self._schedules_of(design)]
        for design, schedule, tau in asked:
            yield from self._guesses_of(design, schedule, tau)

    def _schedules_of(self, design: Design) -> Iterator[tuple[Design, Schedule, float]]:
        """Yield (design, schedule, tau) for each possible schedule.

        Here tau is the largest error that the finder may have. Yield nothing if the noise on the
        number of people alone exceeds the target.
        """
        try:
            tau = design.tau_of_sketch(self.law)
        except UnreachableError:
            return
        _ = design.honest_clients  # raises its own error if no client's noise is sure
        for schedule in self._schedules(design):
            yield design, schedule, tau

    def _guesses_of(self, design: Design, schedule: Schedule, tau: float) -> Iterator[Guess]:
        """Yield a guess for each number of rows of the finder with which some width may suffice."""
        with suppress(InvalidInputError):  # too many positions for the code of long names
            shape = Spelling(1, 1, self.domain.max_length)
            shape.check_batches(schedule.num_batches(design.num_rounds))
            shared = self._shared(design, schedule, shape, tau)
            theta, length = 2 * self.tau, self.length

            @cache  # without noise the result is the same for all rows of the finder
            def columns_of(spelled: int, noise: float) -> int | None:
                speller = replace(shared.speller, rows=spelled, noise=noise / shared.batches)
                return speller.width(theta, length, shared.rarer)

            for rows in _FINDER_ROWS if self.spec.size.rows is None else (self.spec.size.rows,):
                guess = self._guess(design, schedule, rows, shared, columns_of)
                if guess is not None:
                    yield guess

    def _shared(self, design: Design, schedule: Schedule, shape: Spelling, tau: float) -> _Shared:
        """Return the values common to all sizes of a schedule.

        The finder's largest error may be `tau`. The `shape` only gives the longest name.
        """
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
        """Return about the smallest size that may suffice; None if no width does.

        Several numbers of rows of the spelling are tried. The guess has the number with the least
        risk, and then the fewest bytes.

        Args:
            design: the design, with its number of rounds.
            schedule: the hashes of each round.
            rows: the number of rows of the finder.
            shared: the values common to all sizes of the schedule.
            columns_of: a function that returns the width of the spelling for its number of rows and
                the noise variance of all rounds; None: no width suffices.
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
        """Return about the width with which all hashes' errors are at most tau, with the margin.

        Return None if no width suffices.

        Args:
            shared: the values common to all sizes of the schedule.
            noise: the variance of the noise in a counter, over all rounds together.
            rows: the number of rows of the finder.
        """
        left = rows * (shared.tau / _LINF) ** 2 - noise / shared.clients**2
        if left <= 0:
            return None
        most = OPEN.kind.largest_support[shared.batches > 1] / SPARE
        spread = self.wanted.spare * max(shared.spread / left, 2.0)
        found = max(spread, shared.frequent / (most * rows))
        return math.ceil(found) if found < MAX_WIDTH else None


def of_rounds(design: Design, num_rounds: int) -> Design:
    """Return the design with this number of rounds, without a size.

    Raises:
        InvalidInputError: there are fewer clients than rounds, or the rounds cannot be summed as
            requested.
    """
    made = design.with_rounds(num_rounds)
    made.check_even_rounds()
    return made
