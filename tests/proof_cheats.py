"""Clients that cheat with their proof: vectors that nobody honest has, and proofs that do not fit.

What they do not know is the test point, which is drawn after they have sent everything.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fedtally.flp import Field, FullyLinearProof, OneHot

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
    return field.element(rng.integers(0, field.prime, (*shape, field.degree)))


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
