"""How a process that serves a campaign does: for probes, for Prometheus, and as lines of a log.

No label and no line names a client, an identity or an item; lines of the level debug name clients.
"""

from __future__ import annotations

import collections
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fedtally.campaign.driver import Driver, Receipt, RunningSession
from fedtally.campaign.transports.https.collecting import Watcher
from fedtally.campaign.transports.https.loop import HttpsLoop, Observer
from fedtally.secagg.messages import AbortCode
from fedtally.secagg.server import ClientId
from fedtally.secagg.two_server import Outcome
from fedtally.store import EndedSession, StoreError

LEVELS = {"off": logging.CRITICAL, "info": logging.INFO, "debug": logging.DEBUG}
_TEXT = "text/plain; version=0.0.4; charset=utf-8"  # what Prometheus asks for
_STEP_BUCKETS = (0.001, 0.01, 0.1, 1.0, 10.0, 60.0)
_GROUP_BUCKETS = (1, 4, 16, 64, 256)
_COHORT_BUCKETS = (10, 30, 100, 300, 1_000, 3_000, 10_000)


class Instruments(Observer):
    """Count what comes and goes, and write a line for each phase that begins and each session.

    Args:
        driver: the driver of the campaign.
        ended: returns the sessions that have ended, from the store.
        clock: returns the time, Unix seconds.
        log: takes the lines.

    Attributes:
        registry: what Prometheus reads; of this process alone.
    """

    def __init__(
        self,
        driver: Driver,
        ended: Callable[[], Sequence[EndedSession]],
        clock: Callable[[], float],
        log: logging.Logger,
    ) -> None:
        self._driver, self._ended, self._clock, self._log = driver, ended, clock, log
        self._seen: dict[bytes, tuple[RunningSession, float]] = {}  # and when its phase began
        self._gone: set[bytes] = set()  # sessions whose end the store has not told yet
        self.registry = CollectorRegistry()
        self._responses = self._counter("responses", "Responses, by their status", "status")
        self._answers = self._counter("answers", "Answers of clients, by the verdict", "verdict")
        self._bytes = self._counter("body_bytes", "Bytes of bodies, in and out", "way")
        self._sessions = self._counter("sessions", "Sessions that have ended", "outcome")
        # Alarms rest on these: a count that is absent before its first would hide a burst.
        self._responses.labels("401")
        self._sessions.labels("aborted")
        self._steps = Histogram(
            "fedtally_step_seconds",
            "Seconds of a step of the driver",
            buckets=_STEP_BUCKETS,
            registry=self.registry,
        )
        self._cohorts = Histogram(
            "fedtally_cohort_clients",
            "Clients in a sum that landed",
            buckets=_COHORT_BUCKETS,
            registry=self.registry,
        )
        self.registry.register(_Now(driver, clock))

    def answered(self, status: int, size: int) -> None:
        """Note a response."""
        self._responses.labels(str(status)).inc()
        self._bytes.labels("out").inc(size)

    def received(self, client: ClientId, receipt: Receipt, size: int) -> None:
        """Note an answer of a client, and the driver's verdict on it."""
        self._answers.labels(str(receipt)).inc()
        self._bytes.labels("in").inc(size)
        self._say(logging.DEBUG, "answer", client=client, verdict=str(receipt), bytes=size)

    def stepped(self, seconds: float) -> None:
        """Note a step of the driver, and what it has changed."""
        self._steps.observe(seconds)
        running = {one.session: one for one in self._driver.running()}
        for name in self._seen.keys() - running.keys():
            self._gone.add(name)
            del self._seen[name]
        for one in running.values():
            self._look(one)
        if self._gone:
            self._tell_ends()

    def _look(self, one: RunningSession) -> None:
        before, now = self._seen.get(one.session), self._clock()
        if before is not None and before[0].phase == one.phase:
            return
        self._seen[one.session] = one, now
        took = {} if before is None else {"seconds": round(now - before[1], 3)}
        self._say(
            logging.INFO,
            "phase",
            session=_short(one.session),
            round=one.round,
            phase=one.phase,
            clients=one.clients,
            **took,
        )

    def _tell_ends(self) -> None:
        """Say how sessions ended, once the store tells."""
        try:
            found = [one for one in self._ended() if one.session in self._gone]
        except (StoreError, OSError):
            return  # it is asked again after the next step
        for one in found:
            self._gone.discard(one.session)
            outcome = "landed" if one.why is None else "aborted"
            self._sessions.labels(outcome).inc()
            if one.why is None:
                self._cohorts.observe(one.num_clients)
            self._say(
                logging.INFO,
                "session",
                session=_short(one.session),
                round=one.round,
                outcome=outcome,
                clients=one.num_clients,
            )

    def _say(self, level: int, event: str, **facts: Any) -> None:
        self._log.log(level, event, extra={"facts": facts})

    def _counter(self, name: str, what: str, label: str) -> Counter:
        return Counter(f"fedtally_{name}", what, [label], registry=self.registry)


