"""Screening the sums of cohorts: its figures, what it leaves out, and what it may look at."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from secagg_cohort import stream

import fedtally
from fedtally.answer import sections
from fedtally.answer.notes import on_screening
from fedtally.answer.result import Result
from fedtally.answer.screen import answer as report_answer
from fedtally.answer.screen import plain
from fedtally.campaign import screening
from fedtally.campaign.books import MemoryBooks
from fedtally.campaign.folder import CampaignFolder
from fedtally.campaign.key_files import create_key_files
from fedtally.campaign.screening import (
    FEWEST,
    PoisonedError,
    Screen,
    Screening,
    checked_screen,
    consistency,
    keep_cohorts,
    why_unscreened,
)
from fedtally.campaign.server import FrequencyServer, RejectedSumError
from fedtally.cli.app import run
from fedtally.crypto.keys import Secret, SigningKey
from fedtally.domain import IntegerRange
from fedtally.errors import InvalidInputError
from fedtally.plan import Plan
from fedtally.privacy.config import propose as propose_privacy
from fedtally.secagg.config import SecAggConfig
from fedtally.secagg.messages import ServerState
from fedtally.secagg.proposal import propose
from fedtally.simulation.simulation import Simulation
from fedtally.sketch import CountSketch, summed

I64 = npt.NDArray[np.int64]
DOMAIN = IntegerRange(1, 400)
ROWS, WIDTH, SIZE = 3, 64, 40  # of a plan; the clients of a cohort
KEY = SigningKey(Secret(stream("server")(32)))


@functools.cache
def plan_of(trust: str | None = None, *, rounds: int = 1, epsilon: float = 8.0) -> Plan:
    """Return a plan of ten cohorts of 40 clients in each round; trust None: without privacy."""
    parameters = propose(SIZE, length=ROWS * WIDTH, bits=16, corrupt=1, max_dropout=0.05)
    asked: dict[str, Any] = {
        "epsilon": epsilon,
        "delta": 1e-6,
        "rows": ROWS,
        "width": WIDTH,
        "trust": trust,
    }
    if trust == "distributed":
        asked |= {"honest_survivors": parameters.honest_survivors, "most_clients": SIZE}
    return Plan(
        rows=ROWS,
        width=WIDTH,
        schedule="shared",
        num_rounds=rounds,
        num_clients=10 * SIZE * rounds,
        max_round_clients=10 * SIZE,
        domain=DOMAIN.describe(),
        max_items=1,
        seed=bytes(32),
        secure_sum=SecAggConfig(parameters=parameters, server_key=KEY.public, allow_list=None),
        privacy=None if trust is None else propose_privacy(**asked),
    )


def honest(
    plan: Plan, cohorts: int = 10, *, round: int = 0, seed: int = 1, boost: Sequence[int] = ()
) -> list[CountSketch]:
    """Return the sums of cohorts of honest clients; a liar of the first ones adds many votes."""
    rng, found = np.random.default_rng([seed, round]), []
    for cohort in range(cohorts):
        sketch = CountSketch(plan.spec, round)
        held = np.minimum(rng.zipf(1.5, SIZE), 400)
        sketch.add(DOMAIN.encode(held.tolist()), num_clients=SIZE)
        if cohort < len(boost):
            votes = CountSketch(plan.spec, round)
            votes.add(DOMAIN.encode([77] * boost[cohort]))
            sketch.vector += votes.vector
        if plan.privacy is not None and plan.privacy.by_clients:
            share = plan.privacy.share(SIZE)
            sketch.vector += share.draw(Secret(rng.bytes(32)), len(sketch.vector))
            sketch.noise = plan.noise_mark
        found.append(sketch)
    return found


def land(plan: Plan, sums: Sequence[CountSketch], books: Any = None) -> Any:
    """Return books in which these sums of cohorts have landed."""
    books = MemoryBooks() if books is None else books
    for number, sketch in enumerate(sums):
        assert books.land(plan, b"cohort %d of %d" % (number, sketch.round), sketch)
    if plan.privacy is not None and plan.privacy.by_clients:
        for release in range(len(plan.releases)):
            books.reserve(plan, release)
    return books


# ---- the figures ----


def by_hand(sums: I64, sizes: I64, noise: float) -> list[float]:
    """Return votes, mean square and the three limits as docs/threat-model.md defines them."""
    cohorts, rows, width = sums.shape
    n, k = int(sizes.sum()), cohorts - 1
    t = max(6 / width, 6 * np.sqrt(noise / n))
    most = t + 6 * (t + noise) * np.sqrt(2 / k)
    sd = np.sqrt((t + noise) / n)
    votes, squares, rest, whole, largest, heaviest, near = [], [], [], [], [], [], []
    for row in range(rows):
        means = [float(sums[:, row, w].sum()) / n for w in range(width)]
        mean_squares = []
        for w in range(width):
            spread = sum(
                (sums[a, row, w] - sizes[a] * means[w]) ** 2 / sizes[a] - noise * (1 - sizes[a] / n)
                for a in range(cohorts)
            )
            mean_squares.append(spread / k + means[w] ** 2 - noise / n)
        pairs = [(abs(mean), square) for mean, square in zip(means, mean_squares, strict=True)]
        heavy = [mean > t or square > most for mean, square in pairs]
        counted = [(*pair, is_heavy) for pair, is_heavy in zip(pairs, heavy, strict=True)]
        votes.append(sum(mean if is_heavy else square for mean, square, is_heavy in counted))
        squares.append(sum(mean_squares))
        rest.append(sum(mean**2 for mean, _, is_heavy in counted if not is_heavy))
        whole.append(sum(mean**2 for mean, _ in pairs))
        largest.append(max(mean for mean, _ in pairs))
        heaviest.append(sum(heavy))
        near.append(sum(min(1, mean / t) for mean, _ in pairs if abs(mean - t) < 3 * sd))

    def limit(k: int, x: float, second: float, peak: float) -> float:
        big = min(1, second + 1 / width) + 1 / (2 * sizes.min()) + 2 * noise + width * noise**2
        top = min(1, peak + 3 / width) + noise
        return float(1 + (2 * np.sqrt(k * x * big) + 2 * top * x) / k)

    x = np.log(4e4)
    chance = 6 * np.sqrt(max(heaviest) * noise / n) + 0.39894228 * sd * max(near)
    return [
        float(np.median(votes)),
        float(np.median(squares)),
        limit(k, x, max(rest), t) + chance,
        limit(k, x, max(whole), max(largest)),
        limit(1, np.log(4e4 * cohorts), max(whole), max(largest)),
    ]


@given(
    st.integers(2, 9), st.integers(1, 4), st.integers(1, 9), st.integers(0, 2**32), st.floats(0, 3)
)
def test_figures_are_those_of_the_page(
    cohorts: int, rows: int, width: int, seed: int, noise: float
) -> None:
    rng = np.random.default_rng(seed)
    sums, sizes = rng.integers(-50, 50, (cohorts, rows, width)), rng.integers(1, 90, cohorts)
    found = consistency(sums, sizes, noise=noise)
    said = found.votes, found.squares, found.votes_limit, found.squares_limit, found.energy_limit
    np.testing.assert_allclose(said, by_hand(sums, sizes, noise), atol=1e-6, rtol=1e-7)
    # neither the order of cohorts, nor signs and places of counters say anything
    order, places = rng.permutation(cohorts), rng.permutation(width)
    signs = rng.choice([-1, 1], (rows, width))
    again = consistency((sums * signs)[order][:, :, places], sizes[order], noise=noise)
    np.testing.assert_allclose(again.votes, found.votes)
    np.testing.assert_allclose(again.energies, found.energies[order], atol=1e-9)


def test_limits_are_wider_for_fewer_false_alarms_and_for_more_noise() -> None:
    plan = plan_of()
    sums = np.stack([sketch.counters for sketch in honest(plan)])
    sizes = np.full(10, SIZE)
    usual = consistency(sums, sizes)
    assert usual.is_consistent and usual.has_least
    for wider in (consistency(sums, sizes, 1e-9), consistency(sums, sizes, noise=0.1)):
        assert wider.votes_limit > usual.votes_limit > 1
        assert wider.squares_limit > usual.squares_limit > 1
        assert wider.energy_limit > usual.energy_limit


def test_too_few_votes_are_as_suspect_as_too_many_unless_clients_may_be_empty() -> None:
    rng = np.random.default_rng(3)
    sums = np.zeros((20, 1, 2000), np.int64)
    for cohort in sums[:, 0]:
        np.add.at(cohort, rng.integers(0, 2000, 500), 1)  # half of the clients
    sizes = np.full(20, 1000)
    found = consistency(sums, sizes)
    assert found.votes == pytest.approx(0.5, abs=0.05) and not found.is_consistent
    assert consistency(sums, sizes, may_be_empty=True).is_consistent


def dealt(seed: int, shares: Sequence[float], sizes: I64, rows: Sequence[Sequence[int]]) -> I64:
    """Return honest sums; a row says by place + 1 and sign which counter each item changes."""
    counts = np.random.default_rng(seed).multinomial(sizes, shares)
    width = max(abs(place) for row in rows for place in row)
    changes = np.zeros((len(rows), len(shares), width), np.int64)
    for row, places in enumerate(rows):
        for item, place in enumerate(places):
            changes[row, item, abs(place) - 1] += np.sign(place)
    return np.einsum("ai,riw->arw", counts, changes)


# The limits are made for 1 alarm in 10,000 rounds. Each case of the tests below was an alarm in 1
# of 12 rounds, or more, when frequent items that cancel counted as votes that are missing, when a
# median row told the weights, and when nothing allowed for counters near the cut.


def test_frequent_items_that_cancel_in_most_rows_raise_no_alarm() -> None:
    far = [50, -50, 1, 2, 3]  # places; in the last row nothing cancels
    five, sizes = [0.4, 0.25, 0.15, 0.1, 0.1], np.full(60, 300)
    half = [[50, -50], [7, -7], [3, 4]]
    for seed in range(60):
        assert consistency(
            dealt(seed, five, sizes, [far, far[::-1], [50, 4, 5, 6, 7]]), sizes
        ).is_consistent
        assert consistency(dealt(seed, [0.5, 0.5], sizes, half), sizes).is_consistent


def test_a_plateau_of_items_at_the_cut_raises_no_alarm() -> None:
    sizes, shares = np.full(400, 50), np.full(166, 1 / 166)
    sums = np.zeros((400, 1, 1000), np.int64)  # a histogram: 6 / 1000 is the cut
    for seed in range(20):
        sums[:, 0, :166] = np.random.default_rng(seed).multinomial(sizes, shares)
        assert consistency(sums, sizes).is_consistent


# ---- what is left out ----


def test_a_cohort_that_stands_out_is_left_out_and_others_stay() -> None:
    sums = np.stack([s.counters for s in honest(plan_of(), boost=[0, 0, 0, 300])])
    kept, found = keep_cohorts(sums, np.full(10, SIZE))
    assert kept == [0, 1, 2, 4, 5, 6, 7, 8, 9] and found.is_consistent
    kept, found = keep_cohorts(np.delete(sums, 3, axis=0), np.full(9, SIZE))
    assert kept == list(range(9)) and found.is_consistent


def test_a_round_that_is_bad_everywhere_is_not_mended() -> None:
    boost = [300, 0, 280, 0, 260, 0, 240, 0, 220]
    sums, sizes = np.stack([s.counters for s in honest(plan_of(), boost=boost)]), np.full(10, SIZE)
    kept, found = keep_cohorts(sums, sizes)
    assert kept == list(range(10)) and not found.is_consistent
    assert found.squares == consistency(sums, sizes).squares


def test_one_cohort_is_left_out_that_does_not_stand_out_and_no_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever leaves out until a test passes has no test."""
    real = consistency
    needed = [9]

    def told(sums: I64, sizes: I64, **given: Any) -> screening.Consistency:
        found = real(sums, sizes, **given)
        fits = len(sizes) <= needed[0]
        return replace(found, energy_limit=np.inf, votes_limit=9.0, squares_limit=9.0 * fits)

    monkeypatch.setattr(screening, "consistency", told)
    sums, sizes = np.stack([s.counters for s in honest(plan_of())]), np.full(10, SIZE)
    assert len(keep_cohorts(sums, sizes)[0]) == 9
    needed[0] = 8
    kept, found = keep_cohorts(sums, sizes)
    assert len(kept) == 10 and not found.is_consistent


