"""Secure sums, in one run against Flower's SecAgg+ at equal neighbours k and threshold t.

Of ours, all messages count, encoded and decoded by the state machines; of Flower's, protobuf and
transport are free (`secagg_peer`). All our clients take part in full, and every sum is compared
with the plain one, entry by entry. The figures of a client are the median of the survivors. Clients
drop out after they have shared their keys. k and t are what the planner proposes for 5 % corrupt
clients and as many dropouts as there are, at least 5 %; in the rounds that the goals are about, for
30 %, however many there are. Entries have 16 bits. Our server sends and takes messages in batches
of 100, Flower's all of a stage: neither works in between on caches that a client has filled.

In `active` with many clients a few are measured. The others verify no signatures, and each key is
agreed on once for both its sides; that changes none of the bytes.

Masks are held to the rate of the machine's AES-256-GCM on one buffer in the cache.
"""

from __future__ import annotations

import gc
import json
import secrets
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import NamedTuple
from unittest import mock

import click
import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from benchmarks import secagg_peer
from benchmarks.kernels import repeated
from benchmarks.measure import Case, Goal, Report, interleaved, machine
from benchmarks.secagg_peer import I64, Round
from fedtally.campaign.cohort import CohortRun, carry, drive
from fedtally.crypto import keys
from fedtally.crypto.keys import KEY_BYTES, TAG_BYTES, ExchangeKey, Secret, SigningKey
from fedtally.crypto.prg import CHUNK_BYTES, Masking, lane
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.client import Client, MemoryJournal, Pinned
from fedtally.secagg.messages import ServerState
from fedtally.secagg.params import Adversary, ClientPolicy, Graph, Parameters, corrupt_clients
from fedtally.secagg.proposal import propose
from fedtally.secagg.server import ClientId, Server

BITS = 16
CORRUPT, LEAST_DROPOUT = 0.05, 0.05
SERVER_GOALS = {0.0: 3000, 0.05: 1000, 0.3: 400}  # by the share of clients that drop out
FINGERPRINT, NOW = bytes(32), 1
_PATTERNS = 8  # different vectors among the clients
_BATCH = 100  # messages that the server sends, or takes, one after the other

COHORT = """
import json, resource, sys, time
import fedtally
clients, width, options = json.loads(sys.argv[1])
start = time.perf_counter()
result = fedtally.estimate(
    [i % 100 for i in range(clients)], rows=5, width=width, dropout=0.05, max_cohort=clients,
    secure_sum="secagg", **options
)
seconds = time.perf_counter() - start
unit = 1 if sys.platform == "darwin" else 1024
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
equal = result.secure_sum["equals_plain_sum"]
print(json.dumps({"seconds": seconds, "peak": peak, "equal": equal}))
"""


class Scale(NamedTuple):
    """The size of a run: clients and entries that are compared, clients of ours alone, samples,
    turns, and the chunks of 128 KiB of masks in a turn.

    The goals are about many clients and the second length. Flower's clients take part in full where
    they are few and the length is at most the second; else, and in `active` with many clients,
    `sample` of them do.
    """

    clients: tuple[int, int]
    lengths: tuple[int, int, int]
    large: int
    sample: int
    turns: int
    chunks: int


FULL = Scale((100, 1000), (1000, 20_000, 320_000), 10_000, 5, 15, 200)
QUICK = Scale((10, 20), (50, 100, 150), 40, 2, 1, 2)


@dataclass(frozen=True)
class Row:
    """Rounds of one kind: what ours took, and Flower's."""

    parameters: Parameters
    graph: Graph
    dropout: float
    ours: Round
    peer: Round | None = None

    def ratio(self, name: str) -> float:
        """Return how many times as much Flower's took."""
        assert self.peer is not None
        return float(getattr(self.peer, name) / getattr(self.ours, name))

    def __str__(self) -> str:
        p, (k, t) = self.parameters, self.graph
        text = (
            f"{p.adversary:11} {p.n_max:7,} {p.length:8,} {100 * self.dropout:4.0f} % {k:5} {t:4}"
        )
        for name, scale in _SCALES.items():
            text += f" |{getattr(self.ours, name) * scale:8,.4g}"
            if self.peer is not None:
                mark = "~" if name == "server" and self.peer.scaled else " "
                text += f"{mark}{getattr(self.peer, name) * scale:<8,.6g}{self.ratio(name):7,.4g}x"
        return text


_SCALES = {"client": 1e3, "server": 1e3, "up": 1e-3, "down": 1e-3}
_TITLES = f"{'':11} {'clients':>7} {'entries':>8} {'drop':>6} {'k':>5} {'t':>4}" + "".join(
    f" | {title:24}"
    for title in (
        "client ms, Flower's",
        "server ms, Flower's",
        "up kB, Flower's",
        "down kB, Flower's",
    )
)


