"""The plan: checked together, serialised, fingerprinted."""

import dataclasses
import json
import re
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kinds import DECODER_NAMES

from fedtally.domain import Dictionary, Grid, IntegerRange, IntegerSet, OpenStrings, Strings
from fedtally.errors import InvalidInputError, UnreadableFileError
from fedtally.plan import Plan, Target, modulus_bits
from fedtally.plan.calendar import Calendar
from fedtally.plan.design import Design
from fedtally.plan.request import Request
from fedtally.privacy.config import PrivacyConfig
from fedtally.privacy.events import Event
from fedtally.secagg.config import SecAggConfig, TwoServerConfig
from fedtally.secagg.params import Parameters
from fedtally.sketch import Schedule

ROOT = Path(__file__).parent.parent
VECTORS = json.loads((ROOT / "vectors" / "plan.json").read_text())
PAGE = (ROOT.parent / "docs" / "plan.md").read_text(encoding="utf-8")

DOMAIN = {"kind": "range", "size": 1000, "public": True, "first": 1, "last": 1000}
PLAN = Plan(
    rows=5,
    width=100,
    schedule="batched:4",
    num_rounds=10,
    num_clients=5000,
    max_round_clients=600,
    domain=DOMAIN,
    max_items=3,
    seed=bytes(range(32)),
)


def design_of(clients: int) -> Design:
    return Design.fit(Request().resolve(), IntegerRange(1, 1000), [clients], seed=bytes(32))


def changed(**values):
    return dataclasses.replace(PLAN, **values)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("rows", 0, "rows must be at least 1, got 0"),
        ("width", 0, "width must be at least 1, got 0"),
        ("width", 2**24 + 1, "width must be at most"),
        ("num_rounds", 3, "batches must be at most the number of rounds"),
        ("num_clients", 0, "num_clients must be at least 1"),
        ("max_round_clients", 5001, "max_round_clients must be at most num_clients"),
        ("max_round_clients", 499, "10 rounds of at most 499 clients cannot hold"),
        ("max_items", 0, "max_items must be at least 1"),
        ("seed", b"short", "seed must be 32 bytes, got 5 bytes"),
        ("schedule", "sharde", "schedule must be shared, fresh, hybrid or batched:B"),
        ("domain", {"size": 3}, "domain must say its kind, size and public"),
        ("domain", None, "domain must be a table"),
        ("domain", {**DOMAIN, 3: 4}, "domain must be a table"),
        ("domain", {**DOMAIN, "first": np.arange(3)}, "domain.first must be a number"),
        (
            "domain",
            {**DOMAIN, "first": -(10**5000)},
            r"domain.first must be an integer from -2\^64 to 2\^64",
        ),
        (
            "domain",
            {**DOMAIN, "last": 2**64 + 1},
            r"domain.last must be an integer from -2\^64 to 2\^64",
        ),
        ("rows", 2.5, "rows must be an integer"),
        ("rows", True, "rows must be an integer"),
    ],
)
def test_inconsistent_plans_are_refused(name, value, message):
    with pytest.raises(InvalidInputError, match=message):
        changed(**{name: value})


@pytest.mark.parametrize("suffix", [".toml", ".json"])
def test_a_target_is_part_of_the_plan(tmp_path, suffix):
    target = Target(1e-3, 0.05, "median", "any")
    plan = changed(target=target)
    plan.save(tmp_path / f"plan{suffix}")
    assert Plan.load(tmp_path / f"plan{suffix}").target == target
    assert plan.fingerprint != PLAN.fingerprint
    unsaid = changed(target=dataclasses.replace(target, frequencies=None))
    assert unsaid.fingerprint != plan.fingerprint
    assert "frequencies" not in unsaid.to_dict()["target"]  # as in plans of before
    assert "target" not in PLAN.to_dict()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"linf": 0.0}, "linf must be above 0 and below 1, got 0.0"),
        ({"failure_probability": 1}, "failure_probability must be above 0 and below 1, got 1"),
        (
            {"recovery": "auto"},
            f"target.recovery must be {DECODER_NAMES}, got 'auto'",
        ),
        (
            {"tau": 0.1},
            "target must be a table with the entries linf, failure_probability, recovery",
        ),
        ({"frequencies": None}, "target.frequencies must be given, or be left out, got null"),
        *(
            ({"frequencies": said}, "target.frequencies must be 1 to 200 printable ASCII")
            for said in ("", "a\nb", "é", 201 * "a", 3)
        ),
    ],
)
def test_targets_out_of_bounds_are_refused(change, message):
    values = PLAN.to_dict() | {"target": Target(1e-3, 0.05, "joint").to_dict() | change}
    with pytest.raises(InvalidInputError, match=message):
        Plan.from_dict(values)


