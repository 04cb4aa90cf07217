"""The secure sum of a simulation: the request, the keys, and the terms of a plan."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from fedtally.base import validate
from fedtally.crypto.hpke import PrivateKey
from fedtally.crypto.keys import KEY_BYTES, Secret, SigningKey
from fedtally.crypto.prg import MAX_BITS
from fedtally.errors import InvalidInputError, arg, opt
from fedtally.plan.parts.summation import MAX_COHORT, Summation
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.config import (
    SecAggConfig,
    SecureSum,
    Terms,
    TwoServerConfig,
    whole_bits,
    why_no_proofs,
    with_proofs,
)
from fedtally.secagg.params import (
    MAX_ACTIVE_CLIENTS,
    MAX_CLIENTS,
    MIN_CLIENTS,
    Adversary,
    Validity,
    corrupt_clients,
)
from fedtally.secagg.proposal import propose

_LARGEST_COHORT = {Adversary.SEMI_HONEST: MAX_CLIENTS, Adversary.ACTIVE: MAX_ACTIVE_CLIENTS}
# the share of a full cohort that must come, where only one of the two sizes is given: as integers,
# because 0.8 x 10 is no 8 in floating point
_COMES, _FULL = 4, 5
MIN_HONEST = 2  # clients of a sum: that of one honest client is its own vector


def cohort_sizes(
    cohort: int | None, cohort_min: int | None, adversary: Adversary
) -> tuple[int, int]:
    """Return the fewest and the most clients of a cohort; at least one of them is given.

    The other one follows from it: four fifths of a full cohort must come.

    Raises:
        InvalidInputError: a size is out of bounds, or a full cohort has less than the fewest.

    >>> cohort_sizes(400, None, Adversary.SEMI_HONEST), cohort_sizes(None, 400, Adversary.ACTIVE)
    ((320, 400), (400, 500))
    """
    bound = _LARGEST_COHORT[adversary]
    if cohort is not None:
        cohort = validate.integer(MIN_CLIENTS, bound, cohort=cohort)
    if cohort_min is not None:
        cohort_min = validate.integer(MIN_CLIENTS, bound, cohort_min=cohort_min)
    if cohort is None:
        assert cohort_min is not None
        return cohort_min, min(bound, _FULL * cohort_min // _COMES)
    if cohort_min is None:
        return max(MIN_CLIENTS, -(-_COMES * cohort // _FULL)), cohort
    if cohort_min > cohort:
        raise InvalidInputError(
            f"{arg.cohort_min} must be at most cohort, {cohort}, got {cohort_min}"
        )
    return cohort_min, cohort


class Keys(NamedTuple):
    """The keys of a simulated campaign, with a registered identity for each client."""

    server: SigningKey
    leader: PrivateKey
    helper: PrivateKey
    identities: tuple[SigningKey, ...]
    allow_list: AllowList | None


def make_keys(
    summation: Summation, num_clients: Sequence[int], random: Callable[[int], bytes]
) -> Keys:
    """Return keys: identities are made for the largest round, and serve every round.

    Args:
        summation: how the rounds are summed.
        num_clients: the clients of each round, or of each release of two servers.
        random: returns as many bytes as it is asked for; of a seed, to repeat a simulation exactly.
    """
    identities: tuple[SigningKey, ...] = ()
    if summation.has_identities:
        made = [SigningKey(Secret(random(KEY_BYTES))) for _ in range(max(num_clients))]
        identities = tuple(sorted(made, key=lambda key: key.public))
    server = SigningKey(Secret(random(KEY_BYTES)))
    helper, leader = (PrivateKey(Secret(random(KEY_BYTES))) for _ in range(2))
    return Keys(
        server,
        leader,
        helper,
        identities,
        AllowList(key.public for key in identities) if identities else None,
    )


def replace_keys(agreed: Terms, keys: Keys) -> Terms:
    """Return a plan's terms under the keys of a simulation.

    The plan's own keys are not needed.
    """
    named: dict[str, Any] = {
        "server_key": keys.server.public,
        "leader_key": keys.leader.public,
        "helper_key": keys.helper.public,
        "allow_list": None if keys.allow_list is None else keys.allow_list.digest,
    }
    return replace(agreed, **{name: named[name] for name in agreed.needed_keys})


def terms(
    summation: Summation,
    num_clients: Sequence[int],
    largest_entry: int,
    counters: int,
    *,
    signed: bool,
) -> Terms | None:
    """Return what the plan says of the secure sum; None where a trusted server sums.

    The terms lack the keys.

    Args:
        summation: how the rounds are summed.
        num_clients: the clients of each round, or of each release of two servers.
        largest_entry: the most that one client adds to an entry, without noise.
        counters: the entries of a client's vector.
        signed: `Encoding.is_signed`.

    Raises:
        InvalidInputError: a round is too small, or nothing protects from the corrupt clients and
            dropouts.
    """
    proposed = _PROPOSED.get(SecureSum.parse(summation.method))
    if proposed is None:
        return None
    n_min, n_max = _sizes(summation, num_clients)
    corrupt = corrupt_clients(summation.max_corrupt, n_max)
    try:
        bits = whole_bits(n_max, largest_entry, 0, folds=False, signed=signed)
        cohorts = _Cohorts(n_min, n_max, corrupt)
        return proposed(summation, cohorts, largest_entry, counters, bits)
    except InvalidInputError as error:
        of = f"{n_max}" if n_min == n_max else f"{n_min} to {n_max}"
        raise InvalidInputError(
            f"cohorts of {of} clients, {corrupt} of them corrupt, cannot be summed safely"
            f" ({error.marked}); {_way_to_safety(summation, n_min, n_max)}"
        ) from error


class _Cohorts(NamedTuple):
    """The fewest and the most clients of a sum, and the most of them that may be corrupt."""

    n_min: int
    n_max: int
    corrupt: int


def _sizes(summation: Summation, num_clients: Sequence[int]) -> tuple[int, int]:
    """Return the fewest and the most clients of a sum; refuse sums of one or two clients."""
    if (total := sum(num_clients)) < 3:
        raise InvalidInputError(
            f"a secure sum needs at least 3 clients, and there {'is' if total == 1 else 'are'}"
            f" {total} in all: name another column of clients, or leave {opt.secure_sum} out"
        )
    sizes = [size for count in num_clients if count for size in summation.sizes(count)]
    n_min, n_max = min(sizes), max(sizes)
    if summation.min_cohort is not None:
        n_min, n_max = summation.min_cohort, summation.most_clients
    if n_min < 3:
        of = "round" if min(count for count in num_clients if count) < 3 else "cohort"
        raise InvalidInputError(
            f"a {of} has {n_min} client{'s' * (n_min > 1)}, and a secure sum needs at least 3; use"
            f" fewer rounds, or a larger {opt.max_cohort}"
        )
    return n_min, n_max


def _way_to_safety(summation: Summation, n_min: int, n_max: int) -> str:
    if summation.min_cohort is not None:
        return _cohort_that_fits(summation, n_min, n_max)
    lost = opt.dropout if summation.dropout else opt.max_dropout  # only some commands have it
    return f"lower {opt.max_corrupt} or {lost}, or have larger cohorts of more even size"


def _cohort_that_fits(summation: Summation, n_min: int, n_max: int) -> str:
    """Return in words what to do where cohorts of these sizes cannot be summed safely.

    It names the smallest size with which they can, if there is one.
    """
    bound, less = max(MAX_COHORT.values()), f"lower {opt.max_corrupt} or {opt.max_dropout}"
    if n_max > bound:  # to look for a size would take minutes
        return f"{less}, or raise {opt.cohort_min}"

    def fits(least: int, most: int) -> bool:
        corrupt = corrupt_clients(summation.max_corrupt, most)
        try:  # the length and the bits do not matter
            _secagg_terms(summation, _Cohorts(least, most, corrupt), 1, 1, MAX_BITS)
        except InvalidInputError:
            return False
        return True

    if fits(n_max, n_max):
        # what is left of a larger smallest cohort is larger, so that one boundary is the smallest
        sizes = range(n_min, n_max + 1)
        found = sizes[bisect_left(sizes, True, key=lambda least: fits(least, n_max))]
        return f"the smallest {opt.cohort_min} that fits a cohort of {n_max} is {found}"
    # Shares of a few clients are rounded to whole ones, so that no size is a boundary for all. A
    # larger cohort that fits is looked for by doubling first, so that where none does, it is quick.
    size = n_max
    while size < bound:
        size = min(bound, 2 * size)
        if fits(size, size):
            break
    else:
        return less
    found = next(n for n in range(n_max + 1, size + 1) if fits(n, n))
    return f"the smallest cohort that fits is {found}, with a {opt.cohort_min} of {found}"


def _secagg_terms(
    summation: Summation, cohorts: _Cohorts, _largest_entry: int, counters: int, bits: int
) -> SecAggConfig:
    parameters = propose(
        cohorts.n_max,
        length=counters,
        bits=bits,
        corrupt=cohorts.corrupt,
        max_dropout=summation.borne,
        adversary=summation.adversary,
        n_min=cohorts.n_min,
    )
    if parameters.honest_survivors < MIN_HONEST:
        raise InvalidInputError(
            f"{parameters.honest_survivors} honest clients in a sum protect nobody; at least"
            f" {MIN_HONEST} are needed"
        )
    return SecAggConfig(parameters=parameters)


def _two_server_terms(
    summation: Summation, batches: _Cohorts, largest_entry: int, counters: int, bits: int
) -> TwoServerConfig:
    return TwoServerConfig(
        length=counters,
        bits=bits,
        n_max=batches.n_max,
        min_batch=batches.n_min - int(summation.borne * batches.n_min),
        corrupt=batches.corrupt,
        largest_entry=largest_entry,
    )


# what makes the terms of each protocol
_PROPOSED: dict[SecureSum, Callable[[Summation, _Cohorts, int, int, int], Terms]] = {
    SecureSum.SECAGG: _secagg_terms,
    SecureSum.TWO_SERVER: _two_server_terms,
}


def with_noise(
    agreed: Terms, largest_entry: int, noise: int, *, folds: bool, signed: bool
) -> Terms:
    """Return the terms with room for `noise` in every counter of a sum.

    Args:
        agreed: the terms.
        largest_entry: the most that one client adds to a counter, without noise.
        noise: the most that noise adds to one before the sum is opened.
        folds: whether sums are folded, and need twice the room (`secagg.config.check_terms`).
        signed: `Encoding.is_signed`.
    """
    bits = whole_bits(agreed.most_clients, largest_entry, noise, folds=folds, signed=signed)
    return agreed.with_room(bits, noise)


def with_validity(
    agreed: Terms, summation: Summation, items: int, *, folds: bool = False, signed: bool
) -> Terms:
    """Return the terms with proofs of every report, where they are asked for, or can be had.

    Args:
        agreed: the terms, with room for the noise.
        summation: what is asked.
        items: the most items that one client contributes, `Plan.most_items`.
        folds: whether sums are folded, as for `with_noise`.
        signed: `Encoding.is_signed`.

    Raises:
        InvalidInputError: proofs are asked for, and cannot be had.
    """
    if not isinstance(agreed, TwoServerConfig) or summation.validity is Validity.NONE:
        return agreed
    why = why_no_proofs(items=items, clients=agreed.n_max, noise=agreed.noise, signed=signed)
    if not why:
        return with_proofs(agreed, folds=folds, signed=signed)
    if summation.validity is None:
        return agreed
    raise InvalidInputError(
        f"{arg.validity} cannot be proofs: {why}; change that, or use validity none, with which a"
        " client that lies is not found out"
    )


def check_rounds(summation: Summation, num_clients: Sequence[int]) -> None:
    """Refuse sizes of cohorts that were asked for, where they do not fit the rounds.

    The predicted error counts on every client being in some cohort.

    Args:
        summation: how the rounds are summed.
        num_clients: the clients of each round.

    Raises:
        InvalidInputError: a full cohort is larger than the largest round, or an even split of the
            rounds makes cohorts below `min_cohort`.
    """
    if summation.min_cohort is None:
        return
    largest, most = max(num_clients), summation.most_clients
    if most > largest:
        raise InvalidInputError(
            f"{arg.cohort} must be at most {largest:,}, the clients of a round, got {most:,}; use"
            " smaller cohorts, fewer rounds or more clients"
        )
    smallest, of = min((min(summation.sizes(count)), count) for count in num_clients if count)
    if summation.min_cohort > smallest:
        raise InvalidInputError(
            f"{arg.cohort_min} must be at most {smallest:,}, got {summation.min_cohort:,}: a round"
            f" of {of:,} clients makes cohorts of {smallest:,}, since none may have more than"
            f" {most:,}; lower {opt.cohort_min}, or choose another cohort"
        )


def check_cohorts(agreed: Terms, summation: Summation, num_clients: Sequence[int]) -> None:
    """Refuse rounds that do not split into cohorts of the sizes that a plan's terms allow.

    Raises:
        InvalidInputError: which sizes they are.
    """
    sizes = [size for count in num_clients if count for size in summation.sizes(count)]
    if not agreed.least_clients <= min(sizes) <= max(sizes) <= agreed.most_clients:
        raise InvalidInputError(
            f"the plan allows cohorts of {agreed.least_clients} to {agreed.most_clients} clients,"
            " and the rounds of this input, where clients are drawn at random, make cohorts of"
            f" {min(sizes)} to {max(sizes)}; use a plan with room for them"
        )
