"""Another user plants a link where somebody saves, and so has a file of theirs overwritten.

Attack 10: a program that follows links itself goes past the protection of the kernel.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from campaign_world import plan_of

import fedtally
from fedtally.base import archive, links
from fedtally.base.links import real_path
from fedtally.errors import InvalidInputError
from fedtally.store import ClientRecord, StoreError
from fedtally.store.marks import hold_mark

STRANGER = 54321
Plant = Callable[[Path, "Path | str"], None]


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Plant:
    """Return what makes a link that is another user's."""

    def planted(link: Path, target: Path | str) -> None:
        link.symlink_to(target)
        if os.geteuid() == 0:
            os.lchown(link, STRANGER, STRANGER)
        else:  # who cannot give a link away is another user than the one who made it
            monkeypatch.setattr(links.os, "geteuid", lambda: STRANGER)

    return planted


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "private"
    path.write_text("precious\n")
    return path


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder like /tmp."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def _export(path: Path) -> None:
    fedtally.estimate([1, 2], domain=fedtally.IntegerRange(1, 9), seed=1).export(path)


WRITERS: dict[str, Callable[[Path], object]] = {
    "plan.toml": lambda path: plan_of().save(path),
    "r.fed": lambda path: archive.write(path, "thing/1", {}, {}),
    "r.csv": _export,
    "words": lambda path: _written(path),
}


def _written(path: Path) -> None:
    with archive.replacing(path) as temporary:
        Path(temporary).write_text("new")


@pytest.mark.parametrize("name", WRITERS)
def test_a_planted_link_is_not_followed(
    name: str, shared: Path, victim: Path, plant: Plant
) -> None:
    plant(shared / name, victim)
    with pytest.raises(InvalidInputError, match=r"is a link of user \d+ to .*and is not followed"):
        WRITERS[name](shared / name)
    assert victim.read_text() == "precious\n"
    assert os.listdir(shared) == [name]


def test_neither_is_one_on_the_way(shared: Path, tmp_path: Path, plant: Plant) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("precious\n")
    plant(shared / "there", "../folder")
    (tmp_path / "mine").symlink_to(shared / "there" / "file")
    for path in (shared / "there" / "file", shared / "there" / ".." / "folder" / "file"):
        with pytest.raises(InvalidInputError, match="is not followed"):
            _written(path)
    with pytest.raises(InvalidInputError, match="is not followed"):
        _written(tmp_path / "mine")
    assert (tmp_path / "folder" / "file").read_text() == "precious\n"


def test_the_mark_of_a_record_is_none(shared: Path, victim: Path, plant: Plant) -> None:
    plant(shared / "record.mark", victim)
    with pytest.raises(InvalidInputError, match="is not followed"):
        ClientRecord.open(shared / "record.db", create=True, mark=shared / "record.mark")
    assert victim.read_text() == "precious\n"


def test_the_lock_beside_a_mark_is_none(shared: Path, tmp_path: Path, plant: Plant) -> None:
    (tmp_path / "other").mkdir()
    plant(shared / ".record.mark.lock", tmp_path / "other" / "made")
    with (
        pytest.raises(StoreError, match="cannot write the mark"),
        hold_mark(shared / "record.mark"),
    ):
        pass
    assert not (tmp_path / "other" / "made").exists()


def test_ones_own_links_and_those_of_a_closed_folder_are_followed(
    shared: Path, tmp_path: Path, victim: Path, plant: Plant
) -> None:
    """The mark may lie on another disk, and so may a file of results."""
    (shared / "mine").symlink_to(victim)
    assert real_path(shared / "mine") == victim
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o755)
    if os.geteuid() == 0:  # an owner's folder, in which another user once made a link
        plant(closed / "theirs", victim)
        assert real_path(closed / "theirs") == victim
        os.chmod(closed, 0o775)
        with pytest.raises(InvalidInputError, match="is not followed"):
            real_path(closed / "theirs")
    _written(shared / "mine")
    assert victim.read_text() == "new" and (shared / "mine").is_symlink()


def test_paths_are_those_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "up").symlink_to("a/b")
    (tmp_path / "round").symlink_to("round")
    (tmp_path / "gone").symlink_to("a/nobody")
    monkeypatch.chdir(tmp_path)
    for path in ("up/../x", "up/x", "./a/./b", "gone", "nothing/x", "..", "up/../../y", "/"):
        assert str(real_path(path)) == os.path.realpath(path), path
    with pytest.raises(InvalidInputError, match="symbolic links"):
        real_path("round")
