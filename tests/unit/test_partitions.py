"""A table that is counted in partitions gives the answer of the whole table, to the last bit."""

import io
import re
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedtally
from fedtally import _archive, kernels
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
    assert fedtally.merge_tallies([right, left]) == merged  # as in a tree
    assert fedtally.merge_tallies([*parts, parts[1], again]) == merged  # after a worker died
    assert fedtally.merge_tallies([parts[0], left, parts[3], right]) == merged
    same(fedtally.estimate(merged, **of_campaign(asked), **SKETCH, evaluate=True), whole)


def test_the_rows_of_a_partition_may_come_in_any_order():
    rows = table(300)
    mixed = rows.take(np.random.default_rng(3).permutation(300))
    for asked in ({"item": "word"}, {"item": "word", "client": "user", "max_items": 2}):
        one, other = (
            fedtally.partial_tally(each, partition="a", seed=7, **asked) for each in (rows, mixed)
        )
        assert one == other


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


def test_ids_of_no_item():
    """Of several partitions, of which no digest tells."""
    both = [fedtally.partial_tally(["tea"], partition=i, seed=7) for i in range(2)]
    meta, arrays = _archive.unpack(fedtally.merge_tallies(both), "t", "fedtally/partial-tally/1")
    other = _archive.pack("fedtally/partial-tally/1", meta, arrays | {"ids": arrays["ids"] + 1})
    fedtally.merge_tallies([other])
    with pytest.raises(UnreadableFileError, match="damaged"):
        fedtally.estimate(other, **SKETCH)


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
        ({"round": "day", "num_rounds": 2}, "already says the rounds"),
        ({"max_items": 2}, "name the clients"),
        ({"domain": "open"}, "open domain yet"),
        ({"private": True}, "the candidates must be public"),
        ({"private": True, "domain": WORDS, "outside": "error"}, "leave outside out"),
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
    """As in JSON lines: then bytes are equal, and a partition that is counted again is the same."""
    one, other = pa.table({"word": ["a"], "x": [1], "y": [1]}), None
    other = one.select(["y", "x", "word"])
    a, b, again, c = (
        fedtally.partial_tally(rows, partition=name, item="word", seed=7)
        for rows, name in ((one, "a"), (other, "b"), (other, "a"), (one, "c"))
    )
    merge = fedtally.merge_tallies
    assert merge([a, b]) == merge([b, a]) == merge([merge([a]), b])
    assert merge([a, again]) == merge([again, a])
    assert merge([a, again, b]) == merge([b, again, a])
    assert merge([merge([a, c]), b]) == merge([a, b, c]) == merge([merge([c, b]), a])


def test_a_merge_of_one_partition_is_the_partition():
    for rows in (WORDS, [3, -3, 0]):  # whose order by id is another than by value
        one = fedtally.partial_tally(rows, partition=0, seed=7)
        assert fedtally.merge_tallies([fedtally.merge_tallies([one])]) == one
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
    assert tallies[0] == tallies[1]


def test_more_rounds_than_a_table_may_have(monkeypatch):
    monkeypatch.setattr("fedtally.engines.local.tally.MAX_NATURAL_ROUNDS", 3)
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
    with pytest.raises(InvalidInputError, match=r"which column is the item.*\(item=\.\.\.\)"):
        fedtally.partial_tally(table(), partition=0, seed=7)
    with pytest.raises(TypeError, match="'sed'; did you mean 'seed'?"):
        fedtally.partial_tally(["tea"], partition=0, sed=7)


def test_a_partition_may_have_a_number_of_numpy():
    one, other = (
        fedtally.partial_tally(["tea"], partition=n, seed=7) for n in (3, np.arange(4)[3])
    )
    assert one == other


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


