"""The interoperation test API of DAP (draft-dcook-ppm-dap-interop-test-design), for draft 18.

    python tests/dap_interop.py aggregator|client|collector --port 8080

A test runner starts a container for each party, makes tasks by these resources, and lets clients
report: docs/dap.md says how. Names of fields are those of janus, which has the configuration of a
task bound into what is sealed: so `task_info` is fixed, and the helper's address, the size of
batches and the mode are fields everywhere. Everything is HTTP, and nothing outlives the process.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from fedtally.campaign.dap_files import key_number
from fedtally.campaign.transports.https import dap_client
from fedtally.campaign.transports.https.dap_asking import DapAsking
from fedtally.campaign.transports.https.dap_driving import Driving
from fedtally.campaign.transports.https.dap_server import DapHelper, DapLeader
from fedtally.crypto.hpke_aad import RecipientKey
from fedtally.crypto.keys import Secret
from fedtally.dap import Helper, Keyring, Leader, MemoryStore, Task
from fedtally.dap.draft18 import (
    TASK_INTERVAL,
    BatchMode,
    Extension,
    HpkeConfig,
    Interval,
    TaskConfiguration,
)
from fedtally.dap.sealing import config
from fedtally.dap.task import ID_BYTES, KINDS, from_text, to_text, token_digest
from fedtally.errors import FedtallyError

TASK_INFO = b"task-info"  # what janus has in its binaries of interoperation
DAP_AUTH = "dap-auth-token"
_FOR_EVER = Interval(0, 2**60)
_KINDS = {
    "Prio3Count": ("count", ()),
    "Prio3SumVec": ("sumvec", ("length", "max_measurement", "chunk_length")),
    "Prio3Histogram": ("histogram", ("length", "chunk_length")),
}
Json = dict[str, Any]


# ---- tasks ----


@dataclass(frozen=True)
class GivenTask(Task):
    """A task whose id somebody chose, and that need not end."""

    given: bytes = b""

    def __post_init__(self) -> None:
        """Check what is used."""
        _ = self.prio3

    @cached_property
    def id(self) -> bytes:
        return self.given

    @cached_property
    def interval(self) -> Interval:
        extensions = self.configuration.extensions
        return Interval.decode(extensions[0].data) if extensions else _FOR_EVER


class GivenKey:
    """A verification key that somebody chose."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def verify_key(self, _: Task) -> bytes:
        return self._key


