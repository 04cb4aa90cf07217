"""Help like a manual page: commands in groups, options in sections, examples at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from fedtally.errors import FedtallyError

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class SectionOption(click.Option):
    """An option that says under which heading of the help it stands."""

    def __init__(self, *names: Any, section: str = "Options", **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.section = section


class Command(click.Command):
    """A command whose help groups options by section and ends in examples."""

    def __init__(
        self, *arguments: Any, examples: Sequence[tuple[str, str]] = (), **settings: Any
    ) -> None:
        settings.setdefault(
            "context_settings", {"max_content_width": 100, "help_option_names": ["-h", "--help"]}
        )
        super().__init__(*arguments, **settings)
        self.examples = examples

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. An error names options as they are typed, not as Python calls them."""
        try:
            return super().invoke(ctx)
        except FedtallyError as error:
            error.speak_shell({name for one in self.params for name in one.opts})
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under the heading of their section."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if isinstance(parameter, click.Option) and record is not None:
                sections.setdefault(getattr(parameter, "section", "Options"), []).append(record)
        for section, records in sections.items():
            with formatter.section(section):
                formatter.write_dl(records, col_max=26)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, each under a line that says what it does."""
        if self.examples:
            with formatter.section("Examples"):
                indent = " " * formatter.current_indent
                for place, (purpose, line) in enumerate(self.examples):
                    if purpose:  # a line without one goes on with the example before it
                        formatter.write("\n" * bool(place) + f"{indent}# {purpose}\n")
                    formatter.write(f"{indent}{line}\n")


class Group(click.Group):
    """A group whose help lists the commands under headings."""

    command_class = Command

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.headings: dict[str, list[str]] = {}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Show the help where no command is named: click would make one long error of it."""
        if not args and self.no_args_is_help and not ctx.resilient_parsing:
            click.echo(ctx.get_help())
            ctx.exit()
        return super().parse_args(ctx, args)

    def add_section(self, heading: str, *commands: click.Command) -> None:
        """Add commands under a heading."""
        for command in commands:
            self.add_command(command)
            self.headings.setdefault(heading, []).append(str(command.name))

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order in which they were added."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands under their headings."""
        longest = max(map(len, self.commands))
        for heading, names in self.headings.items():
            with formatter.section(heading):
                width = formatter.width - formatter.current_indent - longest
                formatter.write_dl(
                    [
                        (name.ljust(longest), self.commands[name].get_short_help_str(width))
                        for name in names
                    ]
                )


def options(*decorators: Decorator) -> Decorator:
    """Join option decorators into one that keeps their order in the help."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def option(section: str, *names: str, **settings: Any) -> Decorator:
    """Return the decorator of one option in a section of the help."""
    return click.option(*names, cls=SectionOption, section=section, **settings)


json_option = option(
    "Run", "--json", "as_json", is_flag=True, help="Print one JSON document; errors too, on stderr."
)
