"""A second, independent reading of docs/plan.md and its known answers, without fedtally.

`tools/gen_vectors.py` writes them to ``tests/vectors/plan.json``. Nothing here uses a JSON library
to write the canonical text: numbers and text are laid out as the page says.
"""

from __future__ import annotations

import hashlib
from decimal import Decimal
from typing import Any

Json = dict[str, Any]
INT, FLOAT, TEXT, TRUTH = int, float, str, bool
KEPT = "as the file has it"  # an integer, or a float

# --------------------------------------------------------------------------------------------------
# The page's tables: the entries of each table and their types; "?" marks one that may be absent.

PLAN: Json = {
    "rows": INT,
    "width": INT,
    "schedule": TEXT,
    "num_rounds": INT,
    "num_clients": INT,
    "max_round_clients": INT,
    "max_items": INT,
    "people?": INT,
    "spelling?": "spelling",
    "encoding?": TEXT,
    "seed": TEXT,
    "domain": "domain",
    "secure_sum?": "secure_sum",
    "privacy?": "privacy",
    "target?": "target",
    "calendar?": "calendar",
}
DOMAINS: dict[str, Json] = {
    "range": {"first": INT, "last": INT},
    "integers": {"sha256?": TEXT},
    "dictionary": {"sha256?": TEXT},
    "strings": {"sha256?": TEXT},
    "open": {"max_length": INT, "bits": INT, "normalise?": TEXT},
    "grid": {"south": KEPT, "north": KEPT, "west": KEPT, "east": KEPT, "step": KEPT},
}
ANY_DOMAIN: Json = {"kind": TEXT, "size": INT, "public": TRUTH}
SECURE_SUMS: dict[str, Json] = {
    "secagg": {
        "method": TEXT,
        "adversary": TEXT,
        "n_min": INT,
        "n_max": INT,
        "corrupt": INT,
        "max_dropout_ppm": INT,
        "min_survivors": INT,
        "ring_neighbours": INT,
        "ring_threshold": INT,
        "length": INT,
        "bits": INT,
        "server_key?": TEXT,
        "allow_list?": TEXT,
    },
    "two-server": {
        "method": TEXT,
        "length": INT,
        "bits": INT,
        "n_max": INT,
        "min_batch": INT,
        "corrupt": INT,
        "leader_key?": TEXT,
        "helper_key?": TEXT,
        "allow_list?": TEXT,
        "largest_entry": INT,
        "noise": INT,
        "validity?": TEXT,
    },
}
PRIVACY: Json = {
    "epsilon": FLOAT,
    "delta": FLOAT,
    "population": TEXT,
    "not_private": TRUTH,
    "event": "event",
}
EVENT: Json = {
    "schema": TEXT,
    "mechanism": TEXT,
    "rows": INT,
    "relation": TEXT,
    "variance": FLOAT,
    "max_items": INT,
    "clip_norm?": FLOAT,
    "participations": INT,
    "per_release": INT,
    "honest_survivors?": INT,
    "collisions?": "pair",
    "total_variation": FLOAT,
    "trust": TEXT,
    "silos_per_person?": INT,
    "encoding?": TEXT,
    "per_rounds?": INT,
    "num_rounds?": INT,
}
SPELLING: Json = {"rows": INT, "width": INT}
CALENDAR: Json = {"start": TEXT, "period": TEXT}
TARGET: Json = {
    "linf": FLOAT,
    "failure_probability": FLOAT,
    "recovery": TEXT,
    "frequencies?": TEXT,
}


def entries_of(table: str, values: Json) -> Json:
    """Return the entries and types of a table.

    Args:
        table: Its name.
        values: What it holds: the kind of a domain and the method of a secure sum decide.

    Returns:
        Types by name.
    """
    if table == "domain":
        return ANY_DOMAIN | DOMAINS[values["kind"]]
    if table == "secure_sum":
        return SECURE_SUMS[values["method"]]
    tables = {
        "plan": PLAN,
        "privacy": PRIVACY,
        "event": EVENT,
        "target": TARGET,
        "spelling": SPELLING,
        "calendar": CALENDAR,
    }
    return tables[table]


def canonical(values: Json, table: str = "plan") -> str:
    """Return the canonical JSON of a table, by default of a plan.

    Args:
        values: As read from a file, without schema and fingerprint.
        table: Its name.

    Returns:
        ASCII.

    Raises:
        ValueError: An entry is missing, unknown or of another type.
    """
    types = entries_of(table, values)
    needed = {name for name in types if not name.endswith("?")}
    known = {name.rstrip("?"): kind for name, kind in types.items()}
    if not needed <= values.keys() <= known.keys():
        raise ValueError(f"{table} has other entries: {sorted(values)}")
    written = [f"{text(name)}:{entry(values[name], known[name])}" for name in sorted(values)]
    return "{" + ",".join(written) + "}"