def task_of(asked: Json, collector: HpkeConfig) -> GivenTask:
    """Return the task that a request describes."""
    name, sizes = _KINDS[asked["vdaf"]["type"]]
    kind = KINDS[name]
    precision = asked["time_precision"]
    extensions: tuple[Extension, ...] = ()
    if asked.get("task_start") is not None:
        start, end = (asked[each] // precision for each in ("task_start", "task_end"))
        extensions = (Extension(TASK_INTERVAL, Interval(start, end - start).encode()),)
    configuration = TaskConfiguration(
        TASK_INFO,
        asked["leader"].encode(),
        asked["helper"].encode(),
        precision,
        asked["min_batch_size"],
        BatchMode(asked["batch_mode"]),
        b"",
        kind.number,
        kind.sizes(*(int(asked["vdaf"][each]) for each in sizes)).encode(),
        extensions,
    )
    if configuration.batch_mode != BatchMode.TIME_INTERVAL:
        raise ValueError("only the batch mode time_interval")
    return GivenTask(configuration, collector, given=from_text(asked["task_id"], ID_BYTES))


# ---- plain HTTP ----


class PlainAsking(DapAsking):
    """What asks a server over HTTP, also on another machine: of tests alone."""

    def __post_init__(self) -> None:
        """Refuse nothing."""


dap_client.DapAsking = PlainAsking  # type: ignore[misc]


async def _both_headers(request: httpx.Request) -> None:
    """Show the token as drafts of before showed it, too, as the test API demands."""
    _, _, token = request.headers.get("authorization", "").partition(" ")
    if token:
        request.headers[DAP_AUTH] = token


def http_client() -> httpx.AsyncClient:
    hooks: Any = {"request": [_both_headers]}
    return httpx.AsyncClient(event_hooks=hooks, timeout=30, trust_env=False)


# ---- the three programs ----


def answered(do: Callable[[Json], Awaitable[Json]]) -> Callable[[Request], Awaitable[JSONResponse]]:
    """Return a resource: what a command did, or why it did not, always with the status 200."""

    async def resource(request: Request) -> JSONResponse:
        try:
            return JSONResponse({"status": "success"} | await do(await request.json()))
        except (FedtallyError, KeyError, ValueError, TypeError) as error:
            return JSONResponse({"status": "error", "error": f"{type(error).__name__}: {error}"})

    return resource


def program(**commands: Callable[[Json], Awaitable[Json]]) -> list[Route]:
    """Return the resources of a program."""

    async def ready(_: Json) -> Json:
        return {}

    found = {"ready": ready} | commands
    return [
        Route(f"/internal/test/{name}", answered(do), methods=["POST"])
        for name, do in found.items()
    ]


class Aggregator:
    """A leader and a helper of any tasks."""

    def __init__(self) -> None:
        self.keys = Keyring({7: RecipientKey(Secret(secrets.token_bytes(32)))})
        self.served: dict[str, Starlette] = {}
        self.driven: list[asyncio.Task[None]] = []
        self.commands = Starlette(
            routes=program(endpoint_for_task=self.endpoint, add_task=self.add)
        )

    async def endpoint(self, asked: Json) -> Json:
        """Give each task an address of its own."""
        return {"endpoint": f"/{asked['task_id']}/"}

    async def add(self, asked: Json) -> Json:
        """Begin a task."""
        collector = HpkeConfig.decode(_bytes(asked["collector_hpke_config"]))
        task, secret = task_of(asked, collector), GivenKey(_bytes(asked["vdaf_verify_key"]))
        about: Any = (task, secret, self.keys, MemoryStore())
        token = asked["leader_authentication_token"]
        if asked["role"] == "helper":
            helper = DapHelper(Helper(*about), self.keys, token_digest(token), time.time)
            self.served[asked["task_id"]] = helper.application()
            return {}
        shown = asked["collector_authentication_token"]
        leader = DapLeader(Leader(*about), self.keys, token_digest(shown), time.time)
        asking = PlainAsking(http_client(), asked["helper"], asked["task_id"], token)
        self.driven.append(asyncio.create_task(self._drive(leader, asking)))
        self.served[asked["task_id"]] = leader.application()
        return {}

    async def _drive(self, leader: DapLeader, asking: PlainAsking) -> None:
        async with asking.http:
            await Driving(leader, asking, print).run()

    async def _live(self, receive: Any, send: Any) -> None:
        """End what runs when the process ends."""
        while (await receive())["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        for each in self.driven:
            each.cancel()
        await asyncio.gather(*self.driven, return_exceptions=True)
        await send({"type": "lifespan.shutdown.complete"})

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a command, or let the task of the path answer."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        app = self.served.get(scope["path"].split("/")[1])
        if app is not None:
            shown = dict(scope["headers"]).get(DAP_AUTH.encode())
            if shown is not None:
                bearer = (b"authorization", b"Bearer " + shown)
                others = [each for each in scope["headers"] if each[0] != b"authorization"]
                scope = scope | {"headers": [*others, bearer]}
            await app(scope, receive, send)
        else:
            await self.commands(scope, receive, send)


class Client:
    """A client of any tasks."""

    def __init__(self) -> None:
        self.app = Starlette(routes=program(upload=self.upload))

    async def upload(self, asked: Json) -> Json:
        """Report a measurement."""
        unused = config(0, RecipientKey(Secret(secrets.token_bytes(32))).public)
        task, said = task_of(asked, unused), asked["measurement"]
        measured = [int(each) for each in said] if isinstance(said, list) else int(said)
        now = asked.get("time")
        async with http_client() as http:
            await dap_client.report(
                http,
                task,
                measured,
                now=time.time() if now is None else now,
                random=secrets.token_bytes,
            )
        return {}


class Collector:
    """A collector of any tasks."""

    def __init__(self) -> None:
        self.tasks: dict[str, tuple[GivenTask, RecipientKey, str]] = {}
        self.jobs: dict[str, asyncio.Task[Any]] = {}
        self.app = Starlette(
            routes=program(
                add_task=self.add, collection_start=self.start, collection_poll=self.poll
            )
        )

    async def add(self, asked: Json) -> Json:
        """Make a key of a task."""
        key = RecipientKey(Secret(secrets.token_bytes(32)))
        mine = config(key_number(key.public), key.public)
        token = asked["collector_authentication_token"]
        self.tasks[asked["task_id"]] = task_of(asked, mine), key, token
        return {"collector_hpke_config": to_text(mine.encode())}

    async def start(self, asked: Json) -> Json:
        """Begin a collection."""
        task, key, token = self.tasks[asked["task_id"]]
        start = asked["query"]["batch_interval_start"]
        interval = start, start + asked["query"]["batch_interval_duration"]

        async def collected() -> Any:
            async with http_client() as http:
                return await dap_client.collect(http, task, key, token, interval, wait=60)

        handle = secrets.token_hex(8)
        self.jobs[handle] = asyncio.create_task(collected())
        return {"handle": handle}

    async def poll(self, asked: Json) -> Json:
        """Say how far it is."""
        job = self.jobs[asked["handle"]]
        if not job.done():
            return {"status": "in progress"}
        found = job.result()
        sums = found.result
        return {
            "status": "complete",
            "report_count": found.count,
            "interval_start": found.start,
            "interval_duration": found.end - found.start,
            "result": [str(each) for each in sums] if isinstance(sums, list) else str(sums),
        }


PROGRAMS: dict[str, Callable[[], Any]] = {
    "aggregator": Aggregator,
    "client": lambda: Client().app,
    "collector": lambda: Collector().app,
}


def _bytes(text: str) -> bytes:
    return from_text(text, len(text) * 3 // 4)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("program", choices=sorted(PROGRAMS))
    parser.add_argument("--port", type=int, default=8080, metavar="N", help="listen on N (8080)")
    options = parser.parse_args()
    uvicorn.run(PROGRAMS[options.program](), host="0.0.0.0", port=options.port, ws="none")


if __name__ == "__main__":
    main()