@pytest.mark.parametrize("suffix", [".toml", ".json"])
def test_files_round_trip(tmp_path, suffix):
    PLAN.save(tmp_path / f"plan{suffix}")
    assert Plan.load(tmp_path / f"plan{suffix}") == PLAN


@given(
    rows=st.integers(1, 40),
    width=st.integers(1, 2**24),
    rounds=st.integers(1, 50),
    max_round_clients=st.integers(1, 10**6),
    step=st.floats(1e-6, 10, allow_nan=False),
    public=st.booleans(),
    seed=st.binary(min_size=32, max_size=32),
)
def test_toml_round_trips(rows, width, rounds, max_round_clients, step, public, seed):
    domain = {
        "kind": "grid",
        "size": 7,
        "public": public,
        "step": step,
        "note": 'a "quoted" \\ \x7f text\n',
        'a "b" \\ .c=': 1,
    }
    plan = Plan(
        rows, width, "hybrid", rounds, max_round_clients, max_round_clients, domain, 1, seed
    )
    again = Plan.from_toml(plan.to_toml())
    assert again == plan
    assert again.fingerprint == plan.fingerprint


def test_fingerprint_differs_wherever_plans_differ():
    others = [
        changed(rows=7),
        changed(width=101),
        changed(schedule="hybrid"),
        changed(num_rounds=11),
        changed(num_clients=5001),
        changed(max_round_clients=601),
        changed(max_items=2),
        changed(seed=bytes(32)),
        changed(domain={**DOMAIN, "last": 1001, "size": 1001}),
    ]
    assert len({plan.fingerprint for plan in [PLAN, *others]}) == len(others) + 1


@pytest.mark.parametrize("first", [1.0, True])
def test_plans_of_two_fingerprints_are_not_equal(first):
    """Python's 1, 1.0 and True are equal, and three values of a plan."""
    other = changed(domain=DOMAIN | {"first": first})
    assert other.domain == PLAN.domain and other.fingerprint != PLAN.fingerprint
    assert other != PLAN and len({other, PLAN}) == 2
    assert PLAN.has_domain(IntegerRange(1, 1000).describe()) and not other.has_domain(
        IntegerRange(1, 1000).describe()
    )
    assert Plan.from_toml(PLAN.to_toml()) == PLAN and PLAN.fingerprint != PLAN


def test_a_changed_file_is_noticed(tmp_path):
    PLAN.save(tmp_path / "plan.toml")
    text = (tmp_path / "plan.toml").read_text().replace("width = 100", "width = 101")
    (tmp_path / "plan.toml").write_text(text)
    with pytest.raises(InvalidInputError, match="changed after it was written"):
        Plan.load(tmp_path / "plan.toml")
    lines = [line for line in text.splitlines() if not line.startswith("fingerprint")]
    (tmp_path / "plan.toml").write_text("\n".join(lines))
    assert Plan.load(tmp_path / "plan.toml").width == 101


