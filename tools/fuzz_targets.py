"""The parsers of what strangers send, and the kernels: a row each, for `tools/fuzz.py`.

A target returns, or raises an error of its row. Where it encodes again what it took, the bytes are
the same. Its first valid inputs are made here; those in tests/corpus/ were found by coverage.
"""

from __future__ import annotations

import atexit
import gzip
import hashlib
import io
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import fuzz_secagg
import fuzz_servers
import httpx
import numpy as np
from fuzz_secagg import Failure, stream

import fedtally
from fedtally import Result
from fedtally.agent.settings import Settings
from fedtally.answer import saving
from fedtally.base import archive
from fedtally.campaign import closings, dap_files, enrolment, folder, key_files
from fedtally.campaign.places import read_settings
from fedtally.campaign.signing_book import SigningBook
from fedtally.campaign.transports.https import channel, dap_asking, join, resource, tokens
from fedtally.crypto.keys import KEY_BYTES, SIGNATURE_BYTES, Secret, SigningKey
from fedtally.dap import draft09, draft18
from fedtally.dap.presentation import MalformedError, Message
from fedtally.dap.problems import Problem
from fedtally.dap.task import Task, TaskSecret
from fedtally.errors import InvalidInputError, UnreadableFileError
from fedtally.kernels import Decoder, accumulate, fingerprint, hash_words, reference, rows
from fedtally.kernels import linear_proofs as proof_kernels
from fedtally.kernels.backends import available_backends
from fedtally.plan import Plan
from fedtally.secagg.server import Server
from fedtally.sketch import CountSketch, SketchSpec
from fedtally.sources import Columns, open_source
from fedtally.sources.lists import read_candidates

VECTORS = Path(__file__).resolve().parent.parent / "tests" / "vectors"
REFUSED = (InvalidInputError,)  # with UnreadableFileError, which is one
Check = Callable[[bytes], "bytes | None"]


class Target(NamedTuple):
    """A parser.

    Attributes:
        check: reads the bytes; returns what it encodes again, or None where there is no encoder.
        errors: what it may raise.
        valid: makes the first inputs.
    """

    check: Check
    errors: tuple[type[Exception], ...]
    valid: Callable[[], Iterable[bytes]]


_SCRATCH: dict[int, Path] = {}


def _scratch() -> Path:
    """Return a folder of this process, which is removed at its end."""
    number = os.getpid()
    if number not in _SCRATCH:
        _SCRATCH[number] = place = Path(tempfile.mkdtemp())
        atexit.register(lambda: number != os.getpid() or shutil.rmtree(place))  # not by a child
    return _SCRATCH[number]


def _file(data: bytes, name: str = "given") -> Path:
    """Return a file of these bytes that its owner alone may read."""
    place = _scratch() / name
    place.parent.mkdir(mode=0o700, exist_ok=True)
    place.touch(mode=0o600)
    place.write_bytes(data)
    return place


def _of_file(load: Callable[[Path], object], name: str = "given") -> Check:
    def check(data: bytes) -> None:
        load(_file(data, name))

    return check


def _vectors(name: str) -> Any:
    return json.loads((VECTORS / f"{name}.json").read_text())


# ---- secure summation ----


@cache
def _decoders() -> list[fuzz_secagg.Target]:
    return [each for each in fuzz_secagg.targets() if not each.name.startswith("restore")]


def _secagg(data: bytes) -> None:
    """Give the rest to the decoder that the first byte names."""
    if data:
        decoders = _decoders()
        fuzz_secagg.check_decoder(decoders[data[0] % len(decoders)], data[1:])


def _frames() -> Iterable[bytes]:
    for number, decoder in enumerate(_decoders()):
        yield from (bytes([number]) + seed for seed in decoder.seeds[:2])


@cache
def _cohort() -> fuzz_secagg.Cohort:
    cohort = fuzz_secagg.Cohort(0)
    fuzz_secagg.run_through(cohort)
    return cohort


def _checkpoint(data: bytes) -> None:
    """Restore a server from bytes behind their right digest, which chance would not find."""
    Server.restore(hashlib.sha256(data).digest() + data, random=bytes)


# ---- plans, archives ----


def _plan(data: bytes) -> None:
    plan = Plan.from_toml(_text(data))
    if Plan.from_toml(plan.to_toml()).fingerprint != plan.fingerprint:
        raise Failure("a plan has another fingerprint once it was written")


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidInputError("the bytes are no UTF-8") from None


