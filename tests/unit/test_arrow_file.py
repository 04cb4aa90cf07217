"""Arrow reads ahead in threads, and the process ends well all the same."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

from fedtally.sources import streams
from fedtally.sources.streams import ByteStream, arrow_file

ROWS = 5_000_000  # four bytes each: some blocks follow the broken row


@pytest.mark.promise
@pytest.mark.parametrize(
    ("head", "said"),
    [
        ("c,i\na,b,c\n", "row 2: 3, not 2"),
        (f"c,i\na,{'x' * (16 << 20)}\n", "longer than a block"),
    ],
    ids=["ragged", "long"],
)
def test_a_process_ends_well_after_a_broken_row_at_the_top(
    tmp_path: Path, head: str, said: str
) -> None:
    path = tmp_path / "large.csv"
    path.write_text(head + "0,w\n" * ROWS)
    command = [sys.executable, "-m", "fedtally", "estimate", str(path), "--item", "i"]
    # without the wait at the end two of three runs aborted
    for _ in range(3):
        done = subprocess.run([*command, "--client", "c"], capture_output=True, text=True)
        assert done.returncode == 2, done.stderr
        assert said in done.stderr and "Fatal" not in done.stderr


def test_after_the_block_there_are_no_bytes(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes(b"some bytes")
    with ByteStream(str(path), "utf8") as stream:
        with arrow_file(stream) as file:
            assert file.readable()
            assert file.read(4) == b"some"
        assert file.read(4) == b""
        assert stream.read(6) == b" bytes"  # none was lost


def test_the_process_waits_until_arrow_lets_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes(b"some bytes")
    with ByteStream(str(path), "utf8") as stream, arrow_file(stream) as file:
        block: pa.Buffer | None = file.read_buffer(4)
    assert block is not None and block.to_pybytes() == b"some"
    monkeypatch.setattr(streams, "_LET_GO", 0.1)
    assert len(streams._held) == 2  # the file and the block
    start = time.monotonic()
    streams._wait_for_arrow()
    assert time.monotonic() - start >= 0.1  # not for ever
    del file, block
    assert not streams._held
    # nothing is held, so this would wait for a day only if it did not look
    monkeypatch.setattr(streams, "_LET_GO", 86_400)
    streams._wait_for_arrow()
