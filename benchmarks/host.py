"""The CPU seconds of operations on this machine, measured on small rounds, draws and decoders.

Every stage of a small round takes a known number of each operation (`plan.costs`) and a measured
time. The times of the operations are those that explain all stages best, by non-negative least
squares of relative errors.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import click
import numpy as np

import fedtally
from fedtally import kernels
from fedtally.agent.items import Items, of_file
from fedtally.base.archive import replacing
from fedtally.base.shares import whole_share
from fedtally.campaign.client import FrequencyClient
from fedtally.campaign.cohort import CohortRun, drive
from fedtally.campaign.server import FrequencyServer
from fedtally.crypto import shamir
from fedtally.crypto.keys import KEY_BYTES, Label, Secret, SigningKey
from fedtally.crypto.prg import Masking
from fedtally.domain import IntegerRange
from fedtally.plan import Plan
from fedtally.plan.bill import lines_of_sum
from fedtally.plan.costs import OPERATIONS, REFERENCE, Host, decoding_work, noise_work
from fedtally.plan.parts.summation import Summation
from fedtally.plan.secure_sum import Keys, make_keys, replace_keys, terms, with_validity
from fedtally.privacy.mechanism import rounded_gaussian, skellam
from fedtally.recovery.decoders.belief.belief import BeliefDecoder
from fedtally.recovery.decoders.joint.joint import JointDecoder
from fedtally.recovery.decoders.work import Work
from fedtally.recovery.decoding import kind_of
from fedtally.secagg import two_server, wire
from fedtally.secagg.client import MemoryJournal
from fedtally.secagg.config import SecAggConfig, TwoServerConfig
from fedtally.secagg.graph import Neighbourhood
from fedtally.secagg.messages import EXCHANGES, Unmask
from fedtally.secagg.params import ClientPolicy, Parameters
from fedtally.secagg.proposal import propose
from fedtally.secagg.server import ClientId
from fedtally.secagg.unmasking import Unmasking
from fedtally.simulation.randomness import key_bytes
from fedtally.sketch import CountSketch, Schedule

REPORTS = "reports"  # a stage of its own: a client makes both reports in one step
_IGNORED = 2e-4  # seconds: a stage that takes less is hardly measured, and gets little weight
_LEAST = 1e-12  # seconds: far below a cycle
TURNS = 3  # the shortest counts, since other programs only make a turn longer
_CLIENTS = 100_000  # of a campaign that is decoded
_SECAGG, _TWO_SERVERS = Summation("secagg"), Summation("two-server")
_NO_PROOFS = Summation("two-server", validity="none")
# Sums, clients, width and items of a client. Each operation takes a large share of some stage in
# one of these rounds, and their ratios differ: else the fit could not tell operations apart.
ROUNDS = (
    (_SECAGG, 10, 40, 1),
    (_SECAGG, 120, 400, 1),
    (_SECAGG, 10, 20_000, 100),
    (_SECAGG, 10, 20_000, 10_000),
    (Summation("secagg", dropout=0.2), 40, 400, 1),
    (Summation("secagg", dropout=0.2), 30, 8_000, 100),
    (Summation("secagg", adversary="active"), 24, 40, 1),
    (Summation("secagg", adversary="active", dropout=0.2), 16, 40, 1),
    (_NO_PROOFS, 40, 40, 1),
    (_NO_PROOFS, 20, 20_000, 1),
    (_NO_PROOFS, 20, 20_000, 10_000),
    (_TWO_SERVERS, 40, 40, 1),
    (_TWO_SERVERS, 20, 8_000, 1),
)
# Decoder, candidates, width, schedule, rounds and the exponent of the frequencies. For the same
# reason they differ in what decides: candidates, counters, rounds, and the number of heavy items.
DECODERS = (
    ("median", 5_000, 1000, "shared", 1, 1.2),
    ("median", 600_000, 1000, "shared", 1, 1.2),
    ("median", 200_000, 4000, "hybrid", 10, 1.2),
    ("median", 100_000, 400, "hybrid", 20, 1.2),
    ("median", 200_000, 1000, "fresh", 5, 1.2),
    ("median", 20_000, 10_000, "fresh", 20, 1.2),
    ("median", 500, 50, "fresh", 50, 1.2),
    ("median", 20_000, 4000, "hybrid", 40, 1.2),
    ("joint", 2_000, 200, "shared", 1, 1.2),
    ("joint", 50_000, 400, "shared", 1, 1.2),
    ("joint", 50_000, 400, "hybrid", 10, 1.2),
    ("joint", 50_000, 2000, "hybrid", 10, 1.2),
    ("joint", 50_000, 2000, "hybrid", 10, 3.0),
    ("joint", 30_000, 1000, "fresh", 5, 1.2),
    ("joint", 5_000, 1500, "fresh", 6, 1.05),
    ("joint", 600_000, 2000, "shared", 1, 2.0),
    ("belief", 2_000, 200, "shared", 1, 1.2),
    ("belief", 50_000, 400, "shared", 1, 1.2),
    ("belief", 20_000, 400, "hybrid", 10, 1.2),
    ("belief", 20_000, 400, "fresh", 5, 1.2),
    ("belief", 100_000, 2000, "hybrid", 10, 1.2),
)


class Seen(NamedTuple):
    """Operations, and the CPU seconds that they were seen to take."""

    work: Work
    seconds: float


class Clock:
    """Adds up CPU seconds by stage and party."""

    def __init__(self) -> None:
        self.seconds: dict[tuple[str, str], float] = {}

    @contextmanager
    def __call__(self, stage: str, party: str) -> Iterator[None]:
        """Count what happens within for a party in a stage."""
        start = time.process_time()
        yield
        spent = time.process_time() - start
        self.seconds[stage, party] = self.seconds.get((stage, party), 0.0) + spent


def campaign(
    summation: Summation, clients: int, *, rows: int, width: int, max_items: int
) -> tuple[Plan, Keys]:
    """Return the plan of one round, and its keys."""
    keys = make_keys(summation, [clients], key_bytes(1, b"calibration"))
    agreed = terms(summation, [clients], max_items, rows * width, signed=True)
    assert agreed is not None
    agreed = with_validity(replace_keys(agreed, keys), summation, max_items, signed=True)
    domain = IntegerRange(1, 1000).describe()
    shared = Schedule.parse("shared")
    return (
        Plan(rows, width, shared, 1, clients, clients, domain, max_items, bytes(32), agreed),
        keys,
    )


def run_round(plan: Plan, keys: Keys, dropout: float) -> list[Seen]:
    """Run the one round of a plan with a secure sum; return the seconds of each stage and party."""
    agreed, clock = plan.secure_sum, Clock()
    ids = np.arange(1, plan.num_clients + 1, dtype=np.uint64)
    people = [FrequencyClient.of_ids(plan, ids[i : i + 1]) for i in range(plan.num_clients)]
    gone = whole_share(dropout, plan.num_clients)
    if isinstance(agreed, SecAggConfig):
        _run_secagg(plan, agreed, keys, people, gone, clock)
    else:
        assert isinstance(agreed, TwoServerConfig)
        _run_two_server(plan, agreed, keys, people, gone, clock)
    work: dict[tuple[str, str], Counter[str]] = {}
    for line in lines_of_sum(plan, plan.num_clients, dropout, plan.num_clients):
        for party, times, counts in (
            ("client", line.clients, line.client),
            ("server", 1.0, line.server),
        ):
            stage = REPORTS if party == "client" and plan.is_two_server else line.stage
            found = work.setdefault((stage, party), Counter())
            found.update({name: times * count for name, count in counts.items()})
    return [Seen(work[name], seconds) for name, seconds in clock.seconds.items()]


def _run_secagg(
    plan: Plan,
    agreed: SecAggConfig,
    keys: Keys,
    people: list[FrequencyClient],
    gone: int,
    clock: Clock,
) -> None:
    random, now, p = key_bytes(1, b"round"), int(time.time()), agreed.parameters
    run = CohortRun.begin(
        FrequencyServer(plan),
        0,
        range(len(people)),
        signing_key=keys.server,
        random=random,
        now=now,
        allow_list=keys.allow_list,
    )
    policy = ClientPolicy(adversary=p.adversary, min_honest=2, max_neighbours=p.n_max)
    clients = [
        person.join(
            0,
            policy,
            journal=MemoryJournal(),
            random=random,
            identity=keys.identities[i] if keys.identities else None,
            allow_list=keys.allow_list,
        )
        for i, person in enumerate(people)
    ]
    # Dropouts leave in every phase but the first: who never advertised is no dropout of a session.
    later = [step.phase for step in EXCHANGES[p.adversary][1:]]
    leaves = {i: later[i % len(later)] for i in range(gone)}

    def ask(i: ClientId, frame: bytes) -> bytes | None:
        client = clients[int(i)]
        if leaves.get(int(i)) is run.session.state:
            client.abandon()
        with clock(run.stage, "client"):
            return client.receive(frame, now)

    # One message at a time, as in `simulation.cohorts`: nobody finds its own data in the caches.
    drive(run, ask, now, meter=lambda: clock(run.stage, "server"))
    assert run.session.outcome is not None


def _run_two_server(
    plan: Plan,
    agreed: TwoServerConfig,
    keys: Keys,
    people: list[FrequencyClient],
    gone: int,
    clock: Clock,
) -> None:
    random, server = key_bytes(1, b"round"), FrequencyServer(plan)
    assert keys.allow_list is not None
    policy = two_server.BatchPolicy(min_honest=2)
    leader = server.leader(
        0, policy, keys.allow_list, two_server.MemoryJournal(), keys.leader, random=random
    )
    helper = server.helper(
        0, policy, keys.allow_list, two_server.MemoryJournal(), keys.helper, random=random
    )
    for i, person in enumerate(people):
        with clock(REPORTS, "client"):
            report = person.report(
                0,
                policy,
                now=0,
                journal=MemoryJournal(),
                identity=keys.identities[i],
                random=random,
            )
        # A dropout of two servers is a client whose report reaches the helper alone, or nobody.
        if i >= gone or not i % 2:
            with clock("report to the helper", "server"):
                helper.receive(report.helper, now=0)
        if i >= gone:
            with clock("report to the leader", "server"):
                leader.receive(report.leader, now=0)
    with clock("combining", "server"):
        leader.stop()
        for frame in helper.checks():
            leader.judge(frame)
        query = leader.query(helper.offer())
        leader.finish(helper.answer(query))


class Sums(NamedTuple):
    """The sums of a campaign without clients, to be decoded."""

    plan: Plan
    sketches: list[CountSketch]


def landed(
    candidates: int, *, rows: int, width: int, schedule: str, num_rounds: int, exponent: float
) -> Sums:
    """Return the sums of 100,000 clients whose items follow a power law."""
    sizes = (_CLIENTS, -(-_CLIENTS // num_rounds))
    domain = IntegerRange(1, candidates).describe()
    plan = Plan(rows, width, Schedule.parse(schedule), num_rounds, *sizes, domain, 1, bytes(32))
    distribution = np.cumsum(np.arange(1, candidates + 1.0) ** -exponent)
    sketches = [CountSketch(plan.spec, number) for number in range(num_rounds)]
    # the clients, sorted by item, are dealt to the rounds in turn
    for number, sketch in enumerate(sketches):
        upto = np.floor(
            distribution / distribution[-1] * (_CLIENTS // num_rounds) + number / num_rounds
        ).astype(np.int64)
        sketch.add_range(1, np.diff(upto, prepend=0))
    return Sums(plan, sketches)


def decode(sums: Sums, recovery: str) -> Seen:
    """Decode all candidates; return the operations and the seconds."""
    size, heavy = sums.plan.domain_size, None
    start = time.process_time()
    decoder = kind_of(recovery).make(sums.sketches, IntegerRange(1, size))
    decoder.range(1, size)
    spent, repetitions = time.process_time() - start, 0
    # the work depends on what only the decoder finds
    if isinstance(decoder, BeliefDecoder):
        repetitions = 0 if decoder.messages is None else decoder.messages.iterations
        heavy = decoder.joint.support_size
    elif isinstance(decoder, JointDecoder):
        heavy = decoder.support_size
    backend = kernels.backend()
    work = decoding_work(sums.plan, backend, recovery, heavy=heavy, repetitions=repetitions)
    return Seen(work, spent)


def _single_operations() -> Iterator[Seen]:
    """Yield the times of operations that small rounds do not tell apart.

    They are noise, signatures, masks, tables of silos, and operations whose number grows as a
    square.
    """
    key, size = bytes(KEY_BYTES), 1 << 17
    for noise, scans in ((skellam(0.3), True), (rounded_gaussian(300.0), False)):
        noise.draw(Secret(key), 1)  # makes the tables of this noise, which later draws share
        yield _timed(
            noise_work(noise, size, scans),
            partial(noise.draw, Secret(key), size, constant_time=scans),
        )
    identity, count = SigningKey(Secret(key)), 100
    yield _timed(
        {"signature": count}, lambda: [identity.sign(Label.CONFIRM, key) for _ in range(count)]
    )
    vector = np.zeros(1 << 21, "<u2")
    yield _timed({"mask": vector.nbytes}, partial(Masking(vector).add, Secret(key)))
    clients, threshold = 160, 80
    elements = np.ones((threshold, 2 * shamir.SECRET_ELEMENTS), np.uint32)
    shamir.split(elements[0], elements[1:], clients)  # makes the powers, which are kept
    split = partial(shamir.split, elements[0], elements[1:], clients)
    yield _timed({"share": 10 * clients * threshold}, lambda: [split() for _ in range(10)])
    # A set of points for each client, as a server has them: of one set for all the Lagrange
    # coefficients would be computed once.
    points = np.stack(
        [np.delete(np.arange(1, threshold + 2), i % threshold) for i in range(clients)]
    )
    shares = np.ones((clients, threshold, shamir.SECRET_ELEMENTS), np.uint32)
    yield _timed({"coefficient": clients * threshold**2}, partial(shamir.combine, points, shares))
    parameters = propose(
        clients, length=1, bits=16, corrupt=1, max_dropout=0.05, adversary="active"
    )
    yield _timed({"slot": clients * (clients - 1)}, partial(_take_shares, parameters, clients))
    yield from _read_table()


def _read_table() -> Iterator[Seen]:
    """Yield the time that the rows of a silo's table take, as an agent reads and adds them up."""
    rows, domain = 20_000, IntegerRange(1, 1000)
    shared, everybody = Schedule.parse("shared"), (6, 6)
    plan = Plan(5, 400, shared, 1, *everybody, domain.describe(), 1, bytes(32), people=rows)
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "rows.csv"
        lines = "".join(f"{i % 1000 + 1},P{i * 7919 % rows}\n" for i in range(rows))
        table.write_text(f"item,person\n{lines}", encoding="utf-8")
        items = Items(of_file(table, "item", None, "person"), [domain], of_people=True)
        yield _timed({"row": rows}, lambda: items.client(plan).contribution(0))