# ---- the server ----


def test_the_server_warns_or_refuses() -> None:
    plan = plan_of()
    whole = summed(honest(plan, boost=[300]))[0]
    rest = summed(honest(plan, boost=[300])[1:])[0]
    for screen, expected in (("warn", whole), ("refuse", rest), ("off", whole)):
        server = FrequencyServer(plan, land(plan, honest(plan, boost=[300])), screen=screen)
        for _ in range(2):
            [sketch] = server.release()
            assert np.array_equal(sketch.vector, expected.vector)
            assert sketch.num_clients == expected.num_clients
        told = server.screening.to_dict()
        assert told["screen"] == screen
        found = [(one["verdict"], one["stand_out"]) for one in told["rounds"]]
        assert found == [("cohorts stand out", 1)] * (screen != "off")


def test_a_refused_round_is_left_out_and_the_others_are_released() -> None:
    plan = plan_of(rounds=2)
    poisoned = honest(plan, round=1, boost=[300] * 9)
    server = FrequencyServer(plan, land(plan, honest(plan) + poisoned), screen="refuse")
    [sketch] = server.release()
    assert sketch.round == 0
    assert [one["verdict"] for one in server.screening.to_dict()["rounds"]] == [
        "consistent",
        "poisoned",
    ]
    assert server.screening.used(1, range(10)) == [] and server.screening.used(0, "ab") == [
        "a",
        "b",
    ]
    assert server.screening.used(7, "ab") == ["a", "b"]  # it has not landed
    everything = land(plan, poisoned + honest(plan, boost=[300] * 9))
    server = FrequencyServer(plan, everything, screen="refuse")
    with pytest.raises(PoisonedError, match="refused the 2 rounds that landed") as caught:
        server.release()
    assert caught.value.exit_code == 1


