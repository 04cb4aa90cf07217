"""Reports of the client in TypeScript (clients/web), which the servers here judge."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import Page, find
from secagg_cohort import stream
from web_built import WEB, need

import fedtally
from fedtally.campaign.books import MemoryBooks
from fedtally.campaign.client import FrequencyClient
from fedtally.campaign.enrolment import Proof, allow_list_of, make_proof
from fedtally.campaign.server import FrequencyServer
from fedtally.crypto.hpke import PrivateKey
from fedtally.crypto.keys import Secret, SigningKey
from fedtally.domain import Dictionary, Domain, IntegerRange
from fedtally.errors import FedtallyError
from fedtally.plan import Plan
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.config import TwoServerConfig
from fedtally.secagg.two_server import BatchPolicy, MemoryJournal, Outcome

MAKE = WEB / "build" / "test" / "make.js"
AT_ONCE = 1000
BATCHES = int(os.environ.get("FEDTALLY_WEB_REPORTS", "1000")) // AT_ONCE  # of each field
NOW = 1_800_000_000
POLICY = BatchPolicy(min_honest=2)


def secret(*name: object) -> bytes:
    return hashlib.sha256(repr(name).encode()).digest()


LEADER, HELPER = (PrivateKey(Secret(secret(each))) for each in ("leader", "helper"))
WORDS = Dictionary(["tea", "coffee", "a \u00e9clair", "\U0001f375"])


@pytest.fixture(scope="module")
def make() -> Callable[..., list[str]]:
    """Return a call of the program in node, which prints lines."""
    need(MAKE)

    def call(**wanted: Any) -> list[str]:
        done = subprocess.run(
            ["node", "--no-warnings", MAKE],
            input=json.dumps(wanted),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return call


@cache
def pairs_of(people: int) -> list[tuple[str, str]]:
    """Return the secret and public keys of clients."""
    secrets = [secret("person", i) for i in range(people)]
    return [(each.hex(), SigningKey(Secret(each)).public.hex()) for each in secrets]


class World:
    """A published plan of two servers, and the clients on its list."""

    def __init__(
        self,
        domain: Domain,
        people: int,
        bits: int,
        rounds: int,
        allowed: AllowList | None = None,
        **asked: Any,
    ) -> None:
        self.domain = domain
        self.people = pairs_of(people)
        publics = sorted(bytes.fromhex(public) for _, public in self.people)
        self.allowed = allowed or AllowList(publics)
        fixed = {"secure_sum": "two-server", "confidence": 0, "max_dropout": 0.3}
        sized = fedtally.estimate(40 * domain.labels([0]), domain=domain, **fixed | asked).plan
        assert isinstance(sized.secure_sum, TwoServerConfig)
        terms = replace(sized.secure_sum, bits=bits, n_max=people, min_batch=people, corrupt=0)
        sized = replace(
            sized,
            secure_sum=terms,
            num_clients=people * rounds,
            max_round_clients=people,
            num_rounds=rounds,
        )
        public = {"leader_key": LEADER.public, "helper_key": HELPER.public}
        self.plan = sized.without_keys().with_keys(**public, allow_list=self.allowed.digest)

    def reports(self, make: Callable[..., list[str]], round: int, **more: Any) -> list[Any]:
        """Return a report of each client, of random items."""
        given = {"plan": self.plan.canonical, "fingerprint": self.plan.fingerprint, "round": round}
        if isinstance(self.domain, Dictionary):
            given["candidates"] = WORDS.labels(range(WORDS.size))
        lines = make(**given | {"time": NOW, "identities": self.people} | more)
        return [json.loads(line) for line in lines]

    def servers(self, round: int) -> Pair:
        """Return servers with new journals, of the release of a round."""
        return Pair(self, round)


class Pair:
    """Both servers of a release."""

    def __init__(self, world: World, round: int) -> None:
        self.server = FrequencyServer(world.plan, MemoryBooks())
        release = next(i for i, each in enumerate(world.plan.releases) if round in each)
        given = release, POLICY, world.allowed
        self.leader = self.server.leader(*given, MemoryJournal(), LEADER, random=stream("leader"))
        self.helper = self.server.helper(*given, MemoryJournal(), HELPER, random=stream("helper"))

    def judge(self, reports: list[Any]) -> list[str]:
        """Hand reports to both servers, which take them all; return verdicts on refused ones."""
        for each in reports:
            assert self.helper.receive(bytes.fromhex(each["helper"]), NOW) is Outcome.ACCEPTED
            assert self.leader.receive(bytes.fromhex(each["leader"]), NOW) is Outcome.ACCEPTED
        for frame in self.helper.checks():
            self.leader.judge(frame)
        return [each.verdict.value for each in self.leader.refused]

    def total(self) -> Any:
        self.leader.stop()
        query = self.leader.query(self.helper.offer())
        return self.leader.finish(self.helper.answer(query))


SIZES = {"rows": 3, "width": 20, "recovery": "median"}
FIELDS: dict[str, dict[str, Any]] = {  # of which bits, and the plan
    "16": {"domain": IntegerRange(1, 300), "rounds": 3, "schedule": "hybrid"} | SIZES,
    "24": {"domain": IntegerRange(-5, 60), "rounds": 1, "epsilon": 4.0} | SIZES,
    "32": {"domain": WORDS, "rounds": 1, "epsilon": 4.0, "encoding": "histogram"},
}


@pytest.mark.parametrize("field", FIELDS)
def test_random_reports_are_valid(make, field, capsys):
    world = World(people=AT_ONCE, bits=int(field), **FIELDS[field])
    proof = world.plan.report_proof
    assert proof is not None
    assert (proof.circuit.field.prime.bit_length(), proof.circuit.signed) == (
        int(field),
        field != "32",
    )
    for part in range(BATCHES):
        round = (part + 1) % world.plan.num_rounds
        reports = world.reports(make, round)
        pair = world.servers(round)
        assert pair.judge(reports) == []
        got = pair.total()
        if not world.plan.protection.is_charged:  # the sum has no noise
            assert np.array_equal(got, plain_sum(world, reports, round))
        if (part + 1) % 10 == 0:  # a long run says how far it is
            with capsys.disabled():
                sys.stdout.write(f"field of {field} bits: {(part + 1) * AT_ONCE} valid reports\n")


def plain_sum(world: World, reports: list[Any], round: int) -> Any:
    items = [each["item"] for each in reports]
    clients = [FrequencyClient(world.plan, world.domain, [item]) for item in items]
    return sum(client.contribution(round) for client in clients)


CHEATS = {
    "twice as much": "invalid",
    "two in a row": "invalid",
    "nothing, e is 1": "invalid",
    "proof changed": "invalid",
    "another digest": "inconsistent",
}


@pytest.mark.parametrize("field", FIELDS)
def test_cheats_are_refused(make, field):
    world = World(people=3, bits=int(field), **FIELDS[field])
    lies = CHEATS | ({"minus 1": "invalid"} if field == "32" else {})
    reports = iter(world.reports(make, 0, cheats=[*lies, "one in each row"]))
    for lie, verdict in lies.items():
        assert world.servers(0).judge([*islice(reports, 3)]) == 3 * [verdict], lie
    assert world.servers(0).judge([*reports]) == []  # which is none: these clients are honest


def test_a_proof_of_possession_is_that_of_python(make):
    registrar = SigningKey(Secret(secret("registrar"))).public
    people = pairs_of(3)
    for purpose in ("fruit 2026", 'a "quoted" \\ caf\u00e9 \U0001f375'):
        given = {"identities": people, "purpose": purpose}
        lines = make(registrar=registrar.hex(), **given)
        signers = [SigningKey(Secret(bytes.fromhex(each))) for each, _ in people]
        expected = [make_proof(each, registrar, purpose) for each in signers]
        assert lines == [each.to_line().rstrip() for each in expected]
        read = [Proof.from_line(line + "\n") for line in lines]
        assert len(allow_list_of(read, registrar, purpose)) == 3


def changes_of(entries: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a plan's entries with one of them changed, or left out, at whatever depth."""
    for name, value in entries.items():
        rest = {key: each for key, each in entries.items() if key != name}
        yield rest
        if isinstance(value, dict):
            yield from (entries | {name: each} for each in changes_of(value))
        elif isinstance(value, bool):
            yield entries | {name: not value}
        elif isinstance(value, int):
            others = {value - 1, value + 1, 2 * value, -value, 0, 1, 2**20, 2**64} - {value}
            yield from (entries | {name: each} for each in others)
        elif isinstance(value, float):
            others = {value / 2, value * (1 - 1e-12), 2 * value, -value, 0.0, 1.0, 1e300} - {value}
            yield from (entries | {name: each} for each in others)
        else:
            words = ["", " ", "skellam", "geometric", "central", "replace-one", "add-remove"]
            words += ["shared", "fresh", "batched:2", "histogram", "integers", "e\u0301", "00" * 32]
            yield from (entries | {name: each} for each in words)


