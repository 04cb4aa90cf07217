"""agent.toml, the folder of an agent, its items and its accepted campaigns."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import shutil
import sqlite3
import stat
import sys
import tomllib
from contextlib import closing
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from campaign_world import ALLOWED, plan_of
from cases import each_case
from secagg_cohort import stream

from fedtally.agent import home as folder_module
from fedtally.agent.accepted import AcceptedCampaigns, Campaign, CampaignFiles
from fedtally.agent.home import create
from fedtally.agent.items import Items, candidates_of
from fedtally.agent.settings import FILE, TEMPLATE, Settings
from fedtally.campaign.client import FrequencyClient
from fedtally.campaign.enrolment import Authority, save_allow_list, save_signature, sign_plan
from fedtally.crypto.keys import Secret, SigningKey
from fedtally.domain import Dictionary, Grid, IntegerRange, IntegerSet
from fedtally.errors import InvalidInputError, OutsideDomainError, UnreadableFileError
from fedtally.plan import Plan
from fedtally.privacy.budget import Cap
from fedtally.privacy.config import propose
from fedtally.secagg.params import Adversary

PLAN, ACTIVE = plan_of(), plan_of("active")
REGISTRAR = SigningKey(Secret(stream("registrar")(32)))
AUTHORITY = Authority("a study", 1, date(2100, 1, 31))
FILLED = """
[items]
file = "items.csv"
[policy]
min_honest = 5
epsilon = 1.0
delta = 1e-8
"""


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    """A folder of an agent with items."""
    folder = tmp_path / "agent"
    create(folder, stream("agent"))
    (folder / "items.csv").write_text("item\n7\n")
    (folder / FILE).write_text(FILLED)
    return folder


def with_text(folder: Path, old: str, new: str) -> Path:
    text = FILLED.replace(old, new)
    assert text != FILLED
    (folder / FILE).write_text(text)
    return folder


# ---- the folder ----


def test_a_new_agent_needs_three_answers_of_its_owner(tmp_path: Path) -> None:
    folder = tmp_path / "agent"
    folder.mkdir()  # an empty one will do
    public = create(folder, stream("agent"))
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert modes == {
        "agent.toml": 0o600,
        "campaigns": 0o700,
        "items": 0o700,
        "key": 0o700,
        "record": 0o700,
        "run": 0o750,
    }
    assert stat.S_IMODE(folder.stat().st_mode) == 0o750
    with pytest.raises(InvalidInputError) as caught:
        Settings.load(folder)
    problems = str(caught.value).split("; ")
    assert [re.search(r"(items|policy\.\w+)", one)[0] for one in problems] == [  # type: ignore[index]
        "items",
        "policy.epsilon",
        "policy.delta",
    ]
    # as the file says: the lines with "# >"
    text = TEMPLATE
    for name in ("file", "epsilon", "delta"):
        text = re.sub(rf"^# > ({name} = )", r"\1", text, flags=re.MULTILINE)
    (folder / "items" / "items.csv").write_text("item\n7\n")
    (folder / FILE).write_text(text)
    settings = Settings.load(folder)
    assert settings.identity().public == public
    assert settings.open_record().capped() is None  # the agent that runs puts it in
    assert settings.policy.cap == Cap(1.0, 1e-8)
    # its epsilon may be that of a week
    (folder / FILE).write_text(re.sub(r"^#   (per_days) = ", r"\1 = ", text, flags=re.MULTILINE))
    assert Settings.load(folder).policy.cap == Cap(1.0, 1e-8, per_days=7)
    # and without an epsilon: the lines that it names are taken as they stand
    text = re.sub(r"^(epsilon|delta) = ", r"# \1 = ", text, flags=re.MULTILINE)
    text = re.sub(r"^#   (epsilon|once) = ", r"\1 = ", text, flags=re.MULTILINE)
    (folder / FILE).write_text(text)
    uncounted = Settings.load(folder)
    assert uncounted.policy.cap is None and uncounted.once == "2026-11"
    # what the file says is what holds without it
    (folder / FILE).write_text(FILLED.replace("items.csv", "items/items.csv"))
    bare = Settings.load(folder)
    assert dataclasses.replace(bare, items=settings.items) == settings


def test_an_agent_is_made_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "agent"
    create(folder, stream(1))
    key = (folder / "key" / "agent.key").read_bytes()
    with pytest.raises(InvalidInputError, match="never overwritten"):
        create(folder, stream(2))
    assert (folder / "key" / "agent.key").read_bytes() == key
    with pytest.raises(InvalidInputError, match="name a folder whose parent"):
        create(tmp_path / "no" / "such", stream(2))

    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(InvalidInputError, match=r"open \(mode 0777\) .* chmod go-w .*of your own"):
        create(tmp_path / "open" / "agent", stream("open"))
    (tmp_path / "open").rmdir()  # nothing is left there
    (tmp_path / "sticky").mkdir()
    (tmp_path / "sticky").chmod(0o1777)  # as /tmp
    create(tmp_path / "sticky" / "agent", stream("sticky"))
    shutil.rmtree(tmp_path / "sticky")

    def full(*_: object) -> None:
        raise OSError(28, "full")

    monkeypatch.setattr(folder_module.os, "replace", full)
    with pytest.raises(InvalidInputError, match="full"):
        create(tmp_path / "other", stream(2))
    assert sorted(os.listdir(tmp_path)) == ["agent"]


# ---- entries ----


@each_case(
    ("old", "new", "says"),
    [
        ("epsilon = 1.0\n", "", "policy.epsilon is missing: say how much"),
        ("delta = 1e-8\n", "", "policy.delta is missing: say the probability"),
        ("epsilon = 1.0", "epsilon = 0", "policy.epsilon: .*epsilon above 0"),
        (
            "epsilon = 1.0",
            'epsilon = "none"',
            "policy.delta: belongs to an epsilon, .* leave it out",
        ),
        ("delta = 1e-8", "delta = 1e-8\nper_days = 0", "policy.per_days: .*at least 1, got 0"),
        (
            "delta = 1e-8",
            'delta = 1e-8\nper_days = "a week"',
            "policy.per_days: .*must be an integer",
        ),
        (
            "epsilon = 1.0\ndelta = 1e-8",
            'epsilon = "none"\nper_days = 7',
            "policy: per_days belongs to an epsilon, and epsilon is .none.: leave it out",
        ),
        ("epsilon = 1.0", 'epsilon = "some"', "policy.epsilon: must be a number.* or .none., got"),
        ("epsilon = 1.0", "epsilon = true", "policy.epsilon: epsilon must be a number"),
        ("delta = 1e-8", "delta = 1", "policy.delta: must be 1e-15 to below 1, or 0, got 1: say"),
        (
            "delta = 1e-8",
            "delta = 1e-16",
            "policy.delta: must be 1e-15 to below 1, or 0, got 1e-16",
        ),
        ("min_honest = 5\n", "", "policy.min_honest is missing: say how small a crowd"),
        ("min_honest = 5", "min_honest = 1", "policy.min_honest: min_honest must be at least 2"),
        (
            "delta",
            'adversary = "evil"\ndelta',
            "policy.adversary: adversary must be semi-honest or",
        ),
        ("delta", "corrupt = -1\ndelta", "policy.corrupt: corrupt must be at least 0"),
        ("delta", "max_length = 0\ndelta", "policy.max_length: max_length must be at least 1"),
        ("delta", "max_seconds = 1.5\ndelta", "policy.max_seconds: .* must be an integer"),
        ("delta", "min_clients = 9\nmax_clients = 8\ndelta", "max_clients must be at least 9"),
        (
            "delta",
            'domains = ["words"]\ndelta',
            "policy.domains: 'words' is no kind of .* .range, int",
        ),
        ("delta", 'domains = "range"\ndelta', "policy.domains: must be a list"),
        ("delta", "central = 1\ndelta", "policy.central: central must be true or false"),
        ("delta", "max_items = 0\ndelta", "policy.max_items: max_items must be at least 1"),
        ("delta", "sessions_a_day = 0\ndelta", "policy.sessions_a_day: "),
        ("delta", "least_known = 1\ndelta", "policy.least_known: least_known must be at most 0"),
        ("delta", 'known = ["nobody.pub"]\ndelta', "policy.known: cannot read .*nobody.pub"),
        (
            "delta",
            "speed = 3\ndelta",
            "policy.speed is unknown: the entries here are known, adversary",
        ),
        ('file = "items.csv"', "", "items: name exactly one place .* got none"),
        ('"items.csv"', '"items.csv"\nsqlite = "a.db"', "got file and sqlite"),
        ('"items.csv"', '"none.csv"', "items.file: .*none.csv cannot be read"),
        ('"items.csv"', '"items.csv"\ncolumn = 3', "items.column: must be a text in quotes, got 3"),
        ('"items.csv"', '"items.csv"\nformat = "xls"', "items.file: .*xls"),
        ('"items.csv"', '"items.csv"\nquery = "SELECT 1"', "items.query is unknown"),
        ('file = "items.csv"', 'sqlite = "items.csv"', "items.query is missing: write the query"),
        (
            'file = "items.csv"',
            'sqlite = "none.db"\nquery = "SELECT 1"',
            "items.sqlite: there is no database .*none.db",
        ),
        ('file = "items.csv"', 'python = "nowhere:read"', "items.python: .*'nowhere:read'"),
        ('file = "items.csv"', 'python = "os"', "items.python: .*module:function"),
        ('file = "items.csv"', 'python = "os:sep"', "items.python: .*no function"),
        ('"items.csv"', '"items.csv"\ncandidates = ["none"]', "items.candidates: .*none"),
        ('"items.csv"', '"items.csv"\nonce = ""', "items.once: must be 1 to 200 printable"),
        ("[items]", 'registrar = "x"\n[items]', "registrar: .*x"),
        ("[items]", 'peers = ["nobody-of-that-name"]\n[items]', "peers: there is no user"),
        ("[items]", "peers = 1000\n[items]", "peers: must be a list of users"),
        ("[items]", "peers = [-1]\n[items]", "peers: user must be at least 0"),
        ("[items]", 'mark = "record/mark"\n[items]', "mark: .* lies in the folder of the record"),
        ("[items]", "socket = 7\n[items]", "socket: must be a text in quotes, got 7"),
        ("[items]", 'colour = "red"\n[items]', "colour is unknown: the entries here are items"),
        ("[items]", "items = 3\n[other]", "items: must be a table, got 3"),
        ("[items]", "[items", "cannot be read"),
    ],
    ids=lambda case: str(case[1:]),
)
def test_every_wrong_entry_is_named_with_the_way_out(
    agent: Path, old: str, new: str, says: str
) -> None:
    with_text(agent, old, new)
    with pytest.raises(InvalidInputError, match=says) as caught:
        Settings.load(agent)
    assert caught.value.exit_code == 2


def test_all_wrong_entries_are_named_at_once(agent: Path) -> None:
    (agent / FILE).write_text('speed = 1\n[items]\n[policy]\nadversary = "x"\nmax_items = 0\n')
    with pytest.raises(InvalidInputError) as caught:
        Settings.load(agent)
    for name in ("speed", "items", "adversary", "min_honest", "epsilon", "delta", "max_items"):
        assert name in str(caught.value)


def test_a_folder_without_an_agent(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFileError, match=r"fedtally agent init"):
        Settings.load(tmp_path)


def test_what_is_said_is_read(agent: Path) -> None:
    (agent / "friend.pub").write_text(f"fedtally-public-key/1 client {'07' * 32}\n")
    (agent / "registrar.pub").write_text(
        f"fedtally-public-key/1 registrar {REGISTRAR.public.hex()}\n"
    )
    (agent / FILE).write_text(
        f"""
