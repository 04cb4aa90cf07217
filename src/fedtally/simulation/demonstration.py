"""A campaign of 200 simulated phones, with all that its server sees: `fedtally show` draws it.

The phones hold made-up words. The real protocol sums their sketches, and the masked counters of
each upload are kept. The sum is then released several times: once without noise, and once for each
of several epsilons.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedtally.answer.result import Result
from fedtally.campaign.books import MemoryBooks
from fedtally.campaign.client import FrequencyClient
from fedtally.campaign.cohort import CohortRun, carry, drive
from fedtally.campaign.server import FrequencyServer
from fedtally.domain import Dictionary
from fedtally.plan import Plan
from fedtally.plan.design import Design
from fedtally.plan.search import for_bytes
from fedtally.plan.secure_sum import Keys
from fedtally.privacy.accounting import most_detected, privacy_loss
from fedtally.secagg import wire
from fedtally.secagg.client import Client, MemoryJournal
from fedtally.secagg.messages import Kind
from fedtally.secagg.packing import unpack
from fedtally.secagg.params import Parameters
from fedtally.secagg.server import ClientId
from fedtally.simulation.cohorts import policy_of
from fedtally.simulation.randomness import campaign_seed, key_bytes, population_rng
from fedtally.simulation.simulation import Simulation
from fedtally.sketch import CountSketch
from fedtally.sources.sample_tables import WORDS

PHONES = 200
CANDIDATES = 4000  # the number of different words that may occur
EPSILONS = (8.0, 4.0, 2.0, 1.0, 0.5, 0.25, 0.1)
FALSE_ALARMS = 0.05  # the false positive rate of the attacker in `Level`
ROWS, WIDTH = 8, 64
_EXPONENT = 1.3  # the exponent of the power law of words: a few are frequent, most are rare
_NOW = 0  # the time in the simulated session

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
U16 = npt.NDArray[np.uint16]


class Level(NamedTuple):
    """One release of the sum, with noise for one epsilon or without noise, and its estimates.

    Attributes:
        epsilon: the guaranteed epsilon; None: the release has no noise.
        delta: the guaranteed delta; 0 without noise.
        released: the released counters: int64 [V].
        counts: the estimated number of phones with each word, in the order of
            `Demonstration.words`: float64 [words].
        low: the lower limit of each count, at 95 % confidence: float64 [words].
        high: the upper limit of each count, at 95 % confidence: float64 [words].
        promised: an upper bound on the true positive rate of an attacker who tests whether the word
            of one phone is in the sum. The attacker's false positive rate is `FALSE_ALARMS`. The
            bound follows from epsilon and delta; without noise it is 1.
        proven: a bound on the same rate that follows from the exact distribution of the noise; at
            most `promised`. Without noise it is 1.
    """

    epsilon: float | None
    delta: float
    released: I64
    counts: F64
    low: F64
    high: F64
    promised: float
    proven: float


class Demonstration(NamedTuple):
    """A campaign of phones, with all that its server saw, and what no server sees.

    Attributes:
        bits: uploads are added modulo 2^bits; at most 16.
        rows: the number of rows of the sketch.
        width: the number of counters in a row. Below, V is rows times width.
        candidates: the number of words that may occur.
        false_alarms: the false positive rate of the attacker in `levels`.
        words: the words that phones hold, the most frequent first.
        held: for each phone, the place of its word in `words`: int64 [phones].
        sketches: the sketch of each phone, which no server ever sees: int64 [phones, V].
        uploads: the masked counters that each phone sent: uint16 [phones, V].
        opened: the sum of the uploads minus the exact sum, modulo 2^bits: uint16 [V]. These are the
            masks that do not cancel in the sum. The last step of the protocol removes them.
        levels: the releases: first without noise, then with falling epsilon.
    """

    bits: int
    rows: int
    width: int
    candidates: int
    false_alarms: float
    words: tuple[str, ...]
    held: I64
    sketches: I64
    uploads: U16
    opened: U16
    levels: tuple[Level, ...]


def demonstrate(
    seed: int | None = None, report: Callable[[str, int, int | None], None] = lambda *_: None
) -> Demonstration:
    """Run the campaign; return all that its server saw, and what no server sees.

    Args:
        seed: the seed of words, hashes, masks and noise; None: they come from the operating system.
        report: called with ("sum", phones done, all phones) and ("recover", releases done, all
            releases).
    """
    words, held = _words(population_rng(seed))
    domain = Dictionary(list(WORDS[:CANDIDATES]))
    hashes = campaign_seed(seed)
    plan, keys = _planned(domain, hashes, seed, {"secure_sum": "secagg"})
    assert keys is not None
    people = [FrequencyClient(plan, domain, [words[place]]) for place in held.tolist()]
    server = FrequencyServer(plan)
    uploads = _summed(server, people, keys, key_bytes(seed, b"show"), report)
    (exact,) = server.release()
    levels = []
    for number, epsilon in enumerate((None, *EPSILONS)):
        report("recover", number, 1 + len(EPSILONS))
        if epsilon is None:
            levels.append(_level(plan, domain, exact, words))
            continue
        asked = {"epsilon": epsilon, "not_private": seed is not None}
        noisy, _ = _planned(domain, hashes, seed, asked)
        noise = key_bytes(seed, f"show {epsilon}".encode())  # independent noise for each release
        levels.append(_level(noisy, domain, _released(noisy, exact, noise), words))
    return Demonstration(
        bits=_parameters(plan).bits,
        rows=plan.rows,
        width=WIDTH,
        candidates=domain.size,
        false_alarms=FALSE_ALARMS,
        words=words,
        held=held,
        sketches=np.array([person.contribution(0) for person in people]),
        uploads=uploads,
        # 2^bits divides 2^16, so differences modulo 2^16 are right modulo 2^bits, too
        opened=(uploads.sum(axis=0) - exact.vector).astype(np.uint16)
        & np.uint16(2 ** _parameters(plan).bits - 1),
        levels=tuple(levels),
    )


def _words(rng: np.random.Generator) -> tuple[tuple[str, ...], I64]:
    """Draw a word for each phone; return the distinct words, and the place of each phone's word.

    The words are sorted by how many phones hold them, the most frequent first.
    """
    law = np.arange(1, len(WORDS[:CANDIDATES]) + 1) ** -_EXPONENT
    drawn = rng.choice(len(law), PHONES, p=law / law.sum())
    ranks, counts = np.unique(drawn, return_counts=True)
    order = ranks[np.argsort(-counts, kind="stable")]
    places = {int(rank): place for place, rank in enumerate(order)}
    return tuple(WORDS[rank] for rank in order), np.array([places[int(rank)] for rank in drawn])


def _planned(
    domain: Dictionary, hashes: bytes, seed: int | None, asked: dict[str, Any]
) -> tuple[Plan, Keys | None]:
    """Return a plan for all phones, as `fedtally.estimate` would make it, and its private keys.

    The keys are None if `asked` names no protocol for the secure sum.

    Args:
        domain: the words that may occur.
        hashes: the seed of the hashes.
        seed: the seed that a person chose, for the keys; None: they come from the system.
        asked: more options of `Simulation.of`, such as `epsilon`.
    """
    simulation = Simulation.of(
        domain=domain,
        encoding="sketch",
        rows=ROWS,
        width=WIDTH,
        num_rounds=1,
        seed=seed,
        **asked,
    )
    design = for_bytes(Design.fit(simulation.spec, domain, [PHONES], seed=hashes))
    return design.finish(key_bytes(seed, b"show keys"), lambda *_: None)


def _parameters(plan: Plan) -> Parameters:
    return plan.summing.of_cohorts().parameters


def _summed(
    server: FrequencyServer,
    people: Sequence[FrequencyClient],
    keys: Keys,
    random: Callable[[int], bytes],
    report: Callable[[str, int, int | None], None],
) -> U16:
    """Sum the phones' sketches with the protocol; the sum lands in the server.

    Returns:
        uint16 [phones, V], the masked counters that each phone sent.
    """
    terms = _parameters(server.plan)
    run = CohortRun.begin(
        server, 0, range(len(people)), signing_key=keys.server, random=random, now=_NOW
    )
    clients: list[Client] = [
        person.join(0, policy_of(terms), journal=MemoryJournal(), random=random)
        for person in people
    ]
    uploads = np.zeros((len(people), terms.length), np.uint16)

    def ask(name: ClientId, frame: bytes) -> bytes | None:
        answer = clients[int(name)].receive(frame, _NOW)
        sent = None if answer is None else wire.parse(answer)
        if sent is not None and sent.kind is Kind.MASKED_INPUT:
            # Checksum entries follow the counters, and are left out: no picture shows them.
            entries = terms.length + terms.checksum_entries
            uploads[int(name)] = unpack(sent.body, entries, terms.bits)[: terms.length]
            report("sum", int(name) + 1, len(people))
        return answer

    drive(run, ask, _NOW)
    carry(run, ask)  # the server's last frames, which tell the phones how the session ended
    return uploads


def _released(plan: Plan, exact: CountSketch, random: Callable[[int], bytes]) -> CountSketch:
    """Return the exact sum with the noise of a plan, as a server of this plan would release it."""
    server = FrequencyServer(plan, MemoryBooks())
    sketch = CountSketch(plan.spec, 0)
    sketch.vector += exact.vector
    sketch.num_clients = exact.num_clients
    server.land_plain(sketch)
    return server.release(random)[0]


def _level(plan: Plan, domain: Dictionary, released: CountSketch, words: Sequence[str]) -> Level:
    """Return the estimates from a release, and the bounds on what it shows about one phone."""
    result = Result(plan, domain, [released])
    found = result.estimates(words)
    shares = np.array([(one.frequency, one.low, one.high) for one in found], np.float64)
    counts, low, high = (shares * result.num_clients).T
    promised = proven = 1.0
    if plan.privacy is not None:
        guarantee, loss = plan.privacy.guarantee, privacy_loss(plan.privacy.event)
        promised = most_detected(guarantee.epsilon, guarantee.delta, FALSE_ALARMS)
        proven = min(promised, most_detected(loss.loss[:-1], loss.delta[:-1], FALSE_ALARMS))
    return Level(
        epsilon=None if plan.privacy is None else plan.privacy.epsilon,
        delta=0.0 if plan.privacy is None else plan.privacy.delta,
        released=released.vector.copy(),
        counts=counts,
        low=low,
        high=high,
        promised=promised,
        proven=proven,
    )