PRIVATE = {
    "24": FIELDS["24"] | {"rounds": 2, "schedule": "hybrid", "delta": 1e-7},
    "32": FIELDS["32"] | {"delta": 1e-7},
}


@pytest.mark.parametrize("field", PRIVATE)
def test_what_python_refuses_of_a_plan_is_refused(make, field):
    plan = World(people=3, bits=int(field), **PRIVATE[field]).plan
    tried, refused = [], []
    for entries in [json.loads(plan.canonical), *changes_of(json.loads(plan.canonical))]:
        text = json.dumps(entries, sort_keys=True, separators=(",", ":"))
        try:
            print_ = Plan.from_dict(entries).fingerprint
            refused.append("")
        except FedtallyError as error:
            # what a server that lies would say it is
            print_ = hashlib.sha256(f"fedtally-plan/1\n{text}".encode()).hexdigest()
            refused.append(str(error))
        tried.append((text, print_))
    found = make(plans=tried, identities=[])
    assert len(found) == len(tried) and found[0] == refused[0] == ""
    taken = [why for why, theirs in zip(refused, found, strict=True) if why and not theirs]
    assert [why for why in taken if not why.startswith("noise of variance")] == []
    assert sum(map(bool, refused)) > 100


def bundled() -> dict[str, Any]:
    """Return the sizes and hashes of the bundles, which are made anew."""
    need(MAKE)
    done = subprocess.run(
        ["node", "bundle.mjs"], cwd=WEB, capture_output=True, text=True, check=True
    )
    return {each["name"]: each for each in map(json.loads, done.stdout.splitlines())}


