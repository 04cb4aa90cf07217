"""Write the lists of docs/troubleshooting.md: what is refused, and the way out of it.

    python tools/gen_messages.py          # rewrites what stands between the page's markers
    python tools/gen_messages.py --check  # writes nothing; exits 1 where the page differs

The messages are those of errors that the source raises, as it writes them. A value that a message
names stands in capitals. Messages of protocols to each other, and those that only a bound ends,
are left out.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from fedtally.errors import flag

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "fedtally"
PAGE = ROOT / "docs" / "troubleshooting.md"
MARKERS = re.compile(r"(<!-- generated: messages -->\n).*?(<!-- end -->)", re.DOTALL)
# A heading of the page, and the folders whose messages stand below it.
AREAS = {
    "Reading tables": ("sources", "domain"),
    "Estimating": ("simulation", "recovery", "sketch"),
    "Answers": ("answer",),
    "Plans": ("plan",),
    "Privacy": ("privacy",),
    "Campaigns": ("campaign", "store"),
    "Agents": ("agent",),
    "Secure sums and two servers": ("secagg", "crypto"),
    "DAP": ("dap",),
    "Commands": ("cli", "options.py"),
    "Studies": ("studies",),
}
# How a way out begins, behind a colon or a semicolon.
VERBS = (
    "abort accept add agree allow ask audit begin bring call cast change check chmod choose close"
    " compare convert count cp create declare decode delete divide drain draw end enrol estimate"
    " evaluate export fedtally fetch fill find finish free get give grant guarantee hand install"
    " join keep leave let list look lower make mark merge mount move name narrow open or pass pick"
    " pip plan print propose put raise read reduce remove rename repeat replace report rerun"
    " reserve restart restore resume retry revoke run save say scale see send set setfacl shorten"
    " show sign sort split start stop store take tell try turn update upgrade use wait widen write"
)
_WAY = re.compile(rf"[:;] (?=(?:{'|'.join(VERBS.split())})\b)")


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 on differences")
    asked = parser.parse_args()
    page = PAGE.read_text(encoding="utf-8")
    new = generate(page)
    if asked.check and new != page:
        print(f"{PAGE.name} is not what the source says; run python tools/gen_messages.py")
        return 1
    if not asked.check:
        PAGE.write_text(new, encoding="utf-8")
    return 0


def generate(page: str) -> str:
    """Return the page with the messages of today's source."""
    parts = [f"### {area}\n\n{''.join(lines(folders))}" for area, folders in AREAS.items()]
    text = "\n".join(parts)
    found, number = MARKERS.subn(lambda markers: f"{markers[1]}\n{text}{markers[2]}", page)
    if number != 1:
        raise ValueError(f"{PAGE.name} must have one pair of markers, got {number}")
    return found


def lines(folders: tuple[str, ...]) -> list[str]:
    """Return a line for each message of these folders that has a way out, in their order."""
    paths = [path for name in folders for path in _files(PACKAGE / name)]
    texts = {text for path in paths for text in messages(path.read_text(encoding="utf-8"))}
    ways = sorted({line for text in texts if (line := with_way(text))}, key=_order)
    return [f"- {line}\n" for line in ways]


def with_way(text: str) -> str | None:
    """Return a message with its way out in bold; None: it has none.

    >>> with_way("`FILE` is a folder without files: name a file or a folder")
    '`FILE` is a folder without files: **name a file or a folder**'
    >>> with_way("`width` must be at least 1, got `VALUE`")
    """
    way = _WAY.search(text)
    return way and f"{text[: way.end()]}**{text[way.end() :].strip()}**"


def messages(source: str) -> Iterator[str]:
    """Yield what the errors of a file say, with values in capitals.

    >>> code = 'raise Error(f"{opt.seed} is odd, got {value!r}; leave {opt.seed} out")'
    >>> list(messages(code))
    ['`--seed` is odd, got `VALUE`; leave `--seed` out']
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            yield re.sub(r"\s+", " ", _text(node.exc.args[0]))


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


def _order(line: str) -> tuple[str, str]:
    words = re.sub(r"[^a-z ]", "", re.sub(r"`[A-Z_]+`", "", line).lower()).strip()
    return words, line


def _text(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text.replace("*", r"\*").replace("<", r"\<")
        case ast.JoinedStr(values=values):
            return "".join(map(_text, values))
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _text(left) + _text(right)
        case ast.FormattedValue(value=value):
            return _value(value)
        case _:
            return "..."


def _value(node: ast.expr) -> str:
    match node:
        case ast.Attribute(value=ast.Name(id="opt"), attr=name):
            return f"`{flag(name)}`"
        case ast.Attribute(value=ast.Name(id="arg"), attr=name):
            return f"`{name}`"
        case ast.Call(func=ast.Attribute(value=ast.Name(id="opt"), attr=name), args=[given]):
            value = given.value if isinstance(given, ast.Constant) else "..."
            return f"`{flag(name)}`" if value is True else f"`{flag(name)} {value}`"
        case ast.Call(func=ast.Name(id="word"), args=[path]):  # a path in a shell command
            return _value(path)
        case ast.Name(id="self"):
            return "..."
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return f"`{name.strip('_').upper()}`"
        case _:
            return "..."


if __name__ == "__main__":
    sys.exit(main())
