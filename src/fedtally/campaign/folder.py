"""The folder of a campaign: the files with which a server runs it, and resumes it after a crash.

::

    NAME/
      campaign.toml   the paths of key, mark and ledger; the deadlines; how sums are screened
      plan.toml       the published plan
      clients.allow   the registered clients, if the plan's adversary is active
      candidates.txt  the candidate items, if the plan has only their digest
      campaign.db     the database: sessions, the clients that were asked, the sums of rounds
      lock            locked by the process that runs the campaign; names it (`Runner`)
      lock.new        locked by a process that is about to run the campaign; names it (`Runner`)
      result.fed      the answer, once the campaign is over
      cancelled       exists if the campaign was cancelled
      present         how many clients checked in lately, see `presence`

Two files are outside of the folder on purpose. One is the server's private key: a backup of the
folder must not contain it. The other is the mark, a small file that shows whether `campaign.db` is
an old copy. So the mark must not be restored together with the folder.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Self

from fedtally.base import archive, toml, validate
from fedtally.base.links import real_path
from fedtally.base.text import word
from fedtally.campaign.books import MemoryBooks
from fedtally.campaign.driver import Deadlines, Driver, ServerKeys
from fedtally.campaign.ending import is_known
from fedtally.campaign.enrolment import load_allow_list, save_allow_list
from fedtally.campaign.key_files import load_server_key
from fedtally.campaign.places import (
    check_ledger,
    check_mark,
    check_plain_file,
    how_lost,
    kept_ledger,
    locked,
    opened_if_made,
    text_in,
    write_candidates,
)
from fedtally.campaign.runner import Runner
from fedtally.campaign.screening import FEWEST, Screen
from fedtally.campaign.server import FrequencyServer
from fedtally.crypto.keys import SigningKey
from fedtally.domain import Domain
from fedtally.errors import InvalidInputError, UnreadableFileError, opt
from fedtally.plan import Plan
from fedtally.privacy.budget import Charge, OverspentError
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.checkpoints import CheckpointError
from fedtally.secagg.server import Server
from fedtally.sources import of_description
from fedtally.store import Campaigns, CampaignStatus, CampaignStore, Ledger
from fedtally.store.campaigns import SavedSession
from fedtally.store.marks import is_empty, new_mark, read_mark

SCHEMA = "fedtally-campaign/1"
SETTINGS, PLAN, ALLOW_LIST = "campaign.toml", "plan.toml", "clients.allow"
CANDIDATES, STATE, RESULT = "candidates.txt", "campaign.db", "result.fed"
LOCK, CANCELLED = "lock", "cancelled"
_ENTRIES = ("schema", "server_key", "mark", "ledger", "deadlines", "screen")
_OPTIONAL = ("ledger", "deadlines", "screen")


@dataclass(frozen=True)
class CampaignFolder:
    """The folder of a campaign on disk; make it with `create`, or read it with `open`.

    Args:
        path: the folder.
        plan: the published plan. Its secure sum is secagg.
        domain: the candidate items.
        server_key: the path of the server's private key file.
        mark: the path of the mark, outside of the folder. A mark is a small file that shows whether
            the database is an old copy.
        ledger: the path or URL of the ledger of privacy budgets that is charged; None if the plan
            is without privacy.
        deadlines: how long the server waits for clients.
        allow_list: the registered clients, if the plan's adversary is active; else None.
        screen: what happens to sums that look as if clients lied, as for `FrequencyServer`.
    """

    path: Path
    plan: Plan
    domain: Domain
    server_key: Path
    mark: Path
    ledger: str | None
    deadlines: Deadlines
    allow_list: AllowList | None
    screen: Screen | None = None

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        plan: str | os.PathLike[str],
        *,
        server_key: str | os.PathLike[str],
        mark: str | os.PathLike[str],
        ledger: str | None = None,
        allow_list: str | os.PathLike[str] | None = None,
        candidates: str | os.PathLike[str] | None = None,
        deadlines: Deadlines | None = None,
        screen: str | None = None,
    ) -> Self:
        """Make the folder of a campaign, with copies of the plan, allow-list and candidates.

        The mark, which is outside of the folder, is made too. Everything is checked before the
        folder is made. After an error, neither the folder nor the mark was made.

        Args:
            path: the folder, which must not exist.
            plan: the path of the published plan.
            server_key: the path of the private key file that belongs to the server's key in the
                plan.
            mark: the path of the mark, outside of the folder, on another disk if possible.
            ledger: the path or URL of the ledger of privacy budgets, for a plan with privacy.
            allow_list: the path of the list that the plan names, if its adversary is active.
            candidates: the path of the list of candidate items, if the plan has only their digest.
                The form of the file is as for `fedtally.sources.read_candidates`.
            deadlines: how long the server waits for clients; None: the values of `Deadlines()`.
            screen: what happens to sums that look as if clients lied, as for `FrequencyServer`.

        Raises:
            InvalidInputError: the folder or the mark exists, a file or setting is missing or does
                not fit the plan, the key is no plain file, the ledger is a URL with a password or
                does not cover the plan, or the rounds of the plan cannot all get a sum.
            UnreadableFileError: a file cannot be read.
        """
        place = Path(path)
        if place.exists():
            raise InvalidInputError(
                f"{place} exists already: name another campaign, or resume that one"
            )
        # Paths are made absolute, since the campaign may be resumed in another working directory.
        made = cls(
            place,
            loaded := _checked_plan(plan),
            of_description(loaded.domain, candidates),
            Path(server_key).absolute(),
            Path(mark).absolute(),
            kept_ledger(ledger, SETTINGS),
            deadlines or Deadlines(),
            None if allow_list is None else load_allow_list(allow_list),
            None if screen is None else Screen.parse(screen),
        )
        check_plain_file("server_key", made.server_key)
        made._check()
        _checked_key(made)
        if why := made.plan.why_not_all_land():
            raise InvalidInputError(f"the rounds of {os.fspath(plan)} cannot all land: {why}")
        made._check_budget(made._check_places())
        made._check_screen()
        try:
            settings = made._to_toml().encode()
        except UnicodeEncodeError as error:
            raise InvalidInputError(
                f"a path of the campaign is not in UTF-8, and {SETTINGS} is: {error.object!r};"
                " rename the file"
            ) from None
        with archive.drafted(place) as draft:
            # The objects that were checked are written, and not copies of the files, which may have
            # changed.
            made.plan.save(draft / PLAN)
            if made.allow_list is not None:
                save_allow_list(draft / ALLOW_LIST, made.allow_list)
            if candidates is not None:
                write_candidates(draft / CANDIDATES, made.domain)
            with archive.replacing(draft / SETTINGS) as temporary:
                Path(temporary).write_bytes(settings)
            with new_mark(made.mark):
                draft.rename(place)
        return made

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Read the folder of a campaign, and return it after checking that its files fit together.

        The server's private key is not read: only `driver` needs it.

        Raises:
            UnreadableFileError: the folder has no campaign, or a file cannot be read.
            InvalidInputError: an entry of `campaign.toml` is wrong, or the files do not fit
                together.
        """
        place = Path(path)
        values = _read_settings(place / SETTINGS)
        plan = _checked_plan(place / PLAN)
        candidates, listed = place / CANDIDATES, place / ALLOW_LIST
        found = cls(
            place,
            plan,
            of_description(plan.domain, candidates if candidates.exists() else None),
            place / text_in(SETTINGS, values, "server_key"),
            place / text_in(SETTINGS, values, "mark"),
            text_in(SETTINGS, values, "ledger") if "ledger" in values else None,
            _deadlines(values.get("deadlines", {})),
            load_allow_list(listed) if listed.exists() else None,
            Screen.parse(text_in(SETTINGS, values, "screen")) if "screen" in values else None,
        )
        found._check()
        return found

    def state(self) -> Campaigns:
        """Open the campaign's database, `campaign.db`, for reading, and return it.

        Raises:
            UnreadableFileError: there is no database, or it cannot be read.
        """
        return Campaigns.open(self.path / STATE)

    @property
    def has_begun(self) -> bool:
        """Whether the campaign has run and its database is still there.

        Raises:
            UnreadableFileError: the database cannot be read.
        """
        kept = opened_if_made(Campaigns.open, self.path / STATE)
        return kept is not None and kept.holds(self.plan)

    def status(self) -> CampaignStatus:
        """Return how far the campaign is; it must have begun."""
        return self.state().status(self.plan)

    def stage(self) -> str:
        """Return the stage of the campaign in one word.

        The word is "new" (the campaign has never run), "running" (a process runs it), "stopped" (it
        has run, and no process runs it), "over" (it has its result) or "cancelled". Three more
        words are for campaigns that the command `resume` refuses: "lost" (there is no database, and
        no mark shows that the campaign is new), "old-copy" (the mark, a file outside of the folder,
        has counted more writes than the database) and "no-mark" (the mark is gone or empty).

        Raises:
            UnreadableFileError: the database or the mark cannot be read, or the mark is of another
                plan.
            InvalidInputError: the file `lock` cannot be opened.
        """
        if (self.path / RESULT).exists():
            return "over"
        if (self.path / CANCELLED).exists():
            return "cancelled"
        if self.runner() is not None:
            return "running"
        if not self.has_begun:
            return "lost" if self.lost() else "new"
        # The mark is read only if no process runs the campaign. A process that runs it compares the
        # mark itself before each write.
        if not self.state().is_put_back(self.plan, mark=self.mark):
            return "stopped"
        is_there = read_mark(self.mark, self.plan.fingerprint) is not None
        return "old-copy" if is_there else "no-mark"

    def why_refused(self, stage: str) -> str:
        """Return why `resume` would refuse a campaign in this stage, and what to do.

        The text is "" for "new", "stopped", "over" and "cancelled". For "running" it warns if the
        database is gone, or the mark is gone or empty; otherwise it is "". Without its database the
        process cannot write any more, and must end before anything is put back. Without its mark it
        goes on, and its next write makes the mark anew; but if it ends before that write, `resume`
        refuses the campaign.

        Args:
            stage: a word that `stage` returns.
        """
        restore = f"fedtally campaign restore {word(self.path)} gives its open sessions up"
        if stage == "running":
            return _why_warned(self, restore)
        if stage == "lost":
            return self.lost()
        whys = {
            "old-copy": f"{self.path / STATE} is an older copy, as its mark {self.mark} shows, and"
            f" does not go on: {restore}",
            "no-mark": f"the mark {self.mark} is empty, and {self.path} does not go on without the"
            f" number in it: {restore}"
            if is_empty(self.mark)
            else f"there is no mark at {self.mark}, and {self.path} does not go on without"
            f" it: mount its disk, if that is what is missing; if it is lost, {restore}",
        }
        return whys.get(stage, "")

    def lost(self) -> str:
        """Return why the campaign cannot go on if its `campaign.db` is lost, and what to do.

        The text is "" if the database is there, or if the mark shows that no client was ever asked.
        If both the database and the mark are gone, nobody knows whether a client was asked, and the
        text is not empty (see `places.how_lost`).

        Raises:
            UnreadableFileError: the mark cannot be read, or is of another plan.
        """
        place, plan = self.path / STATE, self.plan.fingerprint
        how = how_lost(place, self.mark, plan, lambda: self.has_begun)
        return how and (
            f"{how}; clients may have taken part, so put a copy of {STATE} back, and then fedtally"
            f" campaign restore {word(self.path)}; without a copy, fedtally campaign cancel"
            f" {word(self.path)}, and begin another campaign with a new plan"
        )

    def secure_sum(self) -> dict[str, Any]:
        """Return the parameters and numbers of the secure sum, as a JSON object for the result.

        Raises:
            InvalidInputError: no session in the database has a sum.
        """
        agreed, status = self.plan.secure_sum, self.status()
        assert agreed is not None
        sizes = [one.num_clients for one in status.ended if one.why is None]
        # If no session has a sum, the ledger may still have a released sum: an old copy of the
        # database may have been restored.
        if not sizes:
            raise InvalidInputError(
                f"{self.path / STATE} knows no session that has a sum, as after an older copy was"
                " put back: what landed since that copy is lost, unless you put a newer copy back"
            )
        return {
            **agreed.summary(),
            "engine": "agents",
            "cohorts": len(sizes),
            "smallest_cohort": min(sizes),
            "largest_cohort": max(sizes),
            "clients": sum(status.asked.values()),
            "survivors": sum(sizes),
            "fewest_survivors": min(sizes),
        }

    def claim(self, *, clock: Callable[[], int], random: Callable[[int], bytes]) -> CampaignStore:
        """Open the campaign's store for this process alone, and return it.

        Afterwards, a process that claimed the campaign earlier cannot write to the store.

        Args:
            clock: returns the time in Unix seconds.
            random: a cryptographic source; `random(n)` returns n uniform bytes.

        Raises:
            InvalidInputError: the mark or the ledger cannot be used, the campaign is over, was
                cancelled or is lost, or the database is an old copy.
            UnreadableFileError: the ledger, the mark or the database cannot be read.
            StoreError: the mark or the database cannot be written.
        """
        # These checks come before the database is made or written. Otherwise a campaign that cannot
        # be claimed would count as begun.
        ledger = self._check_places()
        _check_writable(self.mark)
        self.check_open()
        return Campaigns.open(self.path / STATE, create=True).claim(
            self.plan, mark=self.mark, clock=clock, owner=random(32).hex(), ledger=ledger
        )

    def driver(self, *, clock: Callable[[], int], random: Callable[[int], bytes]) -> Driver:
        """Claim the campaign for this process alone, and return a driver that runs it.

        The arguments and errors are as for `claim`. The errors of `load_server_key` are also
        raised, and InvalidInputError if the key or the list of clients is not the plan's.
        """
        keys = ServerKeys(_checked_key(self), self.allow_list)
        store = self.claim(clock=clock, random=random)
        return Driver(
            self.plan,
            store,
            keys,
            self.deadlines,
            random=random,
            screen=self.screen,
            is_known=partial(is_known, self.plan, self.domain),
        )

    def restore(self, number: int) -> int:
        """End all open sessions without a sum, after an old copy was restored or the mark was lost.

        Return how many sessions were open. Ended sessions are kept for a while, to tell their
        clients how the sessions ended. They are erased here, and are not counted. If a trusted
        aggregator adds the noise, the exact sums in the database are erased, too, because they may
        have been released after the copy was made.

        Args:
            number: the PID of this process.

        Raises:
            InvalidInputError: another process runs the campaign; the campaign has never run, is
                over, was cancelled or is lost; the database is no old copy and its mark is there;
                or the mark cannot be written.
            UnreadableFileError: the database, the mark or the ledger cannot be read.
        """
        if (other := self.runner()) is not None:
            # `drain` would wait for the open sessions, which this call gives up
            raise InvalidInputError(
                f"process {other} runs {self.path}, so nothing can be given up:"
                f" {other.how_to_end()}, and then restore again"
            )
        check_begun(self)
        with self.lock(number):
            state = self.state()
            if not state.is_put_back(self.plan, mark=self.mark):
                raise InvalidInputError(
                    f"{self.path / STATE} is as its mark {self.mark} says, so that its sessions can"
                    f" go on: fedtally campaign resume {word(self.path)}"
                )
            ledger = self._check_places()
            _check_writable(self.mark)
            return state.give_up(self.plan, mark=self.mark, ledger=ledger)

    @contextmanager
    def run(
        self,
        number: int,
        *,
        clock: Callable[[], int],
        random: Callable[[int], bytes],
        take_over: bool = False,
    ) -> Iterator[Driver]:
        """Lock and claim the campaign for the time of the `with` block, and yield its driver.

        The lock only warns people who start a second process by mistake. It does not stop a process
        from writing. The store does: once a later process claims it, an earlier one cannot write.

        Args:
            number: the PID of this process, which `runner` returns in other processes.
            clock: returns the time in Unix seconds.
            random: a cryptographic source; `random(n)` returns n uniform bytes.
            take_over: whether to claim the campaign even if another process runs it. That process
                can then not write any more, and its lock has no effect. If the campaign cannot be
                claimed, the other process goes on.

        Raises:
            InvalidInputError: another process runs the campaign and `take_over` is False, or
                another process is about to run it, or the campaign cannot be claimed.
            UnreadableFileError: as for `claim`.
        """
        with self._next_lock(number) as show:
            if not take_over:
                self._check_free()
            driver = self.driver(clock=clock, random=random)
            self.check_open()  # the campaign may have been cancelled just before it was claimed
            show()
            yield driver

    @contextmanager
    def lock(self, number: int) -> Iterator[None]:
        """Lock the campaign while the `with` block runs.

        Another process can then run it only by `run` with `take_over`.

        Args:
            number: the PID of this process, which `runner` returns in other processes.

        Raises:
            InvalidInputError: another process runs the campaign or is about to run it, or the lock
                cannot be written.
        """
        with self._next_lock(number) as show:
            self._check_free()
            show()
            yield

    @contextmanager
    def _next_lock(self, number: int) -> Iterator[Callable[[], None]]:
        """Lock the file `lock.new`; yield a function that renames it to the campaign's `lock`.

        The file is locked and names this process before it gets the name `lock`. Otherwise another
        process could find the lock and read the name of an earlier process in it.

        Raises:
            InvalidInputError: another process has locked `lock.new`, or one of the two files cannot
                be written. The yielded function raises it, too.
        """
        place = self.path / f"{LOCK}.new"
        try:
            file = locked(place)
        except BlockingIOError:
            self._check_free()
            raise InvalidInputError(
                f"another process is about to run {self.path}: fedtally campaign status"
                f" {word(self.path)}"
            ) from None
        except OSError as error:
            raise _no_lock(self.path, place, error) from None
        is_shown = False

        def show() -> None:
            nonlocal is_shown
            try:
                os.replace(place, self.path / LOCK)
            except OSError as error:  # for example, a folder has the name `lock`
                raise _no_lock(self.path, self.path / LOCK, error) from None
            is_shown = True

        try:
            try:
                os.ftruncate(file, 0)
                os.write(file, Runner.this(number).line())
            except OSError as error:
                raise _no_lock(self.path, place, error) from None
            yield show
        finally:
            if not is_shown:
                place.unlink(missing_ok=True)
            os.close(file)

    def _check_free(self) -> None:
        """Raise an error if another process runs the campaign."""
        if (other := self.runner()) is not None:
            raise InvalidInputError(
                f"process {other} runs {self.path}: fedtally campaign drain ends it after its"
                " open sessions"
            )

    def runner(self) -> Runner | None:
        """Return the process that runs the campaign, or None if no process runs it.

        Raises:
            InvalidInputError: the file `lock` cannot be opened.
        """
        place = self.path / LOCK
        try:
            # With O_NONBLOCK, `open` does not wait if the file is a pipe, for example.
            file = os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _no_lock(self.path, place, error) from None
        try:
            # This raises BlockingIOError while another process has the exclusive lock.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return Runner.read(file)
        finally:
            os.close(file)
        return None

    def check_open(self) -> None:
        """Refuse a campaign that is over, was cancelled, or has lost its database.

        Such a campaign must not begin again with the same plan.

        Raises:
            InvalidInputError: the campaign has its result, was cancelled, or is lost (see `lost`).
        """
        self._check_not_over()
        if (self.path / CANCELLED).exists():
            raise InvalidInputError(
                f"{self.path} was cancelled: begin another campaign, with another plan"
            )
        if why := self.lost():
            raise InvalidInputError(why)

    def _check_not_over(self) -> None:
        if (self.path / RESULT).exists():
            raise InvalidInputError(
                f"{self.path} is over: fedtally campaign result {word(self.path)} shows its answer"
            )

    def cancel(self) -> int:
        """End the campaign without a result, and end its open sessions without a sum.

        Return how many sessions were open; 0 if there is no database. Ended sessions that
        were still kept are erased. If a trusted aggregator adds the noise, the exact sums in the
        database are erased, too.

        Raises:
            InvalidInputError: the campaign has its result already, or its folder cannot be written.
            UnreadableFileError: the database cannot be read. The campaign is cancelled then, but
                its sessions are still open.
        """
        self._check_not_over()
        # The file `cancelled` is made first, so that no process claims the campaign later. After a
        # crash here, another `cancel` ends the sessions that are still open.
        file = self.path / CANCELLED
        try:
            if not file.exists():
                file.touch()
        except PermissionError as error:
            raise InvalidInputError(
                f"cannot write {file} ({error.strerror}), so nothing is cancelled: run this as the"
                " user of the campaign's folder"
            ) from None
        except OSError as error:
            raise InvalidInputError(
                f"cannot write {file} ({error.strerror}), so nothing is cancelled: mend that, and"
                " cancel again"
            ) from None
        try:
            return self.state().give_up(self.plan, mark=self.mark) if self.has_begun else 0
        except UnreadableFileError as error:
            raise UnreadableFileError(
                f"{self.path} is cancelled, for good, but not its sessions: {error}"
            ) from error

    def _check(self) -> None:
        """Refuse files and settings that do not fit together; the key is not read."""
        named = None if self.plan.secure_sum is None else self.plan.secure_sum.allow_list
        if (None if self.allow_list is None else self.allow_list.digest) != named:
            raise InvalidInputError(
                "this allow-list is not the one that the plan names, or one of them is missing:"
                f" give the list of the plan, or put {ALLOW_LIST} back into {self.path}"
            )
        check_mark(self.mark, self.path, "the campaign's folder")
        check_ledger(self.ledger, self.plan)

    def _check_places(self) -> Ledger | None:
        """Check that the mark's folder can be written, then open the ledger and return it.

        Returns None if the plan is without privacy and so has no ledger. The mark itself is not
        checked: `create` makes it, and `_check_writable` checks it for a campaign that has one.

        Raises:
            InvalidInputError: the mark's folder is missing or cannot be written.
            UnreadableFileError: the ledger is missing or cannot be read.
        """
        # links are followed, so that the folder on the disk of the mark is checked
        folder = real_path(self.mark).parent
        if not os.access(folder, os.W_OK | os.X_OK):
            raise InvalidInputError(
                f"cannot write the mark {self.mark}: "
                + (
                    f"{folder} does not allow it"
                    if folder.exists()
                    else f"there is no folder {folder}; make it, or mount its disk"
                )
            )
        return None if self.ledger is None else Ledger.open(self.ledger)

    def _check_budget(self, ledger: Ledger | None) -> None:
        """Refuse a plan that is above the budget in the ledger, or that another run has charged.

        Without this check, clients would take part in a campaign whose sums nobody may open.

        Raises:
            InvalidInputError: the plan is refused, or the ledger has no grant for its population.
        """
        privacy = self.plan.privacy
        if ledger is None or privacy is None:
            return
        charge = Charge(privacy.population, self.plan.fingerprint, 0, privacy.event)
        try:
            ledger.check_charge(charge)
        except OverspentError as error:
            raise InvalidInputError(
                f"the ledger {ledger.name} does not cover this campaign: {error.marked}"
            ) from error

    def _check_screen(self) -> None:
        """Refuse `Screen.REFUSE` if no round can have enough cohorts to compare them."""
        if self.screen is not Screen.REFUSE:
            return
        most = self.plan.max_round_clients // self.plan.summing.least_clients
        if most < FEWEST:
            raise InvalidInputError(
                f"screen refuse is not possible: a round of the plan has at most {most}"
                f" cohort{'s' * (most != 1)}, and {FEWEST} are needed to tell which stand out; plan"
                f" smaller cohorts ({opt.cohort}) or fewer rounds, or leave screen out"
            )

    def _to_toml(self) -> str:
        values: dict[str, Any] = {
            "schema": SCHEMA,
            "server_key": str(self.server_key),
            "mark": str(self.mark),
        }
        if self.ledger is not None:
            values["ledger"] = self.ledger
        if self.screen is not None:
            values["screen"] = str(self.screen)
        return toml.document(values | {"deadlines": asdict(self.deadlines)})


