"""The ClientApp of Flower: it carries one frame to the client's agent, and the answer back.

A frame is a message of the protocol. The ClientApp has no key and no item, and makes no decision.
The entry `agent` in the node's config is the path of the agent's socket. If the agent cannot be
reached, the answer is empty and comes at once.
"""

from __future__ import annotations

import asyncio
from contextlib import closing, suppress

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedtally.campaign.transports.flower.exchange import ACTION, pack, unpack
from fedtally.campaign.transports.pipe import read_frame, write_frame

# the longest time that a silent agent blocks its node, which handles one message at a time
MOST_SECONDS = 60.0
MOST_BYTES = 1 << 30  # the most bytes of an answer


async def _ask(agent: str, frame: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(agent)
    with closing(writer):
        await write_frame(writer, frame)
        return await read_frame(reader, MOST_BYTES)


def step(message: Message, context: Context) -> Message:
    """Return a message with the agent's answer to a frame; empty bytes if there is no answer."""
    seconds = min(MOST_SECONDS, message.metadata.ttl)
    answer = b""
    with suppress(Exception):  # otherwise Flower would send the text of the error to the server
        asked = _ask(str(context.node_config["agent"]), unpack(message.content))
        answer = asyncio.run(asyncio.wait_for(asked, seconds))
    return Message(pack(answer), reply_to=message)


app = ClientApp()
app.query(ACTION)(step)
