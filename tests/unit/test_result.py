"""Results: tables, files, limits."""

import csv
import importlib.util
import inspect

import numpy as np
import pytest

import fedtally
from fedtally.answer import saving
from fedtally.answer.provenance import SCHEMA
from fedtally.answer.result import Result
from fedtally.base import archive
from fedtally.errors import (
    InvalidInputError,
    MemoryLimitError,
    MissingExtraError,
    OutsideDomainError,
    UnreadableFileError,
)
from fedtally.recovery.decoders.belief.belief_intervals import BeliefIntervals
from fedtally.recovery.decoders.joint import joint

WORDS = ["tea"] * 50 + ["milk"] * 30 + ["naïve café"] * 20


@pytest.fixture
def result():
    return fedtally.estimate(WORDS, num_rounds=3, rows=5, width=128, seed=1, evaluate=True)


def test_top_is_sorted_bounded_and_filtered(result):
    assert [e.item for e in result.top()] == ["tea", "milk", "naïve café"]
    assert [e.item for e in result.top(1)] == ["tea"]
    assert result.top(0) == []
    assert [e.item for e in result.top(min_frequency=0.25)] == ["tea", "milk"]
    with pytest.raises(InvalidInputError, match="k must be at least 0"):
        result.top(-1)


@pytest.mark.parametrize("share", [0.07, 0.14, 0.28, 0.56])
def test_an_item_with_exactly_the_least_frequency_is_listed(share):
    held = round(share * 100)
    assert share * 100 > held  # the product of floating-point numbers is rounded up
    held = [1] * held + [2] * (100 - held)
    result = fedtally.estimate(held, domain="range:0..9", encoding="histogram")
    assert 1 in [e.item for e in result.top(min_frequency=share)]
    assert 1 not in [e.item for e in result.top(min_frequency=share + 1e-6)]


def test_a_list_is_not_filled_up_with_items_that_nobody_holds():
    codes = [200] * 500 + [404] * 60 + [503] * 5
    result = fedtally.estimate(codes, domain="range:0..599", max_bytes=4000, seed=1, evaluate=True)
    assert [e.item for e in result.top(20)] == [200, 404, 503]
    assert (result.evaluation.precision_at_k, result.evaluation.recall_at_k) == (1.0, 1.0)
    assert result.top(20, min_frequency=0.0) == result.top(20)
    for share in (-0.01, 1.01):
        with pytest.raises(InvalidInputError, match="min_frequency must be from 0 to 1"):
            result.top(20, min_frequency=share)
    private = fedtally.estimate(
        [1] * 9,
        domain="range:0..9",
        width=64,
        epsilon=0.01,
        not_private=True,
        seed=3,
        evaluate=True,
    )
    assert all(e.count >= 0.5 for e in private.top(10))


# Most of 3,000 items hide in the noise of a sketch of 5 x 100: messages fit.
HIDDEN = np.repeat(np.arange(3000), np.ceil(3000 / np.arange(1.0, 3001) ** 1.1).astype(int))


def test_who_names_no_decoder_gets_belief_propagation_where_it_fits():
    """Elsewhere joint recovery answers, and says nothing of what was tried."""
    asked = {"domain": "range:0..2999", "rows": 5, "width": 100, "seed": 1}
    result = fedtally.estimate(HIDDEN, **asked)
    named = fedtally.estimate(HIDDEN, recovery="belief", **asked)
    assert result.recovery == "belief"  # before it has looked at the sums
    assert np.array_equal(result.frequencies(), named.frequencies())
    assert result.recovery == "belief" and type(result.intervals) is BeliefIntervals
    by_joint = result.decoded(recovery="joint")
    assert not np.array_equal(result.frequencies(), by_joint.frequencies())
    few, why = asked | {"width": 60}, "300 cells say too little: messages need 400"
    result, joint, named = (
        fedtally.estimate(HIDDEN, recovery=name, **few) for name in ("auto", "joint", "belief")
    )
    for one in (result, named):
        assert np.array_equal(one.frequencies(), joint.frequencies())
        assert np.array_equal(one.limits(), joint.limits())
    assert (result.recovery, named.recovery) == ("joint", "belief")
    assert result.warnings == joint.warnings
    assert [note for note in named.warnings if note not in joint.warnings] == [
        f"joint recovery answered instead of belief propagation: {why}"
    ]
    again = result.decoded(confidence=0)  # it is still nobody's choice
    assert np.array_equal(again.frequencies(), joint.frequencies())
    assert again.recovery == "joint" and again.warnings == joint.warnings


