"""Measure the walk of a request: through how many calls it goes until a campaign has run.

    python tools/walk.py              # the figures
    python tools/walk.py --moves      # and every move

Five small campaigns run under `sys.setprofile`: by bytes; by a target and a pilot; private, by a
target and a pilot; private, over secure aggregation; and of a plan that is given.
What is followed are the *carriers*: the request, and the objects that it is resolved into
(`CARRIERS`).

- A *move* is a pair of functions of which one hands the other a carrier: as an argument, as a
  variable that the other closes over, or as what it returns.
  It is counted once, however often it happens.
- A *question* is a pair of a function and a method or property of a carrier, of another module,
  that it calls. It is no move: the carrier is asked, and not passed on.
- A *room* is a module with a function at either end of a move.
- A *climb* is a move to a module on a higher floor.
  The floor of a module is the longest path of imports below it, inside the package; imports in
  functions count, those for type checking do not.

A function inside another one is part of it, and what Python generates (for data classes) is part of
its caller. The tool runs on whichever fedtally the interpreter imports, also on an older one.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import fedtally

CARRIERS = {
    "Request": "what is asked",
    "Simulation": "what only a simulation has",
    "CampaignSpec": "what is asked, resolved",
    "Summation": "how rounds are summed",
    "Privacy": "the privacy that is asked for",
    "Draft": "a plan to be",
    "Sizing": "what chose a size, before it was an Enum",
    "_Site": "where a campaign is fitted and summed",
}
ROOT = Path(fedtally.__file__).parent
MAX_DEPTH = 2  # of tuples and lists in which a carrier is looked for


class Place(NamedTuple):
    """A function."""

    module: str
    function: str


class Move(NamedTuple):
    """A carrier goes from one function to another."""

    start: Place
    end: Place
    carrier: str


# ---- floors ----


def _imports(tree: ast.AST, package: str) -> Iterator[str]:
    """Yield what a module imports, also in functions; not for type checking alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:  # relative to the package
                base = ".".join(
                    package.split(".")[: len(package.split(".")) - node.level + 1]
                    + [base] * bool(base)
                )
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)  # a name may be a module
        else:
            yield from _imports(node, package)


def floors() -> dict[str, int]:
    """Return the longest path of imports below every module of the package."""
    files = {module_of(path): path for path in ROOT.rglob("*.py")}
    graph = {
        name: {
            found
            for found in _imports(
                ast.parse(path.read_text()),
                name if path.stem == "__init__" else name.rpartition(".")[0],
            )
            if found in files and found != name
        }
        for name, path in files.items()
    }
    open_: set[str] = set()

    @cache
    def floor(name: str) -> int:
        # a circle of imports in functions would never end: it is cut where it closes
        open_.add(name)
        below = [floor(other) + 1 for other in sorted(graph[name]) if other not in open_]
        open_.discard(name)
        return max(below, default=0)

    return {name: floor(name) for name in sorted(graph)}


def module_of(path: Path) -> str:
    """Return the dotted name of a file of the package."""
    parts = ("fedtally", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


# ---- the walk ----


@cache
def _place(code: CodeType) -> Place | None:
    """Return where a function stands; None for one that is generated, or of another package."""
    path = Path(code.co_filename)
    if not path.is_absolute() or not path.is_relative_to(ROOT):
        return None
    return Place(module_of(path), code.co_qualname.partition(".<locals>")[0])


def _carriers(value: Any, depth: int = MAX_DEPTH) -> Iterator[str]:
    """Yield the names of the carriers that a value is, or holds in a tuple or list."""
    kind = type(value)
    if (
        kind.__name__ in CARRIERS
        and kind.__module__.startswith("fedtally")
        and not isinstance(value, Enum)
    ):
        yield kind.__name__
    elif depth and kind in (tuple, list):
        for each in value:
            yield from _carriers(each, depth - 1)
    elif (
        depth and callable(value) and hasattr(value, "__self__")
    ):  # a bound method carries its object
        yield from _carriers(value.__self__, depth - 1)


class Walk:
    """What was seen of the carriers while something ran."""

    def __init__(self) -> None:
        self.moves: set[Move] = set()
        self.questions: set[Move] = set()

    def __call__(self, frame: FrameType, event: str, value: Any) -> None:
        """Look at a call or a return, as `sys.setprofile` asks."""
        if event not in ("call", "return"):
            return
        here = _place(frame.f_code)
        if here is None:
            return
        before = frame.f_back
        there = None
        while before is not None and (there := _place(before.f_code)) is None:
            before = before.f_back
        if there is None or there == here:
            return
        if event == "return":
            self.moves.update(Move(here, there, name) for name in _carriers(value))
            return
        code = frame.f_code
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        for name in (*names, *code.co_freevars):
            into = self.questions if name == "self" and name in names else self.moves
            into.update(Move(there, here, kind) for kind in _carriers(frame.f_locals.get(name)))

    def of(self, run: Callable[[], object]) -> None:
        """Follow the carriers while something runs."""
        sys.setprofile(self)
        try:
            run()
        finally:
            sys.setprofile(None)


def campaigns() -> list[Callable[[], object]]:
    """Return the campaigns that are run."""
    words = [f"w{i % 20 if i % 3 else 0}" for i in range(2000)]
    domain = fedtally.Dictionary([f"w{i}" for i in range(20)])
    estimate, few = fedtally.estimate, words[:30]
    plan = estimate(words, domain=domain, num_rounds=2, width=100, seed=1).plan
    private = {"domain": domain, "epsilon": 8.0}
    secagg = {"secure_sum": "secagg", "dropout": 0.1, "rows": 3, "width": 8}
    return [
        lambda: estimate(words, num_rounds=2, max_bytes=2000, seed=1, evaluate=True),
        lambda: estimate(words, num_rounds=2, rows=5, tau=0.2, seed=1),
        lambda: estimate(words, **private, tau=0.2, rows=5, sizing="two-phase"),
        lambda: estimate(few, **private, **secagg),
        lambda: estimate(words, domain=domain, plan=plan, seed=1),
    ]


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description="Measure the walk of a request.")
    parser.add_argument("--moves", action="store_true", help="print every move")
    options = parser.parse_args()
    walk, level = Walk(), floors()
    for run in campaigns():
        walk.of(run)
    pairs = {(move.start, move.end) for move in walk.moves}
    climbs = {(start, end) for start, end in pairs if level[end.module] > level[start.module]}
    rooms = {place.module for pair in pairs for place in pair}
    questions = {
        (move.start, move.end) for move in walk.questions if move.start.module != move.end.module
    }
    if options.moves:
        for start, end in sorted(pairs):
            carried = ", ".join(
                sorted(
                    {move.carrier for move in walk.moves if (move.start, move.end) == (start, end)}
                )
            )
            mark = "^" if (start, end) in climbs else " "
            print(
                f"{mark} {start.module}.{start.function} -> {end.module}.{end.function}: {carried}"
            )
    print(
        f"rooms {len(rooms)}, moves {len(pairs)}, climbs {len(climbs)}, questions {len(questions)}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
