"""A run on Flower is started, and its end is found, whatever the exit code of `flwr` says."""

from __future__ import annotations

import sys
import threading
import time
import tomllib
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from campaign_world import plan_of
from secagg_cohort import stream

from fedtally.campaign.folder import CampaignFolder
from fedtally.campaign.key_files import create_key_files
from fedtally.campaign.transports.flower import launch
from fedtally.campaign.transports.flower.launch import Flower, FlowerError, RunReport
from fedtally.campaign.transports.pace import Ending
from fedtally.errors import InvalidInputError, MissingExtraError
from fedtally.secagg.messages import AbortCode


@pytest.fixture
def folder(tmp_path: Path) -> CampaignFolder:
    create_key_files(tmp_path / "server.key", "server", stream("server"))
    plan_of().save(tmp_path / "plan.toml")
    place = tmp_path / 'a "survey" \U0001f511'
    return CampaignFolder.create(
        place, tmp_path / "plan.toml", server_key=tmp_path / "server.key", mark=tmp_path / "mark"
    )


@pytest.fixture
def flwr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file whose text the command `flwr` prints; it notes how it was called."""
    place = tmp_path / "bin"
    place.mkdir()
    program = place / "flwr"
    program.write_text(
        f'#!/bin/sh\necho "$@" >> {place}/called\nfor word in $*; do last=$word; test -f $word &&'
        f" cp $word {place}/config; done\ncat {place}/says\nexit 0\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(place / "python"))
    monkeypatch.setattr(launch, "ASK_SECONDS", 0.0)
    monkeypatch.setattr(launch, "LOOK_SECONDS", 0.05)
    return place / "says"


def test_a_run_is_started_with_the_folder_of_the_campaign(
    folder: CampaignFolder, flwr: Path
) -> None:
    flwr.write_text('a word before\n{"success": true, "run-id": "18446744073709551615"}')
    assert launch.start(folder, "here", 60, take_over=True) == 2**64 - 1
    called = (flwr.parent / "called").read_text().split()
    assert called[0] == "run" and called[2] == "here"
    assert called[-2:] == ["--format", "json"]
    config = tomllib.loads((flwr.parent / "config").read_text(encoding="utf-8"))
    assert config == {"campaign": str(folder.path), "wait": 60, "take-over": True}


def test_the_engine_says_how_its_run_ended(folder: CampaignFolder, flwr: Path) -> None:
    flwr.write_text('{"success": true, "run-id": "7"}')
    RunReport(7, "stalled", 3, {"POLICY": 2}, unanswered=1).save(folder)
    notes = list[str]()
    watch = SimpleNamespace(note=notes.append, show=lambda: None)
    ran = Flower("here").run(folder, wait=60, take_over=False, watch=lambda _: nullcontext(watch))
    assert ran[:4] == (Ending.STALLED, 3, {AbortCode.POLICY: 2}, 1)
    assert [f"run 7 of Flower carries {folder.path}" in note for note in notes] == [True]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"run": 7, "of_another_version": 1}', "\xff"])
def test_a_damaged_report_counts_as_none(folder: CampaignFolder, text: str) -> None:
    (folder.path / launch.REPORT).write_bytes(text.encode("latin-1"))
    assert RunReport.load(folder) is None
    RunReport(7, "stalled").save(folder)
    assert RunReport.load(folder) == RunReport(7, "stalled")


def test_an_app_that_cannot_be_written_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place, why in ((tmp_path, "exists already"), (tmp_path / "file" / "app", "cannot make")):
        with pytest.raises(InvalidInputError, match=why):
            launch.write_app(place)


def test_an_exit_code_of_0_starts_nothing(folder: CampaignFolder, flwr: Path) -> None:
    for said, why in (
        ('{"success": false, "error-message": "no SuperLink"}', "no SuperLink"),
        ("Traceback", "Traceback"),
        ("", "flwr run failed"),
    ):
        flwr.write_text(said)
        with pytest.raises(FlowerError, match=why):
            launch.start(folder, "here", 60)


def test_without_the_command_the_extra_is_named(
    folder: CampaignFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingExtraError, match=r"fedtally\[flower\]"):
        launch.start(folder, "here", 60)


def test_the_report_of_this_run_counts(folder: CampaignFolder, flwr: Path) -> None:
    flwr.write_text('{"success": true, "runs": [{"status": "running"}]}')
    looks: list[float] = []

    def look() -> None:  # an earlier run's report is there from the beginning
        looks.append(time.monotonic())
        if len(looks) == 3:
            RunReport(7, "drained", 5, {"EXPIRED": 2}, unanswered=3).save(folder)

    RunReport(6, "complete").save(folder)
    found = launch.follow(folder, "here", 7, look)
    assert (found.ending, found.num_online, found.refusals) == ("drained", 5, {"EXPIRED": 2})
    assert found.unanswered == 3
    assert len(looks) == 3
    RunReport(8, error="the population has too little left").save(folder)
    with pytest.raises(FlowerError, match="too little left"):
        launch.follow(folder, "here", 8, look)


def test_a_serverapp_that_never_begins_or_dies_is_noticed(
    folder: CampaignFolder, flwr: Path
) -> None:
    flwr.write_text('{"success": true, "runs": [{"status": "finished:failed"}]}')
    with pytest.raises(FlowerError, match="run 7 is finished:failed, and its ServerApp never"):
        launch.follow(folder, "here", 7, lambda: None)
    flwr.write_text('{"success": true, "runs": [{"status": "running"}]}')
    held, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with folder.lock(1):
            held.set()
            let_go.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(10)
    looks: list[int] = []

    def look() -> None:
        looks.append(1)
        if len(looks) == 3:
            let_go.set()

    with pytest.raises(FlowerError, match="died: fedtally campaign resume"):
        launch.follow(folder, "here", 7, look)
    holder.join()
