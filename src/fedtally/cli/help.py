"""Classes of click's commands, groups and options, with help texts in sections and with examples.

A command has three help texts. If it is typed without arguments that it needs, it prints its usage
and two examples. `-h` prints up to five examples and the options that most people use. `--help`
prints every option.
"""

from __future__ import annotations

import importlib
import os
import textwrap
from collections import UserDict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import click

from fedtally.base.text import escaped, shortened
from fedtally.base.validate import missing_file
from fedtally.errors import FedtallyError, InvalidInputError

# A text with one of these characters is not checked as a file name. It is a synthetic population
# (zipf:a=1), another text with a colon that names items, or a glob (a pattern of file names).
_SIGNS = ":*?["
_LONGEST = 40  # a longer value of a user is shortened to so many columns in a message
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


# The largest numbers of options and examples that `-h` shows.
MOST_OPTIONS, MOST_EXAMPLES = 14, 5
_BARE_EXAMPLES = 2
_HELP = "Help"


class SectionOption(click.Option):
    """An option of click that also knows its section in the help and the option that it needs.

    Args:
        names: the positional arguments of `click.Option`.
        section: the heading under which the help lists the option.
        is_often: whether `-h` shows the option if the command has more than `MOST_OPTIONS`.
        needs: another option without which this one has no effect, such as "--report FILE.html".
            `Command` refuses this option without the other one. "": this option needs no other.
        settings: the keyword arguments of `click.Option`.
    """

    def __init__(
        self,
        *names: Any,
        section: str = "Options",
        is_often: bool = False,
        needs: str = "",
        **settings: Any,
    ) -> None:
        super().__init__(*names, **settings)
        self.section, self.is_often, self.needs = section, is_often, needs


class BareUsage(click.UsageError):
    """Say that a command which needs arguments was typed without any.

    The message is a short help for the command (`Command.bare_help`).
    """


class Present(click.Path):
    """The type of an argument that names an input: a file, `-`, a glob or a text such as zipf:.

    `check` refuses a file that does not exist, so that the user need not wait until large modules
    are loaded. Other problems of a file are found when it is read.
    """

    def __init__(self) -> None:
        super().__init__(readable=False)

    @staticmethod
    def check(text: str) -> None:
        """Refuse a text that names a file which does not exist.

        Raises:
            UnreadableFileError: there is no such file.
        """
        if text == "-" or any(sign in text for sign in _SIGNS):
            return
        try:
            os.stat(text)
        except FileNotFoundError:
            raise missing_file(text) from None
        # OSError: the file may exist. ValueError: the path has a zero byte; the reader refuses it.
        except (OSError, ValueError):
            return


class Command(click.Command):
    """A command whose help lists options by section and ends with examples.

    Args:
        arguments: the positional arguments of `click.Command`.
        examples: pairs of a purpose and a command line, the most useful first. If the purpose is
            empty, the line is a further line of the example before it.
        settings: the keyword arguments of `click.Command`.
    """

    def __init__(
        self, *arguments: Any, examples: Sequence[tuple[str, str]] = (), **settings: Any
    ) -> None:
        settings.setdefault("context_settings", {"max_content_width": 100})
        super().__init__(*arguments, **{"add_help_option": False, **settings})
        self.examples = examples
        self._shown_examples: list[str] = []
        for purpose, line in examples:
            if purpose:
                self._shown_examples.append(f"# {purpose}\n{line}")
            else:
                self._shown_examples[-1] += f"\n{line}"
        self.params += [
            _help_option("-h", "Show the options that most people use", self.most_used_help),
            _help_option("--help", "Show every option", self.get_help),
        ]

    @property
    def own_options(self) -> list[SectionOption]:
        """The options of the command, except `-h` and `--help`."""
        options = (one for one in self.params if isinstance(one, SectionOption))
        return [one for one in options if one.section != _HELP]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments of the command line.

        Raises:
            BareUsage: there are no arguments, but the command requires some.
        """
        needs_some = any(parameter.required for parameter in self.params)
        if needs_some and not args and not ctx.resilient_parsing:
            raise BareUsage(self.bare_help(ctx), ctx)
        return super().parse_args(ctx, args)

    def bare_help(self, ctx: click.Context) -> str:
        """Return the help for a command without arguments: the usage and two examples."""
        formatter = ctx.make_formatter()
        self.format_usage(ctx, formatter)
        self._write_examples(formatter, _BARE_EXAMPLES)
        formatter.write(f"\nMost used options: {ctx.command_path} -h")
        return formatter.getvalue()

    def most_used_help(self, ctx: click.Context) -> str:
        """Return the help of `-h`: the usage, up to five examples, and the most used options.

        A command that has at most `MOST_OPTIONS` options shows all of them.
        """
        known = self.own_options
        few, rest = known, "More"
        if len(known) > MOST_OPTIONS:
            few, rest = [one for one in known if one.is_often], f"All {len(known)} options"
        formatter = ctx.make_formatter()
        self.format_usage(ctx, formatter)
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(str(self.help).partition("\n\n")[0])
        self._write_examples(formatter, MOST_EXAMPLES)
        if few:
            _write_options(ctx, formatter, {"Options": sorted(few, key=_rank)})
        formatter.write(f"\n{rest}: {ctx.command_path} --help")
        return formatter.getvalue()

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command.

        If an error of fedtally is raised, its message then names options as `--name` and not as
        arguments of Python; see `errors.render`.
        """
        try:
            self._check_needs(ctx)
            self._check_present(ctx)
            return super().invoke(ctx)
        except FedtallyError as error:
            error.speak_shell({name for one in self.params for name in one.opts})
            raise

    def _check_needs(self, ctx: click.Context) -> None:
        """Refuse an option that was given without the option that it needs.

        Raises:
            InvalidInputError: an option was given without the option that it needs.
        """
        names = {option: one.name for one in self.params for option in one.opts}
        for one in self.params:
            needs = getattr(one, "needs", "")
            needed = names.get(needs.partition(" ")[0])
            if needed is None or one.name is None or ctx.params[one.name] is None:
                continue
            if ctx.params[needed] is None:
                value = shortened(escaped(str(ctx.params[one.name])), _LONGEST)
                raise InvalidInputError(
                    f"{one.opts[0]} {value!r} does nothing without {needs}: add that, or leave"
                    f" {one.opts[0]} out"
                )

    def _check_present(self, ctx: click.Context) -> None:
        """Refuse input files that do not exist; see `Present`.

        Raises:
            UnreadableFileError: a file does not exist.
        """
        for one in self.params:
            given = ctx.params.get(str(one.name))
            if isinstance(one.type, Present) and given is not None:
                for text in [given] if isinstance(given, str) else given:
                    one.type.check(text)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write all options into the help, under the headings of their sections.

        Sections with a required option come first; within a section, required options come first.
        """
        sections: dict[str, list[click.Option]] = {}
        for parameter in sorted(self.params, key=_rank):
            if isinstance(parameter, SectionOption):
                sections.setdefault(parameter.section, []).append(parameter)
        # These sorts are stable, so that options of one kind stay in the order of their definition.
        for found in sections.values():
            found.sort(key=_is_optional)
        firsts = sorted(sections, key=lambda section: _is_optional(sections[section][0]))
        _write_options(ctx, formatter, {section: sections[section] for section in firsts})

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write all examples into the help, each below a line with its purpose."""
        self._write_examples(formatter)

    def _write_examples(self, formatter: click.HelpFormatter, most: int | None = None) -> None:
        """Write the first `most` examples into the help; None: all of them."""
        if self.examples:
            with formatter.section("Examples"):
                text = "\n\n".join(self._shown_examples[:most])
                formatter.write(textwrap.indent(text, " " * formatter.current_indent) + "\n")


