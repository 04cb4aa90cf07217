"""Both servers of DAP over HTTP without a socket, on the clock of the test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
from dap_world import COLLECTOR, HELPER_KEYS, LEADER_KEYS, SEED, World

from fedtally.campaign.transports.https.dap_asking import DapAsking
from fedtally.campaign.transports.https.dap_driving import Driving
from fedtally.campaign.transports.https.dap_server import DapHelper, DapLeader
from fedtally.dap.collector import Collected, open_result
from fedtally.dap.draft18 import (
    CollectionJobReq,
    CollectionJobResp,
    Report,
    Role,
    UploadRequest,
    media_type,
)
from fedtally.dap.task import TaskSecret, to_text, token_digest

COLLECTOR_TOKEN = "the-collector-made-it"
Handler = Callable[[httpx.Request], Any]


class Web(World):
    """The world, whose servers are asked over HTTP.

    Attributes:
        notes: what the operator of the leader is told.
        meddle: answers a request in the place of the helper, unless it returns None.
        asked: the method and path of each request to the helper.
    """

    def __init__(self, vdaf: str = "histogram", **changes: Any) -> None:
        self.notes: list[str] = []
        self.asked: list[tuple[str, str]] = []
        self.meddle: Handler = lambda _: None
        self.origins: tuple[str, ...] = ()
        self.has_room = True
        super().__init__(vdaf, **changes)

    def restart(self) -> None:
        super().restart()
        secret = TaskSecret(self.task.id, SEED)
        self.tokens = {Role.LEADER: secret.leader_token, Role.COLLECTOR: COLLECTOR_TOKEN}
        digests = {role: token_digest(token) for role, token in self.tokens.items()}
        more: Any = {"has_room": lambda: self.has_room, "note": self.notes.append}
        self.served_leader = DapLeader(
            self.leader, LEADER_KEYS, digests[Role.COLLECTOR], lambda: self.now,
            self.origins, **more,
        )  # fmt: skip
        self.served_helper = DapHelper(
            self.helper, HELPER_KEYS, digests[Role.LEADER], lambda: self.now, **more
        )
        self.slept: list[float] = []
        self.driving = Driving(self.served_leader, self.asking("helper"), self.notes.append)

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def client(self, side: str) -> httpx.AsyncClient:
        """Return what asks a server."""
        app = getattr(self, f"served_{side}").application()
        inner = httpx.ASGITransport(app=app)
        if side == "leader":
            return httpx.AsyncClient(transport=inner)
        return httpx.AsyncClient(transport=_Meddled(self, inner))

    def asking(self, side: str, sleep: Callable[[float], Any] | None = None) -> DapAsking:
        """Return what the leader asks the helper with, or the collector the leader."""
        role = Role.LEADER if side == "helper" else Role.COLLECTOR
        url = getattr(self.task.configuration, side).decode()
        task = to_text(self.task.id)
        return DapAsking(self.client(side), url, task, self.tokens[role], sleep or self._sleep)

    def path(self, rest: str, side: str = "leader") -> str:
        url: str = getattr(self.task.configuration, side).decode()
        return f"{url.rstrip('/')}/tasks/{to_text(self.task.id)}/{rest}"

    def ask(self, side: str, method: str, place: str, **more: Any) -> httpx.Response:
        """Return the response to one request; a place that is no URL is below the task."""
        url = place if place.startswith("http") else self.path(place, side)

        async def asked() -> httpx.Response:
            async with self.client(side) as http:
                return await http.request(method, url, **more)

        return asyncio.run(asked())

    def headers(self, message: Any, role: Role | None = None) -> dict[str, str]:
        """Return the headers of a request with a message, of who has a token."""
        token = {} if role is None else {"authorization": f"Bearer {self.tokens[role]}"}
        return {"content-type": media_type(message)} | token

    def bring(self, *reports: Report) -> httpx.Response:
        """Upload reports over HTTP."""
        return self.ask(
            "leader", "POST", "reports", content=UploadRequest(reports).encode(),
            headers=self.headers(UploadRequest),
        )  # fmt: skip

    def post_collection(self, request: CollectionJobReq) -> httpx.Response:
        return self.ask(
            "leader", "POST", "collection_jobs", content=request.encode(),
            headers=self.headers(CollectionJobReq, Role.COLLECTOR),
        )  # fmt: skip

    def drive(self) -> None:
        """Let the leader ask the helper once."""
        asyncio.run(self.driving.step())

    def collected(self, start: int = 0, duration: int = 1) -> Collected:
        """Collect an interval, as a collector does."""
        request = self.query(start, duration)

        async def driven(_: float) -> None:
            await self.driving.step()

        async def found() -> bytes:
            body, _ = await self.asking("leader", driven).make(
                "collection_jobs", request.encode(), CollectionJobReq, CollectionJobResp
            )
            return body

        return open_result(self.task, COLLECTOR, request, asyncio.run(found()))


class _Meddled(httpx.AsyncBaseTransport):
    def __init__(self, web: Web, inner: httpx.ASGITransport) -> None:
        self.web, self.inner = web, inner

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.web.asked.append((request.method, request.url.path))
        found = self.web.meddle(request)
        if found is not None:
            stream = httpx.ByteStream(found.content)
            return httpx.Response(found.status_code, headers=found.headers, stream=stream)
        return await self.inner.handle_async_request(request)
