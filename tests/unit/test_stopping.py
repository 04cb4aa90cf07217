"""A campaign that ends as soon as its largest error is known."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedtally
from fedtally.answer import documents, provenance
from fedtally.answer.answer import Answer
from fedtally.answer.screen import answer, plain
from fedtally.answer.sections import counted
from fedtally.campaign import ending
from fedtally.campaign.ending import is_known
from fedtally.cli import verdict as validation_view
from fedtally.errors import InvalidInputError
from fedtally.plan import Plan, Target
from fedtally.plan.design import Design
from fedtally.plan.stopping import LEAST_ROUNDS
from fedtally.privacy.config import propose
from fedtally.recovery import known_error as module
from fedtally.recovery.decoders.median.median import MedianDecoder
from fedtally.recovery.known_error import LEAST_KNOWN, known_error
from fedtally.sketch import CountSketch
from fedtally.sources import from_items
from fedtally.studies import validation
from fedtally.studies.validation import Trial

D, ROUNDS = 2000, 12
DOMAIN = {"kind": "range", "size": D, "public": True, "first": 1, "last": D}
HISTOGRAM = {"encoding": "histogram", "rows": 1, "width": D, "schedule": "shared"}
RULE = Target(0.004, 0.1, "joint", until_known=1)
GOES_ON = replace(RULE, until_known=None)


def plan_of(**changed: Any) -> Plan:
    made = Plan(9, 60, "hybrid", ROUNDS, 20_000, 2500, DOMAIN, 1, bytes(32), target=RULE)
    return replace(made, **changed)


def answered(plan: Plan, law: float = 1.0, seed: int = 1) -> fedtally.Result:
    shares = np.arange(1, D + 1.0) ** -law
    items = np.random.default_rng(seed).choice(D, 20_000, p=shares / shares.sum()) + 1
    return fedtally.estimate(items, domain=f"range:1..{D}", plan=plan, evaluate=True)


def test_a_campaign_ends_with_the_first_round_after_which_its_error_is_known() -> None:
    plan = plan_of()
    found, rule = answered(plan), plan.stopping
    assert rule is not None and LEAST_ROUNDS <= len(found.sketches) < ROUNDS
    known = [is_known(plan, found.domain, found.sketches[:m]) for m in range(1, ROUNDS)]
    assert known.index(True) + 1 == len(found.sketches)  # not a round sooner, nor later
    # nobody else was asked: the sums, the truth and the answer are of these rounds
    assert found.num_clients == sum(sketch.num_clients for sketch in found.sketches) < 20_000
    assert found.evaluation is not None and found.evaluation.linf <= RULE.linf
    [note] = [text for text in found.warnings if "the campaign ended after" in text]
    ended = f"after {len(found.sketches)} rounds of {ROUNDS}"
    # whoever decodes the sums otherwise is told nothing of that decoder's errors
    assert f"{ended}: the largest error of joint recovery is above 0.4 points" in note
    assert note.isascii()  # no mark of an option is left in it
    # it is the same answer as that of a plan that goes on, cut off there
    whole = answered(replace(plan, target=GOES_ON))
    assert len(whole.sketches) == ROUNDS
    for one, other in zip(found.sketches, whole.sketches, strict=False):
        assert (one.vector == other.vector).all()
    assert not any("the campaign ended" in text for text in whole.warnings)


def test_an_error_that_is_not_known_ends_nothing() -> None:
    hard = plan_of(target=replace(RULE, linf=1e-6))
    found = answered(hard, law=0.2)
    assert len(found.sketches) == ROUNDS
    assert not any("the campaign ended" in text for text in found.warnings)


def test_an_answer_says_in_each_form_how_its_campaign_ended(tmp_path: Path) -> None:
    plan = plan_of()
    found = answered(plan)
    rounds = len(found.sketches)
    assert found.ended == {"rounds": rounds, "num_rounds": ROUNDS, "by": "rule"}
    assert documents.of_result(found, found.top(1))["ended"] == found.ended
    details = plain(answer(found, found.top(1), details=True))
    assert f"Rounds {rounds} of {ROUNDS}: the error was known" in " ".join(details.split())
    assert f" in {rounds} rounds, one item each" in " ".join(details.split())
    found.save(tmp_path / "early.fed")
    loaded = fedtally.Result.load(tmp_path / "early.fed")
    assert loaded.ended == found.ended and loaded.warnings == found.warnings
    assert counted.ends(plan).endswith("at most 0.4 points, after 2 rounds at least")
    assert counted.ends(plan.until_known(9000)).endswith(
        "after 2 rounds and 9,000 clients at least"
    )

    whole = answered(plan_of(target=GOES_ON))
    assert whole.ended is None and counted.ends(whole.plan) == ""
    assert "\nRounds" not in plain(answer(whole, whole.top(1), details=True))


def test_an_operators_end_is_none_by_the_rule() -> None:
    plan = plan_of(target=None)
    sketches = answered(plan).sketches
    domain = fedtally.IntegerRange(1, D)
    for rounds, said in ((1, "one round of 12"), (3, "3 rounds of 12")):
        told = ending.ended(plan, rounds, "operator")
        found = fedtally.Result(plan, domain, sketches[:rounds], ended=told)
        [note] = [text for text in found.warnings if "ended" in text]
        assert note.startswith(f"an operator ended the campaign after {said}")
    assert ending.ended(plan, ROUNDS, "operator") is None


@pytest.mark.parametrize(
    ("said", "refused"),
    [
        ({"by": "nobody"}, "ended.by must be operator or rule, got 'nobody'"),
        ({"rounds": ROUNDS}, "ended must be before the last of the plan's 12 rounds, got 12 of 12"),
        ({"rounds": 0}, "got 0 of 12"),
        ({"num_rounds": 20}, "got 3 of 20"),
        ({"by": None}, "ended.by must be text"),
    ],
)
def test_a_file_tells_no_end_that_its_plan_has_not(said: dict[str, Any], refused: str) -> None:
    told = {"rounds": 3, "num_rounds": ROUNDS, "by": "rule"}
    assert provenance.ended(told, plan_of()) == told
    with pytest.raises(InvalidInputError, match=re.escape(refused)):
        provenance.ended(told | said, plan_of())
    with pytest.raises(InvalidInputError, match="ended.by must be operator, got 'rule'"):
        provenance.ended(told, plan_of(target=GOES_ON))


def test_few_rounds_and_few_clients_end_nothing() -> None:
    found = answered(plan_of())
    sketches, domain = found.sketches, found.domain
    easy = plan_of(target=replace(RULE, linf=0.9))
    assert is_known(easy, domain, sketches) and not is_known(easy, domain, sketches[:1])
    clients = sum(sketch.num_clients for sketch in sketches)
    assert is_known(easy.until_known(clients), domain, sketches)
    assert not is_known(easy.until_known(clients + 1), domain, sketches)
    more = answered(plan_of(target=replace(RULE, until_known=15_000)))
    assert sum(sketch.num_clients for sketch in more.sketches) >= 15_000
    assert sum(sketch.num_clients for sketch in more.sketches[:-1]) < 15_000


def test_the_rounds_of_a_batch_end_nothing_alone() -> None:
    """They have the same signs: to the fit they are one round of more clients."""
    easy = plan_of(target=replace(RULE, linf=0.9), schedule="batched:3")
    found = answered(plan_of(target=GOES_ON, schedule="batched:3"))
    known = [is_known(easy, found.domain, found.sketches[:m]) for m in (3, 4, 5)]
    assert known == [False, False, True]  # the batches are of four rounds each
    two = answered(easy)
    assert len(two.sketches) == 5


def test_merged_answers_tell_each_end_once() -> None:
    """The notes on two ends differ in the number of rounds, and say the same."""
    parts = [answered(plan_of(seed=bytes([n]) * 32), law) for n, law in ((1, 1.0), (2, 0.5))]
    whole = answered(plan_of(seed=bytes([3]) * 32, target=GOES_ON))
    first, second = (len(part.sketches) for part in parts)
    assert first < second < ROUNDS
    merged = Answer([*parts, whole])
    [note] = [text for text in merged.warnings if "ended" in text]
    rounds = f"{first} rounds of {ROUNDS} and {second} rounds of {ROUNDS}"
    assert note.startswith(f"2 campaigns ended after {rounds}: the largest error")
    [one] = [text for text in Answer([parts[0], whole]).warnings if "ended" in text]
    assert one.startswith(f"1 campaign ended after {first} rounds")
    document = documents.of_merged(merged, ["a", "b", "c"], [], [])
    assert [each["ended"] for each in document["results"]] == [parts[0].ended, parts[1].ended, None]
    assert [sum("ended" in text for text in each["warnings"]) for each in document["results"]] == [
        1,
        1,
        0,
    ]


def test_the_median_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its predicted error is too hopeful."""
    found, easy = answered(plan_of()), plan_of(target=replace(RULE, linf=0.9))
    assert is_known(easy, found.domain, found.sketches)

    class GivenUp(module.JointDecoder):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.fallback = MedianDecoder(given[0], expected=D)

    monkeypatch.setattr(module, "JointDecoder", GivenUp)
    assert known_error(found.sketches, found.domain, 0.1) is None
    assert not is_known(easy, found.domain, found.sketches)


