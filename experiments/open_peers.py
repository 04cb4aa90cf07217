"""Other methods that find strings of which nobody has the list, at the same bytes of a client.

- Prefix extension: a round for every two bytes of a name, one after the other. In each, clients
  send a sketch of their string's prefix, two bytes longer than in the round before; only strings
  with a prefix that survived are in it. Words of more than 15 bytes are left out, which saves
  rounds.
- Bit planes, in one stage: each cell of a sketch has one counter for each bit of a code of 40 bits
  and of the text. A cell that one string rules tells its bits; the string is then taken out.
- IBLT, an invertible Bloom lookup table in the layout of TensorFlow Federated: three tables of
  cells of 24 values of 32 bits, which are peeled. Its checks are taken as perfect, so that only the
  graph decides; noise breaks it, so there is no row with an epsilon.

They are here to be compared with, not to be used.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from experiments import open_populations
from fedtally import kernels
from fedtally.domain import IntegerRange
from fedtally.domain.strings import fingerprint_key, fingerprints
from fedtally.plan import modulus_bits
from fedtally.privacy import config
from fedtally.recovery.decoders.joint.joint import JointDecoder
from fedtally.sketch import CountSketch, Schedule, SketchSpec
from fedtally.sketch.hashing import tabulation_tables

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]
_END = 0xFF
_POSITIONS = open_populations.LONGEST + 1
_ROWS = 5  # of prefix extension
_KEPT = 4000  # prefixes that survive a round, at most
_STEP = 2  # bytes by which a round makes prefixes longer
_SHIFT = 8 * _STEP
_PREFIX_ROUNDS = {"words": 8, "urls": 33}
_CODE = 40  # bits that tell strings of bit planes apart
_PLANE_ROWS, _SWEEPS = 3, 30
_CELL = 24 * 4  # bytes of a cell of an IBLT
_OVERHEAD = 1.1 * 1.222  # cells for each different string that it is made for


class Asked(NamedTuple):
    """What a method gets.

    Attributes:
        population: words or urls.
        strings: the population.
        clients: of the whole campaign.
        tau: the error that is asked for.
        epsilon: of the privacy; None: none.
        delta: of the privacy.
        max_bytes: of a client.
    """

    population: str
    strings: open_populations.Strings
    clients: int
    tau: float
    epsilon: float | None
    delta: float
    max_bytes: int

    def stddev(self, rows: int) -> float:
        """Return the noise of a counter where an item changes so many by 1."""
        if self.epsilon is None:
            return 0.0
        one = config.propose(
            epsilon=self.epsilon, delta=self.delta, rows=1, width=1000, not_private=True
        )
        return one.stddev * float(np.sqrt(rows))  # of a vector that is so many times as long


class Found(NamedTuple):
    """What a method answers.

    Attributes:
        frequencies: of the names that were read.
        truth: float64 [n], the shares that the strings of the population had.
        sequence: the rounds that wait for each other.
        seconds: of the processor, for decoding alone.
        needed: the bytes with which the method would have worked; None: it has no such number.
    """

    frequencies: dict[str, float]
    truth: F64
    sequence: int
    seconds: float
    needed: int | None = None


def extend_prefixes(asked: Asked, rng: np.random.Generator) -> Found:
    """Extend prefixes round by round."""
    law, rounds = asked.strings.law, _PREFIX_ROUNDS[asked.population]
    text = _padded(asked.strings.items, rounds * _STEP).view(">u2")
    noise = asked.stddev(_ROWS)
    bits = modulus_bits(-(-asked.clients // rounds), 1)
    width = max(2, 8 * asked.max_bytes // bits // _ROWS)
    truth, done, seconds = np.zeros(len(law)), {}, 0.0
    live, prefixes = np.zeros(len(law), np.int64), [b""]  # the surviving prefix of each string
    sizes = [len(part) for part in np.array_split(np.arange(asked.clients), rounds)]
    for place, clients in enumerate(sizes):
        counts = rng.multinomial(clients, law)
        truth += counts
        if not prefixes:
            continue
        sketch = CountSketch(
            SketchSpec(_ROWS, width, Schedule.parse("shared"), 1, rng.bytes(32)), 0
        )
        here = np.flatnonzero((live >= 0) & (counts > 0))
        ids = (live[here] << _SHIFT | text[here, place]).astype(np.uint64)
        sketch.add(ids, counts[here], clients)
        sketch.vector += np.rint(rng.normal(0.0, noise, len(sketch.vector))).astype(np.int64)
        start = time.process_time()
        decoder = JointDecoder([sketch], IntegerRange(0, (len(prefixes) << _SHIFT) - 1))
        found = decoder.fit.support.ids
        shares = decoder.at(found) / clients
        kept = np.argsort(-shares, kind="stable")[:_KEPT]
        kept = kept[shares[kept] >= asked.tau]
        seconds += time.process_time() - start
        longer: list[bytes] = []
        places: dict[int, int] = {}
        for key, share in zip(found[kept].tolist(), shares[kept].tolist(), strict=True):
            prefix = prefixes[key >> _SHIFT] + (key & (1 << _SHIFT) - 1).to_bytes(_STEP, "big")
            if prefix[-1] == _END:
                done[prefix.rstrip(b"\xff").decode(errors="replace")] = share
            else:
                places[key] = len(longer)
                longer.append(prefix)
        alive = np.flatnonzero(live >= 0)
        keys = (live[alive] << _SHIFT | text[alive, place]).tolist()
        live[alive] = [places.get(key, -1) for key in keys]
        prefixes = longer
    return Found(done, truth / truth.sum(), rounds, seconds)


def peel_table(asked: Asked, rng: np.random.Generator) -> Found:
    """Peel an IBLT, by its graph alone."""
    counts = rng.multinomial(asked.clients, asked.strings.law)
    held = np.flatnonzero(counts)
    size = max(1, asked.max_bytes // _CELL // 3)
    cells = rng.integers(0, size, (len(held), 3)) + np.arange(3) * size
    start = time.process_time()
    loads = np.bincount(cells.ravel(), minlength=3 * size)
    # the sum of what lies in a cell: of a single string its own number
    sums = np.zeros(3 * size, np.int64)
    np.add.at(sums, cells, np.arange(len(held))[:, None])
    waiting, read = np.flatnonzero(loads == 1).tolist(), []
    while waiting:
        cell = waiting.pop()
        if loads[cell] != 1:
            continue
        string = int(sums[cell])
        read.append(string)
        for own in cells[string].tolist():
            loads[own] -= 1
            sums[own] -= string
            if loads[own] == 1:
                waiting.append(own)
    seconds = time.process_time() - start
    names = asked.strings.items.take(held[read]).to_pylist()
    shares = (counts[held[read]] / asked.clients).tolist()
    needed = round(3 * _CELL * (_OVERHEAD * len(held) / 3 + 10))
    truth = counts / asked.clients
    return Found(dict(zip(names, shares, strict=True)), truth, 1, seconds, needed)


def read_planes(asked: Asked, rng: np.random.Generator) -> Found:
    """Read the bits of cells, and peel."""
    return _Planes(asked, rng).read()


class _Planes:
    """The cells of bit planes, [rows, width, bits], in shares of the clients."""

    def __init__(self, asked: Asked, rng: np.random.Generator) -> None:
        self.items, self._tau = asked.strings.items, asked.tau
        self.key = fingerprint_key(rng.bytes(32))
        self.bits = _CODE + 8 * _POSITIONS
        counts = rng.multinomial(asked.clients, asked.strings.law)
        self.truth = counts / asked.clients
        width = 8 * asked.max_bytes // modulus_bits(asked.clients, 1) // _PLANE_ROWS // self.bits
        self.width = max(1, width)
        self.tables = tabulation_tables(rng.bytes(32), _PLANE_ROWS)
        self.cells = np.zeros((_PLANE_ROWS, self.width, self.bits))
        held = np.flatnonzero(counts)
        codes = self._codes(fingerprints(self.items.take(held), self.key))
        text = _padded(self.items.take(held), _POSITIONS, repeat=True)
        places, signs = self._places(codes)
        for start in range(0, len(held), 1 << 13):
            some = slice(start, start + (1 << 13))
            signed = self._signed(codes[some], text[some]) * counts[held[some], None]
            for row in range(_PLANE_ROWS):
                np.add.at(self.cells[row], places[row, some], signed * signs[row, some, None])
        noise = asked.stddev(_PLANE_ROWS * self.bits)
        self.cells += np.rint(rng.normal(0.0, noise, self.cells.shape))
        self.cells /= asked.clients

    def _codes(self, ids: U64) -> U64:
        return ids & np.uint64((1 << _CODE) - 1)

    def _places(self, codes: U64) -> tuple[I64, I64]:
        words = kernels.hash_words(self.tables, codes)
        return kernels.locations(words, self.width), kernels.signs(words, 0)

    def _signed(self, codes: U64, text: U8) -> F64:
        """Return the bits of codes and text as +1 and -1: float64 [n, bits]."""
        own = codes[:, None] >> np.arange(_CODE, dtype=np.uint64) & np.uint64(1)
        both = np.hstack([own.astype(np.uint8), np.unpackbits(text, axis=1)])
        return 1.0 - 2.0 * both

    def read(self) -> Found:
        """Read cells that one string rules, and take it out, until nothing more is read."""
        start = time.process_time()
        found: dict[int, tuple[str, float]] = {}
        for _ in range(_SWEEPS):
            if not self._sweep(found):
                break
        seconds = time.process_time() - start
        return Found(dict(found.values()), self.truth, 1, seconds)

    def _sweep(self, found: dict[int, tuple[str, float]]) -> bool:
        ruled = np.median(np.abs(self.cells[:, :, :_CODE]), axis=2) > 0.5 * self._tau
        rows, columns = np.nonzero(ruled)
        bits = self.cells[rows, columns, :_CODE] < 0
        powers = np.uint64(1) << np.arange(_CODE, dtype=np.uint64)
        news = False
        for flip in (False, True):  # the sign of a string in its cell is not known
            codes = ((bits ^ flip) * powers).sum(axis=1, dtype=np.uint64)
            places, signs = self._places(codes)
            each = np.arange(len(codes))
            is_own = (places[rows, each] == columns) & (signs[rows, each] == (-1 if flip else 1))
            for code in np.unique(codes[is_own]).tolist():
                news |= code not in found and self._take(code, found)
        return news

    def _take(self, code: int, found: dict[int, tuple[str, float]]) -> bool:
        """Read the text of a code, and take the string out; return whether it was read."""
        codes = np.array([code], np.uint64)
        places, signs = self._places(codes)
        mine = self.cells[np.arange(_PLANE_ROWS), places[:, 0]] * signs[:, :1]
        own = self._signed(codes, np.zeros((1, _POSITIONS), np.uint8))[0, :_CODE]
        share = float(np.median((mine[:, :_CODE] * own).mean(axis=1)))
        if share < 0.7 * self._tau:
            return False
        soft = np.clip(mine[:, _CODE:], -2 * share, 2 * share).sum(axis=0).reshape(_POSITIONS, 8)
        for size in range(2, _POSITIONS + 1):
            summed = np.zeros((size, 8))
            np.add.at(summed, np.arange(_POSITIONS) % size, soft)
            word = np.packbits(summed < 0, axis=1)[:, 0]
            if word[-1] != _END or (word[:-1] >= 0xF8).any():
                continue
            offsets = np.array([0, size - 1])
            fingerprint = kernels.fingerprint(word[:-1].copy(), offsets, *self.key)
            if self._codes(fingerprint)[0] == code:
                whole = self._signed(codes, np.resize(word, _POSITIONS)[None])[0]
                share = float((mine * whole).mean())
                found[code] = word[:-1].tobytes().decode(errors="replace"), share
                taken = signs[:, :1] * share * whole
                self.cells[np.arange(_PLANE_ROWS), places[:, 0]] -= taken
                return True
        return False


def _padded(items: Any, size: int, repeat: bool = False) -> U8:
    """Return the first bytes of strings with an end mark each: uint8 [n, size].

    After them come end marks, or they repeat.
    """
    words = [item.encode() + b"\xff" for item in items.to_pylist()]
    if repeat:
        words = [word * (size // len(word) + 1) for word in words]
    whole = b"".join(word[:size].ljust(size, b"\xff") for word in words)
    return np.frombuffer(whole, np.uint8).reshape(-1, size)


METHODS: dict[str, Callable[[Asked, np.random.Generator], Found]] = {
    "prefix extension": extend_prefixes,
    "bit planes": read_planes,
    "IBLT": peel_table,
}
