"""The specification of secure summation says what the code does: tables, sizes, offsets, labels,
codes, links."""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from secagg_cohort import FINGERPRINT, NOW, Cohort

from fedtally.crypto.keys import Label, RejectedError, check_identity, check_point
from fedtally.secagg import wire
from fedtally.secagg.messages import EXCHANGES, AbortCode, Invite, Kind
from fedtally.secagg.packing import packed_length
from fedtally.secagg.params import Adversary, Parameters

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
MODEL = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")
ACTIVE = {Adversary.SEMI_HONEST: False, Adversary.ACTIVE: True}


def _tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "gen_protocol_tables", ROOT / "tools" / "gen_protocol_tables.py"
    )
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


def _rows(part: str) -> Iterator[list[str]]:
    """Yield the rows of a generated table, as they stand on the page."""
    found = re.search(rf"<!-- generated: {part} -->\n(.*?)<!-- end -->", PAGE, re.DOTALL)
    assert found is not None
    for line in found[1].splitlines()[2:]:
        yield [cell.strip() for cell in line.strip("|").split("|")]


def test_the_generated_parts_are_what_the_code_says() -> None:
    tool = _tool()
    assert sorted(name for _, name, _ in tool.MARKERS.findall(PAGE)) == sorted(tool.PARTS)
    assert tool.generate(PAGE) == PAGE, "run python tools/gen_protocol_tables.py"


def test_the_tool_repairs_a_page_and_says_when_one_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool, page = _tool(), tmp_path / "protocol.md"
    page.write_text(PAGE.replace("| 187 |", "| 188 |").replace("`187`", "`188`"), encoding="utf-8")
    monkeypatch.setattr(tool, "PAGE", page)
    assert tool.main(["--check"]) == 1
    assert tool.main([]) == 0
    assert page.read_text(encoding="utf-8") == PAGE
    assert tool.main(["--check"]) == 0


@pytest.mark.parametrize("label", Label)
def test_every_label_is_on_the_page(label: Label) -> None:
    assert f"`{label.decode('ascii')}`" in PAGE


@pytest.mark.parametrize("code", AbortCode)
def test_every_abort_code_is_on_the_page(code: AbortCode) -> None:
    assert f"| {code.value} | {code.name} | {code.meaning} |" in PAGE


@pytest.mark.parametrize("code", AbortCode)
def test_the_text_says_where_a_code_comes_from(code: AbortCode) -> None:
    assert f"**{code.value}**" in PAGE[PAGE.index("## The client") : PAGE.index("## Abort codes")]


