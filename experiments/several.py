"""What proofs would cost clients of several items: a study of two circuits that are not built.

- *clip*: each counter of a client's sketch is clipped to -1, 0 or +1, and shown to be so by
  x^3 = x. A row has at most as many counters that are not 0 as the client may hold items: their
  squares add up to a number of so many bits. The gadget has degree 3.
- *an item each*: a vector for each item, each proven as the one of a client with one item.

The first table has the bytes of a report, and what cheats pass with; it is the least over all
sizes of calls. The clip's circuit is run, too, in NumPy: honest reports must pass, and cheats must
not. The second table has the effect of the clip on the estimates of frequent items.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import click
import numpy as np
import numpy.typing as npt
from benchmarks.proofs import Batch

from experiments import options, output
from fedtally.flp.fields import Field
from fedtally.flp.one_hot import FIELD16, OneHot, field_for_sums
from fedtally.flp.proof import FullyLinearProof
from fedtally.flp.words import Array
from fedtally.secagg.config import TwoServerConfig
from fedtally.secagg.params import modulus_bits, num_checksum_entries
from fedtally.sketch import Schedule, SketchSpec

SIZES = {(5, 400): 2.2, (16, 1000): 1.5}  # rows and width; the most times the report without proof
ITEMS = (2, 20)
CLIENTS = (1_000, 20_000)
DIGEST = 32  # of the leader's share of the proof, for the helper
REPORTS = 20  # whose CPU is measured
FREQUENT = 20  # items whose estimates are looked at


@dataclass(frozen=True)
class Clipped:
    """The circuit of a clipped sketch, and its proof, with a gadget of degree 3.

    A call has `chunk` wires x_j, and its gadget is the sum of r^j (x_j^3 - x_j) + x_j^2, for random
    r. The words are the counters, row by row; then for each call of a row the sum of its squares,
    which the client states; then the bits of each row's number of counters. Bits are wires, too,
    and the sum of their squares is stated to be that of themselves: so none of them is -1.

    Outputs: the sum of u^k (call k less what is stated of it), for random u; of each row, what is
    stated of its calls less the number that its bits make.
    """

    rows: int
    width: int
    most: int
    chunk: int
    field: Field = FIELD16

    @property
    def calls_of_row(self) -> int:
        """The calls of a row, of which the last may have empty wires."""
        return -(-self.width // self.chunk)

    @property
    def weights(self) -> list[int]:
        """The weights of the bits of a number 0 .. most."""
        powers = [1 << i for i in range(self.most.bit_length() - 1)]
        return [*powers, self.most - sum(powers)]

    @property
    def bits(self) -> int:
        """The bits of all rows."""
        return self.rows * len(self.weights)

    @cached_property
    def calls(self) -> int:
        """The calls of all rows, then those of the bits."""
        return self.rows * self.calls_of_row + -(-self.bits // self.chunk)

    @cached_property
    def nodes(self) -> int:
        """P, the points that fix a wire polynomial."""
        return 1 << self.calls.bit_length()

    @property
    def added_words(self) -> int:
        """The words after the counters."""
        return self.rows * self.calls_of_row + self.bits

    @property
    def proof_length(self) -> int:
        """Elements: the seeds of the wires, and the coefficients of the gadget polynomial."""
        return self.chunk + 3 * self.nodes - 2

    @property
    def verifier_length(self) -> int:
        """Elements of a verifier share."""
        return self.chunk + 2

    @property
    def added_bytes(self) -> int:
        """The bytes that the proof adds to a report of counters alone."""
        words = self.added_words + self.proof_length * self.field.degree
        return words * self.field.word_bytes + DIGEST

    @property
    def offline(self) -> float:
        """The share of joint randomness for which an invalid vector passes, as log2."""
        return math.log2(self.calls + self.chunk) - size_of(self.field)

    @property
    def online(self) -> float:
        """The share of test points at which a false polynomial passes, as log2."""
        return math.log2(3 * self.nodes - 2) - size_of(self.field)

    def encode(self, sketch: npt.NDArray[np.int64]) -> Array:
        """Return the words of a clipped sketch, int64 [rows, width]; of any other, of a cheat."""
        squares = np.zeros((self.rows, self.calls_of_row * self.chunk), np.int64)
        squares[:, : self.width] = sketch**2
        stated = squares.reshape(self.rows, self.calls_of_row, self.chunk).sum(-1)
        bits = np.zeros((self.rows, len(self.weights)), np.int64)
        rest = stated.sum(-1)
        for i, weight in reversed(list(enumerate(self.weights))):
            bits[:, i] = rest >= weight
            rest = rest - bits[:, i] * weight
        return self.field.words(
            np.concatenate([each.reshape(-1) for each in (sketch, stated, bits)])
        )

    def parts(self, words: Array) -> tuple[Array, Array, Array]:
        """Return the counters [rows, width], what is stated [rows, calls], the bits [rows, n]."""
        ends = np.cumsum([self.rows * self.width, self.rows * self.calls_of_row])
        sketch, stated, bits = np.split(words, ends)
        shapes = (self.width, self.calls_of_row, len(self.weights))
        sketch, stated, bits = (
            part.reshape(self.rows, n)
            for part, n in zip((sketch, stated, bits), shapes, strict=True)
        )
        return sketch, stated, bits

    def inputs(self, words: Array) -> tuple[Array, Array]:
        """Return the wires of all calls, words [calls, chunk], and what is stated of each call."""
        sketch, stated, bits = self.parts(words)
        padded = np.zeros((self.rows, self.calls_of_row * self.chunk), np.int64)
        padded[:, : self.width] = sketch
        last = np.zeros((self.calls - self.rows * self.calls_of_row) * self.chunk, np.int64)
        last[: self.bits] = bits.reshape(-1)
        wires = np.concatenate([padded.reshape(-1), last]).reshape(self.calls, self.chunk)
        return wires, np.concatenate([stated.reshape(-1), last.reshape(-1, self.chunk).sum(-1)])

    def gadget(self, wires: Array, r: Array) -> Array:
        """Return the gadget of wires: elements [..., chunk, K] -> [..., K]."""
        field = self.field
        squares = field.multiply(wires, wires)
        cubes = field.reduce(field.multiply(squares, wires) - wires)
        powers = field.powers(r, self.chunk + 1)[1:]
        return field.reduce(field.multiply(powers, cubes).sum(-2) + squares.sum(-2))

    def prove(self, words: Array, seeds: Array, r: Array) -> Array:
        """Return the proof: elements [proof_length, K]."""
        field, basis = self.field, self._basis
        # at 4P points a wire is a + l s: a the calls' part of it, which is a word, l the first
        # Lagrange polynomial, and s the seed; so nearly all are products of words and elements
        a = field.reduce(basis[:, 1 : self.calls + 1] @ self.inputs(words)[0])
        squares = field.reduce(a * a)
        cubes = field.reduce(squares * a - a)
        weights = field.powers(r, self.chunk + 1)[1:]
        weighted = field.multiply(weights, seeds)
        seeds_squared = field.multiply(seeds, seeds)
        of_cubes = field.multiply(weights, seeds_squared)
        terms = (
            field.mix(cubes, weights) + field.constant(squares.sum(-1)),
            3 * field.mix(squares, weighted) + 2 * field.mix(a, seeds) - weighted.sum(0),
            3 * field.mix(a, of_cubes) + seeds_squared.sum(0),
            field.multiply(of_cubes, seeds).sum(0)[None],
        )
        values = field.zeros((4 * self.nodes,))
        for term in reversed(terms):  # by the powers of l
            values = field.reduce(field.scale(values, basis[:, 0]) + term)
        polynomial = field.mix(self._coefficients, values)
        return np.concatenate([seeds, polynomial[: 3 * self.nodes - 2]])

    @cached_property
    def _basis(self) -> Array:
        """The Lagrange polynomials of the roots of order P at those of order 4P: [4P, P]."""
        field, n, roots = self.field, self.nodes, self.field.roots(4 * self.nodes)
        powers = field.words([[roots[i * j % (4 * n)] for j in range(n)] for i in range(4 * n)])
        return field.reduce(powers @ _inverse(field, n))

    @cached_property
    def _coefficients(self) -> Array:
        return _inverse(self.field, 4 * self.nodes)

    def query(self, words: Array, proof: Array, r: Array, u: Array, random: Array) -> Array:
        """Return a server's verifier share, from its shares; `random`: factors, then the point."""
        field, point = self.field, random[-1]
        inputs, stated = self.inputs(words)
        polynomial, roots = proof[self.chunk :], field.roots(self.nodes)
        powers = [
            [roots[k * i % self.nodes] for i in range(len(polynomial))]
            for k in range(1, self.calls + 1)
        ]
        results = field.mix(field.words(powers), polynomial)
        errors = field.reduce(results - field.constant(stated))
        first = field.dot(field.powers(u, self.calls + 1)[None, 1:], errors)
        _, stated_of_rows, bits = self.parts(words)
        rows = stated_of_rows.sum(-1) - bits @ np.array(self.weights)
        outputs = np.concatenate([first, field.constant(rows)])
        wires = field.zeros((self.nodes, self.chunk))
        wires[0], wires[1 : self.calls + 1, :, 0] = proof[: self.chunk], inputs
        basis = field.mix(_inverse(field, self.nodes), field.powers(point, self.nodes))
        return np.concatenate(
            [
                field.dot(outputs[None], random[:-1]),
                field.dot(wires.swapaxes(0, 1), basis),
                field.dot(polynomial[None], field.powers(point, len(polynomial))),
            ]
        )

    def decide(self, verifier: Array, r: Array) -> bool:
        """Return whether a report is valid, from the sum of both verifier shares."""
        found = self.gadget(verifier[1:-1], r)
        return not verifier[0].any() and bool((found == verifier[-1]).all())


