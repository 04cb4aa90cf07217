"""Sum rounds with the real protocol: each simulated client is a state machine that sends bytes.

A round is split at random into cohorts of about equal size. With two servers, all rounds of a
release (a sum that is opened) are summed together instead. A share of the clients of each cohort
or release drop out, each at a random stage. The sum over the clients whose uploads arrived *lands*
in the server: the server adds it to the sum of the round. As a check, the vectors of these clients
are also summed without the protocol, and both sums must be equal. Sums that hold noise cannot be
checked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from fedtally.base.shares import whole_share
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

_TICKS = 256  # steps between two reports of progress: a report costs more than a step

_Stage = TypeVar("_Stage")
I64 = npt.NDArray[np.int64]


class AbortedRoundError(FedtallyError):
    """A secure sum was aborted: its round has no sum, and the server learnt nothing from it."""


class Summed(NamedTuple):
    """The result of summing all rounds with the real protocol.

    Attributes:
        survivors: a list for each round that was summed. The list has an array for each cohort of
            the round: the places in the round of the clients that are in the cohort's sum. With two
            servers the list has one array, or none if the release has no clients.
        traffic: counts of messages, bytes, dropouts and seconds, JSON-able (see `Traffic.to_dict`).
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
    """Sum all rounds with the protocol of the server's plan; the sums land in the server.

    Args:
        server: a server, whose plan has a secure sum.
        rounds: the clients of each round, with `members`. Their items keep the plan's bounds.
        summation: the sizes of cohorts and the share of dropouts.
        keys: the private keys that belong to the public keys in the plan.
        rng: the generator that draws cohorts, dropouts and their stages.
        random: a function that returns a given number of uniform bytes, for keys, masks and noise.
        report: called with ("sum", number of clients done, number of all clients).
        names: the strings of the ids if the domain is open; else None.
        is_known: a function, called after each round, that returns whether the plan's stopping rule
            is met. If so, the campaign ends. With two servers the function is never called.

    Returns:
        The clients in each sum, and the traffic. If the campaign ended early, later rounds are
        missing.

    Raises:
        AbortedRoundError: a cohort's secure sum was aborted.
        FedtallyError: a secure sum differs from the sum made without the protocol, which is a fault
            of this program. Sums to which clients or servers have added noise are not compared.
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
    """Return the clients' places of several sums as one array, sum after sum: int64 [clients]."""
    return np.concatenate([np.zeros(0, np.int64), *places])


def _by_cohorts(
    server: FrequencyServer,
    rounds: Sequence[RoundTally],
    run: _Run,
    is_known: Callable[[], bool],
) -> list[list[I64]]:
    """Sum the rounds in cohorts; return the places of the clients in the sums.

    The result has a list for each round, see `Summed.survivors`.
    """
    plan, survivors = server.plan, []
    for number, tally in enumerate(rounds):
        alive: list[I64] = []
        order = run.rng.permutation(tally.num_vectors)  # cohorts are drawn at random
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
    """Return the client at a place of a round or, if clients are silos, the silo."""
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
    """Sum one cohort with the protocol; return the places in `people` of the clients in the sum.

    Args:
        server: the server in which the sum lands.
        number: the number of the round.
        people: the clients of the cohort.
        run: the state that all cohorts share.
    """
    now, agreed, traffic = int(time.time()), run.secagg, run.traffic
    cohort = _begun(server, number, len(people), run, now)
    session, exchanges = cohort.session, EXCHANGES[agreed.parameters.adversary]
    clients = _joined_clients(people, number, run)
    leaves = run.dropouts(len(people), [step.phase for step in exchanges[1:]])

    # `drive` calls `ask` for each frame of the server; `ask` returns the client's answer.
    def ask(i: ClientId, frame: bytes) -> bytes | None:
        client = clients[int(i)]
        if leaves.get(int(i)) is session.state:  # the client drops out before it answers
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
    """Return a new cohort for the round `number`, before any client has joined.

    `now` is the time at which the session begins, in seconds since 1970.
    """
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
    """Return the outcome of a finished cohort.

    Raises:
        AbortedRoundError: the cohort was aborted.
    """
    outcome = cohort.session.outcome
    if outcome is None:
        assert cohort.code is not None
        raise AbortedRoundError(
            f"round {number + 1} was aborted and nothing was learnt: {cohort.code.meaning} (code"
            f" {cohort.code:d}); allow more dropouts, or larger cohorts"
        )
    return outcome