class _Now(Collector):
    """What is read from the driver whenever Prometheus asks."""

    def __init__(self, driver: Driver, clock: Callable[[], float]) -> None:
        self._driver, self._clock = driver, clock

    def collect(self) -> Iterator[Metric]:
        """Give the metrics."""
        refused = CounterMetricFamily(
            "fedtally_refusals", "Frames refused and clients aborted, by code", labels=["code"]
        )
        # as above: an alarm rests on this code
        for code, number in {AbortCode.EXPIRED: 0, **self._driver.refusals}.items():
            refused.add_metric([code.name], number)
        yield refused
        yield CounterMetricFamily(
            "fedtally_unanswered_invitations",
            "Invited clients that did not answer",
            self._driver.unanswered,
        )
        yield GaugeMetricFamily(
            "fedtally_present_clients",
            "Clients that came lately, and are in a session or may be drawn",
            self._driver.num_present,
        )
        yield from self._sessions()

    def _sessions(self) -> Iterator[Metric]:
        """Give what runs, by phase: its sessions, clients, and the least time to the end of one."""
        sums = {
            name: GaugeMetricFamily(f"fedtally_running_{name}", what, labels=["phase"])
            for name, what in (
                ("sessions", "Sessions that run"),
                ("clients", "Clients that are asked in the phase"),
                ("answered", "Clients that have answered in the phase"),
                ("seconds_left", "Seconds to the end of the session that ends first"),
            )
        }
        by_phase: dict[str, list[RunningSession]] = {}
        for one in self._driver.running():
            by_phase.setdefault(one.phase, []).append(one)
        for phase, found in by_phase.items():
            sums["sessions"].add_metric([phase], len(found))
            sums["clients"].add_metric([phase], sum(one.clients for one in found))
            sums["answered"].add_metric([phase], sum(one.answered for one in found))
            left = min(one.not_after for one in found) - self._clock()
            sums["seconds_left"].add_metric([phase], left)
        yield from sums.values()


def _short(session: bytes) -> str:
    return session.hex()[:8]


