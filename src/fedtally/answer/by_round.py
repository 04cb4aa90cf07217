"""The landed sums of one plan by round: what decodes some of them, and windows for the present."""

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

_MOST_FITS = 6  # that are kept: a window has up to five histories, and `auto` looks at one


class ByRound:
    """The sums of a part by round. The last few fits are kept.

    Args:
        part: the part, of all rounds.
        labels: the label of each round of the plan; None: rounds have numbers alone.

    Attributes:
        landed: the rounds that have sums.
    """

    def __init__(self, part: Part, labels: Sequence[str] | None) -> None:
        self.part, self.labels = part, labels
        self.landed = windows.LandedRounds(part.plan, part.sketches, labels)
        self._fits: dict[tuple[int, ...], CampaignDecoder] = {}

    def sums(self, rounds: Sequence[int]) -> list[CountSketch]:
        """Return some of the sums, by their numbers."""
        chosen = set(rounds)
        return [sketch for sketch in self.part.sketches if sketch.round in chosen]

    def alone(self, number: int) -> CampaignDecoder:
        """Return the decoder of one of the sums, by the way in which all are decoded."""
        return fit(self.part, self.sums([number]), self.part.decoding.recovery)

    def chosen(self, asked: str) -> list[int]:
        """Return the sums of a window that is asked for, rising: any but "all".

        Raises:
            InvalidInputError: no such window; the message says why.
        """
        self.landed.check()
        return self._now() if asked == windows.AUTO else self.landed.chosen(asked)

    def decoded(self, rounds: Sequence[int], recovery: str, history: int) -> Decoded:
        """Return what decodes a window.

        Args:
            rounds: the numbers of its sums.
            recovery: the name of the decoder.
            history: the most landed rounds to rest on; 0: its own alone.
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
        """Return a fit of the last landed rounds, of which windows are read; None: there is none.

        Args:
            most: the most rounds of it, up to 64.
        """
        part, plan = self.part, self.part.plan
        if plan.is_open:
            return None
        rounds = longest(part.sketches, part.domain, most)
        decoder = self._fit_of(rounds, self._recovery(len(rounds)))
        return decoder if isinstance(decoder, FittedDecoder) and decoder.has_fit else None

    def _recovery(self, batches: int) -> str:
        """Return the name of the decoder of a number of batches, as it was asked for."""
        part, plan = self.part, self.part.plan
        return str(decoder_of(plan, part.asked.recovery, batches))

    def _now(self) -> list[int]:
        """Return as many of the last sums as tell most of the frequencies now."""
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
        """Return the number of the batch of rounds, of one set of hashes, that has a round."""
        spec = self.part.plan.spec
        return spec.schedule.batch_of(number, spec.num_rounds)

    def _fit_of(self, rounds: Sequence[int], recovery: str) -> CampaignDecoder:
        """Return the decoder of some rounds, of which the last few are kept."""
        key = tuple(rounds)
        if len(key) == len(self.part.sketches) and recovery == self.part.decoding.recovery:
            return self.part.recovered
        found = self._fits.pop(key, None) or fit(self.part, self.sums(key), recovery)
        self._fits[key] = found
        while len(self._fits) > _MOST_FITS:
            del self._fits[next(iter(self._fits))]
        return found
