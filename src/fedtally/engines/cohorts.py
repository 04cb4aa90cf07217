"""Rounds summed by the real protocol: every simulated client is a state machine, every message bytes.

A round is split at random into cohorts of about one size. Of each cohort a share of the clients drop out, at a stage
drawn for each. What lands are the sums over the survivors; the sketches that these would have made in the clear are
made too, and the two must be equal.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from fedtally import _validate
from fedtally.crypto.hpke import OpeningKey
from fedtally.crypto.keys import KEY_BYTES, Secret, SigningKey
from fedtally.engines.tally import RoundTally
from fedtally.errors import FedtallyError, InvalidInputError
from fedtally.kernels import MAX_WIDTH
from fedtally.plan import Plan
from fedtally.secagg import two_server
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.client import Client, MemoryJournal
from fedtally.secagg.messages import EXCHANGES, Kind, ServerState, phase
from fedtally.secagg.params import Adversary, ClientPolicy, Parameters, corrupt_clients, modulus_bits
from fedtally.secagg.proposal import propose
from fedtally.secagg.server import Server
from fedtally.secagg.terms import SecAggTerms, Terms, TwoServerTerms
from fedtally.session import FrequencyClient, FrequencyServer
from fedtally.sketch import CountSketch

METHODS = ("ideal", "secagg", "two-server")
MAX_COHORT = {Adversary.SEMI_HONEST: 2000, Adversary.ACTIVE: 200}  # what a client costs grows with the cohort if active
MAX_CORRUPT = 0.05
MIN_DROPOUT = 0.05  # that a cohort bears, however few are expected
STAGES = {
    Kind.ADVERTISE: "advertise keys",
    Kind.SHARES: "share keys",
    Kind.MASKED_INPUT: "masked input",
    Kind.CONFIRM: "consistency check",
    Kind.UNMASK: "unmask",
}
_TICKS = 256  # steps of clients between two reports of progress
_LIFETIME = 3600  # seconds of a session

_Stage = TypeVar("_Stage")


class AbortedRoundError(FedtallyError):
    """Say that a round could not be finished safely, and why; nothing was learnt from it."""


@dataclass(frozen=True)
class Summation:
    """How the rounds of a simulation are to be summed.

    Args:
        method: "ideal", "secagg" or "two-server".
        adversary: of "secagg": "semi-honest" or "active".
        dropout: the share of every cohort that drops out.
        max_corrupt: the share of a cohort that may be corrupt.
        max_cohort: the most clients in a cohort; a larger round is split.

    Raises:
        InvalidInputError: a value is out of bounds, or does not go with the method.
    """

    method: str = "ideal"
    adversary: Adversary | str = Adversary.SEMI_HONEST
    dropout: float = 0.0
    max_corrupt: float = MAX_CORRUPT
    max_cohort: int | None = None

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise InvalidInputError(
                f"secure_sum must be {', '.join(METHODS[:-1])} or {METHODS[-1]}, got {self.method!r}"
            )
        object.__setattr__(self, "adversary", Adversary.parse(self.adversary))
        for name in ("dropout", "max_corrupt"):
            if not 0 <= _validate.real(**{name: getattr(self, name)}) < 1:
                raise InvalidInputError(f"{name} must be at least 0 and below 1, got {getattr(self, name)!r}")
        if self.max_cohort is not None:
            object.__setattr__(self, "max_cohort", _validate.integer(3, max_cohort=self.max_cohort))
        if self.method != "secagg" and self.adversary is not Adversary.SEMI_HONEST:
            raise InvalidInputError(
                f"the adversary {self.adversary} goes with the secure sum secagg, got {self.method}"
            )
        if self.method == "ideal" and self.dropout:
            raise InvalidInputError("dropout goes with a real secure sum: secagg or two-server, got ideal")
        if self.method != "secagg" and self.max_cohort is not None:
            raise InvalidInputError(f"max_cohort goes with the secure sum secagg, got {self.method}")

    @classmethod
    def asked(
        cls,
        agreed: Terms | None,
        *,
        method: str | None = None,
        adversary: Adversary | str | None = None,
        dropout: float = 0.0,
        max_corrupt: float | None = None,
        max_cohort: int | None = None,
    ) -> Summation:
        """Return how rounds are summed: as a plan's terms say, where there are any, else as it is asked; None: default.

        Raises:
            InvalidInputError: something else is asked than what the plan says.

        >>> Summation.asked(None, method="secagg").max_corrupt
        0.05
        """
        if agreed is None:
            corrupt = MAX_CORRUPT if max_corrupt is None else max_corrupt
            return cls(method or "ideal", adversary or Adversary.SEMI_HONEST, dropout, corrupt, max_cohort)
        is_secagg = isinstance(agreed, SecAggTerms)
        planned = agreed.parameters.adversary if isinstance(agreed, SecAggTerms) else Adversary.SEMI_HONEST
        if method not in (None, agreed.method) or adversary not in (None, planned):
            raise InvalidInputError(
                f"the plan is summed by {agreed.method}{f' ({planned})' * is_secagg}, got {method or adversary}; "
                "leave that out, or the plan"
            )
        for name, value in (("max_corrupt", max_corrupt), ("max_cohort", max_cohort)):
            if value is not None:
                raise InvalidInputError(f"a plan already says {name}; leave {name} out, or the plan")
        return cls(agreed.method, planned, dropout, max_cohort=agreed.most_clients if is_secagg else None)

    def sizes(self, num_clients: int) -> list[int]:
        """Return the sizes of the cohorts that a round is split into.

        >>> Summation("secagg", max_cohort=1000).sizes(2500)
        [834, 833, 833]
        """
        if self.method == "two-server":
            return [num_clients] if num_clients else []
        most = self.max_cohort or MAX_COHORT[Adversary.parse(self.adversary)]
        small, larger = divmod(num_clients, max(1, -(-num_clients // most)))
        return [small + 1] * larger + [small] * (-(-num_clients // most) - larger)


class Keys(NamedTuple):
    """The keys of a simulated campaign: the server's, the helper's, and a registered identity for each client."""

    server: SigningKey
    helper: OpeningKey
    identities: tuple[SigningKey, ...]
    allow_list: AllowList | None


def make_keys(summation: Summation, num_clients: Sequence[int], random: Callable[[int], bytes]) -> Keys:
    """Return keys: identities are made for the largest round, and serve every round.

    Args:
        summation: how the rounds are summed.
        num_clients: of each round.
        random: returns as many bytes as it is asked for; of a seed, to repeat a simulation exactly.
    """
    identities: tuple[SigningKey, ...] = ()
    if summation.method == "two-server" or summation.adversary is Adversary.ACTIVE:
        made = [SigningKey(Secret(random(KEY_BYTES))) for _ in range(max(num_clients))]
        identities = tuple(sorted(made, key=lambda key: key.public))
    return Keys(
        SigningKey(Secret(random(KEY_BYTES))),
        OpeningKey(Secret(random(KEY_BYTES))),
        identities,
        AllowList(key.public for key in identities) if identities else None,
    )


def terms(summation: Summation, keys: Keys, num_clients: Sequence[int], max_items: int, counters: int) -> Terms:
    """Return what the plan says of the secure sum, for rounds of so many clients.

    Raises:
        InvalidInputError: a round is too small, or nothing protects from so many corrupt clients and dropouts.
    """
    sizes = [size for count in num_clients if count for size in summation.sizes(count)]
    n_min, n_max = min(sizes), max(sizes)
    if n_min < 3:
        raise InvalidInputError(
            f"a cohort has {n_min} client{'s' * (n_min > 1)}, and a secure sum needs at least 3; "
            "use fewer rounds, or a larger max_cohort"
        )
    corrupt = corrupt_clients(summation.max_corrupt, n_max)
    try:
        if summation.method == "two-server":
            return _two_server_terms(summation, keys, n_min, n_max, corrupt, max_items, counters)
        return _secagg_terms(summation, keys, n_min, n_max, corrupt, max_items, counters)
    except InvalidInputError as error:
        of = f"{n_max}" if n_min == n_max else f"{n_min} to {n_max}"
        raise InvalidInputError(
            f"cohorts of {of} clients, {corrupt} of them corrupt, cannot be summed safely ({error}); lower max_corrupt "
            "or dropout, or have larger cohorts of more even size"
        ) from error


def _secagg_terms(
    summation: Summation, keys: Keys, n_min: int, n_max: int, corrupt: int, max_items: int, counters: int
) -> SecAggTerms:
    parameters = propose(
        n_max,
        length=counters,
        bits=modulus_bits(n_max, max_items),
        corrupt=corrupt,
        max_dropout=max(summation.dropout, MIN_DROPOUT),
        adversary=summation.adversary,
        n_min=n_min,
    )
    if parameters.honest_survivors < 2:
        raise InvalidInputError(
            f"{parameters.honest_survivors} honest clients in a sum protect nobody; at least 2 are needed"
        )
    listed = None if keys.allow_list is None else keys.allow_list.digest
    return SecAggTerms(parameters=parameters, server_key=keys.server.public, allow_list=listed)


def _two_server_terms(
    summation: Summation, keys: Keys, n_min: int, n_max: int, corrupt: int, max_items: int, counters: int
) -> TwoServerTerms:
    assert keys.allow_list is not None
    return TwoServerTerms(
        length=counters,
        bits=modulus_bits(n_max, max_items),
        n_max=n_max,
        min_batch=n_min - int(max(summation.dropout, MIN_DROPOUT) * n_min),
        corrupt=corrupt,
        helper_key=keys.helper.public,
        allow_list=keys.allow_list.digest,
        largest_entry=max_items,
    )


def widest(make: Callable[[int], Terms], rows: int, max_bytes: int) -> int:
    """Return the largest width with which a client uploads at most so much, all messages together; at most 2^24.

    Args:
        make: returns the terms for so many counters.
        rows: of the sketch.
        max_bytes: upload per client and round.

    Raises:
        InvalidInputError: not even one counter per row fits.
    """
    fixed = make(rows).upload_bytes
    if fixed > max_bytes:
        raise InvalidInputError(
            f"max_bytes must be at least {fixed} for this secure sum and one counter in each of {rows} rows, "
            f"got {max_bytes}; give more bytes, or smaller cohorts"
        )
    width = min(MAX_WIDTH, 1 + 8 * (max_bytes - fixed) // (rows * make(rows).bits))
    while make(rows * width).upload_bytes > max_bytes:
        width -= 1
    return width


def rekeyed(agreed: Terms, summation: Summation, keys: Keys, num_clients: Sequence[int]) -> Terms:
    """Return a plan's terms under the keys of a simulation.

    Raises:
        InvalidInputError: a round does not split into cohorts of the sizes that the plan allows.
    """
    listed = None if keys.allow_list is None else keys.allow_list.digest
    sizes = [size for count in num_clients if count for size in summation.sizes(count)]
    least = agreed.parameters.n_min if isinstance(agreed, SecAggTerms) else agreed.min_batch
    if not least <= min(sizes) <= max(sizes) <= agreed.most_clients:
        raise InvalidInputError(
            f"the plan allows cohorts of {least} to {agreed.most_clients} clients, and the rounds of this input, where "
            f"clients are drawn at random, make cohorts of {min(sizes)} to {max(sizes)}; use a plan with room for them"
        )
    if isinstance(agreed, SecAggTerms):
        return replace(agreed, server_key=keys.server.public, allow_list=listed)
    assert listed is not None
    return replace(agreed, helper_key=keys.helper.public, allow_list=listed)


class Landed(NamedTuple):
    """What came of the rounds: sketches, the tallies of the survivors, and the JSON-able account of it."""

    sketches: list[CountSketch]
    survivors: list[RoundTally]
    account: dict[str, Any]


def sum_rounds(
    plan: Plan,
    rounds: Sequence[RoundTally],
    summation: Summation,
    keys: Keys,
    rng: np.random.Generator,
    report: Callable[[str, int, int | None], None],
) -> Landed:
    """Sum every round by the protocol of the plan.

    Args:
        plan: with a secure sum.
        rounds: with their members.
        summation: how.
        keys: of which the plan names the public ones.
        rng: draws cohorts, dropouts and their stages; keys and masks come from the operating system.
        report: called as ("sum", clients done, of all).

    Raises:
        AbortedRoundError: a round cannot be finished.
    """
    server, run = FrequencyServer(plan), _Run(plan, summation, keys, rng)
    total, done, survivors = sum(tally.num_clients for tally in rounds), 0, []
    sum_up = _two_server_batch if isinstance(plan.secure_sum, TwoServerTerms) else _cohort
    for number, tally in enumerate(rounds):
        assert tally.members is not None
        alive = [np.zeros(0, np.int64)]
        order = rng.permutation(tally.num_clients)
        run.begin_round()
        for size in summation.sizes(tally.num_clients):
            cohort, order = order[:size], order[size:]
            people = [FrequencyClient.of_ids(plan, tally.members.of(client)) for client in cohort.tolist()]
            run.begin_cohort(partial(_part, report, done, size, total))
            alive.append(cohort[sum_up(server, number, people, run)])
            done += size
            report("sum", done, total)
        survivors.append(tally.members.tally(np.concatenate(alive)))
    run.account.compare(server.sketches, survivors)
    return Landed(server.sketches, survivors, run.account.to_dict())


def _part(report: Callable[[str, int, int | None], None], done: int, size: int, total: int, share: float) -> None:
    """Report that so much of a cohort is done, beside those before it."""
    report("sum", done + int(share * size), total)


def _cohort(server: FrequencyServer, number: int, people: Sequence[FrequencyClient], run: _Run) -> npt.NDArray[np.intp]:
    """Sum one cohort; return which of its clients are in the sum."""
    now, agreed = int(time.time()), run.secagg
    session = server.open(
        number,
        session=secrets.token_bytes(32),
        signing_key=run.keys.server,
        salt=secrets.token_bytes(32),
        not_before=now,
        not_after=now + _LIFETIME,
        allow_list=run.keys.allow_list,
    )
    identities = run.take_identities(len(people))
    clients = [
        person.join(
            _policy(agreed.parameters),
            journal=MemoryJournal(),
            random=secrets.token_bytes,
            identity=identity,
            allow_list=run.keys.allow_list,
        )
        for person, identity in zip(people, identities, strict=True)
    ]
    leaves = run.dropouts(len(people), [step.phase for step in EXCHANGES[agreed.parameters.adversary][1:]])
    _exchange(session, clients, ((i, session.invite) for i in range(len(clients))), {}, run)
    while session.state not in (ServerState.DONE, ServerState.ABORTED):
        _exchange(session, clients, session.outgoing(), leaves, run)
    for i, frame in session.outgoing():
        run.account.carry("result", "down", len(frame))
        clients[int(i)].receive(frame, now)
    if session.outcome is None:
        assert session.code is not None
        raise AbortedRoundError(
            f"round {number + 1} was aborted and nothing was learnt: {session.code.meaning} (code {session.code:d}); "
            "allow more dropouts, or larger cohorts"
        )
    server.land(session)
    run.account.add(len(people), session.outcome.survivors)
    return np.sort([int(session.clients[place]) for place in np.flatnonzero(session.outcome.alive)])


def _exchange(
    session: Server,
    clients: Sequence[Client],
    frames: Iterable[tuple[int | str, bytes]],
    leaves: Mapping[int, ServerState],
    run: _Run,
) -> None:
    """Carry what the server asks in a phase, and what the clients answer; then close the phase."""
    now, state, account = int(time.time()), session.state, run.account
    stage = STAGES[phase(run.secagg.parameters.adversary, state).reply]
    start = time.process_time()
    for i, frame in frames:
        asked = time.process_time()
        account.server_seconds += asked - start
        client = clients[int(i)]
        if leaves.get(int(i)) is state:
            client.abandon()
        account.carry(stage, "down", len(frame))
        answer = client.receive(frame, now)
        run.tick(len(clients) * len(EXCHANGES[run.secagg.parameters.adversary]))
        start = time.process_time()
        account.client_seconds += start - asked
        if answer is not None:
            account.carry(stage, "up", len(answer))
            session.receive(i, answer)
    session.close_phase(now)
    account.server_seconds += time.process_time() - start


def _policy(parameters: Parameters) -> ClientPolicy:
    """Return the policy of a simulated client: what its plan says, and not one client less."""
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


def _two_server_batch(
    server: FrequencyServer, number: int, people: Sequence[FrequencyClient], run: _Run
) -> npt.NDArray[np.intp]:
    """Sum one round by two servers; return which of its clients are in the sum."""
    agreed, allow_list, account = run.two_server, run.keys.allow_list, run.account
    assert allow_list is not None
    policy = two_server.BatchPolicy(min_honest=agreed.min_batch - agreed.corrupt, corrupt=agreed.corrupt)
    leader = server.leader(number, policy, allow_list, two_server.MemoryJournal())
    helper = server.helper(number, policy, allow_list, two_server.MemoryJournal(), run.keys.helper)
    leaves = run.dropouts(len(people), ["leader", "helper"])
    for i, (person, identity) in enumerate(zip(people, run.take_identities(len(people)), strict=True)):
        assert identity is not None
        run.tick(len(people))
        start = time.process_time()
        report = person.report(number, policy, journal=MemoryJournal(), identity=identity, random=secrets.token_bytes)
        sent = time.process_time()
        for name, party, frame in (("leader", leader, report.leader), ("helper", helper, report.helper)):
            if leaves.get(i) != name:  # else the report is lost on its way to this one
                account.carry(f"report to the {name}", "up", len(frame))
                party.receive(frame)
        account.client_seconds += sent - start
        account.server_seconds += time.process_time() - sent
    start = time.process_time()
    total = leader.finish(helper.answer(leader.query(helper.offer())))
    account.server_seconds += time.process_time() - start
    kept = np.array([i for i in range(len(people)) if i not in leaves], np.intp)
    server.land_batch(number, total, leader.count)
    account.add(len(people), len(kept))
    return kept


class _Run:
    """What all cohorts of a simulation share."""

    def __init__(self, plan: Plan, summation: Summation, keys: Keys, rng: np.random.Generator) -> None:
        self.keys, self.account = keys, _Account(plan, summation)
        self._agreed, self._summation, self._rng, self._taken = plan.secure_sum, summation, rng, 0
        self._ticks = 0

    @property
    def secagg(self) -> SecAggTerms:
        assert isinstance(self._agreed, SecAggTerms)
        return self._agreed

    @property
    def two_server(self) -> TwoServerTerms:
        assert isinstance(self._agreed, TwoServerTerms)
        return self._agreed

    def begin_round(self) -> None:
        """Let the identities be used again: a round's clients are others than those of the round before."""
        self._taken = 0

    def begin_cohort(self, report: Callable[[float], None]) -> None:
        """Say where the share of a cohort's work that is done is to be reported."""
        self._report, self._ticks = report, 0

    def tick(self, of: int) -> None:
        """Count one of so many steps of a cohort."""
        self._ticks += 1
        if self._ticks % _TICKS == 0:
            self._report(min(1.0, self._ticks / of))

    def take_identities(self, count: int) -> Sequence[SigningKey | None]:
        """Return identities that no client of the round has yet; None for each where there are none."""
        if not self.keys.identities:
            return [None] * count
        self._taken += count
        return self.keys.identities[self._taken - count : self._taken]

    def dropouts(self, count: int, stages: Sequence[_Stage]) -> dict[int, _Stage]:
        """Draw who of a cohort drops out, and at which of the stages."""
        gone = self._rng.permutation(count)[: int(self._summation.dropout * count)]
        self.account.dropouts += len(gone)
        when = self._rng.integers(0, len(stages), len(gone))
        return {i: stages[stage] for i, stage in zip(gone.tolist(), when.tolist(), strict=True)}


