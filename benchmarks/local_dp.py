"""Frequencies under local differential privacy, by pure-ldp, against ours at equal epsilon.

Every client of a local protocol noises its own item, so nobody need be trusted, and delta is 0.
Ours trusts an aggregator (`central`), or a secure sum and most of its clients (`distributed`), and
has the default delta. The relation is replace-one for all: under a local protocol any two items of
a client must look alike.

Local protocols: optimal unary encoding (OUE) and fast local hashing (FLH), which is optimal local
hashing with a set of hash functions that is small enough to be decoded (Wang et al. 2017; Cormode,
Maddock and Maple 2021), Hadamard response (HR; Acharya, Sun and Zhang 2019), and Apple's count-mean
sketch, plain (CMS) and Hadamard (HCMS; Differential Privacy Team 2017). The library makes every
client's report, one by one. Only where OUE has too many bits for that is the sum of its reports
drawn at once (its bits are independent, so that a counter is a sum of two binomials), for the
library's server; CPU is then that of a thousand clients, and the server's in proportion. A report
has as many bytes as it needs, not as many as Python takes; which hash functions and items there are
is known to all.

Everybody has estimates of two kinds, of which the smaller error counts, for each kind of error: of
the library they are raw, or projected onto the probability simplex by its own function; of ours
they are by the objective linf, or l2.

Ours is a sketch in rounds. Under `distributed` trust every round is one secure sum of about 10,000
clients and has the noise of all its clients, none of them missing; the sum itself is not run here,
but is in ``secagg --part cohorts``. Its bytes and CPU are those of the bill, for the host that it
is given.
"""

from __future__ import annotations

import importlib
import math
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import fedtally
from fedtally.domain import IntegerRange
from fedtally.plan.bill import Host, bill
from fedtally.plan.design import Design
from fedtally.plan.request import Request
from fedtally.sources.synthetic import frequencies

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

EPSILONS = (1.0, 2.0, 4.0, 8.0)
PROTOCOLS = ("OUE", "FLH", "HR", "CMS", "HCMS")
CENTRAL, DISTRIBUTED = "ours, central", "ours, distributed"
ROWS, WIDTH = 5, 1000
CENTRAL_ROUNDS, COHORT = 10, 10_000
BUCKETS = 1024  # of a count-mean sketch
TOP = 20
MOST_BITS = 10**9  # of all reports of OUE together, if the library is to make them
_BATCH = 1000  # reports that are held at once
EXTRA = "pip install 'fedtally[bench-ldp]', in an environment of its own"


class Cell(NamedTuple):
    """Clients, candidates, the feasible protocols, and hash functions of FLH, CMS and HCMS."""

    clients: int
    candidates: int
    protocols: tuple[str, ...]
    hashes: int


FULL = (Cell(100_000, 1_000, PROTOCOLS, 1024), Cell(1_000_000, 100_000, ("OUE", "HR", "HCMS"), 128))
QUICK = (Cell(2_000, 200, PROTOCOLS, 64),)


class Errors(NamedTuple):
    """Errors of frequencies: largest, root mean square, mean absolute one of the most frequent."""

    largest: float
    typical: float
    top: float


class Row(NamedTuple):
    """The result of a protocol at one epsilon: errors, bytes both ways, and CPU seconds.

    The server's are of the whole campaign, from the reports to an estimate of every candidate.
    """

    epsilon: float
    protocol: str
    errors: Errors
    client_bytes: int
    client_seconds: float
    server_seconds: float


class Peer(NamedTuple):
    """A local protocol of the library: its two sides, and the number of different reports."""

    client: Any
    server: Any
    reports: int


