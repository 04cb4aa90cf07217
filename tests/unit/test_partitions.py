"""A table that is counted in partitions gives the answer of the whole table, to the last bit."""

import base64
import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedtally
from fedtally import kernels
from fedtally.errors import InvalidInputError, UnreadableFileError

WORDS = [f"w{i}" for i in range(40)]
SKETCH = {"rows": 3, "width": 64, "seed": 7}


def table(size=900, seed=1):
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "word": rng.choice(WORDS, size),
            "user": [f"u{i}" for i in rng.integers(0, 90, size)],
            "day": [str(i) for i in rng.integers(8, 12, size)],
            "code": rng.integers(-3, 60, size),
            "n": rng.integers(0, 4, size),
        }
    )


def parted(rows, places):
    """Return the parts of a table: row i goes to part places[i]."""
    return [rows.filter(pa.array(places == k)) for k in range(int(places.max()) + 1)]


def same(one, other):
    """Whether two results have the same sums, candidates, truth and notes."""
    assert [s.counters.tolist() for s in one.sketches] == [
        s.counters.tolist() for s in other.sketches
    ]
    assert [s.num_clients for s in one.sketches] == [s.num_clients for s in other.sketches]
    assert one.domain == other.domain
    assert one.truth.counts.tolist() == other.truth.counts.tolist()
    assert (one.warnings, one.missing, one.draw, one.columns) == (
        other.warnings, other.missing, other.draw, other.columns
    )  # fmt: skip
    assert one.plan.fingerprint == other.plan.fingerprint
    return True


CASES = {
    "rows": {"item": "word"},
    "integers": {"item": "code"},
    "rounds drawn": {"item": "word", "num_rounds": 3},
    "natural rounds": {"item": "word", "round": "day"},
    "counts": {"item": "word", "count": "n"},
    "declared, dropped": {"item": "word", "domain": WORDS[:30], "outside": "drop"},
    "clients": {"item": "word", "client": "user", "num_rounds": 2},
    "clients of several items": {"item": "word", "client": "user", "max_items": 3},
    "clients, declared": {"item": "code", "client": "user", "domain": "range:0..9",
                          "outside": "drop"},
}  # fmt: skip


def equal(*tallies):
    """Whether tables are one another to the last bit, with what their schemas say."""
    return all(tallies[0].equals(other, check_metadata=True) for other in tallies[1:])


def header(tally):
    return json.loads(tally.schema.metadata[b"fedtally"])


def with_header(tally, meta):
    return tally.replace_schema_metadata({"fedtally": json.dumps(meta)})


def with_column(tally, name, values):
    """A tally with other values in one of its columns."""
    place = tally.schema.get_field_index(name)
    return tally.set_column(place, name, pa.array(values, tally.schema.field(name).type))


def tallied(rows, places, **asked):
    """The tallies of the parts of a table, in order."""
    return [
        fedtally.partial_tally(part, partition=number, **{"seed": 7} | asked)
        for number, part in enumerate(parted(rows, places))
    ]


def places_of(rows, rng, by_client, number=4):
    """A random partition for each row; with clients, for each client."""
    if not by_client:
        return rng.integers(0, number, rows.num_rows)
    users = rows["user"].combine_chunks().dictionary_encode().indices.to_numpy()
    return rng.integers(0, number, users.max() + 1)[users]


def of_campaign(asked):
    """The options that are the campaign's, and not those of a table."""
    return {key: asked[key] for key in asked if key not in ("item", "client", "round", "count")}


@pytest.mark.parametrize("name", CASES)
def test_partitions_give_the_answer_of_the_whole_table(name):
    rows, asked, rng = table(), CASES[name], np.random.default_rng()
    whole = fedtally.estimate(rows, **asked, **SKETCH, evaluate=True)
    parts = tallied(rows, places_of(rows, rng, "client" in asked), **asked)
    again = fedtally.partial_tally(rows[:0], partition="empty", seed=7, **asked)
    parts = [parts[i] for i in rng.permutation(len(parts))] + [again]
    left, right = fedtally.merge_tallies(parts[:2]), fedtally.merge_tallies(parts[2:])
    merged = fedtally.merge_tallies(parts)
    assert equal(fedtally.merge_tallies([right, left]), merged)  # as in a tree
    assert equal(fedtally.merge_tallies([*parts, parts[1], again]), merged)  # a worker died
    assert equal(fedtally.merge_tallies([parts[0], left, parts[3], right]), merged)
    same(fedtally.estimate(merged, **of_campaign(asked), **SKETCH, evaluate=True), whole)


