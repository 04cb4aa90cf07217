"""What servers and clients over HTTPS agree on: resources, their headers and types.

A client sends ``POST /v1/campaigns/{fingerprint}/step``. The body is the answer to the last frame
that it handled, or nothing. The response is the next frame (200), or says when to ask again.

A client of two servers sends ``GET /v1/plans/{fingerprint}/releases/{release}`` to each of them,
and each says in a JSON object which of the two it is, and whether the release is open. Then the
client sends its frame by ``PUT`` to ``reports`` below that path. A frame that is on disk is 201, of
the type that a state has.
"""

from __future__ import annotations

import hashlib
import json
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedtally.secagg.two_server import Side

FRAME_TYPE = "application/vnd.fedtally.frame"
STATE_TYPE = "application/vnd.fedtally.release+json"
PROBLEM_TYPE = "application/problem+json"
HANDLED = "fedtally-handled"  # the header that names the last frame that the client handled
MOST_UPLOAD = 16 << 20  # bytes of reports of DAP in one request
MOST_JOB = 64 << 20  # bytes of an aggregation job of DAP
WAIT_SECONDS = 20.0  # the longest wait of a client in a session; proxies hang up after 60


def step_path(fingerprint: str) -> str:
    """Return the path of the resource of a campaign.

    >>> step_path("ab12")
    '/v1/campaigns/ab12/step'
    """
    return f"/v1/campaigns/{fingerprint}/step"


def digest(frame: bytes) -> bytes:
    """Return the name of a frame, 32 bytes."""
    return hashlib.sha256(frame).digest()


def read_digest(text: str) -> bytes:
    """Return the name in a header; empty for anything else: then no frame counts as handled.

    >>> read_digest("aa"), read_digest(32 * "ab") == bytes(32 * [0xAB])
    (b'', True)
    """
    try:
        found = bytes.fromhex(text)
    except ValueError:
        return b""
    return found if len(found) == hashlib.sha256().digest_size else b""


class Release(StrEnum):
    """Whether a server of two takes reports of a release.

    OPEN: it does. CLOSING: it still takes those that are on their way, and nobody begins one.
    CLOSED: it takes none.
    """

    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


def release_path(fingerprint: str, release: int) -> str:
    """Return the path of the state of a release; its reports are at `reports` below it.

    >>> release_path("ab12", 0)
    '/v1/plans/ab12/releases/0'
    """
    return f"/v1/plans/{fingerprint}/releases/{release}"


def state_of(server: Side, state: Release) -> bytes:
    """Return the body that says how a release stands at a server.

    >>> state_of("helper", Release.OPEN)
    b'{"server": "helper", "state": "open"}'
    """
    return json.dumps({"server": server, "state": str(state)}).encode()


def read_state(content: bytes, server: Side) -> Release | None:
    """Return the state in such a body; None if it is none, or of another server.

    >>> read_state(state_of("helper", Release.OPEN), "helper")
    <Release.OPEN: 'open'>
    >>> read_state(state_of("helper", Release.OPEN), "leader")
    """
    for state in Release:
        try:
            if json.loads(content) == json.loads(state_of(server, state)):
                return state
        except (ValueError, RecursionError):
            break
    return None
