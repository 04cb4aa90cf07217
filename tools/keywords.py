"""Write out what is made of `fedtally.options`: keywords of functions, fields, and docs/options.md.

    python tools/keywords.py           # write them
    python tools/keywords.py --check   # exits 1 where they differ, and prints how

Keywords are written out, so that an editor completes each with its default. In a file they stand
between two comments, `# keywords:` and `# end of keywords`. Their entries under Args are written,
too; other entries stay as they are.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from fedtally.options import (
    OPTIONS,
    REQUIRED,
    SECTIONS,
    Door,
    NamedOption,
    keywords_of,
    options_of,
    spoken,
)

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "fedtally"
PAGE = ROOT / "docs" / "options.md"
START, END = "# keywords: written by tools/keywords.py", "# end of keywords"
WIDTH = 100


class Written(NamedTuple):
    """A function, or a class, whose keywords are written.

    Args:
        path: the file, below src/fedtally.
        name: the name of the function or class.
        options: the options that it takes, as it has them.
    """

    path: str
    name: str
    options: tuple[NamedOption, ...]


def _of(name: str, *doors: Door) -> tuple[NamedOption, ...]:
    """Return the options that Python takes by these doors, as a class has them, if it differs."""
    return tuple(OPTIONS[known].places.get(name, OPTIONS[known]) for known in keywords_of(*doors))


def written() -> tuple[Written, ...]:
    """Return all functions and classes whose keywords are written."""
    local, frames = "simulation", "simulation/dataframe"
    every = (Door.SOURCE, Door.REQUEST, Door.MARK, Door.SIMULATION)
    return (
        Written(f"{local}/estimate.py", "estimate", _of("", *every)),
        Written(f"{local}/partitions.py", "partial_tally", tuple(options_of("partial_tally"))),
        Written(f"{frames}/dask.py", "tally_dask", tuple(options_of("tally_dask"))),
        Written(f"{frames}/spark.py", "tally_spark", tuple(options_of("tally_spark"))),
        Written("plan/request.py", "Request", _of("Request", Door.REQUEST)),
        Written(f"{local}/simulation.py", "Simulation", _of("Simulation", Door.SIMULATION)),
    )


def _keyword(known: NamedOption) -> str:
    default = f'"{known.default}"' if isinstance(known.default, str) else repr(known.default)
    return f"{known.name}: {known.type} = {default}"


def _in_python(text: str) -> str:
    return spoken(text, lambda known: f"`{known.name}`")


def _entry(known: NamedOption) -> str:
    """Return the entry of an option under Args."""
    return textwrap.fill(
        f"{known.name}: {_in_python(known.more)}.",
        WIDTH,
        initial_indent=" " * 8,
        subsequent_indent=" " * 12,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _with_keywords(text: str, options: Iterable[NamedOption], comma: str) -> str:
    """Return a part of a file with its keywords between the two comments."""
    found = re.search(rf"^( *){START}\n.*?^ *{END}$", text, re.M | re.S)
    if found is None:
        raise ValueError(f"no {START} ... {END}")
    lines = [START, *(f"{_keyword(known)}{comma}" for known in options), END]
    block = "\n".join(f"{found[1]}{line}" for line in lines)
    return text[: found.start()] + block + text[found.end() :]


def _with_entries(text: str, options: Iterable[NamedOption]) -> str:
    """Return a docstring's part of a file with the entries of options under Args."""
    known = {one.name: _entry(one) for one in options}
    start = text.index("    Args:\n") + len("    Args:\n")
    end = text.index("\n\n", start)
    entries = re.split(r"\n(?=        \w)", text[start:end])
    names = [entry.strip().partition(":")[0] for entry in entries]
    place = next((at for at, name in enumerate(names) if name in known), len(entries))
    kept = [
        (at, entry)
        for at, (name, entry) in enumerate(zip(names, entries, strict=True))
        if name not in known
    ]
    before = [entry for at, entry in kept if at < place]
    after = [entry for at, entry in kept if at >= place]
    return text[:start] + "\n".join([*before, *known.values(), *after]) + text[end:]


