"""`fedtally keys`: make keys, list who may take part in a campaign, and add both to its plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import click

from fedtally.cli import console
from fedtally.cli.help import Command, Group, option, options
from fedtally.cli.plan_facts import (
    authority_rows,
    check_fingerprint,
    confirm,
    default_day,
    demand_rows,
    fingerprint_option,
    identity_rows,
    is_attended,
    parse_day,
)
from fedtally.cli.shared import json_option
from fedtally.errors import InvalidInputError

if TYPE_CHECKING:
    from pathlib import Path

    from fedtally.campaign.enrolment import Authority, PlanSignature
    from fedtally.campaign.key_files import PublicKey
    from fedtally.campaign.signing_book import SigningBook
    from fedtally.plan import Plan
    from fedtally.secagg.allow_list import AllowList


class _Owner(NamedTuple):
    """The owner of a key, for the texts of commands.

    Attributes:
        role: the role of the owner, such as "server".
        example: the purpose of the example for this role, as it stands above the example in the
            help of `keys new`.
        in_plan: the help text of the option of `keys add` for the key; None: plans do not have the
            key of this role.
    """

    role: str
    example: str
    in_plan: str | None = None


# One row for each role of `campaign.key_files.Role`. To import that module loads cryptography, and
# would make --help slow. A test checks that the roles are the same.
_OWNERS = (
    _Owner(
        "server",
        "the key of the server of secagg",
        "Name the public key of the server of secagg",
    ),
    _Owner(
        "leader",
        "the key of the leader of two servers",
        "Name the public key of the leader of two servers",
    ),
    _Owner(
        "helper",
        "the key of the helper of two servers",
        "Name the public key of the helper of two servers",
    ),
    _Owner("registrar", "the key of who enrols clients"),
    _Owner("client", "the identity of a client"),
    _Owner("aggregator", "the key of a server of DAP"),
    _Owner("collector", "the key of who gets the results of DAP"),
)
_ROLES = tuple(owner.role for owner in _OWNERS)
# The owners whose public keys are in a plan, by the name of the key there.
_OF_PLAN = {f"{owner.role}_key": owner for owner in _OWNERS if owner.in_plan is not None}

public_key_options = options(
    *(
        option("Keys", f"--{owner.role}-key", metavar="HEX|FILE", help=owner.in_plan)
        for owner in _OF_PLAN.values()
    ),
    option(
        "Keys",
        "--allow-list",
        type=click.Path(),
        metavar="FILE",
        help="Name the list of who may take part, of fedtally keys allow-list",
    ),
)
_registrar_options = options(
    option(
        "Keys",
        "--registrar",
        required=True,
        metavar="HEX|FILE",
        help="Name the public key of the registrar",
    ),
    option(
        "Keys",
        "--purpose",
        required=True,
        metavar="TEXT",
        help="Say what clients are enrolled for, as the registrar words it",
    ),
)


class GivenKeys(NamedTuple):
    """The keys and the allow-list that the options of `public_key_options` name.

    An allow-list has the public keys of all clients that may take part.

    Attributes:
        by_name: the public keys and the digest of the allow-list, 32 bytes each, by their names in
            a plan.
        allow_list: the allow-list; None: no option names one.
    """

    by_name: dict[str, bytes]
    allow_list: AllowList | None

    def add_to(self, plan: Plan) -> Plan:
        """Return a copy of a plan with these keys; it may still lack other keys.

        Raises:
            InvalidInputError: the plan has another value for one of these keys, the plan does not
                use one of these keys, or the allow-list has too few clients for the plan.
        """
        from fedtally.campaign.enrolment import check_allow_list

        keyed = plan.with_keys(**self.by_name, may_lack=True)
        if self.allow_list is not None:
            check_allow_list(keyed, self.allow_list)
        return keyed


def read_keys(given: dict[str, Any]) -> GivenKeys:
    """Read the public keys and the allow-list that the options of a command name.

    Args:
        given: the values of the command's options.

    Raises:
        InvalidInputError: a key or the allow-list cannot be read, or a key is of another role.
    """
    if all(given[name] is None for name in (*_OF_PLAN, "allow_list")):
        return GivenKeys({}, None)  # without the imports below, which are slow
    from fedtally.campaign.enrolment import load_allow_list
    from fedtally.campaign.key_files import read_public_key

    found = {
        name: read_public_key(given[name], owner.role)
        for name, owner in _OF_PLAN.items()
        if given[name] is not None
    }
    listed = None
    if given["allow_list"] is not None:
        listed = load_allow_list(given["allow_list"])
        found["allow_list"] = listed.digest
    return GivenKeys(found, listed)


def note_longer(plan: Plan, listed: AllowList | None, quiet: bool) -> None:
    """Print a note if an allow-list has more clients than its plan has (`Plan.num_clients`).

    Args:
        plan: the plan.
        listed: the allow-list; None: nothing is printed.
        quiet: whether nothing is printed.
    """
    from fedtally.answer.sections import trust

    if listed is not None and (said := trust.longer_list(plan, len(listed))):
        console.note_folded(f"note: {said}", 6, quiet)


def lacking(plan: Plan) -> str:
    """Return in words which keys a plan lacks, and how to add them; "": the plan lacks no key.

    The allow-list counts as a key.
    """
    if plan.is_published:
        return ""
    ways = {
        name: f"{name} (fedtally keys add --{owner.role}-key)" for name, owner in _OF_PLAN.items()
    } | {"allow_list": "allow_list, who may take part (fedtally keys add --allow-list)"}
    missing = " and ".join(ways[name] for name in plan.missing_keys)
    can = "it can be simulated, and " * plan.clients.can_be_drawn
    return f"not published: {can}nobody may run it without {missing}"


@click.group(
    cls=Group,
    short_help="Make the keys of a campaign, say who may take part, publish and sign a plan.",
    context_settings={"max_content_width": 100, "help_option_names": ["-h", "--help"]},
)
def keys() -> None:
    """The keys of a campaign, and who may take part: nobody may run a plan that lacks them.

    Everybody makes a key on their own machine (new) and gives away only the public key. For
    `active` and two-server each client proves to the registrar that it has its key (prove), and the
    registrar lists the clients (allow-list). The publisher adds the public keys and the list to the
    plan (add), and the registrar signs it (sign) until a last day, or ends it before (revoke).
    docs/deploying.md has all steps.
    """


@click.command(
    cls=Command,
    short_help="Make a private key file and its public key.",
    examples=[
        (owner.example, f"fedtally keys new {owner.role} --output {owner.role}.key")
        for owner in _OWNERS
    ],
)
@click.argument("role", metavar="|".join(_ROLES), type=click.Choice(_ROLES))
@option(
    "Files",
    "--output",
    "-o",
    required=True,
    type=click.Path(),
    metavar="FILE",
    help="Write the private key to FILE, the public one to FILE.pub",
)
@json_option
def new(role: str, output: str, as_json: bool) -> None:
    """Make a new key: FILE, which only its owner may read (mode 0600), and FILE.pub, for everybody.

    The public key is printed. Neither file is ever overwritten. Keep FILE on the machine that uses
    it, and nowhere else.
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
        ("of a private key", "fedtally keys new server --output server.key"),
        ("", "fedtally keys show server.key"),
        ("of a public key, and whose it is", "fedtally keys show server.key.pub --json"),
    ],
)
@click.argument("file", type=click.Path())
@json_option
def show(file: str, as_json: bool) -> None:
    """Print the public key of a private key file, checked against its secret, or of a .pub file."""
    from fedtally.campaign.key_files import PUBLIC_SUFFIX, load_public_key, public_key_of

    _show_key(
        load_public_key(file) if file.endswith(PUBLIC_SUFFIX) else public_key_of(file), as_json
    )


