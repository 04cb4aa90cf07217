"""The command line: what it prints, writes and refuses."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest

import fedtally
from fedtally import __version__, kernels
from fedtally.answer.result import Result
from fedtally.cli import console, main
from fedtally.cli.app import cli, run
from fedtally.domain import Strings
from fedtally.options import AS_TABLE, DECODERS
from fedtally.plan import Plan
from fedtally.plan.design import DEFAULT_MAX_BYTES, DEFAULT_ROWS
from fedtally.privacy.accounting import epsilon, privacy_loss
from fedtally.privacy.guarantee_text import right_guesses
from fedtally.simulation.simulation import Simulation
from fedtally.sketch import CountSketch, SketchSpec
from fedtally.store import Ledger, StoreError

WORDS = ["the"] * 50 + ["of"] * 30 + ["and"] * 20
COMMANDS = ["estimate", "demo", "sample", "plan", "simulate", "query", "merge", "inspect", "audit"]
ENTRY = [sys.executable, "-c", "from fedtally.cli import main; main()"]

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("FEDTALLY_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    def run_and_read(*arguments: str) -> tuple[int, str, str]:
        code = run(arguments)
        return code, *capsys.readouterr()

    return run_and_read


@pytest.fixture
def words(tmp_path: Path) -> str:
    file = tmp_path / "words.txt"
    file.write_text("\n".join(WORDS) + "\n")
    return str(file)


def answered(call: Call, *arguments: str) -> dict[str, Any]:
    code, out, err = call(*arguments, "--json")
    assert (code, err) == (0, "")
    document: dict[str, Any] = json.loads(out)
    return document


def test_help_lists_the_commands_in_groups(call: Call) -> None:
    code, out, _ = call("--help")
    assert code == 0
    assert [m for m in re.findall(r"^  (\w+) ", out, re.M) if m in COMMANDS] == COMMANDS
    assert all(f"\n{heading}:\n" in out for heading in ("Estimate", "Plan", "Files"))
    assert "completion" in out
    assert call() == (0, out, "")


@pytest.mark.parametrize("command", [[], ["plan"], ["campaign", "run"]])
def test_help_is_a_command_too(call: Call, command: list[str]) -> None:
    assert call("help", *command) == call(*command, "--help")
    assert call("help", "nobody") == call("nobody")
    assert call("nobody")[0] == 2


def test_help_of_a_command_that_is_none_names_it(call: Call) -> None:
    code, out, err = call("help", "plan", "nonsense")
    assert (code, out) == (2, "")
    assert "fedtally plan has no commands, such as 'nonsense' (see fedtally plan --help)" in err
    # newer versions of Click also ask: "Did you mean 'new'?"
    code, out, err = call("help", "keys", "nw")
    assert (code, out, err) == call("keys", "nw")
    assert (code, out) == (2, "") and "No such command 'nw'" in err


@pytest.mark.parametrize("command", COMMANDS)
def test_each_help_has_examples_that_parse(call: Call, command: str) -> None:
    code, out, _ = call(command, "--help")
    assert code == 0
    assert "\\b" not in out  # click's mark for text that is not to be wrapped
    examples = re.findall(
        r"^  (?:.*\| )?fedtally (\S+) (.*)$|^  fedtally (demo)$",
        out[out.index("Examples:") :],
        re.M,
    )
    assert examples
    for name, line, bare in examples:
        arguments = line.split(" | ")[0].split()
        with cli.commands[name or bare].make_context(name, arguments):
            pass


def test_help_imports_nothing_heavy() -> None:
    check = (
        "import sys; from fedtally.cli.app import run; run(['--help']); run(['estimate',"
        " '--help']);sys.exit(sorted({'numpy', 'rich', 'pyarrow', 'matplotlib'} & set(sys.modules))"
        " or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_module_is_the_command() -> None:
    """Where the script is not on the path."""
    asked = [sys.executable, "-m", "fedtally", "--version"]
    done = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert done.stdout == f"fedtally {__version__} (kernels: {kernels.backend()})\n"


def test_version_names_the_kernels(call: Call) -> None:
    assert call("--version") == (0, f"fedtally {__version__} (kernels: {kernels.backend()})\n", "")


def test_estimate_prints_the_answer_its_cost_and_its_privacy(call: Call, words: str) -> None:
    code, out, err = call(
        *("estimate", words, "--rows", "5", "--width", "128", "--seed", "1", "--evaluate"),
        "--details",
    )
    assert (code, err) == (0, "")
    assert re.search(r"1 +the +50\.00 % +█* +1\.00 +9\.[0-9]+ +50\.00 % +\+0\.00 +50", out)
    covered = "95 %, for frequencies among those that took part; of a list chosen by its estimates"
    assert covered in " ".join(out.split())
    assert "this decoder finds rare items too" in " ".join(out.split())
    assert "640 B per client (one-hot vector: 3 B; the item itself, binary: 1 B" in out
    assert "no differential privacy" in out
    assert "taken from the input itself" in out
    assert "share an id with probability at most" in " ".join(out.split())
    assert "\x1b" not in out
    assert all(line == line.rstrip() for line in out.splitlines())


def test_merge_names_items_that_were_no_candidates(call: Call) -> None:
    candidates = Strings(["tea", "milk"], bytes(32), public=True)
    for seed in (1, 2):
        held = ["tea"] * 30 + ["milk"] * 10
        fedtally.estimate(held, domain=candidates, seed=seed).save(f"{seed}.fedtally")
    code, out, _ = call("merge", "1.fedtally", "2.fedtally", "--query", "nobody", "--query", "tea")
    assert code == 0 and "\nnobody was no candidate\n" in out


def test_merge_says_that_results_counted_unlike_numbers_of_items(call: Call) -> None:
    candidates = Strings(["tea", "milk"], bytes(32), public=True)
    held, people = ["tea", "milk"] * 9, np.arange(18) // 2
    for most, name in ((1, "one"), (2, "two"), (1, "again")):
        result = fedtally.estimate(held, clients=people, domain=candidates, max_items=most)
        result.save(name)
    _, unlike, _ = call("merge", "one", "two", "again", "--details")
    assert "up to 1 and 2 items of each client (--max-items)" in " ".join(unlike.split())
    assert "items of each client" not in call("merge", "one", "again", "--details")[1]


def test_merge_answers_for_several_results(call: Call) -> None:
    for seed in ("1", "2"):
        assert (
            call(
                "estimate",
                "zipf:d=500,n=2000",
                "--seed",
                seed,
                "--save",
                f"{seed}.fedtally",
                "--top",
                "0",
                "--encoding",
                "sketch",
            )[0]
            == 0
        )
    asked = ("merge", "1.fedtally", "2.fedtally", "--top", "3", "--query", "7")
    code, out, err = call(*asked, "--details")
    assert (code, err) == (0, "")
    title = "Share of each item among 4,000 clients in 2 results; 500 candidates"
    assert out.startswith(title) and "1.fedtally: 2,000 clients, 7 x" in out
    document = answered(call, "merge", "1.fedtally", "2.fedtally", "--top", "3", "--query", "7")
    assert (document["schema"], document["num_clients"]) == ("fedtally-merged/2", 4000)
    assert [len(document[name]) for name in ("results", "estimates", "queries")] == [2, 3, 1]
    # What the two kinds of limits hold for is said here as it is of one result.
    [alone] = [answered(call, "query", "1.fedtally", "7")["intervals"]]
    shared = ("confidence", "kind", "list", "named")
    assert {name: document["intervals"][name] for name in shared} == {
        name: alone[name] for name in shared
    }
    said = " ".join(out.split())
    for kind in ("list", "named"):
        assert f"for {alone[kind]['covers']}" in said
    assert document["intervals"]["about"] in said and "add up in squares" in said
    # By default the same answer stands on one screen, and names what it leaves out.
    code, short, err = call(*asked)
    assert (code, err) == (0, "") and short.startswith(title)
    both = r"Error ± [0-9.]+ points among these 4,000 clients; ± [0-9.]+ if they stand for more"
    assert re.search(both, " ".join(short.split()))
    assert "1.fedtally 2,000 clients; 2.fedtally 2,000 clients" in short
    assert "--details" in short and "2 more notes" not in short and len(short) < len(out)
    for note in (
        "an exact histogram (one-hot vectors) is no larger",
        "this decoder finds rare items",
    ):
        assert f"Note {note}" in said and note not in " ".join(short.split())
    table = slice(*(short.index(heading) for heading in ("share", "Error")))
    assert short[table] == out[: out.index("Intervals")][table]
    repeats = "a client in both results counts in each, and no result shows who is in it"
    assert f"Note {repeats}" in " ".join(short.split()) and f"Note {repeats}" in said
    assert document["warnings"][0].startswith(repeats)
    assert "± more people allows for that" in document["warnings"][0]
    # Only who says that they are different people gets the smaller ± for more people.
    apart = answered(call, "merge", "1.fedtally", "2.fedtally", "--top", "3", "--disjoint")
    assert (document["disjoint"], apart["disjoint"]) == (False, True)
    assert apart["error"]["clients"] == document["error"]["clients"]
    assert apart["error"]["population"] < 0.8 * document["error"]["population"]
    assert "by --disjoint nobody is, or ± more people is too small" in apart["warnings"][0]
    code, _, err = call("merge", "1.fedtally")
    assert code == 2 and "merge takes two results or more, got 1" in err


def test_merge_writes_all_estimates_to_a_file(call: Call) -> None:
    for seed, held in ((1, ["tea"] * 30 + ["milk"] * 10), (2, ["milk"] * 60)):
        candidates = Strings(["milk", "tea", "rice"], bytes(32), public=True)
        fedtally.estimate(held, domain=candidates, seed=seed).save(f"{seed}.fedtally")
    asked = ("merge", "1.fedtally", "2.fedtally", "--output")
    code, _, err = call(*asked, "all.csv")
    assert (code, err) == (0, "wrote all.csv: 3 estimates\n")
    with open("all.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["item"], float(row["frequency"])) for row in rows] == [
        ("milk", pytest.approx(0.7)),
        ("tea", pytest.approx(0.3)),
        ("rice", pytest.approx(0.0)),
    ]
    assert all(float(row["low"]) <= float(row["frequency"]) <= float(row["high"]) for row in rows)
    for path, message in (
        ("all.xls", AS_TABLE),
        ("1.fedtally", "read by this run"),
        ("nowhere/all.csv", "there is no folder nowhere"),
    ):
        code, out, err = call(*asked, path)
        assert (code, out) == (2, "") and message in err


def test_estimate_json_has_the_fields_of_its_schema(call: Call, words: str) -> None:
    document = answered(
        call, "estimate", words, "--rows", "5", "--width", "128", "--seed", "1", "--top", "2"
    )
    names = [
        "schema",
        "warnings",
        "plan",
        "num_contributions",
        "num_silos",
        "window",
        "columns",
        "draw",
        "ended",
        "privacy",
        "secure_sum",
        "sizing",
        "target",
    ]
    assert list(document) == [
        *names,
        "recovery",
        "objective",
        "intervals",
        "error",
        "estimates",
        "open",
        "evaluation",
        "timings",
    ]
    assert document["open"] is document["ended"] is None
    assert document["schema"] == "fedtally-result/2"
    assert document["privacy"] is None
    assert document["evaluation"] is None
    assert document["secure_sum"] == {"method": "ideal"}
    assert (document["recovery"], document["objective"]) == ("joint", "linf")
    about = document["intervals"]
    assert (about["confidence"], about["kind"]) == (0.95, "auto")
    assert (about["list"]["kind"], about["named"]["kind"]) == ("selective", "pointwise")
    assert all("those that took part" in about[which]["covers"] for which in ("list", "named"))
    assert about["predicted_linf"] < 0.01
    fingerprint = document["plan"].pop("fingerprint")
    assert re.fullmatch("[0-9a-f]{64}", fingerprint)
    assert document["plan"] == {
        "encoding": "sketch",
        "rows": 5,
        "width": 128,
        "num_rounds": 1,
        "schedule": "shared",
        "num_clients": 100,
        "people": 1,
        "domain_size": 3,
        "domain_public": False,
        "spelling": None,
        "modulus_bits": 8,
        "bytes_per_client": 640,
        "one_hot_bytes_per_client": 3,
        "binary_bytes_per_client": 1,
    }
    the, of = document["estimates"]
    assert (the["item"], the["frequency"], the["count"]) == ("the", 0.5, 50.0)
    assert (of["low"], of["high"]) == (pytest.approx(0.29), pytest.approx(0.31))  # one client
    assert of["sampling_error"] == pytest.approx(0.0958, abs=1e-4)  # Wilson: .2189 to .3958
    bare = answered(
        call,
        "estimate",
        words,
        "--width",
        "128",
        "--seed",
        "1",
        "--confidence",
        "0",
        "--recovery",
        "median",
    )
    assert (bare["recovery"], bare["intervals"]) == ("median", None)
    assert bare["estimates"][0] == {
        "item": "the",
        "frequency": 0.5,
        "low": None,
        "high": None,
        "count": 50.0,
        "sampling_error": None,
        "population_low": None,
        "population_high": None,
        "above_noise": None,
    }


def test_kinds_of_intervals(call: Call, words: str) -> None:
    common = ("estimate", words, "--rows", "7", "--width", "256", "--seed", "1", "--rounds", "2")
    for kind in ("pointwise", "simultaneous"):
        document = answered(call, *common, "--intervals", kind, "--confidence", "0.9")
        assert document["intervals"]["kind"] == kind
        assert all(e["low"] <= e["frequency"] <= e["high"] for e in document["estimates"])
    code, _, err = call(*common, "--confidence", "95")
    assert (code, "below 1, got 95" in err) == (2, True)


def test_evaluation_is_in_the_json(call: Call, words: str) -> None:
    document = answered(
        call, "estimate", words, "--width", "128", "--seed", "1", "--evaluate", "--top", "3"
    )
    expected = {
        "linf": 0.0,
        "l2": 0.0,
        "coverage": 1.0,
        "k": 3,
        "precision_at_k": 1.0,
        "recall_at_k": 1.0,
    }
    assert document["evaluation"] == expected


def test_a_seed_repeats_a_run(call: Call) -> None:
    arguments = ("estimate", "zipf:d=500,n=2000", "--rounds", "3", "--width", "50", "--seed", "a")
    first, again, other = (answered(call, *arguments[:-1], seed) for seed in ("a", "a", "b"))
    assert first["estimates"] == again["estimates"] != other["estimates"]
    assert first["plan"] == again["plan"]


def test_columns_counts_clients_and_rounds(call: Call, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        "who;what;when;times\nu1;tea;1;3\nu1;tea;1;1\nu2;milk;2;2\nu3;;2;1\n"
    )
    table = ("estimate", "t.csv", "--delimiter", ";", "--width", "512", "--seed", "1")
    counted = answered(call, *table, "--item", "what", "--count", "times")
    assert {e["item"]: e["count"] for e in counted["estimates"]} == {"tea": 4, "milk": 2}
    assert any(
        warning.startswith("1 of 4 rows skipped: no item") for warning in counted["warnings"]
    )
    by_client = answered(call, *table, "--item", "what", "--client", "who", "--round", "when")
    assert {e["item"]: e["count"] for e in by_client["estimates"]} == {"tea": 1, "milk": 1}
    assert by_client["plan"]["num_rounds"] == 2
    assert by_client["plan"]["schedule"] == "hybrid"


def test_a_list_is_proposed_where_it_makes_an_upload_smaller(
    call: Call, tmp_path: Path, words: str
) -> None:
    hint = "--domain FILE a shared list: a histogram, 3 B"
    listed = tmp_path / "listed.txt"
    listed.write_text("tea\nmilk\nbeer\n")
    with_list = ("--domain", str(listed), "--outside", "drop")
    smaller = ("--rows", "1", "--width", "2")
    for options, is_shown in (((), True), (with_list, False), (smaller, False)):
        said = " ".join(call("estimate", words, "--seed", "1", *options)[1].split())
        assert (hint in said) == is_shown, options


def test_the_noise_that_is_proposed_is_not_refused(call: Call, tmp_path: Path, words: str) -> None:
    """Candidates that are the input's own are no public list, so a list is proposed, too."""
    listed = tmp_path / "listed.txt"
    listed.write_text("".join(f"{word}\n" for word in sorted(set(WORDS))))
    with_list = ("--domain", str(listed))
    for options, hint in (((), "--epsilon 1 --domain FILE "), (with_list, "--epsilon 1 the noise")):
        assert hint in " ".join(call("estimate", words, *options)[1].split())
        tried = hint.removesuffix("the noise").replace("FILE", str(listed)).split()
        assert call("estimate", words, *options, *tried)[0] == 0


