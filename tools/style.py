"""Count where a page breaks the rules of plain prose, page by page, and let no count grow.

    python tools/style.py                  # a table of all pages, and the sum of each rule
    python tools/style.py docs/start.md    # each line of a page that breaks a rule
    python tools/style.py --check          # exits 1 where a page breaks a rule too often
    python tools/style.py --renew          # accept what is better, and what moved

A page that `style.toml` does not list breaks no rule, and a new page starts so. The others are
still to be rewritten: their counts stand there, and may only shrink. Sentences that must stay as
they are stand there, too, by name and with a reason. A rule looks at the text that a reader sees:
code, links' targets and parts that a program writes are left out. Links of all pages must lead to
a file, and to a heading in it; so must the names of pages that the source prints.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import click
from markdown_it import MarkdownIt
from markdown_it.token import Token

from fedtally.cli.app import cli

ROOT = Path(__file__).resolve().parent.parent
ACCEPTED = Path(__file__).with_suffix(".toml")
GLOSSARY = "docs/glossary.md"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
UNREAD = ("CHANGELOG.md",)  # lines of many authors over the time: their links alone are followed
# Files whose comments and messages name pages.
NAMING = ("src/**/*.py", "tools/*.py", "benchmarks/*.py", "experiments/*.py", "examples/*/*.sh")
MOST_WORDS = 28  # of a sentence
MOST_IN_CELL = 25  # words of a cell of a table
MOST_IN_HELP = 12  # words that describe an option
FIRST_EXAMPLE = 25  # the line by which a page shows its first code or picture

MOST_EXCEPTIONS = 20

_CHAIN = re.compile(r"\b(?:that|those|of which) of\b|\bof which\b", re.IGNORECASE)
_INTRODUCTION = re.compile(
    r"(?:this page|the page (?:also )?(?:defines|explains|is for|lists|says)) ", re.IGNORECASE
)
_ABBREVIATION = re.compile(r"\b[a-z]?[A-Z]{2,5}(?=s?\b)")  # longer ones are words in capitals
# Abbreviations that every reader knows, units, and names.
_KNOWN = {
    *("API", "ASCII", "CI", "CPU", "CSV", "HTML", "HTTP", "HTTPS", "ID", "JSON", "README", "SQL"),
    *(
        "TOML",
        "TSV",
        "URL",
        "UTC",
        "UTF",
        "GB",
        "KB",
        "MB",
        "GET",
        "POST",
        "PUT",
        "DD",
        "MM",
        "YYYY",
    ),
    *("AMD", "EPYC", "GCC", "IEEE", "IETF", "NIST", "RFC", "US"),
}
_IF = re.compile(r"\bif\b", re.IGNORECASE)
_GENERATED = re.compile(r"<!-- generated.*?<!-- end -->", re.DOTALL)
# The end of a sentence: not after an abbreviation, and not within "...".
_END = re.compile(r"(?<!\be\.g)(?<!\bi\.e)(?<!\bet al)(?<!\bcf)(?<!\.)[.!?][)\"']*\s+(?=\S)")


class Break(NamedTuple):
    """A place where a page breaks a rule.

    Attributes:
        rule: a key of `RULES`.
        line: the number of the line, from 1.
        text: the sentence or the cell, or what is missing.
    """

    rule: str
    line: int
    text: str


RULES = {
    "long": f"sentence over {MOST_WORDS} words",
    "chain": "chain of that of, those of, of which",
    "introduction": "page that introduces itself",
    "cell": f"cell over {MOST_IN_CELL} words",
    "ifs": "two ifs in a sentence",
    "example": f"no example by line {FIRST_EXAMPLE}",
    "abbreviation": "abbreviation that the glossary lacks",
    "link": "link that leads nowhere",
}


def breaks(page: str, needs_example: bool = True) -> list[Break]:
    r"""Return the places where a page breaks a rule of prose, in the order of its lines.

    Args:
        page: its Markdown.
        needs_example: whether it should show code or a picture on its first screen.

    >>> [found.rule for found in breaks("# A title\n\nThis page says a lot.\n", False)]
    ['introduction']
    """
    page = _GENERATED.sub(lambda part: "\n" * part.group().count("\n"), page)
    tokens = _parse(page)
    late = _of_example(tokens) if needs_example else ()
    found = [*_of_sentences(tokens), *_of_cells(tokens), *_of_abbreviations(tokens), *late]
    return sorted(found, key=lambda found: found.line)


def breaks_of(name: str) -> list[Break]:
    """Return the places where a page of this repository breaks a rule, but for the exceptions.

    Args:
        name: its path from the root, such as "docs/start.md".
    """
    page = (ROOT / name).read_text(encoding="utf-8")
    is_reference = name in look_up() or name.startswith("docs/privacy-proofs/")
    prose = [] if name in UNREAD else breaks(page, not is_reference)
    excepted = [each for each in accepted() if each["page"] == name]
    kept = [
        found
        for found in prose
        if not any(
            found.rule == each["rule"] and found.text.startswith(each["begins"])
            for each in excepted
        )
    ]
    return [*kept, *dead_links(name, page)]


@cache
def accepted() -> tuple[dict[str, str], ...]:
    """Return the exceptions, each with its page, its rule, how it begins and because of what."""
    return tuple(tomllib.loads(ACCEPTED.read_text(encoding="utf-8")).get("exceptions", ()))


@cache
def look_up() -> frozenset[str]:
    """Return the pages to look something up, which need no example on their first screen."""
    return frozenset(tomllib.loads(ACCEPTED.read_text(encoding="utf-8"))["look_up"])


def counts_accepted() -> dict[str, Counter[str]]:
    """Return how often each page may break each rule."""
    counts = tomllib.loads(ACCEPTED.read_text(encoding="utf-8"))["counts"]
    return {name: Counter(rules) for name, rules in counts.items()}


def counts_now() -> dict[str, Counter[str]]:
    """Return how often each page breaks each rule."""
    names = [page.relative_to(ROOT).as_posix() for page in PAGES]
    return {name: Counter(found.rule for found in breaks_of(name)) for name in names}


def worse(before: Mapping[str, Counter[str]], now: Mapping[str, Counter[str]]) -> list[str]:
    """Return what each page breaks more often than it may.

    >>> worse({"a.md": Counter(long=1)}, {"a.md": Counter(long=2), "b.md": Counter(long=1)})
    ['a.md: sentence over 28 words: 2, not 1', 'b.md: sentence over 28 words: 1, not 0']
    """
    return [
        f"{name}: {RULES[rule]}: {number}, not {before.get(name, Counter())[rule]}"
        for name, rules in now.items()
        for rule, number in rules.items()
        if number > before.get(name, Counter())[rule]
    ]


def renewed(before: Mapping[str, Counter[str]], now: Mapping[str, Counter[str]]) -> str:
    """Return the lines of `style.toml` with the counts of today.

    A text may move from page to page: of each rule, the sum over all pages may not grow.

    Raises:
        ValueError: a sum grew.
    """
    was, is_ = sum(before.values(), Counter[str]()), sum(now.values(), Counter[str]())
    grown = [
        f"{RULES[rule]}: {is_[rule]}, {was[rule]} before" for rule in RULES if is_[rule] > was[rule]
    ]
    if grown:
        raise ValueError("\n".join(grown))
    pages = []
    for name, rules in sorted(now.items()):
        counts = ", ".join(f"{rule} = {rules[rule]}" for rule in RULES if rules[rule])
        pages += [f'"{name}" = {{ {counts} }}\n'] if counts else []
    return "".join(pages)


def slug(heading: str) -> str:
    """Return the anchor of a heading, as repositories and the site make it.

    >>> slug("What goes *with* `--what`?")
    'what-goes-with---what'
    """
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


@cache
def anchors(path: Path) -> frozenset[str]:
    """Return the anchors of a page: its headings, and names that it gives itself."""
    page = path.read_text(encoding="utf-8")
    used: Counter[str] = Counter()
    found = set(re.findall(r'^\((\w[\w-]*)\)=$|\b(?:id|name)="([^"]+)"', page, re.MULTILINE))
    named = {name for pair in found for name in pair if name}
    for opening, token in pairwise(_parse(page)):
        if opening.type == "heading_open":
            text = "".join(child.content for child in token.children or [])
            here = slug(text)
            named.add(f"{here}-{used[here]}" if used[here] else here)
            used[here] += 1
    return frozenset(named)


def dead_links(name: str, page: str) -> Iterator[Break]:
    """Yield the links of a page, within the repository, that lead to no file or to no heading."""
    home = ROOT / name
    for token in _parse(page):
        for child in token.children or []:
            target = child.attrGet("href" if child.type == "link_open" else "src")
            if child.type not in ("link_open", "image") or not isinstance(target, str):
                continue
            file, _, anchor = target.partition("#")
            if "://" in target or target.startswith("mailto:"):
                continue
            if not _leads(home.parent / file if file else home, anchor):
                yield Break("link", (token.map or [0])[0] + 1, target)


def dead_names() -> Iterator[str]:
    """Yield the names of pages, in the source and what it prints, that lead nowhere."""
    for pattern in NAMING:
        for path in sorted(ROOT.glob(pattern)):
            yield from dead_names_in(path.relative_to(ROOT).as_posix(), path.read_text("utf-8"))


def dead_names_in(name: str, text: str) -> Iterator[str]:
    """Yield the names of pages in a text, such as `docs/plan.md#files`, that lead nowhere."""
    for found in re.finditer(r"\bdocs/([\w/-]+\.(?:md|svg|png))(?:#([\w-]+))?", text):
        if not _leads(ROOT / "docs" / found[1], found[2] or ""):
            yield f"{name}:{text.count(chr(10), 0, found.start()) + 1}: {found[0]}"


def _leads(path: Path, anchor: str) -> bool:
    return path.exists() and (not anchor or path.suffix != ".md" or anchor in anchors(path))


def _parse(page: str) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(page)


def _of_sentences(tokens: list[Token]) -> Iterator[Break]:
    parts = [token.map[0] for token in tokens if token.tag == "h2" and token.map]
    for line, text in _paragraphs(tokens):
        for sentence in _END.sub(lambda end: f"{end.group()}\0", text).split("\0"):
            one_line = " ".join(sentence.split())
            if _INTRODUCTION.match(one_line) and not any(part < line for part in parts):
                yield Break("introduction", line, one_line)
            if _words(sentence) > MOST_WORDS:
                yield Break("long", line, one_line)
            if _CHAIN.search(one_line):
                yield Break("chain", line, one_line)
            if len(_IF.findall(sentence)) > 1:
                yield Break("ifs", line, one_line)
            line += sentence.count("\n")


def _of_abbreviations(tokens: list[Token]) -> Iterator[Break]:
    for opening, token in pairwise(tokens):
        if opening.type in ("paragraph_open", "td_open", "th_open"):
            line = (opening.map or token.map or [0])[0] + 1
            for name in _ABBREVIATION.findall(_read(token)):
                if name not in _KNOWN | abbreviations():
                    yield Break("abbreviation", line, name)


@cache
def terms() -> tuple[str, ...]:
    """Return the terms of the glossary: its headings of the third level that ask nothing."""
    path = ROOT / GLOSSARY
    page = path.read_text(encoding="utf-8") if path.exists() else ""
    return tuple(re.findall(r"^### (.+[^?\n])$", page, re.MULTILINE))


@cache
def abbreviations() -> frozenset[str]:
    """Return the abbreviations of the glossary: what is bold where a point of a list begins."""
    path = ROOT / GLOSSARY
    page = path.read_text(encoding="utf-8") if path.exists() else ""
    return frozenset(re.findall(r"^- \*\*([^*]+)\*\*", page, re.MULTILINE))


def unused_terms() -> list[str]:
    """Return the terms and abbreviations of the glossary that no other page uses."""
    names = [page for page in PAGES if page != ROOT / GLOSSARY and page.name not in UNREAD]
    text = "\n".join(page.read_text(encoding="utf-8") for page in names).lower()
    every = [*terms(), *sorted(abbreviations())]
    return [term for term in every if not re.search(rf"\b{re.escape(term.lower())}", text)]


def _of_cells(tokens: list[Token]) -> Iterator[Break]:
    for opening, token in pairwise(tokens):
        if opening.type in ("td_open", "th_open"):
            text = _read(token)
            if _words(text) > MOST_IN_CELL:
                yield Break("cell", (opening.map or token.map or [0])[0] + 1, text)
            if _CHAIN.search(text):
                yield Break("chain", (opening.map or token.map or [0])[0] + 1, text)


def _of_example(tokens: list[Token]) -> Iterator[Break]:
    for token in tokens:
        is_picture = any(child.type == "image" for child in token.children or [])
        is_picture |= token.type == "html_block" and "<img" in token.content
        if token.type == "fence" or is_picture:
            if token.map and token.map[0] + 1 > FIRST_EXAMPLE:
                yield Break("example", token.map[0] + 1, "the first code or picture")
            return
    yield Break("example", 1, "neither code nor a picture")


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


def show(names: list[str]) -> None:
    """Print the breaks of the pages of these names, or a table of all pages."""
    for name in names:
        for found in breaks_of(name):
            print(f"{name}:{found.line}: {RULES[found.rule]}: {found.text}")
    if names:
        return
    now = counts_now()
    for name, rules in now.items():
        print(f"{rules.total():4}  {name}")
    print()
    sums = sum(now.values(), Counter[str]())
    for rule, text in RULES.items():
        print(f"{sums[rule]:4}  {text}")
    wordy = len(list(wordy_options(cli, "fedtally")))
    print(f"{wordy:4}  option described in over {MOST_IN_HELP} words")


def faults() -> list[str]:
    """Return everything that `--check` refuses, a line each."""
    return [
        *worse(counts_accepted(), counts_now()),
        *(f"{place}: leads nowhere" for place in dead_names()),
        *(f"{GLOSSARY}: {term}: no page uses it" for term in unused_terms()),
    ]


def renew() -> int:
    """Write the counts of today; return the exit code."""
    try:
        lines = renewed(counts_accepted(), counts_now())
    except ValueError as error:
        print(error)
        return 1
    head = ACCEPTED.read_text(encoding="utf-8").partition("[counts]\n")[0]
    ACCEPTED.write_text(f"{head}[counts]\n{lines}", encoding="utf-8")
    return 0


def main(arguments: list[str]) -> int:
    """Run the command line."""
    if arguments == ["--renew"]:
        return renew()
    if arguments == ["--check"]:
        found = faults()
        print("\n".join(found) or "no page breaks a rule more often than it may")
        return int(bool(found))
    if any(each.startswith("-") for each in arguments):
        print(__doc__)
        return int(arguments != ["--help"])
    show(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
