"""The peer of our secure sum: a round of Flower's SecAgg+, with its own client and server code.

Flower's functions run unchanged; only what carries messages between them is written here, and its
time does not count, neither as a client's nor as the server's: so protobuf, gRPC and hashes of
messages are free. Bytes are those of the contents of messages as Flower's protobuf; no model goes
down with them. Seconds are of CPU, of all threads.

Where all clients of a round would take minutes, a few are measured in full and the others answer
with bytes of the same size; the server then opens the secrets of a few clients of either kind
(present, dropped out), and what a client of its kind costs is multiplied by their number. Sorting
the shares that arrive is left out then, in Flower's favour.

The peer comes with ``pip install flwr==1.41.0``.
"""

from __future__ import annotations

import copy
import importlib
import logging
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
import numpy.typing as npt

VERSION = "1.41.0"
INSTALL = f"pip install flwr=={VERSION}"
CONFIGS = "secaggplus_configs"

I64 = npt.NDArray[np.int64]
Answers = Callable[[Sequence[Any]], list[Any]]


@dataclass(frozen=True)
class Round:
    """The costs of a round: CPU seconds and bytes of a median client, and the server's seconds.

    Args:
        client: seconds.
        server: seconds.
        up: bytes.
        down: bytes.
        scaled: whether the server's seconds come from a few clients of either kind.
        error: the largest error of an entry of the sum; None where the sum was not computed.
    """

    client: float
    server: float
    up: int
    down: int
    scaled: bool
    error: float | None


def flower(module: str) -> Any:
    """Return a module of Flower.

    Raises:
        click.ClickException: Flower is not installed, with the command that does it.
    """
    try:
        return importlib.import_module(f"flwr.{module}" if module else "flwr")
    except ImportError as error:
        raise click.ClickException(f"Flower cannot be imported ({error}): {INSTALL}") from error


def installed() -> str | None:
    """Return the version of Flower, or None where it is missing."""
    try:
        return str(flower("").__version__)
    except click.ClickException:
        return None


def run_round(
    vectors: Sequence[I64],
    neighbours: int,
    threshold: int,
    dropouts: int,
    seed: int,
    measured: int | None = None,
) -> Round:
    """Run a round of Flower's SecAgg+ and measure it.

    Args:
        vectors: one for each client, of small entries.
        neighbours: k, of each client, itself not counted; even, or all others.
        threshold: shares that open a secret, 2 .. k.
        dropouts: clients that drop out after sharing their keys, before the masked vector.
        seed: of the numbers of the clients.
        measured: clients that take part in full, the others stand in; None: everybody takes part in
            full.

    Returns:
        What it took.

    Raises:
        click.ClickException: Flower is not installed, or its round failed.
    """
    flower("supercore.logger")  # sets the level when it is imported
    logging.getLogger("flwr").setLevel(logging.CRITICAL + 1)
    identity = flower("supercore.task_identity").TaskIdentity
    identity.run_id, identity.node_id, identity.task_id = 1, 1, 1
    cohort = _Cohort(vectors, neighbours + 1, threshold, dropouts, seed, measured)
    server = _Server(neighbours + 1, threshold, cohort.nodes)
    seconds = sum(
        server.stage(name, cohort.answer)
        for name in ("setup", "share_keys", "collect_masked_vectors")
    )
    if measured is None:
        seconds += server.stage("unmask", cohort.answer)
    else:
        # the clients' part
        server.release(cohort.nodes, lambda messages: cohort.answer(messages)[:0])
        seconds += _scaled_opening(server, cohort, measured)
    done = [cohort.devices[node] for node in cohort.real - cohort.dead]
    client, up, down = (
        statistics.median(getattr(one, name) for one in done) for name in ("seconds", "up", "down")
    )
    error = None
    if measured is None:
        error = float(np.abs(server.mean() * len(cohort.alive) - sum(vectors[dropouts:])).max())
    return Round(client, seconds, round(up), round(down), measured is not None, error)


def _scaled_opening(server: _Server, cohort: _Cohort, measured: int) -> float:
    """Return the seconds of unmasking, from those for a few present and a few absent clients."""
    seconds = nothing = server.release([], cohort.holders({}))
    for nodes in (cohort.alive, sorted(cohort.dead)):
        owners = nodes[:measured]
        if owners:
            shares = cohort.split({owner: server.neighbours(owner) for owner in owners})
            seconds += (
                (server.release(owners, cohort.holders(shares)) - nothing)
                * len(nodes)
                / len(owners)
            )
    return seconds


