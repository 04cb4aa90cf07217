"""The rule by which a campaign of several rounds ends before its last round.

`campaign.ending` applies the rule. docs/plan.md says what it saves, and how often the error is
larger than the rule estimates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedtally.base.text import in_number
from fedtally.errors import InvalidInputError, opt
from fedtally.plan.rules import check, given, unmet
from fedtally.recovery.decoders import AS_EXACT, ENDS_BY

if TYPE_CHECKING:
    from fedtally.plan.parts.candidates import Candidates
    from fedtally.plan.parts.clients import Clients
    from fedtally.plan.parts.protection import Protection
    from fedtally.plan.parts.summing import Summing
    from fedtally.plan.parts.vector import Vector
    from fedtally.sketch import SketchSpec

# The fewest rounds, each with its own hashes or signs, before the end: from one round alone the
# noise of the fit is hardly known.
LEAST_ROUNDS = 2
LEAST_NOISED_ROUNDS = 3


@dataclass(frozen=True)
class Stopping:
    """The rule by which a campaign ends early.

    Args:
        linf: the largest error of any frequency that is allowed, in (0, 1).
        probability: the probability with which this error may be exceeded, in (0, 1).
        recovery: the name of the decoder of the answer.
        least_rounds: the fewest rounds before the end; the rounds of a batch count as one.
        least_clients: the fewest clients before the end. The estimated error is only about the
            clients who took part, and few clients may differ from all the others.
    """

    linf: float
    probability: float
    recovery: str
    least_rounds: int
    least_clients: int


def check_stopping(
    rule: Stopping,
    spec: SketchSpec,
    *,
    num_clients: int,
    candidates: Candidates,
    vector: Vector,
    clients: Clients,
    summing: Summing,
    protection: Protection,
) -> None:
    """Refuse a plan that cannot end as soon as its error is known to be small enough.

    Args:
        rule: the rule of the plan.
        spec: the spec of the plan's sketches.
        num_clients: the number of clients of all rounds.
        candidates: the plan's candidates.
        vector: the kind of a client's vector.
        clients: the senders of the vectors.
        summing: the way to sum rounds.
        protection: the party that adds the noise, and what follows from it.

    Raises:
        InvalidInputError: the rule does not work with these candidates, clients or vectors, or with
            this way to sum; looking at the sums costs privacy; the plan has too few rounds, rows or
            clients; the errors of joint recovery say nothing about the errors of the answer; or the
            number of clients is noised.
    """
    check(
        given(until_known=True),
        unmet(
            list=not candidates.can_be_tried,
            sketch=not vector.shares_counters,
            persons=clients.entries > 0,
            not_two_server=summing.servers is not None,
            noise_of_clients=protection.is_secret,  # each look at the sums would be a release
        ),
    )
    least, before = rule.least_rounds, rule.least_clients
    fewest = ENDS_BY.fewest_rows
    relation = None if protection.terms is None else protection.terms.event.relation
    faults = {
        f"needs more than {least} rounds, got {spec.num_rounds}": spec.num_rounds <= least,
        f"needs {least} or more rounds with signs of their own, and the schedule {spec.schedule}"
        f" has {in_number(spec.num_batches, 'one', '{}')}": spec.num_batches < least,
        f"needs at least {fewest} rows, got {spec.rows}": spec.rows < fewest,
        # the rule uses errors of joint recovery; another decoder's may be several times as large
        f"needs recovery {' or '.join(AS_EXACT)}, got {rule.recovery}": (
            rule.recovery not in AS_EXACT
        ),
        f"needs {opt.min_clients} below the plan's {num_clients:,} clients, got {before:,}": (
            before >= num_clients
        ),
        "needs a number of clients without noise": clients.are_hidden(relation),
    }
    for fault, is_there in faults.items():
        if is_there:
            raise InvalidInputError(f"{opt.until_known} {fault}; leave {opt.until_known} out")
