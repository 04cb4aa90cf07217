"""The predicted error of a histogram: that of the noise, since no items share a counter."""

from __future__ import annotations

import math

from scipy.special import ndtr, ndtri

from fedtally.privacy import geometric
from fedtally.privacy.events import Mechanism
from fedtally.recovery.error_shape import F64, Prediction, Shape


def predict(known: F64, shape: Shape, numbers: F64, probability: float) -> Prediction:
    """Return the prediction of `ErrorModel`: frequencies do not matter.

    The noise of counters is independent: the largest of d exceeds a size with probability p where
    each exceeds it with 1 - (1 - p)^(1/d).
    """
    stddev = math.sqrt(shape.noise)
    each = -math.expm1(math.log1p(-probability) / shape.candidates)
    if not shape.noise:
        largest = 0.0
    elif shape.mechanism is Mechanism.GEOMETRIC:
        largest = float(geometric.half(shape.noise, each))
    else:
        largest = -float(ndtri(each / 2)) * stddev
    return Prediction(stddev / shape.clients, 0.0, largest / shape.clients)


def failure(known: F64, shape: Shape, numbers: F64, tau: float) -> float:
    """Return the probability that the largest error exceeds tau; as for `ErrorModel`."""
    if not shape.noise:
        return 0.0
    size = tau * shape.clients
    if shape.mechanism is Mechanism.GEOMETRIC:
        each = float(geometric.exceeded(shape.noise, size))
    else:
        each = 2.0 * float(ndtr(-size / math.sqrt(shape.noise)))
    return -math.expm1(shape.candidates * math.log1p(-each)) if each < 1 else 1.0
