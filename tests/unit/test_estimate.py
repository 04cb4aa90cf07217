"""The door for Python: keywords, tables, paths, and errors that name keywords."""

from __future__ import annotations

import dataclasses
import gzip
import html
import inspect
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fedtally
import fedtally.domain
from fedtally.answer.answer import Answer
from fedtally.domain import Strings
from fedtally.errors import InvalidInputError, MemoryLimitError, UnreadableFileError
from fedtally.plan.request import Request
from fedtally.simulation.simulation import OPTIONS, Simulation
from fedtally.sources import Columns, open_files, open_source

DRINKS = {"word": ["tea", "tea", "rice", "milk"], "user": [1, 1, 2, 3], "day": [1, 2, 1, 2]}
SMALL: dict[str, Any] = {"width": 64, "rows": 5, "seed": 1}


def test_the_keywords_are_those_of_a_request_and_a_simulation() -> None:
    found = inspect.signature(fedtally.estimate).parameters
    keywords = [name for name, each in found.items() if each.kind is each.KEYWORD_ONLY]
    named = ["item", "client", "silo", "round", "count", "clients", "silos", "rounds", "counts"]
    assert sorted(keywords) == sorted([*named, *OPTIONS])
    for field in (*dataclasses.fields(Request), *dataclasses.fields(Simulation)):
        if field.name != "spec":
            assert found[field.name].default == field.default, field.name
            path = " | str | os.PathLike[str]" if field.name == "plan" else ""  # of the plan's file
            assert found[field.name].annotation.replace(path, "", 1) == field.type, field.name
    for name in ("people", "silos_per_person"):
        assert found[name].default is None
    of = inspect.signature(Request.resolve).parameters
    for name in ("dropout", "not_private"):
        assert found[name].default == of[name].default
    documented = inspect.getdoc(fedtally.estimate) or ""
    assert [name for name in keywords if f"    {name}: " not in documented] == []


def tables() -> dict[str, Any]:
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    return {
        "pandas": pandas.DataFrame(DRINKS),
        "polars": polars.DataFrame(DRINKS),
        "lazy": polars.LazyFrame(DRINKS),
        "arrow": pa.table(DRINKS),
    }


@pytest.mark.parametrize("kind", ["pandas", "polars", "lazy", "arrow"])
def test_a_table_answers_as_its_columns_do(kind: str) -> None:
    table = tables()[kind]
    apart = fedtally.estimate(DRINKS["word"], clients=DRINKS["user"], **SMALL)
    found = fedtally.estimate(table, item="word", client="user", **SMALL)
    assert found.top(3) == apart.top(3)
    assert found.num_clients == 3
    daily = fedtally.estimate(table, item="word", client="user", round="day", **SMALL)
    assert daily.num_contributions == 4
    with pytest.raises(InvalidInputError, match="has no column 'wrd'; it has the columns 'word'"):
        fedtally.estimate(table, item="wrd")


def test_a_path_and_a_glob_are_read(tmp_path: Path) -> None:
    for number, words in enumerate((["tea", "rice"], ["tea", "milk"])):
        table = pa.table({"word": words, "user": [1 + number, 2 + number]})
        pq.write_table(table, tmp_path / f"part-{number}.parquet")
    one = fedtally.estimate(tmp_path / "part-0.parquet", item="word", **SMALL)
    assert one.num_clients == 2
    both = fedtally.estimate(
        str(tmp_path / "*.parquet"), item="word", client="user", max_items=2, **SMALL
    )
    # client 2 is in both files, and is one client
    assert both.num_clients == 3
    assert both.frequency("tea") == pytest.approx(2 / 3)
    with pytest.raises(InvalidInputError, match="which column is the item"):
        fedtally.estimate(str(tmp_path / "*.parquet"))
    with pytest.raises(UnreadableFileError, match="no file matches"):
        fedtally.estimate(str(tmp_path / "*.csv"), item="word")


@pytest.mark.parametrize("options", [{}, {"epsilon": 1.0, "domain": ["tea"]}])
def test_a_client_is_written_alike_in_all_files(tmp_path: Path, options: dict[str, Any]) -> None:
    """Otherwise client 7 and client "7" are two, and each has a privacy budget of its own."""
    pq.write_table(pa.table({"word": ["tea"], "user": [7]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"word": ["tea"], "user": ["7"]}), tmp_path / "b.parquet")
    with pytest.raises(InvalidInputError, match="'user' holds text there and integers in"):
        fedtally.estimate(str(tmp_path / "*.parquet"), item="word", client="user", **options)
    for number, kind in enumerate((pa.decimal128(5, 2), pa.decimal128(6, 3))):
        table = pa.table({"word": ["tea"], "user": pa.array([7], kind)})
        pq.write_table(table, tmp_path / f"d-{number}.parquet")
    with pytest.raises(InvalidInputError, match=r"decimal128\(6, 3\) there and values of type"):
        fedtally.estimate(str(tmp_path / "d-*.parquet"), item="word", client="user", **options)
    (tmp_path / "c.csv").write_text("word,user\ntea,7\n")
    with pytest.raises(InvalidInputError, match="must have one format"):
        fedtally.estimate(str(tmp_path / "[ac].*"), item="word", client="user", **options)


