"""The answer of a campaign: landed sums, decoded when somebody asks for estimates."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedtally.answer import saving
from fedtally.answer.answer import Answer
from fedtally.answer.estimates import Estimate, is_told_from_zero, with_doubts
from fedtally.answer.evaluation import (
    Evaluation,
    NameEvaluation,
    Truth,
    evaluate,
    evaluate_names,
)
from fedtally.answer.part import AS_USUAL, Part
from fedtally.domain import Domain, OpenStrings
from fedtally.domain.columns import as_text
from fedtally.errors import InvalidInputError, opt
from fedtally.plan import Plan
from fedtally.recovery.decoding import Decoding
from fedtally.recovery.found import FoundFit
from fedtally.sketch import CountSketch


class Result(Part, Answer):
    """The answer of a campaign: landed sums and what they say about the items.

    Estimates are counts over the clients of all landed rounds; a client of several rounds counts in
    each. A frequency is a count divided by the number of these contributions. The sums are kept,
    and decoded when estimates are asked for.

    Args:
        plan: the campaign's plan.
        domain: the candidate items.
        sketches: the landed sums, at most one per round. If the plan has privacy, each sum holds
            the noise of that plan and the mark of it.
        decoding: how the sums are decoded.
        truth: the true counts, where a simulation knows them and evaluation was asked for.
        warnings: notes that a reader of the numbers needs.
        missing: the number of rows that were dropped because they lacked an item, client or round.
        secure_sum: how the sums were made, JSON-able; None: as the plan says.
        sizing: how the sketch's size was chosen for a target, JSON-able; None: the size was given,
            or follows from a number of bytes.
        timings: the seconds of each stage.
        attendance: at place k - 1, the number of clients that took part in exactly k rounds; None:
            no client is in more than one, or the number is private.
        num_silos: the number of silos, each counted once; None: none is in two of the sums.
        draw: the number of items that the bound on a client's items dropped, JSON-able; None: none
            were dropped, or the number is private.
        columns: the names of the table's columns by the part that they play ("item", "client",
            "round", "count"), where the source says which there are. A column without a name has
            an empty list.
        words: the words of a public list whose hashes stand out (`recognise`).
        known_fit: the fit that joint recovery found in these sums before; None: it looks for one.
        known_names: the names of an open domain that were read from these sums before; None: they
            are read when somebody asks for them.

    Attributes:
        decoding: how the sums are decoded, with the name of the decoder in place of "auto".
        num_clients: the number of clients that took part, each counted once; where the repeats of
            people in silos are private, the number of contributions.
        num_contributions: the number of sketches in the sums: a client of three rounds has three.
            Frequencies are shares of them.
        num_silos: the number of silos that took part, each counted once; 0 where clients are no
            silos. Under a plan of silos the other numbers count people.
        command: the command that made the answer; "" if none did.

    Raises:
        IncompatibleError: the sums, or an open domain, are not those of the plan.
        InvalidInputError: nobody took part; `attendance` does not add up to the contributions in
            the sums; there are more silos than in all sums together; or the plan guarantees
            privacy, and a sum has no noise or another plan's.

    >>> import fedtally
    >>> result = fedtally.estimate(["tea"] * 30 + ["milk"] * 10, seed=1)
    >>> [(e.item, e.frequency) for e in result.top(2)]
    [('tea', 0.75), ('milk', 0.25)]
    >>> result.frequency("tea")
    0.75
    """

    def __init__(
        self,
        plan: Plan,
        domain: Domain,
        sketches: Sequence[CountSketch],
        *,
        decoding: Decoding = AS_USUAL,
        truth: Truth | None = None,
        warnings: Sequence[str] = (),
        missing: int = 0,
        secure_sum: Mapping[str, Any] | None = None,
        sizing: Mapping[str, Any] | None = None,
        timings: Mapping[str, float] | None = None,
        attendance: Sequence[int] | None = None,
        num_silos: int | None = None,
        draw: Mapping[str, Any] | None = None,
        columns: Mapping[str, Sequence[str]] | None = None,
        words: Sequence[str] = (),
        known_fit: FoundFit | None = None,
        known_names: Sequence[str] | None = None,
        command: str = "",
    ) -> None:
        Part.__init__(
            self,
            plan,
            domain,
            sketches,
            decoding=decoding,
            warnings=warnings,
            secure_sum=secure_sum,
            attendance=attendance,
            num_silos=num_silos,
            draw=draw,
            columns=columns,
            words=words,
            known_fit=known_fit,
            known_names=known_names,
        )
        self.truth = truth
        self.missing, self.command = missing, command
        self.sizing = None if sizing is None else dict(sizing)
        self.timings = dict(timings or {})
        self.evaluation: Evaluation | NameEvaluation | None = None

    @property
    def parts(self) -> tuple[Part, ...]:
        """The result itself, its only part."""
        return (self,)

    def __repr__(self) -> str:
        candidates, plan = self.rows.size or "none", self.plan.fingerprint[:12]
        who = self.plan.nouns[1]
        return f"Result({who}={self.num_clients:,}, candidates={candidates}, plan={plan})"

    def recognise(self, columns: Iterable[Any]) -> None:
        """Let the words of a public list be the names of hashes that stand out.

        A word names a hash if the spelling of the sums fits it, and fits no other word of the list
        as well. No frequency changes, and the words that have the hash of one that stands out stay
        with the result. A list of what clients hold is not public.

        Args:
            columns: the words, a column of text after the other: they may exceed the memory.

        Raises:
            InvalidInputError: the domain is not open.
        """
        if not isinstance(self.domain, OpenStrings):
            raise InvalidInputError(
                "a list of words names the hashes of an open domain, and this one has candidates"
            )
        found, kept = np.array(sorted(self._found), np.uint64), set(self.words)
        for column in columns:
            text = self.domain.text(column)
            stands_out = np.isin(self.domain.encode(text), found)
            kept.update(as_text(text).filter(stands_out).to_pylist())
        self.words, self._known_names = tuple(sorted(kept)), None
        self.__dict__.pop("names", None)

    def decoded(
        self,
        *,
        recovery: str | None = None,
        objective: str | None = None,
        confidence: float | None = None,
        intervals: str | None = None,
    ) -> Result:
        """Return the answer of the same sums, decoded in another way; None keeps a setting.

        >>> import fedtally
        >>> result = fedtally.estimate(["tea"] * 30 + ["milk"] * 10, seed=1)
        >>> result.decoded(recovery="median", confidence=0).top(1)[0].low is None
        True
        """
        asked = {
            "recovery": recovery,
            "objective": objective,
            "confidence": confidence,
            "intervals": intervals,
        }
        changed: dict[str, Any] = {
            name: value for name, value in asked.items() if value is not None
        }
        # shrinkage moves the least of them above or below what is listed
        names = self.known_names if objective in (None, self.objective) else None
        return Result(
            self.plan,
            self.domain,
            self.sketches,
            decoding=replace(self._asked, **changed),
            truth=self.truth,
            known_fit=self.known_fit,
            **self._account() | {"timings": None, "known_names": names},
        )

    def _account(self) -> dict[str, Any]:
        """Return what this answer says of how it was made, as keywords of `Result`."""
        return {
            "command": self.command,
            "warnings": list(self.notes),
            "missing": self.missing,
            "secure_sum": self.secure_sum,
            "sizing": self.sizing,
            "timings": self.timings,
            "attendance": self.attendance,
            "draw": self.draw,
            "columns": self.columns,
            "words": list(self.words),
            "num_silos": self.num_silos,
            "known_names": None if self.known_names is None else list(self.known_names),
        }

    def frequency(self, item: str | int) -> float:
        """Return the estimated share of the clients that contribute the item; it may be below 0."""
        return self.estimates([item])[0].frequency

    def true_frequencies(self, items: Sequence[str | int]) -> list[float] | None:
        """Return the true frequencies of named items; None if the truth is unknown.

        They are shares among the clients that took part. An item outside the domain has 0.
        """
        if self.truth is None:
            return None
        # An item outside the domain is nobody's: the domain cannot locate it, and its count is 0.
        candidates = (
            [
                item
                for item, there in zip(items, self.domain.contains(list(items)), strict=True)
                if there
            ]
            if items
            else []
        )
        counts = (
            {}
            if not candidates
            else dict(zip(candidates, self.truth.at(self.domain.locate(candidates)), strict=True))
        )
        return [float(counts.get(item, 0)) / self.num_contributions for item in items]

    @property
    def evaluation_fields(self) -> dict[str, Any] | None:
        """The errors against the truth as the fields of documents; None where it is not known."""
        return None if self.evaluation is None else self.evaluation._asdict()

    def plot(
        self,
        path: str | os.PathLike[str] | None = None,
        k: int = 20,
        estimates: Sequence[Estimate] | None = None,
        narrow: bool = False,
    ) -> Any:
        """Return a matplotlib figure of estimates; write it to `path` if given.

        Each bar has its limits: among the clients, and if they stand for more people. Where the
        truth is known, a second panel shows estimate minus truth.

        Args:
            path: ends in .png, .svg or .pdf.
            k: the number of items, most frequent first.
            estimates: the estimates to draw instead of the k largest.
            narrow: for a phone: short labels, and the bars alone.

        Raises:
            MissingExtraError: matplotlib is not installed.
            InvalidInputError: another suffix, or a folder that cannot be written.
        """
        from fedtally.answer import charts

        drawn = self.top(k) if estimates is None else estimates
        drawn = with_doubts(drawn, self.above_noise(drawn))
        return charts.top_items(
            drawn,
            self.num_contributions,
            truth=self.true_frequencies([estimate.item for estimate in drawn]),
            doubtful=[not is_told_from_zero(estimate) for estimate in drawn],
            confidence=self.confidence,
            note=self.not_private,
            unit=self.unit,
            narrow=narrow,
            path=path,
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write sums, plan and candidates to one file, whole or not at all.

        True counts are not written. Candidates are: in a domain `input` they are the clients' own
        items.
        """
        saved = saving.SavedResult(
            self.plan,
            self.domain,
            self.sketches,
            replace(self.decoding, recovery=self.recovery),
            self.known_fit,
            self.evaluation,
            self._account(),
        )
        saving.save(saved, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Result:
        """Read a result that `save` wrote.

        Raises:
            UnreadableFileError: the file is missing, damaged, or of another kind.
        """
        saved = saving.load(path)
        with saving.refused_as_damage(path):
            result = cls(
                saved.plan,
                saved.domain,
                saved.sketches,
                decoding=saved.decoding,
                known_fit=saved.fit,
                **saved.account,
            )
        result.evaluation = saved.evaluation
        return result

    def evaluate(self, k: int = 20) -> Evaluation | NameEvaluation:
        """Compare all estimates with the truth, and keep the figures as `evaluation`.

        Of an open domain the names are compared.

        Raises:
            InvalidInputError: the truth is not known: the result was loaded from a file, or
                evaluation was not asked for.
        """
        if self.truth is None:
            raise InvalidInputError(
                f"the truth is not known here: run estimate with {opt.evaluate(True)}"
            )
        if isinstance(self.domain, OpenStrings):
            target = self.plan.target
            threshold = (
                2 * target.linf
                if target is not None
                else min((estimate.frequency for estimate in self.top(k)), default=0.0)
            )
            self.evaluation = evaluate_names(
                self.truth,
                self.domain,
                self.decoder,
                self.intervals,
                self.names,
                self.found,
                self.num_contributions,
                threshold,
            )
        else:
            self.evaluation = evaluate(
                self.truth,
                self.domain,
                self.blocks(),
                self.intervals,
                self.top(min(k, self.domain.size)) if k else [],
                self.num_contributions,
                k,
            )
        return self.evaluation
