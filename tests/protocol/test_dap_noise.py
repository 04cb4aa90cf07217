"""The noise of DAP's servers: charged, drawn once, kept with the answer, and centred at the end."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import each_case
from dap_world import (
    COLLECTOR,
    HELPER_KEYS,
    LEADER_KEYS,
    SEED,
    FixedNoise,
    World,
    make_task,
)
from scipy import stats

from fedtally.campaign.dap_noise import DapNoise, LedgerNoise
from fedtally.crypto.keys import Secret
from fedtally.dap.aggregator import Batch
from fedtally.dap.collector import open_result
from fedtally.dap.draft18 import AggregateShareReq, Interval
from fedtally.dap.helper import Helper
from fedtally.dap.leader import Leader
from fedtally.dap.problems import Problem
from fedtally.dap.state import MemoryStore, Table
from fedtally.dap.task import TaskSecret
from fedtally.errors import InvalidInputError
from fedtally.privacy.budget import AlreadySpentError, OverspentError
from fedtally.privacy.mechanism import Noise
from fedtally.store import Ledger

pytestmark = pytest.mark.usefixtures("no_sync")
SERVERS: list[Any] = [Leader, Helper]


def noised(vdaf: str, *measurements: Any) -> World:
    world = World(vdaf, noise=True)
    world.measure(*measurements)
    world.run_jobs()
    return world


# ---- both servers ----


def test_each_server_adds_its_noise_once() -> None:
    """Of two servers 2, -18, -38, -58; a report count is exact, and sums below 0 stay so."""
    world = noised("histogram", 0, 1, 1)
    got = world.collect()
    assert (got.count, got.result) == (3, [3, 2 - 18, -38, -58])
    for noise in (world.leader_noise, world.helper_noise):
        assert noise.events == [50, "draw"]  # charged first; the batch is of the 50th hour


def test_a_count_has_noise_too() -> None:
    world = noised("count", 1, 0, 1)
    assert world.collect().result == 2 + 2


def test_a_repeated_collection_has_the_same_bytes_and_no_new_noise() -> None:
    world = noised("histogram", 0, 1, 1)
    query = world.query()
    state = world.leader.collect(query.encode())
    world.restart()
    assert world.leader.collect(query.encode()) == state
    share = world.helper.share(state.ask).answer
    world.restart()
    assert world.helper.share(state.ask).answer == share
    done = world.leader.finish_collection(state.id, share)
    world.restart()
    assert world.leader.collect(query.encode()) == done
    assert world.leader.finish_collection(state.id, share) == done
    assert open_result(world.task, COLLECTOR, query, done.answer).result[1] == -16
    for noise in (world.leader_noise, world.helper_noise):
        assert noise.events == [50, "draw"]


def test_further_batches_have_noise_of_their_own() -> None:
    world = World(noise=True)
    for hours in (-3, 0):
        world.measure(0, 1, 1, hours=hours)
    world.run_jobs()
    assert world.collect(-5, 3).result == [3, -16, -38, -58]
    assert world.collect().result == [5, -14, -36, -56]
    for noise in (world.leader_noise, world.helper_noise):
        assert noise.events == [45, "draw", 50, "draw"]  # by the beginning of what is asked for


@each_case("which", ["leader_noise", "helper_noise"])
def test_a_batch_has_one_number_though_an_earlier_report_comes_between_two_tries(
    which: str,
) -> None:
    """A server that was charged and died before it kept its share charges the same again."""
    world = World(noise=True)
    world.measure(0, 1, 1)
    world.run_jobs()
    noise, draw = getattr(world, which), FixedNoise.draw

    def die(_: int) -> Any:
        raise KeyboardInterrupt

    noise.draw = die
    with pytest.raises(KeyboardInterrupt):
        world.collect(-5, 6)
    assert noise.events == [45]
    noise.draw = lambda counters: draw(noise, counters)
    world.restart()
    if which == "leader_noise":  # a batch that the leader closed takes no more reports
        world.measure(1, hours=-3)
        world.run_jobs()
        assert world.collect(-5, 6).count == 4
    else:
        assert world.collect(-5, 6).count == 3
    assert noise.events == [45, 45, "draw"]


def test_a_batch_may_begin_before_its_task() -> None:
    world = World(noise=True)
    world.measure(0, 1, 1)
    world.run_jobs()
    assert world.collect(-60, 61).count == 3
    assert world.leader_noise is not None and world.leader_noise.events == [0, "draw"]


@each_case("which", ["leader_noise", "helper_noise"])
def test_what_cannot_be_charged_is_not_given_away(which: str) -> None:
    """The batch stays open at that server, and is given once there is budget."""
    world = noised("histogram", 0, 1, 1)
    noise = getattr(world, which)
    noise.limit = 0
    for _ in range(2):
        with pytest.raises(OverspentError):
            world.collect()
    assert noise.events == []
    store = world.leader_store if which == "leader_noise" else world.helper_store
    assert store.scan(Table.COLLECTED) == []
    noise.limit = 1
    assert world.collect().result == [3, -16, -38, -58]


def test_a_request_that_is_refused_draws_nothing() -> None:
    """Or a leader that lies would have two noises of one batch drawn."""
    world = noised("histogram", 0, 1, 1)
    ask = AggregateShareReq.decode(world.leader.collect(world.query().encode()).ask)
    for bad in (
        replace(ask, report_count=4),
        replace(ask, checksum=bytes(32)),
        replace(ask, collection=world.query(5)),
    ):
        with pytest.raises(Problem):
            world.helper.share(bad.encode())
    assert world.helper_noise.events == []
    world.helper.share(ask.encode())
    with pytest.raises(Problem):
        world.helper.share(replace(ask, collection=world.query(-1, 3)).encode())
    assert world.helper_noise.events == [50, "draw"]


def test_a_batch_that_overlaps_a_collected_one_is_not_charged() -> None:
    world = noised("histogram", 0, 1, 1)
    world.collect()
    for query in (world.query(-1, 3), world.query(-2, 5)):
        with pytest.raises(Problem, match="was collected"):
            world.leader.collect(query.encode())
    for noise in (world.leader_noise, world.helper_noise):
        assert noise.events == [50, "draw"]


@each_case("server", SERVERS)
def test_a_store_keeps_to_its_noise(server: Any) -> None:
    """A server whose settings lost their noise would give exact sums away."""
    task, store = make_task("histogram"), MemoryStore()
    keys = LEADER_KEYS if server is Leader else HELPER_KEYS
    start = [task, TaskSecret(task.id, SEED), keys, store]
    server(*start, FixedNoise())
    server(*start, FixedNoise())
    for other in (None, FixedNoise(b"other")):
        with pytest.raises(InvalidInputError, match="begun with other noise"):
            server(*start, other)
    start[3] = MemoryStore()
    server(*start)
    with pytest.raises(InvalidInputError, match="begun with other noise"):
        server(*start, FixedNoise())


@each_case("server", SERVERS)
@pytest.mark.parametrize("entries", [1, 2, 20])
def test_a_vector_of_sums_has_no_noise(server: Any, entries: int) -> None:
    """Whatever its sizes: also where a report could not change more than noise hides."""
    task = make_task("sumvec", sizes={"entries": entries, "maximum": 1, "chunk": 1})
    secret = TaskSecret(task.id, SEED)
    with pytest.raises(InvalidInputError, match="noise is for a count and a histogram"):
        server(task, secret, LEADER_KEYS, MemoryStore(), FixedNoise())
    with pytest.raises(InvalidInputError, match="noise is for a count and a histogram"):
        DapNoise.propose(task, epsilon=1.0, delta=1e-6)


# ---- the noise of a guarantee ----


def ledger(folder: Path, epsilon: float = 1.0, name: str = "ledger.db") -> Ledger:
    books = Ledger.open(folder / name, create=True)
    books.grant("clients", epsilon, 1e-6, 0)
    return books


def server_noise(
    task: Any,
    books: Ledger,
    store: Any = None,
    random: Callable[[int], bytes] | None = None,
    epsilon: float = 1.0,
) -> LedgerNoise:
    noise = DapNoise.propose(task, epsilon=epsilon, delta=1e-6, ledger=f"{books.name}")
    return LedgerNoise(
        noise,
        task,
        MemoryStore() if store is None else store,
        clock=lambda: 7,
        random=random or np.random.default_rng(3).bytes,
    )


@each_case("vdaf", ["count", "histogram"])
def test_the_guarantee_is_of_another_report_in_the_place_of_one(vdaf: str) -> None:
    task = make_task(vdaf)
    noise = DapNoise.propose(task, epsilon=1.0, delta=1e-6, population="people")
    terms = noise.terms(task)
    assert terms.event.l2_sensitivity == math.sqrt(2)
    assert terms.event.draws_of_sum == 2
    assert 0.99 < terms.guarantee.epsilon <= 1.0
    assert (terms.event.participations, terms.event.num_releases) == (1, 1)
    # that of a Gaussian (Balle and Wang 2018, Theorem 8), for what two reports differ by
    mu, phi = math.sqrt(2) / math.sqrt(noise.variance), stats.norm.cdf
    assert phi(mu / 2 - 1 / mu) - math.e * phi(-mu / 2 - 1 / mu) == pytest.approx(1e-6, rel=0.02)
    assert noise.agreed == replace(noise, population="others").agreed
    assert noise.agreed != replace(noise, variance=noise.variance + 1).agreed
    with pytest.raises(InvalidInputError, match="above the epsilon"):
        replace(noise, variance=0.95 * noise.variance).terms(task)
    with pytest.raises(InvalidInputError, match="noise has unknown entries"):
        DapNoise.from_dict(noise.to_dict() | {"more": 1})
    assert DapNoise.from_dict(noise.to_dict()) == noise
    with pytest.raises(InvalidInputError, match="noise is charged to a ledger: name yours"):
        noise.check(task)
    url = replace(noise, ledger="postgresql://me@host/books")
    assert DapNoise.from_dict(url.to_dict()) == url


def test_a_task_is_charged_once_and_each_batch_reserved(tmp_path: Path) -> None:
    task, books = make_task("histogram"), ledger(tmp_path)
    store = MemoryStore()
    noise = server_noise(task, books, store)
    noise.charge(50)
    again = server_noise(task, books, store, np.random.default_rng(4).bytes)  # a restart
    again.charge(50)
    again.charge(51)
    assert books.reserved(task.id.hex()) == [50, 51]
    spent = books.spent("clients")
    assert spent is not None and 0.99 < spent.epsilon <= 1.0
    with pytest.raises(OverspentError):  # when the server is made, and not at its first batch
        server_noise(make_task("histogram", info=b"\7" * 16), books)
    # A second store could open the same reports again: it is refused when the server is made, and
    # not at its first batch, for which clients would report in vain.
    with pytest.raises(InvalidInputError, match="another server charged this task to the ledger"):
        server_noise(task, books, random=np.random.default_rng(5).bytes)


def test_of_two_servers_that_charge_one_task_the_second_is_refused(tmp_path: Path) -> None:
    """Also where both were made before the first of them charged it."""
    task, books = make_task("histogram"), ledger(tmp_path)
    first, second = (
        server_noise(task, books, random=np.random.default_rng(seed).bytes) for seed in (4, 5)
    )
    first.charge(50)
    with pytest.raises(AlreadySpentError):
        second.charge(52)


def test_a_server_of_a_population_without_a_grant_is_not_made(tmp_path: Path) -> None:
    books = Ledger.open(tmp_path / "ledger.db", create=True)
    with pytest.raises(InvalidInputError, match="granted to population 'clients' in .*ledger.db: "):
        server_noise(make_task("histogram"), books)


def test_two_servers_that_reach_for_the_last_of_a_budget(tmp_path: Path) -> None:
    """Both were made in time; the second batch that is charged is refused, and draws nothing."""
    books = ledger(tmp_path)
    first = server_noise(make_task("histogram", info=b"\7" * 16), books)
    world = World()
    world.leader_noise = server_noise(world.task, books)  # type: ignore[assignment]
    world.leader_store = MemoryStore()
    world.restart()
    world.measure(0, 1, 1)
    world.run_jobs()
    first.charge(0)
    with pytest.raises(OverspentError):
        world.collect()
    assert world.leader_store.scan(Table.COLLECTED) == []


# ---- how much noise there is in what a server gives away ----


AUDITED = [
    ("count", {}, 200, Leader),
    ("histogram", {"buckets": 100, "chunk": 9}, 60, Leader),
    ("histogram", {"buckets": 100, "chunk": 9}, 60, Helper),
]


@each_case(("vdaf", "sizes", "batches", "server"), AUDITED)
def test_the_audit_of_noise(
    tmp_path: Path, vdaf: str, sizes: dict[str, int], batches: int, server: Any
) -> None:
    """The noise of many batches, at one server: its law by a chi-squared test of all draws.

    Wrong at one run in a million. Noise that is there twice is found, or not at all; of the 6,000
    draws of a histogram, a standard deviation that is 10 % off.
    """
    task = make_task(vdaf, sizes=sizes)
    noise = server_noise(task, ledger(tmp_path, name=f"{vdaf} {server}"), random=_system)
    keys = LEADER_KEYS if server is Leader else HELPER_KEYS
    made = server(task, TaskSecret(task.id, SEED), keys, MemoryStore(), noise)
    field, prime = task.prio3.circuit.field, task.prio3.circuit.field.prime
    counters = task.prio3.circuit.length
    share = field.words([prime - 2] + [5] * (counters - 1))
    batch = Batch(field.encode(share), 9, bytes(32), Interval(task.interval.start, 1), 0)
    drawn = []
    for _ in range(batches):
        words = field.decode(made._noised(batch, noise)) - share
        drawn += [int(word % prime) - prime * int(word % prime > prime // 2) for word in words]
    assert scaled(drawn, noise) > 1e-6
    assert scaled([2 * each for each in drawn], noise) < 1e-6
    assert scaled([0] * len(drawn), noise) < 1e-6
    if vdaf == "count":
        return
    wider = DapNoise.propose(task, epsilon=1.0, delta=1e-6).variance * 1.21
    other = np.random.default_rng().normal(0, math.sqrt(wider), len(drawn)).round().astype(int)
    assert scaled(other.tolist(), noise) < 1e-6


def scaled(drawn: list[int], noise: LedgerNoise) -> float:
    """Return the p-value of draws under the rounded Gaussian of a guarantee."""
    scale = math.sqrt(noise._noise.variance)
    edges = np.arange(-2.25 * scale, 2.26 * scale, scale / 2).round() + 0.5
    seen = np.bincount(np.searchsorted(edges, drawn), minlength=len(edges) + 1)
    cells = np.diff(stats.norm.cdf(np.concatenate([[-np.inf], edges, [np.inf]]) / scale))
    return float(stats.chisquare(seen, cells * len(drawn)).pvalue)


def test_no_two_draws_are_alike(tmp_path: Path) -> None:
    """Over batches and over the two servers: noise that is there twice can be taken out."""
    task = make_task("histogram")
    draws: Counter[tuple[int, ...]] = Counter()
    for server in range(2):
        noise = server_noise(task, ledger(tmp_path, name=f"{server}.db"), random=_system)
        draws.update(tuple(noise.draw(8).tolist()) for _ in range(50))
    assert max(draws.values()) == 1


@pytest.mark.parametrize(("epsilon", "is_small"), [(2.0, True), (1.0, False)])
def test_small_noise_is_drawn_in_constant_time(
    epsilon: float, is_small: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other server, from whom the noise hides the sum, may time the answer."""
    task, books, draw = make_task("histogram"), ledger(tmp_path, epsilon), Noise.draw
    noise = server_noise(task, books, random=_system, epsilon=epsilon)
    asked: list[Any] = []

    def noted(self: Noise, key: Secret, count: int, **options: Any) -> Any:
        asked.append((self.is_small, options))
        return draw(self, key, count, **options)

    monkeypatch.setattr(Noise, "draw", noted)
    assert len(noise.draw(8)) == 8
    assert asked == [(is_small, {"constant_time": is_small})]


def _system(size: int) -> bytes:
    return np.random.default_rng().bytes(size)
