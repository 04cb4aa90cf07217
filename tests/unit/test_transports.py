"""The table of engines: what `fedtally campaign run` needs to know of one stands in its row."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from campaign_world import plan_of
from secagg_cohort import stream

from fedtally.campaign.key_files import create_key_files
from fedtally.campaign.transports.engine import Engine, Ran, hold
from fedtally.campaign.transports.pace import Ending
from fedtally.campaign.transports.table import ENGINES, EngineOption, EngineRow, chosen
from fedtally.cli import campaign as commands
from fedtally.cli.app import run
from fedtally.errors import InvalidInputError


@pytest.fixture
def survey(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Return the folder of a campaign that has not begun."""
    create_key_files(tmp_path / "server.key", "server", stream("server"))
    plan_of().save(tmp_path / "plan.toml")
    given = {"plan": "plan.toml", "server-key": "server.key", "mark": "mark"}
    files = [text for name, file in given.items() for text in (f"--{name}", str(tmp_path / file))]
    assert run(["campaign", "init", str(tmp_path / "survey"), *files]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "survey --agents DIR, or --engine flower --connection NAME" in said
    return tmp_path / "survey"


def test_each_engine_says_what_it_needs(survey: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options, said in (
        ([], "--engine sockets needs --agents DIR\n"),
        (["--engine", "flower"], "--engine flower needs --connection NAME\n"),
        (
            ["--engine", "flower", "--agents", "."],
            "--engine flower needs --connection NAME, and takes no --agents\n",
        ),
        (["--agents", ".", "--connection", "x"], "--engine sockets takes no --connection\n"),
        (["--engine", "https"], "--engine https needs --listen ADDRESS\n"),
        (
            ["--engine", "https", "--listen", "unix:x", "--wait", "5"],
            "--engine https waits for its clients for ever: leave --wait out",
        ),
    ):
        assert run(["campaign", "run", str(survey), *options]) == 2, options
        assert said in capsys.readouterr().err, options


def test_what_cannot_be_read_is_refused_before_an_engine_is_made(
    survey: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["campaign", "run", str(survey), "--engine", "https", "--listen", "unix:x"]
    for more, said in (
        (
            ["--linger", "a day"],
            "--linger must be a whole number of seconds, below 10^9, got 'a day'",
        ),
        (["--linger", "9" * 5000], f"seconds, below 10^9, got '{'9' * 60}'"),
        (["--log", "all"], "--log must be off, info, debug, got 'all'"),
    ):
        pytest.importorskip("starlette")
        assert run([*words, *more]) == 2
        assert said in capsys.readouterr().err
    monkeypatch.setattr("fedtally.campaign.transports.table.find_spec", lambda name: None)
    assert run(words) == 2
    assert "pip install 'fedtally[https]'" in capsys.readouterr().err


def test_the_name_of_before_is_refused_with_that_of_today(
    survey: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for verb in ("run", "resume"):
        assert run(["campaign", verb, str(survey), "--engine", "local", "--agents", "."]) == 2
        assert "local is called sockets: --engine sockets" in capsys.readouterr().err
    assert run(["campaign", "run", str(survey), "--engine", "carrier-pigeon"]) == 2
    assert "not one of 'sockets', 'flower'" in capsys.readouterr().err


def test_the_table_opens_each_engine_from_its_options() -> None:
    for name, values in (("sockets", {"agents": "a b"}), ("flower", {"connection": "here"})):
        row, where = chosen(name, dict.fromkeys(("agents", "connection")) | values)
        assert row is ENGINES[name] and where == values
        engine: Engine = row.open(**where)
        assert callable(engine.run)
    # what is advised can be pasted
    assert ENGINES["sockets"].typed({"agents": "a b"}) == "--agents 'a b'"
    assert ENGINES["flower"].typed({"connection": "x"}) == "--engine flower --connection x"


def test_no_engine_is_imported_before_it_is_chosen() -> None:
    code = "import sys, fedtally.cli.campaign; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(found.stdout.split())
    assert "fedtally.campaign.transports.table" in loaded
    assert not {f"fedtally.campaign.transports.{name}" for name in ENGINES} & loaded
    assert not {"asyncio", "fedtally.campaign.driver", "flwr"} & loaded


class Echo:
    """An engine that reaches nobody."""

    def __init__(self, base_url: str) -> None:
        self.url = base_url

    def run(self, campaign: Any, *, wait: int, take_over: bool, watch: Any) -> Ran:
        with hold(campaign, take_over) as driver, watch(driver) as watcher:
            watcher.note(f"asks {self.url} for {wait} seconds")
        with pytest.raises(InvalidInputError, match="needs --base-url URL"):
            chosen("echo", {"base_url": None})
        return Ran(Ending.DRAINED, 0, Counter(), 0)


def commands_anew() -> ModuleType:
    """Return the commands of campaigns, made anew from the table as it is now."""
    spec = importlib.util.spec_from_file_location("commands_anew", str(commands.__file__))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_another_engine_is_a_row(
    survey: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = (EngineOption("base_url", "URL", "where the relay of the phones is."),)
    monkeypatch.setitem(ENGINES, "echo", EngineRow("echo", "nobody", options, Echo))
    command = commands_anew().campaign
    command.main(["run", "--help"], standalone_mode=False)
    said = " ".join(capsys.readouterr().out.split())
    assert "[sockets|flower|https|echo]" in said
    assert "--base-url URL where the relay of the phones is." in said
    # what it advises is what was typed
    typed = ["--engine", "echo", "--base-url", "https://x"]
    assert command.main(["run", str(survey), *typed, "--wait", "7"], standalone_mode=False) == 3
    said = " ".join(capsys.readouterr().err.split())
    assert "asks https://x for 7 seconds" in said
    assert f"fedtally campaign resume {survey} {' '.join(typed)} goes on" in said
