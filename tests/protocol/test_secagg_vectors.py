"""Replay the known answers that tools/gen_vectors.py computed from docs/protocol.md and
docs/protocol.md.

Vectors of the RFCs and of NIST for the primitives are in test_crypto_keys.py (HKDF, X25519,
Ed25519), test_prg.py (AES in counter mode) and test_hpke.py; published parameters of rings are in
test_secagg_params.py.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Callable
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cases import each_case
from cryptography.exceptions import InvalidTag

from fedtally.campaign.enrolment import (
    Authority,
    PlanSignature,
    Revocation,
    check_proof,
    check_revocation,
    check_signature,
    make_proof,
    revoke_plans,
    sign_plan,
)
from fedtally.crypto import keys, shamir
from fedtally.crypto.hpke import _SUITE, PrivateKey
from fedtally.crypto.keys import ExchangeKey, Label, RejectedError, Secret, SigningKey
from fedtally.crypto.prg import Masking, expand, lane
from fedtally.errors import InvalidInputError
from fedtally.secagg import params, two_server, wire
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.client import Client, MemoryJournal, Pinned
from fedtally.secagg.config import TwoServerConfig
from fedtally.secagg.graph import Neighbourhood
from fedtally.secagg.messages import ClientState, Kind, LocalProtocolError, ServerState
from fedtally.secagg.packing import pack, packed_length, unpack
from fedtally.secagg.params import Adversary, ClientPolicy, Graph, Parameters
from fedtally.secagg.server import Server

Vector = dict[str, Any]
FILES = Path(__file__).parent.parent / "vectors"


def load(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((FILES / f"{name}.json").read_text())
    assert content["version"] == "fedtally-vectors/1"
    return content


VECTORS, CLIENTS, SERVERS = (
    load("secagg"),
    load("secagg_clients")["clients"],
    load("secagg_servers")["servers"],
)
TWO_SERVER = load("two_server")
TRANSCRIPTS = {transcript["name"]: transcript for transcript in VECTORS["transcripts"]}
BATCH = TWO_SERVER["batches"][0]
CUTS = {vector["operation"]: vector for vector in VECTORS["cuts"] if "cases" in vector}


def unhex(data: str) -> bytes:
    return bytes.fromhex(data)


def secret(data: str) -> Secret:
    return Secret(unhex(data))


def source(data: bytes) -> Callable[[int], bytes]:
    """Return exactly these bytes, in order, and no more."""
    rest = [data]

    def draw(count: int) -> bytes:
        assert count <= len(rest[0]), "more is drawn than the page says"
        piece, rest[0] = rest[0][:count], rest[0][count:]
        return piece

    draw.rest = rest  # type: ignore[attr-defined]
    return draw


def test_the_files_hold_what_they_should() -> None:
    expected = {
        "derivations",
        "points",
        "generator",
        "packing",
        "shamir",
        "rings",
        "cuts",
        "numbers",
    }
    assert {key for key, value in VECTORS.items() if isinstance(value, list)} == expected | {
        "transcripts"
    }
    assert {case["code"] for v in CUTS.values() for case in v["cases"]} == {0, 12, 19}
    codes = {op.get("code") for case in CLIENTS for op in case["operations"]}
    assert codes == {*range(1, 15), 17, 18, None}
    assert {op.get("code") for case in SERVERS for op in case["operations"]} == {
        5,
        12,
        13,
        14,
        15,
        16,
        17,
        None,
    }
    for cases in (CLIENTS, SERVERS, TWO_SERVER["cases"]):
        assert {op["success"] for case in cases for op in case["operations"]} == {True, False}


# ---- values ----


def derive(v: Vector) -> bytes | list[int]:
    def given(name: str) -> bytes:
        return unhex(v[name])

    match v["name"]:
        case "mask secret key":
            key = keys.mask_key(secret(v["seed"]), given("ctx"))._key
            assert key is not None
            return key.private_bytes_raw()
        case "commitment to b":
            return keys.commitment(secret(v["b"]), given("ctx"))
        case "self mask":
            return bytes(keys.self_mask_key(secret(v["b"]), given("ctx2"), v["index"]).reveal())
        case "pair mask" | "share encryption":
            ends = [
                (v["i"], given("public_i"), "secret_i"),
                (v["j"], given("public_j"), "secret_j"),
            ]
            made = []
            for (me, mine, own), (peer, theirs, _) in (ends, ends[::-1]):
                exchange = ExchangeKey(secret(v[own]))
                assert exchange.public == mine
                arguments = (exchange.exchange(theirs), given("ctx2"), me, mine, peer, theirs)
                if v["name"] == "pair mask":
                    made.append(keys.pair_mask_key(*arguments))
                else:
                    made.append(keys.share_keys(*arguments)[v["direction"] ^ (own == "secret_j")])
            assert made[0] == made[1]
            found = bytes(made[0].reveal())
            if "sealed" in v:
                assert keys.seal(made[0], secret(v["share"])) == given("sealed")
                assert keys.unseal(made[1], given("sealed")) == secret(v["share"])
            return found
        case "ring order":
            graph = Neighbourhood(ring_parameters(v["n"], 10), v["n"], given("ctx2"))
            order = [v["output"][0]]
            while len(order) < v["n"]:
                order.append(int(graph.of(order[-1])[0]))
            return order
        case "context":
            return wire.context(given("session"), given("terms"))
        case "adverts":
            return wire.adverts_digest([unhex(advert) for advert in v["adverts"]])
        case "roster context":
            members = None if v["roster"] is None else wire.unpack_bits(given("roster"), 8)
            return wire.roster_context(given("ctx"), v["n"], members, given("adverts"))
        case "result":
            alive = wire.unpack_bits(given("survivors"), 16)
            return wire.result_digest(
                given("ctx2"), alive, given("salt"), np.array(v["total"], np.int64)
            )
        case "proof of possession":
            client = SigningKey(secret(v["secret"]))
            proof = make_proof(client, given("registrar"), v["purpose"])
            assert proof.to_line() == v["line"]
            check_proof(proof, given("registrar"), v["purpose"])
            return proof.signature
        case "signed plan":
            last_day = date.fromisoformat(v["last_day"])
            said = Authority(v["purpose"], v["number"], last_day, tuple(v["replaced"]))
            plan: Any = SimpleNamespace(fingerprint=v["fingerprint"], check_published=lambda: None)
            registrar = SigningKey(secret(v["secret"]))
            signed = sign_plan(registrar, plan, said)
            assert signed.to_line() == v["line"] and PlanSignature.from_line(v["line"]) == signed
            check_signature(signed, plan, registrar.public)
            return signed.signature
        case "revocation":
            registrar = SigningKey(secret(v["secret"]))
            notice = revoke_plans(registrar, v["revoked"])
            assert notice.to_line() == v["line"] and Revocation.from_line(v["line"]) == notice
            check_revocation(notice, registrar.public)
            return notice.signature
    raise AssertionError(v["name"])


def ring_parameters(n: int, k: int, corrupt: int = 1) -> Parameters:
    return Parameters(
        adversary=Adversary.SEMI_HONEST,
        n_min=n,
        n_max=n,
        corrupt=corrupt,
        max_dropout_ppm=0,
        min_survivors=n,
        ring_neighbours=k,
        ring_threshold=2,
        length=1,
        bits=16,
    )


@each_case("vector", VECTORS["derivations"], ids=lambda v: v["name"])
def test_derivations(vector: Vector) -> None:
    found = derive(vector)
    assert (found.hex() if isinstance(found, bytes) else found) == vector["output"]


@each_case("vector", VECTORS["points"], ids=lambda v: v["key"][-6:])
def test_points(vector: Vector) -> None:
    if vector["success"]:
        keys.check_point(unhex(vector["key"]))
    else:
        with pytest.raises(RejectedError):
            keys.check_point(unhex(vector["key"]))


@pytest.mark.parametrize("vector", VECTORS["generator"], ids=lambda v: v["key"][:4])
def test_generator(vector: Vector) -> None:
    stream = expand(secret(vector["key"]), vector["length"])
    assert hashlib.sha256(stream).hexdigest() == vector["sha256"]
    for number, chunk in enumerate(vector["chunks"]):
        piece = stream[131_072 * number : 131_072 * (number + 1)]
        assert (piece[:32].hex(), piece[-32:].hex()) == (chunk["first"], chunk["last"])
    assert stream[3 * 131_072 :].hex() == vector["tail"]
    for mask in vector["masks"]:
        checksum_entries = np.zeros(mask["count"], lane(mask["bits"]))
        Masking(checksum_entries).add(secret(vector["key"]))
        assert [str(entry) for entry in checksum_entries.tolist()] == mask["entries"]
    for mask in vector["long_masks"]:
        checksum_entries = np.zeros(mask["count"], lane(mask["bits"]))
        Masking(checksum_entries).add(secret(vector["key"]))
        assert hashlib.sha256(checksum_entries.tobytes()).hexdigest() == mask["sha256"]


def test_packing() -> None:
    for vector in VECTORS["packing"]:
        bits = vector["bits"]
        if not vector["success"]:
            with pytest.raises(InvalidInputError):
                unpack(unhex(vector["packed"]), vector["count"], bits)
            continue
        values = np.array([int(value) for value in vector["values"]], lane(bits))
        packed = pack(values, bits)
        assert len(packed) == packed_length(len(values), bits)
        assert unpack(packed, len(values), bits).tolist() == values.tolist()
        if "packed" in vector:
            assert packed.hex() == vector["packed"]
        else:
            assert hashlib.sha256(packed).hexdigest() == vector["sha256"]
    assert {vector["bits"] for vector in VECTORS["packing"]} == set(range(1, 65))


def test_shamir() -> None:
    for vector in VECTORS["shamir"]:
        shares = np.array(vector["shares"], np.uint32)
        match vector["operation"]:
            case "split":
                value = np.array(vector["secret"], np.uint32)
                random = source(unhex(vector["draws"]))
                coefficients = shamir.random_elements(
                    (vector["threshold"] - 1) * len(value), random
                )
                assert random.rest == [b""]  # type: ignore[attr-defined]
                rows = coefficients.reshape(-1, len(value))
                found = shamir.split(value, rows, max(vector["points"]))
                assert found[np.array(vector["points"]) - 1].tolist() == vector["shares"]
            case "combine":
                assert shamir.combine(vector["points"], shares).tolist() == vector["secret"]
            case _ if vector["success"]:
                found, wrong = shamir.decode(vector["points"], shares, vector["threshold"])
                assert (found.tolist(), wrong.tolist()) == (vector["secret"], vector["wrong"])
            case _:
                with pytest.raises(shamir.DecodingError):
                    shamir.decode(vector["points"], shares, vector["threshold"])


def test_rings() -> None:
    for v in VECTORS["rings"]:
        absent = max(v["max_dropout"] * v["n"] // 10**6, v["n"] - v["min_survivors"])
        safe = params.is_safe_ring(v["n"], v["corrupt"], absent, Graph(v["k"], v["t"]))
        assert safe is v["success"], v


def test_cuts() -> None:
    for v in VECTORS["cuts"]:
        match v["operation"]:
            case "weakest cut":
                graph = Neighbourhood(ring_parameters(v["n"], v["k"]), v["n"], unhex(v["ctx2"]))
                assert graph.weakest_cut(np.isin(np.arange(v["n"]), v["alive"])) == v["cut"], v
            case "margin":
                assert (
                    params.is_whole_ring(v["n"], v["corrupt"], v["k"], v["cut"]) is v["success"]
                ), v


def test_numbers() -> None:
    for v in VECTORS["numbers"]:
        match v["operation"]:
            case "bits" if v["success"]:
                of, signed = (v["n_max"], v["largest"], v["tau"]), v["signed"]
                assert params.modulus_bits(*of, multiple=1, signed=signed) == v["exact"]
                assert params.modulus_bits(*of, signed=signed) == v["rounded"]
            case "bits":
                with pytest.raises(InvalidInputError):
                    params.modulus_bits(v["n_max"], v["largest"], v["tau"])
            case "lanes":
                assert (params.num_checksum_entries(v["bits"]), lane(v["bits"]).itemsize * 8) == (
                    v["lanes"],
                    v["width"],
                )
            case _:
                for kind, name in (("discrete-gaussian", "gaussian"), ("skellam", "skellam")):
                    exact = float(v[name])
                    found = params.noise_bound(float(v["stddev"]), v["length"], kind)  # type: ignore[arg-type]
                    assert exact <= found <= math.ceil(exact * (1 + 1e-11)), (v, kind, found)


# ---- parties ----


def parameters_of(terms: Vector) -> Parameters:
    return Parameters(
        adversary=(Adversary.SEMI_HONEST, Adversary.ACTIVE)[terms["profile"]],
        n_min=terms["n_min"],
        n_max=terms["n_max"],
        corrupt=terms["corrupt"],
        max_dropout_ppm=terms["max_dropout"],
        min_survivors=terms["min_survivors"],
        ring_neighbours=terms["k"],
        ring_threshold=terms["t"],
        length=terms["length"],
        bits=terms["bits"],
    )


@functools.cache
def allow_list_of(name: str) -> AllowList | None:
    listed = TRANSCRIPTS[name]["allow_list"]
    return AllowList([unhex(key) for key in listed]) if listed else None


class Party:
    """A client of a transcript, with its journal and its random bytes."""

    def __init__(self, name: str, who: str, given: Vector) -> None:
        transcript = TRANSCRIPTS[name]
        entry = next(client for client in transcript["clients"] if client["name"] == who)
        terms, policy = transcript["terms"], given.get("policy", transcript["policy"])
        adversary = (Adversary.SEMI_HONEST, Adversary.ACTIVE)[terms["profile"]]
        self.journal = MemoryJournal(
            {unhex(transcript["session"])} if given.get("seen") else set(),
            given.get("spent", False),
        )
        self.random = source(unhex(entry["draws"]))
        has_plan = given.get("plan", terms) is not None
        pinned = Pinned(
            unhex(transcript["server_public"]),
            unhex(terms["fingerprint"]),
            allow_list_of(name),
            parameters_of(terms) if has_plan else None,
            round=given.get("round", terms["round"]),
        )
        vector = given.get("vector", entry["vector"])
        self.client = Client(
            ClientPolicy(
                adversary=adversary,
                min_honest=policy["min_honest"],
                max_corrupt=policy["max_corrupt"] / 10**6,
                corrupt=policy["corrupt"],
                min_clients=policy["min_clients"],
                max_clients=policy["n_max"],
                max_neighbours=policy["k"],
                max_length=policy["length"],
                max_bits=policy["bits"],
                max_seconds=policy["seconds"],
                known=frozenset(map(bytes.fromhex, policy["known"])),
                least_known=policy["least_known"],
            ),
            pinned,
            lambda _: np.array(vector, np.int64),
            journal=self.journal,
            random=self.random,
            identity=SigningKey(secret(entry["identity"])) if entry["identity"] else None,
        )

    @property
    def state(self) -> str:
        return self.client.state.value.upper()


def server_of(transcript: Vector) -> Server:
    terms = transcript["terms"]
    return Server(
        parameters_of(terms),
        session=unhex(transcript["session"]),
        signing_key=SigningKey(secret(transcript["server_secret"])),
        fingerprint=unhex(terms["fingerprint"]),
        round=terms["round"],
        not_before=terms["not_before"],
        not_after=terms["not_after"],
        salt=unhex(transcript["salt"]),
        random=source(unhex(transcript["draws"])),
        allow_list=allow_list_of(transcript["name"]) if "name" in transcript else None,
    )


def message_of(messages: Vector, shown: Vector) -> bytes:
    """Return the bytes that a message of an operation stands for."""
    if "hex" in shown:
        return unhex(shown["hex"])
    data = unhex(messages[shown["key"]])
    for start, end, new in shown.get("splices", []):
        data = data[:start] + unhex(new) + data[end:]
    return data


def check_answer(messages: Vector, answer: bytes | None, expected: Vector | None) -> None:
    if expected is None:
        assert answer is None
        return
    assert answer is not None
    if "key" in expected:
        assert answer.hex() == messages[expected["key"]]
    elif "hex" in expected:
        assert answer.hex() == expected["hex"]
    else:
        assert len(answer) == expected["length"]
        assert hashlib.sha256(answer).hexdigest() == expected["sha256"]


def asked(transcript: Vector, step: Vector, who: str) -> str:
    """Return the message that a step of the server sends to a client."""
    own = f"{step['asks']}/{who}"
    return str(transcript["messages"][own if own in transcript["messages"] else step["asks"]])


def keys_to(transcript: Vector, who: str) -> list[str]:
    names = ["invite", "roster", "inbox", "survivors", "confirmations"]
    messages = transcript["messages"]
    found = [name if name in messages else f"{name}/{who}" for name in names]
    return [key for key in found if key in messages]


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_transcripts(name: str) -> None:
    transcript = TRANSCRIPTS[name]
    messages, now = transcript["messages"], transcript["now"]
    server = server_of(transcript)
    assert server.invite.hex() == messages["invite"]
    parties = {entry["name"]: Party(name, entry["name"], {}) for entry in transcript["clients"]}
    asks = {who: unhex(messages["invite"]) for who in parties}
    for step in transcript["steps"]:
        assert server.state.value.upper() == step["phase"]
        for who in step["from"]:
            answer = parties[who].client.receive(asks[who], now)
            assert answer is not None
            assert answer.hex() == messages[f"{step['collects']}/{who}"]
            assert server.receive(who, answer)
        server.close_phase(now)
        asks = dict(server.outgoing())
        assert sorted(asks) == sorted(step["to"])
        assert {who: data.hex() for who, data in asks.items()} == {
            w: asked(transcript, step, w) for w in step["to"]
        }
    assert server.outcome is not None
    assert server.outcome.total.tolist() == transcript["sum"]
    assert np.flatnonzero(server.outcome.alive).tolist() == transcript["alive"]
    assert list(server.clients) == transcript["order"]
    assert server.blamed == transcript["blame"] == []
    for who, data in asks.items():
        if parties[who].client.state is ClientState.DONE:
            assert parties[who].client.receive(data, now) is None
            result = parties[who].client.result
            assert result is not None
            assert (result.survivors, result.digest.hex()) == (
                len(transcript["alive"]),
                transcript["result_digest"],
            )
    for entry in transcript["clients"]:
        assert parties[entry["name"]].state == entry["state"]
        assert parties[entry["name"]].random.rest == [b""]  # type: ignore[attr-defined]
    alive = [transcript["order"][index] for index in transcript["alive"]]
    vectors = {entry["name"]: entry["vector"] for entry in transcript["clients"]}
    assert transcript["sum"] == np.sum([vectors[who] for who in alive], axis=0).tolist()


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_values_of_transcripts(name: str) -> None:
    transcript = TRANSCRIPTS[name]
    terms = unhex(transcript["messages"]["invite"])[48:171]
    ctx = wire.context(unhex(transcript["session"]), terms)
    assert ctx.hex() == transcript["ctx"]
    adverts = [
        unhex(transcript["messages"][f"advertise/{who}"])[48:] for who in transcript["order"]
    ]
    digest = wire.adverts_digest(adverts)
    assert digest.hex() == transcript["adverts_digest"]
    identities, members = allow_list_of(name), None
    if identities is not None:
        by_name = {entry["name"]: entry["identity"] for entry in transcript["clients"]}
        members = np.zeros(len(identities), np.bool_)
        for who in transcript["order"]:
            members[identities.rank(SigningKey(secret(by_name[who])).public)] = True
    n = len(adverts)
    ctx2 = wire.roster_context(ctx, n, members, digest)
    assert ctx2.hex() == transcript["ctx2"]
    graph = Neighbourhood(parameters_of(transcript["terms"]), n, ctx2)
    assert (graph.neighbours, graph.threshold) == (transcript["k"], transcript["t"])
    assert [graph.of(i).tolist() for i in range(n)] == transcript["neighbours"]


@each_case("case", CUTS["server"]["cases"], ids=lambda case: case["name"])
def test_servers_of_a_ring_that_is_cut(case: Vector) -> None:
    vector = CUTS["server"]
    server, terms, silent = server_of(vector), vector["terms"], set()
    for i, advert in enumerate(vector["adverts"]):
        assert server.receive(f"c{i}", unhex(advert))
    server.close_phase(vector["now"])
    assert list(server.clients) == vector["order"]
    entries = packed_length(
        terms["length"] + params.num_checksum_entries(terms["bits"]), terms["bits"]
    )
    for kind, size, gone in (
        (Kind.SHARES, 56 * terms["k"], case["in_share"]),
        (Kind.MASKED_INPUT, entries, case["in_collect"]),
    ):
        if server.state is ServerState.ABORTED:
            break
        silent |= set(gone)
        for index in set(range(terms["n_max"])) - silent:
            zeros = wire.frame(kind, unhex(vector["session"]), index, bytes(size))
            assert server.receive(vector["order"][index], zeros)
        foretold = server.can_close().code
        server.close_phase(vector["now"])
        assert server.code is foretold
    assert (server.code or 0, server.state.value.upper()) == (case["code"], case["phase"])
    out = dict(server.outgoing())
    assert sorted(out) == case["to"]
    assert (
        hashlib.sha256(b"".join(out[name] for name in sorted(out))).hexdigest() == case["messages"]
    )


@each_case("case", CUTS["client"]["cases"], ids=lambda case: case["name"])
def test_clients_of_a_ring_that_is_cut(case: Vector) -> None:
    vector = CUTS["client"]
    client = Client(
        ClientPolicy(adversary=Adversary.SEMI_HONEST, min_honest=2),
        Pinned(
            unhex(vector["server_public"]),
            unhex(vector["terms"]["fingerprint"]),
            round=vector["terms"]["round"],
        ),
        lambda _: np.array(vector["vector"], np.int64),
        journal=MemoryJournal(),
        random=source(unhex(vector["draws"])),
    )
    for message, answer in zip(vector["messages"], vector["answers"], strict=True):
        said = client.receive(unhex(message), vector["now"])
        assert said is not None
        assert hashlib.sha256(said).hexdigest() == answer
    said = client.receive(unhex(case["survivors"]), vector["now"])
    assert said is not None
    assert (said.hex(), client.code or 0) == (case["answer"], case["code"])


@each_case("case", CLIENTS, ids=lambda case: case["name"])
def test_clients(case: Vector) -> None:
    transcript = TRANSCRIPTS[case["transcript"]]
    messages, party = (
        transcript["messages"],
        Party(case["transcript"], case["client"], case["given"]),
    )
    for key in keys_to(transcript, case["client"])[: case["taken"]]:
        assert party.client.receive(unhex(messages[key]), transcript["now"]) is not None
    for operation in case["operations"]:
        data, now = (
            message_of(messages, operation["message"]),
            operation.get("now", transcript["now"]),
        )
        if operation.get("raises"):
            with pytest.raises(LocalProtocolError):
                party.client.receive(data, now)
        else:
            check_answer(messages, party.client.receive(data, now), operation.get("answer"))
        assert party.state == operation["state"]
        assert party.client.code == operation.get("code")
        assert party.journal.is_spent is operation["spent"]
        result = party.client.result
        assert (
            None if result is None else [result.survivors, result.digest.hex()]
        ) == operation.get("result")


@each_case("case", SERVERS, ids=lambda case: case["name"])
def test_servers(case: Vector) -> None:
    transcript = TRANSCRIPTS[case["transcript"]]
    messages, server = transcript["messages"], server_of(transcript)
    for step in transcript["steps"]:
        if step["phase"] == case["phase"]:
            break
        for who in step["from"]:
            assert server.receive(who, unhex(messages[f"{step['collects']}/{who}"]))
        server.close_phase(transcript["now"])
    for operation in case["operations"]:
        if operation.get("operation") != "close":
            data = message_of(messages, operation["message"])
            assert server.receive(operation["from"], data) is operation["success"], operation
            continue
        server.close_phase(operation["now"])
        assert server.code == operation.get("code")
        assert (server.state is not ServerState.ABORTED) is operation["success"]
        assert server.state.value.upper() == operation["phase"]
        assert (None if server.outcome is None else server.outcome.total.tolist()) == operation.get(
            "sum"
        )
        names = [*server.clients]
        blamed = [
            [names.index(owner), None if holder is None else names.index(holder)]
            for owner, holder in server.blamed
        ]
        assert blamed == operation["blame"]
        sent: dict[Any, bytes] = dict(server.outgoing())
        assert sorted(sent) == operation["to"]
        joined = b"".join(sent[who] for who in sorted(sent))
        assert hashlib.sha256(joined).hexdigest() == operation["messages"]


# ---- two servers ----


def two_server_parameters(**changes: Any) -> two_server.TwoServerParameters:
    given = {**BATCH["parameters"], **changes}
    terms = TwoServerConfig(
        length=given["length"],
        bits=given["bits"],
        n_max=given["n_max"],
        min_batch=given["min_batch"],
        corrupt=given["corrupt"],
        leader_key=unhex(given["leader_key"]),
        helper_key=unhex(given["helper_key"]),
        allow_list=hashlib.sha256(unhex(given["allow_list"])).digest(),
        largest_entry=given["largest"],
        noise=given["tau"],
    )
    return terms.parameters(unhex(given["fingerprint"]), given["widths"], signed=True)


@each_case("vector", TWO_SERVER["parameters"], ids=lambda v: str(v["changes"])[:40])
def test_two_server_parameters(vector: Vector) -> None:
    if vector["success"]:
        assert two_server_parameters(**vector["changes"]).context.hex() == vector["context"]
    else:
        with pytest.raises(InvalidInputError):
            two_server_parameters(**vector["changes"])


@each_case("vector", TWO_SERVER["hpke"], ids=lambda v: v["secret"][:4])
def test_hpke(vector: Vector) -> None:
    # `info` begins with a label; here it has none, so that the suite itself is asked.
    key = PrivateKey(secret(vector["secret"]))._key
    assert key is not None
    if vector["success"]:
        assert (
            _SUITE.decrypt(unhex(vector["sealed"]), key, info=unhex(vector["info"])).hex()
            == vector["plaintext"]
        )
    else:
        with pytest.raises(InvalidTag):
            _SUITE.decrypt(unhex(vector["sealed"]), key, info=unhex(vector["info"]))


def test_two_server_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ephemeral key of a seal is drawn by the library: the seal of the vectors takes its place
    and must open."""
    parameters, policy = two_server_parameters(), two_server.BatchPolicy(min_honest=2, corrupt=1)
    for number, report in enumerate(BATCH["reports"]):
        expected = [BATCH["messages"][f"{role}/{number}"] for role in ("leader", "helper")]
        parts = [unhex(frame)[48 + 156 :] for frame in expected]

        def seal(
            public: bytes,
            plaintext: Secret,
            label: Label,
            *fields: bytes,
            parts: list[bytes] = parts,
        ) -> bytes:
            for role, sealed in zip(("leader", "helper"), parts, strict=True):
                key = PrivateKey(secret(BATCH[f"{role}_secret"]))
                if public == key.public:
                    assert key.open(sealed, label, *fields) == plaintext
                    return sealed
            raise AssertionError("sealed to nobody")

        monkeypatch.setattr("fedtally.crypto.hpke.seal", seal)
        random = source(unhex(report["draws"]))
        made = two_server.make_report(
            parameters,
            np.array(report["vector"], np.int64),
            round=report["round"],
            now=report["time"],
            identity=SigningKey(secret(report["identity"])),
            policy=policy,
            random=random,
        )
        assert [made.leader.hex(), made.helper.hex()] == expected
        assert random.rest == [b""]  # type: ignore[attr-defined]


