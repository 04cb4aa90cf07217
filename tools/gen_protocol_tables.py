"""Write the parts of docs/protocol.md that the code defines.

These are the order of messages, state tables, sizes, labels and abort codes.

    python tools/gen_protocol_tables.py          # rewrites what stands between the page's markers
    python tools/gen_protocol_tables.py --check  # writes nothing; exits 1 where the page differs

A part begins with ``<!-- generated: NAME -->`` and ends with ``<!-- end -->``.
"""

from __future__ import annotations

import argparse
import itertools
import re
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from fedtally.crypto.keys import SIGNATURE_BYTES, Label
from fedtally.crypto.shamir import SECRET_BYTES
from fedtally.secagg import wire
from fedtally.secagg.messages import (
    EXCHANGES,
    AbortCode,
    ClientState,
    Exchange,
    Kind,
    ServerState,
    next_phase,
)
from fedtally.secagg.params import Adversary

PAGE = Path(__file__).resolve().parent.parent / "docs" / "protocol.md"
MARKERS = re.compile(r"(<!-- generated: ([a-z -]+) -->\n).*?(<!-- end -->)", re.DOTALL)

_FRAME_FIELDS = (
    "magic",
    "version",
    "type",
    "reserved, 0",
    "session",
    "sender",
    "length of the body",
)
_INVITE_FIELDS = (
    "V, length",
    "b, bits",
    "graph: 0 ring, 1 complete",
    "k, ring_neighbours; complete: 0",
    "t, ring_threshold; complete: 0",
    "n_min",
    "n_max",
    "min_survivors",
    "profile: 0 semi-honest, 1 active",
    "C, corrupt",
    "max_dropout, parts per million",
    "not_before, Unix seconds",
    "not_after, Unix seconds",
    "round",
    "fingerprint of the plan",
    "digest of the allow-list; semi-honest: zeros",
)
_USES = {
    Label.MASK_SECRET_KEY: "HKDF: mask secret key",
    Label.COMMITMENT: "HKDF: commitment to b",
    Label.SELF_MASK: "HKDF: key of the self mask",
    Label.PAIR_MASK: "HKDF: key of a pair mask",
    Label.SHARE_ENCRYPTION: "HKDF: key that seals shares",
    Label.RING_ORDER: "HKDF: key of the ring order",
    Label.CONTEXT: "SHA-256: ctx",
    Label.ROSTER_CONTEXT: "SHA-256: ctx2",
    Label.ADVERTS: "SHA-256: digest of the adverts",
    Label.RESULT: "SHA-256: digest of the result",
    Label.INVITE: "Ed25519: Invite, by the server",
    Label.ADVERTISE: "Ed25519: Advertise, by a client",
    Label.CONFIRM: "Ed25519: Confirm, by a client",
    Label.POSSESSION: "Ed25519: [proof of possession](#enrolment), by a client",
    Label.SIGNED_PLAN: "Ed25519: [plan](#enrolment), by the registrar",
    Label.REVOCATION: "Ed25519: [revocation](#enrolment), by the registrar",
}
_TYPES = {"4s": "bytes", "32s": "bytes", "B": "u8", "H": "u16", "I": "u32", "Q": "u64"}


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table of Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def spoken(kind: Kind) -> str:
    """Return the name of a message as the page writes it."""
    return kind.name.replace("_", " ").title().replace(" ", "")


def layout(format: str, fields: Sequence[str]) -> str:
    """Return the byte table of a struct."""
    codes = re.findall(r"\d*[a-zA-Z]", format.lstrip("<"))
    starts = [struct.calcsize("<" + "".join(codes[:place])) for place in range(len(codes))]
    rows = [
        (start, struct.calcsize("<" + code), _TYPES[code], field)
        for start, code, field in zip(starts, codes, fields, strict=True)
    ]
    return table(["offset", "size", "type", "field"], rows)


def sizes() -> dict[Kind, tuple[str, str]]:
    """Return each body's length as a formula, semi-honest and active; the page explains symbols."""
    advert, signed = map(wire.advert_bytes, (Adversary.SEMI_HONEST, Adversary.ACTIVE))
    seal, none = wire.SEALED_BYTES, ""

    def both(formula: object) -> tuple[str, str]:
        return str(formula), str(formula)

    return {
        Kind.INVITE: both(struct.calcsize(wire._INVITE.format) + SIGNATURE_BYTES),
        Kind.ADVERTISE: (str(advert), str(signed)),
        Kind.ROSTER: (
            f"{struct.calcsize(wire._ROSTER.format)} + {advert} * k",
            f"bits(L) + {signed} * n",
        ),
        Kind.SHARES: both(f"{seal} * k"),
        Kind.INBOX: both(f"bits(k) + {seal} * present"),
        Kind.MASKED_INPUT: both("packed(V + checksum, b)"),
        Kind.SURVIVORS: both("bits(n)"),
        Kind.CONFIRM: (none, str(SIGNATURE_BYTES)),
        Kind.CONFIRMATIONS: (none, f"bits(n) + {SIGNATURE_BYTES} * signers"),
        Kind.UNMASK: both(f"{SECRET_BYTES} + bits(k) + {SECRET_BYTES} * given"),
        Kind.RESULT: both(struct.calcsize(wire._RESULT.format)),
        Kind.ABORT: both(1),
    }


