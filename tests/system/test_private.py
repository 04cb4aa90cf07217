"""Private campaigns: what is released, what may be read, what is charged, and that nothing else
depends on the data."""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from clip_norms import squared_norm
from secagg_cohort import land_done

import fedtally
from fedtally.answer import documents
from fedtally.answer.result import Result
from fedtally.answer.screen import answer, plain
from fedtally.campaign.books import LedgerBooks, MemoryBooks
from fedtally.campaign.client import FrequencyClient
from fedtally.campaign.server import FrequencyServer
from fedtally.crypto.keys import Secret, SigningKey
from fedtally.domain import Dictionary, IntegerRange
from fedtally.errors import InvalidInputError, UnreadableFileError
from fedtally.plan import Plan
from fedtally.plan.frequencies.distribution import Frequencies
from fedtally.plan.parts.summation import Summation
from fedtally.privacy.budget import AlreadySpentError, OverspentError
from fedtally.simulation import cohorts, round_sums
from fedtally.simulation.census import read
from fedtally.simulation.clipping import clip_rounds
from fedtally.simulation.simulation import Simulation
from fedtally.sketch import CountSketch, NoiseMark
from fedtally.sources import from_items
from fedtally.store import Ledger

DOMAIN = IntegerRange(1, 50)
ITEMS = [1 + i % 7 for i in range(700)]


@pytest.fixture(autouse=True)
def decoded_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a result be decoded when a test asks it for answers, and not before.

    Most tests here look at sums, plans and ledgers, and decoding takes nearly all of a run's time.
    """
    monkeypatch.setattr(Result, "prepare", lambda *_: None)


def estimate(items: Any = ITEMS, **options: Any) -> Result:
    return fedtally.estimate(
        items, **({"domain": DOMAIN, "epsilon": 1.0, "rows": 5, "width": 64} | options)
    )


def plain_sum(result: Result, rounds: Sequence[tuple[int, Sequence[int]]]) -> npt.NDArray[np.int64]:
    """Return the sum of the given rounds' items without noise."""
    total = np.zeros((result.plan.rows, result.plan.width), np.int64)
    for number, items in rounds:
        sketch = CountSketch(result.plan.spec, number)
        sketch.add(DOMAIN.encode(list(items)))
        total += sketch.counters
    return total


def noise_of(result: Result, items: Sequence[int] = ITEMS) -> npt.NDArray[np.int64]:
    """Return the noise in the one sum of a result."""
    [sketch] = result.sketches
    return sketch.counters - plain_sum(result, [(sketch.round, items)])


def has_variance(noise: npt.NDArray[np.int64], variance: float) -> bool:
    """Whether noise of kurtosis below 3.3 has this variance, within six standard deviations of the
    mean square."""
    n = noise.size
    return abs(float(np.mean(noise.astype(np.float64) ** 2)) / variance - 1) < 6 * math.sqrt(
        2.3 / n
    )


# ---- what is released ----


@pytest.mark.promise
@pytest.mark.parametrize(
    ("options", "copies"),
    [
        ({}, 1.0),
        ({"neighbours": "replace-one"}, 1.0),
        ({"secure_sum": "two-server"}, 2.0),
        ({"secure_sum": "two-server", "trust": "central"}, 1.0),
        ({"secure_sum": "secagg", "trust": "central"}, 1.0),
        ({"secure_sum": "secagg"}, None),
        ({"trust": "distributed"}, None),
    ],
)
def test_the_noise_of_a_sum_is_that_of_its_plan(
    options: dict[str, Any], copies: float | None
) -> None:
    items = ITEMS[:210] if "secure_sum" in options else ITEMS  # masks take most of a secure sum
    result = estimate(items, width=400, **options)
    terms = result.plan.privacy
    assert terms is not None and terms.guarantee.epsilon <= 1.0
    if copies is None:  # shares: all clients add theirs
        assert terms.event.honest_survivors is not None
        copies = len(items) / terms.event.honest_survivors
        assert 1.0 < copies < 1.2
    else:
        copies += copies / 12 / terms.event.noise_variance  # each rounded to integers
    assert has_variance(noise_of(result, items), copies * terms.event.noise_variance)
    assert result.num_clients == len(items)


@pytest.mark.parametrize("schedule", ["shared", "fresh", "hybrid", "batched:2"])
def test_rounds_that_share_their_hashes_are_opened_at_once_where_somebody_is_trusted(
    schedule: str,
) -> None:
    central = estimate(num_rounds=4, schedule=schedule)
    assert [sketch.round for sketch in central.sketches] == [
        rounds.start for rounds in central.plan.releases
    ]
    assert len(central.sketches) == {"shared": 1, "batched:2": 2}.get(schedule, 4)
    shares = estimate(num_rounds=4, schedule=schedule, trust="distributed")
    assert len(shares.sketches) == 4
    assert central.num_clients == shares.num_clients == 700


def test_two_servers_open_batches_of_rounds() -> None:
    result = estimate(num_rounds=4, schedule="batched:2", secure_sum="two-server")
    assert [sketch.round for sketch in result.sketches] == [0, 2]
    assert result.num_clients == 700
    assert result.estimates([1])[0].frequency == pytest.approx(1 / 7, abs=0.3)


