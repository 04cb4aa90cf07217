"""The command `fedtally` with all its subcommands, and how errors become exit codes.

So that the command starts fast, click is the only third-party package that is imported here. The
module of a subcommand is loaded on first use, and imports large packages, such as NumPy, only when
the subcommand runs.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Sequence

import click

from fedtally.base.validate import did_you_mean
from fedtally.cli.console import complain
from fedtally.cli.help import BareUsage, Group
from fedtally.errors import FedtallyError, MissingExtraError, is_of_full_disk

_EPILOG = """\
Start with `fedtally demo`: it needs no data. Each command has examples and its most used options
under -h, and all of them under --help.
"""


def _version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        from fedtally import __version__, kernels

        click.echo(f"fedtally {__version__} (kernels: {kernels.backend()})")
        ctx.exit()


@click.group(
    cls=Group,
    epilog=_EPILOG,
    invoke_without_command=True,
    context_settings={"max_content_width": 100, "help_option_names": ["-h", "--help"]},
)
@click.option(
    "-V",
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Show version and kernels.",
)
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Count what people have in common without seeing what anyone has.

    Clients send sketches, the server learns their sums, the analyst gets frequencies, heavy hitters
    and a bill.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


_HERE = "fedtally.cli"
_SAVED = f"{_HERE}.saved"
cli.add_later(
    "Estimate",
    estimate=f"{_HERE}.estimate",
    demo=f"{_HERE}.estimate",
    sample=f"{_HERE}.sample",
    show=f"{_HERE}.show",
)
cli.add_later("Plan", plan=f"{_HERE}.plan", simulate=f"{_HERE}.study", keys=f"{_HERE}.keys")
cli.add_later(
    "Real clients",
    **{name: f"{_HERE}.{name}" for name in ("campaign", "aggregate", "agent", "dap", "flower")},
)
cli.add_later(
    "Files",
    query=_SAVED,
    trends=f"{_HERE}.trends",
    report=_SAVED,
    merge=f"{_HERE}.merge",
    inspect=_SAVED,
)
cli.add_later("Privacy", ledger=f"{_HERE}.ledger", audit=f"{_HERE}.audit")
cli.add_later("Help", completion=f"{_HERE}.completion")


@cli.command(name="help")
@click.argument("command", nargs=-1)
@click.pass_context
def help_(ctx: click.Context, command: tuple[str, ...]) -> None:
    """Show the help of a command: `fedtally help campaign run`."""
    context = ctx.find_root()
    for name in command:
        group = context.command
        if not isinstance(group, click.Group):
            raise click.UsageError(
                f"{context.command_path} has no commands, such as {name!r}", context
            )
        _, found, _ = group.resolve_command(context, [name])  # raises an error for unknown names
        assert found is not None
        context = click.Context(found, context, name, **found.context_settings)
    click.echo(context.get_help())


_NO_POSIX = (
    "this command needs user ids, locks of files and Unix sockets: run it on Linux, or in a"
    " container"
)
_NO_MEMORY = "out of memory; fewer rounds, a smaller --width or a smaller --domain need less"

_FULL = "the disk is full: make room, and start this again ({})"


def _missing(library: str) -> str | None:
    """Return the message for a user who lacks a module that can be missing.

    Args:
        library: the name of the missing module, without submodules.

    Returns:
        The message; None: the module should always be there, so this is a bug of fedtally.
    """
    from fedtally.cli.agent import LIGHT_LACKS

    if library in ("fcntl", "grp", "pwd", "resource"):  # modules that Python on Windows lacks
        return _NO_POSIX
    return f"this needs {library}: pip install fedtally" if library in LIGHT_LACKS else None


def run(arguments: Sequence[str]) -> int:
    """Run the command line, and return its exit code.

    An expected error is printed on stderr, as a message or, with --json, as one JSON document.
    Other errors are raised.

    Args:
        arguments: the arguments after the name of the program.

    >>> run(["--version"])  # doctest: +ELLIPSIS
    fedtally 0.1.0 (kernels: ...)
    0
    """
    as_json = "--json" in arguments  # click has not read it yet when a usage error is printed
    for name in ("stdout", "stderr"):  # a stream that the caller has closed is None
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    try:
        # In standalone mode click would end the process with its own messages and exit codes.
        code = cli.main(list(arguments), prog_name="fedtally", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.Abort:
        complain("Interrupted", "interrupted", as_json)
        return 130
    except click.ClickException as error:
        return _usage(error, as_json)
    except FedtallyError as error:
        is_full = is_of_full_disk(error)
        complain(type(error).__name__, _FULL.format(error) if is_full else str(error), as_json)
        # A full disk gives 1: after 2 (wrong input), a service manager starts no service again.
        return FedtallyError.exit_code if is_full else error.exit_code
    except ModuleNotFoundError as error:
        said = _missing((error.name or "").partition(".")[0])
        if said is None:
            raise
        complain("MissingExtraError", said, as_json)
        return MissingExtraError.exit_code
    except MemoryError:
        complain("MemoryError", _NO_MEMORY, as_json)
    except OSError as error:
        if error.errno != errno.EPIPE:
            said = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            said = _FULL.format(said) if is_of_full_disk(error) else said
            complain(type(error).__name__, said, as_json)
        else:  # A reader such as `head` has ended. Otherwise Python would print an error at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _meant(error: click.ClickException) -> str:
    """Return a hint for a likely mistake behind a usage error; "": no mistake is known.

    Likely mistakes are an item that looks like an option, a misspelt choice, and a decoder of the
    user's own that the command does not take.
    """
    context = getattr(error, "ctx", None)
    if isinstance(error, click.NoSuchOption) and context and context.command.name == "query":
        return "; an item that starts with a dash goes behind --"
    found = re.search(r"'([^']*)' is not one of (.*)", error.format_message())
    if found is None:
        return ""
    if ":" in found[1] and getattr(getattr(error, "param", None), "name", None) == "recovery":
        return "; a decoder of your own runs in fedtally simulate alone"
    return did_you_mean(found[1], re.findall(r"'([^']*)'", found[2]))


def _usage(error: click.ClickException, as_json: bool) -> int:
    """Print a usage error of click; return 2, the exit code for bad input.

    Args:
        error: the error.
        as_json: whether to print it as JSON.
    """
    if isinstance(error, BareUsage):
        click.echo(error.message, err=True)
        return 2
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "fedtally"
    message = error.format_message().rstrip(".") + _meant(error)
    complain("UsageError", f"{message} (see {command} --help)", as_json)
    return 2
