"""Count where a page breaks the rules of plain prose, page by page.

    python tools/style.py                  # a table of all pages, and the sum of each rule
    python tools/style.py docs/start.md    # each line of a page that breaks a rule

Pages in `CLEAN` break none, and `tests/project/test_style.py` keeps it so. The others are still to
be rewritten. A rule looks at the text that a reader sees: code, links' targets and parts that a
program writes are left out.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import click
from markdown_it import MarkdownIt
from markdown_it.token import Token

from fedtally.cli.app import cli

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")])
# Pages that break no rule. A page that was rewritten is added, and none is taken out.
CLEAN: tuple[str, ...] = (
    "README.md",
    *(
        f"docs/{name}.md"
        for name in (
            *("api", "commands", "dap", "features", "gallery", "index", "show", "start"),
            "calendar",
            "claims",
            "conformance",
            "constant-time",
            "release",
            "stopping",
            "streams-measured",
            "web",
        )
    ),
)
# Pages to look something up, and reasons for reviewers: they need no example on their first screen.
REFERENCE = frozenset(
    f"docs/{name}.md"
    for name in (
        *("api", "design", "error-model", "features", "options", "output", "paper-notes", "plan"),
        *("protocol", "protocol_two_server", "releases", "rules", "sketch", "threat-model"),
        "validity",
    )
)
MOST_WORDS = 28  # of a sentence
MOST_IN_CELL = 25  # words of a cell of a table
MOST_IN_HELP = 12  # words that describe an option
FIRST_EXAMPLE = 25  # the line by which a page shows its first code or picture

_CHAIN = re.compile(r"\b(?:that|those|of which) of\b|\bof which\b", re.IGNORECASE)
_INTRODUCTION = re.compile(r"(?:this page|the page) ", re.IGNORECASE)
_IF = re.compile(r"\bif\b", re.IGNORECASE)
_GENERATED = re.compile(r"<!-- generated.*?<!-- end -->", re.DOTALL)
# The end of a sentence: not after an abbreviation or an initial, and not within "...".
_END = re.compile(
    r"(?<!\be\.g)(?<!\bi\.e)(?<!\bet al)(?<!\bcf)(?<!\b[A-Z])(?<!\.)[.!?][)\"']*\s+(?=\S)"
)


class Break(NamedTuple):
    """A place where a page breaks a rule.

    Attributes:
        rule: one of `RULES`.
        line: the number of the line, from 1.
        text: the sentence or the cell, or what is missing.
    """

    rule: str
    line: int
    text: str


RULES = (
    f"sentence over {MOST_WORDS} words",
    "chain of that of, those of, of which",
    "page that introduces itself",
    f"cell over {MOST_IN_CELL} words",
    "two ifs in a sentence",
    f"no example by line {FIRST_EXAMPLE}",
)
_LONG, _CHAINED, _INTRODUCES, _CELL, _IFS, _LATE = RULES


def breaks(page: str, needs_example: bool = True) -> list[Break]:
    r"""Return the places where a page breaks a rule, in the order of its lines.

    Args:
        page: its Markdown.
        needs_example: whether it should show code or a picture on its first screen.

    >>> [found.rule for found in breaks("# A title\n\nThis page says a lot.\n", False)]
    ['page that introduces itself']
    """
    page = _GENERATED.sub(lambda part: "\n" * part.group().count("\n"), page)
    tokens = MarkdownIt("commonmark").enable("table").parse(page)
    late = _of_example(tokens) if needs_example else ()
    return sorted([*_of_sentences(tokens), *_of_cells(tokens), *late], key=lambda found: found.line)


def breaks_of(name: str) -> list[Break]:
    """Return the places where a page of this repository breaks a rule.

    Args:
        name: its path from the root, such as "docs/start.md".
    """
    is_reference = name in REFERENCE or name.startswith("docs/privacy-proofs/")
    return breaks((ROOT / name).read_text(encoding="utf-8"), not is_reference)


def _of_sentences(tokens: list[Token]) -> Iterator[Break]:
    is_first = True
    for line, text in _paragraphs(tokens):
        if is_first and _INTRODUCTION.match(text):
            yield Break(_INTRODUCES, line, text)
        is_first = False
        for sentence in _END.sub(lambda end: f"{end.group()}\0", text).split("\0"):
            one_line = " ".join(sentence.split())
            if _words(sentence) > MOST_WORDS:
                yield Break(_LONG, line, one_line)
            if _CHAIN.search(one_line):
                yield Break(_CHAINED, line, one_line)
            if len(_IF.findall(sentence)) > 1:
                yield Break(_IFS, line, one_line)
            line += sentence.count("\n")


def _of_cells(tokens: list[Token]) -> Iterator[Break]:
    for opening, token in pairwise(tokens):
        if opening.type in ("td_open", "th_open"):
            text = _read(token)
            if _words(text) > MOST_IN_CELL:
                yield Break(_CELL, (opening.map or token.map or [0])[0] + 1, text)
            if _CHAIN.search(text):
                yield Break(_CHAINED, (opening.map or token.map or [0])[0] + 1, text)


def _of_example(tokens: list[Token]) -> Iterator[Break]:
    for token in tokens:
        is_picture = any(child.type == "image" for child in token.children or [])
        is_picture |= token.type == "html_block" and "<img" in token.content
        if token.type == "fence" or is_picture:
            if token.map and token.map[0] + 1 > FIRST_EXAMPLE:
                yield Break(_LATE, token.map[0] + 1, "the first code or picture")
            return
    yield Break(_LATE, 1, "neither code nor a picture")


def _paragraphs(tokens: list[Token]) -> Iterator[tuple[int, str]]:
    """Yield the first line and the text of each paragraph, those of lists included."""
    for opening, token in pairwise(tokens):
        if opening.type == "paragraph_open" and opening.map is not None:
            yield opening.map[0] + 1, _read(token)


def _read(token: Token) -> str:
    """Return the text of a paragraph or a cell as it is read; code counts as one word."""
    said = {"code_inline": "code", "softbreak": "\n", "hardbreak": "\n"}
    return "".join(
        said.get(child.type, child.content)
        for child in token.children or []
        if child.type not in ("html_inline", "image")
    )


def _words(text: str) -> int:
    return sum(any(letter.isalnum() for letter in word) for word in text.split())


def wordy_options(command: click.Command, name: str) -> Iterator[str]:
    """Yield the options, of a command and of those below it, with a help text over 12 words.

    >>> told = click.Option(["--top"], help="How many items are listed.")
    >>> list(wordy_options(click.Command("demo", params=[told]), "demo"))
    []
    """
    for option in command.params:
        text = re.sub(r" \[.*\]$", "", getattr(option, "help", None) or "")  # but its default
        if isinstance(option, click.Option) and _words(text) > MOST_IN_HELP:
            yield f"{name} {option.opts[0]}"
    for below, one in getattr(command, "commands", {}).items():
        yield from wordy_options(one, f"{name} {below}")


def main(names: list[str]) -> int:
    """Print the breaks of the pages of these names, or a table of all pages."""
    for name in names:
        for found in breaks_of(name):
            print(f"{name}:{found.line}: {found.rule}: {found.text}")
    if names:
        return 0
    sums = dict.fromkeys(RULES, 0)
    for page in PAGES:
        name = page.relative_to(ROOT).as_posix()
        rules = [found.rule for found in breaks_of(name)]
        print(f"{len(rules):4}  {name}{'  (clean)' if name in CLEAN else ''}")
        for rule in rules:
            sums[rule] += 1
    print()
    for rule, number in sums.items():
        print(f"{number:4}  {rule}")
    wordy = len(list(wordy_options(cli, "fedtally")))
    print(f"{wordy:4}  option described in over {MOST_IN_HELP} words")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