def with_keywords(text: str, here: Written) -> str:
    """Return the text of a file with the keywords of one function or class.

    Raises:
        ValueError: the file has no such function or class, or no two comments in it.
    """
    found = re.search(rf"^(def|class) {here.name}\b", text, re.M)
    if found is None:
        raise ValueError(f"{here.path} has no {here.name}")
    part = text[found.start() :]
    is_function = found[1] == "def"
    part = _with_keywords(part, here.options, "," if is_function else "")
    if is_function:
        part = _with_entries(part, here.options)
    return text[: found.start()] + part


# ---- the page ----

_HEAD = """\
# Options

Every option that commands share, and every keyword of `fedtally.estimate`, with its default.
Options of one command alone are in its `--help`.
The most used ones come first, in each section and among the sections.

<!-- generated by tools/keywords.py from src/fedtally/options.py -->

| section | what its options say |
|---|---|
"""


def _flag(known: NamedOption) -> str:
    return known.flag or known.name


def _on_page(text: str) -> str:
    return spoken(text, lambda known: f"`{_flag(known)}`")


def _value(known: NamedOption) -> str:
    check = known.check
    if check.choices:
        names = [f"`{choice}`" for choice in check.choices]
        return f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else names[0]
    return f"`{check.metavar}`" if check.metavar else "none: it is on or off"


def _sentence(text: str) -> str:
    text = _on_page(text)
    return text[0].upper() + text[1:] + "." * (not text.endswith("."))


def _places(known: NamedOption) -> Iterator[str]:
    """Yield the commands that have an option, each with what is different there."""
    for place, here in known.places.items():
        if place in _FUNCTIONS:
            continue
        own = []
        if here.help != known.help:
            own.append(_on_page(here.help[0].lower() + here.help[1:]))
        if here.shown_default() != known.shown_default() and here.shown_default():
            own.append(f"default {_on_page(here.shown_default())}")
        if here.default is REQUIRED:
            own.append("required")
        yield f"`{place}`" + (f" ({'; '.join(own)})" if own else "")


_FUNCTIONS = ("partial_tally", "tally_dask", "tally_spark", "Request")


def _item(known: NamedOption) -> str:
    """Return the part of the page on one option."""
    where = "" if known.flag else " in Python"
    lines = [f"### `{_flag(known)}`{where}", "", _sentence(known.help), ""]
    if known.flag:
        lines.append(f"- Value: {_value(known)}.")
    if default := known.shown_default():
        lines.append(f"- Default: {_on_page(default)}.")
    if commands := list(_places(known)):
        lines.append(f"- Commands: {', '.join(commands)}.")
    if known.door is not Door.NONE:
        lines.append(f"- Python: `{_keyword(known)}`.")
    if known.more:
        lines.append(f"- In full: {_on_page(known.more)}.")
    return "\n".join(lines) + "\n"


def page() -> str:
    """Return the page of all options."""
    rows, parts = [], []
    for section in SECTIONS:
        name = section.__name__
        rows.append(f"| [{name}](#{name.lower()}) | {(section.__doc__ or '').strip()} |\n")
        items = [_item(known) for known in OPTIONS.values() if known.section == name]
        parts.append("\n".join([f"\n## {name}\n", *items]))
    return _HEAD + "".join(rows) + "".join(parts) + "\n<!-- end -->\n"


# ---- files ----


def files() -> dict[Path, str]:
    """Return what is written, by file."""
    texts = {PAGE: page()}
    for here in written():
        path = SOURCE / here.path
        texts[path] = with_keywords(texts.get(path) or path.read_text("utf-8"), here)
    return texts


def difference(read: Callable[[Path], str] = lambda path: path.read_text("utf-8")) -> str:
    """Return how the files differ from what is made of the options; empty: they do not."""
    return "".join(
        line
        for path, text in files().items()
        for line in difflib.unified_diff(
            read(path).splitlines(keepends=True),
            text.splitlines(keepends=True),
            str(path.relative_to(ROOT)),
            "from fedtally.options",
        )
    )


def main() -> int:
    """Write the files, or check them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="exit with 1 where a file differs")
    if parser.parse_args().check:
        found = difference()
        print(found, end="")
        return bool(found)
    for path, text in files().items():
        path.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
