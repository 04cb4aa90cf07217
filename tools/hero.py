"""Draw the picture at the head of the README: what a client sends, what the server sees and reads.

    python tools/hero.py            # writes docs/figures/hero.svg
    python tools/hero.py --check    # writes nothing; exits 1 where the picture differs

Panels 2 and 3 are numbers of `fedtally demo`. The demo adds in the clear, so panel 1 comes from a
run of the protocol of its own: 20 clients hold words of the demo, and send sketches of its size
under the masks of SecAgg+. Another version of Python has other words, and gives another picture.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

import numpy as np
import numpy.typing as npt

import fedtally
from fedtally.campaign.cohort import CohortRun, drive
from fedtally.crypto.keys import Secret, SigningKey
from fedtally.engines.local.seeds import key_bytes
from fedtally.secagg import wire
from fedtally.secagg.client import MemoryJournal
from fedtally.secagg.config import SecAggConfig
from fedtally.secagg.messages import Kind
from fedtally.secagg.packing import unpack
from fedtally.secagg.params import ClientPolicy
from fedtally.secagg.proposal import propose

F64 = npt.NDArray[np.float64]

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "figures" / "hero.svg"
SHOWN = 3  # clients, each with its upload
CLIENTS = 20  # of the sum that masks them
COLUMNS = 42  # counters of a row that are drawn
LISTED = 6  # words
WIDE, HIGH = 760, 630
INK, DIM, BLUE, ORANGE = "#1a1a1a", "#555555", "#0072B2", "#D55E00"
_GREYS = [f"#{level:02x}{level:02x}{level:02x}" for level in range(20, 250, 16)]


def demo() -> fedtally.Result:
    """Return the answer of `fedtally demo`."""
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "demo.fed"
        command = [sys.executable, "-m", "fedtally", "demo", "--save", saved]
        subprocess.run(command, check=True, capture_output=True)
        return fedtally.Result.load(saved)


def uploads(answer: fedtally.Result, words: Sequence[str]) -> list[F64]:
    """Return what clients with these words send under masks, from 0 to 1: each [rows, width]."""
    plan, random = answer.plan, key_bytes(0, b"hero")
    length = plan.rows * plan.width
    agreed = propose(
        CLIENTS, length=length, bits=16, corrupt=1, max_dropout=0.1, adversary="semi-honest"
    )
    key = SigningKey(Secret(random(32)))
    sums = SecAggConfig(parameters=agreed, server_key=key.public)
    plan = replace(
        plan, num_rounds=1, num_clients=CLIENTS, max_round_clients=CLIENTS, secure_sum=sums
    )
    run = CohortRun.begin(
        fedtally.FrequencyServer(plan), 0, range(CLIENTS), signing_key=key, random=random, now=0
    )
    policy = ClientPolicy(adversary="semi-honest", min_honest=agreed.honest_survivors)
    held = [words[i % len(words)] for i in range(CLIENTS)]
    clients = [
        fedtally.FrequencyClient(plan, answer.domain, [word]).join(
            0, policy, journal=MemoryJournal(), random=random
        )
        for word in held
    ]
    sent = {}

    def ask(name: object, frame: bytes) -> bytes | None:
        reply = clients[int(str(name))].receive(frame, 0)
        message = None if reply is None else wire.parse(reply)
        if message is not None and message.kind is Kind.MASKED_INPUT:
            entries = unpack(message.body, length + agreed.checksum_entries, agreed.bits)
            sent[int(str(name))] = entries[:length].reshape(plan.rows, plan.width) / 2**agreed.bits
        return reply

    drive(run, ask, 0)
    return [sent[i] for i in range(SHOWN)]


def cells(
    levels: npt.NDArray[np.int64], colours: Sequence[str], x: float, y: float, w: float, h: float
) -> Iterator[str]:
    """Yield a path for each colour: a table of cells, of which each is w wide and h high."""
    for level, colour in enumerate(colours):
        places = zip(*np.nonzero(levels == level), strict=True)
        squares = "".join(f"M{x + w * j:g} {y + h * i:g}h{w:g}v{h:g}h-{w:g}z" for i, j in places)
        if squares:
            yield f'<path fill="{colour}" d="{squares}"/>'


def text(x: float, y: float, said: str, size: int = 22, colour: str = INK, more: str = "") -> str:
    """Return a line of text whose left end stands at (x, y)."""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}"{more}>{escape(said)}</text>'
    )


def heading(x: float, y: float, number: int, said: str) -> str:
    """Return the heading of a panel."""
    disc = f'<circle cx="{x + 15:g}" cy="{y - 8:g}" r="15" fill="{BLUE}"/>'
    digit = text(x + 15, y - 1, str(number), 20, "white", ' text-anchor="middle" font-weight="700"')
    return disc + digit + text(x + 40, y, said, 24, INK, ' font-weight="700"')


def diverging(values: F64) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Return levels and their colours: orange below 0, white at 0, blue above."""
    steps = 7
    ends = {-1: (213, 94, 0), 1: (0, 114, 178)}
    colours = []
    for level in range(-steps, steps + 1):
        share, end = abs(level) / steps, ends[1 if level > 0 else -1]
        mixed = [round(245 + (part - 245) * share) for part in end]
        colours.append("#" + "".join(f"{part:02x}" for part in mixed))
    # a few counters are far larger than the others: the root shows the small ones, too
    scaled = np.sign(values) * np.sqrt(np.abs(values) / np.abs(values).max())
    return np.rint(scaled * steps).astype(np.int64) + steps, colours


