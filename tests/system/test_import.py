"""What importing the package costs, and which kernels are in use where they must be."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from fedtally import kernels
from fedtally.cli.app import run


def test_import_is_light() -> None:
    code = (
        "import sys; before = set(sys.modules); import fedtally; "
        "heavy = {'numpy', 'pyarrow', 'pandas', 'polars', 'matplotlib', 'rich', 'click'} - before; "
        "print(sorted(heavy & set(sys.modules)), fedtally.__version__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded, version = done.stdout.rsplit(" ", 1)
    assert loaded == "[]"
    assert version.strip()


def test_a_plan_without_a_secure_sum_loads_no_cryptography() -> None:
    code = "import sys; import fedtally; fedtally.Plan; print('cryptography' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_key_is_made_without_numpy(tmp_path: Path) -> None:
    code = (
        "import atexit, sys; from fedtally.cli import main; "
        "atexit.register(lambda: print('numpy' in sys.modules)); main(sys.argv[1:])"
    )
    command = [
        sys.executable,
        "-c",
        code,
        "keys",
        "new",
        "client",
        "-o",
        str(tmp_path / "client.key"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
    assert (tmp_path / "client.key").is_file()


NOT_FOR_A_PLAN = ("dp_accounting", "pyarrow", "scipy.optimize", "scipy.signal", "scipy.stats")
NOT_WITHOUT_A_FILE = ("numpy", "pyarrow", "rich", "scipy", "fedtally.domain", "fedtally.sources")
PLAN = "plan --clients 20000 --domain-size 1000 --rounds 4 --tau .01"


@pytest.mark.parametrize(
    ("line", "code", "unwanted"),
    [
        ("--version", 0, ("fedtally.cli.plan", "fedtally.options", "rich", "scipy")),
        (PLAN, 0, NOT_FOR_A_PLAN),
        *(
            (line, 2, NOT_WITHOUT_A_FILE)
            for line in (
                "audit nowhere.toml",
                "estimate nowhere.csv",
                "inspect nowhere.toml",
                "merge nowhere.fed nowhere.fed",
                "query nowhere.fed tea",
                "report nowhere.fed",
                "simulate nowhere.csv",
                "trends nowhere.fed",
            )
        ),
    ],
)
def test_a_command_loads_what_it_needs_alone(
    line: str, code: int, unwanted: tuple[str, ...]
) -> None:
    """Imports take most of the time of a short command, and of one that is wrong all of it."""
    done = loading(unwanted, line.split())
    assert done.stdout.splitlines()[-1] == f"{code} []"
    if code == 2:
        assert done.stderr.startswith("error: there is no file nowhere.")


def test_lines_are_counted_without_pandas(tmp_path: Path) -> None:
    """PyArrow imports it to turn Python's own values into arrays: half a second for nothing.

    What counts is whether anything asks for it, so that the test says the same where pandas is
    installed and where it is not.
    """
    words = tmp_path / "words.txt"
    words.write_text("tea\nrice\n\ntea\n" * 100, encoding="utf-8")
    counting = ["estimate", str(words), "--json", "--quiet"]
    done = asking_for("pandas", "from fedtally.cli.app import run; run(sys.argv[1:])", *counting)
    assert '"num_clients": 300' in done and done.splitlines()[-1] == "False"
    # and the question is noticed
    assert asking_for("pandas", "import pyarrow; pyarrow.array([1])").splitlines()[-1] == "True"


def asking_for(name: str, code: str, *arguments: str) -> str:
    """Run code that cannot import a module; the last line is whether it tried."""
    finder = (
        "import sys, importlib.abc\n"
        "class Finder(importlib.abc.MetaPathFinder):\n"
        "    asked = False\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name == {name!r}:\n"
        "            Finder.asked = True\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    asked = [sys.executable, "-c", f"{finder}{code}\nprint(Finder.asked)", *arguments]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout


def loading(names: Iterable[str], arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command, whose last line says how it ended and which of some modules it loaded."""
    check = (
        "import sys; from fedtally.cli.app import run; code = run(sys.argv[1:]);"
        f" print(code, sorted({set(names)} & set(sys.modules)))"
    )
    asked = [sys.executable, "-c", check, *arguments]
    return subprocess.run(asked, capture_output=True, text=True, check=True)


def test_a_campaign_is_made_and_looked_at_without_what_decodes_it(tmp_path: Path) -> None:
    """An operator waits for no library of tables or of functions that these commands never call."""
    key, plan, words = (str(tmp_path / name) for name in ("server.key", "plan.toml", "words.txt"))
    (tmp_path / "words.txt").write_text("apple\npear\n", encoding="utf-8")
    sizes = ["--tau", ".2", "--clients", "7", "--cohort", "7", "--cohort-min", "7"]
    parties = ["--secure-sum", "secagg", "--server-key", f"{key}.pub"]
    assert run(["keys", "new", "server", "--output", key]) == 0
    assert run(["plan", *sizes, *parties, "--domain", words, "--output", plan]) == 0
    folder, unwanted = str(tmp_path / "survey"), ("pandas", "scipy")
    files = ["--plan", plan, "--server-key", key, "--candidates", words]
    init = ["campaign", "init", folder, *files, "--mark", str(tmp_path / "mark")]
    for asked in (init, ["campaign", "status", folder]):
        assert loading(unwanted, asked).stdout.splitlines()[-1] == "0 []"


@pytest.mark.skipif(
    os.environ.get("FEDTALLY_REQUIRE_COMPILED") != "1" or "FEDTALLY_KERNELS" in os.environ,
    reason=(
        "compiled kernels are only demanded with FEDTALLY_REQUIRE_COMPILED=1 and no choice of"
        " kernels"
    ),
)
def test_compiled_kernels_are_in_use() -> None:
    assert kernels.backend() != "numpy"
    assert kernels.available_backends()[:2] == ("numpy", "baseline")