def test_an_answer_from_a_file_is_that_of_the_decoder_that_answered(tmp_path):
    for width, recovery in ((100, "belief"), (60, "joint")):
        result = fedtally.estimate(HIDDEN, domain="range:0..2999", rows=5, width=width, seed=1)
        known = result.frequencies()
        result.save(tmp_path / "result")
        loaded = Result.load(tmp_path / "result")
        assert loaded.recovery == recovery
        assert np.array_equal(loaded.frequencies(), known)
        assert loaded.warnings == result.warnings


def test_messages_count_in_the_memory_of_a_table():
    result = fedtally.estimate(HIDDEN, domain="range:0..2999", rows=5, width=100, seed=1)
    table = 112 * 3000
    with pytest.raises(MemoryLimitError, match="messages .* decode it by joint recovery"):
        result.frequencies(memory=table + 12 * 5 * 3000 - 1)
    assert len(result.frequencies(memory=table + 12 * 5 * 3000)) == 3000
    assert len(result.decoded(recovery="joint").frequencies(memory=table)) == 3000


def test_top_across_blocks(monkeypatch):
    items = np.random.default_rng(2).zipf(1.2, 4000) % 5000
    whole = fedtally.estimate(
        items, domain="range:0..4999", rows=5, width=64, seed=1, evaluate=True
    )
    top, evaluation = whole.top(50), whole.evaluation
    monkeypatch.setattr("fedtally.answer.part.BLOCK", 7)
    assert whole.top(50) == top
    assert whole.evaluate() == pytest.approx(evaluation)


def test_items_named_later(result):
    [unseen] = result.estimates(["coffee"])
    assert abs(unseen.frequency) < 0.6
    assert result.estimates([]) == []
    assert result.frequency("tea") == 0.5
    assert result.true_frequencies(["tea", "coffee"]) == [0.5, 0.0]
    whole = fedtally.estimate([1, 2, 2], domain="range:1..9", rows=5, width=64, seed=1)
    assert whole.estimates(["2"])[0].item == 2 == whole.estimates(2)[0].item
    with pytest.raises(OutsideDomainError, match="^'10' was no candidate of this result"):
        whole.frequency(10)
    assert whole.true_frequencies([1]) is None
    with pytest.raises(InvalidInputError, match="truth is not known"):
        whole.evaluate()


@pytest.mark.parametrize(
    ("items", "domain"),
    [
        (WORDS, None),
        (WORDS, fedtally.Dictionary(["tea", "milk", "naïve café", "gin"])),
        ([5, -3, 5], None),
        ([5, 3, 5], "range:0..9"),
        (["40.05,-73.95", "40.05,-73.95", "25.0,-130.0"], "grid:25..50,-130..-60,0.1"),
    ],
)
def test_files_round_trip(tmp_path, items, domain):
    result = fedtally.estimate(
        items, domain=domain, num_rounds=2, rows=5, width=128, seed=1, evaluate=True
    )
    result.save(tmp_path / "run.fed")
    again = Result.load(tmp_path / "run.fed")
    assert again.top(5) == result.top(5)
    assert again.plan == result.plan
    assert again.domain == result.domain
    assert (again.evaluation, again.warnings, again.timings) == (
        result.evaluation,
        result.warnings,
        result.timings,
    )
    assert again.truth is None


def test_true_counts_are_not_saved(tmp_path, result):
    result.save(tmp_path / "run.fed")
    _, _, arrays = archive.read(tmp_path / "run.fed", SCHEMA)
    assert sorted(arrays) == ["counters", "domain_offsets", "domain_seed", "domain_utf8"]


