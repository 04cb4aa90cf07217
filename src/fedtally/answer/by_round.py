"""The landed sums of one plan by round: decoders of some rounds, and windows of recent rounds."""

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

_MOST_FITS = 6  # fits in the cache: a window tries up to five histories, and `auto` one


class ByRound:
    """The sums of a part by round, and a cache of the last few fits.

    Args:
        part: the part, with the sums of all rounds.
        labels: the label of each round of the plan; None: rounds have only numbers.

    Attributes:
        landed: the rounds whose sums the part has.
    """

    def __init__(self, part: Part, labels: Sequence[str] | None) -> None:
        self.part, self.labels = part, labels
        self.landed = windows.LandedRounds(part.plan, part.sketches, labels)
        self._fits: dict[tuple[int, ...], CampaignDecoder] = {}

    def sums(self, rounds: Sequence[int]) -> list[CountSketch]:
        """Return the sums with these numbers.

        The number of a sum is the number of its first round.
        """
        chosen = set(rounds)
        return [sketch for sketch in self.part.sketches if sketch.round in chosen]

    def alone(self, number: int) -> CampaignDecoder:
        """Return a decoder of only the sum with this number, of the same kind as for all sums."""
        return fit(self.part, self.sums([number]), self.part.decoding.recovery)

    def chosen(self, asked: str) -> list[int]:
        """Return the numbers of the sums of a window, ascending.

        Args:
            asked: the window, such as "last:7" or "auto", as `Result.window` takes it.

        Raises:
            InvalidInputError: there is no such window; the message says why.
        """
        self.landed.check()
        return self._now() if asked == windows.AUTO else self.landed.chosen(asked)

    def decoded(self, rounds: Sequence[int], recovery: str, history: int) -> Decoded:
        """Return the decoder of a window of rounds, with the decoder of its limits.

        Args:
            rounds: the numbers of the window's sums.
            recovery: the name of the decoder.
            history: the most landed rounds, up to 64, from which values are estimated; 0: the
                rounds of the window alone.
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
        """Return one fit of the last landed rounds.

        It is None in an open domain, and if the decoder makes no fit.

        Windows and trends read their values from this fit.

        Args:
            most: the most rounds to fit, up to 64.
        """
        part, plan = self.part, self.part.plan
        if plan.is_open:
            return None
        rounds = longest(part.sketches, part.domain, most)
        decoder = self._fit_of(rounds, self._recovery(len(rounds)))
        return decoder if isinstance(decoder, FittedDecoder) and decoder.has_fit else None

    def _recovery(self, batches: int) -> str:
        """Return the decoder's name for a number of batches; "auto" is resolved."""
        part, plan = self.part, self.part.plan
        return str(decoder_of(plan, part.asked.recovery, batches))

    def _now(self) -> list[int]:
        """Return the numbers of the sums of the window "auto".

        These are the last sums, as many as give the best estimate of the current frequencies
        (`shortest_enough`).
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
        """Return the number of a round's batch: the consecutive rounds with the same hashes."""
        spec = self.part.plan.spec
        return spec.schedule.batch_of(number, spec.num_rounds)

    def _fit_of(self, rounds: Sequence[int], recovery: str) -> CampaignDecoder:
        """Return the decoder of some rounds, from the cache if it is there."""
        key = tuple(rounds)
        if len(key) == len(self.part.sketches) and recovery == self.part.decoding.recovery:
            return self.part.recovered
        found = self._fits.pop(key, None) or fit(self.part, self.sums(key), recovery)
        self._fits[key] = found
        while len(self._fits) > _MOST_FITS:
            del self._fits[next(iter(self._fits))]
        return found
