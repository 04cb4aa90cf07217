"""Argument checks: what passes, what is refused, and what the message says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtally.base import validate
from fedtally.errors import FedtallyError, InvalidInputError


@given(st.integers(), st.integers(), st.integers())
def test_integer_bounds_are_inclusive(value: int, low: int, high: int) -> None:
    if low <= value <= high:
        assert validate.integer(low, high, width=value) == value
    else:
        with pytest.raises(
            InvalidInputError, match=f"^width must be at (least|most) -?[0-9]+, got {value}$"
        ):
            validate.integer(low, high, width=value)


@pytest.mark.parametrize("value", [np.int64(3), np.uint8(3), np.array(3)])
def test_integer_gives_a_plain_int(value: Any) -> None:
    assert type(validate.integer(1, width=value)) is int


@pytest.mark.parametrize(
    "value", [True, np.True_, 1.0, np.float64(2), "3", None, b"3", np.array([1, 2]), 1j]
)
def test_integer_refuses_other_types(value: Any) -> None:
    with pytest.raises(InvalidInputError, match="^width must be an integer, got "):
        validate.integer(width=value)


@given(
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(allow_nan=False),
    st.floats(allow_nan=False),
)
def test_real_bounds_are_inclusive(value: float, low: float, high: float) -> None:
    if low <= value <= high:
        assert validate.real(low, high, share=value) == value
    else:
        with pytest.raises(InvalidInputError, match="^share must be at (least|most) "):
            validate.real(low, high, share=value)


@pytest.mark.parametrize("value", [1, np.float32(1), np.int64(1)])
def test_real_gives_a_plain_float(value: Any) -> None:
    assert type(validate.real(share=value)) is float


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), np.float64("nan")])
def test_real_refuses_what_is_not_finite(value: float) -> None:
    with pytest.raises(InvalidInputError, match="^share must be finite"):
        validate.real(0, 1, share=value)


@pytest.mark.parametrize("value", [True, "0.5", None, 1j, [1.0], pytest.param(10**400, id="huge")])
def test_real_refuses_other_values(value: Any) -> None:
    with pytest.raises(InvalidInputError, match="^share must be"):
        validate.real(share=value)


@pytest.mark.parametrize("named", [{}, {"a": 1, "b": 2}])
def test_exactly_one_name(named: dict[str, int]) -> None:
    with pytest.raises(TypeError, match="exactly one"):
        validate.integer(**named)
    with pytest.raises(TypeError, match="exactly one"):
        validate.real(**named)


def test_refusals_can_be_caught_as_ours_and_as_value_errors() -> None:
    assert issubclass(InvalidInputError, FedtallyError)
    assert issubclass(InvalidInputError, ValueError)
    assert InvalidInputError.exit_code == 2


def test_a_file_with_the_same_suffix_alone_is_not_suggested(tmp_path: Path) -> None:
    for name in ("visit.x", "q.parquet"):
        (tmp_path / name).touch()
    hint = validate.did_you_mean_file(str(tmp_path / "visits.parquet"))
    assert "q.parquet" not in hint
    (tmp_path / "visit.parquet").touch()
    hint = validate.did_you_mean_file(str(tmp_path / "visits.parquet"))
    assert hint == "; did you mean 'visit.parquet'?"
