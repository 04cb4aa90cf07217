"""Rounds summed by the real protocol: each simulated client is a state machine that sends bytes.

A round is split at random into cohorts of about one size. A share of each cohort's clients drop
out, each at a stage that is drawn for it. The sums over the survivors land. The same sums are also
made in the clear, and the two must be equal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from fedtally.campaign.client import FrequencyClient
from fedtally.campaign.cohort import CohortRun, carry, drive
from fedtally.campaign.server import FrequencyServer
from fedtally.crypto.keys import SigningKey
from fedtally.domain import Names
from fedtally.errors import FedtallyError
from fedtally.plan import MAX_CLIENTS, Plan, Sums
from fedtally.plan.parts.summation import Summation
from fedtally.plan.privacy import Random
from fedtally.plan.secure_sum import Keys
from fedtally.secagg import two_server
from fedtally.secagg.client import Client, MemoryJournal
from fedtally.secagg.config import SecAggConfig, TwoServerConfig
from fedtally.secagg.messages import EXCHANGES, Outcome
from fedtally.secagg.params import ClientPolicy, Parameters
from fedtally.secagg.server import ClientId
from fedtally.simulation.item_ids import add_items
from fedtally.simulation.round_tally import RoundTally
from fedtally.sketch import CountSketch

_TICKS = 256  # steps of clients between two reports of progress, which cost more than a step

_Stage = TypeVar("_Stage")
I64 = npt.NDArray[np.int64]


class AbortedRoundError(FedtallyError):
    """A round could not be finished safely; nothing was learnt from it."""


class Summed(NamedTuple):
    """The outcome of secure summation.

    Attributes:
        survivors: for each round and each of its sums, the places of the clients in the sum.
        traffic: the traffic, JSON-able.
    """

    survivors: list[list[I64]]
    traffic: dict[str, Any]


def sum_rounds(
    server: FrequencyServer,
    rounds: Sequence[RoundTally],
    summation: Summation,
    keys: Keys,
    rng: np.random.Generator,
    random: Random,
    report: Callable[[str, int, int | None], None],
    names: Names | None = None,
    is_known: Callable[[], bool] = lambda: False,
) -> Summed:
    """Sum the rounds by the protocol of the server's plan; the sums land in the server.

    Args:
        server: the server of a plan with a secure sum.
        rounds: the rounds with their members, whose items are within the bounds of the plan.
        summation: the sizes of cohorts and the share of dropouts.
        keys: the private keys whose public ones the plan names.
        rng: the generator of cohorts, dropouts and their stages.
        random: a function that returns a given number of uniform bytes, for keys, masks and noise.
        report: called as ("sum", clients done, all clients).
        names: the strings of the ids, where the domain is open.
        is_known: called after each round; returns whether the campaign ends with it.

    Raises:
        AbortedRoundError: a round cannot be finished.
    """
    plan = server.plan
    run = _Run(plan, summation, keys, rng, random, names)
    run.begin(sum(tally.num_vectors for tally in rounds), report)
    if plan.summing.servers is None:
        alive = _by_cohorts(server, rounds, run, is_known)
    else:
        alive = _by_two_servers(server, rounds, run)
    if plan.protection.sums is not Sums.NOISED:
        run.traffic.compare(rounds[: len(alive)], [joined(places) for places in alive], names)
    return Summed(alive, run.traffic.to_dict())


def joined(places: Sequence[I64]) -> I64:
    """Return the places of the clients of all these sums, one after the other: int64 [clients]."""
    return np.concatenate([np.zeros(0, np.int64), *places])


def _by_cohorts(
    server: FrequencyServer,
    rounds: Sequence[RoundTally],
    run: _Run,
    is_known: Callable[[], bool],
) -> list[list[I64]]:
    """Sum the rounds in cohorts; return the places of the clients in each sum, by round."""
    plan, survivors = server.plan, []
    for number, tally in enumerate(rounds):
        alive: list[I64] = []
        order = run.rng.permutation(tally.num_vectors)  # which clients sum together is chance
        run.begin_round()
        for size in run.summation.sizes(tally.num_vectors):
            cohort, order = order[:size], order[size:]
            clients = [_client(plan, tally, place, run.names) for place in cohort.tolist()]
            with run.cohort(size):
                alive.append(cohort[_cohort(server, number, clients, run)])
        survivors.append(alive)
        if is_known():
            break
    return survivors


def _client(plan: Plan, tally: RoundTally, place: int, names: Names | None) -> FrequencyClient:
    """Return a client of a round, or one of its silos."""
    members = tally.silos[place].members if tally.silos else tally.members
    assert members is not None
    if not tally.silos:
        return FrequencyClient.of_ids(plan, members.of(place), names)
    numbers = np.diff(members.starts)
    people = np.repeat(np.arange(len(numbers)), numbers)
    without = int((numbers == 0).sum())
    return FrequencyClient.of_people(plan, members.ids, people, without, names)


def _cohort(
    server: FrequencyServer, number: int, people: Sequence[FrequencyClient], run: _Run
) -> npt.NDArray[np.intp]:
    """Sum one cohort; return the indexes, in `people`, of the clients that are in the sum."""
    now, agreed, traffic = int(time.time()), run.secagg, run.traffic
    cohort = _begun(server, number, len(people), run, now)
    session, exchanges = cohort.session, EXCHANGES[agreed.parameters.adversary]
    clients = _joined_clients(people, number, run)
    leaves = run.dropouts(len(people), [step.phase for step in exchanges[1:]])

    # `drive` runs both sides in turn and counts each frame, as a network would carry it.
    def ask(i: ClientId, frame: bytes) -> bytes | None:
        client = clients[int(i)]
        if leaves.get(int(i)) is session.state:  # the client goes away before it answers this
            client.abandon()
        traffic.carry(cohort.stage, "down", len(frame))
        start = time.process_time()
        answer = client.receive(frame, now)
        traffic.client_seconds += time.process_time() - start
        run.tick(len(clients) * len(exchanges))
        if answer is not None:
            traffic.carry(cohort.stage, "up", len(answer))
        return answer

    def tell(i: ClientId, frame: bytes) -> None:
        traffic.carry(cohort.stage, "down", len(frame))
        clients[int(i)].receive(frame, now)

    drive(cohort, ask, now, meter=traffic.serving)
    carry(cohort, tell)
    outcome = _outcome_of(cohort, number)
    traffic.add(number, len(people), outcome.survivors, outcome.total)
    return np.sort([int(session.clients[place]) for place in np.flatnonzero(outcome.alive)])


def _begun(
    server: FrequencyServer, number: int, num_clients: int, run: _Run, now: int
) -> CohortRun:
    """Return a new cohort of the round `number`, which nobody has joined yet."""
    return CohortRun.begin(
        server,
        number,
        range(num_clients),
        signing_key=run.keys.server,
        random=run.random,
        now=now,
        allow_list=run.keys.allow_list,
    )


def _outcome_of(cohort: CohortRun, number: int) -> Outcome:
    """Return the outcome of a cohort that is done; refuse one that was aborted."""
    outcome = cohort.session.outcome
    if outcome is None:
        assert cohort.code is not None
        raise AbortedRoundError(
            f"round {number + 1} was aborted and nothing was learnt: {cohort.code.meaning} (code"
            f" {cohort.code:d}); allow more dropouts, or larger cohorts"
        )
    return outcome


def _joined_clients(people: Sequence[FrequencyClient], number: int, run: _Run) -> list[Client]:
    """Let the clients of a cohort join the round `number`; return them as protocol clients."""
    policy = policy_of(run.secagg.parameters)
    identities = run.take_identities(len(people))
    return [
        person.join(
            number,
            policy,
            journal=MemoryJournal(),
            random=run.random,
            identity=identity,
            allow_list=run.keys.allow_list,
        )
        for person, identity in zip(people, identities, strict=True)
    ]


def policy_of(parameters: Parameters) -> ClientPolicy:
    """Return the policy of a simulated client, as strict as its plan.

    Real clients choose their policies themselves. The simulated ones accept exactly the plan.
    """
    return ClientPolicy(
        adversary=parameters.adversary,
        min_honest=parameters.honest_survivors,
        corrupt=parameters.corrupt,
        min_clients=parameters.n_min,
        max_clients=parameters.n_max,
        max_neighbours=parameters.graph(parameters.n_max).neighbours,
        max_length=parameters.length,
        max_bits=parameters.bits,
    )


def _by_two_servers(
    server: FrequencyServer, rounds: Sequence[RoundTally], run: _Run
) -> list[list[I64]]:
    """Sum every release by two servers; return the places of the summed clients, by round."""
    plan = server.plan
    survivors: list[list[I64]] = [[] for _ in rounds]
    for number, release in enumerate(plan.releases):
        people, places = [], []
        for round in release:
            members = rounds[round].members
            assert members is not None
            order = run.rng.permutation(members.num_clients)
            people += [
                (round, FrequencyClient.of_ids(plan, members.of(client), run.names))
                for client in order.tolist()
            ]
            places.append(order)
        run.begin_round()
        if not people:
            continue
        with run.cohort(len(people)):
            alive = _two_server_batch(server, number, people, run)
        # `alive` numbers the clients of all rounds of the release in one sequence
        starts = np.cumsum([0, *map(len, places)])
        for round, order, start in zip(release, places, starts, strict=False):
            own = alive[(alive >= start) & (alive < start + len(order))] - start
            survivors[round] = [order[own]]
    return survivors


def _two_server_batch(
    server: FrequencyServer, release: int, people: Sequence[tuple[int, FrequencyClient]], run: _Run
) -> npt.NDArray[np.intp]:
    """Sum the clients of one release, each with its round; return the places of those summed."""
    traffic, policy = run.traffic, _batch_policy_of(run.two_server)
    leader, helper = _servers(server, release, policy, run)
    leaves = run.dropouts(len(people), ["leader", "helper"])
    identities = run.take_identities(len(people))
    for i, ((round, person), identity) in enumerate(zip(people, identities, strict=True)):
        assert identity is not None
        run.tick(len(people))
        start = time.process_time()
        report = person.report(
            round, policy, now=0, journal=MemoryJournal(), identity=identity, random=run.random
        )
        traffic.client_seconds += time.process_time() - start
        with traffic.serving():
            # The leader gets its part only after the helper has accepted the other part: the leader
            # alone could not count the report.
            parts = ("helper", helper, report.helper), ("leader", leader, report.leader)
            _deliver(parts, leaves.get(i), traffic)
    with traffic.serving():
        leader.stop()
        for frame in helper.checks():
            traffic.between += len(frame)
            leader.judge(frame)
        query = leader.query(offer := helper.offer())
        total = leader.finish(answer := helper.answer(query))
    traffic.between += len(offer) + len(query) + len(answer)
    refused = {report.identity for report in leader.refused}
    kept = _kept(identities, leaves, refused)
    traffic.refused += len(refused)
    server.land_batch(leader)
    traffic.add(server.plan.releases[release].start, len(people), len(kept), total)
    return kept


def _servers(
    server: FrequencyServer, release: int, policy: two_server.BatchPolicy, run: _Run
) -> tuple[two_server.Leader, two_server.Helper]:
    """Return the two servers of a release, which keep their journals in memory."""
    allow_list, keys = run.keys.allow_list, run.keys
    assert allow_list is not None
    journals = two_server.MemoryJournal(), two_server.MemoryJournal()
    leader = server.leader(release, policy, allow_list, journals[0], keys.leader, random=run.random)
    helper = server.helper(release, policy, allow_list, journals[1], keys.helper, random=run.random)
    return leader, helper


def _kept(
    identities: Sequence[SigningKey | None], lost: Collection[int], refused: Collection[bytes]
) -> npt.NDArray[np.intp]:
    """Return the places of the clients whose reports are in the sum.

    A client whose report reached only one of the servers is in no sum: the two agree on that.

    Args:
        identities: the identity of each client.
        lost: the places of the clients whose reports are lost on their way.
        refused: the public keys of the clients whose reports are refused.
    """
    kept = [
        place
        for place, identity in enumerate(identities)
        if place not in lost and identity is not None and identity.public not in refused
    ]
    return np.array(kept, np.intp)


def _batch_policy_of(agreed: TwoServerConfig) -> two_server.BatchPolicy:
    """Return the policy of a simulated client of two servers, as strict as its plan."""
    return two_server.BatchPolicy(
        min_honest=agreed.honest_survivors,
        corrupt=agreed.corrupt,
        max_clients=agreed.n_max,
        max_length=agreed.length,
        validity=agreed.validity,
    )


def _deliver(
    parts: Sequence[tuple[str, two_server.Leader | two_server.Helper, bytes]],
    lost: str | None,
    traffic: Traffic,
) -> None:
    """Send the parts of a report, each after the server before it has accepted its part.

    Args:
        parts: the name of each server, the server, and its part of the report.
        lost: the name of the server that the report does not reach; None: nothing is lost.
        traffic: the traffic, which is added to.
    """
    for name, server, frame in parts:
        if name == lost:
            return
        traffic.carry(f"report to the {name}", "up", len(frame))
        if server.receive(frame, now=0) is not two_server.Outcome.ACCEPTED:
            return


class _Run:
    """The state that all cohorts of a simulation share: keys, draws, traffic and progress."""

    def __init__(
        self,
        plan: Plan,
        summation: Summation,
        keys: Keys,
        rng: np.random.Generator,
        random: Random,
        names: Names | None,
    ) -> None:
        self.names = names
        self.keys, self.traffic, self.summation = keys, Traffic(plan), summation
        self.rng, self.random = rng, random
        self._summing, self._taken = plan.summing, 0

    @property
    def secagg(self) -> SecAggConfig:
        return self._summing.of_cohorts()

    @property
    def two_server(self) -> TwoServerConfig:
        return self._summing.of_servers()

    def begin_round(self) -> None:
        """Make all identities free again: another round has other clients."""
        self._taken = 0

    def begin(self, total: int, report: Callable[[str, int, int | None], None]) -> None:
        """Start the progress of `total` clients in all rounds."""
        self._total, self._report, self._done = total, report, 0

    @contextmanager
    def cohort(self, size: int) -> Iterator[None]:
        """Report the progress of a cohort: in parts by `tick`, and whole when the block ends."""
        self._ticks, self._size = 0, size
        yield
        self._done += size
        self._report("sum", self._done, self._total)

    def tick(self, of: int) -> None:
        """Count one step of a cohort that has `of` steps in all; report the progress at times."""
        self._ticks += 1
        if self._ticks % _TICKS == 0:
            self._report(
                "sum", self._done + int(min(1.0, self._ticks / of) * self._size), self._total
            )

    def take_identities(self, count: int) -> Sequence[SigningKey | None]:
        """Return unused identities of this round, one for each client; None each if not needed."""
        if not self.keys.identities:
            return [None] * count
        self._taken += count
        return self.keys.identities[self._taken - count : self._taken]

    def dropouts(self, count: int, stages: Sequence[_Stage]) -> dict[int, _Stage]:
        """Return the places of the clients that drop out, and the stage of each, both drawn."""
        gone = self.rng.permutation(count)[: int(self.summation.dropout * count)]
        self.traffic.dropouts += len(gone)
        when = self.rng.integers(0, len(stages), len(gone))
        return {i: stages[stage] for i, stage in zip(gone.tolist(), when.tolist(), strict=True)}


class _Sum(NamedTuple):
    """The secure sums that are opened together, added up, and the number of their clients.

    Attributes:
        total: int64 [entries of a client's vector].
        num_clients: the number of clients, or of silos, in the sums.
    """

    total: I64
    num_clients: int


class Traffic:
    """The messages, the dropouts and the time of the protocol, for the reader of the result."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._carried: dict[str, dict[str, list[int]]] = {}
        self._sizes: list[int] = []
        self._sums: dict[int, _Sum] = {}  # by the first round of what was opened together
        self._survivors, self._fewest = 0, MAX_CLIENTS
        self._is_equal = False
        # CPU seconds could tell how many items a client holds, so a private run does not show them.
        self._is_timed = plan.privacy is None or plan.privacy.not_private
        self.dropouts = 0
        self.refused = 0  # reports whose proof two servers found wrong
        self.between = 0  # bytes that two servers told each other
        self.client_seconds = self.server_seconds = 0.0

    def carry(self, stage: str, way: str, size: int) -> None:
        """Count a message, "up" from a client or "down" to it."""
        counted = self._carried.setdefault(stage, {"up": [0, 0], "down": [0, 0]})[way]
        counted[0] += 1
        counted[1] += size

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Add the CPU time of the `with` block to the server's seconds."""
        start = time.process_time()
        yield
        self.server_seconds += time.process_time() - start

    def add(self, round: int, size: int, survivors: int, total: I64) -> None:
        """Count a cohort, or a batch of two servers, whose sum has landed.

        Args:
            round: the round of the cohort, or the first round of the batch.
            size: the number of clients that began.
            survivors: the number of clients in the sum.
            total: the sum as the protocol gives it, modulo its modulus.
        """
        self._sizes.append(size)
        self._survivors += survivors
        self._fewest = min(self._fewest, survivors)
        before = self._sums.get(round, _Sum(np.zeros_like(total), 0))
        # Read each sum as integers before it is added: the modulus has room for one cohort only.
        total = self._plan.read_sum(total)
        self._sums[round] = _Sum(before.total + total, before.num_clients + survivors)

    def compare(
        self, rounds: Sequence[RoundTally], survivors: Sequence[I64], names: Names | None
    ) -> None:
        """Check that the secure sums equal the survivors' sums in the clear.

        Raises:
            FedtallyError: they differ, which is an error of this program.
        """
        together = self._plan.summing.opened_together(self._plan.releases)
        opened = {release.start: release for release in together}
        for first, found in self._sums.items():
            plain = CountSketch(self._plan.spec, first)
            for number in opened.get(first, [first]):
                tally = rounds[number].of(survivors[number])
                add_items(plain, tally.ids, tally.counts, tally.num_clients, names)
                plain.num_silos += len(tally.silos)
            # if clients are silos, the last entry of a sum is the number of their people
            own = [plain.num_clients] if plain.num_silos else []
            vectors = plain.num_vectors
            if vectors != found.num_clients or not np.array_equal(
                np.append(plain.vector, np.array(own, np.int64)), found.total
            ):
                raise FedtallyError(
                    f"the secure sum of round {first} is not the plain sum: please report this"
                )
            # Under a central plan the sum is exact: it must not outlive its release with noise.
            found.total.fill(0)
        self._is_equal = True

    def _of_two_servers(self) -> dict[str, int]:
        if self._plan.summing.servers is None:
            return {}
        refused = {} if self._plan.report_proof is None else {"refused": self.refused}
        return {**refused, "between_bytes": self.between}

    def to_dict(self) -> dict[str, Any]:
        """Return the traffic as JSON-able values; bytes are the mean of a stage's messages."""
        stages = [
            {
                "stage": stage,
                **{f"{way}load_bytes": round(ways[way][1] / max(1, ways[way][0])) for way in ways},
            }
            for stage, ways in self._carried.items()
        ]
        invited, agreed = sum(self._sizes), self._plan.secure_sum
        assert agreed is not None
        return {
            **agreed.summary(),
            "cohorts": len(self._sizes),
            "smallest_cohort": min(self._sizes),
            "largest_cohort": max(self._sizes),
            "clients": invited,
            "survivors": self._survivors,
            "fewest_survivors": self._fewest,
            "dropouts": self.dropouts,
            **self._of_two_servers(),
            "upload_bytes": sum(stage["upload_bytes"] for stage in stages),
            "download_bytes": sum(stage["download_bytes"] for stage in stages),
            "stages": stages,
            "client_seconds": self.client_seconds / invited if self._is_timed else None,
            "server_seconds": self.server_seconds if self._is_timed else None,
            "equals_plain_sum": self._is_equal,
        }
