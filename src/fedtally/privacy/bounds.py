"""The parts that all bounds of the accountant share: curves, rounding margins, checks of input."""

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
    """The name of the method by which the accountant computed a bound on epsilon or delta."""

    ANALYTIC_GAUSSIAN = "analytic-gaussian"
    DOMINATING_GAUSSIAN = "dominating-gaussian"
    LOSS_DISTRIBUTION = "privacy-loss-distribution"
    GAUSSIANS = "gaussian-composition"
    RENYI = "renyi-filter"
    BASIC = "basic-composition"


class Bound(NamedTuple):
    """Upper bounds on epsilon and delta, which hold whichever of the two neighbours comes first.

    Attributes:
        method: the method that gave the curve.
        epsilon: a function from a delta to the epsilon that is proven at this delta.
        deltas: a function from an array of epsilons to the delta that is proven at each.
    """

    method: Method
    epsilon: Callable[[float], float]
    deltas: Callable[[F64], F64]


def with_margin(epsilon: float) -> float:
    """Return epsilon, enlarged by more than floating point may have rounded off; 0 stays 0."""
    # Without the margin, a "bound" could lie below the true value. Zero stays zero: a mechanism
    # that reveals nothing costs nothing.
    return epsilon and epsilon * (1 + library.margin()) + 1e-11


def checked_events(events: Event | Sequence[Event]) -> list[Event]:
    """Return events as a list of at least one `Event`; all have one relation, and a variance.

    Raises:
        InvalidInputError: there are no events, an entry is no `Event`, the events have several
            neighbouring relations, or an event has no variance.

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
    """Refuse events of several neighbouring relations.

    Args:
        relations: the names of the events' relations.

    Raises:
        InvalidInputError: there is more than one relation.

    >>> check_relations({"zero-out"})
    """
    # A guarantee is about pairs of neighbouring data sets, and each relation has other pairs. The
    # epsilon of one relation bounds nothing for the pairs of another, so a sum of both would bound
    # nothing.
    if len(relations) > 1:
        raise InvalidInputError(
            f"events of several relations do not compose, got {' and '.join(sorted(relations))}: a"
            " population has one, so use that of its first campaign (neighbours)"
        )


def demanded_delta(delta: float) -> float:
    """Return the largest delta that a client accepts, as a float, if it is 0 or more and below 1.

    Only geometric noise meets a demand of 0.

    Raises:
        InvalidInputError: delta is out of these bounds.

    >>> demanded_delta(0), demanded_delta(1e-6)
    (0.0, 1e-06)
    """
    allowed = validate.real(0.0, 1.0, delta=delta)
    return allowed if allowed == 0.0 else checked_delta(allowed)


def checked_delta(delta: float) -> float:
    """Return delta as a float, if it is above 0 and below 1.

    Raises:
        InvalidInputError: delta is out of these bounds.

    >>> checked_delta(1.0)
    Traceback (most recent call last):
    ...
    fedtally.errors.InvalidInputError: delta must be above 0 and below 1, got 1
    """
    delta = validate.real(0.0, 1.0, delta=delta)
    if not 0.0 < delta < 1.0:
        raise InvalidInputError(f"{arg.delta} must be above 0 and below 1, got {delta:g}")
    return delta
