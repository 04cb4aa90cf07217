"""A whole campaign in one process: every client simulated, the secure sum ideal.

source -> batches -> ids -> rounds -> sketches -> result
"""

from __future__ import annotations

import hashlib
import itertools
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from fedtally import _validate
from fedtally.domain import Domain, IntegerRange, parse
from fedtally.engines.cohorts import sum_rounds
from fedtally.engines.summation import Keys, Summation, make_keys, rekeyed, terms, widest
from fedtally.engines.tally import Declared, FromInput, RoundTally, Tally
from fedtally.errors import InvalidInputError, MemoryLimitError
from fedtally.plan import Plan, width_for_bytes
from fedtally.recovery.intervals import order_statistic
from fedtally.result import CONFIDENCE, Progress, Result, Truth, check_decoding, physical_memory
from fedtally.sketch import CountSketch, Schedule
from fedtally.sketch.count_sketch import MAX_ROUNDS
from fedtally.sources import Source, from_items

DEFAULT_ROWS = 7
DEFAULT_MAX_BYTES = 32_000
DEFAULT_MEMORY = 1 << 30
_BYTES_PER_COUNTER = 220  # the landed sums and, at the peak of the intervals of fresh rounds, 207 bytes more


@dataclass(frozen=True)
class Request:
    """What is asked of a campaign; everything has a default.

    Args:
        domain: the candidate items: a `Domain`, text that `domain.parse` reads, "input" for the distinct items of the
            input, or None: the own domain of a synthetic source, "input" elsewhere.
        rows: rows of the sketch (7).
        width: counters per row; by default the widest that fits `max_bytes`.
        max_bytes: upload per client and round (32,000), where no width is given.
        num_rounds: rounds, each client's drawn uniformly (1); not where the rows name their rounds.
        schedule: "auto" (shared for one round, else hybrid) or a schedule.
        max_items: the most items of one client, drawn uniformly from its distinct items (1).
        recovery: "joint", which fits the heavy items together, "median", the paper's decoder, or "auto": joint up to
            2^28 candidates.
        objective: what is made small: "linf", the largest error, or "l2", the sum of squares, by shrinkage.
        confidence: of the intervals, below 1; 0 for none.
        intervals: "pointwise", "simultaneous" or "order" (order statistics of the rows).
        seed: of hashes and draws: an int, text or bytes; from the operating system if None.
        evaluate: compare with the truth, which a simulation knows.
        outside: what becomes of items outside a declared domain: "error" or "drop".
        plan: use this plan's sizes, schedule and hash seed.
        memory: bytes of client rows held in memory before they go to disk (1 GiB).
        top: the k of the evaluation (20).
        secure_sum: "ideal", a trusted server's sums, or the real protocol between simulated clients: "secagg" or
            "two-server"; by default what the plan says, else ideal.
        adversary: against whom "secagg" protects: "semi-honest" (the default) or "active".
        dropout: the share of each cohort's clients that drop out of it.
        max_corrupt: the share of a cohort that may collude with the server (0.05).
        max_cohort: the most clients that sum together; larger rounds are split.
    """

    domain: Domain | str | None = None
    rows: int | None = None
    width: int | None = None
    max_bytes: int | None = None
    num_rounds: int | None = None
    schedule: Schedule | str = "auto"
    max_items: int | None = None
    recovery: str = "auto"
    objective: str = "linf"
    confidence: float = CONFIDENCE
    intervals: str = "pointwise"
    seed: int | str | bytes | None = None
    evaluate: bool = False
    outside: str = "error"
    plan: Plan | None = None
    memory: int | None = None
    top: int = 20
    secure_sum: str | None = None
    adversary: str | None = None
    dropout: float = 0.0
    max_corrupt: float | None = None
    max_cohort: int | None = None

    def __post_init__(self) -> None:
        _ = self.summation
        for name in ("rows", "width", "max_bytes", "num_rounds", "max_items", "memory"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, _validate.integer(1, **{name: value}))
        if self.num_rounds is not None:
            _validate.integer(1, MAX_ROUNDS, num_rounds=self.num_rounds)
        _validate.integer(0, top=self.top)
        check_decoding(self.recovery, self.objective, self.confidence, self.intervals)
        if self.outside not in ("error", "drop"):
            raise InvalidInputError(f"outside must be error or drop, got {self.outside!r}")
        if self.width is not None and self.max_bytes is not None:
            raise InvalidInputError("width and max_bytes both size the sketch; give one of them")
        if self.schedule != "auto":
            object.__setattr__(self, "schedule", Schedule.parse(self.schedule))
        sized = [n for n in ("rows", "width", "max_bytes", "num_rounds", "max_items") if getattr(self, n) is not None]
        if self.plan is not None and (sized or self.schedule != "auto"):
            named = ", ".join(sized or ["schedule"])
            raise InvalidInputError(f"a plan already says {named}; leave {named} out, or the plan")

    @property
    def summation(self) -> Summation:
        """How the rounds are summed."""
        return Summation.asked(
            None if self.plan is None else self.plan.secure_sum,
            method=self.secure_sum,
            adversary=self.adversary,
            dropout=self.dropout,
            max_corrupt=self.max_corrupt,
            max_cohort=self.max_cohort,
        )