class _Account:
    """What the protocol did and cost, for the reader of the result."""

    def __init__(self, plan: Plan, summation: Summation) -> None:
        self._plan, self._summation = plan, summation
        self._carried: dict[str, dict[str, list[int]]] = {}
        self._sizes: list[int] = []
        self._survivors = 0
        self._is_equal = False
        self.dropouts = 0
        self.client_seconds = self.server_seconds = 0.0

    def carry(self, stage: str, way: str, size: int) -> None:
        """Count a message, "up" from a client or "down" to it."""
        counted = self._carried.setdefault(stage, {"up": [0, 0], "down": [0, 0]})[way]
        counted[0] += 1
        counted[1] += size

    def add(self, size: int, survivors: int) -> None:
        """Count a cohort whose sum has landed."""
        self._sizes.append(size)
        self._survivors += survivors

    def compare(self, sketches: Sequence[CountSketch], survivors: Sequence[RoundTally]) -> None:
        """Check that the secure sums are those that the survivors would have made in the clear.

        Raises:
            FedtallyError: they are not: an error of this program.
        """
        for sketch in sketches:
            tally, plain = survivors[sketch.round], CountSketch(self._plan.spec, sketch.round)
            plain.add(tally.ids, tally.counts, tally.num_clients)
            if plain.num_clients != sketch.num_clients or not np.array_equal(plain.counters, sketch.counters):
                raise FedtallyError(f"the secure sum of round {sketch.round} is not the plain sum: please report this")
        self._is_equal = True

    def to_dict(self) -> dict[str, Any]:
        """Return the account as JSON-able values; bytes are the mean of a stage's messages."""
        stages = [
            {"stage": stage, **{f"{way}load_bytes": round(ways[way][1] / max(1, ways[way][0])) for way in ways}}
            for stage, ways in self._carried.items()
        ]
        invited = sum(self._sizes)
        return {
            "method": self._summation.method,
            **self._protocol(),
            "bits": self._plan.modulus_bits,
            "cohorts": len(self._sizes),
            "smallest_cohort": min(self._sizes),
            "largest_cohort": max(self._sizes),
            "clients": invited,
            "survivors": self._survivors,
            "dropouts": self.dropouts,
            "upload_bytes": sum(stage["upload_bytes"] for stage in stages),
            "download_bytes": sum(stage["download_bytes"] for stage in stages),
            "stages": stages,
            "client_seconds": self.client_seconds / invited,
            "server_seconds": self.server_seconds,
            "equals_plain_sum": self._is_equal,
        }

    def _protocol(self) -> dict[str, Any]:
        agreed = self._plan.secure_sum
        if isinstance(agreed, TwoServerTerms):
            return {"corrupt": agreed.corrupt, "min_survivors": agreed.min_batch}
        assert agreed is not None
        parameters, graph = agreed.parameters, agreed.parameters.graph(agreed.parameters.n_max)
        return {
            "adversary": str(parameters.adversary),
            "neighbours": graph.neighbours,
            "threshold": graph.threshold,
            "corrupt": parameters.corrupt,
            "max_dropout": parameters.max_dropout_ppm / 1e6,
            "min_survivors": parameters.min_survivors,
        }