def test_max_items_bounds_what_a_client_contributes(call: Call, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("c,i\n" + "".join(f"u,{item}\n" for item in "abcd"))
    shared = ("estimate", "t.csv", "--item", "i", "--client", "c", "--width", "4096", "--seed", "3")
    for asked in (1, 3, 4):
        document = answered(call, *shared, "--max-items", str(asked))
        assert sum(e["count"] for e in document["estimates"]) == asked
        assert document["plan"]["num_clients"] == 1


def test_domains(call: Call, tmp_path: Path, words: str) -> None:
    (tmp_path / "dictionary.txt").write_text("the\nof\n")
    code, _, err = call("estimate", words, "--domain", "dictionary.txt")
    assert code == 2
    assert "20 of 100 items are outside" in err
    kept = answered(
        call, "estimate", words, "--domain", "dictionary.txt", "--outside", "drop", "--width", "99"
    )
    assert kept["plan"]["domain_public"] is True
    assert kept["plan"]["num_clients"] == 80
    (tmp_path / "points.csv").write_text("y,x\n40.71,-74.01\n40.72,-74.02\n34.0,-118.2\n")
    grid = (
        "--item",
        "y,x",
        "--domain",
        "grid:25..50,-130..-60,0.1",
        "--width",
        "999",
        "--top",
        "1",
    )
    assert answered(call, "estimate", "points.csv", *grid)["estimates"][0]["item"] == "40.75,-74.05"


def test_queries(call: Call, words: str) -> None:
    document = answered(
        call, "estimate", words, "--width", "512", "--top", "0", "--query", "of", "--query", "cola"
    )
    assert document["estimates"] == []
    assert [q["item"] for q in document["queries"]] == ["of", "cola"]
    huge = (
        "estimate",
        "zipf:d=50,n=500",
        "--domain",
        "range:1..999999999999999",
        "--query",
        "1",
        "--width",
        "512",
    )
    named = answered(call, *huge)
    assert [q["item"] for q in named["queries"]] == [1]


def test_min_frequency(call: Call, words: str) -> None:
    kept = answered(call, "estimate", words, "--width", "512", "--min-frequency", "0.25")[
        "estimates"
    ]
    assert [e["item"] for e in kept] == ["the", "of"]
    _, out, _ = call("estimate", words, "--width", "512", "--min-frequency", "0.75")
    assert "none is shown" in out


def test_output_save_query_and_inspect(call: Call, words: str, tmp_path: Path) -> None:
    run_once = ("estimate", words, "--width", "512", "--seed", "1", "--save", "r.fedtally")
    assert call(*run_once, "--output", "all.csv", "--quiet")[2] == ""
    assert "wrote all.parquet: all 3 estimates" in call(*run_once, "--output", "all.parquet")[2]
    for table in (pyarrow.csv.read_csv("all.csv"), pyarrow.parquet.read_table("all.parquet")):
        assert table.column("item").to_pylist() == ["the", "of", "and"]
        assert table.column_names == [
            *("item", "frequency", "low", "high", "count"),
            *("sampling_error", "population_low", "population_high", "above_noise"),
        ]
    (tmp_path / "more.txt").write_text("and\r\n\nof\n")
    asked = answered(call, "query", "r.fedtally", "the", "--items", "more.txt")
    assert asked["schema"] == "fedtally-query/2"
    assert [(e["item"], e["count"]) for e in asked["estimates"]] == [
        ("the", 50),
        ("and", 20),
        ("of", 30),
    ]
    assert "50.00 %" in call("query", "r.fedtally", "the")[1]
    asked = answered(
        call, "query", "r.fedtally", "the", "--recovery", "median", "--confidence", "0"
    )
    assert (asked["recovery"], asked["intervals"], asked["estimates"][0]["low"]) == (
        "median",
        None,
        None,
    )
    auto = ("query", "r.fedtally", "the", "--recovery", "auto")
    assert answered(call, *auto)["recovery"] == "joint"
    assert call(*auto)[2] == "auto: decoded by joint recovery\n"
    call("estimate", words, "--width", "64", "--recovery", "median", "--save", "m.fed", "--quiet")
    code, out, err = call("query", "m.fed", "the", "--recovery", "auto", "--details")
    assert (code, err) == (0, "auto: decoded by joint recovery, not by median as before\n")
    assert "joint recovery" in out
    inside = answered(call, "inspect", "r.fedtally")
    assert (inside["kind"], inside["num_clients_landed"], inside["domain_size"]) == (
        "result",
        100,
        3,
    )
    assert (
        inside["fingerprint"] == asked["fingerprint"] == Result.load("r.fedtally").plan.fingerprint
    )


def test_a_look_at_a_saved_result_is_not_told_to_record_it(call: Call, words: str) -> None:
    """The run has said so; a look costs nothing. With --details, and in JSON, stands every note."""
    asked = ("--domain", "list.txt", "--epsilon", "1", "--save", "r.fed", "--quiet")
    Path("list.txt").write_text("the\nof\nand\n")
    assert "in no ledger" in " ".join(call("estimate", words, *asked)[1].split())
    code, out, _ = call("query", "r.fed", "the")
    assert code == 0 and "in no ledger" not in " ".join(out.split())
    assert "each row counts as a person" in " ".join(out.split())  # other notes stay
    assert "in no ledger" in " ".join(call("query", "r.fed", "the", "--details")[1].split())
    assert any(
        "in no ledger" in note for note in answered(call, "query", "r.fed", "the")["warnings"]
    )


def test_a_result_is_no_plan(call: Call, words: str) -> None:
    call("estimate", words, "--width", "512", "--seed", "1", "--save", "r.fed", "--quiet")
    code, out, err = call("audit", "r.fed")
    assert (code, out) == (2, "")
    assert (
        "r.fed is no plan: give the text file, .toml or .json," in " ".join(err.split())
        and "codec" not in err
    )


def test_nothing_is_said_of_errors_where_recovery_is_exact(call: Call, words: str) -> None:
    call("estimate", words, "--width", "512", "--seed", "1", "--save", "r.fed", "--quiet")
    code, out, _ = call("query", "r.fed", "the", "--details")
    assert code == 0 and "recovery looks exact" in out and "errors of fitted items" not in out
    assert answered(call, "query", "r.fed", "the")["intervals"]["about"] == ""


def test_inspect_plans_and_sketches(call: Call, words: str) -> None:
    call("estimate", words, "--width", "512", "--seed", "1", "--save", "r.fedtally", "--quiet")
    plan = Result.load("r.fedtally").plan
    for name in ("plan.toml", "plan.json"):
        plan.save(name)
        assert answered(call, "inspect", name)["fingerprint"] == plan.fingerprint
        shown = " ".join(call("inspect", name)[1].split())
        assert plan.fingerprint in shown
        # fields within fields have names in words, and a client of one person needs no word
        assert "domain kind: strings; number of candidates: " in shown and "people" not in shown
    sketch = CountSketch(
        SketchSpec(rows=3, width=8, schedule="shared", num_rounds=1, seed=bytes(32)), 0
    )  # type: ignore[arg-type]
    sketch.save("a.sketch")
    sketch.add(np.array([7], np.uint64))
    sketch.save("b.sketch")
    a, b = (answered(call, "inspect", name) for name in ("a.sketch", "b.sketch"))
    assert (a["kind"], a["num_clients"], b["num_clients"], b["largest_cell"]) == ("sketch", 0, 1, 1)
    assert a["fingerprint"] != b["fingerprint"]


def test_inspect_loads_decoders_and_scipy_for_results_alone(call: Call, words: str) -> None:
    call("estimate", words, "--width", "512", "--seed", "1", "--save", "r.fedtally", "--quiet")
    saved = Result.load("r.fedtally")
    saved.plan.save("plan.toml")
    saved.sketches[0].save("a.sketch")
    heavy = {"scipy", "dp_accounting", "pyarrow", "fedtally.recovery.decoding"}
    code = (
        "import sys; from fedtally.cli.app import run; run(['inspect', sys.argv[1], '--json']);"
        f" sys.exit(' '.join(sorted({heavy} & set(sys.modules))) or 0)"
    )
    for name, is_light in (("plan.toml", True), ("a.sketch", True), ("r.fedtally", False)):
        done = subprocess.run([sys.executable, "-c", code, name], capture_output=True, text=True)
        assert (done.returncode == 0) == is_light, done.stderr
        assert json.loads(done.stdout)["schema"] == "fedtally-inspect/1"


def test_inspect_writes_the_privacy_loss(call: Call) -> None:
    private = ("estimate", "zipf:d=100,n=2000", "--epsilon", "1", "--top", "0", "--quiet")
    assert call(*private, "--save", "p.fedtally")[0] == 0
    plan = Result.load("p.fedtally").plan
    plan.save("plan.toml")
    assert plan.privacy is not None
    expected = privacy_loss(plan.privacy.event)
    for source, table in (("p.fedtally", "loss.csv"), ("plan.toml", "loss.parquet")):
        assert call("inspect", source, "--privacy-loss", table)[0] == 0
        read = pyarrow.csv.read_csv if table.endswith("csv") else pyarrow.parquet.read_table
        found = read(table).to_pydict()
        assert list(found) == ["loss", "probability", "delta"]
        assert (
            np.allclose(found["delta"], expected.delta, rtol=1e-12) and found["loss"][-1] == np.inf
        )
    call("estimate", "zipf:d=100,n=2000", "--seed", "1", "--save", "r", "--quiet")
    Result.load("r").sketches[0].save("a.sketch")
    for source, said in (("r", "r guarantees no"), ("a.sketch", "a.sketch guarantees no")):
        code, out, err = call("inspect", source, "--privacy-loss", "no.csv")
        assert (
            (code, out) == (2, "")
            and f"{said} differential privacy" in err
            and not Path("no.csv").exists()
        )
    assert AS_TABLE in call("inspect", "plan.toml", "--privacy-loss", "x.json")[2]
    assert (
        "it is read by this run" in call("inspect", "plan.toml", "--privacy-loss", "plan.toml")[2]
    )


@pytest.mark.parametrize("columns", [60, 72, 80, 120])
def test_a_merged_answer_fits_one_screen(
    call: Call, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = [f"https://example.org/a/long/path/{n}" for n in range(30)]
    Path("items.txt").write_text("".join(f"{item}\n" * (40 - n) for n, item in enumerate(items)))
    Path("named.txt").write_text("\n".join(items))
    for seed, noise, width in (("1", "2", "40"), ("2", "3", "80")):
        run = ["estimate", "items.txt", "--domain", "named.txt", "--save", seed, "--quiet"]
        run += ["--width", width]
        assert call(*run, "--epsilon", noise, "--top", "1")[0] == 0
    monkeypatch.setenv("COLUMNS", str(columns))
    code, out, _ = call("merge", "1", "2")
    assert code == 0 and call("merge", "1", "2", "--report", "1")[0] == 2  # what it reads
    lines = out.splitlines()
    assert code == 0 and len(lines) <= (35 if columns >= 80 else 50)
    assert max(map(len, lines)) <= columns
    listed = [line for line in lines if "http" in line]
    assert len(listed) == 20 and all(len(line.split("http")[1].split()[0]) >= 4 for line in listed)
    assert "each result has its own: --details lists them" in " ".join(out.split())
    assert "Together  a client in all of them: epsilon" in out
    assert re.search(r"Upload [0-9.]+ k?B to [0-9.]+ k?B per client", " ".join(out.split()))
    caution = "Note each row counts as a person of its own"
    assert caution in " ".join(out.split()) or "more note" in out


def test_merge_says_what_private_results_cost_together(call: Call) -> None:
    for name in ("1", "2"):
        assert (
            call(
                "estimate",
                "zipf:d=100,n=2000",
                "--epsilon",
                "1",
                "--encoding",
                "sketch",
                "--save",
                name,
                "--top",
                "0",
                "--quiet",
            )[0]
            == 0
        )
    assert (
        call(
            "estimate",
            "zipf:d=100,n=2000",
            "--encoding",
            "sketch",
            "--seed",
            "3",
            "--save",
            "exact",
            "--top",
            "0",
            "--quiet",
        )[0]
        == 0
    )
    events = [Result.load(name).plan.privacy.event for name in ("1", "2")]  # type: ignore[union-attr]
    cost = epsilon(events, 1e-6, adaptive=True)
    two_sets = epsilon([event.under("replace-one") for event in events], 1e-6, adaptive=True)
    said = " ".join(call("merge", "1", "2", "--top", "1")[1].split())
    # For one result alone, a guess is right less often than for somebody in both: both say so.
    assert "Privacy each alone: a guess is right in at most 73.2 % of cases" in said
    right, of_sets = right_guesses(cost), right_guesses(two_sets)
    assert 73.2 < float(right) < float(of_sets)
    shares = f"a guess is right in at most {right} %, or for two sets of items {of_sets} % of cases"
    assert f"Together a client in all of them: {cost}; {shares}" in said
    found = answered(call, "merge", "1", "2", "--top", "1")["together"]
    assert (found["epsilon"], found["delta"], found["neighbours"]) == (
        cost.epsilon,
        1e-6,
        "zero-out",
    )
    said = " ".join(call("merge", "1", "exact", "--top", "1")[1].split())
    assert "Together Not private together: exact has exact sums." in said
    assert answered(call, "merge", "1", "exact", "--top", "1")["together"]["epsilon"] is None


def test_a_plan_sets_the_sizes(call: Call) -> None:
    source = "zipf:d=100,n=1000"
    answered(
        call,
        "estimate",
        source,
        "--rows",
        "3",
        "--width",
        "77",
        "--rounds",
        "2",
        "--seed",
        "1",
        "--save",
        "r",
    )
    Result.load("r").plan.save("plan.toml")
    document = answered(call, "estimate", source, "--plan", "plan.toml", "--seed", "1")
    assert document["plan"]["fingerprint"] == Plan.load("plan.toml").fingerprint
    code, _, err = call("estimate", source, "--plan", "plan.toml", "--rows", "5")
    assert code == 2
    assert "leave --rows out" in err


def test_standard_input(words: str) -> None:
    with open(words, "rb") as file:
        done = subprocess.run(
            [*ENTRY, "estimate", "-", "--json", "--max-bytes", "1kB"],
            stdin=file,
            capture_output=True,
            check=True,
        )
    assert json.loads(done.stdout)["estimates"][0]["item"] == "the"
    assert done.stderr == b""


@pytest.mark.promise
@pytest.mark.skipif(sys.platform == "win32", reason="pipes have no such flag")
def test_a_non_blocking_standard_input_is_read_to_its_end() -> None:
    readable, writable = os.pipe()
    os.set_blocking(readable, False)  # as programs that wait on many pipes set it
    command = [*ENTRY, "estimate", "-", "--json"]
    with subprocess.Popen(command, stdin=readable, stdout=subprocess.PIPE) as process:
        os.close(readable)
        for part in (b"tea\n" * 3000, b"te", b"a\ntea\n", b"milk\n" * 3000):
            time.sleep(0.5)  # so that the reader finds none, also as its first bytes
            os.write(writable, part)
        os.close(writable)
        answer = json.loads(process.communicate()[0])
    assert answer["num_contributions"] == 6002
    assert len(answer["estimates"]) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["estimate", "--quiet"], "Missing argument 'INPUT'"),
        (["estmate"], "No such command 'estmate'"),
        (["estimate", "zipf:", "--epsilon", "0"], "epsilon must be 0.001 to 100, got 0"),
        (["estimate", "zipf:", "--delta", "1e-9"], "--delta goes with --epsilon"),
        (
            ["estimate", "zipf:", "--min-frequency", "2"],
            "--min-frequency must be from 0 to 1, got 2; 2 % is 0.02",
        ),
        (["estimate", "zipf:", "--domain", "opne"], "did you mean 'open'?"),
        (
            ["estimate", "zipf:", "--epsilon", "1", "--seed", "1"],
            "--seed is not for a private run",
        ),
        (
            ["estimate", "zipf:", "--epsilon", "1", "--seed", "1"],
            "leave it out, or mark it with --not-private",
        ),
        (
            ["estimate", "zipf:", "--epsilon", "1", "--outside", "error"],
            "leave --outside out (such clients contribute zeros), or mark the run with --not-p",
        ),
        (
            ["estimate", "zipf:", "--ledger", "b.db"],
            "--ledger goes with --epsilon: give one, or leave --ledger out",
        ),
        (["estimate", "zipf:", "--epsilon", "1", "--evaluate"], "the truth is not private"),
        (["estimate", "zipf:", "--epsilon", "1", "--domain", "input"], "declare a list"),
        (
            ["estimate", "zipf:", "--epsilon", "1", "--neighbours", "add-remove"],
            "add-remove needs --max-clients",
        ),
        (
            ["estimate", "zipf:", "--epsilon", "1", "--ledger", "nowhere.db"],
            "no ledger at nowhere.db",
        ),
        (["estimate", "nowhere.csv"], "nowhere.csv"),
        (["estimate", "zipf:", "--max-bytes", "12xB"], "write it as 32kB"),
        (["estimate", "zipf:", "--rows", "0"], "'0' is no integer of 1 or more"),
        (["estimate", "zipf:", "--schedule", "mixed"], "schedule must be"),
        (["estimate", "zipf:", "--schedule", "batched:3"], "batches must be at most"),
        (["estimate", "zipf:", "--domain", "nowhere.txt"], "no such file"),
        (["estimate", "zipf:", "--output", "x.xls"], AS_TABLE),
        (["estimate", "zipf:", "--save", "nowhere/x"], "there is no folder"),
        (["estimate", "zipf:", "--save", "."], "it is a folder; name a file"),
        (["estimate", "zipf:", "--plot", "x.gif"], ".png, .svg or .pdf"),
        (["estimate", "zipf:", "--top", "-1"], "top must be at least 0"),
        (["estimate", "zipf:", "--plan", "nowhere.toml"], "nowhere.toml"),
        (["estimate", "zipf:d=9,n=9", "--query", "apple"], "apple"),
        (["estimate", "zipf:", "--memory", "9" * 400], "is no size"),
        (["estimate", "zipf:", "--memory", "3"], "--memory must be at least 1MiB, got 3 bytes"),
        (["estimate", "-", "--text-encoding", "undefined"], "unknown encoding"),
        (["estimate", "zipf:", "--min-frequency", "nan"], "--min-frequency must be finite"),
        (["estimate", "zipf:", "--threads", "5000"], "--threads"),
        (["query", "nowhere", "x"], "no file nowhere"),
        (["inspect", "nowhere"], "no file nowhere"),
        (["simulate", "zipf:", "--methods", "magic"], "methods are schedules"),
        (["simulate", "zipf:", "--width", "wide"], "integers separated by commas"),
        (["simulate", "zipf:", "--width", "9,9"], "distinct"),
        (["simulate", "zipf:", "--methods", "batched:20"], "batches must be at most"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(call: Call, arguments: list[str], said: str) -> None:
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert said in err
    code, out, err = call(*arguments, "--json")
    document = json.loads(err)
    assert (code, out) == (2, "")
    assert (list(document), document["schema"]) == (["schema", "error"], "fedtally-error/1")
    assert said in document["error"]["message"]
    assert document["error"]["type"]


@pytest.mark.parametrize(
    "given", [KeyboardInterrupt(), MemoryError(), OSError(28, "No space left on device")]
)
def test_what_fails_later(
    call: Call, monkeypatch: pytest.MonkeyPatch, given: BaseException
) -> None:
    def fail(*_: object) -> None:
        raise given

    monkeypatch.setattr("fedtally.simulation.run.run", fail)
    code, out, err = call("estimate", "zipf:")
    assert out == ""
    assert code == (130 if isinstance(given, KeyboardInterrupt) else 1)
    assert re.search("error: (interrupted|out of memory|.*No space left)", err)


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    arguments = ["simulate", "zipf:", "--repeats", "100000", "--output", "study.csv"]
    process = subprocess.Popen(
        [*ENTRY, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # where the caller ignores it
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        time.sleep(2)  # the run takes hours
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    *progress, last = err.splitlines()  # a slow machine may not have said what it does
    assert (process.returncode, out, last) == (130, b"", b"error: interrupted")
    assert all(line.startswith((b"preparing", b"simulating")) for line in progress if line)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_compiled", [False, True])
def test_ctrl_c_while_importing(
    is_compiled: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> int:
        if is_compiled:  # as pybind11 says it
            raise ImportError("initialization failed") from KeyboardInterrupt()
        raise KeyboardInterrupt

    monkeypatch.setattr("fedtally.cli.app.run", interrupted)
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert (left.value.code, capsys.readouterr().err) == (130, "error: interrupted\n")


def test_an_import_that_fails_by_itself_is_loud(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> int:
        raise ImportError("no such module") from OSError()

    monkeypatch.setattr("fedtally.cli.app.run", broken)
    with pytest.raises(ImportError, match="no such module"):
        main(["--version"])


def test_outputs_spare_the_input_and_each_other(call: Call, tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("item\na\nb\n")
    for options in (
        ["--output", "own.csv"],
        ["--save", "./own.csv"],
        ["--output", "x.csv", "--save", "x.csv"],
        ["--save", ""],
    ):
        code, _, err = call("estimate", "own.csv", *options)
        assert code == 2
        assert "name another file" in err or "empty name" in err
    (tmp_path / "dom.txt").write_text("a\nb\n")
    assert call("estimate", "own.csv", "--domain", "dom.txt", "--save", "dom.txt")[0] == 2
    assert (tmp_path / "dom.txt").read_text() == "a\nb\n"
    (tmp_path / "dom.txt").unlink()
    assert (tmp_path / "own.csv").read_text() == "item\na\nb\n"
    assert [path.name for path in tmp_path.iterdir()] == ["own.csv"]


@pytest.mark.parametrize(("columns", "widest"), [("0", 80), ("1", 20)])
def test_a_width_that_nobody_can_read_loses_no_answer(
    monkeypatch: pytest.MonkeyPatch, call: Call, words: str, columns: str, widest: int
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    code, out, _ = call("estimate", words, "--seed", "1", "--quiet")
    assert code == 0 and "Share" in out and len(out) > 500
    assert max(map(len, out.splitlines())) <= widest


def test_the_file_of_standard_output_is_not_overwritten(tmp_path: Path) -> None:
    words, kept = tmp_path / "words.txt", tmp_path / "kept.csv"
    words.write_text("tea\n" * 9)
    for option, place in (("--output", kept), ("--save", "/dev/stdout")):
        command = [sys.executable, "-m", "fedtally", "estimate", str(words), option, str(place)]
        with kept.open("wb") as out:
            done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True)
        assert done.returncode == 2 and "standard output goes there" in done.stderr
        assert kept.read_bytes() == b""


def test_a_private_key_is_not_overwritten(call: Call, tmp_path: Path) -> None:
    key, words = tmp_path / "server.key", tmp_path / "words.txt"
    words.write_text("tea\n" * 9)
    assert call("keys", "new", "server", "--output", str(key))[0] == 0
    before = key.read_bytes()
    code, _, err = call("estimate", str(words), "--save", str(key))
    assert code == 2 and "it holds a private key, and keys are never overwritten" in err
    assert key.read_bytes() == before


@pytest.mark.parametrize(
    ("head", "holds"),
    [
        ("-----BEGIN PRIVATE KEY-----\nMC4C", "a private key, and keys"),
        ("-----BEGIN EC PRIVATE KEY-----\nMHcC", "a private key, and keys"),
        ('schema = "fedtally-dap-secret/1"\n', "the secret of a DAP task, and secrets"),
        ("fedtally-tokens/1\nend\n", "tokens of clients, and tokens"),
        (f"fedtally_{'A' * 43}\n", "tokens of clients, and tokens"),
    ],
)
def test_what_nobody_can_make_again_is_not_overwritten(
    call: Call, tmp_path: Path, head: str, holds: str
) -> None:
    kept, words = tmp_path / "kept", tmp_path / "words.txt"
    words.write_text("tea\n" * 9)
    kept.write_text(head)
    code, _, err = call("estimate", str(words), "--save", str(kept))
    assert code == 2 and f"it holds {holds} are never overwritten" in " ".join(err.split())
    assert kept.read_text() == head
    kept.write_text("fedtally_id,count\n")  # a table is none of these
    assert call("estimate", str(words), "--save", str(kept))[0] == 0


def test_standard_input_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("item\na\n")
    command = (
        f"{sys.executable} -c 'from fedtally.cli import main; main()' estimate - --output own.csv <"
        " own.csv"
    )
    done = subprocess.run(["sh", "-c", command], capture_output=True, check=False)
    assert done.returncode == 2
    assert b"name another file" in done.stderr
    assert (tmp_path / "own.csv").read_text() == "item\na\n"


def test_control_characters_of_the_data_do_not_reach_the_terminal(
    call: Call, tmp_path: Path
) -> None:
    (tmp_path / "odd.csv").write_text("item,n\na,1\n\x1b]0;title\x07,x\n")
    _, _, err = call("estimate", "odd.csv", "--item", "n", "--count", "item")
    assert "\x1b" not in err
    assert "\x07" not in err


def test_items_named_in_a_file(call: Call, tmp_path: Path) -> None:
    (tmp_path / "blank.txt").write_bytes(b" \n \nx\r\n\n")
    answered(call, "estimate", "blank.txt", "--save", "blank.fed", "--seed", "1")
    found = answered(call, "query", "blank.fed", "--items", "blank.txt")["estimates"]
    assert [e["item"] for e in found] == [" ", " ", "x"]


def test_named_integers(call: Call, tmp_path: Path) -> None:
    (tmp_path / "i.txt").write_text("5\n6\n")
    answered(call, "estimate", "i.txt", "--domain", "range:1..9", "--save", "i.fed", "--seed", "1")
    assert [e["item"] for e in answered(call, "query", "i.fed", "5", "6")["estimates"]] == [5, 6]
    for items, said in (
        (["5", "x"], "'x' is none"),
        (["5", "9" * 19], "was no candidate of this result, and"),
        (["12", "5", "13"], "'12' was no candidate of this result (2 of 3 items)"),
        (["5", "+5"], "is none"),
    ):
        code, _, err = call("query", "i.fed", *items)
        assert code == 2
        assert said in err


def test_a_report_of_fewer_than_no_items_is_refused(call: Call, words: str) -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    answered(call, "estimate", words, "--save", "words.fed", "--seed", "1")
    code, _, err = call("report", "words.fed", "--top", "-4")
    assert code == 2 and "--top must be at least 0, got -4" in err


def test_messages_name_what_was_probably_meant(call: Call, tmp_path: Path) -> None:
    (tmp_path / "drinks.txt").write_text("tea\nmilk\n")
    listed = ("--domain", "drinks.txt", "--save", "drinks.fed", "--seed", "1")
    answered(call, "estimate", "drinks.txt", *listed)
    for arguments, said in (
        (("query", "drinks.fed", "Tea"), "'Tea' was no candidate of this result, and .*'tea'?"),
        (("query", "drinks.fed", "-x"), "an item that starts with a dash goes behind --"),
        (("query", "drink.fed", "tea"), "no file drink.fed; did you mean 'drinks.fed'?"),
        (("estimate", "drink.txt"), "no file drink.txt; did you mean 'drinks.txt'?"),
        (("query", "rs.fed", "tea"), "no file rs.fed\n"),  # endings alone are not alike
        (("estimate", "qqq.csv"), "no file qqq.csv\n"),
        (("estimate", "drinks.txt", "--confidence", "95"), "95 % is 0.95"),
        (("estimate", "drinks.txt", "--tau", "5"), "5 % is 0.05"),
        (("estimate", "drinks.txt", "--domain", "range:9..1"), "write range:1[.][.]9"),
        (("plan", "--clients", "9", "--domain-size", "9", "--epsilon", "-1"), "0.001 to 100"),
        (("simulate", "zpf:d=9", "--width", "9"), "profile:; did you mean 'zipf:'?"),
        (("simulate", "zipf:", "--recovery", "jont"), f"{DECODERS[-1]!r}; did you mean 'joint'?"),
        (
            ("estimate", "zipf:", "--recovery", "mine:Mean"),
            f"{DECODERS[-1]!r}; a decoder of your own runs in",
        ),
        (
            ("simulate", "zipf:d=9,n=9", "--width", "9", "--recovery", "fedtally:MedianDecode"),
            "has no MedianDecode; did you mean 'MedianDecoder'?",
        ),
        # a bad number comes before what a good one would need
        (("estimate", "drinks.txt", "--epsilon", "-1"), "epsilon must be 0.001 to 100, got -1"),
    ):
        code, out, err = call(*arguments)
        assert (code, out) == (2, "")
        assert re.search(said.replace("?", "[?]"), err), err


def test_a_group_without_a_command_shows_its_help(call: Call) -> None:
    for group in ("campaign", "agent", "flower", "ledger", "keys"):
        code, out, err = call(group)
        assert (code, err) == (0, "") and out.startswith(f"Usage: fedtally {group} [OPTIONS]")
        assert "\n  -h, --help" in out


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-"])
def test_closed_streams(closed: str, words: str) -> None:
    source = "-" if closed == "0<&-" else words
    command = (
        f"{sys.executable} -c 'from fedtally.cli import main; main()' estimate {source} --width 9"
        f" {closed}"
    )
    done = subprocess.run(["sh", "-c", command], capture_output=True, check=False)
    assert done.returncode == (2 if source == "-" else 0)
    assert b"Traceback" not in done.stderr


def test_a_closed_pipe_is_silent() -> None:
    arguments = ["estimate", "zipf:d=30000,n=100000", "--top", "30000", "--json"]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    process = subprocess.Popen(
        [*ENTRY, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=buffered
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    with process.stderr as stderr:
        assert (process.wait(timeout=60), stderr.read()) == (1, b"")


def test_errors_are_red_on_a_terminal_alone(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("click.utils.should_strip_ansi", lambda *_: False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[31m" in call("inspect", "nowhere")[2]
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in call("inspect", "nowhere")[2]


_LONG = ("estimate", "zipf:", "--epsilon", "1", "--seed", "5")


def test_an_error_is_one_line_in_a_pipe(call: Call) -> None:
    code, _, err = call(*_LONG)
    assert code == 2 and err.count("\n") == 1 and len(err) > 110
    assert err.startswith("error: --seed is not for a private run") and err.endswith("\n")


@pytest.mark.parametrize(("columns", "most"), [(60, 60), (80, 80), (None, 80), (0, 80), (3, 38)])
def test_an_error_fits_the_terminal_and_ends_lines_between_words(
    call: Call, monkeypatch: pytest.MonkeyPatch, columns: int | None, most: int
) -> None:
    one_line = call(*_LONG)[2]

    def size(_: int) -> os.terminal_size:
        if columns is None:
            raise OSError("not a terminal")
        return os.terminal_size((columns, 24))

    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys.stderr, "fileno", lambda: 2, raising=False)
    monkeypatch.setattr(os, "get_terminal_size", size)
    lines = call(*_LONG)[2].splitlines()
    assert len(lines) > 1 and most / 2 < max(map(len, lines)) <= most
    assert all(line.startswith("  ") for line in lines[1:])
    assert " ".join(map(str.strip, lines)) == one_line.strip()  # no word is cut, none is lost


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_an_error_asks_its_own_terminal_for_the_width() -> None:
    """Standard output is a pipe here, and standard error is a terminal of 50 columns."""
    import fcntl
    import pty
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 50, 0, 0))
    quiet = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    done = subprocess.run(
        [*ENTRY, *_LONG], stdout=subprocess.PIPE, stderr=theirs, env=quiet | {"NO_COLOR": "1"}
    )
    os.close(theirs)
    with open(ours, "rb", buffering=0) as terminal:
        shown = terminal.read(65536).decode()
    assert done.returncode == 2 and done.stdout == b""
    assert max(map(len, shown.splitlines())) in range(40, 51)


@pytest.mark.parametrize(
    ("domain", "asked", "way"),
    [
        ("range:0..5", "9", "widen the range"),
        ("words.txt", "milk", "add the missing items to the dictionary"),
    ],
)
@pytest.mark.parametrize("private", [True, False])
def test_what_is_advised_for_an_item_that_was_asked_for_can_be_done(
    call: Call, tmp_path: Path, domain: str, asked: str, way: str, private: bool
) -> None:
    """With privacy `--domain input` is refused, and without it the input does not hold the item
    either. It is advised where the input itself has other items."""
    (tmp_path / "words.txt").write_text("tea\nrice\n")
    (tmp_path / "data.txt").write_text("tea\n" * 50 if domain == "words.txt" else "1\n" * 50)
    terms = ["--epsilon", "1"] if private else []
    code, _, said = call("estimate", "data.txt", "--domain", domain, "--query", asked, *terms)
    assert code == 2 and way in said and "--domain input" not in said
    (tmp_path / "data.txt").write_text(f"{asked}\n" * 50)
    code, _, said = call("estimate", "data.txt", "--domain", domain)
    assert code == 2 and f"{way}, use --domain input, or leave out" in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--query", "51"], "outside the domain"),
        (["--query", "abc"], "is none"),
        (["--domain", "range:1..900000000000"], "too large to enumerate"),
        (
            ["--domain", "range:1..900000000000", "--recovery", "joint", "--query", "7"],
            "too large to enumerate",
        ),
        (
            ["--domain", "range:1..90000", "--output", "all.csv", "--memory", "1MiB"],
            "table of 90,000 candidates",
        ),
    ],
)
def test_nothing_is_spent_on_what_cannot_be_answered(
    call: Call, tmp_path: Path, options: list[str], said: str
) -> None:
    (tmp_path / "items.csv").write_text("item\n" + "1\n" * 90)
    books = str(tmp_path / "books.db")
    ledger = ["--ledger", books, "--population", "phones"]
    assert call("ledger", "grant", *ledger, "--epsilon", "2", "--delta", "1e-6")[0] == 0
    private = [
        "estimate",
        str(tmp_path / "items.csv"),
        "--domain",
        "range:1..50",
        "--epsilon",
        "1",
        *ledger,
    ]
    code, out, err = call(*private, *options)
    assert (code, out) == (2, "") and said in err
    assert (
        json.loads(call("ledger", "export", "--ledger", books)[1])["populations"][0]["campaigns"]
        == []
    )
    code, out, err = call(*private, "--details")
    assert code == 0 and "has spent epsilon 1 at delta 1e-06" in err
    assert "Ledger" in out and "has spent epsilon 1 at delta 1e-06" in " ".join(out.split())
    assert "at its own delta" not in out
    shown = " ".join(call("ledger", "show", *ledger)[1].split())
    assert "all campaigns at delta 1e-06, at which the same noise may have another epsilon" in shown


def test_a_ledger_that_cannot_be_read_any_more_costs_no_answer(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent = Ledger.spent

    def gone(books: Ledger, population: str) -> None:
        if spent(books, population) is not None:  # once the campaign is charged
            raise StoreError("the disk is gone")

    (tmp_path / "items.csv").write_text("item\n" + "1\n" * 90)
    ledger = ["--ledger", str(tmp_path / "books.db"), "--population", "phones"]
    assert call("ledger", "grant", *ledger, "--epsilon", "2", "--delta", "1e-6")[0] == 0
    monkeypatch.setattr(Ledger, "spent", gone)
    private = ["--domain", "range:1..50", "--epsilon", "1", *ledger]
    code, out, err = call("estimate", str(tmp_path / "items.csv"), *private)
    assert code == 0 and "Share of each item" in out
    assert "charged, and what is spent cannot be read: the disk is gone" in err


@pytest.mark.parametrize("option", ["--save", "--output", "--plot"])
def test_a_ledger_is_not_overwritten(call: Call, tmp_path: Path, option: str) -> None:
    books = tmp_path / "books.csv"
    assert (
        call(
            "ledger",
            "grant",
            "--ledger",
            str(books),
            "--population",
            "p",
            "--epsilon",
            "2",
            "--delta",
            "1e-6",
        )[0]
        == 0
    )
    before = books.read_bytes()
    target = str(books) if option != "--plot" else f"{books}-wal"
    code, _, err = call(
        "estimate",
        "zipf:",
        "--epsilon",
        "1",
        "--population",
        "p",
        "--ledger",
        str(books),
        option,
        target,
    )
    assert code == 2 and books.read_bytes() == before
    assert "it is read by this run" in err or option == "--plot"


def test_inspect_rounds_up_and_names_a_study(call: Call, tmp_path: Path) -> None:
    saved = str(tmp_path / "saved")
    private = [
        "estimate",
        "zipf:d=50,n=900",
        "--epsilon",
        "1.0049",
        "--population",
        "phones",
        "--save",
        saved,
    ]
    assert call(*private)[0] == 0
    shown = " ".join(call("inspect", saved)[1].split())
    assert (
        "pure epsilon 1.005 (zero-out, central trust, geometric noise); population phones" in shown
    )
    assert call(*private, "--not-private")[0] == 0
    assert "not private: pure epsilon 1.005" in " ".join(call("inspect", saved)[1].split())


def test_the_input_is_no_public_list(call: Call, tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("tea\nmilk\n")
    code, _, err = call("estimate", str(words), "--domain", str(words), "--epsilon", "1")
    assert code == 2 and "is the input itself" in err
    assert (
        call("estimate", str(words), "--domain", str(words), "--epsilon", "1", "--not-private")[0]
        == 0
    )


def test_a_private_result_says_so_wherever_it_is_read(call: Call, tmp_path: Path) -> None:
    saved = str(tmp_path / "saved")
    code, out, _ = call("estimate", "zipf:d=50,n=900", "--epsilon", "1", "--save", saved, "--json")
    shown = json.loads(out)["privacy"]
    assert (
        code == 0
        and 0.99 < shown["epsilon"] <= 1
        and shown["trust"] == "central"
        and shown["not_private"] is False
    )
    queried = json.loads(call("query", saved, "1", "--json")[1])
    assert queried["privacy"] == json.loads(call("inspect", saved, "--json")[1])["privacy"] == shown
    assert "(pure epsilon 1)" in " ".join(call("query", saved, "1")[1].split())


def test_the_demo_with_privacy_is_a_study(call: Call) -> None:
    code, out, _ = call("demo", "--epsilon", "4", "--json", "--seed", "1")
    document = json.loads(out)
    assert code == 0 and document["privacy"]["not_private"] and document["privacy"]["epsilon"] <= 4
    assert any(note.startswith("not private") for note in document["warnings"])


def test_a_comparison_with_privacy(call: Call, tmp_path: Path) -> None:
    table = tmp_path / "study.csv"
    options = [
        "--epsilon",
        "1",
        "--repeats",
        "1",
        "--width",
        "50",
        "--methods",
        "shared",
        "--output",
        str(table),
    ]
    code, out, _ = call("simulate", "zipf:d=50,n=900", *options)
    assert code == 0 and "not private: the noise of epsilon 1" in " ".join(out.split())
    assert table.read_text().count("not private") == 3
    code, _, err = call("simulate", "zipf:d=50,n=900", "--delta", "1e-6")
    assert code == 2 and "--delta goes with --epsilon" in err


def test_demo_shows_the_truth_and_what_to_try_next(call: Call) -> None:
    code, out, err = call("demo", "--seed", "1")
    assert (code, err) == (0, "")
    assert re.search(
        r"1 +self +[0-9.]+ % +█+ +[0-9.]+ +[0-9.]+ +[0-9.]+ % +[+-]\S+ +[0-9,]+\n", out
    )
    assert len(re.findall(r"^ *[0-9]+ +\w+ +-?[0-9.]+ %", out, re.M)) == 20
    assert "no differential privacy" in out
    assert "8.00 kB" in out or "7.9" in out
    assert len(out.splitlines()) <= 35
    commands = re.findall(r"^ +fedtally (.*?)  ", out[out.index("\nTry ") :], re.M)
    assert len(commands) == 3 and all(line.startswith("demo --") for line in commands)
    for line in commands[1:-1]:
        assert call(*line.split())[0] == 0


def test_secure_sums_and_their_mistakes(call: Call) -> None:
    small = (
        "estimate",
        "zipf:d=300,n=60",
        "--rows",
        "5",
        "--width",
        "40",
        "--seed",
        "1",
        "--secure-sum",
        "secagg",
    )
    code, out, _ = call(*small, "--dropout", "0.1", "--max-cohort", "30", "--json")
    assert code == 0
    account = json.loads(out)["secure_sum"]
    assert (account["cohorts"], account["dropouts"], account["equals_plain_sum"]) == (2, 6, True)
    code, out, _ = call(*small, "--adversary", "active", "--details")
    assert code == 0
    assert "secagg against a server that may lie" in out
    code, out, _ = call(*small, "--secure-sum", "two-server", "--validity", "proofs", "--json")
    account = json.loads(out)["secure_sum"]
    assert (code, account["validity"], account["refused"]) == (0, "proofs", 0)
    code, out, _ = call(*small, "--secure-sum", "two-server", "--validity", "none", "--details")
    assert code == 0 and "reports have no proofs: a client that lies is not found out" in out
    for wrong, message in (
        (("--dropout", "1"), "dropout must be at least 0 and below 1"),
        (("--max-cohort", "3"), "protect nobody"),
        (("--max-corrupt", "0.99"), "cannot be summed safely"),
        (("--rounds", "30"), "a secure sum needs at least 3"),
        (
            ("--secure-sum", "two-server", "--adversary", "active"),
            "goes with the secure sum secagg",
        ),
        (("--validity", "proofs"), "--validity goes with the secure sum two-server, got secagg"),
        (
            ("--secure-sum", "two-server", "--validity", "both"),
            "'both' is not one of 'auto', 'proofs', 'none'",
        ),
    ):
        code, out, err = call(*small, *wrong)
        assert (code, out) == (2, "")
        assert message in err


def test_simulate_prints_costs_and_what_binary_reveals(call: Call) -> None:
    small = (
        "simulate",
        "zipf:d=300,n=2000",
        "--methods",
        "hybrid,shared",
        "--width",
        "40,80",
        "--repeats",
        "2",
    )
    code, out, err = call(*small, "--rounds", "4", "--seed", "1")
    assert (code, err) == (0, "")
    assert len(re.findall(r"^(?:hybrid|shared) +(?:40|80) ", out, re.M)) == 4
    for said in ("l_inf", "l_2", "median", "90 %", "one-hot", "no differential privacy"):
        assert said in out
    assert "not compatible with secure summation: the server would see each item" in " ".join(
        out.split()
    )


def test_the_errors_of_a_study_are_whole_in_any_terminal(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "a_module_with_a_long_name:AlternatingOverEverything"
    file, cls = name.split(":")
    rule = "def hashes(self, num_rounds): return [(m % 2, m) for m in range(num_rounds)]"
    Path(f"{file}.py").write_text(f"class {cls}:\n    {rule}\n")
    study = ["simulate", "zipf:d=99,n=999", "--methods", f"hybrid,{name}"]
    study += ["--width", "9,20000", "--repeats", "3", "--rows", "3", "--seed", "1"]
    figures = ["mean", "median", "90 %"]
    some, both = ["width", "upload", *figures], ["width", "upload", *figures, *figures]
    few = {40: ["width", "upload", "median", "90 %"], 30: ["width", "median"]}
    left = {120: both, 80: both, 64: some, 50: some} | few
    shown = answered(call, *study)["comparisons"]
    numbers: dict[str, list[str]] = {}  # the method and width of a row -> its numbers, to the right
    for columns in (120, 80, 64, 50, 40, 30):
        monkeypatch.setenv("COLUMNS", str(columns))
        code, out, _ = call(*study)
        assert code == 0 and max(map(len, out.splitlines())) <= columns
        head = next(line for line in out.splitlines() if line.startswith("method"))
        rows = [line for line in out.splitlines() if re.match(r"(hybrid|a_\S*ing) ", line)]
        assert len(rows) == 4 and all(len(row.split()[0]) >= 6 for row in rows)
        for place, row in enumerate(rows):
            whole = re.split(r" {2,}", row)
            assert len(whole) == len(re.split(r" {2,}", head)) and "…" not in whole[1:]
            known = numbers.setdefault(str(place), whole[1:])
            # what is left stands as in the widest terminal: l_2 goes first
            names = re.split(r" {2,}", head)[1:]
            assert names == left[columns]
            at = range(8) if len(names) == 8 else [left[120].index(name) for name in names]
            assert whole[1:] == [known[i] for i in at]
            errors = [float(text) for text in known[2:]]
            of = shown[place]
            true = [100 * of[e][f] for e in ("linf", "l2") for f in ("mean", "median", "q90")]
            assert errors == pytest.approx(true, abs=0.0051)
        assert ("without l_2" in " ".join(out.split())) is (columns <= 64)
        assert f"{columns} columns: " in " ".join(out.split()) or columns == 120


def test_simulate_json_and_tidy_table(call: Call) -> None:
    small = (
        "simulate",
        "zipf:d=300,n=2000",
        "--methods",
        "hybrid,batched:2",
        "--width",
        "40",
        "--repeats",
        "3",
    )
    document = answered(call, *small, "--rounds", "4", "--seed", "1", "--output", "study.parquet")
    assert document["schema"] == "fedtally-study/1"
    methods = [(c["method"], c["width"], c["secure_sum"]) for c in document["comparisons"]]
    exact = [("one-hot", None, True), ("binary", None, False)]
    assert methods == [("hybrid", 40, True), ("batched:2", 40, True), *exact]
    assert set(document["comparisons"][0]["linf"]) == {"mean", "median", "q90"}
    table = pyarrow.parquet.read_table("study.parquet")
    assert table.num_rows == 3 * 4
    assert {"method", "width", "repeat", "linf", "l2", "bytes_per_client"} <= set(
        table.column_names
    )


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_answers_fit_the_terminal(
    call: Call, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for arguments in (
        ["demo"],
        ["simulate", "zipf:d=99,n=999", "--repeats", "2", "--methods", "batched:4"],
    ):
        _, out, _ = call(*arguments)
        assert max(map(len, out.splitlines())) <= columns
        assert "…" not in out  # no number is cut


def test_the_demo_repeats_itself_and_says_its_own_defaults(call: Call) -> None:
    def estimates(*more: str) -> object:
        return json.loads(call("demo", "--top", "5", "--json", *more)[1])["estimates"]

    assert estimates() == estimates() != estimates("--seed", "2")
    text = " ".join(call("demo", "--help")[1].split())
    assert "64KiB [8kB]" in text and "rounds [10]" in text and "[drawn by" not in text


def test_shares_may_be_written_in_percent(call: Call) -> None:
    assert call("estimate", "zipf:d=100,n=500", "--tau", "x%")[0] == 2
    both = [
        json.loads(
            call("estimate", "zipf:d=99,n=500", "--seed", "1", "--min-frequency", at, "--json")[1]
        )["estimates"]
        for at in ("0.05", "5%")
    ]
    assert both[0] == both[1] and 0 < len(both[0]) < 20


def test_the_version_has_a_short_option(call: Call) -> None:
    assert call("-V") == call("--version")


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("estimate t.csv --item wrod", "word"),
        ("estimate t.csv --item word --client User", "user"),
        ("estimate zipf: --schedule hybird", "hybrid"),
        ("estimate profile:gowala-us", "gowalla-us"),
        ("simulate zipf: --methods frseh", "fresh"),
        ("demo --recovery jont", "joint"),
        ("estimate zipf: --secure-sum sekagg", "secagg"),
    ],
)
def test_what_was_probably_meant_is_said(call: Call, tmp_path: Path, line: str, meant: str) -> None:
    (tmp_path / "t.csv").write_text("word,user\ntea,ana\n")
    code, out, err = call(*line.split())
    assert (code, out) == (2, "")
    assert f"did you mean {meant!r}?" in err


def test_a_comparison_decodes_as_an_estimate_does(call: Call) -> None:
    study = answered(call, "simulate", "zipf:d=99,n=999", "--repeats", "1", "--seed", "1")
    found = answered(call, "estimate", "zipf:d=99,n=999", "--seed", "1", "--encoding", "sketch")
    assert (study["recovery"], study["rows"]) == (found["recovery"], found["plan"]["rows"])
    few = answered(call, "simulate", "zipf:d=99,n=999", "--repeats", "1", "--rows", "2")
    assert few["recovery"] == "median"
    asked = ("simulate", "zipf:d=99,n=999", "--repeats", "1", "--rows", "2", "--seed", "1")
    assert answered(call, *asked, "--recovery", "auto") == answered(call, *asked)


def _leaves(command: click.Command) -> Iterator[click.Command]:
    if not isinstance(command, click.Group):
        yield command
        return
    for one in command.commands.values():
        yield from _leaves(one)


def test_the_defaults_that_help_shows_are_those_that_run() -> None:
    """The text in brackets at the end of a help text is the default."""
    usual = Simulation.of()
    plain = {
        "max_bytes": f"{DEFAULT_MAX_BYTES // 1000}kB for a sketch, and up to 64kB for a histogram",
        "rows": f"{DEFAULT_ROWS}; with --tau chosen",
        "failure_probability": str(usual.spec.failure_probability),
        "confidence": str(usual.spec.decoding.confidence),
        "top": str(usual.top),
        "dropout": "0",
        "intervals": usual.spec.decoding.intervals,
        "objective": usual.spec.decoding.objective,
        "text_encoding": "utf8",
        "encoding": "auto",
    }
    parameters = {one.name: one for one in cli.commands["estimate"].params}
    for name, default in plain.items():
        shown = re.findall(r" \[(.*)\]$", getattr(parameters[name], "help", "") or "")
        assert shown == [default], name
    options = [
        (command, one)
        for command in _leaves(cli)
        for one in command.params
        if isinstance(one, click.Option)
    ]
    assert not [one.name for _, one in options if one.show_default]  # one style in all of them
    filled = [
        (command, one)
        for command, one in options
        if isinstance(one.default, str | int | float) and not one.is_flag
    ]
    others = ("folder",)  # its text has other words
    for command, one in filled:  # what click fills in is what the help says
        shown = re.findall(r" \[(.*)\]$", one.help or "")
        assert shown, (command.name, one.name)
        if one.name not in others:
            filled_in = str(one.default).removesuffix(".0").replace("e-0", "e-")
            assert shown[0].split(";")[0] == filled_in, (command.name, one.name)
    assert len(filled) > 30


def waits_for(capsys: pytest.CaptureFixture[str], text: str) -> str:
    """Return what stands on stderr once it has a text."""
    found, end = "", time.monotonic() + 60
    while text not in found and time.monotonic() < end:
        time.sleep(0.01)
        found += capsys.readouterr().err
    return found


def test_long_work_says_in_a_plain_line_what_it_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also into a file. Of work that is done soon nobody hears, nor where it was asked for."""
    monkeypatch.setattr(console, "LATER", 0.01)
    monkeypatch.setattr(console, "SOON", 86_400.0)
    with console.Progress() as progress:
        progress("read", 1, 10)
        progress("recover", 1, 10)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(console, "SOON", 0.01)
    with console.Progress(quiet=True) as progress:
        progress("read", 1, 10)
        time.sleep(0.05)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(console, "SOON", 0.3)
    with console.Progress() as progress:
        progress("recover", 5, 10)
        said = waits_for(capsys, "\n")
        assert said == "decoding: all candidates are looked at several times, 50 %\n"
        progress("recover", 6, 10)  # one line, and another one after ten seconds alone
        progress("decode", 1, 10**9)
        said = waits_for(capsys, "\n")
        assert re.fullmatch(r"decoding 1,000,000,000 items, 0 %, about [0-9,]+ s\n", said)
        progress("plan")
        assert waits_for(capsys, "\n") == "planning\n"
    assert capsys.readouterr() == ("", "")


def test_lines_of_long_work_say_how_far_it_is() -> None:
    now = 100.0
    lines = console._Lines(lambda: now)
    lines.look("names", 40, 100)
    lines.stop()
    assert (lines.first(), lines.later()) == ("reading names, 40 %", "reading names 40 %")
    lines.look("decode", 0, 1000)
    lines.stop()
    now += 20
    assert (lines.first(), lines.later()) == ("decoding 1,000 items", "decoding, 20 s so far")
    lines.look("decode", 250, 1000)
    assert lines.first() == "decoding 1,000 items, 25 %, about 60 s"
    assert lines.later() == "decoding 25 %, about 60 s"
    lines.look("plan", 0, None)
    lines.stop()
    now += 12
    assert (lines.first(), lines.later()) == ("planning", "planning, 12 s so far")


def test_a_long_stage_gets_a_line_again_and_again_until_it_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "SOON", 0.01)
    monkeypatch.setattr(console, "EVERY", 0.01)
    with console.Progress() as progress:
        progress("names", 1, 4)
        assert waits_for(capsys, "25 %\nreading names 25 %\n").startswith("reading names, 25 %\n")
        progress("names", 3, 4)
        assert "reading names 75 %\n" in waits_for(capsys, "75 %\n")
    assert capsys.readouterr().err.replace("reading names 75 %\n", "") == ""
    time.sleep(0.05)
    assert capsys.readouterr() == ("", "")


def test_work_before_its_first_stage_and_short_stages_in_turn_say_something(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "SOON", 0.05)
    with console.Progress():
        assert waits_for(capsys, "\n") == "preparing\n"
    monkeypatch.setattr(console, "SOON", 0.3)
    with console.Progress() as progress:
        until = time.monotonic() + 60.0
        while not (said := capsys.readouterr().err) and time.monotonic() < until:
            progress("encode", 1, 9)
            progress("sum", 1, 9)
            time.sleep(0.01)  # far less than a stage needs for a line of its own
    assert said.startswith(("encoding 9 rounds", "summing securely 9 clients"))


def test_long_work_leaves_documents_alone(
    call: Call, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stdout has the answer alone; with --json stderr is for the document of an error."""
    monkeypatch.setattr(console, "SOON", 0.0)
    monkeypatch.setattr(console, "LATER", 0.0)
    slow = console.Progress.__call__

    def slowly(self: console.Progress, *arguments: Any) -> None:
        slow(self, *arguments)
        time.sleep(0.03)

    monkeypatch.setattr(console.Progress, "__call__", slowly)
    asked = ("estimate", words, "--width", "64", "--seed", "1")
    code, out, err = call(*asked)
    assert code == 0 and "reading" in err and "reading" not in out and "\x1b" not in err
    assert call(*asked, "--quiet")[2] == ""
    code, out, err = call(*asked, "--json")
    assert (code, err) == (0, "") and json.loads(out)["schema"] == "fedtally-result/2"


def test_a_stage_of_unknown_length_says_how_long_it_has_taken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with console.Progress() as progress:
        progress("plan")
        progress("read", 5_000_000, 10_000_000)
        progress("recover", 30, 120)  # three of twelve looks at ten items
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err).splitlines()
    assert any(re.match(r"decoding +.* 25% +", line) for line in lines)
    assert any(re.match(r"planning +.* 0 s so far", line) for line in lines)
    assert any(re.match(r"reading +.* 5.0 MB of 10.0 MB +--:--", line) for line in lines)
