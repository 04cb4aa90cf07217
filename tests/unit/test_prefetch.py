"""Batches are read while others are counted, and nothing else changes."""

import threading

import pytest

from fedtally.simulation.prefetch import read_ahead


def test_the_next_one_is_taken_while_this_one_is_held():
    second_is_taken = threading.Event()

    def items():
        yield 1
        second_is_taken.set()
        yield 2

    ahead = read_ahead(items(), int)
    assert next(ahead) == 1
    assert second_is_taken.wait(10)  # without asking for it
    assert list(ahead) == [2]


def test_an_error_comes_in_its_turn():
    def items():
        yield 1
        yield 2
        raise ValueError("the third is broken")

    ahead = read_ahead(items(), int)
    assert [next(ahead), next(ahead)] == [1, 2]
    with pytest.raises(ValueError, match="third"):
        next(ahead)


def test_who_stops_early_leaves_no_thread():
    before = threading.active_count()
    ahead = read_ahead(iter(range(9)), int)
    assert next(ahead) == 0
    ahead.close()
    assert threading.active_count() == before


def test_an_earlier_error_of_preparing_comes_before_a_later_one_of_reading():
    def items():
        yield 1
        yield "two"
        raise OSError("the third cannot be read")

    ahead = read_ahead(items(), int)
    assert next(ahead) == 1
    with pytest.raises(ValueError, match="two"):
        next(ahead)