@pytest.mark.promise
@pytest.mark.parametrize("method", ["secagg", "two-server"])
def test_a_secure_sum_is_what_the_survivors_sent(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise and all: what every client contributes is kept here, and added up."""
    sent: list[npt.NDArray[np.int64]] = []
    make = FrequencyClient.contribution

    def kept(self: FrequencyClient, round: int, random: Any = None) -> npt.NDArray[np.int64]:
        sent.append(make(self, round, random))
        return sent[-1].copy()

    drawn: list[npt.NDArray[np.int64]] = []
    noise = FrequencyServer._server_noise

    def noted(self: FrequencyServer, random: Any) -> Any:
        draw = noise(self, random)
        assert draw is not None
        return lambda: drawn.append(draw()) or drawn[-1].copy()

    monkeypatch.setattr(FrequencyClient, "contribution", kept)
    monkeypatch.setattr(FrequencyServer, "_server_noise", noted)
    result = estimate(ITEMS[:60], secure_sum=method, epsilon=4.0)
    [sketch] = result.sketches
    assert len(sent) == 60 and len(drawn) == (2 if method == "two-server" else 0)
    assert np.array_equal(sketch.counters.reshape(-1), sum([*sent, *drawn]))
    assert result.secure_sum["equals_plain_sum"] is False


def test_a_pilot_has_the_noise_of_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """All clients hold one item, so that the exact sum follows from their number."""
    seen: list[tuple[CountSketch, float]] = []

    def noted(sketches: Any, domain: Any, variance: float, **options: Any) -> Frequencies:
        seen.extend((sketch, variance) for sketch in sketches)
        return Frequencies.assumed(domain.size)  # a plan for any would take many seconds

    monkeypatch.setattr(Frequencies, "from_pilot", staticmethod(noted))
    estimate([7] * 3000, width=None, tau=0.05, max_bytes=None)
    [(sketch, variance)] = seen
    one = CountSketch(sketch.spec, 0)
    one.add(DOMAIN.encode([7]))
    assert (
        has_variance(sketch.counters - sketch.num_clients * one.counters, variance)
        and variance > 10
    )


def test_the_number_of_clients_has_noise_where_it_must_not_show() -> None:
    results = [estimate(neighbours="add-remove", max_clients=1000) for _ in range(8)]
    assert {result.plan.num_clients for result in results} == {1000}
    assert len({result.num_clients for result in results}) > 1
    assert all(0 < result.num_clients < 1000 for result in results)
    shown = json.dumps(documents.of_result(results[0], results[0].top(3)))
    assert '"num_clients": 1000' not in shown


def test_private_runs_draw_anew_and_studies_repeat() -> None:
    first, second = (noise_of(estimate(seed=5, not_private=True)) for _ in range(2))
    assert np.array_equal(first, second)
    plan = estimate().plan
    first, second = (noise_of(fedtally.estimate(ITEMS, domain=DOMAIN, plan=plan)) for _ in range(2))
    assert not np.array_equal(first, second), (
        "two private runs of one plan must not repeat their noise"
    )


def test_nothing_that_is_drawn_follows_from_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its seed is public.
    Five runs draw the same rounds of 700 clients with a probability below 1e-10.
    """
    plan, keys = estimate(num_rounds=4, schedule="hybrid").plan, []

    def noted(plan: Plan, rounds: Any, key: bytes, names: None) -> Any:
        keys.append(key)
        return clip_rounds(plan, rounds, key, names)

    monkeypatch.setattr(round_sums, "clip_rounds", noted)
    runs = [fedtally.estimate(ITEMS, domain=DOMAIN, plan=plan, confidence=0.0) for _ in range(5)]
    assert len({tuple(sketch.num_clients for sketch in run.sketches) for run in runs}) > 1
    # which items a clipped client drops
    assert len(set(keys)) == 5 and {len(key) for key in keys} == {32}


def test_shares_are_sized_for_the_honest_who_stay() -> None:
    """Of the smallest round, without a fifth that may drop out and a tenth of the largest that may
    be corrupt."""
    bearing = Summation(max_corrupt=0.1, max_dropout=0.2)
    assert bearing.honest_clients([60, 50, 0]) == 50 - 10 - 6
    # one is always taken as corrupt
    assert Summation(max_corrupt=0.0, max_dropout=0.0).honest_clients([50]) == 50 - 1


def test_the_sums_without_noise_are_erased(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[CountSketch] = []
    encode = round_sums.encode

    def kept(*arguments: Any) -> Any:
        for sketch in encode(*arguments):
            seen.append(sketch)
            yield sketch

    monkeypatch.setattr(round_sums, "encode", kept)
    result = estimate()
    assert seen and all(not sketch.counters.any() for sketch in seen)
    assert all(sketch is not released for sketch in seen for released in result.sketches)


def test_no_result_is_made_of_sums_without_the_noise_of_its_plan(tmp_path: Path) -> None:
    """What is printed of a result guarantees what its plan does, whoever made the sums."""
    for options, mark in (
        ({}, "aggregator"),
        ({"trust": "distributed"}, "clients"),
        ({"secure_sum": "secagg", "trust": "central"}, "aggregator"),
        ({"secure_sum": "secagg"}, "clients"),
        ({"secure_sum": "two-server"}, "servers"),
        ({"not_private": True, "seed": 1}, "aggregator"),
    ):
        result = estimate(ITEMS[:60], **options)
        own = NoiseMark(mark, result.plan.fingerprint)
        assert {sketch.noise for sketch in result.sketches} == {own}
        result.save(tmp_path / "result")
        assert {sketch.noise for sketch in Result.load(tmp_path / "result").sketches} == {own}
        exact = CountSketch(result.plan.spec, result.sketches[0].round)
        exact.add(DOMAIN.encode(ITEMS[:60]))
        with pytest.raises(
            InvalidInputError, match=rf"noise of the {mark} .*, and the sum of round 0 is exact"
        ):
            Result(result.plan, DOMAIN, [exact])
        exact.noise = own._replace(by="clients" if mark != "clients" else "servers")
        with pytest.raises(InvalidInputError, match="round 0 holds noise of the"):
            Result(result.plan, DOMAIN, [exact])


def test_no_result_prints_the_epsilon_of_another_plan() -> None:
    """The noise of one epsilon is no guarantee of a smaller one."""
    loud, quiet = estimate(epsilon=20.0, not_private=True), estimate(epsilon=0.1).plan
    guaranteed = replace(loud.plan, privacy=quiet.privacy)
    held = f"holds noise of the aggregator under plan {loud.plan.fingerprint[:16]}"
    with pytest.raises(InvalidInputError, match=held):
        Result(guaranteed, DOMAIN, loud.sketches)


@pytest.mark.parametrize("secure_sum", [None, "secagg", "two-server"])
def test_a_saved_result_holds_noised_sums_with_epsilon_and_exact_ones_without(
    secure_sum: str | None, tmp_path: Path
) -> None:
    """What is in the file itself, array by array, and not what a reader makes of it."""
    for epsilon in (1.0, None):
        result = estimate(ITEMS[:60], epsilon=epsilon, secure_sum=secure_sum)
        exact = plain_sum(result, [(result.sketches[0].round, ITEMS[:60])])
        result.save(tmp_path / "result")
        with np.load(tmp_path / "result") as file:
            held = {name: file[name] for name in file.files}
        assert Result.load(tmp_path / "result").domain.describe() == DOMAIN.describe()
        are_exact = (held["counters"][0] == exact).mean()
        if epsilon is None:
            assert are_exact == 1
        else:
            assert are_exact < 0.5 and (held["counters"][0] == result.sketches[0].counters).all()
            same = [
                name for name, array in held.items() if np.array_equal(array.ravel(), exact.ravel())
            ]
            assert same == []


def test_a_saved_result_without_the_mark_promises_nothing(tmp_path: Path) -> None:
    result = estimate()
    result.sketches[0].noise = None  # what a later change of the program might forget
    result.save(tmp_path / "result")
    with pytest.raises(UnreadableFileError, match="the sum of round 0 is exact"):
        Result.load(tmp_path / "result")


def test_what_a_server_lands_under_central_trust_is_exact_and_says_so() -> None:
    plan = estimate(ITEMS[:60], secure_sum="two-server", trust="central").plan
    server = FrequencyServer(plan, MemoryBooks())
    landed = land_done(server, np.eye(1, plan.rows * plan.width, dtype=np.int64)[0], 60)
    assert landed.noise is None
    [opened] = server.release(np.random.default_rng(1).bytes)
    assert not landed.counters.any() and opened is not landed
    assert opened.noise == ("aggregator", plan.fingerprint)
    assert Result(plan, DOMAIN, [opened]).num_clients == 60


# ---- clients without an item ----


@pytest.mark.promise
def test_clients_without_an_item_take_part_with_zeros() -> None:
    items = [1, None, 99, 2, None, 1] * 50  # 99 is no candidate
    assert estimate(items).num_clients == 300
    assert estimate(items, num_rounds=3).num_clients == 300
    assert estimate(items, secure_sum="secagg", epsilon=4.0).num_clients == 300
    assert estimate(items, secure_sum="two-server", epsilon=4.0).num_clients == 300
    counted = estimate([1, None, 99], counts=[100, 100, 100])
    assert counted.num_clients == 300


def test_clients_of_several_rows_take_part_with_zeros() -> None:
    items = [1, None, None, 99, 3, None]
    clients = ["a", "a", "b", "c", "d", "d"] * 1
    result = estimate(
        items * 20,
        clients=[f"{c}{i}" for i in range(20) for c in clients],
        max_items=2,
        epsilon=8.0,
    )
    assert result.num_clients == 80


def test_nothing_printed_tells_what_clients_hold() -> None:
    """All but the estimates is the same, whether a client holds a candidate, something else or
    nothing."""
    told = []
    for item in (1, 99, None):
        result = estimate([*ITEMS, item], rows=7)
        found = documents.of_result(result, [])
        for name in ("timings", "intervals"):
            del found[name]
        del found["plan"]["fingerprint"]  # of the seed
        told.append(found)
        assert "dropped" not in plain(answer(result, []))
    assert told[0] == told[1] == told[2]
    assert estimate([*ITEMS, 99]).missing == estimate([*ITEMS, None]).missing == 0


def test_a_client_changes_nothing_but_its_own_part() -> None:
    """Items and rounds of the others do not depend on what one client holds, given the draws."""
    rng = np.random.default_rng(3)
    clients = np.repeat(np.arange(40), 5)
    items = rng.integers(1, 51, 200)
    other = items.copy()
    other[:5] = [50, 49, 48, 48, 48]  # client 0 holds fewer distinct items
    tallies = []
    for held in (items, other):
        request = Simulation.of(
            domain=DOMAIN, epsilon=1.0, max_items=2, num_rounds=3, not_private=True, seed=1
        )
        tally, _ = read(from_items(held, clients=clients), request, bytes(32), lambda *_: None)
        tallies.append(tally.finish(individuals=True))
    assert [r.num_clients for r in tallies[0]] == [r.num_clients for r in tallies[1]]
    differing = 0
    for before, after in zip(*tallies, strict=True):
        assert before.members is not None and after.members is not None
        pairs = zip(range(before.num_clients), range(after.num_clients), strict=True)
        differing += sum(
            sorted(before.members.of(i)) != sorted(after.members.of(j)) for i, j in pairs
        )
    assert differing == 1


# ---- bounds ----


def test_no_contribution_exceeds_the_clip_and_the_truth_knows_nothing_of_it() -> None:
    clients, items = np.repeat(np.arange(300), 10), np.tile(np.arange(1, 11), 300)
    result = estimate(
        items,
        clients=clients,
        max_items=10,
        width=8,
        rows=3,
        not_private=True,
        evaluate=True,
        num_rounds=2,
    )
    terms = result.plan.privacy
    assert terms is not None and terms.event.clip_norm is not None and result.truth is not None
    assert result.truth.counts.tolist() == [300] * 10
    request = Simulation.of(domain=DOMAIN, epsilon=1.0, max_items=10, not_private=True)
    tally, _ = read(from_items(items, clients=clients), request, bytes(32), lambda *_: None)
    [everybody] = tally.finish(individuals=True)
    norm = squared_norm(result.plan.spec, 0, DOMAIN.encode(list(range(1, 11)))) ** 0.5
    tight = replace(terms.event, clip_norm=min(terms.event.clip_norm, norm - 1e-6))
    plan = replace(result.plan, privacy=replace(terms, event=tight))
    [clipped] = clip_rounds(plan, [everybody], bytes(32))
    assert clipped.members is not None and len(clipped.members.ids) < len(items)
    norms = [squared_norm(plan.spec, 0, clipped.members.of(client)) for client in range(300)]
    assert max(norms) <= (tight.clip_norm or 0.0) ** 2 and clipped.num_clients == 300


def test_a_client_keeps_to_the_clip_by_itself() -> None:
    """Whatever an engine bounds: what the client sends is never longer, and items are dropped for
    it."""
    held = list(range(1, 11))
    plan = estimate(held, clients=["a"] * 10, max_items=10, width=8, rows=3).plan
    terms = plan.privacy
    assert terms is not None
    norm = squared_norm(plan.spec, 0, DOMAIN.encode(held)) ** 0.5
    tight = replace(plan, privacy=replace(terms, event=replace(terms.event, clip_norm=norm - 1e-6)))
    loose, bounded = (
        FrequencyClient(one, DOMAIN, held).contribution(0, secrets.token_bytes)
        for one in (plan, tight)
    )
    assert (bounded**2).sum() < (loose**2).sum() == pytest.approx(norm**2)


@pytest.mark.parametrize(("most", "expected"), [(None, 3), (1, 1), (2, 2)])
def test_natural_rounds_are_charged_for_the_most_that_a_client_may_be_in(
    most: int | None, expected: int
) -> None:
    clients = [f"c{i}" for i in range(100) for _ in range(3)]
    rounds = ["a", "b", "c"] * 100
    result = estimate([1] * 300, clients=clients, rounds=rounds, max_rounds=most, schedule="hybrid")
    terms = result.plan.privacy
    assert terms is not None and terms.event.participations == expected
    assert (result.num_clients, result.num_contributions) == (100, 100 * expected)
    shared = estimate(
        [1] * 300, clients=clients, rounds=rounds, max_rounds=most, schedule="shared"
    ).plan.privacy
    assert shared is not None and shared.event.l2_sensitivity == pytest.approx(
        expected * math.sqrt(5)
    )
    single = estimate([1] * 300, rounds=rounds).plan.privacy  # each row is a client
    assert single is not None and single.event.participations == 1


# ---- what may be read ----


@pytest.mark.promise
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 1}, "seed= is not for a private run"),
        ({"seed": 0}, "seed= is not for a private run"),
        ({"seed": b""}, "seed= is not for a private run"),
        ({"evaluate": True}, "evaluate= is not for a private run"),
        ({"outside": "error"}, "would tell what a client holds"),
        ({"domain": None}, "candidates must be public.*take domain='open', which finds"),
        ({"domain": "input"}, "the candidates must be public"),
    ],
)
def test_what_only_a_study_may_use(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=message):
        estimate(**options)
    result = estimate(**options, not_private=True)
    assert result.plan.privacy is not None and result.plan.privacy.not_private
    assert any("not private" in note for note in result.warnings)
    assert documents.of_result(result, [])["privacy"]["not_private"] is True
    assert "not private: epsilon 1" in plain(answer(result, [], details=True), 400)
    result.export(tmp_path / "all.csv")
    assert (tmp_path / "all.csv").read_text().count("not private") == result.domain.size
    result.save(tmp_path / "saved")
    assert Result.load(tmp_path / "saved").not_private == "not private"