def _inverse(field: Field, n: int) -> Array:
    """Return the words that turn values at the roots of order n into coefficients: [n, n]."""
    roots, scale = field.roots(n), field.inverse(n)
    return field.words([[roots[-i * j % n] * scale for i in range(n)] for j in range(n)])


def size_of(field: Field) -> float:
    """Return log2 of the elements of a field."""
    return field.degree * math.log2(field.prime)


def clipped(rows: int, width: int, most: int, field: Field = FIELD16) -> Clipped:
    """Return the circuit of the fewest bytes."""
    chunks = range(8, width + 1)
    found = (Clipped(rows, width, most, chunk, field) for chunk in chunks)
    fits = (circuit for circuit in found if 4 * circuit.nodes <= field.max_order)
    return min(fits, key=lambda circuit: circuit.added_bytes)


def report_bytes(rows: int, width: int, clients: int, largest: int, bits: int | None = None) -> int:
    """Return the bytes of a report without a proof."""
    bits = bits or modulus_bits(clients, largest)
    return TwoServerConfig(
        length=rows * width, bits=bits, n_max=clients, min_batch=clients // 2, corrupt=0,
        largest_entry=largest,
    ).upload_bytes  # fmt: skip


def row(rows: int, width: int, most: int, clients: int, goal: float) -> list[dict[str, Any]]:
    """Return both circuits of a sketch."""
    today, field = report_bytes(rows, width, clients, most), field_for_sums(clients)
    bits = field.prime.bit_length()
    clip = clipped(rows, width, most, field)
    wide = field_for_sums(most * clients)  # each item of a client adds one to a counter
    wide_bits = wide.prime.bit_length()
    each = OneHot((width,) * rows * most, wide, True, num_checksum_entries(wide_bits))
    flp = FullyLinearProof(each)
    element, wide_element = (one.degree * one.word_bytes for one in (field, wide))
    vectors = (most - 1) * rows * width * wide.word_bytes
    found = {
        "clip": (
            rows * (width + len(clip.weights) + 1),
            clip.proof_length,
            report_bytes(rows, width, clients, 1, bits) + clip.added_bytes,
            64 + element * clip.verifier_length,
            clip.offline,
            clip.online,
        ),
        "an item each": (
            each.products,
            flp.proof_length,
            report_bytes(rows, width, clients, 1, wide_bits) + vectors
            + wide_element * flp.proof_length + DIGEST + most * wide.word_bytes,
            64 + wide_element * flp.verifier_length,
            math.log2(each.degree) - size_of(wide),
            math.log2(2 * flp.nodes - 1) - size_of(wide),
        ),
    }  # fmt: skip
    return [
        {
            "sketch": f"{rows} x {width}",
            "items": most,
            "clients": clients,
            "circuit": name,
            "constraints": constraints,
            "proof, elements": elements,
            "check, bytes": check,
            "report, bytes": size,
            "without proof": today,
            "times": round(size / today, 2),
            "goal": goal,
            "offline": f"2^{offline:.0f}",
            "online": f"2^{online:.0f}",
        }
        for name, (constraints, elements, size, check, offline, online) in found.items()
    ]