def test_fewer_than_eight_cohorts_are_not_screened() -> None:
    plan = plan_of()
    server = FrequencyServer(plan, land(plan, honest(plan, FEWEST - 1, boost=[300])))
    assert len(server.release()) == 1
    [found] = server.screening.to_dict()["rounds"]
    assert found == {
        "round": 0,
        "cohorts": 7,
        "rejected": 0,
        "verdict": "not screened",
        "why": "7 cohorts of the round landed, and screening needs 8",
    }
    assert FrequencyServer(plan).release() == []  # nothing has landed


def test_what_is_left_after_rejected_cohorts_is_no_sample() -> None:
    """The worst cohorts of poisoned rounds cannot land: the others would pass the more easily."""
    plan = plan_of()
    for rejected, landed, verdict in (
        (2, 10, "consistent"),
        (4, 10, "poisoned"),
        (4, 5, "poisoned"),
        (2, 5, "not screened"),
    ):
        found = Screening(Screen.REFUSE, rejected=Counter({0: rejected}))
        used = found.look(plan, honest(plan, landed))
        told = found.rounds[0].to_dict()
        assert told["verdict"] == verdict
        assert ("4 more had sums that no clients" in told.get("why", "")) == (verdict == "poisoned")
        assert len(used) == (0 if verdict == "poisoned" else landed)
        result = Mock(secure_sum={"screening": found.to_dict()})
        result.plan.num_rounds = 2
        notes = list(on_screening(result.plan, result.secure_sum))
        assert len(notes) == (verdict != "consistent")
        assert all("of round 1" in note for note in notes)
    # two that stand out are left out, and not where two more could not land
    boost = [0, 300, 0, 290]
    found = Screening(Screen.REFUSE)
    assert len(found.look(plan, honest(plan, boost=boost))) == 8
    found.rejected[0] = 2
    assert found.look(plan, honest(plan, boost=boost)) == []


