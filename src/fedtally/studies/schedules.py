"""The study behind `fedtally simulate`: it compares schedules and widths on one population.

A schedule says which rounds use the same hashes, and a width is the number of counters in a row of
the sketch.

The items are read only once. Each repeat draws new rounds of clients and a new hash seed. Within a
repeat, all methods and widths use the same rounds and the same seed. So these draws cause no
differences between methods.

A client has one item; if it has several in the source, one of them is drawn at random. An error is
the difference between the estimated and the true frequency of a candidate. True frequencies are
counted over all clients.
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
from fedtally.recovery.decoders import SIMPLEST, Recovery
from fedtally.recovery.decoding import check_enumerable
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

EXACT = ("one-hot", "binary")  # methods whose counts are exact, up to noise in those of "one-hot"
F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Study:
    """The methods and widths to compare, and the settings of the study.

    Args:
        methods: the schedules: shared, fresh, hybrid or batched:B. Without epsilon also
            `module:Class`, a schedule that a user wrote (`own.OwnSchedule`). The exact methods
            "one-hot" and "binary" are always added, and need not be named.
        widths: the numbers of counters in a row of the sketch. Each schedule is tried with each
            width.
        rows: the number of rows of the sketches.
        num_rounds: the number of rounds over which the clients are split.
        repeats: the number of repeats.
        recovery: the decoder of the sums: the name of a decoder for sketches, or `module:Class`, a
            decoder that a user wrote (`own.OwnDecoder`).
        epsilon: the epsilon (for the relation zero-out) for which noise is added. None: no noise.
        delta: the delta of the guarantee. None: 1e-6, or 0.1 / number of clients if that is
            smaller.
        trust: who adds the noise. "central": the server, once to the sum of all rounds that use the
            same hashes. "distributed": the clients, so there is noise in every round. None: the
            server.
        seed: the seed of all random draws; None: a seed from the operating system.

    Raises:
        InvalidInputError: the settings do not fit together, or a value is out of bounds.

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
            own.load(self.recovery, "at")  # raises an error if it cannot be imported
        else:
            # "auto" is an error here: a study compares the errors of one decoder.
            decoder = Recovery.parse(self.recovery)
            decoder.check_encoding(Encoding.SKETCH)
            decoder.check_rows(self.rows)
        check(given(delta=self.delta, trust=self.trust), unmet(epsilon=self.epsilon is None))
        # Raises an error here, before data are read, if settings do not fit together.
        _ = self.privacy
        for method in self.methods:
            if own.is_own(method):
                if self.epsilon is not None:
                    raise InvalidInputError(
                        f"{opt.epsilon} needs a schedule whose noise is proven (shared, fresh,"
                        f" hybrid or batched:B), got {method}: leave it or {opt.epsilon} out"
                    )
                own.OwnRounds(method, self.num_rounds)  # raises an error if it cannot be imported
            elif method not in EXACT:
                # Raises an error if there are too many batches.
                _schedule(method).num_batches(self.num_rounds)
        for name, values in (("methods", self.methods), ("widths", self.widths)):
            if not values or len(set(values)) < len(values):
                raise InvalidInputError(
                    f"{name} must be distinct, and at least one, got"
                    f" {', '.join(map(str, values)) or 'none'}"
                )

    @cached_property
    def privacy(self) -> Privacy | None:
        """The differential privacy for which noise is added; None: there is no noise."""
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
        """All pairs of a schedule and a width, and then the exact methods with the width None.

        The exact methods show how many bytes an exact answer costs.
        """
        schedules = [method for method in self.methods if method not in EXACT]
        return [
            *((method, width) for method in schedules for width in self.widths),
            *((method, None) for method in EXACT),
        ]


