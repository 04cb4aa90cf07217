"""The bytes and the CPU seconds of each stage of a plan, before any client is touched.

Bytes follow from the plan and the number of clients, exactly. CPU is counted in operations, which a
`Host` prices (`plan.costs`).

The stages are those of the account that a simulated campaign keeps (`Result.secure_sum`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from fedtally.base import validate
from fedtally.errors import InvalidInputError, arg
from fedtally.plan import Plan
from fedtally.plan.costs import OPERATIONS, REFERENCE, Host, decoding_work, noise_work
from fedtally.plan.parts.summing import shared_out
from fedtally.plan.sum_costs import (
    COMBINING,
    NOISE,
    RESULT,
    TO_HELPER,
    TO_LEADER,
    Line,
    lines_of_sum,
)
from fedtally.recovery.decoders import USUAL, Recovery
from fedtally.recovery.decoders.work import Work
from fedtally.secagg.messages import STAGES

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
]


class Stage(NamedTuple):
    """What one stage of the protocol takes.

    Attributes:
        stage: its name, as in the account of a simulated campaign.
        upload_bytes: the bytes of the mean message that a client sends in it, rounded.
        download_bytes: the bytes of the mean message that a client gets in it, rounded.
        received_bytes: the bytes that the servers receive, in all rounds.
        sent_bytes: the bytes that the servers send, in all rounds.
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
        stages: the stages, in the order of the protocol.
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
        identities: the entries of the allow-list; None: as many as the largest round, or release
            of two servers, has clients.
        candidates: the candidates to decode; None: all of the domain, even if they are too many to
            be enumerated.
        heavy: items that a decoder fits; None: a tenth of the counters of one sketch.
        people: the people of all silos, each with max_items rows in its silo's table; None:
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
    sums = plan.summing.sums(sizes, plan.releases)
    each = plan.people if people is None else people / max(1, sum(sums))
    rows = plan.clients.rows_of_table(each)
    lines = [
        line._replace(times=times)
        for size, times in Counter(sums).items()
        for line in lines_of_sum(plan, size, dropout, known, rows)
    ]
    if (noise := plan.protection.of_release()) is not None:
        work = noise_work(noise, plan.vector_length)
        lines.append(Line(NOISE, server=work, times=len(plan.releases)))
    return Bill(
        plan.summing.kind,
        sum(sums),
        len(sums),
        tuple(
            _stage(host, name, lines, sum(sums))
            for name in dict.fromkeys(line.stage for line in lines)
        ),
        host.price(decoding_work(plan, host.kernels, recovery, candidates, heavy)),
    )


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


def _checked_rounds(plan: Plan, rounds: Sequence[int] | None) -> list[int]:
    if rounds is None:
        return shared_out(plan.num_clients, plan.num_rounds)
    if len(rounds) != plan.num_rounds:
        raise InvalidInputError(
            f"{arg.rounds} must be the clients of each of {plan.num_rounds} rounds, got"
            f" {len(rounds)}"
        )
    return [validate.integer(0, plan.max_round_clients, clients_of_a_round=size) for size in rounds]
