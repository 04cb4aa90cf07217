"""The bytes and the CPU seconds of each stage of a plan, before any client is touched.

Bytes follow from the plan and the number of clients, exactly. CPU is counted in operations, which a
`Host` prices (`plan.costs`).

The stages are those of the account that a simulated campaign keeps (`Result.secure_sum`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from fedtally.base import validate
from fedtally.crypto.prg import lane
from fedtally.errors import InvalidInputError, arg
from fedtally.plan import Plan
from fedtally.plan.costs import OPERATIONS, REFERENCE, Host, decoding_work, noise_work
from fedtally.privacy.events import Trust
from fedtally.recovery.decoders import USUAL, Recovery
from fedtally.recovery.decoders.work import Work, extended
from fedtally.secagg import wire
from fedtally.secagg.config import SecAggConfig, TwoServerConfig
from fedtally.secagg.messages import EXCHANGES, STAGES, Kind
from fedtally.secagg.params import Adversary, Parameters
from fedtally.secagg.two_server import Kind as ReportKind
from fedtally.secagg.two_server.proven import proven_message_bytes
from fedtally.secagg.two_server.reports import ID_BYTES, message_bytes

__all__ = [
    "COMBINING",
    "NOISE",
    "OPERATIONS",
    "REFERENCE",
    "RESULT",
    "STAGES",
    "TO_HELPER",
    "TO_LEADER",
    "Bill",
    "Host",
    "Line",
    "Stage",
    "Work",
    "bill",
    "decoding_work",
    "lines_of_sum",
    "noise_work",
    "sums_of",
]

# the stages of a sum without messages of secure aggregation, beside that of the encoding
NOISE, RESULT = "noise", "result"
# the stages of the protocol with two servers
TO_LEADER, TO_HELPER, COMBINING = "report to the leader", "report to the helper", "combining"


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
    recovery: str = USUAL,
    rounds: Sequence[int] | None = None,
    dropout: float = 0.0,
    identities: int | None = None,
    candidates: int | None = None,
    heavy: int | None = None,
    people: int | None = None,
) -> Bill:
    """Return what a campaign by this plan costs.

    Without dropouts the bytes are those that the protocol sends, exactly: of a stage the mean over
    all messages of all cohorts, rounded, as in the account of a simulated campaign. With dropouts,
    of which as many happen in each stage after the first, they are expected ones. Neither what
    carries the messages counts, nor that clients get the plan.

    Args:
        plan: the campaign's.
        host: whose CPU is asked for; None: `REFERENCE`.
        recovery: the name of a decoder.
        rounds: clients of each round; None: all alike.
        dropout: the share of every cohort that is expected to drop out.
        identities: in the allow-list; None: as many as the largest round, or release of two
            servers, has clients.
        candidates: that are decoded; None: all of the domain, even if they are too many to be
            enumerated.
        heavy: items that a decoder fits; None: a tenth of the counters of one sketch.
        people: that all silos together have, each with max_items rows in its silo's table; None:
            as many as the silos may have.

    Raises:
        InvalidInputError: a value is out of bounds, or does not fit the plan.

    >>> domain = {"kind": "range", "size": 150_868, "public": True, "first": 1, "last": 150_868}
    >>> plan = Plan(rows=7, width=2000, schedule="hybrid", num_rounds=10, num_clients=150_000,
    ...             max_round_clients=15_000, domain=domain, max_items=1, seed=bytes(32))
    >>> bill(plan).upload_bytes, bill(plan).received_bytes
    (26250, 3937500000)
    """
    Recovery.parse(recovery)
    if not 0 <= validate.real(dropout=dropout) < 1:
        raise InvalidInputError(f"{arg.dropout} must be at least 0 and below 1, got {dropout}")
    host, sizes = host or REFERENCE, _checked_rounds(plan, rounds)
    known = max(1, *sizes) if identities is None else validate.integer(1, identities=identities)
    sums = sums_of(plan, sizes)
    rows = 0.0  # of the mean silo's table
    if plan.is_of_silos:
        each = plan.people if people is None else people / max(1, sum(sums))
        rows = each * plan.max_items
    lines = [
        line._replace(times=times)
        for size, times in Counter(sums).items()
        for line in lines_of_sum(plan, size, dropout, known, rows)
    ]
    if plan.privacy is not None and plan.privacy.event.trust is Trust.CENTRAL:
        lines.append(
            Line(
                NOISE,
                server=noise_work(plan.privacy.noise(), plan.vector_length),
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


# ---- the clients of each sum ----


def _checked_rounds(plan: Plan, rounds: Sequence[int] | None) -> list[int]:
    if rounds is None:
        return _shared_out(plan.num_clients, plan.num_rounds)
    if len(rounds) != plan.num_rounds:
        raise InvalidInputError(
            f"{arg.rounds} must be the clients of each of {plan.num_rounds} rounds, got"
            f" {len(rounds)}"
        )
    return [validate.integer(0, plan.max_round_clients, clients_of_a_round=size) for size in rounds]


def sums_of(plan: Plan, rounds: Sequence[int]) -> list[int]:
    """Return how many clients are in each sum.

    A round is split into the fewest cohorts that the limit allows, all of about one size.
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


