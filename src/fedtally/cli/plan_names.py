"""Texts about names: the strings that a plan without a list of candidates is predicted to find."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedtally.plan import Plan
    from fedtally.plan.readable_names import Names

Row = tuple[str, str]


def fields(names: Names, one_release: tuple[int, Names] | None) -> dict[str, Any]:
    """Return the prediction about names as a dict for JSON.

    Args:
        names: the prediction for the plan.
        one_release: for comparison, a plan that adds up all rounds and adds noise only once: the
            bytes that a client of it sends, and the prediction for it. None: there is no
            comparison, for example because the plan has one release anyway.
    """
    one = one_release
    alone = None if one is None else {"bytes_per_client": one[0], **one[1].to_dict()}
    return names.to_dict() | {"one_release": alone}


def rows(
    names: Names,
    plan: Plan,
    expected: int,
    one_release: tuple[int, Names] | None,
    decoding_seconds: float,
) -> list[Row]:
    """Return the rows (name, text) about the names that the plan is predicted to find.

    Args:
        names: the prediction for the plan.
        plan: the plan.
        expected: the expected number of clients; frequencies are shares of it.
        one_release: a comparison, see `fields`; None: no comparison.
        decoding_seconds: the CPU seconds for decoding the sums, before names are read from them.
    """
    from fedtally.answer import amounts

    whom = plan.clients.counted[1]

    def holders(frequency: float) -> str:
        return f"about {math.ceil(frequency * expected):,} {whom}"

    above = f"{100 * names.threshold:.3g} %"
    seconds = amounts.seconds(decoding_seconds + names.seconds)
    return [
        ("Names", _read(names, holders)),
        *_lengths(names, lambda theta: holders(theta).removesuffix(f" {whom}")),
        ("", f"strings held by {holders(names.theta_find)} or more stand out, named or not"),
        ("", f"expected: {names.named:.0%} of the strings above {above} are named"),
        *_alone(len(plan.releases), one_release),
        ("", f"the server decodes hashes and names in about {seconds} of CPU"),
    ]


def _read(names: Names, holders: Callable[[float], str]) -> str:
    """Return in words how frequent a name must be so that it is found and can be read.

    Args:
        names: the prediction for the plan.
        holders: returns in words how many clients a frequency means.
    """
    from fedtally.answer import amounts

    length = amounts.counted(names.length, "byte")
    if math.isinf(names.least):
        return f"names of {length} cannot be read, whoever holds them"
    return (
        f"names held by {holders(names.least)} or more can be read, and by the server, too, if"
        f" they have at most {length}"
    )


def _lengths(names: Names, number: Callable[[float], str]) -> list[Row]:
    """Return a list with the row (name, text) on how frequent names of each length must be.

    The row says from which number of clients on names of a length are found and can be read.

    The list is empty if names of no length can be read.

    Args:
        names: the prediction for the plan.
        number: returns in words how many clients a frequency means.
    """
    # a name is read only where its hash stands out, however few clients spell a short one
    needed = [(size, max(theta, names.theta_find)) for size, theta in names.by_length]
    readable = [(size, theta) for size, theta in needed if not math.isinf(theta)]
    lengths = ", ".join(f"{size} from {number(theta)}" for size, theta in readable)
    return [("", f"of other lengths, in bytes: {lengths}")] if lengths else []


def _alone(releases: int, one_release: tuple[int, Names] | None) -> list[Row]:
    """Return a list with the row (name, text) that compares the plan with a plan of one release.

    Args:
        releases: the number of releases of the plan.
        one_release: the comparison, see `fields`; None: nothing is compared, and the list is empty.
    """
    from fedtally.answer import amounts

    if one_release is None:
        return []
    several, cost = amounts.counted(releases, "release"), amounts.size(one_release[0])
    share = f"{one_release[1].named:.0%}"
    text = f"so with {several}; one release would name {share}, for {cost} of a client"
    return [("", text)]
