"""The table of engines: their names, what they need, and how each one is opened.

A new engine is a module with a class that has `Engine.run`, a function here that opens it, and a
row of `ENGINES`. The command line takes names, options and their checks from the table.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from fedtally.campaign.transports.engine import Engine
from fedtally.errors import InvalidInputError, opt


def flag(name: str) -> str:
    """Return an option as it is typed, from its keyword."""
    return f"--{name.replace('_', '-')}"


class EngineOption(NamedTuple):
    """An option of one engine, which needs it: it says where the clients are.

    Args:
        name: the keyword of the function that opens the engine.
        metavar: what stands for the value in a usage line.
        help: what the option does, in a clause.
        is_path: whether the value is a path.
    """

    name: str
    metavar: str
    help: str
    is_path: bool = False


class EngineRow(NamedTuple):
    """What the command line knows of an engine.

    Args:
        name: the value of `--engine`.
        reaches: the clients that it reaches, in words.
        options: what it needs.
        open: makes the engine, from one keyword an option. Only it imports the engine's module.
    """

    name: str
    reaches: str
    options: tuple[EngineOption, ...]
    open: Callable[..., Engine]

    @property
    def usage(self) -> str:
        """The options that choose this engine, with a metavar for each value."""
        return self.typed({one.name: one.metavar for one in self.options})

    def typed(self, values: Mapping[str, str]) -> str:
        """Return the options that choose this engine, as they are typed, with a value by name."""
        words = [] if self.name == DEFAULT else ["--engine", self.name]
        for name, value in values.items():
            words += [flag(name), value]
        return shlex.join(words)


def _sockets(agents: str) -> Engine:
    from fedtally.campaign.transports.sockets import Sockets

    return Sockets(Path(agents))


def _flower(connection: str) -> Engine:
    from fedtally.campaign.transports.flower.launch import Flower

    return Flower(connection)


ENGINES = {
    row.name: row
    for row in (
        EngineRow(
            "sockets",
            "agents of this machine on Unix sockets",
            (
                EngineOption(
                    "agents",
                    "DIR",
                    "Reach the agents' sockets in this folder, for sockets",
                    is_path=True,
                ),
            ),
            _sockets,
        ),
        EngineRow(
            "flower",
            "the nodes of a Flower federation",
            (
                EngineOption(
                    "connection",
                    "NAME",
                    "Reach the SuperLink of this name in Flower's config.toml, for flower",
                ),
            ),
            _flower,
        ),
    )
}
DEFAULT = "sockets"
RENAMED = {"local": "sockets"}  # names that are refused with the word to type instead


def chosen(name: str, given: Mapping[str, str | None]) -> tuple[EngineRow, dict[str, str]]:
    """Return the row of an engine, and the values of its options.

    Args:
        name: the value of `--engine`.
        given: the values of all engines' options by name; None: not given.

    Raises:
        InvalidInputError: an option is missing, or is that of another engine.
    """
    row = ENGINES[name]
    own = {one.name: one for one in row.options}
    values = {option: value for option, value in given.items() if value is not None}
    missing, foreign = sorted(own.keys() - values.keys()), sorted(values.keys() - own.keys())
    wrong = [f"needs {flag(option)} {own[option].metavar}" for option in missing]
    wrong += [f"takes no {flag(option)}" for option in foreign]
    if wrong:
        raise InvalidInputError(f"{opt.engine(name)} {', and '.join(wrong)}")
    return row, values
