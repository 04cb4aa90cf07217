"""The folder of one DAP server: the files with which it serves a task and survives a crash.

A DAP task is what two servers sum for a collector. Each server has a folder of its own::

    NAME/
      dap.toml    the paths of keys, secret and mark; the policy; the web pages that may report
      task.toml   the public file of the task
      reports.db  the database of the server
      lock        locked by the process that serves the folder; contains its PID
      lock.new    locked by a process that is about to serve the folder; contains its PID

Keys, secret and mark are outside of the folder. A backup of the folder must not contain the keys
and the secret. The mark is a small file that shows whether an old copy of the database was
restored, so it must not be restored together with the folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from fedtally.base import archive, toml, validate
from fedtally.campaign.dap_files import key_number, load_secret, load_task
from fedtally.campaign.dap_noise import DapNoise, LedgerNoise
from fedtally.campaign.key_files import load_aggregator_key
from fedtally.campaign.places import (
    check_mark,
    check_origins,
    check_plain_file,
    how_lost,
    kept_ledger,
    opened_if_made,
    read_settings,
    text_in,
    texts_in,
)
from fedtally.dap import Helper, Keyring, Leader, Task, TaskSecret
from fedtally.dap.draft18 import Role
from fedtally.errors import InvalidInputError
from fedtally.secagg.params import UnsafeParametersError
from fedtally.store.marks import new_mark

SCHEMA = "fedtally-dap-server/1"
SETTINGS, TASK, REPORTS = "dap.toml", "task.toml", "reports.db"
# the fewest reports in a batch that an operator accepts, unless the settings say otherwise
LEAST_BATCH = 10
_ENTRIES = ("schema", "role", "keys", "secret", "mark", "origins", "ca", "policy", "noise")


@dataclass(frozen=True)
class DapPolicy:
    """What the operator of a server demands from a task before the server serves it.

    Args:
        min_batch: the smallest number of reports that a batch may have, at least 2. The sum of a
            batch with one report would show the report.

    Raises:
        InvalidInputError: `min_batch` is below 2.

    >>> DapPolicy()
    DapPolicy(min_batch=10)
    """

    min_batch: int = LEAST_BATCH

    def __post_init__(self) -> None:
        object.__setattr__(self, "min_batch", validate.integer(2, min_batch=self.min_batch))

    def check(self, task: Task) -> None:
        """Refuse a task that allows batches with fewer reports than `min_batch` of this policy.

        Raises:
            UnsafeParametersError: the task is refused.
        """
        if task.min_batch < self.min_batch:
            raise UnsafeParametersError(
                f"the task's batches may have {task.min_batch} reports, and this policy demands"
                f" {self.min_batch} or more: agree on a task with larger batches"
            )


@dataclass(frozen=True)
class DapSettings:
    """The settings that an operator chooses for one DAP server.

    Args:
        keys: the paths of the server's private key files. Clients encrypt reports to the first key.
            The server also decrypts reports that were encrypted to another of the keys.
        secret: the path of the secret file of the task.
        mark: the path of the mark, a file outside of the folder that shows whether an old copy of
            the database was restored.
        policy: the operator's demands on the task. A task that does not meet them is refused.
        origins: the origins of web pages that may send reports, each as `https://page.example`.
        ca: the path of the CA certificates with which a leader checks the helper's certificate;
            None: the system's CA certificates.
        noise: the noise that this server adds to its share of each sum. The other server adds noise
            of the same size. None: no noise, so that the sums are exact.

    Raises:
        InvalidInputError: a text in `origins` is not the origin of a web page.
    """

    keys: tuple[Path, ...]
    secret: Path
    mark: Path
    policy: DapPolicy = DapPolicy()
    origins: tuple[str, ...] = ()
    ca: Path | None = None
    noise: DapNoise | None = None

    def __post_init__(self) -> None:
        check_origins(self.origins)

    def absolute(self) -> DapSettings:
        """Return a copy of the settings with absolute paths; the URL of a ledger is not changed.

        Raises:
            InvalidInputError: the ledger is a URL with a password, or of another database system.
        """
        noise = self.noise
        if noise is not None:
            noise = replace(noise, ledger=kept_ledger(noise.ledger, SETTINGS))
        return replace(
            self,
            keys=tuple(each.absolute() for each in self.keys),
            secret=self.secret.absolute(),
            mark=self.mark.absolute(),
            ca=self.ca and self.ca.absolute(),
            noise=noise,
        )


@dataclass(frozen=True)
class DapFolder:
    """The folder of a DAP server on disk; make it with `create`, or read it with `open`.

    `create` checks everything. `open` checks the settings, the task and the policy. `claim` checks
    the keys, the secret, the mark and the noise.

    Args:
        path: the folder.
        role: the role of the server, `Role.LEADER` or `Role.HELPER`.
        task: the task that the server serves.
        settings: the settings that the operator chose.
    """

    path: Path
    role: Role
    task: Task
    settings: DapSettings

    @classmethod
    def create(
        cls, path: Path, role: Role, *, task: str | os.PathLike[str], settings: DapSettings
    ) -> Self:
        """Make the folder of a server, with a copy of the public file of the task, and its mark.

        Everything but the CA file is checked before the folder gets its name. After an error,
        neither the folder nor the mark was made.

        Args:
            path: the folder, which must not exist.
            role: the role of the server, `Role.LEADER` or `Role.HELPER`.
            task: the path of the public file of the task.
            settings: the settings that the operator chose.

        Raises:
            InvalidInputError: the folder or the mark exists, the file of the task is damaged, or a
                key, the secret, the mark or the noise cannot be used; a file that the server reads
                again is no plain file; or the ledger is a URL with a password.
            UnreadableFileError: a file cannot be read.
            UnsafeParametersError: the policy refuses the task.
        """
        if path.exists():
            raise InvalidInputError(f"{path} exists already: name another folder")
        made = cls(path, role, load_task(task), settings.absolute())
        check_mark(made.settings.mark, path, str(path))
        made.settings.policy.check(made.task)
        made._check_plain_files()
        _ = made.keyring(), made.secret()
        if made.settings.noise is not None:
            made.settings.noise.check(made.task)
        with archive.drafted(path) as draft:
            for name, text in ((TASK, made.task.to_toml()), (SETTINGS, made._to_toml())):
                with archive.replacing(draft / name) as temporary:
                    Path(temporary).write_text(text, encoding="utf-8")
            with new_mark(made.settings.mark):
                draft.rename(path)
        return made

    @classmethod
    def open(cls, path: Path, role: Role) -> Self:
        """Read the folder of a DAP server, and return it.

        Args:
            path: the folder.
            role: the role that the server must have.

        Raises:
            UnreadableFileError: the folder does not belong to a DAP server, or a file in it cannot
                be read.
            InvalidInputError: the folder belongs to a server of the other role, an entry of
                `dap.toml` is wrong, or `task.toml` is damaged.
            UnsafeParametersError: the policy refuses the task.
        """
        values = read_settings(path / SETTINGS, SCHEMA, "dap", _ENTRIES, ("ca", "noise"))
        if values["role"] not in ("leader", "helper"):
            raise InvalidInputError(
                f"role of {SETTINGS} must be leader or helper, got {values['role']!r}"
            )
        if values["role"] != role.name.lower():
            raise InvalidInputError(
                f"{path} is the folder of the {values['role']}: fedtally dap {values['role']} ..."
            )
        made = cls(path, role, load_task(path / TASK), _settings(values))
        made.settings.policy.check(made.task)
        return made

    def _check_plain_files(self) -> None:
        """Refuse the path of a key, of the secret or of a CA file that is no plain file."""
        for key in self.settings.keys:
            check_plain_file("key", key)
        check_plain_file("secret", self.settings.secret)
        if self.settings.ca is not None:
            check_plain_file("ca", self.settings.ca)

    def keyring(self) -> Keyring:
        """Return the server's private keys, with which it decrypts reports, by their `key_number`.

        Raises:
            UnreadableFileError, InvalidInputError: as for `keyring_of`.
        """
        return keyring_of(self.settings.keys)

    def secret(self) -> TaskSecret:
        """Read the secret of the task, from the path in the settings, and return it.

        Raises:
            UnreadableFileError: the file cannot be read.
            InvalidInputError: the file is damaged, other users have a right on it, or it is of
                another task.
        """
        secret = load_secret(self.settings.secret)
        secret.verify_key(self.task)
        return secret

    def claim(self, *, clock: Callable[[], int], random: Callable[[int], bytes]) -> Leader | Helper:
        """Open the database for this process alone, and return the running server.

        Afterwards, a process that claimed the folder earlier cannot write to the database.

        Args:
            clock: returns the time in Unix seconds.
            random: a cryptographic source; `random(n)` returns n uniform bytes.

        Raises:
            InvalidInputError: a key or the secret cannot be used, the database is lost (see
                `check_kept`) or does not agree with the mark or the task, or the noise cannot be
                charged to the ledger.
            UnreadableFileError: a file cannot be read.
        """
        # imported here, because it loads SQLAlchemy, and only a running server needs it
        from fedtally.store import DapFile

        secret, keys = self.secret(), self.keyring()
        # Before the database is made: an empty one would look as if the server had never run.
        self.check_kept()
        file = DapFile.open(self.path / REPORTS, create=True)
        store = file.claim(self.task, self.role, mark=self.settings.mark)
        make, noise = Leader if self.role is Role.LEADER else Helper, self.settings.noise
        if noise is None:
            return make(self.task, secret, keys, store)
        added = LedgerNoise(noise, self.task, store, clock=clock, random=random)
        return make(self.task, secret, keys, store, added)

    def check_kept(self) -> None:
        """Refuse a folder that has lost its database: a new one could add reports to a second sum.

        If both the database and its mark are gone, nobody knows whether a client has reported, and
        this function refuses the folder (see `places.how_lost`). It writes nothing.

        Raises:
            InvalidInputError: the database is lost.
            UnreadableFileError: the database or the mark cannot be read.
            StoreError: the database cannot be used.
        """
        from fedtally.store import DapFile

        place, mark = self.path / REPORTS, self.settings.mark

        def has_begun() -> bool:
            kept = opened_if_made(DapFile.open, place)
            return kept is not None and kept.is_claimed()

        if how := how_lost(place, mark, self.task.id.hex(), has_begun):
            raise InvalidInputError(
                f"{how}; clients may have reported, and what it held is lost: put no copy back, and"
                " begin a new task with the other operator and the collector"
            )

    def _to_toml(self) -> str:
        settings = self.settings
        values: dict[str, Any] = {
            "schema": SCHEMA,
            "role": self.role.name.lower(),
            "keys": [str(each) for each in settings.keys],
            "secret": str(settings.secret),
            "mark": str(settings.mark),
            "origins": list(settings.origins),
        }
        if settings.ca is not None:
            values["ca"] = str(settings.ca)
        values["policy"] = {"min_batch": settings.policy.min_batch}
        if settings.noise is not None:
            values["noise"] = settings.noise.to_dict()
        return toml.document(values)


def keyring_of(paths: Sequence[Path]) -> Keyring:
    """Return the private keys in some files, by their `key_number`.

    Args:
        paths: the paths of the key files.

    Raises:
        UnreadableFileError, InvalidInputError: as for `load_aggregator_key`.
        InvalidInputError: there is no path, or two keys have the same number.
    """
    keys = [load_aggregator_key(each) for each in paths]
    numbered = {key_number(each.public): each for each in keys}
    if len(numbered) < len(keys):
        raise InvalidInputError(
            "two keys have the same number: make another key (fedtally keys new aggregator)"
        )
    return Keyring(numbered)


def _settings(values: dict[str, Any]) -> DapSettings:
    policy = validate.table(f"policy of {SETTINGS}", values["policy"], ["min_batch"])
    keys, origins = (texts_in(SETTINGS, values, name) for name in ("keys", "origins"))
    return DapSettings(
        tuple(map(Path, keys)),
        Path(text_in(SETTINGS, values, "secret")),
        Path(text_in(SETTINGS, values, "mark")),
        DapPolicy(**policy),
        origins,
        Path(text_in(SETTINGS, values, "ca")) if "ca" in values else None,
        DapNoise.from_dict(values["noise"]) if "noise" in values else None,
    )