def _joined_clients(people: Sequence[FrequencyClient], number: int, run: _Run) -> list[Client]:
    """Return the clients of a cohort as protocol clients that have joined the round `number`."""
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
    """Return the strictest policy (a client's demands on a session) that these parameters fulfil.

    Real clients choose their own policies.
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
    """Sum each release with two servers; return the places of the clients in the sums.

    The result has a list for each round, see `Summed.survivors`.
    """
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
        # `alive` are places among the clients of all rounds of the release, one after the other
        starts = np.cumsum([0, *map(len, places)])
        for round, order, start in zip(release, places, starts, strict=False):
            own = alive[(alive >= start) & (alive < start + len(order))] - start
            survivors[round] = [order[own]]
    return survivors


def _two_server_batch(
    server: FrequencyServer, release: int, people: Sequence[tuple[int, FrequencyClient]], run: _Run
) -> npt.NDArray[np.intp]:
    """Sum a release with two servers; return the places in `people` of the clients in the sum.

    Args:
        server: the server in which the sum lands.
        release: the number of the release.
        people: the clients of the release, each with the number of its round.
        run: the state that all releases share.
    """
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
            # The helper's part is sent first, and the leader's part only if the helper accepts:
            # the leader could not count a report of which the helper has no part.
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
    """Return the two servers of a release, leader and helper, with journals in memory."""
    allow_list, keys = run.keys.allow_list, run.keys
    assert allow_list is not None
    journals = two_server.MemoryJournal(), two_server.MemoryJournal()
    leader = server.leader(release, policy, allow_list, journals[0], keys.leader, random=run.random)
    helper = server.helper(release, policy, allow_list, journals[1], keys.helper, random=run.random)
    return leader, helper


def _kept(
    identities: Sequence[SigningKey | None], lost: Collection[int], refused: Collection[bytes]
) -> npt.NDArray[np.intp]:
    """Return the places of the clients whose reports are in the sum, in rising order: int [n].

    A report that reached only one of the two servers is in no sum.

    Args:
        identities: the signing key of each client, in the order of the clients' places. A client
            without a key (None) is in no sum.
        lost: the places of the clients that dropped out: at least one server did not get its part
            of their reports.
        refused: the public keys of the clients whose reports the servers refused.
    """
    kept = [
        place
        for place, identity in enumerate(identities)
        if place not in lost and identity is not None and identity.public not in refused
    ]
    return np.array(kept, np.intp)


def _batch_policy_of(agreed: TwoServerConfig) -> two_server.BatchPolicy:
    """Return the strictest policy (a party's demands on the parameters) that these terms fulfil.

    Here the clients and both servers use this policy. Real clients and servers choose their own.
    """
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
    """Send the parts of a report to the servers in order, until a part is lost or not accepted.

    Args:
        parts: for each server its name, the server itself, and its part of the report.
        lost: the name of the server that does not get its part; None: no part is lost.
        traffic: counts the messages.
    """
    for name, server, frame in parts:
        if name == lost:
            return
        traffic.carry(f"report to the {name}", "up", len(frame))
        if server.receive(frame, now=0) is not two_server.Outcome.ACCEPTED:
            return


class _Run:
    """The state that all cohorts, or all releases, of a simulation share.

    It has the keys, the generators, the traffic and the progress.
    """

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
        """Let `take_identities` begin again with the first identity (signing key of a client).

        Call it before each round or, with two servers, before each release: all of them use the
        same identities.
        """
        self._taken = 0

    def begin(self, total: int, report: Callable[[str, int, int | None], None]) -> None:
        """Begin the progress; `total` is the number of clients in all rounds."""
        self._total, self._report, self._done = total, report, 0

    @contextmanager
    def cohort(self, size: int) -> Iterator[None]:
        """Report at the end of the `with` block that a cohort is done; until then, `tick` reports.

        Args:
            size: the number of clients of the cohort.
        """
        self._ticks, self._size = 0, size
        yield
        self._done += size
        self._report("sum", self._done, self._total)

    def tick(self, of: int) -> None:
        """Count a step of the cohort, which has `of` steps; report the progress every 256 steps."""
        self._ticks += 1
        if self._ticks % _TICKS == 0:
            self._report(
                "sum", self._done + int(min(1.0, self._ticks / of) * self._size), self._total
            )

    def take_identities(self, count: int) -> Sequence[SigningKey | None]:
        """Return the next `count` identities (signing keys of clients).

        After `begin_round` the next identity is the first one. If clients sign nothing, each entry
        is None.
        """
        if not self.keys.identities:
            return [None] * count
        self._taken += count
        return self.keys.identities[self._taken - count : self._taken]

    def dropouts(self, count: int, stages: Sequence[_Stage]) -> dict[int, _Stage]:
        """Draw the clients that drop out, and the stage of each; count them in the traffic.

        Returns a dict from the places of these clients to their stages.

        Args:
            count: the number of clients.
            stages: the stages at which a client may drop out.
        """
        gone = self.rng.permutation(count)[: whole_share(self.summation.dropout, count)]
        self.traffic.dropouts += len(gone)
        when = self.rng.integers(0, len(stages), len(gone))
        return {i: stages[stage] for i, stage in zip(gone.tolist(), when.tolist(), strict=True)}


class _Sum(NamedTuple):
    """The secure sums of all cohorts of a round, added up; or the sum of a release of two servers.

    Attributes:
        total: the sum as integers: int64 [entries of a client's vector].
        num_clients: the number of clients, or of silos, in the sums.
    """

    total: I64
    num_clients: int


class Traffic:
    """Counts of messages, bytes, dropouts and seconds, for the reader of the answer."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._carried: dict[str, dict[str, list[int]]] = {}
        self._sizes: list[int] = []
        self._sums: dict[int, _Sum] = {}  # by round; with two servers, by a release's first round
        self._survivors, self._fewest = 0, MAX_CLIENTS
        self._is_equal = False
        # A private run shows no CPU seconds: they could tell how many items a client holds.
        self._is_timed = plan.privacy is None or plan.privacy.not_private
        self.dropouts = 0
        self.refused = 0  # reports that the leader refused for their proofs
        self.between = 0  # bytes between the two servers
        self.client_seconds = self.server_seconds = 0.0

    def carry(self, stage: str, way: str, size: int) -> None:
        """Count a message of `size` bytes, "up" from a client or "down" to it, in a stage."""
        counted = self._carried.setdefault(stage, {"up": [0, 0], "down": [0, 0]})[way]
        counted[0] += 1
        counted[1] += size

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Add the CPU seconds of the `with` block to the seconds of all servers together."""
        start = time.process_time()
        yield
        self.server_seconds += time.process_time() - start

    def add(self, round: int, size: int, survivors: int, total: I64) -> None:
        """Count a cohort, or a release of two servers, after its sum has landed.

        Args:
            round: the round of the cohort, or the first round of the release.
            size: the number of clients that began.
            survivors: the number of clients in the sum.
            total: the sum as the protocol returns it: modulo the modulus of the protocol.
        """
        self._sizes.append(size)
        self._survivors += survivors
        self._fewest = min(self._fewest, survivors)
        before = self._sums.get(round, _Sum(np.zeros_like(total), 0))
        # Sums become integers before they are added: the modulus is large enough for one cohort
        # only.
        total = self._plan.read_sum(total)
        self._sums[round] = _Sum(before.total + total, before.num_clients + survivors)

    def compare(
        self, rounds: Sequence[RoundTally], survivors: Sequence[I64], names: Names | None
    ) -> None:
        """Check the secure sums against sums made without the protocol; then erase the secure sums.

        Call this only for sums without noise.

        Args:
            rounds: the clients of each round.
            survivors: for each round, the places of the clients in its sums: one array (`joined`).
            names: the strings of the ids if the domain is open; else None.

        Raises:
            FedtallyError: a sum differs, which is a fault of this program.
        """
        together = self._plan.summing.opened_together(self._plan.releases)
        opened = {release.start: release for release in together}
        for first, found in self._sums.items():
            plain = CountSketch(self._plan.spec, first)
            for number in opened.get(first, [first]):
                tally = rounds[number].of(survivors[number])
                add_items(plain, tally.ids, tally.counts, tally.num_clients, names)
                plain.num_silos += len(tally.silos)
            # if clients are silos, a sum's last entry is the number of their people
            own = [plain.num_clients] if plain.num_silos else []
            vectors = plain.num_vectors
            if vectors != found.num_clients or not np.array_equal(
                np.append(plain.vector, np.array(own, np.int64)), found.total
            ):
                raise FedtallyError(
                    f"the secure sum of round {first} is not the plain sum: please report this"
                )
            # Under central trust `found.total` is the exact sum, which must not stay in memory.
            found.total.fill(0)
        self._is_equal = True

    def _of_two_servers(self) -> dict[str, int]:
        if self._plan.summing.servers is None:
            return {}
        refused = {} if self._plan.report_proof is None else {"refused": self.refused}
        return {**refused, "between_bytes": self.between}

    def to_dict(self) -> dict[str, Any]:
        """Return the counts as JSON-able values.

        The bytes of a stage are the mean over its messages, separately for uploads and downloads.
        `client_seconds` is the mean over the clients, and `server_seconds` is the total. Both are
        None for a private campaign, unless it is marked not private.
        """
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