def test_the_rows_of_a_partition_may_come_in_any_order():
    rows = table(300)
    mixed = rows.take(np.random.default_rng(3).permutation(300))
    for asked in ({"item": "word"}, {"item": "word", "client": "user", "max_items": 2}):
        one, other = (
            fedtally.partial_tally(each, partition="a", seed=7, **asked) for each in (rows, mixed)
        )
        assert equal(one, other)


@pytest.mark.parametrize(
    "asked", [{}, {"client": "user"}, {"round": "day"}, {"client": "user", "num_rounds": 3}]
)
def test_a_private_campaign_over_partitions(asked):
    """With a seed, which draws the noise, too, the releases agree."""
    rows, domain = table(), WORDS[:20]
    privacy = {"epsilon": 2.0, "not_private": True, "domain": domain}
    whole = fedtally.estimate(rows, item="word", **asked, **privacy, **SKETCH)
    by_client = "client" in asked
    parts = tallied(
        rows,
        places_of(rows, np.random.default_rng(4), by_client),
        item="word",
        domain=domain,
        private=True,
        **asked,
    )
    merged = fedtally.merge_tallies(parts)
    found = fedtally.estimate(merged, **of_campaign(asked), **privacy, **SKETCH)
    assert found.num_clients == whole.num_clients
    assert found.estimates(domain) == whole.estimates(domain)
    # without a seed, as private campaigns are
    unseeded = {key: SKETCH[key] for key in ("rows", "width")}
    private = fedtally.estimate(
        merged, **of_campaign(asked), epsilon=2.0, domain=domain, **unseeded
    )
    assert private.num_clients == whole.num_clients


def test_a_client_in_two_partitions_is_found():
    rows = table()
    halves = np.arange(rows.num_rows) % 2
    parts = tallied(rows, halves, item="word", client="user")
    with pytest.raises(InvalidInputError, match="a client is in two partitions: bring all rows"):
        fedtally.merge_tallies(parts)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"seed": 8}, "'1' has another seed than the others: give"),
        ({"num_rounds": 2}, r"another num_rounds than the others \(2 and 1\)"),
        ({"max_items": 2, "client": "user"}, "another max_items"),
        ({"client": "user"}, "bounds named clients, and another does not"),
        ({"domain": WORDS}, "another domain"),
        ({"item": "code"}, "some partitions hold integers and some text"),
        ({"partition": 0}, "two tallies of the partition '0' differ"),
        ({"domain": WORDS, "private": True}, r"another private than the others \(True and False\)"),
    ],
)
def test_tallies_that_do_not_go_together(other, message):
    asked = {"item": "word", "seed": 7, "partition": 1}
    one = fedtally.partial_tally(table(), **asked | {"partition": 0})
    with pytest.raises(InvalidInputError, match=message):
        fedtally.merge_tallies([one, fedtally.partial_tally(table(400), **asked | other)])


def test_merged_tallies_that_share_a_partition():
    a, b, c = (fedtally.partial_tally(["tea"], partition=i, seed=7) for i in range(3))
    with pytest.raises(InvalidInputError, match="the partition '1' is in two merged tallies"):
        fedtally.merge_tallies([fedtally.merge_tallies([a, b]), fedtally.merge_tallies([b, c])])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 8}, "the merged tally has another seed"),
        ({"num_rounds": 2}, "another num_rounds"),
        ({"domain": WORDS}, "another domain"),
        ({"item": "word"}, "a merged tally has no columns"),
    ],
)
def test_a_campaign_that_asks_for_something_else(options, message):
    merged = fedtally.partial_tally(table(), partition=0, item="word", seed=7)
    with pytest.raises(InvalidInputError, match=message):
        fedtally.estimate(merged, **SKETCH | options)