@pytest.mark.parametrize("adversary", Adversary)
def test_bodies_have_the_lengths_of_the_table(adversary: Adversary) -> None:
    cohort = Cohort(24, adversary=adversary, max_dropout=0.25, bits=11, length=7, identities=30)
    cohort.dropped = {"share": {3}, "mask": {5}, "confirm": {6}}
    frames: list[bytes] = [cohort.server.invite]
    receive = cohort.server.receive

    def tapped(client: int, data: bytes) -> bool:
        frames.append(data)
        return receive(client, data)

    outgoing = cohort.server.outgoing

    def listed() -> Iterator[tuple[object, bytes]]:
        for client, data in outgoing():
            frames.append(data)
            yield client, data

    cohort.server.receive, cohort.server.outgoing = tapped, listed  # type: ignore[method-assign, assignment]
    cohort.run()
    frames.append(wire.frame(Kind.ABORT, cohort.session, wire.SERVER, bytes([AbortCode.INTERNAL])))

    p, n = cohort.parameters, 24
    k = p.graph(n).neighbours
    symbols: dict[str, object] = {
        "n": n,
        "k": k,
        "V": p.length,
        "b": p.bits,
        "L": 30,
        "checksum": math.ceil(64 / p.bits),
    }
    functions: dict[str, object] = {"bits": lambda count: -(-count // 8), "packed": packed_length}
    formulas = {int(row[0]): row[3 + ACTIVE[adversary]].strip("`") for row in _rows("sizes")}
    seen = set()
    for data in frames:
        message = wire.parse(data)
        assert message is not None
        body, marked = message.body, dict[str, object]()
        if message.kind is Kind.INBOX:
            marked["present"] = int(wire.decode_inbox(body, k).present.sum())
        elif message.kind is Kind.CONFIRMATIONS:
            marked["signers"] = int(wire.decode_confirmations(body, n).signers.sum())
        elif message.kind is Kind.UNMASK:
            marked["given"] = int(wire.decode_unmask(body, k).given.sum())
        assert len(body) == eval(formulas[message.kind], {}, symbols | functions | marked), (
            message.kind
        )
        seen.add(message.kind)
    in_table = {kind for kind in Kind if formulas[kind]}
    in_exchanges = {kind for step in EXCHANGES[adversary] for kind in (step.request, step.reply)}
    assert seen == in_table == in_exchanges | {Kind.RESULT, Kind.ABORT}


def test_the_invite_has_its_fields_where_the_table_says() -> None:
    parameters = Parameters(
        adversary=Adversary.SEMI_HONEST,
        n_min=500,
        n_max=600,
        corrupt=7,
        max_dropout_ppm=50_000,
        min_survivors=400,
        ring_neighbours=66,
        ring_threshold=23,
        length=54_321,
        bits=17,
    )
    terms = wire.encode_terms(Invite(parameters, NOW, NOW + 1, 9, FINGERPRINT, bytes(32)))
    expected = {
        "V": 54_321,
        "b": 17,
        "graph": 0,
        "k": 66,
        "t": 23,
        "n_min": 500,
        "n_max": 600,
        "min_survivors": 400,
        "profile": 0,
        "C": 7,
        "max_dropout": 50_000,
        "not_before": NOW,
        "not_after": NOW + 1,
        "round": 9,
        "fingerprint of the plan": int.from_bytes(FINGERPRINT, "little"),
        "digest of the allow-list; semi-honest": 0,
    }
    found, end = {}, 0
    for offset, size, _, field in _rows("invite"):
        assert int(offset) == end
        end += int(size)
        found[re.split("[,:]", field)[0]] = int.from_bytes(terms[int(offset) : end], "little")
    assert found == expected
    assert end == len(terms)
    assert f"the first {end} bytes of the body of the Invite" in PAGE


def test_the_header_has_its_fields_where_the_table_says() -> None:
    data = wire.frame(Kind.CONFIRM, bytes(range(32)), 77, b"body")
    values = [data[int(offset) : int(offset) + int(size)] for offset, size, _, _ in _rows("frame")]
    assert values == [b"FTSA", b"\1", b"\7", b"\0\0", bytes(range(32)), b"M\0\0\0", b"\4\0\0\0"]
    assert f"`0x{wire.SERVER:08X}`" in PAGE
    assert f"`0x{wire.UNLISTED:08X}`" in PAGE


@pytest.mark.parametrize(
    ("paragraph", "check"), [("Points", check_point), ("Identities", check_identity)]
)
def test_the_keys_of_low_order_are_those_that_are_refused(
    paragraph: str, check: Callable[[bytes], bytes]
) -> None:
    text = PAGE[PAGE.index(f"**{paragraph}.**") :].split("\n\n")[0]
    listed = [
        0,
        1,
        2**255 - 20,
        *(int(digits, 16) for digits in re.findall(r"`0x([0-9a-f]{64})`", text)),
    ]
    assert len(listed) == 5
    for number in listed:
        with pytest.raises(RejectedError, match="low order"):
            check(number.to_bytes(32, "little"))


@pytest.mark.parametrize(
    ("n", "corrupt", "absent", "k", "t"), [(1000, 50, 50, 30, 17), (1000, 50, 300, 66, 23)]
)
def test_the_predicate_of_the_page_is_that_of_the_code(
    n: int, corrupt: int, absent: int, k: int, t: int
) -> None:
    def falling(m: int) -> int:
        return math.prod(range(m - k + 1, m + 1))

    def page(k: int, t: int) -> bool:
        tail = sum(
            math.comb(corrupt, i) * math.comb(n - 1 - corrupt, k - i) for i in range(t, k + 1)
        )
        cut = 2**41 * n * (n - k - 1) * falling(corrupt + absent) < 2 * falling(n)
        return cut and 2**41 * n * tail <= math.comb(n - 1, k)

    def code(k: int, t: int) -> bool:
        parameters = Parameters(
            adversary=Adversary.SEMI_HONEST,
            n_min=n,
            n_max=n,
            corrupt=corrupt,
            max_dropout_ppm=absent * 1000,
            min_survivors=n - absent,
            ring_neighbours=k,
            ring_threshold=t,
            length=1,
            bits=16,
        )
        try:
            parameters.check_roster(n)
        except ValueError:
            return False
        return True

    assert code(k, t)
    for threshold in range(t - 4, t + 3):
        assert page(k, threshold) == code(k, threshold)
    assert not code(k, t - 4)


@pytest.mark.parametrize("name", ["protocol", "threat-model", "plan"])
def test_anchors_lead_somewhere(name: str) -> None:
    def slugs(page: str) -> set[str]:
        headings = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
        return {
            re.sub(r"[^a-z0-9_ -]", "", heading.lower()).replace(" ", "-") for heading in headings
        }

    pages = {page.name: page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md")}
    text = pages[f"{name}.md"]
    places = {page: slugs(written) for page, written in pages.items()} | {"": slugs(text)}
    anchors = re.findall(r"\]\(([a-z.-]*)#([^)]+)\)", text)
    assert len(anchors) > 0
    for page, anchor in anchors:
        assert anchor in places[page], (page, anchor)


@pytest.mark.parametrize("adversary", Adversary)
def test_slots_of_the_two_ends_of_an_edge_are_as_the_page_says(adversary: Adversary) -> None:
    cohort = Cohort(100, adversary=adversary, max_dropout=0.1)
    cohort.step()
    graph, ring = cohort.server._graph, adversary is Adversary.SEMI_HONEST
    assert ring != cohort.parameters.is_complete
    k = graph.neighbours
    for u in range(100):
        for s, v in enumerate(graph.of(u).tolist()):
            assert graph.of(v)[(s + k // 2) % k if ring else k - 1 - s] == u
            assert ring or (v - u) % 100 == s + 1
