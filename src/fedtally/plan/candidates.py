"""The public description of a plan's candidate items, as any file may hold it, checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from fedtally.base import validate
from fedtally.errors import InvalidInputError


def checked_domain(domain: Any) -> Mapping[str, Any]:
    """Return the description of candidate items, which nothing can change.

    Args:
        domain: a table with the entries kind, size, public and others of its kind.

    Raises:
        InvalidInputError: it lacks an entry, or has a value that no file of a plan can hold.

    >>> dict(checked_domain({"kind": "range", "size": 9, "public": True}))
    {'kind': 'range', 'size': 9, 'public': True}
    """
    if not isinstance(domain, Mapping) or not all(isinstance(name, str) for name in domain):
        raise InvalidInputError(
            f"domain must be a table with text as keys, got {type(domain).__name__}"
        )
    # a number of NumPy is no JSON value
    plain = {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in domain.items()
    }
    if not {"kind", "size", "public"} <= plain.keys():
        raise InvalidInputError(f"domain must say its kind, size and public, got {sorted(plain)}")
    validate.integer(1, 2**64, domain_size=plain["size"])
    for name, value in plain.items():
        _check_entry(name, value)
    if not isinstance(plain["kind"], str) or not isinstance(plain["public"], bool):
        raise InvalidInputError("domain.kind must be a text and domain.public true or false")
    # these are printed before anybody has decided to trust the plan
    for text in (*plain, plain["kind"]):
        if not (text.isascii() and text.isprintable()):
            raise InvalidInputError(
                "domain.kind and the names of the domain's entries must be printable ASCII, got"
                f" {text!a:.80}"
            )
    return MappingProxyType(plain)


def _check_entry(name: str, value: Any) -> None:
    """Refuse an entry that no file of a plan can hold."""
    if not isinstance(value, (bool, int, float, str)):
        raise InvalidInputError(
            f"domain.{name} must be a number, a text or a truth value, got {value!r}"
        )
    if not _is_unicode(name) or not _is_unicode(value):  # no file of UTF-8 can hold it
        raise InvalidInputError(
            f"domain must have no half of a surrogate pair, got {name!a}: {value!a}"
        )
    # The integer is not quoted: Python refuses to write very long ones.
    if isinstance(value, int) and abs(value) > 2**64:
        raise InvalidInputError(f"domain.{name} must be an integer from -2^64 to 2^64")
    if isinstance(value, float) and not math.isfinite(value):  # it has no JSON
        raise InvalidInputError(f"domain.{name} must be a finite number, got {value!r}")


def _is_unicode(value: Any) -> bool:
    # half of a surrogate pair: Python's text may hold one, UTF-8 may not
    return not isinstance(value, str) or not any("\ud800" <= letter <= "\udfff" for letter in value)