# ---- the circuit of the clip is run ----


def uniform(field: Field, rng: np.random.Generator, *shape: int) -> Array:
    """Return uniform elements."""
    return rng.integers(0, field.prime, (*shape, field.degree))


def passes(circuit: Clipped, words: Array, rng: np.random.Generator, shift: int = 0) -> bool:
    """Tell whether two servers take a report; a cheat shifts a coefficient of its polynomial."""
    field = circuit.field
    r, u = uniform(field, rng, 2)
    proof = circuit.prove(words, uniform(field, rng, circuit.chunk), r)
    proof[-1, 0] = (proof[-1, 0] + shift) % field.prime
    random = uniform(field, rng, circuit.rows + 2)
    mask, proof_mask = rng.integers(0, field.prime, words.shape), uniform(field, rng, len(proof))
    own = circuit.query(field.reduce(words - mask), field.reduce(proof - proof_mask), r, u, random)
    other = circuit.query(mask, proof_mask, r, u, random)
    return circuit.decide(field.reduce(own + other), r)


def honest(circuit: Clipped, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Return the clipped sketch of `most` items whose cells are drawn."""
    sketch = np.zeros((circuit.rows, circuit.width), np.int64)
    cells = rng.integers(0, circuit.width, (circuit.rows, circuit.most))
    for line, places in zip(sketch, cells, strict=True):
        np.add.at(line, places, rng.choice([-1, 1], circuit.most))
    return np.clip(sketch, -1, 1)


def cheats(circuit: Clipped, rng: np.random.Generator) -> list[tuple[str, Array, int]]:
    """Return words that are not valid, and by how much a coefficient is shifted."""
    sketch, size = honest(circuit, rng), circuit.rows * circuit.width

    def changed(at: int, by: int) -> Array:
        words = circuit.encode(sketch)
        words[at] = (words[at] + by) % circuit.field.prime
        return words

    larger, many = sketch.copy(), np.zeros_like(sketch)
    larger[0, 0] = 2
    many[:, : circuit.most + 1] = 1
    return [
        ("an entry is 2", circuit.encode(larger), 0),
        ("one item too many", circuit.encode(many), 0),
        ("a false number of a call", changed(size, 1), 0),
        ("a false bit", changed(len(circuit.encode(sketch)) - 1, 1), 0),
        ("two entries that cancel", circuit.encode(np.where(sketch == 0, 0, 2 * sketch)), 0),
        ("a false polynomial", circuit.encode(sketch), 1),
    ]


def run(circuit: Clipped, repeats: int, rng: np.random.Generator) -> tuple[int, int, int]:
    """Return the honest reports that passed, the cheats that passed, and the cheats."""
    taken = sum(passes(circuit, circuit.encode(honest(circuit, rng)), rng) for _ in range(repeats))
    tried = [case for _ in range(repeats) for case in cheats(circuit, rng)]
    return taken, sum(passes(circuit, words, rng, shift) for _, words, shift in tried), len(tried)


def least(work: Callable[[], object], turns: int = 3) -> float:
    """Return the least CPU of a few turns, in seconds."""
    found = []
    for _ in range(turns):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return min(found)


def client_times(circuit: Clipped, rng: np.random.Generator) -> float:
    """Return a client's CPU with this proof, over that of a report without one."""
    words = circuit.encode(honest(circuit, rng))
    seeds, r = uniform(circuit.field, rng, circuit.chunk), uniform(circuit.field, rng)
    batch = Batch(circuit.rows, circuit.width, REPORTS)
    report = least(batch.report) / REPORTS
    return 1 + least(lambda: circuit.prove(words, seeds, r)) / report


# ---- the effect of the clip ----


def effect(
    rows: int, width: int, most: int, clients: int, repeats: int, rng: np.random.Generator
) -> dict[str, Any]:
    """Return the errors of frequent items, with the clip and without it; shares of the clients."""
    domain, errors, relative = 2_000, [], []
    law = 1 / np.arange(1, domain + 1) ** 1.1
    for _ in range(repeats):
        # as many of the largest as there are items: drawn without replacement
        keys = rng.gumbel(size=(clients, domain)) + np.log(law)
        held = np.argpartition(-keys, most, axis=1)[:, :most].astype(np.uint64)
        spec = SketchSpec(rows, width, Schedule.parse("shared"), 1, rng.bytes(32))
        cells, signs = spec.round_hash(0).cells(np.arange(domain, dtype=np.uint64), width)
        truth = np.bincount(held.reshape(-1).astype(np.intp), minlength=domain)[:FREQUENT]
        votes = np.empty((2, rows, FREQUENT))
        for i in range(rows):
            own = np.zeros((clients, width), np.int64)
            places = np.repeat(np.arange(clients), most), cells[i][held.reshape(-1)]
            np.add.at(own, places, signs[i][held.reshape(-1)])
            for clip, sketch in enumerate((own, np.clip(own, -1, 1))):
                votes[clip, i] = (sketch.sum(0)[cells[i]] * signs[i])[:FREQUENT]
        estimates = np.median(votes, axis=1)
        errors.append(np.abs(estimates - truth).max(axis=1) / clients)
        relative.append((estimates / truth - 1).mean(axis=1))
    (without, clip), (plain, biased) = (np.mean(each, axis=0) for each in (errors, relative))
    return {
        "sketch": f"{rows} x {width}",
        "items": most,
        "largest error, points": 100 * float(without),
        "with the clip": 100 * float(clip),
        "mean of the relative errors, %": 100 * float(plain),
        "with the clip, %": 100 * float(biased),
    }


@click.command("several")
@click.option("--repeats", type=click.IntRange(1), default=10)
@options.seed
@options.quick(repeats=1)
def command(repeats: int, seed: int) -> None:
    """Study proofs for clients of several items: bytes, soundness, and the effect of a clip."""
    rng, missed = np.random.default_rng(seed), False
    cases = [(size, most) for size in SIZES for most in ITEMS]
    output.show(
        [
            line
            for size, most in cases
            for clients in CLIENTS
            for line in row(*size, most, clients, SIZES[size])
        ]
    )
    click.echo()
    for size, most in cases:
        circuit = clipped(*size, most)
        taken, passed, tried = run(circuit, repeats, rng)
        missed |= taken < repeats or passed > 0
        click.echo(
            f"clip, {size[0]} x {size[1]}, {most} items: {taken} of {repeats} honest reports and"
            f" {passed} of {tried} cheats passed; a client takes"
            f" {client_times(circuit, rng):.1f} times the CPU of a report without a proof"
        )
    click.echo()
    output.show([effect(*size, most, 2_000, repeats, rng) for size, most in cases])
    if missed:
        sys.exit(1)