@cache
def _plans() -> list[Plan]:
    return [Plan.from_dict(each["plan"]) for each in _vectors("plan")["plans"]]


def _sketch(data: bytes) -> None:
    """Read a sketch of this header and these entries, behind their right checksums."""
    header, _, rest = data.partition(b"\n")
    counters, _, more = rest.partition(b"\n\n")
    entries = {"counters.npy": counters} | ({"spelled.npy": more} if more else {})
    CountSketch.from_bytes(_archive(header, entries))


def _archive(header: bytes, entries: Mapping[str, bytes]) -> bytes:
    """Return an archive of a header and packed arrays, behind their right checksums."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        named = np.frombuffer(header, np.uint8)
        with file.open("header.npy", "w") as entry:
            np.lib.format.write_array(entry, named, allow_pickle=False)
        for name, data in entries.items():
            file.writestr(name, data)
    return packed.getvalue()


@cache
def _a_result() -> tuple[bytes, dict[str, bytes]]:
    """Return the header and the arrays of a saved result, with what joint recovery found."""
    place = _scratch() / "valid.fed"
    found = fedtally.estimate([1, 2, 2] * 5, domain="range:1..2", seed=1, rows=3, recovery="joint")
    found.prepare()
    with patch.object(saving, "_SLOW", 0):  # else only results of many candidates keep a fit
        found.save(place)
    with zipfile.ZipFile(place) as file:
        arrays = {name: file.read(name) for name in file.namelist()}
    header = np.lib.format.read_array(io.BytesIO(arrays.pop("header.npy")))
    return header.tobytes(), arrays


def _saved(data: bytes) -> None:
    """Read a saved result of this header, whose arrays are right."""
    Result.load(_file(_archive(data, _a_result()[1]), "result.fed"))


@cache
def _a_sketch() -> bytes:
    spec = SketchSpec(rows=3, width=8, schedule="shared", num_rounds=1, seed=bytes(32))
    sketch = CountSketch(spec, round=0)
    sketch.add(np.array([7, 9], np.uint64))
    return sketch.to_bytes()


def _sketch_parts() -> Iterable[bytes]:
    with zipfile.ZipFile(io.BytesIO(_a_sketch())) as file:
        header = np.lib.format.read_array(io.BytesIO(file.read("header.npy")))
        yield header.tobytes() + b"\n" + file.read("counters.npy")


# ---- files of people and servers ----


def _keys() -> Iterable[bytes]:
    for role in ("server", "client", "leader"):
        place = _scratch() / f"{role}.key"
        if not place.exists():
            key_files.create_key_files(place, role, stream("key", role))
        yield place.read_bytes()
        yield key_files.public_path(place).read_bytes()


SIGNER = SigningKey(Secret(stream("registrar")(32)))
REGISTRAR = SIGNER.public.hex()


def _lines() -> dict[str, list[bytes]]:
    plan = _plans()[0].fingerprint
    said = enrolment.Authority("study", 1, enrolment.date(2027, 1, 2), ("ab" * 32,))
    signature = enrolment.PlanSignature(SIGNER.public, plan, said, bytes(64))
    allowed = _scratch() / "allowed"
    proof = enrolment.make_proof(SIGNER, SIGNER.public, "a study")
    enrolment.save_allow_list(allowed, enrolment.allow_list_of([proof], SIGNER.public, "a study"))
    return {
        "proof": [proof.to_line().encode()],
        "signature": [signature.to_line().encode()],
        "revocation": [enrolment.revoke_plans(SIGNER, [plan]).to_line().encode()],
        "allow-list": [allowed.read_bytes()],
    }


AGENT = f"""\
key = "client.key"
mark = "mark/mark"
registrar = "{REGISTRAR}"
peers = ["root"]
[items]
file = "items.csv"
column = "word"
[policy]
adversary = "active"
min_honest = 5
epsilon = 1.0
delta = 1e-8
[consent]
registrar = "{REGISTRAR}"
purpose = "drinks 2027"
candidates = ["range:1..100"]
epsilon = 0.5
until = 2027-12-31
"""
CAMPAIGN = f"""\
schema = "{folder.SCHEMA}"
server_key = "server.key"
ledger = "sqlite:///ledger.db"
mark = "../mark"
[deadlines]
phase = 60.0
"""


CLOSINGS = json.dumps(
    {
        "schema": closings.SCHEMA,
        "size": None,
        "grace": 60,
        "releases": [{"at": 1_800_000_000, "since": None, "lost": None, "told": False}],
    }
)


def _agent(data: bytes) -> None:
    _file(b"word\ntea\n", "agent/items.csv")
    Settings.load(_file(data, "agent/agent.toml").parent)


def _settings(path: Path) -> None:
    read_settings(path, "fedtally-leader/1", "aggregate", ["schema", "plan"], ["mark"])


def _tokens(path: Path) -> None:
    if any(len(digest) != 64 for digest in tokens.read(path.parent).values()):
        raise Failure("a digest of another length was taken")


def _line(load: Callable[[Path], Any]) -> Check:
    """Return a check of a line by its loader: what is in it has the lengths of keys."""

    def check(path: Path) -> None:
        made = load(path)
        keys = [made.registrar, getattr(made, "identity", made.registrar)]
        if len(made.signature) != SIGNATURE_BYTES or any(len(key) != KEY_BYTES for key in keys):
            raise Failure("a key or a signature of another length was taken")

    return _of_file(check)


def _book(path: Path) -> None:
    SigningBook(path, SIGNER.public)


def _closings(path: Path) -> None:
    closings.Closings(path.parent).read()


def _states(data: bytes) -> None:
    resource.read_state(data, "leader")
    if len(resource.read_digest(data.decode("latin-1"))) not in (0, 32):
        raise Failure("a digest of another length was taken")


def _problem(data: bytes) -> None:
    """Read a problem of the other server: whatever it is, it has some words or none."""
    kind = dap_asking.PROBLEM_TYPE
    dap_asking._problem(dap_asking._Heard(400, httpx.Headers({"content-type": kind}), data))
    channel._why(join.Heard(400, kind), data)


# ---- DAP ----

_MESSAGES: list[type[Message]] = [
    kind
    for module in (draft18, draft09)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Message) and kind is not Message
]


def _dap(data: bytes) -> bytes | None:
    """Give the rest to the message that the first byte names."""
    if not data:
        return None
    return data[:1] + _MESSAGES[data[0] % len(_MESSAGES)].decode(data[1:]).encode()


def _messages() -> Iterable[bytes]:
    places = {kind.__name__: place for place, kind in reversed(list(enumerate(_MESSAGES)))}
    for each in _vectors("dap18")["messages"]:
        yield bytes([places[each["message"]]]) + bytes.fromhex(each["encoded"])  # of draft 18


def _tasks() -> Iterable[bytes]:
    for each in (*_vectors("dap09"), *_vectors("dap18_exchange").values()):
        yield each["task"].encode()


def _task(data: bytes) -> None:
    task = Task.from_toml(_text(data))
    if Task.from_toml(task.to_toml()) != task:
        raise Failure("a task is another one once it was written")


def _secret(path: Path) -> None:
    if len(dap_files.load_secret(path).collector) != 32:
        raise Failure("a digest of another length was taken")


# ---- tables ----


def _table(format: str, ending: str = "", **columns: str) -> Check:
    def check(data: bytes) -> None:
        place = _file(data, f"table.{ending or format}")
        for private in (False, True):
            source = open_source(place, Columns(**columns), format=format)
            for batch in source.batches(private=private):
                len(batch)

    return check


def _parquet() -> Iterable[bytes]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    pq.write_table(pa.table({"word": ["tea", None], "who": [1, 2]}), sink)
    yield sink.getvalue()


# ---- kernels ----


class _Bytes:
    """Numbers and arrays out of the bytes of an input; zeros once they are used up."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, size: int) -> bytes:
        found = self._data[self._at : self._at + size]
        self._at += size
        return found.ljust(size, b"\0")

    def below(self, bound: int) -> int:
        return int.from_bytes(self.take(4), "little") % bound

    def array(self, dtype: Any, *shape: int) -> Any:
        """Return an array that is not larger than its values: a byte behind it is out of bounds."""
        size = int(np.prod(shape, dtype=int))
        given = self.take(min(size, 1 << 12) * np.dtype(dtype).itemsize)
        return np.resize(np.frombuffer(given, dtype) if size else np.empty(0, dtype), shape)


