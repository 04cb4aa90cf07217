"""Messages that name keywords or options, in the words of Python or of the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping

# A command in full stays as it is; an option becomes a keyword, with its value where it has one.
_OPTION = re.compile(
    r"(?P<command>fedtally [a-z]+(?: [a-z]+)?(?: --[a-z-]+ \S+)+)"
    r"|--(?P<name>[a-z]+(?:-[a-z]+)*)"
    r"(?: (?P<value>[0-9][0-9.]*|[A-Z]+)\b"
    r"|(?<=format|coding|sizing|covery|domain|ledger|lation|utside)"
    r" (?P<text>[a-z][a-z0-9-]*(?:\.[a-z]+)?)"
    r"|(?P<absent>))"
)
_KEYWORDS = {
    "rounds": "num_rounds",
    "text_encoding": "encoding",
}  # options whose keywords have other names
_OPTIONS = {keyword: option for option, keyword in _KEYWORDS.items() if "_" in keyword}
# Where a word without an underscore is a keyword, and no word of English: "seed is not for ...".
_PLACES = (
    r"^[a-z]+(?= (?:(?:refuse|warn) )?(?:must be|cannot be|goes with|is not for)\b)",
    r"(?<=\buse )validity(?= none\b)",
    r"(?<=\bleave )[a-z]+(?= (?:or [a-z_]+ )?out\b)",
    r"(?<=\bgoes with )[a-z]+\b",
)
# Neither what is quoted, nor a part of a file's name or of an assignment.
_JOINED = r"(?<![\w'\"./=-])[a-z]+_[a-z_]+\b(?![./='\"])"
_KEYWORD = re.compile("|".join((*_PLACES, _JOINED)))
_FLAGS = ("allow_rare_names", "certify", "evaluate", "not_private")


def in_python(message: str) -> str:
    """Return a message for a caller in Python: with keywords in place of options.

    >>> in_python("declare the dictionary or use --domain input (--not-private)")
    "declare the dictionary or use domain='input' (not_private=True)"
    >>> in_python("--max-items 3 counts all; leave num_rounds (--rounds) out")
    'max_items=3 counts all; leave num_rounds out'
    >>> in_python("which column is the item? (--item)")
    'which column is the item? (item=...)'
    >>> in_python("leave out what is outside (--outside drop)")
    "leave out what is outside (outside='drop')"
    >>> in_python("try fedtally ledger grant --ledger books.db")
    'try fedtally ledger grant --ledger books.db'
    >>> in_python("name both (--ledger books.db --population phones)")
    "name both (ledger='books.db', population='phones')"
    """

    def keyword(found: re.Match[str]) -> str:
        if found["command"]:
            return found["command"]
        name = found["name"].replace("-", "_")
        name = _KEYWORDS.get(name, name)
        if name in _FLAGS:
            return f"{name}=True"
        value = found["value"] or (found["text"] and repr(found["text"]))
        comma = "," * message.startswith(" --", found.end())  # between two keywords
        return f"{name}={value}{comma}" if value else name

    spoken = re.sub(r"\b(\w+) \(\1\)", r"\1", _OPTION.sub(keyword, message))
    return re.sub(r"\((item|client|memory)\)", r"(\1=...)", spoken)


def in_options(message: str, options: Mapping[str, str]) -> str:
    """Return a message for the command line: with options in place of keywords.

    Args:
        message: the message, in the words of Python or of the command line.
        options: the options of the command by their keywords.

    >>> options = {"seed": "--seed", "not_private": "--not-private", "rounds": "--rounds"}
    >>> in_options("seed is not for a private run; mark it with not_private", options)
    '--seed is not for a private run; mark it with --not-private'
    >>> in_options("leave num_rounds (--rounds) out", options)
    'leave --rounds out'
    >>> in_options("no column 'not_private' in not_private.csv, drawn from a seed", options)
    "no column 'not_private' in not_private.csv, drawn from a seed"
    """

    def option(found: re.Match[str]) -> str:
        name = found[0]
        return options.get(name) or options.get(_OPTIONS.get(name, ""), name)

    return re.sub(r"(--[a-z-]+) \(\1\)", r"\1", _KEYWORD.sub(option, message))