def test_an_error_of_a_few_clients_is_not_known() -> None:
    """Another fit than the truth may leave nothing as well: with 36 to 40 clients, 20,000
    candidates and 200 counters, 3 of 12 campaigns ended above their target.
    """
    plan, domain = plan_of(), fedtally.IntegerRange(1, D)
    sketches = [CountSketch(plan.spec, number) for number in range(2)]
    for sketch in sketches:
        sketch.add(np.repeat(np.arange(1, 5, dtype=np.uint64), 5))
    assert known_error(sketches, domain, 0.1) == LEAST_KNOWN / 40
    for linf, known in ((0.09, False), (0.1, True)):
        assert is_known(plan_of(target=replace(RULE, linf=linf)), domain, sketches) == known


def test_a_rarer_error_is_larger() -> None:
    found = answered(plan_of(target=None, width=20), law=0.8)
    errors = [
        known_error(found.sketches, found.domain, chance) for chance in (0.5, 0.1, 0.01, 0.001)
    ]
    assert errors == sorted(errors) and len(set(errors)) == 4  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"num_rounds": 2, "max_round_clients": 20_000}, "needs more than 2 rounds, got 2"),
        ({"rows": 1, "target": replace(RULE, recovery="median")}, "needs at least 3 rows, got 1"),
        ({"schedule": "shared"}, "with signs of their own, and the schedule shared has one;"),
        (
            {**HISTOGRAM, "target": replace(RULE, recovery="direct")},
            "is not for a histogram: each of its rounds is exact",
        ),
    ],
)
def test_a_plan_that_cannot_end_so_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        plan_of(**changed)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        # joint recovery's errors ended it after two rounds; those of the median were above the
        # target in 8 of 12 campaigns of three laws, in the sketch that is planned for the median
        (
            {"target": replace(RULE, recovery="median")},
            "needs recovery joint or belief, got median",
        ),
        (
            {"target": replace(RULE, until_known=20_000)},
            r"needs min_clients= below the plan's 20,000 clients, got 20,000",
        ),
    ],
)
def test_an_end_that_says_too_much_or_never_comes_is_refused(changed, said):
    with pytest.raises(InvalidInputError, match=said):
        plan_of(**changed)
    assert plan_of(target=replace(RULE, recovery="belief", until_known=19_999)).stopping


