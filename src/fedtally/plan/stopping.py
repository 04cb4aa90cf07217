"""The rule by which a campaign of several rounds ends before its last round.

The rule ends the campaign as soon as its estimated error is small enough. `campaign.ending` applies
the rule. docs/plan.md says how many rounds the rule saves, and how often the true error then
exceeds the target.
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

# The fewest rounds before a campaign may end, without and with noise. Rounds that share all hashes
# and signs count as one. A single round hardly shows how large the noise of the estimates is.
LEAST_ROUNDS = 2
LEAST_NOISED_ROUNDS = 3


@dataclass(frozen=True)
class Stopping:
    """The rule by which a campaign ends before its last round.

    The campaign ends once its estimated error is at most `linf`, and enough rounds and clients took
    part.

    Args:
        linf: the bound on the estimated error, above 0 and below 1. What is estimated is the
            largest error of any frequency.
        probability: the probability with which the true error may exceed `linf`, above 0 and below
            1.
        recovery: the name of the decoder of the answer.
        least_rounds: the fewest rounds before the end. Rounds that share all hashes and signs count
            as one.
        least_clients: the fewest clients before the end. The error is estimated only for the
            clients who took part. A few clients may differ much from the clients who did not take
            part.
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
    """Refuse a plan whose campaign cannot end before its last round.

    Args:
        rule: the plan's rule for the end.
        spec: the plan's sketches: rows, width, schedule and number of rounds.
        num_clients: the number of clients of all rounds together.
        candidates: the plan's candidates.
        vector: the kind of vector that a client sends: sketch or histogram.
        clients: the kind of clients: persons or silos.
        summing: the way to sum the vectors of a round.
        protection: the party that adds the noise, and what follows from it.

    Raises:
        InvalidInputError: the domain is open; the vectors are histograms; the clients are silos;
            two servers sum; the plan has privacy, and the server gets exact sums; the campaign has
            too few rounds, rows, clients, or batches (rounds that share all hashes and signs) for
            `rule`; the error of the decoder `rule.recovery` cannot be concluded from joint
            recovery's error; or the privacy hides the number of clients.
    """
    check(
        given(until_known=True),
        unmet(
            list=not candidates.can_be_tried,
            sketch=not vector.shares_counters,
            persons=clients.entries > 0,
            not_two_server=summing.servers is not None,
            # an aggregator would have to noise the sums, and pay epsilon, for each estimate
            noise_of_clients=protection.is_secret,
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
        # the rule estimates the error of joint recovery; another decoder's may be several times it
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