class _Server:
    """Flower's workflow, run a stage at a time, with a strategy that invites everybody."""

    def __init__(self, shares: int, threshold: int, nodes: Sequence[int]) -> None:
        app, names = flower("app"), flower("server.workflow.constant")
        module = flower("server.workflow.secure_aggregation.secaggplus_workflow")
        typing, records = flower("compat.common.typing"), flower("compat.common.recorddict_compat")
        held = app.RecordDict()
        held.config_records[names.MAIN_CONFIGS_RECORD] = app.ConfigRecord(
            {names.Key.CURRENT_ROUND: 1}
        )
        model = records.parameters_to_arrayrecord(
            typing.Parameters([], "numpy.ndarray"), keep_input=False
        )
        held.array_records[names.MAIN_PARAMS_RECORD] = model
        self._results: list[Any] = []
        strategy = SimpleNamespace(
            configure_fit=lambda number, model, manager: [
                (SimpleNamespace(node_id=node), typing.FitIns(model, {})) for node in nodes
            ],
            aggregate_fit=self._keep,
        )
        self._context = flower("server.compat.legacy_context").LegacyContext(
            app.Context(1, 1, {}, held, {}), strategy=strategy
        )
        self._workflow, self._state = (
            module.SecAggPlusWorkflow(shares, threshold),
            module.WorkflowState(),
        )

    def stage(self, name: str, answers: Answers) -> float:
        """Run a stage of the round; return its seconds without those of the clients."""
        went_on, seconds = self._timed(name, self._state, answers)
        if not went_on:
            raise click.ClickException(f"Flower's round ended at {name}: too few clients are left")
        return seconds

    def release(self, owners: Iterable[int], answers: Answers) -> float:
        """Run the last stage on a copy of the state, as if it summed these clients' masks alone."""
        state = copy.copy(self._state)
        state.sampled_node_ids = set(owners)
        state.aggregate_ndarrays = list(state.aggregate_ndarrays)
        state.nid_to_neighbours = {
            node: set(peers) for node, peers in state.nid_to_neighbours.items()
        }
        return self._timed("unmask", state, answers)[1]

    def neighbours(self, node: int) -> list[int]:
        """Return who holds the shares of a client, itself among them."""
        return sorted(self._state.nid_to_neighbours[node])

    def _keep(
        self, number: int, results: list[Any], failures: list[Any]
    ) -> tuple[None, dict[str, Any]]:
        self._results = results
        return None, {}

    def mean(self) -> npt.NDArray[np.float64]:
        """Return the result of the round."""
        (mean,) = flower("compat.common.parameter").parameters_to_ndarrays(
            self._results[0][1].parameters
        )
        return np.asarray(mean)

    def _timed(self, name: str, state: Any, answers: Answers) -> tuple[bool, float]:
        waited = 0.0

        def send_and_receive(messages: list[Any], *, timeout: float | None = None) -> list[Any]:
            nonlocal waited
            start = time.process_time()
            replies = answers(messages)
            waited += time.process_time() - start
            return replies

        start, grid = time.process_time(), SimpleNamespace(send_and_receive=send_and_receive)
        went_on = getattr(self._workflow, f"{name}_stage")(grid, self._context, state)
        return bool(went_on), time.process_time() - start - waited


class _Device:
    """A client: Flower's mod with the state that it keeps between messages, and what it took."""

    def __init__(self, node: int, vector: I64) -> None:
        app = flower("app")
        self._context = app.Context(1, node, {}, app.RecordDict(), {})
        self._vector = vector
        self.seconds, self.up, self.down = 0.0, 0, 0

    def answer(self, message: Any) -> Any:
        """Return the reply; both go through protobuf."""
        app, mod = flower("app"), flower("client.mod").secaggplus_mod
        content, size = _sent(message.content)
        received = app.Message(content, metadata=message.metadata)
        self.down += size
        start = time.process_time()
        reply = mod(received, self._context, self._train)
        self.seconds += time.process_time() - start
        content, size = _sent(reply.content)
        self.up += size
        return app.Message(content, reply_to=message)

    def secret(self, name: str) -> Any:
        """Return what the mod keeps under a name."""
        return self._context.state.config_records["secaggplus_state"][name]

    def _train(self, message: Any, context: Any) -> Any:
        """Return the vector as the trained model, at no cost."""
        start = time.process_time()
        typing, records = flower("compat.common.typing"), flower("compat.common.recorddict_compat")
        model = flower("compat.common.parameter").ndarrays_to_parameters(
            [self._vector.astype(np.float64)]
        )
        result = typing.FitRes(typing.Status(typing.Code.OK, ""), model, 1, {})
        reply = flower("app").Message(
            records.fitres_to_recorddict(result, keep_input=False), reply_to=message
        )
        self.seconds -= time.process_time() - start
        return reply


