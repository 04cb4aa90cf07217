"""A saved file of a stranger fills the memory of whoever looks at it, or shows sums to other users.

Attack 5: a file of a megabyte holds an entry that unpacks to a gigabyte.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import stat
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import fedtally
from fedtally.answer import saving
from fedtally.answer.result import Result
from fedtally.base import archive
from fedtally.cli.app import run as command
from fedtally.errors import UnreadableFileError
from fedtally.sketch import CountSketch, SketchSpec

LARGE = 1 << 25  # bytes that an entry unpacks to
ROOM = 1 << 22


def result() -> Result:
    items = [1 + i % 7 for i in range(200)]
    return fedtally.estimate(items, domain=fedtally.IntegerRange(1, 50), seed=1)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "r.fed"
    result().save(path)
    return path


def with_entry(path: Path, name: str, size: int, listed: bool = True, **changed: Any) -> Path:
    """Return a copy of a saved file in which an entry has so many bytes, all alike."""
    with np.load(path) as file:
        arrays = {entry: file[entry] for entry in file.files}
    header = json.loads(arrays.pop("header").tobytes()) | changed
    arrays.pop(name, None)
    if listed and name != "header":
        header["arrays"] = sorted({*arrays, name})
    text = json.dumps(header).encode()
    text += b" " * (size - len(text) if name == "header" else 0)
    bomb = path.with_name("bomb.fed")
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        for entry, values in {"header": np.frombuffer(text, np.uint8), **arrays}.items():
            with file.open(f"{entry}.npy", "w") as stream:
                np.lib.format.write_array(stream, values)
        if name != "header":
            with file.open(f"{name}.npy", "w") as stream:
                described = {"descr": "|u1", "fortran_order": False, "shape": (size,)}
                np.lib.format.write_array_header_1_0(stream, described)
                for _ in range(size >> 20):
                    stream.write(bytes(1 << 20))
    assert bomb.stat().st_size < LARGE >> 6
    return bomb


def with_header(path: Path, **changed: Any) -> Path:
    """Return a copy of a saved file with other entries in its header."""
    text = json.dumps(json.loads(np.load(path)["header"].tobytes()) | changed)
    return with_entry(path, "header", len(text.encode()), **changed)


READERS: dict[str, Callable[[Path], object]] = {
    "load": Result.load,
    "any": archive.read,
    "inspect": lambda path: run("inspect", path),
    "query": lambda path: run("query", path, "3"),
    "report": lambda path: run("report", path),
    "merge": lambda path: run("merge", path, path.with_name("r.fed")),
}


def run(*arguments: object) -> None:
    """Run a command; raise the error that it ends with, in its words."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        code = command([str(each) for each in arguments])
    assert code == 2, said.getvalue()
    raise UnreadableFileError(said.getvalue())


@pytest.mark.extras  # a report is drawn
@pytest.mark.parametrize("reader", READERS.values(), ids=READERS.keys())
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("zz", "has an entry 'zz'|would fill the memory"),
        ("counters", "header allows|would fill the memory"),
        ("header", "would fill the memory.*make it anew"),
        ("domain_utf8", "would fill the memory"),
    ],
)
def test_a_small_file_fills_no_memory(
    saved: Path, name: str, says: str, reader: Callable[[Path], object]
) -> None:
    small = with_entry(saved, name, 16).rename(saved.with_name("small.fed"))
    # once before: modules take memory, too; some commands read a small entry
    with contextlib.suppress(UnreadableFileError, AssertionError):
        reader(small)
    bomb = with_entry(saved, name, LARGE)
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableFileError, match=says):
            reader(bomb)
        assert tracemalloc.get_traced_memory()[1] < ROOM
    finally:
        tracemalloc.stop()


def test_entries_that_no_such_file_has_are_refused_though_they_are_small(saved: Path) -> None:
    with pytest.raises(UnreadableFileError, match="no file of fedtally-result/2 has an entry 'zz'"):
        Result.load(with_entry(saved, "zz", 16))
    with pytest.raises(UnreadableFileError, match="not a file that fedtally saved"):
        Result.load(with_entry(saved, "zz", 16, listed=False))