@pytest.mark.parametrize(
    ("name", "text", "error", "message"),
    [
        ("a.toml", "rows = ", UnreadableFileError, r"a\.toml: the plan is not valid TOML"),
        ("a.toml", "rows = 3", InvalidInputError, "lacks width"),
        (
            "a.toml",
            PLAN.to_toml() + "\n[other]\nx = 1\n",
            InvalidInputError,
            "unknown entries other",
        ),
        ("a.json", "[]", InvalidInputError, "JSON object"),
        ("a.json", "{", UnreadableFileError, "cannot read the plan"),
        (
            "a.toml",
            PLAN.to_toml().replace(PLAN.seed.hex(), "zz"),
            InvalidInputError,
            "64 hexadecimal digits",
        ),
    ],
)
def test_bad_files(tmp_path, name, text, error, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(error, match=message):
        Plan.load(tmp_path / name)


def test_missing_file(tmp_path):
    with pytest.raises(UnreadableFileError, match="No such file"):
        Plan.load(tmp_path / "no.toml")


@given(max_round_clients=st.integers(1, 2**40), max_items=st.integers(1, 100))
def test_modulus_holds_every_sum_and_no_bit_more(max_round_clients, max_items):
    bits = modulus_bits(max_round_clients, max_items)
    values = 2 * max_round_clients * max_items + 1  # from -n K to n K
    assert 2 ** (bits - 1) < values <= 2**bits


@given(
    max_bytes=st.integers(100, 10**6),
    rows=st.integers(1, 20),
    max_round_clients=st.integers(1, 10**6),
)
def test_width_is_the_largest_that_fits(max_bytes, rows, max_round_clients):
    design, schedule = design_of(max_round_clients), Schedule.parse("shared")
    widest = design.widest(schedule, rows, max_bytes)
    assert widest.bytes_per_client <= max_bytes
    wider = design.with_size(schedule, rows, widest.chosen.width + 1)
    assert wider.bytes_per_client > max_bytes


@pytest.mark.parametrize(
    ("size", "items", "cost"), [(1, 1, 1), (256, 1, 1), (257, 1, 2), (256, 5, 5), (2**20, 3, 8)]
)
def test_binary_cost(size, items, cost):
    assert changed(domain={**DOMAIN, "size": size}, max_items=items).binary_bytes_per_client == cost


def test_a_plan_is_frozen_and_takes_numbers_of_numpy():
    plan = changed(
        rows=np.int64(7), max_round_clients=np.int32(600), domain={**DOMAIN, "size": np.int64(1000)}
    )
    assert plan.fingerprint == changed(rows=7).fingerprint
    assert len({plan, changed(rows=7)}) == 1
    with pytest.raises(TypeError):
        plan.domain["size"] = 99


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", "[" * 100_000),
        ("a.json", '{"rows": ' + "9" * 5000 + "}"),
        ("a.toml", "rows = " + "9" * 5000),
        ("a.toml", PLAN.to_toml().replace("first = 1", "first = 1979-05-27")),
        ("a.toml", PLAN.to_toml().replace("first = 1", "first = nan")),
        ("a.toml", PLAN.to_toml().replace("public = true", 'public = "no"')),
        ("a.toml", PLAN.to_toml().replace("fedtally-plan/1", "fedtally-plan/99")),
    ],
)
def test_hostile_files(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(InvalidInputError):
        Plan.load(tmp_path / name)


def test_too_few_bytes():
    with pytest.raises(
        InvalidInputError, match="at least 14 for one counter of 15 bits in each of 7 rows, got 5"
    ):
        design_of(15_000).widest(Schedule.parse("shared"), 7, 5)


def test_a_plan_in_a_document_is_a_table_with_a_table():
    with pytest.raises(
        InvalidInputError,
        match="the plan must be a table with the entries rows, width, .*, got list",
    ):
        Plan.from_dict([])
    with pytest.raises(InvalidInputError, match="domain must be a table, got 'words'"):
        Plan.from_dict(changed().to_dict() | {"domain": "words"})


# ---- docs/plan.md ----


@pytest.mark.parametrize("vector", VECTORS["plans"], ids=lambda vector: vector["name"])
def test_plans_have_the_canonical_json_and_the_fingerprint_of_the_page(vector):
    plan = Plan.from_dict(vector["plan"])
    assert plan.canonical == vector["canonical"]
    assert plan.fingerprint == vector["fingerprint"]
    shuffled = dict(reversed(vector["plan"].items()))
    assert Plan.from_dict(shuffled | {"fingerprint": vector["fingerprint"]}) == plan
    assert Plan.from_toml(plan.to_toml()).canonical == vector["canonical"]


def test_numbers_and_texts_are_laid_out_as_the_page_says():
    for vector in VECTORS["numbers"]:
        shown = changed(domain={**DOMAIN, "first": float(vector["value"])}).canonical
        assert f'"first":{vector["canonical"]},' in shown
    for vector in VECTORS["texts"]:
        assert (
            f'"first":{vector["canonical"]},'
            in changed(domain={**DOMAIN, "first": vector["value"]}).canonical
        )


def test_batches_are_those_of_the_page():
    for vector in VECTORS["batches"]:
        found = Schedule.parse(f"batched:{vector['batches']}").batches_of(vector["num_rounds"])
        assert [list(rounds) for rounds in found] == vector["rounds"]


def private():
    """Return a plan with every entry that has a text, as it is read."""
    found = next(v for v in VECTORS["plans"] if v["name"] == "active, several items, central trust")
    return json.loads(found["canonical"])


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("seed", lambda seed: seed.upper()),
        ("seed", lambda seed: f" {seed}"),
        ("seed", lambda seed: f"{seed[:2]} {seed[2:]}"),
        ("secure_sum.server_key", lambda key: key.upper()),
        ("secure_sum.server_key", lambda key: f"{key} "),
        ("secure_sum.allow_list", lambda digest: digest.upper()),
        ("privacy.event.trust", lambda _: None),
        ("privacy.event.collisions", lambda _: None),
        ("privacy.event.honest_survivors", lambda _: None),
        ("target", lambda _: None),
    ],
)
def test_a_plan_is_written_in_one_form_alone(tmp_path, path, value):
    values = private()
    assert Plan.from_dict(values).to_dict() == values
    *tables, name = path.split(".")
    table = values
    for each in tables:
        table = table[each]
    table[name] = value(table.get(name))
    (tmp_path / "plan.json").write_text(json.dumps(values))
    with pytest.raises(InvalidInputError, match=f"{name}|target must be a table"):
        Plan.load(tmp_path / "plan.json")


