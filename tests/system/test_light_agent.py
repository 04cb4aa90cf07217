"""A light agent: no command of `fedtally agent` needs SciPy, dp-accounting or PyArrow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest
from cases import each_case
from test_cli_agent import Owner, owner  # noqa: F401

from fedtally.base import arrow
from fedtally.cli.agent import LIGHT_LACKS, agent
from fedtally.cli.app import run

HIDDEN = tuple(LIGHT_LACKS)  # as tests/light.py has them, whose import hides them here, too
TESTS = Path(__file__).resolve().parents[1]
# a campaign of agents with and without an epsilon, a list of candidates, and all that an owner does
WHOLE = (
    "system/test_cli_agent.py",
    "protocol/test_agent.py::test_a_campaign_of_agents_lands_the_sums_of_their_contributions",
    "protocol/test_agent.py::test_candidates_come_from_their_file",
    "protocol/test_agent.py::test_a_plan_whose_epsilon_is_above_the_cap_is_told_so_once",
)
COMMANDS = """
import json, sys
{before}
from fedtally.cli.app import run
found = []
for asked in json.loads(sys.argv[1]):
    found.append((run(["agent", *asked]), sorted({hidden} & set(sys.modules))))
print("\\n" + json.dumps(found))
"""


def asked(commands: Iterable[list[str]], before: str = "") -> list[tuple[int, list[str]]]:
    """Run commands in a process of its own: each one's exit code, and what is loaded by then."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            COMMANDS.format(before=before, hidden=set(HIDDEN)),
            json.dumps(list(commands)),
        ],
        env=os.environ | {"PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return [(code, loaded) for code, loaded in json.loads(done.stdout.splitlines()[-1])]


def commands(owner: Owner) -> dict[str, tuple[list[str], int]]:  # noqa: F811
    """Return each command with its arguments and its exit code; `run` and `join` end by refusals.

    Those that read a plan come last.
    """
    at, plan = ["--agent", str(owner.folder)], str(owner.place / "plan.toml")
    server = ["--url", "http://sums.example.org", "--token-file", "none", "--socket", "none"]
    return {
        "init": ([str(owner.place / "new")], 0),
        "requirements": (["--join"], 0),
        "join": (server, 2),
        "report": (
            ["--leader", "http://a.example.org", "--helper", "http://b.example.org", *at],
            2,
        ),
        "show": (at, 0),
        "run": (["--agent", str(owner.place)], 2),
        "accept": ([plan, "--yes", *owner.files(), *at], 0),
        "check": (["--plan", plan, *owner.files(), *at], 0),
    }


@pytest.mark.promise
def test_each_command_works_without_the_three(owner: Owner) -> None:  # noqa: F811
    asks = commands(owner)
    assert set(asks) == set(agent.commands)  # a new command is tested, too
    found = asked(([name, *given] for name, (given, _) in asks.items()), "import light")
    assert found == [(code, []) for _, code in asks.values()]


def test_only_what_reads_a_plan_loads_any_where_they_are_installed(owner: Owner) -> None:  # noqa: F811
    asks = commands(owner)
    found = asked([name, *given] for name, (given, _) in asks.items())
    # these two price it, and try to read the items
    loaded = [sorted(HIDDEN) if name in ("accept", "check") else [] for name in asks]
    assert found == [(code, there) for (_, code), there in zip(asks.values(), loaded, strict=True)]


def test_an_agent_that_was_imported_has_loaded_no_database_and_none_of_the_three() -> None:
    text = (
        "import sys, fedtally.agent.agent, fedtally.agent.serve, fedtally.agent.settings\n"
        f"sys.exit(', '.join({{'sqlalchemy', 'rich', *{HIDDEN}}} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_owners_processes_and_campaigns_need_none_of_the_three() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "--all", "-p", "light", *WHOLE],
        cwd=TESTS,
        env=os.environ | {"PYTHONPATH": str(TESTS), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout and "skipped" not in done.stdout


@each_case("name", HIDDEN)
def test_the_plugin_really_hides(name: str) -> None:
    text = f"import light\nimport {name}"
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    done = subprocess.run([sys.executable, "-c", text], env=environment, capture_output=True)
    assert f"{name} is hidden".encode() in done.stderr


@each_case(
    ("items", "said"),
    [
        ('file = "items.parquet"', "a file of parquet needs PyArrow: pip install pyarrow; or"),
        ('file = "items.jsonl"', "a file of json needs PyArrow"),
        ('file = "items.csv"\npeople = "user"', "a silo (items.people) needs PyArrow"),
        ('sqlite = "items.csv"\nquery = "SELECT 1"\npeople = "user"', "a silo (items.people)"),
        ('file = "*.csv"', "a folder or a pattern, needs PyArrow"),
    ],
)
def test_what_needs_pyarrow_says_so_in_one_line(
    owner: Owner,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    items: str,
    said: str,
) -> None:
    owner.write()
    (owner.folder / "items.csv").write_text("item,user\n7,ann\n")
    settings = owner.folder / "agent.toml"
    settings.write_text(settings.read_text().replace('file = "items.txt"', items))
    monkeypatch.setattr(arrow, "is_installed", lambda: False)
    assert owner.run("check") == 2
    assert said in owner.err and owner.err.count("\n") == 1


def test_a_command_that_is_none_of_an_agent_says_what_it_lacks() -> None:
    text = "import sys, light\nfrom fedtally.cli.app import run\nsys.exit(run(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", text, "demo"],
        env=os.environ | {"PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (2, "error: this needs scipy: pip install fedtally\n")


@each_case("with_join", [False, True])
def test_requirements_are_those_of_the_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], with_join: bool
) -> None:
    project = tomllib.loads((TESTS.parent / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].items()
    listed = [*project["dependencies"]]
    listed += [f'{one}; extra == "{name}"' for name, more in extras for one in more]
    monkeypatch.setattr("importlib.metadata.requires", lambda name: listed)
    assert run(["agent", "requirements", *(["--join"] if with_join else [])]) == 0
    lines = capsys.readouterr().out.splitlines()
    left_out = [one for one in project["dependencies"] if one not in lines]
    assert len(left_out) == len(LIGHT_LACKS) == len(HIDDEN)
    assert all(one.startswith(tuple(LIGHT_LACKS.values())) for one in left_out)
    more = [one for one in lines if one not in project["dependencies"]]
    httpx = [one for one in project["optional-dependencies"]["https"] if one.startswith("httpx")]
    assert more == (httpx if with_join else [])
