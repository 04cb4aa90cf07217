"""Check the parameters of secure summation: graph of masks, threshold of shares, modulus.

The planner searches for parameters (`proposal`). A client only checks the parameters that a server
proposes (`ClientPolicy`, `Parameters.check_roster`), in exact integer arithmetic: with rounding
errors, clients could come to different decisions.

The roster is the list of the clients in a session. It has n clients, and at most C of them are
corrupt: C is a number, not a fraction. The survivors are the clients whose vectors are in the sum.
Neighbours are two clients that have a mask in common. In
the ring, a circle of all clients in random order, the neighbours of a client are the next k/2
clients on each side. In the complete graph every two clients are neighbours, so k = n - 1. A client
splits each of its secrets into k + 1 shares, one for each neighbour and one for itself. Any t
shares open a secret.

Two events would reveal more than the sum: a client has t corrupt neighbours, or corrupt clients cut
the survivors of a ring into two parts. Each has a probability of at most 2^-41, so both together of
at most 2^-40 (sigma = 40). This holds whichever clients drop out, because the server and every
surviving client evaluate `is_whole_ring` for the actual survivors.

Two other events end a round without a sum: too few shares are left, or the ring of survivors could
be cut. If clients drop out by chance, and at most max_dropout of them, each has a probability of
at most about 2^-20 (eta = 20).

Sources: Bell, Bonawitz, Gascon, Lepoint and Raykova 2020 (SecAgg+). Before a client uses a roster,
it calls `Parameters.check_roster`. For a ring this call also bounds the cuts by corrupt and absent
clients together. The bound is from `graph_parameter_finder` of google-parfait/federated-compute.

>>> import dataclasses
>>> parameters = Parameters(
...     adversary=Adversary.SEMI_HONEST, n_min=1000, n_max=1000, corrupt=50,
...     max_dropout_ppm=50_000, min_survivors=950, ring_neighbours=36, ring_threshold=19,
...     length=20_000, bits=16)
>>> parameters.graph(1000), parameters.checksum_entries
(Graph(neighbours=36, threshold=19), 4)
>>> policy = ClientPolicy(adversary="semi-honest", max_corrupt=0.05, min_honest=500)
>>> policy.check_invite(parameters)
>>> parameters.check_roster(1000)
>>> dataclasses.replace(parameters, ring_threshold=12).check_roster(1000)
Traceback (most recent call last):
...
fedtally.secagg.params.UnsafeParametersError: 36 neighbours with threshold 12 among 1000 clients ...
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from fedtally.base import validate
from fedtally.base.encoding import values_of_sum
from fedtally.base.named import Named
from fedtally.crypto.prg import MAX_BITS, MAX_STREAM_BYTES, lane
from fedtally.errors import InvalidInputError

# sigma: the ring fails to protect with a probability of at most 2^-40 (Bell et al. 2020 also take
# sigma = 40). 40 bits are enough: an attacker has only one try, since nobody can draw the ring of a
# roster again.
SECURITY_BITS = 40
CORRECTNESS_BITS = 20  # eta: 2^-20 is enough, since a failure costs a round and no privacy
MIN_CLIENTS = 3  # the fewest in a roster: in a sum of 2, each client knows the other's vector
MAX_CLIENTS = 2**20  # the most in a roster; a bitmap of its clients then has 128 KiB
MAX_ACTIVE_CLIENTS = 1000  # the most in `active`: each client verifies all other signatures
MAX_COMPLETE_CLIENTS = 2**12  # the most in the complete graph: n^2 sealed shares take 896 MiB
MAX_NEIGHBOURS = 2**15  # the largest k: t is at most k, and secret sharing is exact up to 2^15
PPM = 1_000_000  # fractions are sent in whole parts per million, so that no client rounds them

NoiseKind = Literal["discrete-gaussian", "skellam"]


class UnsafeParametersError(InvalidInputError):
    """Report that a policy refuses parameters or clients, or that parameters refuse a roster."""


class Adversary(Named, option="adversary"):
    """Name the kind of server that the protocol protects against; each kind has a profile.

    A profile is a variant of the protocol. `SEMI_HONEST`: a server that follows the protocol, and
    is curious. `ACTIVE`: a server that lies.
    """

    SEMI_HONEST = "semi-honest"
    ACTIVE = "active"

    @property
    def has_identities(self) -> bool:
        """Whether clients sign with registered keys, so that a server cannot make up clients.

        >>> [str(adversary) for adversary in Adversary if adversary.has_identities]
        ['active']
        """
        return {Adversary.SEMI_HONEST: False, Adversary.ACTIVE: True}[self]


class Validity(Named, option="validity"):
    """Say whether each report proves to two servers that its vector is valid (`flp.one_hot`).

    `PROOFS`: each report has such a proof (docs/protocol.md). `NONE`: reports have no proofs.
    """

    NONE = "none"
    PROOFS = "proofs"


class Graph(NamedTuple):
    """Describe the graph of masks: two clients that have a mask in common are neighbours.

    Attributes:
        neighbours: k, the number of neighbours of each client.
        threshold: t, the number of shares that open a client's secret.
    """

    neighbours: int
    threshold: int


# ---- the complete graph, the modulus, the checksum entries ----


def corrupt_clients(max_corrupt: float, n_max: int) -> int:
    """Return C, the number of corrupt clients to assume: max(1, ceil(max_corrupt * n_max)).

    Args:
        max_corrupt: a fraction of the clients, in [0, 1). First it is rounded to whole parts per
            million.
        n_max: the most clients in a roster.

    >>> corrupt_clients(0.05, 1000), corrupt_clients(0.0, 10)
    (50, 1)
    """
    return max(1, -(-ppm_of(max_corrupt=max_corrupt) * validate.integer(1, n_max=n_max) // PPM))


def complete_threshold(n: int, corrupt: int) -> int:
    """Return t = floor((n + C) / 2) + 1, the shares that open a secret in the complete graph.

    Any two groups of t clients have more than C clients in common, and so at least one honest
    client. In `active` each client confirms a set of survivors by a signature, and an honest client
    signs only one set. So at most one set of survivors can be confirmed by t clients.

    Args:
        n: the number of clients in the roster.
        corrupt: C, the number of corrupt clients.

    >>> complete_threshold(3, 1), complete_threshold(1000, 50)
    (3, 526)
    """
    return (validate.integer(1, n=n) + validate.integer(0, corrupt=corrupt)) // 2 + 1


def num_checksum_entries(bits: int) -> int:
    """Return the number of checksum entries of a vector, ceil(64 / b).

    A checksum entry is an entry that is 1 in each client's vector. In the sum it is the number of
    clients if all masks are gone. With this number of checksum entries, a wrong mask goes
    unnoticed with a probability of at most 2^-64.

    Args:
        bits: b, the number of bits of an entry.

    >>> num_checksum_entries(16), num_checksum_entries(11)
    (4, 6)
    """
    return -(-64 // validate.integer(1, MAX_BITS, bits=bits))


def modulus_bits(
    n: int, largest_entry: int = 1, noise: int = 0, *, multiple: int = 8, signed: bool = True
) -> int:
    """Return b, the number of bits of an entry in which every sum of n clients with its noise fits.

    It is ceil(log2(2 (n B + tau) + 1)) if an entry may be negative, else ceil(log2(n B + 2 tau +
    1)). It is then rounded up to a multiple of `multiple`, but not above 64.

    Args:
        n: the most clients in a sum.
        largest_entry: B, the largest absolute value of an entry of one client.
        noise: tau, the largest absolute value of the noise in an entry; see `noise_bound`.
        multiple: b is rounded up to a multiple of this number. With 8 the server is often several
            times faster; with 1 b is not rounded.
        signed: whether an entry without noise may be negative (`Encoding.is_signed`).

    Raises:
        InvalidInputError: the sums would need more than 64 bits if entries could be negative.
            `signed` does not change this bound.

    >>> modulus_bits(1000), modulus_bits(1000, multiple=1), modulus_bits(200, signed=False)
    (16, 11, 8)
    """
    n, largest_entry = validate.integer(1, n=n), validate.integer(1, largest_entry=largest_entry)
    noise, multiple = (
        validate.integer(0, noise=noise),
        validate.integer(1, MAX_BITS, multiple=multiple),
    )
    bits = _bits_of(n * largest_entry, noise, signed=True)
    if bits > MAX_BITS:  # also if `signed` is False: sums are kept as signed integers
        raise InvalidInputError(
            f"sums of {n} clients of entries up to {largest_entry} with noise up to {noise} need"
            f" {bits} bits, more than {MAX_BITS}; lower largest_entry or the noise"
        )
    bits = _bits_of(n * largest_entry, noise, signed=signed)
    return min(MAX_BITS, -(-bits // multiple) * multiple)


def _bits_of(largest: int, noise: int, *, signed: bool) -> int:
    return (values_of_sum(largest, noise, signed=signed) - 1).bit_length()


def noise_bound(stddev: float, length: int, kind: NoiseKind = "skellam") -> int:
    """Return tau, a bound on the absolute value of the total noise in every entry of a sum.

    With a probability of at most 2^-40, some entry of the vector has more noise. Then this entry of
    the sum may wrap around.

    Discrete Gaussian: a sum of discrete Gaussians is sub-Gaussian (Canonne, Kamath and Steinke
    2020), so that tau is stddev sqrt(2 (ln 2V + 40 ln 2)).

    Skellam, with variance v: E[exp(s Z)] = exp(v (cosh s - 1)). The best s in Chernoff's bound is
    asinh(tau / v). So tau is the root of tau asinh(tau / v) - sqrt(tau^2 + v^2) + v = ln 2V + 40 ln
    2.

    Args:
        stddev: the standard deviation of the total noise if nobody drops out, which is the most
            noise; for discrete Gaussians, that of the normal law with the same parameters, which is
            at least theirs. 0: no noise. If the privacy needs a standard deviation d, and there are
            n clients, `stddev` is d sqrt(n / (min_survivors - C)): each client adds enough for
            min_survivors - C honest clients alone to reach d.
        length: V, the number of entries of the vector.
        kind: the distribution of the noise.

    Returns:
        tau, rounded up; 0 if there is no noise.

    Raises:
        InvalidInputError: an argument is not valid; the largest `stddev` is 1e18.

    >>> noise_bound(0, 20_000), noise_bound(2, 20_000, "discrete-gaussian"), noise_bound(2, 20_000)
    (0, 18, 24)
    """
    stddev = validate.real(0.0, 1e18, stddev=stddev)
    if kind not in ("discrete-gaussian", "skellam"):
        raise InvalidInputError(f"kind must be discrete-gaussian or skellam, got {kind!r}")
    exponent = math.log(2 * validate.integer(1, length=length)) + SECURITY_BITS * math.log(2)
    if stddev == 0:
        return 0
    gaussian = stddev * math.sqrt(2 * exponent)
    variance = max(stddev, 1e-9) ** 2  # not 0, also after rounding: it is a divisor
    bound = (
        gaussian if kind == "discrete-gaussian" else _chernoff_root(variance, exponent, gaussian)
    )
    return math.ceil(bound * (1 + 1e-12))  # more than all rounding errors in `bound`


def _chernoff_root(variance: float, exponent: float, least: float) -> float:
    """Return the tau at which Chernoff's bound of Skellam noise is exp(-exponent), rounded up.

    Args:
        variance: the variance of the noise.
        exponent: the negative logarithm of the bound.
        least: a number below the result, where the search begins.
    """

    def excess(tau: float) -> float:
        ratio = tau / variance
        # The second term is sqrt(tau^2 + v^2) - v, written so that no digits cancel.
        return tau * math.asinh(ratio) - tau * ratio / (1 + math.hypot(1, ratio)) - exponent

    low, high = least, 2 * least
    while excess(high) < 0:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if excess(middle) >= 0 else (middle, high)
    return high


# ---- the ring: predicates in integers ----


def is_safe_ring(n: int, corrupt: int, absent: int, graph: Graph) -> bool:
    """Return whether each of two bad events of a ring has a probability of at most 2^-41.

    The events: some client has t corrupt neighbours, or corrupt and absent clients cut the ring.
    Upper bounds of the probabilities are compared. So if the result is False, the probabilities may
    still be at most 2^-41.

    Args:
        n: the number of clients in the roster.
        corrupt: C, the number of corrupt clients.
        absent: the most clients that may be absent. Here the absent clients are assumed to be drawn
            without knowledge of the ring. Once they are known, `is_whole_ring` does without this
            assumption.
        graph: k and t. Unless k is even and 2 <= t <= k <= n - 2, the result is False.

    >>> is_safe_ring(1000, 100, 100, Graph(48, 27)), is_safe_ring(1000, 100, 100, Graph(300, 27))
    (True, False)
    """
    n, corrupt, absent = (
        validate.integer(1, n=n),
        validate.integer(0, n, corrupt=corrupt),
        validate.integer(0, n, absent=absent),
    )
    k, t = graph
    if k % 2 or not 2 <= t <= k <= n - 2:
        return False
    odds = 2 ** (SECURITY_BITS + 1)
    # The probability that some client has t corrupt neighbours is at most n P[Hyper(n - 1, C, k) >=
    # t]: see `tail_at_most`.
    return is_cut_below(n, corrupt + absent, k, odds) and tail_at_most(
        n - 1, corrupt, k, t, odds * n
    )


def is_whole_ring(n: int, corrupt: int, k: int, cut: int) -> bool:
    """Return whether C corrupt clients cut a ring with a probability of at most 2^-41.

    An upper bound of the probability is compared, in integers, without rounding. A cut takes two
    gaps, k / 2 successive places each, without a survivor that is honest. So corrupt clients can
    cut the ring only if `cut` or more corrupt clients are in two gaps. Two gaps are k of the n
    clients, the draw of the ring does not depend on who is corrupt, and there are n (n - k - 1) / 2
    pairs of gaps. So the bound holds whichever clients drop out.

    Args:
        n: the number of clients in the roster.
        corrupt: C, the number of corrupt clients.
        k: the number of neighbours of a client.
        cut: the fewest survivors whose loss would cut the ring, from `Neighbourhood.weakest_cut`.
            If that method returns None, do not call this function: nothing cuts the ring.

    >>> is_whole_ring(1000, 50, 36, 20), is_whole_ring(1000, 50, 36, 19)
    (True, False)
    """
    return tail_at_most(n, corrupt, k, cut, 2**SECURITY_BITS * n * (n - k - 1))


def is_cut_below(n: int, bad: int, k: int, odds: int) -> bool:
    """Return whether `bad` clients cut a random ring with a probability below 1 / odds.

    Bad clients cut the ring if they fill two gaps of it. A gap is k / 2 successive clients. There
    are n (n - k - 1) / 2 pairs of gaps. All k clients of a pair are bad with probability (bad)_k /
    (n)_k, where (m)_k = m (m - 1) ... (m - k + 1). The number of pairs times this probability is an
    upper bound of the probability of a cut. The bound is compared in integers, without rounding.

    Args:
        n: the number of clients in the roster.
        bad: the number of clients that are corrupt or absent.
        k: the number of neighbours of a client.
        odds: the inverse of the bound.
    """
    return odds * n * (n - k - 1) * math.perm(bad, k) < 2 * math.perm(n, k)


def tail_at_most(population: int, marked: int, drawn: int, least: int, odds: int) -> bool:
    """Return whether a hypergeometric tail P[X >= least] is at most 1 / odds.

    The function computes in integers, without rounding. X is the number of marked items among items
    that are drawn without replacement.

    Args:
        population: the number of items.
        marked: the number of items that are marked.
        drawn: the number of items that are drawn.
        least: the number of marked items at which the tail begins, at most `drawn`.
        odds: the inverse of the largest probability that is allowed.
    """
    least = max(least, drawn + marked - population)
    term, total = math.comb(marked, least) * math.comb(population - marked, drawn - least), 0
    for i in range(least, min(drawn, marked) + 1):
        total += term
        term = (
            term * (marked - i) * (drawn - i) // ((i + 1) * (population - marked - drawn + i + 1))
        )
    return total * odds <= math.comb(population, drawn)


# ---- the parameters of a cohort ----


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """Hold the public parameters that a cohort agrees on, and check that they fit each other.

    A cohort is the group of clients whose vectors are added up in one session. `ClientPolicy` and
    `check_roster` decide whether the parameters are safe.

    Args:
        adversary: the kind of server that the sum protects against.
        n_min: the fewest clients in a roster, the list of the clients in a session; at least 3.
        n_max: the most clients in a roster: up to 2^20; in the complete graph up to 2^12, in
            `active` up to 1,000.
        corrupt: C, the most corrupt clients in the cohort, below min_survivors; at least 1 in
            `semi-honest`.
        max_dropout_ppm: the fraction of the roster's clients that may drop out once the roster is
            fixed, in parts per million; below a million.
        min_survivors: the fewest clients in a sum, at most n_min. In `active` it has two more
            bounds. It is at least the threshold of shares in a roster of n_max clients. It is at
            most the number of clients that are left of n_min if the fraction max_dropout_ppm of
            them drops out and C corrupt clients do not answer.
        ring_neighbours: k, even, at most n_min - 2, and at most 2^15; 0: the complete graph, which
            `active` must use.
        ring_threshold: t, 2 .. k; 0: the complete graph.
        length: V, the number of entries of the vector without checksum entries; with them the
            vector takes at most 2^30 bytes.
        bits: b, the number of bits of an entry: at most 64, and enough to count to n_max.

    Raises:
        InvalidInputError: a value is out of bounds, or two do not fit each other.
    """

    adversary: Adversary
    n_min: int
    n_max: int
    corrupt: int
    max_dropout_ppm: int
    min_survivors: int
    ring_neighbours: int
    ring_threshold: int
    length: int
    bits: int

    def __post_init__(self) -> None:
        def bounded(minimum: int, maximum: int, name: str) -> None:
            object.__setattr__(
                self, name, validate.integer(minimum, maximum, **{name: getattr(self, name)})
            )

        object.__setattr__(self, "adversary", Adversary.parse(self.adversary))
        active = self.adversary is Adversary.ACTIVE
        bounded(MIN_CLIENTS, MAX_ACTIVE_CLIENTS if active else MAX_CLIENTS, "n_max")
        bounded(MIN_CLIENTS, self.n_max, "n_min")
        bounded(1, self.n_min, "min_survivors")
        # Without an allow-list a client may be one that the server made up: assume at least one.
        bounded(0 if active else 1, self.n_max, "corrupt")
        if self.corrupt >= self.min_survivors:
            raise InvalidInputError(
                f"corrupt must be below min_survivors, {self.min_survivors}, got {self.corrupt}: "
                "a sum needs honest clients"
            )
        bounded(0, PPM - 1, "max_dropout_ppm")
        # With n - 1 neighbours it would be the complete graph, which has its own threshold.
        bounded(0, min(self.n_min - 2, MAX_NEIGHBOURS), "ring_neighbours")
        bounded(min(2, self.ring_neighbours), self.ring_neighbours, "ring_threshold")
        if self.ring_neighbours % 2:
            raise InvalidInputError(f"ring_neighbours must be even, got {self.ring_neighbours}")
        if self.is_complete and self.n_max > MAX_COMPLETE_CLIENTS:
            raise InvalidInputError(
                f"n_max must be at most {MAX_COMPLETE_CLIENTS} in the complete graph, got"
                f" {self.n_max}; use a ring"
            )
        if active and not self.is_complete:
            raise InvalidInputError(
                f"ring_neighbours must be 0 for {self.adversary}, the complete graph, got"
                f" {self.ring_neighbours}: a server that lies can cut a ring"
            )
        if active:
            self._check_survivors()
        # The least number of bits is enough for a sum of n_max entries that are 0 or 1. A plan
        # knows its largest entry and its noise, and checks that `bits` is enough for these, too
        # (`config.check_terms`).
        bounded(modulus_bits(self.n_max, multiple=1, signed=False), MAX_BITS, "bits")
        bounded(1, MAX_STREAM_BYTES // lane(self.bits).itemsize - self.checksum_entries, "length")

    def _check_survivors(self) -> None:
        """Raise an error if `min_survivors` of an `active` sum is too small or too large.

        It must be at least the threshold of shares: otherwise the survivors might not have enough
        shares to unmask. It must be at most the number of clients that are left of the smallest
        roster if the fraction max_dropout_ppm of it drops out and all corrupt clients are silent:
        otherwise silent clients could stop every round.
        """
        # A client that sends wrong shares can stop a round all the same: docs/protocol.md, "What is
        # not claimed".
        fewest = complete_threshold(self.n_max, self.corrupt)
        most = self.n_min - share_of(self.max_dropout_ppm, self.n_min, up=True) - self.corrupt
        if not fewest <= self.min_survivors <= most:
            raise InvalidInputError(
                f"min_survivors must be at least the threshold {fewest} of {self.n_max} clients,"
                f" and at most {most}, what is left of {self.n_min} without dropouts and"
                f" {self.corrupt} corrupt ones, got {self.min_survivors}; lower corrupt,"
                " max_dropout or n_max - n_min"
            )

    @property
    def is_complete(self) -> bool:
        """Whether every two clients are neighbours."""
        return self.ring_neighbours == 0

    @property
    def checksum_entries(self) -> int:
        """The number of checksum entries appended to the vector, see `num_checksum_entries`."""
        return num_checksum_entries(self.bits)

    @property
    def honest_survivors(self) -> int:
        """The fewest honest clients in a sum: min_survivors - corrupt.

        If clients add the noise, each computes its share of the noise from this number: corrupt
        clients may add none.
        """
        return self.min_survivors - self.corrupt

    def graph(self, n: int) -> Graph:
        """Return the number of neighbours k and the threshold t in a roster of n clients.

        In a ring, k and t do not depend on n.
        """
        if self.is_complete:
            return Graph(n - 1, complete_threshold(n, self.corrupt))
        return Graph(self.ring_neighbours, self.ring_threshold)

    def absent(self, n: int) -> int:
        """Return the most clients of a roster of n that may be absent.

        It is the larger of two numbers: the fraction max_dropout_ppm of n, rounded down; and n -
        min_survivors.
        """
        return max(share_of(self.max_dropout_ppm, n), n - self.min_survivors)

    def check_roster(self, n: int) -> None:
        """Raise an error unless n clients may be in a roster, and the ring, if any, protects them.

        A client calls it after `ClientPolicy.check_invite`, once n is known.

        Raises:
            UnsafeParametersError: n is not within n_min .. n_max, or there is a ring and
                `is_safe_ring` is False for it.
        """
        n = validate.integer(n=n)
        if not self.n_min <= n <= self.n_max:
            raise UnsafeParametersError(
                f"the roster must have {self.n_min} to {self.n_max} clients, got {n}"
            )
        if not self.is_complete and not is_safe_ring(
            n, self.corrupt, self.absent(n), self.graph(n)
        ):
            raise UnsafeParametersError(
                f"{self.ring_neighbours} neighbours with threshold {self.ring_threshold} among {n}"
                f" clients are not safe against {self.corrupt} corrupt and {self.absent(n)} absent"
                " ones; propose more neighbours"
            )


@dataclass(frozen=True, kw_only=True)
class ClientPolicy:
    """State what a client demands of the parameters that a server proposes.

    The client checks the parameters before it allocates memory for a session. C is the number of
    corrupt clients that the parameters allow for.

    Args:
        adversary: the kind of server to protect against; parameters for another kind are refused.
        min_honest: the fewest honest clients in a sum, min_survivors - C; at least 2, since a sum
            of one is that client's vector.
        max_corrupt: a fraction in [0, 1), rounded to whole parts per million. C must be at least
            this fraction of n_max, rounded up.
        corrupt: C must be at least this number. Choose the number of clients of the allow-list that
            may be corrupt.
        min_clients: the fewest clients in a roster.
        max_clients: the most clients in a roster.
        max_neighbours: the most neighbours; each of them costs two key exchanges and a mask.
        max_length: the most entries of a vector.
        max_bits: the most bits of an entry.
        max_seconds: the longest session, not_after - not_before in seconds, at most 2^32; by
            default a week. The client's journal must keep a record of the session until not_after.
        known: the public keys, 32 bytes each, of clients that this client knows to be honest; its
            own key never counts.
        least_known: the fewest `known` clients that must be in the roster and in the sum. If
            it is above 0, parameters for `semi-honest` are refused: there clients have no
            identities.

    Raises:
        InvalidInputError: a value is out of bounds, or `known` has fewer keys than `least_known`.
    """

    adversary: Adversary
    min_honest: int
    max_corrupt: float = 0.0
    corrupt: int = 1
    min_clients: int = MIN_CLIENTS
    max_clients: int = MAX_CLIENTS
    max_neighbours: int = 1000
    max_length: int = 2**24
    max_bits: int = MAX_BITS
    max_seconds: int = 7 * 86_400
    known: frozenset[bytes] = frozenset()
    least_known: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "adversary", Adversary.parse(self.adversary))
        object.__setattr__(
            self, "max_seconds", validate.integer(1, 2**32, max_seconds=self.max_seconds)
        )
        ppm_of(max_corrupt=self.max_corrupt)
        object.__setattr__(
            self,
            "least_known",
            validate.integer(0, len(self.known), least_known=self.least_known),
        )
        for minimum, name in (
            (2, "min_honest"),
            (0, "corrupt"),
            (MIN_CLIENTS, "min_clients"),
            (self.min_clients, "max_clients"),
            (1, "max_neighbours"),
            (1, "max_length"),
            (1, "max_bits"),
        ):
            object.__setattr__(self, name, validate.integer(minimum, **{name: getattr(self, name)}))

    def check_invite(self, parameters: Parameters) -> None:
        """Raise an error if parameters are not what this policy allows.

        Weaker parameters protect too little. Larger parameters let a server exhaust a client's
        memory. The real size of the roster is not known yet: call `Parameters.check_roster` once
        the size is known.

        Raises:
            UnsafeParametersError: the policy refuses the parameters; see `refusals`.
        """
        for reason in self.refusals(parameters):
            raise UnsafeParametersError(reason)

    def refusals(self, parameters: Parameters) -> Iterator[str]:
        """Yield every reason, in words, for which `check_invite` refuses parameters.

        The error of `check_invite` has only the first reason.
        """
        if parameters.adversary is not self.adversary:
            yield (
                f"adversary must be {self.adversary} by this client's policy (adversary), got"
                f" {parameters.adversary}"
            )
        share = -(-ppm_of(max_corrupt=self.max_corrupt) * parameters.n_max // PPM)
        corrupt = max((self.corrupt, "corrupt"), (share, "max_corrupt"))
        if self.least_known and parameters.adversary is Adversary.SEMI_HONEST:
            yield (
                f"at least {self.least_known} of the known keys must be there by this client's"
                f" policy (least_known), and clients of a plan against {parameters.adversary}"
                " have no keys: ask for a plan with --adversary active"
            )
        neighbours = parameters.graph(parameters.n_max).neighbours
        # A message names the parameter, and in brackets the entry of the policy. Whoever reads the
        # message may have written the policy, and know only the name of the entry.
        for name, value, least, demand in (
            ("corrupt", parameters.corrupt, *corrupt),
            ("min_survivors - corrupt", parameters.honest_survivors, self.min_honest, "min_honest"),
            ("n_min", parameters.n_min, self.min_clients, "min_clients"),
            ("n_max - 1", parameters.n_max - 1, self.least_known, "least_known"),
        ):
            if value < least:
                yield (
                    f"{name} must be at least {least} by this client's policy ({demand}), got"
                    f" {value}"
                )
        for name, value, most, demand in (
            ("n_max", parameters.n_max, self.max_clients, "max_clients"),
            ("neighbours", neighbours, self.max_neighbours, "max_neighbours"),
            ("length", parameters.length, self.max_length, "max_length"),
            ("bits", parameters.bits, self.max_bits, "max_bits"),
        ):
            if value > most:
                yield (
                    f"{name} must be at most {most} by this client's policy ({demand}), got {value}"
                )

    def check_known(self, others: Iterable[bytes], where: str) -> None:
        """Raise an error if fewer than `least_known` of some clients have a key in `known`.

        Args:
            others: the public keys of these clients, without the key of this client.
            where: where these clients are, for the message, such as "in the sum".

        Raises:
            UnsafeParametersError: fewer than `least_known` of the keys in `others` are in `known`.
        """
        found = sum(key in self.known for key in others)
        if found < self.least_known:
            raise UnsafeParametersError(
                f"at least {self.least_known} of the known keys of other clients must be {where} by"
                f" this client's policy (least_known), got {found}"
            )


# ---- fractions ----


def share_of(ppm: int, n: int, *, up: bool = False) -> int:
    """Return `ppm` parts per million of n, rounded down; with `up`, rounded up."""
    return -(-ppm * n // PPM) if up else ppm * n // PPM


def ppm_of(**named: float) -> int:
    """Return a fraction in [0, 1) as parts per million, rounded to the nearest.

    Pass it as the only keyword argument; messages name the fraction by this keyword.

    Raises:
        InvalidInputError: the fraction is not in [0, 1), or is rounded to 1.
    """
    name = next(iter(named))
    ppm = round(validate.real(0.0, 1.0, **named) * PPM)
    if ppm == PPM:
        raise InvalidInputError(f"{name} must be below 1, got {named[name]}")
    return ppm