@pytest.mark.parametrize("version", [0, 2])
def test_a_plan_of_another_schema_is_refused_by_name(version):
    values = PLAN.to_dict() | {"schema": f"fedtally-plan/{version}", "of_then": 1}
    with pytest.raises(InvalidInputError, match=rf"fedtally-plan/{version}.*\(fedtally plan\)"):
        Plan.from_dict(values)


def test_an_entry_that_is_there_twice_is_refused(tmp_path):
    text = json.dumps(PLAN.to_dict())
    (tmp_path / "plan.json").write_text(text.replace('"rows": 5', '"rows": 5, "rows": 7'))
    with pytest.raises(InvalidInputError, match="each entry once"):
        Plan.load(tmp_path / "plan.json")


@pytest.mark.parametrize("domain", [{"name": "\ud800"}, {"kind": "a\udfff"}, {"\udc00": 1}])
def test_half_a_surrogate_pair_is_refused(tmp_path, domain):
    (tmp_path / "plan.json").write_text(json.dumps(PLAN.to_dict() | {"domain": DOMAIN | domain}))
    with pytest.raises(InvalidInputError, match="half of a surrogate pair, got "):
        Plan.load(tmp_path / "plan.json")


def test_printable_is_what_the_page_says():
    categories = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"}
    assert all(f"{category}" in PAGE for category in categories)
    for letter in map(chr, range(0x110000)):
        assert letter.isprintable() == (
            letter == " " or unicodedata.category(letter) not in categories
        )


def test_a_schedule_is_written_in_one_form_alone():
    with pytest.raises(
        InvalidInputError, match="schedule must be written 'batched:4' in a plan, got 'batched:04'"
    ):
        Plan.from_dict(PLAN.to_dict() | {"schedule": "batched:04"})


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_what_has_no_json_is_refused(value):
    with pytest.raises(InvalidInputError, match="domain.first must be a finite number"):
        changed(domain={**DOMAIN, "first": value})