@pytest.mark.parametrize("options", [{}, {"seed": 7}, {"domain": WORDS, "seed": 7}])
def test_epsilon_for_partitions_that_were_counted_without_it(options):
    """Neither a plan nor `outside` was given, so the error names neither."""
    merged = fedtally.partial_tally(["tea", "rice"] * 50, partition=0, seed=7)
    asked = {"epsilon": 1, "not_private": True}
    with pytest.raises(
        InvalidInputError, match="counted with private=False, and must be with True"
    ):
        fedtally.estimate(merged, **asked | options)
    plan = fedtally.estimate(["tea", "rice"] * 50, **asked, seed=7).plan
    with pytest.raises(
        InvalidInputError, match="counted with private=False, and must be with True"
    ):
        fedtally.estimate(merged, plan=plan, seed=7, not_private=True)


def test_partitions_that_were_counted_for_epsilon_without_it():
    merged = fedtally.partial_tally(table(), partition=0, item="word", domain=WORDS, private=True)
    with pytest.raises(
        InvalidInputError, match="counted with private=True, and must be with False"
    ):
        fedtally.estimate(merged, domain=WORDS)
    assert fedtally.estimate(merged, domain=WORDS, epsilon=1).plan.privacy.epsilon == 1


def test_a_plan_with_another_seed():
    """Ids of text follow from the seed of the plan; those of integers from none."""
    words, codes = ["tea"] * 50 + ["rice"] * 30, [3] * 50 + [4] * 30
    for rows, refused in ((words, True), (codes, False)):
        plan = fedtally.estimate(rows, **SKETCH).plan
        same_seed, other = (fedtally.partial_tally(rows, partition=0, seed=s) for s in (7, 9))
        whole = fedtally.estimate(rows, plan=plan, seed=7, evaluate=True)
        same(fedtally.estimate(same_seed, plan=plan, seed=7, evaluate=True), whole)
        if refused:
            with pytest.raises(InvalidInputError, match="another seed than the plan's: count"):
                fedtally.estimate(other, plan=plan, seed=9)
        else:
            assert len(fedtally.estimate(other, plan=plan, seed=9).top(3)) == 2


@pytest.mark.parametrize("domain", [None, ["tea", "rice"], "range:0..9", "list"])
def test_ids_of_no_candidate(domain):
    """Of several partitions, of which no digest tells."""
    domain = [3, 4, 7] if domain == "list" else domain
    item = 4 if domain in ("range:0..9", [3, 4, 7]) else "tea"
    both = [fedtally.partial_tally([item], partition=i, seed=7, domain=domain) for i in range(2)]
    merged = fedtally.merge_tallies(both)
    assert fedtally.estimate(merged, domain=domain, **SKETCH).num_clients == 2
    ids = [None if i is None else 99 for i in merged["id"].to_pylist()]
    other = with_column(merged, "id", ids)
    with pytest.raises(UnreadableFileError, match="id is 99, and must be the id of a candidate"):
        fedtally.estimate(other, domain=domain, **SKETCH)


def test_a_campaign_that_needs_each_client():
    merged = fedtally.partial_tally(
        table(), partition=0, item="word", client="user", max_items=2, seed=7, domain=WORDS
    )
    with pytest.raises(InvalidInputError, match="needs the items of each client, and a merged"):
        fedtally.estimate(merged, domain=WORDS, max_items=2, secure_sum="secagg", **SKETCH)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"partition": ""}, "partition must be the name or the number"),
        ({"partition": True}, "partition must be the name or the number"),
        ({"seed": None}, "seed must be given, the same for all partitions"),
        ({"client": "user", "round": "day"}, "depend on all rounds"),
        ({"round": "day", "num_rounds": 2}, "a round column already says num_rounds="),
        ({"max_items": 2}, "name the clients"),
        ({"domain": "open"}, "open domain yet"),
        ({"private": True}, "the candidates must be public"),
        ({"private": True, "domain": WORDS, "outside": "error"}, "leave outside= out"),
        ({"outside": "keep"}, "outside must be error or drop"),
    ],
)
def test_options_of_a_partition(asked, message):
    with pytest.raises(InvalidInputError, match=message):
        fedtally.partial_tally(table(), **{"item": "word", "partition": 0, "seed": 7} | asked)