registrar = "registrar.pub"
peers = ["root", 4321]
socket = "/run/somewhere/a.sock"
[items]
file = "items.csv"
column = "item"
once = "2026-11"
[policy]
adversary = "semi-honest"
min_honest = 3
epsilon = "none"
known = ["friend.pub", "{"09" * 32}"]
least_known = 2
domains = ["range:1..9"]
"""
    )
    settings = Settings.load(agent)
    assert settings.registrar == REGISTRAR.public
    assert settings.peers == {0, 4321}
    assert settings.socket == Path("/run/somewhere/a.sock")
    assert settings.once == "2026-11" and "2026-11" not in repr(settings)
    policy = settings.policy
    assert policy.cap is None and policy.privacy is None
    assert policy.sums.adversary is Adversary.SEMI_HONEST
    assert policy.sums.known == {b"\x07" * 32, b"\x09" * 32} and policy.sums.least_known == 2
    assert policy.domains == ("range:1..9",)


def test_a_delta_of_zero_demands_geometric_noise(agent: Path) -> None:
    (agent / FILE).write_text(FILLED.replace("delta = 1e-8", "delta = 0"))
    policy = Settings.load(agent).policy
    assert policy.cap is not None and policy.cap.delta == 0.0
    assert policy.privacy is not None and policy.privacy.delta == 0.0


def test_without_an_epsilon_a_label_is_demanded(agent: Path) -> None:
    (agent / FILE).write_text(FILLED.replace("epsilon = 1.0\ndelta = 1e-8", 'epsilon = "none"'))
    with pytest.raises(InvalidInputError, match=r"items.once is missing: .* the same items out"):
        Settings.load(agent)
    (agent / FILE).write_text(FILLED.replace("epsilon = 1.0", 'epsilon = "none"'))
    with pytest.raises(InvalidInputError) as caught:  # all that is wrong, and not one by one
        Settings.load(agent)
    assert "items.once is missing" in str(caught.value)
    assert "policy.delta: belongs to an epsilon" in str(caught.value)


# ---- items ----


def read_items(folder: Path, entries: str) -> Any:
    (folder / FILE).write_text(FILLED.replace('file = "items.csv"', entries))
    return as_list(Settings.load(folder).items._read())


def as_list(items: Any) -> Any:
    return items.to_pylist() if isinstance(items, pa.ChunkedArray) else items


def test_items_are_read_from_files_a_database_or_a_function(
    agent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (agent / "two.csv").write_text("day,item\n1,tea\n2,\n3,coffee\n")
    assert read_items(agent, 'file = "two.csv"') == ["tea", "coffee"]
    assert read_items(agent, 'file = "two.csv"\ncolumn = "day"') == ["1", "2", "3"]
    pq.write_table(pa.table({"item": [3, None, 5], "x": [1, 2, 3]}), agent / "items.parquet")
    assert read_items(agent, 'file = "items.parquet"\ncolumn = "item"') == ["3", "5"]
    (agent / "where.csv").write_text("lat,lon\n1.5,2.5\n")
    assert read_items(agent, 'file = "where.csv"\ncolumn = ["lat", "lon"]') == ["1.5,2.5"]
    assert Grid(0, 9, 0, 9, 1).inside(["1.5,2.5"]).all()
    with closing(sqlite3.connect(agent / "items.db")) as base:
        base.execute("CREATE TABLE visits (item TEXT, lat REAL, lon REAL)")
        base.executemany("INSERT INTO visits VALUES (?, 1.5, 2.5)", [("tea",), (None,), ("cola",)])
        base.commit()
    query = 'sqlite = "items.db"\nquery = "{}"'
    assert read_items(agent, query.format("SELECT item FROM visits")) == ["tea", "cola"]
    assert read_items(agent, query.format("SELECT lat || ',' || lon FROM visits LIMIT 1")) == [
        "1.5,2.5"
    ]
    for bad, says in (
        ("SELECT lat, lon FROM visits", "must give one column"),
        ("SELECT no FROM visits", "no such column"),
        ("DELETE FROM visits", "SQLITE_READONLY"),
        ("DROP TABLE visits", "SQLITE_READONLY"),
    ):
        with pytest.raises(InvalidInputError, match=says):
            read_items(agent, query.format(bad))
    assert read_items(agent, query.format("SELECT count(*) FROM visits")) == [3]
    (agent / "owners_items.py").write_text("def read():\n    return ['tea']\n")
    monkeypatch.syspath_prepend(agent)
    assert read_items(agent, 'python = "owners_items:read"') == ["tea"]


def test_a_silo_reads_whose_each_item_is(agent: Path) -> None:
    table = "item,patient,day\n7,Ann,1\n7,Ann,2\n9,Ann,1\n,Bea,1\n99,Cleo,1\n11,Dora,1\nx,,1\n"
    (agent / "visits.csv").write_text(table)
    with closing(sqlite3.connect(agent / "visits.db")) as base:
        base.execute("CREATE TABLE visits (patient TEXT, item)")
        rows = [("Ann", 7), ("Ann", "7"), ("Ann", 9), ("Bea", None), ("Cleo", 99), ("Dora", "11")]
        base.executemany("INSERT INTO visits VALUES (?, ?)", [*rows, (None, 12)])
        base.commit()
    private = silo_plan(epsilon=4.0)
    for entries in (
        'file = "visits.csv"\ncolumn = "item"\npeople = "patient"',
        'sqlite = "visits.db"\nquery = "SELECT * FROM visits"\npeople = "patient"',
    ):
        (agent / FILE).write_text(FILLED.replace('file = "items.csv"', entries))
        items = Settings.load(agent).items
        client = items.client(private)
        ids = np.array([7, 9, 11], np.uint64)
        alone = FrequencyClient.of_people(private, ids, ["Ann", "Ann", "Dora"], 2)
        # everybody counts, also who holds no candidate; the noise apart both are one silo
        assert client._num_people == alone._num_people == 4
        assert [client._ids.tolist(), client._starts.tolist()] == [[7, 9, 11], [0, 2, 3]]
        with pytest.raises(OutsideDomainError, match="none of the plan's candidates"):
            items.client(silo_plan())
        with pytest.raises(InvalidInputError, match="under the plan a client is one person"):
            items.client(replace(silo_plan(), people=1))
    (agent / "visits.csv").write_text("item,patient\n7,Ann\n,Bea\n9,Ann\n")
    text = 'file = "visits.csv"\ncolumn = "item"\npeople = "patient"'
    (agent / FILE).write_text(FILLED.replace('file = "items.csv"', text))
    vector = Settings.load(agent).items.client(silo_plan()).contribution(0)
    assert vector[-1] == 1  # without privacy only people with items count
    (agent / "visits.csv").write_text("item,patient\n")
    assert Settings.load(agent).items.client(private)._num_people == 0


def silo_plan(epsilon: float | None = None) -> Plan:
    """Return a plan for silos of 1..50, two items of a person."""
    terms = None
    if epsilon is not None:
        asked: dict[str, Any] = {"trust": "distributed", "honest_survivors": 4, "most_clients": 6}
        terms = propose(
            epsilon=epsilon,
            delta=1e-6,
            rows=3,
            width=8,
            relation="add-remove",
            max_items=2,
            **asked,
        )
    domain = IntegerRange(1, 50).describe()
    return Plan(3, 8, "shared", 1, 6, 6, domain, 2, bytes(32), privacy=terms, people=40)


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ('file = "visits.csv"\ncolumn = "item"\npeople = "who"', "gives no column of items"),
        ('sqlite = "visits.db"\nquery = "SELECT 7"\npeople = "who"', "must give two columns"),
        ('python = "os:getcwd"\npeople = "who"', "people goes with a file or with sqlite"),
        ('file = "items.csv"', "name the column of the people in items.people"),
    ],
)
def test_what_no_silo_reads(agent: Path, entries: str, says: str) -> None:
    (agent / "visits.csv").write_text("item,patient\n7,Ann\n")
    sqlite3.connect(agent / "visits.db").close()
    (agent / FILE).write_text(FILLED.replace('file = "items.csv"', entries))
    with pytest.raises(InvalidInputError, match=says):
        Settings.load(agent).items.client(silo_plan(epsilon=4.0))


def test_no_error_of_a_reader_quotes_an_item(agent: Path) -> None:
    (agent / "bare.csv").write_text("secret\nsecret,secret\n")  # no header: an item is in its place
    with closing(sqlite3.connect(agent / "items.db")) as base:
        base.execute("CREATE TABLE visits (item TEXT)")
        base.execute("INSERT INTO visits VALUES (CAST(X'736563726574FF' AS TEXT)), ('tea')")
        base.commit()
    query = 'sqlite = "items.db"\nquery = "{}"'
    for entries, says in (
        ('file = "bare.csv"\ncolumn = "item"', "items.column"),
        (query.format("SELECT json_extract('{{}}', item) FROM visits"), "cannot read"),
    ):
        with pytest.raises(InvalidInputError, match=says) as caught:
            read_items(agent, entries)
        assert "secret" not in str(caught.value)
    # text that is no UTF-8 is no item, as in a CSV file
    assert read_items(agent, query.format("SELECT item FROM visits")) == ["tea"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("items.csv", "time,item\n"),
        ("items.csv", "time,item\n1,\n"),
        ("items.csv", "time,item\n1,999\n"),
        ("items.txt", ""),
    ],
    ids=["only a header", "a row without an item", "no candidate", "an empty text file"],
)
def test_a_client_without_an_item_takes_part_with_zeros_under_epsilon_alone(
    agent: Path, name: str, text: str
) -> None:
    (agent / name).write_text(text)
    (agent / FILE).write_text(FILLED.replace('"items.csv"', f'"{name}"'))
    items = Settings.load(agent).items
    vector = items.client(plan_of("active", "central")).contribution(0, bytes)
    assert not vector.any()
    with pytest.raises(InvalidInputError, match="there is no item that the plan counts"):
        items.client(PLAN)


def test_a_module_that_fails_as_it_is_imported(
    agent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(agent)
    for name, text in (("owners_raises", "raise RuntimeError('secret')"), ("owners_typo", "def (")):
        (agent / f"{name}.py").write_text(text)
        with pytest.raises(InvalidInputError, match=f"items.python: .*'{name}:read'") as caught:
            read_items(agent, f'python = "{name}:read"')
        assert "secret" not in str(caught.value)


def test_a_function_that_ends_the_process_is_an_error(
    agent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(agent)
    (agent / "owners_exit.py").write_text("def read():\n    raise SystemExit('secret')\n")
    with pytest.raises(InvalidInputError, match="owners_exit:read ended the process") as caught:
        read_items(agent, 'python = "owners_exit:read"')
    assert "secret" not in str(caught.value)


def test_items_are_read_anew_for_every_session(agent: Path) -> None:
    items = Settings.load(agent).items
    assert as_list(items._read()) == ["7"]
    (agent / "items.csv").write_text("item\n8\n")
    assert as_list(items._read()) == ["8"]


def test_a_pipe_is_no_place_of_items(agent: Path) -> None:
    """Nobody writes it: who opens it to read waits for ever, and so would all later readings."""
    (agent / "items.db").touch()
    entries = ('file = "items.csv"', 'sqlite = "items.db"\nquery = "SELECT 7"')
    for place, entry in zip(("items.csv", "items.db"), entries, strict=True):
        (agent / FILE).write_text(FILLED.replace(entries[0], entry))
        items = Settings.load(agent).items
        (agent / place).unlink()
        os.mkfifo(agent / place, 0o600)
        for step in (items.check_there, items._read):
            with pytest.raises(InvalidInputError, match=f"{place} is a pipe or a device"):
                step()
        with pytest.raises(InvalidInputError, match="a pipe or a device|no database"):
            Settings.load(agent)


def test_candidates_are_words_or_integers(tmp_path: Path) -> None:
    words, numbers = tmp_path / "words", tmp_path / "numbers"
    words.write_text("tea\ncoffee\n")
    numbers.write_text("5\n3\n9\n")
    assert candidates_of(words) == [Dictionary(["tea", "coffee"])]
    assert IntegerSet([3, 5, 9], public=True) in candidates_of(numbers)
    plan = dataclasses.replace(PLAN, domain=IntegerSet([3, 5, 9], public=True).describe())
    items = Items(lambda: [3], candidates_of(words) + candidates_of(numbers))
    assert items.domain(plan) == IntegerSet([3, 5, 9], public=True)
    items.client(plan)


def test_a_place_of_items_that_is_not_there_is_public(agent: Path) -> None:
    items = Settings.load(agent).items
    items.check_there()
    (agent / "items.csv").unlink()
    with pytest.raises(UnreadableFileError, match="write one also where there is no item"):
        items.check_there()
    (agent / FILE).write_text(FILLED.replace('file = "items.csv"', 'python = "os:getcwd"'))
    Settings.load(agent).items.check_there()  # a function is asked once the session is recorded


# ---- accepted campaigns ----


@pytest.fixture
def files(tmp_path: Path) -> CampaignFiles:
    ACTIVE.save(tmp_path / "plan.toml")
    save_allow_list(tmp_path / "list", ALLOWED)
    save_signature(tmp_path / "signature", sign_plan(REGISTRAR, ACTIVE, AUTHORITY))
    return CampaignFiles(tmp_path / "plan.toml", tmp_path / "list", tmp_path / "signature")


def test_what_is_accepted_is_read_again_as_it_was(agent: Path, files: CampaignFiles) -> None:
    accepted = AcceptedCampaigns(agent / "campaigns", REGISTRAR.public)
    assert list(accepted) == [] and accepted.latest() is None
    accepted.add(files.load(REGISTRAR.public))
    accepted.add(files.load(REGISTRAR.public))  # again is no harm
    fingerprint = bytes.fromhex(ACTIVE.fingerprint)
    for place in (files.plan, files.allow_list, files.signature):
        assert place is not None
        place.unlink()  # they are copies
    for one in (accepted, AcceptedCampaigns(agent / "campaigns", REGISTRAR.public)):
        assert list(one) == [fingerprint] and len(one) == 1
        assert one[fingerprint].plan == ACTIVE
        assert one[fingerprint].allow_list is not None
        assert one[fingerprint].allow_list.digest == ALLOWED.digest
        assert list(one.problems()) == []
    assert os.listdir(agent / "campaigns") == [ACTIVE.fingerprint]
    assert (agent / "campaigns" / ACTIVE.fingerprint).stat().st_mode & 0o777 == 0o700
    # whoever deletes the folder leaves the campaign, also of an agent that runs
    shutil.rmtree(agent / "campaigns" / ACTIVE.fingerprint)
    assert fingerprint not in accepted and accepted.get(fingerprint) is None


def test_a_plan_must_be_signed_by_the_registrar_that_is_pinned(
    agent: Path, files: CampaignFiles
) -> None:
    other = SigningKey(Secret(stream("other")(32)))
    for registrar, given, says in (
        (other.public, files, "is signed by the registrar"),
        (REGISTRAR.public, dataclasses.replace(files, signature=None), "comes without a signature"),
        (REGISTRAR.public, dataclasses.replace(files, allow_list=None), "get the list from"),
        (None, dataclasses.replace(files, plan=files.plan.with_name("no.toml")), "no.toml"),
    ):
        accepted = AcceptedCampaigns(agent / "campaigns", registrar)
        with pytest.raises(InvalidInputError, match=says):
            accepted.add(given.load(registrar))
        assert os.listdir(agent / "campaigns") == []
    # nothing is asked for where the owner names no registrar
    unsigned = dataclasses.replace(files, until=date(2100, 1, 31)).load(None)
    AcceptedCampaigns(agent / "campaigns", None).add(unsigned)
    # and it is worth nothing once there is one
    accepted = AcceptedCampaigns(agent / "campaigns", REGISTRAR.public)
    assert len(accepted) == 0
    assert "without a signature" in " ".join(accepted.problems())


@each_case("name", ["plan.toml", "allow-list", "signature"])
def test_damaged_files_are_as_if_nothing_was_accepted(
    agent: Path, files: CampaignFiles, name: str
) -> None:
    AcceptedCampaigns(agent / "campaigns", REGISTRAR.public).add(files.load(REGISTRAR.public))
    place = agent / "campaigns" / ACTIVE.fingerprint
    for damage in (b"", b"\xff" * 50, (place / name).read_bytes()[:-20]):
        (place / name).write_bytes(damage)
        accepted = AcceptedCampaigns(agent / "campaigns", REGISTRAR.public)
        assert len(accepted) == 0
        [problem] = accepted.problems()
        assert ACTIVE.fingerprint in problem
    PLAN.save(place / "plan.toml")  # another plan under the name
    assert len(AcceptedCampaigns(agent / "campaigns", None)) == 0


def test_a_crash_while_a_campaign_is_accepted_again_loses_nothing(
    agent: Path, files: CampaignFiles
) -> None:
    accepted = AcceptedCampaigns(agent / "campaigns", REGISTRAR.public)
    accepted.add(files.load(REGISTRAR.public))
    changes = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.utime"}
    for last in range(100):
        child = os.fork()
        if child == 0:
            count = itertools.count()

            def killed(event: str, _: Any) -> None:
                if event in changes and next(count) == last:  # noqa: B023 - in this child alone
                    os._exit(7)

            sys.addaudithook(killed)
            accepted.add(files.load(REGISTRAR.public))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert list(AcceptedCampaigns(agent / "campaigns", REGISTRAR.public)) == [
            bytes.fromhex(ACTIVE.fingerprint)
        ]
        if status == 0:
            break
    assert last > 5 and status == 0


def test_a_damaged_campaign_is_mended_by_accepting_it_again(
    agent: Path, files: CampaignFiles
) -> None:
    accepted = AcceptedCampaigns(agent / "campaigns", REGISTRAR.public)
    place = agent / "campaigns" / ACTIVE.fingerprint
    place.write_text("a file in the place of the folder")
    accepted.add(files.load(REGISTRAR.public))
    assert len(accepted) == 1
    (place / "signature").unlink()
    (place / "other").mkdir()
    accepted.add(files.load(REGISTRAR.public))
    assert len(accepted) == 1 and list(accepted.problems()) == []
    assert os.listdir(agent / "campaigns") == [ACTIVE.fingerprint]


def test_what_an_agent_can_take_part_in(files: CampaignFiles) -> None:
    assert Campaign(ACTIVE, ALLOWED).most_bytes > 1000
    ideal = dataclasses.replace(PLAN, secure_sum=None)
    for plan, listed, says in (
        (ideal, None, "no sum of a trusted server"),
        (PLAN.without_keys(), None, "lacks server_key"),
        (ACTIVE, None, "get the list from the registrar"),
        (PLAN, ALLOWED, "no allow-list"),
    ):
        with pytest.raises(InvalidInputError, match=says):
            Campaign(plan, listed)


def test_the_template_is_toml() -> None:
    assert tomllib.loads(TEMPLATE)["policy"]["adversary"] == "active"


def test_a_campaign_that_the_agents_user_may_not_read_is_named(
    agent: Path, files: CampaignFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where root accepted it: the agent goes on without it."""
    AcceptedCampaigns(agent / "campaigns", REGISTRAR.public).add(files.load(REGISTRAR.public))
    place, real = str(agent / "campaigns" / ACTIVE.fingerprint), os.stat

    def denied(path: Any, *more: Any, **others: Any) -> os.stat_result:
        if os.fspath(path).startswith(place + os.sep):
            raise PermissionError(13, "Permission denied")
        return real(path, *more, **others)

    monkeypatch.setattr(os, "stat", denied)
    accepted = AcceptedCampaigns(agent / "campaigns", REGISTRAR.public)
    assert list(accepted) == [] and accepted.latest() is None
    [problem] = accepted.problems()
    assert place in problem