def entries_on_the_page(table):
    """Return the names in the first column of a table, and those of them that may be absent."""
    rows = re.search(rf"<!-- entries: {table} -->\n\|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE)
    found = re.findall(r"^\| `(\w+)`( \?)? \|", rows[1], re.MULTILINE)
    return {name for name, _ in found}, {name for name, mark in found if mark}


def fields_of(kind):
    return {field.name for field in dataclasses.fields(kind)}


def test_the_page_has_every_entry():
    domains = [
        IntegerRange(1, 2),
        IntegerSet([1], public=True),
        Dictionary(["a"]),
        Grid(0, 1, 0, 1, 1),
        OpenStrings(normalise="nfc"),
    ]
    domains += [Strings(["a"], bytes(32), public=True), Dictionary(["a"], public=False)]
    described = set().union(*(domain.describe() for domain in domains))
    for table, names, absent in (
        (
            "plan",
            fields_of(Plan),
            {"secure_sum", "privacy", "target", "people", "spelling", "encoding", "calendar"},
        ),
        ("spelling", {"rows", "width"}, set()),
        ("domain", described, {"sha256", "normalise"}),
        (
            "secagg",
            fields_of(SecAggConfig) - {"parameters"} | fields_of(Parameters) | {"method"},
            {"server_key", "allow_list"},
        ),
        (
            "two-server",
            fields_of(TwoServerConfig) | {"method"},
            {"leader_key", "helper_key", "allow_list", "validity"},
        ),
        ("privacy", fields_of(PrivacyConfig), set()),
        (
            "event",
            fields_of(Event) | {"schema"},
            {
                "clip_norm",
                "honest_survivors",
                "collisions",
                "silos_per_person",
                "encoding",
                "per_rounds",
                "num_rounds",
            },
        ),
        ("calendar", fields_of(Calendar) - {"num_rounds"}, set()),
        ("target", fields_of(Target), {"frequencies", "until_known"}),
    ):
        assert entries_on_the_page(table) == (names, absent), table
    assert all(f"`{domain.kind}`" in PAGE for domain in domains)


@pytest.mark.parametrize("quotes", ['"""', "'''"])
def test_a_text_with_a_line_end_of_two_characters_is_refused(tmp_path: Path, quotes: str) -> None:
    r"""TOML's reader makes \n of \r\n, and two texts would have one fingerprint; between entries
    either may stand."""
    lines = [line for line in PLAN.to_toml().splitlines() if not line.startswith("fingerprint")]
    path = tmp_path / "plan.toml"

    def read(end: str, note: str = "") -> Plan:
        path.write_bytes((end.join(lines) + end + note + end).encode())
        return Plan.load(path)

    assert read("\r\n") == read("\n") == PLAN
    split = f"note = {quotes}a\nb{quotes}"
    assert read("\r\n", split).domain["note"] == "a\nb"
    with pytest.raises(InvalidInputError, match="a text of the plan holds the line end CR LF"):
        read("\n", split.replace("\n", "\r\n"))
    assert read("\n", r'note = "a\r\nb"').domain["note"] == "a\r\nb"  # written out, it stays


def test_a_file_is_read_as_it_is(tmp_path: Path) -> None:
    """A carriage return ends no comment in TOML: what stands behind it is none of the plan's."""
    path = tmp_path / "plan.toml"
    path.write_bytes(b"# nothing below this line\rrows = 5\n")
    with pytest.raises(UnreadableFileError, match="not valid TOML"):
        Plan.load(path)


@pytest.mark.parametrize("name", ["run.fed", "plan.toml", "plan.json"])
def test_a_file_that_is_no_text_is_no_plan(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x89fedtally\xff")
    with pytest.raises(UnreadableFileError, match="is no plan: give the text file, .toml or .json"):
        Plan.load(tmp_path / name)
