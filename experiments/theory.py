"""What the paper proved, as functions: error bounds, lower bounds, and how widths grow.

"The paper" is Wu, Zhu, Kairouz and Braverman, Private Federated Frequency Estimation: Adapting to
the Hardness of the Instance, NeurIPS 2023. Statements are cited by their titles, equations by their
numbers there. Logarithms are natural. Its hardness and the widths that suffice are in
`fedtally.plan.paper`, which a plan takes with `--sizing`. What a plan will do is predicted without
constants by `fedtally.recovery.error_model`; here is what was proved, so that the two can be
compared. Hashes are random, the decoder is the median.

**Constants.** The theorems hold for some absolute C, which they do not give: where a bound needs
it, it is an argument without default.

**Frequencies** are counts over clients: each in [0, 1], in any order, together at most 1 where a
client holds one item. Only C / W rests on that last condition. For hybrid rounds the
`heterogeneity` takes their place.

**As we read it.** Where the paper's wording leaves a choice, or a slip changes a statement (more:
docs/accuracy.md). No conclusion of the paper depends on any of these:

- *Fresh.* The theorem asks for L >= log(1 / p), its proof for log(2 M / p), since every round must
  succeed; with the former alone a heavy item spoils one of many rounds. We ask for the latter.
- *Fresh and hybrid* are stated for W >= 1; with width 1 every item collides with every other. We
  ask for W >= 2, as the proposition does.
- *Hybrid.* The proof leaves out the 0.1 W largest, has no sqrt(log(1/p) / L), and means
  exp(-Omega(L)); the stated form follows from the theorem of Minton and Price, as the
  characteristic function of a row's noise is nowhere negative for W >= 2.
- *Privacy.* N(0, s) there means the standard deviation s, in counts; "at most 1 - p" means at
  least. The sensitivity sqrt(L) / n is that of a client whose item is left out; exchanging an item
  for another takes up to twice as much. delta is privacy's throughout, p the probability of
  failure.
- *Worst case.* sqrt(tail / W) is at most 1 / (2 W). We keep the paper's C / W.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedtally.base import validate
from fedtally.errors import InvalidInputError
from fedtally.plan.paper import _inside, _known, _log_over, _numbers, _positive

F64 = npt.NDArray[np.float64]
Family = Literal["geometric", "zipf", "zipf-log", "uniform"]
_ROUNDING = 1e-9
_SMALL = (1e-300, math.exp(-1))  # tau of which growth is said


# ---- hardness ----


def tau_reached(frequencies: npt.ArrayLike, width: float) -> float:
    """Return the least tau whose hardness is at most `width`: the inverse of `hardness`.

    0 where the width is at least the number of items that occur: then every tau above 0 is reached.

    Args:
        frequencies: as in `hardness`.
        width: W, without its constant; above 0.

    >>> tau_reached([0.5, 0.25, 0.125, 0.125], width=2.5)
    0.25
    """
    known, width = _falling(frequencies), _positive(width=width)
    known = known[known > 0]
    if width >= len(known):
        return 0.0
    tails = _tail_norms(known)
    # hardness at each frequency; rises
    reached = np.arange(1, len(known) + 1) + (tails[1:] / known) ** 2
    heavy = int(np.searchsorted(reached, width))  # below the width, as reached[k - 1] >= k
    return float(tails[heavy] / math.sqrt(width - heavy))


def tail_norm(values: npt.ArrayLike, head: int) -> float:
    """Return the l2 norm of all but the `head` largest.

    It is the root of the sum over i > W in the paper's bounds.

    Args:
        values: [d], each in [0, 1].
        head: how many of the largest are left out; W in the bounds.

    >>> tail_norm([0.03, 0.6, 0.04, 0.3], head=2)
    0.05
    """
    head = validate.integer(0, head=head)
    return float(np.linalg.norm(_falling(values)[head:]))


def tail_error(frequencies: npt.ArrayLike, width: int) -> float:
    """Return E(W) of the paper: the error bound without constant and rows.

    It is sqrt(1 / W sum_{i > W} f_i^2), f falling.

    tau_reached(f, 2 W) <= E(W) <= tau_reached(f, W), by the proof of the corollary "Oracle sketch
    size".

    Args:
        frequencies: [d], each in [0, 1]; or the `heterogeneity` of hybrid rounds.
        width: W, at least 1.

    >>> tail_error([0.6, 0.3, 0.04, 0.03, 0.0], width=2) == 0.05 / 2**0.5
    True
    """
    width = validate.integer(1, width=width)
    return tail_norm(frequencies, width) / math.sqrt(width)


def width_reaching(frequencies: npt.ArrayLike, error: float) -> int:
    """Return the least width, from 2 on, whose `tail_error` is at most `error`: the inverse of E.

    hardness / 2 <= W < hardness + 1, apart from the 2.

    Args:
        frequencies: as in `tail_error`.
        error: at least 0.

    >>> width_reaching([0.6, 0.3, 0.04, 0.03, 0.0], error=0.05 / 2**0.5)
    2
    """
    error = validate.real(0.0, error=error)
    tails = _tail_norms(_falling(frequencies))
    widths = np.arange(1, max(len(tails), 2))
    reached = np.append(tails, 0.0)[widths] <= error * np.sqrt(widths) * (1 + _ROUNDING)
    return max(2, int(np.argmax(reached)) + 1)


# ---- several rounds ----


def heterogeneity(
    round_frequencies: npt.ArrayLike, round_sizes: npt.ArrayLike | None = None
) -> F64:
    """Return the heterogeneity vector of several rounds, float64 [d], equation (5).

    F_i = 1/M sqrt(sum_m (f_i^(m))^2).

    Its tail takes the place of the frequencies' in the bounds of fresh and hybrid rounds. f /
    sqrt(M) <= F <= f for their mean f: see `heterogeneity_range`.

    Args:
        round_frequencies: [M, d], of each round, each in [0, 1].
        round_sizes: [M], clients of each round. None: equal, as in the paper. Otherwise round m
            weighs n_m / N in place of 1 / M, as in the estimate.

    >>> heterogeneity([[0.3, 0.5], [0.4, 0.0]]).tolist()
    [0.25, 0.25]
    >>> heterogeneity([[0.3, 0.5], [0.4, 0.0]], round_sizes=[4000, 3000]).round(4).tolist()
    [0.2424, 0.2857]
    """
    known = _known(round_frequencies, dimensions=2)
    if not len(known):
        raise InvalidInputError("round_frequencies must have at least one round, got none")
    vector: F64 = np.linalg.norm(_shares(round_sizes, len(known))[:, None] * known, axis=0)
    return vector


def heterogeneity_range(frequencies: npt.ArrayLike, num_rounds: int) -> tuple[F64, F64]:
    """Return the least and the largest heterogeneity of rounds with these frequencies.

    They are f / sqrt(M) and f, for M equal rounds.

    The least is that of homogeneous rounds, each with the frequencies of all: there hybrid errs by
    1 / sqrt(M) of what shared does. The largest is that of items which each occur in one round
    alone: there it gains nothing.

    Args:
        frequencies: [d], each in [0, 1], of all rounds together.
        num_rounds: M, at least 1.

    >>> [vector.tolist() for vector in heterogeneity_range([0.5, 0.25], 4)]
    [[0.25, 0.125], [0.5, 0.25]]
    """
    known = _known(frequencies)
    return known / math.sqrt(validate.integer(1, num_rounds=num_rounds)), known


def _shares(round_sizes: npt.ArrayLike | None, num_rounds: int) -> F64:
    if round_sizes is None:
        return np.full(num_rounds, 1 / num_rounds)
    sizes = _numbers(round_sizes, 1, "round_sizes")
    if len(sizes) != num_rounds or (sizes < 0).any() or not sizes.any():
        raise InvalidInputError(
            f"round_sizes must be {num_rounds} numbers, one of each round, at least 0 and not all 0"
        )
    shares: F64 = sizes / sizes.sum()
    return shares


# ---- error bounds ----


def count_sketch_bound(
    frequencies: npt.ArrayLike, rows: int, width: int, p: float, constant: float, *, items: int = 1
) -> float:
    """Return the error of one round, or of shared rounds.

    C sqrt(log(1/p) / L * 1/W * sum_{i > W} f_i^2), f falling.

    Proposition 1 (theorem 4.1 of Minton and Price 2014): each item's error is below it with
    probability at least 1 - p. For so many items at once p is p / items, by the union bound: with
    items = d and L = log(d / p) this is equation (1) of the corollary "l_inf-error bounds for count
    sketch", C E(W).

    Args:
        frequencies: [d], each in [0, 1], of all clients together.
        rows: L, at least log(items / p), up to a constant: see `fedtally.plan.paper.rows_for`.
        width: W, at least 2.
        p: probability of failure, in (0, 1).
        constant: C of the proposition, which exists; the paper does not give it.
        items: for how many items the bound holds at once, d for l_inf.

    Raises:
        InvalidInputError: a value is out of its range; too few rows, or too small a width, for the
            statement.

    >>> distribution = 2.0 ** -np.arange(1, 40)
    >>> f"{count_sketch_bound(distribution, rows=16, width=20, p=0.1, constant=2, items=39):.1e}"
    '1.5e-07'
    """
    tail = tail_error(frequencies, validate.integer(2, width=width))
    return _positive(constant=constant) * math.sqrt(_per_row(rows, p, items)) * tail


def worst_case_bound(width: int, constant: float) -> float:
    """Return C / W, which no l_inf error of one round exceeds, whatever the frequencies.

    Corollary "l_inf-error bounds for count sketch"; with probability at least 1 - p for L = log(d /
    p).

    Args:
        width: W, at least 2.
        constant: C of equation (1).

    >>> worst_case_bound(400, constant=2)
    0.005
    """
    return _positive(constant=constant) / validate.integer(2, width=width)


def hybrid_bound(
    heterogeneity: npt.ArrayLike,
    rows: int,
    width: int,
    p: float,
    constant: float,
    *,
    items: int = 1,
) -> float:
    """Return the error of hybrid rounds: C sqrt(log(1/p) / L * 1/W * sum_{i > W} F_i^2), F falling.

    Theorem "Instance-specific bound" of the hybrid sketch: `count_sketch_bound` with F in place of
    f.

    Args:
        heterogeneity: [d], of `heterogeneity`.
        rows: L, at least log(items / p).
        width: W, at least 2.
        p: probability of failure, in (0, 1).
        constant: C of the theorem, which exists; the paper does not give it.
        items: for how many items the bound holds at once, d for l_inf.

    >>> distribution = 2.0 ** -np.arange(1, 40)
    >>> shared = count_sketch_bound(distribution, 16, 20, 0.1, constant=2)
    >>> round(shared / hybrid_bound(heterogeneity([distribution] * 9), 16, 20, 0.1, constant=2), 6)
    3.0
    """
    return count_sketch_bound(heterogeneity, rows, width, p, constant, items=items)


def fresh_bound(
    heterogeneity: npt.ArrayLike,
    rows: int,
    width: int,
    p: float,
    constant: float,
    *,
    num_rounds: int,
    items: int = 1,
) -> float:
    """Return the error of fresh rounds.

    C sqrt(log(1/p) log(M/p) / L * 1/W * sum_{i > W} F_i^2), F falling.

    Theorem "Instance-specific bound" of the fresh sketch: sqrt(log(M/p)) times that of
    `hybrid_bound`, up to constants.

    Args:
        heterogeneity: [d], of `heterogeneity`.
        rows: L, at least log(2 M items / p): the proof's condition, see the module.
        width: W, at least 2.
        p: probability of failure, in (0, 1).
        constant: C of the theorem, which exists; the paper does not give it.
        num_rounds: M, at least 1.
        items: for how many items the bound holds at once, d for l_inf.

    >>> distribution = 2.0 ** -np.arange(1, 40)
    >>> vector = heterogeneity([distribution] * 9)
    >>> f"{fresh_bound(vector, 16, 20, 0.1, constant=2, num_rounds=9):.1e}"
    '6.6e-08'
    """
    num_rounds = validate.integer(1, num_rounds=num_rounds)
    _per_row(rows, p, 2 * num_rounds * validate.integer(1, items=items))
    return hybrid_bound(heterogeneity, rows, width, p, constant, items=items) * math.sqrt(
        _log_over(num_rounds * items, p)
    )


# ---- differential privacy ----


def noise_stddev(rows: int, epsilon: float, delta: float, constant: float | None = None) -> float:
    """Return the noise of the theorem "DP-hybrid sketch", in counts, for a counter.

    It is c sqrt(L log(1/delta)) / epsilon.

    The standard deviation of Gaussian noise that makes the sums of all rounds, each client in one
    of them, (epsilon, delta)-private, for clients whose item is left out. Plans are calibrated, and
    account for exchanged items, several items and several rounds, by `fedtally.privacy.accounting`,
    which needs a fifth less at epsilon 1.

    Args:
        rows: L.
        epsilon: in (0, 1).
        delta: in (0, 0.1).
        constant: c, which the paper calls known and leaves open. None: that of the classical
            Gaussian mechanism (Dwork and Roth 2014, theorem A.1), sqrt(2 log(1.25/delta) /
            log(1/delta)).

    >>> round(noise_stddev(16, 0.5, 1e-6) / 16**0.5, 3)
    10.598
    """
    rows = validate.integer(1, rows=rows)
    epsilon, delta = _inside(epsilon=epsilon), _inside(0.1, delta=delta)
    logarithm = -math.log(delta)
    chosen = (
        math.sqrt(2 * (math.log(1.25) + logarithm) / logarithm)
        if constant is None
        else _positive(constant=constant)
    )
    return chosen * math.sqrt(rows * logarithm) / epsilon


def private_bound(
    heterogeneity: npt.ArrayLike,
    rows: int,
    width: int,
    p: float,
    constant: float,
    *,
    num_clients: int,
    num_rounds: int,
    noise: float,
    items: int = 1,
) -> float:
    """Return the error of hybrid rounds with noise.

    C sqrt(log(1/p) / L) (sqrt(1/W sum_{i > W} F_i^2) + s sqrt(M) / N).

    Theorem "DP-hybrid sketch". With items = d, L = log(d / p) and the s of `noise_stddev` it is the
    paper's C (E(W) + c sqrt(log(d/p) log(1/delta)) / (n sqrt(M) epsilon)), where c is part of C.
    The second term is free of L, as s grows with sqrt(L). For other noise, of any epsilon, s is
    what it is. The paper suggests to open m batches of rounds rather than M rounds: then these are
    the rounds here, also in `heterogeneity`.

    Args:
        heterogeneity: [d], of `heterogeneity`; the frequencies for shared rounds that are opened
            once.
        rows: L, at least log(items / p).
        width: W, at least 2.
        p: probability of failure, in (0, 1).
        constant: C of the theorem, which exists; the paper does not give it.
        num_clients: N = n M, of all rounds together.
        num_rounds: M, sums that are opened, each with noise.
        noise: s, standard deviation in every counter of every released sum, in counts; at least 0.
        items: for how many items the bound holds at once, d for l_inf.

    >>> distribution, noise = 2.0 ** -np.arange(1, 40), noise_stddev(16, 0.5, 1e-6)
    >>> vector, sizes = heterogeneity([distribution] * 9), {"num_clients": 90_000, "num_rounds": 9}
    >>> f"{private_bound(vector, 16, 20, 0.1, constant=2, noise=noise, **sizes):.1e}"
    '1.1e-03'
    """
    private = _noise_of_row(num_clients, num_rounds, noise)
    unit = _positive(constant=constant) * math.sqrt(_per_row(rows, p, items))
    return hybrid_bound(heterogeneity, rows, width, p, constant, items=items) + unit * private


def width_at_privacy_error(
    heterogeneity: npt.ArrayLike, *, num_clients: int, num_rounds: int, noise: float
) -> int:
    """Return the width at which sketch error equals privacy error.

    Beyond it, more width gains less than a factor of two.

    The least W, from 2 on, at which the first term of `private_bound` is at most the second. Rows,
    p and C cancel.

    Args:
        heterogeneity: [d], as in `private_bound`, like all that follows.
        num_clients: N.
        num_rounds: M.
        noise: s.

    >>> distribution = np.arange(1, 100_001.0) ** -1.1
    >>> vector = heterogeneity([distribution / distribution.sum()] * 10)
    >>> noise = noise_stddev(16, 0.5, 1e-6)
    >>> width_at_privacy_error(vector, num_clients=1_000_000, num_rounds=10, noise=noise)
    173
    """
    return width_reaching(heterogeneity, _noise_of_row(num_clients, num_rounds, noise))


def _noise_of_row(num_clients: int, num_rounds: int, noise: float) -> float:
    """Return the standard deviation that noise gives to what one row says, in frequencies."""
    num_clients = validate.integer(1, num_clients=num_clients)
    return (
        validate.real(0.0, noise=noise)
        * math.sqrt(validate.integer(1, num_rounds=num_rounds))
        / num_clients
    )


# ---- bits ----


def bits(counters: int, num_clients: int, constant: float = 1.0) -> float:
    """Return the bits of a client for so many counters, C counters log2(n): equation (4).

    The paper's order of magnitude, for comparison with `lower_bound_bits`; what a protocol sends,
    its plan says.

    Args:
        counters: L W of a sketch, d of a one-hot vector.
        num_clients: n, of one secure sum.
        constant: C; 1 for n different values of a counter, and nothing else.

    >>> bits(16 * 1000, 2**14) == 16 * 1000 * 14
    True
    """
    counters, num_clients = (
        validate.integer(1, counters=counters),
        validate.integer(1, num_clients=num_clients),
    )
    return _positive(constant=constant) * counters * math.log2(num_clients)


def lower_bound_bits(
    num_clients: int, domain_size: int, constant: float, *, delta: float | None = None
) -> float:
    """Return the bits that every client must send in the worst case.

    By any algorithm of one round with secure sums.

    Chen et al. 2022, as the paper cites them: c n log d for the frequencies themselves; with
    privacy (their corollary 5.1), c n min(sqrt(log d / log(1/delta)), log d) for an l_inf error
    below one of the order of sqrt(log d log(1/delta)) / (n epsilon).

    Args:
        num_clients: n, of the round; at most d.
        domain_size: d, at least 2.
        constant: c, which exists; the paper does not give it.
        delta: of differential privacy, in (0, 1). None: without privacy.

    >>> round(lower_bound_bits(1000, 100_000, constant=1))
    11513
    >>> round(lower_bound_bits(1000, 100_000, constant=1, delta=1e-6))
    913
    """
    domain_size = validate.integer(2, domain_size=domain_size)
    num_clients = validate.integer(1, domain_size, num_clients=num_clients)
    each = math.log(domain_size)
    if delta is not None:
        each = min(math.sqrt(each / -math.log(_inside(delta=delta))), each)
    return _positive(constant=constant) * num_clients * each


# ---- the families of the corollary "Examples" ----


def width_growth(family: Family, tau: float, exponent: float | None = None) -> float:
    """Return the growth of the width that meets tau, as tau falls.

    For the four families of the corollary "Examples".

    ========== ============================= =======================
    geometric  f_i ~ 2^-i                    log(1/tau)
    zipf       f_i ~ i^-a, a > 1             tau^(-1/a)
    zipf-log   f_i ~ 1 / (i log(i)^b), b > 1 1 / (tau log(1/tau)^b)
    uniform    f_i = 10/n, i <= n/10         1 / tau
    ========== ============================= =======================

    Up to a constant that depends on the distribution, for tau above 1/n and a domain without end.
    It suffices for all four. The
    hardness of the first three grows just so; that of the last where tau falls as 10/n does, while
    with n fixed it is n/10 for tau up to 10/n, and 10 / (n tau^2) beyond.

    Args:
        family: as in `fedtally.sources.synthetic`.
        tau: 1e-300 .. 1/e.
        exponent: a of zipf or b of zipf-log, above 1, up to 100.

    >>> [round(width_growth("zipf", tau, 2.0), 6) for tau in (0.01, 0.0001)]
    [10.0, 100.0]
    """
    logarithm, exponent = _family(family, tau, exponent)
    if family == "geometric":
        return logarithm
    if family == "zipf":
        return math.exp(logarithm / exponent)
    return math.exp(logarithm - exponent * math.log(logarithm))


def width_slope(family: Family, tau: float, exponent: float | None = None) -> float:
    """Return the slope of `width_growth` on logarithmic axes, d log W / d log(1/tau).

    1 / log(1/tau), 1/a, 1 - b / log(1/tau) and 1.

    Args:
        family: as in `width_growth`, like all that follows.
        tau: 1e-300 .. 1/e.
        exponent: above 1, up to 100.

    >>> width_slope("zipf", 0.001, 1.25), width_slope("uniform", 0.001)
    (0.8, 1.0)
    """
    logarithm, exponent = _family(family, tau, exponent)
    if family == "geometric":
        return 1 / logarithm
    if family == "zipf":
        return 1 / exponent
    return 1 - exponent / logarithm


def _family(family: Family, tau: float, exponent: float | None) -> tuple[float, float]:
    """Return log(1/tau) and the exponent, 0 for a family that has none."""
    if family not in ("geometric", "zipf", "zipf-log", "uniform"):
        raise InvalidInputError(
            f"family must be geometric, zipf, zipf-log or uniform, got {family!r}"
        )
    logarithm = -math.log(validate.real(*_SMALL, tau=tau))
    if family in ("geometric", "uniform"):
        if exponent is not None:
            raise InvalidInputError(f"{family} has no exponent, got {exponent!r}: leave it out")
        return logarithm, 0.0
    exponent = validate.real(1.0, 100.0, exponent=exponent)
    if exponent == 1.0:
        raise InvalidInputError("exponent must be above 1: with 1 the law has no sum")
    return logarithm, exponent


# ---- checks ----


def _falling(frequencies: npt.ArrayLike) -> F64:
    return np.sort(_known(frequencies))[::-1]


def _tail_norms(falling: F64) -> F64:
    """Return, float64 [d + 1], the l2 norm of all but the k largest, at k."""
    norms: F64 = np.sqrt(np.append(0.0, np.cumsum(falling[::-1] ** 2))[::-1])
    return norms


def _per_row(rows: int, p: float, items: int) -> float:
    """Return log(items / p) / L, at most 1."""
    rows, least = validate.integer(1, rows=rows), _log_over(validate.integer(1, items=items), p)
    if rows < least * (1 - _ROUNDING):
        raise InvalidInputError(
            f"rows must be at least log({items} / p) = {least:.4g}, got {rows}: take more rows, or"
            " a larger p"
        )
    return least / rows
