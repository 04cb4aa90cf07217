"""What names of an open domain bear: lost rounds, too few bytes, garbage, and clients who rename.

The populations are drawn once, from fixed seeds; each test says what its numbers can tell.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from fedtally.answer.result import Result
from fedtally.domain import Names, OpenStrings
from fedtally.plan import Plan
from fedtally.recovery import names as reader
from fedtally.recovery.decoding import Decoding
from fedtally.recovery.names import read_names
from fedtally.sketch import CountSketch, Spelling

SEED = bytes(range(32))
BITS = 26  # fewer ones let wrong words pass


def plan_of(rounds, clients, finder, spelling, max_length=31):
    domain = OpenStrings(max_length, BITS)
    return Plan(
        *finder,
        "hybrid" if rounds > 1 else "shared",
        rounds,
        clients,
        clients,
        domain.describe(),
        1,
        SEED,
        spelling=Spelling(*spelling, max_length),
    )


@cache
def population(number, longest, seed):
    """Return distinct words of 2 .. `longest` letters, and how often each is held, by i^-1.1."""
    rng = np.random.default_rng(seed)
    words: dict[str, None] = {}
    while len(words) < number:
        size = rng.integers(2, longest + 1)
        words["".join(rng.choice(list("etaoinshrdlucmfwypvbgk"), size))] = None
    shares = np.arange(1, number + 1) ** -1.1
    return list(words), shares / shares.sum()


def campaign(plan, words, shares, clients, seed):
    """Return the sums of the rounds, and the true frequencies of the words."""
    rng = np.random.default_rng(seed)
    domain = OpenStrings(plan.spelling.max_length, BITS, plan.seed)
    names = Names(domain, words)
    rows = names.spell(domain.fingerprints(words), plan.spec.num_positions)
    sketches, held = [], np.zeros(len(words), np.int64)
    for round in range(plan.num_rounds):
        counts = rng.multinomial(clients // plan.num_rounds, shares)
        sketch = CountSketch(plan.spec, round)
        sketch.add(rows[counts > 0], counts[counts > 0])
        sketches.append(sketch)
        held += counts
    return sketches, held / held.sum()


def heavy(words, frequencies, least):
    """Return the words of at least a frequency, with it, by their hashes."""
    domain = OpenStrings(31, BITS, SEED)
    hashes = domain.encode(words).tolist()
    return {
        h: (word, share)
        for h, word, share in zip(hashes, words, frequencies.tolist(), strict=True)
        if share >= least
    }


def recall(found, wanted):
    """Return the share of the hashes whose names were read; a wrong name is an error."""
    wrong = {h: name for h, name in found.items() if h in wanted and name != wanted[h][0]}
    assert not wrong, wrong
    return len(found.keys() & wanted.keys()) / len(wanted)


# ---- lost rounds ----


def test_one_lost_round_of_eight_costs_few_names():
    """Each of the eight rounds is lost in turn; a third of the names has 15 letters.

    Their 16 symbols share factors with eight rounds: if position t were in round t mod 8, all
    copies of a symbol would be lost together. 60 names and eight lost rounds are 480 pairs: if a
    lost round cost a tenth of the names, and pairs were independent, the mean would be at most a
    twentieth with a probability below 1e-4 (binomial).
    """
    plan = plan_of(8, 40_000, (5, 60), (4, 60), 63)
    words, shares = population(2000, 12, 1)
    words = [word if place % 3 else f"{word:x<15}"[:15] for place, word in enumerate(words)]
    assert len(set(words)) == len(words)
    sketches, frequencies = campaign(plan, words, shares, 40_000, 2)
    order = np.sort(frequencies)[::-1]
    wanted = heavy(words, frequencies, order[59])
    given = {h: share for h, (_, share) in wanted.items()}
    domain = OpenStrings(63, BITS, SEED)
    whole = recall(read_names(sketches, domain, given), wanted)
    parts = [
        recall(read_names(sketches[:lost] + sketches[lost + 1 :], domain, given), wanted)
        for lost in range(8)
    ]
    assert whole > 0.9 and whole - np.mean(parts) <= 0.05


# ---- too few bytes ----


def test_too_few_bytes_lose_the_lightest_names_and_no_frequency():
    """With a fifth of the speller's width, names are lost from below, and frequencies stay.

    The finder's counters are the same, bit for bit, and hashes and frequencies follow from them
    alone. A name is lost from below if a name that was read is heavier than one that was not: in at
    least nine of ten pairs of them. For names lost at random it would be half of the pairs, with a
    standard deviation of about .07.
    """
    words, shares = population(3000, 12, 3)
    sums = {}
    for width in (80, 16):
        plan = plan_of(4, 40_000, (5, 200), (4, width))
        sums[width], frequencies = campaign(plan, words, shares, 40_000, 4)
    for wide, narrow in zip(sums[80], sums[16], strict=True):
        assert (wide.counters == narrow.counters).all()
    wanted = heavy(words, frequencies, 0.002)
    given = {h: share for h, (_, share) in wanted.items()}
    domain = OpenStrings(31, BITS, SEED)
    wide, narrow = (read_names(sums[width], domain, given) for width in (80, 16))
    few, many = recall(narrow, wanted), recall(wide, wanted)
    assert many > 0.95 and 0.1 < few < 0.9
    read = [share for h, (_, share) in wanted.items() if h in narrow]
    lost = [share for h, (_, share) in wanted.items() if h not in narrow]
    pairs = np.array(read)[:, None] > np.array(lost)[None]
    assert pairs.mean() >= 0.9


# ---- garbage ----


@pytest.mark.parametrize("longest", [10, 31], ids=["words", "long names"])
def test_garbage_of_few_clients_costs_few_names(longest):
    """300 of 100,000 clients send +1 or -1 in every counter: at least .85 of the names are read.

    They are the names of more than two clients in a thousand. No name is wrong.
    """
    plan = plan_of(8, 100_000, (5, 220), (4, 40 if longest == 10 else 120))
    words, shares = population(20_000, longest, 5)
    sketches, frequencies = campaign(plan, words, shares, 100_000 - 300, 6)
    rng = np.random.default_rng(7)
    for place, sketch in enumerate(sketches):
        garbage = 300 // 8 + (place < 300 % 8)
        sketch.vector += 2 * rng.binomial(garbage, 0.5, len(sketch.vector)) - garbage
        sketch.num_clients += garbage
    result = Result(plan, OpenStrings(31, BITS), sketches, decoding=Decoding(confidence=0.0))
    wanted = heavy(words, frequencies, 0.002)
    share = recall(result.names, wanted)
    assert share >= 0.85


# ---- clients who rename ----

NOTHING, OTHER = (lambda word, other: []), (lambda word, other: [other])


@pytest.fixture
def second(monkeypatch):
    """Return a function that gives a second string the hash of a first one.

    Attackers can find such strings: of 2^26 strings about one has a given hash.
    """
    hashes = reader.hashes_of

    def collide(text, h):
        wanted = np.frombuffer(text.encode(), np.uint8)

        def found(words, domain):
            own = hashes(words, domain)
            if words.shape[1] == len(wanted):
                own[(words == wanted).all(axis=1)] = h
            return own

        monkeypatch.setattr(reader, "hashes_of", found)

    return collide


def attacked(second, holders, attackers, finder, listed, seed):
    """Return the name that a hash gets, its true one, and the one that attackers want.

    Each attacker sends a vector of entries -1, 0 and 1 as a client may: in the part that spells it
    takes away the true string and adds another one of the same hash, and in the finder it adds the
    hash, nothing, or the opposite. That is the most that it can do to a name.
    """
    clients, rng = 40_000, np.random.default_rng(seed)
    plan, domain = plan_of(1, clients, (5, 200), (4, 60)), OpenStrings(31, BITS, SEED)
    words, shares = population(1000, 12, 11)
    [sketch], frequencies = campaign(plan, words, shares, clients - holders - attackers, seed)
    sizes = rng.integers(4, 13, 2)
    true, other = ("".join(rng.choice(list("etaoinshrdlu"), size)) for size in sizes)
    ids = domain.fingerprints([true, other])
    rows = Names(domain, [true, other]).spell(ids, plan.spec.num_positions)
    h = int(rows[0, 0])
    rows[1, 0], rows[1, 1:] = h, rows[1, 1:] & np.uint64(255) | np.uint64(h << 8)
    second(other, h)
    alone = [CountSketch(plan.spec, 0) for _ in rows]
    for one, row in zip(alone, rows, strict=True):
        one.add(row[None], np.array([1]))
    sketch.vector += holders * alone[0].vector
    spelling = slice(plan.rows * plan.width, None)
    sketch.vector[spelling] += attackers * (alone[1].vector - alone[0].vector)[spelling]
    sketch.counters += finder * attackers * alone[0].counters
    sketch.num_clients = clients
    rest = (clients - holders - attackers) / clients
    given = {h: share * rest for h, (_, share) in heavy(words, frequencies, 0.002).items()}
    given[h] = (holders + finder * attackers) / clients
    found = read_names([sketch], domain, given, words={h: listed(true, other)})
    return found.get(h), true, other


@pytest.mark.parametrize("listed", [NOTHING, OTHER], ids=["no list", "their word is listed"])
@pytest.mark.parametrize("finder", [1, 0, -1])
@pytest.mark.parametrize("seed", range(3))
def test_few_clients_rename_no_item(second, seed, finder, listed):
    """600 attackers of 40,000 clients, and two and a half or three and a half times the holders.

    An item of three and a half times the holders keeps its name. One of two and a half times may
    lose it, where attackers make it look more frequent than its symbols are; it gets no other one.
    """
    found, true, _ = attacked(second, 2100, 600, finder, listed, seed)
    assert found == true
    found, true, _ = attacked(second, 1500, 600, finder, listed, seed)
    assert found in (true, None)


def test_clients_who_outnumber_the_holders_rename_an_item(second):
    """The attack works: what is said to be safe is not safe because it failed."""
    found, _, other = attacked(second, 600, 600, 0, NOTHING, 0)
    assert found == other
