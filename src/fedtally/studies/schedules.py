"""The study behind `fedtally simulate`: it compares schedules and widths on one population.

The items are read once. Every repeat draws new rounds of clients and a new hash seed. Within a
repeat all methods and widths use the same rounds and the same seed, so that differences between
them do not come from these draws. A client holds one item; if it has several, one is drawn at
random. Errors are those of all candidates, against the truth among all clients.
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

EXACT = ("one-hot", "binary")  # methods without hashing error: only their bytes differ
F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Study:
    """The methods and widths to compare, and the settings of the study.

    Args:
        methods: the schedules: shared, fresh, hybrid, batched:B, or `module:Class`, a user's
            schedule (`own.OwnSchedule`; without epsilon). The exact methods "one-hot" and "binary"
            are always added; only their cost differs.
        widths: the numbers of counters per row; each schedule is tried with each width.
        rows: the number of rows of the sketches.
        num_rounds: the number of rounds over which the clients are split.
        repeats: the number of repeats.
        recovery: the decoder of the sums: the name of one of fedtally's for sketches, or
            `module:Class`, a user's decoder (`own.OwnDecoder`).
        epsilon: the epsilon (zero-out) for which noise is added. None: no noise.
        delta: the delta of the guarantee. None: 1e-6, or 0.1 / number of clients if that is less.
        trust: "central": noise is added to the sum of the rounds that share their hashes.
            "distributed": the clients' shares of noise are added in every round.
        seed: the seed of all random draws; None: from the operating system.

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
            own.load(self.recovery, "at")  # fails now if it cannot be imported
        else:
            Decoding(self.recovery).check_rows(self.rows)
        check(given(delta=self.delta, trust=self.trust), unmet(epsilon=self.epsilon is None))
        _ = self.privacy  # fails now, before data are read, if settings do not fit together
        for method in self.methods:
            if own.is_own(method):
                if self.epsilon is not None:
                    raise InvalidInputError(
                        f"{opt.epsilon} needs a schedule whose noise is proven (shared, fresh,"
                        f" hybrid or batched:B), got {method}: leave it or {opt.epsilon} out"
                    )
                own.OwnRounds(method, self.num_rounds)  # fails now if it cannot be imported
            elif method not in EXACT:
                _schedule(method).num_batches(self.num_rounds)  # fails if there are too many
        for name, values in (("methods", self.methods), ("widths", self.widths)):
            if not values or len(set(values)) < len(values):
                raise InvalidInputError(
                    f"{name} must be distinct, and at least one, got"
                    f" {', '.join(map(str, values)) or 'none'}"
                )

    @cached_property
    def privacy(self) -> Privacy | None:
        """The differential privacy whose noise is added; None: no noise."""
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
        """Every pair of schedule and width, then the exact methods, whose width is None.

        The exact methods show how many bytes an exact answer costs.
        """
        schedules = [method for method in self.methods if method not in EXACT]
        return [
            *((method, width) for method in schedules for width in self.widths),
            *((method, None) for method in EXACT),
        ]


