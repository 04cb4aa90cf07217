"""Read `agent.toml`, the file in which the owner of an agent writes its settings.

`Settings.load` checks the file. An error lists every wrong entry, each with a way to correct it.
But first `load` checks who may use the agent's files. If other users may write one of them, or a
peer (a user who may connect to the agent's socket) may read agent.toml or the record, the error
lists only these files. `TEMPLATE` is the text that `fedtally agent init` writes into a new file. It
explains each entry. An entry that only the owner can decide is a line that begins with "# >".
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fedtally import domain
from fedtally.agent.accepted import AcceptedCampaigns
from fedtally.agent.agent import Agent, Note, check_binds
from fedtally.agent.consent import Consent
from fedtally.agent.demands import KINDS, AgentPolicy
from fedtally.agent.items import (
    MOST_READ_SECONDS,
    READ_SECONDS,
    Items,
    Reader,
    candidates_of,
    check_whole,
    of_file,
    of_python,
    of_sqlite,
)
from fedtally.agent.permissions import Permissions
from fedtally.agent.reading import Aside
from fedtally.base import toml, validate
from fedtally.base.links import real_path
from fedtally.campaign.key_files import Role, load_client_key, read_public_key
from fedtally.crypto.keys import KEY_BYTES, SigningKey
from fedtally.domain import Domain
from fedtally.errors import InvalidInputError, UnreadableFileError, opt, reason
from fedtally.privacy.budget import MAX_DAYS, MIN_DELTA, NAME, Cap, is_name
from fedtally.secagg.params import ClientPolicy

if TYPE_CHECKING:
    from fedtally.store import ClientRecord

FILE = "agent.toml"
NO_REGISTRAR = "no registrar is named: a plan counts as accepted by the owner's own act alone"
_NONE = "none"  # the value of epsilon that also allows plans without differential privacy
# the default paths, relative to the folder of agent.toml
_PLACES = {
    "key": "key/agent.key",
    "mark": "key/record.mark",
    "record": "record/record.db",
    "campaigns": "campaigns",
    "socket": "run/agent.sock",
}
TEMPLATE = """\
# What this client's agent holds, and what it demands. Paths count from the folder of this file.
# Lines that begin with "# >" must be filled in before the agent runs.

key = "key/agent.key"          # the client's private key (its .pub file goes to the registrar)
mark = "key/record.mark"       # shows that the record is no old copy: not into one backup with it
record = "record/record.db"    # what this client took part in: never put an old copy back
campaigns = "campaigns"        # what `fedtally agent accept` accepted
socket = "run/agent.sock"      # where the process that carries bytes connects
peers = []                     # users who may connect, besides the agent's own and root

# The public key of the registrar, 64 digits or its .pub file. Every plan must then be signed by it.
# Without it a plan counts as accepted by your own act alone.
# > registrar = "registrar.key.pub"

[items]
# Where your items are read, anew for every session. Exactly one of these. Leave `items` closed to
# others (mode 0700): who may search the folder sees how long the file is.
# > file = "items/items.csv"   # CSV, TSV, Parquet, JSON lines, or text with one item a line
#   column = "item"            # its column; two for a grid: ["latitude", "longitude"]
# > sqlite = "items/items.db"
#   query = "SELECT item FROM visits"
# of a silo, such as a hospital, the column that says whose each item is; only plans for silos
#   people = "patient"         # (fedtally plan --people); a query then gives two columns
# > python = "my_module:my_function"
#
# How long reading and encoding them may take. It is counted from the server's Invite.
seconds = 30
# Files with the candidate items, one a line, for plans that hold only their digest.
candidates = []
# A label of these items. The record takes each label once, whatever the plan. It is needed where
# epsilon is "none", and then changed whenever the items are new.
#   once = "2026-11"

