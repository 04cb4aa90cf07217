"""Help: commands in groups, options in sections, examples at the end.

A command has three helps. Without arguments that it needs it shows its usage and two examples;
`-h` adds examples and the options that most people use; `--help` has every option.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from fedtally._keywords import in_options
from fedtally.errors import InvalidInputError, UnreadableFileError
from fedtally.options import SECTIONS

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


# What `-h` shows at most.
MOST_OPTIONS, MOST_EXAMPLES = 14, 5
_BARE_EXAMPLES = 2
_ORDER = {section.__name__: place for place, section in enumerate(SECTIONS)}


class SectionOption(click.Option):
    """An option that says under which heading of the help it stands, and whether `-h` has it."""

    def __init__(
        self, *names: Any, section: str = "Options", is_often: bool = False, **settings: Any
    ) -> None:
        super().__init__(*names, **settings)
        self.section = section
        self.is_often = is_often


class BareUsage(click.UsageError):
    """A command was typed without anything, and needs something."""


class Command(click.Command):
    """A command whose help groups options by section and ends in examples."""

    def __init__(
        self, *arguments: Any, examples: Sequence[tuple[str, str]] = (), **settings: Any
    ) -> None:
        settings.setdefault(
            "context_settings", {"max_content_width": 100, "help_option_names": ["--help"]}
        )
        super().__init__(*arguments, **settings)
        self.examples = examples
        self.params.append(
            click.Option(
                ["-h"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=self._show_most_used,
                help="Show the options that most people use",
            )
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments. Where there are none, and some are needed, the usage is the error."""
        is_bare = not args and not ctx.resilient_parsing
        if is_bare and any(parameter.required for parameter in self.params):
            raise BareUsage(self.bare_help(ctx), ctx)
        return super().parse_args(ctx, args)

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        """Return `--help`, whose help says how it differs from `-h`."""
        found = super().get_help_option(ctx)
        if found is not None:
            found.help = "Show every option"
        return found

    def bare_help(self, ctx: click.Context) -> str:
        """Return the usage and two examples."""
        formatter = ctx.make_formatter()
        self.format_usage(ctx, formatter)
        self._write_examples(formatter, _BARE_EXAMPLES)
        formatter.write(f"\nMost used options: {ctx.command_path} -h\n")
        return formatter.getvalue().rstrip("\n")

    def most_used_help(self, ctx: click.Context) -> str:
        """Return the usage, five examples, and the options that most people use."""
        formatter = ctx.make_formatter()
        self.format_usage(ctx, formatter)
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text((self.help or "").partition("\n\n")[0])
        self._write_examples(formatter, MOST_EXAMPLES)
        known = [one for one in self.params if isinstance(one, SectionOption)]
        few = known if len(known) <= MOST_OPTIONS else [one for one in known if one.is_often]
        records = [one.get_help_record(ctx) for one in sorted(few, key=_rank)]
        if records:
            with formatter.section("Options"):
                formatter.write_dl([one for one in records if one is not None], col_max=26)
        every = f"all {len(known)} options" if len(few) < len(known) else "more"
        formatter.write(f"\n{every.capitalize()}: {ctx.command_path} --help\n")
        return formatter.getvalue().rstrip("\n")

    def _show_most_used(self, ctx: click.Context, _: click.Parameter, is_asked: bool) -> None:
        if is_asked and not ctx.resilient_parsing:
            click.echo(self.most_used_help(ctx))
            ctx.exit()

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. An error names its options as they are typed, not as Python calls them.

        Of a file it names the entries, which have the names of Python.
        """
        try:
            return super().invoke(ctx)
        except UnreadableFileError:
            raise
        except InvalidInputError as error:
            names = {
                one.name: max(one.opts, key=len)
                for one in self.params
                if isinstance(one, click.Option) and one.name
            }
            raise type(error)(in_options(str(error), names)) from error

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under the heading of their section, the most used sections first."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in sorted(self.get_params(ctx), key=_rank):
            record = parameter.get_help_record(ctx)
            if isinstance(parameter, click.Option) and record is not None:
                sections.setdefault(getattr(parameter, "section", "Help"), []).append(record)
        for section, records in sections.items():
            with formatter.section(section):
                formatter.write_dl(records, col_max=26)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, each under a line that says what it does."""
        self._write_examples(formatter)

    def _write_examples(self, formatter: click.HelpFormatter, most: int | None = None) -> None:
        """Write the examples, or the first of them."""
        starts = [place for place, (purpose, _) in enumerate(self.examples) if purpose]
        end = None if most is None or most >= len(starts) else starts[most]
        if not self.examples:
            return
        with formatter.section("Examples"):
            indent = " " * formatter.current_indent
            for place, (purpose, line) in enumerate(self.examples[:end]):
                if purpose:  # a line without one goes on with the example before it
                    formatter.write("\n" * bool(place) + f"{indent}# {purpose}\n")
                formatter.write(f"{indent}{line}\n")


def _rank(parameter: click.Parameter) -> int:
    """Return the place of a parameter's section: those of one command come before shared ones."""
    if not isinstance(parameter, SectionOption):
        return len(_ORDER)  # -h and --help
    return _ORDER.get(parameter.section, -1)


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
