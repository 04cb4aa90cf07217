"""Files with arrays and a JSON header, in NumPy's format .npz without pickled objects.

`write` and `replacing` write a file completely or not at all. With `drafted` a folder is made
completely or not at all.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import stat
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from fedtally.base import validate
from fedtally.base.links import real_path
from fedtally.base.sync import sync
from fedtally.errors import InvalidInputError, UnreadableFileError, reason

_HEADER = "header"  # the name of the entry with the JSON
# A small compressed file must not fill the memory of its reader. So an entry may unpack to at most
# 1 MiB or 100 times its packed bytes, whichever is more. An entry that would shrink more is written
# uncompressed. The header's limits are lower, since parsed JSON takes 20 times its length in
# memory. Arrays of consecutive ids shrink about 5 times, headers about 9 times.
_ALWAYS, _RATIO = 1 << 20, 100
_HEADER_ALWAYS, _HEADER_RATIO = 1 << 16, 16
_ENTRY = 1 << 10  # the most bytes of the .npy header that each entry has before its values
_FOREIGN = (
    "is not a file that fedtally saved, or it is damaged: name a file of --save or of"
    " `fedtally campaign result --output` (a plan ends in .toml or .json)"
)


def write(
    path: str | os.PathLike[str],
    schema: str,
    meta: Mapping[str, Any],
    arrays: Mapping[str, npt.NDArray[Any]],
    *,
    private: bool = False,
) -> None:
    """Write arrays and a header to a file, completely or not at all.

    Args:
        path: the path of the file.
        schema: the name and version of the format.
        meta: the header: values that JSON can represent.
        arrays: the arrays of numbers, by name.
        private: whether only the owner may read a new file, whatever the umask is. A file that
            exists already keeps its permissions.

    Raises:
        InvalidInputError: the path goes through a link that somebody else may have planted, or the
            file cannot be written.
    """
    with replacing(path, private=private) as temporary, open(temporary, "wb") as file:
        _put(file, _entries(schema, meta, arrays), None)


def pack(
    schema: str,
    meta: Mapping[str, Any],
    arrays: Mapping[str, npt.NDArray[Any]],
    *,
    level: int | None = None,
) -> bytes:
    """Return what `write` would write to a file, as bytes.

    Args:
        schema: the name and version of the format.
        meta: the header: values that JSON can represent.
        arrays: the arrays of numbers, by name.
        level: the compression level of zlib, 1 (fastest) to 9; None: its default, as in `write`.
    """
    packed = io.BytesIO()
    _put(packed, _entries(schema, meta, arrays), level)
    return packed.getvalue()


def _put(
    stream: IO[bytes],
    entries: Mapping[str, npt.NDArray[Any]],
    level: int | None,
) -> None:
    """Write entries to a stream as a zip file.

    Entries that would shrink more than `_most` allows are stored uncompressed, since `read` would
    refuse them.
    """
    start, plain = stream.tell(), frozenset[str]()
    while True:
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=level) as file:
            for name, values in entries.items():
                file.compression = zipfile.ZIP_STORED if name in plain else zipfile.ZIP_DEFLATED
                with file.open(f"{name}.npy", "w", force_zip64=True) as entry:
                    np.lib.format.write_array(entry, values, allow_pickle=False)
        sizes = _sizes(file)
        wide = {name for name in sizes if sizes[name][0] > _most(name, sizes[name][1])}
        if wide <= plain:
            return
        plain |= wide
        stream.seek(start)
        stream.truncate()


def _sizes(file: zipfile.ZipFile) -> dict[str, tuple[int, int]]:
    """Return the size of each entry in bytes, unpacked and packed, by the entry's name."""
    return {
        entry.filename.removesuffix(".npy"): (entry.file_size, entry.compress_size)
        for entry in file.infolist()
    }


