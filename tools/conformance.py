"""Ask another implementation everything that tests/vectors has known answers for, through pipes.

    python tools/conformance.py -- node clients/web/build/test/conform.js
    python tools/conformance.py --only "sketch: encode" -- ./mine
    python tools/conformance.py --list                    # the operations, with an example of each

The implementation is a program that reads a line of JSON and answers with one, until its input
ends:

    {"id": 7, "operation": "plan: number", "given": {"value": 0.1}}
    {"id": 7, "result": {"canonical": "0.1"}}

It answers `{"id": 7, "refused": "why"}` to what it must refuse, and `{"id": 7, "unknown": true}` to
what it does not do. Bytes are hexadecimal text. An integer beyond 2^53 is decimal text, and any
integer of an answer may be. `OPERATIONS` has a row for each operation; docs/evidence.md has them
in words. The exit status is 1 where an answer is wrong or none came, and where nothing was known.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Timer
from typing import Any, NamedTuple

VECTORS = Path(__file__).resolve().parent.parent / "tests" / "vectors"
VERSION = "fedtally-vectors/1"  # of all files that have one; this program reads no other
EXACT = 1 << 53  # integers up to it are exact in any reader of JSON
SECONDS = 60  # the longest that an answer may take
SECONDS_TO_END = 5  # once nothing more is asked
LONGEST = 1 << 24  # bytes of an answer

Json = dict[str, Any]


class Case(NamedTuple):
    """A question, and its known answer: None if it must be refused."""

    given: Json
    expected: Json | None


class Operation(NamedTuple):
    """A row of the table: what is asked, where it is specified, and its cases."""

    name: str
    page: str
    cases: Callable[[], Iterator[Case]]


@cache
def vectors(name: str) -> Any:
    """Return a document of the folder.

    Raises:
        SystemExit: it is of another version.
    """
    found = json.loads((VECTORS / f"{name}.json").read_text(encoding="utf-8"))
    if found.get("version") != VERSION:
        raise SystemExit(f"{name}.json is {found.get('version')}, and this reads {VERSION}")
    return found


def _rows(file: str, part: str, given: str, expected: str, **only: Any) -> Callable[[], Any]:
    """Return the cases of vectors that name what is given and expected as the operation does.

    Args:
        file: the document.
        part: the list in it.
        given: names of entries, with a space between them.
        expected: the same, of the answer.
        only: entries that a vector must have.
    """

    def cases() -> Iterator[Case]:
        for row in vectors(file)[part]:
            wanted = {name: row[name] for name in expected.split() if name in row}
            is_refused = row.get("success") is False
            if any(row.get(name) != value for name, value in only.items()):
                continue
            if is_refused or wanted or row.get("success"):  # or it is enough not to refuse
                asked = {name: row[name] for name in given.split() if name in row}
                yield Case(asked, None if is_refused else wanted)

    return cases


_SKETCH = ("schedule", "seed", "rows", "width", "num_rounds", "batches")


def _sketches() -> Iterator[Case]:
    for row in vectors("sketch")["sketches"]:
        for number, items in enumerate(row["items"]):
            if items is not None:
                given = {name: row[name] for name in _SKETCH} | {"round": number, "items": items}
                yield Case(given, {"counters": row["counters"][number]})


def _no_sketches() -> Iterator[Case]:
    for row in vectors("sketch")["negative"]:
        yield Case({name: row[name] for name in (*_SKETCH, "round", "items")}, None)


def _strings() -> Iterator[Case]:
    for row in vectors("sketch")["fingerprints"]:
        for text in row["strings"]:
            yield Case({"seed": row["seed"], "utf8": text["utf8"]}, {"id": text["id"]})


def _plans() -> Iterator[Case]:
    for row in vectors("plan")["plans"]:
        text = json.dumps(row["plan"], indent=2)
        yield Case(
            {"text": text}, {"canonical": row["canonical"], "fingerprint": row["fingerprint"]}
        )


def _unpacked() -> Iterator[Case]:
    for row in vectors("secagg")["packing"]:
        if "packed" in row:
            given = {"bits": row["bits"], "packed": row["packed"]}
            given["count"] = row["count"] if "count" in row else len(row["values"])
            yield Case(given, {"values": row["values"]} if row["success"] else None)


def _derived() -> Iterator[Case]:
    for row in vectors("secagg")["derivations"]:
        given = {name: value for name, value in row.items() if name not in ("output", "line")}
        yield Case(given, {"output": row["output"]})


def _bytes_of(messages: Json, shown: Json) -> str:
    """Return the bytes that a message of a vector stands for, in hexadecimal."""
    if "hex" in shown:
        return str(shown["hex"])
    data = bytes.fromhex(messages[shown["key"]])
    for start, end, new in shown.get("splices", []):
        data = data[:start] + bytes.fromhex(new) + data[end:]
    return data.hex()


def _answered(messages: Json, shown: Json | None) -> str | None:
    """Return the SHA-256 of an answer; None where nothing is answered."""
    if shown is None or "sha256" in shown:
        return None if shown is None else str(shown["sha256"])
    return hashlib.sha256(bytes.fromhex(_bytes_of(messages, shown))).hexdigest()


def _clients() -> Iterator[Case]:
    transcripts = {each["name"]: each for each in vectors("secagg")["transcripts"]}
    of_all = ("session", "server_public", "terms", "policy", "allow_list")
    for row in vectors("secagg_clients")["clients"]:
        if any(operation.get("raises") for operation in row["operations"]):
            continue  # an error of who calls the library, and none of the protocol
        transcript = transcripts[row["transcript"]]
        messages, who = transcript["messages"], row["client"]
        (client,) = (each for each in transcript["clients"] if each["name"] == who)
        told = ("invite", "roster", "inbox", "survivors", "confirmations")
        keys = [key for name in told for key in (name, f"{name}/{who}") if key in messages]
        received = [{"message": messages[key]} for key in keys[: row["taken"]]]
        for each in row["operations"]:
            received.append({"message": _bytes_of(messages, each["message"])})
            received[-1]["now"] = each.get("now", transcript["now"])
        for each in received:
            each.setdefault("now", transcript["now"])
        given = {name: transcript[name] for name in of_all}
        given |= {name: client[name] for name in ("identity", "draws", "vector")} | row["given"]
        yield Case(
            given | {"received": received},
            {
                "answers": [_answered(messages, each.get("answer")) for each in row["operations"]],
                "states": [each["state"] for each in row["operations"]],
            },
        )


def _contexts() -> Iterator[Case]:
    usual = vectors("two_server")["batches"][0]["parameters"]
    for row in vectors("two_server")["parameters"]:
        expected = {"context": row["context"]} if row["success"] else None
        yield Case({"parameters": usual | row["changes"]}, expected)


_REPORT = (
    *("parameters", "widths", "abstain", "signed", "vector", "e", "identity", "round", "time"),
    *("nonce", "seed", "salt", "prove_seed", "sealed", "sealed_leader_part"),
)
_CHECKED = ("parameters", "widths", "abstain", "signed", "identity", "round", "time", "nonce")
_PARTS = ("helper_secret", "sealed", "salt", "words", "proof", "dL", "dH", "dP", "signature")


def _reports() -> Iterator[Case]:
    for row in vectors("validity")["proofs"]:
        if row["verdict"] == "valid":
            frames = {name: row["frames"][name]["sha256"] for name in ("leader", "helper")}
            yield Case({name: row[name] for name in _REPORT}, frames)


def _verdicts() -> Iterator[Case]:
    for row in vectors("validity")["proofs"]:
        given = {name: row[name] for name in (*_CHECKED, *_PARTS)}
        yield Case(given, {"check": row["check"], "verdict": row["verdict"]})


def _prio3() -> Iterator[Case]:
    usual = {"operations", "reports", "agg_shares", "agg_result", "agg_param", "verify_key"}
    for path in sorted((VECTORS / "vdaf").glob("Prio3*_?.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        kind = {"type": path.stem.split("_")[0]}
        kind |= {name: value for name, value in document.items() if name not in usual}
        for report in document["reports"]:
            given = {name: report[name] for name in ("measurement", "nonce", "rand")}
            expected = {name: report[name] for name in ("public_share", "input_shares")}
            yield Case(kind | given, expected)


OPERATIONS = (
    Operation(
        "sketch: words",
        "protocol.md#sketches",
        _rows("sketch", "words", "seed row ids groups widths", "words locations signs"),
    ),
    Operation(
        "sketch: round seeds",
        "protocol.md#sketches",
        _rows("sketch", "round_seeds", "seed rounds", "round_seeds"),
    ),
    Operation("sketch: encode", "protocol.md#sketches", _sketches),
    Operation("sketch: refuse", "protocol.md#sketches", _no_sketches),
    Operation("sketch: id of a string", "protocol.md#sketches", _strings),
    Operation("plan: fingerprint", "plan.md", _plans),
    Operation("plan: number", "plan.md", _rows("plan", "numbers", "value", "canonical")),
    Operation("plan: text", "plan.md", _rows("plan", "texts", "value", "canonical")),
    Operation("plan: batches", "plan.md", _rows("plan", "batches", "num_rounds batches", "rounds")),
    Operation(
        "open domain: symbols",
        "open-domain.md",
        _rows("open", "symbols", "utf8 max_length", "positions symbols"),
    ),
    Operation(
        "open domain: vector",
        "open-domain.md",
        _rows(
            "open",
            "vectors",
            "rows width spelling_rows spelling_width max_length bits seed batches batch utf8",
            "entries",
        ),
    ),
    Operation("secure sum: check a key", "protocol.md", _rows("secagg", "points", "key", "")),
    Operation("secure sum: derive", "protocol.md", _derived),
    Operation(
        "secure sum: mask", "protocol.md", _rows("secagg", "generator", "key length", "sha256")
    ),
    Operation(
        "secure sum: pack",
        "protocol.md",
        _rows("secagg", "packing", "bits values", "packed", success=True),
    ),
    Operation("secure sum: unpack", "protocol.md", _unpacked),
    Operation(
        "secure sum: split",
        "protocol.md",
        _rows("secagg", "shamir", "secret threshold draws points", "shares", operation="split"),
    ),
    Operation(
        "secure sum: combine",
        "protocol.md",
        _rows("secagg", "shamir", "points shares", "secret", operation="combine"),
    ),
    Operation(
        "secure sum: decode",
        "protocol.md",
        _rows("secagg", "shamir", "threshold points shares", "secret wrong", operation="decode"),
    ),
    Operation("secure sum: client", "protocol.md", _clients),
    Operation("two servers: context", "protocol.md#two-servers", _contexts),
    Operation(
        "two servers: seal",
        "protocol.md#two-servers",
        _rows("two_server", "hpke", "secret info ephemeral plaintext", "sealed", success=True),
    ),
    Operation(
        "two servers: open",
        "protocol.md#two-servers",
        _rows("two_server", "hpke", "secret info sealed", "plaintext"),
    ),
    Operation("proofs: report", "protocol.md#proofs-of-valid-vectors", _reports),
    Operation("proofs: verdict", "protocol.md#proofs-of-valid-vectors", _verdicts),
    Operation("DAP: encode", "dap.md", _rows("dap18", "messages", "message value", "encoded")),
    Operation("DAP: decode", "dap.md", _rows("dap18", "messages", "message encoded", "value")),
    Operation("Prio3: shard", "protocol.md#proofs-of-valid-vectors", _prio3),
)


def portable(value: Any) -> Any:
    """Return a value of JSON in which integers beyond 2^53 are text.

    >>> portable({"id": 2**60, "items": [[1, -1]]})
    {'id': '1152921504606846976', 'items': [[1, -1]]}
    """
    if isinstance(value, dict):
        return {name: portable(each) for name, each in value.items()}
    if isinstance(value, list):
        return [portable(each) for each in value]
    is_large = isinstance(value, int) and abs(value) > EXACT
    return str(value) if is_large else value


def _compared(value: Any) -> Any:
    """Return a value of JSON with every integer as text."""
    if isinstance(value, dict):
        return {name: _compared(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_compared(each) for each in value]
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def verdict(answer: Any, case: Case, number: int) -> str:
    """Return how an answer is: "right", "unknown", or what is wrong with it.

    >>> verdict({"id": 1, "result": {"sum": 3}}, Case({}, {"sum": 3}), 1)
    'right'
    >>> verdict({"id": 1, "result": {}}, Case({}, None), 1)
    'it must be refused, and was not'
    """
    if not isinstance(answer, dict) or answer.get("id") != number:
        return f"no answer to {number}: {answer!r:.60}"
    if answer.get("unknown") is True:
        return "unknown"
    if case.expected is None:
        return "right" if "refused" in answer else "it must be refused, and was not"
    if "refused" in answer:
        return f"refused: {answer['refused']!r:.60}"
    found, expected = _compared(answer.get("result")), _compared(case.expected)
    if not isinstance(found, dict):
        return f"its result is {found!r:.60}"
    for name, value in expected.items():
        if found.get(name) != value:
            return f"{name} is {found.get(name)!r:.60}, and must be {value!r:.60}"
    return "right"


def ask(command: list[str], operations: list[Operation]) -> Iterator[tuple[str, Case, str]]:
    """Yield each operation with a case and how it was answered.

    Args:
        command: of the implementation.
        operations: those that it is asked.

    Raises:
        SystemExit: the command cannot be started.
    """
    try:
        # in a group of its own: what it starts ends with it, and holds no pipe open
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
    except OSError as error:
        raise SystemExit(f"{command[0]} cannot be started: {error.strerror}") from None
    assert process.stdin is not None and process.stdout is not None
    number = 0
    try:
        for operation in operations:
            for case in operation.cases():
                number += 1
                line = {"id": number, "operation": operation.name, "given": portable(case.given)}
                late = Timer(SECONDS, _end, (process,))
                late.start()
                try:
                    process.stdin.write(json.dumps(line).encode() + b"\n")
                    process.stdin.flush()
                    said = process.stdout.readline(LONGEST)
                except BrokenPipeError:
                    said = b""
                finally:
                    late.cancel()
                yield operation.name, case, _judged(said, case, number)
                if not said.endswith(b"\n"):  # it has ended, or never ends its line
                    return
    finally:
        process.stdout.close()
        with suppress(BrokenPipeError, subprocess.TimeoutExpired):
            process.stdin.close()
            process.wait(SECONDS_TO_END)
        _end(process)


def _judged(said: bytes, case: Case, number: int) -> str:
    """Return the verdict on the bytes of an answer, which may be anything."""
    try:
        return verdict(json.loads(said), case, number)
    except ValueError:
        return verdict(said[:99].decode(errors="replace"), case, number)
    except RecursionError:
        return f"no answer to {number}: it is nested too deeply"


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the implementation and all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main() -> int:
    """Ask; return the status of the process."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--only", action="append", metavar="NAME", help="ask this operation alone")
    parser.add_argument("--list", action="store_true", help="show the operations")
    parser.add_argument("command", nargs="*", help="the implementation, after --")
    asked = parser.parse_args()
    known = {operation.name: operation for operation in OPERATIONS}
    if unknown := set(asked.only or ()) - set(known):
        parser.error(f"no operation {sorted(unknown)[0]!r}; --list shows all {len(known)}")
    operations = [known[name] for name in asked.only or known]
    if asked.list:
        for operation in operations:
            cases = list(operation.cases())
            example = {"operation": operation.name, "given": portable(cases[0].given)}
            print(f"{operation.name} ({operation.page}, {len(cases)} cases)")
            print(f"    {json.dumps(example):.160}\n    {json.dumps(cases[0].expected):.160}")
        return 0
    if not asked.command:
        parser.error("give the command of the implementation after --")
    found: dict[str, Counter[str]] = {name: Counter() for name in known}
    for name, case, said in ask(asked.command, operations):
        found[name][said if said in ("right", "unknown") else "wrong"] += 1
        if said not in ("right", "unknown") and found[name]["wrong"] <= 3:
            print(f"WRONG  {name}: {said}\n       {json.dumps(portable(case.given)):.200}")
    for operation in operations:
        counts = found[operation.name]
        total = sum(1 for _ in operation.cases())
        is_unknown = counts["unknown"] == total
        some = f", {counts['unknown']} unknown" if counts["unknown"] else ""
        said = "unknown" if is_unknown else f"{counts['right']} of {total} right{some}"
        print(f"{operation.name:30} {said}")
    wrong = sum(counts["wrong"] for counts in found.values())
    right = sum(counts["right"] for counts in found.values())
    print(f"{right} right, {wrong} wrong")
    return int(wrong > 0 or right == 0)


if __name__ == "__main__":
    raise SystemExit(main())
