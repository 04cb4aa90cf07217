"""The items that may be counted: candidates in a list, or any strings (an open domain).

>>> Candidates({"kind": "range", "size": 9, "public": True}).kind
'listed'
>>> from fedtally.domain import OpenStrings
>>> Candidates(OpenStrings().describe()).kind
'open'
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedtally.base import validate
from fedtally.errors import IncompatibleError, InvalidInputError, arg, opt
from fedtally.kernels import MAX_WIDTH
from fedtally.recovery.decoders import OPEN
from fedtally.sketch import Spelling

if TYPE_CHECKING:
    from fedtally.domain import Domain

_OPEN = "open"  # the kind of domain without a list: frequent strings are read from the sums
_NFC = "nfc"  # the only Unicode normal form that the strings of an open domain may have
# the kinds of domain whose ids are consecutive, so that each id has a known counter
_IN_ORDER = ("range", "dictionary", "grid")

Kind = Literal["listed", "open"]


@dataclass(frozen=True, eq=False)
class Candidates:
    """The candidates of a plan: the items that may be counted.

    Args:
        description: the public description of the candidates, which `checked_domain` returned.

    Attributes:
        kind: "listed" or "open".
    """

    description: Mapping[str, Any]
    kind: Kind = field(init=False)

    def __post_init__(self) -> None:
        kind = "open" if self.description["kind"] == _OPEN else "listed"
        object.__setattr__(self, "kind", kind)

    @property
    def first_id(self) -> int:
        """The id of the first candidate, for kinds of domain whose ids are consecutive.

        For a range it is the first integer mod 2^64. For a dictionary and a grid it is 0.
        """
        return int(self.description.get("first", 0)) % 2**64

    @property
    def num_listed(self) -> int:
        """The number of candidates in the list; 0 if the domain is open.

        >>> Candidates({"kind": "range", "size": 9, "public": True}).num_listed
        9
        """
        return int(self.description["size"]) if self.kind == "listed" else 0

    @property
    def can_be_tried(self) -> bool:
        """Whether simulated campaigns may predict errors: True if there is a list of candidates.

        For an open domain each simulation would have to estimate all possible hashes.
        """
        return self.kind == "listed"

    def check_listed(self, looks: str, way: str) -> None:
        """Refuse a task that must look at every candidate, if the domain is open.

        An open domain has no list of candidates.

        Args:
            looks: the start of the error message, such as "trends look"; " at every candidate"
                follows.
            way: what the user can do instead, for the error message.

        Raises:
            InvalidInputError: the domain is open.
        """
        if self.kind == "open":
            raise InvalidInputError(
                f"{looks} at every candidate, and of an open domain nobody has the list: {way}"
            )

    def check_domain(self, domain: Domain) -> None:
        """Refuse a domain that differs from the plan's domain, if the plan's domain is open.

        The ids of an open domain are hashes of strings. A sum does not show how they were made, so
        a different domain would give wrong names without an error.

        Args:
            domain: the domain that turns ids into items.

        Raises:
            IncompatibleError: the plan's domain is open, and `domain` differs from it.
        """
        if self.kind == "open" and domain.describe() != self.description:
            raise IncompatibleError(
                f"the domain is not that of the plan: {domain.describe()}, and not"
                f" {dict(self.description)}"
            )

    def check_recovery(self, recovery: str) -> None:
        """Refuse every decoder except the one for open domains, if the domain is open.

        Args:
            recovery: the name of the decoder.

        Raises:
            InvalidInputError: the domain is open, and `recovery` is not the decoder for open
                domains.
        """
        if self.kind == "open" and recovery != OPEN:
            raise InvalidInputError(
                f"{arg.recovery} must be {OPEN} where the domain is open: it finds the hashes that"
                f" stand out, got {recovery}"
            )

    def unspelled(self, names: object | None) -> str:
        """Return an error message if the domain is open and a client gives no names, otherwise "".

        With an open domain a client also encodes the names of its items in sketches.

        Args:
            names: the names of the ids; None: the client gives none.
        """
        if self.kind == "open" and names is None:
            return "the domain is open: give the names of the ids, to spell them"
        return ""

    def check_spelling(self, spelling: Spelling | None) -> None:
        """Refuse a spelling that does not fit the domain, or a wrong description of an open domain.

        An open domain needs a spelling. A list of candidates must have none.

        Args:
            spelling: the size of the sketches from which names are read; None: the plan has no such
                sketches.

        Raises:
            InvalidInputError: the spelling does not fit the domain, or an entry of an open domain's
                description is wrong.
        """
        if (self.kind == "open") != (spelling is not None):
            raise InvalidInputError(
                "an open domain needs a spelling, the size of the sketches that names are read from"
                if spelling is None
                else f"spelling goes with an open domain, got the kind {self.description['kind']!r}"
            )
        if spelling is not None:
            self._check_open(spelling)

    def _check_open(self, spelling: Spelling) -> None:
        domain = self.description
        entries = ["kind", "size", "public", "max_length", "bits", "normalise"]
        validate.table("domain", dict(domain), entries, optional=["normalise"])
        if domain.get("normalise", _NFC) != _NFC:
            raise InvalidInputError(
                f'domain.normalise must be "nfc", got {domain["normalise"]!r}; leave the entry out'
                " where strings are hashed as they are"
            )
        if domain["max_length"] != spelling.max_length:
            raise InvalidInputError(
                f"domain.max_length must be {spelling.max_length}, that of the spelling, got"
                f" {domain['max_length']!r}"
            )
        bits = validate.integer(8, 28, **{"domain.bits": domain["bits"]})
        if domain["size"] != 1 << bits or not domain["public"]:
            raise InvalidInputError(
                f"an open domain of {bits} bits is public and has {1 << bits} candidates, got"
                f" public {domain['public']} and size {domain['size']}"
            )


def check_histogram_domain(domain: Mapping[str, Any]) -> None:
    """Refuse candidates that a histogram cannot count.

    A client must know which counter belongs to which candidate without asking for a list. So the
    ids of the candidates must be consecutive. The largest row must have enough counters.

    Args:
        domain: the public description of the candidates.

    Raises:
        InvalidInputError: the ids of the candidates are not consecutive; the entry "first" is
            missing or not an integer for a range, or is given for another kind; or there are more
            candidates than counters in the largest row.

    >>> check_histogram_domain({"kind": "strings", "size": 9, "public": False})
    Traceback (most recent call last):
    ...
    fedtally.errors.InvalidInputError: a histogram has a counter for each candidate, ...
    """
    if domain["kind"] not in _IN_ORDER:
        raise InvalidInputError(
            f"a histogram has a counter for each candidate, and candidates of kind {domain['kind']}"
            f" have no places that clients know: declare them ({opt.domain('FILE')}, range:A..B,"
            " grid:...), or take the encoding sketch"
        )
    if domain["kind"] == "range":
        validate.integer(**{"domain.first": domain.get("first")})
    elif "first" in domain:
        raise InvalidInputError(f"domain.first is for a range, got the kind {domain['kind']!r}")
    if domain["size"] > MAX_WIDTH:
        raise InvalidInputError(
            f"a histogram has a counter for each candidate, at most {MAX_WIDTH:,}, got"
            f" {domain['size']:,}: take the encoding sketch"
        )


def checked_domain(domain: Any) -> Mapping[str, Any]:
    """Return a checked, read-only copy of a domain's description.

    NumPy numbers are replaced by Python numbers, because JSON has no NumPy numbers.

    Args:
        domain: a table with the entries "kind", "size", "public", and further entries that depend
            on the kind.

    Raises:
        InvalidInputError: `domain` is not a table of texts, numbers and truth values; an entry is
            missing or invalid; or an entry cannot be written to a plan's file.

    >>> dict(checked_domain({"kind": "range", "size": 9, "public": True}))
    {'kind': 'range', 'size': 9, 'public': True}
    """
    if not isinstance(domain, Mapping) or not all(isinstance(name, str) for name in domain):
        raise InvalidInputError(
            f"domain must be a table with text as keys, got {type(domain).__name__}"
        )
    # otherwise NumPy numbers could not be written as JSON
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
    # these texts are printed before the plan is trusted, so they must not control the terminal
    for text in (*plain, plain["kind"]):
        if not (text.isascii() and text.isprintable()):
            raise InvalidInputError(
                "domain.kind and the names of the domain's entries must be printable ASCII, got"
                f" {text!a:.80}"
            )
    return MappingProxyType(plain)


def _check_entry(name: str, value: Any) -> None:
    """Refuse an entry of a domain's description that no plan's file can hold."""
    if not isinstance(value, (bool, int, float, str)):
        raise InvalidInputError(
            f"domain.{name} must be a number, a text or a truth value, got {value!r}"
        )
    if not _is_unicode(name) or not _is_unicode(value):  # UTF-8 cannot encode it
        raise InvalidInputError(
            f"domain must have no half of a surrogate pair, got {name!a}: {value!a}"
        )
    # The message does not show the integer: Python refuses to convert very long ones to text.
    if isinstance(value, int) and abs(value) > 2**64:
        raise InvalidInputError(f"domain.{name} must be an integer from -2^64 to 2^64")
    if isinstance(value, float) and not math.isfinite(value):  # JSON has no such numbers
        raise InvalidInputError(f"domain.{name} must be a finite number, got {value!r}")


def _is_unicode(value: Any) -> bool:
    # a Python text may contain half of a surrogate pair, which UTF-8 cannot encode
    return not isinstance(value, str) or not any("\ud800" <= letter <= "\udfff" for letter in value)
