"""How a stream of bytes between an engine and an agent carries frames (messages) of the protocol.

A frame is sent as its length (4 bytes, little-endian), and then its bytes. An answer has the same
form; the length 0 means that there is no answer. One connection may carry many frames, one after
the other.
"""

from __future__ import annotations

import asyncio

from fedtally.errors import FedtallyError

LENGTH_BYTES = 4


class PipeError(FedtallyError):
    """Say that a frame could not be read or sent.

    The pipe broke, or the frame is too long or came too slowly. The rest of the connection cannot
    be used, so the caller must close it.
    """


class PipeClosedError(PipeError):
    """The other side closed the pipe between two frames."""


async def read_frame(
    reader: asyncio.StreamReader, most: int, seconds: float | None = None
) -> bytes:
    """Return the next frame of a connection.

    A frame of length 0, so empty bytes, means that the other side has no answer.

    Args:
        reader: the reader of the connection.
        most: the most bytes that a frame may have. A longer frame is refused before it is read.
        seconds: how long it may take to read a frame after its first byte, in seconds; None: no
            limit. The wait for the first byte has no limit; if one is needed, use `asyncio.timeout`
            around the call.

    Raises:
        PipeClosedError: the pipe was closed before the first byte of the frame.
        PipeError: the frame is longer than `most`, it takes longer than `seconds`, the pipe was
            closed within the frame, or the pipe broke at any time.
    """
    first = await _exactly(reader, 1, PipeClosedError)
    try:
        async with asyncio.timeout(seconds):
            rest = await _exactly(reader, LENGTH_BYTES - 1, PipeError)
            length = int.from_bytes(first + rest, "little")
            if length > most:
                raise PipeError(f"a frame of {length} bytes was announced, and {most} are the most")
            return await _exactly(reader, length, PipeError)
    except TimeoutError:
        raise PipeError(f"a frame did not arrive whole within {seconds} seconds") from None


async def write_frame(writer: asyncio.StreamWriter, frame: bytes) -> None:
    """Send a frame, and wait until the stream has room for the next one.

    Empty bytes tell the other side that there is no answer.

    Raises:
        PipeError: the pipe broke, or the frame has 2^32 bytes or more.
    """
    if len(frame) >= 2 ** (8 * LENGTH_BYTES):
        raise PipeError(f"a frame of {len(frame)} bytes has no length of {LENGTH_BYTES} bytes")
    try:
        writer.write(len(frame).to_bytes(LENGTH_BYTES, "little") + frame)
        await writer.drain()
    except OSError as error:
        raise PipeError(f"the pipe was closed: {error.strerror or error}") from error


async def _exactly(reader: asyncio.StreamReader, size: int, if_nothing: type[PipeError]) -> bytes:
    """Return the next `size` bytes of a stream.

    Args:
        reader: the stream.
        size: the number of bytes.
        if_nothing: the error to raise if the stream ends before the first of these bytes.

    Raises:
        PipeError: the stream ends within the bytes, or breaks.
    """
    try:
        return await reader.readexactly(size)
    except asyncio.IncompleteReadError as error:
        kind = PipeError if error.partial else if_nothing
        raise kind(f"the pipe was closed after {len(error.partial)} of {size} bytes") from None
    except OSError as error:
        raise PipeError(f"the pipe broke: {error.strerror or error}") from error