class Measurement(NamedTuple):
    """The errors of one repeat of a method and width, over the frequencies of all candidates.

    Attributes:
        method: the schedule, or "one-hot" or "binary".
        width: the number of counters in a row; None for "one-hot" and "binary".
        repeat: the number of the repeat, from 0.
        bytes_per_client: the bytes that a client sends.
        linf: the largest absolute error. In an open domain (all strings), strings with the same
            hash are counted together, see `NameEvaluation`.
        l2: the root of the sum of squared errors.
        strings: the number of frequent strings; None unless the domain is open.
        recall: the share of the frequent strings that were named. None unless the domain is open,
            or if no string is frequent.
        named: the number of names that were read from the sums; None unless the domain is open.
        wrong: the number of these names that are wrong (see `NameEvaluation`). None unless the
            domain is open.
        rounds: the number of rounds that took place; None unless campaigns may end early.
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


# Optional fields in groups: for an open domain, and for campaigns that may end early. If the first
# field of a group is None in all measurements, the table has no column for the group.
_ABSENT = {"strings": ("strings", "recall", "named", "wrong"), "rounds": ("rounds",)}


class Spread(NamedTuple):
    """The mean, the median and the 90 % quantile of a quantity over the repeats."""

    mean: float
    median: float
    q90: float


class Comparison(NamedTuple):
    """The errors and the bytes of a method and width, over all repeats.

    Attributes:
        method: the schedule, or "one-hot" or "binary".
        width: the number of counters in a row; None for "one-hot" and "binary".
        bytes_per_client: the bytes that a client sends, the largest number of all repeats.
        secure_sum: whether the messages can be added up by a secure sum, which hides each of them.
        linf: the spread of the largest absolute errors.
        l2: the spread of the roots of the sums of squared errors.
    """

    method: str
    width: int | None
    bytes_per_client: int
    secure_sum: bool
    linf: Spread
    l2: Spread


@dataclass(frozen=True)
class StudyResult:
    """The measurements of a study, and the population on which they were made.

    Attributes:
        study: the study.
        domain: the candidates.
        num_clients: the number of clients.
        missing: the number of rows of the source that were left out because a value is missing.
        measurements: the measurements, by repeat, and within a repeat in the order of
            `Study.cells`.
    """

    study: Study
    domain: Domain
    num_clients: int
    missing: int
    measurements: tuple[Measurement, ...]

    def comparisons(self) -> list[Comparison]:
        """Return the spread of the errors of each method and width, in the order of `cells`."""
        return [self._comparison(method, width) for method, width in self.study.cells]

    def _comparison(self, method: str, width: int | None) -> Comparison:
        mine = [m for m in self.measurements if (m.method, m.width) == (method, width)]
        # The largest round decides how many bits a counter has, and repeats have different rounds.
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
        """Return the measurements as a `pyarrow.Table`, with a row for each method, width and
        repeat.

        The settings of the study are columns, too.
        """
        study = self.study
        settings = {
            "rows": study.rows,
            "num_rounds": study.num_rounds,
            "num_clients": self.num_clients,
        }
        return tidy(self.measurements, study.recovery, study.epsilon, settings)

    def export(self, path: str | os.PathLike[str]) -> None:
        """Write the table of `to_arrow` to a .csv or .parquet file, as a whole or not at all."""
        check_export_path(path)
        write_table(self.to_arrow(), path)


def tidy(
    measurements: Sequence[Measurement],
    recovery: str,
    epsilon: float | None,
    settings: Mapping[str, int],
) -> Any:
    """Return a `pyarrow.Table` with a row for each measurement.

    If `epsilon` is not None, a column says that the measurements are not private.

    Args:
        measurements: the measurements; each field is a column, except the groups of optional fields
            that no measurement has (`_ABSENT`).
        recovery: the name of the decoder, a column.
        epsilon: the epsilon, a column; None: there was no noise.
        settings: further columns, the same number in each row, by their names.
    """
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
    """Run a study on the clients of a source, and return its measurements.

    Args:
        source: the source of the items.
        study: the methods and widths to compare.
        domain: the candidates, as in `Request`; not an open domain.
        outside: what to do with items outside the domain, as in `Simulation`.
        progress: called with a stage, the amount done, and the total amount or None. The stage
            "read" counts bytes. The stage "simulate" counts simulated campaigns.

    Raises:
        InvalidInputError: the data cannot be used.
        MemoryLimitError: the domain is too large to be enumerated.

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
        # All methods and widths get this seed. Otherwise the comparison would depend on chance.
        seed = rng.bytes(32)
        for method, width in study.cells:
            if width is None:
                # A plan with one counter. It gives the bytes of the exact methods, which do not
                # depend on the sketch, and the noise of a sketch with one row.
                plan = _planned(study, rounds, seed, population, (1, "shared", 1))
                cost, noise = plan.binary_bytes_per_client, np.empty(0)
                if method == "one-hot":
                    cost = plan.one_hot_bytes_per_client
                    noise = _one_hot_noise(plan, population, rounds, random)
                errors = _exact_errors(population, rounds, noise)
                yield Measurement(method, None, repeat, cost, *errors)
                continue
            # With a user's schedule, the plan has "shared": the bytes that a client sends are the
            # same.
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
        seed: the seed of the hashes, 32 bytes.
        population: the candidates, and the clients of all rounds together.
        size: the number of rows, the name of the schedule, and the number of counters in a row.
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
            not_private=True,  # the study shows errors, for which it uses the exact counts
        )
    clients, parameters = population.everybody.num_clients, population.domain.describe()
    fixed = (clients, cohort, parameters, 1, seed)
    return Plan(rows, width, name, study.num_rounds, *fixed, privacy=privacy)


def _landed(
    plan: Plan, population: _Population, rounds: Sequence[RoundTally], random: Random
) -> list[CountSketch]:
    # The server of real campaigns makes the releases, so the noise is that of real campaigns.
    # Nothing is stored.
    server = FrequencyServer(plan, MemoryBooks())
    for sketch in encode(plan, population.domain, rounds, lambda *_: None):
        if sketch.num_clients:  # in a small population, a round may have no client
            server.land_plain(sketch)
    return server.release(random)


def _errors(
    landed: Sequence[Sequence[CountSketch]], population: _Population, recovery: str
) -> tuple[float, float]:
    """Return the largest absolute error of all frequencies, and the root of the sum of squared
    errors.

    Args:
        landed: the sums in groups. Groups have different hashes, and their estimated counts are
            added up.
        population: the candidates and their true counts.
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
    """Return the two errors of the exact methods, as `_errors` does.

    The sum of all one-hot vectors has the exact counts and the noise. Binary messages give the
    exact counts.

    Args:
        population: the population of the study.
        rounds: the items of the clients of each round. Every client is in one round.
        noise: the noise in the count of each candidate; empty: no noise.
    """
    counted = true_counts(population.domain, rounds)
    # Every client is in one of the rounds, so all differences are 0 and the error is the noise.
    differences = counted.at(population.truth.positions) - population.truth.counts
    errors = np.concatenate([differences, noise]) / population.everybody.num_clients
    return float(np.abs(errors).max(initial=0.0)), float(np.sqrt(errors @ errors))


def _one_hot_noise(
    plan: Plan, population: _Population, rounds: Sequence[RoundTally], random: Random
) -> F64:
    """Return the noise that makes the sum of one-hot vectors as private as the plan's sums.

    It is float64 [candidates], or empty if the plan has no privacy.
    """
    # The plan is for a sketch with one row. One client changes one counter of it by 1, as in a
    # one-hot vector.
    if not plan.protection.is_charged:
        return np.empty(0)
    opened = [part.num_clients for part in rounds if part.num_clients]
    if plan.protection.of_release() is not None:
        opened = [sum(opened)]  # the server adds the noise once, to the sum of all rounds
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
