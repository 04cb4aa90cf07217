"""What one sum takes, stage by stage: its messages, their bytes, and the operations.

Bytes follow from the plan and the number of clients, exactly. Operations are priced by a `Host`
(`plan.costs`). `LINES` has a function for each way to sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from fedtally.crypto.prg import lane
from fedtally.plan import Plan
from fedtally.plan.costs import noise_work
from fedtally.recovery.decoders.work import Work, extended
from fedtally.secagg import wire
from fedtally.secagg.messages import EXCHANGES, STAGES, Exchange, Kind
from fedtally.secagg.params import Graph, Parameters

if TYPE_CHECKING:  # the sums of one server need neither two nor proofs
    from fedtally.secagg.two_server import Kind as ReportKind
    from fedtally.secagg.two_server import ReportProof, TwoServerParameters

# the stages of a sum without messages of secure aggregation, beside that of the encoding
NOISE, RESULT = "noise", "result"
# the stages of the protocol with two servers
TO_LEADER, TO_HELPER, COMBINING = "report to the leader", "report to the helper", "combining"


class Line(NamedTuple):
    """What one stage of one sum takes: messages and their bytes, both ways, and operations.

    Attributes:
        stage: its name.
        up: messages from clients, and the bytes of each.
        down: messages to clients, and the bytes of each.
        clients: the number of clients that work.
        client: the operations of one client that works.
        server: the operations of the servers.
        between: the bytes that two servers tell each other.
        times: the number of sums like this one.
    """

    stage: str
    up: tuple[float, int] = (0, 0)
    down: tuple[float, int] = (0, 0)
    clients: float = 0
    client: Work = MappingProxyType({})
    server: Work = MappingProxyType({})
    between: int = 0
    times: int = 1


@dataclass(frozen=True)
class Crowd:
    """The clients of one sum.

    Attributes:
        plan: the campaign's plan.
        size: the clients that are invited.
        gone: the clients that drop out.
        identities: the entries of the allow-list.
        rows: the rows of a silo's table; 0 where clients are no silos.
    """

    plan: Plan
    size: int
    gone: int
    identities: int
    rows: float = 0.0

    def contributed(self) -> Work:
        """Return what making one vector takes: the sketch, and the client's share of the noise."""
        made = {"sketch": 1.0} | ({"row": self.rows} if self.rows else {})
        share = self.plan.protection.of_client()
        if share is None:
            return made
        return extended(noise_work(share, self.plan.vector_length, scans=True), **made)


def lines_of_sum(
    plan: Plan, size: int, dropout: float, identities: int, rows: float = 0.0
) -> list[Line]:
    """Return the stages of a sum of `size` clients, of which a share drops out.

    Args:
        plan: the campaign's plan.
        size: the clients that are invited.
        dropout: the share of clients that drops out.
        identities: the entries of the allow-list.
        rows: the rows of a silo's table; 0 where clients are no silos.
    """
    return LINES[plan.summing.kind](Crowd(plan, size, int(dropout * size), identities, rows))


def _planes(entries: int, bits: int) -> int:
    """Return the entries of all planes besides the first (`packing`), which take longer."""
    return entries * (bits.bit_count() - 1)


@dataclass(frozen=True)
class _Masked:
    """A sum whose vectors are masked, and have checksum entries."""

    crowd: Crowd
    parameters: Parameters | TwoServerParameters

    @property
    def vector(self) -> int:
        """The bytes of a mask."""
        entries = self.parameters.length + self.parameters.checksum_entries
        return entries * lane(self.parameters.bits).itemsize

    @property
    def planes(self) -> int:
        """The entries of a vector in planes besides the first."""
        return _planes(self.parameters.length, self.parameters.bits)


# ---- a trusted server ----


def _ideal(crowd: Crowd) -> list[Line]:
    plan, size = crowd.plan, crowd.size
    counters, bits = plan.vector_length, plan.modulus_bits
    planes = _planes(counters, bits)
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
            client=extended(crowd.contributed(), message=1, counter=counters, plane=planes),
            server=server,
        )
    ]


# ---- cohorts ----


