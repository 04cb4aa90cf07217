"""The frozen `Plan`: every public parameter of a campaign, checked together, with a fingerprint.

A plan holds nothing private: of a domain made from the clients' own items it knows the size alone. It is written as
TOML or JSON; its fingerprint is the SHA-256 of its canonical JSON.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from fedtally import _validate
from fedtally._archive import replacing
from fedtally.errors import InvalidInputError, UnreadableFileError
from fedtally.sketch import NoiseMark, Schedule, SketchSpec, check_joint_rows

if TYPE_CHECKING:
    from fedtally.privacy.terms import PrivacyTerms
    from fedtally.secagg.terms import Terms

SCHEMA = "fedtally-plan/1"
_TERMS = ("secure_sum", "privacy", "target")  # tables that a plan may lack
MAX_CLIENTS = 2**40
MAX_ITEMS = 2**20


@dataclass(frozen=True)
class Target:
    """The error that a plan is for: what a planner promised, and `fedtally simulate --plan` checks.

    Args:
        linf: the largest error of any candidate's frequency, above 0, below 1.
        failure_probability: with which it may be exceeded, above 0, below 1.
        recovery: by which the sums are to be decoded, "joint" or "median".

    >>> Target(0.001, 0.1, "joint").to_dict()
    {'linf': 0.001, 'failure_probability': 0.1, 'recovery': 'joint'}
    """

    linf: float
    failure_probability: float
    recovery: str

    def __post_init__(self) -> None:
        for name in ("linf", "failure_probability"):
            object.__setattr__(self, name, _validate.inside(**{name: getattr(self, name)}))
        if self.recovery not in ("joint", "median"):
            raise InvalidInputError(f"target.recovery must be joint or median, got {self.recovery!r}")

    def to_dict(self) -> dict[str, Any]:
        """Return the entries as JSON-able values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Any) -> Target:
        """Return the target that `to_dict` described.

        Raises:
            InvalidInputError: an entry is missing, unknown or out of bounds.
        """
        known = list(cls.__dataclass_fields__)
        if not isinstance(values, Mapping) or sorted(values) != sorted(known):
            raise InvalidInputError(f"target must be a table with the entries {', '.join(known)}, got {values!r}")
        return cls(**values)


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
        privacy: the differential privacy that it promises, with the noise that keeps the promise; None: none.
        target: the error that it is for; None: none was asked for.

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
    privacy: PrivacyTerms | None = None
    target: Target | None = None

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
            if not isinstance(value, (bool, int, float, str)):
                raise InvalidInputError(f"domain.{name} must be a number, a text or a truth value, got {value!r}")
            if not _is_unicode(name) or not _is_unicode(value):  # no file of UTF-8 can hold it
                raise InvalidInputError(f"domain must have no half of a surrogate pair, got {name!a}: {value!a}")
            if isinstance(value, int) and abs(value) > 2**64:  # not shown: it may be too long to be written
                raise InvalidInputError(f"domain.{name} must be an integer from -2^64 to 2^64")
            if isinstance(value, float) and not math.isfinite(value):  # it has no JSON
                raise InvalidInputError(f"domain.{name} must be a finite number, got {value!r}")
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
        if self.target is not None and self.target.recovery == "joint":
            check_joint_rows(self.rows)
        if self.privacy is not None:
            self._check_privacy(self.privacy)
        if self.secure_sum is not None:
            from fedtally.secagg.terms import check_terms

            most = min(self.num_clients, self.cohort * max(map(len, self.openings)))
            check_terms(self.secure_sum, self.rows * self.width, self.max_items, most, self.noise_bound)

    def _check_privacy(self, privacy: PrivacyTerms) -> None:
        """Refuse what would not keep the promise: noise, openings, shares, and a domain that tells who holds what."""
        from fedtally.privacy.terms import check_event

        check_event(
            privacy.event,
            rows=self.rows,
            width=self.width,
            max_items=self.max_items,
            num_rounds=self.num_rounds,
            clients=self._most_clients,
            openings=self.openings,
            is_two_server=self.is_two_server,
        )
        if not self.domain["public"] and not privacy.study:
            raise InvalidInputError(
                "with privacy the domain must be public: candidates that are the clients' own items show who holds "
                "what, whatever the noise; declare a domain, or mark the plan as a study"
            )
        if privacy.event.relation == "add-remove" and self.secure_sum is not None:
            raise InvalidInputError(
                f"add-remove hides the number of clients, which the secure sum {self.secure_sum.method} shows: use "
                "zero-out or replace-one, or an ideal secure sum"
            )
        if privacy.delta * self.num_clients >= 1 and not privacy.study:
            raise InvalidInputError(
                f"privacy.delta must be below 1 / num_clients, {1 / self.num_clients:g}, got {privacy.delta:g}: "
                "publishing the item of one client drawn at random would be as private; promise a smaller delta, "
                "or mark the plan as a study"
            )
        honest = privacy.event.honest_survivors
        least = self.cohort if self.secure_sum is None else self.secure_sum.honest_survivors
        if honest is not None and honest > least:
            raise InvalidInputError(
                f"privacy.event.honest_survivors must be at most {least}, the honest clients that are sure to be in "
                f"every sum, got {honest}: the noise of the others cannot be counted on"
            )

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
    def is_two_server(self) -> bool:
        """Whether two servers sum."""
        return self.secure_sum is not None and self.secure_sum.method == "two-server"

    @property
    def openings(self) -> list[range]:
        """The rounds that are added up before anything is opened, for each opening.

        Each round is opened on its own; unless noise is added by whoever opens: once to the sum of the rounds that
        share their hashes.
        """
        if self.privacy is None or self.privacy.by_clients:
            return [range(round, round + 1) for round in range(self.num_rounds)]
        return self.schedule.batches_of(self.num_rounds)

    @property
    def noise_mark(self) -> NoiseMark | None:
        """The mark of the sums that hold this plan's noise; None: they are exact."""
        return None if self.privacy is None else NoiseMark(str(self.privacy.noised_by), self.fingerprint)

    @property
    def noise_bound(self) -> int:
        """What noise adds at most to a counter of a secure sum, but for a probability of 2^-40; 0 without.

        Central noise is added afterwards, and counts for nothing here.
        """
        return 0 if self.privacy is None else noise_bound(self.privacy, self.rows * self.width, self._most_clients)

    @cached_property
    def row_noise_bound(self) -> int:
        """What the sizes of the noise add up to in a row of a secure sum, at most, but for 2^-40 in all; 0 without.

        The sums of several cohorts are held to it one by one, before they are added up.
        """
        if self.privacy is None:
            return 0
        from fedtally.privacy.row_noise import row_noise_bound

        return row_noise_bound(self.privacy, self.rows, self.width, self._most_clients)

    @property
    def _most_clients(self) -> int:
        return self.cohort if self.secure_sum is None else self.secure_sum.most_clients

    @property
    def modulus_bits(self) -> int:
        """Bits per counter under secure summation, so that no sum can overflow."""
        if self.secure_sum is not None:
            return self.secure_sum.bits
        return modulus_bits(self.cohort, self.max_items, self.noise_bound)

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

    @property
    def canonical(self) -> str:
        """The one JSON text of this plan, ASCII, of which the fingerprint is made: docs/plan.md."""
        return json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)

    @cached_property
    def fingerprint(self) -> str:
        """64 hexadecimal digits that differ wherever two plans differ: of SHA-256, as docs/plan.md says."""
        return hashlib.sha256(f"{SCHEMA}\n{self.canonical}".encode()).hexdigest()

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
        } | {name: terms.to_dict() for name in _TERMS if (terms := getattr(self, name)) is not None}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Plan:
        """Return the plan that `to_dict` described.

        Raises:
            InvalidInputError: a parameter is missing, unknown or out of bounds, or written in another form than
                docs/plan.md allows.
        """
        if not isinstance(values, Mapping):
            raise InvalidInputError(f"a plan is a table of values, got {type(values).__name__}")
        if values.get("schema", SCHEMA) != SCHEMA:
            raise InvalidInputError(f"the plan is of schema {values['schema']!r}, this version reads {SCHEMA!r}")
        known = list(cls.__dataclass_fields__)
        found = {key: value for key, value in values.items() if key not in ("schema", "fingerprint")}
        missing = [k for k in known if k not in found and k not in _TERMS]
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
        if "privacy" in found:
            from fedtally.privacy.terms import PrivacyTerms

            found["privacy"] = PrivacyTerms.from_dict(found["privacy"])
        if "target" in found:
            found["target"] = Target.from_dict(found["target"])
        plan = cls(**{**found, "seed": seed})
        _check_form({name: value for name, value in values.items() if name in known}, plan.to_dict())
        if values.get("fingerprint", plan.fingerprint) != plan.fingerprint:
            raise InvalidInputError(
                "the plan was changed after it was written: its fingerprint does not match; "
                "remove that line to accept the change"
            )
        return plan

    def to_toml(self) -> str:
        """Return the plan as a TOML document, with its fingerprint."""
        values = {"schema": SCHEMA, "fingerprint": self.fingerprint, **self.to_dict()}
        return "\n".join([*_toml_table(values), ""])

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
            text = Path(path).read_bytes().decode()  # as it is: no line end is turned into another
            return cls.from_dict(_json_object(text)) if _is_json(path) else cls.from_toml(text)
        except InvalidInputError:
            raise
        except UnicodeDecodeError as error:
            raise UnreadableFileError(
                f"{os.fspath(path)} is no plan: give the text file, .toml or .json, that fedtally plan wrote "
                "(fedtally inspect says what is in another file of fedtally)"
            ) from error
        except (OSError, ValueError, RecursionError) as error:
            raise UnreadableFileError(
                f"cannot read the plan {os.fspath(path)}: {getattr(error, 'strerror', None) or error}"
            ) from error


