"""What may be counted: listed candidates, or strings nobody has listed.

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

_OPEN = "open"  # the kind of domain whose names are spelled
_NFC = "nfc"  # the only normal form of strings that an open domain may have
# the kinds of domain whose ids are consecutive, from a first id that the description gives
_IN_ORDER = ("range", "dictionary", "grid")

Kind = Literal["listed", "open"]


@dataclass(frozen=True, eq=False)
class Candidates:
    """The candidates: the items that may be counted.

    Args:
        description: the public description of the candidates, as `checked_domain` returns it.

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
        """The id of the first candidate, if the ids of the candidates are consecutive.

        For a range it is the first integer mod 2^64, for other kinds 0.
        """
        return int(self.description.get("first", 0)) % 2**64

    @property
    def num_listed(self) -> int:
        """The number of listed candidates; 0 for an open domain.

        >>> Candidates({"kind": "range", "size": 9, "public": True}).num_listed
        9
        """
        return int(self.description["size"]) if self.kind == "listed" else 0

    @property
    def can_be_tried(self) -> bool:
        """Whether errors may be predicted by simulated campaigns.

        For an open domain each simulation would have to look at all hashes.
        """
        return self.kind == "listed"

    def check_listed(self, looks: str, way: str) -> None:
        """Refuse a task that needs every candidate, if the domain is open.

        Args:
            looks: the subject and verb of the message, such as "trends look".
            way: what the user can do instead.

        Raises:
            InvalidInputError: the domain is open.
        """
        if self.kind == "open":
            raise InvalidInputError(
                f"{looks} at every candidate, and of an open domain nobody has the list: {way}"
            )

    def check_domain(self, domain: Domain) -> None:
        """Refuse a domain that differs from the plan's, if the plan's domain is open.

        The ids of an open domain are hashes, so a sum does not show how items were hashed.

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
        """Refuse a decoder that cannot find hashes, if the domain is open.

        Args:
            recovery: the name of the decoder.

        Raises:
            InvalidInputError: the domain is open, and this is not the decoder for open domains.
        """
        if self.kind == "open" and recovery != OPEN:
            raise InvalidInputError(
                f"{arg.recovery} must be {OPEN} where the domain is open: it finds the hashes that"
                f" stand out, got {recovery}"
            )

    def unspelled(self, names: object | None) -> str:
        """Return the reason why a client cannot send its ids without names, or "" if it can.

        Args:
            names: the names of the ids; None: no names are given.
        """
        if self.kind == "open" and names is None:
            return "the domain is open: give the names of the ids, to spell them"
        return ""

    def check_spelling(self, spelling: Spelling | None) -> None:
        """Refuse an open domain without a spelling, and a spelling without an open domain.

        Args:
            spelling: the size of the sketches that names are read from; None: there are none.

        Raises:
            InvalidInputError: an entry of an open domain's description is wrong, or the spelling
                does not fit the domain.
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
                f"domain.normalise must be {_NFC}, got {domain['normalise']!r}; leave the entry out"
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
    """Refuse a histogram if clients cannot tell each candidate's counter, or if there are too many.

    Args:
        domain: the description of the candidates.

    Raises:
        InvalidInputError: the ids of the candidates do not follow from the plan, or there are more
            candidates than a row may have counters.

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
    """Return a checked, read-only copy of the description of the candidate items.

    Args:
        domain: a table with the entries kind, size, public, and other entries of its kind.

    Raises:
        InvalidInputError: an entry is missing, or a value cannot be written to a plan's file.

    >>> dict(checked_domain({"kind": "range", "size": 9, "public": True}))
    {'kind': 'range', 'size': 9, 'public': True}
    """
    if not isinstance(domain, Mapping) or not all(isinstance(name, str) for name in domain):
        raise InvalidInputError(
            f"domain must be a table with text as keys, got {type(domain).__name__}"
        )
    # a scalar of NumPy is not a JSON value
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
