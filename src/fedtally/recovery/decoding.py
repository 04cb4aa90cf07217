"""How landed sums are decoded: which decoder, objective and intervals go together."""

from __future__ import annotations

from fedtally import _validate
from fedtally.domain import Domain
from fedtally.errors import InvalidInputError, MemoryLimitError
from fedtally.recovery.intervals import KINDS
from fedtally.sketch import JOINT_ROWS, check_joint_rows

RECOVERIES = ("auto", "joint", "median")
OBJECTIVES = ("linf", "l2")
CONFIDENCE = 0.95
MAX_JOINT = 1 << 28  # candidates up to which "auto" is joint recovery: about a minute
MAX_ENUMERATED = 2**36  # candidates: minutes of decoding; beyond, items are named


def recovery_of(recovery: str, domain_size: int, rows: int) -> str:
    """Return "joint" or "median": how sums are decoded, of what was asked for.

    Raises:
        InvalidInputError: joint recovery was asked for, and there are too few rows.

    >>> recovery_of("auto", 1000, rows=7), recovery_of("auto", 1000, rows=2)
    ('joint', 'median')
    """
    if recovery == "joint":
        check_joint_rows(rows)
    if recovery != "auto":
        return recovery
    return "joint" if domain_size <= MAX_JOINT and rows >= JOINT_ROWS else "median"


def named_kind(intervals: str) -> str:
    """Return the kind of the intervals of named items, of the kind that was asked for.

    >>> named_kind("auto")
    'pointwise'
    """
    return "pointwise" if intervals == "auto" else intervals


def listed_kind(intervals: str) -> str:
    """Return the kind of the intervals of a list of the largest estimates, of the kind that was asked for.

    >>> listed_kind("auto")
    'selective'
    """
    return "selective" if intervals == "auto" else intervals


def check_decoding(recovery: str, objective: str, confidence: float, intervals: str) -> None:
    """Raise InvalidInputError unless sums can be decoded so.

    >>> check_decoding("joint", "linf", 0.95, "pointwise")
    >>> check_decoding("joint", "linf", 95, "pointwise")
    Traceback (most recent call last):
    ...
    fedtally.errors.InvalidInputError: confidence must be at least 0 (no intervals) and below 1, got 95
    """
    for name, value, known in (
        ("recovery", recovery, RECOVERIES),
        ("objective", objective, OBJECTIVES),
        ("intervals", intervals, KINDS),
    ):
        if value not in known:
            raise InvalidInputError(f"{name} must be {', '.join(known[:-1])} or {known[-1]}, got {value!r}")
    if not 0 <= _validate.real(confidence=confidence) < 1:
        raise InvalidInputError(f"confidence must be at least 0 (no intervals) and below 1, got {confidence!r}")


def check_decodable(recovery: str, objective: str, domain: Domain | None) -> None:
    """Raise MemoryLimitError if decoding so must enumerate a domain that is too large; None: not known yet.

    >>> from fedtally.domain import IntegerRange
    >>> check_decodable("median", "linf", IntegerRange(1, 10**12))
    """
    if domain is not None and (recovery == "joint" or objective == "l2"):
        check_enumerable(domain)


def check_enumerable(domain: Domain) -> None:
    """Raise MemoryLimitError if a domain is too large to enumerate."""
    if domain.size > MAX_ENUMERATED:
        raise MemoryLimitError(
            f"a domain of {domain.size:,} candidates is too large to enumerate (at most {MAX_ENUMERATED:,}); "
            "name the items of interest (--query) under median recovery and objective linf, or declare a smaller "
            "domain"
        )
