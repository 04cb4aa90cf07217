"""A task of DAP: the parameters that all parties agree on, in a public and a secret file.

The public file has everything that the messages are bound to, and the collector's key. Everybody
may read it. The secret file has the seed of the verification key, which both servers know. Whoever
has the seed can make invalid reports that pass verification. So the two files are separate.

The id of a task is the SHA-256 of its configuration, which contains 16 random bytes: two tasks with
equal parameters have different ids. Both servers agree on the seed before the task exists, and
derive the key from the seed and the id. So nobody can choose the key after a report is made.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cached_property
from operator import attrgetter
from typing import Any, NamedTuple, Self

from fedtally.base import toml, validate
from fedtally.crypto.keys import Secret, hkdf
from fedtally.dap.draft18 import (
    DRAFT,
    TASK_INTERVAL,
    BatchMode,
    Empty,
    Extension,
    HpkeConfig,
    Interval,
    Prio3HistogramConfig,
    Prio3SumVecConfig,
    TaskConfiguration,
    vdaf_context,
)
from fedtally.dap.presentation import Message
from fedtally.dap.sealing import config
from fedtally.dap.versions import VERSIONS, Version
from fedtally.errors import InvalidInputError, reason
from fedtally.flp.prio3 import SEED_BYTES, Prio3

PUBLIC_SCHEMA, SECRET_SCHEMA = "fedtally-dap-task/1", "fedtally-dap-secret/1"
INFO_BYTES, ID_BYTES, DIGEST_BYTES = 16, 32, 32

_SEED = re.compile(f"[0-9a-f]{{{2 * SEED_BYTES}}}")
# A base address: a host and a path, without a user, a query or a fragment.
_URL = re.compile(r"https?://[A-Za-z0-9._:\[\]-]+(/[!\"$->@-~]*)?")
_ENTRIES = ("schema", "draft", "id", "info", "leader", "helper", "precision", "min_batch")
_TABLES = ("interval", "vdaf", "collector")


class _Kind(NamedTuple):
    """A kind of VDAF: count, sumvec or histogram.

    Attributes:
        number: the number of the VDAF in the draft's table.
        sizes: the class of the message that has its sizes.
        make: a function from a class of Prio3 to its method that makes the VDAF of given sizes.
        is_hidden: whether noise can hide a report. It can if any two reports differ in at most two
            counters, by 1 each.
    """

    number: int
    sizes: type[Message]
    make: Callable[[type[Prio3]], Callable[..., Prio3]]
    is_hidden: bool


# One row for each VDAF. The fields of its message are the entries of the table `vdaf` in a file.
KINDS = {
    "count": _Kind(1, Empty, attrgetter("count"), True),
    "sumvec": _Kind(3, Prio3SumVecConfig, attrgetter("sum_vec"), False),
    "histogram": _Kind(4, Prio3HistogramConfig, attrgetter("histogram"), True),
}
_NAMES = {kind.number: name for name, kind in KINDS.items()}


@dataclass(frozen=True)
class Task:
    """The parameters of a task, which all parties agree on.

    Args:
        configuration: the parameters that all messages are bound to.
        collector: the collector's key configuration, to which both servers seal their shares.
        draft: the draft whose reports are accepted, 18 or 9; all other messages are of draft 18.

    Raises:
        InvalidInputError: a parameter is out of range, or is not supported here.

    >>> from fedtally.crypto.hpke_aad import RecipientKey
    >>> key = RecipientKey(Secret(bytes(32))).public
    >>> task = Task.make(
    ...     "histogram", {"buckets": 4, "chunk": 2}, info=bytes(16), leader="https://a.example/",
    ...     helper="https://b.example/", precision=3600, min_batch=100, start=3600, end=36000,
    ...     collector=config(1, key))
    >>> task.interval, len(task.id), Task.from_toml(task.to_toml()) == task
    (Interval(start=1, duration=9), 32, True)
    """

    configuration: TaskConfiguration
    collector: HpkeConfig
    draft: int = DRAFT

    def __post_init__(self) -> None:
        of = self.configuration
        if validate.integer(0, draft=self.draft) not in VERSIONS:
            known = " or ".join(map(str, VERSIONS))
            raise InvalidInputError(f"draft must be {known}, got {self.draft!r}")
        _sized("info", of.task_info, INFO_BYTES)
        for name in ("leader", "helper"):
            url = getattr(of, name).decode("latin-1")
            if not _URL.fullmatch(url):
                raise InvalidInputError(f"{name} must be an address as https://..., got {url!r}")
        if of.leader.rstrip(b"/").lower() == of.helper.rstrip(b"/").lower():
            raise InvalidInputError(
                "leader and helper must have two addresses: one server would read all reports"
            )
        validate.integer(1, precision=of.precision)
        validate.integer(1, min_batch=of.min_batch)
        if of.batch_mode != BatchMode.TIME_INTERVAL or of.batch_config:
            raise InvalidInputError("a task must be of the batch mode time_interval, got another")
        if [each.type for each in of.extensions] != [TASK_INTERVAL]:
            raise InvalidInputError("a task must have the extension task_interval, and no other")
        if not self.interval.is_valid:
            raise InvalidInputError("interval must end after it starts, and before 2^64")
        if of.vdaf_type not in _NAMES:
            known = ", ".join(f"{type} ({name})" for type, name in _NAMES.items())
            raise InvalidInputError(f"vdaf_type must be one of {known}, got {of.vdaf_type}")
        _ = self.prio3  # this checks the sizes of the VDAF
        config(self.collector.id, self.collector.key)

    @classmethod
    def make(
        cls,
        vdaf: str,
        sizes: dict[str, int],
        *,
        info: bytes,
        leader: str,
        helper: str,
        precision: int,
        min_batch: int,
        start: int,
        end: int,
        collector: HpkeConfig,
        draft: int = DRAFT,
    ) -> Self:
        """Return a task.

        Args:
            vdaf: one of "count", "sumvec" and "histogram".
            sizes: the sizes of the VDAF by name. sumvec: entries, maximum and chunk; histogram:
                buckets and chunk; count: none.
            info: 16 random bytes that no other task has.
            leader: the base address of the leader, a URL.
            helper: the base address of the helper, a URL.
            precision: the shortest interval that can be collected, in seconds.
            min_batch: the least number of reports in a batch.
            start: the first time that a report may have, Unix seconds, a multiple of the precision.
            end: the first time after all reports, Unix seconds, a multiple of the precision.
            collector: the collector's key configuration.
            draft: the draft whose reports are accepted, 18 or 9.
        """
        if vdaf not in KINDS:
            raise InvalidInputError(f"vdaf must be one of {', '.join(KINDS)}, got {vdaf!r}")
        kind = KINDS[vdaf]
        entries = validate.table("vdaf", sizes, [each.name for each in fields(kind.sizes)])
        precision = validate.integer(1, precision=precision)
        for name, seconds in (("start", start), ("end", end)):
            if validate.integer(0, **{name: seconds}) % precision:
                raise InvalidInputError(
                    f"{name} must be a multiple of the precision, {precision} s, got {seconds}"
                )
        first, last = start // precision, end // precision
        interval = Interval(first, max(0, last - first))
        configuration = TaskConfiguration(
            info,
            leader.encode(),
            helper.encode(),
            precision,
            validate.integer(1, min_batch=min_batch),
            BatchMode.TIME_INTERVAL,
            b"",
            kind.number,
            kind.sizes(**entries).encode(),
            (Extension(TASK_INTERVAL, interval.encode()),),
        )
        return cls(configuration, collector, draft)

    @cached_property
    def encoded(self) -> bytes:
        """The encoded configuration, which all parties hash."""
        return self.configuration.encode()

    @cached_property
    def id(self) -> bytes:
        """The id of the task: the SHA-256 of its configuration, 32 bytes.

        In draft 09 the name of the version is hashed before the configuration.
        """
        return hashlib.sha256(self.version.in_id + self.encoded).digest()

    @property
    def version(self) -> Version:
        """The form of the reports of this task."""
        return VERSIONS[self.draft]

    @cached_property
    def interval(self) -> Interval:
        """The times that reports may have, in units of the precision."""
        return Interval.decode(self.configuration.extensions[0].data)

    @property
    def min_batch(self) -> int:
        """The least number of reports in a batch."""
        return self.configuration.min_batch

    @property
    def vdaf(self) -> str:
        """The name of the VDAF: "count", "sumvec" or "histogram"."""
        return _NAMES[self.configuration.vdaf_type]

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The sizes of the VDAF by name, in the form that `make` accepts."""
        kind = KINDS[self.vdaf]
        sizes = kind.sizes.decode(self.configuration.vdaf_configuration)
        return {each.name: getattr(sizes, each.name) for each in fields(kind.sizes)}

    @cached_property
    def prio3(self) -> Prio3:
        """The VDAF, bound to this task."""
        make = KINDS[self.vdaf].make(self.version.protocol)
        return make(*self.sizes.values(), context=vdaf_context(self.id))

    def check_noise(self) -> None:
        """Refuse noise if it would not hide a report of this task.

        Raises:
            InvalidInputError: if one report is replaced by another, more than two counters may
                change, or a counter may change by more than 1.
        """
        if not KINDS[self.vdaf].is_hidden:
            raise InvalidInputError(
                "noise is for a count and a histogram: a report of a sumvec may change its sum by"
                " any vector, so leave the noise out"
            )

    def time(self, seconds: float) -> int:
        """Return a time in the unit of reports: Unix seconds over the precision, rounded down."""
        return int(seconds) // self.configuration.precision

    # ---- the public file ----

    def to_toml(self) -> str:
        """Return the text of the public file."""
        of = self.configuration
        head = {
            "schema": PUBLIC_SCHEMA,
            "draft": self.draft,
            "id": to_text(self.id),
            "info": of.task_info.hex(),
            "leader": of.leader.decode(),
            "helper": of.helper.decode(),
            "precision": of.precision,
            "min_batch": of.min_batch,
        }
        interval = {
            "start": self.interval.start * of.precision,
            "end": self.interval.end * of.precision,
        }
        vdaf = {"kind": self.vdaf} | self.sizes
        collector = {"id": self.collector.id, "key": self.collector.key.hex()}
        return toml.document(head | {"interval": interval, "vdaf": vdaf, "collector": collector})

    @classmethod
    def from_toml(cls, text: str) -> Self:
        """Return the task in the text of a public file.

        Raises:
            InvalidInputError: the file is damaged or has another version, or its id is not the id
                of its task.
        """
        values = _read(text, PUBLIC_SCHEMA, (*_ENTRIES, *_TABLES))
        interval = validate.table("interval", values["interval"], ["start", "end"])
        collector = validate.table("collector", values["collector"], ["id", "key"])
        if not isinstance(values["vdaf"], dict) or "kind" not in values["vdaf"]:
            raise InvalidInputError("vdaf must be a table with the entry kind")
        sizes = {name: size for name, size in values["vdaf"].items() if name != "kind"}
        number = validate.integer(0, 255, id=collector["id"])
        task = cls.make(
            _text(values["vdaf"], "kind"),
            sizes,
            info=_hex(values, "info"),
            leader=_text(values, "leader"),
            helper=_text(values, "helper"),
            precision=values["precision"],
            min_batch=values["min_batch"],
            start=interval["start"],
            end=interval["end"],
            collector=config(number, _hex(collector, "key")),
            draft=values["draft"],
        )
        if from_text(_text(values, "id"), ID_BYTES) != task.id:
            raise InvalidInputError(
                f"id is not the digest of this task, which is {to_text(task.id)}; fetch the file"
                " again"
            )
        return task


