"""Fit a plan that the user gave to the clients of the input: check it, and replace its keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedtally.domain import Domain
from fedtally.errors import InvalidInputError, opt
from fedtally.plan import Plan
from fedtally.plan.parts.summation import Summation
from fedtally.plan.privacy import check_certificate
from fedtally.plan.request import CampaignSpec
from fedtally.plan.secure_sum import (
    Keys,
    check_cohorts,
    make_keys,
    replace_keys,
    terms,
    with_validity,
)
from fedtally.secagg.config import Terms


def fit_given(
    plan: Plan,
    spec: CampaignSpec,
    domain: Domain,
    sizes: Sequence[int],
    *,
    random: Callable[[int], bytes],
    report: Callable[..., None],
) -> tuple[Plan, Keys | None]:
    """Check that a plan fits the input; return it with new public keys, and the private keys.

    The private keys are None if the secure sum is ideal, that is, if a trusted server sums. The
    returned plan may differ from `plan` in three ways:

    - If there are new keys, its secure sum has the public keys; if it has no secure sum, it gets
      one.
    - If the caller asked for `not_private`, the plan is marked not private.
    - If the plan's domain is not public, `domain` replaces the description of the domain.

    Args:
        plan: the given plan.
        spec: the campaign that the caller asked for, with the options given beside the plan.
        domain: the candidates.
        sizes: the number of clients in each round; if clients are silos, the number of silos.
        random: a function that returns a given number of uniform bytes, for the keys.
        report: called with the progress of long steps.

    Raises:
        InvalidInputError: the plan does not fit the clients or the candidates.
    """
    summation = spec.summation
    releases = summation.sums(sizes, plan.releases)
    keys = None if summation.is_ideal else make_keys(summation, releases, random)
    _check_fits(plan, domain, sizes, has_keys=keys is not None)
    privacy = plan.privacy
    if privacy is not None and spec.accounting.is_not_private and not privacy.not_private:
        plan = replace(plan, privacy=replace(privacy, not_private=True))
    if keys is not None:
        agreed = _terms_of(plan, summation, sizes, releases)
        plan = replace(plan, secure_sum=replace_keys(agreed, keys))
    plan = plan if plan.domain["public"] else replace(plan, domain=domain.describe())
    check_certificate(plan, domain, report)
    return plan, keys


def _terms_of(
    plan: Plan, summation: Summation, sizes: Sequence[int], releases: Sequence[int]
) -> Terms:
    """Return the terms (parameters) of the secure sum.

    If the plan has a secure sum, the result is the plan's terms; before, the cohorts are checked
    against them. Otherwise the terms are made for the protocol in `summation`.

    Args:
        plan: the plan.
        summation: how the caller wants rounds to be summed.
        sizes: the number of clients in each round.
        releases: the numbers of clients that sum together: for each round or, with two servers, for
            each release.

    Raises:
        InvalidInputError: the cohorts do not keep the plan's terms; or the plan is private, and its
            noise is for an ideal secure sum.
    """
    if plan.secure_sum is not None:
        check_cohorts(plan.secure_sum, summation, releases)
        return plan.secure_sum
    if plan.privacy is not None:
        raise InvalidInputError(
            f"the noise of the plan is for an ideal secure sum, got {summation.method}: leave"
            f" {opt.secure_sum} out, or make a plan with it"
        )
    largest, signed = plan.largest_entry, plan.encoding.is_signed
    agreed = terms(summation, sizes, largest, plan.vector_length, signed=signed)
    assert agreed is not None  # only an ideal secure sum has no terms
    return with_validity(agreed, summation, plan.most_items, signed=signed)


def _check_fits(plan: Plan, domain: Domain, sizes: Sequence[int], *, has_keys: bool) -> None:
    """Refuse a plan that does not fit the clients of the input or the domain.

    The number of rounds must be equal. No round may have more clients than the plan allows, unless
    privacy hides the number of clients. A public domain must be equal. If clients add noise in an
    ideal secure sum, no round with clients may have too few.

    `has_keys` is True if the rounds are summed by a protocol, and False in an ideal secure sum.
    """
    if plan.num_rounds != len(sizes):
        raise InvalidInputError(f"the plan has {plan.num_rounds} rounds, the input {len(sizes)}")
    privacy, (_, noun) = plan.privacy, plan.clients.senders
    hidden = plan.clients.are_hidden(None if privacy is None else privacy.event.relation)
    if max(sizes) > plan.max_round_clients and not hidden:
        raise InvalidInputError(
            f"the plan allows {plan.max_round_clients:,} {noun} in a round, the input has"
            f" {max(sizes):,}; its sums could overflow"
        )
    if plan.domain["public"] and not plan.has_domain(domain.describe()):
        raise InvalidInputError(
            f"the plan is for the domain {_shown(plan.domain)}, the input is read as"
            f" {_shown(domain.describe())}; declare the same domain ({opt.domain})"
        )
    honest = None if privacy is None else privacy.event.honest_survivors
    # Clients add shares of the noise in an ideal secure sum, too, so each round needs enough
    # clients.
    if honest is not None and not has_keys:
        least = min(size for size in sizes if size)
        if least < honest:
            raise InvalidInputError(
                f"the plan counts on the noise of {honest:,} {noun} in every round, and a round of"
                f" the input has {least:,}; use fewer rounds, or a plan for smaller ones"
            )


def _shown(description: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in description.items())
