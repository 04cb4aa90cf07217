"""The driver: the order that holds, whatever dies when; whom it asks; what it says to an engine."""

from __future__ import annotations

import shutil
from dataclasses import replace

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
    World,
    plan_of,
)
from secagg_cohort import stream

from fedtally.campaign.driver import RETRY_SECONDS, Deadlines, Driver, Receipt, ServerKeys
from fedtally.errors import InvalidInputError, OvertakenError, UnreadableFileError
from fedtally.privacy.budget import OverspentError
from fedtally.secagg import wire
from fedtally.secagg.messages import AbortCode, Kind, LocalProtocolError
from fedtally.store import Campaigns, CampaignStore, Ledger, StoreError

BOTH = ("semi-honest", "active")


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
    world.now += 11  # they may be handed it again
    return found


def answer_all(world):
    for person in world.persons:
        world.hand(person)


def gather(world):
    """Let everybody check in, and the session open."""
    for person in world.persons:
        world.driver.check_in(person.number, world.now)
    world.driver.tick(world.now)


# ---- the order that holds ----


@pytest.mark.parametrize("adversary", BOTH)
@pytest.mark.parametrize("trust", [None, "distributed", "central"])
def test_a_campaign_lands(folder, adversary, trust):
    world = World(folder, plan_of(adversary, trust)).run()
    world.check()
    assert world.processes == 1
    assert {receipt for _, receipt in world.receipts} == {Receipt.TAKEN}


@pytest.mark.parametrize("error", [None, StoreError], ids=["crash", "error"])
@pytest.mark.parametrize(("adversary", "trust"), [("semi-honest", None), ("active", "distributed")])
def test_a_crash_or_an_error_at_any_step_loses_nothing(folder, adversary, trust, error):
    """Before and after every call of the store and every frame, all of them, one a run."""
    plan = plan_of(adversary, trust)
    (folder / "none").mkdir()
    steps = World(folder / "none", plan).run().steps
    assert steps > 80
    for stop in range(1, steps + 1):
        place = folder / str(stop)
        place.mkdir()
        world = World(place, plan, stops=frozenset({stop}), error=error).run()
        world.check()
        shutil.rmtree(place)


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
        lambda: store.reserve(plan, 0),
        lambda: store.release(plan, {0: sketch}),
    ):
        with pytest.raises(OvertakenError):
            write()


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


# ---- what is erased ----


@pytest.mark.parametrize("trust", [None, "central"])
def test_no_file_holds_a_checkpoint_after_landing_nor_an_exact_sum_after_release(folder, trust):
    world = World(folder, plan_of(trust=trust))
    frames_of(world, Kind.INBOX)
    [saved] = world.claim().sessions(world.plan)
    world.driver = world.start()
    mark = saved.checkpoint[2000:2040]
    held = lambda text: sum(text in path.read_bytes() for path in folder.iterdir())  # noqa: E731
    assert held(mark) == 1
    world.run().check()
    assert held(mark) == 0
    if trust == "central":
        [sketch] = world.claim().sums(world.plan)
        inside = sketch.to_bytes()[-400:-300]
        assert held(inside) == 1
        world.driver = world.start()
        world.driver.tick(world.now)
        [noised] = world.driver.release()
        assert noised.noise == world.plan.noise_mark
        assert held(inside) == 0


# ---- central trust ----


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

    world = World(folder, plan_of(trust="central")).run()
    [sketch] = world.claim().sums(world.plan)
    inside = sketch.to_bytes()[-400:-300]
    world.driver = world.start()
    world.driver.tick(world.now)
    with monkeypatch.context() as patch:
        patch.setattr(CampaignStore, "_erase_released", dies)
        with pytest.raises(Crash):
            world.driver.release()
    assert inside in (folder / "campaign.db").read_bytes()
    world.claim()
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
            live = world.driver._live[world.driver._session_of[number]]
            gone.update(live.saved.clients[:4])
        return kind is Kind.INBOX and number in gone

    world.absent = absent
    world.run()
    world.check(everybody=False)
    assert world.landed()[0][0] == N


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


def test_draining_opens_nothing_and_ends_what_runs(folder):
    world = World(folder, plan_of(cohorts=2), people=N + 1)
    frames_of(world, Kind.INVITE)
    world.driver.drain()
    [left] = set(range(N + 1)) - set(world.driver._session_of)
    assert not world.driver.check_in(left, world.now)
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


def test_an_error_of_one_session_leaves_the_others_running(folder):
    world = World(folder, plan_of(rounds=2), people=2 * N)
    gather(world)
    assert len(world.driver._live) == 2
    first = [
        p for p in world.persons if p.number in next(iter(world.driver._live.values())).awaited
    ]
    for person in first:
        world.hand(person)
    world.stops, world.error = frozenset({world.steps + 1}), StoreError
    with pytest.raises(StoreError):
        world.driver.tick(world.now)
    assert len(world.driver._live) == 1
    world.run()
    world.check()


def test_a_frame_is_handed_out_once_in_ten_seconds_or_after_a_receipt(folder):
    world = World(folder, plan_of())
    gather(world)
    assert world.driver.next(0, world.now) is not None
    assert world.driver.next(0, world.now + 9) is None
    assert world.driver.next(0, world.now + 10) is not None
    session = wire.parse(world.driver.next(1, world.now)).session
    wrong = wire.frame(Kind.SHARES, session, 0, b"")
    assert world.driver.receive(0, wrong, world.now + 11) is Receipt.REFUSED
    assert world.driver.next(0, world.now + 11) is not None


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


def test_a_session_that_cannot_be_restored_does_not_stop_the_others(folder):
    world = World(folder, plan_of(rounds=2), people=2 * N)
    gather(world)
    store = world.claim()
    first = store.sessions(world.plan)[0]
    damaged = replace(first, checkpoint=b"damaged", version=first.version + 1)
    store.save(world.plan, damaged, ())
    world.driver = world.start()
    with pytest.raises(UnreadableFileError):
        world.driver.tick(world.now)
    assert len(world.driver._live) == 1
    assert world.driver.tick(world.now + 1) == world.now + RETRY_SECONDS
    world.now += DEADLINES.session + 1
    world.driver.tick(world.now)
    assert world.driver.rejected == [first.session]
    world.run()
    world.check()


def test_a_driver_that_drains_is_never_late(folder):
    world = World(folder, plan_of(n_min=6), people=6)
    gather(world)
    assert world.driver.tick(world.now) == world.now + DEADLINES.gather
    world.driver.drain()
    assert world.driver.tick(world.now + 1000) == np.inf


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
    at = world.steps + 2  # the checkpoint with the sum is written, and then the process dies
    world.stops = frozenset({at})
    with pytest.raises(Crash):
        world.driver.tick(world.now)
    world.driver = world.start()
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
    with pytest.raises(UnreadableFileError, match="not a campaigns"):
        Campaigns.open(folder / "three.db", create=True)
