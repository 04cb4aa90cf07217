"""The number of clients that came lately, in a file of a campaign's folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedtally.campaign import presence


def test_only_the_process_that_runs_a_campaign_is_believed(tmp_path: Path) -> None:
    assert presence.read(tmp_path, 7) is None
    presence.note(tmp_path, 7, 40)
    assert presence.read(tmp_path, 7) == 40
    assert presence.read(tmp_path, 8) is presence.read(tmp_path, None) is None


@pytest.mark.parametrize("text", [b"", b"7", b"7 many", b"\xff \xff", b"7 1 2"])
def test_a_file_that_says_nothing_is_no_error(tmp_path: Path, text: bytes) -> None:
    (tmp_path / presence.FILE).write_bytes(text)
    assert presence.read(tmp_path, 7) is None


def test_a_folder_that_cannot_be_written_ends_no_run(tmp_path: Path) -> None:
    presence.note(tmp_path / "gone", 7, 40)
    assert not (tmp_path / "gone").exists()
