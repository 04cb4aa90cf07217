"""`campaign result --so-far` that is killed at any moment: one noise for a day, and one charge."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from socket_agents import Person
from test_campaign_command import N, by_days, init, plan_seconds, world  # noqa: F401

from fedtally.campaign import release
from fedtally.campaign.folder import CampaignFolder
from fedtally.campaign.transports.engine import hold
from fedtally.cli import campaign as cli
from fedtally.sketch import CountSketch
from fedtally.store import Ledger

# Where the noise is drawn, booked and shown; every line of these functions is a moment.
_WATCHED = {
    "release.py": {"release_sums", "add_noise", "released_sums"},
    "campaigns.py": {"reserve", "release", "_erase_released"},
    "ledger.py": {"reserve", "land_all", "_land"},
    "so_far.py": {"sums_so_far"},
}


def in_child(act: Callable[[], None], dies_at: int = 0) -> tuple[int, int]:
    """Do something in a process of its own, which is killed at a moment; 0: at none.

    Return how it ended, and how many moments it saw.
    """
    seen, out = os.pipe()
    if not (child := os.fork()):
        code = 1
        try:
            moments = 0

            def line(frame: FrameType, event: str, _: Any) -> Any:
                nonlocal moments
                if event == "line":
                    moments += 1
                    if moments == dies_at:
                        os.kill(os.getpid(), signal.SIGKILL)
                return line

            def call(frame: FrameType, event: str, _: Any) -> Any:
                code = frame.f_code
                names = _WATCHED.get(os.path.basename(code.co_filename), ())
                return line if code.co_name in names else None

            sys.settrace(call)
            act()
            sys.settrace(None)
            os.write(out, str(moments).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(out)
    with os.fdopen(seen) as file:
        said = file.read()
    return os.waitpid(child, 0)[1], int(said or 0)


@pytest.mark.promise
def test_a_so_far_that_is_killed_at_any_moment_draws_one_noise_that_is_seen(
    world: Any,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
    matrix: bool,
) -> None:
    now = [time.time() + 1000.0]
    plan = by_days(now[0] + 50, 3, "central")
    place = init(world, plan)
    assert plan.calendar is not None and plan.privacy is not None
    monkeypatch.setattr(time, "time", lambda: now[0])
    now[0] = plan.calendar.opens(0).timestamp() + 5
    people = {i: Person(plan, i) for i in range(N)}
    with hold(CampaignFolder.open(place)) as driver:
        while not CampaignFolder.open(place).status().landed:
            for number, person in people.items():
                driver.check_in(str(number), now[0])
                frame = driver.next(str(number), now[0])
                answer = None if frame is None else person.answer(frame)
                if answer:
                    driver.receive(str(number), answer, now[0])
            driver.tick(now[0])
            now[0] += 1
    now[0] = plan.calendar.opens(1).timestamp() + plan_seconds(place) + 2
    kept, drawn, shown = (tmp_path_factory.mktemp(name) for name in ("kept", "drawn", "shown"))
    shutil.copytree(world.folder, kept, dirs_exist_ok=True)
    opened = release._opened

    def noted(*given: Any) -> CountSketch:
        drawn.joinpath(str(len(list(drawn.iterdir())))).touch()
        return opened(*given)

    def show(folder: CampaignFolder, sums: list[CountSketch], *_: Any) -> None:
        name = str(len(list(shown.iterdir())))
        shown.joinpath(name).write_text(str([(s.round, s.vector.tolist()) for s in sums]))

    monkeypatch.setattr(release, "_opened", noted)
    monkeypatch.setattr(cli, "_result_of", show)

    def ask() -> None:
        cli._so_far(CampaignFolder.open(place), True)

    status, moments = in_child(ask)
    assert status == 0 and len(list(drawn.iterdir())) == len(list(shown.iterdir())) == 1
    numbers: set[str] = set()
    # a sample, another one as lines come and go; with --matrix all of them
    for dies_at in range(1, moments + 1, 1 if matrix else 4):
        for folder in (world.folder, drawn, shown):
            shutil.rmtree(folder)
        shutil.copytree(kept, world.folder)
        drawn.mkdir()
        shown.mkdir()
        status, _ = in_child(ask, dies_at)
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        books = Ledger.open(world.folder / "books.db")
        had_landed = bool(books.landings(plan.fingerprint))
        before = len(list(drawn.iterdir()))
        for _ in range(2):
            assert in_child(ask)[0] == 0
        # what landed before the kill is what is shown, and nothing is drawn anew
        assert len(list(drawn.iterdir())) - before == (0 if had_landed else 1)
        answers = {one.read_text() for one in shown.iterdir()}
        assert len(answers) == 1 and answers.isdisjoint(numbers)
        numbers |= answers
        [landing] = books.landings(plan.fingerprint)
        assert landing.release == 0 and books.reserved(plan.fingerprint) == [0]
        [population] = books.export()["populations"]
        assert len(population["campaigns"]) == 1
        # no exact sum is left of the closed day
        with hold(CampaignFolder.open(place)) as driver:
            assert driver._store.sums(plan) == []