class Responses(Watcher):
    """Count the responses of a server of DAP.

    Attributes:
        registry: what Prometheus reads; of this process alone.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._responses = Counter(
            "fedtally_responses", "Responses, by their status", ["status"], registry=self.registry
        )
        self._bytes = Counter(
            "fedtally_body_bytes", "Bytes of bodies of responses", registry=self.registry
        )

    def answered(self, status: int, size: int) -> None:
        """Note a response."""
        self._responses.labels(str(status)).inc()
        self._bytes.inc(size)


class Counts(Watcher):
    """Count what one of two servers takes and judges, and write a line for each group.

    Args:
        states: returns how each release stands, as `standing.Standing.of_release` does.
        clock: returns the time, Unix seconds.
        log: takes the lines.

    Attributes:
        registry: what Prometheus reads; of this process alone.
    """

    def __init__(
        self,
        states: Callable[[], Sequence[Mapping[str, Any]]],
        clock: Callable[[], float],
        log: logging.Logger,
    ) -> None:
        self._log, self.registry = log, CollectorRegistry()
        self._responses = Counter(
            "fedtally_responses", "Responses, by their status", ["status"], registry=self.registry
        )
        self._outcomes = Counter(
            "fedtally_reports", "Reports, by their outcome", ["outcome"], registry=self.registry
        )
        # Alarms rest on these: a count that is absent before its first would hide a burst.
        self._responses.labels("503")
        self._outcomes.labels(str(Outcome.OTHER_TIME))
        self._judged = Counter(
            "fedtally_judged_reports", "Reports that were judged", registry=self.registry
        )
        self._groups = Histogram(
            "fedtally_group_reports",
            "Reports in a transaction",
            buckets=_GROUP_BUCKETS,
            registry=self.registry,
        )
        self._seconds = Histogram(
            "fedtally_group_seconds",
            "Seconds of a transaction",
            buckets=_STEP_BUCKETS,
            registry=self.registry,
        )
        self.registry.register(_Releases(states, clock))

    def answered(self, status: int, size: int) -> None:
        """Note a response."""
        self._responses.labels(str(status)).inc()

    def took(self, outcomes: Sequence[Outcome | Exception], seconds: float) -> None:
        """Note a group of reports."""
        found = collections.Counter(
            str(one) if isinstance(one, Outcome) else "failed" for one in outcomes
        )
        for name, number in found.items():
            self._outcomes.labels(name).inc(number)
        self._groups.observe(len(outcomes))
        self._seconds.observe(seconds)
        self._say("group", seconds=round(seconds, 3), **found)

    def judged(self, number: int, seconds: float) -> None:
        """Note how many reports were judged."""
        self._judged.inc(number)
        self._say("judged", reports=number, seconds=round(seconds, 3))

    def _say(self, event: str, **facts: Any) -> None:
        self._log.info(event, extra={"facts": facts})


class _Releases(Collector):
    """How the releases of one of two servers stand, whenever Prometheus asks."""

    def __init__(
        self, states: Callable[[], Sequence[Mapping[str, Any]]], clock: Callable[[], float]
    ) -> None:
        self._states, self._clock = states, clock

    def collect(self) -> Iterator[Metric]:
        """Give the metrics."""
        sums = {
            name: GaugeMetricFamily(f"fedtally_release_{name}", what, labels=["release"])
            for name, what in (
                ("reports", "Reports that are held, or are in the sum"),
                ("waiting", "Reports that are not judged yet"),
                ("refused", "Reports whose proof was refused"),
                ("oldest_seconds", "Age of the oldest report that is not judged"),
                ("is_open", "1 while the release takes new reports"),
            )
        }
        for one in self._states():
            release = [str(one["release"])]
            for name in ("reports", "waiting", "refused"):
                sums[name].add_metric(release, one[name])
            age = 0.0 if one["oldest"] is None else max(0.0, self._clock() - one["oldest"])
            sums["oldest_seconds"].add_metric(release, age)
            sums["is_open"].add_metric(release, float(one["state"] == "open"))
        yield from sums.values()


# ---- for probes and Prometheus ----


def operated(loop: HttpsLoop, instruments: Instruments) -> Starlette:
    """Return the application that says how a process does: a socket of its own serves it.

    - `/healthz`: 200 while the process has the campaign, else 503: it should end;
    - `/readyz`: 200 while clients can be served, else 503;
    - `/metrics`: for Prometheus.

    Args:
        loop: the loop that serves clients.
        instruments: the observer of `loop`.
    """
    waiting = Gauge(
        "fedtally_waiting_requests", "Requests that wait", registry=instruments.registry
    )
    waiting.set_function(lambda: loop.num_waiting)
    return probed(lambda: not loop.driver.is_overtaken, lambda: loop.is_ready, instruments.registry)


def lingering(counted: Instruments | None = None) -> Starlette:
    """Return the same for a process that only says that its campaign is over.

    Args:
        counted: what counted before; its counters stay, with their last numbers. Gauges would
            ring, as of clients that are not there.
    """
    registry = CollectorRegistry()
    if counted is not None:
        registry.register(_Kept([one for one in counted.registry.collect() if one.type != "gauge"]))
    return probed(lambda: True, lambda: True, registry, is_over=True)


class _Kept(Collector):
    """Metrics as they were at the end."""

    def __init__(self, kept: Sequence[Metric]) -> None:
        self._kept = kept

    def collect(self) -> Iterator[Metric]:
        """Give the metrics."""
        yield from self._kept


def probed(
    is_alive: Callable[[], bool],
    is_ready: Callable[[], bool],
    registry: CollectorRegistry,
    *,
    is_over: bool = False,
) -> Starlette:
    """Return the application of these verdicts, and of these metrics.

    Args:
        is_alive: tells whether the process may go on.
        is_ready: tells whether clients can be served.
        registry: what Prometheus reads; it gets the second verdict, and whether all is over.
        is_over: whether the process only says that all is over.
    """
    ready = Gauge("fedtally_ready", "1 while /readyz says 200, else 0", registry=registry)
    ready.set_function(is_ready)
    over = Gauge("fedtally_over", "1 once clients hear only that all is over", registry=registry)
    over.set(is_over)

    def verdict(is_well: bool) -> Response:
        return JSONResponse({"status": "pass" if is_well else "fail"}, 200 if is_well else 503)

    async def healthz(_: Request) -> Response:
        return verdict(is_alive())

    async def readyz(_: Request) -> Response:
        return verdict(is_ready())

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(registry), headers={"content-type": _TEXT})

    return Starlette(
        routes=[
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            Route("/metrics", metrics),
        ]
    )


# ---- the log ----


class _Json(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        head = {"time": _time(record.created), "level": record.levelname.lower()}
        facts = getattr(record, "facts", {})
        return json.dumps({**head, "event": record.getMessage(), **facts})


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def json_log(level: str, stream: Any = None) -> logging.Logger:
    """Return a logger that writes one JSON object a line.

    Args:
        level: the level: off, info or debug.
        stream: where the lines go; None: stderr.
    """
    # made by hand, so that no other logger's handlers get its lines
    log = logging.Logger("fedtally.https", LEVELS[level])
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(_Json())
    log.addHandler(handler)
    return log


def warned(log: logging.Logger, message: str) -> None:
    """Write a line of level warning: a problem that the process goes on after, in words."""
    log.warning("warning", extra={"facts": {"message": message}})
