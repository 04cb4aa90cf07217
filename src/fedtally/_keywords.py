"""Messages that name options of the command line, as a caller in Python must read them."""

from __future__ import annotations

import re

# A command in full stays as it is; an option becomes a keyword, with its value where it has one.
_OPTION = re.compile(
    r"(?P<command>fedtally [a-z]+(?: [a-z]+)?(?: --[a-z-]+ \S+)+)"
    r"|--(?P<name>[a-z]+(?:-[a-z]+)*)"
    r"(?: (?P<value>[0-9][0-9.]*|[A-Z]+)\b"
    r"|(?<=format|coding|sizing|covery|domain) (?P<text>[a-z][a-z0-9-]*)"
    r"|(?P<absent>))"
)
_KEYWORDS = {
    "rounds": "num_rounds",
    "text_encoding": "encoding",
}  # options whose keywords have other names
_FLAGS = ("allow_rare_names", "certify", "evaluate", "not_private")


def in_python(message: str) -> str:
    """Return a message for a caller in Python: with keywords in place of options.

    >>> in_python("declare the dictionary or use --domain input (--not-private)")
    "declare the dictionary or use domain='input' (not_private=True)"
    >>> in_python("--max-items 3 counts all; leave num_rounds (--rounds) out")
    'max_items=3 counts all; leave num_rounds out'
    >>> in_python("which column is the item? (--item)")
    'which column is the item? (item=...)'
    >>> in_python("try fedtally ledger grant --ledger books.db")
    'try fedtally ledger grant --ledger books.db'
    """

    def keyword(found: re.Match[str]) -> str:
        if found["command"]:
            return found["command"]
        name = found["name"].replace("-", "_")
        name = _KEYWORDS.get(name, name)
        if name in _FLAGS:
            return f"{name}=True"
        value = found["value"] or (found["text"] and repr(found["text"]))
        return f"{name}={value}" if value else name

    spoken = re.sub(r"\b(\w+) \(\1\)", r"\1", _OPTION.sub(keyword, message))
    return re.sub(r"\((item|client|memory)\)", r"(\1=...)", spoken)