def _equal(name: str, level: str, found: Any, wanted: Any) -> None:
    if not np.array_equal(found, wanted):
        raise Failure(f"{name}: {level} gives {found!r}, and the reference {wanted!r}")


def _of_level(work: Callable[[], Any]) -> Mapping[str, Any]:
    """Return what each compiled level gives."""
    found = {}
    for level in available_backends():
        os.environ["FEDTALLY_KERNELS"] = level
        found[level] = work()
    return found


def _same(name: str, work: Callable[[], Any]) -> None:
    found = _of_level(work)
    for level, value in found.items():
        _equal(name, level, value, found["numpy"])


def _hash(given: _Bytes) -> None:
    number, width, count = 1 + given.below(18), 1 + given.below(300), given.below(600)
    tables, ids = given.array("<u4", number, 8, 256), given.array("<u8", count)
    counts = given.array("<i4", count).astype(np.int64)

    def encoded() -> Any:
        counters = np.zeros((number, width), np.int64)
        accumulate(counters, tables, tables, 3, ids, counts)
        accumulate(counters, tables, tables, 0, ids)
        return counters

    _same("hash_words", lambda: hash_words(tables, ids))
    _same("accumulate", encoded)


def _decode(given: _Bytes) -> None:
    batches, number, width = 1 + given.below(9), 1 + given.below(18), 1 + given.below(200)
    tables = given.array("<u4", -(-batches // 8), number, 8, 256)
    sums = given.array("<i4", batches, number, width).astype(np.int64)
    count, first, expected = given.below(700), given.below(1 << 31), 1 + given.below(1 << 20)
    ids = given.array("<u8", count)
    _same("decode", lambda: Decoder(sums, tables, expected).at(ids))
    _same("decode range", lambda: Decoder(sums, tables, expected).range(first, count))


def _names(given: _Bytes) -> None:
    data = np.frombuffer(given.take(given.below(300)), np.uint8)
    cuts = np.sort(given.array("<u4", 1 + given.below(20)).astype(np.int64) % (len(data) + 1))
    keys = given.below(reference.PRIME - 1), given.below(reference.PRIME - 1)
    _same("fingerprint", lambda: fingerprint(data, cuts, *keys))


def _rows(given: _Bytes) -> None:
    number, count = 2 + given.below(2), given.below(300)
    table = given.array("<u2", number, count).astype(np.uint64)
    _same("group", lambda: np.concatenate(rows.group(table[0])))
    _same("spread", lambda: rows.spread(list(table))[0])
    _same("distinct_rows", lambda: rows.distinct_rows(table))


def _quotes(given: _Bytes) -> None:
    text = bytes(b',;"\n\rab '[byte % 8] for byte in given.take(given.below(200)))
    _same("quotes_are_closed", lambda: rows.quotes_are_closed(text + b"\n", ",;"[len(text) % 2]))


def _words(given: _Bytes) -> None:
    size, most, prime = 1 + given.below(4), given.below(50), 3 + 2 * given.below(1 << 30)
    data = given.take(size * given.below(80))
    words, bits = given.array("<i8", most), 1 + given.below(8 * size)
    numbers = np.frombuffer(data, np.uint8).reshape(-1, size).astype(np.int64)
    numbers = (numbers << (8 * np.arange(size))).sum(axis=1) & ((1 << bits) - 1)
    out = np.empty(most, np.int64)
    found = proof_kernels.read_words(size, bits, prime, data, out)
    _equal("read_words", "any", out[:found], numbers[numbers < prime][:most])
    for level in available_backends()[1:]:
        _equal(
            "reduce_words", level, proof_kernels.reduce_words(level, words, prime), words % prime
        )


_KERNELS = (_hash, _decode, _names, _rows, _quotes, _words)


def _kernels(data: bytes) -> None:
    """Give the rest to the kernels that the first byte names: each level says what NumPy does."""
    if data:
        _KERNELS[data[0] % len(_KERNELS)](_Bytes(data[1:]))


def _kernel_inputs() -> Iterable[bytes]:
    for number in range(len(_KERNELS)):
        yield from (bytes([number]) + stream("kernel", number, i)(3000) for i in range(2))


TABLE = b'word,who,n\ntea,1,2\n"ri""ce",2,1\n,3,1\n'
JSON = b'{"word": "tea", "who": 1}\n{"word": null, "who": 2}\n'
TARGETS: dict[str, Target] = {
    "frames": Target(_secagg, (), _frames),
    "checkpoint": Target(
        _checkpoint, (UnreadableFileError,), lambda: [each[32:] for each in _cohort().saved[-2:]]
    ),
    "plan": Target(_plan, REFUSED, lambda: [each.to_toml().encode() for each in _plans()[:8]]),
    "plan-json": Target(
        _of_file(Plan.load, "plan.json"),
        REFUSED,
        lambda: [each["canonical"].encode() for each in _vectors("plan")["plans"][:4]],
    ),
    "archive": Target(_of_file(archive.read), REFUSED, lambda: [_a_sketch()]),
    "sketch": Target(_sketch, REFUSED, _sketch_parts),
    "result": Target(_saved, REFUSED, lambda: [_a_result()[0]]),
    "private-key": Target(_of_file(key_files.public_key_of), REFUSED, _keys),
    "public-key": Target(_of_file(key_files.load_public_key), REFUSED, _keys),
    "proof": Target(_line(enrolment.load_proof), REFUSED, lambda: _lines()["proof"]),
    "signature": Target(_line(enrolment.load_signature), REFUSED, lambda: _lines()["signature"]),
    "revocation": Target(_line(enrolment.load_revocation), REFUSED, lambda: _lines()["revocation"]),
    "book": Target(
        _of_file(_book), REFUSED, lambda: [_lines()["signature"][0] + _lines()["revocation"][0]]
    ),
    "allow-list": Target(
        _of_file(enrolment.load_allow_list), REFUSED, lambda: _lines()["allow-list"]
    ),
    "agent": Target(_agent, REFUSED, lambda: [AGENT.encode()]),
    "campaign": Target(_of_file(folder._read_settings), REFUSED, lambda: [CAMPAIGN.encode()]),
    "server": Target(
        _of_file(_settings), REFUSED, lambda: [b'schema = "fedtally-leader/1"\nplan = "a"\n']
    ),
    "tokens": Target(
        _of_file(_tokens, f"campaign/{tokens.TOKENS}"),
        REFUSED,
        lambda: [f"{tokens.SCHEMA}\nann = {'ab' * 32}\n{tokens._END}\n".encode()],
    ),
    "closings": Target(
        _of_file(_closings, f"leader/{closings.CLOSINGS}"), REFUSED, lambda: [CLOSINGS.encode()]
    ),
    "problem": Target(_problem, (), lambda: [b'{"type": "urn:a", "title": "b", "detail": "c"}']),
    "state": Target(_states, (), lambda: [b'{"server": "leader", "state": "open"}', b"ab" * 32]),
    "dap": Target(_dap, REFUSED, _messages),
    "dap-body": Target(fuzz_servers.body, fuzz_servers.DAP_ERRORS, fuzz_servers.bodies),
    "dap-share": Target(fuzz_servers.share, (MalformedError, Problem), fuzz_servers.shares),
    "report": Target(fuzz_servers.proven, (), fuzz_servers.proven_parts),
    "dap-task": Target(_task, REFUSED, _tasks),
    "dap-secret": Target(
        _of_file(_secret),
        REFUSED,
        lambda: [TaskSecret(bytes(32), Secret(bytes(32))).to_toml().encode()],
    ),
    "csv": Target(_table("csv", item="word", client="who"), REFUSED, lambda: [TABLE]),
    "json": Target(_table("json", item="word", client="who"), REFUSED, lambda: [JSON]),
    "gzip": Target(
        _table("csv", "csv.gz", item="word", client="who"), REFUSED, lambda: [gzip.compress(TABLE)]
    ),
    "candidates": Target(
        _of_file(read_candidates, "drinks.txt"), REFUSED, lambda: [b"tea\ncoffee\n"]
    ),
    "text": Target(_table("text"), REFUSED, lambda: [b"tea\nrice\n\ntea"]),
    "parquet": Target(_table("parquet", item="word", client="who"), REFUSED, _parquet),
    "kernels": Target(_kernels, (), _kernel_inputs),
}


def check(name: str, data: bytes) -> bool:
    """Give one input to a target; whether it was taken.

    Raises:
        Failure: it raised something else than its error, or what it took is not what it gives back.
    """
    target = TARGETS[name]
    try:
        again = target.check(data)
    except Failure:
        raise
    except target.errors:
        return False
    except Exception as error:
        raise Failure(f"{name}: {type(error).__name__}: {error}") from error
    if again is not None and again != data:
        raise Failure(f"{name}: encoded again as {again.hex()}")
    return True
