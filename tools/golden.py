"""What commands print and save, kept word for word, so that a change shows what it moves.

    python tools/golden.py --check           # exits 1 where an answer differs, and prints how
    python tools/golden.py --renew           # write the answers anew: look at them with git diff
    python tools/golden.py --renew help      # those of one file

Each file in tests/golden/ is a list of commands, each behind `$ `, with their answers:

- `plans.txt`: the plan that a command writes, with its fingerprint;
- `answers.txt`: the JSON that a command prints, and the digest of the result that it saves;
- `help.txt`: the help of every command.

To add a plan or an answer, write its `$ ` line there and renew. Known answers of formats and
protocols, and the schemas of databases, are in tests/vectors/.

What depends on the machine is left out: seconds, and digits of numbers beyond the sixth. Only the
fingerprints have all digits: `--check` compares them, so compare on the machine that wrote the
files, and the tests do not. Commands run in this process, in a folder that holds the files of
`fedtally sample`.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import io
import json
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "golden"
FILES = ("plans", "answers", "help")
WIDTH = 100  # of a line of JSON; a longer value has a line for each of its parts
# Entries that differ from run to run.
MEASURED = frozenset(("timings", "client_seconds", "server_seconds", "time"))
_PLAN, _SAVED = "plan.json", "result.fedtally"


def shown(value: Any, indent: int = 0) -> str:
    """Return JSON as text that is easy to compare: what fits into a line stands in one."""
    line = json.dumps(value, ensure_ascii=False)
    if len(line) + indent <= WIDTH or not value or not isinstance(value, (dict, list)):
        return line
    inner = " " * (indent + 1)
    if isinstance(value, dict):
        parts = [f"{json.dumps(name)}: {shown(part, indent + 1)}" for name, part in value.items()]
    else:
        parts = [shown(part, indent + 1) for part in value]
    ends = "{}" if isinstance(value, dict) else "[]"
    return f"{ends[0]}\n{inner}" + f",\n{inner}".join(parts) + f"\n{' ' * indent}{ends[1]}"


def stable(value: Any) -> Any:
    """Return a value without what depends on the machine."""
    if isinstance(value, dict):
        return {name: stable(part) for name, part in value.items() if name not in MEASURED}
    if isinstance(value, list):
        return [stable(part) for part in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _run(arguments: Sequence[str]) -> str:
    """Return what a command prints, and its exit code where that is not 0."""
    from fedtally.cli.app import run

    out, errors = io.StringIO(), io.StringIO()
    typed = patch.object(sys, "argv", ["fedtally", *arguments])  # a result keeps it
    # a session is named after the second it begins in, and its ring of clients after its name
    clock = patch("time.time", return_value=1.8e9)
    with redirect_stdout(out), redirect_stderr(errors), typed, clock:
        code = run(arguments)
    return out.getvalue() if code == 0 else f"{errors.getvalue()}exit code {code}\n"


def plan(arguments: Sequence[str]) -> str:
    """Return the plan that a command writes, or why it does not."""
    text = _run([*arguments, "--seed", "1", "-o", _PLAN])
    path = Path(_PLAN)
    if not path.exists():
        return text
    text = path.read_text("utf-8")
    path.unlink()
    return shown(stable(json.loads(text))) + "\n"


def answer(arguments: Sequence[str]) -> str:
    """Return the JSON that a command prints, and the digest of the result that it saves."""
    text = _run(arguments)
    with suppress(json.JSONDecodeError):  # an error has its exit code behind it
        text = shown(stable(json.loads(text))) + "\n"
    names = [name for name in arguments if name.endswith(".fedtally") and "--save" in arguments]
    return text + "".join(f"{name}: {saved(Path(name))}\n" for name in names)


def saved(path: Path) -> str:
    """Return the digest of a saved result, without what depends on the machine."""
    import numpy as np

    digest = hashlib.sha256()
    with np.load(path, allow_pickle=False) as archive:
        for name in archive.files:
            array = archive[name]
            if name == "header":
                text = shown(stable(json.loads(array.tobytes())))
            elif not name.startswith("fit_"):  # the fit of a decoder: floats, in their order
                text = f"{array.dtype} {array.shape} {array.tobytes().hex()}"
            else:
                continue
            digest.update(f"{name} {text}\n".encode())
    return digest.hexdigest()


def commands() -> Iterator[tuple[str, ...]]:
    """Yield the words of every command: `()` is `fedtally` itself."""
    import click

    from fedtally.cli.app import cli

    def below(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield words
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                if inner is not None:
                    yield from below(inner, (*words, name))

    yield from below(cli, ())


def blocks(text: str) -> dict[str, str]:
    """Return the commands of a file, and their answers."""
    parts = (part.partition("\n") for part in f"\n{text}".split("\n$ ")[1:])
    return {command: f"{said.rstrip()}\n" for command, _, said in parts}


def lines_of(name: str) -> list[str]:
    """Return the commands of a file: those it lists, or all there are."""
    if name == "help":
        return [shlex.join(["fedtally", *words, "--help"]) for words in commands()]
    return list(blocks((FOLDER / f"{name}.txt").read_text("utf-8")))


def transcript(name: str, part: slice = slice(None)) -> str:
    """Return a file as it is now: its commands, or some, with the answers that they give."""
    answers = {"plans": plan, "answers": answer, "help": _run}[name]
    # nothing of the user's: a terminal of 80 columns, no cache
    mine = {"COLUMNS": "80", "NO_COLOR": "1"}
    with tempfile.TemporaryDirectory() as folder, chdir(folder), patch.dict(os.environ, mine):
        os.environ["XDG_CACHE_HOME"] = f"{folder}/.cache"
        _run(["sample", "."])
        now = {line: answers(shlex.split(line)[1:]) for line in lines_of(name)[part]}
    return _joined(now)


def _joined(answers: dict[str, str]) -> str:
    return "\n".join(f"$ {line}\n{said.rstrip()}\n" for line, said in answers.items())


_FINGERPRINT = re.compile(r'("fingerprint": |fingerprint )"?[0-9a-f]+"?')
_DIGEST = re.compile(r"(\.fedtally: )[0-9a-f]{64}")


def _without_last_digits(*versions: dict[str, str]) -> list[dict[str, str]]:
    """Leave fingerprints out, and digests of results whose plans have others in each version."""
    found: list[dict[str, str]] = [{} for _ in versions]
    for line in dict.fromkeys(line for version in versions for line in version):
        said = [version.get(line, "") for version in versions]
        is_one = len({tuple(_fingerprints(each)) for each in said}) == 1
        for kept, text, version in zip(found, said, versions, strict=True):
            if line in version:
                text = text if is_one else _DIGEST.sub(r"\1...", text)
                kept[line] = _FINGERPRINT.sub(r"\1...", text)
    return found


def _fingerprints(text: str) -> list[str]:
    return [found.group(0) for found in _FINGERPRINT.finditer(text)]


def difference(name: str, part: slice = slice(None), *, is_exact: bool = True) -> str:
    """Return how a file, or some of its commands, differs from what they answer now.

    Args:
        name: one of `FILES`.
        part: which of its commands are run.
        is_exact: whether fingerprints count. They have the last digit of every number of a plan,
            which another processor or library may compute otherwise. A saved result holds the
            fingerprint of its plan: where that is another one, so is the result's digest.
    """
    path = FOLDER / f"{name}.txt"
    before = dict(list(blocks(path.read_text("utf-8")).items())[part])
    now = blocks(transcript(name, part))
    if not is_exact:
        before, now = _without_last_digits(before, now)
    texts = [_joined(before), _joined(now)]
    return "".join(
        difflib.unified_diff(
            *(text.splitlines(keepends=True) for text in texts),
            f"tests/golden/{name}.txt",
            "now",
        )
    )


def main() -> int:
    """Check the files, or write them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="*", choices=[*FILES, []], metavar="FILE")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--check", action="store_true", help="exit with 1 where an answer differs")
    what.add_argument("--renew", action="store_true", help="write the answers anew")
    options = parser.parse_args()
    status = 0
    for name in options.files or FILES:
        if options.renew:
            (FOLDER / f"{name}.txt").write_text(transcript(name), "utf-8")
        elif found := difference(name):
            print(found, end="")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
