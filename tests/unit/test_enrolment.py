"""Enrolment: who may take part, by proofs that bind a registrar and a purpose; and signed plans."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest
from cases import each_case
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from fedtally.campaign import enrolment
from fedtally.campaign.enrolment import (
    MAX_ENDED,
    Authority,
    PlanSignature,
    Proof,
    Revocation,
    allow_list_of,
    check_allow_list,
    check_proof,
    check_revocation,
    check_signature,
    load_allow_list,
    load_proof,
    load_revocation,
    load_signature,
    make_proof,
    revoke_plans,
    save_allow_list,
    save_proof,
    save_revocation,
    save_signature,
    sign_plan,
)
from fedtally.campaign.key_files import create_key_files
from fedtally.cli.app import run
from fedtally.crypto.keys import Label, Secret, SigningKey
from fedtally.errors import InvalidInputError, UnreadableFileError
from fedtally.plan import Plan
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.config import SecAggConfig, TwoServerConfig
from fedtally.secagg.proposal import propose


def key(number: int) -> SigningKey:
    return SigningKey(Secret(bytes([number]) * 32))


REGISTRAR, OTHER = key(200), key(201)
PURPOSE = "hospital study 2026"
FIRST, SECOND = "0a" * 32, "1b" * 32  # fingerprints of plans
SAID = Authority(PURPOSE, 7, date(2100, 1, 31), (SECOND, FIRST))
LOW_ORDER = bytes([1]) + bytes(31)


def proofs(*numbers: int, registrar: SigningKey = REGISTRAR, purpose: str = PURPOSE) -> list[Proof]:
    return [make_proof(key(number), registrar.public, purpose) for number in numbers]


def listed(*numbers: int) -> AllowList:
    return allow_list_of(proofs(*numbers), REGISTRAR.public, PURPOSE)


def planned(clients: AllowList, n: int = 12) -> Plan:
    parameters = propose(n, length=48, bits=8, corrupt=1, max_dropout=0.1, adversary="active")
    domain = {"kind": "range", "size": 9, "public": True, "first": 1, "last": 9}
    sized = Plan(
        3,
        16,
        "shared",
        1,
        n,
        n,
        domain,
        1,
        bytes(32),
        SecAggConfig(parameters=parameters),  # type: ignore[arg-type]
    )
    return sized.with_keys(server_key=key(202).public, allow_list=clients.digest)


# ---- proofs ----


def test_a_proof_signs_what_the_page_says() -> None:
    """Verified without the package: label, registrar, and the hash of the purpose."""
    [proof] = proofs(1)
    signed = (
        b"fedtally-secagg/1 proof of possession"
        + REGISTRAR.public
        + hashlib.sha256(PURPOSE.encode()).digest()
    )
    Ed25519PrivateKey.from_private_bytes(bytes([1]) * 32).public_key().verify(
        proof.signature, signed
    )
    assert proof.identity == key(1).public


def test_the_list_has_the_clients_whose_proofs_it_is_made_of() -> None:
    found = listed(3, 1, 2)
    assert [found.key(rank) for rank in range(3)] == sorted(key(n).public for n in (1, 2, 3))
    assert found.digest == listed(1, 2, 3).digest


def test_a_proof_counts_for_one_registrar_and_one_purpose() -> None:
    [proof] = proofs(1)
    check_proof(proof, REGISTRAR.public, PURPOSE)
    with pytest.raises(InvalidInputError, match=r"for the registrar \w{16}\.\.\., and not for"):
        check_proof(proof, OTHER.public, PURPOSE)
    with pytest.raises(InvalidInputError, match="for the purpose 'hospital study 2026', and not"):
        check_proof(proof, REGISTRAR.public, PURPOSE + "x")


@each_case(
    "changes",
    [
        # what a registrar does with a proof that it was given for itself, to enrol elsewhere
        {"registrar": OTHER.public},
        {"purpose": "another study"},
        {"identity": key(2).public},
        {"signature": bytes(64)},
        {"signature": key(1).sign(Label.CONFIRM, REGISTRAR.public)},
        {"signature": key(1).sign(Label.POSSESSION, REGISTRAR.public)},
        {"signature": key(1).sign(Label.POSSESSION, hashlib.sha256(PURPOSE.encode()).digest())},
    ],
)
def test_a_proof_that_was_rewritten_is_refused(changes: dict[str, Any]) -> None:
    forged = replace(*proofs(1), **changes)
    with pytest.raises(InvalidInputError, match="is not signed by its identity"):
        check_proof(forged, forged.registrar, forged.purpose)
    good = make_proof(key(5), forged.registrar, forged.purpose)
    with pytest.raises(InvalidInputError, match=r"1 of 2 proofs is refused: proof 2 \(identity"):
        allow_list_of([good, forged], forged.registrar, forged.purpose)


def test_every_refused_proof_is_named() -> None:
    mixed = [
        *proofs(1, 2),
        *proofs(3, registrar=OTHER),
        *proofs(4, purpose="lunch"),
        *proofs(2),
    ]
    with pytest.raises(InvalidInputError) as e:
        allow_list_of(mixed, REGISTRAR.public, PURPOSE, names=["a", "b", "c", "d", "e"])
    text = str(e.value)
    assert text.startswith("3 of 5 proofs are refused: c (identity ")
    assert "; d (identity " in text and "purpose 'lunch'" in text
    assert f"; e (identity {key(2).public.hex()[:16]}...): b is of the same identity; " in text
    with pytest.raises(InvalidInputError, match=r"6 of 6 proofs .*; and 1 more; leave them out"):
        allow_list_of(proofs(*range(1, 7)), OTHER.public, PURPOSE)
    with pytest.raises(InvalidInputError, match="keys_in_the_allow_list must be at least 1"):
        allow_list_of([], REGISTRAR.public, PURPOSE)


@each_case(
    "purpose",
    [
        "",
        " a",
        "a ",
        "a\nb",
        "a\r",
        "a\tb",
        "a\0",
        "a\u2028b",
        "a\u200bb",  # no width
        "\u202eabc",  # right to left
        "a\u00a0b",  # a space that is none
        "\ud800",
        "x" * 201,
        "x" * 10**6,
        None,
        b"bytes",
        7,
    ],
)
def test_what_is_no_purpose(purpose: Any) -> None:
    for call in (
        lambda: make_proof(key(1), REGISTRAR.public, purpose),
        lambda: allow_list_of(proofs(1), REGISTRAR.public, purpose),
        lambda: replace(*proofs(1), purpose=purpose),
    ):
        with pytest.raises(InvalidInputError, match="a purpose must be 1 to 200 printable") as e:
            call()
        assert len(str(e.value)) < 300 and str(e.value).isprintable()


def test_two_ways_to_write_one_letter_are_one_purpose() -> None:
    [proof] = proofs(1, purpose="Ko\u0308ln")
    assert proof.purpose == "K\u00f6ln"
    for text in ("K\u00f6ln", "Ko\u0308ln"):
        assert len(allow_list_of([proof], REGISTRAR.public, text)) == 1
    with pytest.raises(InvalidInputError, match="for the purpose"):
        check_proof(proof, REGISTRAR.public, "K\u043eln")  # a letter of another alphabet


@each_case("bad", [LOW_ORDER, bytes(31), b"\xff" * 32, None])
def test_keys_that_anybody_could_sign_for_are_refused(bad: Any) -> None:
    plan = planned(listed(1))
    for call in (
        lambda: make_proof(key(1), bad, PURPOSE),
        lambda: allow_list_of(proofs(1), bad, PURPOSE),
        lambda: replace(*proofs(1), identity=bad),
        lambda: check_signature(sign_plan(REGISTRAR, plan, SAID), plan, bad),
        lambda: PlanSignature(bad, "00" * 32, SAID, bytes(64)),
        lambda: Revocation(bad, (FIRST,), bytes(64)),
    ):
        with pytest.raises(InvalidInputError, match=r"the (registrar|identity)'s key is not valid"):
            call()


# ---- files ----

SIGNED = planned(listed(1))
SAVERS: dict[str, tuple[Callable[..., None], Callable[[Any], Any], Any]] = {
    "proof": (save_proof, load_proof, proofs(1, purpose='K\u00f6ln "West" \\ \U0001f3e5')[0]),
    "signature": (save_signature, load_signature, sign_plan(REGISTRAR, SIGNED, SAID)),
    "revocation": (save_revocation, load_revocation, revoke_plans(REGISTRAR, [SECOND, FIRST])),
    "allow-list": (save_allow_list, load_allow_list, listed(*range(1, 40))),
}


def digest_of(value: Any) -> Any:
    return value.digest if isinstance(value, AllowList) else value


@pytest.mark.parametrize("what", SAVERS)
def test_a_file_is_short_ascii_and_is_read_back(what: str, tmp_path: Path) -> None:
    save, load, value = SAVERS[what]
    path = tmp_path / "file"
    save(path, value)
    data = path.read_bytes()
    assert data.isascii() and b"\r" not in data and data.endswith(b"\n")
    assert digest_of(load(path)) == digest_of(value)
    if what != "allow-list":
        assert data.count(b"\n") == 1
        path.write_bytes(data[:-1])  # a paste may lose the line end
        assert load(path) == value
    save(path, value)  # again: replaced whole
    assert os.listdir(tmp_path) == ["file"] and path.read_bytes() == data


def checked(path: Path, load: Callable[[Any], Any], value: Any) -> None:
    """Read a file as its reader does, for the registrar and purpose that the reader knows."""
    found = load(path)
    if isinstance(found, Proof):
        check_proof(found, value.registrar, value.purpose)
    elif isinstance(found, PlanSignature):
        check_signature(found, SIGNED, REGISTRAR.public)
    elif isinstance(found, Revocation):
        check_revocation(found, REGISTRAR.public)


@pytest.mark.parametrize("what", SAVERS)
def test_no_changed_character_passes(what: str, tmp_path: Path) -> None:
    save, load, value = SAVERS[what]
    path = tmp_path / "file"
    save(path, value)
    data = path.read_bytes()
    checked(path, load, value)
    for place in range(0, len(data), 1 if what != "allow-list" else 5):
        now = data[place : place + 1]
        new = (b"0" if now != b"0" else b"f", b"\n", b" ", b"", now * 2)[place % 7 % 5]
        changed = data[:place] + new + data[place + 1 :]
        if changed in (data, data[:-1]):
            continue
        path.write_bytes(changed)
        with pytest.raises(InvalidInputError):
            checked(path, load, value)


@pytest.mark.parametrize("what", SAVERS)
def test_what_is_no_such_file_is_refused_by_name(what: str, tmp_path: Path) -> None:
    save, load, value = SAVERS[what]
    path = tmp_path / "file"
    save(path, value)
    data = path.read_bytes()
    others = [name for name in SAVERS if name != what]
    for changed, said in (
        (b"", "is no .* of this version, or damaged"),
        (
            data.replace(b"/1 ", b"/9 ").replace(b"/2 ", b"/9 "),
            "is no .* of this version, or damaged",
        ),
        (data.upper(), "is no .* of this version"),
        (data.replace(b"\n", b"\r\n"), r"has line ends of another system \(CR\)"),
        (b"\xef\xbb\xbf" + data, "is not ASCII text"),
        (data + b"\0", "is no .* of this version|is damaged: its last line"),
        (data * 2, "is no .* of this version|is damaged: line 41 is no identity"),
        (b"x" * 70_000_000, "is too large"),
    ):
        path.write_bytes(changed)
        with pytest.raises(UnreadableFileError, match=said):
            load(path)
    for other in others:
        SAVERS[other][0](path, SAVERS[other][2])
        with pytest.raises(UnreadableFileError, match="is no .* of this version"):
            load(path)
    create_key_files(tmp_path / "a.key", "client", lambda size: bytes(range(size)))
    with pytest.raises(InvalidInputError, match="a.key holds a private key, which nobody") as e:
        load(tmp_path / "a.key")
    assert bytes(range(32)).hex() not in str(e.value)
    for missing in ("nowhere", ".", "a\0b"):
        with pytest.raises(UnreadableFileError, match="cannot read "):
            load(tmp_path / missing if "\0" not in missing else missing)
    if os.path.exists("/dev/zero"):
        with pytest.raises(UnreadableFileError, match="is too large"):
            load("/dev/zero")


def test_a_proof_has_one_text(tmp_path: Path) -> None:
    path = tmp_path / "file"
    [proof] = proofs(1, purpose="K\u00f6ln /")
    line = proof.to_line()
    for other in (
        line.replace("\\u00f6", "\\u00F6"),
        line.replace("\\u00f6", "o\\u0308"),
        line.replace(" /", " \\/"),
        line.replace("K", "\\u004b"),
        line.replace(' "K', '  "K'),
        line.replace('"\n', '" \n'),
        line.replace('/"\n', '/\\n"\n'),
        line.replace('"\n', '" "\n'),
    ):
        assert other != line
        path.write_text(other)
        with pytest.raises(UnreadableFileError, match="is no proof of this version, or damaged"):
            load_proof(path)


@given(st.text(min_size=1, max_size=200))
def test_every_purpose_is_read_back_or_refused(purpose: str) -> None:
    try:
        [proof] = proofs(1, purpose=purpose)
    except InvalidInputError:
        return
    line = proof.to_line()
    assert line.isascii() and line.count("\n") == 1 and len(line) <= 4096
    assert json.loads(line.split(" ", 4)[4]) == proof.purpose


def test_a_damaged_list_says_where(tmp_path: Path) -> None:
    path, value = tmp_path / "clients.allow", listed(1, 2, 3)
    save_allow_list(path, value)
    head, *lines = path.read_text().splitlines()
    for new, said in (
        ([head, lines[1], lines[0], lines[2]], "must be in strictly ascending order, and key 1"),
        ([head, lines[0], *lines], "must be in strictly ascending order, and key 1"),
        ([head, *lines[:2]], "do not have the digest of its first line"),
        ([head, lines[0], lines[2]], "do not have the digest of its first line"),
        ([head, *lines[:2], lines[2][:-1]], "line 4 is no identity of 64 hexadecimal digits"),
        ([head, lines[0], "", *lines[1:]], "line 3 is no identity"),
        ([head, LOW_ORDER.hex(), *lines], "key 0 of the allow-list is not valid"),
        ([head], "keys_in_the_allow_list must be at least 1"),
    ):
        path.write_text("\n".join([*new, ""]))
        with pytest.raises(UnreadableFileError, match=f"clients.allow is damaged: .*{said}"):
            load_allow_list(path)
    path.write_text("\n".join([head, *lines]))
    with pytest.raises(UnreadableFileError, match="its last line has no end"):
        load_allow_list(path)


def test_a_file_that_cannot_be_written_is_an_error_of_its_own(tmp_path: Path) -> None:
    for save, _, value in SAVERS.values():
        with pytest.raises(InvalidInputError, match="nowhere"):
            save(tmp_path / "nowhere" / "file", value)


def test_no_key_is_overwritten(tmp_path: Path) -> None:
    create_key_files(tmp_path / "a.key", "registrar", lambda size: bytes(range(size)))
    before = (tmp_path / "a.key").read_bytes()
    (tmp_path / "link").symlink_to(tmp_path / "a.key")
    for save, _, value in SAVERS.values():
        for name in ("a.key", "link"):
            with pytest.raises(InvalidInputError, match=f"{name} holds a private key, and keys ar"):
                save(tmp_path / name, value)
    assert (tmp_path / "a.key").read_bytes() == before


# ---- the list of a plan ----


def test_a_plan_needs_its_own_list_and_a_full_cohort() -> None:
    clients, fewer = listed(*range(1, 13)), listed(*range(1, 12))
    check_allow_list(planned(clients), clients)
    with pytest.raises(InvalidInputError, match=r"names the allow-list \w{16}\.\.\., and this one"):
        check_allow_list(planned(clients), listed(*range(2, 14)))
    with pytest.raises(
        InvalidInputError,
        match="at least 12 clients, as many as a full cohort of the plan, got 11: enrol",
    ):
        check_allow_list(planned(fewer), fewer)
    plan = planned(clients)
    for other in (replace(plan, secure_sum=None), plan.without_keys()):
        with pytest.raises(InvalidInputError, match="the plan names no allow-list"):
            check_allow_list(other, clients)
    agreed = TwoServerConfig(
        length=48, bits=8, n_max=12, min_batch=6, corrupt=1, allow_list=listed(1, 2).digest
    )
    with pytest.raises(
        InvalidInputError, match="at least 6 clients, as many as the smallest sum of the"
    ):
        check_allow_list(replace(plan, secure_sum=agreed), listed(1, 2))


# ---- the signature of a plan ----


def test_a_signature_is_over_the_fingerprint_and_the_authority() -> None:
    """Verified without the package."""
    plan = planned(listed(1))
    signed = (
        b"fedtally-secagg/1 signed plan"
        + bytes.fromhex(plan.fingerprint)
        + hashlib.sha256(PURPOSE.encode()).digest()
        + (7).to_bytes(4, "little")
        + (47_512).to_bytes(4, "little")  # days from 1970-01-01 to 2100-01-31
        + (2).to_bytes(4, "little")
        + bytes.fromhex(FIRST + SECOND)
    )
    signature = sign_plan(REGISTRAR, plan, SAID)
    assert (signature.registrar, signature.fingerprint) == (REGISTRAR.public, plan.fingerprint)
    key_of_registrar = Ed25519PrivateKey.from_private_bytes(bytes([200]) * 32).public_key()
    key_of_registrar.verify(signature.signature, signed)
    check_signature(signature, plan, REGISTRAR.public)
    notice = revoke_plans(REGISTRAR, [SECOND, FIRST, SECOND])
    revoked = (2).to_bytes(4, "little") + bytes.fromhex(FIRST + SECOND)
    key_of_registrar.verify(notice.signature, b"fedtally-secagg/1 revocation" + revoked)
    check_revocation(notice, REGISTRAR.public)


@each_case(
    "changes",
    [
        {"purpose": "another study"},
        {"number": 8},
        {"last_day": date(2100, 2, 1)},
        {"replaces": (FIRST,)},
        {"replaces": ()},
    ],
)
def test_no_other_authority_passes_under_a_signature(changes: dict[str, Any]) -> None:
    plan = planned(listed(1))
    forged = replace(sign_plan(REGISTRAR, plan, SAID), authority=replace(SAID, **changes))
    with pytest.raises(InvalidInputError, match="is not one by the registrar .* damaged or forged"):
        check_signature(forged, plan, REGISTRAR.public)


def test_a_revocation_counts_for_its_plans_and_its_registrar() -> None:
    notice = revoke_plans(REGISTRAR, [FIRST])
    with pytest.raises(InvalidInputError, match="the revocation is signed by the registrar"):
        check_revocation(notice, OTHER.public)
    for forged in (replace(notice, revoked=(SECOND,)), replace(notice, revoked=(FIRST, SECOND))):
        with pytest.raises(InvalidInputError, match="the revocation is not one by the registrar"):
            check_revocation(forged, REGISTRAR.public)
    plan = planned(listed(1))
    # a signature that replaces plans is no notice of its own, nor the other way round
    signed = sign_plan(REGISTRAR, plan, SAID)
    with pytest.raises(InvalidInputError, match="the revocation is not one by the registrar"):
        check_revocation(replace(notice, signature=signed.signature), REGISTRAR.public)


@each_case(
    "changes",
    [
        {"purpose": "two\nlines"},
        {"number": 0},
        {"number": 2**32},
        {"last_day": date(1969, 12, 31)},
        {"last_day": datetime(2100, 1, 31)},
        {"last_day": "2100-01-31"},
        {"replaces": ("0A" * 32,)},
        {"replaces": ("0a" * 8,)},
        {"replaces": tuple(f"{number:064x}" for number in range(MAX_ENDED + 1))},
    ],
)
def test_an_authority_has_bounds(changes: dict[str, Any]) -> None:
    with pytest.raises(
        InvalidInputError, match="purpose|number|last day|fingerprint|0 to 32 plans"
    ):
        replace(SAID, **changes)


def test_a_revocation_names_one_plan_at_least_and_no_plan_replaces_itself() -> None:
    with pytest.raises(InvalidInputError, match="1 to 32 plans can be ended at once, got 0"):
        revoke_plans(REGISTRAR, [])
    plan = planned(listed(1))
    with pytest.raises(InvalidInputError, match="cannot replace itself"):
        sign_plan(REGISTRAR, plan, replace(SAID, replaces=(plan.fingerprint,)))


def test_the_longest_signature_fits_its_file(tmp_path: Path) -> None:
    many = tuple(f"{number:064x}" for number in range(MAX_ENDED))
    said = Authority("\U0001f3e5" * 200, 2**32 - 1, date.max, many)
    signature = sign_plan(REGISTRAR, SIGNED, said)
    save_signature(tmp_path / "sig", signature)
    assert load_signature(tmp_path / "sig") == signature
    check_signature(signature, SIGNED, REGISTRAR.public)


def test_a_signature_of_the_earlier_form_is_refused_by_its_name(tmp_path: Path) -> None:
    old = f"fedtally-signature/1 {REGISTRAR.public.hex()} {FIRST} {bytes(64).hex()}\n"
    (tmp_path / "plan.sig").write_text(old)
    says = (
        "plan.sig is a signature of the earlier form, .* ask the registrar to sign the plan again"
    )
    with pytest.raises(UnreadableFileError, match=says):
        load_signature(tmp_path / "plan.sig")


@each_case(
    "old_new",
    [
        (" 7 ", " 07 "),
        (f"{FIRST},{SECOND}", f"{SECOND},{FIRST}"),
        (f"{FIRST},{SECOND}", f"{FIRST},{FIRST},{SECOND}"),
        ("2100-01-31", "2100-02-31"),
        ('"hospital', '"hospit\\u0061l'),
    ],
)
def test_a_signature_has_one_text(tmp_path: Path, old_new: tuple[str, str]) -> None:
    line = sign_plan(REGISTRAR, SIGNED, SAID).to_line()
    assert line.count(old_new[0]) == 1
    (tmp_path / "sig").write_text(line.replace(*old_new))
    with pytest.raises(UnreadableFileError, match="is no signature of a plan of this version"):
        load_signature(tmp_path / "sig")


def test_no_other_plan_passes_under_a_signature() -> None:
    """Another parameter, server or list makes another plan, also where the file says otherwise."""
    plan = planned(listed(1))
    signature = sign_plan(REGISTRAR, plan, SAID)
    bare = plan.without_keys()
    for other in (
        replace(plan, max_items=2),
        replace(plan, seed=bytes([1]) * 32),
        bare.with_keys(server_key=key(203).public, allow_list=listed(1).digest),
        planned(listed(2)),
    ):
        with pytest.raises(InvalidInputError, match=r"the signature is of another plan, \w{16}"):
            check_signature(signature, other, REGISTRAR.public)
        forged = replace(signature, fingerprint=other.fingerprint)
        with pytest.raises(InvalidInputError, match="is not one by the registrar"):
            check_signature(forged, other, REGISTRAR.public)


def test_only_the_registrar_that_is_pinned_may_sign() -> None:
    plan = planned(listed(1))
    theirs = sign_plan(OTHER, plan, SAID)
    with pytest.raises(InvalidInputError, match="is signed by the registrar .* must sign it"):
        check_signature(theirs, plan, REGISTRAR.public)
    with pytest.raises(InvalidInputError, match="is not one by the registrar .* damaged or forged"):
        check_signature(replace(theirs, registrar=REGISTRAR.public), plan, REGISTRAR.public)
    # a signature of the registrar for something else
    proof = make_proof(REGISTRAR, REGISTRAR.public, PURPOSE)
    mixed = PlanSignature(REGISTRAR.public, plan.fingerprint, SAID, proof.signature)
    with pytest.raises(InvalidInputError, match="is not one by the registrar"):
        check_signature(mixed, plan, REGISTRAR.public)


def test_a_plan_that_lacks_a_key_is_neither_signed_nor_accepted() -> None:
    sized = planned(listed(1)).without_keys()
    for half in (sized, sized.with_keys(server_key=key(9).public, may_lack=True)):
        with pytest.raises(InvalidInputError, match="lacks .*allow_list, so nobody may run it"):
            sign_plan(REGISTRAR, half, SAID)
        raw = REGISTRAR.sign(Label.SIGNED_PLAN, bytes.fromhex(half.fingerprint), *SAID.fields)
        signature = PlanSignature(REGISTRAR.public, half.fingerprint, SAID, raw)
        with pytest.raises(InvalidInputError, match="so nobody may run it"):
            check_signature(signature, half, REGISTRAR.public)


@each_case(
    "changes",
    [
        {"fingerprint": "00" * 31},
        {"fingerprint": "AB" * 32},
        {"fingerprint": bytes(32)},
        {"signature": bytes(63)},
        {"signature": None},
    ],
)
def test_what_is_no_signature(changes: dict[str, Any]) -> None:
    signature = sign_plan(REGISTRAR, planned(listed(1)), SAID)
    with pytest.raises(InvalidInputError, match="a (fingerprint|signature) must be 64 "):
        replace(signature, **changes)


# ---- the commands ----

Call = Callable[..., tuple[int, str, str]]
SIGN = ("--purpose", PURPOSE, "--until", "2100-01-31")
FOR = ("--registrar", "registrar.key.pub", "--purpose", PURPOSE)


@pytest.fixture
def call(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Call:
    """Return a runner of `fedtally keys` in a folder with the keys of a registrar and clients."""
    monkeypatch.chdir(tmp_path)
    create_key_files("registrar.key", "registrar", lambda _: bytes([200]) * 32)
    create_key_files("server.key", "server", lambda _: bytes([202]) * 32)
    for number in range(1, 13):
        create_key_files(f"{number}.key", "client", lambda _, n=number: bytes([n]) * 32)  # type: ignore[misc]

    def run_and_read(*arguments: str) -> tuple[int, str, str]:
        code = run(["keys", *arguments])
        return code, *capsys.readouterr()

    return run_and_read


def proved(call: Call, *numbers: int) -> list[str]:
    for number in numbers:
        assert call("prove", f"{number}.key", *FOR, "-o", f"{number}.proof")[0] == 0
    return [f"{number}.proof" for number in numbers]


def test_from_keys_to_a_signed_plan(call: Call) -> None:
    code, out, err = call("prove", "1.key", *FOR, "-o", "1.proof")
    assert (code, out) == (0, f"{key(1).public.hex()}\n")
    assert err == (
        "wrote 1.proof: send it to the registrar\non stdout: the public key of the client\n"
    )
    assert load_proof("1.proof") == proofs(1)[0]
    files = proved(call, *range(1, 13))
    digits = ("--registrar", REGISTRAR.public.hex(), "--purpose", PURPOSE)
    code, out, err = call("allow-list", *digits, *files, "-o", "clients.allow")
    everybody = listed(*range(1, 13))
    assert (code, out) == (0, f"{everybody.digest.hex()}\n")
    assert (
        err == "wrote clients.allow: 12 clients may take part\non stdout: the digest of the list\n"
    )
    planned(everybody).without_keys().save("plan.toml")
    keyed = ("--server-key", "server.key.pub", "--allow-list", "clients.allow")
    code, out, err = call("add", "plan.toml", *keyed, "-o", "run.toml")
    assert (code, err) == (
        0,
        "wrote run.toml: published\non stdout: the fingerprint of the plan\n",
    )
    plan = Plan.load("run.toml")
    assert plan == planned(everybody) and out == f"{plan.fingerprint}\n"
    code, out, err = call("sign", "registrar.key", "run.toml", *SIGN, "-o", "plan.sig")
    assert (code, out) == (0, f"{plan.fingerprint}\n")
    for words in (
        f"Fingerprint  {plan.fingerprint}\n",
        f"Server key   {key(202).public.hex()}\n",
        f"Allow list   {everybody.digest.hex()}\n",
        "Asks for     up to 1 item out of 9 candidates (range), in 1 of 1 round\n",
        "Sums         over 9 to 12 clients, 8 honest ones at least\n",
        "Privacy      no differential privacy",
        "wrote plan.sig: clients need it beside run.toml\non stdout: the fingerprint of the plan\n",
    ):
        assert words in err
    check_signature(load_signature("plan.sig"), plan, REGISTRAR.public)
    assert call(
        "sign", "registrar.key", "run.toml", *SIGN, "--allow-list", "clients.allow", "-o", "b.sig"
    )[:2] == (0, out)
    assert [load_signature(name).authority.number for name in ("plan.sig", "b.sig")] == [1, 2]


def test_a_list_that_is_longer_than_its_plan_is_said(call: Call) -> None:
    """It is no fault: C counts the whole list. But of a longer list C is a smaller share."""
    longer = listed(*range(1, 41))
    save_allow_list("longer.allow", longer)
    said = (
        "note: the list has 40 clients, and the plan is for 12: still at most 1 of the whole list"
        " (2.50 %) may be corrupt; a plan with a larger --max-corrupt bears more"
    )
    planned(longer).without_keys().save("plan.toml")
    server = ("--server-key", key(202).public.hex())
    code, _, err = call("add", "plan.toml", *server, "--allow-list", "longer.allow", "-o", "a.toml")
    assert code == 0 and said in " ".join(err.split())
    signed = ("sign", "registrar.key", "a.toml", *SIGN, "--allow-list", "longer.allow")
    code, _, err = call(*signed, "-o", "a.sig")
    assert code == 0 and said in " ".join(err.split())
    save_allow_list("just.allow", listed(*range(1, 13)))
    code, _, err = call("add", "plan.toml", *server, "--allow-list", "just.allow", "-o", "b.toml")
    assert code == 0 and "the list has" not in err


def test_facts_of_a_plan_to_sign_are_folded_and_complete(call: Call) -> None:
    planned(listed(1)).save("run.toml")
    purpose = " ".join(["the", "purpose", "of", "many-worded", "hospitals"] * 5)
    said = ("--purpose", purpose, "--until", "2100-01-31")
    code, _, err = call("sign", "registrar.key", "run.toml", *said, "-o", "a.sig")
    assert code == 0 and max(map(len, err.splitlines())) <= 80
    rows = err.split("\n")
    first = next(i for i, row in enumerate(rows) if row.startswith("Purpose"))
    assert rows[first + 1].startswith(" " * 13) and not rows[first + 2].startswith(" " * 14)
    assert f"Purpose {purpose}, number 1" in " ".join(err.split())
    assert "note: registrar.key.signed is new: if this key has" in err


def test_documents(call: Call) -> None:
    proved(call, 1)
    _, out, err = call("prove", "1.key", *FOR, "-o", "a", "--json")
    assert (json.loads(out), err) == (
        {
            "schema": "fedtally-proved/1",
            "identity": key(1).public.hex(),
            "registrar": REGISTRAR.public.hex(),
            "purpose": PURPOSE,
        },
        "",
    )
    _, out, err = call("allow-list", *FOR, "1.proof", "-o", "b", "--json")
    listing = {"schema": "fedtally-listed/1", "clients": 1, "digest": listed(1).digest.hex()}
    assert (json.loads(out), err) == (listing, "")
    plan = planned(listed(1))
    plan.save("run.toml")
    ends = ("--replaces", SECOND, "--replaces", FIRST, "--number", "5")
    _, out, err = call("sign", "registrar.key", "run.toml", *SIGN, *ends, "-o", "c", "--json")
    assert (json.loads(out), err) == (
        {
            "schema": "fedtally-signed/1",
            "fingerprint": plan.fingerprint,
            "registrar": REGISTRAR.public.hex(),
            "purpose": PURPOSE,
            "number": 5,
            "last_day": "2100-01-31",
            "replaces": [FIRST, SECOND],
        },
        "",
    )
    _, out, err = call("revoke", "registrar.key", plan.fingerprint, "-o", "d", "--json")
    assert (json.loads(out), err) == (
        {
            "schema": "fedtally-revoked/1",
            "registrar": REGISTRAR.public.hex(),
            "revoked": [plan.fingerprint],
        },
        "",
    )
    check_revocation(load_revocation("d"), REGISTRAR.public)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["prove", "registrar.key", *FOR], "holds the key of the registrar, and that of the cl"),
        (["prove", "1.key.pub", *FOR], "1.key.pub holds a public key"),
        (["prove", "1.proof", *FOR], "1.proof is no private key of this version"),
        (["prove", "1.key", *FOR, "-o", "2.key"], "keys are never overwritten"),
        (["allow-list", *FOR, "1.proof", "-o", "registrar.key"], "keys are never overwritten"),
        (["sign", "registrar.key", "run.toml", *SIGN, "-o", "1.key"], "keys are never overwritten"),
        (["prove", "1.key", "--registrar", "2.key.pub", "--purpose", "a"], "that of the registrar"),
        (["prove", "1.key", "--registrar", "registrar.key", "--purpose", "a"], "a private key"),
        (["prove", "1.key", "--registrar", "00" * 32, "--purpose", "a"], "key is not valid"),
        (
            ["prove", "1.key", *FOR[:3], "a\nb"],
            r"on one line, without spaces at its ends, got 'a\n",
        ),
        (["allow-list", *FOR, "1.proof", "1.key"], "1.key holds a private key"),
        (
            ["allow-list", *FOR, "1.proof", "copy"],
            "copy (identity 8a88e3dd7409f195...): 1.proof is",
        ),
        (
            ["allow-list", *FOR[:3], "lunch", "1.proof"],
            "1.proof (identity 8a88e3dd7409f195...): th",
        ),
        (["allow-list", *FOR, "nowhere.proof"], "cannot read 'nowhere.proof'"),
        (["allow-list", *FOR, "1.proof", "-o", "1.proof"], "it is read by this run"),
        (["sign", "registrar.key", "sized.toml", *SIGN], "so nobody may run it"),
        (["sign", "server.key", "run.toml", *SIGN], "that of the registrar is needed"),
        (
            ["sign", "registrar.key", "run.toml", *SIGN, "--allow-list", "other.allow"],
            "and this one is",
        ),
        (["sign", "registrar.key", "run.toml", *SIGN[:3], "2020-02-02"], "must be today ("),
        (["sign", "registrar.key", "run.toml", *SIGN[:3], "tomorrow"], "a day such as 2027-01-31"),
        (["sign", "registrar.key", "run.toml", *SIGN, "--number", "0"], "must be above 0"),
        (["sign", "registrar.key", "run.toml", *SIGN, "--replaces", "ab"], "64 hexadecimal digits"),
        (["sign", "registrar.key", "run.toml", *SIGN, "--fingerprint", "ab"], "all 64 hexadecimal"),
        (["revoke", "registrar.key", "ab"], "64 hexadecimal digits, got 'ab'"),
        (["revoke", "registrar.key", FIRST, "-o", "1.key"], "keys are never overwritten"),
        (["add", "sized.toml", "--allow-list", "1.proof"], "1.proof is no allow-list"),
        (
            ["add", "sized.toml", "--allow-list", "other.allow"],
            "at least 12 clients, as many as a full",
        ),
        (["add", "run.toml", "--allow-list", "other.allow"], "the plan has another --allow-list"),
        (["add", "lax.toml", "--allow-list", "other.allow"], "(semi-honest) has no --allow-list"),
        (["add", "sized.toml"], "name --server-key, --leader-key or --helper-key"),
    ],
)
def test_what_is_refused_is_one_line_and_writes_nothing(
    call: Call, arguments: list[str], message: str
) -> None:
    proved(call, 1)
    Path("copy").write_bytes(Path("1.proof").read_bytes())
    save_allow_list("other.allow", listed(2))
    plan = planned(listed(*range(1, 13)))
    plan.save("run.toml"), plan.without_keys().save("sized.toml")
    parameters = propose(12, length=48, bits=8, corrupt=1, max_dropout=0.1)
    replace(plan, secure_sum=SecAggConfig(parameters=parameters)).save("lax.toml")
    before = {name: Path(name).read_bytes() for name in os.listdir()}
    output = [] if "-o" in arguments else ["-o", "new.toml"]
    code, out, err = call(*arguments, *output)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
    assert {name: Path(name).read_bytes() for name in os.listdir()} == before


def test_a_file_that_cannot_be_read_is_no_private_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "file"
    place.touch()

    def refused(*_: object) -> None:
        raise PermissionError(13, "denied")

    monkeypatch.setattr(enrolment, "open", refused, raising=False)
    assert not enrolment._is_private_key(place)
