"""The size of a campaign over an open domain, and its number of rounds, for a target or bytes.

There is no pilot: it would look at all hashes, and the lengths of names would still not be known.
Frequencies are assumed; `fedtally plan` takes others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedtally.domain import OpenStrings
from fedtally.plan import names
from fedtally.plan.campaign import predict_linf
from fedtally.plan.open_domain import Search
from fedtally.plan.paper import Size
from fedtally.plan.request import CampaignSpec
from fedtally.plan.sizes import RISK
from fedtally.simulation.rows import RoundTally, split_clients
from fedtally.simulation.simulation import Simulation
from fedtally.simulation.sizing import Sized


def size_open(
    simulation: Simulation,
    spec: CampaignSpec,
    seed: bytes,
    rounds: Sequence[RoundTally],
    is_natural: bool,
    rng: np.random.Generator,
) -> tuple[Sized, CampaignSpec, list[RoundTally]]:
    """Return the size, and what is asked and the rounds, now that their number is chosen.

    Args:
        simulation: the campaign that is asked for.
        spec: what is asked.
        seed: of the hashes.
        rounds: the clients; in one round, if a number of rounds is to be chosen.
        is_natural: whether the rows name their rounds.
        rng: draws the round of each client.

    Raises:
        InvalidInputError: nothing meets the target, or the bytes buy nothing; what would do is
            named.
    """
    domain = spec.domain
    assert isinstance(domain, OpenStrings)
    number, silos = sum(part.num_vectors for part in rounds), spec.silos
    if silos is not None and not spec.is_private:  # how many people there are is known
        silos = replace(silos, expected=sum(part.num_clients for part in rounds))
    if spec.privacy is not None and spec.privacy.max_clients is not None:
        number = spec.privacy.max_clients  # how many there are is private
    asked = simulation.spec  # its default delta is that of the clients, also of more of them
    asked = replace(asked, silos=silos, num_rounds=len(rounds) if is_natural else asked.num_rounds)
    search = Search(
        asked,
        domain,
        number,
        names.assumed(domain, spec.max_items),
        seed,
        min(simulation.name_length or names.NAME_LENGTH, domain.max_length),
        simulation.allow_rare_names,
    )
    if spec.tau is None:
        design, linf, _ = search.for_bytes()
        size = Size("budget", design.chosen.rows, design.chosen.width, linf)
        sized = Sized(design.chosen, size, None, [])
    else:
        design = search.smallest()
        plan, planned = design.plan(), spec.failure_probability * RISK
        linf = predict_linf(plan, search.law, design.recovery, planned, expected=design.expected)
        size = Size("model", plan.rows, plan.width, linf)
        sized = Sized(design.chosen, size, None, [], search.predicted(plan, design))
    if design.num_rounds == len(rounds):
        return sized, spec, list(rounds)
    spec = replace(spec, num_rounds=design.num_rounds)  # it was not asked for
    return sized, spec, split_clients(rounds[0], design.num_rounds, rng)
