"""Readings of items: bounded in time, one after the other, and each with its own end."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from fedtally.agent import reading as reading_module
from fedtally.agent.reading import Aside, Reading, at_once
from fedtally.errors import UnreadableFileError

LONG = 60.0  # seconds: no test waits so long


class Clock:
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def ended(reading: Reading) -> Any:
    """Return what a reading found, or its error."""
    reading.wait()
    assert reading.is_over and reading.left == 0.0
    try:
        return reading.client()
    except Exception as error:
        return error


def test_what_was_read_is_there_once_it_is_over() -> None:
    calls: list[int] = []
    reading: Any = Reading(lambda: "client", LONG)  # type: ignore[arg-type, return-value]
    reading.when_over(lambda: calls.append(1))
    assert not reading.is_over and not calls and 0 < reading.left <= LONG
    reading.run()
    reading.when_over(lambda: calls.append(2))  # at once
    assert ended(reading) == "client" and calls == [1, 2]
    reading.run()  # once
    assert repr(reading) == "Reading(is_over=True)"
    assert ended(at_once(lambda: "client")) == "client"  # type: ignore[arg-type, return-value]


def test_what_comes_too_late_never_comes() -> None:
    clock = Clock()

    def slow() -> Any:
        clock.now += 30.0
        return "client"

    reading = Reading(slow, 30.0, clock=clock)
    reading.run()
    assert "more than 30 seconds" in str(ended(reading))
    # nor does what is asked for in the meantime come after it
    reading = Reading(lambda: "client", 5.0, clock=clock)  # type: ignore[arg-type, return-value]
    clock.now += 4.9
    assert not reading.is_over
    clock.now += 0.1
    assert "items.seconds" in str(ended(reading))
    reading.run()
    assert isinstance(ended(reading), UnreadableFileError)


@pytest.mark.parametrize(
    ("took", "told"),
    [(0.0, 1.0), (0.9, 1.0), (1.0, 1.0), (1.1, 2.0), (3.9, 4.0), (9.0, 16.0), (17.0, 30.0)],
)
@pytest.mark.parametrize("fails", [False, True])
def test_the_moment_at_which_a_private_reading_is_over_is_one_of_few(
    took: float, told: float, fails: bool
) -> None:
    clock, calls = Clock(), []

    def work() -> Any:
        clock.now += took
        if fails:
            raise KeyError("x")
        return "client"

    reading = Reading(work, 30.0, in_steps=True, clock=clock)
    reading.when_over(lambda: calls.append(1))
    reading.run()
    assert calls == [1] and reading.left == pytest.approx(told - took)
    reading.run()
    clock.now = 100.0 + told - 0.01
    assert not reading.is_over
    clock.now = 100.0 + told
    assert reading.is_over
    assert isinstance(ended(reading), KeyError) if fails else ended(reading) == "client"
    at_end = Reading(work, 30.0, clock=clock)
    at_end.run()
    assert at_end.is_over


def test_a_private_reading_that_is_dropped_is_over_at_once() -> None:
    for does_run in (False, True):
        reading = Reading(lambda: "client", LONG, in_steps=True)  # type: ignore[arg-type, return-value]
        if does_run:
            reading.run()
        assert not reading.is_over
        reading.drop()
        assert isinstance(ended(reading), UnreadableFileError)


def test_a_thread_waits_for_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_module, "FIRST_STEP", 0.2)
    began = time.monotonic()
    reading = Aside(LONG)(lambda: "client", in_steps=True)  # type: ignore[arg-type, return-value]
    assert ended(reading) == "client"
    assert time.monotonic() - began >= 0.2


def test_who_drops_a_reading_gets_nothing_of_it() -> None:
    calls: list[int] = []
    reading = Reading(lambda: calls.append(1), LONG)  # type: ignore[arg-type, func-returns-value]
    reading.when_over(lambda: calls.append(2))
    reading.drop()
    reading.run()
    assert calls == [2]  # whoever waits goes on, and nothing is read
    assert isinstance(ended(reading), UnreadableFileError)
    reading = at_once(lambda: "client")  # type: ignore[arg-type, return-value]
    reading.drop()
    assert isinstance(ended(reading), UnreadableFileError)


@pytest.mark.parametrize("error", [TimeoutError("mine"), KeyError("x")])
def test_the_errors_of_a_reader_are_its_own(error: Exception) -> None:
    def fails() -> Any:
        raise error

    aside = Aside(LONG)
    for _ in range(20):  # it is free again at once
        assert ended(aside(fails)) is error
    assert ended(at_once(fails)) is error


def test_a_reader_that_ends_its_thread_is_an_error_that_shows_nothing() -> None:
    def fails() -> Any:
        raise SystemExit("secret")

    aside = Aside(LONG)
    for _ in range(3):
        found = ended(aside(fails))
        assert isinstance(found, UnreadableFileError)
        assert "SystemExit" in str(found) and "secret" not in str(found)
    with pytest.raises(SystemExit):
        at_once(fails)


def test_readings_go_one_after_the_other_and_a_caller_goes_on() -> None:
    go_on, at_work = threading.Event(), []

    def work(number: int) -> Any:
        at_work.append(number)
        assert go_on.wait(LONG)
        return number

    aside = Aside(LONG)
    readings = [aside(lambda number=number: work(number)) for number in range(4)]  # type: ignore[misc]
    readings[2].drop()  # its session is over before its turn comes
    assert not any(readings[number].is_over for number in (0, 1, 3))
    go_on.set()
    assert [ended(readings[number]) for number in (0, 1, 3)] == [0, 1, 3]
    assert at_work == [0, 1, 3]


def test_behind_a_reader_that_hangs_the_others_run_out_of_time() -> None:
    go_on, calls = threading.Event(), []

    def hangs() -> Any:
        calls.append(1)
        assert go_on.wait(LONG)
        return "client"

    aside, before = Aside(0.05), set(threading.enumerate())
    readings = [aside(hangs) for _ in range(3)]
    began = time.monotonic()
    assert all("more than 0.05 seconds" in str(ended(one)) for one in readings)
    readings += [aside(hangs) for _ in range(100)]
    assert time.monotonic() - began < 5
    [thread] = set(threading.enumerate()) - before
    time.sleep(0.06)
    assert isinstance(ended(aside(hangs)), UnreadableFileError)
    assert len(aside._waiting) == 1  # those that ran out of time are forgotten
    go_on.set()
    thread.join()
    assert calls == [1]  # nobody waited for the others
    assert ended(aside(lambda: "client")) == "client"  # type: ignore[arg-type, return-value]


def test_without_a_thread_the_items_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    aside = Aside(0.2)
    with monkeypatch.context() as patch:
        patch.setattr(reading_module.threading.Thread, "start", no_more)
        reading = aside(lambda: "client")  # type: ignore[arg-type, return-value]
        assert "items.seconds" in str(ended(reading))
    assert ended(aside(lambda: "client")) == "client"  # type: ignore[arg-type, return-value]