def test_a_client_is_one_in_all_json_files(tmp_path: Path) -> None:
    """Under epsilon no row may end the run, so a number and a text are read as one client."""
    rows = {
        "a": ["7", "8", "1000000000000000", "9007199254740992", "0"],
        "b": ['"7"', "8.0", "1000000000000000.0", "9007199254740992.0", "-0.0"],
    }
    for name, users in rows.items():
        lines = [f'{{"word": "tea", "user": {user}}}\n' for user in users]
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    source = open_files(str(tmp_path / "*.jsonl"), Columns("word", client="user"))
    clients = [
        batch.clients.to_pylist()
        for batch in source.batches(private=True)
        if batch.clients is not None and len(batch)
    ]
    assert len(clients) == 2 and clients[0] == clients[1]
    with pytest.raises(InvalidInputError, match=r"'user' holds values of several types"):
        list(source.batches())
    (tmp_path / "b.jsonl").write_text('{"word": "tea", "user": "7"}\n')
    with pytest.raises(InvalidInputError, match="integers in one file"):
        list(source.batches())


@pytest.mark.parametrize("private", [False, True])
def test_a_client_is_one_in_all_csv_files(tmp_path: Path, private: bool) -> None:
    """pandas writes 7.0 in the file in which a client is missing; no row may end a private run."""
    (tmp_path / "a.csv").write_text("w,user,day\ntea,7,1\ntea,8,1\n1.0,007,x\ntea,-3,1\n,9,1\n")
    (tmp_path / "b.csv").write_text("w,user,day\nrice,7.0,1.0\ntea,,1.0\n1.0,8.05,y\n,9.0,1\n")
    columns = Columns("w", client="user", round="day")
    batches = list(open_source(str(tmp_path / "*.csv"), columns).batches(private=private))
    clients = [name for batch in batches for name in batch.clients.to_pylist()]
    rounds = {name for batch in batches for name in batch.rounds.to_pylist()}
    assert clients == ["7", "8", "007", "-3", "7", "8.05"] and rounds == {"1", "x", "y"}
    (tmp_path / "c[1].csv").write_text(
        "w;user;silo\ntea;007.0;1.0\ntea;-3.0;1\ntea;0.0;x\n;5;2.0\n"
    )
    (tmp_path / "c1.csv").write_text("w;user;silo\ntea;4;1\n")
    named = Columns("w", client="user", silo="silo")
    source = open_source(str(tmp_path / "c*.csv"), named, delimiter=";")
    batches = list(source.batches(private=private))
    assert [n for b in batches for n in b.clients.to_pylist()] == ["4", "007.0", "-3", "0"]
    assert [n for b in batches for n in b.silos.to_pylist()] == ["1", "1", "1", "x"]
    bare = [b.itemless.silos.to_pylist() for b in batches if b.itemless and private]
    assert bare == ([["2"]] if private else [])
    # a file of that very name is no pattern
    source = open_source(str(tmp_path / "c[1].csv"), named, delimiter=";")
    assert sum(map(len, source.batches(private=private))) == 3
    batches = list(open_source(str(tmp_path / "[ab].csv"), columns).batches(private=private))
    assert "1.0" in [item for batch in batches for item in batch.items.to_pylist()]
    bare = [b.itemless.clients.to_pylist() for b in batches if b.itemless and private]
    assert bare == ([["9"], ["9"]] if private else [])


def test_parquet_files_of_a_glob_are_read_as_one_alone_is(tmp_path: Path) -> None:
    pq.write_table(pa.table({"word": ["tea"], "user": [7]}), tmp_path / "a.parquet")
    data = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "b.parquet.gz").write_bytes(gzip.compress(data))
    found = fedtally.estimate(str(tmp_path / "*.parquet*"), item="word", client="user", **SMALL)
    assert found.num_clients == 1
    (tmp_path / "b.parquet.gz").write_bytes(data[:40])
    with pytest.raises(UnreadableFileError, match=r"b\.parquet\.gz"):
        fedtally.estimate(str(tmp_path / "*.parquet*"), item="word", client="user", **SMALL)