def lines_of_sum(
    plan: Plan, size: int, dropout: float, identities: int, rows: float = 0.0
) -> list[Line]:
    """Return the stages of a sum of so many clients, of which a share drops out.

    Args:
        plan: the campaign's.
        size: clients that are invited.
        dropout: the share that drops out.
        identities: in the allow-list.
        rows: of a silo's table; 0 where clients are no silos.
    """
    agreed, gone = plan.secure_sum, int(dropout * size)
    if isinstance(agreed, SecAggConfig):
        return _secagg_lines(plan, agreed.parameters, size, gone, identities, rows)
    if isinstance(agreed, TwoServerConfig):
        return _two_server_lines(plan, agreed, size, gone)
    counters = plan.vector_length
    bits, planes = plan.modulus_bits, counters * (plan.modulus_bits.bit_count() - 1)
    client = extended(_contributed(plan, rows), message=1, counter=counters, plane=planes)
    server = {
        "receipt": size,
        "phase": 1,
        "entry": size * counters * lane(bits).itemsize,
        "plane": size * planes,
    }
    return [
        Line(
            str(plan.encoding),
            (size, plan.bytes_per_client),
            clients=size,
            client=client,
            server=server,
        )
    ]


def _contributed(plan: Plan, rows: float = 0.0) -> Work:
    """Return what making one vector takes: the sketch, and the client's share of the noise."""
    made = {"sketch": 1.0} | ({"row": rows} if rows else {})
    if plan.privacy is None or not plan.privacy.by_clients:
        return made
    return extended(noise_work(plan.privacy.share(), plan.vector_length, scans=True), **made)


def _secagg_lines(
    plan: Plan, parameters: Parameters, n: int, gone: int, identities: int, rows: float
) -> list[Line]:
    """Return the stages of one cohort of n clients, of which `gone` drop out.

    As many drop out in each stage after the first. A client that drops out
    gets the message of its stage, and does not answer.
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
            extended(client, message=1),
            extended(server, receipt=answered, phase=1),
        )

    slots = n * k
    joined = {"keys": 1, "verification": 1, "signature": signed}
    shared = {"exchange": k, "share": (k + 1) * t, "verification": others}
    masked = extended(
        _contributed(plan, rows),
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


def _two_server_lines(plan: Plan, agreed: TwoServerConfig, n: int, gone: int) -> list[Line]:
    """Return the stages of one batch of n clients of two servers, of which `gone` drop out.

    Of every two reports that are lost, one reaches the helper. A client sends to the leader once
    the helper has accepted.
    """
    parameters, proof = agreed.sizing, plan.report_proof
    counters, kept, came = parameters.length, n - gone, n - gone / 2  # at the helper
    packed, held = parameters.packed_bytes, round(came)
    if proof is None:
        sizes = message_bytes(parameters, kept)
    else:
        sizes = proven_message_bytes(proof, kept, held)
    vector = (counters + parameters.checksum_entries) * lane(parameters.bits).itemsize
    planes = counters * (parameters.bits.bit_count() - 1)
    written = extended(
        _contributed(plan),
        seal=1,
        message=1,
        counter=counters,
        plane=planes,
        mask=vector,
        digest=packed,
    )
    opened: Work = {
        "phase": 1,
        "entry": kept * vector,
        "plane": kept * planes,
        "mask": kept * vector,
        "opened": counters,
    }
    read: Work = {}  # by the leader
    if proof is not None:
        words = proof.circuit.length
        written = extended(written, proof=1, word=words)
        read = {"word": kept * words}
        # checked by both servers, and added up by both; modular arithmetic replaces what was priced
        opened = extended(opened, proof=held + kept, word=(held + 3 * kept) * words)
    if plan.privacy is not None and plan.privacy.event.trust is Trust.DISTRIBUTED:
        opened = extended(opened, **noise_work(plan.privacy.noise(), 2 * counters))
    kinds = (ReportKind.OFFER, ReportKind.QUERY, ReportKind.ANSWER, ReportKind.CHECKS)
    between = sum(sizes.get(kind, 0) for kind in kinds)
    return [
        Line(
            TO_HELPER,
            (came, sizes[ReportKind.HELPER_REPORT]),
            clients=n,
            client={"message": 1, "seal": 1, "signature": 1},
            server={"phase": 1, "receipt": came, "verification": came, "unseal": came},
        ),
        Line(
            TO_LEADER,
            (kept, sizes[ReportKind.LEADER_REPORT]),
            clients=n,
            client=written,
            server=extended(
                read,
                phase=1,
                receipt=kept,
                verification=kept,
                unseal=kept,
                digest=2 * kept * packed,
                plane=kept * planes,
            ),
        ),
        Line(COMBINING, server=opened, between=between + ID_BYTES * (held - kept)),
    ]