def estimate(items: Any, *, clients: Any = None, rounds: Any = None, counts: Any = None, **options: Any) -> Result:
    """Estimate how frequent each item is among simulated clients, through sketches.

    Args:
        items: list, NumPy array, Arrow array, pandas or Polars series of text or integers, one item a row; or a float
            array (n, 2) of latitudes and longitudes for a grid.
        clients: rows with equal values are one client; without it each row is a client.
        rounds: natural rounds; without it clients are split at random.
        counts: how many clients each row stands for; not with `clients`.
        options: the fields of `Request`.

    Returns:
        The estimates of all candidates.

    Raises:
        InvalidInputError: what cannot be estimated, and why.

    >>> words = ["the"] * 50 + ["of"] * 30 + ["and"] * 20
    >>> result = estimate(words, num_rounds=2, rows=5, width=256, seed=7, evaluate=True)
    >>> [(e.item, e.count) for e in result.top(3)]
    [('the', 50.0), ('of', 30.0), ('and', 20.0)]
    >>> result.evaluation.linf
    0.0
    """
    unknown = [name for name in options if name not in Request.__dataclass_fields__]
    if unknown:
        raise InvalidInputError(f"unknown option {unknown[0]!r}; known are {', '.join(Request.__dataclass_fields__)}")
    return run(from_items(items, clients=clients, rounds=rounds, counts=counts), Request(**options))


def run(source: Source, request: Request, progress: Progress | None = None) -> Result:
    """Run a campaign on a source.

    Args:
        source: where the items come from.
        request: what is asked.
        progress: called as (stage, done, total or None); stages are "read" (bytes), "encode" (rounds),
            "recover" (looks at candidates).

    Raises:
        InvalidInputError: data or options that cannot be used; nothing is written.
    """
    report = progress or (lambda *_: None)
    if request.confidence and request.intervals == "order":
        order_statistic(request.plan.rows if request.plan else request.rows or DEFAULT_ROWS, request.confidence)
    seed = request.plan.seed if request.plan is not None else campaign_seed(request.seed)
    summation = request.summation
    timings: dict[str, float] = {}
    with _timed(timings, "read"):
        tally, encoder = read(source, request, seed, report)
        rounds = tally.finish(individuals=summation.method != "ideal")
        domain = encoder.domain()
    sizes = [r.num_clients for r in rounds]
    if not sum(sizes):
        raise InvalidInputError("no client is left: every item is missing, outside the domain, or counted 0 times")
    keys = None if summation.method == "ideal" else make_keys(summation, sizes, _key_bytes(request.seed))
    plan = _plan(request, domain, sizes, seed, summation, keys)
    _check_memory(plan, len(rounds))
    account = None
    if keys is None:
        with _timed(timings, "encode"):
            sketches = [sketch for sketch in encode(plan, domain, rounds, report) if sketch.num_clients]
    else:
        with _timed(timings, "sum"):
            rng = _simulation_rng(seed, request).spawn(1)[0]
            sketches, rounds, account = sum_rounds(plan, rounds, summation, keys, rng, report)
    truth = true_counts(domain, rounds) if request.evaluate else None
    result = Result(
        plan,
        domain,
        sketches,
        truth=truth,
        warnings=_warnings(source, domain, tally, plan),
        recovery=request.recovery,
        objective=request.objective,
        confidence=request.confidence,
        intervals=request.intervals,
        missing=tally.missing,
        secure_sum=account,
        timings=timings,
    )
    with _timed(timings, "recover"):
        result.prepare(report)
    if request.evaluate:
        with _timed(timings, "evaluate"):
            result.evaluate(request.top)
    result.timings = timings
    return result


