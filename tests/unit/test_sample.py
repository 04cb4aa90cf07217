"""The sample: its files are whole, hold what they say, and overwrite nothing."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from fedtally.cli.app import run as command
from fedtally.domain import parse
from fedtally.sources import Columns, open_source, read_candidates
from fedtally.sources.sample import SAMPLES, WORDS, sample


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
            assert len(items) == int(number), name
    assert set((folder / "words.txt").read_text().split()) <= set(WORDS)
    assert read_candidates(folder / "dictionary.txt").size == len(WORDS)
    assert pyarrow.parquet.read_table(folder / "counts.parquet").num_rows == len(WORDS)
    grid = parse("grid:25..50,-130..-60,0.1")
    for name in ("checkins.tsv", "checkins.csv"):
        places = np.array([place.split(",") for place in found[name]], float)
        assert grid.contains(list(map(tuple, places))).all(), name
    assert {int(code) for code in found["log.gz"]} <= set(range(600))
    assert set(found["diagnosed.csv"]) <= set(found["diagnoses.txt"])
    assert set(found["visits.csv"]) <= {f"/{word}" for word in WORDS}


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