def test_a_private_run_says_so(tmp_path: Path) -> None:
    result = estimate()
    assert documents.of_result(result, [])["privacy"]["not_private"] is False
    assert not any("not_private" in note for note in result.warnings)
    result.export(tmp_path / "all.csv")
    assert "not_private" not in (tmp_path / "all.csv").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilon": None, "delta": 1e-6}, "delta= goes with epsilon="),
        ({"epsilon": None, "trust": "central"}, "trust= goes with epsilon="),
        ({"epsilon": None, "ledger": "x.db"}, "ledger= goes with epsilon="),
        ({"epsilon": None, "not_private": True}, "not_private= goes with epsilon="),
        ({"neighbours": "add-remove"}, "add-remove needs max_clients="),
        ({"max_clients": 9}, "max_clients= goes with the relation add-remove"),
        (
            {"neighbours": "add-remove", "max_clients": 900, "secure_sum": "secagg"},
            "which the secure sum secagg shows",
        ),
        ({"neighbours": "add-remove", "max_clients": 900, "trust": "distributed"}, "central trust"),
        ({"certify": True}, "certify= goes with the relation replace-one"),
        (
            {"not_private": True, "ledger": "x.db"},
            "ledger= is not for a run that is marked not_private=True: nothing of such",
        ),
        ({"trust": "distributed", "num_rounds": 400}, "no honest client whose noise is sure"),
        ({"population": " phones"}, "population must be"),
        ({"max_rounds": 0}, "max_rounds must be at least 1"),
        ({"max_rounds": 2}, "max_rounds= goes with natural rounds"),
        ({"population": ""}, "population must be"),
        ({"epsilon": 0}, "epsilon must be 0.001"),
        ({"delta": 0}, r"rows= is not for geometric noise \(or delta 0\), which is for histograms"),
        ({"delta": 1}, "delta must be above 0 and below 1"),
        ({"ledger": 5}, "ledger must be a path or a URL, got 5"),
        ({"certify": "no"}, "certify must be true or false, got 'no'"),
        ({"seed": False}, "seed must be an integer, text or bytes, got False"),
        ({"neighbours": False}, "relation must be zero-out, "),
        (
            {"neighbours": "replace-one", "certify": True, "max_items": 2, "clients": ["a"] * 700},
            "clients of one item",
        ),
    ],
)
def test_what_does_not_go_together(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        estimate(**options)


def test_add_remove_has_no_natural_rounds() -> None:
    with pytest.raises(InvalidInputError, match="shows which rounds had anybody"):
        estimate(rounds=[i % 2 for i in range(700)], neighbours="add-remove", max_clients=1000)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"epsilon": 11.0}, "epsilon 11 is above 10"),
        ({"delta": 0.01, "not_private": True}, "delta 0.01 is not below 1 / 700 clients"),
    ],
)
@pytest.mark.promise
def test_promises_that_mean_little_are_called_so(options: dict[str, Any], said: str) -> None:
    assert any(said in note for note in estimate(**options).warnings)
    assert not any(
        sign in note for note in estimate().warnings for sign in ("is above", "is not below")
    )