def test_a_sum_that_cannot_land_is_counted() -> None:
    plan = plan_of()
    server = FrequencyServer(plan)
    [sketch] = honest(plan, 1)
    sketch.vector[0] += 1000
    session = Mock(session=bytes(32), state=ServerState.DONE)
    session.terms.round, session.outcome.total, session.outcome.survivors = 0, sketch.vector, SIZE
    server._sessions[bytes(32)] = session
    with pytest.raises(RejectedSumError, match="cannot exceed 40"):
        server.land(session)
    assert server.screening.rejected == {0: 1}


# ---- privacy ----


class Unasked(MemoryBooks):
    """Books of which nobody may ask the sums of cohorts."""

    def cohorts(self, plan: Plan) -> list[CountSketch]:
        raise AssertionError("sums of cohorts were asked for")

    def sums(self, plan: Plan) -> list[CountSketch]:
        return MemoryBooks.cohorts(self, plan)


@pytest.mark.promise
def test_nothing_depends_on_exact_sums_that_are_secret() -> None:
    """Under central trust a liar must not learn from a verdict what the others hold."""
    plan = plan_of("central")
    assert "a trusted aggregator" in (why_unscreened(plan) or "")
    told = []
    for boost in ([], [300], [300] * 9):
        books = land(plan, honest(plan, boost=boost), Unasked())
        assert len(books.sums(plan)) == 1  # no cohort is kept by itself
        server = FrequencyServer(plan, books)
        [sketch] = server.release(stream("noise"))
        assert sketch.num_clients == 400 and sketch.noise == plan.noise_mark
        told.append(server.screening.to_dict())
    assert told[0] == told[1] == told[2] and told[0]["screen"] == "off"
    for screen in ("warn", "refuse"):
        with pytest.raises(InvalidInputError, match="is not possible: a trusted aggregator"):
            FrequencyServer(plan, MemoryBooks(), screen=screen)


