"""What operators see of a serving process: health probes, metrics for Prometheus, and log lines.

Metrics name no client, no identity and no item. Log lines about requests name clients only at the
level debug.
"""

from __future__ import annotations

import collections
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
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
_VERSION = metadata.version("fedtally")
_TEXT = "text/plain; version=0.0.4; charset=utf-8"  # the content type of metrics for Prometheus
_STEP_BUCKETS = (0.001, 0.01, 0.1, 1.0, 10.0, 60.0)
_GROUP_BUCKETS = (1, 4, 16, 64, 256)
_COHORT_BUCKETS = (10, 30, 100, 300, 1_000, 3_000, 10_000)


class Instruments(Observer):
    """The metrics and the log of a process that runs a campaign.

    The log has a line for each phase that begins and for each session that ends, at the level info.
    At the level debug it also has a line for each answer of a client.

    Args:
        driver: the driver of the campaign.
        ended: reads from the store the sessions that have ended.
        clock: returns the time, Unix seconds.
        log: the logger that writes the lines, from `json_log`.

    Attributes:
        registry: the metrics that Prometheus reads; they count from the start of this process.
    """

    def __init__(
        self,
        driver: Driver,
        ended: Callable[[], Sequence[EndedSession]],
        clock: Callable[[], float],
        log: logging.Logger,
    ) -> None:
        self._driver, self._ended, self._clock, self._log = driver, ended, clock, log
        # The id of a running session -> the session as it was when its present phase was first
        # seen, and the time of this, Unix seconds.
        self._seen: dict[bytes, tuple[RunningSession, float]] = {}
        # Sessions that the driver ran no more at some step, and whose outcome was not read from the
        # store yet. After an error of the store, such a session may run again.
        self._gone: set[bytes] = set()
        self.registry = CollectorRegistry()
        self._responses = self._counter("responses", "Responses, by their status", "status")
        self._answers = self._counter("answers", "Answers of clients, by the verdict", "verdict")
        self._bytes = self._counter("body_bytes", "Bytes of bodies, in and out", "way")
        self._sessions = self._counter("sessions", "Sessions that have ended", "outcome")
        # Operators have alarms on these counts, so the counts are shown even at 0. If a count
        # appeared only with its first event, Prometheus could not see the rise from 0.
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
        """Count a response with an HTTP status and a body of `size` bytes."""
        self._responses.labels(str(status)).inc()
        self._bytes.labels("out").inc(size)

    def received(self, client: ClientId, receipt: Receipt, size: int) -> None:
        """Count and log a client's answer to a frame; see `Observer.received`."""
        self._answers.labels(str(receipt)).inc()
        self._bytes.labels("in").inc(size)
        self._say(logging.DEBUG, "answer", client=client, verdict=str(receipt), bytes=size)

    def stepped(self, seconds: float) -> None:
        """Count a step of the driver, and log which phases began and which sessions ended in it.

        A session whose end cannot be read from the store now is counted after a later step.

        Args:
            seconds: the seconds that the step took.
        """
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
        """Count and log how the sessions in `_gone` ended, and remove them from `_gone`.

        A session whose end is not in the store yet stays in `_gone`.
        """
        try:
            found = [one for one in self._ended() if one.session in self._gone]
        except (StoreError, OSError):
            return  # `_gone` stays, and `stepped` calls this again
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
    """The metrics of the driver's present state, computed at each request of Prometheus."""

    def __init__(self, driver: Driver, clock: Callable[[], float]) -> None:
        self._driver, self._clock = driver, clock

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics: refusals, invitations, clients present, sessions."""
        refused = CounterMetricFamily(
            "fedtally_refusals", "Frames refused and clients aborted, by code", labels=["code"]
        )
        # Operators have an alarm on EXPIRED, so it is shown even at 0. If it appeared only with its
        # first event, Prometheus could not see the rise from 0.
        for code, number in {AbortCode.EXPIRED: 0, **self._driver.refusals}.items():
            refused.add_metric([code.name], number)
        yield refused
        yield CounterMetricFamily(
            "fedtally_invitations",
            "Invited clients, counted when the first phase of their session closes",
            self._driver.invited,
        )
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
        """Yield four metrics of the running sessions, each with a value for each of their phases.

        For the sessions in a phase the metrics are: the number of sessions, the number of clients
        that are asked, the number of clients that have answered, and the seconds until the first of
        these sessions must end.
        """
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
    """The metrics of a DAP server: its responses.

    Attributes:
        registry: the metrics that Prometheus reads; they count from the start of this process.
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
        """Count a response with an HTTP status and a body of `size` bytes."""
        self._responses.labels(str(status)).inc()
        self._bytes.inc(size)


