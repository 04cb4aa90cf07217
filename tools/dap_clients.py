"""Let clients of DAP that others wrote report to both servers, and record what they send.

    python tools/dap_clients.py                           # npm's: run npm ci in tests/npm first
    python tools/dap_clients.py --firefox firefox-esr     # and a real Firefox, without a window
    python tools/dap_clients.py --firefox firefox-esr --record

Each result must be exact. ``--record`` writes the reports to ``tests/vectors/dap09.json``, sealed
to the keys of tests, which replay them. Firefox is asked over its Marionette for what its own
telemetry calls (`DAPSender`): a histogram and a vector of sums, as it has no count.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from dap_live import CASES, PACKAGE, Live, report_by_npm  # noqa: E402
from dap_world import HELPER_KEYS, HOUR, LEADER_KEYS  # noqa: E402
from firefox import Marionette  # noqa: E402

from fedtally.dap.sealing import Keyring  # noqa: E402
from fedtally.dap.task import to_text  # noqa: E402

VECTORS = ROOT / "tests" / "vectors" / "dap09.json"
_SEND = """
const [task, measurements, done] = arguments;
const {DAPSender} = ChromeUtils.importESModule("resource://gre/modules/DAPSender.sys.mjs");
(async () => {
  for (const each of measurements) await DAPSender.sendDAPMeasurement(task, each);
  return Services.appinfo.name + " " + Services.appinfo.version;
})().then(done, error => done("error: " + error));
"""


def live_task(vdaf: str, sizes: dict[str, int]) -> Live:
    """Return the servers of a task that runs now, since Firefox has its own clock."""
    hour = int(time.time()) // HOUR * HOUR
    live = Live(vdaf, sizes=sizes, start=hour - HOUR, end=hour + 24 * HOUR)
    live.now = time.time()
    return live


@contextmanager
def firefox(program: str, live: Live) -> Iterator[Marionette]:
    """Run a Firefox whose DAP goes to the servers of a task."""

    def shown(keys: Keyring) -> str:
        return base64.urlsafe_b64encode(keys.configs.encode()).decode().rstrip("=")

    of = live.task.configuration
    prefs = {
        "toolkit.telemetry.dap.leader.url": of.leader.decode().rstrip("/"),
        "toolkit.telemetry.dap.helper.url": of.helper.decode().rstrip("/"),
        "toolkit.telemetry.dap.leader.hpke": shown(LEADER_KEYS),
        "toolkit.telemetry.dap.helper.hpke": shown(HELPER_KEYS),
    }
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        Marionette(program, prefs, folder) as fox,
    ):
        fox.ask("Marionette:SetContext", {"value": "chrome"})
        yield fox


def report_by_firefox(program: str, live: Live, measurements: list[Any]) -> str:
    """Let Firefox report measurements; return its name and version."""
    sizes = live.task.sizes
    length = sizes.get("buckets", sizes.get("entries"))
    task = {
        "id": to_text(live.task.id),
        "vdaf": live.task.vdaf,
        "length": length,
        "bits": sizes.get("maximum", 1).bit_length(),
        "time_precision": live.task.configuration.precision,
    }
    with firefox(program, live) as fox:
        said: str = fox.run(_SEND, task, measurements)
    if said.startswith("error"):
        raise SystemExit(f"Firefox: {said}")
    return said


def run(program: str | None, case: tuple[str, dict[str, int], list[Any], Any]) -> dict[str, Any]:
    """Let a client report the measurements of a case; return the vector.

    Args:
        program: Firefox; None: npm's client.
        case: the VDAF, its sizes, the measurements and the result.
    """
    vdaf, sizes, measurements, result = case
    live, sent = live_task(vdaf, sizes), []
    upload = live.leader.upload

    def noted(body: bytes, now: float) -> bytes:
        answer = upload(body, now)
        sent.append(body.hex())
        return answer

    live.leader.upload = noted  # type: ignore[method-assign]
    with live.served():
        if program is None:
            report_by_npm(live.task, measurements, live.now)
            package = json.loads((PACKAGE / "package.json").read_text())
            [(name, version)] = package["dependencies"].items()
            client = f"{name} {version}"
        else:
            client = report_by_firefox(program, live, measurements)
    hour = live.task.time(live.now)
    found = live.collected(0, max(1, live.task.time(time.time()) - hour + 1))
    verdict = "right" if (found.count, found.result) == (len(measurements), result) else "WRONG"
    print(f"{client}, {vdaf}: {found.count} reports, {verdict}")
    if verdict != "right":
        raise SystemExit(1)
    return {
        "client": client,
        "task": live.task.to_toml(),
        "now": int(live.now),
        "reports": sent,
        "result": result,
    }


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--firefox", metavar="PROGRAM", help="run this Firefox, too")
    parser.add_argument("--record", action="store_true", help=f"write {VECTORS.name}")
    options = parser.parse_args()
    made = [run(None, case) for case in CASES]
    if options.firefox:  # which has no count
        made += [run(options.firefox, case) for case in CASES if case[0] != "count"]
    if options.record:
        VECTORS.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
