"""The agent's log: bounded whatever a server sends, and nothing is left out without a count."""

from __future__ import annotations

from pathlib import Path

import pytest
from agents import Guarded, no_power_is_lost, session_of  # noqa: F401
from campaign_world import plan_of
from secagg_cohort import stream

from fedtally.agent import log as log_module
from fedtally.agent.agent import Note
from fedtally.agent.log import MOST_LINES, MOST_REASONS, WINDOW_SECONDS, Log
from fedtally.secagg import wire
from fedtally.secagg.messages import Kind


class Kept:
    """A log, its clock, and the lines that it wrote."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lines: list[tuple[Note, int]] = []
        self.log = Log(lambda note, left: self.lines.append((note, left)), lambda: self.now)


def test_what_is_left_out_is_counted_and_told_after_an_hour() -> None:
    kept = Kept()
    for number in range(1000):
        kept.log(Note(f"refused {number} times", session=f"{number:08x}"))
    assert len(kept.lines) == MOST_LINES
    kept.log(Note("joined"))  # another reason has lines of its own
    assert len(kept.lines) == MOST_LINES + 1
    kept.now = WINDOW_SECONDS
    kept.log(Note("joined"))
    told = kept.lines[MOST_LINES + 1 :]
    # the last of those that were left out, and how many others
    assert told[0] == (Note("refused 999 times", session="000003e7"), 1000 - MOST_LINES - 1)
    assert told[1:] == [(Note("joined"), 0)]


def test_a_line_of_a_session_stands_once_however_often_its_server_asks() -> None:
    kept = Kept()
    for _ in range(100):
        for session in ("aaaaaaaa", "bbbbbbbb"):
            kept.log(Note("dropped an Invite", session=session))
            kept.log(Note("busy", session=session, plan="cccccccc", round=1))
        kept.now += WINDOW_SECONDS / 10  # for hours
    kept.log(Note("busy", session="aaaaaaaa", plan="cccccccc", round=2))  # another line
    kept.log.close()
    assert [left for _, left in kept.lines] == [0] * 5
    assert len({note for note, _ in kept.lines}) == 5


def test_the_lines_that_are_remembered_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "MOST_REMEMBERED", 3)
    kept = Kept()
    for number in (1, 2, 3, 4, 4, 1, 1):  # the first is forgotten when the fourth comes
        kept.log(Note("busy", session=f"{number:08x}"))
    assert [note.session[-1] for note, _ in kept.lines] == ["1", "2", "3", "4", "1"]


def test_at_the_end_everything_is_told() -> None:
    kept = Kept()
    for _ in range(MOST_LINES + 5):
        kept.log(Note("dropped"))
    kept.log.close()
    assert len(kept.lines) == MOST_LINES + 1 and kept.lines[-1][1] == 4


def test_reasons_without_end_are_one_reason() -> None:
    kept = Kept()
    letters = "abcdefghijklmnopqrstuvwxyz"
    for one in letters:
        for two in letters:
            kept.log(Note(f"a plan of {one}{two}"))
    assert len(kept.lines) == MOST_REASONS + MOST_LINES


def test_no_server_fills_the_disk_of_an_agent(tmp_path: Path) -> None:
    """Frames that differ in all that a sender may choose, for an hour."""
    kept, plan = Kept(), plan_of()
    one = Guarded(tmp_path, plan)
    one.agent._log = kept.log
    random = stream("hostile")
    for number in range(300):
        kept.now = number
        one.answer(random(50))
        one.answer(session_of(plan, number, fingerprint=random(32)).invite)
        one.answer(session_of(plan, number, not_before=0, not_after=number).invite)
        for kind in Kind:
            one.answer(wire.frame(kind, random(32), wire.SERVER, random(40)))
    assert len({note.what for note, _ in kept.lines}) > 5
    assert len(kept.lines) < MOST_LINES * (len(Kind) + 5)


def test_a_log_that_cannot_be_written_is_passed_over() -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    Log(full)(Note("listening"))