def panel_sent(sent: Sequence[F64], words: Sequence[str]) -> Iterator[str]:
    """Yield the first panel: three clients, and what leaves each of them."""
    yield heading(24, 44, 1, "Each client sends noise")
    for place, (upload, word) in enumerate(zip(sent, words, strict=True)):
        top = 86 + 88 * place
        yield text(24, top, f"holds “{word}”, sends", 22, DIM)
        levels = (upload[:, :COLUMNS] * len(_GREYS)).astype(np.int64)
        yield from cells(levels, _GREYS, 24, top + 12, 7.5, 6.5)
    yield text(24, 354, "8 kB of masked numbers each", 22, DIM)


def panel_sum(answer: fedtally.Result) -> Iterator[str]:
    """Yield the second panel: the sum of a round, all that the server sees."""
    sketch = next(iter(answer.sketches))
    values = sketch.vector.reshape(answer.plan.rows, answer.plan.width)[:, :COLUMNS]
    levels, colours = diverging(values.astype(np.float64))
    arrow = "M352 200h32m-10 -10l10 10l-10 10"
    yield f'<path d="{arrow}" fill="none" stroke="{DIM}" stroke-width="3"/>'
    yield heading(406, 44, 2, "The server sees sums")
    yield text(406, 86, f"one of {answer.plan.num_rounds}: {sketch.num_clients:,} clients", 22, DIM)
    yield from cells(levels, colours, 406, 98, 7.8, 32)
    yield text(406, 354, f"{COLUMNS} of its {answer.plan.width} columns", 22, DIM)


def panel_read(answer: fedtally.Result) -> Iterator[str]:
    """Yield the third panel: the shares, as bars, with the largest error of all."""
    assert isinstance(answer.evaluation, fedtally.Evaluation)
    top = answer.top(LISTED)
    longest, scale = top[0].frequency, 470
    yield heading(24, 412, 3, "and reads from them how frequent each word is")
    for place, item in enumerate(top):
        y = 432 + 26 * place
        wide = scale * item.frequency / longest
        yield text(124, y + 18, str(item.item), 22, INK, ' text-anchor="end"')
        yield f'<rect x="136" y="{y}" width="{wide:.1f}" height="21" rx="2" fill="{BLUE}"/>'
        yield text(144 + wide, y + 18, f"{100 * item.frequency:.2f} %")
    error = f"{100 * answer.evaluation.linf:.2g} points"
    yield text(24, 614, f"Largest error of all {answer.domain.size:,} words: {error}", 22, ORANGE)


def picture(answer: fedtally.Result) -> str:
    """Return the picture as an SVG document."""
    words = [str(item.item) for item in answer.top(SHOWN)]
    sent = uploads(answer, words)
    parts = [*panel_sent(sent, words), *panel_sum(answer), *panel_read(answer)]
    title = (
        "Each client sends numbers that look random. The server sees only sums, and reads from"
        f" them that “{words[0]}” is the most frequent word."
    )
    fonts = "Helvetica, Arial, Liberation Sans, DejaVu Sans, sans-serif"
    size = f'viewBox="0 0 {WIDE} {HIGH}" role="img" font-family="{fonts}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDE}" height="{HIGH}" rx="14" fill="white"/>',
        *parts,
        "</svg>",
    ]
    return "\n".join([*lines, ""])


def main() -> int:
    """Write or check the picture."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 on a change")
    check = parser.parse_args().check
    drawn = picture(demo())
    if check:
        return int(drawn != PICTURE.read_text(encoding="utf-8"))
    PICTURE.write_text(drawn, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
