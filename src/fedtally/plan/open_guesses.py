"""Estimates of sizes that may meet the target of an open domain, by formulas.

In an open domain there is no list of candidates. A client's vector then has two parts. The *finder*
is a sketch that shows the hashes of frequent strings. The *spelling* consists of sketches from
which the names of these strings are read. An estimated size is called a guess. There is at most one
guess for each combination of a number of rounds, a schedule, and a number of rows of the finder.
The guess then has the number of rows of the spelling that suits it best.
`fedtally.plan.open_domain` computes exact widths for the best guesses.
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

# The finder is made this factor wider if the frequencies are only assumed: the power law i^-1.1. In
# real words and names, the strings below tau have about twice the energy (sum of f^2) that this law
# gives them. No other exponent, over a million strings, gives these strings twice this energy. The
# margin is not proven: `python -m experiments open-tau` measures it.
FINDER_SPARE = 1.6
_FINDER_ROWS = (4, 5, 6, 8, 10, 12, 16, 20)
_SPELLING_ROWS = (3, 4, 5)
_LINF = 6.2  # an estimate of the largest error among all hashes, in standard errors


@dataclass(frozen=True)
class Wanted:
    """What a user asks for about the names of an open domain, besides the target.

    Attributes:
        length: the length of names, in bytes, that the plan is made for: 9 of 10 frequent names
            have at most this length.
        allow_rare: whether plans are allowed whose sums show the items of single clients to whoever
            opens the sums.
        spare: the factor by which the finder (the sketch that shows hashes) is made wider than the
            frequencies require; 1 if the frequencies are known.
    """

    length: int = NAME_LENGTH
    allow_rare: bool = False
    spare: float = FINDER_SPARE


class Guess(NamedTuple):
    """An estimated size, whose exact widths are not computed yet.

    Attributes:
        risk: how much the sums show about single clients: 0 hardly anything; 1 something; 2 too
            much, unless the user allows it.
        size: the estimated bytes that a client uploads in its round.
        design: the design with its number of rounds and with the estimated size.
    """

    risk: int
    size: int
    design: Design


class _Shared(NamedTuple):
    """Values that all sizes under one schedule have in common, mostly sums over the frequencies.

    Attributes:
        tau: the largest error that the finder (the sketch that shows hashes) may have, above 0 and
            below 1.
        clients: the number by which counts are divided to get frequencies.
        batches: the number of batches, which are groups of rounds that share all hashes and signs.
        blocks: the number of positions of a name that one client spells.
        noise: the variance of the noise in a counter, over all rounds together, for a vector of one
            row. For more rows it grows in proportion to the number of rows.
        spread: the mean squared error that strings below tau cause in the finder, times the number
            of its counters.
        frequent: the number of strings whose frequency is at least twice the error `tau`.
        speller: the sketches that spell names; their rows and their noise are not set yet.
        rarer: what `Speller.rarer` returns for the frequency from which names must be read: twice
            the target of the request. This target is at least `tau`.
        people: the approximate number of people in the smallest sum; infinite with privacy, because
            noise then protects them.
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
        """Return the risk (see `Guess`) of sums that have this number of counters."""
        return (counters * WARNED > self.people) + (counters > self.people)