class Counts(Watcher):
    """The metrics and the log of one of two servers.

    The log has a line for each group of reports that was stored, or failed, in one transaction, and
    for each group that was judged (verified) in one call.

    Args:
        states: returns the state of each release, in the form of `standing.Standing.metrics`.
        clock: returns the time, Unix seconds.
        log: the logger that writes the lines, from `json_log`.

    Attributes:
        registry: the metrics that Prometheus reads; they count from the start of this process.
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
        # Operators have alarms on these counts, so the counts are shown even at 0. If a count
        # appeared only with its first event, Prometheus could not see the rise from 0.
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
        """Count a response with an HTTP status; `size` is ignored."""
        self._responses.labels(str(status)).inc()

    def took(self, outcomes: Sequence[Outcome | Exception], seconds: float) -> None:
        """Count and log a group of reports that was stored, or failed, in one transaction.

        Args:
            outcomes: the outcome of each report, or its error, which counts as "failed".
            seconds: the seconds that the group took.
        """
        found = collections.Counter(
            str(one) if isinstance(one, Outcome) else "failed" for one in outcomes
        )
        for name, number in found.items():
            self._outcomes.labels(name).inc(number)
        self._groups.observe(len(outcomes))
        self._seconds.observe(seconds)
        self._say("group", seconds=round(seconds, 3), **found)

    def judged(self, number: int, seconds: float) -> None:
        """Count `number` judged (verified) reports; log the seconds that it took to judge them."""
        self._judged.inc(number)
        self._say("judged", reports=number, seconds=round(seconds, 3))

    def _say(self, event: str, **facts: Any) -> None:
        self._log.info(event, extra={"facts": facts})


class _Releases(Collector):
    """The metrics of a server's releases, computed at each request of Prometheus."""

    def __init__(
        self, states: Callable[[], Sequence[Mapping[str, Any]]], clock: Callable[[], float]
    ) -> None:
        self._states, self._clock = states, clock

    def collect(self) -> Iterator[Metric]:
        """Yield six metrics, each with one value for each release.

        If no time is set at which a release closes, the metric of this time has no value for it.
        """
        sums = {
            name: GaugeMetricFamily(f"fedtally_release_{name}", what, labels=["release"])
            for name, what in (
                ("reports", "Reports that are held, or are in the sum"),
                ("waiting", "Reports that are not judged yet"),
                ("refused", "Reports whose proof was refused"),
                ("oldest_seconds", "Age of the oldest report that is not judged"),
                ("is_open", "1 while the release takes new reports"),
                ("closes_at_seconds", "When the release closes, Unix time"),
            )
        }
        for one in self._states():
            release = [str(one["release"])]
            for name in ("reports", "waiting", "refused"):
                sums[name].add_metric(release, one[name])
            age = 0.0 if one["oldest"] is None else max(0.0, self._clock() - one["oldest"])
            sums["oldest_seconds"].add_metric(release, age)
            sums["is_open"].add_metric(release, float(one["state"] == "open"))
            if one["closes_at"] is not None:
                sums["closes_at_seconds"].add_metric(release, one["closes_at"])
        yield from sums.values()


# ---- for probes and Prometheus ----