def test_a_trusted_aggregator_cannot_look() -> None:
    terms = propose(epsilon=8.0, delta=1e-6, rows=9, width=60)
    with pytest.raises(InvalidInputError, match="goes with noise that clients add"):
        plan_of(privacy=terms)


def test_a_plan_keeps_its_rule_in_its_file() -> None:
    plan = plan_of()
    assert Plan.from_dict(plan.to_dict()) == plan
    assert plan.to_dict()["target"]["until_known"] == 1
    without = plan_of(target=GOES_ON)
    assert "until_known" not in without.to_dict()["target"]
    assert without.until_known(7).target == replace(RULE, until_known=7)
    assert without.fingerprint != plan.fingerprint
    with pytest.raises(InvalidInputError, match=r"until_known= goes with tau="):
        plan_of(target=None).until_known()
    for wrong in (0, "many", 1.5):
        with pytest.raises(InvalidInputError, match=r"target\.until_known must be"):
            replace(RULE, until_known=wrong)


def test_estimate_ends_when_it_is_known() -> None:
    shares = np.arange(1, D + 1.0) ** -1.0
    items = np.random.default_rng(2).choice(D, 20_000, p=shares / shares.sum()) + 1
    more = {"domain": f"range:1..{D}", "tau": 0.01, "num_rounds": 10, "encoding": "sketch"}
    found = fedtally.estimate(items, **more, until_known=True, sizing="minimax", seed=3)
    assert found.plan.target is not None and found.plan.target.until_known == 1
    assert len(found.sketches) < 10
    with pytest.raises(InvalidInputError, match=r"until_known= goes with tau="):
        fedtally.estimate(items, num_rounds=10, until_known=True)
    with pytest.raises(InvalidInputError, match=r"min_clients= goes with until_known="):
        fedtally.estimate(items, **more, min_clients=5)


