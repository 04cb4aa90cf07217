"""The folder of one server of a DAP task: what it needs to serve, and to go on after a crash.

::

    NAME/
      dap.toml    where keys, secret and mark are, the policy, and which web pages may ask
      task.toml   the public file of the task
      reports.db  what the server keeps
      lock        held by the process that runs; its number is in it

Keys and the secret must not be in a backup of the folder, and the mark must not be put back
together with it. So they lie elsewhere.
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
LEAST_BATCH = 10  # reports, which an operator demands unless they say another number
_ENTRIES = ("schema", "role", "keys", "secret", "mark", "origins", "ca", "policy", "noise")


@dataclass(frozen=True)
class DapPolicy:
    """What an operator demands of a task.

    Args:
        min_batch: the fewest reports of a batch, at least 2: of one report the sum is the report.

    >>> DapPolicy()
    DapPolicy(min_batch=10)
    """

    min_batch: int = LEAST_BATCH

    def __post_init__(self) -> None:
        object.__setattr__(self, "min_batch", validate.integer(2, min_batch=self.min_batch))

    def check(self, task: Task) -> None:
        """Refuse a task that is weaker than this policy allows.

        Raises:
            UnsafeParametersError: its batches may be too small.
        """
        if task.min_batch < self.min_batch:
            raise UnsafeParametersError(
                f"the task's batches may have {task.min_batch} reports, and this policy demands"
                f" {self.min_batch} or more: agree on a task with larger batches"
            )


@dataclass(frozen=True)
class DapSettings:
    """What an operator decides of a server.

    Args:
        keys: the paths of its private key files: clients seal to the first, and all of them open.
        secret: the path of the secret file of the task.
        mark: the path of the mark of its store, outside of the folder.
        policy: the operator's own.
        origins: the origins of web pages that may report, as `https://page.example`.
        ca: the path of the certificates that a leader trusts at the helper; None: the system's.
        noise: what this server adds to its share of each batch, as the other operator's does;
            None: nothing, and sums are exact.
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
        """Return the settings with paths that hold in every working directory."""
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
    """A server of a task on disk, checked when it is opened; made by `create` and `open`.

    Args:
        path: the folder.
        role: the server that it is of.
        task: the task.
        settings: what the operator decided.
    """

    path: Path
    role: Role
    task: Task
    settings: DapSettings

    @classmethod
    def create(
        cls, path: Path, role: Role, *, task: str | os.PathLike[str], settings: DapSettings
    ) -> Self:
        """Make the folder of a server; the public file of the task is copied.

        Everything is checked before the folder is made, and the folder is whole or not there.

        Args:
            path: the folder, which must not exist.
            role: the server that it is of.
            task: the path of the public file.
            settings: what the operator decided.

        Raises:
            InvalidInputError: the folder exists, or something does not fit the task.
            UnreadableFileError: a file cannot be read.
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
            role: the server that it must be of.

        Raises:
            UnreadableFileError: there is no server, or a file of it cannot be read.
            InvalidInputError: it is the other server's, or an entry of `dap.toml` is wrong.
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
        """Return the keys that reports are sealed to."""
        return keyring_of(self.settings.keys)

    def secret(self) -> TaskSecret:
        """Return the secret of the task."""
        secret = load_secret(self.settings.secret)
        secret.verify_key(self.task)
        return secret

    def claim(self, *, clock: Callable[[], int], random: Callable[[int], bytes]) -> Leader | Helper:
        """Return the server for this process alone.

        Args:
            clock: returns the time, Unix seconds.
            random: returns as many uniform bytes as it is asked for, from a cryptographic source.

        Raises:
            InvalidInputError: a file or its mark does not fit, or the noise cannot be charged.
            UnreadableFileError: a file cannot be read.
        """
        from fedtally.store import DapFile  # SQLAlchemy, which only a process needs

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
    """Return the keys in private key files, by numbers that follow from the keys.

    Raises:
        UnreadableFileError, InvalidInputError: a file holds no such key, or two have one number.
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
