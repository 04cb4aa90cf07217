"""Enrolment: the registrar lists the clients that may take part, and signs the plan.

The registrar is the party that decides which clients may take part. Each client proves that it has
the secret key of its identity, by a `Proof`. From the proofs, the registrar makes the allow-list,
the list of all identities. Then it signs a plan. The plan's fingerprint covers the digest of the
allow-list and the server's key. A client that is set up with the registrar's public key accepts no
plan without this registrar's signature.

A signature is valid until the end of its last day. It also lists the plans that the signed plan
replaces. And it gives the plan a number, which grows from plan to plan of the same purpose. A
revocation ends plans at each client that reads it.

There are four kinds of files, in ASCII. Each line ends with one line feed. A proof, a signature and
a revocation have one line each. Keys and signatures are lower-case hexadecimal digits. The purpose
is a JSON string with escapes. REPLACED and REVOKED are fingerprints, joined by commas; `-` means no
fingerprint::

    fedtally-proof/1 IDENTITY REGISTRAR SIGNATURE "PURPOSE"
    fedtally-signature/2 REGISTRAR FINGERPRINT SIGNATURE NUMBER LAST-DAY REPLACED "PURPOSE"
    fedtally-revocation/1 REGISTRAR SIGNATURE REVOKED

An allow-list has a line with its digest, and then one line for each identity, in ascending order::

    fedtally-allow-list/1 DIGEST
    IDENTITY

Each `save_` function replaces a file that exists. But it raises an InvalidInputError if that file
has a private key.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import unicodedata
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import NamedTuple, TypeVar

from fedtally.base import validate
from fedtally.base.archive import replacing
from fedtally.base.text import in_number
from fedtally.campaign.key_files import PRIVATE_SCHEMA
from fedtally.crypto.keys import (
    KEY_BYTES,
    SIGNATURE_BYTES,
    Label,
    RejectedError,
    SigningKey,
    check_identity,
    verify,
)
from fedtally.errors import InvalidInputError, UnreadableFileError
from fedtally.plan import Plan
from fedtally.secagg.allow_list import MAX_KEYS, AllowList

PROOF_SCHEMA, SIGNATURE_SCHEMA = "fedtally-proof/1", "fedtally-signature/2"
LIST_SCHEMA, REVOCATION_SCHEMA = "fedtally-allow-list/1", "fedtally-revocation/1"
MAX_PURPOSE = 200  # characters
MAX_NUMBER = 2**32 - 1
MAX_ENDED = 32  # the most plans that one signature replaces, or that one revocation ends
DAYS_OPEN = 90  # for how many days a plan may be run if no last day is given
_MOST_SHOWN = 5  # how many refused proofs one error shows
# the most bytes of a file of one line: 200 escaped characters and 32 fingerprints fit
_MOST_BYTES = 8192
_EPOCH, _DAY = date(1970, 1, 1), 86_400
_HEX = f"[0-9a-f]{{{2 * KEY_BYTES}}}"
_KEY, _SIGNATURE = f"({_HEX})", f"([0-9a-f]{{{2 * SIGNATURE_BYTES}}})"
_PLANS = f"{_HEX}(?:,{_HEX})*"
_PROOF = re.compile(rf'{PROOF_SCHEMA} {_KEY} {_KEY} {_SIGNATURE} (".*")\n?')
_SIGNED = re.compile(
    rf"{SIGNATURE_SCHEMA} {_KEY} {_KEY} {_SIGNATURE}"
    rf' ([0-9]{{1,10}}) ([0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}) (-|{_PLANS}) (".*")\n?'
)
_REVOKED = re.compile(rf"{REVOCATION_SCHEMA} {_KEY} {_SIGNATURE} ({_PLANS})\n?")
_LIST = re.compile(rf"{LIST_SCHEMA} {_KEY}\n")
_Line = TypeVar("_Line", "Proof", "PlanSignature", "Revocation")


# ---- proofs of possession ----


@dataclass(frozen=True)
class Proof:
    """A client's proof that it has the secret key of its identity.

    This class does not check the signature; `check_proof` and `allow_list_of` do.

    Args:
        identity: the client's Ed25519 public key, 32 bytes.
        registrar: the Ed25519 public key of the registrar that shall accept the proof, 32 bytes.
        purpose: a text that the registrar chose, which says why clients enrol: 1 to 200 printable
            characters on one line. It is converted to Unicode's normal form C.
        signature: the client's signature of `registrar` and `purpose`, 64 bytes.

    Raises:
        InvalidInputError: a key or the purpose is not valid, or `signature` is not 64 bytes.
    """

    identity: bytes
    registrar: bytes
    purpose: str
    signature: bytes

    def __post_init__(self) -> None:
        _check_key(identity=self.identity)
        _check_key(registrar=self.registrar)
        object.__setattr__(self, "purpose", checked_purpose(self.purpose))
        _check_signature_bytes(self.signature)

    def to_line(self) -> str:
        """Return the proof as the only line of a proof file, with its line feed."""
        return (
            f"{PROOF_SCHEMA} {self.identity.hex()} {self.registrar.hex()} {self.signature.hex()}"
            f" {json.dumps(self.purpose)}\n"
        )

    @classmethod
    def from_line(cls, line: str) -> Proof:
        """Return the proof in a line, which may lack its line feed.

        Raises:
            ValueError: the line is no proof of this version, or differs from what `to_line` writes.
        """
        found = _PROOF.fullmatch(line)
        if found is None:
            raise ValueError
        identity, registrar, signature = (bytes.fromhex(found[place]) for place in (1, 2, 3))
        return _as_written(cls(identity, registrar, json.loads(found[4]), signature), line)


def make_proof(key: SigningKey, registrar: bytes, purpose: str) -> Proof:
    """Make the proof that a client has the secret of its key, for one registrar and purpose.

    Args:
        key: the client's key.
        registrar: the registrar's Ed25519 public key, 32 bytes.
        purpose: the text that the registrar chose, see `Proof`.

    Raises:
        InvalidInputError: the registrar's key or the purpose is not valid.

    >>> from fedtally.crypto.keys import Secret
    >>> client, registrar = (SigningKey(Secret(bytes([n]) * 32)) for n in (1, 2))
    >>> proof = make_proof(client, registrar.public, "hospital study 2026")
    >>> len(allow_list_of([proof], registrar.public, "hospital study 2026"))
    1
    >>> allow_list_of([proof], registrar.public, "another study")
    Traceback (most recent call last):
    ...
    fedtally.errors.InvalidInputError: 1 of 1 proofs is refused: proof 1 (identity 8a88e3dd7409...
    """
    fields = _proved(registrar, purpose)
    return Proof(key.public, registrar, purpose, key.sign(Label.POSSESSION, *fields))


def check_proof(proof: Proof, registrar: bytes, purpose: str) -> None:
    """Refuse a proof that is for another registrar or purpose, or whose signature is wrong.

    Args:
        proof: the proof that a client sent.
        registrar: the public key of the registrar who checks the proof, 32 bytes.
        purpose: the text that the registrar chose.

    Raises:
        InvalidInputError: the proof is for another registrar or purpose; or its signature is wrong:
            the secret key of its identity did not make it.
    """
    fields = _proved(registrar, purpose)
    # A client may enrol with several registrars. Without these checks, a registrar could use a
    # proof that it received to enrol the client with another registrar, or for another purpose.
    if proof.registrar != registrar:
        raise InvalidInputError(
            f"the proof is for the registrar {_short(proof.registrar)}, and not for"
            f" {_short(registrar)}"
        )
    if proof.purpose != checked_purpose(purpose):
        raise InvalidInputError(
            f"the proof is for the purpose {proof.purpose!r}, and not for"
            f" {checked_purpose(purpose)!r}"
        )
    try:
        verify(proof.identity, proof.signature, Label.POSSESSION, *fields)
    except RejectedError:
        raise InvalidInputError("the proof is not signed by its identity") from None


def save_proof(path: str | os.PathLike[str], proof: Proof) -> None:
    """Write a proof to a file of one line."""
    _save(path, proof.to_line())


def load_proof(path: str | os.PathLike[str]) -> Proof:
    """Return the proof in a file; the caller must check its signature, with `allow_list_of`.

    Raises:
        UnreadableFileError: there is no such file, or it is no proof of this version.
        InvalidInputError: the file has a private key.
    """
    return _load_line(path, Proof)


# ---- the allow-list ----


def allow_list_of(
    proofs: Iterable[Proof],
    registrar: bytes,
    purpose: str,
    *,
    names: Sequence[str] | None = None,
) -> AllowList:
    """Check the proofs of all clients, and return the list of their identities.

    Args:
        proofs: 1 .. 2^20 proofs, one from each client, in any order.
        registrar: the public key of the registrar who makes the list, 32 bytes.
        purpose: the text that the registrar chose.
        names: what errors call each proof, for instance its file name; None: "proof 1" and so on.

    Raises:
        InvalidInputError: there is no proof, there are too many, `check_proof` refuses a proof, or
            two proofs have the same identity. The error names at most five of the refused proofs.
    """
    # The arguments are checked first, since with a wrong key or purpose every proof would look
    # wrong.
    _check_key(registrar=registrar)
    purpose, proofs = checked_purpose(purpose), list(proofs)
    if names is None:
        names = [f"proof {place}" for place in range(1, len(proofs) + 1)]
    first: dict[bytes, str] = {}
    refused = []
    for name, proof in zip(names, proofs, strict=True):
        called = f"{name} (identity {_short(proof.identity)})"
        try:
            check_proof(proof, registrar, purpose)
        except InvalidInputError as error:
            refused.append(f"{called}: {error}")
            continue
        if proof.identity in first:
            # Either one client sent two proofs, or two clients have the same key. Only the
            # registrar can find out which, so both cases are refused.
            refused.append(f"{called}: {first[proof.identity]} is of the same identity")
        first.setdefault(proof.identity, name)
    if refused:
        more = len(refused) - _MOST_SHOWN
        raise InvalidInputError(
            f"{len(refused)} of {len(proofs)} proofs {in_number(len(refused), 'is', 'are')}"
            f" refused: {'; '.join(refused[:_MOST_SHOWN])}{f'; and {more} more' * (more > 0)};"
            " leave them out, or ask these clients for new ones"
        )
    return AllowList(sorted(first))


def save_allow_list(path: str | os.PathLike[str], allow_list: AllowList) -> None:
    """Write an allow-list to a file: its digest, then each identity on a line of its own."""
    keys = (allow_list.key(rank).hex() for rank in range(len(allow_list)))
    _save(path, "\n".join([f"{LIST_SCHEMA} {allow_list.digest.hex()}", *keys, ""]))


def load_allow_list(path: str | os.PathLike[str]) -> AllowList:
    """Return the allow-list in a file, after checking it against the digest in the file.

    The digest shows damage, but anybody can make a list with a right digest. So a client must also
    compare it with the digest in its plan, by `check_allow_list`.

    Raises:
        UnreadableFileError: there is no such file, or it is damaged, or no list of this version.
        InvalidInputError: the file has a private key.
    """
    name = os.fspath(path)
    text = _read(path, (MAX_KEYS + 2) * (2 * KEY_BYTES + 1), "an allow-list")
    found = _LIST.match(text)
    if found is None:
        raise _damaged(name, "allow-list", "keys allow-list")
    *lines, last = text[found.end() :].split("\n")
    if last:
        raise UnreadableFileError(
            f"{name} is damaged: its last line has no end, so the list may have been cut off; get"
            " the file again"
        )
    for number, line in enumerate(lines, 2):
        if not re.fullmatch(_KEY, line):
            raise UnreadableFileError(
                f"{name} is damaged: line {number} is no identity of {2 * KEY_BYTES} hexadecimal"
                " digits; get the file again"
            )
    try:
        allow_list = AllowList(map(bytes.fromhex, lines))
    except InvalidInputError as error:
        raise UnreadableFileError(f"{name} is damaged: {error}") from error
    if allow_list.digest.hex() != found[1]:
        raise UnreadableFileError(
            f"{name} is damaged: its identities do not have the digest of its first line; get the"
            " file again, or make the list anew with fedtally keys allow-list"
        )
    return allow_list


def check_allow_list(plan: Plan, allow_list: AllowList) -> None:
    """Refuse an allow-list that is not the plan's, or that has too few clients for the plan.

    Raises:
        InvalidInputError: the plan names another list or no list, or the list has too few clients.
            For a plan of secagg, the list must have at least the clients of one full cohort. For a
            plan of two servers, it must have at least the clients of the smallest sum.
    """
    agreed = plan.secure_sum
    if agreed is None or agreed.allow_list is None:
        raise InvalidInputError(
            "the plan names no allow-list: the adversary active and two servers have one, which"
            " fedtally keys add --allow-list adds"
        )
    if agreed.allow_list != allow_list.digest:
        raise InvalidInputError(
            f"the plan names the allow-list {_short(agreed.allow_list)}, and this one is"
            f" {_short(allow_list.digest)}: give the list of the plan, or make a plan of this list"
        )
    if plan.summing.cohorts is not None:
        least, what = plan.summing.most_clients, "a full cohort"
    else:
        least, what = plan.summing.least_clients, "the smallest sum"
    if len(allow_list) < least:
        raise InvalidInputError(
            f"the allow-list must have at least {least:,} clients, as many as {what} of the plan,"
            f" got {len(allow_list):,}: enrol more clients, or plan for fewer"
        )


# ---- the signature of a plan ----


@dataclass(frozen=True)
class Authority:
    """What a registrar says about a plan that it signs.

    Args:
        purpose: a text that says why clients enrol, as for `Proof`.
        number: the number of the plan, 1 .. 2^32 - 1, larger than the numbers of all earlier plans
            for the same purpose.
        last_day: the last day, in UTC, on which clients take part in the plan.
        replaces: the fingerprints of up to 32 plans that end because this plan replaces them, in
            any order.

    Raises:
        InvalidInputError: a value is out of bounds.
    """

    purpose: str
    number: int
    last_day: date
    replaces: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "purpose", checked_purpose(self.purpose))
        number = validate.integer(1, MAX_NUMBER, number=self.number)
        object.__setattr__(self, "number", number)
        if type(self.last_day) is not date or self.last_day < _EPOCH:
            raise InvalidInputError(f"a last day must be a date from 1970 on, got {self.last_day}")
        object.__setattr__(self, "replaces", _checked_fingerprints(self.replaces, least=0))

    @property
    def fields(self) -> tuple[bytes, ...]:
        """The byte strings that the registrar signs after the fingerprint of the plan."""
        return (
            hashlib.sha256(self.purpose.encode()).digest(),
            self.number.to_bytes(4, "little"),
            (self.last_day - _EPOCH).days.to_bytes(4, "little"),
            *_counted(self.replaces),
        )


def end_of(last_day: date) -> int:
    """Return the time at which a day in UTC is over, Unix seconds.

    >>> end_of(date(1970, 1, 2)) == 2 * 86_400
    True
    """
    return ((last_day - _EPOCH).days + 1) * _DAY


def day_of(time: float) -> date:
    """Return the day, in UTC, to which a time in Unix seconds belongs."""
    return _EPOCH + timedelta(seconds=int(time))


@dataclass(frozen=True)
class PlanSignature:
    """A registrar's signature of a plan, which `check_signature` checks.

    Args:
        registrar: the registrar's Ed25519 public key, 32 bytes.
        fingerprint: the plan's fingerprint, 64 lower-case hexadecimal digits.
        authority: what the registrar says about the plan.
        signature: the Ed25519 signature of `fingerprint` and `authority`, 64 bytes.

    Raises:
        InvalidInputError: the key, the fingerprint or the signature does not have its form, or the
            plan replaces itself.
    """

    registrar: bytes
    fingerprint: str
    authority: Authority
    signature: bytes

    def __post_init__(self) -> None:
        _check_key(registrar=self.registrar)
        _checked_fingerprints((self.fingerprint,), least=1)
        if self.fingerprint in self.authority.replaces:
            raise InvalidInputError(
                f"a plan cannot replace itself: leave {self.fingerprint} out of those it replaces"
            )
        _check_signature_bytes(self.signature)

    def to_line(self) -> str:
        """Return the signature as the only line of a signature file, with its line feed."""
        said = self.authority
        return (
            f"{SIGNATURE_SCHEMA} {self.registrar.hex()} {self.fingerprint} {self.signature.hex()}"
            f" {said.number} {said.last_day} {','.join(said.replaces) or '-'}"
            f" {json.dumps(said.purpose)}\n"
        )

    @classmethod
    def from_line(cls, line: str) -> PlanSignature:
        """Return the signature in a line, which may lack its line feed.

        Raises:
            ValueError: the line is no signature of this version, or differs from what `to_line`
                writes.
        """
        found = _SIGNED.fullmatch(line)
        if found is None:
            raise ValueError
        replaced = () if found[6] == "-" else tuple(found[6].split(","))
        last_day = date.fromisoformat(found[5])
        said = Authority(json.loads(found[7]), int(found[4]), last_day, replaced)
        made = cls(bytes.fromhex(found[1]), found[2], said, bytes.fromhex(found[3]))
        return _as_written(made, line)


def sign_plan(key: SigningKey, plan: Plan, authority: Authority) -> PlanSignature:
    """Return the registrar's signature of a published plan.

    The registrar signs `authority` and the plan's fingerprint. The fingerprint covers every
    parameter of the plan, the server's key and the digest of the allow-list.

    Args:
        key: the registrar's key.
        plan: the plan, with all its keys.
        authority: what the registrar says about the plan.

    Raises:
        InvalidInputError: the plan lacks a key, or replaces itself.
    """
    # If a key were missing, whoever adds it later could choose it freely.
    plan.check_published()
    fingerprint = bytes.fromhex(plan.fingerprint)
    signature = key.sign(Label.SIGNED_PLAN, fingerprint, *authority.fields)
    return PlanSignature(key.public, plan.fingerprint, authority, signature)


def check_signature(signature: PlanSignature, plan: Plan, registrar: bytes) -> None:
    """Refuse a plan that this registrar did not sign.

    This function does not check whether the plan has ended.

    Args:
        signature: the signature that came with the plan.
        plan: the plan.
        registrar: the registrar's public key that the caller knew before, 32 bytes. It must not be
            a key that came with the signature.

    Raises:
        InvalidInputError: the plan lacks a key; or the signature is by another registrar, is for
            another plan, or is not valid.
    """
    _check_key(registrar=registrar)
    plan.check_published()
    _check_registrar(signature.registrar, registrar, "plan")
    if signature.fingerprint != plan.fingerprint:
        raise InvalidInputError(
            f"the signature is of another plan, {signature.fingerprint[:16]}..., and this one is"
            f" {plan.fingerprint[:16]}...: get the signature of this plan from its registrar"
        )
    fields = bytes.fromhex(plan.fingerprint), *signature.authority.fields
    try:
        verify(registrar, signature.signature, Label.SIGNED_PLAN, *fields)
    except RejectedError:
        raise _forged("signature of the plan", registrar) from None


def save_signature(path: str | os.PathLike[str], signature: PlanSignature) -> None:
    """Write the signature of a plan to a file of one line."""
    _save(path, signature.to_line())


def load_signature(path: str | os.PathLike[str]) -> PlanSignature:
    """Return the plan's signature in a file; the caller must check it, with `check_signature`.

    Raises:
        UnreadableFileError: there is no such file, or it is no signature of this version.
        InvalidInputError: the file has a private key.
    """
    return _load_line(path, PlanSignature)


# ---- revocations ----


@dataclass(frozen=True)
class Revocation:
    """A registrar's notice that plans have ended, which `check_revocation` checks.

    Args:
        registrar: the registrar's Ed25519 public key, 32 bytes.
        revoked: the fingerprints of 1 to 32 plans, in any order.
        signature: the Ed25519 signature of the fingerprints, 64 bytes.

    Raises:
        InvalidInputError: the key, a fingerprint or the signature does not have its form.
    """

    registrar: bytes
    revoked: tuple[str, ...]
    signature: bytes

    def __post_init__(self) -> None:
        _check_key(registrar=self.registrar)
        object.__setattr__(self, "revoked", _checked_fingerprints(self.revoked, least=1))
        _check_signature_bytes(self.signature)

    def to_line(self) -> str:
        """Return the revocation as the only line of a revocation file, with its line feed."""
        revoked = ",".join(self.revoked)
        fields = (REVOCATION_SCHEMA, self.registrar.hex(), self.signature.hex(), revoked)
        return " ".join(fields) + "\n"

    @classmethod
    def from_line(cls, line: str) -> Revocation:
        """Return the revocation in a line, which may lack its line feed.

        Raises:
            ValueError: the line is no revocation of this version, or differs from what `to_line`
                writes.
        """
        found = _REVOKED.fullmatch(line)
        if found is None:
            raise ValueError
        registrar, signature = (bytes.fromhex(found[place]) for place in (1, 2))
        return _as_written(cls(registrar, tuple(found[3].split(",")), signature), line)


def revoke_plans(key: SigningKey, fingerprints: Iterable[str]) -> Revocation:
    """Return a notice, signed by the registrar, that plans have ended.

    Args:
        key: the registrar's key.
        fingerprints: the fingerprints of 1 to 32 plans. The notice has an effect only on plans that
            the same key has signed.

    Raises:
        InvalidInputError: there are no fingerprints, or too many, or a fingerprint is not 64
            lower-case hexadecimal digits.
    """
    revoked = _checked_fingerprints(tuple(fingerprints), least=1)
    signature = key.sign(Label.REVOCATION, *_counted(revoked))
    return Revocation(key.public, revoked, signature)


def check_revocation(revocation: Revocation, registrar: bytes) -> None:
    """Refuse a revocation that this registrar did not sign.

    Args:
        revocation: the revocation that the caller received.
        registrar: the registrar's public key that the caller knew before, 32 bytes.

    Raises:
        InvalidInputError: the revocation is by another registrar, or its signature is not valid.
    """
    _check_key(registrar=registrar)
    _check_registrar(revocation.registrar, registrar, "revocation")
    try:
        verify(registrar, revocation.signature, Label.REVOCATION, *_counted(revocation.revoked))
    except RejectedError:
        raise _forged("revocation", registrar) from None


def save_revocation(path: str | os.PathLike[str], revocation: Revocation) -> None:
    """Write a revocation to a file of one line."""
    _save(path, revocation.to_line())


def load_revocation(path: str | os.PathLike[str]) -> Revocation:
    """Return the revocation in a file; the caller must check it, with `check_revocation`.

    Raises:
        UnreadableFileError: there is no such file, or it is no revocation of this version.
        InvalidInputError: the file has a private key.
    """
    return _load_line(path, Revocation)


def _as_written(made: _Line, line: str) -> _Line:
    """Return an object that was read from a line, if the object's `to_line` gives the same line.

    So each object has only one line: a purpose, for instance, cannot be escaped in two ways.

    Raises:
        ValueError: `to_line` gives another line.
    """
    if made.to_line() != line.removesuffix("\n") + "\n":
        raise ValueError
    return made


def _check_registrar(found: bytes, pinned: bytes, what: str) -> None:
    if found != pinned:
        raise InvalidInputError(
            f"the {what} is signed by the registrar {_short(found)}, and {_short(pinned)} is the"
            " one that must sign it"
        )


def _forged(what: str, registrar: bytes) -> InvalidInputError:
    return InvalidInputError(
        f"the {what} is not one by the registrar {_short(registrar)}: it is damaged or forged; get"
        " it from the registrar again"
    )


def _counted(fingerprints: tuple[str, ...]) -> tuple[bytes, ...]:
    """Return the byte strings to sign for some fingerprints: their number, then each of them."""
    return len(fingerprints).to_bytes(4, "little"), *map(bytes.fromhex, fingerprints)


def _checked_fingerprints(given: tuple[str, ...], least: int) -> tuple[str, ...]:
    """Return the distinct fingerprints in ascending order, after checking their form and number.

    Raises:
        InvalidInputError: a fingerprint is not 64 lower-case hexadecimal digits, or there are fewer
            than `least` or more than 32 fingerprints.
    """
    for one in given:
        if not isinstance(one, str) or not re.fullmatch(_KEY, one):
            raise InvalidInputError(
                f"a fingerprint must be {2 * KEY_BYTES} hexadecimal digits, got {one!a:.80}"
            )
    found = tuple(sorted(set(given)))
    if not least <= len(found) <= MAX_ENDED:
        raise InvalidInputError(
            f"{least} to {MAX_ENDED} plans can be ended at once, got {len(found)}"
        )
    return found


# ---- fields and files ----


def _proved(registrar: bytes, purpose: str) -> tuple[bytes, bytes]:
    """Return what a client signs in a proof: the registrar's key and a hash of the purpose.

    The purpose is hashed, so that all that is signed has a fixed length. The client's identity need
    not be signed, because a signature with Ed25519 is valid for one public key only.

    Raises:
        InvalidInputError: the registrar's key or the purpose is not valid.
    """
    text = checked_purpose(purpose).encode()
    return _check_key(registrar=registrar), hashlib.sha256(text).digest()


def checked_purpose(text: str) -> str:
    """Return a purpose in Unicode's normal form C: two ways to encode a text then give one text.

    Raises:
        InvalidInputError: `text` is no text of 1 to 200 printable characters on one line, or has
            spaces at its ends.
    """
    is_short = isinstance(text, str) and 0 < len(text) <= MAX_PURPOSE
    found = unicodedata.normalize("NFC", text) if is_short else ""
    # Only printable characters are allowed. A line end could forge a line of a file. With invisible
    # marks, or marks that reverse text, two different purposes could look the same. Half of a
    # surrogate pair cannot be written to a file.
    if not 0 < len(found) <= MAX_PURPOSE or not found.isprintable() or found != found.strip():
        raise InvalidInputError(
            f"a purpose must be 1 to {MAX_PURPOSE} printable characters on one line, without spaces"
            f" at its ends, got {text!a:.80}"
        )
    return found


def _check_key(**named: bytes) -> bytes:
    ((name, value),) = named.items()
    try:
        return check_identity(value)
    except RejectedError as error:
        raise InvalidInputError(f"the {name}'s key is not valid: {error}") from error


def _check_signature_bytes(signature: bytes) -> None:
    if not isinstance(signature, bytes) or len(signature) != SIGNATURE_BYTES:
        raise InvalidInputError(f"a signature must be {SIGNATURE_BYTES} bytes")


def _short(key: bytes) -> str:
    return f"{key.hex()[:16]}..."


def _damaged(name: str, what: str, command: str) -> UnreadableFileError:
    return UnreadableFileError(
        f"{name} is no {what} of this version, or damaged: give the file that fedtally {command}"
        " wrote"
    )


class _File(NamedTuple):
    """What errors say about a file of one line.

    Attributes:
        wanted: the file that the user must give.
        called: the name of what is in the file.
        command: the command of fedtally that writes the file.
    """

    wanted: str
    called: str
    command: str
    earlier: str = ""  # the start of an earlier form of the file, which is not read any more
    lacks: str = ""  # the parts that the earlier form does not have


# For each class, the words for its files. `_load_line` reads these files, and `_save` writes them.
_FILES: dict[type[Proof | PlanSignature | Revocation], _File] = {
    Proof: _File("a client's proof", "proof", "keys prove"),
    PlanSignature: _File(
        "the signature of a plan",
        "signature of a plan",
        "keys sign",
        earlier="fedtally-signature/1 ",
        lacks="no purpose, number or last day: ask the registrar to sign the plan again",
    ),
    Revocation: _File("a registrar's revocation", "revocation", "keys revoke"),
}


def _load_line(path: str | os.PathLike[str], kind: type[_Line]) -> _Line:
    """Return the object of class `kind` in a file of one line.

    Raises:
        UnreadableFileError: there is no such file, or it is damaged or of another version.
        InvalidInputError: the file has a private key.
    """
    name, file = os.fspath(path), _FILES[kind]
    text = _read(path, _MOST_BYTES, file.wanted)
    if file.earlier and text.startswith(file.earlier):
        raise UnreadableFileError(
            f"{name} is a signature of the earlier form, {file.earlier.strip()}, which has"
            f" {file.lacks} (fedtally {file.command})"
        )
    try:
        return kind.from_line(text)
    # this also catches an InvalidInputError, for instance for an invalid key of the registrar
    except ValueError:
        raise _damaged(name, file.called, file.command) from None


def _read(path: str | os.PathLike[str], most: int, wanted: str) -> str:
    """Return the ASCII text of a file, with its line feeds unchanged.

    Args:
        path: the path of the file.
        most: the most bytes that the file may have.
        wanted: the file that the user must give, in words, for errors.

    Raises:
        UnreadableFileError: there is no such file, it is too large, it has a carriage return, or it
            is not ASCII.
        InvalidInputError: the file has a private key.
    """
    name = os.fspath(path)
    try:
        with open(path, "rb") as file:
            data = file.read(most + 1)  # a bounded number, because a device file may never end
    except (OSError, ValueError) as error:  # ValueError if the path has a zero byte
        why = getattr(error, "strerror", None) or error
        raise UnreadableFileError(f"cannot read {name!r} ({why}): give {wanted}") from None
    if data.startswith(PRIVATE_SCHEMA.encode()):
        raise InvalidInputError(
            f"{name} holds a private key, which nobody else may get: give {wanted}"
        )
    if len(data) > most:
        raise UnreadableFileError(f"{name} is too large: give {wanted}")
    if b"\r" in data:
        raise UnreadableFileError(
            f"{name} has line ends of another system (CR), which a mail or editor made: get the"
            " file again as it was written, with LF alone"
        )
    if not data.isascii():
        raise UnreadableFileError(f"{name} is not ASCII text: give {wanted}")
    return data.decode("ascii")


def check_overwritable(path: str | os.PathLike[str]) -> None:
    """Refuse to write over a private key file.

    Raises:
        InvalidInputError: the file at this path has a private key.
    """
    # A lost private key cannot be made again, in contrast to the files of this module.
    if _is_private_key(path):
        raise InvalidInputError(
            f"{os.fspath(path)} holds a private key, and keys are never overwritten: name another"
            " file"
        )


def _save(path: str | os.PathLike[str], text: str) -> None:
    check_overwritable(path)
    with replacing(path) as temporary:
        Path(temporary).write_text(text, encoding="ascii", newline="\n")


def _is_private_key(path: str | os.PathLike[str]) -> bool:
    if not os.path.isfile(path):  # otherwise reading from a terminal or a pipe could wait for ever
        return False
    with suppress(OSError), open(path, "rb") as file:
        return file.read(len(PRIVATE_SCHEMA)) == PRIVATE_SCHEMA.encode()
    return False
