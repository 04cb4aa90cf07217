"""The operations of a campaign, and the CPU seconds that each takes on a machine (a host).

How many operations each stage takes follows from the plan. How long one operation takes depends on
the machine. A `Host` holds these times, and `python -m benchmarks host` measures them.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

from fedtally import kernels
from fedtally.base import toml, validate
from fedtally.errors import InvalidInputError, UnreadableFileError, opt, reason
from fedtally.plan import Plan
from fedtally.privacy.geometric import Geometric
from fedtally.privacy.mechanism import Noise
from fedtally.recovery.decoders import SIMPLEST, USUAL, Recovery
from fedtally.recovery.decoders.work import OPERATIONS as DECODING
from fedtally.recovery.decoders.work import Task, Work
from fedtally.sketch import ScheduleKind

SCHEMA = "fedtally-host/1"
_MAX_BYTES = 2**16  # the most bytes of a host's file: far more than needed
_AGAIN = "measure again: python -m benchmarks host -o FILE"
_EXACT = 1 << 24  # counts below it are exact in single precision, in which sums are then decoded

OPERATIONS: Mapping[str, str] = MappingProxyType(
    {
        "message": "a message that a client reads and answers",
        "receipt": "a message that a server takes",
        "phase": "a phase of a sum, begun and closed by a server",
        "owner": "the secret of a client put together by the server, and verified",
        "keys": "a client's keys made, and its seeds committed to",
        "signature": "an Ed25519 signature made",
        "verification": "an Ed25519 signature verified",
        "exchange": "an X25519 key agreed on, and what follows from it derived, sealed or opened",
        "slot": "what the server keeps for one neighbour of a client",
        "share": "one product of a share of a client's secrets",
        "coefficient": "one coefficient of what opens a secret",
        "mask": "a byte of a mask, made and added",
        "sketch": "a sketch begun and hashed into",
        "row": "a row of a silo's table, read, encoded and added to the sketch",
        "counter": "a counter of a client: written, checked and packed",
        "entry": "a byte of a vector, added by a server",
        "plane": "an entry that is packed or unpacked in a plane besides the first",
        "digest": "a byte of a report, hashed",
        "seal": "a seed, or a share, sealed to a server",
        "unseal": "a seed, or a share, opened by a server",
        "proof": "a proof made by a client, or checked by one of two servers",
        "word": "a word of a vector that is proven, or of a share of it: made, read or multiplied",
        "opened": "a counter of a sum, when it is opened",
        "draw": "a draw of noise",
        "scan": "an entry of a table of noise that a draw is compared with",
        **{name: operation.about for name, operation in DECODING.items()},
    }
)


@dataclass(frozen=True)
class Host:
    """A machine: the CPU seconds that it takes for each operation, all its threads together.

    Args:
        kernels: the name of the compiled or NumPy code that was measured, one of
            `kernels.available_backends`.
        version: the version of fedtally that was measured.
        seconds: the CPU seconds of one operation, by the names in `OPERATIONS`; finite and above 0.

    Raises:
        InvalidInputError: `kernels` or `version` is not a text; `seconds` is not a table; an
            operation is missing or unknown; or its time is not finite or not above 0.

    >>> REFERENCE.price({"message": 2.0, "exchange": 0.0}) == 2 * REFERENCE.seconds["message"]
    True
    """

    kernels: str
    version: str
    seconds: Mapping[str, float]

    def __post_init__(self) -> None:
        for name in ("kernels", "version"):
            if not isinstance(getattr(self, name), str):
                raise InvalidInputError(f"{name} must be a text, got {getattr(self, name)!r}")
        seconds = _entries("seconds", self.seconds, OPERATIONS)
        checked = {name: _positive(name, seconds[name]) for name in OPERATIONS}
        object.__setattr__(self, "seconds", MappingProxyType(checked))

    def price(self, work: Work) -> float:
        """Return the CPU seconds of `work`, a table with the number of operations of each name."""
        return sum(count * self.seconds[name] for name, count in work.items())

    def to_dict(self) -> dict[str, Any]:
        """Return the host as values for JSON, with the name of the file format ("schema")."""
        return {
            "schema": SCHEMA,
            "kernels": self.kernels,
            "version": self.version,
            "seconds": dict(self.seconds),
        }

    @classmethod
    def from_dict(cls, values: Any) -> Self:
        """Return the host with the entries `values`, which `to_dict` returned.

        Raises:
            InvalidInputError: an entry is missing, unknown or out of bounds, or the schema is
                wrong.
        """
        checked = _entries("the host", values, ("schema", "kernels", "version", "seconds"))
        if checked.pop("schema") != SCHEMA:
            raise InvalidInputError(
                f"schema must be {SCHEMA!r}, got {values['schema']!r}; {_AGAIN}"
            )
        return cls(**checked)

    def to_toml(self) -> str:
        """Return the host as TOML text, which `load` reads."""
        return toml.document(self.to_dict())

    @classmethod
    def load(cls, path: str | os.PathLike[str], version: str) -> Self:
        """Read a host from a file that `python -m benchmarks host` wrote.

        Args:
            path: the path of the file, which is TOML of at most 65,536 bytes.
            version: the version of fedtally in use here. A file of another version is refused.

        Raises:
            UnreadableFileError: the file cannot be read, is too large, is not TOML, or does not
                describe a host; or it was measured with other kernels than those in use here, or
                with another version of fedtally.
        """
        try:
            with open(path, "rb") as file:
                data = file.read(_MAX_BYTES + 1)  # bounded: the path may name an endless device
            if len(data) > _MAX_BYTES:
                raise InvalidInputError(f"a host has at most {_MAX_BYTES:,} bytes; {_AGAIN}")
            host = cls.from_dict(toml.loads(data.decode()))
            for name, here in (("kernels", kernels.backend()), ("version", version)):
                if getattr(host, name) != here:
                    raise InvalidInputError(
                        f"{name} must be {here!r}, as here, got {getattr(host, name)!r}; {_AGAIN}"
                    )
        except InvalidInputError as error:  # the message of this error does not name the file
            raise UnreadableFileError(f"{opt.host(os.fspath(path))}{reason(error)}") from error
        except OSError as error:
            hint = validate.did_you_mean_file(os.fspath(path))
            raise UnreadableFileError(
                f"cannot read {opt.host(os.fspath(path))}: {error.strerror}{hint or f'; {_AGAIN}'}"
            ) from error
        except ValueError as error:
            raise UnreadableFileError(
                f"{opt.host(os.fspath(path))} is not valid TOML: {error}; {_AGAIN}"
            ) from error
        return host


def _entries(name: str, values: Any, known: Collection[str]) -> dict[str, Any]:
    """Return a copy of the table `values`, which must have exactly the entries `known`.

    Args:
        name: the name of the table, for messages.
        values: the table.
        known: the names of its entries.

    Raises:
        InvalidInputError: `values` is not a table, or an entry is missing or unknown.
    """
    if not isinstance(values, Mapping):
        raise InvalidInputError(f"{name} must be a table, got {type(values).__name__}; {_AGAIN}")
    missing = [entry for entry in known if entry not in values]
    if missing:
        raise InvalidInputError(f"{name} lacks {', '.join(missing)}; {_AGAIN}")
    unknown = [str(entry) for entry in values if entry not in known]
    if unknown:
        hint = validate.did_you_mean(unknown[0], known) or f"; {_AGAIN}"
        raise InvalidInputError(f"{name} has unknown entries {', '.join(unknown)}{hint}")
    return dict(values)


def _positive(name: str, value: Any) -> float:
    """Return `value` as a float; refuse a number of seconds that is not finite or not above 0.

    Args:
        name: the name of the operation, for messages.
        value: the CPU seconds of the operation.

    Raises:
        InvalidInputError: the value is not a number, not finite, or not above 0.
    """
    try:
        number = validate.real(**{name: value})
    except InvalidInputError as error:
        raise InvalidInputError(f"{error}; {_AGAIN}") from error
    if number <= 0:
        raise InvalidInputError(f"{name} must be above 0 seconds, got {value!r}; {_AGAIN}")
    return number


REFERENCE = Host(
    "v4",
    "0.1.0",
    {
        "message": 4e-05,
        "receipt": 1.6e-05,
        "phase": 0.0002,
        "owner": 4.5e-05,
        "keys": 0.00011,
        "signature": 1.9e-05,
        "verification": 7.6e-05,
        "exchange": 6.6e-05,
        "slot": 1.2e-07,
        "share": 5.2e-09,
        "coefficient": 2.8e-09,
        "mask": 1e-10,
        "sketch": 1.6e-05,
        "row": 4.2e-06,
        "counter": 1.6e-09,
        "entry": 1.4e-10,
        "plane": 3.2e-10,
        "digest": 7.6e-10,
        "seal": 0.00014,
        "unseal": 7.6e-05,
        "proof": 6e-05,
        "word": 3.4e-09,
        "opened": 1.7e-09,
        "draw": 1.9e-09,
        "scan": 7e-11,
        **{name: operation.seconds for name, operation in DECODING.items()},
    },
)
"""Measured once, on one core of a shared AMD EPYC (Zen 5) virtual machine; `--host` gives another.

