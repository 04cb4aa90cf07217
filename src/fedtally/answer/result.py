"""The answer of a campaign: landed sums, which are decoded when somebody asks for estimates."""

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
    """The answer of a campaign: its landed sums, and the estimates that they give.

    A sum has landed if the server has it. Estimates are counts over the clients of all landed
    rounds. A contribution is what one client adds in one round, so a client of three rounds makes
    three contributions. A frequency is a count divided by the number of contributions. The sums are
    decoded at the first read of a value that needs a decoder.

    Args:
        plan: the campaign's plan.
        domain: the candidate items.
        sketches: the landed sums, at most one for each round. If the plan has privacy, each sum
            contains the plan's noise, and a mark that says so.
        decoding: how the sums are decoded.
        truth: the true counts, if a simulation knows them and evaluation was asked for; else None.
        warnings: notes that a reader of the numbers needs.
        missing: the number of input rows that were dropped because they lacked an item, a client, a
            silo or a round; 0 if the number is private.
        secure_sum: how the sums were made, JSON-able; None: as the plan says.
        sizing: how the sketch's size was chosen for a target, JSON-able; None: the size was given,
            in numbers or by a plan, or follows from a number of bytes.
        timings: the seconds of each stage.
        attendance: at place k - 1, the number of clients that took part in exactly k rounds; None:
            unknown, so any client may have been in as many rounds as the plan allows.
        num_silos: the number of silos, each counted once; None: the numbers of the sums are added.
        draw: how many items the bound on a client's items (max_items) dropped, JSON-able; None:
            no items were dropped, or the number is private or unknown.
        ended: how the campaign ended before its last round, JSON-able, from `campaign.ending`;
            None: it did not end early.
        columns: the names of the input table's columns by role ("item", "client", "round",
            "count"). It has the roles that the source is known to have. A column without a name has
            an empty list.
        words: words of a public list whose hashes stand out, so that they may be names of these
            hashes (see `recognise`).
        known_fit: a fit that a decoder found in these sums before; None: a new one is made when it
            is needed.
        known_names: the names of an open domain that were read from these sums before; None: they
            are read when somebody asks for them.
        round_labels: the label of each round of the plan, if the input names its rounds; None:
            rounds have only numbers.
        command: the command that made the answer; "": no command did.
        true_of: a function that returns the true counts in the rounds with the given numbers; None:
            no simulation knows them.

    Attributes:
        span: the window of rounds that the answer is about (see `window`); None: all landed rounds.
        decoding: how the sums are decoded, with the name of a decoder in place of "auto".
        num_clients: the number of clients that took part, each counted once. If clients are silos,
            it is the number of people. It is the number of contributions instead in three cases: in
            a window of rounds, since it is not recorded who was in which round; for the sums of a
            real campaign, whose server cannot count clients; and for silos if it is private how
            often a person counts.
        repeats: the most rounds of the sums that one client may be in; 1 if `attendance` was given.
        num_contributions: the number of contributions in the sums. Frequencies are shares of this
            number. It is noisy if the plan hides who takes part ("add-remove").
        num_silos: the number of silos that took part, each counted once; 0 if clients are no silos.
            In a window of rounds, or if it was not given, it is an upper bound.
        command: the command that made the answer; "": no command did.

    Raises:
        IncompatibleError: the sums, or an open domain, do not fit the plan.
        InvalidInputError: there is no sum; two sums are of one round; nobody took part; the numbers
            of clients or silos do not fit the sums; or the plan guarantees privacy, and a sum has
            no noise or another plan's noise.

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
        """The parts of this answer: only the result itself."""
        return (self,)

    def __repr__(self) -> str:
        candidates, plan = self.rows.size or "none", self.plan.fingerprint[:12]
        who, where = self.plan.nouns[1], f" in {self.span.told}" if self.span else ""
        return f"Result({who}={self.num_clients:,}{where}, candidates={candidates}, plan={plan})"

    def recognise(self, columns: Iterable[Any]) -> None:
        """Use the words of a public list to name strings that stand out from the noise.

        The sums of an open domain show hashes of strings. `Part.found` has the hashes that stand
        out. The list must be public: a list of what clients hold is not.

        Clients also send counters that spell their strings. A word becomes the name of a hash if
        these counters fit it clearly better than all other words of the list with this hash.
        Estimated frequencies do not change. The words whose hashes stand out are saved with the
        result. Names that were read before are read again when they are next asked for.

        Args:
            columns: the words as columns of text, such as Arrow arrays. They are read one after the
                other, so all of them together may exceed the memory.

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
        """Return a new answer from the same sums, decoded with other settings.

        A setting that is None stays as it is. This answer does not change. If this answer is about
        a window of rounds, the new answer is about the same window.

        Args:
            recovery: the name of the decoder, or "auto".
            objective: "linf": estimates as decoded; "l2": shrunk for a small squared error.
            confidence: the confidence of the limits; 0: no limits.
            intervals: the kind of the limits (see `make_intervals`).

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
        # Another objective changes shrinkage, and so which of the smallest estimates are listed.
        # The names of these may not have been read, so all are read again.
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

    # Set only in the answer of a window: the answer of all rounds, and `history`, an argument of
    # `window`.
    _taken_from: tuple[Result, int] | None = None

    @property
    def whole(self) -> Result:
        """The answer of all landed rounds.

        If this answer is about a window, it is the result from which `window` made it. Otherwise it
        is this result.
        """
        return self if self._taken_from is None else self._taken_from[0]

    def window(
        self, asked: str, history: int = LONGEST, progress: Progress | None = None
    ) -> Result:
        """Return the answer for some rounds only (a window), from sums that landed.

        Frequencies are shares of the contributions in the window. The decoder may fit rounds
        outside the window, too, if this makes the errors smaller. Estimates may also use rounds
        near the window as a prior; limits do not use this prior. At most six fits are cached. A fit
        takes up to 12 bytes for each candidate, row of the sketch and round.

        Args:
            asked: "all": this result itself; "last:K": the last K rounds that landed; "A..B": the
                rounds from A to B, both included, both given by numbers in the plan (from 0) or
                both by labels; "auto": the last rounds, as many as give the best estimate of the
                current frequencies.
            history: the most landed rounds that the decoder may fit, up to 64, before batches are
                completed. A sum of several rounds counts as one, and a large domain allows fewer. A
                window with this many rounds or more is fitted alone.
            progress: called as in `prepare`.

        Raises:
            InvalidInputError: there is no such window, or this result is about a window already;
                the message says why.

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
        # `part` was made without attendance, so it has the bound of the plan for its rounds.
        most = len(self.attendance) if self.repeats == 1 else part.repeats
        landed = self._by_round.landed
        used = landed.num_rounds(found.history), landed.num_rounds(found.prior)
        part.span = landed.window(asked, chosen, *used, most)
        part.recovered = found.limits  # fills the cached property, which would make another fit
        part.expected = None if found.decoder is found.limits else found.decoder
        part._taken_from = self, history
        return part

    def _of(self, rounds: Sequence[int]) -> Result:
        """Return a new `Result` of the sums with these numbers. Its decoder is not fitted yet.

        The number of a sum is its round. If a sum adds up several rounds, its number is the number
        of the first of these rounds.
        """
        # It is not recorded who was in which round. So the numbers of clients and silos of all
        # rounds say nothing of the window.
        account = self._account() | {"timings": None, "attendance": None, "num_silos": None}
        if self.plan.is_open:  # read names from all sums: a window may have too few clients for it
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

        An item is listed if its e-value (evidence for a change, see `recovery.changes`) is large
        enough. On average, at most a share `alpha` of the list did not change. This holds for the
        list of a single call, on whatever day it is made. It does not hold for the lists of several
        calls taken together. The size of a change is the difference of the estimates in two windows
        of rounds.

        Args:
            window: the rounds of the current shares, as for `window`, but not "all". If several
                rounds have the same hashes, "last:1" means all of the last such rounds.
            against: the window is compared with this number of landed sums before it; None: with
                all earlier sums in the history. A sum may add up several rounds. Sums with the same
                hashes are not separated, so more sums than `against` may be used.
            alpha: the share of listed items that may be unchanged, above 0 and below 1.
            history: the most landed rounds to examine, from 2 on; more than 64 mean 64. Sums with
                the same hashes are not separated, so more may be examined.
            progress: called as in `prepare`.

        Raises:
            InvalidInputError: there is no such window, or no landed round before it. It is also
                raised if no trend can be found: for example in an open domain, if the confidence is
                0, if all rounds have the same hashes, or if the decoder has no values for single
                rounds. The message says why.

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
        """Return the shares of items in each of the last landed rounds, with limits (see `Series`).

        Args:
            items: the items; a repeated item is used once.
            whole: whether the limits of an item hold in all rounds at once, and not just in each
                round.
            history: the most landed rounds, as for `trends`.
            progress: called as in `prepare`.

        Raises:
            OutsideDomainError: an item is not in the domain.
            InvalidInputError: no item is named. It is also raised if there are no shares by round:
                for example in an open domain, if the confidence is 0, if all rounds have the same
                hashes, or if the decoder has no values for single rounds. The message says why.
        """
        with reporting(self, progress):
            named = list(dict.fromkeys(each.item for each in self.estimates(items)))
            return series_of(self._by_round, named, whole, history)

    def _account(self) -> dict[str, Any]:
        """Return how this answer was made, as keyword arguments of `Result`.

        Plan, domain, sums, settings of decoding, truth and fit are not among them.
        """
        return {
            "command": self.command,
            "warnings": list(self.notes),
            "missing": self.missing,
            "secure_sum": self.secure_sum,
            "sizing": self.sizing,
            "timings": self.timings,
            "attendance": self.attendance if self.repeats == 1 else None,
            "draw": self.draw,
            "columns": self.columns,
            "words": list(self.words),
            "num_silos": self.num_silos,
            "round_labels": None if self.round_labels is None else list(self.round_labels),
            "known_names": None if self.known_names is None else list(self.known_names),
            # Leave this out if the campaign had all its rounds. Otherwise the bytes of its file
            # would differ from files of versions without early ends.
            **({} if self.ended is None else {"ended": self.ended}),
        }

    def frequency(self, item: str | int) -> float:
        """Return the estimated share of contributions that hold the item; it may be below 0.

        Raises:
            OutsideDomainError: the item is not in the domain.
        """
        return self.estimates([item])[0].frequency

    def true_frequencies(self, items: Sequence[str | int]) -> list[float] | None:
        """Return the true frequencies of items, in the order given; None if the truth is unknown.

        They are shares of the contributions. An item outside the domain has 0.
        """
        if self.truth is None:
            return None
        # `locate` raises for items outside the domain. Nobody holds them, so their count is 0.
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
        """The errors compared with the truth, as a field of JSON documents; None: not evaluated."""
        return None if self.evaluation is None else self.evaluation._asdict()

    def plot(
        self,
        path: str | os.PathLike[str] | None = None,
        k: int = 20,
        estimates: Sequence[Estimate] | None = None,
        narrow: bool = False,
    ) -> Any:
        """Return a matplotlib figure with the largest estimates as bars; also write it to `path`.

        Each bar has two kinds of limits: for the share among these clients, and for the share in a
        wider population, of which they are a sample. If the truth is known, a second panel shows
        estimate minus truth.

        Args:
            path: the path of the image file, which ends in .png, .svg or .pdf; None: no file is
                written.
            k: the most items to draw, most frequent first.
            estimates: the estimates to draw instead of the k largest; None: the k largest.
            narrow: whether the figure is for a phone: short labels, and the bars alone.

        Raises:
            MissingExtraError: matplotlib is not installed.
            InvalidInputError: the path has another suffix, or the file cannot be written.
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

        True counts are not written. If `evaluate` computed errors, they are written. So are the
        names that were read, and for 2^20 candidates or more a fit of joint recovery. If the
        candidates were taken from the input, they are the clients' own items, and the file has
        them.

        Raises:
            InvalidInputError: the answer is about a window, or the file cannot be written.
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
        """Return the result in a file that `save` wrote.

        Raises:
            UnreadableFileError: the file is missing, damaged, or has another format.
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
        """Compare the estimates with the truth. Return the errors, and store them as `evaluation`.

        In an open domain (nobody lists its strings) the result is a `NameEvaluation`, which also
        judges the names that were read. Otherwise it is an `Evaluation`.

        Args:
            k: the length of the two lists that are compared: the largest estimates and the largest
                true counts. In an open domain it is used only if the plan has no target for the
                error: see `NameEvaluation.threshold`.

        Raises:
            InvalidInputError: the truth is unknown: the result was loaded from a file, or
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
