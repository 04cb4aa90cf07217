"""Check a release as a stranger: believe nothing that can be made again.

    python tools/stranger.py DIST                    # the folder of a release; minutes
    python tools/stranger.py DIST --tests tests/unit/test_kernels.py
    python tools/stranger.py DIST --no-build         # without a second build

DIST holds what `tools/release.py --out DIST` made: SHA256SUMS, the sdist and the wheels. The steps,
of which the first that fails ends the run: all hashes; the bytes of a second build of this commit;
the manylinux tag that auditwheel grants; an empty environment, into which pip installs the wheel
and all it needs by hash, where every compiler is /bin/false; `fedtally --version`, which must name
compiled kernels; the demo; and tests, which are taken from the sdist.

Needs what a release needs (`pip install '.[release]'`), and nothing of a package that is installed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import release

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements" / "test.txt"
TESTS = ("tests/unit", "tests/protocol")  # the usual loop: what is slow is left out
NO_COMPILER = {"CC": "/bin/false", "CXX": "/bin/false"}


def own_wheel(dist: Path) -> Path:
    """Return the wheel for this machine and this Python.

    Raises:
        Refused: there is none, or more than one.
    """
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    found = [
        wheel
        for wheel in sorted(dist.glob(f"*_{platform.machine()}.whl"))
        if f"-{tag}-" in wheel.name or ("-abi3-" in wheel.name and tag != "cp311")
    ]
    if len(found) != 1:
        raise release.Refused(f"{dist} has {len(found)} wheels for {tag} here; one is needed")
    return found[0]


def hashes(dist: Path) -> str:
    """Check that the hashes are those of SHA256SUMS, of every file in the folder."""
    said: dict[str, str] = {}
    for line in (dist / "SHA256SUMS").read_text(errors="replace").splitlines():
        found = re.fullmatch(r"([0-9a-f]{64})  ([^/]+)", line)
        if found is None or found[2] in said:
            raise release.Refused(f"SHA256SUMS has a line that is none, or a file twice: {line!r}")
        said[found[2]] = found[1]
    files = {path.name for path in dist.iterdir()} - {"SHA256SUMS"}
    if set(said) != files:
        odd = sorted(set(said) ^ files)[0]
        raise release.Refused(f"{odd} is in SHA256SUMS or in {dist}, but not in both")
    for name, digest in said.items():
        if hashlib.sha256((dist / name).read_bytes()).hexdigest() != digest:
            raise release.Refused(f"{name} has another hash than SHA256SUMS says: do not use it")
    return f"{len(said)} files"


def second_build(dist: Path) -> str:
    """Build this commit again, and compare the bytes of sdist and wheel."""
    when = release.Release(ROOT).run("git", "log", "-1", "--format=%ct")
    with tempfile.TemporaryDirectory() as place:
        clone = Path(place) / "fedtally"
        release.Release(ROOT).run("git", "clone", "--quiet", str(ROOT), str(clone))
        built = release.built(clone, Path(place) / "dist", when, anew=True)
    for name, digest in built.items():
        path = dist / name
        if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            raise release.Refused(f"a second build gives another {name}: see docs/evidence.md")
    return f"{len(built)} files are the same bytes"


def tag(dist: Path) -> str:
    """Check that auditwheel grants the tag that the wheel has."""
    wheel = own_wheel(dist)
    said = release.Release(ROOT).python("-m", "auditwheel", "show", str(wheel))
    granted = re.search(r'"(manylinux_\w+)"', said)
    if granted is None or granted[1] not in wheel.name:
        raise release.Refused(f"auditwheel does not grant the tag of {wheel.name}")
    return granted[1]


def installed(dist: Path, place: Path) -> Path:
    """Install the wheel by hash into an empty environment, and return its Python."""
    wheel = own_wheel(dist)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    wanted = place / "wanted.txt"
    wanted.write_text(f"fedtally @ {wheel.resolve().as_uri()} --hash=sha256:{digest}\n")
    of_this = release.Release(ROOT)
    of_this.python("-m", "venv", str(place / "venv"))
    python = place / "venv" / "bin" / "python"
    pip = (str(python), "-m", "pip", "install", "-q", "--require-hashes", "--only-binary", ":all:")
    more = os.environ | NO_COMPILER
    of_this.run(*pip, "-r", str(LOCK), env=more)
    of_this.run(*pip, "--no-deps", "-r", str(wanted), env=more)
    return python


def runs(python: Path, place: Path) -> str:
    """Run what is installed: the version, which must have compiled kernels, and the demo."""
    fedtally = str(python.with_name("fedtally"))
    of_this = release.Release(ROOT)
    version = of_this.run(fedtally, "--version", cwd=place)
    if re.search(r"kernels: (v\d|baseline)\)", version) is None:
        raise release.Refused(f"the wheel has no compiled kernels here: {version}")
    of_this.run(fedtally, "demo", cwd=place)
    return version


def tests(dist: Path, python: Path, place: Path, which: list[str]) -> str:
    """Run tests of the sdist on what is installed, and return their last line."""
    sdists = list(dist.glob("fedtally-*.tar.gz"))
    if len(sdists) != 1:
        raise release.Refused(f"{dist} has {len(sdists)} sdists; one is needed, for its tests")
    (sdist,) = sdists
    with tarfile.open(sdist) as archive:
        archive.extractall(place, filter="data")
    source = place / sdist.name.removesuffix(".tar.gz")
    more = os.environ | {"FEDTALLY_REQUIRE_COMPILED": "1"}
    # what is installed is tested, and not the sources beside the tests
    command = [str(python), "-m", "pytest", "-q", *which]
    done = subprocess.run(command, cwd=source, env=more, capture_output=True, text=True)
    if done.returncode:
        raise release.Refused(done.stdout[-3000:] + done.stderr[-1000:])
    return done.stdout.strip().splitlines()[-1]


def main() -> int:
    """Check; return the status of the process."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("dist", type=Path, help="the folder of a release")
    parser.add_argument("--no-build", action="store_true", help="leave the second build out")
    parser.add_argument("--tests", nargs="+", default=list(TESTS), help="the tests that run")
    asked = parser.parse_args()
    dist: Path = asked.dist.resolve()
    for name in [name for name in os.environ if name.startswith(("PYTHON", "FEDTALLY_"))]:
        del os.environ[name]  # they could run other code or other kernels than those installed
    try:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            print(f"      hashes: {hashes(dist)}", flush=True)
            said = "LEFT OUT" if asked.no_build else second_build(dist)
            print(f"second build: {said}", flush=True)
            print(f"  auditwheel: {tag(dist)}", flush=True)
            python = installed(dist, place)
            print("   installed: by hash, without a compiler", flush=True)
            print(f"        runs: {runs(python, place)}", flush=True)
            print(f"       tests: {tests(dist, python, place, asked.tests)}")
    except (release.Refused, OSError) as reason:
        print(f"refused\n{reason}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