`belief` and `prior` are of another machine, scaled by what joint recovery takes on both.
"""


def noise_work(noise: Noise | Geometric, draws: int, scans: bool = False) -> Work:
    """Return the operations that drawing noise takes, as a table of numbers by name.

    Args:
        noise: the distribution of the noise.
        draws: the number of draws.
        scans: whether small noise is drawn in constant time: each draw then compares a random
            number of 8 bytes with every entry of a table.
    """
    if scans and noise.is_small:
        return {"scan": draws * len(noise.masses), "mask": 8 * draws}
    return {"draw": draws * noise.work}


def decoding_work(
    plan: Plan,
    backend: str,
    recovery: str = USUAL,
    candidates: int | None = None,
    heavy: int | None = None,
    repetitions: int = 12,
) -> Work:
    """Return the operations that turn the sums into estimates of the candidates' frequencies.

    The result is a table with the number of operations of each name in `OPERATIONS`.

    Args:
        plan: the plan of the campaign.
        backend: the name of the kernels in use.
        recovery: the name of the decoder; if it does not suit the plan's encoding (sketch or
            histogram), the simplest decoder for this encoding is used.
        candidates: the number of candidates whose frequencies are estimated; None: all candidates.
        heavy: the number of frequent items that joint recovery fits; None: the decoder's usual
            number.
        repetitions: the number of iterations of belief propagation, if the decoder uses it.
    """
    size = plan.domain_size if candidates is None else validate.integer(1, candidates=candidates)
    name = Recovery.parse(recovery)
    if name.encoding is not plan.encoding:
        name = SIMPLEST[plan.encoding]
    return name.kind.work(
        Task(
            rows=plan.rows,
            width=plan.width,
            batches=plan.schedule.num_batches(plan.num_rounds),
            is_fresh=plan.schedule.kind is ScheduleKind.FRESH,
            candidates=size,
            single=plan.num_clients * plan.max_items < _EXACT,
            backend=backend,
            heavy=None if heavy is None else validate.integer(0, heavy=heavy),
            repetitions=repetitions,
        )
    )
