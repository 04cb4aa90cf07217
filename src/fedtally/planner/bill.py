"""What a plan costs before any client is touched: bytes, exactly, and CPU seconds, of each stage of the protocol.

Bytes follow from the plan and the number of clients. CPU is counted in operations (`OPERATIONS`):
how many of each a stage takes is known beforehand, what one of each takes is a `Host`'s.
`engines.calibration` measures a host.

The stages are those of the account that a simulated campaign keeps (`Result.secure_sum`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from fedtally import _validate, kernels
from fedtally.crypto.prg import lane
from fedtally.errors import InvalidInputError
from fedtally.plan import Plan
from fedtally.privacy.events import Trust
from fedtally.privacy.mechanism import Noise
from fedtally.recovery.decoding import kind_of
from fedtally.recovery.joint import (
    LARGEST_SUPPORT,
    NUM_PHANTOMS,
    POLISH_SWEEPS,
    POLISHES,
    PROBE_SWEEPS,
    PROBED_CELLS,
    SWEEPS,
    THRESHOLDS,
)
from fedtally.secagg import wire
from fedtally.secagg.config import SecAggConfig, TwoServerConfig
from fedtally.secagg.messages import EXCHANGES, STAGES, Kind
from fedtally.secagg.params import Adversary, Parameters
from fedtally.secagg.two_server import Kind as ReportKind
from fedtally.secagg.two_server import TwoServerParameters
from fedtally.secagg.two_server.reports import ID_BYTES, message_bytes
from fedtally.sketch import Recovery, ScheduleKind
from fedtally.sketch.hashing import SIGNS_PER_GROUP

SCHEMA = "fedtally-host/1"
# fitted items of joint recovery, as a share of the counters of one sketch, where nothing is known
HEAVY = 0.1
SKETCH, NOISE, RESULT = "sketch", "noise", "result"
TO_LEADER, TO_HELPER, COMBINING = "report to the leader", "report to the helper", "combining"
_EXACT = 1 << 24  # counts below it are decoded in single precision

OPERATIONS: Mapping[str, str] = MappingProxyType(
    {
        "message": "a message that a client reads and answers",
        "receipt": "a message that a server takes",
        "phase": "a phase of a sum, begun and closed by a server",
        "owner": "the secret of a client put together by the server, and verified",
        "keys": "a client's keys made, and its seeds committed to",
        "signature": "an Ed25519 signature made",
        "verification": "an Ed25519 signature verified",
        "exchange": "an X25519 key agreed on, and what follows from it derived, sealed or opened",
        "slot": "what the server keeps for one neighbour of a client",
        "share": "one product of a share of a client's secrets",
        "coefficient": "one coefficient of what opens a secret",
        "mask": "a byte of a mask, made and added",
        "sketch": "a sketch begun and hashed into",
        "counter": "a counter of a client: written, checked and packed",
        "entry": "a byte of a vector, added by a server",
        "plane": "an entry that is packed or unpacked in a plane besides the first",
        "digest": "a byte of a report, hashed",
        "seal": "a seed sealed to the helper",
        "unseal": "a seed opened by the helper",
        "opened": "a counter of a sum, when it is opened",
        "draw": "a draw of noise",
        "scan": "an entry of a table of noise that a draw is compared with",
        "decoder": "a decoder made",
        "pattern": "a sum of counters that a decoder tabulates",
        "gather": "a look at a counter, in units of one in the nearest cache",
        "hash": "a candidate hashed for one row",
        "fit": "a joint fit begun and settled, whatever its size",
        "candidate": "a candidate looked at by joint recovery",
        "place": "a cell of a fitted item found, and how many others share it",
        "step": "a cell of a fitted item in one sweep",
        "cell": "a cell of the sums, in one probe of the fit",
    }
)

Work = Mapping[str, float]


@dataclass(frozen=True)
class Host:
    """What operations take on a machine: CPU seconds of all threads together.

    Args:
        kernels: the implementation in use, of `kernels.available_backends`.
        version: of fedtally.
        seconds: of one of each of `OPERATIONS`.

    Raises:
        InvalidInputError: an operation is missing, unknown or of no finite, non-negative time.

    >>> REFERENCE.price({"message": 2.0, "exchange": 0.0}) == 2 * REFERENCE.seconds["message"]
    True
    """

    kernels: str
    version: str
    seconds: Mapping[str, float]

    def __post_init__(self) -> None:
        for name in ("kernels", "version"):
            if not isinstance(getattr(self, name), str):
                raise InvalidInputError(f"{name} must be a text, got {getattr(self, name)!r}")
        if not isinstance(self.seconds, Mapping) or self.seconds.keys() != OPERATIONS.keys():
            raise InvalidInputError(
                f"the seconds of a host must be those of {', '.join(OPERATIONS)}"
            )
        checked = {name: _validate.real(0.0, **{name: self.seconds[name]}) for name in OPERATIONS}
        object.__setattr__(self, "seconds", MappingProxyType(checked))

    def price(self, work: Work) -> float:
        """Return the seconds that some operations take."""
        return sum(count * self.seconds[name] for name, count in work.items())

    def to_dict(self) -> dict[str, Any]:
        """Return the host as JSON-able values."""
        return {
            "schema": SCHEMA,
            "kernels": self.kernels,
            "version": self.version,
            "seconds": dict(self.seconds),
        }

    @classmethod
    def from_dict(cls, values: Any) -> Self:
        """Return the host that `to_dict` described.

        Raises:
            InvalidInputError: an entry is missing, unknown or out of bounds, or the schema is
                another.
        """
        if not isinstance(values, Mapping) or set(values) != {
            "schema",
            "kernels",
            "version",
            "seconds",
        }:
            raise InvalidInputError(
                "a host is a table with the entries schema, kernels, version and seconds"
            )
        if values["schema"] != SCHEMA:
            raise InvalidInputError(
                f"the host is of schema {values['schema']!r}, this version reads {SCHEMA!r}"
            )
        return cls(values["kernels"], values["version"], values["seconds"])


REFERENCE = Host(
    "v4",
    "0.1.0",
    {
        "message": 4e-05,
        "receipt": 1.6e-05,
        "phase": 0.0002,
        "owner": 4.5e-05,
        "keys": 0.00011,
        "signature": 1.9e-05,
        "verification": 7.6e-05,
        "exchange": 6.6e-05,
        "slot": 1.2e-07,
        "share": 5.2e-09,
        "coefficient": 2.8e-09,
        "mask": 1e-10,
        "sketch": 1.6e-05,
        "counter": 1.6e-09,
        "entry": 1.4e-10,
        "plane": 3.2e-10,
        "digest": 7.6e-10,
        "seal": 0.00014,
        "unseal": 7.6e-05,
        "opened": 1.7e-09,
        "draw": 1.9e-09,
        "scan": 7e-11,
        "decoder": 4.3e-05,
        "pattern": 2.4e-09,
        "gather": 2.9e-10,
        "hash": 3e-10,
        "fit": 0.01,
        "candidate": 8.2e-10,
        "place": 5.8e-08,
        "step": 1.6e-09,
        "cell": 2.3e-08,
    },
)
"""Measured once on one core of an AMD EPYC (Zen 5) virtual machine, shared with others: calibrate your own."""


class Stage(NamedTuple):
    """What one stage of the protocol takes.

    Attributes:
        stage: its name, as in the account of a simulated campaign.
        upload_bytes: of the mean message that a client sends in it, rounded.
        download_bytes: of the mean message that a client gets in it, rounded.
        received_bytes: that the servers receive, in all rounds.
        sent_bytes: that the servers send, in all rounds.
        client_seconds: CPU of the mean client that is invited.
        server_seconds: CPU of the servers, in all rounds.
    """

    stage: str
    upload_bytes: int
    download_bytes: int
    received_bytes: int
    sent_bytes: int
    client_seconds: float
    server_seconds: float


@dataclass(frozen=True)
class Bill:
    """What a plan costs.

    Attributes:
        method: the secure sum: ideal, secagg or two-server.
        clients: invited, in all rounds.
        sums: how many are made: cohorts, or batches of two servers.
        stages: in the order of the protocol.
        decoding_seconds: CPU from the sums to an estimate of every candidate.
    """

    method: str
    clients: int
    sums: int
    stages: tuple[Stage, ...]
    decoding_seconds: float

    @property
    def upload_bytes(self) -> int:
        """What a client sends in its round."""
        return sum(stage.upload_bytes for stage in self.stages)

    @property
    def download_bytes(self) -> int:
        """What a client gets in its round."""
        return sum(stage.download_bytes for stage in self.stages)

    @property
    def received_bytes(self) -> int:
        """What the servers receive in all rounds; what two servers tell each other counts."""
        return sum(stage.received_bytes for stage in self.stages)

    @property
    def sent_bytes(self) -> int:
        """What the servers send in all rounds; what two servers tell each other counts."""
        return sum(stage.sent_bytes for stage in self.stages)

    @property
    def client_seconds(self) -> float:
        """CPU of a client in its round."""
        return sum(stage.client_seconds for stage in self.stages)

    @property
    def server_seconds(self) -> float:
        """CPU of the servers in all rounds, without decoding."""
        return sum(stage.server_seconds for stage in self.stages)

    def to_dict(self) -> dict[str, Any]:
        """Return the bill as JSON-able values, with its totals."""
        totals = ("upload", "download", "received", "sent")
        return {
            **asdict(self),
            "stages": [stage._asdict() for stage in self.stages],
            **{f"{name}_bytes": getattr(self, f"{name}_bytes") for name in totals},
            "client_seconds": self.client_seconds,
            "server_seconds": self.server_seconds,
        }


def bill(
    plan: Plan,
    host: Host | None = None,
    *,
    recovery: str = "joint",
    rounds: Sequence[int] | None = None,
    dropout: float = 0.0,
    identities: int | None = None,
    candidates: int | None = None,
    heavy: int | None = None,
) -> Bill:
    """Return what a campaign by this plan costs.

    Without dropouts the bytes are those that the protocol sends, exactly: of a stage the mean over
    all messages of all cohorts, rounded, as in the account of a simulated campaign. With dropouts,
    of which as many happen in each stage after the first, they are expected ones. Neither what
    carries the messages counts, nor that clients get the plan.

    Args:
        plan: the campaign's.
        host: whose CPU is asked for; None: `REFERENCE`.
        recovery: "joint" or "median".
        rounds: clients of each round; None: all alike.
        dropout: the share of every cohort that is expected to drop out.
        identities: in the allow-list; None: as many as the largest round, or release of two
            servers, has clients.
        candidates: that are decoded; None: all of the domain, even if they are too many to be
            enumerated.
        heavy: items that joint recovery fits; None: a tenth of the counters of one sketch.

    Raises:
        InvalidInputError: a value is out of bounds, or does not fit the plan.

    >>> domain = {"kind": "range", "size": 150_868, "public": True, "first": 1, "last": 150_868}
    >>> plan = Plan(rows=7, width=2000, schedule="hybrid", num_rounds=10, num_clients=150_000, max_round_clients=15_000,
    ...             domain=domain, max_items=1, seed=bytes(32))
    >>> bill(plan).upload_bytes, bill(plan).received_bytes
    (26250, 3937500000)
    """
    Recovery.parse(recovery)
    if not 0 <= _validate.real(dropout=dropout) < 1:
        raise InvalidInputError(f"dropout must be at least 0 and below 1, got {dropout}")
    host, sizes = host or REFERENCE, _checked_rounds(plan, rounds)
    known = max(1, *sizes) if identities is None else _validate.integer(1, identities=identities)
    sums = sums_of(plan, sizes)
    lines = [
        line._replace(times=times)
        for size, times in Counter(sums).items()
        for line in lines_of_sum(plan, size, dropout, known)
    ]
    if plan.privacy is not None and plan.privacy.event.trust is Trust.CENTRAL:
        lines.append(
            Line(
                NOISE,
                server=noise_work(plan.privacy.noise(), plan.rows * plan.width),
                times=len(plan.releases),
            )
        )
    return Bill(
        "ideal" if plan.secure_sum is None else plan.secure_sum.method,
        sum(sums),
        len(sums),
        tuple(
            _stage(host, name, lines, sum(sums))
            for name in dict.fromkeys(line.stage for line in lines)
        ),
        host.price(decoding_work(plan, host.kernels, recovery, candidates, heavy)),
    )


class Line(NamedTuple):
    """What one stage of one sum takes: messages and their bytes, both ways, and operations.

    Attributes:
        stage: its name.
        up: messages from clients, and the bytes of each.
        down: messages to clients, and the bytes of each.
        clients: how many clients work.
        client: the operations of one that does.
        server: those of the servers.
        between: bytes that two servers tell each other.
        times: how many sums are like this one.
    """

    stage: str
    up: tuple[float, int] = (0, 0)
    down: tuple[float, int] = (0, 0)
    clients: float = 0
    client: Work = MappingProxyType({})
    server: Work = MappingProxyType({})
    between: int = 0
    times: int = 1


def _stage(host: Host, name: str, lines: Sequence[Line], clients: int) -> Stage:
    """Return the bill of one stage of all sums."""
    mine = [line for line in lines if line.stage == name]
    up, down = (
        [(line.times * getattr(line, way)[0], getattr(line, way)[1]) for line in mine]
        for way in ("up", "down")
    )
    between = sum(line.times * line.between for line in mine)
    return Stage(
        name,
        upload_bytes=_mean(up),
        download_bytes=_mean(down),
        received_bytes=_total(up) + between,
        sent_bytes=_total(down) + between,
        client_seconds=sum(line.times * line.clients * host.price(line.client) for line in mine)
        / max(1, clients),
        server_seconds=sum(line.times * host.price(line.server) for line in mine),
    )


def _total(messages: Sequence[tuple[float, int]]) -> int:
    return round(sum(count * size for count, size in messages))


def _mean(messages: Sequence[tuple[float, int]]) -> int:
    return round(
        sum(count * size for count, size in messages) / max(1, sum(count for count, _ in messages))
    )


# ---- who is in which sum ----


def _checked_rounds(plan: Plan, rounds: Sequence[int] | None) -> list[int]:
    if rounds is None:
        return _shared_out(plan.num_clients, plan.num_rounds)
    if len(rounds) != plan.num_rounds:
        raise InvalidInputError(
            f"rounds must be the clients of each of {plan.num_rounds} rounds, got {len(rounds)}"
        )
    return [
        _validate.integer(0, plan.max_round_clients, clients_of_a_round=size) for size in rounds
    ]


def sums_of(plan: Plan, rounds: Sequence[int]) -> list[int]:
    """Return how many clients are in each sum: a round is split into the fewest cohorts, of about one size.

    Two servers add up the rounds of each release.
    """
    if plan.is_two_server:
        rounds = [sum(rounds[release.start : release.stop]) for release in plan.releases]
    if not isinstance(plan.secure_sum, SecAggConfig):
        return [size for size in rounds if size]
    most = plan.secure_sum.most_clients
    return [part for size in rounds if size for part in _shared_out(size, -(-size // most))]


def _shared_out(clients: int, parts: int) -> list[int]:
    small, larger = divmod(clients, parts)
    return [small + 1] * larger + [small] * (parts - larger)


# ---- the stages of a sum ----


def lines_of_sum(plan: Plan, size: int, dropout: float, identities: int) -> list[Line]:
    """Return the stages of a sum of so many clients, of which a share drops out.

    Args:
        plan: the campaign's.
        size: clients that are invited.
        dropout: the share that drops out.
        identities: in the allow-list.
    """
    agreed, gone = plan.secure_sum, int(dropout * size)
    if isinstance(agreed, SecAggConfig):
        return _secagg_lines(plan, agreed.parameters, size, gone, identities)
    if isinstance(agreed, TwoServerConfig):
        return _two_server_lines(plan, agreed.sizing, size, gone)
    counters = plan.rows * plan.width
    bits, planes = plan.modulus_bits, counters * (plan.modulus_bits.bit_count() - 1)
    client = _joined(_contributed(plan), message=1, counter=counters, plane=planes)
    server = {
        "receipt": size,
        "phase": 1,
        "entry": size * counters * lane(bits).itemsize,
        "plane": size * planes,
    }
    return [Line(SKETCH, (size, plan.bytes_per_client), clients=size, client=client, server=server)]


def _contributed(plan: Plan) -> Work:
    """Return what making one vector takes: the sketch, and the client's share of the noise."""
    if plan.privacy is None or not plan.privacy.by_clients:
        return {"sketch": 1}
    return _joined(noise_work(plan.privacy.share(), plan.rows * plan.width, scans=True), sketch=1)