def campaign_seed(seed: int | str | bytes | None) -> bytes:
    """Return the 32 bytes from which a campaign's hashes are derived: of a seed that a person chose, or new ones.

    >>> campaign_seed(1) == campaign_seed("1"), campaign_seed(None) == campaign_seed(None)
    (True, False)
    """
    if seed is None:
        return secrets.token_bytes(32)
    raw = seed if isinstance(seed, bytes) else str(seed).encode()
    return hashlib.shake_256(b"fedtally/1/campaign\x00" + raw).digest(32)


def _key_bytes(seed: int | str | bytes | None) -> Callable[[int], bytes]:
    """Return where the keys of a simulation come from: a seed that was chosen, else the operating system."""
    if seed is None:
        return secrets.token_bytes
    counted = itertools.count()
    chosen = b"fedtally/1/simulated keys\x00" + campaign_seed(seed)
    return lambda size: hashlib.shake_256(chosen + next(counted).to_bytes(8, "little")).digest(size)


def _simulation_rng(seed: bytes, request: Request) -> np.random.Generator:
    """Return the generator of the simulated draws (rounds, items of a client), which no hash depends on."""
    chosen = seed if request.plan is None or request.seed is None else campaign_seed(request.seed)
    return np.random.default_rng(
        int.from_bytes(hashlib.shake_256(b"fedtally/1/simulation\x00" + chosen).digest(32), "little")
    )


def read(
    source: Source, request: Request, seed: bytes, report: Callable[..., None]
) -> tuple[Tally, Declared | FromInput]:
    """Return the source's rows, counted, and what encoded them."""
    domain = _declared(request.domain, source)
    encoder: Declared | FromInput = FromInput(seed) if domain is None else Declared(domain, request.outside)
    asked = request.plan.num_rounds if request.plan is not None else request.num_rounds
    max_items = request.plan.max_items if request.plan is not None else request.max_items or 1
    tally: Tally | None = None
    for batch in source.batches():
        if tally is None:
            if batch.rounds is not None and request.num_rounds is not None:
                raise InvalidInputError("a round column already says the rounds; leave num_rounds (--rounds) out")
            if (request.max_items or 1) > 1 and batch.clients is None:
                raise InvalidInputError(
                    "max_items bounds the rows of one client, and here each row or count is a client of one item; "
                    "name the clients (--client), or leave max_items out"
                )
            natural = batch.rounds is not None
            tally = Tally(
                encoder,
                None if natural else asked or 1,
                max_items,
                _simulation_rng(seed, request),
                request.memory or DEFAULT_MEMORY,
            )
        tally.add(batch)
        report("read", batch.bytes_read, source.size_bytes)
    if tally is None:
        raise InvalidInputError(f"{source.name} is empty: it has no rows")
    return tally, encoder


def _declared(domain: Domain | str | None, source: Source) -> Domain | None:
    if domain is None:
        return None if source.synthetic_size is None else IntegerRange(1, source.synthetic_size)
    if isinstance(domain, Domain):
        return domain
    if not isinstance(domain, str):
        raise InvalidInputError(
            f"domain must be a Domain such as fedtally.Dictionary(...), or text, got {type(domain).__name__}"
        )
    return None if domain == "input" else parse(domain)


def _plan(
    request: Request, domain: Domain, sizes: Sequence[int], seed: bytes, summation: Summation, keys: Keys | None
) -> Plan:
    """Return the plan that is asked for, fitted to the clients that came: so many in each round."""
    if request.plan is not None:
        return _checked_plan(request.plan, domain, sizes, summation, keys)
    rows, max_items, max_bytes = request.rows or DEFAULT_ROWS, request.max_items or 1, request.max_bytes
    agreed = None if keys is None else partial(terms, summation, keys, sizes, max_items)
    if request.width is not None:
        width = request.width
    elif agreed is not None:
        width = widest(agreed, rows, max_bytes or DEFAULT_MAX_BYTES)
    else:
        width = width_for_bytes(max_bytes or DEFAULT_MAX_BYTES, rows, max(sizes), max_items)
    schedule = request.schedule if request.schedule != "auto" else "shared" if len(sizes) == 1 else "hybrid"
    return Plan(
        rows,
        width,
        Schedule.parse(schedule),
        len(sizes),
        sum(sizes),
        max(sizes),
        domain.describe(),
        max_items,
        seed,
        None if agreed is None else agreed(rows * width),
    )