@pytest.mark.parametrize("trust", ["central", "distributed"])
def test_sums_without_their_noise_are_not_looked_at(trust: str) -> None:
    plan = plan_of(trust)
    sums = honest(plan)
    for sketch in sums:
        sketch.noise = None
    with pytest.raises(InvalidInputError, match="cannot be screened"):
        Screening(Screen.WARN).look(plan, sums)


def test_cohorts_that_are_left_out_of_a_private_release_are_erased() -> None:
    """The noise is in each cohort's sum; what is released is a function of these sums."""
    plan = plan_of("distributed")
    sums = honest(plan, boost=[1000])
    rest = summed(honest(plan, boost=[1000])[1:])[0]
    books = land(plan, sums)
    server = FrequencyServer(plan, books, screen="refuse")
    for _ in range(2):  # it is out, and the same again
        [sketch] = server.release(stream("unused"))
        assert np.array_equal(sketch.vector, rest.vector) and sketch.num_clients == 9 * SIZE
        assert server.screening.rounds[0].left_out == (0,)
    assert not any(sketch.vector.any() for sketch in sums) and books.cohorts(plan) == []
    unscreened = FrequencyServer(plan, land(plan, honest(plan)), screen="off")
    assert [each.num_clients for each in unscreened.release(stream("unused"))] == [10 * SIZE]
    # a later process has nothing to look at, and says so
    later = FrequencyServer(plan, books)
    assert len(later.release(stream("unused"))) == 1
    assert later.screening.rounds[0].why.startswith("an earlier run released its sum")
    result = Mock(secure_sum={"screening": later.screening.to_dict()})
    result.plan.num_rounds = 1
    [note] = on_screening(
        result.plan, result.secure_sum
    )  # what was found is lost, which might have been a warning
    assert note.startswith("the sum could not be screened: an earlier run released its sum")


def test_honest_noise_is_no_poison() -> None:
    plan = plan_of("distributed", epsilon=1.0)
    server = FrequencyServer(plan, land(plan, honest(plan)))
    server.release(stream("unused"))
    [found] = server.screening.to_dict()["rounds"]
    assert found["verdict"] == "consistent" and found["mean_square_limit"] > 10