def _why_warned(folder: CampaignFolder, restore: str) -> str:
    """Return which file is lost while a process runs a campaign, and what to do; "" if none is.

    Args:
        folder: the campaign.
        restore: what the command `restore` does, for a process that ends before it makes the mark
            anew.
    """
    # A process makes both files before its lock can be seen, and writes into both.
    process, state, mark = folder.runner(), folder.path / STATE, folder.mark
    end = "" if process is None else process.how_to_end()
    anew = f"its next write in a session makes the mark anew (if it ends before, {restore})"
    whys = {
        f"{folder.path} has lost its {STATE} while process {process} runs it: end that process"
        f" ({end}), and then fedtally campaign status {word(folder.path)} says how to go"
        " on": not state.exists(),
        f"{folder.path} has lost its mark {mark} while process {process} runs it: mount its disk,"
        f" if that is what is missing; else let the process run, since {anew}": not mark.exists(),
        f"the mark {mark} is empty while process {process} runs {folder.path}: let the process run,"
        f" since {anew}": is_empty(mark),
    }
    return next((why for why, is_lost in whys.items() if is_lost), "")


def files_of(folder: CampaignFolder) -> list[str]:
    """Return the paths of a campaign's files outside of its folder, whether they exist or not.

    The ledger is among them, perhaps as a URL.
    """
    return [str(folder.mark), str(folder.server_key), *filter(None, [folder.ledger])]


