"""The answer of a campaign: landed sums, decoded when somebody asks for estimates."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from fedtally.answer import saving
from fedtally.answer import window as windows
from fedtally.answer.answer import Answer
from fedtally.answer.by_round import ByRound
from fedtally.answer.estimates import Estimate, is_told_from_zero, with_doubts
from fedtally.answer.evaluation import (
    Evaluation,
    NameEvaluation,
    Truth,
    evaluate,
    evaluate_names,
)
from fedtally.answer.part import AS_USUAL, Part, Progress, reporting
from fedtally.answer.trending import USUAL_ALPHA, Series, Trends, series_of, trends_of
from fedtally.base import validate
from fedtally.domain import Domain, OpenStrings
from fedtally.domain.columns import as_text
from fedtally.errors import InvalidInputError, opt
from fedtally.plan import Plan
from fedtally.recovery.decoding import Decoding
from fedtally.recovery.found import FoundFit
from fedtally.recovery.windows import LONGEST
from fedtally.sketch import CountSketch


class Result(Part, Answer):
    """The answer of a campaign: landed sums and what they say about the items.

    Estimates are counts over the clients of all landed rounds (rounds whose sums are there). A
    client of several rounds makes a contribution in each. A frequency is a count divided by the
    number of contributions. The sums are decoded when estimates are asked for first.

    Args:
        plan: the campaign's plan.
        domain: the candidate items.
        sketches: the landed sums, at most one per round. If the plan has privacy, each sum holds
            the noise of that plan and the mark of it.
        decoding: how the sums are decoded.
        truth: the true counts, where a simulation knows them and evaluation was asked for.
        warnings: notes that a reader of the numbers needs.
        missing: the number of rows that were dropped because they lacked an item, client or round.
        secure_sum: how the sums were made, JSON-able; None: as the plan describes it.
        sizing: how the sketch's size was chosen for a target, JSON-able; None: the size was given,
            or follows from a number of bytes.
        timings: the seconds of each stage.
        attendance: at place k - 1, the number of clients that took part in exactly k rounds; None:
            no client is in more than one, or the number is private.
        num_silos: the number of silos, each counted once; None: no silo is in two of the sums.
        draw: the number of items that the bound on a client's items dropped, JSON-able; None: none
            were dropped, or the number is private.
        ended: how the campaign ended before its last round, JSON-able, by `campaign.ending`; None:
            it did not.
        columns: the names of the table's columns by the part that they play ("item", "client",
            "round", "count"), where the source says which there are. A column without a name has
            an empty list.
        words: the words of a public list whose hashes stand out (`recognise`).
        known_fit: the fit that joint recovery found in these sums before; None: it looks for one.
        known_names: the names of an open domain that were read from these sums before; None: they
            are read when somebody asks for them.
        round_labels: the label of each round of the plan, where the rows name their rounds; None:
            rounds have only numbers.
        command: the command that made the answer; "" if none did.
        true_of: a function that returns the true counts in the rounds with the given numbers; None:
            no simulation knows them.

    Attributes:
        span: the window of rounds that the answer is about (`window`); None: all landed rounds.
        decoding: how the sums are decoded, with the name of the decoder in place of "auto".
        num_clients: the number of clients that took part, each counted once. If clients are silos,
            and the number of silos of each person is private, it is the number of contributions.
        num_contributions: the number of client sketches in the sums: a client of three rounds has
            three. Frequencies are shares of this number.
        num_silos: the number of silos that took part, each counted once; 0 if clients are no silos.
            If they are, the other numbers count people.
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
        ended: Mapping[str, Any] | None = None,
        columns: Mapping[str, Sequence[str]] | None = None,
        words: Sequence[str] = (),
        known_fit: FoundFit | None = None,
        known_names: Sequence[str] | None = None,
        round_labels: Sequence[str] | None = None,
        command: str = "",
        true_of: Callable[[Sequence[int]], Truth] | None = None,
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
            ended=ended,
            columns=columns,
            words=words,
            known_fit=known_fit,
            known_names=known_names,
        )
        self.truth, self.true_of = truth, true_of
        self.round_labels = None if round_labels is None else tuple(round_labels)
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
        who, where = self.plan.nouns[1], f" in {self.span.told}" if self.span else ""
        return f"Result({who}={self.num_clients:,}{where}, candidates={candidates}, plan={plan})"

    def recognise(self, columns: Iterable[Any]) -> None:
        """Use the words of a public list as names of the hashes that stand out.

        A word names a hash if the counters that spell names fit this word clearly better than all
        other words of the list with this hash. Frequencies do not change. The words whose hashes
        stand out are saved with the result. The list must be public: a list of what clients hold is
        not.

        Args:
            columns: the words as columns of text, one after the other. The columns together may
                exceed the memory.

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
        """Return the answer of the same sums, decoded with other settings; None keeps a setting.

        >>> import fedtally
        >>> result = fedtally.estimate(["tea"] * 30 + ["milk"] * 10, seed=1)
        >>> result.decoded(recovery="median", confidence=0).top(1)[0].low is None
        True
        """
        asked: dict[str, Any] = {
            "recovery": recovery,
            "objective": objective,
            "confidence": confidence,
            "intervals": intervals,
        }
        if self._taken_from is not None:
            whole, history = self._taken_from
            assert self.span is not None
            return whole.decoded(**asked).window(self.span.asked, history)
        changed = {name: value for name, value in asked.items() if value is not None}
        # the objective changes shrinkage, and so which of the smallest estimates are listed
        names = self.known_names if objective in (None, self.objective) else None
        return Result(
            self.plan,
            self.domain,
            self.sketches,
            decoding=replace(self.asked, **changed),
            truth=self.truth,
            true_of=self.true_of,
            known_fit=self.known_fit,
            **self._account() | {"timings": None, "known_names": names},
        )

    @cached_property
    def _by_round(self) -> ByRound:
        return ByRound(self, self.round_labels)

    _taken_from: tuple[Result, int] | None = None  # for a window: the whole answer, and `history`

    @property
    def whole(self) -> Result:
        """The answer of all rounds: this result, or the result that this window is taken from."""
        return self if self._taken_from is None else self._taken_from[0]

    def window(
        self, asked: str, history: int = LONGEST, progress: Progress | None = None
    ) -> Result:
        """Return the answer for a window of rounds, from the sums that are there.

        Estimates are shares of the contributions in the window. They are read from a fit of more
        rounds, if this has smaller errors. The rounds around the window serve as a prior, if the
        sums support it. Limits use only the rounds in the window. At most six fits are cached; each
        takes up to 12 bytes for each candidate, row and round.

        Args:
            asked: "all"; "last:K", the last K rounds that landed; "A..B", the rounds from A to B,
                both by their numbers in the plan or both by their labels; or "auto", as many of the
                last rounds as best estimate the current frequencies.
            history: the most landed rounds to fit, up to 64; 0: only the window's own rounds.
            progress: called as `prepare` says.

        Raises:
            InvalidInputError: there is no such window, or this result is a window itself; the
                message says why.

        >>> import fedtally
        >>> days = ["Mon"] * 40 + ["Tue"] * 40
        >>> result = fedtally.estimate(["tea"] * 40 + ["milk"] * 40, rounds=days, seed=1)
        >>> tuesday = result.window("last:1")
        >>> print(tuesday.span)
        Tue (round 1)
        >>> [(e.item, e.frequency) for e in tuesday.top()]
        [('milk', 1.0)]
        """
        asked, history = windows.read(asked), validate.integer(0, history=history)
        if self.span is not None:
            raise InvalidInputError(
                "a window is of the result of all rounds, and this is one already: ask that result"
            )
        if asked == windows.ALL:
            return self
        with reporting(self, progress):
            chosen = self._by_round.chosen(asked)
            part = self._of(chosen)
            found = self._by_round.decoded(chosen, part.recovery, history)
        numbers = len(found.history), len(found.prior), len(self.attendance)
        part.span = self._by_round.landed.window(asked, chosen, *numbers)
        part.recovered = found.limits  # in place of what the cached property would make
        part.expected = None if found.decoder is found.limits else found.decoder
        part._taken_from = self, history
        return part

    def _of(self, rounds: Sequence[int]) -> Result:
        """Return the answer of the rounds with these numbers, not yet decoded."""
        # The sums do not show how many contributions of a window one client made.
        account = self._account() | {"timings": None, "attendance": None, "num_silos": None}
        if self.plan.is_open:  # a window alone has too few clients to read names
            account["known_names"] = tuple(self.names.values())
        part = Result(
            self.plan,
            self.domain,
            self._by_round.sums(rounds),
            decoding=self.asked,
            truth=None if self.true_of is None else self.true_of(rounds),
            **account,
        )
        part.num_silos = min(part.num_silos, self.num_silos)
        return part

    def trends(
        self,
        window: str = "last:1",
        against: int | None = None,
        *,
        alpha: float = USUAL_ALPHA,
        history: int = LONGEST,
        progress: Progress | None = None,
    ) -> Trends:
        """Return the items whose frequencies changed over the last landed rounds, and the changes.

        An item is listed if its e-value (evidence for a change, `recovery.changes`) is large
        enough. On average at most a share `alpha` of the list did not change. This holds at every
        look, however often one looks. The size of a change is the difference of two windows'
        estimates.

        Args:
            window: the rounds of the current shares, as for `window`. If several rounds share one
                set of hashes, "last:1" means all of the last such rounds.
            against: the number of landed rounds before the window to compare with; None: all rounds
                before it in the history. A sum that adds up several rounds counts as one, and
                rounds with one set of hashes are taken together.
            alpha: the share of listed items that may be unchanged, above 0 and below 1.
            history: the most rounds to examine, from 2 to 64.
            progress: called as `prepare` says.

        Raises:
            InvalidInputError: there is no such window, no round before it, or the decoder has no
                values for single rounds; the message says why.

        >>> import fedtally
        >>> days = [day for day in range(8) for _ in range(100)]
        >>> drinks = ["tea"] * 400 + ["tea", "tea", "tea", "milk"] * 100
        >>> result = fedtally.estimate(drinks, rounds=days, seed=1)
        >>> [(c.item, c.kind, c.frequency, c.since) for c in result.trends().changed]
        [('milk', 'new', 0.25, '4')]
        """
        with reporting(self, progress):
            return trends_of(self._by_round, window, against, alpha, history)

    def series(
        self,
        items: Sequence[str | int] | str | int,
        *,
        whole: bool = False,
        history: int = LONGEST,
        progress: Progress | None = None,
    ) -> Series:
        """Return the shares of items in each of the last landed rounds, with limits.

        Args:
            items: the items whose shares are wanted.
            whole: whether the limits of an item hold in all rounds at once, and not just in each.
            history: the most rounds, from 2 to 64.
            progress: called as `prepare` says.

        Raises:
            OutsideDomainError: an item is not in the domain.
            InvalidInputError: the decoder has no values for single rounds; the message says why.
        """
        with reporting(self, progress):
            named = list(dict.fromkeys(each.item for each in self.estimates(items)))
            return series_of(self._by_round, named, whole, history)

    def _account(self) -> dict[str, Any]:
        """Return how this answer was made, as keyword arguments of `Result`."""
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
            "round_labels": None if self.round_labels is None else list(self.round_labels),
            "known_names": None if self.known_names is None else list(self.known_names),
            # Leave this out if the campaign had all its rounds. So its file is the same as before
            # early ends existed.
            **({} if self.ended is None else {"ended": self.ended}),
        }

    def frequency(self, item: str | int) -> float:
        """Return the estimated share of clients that hold the item; it may be below 0."""
        return self.estimates([item])[0].frequency

    def true_frequencies(self, items: Sequence[str | int]) -> list[float] | None:
        """Return the true frequencies of the named items; None if the truth is unknown.

        They are shares among the clients that took part. An item outside the domain has 0.
        """
        if self.truth is None:
            return None
        # The domain cannot locate an item outside it. Nobody holds such an item: its count is 0.
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
        """The errors against the truth, as a field of JSON documents; None if not evaluated."""
        return None if self.evaluation is None else self.evaluation._asdict()

    def plot(
        self,
        path: str | os.PathLike[str] | None = None,
        k: int = 20,
        estimates: Sequence[Estimate] | None = None,
        narrow: bool = False,
    ) -> Any:
        """Return a matplotlib figure of estimates; also write it to `path` if given.

        Each bar has two kinds of limits: for the share among these clients, and for a population
        that they are a sample of. If the truth is known, a second panel shows estimate minus truth.

        Args:
            path: the path of the image file, which ends in .png, .svg or .pdf; None: none is
                written.
            k: the number of items, most frequent first.
            estimates: the estimates to draw instead of the k largest.
            narrow: whether the figure is for a phone: short labels, and the bars alone.

        Raises:
            MissingExtraError: matplotlib is not installed.
            InvalidInputError: the suffix is another one, or the folder cannot be written.
        """
        from fedtally.answer import charts

        where = "" if self.span is None else self.span.told
        drawn = self.top(k) if estimates is None else estimates
        drawn = with_doubts(drawn, self.above_noise(drawn))
        return charts.top_items(
            drawn,
            self.num_contributions,
            truth=self.true_frequencies([estimate.item for estimate in drawn]),
            doubtful=[not is_told_from_zero(estimate) for estimate in drawn],
            confidence=self.confidence,
            note=" · ".join(filter(None, [self.not_private, where])),
            unit=self.unit,
            narrow=narrow,
            path=path,
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write sums, plan and candidates to one file, whole or not at all.

        True counts are not written. Candidates are written: if they were taken from the input, they
        are the clients' own items.

        Raises:
            InvalidInputError: the answer is of a window; its values also rest on other rounds.
        """
        if self.span is not None:
            raise InvalidInputError(
                "a window is not saved, since it rests on other rounds, too: save the result of all"
                " rounds, of which fedtally query takes windows"
            )
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
        """Read a result from a file that `save` wrote.

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
        """Compare all estimates with the truth; return the errors and store them as `evaluation`.

        In an open domain, names are compared, too.

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