def test_what_cannot_be_screened_says_why() -> None:
    plan = plan_of()
    assert why_unscreened(plan) is None and checked_screen(plan, None) is Screen.WARN
    assert checked_screen(plan, "off") is Screen.OFF
    longer = propose(SIZE, length=ROWS * WIDTH + 1, bits=16, corrupt=1, max_dropout=0.05)
    terms = SecAggConfig(parameters=longer, server_key=KEY.public, allow_list=None)
    short = propose(SIZE, length=WIDTH, bits=16, corrupt=1, max_dropout=0.05)
    one_row = replace(plan, rows=1, secure_sum=replace(terms, parameters=short))
    for other, why in (
        (replace(plan, people=5, secure_sum=terms), "a silo adds as many items as"),
        (replace(plan, secure_sum=None), "only one server that sums by secagg"),
        (replace(plan, max_items=2), "clients of several items"),
        (one_row, "in a sketch of one row"),
    ):
        assert why in (why_unscreened(other) or "")
        assert checked_screen(other, None) is Screen.OFF
        with pytest.raises(InvalidInputError, match=f"screen='refuse' is not possible: {why}"):
            checked_screen(other, "refuse")
    with pytest.raises(InvalidInputError, match="must be refuse, warn or off, got 'loud'"):
        checked_screen(plan, "loud")


# ---- the answer ----


def poison(monkeypatch: pytest.MonkeyPatch, cohorts: int) -> None:
    """Let a liar add many votes in each of the first cohorts that land."""
    real, left = FrequencyServer._sketch, [cohorts]

    def land(self: FrequencyServer, round: int, total: I64, clients: int) -> CountSketch:
        sketch = real(self, round, total, clients)
        if left[0]:
            sketch.counters[:, 5] += 500
            left[0] -= 1
        return sketch

    monkeypatch.setattr(FrequencyServer, "_sketch", land)


def answer(screen: str | None = None, **given: Any) -> Result:
    items = np.minimum(np.random.default_rng(2).zipf(1.5, 8 * 6), 400)
    asked: dict[str, Any] = {"rows": 3, "width": 50, "encoding": "sketch"} | given
    return fedtally.estimate(
        items,
        domain="range:1..400",
        secure_sum="secagg",
        screen=screen,
        **{"max_cohort": 6, "seed": 1, **asked},
    )


def test_an_answer_says_which_cohorts_stand_out(monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch, 1)
    result = answer()
    assert result.num_clients == 48
    [note] = result.cautions
    assert note == (
        "1 of the 8 cohorts stands out, as where a client adds many votes, and is in the answer"
        " (--screen refuse leaves them out)"
    )
    poison(monkeypatch, 1)
    result = answer("refuse")
    assert result.num_clients == 42 and result.cautions[0].endswith("and is left out")
    assert result.secure_sum["screening"]["clients_left_out"] == 6
    said = [text for _, text in sections.trust.rows(result.plan, result.secure_sum)]
    start = "48 of 48 clients in the sums (6 of them in cohorts that are left out), nobody dropped"
    assert any(text.startswith(start) for text in said)
    assert result.secure_sum["screening"]["rounds"][0]["stand_out"] == 1


def test_an_answer_says_that_a_round_is_poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch, 7)
    [note] = answer().cautions
    assert note.startswith("the sums of the 8 cohorts do not fit honest clients who were dealt to")
    assert "may be wrong by any amount (--screen refuse leaves it out)" in note
    poison(monkeypatch, 7)
    with pytest.raises(PoisonedError, match="screening refused the round that landed"):
        answer("refuse")


