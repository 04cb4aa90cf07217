"""Tests of the framing of an agent's pipe."""

import asyncio

import pytest
from cases import each_case

from fedtally.campaign.transports.pipe import PipeClosedError, PipeError, read_frame, write_frame


def read(data: bytes, most: int = 100, times: int = 1) -> list[bytes]:
    async def run() -> list[bytes]:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        return [await read_frame(reader, most) for _ in range(times)]

    return asyncio.run(run())


def written(*frames: bytes) -> bytes:
    class Sink:
        data = b""

        def write(self, data: bytes) -> None:
            self.data += data

        async def drain(self) -> None:
            pass

    async def run() -> bytes:
        sink = Sink()
        for frame in frames:
            await write_frame(sink, frame)  # type: ignore[arg-type]
        return sink.data

    return asyncio.run(run())


def test_frames_follow_each_other_and_no_answer_is_the_length_0() -> None:
    assert written(b"abc", b"") == b"\x03\0\0\0abc\0\0\0\0"
    assert read(written(b"abc", b"", b"x" * 100), times=3) == [b"abc", b"", b"x" * 100]


@each_case(
    ("data", "error", "says"),
    [
        (b"", PipeClosedError, "closed after 0 of 1"),
        (b"\x03\0", PipeError, "after 1 of 3"),
        (b"\x03\0\0\0", PipeError, "after 0 of 3"),
        (b"\x03\0\0\0ab", PipeError, "after 2 of 3"),
        (b"\x65\0\0\0" + bytes(101), PipeError, "101 bytes was announced, and 100"),
        (b"\xff\xff\xff\xff", PipeError, "4294967295 bytes"),
    ],
)
def test_a_frame_that_is_cut_or_too_long(data: bytes, error: type[Exception], says: str) -> None:
    with pytest.raises(PipeError, match=says) as caught:
        read(data)
    assert type(caught.value) is error


def test_a_connection_that_broke_is_a_pipe_error() -> None:
    async def run() -> None:
        reader = asyncio.StreamReader()
        reader.set_exception(ConnectionResetError(104, "reset"))
        with pytest.raises(PipeError, match="reset"):
            await read_frame(reader, 100)

    asyncio.run(run())

    class Broken:
        def write(self, data: bytes) -> None:
            raise BrokenPipeError(32, "broken")

    with pytest.raises(PipeError, match="broken"):
        asyncio.run(write_frame(Broken(), b"x"))  # type: ignore[arg-type]


def test_a_frame_whose_length_does_not_fit_is_not_sent() -> None:
    class Long(bytes):
        def __len__(self) -> int:
            return 2**32

    with pytest.raises(PipeError, match="4294967296 bytes has no length of 4 bytes"):
        written(Long())
