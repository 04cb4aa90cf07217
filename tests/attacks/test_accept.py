"""Attacks on what an owner accepts and a registrar signs: files that change, and texts that lie."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from campaign_world import ALLOWED, plan_of
from owners import Owner, on_a_terminal
from secagg_cohort import stream

from fedtally.campaign.enrolment import (
    check_signature,
    load_allow_list,
    load_signature,
    save_allow_list,
)
from fedtally.campaign.folder import CampaignFolder
from fedtally.campaign.key_files import create_key_files, load_registrar_key
from fedtally.crypto.keys import Secret, SigningKey
from fedtally.errors import InvalidInputError, UnreadableFileError
from fedtally.plan import MAX_BYTES, Plan

ESCAPE = "\x1b[1A\x1b[2K\rServer key aaaaaaaa\x1b]0;title\x07\u202e"
FOR = ["--purpose", "a study"]
OTHER = SigningKey(Secret(bytes([9]) * 32))


@pytest.fixture
def owner(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Owner:
    return Owner(tmp_path, capsys)


def of_another_server(owner: Owner) -> Plan:
    return (
        owner.plan()
        .without_keys()
        .with_keys(server_key=OTHER.public, allow_list=owner.listed.digest)
    )


# ---- what was shown is what is stored ----


def test_a_plan_that_is_swapped_while_its_owner_reads(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack 3: who may write the file swaps it between the question and the answer."""
    owner.settle(registrar="")
    file, evil = owner.place / "one.toml", of_another_server(owner)
    owner.plan().save(file)
    asked = on_a_terminal(monkeypatch, lambda: evil.save(file))
    assert owner.accept("one") == 0
    assert asked == ["Accept this plan?"] and Plan.load(file) == evil
    assert owner.accepted == [owner.plan().fingerprint]
    assert f"accepted {owner.plan().fingerprint}" in owner.err
    assert Plan.load(owner.agent / "campaigns" / owner.accepted[0] / "plan.toml") == owner.plan()


