"""Clients that cheat with their proof: vectors that nobody honest has, and proofs that do not fit.

What they do not know is the test point, which is drawn after they have sent everything.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fedtally.flp import Field, FullyLinearProof, OneHot
from fedtally.flp.prio3 import Measured
from fedtally.flp.prio3_draft08 import Prio3Draft08

HONEST = "honest prover"
HOW = (
    "outputs set to 0",
    "random proof",
    "proof changed",
    "wire seed changed",
    "share changed",
    "other joint randomness",
)


def uniform(field: Field, rng: np.random.Generator, *shape: int) -> Any:
    """Return uniform elements [*shape, K]."""
    return field.element(random_words(field, rng, *shape, field.degree))


def random_words(field: Field, rng: np.random.Generator, *shape: int) -> Any:
    """Return uniform integers below the prime, [*shape]."""
    if field.prime < 2**32:
        return rng.integers(0, field.prime, shape)
    limbs = rng.integers(0, 2**32, (*shape, 6)).astype(object)
    return sum(limbs[..., i] << (32 * i) for i in range(6)) % field.prime


def one_hot(rng: np.random.Generator, circuit: OneHot) -> Any:
    """Return a valid vector."""
    parts = [np.eye(1, w, int(rng.integers(w)), dtype=np.int64)[0] for w in circuit.widths]
    signs = [-1, 1] if circuit.signed else [1]
    return np.concatenate([part * rng.choice(signs) for part in parts])


@cache
def that_cancel(p: int) -> tuple[int, int]:
    """Return w and c with w (1 - w) + c (1 - c) = 0 mod p."""
    products = {x * (1 - x) % p: x for x in range(2, 20_000)}
    return next((x, products[-y % p]) for y, x in products.items() if -y % p in products)


def cheats(rng: np.random.Generator, circuit: OneHot) -> dict[str, Any]:
    """Return words of each kind that no honest client has: [length] each.

    Args:
        rng: draws what the kind leaves open.
        circuit: of two rows at least, of which the first two have one width, at least 8.
    """
    width, other_width = circuit.widths[:2]
    assert width == other_width >= 8
    p, size, honest = circuit.field.prime, circuit.counters, one_hot(rng, circuit)
    first, word = int(np.flatnonzero(honest)[0]), int(rng.integers(2, p - 1))
    ones, e = [1] * circuit.checksum, [1] * circuit.abstain

    def row(places: dict[int, int]) -> Any:
        entries = np.zeros(width, np.int64)
        for place, value in places.items():
            entries[place % width] += value
        return entries

    def with_row(places: dict[int, int]) -> list[int]:
        return [*row(places), *honest[width:], *ones, *e]

    pair = [row({first: x, first + 1: 1 - x}) for x in that_cancel(p)]
    rest = [*honest[2 * width :], *ones, *e]
    twice = np.where(np.arange(size) < width, 2, 1)
    made: dict[str, Any] = {
        "one item many times": [*(honest * word), *ones, *e],
        "twice in a row": [*(honest * twice), *ones, *e],
        "two in a row": with_row({first: 1, first + 1: 1}),
        "two in a row, sum 1": with_row({first: word, first + 1: 1 - word}),
        "three in a row, sum 1": with_row({first: 1, first + 1: 1, first + 4: -1}),
        "two that cancel": with_row({first: 1, first + 3: -1}),
        "two rows that make up for each other": [*np.concatenate(pair), *rest],
        "noise": [*rng.integers(0, p, size), *ones, *e],
        "one row empty": with_row({}),
    }
    if not circuit.signed:
        made |= {
            "-1 in all rows": [*(-honest), *ones, *e],
            "-1 in a row": [*(honest * (1 - 2 * (np.arange(size) < width))), *ones, *e],
        }
    if circuit.abstain:
        made |= {
            "e but nothing": [*np.zeros(size, np.int64), *ones, 1],
            "something but not e": [*honest, *ones, 0],
            "e is another word": [*honest, *ones, word],
            "many times, and e fits": [*(honest * word), *ones, word**2],
            "e is -1": [*honest, *ones, -1],
        }
    if circuit.checksum:
        made |= {
            "a checksum word": [*honest, word, *ones[1:], *e],
            "no checksum": [*honest, *(0 for _ in ones), *e],
        }
    return made


def verdicts(rng: np.random.Generator, circuit: OneHot, words: Any, how: str) -> Any:
    """Return which of these reports pass, split among two servers: bool [reports].

    Args:
        rng: draws shares, seeds and the servers' randomness.
        circuit: the statement.
        words: [reports, length].
        how: what the client does besides.
    """
    field, proof, n = circuit.field, FullyLinearProof(circuit), len(words)
    joint, reports = uniform(field, rng, n, 3), np.arange(n)
    sent = proof.prove(words, uniform(field, rng, n, proof.prove_random_length), joint)
    seeds = proof.prove_random_length
    if how == "outputs set to 0":
        results = sent[:, seeds:][:, 2 : 2 * circuit.calls + 1 : 2]
        output = circuit.evaluate(words, joint, 1, results)[:, 0]
        sent[:, seeds + 2] = field.reduce(sent[:, seeds + 2] - output)
    elif how == "random proof":
        sent = uniform(field, rng, *sent.shape[:-1])
    elif how == "proof changed":
        sent[reports, rng.integers(seeds, sent.shape[1], n), rng.integers(0, field.degree, n)] += 1
    elif how == "wire seed changed":
        sent[reports, rng.integers(0, seeds, n), rng.integers(0, field.degree, n)] += 1
    mask = rng.integers(0, field.prime, words.shape)
    proof_mask = uniform(field, rng, *sent.shape[:-1])
    leader = field.reduce(words - mask), field.reduce(sent - proof_mask)
    if how == "share changed":
        # by 2: of a checksum word that is 0, 1 would make what it should be, and a valid vector
        mask[reports, rng.integers(0, mask.shape[1], n)] += 2
    other = uniform(field, rng, n, 3) if how == "other joint randomness" else joint
    random = uniform(field, rng, n, proof.query_random_length)
    helper = proof.query(field.reduce(mask), proof_mask, random, other, 2)
    return proof.decide(field.reduce(proof.query(*leader, random, joint, 2) + helper))


# ---- the circuits of draft 08, whose proofs are sent by coefficients ----


def valid_words(rng: np.random.Generator, circuit: Measured) -> list[int]:
    """Return the words of a measurement."""
    if circuit.outputs == 1 and circuit.joint_length < 2:  # a count, or a vector of sums
        return [int(word) for word in rng.integers(0, 2, circuit.length)]
    return [int(word) for word in np.eye(circuit.length, dtype=int)[rng.integers(circuit.length)]]


def measured_cheats(rng: np.random.Generator, circuit: Measured) -> dict[str, list[int]]:
    """Return words of each kind that no honest client has: [length] each."""
    p, honest = circuit.field.prime, valid_words(rng, circuit)
    big = [int(word) for word in random_words(circuit.field, rng, 4)]
    spot = int(rng.integers(circuit.length))

    def with_words(places: dict[int, int], words: list[int] = honest) -> list[int]:
        changed = list(words)
        for place, word in places.items():
            changed[place % len(words)] = word % p
        return changed

    made = {
        "2": with_words({spot: 2}),
        "-1": with_words({spot: -1}),
        "one word": with_words({spot: big[0]}),
        "noise": [int(word) for word in random_words(circuit.field, rng, circuit.length)],
    }
    if circuit.length > 1:
        pair = that_cancel_over(p, big[1])
        made |= {
            "two that cancel": with_words({spot: pair[0], spot + 1: pair[1]}),
            "two calls that cancel": with_words({spot: pair[0], spot + circuit.chunk: pair[1]}),
        }
    if circuit.joint_length > 1:  # a histogram
        nothing = [0] * circuit.length
        made |= {
            "nothing": nothing,
            "two": with_words({spot: 1, spot + 1: 1}, nothing),
            "two, sum 1": with_words({spot: big[2], spot + 1: 1 - big[2]}, nothing),
            "three, sum 1": with_words({spot: 1, spot + 1: 1, spot + 2: -1}, nothing),
            "many times": with_words({spot: big[3]}, nothing),
        }
    return made


def that_cancel_over(p: int, slope: int) -> tuple[int, int]:
    """Return w and c with w (1 - w) + c (1 - c) = 0 mod p: a point of a circle, by a slope."""
    step = -2 * (1 + slope) * pow(1 + slope * slope, -1, p)
    half = pow(2, -1, p)
    return (step + 2) * half % p, (slope * step + 2) * half % p


@cache
def _to_coefficients(prio3: Prio3Draft08) -> list[list[int]]:
    """Return the inverse of the map from coefficients to values, a column for each value."""
    points = [[int(value) for value in row] for row in prio3._points]
    p = prio3.circuit.field.prime
    return [
        solved(points, [int(i == j) for j in range(len(points))], p) for i in range(len(points))
    ]


def verdicts08(rng: np.random.Generator, prio3: Prio3Draft08, words: Any, how: str) -> Any:
    """Return which of these reports of draft 08 pass, as `verdicts` does."""
    circuit, field, n = prio3.circuit, prio3.circuit.field, len(words)
    proof, seeds = prio3._proof, prio3._proof.prove_random_length
    joint, reports = uniform(field, rng, n, circuit.joint_length), np.arange(n)
    sent = proof.prove(words, uniform(field, rng, n, seeds), joint)
    if how == "outputs set to 0":  # by the result of the first call, which they are affine in
        results = sent[:, seeds:][:, 2 : 2 * circuit.calls + 1 : 2].copy()
        output = circuit.evaluate(words, joint, 1, results)[:, 0, 0]
        results[:, 0, 0] = results[:, 0, 0] + 1
        slope = circuit.evaluate(words, joint, 1, field.reduce(results))[:, 0, 0] - output
        inverses = np.array([pow(int(each), -1, field.prime) for each in slope], object)
        sent[:, seeds + 2, 0] = field.reduce(sent[:, seeds + 2, 0] - output * inverses)
    columns = np.array(_to_coefficients(prio3), object)
    sent[:, seeds:, 0] = field.reduce(sent[:, seeds:, 0] @ columns)
    if how == "random proof":
        sent = uniform(field, rng, *sent.shape[:-1])
    elif how == "proof changed":
        sent[reports, rng.integers(seeds, sent.shape[1], n), 0] += 1
    elif how == "wire seed changed":
        sent[reports, rng.integers(0, seeds, n), 0] += 1
    mask, proof_mask = random_words(field, rng, *words.shape), uniform(field, rng, *sent.shape[:-1])
    leader = field.reduce(words - mask), field.reduce(sent - proof_mask)
    if how == "share changed":
        mask[reports, rng.integers(0, mask.shape[1], n)] += 2
    other = uniform(field, rng, *joint.shape[:-1]) if how == "other joint randomness" else joint
    random = uniform(field, rng, n, proof.query_random_length)
    helper = proof.query(field.reduce(mask), prio3._by_values(proof_mask), random, other, 2)
    shown = proof.query(leader[0], prio3._by_values(leader[1]), random, joint, 2)
    return proof.decide(field.reduce(shown + helper))


def solved(matrix: list[list[int]], right: list[int], prime: int) -> list[int]:
    """Return the solution of a square system of equations."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for i in range(len(rows)):
        pivot = next(j for j in range(i, len(rows)) if rows[j][i] % prime)
        rows[i], rows[pivot] = rows[pivot], rows[i]
        inverse = pow(rows[i][i], -1, prime)
        rows[i] = [value * inverse % prime for value in rows[i]]
        for j in range(len(rows)):
            if j != i:
                factor = rows[j][i]
                rows[j] = [(x - factor * y) % prime for x, y in zip(rows[j], rows[i], strict=True)]
    return [row[-1] for row in rows]