def test_a_file_of_a_large_domain_keeps_the_fit(tmp_path, monkeypatch, result):
    monkeypatch.setattr(saving, "_SLOW", 1)
    path = tmp_path / "run.fed"
    top = result.top()
    result.save(path)
    schema, meta, arrays = archive.read(path)

    def refuse(*_):
        raise AssertionError("decoded anew")

    with monkeypatch.context() as patch:
        patch.setattr(joint, "_best_fit", refuse)
        again = Result.load(path)
        assert again.top() == top
        assert again.decoded(confidence=0.5).estimates(["tea"])[0].frequency == top[0].frequency
        Result.load(path).save(path)  # a file that was only read keeps the fit, too
        assert Result.load(path).top() == top
    bare = archive.read(path)[1] | {"fit": None}
    archive.write(tmp_path / "bare.fed", schema, bare, arrays)
    assert Result.load(tmp_path / "bare.fed").top() == top
    for fit in (
        {**meta["fit"], "most": 0},
        {**meta["fit"], "threshold": "high"},
        {**meta["fit"], "kappa": 3},
        {"most": 3},
        "a fit",
    ):
        archive.write(tmp_path / "bad.fed", schema, {**meta, "fit": fit}, arrays)
        with pytest.raises(UnreadableFileError, match="damaged"):
            Result.load(tmp_path / "bad.fed")
    wrong = {**arrays, "fit_positions": arrays["fit_positions"].astype(float)}
    archive.write(tmp_path / "bad.fed", schema, meta, wrong)
    with pytest.raises(UnreadableFileError, match="damaged"):
        Result.load(tmp_path / "bad.fed")


