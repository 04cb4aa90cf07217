"""The folder of one of two servers: what it needs to take reports, and to go on after a crash.

::

    NAME/
      aggregate.toml  where the key, the mark, the ledger and the certificates are, and the policy
      plan.toml       the published plan
      clients.allow   the registered clients
      candidates.txt  of a leader: the candidate items, where the plan holds only their digest
      reports.db      the journal of the server, and the sealed reports
      books.db        what was charged, and which sums have landed
      closings.json   of a leader: when each release closes
      state.json      how far the process is, for `status`
      lock            held by the process that runs; its number is in it
      result.fed      of a leader: the answer
      retired         there once the key was destroyed

The key must not be in a backup of the folder, and the marks must not be put back together with it.
So they lie elsewhere. A file beside the key says which folder it was given to.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from fedtally.answer.result import Result
from fedtally.base import archive, toml, validate
from fedtally.campaign.books import MemoryBooks
from fedtally.campaign.closings import Closing, Closings, Schedule
from fedtally.campaign.enrolment import check_allow_list, load_allow_list, save_allow_list
from fedtally.campaign.key_files import load_helper_key, load_leader_key, retire_key
from fedtally.campaign.places import (
    check_ledger,
    check_mark,
    check_origins,
    held_by,
    holder,
    read_settings,
    text_in,
    texts_in,
    write_candidates,
)
from fedtally.campaign.server import FrequencyServer
from fedtally.domain import Domain
from fedtally.errors import InvalidInputError
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


@dataclass(frozen=True)
class Settings:
    """What an operator decides of a server.

    Args:
        key: the path of its private key file.
        mark: the path of the mark of its reports, outside of the folder; that of the mark of its
            books ends in `.books`.
        certificate: the path of the certificate that it shows to the other server.
        certificate_key: the path of the private key of that.
        other_certificate: the path of the certificate of the other server, which alone is believed.
        policy: the operator's own.
        ledger: the path or URL of the ledger that is charged; None: the plan is without privacy.
        helper: the address of the helper, `https://HOST:PORT`, for a leader.
        origins: the origins of web pages that may report, as `https://page.example`.

    Raises:
        InvalidInputError: one is no origin.
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
        """Return the settings with paths that hold in every working directory."""
        ledger = self.ledger
        if ledger is not None and "://" not in ledger:
            ledger = str(Path(ledger).absolute())
        paths = {name: getattr(self, name).absolute() for name in _PATHS}
        return replace(self, ledger=ledger, **paths)


class Claimed(NamedTuple):
    """What a process runs: nobody else can write the folder meanwhile.

    Attributes:
        server: made with the books of the folder.
        store: the journal and the reports.
        batches: a server for each release of the plan.
        books: the file of the books.
    """

    server: FrequencyServer
    store: BatchStore
    batches: list[Batch[Any]]
    books: Campaigns