@dataclass(frozen=True)
class TaskSecret:
    """The secret of a task, which only its two servers know.

    Args:
        task_id: the id of the task, 32 bytes.
        seed: 32 random bytes that both servers agreed on before the task existed.
        collector: the SHA-256 of the collector's bearer token, 32 bytes. The token is not derived
            from the seed: otherwise the helper, which has the seed, could ask the leader for sums.
            With zeros nobody can ask for sums.

    >>> secret = TaskSecret(bytes(32), Secret(bytes(range(32))))
    >>> secret
    TaskSecret(task_id=b'...', seed=Secret(hidden))
    >>> TaskSecret.from_toml(secret.to_toml()) == secret
    True
    """

    task_id: bytes
    seed: Secret = field(hash=False)
    collector: bytes = field(default=bytes(DIGEST_BYTES), repr=False)

    def __post_init__(self) -> None:
        _sized("task", self.task_id, ID_BYTES)
        self.seed.reveal(SEED_BYTES)
        _sized("collector", self.collector, DIGEST_BYTES)

    def verify_key(self, task: Task) -> bytes:
        """Return the verification key of a task (draft 18, section 8.6.2).

        It has 32 bytes; in draft 09 it is the first 16 of these bytes.

        Raises:
            InvalidInputError: the secret belongs to another task.
        """
        if task.id != self.task_id:
            raise InvalidInputError(
                f"the secret file is of the task {to_text(self.task_id)}, got {to_text(task.id)}"
            )
        key = bytes(hkdf(self.seed, b"verify_key", task.id).reveal())
        return key[: task.prio3.seed_bytes]

    @property
    def leader_token(self) -> str:
        """The bearer token that the leader sends to the helper; it does not reveal the seed.

        >>> TaskSecret(bytes(32), Secret(bytes(32))).leader_token[:8]
        'oepnlqtV'
        """
        return to_text(bytes(hkdf(self.seed, b"leader token", self.task_id).reveal()))

    def to_toml(self) -> str:
        """Return the text of the secret file, which must have mode 0600."""
        values = {"task": to_text(self.task_id), "seed": bytes(self.seed.reveal()).hex()}
        return toml.document(
            {"schema": SECRET_SCHEMA} | values | {"collector": self.collector.hex()}
        )

    @classmethod
    def from_toml(cls, text: str) -> Self:
        """Return the secret in the text of a secret file.

        Raises:
            InvalidInputError: the file is damaged or has another version. The text of the error
                never shows the seed.
        """
        values = _read(text, SECRET_SCHEMA, ("schema", "task", "seed", "collector"))
        task_id = from_text(_text(values, "task"), ID_BYTES)
        seed = values["seed"]
        if not isinstance(seed, str) or not _SEED.fullmatch(seed):
            raise InvalidInputError(f"seed must be {2 * SEED_BYTES} digits in hexadecimal")
        return cls(task_id, Secret(bytes.fromhex(seed)), _hex(values, "collector"))


