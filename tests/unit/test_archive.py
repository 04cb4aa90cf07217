"""Saved files: what is written comes back, damage is named, nothing is unpickled, writing is all or
nothing."""

from __future__ import annotations

import gc
import io
import json
import os
import stat
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from fedtally.base import archive
from fedtally.errors import InvalidInputError, UnreadableFileError

ARRAYS: dict[str, npt.NDArray[Any]] = {
    "a": np.arange(12).reshape(3, 4),
    "empty": np.empty((0, 2)),
    "f": np.array([0.5]),
}
META = {"width": 4, "text": "日本", "nested": {"x": [1, None, 0.1]}}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "saved.npz"
    archive.write(path, "thing/1", META, ARRAYS)
    return path


def same(path: Path) -> bool:
    schema, meta, arrays = archive.read(path)
    equal = all(
        arrays[k].dtype == v.dtype and np.array_equal(arrays[k], v) for k, v in ARRAYS.items()
    )
    return schema == "thing/1" and meta == META and arrays.keys() == ARRAYS.keys() and equal


def test_round_trip(saved: Path) -> None:
    assert same(saved)
    assert archive.read(str(saved), "thing/1")[0] == "thing/1"


def test_name_is_kept_as_given(tmp_path: Path) -> None:
    for name in ("plain", "with.ending", "ünï"):
        archive.write(tmp_path / name, "thing/1", {}, {})
        assert archive.read(tmp_path / name) == ("thing/1", {}, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plain", "with.ending", "ünï"]


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        archive.write(tmp_path / "file", "thing/1", {}, {})
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


@pytest.mark.parametrize("schema", ["thing/2", "other/1", "thing"])
def test_other_schema_is_named(saved: Path, schema: str) -> None:
    with pytest.raises(UnreadableFileError, match=f"holds thing/1, expected {schema}"):
        archive.read(saved, schema)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFileError, match="no file"):
        archive.read(tmp_path / "nothing")
    with pytest.raises(UnreadableFileError):
        archive.read(tmp_path)


def test_every_truncation_is_refused(saved: Path) -> None:
    whole = saved.read_bytes()
    for length in range(len(whole)):
        saved.write_bytes(whole[:length])
        with pytest.raises(UnreadableFileError):
            archive.read(saved)


@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_a_damaged_byte_is_refused_or_harmless(saved: Path, mask: int) -> None:
    """The checksums of zip see every change of content; a member's date may change unseen, without
    effect."""
    whole = saved.read_bytes()
    refused = 0
    for at in range(len(whole)):
        saved.write_bytes(whole[:at] + bytes([whole[at] ^ mask]) + whole[at + 1 :])
        try:
            assert same(saved), at
        except UnreadableFileError:
            refused += 1
    assert refused > len(whole) / 2


def test_damaged_files_are_closed(saved: Path) -> None:
    saved.write_bytes(saved.read_bytes()[:-30])
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    with pytest.raises(UnreadableFileError) as caught:
        archive.read(saved)
    after = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    assert after <= before, f"still open after {caught.value}"  # garbage may close meanwhile
    del caught
    gc.collect()


def npy(array: npt.NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=array.dtype == object)
    return buffer.getvalue()


FOREIGN = {
    "empty": b"",
    "text": b"item,count\ntea,3\n",
    "json": b'{"schema": "thing/1"}',
    "npy": npy(np.arange(3)),
    "pickle": b"\x80\x04K\x01.",
    "zip-without-members": b"PK\x05\x06" + bytes(18),
}


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN.keys())
def test_foreign_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "foreign"
    path.write_bytes(content)
    with pytest.raises(UnreadableFileError, match="foreign is not a file that fedtally saved") as e:
        archive.read(path)
    assert "name a file of --save" in str(e.value)


def header(value: Any) -> npt.NDArray[np.uint8]:
    return np.frombuffer(
        value if isinstance(value, bytes) else json.dumps(value).encode(), np.uint8
    )