@dataclass(frozen=True)
class AggregateFolder:
    """One of two servers on disk, checked when it is opened; made by `create` and `open`.

    Args:
        path: the folder.
        side: the server that it is of.
        plan: the published plan, summed by two servers.
        allow_list: the registered clients.
        settings: what the operator decided.
        domain: the candidate items, for a leader.
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
        """Make the folder of a server; plan, allow-list and candidates are copied.

        Everything is checked before the folder is made, and the folder is whole or not there.

        Args:
            path: the folder, which must not exist.
            side: the server that it is of.
            plan: the path of the published plan.
            allow_list: the path of the list that the plan names.
            settings: what the operator decided.
            candidates: the list of the candidate items, where the plan holds only their digest.
            schedule: the times at which the releases of a leader close; None: when `close` says so,
                or when they are full.

        Raises:
            InvalidInputError: the folder exists, or something is missing or does not fit the plan.
            UnreadableFileError: a file cannot be read.
        """
        if path.exists():
            raise InvalidInputError(f"{path} exists already: name another folder")
        loaded = _checked_plan(plan)
        domain = of_description(loaded.domain, candidates) if side == "leader" else None
        listed, absolute = load_allow_list(allow_list), settings.absolute()
        made = cls(path, side, loaded, listed, absolute, domain)
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
        """Write the files of a new folder; `has_list`: the plan has only a digest of its list."""
        self.plan.save(folder / PLAN)
        save_allow_list(folder / ALLOW_LIST, self.allow_list)
        if has_list and self.domain is not None:
            write_candidates(folder / CANDIDATES, self.domain)
        with archive.replacing(folder / SETTINGS) as temporary:
            Path(temporary).write_text(self._to_toml(), encoding="utf-8")
        if self.side == "leader":
            usual = Schedule((Closing(),) * len(self.plan.releases))
            Closings(folder).write(schedule or usual)

    @classmethod
    def open(cls, path: Path, side: Side) -> Self:
        """Return the server in a folder.

        Args:
            path: the folder.
            side: the server that it must be of.

        Raises:
            UnreadableFileError: there is no server, or a file of it cannot be read.
            InvalidInputError: it is the other server's, or an entry of `aggregate.toml` is wrong,
                or the files do not fit.
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
        """The bytes of the frame of a report to this server."""
        return int(self._made().report_bytes)

    def _made(self) -> Any:
        """Return a server that opens nothing: its keys, list and policy fit the plan."""
        server, key = FrequencyServer(self.plan, MemoryBooks()), _LOADERS[self.side]
        make = server.leader if self.side == "leader" else server.helper
        policy, loaded = self.settings.policy, key(self.settings.key)
        return make(0, policy, self.allow_list, MemoryJournal(), loaded, random=bytes)

    # ---- the process ----

    def claim(self, *, clock: Callable[[], int], random: Callable[[int], bytes]) -> Claimed:
        """Return the server, its store and its batches for this process alone.

        Args:
            clock: returns the time, Unix seconds.
            random: returns as many uniform bytes as it is asked for, from a cryptographic source.

        Raises:
            InvalidInputError: a file, its mark, or an entry of `aggregate.toml` does not fit.
            UnreadableFileError: a file, or the key, cannot be read.
        """
        self._check_places()  # the file of settings may have been edited since the folder was made
        mark, ledger = self.settings.mark, self._ledger()
        key = _LOADERS[self.side](self.settings.key)
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

    def runner(self) -> int | None:
        """Return the number of the process that runs it; None: no process does."""
        return holder(self.path)

    # ---- the end ----

    @property
    def is_retired(self) -> bool:
        """Whether the key was destroyed, or is about to be."""
        return (self.path / RETIRED).exists()

    def landed(self) -> set[int]:
        """Return the numbers of the releases whose sum has landed, or is lost for good.

        A helper knows it from the leader. It changes nothing, and disturbs no process.
        """
        numbers = range(len(self.plan.releases))
        if self.side == "helper":
            if not (self.path / REPORTS).exists():
                return set()
            kept = Batches.open(self.path / REPORTS).kept
            return {each for each in numbers if kept(landed_name(self.plan.releases[each]))}
        found = Closings(self.path).read().releases
        lost = {each for each in numbers if found[each].lost is not None}
        if not (self.path / BOOKS).exists():
            return lost
        rounds = Campaigns.open(self.path / BOOKS).status(self.plan).landed
        return lost | {each for each in numbers if self.plan.releases[each].start in rounds}

    def _untold(self) -> list[int]:
        """Return the releases of a leader of whose end the helper has not heard."""
        if self.side == "helper":
            return []
        found = Closings(self.path).read().releases
        return [number for number, each in enumerate(found) if not each.told]

    def retire(self, number: int, *, give_up: bool = False) -> None:
        """Destroy the key: nobody reads a report of the plan any more.

        Args:
            number: the number of this process.
            give_up: whether to destroy it though releases are open, whose reports are lost then.

        Raises:
            InvalidInputError: a process runs the server, or a release is open, or the helper of a
                leader has not heard of its end; or the key cannot be destroyed.
            UnreadableFileError: there is no key.
        """
        with held_by(self.path, number):
            still = sorted(set(range(len(self.plan.releases))) - self.landed())
            if still and not give_up:
                raise InvalidInputError(
                    f"release {still[0]} of {self.path} has not landed, and has no sum without the"
                    f" key: fedtally aggregate {self.side} status {self.path}, or --give-up to lose"
                    " it"
                )
            untold = [] if still else self._untold()
            if untold and not give_up:
                raise InvalidInputError(
                    f"the helper has not heard that release {untold[0]} is over, and keeps its key"
                    f" until it has: fedtally aggregate leader run {self.path} tells it, or"
                    " --give-up to leave that out"
                )
            if self.is_retired and not self.settings.key.exists():
                raise InvalidInputError(f"the key of {self.path} was destroyed before")
            # First: a process that dies in between leaves a key that nobody runs, and no release
            # that waits for a key that is gone.
            (self.path / RETIRED).touch()
            retire_key(self.settings.key)

    # ---- the answer ----

    def save_result(
        self, claimed: Claimed, random: Callable[[int], bytes], command: str = ""
    ) -> None:
        """Release the sums that landed, and save the result of them.

        Where the leader adds the noise, it waits for all releases: they are released at once.

        Args:
            claimed: what this process runs.
            random: the source of randomness, as for `claim`.
            command: the command line that runs it, for a reader of the result.
        """
        landed = claimed.books.status(self.plan).landed
        is_whole = len(landed) == len(self.plan.releases)
        if not landed or (self.plan.protection.sums is Sums.SECRET and not is_whole):
            return
        sums = claimed.server.release(random)
        assert self.domain is not None  # of a leader
        summed = self._summed(claimed, list(landed.values()))
        made = Result(self.plan, self.domain, sums, secure_sum=summed, command=command)
        made.save(self.path / RESULT)

    def _summed(self, claimed: Claimed, sizes: list[int]) -> dict[str, Any]:
        """Return what summed the reports, for the result; JSON-able."""
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
        """Give the key to this folder, for ever; if the block fails, the key is free again.

        Only the journal of a key's folder knows which sums were opened with it. And whoever retires
        one of two folders would destroy the key of the other, whose reports are lost then.
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
            if known:  # of an earlier key that lay there: its folder still counts
                place.write_text(known, encoding="utf-8")
            else:
                place.unlink(missing_ok=True)
            raise

    def _check(self) -> None:
        """Refuse files that do not belong together, before anything is asked of clients."""
        self._check_places()
        check_allow_list(self.plan, self.allow_list)
        self._made()

    def _check_places(self) -> None:
        """Refuse a mark in the folder, and a plan with privacy whose ledger is not named."""
        check_mark(self.settings.mark, self.path, str(self.path))
        check_ledger(self.settings.ledger, self.plan)

    def _check_budget(self) -> None:
        """Refuse a ledger that cannot be charged: the server could never open a sum."""
        ledger, privacy = self._ledger(), self.plan.privacy
        if ledger is None or privacy is None:
            return
        try:
            ledger.check_charge(Charge(privacy.population, self.plan.fingerprint, 0, privacy.event))
        except OverspentError as error:
            raise InvalidInputError(
                f"the ledger {self.settings.ledger} does not cover this plan: {error.marked}"
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
    """Return the name in a helper's journal of the fact that the sum of a release has landed."""
    return b"landed" + struct.pack("<II", rounds[0], rounds[-1])