def noise_work(noise: Noise, draws: int, scans: bool = False) -> Work:
    """Return what draws of noise take; those that scan a small table do so in constant time."""
    if scans and noise.is_small:
        return {"scan": draws * len(noise.masses), "mask": 8 * draws}
    return {"draw": draws}


def _joined(work: Work, **more: float) -> Work:
    """Return these operations and more."""
    return {name: work.get(name, 0) + more.get(name, 0) for name in work.keys() | more.keys()}


def _secagg_lines(
    plan: Plan, parameters: Parameters, n: int, gone: int, identities: int
) -> list[Line]:
    """Return the stages of one cohort of n clients, of which so many drop out, evenly over the stages after the first.

    A client that drops out gets the message of its stage, and does not answer.
    """
    active, (k, t) = parameters.adversary is Adversary.ACTIVE, parameters.graph(n)
    leave = gone / (len(EXCHANGES[parameters.adversary]) - 1)
    dealt, alive = n - leave, n - 2 * leave
    dealers, peers, signers = round(k * (dealt - 1) / (n - 1)), k * alive / n, round(alive - leave)
    sizes = wire.message_bytes(
        parameters, n, identities=identities, dealers=dealers, signers=signers
    )
    vector = (parameters.length + parameters.checksum_entries) * lane(parameters.bits).itemsize
    signed, others = int(active), (n - 1) * int(active)
    planes = parameters.length * (parameters.bits.bit_count() - 1)

    def line(
        request: Kind, reply: Kind, asked: float, answered: float, client: Work, server: Work
    ) -> Line:
        up, down = (answered, sizes[reply]), (asked, sizes[request])
        return Line(
            STAGES[reply],
            up,
            down,
            answered,
            _joined(client, message=1),
            _joined(server, receipt=answered, phase=1),
        )

    slots = n * k
    joined = {"keys": 1, "verification": 1, "signature": signed}
    shared = {"exchange": k, "share": (k + 1) * t, "verification": others}
    masked = _joined(
        _contributed(plan),
        exchange=dealers,
        mask=(dealers + 1) * vector,
        counter=parameters.length,
        plane=planes,
    )
    summed = {"slot": slots, "entry": alive * vector, "plane": alive * planes}
    opened = {
        "owner": dealt,
        "slot": slots,
        "coefficient": dealt * t * (t if gone else 1),
        "exchange": leave * (peers + 1),
        "mask": (alive + leave * peers) * vector,
        "opened": parameters.length,
    }
    first = [
        line(Kind.INVITE, Kind.ADVERTISE, n, n, joined, {"verification": n * signed}),
        line(Kind.ROSTER, Kind.SHARES, n, dealt, shared, {"slot": slots}),
        line(Kind.INBOX, Kind.MASKED_INPUT, dealt, alive, masked, summed),
    ]
    told = Line(RESULT, down=(alive, sizes[Kind.RESULT]))
    if not active:
        return [*first, line(Kind.SURVIVORS, Kind.UNMASK, alive, alive - leave, {}, opened), told]
    checked = {"verification": signers - 1}
    return [
        *first,
        line(
            Kind.SURVIVORS,
            Kind.CONFIRM,
            alive,
            alive - leave,
            {"signature": 1},
            {"verification": alive - leave},
        ),
        line(Kind.CONFIRMATIONS, Kind.UNMASK, alive, alive - 2 * leave, checked, opened),
        told,
    ]


