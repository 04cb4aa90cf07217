"""`fedtally flower`: commands for the owners of nodes in a Flower federation."""

from __future__ import annotations

from pathlib import Path

import click

from fedtally.cli import console
from fedtally.cli.help import Command, Group, option
from fedtally.cli.shared import json_option


@click.group(
    cls=Group,
    short_help="Help for the nodes of a Flower federation.",
    context_settings={"max_content_width": 100, "help_option_names": ["-h", "--help"]},
)
def flower() -> None:
    """Look at a federation before a campaign runs on it.

    fedtally campaign run --engine flower runs it; docs/flower.md has a guide.
    """


@click.command(cls=Command, short_help="Write the app that nodes get.")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
def app(folder: Path) -> None:
    """Write the app that a SuperLink hands to its nodes into the new folder DIR.

    It is one file, which names code of the installed fedtally: to read before a node joins.
    fedtally campaign run sends the same app by itself.
    """
    from fedtally.campaign.transports.flower.launch import write_app

    write_app(folder)
    console.note(f"wrote {folder}: flwr build --app {folder} shows what nodes get")


@click.command(
    cls=Command,
    short_help="Find what would keep a node from working.",
    examples=[
        (
            "before your flower-supernode is started",
            (
                "fedtally flower check --superlink flower.example.org:443 --root-certificates"
                " ca.crt --key node.key --agent /run/fedtally/a.sock"
            ),
        )
    ],
)
@option("Node", "--superlink", required=True, metavar="HOST:PORT", help="Reach the SuperLink here")
@option(
    "Node",
    "--root-certificates",
    type=click.Path(),
    metavar="FILE",
    help="Trust these certificates [none: an insecure node]",
)
@option("Node", "--key", type=click.Path(), metavar="FILE", help="Use this private key of the node")
@option(
    "Node",
    "--agent",
    type=click.Path(),
    metavar="SOCKET",
    help="Use this socket of its agent",
)
@json_option
def check(
    superlink: str, root_certificates: str | None, key: str | None, agent: str | None, as_json: bool
) -> int:
    """Look at what a SuperNode is about to be started with. Nothing is sent but a GET.

    Exit code 0: it can work. 1: it cannot.
    """
    from fedtally.cli.flower_check import check_node

    found = list(check_node(superlink, root_certificates=root_certificates, key=key, agent=agent))
    if as_json:
        findings = [one._asdict() for one in found]
        console.show_json({"schema": "fedtally-flower-check/1", "findings": findings})
    else:
        for one in found:
            mark = "ok     " if one.is_good else "PROBLEM"
            console.say(f"{mark} {one.about}: {one.says}")
    return 0 if all(one.is_good for one in found) else 1


flower.add_section("Nodes", check, app)
