"""Attacks with authority that should have ended: plans that were replaced, revoked or ran out."""

from __future__ import annotations

import os
import shutil
import time
from datetime import date
from pathlib import Path

import pytest
from agents import no_power_is_lost  # noqa: F401
from campaign_world import PEOPLE, N
from owners import Owner

from fedtally.agent.accepted import AcceptedCampaigns
from fedtally.campaign.enrolment import (
    DAYS_OPEN,
    day_of,
    end_of,
    load_signature,
    save_allow_list,
    save_signature,
)
from fedtally.campaign.key_files import create_key_files
from fedtally.errors import InvalidInputError, UnreadableFileError
from fedtally.secagg import wire
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.messages import AbortCode, Kind

ENDED = "refused (POLICY): the plan is over: its registrar replaced or revoked it"
OVER = "refused (POLICY): the plan is over: its last day was"
UNKNOWN = (
    "refused (POLICY): the plan is over: the record does not know that it was accepted so last"
)
LATE = end_of(date(2100, 1, 31))
OTHER = 54_321  # a user, by number


@pytest.fixture
def owner(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Owner:
    return Owner(tmp_path, capsys)


# ---- replaced ----


def test_a_plan_whose_list_holds_a_stolen_key_after_it_was_replaced(owner: Owner) -> None:
    """Attack 12: the owner accepted the plan of a new list, and the old plan was answered."""
    old = owner.publish("old")
    assert owner.accept("old", "--yes") == 0
    agent = owner.start()
    assert owner.asked(agent, old) is Kind.ADVERTISE
    # not the first of the list: that one is the owner's own in one run of eight
    stolen = PEOPLE[0].public
    kept = [owner.listed.key(rank) for rank in range(N)]
    owner.listed = AllowList(sorted([*(k for k in kept if k != stolen), PEOPLE[N].public]))
    save_allow_list(owner.place / "list", owner.listed)
    new = owner.publish("new", "--replaces", old.fingerprint)
    assert owner.accept("new", "--yes") == 0
    assert f"ended by the registrar: plan {old.fingerprint}" in owner.err
    # in the process that was running, and in one that starts
    owner.listed = AllowList(kept)
    for one in (agent, owner.start()):
        assert owner.asked(one, old) is AbortCode.POLICY and ENDED in owner.log[-1]
    # and it cannot be accepted once more
    save_allow_list(owner.place / "list", owner.listed)
    assert owner.accept("old", "--yes") == 2
    assert f"plan {old.fingerprint} was replaced or revoked by its registrar" in owner.err
    owner.listed = AllowList(sorted([*(k for k in kept if k != stolen), PEOPLE[N].public]))
    assert owner.asked(agent, new) is Kind.ADVERTISE


def test_a_plan_that_the_owner_does_not_take_ends_the_one_that_it_replaces(owner: Owner) -> None:
    """The registrar is done with the old plan, whatever the policy says of the new one."""
    old = owner.publish("old")
    assert owner.accept("old", "--yes") == 0
    settings = (owner.agent / "agent.toml").read_text()
    (owner.agent / "agent.toml").write_text(f"{settings}max_clients = 5\n")
    owner.publish("new", "--replaces", old.fingerprint, seed=1)
    assert owner.accept("new", "--yes") == 2 and "(POLICY)" not in owner.err
    (owner.agent / "agent.toml").write_text(settings)
    assert owner.accepted == [old.fingerprint]
    assert owner.asked(owner.start(), old) is AbortCode.POLICY and ENDED in owner.log[-1]


def test_two_plans_of_a_purpose_stay_open_side_by_side_and_so_do_two_purposes(
    owner: Owner,
) -> None:
    plans = [owner.publish("0"), owner.publish("1", seed=1)]
    plans.append(owner.publish("2", "--purpose", "another study", seed=2))
    for name in "012":
        assert owner.accept(name, "--yes") == 0
    agent = owner.start()
    assert [owner.asked(agent, plan) for plan in plans] == [Kind.ADVERTISE] * 3


# ---- numbers ----


def test_an_older_plan_of_the_purpose_is_not_accepted_after_a_newer_one(owner: Owner) -> None:
    """Attack 12: without a word on what replaces what, a carrier may still hand out old plans."""
    old, new = owner.publish("old"), owner.publish("new", seed=1)
    assert owner.accept("new", "--yes") == 0
    assert owner.accept("old", "--yes") == 2
    assert f"plan {old.fingerprint} has the number 1 of its purpose" in owner.err
    assert f"plan {new.fingerprint} with the number 2 was accepted" in owner.err
    assert owner.accepted == [new.fingerprint]
    # of another purpose there is no higher number
    assert owner.sign("old", "--purpose", "another study") == 0
    assert owner.accept("old", "--yes") == 0
    # and the registrar may sign the old plan again
    assert owner.sign("old") == 0
    assert load_signature(owner.place / "old.sig").authority.number == 3
    assert owner.accept("old", "--yes") == 0
    assert owner.accept("new", "--yes") == 2


def test_two_copies_of_a_registrars_key_give_no_number_to_two_plans(owner: Owner) -> None:
    shutil.copy(owner.place / "registrar.key", owner.place / "copy.key")
    one, two = owner.publish("one"), owner.plan(seed=1)
    two.save(owner.place / "two.toml")
    assert owner.sign("two", key="copy.key") == 0
    assert "copy.key.signed is new: if this key has signed before" in " ".join(owner.err.split())
    assert load_signature(owner.place / "two.sig").authority.number == 1
    assert owner.accept("one", "--yes") == 0
    assert owner.accept("two", "--yes") == 2
    assert f"plan {one.fingerprint} with the number 1 was accepted" in owner.err
    assert owner.sign("two", "--number", "2", key="copy.key") == 0
    assert "is new" not in owner.err
    assert owner.accept("two", "--yes") == 0


# ---- revoked ----


def test_a_session_that_runs_when_its_plan_is_revoked(owner: Owner) -> None:
    """The notice is read by another process; the next frame finds it, before a vector is made."""
    plan = owner.publish("one")
    assert owner.accept("one", "--yes") == 0
    agent, now = owner.start(), time.time()
    invite = owner.invite(plan, now)
    session = wire.parse(invite).session  # type: ignore[union-attr]
    assert agent.answer(invite, now)
    assert owner.revoke(plan) == 0 and owner.hear() == 0
    assert f"ended by the registrar: plan {plan.fingerprint}" in owner.err
    answer = agent.answer(wire.frame(Kind.ROSTER, session, wire.SERVER, b""), now)
    assert answer is not None
    assert wire.decode_abort(wire.parse(answer).body) is AbortCode.POLICY  # type: ignore[union-attr]
    assert owner.log[-1].endswith("ended: its registrar replaced or revoked it")
    assert owner.asked(agent, plan) is AbortCode.POLICY and ENDED in owner.log[-1]


def test_a_revocation_that_comes_before_its_plan(owner: Owner) -> None:
    plan = owner.publish("one")
    assert owner.revoke(plan) == 0 and owner.hear() == 0
    assert owner.hear() == 0  # again is no harm
    assert owner.accept("one", "--yes") == 2
    assert "was replaced or revoked by its registrar" in owner.err and owner.accepted == []
    # nor does the registrar sign it any more
    assert owner.sign("one") == 2 and "was replaced or revoked, for good" in owner.err


def test_another_registrar_ends_no_plan(owner: Owner) -> None:
    plan = owner.publish("one")
    assert owner.accept("one", "--yes") == 0
    create_key_files(owner.place / "other.key", "registrar", lambda size: bytes([7]) * size)
    assert owner.revoke(plan, key="other.key") == 0
    assert "other.key.signed does not know that you signed it" in owner.err
    assert owner.hear() == 2 and "the revocation is signed by the registrar" in owner.err
    # nor by a signature of its own plan, also where the owner changes the registrar
    owner.plan(seed=1).save(owner.place / "two.toml")
    assert owner.sign("two", "--replaces", plan.fingerprint, key="other.key") == 0
    assert owner.accept("two", "--yes") == 2 and "is signed by the registrar" in owner.err
    owner.settle('registrar = "../other.key.pub"')
    assert owner.accept("two", "--yes") == 0
    owner.settle()
    agent = owner.start()
    assert owner.asked(agent, plan) is Kind.ADVERTISE
    assert owner.asked(agent, owner.plan(seed=1)) is None  # signed by nobody whom it asks


def test_a_notice_that_was_changed_on_its_way(owner: Owner) -> None:
    plan, other = owner.publish("one"), owner.plan(seed=1)
    assert owner.accept("one", "--yes") == 0 and owner.revoke(other) == 0
    notice = owner.place / "ended.revoked"
    notice.write_text(notice.read_text().replace(other.fingerprint, plan.fingerprint))
    assert owner.hear() == 2 and "the revocation is not one by the registrar" in owner.err
    assert owner.asked(owner.start(), plan) is Kind.ADVERTISE
    owner.settle(registrar="")
    assert owner.hear() == 2 and "agent.toml names no registrar" in owner.err


# ---- the last day ----


def test_a_carrier_that_holds_back_the_notice_gains_time_to_the_last_day(owner: Owner) -> None:
    plan = owner.publish("one", "--until", "2100-01-31")
    assert owner.accept("one", "--yes") == 0 and "2100-01-31 (UTC)" in owner.out
    agent = owner.start()
    assert owner.asked(agent, plan, LATE - 1) is Kind.ADVERTISE
    assert owner.asked(agent, plan, LATE) is AbortCode.POLICY
    assert f"{OVER} 2100-01-31 (UTC)" in owner.log[-1]


def test_rounds_that_nobody_took_do_not_stay_open_without_a_registrar(owner: Owner) -> None:
    owner.settle(registrar="")
    plan = owner.plan()
    plan.save(owner.place / "one.toml")
    last = day_of(time.time() + DAYS_OPEN * 86_400)
    assert owner.accept("one", "--yes") == 0 and f"until {last}" in owner.err
    agent = owner.start()
    assert owner.asked(agent, plan, end_of(last) - 1) is Kind.ADVERTISE
    assert owner.asked(agent, plan, end_of(last)) is AbortCode.POLICY and OVER in owner.log[-1]
    # the agent that runs goes by what its owner says last
    assert owner.accept("one", "--yes", "--until", "2100-01-31") == 0
    assert owner.asked(agent, plan, LATE - 1) is Kind.ADVERTISE
    assert owner.asked(agent, plan, LATE) is AbortCode.POLICY


def test_of_the_owner_and_the_registrar_the_earlier_last_day_counts(owner: Owner) -> None:
    plan = owner.publish("one", "--until", "2100-01-31")
    end = end_of(date(2099, 5, 1))
    assert owner.accept("one", "--yes", "--until", "2099-05-01") == 0
    agent = owner.start()
    assert owner.asked(agent, plan, end) is AbortCode.POLICY
    assert owner.accept("one", "--yes", "--until", "2150-01-31") == 0
    assert owner.asked(agent, plan, end) is Kind.ADVERTISE
    assert owner.asked(agent, plan, LATE) is AbortCode.POLICY


def test_a_plan_that_is_over_is_not_accepted(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    owner.publish("one", "--until", "2100-01-31")
    monkeypatch.setattr(time, "time", lambda: float(LATE))
    assert owner.accept("one", "--yes") == 2
    assert "its last day was 2100-01-31 (UTC): ask for a newer signature" in owner.err
    assert owner.accepted == []


# ---- who may write the owner's files ----


def test_a_later_day_that_is_written_into_the_signature(owner: Owner) -> None:
    plan = owner.publish("one", "--until", "2100-01-31")
    assert owner.accept("one", "--yes") == 0
    place = owner.agent / "campaigns" / plan.fingerprint / "signature"
    place.write_text(place.read_text().replace("2100-01-31", "2200-01-31"))
    assert owner.asked(owner.start(), plan, LATE) is None and "was not accepted" in owner.log[-1]
    assert owner.run("agent", "check", "--agent", str(owner.agent)) == 2
    assert "the signature of the plan is not one by the registrar" in owner.err


def test_a_plan_of_the_registrar_that_somebody_puts_among_the_accepted_ones(owner: Owner) -> None:
    """Who may write the folder, and not the record, brings in no plan that the owner never saw."""
    old = owner.publish("old")
    new = owner.publish("new", seed=1)
    assert owner.accept("new", "--yes") == 0
    place = owner.agent / "campaigns" / old.fingerprint
    shutil.copytree(owner.agent / "campaigns" / new.fingerprint, place)
    old.save(place / "plan.toml")
    save_signature(place / "signature", load_signature(owner.place / "old.sig"))
    assert owner.asked(owner.start(), old) is AbortCode.POLICY and UNKNOWN in owner.log[-1]


def test_an_earlier_signature_with_a_later_day_that_somebody_puts_back(owner: Owner) -> None:
    """The registrar signs a plan again to end it sooner: its earlier word does not come back."""
    plan = owner.publish("one", "--until", "2100-01-31")
    assert owner.accept("one", "--yes") == 0
    kept = owner.agent / "campaigns" / plan.fingerprint / "signature"
    earlier = load_signature(kept)
    assert owner.sign("one", "--until", "2099-05-01") == 0 and owner.accept("one", "--yes") == 0
    agent, end = owner.start(), end_of(date(2099, 5, 1))
    assert owner.asked(agent, plan, end - 1) is Kind.ADVERTISE
    assert owner.asked(agent, plan, end) is AbortCode.POLICY and OVER in owner.log[-1]
    save_signature(kept, earlier)
    assert owner.asked(agent, plan, end) is AbortCode.POLICY and UNKNOWN in owner.log[-1]


def test_an_old_copy_of_the_record_that_does_not_know_of_the_end(owner: Owner) -> None:
    plan = owner.publish("one")
    assert owner.accept("one", "--yes") == 0
    agent, record = owner.start(), owner.agent / "record" / "record.db"
    copy = record.read_bytes()
    assert owner.revoke(plan) == 0 and owner.hear() == 0
    record.write_bytes(copy)
    assert owner.asked(agent, plan) is AbortCode.INTERNAL
    assert "an old copy of it was put back" in "".join(owner.log)
    with pytest.raises(UnreadableFileError, match="an old copy of it was put back"):
        owner.start()


def test_a_copy_without_the_plan_that_was_accepted(owner: Owner) -> None:
    """Else the number of the newer plan would be forgotten, and the older one accepted."""
    owner.publish("old")
    owner.publish("new", seed=1)
    record = owner.agent / "record" / "record.db"
    copy = record.read_bytes()
    assert owner.accept("new", "--yes") == 0
    record.write_bytes(copy)
    assert owner.accept("old", "--yes") == 2 and "an old copy of it was put back" in owner.err


def test_a_crash_between_the_record_and_the_folder_leaves_no_ended_plan_open(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = owner.publish("old")
    assert owner.accept("old", "--yes") == 0
    new = owner.publish("new", "--replaces", old.fingerprint, seed=1)

    def crash(*_: object) -> None:
        raise InvalidInputError("the power went")

    with monkeypatch.context() as patch:
        patch.setattr(AcceptedCampaigns, "add", crash)
        assert owner.accept("new", "--yes") == 2
    agent = owner.start()
    assert owner.asked(agent, old) is AbortCode.POLICY and ENDED in owner.log[-1]
    assert owner.asked(agent, new) is None
    assert owner.accept("new", "--yes") == 0
    assert owner.asked(agent, new) is Kind.ADVERTISE


# ---- what the owner sees ----


def test_the_owner_sees_how_each_plan_stands(owner: Owner) -> None:
    plans = [owner.publish(str(i), "--until", "2100-01-31", seed=i) for i in range(2)]
    for name in "01":
        assert owner.accept(name, "--yes") == 0
    assert owner.revoke(plans[0]) == 0 and owner.hear() == 0
    assert owner.run("agent", "show", "--agent", str(owner.agent)) == 0
    gone, stays = (plan.fingerprint[:16] for plan in plans)
    assert f"{gone} over: its registrar replaced or revoked it" in owner.out
    assert f"{stays} until 2100-01-31" in owner.out
    assert owner.run("agent", "check", "--agent", str(owner.agent)) == 2
    assert f"plan {gone}: its registrar replaced or revoked it" in owner.err
    assert f"plan {stays}:" not in owner.err
    place = next(one for one in (owner.agent / "campaigns").iterdir() if one.name.startswith(gone))
    assert f"(delete {place} to hear no more of it)" in owner.err
    shutil.rmtree(place)
    assert owner.run("agent", "check", "--agent", str(owner.agent)) == 0


def test_a_folder_of_an_earlier_version_is_named(owner: Owner) -> None:
    """It has no last day: the owner accepts the plan anew."""
    owner.settle(registrar="")
    plan = owner.plan()
    plan.save(owner.place / "one.toml")
    assert owner.accept("one", "--yes") == 0
    place = owner.agent / "campaigns" / plan.fingerprint
    (place / "until").unlink()
    assert owner.asked(owner.start(), plan) is None
    assert owner.run("agent", "check", "--agent", str(owner.agent)) == 2
    assert "was accepted without a last day: accept the plan anew" in owner.err
    (place / "until").write_text("soon")
    assert owner.run("agent", "check", "--agent", str(owner.agent)) == 2
    assert "until holds no day: accept the plan anew" in owner.err
    (place / "until").unlink()
    (place / "until").mkdir()  # as where root accepted it, and the agent's user cannot read it
    assert owner.run("agent", "check", "--agent", str(owner.agent)) == 2
    assert "until (Is a directory): give it to the agent's user" in owner.err
    assert owner.accept("one", "--yes") == 0
    assert owner.asked(owner.start(), plan) is Kind.ADVERTISE


def test_root_accepts_nothing_for_an_agent_of_another_user(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock of the mark would be root's, and the agent could write no session any more."""
    owner.publish("one")
    (owner.agent / "key" / ".record.mark.lock").unlink(missing_ok=True)
    if os.geteuid() == 0:
        for folder, _, files in os.walk(owner.agent):
            for name in ("", *files):
                os.chown(os.path.join(folder, name), OTHER, OTHER)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert owner.accept("one", "--yes") == 2
    assert "belongs to user" in owner.err
    assert "run this command as that user (sudo -u '#" in owner.err
    assert owner.accepted == []
    assert not (owner.agent / "key" / ".record.mark.lock").exists()