@pytest.mark.parametrize(
    "arrays",
    [
        {"a": np.arange(3)},
        {"header": header({"width": 3})},
        {"header": header(["schema"])},
        {"header": header(7)},
        {"header": header(b"{")},
        {"header": header(b"\xff\xfe")},
        {"header": np.array([], np.uint8)},
    ],
    ids=["none", "no-schema", "list", "number", "cut", "not-utf8", "empty"],
)
def test_archives_without_a_good_header_are_refused(tmp_path: Path, arrays: dict[str, Any]) -> None:
    path = tmp_path / "foreign.npz"
    np.savez(path, **arrays)
    with pytest.raises(UnreadableFileError):
        archive.read(path)


class Trap:
    """Creates a file when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (str(self.path), "w")


@pytest.mark.parametrize("member", ["header", "counters"])
def test_pickles_are_never_loaded(tmp_path: Path, member: str) -> None:
    sprung, path = tmp_path / "sprung", tmp_path / "trap.npz"
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr(f"{member}.npy", npy(np.array([Trap(sprung)], object)))
        if member != "header":
            packed.writestr("header.npy", npy(header({"schema": "thing/1"})))
    with pytest.raises(UnreadableFileError):
        archive.read(path)
    assert not sprung.exists()


class Broken:
    """Cannot become an array, which shows only after the first members were written."""

    def __array__(self, *_: Any, **__: Any) -> npt.NDArray[Any]:
        raise RuntimeError("disk on fire")


def test_a_failed_write_leaves_the_old_file_alone(saved: Path) -> None:
    before = saved.read_bytes()
    with pytest.raises(RuntimeError, match="disk on fire"):
        archive.write(saved, "thing/1", {}, {"a": np.zeros(10_000), "b": Broken()})  # type: ignore[dict-item]
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == [saved.name]


def test_a_failed_replacement_leaves_nothing_behind(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError("no")

    before = saved.read_bytes()
    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises((OSError, InvalidInputError)):
        archive.write(saved, "thing/1", {}, {})
    monkeypatch.undo()
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == [saved.name]


def test_a_file_is_on_the_disk_before_it_has_its_name(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, replace, sync = [], os.replace, os.fsync

    def replaced(source: str, target: Path) -> None:
        done.append("replace")
        replace(source, target)

    def synced(handle: int) -> None:
        done.append(os.readlink(f"/proc/self/fd/{handle}"))
        sync(handle)

    monkeypatch.setattr(os, "replace", replaced)
    monkeypatch.setattr(os, "fsync", synced)
    with archive.replacing(saved) as temporary:
        Path(temporary).write_text("new")
    assert done == [temporary, "replace"]
    assert saved.read_text() == "new"


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path, tmp_path / "missing" / "x", tmp_path / "file" / "x"):
        with pytest.raises(InvalidInputError, match="cannot write"):
            archive.write(path, "thing/1", {}, {})
    assert os.listdir(tmp_path) == ["file"]


def test_a_link_keeps_pointing_at_what_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    archive.write(tmp_path / "link", "thing/1", META, ARRAYS)
    assert (tmp_path / "link").is_symlink()
    assert same(tmp_path / "target")


def test_devices_and_pipes_are_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/null")):
        with pytest.raises(InvalidInputError, match="it is a device or a pipe"):
            archive.write(path, "thing/1", META, ARRAYS)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_objects_are_not_pickled(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="would be pickled"):
        archive.write(tmp_path / "file", "thing/1", {}, {"a": np.array([object()])})
    assert not list(tmp_path.iterdir())


def test_permissions_of_an_existing_file_stay(saved: Path) -> None:
    saved.chmod(0o600)
    archive.write(saved, "thing/1", META, ARRAYS)
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    saved.chmod(0o400)
    with pytest.raises(InvalidInputError, match="it is read-only"):
        archive.write(saved, "thing/1", META, ARRAYS)


def test_a_name_that_is_too_long(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="cannot write"):
        archive.write(tmp_path / ("x" * 300), "thing/1", META, ARRAYS)
