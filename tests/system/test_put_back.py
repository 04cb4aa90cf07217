"""Old copies of a file, each beside the journal of each later write in which a process died.

SQLite plays a journal into the file of its name, whatever file that is. So a copy may get pages of
a later file. It must not be taken for the file as it was.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path

import pytest
from campaign_world import START, World, plan_of

from fedtally.errors import InvalidInputError, UnreadableFileError
from fedtally.store import (
    Campaigns,
    CampaignStore,
    ClientRecord,
    Ledger,
    StoreError,
    claims,
    client_record,
)
from fedtally.store.marks import write_mark
from fedtally.store.writes import writes_of

PAGE = 4096
pytestmark = pytest.mark.usefixtures("no_sync")


def pages(file: bytes) -> list[bytes]:
    return [file[start : start + PAGE] for start in range(0, len(file), PAGE)]


def journal(before: bytes, after: bytes) -> bytes:
    """Return what a process leaves that dies as it writes a file, before the journal is emptied.

    It holds the pages that change, as they were: https://www.sqlite.org/fileformat2.html, 3.
    """
    old, new = pages(before), pages(after)
    nonce = 12345
    header = bytes.fromhex("d9d505f920a163d7")
    for number in (2**32 - 1, nonce, len(old), 512, PAGE):
        header += number.to_bytes(4, "big")
    text = header.ljust(512, b"\0")
    for number, page in enumerate(old):
        if number >= len(new) or page != new[number]:
            total = (nonce + sum(page[PAGE - 200 : 0 : -200])) % 2**32
            text += (number + 1).to_bytes(4, "big") + page + total.to_bytes(4, "big")
    return text


@dataclass
class History:
    """A file after each of its writes, and its mark before the next one began.

    Attributes:
        file: its place.
        mark: the place of its mark.
        loses_marks: whether no mark is written after a write, as if the process died in between.
    """

    file: Path
    mark: Path
    loses_marks: bool = False

    def __post_init__(self) -> None:
        self.files: list[bytes] = []
        self.marks: list[bytes] = []

    def write_mark(self, place: Path, name: str, writes: int) -> None:
        """Write a mark, and note the file, in the place of the function of the store."""
        is_new = self.file.exists() and self.file.read_bytes() not in self.files[-1:]
        if is_new:
            self.files.append(self.file.read_bytes())
            self.marks.append(b"")
        if not (is_new and self.loses_marks):
            write_mark(place, name, writes)
        if self.marks:
            self.marks[-1] = self.mark.read_bytes()
        if is_new and self.loses_marks:
            raise StoreError("the disk of the mark is full")

    def put_back(self, copy: int, died: int) -> None:
        """Put a copy beside the journal of a write in which the process died."""
        self.file.write_bytes(self.files[copy])
        left = journal(self.files[died - 1], self.files[died])
        self.file.with_name(f"{self.file.name}-journal").write_bytes(left)
        self.mark.write_bytes(self.marks[died - 1])

    def check(self, opens: Callable[[], object], refusal: type[Exception]) -> None:
        """Check all copies with all journals: what opens the file refuses what is not the file."""
        known = []
        for file in self.files:
            self.file.write_bytes(file)
            with closing(sqlite3.connect(self.file)) as connection:
                known.append(writes_of(connection))
        for copy, died in combinations(range(1, len(self.files)), 2):
            self.put_back(copy, died)
            if known[copy] == known[died - 1]:
                opens()
            else:
                with pytest.raises(refusal, match="a copy was put back|an old copy of it was"):
                    opens()
                # SQLite has played the journal: else this would test nothing.
                assert not self.file.with_name(f"{self.file.name}-journal").exists()
                assert self.file.read_bytes() != self.files[copy]
        for died in range(2, len(self.files)):  # the file itself, when all its pages were written
            self.put_back(died, died)
            opens()


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> History:
    found = History(tmp_path / "file.db", tmp_path / "mark")
    monkeypatch.setattr(claims, "write_mark", found.write_mark)
    monkeypatch.setattr(client_record, "write_mark", found.write_mark)
    return found


@pytest.mark.parametrize("trust", [None, "central"])
def test_a_campaign_is_refused(
    tmp_path: Path, history: History, monkeypatch: pytest.MonkeyPatch, trust: str | None
) -> None:
    """A session of the copy would say a second set of survivors."""
    history.file = tmp_path / "campaign.db"
    world = World(tmp_path, plan_of(trust=trust, cohorts=2), people=16).run()
    world.driver.release()
    world.claim()
    monkeypatch.undo()
    assert len(history.files) > 10
    history.check(lambda: claim(world), InvalidInputError)


def test_a_campaign_whose_marks_were_lost_is_refused(
    tmp_path: Path, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim and a write bring the mark up before they change the file."""
    history.file = tmp_path / "campaign.db"
    world = World(tmp_path, plan_of(), people=8)
    store = claim(world)
    history.loses_marks = True
    for _ in range(6):
        with pytest.raises(StoreError, match="disk of the mark"):
            store.forget(world.plan, bytes(32))
    for _ in range(6):
        with pytest.raises(StoreError, match="disk of the mark"):
            claim(world)
    monkeypatch.undo()
    assert len(history.files) > 12
    history.check(lambda: claim(world), InvalidInputError)