def _two_server_lines(plan: Plan, parameters: TwoServerParameters, n: int, gone: int) -> list[Line]:
    """Return the stages of one batch of n clients; half of the reports that are lost would be the leader's."""
    counters, kept, came = parameters.length, n - gone, n - gone / 2
    sizes, packed = message_bytes(parameters, kept), parameters.packed_bytes
    vector = (counters + parameters.checksum_entries) * lane(parameters.bits).itemsize
    planes = counters * (parameters.bits.bit_count() - 1)
    written = _joined(
        _contributed(plan), message=1, counter=counters, plane=planes, mask=vector, digest=packed
    )
    opened: Work = {
        "phase": 1,
        "entry": kept * vector,
        "plane": kept * planes,
        "mask": kept * vector,
        "opened": counters,
    }
    if plan.privacy is not None and plan.privacy.event.trust is Trust.DISTRIBUTED:
        opened = _joined(opened, **noise_work(plan.privacy.noise(), 2 * counters))
    offered = round(came) - kept
    between = [sizes[kind] for kind in (ReportKind.OFFER, ReportKind.QUERY, ReportKind.ANSWER)]
    return [
        Line(
            TO_LEADER,
            (came, sizes[ReportKind.LEADER_REPORT]),
            clients=n,
            client=written,
            server={
                "phase": 1,
                "receipt": came,
                "verification": came,
                "digest": 2 * came * packed,
                "plane": came * planes,
            },
        ),
        Line(
            TO_HELPER,
            (came, sizes[ReportKind.HELPER_REPORT]),
            clients=n,
            client={"message": 1, "seal": 1, "signature": 1},
            server={"phase": 1, "receipt": came, "verification": came, "unseal": came},
        ),
        Line(COMBINING, server=opened, between=sum(between) + ID_BYTES * offered),
    ]


