"""The folder of a campaign: what its server needs to run it, and to go on after a crash.

::

    NAME/
      campaign.toml   where the keys, the mark and the ledger are, and the deadlines
      plan.toml       the published plan
      clients.allow   the registered clients, in `active`
      candidates.txt  the candidate items, where the plan holds only their digest
      campaign.db     sessions, who was asked, the sums that landed
      lock            held by the process that runs the campaign; its number is in it
      lock.new        the same, of a process that is about to run it
      result.fed      the answer, once the campaign is over
      cancelled       there if the campaign was cancelled
      present         how many clients came lately, as the process that runs it says

Two files lie elsewhere on purpose. The server's key must not be in a backup of the folder. The mark
must not be put back together with the folder: it shows that `campaign.db` is an old copy.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Self

from fedtally.base import archive, toml, validate
from fedtally.base.links import real_path
from fedtally.campaign.books import MemoryBooks
from fedtally.campaign.driver import Deadlines, Driver, ServerKeys
from fedtally.campaign.ending import is_known
from fedtally.campaign.enrolment import load_allow_list, save_allow_list
from fedtally.campaign.key_files import load_server_key
from fedtally.campaign.places import check_ledger, check_mark, text_in, write_candidates
from fedtally.campaign.screening import FEWEST, Screen
from fedtally.campaign.server import FrequencyServer
from fedtally.domain import Domain
from fedtally.errors import InvalidInputError, UnreadableFileError, opt
from fedtally.plan import Plan
from fedtally.privacy.budget import Charge, OverspentError
from fedtally.secagg.allow_list import AllowList
from fedtally.sources import of_description
from fedtally.store import Campaigns, CampaignStatus, CampaignStore, Ledger
from fedtally.store.marks import new_mark, read_mark

SCHEMA = "fedtally-campaign/1"
SETTINGS, PLAN, ALLOW_LIST = "campaign.toml", "plan.toml", "clients.allow"
CANDIDATES, STATE, RESULT = "candidates.txt", "campaign.db", "result.fed"
LOCK, CANCELLED = "lock", "cancelled"
_ENTRIES = ("schema", "server_key", "mark", "ledger", "deadlines", "screen")
_OPTIONAL = ("ledger", "deadlines", "screen")


@dataclass(frozen=True)
class CampaignFolder:
    """A campaign on disk, checked when it is opened; made by `create` and `open`.

    Args:
        path: the folder.
        plan: its published plan, summed by secagg.
        domain: the candidate items.
        server_key: the path of the server's private key file.
        mark: the path of the mark, outside of the folder.
        ledger: the path or URL of the ledger that is charged; None: the plan is without privacy.
        deadlines: how long the server waits.
        allow_list: the registered clients, in `active`.
        screen: what happens to cohorts whose sums honest clients cannot have, as for
            `FrequencyServer`.
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
        """Make the folder of a campaign; the plan, the allow-list and the candidates are copied.

        Everything is checked before the folder is made, and the folder is whole or not there.

        Args:
            path: the folder, which must not exist.
            plan: the path of the published plan.
            server_key: the path of the private key file of the server that the plan names.
            mark: the path of the mark: outside of the folder, on another disk if possible.
            ledger: the path or URL of the ledger that is charged, for a plan with privacy.
            allow_list: the path of the list that the plan names, in `active`.
            candidates: the list of the candidate items, as `fedtally.sources.read_candidates` has
                it, where the plan holds only their digest.
            deadlines: how long the server waits; None: the defaults.
            screen: what happens to cohorts whose sums honest clients cannot have, as for
                `FrequencyServer`.

        Raises:
            InvalidInputError: the folder exists, or something is missing or does not fit the plan.
            UnreadableFileError: a file cannot be read.
        """
        place = Path(path)
        if place.exists():
            raise InvalidInputError(
                f"{place} exists already: name another campaign, or resume that one"
            )
        # Absolute paths: the campaign is resumed from other working directories.
        made = cls(
            place,
            loaded := _checked_plan(plan),
            of_description(loaded.domain, candidates),
            Path(server_key).absolute(),
            Path(mark).absolute(),
            ledger if ledger is None or "://" in ledger else str(Path(ledger).absolute()),
            deadlines or Deadlines(),
            None if allow_list is None else load_allow_list(allow_list),
            None if screen is None else Screen.parse(screen),
        )
        made._check()
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
            # what was checked, and not what the files hold by now
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
        """Return the campaign in a folder.

        Raises:
            UnreadableFileError: there is no campaign, or a file of it cannot be read.
            InvalidInputError: an entry of `campaign.toml` is wrong, or the files do not fit.
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
        """Return the file of the campaign's state.

        Raises:
            UnreadableFileError: the campaign has never run.
        """
        return Campaigns.open(self.path / STATE)

    @property
    def has_begun(self) -> bool:
        """Whether the campaign has ever run."""
        place = self.path / STATE
        try:
            return place.exists() and place.stat().st_size > 0 and self.state().holds(self.plan)
        except UnreadableFileError:
            # A process that died while it made the file leaves an empty one, once SQLite has undone
            # what was written.
            if place.stat().st_size == 0:
                return False
            raise

    def status(self) -> CampaignStatus:
        """Return how far the campaign is; it must have begun."""
        return self.state().status(self.plan)

    def stage(self) -> str:
        """Return in a word what the campaign is.

        That is new, running, stopped, over or cancelled. A campaign that `resume` refuses is lost
        (its file is gone), old-copy (its mark has more writes) or no-mark.

        Raises:
            UnreadableFileError: the mark cannot be read, or is of another plan.
        """
        if (self.path / RESULT).exists():
            return "over"
        if (self.path / CANCELLED).exists():
            return "cancelled"
        if self.runner() is not None:
            return "running"
        if not self.has_begun:
            return "lost" if self.lost() else "new"
        # Of a campaign that runs, its process has looked, and looks again before each write.
        if not self.state().is_put_back(self.plan, mark=self.mark):
            return "stopped"
        is_there = read_mark(self.mark, self.plan.fingerprint) is not None
        return "old-copy" if is_there else "no-mark"

    def why_refused(self, stage: str) -> str:
        """Return why a campaign of this stage cannot go on, and the ways out; "": it can."""
        restore = f"fedtally campaign restore {self.path} gives its open sessions up"
        if stage == "lost":
            return self.lost()
        whys = {
            "old-copy": f"{self.path / STATE} is an older copy, as its mark {self.mark} shows, and"
            f" does not go on: {restore}",
            "no-mark": f"there is no mark at {self.mark}, and {self.path} does not go on without"
            f" it: mount its disk, if that is what is missing; if it is lost, {restore}",
        }
        return whys.get(stage, "")

    def lost(self) -> str:
        """Return why the campaign cannot go on without its `campaign.db`, and the ways out.

        Its mark tells: `create` makes an empty one, which counts the first write before a client is
        asked. Empty text: nothing is lost, or no client was ever asked.

        Raises:
            UnreadableFileError: the mark cannot be read, or is of another plan.
        """
        # The mark is read first: a campaign that begins meanwhile has a file by the next line.
        marked, is_there = read_mark(self.mark, self.plan.fingerprint), self.mark.exists()
        if self.has_begun or (is_there and not marked):
            return ""
        what = (
            f"{self.path} has lost its {STATE}, and its mark {self.mark} shows that it has begun"
            if is_there
            else f"{self.path} has neither its {STATE} nor its mark {self.mark}: mount the disk of"
            " the mark, if that is what is missing"
        )
        return (
            f"{what}; clients may have taken part, so put a copy of {STATE} back, and then fedtally"
            f" campaign restore {self.path}; without a copy, fedtally campaign cancel {self.path},"
            " and begin another campaign with a new plan"
        )

    def secure_sum(self) -> dict[str, Any]:
        """Return what summed the campaign, for its result; JSON-able.

        Raises:
            InvalidInputError: no session has a sum, or a copy was put back that knows none.
        """
        agreed, status = self.plan.secure_sum, self.status()
        assert agreed is not None
        sizes = [one.num_clients for one in status.ended if one.why is None]
        if not sizes:  # the ledger may have a released sum all the same, if a copy was put back
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
        """Return the campaign's store for this process alone; an older process becomes silent.

        Args:
            clock: returns the time, Unix seconds.
            random: returns as many uniform bytes as it is asked for, from a cryptographic source.
        """
        # Before the file is made or written: what cannot be claimed has not begun.
        ledger = self._check_places()
        self.check_open()
        return Campaigns.open(self.path / STATE, create=True).claim(
            self.plan, mark=self.mark, clock=clock, owner=random(32).hex(), ledger=ledger
        )

    def driver(self, *, clock: Callable[[], int], random: Callable[[int], bytes]) -> Driver:
        """Return the campaign's driver, for this process alone; arguments as for `claim`."""
        keys = ServerKeys(load_server_key(self.server_key), self.allow_list)
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
        """Give up all open sessions after a copy was put back; return how many.

        Args:
            number: the number of this process.

        Raises:
            InvalidInputError: a process runs the campaign, the file is no copy, or there is none.
        """
        check_begun(self)
        with self.lock(number):
            state = self.state()
            if not state.is_put_back(self.plan, mark=self.mark):
                raise InvalidInputError(
                    f"{self.path / STATE} is as its mark {self.mark} says, so that its sessions can"
                    f" go on: fedtally campaign resume {self.path}"
                )
            return state.give_up(self.plan, mark=self.mark, ledger=self._check_places())

    @contextmanager
    def run(
        self,
        number: int,
        *,
        clock: Callable[[], int],
        random: Callable[[int], bytes],
        take_over: bool = False,
    ) -> Iterator[Driver]:
        """Hold the campaign while this process runs it; give its driver.

        The lock is a courtesy to people who start a second process by mistake. What keeps two
        processes apart is the store, where the later one silences the earlier.

        Args:
            number: the number of this process, for `runner`.
            clock: returns the time, Unix seconds.
            random: returns uniform bytes.
            take_over: whether to take it from a process that holds it. That one is silenced, and
                keeps its lock of a file that has no name any more. Where the campaign cannot be
                claimed, nothing changes.

        Raises:
            InvalidInputError: another process holds it, or it cannot be claimed.
        """
        with self._next_lock(number) as show:
            if not take_over:
                self._check_free()
            driver = self.driver(clock=clock, random=random)
            self.check_open()  # it may have been cancelled before it was claimed
            show()
            yield driver

    @contextmanager
    def lock(self, number: int) -> Iterator[None]:
        """Hold the campaign, so that nobody runs it.

        Args:
            number: the number of this process, for `runner`.

        Raises:
            InvalidInputError: another process holds it.
        """
        with self._next_lock(number) as show:
            self._check_free()
            show()
            yield

    @contextmanager
    def _next_lock(self, number: int) -> Iterator[Callable[[], None]]:
        """Hold a lock under another name; give what moves it to the place of the campaign's lock.

        The file has its number and its lock before it has its name. So whoever finds that the
        campaign is held reads the number of the process that holds it, and of no earlier one.
        """
        place = self.path / f"{LOCK}.new"
        try:
            file = _locked(place)
        except BlockingIOError:
            self._check_free()
            raise InvalidInputError(
                f"another process is about to run {self.path}: fedtally campaign status {self.path}"
            ) from None
        except OSError as error:
            raise _no_lock(self.path, place, error) from None
        is_shown = False

        def show() -> None:
            nonlocal is_shown
            try:
                os.replace(place, self.path / LOCK)
            except OSError as error:  # as where a folder has the name
                raise _no_lock(self.path, self.path / LOCK, error) from None
            is_shown = True

        try:
            try:
                os.ftruncate(file, 0)
                os.write(file, f"{number}\n".encode())
            except OSError as error:
                raise _no_lock(self.path, place, error) from None
            yield show
        finally:
            if not is_shown:
                place.unlink(missing_ok=True)
            os.close(file)

    def _check_free(self) -> None:
        """Refuse a campaign that another process runs."""
        if (other := self.runner()) is not None:
            raise InvalidInputError(
                f"process {other} runs {self.path}: fedtally campaign drain ends it after its open"
                " sessions"
            )

    def runner(self) -> int | None:
        """Return the number of the process that runs the campaign; None: no process does."""
        place = self.path / LOCK
        try:
            # whatever has the name, such as a pipe, opening it must not wait
            file = os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _no_lock(self.path, place, error) from None
        try:
            # A shared lock is refused where somebody holds the exclusive one.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(os.read(file, 20).strip() or 0)
        finally:
            os.close(file)
        return None

    def check_open(self) -> None:
        """Refuse a campaign that is over, or has lost its file: nothing begins its plan again.

        Raises:
            InvalidInputError: it has its result, or was cancelled, or `lost` says why.
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
                f"{self.path} is over: fedtally campaign result {self.path} shows its answer"
            )

    def cancel(self) -> int:
        """End the campaign without a result; return how many open sessions were given up."""
        self._check_not_over()
        # First: a process that claims the campaign after its sessions were given up sees this. A
        # campaign that is cancelled again, as after a crash here, gives up what is left.
        (self.path / CANCELLED).touch()
        return self.state().give_up(self.plan, mark=self.mark) if self.has_begun else 0

    def _check(self) -> None:
        """Refuse files that do not belong together, before anything is asked of clients."""
        check_mark(self.mark, self.path, "the campaign's folder")
        check_ledger(self.ledger, self.plan)
        # Books in memory: this server opens nothing, it only compares keys.
        server = FrequencyServer(self.plan, MemoryBooks(), screen=self.screen)
        server.check_keys(load_server_key(self.server_key), self.allow_list)

    def _check_places(self) -> Ledger | None:
        """Refuse a mark that cannot be written, or a ledger that is missing; return the ledger."""
        folder = real_path(self.mark).parent  # a link leads to the disk of the mark
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
        """Refuse a ledger that cannot be charged with this campaign: it could never open a sum."""
        privacy = self.plan.privacy
        if ledger is None or privacy is None:
            return
        charge = Charge(privacy.population, self.plan.fingerprint, 0, privacy.event)
        try:
            ledger.check_charge(charge)
        except OverspentError as error:
            raise InvalidInputError(
                f"the ledger {self.ledger} does not cover this campaign: {error.marked}"
            ) from error
        # Each run has an owner of its own, and this one has none yet.
        if ledger.reserved(self.plan.fingerprint):
            raise InvalidInputError(
                f"another run charged this plan to the ledger {self.ledger}, and no other may open"
                " its sums: resume that campaign, or begin this one with a new plan"
            )

    def _check_screen(self) -> None:
        """Refuse that cohorts are to be left out where no round can have enough of them."""
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


def _no_lock(folder: Path, place: Path, error: OSError) -> InvalidInputError:
    return InvalidInputError(
        f"cannot open or write the lock {place} ({error.strerror}): run each command of the"
        f" campaign as the user that may write {folder}; if something else has that name,"
        " remove it"
    )


def check_begun(folder: CampaignFolder) -> None:
    """Refuse a campaign that has never run, and what `CampaignFolder.check_open` refuses."""
    folder.check_open()
    if not folder.has_begun:
        raise InvalidInputError(
            f"{folder.path} has not begun, so it has nothing to go on with: fedtally campaign run"
            f" {folder.path}"
        )


def _locked(place: Path) -> int:
    """Return a file of that name, made if need be, with its lock.

    Raises:
        BlockingIOError: another process holds it.
    """
    while True:
        file = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file), place.lstat()):
                    return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)  # the file got another name before it got the lock: there is a new one


def _checked_plan(path: str | os.PathLike[str]) -> Plan:
    """Return a plan that a driver can run."""
    plan = Plan.load(path)
    plan.check_published()
    if plan.summing.cohorts is None:
        raise InvalidInputError(
            f"{os.fspath(path)} is not summed by secagg, as a campaign is: plan it with"
            f" {opt.secure_sum('secagg')}; fedtally aggregate runs plans of two servers"
        )
    return plan


def _read_settings(path: Path) -> dict[str, Any]:
    """Return the entries of a campaign.toml, of which none is unknown."""
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
