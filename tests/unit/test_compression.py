"""Compressed files are read whole, or they are refused: nothing of them is left out in silence."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtally.errors import UnreadableFileError
from fedtally.sources import open_source
from fedtally.sources.compression import DamagedError, named, recognised

PACK: dict[str, Callable[[bytes], bytes]] = {
    "gz": lambda content: gzip.compress(content, mtime=0),
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda content: pa.compress(content, "zstd", asbytes=True),
}
KINDS = {"gz": "gzip", "bz2": "bzip2", "xz": "xz", "zst": "zstd"}
SKIPPABLE = b"\x5a\x2a\x4d\x18\x03\x00\x00\x00any"  # a frame of zstd that holds no content
PARTS = [b"tea\nrice\n", b"", b"milk\n", b"".join(b"%d\n" % n for n in range(400))]
WHOLE = b"".join(PARTS)
every_end = pytest.mark.parametrize("end", PACK)


def unpacked(end: str, content: bytes, size: int = 1 << 16) -> bytes:
    """Return what a file of this name holds, which is read `size` bytes at a time.

    It raises DamagedError where the file is refused.
    """
    kind = named(f"x.{end}")
    assert kind is not None
    kind.check(content[:16])
    stream, parts = kind.stream(io.BytesIO(content)), []
    while block := stream.read(size):
        parts.append(block)
    return b"".join(parts)


def refused(end: str, content: bytes) -> bool:
    try:
        unpacked(end, content)
    except DamagedError:
        return True
    return False


@every_end
def test_streams_behind_one_another_are_one_file(end: str) -> None:
    packed = b"".join(PACK[end](part) for part in PARTS)
    for size in (1, 5, 1 << 16):
        assert unpacked(end, packed, size) == WHOLE
    assert unpacked(end, PACK[end](b"")) == b""  # a file that holds nothing
    assert unpacked(end, PACK[end](b"") * 3 + packed) == WHOLE


@pytest.mark.parametrize(
    ("end", "between"),
    [
        *[("gz", bytes(1)), ("gz", bytes(70_000)), ("xz", bytes(4)), ("xz", bytes(140_000))],
        *[("zst", SKIPPABLE), ("zst", SKIPPABLE * 3)],
    ],
)
def test_what_a_format_allows_between_streams_is_skipped(end: str, between: bytes) -> None:
    packed = between.join(PACK[end](part) for part in PARTS)
    assert unpacked(end, packed) == unpacked(end, packed + between) == WHOLE
    if end == "zst":  # a frame without content may stand first, as pzstd writes it
        assert unpacked(end, between + packed) == WHOLE
        assert recognised(between + packed) == named("x.zst")
    else:
        assert refused(end, between + packed)


@pytest.mark.parametrize("end", ["gz", "bz2", "xz", "zst"])
@pytest.mark.parametrize("junk", [b"x", b"some other bytes", b"\0" * 3, b"\0\0\0\0BZ", b"\x1f"])
def test_other_bytes_between_streams_or_behind_them_are_refused(end: str, junk: bytes) -> None:
    one, other = PACK[end](WHOLE), PACK[end](b"cocoa\n")
    allowed = end == "gz" and not junk.strip(b"\0")
    for content in (one + junk + other, one + junk):
        assert allowed or refused(end, content)
    for shorter in range(1, len(other)):  # the start of a stream, and no more
        assert refused(end, one + other[:shorter]), shorter


@every_end
def test_a_file_that_was_cut_is_refused_wherever_it_was_cut(end: str) -> None:
    packed = [PACK[end](part) for part in PARTS]
    seams = {sum(map(len, packed[:n])): b"".join(PARTS[:n]) for n in range(1, len(packed) + 1)}
    content = b"".join(packed)
    for length in range(len(content)):
        if length in seams:  # the file of fewer streams is as whole as this one
            assert unpacked(end, content[:length]) == seams[length]
        else:
            assert refused(end, content[:length]), length


@every_end
def test_one_flipped_bit_of_a_header_loses_nothing(end: str) -> None:
    """A flip is found, or it is of a field that says nothing of the content, as gzip's time."""
    parts = [PACK[end](part) for part in PARTS[:3]]
    starts = [0, len(parts[0]), len(parts[0]) + len(parts[1])]
    content = b"".join(parts)
    places = range(len(content)) if end != "zst" else [s + k for s in starts for k in range(9)]
    found = 0
    for place in places:
        for bit in range(8):
            damaged = bytearray(content)
            damaged[place] ^= 1 << bit
            try:
                held = unpacked(end, bytes(damaged))
            except DamagedError:
                found += 1
            else:
                assert held == b"".join(PARTS[:3]), (place, bit)
    assert found > len(places) * 8 // 2


PADDING = {
    "gz": [b"\0"],
    "bz2": [],
    "xz": [bytes(4)],
    "zst": [SKIPPABLE, b"\x50\x2a\x4d\x18" + bytes(4)],
}
segments = st.lists(
    st.one_of(
        st.tuples(st.just("stream"), st.binary(max_size=40)),
        st.tuples(st.just("padding"), st.integers(0, 1).map(lambda n: bytes([n]))),
        st.tuples(st.just("junk"), st.binary(max_size=9).map(lambda rest: b"x" + rest)),
    ),
    max_size=5,
)


