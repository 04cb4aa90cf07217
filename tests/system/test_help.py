"""Help that is read in a minute: a clause an option, `-h`, a bare command, completion."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
import pytest

from fedtally.cli.app import cli, run
from fedtally.cli.help import Command
from fedtally.options import SECTIONS

MOST_WORDS, COLUMNS = 12, 80
MOST_OPTIONS, MOST_EXAMPLES = 14, 5  # that -h shows
# The first word of every help text; a new one must be a verb, too.
VERBS = frozenset(
    re.findall(
        r"\w+",
        """
        Accept Add Allow Ask Bound Carry Charge Check Choose Close Compare Copy Count Decode Draw
        End Estimate Find Give Grant Hash Hide Keep Leave Let List Listen Look Make Name Number Open
        Plan Predict Print Protect Reach Read Refuse Repeat Rest Run Save Say Send Set Show Sign
        Split Sum Take Test Trust Use Wait Write
        """,
    )
)


def commands(
    group: click.Group = cli, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*words, name))
        elif isinstance(command, Command):
            yield (*words, name), command


COMMANDS = dict(commands())
LONG = [words for words, command in COMMANDS.items() if len(command.own_options) > MOST_OPTIONS]


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(arguments) == 0
    return capsys.readouterr().out


def clause(text: str) -> str:
    """Return a help text without its default, which stands in brackets at its end."""
    return re.sub(r" \[.*\]$", "", text)


def test_there_are_commands_with_many_options() -> None:
    assert {("estimate",), ("plan",), ("simulate",), ("demo",)} <= set(LONG)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_an_option_is_one_short_clause_that_begins_with_a_verb(words: tuple[str, ...]) -> None:
    for option in COMMANDS[words].params:
        if not isinstance(option, click.Option):
            continue
        text = clause(option.help or "")
        assert text, option.name
        assert len(text.split()) <= MOST_WORDS, text
        assert text.split()[0] in VERBS, text
        assert not re.search(r"(?<!\.)\.(?:\s|$)", text), f"one clause, no sentence: {text}"
        assert not re.search(r"\((?!epsilon, |extra )", text), f"a default in brackets: {text}"


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_shows_every_option_in_few_columns(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    out = printed(capsys, *words, "--help")
    described, _, _ = out.partition("\nExamples:\n")  # a command to copy is not wrapped
    assert max(map(len, described.splitlines())) <= COLUMNS
    for option in COMMANDS[words].params:
        if isinstance(option, click.Option):
            assert option.opts[0] in described


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_most_used_options_and_examples_are_few(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    out = printed(capsys, *words, "-h")
    assert out.startswith(f"Usage: fedtally {' '.join(words)} ")
    assert out.endswith(f": fedtally {' '.join(words)} --help\n")
    shown = len(re.findall(r"^  -", out, re.M))
    all_of_it = len(COMMANDS[words].own_options)
    assert shown == all_of_it if all_of_it <= MOST_OPTIONS else 8 <= shown <= MOST_OPTIONS
    purposes = [purpose for purpose, _ in COMMANDS[words].examples if purpose]
    assert len(re.findall(r"^  # ", out, re.M)) == min(len(purposes), MOST_EXAMPLES)


def test_the_most_used_help_says_how_many_options_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    number = len(COMMANDS["estimate",].own_options)
    assert f"All {number} options: fedtally estimate --help" in printed(capsys, "estimate", "-h")
    assert number > 60


def test_options_stand_in_sections_the_most_used_first(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "plan", "--help")
    found = [each for each in re.findall(r"^(\w+):", out, re.M) if each != "Usage"]
    assert found[:2] == ["Fleet", "Keys"] and found[-2:] == ["Help", "Examples"]
    shared = [section.__name__ for section in SECTIONS]
    assert found[2:-2] == [each for each in shared if each in found] and "Run" in found


def test_needed_options_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "campaign", "init", "--help")
    assert re.findall(r"^(\w+)[^\n]*:$", out, re.M)[:2] == ["Files", "Deadlines"]
    files = out[out.index("\nFiles:") : out.index("\nDeadlines")]
    assert re.findall(r"^  (--[\w-]+)", files, re.M)[:4] == [
        "--plan",
        "--server-key",
        "--mark",
        "--ledger",
    ]


def test_a_bare_command_shows_its_usage_and_two_examples(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["estimate"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("Usage: fedtally estimate [OPTIONS] INPUT\n")
    assert len(re.findall("^  # ", err, re.M)) == 2 and "\n  --" not in err
    assert err.endswith("fedtally estimate -h\n")
    # one that needs nothing runs, and whoever typed something is told what is missing
    with COMMANDS["demo",].make_context("demo", []):
        pass
    assert run(["estimate", "--json"]) == 2
    assert "Missing argument 'INPUT'" in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(capsys: pytest.CaptureFixture[str], shell: str) -> None:
    out = printed(capsys, "completion", shell)
    assert "_fedtally_completion" in out and f"{shell}_complete" in out


def test_completion_of_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", "csh"]) == 2
    assert "'csh' is not one of 'bash', 'zsh', 'fish'" in capsys.readouterr().err


COMPLETED = {
    "fedtally est": "estimate",
    "fedtally estimate --max-b": "--max-bytes",
    "fedtally estimate --secure-sum t": "two-server",
}


@pytest.mark.parametrize(
    "typed",
    [
        "estimate wor",
        "simulate wor",
        "estimate --domain wor",
        "plan --like wor",
        "estimate --plan wor",
        "query wor",
    ],
)
def test_names_of_files_are_completed_as_such(
    typed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COMP_WORDS", f"fedtally {typed}")
    monkeypatch.setenv("COMP_CWORD", str(typed.count(" ") + 1))
    monkeypatch.setenv("_FEDTALLY_COMPLETE", "bash_complete")
    with suppress(SystemExit):
        cli.main([], prog_name="fedtally", complete_var="_FEDTALLY_COMPLETE")
    assert capsys.readouterr().out.split() == ["file,wor"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_with_the_script(tmp_path: Path) -> None:
    """Bash evaluates the script, and calls the function that it registers, as a tab does."""
    program = tmp_path / "fedtally"
    entry = "import sys; sys.argv[0] = 'fedtally'; from fedtally.cli import main; main()"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{entry}" "$@"\n', "utf-8")
    program.chmod(0o755)
    script = 'eval "$(fedtally completion bash)" && complete -p fedtally > /dev/null'
    for typed in COMPLETED:
        script += (
            f" && COMP_WORDS=({typed}) && COMP_CWORD={typed.count(' ')} && COMPREPLY=()"
            ' && _fedtally_completion fedtally && printf "%s\\n" "${COMPREPLY[*]}"'
        )
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    found = (done.returncode, done.stdout.splitlines(), done.stderr)
    assert found == (0, list(COMPLETED.values()), "")
