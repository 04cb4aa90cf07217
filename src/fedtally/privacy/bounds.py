"""What all bounds of the accountant share: the curve, the rounding margin and the input checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedtally.base import validate
from fedtally.errors import InvalidInputError, arg
from fedtally.privacy import library
from fedtally.privacy.events import Event

F64 = npt.NDArray[np.float64]


class Method(StrEnum):
    """The method by which a bound was computed."""

    ANALYTIC_GAUSSIAN = "analytic-gaussian"
    DOMINATING_GAUSSIAN = "dominating-gaussian"
    LOSS_DISTRIBUTION = "privacy-loss-distribution"
    GAUSSIANS = "gaussian-composition"
    RENYI = "renyi-filter"
    BASIC = "basic-composition"


class Bound(NamedTuple):
    """A curve of (epsilon, delta) that lies above the true curve, for both orders of neighbours.

    Attributes:
        method: the method that gave the curve.
        epsilon: maps a delta to an epsilon.
        deltas: maps epsilons to deltas.
    """

    method: Method
    epsilon: Callable[[float], float]
    deltas: Callable[[F64], F64]


def with_margin(epsilon: float) -> float:
    """Return epsilon plus a margin above the rounding errors of floating point."""
    # Without the margin, a "bound" could lie below the true value. Zero stays zero: a mechanism
    # that reveals nothing costs nothing.
    return epsilon and epsilon * (1 + library.margin()) + 1e-11


def checked_events(events: Event | Sequence[Event]) -> list[Event]:
    """Return the events as a list, if they are of one relation and each has a variance.

    Raises:
        InvalidInputError: no events, several relations, or an event without variance.

    >>> len(checked_events(Event("rounded-gaussian", 5, "zero-out", variance=9)))
    1
    """
    found = [events] if isinstance(events, Event) else list(events)
    if not found or not all(isinstance(event, Event) for event in found):
        raise InvalidInputError(f"events must be one or more Event, got {found!r}")
    check_relations({str(event.relation) for event in found})
    for event in found:
        _ = event.noise_variance  # raises if the event has no variance yet
    return found


def check_relations(relations: set[str]) -> None:
    """Raise InvalidInputError if there are several neighbouring relations.

    >>> check_relations({"zero-out"})
    """
    # A guarantee says which data sets look alike. Two guarantees about different pairs of data
    # sets say nothing about either pair together, so their epsilons must not be added.
    if len(relations) > 1:
        raise InvalidInputError(
            f"events of several relations do not compose, got {' and '.join(sorted(relations))}: a"
            " population has one, so use that of its first campaign (neighbours)"
        )


def demanded_delta(delta: float) -> float:
    """Return a demanded largest delta after checking it: 0 or more, and below 1.

    Only geometric noise meets a delta of 0.

    >>> demanded_delta(0), demanded_delta(1e-6)
    (0.0, 1e-06)
    """
    allowed = validate.real(0.0, 1.0, delta=delta)
    return allowed if allowed == 0.0 else checked_delta(allowed)


def checked_delta(delta: float) -> float:
    """Return delta, if it lies between 0 and 1, exclusive.

    >>> checked_delta(1.0)
    Traceback (most recent call last):
    ...
    fedtally.errors.InvalidInputError: delta must be above 0 and below 1, got 1
    """
    delta = validate.real(0.0, 1.0, delta=delta)
    if not 0.0 < delta < 1.0:
        raise InvalidInputError(f"{arg.delta} must be above 0 and below 1, got {delta:g}")
    return delta