@pytest.mark.parametrize("loses_marks", [False, True])
def test_a_record_is_refused(
    history: History, monkeypatch: pytest.MonkeyPatch, loses_marks: bool
) -> None:
    """The same items could be contributed a second time."""
    record = ClientRecord.open(history.file, create=True, mark=history.mark)
    history.loses_marks = loses_marks
    for number in range(24):  # so many that their tables have several pages
        plan = f"{number * 7 % 24:02}{'a plan' * 30}"
        with pytest.raises(StoreError) if loses_marks else nullcontext():
            if number % 3:
                item = f"{number * 11 % 24:02}{'i' * 190}"
                record.take_part("phones", plan, 0, None, number, item)
            else:
                assert record.begin(plan.encode()[:64], number)
    monkeypatch.undo()
    assert len(history.files) >= 24
    assert len(history.files[-1]) > 10 * PAGE
    opens = partial(ClientRecord.open, history.file, mark=history.mark)
    history.check(opens, UnreadableFileError)


def test_a_file_is_for_one_campaign(tmp_path: Path) -> None:
    """Else the writes of one would hide that an old copy has lost those of the other."""
    world = World(tmp_path, plan_of())
    other, mark = plan_of(rounds=2), tmp_path / "other"
    with pytest.raises(InvalidInputError, match="and a file holds one"):
        world.campaigns().claim(other, mark=mark, clock=lambda: START, owner="other")
    assert not mark.exists()
    assert not world.campaigns().holds(other)
    world.run().check()


def test_a_damaged_copy_is_not_given_up(tmp_path: Path) -> None:
    """A journal that is played into a copy can take rows from the index of their table."""
    world = World(tmp_path, plan_of()).run()
    index = "sqlite_autoindex_fedtally_asked_1"
    with closing(sqlite3.connect(tmp_path / "campaign.db")) as file:
        file.execute("PRAGMA writable_schema = ON")
        file.execute("UPDATE sqlite_master SET rootpage = 2 WHERE name = ?", (index,))
        file.commit()
    with pytest.raises(UnreadableFileError, match=r"is damaged .* remove .*campaign\.db-journal"):
        world.campaigns().give_up(world.plan, mark=tmp_path / "mark")


def test_a_copy_with_pages_of_another_moment_is_not_given_up(tmp_path: Path) -> None:
    """A sum of that moment could stay, whose session is given up."""
    world = World(tmp_path, plan_of())
    copy = (tmp_path / "campaign.db").read_bytes()
    for _ in range(4):
        claim(world)
    before = (tmp_path / "campaign.db").read_bytes()
    claim(world)
    left = journal(before, (tmp_path / "campaign.db").read_bytes())
    (tmp_path / "campaign.db").write_bytes(copy)
    (tmp_path / "campaign.db-journal").write_bytes(left)
    with pytest.raises(UnreadableFileError, match="pages are of two moments"):
        world.campaigns().give_up(world.plan, mark=tmp_path / "mark")
    (tmp_path / "campaign.db").write_bytes(copy)  # its own, without the journal
    world.campaigns().give_up(world.plan, mark=tmp_path / "mark")


def claim(world: World) -> CampaignStore:
    """Claim the campaign of a world, as another process."""
    file = world.folder / "campaign.db"
    return Campaigns.open(file).claim(
        world.plan,
        mark=world.folder / "mark",
        clock=lambda: START,
        owner="campaign",
        ledger=None if world.plan.privacy is None else Ledger.open(file),
    )