def test_every_cohort_has_the_noise_of_a_whole() -> None:
    split = estimate(ITEMS[:60], secure_sum="secagg", max_cohort=30, epsilon=8.0, width=200)
    whole = estimate(ITEMS[:60], secure_sum="secagg", epsilon=8.0, width=200)
    assert any("2 cohorts are opened" in note for note in split.warnings)
    assert not any("cohorts are opened" in note for note in whole.warnings)
    for result, number in ((split, 2), (whole, 1)):
        terms = result.plan.privacy
        assert terms is not None and terms.event.honest_survivors is not None
        expected = (
            terms.event.noise_variance * (60 / number) / terms.event.honest_survivors * number
        )
        assert has_variance(noise_of(result, ITEMS[:60]), expected)
    assert "each of 2 sums" in plain(answer(split, [], details=True), 300)


def test_certified_noise_is_less_and_right() -> None:
    options: dict[str, Any] = {"neighbours": "replace-one", "rows": 5, "width": 400}
    worst, certified = (
        estimate(**options).plan.privacy,
        estimate(**options, certify=True).plan.privacy,
    )
    assert worst is not None and certified is not None and certified.event.collisions is not None
    assert certified.event.noise_variance < worst.event.noise_variance
    with pytest.raises(InvalidInputError, match="at most 4,194,304, got 5,000,000"):
        estimate(**options, certify=True, domain=IntegerRange(1, 5_000_000))