def _most(name: str, packed: int) -> int:
    """Return the most bytes to which an entry may unpack.

    Args:
        name: the name of the entry; the header has a lower limit.
        packed: the packed size of the entry in bytes.
    """
    ratio, always = (_HEADER_RATIO, _HEADER_ALWAYS) if name == _HEADER else (_RATIO, _ALWAYS)
    return max(always, ratio * packed)


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
    """A context that yields the path of a temporary file beside `path`, to be written in the block.

    If the block succeeds, the temporary file is flushed to the disk and then replaces `path`. If
    the block fails, the temporary file is deleted, and `path` does not change.

    >>> import pathlib, tempfile
    >>> target = pathlib.Path(tempfile.mkdtemp()) / "figures.txt"
    >>> with replacing(target) as temporary:
    ...     _ = pathlib.Path(temporary).write_text("42")
    >>> target.read_text()
    '42'

    Args:
        path: the path of the file. If it is a symbolic link, the target of the link is replaced.
        private: whether only the owner may read a new file, whatever the umask is. A file that
            exists already keeps its permissions.

    Raises:
        InvalidInputError: the path goes through a link that somebody else may have planted, or the
            file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], *, private: bool = False) -> None:
        self._path, self._private = real_path(path), private

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
        """Return the permission bits for the new file.

        If the file exists already, it keeps its bits. A new file gets the default of new files, or
        is for its owner alone if it is private.

        Raises:
            InvalidInputError: the path is no regular file, or the file is read-only.
        """
        if not self._path.exists():
            if self._private:
                return 0o600
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
            # Flush before the rename. Otherwise a power loss could leave an incomplete new file.
            sync(self._temporary)
            os.replace(self._temporary, self._path)
        except OSError as error:
            os.unlink(self._temporary)
            raise InvalidInputError(f"cannot write {self._path}: {error.strerror}") from error


# A function that bounds the arrays of a file. Its arguments are the header, and the unpacked size
# in bytes that each entry declares. It returns for each array the most bytes for its values; None:
# no such bound. If the file has an array that is missing from this result, the file is refused.
# All entries must also keep to the limits of `_most`.
Limits = Callable[[Mapping[str, Any], Mapping[str, int]], Mapping[str, int | None]]


@contextmanager
def drafted(path: Path) -> Iterator[Path]:
    """Yield the path of a new, empty folder beside `path`, for the block to fill and rename.

    The block renames the folder to `path` when it is complete. So `path` is complete or absent. If
    the block fails, the new folder is deleted.

    Args:
        path: the final path of the folder, which must not exist.

    Raises:
        InvalidInputError: the block, or making the folder, raises OSError.
    """
    draft = path.with_name(f".{path.name}.new")
    try:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700, parents=True)
        yield draft
    except BaseException as error:
        shutil.rmtree(draft, ignore_errors=True)  # the disk may be full: free the bytes
        if isinstance(error, OSError):
            place = error.filename or path  # the file that failed may be in another folder
            first = "make its folder, or " if isinstance(error, FileNotFoundError) else ""
            raise InvalidInputError(
                f"cannot make {place} ({error.strerror or error}): {first}name another place"
            ) from error
        raise


def read(
    path: str | os.PathLike[str], schema: str | None = None, limits: Limits | None = None
) -> tuple[str, dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Return the schema, the header and the arrays of a file that `write` wrote.

    The header is read first. No array is unpacked before the sizes of all arrays are checked.

    Args:
        path: the path of the file.
        schema: the schema that the file must have; None: any.
        limits: a function that bounds the bytes of each array, see `Limits`; None: only the limits
            of `_most` apply.

    Raises:
        UnreadableFileError: the file does not exist, is damaged, or has a wrong format or schema;
            the header or an array is above its limit, or `limits` does not name an array.
    """
    with _opened(path) as archive:
        meta = archive.meta(schema)
        return archive.schema, meta, archive.arrays(limits)


def schema_of(path: str | os.PathLike[str]) -> str:
    """Return the schema of a file: the name and version of its format. No array is read.

    Raises:
        UnreadableFileError: the file does not exist, is damaged, or has a wrong format; or its
            header is above its limit (`_most`).
    """
    with _opened(path) as archive:
        return archive.schema


