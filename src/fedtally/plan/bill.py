"""The bytes and the CPU seconds of each stage of a campaign, predicted from its plan.

Without dropouts, the bytes follow exactly from the plan and from the numbers of clients in the
rounds and on the allow-list. The CPU seconds of a stage are estimated: the number of operations of
each kind, times the seconds of one operation on a machine (`plan.costs.Host`).

The stages have the same names as in `Result.secure_sum`, where a simulated campaign reports its
bytes and seconds.
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
    """The bytes and the CPU seconds of one stage of the protocol.

    Attributes:
        stage: the name of the stage, as in `Result.secure_sum`.
        upload_bytes: the mean size of a message that a client sends in this stage, rounded.
        download_bytes: the mean size of a message that a client gets in this stage, rounded.
        received_bytes: the bytes that the servers receive in this stage, in all rounds.
        sent_bytes: the bytes that the servers send in this stage, in all rounds.
        client_seconds: the CPU seconds of one client in this stage: the mean over all invited
            clients.
        server_seconds: the CPU seconds of all servers in this stage, in all rounds.
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
    """The predicted bytes and CPU seconds of a whole campaign.

    Attributes:
        method: the secure sum: "ideal", "secagg" or "two-server".
        clients: the number of clients that are invited, in all rounds together.
        sums: the number of secure sums: one for each round, for each cohort, or for each batch of
            rounds that two servers sum together.
        stages: the cost of each stage, in the order of the protocol.
        decoding_seconds: the CPU seconds that a server needs to estimate frequencies from the sums.
            The argument `candidates` of `bill` says how many frequencies.
    """

    method: str
    clients: int
    sums: int
    stages: tuple[Stage, ...]
    decoding_seconds: float

    @property
    def upload_bytes(self) -> int:
        """The mean bytes that a client sends in its round if it completes all stages."""
        return sum(stage.upload_bytes for stage in self.stages)

    @property
    def download_bytes(self) -> int:
        """The mean bytes that a client receives in its round if it completes all stages."""
        return sum(stage.download_bytes for stage in self.stages)

    @property
    def received_bytes(self) -> int:
        """The bytes that the servers receive in all rounds, from clients and from each other."""
        return sum(stage.received_bytes for stage in self.stages)

    @property
    def sent_bytes(self) -> int:
        """The bytes that the servers send in all rounds, to clients and to each other."""
        return sum(stage.sent_bytes for stage in self.stages)

    @property
    def client_seconds(self) -> float:
        """The CPU seconds of an average invited client in its round."""
        return sum(stage.client_seconds for stage in self.stages)

    @property
    def server_seconds(self) -> float:
        """The CPU seconds of the servers in all rounds, without decoding."""
        return sum(stage.server_seconds for stage in self.stages)

    def to_dict(self) -> dict[str, Any]:
        """Return the bill and its totals as values for JSON, by name."""
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
    """Return the predicted bytes and CPU seconds of a campaign with this plan.

    Without dropouts the bytes are exact. The bytes of a message in a stage are the mean over all
    such messages, rounded. With dropouts the bytes are expected values. In secagg, equally many
    clients drop out in each stage after the first. With two servers, half of the clients that drop
    out do so before the helper has their report, and half after that. If a trusted server sums,
    nobody drops out. The bytes of the transport (such as HTTP) and of the plan itself are not
    counted.

    Args:
        plan: the plan of the campaign.
        host: the machine whose CPU seconds are predicted; None: `REFERENCE`.
        recovery: the name of the decoder.
        rounds: the number of clients of each round; None: rounds of nearly equal size.
        dropout: the share of every cohort that is expected to drop out, 0 <= dropout < 1.
        identities: the number of clients on the allow-list; None: the number of clients in the
            largest round.
        candidates: the number of candidates whose frequencies are estimated; None: the whole
            domain, even if it is too large to be listed.
        heavy: the number of frequent items that the decoder fits; None: a tenth of the counters of
            one sketch.
        people: the number of people of all silos together, each with `max_items` rows in the table
            of its silo; None: the most people that the silos may have.

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
    """Return the cost of the stage `name`, over all sums."""
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