[policy]
# The most that everything this client ever takes part in may cost together. Only you can say it.
# A small epsilon (1 or less) protects well; delta should be far below 1 / clients.
# > epsilon = 1.0
# > delta = 1e-8
# The epsilon may be for any 7 days, and not for everything: it renews, and all weeks together may
# then cost any amount.
#   per_days = 7
# Or write this line in place of both, and `once` above, to take plans without differential privacy,
# too. Sums of few clients then tell much.
#   epsilon = "none"

adversary = "active"           # "semi-honest": trust the server to follow the protocol
min_honest = 5                 # the fewest honest clients in a sum that yours is in
corrupt = 1                    # a plan must withstand so many clients that help its server
min_clients = 3                # the smallest cohort
max_clients = 1000             # the largest: each costs keys and time
max_length = 16777216          # the most counters that you upload in a round
max_seconds = 86400            # the longest session
sessions_a_day = 100
max_items = 1                  # the most of your items that one sketch holds
central = false                # true: a server may see exact sums and add the noise itself
domains = ["range", "integers", "dictionary", "grid"]  # or whole ones: "range:1..100"
# "open" among them takes plans that ask for any text, which nobody has listed.
known = []                     # public keys of clients that you know to be honest
least_known = 0                # at least so many of them must be in each sum that yours is in

