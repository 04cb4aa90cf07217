"""The folder of one of two servers: the files with which it receives reports and survives a crash.

The two servers, the leader and the helper, receive the reports of clients. A release is one sum
that both servers compute together. Each server has a folder of its own::

    NAME/
      aggregate.toml  the paths of the key, the mark, the ledger and the certificates; the policy
      plan.toml       the published plan
      clients.allow   the registered clients
      candidates.txt  at a leader: the candidate items, if the plan has only their digest
      reports.db      the journal of the server (what must not be lost in a crash), and the reports
      books.db        the sums of releases, and what was charged to the ledger
      closings.json   at a leader: when each release closes
      state.json      the state of the process and its releases, for the command `status`
      lock            locked by the process that runs the server; contains its PID
      lock.new        locked by a process that is about to run the server; contains its PID
      result.fed      at a leader: the answer
      retired         exists once `retire` has begun to destroy the key

The key and the marks are outside of the folder. A backup of the folder must not contain the key. A
mark is a small file that shows whether a database of the folder is an old copy. So a mark must not
be restored together with the folder. A file beside the key names the folder that uses the key.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

from fedtally.answer.result import Result
from fedtally.base import archive, toml, validate
from fedtally.campaign.books import MemoryBooks
from fedtally.campaign.closings import CLOSINGS, Closings, Schedule, of_calendar
from fedtally.campaign.enrolment import check_allow_list, load_allow_list, save_allow_list
from fedtally.campaign.key_files import load_helper_key, load_leader_key, retire_key
from fedtally.campaign.places import (
    check_ledger,
    check_mark,
    check_origins,
    check_plain_file,
    held_by,
    holder,
    how_lost,
    kept_ledger,
    opened_if_made,
    read_settings,
    text_in,
    texts_in,
    write_candidates,
)
from fedtally.campaign.runner import Runner
from fedtally.campaign.server import FrequencyServer
from fedtally.domain import Domain
from fedtally.errors import FedtallyError, InvalidInputError
from fedtally.plan import Plan, Sums
from fedtally.privacy.budget import Charge, OverspentError
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.two_server import BatchPolicy, MemoryJournal, Side
from fedtally.sources import of_description
from fedtally.store import AggregateBooks, Batch, Batches, BatchStore, Campaigns, Ledger
from fedtally.store.marks import new_mark

SCHEMA = "fedtally-aggregate/1"
SETTINGS, PLAN, ALLOW_LIST = "aggregate.toml", "plan.toml", "clients.allow"
CANDIDATES, REPORTS, BOOKS = "candidates.txt", "reports.db", "books.db"
STATE, RESULT, RETIRED = "state.json", "result.fed", "retired"
_PATHS = ("key", "mark", "certificate", "certificate_key", "other_certificate")
_POLICY = ("min_honest", "corrupt", "validity")
_ENTRIES = ("schema", "side", *_PATHS, "ledger", "helper", "origins", "policy")
_OPTIONAL = ("ledger", "helper", "origins")
_LOADERS = {"leader": load_leader_key, "helper": load_helper_key}
_OTHER = {"leader": "helper", "helper": "leader"}
_Kept = TypeVar("_Kept", Batches, AggregateBooks)


@dataclass(frozen=True)
class Settings:
    """The settings that an operator chooses for one of two servers.

    Args:
        key: the path of the server's private key file.
        mark: the path of the mark of `reports.db`, outside of the folder. A mark is a file that
            shows whether a database is an old copy. The mark of `books.db` has the same path with
            `.books` at its end.
        certificate: the path of the certificate that this server shows to the other server.
        certificate_key: the path of the private key of the file `certificate`.
        other_certificate: the path of the other server's certificate. This server trusts no other
            certificate.
        policy: the operator's demands on the plan. A plan that does not meet them is refused.
        ledger: the path or URL of the ledger of privacy budgets that is charged; None if the plan
            is without privacy.
        helper: at a leader the address of the helper, `https://HOST:PORT`; at a helper None.
        origins: the origins of web pages that may send reports, each as `https://page.example`.

    Raises:
        InvalidInputError: a text in `origins` is not the origin of a web page.
    """

    key: Path
    mark: Path
    certificate: Path
    certificate_key: Path
    other_certificate: Path
    policy: BatchPolicy
    ledger: str | None = None
    helper: str | None = None
    origins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_origins(self.origins)

    def absolute(self) -> Settings:
        """Return a copy of the settings with absolute paths.

        The path of the ledger becomes absolute, too, but not if `ledger` is a URL.

        Raises:
            InvalidInputError: `ledger` is a URL with a password, or of another database system.
        """
        paths = {name: getattr(self, name).absolute() for name in _PATHS}
        return replace(self, ledger=kept_ledger(self.ledger, SETTINGS), **paths)

    def files(self) -> list[str]:
        """Return the paths of all files that are named here, whether they exist or not.

        The ledger is among them, perhaps as a URL.
        """
        return [*(str(getattr(self, name)) for name in _PATHS), *filter(None, [self.ledger])]


class Claimed(NamedTuple):
    """The objects with which one process runs a server, as `AggregateFolder.claim` returns them.

    Once a later process claims the same folder, these objects can no longer write to its databases.

    Attributes:
        server: the campaign's server. It charges releases, and adds sums to `books.db`.
        store: the database `reports.db`, with the journal and the reports.
        batches: one `Batch` for each release of the plan, in order. Each holds `store` and the
            object that computes the sum of the release: a `Leader` or a `Helper`.
        books: the database `books.db`, to read which sums it has.
    """

    server: FrequencyServer
    store: BatchStore
    batches: list[Batch[Any]]
    books: Campaigns


@dataclass(frozen=True)
class AggregateFolder:
    """The folder of one of two servers on disk; make it with `create`, or read it with `open`.

    `create` checks that the files fit together. `open` checks each file alone, and compares the
    candidates with the plan. `claim` also compares the key, the allow-list and the policy with the
    plan.

    Args:
        path: the folder.
        side: the role of the server, "leader" or "helper".
        plan: the published plan, with sums that two servers compute.
        allow_list: the registered clients.
        settings: the settings that the operator chose.
        domain: at a leader the candidate items; at a helper None.
    """

    path: Path
    side: Side
    plan: Plan
    allow_list: AllowList
    settings: Settings
    domain: Domain | None

    @classmethod
    def create(
        cls,
        path: Path,
        side: Side,
        *,
        plan: str | os.PathLike[str],
        allow_list: str | os.PathLike[str],
        settings: Settings,
        candidates: str | os.PathLike[str] | None = None,
        schedule: Schedule | None = None,
    ) -> Self:
        """Make the folder of a server, with copies of the plan, allow-list and candidates.

        The two marks, which are outside of the folder, are made too. Everything is checked before
        the folder is made. After an error, neither the folder nor a mark was made.

        Args:
            path: the folder, which must not exist.
            side: the role of the server, "leader" or "helper".
            plan: the path of the published plan.
            allow_list: the path of the list that the plan names.
            settings: the settings that the operator chose.
            candidates: the path of the list of candidate items, if the plan has only their digest;
                for a leader only.
            schedule: when the releases close: clients then begin no new reports for them. It is for
                a leader only. None: each release closes at the end of its last round, if the plan
                has a calendar; when it has all reports that the plan allows; or when the operator
                runs the command `close`.

        Raises:
            InvalidInputError: the folder or a mark exists; the mark is in the folder; another
                folder uses the key; a file or setting is missing; a file or setting does not fit
                the plan; a key or certificate is no plain file; the ledger is a URL with a
                password; the ledger has too little budget for the plan, or another run charged the
                plan to it; a helper is given `candidates`, `schedule` or `settings.helper`; or a
                leader is not given `settings.helper`.
            UnreadableFileError: a file cannot be read.
            UnsafeParametersError: the policy refuses the plan.
        """
        if path.exists():
            raise InvalidInputError(f"{path} exists already: name another folder")
        _check_helper(path, side, settings.helper)
        if side == "helper":  # it reads no sum, and accepts reports whenever the leader does
            for name, value in {"candidates": candidates, "schedule": schedule}.items():
                if value is not None:
                    raise InvalidInputError(
                        f"{name} is for the leader's folder, and {path} is a helper's: leave"
                        f" {name} out"
                    )
        loaded = _checked_plan(plan)
        domain = of_description(loaded.domain, candidates) if side == "leader" else None
        listed, absolute = load_allow_list(allow_list), settings.absolute()
        made = cls(path, side, loaded, listed, absolute, domain)
        for name in _PATHS:
            if name != "mark":
                check_plain_file(name, getattr(absolute, name))
        made._check()
        made._check_budget()
        with archive.drafted(path) as draft:
            made._write(draft, has_list=candidates is not None, schedule=schedule)
            with (
                made._given_key(),
                new_mark(absolute.mark),
                new_mark(_books_mark(absolute.mark)),
            ):
                draft.rename(path)
        return made

    def _write(self, folder: Path, *, has_list: bool, schedule: Schedule | None) -> None:
        """Write the files of a new folder.

        Args:
            folder: the folder, which exists.
            has_list: whether to write the candidates of a leader into a file. This is needed if the
                plan has only the digest of the candidates.
            schedule: when the releases of a leader close, as for `create`.
        """
        self.plan.save(folder / PLAN)
        save_allow_list(folder / ALLOW_LIST, self.allow_list)
        if has_list and self.domain is not None:
            write_candidates(folder / CANDIDATES, self.domain)
        with archive.replacing(folder / SETTINGS) as temporary:
            Path(temporary).write_text(self._to_toml(), encoding="utf-8")
        if self.side == "leader":
            Closings(folder).write(schedule or Schedule(of_calendar(self.plan)))

    @classmethod
    def open(cls, path: Path, side: Side) -> Self:
        """Read the folder of a server, and return it.

        Args:
            path: the folder.
            side: the role that the server must have, "leader" or "helper".

        Raises:
            UnreadableFileError: the folder does not belong to a server, or a file in it cannot be
                read.
            InvalidInputError: the folder belongs to a server of the other role, an entry of
                `aggregate.toml` is wrong, the plan is not for two servers, or the candidates are
                not the plan's.
        """
        values = _read_settings(path / SETTINGS)
        if (found := values["side"]) != side:
            raise InvalidInputError(
                f"{path} is the folder of the {found}: fedtally aggregate {found} ..."
            )
        plan, candidates = _checked_plan(path / PLAN), path / CANDIDATES
        domain = None
        if side == "leader":
            domain = of_description(plan.domain, candidates if candidates.exists() else None)
        settings = _settings(values)
        return cls(path, side, plan, load_allow_list(path / ALLOW_LIST), settings, domain)

    @property
    def report_bytes(self) -> int:
        """The number of bytes of a frame (a message) that brings one report to this server."""
        return int(self._made().report_bytes)

    def _made(self) -> Any:
        """Make a leader or helper in memory, to check that key, allow-list and policy fit the plan.

        The caller must not open a sum with it: nothing would be recorded.

        Raises:
            InvalidInputError: the key or the allow-list is not the plan's.
            UnreadableFileError: the key cannot be read.
            UnsafeParametersError: the policy refuses the plan.
        """
        server, key = FrequencyServer(self.plan, MemoryBooks()), _LOADERS[self.side]
        make = server.leader if self.side == "leader" else server.helper
        policy, loaded = self.settings.policy, key(self.settings.key)
        return make(0, policy, self.allow_list, MemoryJournal(), loaded, random=bytes)

    # ---- the process ----

    def claim(self, *, clock: Callable[[], int], random: Callable[[int], bytes]) -> Claimed:
        """Open the databases of the server for this process alone, and return the server's objects.

        Afterwards, a process that claimed the folder earlier cannot write to the databases.

        Args:
            clock: returns the time in Unix seconds.
            random: a cryptographic source; `random(n)` returns n uniform bytes.

        Raises:
            InvalidInputError: a database is lost (see `check_kept`) or does not agree with its
                mark; the key or the allow-list is not the plan's; the mark is in the folder; the
                plan has privacy and the settings name no ledger; or the plan has no privacy and the
                settings name a ledger.
            UnreadableFileError: a file, or the key, cannot be read.
            UnsafeParametersError: the policy refuses the plan.
            BatchRefusedError: the journal says that the key belongs to another plan, or that a
                batch (the reports of a release) has noise that no `FrequencyServer` drew.
        """
        # The check is repeated, since `aggregate.toml` may have been edited since the folder was
        # made.
        self._check_places()
        mark, ledger = self.settings.mark, self._ledger()
        key = _LOADERS[self.side](self.settings.key)
        # Before a database is made: an empty one would look as if the server had never run.
        self.check_kept()
        books = AggregateBooks.open(self.path / BOOKS, create=True)
        kept = books.claim(
            self.plan,
            mark=_books_mark(mark),
            clock=clock,
            owner=random(32).hex(),
            ledger=ledger,
        )
        store = Batches.open(self.path / REPORTS, create=True).claim(
            self.plan, self.side, mark=mark
        )
        server = FrequencyServer(self.plan, kept)
        make = server.leader if self.side == "leader" else server.helper
        batches: list[Batch[Any]] = []
        for number, rounds in enumerate(self.plan.releases):
            made = make(
                number,
                self.settings.policy,
                self.allow_list,
                store,
                key,
                random=random,
                reports=store.reports(rounds),
            )
            batches.append(Batch(store, made))
        return Claimed(server, store, batches, books)

    def check_databases(self) -> None:
        """Refuse the databases of the folder if this version of fedtally cannot read them.

        A database that does not exist yet is not checked. The function writes nothing, so a process
        may run the server at the same time.

        Raises:
            UnreadableFileError: another version of fedtally wrote a database.
            StoreError: a database cannot be used.
        """
        self._opened(Batches, REPORTS)
        self._opened(AggregateBooks, BOOKS)

    def _opened(self, kind: type[_Kept], name: str) -> _Kept | None:
        """Open a database of the folder for reading; None if the file is missing or empty.

        Args:
            kind: the class of the database.
            name: the name of its file.
        """
        return opened_if_made(kind.open, self.path / name)

    def check_kept(self) -> None:
        """Refuse a folder that has lost a database: with a new one a second sum could be opened.

        If both a database and its mark are gone, nobody knows whether a client has reported, and
        this function refuses the folder (see `places.how_lost`). It writes nothing.

        Raises:
            InvalidInputError: a database is lost.
            UnreadableFileError: a database or a mark cannot be read.
            StoreError: a database cannot be used.
        """
        for name in (BOOKS, REPORTS):
            self._check_database(name)

    def _check_database(self, name: str) -> None:
        mark = self.settings.mark if name == REPORTS else _books_mark(self.settings.mark)

        def has_begun() -> bool:
            kept: Batches | AggregateBooks | None = (
                self._opened(Batches, REPORTS)
                if name == REPORTS
                else self._opened(AggregateBooks, BOOKS)
            )
            return kept is not None and kept.is_claimed()

        if how := how_lost(self.path / name, mark, self.plan.fingerprint, has_begun):
            raise InvalidInputError(
                f"{how}; clients may have reported, and their open releases are lost: put no copy"
                f" back, end both servers (fedtally aggregate {self.side} retire {self.path}"
                f" --give-up, and so at the {_OTHER[self.side]}), and begin with new keys and a new"
                " plan"
            )

    def runner(self) -> Runner | None:
        """Return the process that runs the server.

        Returns None if no process runs it, or if the lock cannot be read.
        """
        return holder(self.path)

    # ---- the end ----

    @property
    def is_retired(self) -> bool:
        """Whether the file `retired` exists: `retire` makes it, and then destroys the key.

        If `retire` ended between these two steps, by a crash or an error, the key is still there,
        until `retire` is called again.
        """
        return (self.path / RETIRED).exists()

    def landed(self) -> set[int]:
        """Return the numbers, from 0, of the releases that need no more work of this server.

        At a leader these are the releases with a sum in `books.db`, and the releases that can never
        get a sum. At a helper they are the releases that the leader reported to be over. The
        function only reads the folder, so a process may run the server at the same time.
        """
        numbers = range(len(self.plan.releases))
        if self.side == "helper":
            if (store := self._opened(Batches, REPORTS)) is None:
                return set()
            names = {each: landed_name(self.plan.releases[each]) for each in numbers}
            return {each for each in numbers if store.kept(names[each])}
        found = Closings(self.path).read().releases
        lost = {each for each in numbers if found[each].lost is not None}
        books = self._opened(AggregateBooks, BOOKS)
        if books is None or not books.is_claimed():
            return lost
        rounds = books.status(self.plan).landed
        return lost | {each for each in numbers if self.plan.releases[each].start in rounds}

    def _untold(self) -> list[int]:
        """Return the numbers, from 0, of the releases not recorded here as told to the helper.

        A leader tells the helper when a release is over, and then records it. Releases that are not
        over are in the list, too. At a helper the list is empty.
        """
        if self.side == "helper":
            return []
        found = Closings(self.path).read().releases
        return [number for number, each in enumerate(found) if not each.told]

    def retire(self, number: int, *, give_up: bool = False) -> list[str]:
        """Destroy the server's private key, so that nobody can read a report of the plan any more.

        Args:
            number: the PID of this process, which locks the folder during the call.
            give_up: whether to destroy the key even if a release is not over. The reports of that
                release are lost then. A leader's key is then also destroyed if the folder does not
                say that the helper was told of the end of each release. The files that say which
                releases are over may be missing.

        Returns:
            With `give_up`: the names of the files that say which releases are over, if they are
            gone or damaged, so that they were not looked at. Otherwise an empty list.

        Raises:
            InvalidInputError: another process runs the server, or the key cannot be destroyed, or
                was destroyed before. Without `give_up` also: a release is not over, or a leader has
                not told the helper that a release is over.
            UnreadableFileError: the key is missing or damaged. Without `give_up` also: a file that
                says which releases are over cannot be read.
        """
        with held_by(self.path, number):
            unread = self._unread() if give_up else []
            if not give_up:
                self._check_over()
            if self.is_retired and not self.settings.key.exists():
                raise InvalidInputError(f"the key of {self.path} was destroyed before")
            # The file `retired` is made before the key is destroyed. If this process dies between
            # the two steps, the key is left, but no process receives reports with it. In the other
            # order, a process could start without a key.
            (self.path / RETIRED).touch()
            retire_key(self.settings.key)
        return unread

    def _check_over(self) -> None:
        """Refuse to destroy the key while a release is not over.

        A leader also refuses it if the helper does not know that a release is over.
        """
        still = sorted(set(range(len(self.plan.releases))) - self.landed())
        if still:
            raise InvalidInputError(
                f"release {still[0]} of {self.path} has not landed, and has no sum without the key:"
                f" fedtally aggregate {self.side} status {self.path}, or --give-up to lose it"
            )
        if untold := self._untold():
            raise InvalidInputError(
                f"the helper has not heard that release {untold[0]} is over, and keeps its key"
                f" until it has: fedtally aggregate leader run {self.path} tells it, or --give-up"
                " to leave that out"
            )

    def _unread(self) -> list[str]:
        """Return the names of the files that `landed` reads and that are gone or damaged."""
        looks: dict[str, Callable[[], object]] = {REPORTS: partial(self._check_database, REPORTS)}
        if self.side == "leader":
            looks = {
                CLOSINGS: Closings(self.path).read,
                BOOKS: partial(self._check_database, BOOKS),
            }
        found = []
        for name, look in looks.items():
            try:
                look()
            except FedtallyError:
                found.append(name)
        return found

    # ---- the answer ----

    def save_result(
        self, claimed: Claimed, random: Callable[[int], bytes], command: str = ""
    ) -> None:
        """Save the result in `result.fed`, after adding the noise if the leader adds it.

        The function does nothing if `books.db` has no sum. A trusted leader adds the noise to all
        sums at once. So with a trusted leader, the function does nothing until each release has its
        sum or is lost (`Closing.lost`).

        Args:
            claimed: the objects of the server, from `claim`.
            random: the source of randomness, as for `claim`.
            command: the command line of this process, which is written into the result.
        """
        landed = claimed.books.status(self.plan).landed
        is_whole = len(self.landed()) == len(self.plan.releases)
        if not landed or (self.plan.protection.sums is Sums.SECRET and not is_whole):
            return
        sums = claimed.server.release(random)
        assert self.domain is not None  # only a leader saves a result, and it has a domain
        summed = self._summed(claimed, list(landed.values()))
        made = Result(self.plan, self.domain, sums, secure_sum=summed, command=command)
        made.save(self.path / RESULT)

    def _summed(self, claimed: Claimed, sizes: list[int]) -> dict[str, Any]:
        """Return the parameters and numbers of the secure sum, as a JSON object for the result.

        Args:
            claimed: the objects of the server, from `claim`.
            sizes: for each release that has a sum, the number of reports in the sum; not empty.
        """
        agreed, refused = self.plan.secure_sum, 0
        assert agreed is not None
        for number, batch in enumerate(claimed.batches):
            with batch.server() as leader:
                refused += len(leader.refused) if claimed.server.has_landed_batch(number) else 0
        proofs = {} if self.plan.report_proof is None else {"refused": refused}
        return {
            **agreed.summary(),
            "engine": "servers",
            "cohorts": len(sizes),
            "smallest_cohort": min(sizes),
            "largest_cohort": max(sizes),
            "clients": sum(sizes) + refused,
            "survivors": sum(sizes),
            "fewest_survivors": min(sizes),
            **proofs,
        }

    # ---- checks ----

    @contextmanager
    def _given_key(self) -> Iterator[None]:
        """Write the folder's path into the file beside the key; undo it if the `with` block fails.

        A key must not be used in two folders, for two reasons. Only the journal of one folder
        records which sums were opened with the key, so the other folder could open a sum again. And
        `retire` of one folder would destroy the key of the other folder, whose reports would be
        lost.

        Raises:
            InvalidInputError: the file beside the key says that a folder uses this key already.
        """
        key, place = self.settings.key, _of_key(self.settings.key)
        public = _LOADERS[self.side](key).public.hex()
        known = place.read_text(encoding="utf-8") if place.exists() else ""
        found, _, folder = known.strip().partition(" ")
        if found == public:
            raise InvalidInputError(
                f"{key} is the key of {folder}, and a key is for one folder and one plan: make a"
                f" new one for a new plan (fedtally keys new {self.side}); if {folder} is gone and"
                f" no client ever reported to it, remove {place}"
            )
        with archive.replacing(place) as temporary:
            Path(temporary).write_text(f"{public} {self.path.absolute()}\n", encoding="utf-8")
        try:
            yield
        except BaseException:
            if known:  # the entry of an earlier key at the same path stays valid
                place.write_text(known, encoding="utf-8")
            else:
                place.unlink(missing_ok=True)
            raise

    def _check(self) -> None:
        """Refuse settings, an allow-list or a key that does not fit the plan."""
        self._check_places()
        check_allow_list(self.plan, self.allow_list)
        self._made()

    def _check_places(self) -> None:
        """Refuse a mark in the folder, privacy without a ledger, and a ledger without privacy."""
        check_mark(self.settings.mark, self.path, str(self.path))
        check_ledger(self.settings.ledger, self.plan)

    def _check_budget(self) -> None:
        """Refuse a plan that is above the budget in the ledger, or that another run has charged.

        Otherwise clients would send reports, and no sum could ever be opened.
        """
        ledger, privacy = self._ledger(), self.plan.privacy
        if ledger is None or privacy is None:
            return
        try:
            ledger.check_charge(Charge(privacy.population, self.plan.fingerprint, 0, privacy.event))
        except OverspentError as error:
            raise InvalidInputError(
                f"the ledger {ledger.name} does not cover this plan: {error.marked}"
            ) from error

    def _ledger(self) -> Ledger | None:
        return None if self.settings.ledger is None else Ledger.open(self.settings.ledger)

    def _to_toml(self) -> str:
        settings, policy = self.settings, self.settings.policy
        values: dict[str, Any] = {"schema": SCHEMA, "side": self.side}
        values |= {name: str(getattr(settings, name)) for name in _PATHS}
        for name in ("ledger", "helper"):
            if getattr(settings, name) is not None:
                values[name] = getattr(settings, name)
        values["origins"] = list(settings.origins)
        terms = {"min_honest": policy.min_honest, "corrupt": policy.corrupt}
        return toml.document(values | {"policy": terms | {"validity": str(policy.validity)}})


def landed_name(rounds: range) -> bytes:
    """Return the key of the journal entry by which a helper records that a release is over.

    The helper writes the entry when the leader says that the release has its sum, or will never
    have one.

    Args:
        rounds: the rounds of the release; not empty.
    """
    return b"landed" + struct.pack("<II", rounds[0], rounds[-1])


def _books_mark(mark: Path) -> Path:
    """Return the path of the mark of `books.db`, given the path of the mark of `reports.db`."""
    return mark.with_name(f"{mark.name}.books")


def _of_key(key: Path) -> Path:
    """Return the path of the file beside a key in which the key's folder is written."""
    return Path(f"{os.path.realpath(key)}.folder")