# ---- decoding ----


def decoding_work(
    plan: Plan,
    backend: str,
    recovery: str = "joint",
    candidates: int | None = None,
    heavy: int | None = None,
) -> Work:
    """Return what the way from the sums to an estimate of every candidate takes; see `bill`.

    Args:
        plan: the campaign's.
        backend: the kernels.
        recovery: "joint" or "median".
        candidates: that are decoded.
        heavy: items that joint recovery fits.
    """
    size = plan.domain_size if candidates is None else _validate.integer(1, candidates=candidates)
    is_exact = plan.num_clients * plan.max_items < _EXACT
    once = _looked(plan, backend, size, 4 if is_exact else 8)
    if not kind_of(recovery).fits_items:
        return once
    cells, batches = plan.rows * plan.width, plan.schedule.num_batches(plan.num_rounds)
    several = batches > 1
    most = min(size, int(LARGEST_SUPPORT[several] * cells))
    fitted = min(
        most, max(1, int(HEAVY * cells)) if heavy is None else _validate.integer(0, heavy=heavy)
    )
    probes = (POLISHES + 1) * min(64, -(-PROBED_CELLS[several] // (cells * batches)))
    sweeps = len(THRESHOLDS) * SWEEPS + POLISHES * POLISH_SWEEPS + probes * PROBE_SWEEPS
    looks = len(THRESHOLDS) + POLISHES + 1
    each, phantoms = _looked(plan, backend, size, 4), _looked(plan, backend, NUM_PHANTOMS, 4)
    own = batches if plan.schedule.kind is ScheduleKind.FRESH else 1
    return {name: looks * count + phantoms[name] for name, count in each.items()} | {
        "fit": 1,
        "candidate": looks * size,
        "place": fitted * plan.rows * own * (looks + POLISHES),
        "step": fitted * plan.rows * batches * sweeps,
        "cell": probes * cells * batches,
    }


def _looked(plan: Plan, backend: str, candidates: int, itemsize: int) -> dict[str, float]:
    """Return what a decoder takes that looks at every candidate once."""
    batches = plan.schedule.num_batches(plan.num_rounds)
    parts, together = (batches, 1) if plan.schedule.kind is ScheduleKind.FRESH else (1, batches)
    gathers, patterns = _gathered((together, plan.rows, plan.width), itemsize, candidates, backend)
    rows = parts * plan.rows
    return {
        "decoder": parts,
        "pattern": rows * patterns,
        "gather": rows * candidates * gathers,
        "hash": rows * candidates * -(-together // SIGNS_PER_GROUP),
    }


def _gathered(
    shape: tuple[int, int, int], itemsize: int, candidates: int, backend: str
) -> tuple[float, int]:
    """Return what a candidate's counters in one row cost to look at, and how many sums are tabulated for it in a row.

    The compiled kernels tabulate the sums of batches for every pattern of their signs; NumPy's look
    at each batch.
    """
    batches, _, width = shape
    if backend == "numpy":
        return float(batches), 0
    tables = kernels.plan_subtables(shape, itemsize, candidates)
    cells = sum(width << table.bits for table in tables)
    cost = next(cost for bound, cost in kernels.GATHER_COSTS if cells * itemsize <= bound)
    return len(tables) * cost, cells
