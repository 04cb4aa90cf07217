"""`fedtally keys`: the keys of a campaign's servers, and a plan that names them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fedtally.cli import console
from fedtally.cli.layout import Command, Group, option, options
from fedtally.errors import InvalidInputError

if TYPE_CHECKING:
    from fedtally.campaign.key_files import PublicKey
    from fedtally.plan import Plan

_json_option = option(
    "Run", "--json", "as_json", is_flag=True, help="Print one JSON document; errors too, on stderr."
)

public_key_options = options(
    option(
        "Keys",
        "--server-key",
        metavar="HEX|FILE",
        help="Public key of the server of secagg: 64 digits, or the FILE.pub of fedtally keys new.",
    ),
    option(
        "Keys",
        "--helper-key",
        metavar="HEX|FILE",
        help="Public key of the helper of two-server: 64 digits, or its FILE.pub.",
    ),
)


def read_keys(given: dict[str, Any]) -> dict[str, bytes]:
    """Return the public keys that the options name, by their names in a plan."""
    from fedtally.campaign.key_files import Role, read_public_key

    named = {f"{role}_key": role for role in Role}
    return {
        name: read_public_key(given[name], role)
        for name, role in named.items()
        if given[name] is not None
    }


def lacking(plan: Plan) -> str:
    """Return what a plan lacks to be run and how to add it, in words; empty: it lacks nothing."""
    if plan.is_published:
        return ""
    ways = {
        "server_key": "server_key (fedtally keys add --server-key)",
        "helper_key": "helper_key (fedtally keys add --helper-key)",
        "allow_list": "allow_list, the digest of who may take part (Plan.with_keys in Python)",
    }
    missing = " and ".join(ways[name] for name in plan.missing_keys)
    return f"not published: it can be simulated, and nobody may run it without {missing}"


@click.group(
    cls=Group,
    short_help="Make the keys of a campaign; add them to a plan.",
    context_settings={"max_content_width": 100, "help_option_names": ["-h", "--help"]},
)
def keys() -> None:
    """The keys of a campaign's servers: nobody may run a plan that lacks them.

    The server of secagg, or the helper of two-server, makes its key on its own machine and gives
    away only the public key. The publisher of the plan adds the public keys to it; clients pin the
    fingerprint of that plan. Clients' keys and allow-lists (`active`, two-server) are made in
    Python: docs/library.md.
    """


@click.command(
    cls=Command,
    short_help="Make a private key file and its public key.",
    examples=[
        ("the key of the server of secagg", "fedtally keys new server --output server.key"),
        ("the key of the helper of two servers", "fedtally keys new helper --output helper.key"),
    ],
)
@click.argument("role", metavar="server|helper", type=click.Choice(["server", "helper"]))
@option(
    "Files",
    "--output",
    "-o",
    required=True,
    type=click.Path(),
    metavar="FILE",
    help="The private key file.",
)
@_json_option
def new(role: str, output: str, as_json: bool) -> None:
    """Make a new key: FILE, which only its owner may read (mode 0600), and FILE.pub, for everybody.

    The public key is printed. Neither file is ever overwritten. Keep FILE on the server's machine
    and nowhere else.
    """
    import secrets

    from fedtally.campaign.key_files import create_key_files, public_path

    console.check_files([output, str(public_path(output))])
    made = create_key_files(output, role, secrets.token_bytes)
    console.note(f"wrote {output} (private) and {public_path(output)} (public)", as_json)
    _show_key(made, as_json)


@click.command(
    cls=Command,
    short_help="Print the public key in a key file.",
    examples=[
        ("of a private key", "fedtally keys show server.key"),
        ("of a public key, and whose it is", "fedtally keys show server.key.pub --json"),
    ],
)
@click.argument("file", type=click.Path())
@_json_option
def show(file: str, as_json: bool) -> None:
    """Print the public key of a private key file, checked against its secret, or of a .pub file."""
    from fedtally.campaign.key_files import PUBLIC_SUFFIX, load_public_key, public_key_of

    _show_key(
        load_public_key(file) if file.endswith(PUBLIC_SUFFIX) else public_key_of(file), as_json
    )


@click.command(
    cls=Command,
    short_help="Add public keys to a plan: the plan that is run.",
    examples=[
        (
            "publish a plan of secagg",
            "fedtally keys add plan.toml --server-key server.key.pub --output published.toml",
        ),
        (
            "the fingerprint that clients pin",
            "fedtally inspect published.toml --json | jq -r .fingerprint",
        ),
    ],
)
@click.argument("plan", type=click.Path())
@public_key_options
@option(
    "Files",
    "--output",
    "-o",
    required=True,
    type=click.Path(),
    metavar="FILE",
    help="Write the plan with its keys: .toml or .json.",
)
@_json_option
def add(plan: str, output: str, as_json: bool, **given: Any) -> None:
    """Write PLAN with public keys: another plan, of the same size, whose fingerprint is printed.

    A key that PLAN has already is not replaced. A note lists the keys that are still missing.
    """
    from fedtally.plan import Plan

    console.check_files([output], [plan])
    if not output.endswith((".toml", ".json")):
        raise InvalidInputError(f"--output {output} must end in .toml or .json")
    read = read_keys(given)
    if not read:
        raise InvalidInputError(
            "no key is given: name --server-key or --helper-key (fedtally keys new makes one)"
        )
    keyed = Plan.load(plan).with_keys(**read, may_lack=True)
    keyed.save(output)
    console.note(f"wrote {output}: {lacking(keyed) or 'published'}", as_json)
    if as_json:
        console.show_json(
            {
                "schema": "fedtally-published/1",
                "fingerprint": keyed.fingerprint,
                "is_published": keyed.is_published,
                "missing_keys": list(keyed.missing_keys),
            }
        )
    else:
        click.echo(keyed.fingerprint)


keys.add_section("Commands", new, show, add)


def _show_key(key: PublicKey, as_json: bool) -> None:
    if as_json:
        console.show_json(
            {"schema": "fedtally-key/1", "role": str(key.role), "public": key.value.hex()}
        )
    else:
        click.echo(key.value.hex())