def test_damaged_files(tmp_path, result):
    result.save(tmp_path / "run.fed")
    whole = (tmp_path / "run.fed").read_bytes()
    for cut in (0, 10, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut.fed").write_bytes(whole[:cut])
        with pytest.raises(UnreadableFileError):
            Result.load(tmp_path / "cut.fed")
    schema, meta, arrays = archive.read(tmp_path / "run.fed")
    for name, change in [
        ("rounds", [0, 0, 1]),
        ("rounds", [0, 1, 9]),
        ("num_clients", [-1, 2, 3]),
        ("num_clients", [1, 2]),
        ("plan", {**meta["plan"], "width": 5}),
        ("domain", {**meta["domain"], "kind": "no such"}),
        ("evaluation", {"linf": 0}),
        ("command", ["fedtally"]),
        ("missing", "3"),
        ("missing", -1),
        ("timings", ["read"]),
        ("timings", {"read": "long"}),
        ("columns", ["word"]),
        ("columns", {"item": "word"}),
        ("columns", {"item": [1]}),
        ("words", "tea"),
        ("words", [7]),
    ]:
        archive.write(tmp_path / "bad.fed", schema, {**meta, name: change}, arrays)
        named = name if name in ("missing", "timings", "columns", "words") else ""
        with pytest.raises(UnreadableFileError, match=f"damaged.*{named}"):
            Result.load(tmp_path / "bad.fed")
    for name in meta:  # a file lacks nothing
        rest = {entry: value for entry, value in meta.items() if entry != name}
        archive.write(tmp_path / "bad.fed", schema, rest, arrays)
        with pytest.raises(UnreadableFileError, match="damaged"):
            Result.load(tmp_path / "bad.fed")
    archive.write(tmp_path / "bad.fed", "fedtally-result/0", meta, arrays)
    with pytest.raises(UnreadableFileError, match="holds fedtally-result/0, .* make this one anew"):
        Result.load(tmp_path / "bad.fed")
    result.sketches[0].save(tmp_path / "sketch.npz")
    with pytest.raises(
        UnreadableFileError, match="holds fedtally-sketch/1, expected fedtally-result/2"
    ):
        Result.load(tmp_path / "sketch.npz")


def test_export(tmp_path, result):
    result.export(tmp_path / "all.csv")
    rows = list(csv.DictReader((tmp_path / "all.csv").read_text(encoding="utf-8").splitlines()))
    assert [row["item"] for row in rows] == ["tea", "milk", "naïve café"]
    assert [float(row["count"]) for row in rows] == [50, 30, 20]
    # one client
    assert [float(rows[0][name]) for name in ("low", "high")] == pytest.approx([0.49, 0.51])
    result.export(tmp_path / "all.parquet")
    import pyarrow.parquet

    assert pyarrow.parquet.read_table(tmp_path / "all.parquet").equals(result.to_arrow())
    with pytest.raises(
        InvalidInputError, match=r"a table must end in .csv or .parquet, got .*all.txt"
    ):
        result.export(tmp_path / "all.txt")
    with pytest.raises(InvalidInputError, match="choose a folder that exists"):
        result.export(tmp_path / "no" / "all.csv")


def test_a_failed_export_leaves_the_old_file(tmp_path, result, monkeypatch):
    import pyarrow.csv

    def fail(*_):
        raise RuntimeError("disk")

    (tmp_path / "all.csv").write_text("old")
    monkeypatch.setattr(pyarrow.csv, "write_csv", fail)
    with pytest.raises(RuntimeError):
        result.export(tmp_path / "all.csv")
    assert (tmp_path / "all.csv").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["all.csv"]


def test_tables_that_do_not_fit():
    result = fedtally.estimate([1, 2, 2], domain="range:1..1000000000000", rows=3, width=64, seed=1)
    with pytest.raises(
        MemoryLimitError, match="1,000,000,000,000 candidates needs about 112,000.0 GB"
    ):
        result.frequencies()
    with pytest.raises(MemoryLimitError, match="too large to enumerate"):
        result.top(3)
    assert result.frequency(2) == pytest.approx(2 / 3)
    small = fedtally.estimate([1, 2, 2], domain="range:1..1000", rows=3, width=64, seed=1)
    with pytest.raises(MemoryLimitError, match="raise the limit"):
        small.frequencies(memory=1000)


def test_items_in_the_place_of_bytes_are_refused_with_the_way_out(result):
    whole = [result.frequencies, result.limits, result.to_arrow]
    if importlib.util.find_spec("pandas"):
        whole.append(result.to_pandas)
    for call in whole:
        for given in ([["a"], ["b"]], "tea", True):
            with pytest.raises(InvalidInputError, match="memory must be a number of bytes") as said:
                call(given)
            assert repr(given) in str(said.value) and "estimates([...])" in str(said.value)
    assert len(result.frequencies(1e9)) == len(result.frequencies(np.int64(10**9))) == 3


def test_evaluation_of_a_last_short_block(monkeypatch):
    monkeypatch.setattr("fedtally.answer.part.BLOCK", 4)
    result = fedtally.estimate(
        [10] * 9 + [1], domain="range:1..10", rows=9, width=512, seed=1, evaluate=True
    )
    assert result.evaluation.linf == 0
    assert result.true_frequencies([9, 10]) == [0.0, 0.9]


def test_data_frame(result):
    pandas = pytest.importorskip("pandas")
    frame = result.to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert frame["frequency"].tolist() == [0.5, 0.3, 0.2]


def test_a_missing_extra_names_its_install_command(result, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'fedtally\[pandas\]'"):
        result.to_frame()


def test_repr_names_no_item(result):
    assert "tea" not in repr(result)
    assert "tea" not in repr(result.domain)


def test_shrunk_estimates_have_a_smaller_squared_error():
    items = np.random.default_rng(13).zipf(1.4, 20_000) % 3000
    options = {
        "domain": "range:0..2999",
        "num_rounds": 4,
        "rows": 5,
        "width": 100,
        "seed": 1,
        "evaluate": True,
        "recovery": "joint",
    }
    plain, shrunk = (fedtally.estimate(items, objective=name, **options) for name in ("linf", "l2"))
    assert shrunk.evaluation.l2 < 0.7 * plain.evaluation.l2
    assert shrunk.evaluation.coverage == plain.evaluation.coverage
    assert shrunk.decoded(objective="linf").top(3) == plain.top(3)
    with pytest.raises(MemoryLimitError, match="objective linf"):
        fedtally.estimate([1, 2, 2], domain="range:1..1000000000000", width=64, objective="l2")


def test_a_domain_that_len_cannot_count_says_so() -> None:
    result = fedtally.estimate([1, 2], domain=f"range:0..{2**63 - 1}", confidence=0, width=8)
    assert result
    with pytest.raises(OverflowError, match="use domain.size"):
        len(result)


def test_an_unknown_keyword_names_the_likely_one() -> None:
    with pytest.raises(TypeError, match="keyword argument 'widht'; did you mean 'width'"):
        fedtally.estimate(["tea"], widht=8)  # type: ignore[call-arg]
    assert "width" in inspect.signature(fedtally.estimate).parameters
