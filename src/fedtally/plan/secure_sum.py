"""The preparation of a secure sum: the sizes of cohorts, the terms of the protocol, and the keys.

A cohort is a group of clients whose vectors are summed together. The keys here are only for
simulations.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from fedtally.base import validate
from fedtally.base.shares import whole_share
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
# If the user gives only one of the two sizes of a cohort, the smallest cohort has about 4/5 of the
# clients of a full one. This is a ratio of integers: 0.8 is not exact in floating point.
_COMES, _FULL = 4, 5
# The round number of clients that an error advises for a round of two servers. Rounds of this mean,
# drawn at random, have at most `MAX_CLIENTS`: that is 48 standard deviations more.
_OF_A_ROUND = 1_000_000
# The fewest honest clients that a sum must have. With only one honest client, the corrupt clients
# learn this client's vector.
MIN_HONEST = 2


def cohort_sizes(
    cohort: int | None, cohort_min: int | None, adversary: Adversary
) -> tuple[int, int]:
    """Return the fewest and the most clients of a cohort.

    At least one of the two sizes must be given. If the other size is None, it is chosen so that the
    smallest cohort has about four fifths of the clients of a full cohort, as far as the bounds of
    the protocol allow.

    Args:
        cohort: the most clients of a cohort, or None.
        cohort_min: the fewest clients with which a cohort may begin, or None.
        adversary: the adversary that the protocol resists; against an active adversary cohorts must
            be smaller.

    Raises:
        InvalidInputError: a size is out of bounds, or `cohort` is below `cohort_min`.

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


def smaller_start(agreed: SecAggConfig) -> int | None:
    """Return the `cohort_min` that `cohort_sizes` chooses for the full cohorts of a plan.

    The result is None if it is not smaller than the plan's own, or if such a sum is not safe with
    the plan's dropouts and corrupt clients.
    """
    p = agreed.parameters
    fewest, _ = cohort_sizes(p.n_max, None, p.adversary)
    if fewest >= p.n_min:
        return None
    try:  # length 1 and MAX_BITS bits will do: whether a proposal exists depends on neither
        propose(
            p.n_max,
            length=1,
            bits=MAX_BITS,
            corrupt=p.corrupt,
            max_dropout=p.max_dropout_ppm / 1e6,
            adversary=p.adversary,
            n_min=fewest,
        )
    except InvalidInputError:
        return None
    return fewest


class Keys(NamedTuple):
    """The keys of a simulated campaign, and the clients' registered identities.

    Attributes:
        server: the signing key of the server.
        leader: the decryption key of the first of two servers.
        helper: the decryption key of the second of two servers.
        identities: the clients' signing keys, sorted by public key; empty if the protocol registers
            no clients.
        allow_list: the list of the clients' public keys; None if the protocol registers no clients.
    """

    server: SigningKey
    leader: PrivateKey
    helper: PrivateKey
    identities: tuple[SigningKey, ...]
    allow_list: AllowList | None


def make_keys(
    summation: Summation, num_clients: Sequence[int], random: Callable[[int], bytes]
) -> Keys:
    """Return new keys for a simulated campaign.

    The clients of every round use the same identities.

    Args:
        summation: the requested way to sum rounds.
        num_clients: the number of clients of each secure sum before rounds are split into cohorts:
            of each round, or with two servers of each release (a sum that is opened). As many
            identities are made as the largest of these numbers, if the protocol registers clients.
        random: a function that returns as many random bytes as its argument says. A function with a
            fixed seed repeats a simulation exactly.
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
    """Return the terms `agreed` with the public keys of a simulation.

    A simulation does not know the private keys that belong to a plan's public keys. So it replaces
    all keys that the protocol needs. The allow-list is stored as a hash.
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
    """Return the terms of the protocol that sums the rounds, without keys.

    Returns None if a trusted server sums: it needs no protocol.

    Args:
        summation: the requested way to sum rounds.
        num_clients: the number of clients of each secure sum before rounds are split into cohorts:
            of each round, or with two servers of each release.
        largest_entry: the most that one client adds to an entry of its vector, without noise.
        counters: the number of entries of a client's vector.
        signed: whether an item may subtract from a counter, as in a sketch (`Encoding.is_signed`).

    Raises:
        InvalidInputError: a sum has fewer than 3 clients, or more than the protocol can sum; a
            counter needs more bits than it can have; or no parameters of the protocol protect
            against the number of corrupt clients and dropouts in `summation`.
    """
    proposed = _PROPOSED.get(SecureSum.parse(summation.method))
    if proposed is None:
        return None
    n_min, n_max = _sizes(summation, num_clients)
    _check_largest(summation, n_max)
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
    """The fewest and the most clients of a sum, and how many of these clients may be corrupt."""

    n_min: int
    n_max: int
    corrupt: int