def _books_mark(mark: Path) -> Path:
    """Return the mark of the books, which belongs to that of the reports."""
    return mark.with_name(f"{mark.name}.books")


def _of_key(key: Path) -> Path:
    """Return the file that says which folder a key was given to."""
    return Path(f"{os.path.realpath(key)}.folder")


def _checked_plan(path: str | os.PathLike[str]) -> Plan:
    """Return a published plan that two servers sum."""
    plan = Plan.load(path)
    plan.check_published()
    plan.summing.of_servers()
    return plan


def _read_settings(path: Path) -> dict[str, Any]:
    """Return the entries of an aggregate.toml, of which none is unknown."""
    values = read_settings(path, SCHEMA, "aggregate", _ENTRIES, _OPTIONAL)
    for name in ("side", *_PATHS, *(each for each in ("ledger", "helper") if each in values)):
        text_in(SETTINGS, values, name)
    if (values["side"] == "leader") != ("helper" in values):
        raise InvalidInputError(
            f"{path} must name the helper's address, in a leader's folder alone"
        )
    return values


def _settings(values: dict[str, Any]) -> Settings:
    policy = validate.table(f"policy of {SETTINGS}", values["policy"], _POLICY)
    given: dict[str, Any] = {name: Path(values[name]) for name in _PATHS}
    given |= {name: values.get(name) for name in ("ledger", "helper")}
    given["origins"] = texts_in(SETTINGS, {"origins": []} | values, "origins")
    return Settings(policy=BatchPolicy(**policy), **given)