def test_candidates_that_are_the_partition(tmp_path):
    path, words = tmp_path / "w.txt", ["tea", "rice"]
    path.write_text("tea\nrice\n")
    for data, domain in ((words, words), (str(path), str(path)), (path, str(path))):
        with pytest.raises(InvalidInputError, match="the domain is the partition itself"):
            fedtally.partial_tally(data, partition=0, domain=domain, private=True)
        fedtally.partial_tally(data, partition=0, domain=domain)


@pytest.mark.parametrize("part", ["client", "round"])
@pytest.mark.parametrize("private", [False, True])
def test_columns_of_another_type_in_another_partition(part, private):
    """As pandas makes of integers where a value is missing; under privacy floats are text."""
    asked = {"item": "word", part: part, "seed": 7, "domain": ["tea"], "private": private}
    pd = pytest.importorskip("pandas")
    rows = pd.DataFrame({"word": ["tea"] * 3, part: [8, 9, 8]})
    others = {
        "float": pd.DataFrame({"word": ["tea"] * 3, part: [18, 19, np.nan]}),
        "text": pd.DataFrame({"word": ["tea"] * 3, part: ["18", "19", None]}),
        "no text": pd.DataFrame({"word": ["tea"] * 3, part: pd.Series([None] * 3, dtype="str")}),
        "integers": pd.DataFrame({"word": ["tea"] * 3, part: pd.array([18, 19, None], "Int64")}),
    }
    one = fedtally.partial_tally(rows, partition=0, **asked)
    for kind, other in others.items():
        both = [one, fedtally.partial_tally(other, partition=1, **asked)]
        if kind == "text" or (kind == "float" and private):
            with pytest.raises(InvalidInputError, match=f"the {part}s of some partitions are int"):
                fedtally.merge_tallies(both)
        else:
            fedtally.merge_tallies(both)


def test_columns_that_play_no_part_may_come_in_any_order():
    """As in JSON lines: tallies are equal, and a partition that is counted again is the same."""
    one, other = pa.table({"word": ["a"], "x": [1], "y": [1]}), None
    other = one.select(["y", "x", "word"])
    a, b, again, c = (
        fedtally.partial_tally(rows, partition=name, item="word", seed=7)
        for rows, name in ((one, "a"), (other, "b"), (other, "a"), (one, "c"))
    )
    merge = fedtally.merge_tallies
    assert equal(merge([a, b]), merge([b, a]), merge([merge([a]), b]))
    assert equal(merge([a, again]), merge([again, a]))
    assert equal(merge([a, again, b]), merge([b, again, a]))
    assert equal(merge([merge([a, c]), b]), merge([a, b, c]), merge([merge([c, b]), a]))


def test_a_merge_of_one_partition_is_the_partition():
    for rows in (WORDS, [3, -3, 0]):  # whose order by id is another than by value
        one = fedtally.partial_tally(rows, partition=0, seed=7)
        assert equal(fedtally.merge_tallies([fedtally.merge_tallies([one])]), one)
        fedtally.estimate(fedtally.merge_tallies([one]), **SKETCH)


def test_a_partition_that_was_moved(tmp_path):
    """It is the same when it is counted again elsewhere."""
    tallies = []
    for folder in ("day=1", "day=2"):
        (tmp_path / folder).mkdir()
        pq.write_table(table(9), tmp_path / folder / "a.parquet")
        tallies.append(
            fedtally.partial_tally(str(tmp_path / folder), partition=0, item="word", seed=7)
        )
    assert equal(*tallies)