def _checked_plan(path: str | os.PathLike[str]) -> Plan:
    """Return the plan in a file, if two servers can sum it.

    Raises:
        InvalidInputError: the plan lacks a key, or two servers do not compute its sums.
    """
    plan = Plan.load(path)
    plan.check_published()
    plan.summing.of_servers()
    return plan


def _read_settings(path: Path) -> dict[str, Any]:
    """Return the entries of an `aggregate.toml`, by name.

    Raises:
        UnreadableFileError: there is no such file, it cannot be read, or it is of another version.
        InvalidInputError: an entry is missing or unknown; a path or an address is not a text; or a
            leader's folder has no entry `helper`, or a helper's folder has this entry.
    """
    values = read_settings(path, SCHEMA, "aggregate", _ENTRIES, _OPTIONAL)
    for name in ("side", *_PATHS, *(each for each in ("ledger", "helper") if each in values)):
        text_in(SETTINGS, values, name)
    _check_helper(path, values["side"], values.get("helper"))
    return values


def _check_helper(path: Path, side: str, helper: str | None) -> None:
    """Refuse a leader that has no address of its helper, and a helper that has one.

    Args:
        path: the folder of the server, or its settings file.
        side: the role of the server.
        helper: the address of the helper; None: the settings have none.

    Raises:
        InvalidInputError: the address is refused.
    """
    if (side == "leader") != (helper is not None) or helper == "":
        raise InvalidInputError(
            f"{path} is of a {side}, and has {helper!r} as the address of its helper: a leader's"
            " settings name it, as https://HOST:PORT, and a helper's settings do not"
        )


def _settings(values: dict[str, Any]) -> Settings:
    policy = validate.table(f"policy of {SETTINGS}", values["policy"], _POLICY)
    given: dict[str, Any] = {name: Path(values[name]) for name in _PATHS}
    given |= {name: values.get(name) for name in ("ledger", "helper")}
    given["origins"] = texts_in(SETTINGS, {"origins": []} | values, "origins")
    return Settings(policy=BatchPolicy(**policy), **given)