@dataclass
class RoundsReport(Report):
    """A run, with a row for the rounds of each kind; `live` rows are printed when measured."""

    rows: list[Row] = field(default_factory=list)
    live: bool = False

    def add(self, row: Row) -> Row:
        """Take a row; return it."""
        if self.live:
            click.echo(str(row) if self.rows else f"{_TITLES}\n{row}")
        self.rows.append(row)
        return row

    def emit(self, as_json: bool) -> None:
        """Print the report as text or as one JSON document."""
        if as_json:
            document = asdict(self) | {
                "goals": [{**asdict(goal), "met": goal.met} for goal in self.goals]
            }
            del document["live"]
            click.echo(json.dumps(document, indent=1))
        else:
            super().emit(as_json=False)


# ---- a round of ours ----


def run_round(
    parameters: Parameters, vectors: Sequence[I64], dropouts: int, sample: int | None = None
) -> Round:
    """Run a round of ours and measure it.

    Args:
        parameters: of n_max clients.
        vectors: one for each client.
        dropouts: clients that leave after they have shared their keys.
        sample: clients that are measured, the others are helped; None: all.

    Returns:
        What it took.

    Raises:
        click.ClickException: the round was aborted, or its sum is not the plain one.
    """
    cohort = Cohort(parameters, vectors, dropouts, sample)
    with _no_collector():
        server = cohort.run()
    if server.outcome is None:
        raise click.ClickException(
            f"the round was aborted: {server.code.meaning if server.code else server.state}"
        )
    error = float(np.abs(server.outcome.total - sum(vectors[dropouts:])).max())
    if error or server.outcome.survivors != len(vectors) - dropouts:
        raise click.ClickException(f"the sum is wrong by up to {error}")
    measured = range(dropouts if sample is None else len(vectors) - sample, len(vectors))
    client, up, down = (
        statistics.median(each[i] for i in measured)
        for each in (cohort.seconds, cohort.up, cohort.down)
    )
    return Round(client, cohort.server_seconds, round(up), round(down), False, error)


class Cohort:
    """A server and its clients, and what each of them took."""

    def __init__(
        self, parameters: Parameters, vectors: Sequence[I64], dropouts: int, sample: int | None
    ) -> None:
        n, active = len(vectors), parameters.adversary is Adversary.ACTIVE
        identities = sorted(
            (_signing_key() for _ in range(n if active else 0)), key=lambda key: key.public
        )
        listed = AllowList(key.public for key in identities) if active else None
        own, policy = _signing_key(), ClientPolicy(adversary=parameters.adversary, min_honest=2)
        pinned = Pinned(own.public, FINGERPRINT, listed, round=0)
        self._clients = [
            Client(
                policy,
                pinned,
                # bound to this turn of the loop
                lambda invite, vector=vector: vector,  # type: ignore[misc]
                journal=MemoryJournal(),
                random=secrets.token_bytes,
                identity=identities[i] if active else None,
            )
            for i, vector in enumerate(vectors)
        ]
        self._dropouts, self._measured_from = dropouts, 0 if sample is None else n - sample
        self._agreed: dict[frozenset[bytes], bytes] = {}
        self.seconds, self.up, self.down, self.server_seconds = [0.0] * n, [0] * n, [0] * n, 0.0
        with self._serving():
            self._server = Server(
                parameters,
                session=secrets.token_bytes(32),
                signing_key=own,
                fingerprint=FINGERPRINT,
                round=0,
                not_before=NOW,
                not_after=NOW + 3600,
                salt=secrets.token_bytes(32),
                random=secrets.token_bytes,
                allow_list=listed,
            )

    def run(self) -> Server:
        """Run the round to its end, in batches: neither side finds the caches of the other."""
        run = CohortRun(self._server, range(len(self._clients)))
        drive(run, self._ask, NOW, batch=_BATCH, meter=self._serving)
        carry(run, self._ask, batch=_BATCH, meter=self._serving)
        return self._server

    def _ask(self, name: ClientId, frame: bytes) -> bytes | None:
        i = int(name)
        if i < self._dropouts and self._server.state not in (
            ServerState.ADVERTISE,
            ServerState.SHARE,
        ):
            return None
        with nullcontext() if i >= self._measured_from else self._helped():
            start = time.process_time()
            answer = self._clients[i].receive(frame, NOW)
            self.seconds[i] += time.process_time() - start
        self.down[i] += len(frame)
        self.up[i] += len(answer or b"")
        return answer

    @contextmanager
    def _serving(self) -> Iterator[None]:
        """Count the time of what the server does within."""
        start = time.process_time()
        yield
        self.server_seconds += time.process_time() - start

    @contextmanager
    def _helped(self) -> Iterator[None]:
        """Spare a client the signatures of others, and what its peer has computed already."""
        exchange = ExchangeKey.exchange

        def once(own: ExchangeKey, point: bytes) -> Secret:
            pair = frozenset((own.public, point))
            agreed = self._agreed.pop(pair, None)
            if agreed is None:
                agreed = self._agreed[pair] = bytes(exchange(own, point).reveal())
            return Secret(agreed)

        with mock.patch.object(keys, "verify"), mock.patch.object(ExchangeKey, "exchange", once):
            yield


