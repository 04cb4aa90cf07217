"""What `.ci/run` leans on, and would not notice."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ONCE = Path(__file__).resolve().parents[2] / ".ci" / "compile-once"
# A compiler: it knows -E, needs its -I folder, and writes down that it compiled.
COMPILER = """#!/usr/bin/env bash
set -eu
folder=$(dirname "$0")
for each; do
  case $each in
    --version) cat "$folder/version"; exit ;;
    -I*) test -d "${each#-I}" ;;
    *.cpp) file=$each ;;
  esac
  [[ ${last:-} != -o ]] || to=$each
  last=$each
done
if [[ " $* " == *" -E "* ]]; then cp "$file" "$to"; exit; fi
! grep -q wrong "$file" || exit 3
echo "$*" >>"$folder/compiled"
echo "object of $(cat "$file"), $*" >"$to"
"""


class Compiler:
    """A compiler behind the launcher."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "g++"
        self.path.write_text(COMPILER)
        self.path.chmod(0o755)
        (folder / "version").write_text("1")

    def __call__(self, text: str, *options: str, at: str = "a") -> int:
        """Compile a text, with headers in a folder of that name."""
        (self.folder / at).mkdir(exist_ok=True)
        source, made = self.folder / "text.cpp", self.folder / "text.o"
        source.write_text(text)
        made.unlink(missing_ok=True)
        call = [ONCE, self.path, f"-I{self.folder / at}", *options, "-o", made, "-c", source]
        objects = {"FEDTALLY_OBJECTS": str(self.folder / "objects")}
        done = subprocess.run(call, env=os.environ | objects, check=False)
        assert made.exists() == (done.returncode == 0)
        assert not list((self.folder / "objects").glob("text.*"))
        return done.returncode

    def times(self) -> int:
        found = self.folder / "compiled"
        return len(found.read_text().splitlines()) if found.exists() else 0


@pytest.fixture
def compiler(tmp_path: Path) -> Compiler:
    return Compiler(tmp_path)


def test_the_same_text_is_compiled_once_wherever_its_headers_are(compiler: Compiler) -> None:
    assert compiler("one", "-O3") == 0
    first = (compiler.folder / "text.o").read_bytes()
    assert compiler("one", "-O3", at="b") == 0
    assert compiler.times() == 1 and (compiler.folder / "text.o").read_bytes() == first


def test_what_differs_is_compiled(compiler: Compiler) -> None:
    compiler("one", "-O3")
    compiler("two", "-O3")
    assert compiler.times() == 2
    compiler("one", "-O3", "-march=x86-64-v3")
    assert compiler.times() == 3
    (compiler.folder / "version").write_text("2")
    compiler("one", "-O3")
    assert compiler.times() == 4


def test_an_error_of_the_compiler_fails_each_time(compiler: Compiler) -> None:
    assert [compiler("wrong") for _ in range(2)] == [3, 3]
    assert compiler.times() == 0
