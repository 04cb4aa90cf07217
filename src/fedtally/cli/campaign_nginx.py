"""`fedtally campaign nginx`: the configuration of nginx, the proxy before campaigns over HTTPS."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedtally.cli import console
from fedtally.cli.help import Command, option, options
from fedtally.errors import InvalidInputError

if TYPE_CHECKING:
    from fedtally.campaign.transports.https.proxy import Front

# Finds two things in the first line of a configuration: the names of its servers, and the command
# that made it.
_MADE = re.compile(r" over HTTPS: (.+)\. Printed by `fedtally (.+)`")
_CAMPAIGNS = re.compile(r"(?<=^# Campaigns over HTTPS: ).+(?=\. Printed)")  # the names of campaigns

front_options = options(
    option(
        "Server",
        "--host",
        default="_",
        metavar="HOST",
        help="Use this name of the server, _ for any [_]",
    ),
    option(
        "Server",
        "--address",
        "listen",
        multiple=True,
        default=("443",),
        metavar="[ADDRESS:]PORT",
        help="Listen on this port or address; may be repeated [443]",
    ),
    option(
        "Server",
        "--certificate",
        default="/etc/nginx/fedtally.pem",
        metavar="FILE",
        help="Show this certificate with its chain [/etc/nginx/fedtally.pem]",
    ),
    option(
        "Server",
        "--certificate-key",
        default="/etc/nginx/fedtally.key",
        metavar="FILE",
        help="Use this private key of the certificate [/etc/nginx/fedtally.key]",
    ),
    option(
        "Server",
        "--errors",
        default="/var/log/nginx/fedtally.log",
        metavar="FILE",
        help="Write errors of nginx itself here [/var/log/nginx/fedtally.log]",
    ),
    option(
        "Files",
        "--output",
        "-o",
        type=click.Path(),
        metavar="FILE",
        help="Write the conf here, whole or not at all [stdout]",
    ),
)


def give(made: Callable[[Front], str], output: str | None, **front: Any) -> None:
    """Print a configuration of nginx, or write it to a file.

    Args:
        made: a function that returns the text of the configuration.
        output: the path of the file, which nginx may read at any time; None: print the text.
        front: the fields of `Front`: the addresses, the host name and the certificate of nginx.

    Raises:
        InvalidInputError: the file cannot be written, holds a private key, or is the certificate
            or the key that the configuration names. Or the file is a configuration of another
            command, or of another server. Or it is an older configuration, and the new one names
            another certificate, which is missing.
    """
    from fedtally.base.archive import replacing
    from fedtally.campaign.enrolment import check_overwritable
    from fedtally.campaign.transports.https.proxy import Front

    files = ("certificate", "certificate_key")
    console.check_files([output], [front[name] for name in files])
    # nginx would look for other paths beside its own conf.
    front |= {name: str(Path(front[name]).absolute()) for name in files}
    text = made(Front(**front))
    if output is None:
        console.show_script(text.removesuffix("\n"))
        return
    check_overwritable(output)
    try:
        # a device or a pipe might never end; `replacing` refuses it
        before = Path(output).read_text(encoding="utf-8") if Path(output).is_file() else ""
    except (OSError, UnicodeDecodeError):
        before = ""
    _check_server(output, before, text)
    _check_certificates(output, before, text)
    # The file is replaced in one step: if nginx read half a configuration, campaigns would stop.
    with replacing(output) as temporary:
        Path(temporary).write_text(text, encoding="utf-8", newline="\n")
    console.note(f"wrote {output}: try nginx -t, then reload nginx")


def _check_server(output: str, before: str, text: str) -> None:
    """Refuse to replace a file that fedtally made for another server or by another command.

    The clients of the other server would no longer reach it. `campaign nginx` writes all campaigns
    of a host into one file, so this file may get other campaigns. The other commands write one
    server into a file.

    Args:
        output: the path of the file to replace.
        before: the text of the file; "": the file is missing, or cannot be read as text.
        text: the text of the new configuration.

    Raises:
        InvalidInputError: fedtally made the file for another server or by another command.
    """
    older = before.partition("\n")[0]
    made = _MADE.search(older)
    if made is None or _CAMPAIGNS.sub("", older) == _CAMPAIGNS.sub("", text.partition("\n")[0]):
        return
    names, command = made.groups()
    raise InvalidInputError(
        f"{output} is the conf that fedtally {command} made for {names}, whose clients would not"
        " get through any more: name another file in the same folder, or delete this one if they"
        " need it no longer"
    )


def _check_certificates(output: str, before: str, text: str) -> None:
    """Refuse to replace a configuration of nginx by one that names a missing certificate.

    nginx would refuse the new configuration, and could not be started again. This happens to users
    who gave --certificate at the first call, and forget it at the second. If there is no older
    configuration, nothing is checked: the new one may be for another machine.

    Args:
        output: the path of the file to replace.
        before: the text of the file; "": the file is missing, or cannot be read as text.
        text: the text of the new configuration.

    Raises:
        InvalidInputError: the new configuration names another certificate or key than the older
            one, and this certificate or key is missing.
    """
    named = re.compile(r"^ *(ssl_certificate(?:_key)?) (.+);$", re.MULTILINE)
    older = dict(named.findall(before))
    for directive, path in named.findall(text):
        if older.get(directive, path) != path and _is_missing(path):
            raise InvalidInputError(
                f"{output} names the file {older[directive]}, and there is no {path}, which"
                " would replace it: give all options again that made the file, such as"
                " --certificate and --certificate-key"
            )


def _is_missing(path: str) -> bool:
    """Tell whether a file is certainly missing.

    The result is False if this user may not look into the folder: nginx may be allowed to.
    """
    try:
        Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


@click.command(
    cls=Command,
    short_help="Print the conf of nginx for campaigns.",
    examples=[
        (
            "your campaigns survey and fruit, on your host sums.example.org",
            (
                "fedtally campaign nginx survey fruit --host sums.example.org"
                " --output /etc/nginx/conf.d/fedtally.conf"
            ),
        ),
        (
            "your campaign survey is over, and fruit goes on",
            (
                "fedtally campaign nginx survey fruit --ended --host sums.example.org"
                " --certificate /etc/ssl/sums.pem --certificate-key /etc/ssl/sums.key"
            ),
        ),
    ],
)
@click.argument(
    "names", metavar="NAME...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@option(
    "Campaigns",
    "--ended",
    is_flag=True,
    help="Say 410 for ever, for those of the campaigns that are over",
)
@option(
    "Campaigns",
    "--sockets",
    default="/run/fedtally",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Reach the campaigns' sockets NAME.sock in this folder [/run/fedtally]",
)
@front_options
def nginx(names: tuple[Path, ...], ended: bool, sockets: Path, **asked: Any) -> None:
    """Print a conf for nginx made from the plans of the campaigns NAME.

    With --output it goes into /etc/nginx/conf.d/. Make it again after a campaign was added or is
    over.
    """
    from fedtally.campaign.folder import CampaignFolder
    from fedtally.campaign.transports.https.proxy import Backend, conf

    folders = [CampaignFolder.open(name) for name in names]
    over = [one for one in folders if ended and one.stage() in ("over", "cancelled")]
    if ended and not over:
        raise InvalidInputError(
            f"no campaign of {', '.join(map(str, names))} is over, so that its clients must go on:"
            " leave --ended out"
        )
    backends = [
        Backend.of(
            one, None if one in over else sockets.absolute() / f"{one.path.absolute().name}.sock"
        )
        for one in folders
    ]
    give(partial(conf, backends), **asked)