def test_more_rounds_than_a_table_may_have(monkeypatch):
    monkeypatch.setattr("fedtally.simulation.counted_part.MAX_NATURAL_ROUNDS", 3)
    parts = [
        fedtally.partial_tally(["tea"] * 2, rounds=[i, i + 1], partition=i, seed=7)
        for i in range(3)
    ]
    fedtally.merge_tallies(parts[:2])
    with pytest.raises(InvalidInputError, match="the round column has more than 3 distinct"):
        fedtally.merge_tallies(parts)


def test_a_partition_for_each_file_of_a_folder(tmp_path):
    """The files read alone are the folder: numbers with points, folders that are columns."""
    csv, hive = tmp_path / "csv", tmp_path / "hive"
    csv.mkdir()
    (csv / "a.csv").write_text("word,user,day\ntea,1,1\nrice,2,1\n")
    (csv / "[b].csv").write_text("word,user,day\ntea,1.0,1.0\nrice,4.0,2.0\nrice,,\n")
    for day in (1, 2):
        (hive / f"day={day}").mkdir(parents=True)
        pq.write_table(table(50, seed=day), hive / f"day={day}" / "a.parquet", row_group_size=20)
        rows = pq.read_table(hive / f"day={day}" / "a.parquet", partitioning=None).drop("day")
        pq.write_table(rows, hive / f"day={day}" / "a.parquet")
    for folder in (csv, hive):
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        asked = {"item": "word", "round": "day"}
        parts = [fedtally.partial_tally(path, partition=path.name + path.parent.name, seed=7,
                                        **asked) for path in files]  # fmt: skip
        merged = fedtally.estimate(fedtally.merge_tallies(parts), **SKETCH, evaluate=True)
        same(merged, fedtally.estimate(folder, **asked, **SKETCH, evaluate=True))
    users = [
        fedtally.partial_tally(path, partition=path.name, seed=7, item="word", client="user")
        for path in sorted(csv.iterdir())
    ]
    with pytest.raises(InvalidInputError, match="a client is in two partitions"):
        fedtally.merge_tallies(users)


def test_messages_in_the_words_of_python():
    with pytest.raises(InvalidInputError, match=r"which column is the item.*\(item=\)"):
        fedtally.partial_tally(table(), partition=0, seed=7)
    with pytest.raises(TypeError, match="'sed'; did you mean 'seed'?"):
        fedtally.partial_tally(["tea"], partition=0, sed=7)


def test_a_partition_may_have_a_number_of_numpy():
    one, other = (
        fedtally.partial_tally(["tea"], partition=n, seed=7) for n in (3, np.arange(4)[3])
    )
    assert equal(one, other)


@pytest.mark.parametrize(
    ("rows", "message"), [([], "merged tally is empty: it has no rows"),
                          ([None, None], "merged tally: each of its 4 rows lacks its item$")]
)  # fmt: skip
def test_partitions_without_rows(rows, message):
    parts = [fedtally.partial_tally(rows, partition=i, seed=7) for i in range(2)]
    with pytest.raises(InvalidInputError, match=message):
        fedtally.estimate(fedtally.merge_tallies(parts), **SKETCH)


def test_the_rows_of_all_partitions_are_counted():
    """Those that lack an item are told beside all rows, as those of one table are."""
    parts = [fedtally.partial_tally(["tea", None], partition=i, seed=7) for i in range(3)]
    result = fedtally.estimate(fedtally.merge_tallies(parts), **SKETCH)
    assert "3 of 6 rows skipped: no item" in result.warnings


