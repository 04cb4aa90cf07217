"""The HTTPS resources that servers and clients agree on, with their headers and content types.

A client of a campaign sends ``POST /v1/campaigns/{fingerprint}/step``. The body is the answer to
the last frame that the client handled, or is empty. The response is the next frame (200), or says
how long to wait before the next request.

A client of two servers sends ``GET /v1/plans/{fingerprint}/releases/{release}`` to each server. The
response is a JSON object that says which of the two servers it is, and whether the release is open.
Then the client sends its frame by ``PUT`` to ``reports`` below the same path. The response is 201,
with the same kind of JSON object, when the frame is on the disk.
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
HANDLED = "fedtally-handled"  # the header with the digest of the last frame the client handled
MOST_UPLOAD = 16 << 20  # bytes of reports of DAP in one request
MOST_JOB = 64 << 20  # bytes of an aggregation job of DAP
WAIT_SECONDS = 20.0  # the longest time that a server delays a response; proxies allow 60


def step_path(fingerprint: str) -> str:
    """Return the path to which clients of a campaign send their requests.

    >>> step_path("ab12")
    '/v1/campaigns/ab12/step'
    """
    return f"/v1/campaigns/{fingerprint}/step"


def digest(frame: bytes) -> bytes:
    """Return the SHA-256 digest of a frame, 32 bytes, by which a client names the frame."""
    return hashlib.sha256(frame).digest()


def read_digest(text: str) -> bytes:
    """Return the digest in the header `HANDLED`, 32 bytes.

    It is empty if the text is no digest; then no frame counts as handled.

    >>> read_digest("aa"), read_digest(32 * "ab") == bytes(32 * [0xAB])
    (b'', True)
    """
    try:
        found = bytes.fromhex(text)
    except ValueError:
        return b""
    return found if len(found) == hashlib.sha256().digest_size else b""


class Release(StrEnum):
    """The state of a release at one of two servers.

    OPEN: the server accepts reports. CLOSING: it accepts reports that clients have begun, but no
    client may begin one. CLOSED: it accepts no reports.
    """

    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


def release_path(fingerprint: str, release: int) -> str:
    """Return the path of the state of a release; reports go to `reports` below this path.

    >>> release_path("ab12", 0)
    '/v1/plans/ab12/releases/0'
    """
    return f"/v1/plans/{fingerprint}/releases/{release}"


def state_of(server: Side, state: Release) -> bytes:
    """Return the body of a response with the state of a release at a server.

    >>> state_of("helper", Release.OPEN)
    b'{"server": "helper", "state": "open"}'
    """
    return json.dumps({"server": server, "state": str(state)}).encode()


def read_state(content: bytes, server: Side) -> Release | None:
    """Return the state in a body that `state_of` made; None if it is another body or server.

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