def test_a_domain_is_a_list_or_a_file_and_a_size_is_text(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("tea\nrice\n")
    for domain in (["tea", "rice"], tmp_path / "words.txt", pa.array(["tea", "rice"])):
        found = fedtally.estimate(["tea"], domain=domain, max_bytes="1kB", seed=1)
        assert found.domain == fedtally.Dictionary(["tea", "rice"])
        assert found.plan.bytes_per_client <= 1000
    assert fedtally.estimate([3], domain=[9, 3], seed=1).domain.size == 2
    with pytest.raises(InvalidInputError, match="is the input itself"):
        fedtally.estimate(tmp_path / "words.txt", domain=str(tmp_path / "words.txt"), epsilon=1.0)
    items = ["tea", "rice"]
    with pytest.raises(InvalidInputError, match="is the input itself"):
        fedtally.estimate(items, domain=items, epsilon=1.0)


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (["a"], {"epsilon": 1.0}, r"declare a list \(domain=FILE, .* \(not_private=True allows"),
        (["a"], {"domain": ["b"]}, r"use domain='input', or leave out"),
        (["a"], {"max_items": 2}, r"name the clients \(client=\)"),
        (pa.table({"a": [1], "b": [2]}), {}, r"which column is the item\? .* \(item=\)"),
        (["a"], {"client": "user"}, "client names a column of a table, and list is no table"),
        (pa.table({"a": [1]}), {"clients": [1]}, r"name its column by client=\.\.\."),
        (["a"], {"rounds": 2}, "the number of rounds is num_rounds=2"),
        (pa.table({"a": [1]}), {"rounds": 2}, "the number of rounds is num_rounds=2"),
        ("no such file", {}, r"one item is written \['no such file'\]"),
        (["a"], {"max_bytes": "much"}, "max_bytes 'much' is no size"),
    ],
)
def test_errors_name_keywords(data: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as caught:
        fedtally.estimate(data, **options)
    assert "--" not in str(caught.value)


def test_a_result_is_a_table_for_other_libraries() -> None:
    result = fedtally.estimate(["<b>tea"] * 3 + ["rice"], **SMALL)
    assert len(result) == 2
    assert [(each.item, each.count) for each in result] == [("<b>tea", 3.0), ("rice", 1.0)]
    assert pa.table(result).equals(result.to_arrow())
    polars = pytest.importorskip("polars")
    assert result.to_polars()["item"].to_list() == ["<b>tea", "rice"]
    assert polars.DataFrame(result).equals(result.to_polars())
    assert result.to_pandas().equals(result.to_frame())
    shown = result._repr_html_()
    assert "><bdi>&lt;b&gt;tea</bdi></th>" in shown
    assert "75.000 %" in shown
    assert "4 clients, 2 candidates" in shown


def test_merged_results_are_a_table_for_other_libraries() -> None:
    many = [f"item {n}" for n in range(14)]
    parts = [
        fedtally.estimate(["<b>tea"] * n + ["rice"] * 2, domain=["<b>tea", "rice", *many], seed=n)
        for n in (3, 5)
    ]
    merged = Answer(parts)
    assert repr(merged) == "Answer(2 results, clients=12, candidates=16)"
    table = merged.to_arrow()
    assert table.column_names == parts[0].to_arrow().column_names
    assert table.schema.metadata == parts[0].to_arrow().schema.metadata
    assert table["item"].to_pylist()[:2] == ["<b>tea", "rice"]
    named = merged.estimates(table["item"].to_pylist())  # the limits too: those of named items
    numbers = table.drop_columns(["above_noise"])
    assert numbers.to_pylist() == [dataclasses.asdict(each) for each in named]
    assert table["above_noise"].to_pylist() == merged.above_noise(named)
    assert pa.table(merged).equals(table)
    polars = pytest.importorskip("polars")
    assert polars.DataFrame(merged).equals(merged.to_polars())
    assert merged.to_pandas().equals(merged.to_frame())
    assert list(merged) == named and len(merged) == 16
    assert parts[0].parts == (parts[0],) and merged.parts == tuple(parts)
    shown = merged._repr_html_()
    assert "12 clients in 2 results, 16 candidates" in shown
    assert "><bdi>&lt;b&gt;tea</bdi></th>" in shown and "counts in each" in shown
    with pytest.raises(MemoryLimitError):
        merged.to_arrow(memory=10)


def test_candidates_with_white_space_at_their_ends_are_noted() -> None:
    note = "begin or end with white space, which counts"
    for domain in (
        ["tea", "tea ", "\u00a0rice"],
        Strings(["tea\t", " rice"], bytes(32), public=True),
    ):
        spaced = fedtally.estimate(
            ["tea"] if isinstance(domain, list) else [" rice"], domain=domain, seed=1
        )
        assert [said for said in spaced.cautions if said.startswith("2 candidates " + note)]
    assert not any(note in said for said in fedtally.estimate(["a b"], **SMALL).cautions)
    private = fedtally.estimate(["tea"] * 9, domain=["tea", "tea "], epsilon=1)
    assert any("1 candidate begins or ends" in said for said in private.cautions)


def test_a_notebook_says_how_many_items_it_leaves_out() -> None:
    held = [f"item {n}" for n in range(14) for _ in range(n + 1)]
    assert "14 candidates; the largest 10<" in fedtally.estimate(held, **SMALL)._repr_html_()
    assert "; the largest" not in fedtally.estimate(held[:55], **SMALL)._repr_html_()
    parts = [fedtally.estimate(held, domain=sorted(set(held)), seed=n) for n in (1, 2)]
    assert "14 candidates; the largest 10<" in Answer(parts)._repr_html_()


def test_a_text_names_the_two_columns_of_a_grid(tmp_path: Path) -> None:
    places = pa.table({"lat": [40.05, 40.05, 41.5], "lon": [-74.05, -74.05, -73.5]})
    texts = pa.table({"lat,lon": ["40.05,-74.05", "40.05,-74.05", "41.5,-73.5"]})
    pq.write_table(places, tmp_path / "places.parquet")
    grid: dict[str, Any] = {"domain": "grid:25..50,-130..-60,0.1", "width": 64, "seed": 1}
    pair = fedtally.estimate(places, item=("lat", "lon"), **grid)
    for data in (places, tmp_path / "places.parquet", texts):
        assert fedtally.estimate(data, item="lat,lon", **grid).top(2) == pair.top(2)
    of_grid = {**grid, "domain": fedtally.domain.parse(grid["domain"])}
    assert fedtally.estimate(places, item="lat,lon", **of_grid).top(2) == pair.top(2)
    counted = [fedtally.partial_tally(places, partition=1, item="lat,lon", domain=grid["domain"])]
    merged = fedtally.estimate(fedtally.merge_tallies(counted), **grid)
    assert [each.item for each in merged.top(2)] == [each.item for each in pair.top(2)]
    # without a grid a comma is a letter of a name
    assert fedtally.estimate(texts, item="lat,lon", **SMALL).top(1)[0].item == "40.05,-74.05"
    with pytest.raises(InvalidInputError, match="no column 'lat,lon'"):
        fedtally.estimate(places, item="lat,lon", **SMALL)


def test_a_plan_is_given_by_the_path_of_its_file(tmp_path: Path) -> None:
    plan = fedtally.estimate(["tea"] * 3 + ["rice"], **SMALL).plan
    plan.save(tmp_path / "plan.toml")
    for given in (tmp_path / "plan.toml", str(tmp_path / "plan.toml"), plan):
        again = fedtally.estimate(["tea"] * 2 + ["milk"], plan=given)
        assert (again.plan.width, again.plan.seed) == (plan.width, plan.seed)
    with pytest.raises(UnreadableFileError, match="cannot read the plan absent.toml"):
        fedtally.estimate(["tea"], plan="absent.toml")
    with pytest.raises(InvalidInputError, match="plan must be a Plan, or the path .* got dict"):
        fedtally.estimate(["tea"], plan=plan.to_dict())  # type: ignore[arg-type]


def test_a_notebook_shows_items_of_strangers_on_one_line() -> None:
    odd = {"a\nb\x1b[31m": r"a\nb\x1b[31m", "x" * 99 + "/1": f"{'x' * 29}…{'x' * 27}/1"}
    odd["\u05d0\u202e5"] = r"א\u202e5"  # Hebrew, and a character that turns what follows
    shown = fedtally.estimate(list(odd), **SMALL)._repr_html_()
    for item in odd.values():
        assert f"<bdi>{html.escape(item)}</bdi></th>" in shown
    assert shown.isprintable()


def test_a_note_names_keywords_in_a_notebook_and_options_elsewhere() -> None:
    found = fedtally.estimate(["tea", "rice", "milk"], clients=["a", "a", "b"], **SMALL)
    assert any("; --max-items 2 counts all" in note for note in found.warnings)
    shown = found._repr_html_()
    assert "; max_items=2 counts all" in shown and "--max-items" not in shown


@pytest.mark.parametrize(
    ("name", "content", "advice"),
    [
        ("semi.csv", b"id;item\n1;tea\n", "delimiter=';'"),
        ("latin.csv", b"id,item\n1,caf\xe9\n", "encoding='latin-1'"),
        ("table.csv", b"PAR1\x15", "format='parquet'"),
    ],
)
def test_how_a_file_is_read_is_no_keyword_and_the_error_says_what_to_do(
    tmp_path: Path, name: str, content: bytes, advice: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidInputError) as caught:
        fedtally.estimate(tmp_path / name, item="item")
    said = str(caught.value)
    assert advice in said and "estimate() has no option for that: read the file by pandas" in said
    with pytest.raises(InvalidInputError) as caught:
        fedtally.partial_tally(tmp_path / name, item="item", partition=0, seed=7)
    assert "partial_tally() has no option for that" in str(caught.value)
