"""Files that hold arrays and a JSON header: NumPy's .npz, without pickled objects.

A file is written whole or not at all.
"""

from __future__ import annotations

import io
import json
import os
import stat
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from fedtally import _validate
from fedtally._sync import sync
from fedtally.errors import InvalidInputError, UnreadableFileError

_HEADER = "header"  # the name of the entry that holds the JSON
_FOREIGN = (
    "is not a file that fedtally saved, or it is damaged: name a file of --save or of"
    " `fedtally campaign result --output` (a plan ends in .toml or .json)"
)


def write(
    path: str | os.PathLike[str],
    schema: str,
    meta: Mapping[str, Any],
    arrays: Mapping[str, npt.NDArray[Any]],
) -> None:
    """Write the arrays and the JSON-able `meta` under the name and version `schema`.

    Raises:
        InvalidInputError: the folder does not exist or is not writable.
    """
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, **_entries(schema, meta, arrays))


def pack(
    schema: str,
    meta: Mapping[str, Any],
    arrays: Mapping[str, npt.NDArray[Any]],
    *,
    level: int | None = None,
    most_shrunk: Mapping[str, int] | None = None,
) -> bytes:
    """Return the bytes of a file like that of `write`.

    Args:
        schema: as for `write`.
        meta: as for `write`.
        arrays: as for `write`.
        level: how much they are compressed, 1 to 9; None: as those of `write`.
        most_shrunk: by how many times some entries may shrink. One that shrinks more stays as it
            is, so that who unpacks can refuse what grows that much.
    """
    entries = _entries(schema, meta, arrays)
    packed, shrunk = _packed(entries, level, frozenset())
    wide = {name for name, most in (most_shrunk or {}).items() if shrunk.get(name, 0) > most}
    return _packed(entries, level, wide)[0] if wide else packed


def _packed(
    entries: Mapping[str, Any], level: int | None, plain: AbstractSet[str]
) -> tuple[bytes, dict[str, float]]:
    """Return the bytes of entries, and by how many times each shrank; some are not compressed."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=level) as file:
        for name, values in entries.items():
            file.compression = zipfile.ZIP_STORED if name in plain else zipfile.ZIP_DEFLATED
            with file.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, values, allow_pickle=False)
        sizes = {
            each.filename.removesuffix(".npy"): each.file_size / each.compress_size
            for each in file.infolist()
        }
    return packed.getvalue(), sizes


def _entries(
    schema: str, meta: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]
) -> dict[str, Any]:
    header = np.frombuffer(
        json.dumps({"schema": schema, "arrays": sorted(arrays), **meta}).encode(), np.uint8
    )
    entries = {name: np.asarray(values) for name, values in arrays.items()}
    if any(values.dtype.hasobject for values in entries.values()):
        raise TypeError("arrays of Python objects would be pickled")
    return {_HEADER: header, **entries}


class replacing:  # noqa: N801 - a context manager, read as a verb
    """Context that yields a temporary path beside `path`.

    On success the temporary file is written through to the disk and replaces `path`, on failure it
    is deleted.

    >>> import pathlib, tempfile
    >>> target = pathlib.Path(tempfile.mkdtemp()) / "figures.txt"
    >>> with replacing(target) as temporary:
    ...     _ = pathlib.Path(temporary).write_text("42")
    >>> target.read_text()
    '42'
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(os.path.realpath(path))  # a link's target is replaced, not the link

    def __enter__(self) -> str:
        try:
            self._mode = self._existing_mode()
            handle, self._temporary = tempfile.mkstemp(
                prefix=".fedtally-", suffix=self._path.suffix, dir=self._path.parent
            )
        except OSError as error:
            raise InvalidInputError(
                f"cannot write {self._path}: {error.strerror}; choose a folder that exists and is"
                " writable"
            ) from error
        os.close(handle)
        return self._temporary

    def _existing_mode(self) -> int:
        """Return the permissions that the file keeps, or gets by the umask if it is new."""
        if not self._path.exists():
            # The umask can be read only by setting it.
            mask = os.umask(0)
            os.umask(mask)
            return 0o666 & ~mask
        if not self._path.is_file():
            kind = "a folder" if self._path.is_dir() else "a device or a pipe"
            raise InvalidInputError(f"cannot write {self._path}: it is {kind}; name a file")
        mode = stat.S_IMODE(self._path.stat().st_mode)
        if not mode & 0o222:
            raise InvalidInputError(
                f"cannot write {self._path}: it is read-only; name another file, or allow writing"
            )
        return mode

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        if kind is not None:
            os.unlink(self._temporary)
            if isinstance(error, OSError):
                raise InvalidInputError(
                    f"cannot write {self._path}: {error.strerror or error}"
                ) from error
            return
        try:
            os.chmod(self._temporary, self._mode)
            sync(self._temporary)  # before it has the name: a loss of power leaves one of the two
            os.replace(self._temporary, self._path)
        except OSError as error:
            os.unlink(self._temporary)
            raise InvalidInputError(f"cannot write {self._path}: {error.strerror}") from error


def read(
    path: str | os.PathLike[str], schema: str | None = None
) -> tuple[str, dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Return the schema, the header and the arrays of a file written by `write`.

    Raises:
        UnreadableFileError: the file does not exist, is of another format, is damaged, or is not of
            the schema that was asked for.
    """
    name = os.fspath(path)
    try:
        with open(path, "rb") as stream:
            return _load(stream, name, schema)
    except FileNotFoundError:
        hint = _validate.did_you_mean_file(name)
        raise UnreadableFileError(f"there is no file {name}{hint}") from None
    except OSError as error:
        raise UnreadableFileError(f"{name} {_FOREIGN}") from error


def unpack(
    data: bytes,
    name: str,
    schema: str,
    check: Callable[[Mapping[str, tuple[int, int]]], None] | None = None,
) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Return the header and the arrays of the bytes that `pack` returned.

    Args:
        data: the bytes.
        name: the name of their file or place in messages.
        schema: the schema that they must have.
        check: raises an error if bytes of unknown origin would take too much memory. It is called
            before any entry is read, with the sizes of each: unpacked and packed, in bytes.

    Raises:
        UnreadableFileError: as for `read`.
    """
    _, meta, arrays = _load(io.BytesIO(data), name, schema, check)
    return meta, arrays


def _load(
    stream: IO[bytes],
    name: str,
    schema: str | None,
    check: Callable[[Mapping[str, tuple[int, int]]], None] | None = None,
) -> tuple[str, dict[str, Any], dict[str, npt.NDArray[Any]]]:
    try:
        with np.load(stream, allow_pickle=False) as file:
            if check is not None:  # no more bytes are unpacked than an entry says here
                check(
                    {
                        entry.filename.removesuffix(".npy"): (entry.file_size, entry.compress_size)
                        for entry in file.zip.infolist()
                    }
                )
            arrays = {entry: file[entry] for entry in file.files}
        meta = json.loads(arrays.pop(_HEADER).tobytes())
        found = meta.pop("schema")
        if not isinstance(found, str) or sorted(arrays) != meta.pop("arrays"):
            raise ValueError("other arrays than the header names")
    # On damaged bytes zip, zlib, NumPy and JSON raise many kinds of errors: no list would be whole.
    except Exception as error:
        raise UnreadableFileError(f"{name} {_FOREIGN}") from error
    if schema is not None and found != schema:
        raise UnreadableFileError(f"{name} holds {found}, expected {schema}")
    return found, meta, arrays