def test_what_is_no_tally():
    tally = fedtally.partial_tally(["tea"], partition=0, seed=7)
    for earlier in (b"PK", bytearray(b"PK"), memoryview(b"PK")):
        with pytest.raises(UnreadableFileError, match="got bytes|got byte|got mem.*anew"):
            fedtally.merge_tallies([earlier])
    with pytest.raises(UnreadableFileError, match=r"earlier fedtally .*tally/1\); count .* anew"):
        fedtally.estimate(b"PK", **SKETCH)
    later = with_header(tally, header(tally) | {"schema": "fedtally/partial-tally/3"})
    with pytest.raises(UnreadableFileError, match="holds fedtally/partial-tally/3, expected fed"):
        fedtally.merge_tallies([later])
    for text in ("", "[", "7", "{}", "[" * 10**5):
        with pytest.raises(UnreadableFileError, match="is damaged; count the partition anew"):
            fedtally.merge_tallies([tally.replace_schema_metadata({"fedtally": text})])
    for tallies, message in (
        (tally, "a list of them, got one"),
        (b"PK", "a list of them, got one"),
        ([7], "metadata of its schema, got int: pass on the table as it is"),
        ([tally.replace_schema_metadata(None)], "metadata of its schema, got Table"),
        ([], "at least one"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            fedtally.merge_tallies(tallies)


def test_a_changed_count_of_one_partition():
    tally = fedtally.partial_tally(["tea", "tea"], partition=0, seed=7)
    with pytest.raises(UnreadableFileError, match="other ones than its digest says; count the"):
        fedtally.merge_tallies([with_column(tally, "count", [1, None])])


@pytest.mark.parametrize("form", ["ipc", "parquet", "chunks"])
def test_a_tally_travels_as_it_is(form, tmp_path):
    """Whatever carries Arrow tables with their schemas carries a tally."""
    asked = {"item": "word", "client": "user", "num_rounds": 2, "seed": 7}
    tally = fedtally.partial_tally(table(), partition=0, **asked)
    if form == "ipc":
        with pa.ipc.new_file(str(tmp_path / "t.arrow"), tally.schema) as file:
            file.write_table(tally, max_chunksize=7)
        arrived = pa.ipc.open_file(str(tmp_path / "t.arrow")).read_all()
    elif form == "parquet":
        pq.write_table(tally, tmp_path / "t.parquet", row_group_size=7)
        arrived = pq.read_table(tmp_path / "t.parquet")
    else:
        arrived = pa.concat_tables([tally[:3], tally[3:50], tally[50:]])
    assert equal(fedtally.merge_tallies([arrived]), fedtally.merge_tallies([tally]))
    found = fedtally.estimate(arrived, num_rounds=2, **SKETCH, evaluate=True)
    same(found, fedtally.estimate(table(), **SKETCH | asked, evaluate=True))


@pytest.mark.extras
def test_another_engine_reads_a_tally():
    duckdb = pytest.importorskip("duckdb")
    tally = fedtally.partial_tally(table(), partition=0, item="word", round="day", seed=7)
    days = table()["day"].to_pylist()
    found = duckdb.sql("select round, sum(count) from tally where item is null group by all")
    assert dict(found.fetchall()) == {
        number: days.count(label) for number, label in enumerate(header(tally)["labels"])
    }


IMPOSSIBLE = (None, -1, 1.5, "x", [], [1], [[1]], {}, {"a": 1}, True, 1e400, 2**70, [2**70], [-5],
              ["x"], [None], [{"a": 1}])  # fmt: skip


def impossible_columns(tally):
    """Other tables than a tally, by what is other in them."""
    for name in tally.schema.names:
        values, kind = tally[name].to_pylist(), tally.schema.field(name).type
        yield f"{name} left out", tally.drop_columns([name])
        yield f"{name} twice", tally.append_column(name, tally[name])
        yield f"{name} renamed", tally.rename_columns({name: "other"})
        for other in ("float64", "string", "int16", "list"):
            held = pa.nulls(len(values), pa.list_(kind) if other == "list" else other)
            yield (
                f"{name} {other}",
                tally.set_column(tally.schema.get_field_index(name), name, held),
            )
        changes = {"null": [None] * len(values), "reversed": values[::-1],
                   "first": values[-1:] + values[1:]}  # fmt: skip
        if pa.types.is_integer(kind):
            most = np.iinfo(kind.to_pandas_dtype()).max
            changes["largest"] = [None if v is None else most for v in values]
            changes["zero"] = [None if v is None else 0 for v in values]
            if name != "id":
                changes["negative"] = [None if v is None else -1 - v for v in values]
        for what, other in changes.items():
            if other != values:
                yield f"{name} {what}", with_column(tally, name, other)
    rows = np.arange(tally.num_rows)
    yield "rows none", tally[:0]
    yield "rows twice", pa.concat_tables([tally, tally])
    yield "rows reversed", tally.take(rows[::-1])
    yield "rows less", tally[1:]


@pytest.mark.extras  # its tables are made with pandas
@pytest.mark.parametrize("asked", [{}, {"client": "user", "num_rounds": 2}, {"round": "day"}])
@pytest.mark.parametrize("number", [1, 2])
def test_values_that_no_tally_has(asked, number):
    """Of one partition nothing can be changed; of several what no table has is refused."""
    parts = parted(table(40), places_of(table(40), np.random.default_rng(2), True, 2))
    tallies = [
        fedtally.partial_tally(part, partition=i, item="word", seed=7, **asked)
        for i, part in enumerate(parts)
    ]
    tally = fedtally.merge_tallies(tallies[:number])
    meta = header(tally)
    changed = [(f"{key} {v}", with_header(tally, meta | {key: v})) for key in meta
               for v in IMPOSSIBLE if v != meta[key]]  # fmt: skip
    changed += [
        (f"{key}.{own} {v}", with_header(tally, meta | {key: meta[key] | {own: v}}))
        for key in ("rules", "columns", "partitions")
        for own in meta[key]
        for v in IMPOSSIBLE
        if v != meta[key][own]
    ]
    changed += [(f"{key} left out", with_header(tally, {k: meta[k] for k in meta if k != key}))
                for key in meta]  # fmt: skip
    changed += [(what, other.replace_schema_metadata(tally.schema.metadata))
                for what, other in impossible_columns(tally)]  # fmt: skip
    assert fedtally.merge_tallies([with_header(tally, meta)])
    believed, messages = [], []
    for what, other in changed:
        try:
            fedtally.merge_tallies([other])
            believed.append(what)
        except UnreadableFileError as error:
            messages.append(str(error))
    assert all(message.endswith("count the partition anew") for message in messages)
    if number == 1:
        # columns without a part are not of the digest, as they may be in another order
        assert [what for what in believed if "others" not in what] == []
    else:
        # numbers and names that a table could have
        assert {re.split(r"[ .]", what)[0] for what in believed} - {"count"} == {
            "has_counts", "has_integer_clients", "rules", "columns", "partitions"
        }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_clients": [-4]}, f"num_clients is -4, and must be an integer from 0 to {2**40}"),
        ({"num_clients": [5]}, "num_clients is 5, and must be at most 4 in all"),
        ({"num_clients": [4, 4]}, r"num_clients is \[4, 4\], and must be of 1 rounds"),
        ({"labels": ["a"]}, "labels is .*, and must be at most 0 rounds, each once"),
        ({"missing": 9}, "missing is 9, and must be an integer from 0 to 4"),
        ({"rows": 2**63}, f"rows is {2**63}, and must be an integer from 0 to {2**63 - 1}"),
        ({"most_clients": float("nan")}, "most_clients is nan, and must be at least 0"),
        ({"has_counts": 1}, "has_counts is 1, and must be bool"),
        ({"drawn": [1]}, r"drawn is \[1\], and must be null"),
        ({"sizes": [2]}, "number of rows is 2, and must be 3"),
        (
            {"sizes": [-1]},
            f"sizes and num_items is -1, and must be an integer from 0 to {2**63 - 1}",
        ),
        ({"sample": "AAAAAAAAAAA="}, "sample is 1, and must be at most 0 clients"),
    ],
)
def test_an_error_names_the_value_the_bound_and_the_way_out(change, message):
    both = [fedtally.partial_tally(["tea", "tea"], partition=i, seed=7) for i in range(2)]
    merged = fedtally.merge_tallies(both)
    with pytest.raises(UnreadableFileError, match=f"{message}; count the partition anew$"):
        fedtally.merge_tallies([with_header(merged, header(merged) | change)])