def test_a_list_and_a_signature_that_are_swapped_while_the_owner_reads(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner.plan().save(owner.place / "one.toml")
    assert owner.sign("one") == 0
    before = load_signature(owner.place / "one.sig")
    others = [owner.place / "list", owner.place / "one.sig"]

    def swap() -> None:
        save_allow_list(others[0], ALLOWED)
        others[1].write_text("nothing")

    asked = on_a_terminal(monkeypatch, swap)
    assert owner.accept("one") == 0 and asked == ["Accept this plan?"]
    assert load_allow_list(others[0]).digest == ALLOWED.digest
    kept = owner.agent / "campaigns" / owner.plan().fingerprint
    assert load_allow_list(kept / "allow-list").digest == owner.listed.digest
    assert load_signature(kept / "signature") == before


def test_a_plan_that_is_swapped_while_its_registrar_reads(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack 3, on the registrar: the signature is over the plan whose facts were printed."""
    file, evil = owner.place / "one.toml", of_another_server(owner)
    owner.plan().save(file)
    asked = on_a_terminal(monkeypatch, lambda: evil.save(file))
    assert owner.sign("one") == 0
    assert asked == ["Sign this plan?"] and Plan.load(file) == evil
    registrar = load_registrar_key(owner.place / "registrar.key").public
    check_signature(load_signature(owner.place / "one.sig"), owner.plan(), registrar)


def test_files_that_are_swapped_while_a_campaign_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_key_files(tmp_path / "server.key", "server", stream("server"))
    plan = plan_of("active")
    plan.save(tmp_path / "plan.toml")
    save_allow_list(tmp_path / "list", ALLOWED)
    check = CampaignFolder._check_screen

    def swap(self: CampaignFolder) -> None:
        check(self)
        for name in ("plan.toml", "list"):
            (tmp_path / name).write_text("nothing")

    monkeypatch.setattr(CampaignFolder, "_check_screen", swap)
    CampaignFolder.create(
        tmp_path / "survey",
        tmp_path / "plan.toml",
        server_key=tmp_path / "server.key",
        mark=tmp_path / "mark",
        allow_list=tmp_path / "list",
    )
    made = CampaignFolder.open(tmp_path / "survey")
    assert made.plan == plan and made.allow_list is not None
    assert made.allow_list.digest == ALLOWED.digest


# ---- all digits ----


@pytest.mark.parametrize("command", ["accept", "sign"])
def test_a_plan_of_the_same_first_digits_is_told_apart_before_the_yes(
    owner: Owner, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Attack 13: a birthday search over the seed gives two plans the same first 16 digits."""
    plan, twin = owner.plan(), owner.plan(seed=1)
    first = plan.fingerprint
    known = {0: first, 1: first[:16] + twin.fingerprint[16:]}
    monkeypatch.setattr(Plan, "fingerprint", property(lambda self: known[self.seed[0]]))
    owner.settle(registrar="")
    twin.save(owner.place / "one.toml")
    asked = on_a_terminal(monkeypatch, lambda: seen.append(_printed(owner)))
    seen: list[str] = []
    act: Callable[..., int] = getattr(owner, command)
    # who pins the plan is not even asked about the other one
    assert act("one", "--fingerprint", first) == 2
    assert f"the plan is {twin.fingerprint}, and --fingerprint names {first}" in owner.err
    assert asked == []
    # and a pin that both would pass is refused
    assert act("one", "--fingerprint", first[:16]) == 2
    assert "--fingerprint must be all 64 hexadecimal digits" in owner.err and asked == []
    # who pins nothing has read all digits when the question comes
    assert act("one") == 0 and len(asked) == 1
    server = twin.secure_sum.server_key.hex()  # type: ignore[union-attr]
    assert twin.fingerprint in seen[0] and server in seen[0]


def _printed(owner: Owner) -> str:
    return "".join(owner.capsys.readouterr())


def test_the_whole_key_of_the_registrar_stands_before_the_yes(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner.plan().save(owner.place / "one.toml")
    assert owner.sign("one") == 0
    seen: list[str] = []
    on_a_terminal(monkeypatch, lambda: seen.append(_printed(owner)))
    assert owner.accept("one", "--fingerprint", owner.plan().fingerprint) == 0
    assert load_registrar_key(owner.place / "registrar.key").public.hex() in seen[0]


# ---- texts of strangers ----


@pytest.mark.parametrize("where", ["kind", "entry"])
def test_a_plan_whose_kind_or_entry_drives_the_terminal_is_no_plan(
    owner: Owner, where: str
) -> None:
    """Attack 2: the kind of the domain stood raw on the terminal before the policy was asked."""
    plan = owner.plan()
    domain = dict(plan.domain) | ({"kind": ESCAPE} if where == "kind" else {ESCAPE: 1})
    with pytest.raises(InvalidInputError, match="must be printable ASCII") as error:
        dataclasses.replace(plan, domain=domain)
    assert str(error.value).isprintable()


def test_no_command_puts_the_texts_of_a_plan_raw_on_the_terminal(owner: Owner) -> None:
    """Attack 2, where any text is allowed: the changes since the plan before, and the facts."""
    plan = owner.plan()
    evil = dataclasses.replace(plan, domain=dict(plan.domain) | {"note": ESCAPE})
    owner.settle(registrar="")
    plan.save(owner.place / "one.toml")
    evil.save(owner.place / "two.toml")
    assert owner.accept("one", "--yes") == 0
    file, listed = str(owner.place / "two.toml"), str(owner.place / "list")
    own = ["--agent", str(owner.agent), "--allow-list", listed]
    for words in (
        ["agent", "accept", file, *own, "--yes"],
        ["agent", "check", "--plan", file, *own],
        ["inspect", file],
        ["keys", "sign", str(owner.place / "registrar.key"), file, "-o", listed + ".sig", *FOR],
    ):
        owner.run(*words)
        for raw in ("\x1b", "\x07", "\r", "\u202e"):
            assert raw not in owner.out + owner.err, words
        if words[1] == "accept":  # the step that printed it raw was reached
            assert "domain.note" in owner.out and "\\x1b[1A\\x1b[2K\\r" in owner.out


# ---- files without an end ----


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="no device without an end here")
def test_a_plan_without_an_end_is_read_up_to_a_bound(owner: Owner) -> None:
    made = ["--server-key", "no.key", "--mark", str(owner.place / "mark")]
    for words in (
        [
            "keys",
            "sign",
            str(owner.place / "registrar.key"),
            "/dev/zero",
            "-o",
            str(owner.place / "x.sig"),
            *FOR,
        ],
        ["agent", "accept", "/dev/zero", "--agent", str(owner.agent), "--yes"],
        ["campaign", "init", str(owner.place / "c"), "--plan", "/dev/zero", *made],
    ):
        assert owner.run(*words) == 2
        assert f"a plan has at most {MAX_BYTES:,} bytes" in owner.err


def test_a_plan_of_the_largest_size_is_read_and_one_more_byte_is_not(tmp_path: Path) -> None:
    place, text = tmp_path / "plan.toml", plan_of().to_toml()
    place.write_text(text + "#" * (MAX_BYTES - len(text)))
    assert Plan.load(place) == plan_of()
    place.write_text(text + "#" * (MAX_BYTES + 1 - len(text)))
    with pytest.raises(UnreadableFileError, match="plan.toml: a plan has at most"):
        Plan.load(place)


def test_digits_in_capitals_are_the_same_digits(owner: Owner) -> None:
    """Public keys are taken so, too."""
    plan = owner.plan()
    plan.save(owner.place / "one.toml")
    named, gone = plan.fingerprint.upper(), "ab" * 32
    assert owner.sign("one", "--fingerprint", named, "--replaces", gone.upper()) == 0
    assert f"Replaces     {gone}" in owner.err
    assert owner.accept("one", "--yes", "--fingerprint", named) == 0
    notice = str(owner.place / "ended.revoked")
    assert owner.run("keys", "revoke", str(owner.place / "registrar.key"), named, "-o", notice) == 0
    assert owner.hear() == 0
    assert f"ended by the registrar: plan {plan.fingerprint}" in owner.err
