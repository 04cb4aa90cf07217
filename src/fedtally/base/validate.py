"""Checks of arguments, and hints for messages about wrong arguments.

A check raises an error that names the argument, or returns the value. The value is given by exactly
one keyword, and the keyword is its name in the error message: ``integer(1, width=width)``. In the
message the name is marked as an argument. So a command shows its option `--width` instead. `flag`
takes several keywords, and returns nothing. `table` takes the name as a text.
"""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from fedtally.errors import InvalidInputError, UnreadableFileError, arg

_MOST_FILES = 10_000  # of a folder, at most this many names are compared with a missing file's name
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


def _one(named: dict[str, Any]) -> tuple[str, Any]:
    if len(named) != 1:
        raise TypeError("name exactly one value")
    return next(iter(named.items()))


def integer(minimum: int | None = None, maximum: int | None = None, /, **named: Any) -> int:
    """Return the keyword's value as an int, if it is an integer within the bounds.

    Bounds are inclusive. None: there is no such bound.

    Raises:
        InvalidInputError: the value is not an integer, is a bool, or is outside the bounds.

    >>> integer(1, width=4)
    4
    >>> integer(1, width=-3)
    Traceback (most recent call last):
    ...
    fedtally.errors.InvalidInputError: width must be at least 1, got -3
    """
    name, value = _one(named)
    try:
        if _is_bool(value):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise InvalidInputError(f"{arg[name]} must be an integer, got {value!r}") from None
    _bounds(name, number, minimum, maximum)
    return number


def real(minimum: float | None = None, maximum: float | None = None, /, **named: Any) -> float:
    """Return the keyword's value as a float, if it is finite and within the bounds.

    Bounds are inclusive. None: there is no such bound.

    Raises:
        InvalidInputError: the value is not a finite number, is a text or a bool, or is outside the
            bounds.

    >>> real(0.0, 1.0, frequency=0.25)
    0.25
    """
    name, value = _one(named)
    try:
        if _is_bool(value) or isinstance(value, (str, bytes)):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInputError(f"{arg[name]} must be a number, got {value!r}") from None
    if not math.isfinite(number):
        raise InvalidInputError(f"{arg[name]} must be finite, got {value!r}")
    _bounds(name, number, minimum, maximum)
    return number


def inside(**named: Any) -> float:
    """Return the keyword's value as a float, if it is above 0 and below 1.

    Raises:
        InvalidInputError: the value is not a number, or is outside this range.

    >>> inside(tau=0.5)
    0.5
    >>> inside(tau=0)
    Traceback (most recent call last):
    ...
    fedtally.errors.InvalidInputError: tau must be above 0 and below 1, got 0
    """
    name, value = _one(named)
    number = real(**named)
    if not 0.0 < number < 1.0:
        raise InvalidInputError(
            f"{arg[name]} must be above 0 and below 1, got {value}{as_share(number)}"
        )
    return number


def share(**named: Any) -> float:
    """Return the keyword's value as a float, if it is from 0 to 1.

    Raises:
        InvalidInputError: the value is not a number, or is outside this range.

    >>> share(min_frequency=1)
    1.0
    >>> share(min_frequency=2)
    Traceback (most recent call last):
    ...
    fedtally.errors.InvalidInputError: min_frequency must be from 0 to 1, got 2; 2 % is 0.02
    """
    name, value = _one(named)
    number = real(**named)
    if not 0.0 <= number <= 1.0:
        raise InvalidInputError(f"{arg[name]} must be from 0 to 1, got {value:g}{as_share(number)}")
    return number


def as_share(number: float) -> str:
    """Return a hint to append to a message about a wrong share.

    A number from 1 to below 100 may be meant as a percentage. For other numbers the hint is "".

    >>> as_share(95), as_share(0.5)
    ('; 95 % is 0.95', '')
    """
    return f"; {number:g} % is {number / 100:g}" if 1 <= number < 100 else ""