def test_a_sample_that_is_none():
    """In a tally of several partitions, of which no digest tells."""
    users = [["ann", "bob"], ["cy"]]
    both = [
        fedtally.partial_tally(["tea"] * len(held), clients=held, partition=i, seed=7)
        for i, held in enumerate(users)
    ]
    merged = fedtally.merge_tallies(both)
    sample = np.frombuffer(base64.b64decode(header(merged)["sample"]), "<u8")
    assert len(sample) == 3
    for other in (sample[::-1], sample[[0, 0, 1]]):
        text = base64.b64encode(other.tobytes()).decode()
        with pytest.raises(UnreadableFileError, match="sample is out of order, and must rise"):
            fedtally.merge_tallies([with_header(merged, header(merged) | {"sample": text})])


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("count", [5, None], "count is 5, and must be an integer from 1 to 4"),
        ("count", [-1, None], "count is -1, and must be an integer from 1 to"),
        ("count", [0, None], "count is 0, and must be an integer from 1 to"),
        ("count", [2**63 - 1, None], f"count is {2**63 - 1}, and must be an integer from 1 to 4"),
        ("round", [1, None], "round is 1, and must be 0"),
        ("round", [-1, None], "round is -1, and must be 0"),
        ("id", [None, None], "number of nulls in id is 2, and must be 1, all beside the others"),
        ("id", [None, 1], "number of nulls in id is 1, and must be 1, all beside the others"),
        ("item", ["a", "b"], "number of nulls in item is 0, and must be 1, all beside"),
    ],
)
def test_an_error_of_a_column_names_them_too(name, values, message):
    both = [fedtally.partial_tally(["tea", "tea"], partition=i, seed=7) for i in range(2)]
    merged = fedtally.merge_tallies(both)
    with pytest.raises(UnreadableFileError, match=message):
        fedtally.merge_tallies([with_column(merged, name, values)])


