"""The sample: its files are whole, hold what they say, and overwrite nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from fedtally.cli.app import run as command
from fedtally.domain import Dictionary, parse
from fedtally.sources import Columns, open_source
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
    for name, about, _ in SAMPLES:
        source = open_source(str(folder / name), columns.get(name, Columns()))
        items = [item for batch in source.batches() for item in batch.items.to_pylist()]
        number = about.split()[0].replace(",", "")
        assert items, name
        if number.isdigit() and name != "devices.jsonl":
            assert len(items) == int(number), name
    assert set((folder / "words.txt").read_text().split()) <= set(WORDS)
    assert Dictionary.from_file(folder / "dictionary.txt").size == len(WORDS)
    assert pyarrow.parquet.read_table(folder / "counts.parquet").num_rows == len(WORDS)
    grid = parse("grid:25..50,-130..-60,0.1")
    places = np.loadtxt(folder / "checkins.tsv", skiprows=1)
    assert len(grid.encode([tuple(place) for place in places])) == len(places)  # all are inside


def test_no_file_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "log.gz").write_text("mine")
    assert command(["sample", str(tmp_path)]) == 2
    assert "holds log.gz already" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["log.gz"]
    assert (tmp_path / "log.gz").read_text() == "mine"


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "file").write_text("mine")
    assert command(["sample", str(tmp_path / "file")]) == 2
    assert command(["sample", str(tmp_path / "file" / "below")]) == 2
    assert "cannot make the folder" in capsys.readouterr().err