def _timed(work: Work, run: Callable[[], object]) -> Seen:
    start = time.process_time()
    run()
    return Seen(work, time.process_time() - start)


def _take_shares(parameters: Parameters, n: int) -> None:
    """Keep the shares that all clients give of all others, as a server that opens a sum does."""
    everybody, given = np.ones(n, np.bool_), np.ones(n - 1, np.bool_)
    shares = np.ones((n - 1, shamir.SECRET_ELEMENTS), np.uint32)
    body = wire.encode_unmask(Unmask(shares[0], given, shares))
    adverts = [bytes(wire.advert_bytes(parameters.adversary))] * n
    graph = Neighbourhood(parameters, n, bytes(32))
    unmasking = Unmasking(parameters, bytes(32), bytes(32), graph, adverts, everybody, everybody)
    for holder in range(n):
        unmasking.add(holder, wire.decode_unmask(body, n - 1))
    unmasking.short()


def measure() -> Iterator[Seen]:
    """Run everything in turns; yield each stage with its shortest time."""
    turns = []
    sums = [
        (
            recovery,
            landed(
                size, rows=5, width=width, schedule=schedule, num_rounds=rounds, exponent=exponent
            ),
        )
        for recovery, size, width, schedule, rounds, exponent in DECODERS
    ]
    for _ in range(TURNS):
        found: list[Seen] = []
        for summation, clients, width, max_items in ROUNDS:
            plan, keys = campaign(summation, clients, rows=5, width=width, max_items=max_items)
            found += run_round(plan, keys, summation.dropout)
        found += _single_operations()
        found += [decode(each, recovery) for recovery, each in sums]
        turns.append(found)
    for same in zip(*turns, strict=True):
        yield min(same, key=lambda one: one.seconds)