@dataclass(frozen=True)
class _Cohort(_Masked):
    """One cohort, whose clients drop out evenly in the stages after the first.

    A client that drops out gets the message of its stage, and does not answer.
    """

    parameters: Parameters

    @cached_property
    def steps(self) -> tuple[Exchange, ...]:
        """The exchanges of the protocol, in their order."""
        return EXCHANGES[self.parameters.adversary]

    @property
    def leave(self) -> float:
        """The clients that drop out in each stage after the first."""
        return self.crowd.gone / (len(self.steps) - 1)

    @property
    def dealt(self) -> float:
        """The clients that deal shares of their secrets."""
        return self.crowd.size - self.leave

    @property
    def alive(self) -> float:
        """The clients whose vectors come."""
        return self.crowd.size - 2 * self.leave

    @cached_property
    def graph(self) -> Graph:
        """The neighbours of a client, and the shares that open a secret."""
        return self.parameters.graph(self.crowd.size)

    @property
    def dealers(self) -> int:
        """The neighbours of a client that deal shares."""
        return round(self.graph.neighbours * (self.dealt - 1) / (self.crowd.size - 1))

    @property
    def signers(self) -> int:
        """The clients that confirm who is in the sum, where they do."""
        return round(self.alive - self.leave)

    @property
    def signed(self) -> int:
        """1 where clients sign what they send, and confirm who is in the sum; else 0."""
        return int(any(step.reply is Kind.CONFIRM for step in self.steps))

    def asked(self) -> dict[Kind, float]:
        """Return the clients that are asked for each reply."""
        n = self.crowd.size
        return {
            Kind.ADVERTISE: n,
            Kind.SHARES: n,
            Kind.MASKED_INPUT: self.dealt,
            Kind.CONFIRM: self.alive,
            Kind.UNMASK: self.alive,
        }

    def answered(self) -> dict[Kind, float]:
        """Return the clients that send each reply."""
        return {
            Kind.ADVERTISE: self.crowd.size,
            Kind.SHARES: self.dealt,
            Kind.MASKED_INPUT: self.alive,
            Kind.CONFIRM: self.alive - self.leave,
            Kind.UNMASK: self.alive - self.leave * (1 + self.signed),
        }

    def of_client(self) -> dict[Kind, Work]:
        """Return the operations of one client for each reply."""
        (k, t), others = self.graph, (self.crowd.size - 1) * self.signed
        return {
            Kind.ADVERTISE: {"keys": 1, "verification": 1, "signature": self.signed},
            Kind.SHARES: {"exchange": k, "share": (k + 1) * t, "verification": others},
            Kind.MASKED_INPUT: extended(
                self.crowd.contributed(),
                exchange=self.dealers,
                mask=(self.dealers + 1) * self.vector,
                counter=self.parameters.length,
                plane=self.planes,
            ),
            Kind.CONFIRM: {"signature": 1},
            Kind.UNMASK: {"verification": (self.signers - 1) * self.signed},
        }

    def of_server(self) -> dict[Kind, Work]:
        """Return the operations of the server on all replies of each kind."""
        alive, slots = self.alive, self.crowd.size * self.graph.neighbours
        return {
            Kind.ADVERTISE: {"verification": self.crowd.size * self.signed},
            Kind.SHARES: {"slot": slots},
            Kind.MASKED_INPUT: {
                "slot": slots,
                "entry": alive * self.vector,
                "plane": alive * self.planes,
            },
            Kind.CONFIRM: {"verification": alive - self.leave},
            Kind.UNMASK: self.opening(),
        }

    def opening(self) -> Work:
        """Return the operations that take the masks off a sum."""
        k, t = self.graph
        peers = k * self.alive / self.crowd.size
        return {
            "owner": self.dealt,
            "slot": self.crowd.size * k,
            "coefficient": self.dealt * t * (t if self.crowd.gone else 1),
            "exchange": self.leave * (peers + 1),
            "mask": (self.alive + self.leave * peers) * self.vector,
            "opened": self.parameters.length,
        }


