"""`fedtally completion`: the script with which a shell completes commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from fedtally.cli import console
from fedtally.cli.help import Command
from fedtally.errors import InvalidInputError

_SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_FEDTALLY_COMPLETE"  # the script sets this variable to get completions from click


@click.command(
    cls=Command,
    short_help="Complete commands and options in your shell.",
    examples=[
        ("in bash, for this shell; in ~/.bashrc for all", 'eval "$(fedtally completion bash)"'),
        ("in your zsh: in ~/.zshrc for all", 'eval "$(fedtally completion zsh)"'),
        ("in your fish: in config.fish for all", "fedtally completion fish | source"),
    ],
)
@click.argument("shell", metavar="|".join(_SHELLS), type=click.Choice(_SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script with which your shell completes commands, options, values and files."""
    found = get_completion_class(shell)
    assert found is not None
    try:
        script = found(context.find_root().command, {}, "fedtally", _VARIABLE).source()
    except RuntimeError as error:  # older versions of click raise it if bash is too old
        raise InvalidInputError(f"{error} Take zsh or fish, or a newer bash") from None
    console.show_script(script)