def _signing_key() -> SigningKey:
    return SigningKey(Secret(secrets.token_bytes(KEY_BYTES)))


@contextmanager
def _no_collector() -> Iterator[None]:
    """Keep the collector from walking over a thousand clients whenever one party works."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


# ---- the parts of the benchmark ----


def planned(
    clients: int, length: int, dropout: float, adversary: Adversary = Adversary.SEMI_HONEST
) -> Parameters:
    """Return the parameters for as many dropouts."""
    return propose(
        clients,
        length=length,
        bits=BITS,
        corrupt=corrupt_clients(CORRUPT, clients),
        max_dropout=max(LEAST_DROPOUT, dropout),
        adversary=adversary,
    )


def measured(parameters: Parameters, dropout: float, scale: Scale, with_peer: bool) -> Row:
    """Run the rounds of one kind: ours, and Flower's if it is there."""
    clients, graph = parameters.n_max, parameters.graph(parameters.n_max)
    some = np.random.default_rng(1).integers(-1, 2, (_PATTERNS, parameters.length))
    vectors = [some[i % _PATTERNS] for i in range(clients)]
    dropouts = round(dropout * clients)
    helped = parameters.adversary is Adversary.ACTIVE and clients > scale.clients[0]
    ours = run_round(parameters, vectors, dropouts, scale.sample if helped else None)
    if not with_peer or secagg_peer.installed() is None:
        return Row(parameters, graph, dropout, ours)
    in_full = clients == scale.clients[0] and parameters.length <= scale.lengths[1]
    with _no_collector():
        peer = secagg_peer.run_round(
            vectors, *graph, dropouts, 1, None if in_full else scale.sample
        )
    return Row(parameters, graph, dropout, ours, peer)


def compare(report: RoundsReport, scale: Scale) -> None:
    """Compare with Flower: few and many clients, three lengths, three shares of dropouts."""
    rows = [
        report.add(measured(planned(clients, length, dropout), dropout, scale, True))
        for clients in scale.clients
        for length in scale.lengths
        for dropout in SERVER_GOALS
    ]
    worst = max(row.ours.up / _allowed_upload(row) for row in rows)
    report.goals.append(
        Goal("largest upload / (V b / 8 + 60 k + 2 kB)", 100 * worst, 100, " %", at_most=True)
    )
    errors = [row.peer.error for row in rows if row.peer is not None and row.peer.error is not None]
    if errors:
        report.notes.append(
            f"our sums are exact; Flower's, with its defaults, are off by up to {max(errors):.2g}"
            " an entry"
        )


def ratios(report: RoundsReport, scale: Scale) -> None:
    """Hold client and server to Flower's, on the graph for the most dropouts."""
    parameters = planned(scale.clients[1], scale.lengths[1], max(SERVER_GOALS))
    for dropout, bound in SERVER_GOALS.items():
        row = report.add(measured(parameters, dropout, scale, True))
        if row.peer is not None:
            name = (
                f"{parameters.n_max:,} clients, {parameters.length:,} entries,"
                f" k={row.graph.neighbours}"
            )
            name += f", {100 * row.dropout:.0f} % dropouts: Flower's"
            report.goals.append(Goal(f"{name} client / ours", row.ratio("client"), 40, "x"))
            report.goals.append(Goal(f"{name} server / ours", row.ratio("server"), bound, "x"))


def _allowed_upload(row: Row) -> float:
    return row.parameters.length * BITS / 8 + 60 * row.graph.neighbours + 2000


def large(report: RoundsReport, scale: Scale) -> None:
    """Compare ten thousand clients with a thousand."""
    for dropout in SERVER_GOALS:
        many, most = (
            measured(planned(clients, scale.lengths[1], dropout), dropout, scale, False)
            for clients in (scale.clients[1], scale.large)
        )
        report.add(most)
        name = (
            f"server, {100 * dropout:.0f} % dropouts: {most.parameters.n_max:,} /"
            f" {many.parameters.n_max:,} clients"
        )
        report.goals.append(Goal(name, most.ours.server / many.ours.server, 15, "x", at_most=True))