def _secagg(crowd: Crowd) -> list[Line]:
    parameters = crowd.plan.summing.of_cohorts().parameters
    cohort = _Cohort(crowd, parameters)
    asked, answered = cohort.asked(), cohort.answered()
    clients, server = cohort.of_client(), cohort.of_server()
    sizes = wire.message_bytes(
        parameters,
        crowd.size,
        identities=crowd.identities,
        dealers=cohort.dealers,
        signers=cohort.signers,
    )
    lines = [
        Line(
            STAGES[step.reply],
            (answered[step.reply], sizes[step.reply]),
            (asked[step.reply], sizes[step.request]),
            answered[step.reply],
            extended(clients[step.reply], message=1),
            extended(server[step.reply], receipt=answered[step.reply], phase=1),
        )
        for step in cohort.steps
    ]
    return [*lines, Line(RESULT, down=(cohort.alive, sizes[Kind.RESULT]))]


# ---- two servers ----


@dataclass(frozen=True)
class _Batch(_Masked):
    """One batch of two servers. Of every two reports that are lost, one reaches the helper.

    A client sends to the leader once the helper has accepted.
    """

    parameters: TwoServerParameters
    proof: ReportProof | None

    @property
    def kept(self) -> int:
        """The reports that both servers have."""
        return self.crowd.size - self.crowd.gone

    @property
    def came(self) -> float:
        """The reports that come to the helper."""
        return self.crowd.size - self.crowd.gone / 2

    def sizes(self) -> Mapping[ReportKind, int]:
        """Return the bytes of each message."""
        from fedtally.secagg.two_server.proven import proven_message_bytes
        from fedtally.secagg.two_server.reports import message_bytes

        if self.proof is None:
            return message_bytes(self.parameters, self.kept)
        return proven_message_bytes(self.proof, self.kept, round(self.came))

    def writing(self) -> Work:
        """Return the operations of a client that writes its report."""
        written = extended(
            self.crowd.contributed(),
            seal=1,
            message=1,
            counter=self.parameters.length,
            plane=self.planes,
            mask=self.vector,
            digest=self.parameters.packed_bytes,
        )
        if self.proof is None:
            return written
        return extended(written, proof=1, word=self.proof.circuit.length)

    def reading(self) -> Work:
        """Return the operations of the leader on all reports."""
        words = {} if self.proof is None else {"word": self.kept * self.proof.circuit.length}
        return extended(
            words,
            phase=1,
            receipt=self.kept,
            verification=self.kept,
            unseal=self.kept,
            digest=2 * self.kept * self.parameters.packed_bytes,
            plane=self.kept * self.planes,
        )

    def combining(self) -> Work:
        """Return the operations that check all reports and make one sum of them."""
        kept, held, counters = self.kept, round(self.came), self.parameters.length
        opened: Work = {
            "phase": 1,
            "entry": kept * self.vector,
            "plane": kept * self.planes,
            "mask": kept * self.vector,
            "opened": counters,
        }
        if self.proof is not None:
            # checked by both servers, and added up by both; modular arithmetic replaces what was
            # priced
            words = self.proof.circuit.length
            opened = extended(opened, proof=held + kept, word=(held + 3 * kept) * words)
        noise = self.crowd.plan.protection.of_server()
        return opened if noise is None else extended(opened, **noise_work(noise, 2 * counters))


def _two_server(crowd: Crowd) -> list[Line]:
    from fedtally.secagg.two_server import Kind as ReportKind
    from fedtally.secagg.two_server.reports import ID_BYTES

    plan = crowd.plan
    batch = _Batch(crowd, plan.summing.of_servers().sizing, plan.report_proof)
    sizes, came, kept = batch.sizes(), batch.came, batch.kept
    kinds = (ReportKind.OFFER, ReportKind.QUERY, ReportKind.ANSWER, ReportKind.CHECKS)
    between = sum(sizes.get(kind, 0) for kind in kinds)
    return [
        Line(
            TO_HELPER,
            (came, sizes[ReportKind.HELPER_REPORT]),
            clients=crowd.size,
            client={"message": 1, "seal": 1, "signature": 1},
            server={"phase": 1, "receipt": came, "verification": came, "unseal": came},
        ),
        Line(
            TO_LEADER,
            (kept, sizes[ReportKind.LEADER_REPORT]),
            clients=crowd.size,
            client=batch.writing(),
            server=batch.reading(),
        ),
        Line(
            COMBINING, server=batch.combining(), between=between + ID_BYTES * (round(came) - kept)
        ),
    ]


LINES: dict[str, Callable[[Crowd], list[Line]]] = {
    "ideal": _ideal,
    "secagg": _secagg,
    "two-server": _two_server,
}