def installed() -> Any | None:
    """Return the protocols of pure-ldp, if they work: newer NumPy and xxhash break them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what will break
        try:
            oracles = importlib.import_module("pure_ldp.frequency_oracles")
            oracles.CMSServer(1.0, 2, 4).get_hash_funcs()[0]("0")
        except (ImportError, TypeError):
            return None
    return oracles


def errors(estimated: F64, truth: F64) -> Errors:
    """Return the errors of estimated frequencies; candidates are in the order of the law."""
    missed = np.abs(estimated - truth)
    return Errors(
        float(missed.max()), float(np.sqrt(np.mean(missed**2))), float(missed[:TOP].mean())
    )


def population(cell: Cell, seed: int) -> tuple[I64, F64]:
    """Return the candidate that each client holds, and the frequencies: Zipf 1.1."""
    rng = np.random.default_rng([seed, cell.clients, cell.candidates])
    items = rng.choice(
        cell.candidates, cell.clients, p=frequencies(f"zipf:a=1.1,d={cell.candidates}")
    )
    return items, np.bincount(items, minlength=cell.candidates) / cell.clients


def make(oracles: Any, protocol: str, epsilon: float, cell: Cell) -> Peer:
    """Return a local protocol of the library for the candidates 0, 1, ..."""
    d, k = cell.candidates, cell.hashes
    index = {"index_mapper": lambda item: item}
    if protocol == "OUE":
        unary = {"use_oue": True} | index
        return Peer(
            oracles.UEClient(epsilon, d, **unary), oracles.UEServer(epsilon, d, **unary), 2**d
        )
    if protocol == "FLH":
        hashed = {"use_olh": True} | index
        server = oracles.FastLHServer(epsilon, d, k, **hashed)
        return Peer(oracles.FastLHClient(epsilon, d, k, **hashed), server, k * server.g)
    if protocol == "HR":
        server = oracles.HadamardResponseServer(epsilon, d, **index)
        client = oracles.HadamardResponseClient(epsilon, d, server.get_hash_funcs(), **index)
        return Peer(client, server, server.hr.outsz)
    hadamard = protocol == "HCMS"
    server = oracles.CMSServer(epsilon, k, BUCKETS, is_hadamard=hadamard)
    client = oracles.CMSClient(epsilon, server.get_hash_funcs(), BUCKETS, is_hadamard=hadamard)
    return Peer(client, server, k * (2 * BUCKETS if hadamard else 2**BUCKETS))


def local(
    oracles: Any, protocol: str, epsilon: float, cell: Cell, items: I64, truth: F64, seed: int
) -> Row:
    """Run a local protocol of the library."""
    importlib.import_module("random").seed(seed)  # the library draws from both of these
    np.random.seed(seed)  # noqa: NPY002, TID251
    n, at_once = cell.clients, protocol == "OUE" and cell.clients * cell.candidates > MOST_BITS
    made = _BATCH if at_once else n
    start, client_seconds = time.process_time(), 0.0
    client, server, reports = make(oracles, protocol, epsilon, cell)
    for first in range(0, made, _BATCH):
        held, before = items[first : first + _BATCH].tolist(), time.process_time()
        sent = [client.privatise(item) for item in held]
        client_seconds += time.process_time() - before
        server.aggregate_all(sent)
    summed = time.process_time()
    if at_once:
        server.aggregated_data, server.n = summed_bits(truth * n, n, server.p, server.q, seed), n
    drawn = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few clients: FLH does not let itself be told
        raw = server.estimate_all(range(cell.candidates)) / n
    server_seconds = (summed - start - client_seconds) * n / made + time.process_time() - drawn
    simplex = importlib.import_module("pure_ldp.core.prob_simplex").project_probability_simplex
    found = Errors(*map(min, errors(raw, truth), errors(np.asarray(simplex(raw)), truth)))
    size = math.ceil((reports - 1).bit_length() / 8)
    return Row(epsilon, protocol, found, size, client_seconds / made, server_seconds)


def summed_bits(counts: F64, clients: int, p: float, q: float, seed: int) -> F64:
    """Draw the sum of all reports of unary encoding: bits are 1 with probability p or q.

    Args:
        counts: clients that hold each candidate.
        clients: all of them.
        p: of the bit of a client's own item.
        q: of any other.
        seed: of the draw.
    """
    rng, held = np.random.default_rng([seed, clients]), np.rint(counts).astype(np.int64)
    return (rng.binomial(held, p) + rng.binomial(clients - held, q)).astype(float)


def ours(
    protocol: str, epsilon: float, cell: Cell, items: I64, truth: F64, host: Host, seed: int
) -> Row:
    """Run a campaign of ours, and ask for the bill of its secure sums."""
    is_central, domain = protocol == CENTRAL, IntegerRange(1, cell.candidates)
    options: dict[str, Any] = {
        "domain": domain,
        "rows": ROWS,
        "width": WIDTH,
        "num_rounds": CENTRAL_ROUNDS if is_central else max(1, cell.clients // COHORT),
        "schedule": "auto" if is_central else "hybrid",
        "epsilon": epsilon,
        "neighbours": "replace-one",
    }
    trust = "central" if is_central else "distributed"
    result = fedtally.estimate(
        items + 1,
        trust=trust,
        not_private=True,
        seed=seed,
        confidence=0,
        recovery="joint",
        **options,
    )
    plan = result.plan
    if not is_central:
        asked = Request(secure_sum="secagg", max_cohort=COHORT + COHORT // 10, **options).resolve()
        design = Design.for_fleet(asked, domain, cell.clients, plan.seed)
        plan = design.with_size(plan.schedule, ROWS, WIDTH).plan()
    cost, shrunk = bill(plan, host), result.decoded(objective="l2")
    return Row(
        epsilon,
        protocol,
        Errors(*map(min, errors(result.frequencies(), truth), errors(shrunk.frequencies(), truth))),
        cost.upload_bytes + cost.download_bytes,
        cost.client_seconds,
        cost.server_seconds + cost.decoding_seconds,
    )


def measure(
    oracles: Any | None, cell: Cell, host: Host, epsilons: Sequence[float] = EPSILONS, seed: int = 1
) -> Iterator[Row]:
    """Yield what every protocol reaches at every epsilon; without the library, ours alone."""
    items, truth = population(cell, seed)
    for epsilon in epsilons:
        for protocol in () if oracles is None else cell.protocols:
            yield local(oracles, protocol, epsilon, cell, items, truth, seed)
        for protocol in (CENTRAL, DISTRIBUTED):
            yield ours(protocol, epsilon, cell, items, truth, host, seed)


def table(rows: list[Row]) -> list[dict[str, str]]:
    """Return a line for each protocol, with its errors at every epsilon, and multiples of ours.

    Errors are in units of 1e-5 of the clients: largest / typical / top 20. CPU is the median over
    epsilon.
    """
    by = {(row.protocol, row.epsilon): row for row in rows}
    epsilons = list(dict.fromkeys(row.epsilon for row in rows))
    protocols = list(dict.fromkeys(row.protocol for row in rows))
    lines = []
    for protocol in protocols:
        mine = [by[protocol, epsilon] for epsilon in epsilons]
        lines.append(
            {"protocol": protocol}
            | {
                _head(row.epsilon): " / ".join(short(1e5 * error) for error in row.errors)
                for row in mine
            }
            | {
                "client bytes": f"{max(row.client_bytes for row in mine):,}",
                "client ms": short(1e3 * float(np.median([row.client_seconds for row in mine]))),
                "server s": short(float(np.median([row.server_seconds for row in mine]))),
            }
        )
    peers = [protocol for protocol in protocols if protocol not in (CENTRAL, DISTRIBUTED)]
    for own in (CENTRAL, DISTRIBUTED) if peers else ():
        line = {"protocol": f"best local / {own}"}
        for epsilon in epsilons:
            best = [
                min(kind)
                for kind in zip(*(by[peer, epsilon].errors for peer in peers), strict=True)
            ]
            ratios = [a / b for a, b in zip(best, by[own, epsilon].errors, strict=True)]
            line[_head(epsilon)] = " / ".join(f"{short(ratio, 2)}x" for ratio in ratios)
        lines.append(line | {"client bytes": "", "client ms": "", "server s": ""})
    return lines


def short(value: float, digits: int = 3) -> str:
    """Return a number with so many significant digits, without an exponent.

    >>> short(12345.6), short(0.012345), short(0.0)
    ('12,300', '0.0123', '0')
    """
    rounded = float(f"{value:.{digits}g}")
    places = max(0, digits - 1 - math.floor(math.log10(abs(rounded)))) if rounded else 0
    return f"{rounded:,.{places}f}"


def _head(epsilon: float) -> str:
    return f"epsilon {epsilon:g}"
