"""Plan many requests of all kinds, and compare plans, texts, errors and times with those before.

    python tools/planned.py now.json                       # plans 300 requests
    python tools/planned.py now.json --beside before.json  # and exits 1 where one has changed
    python tools/planned.py now.json --only 17,90          # these alone, with what they answer

Where code of the planner moves, its plans must stay byte for byte, and take no longer. The golden
files hold some dozens of plans that somebody chose. These here are drawn: each request is a
command of `fedtally plan`, or of `fedtally estimate` without a plan, whose options come from
`--draw`, a seed. Most of them are met and the others refused, each with what would do instead.
The file holds a digest of what each command printed and wrote, and the seconds of CPU that it
took. No digest is kept in the repository: they have the last digit of every number.

Commands run one after another in this process: what one of them keeps in memory, such as trials
of small sketches, the next one may use. So compare runs of the same requests. Sums over sets have
another last digit in each process, but for one `PYTHONHASHSEED`: this program sets it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import sys
import tempfile
import time
from contextlib import chdir
from pathlib import Path
from random import Random  # noqa: TID251 - reproducible, and nothing is kept secret
from unittest.mock import patch

from golden import MEASURED, _run

from fedtally.options import DECODERS
from fedtally.privacy.events import NoiseBy

_PLAN = "plan.toml"
_NUMBER = 300


class _Drawn:
    """Options of one command, drawn one after another."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.words: list[str] = []

    def add(self, name: str, value: object = "") -> None:
        self.words += [name] if value == "" else [name, str(value)]

    def maybe(self, chance: float, name: str, *values: object) -> None:
        """Add an option, with one of the values, with a chance."""
        if self.rng.random() < chance:
            self.add(name, self.rng.choice(values or ("",)))


def _sums(drawn: _Drawn, clients: int) -> None:
    """Draw how rounds are summed."""
    method = drawn.rng.choice(("ideal", "ideal", "secagg", "two-server"))
    if method == "ideal":
        return
    drawn.add("--secure-sum", method)
    if method == "two-server":
        drawn.maybe(0.3, "--validity", "none", "proofs", "auto")
        return
    drawn.maybe(0.2, "--adversary", "active")
    drawn.maybe(0.2, "--max-dropout", 0.1, 0.2)
    drawn.maybe(0.2, "--max-corrupt", 0, 0.1)
    if clients >= 1000:
        drawn.maybe(0.2, "--max-cohort", 300, 1000)


def _privacy(drawn: _Drawn) -> None:
    """Draw a guarantee."""
    drawn.add("--epsilon", drawn.rng.choice((0.5, 1, 1, 2, 4, 8)))
    drawn.maybe(0.25, "--neighbours", "replace-one", "add-remove", "zero-out")
    drawn.maybe(0.15, "--trust", "central", "distributed")
    drawn.maybe(0.15, "--mechanism", *NoiseBy.AGGREGATOR.mechanisms)
    drawn.maybe(0.15, "--delta", 1e-8, 0)


def _goal(drawn: _Drawn, *, needs_one: bool) -> None:
    """Draw what is asked for: an error, bytes, epsilon, or two of them."""
    goals = ["tau", "tau", "bytes", "bytes", "tau epsilon", "tau epsilon", "bytes epsilon"]
    goals += ["tau bytes", "bytes epsilon"] if needs_one else ["tau bytes", "epsilon", ""]
    goal = drawn.rng.choice(goals)
    if "tau" in goal:
        drawn.add("--tau", drawn.rng.choice((0.005, 0.01, 0.02, 0.02, 0.05, 0.05, 0.1)))
    if "bytes" in goal:
        drawn.add("--max-bytes", drawn.rng.choice(("500", "1kB", "2kB", "4kB", "8kB", "64kB")))
    if "epsilon" in goal:
        _privacy(drawn)


def _sizes(drawn: _Drawn) -> None:
    drawn.maybe(0.3, "--recovery", *DECODERS)
    drawn.maybe(0.15, "--rows", 3, 5, 8)
    drawn.maybe(0.25, "--encoding", "sketch", "histogram", "sketch")
    drawn.maybe(0.1, "--failure-probability", 0.01, 0.3)


def _rounds(drawn: _Drawn) -> None:
    drawn.maybe(0.35, "--rounds", 2, 3, 4, 6)
    if "--rounds" in drawn.words:
        drawn.maybe(0.6, "--schedule", "shared", "fresh", "hybrid", "batched:2", "batched:auto")


def _of_persons(drawn: _Drawn) -> None:
    clients = drawn.rng.choice((3000, 20_000, 100_000, 1_000_000))
    drawn.add("--clients", clients)
    if drawn.rng.random() < 0.4:
        drawn.add("--like", drawn.rng.choice(("zipf:a=1.1,d=2000", "zipf:d=500", "zipf:a=2,d=300")))
    else:
        kinds = ("--domain-size 200", "--domain-size 1000", "--domain-size 5000")
        more = (
            "--domain range:-5..99",
            "--domain grid:25..50,-130..-60,1",
            "--domain dictionary.txt",
        )
        drawn.words += drawn.rng.choice(kinds + kinds + more).split()
        drawn.maybe(0.15, "--max-items", 2, 4)
    _goal(drawn, needs_one=True)
    _sums(drawn, clients)
    _sizes(drawn)
    _rounds(drawn)


