"""The folder of a campaign: whole or not there, and checked whenever it is opened."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from pipes import piped
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from campaign_world import ALLOWED, DOMAIN, ROWS, WIDTH, N, plan_of
from cases import each_case
from secagg_cohort import five, stream

from fedtally.answer.provenance import planned_sum
from fedtally.answer.result import Result
from fedtally.campaign.driver import Deadlines
from fedtally.campaign.enrolment import save_allow_list
from fedtally.campaign.folder import CampaignFolder, check_begun, unrestorable
from fedtally.campaign.key_files import create_key_files
from fedtally.campaign.places import check_plain_file, kept_ledger
from fedtally.campaign.runner import Runner
from fedtally.campaign.screening import Screen, Screening
from fedtally.cli import campaign
from fedtally.domain import Dictionary
from fedtally.errors import InvalidInputError, OvertakenError, UnreadableFileError
from fedtally.plan import Plan, Target
from fedtally.plan.calendar import DAY, Calendar
from fedtally.privacy.budget import Charge
from fedtally.secagg.params import Adversary
from fedtally.secagg.server import ServerState
from fedtally.sketch import CountSketch
from fedtally.store import Campaigns, Ledger
from fedtally.store.marks import write_mark

QUICK = Deadlines(gather=2, phase=8, session=120)


@pytest.fixture
def operator(tmp_path: Path) -> Path:
    """The folder of an operator's files."""
    create_key_files(tmp_path / "server.key", "server", stream("server"))
    save_allow_list(tmp_path / "clients.allow", ALLOWED)
    return tmp_path


def made(operator: Path, plan: Plan, **more: Any) -> CampaignFolder:
    """Make a campaign without privacy."""
    plan.save(operator / "plan.toml")
    return CampaignFolder.create(
        operator / "survey",
        operator / "plan.toml",
        server_key=operator / "server.key",
        mark=operator / "mark",
        deadlines=QUICK,
        **more,
    )


def test_what_was_made_is_what_is_opened(operator: Path) -> None:
    folder = made(operator, plan_of("active"), allow_list=operator / "clients.allow")
    again = CampaignFolder.open(operator / "survey")
    assert again.allow_list is not None
    assert again.allow_list.digest == ALLOWED.digest
    assert replace(again, allow_list=None) == replace(folder, allow_list=None)
    assert (operator / "survey").stat().st_mode & 0o777 == 0o700


def test_what_happens_to_cohorts_that_stand_out_is_kept(operator: Path) -> None:
    folder = made(operator, plan_of("active"), allow_list=operator / "clients.allow", screen="warn")
    assert folder.screen is CampaignFolder.open(operator / "survey").screen is Screen.WARN


def test_cohorts_are_left_out_only_where_a_round_has_enough(operator: Path) -> None:
    with pytest.raises(InvalidInputError, match="has at most 7 cohorts, and 8 are needed"):
        made(operator, plan_of(cohorts=7), screen="refuse")
    assert made(operator, plan_of(cohorts=8), screen="refuse").screen is Screen.REFUSE


def test_a_ledger_that_does_not_cover_the_plan_is_refused(operator: Path) -> None:
    plan = plan_of("active", "distributed")
    assert plan.privacy is not None
    needed, population = plan.privacy.epsilon, plan.privacy.population
    more = {"allow_list": operator / "clients.allow", "ledger": str(operator / "books.db")}
    books = Ledger.open(more["ledger"], create=True)
    with pytest.raises(InvalidInputError, match="nothing was granted to population"):
        made(operator, plan, **more)
    books.grant(population, needed / 2, 1e-6, 1)
    with pytest.raises(InvalidInputError, match=f"does not cover this campaign: .*{population}"):
        made(operator, plan, **more)
    assert not (operator / "survey").exists()
    books.grant(population, 2 * needed, 1e-6, 1)
    made(operator, plan, **more)
    assert books.spent(population) is None