def fit(seen: Sequence[Seen]) -> dict[str, float]:
    """Return the seconds of every operation that explain best the times that were seen.

    Best is the least sum of squared relative errors.
    """
    from scipy.optimize import nnls

    names = list(OPERATIONS)
    # relative errors: stages take from a millisecond to a second, and all shall be explained
    weights = np.array([1.0 / (one.seconds + _IGNORED) for one in seen])
    counts = (
        np.array([[one.work.get(name, 0.0) for name in names] for one in seen]) * weights[:, None]
    )
    # Counts of operations differ by many orders of magnitude, which would spoil the solver; an
    # operation that nothing took is not divided by 0.
    scale = np.maximum(counts.max(axis=0), 1e-300)
    found, _ = nnls(counts / scale, np.array([one.seconds for one in seen]) * weights)
    return dict(zip(names, (found / scale).tolist(), strict=True))


def calibrate() -> Host:
    """Return the seconds of operations here, measured in a few seconds of CPU.

    Other programs make a turn longer, so that the shortest of some turns counts.
    """
    with undisturbed():
        seen = list(measure())
    # a host has no operation of no time: one that was not told apart gets next to none
    seconds = {name: max(value, _LEAST) for name, value in fit(seen).items()}
    return Host(kernels.backend(), fedtally.__version__, seconds)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Keep the garbage collector from running within: it would be measured with the operation."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@click.command("host")
@click.option(
    "--output",
    "-o",
    required=True,
    type=click.Path(),
    metavar="FILE",
    help="Write what `fedtally plan --host` reads: .toml.",
)
def command(output: str) -> None:
    """Measure what CPU the protocol takes on this machine, in about ten seconds."""
    path = Path(output)
    if path.suffix != ".toml" or not path.parent.is_dir():
        raise click.UsageError(f"--output {output} must end in .toml, in a folder that exists")
    click.echo("measuring for about ten seconds; other programs would disturb it", err=True)
    host = calibrate()
    with replacing(path) as temporary:
        Path(temporary).write_text(host.to_toml(), encoding="utf-8")
    click.echo(f"wrote {path}: {compared(host)}", err=True)


def compared(host: Host) -> str:
    """Return the speed of a host relative to the reference, in words."""
    ratios = [host.seconds[name] / REFERENCE.seconds[name] for name in OPERATIONS]
    return (
        f"what CPU {len(ratios)} operations of the protocol take here, {median(ratios):.2g} times"
        f" what they take on the reference machine ({min(ratios):.2g} to {max(ratios):.2g})"
    )
