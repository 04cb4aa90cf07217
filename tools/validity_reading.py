"""A second reading of docs/protocol.md, without fedtally and without NumPy, and its known answers.

`tools/gen_vectors.py` writes them to ``tests/vectors/validity.json``. Polynomials are interpolated
by the schoolbook. ``python tools/validity_reading.py`` prints the page's table of sizes.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gen_two_server_vectors import (
    CLIENT,
    HELPER,
    HELPER_REPORT,
    HELPER_SECRET,
    IDENTITIES,
    LEADER_REPORT,
    LEADER_SECRET,
    NOW,
    Parameters,
    hpke_seal,
    id_of,
    parameters_of,
)
from secagg_reading import (
    checksum_count,
    digest,
    hkdf,
    identity_of,
    label,
    packed_length,
    prg,
    sign,
    u8,
    u32,
    u64,
)
from secagg_transcripts import numbers, shake

Json = dict[str, Any]
Element = tuple[int, ...]
CHECKS = 37
BITS = {64513: (9, 5), 16770049: (6, 11), 4293918721: (4, 19)}  # p: K, g


@dataclass(frozen=True)
class GF:
    """The field of p^K elements, whose products are those of polynomials mod X^K - g."""

    p: int

    @property
    def k(self) -> int:
        """Return K."""
        return BITS[self.p][0]

    @property
    def size(self) -> int:
        """Return the bytes of a word."""
        return (self.p.bit_length() + 7) // 8

    def word(self, x: int) -> Element:
        """Return an integer as an element."""
        return (x % self.p, *[0] * (self.k - 1))

    def add(self, *terms: Element) -> Element:
        """Return a sum."""
        return tuple(sum(column) % self.p for column in zip(self.word(0), *terms, strict=True))

    def scale(self, x: int, a: Element) -> Element:
        """Return an integer times an element."""
        return tuple(x * coefficient % self.p for coefficient in a)

    def mul(self, a: Element, b: Element) -> Element:
        """Return a product."""
        c = [0] * (2 * self.k)
        for i, x in enumerate(a):
            for j, y in enumerate(b):
                c[i + j] += x * y
        g = BITS[self.p][1]
        return tuple((c[i] + g * c[i + self.k]) % self.p for i in range(self.k))

    def power(self, a: Element, n: int) -> Element:
        """Return a power, by repeated squares."""
        result = self.word(1)
        while n:
            result = self.mul(result, a) if n & 1 else result
            a, n = self.mul(a, a), n >> 1
        return result

    def root(self, n: int) -> int:
        """Return the root of unity of order n."""
        return pow(BITS[self.p][1], (self.p - 1) // n, self.p)

    def encode(self, values: Sequence[Element]) -> bytes:
        """Return the bytes of elements, or of words as (x,)."""
        return b"".join(x.to_bytes(self.size, "little") for value in values for x in value)

    def stream(self, key: bytes, n: int) -> list[int]:
        """Return the first words of the stream of a key."""
        data, found, at = prg(key, 4 * n * self.size + 256), [], 0
        while len(found) < n:
            x = int.from_bytes(data[at : at + self.size], "little")
            found += [x] if x < self.p else []
            at += self.size
        return found

    def elements(self, key: bytes, n: int) -> list[Element]:
        """Return the first elements of the stream of a key."""
        flat = self.stream(key, n * self.k)
        return [tuple(flat[i : i + self.k]) for i in range(0, len(flat), self.k)]

    def at(self, values: Sequence[Element], t: Element) -> Element:
        """Return at t the polynomial with these values at the roots of unity of their number.

        Lagrange: y_i is times the product of (t - x_j) / (x_i - x_j) over all other j.
        """
        xs = [pow(self.root(len(values)), i, self.p) for i in range(len(values))]
        total = self.word(0)
        for i, y in enumerate(values):
            term = y
            for j, x in enumerate(xs):
                if j != i:
                    factor = self.scale(pow(xs[i] - x, -1, self.p), self.add(t, self.word(-x)))
                    term = self.mul(term, factor)
            total = self.add(total, term)
        return total


@dataclass(frozen=True)
class OneHot:
    """The circuit of a sketch."""

    p: int
    widths: tuple[int, ...]
    abstain: int
    checksum: int
    signed: int = 1

    @property
    def gf(self) -> GF:
        """Return the field."""
        return GF(self.p)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return c, M and P: those of the shortest proof."""
        count, best = 3 * len(self.widths) + self.abstain, None
        for c in range(1, count + 1):
            calls = (count + c - 1) // c
            nodes = 2
            while nodes < calls + 1:
                nodes *= 2
            if best is None or 2 * c + 2 * nodes - 1 < best[0]:
                best = 2 * c + 2 * nodes - 1, c, calls, nodes
        assert best is not None
        return best[1:]

    @property
    def proof_length(self) -> int:
        """Return the elements of a proof."""
        c, _, nodes = self.shape
        return 2 * c + 2 * nodes - 1

    def context(self, parameters: Parameters) -> bytes:
        """Return the context of reports with these parameters."""
        field = u64(self.p) + u8(self.gf.k) + u64(BITS[self.p][1])
        terms = field + u8(self.abstain) + u8(self.signed) + u8(self.checksum)
        return digest("two-server circuit", parameters.context(), terms)

    def words(self, counters: Sequence[int], e: int) -> list[int]:
        """Return the words of a vector."""
        return [x % self.p for x in [*counters, *[1] * self.checksum, *[e] * self.abstain]]

    def pairs(
        self, words: Sequence[int], joint: Sequence[Element], one: int
    ) -> list[tuple[Element, Element]]:
        """Return the inputs of all products, weights and all, padded to whole calls."""
        gf, (r1, r2, r3), pairs, start = self.gf, joint, [], 0
        side = 1
        while side * side < max(self.widths):
            side += 1
        for row, width in enumerate(self.widths):
            z = y = s = gf.word(0)
            for w in range(width):
                weight = gf.mul(gf.power(r1, w // side), gf.power(r2, w % side))
                x = words[start + w]
                z, s = gf.add(z, gf.scale(x, weight)), gf.add(s, gf.word(x))
                y = gf.add(y, gf.scale(x, gf.mul(weight, weight)))
            start += width
            odd, even = gf.power(r3, 2 * row + 1), gf.power(r3, 2 * row + 2)
            pairs += [(gf.mul(odd, z), z), (gf.mul(odd, gf.scale(-1, s)), y), (gf.mul(even, s), s)]
        if self.abstain:
            e, last = words[-1], gf.power(r3, 2 * len(self.widths) + 1)
            pairs.append((gf.scale(e, last), gf.word(e - one)))
        c, calls, _ = self.shape
        return pairs + [(gf.word(0), gf.word(0))] * (c * calls - len(pairs))

    def outputs(
        self, words: Sequence[int], joint: Sequence[Element], one: int, results: Sequence[Element]
    ) -> list[Element]:
        """Return the outputs."""
        gf, e = self.gf, words[-1] if self.abstain else one
        goals = [gf.power(joint[2], 2 * row + 2) for row in range(len(self.widths))]
        first = gf.add(*results, *(gf.scale(-e, goal) for goal in goals))
        signs, start = [], 0
        for width in self.widths:
            signs.append(gf.word(sum(words[start : start + width]) - e))
            start += width
        checks = [gf.word(x - one) for x in words[start:][: self.checksum]]
        return [first, *([] if self.signed else signs), *checks]

    def wires(
        self, words: Sequence[int], joint: Sequence[Element], one: int, seeds: Sequence[Element]
    ) -> list[list[Element]]:
        """Return the values of each wire at the roots of order P."""
        c, calls, nodes = self.shape
        flat = [value for pair in self.pairs(words, joint, one) for value in pair]
        return [
            [seed, *flat[j :: 2 * c], *[self.gf.word(0)] * (nodes - 1 - calls)]
            for j, seed in enumerate(seeds)
        ]

    def gadget(self, inputs: Sequence[Element]) -> Element:
        """Return the sum of the products of neighbours."""
        return self.gf.add(
            *(self.gf.mul(a, b) for a, b in zip(inputs[::2], inputs[1::2], strict=True))
        )

    def prove(
        self, words: Sequence[int], joint: Sequence[Element], seeds: Sequence[Element]
    ) -> list[Element]:
        """Return the proof."""
        gf, nodes = self.gf, self.shape[2]
        wires = self.wires(words, joint, 1, seeds)
        points = [gf.word(pow(gf.root(2 * nodes), i, self.p)) for i in range(2 * nodes - 1)]
        return [*seeds, *(self.gadget([gf.at(wire, t) for wire in wires]) for t in points)]

    def spoilt(self, proof: Sequence[Element]) -> list[Element]:
        """Return a proof whose last element is another one."""
        return [*proof[:-1], self.gf.add(proof[-1], self.gf.word(1))]

    def query(
        self,
        words: Sequence[int],
        proof: Sequence[Element],
        joint: Sequence[Element],
        random: Sequence[Element],
    ) -> list[Element]:
        """Return the verifier share of one of two servers."""
        gf, (c, calls, nodes), half = self.gf, self.shape, pow(2, -1, self.p)
        u, values = gf.root(2 * nodes), list(proof[2 * c :])
        missing = gf.add(*(gf.scale(pow(u, i, self.p), y) for i, y in enumerate(values)))
        values.append(gf.scale(-u, missing))
        results = [values[2 * k] for k in range(1, calls + 1)]
        outputs = self.outputs(words, joint, half, results)
        *factors, t = random
        first = outputs[0]
        if len(outputs) > 1:
            first = gf.add(*(gf.mul(f, o) for f, o in zip(factors, outputs, strict=True)))
        wires = self.wires(words, joint, half, proof[: 2 * c])
        return [first, *(gf.at(wire, t) for wire in wires), gf.at(values, t)]

    def valid(self, verifier: Sequence[Element]) -> bool:
        """Return whether the sum of both verifier shares shows a valid report."""
        zero = self.gf.word(0)
        return verifier[0] == zero and self.gadget(verifier[1:-1]) == verifier[-1]


@dataclass(frozen=True)
class Case:
    """What both servers and a client are given, and what the client draws."""

    n_max: int
    tau: int
    widths: tuple[int, ...]
    abstain: int
    name: str
    signed: int = 1
    bits: int = 0

    @property
    def circuit(self) -> OneHot:
        """Return the circuit, in the field of so many bits; 0: in the first large enough."""
        large = [p for p in BITS if 2 * self.n_max + 3 * self.tau < p]
        p = next(p for p in large if self.bits in (0, p.bit_length()))
        return OneHot(p, self.widths, self.abstain, checksum_count(p.bit_length()), self.signed)

    @property
    def parameters(self) -> Parameters:
        """Return the parameters."""
        return parameters_of(
            length=sum(self.widths),
            bits=self.circuit.p.bit_length(),
            largest=1,
            tau=self.tau,
            n_max=self.n_max,
            min_batch=2,
            corrupt=0,
            widths=self.widths,
        )

    def draw(self, what: str, count: int = 32) -> bytes:
        """Return what the client draws."""
        return shake(f"{self.name} {what}", count)

    @property
    def identity(self) -> bytes:
        """Return the client's secret key."""
        return IDENTITIES[0]

    @property
    def round(self) -> int:
        """Return the round of the report."""
        return 0x01020304

    @property
    def start(self) -> bytes:
        """Return nonce, round, identity and time."""
        return self.draw("nonce", 16) + u32(self.round) + identity_of(self.identity) + u64(NOW)

    def run(
        self, words: list[int], change: Callable[[list[Element]], list[Element]] = list
    ) -> Json:
        """Return all bytes of a report, of its check, and the verdict.

        Args:
            words: those of the client's vector, valid or not.
            change: what the client does to its proof before it is shared.
        """
        circuit, parameters = self.circuit, self.parameters
        gf, (c, _, nodes) = circuit.gf, circuit.shape
        context = circuit.context(parameters)
        bound = context + self.start
        id_ = id_of(bound)
        seed, salt = self.draw("seed"), self.draw("salt")
        info = label("two-server seed") + bound
        sealed = hpke_seal(parameters.helper_key, info, seed, self.draw("ephemeral"))
        mask = gf.stream(hkdf(seed, context + id_, label("two-server mask")), len(words))
        share = [(x - y) % circuit.p for x, y in zip(words, mask, strict=True)]
        shared = gf.encode([(x,) for x in share])
        leader = digest("two-server part", u8(32), salt, shared)
        helper = digest("two-server part", u8(33), sealed)
        key = digest("two-server joint randomness", bound, leader, helper)
        joint = gf.elements(key, 3)
        prove_key = hkdf(self.draw("prove seed"), key, label("two-server prove"))
        proof = change(circuit.prove(words, joint, gf.elements(prove_key, 2 * c)))
        proof_mask_key = hkdf(seed, key, label("two-server proof mask"))
        proof_mask = gf.elements(proof_mask_key, circuit.proof_length)
        proof_share = [gf.add(a, gf.scale(-1, b)) for a, b in zip(proof, proof_mask, strict=True)]
        proved = digest("two-server proof share", salt, gf.encode(proof_share))
        joint_digest = digest("two-server joint digest", bound, leader, helper, proved)
        scalar = bytearray(HELPER_SECRET)
        scalar[0] &= 0b11111000
        scalar[31] = scalar[31] & 0b01111111 | 0b01000000
        verify_key = hkdf(bytes(scalar), context, label("two-server verify key"))
        point_seed = hkdf(verify_key, joint_digest, label("two-server point"))
        # a factor for each output
        count = 1 + circuit.checksum + (0 if circuit.signed else len(circuit.widths))
        drawn = gf.elements(point_seed, count + 9)
        t = next(x for x in drawn[count:] if gf.power(x, nodes) != gf.word(1))
        random = [*drawn[:count], t]
        verifier = circuit.query(mask, proof_mask, joint, random)
        own = circuit.query(share, proof_share, joint, random)
        total = [gf.add(a, b) for a, b in zip(own, verifier, strict=True)]
        signature = sign(self.identity, "two-server report", bound, leader, helper, proved)
        head = self.start
        check = joint_digest + point_seed + gf.encode(verifier)
        checks = u32(self.round) * 2 + u32(1) + id_ + check
        sealed_leader_part = hpke_seal(
            parameters.leader_key,
            label("two-server share") + bound,
            salt + shared + gf.encode(proof_share),
            self.draw("ephemeral for leader"),
        )
        for_leader = head + helper + signature + sealed_leader_part
        return {
            "context": context.hex(),
            "sealed": sealed.hex(),
            "sealed_leader_part": sealed_leader_part.hex(),
            "words": shared.hex(),
            "proof": gf.encode(proof_share).hex(),
            "dL": leader.hex(),
            "dH": helper.hex(),
            "dP": proved.hex(),
            "signature": signature.hex(),
            "check": check.hex(),
            "frames": {
                "leader": frame(context, LEADER_REPORT, CLIENT, for_leader),
                "helper": frame(
                    context, HELPER_REPORT, CLIENT, head + leader + signature + sealed + proved
                ),
                "checks": frame(context, CHECKS, HELPER, checks),
            },
            "verdict": "valid" if circuit.valid(total) else "invalid",
        }

    def other(self, made: Json) -> Json:
        """Return the digest of another seal, and a signature, that the leader gets in addition."""
        other = self.draw("another seal")
        fields = [bytes.fromhex(made[name]) for name in ("dL", "dP")]
        bound = self.circuit.context(self.parameters) + self.start
        signature = sign(self.identity, "two-server report", bound, fields[0], other, fields[1])
        return {"leader_gets": {"dH": other.hex(), "signature": signature.hex()}}

    def given(self, kind: str, vector: Sequence[int], e: int) -> Json:
        """Return what is given in a case."""
        p = self.parameters
        names = ("length", "bits", "n_max", "min_batch", "corrupt")
        return {
            "case": kind,
            "p": self.circuit.p,
            "parameters": {
                **{name: getattr(p, name) for name in names},
                "noise": p.tau,
                "leader_key": p.leader_key.hex(),
                "helper_key": p.helper_key.hex(),
                "allow_list": hashlib.sha256(p.allow_list).hexdigest(),
                "fingerprint": p.fingerprint.hex(),
            },
            "widths": list(self.widths),
            "abstain": bool(self.abstain),
            "signed": bool(self.signed),
            "vector": list(vector),
            "e": e,
            "leader_secret": LEADER_SECRET.hex(),
            "helper_secret": HELPER_SECRET.hex(),
            "identity": self.identity.hex(),
            "round": self.round,
            "time": NOW,
            "nonce": self.draw("nonce", 16).hex(),
            "seed": self.draw("seed").hex(),
            "salt": self.draw("salt").hex(),
            "prove_seed": self.draw("prove seed").hex(),
        }


def frame(context: bytes, type_: int, sender: int, body: bytes) -> Json:
    """Return the header, the length and the hash of a frame: its body is in the other fields."""
    header = struct.pack("<4sBBH32sII", b"FTSA", 1, type_, 0, context, sender, len(body))
    return {"header": header.hex(), "sha256": hashlib.sha256(header + body).hexdigest()}


def batch(cases: list[Case]) -> Json:
    """Return both servers' sums of valid reports with noise, and what the leader reads."""
    first = cases[0]
    circuit, bound = first.circuit, min(first.tau, 300)
    gf, size = circuit.gf, sum(circuit.widths)
    noises: Json = {}
    sums: dict[str, list[int]] = {}
    for server in ("leader", "helper"):
        drawn = numbers(f"{first.name} noise {server}", size, 2 * bound + 1)
        noise = [x - bound for x in drawn]
        noises[server] = noise if first.tau else None
        sums[server] = noise + [0] * circuit.checksum
    reports = []
    for case in cases:
        vector = one_hot(circuit, case.name)
        words = circuit.words(vector, 1)
        made = case.given("valid", vector, 1) | case.run(words)
        reports.append(made)
        context = bytes.fromhex(made["context"])
        secret = case.draw("seed"), context + id_of(context + case.start)
        mask = gf.stream(hkdf(*secret, label("two-server mask")), len(words))
        for i in range(size + circuit.checksum):
            sums["leader"][i] += words[i] - mask[i]
            sums["helper"][i] += mask[i]
    total = [(x + y) % circuit.p for x, y in zip(*sums.values(), strict=True)]
    read = [x - circuit.p if 2 * x > circuit.p else x for x in total]
    assert read[size:] == [len(cases)] * circuit.checksum
    assert all(abs(x) <= len(cases) + first.tau for x in read[:size])
    encoded = {
        server: gf.encode([(x % circuit.p,) for x in words]).hex() for server, words in sums.items()
    }
    return {"reports": reports, "noise": noises, "sums": encoded, "total": read[:size]}


CASES = [
    Case(2, 0, (3, 2), 0, "validity 0"),
    Case(20_000, 0, (40, 40, 7), 1, "validity 1"),
    Case(32_256, 0, (1,), 1, "validity 2"),
    Case(20_000, 10_000, (17, 5), 0, "validity 3"),
    Case(2**20, 5_000_000, (6,) * 6, 1, "validity 4"),
    Case(20_000, 0, (9,), 1, "validity 5", 0),
    Case(20_000, 0, (4, 3), 1, "validity 6", bits=24),
]


def one_hot(circuit: OneHot, name: str) -> list[int]:
    """Return a valid vector."""
    vector: list[int] = []
    for row, width in enumerate(circuit.widths):
        place, sign = numbers(f"{name} row {row}", 2, 1 << 20)
        entries = [0] * width
        entries[place % width] = 1 - 2 * (sign & circuit.signed)
        vector += entries
    return vector


def sections() -> dict[str, list[Any]]:
    """Return the vectors by section."""
    proofs: list[Json] = []
    for case in CASES:
        circuit = case.circuit
        vector = one_hot(circuit, case.name)
        kinds: list[tuple[str, list[int], int]] = [("valid", vector, 1)]
        if circuit.abstain:
            kinds.append(("valid, nothing", [0] * len(vector), 0))
            kinds.append(("nothing, e is 1", [0] * len(vector), 1))
        if not circuit.signed:
            kinds.append(("minus 1", [-x for x in vector], 1))
        kinds.append(("twice as much", [2 * x for x in vector], 1))
        if circuit.widths[0] > 1:
            kinds.append(("two in a row", [1, 1, *vector[2:]], 1))
        for kind, counters, e in kinds:
            made = case.run(circuit.words(counters, e))
            assert made["verdict"] == ("valid" if kind.startswith("valid") else "invalid"), kind
            proofs.append(case.given(kind, counters, e) | made)
        words = circuit.words(vector, 1)
        made = case.run(words, circuit.spoilt)
        assert made["verdict"] == "invalid"
        proofs.append(case.given("proof changed", vector, 1) | made)
        # a client that signs one report for the helper, and another one for the leader
        made = case.run(words) | {"verdict": "inconsistent"}
        proofs.append(case.given("another digest", vector, 1) | made | case.other(made))
    batches = [
        batch([replace(case, name=f"{case.name}, report {i}") for i in range(2)])
        for case in (CASES[0], CASES[3], CASES[4])
    ]
    allowed = sorted(identity_of(secret) for secret in IDENTITIES[:6])
    return {"allow_list": [key.hex() for key in allowed], "proofs": proofs, "batches": batches}


def sizes() -> list[str]:
    """Return the page's table of sizes, at 16 bits and then at 24.

    A report without a proof has two frames and heads, salt and seals.
    """
    return [line for bits, p in ((16, 64513), (24, 16770049)) for line in _sizes(bits, p)]


def _sizes(bits: int, p: int) -> list[str]:
    lines = []
    for rows, width in ((5, 400), (7, 571), (16, 1000)):
        circuit = OneHot(p, (width,) * rows, 1, checksum_count(bits))
        gf, (c, _, nodes) = circuit.gf, circuit.shape
        element = gf.k * gf.size
        proof, check = element * circuit.proof_length, 64 + element * (2 * c + 2)
        today = 2 * (48 + 156) + 48 + 32 + 80 + packed_length(rows * width + circuit.checksum, bits)
        after = today + gf.size + proof + 32
        shown = [f"{rows} x {width}", bits, 3 * rows + 1, c, nodes, proof, check, f"{today:,}"]
        shown += [f"{after:,}", f"{after / today:.3f}"]
        lines.append("| " + " | ".join(map(str, shown)) + " |")
    return lines


if __name__ == "__main__":
    print("\n".join(sizes()))