def _sizes() -> str:
    replies = {step.reply for steps in EXCHANGES.values() for step in steps}

    def shown(formula: str) -> str:
        return f"`{formula}`" if formula else ""

    rows = [
        (
            kind.value,
            spoken(kind),
            "both" if kind is Kind.ABORT else "client" if kind in replies else "server",
            *map(shown, sizes()[kind]),
        )
        for kind in Kind
    ]
    return table(["type", "message", "sent by", "body, semi-honest", "body, active"], rows)


_TWO_SERVERS = "[two-server summation](#two-servers)"
_PROOFS = "[proofs of valid vectors](#proofs-of-valid-vectors)"
_OF_PROOFS = {
    Label.TWO_SERVER_CIRCUIT,
    Label.TWO_SERVER_JOINT_RANDOMNESS,
    Label.TWO_SERVER_JOINT_DIGEST,
    Label.TWO_SERVER_PROVE,
    Label.TWO_SERVER_PROOF_MASK,
    Label.TWO_SERVER_PROOF_SHARE,
    Label.TWO_SERVER_VERIFY_KEY,
    Label.TWO_SERVER_POINT,
}


def _labels() -> str:
    rows = [
        (
            f"`{label.decode()}`",
            len(label),
            _USES.get(label, _PROOFS if label in _OF_PROOFS else _TWO_SERVERS),
        )
        for label in Label
    ]
    return table(["label", "bytes", "used in"], rows)


def _abort_codes() -> str:
    return table(
        ["code", "name", "meaning"], [(code.value, code.name, code.meaning) for code in AbortCode]
    )


def _steps() -> Iterator[tuple[str, Adversary, Exchange]]:
    for adversary, steps in EXCHANGES.items():
        for step in steps:
            everywhere = all(step in others for others in EXCHANGES.values())
            if not everywhere or adversary is Adversary.SEMI_HONEST:
                yield "both" if everywhere else str(adversary), adversary, step


def _client_states() -> str:
    rows = [
        (profile, step.before.name, spoken(step.request), spoken(step.reply), step.after.name)
        for profile, _, step in _steps()
    ]
    end = ("both", ClientState.DONE.name, spoken(Kind.RESULT), "", ClientState.DONE.name)
    return table(["profile", "state", "takes", "answers", "is then"], [*rows, end])


def _server_states() -> str:
    rows = [
        (
            profile,
            step.phase.name,
            spoken(step.request),
            spoken(step.reply),
            next_phase(adversary, step.phase).name,
        )
        for profile, adversary, step in _steps()
        if step.phase is not ServerState.COLLECT
    ]
    rows[2:2] = [
        (
            str(adversary),
            "COLLECT",
            "Inbox",
            "MaskedInput",
            next_phase(adversary, ServerState.COLLECT).name,
        )
        for adversary in EXCHANGES
    ]
    end = ("both", ServerState.DONE.name, spoken(Kind.RESULT), "", "")
    return table(["profile", "phase", "asks with", "collects", "is followed by"], [*rows, end])


def _order() -> str:
    """Return the messages of a session as both profiles exchange them, the server's first."""
    profiles = [
        [spoken(kind) for step in steps for kind in (step.request, step.reply)]
        + [spoken(Kind.RESULT)]
        for steps in EXCHANGES.values()
    ]
    rows = [
        (turn, "client" if turn % 2 == 0 else "server", *names)
        for turn, names in enumerate(itertools.zip_longest(*profiles, fillvalue=""), start=1)
    ]
    names = (f"`{adversary}`" for adversary in EXCHANGES)
    return table(["turn", "sent by", *names], rows)


PARTS: dict[str, Callable[[], str]] = {
    "labels": _labels,
    "frame": lambda: layout(wire.HEADER.format, _FRAME_FIELDS),
    "sizes": _sizes,
    "invite": lambda: layout(wire._INVITE.format, _INVITE_FIELDS),
    "order": _order,
    "client states": _client_states,
    "server states": _server_states,
    "abort codes": _abort_codes,
}


def generate(page: str) -> str:
    """Return the page with every generated part as the code has it."""

    def part(match: re.Match[str]) -> str:
        return f"{match[1]}{PARTS[match[2]]()}\n{match[3]}"

    return MARKERS.sub(part, page)


def main(arguments: Sequence[str] | None = None) -> int:
    """Rewrite the page, or check it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 where the page differs"
    )
    check = parser.parse_args(arguments).check
    page = PAGE.read_text(encoding="utf-8")
    made = generate(page)
    if check and made != page:
        print(
            f"{PAGE.name} is not what the code says; run python tools/gen_protocol_tables.py",
            file=sys.stderr,
        )
        return 1
    if made != page:
        PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