def _checked_plan(plan: Plan, domain: Domain, sizes: Sequence[int], summation: Summation, keys: Keys | None) -> Plan:
    if plan.num_rounds != len(sizes):
        raise InvalidInputError(f"the plan has {plan.num_rounds} rounds, the input {len(sizes)}")
    if max(sizes) > plan.cohort:
        raise InvalidInputError(
            f"the plan allows {plan.cohort:,} clients in a round, the input has {max(sizes):,}; its sums could overflow"
        )
    if plan.domain["public"] and plan.domain != domain.describe():
        raise InvalidInputError(
            f"the plan is for the domain {_shown(plan.domain)}, the input is read as {_shown(domain.describe())}; "
            "declare the same domain (--domain)"
        )
    if keys is not None:
        if plan.secure_sum is None:
            agreed = terms(summation, keys, sizes, plan.max_items, plan.rows * plan.width)
        else:
            agreed = rekeyed(plan.secure_sum, summation, keys, sizes)
        plan = replace(plan, secure_sum=agreed)
    return plan if plan.domain["public"] else replace(plan, domain=domain.describe())


def _shown(description: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in description.items())


def encode(
    plan: Plan, domain: Domain, rounds: Sequence[RoundTally], report: Callable[..., None]
) -> Iterator[CountSketch]:
    """Yield the sketch that lands in each round: the ideal secure sum."""
    for number, tally in enumerate(rounds):
        sketch = CountSketch(plan.spec, number)
        if domain.first_id is not None and len(tally.ids) * 4 > domain.size:
            dense = np.zeros(domain.size, np.int64)
            dense[(tally.ids - np.uint64(domain.first_id)).astype(np.int64)] = tally.counts
            sketch.add_range(domain.first_id, dense, tally.num_clients)
        else:
            sketch.add(tally.ids, tally.counts, tally.num_clients)
        report("encode", number + 1, len(rounds))
        yield sketch


def _check_memory(plan: Plan, num_rounds: int) -> None:
    needed, limit = num_rounds * plan.rows * plan.width * _BYTES_PER_COUNTER, physical_memory() // 2
    if needed > limit:
        raise MemoryLimitError(
            f"{num_rounds:,} sketches of {plan.rows} x {plan.width:,} counters need about {needed / 1e9:,.1f} GB to "
            f"decode, more than half of the memory, {limit / 1e9:,.1f} GB; fewer rounds or a smaller width need less"
        )


def true_counts(domain: Domain, rounds: Sequence[RoundTally]) -> Truth:
    """Return the true counts by position in the domain."""
    ids = np.concatenate([r.ids for r in rounds])
    counts = np.concatenate([r.counts for r in rounds])
    if domain.first_id is not None:
        positions = (ids - np.uint64(domain.first_id)).astype(np.int64)
    else:
        all_ids = domain.ids(0, domain.size)
        order = np.argsort(all_ids)
        found = np.minimum(np.searchsorted(all_ids, ids, sorter=order), domain.size - 1)
        positions = order[found]
        candidates = all_ids[positions] == ids
        positions, counts = positions[candidates], counts[candidates]
    distinct, inverse = np.unique(positions, return_inverse=True)
    totals = np.zeros(len(distinct), np.int64)
    np.add.at(totals, inverse, counts)
    return Truth(distinct, totals)


def _warnings(source: Source, domain: Domain, tally: Tally, plan: Plan) -> list[str]:
    notes = []
    if source.about:
        notes.append(source.about)
    if not domain.public:
        notes.append(
            "the candidate items are the distinct items of the input itself: "
            "in a real campaign they must be public, declared beforehand"
        )
    if domain.collision_probability:
        notes.append(
            "items are hashed to 61 bits: "
            f"two candidates share an id with probability at most {domain.collision_probability:.1g}"
        )
    if tally.missing:
        notes.append(f"dropped for want of an item, client or round: {tally.missing:,} of the rows")
    if tally.outside:
        notes.append(f"dropped for being outside the domain: {tally.outside:,} of the rows")
    if plan.domain_size <= plan.rows * plan.width:
        notes.append("a one-hot vector is no larger than this sketch, and exact: give the sketch fewer bytes")
    if plan.rows % 2 == 0:
        notes.append(
            f"{plan.rows} rows: the median is the mean of the two middle rows; odd numbers resist collisions better"
        )
    return notes


@contextmanager
def _timed(timings: dict[str, float], stage: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    timings[stage] = time.perf_counter() - start
