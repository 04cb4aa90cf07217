"""A task of DAP: the parameters that all parties agree on, in a public and a secret file.

The public file has the configuration, which all messages are bound to, and the collector's key.
Everybody may read it. The secret file has the seed of the key by which both servers verify reports,
the verification key. Only the servers may read this file: whoever has the seed can make an invalid
report that passes verification.

The id of a task is a SHA-256 digest of its configuration, see `Task.id`. The configuration contains
16 random bytes, so two tasks with equal parameters have different ids. Both servers agree on the
seed before the task exists, and derive the verification key from the seed and the id. So nobody can
choose a key that fits reports which exist already.
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
    """A kind of VDAF, the scheme that splits and verifies measurements: count, sumvec or histogram.

    Attributes:
        number: the number of the VDAF in the draft's table.
        sizes: the class of the message whose fields are the sizes of the VDAF.
        make: a function from the class `Prio3` or `Prio3Draft08` to its method that makes this
            VDAF, such as `Prio3.histogram`. The arguments of the method are the sizes.
        is_hidden: whether the noise of a server can hide a report. This needs a VDAF in which one
            report, replaced by another, changes at most two counters of the sum, each by at most 1.
    """

    number: int
    sizes: type[Message]
    make: Callable[[type[Prio3]], Callable[..., Prio3]]
    is_hidden: bool


# The kinds of VDAF by name. In a task's public file the table `vdaf` has this name as its entry
# `kind`, and one entry for each field of the class `sizes`.
KINDS = {
    "count": _Kind(1, Empty, attrgetter("count"), True),
    "sumvec": _Kind(3, Prio3SumVecConfig, attrgetter("sum_vec"), False),
    "histogram": _Kind(4, Prio3HistogramConfig, attrgetter("histogram"), True),
}
_NAMES = {kind.number: name for name, kind in KINDS.items()}


@dataclass(frozen=True)
class Task:
    """The public parameters of a task, which all parties agree on.

    Args:
        configuration: the parameters that all messages are bound to.
        collector: the collector's key configuration: its public key with a number. Both servers
            seal their shares of a sum to this key.
        draft: the draft of DAP whose reports the leader accepts, 18 or 9. All other messages have
            the form of draft 18.

    Raises:
        InvalidInputError: a parameter is out of range, or fedtally does not support its value.
        RejectedError: the collector's key is not valid.

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
        """Make a task from its parameters in seconds and as texts.

        Args:
            vdaf: what a report adds to: "count", "sumvec" (a vector of sums) or "histogram".
            sizes: the sizes of the VDAF by name. sumvec: `entries`, the length of the vector,
                `maximum`, the largest number that an entry of a measurement may have, and `chunk`.
                histogram: `buckets`, the number of buckets, and `chunk`. count: none. `chunk`
                changes the length of the proof, not the sum (see `flp.circuits.SumVec`).
            info: 16 random bytes, drawn for this task only.
            leader: the base URL of the leader; its resources lie below this URL.
            helper: the base URL of the helper.
            precision: the unit of all times of the task, in seconds. Reports have rounded times, so
                this is also the shortest interval that can be collected.
            min_batch: the least number of reports in a batch, at least 1.
            start: the first second of the task, Unix seconds, a multiple of `precision`.
            end: the first second after the task, Unix seconds, a multiple of `precision`.
            collector: the collector's key configuration.
            draft: the draft of DAP whose reports the leader accepts, 18 or 9.

        Raises:
            InvalidInputError: a parameter is out of range, or fedtally does not support its value.
            RejectedError: the collector's key is not valid.
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
        """The bytes of the configuration, from which all parties compute the task's id."""
        return self.configuration.encode()

    @cached_property
    def id(self) -> bytes:
        """The id of the task: the SHA-256 of its configuration, 32 bytes.

        If the task accepts reports of draft 09, the bytes "dap-09" are hashed before the
        configuration.
        """
        return hashlib.sha256(self.version.in_id + self.encoded).digest()

    @property
    def version(self) -> Version:
        """How reports of this task are encoded, sealed and uploaded."""
        return VERSIONS[self.draft]

    @cached_property
    def interval(self) -> Interval:
        """The interval in which the task accepts reports, in units of the precision."""
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
        """The sizes of the VDAF by name; `Task.make` lists the names."""
        kind = KINDS[self.vdaf]
        sizes = kind.sizes.decode(self.configuration.vdaf_configuration)
        return {each.name: getattr(sizes, each.name) for each in fields(kind.sizes)}

    @cached_property
    def prio3(self) -> Prio3:
        """The VDAF of this task, which makes and verifies its reports.

        In draft 18 it is bound to the task's id, so that a report of another task does not pass
        verification. The VDAF of draft 09 ignores the id.
        """
        make = KINDS[self.vdaf].make(self.version.protocol)
        return make(*self.sizes.values(), context=vdaf_context(self.id))

    def check_noise(self) -> None:
        """Refuse noise if the task's VDAF is sumvec, whatever its sizes.

        Noise hides a change of at most two counters, by 1 each. A report of a sumvec may change
        more.

        Raises:
            InvalidInputError: the VDAF is sumvec.
        """
        if not KINDS[self.vdaf].is_hidden:
            raise InvalidInputError(
                "noise is for a count and a histogram: a report of a sumvec may change its sum by"
                " any vector, so leave the noise out"
            )

    def time(self, seconds: float) -> int:
        """Convert Unix seconds to units of the precision, rounded down as in reports."""
        return int(seconds) // self.configuration.precision

    # ---- the public file ----

    def to_toml(self) -> str:
        """Return the text of the public file, in TOML."""
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
        """Read a task from the text of its public file.

        Raises:
            InvalidInputError: the text is damaged, or has another schema, or a value that
                `Task.make` refuses, or its entry `id` is not the id of the task that the other
                entries describe.
            RejectedError: the collector's key is not valid.
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
        collector: the SHA-256 of the collector's bearer token, 32 bytes. If it is 32 zero bytes, no
            token fits, so nobody can collect a batch. The token is not derived from the seed,
            because the helper has the seed and must not be able to collect.

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
        """Derive the key by which both servers verify reports (draft 18, section 8.6.2).

        Args:
            task: the task of this secret.

        Returns:
            32 bytes; if the task accepts reports of draft 09, the first 16 of these bytes.

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
        """The bearer token that the leader sends to the helper, 43 characters.

        It is derived from the seed by HKDF, and does not reveal the seed.

        >>> TaskSecret(bytes(32), Secret(bytes(32))).leader_token[:8]
        'oepnlqtV'
        """
        return to_text(bytes(hkdf(self.seed, b"leader token", self.task_id).reveal()))

    def to_toml(self) -> str:
        """Return the text of the secret file, in TOML; the caller must write it with mode 0600."""
        values = {"task": to_text(self.task_id), "seed": bytes(self.seed.reveal()).hex()}
        return toml.document(
            {"schema": SECRET_SCHEMA} | values | {"collector": self.collector.hex()}
        )

    @classmethod
    def from_toml(cls, text: str) -> Self:
        """Read the secret of a task from the text of its secret file.

        Raises:
            InvalidInputError: the text is damaged or has another schema. The message of the error
                never shows the seed.
        """
        values = _read(text, SECRET_SCHEMA, ("schema", "task", "seed", "collector"))
        task_id = from_text(_text(values, "task"), ID_BYTES)
        seed = values["seed"]
        if not isinstance(seed, str) or not _SEED.fullmatch(seed):
            raise InvalidInputError(f"seed must be {2 * SEED_BYTES} digits in hexadecimal")
        return cls(task_id, Secret(bytes.fromhex(seed)), _hex(values, "collector"))


def token_digest(token: str) -> bytes:
    """Return the SHA-256 of a bearer token, 32 bytes; servers store it instead of the token."""
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()


def to_text(id: bytes) -> str:
    """Encode an id, or other bytes, as it stands in a URL: base64url without padding.

    >>> to_text(bytes(16))
    'AAAAAAAAAAAAAAAAAAAAAA'
    """
    return base64.urlsafe_b64encode(id).decode().rstrip("=")


def from_text(text: str, length: int) -> bytes:
    """Decode an id from a text that `to_text` made; return its bytes.

    Args:
        text: the id in base64url, without padding.
        length: the number of bytes that the id must have.

    Raises:
        InvalidInputError: `to_text` does not make this text from any id of this length.
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
