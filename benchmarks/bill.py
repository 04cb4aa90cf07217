"""The bill of a plan against a measured campaign: bytes, which must be equal, and CPU.

Campaigns and decoders are none of those that the calibration runs. CPU of rounds is what the
account of a simulated campaign says, and of decoders everything from the sums to an estimate of
every candidate; the shorter of some turns counts. A goal is the factor by which the worst
prediction is off.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import click

import fedtally
from benchmarks import host as calibration
from benchmarks.measure import Goal, Report, machine
from fedtally.plan.bill import Host, bill

FACTOR = 2.0


class Campaign(NamedTuple):
    """A simulated campaign of one round, by a secure sum."""

    clients: int
    width: int
    options: dict[str, Any]

    def __str__(self) -> str:
        said = ", ".join(
            f"{name} {value}" for name, value in self.options.items() if name != "secure_sum"
        )
        return (
            f"{self.options['secure_sum']}, n={self.clients:,},"
            f" V={5 * self.width:,}{f', {said}' if said else ''}"
        )


class Decoding(NamedTuple):
    """Sums to be decoded; 7 rows."""

    recovery: str
    candidates: int
    width: int
    schedule: str
    num_rounds: int
    exponent: float = 1.2

    def __str__(self) -> str:
        return (
            f"{self.recovery}, d={self.candidates:,}, W={self.width:,}, {self.schedule},"
            f" M={self.num_rounds}, exponent {self.exponent}"
        )


SECAGG = {"secure_sum": "secagg"}
ACTIVE = SECAGG | {"adversary": "active"}
TWO = {"secure_sum": "two-server"}
CAMPAIGNS = (
    Campaign(200, 400, SECAGG),
    Campaign(200, 20_000, SECAGG),
    Campaign(500, 4_000, SECAGG | {"dropout": 0.1}),
    Campaign(1000, 400, SECAGG),
    Campaign(1000, 4_000, SECAGG | {"dropout": 0.05}),
    Campaign(100, 400, ACTIVE),
    Campaign(100, 4_000, ACTIVE | {"dropout": 0.1}),
    Campaign(200, 400, SECAGG | {"epsilon": 2.0, "not_private": True}),
    Campaign(200, 400, TWO),
    Campaign(1000, 4_000, TWO | {"dropout": 0.05}),
    Campaign(200, 20_000, TWO),
    Campaign(200, 4_000, TWO | {"epsilon": 2.0, "not_private": True}),
)
QUICK_CAMPAIGNS = (Campaign(12, 20, SECAGG), Campaign(12, 20, TWO))
DECODINGS = tuple(
    Decoding(recovery, candidates, width, schedule, num_rounds, exponent)
    for recovery in ("median", "joint")
    for candidates in (10_000, 100_000, 1_000_000)
    for width, schedule, num_rounds, exponent in (
        (1_500, "shared", 1, 1.2),
        (700, "hybrid", 10, 1.5),
        (3_000, "hybrid", 10, 1.05),
        (1_500, "fresh", 8, 1.2),
    )
)
QUICK_DECODINGS = (
    Decoding("median", 1_000, 50, "shared", 1),
    Decoding("joint", 1_000, 50, "shared", 1),
)


def compared(report: Report, name: str, predicted: float, measured: float) -> float:
    """Note a prediction beside what was measured; return by which factor it is off."""
    report.notes.append(
        f"{name}: {1e3 * measured:,.3g} ms, predicted {predicted / measured:.2f} times as much"
    )
    return max(predicted / measured, measured / predicted)


def summed(report: Report, host: Host, campaign: Campaign, turns: int) -> tuple[float, float]:
    """Run a campaign; return the factors by which the CPU of clients and server is off.

    Raises:
        click.ClickException: the bytes are not those of the bill.
    """
    items, dropout = (
        [i % 100 for i in range(campaign.clients)],
        campaign.options.get("dropout", 0.0),
    )
    results = []
    for _ in range(turns):
        with calibration.undisturbed():
            results.append(
                fedtally.estimate(
                    items, rows=5, width=campaign.width, num_rounds=1, **campaign.options
                )
            )
    expected = bill(results[0].plan, host, dropout=dropout)
    stages = {line.stage: (line.upload_bytes, line.download_bytes) for line in expected.stages}
    for line in results[0].secure_sum["stages"]:
        if not dropout and stages[line["stage"]] != (line["upload_bytes"], line["download_bytes"]):
            raise click.ClickException(
                f"{campaign}: the bill says {stages[line['stage']]} bytes of {line}"
            )
    client, server = (
        compared(
            report,
            f"{campaign}: {name}",
            getattr(expected, f"{name}_seconds"),
            min(result.secure_sum[f"{name}_seconds"] for result in results),
        )
        for name in ("client", "server")
    )
    return client, server


def decoded(report: Report, host: Host, one: Decoding, turns: int) -> float:
    """Decode the sums of a campaign; return the factor by which CPU is off."""
    sums = calibration.landed(
        one.candidates,
        rows=7,
        width=one.width,
        schedule=one.schedule,
        num_rounds=one.num_rounds,
        exponent=one.exponent,
    )
    with calibration.undisturbed():
        seconds = min(calibration.decode(sums, one.recovery).seconds for _ in range(turns))
    return compared(
        report, str(one), bill(sums.plan, host, recovery=one.recovery).decoding_seconds, seconds
    )


def measure(campaigns: Sequence[Campaign], decodings: Sequence[Decoding], turns: int) -> Report:
    """Calibrate, and compare."""
    report = Report(machine())
    start, clock = time.process_time(), time.perf_counter()
    host = calibration.calibrate()
    report.notes.append(
        f"calibrated in {time.process_time() - start:.1f} s of CPU,"
        f" {time.perf_counter() - clock:.1f} s in all"
    )
    report.notes.append(
        "seconds of an operation:"
        f" {json.dumps({k: float(f'{v:.3g}') for k, v in host.seconds.items()})}"
    )
    factors = [summed(report, host, campaign, turns) for campaign in campaigns]
    worst = {
        "a client": max(client for client, _ in factors),
        "the server": max(server for _, server in factors),
        "decoding": max(decoded(report, host, one, turns) for one in decodings),
    }
    report.goals += [
        Goal(f"CPU of {name}, worst prediction off by a factor", factor, FACTOR, "x", at_most=True)
        for name, factor in worst.items()
    ]
    return report


@click.command("bill")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--quick", is_flag=True, help="Few and small campaigns, once: shows that it runs.")
def command(as_json: bool, quick: bool) -> None:
    """Compare the bill of plans with what their campaigns take."""
    (
        measure(QUICK_CAMPAIGNS, QUICK_DECODINGS, 1) if quick else measure(CAMPAIGNS, DECODINGS, 3)
    ).emit(as_json)