def test_more_items_than_clients_hold():
    """In a tally of several partitions, of which no digest tells."""
    both = [fedtally.partial_tally(["tea", "rice"], partition=i, seed=7) for i in range(2)]
    merged = fedtally.merge_tallies(both)
    with pytest.raises(UnreadableFileError, match="sum of counts is 5, .* at most 4 in a round"):
        fedtally.merge_tallies([with_column(merged, "count", [2, 3, None, None])])


@pytest.mark.parametrize("damage", ["offsets", "text"])
def test_buffers_that_lie_about_themselves(damage):
    """Arrow would read other memory, or text that is none."""
    both = [fedtally.partial_tally(["tea", "rice"], partition=i, seed=7) for i in range(2)]
    merged = fedtally.merge_tallies(both)
    valid, offsets, text = merged["item"].combine_chunks().buffers()
    if damage == "offsets":
        offsets = pa.py_buffer(np.array([0, 0, 0, 1 << 30, 7], np.int64))
    else:
        text = pa.py_buffer(b"\xff" * 7)
    item = pa.LargeStringArray.from_buffers(4, offsets, text, valid)
    with pytest.raises(UnreadableFileError, match="is damaged"):
        fedtally.merge_tallies([merged.set_column(3, "item", item)])


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.sampled_from(["tea", "rice", "", None, "caf\xe9"]), st.integers(0, 3)),
        max_size=30,
    ),
    st.sampled_from([{}, {"client": "user", "max_items": 2}, {"client": "user", "num_rounds": 2}]),
)
def test_compiled_kernels_count_what_the_reference_counts(held, options):
    rows = pa.table({"word": [w for w, _ in held], "user": [u for _, u in held]})
    found = []
    for name in kernels.available_backends():
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("FEDTALLY_KERNELS", name)
            for words in (
                rows["word"].cast(pa.string()),
                rows["word"].cast(pa.string()).dictionary_encode(),
            ):
                data = rows.set_column(0, "word", words)
                found.append(
                    fedtally.partial_tally(data, partition=0, item="word", seed=7, **options)
                )
    assert equal(*found)