# ---- plans ----


@pytest.mark.promise
@pytest.mark.parametrize(
    "options",
    [{}, {"trust": "distributed"}, {"secure_sum": "secagg"}, {"secure_sum": "two-server"}],
)
def test_a_private_plan_can_be_used_again(options: dict[str, Any], tmp_path: Path) -> None:
    items = ITEMS[:150]
    first = estimate(items, **options, max_corrupt=0.1)
    first.plan.save(tmp_path / "plan.toml")
    plan = Plan.load(tmp_path / "plan.toml")
    again = fedtally.estimate(items, domain=DOMAIN, plan=plan)
    assert again.plan.privacy == plan.privacy and again.plan.spec == plan.spec
    with pytest.raises(InvalidInputError, match="a plan already says epsilon"):
        fedtally.estimate(ITEMS, domain=DOMAIN, plan=plan, epsilon=2.0)
    with pytest.raises(InvalidInputError, match="leave population= out"):
        fedtally.estimate(ITEMS, domain=DOMAIN, plan=plan, population="others")
    with pytest.raises(InvalidInputError, match="mark it with not_private"):
        fedtally.estimate(ITEMS, domain=DOMAIN, plan=plan, evaluate=True)
    study = fedtally.estimate(items, domain=DOMAIN, plan=plan, evaluate=True, not_private=True)
    assert study.plan.privacy is not None and study.plan.privacy.not_private


def test_a_plan_counts_on_more_noise_than_a_round_has() -> None:
    plan = estimate(trust="distributed").plan
    with pytest.raises(InvalidInputError, match="a round of the input has 300"):
        fedtally.estimate(ITEMS[:300], domain=DOMAIN, plan=plan)


