"""Norms of the sketches of clients' items, and who exceeds a clip, as the rule computes them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedtally.sketch import SketchSpec, clip

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]


def squared_norm(spec: SketchSpec, round: int, ids: U64) -> int:
    """Return the squared l2 norm of the sketch that one client's items have in a round."""
    return int(clip.Clip(spec, round, 0.0).increments(ids, clip._nobody_else(ids)).sum())


def exceeding(bound: clip.Clip, ids: U64, starts: I64) -> I64:
    """Return the clients that exceed the clip, rising; client i holds ids[starts[i] :
    starts[i + 1]]."""
    return clip._exceeding(bound, ids, starts, np.arange(len(starts) - 1))