def _checked_key(folder: CampaignFolder) -> SigningKey:
    """Return the server's private key, after checking that it and the list are the plan's."""
    key = load_server_key(folder.server_key)
    # The server is only used to compare keys. It opens no sum, so books in memory are enough.
    server = FrequencyServer(folder.plan, MemoryBooks(), screen=folder.screen)
    server.check_keys(key, folder.allow_list)
    return key


def _check_writable(mark: Path) -> None:
    """Refuse, with an InvalidInputError, a mark that this user may not read, or may not write.

    A mark that does not exist is accepted.

    Without this check, the database would be made or opened first, and then the write would fail.
    """
    place = real_path(mark)
    if place.exists() and not os.access(place, os.R_OK | os.W_OK):
        raise InvalidInputError(
            f"cannot write the mark {mark}: {place} does not allow it; let the user who runs the"
            " campaign read and write it"
        )


def _no_lock(folder: Path, place: Path, error: OSError) -> InvalidInputError:
    return InvalidInputError(
        f"cannot open or write the lock {place} ({error.strerror}): run each command of the"
        f" campaign as the user that may write {folder}; if something else has that name,"
        " remove it"
    )


def unrestorable(
    folder: CampaignFolder, now: int, *, random: Callable[[int], bytes]
) -> list[tuple[SavedSession, str]]:
    """Return the open sessions that this version cannot restore, each with the reason.

    Nothing is written, and another process may run the campaign meanwhile. Sessions that are past
    their time are left out: no version can go on with them.

    Args:
        folder: the folder of a campaign that has begun.
        now: the time, Unix seconds.
        random: a cryptographic source, as for `CampaignFolder.claim`.
    """
    found = []
    for saved in folder.state().open_sessions(folder.plan, now):
        assert saved.checkpoint is not None
        try:
            # Without `reserve` nothing is charged, and without `journal` nothing is written.
            Server.restore(saved.checkpoint, random=random, allow_list=folder.allow_list)
        except CheckpointError as error:
            found.append((saved, str(error)))
    return found