def test_a_plan_without_privacy_does_not_get_any() -> None:
    plan = fedtally.estimate(ITEMS, domain=DOMAIN, rows=5, width=64).plan
    for epsilon in (1.0, 0):
        with pytest.raises(InvalidInputError, match="is not for a plan without privacy"):
            fedtally.estimate(ITEMS, domain=DOMAIN, plan=plan, epsilon=epsilon)


def test_a_certificate_is_looked_up_again(tmp_path: Path) -> None:
    options: dict[str, Any] = {"neighbours": "replace-one", "rows": 5, "width": 8, "certify": True}
    # they collide in all five rows with probability 3e-6; of 5,000 items some do
    few = IntegerRange(1, 3)
    plan = estimate(domain=few, **options).plan
    assert fedtally.estimate(ITEMS, domain=few, plan=plan).plan.privacy == plan.privacy
    wider = replace(plan, domain=IntegerRange(1, 5000).describe())
    with pytest.raises(
        InvalidInputError, match="its noise is too little; make a new plan with certify"
    ):
        fedtally.estimate(ITEMS, domain=IntegerRange(1, 5000), plan=wider)
    with pytest.raises(InvalidInputError, match="collisions goes with central trust"):
        estimate(**options, trust="distributed")


def test_a_plan_of_random_rounds_fits_other_draws() -> None:
    plan = estimate(num_rounds=7).plan
    assert plan.num_clients == 700 and plan.max_round_clients >= 160
    for _ in range(20):
        assert fedtally.estimate(ITEMS, domain=DOMAIN, plan=plan, confidence=0).num_clients == 700


@pytest.mark.parametrize(
    "changed", [{"total_variation": 0.0}, {"variance": 1e-3}, {"variance": 1e12}]
)
def test_noise_that_cannot_be_drawn_is_refused_before_anything_is_spent(
    changed: dict[str, float],
) -> None:
    plan = estimate().plan
    assert plan.privacy is not None
    with pytest.raises(
        InvalidInputError, match=r"total_variation must be at least|variance of the noise must be"
    ):
        replace(
            plan,
            privacy=replace(
                plan.privacy, epsilon=100.0, event=replace(plan.privacy.event, **changed)
            ),
        )


def test_a_clip_lets_one_item_through() -> None:
    plan = estimate().plan
    assert plan.privacy is not None
    with pytest.raises(
        InvalidInputError, match="clip_norm must be at least the root of the rows, 2.23607"
    ):
        replace(
            plan, privacy=replace(plan.privacy, event=replace(plan.privacy.event, clip_norm=2.0))
        )


def test_two_servers_take_one_report_of_a_client() -> None:
    clients, rounds = [f"c{i}" for i in range(100) for _ in range(2)], ["a", "b"] * 100
    options: dict[str, Any] = {"clients": clients, "rounds": rounds, "secure_sum": "two-server"}
    with pytest.raises(
        InvalidInputError, match="use max_rounds=1, or the schedule hybrid or fresh"
    ):
        estimate([1] * 200, schedule="shared", **options)
    assert estimate([1] * 200, schedule="shared", max_rounds=1, **options).num_clients == 100
    both = estimate([1] * 200, schedule="hybrid", **options)
    assert (both.num_clients, both.num_contributions) == (100, 200)


# ---- what may not be told ----


@pytest.mark.parametrize("odd", ["abc", "", "7.5", "9" * 40, "1e3"])
def test_what_cannot_be_read_is_no_candidate(odd: str) -> None:
    items = [str(item) for item in ITEMS[:99]]
    assert estimate([*items, odd]).num_clients == estimate([*items, "1"]).num_clients == 100
    client = FrequencyClient(estimate(max_items=1).plan, DOMAIN, [odd])
    assert not client.contribution(0, bytes).any()
    grid = fedtally.estimate(["40.5,-70", odd] * 20, domain="grid:40..41,-71..-70,0.5", epsilon=1.0)
    assert grid.num_clients == 40


def test_missing_items_make_no_error() -> None:
    assert estimate([None, None, 5]).num_clients == estimate([None] * 3).num_clients == 3
    assert estimate(np.array([1.0, np.nan, 3.0])).num_clients == 3
    plan = estimate([1, 2, 3, 4], clients=["a", "a", "b", "b"], max_items=2).plan
    odd: list[Any] = [
        [None],
        [7.5],
        ["x"],
        [b"y"],
        [10**5000],
        np.array(["2020"], "datetime64[Y]"),
        [float("nan")],
    ]
    for held in odd:
        assert not FrequencyClient(plan, DOMAIN, held).contribution(0, bytes).any()
    seven = FrequencyClient(plan, DOMAIN, [7]).contribution(0, bytes)
    for held in ([None, 7], [7.0], np.array([7.0, np.nan]), ["a", 7], [7, 7], (7,)):
        assert np.array_equal(FrequencyClient(plan, DOMAIN, held).contribution(0, bytes), seven)
    for wrong in (7, None, {7}, "7", iter([7])):
        with pytest.raises(InvalidInputError, match="items must be a list, an array or a series"):
            FrequencyClient(plan, DOMAIN, wrong)
    grid = fedtally.estimate(["40.5,-70"], domain="grid:40..41,-71..-70,0.5", epsilon=1.0)
    client = FrequencyClient(grid.plan, grid.domain, np.array([[40.5, -70.5], [0.0, 0.0]]))
    assert np.abs(client.contribution(0, bytes)).sum() == 1  # in a histogram of four cells
    assert DOMAIN.inside(pa.array(["7", None, "x"])).tolist() == [True, False, False]