def test_nothing_is_restored_where_nothing_is(operator: Path) -> None:
    plan_of().save(operator / "plan.toml")
    keys = {"server_key": operator / "server.key", "mark": operator / "mark"}
    made = CampaignFolder.create(operator / "survey", operator / "plan.toml", **keys)
    (operator / "a.toml").write_text("")
    with pytest.raises(InvalidInputError, match="a.toml is a file, and no folder of a campaign"):
        CampaignFolder.open(operator / "a.toml")
    with pytest.raises(InvalidInputError, match="other holds no campaign: fedtally campaign init"):
        CampaignFolder.open(operator / "other")
    with pytest.raises(InvalidInputError, match="survey has not begun, .* fedtally campaign run"):
        made.restore(1)


def test_a_campaign_is_opened_from_anywhere(
    operator: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_of().save(operator / "plan.toml")
    monkeypatch.chdir(operator)
    CampaignFolder.create("survey", "plan.toml", server_key="server.key", mark="mark")
    (operator / "elsewhere").mkdir()
    monkeypatch.chdir(operator / "elsewhere")
    again = CampaignFolder.open(operator / "survey")
    assert (again.server_key, again.mark) == (operator / "server.key", operator / "mark")


def test_a_path_may_have_any_letter(operator: Path) -> None:
    server_key = operator / 'k\U0001f511"\\\x7f\n.key'
    (operator / "server.key").rename(server_key)
    plan_of().save(operator / "plan.toml")
    CampaignFolder.create(
        operator / "survey", operator / "plan.toml", server_key=server_key, mark=operator / "mark"
    )
    assert CampaignFolder.open(operator / "survey").server_key == server_key


def test_a_path_that_is_no_text_is_refused(operator: Path) -> None:
    server_key = operator / os.fsdecode(b"\xff.key")
    (operator / "server.key").rename(server_key)
    plan_of().save(operator / "plan.toml")
    with pytest.raises(InvalidInputError, match="not in UTF-8"):
        CampaignFolder.create(
            operator / "survey",
            operator / "plan.toml",
            server_key=server_key,
            mark=operator / "mark",
        )
    assert not list(operator.glob(".survey*"))


def test_a_campaign_has_begun_once_it_was_claimed(operator: Path) -> None:
    folder = made(operator, plan_of())
    (folder.path / "campaign.db").touch()  # what a process leaves that dies at its beginning
    assert not folder.has_begun
    Campaigns.open(folder.path / "campaign.db", create=True)
    assert (folder.has_begun, folder.stage()) == (False, "new")
    assert folder.cancel() == 0


def begun(operator: Path) -> CampaignFolder:
    """Return a campaign that has begun, and that no process runs."""
    folder = made(operator, plan_of())
    folder.claim(clock=lambda: 1, random=stream("claim"))
    assert folder.stage() == "stopped"
    return folder


@pytest.mark.parametrize("left", ["nothing", "an empty file", "a file without its plan"])
@pytest.mark.parametrize("is_marked", [True, False])
def test_a_campaign_without_its_file_never_begins_again(
    operator: Path, left: str, is_marked: bool
) -> None:
    """Its clients may have taken part, so every way on is refused, and names the one that works."""
    folder = begun(operator)
    state = folder.path / "campaign.db"
    copy = state.read_bytes()
    with pytest.raises(InvalidInputError, match="can go on"):
        folder.restore(1)  # nothing was lost yet
    state.unlink()
    if left == "an empty file":
        state.touch()
    elif left == "a file without its plan":
        Campaigns.open(state, create=True)
    if not is_marked:
        folder.mark.unlink()
    assert folder.stage() == "lost"
    before = state.read_bytes() if state.exists() else None
    said = "has lost its campaign.db, and its mark" if is_marked else "nor its mark .*: mount"
    for way in (
        folder.check_open,
        lambda: check_begun(folder),
        lambda: folder.restore(1),
        lambda: folder.claim(clock=lambda: 2, random=stream("again")),
        lambda: folder.run(1, clock=lambda: 2, random=stream("again")).__enter__(),
    ):
        with pytest.raises(InvalidInputError, match=f"{said}.*campaign restore.*campaign cancel"):
            way()
    assert (state.read_bytes() if state.exists() else None) == before
    assert folder.mark.exists() == is_marked
    # the one way: with a copy it can go on, also without its mark
    state.write_bytes(copy)
    if is_marked:
        folder.claim(clock=lambda: 3, random=stream("more"))
        state.write_bytes(copy)
    with pytest.raises(InvalidInputError, match="campaign restore"):
        folder.claim(clock=lambda: 4, random=stream("again"))
    assert folder.restore(1) == 0
    folder.claim(clock=lambda: 5, random=stream("on"))
    # the other way: without one it ends
    state.unlink()
    assert folder.cancel() == 0
    assert folder.stage() == "cancelled"


def test_a_campaign_whose_process_died_before_its_first_write_has_lost_nothing(
    operator: Path,
) -> None:
    """The mark counts 0 writes then: nobody was asked, and it begins as if nothing had been."""
    folder = made(operator, plan_of())
    write_mark(folder.mark, folder.plan.fingerprint, 0)
    assert (folder.stage(), folder.lost()) == ("new", "")
    folder.claim(clock=lambda: 1, random=stream("claim"))
    assert folder.stage() == "stopped"


def test_a_campaign_whose_process_died_as_it_made_the_file_has_not_begun(operator: Path) -> None:
    """The pages are written, and the journal is not emptied: SQLite undoes the transaction."""
    folder = made(operator, plan_of())
    state = folder.path / "campaign.db"
    Campaigns.open(state, create=True)
    # A journal of a file that had no pages: https://www.sqlite.org/fileformat2.html, 3.
    head = [0, 0, 0, 512, 4096]
    journal = bytes.fromhex("d9d505f920a163d7") + b"".join(n.to_bytes(4, "big") for n in head)
    (folder.path / "campaign.db-journal").write_bytes(journal.ljust(512, b"\0"))
    assert not folder.has_begun
    assert state.stat().st_size == 0  # SQLite has undone it: else this would test nothing
    state.write_bytes(b"no database" * 100)
    with pytest.raises(UnreadableFileError, match="no database"):
        _ = folder.has_begun


def test_without_a_session_that_has_a_sum_nothing_summed_the_campaign(operator: Path) -> None:
    """The ledger may hold a released sum that a copy of the file, put back, knows nothing of."""
    folder = made(operator, plan_of("active"), allow_list=operator / "clients.allow")
    folder.claim(clock=lambda: 1, random=stream("claim"))
    with pytest.raises(InvalidInputError, match="knows no session that has a sum"):
        folder.secure_sum()


def test_a_claim_that_fails_begins_nothing(operator: Path) -> None:
    (operator / "marks").mkdir()
    plan_of().save(operator / "plan.toml")
    folder = CampaignFolder.create(
        operator / "survey",
        operator / "plan.toml",
        server_key=operator / "server.key",
        mark=operator / "marks" / "survey",
    )
    shutil.rmtree(operator / "marks")  # its disk is not mounted
    with pytest.raises(InvalidInputError, match="mount its disk"):
        folder.claim(clock=lambda: 1, random=stream("claim"))
    assert not folder.has_begun


def test_a_plan_in_json_is_copied_as_toml(operator: Path) -> None:
    plan = plan_of()
    plan.save(operator / "plan.json")
    CampaignFolder.create(
        operator / "survey",
        operator / "plan.json",
        server_key=operator / "server.key",
        mark=operator / "mark",
    )
    assert CampaignFolder.open(operator / "survey").plan == plan


def test_candidates_that_the_plan_does_not_hold_are_copied(operator: Path) -> None:
    words = Dictionary(["tea", "milk", "salt"])
    (operator / "words.txt").write_text("tea\nmilk\nsalt\n")
    values = plan_of().to_dict() | {"domain": words.describe()}
    plan = Plan.from_dict(values)
    with pytest.raises(InvalidInputError, match="only the digest"):
        made(operator, plan)
    folder = made(operator, plan, candidates=operator / "words.txt")
    (operator / "words.txt").unlink()
    assert CampaignFolder.open(folder.path).domain == words
    (folder.path / "candidates.txt").write_text("tea\nsalt\nmilk\n")
    with pytest.raises(InvalidInputError, match="same lines in the same order"):
        CampaignFolder.open(folder.path)


def test_candidates_of_a_table_are_copied_as_a_list(operator: Path) -> None:
    words = Dictionary(['"tea"', '"milk"'])  # lines that are refused where no digest tells them
    (operator / "words.csv").write_text('n,word\n1,"""tea"""\n2,"""milk"""\n')
    plan = Plan.from_dict(plan_of().to_dict() | {"domain": words.describe()})
    folder = made(operator, plan, candidates=f"{operator}/words.csv:word")
    (operator / "words.csv").unlink()
    assert (folder.path / "candidates.txt").read_bytes() == b'"tea"\n"milk"\n'
    assert CampaignFolder.open(folder.path).domain == words


def test_nothing_is_overwritten(operator: Path) -> None:
    plan = plan_of()
    (operator / "mark").touch()
    with pytest.raises(InvalidInputError, match="the mark .* exists already"):
        made(operator, plan)
    assert not (operator / "survey").exists()
    (operator / "mark").unlink()
    made(operator, plan)
    with pytest.raises(InvalidInputError, match="survey exists already"):
        made(operator, plan)


def test_no_mark_is_that_of_two_campaigns(operator: Path) -> None:
    """Also where neither has run: the second one to run would find the mark of the first."""
    (operator / "disk").mkdir()
    (operator / "mark").symlink_to(operator / "disk" / "mark")
    first = made(operator, plan_of())
    with pytest.raises(InvalidInputError, match="the mark .* exists already"):
        CampaignFolder.create(
            operator / "other",
            operator / "plan.toml",
            server_key=operator / "server.key",
            mark=operator / "disk" / "mark",
        )
    assert not (operator / "other").exists()
    assert (operator / "disk" / "mark").read_bytes() == b""
    first.claim(clock=lambda: 1, random=stream("claim"))  # its own mark, in which nothing was


def test_a_plan_that_another_run_charged_is_refused(operator: Path) -> None:
    plan, files = plan_of(trust="distributed"), {"ledger": str(operator / "books.db")}
    assert plan.privacy is not None
    books = Ledger.open(files["ledger"], create=True)
    books.grant(plan.privacy.population, 99, 1e-6, 1)
    charge = Charge(plan.privacy.population, plan.fingerprint, 0, plan.privacy.event)
    books.reserve(charge, "another run", 1)
    with pytest.raises(InvalidInputError, match="another run charged this plan"):
        made(operator, plan, **files)
    assert not (operator / "survey").exists() and not (operator / "mark").exists()


@pytest.mark.parametrize(("clients", "rounds"), [(2 * N, 2), (2 * N - 1, 2), (3 * N - 1, 3)])
def test_a_plan_whose_rounds_cannot_all_land_is_refused(
    operator: Path, clients: int, rounds: int
) -> None:
    plan = replace(plan_of(rounds=rounds), num_clients=clients)
    if clients == N * rounds:
        made(operator, plan)
        return
    with pytest.raises(
        InvalidInputError, match=rf"of {rounds} rounds needs {N} .* enough for {rounds - 1} round"
    ):
        made(operator, plan)
    assert not (operator / "survey").exists()


def test_a_folder_that_cannot_be_made_is_an_error(operator: Path) -> None:
    plan_of().save(operator / "plan.toml")
    (operator / "file").touch()
    with pytest.raises(InvalidInputError, match="cannot make"):
        CampaignFolder.create(
            operator / "file" / "survey",
            operator / "plan.toml",
            server_key=operator / "server.key",
            mark=operator / "mark",
        )


@pytest.mark.parametrize("at", ["mkdir", "fsync"])
def test_a_full_disk_leaves_nothing_behind(
    operator: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    plan_of().save(operator / "plan.toml")
    before = sorted(operator.iterdir())

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, at, full)
    with pytest.raises(InvalidInputError, match="No space left"):
        CampaignFolder.create(
            operator / "survey",
            operator / "plan.toml",
            server_key=operator / "server.key",
            mark=operator / "mark",
        )
    assert sorted(operator.iterdir()) == before


def test_a_plan_without_secure_aggregation_is_refused(operator: Path) -> None:
    plan = Plan(ROWS, WIDTH, "shared", 1, 50, 50, DOMAIN.describe(), 1, bytes(32))
    with pytest.raises(InvalidInputError, match="is not summed by secagg") as caught:
        made(operator, plan)
    assert caught.value.option == "secure_sum"


def test_a_folder_that_holds_no_campaign_is_an_error(operator: Path) -> None:
    with pytest.raises(UnreadableFileError, match="campaign init makes one"):
        CampaignFolder.open(operator)


def test_the_stages_of_a_campaign(operator: Path) -> None:
    folder = made(operator, plan_of())
    assert folder.stage() == "new"
    with folder.lock(1):
        assert (folder.stage(), folder.runner()) == ("running", Runner.this(1))
        with pytest.raises(InvalidInputError, match="process 1 runs"), folder.lock(2):
            pass
        with folder.run(3, clock=lambda: 1, random=stream("claim"), take_over=True):
            assert folder.runner().number == 3
    assert (folder.stage(), folder.runner()) == ("stopped", None)
    (folder.path / "result.fed").touch()
    assert folder.stage() == "over"
    with pytest.raises(InvalidInputError, match="is over"):
        folder.cancel()
    (folder.path / "result.fed").unlink()
    assert folder.cancel() == 0
    assert folder.stage() == "cancelled"
    with pytest.raises(InvalidInputError, match="was cancelled"):
        folder.check_open()


def test_a_campaign_that_is_cancelled_as_it_is_claimed_does_not_run(
    operator: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made(operator, plan_of())
    claim = CampaignFolder.claim

    def late(self: CampaignFolder, **given: Any) -> Any:
        folder.cancel()
        return claim(self, **given)

    monkeypatch.setattr(CampaignFolder, "claim", late)
    with pytest.raises(InvalidInputError, match="was cancelled"):
        folder.run(1, clock=lambda: 1, random=stream("claim")).__enter__()
    assert folder.stage() == "cancelled"


def test_a_campaign_whose_cancelling_failed_is_cancelled_again(
    operator: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody may go on with it, and its process is silenced by the second attempt."""
    folder = made(operator, plan_of())
    store = folder.claim(clock=lambda: 1, random=stream("claim"))

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(Campaigns, "give_up", full)
        with pytest.raises(OSError, match="No space"):
            folder.cancel()
    with pytest.raises(InvalidInputError, match="was cancelled"):
        folder.check_open()
    folder.cancel()
    with pytest.raises(OvertakenError):
        store.forget(folder.plan, bytes(32))


def test_a_campaign_that_cannot_be_taken_over_stays_with_its_process(operator: Path) -> None:
    folder = made(operator, plan_of())
    with folder.lock(1):
        (operator / "server.key").rename(operator / "elsewhere")
        for take_over, says in ((True, "server.key"), (False, "process 1 runs")):
            with (
                pytest.raises(InvalidInputError, match=says),
                folder.run(2, clock=lambda: 1, random=stream("claim"), take_over=take_over),
            ):
                pass
            assert folder.runner().number == 1
    assert sorted(os.listdir(folder.path)) == ["campaign.toml", "lock", "plan.toml"]


def test_who_looks_at_a_campaign_finds_no_earlier_process(
    operator: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was killed left its number, which may be that of another program by now."""
    folder = made(operator, plan_of())
    (folder.path / "lock").write_text("4321\n")
    seen: list[Runner | None] = []
    flock = fcntl.flock

    def looked(file: int, how: int) -> None:
        flock(file, how)
        if how & fcntl.LOCK_EX:
            seen.append(folder.runner())

    monkeypatch.setattr(fcntl, "flock", looked)
    with folder.lock(2):
        assert folder.runner().number == 2
    assert seen == [None]


def test_who_looks_at_a_campaign_keeps_nobody_from_running_it(operator: Path) -> None:
    folder = made(operator, plan_of())
    with folder.lock(1):
        pass
    with open(folder.path / "lock", encoding="ascii") as look:
        fcntl.flock(look, fcntl.LOCK_SH)
        with folder.lock(2):
            assert folder.runner().number == 2


def test_a_full_disk_leaves_the_campaign_free(
    operator: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made(operator, plan_of())

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "ftruncate", full)
        with pytest.raises(InvalidInputError, match="No space left"), folder.lock(1):
            pass
    assert not (folder.path / "lock.new").exists()
    with folder.lock(2):
        assert folder.runner().number == 2


def test_a_lock_that_another_process_just_moved_is_made_anew(
    operator: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its opening and its lock the file may become the lock of the campaign."""
    folder = made(operator, plan_of())
    flock, moved = fcntl.flock, []

    def late(file: int, how: int) -> None:
        if how & fcntl.LOCK_EX and not moved:
            moved.append((folder.path / "lock.new").rename(folder.path / "moved"))
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with folder.lock(2):
        assert folder.runner().number == 2
    assert moved


def test_of_two_processes_that_begin_at_once_one_is_refused(operator: Path) -> None:
    folder = made(operator, plan_of())
    refused = pytest.raises(InvalidInputError, match="about to run")
    with folder._next_lock(1), refused, folder.lock(2):
        pass
    with folder.lock(3):
        assert folder.runner().number == 3


def test_a_lock_that_cannot_be_written_is_refused_in_words(operator: Path) -> None:
    folder = made(operator, plan_of())
    (folder.path / "lock.new").symlink_to("/dev/null")
    with pytest.raises(InvalidInputError, match="cannot open or write the lock"), folder.lock(1):
        pass


@pytest.mark.parametrize("make", ["mkdir", "mkfifo", "symlink"])
def test_something_else_in_the_place_of_the_lock_is_refused_in_words(
    operator: Path, make: str
) -> None:
    folder = made(operator, plan_of())
    place = folder.path / "lock"
    place.symlink_to(place) if make == "symlink" else getattr(os, make)(place)
    if make == "mkfifo":  # nobody holds it, and no reader waits for it
        assert folder.stage() == "new"
        return
    refused = pytest.raises(InvalidInputError, match="something else has that name")
    if make == "symlink":
        with refused:
            folder.runner()
    else:
        with refused, folder.lock(1):
            pass
        assert not (folder.path / "lock.new").exists()


@each_case(
    ("adversary", "trust", "change", "reason"),
    [
        ("semi-honest", None, {"mark": "survey/mark"}, "lies in the campaign's folder"),
        ("semi-honest", None, {"mark": "gone/../survey/mark"}, "lies in the campaign's folder"),
        ("semi-honest", None, {"mark": "gone/mark"}, "there is no folder .*gone"),
        ("active", "distributed", {"ledger": "none.db"}, "there is no ledger"),
        ("semi-honest", None, {"ledger": "books.db"}, "without privacy, and a ledger"),
        ("semi-honest", None, {"server_key": "other.key"}, "not the one that the plan names"),
        ("semi-honest", None, {"candidates": "words.txt"}, "holds its candidates as a whole"),
        ("active", None, {"allow_list": None}, "allow-list is not the one"),
        ("active", "distributed", {"ledger": None}, "is charged to a ledger"),
    ],
)
def test_files_that_do_not_fit_are_refused_and_nothing_is_made(
    operator: Path, adversary: str, trust: str | None, change: dict[str, Any], reason: str
) -> None:
    plan_of(adversary, trust).save(operator / "plan.toml")
    if not (operator / "other.key").exists():
        create_key_files(operator / "other.key", "server", stream("another"))
    (operator / "words.txt").write_text("tea\n")
    given: dict[str, Any] = {"server_key": "server.key", "mark": "mark"}
    given |= {"allow_list": "clients.allow"} if adversary == "active" else {}
    given |= {"ledger": "books.db"} if trust else {}
    files = {name: file and operator / file for name, file in (given | change).items()}
    if files.get("ledger"):
        files["ledger"] = str(files["ledger"])
    place = operator / "survey"
    with pytest.raises(InvalidInputError, match=reason):
        CampaignFolder.create(place, operator / "plan.toml", **files)
    assert not place.exists()
    assert not list(operator.glob(".survey*"))


@each_case(
    ("url", "shown"),
    [
        ("postgresql://me:hunter2@host/books", "me:***@host/books"),
        ("postgresql+psycopg://me:hunter2@host/books", "me:***@host/books"),
        ("postgresql://me@host/books?password=hunter2&port=7", "me@host/books?port=7"),
        ("postgresql://me@host/books?sslpassword=hunter2", "me@host/books"),
    ],
)
def test_a_password_of_a_ledger_is_written_nowhere(operator: Path, url: str, shown: str) -> None:
    more = {"allow_list": operator / "clients.allow", "ledger": url}
    with pytest.raises(InvalidInputError) as caught:
        made(operator, plan_of("active", "distributed"), **more)
    said = str(caught.value)
    assert f"postgresql://{shown}" in said and "holds a password" in said and "hunter2" not in said
    assert "campaign.toml" in said and "~/.pgpass" in said
    assert not (operator / "survey").exists() and not (operator / "mark").exists()


def test_a_url_without_a_password_is_kept_as_it_is() -> None:
    for url in ("postgresql://me@host/books", "postgresql:///books?host=/run&passfile=/x"):
        assert kept_ledger(url, "campaign.toml") == url
    assert kept_ledger(None, "campaign.toml") is None
    assert kept_ledger("books.db", "campaign.toml") == str(Path("books.db").absolute())


def test_a_key_that_no_later_process_can_read_is_refused(operator: Path) -> None:
    """As of `--server-key <(cat server.key)`, or of standard input."""
    plan_of().save(operator / "plan.toml")
    key = operator / "server.key"
    with piped(key) as pipe, open(key) as file:
        for given in (pipe, f"/dev/fd/{file.fileno()}", f"/proc/self/fd/{file.fileno()}"):
            with pytest.raises(InvalidInputError, match=f"{given}.* is no plain file") as caught:
                CampaignFolder.create(
                    operator / "survey",
                    operator / "plan.toml",
                    server_key=given,
                    mark=operator / "mark",
                )
            assert "name the file itself" in str(caught.value)
    assert not (operator / "survey").exists() and not (operator / "mark").exists()
    link = operator / "link.key"
    link.symlink_to(key)
    check_plain_file("server_key", link)
    check_plain_file("server_key", operator / "gone.key")


def test_a_plan_that_nobody_may_run_makes_no_campaign(operator: Path) -> None:
    plan = plan_of().without_keys()
    plan.save(operator / "plan.toml")
    with pytest.raises(InvalidInputError, match="nobody may run it"):
        CampaignFolder.create(
            operator / "survey",
            operator / "plan.toml",
            server_key=operator / "server.key",
            mark=operator / "mark",
        )


@each_case(
    ("old", "new", "reason"),
    [
        ("fedtally-campaign/1", "fedtally-campaign/0", "campaign/0.*reads .*/1: finish .* init"),
        ("phase = 8", "phase = 8\nfaze = 3", "unknown entries faze"),
        ("phase = 8", "phase = 0", "phase_seconds must be at least 1"),
        ("mark =", "marc =", "lacks mark"),
        ('mark = "', 'mark = 7 # "', "needs the entry mark, a text"),
        ("phase = 8", "phase = ", "cannot read"),
    ],
)
def test_a_damaged_campaign_file_is_refused(
    operator: Path, old: str, new: str, reason: str
) -> None:
    place = operator / "survey"
    if not place.exists():
        made(operator, plan_of())
    file = place / "campaign.toml"
    before = file.read_text()
    assert old in before
    file.write_text(before.replace(old, new))
    with pytest.raises((InvalidInputError, UnreadableFileError), match=reason):
        CampaignFolder.open(place)
    file.write_text(before)


def test_a_campaign_that_ends_early_knows_its_candidates(operator: Path) -> None:
    """The driver of its folder judges the sums by the rule of the plan and the domain there."""
    plan = plan_of(rounds=4)
    ending = replace(plan, schedule="hybrid", target=Target(0.5, 0.1, "joint", until_known=1))
    folder = made(operator, ending)
    driver = folder.driver(clock=lambda: 0, random=stream("driver"))
    sketches = [CountSketch(ending.spec, number) for number in range(3)]
    for sketch in sketches:
        sketch.add(np.full(N, 1, np.uint64))
    assert driver._is_known is not None
    assert not driver._is_known(sketches[:1]) and driver._is_known(sketches)


def test_a_result_of_days_says_that_a_client_may_be_in_several(
    operator: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one of any two days, and so in two of days 0 and 2."""
    base = plan_of(trust="distributed", rounds=4)
    assert base.privacy is not None
    event = replace(base.privacy.event, per_rounds=2, num_rounds=4)
    days = Calendar(datetime(2030, 1, 1, tzinfo=UTC), DAY, 4)
    weekly = replace(base.privacy, event=event)
    Ledger.open(operator / "books.db", create=True).grant(weekly.population, 99, 1e-6, 1)
    plan = replace(base, schedule="hybrid", privacy=weekly, calendar=days)
    folder = made(operator, plan, ledger=str(operator / "books.db"))
    # nothing ran: what its sessions would have said of the sums is what the plan says
    monkeypatch.setattr(CampaignFolder, "secure_sum", lambda self: dict(planned_sum(self.plan)))
    sums = {}
    for round in (0, 1, 2):
        sums[round] = CountSketch(folder.plan.spec, round)
        sums[round].add(np.full(N, 1, np.uint64))
        sums[round].noise = folder.plan.noise_mark

    def result_of(*rounds: int) -> Any:
        chosen = [sums[round] for round in rounds]
        return campaign._result_of(folder, chosen, Screening(Screen.OFF), [])

    share = np.array([0.25])
    apart, near = result_of(0, 2), result_of(0, 1)
    assert (near.unit, near.num_clients) == ("clients", 2 * N)  # nobody is in two days in a row
    assert apart.unit == "contributions"
    assert any("of how many clients, no sum shows" in text for text in apart.warnings)
    # All may have come twice: two days have no more people than one.
    assert apart.sampling_error(share) == result_of(0).sampling_error(share)
    assert apart.sampling_error(share) > 1.3 * near.sampling_error(share)
    apart.save(tmp_path / "apart.fed")
    again = Result.load(tmp_path / "apart.fed")
    assert (again.unit, again.repeats) == ("contributions", 2)
    assert again.sampling_error(share) == apart.sampling_error(share)
    window = result_of(0, 1, 2).window("0..1")
    assert window.sampling_error(share) == near.sampling_error(share)


def test_sessions_that_this_version_cannot_go_on_with_are_named() -> None:
    """Of a session in each of three phases, one was written by another version."""
    phases = (ServerState.ADVERTISE, ServerState.SHARE, ServerState.COLLECT)
    cohorts = [five(Adversary.ACTIVE, phase) for phase in phases]
    written = [cohort.server.checkpoint() for cohort in cohorts]
    schema = written[1].index(b"fedtally")
    written[1] = written[1][:schema] + b"elsewise" + written[1][schema + len(b"elsewise") :]
    saved = [SimpleNamespace(checkpoint=each) for each in written]
    asked = list[tuple[Any, int]]()

    def open_sessions(plan: Any, now: int) -> list[SimpleNamespace]:
        asked.append((plan, now))
        return saved

    state = SimpleNamespace(open_sessions=open_sessions)
    folder = SimpleNamespace(state=lambda: state, plan="the plan", allow_list=cohorts[0].allow_list)
    found = unrestorable(cast("CampaignFolder", folder), 5, random=stream("status"))
    assert asked == [("the plan", 5)]
    assert [session for session, _ in found] == [saved[1]] and found[0][1]
