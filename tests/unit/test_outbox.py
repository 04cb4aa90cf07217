"""The outbox of a client's record: both frames of a report, until both servers have theirs."""

from __future__ import annotations

import gc
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest
from test_store import EVENT, PLAN, Crash, Crashing

from fedtally.errors import UnreadableFileError
from fedtally.privacy.budget import AlreadySpentError
from fedtally.secagg.two_server import Report
from fedtally.store import ClientRecord, Fate, Journal, Said, StoreError

pytestmark = pytest.mark.usefixtures("no_sync")
REPORT = Report(leader=b"the leader's frame", helper=b"the helper's frame")
BOTH = {"helper": REPORT.helper, "leader": REPORT.leader}
_numbers = count()


@pytest.fixture
def record(tmp_path: Path) -> ClientRecord:
    return ClientRecord.open(tmp_path / "record.db", create=True)


def spend(record: ClientRecord, round: int = 0, plan: str = "plan-0", time: int = 1) -> None:
    record.take_part("phones", plan, round, EVENT, time, report=REPORT)


def left(record: ClientRecord) -> dict[tuple[str, int], Any]:
    return {(one.plan, one.round): one.frames for one in record.outbox()}


def test_a_report_is_in_the_outbox_until_both_servers_have_it(record: ClientRecord) -> None:
    assert record.outbox() == []
    spend(record)
    (report,) = record.outbox()
    assert (report.plan, report.round, report.time, report.frames) == ("plan-0", 0, 1, BOTH)
    assert record.fate("plan-0", 0) is None
    assert report.said("helper", Said.ACCEPTED) is None
    assert left(record) == {("plan-0", 0): {"leader": REPORT.leader}}
    assert record.outbox()[0].said("leader", Said.ACCEPTED) is Fate.ACCEPTED
    assert record.outbox() == []
    assert record.fate("plan-0", 0) is Fate.ACCEPTED


def test_what_became_of_a_report_follows_from_what_was_said_first(record: ClientRecord) -> None:
    """All pairs of words of the helper and the leader, in the order of the protocol."""
    fates = {}
    for round, (helper, leader) in enumerate(product(Said, Said)):
        plan = f"plan-{round}"
        record.take_part("phones", plan, 0, None, 1, report=REPORT)
        (report,) = record.outbox()
        first = report.said("helper", helper)
        last = report.said("leader", leader)
        assert last is record.fate(plan, 0) is not None
        assert record.outbox() == []
        assert first in (None, last)  # a later word changes nothing
        fates[helper, leader] = last
    of = Said.ACCEPTED
    assert {pair: fate for pair, fate in fates.items() if pair[0] is of} == {
        (of, Said.ACCEPTED): Fate.ACCEPTED,
        (of, Said.REFUSED): Fate.NOT_COUNTED,
        (of, Said.NOTHING): Fate.UNKNOWN,
    }
    assert {fate for pair, fate in fates.items() if pair[0] is not of} == {Fate.NOT_COUNTED}


def test_what_a_server_says_again_changes_nothing(record: ClientRecord) -> None:
    spend(record)
    (report,) = record.outbox()
    report.said("helper", Said.ACCEPTED)
    for again in Said:
        assert report.said("helper", again) is None
        assert left(record) == {("plan-0", 0): {"leader": REPORT.leader}}
    report.said("leader", Said.REFUSED)
    for again in Said:
        for server in ("helper", "leader"):
            assert report.said(server, again) is Fate.NOT_COUNTED  # type: ignore[arg-type]
    assert record.fate("plan-0", 0) is Fate.NOT_COUNTED


def test_no_report_is_made_again_whatever_became_of_it(record: ClientRecord) -> None:
    spend(record)
    for end in (None, Said.REFUSED):
        if end is not None:
            record.outbox()[0].said("helper", end)
        before = left(record)
        with pytest.raises(AlreadySpentError, match="took part in round 0"):
            spend(record)
        assert left(record) == before


def test_reports_of_several_rounds_are_sent_the_oldest_first(record: ClientRecord) -> None:
    for round, time in ((0, 9), (1, 3), (2, 5)):
        spend(record, round, time=time)
    assert [one.round for one in record.outbox()] == [1, 2, 0]
    record.outbox()[0].said("helper", Said.REFUSED)
    assert left(record) == {("plan-0", 2): BOTH, ("plan-0", 0): BOTH}
    assert [record.fate("plan-0", round) for round in range(3)] == [None, Fate.NOT_COUNTED, None]


