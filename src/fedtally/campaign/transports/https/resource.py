"""The paths, headers and content types of HTTPS requests, which servers and clients agree on.

A client of a campaign sends ``POST /v1/campaigns/{fingerprint}/step`` again and again. The body is
the answer to the last frame that the client handled, or is empty. The response is the next frame
(200), or says how long to wait before the next request (204).

A client of two servers first sends ``GET /v1/plans/{fingerprint}/releases/{release}`` to each
server. The response is a JSON object with the server's role and the state of the release. Then the
client sends its frame, one for each server, by ``PUT`` to ``reports`` below the same path. When the
frame is on the disk, the response is 201 with a JSON object of the same form.
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
MOST_UPLOAD = 16 << 20  # the most bytes of reports in one request of a DAP client
MOST_JOB = 64 << 20  # the most bytes of an aggregation job of DAP
# the longest time that a request waits for a frame; many proxies end a request after 60 seconds
WAIT_SECONDS = 20.0


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
    """Read the digest of a frame, 32 bytes, from the text of the header `HANDLED`.

    If the text is no digest, return empty bytes: then no frame counts as handled.

    >>> read_digest("aa"), read_digest(32 * "ab") == bytes(32 * [0xAB])
    (b'', True)
    """
    try:
        found = bytes.fromhex(text)
    except ValueError:
        return b""
    return found if len(found) == hashlib.sha256().digest_size else b""


class Release(StrEnum):
    """The state of a release, as one of two servers tells it to clients.

    OPEN: the server accepts reports. CLOSING: it still accepts reports that clients have made, but
    no client should make a new one; only a leader says this. CLOSED: it accepts no reports.
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
    """Return the JSON body of a response that tells the state of a release.

    Args:
        server: the role of the server that sends the response.
        state: the state of the release.

    >>> state_of("helper", Release.OPEN)
    b'{"server": "helper", "state": "open"}'
    """
    return json.dumps({"server": server, "state": str(state)}).encode()


def read_state(content: bytes, server: Side) -> Release | None:
    """Read the state of a release from a body that `state_of` made.

    Args:
        content: the body.
        server: the role that the server must have.

    Returns:
        The state; None if the body is of another form, or names the other server.

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