def modulus_bits(cohort: int, max_items: int, noise: int = 0) -> int:
    """Return the bits that hold every sum of a round: a counter lies within plus or minus cohort * max_items + noise.

    >>> modulus_bits(15_000, 1)
    15
    """
    return (2 * (cohort * max_items + noise)).bit_length()


def noise_bound(privacy: PrivacyTerms, counters: int, clients: int) -> int:
    """Return what noise adds at most to any of so many counters of a secure sum, but for a probability of 2^-40.

    Args:
        privacy: of a plan; central noise is added afterwards: 0.
        counters: rows times width.
        clients: the most in a sum.
    """
    from fedtally.privacy.events import Trust
    from fedtally.secagg import params

    if privacy.event.trust is Trust.CENTRAL:
        return 0
    deviation = privacy.largest_deviation(clients)
    if privacy.by_clients:
        return params.noise_bound(deviation, counters, "skellam")
    return params.noise_bound(deviation, counters, "discrete-gaussian") + 1  # two roundings to integers


def _check_form(read: Mapping[str, Any], normal: Mapping[str, Any], path: str = "") -> None:
    """Refuse texts that are not written as in the canonical JSON, and null: two readers would see two plans."""
    for name, value in read.items():
        if isinstance(value, Mapping):
            _check_form(value, normal[name], f"{path}{name}.")
        elif value is None:
            raise InvalidInputError(f"{path}{name} must not be null: leave the entry out")
        elif isinstance(value, str) and value != normal[name]:
            raise InvalidInputError(f"{path}{name} must be written {normal[name]!r} in a plan, got {value!r}")


def _is_unicode(value: Any) -> bool:
    return not isinstance(value, str) or not any("\ud800" <= letter <= "\udfff" for letter in value)


def _toml_table(values: Mapping[str, Any], path: str = "") -> list[str]:
    lines = [f"{_toml_key(key)} = {_toml_value(value)}" for key, value in values.items() if not isinstance(value, dict)]
    for key, value in values.items():
        if isinstance(value, dict):
            name = f"{path}{_toml_key(key)}"
            lines += ["", f"[{name}]", *_toml_table(value, f"{name}.")]
    return lines


def _toml_key(name: str) -> str:
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else _toml_value(name)


def _toml_value(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value) if isinstance(value, bool) else repr(value)


def _is_json(path: str | os.PathLike[str]) -> bool:
    return os.fspath(path).endswith(".json")


def _json_object(text: str) -> dict[str, Any]:
    value = json.loads(text, object_pairs_hook=_entries)
    if not isinstance(value, dict):
        raise InvalidInputError("a plan is a JSON object")
    return value


def _entries(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise InvalidInputError("a table of a plan must have each entry once, as in TOML")
    return entries