@settings(max_examples=300)
@given(
    st.sampled_from(sorted(PACK)), st.binary(max_size=40), segments, st.integers(1, 99), st.data()
)
def test_a_file_is_read_whole_exactly_if_it_is_legal(
    end: str, first: bytes, drawn: list[tuple[str, bytes]], size: int, data: st.DataObject
) -> None:
    """Streams, padding and junk in any order, cut anywhere: the segments say what is legal."""
    parts: list[tuple[bytes, bytes | None]] = [
        (PACK[end](first), first)
    ]  # the bytes of a segment, and what they hold; None: junk
    for kind, content in drawn:
        if kind == "stream":
            parts.append((PACK[end](content), content))
        elif kind == "junk":
            parts.append((content, None))
        elif PADDING[end]:
            parts.append((PADDING[end][content[0] % len(PADDING[end])], b""))
    length = sum(len(segment) for segment, _ in parts)
    cut = length - data.draw(st.integers(0, length), label="bytes that are cut off")
    kept, held, is_legal = b"", b"", cut > 0
    for segment, content in parts:
        room = cut - len(kept)
        is_legal &= not (room > 0 and content is None) and not 0 < room < len(segment)
        held += content or b"" if room >= len(segment) else b""
        kept += segment[: max(0, room)]
    if is_legal:
        assert unpacked(end, kept, size) == held
    else:
        assert refused(end, kept)


@pytest.mark.parametrize("private", [False, True])
@every_end
def test_a_table_is_refused_with_its_name_and_none_of_it_is_counted(
    tmp_path: Path, end: str, private: bool
) -> None:
    path = tmp_path / f"t.csv.{end}"
    path.write_bytes(PACK[end](b"item\ntea\n") + b"other bytes" + PACK[end](b"rice\n"))
    with pytest.raises(UnreadableFileError, match=rf"t\.csv\.{end} is no intact {KINDS[end]} file"):
        list(open_source(str(path)).batches(private=private))
    path.write_bytes(b"")  # no writer of such files leaves one that is empty
    with pytest.raises(UnreadableFileError, match=f"no intact {KINDS[end]} file: it is empty"):
        list(open_source(str(path)).batches(private=private))


@pytest.mark.parametrize(
    "end", ["csv.lz4", "csv.br", "txt.Z", "csv.lzma", "csv.gz.gz", "csv.xz.bz2"]
)
def test_a_compression_that_is_not_read_is_refused_by_name(tmp_path: Path, end: str) -> None:
    path = tmp_path / f"t.{end}"
    path.write_bytes(b"item\ntea\n")
    with pytest.raises(UnreadableFileError, match="unpack it, or compress it as"):
        open_source(str(path))


def as_parquet(words: Sequence[str], **options: Any) -> bytes:
    file = io.BytesIO()
    parquet.write_table(pa.table({"item": words}), file, **options)
    return file.getvalue()


def as_feather(words: Sequence[str], **options: Any) -> bytes:
    file = io.BytesIO()
    feather.write_feather(pa.table({"item": words}), file, **options)
    return file.getvalue()


@pytest.mark.parametrize(("end", "write"), [("parquet", as_parquet), ("feather", as_feather)])
@pytest.mark.parametrize("others", [["b"] * 5, ["b"] * 500, list("fghijklm")])
def test_binary_tables_behind_one_another_are_refused(
    tmp_path: Path, end: str, write: Callable[[Sequence[str]], bytes], others: list[str]
) -> None:
    """`cat` makes no table of them: their readers would find the rows of one alone."""
    path = tmp_path / f"t.{end}"
    for content in (write(["a"] * 5) + write(others), write(others) + write(["a"] * 5)):
        path.write_bytes(content)
        with pytest.raises(UnreadableFileError, match=r"t\."):
            list(open_source(str(path)).batches())
    path.write_bytes(write(others) * 3)
    with pytest.raises(UnreadableFileError, match="several files behind one another"):
        list(open_source(str(path)).batches())


@pytest.mark.parametrize(
    ("end", "content"),
    [
        ("parquet", as_parquet(["PAR1PAR1"] * 50, write_page_index=True, row_group_size=7)),
        ("parquet", as_parquet(["PAR1PAR1"] * 50, compression="none", use_dictionary=False)),
        ("feather", as_feather(["ARROW1ARROW1\0\0"] * 50, chunksize=7)),
        ("feather", as_feather(["ARROW1ARROW1\0\0"] * 50, compression="uncompressed")),
    ],
)
def test_a_binary_table_may_hold_any_words(tmp_path: Path, end: str, content: bytes) -> None:
    for name, written in ((f"t.{end}", content), (f"t.{end}.gz", gzip.compress(content))):
        (tmp_path / name).write_bytes(written)
        assert sum(map(len, open_source(str(tmp_path / name)).batches())) == 50