def _help_option(flag: str, text: str, show: Callable[[click.Context], str]) -> SectionOption:
    """Return an option that prints a help text and ends the command.

    Args:
        flag: the name of the option.
        text: the text of the option in the help.
        show: returns the help text to print.
    """

    def callback(ctx: click.Context, _: click.Parameter, is_asked: bool) -> None:
        if is_asked and not ctx.resilient_parsing:
            click.echo(show(ctx))
            ctx.exit()

    return SectionOption(
        [flag],
        section=_HELP,
        help=text,
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=callback,
    )


@cache
def _order() -> Mapping[str, int]:
    """Return a mapping from the heading of each shared section to its position in the help.

    The shared sections are those of `fedtally.options`, in their order, and then `_HELP`.
    """
    from fedtally.options import SECTIONS  # at the top, the import would slow every run down

    return {section.__name__: place for place, section in enumerate(SECTIONS)} | {
        _HELP: len(SECTIONS)
    }


def _rank(parameter: click.Parameter) -> int:
    """Return the position of a parameter's section in the help.

    A section that is not shared (see `_order`) comes first; its position is -1.
    """
    return _order().get(getattr(parameter, "section", _HELP), -1)


def _is_optional(parameter: click.Parameter) -> bool:
    return not parameter.required


def _write_options(
    ctx: click.Context,
    formatter: click.HelpFormatter,
    sections: Mapping[str, Sequence[click.Option]],
) -> None:
    """Write options into the help under the headings of their sections.

    Args:
        ctx: the context of the command.
        formatter: the text of the help, to which this function appends.
        sections: the options of each section, by heading.
    """
    for section, found in sections.items():
        records = filter(None, [one.get_help_record(ctx) for one in found])
        with formatter.section(section):
            formatter.write_dl(list(records), col_max=26)


class _OnFirstUse(UserDict[str, Any]):
    """A mapping from names to commands, which may be given as the names of their modules.

    Such a module is imported when its command is first accessed. The command is an attribute of the
    module, with the same name.
    """

    def __getitem__(self, name: str) -> Any:
        found = self.data[name]
        if isinstance(found, str):
            found = self.data[name] = getattr(importlib.import_module(found), name)
        return found


class Group(click.Group):
    """A group of commands whose help lists them under headings."""

    command_class = Command

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.commands: _OnFirstUse = _OnFirstUse(self.commands)
        self.headings: dict[str, list[str]] = {}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; if there are no arguments, print the help and end.

        Otherwise click would raise an error whose message is the whole help.
        """
        if not args and self.no_args_is_help and not ctx.resilient_parsing:
            click.echo(ctx.get_help())
            ctx.exit()
        return super().parse_args(ctx, args)

    def add_section(self, heading: str, *commands: click.Command) -> None:
        """Add commands, which the help lists under a heading."""
        for command in commands:
            self.add_command(command)
            self.headings.setdefault(heading, []).append(str(command.name))

    def add_later(self, heading: str, **modules: str) -> None:
        """Add commands whose modules are imported on first use.

        Args:
            heading: the heading under which the help lists the commands.
            modules: the full name of the module of each command, by the command's name.
        """
        for name, module in modules.items():
            self.commands[name] = module
            self.headings.setdefault(heading, []).append(name)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands in the order in which they were added."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands into the help, under their headings."""
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
    """Return one decorator that applies several decorators of options.

    The help lists the options in the given order.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def option(section: str, *names: str, **settings: Any) -> Decorator:
    """Return a decorator that adds one option to a command.

    Args:
        section: the heading under which the help lists the option.
        names: the positional arguments of `click.option`.
        settings: the keyword arguments of `SectionOption`.
    """
    return click.option(*names, cls=SectionOption, section=section, **settings)