def _of_silos(drawn: _Drawn) -> None:
    clients = drawn.rng.choice((5, 10, 20, 40))
    drawn.add("--clients", clients)
    drawn.add("--people", drawn.rng.choice((500, 5000)))
    drawn.maybe(0.3, "--expected-people", 2000, 20_000)
    drawn.add("--domain-size", drawn.rng.choice((100, 500, 2000)))
    _goal(drawn, needs_one=True)
    if "--epsilon" in drawn.words:
        drawn.maybe(0.2, "--silos-per-person", 2)
    _sums(drawn, clients)
    _sizes(drawn)
    drawn.maybe(0.1, "--rounds", 2)


def _of_open(drawn: _Drawn) -> None:
    clients = drawn.rng.choice((20_000, 100_000, 1_000_000))
    drawn.add("--clients", clients)
    drawn.add("--domain", "open")
    _goal(drawn, needs_one=True)
    _sums(drawn, clients)
    drawn.maybe(0.3, "--name-length", 8, 12)
    drawn.maybe(0.3, "--max-length", 16, 32)
    drawn.maybe(0.3, "--allow-rare-names")
    drawn.maybe(0.2, "--rounds", 2, 4)


def _estimate(drawn: _Drawn) -> None:
    """Draw a small simulation, whose plan is made for the clients that came."""
    if drawn.rng.random() < 0.3:
        drawn.words += ["words.txt", "--domain", drawn.rng.choice(("open", "dictionary.txt"))]
    else:
        drawn.add(drawn.rng.choice(("zipf:d=100,n=400", "zipf:d=300,n=900")))
    _goal(drawn, needs_one=False)
    if "--epsilon" in drawn.words:
        drawn.add("--not-private")
    _sizes(drawn)
    _rounds(drawn)
    drawn.words += ["--json", "--top", "3"]


def requests(number: int, seed: int) -> list[list[str]]:
    """Return the commands that a seed draws."""
    rng = Random(seed)
    kinds = (_of_persons,) * 11 + (_of_silos,) * 3 + (_of_open,) * 2 + (_estimate,) * 4
    drawn = []
    for _ in range(number):
        options, kind = _Drawn(rng), rng.choice(kinds)
        kind(options)
        name = "estimate" if kind is _estimate else "plan"
        # what takes long is named on stderr by the seconds that passed, also before an error
        ends = ["--seed", "1", "--threads", "1", "--quiet"]
        if name == "plan":
            ends += ["-o", _PLAN, *rng.choice(([], [], ["--details"], ["--json"]))]
        drawn.append([name, *options.words, *ends])
    return drawn


def _steady(text: str) -> str:
    """Return what a command printed, without the seconds that it took."""
    try:
        told = json.loads(text)
    except json.JSONDecodeError:
        return text
    return json.dumps({name: value for name, value in told.items() if name not in MEASURED})


def answered(words: list[str]) -> tuple[str, float]:
    """Return what a command printed and wrote, and its seconds of CPU."""
    began = time.process_time()
    text = _steady(_run(words))
    took = time.process_time() - began
    path = Path(_PLAN)
    if path.exists():
        text += path.read_text("utf-8")
        path.unlink()
    return text, took


def planned(commands: dict[int, list[str]], *, is_shown: bool) -> dict[str, tuple[str, float]]:
    """Return digest and seconds of each command, by the words of it."""
    found = {}
    mine = {"COLUMNS": "100", "NO_COLOR": "1"}
    with tempfile.TemporaryDirectory() as folder, chdir(folder), patch.dict(os.environ, mine):
        os.environ["XDG_CACHE_HOME"] = f"{folder}/.cache"
        _run(["sample", "."])
        for number, words in commands.items():
            text, took = answered(words)
            digest = hashlib.sha256(text.encode()).hexdigest()
            found[f"{number} {shlex.join(words)}"] = digest, took
            if is_shown:
                print(f"$ {shlex.join(words)}\n{text}")
            print(f"{number:4d} {took:7.2f} s  {digest[:8]}", file=sys.stderr, flush=True)
    return found


def main() -> int:
    """Plan, write what came of it, and compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("output", type=Path, help="the JSON to write")
    parser.add_argument("--beside", type=Path, help="one that was written before")
    parser.add_argument("--only", default="", help="numbers of requests, 17,90 or ::2")
    parser.add_argument("--draw", type=int, default=48, help="the seed of the requests")
    options = parser.parse_args()
    drawn = dict(enumerate(requests(_NUMBER, options.draw)))
    if ":" in options.only:
        places = [int(place) if place else None for place in options.only.split(":")]
        drawn = {number: drawn[number] for number in list(drawn)[slice(*places)]}
    elif options.only:
        drawn = {int(number): drawn[int(number)] for number in options.only.split(",")}
    now = planned(drawn, is_shown=bool(options.only) and ":" not in options.only)
    options.output.write_text(json.dumps(now, indent=1), "utf-8")
    if options.beside is None:
        return 0
    before = json.loads(options.beside.read_text("utf-8"))
    both = [line for line in now if line in before]
    changed = [line for line in both if now[line][0] != before[line][0]]
    print(*changed, sep="\n")
    seconds, earlier = (sum(known[line][1] for line in both) for known in (now, before))
    print(f"{len(changed)} of {len(both)} changed; {seconds:.1f} s of CPU, {earlier:.1f} s before")
    return bool(changed)


if __name__ == "__main__":
    steady = {"PYTHONHASHSEED": "0"}
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | steady)  # noqa: S606
    sys.exit(main())
