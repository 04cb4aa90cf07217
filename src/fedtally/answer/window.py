"""Windows of an answer: which of the landed rounds the answer is about.

A window is given by its length (`last:7`) or by its first and last round (`3..9`, or their labels),
or it is chosen from the data (`auto`). A plan may add up several rounds before the sum is
decrypted. Then a window has all of these rounds or none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedtally.base import validate
from fedtally.base.text import escaped, in_number, shortened
from fedtally.errors import InvalidInputError, arg, opt
from fedtally.options import read_window
from fedtally.plan import Plan
from fedtally.sketch import CountSketch

ALL, AUTO = "all", "auto"
_FEW = 3  # up to this many missing rounds are named one by one; more are counted
_LONGEST_LABEL = 40  # characters of a label in a sentence


@dataclass(frozen=True)
class Window:
    """The landed rounds that an answer is about.

    Attributes:
        asked: the window as it was asked for, such as "last:7".
        rounds: the numbers of the landed rounds in the window, ascending, from 0.
        missing: the numbers of rounds between the first and the last of `rounds` that did not land.
            For trends, also rounds that landed without clients.
        clients: the number of contributions in the window. A contribution is what one client adds
            in one round.
        labels: the labels of the first and the last of `rounds`; None: rounds have only numbers.
        history: the number of rounds that the decoder fitted together for the estimates, including
            the window's own rounds. For trends it is the number of columns that were examined
            (`trending._Column`).
        prior: the number of rounds outside the window that its estimates use as a prior.
        repeats: the most rounds of the window that one client may have taken part in.
    """

    asked: str
    rounds: tuple[int, ...]
    missing: tuple[int, ...]
    clients: int
    labels: tuple[str, str] | None = None
    history: int = 0
    prior: int = 0
    repeats: int = 1

    def __str__(self) -> str:
        """Return the rounds in words. Long labels are shortened; control characters stay.

        >>> print(Window("last:3", (4, 6, 7), (5,), 900, ("Mon", "Thu")))
        Mon..Thu (rounds 4..7 without 5)
        >>> print(Window("last:1", (7,), (), 300))
        round 7
        >>> len(str(Window("last:1", (7,), (), 300, ("x" * 900, "x" * 900))))
        49
        """
        without = ", ".join(map(str, self.missing))
        if len(self.missing) > _FEW:
            without = f"{len(self.missing)} that did not land"
        numbers = _ends(str(self.rounds[0]), str(self.rounds[-1]))
        one = in_number(len(self.rounds), "round", "rounds")
        told = f"{one} {numbers}" + (f" without {without}" if without else "")
        if self.labels is None:
            return told
        first, last = map(_short, self.labels)
        return f"{_ends(first, last)} ({told})"

    @property
    def told(self) -> str:
        """The rounds in words, as `str` gives them, but with control characters escaped.

        Strangers may have written the labels.
        """
        return escaped(str(self))

    def fields(self) -> dict[str, Any]:
        """Return the attributes by name, as values for JSON documents; `repeats` is left out."""
        return {
            "asked": self.asked,
            "rounds": list(self.rounds),
            "labels": None if self.labels is None else list(self.labels),
            "missing": list(self.missing),
            "clients": self.clients,
            "history": self.history,
            "prior": self.prior,
        }


def _short(label: str) -> str:
    return shortened(label, _LONGEST_LABEL)


def _ends(first: str, last: str) -> str:
    return first if first == last else f"{first}..{last}"


class LandedRounds:
    """The rounds of a campaign whose sums have landed, and the windows that can be made of them.

    Args:
        plan: the plan of the campaign.
        sketches: the landed sums.
        labels: the label of each round of the plan; None: rounds have only numbers.

    >>> import fedtally
    >>> result = fedtally.estimate(["tea"] * 60, num_rounds=6, seed=1)
    >>> landed = LandedRounds(result.plan, result.sketches, None)
    >>> landed.chosen("last:2"), landed.chosen("1..3")
    ([4, 5], [1, 2, 3])
    """

    def __init__(
        self, plan: Plan, sketches: Sequence[CountSketch], labels: Sequence[str] | None
    ) -> None:
        self._plan, self._labels = plan, labels
        release = {number: rounds for rounds in plan.releases for number in rounds}
        landed = sorted(sketches, key=lambda sketch: sketch.round)
        self._clients = {sketch.round: sketch.num_clients for sketch in landed}
        # number of a sum -> the rounds that are added up in it
        self._sums: dict[int, range] = {each.round: release[each.round] for each in landed}

    def chosen(self, asked: str) -> list[int]:
        """Return the numbers of the sums in a window, ascending.

        The number of a sum is its round, from 0. If a sum adds up several rounds, its number is the
        number of the first of these rounds.

        Args:
            asked: "last:K": the last K landed rounds; or "A..B": the rounds from A to B, both
                included, both given by numbers or both by labels. "all" and "auto" are not
                understood here.

        Raises:
            InvalidInputError: there is no such window; the message says why.
        """
        self.check()
        length = re.fullmatch(r"last:([0-9]+)", asked)
        return self.last(int(length[1])) if length else self._between(*asked.split("..", 1))

    def check(self, without: str = f"leave {opt.window} out, for all rounds") -> None:
        """Raise InvalidInputError if the campaign can have no windows.

        This is so if the plan has one round, if all rounds are added up in one sum, or if privacy
        hides the numbers of clients.

        Args:
            without: what the user can do instead, for the end of the error's message.
        """
        plan = self._plan
        if plan.num_rounds == 1:
            raise InvalidInputError(f"the plan has one round, so there is no window: {without}")
        if len(plan.releases) == 1:
            raise InvalidInputError(
                f"the {plan.num_rounds} rounds of the plan were added up before they were opened,"
                f" so that there are no sums by round: {without}"
            )
        terms = plan.privacy
        if terms is not None and plan.clients.are_hidden(terms.event.relation):
            raise InvalidInputError(
                f"under {terms.event.relation} nobody knows how many clients a round has, and"
                f" shares in a window are of that number: {without}"
            )

    def last(self, number: int) -> list[int]:
        """Return the numbers of the sums that have the last landed rounds, ascending.

        Args:
            number: the number of rounds; all rounds if there are fewer.

        Raises:
            InvalidInputError: a sum adds up several rounds, and only some of them would be in the
                window.
        """
        found: list[int] = []
        held = 0
        for sum_ in reversed(self._sums):
            if held >= number:
                break
            found.append(sum_)
            held += len(self._sums[sum_])
            if held > number:
                self._refuse_cut(self._sums[sum_])
        return found[::-1]

    def _between(self, first: str, last: str) -> list[int]:
        low, high = self._number(first, (first, last)), self._number(last, (first, last))
        if low > high:
            raise InvalidInputError(
                f"{arg.window} must end after it begins, got {first}..{last}: write {last}..{first}"
            )
        found = []
        for sum_, rounds in self._sums.items():
            if low <= rounds[0] and rounds[-1] <= high:
                found.append(sum_)
            elif rounds[0] <= high and low <= rounds[-1]:
                self._refuse_cut(rounds)
        if not found:
            landed = self._shown(next(iter(self._sums))), self._shown(next(reversed(self._sums)))
            raise InvalidInputError(
                f"no round of {first}..{last} landed: take rounds of {_ends(*landed)}, which are"
                " the first and the last that did"
            )
        return found

    def _refuse_cut(self, rounds: range) -> None:
        raise InvalidInputError(
            f"rounds {rounds[0]} to {rounds[-1]} were added up before they were opened, and a"
            " window holds all of them or none: take them in, or leave them out;"
            f" {opt.schedule('hybrid')} opens each round by itself"
        )

    def _number(self, text: str, both: Sequence[str]) -> int:
        """Return the number of the round that one end of a window names.

        Args:
            text: a label or a number.
            both: the texts of both ends of the window: they must both be labels, or both be
                numbers. A text that is both counts as a label if both ends are labels.

        Raises:
            InvalidInputError: there is no such round, or one end is a label and one is a number.
        """
        labels, most = self._labels, self._plan.num_rounds - 1
        if labels is not None and all(each in labels for each in both):
            return list(labels).index(text)
        numbered = [each for each in both if re.fullmatch("[0-9]{1,18}", each)]
        numbered = [each for each in numbered if int(each) <= most]
        if text in numbered:
            return int(text)
        if labels is None:
            raise InvalidInputError(
                f"{arg.window} must be of rounds 0..{most}, which have no labels here, got"
                f" {_short(text)!r}"
            )
        wrong = [each for each in both if each not in labels and each not in numbered]
        if not wrong:
            raise InvalidInputError(
                f"{arg.window} must name both ends by labels or both by numbers, got"
                f" {_short(both[0])}..{_short(both[1])}"
            )
        raise InvalidInputError(
            f"{_short(wrong[0])!r} is no round of 0..{most}, and the label of none; labels"
            f" go from {_short(labels[0])} to {_short(labels[-1])}"
            f"{validate.did_you_mean(wrong[0], labels)}"
        )

    def _shown(self, number: int) -> str:
        return str(number) if self._labels is None else self._labels[number]

    def num_rounds(self, sums: Sequence[int]) -> int:
        """Return the number of rounds that are added up in the sums with these numbers."""
        return sum(len(self._sums[each]) for each in sums)

    def window(
        self, asked: str, sums: Sequence[int], history: int, prior: int, most: int
    ) -> Window:
        """Return a `Window` of the rounds in some sums.

        Args:
            asked: the window as it was asked for, such as "last:7".
            sums: the numbers of the sums, ascending.
            history: the number of rounds that the decoder fitted together for the estimates.
            prior: the number of rounds outside the window that the estimates use as a prior.
            most: the most rounds of the campaign that any client took part in.
        """
        rounds = [number for each in sums for number in self._sums[each]]
        there = set(rounds)
        labels = self._labels
        return Window(
            asked,
            tuple(rounds),
            tuple(n for n in range(rounds[0], rounds[-1] + 1) if n not in there),
            sum(self._clients[each] for each in sums),
            None if labels is None else (labels[rounds[0]], labels[rounds[-1]]),
            history,
            prior,
            min(most, len(rounds)),
        )


def read(asked: str) -> str:
    """Return the text of a window without spaces around it, after checking its form.

    The form is all, auto, last:K or A..B. Whether there are such rounds is not checked.

    Raises:
        InvalidInputError: the text does not have the form of a window.

    >>> read(" last:7 ")
    'last:7'
    """
    try:
        return read_window(str(asked))
    except ValueError as error:
        raise InvalidInputError(f"{arg.window}: {error}") from None
