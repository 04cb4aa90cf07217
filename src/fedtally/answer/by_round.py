"""The landed sums of one plan, round by round: decode some rounds alone, or a window of rounds.

A sum has landed if the server has it. A window is some of the landed rounds, such as the last 7.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedtally.answer import window as windows
from fedtally.answer.part import Part, fit
from fedtally.errors import InvalidInputError, opt
from fedtally.plan.chosen_decoder import decoder_of
from fedtally.recovery.decoders import Recovery
from fedtally.recovery.decoders.kind import CampaignDecoder, FittedDecoder
from fedtally.recovery.windows import LONGEST, Decoded, decode, longest, shortest_enough
from fedtally.sketch import CountSketch

# The most decoders in the cache. To decode a window, up to five fits are compared: each uses the
# window and a different number of rounds near it. The window "auto" needs one more fit.
_MOST_FITS = 6


class ByRound:
    """The sums of a part, which can be chosen by round, and a cache of the last few decoders.

    A part is the landed sums of one plan, with their decoder (`Part`). The number of a sum is the
    number of its round, from 0. If a sum adds up several rounds, its number is the first of these
    rounds.

    Args:
        part: the part, with the sums of all rounds.
        labels: the label of each round of the plan; None: rounds have only numbers.

    Attributes:
        part: the given part.
        labels: the given labels.
        landed: a `LandedRounds`: the rounds whose sums the part has. It turns the text of a window,
            such as "last:7", into numbers of sums.
    """

    def __init__(self, part: Part, labels: Sequence[str] | None) -> None:
        self.part, self.labels = part, labels
        self.landed = windows.LandedRounds(part.plan, part.sketches, labels)
        self._fits: dict[tuple[str, tuple[int, ...]], CampaignDecoder] = {}

    def sums(self, rounds: Sequence[int]) -> list[CountSketch]:
        """Return the sums whose numbers are in `rounds`, in the order of the part's sums.

        If a sum adds up several rounds, its number is the number of the first of these rounds. A
        number without a sum is ignored.
        """
        chosen = set(rounds)
        return [sketch for sketch in self.part.sketches if sketch.round in chosen]

    def alone(self, number: int) -> CampaignDecoder:
        """Return a new decoder of a single sum, by the part's recovery (`Part.decoding`).

        The decoder is not cached.

        Args:
            number: the number of the sum (see `sums`).
        """
        return fit(self.part, self.sums([number]), self.part.decoding.recovery)

    def chosen(self, asked: str) -> list[int]:
        """Return the numbers of the sums that make up a window, ascending (see `sums`).

        Args:
            asked: the window, such as "last:7" or "auto", as `Result.window` takes it, but not
                "all".

        Raises:
            InvalidInputError: there is no such window; the message says why.
        """
        self.landed.check()
        return self._now() if asked == windows.AUTO else self.landed.chosen(asked)

    def decoded(self, rounds: Sequence[int], recovery: str, history: int) -> Decoded:
        """Decode a window of rounds. Return its decoders, and the rounds that they use.

        One decoder gives estimates, and one gives limits. They are the same object unless rounds
        outside the window serve as a prior for the estimates.

        Args:
            rounds: the numbers of the window's sums (see `sums`).
            recovery: the name of the decoder.
            history: the most landed rounds that the decoder may fit (see `Result.window`).
        """
        return decode(
            self.part.sketches,
            self.part.domain,
            rounds,
            Recovery(recovery),
            history,
            lambda chosen: self._fit_of(chosen, recovery),
        )

    def history(self, most: int = LONGEST) -> FittedDecoder | None:
        """Return one decoder that fits the last landed rounds together.

        The window "auto" and trends read from it the values of items in single batches (runs of
        rounds with the same hashes). Returns None in an open domain. It also returns None if the
        decoder has no such values: recovery "median" or "direct", or a fit that was given up.

        Args:
            most: the most rounds to fit, up to 64. A batch is never cut, so the fit may have more
                rounds. A large domain allows fewer.
        """
        part, plan = self.part, self.part.plan
        if plan.is_open:
            return None
        rounds = longest(part.sketches, part.domain, most)
        spec = plan.spec
        batches = {spec.schedule.batch_of(number, spec.num_rounds) for number in rounds}
        decoder = self._fit_of(rounds, self._recovery(len(batches)))
        return decoder if isinstance(decoder, FittedDecoder) and decoder.has_fit else None

    def _recovery(self, batches: int) -> str:
        """Return the name of the decoder for some sums, such as "joint"; never "auto".

        Args:
            batches: the number of batches that the sums are from. A batch is a run of consecutive
                rounds with the same hashes.
        """
        part, plan = self.part, self.part.plan
        return str(decoder_of(plan, part.asked.recovery, batches))

    def _now(self) -> list[int]:
        """Return the numbers of the sums in the window "auto", ascending.

        The window has the last landed batches (runs of rounds with the same hashes). Their number
        is chosen so that the estimates of the current frequencies have the smallest error
        (`shortest_enough`).

        Raises:
            InvalidInputError: the domain is open; the decoder has no values for single batches
                (see `history`); or fewer than two batches have clients.
        """
        auto = opt.window("auto")
        self.part.plan.candidates.check_listed(f"{auto} looks", f"take {opt.window('last:7')}")
        decoder = self.history()
        if decoder is None:
            raise InvalidInputError(
                f"{auto} compares windows of sketches that joint recovery or belief propagation"
                f" fit, and {self.part.recovery} recovery does not: take {opt.window('last:7')}"
            )
        if np.count_nonzero(decoder.clients) < 2:
            raise InvalidInputError(
                f"{auto} compares rounds of different hashes, and there is one set of them here:"
                f" take {opt.window('last:7')}"
            )
        number = shortest_enough(decoder, self.part.domain)
        last = {decoder.batches[place] for place in np.flatnonzero(decoder.clients)[-number:]}
        return sorted(one.round for one in self.part.sketches if self.batch(one.round) in last)

    def batch(self, number: int) -> int:
        """Return the number of the batch, from 0, that the round `number` is in.

        A batch is a run of consecutive rounds with the same hashes.
        """
        spec = self.part.plan.spec
        return spec.schedule.batch_of(number, spec.num_rounds)

    def _fit_of(self, rounds: Sequence[int], recovery: str) -> CampaignDecoder:
        """Return the decoder of the sums with these numbers, from the cache if it is there.

        If these are all sums and `recovery` is the part's own decoder, the part's decoder is
        returned.

        Args:
            rounds: the numbers of the sums (see `sums`).
            recovery: the name of the decoder.
        """
        if len(rounds) == len(self.part.sketches) and recovery == self.part.decoding.recovery:
            return self.part.recovered
        key = (recovery, tuple(rounds))
        found = self._fits.pop(key, None) or fit(self.part, self.sums(rounds), recovery)
        self._fits[key] = found
        while len(self._fits) > _MOST_FITS:
            del self._fits[next(iter(self._fits))]
        return found
