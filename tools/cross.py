"""Build the wheel for aarch64 on x86-64, and run the kernels' tests on it under an emulator.

    python tools/cross.py DIR                             # half an hour
    python tools/cross.py DIR tests/unit/test_median.py   # these tests instead

Needs Debian's `g++-aarch64-linux-gnu` and `qemu-user`, CMake, and `build` beside this Python. In
DIR are then: a Python for aarch64 from Debian's packages (`root`, which apt-get fills by a state of
its own: the machine's packages stay as they are), the locked dependencies as wheels for aarch64
(`site`), and the wheel. What is there already is kept, but for the wheel.

What this does not test: the speed, threads after a fork (`NOT_EMULATED`), other processors than the
emulated one, what starts processes (the emulator starts none of its own kind), and macOS, whose
compiler is another.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = "3.11"  # Debian's; the wheel is for it
# What compares the compiled kernels with their definition, and what their vectors say.
TESTS = (
    "tests/unit/test_kernels.py",
    "tests/unit/test_proof_kernels.py",
    "tests/unit/test_spelling_kernels.py",
    "tests/unit/test_median.py",
    "tests/unit/test_hashing.py",
    "tests/unit/test_mechanism.py",
    "tests/protocol/test_vectors.py",
    "tests/protocol/test_validity_vectors.py",
)
# The emulator itself aborts where a process with threads forks (qemu 7.2).
NOT_EMULATED = "tests/unit/test_kernels.py::test_a_forked_process_has_threads_of_its_own"
PACKAGES = (
    f"python{PYTHON}-minimal",
    f"libpython{PYTHON}-stdlib",
    f"libpython{PYTHON}-dev",
    "libstdc++6",
)


def debian(folder: Path) -> Path:
    """Return a folder with Debian's Python for aarch64, which is unpacked and not installed.

    Args:
        folder: where apt-get keeps its state, and where the folder is.
    """
    root = folder / "root"
    if root.exists():
        return root
    state = folder / "apt"
    for name in ("lists/partial", "archives/partial"):
        (state / name).mkdir(parents=True, exist_ok=True)
    (state / "status").touch()
    config = state / "apt.conf"
    config.write_text(
        f"""APT::Architecture "arm64"; APT::Architectures {{ "arm64"; }};
Dir::State "{state}"; Dir::State::status "{state}/status"; Dir::State::lists "{state}/lists";
Dir::Cache "{state}"; Dir::Cache::archives "{state}/archives"; Debug::NoLocking "1";
"""
    )
    of_its_own = os.environ | {"APT_CONFIG": str(config)}
    run("apt-get", "update", "-qq", env=of_its_own)
    install = ("apt-get", "install", "-qq", "-y", "--no-install-recommends", "--download-only")
    run(*install, *PACKAGES, env=of_its_own)
    unpacked = folder / "unpacked"  # renamed when it is whole
    for package in sorted((state / "archives").glob("*.deb")):
        run("dpkg-deb", "-x", str(package), str(unpacked))
    return unpacked.rename(root)


def dependencies(folder: Path) -> Path:
    """Return a folder with the locked dependencies, also of tests, as wheels for aarch64."""
    site = folder / "site"
    if site.exists():
        return site
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--only-binary=:all:"]
    pip += ["--require-hashes", "--python-version", PYTHON, "--implementation", "cp"]
    for abi in ("cp" + PYTHON.replace(".", ""), "abi3", "none"):
        pip += ["--abi", abi]
    for libc in range(17, 37):  # manylinux: from glibc 2.17 to Debian's
        pip += ["--platform", f"manylinux_2_{libc}_aarch64"]
    lock = str(ROOT / "requirements" / "test.txt")
    unpacked = folder / "installed"  # renamed when it is whole
    run(*pip, "--target", str(unpacked), "-r", lock)
    return unpacked.rename(site)


def wheel(folder: Path, root: Path) -> Path:
    """Build the wheel, and return it.

    Args:
        folder: where it is built.
        root: Debian's Python for aarch64.
    """
    toolchain = folder / "toolchain.cmake"
    toolchain.write_text(
        "set(CMAKE_SYSTEM_NAME Linux)\nset(CMAKE_SYSTEM_PROCESSOR aarch64)\n"
        "set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)\n"
    )
    more = os.environ | {
        "_PYTHON_HOST_PLATFORM": "linux-aarch64",
        "SETUPTOOLS_EXT_SUFFIX": f".cpython-{PYTHON.replace('.', '')}-aarch64-linux-gnu.so",
        "FEDTALLY_REQUIRE_COMPILED": "1",
    }
    settings = {
        "CMAKE_TOOLCHAIN_FILE": toolchain,
        "Python_INCLUDE_DIR": root / f"usr/include/python{PYTHON}",
        # pyconfig.h is there; last, since the compiler has a C library of its own
        "CMAKE_CXX_FLAGS": f"-idirafter {root}/usr/include",
    }
    options = [f"-Ccmake.define.{name}={value}" for name, value in settings.items()]
    options += [f"-Cbuild-dir={folder}/build"]  # not where the objects of this machine are
    out = folder / "dist"
    for old in out.glob("*.whl"):
        old.unlink()
    run(sys.executable, "-m", "build", "-o", str(out), "--wheel", *options, str(ROOT), env=more)
    (built,) = out.glob("*_aarch64.whl")  # unpacking fails if it is for another processor
    return built


def run(*command: str, env: dict[str, str] | None = None) -> None:
    """Run a command; what it prints is shown only where it fails."""
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def main() -> int:
    """Build and test; return the status of the process."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folder", type=Path, help="where everything is put")
    parser.add_argument("tests", nargs="*", default=TESTS, help="tests, and options of pytest")
    asked = parser.parse_args()
    folder: Path = asked.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    root, site = debian(folder), dependencies(folder)
    built = wheel(folder, root)
    print(built.name, flush=True)
    own = folder / "own"
    with zipfile.ZipFile(built) as archive:
        archive.extractall(own)
    emulated = ["qemu-aarch64", "-L", str(root), f"{root}/usr/bin/python{PYTHON}"]
    more = os.environ | {"PYTHONPATH": f"{own}:{site}", "FEDTALLY_REQUIRE_COMPILED": "1"}
    pytest = [*emulated, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    pytest += ["--deselect", NOT_EMULATED, *asked.tests]
    return subprocess.run(pytest, cwd=ROOT, env=more).returncode


if __name__ == "__main__":
    raise SystemExit(main())