def test_a_plan_bounds_its_arrays_though_they_are_small(saved: Path) -> None:
    with pytest.raises(UnreadableFileError, match="its entry counters has .* its header allows"):
        Result.load(with_entry(saved, "counters", 1 << 20))


def test_a_sketch_takes_no_memory_for_counters_that_it_has_not(tmp_path: Path) -> None:
    spec = SketchSpec(rows=3, width=64, schedule="shared", num_rounds=1, seed=bytes(32))
    CountSketch(spec, round=0).save(tmp_path / "s.fed")
    schema, meta, arrays = archive.read(tmp_path / "s.fed")
    archive.write(tmp_path / "s.fed", schema, meta | {"width": 1 << 24}, arrays)
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableFileError, match="counters must be int64 with shape"):
            CountSketch.load(tmp_path / "s.fed")
        assert tracemalloc.get_traced_memory()[1] < ROOM
    finally:
        tracemalloc.stop()


def test_two_entries_of_one_name_are_refused(saved: Path) -> None:
    with zipfile.ZipFile(saved, "a") as file, pytest.warns(UserWarning, match="Duplicate name"):
        file.writestr("counters.npy", file.read("counters.npy"))
    with pytest.raises(UnreadableFileError, match="not a file that fedtally saved"):
        Result.load(saved)


def test_what_is_all_alike_is_written_so_that_it_is_read_again(tmp_path: Path) -> None:
    spec = SketchSpec(rows=3, width=1 << 17, schedule="shared", num_rounds=1, seed=bytes(32))
    empty = CountSketch(spec, round=0)
    empty.save(tmp_path / "empty")
    assert (tmp_path / "empty").stat().st_size > spec.rows * spec.width * 8
    assert CountSketch.load(tmp_path / "empty").vector.shape == (spec.vector_length,)
    archive.write(tmp_path / "words", "thing/1", {"words": ["tea"] * (1 << 16)}, {})
    assert len(archive.read(tmp_path / "words")[1]["words"]) == 1 << 16


def test_sums_are_for_their_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        done = result()
        done.save(tmp_path / "r.fed")
        done.sketches[0].save(tmp_path / "s.fed")
        done.export(tmp_path / "r.csv")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"r.fed": 0o600, "s.fed": 0o600, "r.csv": 0o644}
    # Who gave it to others meant it.
    (tmp_path / "r.fed").chmod(0o640)
    done.save(tmp_path / "r.fed")
    assert stat.S_IMODE((tmp_path / "r.fed").stat().st_mode) == 0o640


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="Linux bounds its memory")
def test_a_device_without_an_end_is_not_read(tmp_path: Path) -> None:
    """What looks for the end of an archive reads it until the memory is gone."""
    (tmp_path / "zeros.fed").symlink_to("/dev/zero")
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    tracemalloc.start()
    resource.setrlimit(resource.RLIMIT_AS, (held + 8 * LARGE, before[1]))  # what it may reach
    try:
        with pytest.raises(UnreadableFileError, match="is not a file that fedtally saved"):
            Result.load(tmp_path / "zeros.fed")
        assert tracemalloc.get_traced_memory()[1] < ROOM
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
        tracemalloc.stop()


def test_numbers_that_are_none_and_parts_that_are_missing_are_damage(saved: Path) -> None:
    """As probes of headers found them: each ended in another error than that of a damaged file."""
    with pytest.raises(UnreadableFileError, match="is damaged"):
        Result.load(with_header(saved, attendance=[float("inf")]))
    with patch.object(saving, "_SLOW", 0):  # else only results of many candidates keep a fit
        found = fedtally.estimate([1, 2] * 9, domain="range:1..2", seed=1, recovery="joint", rows=3)
        found.prepare()
        found.save(saved)
    fit = json.loads(np.load(saved)["header"].tobytes())["fit"]
    with pytest.raises(UnreadableFileError, match="is damaged"):
        Result.load(with_header(saved, fit=fit | {"kappa": []}))
