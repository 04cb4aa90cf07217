"""Draw the picture of the front pages: what one client sends, what the server sees, what it reads.

    python tools/hero.py            # writes docs/figures/hero.svg, and hero-narrow.svg for phones
    python tools/hero.py --check    # writes nothing; exits 1 where a picture differs

The sums and the shares are what `fedtally demo` finds under this Python; another has other words.
The demo adds in the clear, so the uploads are from a run of the protocol of its own: 32 clients
send sketches of the demo's size under the masks of SecAgg+. A picture keeps its numbers in
<metadata>.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import fedtally
from fedtally.campaign.cohort import CohortRun, drive
from fedtally.crypto.keys import Secret, SigningKey
from fedtally.secagg import wire
from fedtally.secagg.client import MemoryJournal
from fedtally.secagg.config import SecAggConfig
from fedtally.secagg.messages import Kind
from fedtally.secagg.packing import unpack
from fedtally.secagg.params import ClientPolicy
from fedtally.secagg.proposal import propose
from fedtally.simulation.randomness import key_bytes

I64 = npt.NDArray[np.int64]

FIGURES = Path(__file__).resolve().parents[1] / "docs" / "figures"
WORDS = 8  # whose shares are drawn
SENDERS = (2, 0, 12)  # the ranks of the words of the clients that are drawn
COHORT = 32  # clients of the secure sum
SHOWN = 36  # columns of a sketch that are drawn, of hundreds
ROUNDS = 4  # whose sums are drawn
STEPS = 4  # of each colour
ALT = (
    "Each client sends masked numbers that look like noise; the server sees only sums of many"
    " clients; from them it reads how frequent each word is"
)
# A picture that stands in a page follows the system's light or dark mode, and has its own ground.
STYLE = (
    "text{font-family:-apple-system,'Segoe UI','Noto Sans','DejaVu Sans',Arial,sans-serif;"
    "font-size:13px;fill:#1f2328}.h{font-size:14.5px;font-weight:600}.s{fill:#59636e}"
    ".e{text-anchor:end}.card{fill:#fff;stroke:#d1d9e0}"
    ".q{fill:none;stroke:#59636e;stroke-width:1.5}"
    ".b{fill:#0072b2}"
    "@media(prefers-color-scheme:dark){text{fill:#f0f6fc}.s{fill:#9198a1}"
    ".card{fill:#0d1117;stroke:#3d444d}.q{stroke:#9198a1}.b{fill:#4aa3df}}"
    + "".join(
        f".n{chr(97 + step)}{{fill:#808890;fill-opacity:{0.1 + 0.9 * step / (2 * STEPS):.3g}}}"
        for step in range(2 * STEPS + 1)
    )
    + "".join(
        f".c{chr(ord('e') + step)}{{fill:{'#d55e00' if step < 0 else '#2b8cd0'};"
        f"fill-opacity:{0.06 + 0.94 * abs(step) / STEPS:.3g}}}"
        for step in range(-STEPS, STEPS + 1)
    )
)


def numbers() -> dict[str, Any]:
    """Return what the picture shows, from a run of the demo and of a secure sum."""
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "demo.fedtally"
        command = [sys.executable, "-m", "fedtally", "demo", "--json", "--save", str(saved)]
        ran = subprocess.run(command, capture_output=True, check=True)
        result = fedtally.Result.load(saved)
    told = json.loads(ran.stdout)
    sums = np.array([sketch.counters for sketch in result.sketches[:ROUNDS]])
    found = [(one["item"], one["frequency"]) for one in told["estimates"]]
    words = [found[rank][0] for rank in SENDERS]
    return {
        "python": platform.python_version(),
        "clients": result.num_clients,
        "candidates": told["plan"]["domain_size"],
        "rounds": told["plan"]["num_rounds"],
        "upload": told["plan"]["bytes_per_client"],
        "error": f"{100 * told['evaluation']['linf']:.2g}",
        "columns": sums.shape[2],
        "sums": [shades(one, 0.15 * np.abs(sums).max()) for one in sums],
        "shares": [[word, f"{100 * share:.2f}"] for word, share in found[:WORDS]],
        "senders": words,
        "uploads": list(uploads(result, words)),
    }


def shades(counters: Any, most: float) -> list[str]:
    """Return a string for each row: a letter for each counter that is drawn.

    Letters are a (most negative, or less) .. i (most, or more), and e is nearly 0.
    """
    steps = np.clip(np.rint(STEPS * counters[:, :SHOWN] / most), -STEPS, STEPS)
    return ["".join(chr(ord("e") + int(step)) for step in row) for row in steps]


def uploads(answer: fedtally.Result, words: Sequence[str]) -> Iterator[list[str]]:
    """Yield the shades of what clients with these words send under masks."""
    plan, random = answer.plan, key_bytes(0, b"hero")
    length = plan.rows * plan.width
    agreed = propose(
        COHORT, length=length, bits=16, corrupt=1, max_dropout=0.1, adversary="semi-honest"
    )
    key = SigningKey(Secret(random(32)))
    sums = SecAggConfig(parameters=agreed, server_key=key.public)
    plan = replace(
        plan, num_rounds=1, num_clients=COHORT, max_round_clients=COHORT, secure_sum=sums
    )
    run = CohortRun.begin(
        fedtally.FrequencyServer(plan), 0, range(COHORT), signing_key=key, random=random, now=0
    )
    policy = ClientPolicy(adversary="semi-honest", min_honest=agreed.honest_survivors)
    clients = [
        fedtally.FrequencyClient(plan, answer.domain, [words[i % len(words)]]).join(
            0, policy, journal=MemoryJournal(), random=random
        )
        for i in range(COHORT)
    ]
    sent: dict[int, I64] = {}

    def ask(name: object, frame: bytes) -> bytes | None:
        reply = clients[int(str(name))].receive(frame, 0)
        message = None if reply is None else wire.parse(reply)
        if message is not None and message.kind is Kind.MASKED_INPUT:
            # the entries behind the counters are a checksum
            entries = unpack(message.body, length + agreed.checksum_entries, agreed.bits)
            sent[int(str(name))] = entries[:length].reshape(plan.rows, -1).astype(np.int64)
        return reply

    drive(run, ask, 0)
    half = 2 ** (agreed.bits - 1)
    for i in range(len(words)):
        yield shades(sent[i] - half, half)


def draw(shown: dict[str, Any], *, narrow: bool = False) -> str:
    """Return the picture of some `numbers` as SVG: panels side by side, or one below another."""
    width, panel = (360, 328) if narrow else (846, 254)
    places = [(16, 14), (16, 290), (16, 482)] if narrow else [(16, 14), (296, 14), (576, 14)]
    height = 698 if narrow else 322
    sums, words = (2, 5) if narrow else (ROUNDS, WORDS)
    panels = (_sends(shown, panel), _sums(shown, panel, sums), _reads(shown, panel, words))
    body = "".join(
        f'<g transform="translate({x} {y})">{drawn}</g>'
        for (x, y), drawn in zip(places, panels, strict=True)
    )
    if not narrow:
        arrows = "".join(f'<path class="q" d="M{x} 150h10l-4-4m4 4l-4 4"/>' for x in (278, 558))
        body += arrows
    notes = [
        f"Panel 1: a real secure sum of {COHORT} clients.",
        f"Panels 2 and 3: fedtally demo, Python {shown['python']}.",
    ]
    notes = notes if narrow else [" ".join(notes)]
    for place, line in enumerate(reversed(notes)):
        body += _text(16, height - 14 - 16 * place, line, "s")
    data = escape(json.dumps(shown, separators=(",", ":")), quote=False)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        f' height="{height}" role="img"><title>{ALT}</title><metadata>{data}</metadata>'
        f'<style>{STYLE}</style><rect class="card" x=".5" y=".5" width="{width - 1}"'
        f' height="{height - 1}" rx="8"/>{body}</svg>\n'
    )


def _sends(shown: dict[str, Any], width: int) -> str:
    """Return the first panel: what clients hold, and what they send."""
    body = _head(
        1, "Clients send masked numbers", f"{shown['upload'] / 1000:.2g} kB each, which look random"
    )
    for place, (word, upload) in enumerate(zip(shown["senders"], shown["uploads"], strict=True)):
        top = 48 + 68 * place
        body += _text(0, top + 12, f"holds “{word}”, sends", "t")
        body += _cells(upload, 0, top + 20, width / SHOWN, 5.5, "n")
    return body


def _sums(shown: dict[str, Any], width: int, rounds: int) -> str:
    """Return the second panel: the sums of some rounds."""
    under = f"{shown['clients']:,} clients in {shown['rounds']} rounds"
    body = _head(2, "The server sees only sums", under)
    for place, rows in enumerate(shown["sums"][:rounds]):
        body += _cells(rows, 0, 52 + 47 * place, width / SHOWN, 5.9, "c")
    drawn = f"{rounds} of {shown['rounds']} rounds; colour: frequent words"
    return body + _text(0, 70 + 47 * rounds, drawn, "s")


def _reads(shown: dict[str, Any], width: int, words: int) -> str:
    """Return the third panel: the most frequent words."""
    under = f"largest error {shown['error']} points"
    body = _head(3, f"It reads {shown['candidates']:,} shares", under)
    longest = float(shown["shares"][0][1])
    for place, (word, share) in enumerate(shown["shares"][:words]):
        top, bar = 54 + 23 * place, (width - 116) * float(share) / longest
        body += _text(50, top + 13, word, "t e")
        body += f'<rect class="b" x="58" y="{top}" width="{bar:.1f}" height="17" rx="1"/>'
        body += _text(64 + bar, top + 13, share + " %", "t")
    return body


def _head(number: int, title: str, under: str) -> str:
    return _text(0, 16, f"{number}  {title}", "h") + _text(0, 36, under, "s")


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.4g}" y="{y:.4g}">{escape(text)}</text>'


def _cells(rows: Sequence[str], x: float, y: float, wide: float, high: float, kind: str) -> str:
    """Return the cells of a table of counters: one path for each shade."""
    paths: dict[str, str] = {}
    for line, row in enumerate(rows):
        for column, shade in enumerate(row):
            paths[shade] = paths.get(shade, "") + (
                f"M{wide * column:.1f} {high * line:.1f}h{wide:.1f}v{high:.1f}h-{wide:.1f}z"
            )
    drawn = "".join(f'<path class="{kind}{s}" d="{paths[s]}"/>' for s in sorted(paths))
    return f'<g transform="translate({x:g} {y:g})">{drawn}</g>'


def main() -> int:
    """Write or check the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 on a change")
    check, shown, stale = parser.parse_args().check, numbers(), 0
    for name, narrow in (("hero", False), ("hero-narrow", True)):
        path, drawn = FIGURES / f"{name}.svg", draw(shown, narrow=narrow)
        if not check:
            path.write_text(drawn, encoding="utf-8")
        elif drawn != path.read_text(encoding="utf-8"):
            stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main())