def operated(loop: HttpsLoop, instruments: Instruments) -> Starlette:
    """Return the ASGI application for health probes and Prometheus of a process with a campaign.

    Serve it on another socket than the clients' application.

    - `/healthz`: 503 if another process has taken over the campaign, or the campaign was cancelled
      and this run has not ended yet; else 200;
    - `/readyz`: 200 if the store can be written and clients are served, else 503;
    - `/metrics`: the metrics, in the text format of Prometheus.

    Args:
        loop: the loop that serves clients.
        instruments: the observer of `loop`.
    """
    waiting = Gauge(
        "fedtally_waiting_requests", "Requests that wait", registry=instruments.registry
    )
    waiting.set_function(lambda: loop.num_waiting)

    def is_ready() -> bool:
        # While no session runs, nothing may be written for a long time. Without this test a full
        # disk would be noticed late.
        loop.ask_store()
        return loop.is_ready

    return probed(lambda: not loop.driver.is_overtaken, is_ready, instruments.registry)


def lingering(counted: Instruments | None = None) -> Starlette:
    """Return the ASGI application for health probes and Prometheus of a process whose work is over.

    Such a process only tells clients that their campaign or plan is over. Both probes answer 200.

    Args:
        counted: the metrics of the run in this process; None: there was no run. Counters and
            histograms are shown with their last values. Gauges are left out, since they could raise
            alarms, for example about missing clients.
    """
    registry = CollectorRegistry()
    if counted is not None:
        registry.register(_Kept([one for one in counted.registry.collect() if one.type != "gauge"]))
    return probed(lambda: True, lambda: True, registry, is_over=True)


class _Kept(Collector):
    """Metrics whose values do not change any more."""

    def __init__(self, kept: Sequence[Metric]) -> None:
        self._kept = kept

    def collect(self) -> Iterator[Metric]:
        """Yield the stored metrics, with the values that they had when they were stored."""
        yield from self._kept


def probed(
    is_alive: Callable[[], bool],
    is_ready: Callable[[], bool],
    registry: CollectorRegistry,
    *,
    is_over: bool = False,
) -> Starlette:
    """Return an ASGI application with `/healthz`, `/readyz` and `/metrics`.

    Args:
        is_alive: tells whether the process may continue; if not, `/healthz` answers 503.
        is_ready: tells whether clients can be served; if not, `/readyz` answers 503.
        registry: the metrics for `/metrics`. This function adds three gauges to it, which show
            `is_ready`, `is_over` and the version of fedtally.
        is_over: whether the process only tells clients that their campaign or plan is over.
    """
    ready = Gauge("fedtally_ready", "1 while /readyz says 200, else 0", registry=registry)
    ready.set_function(is_ready)
    over = Gauge("fedtally_over", "1 once clients hear only that all is over", registry=registry)
    over.set(is_over)
    build = Gauge(
        "fedtally_build_info", "1, with the version that runs", ["version"], registry=registry
    )
    build.labels(_VERSION).set(1)

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
    """The format of log lines: each line is one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a log record: time, level, event, and the facts of the event."""
        head = {"time": _time(record.created), "level": record.levelname.lower()}
        facts = getattr(record, "facts", {})
        return json.dumps({**head, "event": record.getMessage(), **facts})


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def json_log(level: str, stream: Any = None) -> logging.Logger:
    """Return a logger that writes one JSON object on each line.

    Args:
        level: "info" or "debug": the least level that is written. "off": nothing below the level
            critical is written.
        stream: the text stream for the lines; None: stderr.
    """
    # `logging.getLogger` would return a child of the root logger, whose handlers would write the
    # lines a second time.
    log = logging.Logger("fedtally.https", LEVELS[level])
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(_Json())
    log.addHandler(handler)
    return log


def started(log: logging.Logger, name: str) -> None:
    """Write a log line of level info on the version of fedtally that runs.

    Args:
        log: the logger, from `json_log`.
        name: the folder that the process runs.
    """
    message = f"fedtally {_VERSION} runs {name}"
    log.info("start", extra={"facts": {"version": _VERSION, "message": message}})


def warned(log: logging.Logger, message: str) -> None:
    """Write a log line of level warning about a problem after which the process goes on.

    Args:
        log: the logger, from `json_log`.
        message: the text about the problem.
    """
    log.warning("warning", extra={"facts": {"message": message}})