def test_bundles_are_small_and_the_same_each_time():
    found = bundled()
    assert found["report"]["gzip"] <= 13_000 and found["fedtally"]["gzip"] <= 18_000
    assert bundled() == found
    text = (WEB / "dist" / "fedtally.js").read_bytes()
    digest = b64encode(hashlib.sha384(text).digest()).decode()
    assert found["fedtally"]["integrity"] == f"sha384-{digest}"
    assert str(WEB).encode() not in text and b"eval(" not in text and b"WebAssembly" not in text


def test_the_licences_of_what_is_bundled_lie_beside_it():
    bundled()
    (bundled_in,) = json.loads((WEB / "package.json").read_text())["dependencies"]
    theirs = (WEB / "node_modules" / bundled_in / "LICENSE").read_text().strip()
    text = (WEB / "dist" / "licences.txt").read_text()
    assert (WEB.parents[1] / "LICENSE").read_text().strip() in text and theirs in text


def test_packages_have_exact_versions_hashes_and_no_address():
    package = json.loads((WEB / "package.json").read_text())
    lock = json.loads((WEB / "package-lock.json").read_text())["packages"]
    assert 1 <= len(package["dependencies"]) <= 2
    for version in (package["dependencies"] | package["devDependencies"]).values():
        assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    others = {name: each for name, each in lock.items() if name}
    assert all(each["integrity"].startswith("sha512-") for each in others.values())
    assert not any("resolved" in each for each in others.values())


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    """Serve a page with the bundle on localhost, by a strict policy."""
    integrity = bundled()["fedtally"]["integrity"]
    policy = "default-src 'none'; script-src 'self'; connect-src 'none'"
    (tmp_path / "fedtally.js").write_bytes((WEB / "dist" / "fedtally.js").read_bytes())
    (tmp_path / "page.html").write_text(
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<script type="module" src="fedtally.js" integrity="{integrity}"></script>'
    )
    (tmp_path / "favicon.ico").touch()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path)))
    with server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://localhost:{server.server_address[1]}/page.html"
        server.shutdown()


@pytest.mark.browser
def test_people_enrol_and_report_in_a_browser(tmp_path, site):
    """Keys of the browser are registered, then the plan is made, and then reports of them count."""
    if find() is None:
        assert os.environ.get("FEDTALLY_REQUIRE_BROWSER") != "1"
        pytest.skip("there is no Chromium")
    registrar = SigningKey(Secret(secret("registrar"))).public
    with Page(tmp_path) as page:
        page.go(site)

        def run(script: str) -> Any:
            wrapped = f"(async () => {{ const web = await import('/fedtally.js'); {script} }})()"
            return page.value(wrapped)

        lines = run(
            "globalThis.people = await Promise.all([1, 2, 3].map(() => web.makeIdentity()));"
            f" return Promise.all(people.map(p => web.register(p, '{registrar.hex()}', 'fruit')))"
        )
        allowed = allow_list_of([Proof.from_line(each) for each in lines], registrar, "fruit")
        world = World(people=3, bits=16, allowed=allowed, **FIELDS["16"])
        path = tmp_path / "plan.json"
        world.plan.save(path)
        reports = run(
            f"const plan = await web.readPlan({json.dumps(path.read_text())},"
            f" '{world.plan.fingerprint}', {{ minHonest: 3 }});"
            " const hex = bytes => [...bytes].map(b => b.toString(16).padStart(2, '0')).join('');"
            " const made = [];"
            " for (const [i, p] of people.entries()) {"
            f"  const given = {{ round: 0, time: {NOW} }};"
            "   const { helper, leader } = await web.report(plan, p, 7 + i, given);"
            "   made.push({ item: 7 + i, helper: hex(helper), leader: hex(leader) });"
            " }"
            " return made"
        )
        assert page.complaints == []
    pair = world.servers(0)
    assert pair.judge(reports) == []
    assert np.array_equal(pair.total(), plain_sum(world, reports, 0))