@click.command(
    cls=Command,
    short_help="Destroy a private key file.",
    examples=[
        (
            "after the last sum of a plan has landed",
            "fedtally keys new helper --output helper.key",
        ),
        ("", "fedtally keys retire helper.key"),
    ],
)
@click.argument("file", type=click.Path())
@json_option
def retire(file: str, as_json: bool) -> None:
    """Overwrite the private key FILE with zeros, remove it, and print its public key, which stays.

    Make new keys of the leader and the helper for every plan of two servers, and retire them once
    its last sum has landed: who has recorded the reports, and gets both keys, reads every vector.
    Before that, no report can be counted without its key. Remove copies in backups, too.
    """
    from fedtally.campaign.key_files import retire_key

    retired = retire_key(file, lambda warning: console.note(f"warning: {warning}"))
    console.note(f"destroyed {file}", as_json)
    _show_key(retired, as_json)


@click.command(
    cls=Command,
    short_help="Add public keys to a plan: the plan that is run.",
    examples=[
        (
            "publish your plan of secagg, with the key of your server",
            "fedtally keys add plan.toml --server-key server.key.pub --output published.toml",
        ),
        (
            "against an active server: with your list of who may take part",
            (
                "fedtally keys add plan.toml --server-key server.key.pub --allow-list clients.allow"
                " --output published.toml"
            ),
        ),
        (
            "the fingerprint of your plan, which clients pin",
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
    help="Write the plan with its keys, as .toml or .json",
)
@json_option
def add(plan: str, output: str, as_json: bool, **given: Any) -> None:
    """Write PLAN with public keys: another plan, of the same size, whose fingerprint is printed.

    With --allow-list the plan names that list, which must be as long as a cohort. A key or a list
    that PLAN has already is not replaced. A note lists what is still missing.
    """
    from fedtally.plan import Plan

    console.check_files([output], [plan, *given.values()])
    if not output.endswith((".toml", ".json")):
        raise InvalidInputError(f"--output {output} must end in .toml or .json")
    read = read_keys(given)
    if not read.by_name:
        raise InvalidInputError(
            "no key is given: name --server-key, --leader-key or --helper-key (fedtally keys new"
            " makes one), or --allow-list"
        )
    keyed = read.add_to(Plan.load(plan))
    keyed.save(output)
    console.note(f"wrote {output}: {lacking(keyed) or 'published'}", as_json)
    note_longer(keyed, read.allow_list, as_json)
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
        console.show_hex(keyed.fingerprint, "the fingerprint of the plan")


@click.command(
    cls=Command,
    short_help="Prove to a registrar that a client has its key.",
    examples=[
        (
            "client.key is yours; registrar.key.pub is of the registrar, who gets the proof",
            (
                "fedtally keys prove client.key --registrar registrar.key.pub"
                ' --purpose "hospital study 2026" --output client.proof'
            ),
        )
    ],
)
@click.argument("key", metavar="CLIENT.key", type=click.Path())
@_registrar_options
@option(
    "Files",
    "--output",
    "-o",
    required=True,
    type=click.Path(),
    metavar="FILE",
    help="Write the proof, a line for the registrar",
)
@json_option
def prove(key: str, registrar: str, purpose: str, output: str, as_json: bool) -> None:
    """Write a proof that the owner of CLIENT.key has it, and print the client's identity.

    The proof holds no secret. It counts for this registrar and this purpose alone, so take the
    registrar's key and the purpose from the registrar itself.
    """
    from fedtally.campaign.enrolment import make_proof, save_proof
    from fedtally.campaign.key_files import Role, load_client_key, read_public_key

    console.check_files([output], [key, registrar])
    proof = make_proof(load_client_key(key), read_public_key(registrar, Role.REGISTRAR), purpose)
    save_proof(output, proof)
    console.note(f"wrote {output}: send it to the registrar", as_json)
    if as_json:
        console.show_json(
            {
                "schema": "fedtally-proved/1",
                "identity": proof.identity.hex(),
                "registrar": proof.registrar.hex(),
                "purpose": proof.purpose,
            }
        )
    else:
        console.show_hex(proof.identity.hex(), "the public key of the client")


@click.command(
    "allow-list",
    cls=Command,
    short_help="List the clients that may take part, of their proofs.",
    examples=[
        (
            "of all proofs in your folder proofs",
            (
                "fedtally keys allow-list --registrar registrar.key.pub"
                ' --purpose "hospital study 2026" proofs/*.proof --output clients.allow'
            ),
        )
    ],
)
@click.argument("proofs", metavar="PROOF...", nargs=-1, required=True, type=click.Path())
@_registrar_options
@option(
    "Files",
    "--output",
    "-o",
    required=True,
    type=click.Path(),
    metavar="FILE",
    help="Write the allow-list, an identity a line",
)
@json_option
def allow_list(
    proofs: tuple[str, ...], registrar: str, purpose: str, output: str, as_json: bool
) -> None:
    """Check each PROOF and list its client; print how many there are, and the list's digest.

    One wrong PROOF, or two of one client, and nothing is written: the error names the files. Check
    who sent a proof: it shows that somebody has a key, and not who that is.
    """
    from fedtally.campaign.enrolment import allow_list_of, load_proof, save_allow_list
    from fedtally.campaign.key_files import Role, read_public_key

    console.check_files([output], [registrar, *proofs])
    listed = allow_list_of(
        map(load_proof, proofs),
        read_public_key(registrar, Role.REGISTRAR),
        purpose,
        names=proofs,
    )
    save_allow_list(output, listed)
    clients = f"{len(listed):,} client{'s' * (len(listed) > 1)}"
    console.note(f"wrote {output}: {clients} may take part", as_json)
    if as_json:
        console.show_json(
            {"schema": "fedtally-listed/1", "clients": len(listed), "digest": listed.digest.hex()}
        )
    else:
        console.show_hex(listed.digest.hex(), "the digest of the list")


@click.command(
    cls=Command,
    short_help="Sign a published plan, as its registrar.",
    examples=[
        (
            "sign a plan of the list that you made: registrar.key is yours",
            (
                "fedtally keys sign registrar.key published.toml --allow-list clients.allow"
                ' --purpose "hospital study 2026" --output plan.sig'
            ),
        ),
        (
            "a client's key was stolen: sign your plan of a list without it in its place",
            (
                "fedtally keys sign registrar.key new.toml --allow-list new.allow"
                ' --purpose "hospital study 2026" --replaces FINGERPRINT --output new.sig'
            ),
        ),
    ],
)
@click.argument("key", metavar="REGISTRAR.key", type=click.Path())
@click.argument("plan", type=click.Path())
@option(
    "Keys",
    "--allow-list",
    type=click.Path(),
    metavar="FILE",
    help="Sign only if PLAN names the list in this FILE",
)
@option(
    "Authority",
    "--purpose",
    required=True,
    metavar="TEXT",
    help="Say what the plan is for; signatures are numbered within a purpose",
)
@option(
    "Authority",
    "--replaces",
    multiple=True,
    metavar="HEX",
    help="End the plan with these 64 digits; may be repeated",
)
@option(
    "Authority",
    "--until",
    metavar="DATE",
    help="End the plan after this day in UTC, such as 2027-01-31 [in 90 days]",
)
@option(
    "Authority",
    "--number",
    type=int,
    metavar="N",
    help="Number the signature within its purpose [one more than REGISTRAR.key.signed has]",
)
@fingerprint_option
@option("Run", "--yes", is_flag=True, help="Sign without asking")
@option(
    "Files",
    "--output",
    "-o",
    required=True,
    type=click.Path(),
    metavar="FILE",
    help="Write the signature, a line for all clients",
)
@json_option
def sign(
    key: str,
    plan: str,
    allow_list: str | None,
    fingerprint: str | None,
    yes: bool,
    output: str,
    as_json: bool,
    **said: Any,
) -> None:
    """Show what PLAN asks of clients, write the registrar's signature of it, print its fingerprint.

    On a terminal you are asked first. The signature covers every parameter of PLAN, the server's
    key and the allow-list. A plan that still lacks a key is refused. What was signed is noted in
    REGISTRAR.key.signed: keep that file with the key.
    """
    import time

    from fedtally.campaign.enrolment import (
        check_allow_list,
        check_overwritable,
        load_allow_list,
        save_signature,
        sign_plan,
    )
    from fedtally.campaign.key_files import load_registrar_key
    from fedtally.campaign.signing_book import SigningBook, book_path
    from fedtally.plan import Plan

    console.check_files([output], [key, plan, allow_list, str(book_path(key))])
    check_overwritable(output)
    loaded, now = Plan.load(plan), time.time()
    check_fingerprint(fingerprint, loaded)
    signing = load_registrar_key(key)
    if allow_list is not None:
        listed = load_allow_list(allow_list)
        check_allow_list(loaded, listed)
        note_longer(loaded, listed, as_json)
    book = SigningBook(book_path(key), signing.public)
    book.check_open(loaded.fingerprint)
    signature = sign_plan(signing, loaded, _authority(book, now, **said))
    asks = is_attended() and not yes
    _show_signing(signature, loaded, book, now, as_json and not asks)
    if said["number"] is None and not book_path(key).exists():
        _note_new_book(book_path(key), as_json and not asks)
    if asks:
        confirm("Sign this plan?", "not signed: nothing was written")
    book.add(signature)  # before the file is saved: a crash must not free the number
    save_signature(output, signature)
    console.note(f"wrote {output}: clients need it beside {plan}", as_json)
    _show_signed(signature, as_json)


def _note_new_book(path: Path, quiet: bool) -> None:
    """Print a note that the file in which a registrar records its signatures is new.

    If the key has signed before, the numbers of the earlier signatures are unknown. Owners refuse a
    signature whose number is not above these numbers.

    Args:
        path: the path of the file.
        quiet: whether nothing is printed.
    """
    console.note_folded(
        f"note: {path} is new: if this key has signed before, put that file back, or"
        " name a --number above all that were signed; owners take no lower one",
        6,
        quiet,
    )


def _show_signed(signature: PlanSignature, as_json: bool) -> None:
    """Print the fingerprint of a plan that was signed.

    Args:
        signature: the signature of the plan.
        as_json: whether to print a JSON document, with all fields of the signature.
    """
    if not as_json:
        console.show_hex(signature.fingerprint, "the fingerprint of the plan")
        return
    authority = signature.authority
    console.show_json(
        {
            "schema": "fedtally-signed/1",
            "fingerprint": signature.fingerprint,
            "registrar": signature.registrar.hex(),
            "purpose": authority.purpose,
            "number": authority.number,
            "last_day": str(authority.last_day),
            "replaces": list(authority.replaces),
        }
    )


def _authority(
    book: SigningBook,
    now: float,
    *,
    purpose: str,
    replaces: tuple[str, ...],
    until: str | None,
    number: int | None,
) -> Authority:
    """Return what a registrar states about a plan when signing it.

    Args:
        book: the record of the registrar's signatures.
        now: the time, Unix seconds.
        purpose: the purpose of the plan.
        replaces: the fingerprints of the plans that end when this one is signed.
        until: the last day of the plan, as YYYY-MM-DD; None: 90 days after `now`.
        number: the number of the signature. The signatures of one purpose are numbered, in rising
            order. None: the next free number.

    Raises:
        InvalidInputError: the number is not above the numbers of all earlier signatures of the
            purpose, or a value is not valid.
    """
    from fedtally.campaign.enrolment import Authority

    if number is None:
        number = book.next_number(purpose)
    book.check_number(purpose, number)
    last_day, ended = parse_day(until, now) or default_day(now), [one.lower() for one in replaces]
    return Authority(purpose, number, last_day, tuple(ended))


def _show_signing(
    signature: PlanSignature, plan: Plan, book: SigningBook, now: float, quiet: bool
) -> None:
    """Print on stderr what a registrar is about to sign.

    There is also a note for each other plan of this purpose that clients may still run, and that
    the new signature does not replace.

    Args:
        signature: the signature, which is not saved yet.
        plan: the plan.
        book: the record of the registrar's signatures.
        now: the time, Unix seconds.
        quiet: whether nothing is printed.
    """
    authority = signature.authority
    for name, text in [
        *identity_rows(plan),
        *authority_rows(authority),
        ("Last day", f"{authority.last_day} (UTC)"),
        *demand_rows(plan),
    ]:
        console.note_folded(f"{name:11}  {text}", 13, quiet)
    beside = set(book.open_plans(authority.purpose, now)) - {plan.fingerprint, *authority.replaces}
    for other in sorted(beside):
        note = f"note: plan {other} of this purpose stays open (--replaces ends it)"
        console.note_folded(note, 6, quiet)


@click.command(
    cls=Command,
    short_help="End plans that you signed, as their registrar.",
    examples=[
        (
            "FINGERPRINT is that of your plan that must not go on",
            "fedtally keys revoke registrar.key FINGERPRINT --output ended.revoked",
        )
    ],
)
@click.argument("key", metavar="REGISTRAR.key", type=click.Path())
@click.argument("plans", metavar="FINGERPRINT...", nargs=-1, required=True)
@option(
    "Files",
    "--output",
    "-o",
    required=True,
    type=click.Path(),
    metavar="FILE",
    help="Write the notice, a line for all clients",
)
@json_option
def revoke(key: str, plans: tuple[str, ...], output: str, as_json: bool) -> None:
    """Write a signed notice that the plans of these fingerprints, all 64 digits, have ended.

    It ends them for good, at each owner who reads it (fedtally agent accept --revocation), and only
    plans that this key has signed. Give it to owners as you gave them the plan.
    """
    from fedtally.campaign.enrolment import check_overwritable, revoke_plans, save_revocation
    from fedtally.campaign.key_files import load_registrar_key
    from fedtally.campaign.signing_book import SigningBook, book_path

    console.check_files([output], [key, str(book_path(key))])
    check_overwritable(output)
    signing = load_registrar_key(key)
    revocation = revoke_plans(signing, map(str.lower, plans))
    book = SigningBook(book_path(key), signing.public)
    book.add(revocation)
    save_revocation(output, revocation)
    for plan in revocation.revoked:
        known = "" if book.knows(plan) else f"; {book_path(key)} does not know that you signed it"
        console.note(f"revoked: plan {plan}{known}", as_json)
    console.note(f"wrote {output}: every owner must read it (agent accept --revocation)", as_json)
    if as_json:
        console.show_json(
            {
                "schema": "fedtally-revoked/1",
                "registrar": revocation.registrar.hex(),
                "revoked": list(revocation.revoked),
            }
        )


keys.add_section("Commands", new, show, prove, allow_list, add, sign, revoke, retire)


def _show_key(key: PublicKey, as_json: bool) -> None:
    if as_json:
        console.show_json(
            {"schema": "fedtally-key/1", "role": str(key.role), "public": key.value.hex()}
        )
    else:
        console.say(key.value.hex())
