"""`fedtally campaign tokens`: which clients may speak to a campaign over HTTPS."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedtally.cli import console
from fedtally.cli.help import Command, Group, option
from fedtally.cli.shared import json_option

if TYPE_CHECKING:
    from fedtally.campaign.folder import CampaignFolder

_folder = click.argument("name", metavar="NAME", type=click.Path(path_type=Path))
_clients = click.argument("clients", metavar="CLIENT...", nargs=-1, required=True)
_output = option(
    "Files",
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write a file CLIENT.token for each client, and print no token",
)
_anew = option(
    "Clients",
    "--anew",
    is_flag=True,
    help="Make an empty list of tokens although clients took part",
)


@click.group(
    cls=Group,
    short_help="Say which clients may speak over HTTPS.",
    context_settings={"max_content_width": 100, "help_option_names": ["-h", "--help"]},
)
def tokens() -> None:
    """The tokens of a campaign's clients, for --engine https.

    A token is a secret of one client and one campaign. It is shown once: the folder NAME holds its
    SHA-256 alone. docs/serving.md says how tokens reach their clients.
    """


@click.command(
    cls=Command,
    short_help="Make tokens of clients with random names.",
    examples=[
        (
            "three clients of your campaign survey, a file each",
            "fedtally campaign tokens mint survey --count 3 --output tokens",
        ),
    ],
)
@_folder
@option(
    "Clients",
    "--count",
    "number",
    type=int,
    required=True,
    metavar="N",
    help="Make tokens for N clients",
)
@_anew
@_output
@json_option
def mint(name: Path, number: int, anew: bool, output: Path | None, as_json: bool) -> None:
    """Make tokens of N new clients, whose random names link no two campaigns.

    Each line on stdout is a client's name and its token.
    """
    from fedtally.campaign.transports.https.tokens import mint

    folder = _opened_to_give(name, anew)
    _show_new(folder, mint(folder.path, number, secrets.token_bytes, output), output, as_json)


@click.command(cls=Command, short_help="Make tokens of clients that you name.")
@_folder
@_clients
@_anew
@_output
@json_option
def add(
    name: Path, clients: tuple[str, ...], anew: bool, output: Path | None, as_json: bool
) -> None:
    """Make a token of each CLIENT. A name used in two campaigns links them: prefer mint.

    Each line on stdout is a client's name and its token.
    """
    from fedtally.campaign.transports.https.tokens import add

    folder = _opened_to_give(name, anew)
    _show_new(folder, add(folder.path, clients, secrets.token_bytes, output), output, as_json)


@click.command(
    name="import",
    cls=Command,
    short_help="Take tokens that you made elsewhere.",
    examples=[
        (
            "hashes.txt comes from your enrolment",
            "fedtally campaign tokens import survey hashes.txt",
        )
    ],
)
@_folder
@click.argument("file", metavar="FILE", type=click.Path())
@_anew
@json_option
def import_(name: Path, file: str, anew: bool, as_json: bool) -> None:
    """Take a line CLIENT = DIGEST for each client. DIGEST is the SHA-256 of its token, in hex."""
    from fedtally.campaign.transports.https.tokens import parse, take
    from fedtally.errors import UnreadableFileError

    folder = _opened_to_give(name, anew)
    try:
        with click.open_file(file, encoding="utf-8") as lines:
            taken = parse(lines.read().splitlines(), file)
    except UnicodeDecodeError:
        raise UnreadableFileError(f"{file} is no text: give lines CLIENT = DIGEST") from None
    except OSError as error:
        raise UnreadableFileError(f"{file} cannot be read: {error.strerror}") from error
    take(folder.path, taken)
    _show_change(folder, f"took the tokens of {len(taken):,} clients", list(taken), as_json)


@click.command(cls=Command, short_help="Take tokens back.")
@_folder
@_clients
@json_option
def revoke(name: Path, clients: tuple[str, ...], as_json: bool) -> None:
    """Take back the token of each CLIENT. It gets the answer 401, and ends.

    A name stays the same client: with a new token it is not asked again in a round that asked it.
    """
    from fedtally.campaign.transports.https.tokens import revoke

    folder = _opened(name)
    revoke(folder.path, clients)
    _show_change(folder, f"revoked the tokens of {len(set(clients)):,} clients", clients, as_json)


@click.command(name="list", cls=Command, short_help="List the clients that have a token.")
@_folder
@json_option
def list_(name: Path, as_json: bool) -> None:
    """Print the names of the clients that may speak."""
    from fedtally.campaign.transports.https.tokens import read

    names = sorted(read(_opened(name).path))
    if as_json:
        console.show_json({"schema": "fedtally-tokens-listed/1", "clients": names})
    for each in [] if as_json else names:
        console.say(each)


tokens.add_section("Give", mint, add, import_)
tokens.add_section("Look", list_)
tokens.add_section("Take back", revoke)


def _opened(name: Path) -> CampaignFolder:
    from fedtally.campaign.folder import CampaignFolder

    return CampaignFolder.open(name)


def _opened_to_give(name: Path, anew: bool) -> CampaignFolder:
    """Return the folder of a campaign, after a check that new tokens may be added to it.

    A new file of tokens instead of a lost one would list only the new clients. Once a process reads
    the new file, all earlier clients get the answer 401, and end for good.

    Args:
        name: the folder of the campaign.
        anew: whether the user wants a new file although clients may have taken part.

    Raises:
        InvalidInputError: the campaign had clients (`_had_clients`), its file of tokens is lost,
            and `anew` is False.
    """
    import os

    from fedtally.campaign.transports.https.tokens import TOKENS
    from fedtally.errors import InvalidInputError

    folder = _opened(name)
    place = folder.path / TOKENS
    if not (anew or os.path.lexists(place)) and _had_clients(folder):
        raise InvalidInputError(
            f"{folder.path} has asked clients and lost its file {TOKENS}, and with new tokens alone"
            f" each earlier client ends for good: put {place} back from your backup, or, if nobody"
            " has a token yet, add --anew"
        )
    return folder


def _had_clients(folder: CampaignFolder) -> bool:
    """Tell whether a campaign has asked clients, or may have: its database may be lost."""
    if not folder.has_begun:
        return bool(folder.lost())
    found = folder.status()
    return bool(found.asked or found.open or found.ended)


def _show_new(
    folder: CampaignFolder, made: dict[str, str], output: Path | None, as_json: bool
) -> None:
    """Print the new tokens of clients, unless they are in files.

    Args:
        folder: the folder of the campaign.
        made: the token of each client, by the client's name.
        output: the folder with the files of the tokens; None: there are no files.
        as_json: whether to print one JSON document, which has the names in any case.
    """
    shown = made if output is None else dict.fromkeys(made)
    try:
        if as_json:
            clients = [{"client": name, "token": token} for name, token in shown.items()]
            console.show_json({"schema": "fedtally-tokens-made/1", "clients": clients})
        elif output is None:
            for name, token in made.items():
                console.say(f"{name} {token}")
        sys.stdout.flush()
    except BaseException:  # a full disk, a closed pipe, Ctrl-C: nobody has all of these tokens
        if output is None:
            _take_back(folder, made)
        raise
    where = "nothing else holds them" if output is None else f"they are in {output}"
    console.note(f"made {len(made):,} tokens: {where}{_next(folder)}", as_json)


def _take_back(folder: CampaignFolder, made: dict[str, str]) -> None:
    """Take new tokens back that could not be shown, and say so; or which of them stay valid."""
    from fedtally.campaign.transports.https.tokens import take_back
    from fedtally.errors import InvalidInputError

    not_shown = f"stdout took not all {len(made):,} tokens"
    try:
        take_back(folder.path, made)
    except (InvalidInputError, OSError) as error:
        first, more = list(made)[:10], f" and {len(made) - 10:,} more" if len(made) > 10 else ""
        console.note(f"{not_shown}, and {' '.join(first)}{more} stay valid: revoke them ({error})")
    else:
        console.note(f"{not_shown}, so they were taken back{_next(folder)}")


def _show_change(
    folder: CampaignFolder, what: str, clients: list[str] | tuple[str, ...], as_json: bool
) -> None:
    if as_json:
        console.show_json({"schema": "fedtally-tokens-changed/1", "clients": sorted(set(clients))})
    console.note(f"{what}{_next(folder)}", as_json)


def _next(folder: CampaignFolder) -> str:
    """Return in words how to make a running process read the tokens; "": no process runs."""
    if (process := folder.runner()) is None:
        return ""
    where = "" if process.is_here else " in its container"
    return f"; next: kill -HUP {process.number}{where}, so that {folder.path} reads them"