def unpack(
    data: bytes,
    name: str,
    schema: str,
    limits: Limits | None = None,
) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Return the header and the arrays in bytes that `pack` returned.

    Args:
        data: the bytes.
        name: what the bytes are, for error messages.
        schema: the schema that the bytes must have.
        limits: a function that bounds the bytes of each array, see `Limits`; None: only the limits
            of `_most` apply.

    Raises:
        UnreadableFileError: the bytes are damaged, or have a wrong format or schema; the header or
            an array is above its limit, or `limits` does not name an array.
    """
    archive = _Archive(io.BytesIO(data), name)
    return archive.meta(schema), archive.arrays(limits)


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[_Archive]:
    name = os.fspath(path)
    with ExitStack() as stack:
        try:
            stream = stack.enter_context(open(path, "rb"))
        except FileNotFoundError:
            raise validate.missing_file(name) from None
        except OSError as error:
            raise UnreadableFileError(f"{name} {_FOREIGN}") from error
        # zipfile reads to the end of a file, and a device may have no end
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise UnreadableFileError(f"{name} {_FOREIGN}")
        yield _Archive(stream, name)


class _Archive:
    """A saved file whose header is read when the object is made; `arrays` reads the rest.

    Attributes:
        schema: the name and version of the file's format.
    """

    schema: str
    _meta: dict[str, Any]

    def __init__(self, stream: IO[bytes], name: str) -> None:
        self._name = name
        try:
            self._file = zipfile.ZipFile(stream)
            self._sizes = _sizes(self._file)
            self._check_shrunk(_HEADER)
            self._meta = json.loads(self._values(_HEADER).tobytes())
            self.schema = self._meta.pop("schema")
            names = [*self._meta.pop("arrays"), _HEADER]
            listed = [entry.filename for entry in self._file.infolist()]
            if not isinstance(self.schema, str) or sorted(listed) != sorted(
                f"{name}.npy" for name in names
            ):
                raise ValueError("other arrays than the header names")
        except UnreadableFileError:
            raise
        # zipfile, zlib, NumPy and json raise many types of errors on damaged bytes. No list of
        # types would be complete, so catch all.
        except Exception as error:
            raise UnreadableFileError(f"{name} {_FOREIGN}") from error

    def meta(self, schema: str | None) -> dict[str, Any]:
        """Return the header.

        Args:
            schema: the schema that the file must have; None: any.

        Raises:
            UnreadableFileError: the schema of the file is not `schema`.
        """
        if schema is not None and self.schema != schema:
            raise UnreadableFileError(
                f"{self._name} holds {self.schema}, expected {schema}: name another file, or make"
                " this one anew"
            )
        return self._meta

    def arrays(self, limits: Limits | None) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays by name.

        Args:
            limits: a function that bounds the bytes of each array, see `Limits`; None: only the
                limits of `_most` apply.

        Raises:
            UnreadableFileError: an array is above its limit, `limits` does not name it, or the
                bytes are damaged.
        """
        names = self._sizes.keys() - {_HEADER}
        most: Mapping[str, int | None] = dict.fromkeys(names)
        if limits is not None:
            unpacked = {name: size for name, (size, _) in self._sizes.items()}
            try:
                most = limits(self._meta, unpacked)
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise UnreadableFileError(f"{self._name} is damaged{reason(error)}") from error
        for name in sorted(names):
            if name not in most:
                raise UnreadableFileError(
                    f"{self._name} is damaged: no file of {self.schema} has an entry {name!r}"
                )
            self._check_size(name, most[name])
            self._check_shrunk(name)
        try:
            return {name: self._values(name) for name in names}
        except Exception as error:  # damaged bytes raise many kinds of errors, see `__init__`
            raise UnreadableFileError(f"{self._name} {_FOREIGN}") from error

    def _values(self, name: str) -> npt.NDArray[Any]:
        # Reading cannot fill the memory: zipfile unpacks at most the size that an entry declares,
        # and the callers have checked this size.
        with self._file.open(f"{name}.npy") as entry:
            values: npt.NDArray[Any] = np.lib.format.read_array(entry, allow_pickle=False)
            if entry.read(1):  # also makes zipfile compare the checksum, at the end of the entry
                raise ValueError("more bytes than values")
            return values

    def _check_size(self, name: str, most: int | None) -> None:
        size = self._sizes[name][0]
        if most is not None and size > most + _ENTRY:
            raise UnreadableFileError(
                f"{self._name} is damaged: its entry {name} has {size:,} bytes, and its header"
                f" allows {most:,}"
            )

    def _check_shrunk(self, name: str) -> None:
        size, packed = self._sizes[name]
        if size > (most := _most(name, packed)):
            raise UnreadableFileError(
                f"{self._name} would fill the memory, and is not read: its entry {name} has"
                f" {size:,} bytes in {packed:,} packed ones, which may hold {most:,}; if an earlier"
                " fedtally saved it for you, make it anew"
            )