def _sizes(summation: Summation, num_clients: Sequence[int]) -> tuple[int, int]:
    """Return the fewest and the most clients of a sum.

    If the request has a smallest cohort, the two sizes are those of the requested cohorts.
    Otherwise they are the sizes of an even split of the rounds.

    Raises:
        InvalidInputError: a sum, or all rounds together, have fewer than 3 clients.
    """
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


def _check_largest(summation: Summation, n_max: int) -> None:
    """Refuse sums of more clients than the protocol can sum, whoever drops out or is corrupt."""
    bound = _LARGEST_COHORT[Adversary.parse(summation.adversary)]
    if n_max <= bound:
        return
    if summation.has_cohorts:
        raise InvalidInputError(
            f"a secure sum has at most {bound:,} clients, and one would have {n_max:,}; lower"
            f" {opt.max_cohort} to at most {bound:,}"
        )
    raise InvalidInputError(
        f"two servers sum at most {bound:,} clients at once, and here {n_max:,}; have more rounds"
        f" ({opt.num_rounds}), of at most {_OF_A_ROUND:,} clients each, and leave {opt.schedule}"
        " out: then each round has a sum of its own"
    )


def _way_to_safety(summation: Summation, n_min: int, n_max: int) -> str:
    if summation.min_cohort is not None:
        return _cohort_that_fits(summation, n_min, n_max)
    lost = opt.dropout if summation.dropout else opt.max_dropout  # only simulations have `dropout`
    return f"lower {opt.max_corrupt} or {lost}, or have larger cohorts of more even size"


def _cohort_that_fits(summation: Summation, n_min: int, n_max: int) -> str:
    """Return advice in words for a user whose sizes of cohorts cannot be summed safely.

    The advice names the smallest `cohort_min` for `n_max`, or else the next larger cohort, that can
    be summed safely, if the search finds one. The search is left out for cohorts of more than 2000
    clients.

    Args:
        summation: the requested way to sum rounds.
        n_min: the requested fewest clients of a cohort.
        n_max: the requested most clients of a cohort.
    """
    bound, less = max(MAX_COHORT.values()), f"lower {opt.max_corrupt} or {opt.max_dropout}"
    if n_max > bound:  # a search for a size would take minutes
        return f"{less}, or raise {opt.cohort_min}"

    def fits(least: int, most: int) -> bool:
        corrupt = corrupt_clients(summation.max_corrupt, most)
        try:  # length 1 and MAX_BITS bits will do: whether terms exist depends on neither
            _secagg_terms(summation, _Cohorts(least, most, corrupt), 1, 1, MAX_BITS)
        except InvalidInputError:
            return False
        return True

    if fits(n_max, n_max):
        # the more clients begin, the more remain: if one least size fits, all larger ones fit
        sizes = range(n_min, n_max + 1)
        found = sizes[bisect_left(sizes, True, key=lambda least: fits(least, n_max))]
        return f"the smallest {opt.cohort_min} that fits a cohort of {n_max} is {found}"
    # The numbers of corrupt clients and of dropouts are rounded to integers. So one size may fit
    # although the next one does not, and a binary search would be wrong. Doubling the size first
    # ends the search quickly if no size fits.
    size = n_max
    while size < bound:
        size = min(bound, 2 * size)
        if fits(size, size):
            break
    else:
        return less
    found = next(n for n in range(n_max + 1, size + 1) if fits(n, n))
    return f"the next larger cohort that fits is {found}, with a {opt.cohort_min} of {found}"


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
        min_batch=batches.n_min - whole_share(summation.borne, batches.n_min),
        corrupt=batches.corrupt,
        largest_entry=largest_entry,
    )


