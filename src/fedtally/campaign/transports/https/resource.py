"""What server and client of a campaign over HTTPS agree on: one resource, its headers and types.

A client sends ``POST /v1/campaigns/{fingerprint}/step``. The body is the answer to the last frame
that it handled, or nothing. The response is the next frame (200), or says when to ask again.
"""

from __future__ import annotations

import hashlib

FRAME_TYPE = "application/vnd.fedtally.frame"
HANDLED = "fedtally-handled"  # the header that names the last frame that the client handled
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
