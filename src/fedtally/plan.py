"""The frozen `Plan`: every public parameter of a campaign, checked together, with a fingerprint.

A plan holds nothing private: of a domain made from the clients' own items it knows the size alone. It is written as
TOML or JSON; its fingerprint is the SHA-256 of its canonical JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from fedtally import _validate
from fedtally._archive import replacing
from fedtally.errors import InvalidInputError, UnreadableFileError
from fedtally.sketch import Schedule, SketchSpec

if TYPE_CHECKING:
    from fedtally.secagg.terms import Terms

SCHEMA = "fedtally-plan/1"
MAX_CLIENTS = 2**40
MAX_ITEMS = 2**20


@dataclass(frozen=True)
class Plan:
    """The public parameters of a campaign.

    Args:
        rows: rows of the sketch, 1 .. 1024.
        width: counters per row, 1 .. 2^24.
        schedule: which hashes in which round, or its name.
        num_rounds: planned rounds.
        num_clients: clients over all rounds, at least 1.
        cohort: clients in the largest round.
        domain: the public description of the candidate items (`Domain.describe()`): kind, size, public and their
            parameters.
        max_items: the most items that one client contributes.
        seed: 32 public bytes from which the hashes are derived.
        secure_sum: the protocol that sums a round, in one or several cohorts; None: none, the sums are those of a
            trusted server (ideal).

    Raises:
        InvalidInputError: a value is out of bounds, or two do not fit each other.

    >>> domain = {"kind": "range", "size": 150_868, "public": True, "first": 1, "last": 150_868}
    >>> plan = Plan(rows=7, width=2000, schedule="hybrid", num_rounds=10, num_clients=150_000, cohort=15_000,
    ...             domain=domain, max_items=1, seed=bytes(32))
    >>> plan.modulus_bits, plan.bytes_per_client, plan.one_hot_bytes_per_client, plan.binary_bytes_per_client
    (15, 26250, 282878, 3)
    >>> Plan.from_toml(plan.to_toml()) == plan
    True
    """

    rows: int
    width: int
    schedule: Schedule
    num_rounds: int
    num_clients: int
    cohort: int
    domain: Mapping[str, Any]
    max_items: int
    seed: bytes
    secure_sum: Terms | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "schedule", Schedule.parse(self.schedule))
        if not isinstance(self.domain, Mapping) or not all(isinstance(name, str) for name in self.domain):
            raise InvalidInputError(f"domain must be a table with text as keys, got {type(self.domain).__name__}")
        plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in self.domain.items()}
        object.__setattr__(self, "domain", MappingProxyType(plain))
        for name, most in (("num_clients", MAX_CLIENTS), ("cohort", MAX_CLIENTS), ("max_items", MAX_ITEMS)):
            object.__setattr__(self, name, _validate.integer(1, most, **{name: getattr(self, name)}))
        if not {"kind", "size", "public"} <= self.domain.keys():
            raise InvalidInputError(f"domain must say its kind, size and public, got {sorted(self.domain)}")
        _validate.integer(1, 2**64, domain_size=self.domain["size"])
        for name, value in self.domain.items():
            if not isinstance(value, (bool, int, float, str)) or value != value:
                raise InvalidInputError(f"domain.{name} must be a number, a text or a truth value, got {value!r}")
        if not isinstance(self.domain["kind"], str) or not isinstance(self.domain["public"], bool):
            raise InvalidInputError("domain.kind must be a text and domain.public true or false")
        for name in ("rows", "width", "num_rounds"):
            object.__setattr__(self, name, getattr(self.spec, name))
        if self.cohort > self.num_clients:
            raise InvalidInputError(f"cohort must be at most num_clients, {self.num_clients}, got {self.cohort}")
        if self.cohort * self.num_rounds < self.num_clients:
            raise InvalidInputError(
                f"{self.num_rounds} rounds of at most {self.cohort} clients cannot hold "
                f"num_clients {self.num_clients}; raise cohort or num_rounds"
            )
        if self.secure_sum is not None:
            from fedtally.secagg.terms import check_terms

            check_terms(self.secure_sum, self.rows * self.width, self.max_items, self.cohort)

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    @cached_property
    def spec(self) -> SketchSpec:
        """What the sketches of this campaign share."""
        return SketchSpec(self.rows, self.width, self.schedule, self.num_rounds, self.seed)

    @property
    def domain_size(self) -> int:
        """The number of candidate items."""
        return int(self.domain["size"])

    @property
    def modulus_bits(self) -> int:
        """Bits per counter under secure summation, so that no sum can overflow."""
        return modulus_bits(self.cohort, self.max_items) if self.secure_sum is None else self.secure_sum.bits

    @property
    def bytes_per_client(self) -> int:
        """Upload of one client in one round: every counter at `modulus_bits`, and what the protocol adds."""
        if self.secure_sum is not None:
            return self.secure_sum.upload_bytes
        return -(-self.rows * self.width * self.modulus_bits // 8)

    @property
    def one_hot_bytes_per_client(self) -> int:
        """What a one-hot vector over the domain would cost under the same secure summation."""
        return -(-self.domain_size * self.modulus_bits // 8)

    @property
    def binary_bytes_per_client(self) -> int:
        """What sending the items themselves would cost; secure summation cannot sum them: the server would see each."""
        return -(-self.max_items * max(1, (self.domain_size - 1).bit_length()) // 8)

    @cached_property
    def fingerprint(self) -> str:
        """64 hexadecimal digits that differ wherever two plans differ."""
        canonical = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(f"{SCHEMA}\n{canonical}".encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Return the parameters as JSON-able values, the seed in hexadecimal."""
        return {
            "rows": self.rows,
            "width": self.width,
            "schedule": str(self.schedule),
            "num_rounds": self.num_rounds,
            "num_clients": self.num_clients,
            "cohort": self.cohort,
            "max_items": self.max_items,
            "seed": self.seed.hex(),
            "domain": dict(self.domain),
        } | ({} if self.secure_sum is None else {"secure_sum": self.secure_sum.to_dict()})

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Plan:
        """Return the plan that `to_dict` described.

        Raises:
            InvalidInputError: a parameter is missing, unknown or out of bounds.
        """
        if not isinstance(values, Mapping):
            raise InvalidInputError(f"a plan is a table of values, got {type(values).__name__}")
        if values.get("schema", SCHEMA) != SCHEMA:
            raise InvalidInputError(f"the plan is of schema {values['schema']!r}, this version reads {SCHEMA!r}")
        known = list(cls.__dataclass_fields__)
        found = {key: value for key, value in values.items() if key not in ("schema", "fingerprint")}
        missing = [k for k in known if k not in found and k != "secure_sum"]
        unknown = [k for k in found if k not in known]
        if missing or unknown:
            problem = f"lacks {', '.join(missing)}" if missing else f"has unknown entries {', '.join(unknown)}"
            raise InvalidInputError(f"the plan {problem}; its entries are {', '.join(known)}")
        try:
            seed = bytes.fromhex(found["seed"])
        except (TypeError, ValueError):
            raise InvalidInputError(f"seed must be 64 hexadecimal digits, got {found['seed']!r}") from None
        if not isinstance(found["domain"], Mapping):
            raise InvalidInputError(f"domain must be a table, got {found['domain']!r}")
        if "secure_sum" in found:
            from fedtally.secagg.terms import terms_from_dict  # the cryptography: only plans that say so need it

            found["secure_sum"] = terms_from_dict(found["secure_sum"])
        plan = cls(**{**found, "seed": seed})
        if values.get("fingerprint", plan.fingerprint) != plan.fingerprint:
            raise InvalidInputError(
                "the plan was changed after it was written: its fingerprint does not match; "
                "remove that line to accept the change"
            )
        return plan

    def to_toml(self) -> str:
        """Return the plan as a TOML document, with its fingerprint."""
        values = {"schema": SCHEMA, "fingerprint": self.fingerprint, **self.to_dict()}
        tables = {name: values.pop(name) for name in ("domain", "secure_sum") if name in values}
        lines = [f"{key} = {_toml_value(value)}" for key, value in values.items()]
        for name, table in tables.items():
            lines += ["", f"[{name}]", *(f"{_toml_key(key)} = {_toml_value(value)}" for key, value in table.items())]
        return "\n".join([*lines, ""])

    @classmethod
    def from_toml(cls, text: str) -> Plan:
        """Return the plan in a TOML document.

        Raises:
            UnreadableFileError: the text is no TOML.
            InvalidInputError: it is no plan.
        """
        try:
            return cls.from_dict(tomllib.loads(text))
        except InvalidInputError:
            raise
        except (ValueError, RecursionError) as error:  # of the TOML reader
            raise UnreadableFileError(f"the plan is not valid TOML: {error}") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan, as JSON where the name ends in .json, else as TOML."""
        document = {"schema": SCHEMA, "fingerprint": self.fingerprint, **self.to_dict()}
        text = json.dumps(document, indent=2) + "\n" if _is_json(path) else self.to_toml()
        with replacing(path) as temporary:
            Path(temporary).write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Read a plan that `save` wrote, or that a person wrote.

        Raises:
            UnreadableFileError: missing or neither TOML nor JSON.
            InvalidInputError: it is no valid plan.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
            return cls.from_dict(_json_object(text)) if _is_json(path) else cls.from_toml(text)
        except InvalidInputError:
            raise
        except (OSError, ValueError, RecursionError) as error:
            raise UnreadableFileError(
                f"cannot read the plan {os.fspath(path)}: {getattr(error, 'strerror', None) or error}"
            ) from error


def modulus_bits(cohort: int, max_items: int) -> int:
    """Return the bits that hold every sum of a round: a counter lies within plus or minus cohort * max_items.

    >>> modulus_bits(15_000, 1)
    15
    """
    return (2 * cohort * max_items).bit_length()


def width_for_bytes(max_bytes: int, rows: int, cohort: int, max_items: int) -> int:
    """Return the largest width whose sketch fits `max_bytes` per client and round, at most 2^24.

    Raises:
        InvalidInputError: not even one counter per row fits.

    >>> width_for_bytes(32_000, rows=7, cohort=15_000, max_items=1)
    2438
    """
    bits = modulus_bits(cohort, max_items)
    width = 8 * max_bytes // (rows * bits)
    if width < 1:
        raise InvalidInputError(
            f"max_bytes must be at least {-(-rows * bits // 8)} for {rows} rows of {bits} bits, got {max_bytes}"
        )
    return min(width, 2**24)


def _toml_key(name: str) -> str:
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else _toml_value(name)


def _toml_value(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value) if isinstance(value, bool) else repr(value)


def _is_json(path: str | os.PathLike[str]) -> bool:
    return os.fspath(path).endswith(".json")


def _json_object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise InvalidInputError("a plan is a JSON object")
    return value
