"""The driver: the order that holds, whatever dies when; whom it asks; what it says to an engine."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from campaign_world import (
    ALLOWED,
    DEADLINES,
    PEOPLE,
    SERVER_KEY,
    START,
    Crash,
    N,
    Person,
    World,
    plan_of,
    small_plan,
)
from secagg_cohort import stream

from fedtally.base.encoding import Encoding
from fedtally.campaign.driver import (
    JITTER,
    RETRY_SECONDS,
    Deadlines,
    Driver,
    Receipt,
    ServerKeys,
)
from fedtally.errors import InvalidInputError, OvertakenError, UnreadableFileError
from fedtally.privacy.budget import OverspentError
from fedtally.secagg import checkpoints, wire
from fedtally.secagg.messages import (
    EXCHANGES,
    AbortCode,
    Kind,
    LocalProtocolError,
    ServerState,
)
from fedtally.secagg.params import modulus_bits
from fedtally.sketch import CountSketch
from fedtally.store import (
    Campaigns,
    CampaignStore,
    Ledger,
    SavedSession,
    StoreError,
    claims,
    database,
    marks,
)
from fedtally.store.marks import write_mark
from fedtally.store.writes import writes_of

BOTH = ("semi-honest", "active")
pytestmark = pytest.mark.usefixtures("no_sync")


@pytest.fixture
def folder(tmp_path):
    return tmp_path


def frames_of(world, kind):
    """Let the campaign go on until every client has been handed a frame of a kind, unanswered."""
    found = set()

    def absent(number, said):
        if said is kind:
            found.add(number)
        return said is kind

    world.absent = absent
    while len(found) < N:
        assert world.now < START + 100
        for person in world.persons:
            world.hand(person)
        if len(found) < N:
            world.driver.tick(world.now)
            world.now += 1
    world.absent = lambda number, said: False
    wait(world, 11)  # they may be handed it again
    return found


def wait(world, seconds):
    """Let time pass, with a process that is there."""
    for _ in range(seconds):
        world.now += 1
        world.driver.tick(world.now)


def answer_all(world):
    for person in world.persons:
        world.hand(person)


def gather(world):
    """Let everybody check in, and the session open."""
    for person in world.persons:
        world.driver.check_in(person.number, world.now)
    world.driver.tick(world.now)


def keep_sum(world):
    """End the process after it wrote the sum, which had not landed: as earlier versions did."""
    [live] = world.driver._live.values()
    kept = []
    live.session._journal = kept.append
    live.session.close_phase(world.now)
    saved = replace(
        live.saved, phase="done", checkpoint=kept[0], version=live.saved.version + 1, farewell=None
    )
    world.claim().save(world.plan, saved, ())
    world.driver = world.start()


# ---- the order that holds ----


@pytest.mark.promise
@pytest.mark.parametrize("adversary", BOTH)
@pytest.mark.parametrize("trust", [None, "distributed", "central"])
def test_a_campaign_lands(folder, adversary, trust):
    world = World(folder, plan_of(adversary, trust)).run()
    world.check()
    assert world.processes == 1
    assert {receipt for _, receipt in world.receipts} == {Receipt.TAKEN}


@pytest.mark.parametrize("trust", [None, "distributed", "central"])
def test_a_campaign_of_histograms_lands(folder, trust):
    """All hold one item, and with the fewest bits its count would be negative with a sign."""
    plan = plan_of(trust=trust, encoding=Encoding.HISTOGRAM)
    most = (2 if trust == "central" else 1) * N
    bits = modulus_bits(most, 1, plan.noise_bound, multiple=1, signed=False)
    agreed = plan.secure_sum
    plan = replace(
        plan, secure_sum=replace(agreed, parameters=replace(agreed.parameters, bits=bits))
    )
    world = World(folder, plan, hold=lambda _: [1]).run()
    world.check()
    [sketch] = world.claim().sums(plan)
    if trust is None:
        assert bits == 4 and sketch.vector.tolist() == [N] + [0] * 49
    assert sketch.noise == (plan.noise_mark if trust == "distributed" else None)


def steps_that_differ(log, error, clients):
    """Return the numbers of the steps of a campaign whose end leaves something else behind."""
    for number, (last, what) in enumerate(pairwise(["", *log]), start=1):
        if what.startswith(("frame", "answer")):
            # Clients do the same one after the other, and an error of the store is not in a frame.
            if error is None and what.endswith((" 0", f" {clients - 1}")):
                yield number
        elif error is not None or not (what.startswith("before") and last.startswith("after")):
            # From a call of the store to the next one only the memory changes, which a crash takes.
            yield number


@pytest.mark.promise
@pytest.mark.parametrize("error", [None, StoreError], ids=["crash", "error"])
@pytest.mark.parametrize(("adversary", "trust"), [("semi-honest", None), ("active", "distributed")])
def test_a_crash_or_an_error_at_any_step_loses_nothing(folder, adversary, trust, error, matrix):
    """Before and after the calls of the store and the frames, one a run; with --matrix at all."""
    plan = small_plan(adversary, trust)
    clients = plan.num_clients
    (folder / "none").mkdir()
    log = World(folder / "none", plan, clients).run().log
    assert len(log) > 50
    for stop in range(1, len(log) + 1) if matrix else steps_that_differ(log, error, clients):
        place = folder / str(stop)
        place.mkdir()
        world = World(place, plan, clients, stops=frozenset({stop}), error=error).run()
        world.check()
        shutil.rmtree(place)


@pytest.mark.parametrize("stops", ["", "before end", "after end"])
def test_a_sum_that_an_earlier_version_kept_lands_at_the_restart(folder, stops):
    world = World(folder, plan_of())
    frames_of(world, Kind.SURVIVORS)
    answer_all(world)
    keep_sum(world)

    def step(what):
        if what == stops:
            world.step = World.step.__get__(world)
            raise Crash

    world.step = step
    try:
        world.driver.tick(world.now)
    except Crash:
        assert stops
        world.driver = world.start()
        world.driver.tick(world.now)
    assert world.driver.is_complete  # nobody had to be there
    world.check()


def test_a_session_ends_and_lands_in_one_write(folder):
    """Between the two, a process that dies would leave the sum beside what it was made of."""
    world = World(folder, plan_of())
    frames_of(world, Kind.SURVIVORS)
    answer_all(world)
    begun, seen = world.steps, world.claim()._claim._written
    world.driver = world.start()
    world.run()
    assert [what for what in world.log[begun:] if what.startswith("before end")] == ["before end"]
    assert world.log[begun:].count("before land") == 0
    assert world.claim()._claim._written == seen + 3  # two claims, and the end
    world.check()


@pytest.mark.promise
def test_two_crashes_in_one_campaign_lose_nothing(folder):
    plan, rng = plan_of(), np.random.default_rng(1)
    for number in range(20):
        place = folder / str(number)
        place.mkdir()
        stops = frozenset(rng.integers(1, 110, 2).tolist())
        World(place, plan, stops=stops).run().check()


def test_after_an_error_of_the_store_clients_hear_nothing_until_the_session_is_restored(folder):
    world = World(folder, plan_of())
    frames_of(world, Kind.INBOX)
    answer_all(world)
    at = world.steps + 1
    world.stops, world.error = frozenset({at}), StoreError
    with pytest.raises(StoreError):
        world.driver.tick(world.now)
    assert all(world.driver.next(person.number, world.now + 60) is None for person in world.persons)
    world.run().check()


# ---- a process that was away ----


REQUESTS = [(of.value, step.request) for of, steps in EXCHANGES.items() for step in steps]


@pytest.mark.parametrize(("adversary", "asked"), REQUESTS)
# Without one answer a session goes on at the first deadline, and without most at the second one.
@pytest.mark.promise
@pytest.mark.parametrize(("missing", "phases"), [(1, 2), (N - 1, 8)])
def test_answers_that_lie_unread_while_the_server_is_suspended_count(
    folder, adversary, asked, missing, phases
):
    world = World(folder, plan_of(adversary, n_min=N - 1))
    frames_of(world, asked)
    frames = [world.driver.next(person.number, world.now) for person in world.persons]
    answers = [
        person.answer(frame, world.now) for person, frame in zip(world.persons, frames, strict=True)
    ]
    for number in range(missing, N):
        assert world.driver.receive(number, answers[number], world.now) is Receipt.TAKEN
    world.now += phases * DEADLINES.phase
    for _ in range(3):  # before the engine has read what lies there
        world.driver.tick(world.now)
    for number in range(missing):
        assert world.driver.receive(number, answers[number], world.now) is Receipt.TAKEN
    world.run().check()
    assert world.processes == 1


def test_a_phase_ends_where_the_server_is_slow_and_was_not_away(folder):
    """Else a dead client would hold up a busy server for ever."""
    world = World(folder, plan_of(n_min=N - 1))
    frames_of(world, Kind.ROSTER)
    world.absent = lambda number, kind: number == 0
    for _ in range(5):  # of the phase, 19 of 30 seconds are left
        answer_all(world)
        world.now += 7  # a quarter of a phase is 7.5 seconds
        world.driver.tick(world.now)
    assert world.landed()[0][0] == N - 1


def test_a_suspended_process_gives_a_phase_no_time_beyond_the_end_of_its_session(folder):
    world = World(folder, plan_of(cohorts=2))
    frames_of(world, Kind.INBOX)
    world.now += DEADLINES.session
    world.driver.tick(world.now)
    assert not world.driver.running()


@pytest.mark.parametrize("is_copy", [False, True], ids=["process", "copy"])
def test_a_process_that_was_overtaken_while_it_was_suspended_says_nothing(folder, is_copy):
    world = World(folder, plan_of())
    frames_of(world, Kind.INBOX)
    if is_copy:
        shutil.copy(folder / "campaign.db", folder / "copy.db")
        Campaigns.open(folder / "copy.db").claim(
            world.plan, mark=folder / "mark", clock=lambda: START, owner="campaign"
        )
    else:
        world.claim()
    world.now += DEADLINES.phase // 2
    assert all(world.driver.next(person.number, world.now) is None for person in world.persons)
    with pytest.raises(OvertakenError):
        world.driver.tick(world.now)
    assert all(world.driver.next(person.number, world.now) is None for person in world.persons)


def test_a_process_that_was_away_says_nothing_while_the_store_does_not_answer(folder):
    world = World(folder, plan_of())
    frames_of(world, Kind.INBOX)
    world.now += DEADLINES.phase // 2
    world.on_step = lambda what: raise_(StoreError(what))
    with pytest.raises(StoreError, match="before check_claim"):
        world.driver.tick(world.now)
    assert all(world.driver.next(person.number, world.now) is None for person in world.persons)
    world.on_step = None
    world.run().check()


def test_nobody_hears_of_a_write_that_the_mark_does_not_count(folder, monkeypatch):
    """As on a full disk of the mark: else a copy put back would show a second set of survivors."""
    world = World(folder, plan_of())
    frames_of(world, Kind.INBOX)
    answer_all(world)
    shutil.copy(folder / "campaign.db", folder / "copy.db")
    with monkeypatch.context() as full:
        full.setattr(claims, "write_mark", lambda *_: raise_(StoreError("no room")))
        for _ in range(5):
            with pytest.raises(StoreError):
                world.driver.tick(world.now)
            world.now += RETRY_SECONDS
            assert all(world.driver.next(one.number, world.now) is None for one in world.persons)
    world.driver.tick(world.now)
    assert wire.parse(world.driver.next(0, world.now)).kind is Kind.SURVIVORS
    shutil.copy(folder / "copy.db", folder / "campaign.db")
    with pytest.raises(InvalidInputError, match="a copy was put back"):
        world.claim()


def test_a_mark_that_did_not_reach_the_disk_is_written_again(folder, monkeypatch):
    """The file shows the new number already; a loss of power would take it back."""
    store = World(folder, plan_of()).driver._store
    written = []

    def write(path, name, writes):
        written.append(writes)
        write_mark(path, name, writes)
        if len(written) == 1:
            raise StoreError("fsync failed")

    monkeypatch.setattr(claims, "write_mark", write)
    with pytest.raises(StoreError, match="fsync"):
        store.forget(plan_of(), bytes(32))
    for _ in range(2):
        store.check_claim(plan_of())
    assert written == [2, 2]


def raise_(error):
    raise error


# ---- one process a campaign ----


def test_a_process_that_was_overtaken_writes_nothing_and_says_nothing(folder):
    world = World(folder, plan_of())
    frames_of(world, Kind.INBOX)
    old, world.driver = world.driver, world.start()
    for person in world.persons[:6]:
        frame = old.next(person.number, world.now)
        assert wire.parse(frame).kind is Kind.INBOX  # what was final before is the same for both
        old.receive(person.number, person.answer(frame, world.now), world.now)
    for _ in range(2):
        with pytest.raises(OvertakenError):
            old.tick(world.now + 200)  # it may not close the phase: the other one will
    assert old.is_overtaken
    for person in world.persons:
        assert old.next(person.number, world.now + 300) is None
        assert not old.check_in(person.number, world.now)
        assert old.receive(person.number, b"", world.now) is Receipt.LATE
    world.run().check()


def test_a_process_that_is_overtaken_while_it_restores_stops(folder):
    def overtaken(saved):
        raise OvertakenError("another process runs this campaign")

    world = World(folder, plan_of())
    gather(world)
    world.driver = world.start()
    world.driver._resume = overtaken
    with pytest.raises(OvertakenError):
        world.driver.tick(world.now)
    assert world.driver.is_overtaken


def test_an_overtaken_store_refuses_every_write(folder):
    plan = plan_of("active", "central")
    world = World(folder, plan).run()
    store = world.claim()
    saved = store.sessions(plan)[0]
    world.claim()
    sketch = store.sums(plan)[0]
    for write in (
        lambda: store.save(plan, replace(saved, version=saved.version + 1), ()),
        lambda: store.forget(plan, saved.session),
        lambda: store.land(plan, b"other", sketch),
        lambda: store.end(plan, replace(saved, session=b"other", version=1), sketch),
        lambda: store.reserve(plan, 0),
        lambda: store.release(plan, {0: sketch}),
    ):
        with pytest.raises(OvertakenError):
            write()


def test_a_landing_counts_once(folder):
    plan = plan_of()
    world = World(folder, plan).run()
    store = world.claim()
    [sketch], [saved] = store.sums(plan), store.sessions(plan)
    assert not store.land(plan, saved.session, sketch)
    later = replace(saved, version=saved.version + 1)
    assert not store.end(plan, later, sketch) and store.sessions(plan) == [saved]
    other = replace(saved, session=b"other", version=3)
    with pytest.raises(OvertakenError, match="by another process"):
        store.end(plan, other, sketch)  # which has no row to replace: its sum must not stay
    assert [one.num_clients for one in store.sums(plan)] == [N]


def test_a_version_is_written_once(folder):
    plan = plan_of()
    world = World(folder, plan).run()
    store = world.claim()
    saved = store.sessions(plan)[0]
    with pytest.raises(OvertakenError, match="by another process"):
        store.save(plan, saved, ())


def test_a_store_is_of_one_plan(folder):
    world = World(folder, plan_of())
    with pytest.raises(InvalidInputError, match="another plan"):
        world.claim().sessions(plan_of(rounds=2))


def test_a_file_that_was_put_back_is_refused_until_its_sessions_are_given_up(folder):
    """Its first run said which clients survive; a second one could open the other secrets."""
    world = World(folder, plan_of())
    frames_of(world, Kind.INBOX)
    shutil.copy(folder / "campaign.db", folder / "copy.db")
    answer_all(world)
    world.driver.tick(world.now)
    assert wire.parse(world.driver.next(0, world.now)).kind is Kind.SURVIVORS
    shutil.copy(folder / "copy.db", folder / "campaign.db")
    with pytest.raises(InvalidInputError, match="a copy was put back"):
        world.claim()
    campaigns = Campaigns.open(folder / "campaign.db")
    assert campaigns.give_up(world.plan, mark=folder / "mark") == 1
    store = world.claim()
    assert store.sessions(world.plan) == []
    assert store.asked(world.plan) == {0: set(range(N))}


def test_a_process_whose_file_is_put_back_stops_and_leaves_the_mark(folder):
    """Else the mark would say of the copy that it is none."""
    world = World(folder, plan_of(cohorts=2))
    frames_of(world, Kind.INBOX)
    shutil.copy(folder / "campaign.db", folder / "copy.db")
    world.run(100)
    mark = (folder / "mark").read_bytes()
    shutil.copy(folder / "copy.db", folder / "campaign.db")
    with pytest.raises(OvertakenError, match="was put back while"):
        world.driver.tick(START + 10_000)
    assert (folder / "mark").read_bytes() == mark
    with pytest.raises(InvalidInputError, match="a copy was put back"):
        world.claim()


def test_of_two_processes_on_two_copies_of_the_file_one_stops(folder):
    """Each on its own copy has the last epoch. The mark is one, and counts the writes of both."""
    world = World(folder, plan_of())
    frames_of(world, Kind.INBOX)
    shutil.copy(folder / "campaign.db", folder / "copy.db")
    Campaigns.open(folder / "copy.db").claim(
        world.plan, mark=folder / "mark", clock=lambda: START, owner="campaign"
    )
    mark = (folder / "mark").read_bytes()
    answer_all(world)
    with pytest.raises(OvertakenError, match=r"another process runs another copy of"):
        world.driver.tick(world.now)
    assert (folder / "mark").read_bytes() == mark
    assert all(world.driver.next(person.number, world.now) is None for person in world.persons)


@pytest.mark.parametrize("moment", ["before", "between", "while", "copied while", "after"])
def test_of_two_processes_on_two_copies_of_exact_sums_one_releases_them(
    folder, monkeypatch, moment
):
    """With the ledger in the copied file, too: both would draw noise of their own."""
    plan = plan_of(trust="central")
    world = World(folder, plan, ledger_at=folder / "campaign.db").run()
    copy, found = folder / "copy.db", []

    def release_copy():
        """Run the copy in another process; return what it releases, if it does."""
        try:
            store = Campaigns.open(copy).claim(
                plan,
                mark=folder / "mark",
                clock=lambda: START,
                owner="campaign",
                ledger=Ledger.open(copy),
            )
            other = Driver(plan, store, ServerKeys(SERVER_KEY), random=stream("other"))
            other.tick(START)
            return other.release()
        except (InvalidInputError, StoreError):
            return None

    def release():
        try:
            return world.driver.release()
        except OvertakenError:
            return None

    def land_all(ledger, *given):
        monkeypatch.undo()  # not again for the release of the copy
        monkeypatch.setattr(marks, "WAIT_SECONDS", 0.02)
        if moment == "copied while":  # this copy has all that the mark counts
            shutil.copy(folder / "campaign.db", copy)
        found.append(release_copy())
        return ledger.land_all(*given)

    world.driver = world.start()
    world.driver.tick(world.now)
    shutil.copy(folder / "campaign.db", copy)
    if "while" in moment:
        monkeypatch.setattr(Ledger, "land_all", land_all)
        found.append(release())
    elif moment == "between":  # the one has reserved, and has drawn its noise
        world.on_step = lambda what: found.append(release_copy()) if what == "before release" else 0
        found.append(release())
    else:
        acts = [release, release_copy]
        found += [act() for act in (acts if moment == "after" else acts[::-1])]
    assert sorted(sketches is None for sketches in found) == [False, True]
    ledgers = [Ledger.open(file).landings(plan.fingerprint) for file in (world.ledger_at, copy)]
    assert sorted(map(len, ledgers)) == [0, 1]


@pytest.mark.parametrize("error", [Crash, StoreError])
def test_of_a_release_that_was_cut_off_no_copy_makes_another(folder, monkeypatch, error):
    """Its noise is in its ledger; the copy, with a ledger of its own, would draw another one."""
    plan = plan_of(trust="central")
    world = World(folder, plan, ledger_at=folder / "campaign.db").run()
    world.driver = world.start()
    world.driver.tick(world.now)
    shutil.copy(folder / "campaign.db", folder / "copy.db")

    def stops(self):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(CampaignStore, "_erase_released", stops)
        with pytest.raises(error):
            world.driver.release()
    with pytest.raises(InvalidInputError, match="a copy was put back"):
        Campaigns.open(folder / "copy.db").claim(
            plan,
            mark=folder / "mark",
            clock=lambda: START,
            owner="campaign",
            ledger=Ledger.open(folder / "copy.db"),
        )
    world.driver = world.start()
    world.driver.tick(world.now)
    [sketch] = world.driver.release()
    assert sketch.to_bytes() == world.ledger.sketch(plan.fingerprint, 0)


def test_nobody_claims_in_the_middle_of_a_release(folder, monkeypatch):
    """Else a process that was overtaken would land its noise, and another one on a copy, too."""
    world = World(folder, plan_of(trust="central"), ledger_at=folder / "campaign.db").run()
    world.driver = world.start()
    world.driver.tick(world.now)
    lands, tried = Ledger.land_all, []

    def claimed(*args):
        shutil.copy(folder / "campaign.db", folder / "copy.db")
        for file in ("campaign.db", "copy.db"):
            with pytest.raises(StoreError, match="another process holds the mark"):
                Campaigns.open(folder / file).claim(
                    world.plan,
                    mark=folder / "mark",
                    clock=lambda: START,
                    owner="campaign",
                    ledger=Ledger.open(folder / file),
                )
            tried.append(file)
        return lands(*args)

    monkeypatch.setattr(marks, "WAIT_SECONDS", 0.02)
    monkeypatch.setattr(Ledger, "land_all", claimed)
    [sketch] = world.driver.release()
    assert sketch.to_bytes() == world.ledger.sketch(world.plan.fingerprint, 0)
    assert tried == ["campaign.db", "copy.db"]
    with pytest.raises(InvalidInputError, match="a copy was put back"):
        Campaigns.open(folder / "copy.db").claim(
            world.plan,
            mark=folder / "mark",
            clock=lambda: START,
            owner="campaign",
            ledger=Ledger.open(folder / "copy.db"),
        )


def test_a_write_waits_for_the_process_that_holds_the_mark(folder, monkeypatch):
    """Else two processes on two copies could both see that nobody wrote, and both write."""
    world = World(folder, plan_of())
    monkeypatch.setattr(marks, "WAIT_SECONDS", 0.02)
    with marks.hold_mark(folder / "mark"):
        for write in (lambda: world.driver._store.forget(world.plan, bytes(32)), world.claim):
            with pytest.raises(StoreError, match="another process holds the mark"):
                write()
    world.run()
    world.check()


def test_a_file_that_a_suspended_process_keeps_locked_says_what_to_do(folder, monkeypatch):
    World(folder, plan_of())
    monkeypatch.setattr(database, "WAIT_SECONDS", 0.02)
    with closing(sqlite3.connect(folder / "campaign.db", isolation_level=None)) as file:
        file.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreError, match="is locked for 0.02 seconds: end the process that"):
            Campaigns.open(folder / "campaign.db").list()


def test_a_mark_that_cannot_be_read_is_an_error_of_the_store(folder):
    world = World(folder, plan_of())
    (folder / "mark").write_text("another mark")
    with pytest.raises(StoreError, match="is not the mark of"):
        world.driver._store.forget(world.plan, bytes(32))


def test_giving_up_overtakes_who_claimed_after_the_copy_was_made(folder):
    world = World(folder, plan_of())
    shutil.copy(folder / "campaign.db", folder / "copy.db")
    later = world.claim()
    shutil.copy(folder / "copy.db", folder / "campaign.db")
    world.campaigns().give_up(world.plan, mark=folder / "mark")
    saved = SavedSession(bytes(32), 0, (1,), b"", (0, 0), 0, version=1)
    with closing(sqlite3.connect(folder / "campaign.db")) as file:
        writes = writes_of(file)
    for known in (0, writes):  # its epoch alone must stop it
        later._claim._written = known
        with pytest.raises(OvertakenError, match="another process runs"):
            later.save(world.plan, saved, ())


def test_a_file_without_its_mark_is_refused(folder):
    world = World(folder, plan_of())
    gather(world)
    (folder / "mark").unlink()
    with pytest.raises(InvalidInputError, match="there is no mark at"):
        world.claim()
    (folder / "mark").touch()
    with pytest.raises(InvalidInputError, match="mark is empty, and .* has 2 writes: name its"):
        world.claim()
    assert world.campaigns().give_up(world.plan, mark=folder / "mark") == 1
    world.claim()


def test_an_ended_session_that_owes_last_frames_is_erased_and_not_counted_as_open(folder):
    world = World(folder, plan_of())
    world.run()
    assert world.driver.owes_farewells
    with closing(sqlite3.connect(folder / "campaign.db")) as file:
        count = "SELECT count(*) FROM fedtally_campaign_sessions"
        assert file.execute(count).fetchone() == (1,)
        assert world.campaigns().give_up(world.plan, mark=folder / "mark") == 0
        assert file.execute(count).fetchone() == (0,)


def test_the_first_write_of_all_is_refused_without_its_mark(folder):
    world = World(folder, plan_of())
    shutil.copy(folder / "campaign.db", folder / "copy.db")
    world.run()
    shutil.copy(folder / "copy.db", folder / "campaign.db")
    (folder / "mark").unlink()
    assert world.campaigns().is_put_back(world.plan, mark=folder / "mark")
    with pytest.raises(InvalidInputError, match="there is no mark at .* has 1 write:"):
        world.claim()


def test_a_process_that_dies_around_its_first_write_is_followed_by_another(folder, monkeypatch):
    class Dies(BaseException):
        pass

    written = []

    def dies(*args):
        if len(written) == dying:
            raise Dies
        written.append(args)
        write_mark(*args)

    monkeypatch.setattr("fedtally.store.claims.write_mark", dies)
    for dying in range(2):  # noqa: B007 `dies` reads it: before the first write, and after it
        with pytest.raises(Dies):
            World(folder, plan_of())
        written.clear()
    dying = None
    assert World(folder, plan_of()).run(60).driver.is_complete


def test_an_empty_file_beside_a_mark_is_refused(folder):
    world = World(folder, plan_of()).run()
    (folder / "campaign.db").unlink()
    with pytest.raises(InvalidInputError, match="has 0 writes"):
        world.claim()
    with pytest.raises(InvalidInputError, match="nothing of this plan"):
        Campaigns.open(folder / "campaign.db").give_up(world.plan, mark=folder / "mark")


def test_a_mark_of_another_plan_or_none_is_refused(folder):
    world = World(folder, plan_of())
    (folder / "mark").write_text("abc 7\n")
    with pytest.raises(UnreadableFileError, match="is not the mark"):
        world.claim()
    (folder / "mark").unlink()
    (folder / "mark").mkdir()
    with pytest.raises(UnreadableFileError, match="cannot read the mark"):
        world.claim()
    world.folder = folder / "none"
    with pytest.raises(UnreadableFileError):
        world.claim()


def test_giving_up_under_central_trust_erases_exact_sums(folder):
    """They may have been released after the copy was made, with other noise."""
    world = World(folder, plan_of(trust="central")).run()
    assert len(world.claim().sums(world.plan)) == 1
    Campaigns.open(folder / "campaign.db").give_up(world.plan, mark=folder / "mark")
    assert world.claim().sums(world.plan) == []


@pytest.mark.parametrize("is_released", [False, True])
def test_a_sum_that_was_given_up_does_not_count_as_landed(folder, is_released):
    """Else a campaign is complete whose sum nobody has, or says a sum of more than it has."""
    world = World(folder, plan_of(trust="central", cohorts=2), ledger_at=folder / "books.db").run()
    assert world.claim().landed_clients(world.plan) == {0: N}
    shutil.copy(folder / "campaign.db", folder / "copy.db")
    world.driver = world.start()
    world.driver.tick(world.now)
    if is_released:
        released = world.driver.release()
    world.put_back(folder / "copy.db")
    world.driver.tick(world.now)
    kept = {0: N} if is_released else {}
    assert world.claim().landed_clients(world.plan) == kept
    status = world.campaigns().status(world.plan)
    assert status.landed == kept
    [ended] = status.ended
    assert ended.why == (None if is_released else "given up: its exact sum was erased")
    world.driver = world.start()
    world.driver.tick(world.now)
    if is_released:
        found = world.driver.release()
        assert [one.to_bytes() for one in found] == [one.to_bytes() for one in released]
    else:
        world.persons += [Person(world, number) for number in range(N, 2 * N)]
        world.run()
        assert world.driver.release()[0].num_clients == N


# ---- what is erased ----


@pytest.mark.parametrize("trust", [None, "central"])
def test_no_file_holds_a_checkpoint_after_landing_nor_an_exact_sum_after_release(folder, trust):
    world = World(folder, plan_of(trust=trust))
    frames_of(world, Kind.INBOX)
    [saved] = world.claim().sessions(world.plan)
    world.driver = world.start()
    mark = saved.checkpoint[2000:2040]
    salt = checkpoints.unpack(saved.checkpoint)[0]["salt"].encode()  # in all checkpoints
    held = lambda text: sum(text in path.read_bytes() for path in folder.iterdir())  # noqa: E731
    assert held(mark) == held(salt) == 1
    world.run().check()
    assert held(mark) == held(salt) == 0
    if trust == "central":
        [sketch] = world.claim().sums(world.plan)
        inside = sketch.to_bytes()[-400:-300]
        assert held(inside) == 1
        world.driver = world.start()
        world.driver.tick(world.now)
        [noised] = world.driver.release()
        assert noised.noise == world.plan.noise_mark
        assert held(inside) == 0


@pytest.mark.parametrize("adversary", BOTH)
def test_a_copy_of_the_files_holds_no_vector_and_no_opened_share_at_any_moment(folder, adversary):
    world = World(folder, plan_of(adversary, "distributed", n_min=N - 1))
    world.absent = lambda number, kind: number == 0 and kind is Kind.INBOX  # its mask is opened
    told = set()

    def steal(what):
        held = b"".join(path.read_bytes() for path in folder.iterdir())
        for person in world.persons:
            for message in map(wire.parse, person.answers):
                if message.kind in (Kind.MASKED_INPUT, Kind.UNMASK):
                    told.add((person.number, message.kind))
                    assert message.body[:24] not in held, (what, message.kind)
                    assert message.body[-24:] not in held, (what, message.kind)

    world.on_step = steal
    world.run(200)
    world.check(everybody=False)
    assert len(told) == 2 * (N - 1)  # all that was to be looked for was there


# ---- central trust ----


def unreleased(folder):
    """Return a campaign whose driver can release its sum, and bytes of the exact sum."""
    world = World(folder, plan_of(trust="central")).run()
    [sketch] = world.claim().sums(world.plan)
    world.driver = world.start()
    world.driver.tick(world.now)
    return world, sketch.to_bytes()[-400:-300]


def test_a_release_lands_once_whatever_dies(folder):
    """All releases in one transaction; after it no second noise is drawn."""
    plan = plan_of(trust="central", rounds=2)
    for number, name in enumerate(["before release", "after release", "before reserve"]):
        place = folder / str(number)
        place.mkdir()
        world = World(place, plan, people=2 * N).run()
        assert len(world.landed()) == 2
        world.driver = world.start()
        world.driver.tick(world.now)

        def step(what, name=name):
            if what == name:
                raise Crash

        world.step = step
        with pytest.raises(Crash):
            world.driver.release()
        world.step = lambda what: None
        world.driver = world.start()
        world.driver.tick(world.now)
        first = [sketch.to_bytes() for sketch in world.driver.release()]
        world.driver = world.start()
        world.driver.tick(world.now)
        assert [sketch.to_bytes() for sketch in world.driver.release()] == first
        assert world.landed() == {}


def test_a_process_that_died_in_its_release_leaves_no_exact_sum(folder, monkeypatch):
    def dies(self):
        raise Crash

    world, inside = unreleased(folder)
    with monkeypatch.context() as patch:
        patch.setattr(CampaignStore, "_erase_released", dies)
        with pytest.raises(Crash):
            world.driver.release()
    assert inside in (folder / "campaign.db").read_bytes()
    world.claim()
    assert inside not in (folder / "campaign.db").read_bytes()


def test_a_release_that_failed_to_erase_is_repeated(folder, monkeypatch):
    """As on a full disk: the noised sums are out, and the exact ones must not stay."""

    def full(self):
        raise StoreError("the disk is full")

    world, inside = unreleased(folder)
    with monkeypatch.context() as patch:
        patch.setattr(CampaignStore, "_erase_released", full)
        with pytest.raises(StoreError, match="the disk is full"):
            world.driver.release()
    assert inside in (folder / "campaign.db").read_bytes()
    [noised] = world.driver.release()
    assert noised.noise == world.plan.noise_mark
    assert inside not in (folder / "campaign.db").read_bytes()


def test_a_release_waits_until_no_session_runs(folder):
    world = World(folder, plan_of())
    with pytest.raises(LocalProtocolError, match="drain"):
        world.driver.release()
    world.run()
    [sketch] = world.driver.release()
    assert sketch.num_clients == N


def test_nothing_opens_in_a_round_that_was_released(folder):
    plan = plan_of(trust="distributed", cohorts=2, rounds=1)
    world = World(folder, plan, deadlines=replace(DEADLINES, bench=1))
    for person in world.persons:
        world.driver.check_in(person.number, world.now)
    world.run(200)
    world.driver.release()
    assert not any(world.driver.check_in(number, world.now) for number in range(N, 2 * N))


# ---- who takes part ----


def test_of_more_clients_than_n_max_n_max_are_drawn(folder):
    drawn = set()
    for seed in range(6):
        place = folder / str(seed)
        place.mkdir()
        world = World(place, plan_of(), people=3 * N)
        world.driver._random = stream(("draw", seed))
        for person in world.persons:
            assert world.driver.check_in(person.number, world.now)
        world.driver.tick(world.now)
        asked = {p.number for p in world.persons if world.driver.next(p.number, world.now)}
        assert len(asked) == N
        drawn |= asked
    # Somebody is in none of six draws with probability (2/3)^6 each: 2.1 of 24 are expected.
    assert len(drawn) > N


def test_rounds_and_cohorts_run_at_once_and_land_everybody(folder):
    world = World(folder, plan_of(rounds=2, cohorts=2), people=4 * N)
    gather(world)
    assert len(world.driver._live) == 4
    world.run()
    world.check()
    assert {clients for clients, _ in world.landed().values()} == {2 * N}


def test_a_round_that_lost_a_cohort_lands_with_the_other(folder):
    world = World(folder, plan_of(cohorts=2), people=2 * N)
    gone = set()

    def absent(number, kind):
        if kind is Kind.INBOX and not gone:  # half of the session that is first
            live = world.driver._live[world.driver._pool.session_of[number]]
            gone.update(live.saved.clients[:4])
        return kind is Kind.INBOX and number in gone

    world.absent = absent
    world.run()
    world.check(everybody=False)
    assert world.landed()[0][0] == N


@pytest.mark.parametrize("kind", [Kind.ROSTER, Kind.INBOX, Kind.SURVIVORS])
def test_a_server_that_is_away_for_too_long_has_lost_what_left_and_nothing_else(folder, kind):
    """So it is if its clock jumps forward: to the server it is the same."""
    world = World(folder, plan_of(cohorts=2))
    frames_of(world, kind)
    world.now = START + DEADLINES.session + 100
    world.driver = world.start()
    world.run(700)
    spent = kind is not Kind.ROSTER
    assert world.claim().asked(world.plan) == {0: set(range(N))}
    ended = {one.why for one in world.campaigns().status(world.plan).ended}
    assert ended == {"aborted: EXPIRED (5)"} | ({None} if not spent else set())
    world.check(everybody=not spent)


def test_a_server_that_dies_before_each_end_of_a_phase_is_as_one_that_is_away(folder):
    """The answers of a phase are in its memory."""
    world = World(folder, plan_of(), deadlines=replace(DEADLINES, session=150))
    frames_of(world, Kind.SURVIVORS)
    while not world.campaigns().status(world.plan).ended:
        assert world.now < START + 200
        for person in world.persons[1:]:
            world.hand(person)
        world.driver = world.start()
        world.driver.tick(world.now)
        world.now += 30
    [ended] = world.campaigns().status(world.plan).ended
    assert ended.why is not None
    assert world.claim().asked(world.plan) == {0: set(range(N))}
    world.check(everybody=False)


def test_a_phase_waits_longer_by_as_much_as_the_clock_was_put_back(folder):
    world = World(folder, plan_of(n_min=N - 1))
    world.absent = lambda number, kind: number == 0 and kind is Kind.ROSTER
    frames_of(world, Kind.ROSTER)
    world.absent = lambda number, kind: number == 0 and kind is Kind.ROSTER
    world.now -= 200
    world.run(190)
    assert not world.campaigns().status(world.plan).landed
    world.run(200)
    assert world.campaigns().status(world.plan).landed == {0: N - 1}
    world.check(everybody=False)


def test_nobody_notices_a_file_that_was_put_back_with_its_mark(folder):
    """The one loss that nothing shows: two sets of survivors open both secrets of a client."""
    world = World(folder, plan_of(n_min=N - 1))
    frames_of(world, Kind.INBOX)
    for name in ("campaign.db", "mark"):
        shutil.copy(folder / name, folder / f"{name}.copy")
    world.run(200)
    assert world.landed()
    for name in ("campaign.db", "mark"):
        shutil.copy(folder / f"{name}.copy", folder / name)
    assert len(world.claim().sessions(world.plan)) == 1


def test_a_ledger_that_was_put_back_alone_has_forgotten_what_was_spent(folder):
    ledger = folder / "books.db"
    world = World(folder, plan_of(trust="distributed"), ledger_at=ledger)
    shutil.copy(ledger, folder / "copy.db")
    world.run()
    assert world.landed()
    shutil.copy(folder / "copy.db", ledger)
    [population] = Ledger.open(ledger).export()["populations"]
    assert population["campaigns"] == []


def test_nobody_is_asked_twice_for_an_item(folder):
    """A session that fails after its inboxes has spent the items of its clients."""
    world = World(folder, plan_of(cohorts=2), deadlines=replace(DEADLINES, bench=1))
    world.absent = lambda number, kind: kind is Kind.INBOX and number < 4
    world.run(700)
    assert world.claim().asked(world.plan) == {0: set(range(N))}
    world.driver = world.start()
    assert not any(world.driver.check_in(number, world.now) for number in range(N))
    assert world.driver.check_in(N, world.now)


def test_a_session_that_fails_before_its_inboxes_has_spent_nothing(folder):
    world = World(folder, plan_of())
    world.absent = lambda number, kind: world.now < START + 200 and kind is Kind.ROSTER
    world.run()
    world.check()


def test_a_session_opens_when_enough_clients_are_there_and_never_before(folder):
    world = World(folder, plan_of(n_min=6), people=7)
    for number in range(5):
        world.driver.check_in(number, world.now)
    assert world.driver.tick(world.now) == np.inf
    assert world.driver.next(0, world.now) is None
    for number in range(5, 7):
        world.driver.check_in(number, world.now)
    assert world.driver.tick(world.now) == world.now + DEADLINES.gather
    assert world.driver.next(0, world.now) is None
    world.driver.tick(world.now + DEADLINES.gather)
    assert wire.parse(world.driver.next(6, world.now)).kind is Kind.INVITE
    world.now += DEADLINES.gather
    world.run().check()


def test_who_left_is_not_drawn(folder):
    world = World(folder, plan_of())
    world.driver.check_in(0, world.now)
    world.now += DEADLINES.presence + 1
    for number in range(1, N):
        world.driver.check_in(number, world.now)
    world.driver.tick(world.now)
    assert world.driver.next(1, world.now) is None


def test_who_misses_twice_is_benched_for_a_while(folder):
    world = World(folder, plan_of())
    world.absent = lambda number, kind: number == 0
    benched = []
    while not benched:
        assert world.now < START + 400
        answer_all(world)
        world.driver.tick(world.now)
        world.now += 5
        benched = [
            p.number for p in world.persons if not world.driver.check_in(p.number, world.now)
        ]
    assert benched == [0]
    world.absent = lambda number, kind: False
    world.run()
    world.check()
    assert world.now > START + 2 * 120 + DEADLINES.bench


AHEAD = 365 * 86_400


def test_a_clock_that_was_ahead_benches_nobody_for_longer(folder):
    world = World(folder, plan_of())
    world.now += AHEAD
    world.absent = lambda number, kind: number == 0
    while world.driver.check_in(0, world.now):
        answer_all(world)
        world.driver.tick(world.now)
        world.now += 5
    world.absent = lambda number, kind: False
    world.now -= AHEAD
    world.run(2 * DEADLINES.bench)
    world.check()


def test_a_clock_that_was_ahead_does_not_delay_a_session(folder):
    world = World(folder, plan_of(n_min=N - 1), people=N - 1)
    world.now += AHEAD
    answer_all(world)
    world.driver.tick(world.now)
    assert world.driver.is_gathering
    world.now -= AHEAD
    world.run(2 * DEADLINES.gather + 60)
    world.check()


def test_a_clock_that_was_ahead_does_not_delay_the_store(folder):
    """What failed while the clock was ahead is tried again ten seconds after."""
    world = World(folder, plan_of())
    gather(world)
    world.now += AHEAD
    world.error, world.stops = StoreError, frozenset(range(world.steps, world.steps + 9))
    with pytest.raises(StoreError):
        world.driver.tick(world.now)
    world.error, world.stops = None, frozenset()
    assert not world.driver.is_idle
    world.now -= AHEAD
    world.run(300)
    world.check(everybody=False)
    assert world.driver.is_idle


def test_a_clock_that_jumps_to_and_fro_costs_nothing(folder):
    """A driver that followed each jump back would let its own times pass: it would see nobody."""
    world = World(
        folder,
        plan_of(n_min=N - 1),
        deadlines=Deadlines(gather=5, phase=20, session=100, presence=20, bench=60),
    )
    jumps = np.random.default_rng(0)
    world.jump = lambda: int(jumps.integers(-JITTER // 2, JITTER // 2 + 1))
    world.run(60)
    world.check()


def test_a_clock_that_is_put_back_a_little_stands_still_until_it_has_caught_up(folder):
    world = World(folder, plan_of(n_min=N - 1))
    for number in range(N - 1):
        world.driver.check_in(number, START)
    due = START + DEADLINES.gather
    assert world.driver.tick(START) == due
    assert world.driver.tick(START - JITTER) == due
    assert world.driver.tick(START - JITTER - 1) == due - JITTER - 1  # it was put back


def test_a_campaign_is_charged_before_its_first_invite(folder):
    plan = plan_of(trust="distributed")
    world = World(folder, plan)
    world.ledger.grant(plan.privacy.population, 0.5, 1e-6, START)
    for person in world.persons:
        world.driver.check_in(person.number, world.now)
    with pytest.raises(OverspentError):
        world.driver.tick(world.now)
    assert all(world.driver.next(person.number, world.now) is None for person in world.persons)
    assert world.claim().sessions(plan) == []


def test_a_round_gathers_no_more_once_the_driver_drains(folder):
    world = World(folder, plan_of(n_min=N - 1), people=N - 1)
    answer_all(world)
    world.driver.tick(world.now)
    assert world.driver.is_gathering
    world.driver.drain()
    assert not world.driver.is_gathering


def test_draining_opens_nothing_and_ends_what_runs(folder):
    world = World(folder, plan_of(cohorts=2), people=N + 1)
    frames_of(world, Kind.INVITE)
    world.driver.drain()
    [left] = set(range(N + 1)) - set(world.driver._pool.session_of)
    assert not world.driver.check_in(left, world.now)
    while not world.driver.is_idle:
        answer_all(world)
        world.driver.tick(world.now)
        world.now += 5
    assert world.landed()[0][0] == N


def test_giving_up_ends_the_sessions_that_nobody_answered_and_no_other(folder):
    world = World(folder, plan_of(cohorts=2), people=2 * N)
    frames_of(world, Kind.INVITE)
    first, second = (one.session for one in world.driver.running())
    [one] = [
        person
        for person in world.persons
        if world.driver._pool.session_of[person.number] == first
        and world.driver._live[first].frames
    ][:1]
    answer = one.answer(world.driver._live[first].frames[one.number], world.now)
    assert world.driver.receive(one.number, answer, world.now) is Receipt.TAKEN
    world.driver.give_up_silent()
    world.driver.tick(world.now)
    assert [running.session for running in world.driver.running()] == [first]
    assert world.driver.invited == world.driver.unanswered == N
    [ended] = world.campaigns().status(world.plan).ended
    assert ended.session == second and "TOO_FEW_CLIENTS" in ended.why
    # the session that goes on lands, and no further one is opened
    world.absent = lambda number, kind: False
    while not world.driver.is_idle:
        answer_all(world)
        world.driver.tick(world.now)
        world.now += 5
    assert world.landed()[0][0] == N


# ---- what an engine hears ----


def test_receipts(folder):
    world = World(folder, plan_of())
    frames_of(world, Kind.INVITE)
    driver, now = world.driver, world.now
    answer = world.persons[0].answer(driver.next(0, now), now)
    assert driver.receive(0, answer, now) is Receipt.TAKEN
    assert driver.receive(0, b"nonsense", now) is Receipt.REFUSED
    assert driver.receive(99, answer, now) is Receipt.REFUSED
    assert driver.refusals == {AbortCode.MALFORMED: 1, AbortCode.WRONG_STATE: 1}
    assert driver.receive(0, answer, now) is Receipt.AGAIN
    other = wire.frame(Kind.ADVERTISE, bytes(32), wire.UNLISTED, b"")
    assert driver.receive(0, other, now) is Receipt.LATE
    with pytest.raises(LocalProtocolError, match="int or a str"):
        driver.receive(b"0", answer, now)


def test_an_abort_at_the_invite_counts_and_is_not_waited_for(folder):
    world = World(folder, plan_of(n_min=6))
    session = None
    gather(world)
    for person in world.persons:
        frame = world.driver.next(person.number, world.now)
        session = wire.parse(frame).session
        if person.number < 2:
            body = bytes([AbortCode.EXPIRED]) if person.number else b""
            answer = wire.frame(Kind.ABORT, session, wire.UNLISTED, body)
        else:
            answer = person.answer(frame, world.now)
        found = world.driver.receive(person.number, answer, world.now)
        assert found is (Receipt.TAKEN if person.number else Receipt.REFUSED)
    good = wire.frame(Kind.ABORT, session, wire.UNLISTED, bytes([AbortCode.POLICY]))
    assert world.driver.receive(0, good, world.now) is Receipt.TAKEN
    assert world.driver.refusals == {
        AbortCode.MALFORMED: 1,
        AbortCode.EXPIRED: 1,
        AbortCode.POLICY: 1,
    }
    world.driver.tick(world.now)
    assert wire.parse(world.driver.next(2, world.now)).kind is Kind.ROSTER


def test_an_abort_in_a_later_phase_counts(folder):
    world = World(folder, plan_of())
    frames_of(world, Kind.ROSTER)
    session = wire.parse(world.driver.next(0, world.now)).session
    abort = wire.frame(Kind.ABORT, session, wire.UNLISTED, bytes([AbortCode.ROSTER_INVALID]))
    assert world.driver.receive(0, abort, world.now) is Receipt.TAKEN
    assert world.driver.refusals == {AbortCode.ROSTER_INVALID: 1}


@pytest.mark.parametrize("restarts", [False, True])
def test_who_aborts_at_the_survivors_is_not_waited_for_while_the_sum_is_opened(folder, restarts):
    world = World(folder, plan_of("active", n_min=N))
    frames_of(world, Kind.SURVIVORS)
    left = world.persons[0]
    asked = wire.parse(world.driver.next(left.number, world.now))
    abort = wire.frame(Kind.ABORT, asked.session, left.number, bytes([AbortCode.OWN_BIT_DEAD]))
    assert world.driver.receive(left.number, abort, world.now) is Receipt.TAKEN
    for person in world.persons[1:]:
        world.hand(person)
    world.driver.tick(world.now)
    [live] = world.driver._live.values()
    assert live.session.state is ServerState.UNMASK
    assert world.driver.running()[0].clients == N - 1
    began = world.now
    if restarts:  # the Abort is not in the checkpoint
        world.driver = world.start()
        world.driver.tick(world.now)
    left.answer = lambda frame, now: None
    world.run()
    assert world.landed()[0][0] == N
    assert (world.now - began < DEADLINES.phase) is not restarts


@pytest.mark.parametrize("kind", [Kind.INVITE, Kind.ROSTER])
def test_clients_that_always_refuse_are_benched(folder, kind):
    # Otherwise sessions would be opened, and fail, as fast as frames travel, and for ever.
    world = World(folder, plan_of())
    for person in world.persons[:4]:

        def refuses(frame, now, answer=person.answer):
            message = wire.parse(frame)
            if message.kind is not kind:
                return answer(frame, now)
            return wire.frame(Kind.ABORT, message.session, wire.UNLISTED, bytes([AbortCode.POLICY]))

        person.answer = refuses
    receive = world.driver.receive

    def taken(client, frame, now):
        # As engines do: a client that has nothing to answer checks in, also in a session.
        receipt = receive(client, frame, now)
        assert world.driver.check_in(client, now)
        return receipt

    world.driver.receive = taken
    world.run(DEADLINES.bench - 20)
    assert len(world.campaigns().status(world.plan).ended) == 2
    assert world.driver.refusals[AbortCode.POLICY] == 8
    assert not world.driver.check_in(0, world.now)


def test_an_error_of_one_session_leaves_the_others_running(folder):
    world = World(folder, plan_of(rounds=2), people=2 * N)
    gather(world)
    assert len(world.driver._live) == 2
    first = [p for p in world.persons if p.number in next(iter(world.driver._live.values())).frames]
    for person in first:
        world.hand(person)
    world.stops, world.error = frozenset({world.steps + 1}), StoreError
    with pytest.raises(StoreError):
        world.driver.tick(world.now)
    assert len(world.driver._live) == 1
    world.run()
    world.check()


def test_a_frame_is_handed_out_once_in_ten_seconds(folder):
    world = World(folder, plan_of())
    gather(world)
    assert world.driver.next(0, world.now) is not None
    wait(world, 9)
    assert world.driver.next(0, world.now) is None
    wait(world, 1)
    assert world.driver.next(0, world.now) is not None


def test_a_late_answer_shows_that_its_client_is_there_and_gets_the_frame_at_once(folder):
    world = World(folder, plan_of())
    frames_of(world, Kind.ROSTER)
    world.driver.next(0, world.now)
    late = world.persons[0].answers[0]
    assert world.driver.receive(0, late, world.now + 1) is Receipt.LATE
    assert world.driver.next(0, world.now + 1) is not None
    # Once: else a client that says nothing else would be asked as fast as frames travel.
    assert world.driver.receive(0, late, world.now + 2) is Receipt.LATE
    assert world.driver.next(0, world.now + 2) is None
    wait(world, 11)
    assert world.driver.next(0, world.now) is not None


def test_a_wrong_answer_is_not_asked_for_again_at_once(folder):
    world = World(folder, plan_of())
    gather(world)
    session = wire.parse(world.driver.next(0, world.now)).session
    wrong = wire.frame(Kind.ADVERTISE, session, wire.UNLISTED, b"")
    assert world.driver.receive(0, wrong, world.now) is Receipt.REFUSED
    wait(world, 9)
    assert world.driver.next(0, world.now) is None
    wait(world, 1)
    assert world.driver.next(0, world.now) is not None


def test_a_clock_that_is_put_back_keeps_no_frame_back(folder):
    world = World(folder, plan_of())
    gather(world)
    assert world.driver.next(0, world.now) is not None  # and the answer is lost
    world.now -= 7200
    world.run(seconds=300)
    world.check()


def test_a_frame_of_a_phase_before_is_late(folder):
    world = World(folder, plan_of())
    frames_of(world, Kind.INVITE)
    answer = world.persons[0].answer(world.driver.next(0, world.now), world.now)
    world.driver.receive(0, answer, world.now)
    answer_all(world)
    world.driver.tick(world.now)
    assert world.driver.receive(0, answer, world.now) is Receipt.LATE


def test_clients_hear_how_a_session_ended_until_it_is_forgotten(folder):
    world = World(folder, plan_of()).run()
    told = [wire.parse(world.driver.next(number, world.now)).kind for number in range(N)]
    assert set(told) == {Kind.RESULT}
    assert world.driver.next(0, world.now + 9) is None
    assert world.driver.next(0, world.now + 10) is not None  # the first may have been lost
    world.driver.check_in(0, world.now)
    assert world.driver.next(0, world.now + 30) is None  # it goes on: it has heard
    last = wire.frame(Kind.UNMASK, next(iter(world.persons[0].sessions)), 0, b"")
    assert world.driver.receive(0, last, world.now) is Receipt.LATE
    assert world.driver.next(0, world.now) is not None  # it repeats itself: it has not heard
    world.driver = world.start()  # nor does a new process forget
    world.driver.tick(world.now)
    assert wire.parse(world.driver.next(3, world.now)).kind is Kind.RESULT
    later = START + DEADLINES.session + 100
    world.driver.tick(later)
    assert world.claim().sessions(world.plan) == []


def test_an_invite_has_begun_for_a_client_whose_clock_is_behind(folder):
    world = World(folder, plan_of())
    gather(world)
    invite = world.driver.next(0, world.now)
    assert wire.parse(world.persons[0].answer(invite, world.now - 300)).kind is Kind.ADVERTISE


def test_clients_hear_of_a_session_that_ran_out_of_time(folder):
    world = World(folder, plan_of())
    frames_of(world, Kind.ROSTER)
    world.now = START + DEADLINES.session + 100
    world.driver.tick(world.now)
    assert wire.parse(world.driver.next(0, world.now)).body == bytes([AbortCode.EXPIRED])
    world.driver.tick(world.now + 1000)
    assert world.claim().sessions(world.plan) == []


def test_an_abort_after_an_advertisement_is_refused(folder):
    world = World(folder, plan_of())
    frames_of(world, Kind.INVITE)
    answer = world.persons[0].answer(world.driver.next(0, world.now), world.now)
    assert world.driver.receive(0, answer, world.now) is Receipt.TAKEN
    session = wire.parse(answer).session
    abort = wire.frame(Kind.ABORT, session, wire.UNLISTED, bytes([AbortCode.POLICY]))
    assert world.driver.receive(0, abort, world.now) is Receipt.REFUSED
    assert world.driver.receive(0, answer, world.now) is Receipt.AGAIN


def damaged(world):
    """Damage the checkpoint of the first session on the disk, and return the session as it was."""
    store = world.claim()
    first = store.sessions(world.plan)[0]
    store.save(world.plan, replace(first, checkpoint=b"damaged", version=first.version + 1), ())
    return first


def test_a_session_that_cannot_be_restored_does_not_stop_the_others(folder):
    world = World(folder, plan_of(rounds=2), people=2 * N)
    gather(world)
    first = damaged(world)
    world.driver = world.start()
    world.driver.tick(world.now)
    assert len(world.driver._live) == 1
    [(name, (saved, why))] = world.driver.aside.items()
    assert name == saved.session == first.session
    assert why.startswith("this is not a checkpoint")
    assert world.driver.is_restored and not world.driver.is_idle
    with pytest.raises(LocalProtocolError):
        world.driver.release()
    # its clients hear nothing, and count as in a session
    assert all(world.driver.next(client, world.now) is None for client in first.clients)
    assert all(world.driver.holds(client) for client in first.clients)
    world.now += DEADLINES.session + 1
    world.driver.tick(world.now)
    assert world.driver.rejected == [first.session] and not world.driver.aside
    why = {one.session: one.why for one in world.campaigns().status(world.plan).ended}
    assert why.pop(first.session).startswith("rejected: this is not a checkpoint")
    assert list(why.values()) == ["aborted: EXPIRED (5)"]
    world.run()
    world.check()


def test_sessions_begin_and_land_while_another_one_cannot_be_restored(folder):
    """Nobody is in two of them, and the round gets no more clients than it may."""
    world = World(folder, plan_of(cohorts=2), people=N)
    gather(world)
    first = damaged(world)
    world.driver = world.start()
    world.persons += [Person(world, number) for number in range(N, 3 * N)]
    world.run(passes=40)
    assert [*world.driver.aside] == [first.session] and world.now < first.not_after
    assert world.landed()[0][0] == N
    [others] = [set(clients) for clients in world.contributed.values() if clients]
    assert len(others) == N and not others & set(first.clients)
    assert not world.driver.running() and not world.driver.is_complete  # the round has no room


def test_a_ledger_that_cannot_be_read_sets_no_session_aside(folder):
    """Its sum lands once the ledger can be read again, however late that is."""
    failing = {"before reserve"}

    def step(what):
        if what in failing:
            raise UnreadableFileError("the ledger is damaged")

    world = World(folder, plan_of("active", "distributed"))
    frames_of(world, Kind.CONFIRMATIONS)
    answer_all(world)
    keep_sum(world)
    world.step = step
    world.now += DEADLINES.session + 100
    for _ in range(2):
        with pytest.raises(UnreadableFileError, match="ledger"):
            world.driver.tick(world.now)
        world.now += RETRY_SECONDS
    failing.clear()
    world.driver.tick(world.now)
    assert world.driver.rejected == [] and not world.driver.aside
    world.check()


@pytest.mark.parametrize("name", ["before reserve", "before end"])
def test_an_error_of_the_store_gives_up_no_sum_however_late_it_is(folder, name):
    """The sum is in the store: it lands as soon as the store answers, and nobody need be there."""
    failing = {name}

    def step(what):
        if what in failing:
            raise StoreError

    world = World(folder, plan_of("active", "distributed"))
    frames_of(world, Kind.CONFIRMATIONS)
    answer_all(world)
    keep_sum(world)
    world.step = step
    world.now += DEADLINES.session + 100
    for _ in range(2):
        with pytest.raises(StoreError):
            world.driver.tick(world.now)
        world.now += RETRY_SECONDS
    failing = set()
    world.driver.tick(world.now)
    assert world.driver.rejected == []
    world.check()


def test_a_session_of_a_round_whose_release_is_out_is_given_up(folder):
    """Another process released the round, with a ledger of its own making."""
    plan = plan_of(trust="distributed", cohorts=2)
    world = World(folder, plan, people=2 * N)
    gather(world)
    store = world.claim()
    sketch = CountSketch(plan.spec, 0)
    sketch.noise = plan.noise_mark
    store.release(plan, {0: sketch})
    world.driver = world.start()
    world.driver.tick(world.now)
    assert len(world.driver.rejected) == 2
    assert world.driver.is_complete


def test_misses_count_even_if_the_sum_does_not_land(folder):
    world = World(folder, plan_of(cohorts=2, n_min=6), people=7)
    world.absent = lambda number, kind: number == 0 and kind is Kind.SURVIVORS
    contribution = world.persons[1]._join

    def lying(frame):
        client = contribution(frame)
        honest = client._contribution
        client._contribution = lambda session: honest(session) + 50
        return client

    world.persons[1]._join = lying
    world.run(300)
    assert len(world.driver.rejected) == 1
    assert world.driver._pool._misses == {0: 1}


# ---- what an operator sees ----


def test_the_status_of_a_campaign_needs_no_claim_and_names_nobody(folder):
    plan = plan_of("active", "distributed", cohorts=2, n_min=7)
    world = World(folder, plan, people=2 * N)
    world.absent = lambda number, kind: kind is Kind.INBOX
    campaigns = world.campaigns()
    with pytest.raises(InvalidInputError, match="holds nothing of plan"):
        campaigns.status(plan_of(rounds=2))
    gather(world)
    before = campaigns.status(plan)
    assert (before.plan, before.epoch, before.ended) == (plan.fingerprint, world.processes, ())
    assert [(one.round, one.phase, one.num_clients) for one in before.open] == [
        (0, "advertise", N),
        (0, "advertise", N),
    ]
    one = before.open[0]
    assert one.closes == (world.now + 30, world.now + 120)
    assert one.not_after == world.now + DEADLINES.session
    [saved] = [s for s in world.claim().sessions(plan) if s.session == one.session]
    world.driver = world.start()
    assert campaigns.clients(one.session) == saved.clients
    with pytest.raises(InvalidInputError, match="no open session"):
        campaigns.clients(bytes(32))
    world.run(400)
    after = campaigns.status(plan, world.ledger)
    assert campaigns.list() == [after]
    assert after.open == ()
    assert after.asked == {0: 2 * N}
    assert after.landed == {}
    assert [(one.round, one.num_clients, one.why) for one in after.ended] == [
        (0, 0, "aborted: BELOW_MIN_SURVIVORS (12)")
    ] * 2
    world.driver.tick(world.now + 10_000)  # forgotten, but not by the operator's books
    assert campaigns.status(plan) == after


def test_the_status_shows_what_landed_and_what_was_released(folder):
    plan = plan_of(trust="central", rounds=2)
    world = World(folder, plan, people=2 * N).run()
    campaigns = world.campaigns()
    found = campaigns.status(plan, world.ledger)
    assert found.landed == {0: N, 1: N}
    assert {(one.round, one.num_clients, one.why) for one in found.ended} == {
        (0, N, None),
        (1, N, None),
    }
    assert found.released == ()
    world.driver.release()
    assert campaigns.status(plan, world.ledger).released == tuple(range(len(plan.releases)))
    assert campaigns.status(plan).released == ()


def test_a_session_that_was_given_up_is_in_the_status(folder):
    world = World(folder, plan_of())
    gather(world)
    campaigns = world.campaigns()
    [one] = campaigns.status(world.plan).open
    campaigns.give_up(world.plan, mark=folder / "mark")
    [ended] = campaigns.status(world.plan).ended
    assert (ended.session, ended.why) == (one.session, "given up")


def test_a_driver_that_drains_is_never_late(folder):
    world = World(folder, plan_of(n_min=6), people=6)
    gather(world)
    assert world.driver.tick(world.now) == world.now + DEADLINES.gather
    world.driver.drain()
    assert world.driver.tick(world.now + 1000) == np.inf


def test_a_phase_past_its_first_deadline_closes_with_the_frame_that_it_needs(folder):
    world = World(folder, plan_of())
    frames_of(world, Kind.ROSTER)
    [live] = world.driver._live.values()
    soft, hard = live.saved.closes
    wait(world, soft - world.now)
    assert soft < world.driver.tick(soft) < hard
    for person in world.persons:
        world.hand(person)
        is_enough = live.session.can_close().code is None
        assert live.frames
        world.driver.tick(world.now)
        assert live.session.state is (ServerState.COLLECT if is_enough else ServerState.SHARE)
        if is_enough:
            break


def test_a_tick_with_nothing_to_do_reads_nothing(folder):
    world = World(folder, plan_of(cohorts=2), people=N + 3)
    gather(world)
    expected, steps = world.driver.tick(world.now), world.steps
    world.driver._live = None  # a tick that looks at its sessions fails
    assert world.driver.tick(world.now) == expected
    assert world.steps == steps


def test_a_phase_leaves_later_phases_their_time(folder):
    world = World(folder, plan_of())
    gather(world)
    [live] = world.driver._live.values()
    assert live.saved.closes == (world.now + 30, world.now + 120)
    tight = replace(DEADLINES, session=250, phase=50)
    place = folder / "tight"
    place.mkdir()
    world = World(place, plan_of(), deadlines=tight)
    gather(world)
    [live] = world.driver._live.values()
    assert live.saved.closes == (world.now + 50, world.now + 100)  # 250 - 3 x 50


def test_a_sum_that_no_sketches_have_ends_its_session(folder):
    world = World(folder, plan_of(cohorts=2))
    contribution = world.persons[0]._join

    def lying(frame):
        client = contribution(frame)
        honest = client._contribution
        client._contribution = lambda session: honest(session) + 50
        return client

    world.persons[0]._join = lying
    world.run(300)
    assert len(world.driver.rejected) == 1
    assert world.landed() == {}
    assert world.driver.is_idle
    world.driver = world.start()
    world.driver.tick(world.now)
    assert world.driver.is_idle
    # a later process knows of it, too: it counts for the screening of its round
    assert world.claim().impossible(world.plan) == {0: 1}
    world.driver = world.start()
    world.driver.tick(world.now)
    assert world.driver.release() == [] and world.driver.screening.rejected == {0: 1}


def test_a_sum_that_cannot_land_ends_its_session_after_a_restart_too(folder):
    world = World(folder, plan_of(cohorts=2))
    contribution = world.persons[0]._join

    def lying(frame):
        client = contribution(frame)
        honest = client._contribution
        client._contribution = lambda session: honest(session) + 50
        return client

    world.persons[0]._join = lying
    frames_of(world, Kind.SURVIVORS)
    answer_all(world)
    keep_sum(world)
    world.driver.tick(world.now)
    assert len(world.driver.rejected) == 1
    assert world.driver.is_idle


# ---- what is refused ----


def test_wrong_keys_and_plans_are_refused(folder):
    plan = plan_of()
    world = World(folder, plan)
    store = world.claim()
    with pytest.raises(InvalidInputError, match="not the one that the plan names"):
        Driver(plan, store, ServerKeys(PEOPLE[0]), random=bytes)
    with pytest.raises(InvalidInputError, match="not the one that the plan names"):
        Driver(plan, store, ServerKeys(SERVER_KEY, ALLOWED), random=bytes)
    with pytest.raises(InvalidInputError, match="must be secagg"):
        Driver(replace(plan, secure_sum=None), store, ServerKeys(SERVER_KEY), random=bytes)
    with pytest.raises(InvalidInputError, match="server_key"):
        Driver(plan.without_keys(), store, ServerKeys(SERVER_KEY), random=bytes)
    with pytest.raises(InvalidInputError, match="name the ledger"):
        Campaigns.open(folder / "campaign.db").claim(
            plan_of(trust="central"), mark=folder / "m", clock=lambda: 1, owner="a"
        )
    with pytest.raises(InvalidInputError, match="time must be an integer"):
        Campaigns.open(folder / "campaign.db").claim(  # else no sum could land
            plan, mark=folder / "mark", clock=lambda: 1.5, owner="a"
        )
    assert world.campaigns().status(plan).epoch == 2  # nothing was claimed


def test_deadlines_are_checked():
    with pytest.raises(InvalidInputError, match="too short for 5 phases"):
        Deadlines(phase=100, session=499)
    with pytest.raises(InvalidInputError, match="gather_seconds"):
        Deadlines(gather=0)
    assert Deadlines(session=300) == Deadlines(60, 60, 300, 300, 3600)


def test_a_key_is_not_shown():
    assert "signing_key" not in repr(ServerKeys(SERVER_KEY))


def test_a_ledger_of_today_takes_campaigns_beside_it_and_a_client_record_does_not(folder):
    from fedtally.store import ClientRecord

    Ledger.open(folder / "one.db", create=True)
    Campaigns.open(folder / "one.db", create=True)
    Ledger.open(folder / "one.db")
    Campaigns.open(folder / "two.db", create=True)
    with pytest.raises(UnreadableFileError, match="holds no ledger"):
        Ledger.open(folder / "two.db")
    Ledger.open(folder / "two.db", create=True)
    ClientRecord.open(folder / "three.db", create=True)
    with pytest.raises(UnreadableFileError, match="holds a client record, not a campaign$"):
        Campaigns.open(folder / "three.db", create=True)
    with pytest.raises(UnreadableFileError, match=r"there is no campaign at .*four\.db$"):
        Campaigns.open(folder / "four.db")


def test_a_client_hears_how_each_of_its_sessions_ended(tmp_path: Path) -> None:
    driver, now = World(tmp_path, plan_of()).driver, START
    for name in (b"1", b"2"):
        driver._bid_farewell(
            SavedSession(name * 32, 0, (7,), None, (0, 0), now + 100, farewell=b"bye " + name)
        )
    assert driver.owes_farewells
    assert [driver.next(7, now), driver.next(7, now)] == [b"bye 1", b"bye 2"]
    assert not driver.owes_farewells
    assert driver.next(7, now) is None
    driver.check_in(7, now)  # it goes on: it has heard both
    assert driver.next(7, now + 60) is None


def test_a_client_that_is_merely_there_gets_its_farewell_again(tmp_path: Path) -> None:
    world = World(tmp_path, plan_of())
    world.run()
    driver, later = world.driver, world.now + 10
    first = driver.next(0, world.now)
    assert first is not None
    driver.check_in(0, later, has_heard=False)
    assert driver.next(0, later) == first
    driver.check_in(0, later)
    assert driver.next(0, later + 10) is None


def test_a_farewell_that_was_heard_is_not_owed_again_after_an_error(tmp_path: Path) -> None:
    world = World(tmp_path, plan_of())
    world.run()
    driver = world.driver
    for number in range(N):
        driver.next(number, world.now)
    assert not driver.owes_farewells
    driver._retry_at = world.now  # as after an error of the store
    driver.drain()
    driver.tick(world.now)
    assert driver.is_idle
    assert not driver.owes_farewells


def test_the_store_keeps_the_names_of_asked_clients_as_they_are(folder):
    world = World(folder, plan_of())
    names = (1, "1", 'a"b', "a, b", "a\n\r\u2028b", "é", "\\u00e9", "", "\U0001f600")
    store = world.claim()
    session = SavedSession(bytes(32), 0, names, b"", (START, START), START, version=1)
    store.save(world.plan, session, names)
    assert store.asked(world.plan) == {0: set(names)}
    with closing(sqlite3.connect(folder / "campaign.db")) as file:
        rows = file.execute("SELECT session, client FROM fedtally_asked").fetchall()
    # As each earlier version wrote them: else one name could be asked twice.
    assert sorted(rows) == sorted((bytes(32).hex(), json.dumps(name)) for name in names)
    for name in names:
        again = replace(session, session=b"\1" * 32)
        with pytest.raises(StoreError, match="append-only"):
            store.save(world.plan, again, [name])
    assert len(store.sessions(world.plan)) == 1


def test_a_tick_leaves_out_only_what_would_change_nothing(folder):
    """Of two drivers with the same calls one looks at everything at each tick: both do the same."""
    deadlines = Deadlines(gather=6, phase=3, session=30, presence=10**6, bench=9)
    plan, worlds = plan_of(rounds=3, cohorts=2, n_min=N - 2), []
    for name in ("lazy", "eager"):
        (folder / name).mkdir()
        worlds.append(World(folder / name, plan, people=3 * N, deadlines=deadlines))
    rng, opened, left_out = np.random.default_rng(1), set(), 0
    now = START
    for _ in range(300):
        clients, now = rng.integers(3 * N, size=2).tolist(), now + int(rng.integers(2))
        lazy, eager = (world.driver for world in worlds)
        for driver in (lazy, eager):
            for client in clients:
                driver.check_in(client, now)
        left_out += not lazy._is_stirred
        eager._is_stirred = True
        lazy.tick(now)
        eager.tick(now)
        assert lazy.running() == eager.running()
        opened |= {one.session for one in lazy.running()}
    # Nobody answers, so that each session fails, and its clients are there again after a while.
    assert len(opened) > 5
    assert left_out > 100


@pytest.mark.parametrize("trust", ["central", "distributed"])
def test_a_ledger_that_was_put_back_keeps_no_sum_from_leaving(folder, trust):
    books = folder / "books.db"
    world = World(folder, plan_of(trust=trust, clients=4), 4, ledger_at=str(books))
    shutil.copy(books, folder / "copy.db")
    world.run()
    assert world.driver.is_complete
    shutil.copy(folder / "copy.db", books)
    assert world.ledger.reserved(world.plan.fingerprint) == []
    assert [sketch.num_clients > 0 for sketch in world.driver.release()] == [True]
    assert world.ledger.reserved(world.plan.fingerprint) == [0]


def test_a_client_is_held_while_it_is_in_a_session_or_may_be_in_one(folder):
    world = World(folder, plan_of())
    driver = world.driver
    assert driver.holds(0), "the store was not read yet"
    driver.tick(world.now)
    assert not driver.holds(0)
    gather(world)
    assert all(driver.holds(number) for number in range(N)) and not driver.holds(N)
    world.driver = driver = world.start()
    assert driver.holds(N), "it may be in a session of the store"
    driver.tick(world.now)
    assert driver.holds(0) and not driver.holds(N)


def test_a_frame_that_the_client_has_not_named_is_returned_at_once(folder):
    world = World(folder, plan_of())
    gather(world)
    driver, now = world.driver, world.now
    invite = driver.next(0, now, handled=b"")
    named = hashlib.sha256(invite).digest()
    assert wire.parse(invite).kind is Kind.INVITE
    for handled in (b"", bytes(32)):
        assert driver.next(0, now, handled=handled) == invite
    assert driver.next(0, now, handled=named) is None
    assert driver.next(0, now) is None, "a transport that does not tell"
    driver.tick(now + 5)  # else it counts as having been away
    assert driver.next(0, now + 10, handled=named) == invite


def test_a_farewell_is_owed_until_the_client_names_it(folder):
    world = World(folder, plan_of())
    while not world.driver.is_complete:
        for person in world.persons[1:]:
            world.hand(person)
        first = world.persons[0]
        world.driver.check_in(0, world.now)
        frame = world.driver.next(0, world.now)
        if frame is not None:
            world.note(wire.parse(frame), 0)
            if (answer := first.answer(frame, world.now)) is not None:
                world.driver.receive(0, answer, world.now)
        world.driver.tick(world.now)
        world.now += 5
    driver, now = world.driver, world.now
    farewell = driver.next(0, now, handled=b"")
    assert wire.parse(farewell).kind is Kind.RESULT
    driver.check_in(0, now, has_heard=False)
    assert driver.next(0, now, handled=bytes(32)) == farewell, "it was not named"
    assert driver.next(0, now, handled=hashlib.sha256(farewell).digest()) is None
    assert driver.next(0, now, handled=b"") is None, "it was heard"