@each_case("case", TWO_SERVER["cases"], ids=lambda case: case["name"])
def test_two_servers(case: Vector) -> None:
    listed = unhex(BATCH["parameters"]["allow_list"])
    identities = AllowList([listed[i : i + 32] for i in range(0, len(listed), 32)])
    journal = two_server.MemoryJournal()
    rounds = range(case["rounds"][0], case["rounds"][1] + 1)
    arguments = (two_server_parameters(n_max=case["n_max"]), rounds, identities)
    policy = two_server.BatchPolicy(min_honest=2, corrupt=1)
    key = PrivateKey(secret(BATCH[f"{case['role']}_secret"]))
    noise = np.array(case["noise"], np.int64)

    def started() -> Any:
        if case["role"] == "leader":
            return two_server.Leader(*arguments, policy, journal, key, lambda: noise)
        return two_server.Helper(*arguments, policy, journal, key, lambda: noise)

    party = started()
    for operation in case["operations"]:
        data, expected = message_of(BATCH["messages"], operation["message"]), operation["result"]
        match operation["operation"]:
            case "restart":
                party = started()
            case "stop":
                party.stop()
            case "receive":
                assert party.receive(data, operation["now"]).value == expected
            case "finish":
                if operation["success"]:
                    assert party.finish(data).tolist() == expected
                else:
                    with pytest.raises(two_server.BatchRefusedError):
                        party.finish(data)
                    assert (party.state is two_server.BatchState.ABORTED) is (expected == "aborted")
            case kind:
                call = party.query if kind == "query" else party.answer
                if operation["success"]:
                    assert call(data).hex() == expected
                else:
                    error = (
                        LocalProtocolError
                        if expected in ("closed", "collecting")
                        else two_server.BatchRefusedError
                    )
                    with pytest.raises(error):
                        call(data)


def test_the_opened_batch() -> None:
    """Noise and vectors of the batch give its sum, and the recorded cases are of the same batch."""
    ids = unhex(BATCH["messages"]["query"])[60:]
    chosen = [
        report
        for report in BATCH["reports"]
        if unhex(report["id"]) in [ids[i : i + 16] for i in range(0, 48, 16)]
    ]
    total = (
        np.sum([report["vector"] for report in chosen], axis=0)
        + BATCH["leader_noise"]
        + BATCH["helper_noise"]
    )
    assert len(chosen) == 3
    assert total.tolist() == BATCH["sum"]
    assert unhex(BATCH["messages"]["answer"])[48:80].hex() == BATCH["batch_digest"]