class Measurement(NamedTuple):
    """The errors of all candidates' frequencies in one repeat of a method and width.

    `linf` is the largest absolute error, and `l2` the root of the sum of squared errors. Only in an
    open domain: `strings` is the number of frequent strings, `recall` the share of them that are
    named, `named` the number of names, and `wrong` the number of wrong ones (see `NameEvaluation`).
    Only if campaigns may end early: `rounds` is the number of rounds that took place.
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


# Optional fields: those of an open domain, and those of campaigns that may end early. If the first
# field of a group is None everywhere, the table leaves out the group.
_ABSENT = {"strings": ("strings", "recall", "named", "wrong"), "rounds": ("rounds",)}


class Spread(NamedTuple):
    """The spread of a quantity over the repeats."""

    mean: float
    median: float
    q90: float


class Comparison(NamedTuple):
    """The errors and bytes of a method and width, over all repeats.

    `secure_sum` is whether secure summation can hide a client's message.
    """

    method: str
    width: int | None
    bytes_per_client: int
    secure_sum: bool
    linf: Spread
    l2: Spread


@dataclass(frozen=True)
class StudyResult:
    """The measurements of a study, and the population that it used.

    `missing` is the number of incomplete rows, which were left out.
    """

    study: Study
    domain: Domain
    num_clients: int
    missing: int
    measurements: tuple[Measurement, ...]

    def comparisons(self) -> list[Comparison]:
        """Return mean, median and 90 % quantile of the errors, for every method and width."""
        return [self._comparison(method, width) for method, width in self.study.cells]

    def _comparison(self, method: str, width: int | None) -> Comparison:
        mine = [m for m in self.measurements if (m.method, m.width) == (method, width)]
        # Repeats have different rounds, and the largest round decides how many bits a counter has.
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
        """Write the tidy table to a .csv or .parquet file, whole or not at all."""
        check_export_path(path)
        write_table(self.to_arrow(), path)


def tidy(
    measurements: Sequence[Measurement],
    recovery: str,
    epsilon: float | None,
    settings: Mapping[str, int],
) -> Any:
    """Return a `pyarrow.Table` with a row for each measurement; `settings` become columns."""
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
        outside: how to treat items outside the domain, as in `Simulation`.
        progress: called as (stage, done, total or None). The stage "read" counts bytes, and
            "simulate" counts simulated campaigns.

    Raises:
        InvalidInputError: the data cannot be used.

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
        seed = rng.bytes(32)  # the same seed for all methods and widths, for a fair comparison
        for method, width in study.cells:
            if width is None:
                # A plan with one counter: it is only used for the bytes of the exact methods, which
                # do not depend on the sketch, and for the noise of one row.
                plan = _planned(study, rounds, seed, population, (1, "shared", 1))
                cost, noise = plan.binary_bytes_per_client, np.empty(0)
                if method == "one-hot":
                    cost = plan.one_hot_bytes_per_client
                    noise = _one_hot_noise(plan, population, rounds, random)
                errors = _exact_errors(population, rounds, noise)
                yield Measurement(method, None, repeat, cost, *errors)
                continue
            # The bytes that a client sends do not depend on the schedule.
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
    """Return the plan for one method and width.

    Args:
        study: the study.
        rounds: the items of the clients of each round.
        seed: 32 bytes, the seed of the hashes.
        population: the candidates, and the clients of all rounds together.
        size: the number of rows, the schedule, and the counters of a row.
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
            not_private=True,  # a study compares with the truth, so its output is not private
        )
    clients, parameters = population.everybody.num_clients, population.domain.describe()
    fixed = (clients, cohort, parameters, 1, seed)
    return Plan(rows, width, name, study.num_rounds, *fixed, privacy=privacy)


def _landed(
    plan: Plan, population: _Population, rounds: Sequence[RoundTally], random: Random
) -> list[CountSketch]:
    # Use the server of real campaigns, so that the noise is the same as there. Nothing is stored.
    server = FrequencyServer(plan, MemoryBooks())
    for sketch in encode(plan, population.domain, rounds, lambda *_: None):
        if sketch.num_clients:  # in a small population some rounds are empty and have no sum
            server.land_plain(sketch)
    return server.release(random)


def _errors(
    landed: Sequence[Sequence[CountSketch]], population: _Population, recovery: str
) -> tuple[float, float]:
    """Return the errors of all frequencies: the largest, and the root of the sum of squares.

    Args:
        landed: the sums, grouped by campaigns with different hashes, whose estimated counts add up.
        population: the candidates and the true counts.
        recovery: the name of the decoder.
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
    """Return the two errors (as `_errors` does) of the sum of all one-hot vectors.

    The binary messages give the same counts.

    Args:
        population: the population of the study.
        rounds: the items of the same clients in each round.
        noise: the noise of every candidate's count; empty: no noise.
    """
    counted = true_counts(population.domain, rounds)
    # All differences are 0, since every client is in one of the rounds: the error is the noise.
    differences = counted.at(population.truth.positions) - population.truth.counts
    errors = np.concatenate([differences, noise]) / population.everybody.num_clients
    return float(np.abs(errors).max(initial=0.0)), float(np.sqrt(errors @ errors))


def _one_hot_noise(
    plan: Plan, population: _Population, rounds: Sequence[RoundTally], random: Random
) -> F64:
    """Return the noise that makes the sum of one-hot vectors as private as the plan's sums.

    It is empty without privacy.
    """
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
