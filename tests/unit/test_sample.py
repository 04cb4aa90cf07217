"""The sample: its files are whole, hold what they say, and overwrite nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

import fedtally
from fedtally.cli.app import run as command
from fedtally.domain import parse
from fedtally.sources import Columns, open_source, read_candidates
from fedtally.sources.sample_tables import SAMPLES, WORDS, sample


def write(folder: Path, *names: str) -> None:
    files = sample()
    for name in names:
        (folder / name).write_bytes(files[name])


def test_a_seed_gives_the_same_bytes_and_another_others():
    """But for the three files that nothing is drawn for."""
    first, again, other = sample(3), sample(3), sample(4)
    assert first == again
    same = {name for name in first if first[name] == other[name]}
    assert same == {"dictionary.txt", "diagnoses.txt", "counts.parquet"}


def test_every_file_can_be_read_as_it_says(tmp_path: Path):
    assert command(["sample", str(tmp_path / "new" / "folder")]) == 0
    folder = tmp_path / "new" / "folder"
    assert sorted(path.name for path in folder.iterdir()) == sorted(name for name, _, _ in SAMPLES)
    columns = {
        "visits.csv": Columns("url", "user"),
        "searches.csv": Columns("word", round="day"),
        "devices.jsonl": Columns("code", "device"),
        "diagnosed.csv": Columns("code", "patient", silo="hospital"),
        "counts.parquet": Columns("word", count="n"),
        "checkins.tsv": Columns(("lat", "lon")),
        "checkins.csv": Columns(("lat", "lon"), count="count"),
    }
    found = {}
    for name, about, _ in SAMPLES:
        source = open_source(str(folder / name), columns.get(name, Columns()))
        items = [item for batch in source.batches() for item in batch.items.to_pylist()]
        number = about.split()[0].replace(",", "")
        assert items, name
        found[name] = items
        clients = {each for batch in source.batches() for each in (batch.clients or [])}
        if said := re.search(r"of? ?([0-9,]+) (devices|patients)|that ([0-9,]+) users", about):
            number_of_clients = (said[1] or said[3]).replace(",", "")
            assert len(clients) == int(number_of_clients), name
        if number.isdigit() and name != "devices.jsonl":
            days = len({day for batch in source.batches() for day in (batch.rounds or [])})
            assert len(items) == int(number) * max(1, days), name
    assert set((folder / "words.txt").read_text().split()) <= set(WORDS)
    assert read_candidates(folder / "dictionary.txt").size == len(WORDS)
    counts = pyarrow.parquet.read_table(folder / "counts.parquet").to_pydict()
    assert set(counts["word"]) <= set(WORDS) and min(counts["n"]) > 0
    grid = parse("grid:25..50,-130..-60,0.1")
    for name in ("checkins.tsv", "checkins.csv"):
        places = np.array([place.split(",") for place in found[name]], float)
        assert grid.contains(list(map(tuple, places))).all(), name
    assert {int(code) for code in found["log.gz"]} <= set(range(600))
    assert set(found["diagnosed.csv"]) <= set(found["diagnoses.txt"])
    assert set(found["visits.csv"]) <= {f"/{word}" for word in WORDS}
    assert len(set(WORDS)) == 40_000
    assert sum(path.stat().st_size for path in folder.iterdir()) < 2_000_000


@pytest.mark.parametrize(
    ("name", "options", "times"),
    [
        ("words.txt", {"domain": "dictionary.txt"}, 2),
        ("visits.csv", {"item": "url", "client": "user", "max_bytes": "4kB"}, 3),
        ("checkins.tsv", {"item": ("lat", "lon"), "domain": "grid:25..50,-130..-60,0.1"}, 10),
    ],
)
def test_a_sketch_takes_a_fraction_of_the_bytes_of_a_histogram(
    name: str,
    options: dict[str, Any],
    times: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """And shares are off by less than a twentieth of a point."""
    write(tmp_path, name, "dictionary.txt")
    monkeypatch.chdir(tmp_path)
    result = fedtally.estimate(name, **options, seed=1, evaluate=True)
    assert times * result.plan.bytes_per_client < result.plan.one_hot_bytes_per_client
    assert result.evaluation is not None and result.evaluation.linf < 0.0005


def test_the_list_that_is_short_has_a_histogram(tmp_path: Path):
    write(tmp_path, "log.gz")
    result = fedtally.estimate(tmp_path / "log.gz", domain="range:0..599", seed=1)
    assert result.plan.is_histogram
    said = {name: about for name, about, _ in SAMPLES}
    assert [name for name in said if "histogram" in said[name]] == ["log.gz"]


@pytest.mark.slow
def test_the_frequent_pages_are_named_without_a_list(tmp_path: Path):
    write(tmp_path, "visits.csv")
    result = fedtally.estimate(
        tmp_path / "visits.csv", item="url", client="user", domain="open", epsilon=4
    )
    named = [estimate.item for estimate in result.top(10)]
    assert set(named) <= {f"/{word}" for word in WORDS[:30]}


def test_no_file_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "log.gz").write_text("mine")
    assert command(["sample", str(tmp_path)]) == 2
    assert "holds log.gz already" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["log.gz"]
    assert (tmp_path / "log.gz").read_text() == "mine"


def test_the_same_sample_may_be_written_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for _ in range(2):
        assert command(["sample", str(tmp_path)]) == 0
    capsys.readouterr()
    assert command(["sample", str(tmp_path), "--seed", "3"]) == 2
    # files for which nothing is drawn are the same in each sample
    said = capsys.readouterr().err
    assert "visits.csv" in said and "counts.parquet" not in said


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "file").write_text("mine")
    assert command(["sample", str(tmp_path / "file")]) == 2
    assert command(["sample", str(tmp_path / "file" / "below")]) == 2
    assert "cannot make the folder" in capsys.readouterr().err