def size(**named: Any) -> int:
    """Return the keyword's value, a number of bytes, as an int.

    The value is an integer of at least 1, or a text such as "32kB". A text must mean more than 0.5
    and less than 2^62 bytes; fractions of a byte are rounded.

    Raises:
        InvalidInputError: the value is neither such an integer nor such a text.

    >>> size(max_bytes="32kB"), size(max_bytes="64KiB"), size(max_bytes="1.5 mb"), size(memory=17)
    (32000, 65536, 1500000, 17)
    >>> size(max_bytes="much")
    Traceback (most recent call last):
    ...
    fedtally.errors.InvalidInputError: max_bytes 'much' is no size: write it as 32kB, 1.5MB, 64KiB \
or a number of bytes
    """
    name, value = _one(named)
    if not isinstance(value, str):
        return integer(1, **named)
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([kmg]i?)?b?", value.strip().lower())
    number = float(match[1]) * _UNITS[match[2] or ""] if match else 0.0
    if not 0.5 < number < 2**62:  # a size that rounds to 0 bytes, or that no counter holds
        bounds = " from 1 byte to below 4,294,967,296 GiB" if match else ""
        raise InvalidInputError(
            f"{arg[name]} {value!r} is no size{bounds}: write it as 32kB, 1.5MB, 64KiB or a number"
            " of bytes"
        )
    return round(number)


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Return a hint to append to a message: the known name that is most like a given name.

    It is "" if no name is similar. Upper and lower case are not distinguished.

    >>> did_you_mean("hybird", ["shared", "hybrid"]), did_you_mean("Word", ["user", "word"])
    ("; did you mean 'hybrid'?", "; did you mean 'word'?")
    >>> did_you_mean("x", ["shared"])
    ''
    """
    lowered = {name.lower(): name for name in known}
    # Import this only if there is an error: most runs have none.
    from difflib import get_close_matches

    found = get_close_matches(str(given).lower(), lowered, n=1)
    return f"; did you mean {lowered[found[0]]!r}?" if found else ""


def did_you_mean_file(path: str) -> str:
    """Return a hint to append to a message about a missing file: a similar name.

    Only names in the same folder are compared. The hint is "" if no name is similar, or if there is
    a file or a folder of this name.

    >>> did_you_mean_file("no such folder/visits.csv")
    ''
    """
    folder, name = os.path.split(path)
    try:
        if os.path.lexists(path):
            return ""
        with os.scandir(folder or ".") as entries:
            known = [entry.name for entry in islice(entries, _MOST_FILES)]
    except (OSError, ValueError):  # a NUL in a path is a ValueError
        return ""
    # Import this only if there is an error: most runs have none.
    from difflib import get_close_matches

    # Only files whose names without their suffixes are similar, too. Otherwise an equal suffix
    # could be enough.
    stem = Path(name).stem.lower()
    alike = [each for each in known if get_close_matches(stem, [Path(each).stem.lower()])]
    return did_you_mean(name, alike)


def missing_file(path: str) -> UnreadableFileError:
    """Return an error about a missing file; it suggests a similar name if the folder has one.

    >>> print(missing_file("no such folder/visits.csv"))
    there is no file no such folder/visits.csv
    """
    return UnreadableFileError(f"there is no file {path}{did_you_mean_file(path)}")


def table(
    name: str, values: Any, known: Sequence[str], optional: Collection[str] = ()
) -> dict[str, Any]:
    """Return a table that was read from a file as a dict, if it has the right entries.

    Every table of a plan is read by this function. It checks the names of the entries. The classes
    that are made from the entries check the values.

    Args:
        name: the name of the table in the error.
        values: the value that was read.
        known: the names that entries may have. An entry with another name is an error.
        optional: the names in `known` whose entries may be missing.

    Raises:
        InvalidInputError: the value is no table, or an entry is missing or unknown.

    >>> table("target", {"linf": 0.1, "tau": 0.1}, ["linf"])
    Traceback (most recent call last):
    ...
    fedtally.errors.InvalidInputError: target has unknown entries tau; target must be a table ...
    """
    form = f"{name} must be a table with the entries {', '.join(known)}"
    if not isinstance(values, Mapping):
        # Show the type, since the value may be too long.
        raise InvalidInputError(f"{form}, got {type(values).__name__}")
    missing = [entry for entry in known if entry not in values and entry not in optional]
    unknown = [str(entry) for entry in values if entry not in known]
    if missing or unknown:
        problem = (
            f"lacks {', '.join(missing)}"
            if missing
            else f"has unknown entries {', '.join(unknown)}"
        )
        raise InvalidInputError(f"{name} {problem}; {form}")
    return dict(values)


def flag(**named: Any) -> None:
    """Raise InvalidInputError unless all values are bools. A text such as "no" would count as true.

    >>> flag(certify="no")
    Traceback (most recent call last):
    ...
    fedtally.errors.InvalidInputError: certify must be true or false, got 'no'
    """
    for name, value in named.items():
        if not isinstance(value, bool):
            raise InvalidInputError(f"{arg[name]} must be true or false, got {value!r}")


def form_of(value: Any) -> str:
    """Return a short description of a wrong value, for an error message.

    It is the dtype and shape of an array, the length of bytes, or else the name of the type.

    >>> form_of([1]), form_of(b"ab")
    ('list', '2 bytes')
    """
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if hasattr(value, "dtype"):
        return f"{value.dtype} {getattr(value, 'shape', '')}"
    return type(value).__name__


def _is_bool(value: Any) -> bool:
    # In Python True is an integer. But as a number of rows, for example, it is surely a mistake.
    return isinstance(value, bool) or str(getattr(value, "dtype", "")) == "bool"


def _bounds(name: str, number: float, minimum: float | None, maximum: float | None) -> None:
    if minimum is not None and number < minimum:
        raise InvalidInputError(f"{arg[name]} must be at least {minimum}, got {number}")
    if maximum is not None and number > maximum:
        raise InvalidInputError(f"{arg[name]} must be at most {maximum}, got {number}")
