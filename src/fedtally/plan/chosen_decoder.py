"""The decoder of a plan's sums: the one that the user named, or else the best one for the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedtally.recovery.decoding import recovery_of

if TYPE_CHECKING:
    from fedtally.plan import Plan
    from fedtally.recovery.decoders import Recovery


def decoder_of(plan: Plan, asked: str, batches: int) -> Recovery:
    """Return the decoder that estimates the frequencies from the sums of a plan.

    "auto" chooses the best decoder for the plan's candidates, rows, encoding and batches.

    Args:
        plan: the plan.
        asked: the name of the decoder that the user wants, or "auto".
        batches: the number of batches (groups of rounds that share all hashes and signs) that have
            sums, or will have sums at the end of the campaign.

    Raises:
        InvalidInputError: no decoder has the name `asked`, or the decoder does not fit the sums or
            the candidates.

    >>> from fedtally.plan import Plan
    >>> domain = {"kind": "range", "size": 9, "public": True, "first": 1, "last": 9}
    >>> str(decoder_of(Plan(7, 20, "hybrid", 4, 50, 50, domain, 1, bytes(32)), "auto", 4))
    'belief'
    """
    recovery = recovery_of(
        asked,
        plan.domain_size,
        plan.rows,
        plan.encoding,
        batches=batches,
        planned=plan.is_open,
    )
    plan.candidates.check_recovery(recovery)
    return recovery