def active(report: RoundsReport, scale: Scale) -> None:
    """Measure the protocol against a lying server, and its client against Flower's."""
    few, many = scale.clients
    rows = [
        report.add(
            measured(
                planned(clients, scale.lengths[1], dropout, Adversary.ACTIVE), dropout, scale, False
            )
        )
        for clients, dropout in (
            *((few, dropout) for dropout in SERVER_GOALS),
            (many, LEAST_DROPOUT),
        )
    ]
    if secagg_peer.installed() is None:
        return
    peer = measured(planned(many, scale.lengths[1], max(SERVER_GOALS)), 0.0, scale, True).peer
    assert peer is not None
    for row in rows[1:2] + rows[3:]:
        name = (
            f"active client among {row.parameters.n_max:,} / Flower's semi-honest one among"
            f" {many:,}"
        )
        report.goals.append(Goal(name, row.ours.client / peer.client, 1, "x", at_most=True))


def masks(report: RoundsReport, scale: Scale) -> None:
    """Compare adding masks with the machine's AES-256-GCM."""
    buffer, zeros, cipher = (
        bytearray(CHUNK_BYTES + TAG_BYTES),
        bytes(CHUNK_BYTES),
        AESGCM(bytes(KEY_BYTES)),
    )
    times, key = scale.chunks, Secret(bytes(KEY_BYTES))
    encrypt = partial(cipher.encrypt_into, bytes(12), zeros, None, buffer)
    cases = [
        Case(
            "limit: AES-256-GCM of 128 KiB",
            "",
            repeated(encrypt, times),
            times * CHUNK_BYTES,
            "GB/s",
        )
    ]
    for length in scale.lengths[1:]:
        vector = np.zeros(length, lane(BITS))
        repeats = max(1, times * CHUNK_BYTES // vector.nbytes)
        add = repeated(partial(Masking(vector).add, key), repeats)
        cases.append(Case(f"masks of {length:,} entries", "", add, repeats * vector.nbytes, "GB/s"))
    limit, *rates = interleaved(cases, scale.turns)
    report.rates += [limit, *rates]
    for rate, bound in zip(rates, (40, 65), strict=True):
        report.goals.append(
            Goal(f"{rate.name} / AES-256-GCM", 100 * rate.best / limit.best, bound, " %")
        )


def cohorts(report: RoundsReport, scale: Scale) -> None:
    """Run whole cohorts, each in a process of its own: wall time, and peak memory."""
    for name, clients, options in (
        ("semi-honest", scale.large, {}),
        ("active", scale.clients[1] // 2, {"adversary": "active"}),
    ):
        arguments = json.dumps([clients, scale.lengths[1] // 5, options])
        done = subprocess.run(
            [sys.executable, "-c", COHORT, arguments], capture_output=True, text=True, check=False
        )
        if done.returncode or not json.loads(done.stdout)["equal"]:
            raise click.ClickException(f"the cohort failed:\n{done.stderr}")
        found = json.loads(done.stdout)
        title = f"cohort of {clients:,}, {name}, 5 % dropouts"
        report.goals.append(Goal(f"{title}: wall time", found["seconds"], 180, " s", at_most=True))
        report.goals.append(
            Goal(f"{title}: peak memory", found["peak"] / 1e9, 4, " GB", at_most=True)
        )


PARTS = {
    "compare": compare,
    "ratios": ratios,
    "large": large,
    "active": active,
    "masks": masks,
    "cohorts": cohorts,
}


@click.command("secagg")
@click.option(
    "--part",
    "parts",
    multiple=True,
    type=click.Choice(list(PARTS)),
    help="Only this part; may be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--quick", is_flag=True, help="Few clients and entries, once: shows that it runs.")
def command(parts: tuple[str, ...], as_json: bool, quick: bool) -> None:
    """Measure secure sums against Flower's SecAgg+, and the masks against AES."""
    scale = QUICK if quick else FULL
    report = RoundsReport(
        machine() | {"Flower": secagg_peer.installed() or "missing"}, live=not as_json
    )
    # loads what is loaded once
    measured(planned(*QUICK.clients[:1], QUICK.lengths[0], 0.0), 0.0, QUICK, True)
    for part in parts or PARTS:
        PARTS[part](report, scale)
    if secagg_peer.installed() is None:
        report.notes.append(f"Flower is not installed: {secagg_peer.INSTALL}")
    if any(row.peer is not None and row.peer.scaled for row in report.rows):
        report.notes.append(
            f"~: the server opened the secrets of {scale.sample} clients that were present and of"
            " as many that dropped out; the time of each kind is multiplied by the number of such"
            " clients"
        )
    report.emit(as_json)