def entry(value: Any, kind: Any) -> str:
    """Return the canonical JSON of one entry.

    Args:
        value: What it holds.
        kind: Its type, or the name of a table.

    Returns:
        ASCII.

    Raises:
        ValueError: It is of another type.
    """
    if kind == KEPT:
        kind = type(value)
    if kind == "pair":
        return f"[{entry(value[0], INT)},{entry(value[1], INT)}]"
    if isinstance(kind, str):
        return canonical(value, kind)
    if kind is FLOAT and type(value) in (int, float):
        return number(float(value))
    if type(value) is not kind:
        raise ValueError(f"{value!r} is no {kind.__name__}")
    if kind is TRUTH:
        return "true" if value else "false"
    return str(value) if kind is INT else text(value)


def number(value: float) -> str:
    """Return a float: the fewest digits that read back as it, laid out as the page says.

    Args:
        value: Finite.

    Returns:
        ASCII.
    """
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    assert isinstance(exponent, int)
    shown = "".join(map(str, digits)).rstrip("0") or "0"
    point = len(digits) + exponent if value else 1  # the value is 0.shown times 10 to this
    minus = "-" if sign else ""
    if -4 < point <= 16:
        if point <= 0:
            return f"{minus}0.{'0' * -point}{shown}"
        whole = shown[:point].ljust(point, "0")
        return f"{minus}{whole}.{shown[point:] or '0'}"
    power = point - 1
    mantissa = shown[0] + ("." + shown[1:] if len(shown) > 1 else "")
    return f"{minus}{mantissa}e{'-' if power < 0 else '+'}{abs(power):02d}"


SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}


def text(value: str) -> str:
    r"""Return text in quotes: what is not U+0020 to U+007E as \uXXXX of each UTF-16 code unit.

    Args:
        value: Unicode.

    Returns:
        ASCII.
    """
    shown = ""
    for character in value:
        if character in SHORT:
            shown += SHORT[character]
        elif " " <= character <= "~":
            shown += character
        else:
            units = character.encode("utf-16-be")
            shown += "".join(
                f"\\u{units[i] << 8 | units[i + 1]:04x}" for i in range(0, len(units), 2)
            )
    return f'"{shown}"'


def fingerprint(values: Json) -> str:
    """Return the fingerprint of a plan.

    Args:
        values: As for `canonical`.

    Returns:
        64 hexadecimal digits.
    """
    return hashlib.sha256(b"fedtally-plan/1\n" + canonical(values).encode("ascii")).hexdigest()


def batches(num_rounds: int, count: int) -> list[list[int]]:
    """Return the rounds of each batch.

    Args:
        num_rounds: Rounds.
        count: Batches.

    Returns:
        A list of rounds for each batch.
    """
    found, start = [], 0
    for batch in range(count):
        size = num_rounds // count + (1 if batch < num_rounds % count else 0)
        found.append(list(range(start, start + size)))
        start += size
    return found


def without(values: Json, *names: str) -> Json:
    """Return a table without some of its entries.

    Args:
        values: The table.
        names: Of what is left out.

    Returns:
        The rest.
    """
    return {name: value for name, value in values.items() if name not in names}


# --------------------------------------------------------------------------------------------------
# The vectors.

