"""The study behind `fedtally simulate`: schedules and widths compared on one population.

The items are read once. Every repeat draws anew the round of each client and the hash seed. Within
a repeat all methods and widths see the same rounds and the same seed, so that their differences are
not those of the draws. A client holds one item, drawn from its own where it has several. The errors
are those of all candidates against the truth among all clients.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedtally import kernels
from fedtally.answer.evaluation import Truth
from fedtally.answer.exports import check_export_path, write_table
from fedtally.answer.part import Progress
from fedtally.base import validate
from fedtally.base.encoding import Encoding
from fedtally.campaign.books import MemoryBooks
from fedtally.campaign.server import FrequencyServer
from fedtally.crypto.keys import KEY_BYTES, Secret
from fedtally.domain import Domain
from fedtally.errors import InvalidInputError, opt
from fedtally.plan import Plan
from fedtally.plan.parts.summation import Summation
from fedtally.plan.privacy import Privacy, Random, resolve_privacy
from fedtally.plan.rules import check, given, unmet
from fedtally.privacy import NOT_PRIVATE
from fedtally.recovery.decoders import SIMPLEST
from fedtally.recovery.decoding import Decoding, check_enumerable
from fedtally.recovery.linear_system import BLOCK, Summed, ask, ids_between
from fedtally.secagg.config import SecureSum
from fedtally.simulation.census import read
from fedtally.simulation.randomness import campaign_seed, key_bytes
from fedtally.simulation.round_sums import encode
from fedtally.simulation.round_tally import RoundTally, split
from fedtally.simulation.simulation import Simulation
from fedtally.simulation.truth import true_counts
from fedtally.sketch import CountSketch, Schedule
from fedtally.sources import Source
from fedtally.studies import own

EXACT = ("one-hot", "binary")  # methods without an error of hashing: only their bytes differ
F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Study:
    """The methods and widths that are compared.

    Args:
        methods: schedules: shared, fresh, hybrid, batched:B, or `module:Class`, one of one's own
            (`own.OwnSchedule`; without epsilon). "one-hot" and "binary", which are exact and have a
            cost alone, are always added.
        widths: counters per row; each schedule is tried with each.
        rows: the rows of the sketches.
        num_rounds: the rounds over which the clients are split.
        repeats: the number of repeats.
        recovery: the decoder of the sums: the name of one of ours for sketches, or `module:Class`,
            one of one's own (`own.OwnDecoder`).
        epsilon: the epsilon (zero-out) for which noise is added. None: no noise.
        delta: the delta. None: 1e-6, or a tenth of one over the number of clients if that is less.
        trust: "central", which noises the sum of the rounds that share their hashes, or
            "distributed", which noises every round by the clients' shares.
        seed: the seed of all draws; from the operating system if None.

    >>> Study(methods=("batched:4",), num_rounds=2)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    fedtally.errors.InvalidInputError: schedule batched:B: batches must be at most the number of ...
    """

    methods: tuple[str, ...] = ("hybrid", "fresh", "shared", *EXACT)
    widths: tuple[int, ...] = (200, 1000)
    rows: int = 5
    num_rounds: int = 10
    repeats: int = 10
    recovery: str = SIMPLEST[Encoding.SKETCH]
    epsilon: float | None = None
    delta: float | None = None
    trust: str | None = None
    seed: int | str | bytes | None = None

    def __post_init__(self) -> None:
        validate.integer(1, kernels.MAX_ROWS, rows=self.rows)
        validate.integer(1, 1 << 20, num_rounds=self.num_rounds)
        validate.integer(1, 1 << 20, repeats=self.repeats)
        for width in self.widths:
            validate.integer(1, kernels.MAX_WIDTH, width=width)
        if own.is_own(self.recovery):
            own.load(self.recovery, "at")  # refuses now what cannot be imported
        else:
            Decoding(self.recovery).check_rows(self.rows)
        check(given(delta=self.delta, trust=self.trust), unmet(epsilon=self.epsilon is None))
        _ = self.privacy  # refuses now, and not after the data were read, what does not go together
        for method in self.methods:
            if own.is_own(method):
                if self.epsilon is not None:
                    raise InvalidInputError(
                        f"{opt.epsilon} needs a schedule whose noise is proven (shared, fresh,"
                        f" hybrid or batched:B), got {method}: leave it or {opt.epsilon} out"
                    )
                own.OwnRounds(method, self.num_rounds)  # refuses now what cannot be imported
            elif method not in EXACT:
                _schedule(method).num_batches(self.num_rounds)  # refuses more batches than rounds
        for name, values in (("methods", self.methods), ("widths", self.widths)):
            if not values or len(set(values)) < len(values):
                raise InvalidInputError(
                    f"{name} must be distinct, and at least one, got"
                    f" {', '.join(map(str, values)) or 'none'}"
                )

    @cached_property
    def privacy(self) -> Privacy | None:
        """The differential privacy whose noise is added, or None."""
        if self.epsilon is None:
            return None
        return resolve_privacy(
            SecureSum.IDEAL,
            epsilon=self.epsilon,
            delta=self.delta,
            trust=self.trust,
        )

    @property
    def cells(self) -> list[tuple[str, int | None]]:
        """Every schedule with every width, then the exact methods, which have no width.

        The exact methods show what bytes buy.
        """
        schedules = [method for method in self.methods if method not in EXACT]
        return [
            *((method, width) for method in schedules for width in self.widths),
            *((method, None) for method in EXACT),
        ]


class Measurement(NamedTuple):
    """The errors of all candidates' frequencies in one repeat.

    `linf` is the largest, `l2` the root of the sum of squares. Of an open domain: `strings` are
    frequent, of which a share `recall` is named; of the `named` ones `wrong` are of nobody. Where
    campaigns may end early, `rounds` took place.
    """

    method: str
    width: int | None
    repeat: int
    bytes_per_client: int
    linf: float
    l2: float
    strings: int | None = None
    recall: float | None = None
    named: int | None = None
    wrong: int | None = None
    rounds: int | None = None


# Fields that only an open domain has, and campaigns that may end early: by the first of them.
_ABSENT = {"strings": ("strings", "recall", "named", "wrong"), "rounds": ("rounds",)}


class Spread(NamedTuple):
    """The spread of a figure over the repeats."""

    mean: float
    median: float
    q90: float


class Comparison(NamedTuple):
    """The figures of a method and width.

    `secure_sum` says whether secure summation can hide a client's message.
    """

    method: str
    width: int | None
    bytes_per_client: int
    secure_sum: bool
    linf: Spread
    l2: Spread


@dataclass(frozen=True)
class StudyResult:
    """The measurements of a study, and its population."""

    study: Study
    domain: Domain
    num_clients: int
    missing: int
    measurements: tuple[Measurement, ...]

    def comparisons(self) -> list[Comparison]:
        """Return mean, median and 90 % quantile of the errors of every method and width."""
        return [self._comparison(method, width) for method, width in self.study.cells]

    def _comparison(self, method: str, width: int | None) -> Comparison:
        mine = [m for m in self.measurements if (m.method, m.width) == (method, width)]
        # A repeat draws its rounds, and its largest one decides on the bits of a counter.
        cost = max(m.bytes_per_client for m in mine)
        return Comparison(
            method,
            width,
            cost,
            method != "binary",
            _spread([m.linf for m in mine]),
            _spread([m.l2 for m in mine]),
        )

    def to_arrow(self) -> Any:
        """Return a tidy `pyarrow.Table`: one row for each method, width and repeat."""
        study = self.study
        settings = {
            "rows": study.rows,
            "num_rounds": study.num_rounds,
            "num_clients": self.num_clients,
        }
        return tidy(self.measurements, study.recovery, study.epsilon, settings)

    def export(self, path: str | os.PathLike[str]) -> None:
        """Write the tidy table to a file of the formats of `Result.export`, whole or not at all."""
        check_export_path(path)
        write_table(self.to_arrow(), path)


def tidy(
    measurements: Sequence[Measurement],
    recovery: str,
    epsilon: float | None,
    settings: Mapping[str, int],
) -> Any:
    """Return a `pyarrow.Table` with a row for each measurement, and the settings in each row."""
    import pyarrow as pa

    columns = {name: [getattr(m, name) for m in measurements] for name in Measurement._fields}
    for first, others in _ABSENT.items():
        if not any(one is not None for one in columns[first]):
            columns = {name: values for name, values in columns.items() if name not in others}
    table = pa.table(columns | {"width": pa.array(columns["width"], pa.int64())})
    table = table.append_column("recovery", pa.array([recovery] * table.num_rows, pa.string()))
    table = table.append_column("epsilon", pa.array([epsilon] * table.num_rows, pa.float64()))
    if epsilon is not None:
        table = table.append_column("note", pa.array([NOT_PRIVATE] * table.num_rows))
    for name, value in settings.items():
        table = table.append_column(name, pa.array([value] * table.num_rows, pa.int64()))
    return table


def run(
    source: Source,
    study: Study,
    domain: Domain | str | None = None,
    outside: str = "error",
    progress: Progress | None = None,
) -> StudyResult:
    """Run a study on a source.

    Args:
        source: the source of the items.
        study: the methods and widths to compare.
        domain: the candidates, as in `Request`.
        outside: what happens to items outside the domain, as in `Simulation`.
        progress: called as (stage, done, total or None); stages are "read" (bytes) and "simulate"
            (sketched campaigns).

    Raises:
        InvalidInputError: data that cannot be used.

    >>> from fedtally.sources import from_items
    >>> words = from_items(["the", "of"], counts=[60, 40])
    >>> study = Study(methods=("hybrid",), widths=(256,), num_rounds=3, repeats=2, seed=1)
    >>> found = run(words, study)
    >>> [(c.method, c.bytes_per_client, c.linf.median) for c in found.comparisons()]
    [('hybrid', 1120, 0.0), ('one-hot', 2, 0.0), ('binary', 1, 0.0)]
    """
    report = progress or (lambda *_: None)
    seed = campaign_seed(study.seed)
    tally, encoder = read(source, Simulation.of(domain=domain, outside=outside), seed, report)
    [everybody] = tally.finish()
    if not everybody.num_clients:
        raise InvalidInputError(
            "no client is left: every item is missing, outside the domain, or counted 0 times"
        )
    candidates = encoder.domain()
    population = _Population(candidates, everybody, true_counts(candidates, [everybody]))
    total = study.repeats * len(study.cells)
    measurements = []
    for measurement in _measurements(
        study, population, np.random.default_rng(int.from_bytes(seed, "little"))
    ):
        measurements.append(measurement)
        report("simulate", len(measurements), total)
    missing = tally.dropped.incomplete
    return StudyResult(study, candidates, everybody.num_clients, missing, tuple(measurements))


class _Population(NamedTuple):
    domain: Domain
    everybody: RoundTally
    truth: Truth


def _measurements(
    study: Study, population: _Population, rng: np.random.Generator
) -> Iterator[Measurement]:
    random = key_bytes(study.seed, b"noise")
    for repeat in range(study.repeats):
        rounds = split(population.everybody, study.num_rounds, rng)
        seed = rng.bytes(32)  # one for all methods and widths, so that they differ by nothing else
        for method, width in study.cells:
            if width is None:
                # One counter: of this plan only the bytes of the exact methods are asked, which do
                # not depend on the sketch, and the noise of one row.
                plan = _planned(study, rounds, seed, population, (1, "shared", 1))
                cost, noise = plan.binary_bytes_per_client, np.empty(0)
                if method == "one-hot":
                    cost = plan.one_hot_bytes_per_client
                    noise = _one_hot_noise(plan, population, rounds, random)
                errors = _exact_errors(population, rounds, noise)
                yield Measurement(method, None, repeat, cost, *errors)
                continue
            # The bytes of a client do not depend on the schedule.
            schedule = "shared" if own.is_own(method) else method
            plan = _planned(study, rounds, seed, population, (study.rows, schedule, width))
            if own.is_own(method):
                landed = own.OwnRounds(method, study.num_rounds).land(plan.spec, rounds)
            else:
                landed = [_landed(plan, population, rounds, random)]
            errors = _errors(landed, population, study.recovery)
            yield Measurement(method, width, repeat, plan.bytes_per_client, *errors)


def _planned(
    study: Study,
    rounds: Sequence[RoundTally],
    seed: bytes,
    population: _Population,
    size: tuple[int, str, int],
) -> Plan:
    """Return the plan of a cell.

    Args:
        study: the study.
        rounds: the clients of each round.
        seed: 32 bytes, the seed of the hashes.
        population: the candidates and the clients of all rounds.
        size: the rows, the schedule and the counters of a row.
    """
    rows, schedule, width = size
    sizes = [part.num_clients for part in rounds]
    name, cohort, privacy = _schedule(schedule), max(sizes), None
    if (asked := study.privacy) is not None:
        privacy = asked.make_terms(
            rows=rows,
            width=width,
            schedule=name,
            max_items=1,
            participations=1,
            num_clients=sizes,
            most_clients=cohort,
            honest_survivors=Summation().sharers(asked.noise_by, sizes),
            not_private=True,  # a study compares with the truth
        )
    clients, parameters = population.everybody.num_clients, population.domain.describe()
    fixed = (clients, cohort, parameters, 1, seed)
    return Plan(rows, width, name, study.num_rounds, *fixed, privacy=privacy)


def _landed(
    plan: Plan, population: _Population, rounds: Sequence[RoundTally], random: Random
) -> list[CountSketch]:
    # through the door of real campaigns, so that a study has their noise; kept nowhere
    server = FrequencyServer(plan, MemoryBooks())
    for sketch in encode(plan, population.domain, rounds, lambda *_: None):
        if sketch.num_clients:  # small populations leave rounds empty, and these land nothing
            server.land_plain(sketch)
    return server.release(random)


def _errors(
    landed: Sequence[Sequence[CountSketch]], population: _Population, recovery: str
) -> tuple[float, float]:
    """Return the largest error, and the root of the sum of squares, of all frequencies.

    Args:
        landed: the sums of campaigns with hashes of their own, whose estimated counts add up.
        population: the candidates and the truth.
        recovery: the decoder.
    """
    domain = population.domain
    check_enumerable(domain)
    decoder = Summed([own.make_decoder(recovery, sketches, domain) for sketches in landed])
    num_clients = sum(sketch.num_clients for sketches in landed for sketch in sketches)
    largest, squares = 0.0, 0.0
    for start in range(0, domain.size, BLOCK):
        stop = min(start + BLOCK, domain.size)
        counts = ask(decoder, ids_between(domain, start, stop))
        errors = (counts - population.truth.within(start, stop)) / num_clients
        largest = max(largest, float(np.abs(errors).max()))
        squares += float(errors @ errors)
    return largest, squares**0.5


def _exact_errors(
    population: _Population, rounds: Sequence[RoundTally], noise: F64
) -> tuple[float, float]:
    """Return the errors of the sum of all one-hot vectors.

    The binary messages add up to the same sum.

    Args:
        population: the population of the study.
        rounds: the same clients, in rounds.
        noise: the noise of every candidate's count; empty for none.
    """
    counted = true_counts(population.domain, rounds)
    # All zeros, since every client is in one of the rounds; the noise then is the error.
    differences = counted.at(population.truth.positions) - population.truth.counts
    errors = np.concatenate([differences, noise]) / population.everybody.num_clients
    return float(np.abs(errors).max(initial=0.0)), float(np.sqrt(errors @ errors))


def _one_hot_noise(
    plan: Plan, population: _Population, rounds: Sequence[RoundTally], random: Random
) -> F64:
    """Return the noise that makes the sum of one-hot vectors as private; none without privacy."""
    # a one-hot vector changes one counter by 1, as a sketch of one row does
    if not plan.protection.is_charged:
        return np.empty(0)
    opened = [part.num_clients for part in rounds if part.num_clients]
    if plan.protection.of_release() is not None:
        opened = [sum(opened)]  # one-hot vectors of all rounds are added up first
    total = np.zeros(population.domain.size)
    for distribution in chain.from_iterable(map(plan.protection.of_sum, opened)):
        total += distribution.draw(Secret(random(KEY_BYTES)), len(total))
    return total


def _spread(values: Sequence[float]) -> Spread:
    return Spread(float(np.mean(values)), float(np.median(values)), float(np.quantile(values, 0.9)))


def _schedule(method: str) -> Schedule:
    try:
        return Schedule.parse(method)
    except InvalidInputError as error:
        raise InvalidInputError(
            "methods are schedules (shared, fresh, hybrid, batched:B, or module:Class), one-hot and"
            f" binary, got {method!r}"
            + validate.did_you_mean(method, ("shared", "fresh", "hybrid", "batched", *EXACT))
        ) from error