# Plans that `fedtally agent accept --by-consent` may take without you. Without this table: none.
#     [consent]
#     registrar = "registrar.key.pub"
#     purpose = "drinks 2027"
#     candidates = ["range:1..100"]  # whole domains, or files of candidates
#     epsilon = 0.5                  # the most that one period may cost
#     until = 2027-12-31             # the latest last day of a plan
"""

_T = TypeVar("_T")


@dataclass(frozen=True)
class Settings:
    """The settings of an agent. `load` reads and checks them.

    Attributes:
        folder: the folder of agent.toml.
        key: the path of the client's private key.
        mark: the path of the record's mark, a small file that detects an old copy of the record. It
            must not be in the folder of the record: a backup that restores record and mark would
            not be detected.
        record: the path of the client's record of its participation.
        campaigns: the folder of the accepted campaigns.
        socket: the path of the agent's Unix socket.
        peers: the numbers of the users who may connect to the socket, besides root and the agent's
            own user.
        registrar: the public key that must have signed every plan, 32 bytes; None: no signature is
            needed.
        items: the client's items.
        once: a label of the items, a new one for new items. The record allows each label only once.
            None: there is no label.
        policy: what the owner demands of every plan.
        consent: the bounds within which plans are accepted without asking the owner; None: the
            owner must accept each plan.
    """

    folder: Path
    key: Path
    mark: Path
    record: Path
    campaigns: Path
    socket: Path
    peers: frozenset[int]
    registrar: bytes | None
    items: Items
    once: str | None = field(repr=False)  # the label may reveal items
    policy: AgentPolicy
    consent: Consent | None = None

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Settings:
        """Read and check the agent.toml in a folder, and return the settings.

        Args:
            folder: the folder of the agent.

        Raises:
            UnreadableFileError: there is no agent.toml, or it is not valid TOML.
            InvalidInputError: entries are wrong or missing; the message lists each of them, with a
                way to correct it. Or other users may write the agent's files, or a peer may read
                agent.toml or the record; then the message lists only these files.
        """
        place = Path(folder)
        path = place / FILE
        problems: list[str] = []
        main = _Table("", _entries(place), problems)
        items = _Table("items", main.take("items", _table, {}) or {}, problems)
        demands = _Table("policy", main.take("policy", _table, {}) or {}, problems)
        places = {
            name: place / (main.take(name, _text, default) or default)
            for name, default in _PLACES.items()
        }
        if places["mark"].resolve().parent == places["record"].resolve().parent:
            problems.append(
                f"mark: {places['mark']} lies in the folder of the record, and both would be put"
                " back together: name another folder"
            )
        peers = main.take("peers", _users, [])
        permissions = Permissions.of(place, peers or (), places["socket"])
        # Other users may have written agent.toml. So this check comes before any key or code that
        # agent.toml names is read or run.
        _check_kept(path, places, permissions)
        registrar = main.take(
            "registrar", lambda value: _key(place, value, Role.REGISTRAR, permissions), None
        )
        is_uncounted = demands.value("epsilon") == _NONE
        held, once = _items(place, items, permissions, _SAY_ONCE if is_uncounted else "")
        policy = _policy(place, demands, permissions)
        consent = None
        if main.has("consent"):  # a missing table is no consent, while an empty one is an error
            given = _Table("consent", main.take("consent", _table, {}) or {}, problems)
            consent = _consent(place, given, permissions, policy, registrar)
            given.end()
        for table in (main, items, demands):
            table.end()
        if problems or held is None or policy is None:
            raise InvalidInputError(f"{path}: {'; '.join(problems)}")
        return cls(
            place,
            **places,
            peers=peers,
            registrar=registrar,
            items=held,
            once=once,
            policy=policy,
            consent=consent,
        )

    def identity(self) -> SigningKey:
        """Read the client's signing key from its file, and return it.

        Raises:
            UnreadableFileError, InvalidInputError: as for `key_files.load_client_key`.
        """
        return load_client_key(self.key)

    def check_user(self) -> None:
        """Check that root does not run this process for an agent of another user.

        Root would write files that the agent of this user cannot use.

        Raises:
            InvalidInputError: root runs this process, and the folder of the agent belongs to
                another user. The message names this user and the way out.
        """
        holder = self.folder.stat().st_uid
        if os.geteuid() == 0 != holder:
            raise InvalidInputError(
                f"{self.folder} belongs to user {holder}, whose agent could not use what root"
                f" writes there: run this command as that user (sudo -u '#{holder}'), or, if the"
                f" agent runs as root, chown -R 0 {shlex.quote(os.fspath(self.folder))}"
            )

    def check_writable(self) -> None:
        """Check that this process may write the folders of the record and of its mark.

        A folder that is missing is skipped.

        Raises:
            InvalidInputError: this process may not write a folder: the user lacks the permission,
                or a sandbox makes the folder read-only.
        """
        for name, place in (("record", self.record), ("mark", real_path(self.mark))):
            # `open_record` reports a missing folder.
            if place.parent.exists() and not os.access(place.parent, os.W_OK | os.X_OK):
                raise InvalidInputError(
                    f"{self.folder / FILE}: {name}: the agent may not write the folder"
                    f" {place.parent}, and so would refuse every session: give it to the agent's"
                    " user, and under systemd name it in ReadWritePaths"
                )

    def open_record(self) -> ClientRecord:
        """Open the client's record, and check it against its mark and the policy.

        The policy's cap is not written into the record here, but by `agent.bind`.

        Raises:
            InvalidInputError: the record cannot enforce the policy, see `check_binds`. Or the
                record cannot be opened, or its mark says that it is an old copy.
        """
        from fedtally.store import ClientRecord  # imported here because it loads slowly

        record = ClientRecord.open(self.record, mark=self.mark)
        check_binds(record, self.policy, self.once)
        return record

    def accepted(self) -> AcceptedCampaigns:
        """Return the campaigns that were accepted for this client, by the plan's fingerprint.

        The mapping follows later changes of their folder.
        """
        return AcceptedCampaigns(self.campaigns, self.registrar)

    def agent(
        self, *, random: Callable[[int], bytes], now: float, log: Callable[[Note], None]
    ) -> Agent:
        """Open the record, read the key, and return an agent with these settings.

        See `Agent` for the arguments. The errors of `open_record`, `identity` and `Agent` are
        raised.
        """
        return Agent(
            self.policy,
            self.items,
            self.accepted(),
            self.open_record(),
            identity=self.identity(),
            random=random,
            now=now,
            log=log,
            once=self.once,
        )


class _Table:
    """A table of agent.toml. A wrong entry does not raise an error, but adds a message to
    `problems`.

    Args:
        name: the name of the table; "": the main table.
        values: the entries of the table.
        problems: the list of messages, shared by all tables.
    """

    def __init__(self, name: str, values: Mapping[str, Any], problems: list[str]) -> None:
        self._prefix = f"{name}." if name else ""
        self._values, self._problems = values, problems
        self._known: list[str] = []  # the names with which `take` was called

    def take(self, entry: str, read: Callable[[Any], _T], default: Any, says: str = "") -> Any:
        """Return the converted value of an entry; None if it is wrong, or missing without a
        default.

        Args:
            entry: the name of the entry.
            read: converts the TOML value, and raises an InvalidInputError if the value is wrong.
            default: the TOML value of a missing entry; None: there is no default.
            says: advice for a missing entry without a default, which is then a problem; "": it may
                be missing.
        """
        self._known.append(entry)
        value = self._values.get(entry, default)
        if value is None:
            if says:
                self._problems.append(f"{self._prefix}{entry} is missing: {says}")
            return None
        try:
            return read(value)
        except InvalidInputError as error:
            self._problems.append(f"{self._prefix}{entry}{reason(error)}")
            return None

    def has(self, entry: str) -> bool:
        """Return whether the table has an entry."""
        return entry in self._values

    def value(self, entry: str) -> Any:
        """Return the TOML value of an entry, unconverted; None: the table lacks the entry."""
        return self._values.get(entry)

    def make(self, entry: str, build: Callable[[], _T]) -> _T | None:
        """Return the result of `build`. If it raises an InvalidInputError, return None.

        The error is then a problem of the entry named `entry`.
        """
        try:
            return build()
        except InvalidInputError as error:
            self._problems.append(f"{self._prefix}{entry}{reason(error)}")
            return None

    def refuse(self, problem: str) -> None:
        """Add a problem that concerns the whole table, or several of its entries."""
        self._problems.append(f"{self._prefix.rstrip('.')}: {problem}")

    def end(self) -> None:
        """Add a problem for each entry whose name `take` was never called with: it is unknown."""
        for entry in self._values:
            if entry not in self._known:
                self._problems.append(
                    f"{self._prefix}{entry} is unknown: the entries here are"
                    f" {', '.join(self._known)}"
                )


def _check_kept(path: Path, places: Mapping[str, Path], permissions: Permissions) -> None:
    """Check which other users may write or read the agent's own files.

    The folder of the socket is checked, but not the socket.

    Args:
        path: the path of agent.toml.
        places: the paths of the agent's files by the names of their entries.
        permissions: the checks of the agent's files.

    Raises:
        InvalidInputError: other users may write one of these files and folders. Or a peer (a user
            who may connect to the socket) may read agent.toml or the record. The message lists each
            such file and folder.
    """
    files = [path, *(places[name] for name in ("key", "mark", "record"))]
    # Not the socket itself, because peers must be able to write to it.
    folders = [*(file.parent for file in files), places["campaigns"], places["socket"].parent]
    problems = permissions.kept(own=[*files, *folders])
    # agent.toml and the record have labels of the items, and agent.toml also has the query that
    # selects the items. Labels and query may reveal items.
    problems += permissions.unread(path, places["record"])
    if problems:
        raise InvalidInputError(f"{path}: {'; '.join(problems)}")


def _entries(place: Path) -> dict[str, Any]:
    """Return the entries of the agent.toml in a folder, as Python values.

    Raises:
        UnreadableFileError: there is no agent.toml, or it is not valid TOML.
    """
    path = place / FILE
    try:
        return toml.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnreadableFileError(
            f"there is no agent in {place} ({path}: {error.strerror}): name its folder"
            f" ({opt.agent}), or make one (fedtally agent init)"
        ) from None
    except ValueError as error:
        raise UnreadableFileError(f"{path} cannot be read: {error}") from None


def _items(
    place: Path, table: _Table, permissions: Permissions, say_once: str
) -> tuple[Items | None, str | None]:
    """Return the items and their label.

    The label is None if it is missing or wrong. The items are None if their reader cannot be made,
    or if the entry `candidates` or `seconds` is wrong.

    Args:
        place: the folder of agent.toml.
        table: its table `items`.
        permissions: the checks of the agent's files.
        say_once: advice for a missing label, if the label is required; otherwise "".
    """
    of_people = table.has("people")
    shown, reader = _reader(place, table, permissions)
    candidates = table.take(
        "candidates",
        lambda value: [
            known for name in _texts(value) for known in _candidates(place / name, permissions)
        ],
        [],
    )
    once = table.take("once", _label, None, say_once)
    seconds = table.take(
        "seconds",
        lambda value: validate.integer(1, MOST_READ_SECONDS, seconds=value),
        READ_SECONDS,
    )
    if reader is None or candidates is None or seconds is None:
        return None, once
    held = Items(
        reader,
        candidates,
        of_people=of_people,
        start=Aside(seconds),
        check=lambda: None if shown is None else _check_there(place / shown, permissions),
    )
    return held, once


def _reader(
    place: Path, table: _Table, permissions: Permissions
) -> tuple[str | None, Reader | None]:
    """Return the name of the file of the items, and the function that reads the items.

    The name is None if agent.toml names no file or database of items. The reader is None if it
    cannot be made. A wrong entry always adds a problem, even if the reader is made.
    """
    named = [name for name in ("file", "sqlite", "python") if table.has(name)]
    file, sqlite, python = (table.take(name, _text, None) for name in ("file", "sqlite", "python"))
    people = table.take("people", _text, None)
    reader: Reader | None = None
    if len(named) != 1:
        table.refuse(
            "name exactly one place where the items are read, as file, sqlite or python, got"
            f" {' and '.join(named) or 'none'}"
        )
    elif file is not None:
        column, format = table.take("column", _column, None), table.take("format", _text, None)
        watch = partial(permissions.reading, place / file)
        reader = table.make("file", lambda: of_file(place / file, column, format, people, watch))
    elif sqlite is not None:
        query = table.take("query", _text, None, "write the query that gives the items")
        watch = partial(permissions.reading, place / sqlite)
        reader = table.make("sqlite", lambda: of_sqlite(place / sqlite, query, people, watch))
    elif python is not None and people is not None:
        table.refuse("people goes with a file or with sqlite: let the function write one of them")
    elif python is not None:
        reader = table.make("python", lambda: of_python(python, permissions.check_kept))
    for entry, name in (("file", file), ("sqlite", sqlite)):
        if name is not None and reader is not None:
            table.make(entry, partial(permissions.check_closed, place / name))
    return file or sqlite, reader


def _check_there(file: Path, permissions: Permissions) -> None:
    """Check that the agent may read a file of items, and that no peer may see the file.

    Raises:
        UnreadableFileError: there is no such file, or the agent may not read it.
        InvalidInputError: a peer may see the file, or this cannot be told (see
            `Permissions.check_closed`). Or the path is a pipe or a device (see `check_whole`).
    """
    if not os.access(file, os.R_OK):
        raise UnreadableFileError(
            f"there is no file {file} that the agent may read: write one also where there is no"
            " item (a header alone)"
        )
    check_whole(file)
    permissions.check_closed(file)


def _candidates(path: Path, permissions: Permissions) -> list[Domain]:
    permissions.check_kept(path)
    return candidates_of(path)


def _policy(place: Path, table: _Table, permissions: Permissions) -> AgentPolicy | None:
    """Return the owner's policy; None if entries do not fit together, or one is wrong.

    But a wrong `per_days` only adds a problem, and the policy is made without it.
    """
    # Each entry is checked alone: a policy is made with this value and valid values for all other
    # arguments. So the rules of the class itself apply, and every wrong entry is reported, not only
    # the first.
    known = table.take(
        "known",
        lambda value: frozenset(
            _key(place, one, Role.CLIENT, permissions) for one in _texts(value)
        ),
        [],
    )
    least: dict[str, Any] = {"adversary": "active", "min_honest": 2, "known": known or frozenset()}
    sums: dict[str, Any] = {
        name: table.take(name, partial(_tried, ClientPolicy, least, name), default, says)
        for name, default, says in (
            ("adversary", "active", ""),
            ("min_honest", None, "say how small a crowd of honest clients you accept, as 5"),
            ("corrupt", 1, ""),
            ("min_clients", 3, ""),
            ("max_clients", 1000, ""),
            ("max_length", 2**24, ""),
            ("max_seconds", 86_400, ""),
            ("least_known", 0, ""),
        )
    }
    epsilon, delta, cap = _budget(table)
    harmless: dict[str, Any] = {"sums": ClientPolicy(**least), "cap": None}
    rest: dict[str, Any] = {
        name: table.take(name, partial(_tried, AgentPolicy, harmless, name), default)
        for name, default in (
            ("central", False),
            ("domains", list(KINDS)),
            ("max_items", 1),
            ("sessions_a_day", 100),
        )
    }
    found = [*sums.values(), *rest.values(), known, epsilon, delta]
    if any(value is None for value in found) or (cap is None and epsilon != _NONE):
        return None
    days = table.take("per_days", _per_days, None)
    if days is not None and epsilon == _NONE:
        table.refuse('per_days belongs to an epsilon, and epsilon is "none": leave it out')
    if cap is not None:
        cap = Cap(cap.epsilon, delta or 0.0, per_days=days)
    return table.make(
        "min_clients",
        lambda: AgentPolicy(sums=ClientPolicy(known=known, **sums), cap=cap, **rest),
    )


def _budget(table: _Table) -> tuple[Any, float | None, Cap | None]:
    """Return the values of epsilon and delta, and the cap for all campaigns together.

    A value that is missing or wrong is None, but an epsilon that is out of bounds is returned. The
    cap is None if epsilon is missing, wrong, out of bounds or "none". Its delta is only a
    placeholder, which `_policy` replaces.
    """
    epsilon = table.take("epsilon", _epsilon, None, _SAY_EPSILON)
    if epsilon == _NONE:
        delta = table.take("delta", _no_delta, None) if table.has("delta") else 0.0
    else:
        delta = table.take("delta", _delta, None, _SAY_DELTA)
    cap: Cap | None = None
    if epsilon not in (None, _NONE):
        cap = table.make("epsilon", lambda: Cap(epsilon, 1e-9))
    return epsilon, delta, cap


def _consent(
    place: Path,
    table: _Table,
    permissions: Permissions,
    policy: AgentPolicy | None,
    registrar: bytes | None,
) -> Consent | None:
    """Return the owner's standing consent; None if an entry is wrong by itself.

    An entry that does not fit the policy or the registrar of the main table only adds a problem.

    Args:
        place: the folder of agent.toml.
        table: its table `consent`.
        permissions: the checks of the agent's files.
        policy: the owner's policy; None: one of its entries is wrong.
        registrar: the registrar's public key in the main table, 32 bytes, which the consent must
            repeat; None: the main table has none, or a wrong one.
    """
    found: dict[str, Any] = {
        name: table.take(name, read, None, says)
        for name, read, says in (
            (
                "registrar",
                lambda value: _key(place, value, Role.REGISTRAR, permissions),
                "name the public key that must have signed",
            ),
            ("purpose", _text, "say what the plans must be for, in the registrar's words"),
            (
                "candidates",
                lambda value: tuple(
                    one for text in _texts(value) for one in _asked_about(place, text, permissions)
                ),
                'name what may be asked about, such as ["range:1..100"], or files of candidates',
            ),
            ("epsilon", lambda value: value, "say what one period may cost at most"),
            ("until", lambda value: value, "say the latest last day, such as 2027-01-31"),
        )
    }
    if any(value is None for value in found.values()):
        return None
    if policy is not None and policy.cap is None:
        table.refuse('a consent needs an epsilon in policy, and that is "none": leave it out')
    consent = table.make("bounds", lambda: Consent(**found))
    if consent is not None and consent.registrar != registrar:
        table.refuse("registrar must be the registrar of this agent, too")
    return consent


def _asked_about(place: Path, text: str, permissions: Permissions) -> list[Domain]:
    """Return the domains that a text names.

    A text with a colon is a domain, such as "range:1..100". Any other text is the path of a file of
    candidates.
    """
    if ":" not in text:
        return _candidates(place / text, permissions)
    return [domain.parse(text)]


_SAY_ONCE = (
    'a label of the items is needed where policy.epsilon is "none": a new plan could else let the'
    ' same items out again; write once = "2026-11", say, and change it when the items are new'
)
_SAY_EPSILON = (
    "say how much everything that this client ever takes part in may cost together, such as 1.0, or"
    ' "none" to take plans without differential privacy'
)
_SAY_DELTA = (
    "say the probability that the epsilon does not cover, far below 1 / clients: 1e-8, or 0 to take"
    " geometric noise alone"
)


def _tried(kind: Callable[..., Any], others: Mapping[str, Any], name: str, value: Any) -> Any:
    """Return the value of one field of a class, checked and converted by the class.

    An object of the class is made only for this check.

    Args:
        kind: the class.
        others: valid values for its other fields.
        name: the name of the field.
        value: the value from agent.toml.

    Raises:
        InvalidInputError: the value is wrong.
    """
    if name == "domains":
        value = tuple(_texts(value))
    return getattr(kind(**{**others, name: value}), name)


# ---- single values ----


def _epsilon(value: Any) -> Any:
    if isinstance(value, str) and value != _NONE:
        raise InvalidInputError(f'must be a number, such as 1.0, or "none", got {value!r}')
    return value


def _delta(value: Any) -> float:
    number = validate.real(delta=value)
    if not (number == 0 or MIN_DELTA <= number < 1):
        raise InvalidInputError(
            f"must be {MIN_DELTA:g} to below 1, or 0, got {number:g}: {_SAY_DELTA}"
        )
    return number


def _per_days(value: Any) -> int:
    return validate.integer(1, MAX_DAYS, per_days=value)


def _no_delta(value: Any) -> float:
    raise InvalidInputError(
        f'belongs to an epsilon, and epsilon is "none": leave it out, got {value!r}'
    )


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidInputError(f"must be a text in quotes, got {value!r}")
    if "\0" in value:  # system calls would raise a ValueError
        raise InvalidInputError(f"must not hold a zero byte, got {value!r}")
    return value


def _texts(value: Any) -> list[str]:
    if not isinstance(value, list):
        raise InvalidInputError(f'must be a list of texts, such as ["a", "b"], got {value!r}')
    return [_text(one) for one in value]


def _table(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidInputError(f"must be a table, got {value!r}")
    return value


def _column(value: Any) -> str | list[str]:
    if isinstance(value, list) and len(value) == 2:
        return _texts(value)
    return _text(value)


def _label(value: Any) -> str:
    if not is_name(value):
        # The message does not quote it, because a label may reveal items.
        raise InvalidInputError(f"must be {NAME}")
    return str(value)


def _users(value: Any) -> frozenset[int]:
    if not isinstance(value, list):
        raise InvalidInputError(f"must be a list of users, by name or number, got {value!r}")
    return frozenset(map(_user, value))


def _user(value: Any) -> int:
    """Return the number of a user, given as a number or a name."""
    import pwd

    if isinstance(value, str):
        try:
            return pwd.getpwnam(_text(value)).pw_uid
        except KeyError:
            raise InvalidInputError(
                f"there is no user {value!r} on this machine: name one, or give a number"
            ) from None
    return validate.integer(0, 2**32 - 2, user=value)


def _key(place: Path, value: Any, role: Role, permissions: Permissions) -> bytes:
    """Return a public key, 32 bytes; `value` is its hexadecimal digits, or the path of its file."""
    text = _text(value)
    if re.fullmatch(f"[0-9a-f]{{{2 * KEY_BYTES}}}", text):
        return read_public_key(text, role)
    permissions.check_kept(place / text)
    return read_public_key(place / text, role)