def test_a_part_without_a_report_leaves_the_outbox_empty(record: ClientRecord) -> None:
    record.take_part("phones", "plan-0", 0, EVENT, 1)
    assert record.outbox() == []
    assert record.fate("plan-0", 0) is None


def test_frames_are_not_printed(record: ClientRecord) -> None:
    spend(record)
    assert "frame" not in repr(record.outbox())


def test_the_journal_of_a_round_spends_the_items_and_keeps_the_report(record: ClientRecord) -> None:
    journal = Journal(record, PLAN, 0, time=7)
    assert journal.spend_report(REPORT)
    assert left(record) == {("plan-0", 0): BOTH}
    assert not journal.spend_report(Report(leader=b"another", helper=b"another"))
    assert "took part in round 0" in journal.refusal
    assert left(record) == {("plan-0", 0): BOTH}


def test_what_became_of_a_report_is_never_changed(record: ClientRecord) -> None:
    spend(record)
    record.outbox()[0].said("helper", Said.REFUSED)
    for statement in ("UPDATE fedtally_fates SET fate = 'ACCEPTED'", "DELETE FROM fedtally_fates"):
        with (
            pytest.raises(StoreError, match="append-only"),
            record._transaction(write=True) as connection,
        ):
            connection.exec_driver_sql(statement)


def test_an_old_copy_that_would_send_again_is_refused(tmp_path: Path) -> None:
    place, mark = tmp_path / "record.db", tmp_path / "mark"
    record = ClientRecord.open(place, create=True, mark=mark)
    spend(record)
    copy = place.read_bytes()
    record.outbox()[0].said("helper", Said.ACCEPTED)
    record = ClientRecord.open(place, mark=mark)  # it is no copy itself
    record.outbox()[0].said("helper", Said.ACCEPTED)  # and a repeat is no write
    place.write_bytes(copy)
    with pytest.raises(UnreadableFileError, match="old copy"):
        ClientRecord.open(place, mark=mark)


# ---- a client that dies at any statement ----


class Servers:
    """Two servers that take a report for ever, and remember what came."""

    def __init__(self) -> None:
        self.came: dict[str, list[tuple[int, bytes]]] = {"helper": [], "leader": []}

    def put(self, server: str, round: int, frame: bytes) -> Said:
        assert server == "helper" or round in dict(self.came["helper"])
        self.came[server].append((round, frame))
        return Said.REFUSED if server == "leader" and round == 1 else Said.ACCEPTED


def live(record: ClientRecord, servers: Servers, made: list[int]) -> None:
    """Report two rounds, and send what is in the outbox."""
    for round in range(2):
        report = Report(leader=f"leader {len(made)}".encode(), helper=f"{len(made)}".encode())
        made.append(round)
        Journal(record, PLAN, round, time=round).spend_report(report)
    for one in record.outbox():
        for server in sorted(one.frames):
            said = servers.put(server, one.round, one.frames[server])
            if one.said(server, said) is not None:
                break


def test_a_death_at_any_statement_makes_no_item_twice_and_loses_no_report(tmp_path: Path) -> None:
    template, template_mark = tmp_path / "record.db", tmp_path / "mark"
    ClientRecord.open(template, create=True, mark=template_mark)

    def until_the_end(at: list[int]) -> int:
        name = next(_numbers)
        place, mark, crashing = tmp_path / f"{name}.db", tmp_path / f"{name}.mark", Crashing(at)
        servers, made = Servers(), list[int]()
        for new, old in ((place, template), (mark, template_mark)):
            new.write_bytes(old.read_bytes())
        for _ in range(len(at) + 1):
            try:
                record = ClientRecord.open(place, mark=mark)
                crashing.watch(record)
                live(record, servers, made)
                break
            except Crash:
                pass
            gc.collect(1)
            after = ClientRecord.open(place, mark=mark)
            for round in range(2):
                spent = round in after.participations("plan-0")
                kept = ("plan-0", round) in left(after) or after.fate("plan-0", round) is not None
                assert spent == kept  # never one without the other
        record = ClientRecord.open(place, mark=mark)
        assert record.outbox() == []
        fates = [record.fate("plan-0", round) for round in range(2)]
        assert fates == [Fate.ACCEPTED, Fate.NOT_COUNTED]
        for came in servers.came.values():
            assert len(set(came)) == 2  # again at most byte for byte: one report of each round
        return crashing.steps

    steps = until_the_end([])
    assert steps > 40
    for step in range(1, steps + 1):
        until_the_end([step])
