"""The predicted error of a histogram: that of the noise, since no items share a counter."""

from __future__ import annotations

import math

from fedtally.recovery.decoders.direct import NoiseLaw
from fedtally.recovery.sums import F64, Prediction, Sums

_ROUNDING = 1e-9  # a share of the clients, times the clients, may miss a whole number by this


def predict(known: F64, shape: Sums, numbers: F64, probability: float) -> Prediction:
    """Return the prediction of `ErrorModel`: frequencies do not matter.

    The noise of counters is independent: the largest of d exceeds a size with probability p where
    each exceeds it with 1 - (1 - p)^(1/d). The noise is of integers: with a small standard
    deviation its tails are far from those of a normal distribution.
    """
    if not shape.noise:
        return Prediction(0.0, 0.0, 0.0)
    law = _law(shape)
    each = -math.expm1(math.log1p(-probability) / shape.candidates)
    return Prediction(law.stddev / shape.clients, 0.0, law.half(each) / shape.clients)


def failure(known: F64, shape: Sums, numbers: F64, tau: float) -> float:
    """Return the probability that the largest error exceeds tau; as for `ErrorModel`."""
    if not shape.noise:
        return 0.0
    each = float(_law(shape).exceeded(tau * shape.clients * (1 + _ROUNDING)))
    return -math.expm1(shape.candidates * math.log1p(-each)) if each < 1 else 1.0


def _law(shape: Sums) -> NoiseLaw:
    return NoiseLaw.of_draws(shape.mechanism, shape.noise / shape.draws, shape.draws)