def test_a_terminal_shows_an_alarm_whatever_room_it_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [str(tmp_path / name) for name in ("one.fed", "two.fed")]
    for seed, path in enumerate(paths):
        poison(monkeypatch, 7)
        result = answer(seed=seed)
        result.notes = tuple(f"{number} and other notes" for number in range(40))
        text = " ".join(plain(report_answer(result, result.top(20))).split())
        assert "the sums of the 8 cohorts do not fit honest clients" in text
        assert "40 more notes" in text
        result.save(path)
    assert run(["merge", *paths]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "the sums of the 8 cohorts do not fit honest clients" in text


def test_an_honest_answer_has_no_note() -> None:
    assert answer().cautions == ()
    [note] = answer("refuse", max_cohort=48).cautions
    assert note == (
        "the sums of the cohorts could not be screened:"
        " 1 cohort of the round landed, and screening needs 8"
    )


def test_screen_goes_with_secagg() -> None:
    assert Simulation.of(screen="off").screen is Screen.OFF
    with pytest.raises(
        InvalidInputError, match="screen='warn' goes with the secure sum secagg, got"
    ):
        Simulation.of(screen="warn")
    with pytest.raises(InvalidInputError, match="screen must be refuse, warn or off"):
        Simulation.of(screen="on", secure_sum="secagg")


def test_details_say_what_was_found() -> None:
    found = {
        "round": 0,
        "cohorts": 20,
        "verdict": "poisoned",
        "votes": 1.5,
        "votes_limit": 1.1,
        "mean_square": 1.0,
        "mean_square_limit": 1.4,
    }
    missed = {"round": 1, "cohorts": 3, "verdict": "not screened", "why": "too few"}
    told: dict[str, Any] = {"screen": "warn", "why": "", "rounds": [found]}
    figures = "votes 1.50 (limit 1.10), mean square 1.00 (limit 1.40)"
    assert sections.trust.screened(told) == f"20 cohorts do not fit honest clients: {figures}"
    fine = found | {"verdict": "consistent", "votes": 1.0}
    assert sections.trust.screened(told | {"rounds": [found, fine, missed]}) == (
        f"1 of 2 rounds fit honest clients; at worst {figures}; 1 round not screened: too few"
    )
    assert sections.trust.screened(told | {"rounds": [missed]}) == "off: too few"
    assert sections.trust.screened(told | {"rounds": []}) == "off: no cohort landed"
    assert sections.trust.screened({"screen": "off", "why": "why", "rounds": []}) == "off: why"


# ---- a campaign on disk ----


def landed_campaign(place: Path, plan: Plan, sums: Sequence[CountSketch], **more: Any) -> Path:
    """Make the folder of a campaign in which these sums of cohorts have landed."""
    create_key_files(place / "server.key", "server", stream("server"))
    plan.save(place / "plan.toml")
    folder = CampaignFolder.create(
        place / "survey",
        place / "plan.toml",
        server_key=place / "server.key",
        mark=place / "mark",
        **more,
    )
    land(plan, sums, folder.claim(clock=lambda: 1, random=stream("claim")))
    return folder.path


def test_a_campaign_on_disk_is_screened_when_it_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_of()
    place = landed_campaign(tmp_path, plan, honest(plan, boost=[300]), screen="refuse")
    assert 'screen = "refuse"' in (place / "campaign.toml").read_text()
    assert run(["campaign", "result", str(place), "--end", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["num_contributions"] == 9 * SIZE
    assert document["secure_sum"]["screening"]["rounds"][0]["stand_out"] == 1
    assert document["warnings"][0].startswith("1 of the 10 cohorts stands out")
    assert sections.trust.screened(document["secure_sum"]["screening"]).startswith(
        "9 of 10 cohorts fit honest"
    )


@pytest.mark.promise
def test_a_poisoned_campaign_on_disk_has_no_result_until_a_warning_is_enough(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_of()
    place = landed_campaign(tmp_path, plan, honest(plan, boost=[300] * 9), screen="refuse")
    assert run(["campaign", "result", str(place), "--end"]) == 1
    assert "screening refused the round that landed" in capsys.readouterr().err
    assert not (place / "result.fed").exists()
    settings = place / "campaign.toml"
    settings.write_text(settings.read_text().replace('"refuse"', '"warn"'))
    assert run(["campaign", "result", str(place), "--end", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["num_contributions"] == 10 * SIZE
    assert "may be wrong by any amount" in document["warnings"][0]
    settings.write_text(settings.read_text().replace('"warn"', '"loud"'))
    with pytest.raises(InvalidInputError, match="screen must be refuse, warn or off, got 'loud'"):
        CampaignFolder.open(place)


def test_a_campaign_that_cannot_be_screened_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidInputError, match="screen='warn' is not possible: clients of several"
    ):
        landed_campaign(tmp_path, replace(plan_of(), max_items=2), [], screen="warn")
    assert not (tmp_path / "survey").exists()
