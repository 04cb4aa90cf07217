"""The table of engines: their names, their options, and how to make each engine.

An engine carries the messages of a campaign. A new engine needs a module with a class that has
`Engine.run`, a function here that makes it, and a row of `ENGINES`. The command line takes names,
options and their checks from the table.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedtally.campaign.transports.engine import Engine
from fedtally.errors import InvalidInputError, MissingExtraError, flag, opt

if TYPE_CHECKING:
    from fedtally.campaign.folder import CampaignFolder
    from fedtally.campaign.transports.https.process import Https


class EngineOption(NamedTuple):
    """An option of one engine, for instance where it finds the clients.

    Args:
        name: the name of the option, which is also the keyword argument of `EngineRow.open`.
        metavar: what stands for the value in a usage line.
        help: the help text, one clause.
        is_path: whether the value is the path of a file or folder.
        default: the value if the option is not given; None: the option is required.
    """

    name: str
    metavar: str
    help: str
    is_path: bool = False
    default: str | None = None


class EngineRow(NamedTuple):
    """The description of an engine for the command line.

    Args:
        name: the value of `--engine`.
        reaches: a text that says which clients the engine reaches.
        options: the options of the engine, required and optional.
        open: makes the engine. It has one keyword argument for each option, a text. It
            imports the module of the engine only when it is called.
        gives_up: True: a run without a calendar ends if, for the time of the option `--wait`, too
            few clients come for a session or nobody answers. False: it does not, and `--wait`
            cannot be given.
        say_over: a function that tells clients that a campaign is over. Its arguments are the
            folder of the campaign, a function that shows a message to the operator, and the options
            by keyword. None: clients are not told.
    """

    name: str
    reaches: str
    options: tuple[EngineOption, ...]
    open: Callable[..., Engine]
    gives_up: bool = True
    say_over: Callable[..., None] | None = None

    @property
    def usage(self) -> str:
        """The part of a command line that chooses this engine, with `metavar` for each value.

        Only required options are in the text. For the default engine, `--engine` is left out.
        """
        return self.typed({one.name: one.metavar for one in self.options if one.default is None})

    def typed(self, values: Mapping[str, str]) -> str:
        """Return the part of a command line that chooses this engine with these option values.

        For the default engine, `--engine` is left out.

        Args:
            values: the values of options, by name. An option whose value is its default is left out
                of the text.
        """
        words = [] if self.name == DEFAULT else ["--engine", self.name]
        usual = {one.name: one.default for one in self.options}
        for name, value in values.items():
            if value != usual.get(name):
                words += [flag(name), value]
        return shlex.join(words)


def _sockets(agents: str) -> Engine:
    from fedtally.campaign.transports.sockets import Sockets

    return Sockets(Path(agents))


def _flower(connection: str) -> Engine:
    from fedtally.campaign.transports.flower.launch import Flower

    return Flower(connection)


_HTTPS_NEEDS = "prometheus_client", "starlette", "uvicorn", "uvloop"


def _https(listen: str, linger: str, operate: str, log: str) -> Https:
    if any(find_spec(name) is None for name in _HTTPS_NEEDS):
        raise MissingExtraError("--engine https needs an extra: pip install 'fedtally[https]'")
    from fedtally.campaign.transports.https.listen import Address
    from fedtally.campaign.transports.https.operate import LEVELS
    from fedtally.campaign.transports.https.process import Https
    from fedtally.campaign.transports.https.tokens import Tokens

    if log not in LEVELS:
        raise InvalidInputError(f"--log must be {', '.join(LEVELS)}, got {log!r}")
    where = Address.parse(operate) if operate else None
    return Https(Address.parse(listen), _seconds(linger, "--linger"), Tokens, where, log)


def _https_over(campaign: CampaignFolder, note: Callable[[str], None], **where: str) -> None:
    _https(**where).say_over(campaign, note)


def _seconds(text: str, option: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", text):
        raise InvalidInputError(
            f"{option} must be a whole number of seconds, below 10^9, got {text[:60]!r}"
        )
    return int(text)


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
        EngineRow(
            "https",
            "devices over HTTPS, behind nginx",
            (
                EngineOption(
                    "listen",
                    "ADDRESS",
                    "Listen on unix:PATH behind nginx, or on 127.0.0.1:PORT, for https",
                ),
                EngineOption(
                    "linger",
                    "S",
                    "Say for S seconds that the campaign is over, for https [86400]",
                    default="86400",
                ),
                EngineOption(
                    "operate",
                    "ADDRESS",
                    "Show health and metrics on this address, for https [nowhere]",
                    default="",
                ),
                EngineOption(
                    "log",
                    "LEVEL",
                    "Write JSON lines: off, info, or debug with names, for https [off]",
                    default="off",
                ),
            ),
            _https,
            gives_up=False,
            say_over=_https_over,
        ),
    )
}
DEFAULT = "sockets"
RENAMED = {"local": "sockets"}  # old names; the error for an old name tells the new name


def chosen(name: str, given: Mapping[str, str | None]) -> tuple[EngineRow, dict[str, str]]:
    """Return the row of an engine, and the values of all its options, by name.

    An option that is not given has its default value.

    Args:
        name: the value of `--engine`, a name in `ENGINES`.
        given: the values of the options of all engines, by name. None means that an option is not
            given.

    Raises:
        InvalidInputError: a required option is missing, or an option of another engine is given.
    """
    row = ENGINES[name]
    own = {one.name: one for one in row.options}
    values = {option: value for option, value in given.items() if value is not None}
    needed = {option for option, one in own.items() if one.default is None}
    missing, foreign = sorted(needed - values.keys()), sorted(values.keys() - own.keys())
    wrong = [f"needs {flag(option)} {own[option].metavar}" for option in missing]
    wrong += [f"takes no {flag(option)}" for option in foreign]
    if wrong:
        raise InvalidInputError(f"{opt.engine(name)} {', and '.join(wrong)}")
    usual = {option: one.default for option, one in own.items() if one.default is not None}
    return row, usual | values
