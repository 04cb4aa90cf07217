"""Arrow reads ahead in threads, and the process ends well all the same."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
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


class Broken(ByteStream):
    """A stream that fails after its first bytes."""

    def read(self, size: int = -1) -> bytes:
        if taken := super().read(4):
            return taken
        raise OSError("the disk is gone")


def broken(tmp_path: Path) -> Broken:
    path = tmp_path / "t.txt"
    path.write_bytes(b"four")
    return Broken(str(path), "utf8")


def ends_with(stream: ByteStream, error: Exception | None) -> list[bytes]:
    """Return what Arrow gets of a stream; in the end `error` is raised, if any."""
    with stream, arrow_file(stream) as file:
        found = [file.read(4), file.read(4), file.read(4)]
        if error is not None:
            raise error
    return found


def test_an_error_of_the_stream_goes_before_one_of_arrow(tmp_path: Path) -> None:
    for error in (None, pa.ArrowInvalid("cut short")):
        with pytest.raises(OSError, match="the disk is gone"):
            ends_with(broken(tmp_path), error)
    whole = ByteStream(str(tmp_path / "t.txt"), "utf8")
    with pytest.raises(pa.ArrowInvalid, match="no number"):
        ends_with(whole, pa.ArrowInvalid("no number"))
    assert ends_with(ByteStream(str(tmp_path / "t.txt"), "utf8"), None) == [b"four", b"", b""]


def test_a_silent_pipe_is_closed_by_the_thread_that_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR)
    os.write(writer, b"some bytes")
    stream = ByteStream(str(path), "utf8")
    got: list[bytes] = []
    thread = threading.Thread(target=lambda: got.append(stream.read_unless_stopped(100)))
    thread.start()
    while not stream.is_reading:
        time.sleep(0.001)
    stream.stop()
    stream.close()  # waits for nobody
    assert not stream._file.closed
    os.write(writer, b", more")  # far less than was asked for
    thread.join()
    os.close(writer)
    assert stream._file.closed and got == [b"some bytes, more"]
    assert stream.read_unless_stopped(1) == b""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_the_child_of_a_fork_waits_for_no_thread(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes(b"some bytes")
    script = """
import os, sys
from fedtally.sources import streams
with streams.ByteStream(sys.argv[1], "utf8") as stream, streams.arrow_file(stream) as file:
    assert streams._held
    if child := os.fork():
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    os._exit(7 if not streams._held else 1)
"""
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (7, "")


def test_the_process_waits_until_arrow_lets_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes(b"some bytes")
    with ByteStream(str(path), "utf8") as stream, arrow_file(stream) as file:
        assert not stream._stopped
        block: pa.Buffer | None = file.read_buffer(4)
    assert block is not None and block.to_pybytes() == b"some"
    # the file and the block, and what tracebacks of other tests hold
    gc.collect()
    assert len(streams._held) >= 2
    for name in ("_LET_GO", "_KEPT"):  # the shorter one ends the wait
        monkeypatch.setattr(streams, name, 0.1)
        start = time.monotonic()
        streams._wait_for_arrow()
        assert 0.1 <= time.monotonic() - start < 10
        monkeypatch.setattr(streams, name, 20)
    # a file that is left open is stopped
    with ByteStream(str(path), "utf8") as stream, arrow_file(stream):
        monkeypatch.setattr(streams, "_KEPT", 0.1)
        streams._wait_for_arrow()
        assert stream._stopped
    before = len(streams._held)
    del file, block
    assert len(streams._held) <= before - 2
    streams._held.clear()
    monkeypatch.setattr(streams, "_stop_all", None)  # is not reached where nothing is held
    streams._wait_for_arrow()