SEED = bytes(range(32)).hex()
# Ed25519 of the secret SHA-256 of "s"
KEY = "6edfa4a73d7e2a71e61fbb80aaf6e578a9c7be779382c6d7fc99e086400c830f"
# X25519 of the secret 00 01 .. 1f
HELPER_KEY = "8f40c5adb68f25624ae5b214ea767a6ec94d829d3d7b5e1ad1ba6f3e2138285f"
# X25519 of the secret 01 02 .. 20
LEADER_KEY = "07a37cbc142093c8b755dc1b10e86cb426374ad16aa853ed0bdfc0b2b86d1c7c"
SMALL: Json = {
    "rows": 3,
    "width": 16,
    "schedule": "hybrid",
    "num_rounds": 3,
    "num_clients": 36,
    "max_round_clients": 12,
}
SMALL |= {"max_items": 1, "seed": SEED}
RANGE: Json = {"kind": "range", "size": 150_868, "public": True, "first": 1, "last": 150_868}
GRID: Json = {
    "kind": "grid",
    "size": 175_000,
    "public": True,
    "south": 25,
    "north": 50.0,
    "west": -130.0,
}
GRID |= {"east": -60.0, "step": 0.1}
WORDS: Json = {
    "kind": "dictionary",
    "size": 2,
    "public": True,
    "sha256": hashlib.sha256(b"words").hexdigest(),
}
COHORT: Json = {
    "method": "secagg",
    "adversary": "semi-honest",
    "n_min": 12,
    "n_max": 12,
    "corrupt": 1,
    "max_dropout_ppm": 100_000,
    "min_survivors": 10,
    "ring_neighbours": 0,
    "ring_threshold": 0,
    "length": 48,
    "bits": 16,
    "server_key": KEY,
}
ACTIVE: Json = COHORT | {
    "adversary": "active",
    "min_survivors": 9,
    "allow_list": hashlib.sha256(b"keys").hexdigest(),
}
TWO_SERVERS: Json = {
    "method": "two-server",
    "length": 48,
    "bits": 8,
    "n_max": 12,
    "min_batch": 6,
    "corrupt": 1,
    "leader_key": LEADER_KEY,
    "helper_key": HELPER_KEY,
    "allow_list": hashlib.sha256(b"keys").hexdigest(),
    "largest_entry": 1,
    "noise": 0,
}
CENTRAL: Json = {
    "schema": "fedtally-event/1",
    "mechanism": "rounded-gaussian",
    "rows": 3,
    "relation": "replace-one",
    "variance": 500,
    "max_items": 4,
    "clip_norm": 4.668828436677955,
    "participations": 2,
    "per_release": 2,
    "total_variation": 1e-29,
    "trust": "central",
}
SHARES: Json = {
    "schema": "fedtally-event/1",
    "mechanism": "skellam",
    "rows": 3,
    "relation": "zero-out",
    "variance": 13.6,
    "max_items": 1,
    "participations": 1,
    "per_release": 1,
    "honest_survivors": 9,
    "total_variation": 1e-29,
    "trust": "distributed",
}
SILOS: Json = SHARES | {
    "relation": "add-remove",
    "variance": 250.5,
    "max_items": 4,
    "clip_norm": 4.668828436677955,
    "silos_per_person": 2,
}
COUNTED: Json = SHARES | {
    "rows": 1,
    "variance": 13.6,
    "max_items": 4,
    "encoding": "histogram",
}
WEEKLY: Json = SHARES | {"variance": 27.25, "per_rounds": 2, "num_rounds": 3}
CERTIFIED: Json = {name: value for name, value in CENTRAL.items() if name != "clip_norm"}
CERTIFIED |= {
    "variance": 143.25,
    "max_items": 1,
    "participations": 1,
    "per_release": 1,
    "collisions": [2, 1],
}
PLANS: dict[str, Json] = {
    "without anything": {**SMALL, "domain": RANGE},
    "a range below zero, the largest of its kind": {
        **SMALL,
        "schedule": "fresh",
        "domain": {"kind": "range", "size": 2**63, "public": True, "first": -(2**63), "last": -1},
    },
    "private items, of which nothing is said": {
        **SMALL,
        "schedule": "shared",
        "domain": {"kind": "strings", "size": 9, "public": False},
    },
    "clients' shares, batches and a target": {
        **SMALL,
        "schedule": "batched:2",
        "domain": GRID,
        "secure_sum": COHORT,
        "privacy": {
            "epsilon": 2,
            "delta": 1e-6,
            "population": 'é "phones" \U0001f4f1',
            "not_private": False,
            "event": SHARES,
        },
        "target": {"linf": 0.1, "failure_probability": 0.05, "recovery": "joint"},
    },
    "active, several items, central trust": {
        **SMALL,
        "schedule": "shared",
        "max_items": 4,
        "domain": WORDS,
        "secure_sum": ACTIVE,
        "privacy": {
            "epsilon": 4.0,
            "delta": 1e-5,
            "population": "clients",
            "not_private": False,
            "event": CENTRAL,
        },
    },
    "certified hashes, ideal, a study": {
        **SMALL,
        "domain": {
            "kind": "integers",
            "size": 7,
            "public": True,
            "sha256": hashlib.sha256(b"numbers").hexdigest(),
        },
        "privacy": {
            "epsilon": 1.0,
            "delta": 1e-6,
            "population": "clients",
            "not_private": True,
            "event": CERTIFIED,
        },
    },
    "silos, a person in two of them": {
        **SMALL,
        "max_items": 4,
        "people": 5000,
        "domain": WORDS,
        "secure_sum": COHORT | {"length": 49, "bits": 24},
        "privacy": {
            "epsilon": 4.0,
            "delta": 1e-6,
            "population": "patients",
            "not_private": False,
            "event": SILOS,
        },
    },
    "days, of any two in a row one": {
        **SMALL,
        "domain": RANGE,
        "secure_sum": COHORT,
        "privacy": {
            "epsilon": 2.0,
            "delta": 1e-6,
            "population": "clients",
            "not_private": False,
            "event": WEEKLY,
        },
        "calendar": {"start": "2026-12-01T00:00Z", "period": "1d"},
    },
    "half minutes, from the middle of one": {
        **SMALL,
        "schedule": "fresh",
        "domain": RANGE,
        "calendar": {"start": "2026-12-01T06:00:30Z", "period": "30s"},
    },
    "a histogram of a range": {
        **SMALL,
        "rows": 1,
        "width": 9,
        "schedule": "shared",
        "encoding": "histogram",
        "domain": {"kind": "range", "size": 9, "public": True, "first": -4, "last": 4},
        "target": {
            "linf": 0.1,
            "failure_probability": 0.05,
            "recovery": "direct",
            "frequencies": "any",
        },
    },
    "a histogram of words, with clients' shares": {
        **SMALL,
        "rows": 1,
        "width": 2,
        "schedule": "shared",
        "max_items": 4,
        "encoding": "histogram",
        "domain": WORDS,
        "secure_sum": COHORT | {"length": 2},
        "privacy": {
            "epsilon": 4.0,
            "delta": 1e-6,
            "population": "clients",
            "not_private": False,
            "event": COUNTED,
        },
    },
    "two servers": {**SMALL, "domain": RANGE, "secure_sum": TWO_SERVERS},
    "two servers, with proofs": {
        **SMALL,
        "domain": RANGE,
        "secure_sum": TWO_SERVERS | {"bits": 16, "validity": "proofs"},
    },
    "strings of which nobody has the list": {
        **SMALL,
        "domain": {"kind": "open", "size": 2**26, "public": True, "max_length": 64, "bits": 26},
        "spelling": {"rows": 4, "width": 16},
    },
    "silos of strings in normal form": {
        **SMALL,
        "people": 5000,
        "domain": {
            "kind": "open",
            "size": 2**26,
            "public": True,
            "max_length": 64,
            "bits": 26,
            "normalise": "nfc",
        },
        "spelling": {"rows": 4, "width": 16},
    },
    "not published: no server_key": {
        **SMALL,
        "domain": RANGE,
        "secure_sum": without(COHORT, "server_key"),
    },
    "not published, active: no allow_list": {
        **SMALL,
        "domain": RANGE,
        "secure_sum": without(ACTIVE, "allow_list"),
    },
    "not published, active: no key": {
        **SMALL,
        "domain": RANGE,
        "secure_sum": without(ACTIVE, "server_key", "allow_list"),
    },
    "not published, two servers: no leader_key": {
        **SMALL,
        "domain": RANGE,
        "secure_sum": without(TWO_SERVERS, "leader_key"),
    },
    "not published, two servers: no helper_key": {
        **SMALL,
        "domain": RANGE,
        "secure_sum": without(TWO_SERVERS, "helper_key"),
    },
    "not published, two servers: no key": {
        **SMALL,
        "domain": RANGE,
        "secure_sum": without(TWO_SERVERS, "leader_key", "helper_key", "allow_list"),
    },
} | {
    f"a total variation of 2^{power}: digits at a power of two": {
        **SMALL,
        "domain": RANGE,
        "secure_sum": COHORT,
        "privacy": {
            "epsilon": 2.0,
            "delta": 1e-6,
            "population": "clients",
            "not_private": False,
            "event": SHARES | {"total_variation": 2.0**power},
        },
    }
    for power in (-97, -77)
}
NUMBERS = (
    0.0,
    -0.0,
    1.0,
    -130.0,
    0.1,
    1 / 3,
    2.5e-4,
    1e-4,
    9.999e-5,
    1e-6,
    1.25e-7,
    1e15,
    123456789012345680.0,
)
NUMBERS += (
    9999999999999998.0,
    1e16,
    1.5e16,
    1e22,
    1e100,
    5e-324,
    1.7976931348623157e308,
    0.30000000000000004,
)
# Powers of two, below which doubles are closer than above: not every program finds the fewest
# digits, or the nearest.
NUMBERS += (2.0**-97, 2.0**-77, 2.0**-44, 2.0**-24, 2.0**89, 2.0**-1022, 9007199254740992.0, 5e-323)
TEXTS = ("", "phones", 'a "b" \\ /', "\b\t\n\f\r\x00\x1f\x7f", "é", "\u2028", "\U0001f4f1", "<&>'")


def sections() -> dict[str, list[Json]]:
    """Return the vectors of the page.

    Returns:
        JSON.
    """
    plans = [
        {"name": name, "plan": plan, "canonical": canonical(plan), "fingerprint": fingerprint(plan)}
        for name, plan in PLANS.items()
    ]
    return {
        "plans": plans,
        "numbers": [{"value": value, "canonical": number(value)} for value in NUMBERS],
        "texts": [{"value": value, "canonical": text(value)} for value in TEXTS],
        "batches": [
            {"num_rounds": rounds, "batches": count, "rounds": batches(rounds, count)}
            for rounds, count in ((1, 1), (7, 3), (10, 4), (10, 10), (6, 3), (5, 1))
        ],
    }
