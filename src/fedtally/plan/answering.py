"""The size that the decoder which answers needs, after a pilot.

Plans rest on joint recovery, and by default belief propagation answers. Its errors are smaller,
which is room for frequencies that are not quite as assumed. A pilot shows them, of clients who were
drawn with those of the campaign: then less room will do. What a pilot gets wrong is to fit
in what is left of it. That is most where items are alike, which is what a pilot may not show.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace

from fedtally.plan.frequencies.distribution import Frequencies
from fedtally.plan.paper import Size
from fedtally.plan.predictor import Predictor
from fedtally.plan.sizes import FEW, UnreachableError, size_by_model
from fedtally.recovery.decoding import kind_of, recovery_of
from fedtally.sketch import Schedule

# The largest error of joint recovery, which does not answer, may be 1 / this of tau.
SHARE = 0.9
# The share of p that is planned for by the error of the decoder that answers. It depends on how
# many items are rare, and how rare, which a pilot tells badly.
TRUSTED = 0.2


@dataclass(frozen=True)
class Answering(Predictor):
    """Predicts both the decoder that answers and the one that plans rest on.

    Args:
        answer: the name of the decoder that answers.
    """

    answer: str = ""

    def failures(
        self, distribution: Frequencies, tau: float, rows: int, width: int
    ) -> Iterator[float]:
        """Yield what is to be at most p: of joint recovery, then of the decoder that answers.

        That of the latter is predicted with the rare items as the pilot suggests them, so that it
        is to be at most `TRUSTED` times p.
        """
        yield from super().failures(distribution, tau / SHARE, rows, width)
        known, numbers = distribution.rising
        sums = self._sums(distribution, rows, width)
        yield kind_of(self.answer).failure(known, sums, numbers, tau) / TRUSTED

    def modelled_linf(self, distribution: Frequencies, p: float, rows: int, width: int) -> float:
        """Return the larger one of the errors that `failures` looks at."""
        known, numbers = distribution.rising
        sums = self._sums(distribution, rows, width)
        own = kind_of(self.answer).predict(known, sums, numbers, p * TRUSTED).linf
        return max(SHARE * super().modelled_linf(distribution, p, rows, width), own)

    def answers(self, rows: int, width: int) -> bool:
        """Whether the sketch is large enough for the decoder that is to answer."""
        batches = Schedule.parse(self.schedule).num_batches(self.num_rounds)
        return rows * width * batches >= kind_of(self.answer).fewest_cells

    def _careful(self, distribution: Frequencies, tau: float) -> Frequencies:
        """Return the distribution as it is.

        Rare items that are alike are the hardest for joint recovery, and the decoder that answers
        gains most by them.
        """
        return distribution


def size_by_answer(
    distribution: Frequencies,
    tau: float,
    predictor: Predictor,
    asked: str,
    *,
    p: float = 0.1,
    rows: Iterable[int] | int | None = None,
    with_linf: bool = True,
) -> Size | None:
    """Return the smallest rows x width with which the decoder that answers is to keep tau.

    None where nothing is known of it, or where it gains nothing: with noise, few cells, many
    candidates, several items a client, or rounds that differ, or if few clients are in the pilot.

    Args:
        distribution: what a pilot shows of the clients' frequencies.
        tau: the largest error that is asked for, in (0, 1).
        predictor: the predictor of joint recovery.
        asked: the decoder that is asked for, or "auto".
        p: the probability, in (0, 1), with which the largest error may exceed tau.
        rows: the rows to search, as for `size_by_model`.
        with_linf: whether to say the size's largest error.
    """
    answering = _answering(distribution, tau, predictor, asked, predictor.searched_rows(rows))
    if answering is None:
        return None
    try:
        size = size_by_model(
            distribution,
            tau,
            answering,
            p=p,
            rows=rows,
            margin=1.0,
            risk=1.0,
            with_linf=with_linf,
        )
    except UnreachableError:
        return None
    if not answering.answers(size.rows, size.width):
        return None
    return replace(size, recovery=answering.answer, message="")


def _answering(
    distribution: Frequencies, tau: float, predictor: Predictor, asked: str, rows: list[int]
) -> Answering | None:
    """Return the predictor of the decoder that answers; None where it is not relied on."""
    fit, size = distribution.fit, distribution.domain_size
    if fit is None or fit.clients * tau < FEW:
        return None
    if distribution.max_items > 1 or distribution.heterogeneity > 1.0:
        return None
    if any(map(predictor.noise_of, rows)):
        return None
    batches = Schedule.parse(predictor.schedule).num_batches(predictor.num_rounds)
    answers = {recovery_of(asked, size, one, batches=batches) for one in rows}
    if len(answers) > 1 or not (answer := answers.pop()).kind.rests_on:
        return None
    given = {field.name: getattr(predictor, field.name) for field in fields(predictor)}
    # where all is planned by formula, no campaigns of joint recovery are tried
    return Answering(**given | {"repeats": 0, "recovery": answer.kind.rests_on}, answer=str(answer))