def test_a_study_of_a_plan_ends_its_campaigns_too() -> None:
    """Their errors are those of fewer rounds, so larger, and within the target all the same."""
    source = from_items(range(1, D + 1), counts=[int(2e4 / rank) for rank in range(1, D + 1)])
    plan = plan_of()
    trials = [Trial(each, repeats=4, seed=1) for each in (plan, plan_of(target=GOES_ON))]
    short, whole = (validation.run(source, trial).errors for trial in trials)
    assert (short > whole).all() and (short <= RULE.linf).all()
    # the error model is for all rounds, and would promise far too little error
    found = validation.run(source, trials[0])
    assert found.predicted(0.5) is None and found.predicted_failure is None
    assert found.rounds is not None and len(found.rounds) == 4 and max(found.rounds) < ROUNDS
    assert found.to_arrow()["rounds"].to_pylist() == found.rounds
    assert f"of {ROUNDS} on average" in plain(validation_view.view(found))
    assert validation_view.document(found)["rounds"] == found.rounds
    assert any("nothing is predicted: campaigns end early" in text for text in found.warnings)


@pytest.fixture
def unplanned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no plan be made: it would refuse the same in the same words."""

    def planned(*_: object, **__: object) -> None:
        pytest.fail("a plan is made")

    monkeypatch.setattr(Design, "fit", planned)
    monkeypatch.setattr(Plan, "__post_init__", planned)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"secure_sum": "ideal"},
        {"secure_sum": "secagg", "trust": "central"},
        {"trust": "distributed"},  # without a protocol its sums are exact until the end
        {"secure_sum": "ideal", "trust": "distributed"},
    ],
)
def test_noise_of_an_aggregator_is_refused_before_anything_is_planned(options, unplanned):
    """Both ways out are named."""
    asked = {"domain": "range:1..9", "tau": 0.1, "epsilon": 1, "num_rounds": 20, "population": "p"}
    ways = r".*give secure_sum='secagg' and trust='distributed', or leave until_known"
    refused = f"goes with noise that clients add: {ways}"
    with pytest.raises(InvalidInputError, match=refused):
        fedtally.estimate([1, 2, 3] * 100, until_known=True, **asked, **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"domain": "open"}, "is not for an open domain: its candidates are decoded after each"),
        ({"encoding": "histogram"}, "is not for a histogram: each of its rounds is exact"),
        ({"secure_sum": "two-server"}, "is not for the secure sum two-server: two servers close"),
    ],
)
def test_what_no_plan_can_do_is_refused_before_anything_is_planned(options, said, unplanned):
    asked = {"domain": "range:1..9", "tau": 0.1, "num_rounds": 20} | options
    with pytest.raises(InvalidInputError, match=f"until_known= {said}.*leave until_known= out"):
        fedtally.estimate([1, 2, 3] * 100, until_known=True, **asked)