# the function that makes the terms, for each protocol
_PROPOSED: dict[SecureSum, Callable[[Summation, _Cohorts, int, int, int], Terms]] = {
    SecureSum.SECAGG: _secagg_terms,
    SecureSum.TWO_SERVER: _two_server_terms,
}


def with_noise(
    agreed: Terms, largest_entry: int, noise: int, *, folds: bool, signed: bool
) -> Terms:
    """Return the terms `agreed` with entries of enough bits, so that noise overflows no counter.

    Args:
        agreed: the terms of the secure sum, without room for noise.
        largest_entry: the most that one client adds to a counter, without noise.
        noise: a bound on the absolute value of the noise in a counter of the secure sum.
        folds: whether an aggregator adds the noise after the secure sum. Before it adds the noise,
            it folds the sum: it maps entries that honest clients cannot cause into the range of
            honest entries (`campaign.release.folded`). The modulus then needs twice the room
            (`secagg.config.check_terms`).
        signed: whether an item may subtract from a counter, as in a sketch (`Encoding.is_signed`).
    """
    bits = whole_bits(agreed.most_clients, largest_entry, noise, folds=folds, signed=signed)
    return agreed.with_room(bits, noise)


def with_validity(
    agreed: Terms, summation: Summation, items: int, *, folds: bool = False, signed: bool
) -> Terms:
    """Return the terms `agreed` with a proof for every report, if proofs are wanted and possible.

    A proof shows two servers that a client's report is valid. If the request leaves proofs open,
    the reports have proofs if proofs are possible. Terms of secagg are returned unchanged.

    Args:
        agreed: the terms of the secure sum, with room for the noise.
        summation: the requested way to sum rounds; its `validity` requests proofs, excludes them,
            or is None.
        items: the most items that one client contributes, `Plan.most_items`.
        folds: whether an aggregator adds the noise after the secure sum, see `with_noise`.
        signed: whether an item may subtract from a counter, as in a sketch (`Encoding.is_signed`).

    Raises:
        InvalidInputError: proofs are requested, but are not possible.
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
    """Refuse requested sizes of cohorts that do not suit the sizes of the rounds.

    With such sizes some clients could be in no cohort, and the error would be larger than
    predicted. Nothing is refused if the request has no smallest cohort (`min_cohort`).

    Args:
        summation: the requested way to sum rounds, with the sizes of cohorts.
        num_clients: the number of clients of each round.

    Raises:
        InvalidInputError: the largest cohort has more clients than the largest round, or an even
            split of a round makes cohorts of fewer than `min_cohort` clients.
    """
    if summation.min_cohort is None:
        return
    largest, most = max(num_clients), summation.most_clients
    if most > largest:
        raise InvalidInputError(
            f"{arg.cohort} must be at most {largest:,}, the clients of a round, got {most:,}"
            f" ({opt.cohort_min} alone makes it five quarters of that); use smaller cohorts, fewer"
            " rounds or more clients"
        )
    smallest, of = min((min(summation.sizes(count)), count) for count in num_clients if count)
    if summation.min_cohort > smallest:
        raise InvalidInputError(
            f"{arg.cohort_min} must be at most {smallest:,}, got {summation.min_cohort:,}: a round"
            f" of {of:,} clients makes cohorts of {smallest:,}, since none may have more than"
            f" {most:,}; lower {opt.cohort_min}, or choose another cohort"
        )


def check_cohorts(agreed: Terms, summation: Summation, num_clients: Sequence[int]) -> None:
    """Refuse rounds that cannot be split into cohorts of the sizes that a plan's terms allow.

    Args:
        agreed: the terms of the plan's secure sum.
        summation: the way to split rounds into cohorts.
        num_clients: the number of clients of each round; empty rounds are ignored.

    Raises:
        InvalidInputError: a cohort would be too small or too large; the message names its size.
    """
    sizes = [size for count in num_clients if count for size in summation.sizes(count)]
    if not agreed.least_clients <= min(sizes) <= max(sizes) <= agreed.most_clients:
        raise InvalidInputError(
            f"the plan allows cohorts of {agreed.least_clients} to {agreed.most_clients} clients,"
            " and the rounds of this input, where clients are drawn at random, make cohorts of"
            f" {min(sizes)} to {max(sizes)}; use a plan with room for them"
        )
