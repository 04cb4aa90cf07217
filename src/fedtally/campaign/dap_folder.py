"""The folder of one DAP server: the files that it needs to serve a task and to survive a crash.

::

    NAME/
      dap.toml    the paths of keys, secret and mark, the policy, the web pages that may report
      task.toml   the public file of the task
      reports.db  the database of the server
      lock        locked by the process that serves the folder; holds its PID

A backup of the folder must not contain the keys and the secret. The mark shows that an old copy of
the database was restored, so it must not be restored together with the folder. So keys, secret and
mark lie elsewhere.
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
LEAST_BATCH = 10  # the fewest reports of a batch that an operator accepts, by default
_ENTRIES = ("schema", "role", "keys", "secret", "mark", "origins", "ca", "policy", "noise")


@dataclass(frozen=True)
class DapPolicy:
    """The demands of an operator on a task.

    Args:
        min_batch: the fewest reports of a batch, at least 2: the sum of one report would show it.

    >>> DapPolicy()
    DapPolicy(min_batch=10)
    """

    min_batch: int = LEAST_BATCH

    def __post_init__(self) -> None:
        object.__setattr__(self, "min_batch", validate.integer(2, min_batch=self.min_batch))

    def check(self, task: Task) -> None:
        """Refuse a task that is weaker than this policy allows.

        Raises:
            UnsafeParametersError: the task allows batches with too few reports.
        """
        if task.min_batch < self.min_batch:
            raise UnsafeParametersError(
                f"the task's batches may have {task.min_batch} reports, and this policy demands"
                f" {self.min_batch} or more: agree on a task with larger batches"
            )


@dataclass(frozen=True)
class DapSettings:
    """The settings that an operator chooses for a server.

    Args:
        keys: the paths of the server's private key files. Clients seal reports to the first key;
            the server opens reports that are sealed to any of them.
        secret: the path of the secret file of the task.
        mark: the path of the mark, a file outside of the folder that shows whether an old copy of
            the database was restored.
        policy: the operator's demands on the task.
        origins: the origins of web pages that may report, as `https://page.example`.
        ca: the path of the CA certificates by which a leader checks the helper; None: the system's.
        noise: the noise that this server adds to its share of each batch; the other server adds
            the same. None: no noise, so that the sums are exact.
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
        """Return the settings with all paths absolute."""
        return replace(
            self,
            keys=tuple(each.absolute() for each in self.keys),
            secret=self.secret.absolute(),
            mark=self.mark.absolute(),
            ca=self.ca and self.ca.absolute(),
            noise=self.noise and self.noise.absolute(),
        )


@dataclass(frozen=True)
class DapFolder:
    """The folder of a DAP server on disk; `create` and `open` return it.

    `create` checks everything. `open` checks the settings, the task and the policy; `claim` also
    checks the keys, the secret, the mark and the noise.

    Args:
        path: the folder.
        role: the role of the server, leader or helper.
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
        """Make the folder of a server, with a copy of the public file of the task.

        Everything is checked before the folder is made. The folder is complete, or is not made.

        Args:
            path: the folder, which must not exist.
            role: the role of the server, leader or helper.
            task: the path of the public file of the task.
            settings: the settings that the operator chose.

        Raises:
            InvalidInputError: the folder exists, or a key, the secret, the mark or the noise cannot
                be used.
            UnreadableFileError: a file cannot be read.
            UnsafeParametersError: the task is weaker than the policy allows.
        """
        if path.exists():
            raise InvalidInputError(f"{path} exists already: name another folder")
        made = cls(path, role, load_task(task), settings.absolute())
        check_mark(made.settings.mark, path, str(path))
        made.settings.policy.check(made.task)
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
        """Return the server in a folder.

        Args:
            path: the folder.
            role: the role that the server must have.

        Raises:
            UnreadableFileError: the folder is no server's, or a file in it cannot be read.
            InvalidInputError: the folder is the other server's, or an entry of `dap.toml` is wrong.
            UnsafeParametersError: the task is weaker than the policy allows.
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

    def keyring(self) -> Keyring:
        """Return the server's private keys, to which clients seal reports.

        Raises:
            UnreadableFileError, InvalidInputError: as for `keyring_of`.
        """
        return keyring_of(self.settings.keys)

    def secret(self) -> TaskSecret:
        """Return the secret of the task from the path in the settings.

        Raises:
            UnreadableFileError: the file cannot be read.
            InvalidInputError: the file is damaged, is open to other users, or is of another task.
        """
        secret = load_secret(self.settings.secret)
        secret.verify_key(self.task)
        return secret

    def claim(self, *, clock: Callable[[], int], random: Callable[[int], bytes]) -> Leader | Helper:
        """Open the database for this process alone, and return the running server.

        After that, an older process cannot use the database any more.

        Args:
            clock: returns the time, Unix seconds.
            random: returns as many uniform bytes as it is asked for, from a cryptographic source.

        Raises:
            InvalidInputError: a key or the secret cannot be used, the database does not agree with
                the mark or the task, or the noise cannot be charged.
            UnreadableFileError: a file cannot be read.
        """
        from fedtally.store import DapFile  # it loads SQLAlchemy, which only a running server needs

        secret, keys = self.secret(), self.keyring()
        file = DapFile.open(self.path / REPORTS, create=True)
        store = file.claim(self.task, self.role, mark=self.settings.mark)
        make, noise = Leader if self.role is Role.LEADER else Helper, self.settings.noise
        if noise is None:
            return make(self.task, secret, keys, store)
        added = LedgerNoise(noise, self.task, store, clock=clock, random=random)
        return make(self.task, secret, keys, store, added)

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
    """Return the keys in private key files, by their `key_number`.

    Raises:
        UnreadableFileError, InvalidInputError: a file holds no aggregator key, or two keys have
            the same number.
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
