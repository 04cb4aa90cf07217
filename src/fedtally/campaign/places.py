"""What the folders of all servers share: where a mark may lie, whether a ledger fits, a list."""

from __future__ import annotations

import os
from pathlib import Path

from fedtally.domain import Domain
from fedtally.errors import InvalidInputError
from fedtally.plan import Plan

_BLOCK = 1 << 16  # candidates that are written at once


def check_mark(mark: Path, folder: Path, called: str) -> None:
    """Refuse a mark within the folder whose old copies it is to show.

    Args:
        mark: the path of the mark.
        folder: the folder, which need not exist yet.
        called: the words for the folder in the error.

    Raises:
        InvalidInputError: the mark lies there.
    """
    # Real paths: neither .. nor a link may hide where the mark is.
    if Path(os.path.realpath(mark)).is_relative_to(os.path.realpath(folder)):
        raise InvalidInputError(
            f"the mark {mark} lies in {called}, and would be put back with it: name a file"
            " elsewhere, on another disk if possible"
        )


def check_ledger(ledger: str | None, plan: Plan) -> None:
    """Refuse a plan with privacy without a ledger, and a ledger that cannot be charged.

    Args:
        ledger: the address of the ledger; None: there is none.
        plan: the plan that is charged to it.

    Raises:
        InvalidInputError: one of the two.
    """
    if (ledger is None) == (plan.privacy is None):
        return
    raise InvalidInputError(
        "a plan with privacy is charged to a ledger: name it (fedtally ledger grant makes one)"
        if ledger is None
        else "the plan is without privacy, and a ledger cannot be charged: leave it out"
    )


def write_candidates(path: Path, domain: Domain) -> None:
    """Write the candidates of a list, none of which holds a line end, one a line."""
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        for start in range(0, domain.size, _BLOCK):
            labels = domain.labels(range(start, min(start + _BLOCK, domain.size)))
            file.writelines(f"{label}\n" for label in labels)