def test_a_ledger_keeps_numbers_that_can_be_read(books: Path) -> None:
    for _ in range(3):
        result = estimate(
            [1] * 20,
            neighbours="add-remove",
            max_clients=90,
            num_rounds=5,
            epsilon=0.05,
            ledger=books,
            population="phones",
            schedule="fresh",
        )
        for sketch in result.sketches:
            kept = CountSketch.from_bytes(
                Ledger.open(books).sketch(result.plan.fingerprint, sketch.round)
            )
            assert kept.num_clients == sketch.num_clients > 0


@pytest.mark.promise
@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_add_remove_tells_no_number(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by an error either: with noise the number of clients may well be 0, which is all that can
    be said."""
    with suppress(InvalidInputError):
        result = estimate(
            [1] * count, neighbours="add-remove", max_clients=10, num_rounds=3, rows=3, width=8
        )
        _ = result.decoder, result.intervals  # this may raise, for 0 clients
        assert result.plan.max_round_clients == 10
    monkeypatch.setattr(Result, "__init__", lambda *_, **__: None)
    # no error before
    estimate([1] * count, neighbours="add-remove", max_clients=10, num_rounds=3, rows=3, width=8)


def test_add_remove_favours_no_number() -> None:
    """Many releases of few clients: the mean of 40 estimates is within five standard errors of what
    is true."""
    found = [
        estimate(
            [1] * 300 + [2] * 300,
            neighbours="add-remove",
            max_clients=1000,
            num_rounds=30,
            schedule="fresh",
            rows=3,
        )
        for _ in range(40)
    ]
    clients = np.array([result.num_clients for result in found])
    stddev = found[0].plan.privacy.stddev * 30**0.5  # type: ignore[union-attr]
    assert abs(clients.mean() - 600) < 5 * stddev / 40**0.5
    assert all(len(result.sketches) == 30 for result in found)


def test_add_remove_through_a_plan_tells_no_number() -> None:
    plan = estimate(neighbours="add-remove", max_clients=1000).plan
    assert fedtally.estimate(ITEMS * 2, domain=DOMAIN, plan=plan).plan.max_round_clients == 1000
    with pytest.raises(InvalidInputError, match="which rounds had anybody"):
        fedtally.estimate(ITEMS, domain=DOMAIN, plan=plan, rounds=[1] * 700)
    secure = estimate(ITEMS[:60], secure_sum="secagg", trust="central").plan
    with pytest.raises(InvalidInputError, match="which the secure sum secagg shows"):
        replace(secure, privacy=replace(plan.privacy))


@pytest.mark.promise
def test_intervals_know_that_the_number_of_clients_has_noise() -> None:
    """Of an item that nine of ten clients hold, at 95 %: of 40 at least 30 hold, six standard
    errors below. Without the noise of the number about 20 hold: it is divided by, so it weighs as
    much as the share, and nine rows make the noise of the item small beside it."""
    held = 0
    for _ in range(40):
        result = estimate(
            [1] * 270 + [2] * 30, neighbours="add-remove", max_clients=1000, rows=9, width=400
        )
        [found] = result.estimates([1])
        assert found.low is not None and found.high is not None
        held += found.low <= 0.9 <= found.high
    assert held >= 30


def test_a_private_run_shows_no_times() -> None:
    """And no truth."""
    assert estimate().timings == {} and estimate(not_private=True).timings
    assert estimate().truth is None
    account = estimate(ITEMS[:60], secure_sum="secagg", epsilon=4.0).secure_sum
    assert account["client_seconds"] is None and account["server_seconds"] is None


def test_names_of_clients_do_not_collide_by_design() -> None:
    """Two names that a known key would confuse: here the key is drawn."""
    names = ["alice.jones_01", "5xesW.js.tcZ21"]
    assert estimate([1, 2] * 50, clients=[f"{n}" for n in names] * 50, max_items=2).num_clients == 2


# ---- the ledger ----


@pytest.fixture
def books(tmp_path: Path) -> Path:
    Ledger.open(tmp_path / "books.db", create=True).grant("phones", epsilon=2.0, delta=1e-6, time=0)
    return tmp_path / "books.db"


@pytest.mark.promise
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"trust": "distributed"},
        {"secure_sum": "secagg", "dropout": 0.1},
        {"secure_sum": "two-server"},
    ],
)
def test_what_lands_is_what_the_ledger_keeps(books: Path, options: dict[str, Any]) -> None:
    result = estimate(num_rounds=2, schedule="hybrid", ledger=books, population="phones", **options)
    ledger = Ledger.open(books)
    landed = ledger.landings(result.plan.fingerprint)
    assert [one.release for one in landed] == [0, 1]
    for one, sketch in zip(landed, result.sketches, strict=True):
        kept = CountSketch.from_bytes(ledger.sketch(one.plan, one.release))
        assert (
            np.array_equal(kept.counters, sketch.counters)
            and kept.num_clients == sketch.num_clients
        )
        assert (
            kept.noise == sketch.noise == (result.plan.privacy.noised_by, result.plan.fingerprint)
        )
    spent = ledger.spent("phones")
    assert spent is not None and 0.99 < spent.epsilon <= 1.0
    with pytest.raises(OverspentError, match="epsilon 2 was granted"):
        estimate(epsilon=1.9, ledger=books, population="phones")


def test_an_answer_says_that_its_grant_guarantees_little(books: Path) -> None:
    Ledger.open(books).grant("loose", epsilon=2.0, delta=1e-2, time=0)
    result = estimate(ledger=books, population="loose")
    [said] = [text for text in result.warnings if "the grant of population 'loose'" in text]
    assert f"its delta 0.01 is not below 1 / {len(ITEMS)} clients" in said
    result = estimate(ledger=books, population="phones")
    assert not [text for text in result.warnings if "the grant of" in text]


def test_a_plan_is_charged_once_whatever_the_keys(books: Path) -> None:
    plan = estimate(ITEMS[:60], secure_sum="secagg", population="phones").plan
    fedtally.estimate(ITEMS[:60], domain=DOMAIN, plan=plan, ledger=books)
    assert Ledger.open(books).reserved(plan.fingerprint) == [0]
    with pytest.raises(AlreadySpentError, match="or with a new plan"):
        fedtally.estimate(ITEMS[:60], domain=DOMAIN, plan=plan, ledger=books)


@pytest.mark.promise
def test_a_plan_and_each_of_its_publications_are_charged_by_themselves(books: Path) -> None:
    sized = estimate(
        ITEMS[:60], secure_sum="secagg", population="phones", epsilon=0.5
    ).plan.without_keys()
    keys = [SigningKey(Secret(bytes([i]) * 32)).public for i in range(2)]
    plans = [sized, *(sized.with_keys(server_key=key) for key in keys)]
    spent = []
    for plan in plans:
        fedtally.estimate(ITEMS[:60], domain=DOMAIN, plan=plan, ledger=books)
        total = Ledger.open(books).spent("phones")
        assert total is not None
        spent.append(total.epsilon)
        with pytest.raises(AlreadySpentError):
            fedtally.estimate(ITEMS[:60], domain=DOMAIN, plan=plan, ledger=books)
    assert [Ledger.open(books).reserved(plan.fingerprint) for plan in plans] == [[0]] * 3
    assert spent[0] < spent[1] < spent[2]


def test_the_cohorts_of_a_round_share_its_reservation(books: Path) -> None:
    result = estimate(
        ITEMS[:120], secure_sum="secagg", max_cohort=40, ledger=books, population="phones"
    )
    assert result.secure_sum["cohorts"] == 3
    ledger = Ledger.open(books)
    assert ledger.reserved(result.plan.fingerprint) == [0]
    assert [one.release for one in ledger.landings(result.plan.fingerprint)] == [0]


def test_a_round_that_aborts_before_it_can_be_opened_costs_nothing(books: Path) -> None:
    plan = estimate(ITEMS[:60], secure_sum="secagg", population="phones").plan
    with pytest.raises(cohorts.AbortedRoundError):
        fedtally.estimate(ITEMS[:60], domain=DOMAIN, plan=plan, ledger=books, dropout=0.6)
    assert Ledger.open(books).spent("phones") is None


def test_a_crash_after_the_reservation_counts_as_spent(
    books: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = estimate(population="phones").plan

    def crash(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LedgerBooks, "release", crash)
    with pytest.raises(KeyboardInterrupt):
        fedtally.estimate(ITEMS, domain=DOMAIN, plan=plan, ledger=books)
    monkeypatch.undo()
    spent = Ledger.open(books).spent("phones")
    assert spent is not None and spent.epsilon > 0.99
    with pytest.raises(AlreadySpentError, match="release 0 of plan"):
        fedtally.estimate(ITEMS, domain=DOMAIN, plan=plan, ledger=books)


@pytest.mark.promise
@pytest.mark.parametrize(
    "options",
    [{}, {"trust": "distributed"}, {"secure_sum": "secagg"}, {"secure_sum": "two-server"}],
)
def test_it_is_reserved_before_noise_is_drawn_or_a_sum_opened(
    books: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the reservation fails, no noise was drawn and no session was opened."""
    from fedtally.privacy.mechanism import Noise

    def refused(*_: Any) -> None:
        raise OverspentError("nothing is left")

    def opened(*_: Any, **__: Any) -> None:
        raise AssertionError("too early")

    monkeypatch.setattr(LedgerBooks, "reserve", refused)
    # clients have drawn their shares by then, and sent masked vectors
    if options.get("secure_sum") == "secagg":
        monkeypatch.setattr("fedtally.secagg.client.Client._unmask", opened)
    else:
        monkeypatch.setattr(Noise, "draw", opened)
    monkeypatch.setattr(FrequencyServer, "land", opened)
    monkeypatch.setattr("fedtally.secagg.two_server.facts.BatchFacts.record", opened)
    with pytest.raises(OverspentError, match="nothing is left"):
        estimate(ledger=books, population="phones", **options)


def test_a_study_is_not_charged(books: Path) -> None:
    plan = estimate(not_private=True, population="phones").plan
    with pytest.raises(InvalidInputError, match="nothing of such a run is charged"):
        fedtally.estimate(ITEMS, domain=DOMAIN, plan=plan, ledger=books)


def test_nothing_is_read_where_nothing_was_granted(books: Path) -> None:
    with pytest.raises(
        InvalidInputError, match="grants nothing to population 'tablets': fedtally ledger grant"
    ):
        estimate(ledger=books, population="tablets")


def test_a_dictionary_is_public() -> None:
    result = estimate(["tea", "milk", "gin"] * 100, domain=Dictionary(["tea", "milk", "water"]))
    assert result.num_clients == 300
    assert {e.item for e in result.top(2)} == {"tea", "milk"}
