"""What an answer says of the items that somebody surely holds, the same in all its forms."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pytest

import fedtally
from fedtally.answer import answer as answers
from fedtally.answer import documents, merged_page, screen
from fedtally.answer.answer import Answer
from fedtally.answer.estimates import Estimate, is_told_from_zero
from fedtally.answer.noise_floor import doubted, standing
from fedtally.answer.result import Result
from fedtally.cli.app import run

HELD = 1000  # the candidates that somebody may hold; as many more are nobody's
DOMAIN = f"range:0..{2 * HELD - 1}"


def _noised(seed: int) -> Result:
    held = np.random.default_rng(seed).integers(0, HELD, 500).tolist()
    return fedtally.estimate(held, domain=DOMAIN, epsilon=0.1, not_private=True, seed=seed)


def _by_median(seed: int) -> Result:
    held = np.minimum(np.random.default_rng(seed).zipf(1.3, 2000) - 1, HELD - 1).tolist()
    asked: dict[str, Any] = {"domain": DOMAIN, "rows": 5, "width": 200, "encoding": "sketch"}
    return fedtally.estimate(held, **asked, recovery="median", seed=seed)


def _names_nobodys(listed: list[Estimate]) -> bool:
    return any(int(one.item) >= HELD and is_told_from_zero(one) for one in listed)


@pytest.mark.parametrize(("make", "named"), [(_noised, 0), (_by_median, 3)])
def test_a_list_of_merged_results_names_no_item_that_nobody_holds(make: Any, named: int) -> None:
    """Limits that all hold at once fail in at most 5 % of lists, and those of a list in more.

    Of 60 lists 9 or more fail with a probability of 0.3 %.
    """
    wrong = by_list = told = 0
    for seed in range(60):
        merged = Answer([make(2 * seed), make(2 * seed + 1)])
        top = merged.top(40)
        sure = doubted(merged, top)
        by_list += _names_nobodys(top)
        wrong += _names_nobodys(sure)
        told += sum(is_told_from_zero(one) for one in sure)
    assert by_list >= 9 > wrong
    assert told >= 60 * named


def test_what_an_estimate_had_to_reach_is_known_for_one_result_alone() -> None:
    """Several results choose a list by their sum: no limits of theirs rest on a threshold."""
    held = np.minimum(np.random.default_rng(0).zipf(1.3, 900) - 1, HELD - 1)
    asked: dict[str, Any] = {"domain": DOMAIN, "epsilon": 1.0, "not_private": True}
    parts = [fedtally.estimate(held, **asked, seed=seed) for seed in (0, 1)]
    for answer, is_known in ((Answer(parts), False), (parts[0], True)):
        top = answer.top(40)
        ids = [part.domain.encode([each.item for each in top]) for part in answer.parts]
        pooled = answer.pooled_limits()
        assert pooled is not None
        lows = np.clip(pooled.listed(ids, None).low, 0.0, 1.0).tolist()
        assert ([each.low for each in top] == lows) != is_known


@pytest.mark.parametrize("recovery", ["joint", "mixed"])
def test_merged_limits_of_all_candidates_hold_at_once(recovery: str) -> None:
    """They fail in at most 5 % of answers: 4 or more of 12 have a probability of 0.2 %."""
    wrong = 0
    for seed in range(12):
        draw = np.random.default_rng(seed)
        held = [np.minimum(draw.zipf(1.3, 900) - 1, 299) for _ in range(2)]
        asked: dict[str, Any] = {"domain": "range:0..299", "rows": 5, "width": 60}
        how = ("median", "joint") if recovery == "mixed" else (recovery, recovery)
        merged = Answer(
            [
                fedtally.estimate(one, **asked, encoding="sketch", recovery=by, seed=2 * seed + k)
                for k, (one, by) in enumerate(zip(held, how, strict=True))
            ]
        )
        truth = np.bincount(np.concatenate(held), minlength=300) / 1800
        limits = merged.limits(kind="simultaneous")
        assert limits is not None
        wrong += bool(((truth < limits.low) | (truth > limits.high)).any())
    assert wrong < 4
    named, [one] = merged.limits(), merged.estimates([5])
    assert named is not None
    assert (named.low[5], named.high[5]) == pytest.approx((one.low, one.high))
    assert merged.frequencies()[5] == pytest.approx(one.frequency)


def test_all_forms_of_an_answer_doubt_the_same_items() -> None:
    """A list whose own limits exclude 0 for an item that nobody holds; one and several results."""
    parts = [_noised(seed) for seed in (18, 19, 13)]
    for answer in (parts[2], Answer(parts[:2])):
        top = answer.top(40)
        sure = doubted(answer, top)
        assert _names_nobodys(top) and not any(map(is_told_from_zero, sure))
        found = standing(answer)
        assert found is not None and len(found.above) == 0
        paths = ["a.fed", "b.fed"]
        if not isinstance(answer, Result):
            shown = screen.plain(merged_page.merged_answer(answer, paths, top, []))
            told = documents.of_merged(answer, paths, top, [])
        else:
            shown = screen.plain(screen.answer(answer, top))
            told = documents.of_result(answer, top)
        assert "none of these can be told from 0" in shown and "█" not in shown
        assert {one["above_noise"] for one in told["estimates"]} == {False}
        assert any(one["low"] > 0 for one in told["estimates"])  # the list's own limit
        assert told["error"] is None


def test_the_table_of_an_answer_says_which_items_stand_above_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the row's own limits, which hold for one item named beforehand, exclude 0."""
    parts = [_noised(seed) for seed in (18, 19, 13)]
    sure = fedtally.estimate(["tea"] * 900, domain=["tea", "milk"], seed=1)
    for answer in (parts[2], Answer(parts[:2]), _by_median(0), sure):
        table = answer.to_arrow()
        above = table["above_noise"].to_pylist()
        assert above == answer.above_noise(answer.estimates(table["item"].to_pylist()))
        answer.export(tmp_path / "all.csv")
        assert pyarrow.csv.read_csv(tmp_path / "all.csv")["above_noise"].to_pylist() == above
        lucky = sum(low > 0 for low in table["low"].to_pylist())
        assert sum(above) == lucky == 1 if answer is sure else sum(above) < lucky
    at_once = parts[2].decoded(intervals="simultaneous").to_arrow()
    assert [low > 0 for low in at_once["low"].to_pylist()] == at_once["above_noise"].to_pylist()
    monkeypatch.setattr(
        answers, "MOST_AGAIN", 2 * HELD - 1
    )  # more candidates are not decoded again
    assert set(parts[2].to_arrow()["above_noise"].to_pylist()) == {None}