@dataclass(frozen=True)
class Guesses:
    """The guesses of sizes that may meet the target of a design.

    Args:
        design: the design. Its request has a tau, or a budget of bytes, or both. If the request
            states neither a number of rounds nor a schedule, several numbers of rounds are tried.
        law: the frequencies of the strings.
        wanted: what the user asks for about names.
    """

    design: Design
    law: Frequencies
    wanted: Wanted

    def of(self, design: Design) -> Guesses:
        """Return the guesses for another design; the frequencies and `wanted` stay."""
        return replace(self, design=design)

    @property
    def spec(self) -> CampaignSpec:
        """The request of the design, with all defaults filled in."""
        return self.design.spec

    @property
    def domain(self) -> OpenStrings:
        """The open domain."""
        return OpenStrings.of(self.design.domain)

    @property
    def length(self) -> int:
        """The length, in bytes, of the names that must be read."""
        return min(self.wanted.length, self.domain.max_length)

    @property
    def tau(self) -> float:
        """The target: the largest error; use it only if the request has a tau."""
        assert self.spec.tau is not None
        return self.spec.tau

    @property
    def budget(self) -> float:
        """The most bytes that a client may upload in its round; infinite if there is no limit."""
        return self.spec.size.max_bytes or math.inf

    @property
    def most_risk(self) -> int:
        """The highest risk that is allowed, 1 or 2 (see `Guess`)."""
        return 2 if self.wanted.allow_rare else 1

    @cached_property
    def ranked(self) -> list[Guess]:
        """All guesses that may meet the target: lowest risk first, then fewest bytes.

        Raises:
            InvalidInputError: the rounds cannot be summed as requested.
        """
        return sorted(self._guesses(), key=lambda guess: guess[:2])

    def affordable(self, risk: int) -> list[Guess]:
        """Return the guesses within the budget of bytes whose risk is at most `risk`, best first.

        The risk is how much the sums show about single clients (see `Guess`). The best guess has
        the lowest risk, and then the fewest bytes. The list is empty if the rounds cannot be summed
        as requested.
        """
        with suppress(InvalidInputError):  # for example, a secure sum needs more clients
            return [
                guess for guess in self.ranked if guess.risk <= risk and guess.size <= self.budget
            ]
        return []

    def affords(self, risk: int) -> bool:
        """Return whether there is a guess within the budget of bytes with at most this risk.

        The risk is how much the sums show about single clients (see `Guess`). The result is False,
        too, if the rounds cannot be summed as requested.
        """
        with suppress(InvalidInputError):
            return any(
                guess.risk <= risk and guess.size <= self.budget for guess in self._guesses()
            )
        return False

    def reaches(self) -> bool:
        """Return whether there is a guess within the budget of bytes and the allowed risk."""
        return self.affords(self.most_risk)

    @cached_property
    def designs(self) -> list[Design]:
        """The designs, without a size, for each number of rounds that the plan may have.

        A number of rounds is left out if it exceeds the number of clients, if the rounds cannot be
        summed as requested, or if no honest client is sure to add noise.

        Raises:
            InvalidInputError: all numbers are left out.
        """
        designs, refused = [], None
        for number in self._numbers_of_rounds():
            try:
                made = of_rounds(self.design, number)
                _ = made.honest_clients  # raises an error if no honest client is sure to add noise
                designs.append(made)
            except InvalidInputError as error:  # so small rounds cannot be summed as requested
                refused = refused or error
        if refused is not None and not designs:
            raise refused
        return designs

    def _numbers_of_rounds(self) -> list[int]:
        """Return the numbers of rounds that the plan may have, in rising order.

        A requested number is the only one. If only a schedule is requested, the only number is 1.
        Otherwise there are several numbers: with more rounds, each client spells fewer positions of
        a name. Of the numbers of rounds with which a client spells equally many positions, only the
        least is returned.
        """
        if self.spec.size.num_rounds is not None:
            return [self.spec.size.num_rounds]
        if self.spec.size.schedule != AUTO:
            return [1]
        positions = self.domain.max_length + 1
        blocks = {-(-positions // rounds) for rounds in range(1, positions + 1)}
        return sorted({-(-positions // number) for number in blocks if number} | {1})

    def _guesses(self) -> Iterator[Guess]:
        """Yield the guesses in any order, so that a caller can stop at the first one that suits it.

        Raises:
            InvalidInputError: the rounds cannot be summed as requested; it is raised before the
                first guess.
        """
        asked = [one for design in self.designs for one in self._schedules_of(design)]
        for design, schedule, tau in asked:
            yield from self._guesses_of(design, schedule, tau)

    def _schedules_of(self, design: Design) -> Iterator[tuple[Design, Schedule, float]]:
        """Yield each schedule that a design may have, as (design, schedule, tau).

        Here `tau` is the largest error that the finder (the sketch that shows hashes) may have.
        Nothing is yielded if for silos the noise on the number of people alone exceeds the target.
        """
        try:
            tau = design.tau_of_sketch(self.law)
        except UnreachableError:
            return
        for schedule in self._schedules(design):
            yield design, schedule, tau

    def _guesses_of(self, design: Design, schedule: Schedule, tau: float) -> Iterator[Guess]:
        """Yield a guess for each number of rows of the finder, if some width may be enough.

        The finder is the sketch that shows the hashes of frequent strings.

        Args:
            design: the design, with its number of rounds.
            schedule: which rounds share their hashes.
            tau: the largest error that the finder may have.
        """
        with suppress(InvalidInputError):  # the error-correcting code cannot have so many positions
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
        """Return the values that all sizes under one schedule have in common.

        Args:
            design: the design, with its number of rounds.
            schedule: which rounds share their hashes.
            shape: a spelling of which only the longest name matters.
            tau: the largest error that the finder (the sketch that shows hashes) may have.
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
            design.noise(1, schedule) ** 2 * design.num_rounds,  # for one row
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
        """Return the estimated size for a number of rows of the finder; None if no width is enough.

        The finder is the sketch that shows hashes; the spelling consists of sketches from which
        names are read. Several numbers of rows of the spelling are tried. The one with the lowest
        risk is taken, and among these the one with the fewest bytes.

        Args:
            design: the design, with its number of rounds.
            schedule: which rounds share their hashes.
            rows: the number of rows of the finder.
            shared: the values that all sizes under this schedule have in common.
            columns_of: a function from the number of rows of the spelling, and the variance of the
                noise in a counter over all rounds, to the width of the spelling; None: no width is
                enough.
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
        """Return the estimated width with which no hash has an error above tau, with a margin.

        The width is of the finder, the sketch that shows hashes. Returns None if no width is
        enough.

        Args:
            shared: the values that all sizes under one schedule have in common.
            noise: the variance of the noise in a counter, over all rounds together, in squared
                counts.
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
    """Return the design with another number of rounds, without a size.

    Raises:
        InvalidInputError: there are fewer clients than rounds, or the rounds cannot be summed as
            requested.
    """
    made = design.with_rounds(num_rounds)
    made.check_even_rounds()
    return made