def test_bytes_that_are_no_tally():
    tally = fedtally.partial_tally(["tea"], partition=0, seed=7)
    for data in (tally[:-7], tally[: len(tally) // 2], b"", b"PK no tally"):
        with pytest.raises(UnreadableFileError, match="is cut off or damaged"):
            fedtally.merge_tallies([data])
    changed = bytearray(tally)
    changed[len(tally) // 2] ^= 0xFF
    with pytest.raises(UnreadableFileError, match="damaged"):
        fedtally.merge_tallies([bytes(changed)])
    meta, arrays = _archive.unpack(tally, "t", "fedtally/partial-tally/1")
    later = _archive.pack("fedtally/partial-tally/2", meta, arrays)
    with pytest.raises(UnreadableFileError, match="holds fedtally/partial-tally/2, expected fed"):
        fedtally.merge_tallies([later])
    broken = _archive.pack("fedtally/partial-tally/1", meta, arrays | {"sizes": np.array([1, 1])})
    with pytest.raises(UnreadableFileError, match="is damaged"):
        fedtally.merge_tallies([broken])
    for tallies, message in (
        (tally, "a list of them, got one"),
        ([7], "bytes"),
        ([], "at least one"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            fedtally.merge_tallies(tallies)


IMPOSSIBLE = (None, -1, 1.5, "x", [], [1], [[1]], {}, {"a": 1}, True, 1e400, 2**70, [2**70], [-5],
              ["x"], [None], [{"a": 1}])  # fmt: skip


@pytest.mark.parametrize("asked", [{}, {"client": "user", "num_rounds": 2}, {"round": "day"}])
@pytest.mark.parametrize("number", [1, 2])
def test_values_that_no_tally_has(asked, number):
    """Of one partition nothing can be changed; of several what no table has is refused."""
    parts = parted(table(40), places_of(table(40), np.random.default_rng(2), True, 2))
    tallies = [
        fedtally.partial_tally(part, partition=i, item="word", seed=7, **asked)
        for i, part in enumerate(parts)
    ]
    data = fedtally.merge_tallies(tallies[:number])
    meta, arrays = _archive.unpack(data, "t", "fedtally/partial-tally/1")
    changed = [(f"{key} {v}", meta | {key: v}, arrays) for key in meta for v in IMPOSSIBLE
               if v != meta[key]]  # fmt: skip
    changed += [
        (f"{key}.{own} {v}", meta | {key: meta[key] | {own: v}}, arrays)
        for key in ("rules", "columns", "partitions")
        for own in meta[key]
        for v in IMPOSSIBLE
        if v != meta[key][own]
    ]
    changed += [
        (f"{key} {what}", meta, arrays | {key: other})
        for key, values in arrays.items()
        for what, other in {
            "float": values.astype(float),
            "2d": values.reshape(1, -1),
            "0d": np.array(5),
            "text": values.astype(str),
            "complex": values.astype(complex),
            "largest": np.full_like(values, np.iinfo(values.dtype).max),
            "twice": np.concatenate([values, values]),
            "none": values[:0],
            "reversed": values[::-1],
            "negative": -values.astype(np.int64),
        }.items()
        if other.dtype != values.dtype or other.tolist() != values.tolist()
    ]
    assert fedtally.merge_tallies([_archive.pack("fedtally/partial-tally/1", meta, arrays)])
    believed = []
    for what, other, own in changed:
        try:
            fedtally.merge_tallies([_archive.pack("fedtally/partial-tally/1", other, own)])
            believed.append(what)
        except UnreadableFileError:
            pass
    if number == 1:
        # columns without a part are not of the digest, as they may be in another order
        assert [what for what in believed if "others" not in what] == []
    else:
        # numbers and names that a table could have
        assert {re.split(r"[ .]", what)[0] for what in believed} - {"counts"} == {
            "has_counts", "has_integer_clients", "rules", "columns", "partitions", "utf8"
        } | ({"sample"} if "client" in asked else set())  # fmt: skip


@pytest.mark.parametrize("entry", ["header", "sample", "ids", "counts", "offsets", "utf8", "other"])
def test_small_bytes_that_would_take_much_memory(entry):
    """They are refused before anything is unpacked."""
    tally = fedtally.partial_tally(["tea"], partition=0, seed=7)
    with np.load(io.BytesIO(tally)) as file:
        entries = dict(file)
    entries[entry] = np.zeros(1 << 24, entries.get(entry, entries["ids"]).dtype)
    bomb = io.BytesIO()
    np.savez_compressed(bomb, **entries)
    del entries
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableFileError, match="is cut off or damaged"):
            fedtally.merge_tallies([bomb.getvalue()])
        assert tracemalloc.get_traced_memory()[1] < 1 << 22
    finally:
        tracemalloc.stop()


def test_ids_that_pack_well():
    numbers = fedtally.partial_tally(np.arange(300_000), partition=0, seed=7)
    assert fedtally.merge_tallies([numbers])


def test_a_long_text_that_packs_well():
    text = "tea" * (1 << 20)
    tally = fedtally.partial_tally([text, "rice"], partition=0, seed=7)
    assert len(tally) > len(text)  # it is not packed: nothing small may grow so much
    result = fedtally.estimate(fedtally.merge_tallies([tally]), **SKETCH)
    assert [each.item for each in result.top(2)] == ["rice", text]


def test_more_items_than_clients():
    """In a tally of several partitions, of which no digest tells."""
    both = [fedtally.partial_tally(["tea", "tea"], partition=i, seed=7) for i in range(2)]
    meta, arrays = _archive.unpack(fedtally.merge_tallies(both), "t", "fedtally/partial-tally/1")
    for change, count in (({}, 5), ({}, 0), ({"num_clients": [3]}, 4), ({"num_clients": [5]}, 5)):
        other = _archive.pack(
            "fedtally/partial-tally/1", meta | change, arrays | {"counts": np.array([count])}
        )
        with pytest.raises(UnreadableFileError, match="is damaged"):
            fedtally.merge_tallies([other])


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
    assert len(set(found)) == 1