def check_begun(folder: CampaignFolder) -> None:
    """Refuse a campaign that has never run, is over, was cancelled or is lost.

    Raises:
        InvalidInputError: the campaign is refused.
    """
    folder.check_open()
    if not folder.has_begun:
        raise InvalidInputError(
            f"{folder.path} has not begun, so it has nothing to go on with: fedtally campaign run"
            f" {word(folder.path)}"
        )


def _checked_plan(path: str | os.PathLike[str]) -> Plan:
    """Return the plan in a file, if a driver can run it.

    Raises:
        InvalidInputError: the plan lacks a key, or its secure sum is not secagg.
    """
    plan = Plan.load(path)
    plan.check_published()
    if plan.summing.cohorts is None:
        raise InvalidInputError(
            f"{os.fspath(path)} is not summed by secagg, as a campaign is: plan it with"
            f" {opt.secure_sum('secagg')}; fedtally aggregate runs plans of two servers"
        )
    return plan


def _read_settings(path: Path) -> dict[str, Any]:
    """Return the entries of a `campaign.toml`, by name.

    Raises:
        UnreadableFileError: there is no such file, it cannot be read, or it is of another version.
        InvalidInputError: an entry is missing or unknown.
    """
    try:
        values = toml.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        what = "is a file, and no folder of a" if path.parent.is_file() else "holds no"
        raise UnreadableFileError(
            f"{path.parent} {what} campaign: fedtally campaign init makes one"
        ) from None
    except (OSError, ValueError) as error:
        raise UnreadableFileError(f"cannot read {path}: {error}") from error
    if values.get("schema") != SCHEMA:
        raise UnreadableFileError(
            f"{path} has the schema {values.get('schema')!r}, and this version reads {SCHEMA}:"
            " finish the campaign with the fedtally that began it, or begin another one (fedtally"
            " campaign init)"
        )
    return validate.table(os.fspath(path), values, _ENTRIES, optional=_OPTIONAL)


def _deadlines(values: Any) -> Deadlines:
    known = [each.name for each in fields(Deadlines)]
    return Deadlines(**validate.table(f"deadlines of {SETTINGS}", values, known, optional=known))