def token_digest(token: str) -> bytes:
    """Return the SHA-256 of a bearer token, 32 bytes: servers store this instead of the token."""
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()


def to_text(id: bytes) -> str:
    """Return an id in the form that URLs have: base64url without padding.

    >>> to_text(bytes(16))
    'AAAAAAAAAAAAAAAAAAAAAA'
    """
    return base64.urlsafe_b64encode(id).decode().rstrip("=")


def from_text(text: str, length: int) -> bytes:
    """Return the id in a text that `to_text` made.

    Args:
        text: the text.
        length: the number of bytes that the id must have.

    Raises:
        InvalidInputError: `to_text` does not make this text, or the id has another length.
    """
    try:
        id = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
    except (ValueError, binascii.Error):
        id = b""
    if len(id) != length or to_text(id) != text:
        raise InvalidInputError(f"an id must be {length} bytes in base64url, got {text!r}")
    return id


def _read(text: str, schema: str, entries: tuple[str, ...]) -> dict[str, Any]:
    try:
        values = toml.loads(text)
    except ValueError as error:
        raise InvalidInputError(f"the file is no TOML{reason(error)}") from None
    if values.get("schema") != schema:
        raise InvalidInputError(
            f"the file has the schema {values.get('schema')!r}, and this version reads {schema}"
        )
    return validate.table("the file", values, entries)


def _text(values: dict[str, Any], name: str) -> str:
    value = values[name]
    if not isinstance(value, str):
        raise InvalidInputError(f"{name} must be a text, got {type(value).__name__}")
    return value


def _hex(values: dict[str, Any], name: str) -> bytes:
    text = _text(values, name)
    if not re.fullmatch("([0-9a-f]{2})*", text):
        raise InvalidInputError(f"{name} must be digits in hexadecimal, got {text!r}")
    return bytes.fromhex(text)


def _sized(name: str, value: bytes, length: int) -> None:
    if len(value) != length:
        raise InvalidInputError(f"{name} must have {length} bytes, got {len(value)}")