@pytest.mark.extras
def test_pages_and_charts_doubt_the_same_items(tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    parts = [_noised(seed) for seed in (18, 19, 13)]
    assert _names_nobodys(parts[2].top(40))
    bars = parts[2].plot(k=40).axes[0].containers[0]
    assert {bar.get_width() for bar in bars} == {0.0}
    merged, path = Answer(parts[:2]), tmp_path / "page.html"
    merged_page.write_merged_page(merged, ["a", "b"], merged.top(40), command="", path=path)
    text = html.unescape(re.sub("<[^>]*>", " ", path.read_text("utf-8")))
    assert "No item surely stands above noise among these 1,000 clients." in text
    assert "40 of these 40 cannot be told from 0 (in grey)" in text
    sketches = Answer([_by_median(seed) for seed in (0, 1)])
    found = standing(sketches)
    assert found is not None and len(found.above) and (found.above < HELD).all()
    assert found.shares.tolist() == sorted(found.shares.tolist(), reverse=True)


def test_limits_that_are_both_clipped_to_1_are_no_exact_count() -> None:
    """With few clients and much noise, an estimate may be far above 1 and still be noise."""
    clipped = 0
    for seed in range(40):
        asked: dict[str, Any] = {"domain": "range:0..999", "epsilon": 0.1, "not_private": True}
        result = fedtally.estimate(list(range(5)), **asked, seed=seed)
        top = result.top(5)
        above = result.above_noise(top)
        assert above is not None
        assert [is_told_from_zero(one) for one in doubted(result, top)] == above
        pairs = zip(top, above, strict=True)
        clipped += sum(one.low == one.high == 1 and not is_above for one, is_above in pairs)
    assert clipped


def test_an_answer_without_limits_or_without_candidates_says_nothing_of_noise() -> None:
    bare = [
        fedtally.estimate(["tea"] * 9, domain=["tea", "milk"], confidence=0, seed=seed)
        for seed in (1, 2)
    ]
    words = fedtally.estimate(
        ["tea"] * 90, domain="open", max_bytes=2000, allow_rare_names=True, seed=1
    )
    for answer in (bare[0], Answer(bare), words):
        top = answer.top(2)
        assert answer.above_noise(top) is None and standing(answer) is None
        assert doubted(answer, top) == top
        assert set(answer.to_arrow()["above_noise"].to_pylist()) == {None}
    assert Answer(bare).limits() is None
    exact = fedtally.estimate(["tea"] * 9, domain=["tea", "milk"], seed=1)
    both = Answer([exact, fedtally.estimate(["tea"] * 9, domain=["tea", "milk"], seed=2)])
    for counts in (exact, both):
        assert counts.is_exact
        assert counts.above_noise(counts.estimates(["tea", "milk"])) == [True, False]
        assert doubted(counts, counts.top(2)) == counts.top(2)


def test_a_document_says_which_items_stand_above_noise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("drinks.txt").write_text("tea\nmilk\n")
    for name in ("a", "b"):
        Path(f"{name}.txt").write_text("tea\n" * 900 + "milk\n")
        asked = ["--domain", "drinks.txt", "--epsilon", "2", "--save", f"{name}.fed", "--quiet"]
        assert run(["estimate", f"{name}.txt", *asked]) == 0
    capsys.readouterr()
    for command in (["estimate", "a.txt", "--domain", "drinks.txt"], ["merge", "a.fed", "b.fed"]):
        assert run([*command, "--json"]) == 0
        listed = json.loads(capsys.readouterr().out)["estimates"]
        assert [one["above_noise"] for one in listed if one["item"] == "tea"] == [True]