class _Cohort:
    """The clients of a round: those in full, those that drop out, and the others' answers."""

    def __init__(
        self,
        vectors: Sequence[I64],
        num_shares: int,
        threshold: int,
        dropouts: int,
        seed: int,
        measured: int | None,
    ) -> None:
        drawn = np.random.default_rng(seed).choice(2**62, len(vectors), replace=False)
        self.nodes = [int(node) for node in drawn]
        self.devices = {
            node: _Device(node, vector) for node, vector in zip(self.nodes, vectors, strict=True)
        }
        self.dead, self.alive = set(self.nodes[:dropouts]), self.nodes[dropouts:]
        self.real = set(self.nodes if measured is None else self.alive[:measured])
        self._num_shares, self._threshold = num_shares, threshold
        self._content: Any = None  # of the last reply of a client that takes part

    def answer(self, messages: Sequence[Any]) -> list[Any]:
        """Return what the clients reply, those first that take part in full."""
        ordered = sorted(
            messages, key=lambda message: message.metadata.dst_node_id not in self.real
        )
        return [self._reply(message) for message in ordered]

    def _reply(self, message: Any) -> Any:
        app, node = flower("app"), message.metadata.dst_node_id
        stage = message.content.config_records[CONFIGS]["stage"]
        if stage == "collect_masked_vectors" and node in self.dead:
            return app.Message(app.Error(0, "dropped out"), reply_to=message)
        if stage == "setup" or node in self.real:
            reply = self.devices[node].answer(message)
            self._content = reply.content
            return reply
        if stage == "share_keys":
            return _configs(message, **self._sealed(node, message.content.config_records[CONFIGS]))
        if stage == "collect_masked_vectors":
            return app.Message(self._content, reply_to=message)
        return _configs(message, nids=[], shares=[])

    def _sealed(self, node: int, configs: Any) -> dict[str, Any]:
        """Return random shares of the right size, sealed for those that will open them."""
        crypto = flower("common.secure_aggregation.crypto.symmetric_encryption")
        keys = flower("supercore.primitives.asymmetric")
        concat = flower("common.secure_aggregation.secaggplus_utils").share_keys_plaintext_concat
        opened = self._content.config_records[CONFIGS]
        sealed = {
            int(name): opened["ctxts"][0] for name in configs if name not in ("stage", str(node))
        }
        for peer in sealed.keys() & self.real:
            private = keys.bytes_to_private_key(self.devices[node].secret("sk2"))
            key = crypto.generate_shared_key(
                private, keys.bytes_to_public_key(configs[str(peer)][1])
            )
            sealed[peer] = crypto.encrypt(key, concat(node, peer, *self._blank()))
        return {"dsts": list(sealed), "ctxts": list(sealed.values())}

    def _blank(self) -> tuple[bytes, bytes]:
        """Return the shares of its own secrets that a client keeps for itself."""
        device = self.devices[self.alive[0]]
        return device.secret("rd_seed_share_dict:V")[0], device.secret("sk1_share_dict:V")[0]

    def split(self, holders: dict[int, list[int]]) -> dict[int, dict[int, bytes]]:
        """Return the shares that the server asks for, by owner and by holder that is alive."""
        create = flower("common.secure_aggregation.crypto.shamir").create_shares
        split = {}
        for owner, peers in holders.items():
            secret = self.devices[owner].secret("sk1") if owner in self.dead else bytes(range(32))
            shares = zip(peers, create(secret, self._threshold, self._num_shares), strict=True)
            split[owner] = {peer: share for peer, share in shares if peer not in self.dead}
        return split

    def holders(self, split: dict[int, dict[int, bytes]]) -> Answers:
        """Return answers with these shares and no others."""

        def answers(messages: Sequence[Any]) -> list[Any]:
            replies = []
            for message in messages:
                node = message.metadata.dst_node_id
                shares = {owner: own[node] for owner, own in split.items() if node in own}
                replies.append(_configs(message, nids=list(shares), shares=list(shares.values())))
            return replies

        return answers


def _configs(message: Any, **values: Any) -> Any:
    """Return a reply with these values."""
    app = flower("app")
    return app.Message(app.RecordDict({CONFIGS: app.ConfigRecord(values)}), reply_to=message)


def _sent(content: Any) -> tuple[Any, int]:
    """Return the content as it arrives, and how many bytes it was on its way."""
    serde, proto = flower("common.serde"), flower("proto.recorddict_pb2")
    sent = serde.recorddict_to_proto(content).SerializeToString()
    return serde.recorddict_from_proto(proto.RecordDict.FromString(sent)), len(sent)
