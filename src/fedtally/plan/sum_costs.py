"""The cost of one secure sum, stage by stage: its messages, their bytes, and the operations.

Without dropouts, the bytes follow exactly from the plan and from the numbers of clients in the sum
and on the allow-list. A `Host` (`plan.costs`) turns operations into CPU seconds. `LINES` has one
function for each method of summing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from fedtally.base.shares import whole_share
from fedtally.crypto.prg import lane
from fedtally.plan import Plan
from fedtally.plan.costs import noise_work
from fedtally.recovery.decoders.work import Work, extended
from fedtally.secagg import wire
from fedtally.secagg.messages import EXCHANGES, STAGES, Exchange, Kind
from fedtally.secagg.params import Graph, Parameters

if TYPE_CHECKING:  # not loaded when it runs: only sums of two servers need these modules
    from fedtally.secagg.two_server import Kind as ReportKind
    from fedtally.secagg.two_server import ReportProof, TwoServerParameters

# names of stages besides the stages of secure aggregation and of the protocol with two servers
NOISE, RESULT = "noise", "result"
# the stages of the protocol with two servers
TO_LEADER, TO_HELPER, COMBINING = "report to the leader", "report to the helper", "combining"


class Line(NamedTuple):
    """The cost of one stage of one sum.

    Attributes:
        stage: the name of the stage.
        up: the number of messages that clients send, and the bytes of each.
        down: the number of messages that clients receive, and the bytes of each.
        clients: the number of clients that perform the operations in `client`.
        client: the operations of one client: a table of numbers by the names in `costs.OPERATIONS`.
        server: the operations of all servers for the whole sum, also a table of numbers by name.
        between: the bytes that two servers send each other for the sum.
        times: the number of sums that have this same cost.
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
        size: the number of clients that are invited.
        gone: the number of these clients that drop out.
        identities: the number of clients on the allow-list.
        rows: the mean number of rows that a silo reads from its own table of items, which are not
            the rows of the sketch; 0 if clients are persons.
    """

    plan: Plan
    size: int
    gone: int
    identities: int
    rows: float = 0.0

    def contributed(self) -> Work:
        """Return the operations with which a client makes its vector: the sketch, and its noise."""
        made = {"sketch": 1.0} | ({"row": self.rows} if self.rows else {})
        share = self.plan.protection.of_client()
        if share is None:
            return made
        return extended(noise_work(share, self.plan.vector_length, scans=True), **made)


def lines_of_sum(
    plan: Plan, size: int, dropout: float, identities: int, rows: float = 0.0
) -> list[Line]:
    """Return the cost of each stage of one sum, in the order of the protocol.

    Args:
        plan: the campaign's plan.
        size: the number of clients that are invited.
        dropout: the share of these clients that drops out; the number is rounded down.
        identities: the number of clients on the allow-list.
        rows: the mean number of rows that a silo reads from its own table, see `Crowd`; 0 if
            clients are persons.
    """
    gone = whole_share(dropout, size)
    return LINES[plan.summing.kind](Crowd(plan, size, gone, identities, rows))


def _planes(entries: int, bits: int) -> int:
    """Return the number of entries times the number of planes after the first one.

    A vector is packed in planes (`secagg.packing`): a plane has some bits of every entry. There is
    one plane for each 1 in the binary form of `bits`. Each plane after the first one costs more
    time for each entry.

    Args:
        entries: the number of entries of the vector.
        bits: the number of bits of an entry.
    """
    return entries * (bits.bit_count() - 1)


@dataclass(frozen=True)
class _Masked:
    """One sum of masked vectors. A masked vector has counters and checksum entries."""

    crowd: Crowd
    parameters: Parameters | TwoServerParameters

    @property
    def vector(self) -> int:
        """The number of bytes of a mask in memory, before a vector is packed."""
        entries = self.parameters.length + self.parameters.checksum_entries
        return entries * lane(self.parameters.bits).itemsize

    @property
    def planes(self) -> int:
        """The number of a vector's entries times the number of planes after the first one.

        Checksum entries are not counted.
        """
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
    """One cohort of secure aggregation.

    Equally many clients drop out in each stage after the first. A client that drops out in a stage
    receives the message of this stage, but does not answer it.
    """

    parameters: Parameters

    @cached_property
    def steps(self) -> tuple[Exchange, ...]:
        """The exchanges of the protocol in their order, each a request and its reply."""
        return EXCHANGES[self.parameters.adversary]

    @property
    def leave(self) -> float:
        """The expected number of clients that drop out in each stage after the first."""
        return self.crowd.gone / (len(self.steps) - 1)

    @property
    def dealt(self) -> float:
        """The expected number of clients that send shares of their secrets to their neighbours."""
        return self.crowd.size - self.leave

    @property
    def alive(self) -> float:
        """The expected number of clients whose masked vectors arrive."""
        return self.crowd.size - 2 * self.leave

    @cached_property
    def graph(self) -> Graph:
        """The number of neighbours of each client, and the number of shares that open a secret."""
        return self.parameters.graph(self.crowd.size)

    @property
    def dealers(self) -> int:
        """The rounded number of a client's neighbours that send shares of their secrets."""
        return round(self.graph.neighbours * (self.dealt - 1) / (self.crowd.size - 1))

    @property
    def signers(self) -> int:
        """The rounded number of clients that confirm with a signature who is in the sum.

        It is used only if the protocol has this step.
        """
        return round(self.alive - self.leave)

    @property
    def signed(self) -> int:
        """1 if the protocol has signatures by which clients confirm who is in the sum, else 0."""
        return int(any(step.reply is Kind.CONFIRM for step in self.steps))

    def asked(self) -> dict[Kind, float]:
        """Return the number of clients that the server asks for each kind of reply."""
        n = self.crowd.size
        return {
            Kind.ADVERTISE: n,
            Kind.SHARES: n,
            Kind.MASKED_INPUT: self.dealt,
            Kind.CONFIRM: self.alive,
            Kind.UNMASK: self.alive,
        }

    def answered(self) -> dict[Kind, float]:
        """Return the number of clients that send each kind of reply."""
        return {
            Kind.ADVERTISE: self.crowd.size,
            Kind.SHARES: self.dealt,
            Kind.MASKED_INPUT: self.alive,
            Kind.CONFIRM: self.alive - self.leave,
            Kind.UNMASK: self.alive - self.leave * (1 + self.signed),
        }

    def of_client(self) -> dict[Kind, Work]:
        """Return the operations of one client, for each kind of reply that it sends.

        What each message costs by itself is not counted here.
        """
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
        """Return the operations of the server, for all replies of each kind together.

        The receipts of the messages and the phases are not counted here.
        """
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
        """Return the operations with which the server removes the masks from the sum."""
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
    """One batch of reports that two servers sum.

    A client sends to the leader (the first server) only after the helper (the second one) has
    accepted its report. Half of the clients that drop out do so before the helper has their report,
    and the other half after that.
    """

    parameters: TwoServerParameters
    proof: ReportProof | None

    @property
    def kept(self) -> int:
        """The number of reports that both servers have."""
        return self.crowd.size - self.crowd.gone

    @property
    def came(self) -> float:
        """The expected number of reports that reach the helper."""
        return self.crowd.size - self.crowd.gone / 2

    def sizes(self) -> Mapping[ReportKind, int]:
        """Return the number of bytes of each kind of message."""
        from fedtally.secagg.two_server.proven import proven_message_bytes
        from fedtally.secagg.two_server.reports import message_bytes

        if self.proof is None:
            return message_bytes(self.parameters, self.kept)
        return proven_message_bytes(self.proof, self.kept, round(self.came))

    def writing(self) -> Work:
        """Return the operations with which one client makes its report for the leader."""
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
        """Return the operations with which the leader receives all reports."""
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
        """Return the operations with which both servers check all reports and add them up.

        If the servers add noise, the operations for the noise are included.
        """
        kept, held, counters = self.kept, round(self.came), self.parameters.length
        opened: Work = {
            "phase": 1,
            "entry": kept * self.vector,
            "plane": kept * self.planes,
            "mask": kept * self.vector,
            "opened": counters,
        }
        if self.proof is not None:
            # In addition, both servers check each report's proof, and add up the reports word by
            # word. A word is an integer mod p.
            words = self.proof.circuit.length
            opened = extended(opened, proof=held + kept, word=(held + 3 * kept) * words)
        noise = self.crowd.plan.protection.of_server()
        if noise is None:
            return opened
        return extended(opened, **noise_work(noise, 2 * counters, scans=True))


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
