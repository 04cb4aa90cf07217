"""The local engine where rows name silos: what is counted, bounded and refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedtally
from fedtally.answer import page, screen, sections
from fedtally.answer.answer import Answer
from fedtally.campaign.client import FrequencyClient
from fedtally.errors import InvalidInputError
from fedtally.plan import Plan
from fedtally.recovery.intervals import sampling_error
from fedtally.simulation.census import read
from fedtally.simulation.round_tally import (
    Members,
    RoundTally,
    attendance,
    bound_silos,
    tally_members,
    tally_silos,
)
from fedtally.simulation.simulation import Simulation
from fedtally.sources import Columns, from_items, open_source

SITES = ["Berne", "Chur", "Basle", "Thun", "Visp", "Zug"]
SIZES = [40, 3, 17, 1, 25, 8]
SMALL: dict[str, Any] = {"rows": 3, "width": 32, "domain": "range:1..50"}
PRIVATE: dict[str, Any] = {"epsilon": 8.0, "people": 40, **SMALL}


def table(items: int = 1) -> dict[str, list[Any]]:
    """Return items of 94 people in six unequal silos."""
    rng = np.random.default_rng(22)
    rows = [
        (int(rng.integers(1, 51)), f"{site}{person}", site)
        for site, size in zip(SITES, SIZES, strict=True)
        for person in range(size)
        for _ in range(items)
    ]
    return dict(zip(("items", "clients", "silos"), map(list, zip(*rows, strict=True)), strict=True))


def estimate(held: dict[str, Any], /, **asked: Any) -> fedtally.Result:
    return fedtally.estimate(held["items"], **{k: held[k] for k in held if k != "items"}, **asked)


def tallied(held: dict[str, Any], /, **asked: Any) -> list[RoundTally]:
    simulation = Simulation.of(of_silos=True, **asked)
    tally, _ = read(from_items(**held), simulation, bytes(32), lambda *_: None)
    return tally.finish(individuals=simulation.needs_clients)


@pytest.mark.parametrize("secure_sum", ["ideal", "secagg"])
def test_the_sums_are_those_of_the_silos(secure_sum: str) -> None:
    rows = table(3)
    asked = {"seed": 1, "max_items": 3, "secure_sum": secure_sum, "evaluate": True}
    result = estimate(rows, **asked, **SMALL)
    assert (result.num_clients, result.num_silos, result.unit) == (sum(SIZES), 6, "people")
    assert result.plan.people == 40 and result.plan.num_clients == 6
    plan, [sketch] = result.plan, result.sketches
    expected = np.zeros(plan.vector_length, np.int64)
    for site in SITES:
        own = [i for i, each in enumerate(rows["silos"]) if each == site]
        ids = np.array([rows["items"][i] for i in own], np.uint64)
        people = [rows["clients"][i] for i in own]
        expected += FrequencyClient.of_people(plan, ids, people).contribution(0)
    np.testing.assert_array_equal(np.append(sketch.counters, sketch.num_clients), expected)
    if secure_sum == "secagg":
        assert result.secure_sum["equals_plain_sum"] and result.secure_sum["survivors"] == 6
    assert "people=94" in repr(result)


@given(
    st.lists(
        st.tuples(st.integers(1, 50), st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=40
    ),
    st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_each_person_of_each_silo_is_counted_once(rows: Any, are_drawn: bool) -> None:
    columns = dict(zip(("items", "clients", "silos"), zip(*rows, strict=True), strict=True))
    people = {(person, silo) for _, person, silo in rows}
    asked = dict(SMALL, num_rounds=len({silo for _, silo in people}) if are_drawn else 1)
    tallies = tallied({k: list(v) for k, v in columns.items()}, **asked)
    assert sum(part.num_clients for part in tallies) == len(people)
    assert sum(int(part.counts.sum()) for part in tallies) == len(people)  # one item of each
    found = [silo.num_clients for part in tallies for silo in part.silos]
    silos = {silo for _, silo in people}
    assert sorted(found) == sorted(sum(s == silo for _, s in people) for silo in silos)


def test_notes_on_silos_speak_of_people() -> None:
    held = {"items": [1, 2, 3, 4], "clients": ["x", "x", "y", "z"], "silos": [0, 0, 0, 1]}
    [note] = [one for one in estimate(held, people=9).warnings if "drawn at random" in one]
    assert "33.3% of the people hold more than one item" in note
    assert "1 of 4 pairs of a person and an item" in note
    assert "client" not in note
    private = estimate(table(), epsilon=8.0, people=40, domain="range:1..50")
    assert private.plan.is_histogram
    assert private.intervals is not None
    assert "people in each count" in private.intervals.about


def test_under_privacy_a_person_counts_in_so_many_silos() -> None:
    rows = {"items": [7] * 30, "clients": ["x"] * 30, "silos": [*range(10)] * 3}
    assert sum(part.num_clients for part in tallied(rows, **SMALL)) == 10
    for most in (1, 3):
        asked = {**PRIVATE, "silos_per_person": most}
        seen = set()
        for _ in range(40):  # a draw of its own each time
            [part] = tallied(rows, **asked)
            assert (part.num_vectors, part.num_clients) == (10, most)
            seen.add(tuple(silo.num_clients for silo in part.silos))
        assert len(seen) > 5


def test_a_silo_has_at_most_its_people() -> None:
    rows = table()
    with pytest.raises(InvalidInputError, match="people must be at least 40, those of the largest"):
        estimate(rows, people=39, **SMALL)
    rounds = tallied(rows, **PRIVATE)
    [bounded] = bound_silos(rounds, 10, np.random.default_rng(1))
    assert [silo.num_clients for silo in bounded.silos] == [10, 10, 3, 1, 10, 8]  # Basle first
    assert [silo.silo for silo in bounded.silos] == [silo.silo for silo in rounds[0].silos]
    assert estimate(rows, **PRIVATE | {"people": 10}).num_silos == 6
    assert bounded.num_clients == int(bounded.counts.sum()) == 42
    # each person is as likely to stay: 10 of 40; 400 draws of each are 4.3 % off (one deviation)
    kept = np.zeros(51)
    for seed in range(400):
        [drawn] = bound_silos(rounds, 10, np.random.default_rng(seed))
        kept += np.bincount(
            drawn.silos[1].ids.astype(int), weights=drawn.silos[1].counts, minlength=51
        )
    held = np.bincount(rounds[0].silos[1].ids.astype(int), rounds[0].silos[1].counts, 51)
    there = held > 0
    assert np.abs(kept[there] / 400 / held[there] - 0.25).max() < 6 * 0.0217


def test_whoever_stays_in_a_silo_keeps_the_number_and_the_items() -> None:
    silo = tally_members(Members(np.array([5, 3, 6, 7], np.uint64), np.arange(5)))
    silo = silo._replace(silo=4, names=np.array([11, 12, 13, 14], np.uint64))
    rounds = bound_silos([tally_silos([silo])] * 2, 3, np.random.default_rng(1))
    held = dict(zip([11, 12, 13, 14], [5, 3, 6, 7], strict=True))
    for tally in rounds:
        [part] = tally.silos
        assert part.names is not None and part.members is not None
        assert [held[name] for name in part.names.tolist()] == part.members.ids.tolist()
    both = set(rounds[0].names.tolist()) & set(rounds[1].names.tolist())
    assert attendance(rounds) == [6 - 2 * len(both), len(both)]


@pytest.mark.parametrize("secure_sum", ["ideal", "secagg"])
def test_a_private_campaign_says_no_number_of_people(secure_sum: str) -> None:
    rows = table(3)
    fewer = {name: column[:-3] for name, column in rows.items()}  # without the last person
    seen = []
    for each in (rows, fewer):
        result = estimate(each, secure_sum=secure_sum, **PRIVATE)
        event = result.plan.privacy.event if result.plan.privacy else None
        assert event is not None and event.relation.hides_number and event.silos_per_person == 1
        assert abs(result.num_clients - sum(SIZES)) < 40
        assert result.attendance == [result.num_contributions]
        # whether the decoder finds anything in the noise is seen in the noised sums alone
        said = [
            each for each in result.warnings if not each.startswith("nothing stands out of the")
        ]
        seen.append((said, result.missing, result.secure_sum, result.timings))
        assert result.num_silos == 6
    assert seen[0] == seen[1]
    assert "a person counts in at most 1 silo, and a silo at most 40 people" in str(seen)


def test_natural_rounds_have_every_silo_under_privacy() -> None:
    rows = table()
    # in each of three months other people, and none of some silos
    numbers = [
        person.removeprefix(site)
        for person, site in zip(rows["clients"], rows["silos"], strict=True)
    ]
    rows["rounds"] = [f"{int(number) % 3}" for number in numbers]
    open_rounds = tallied(rows, **SMALL)
    assert [part.num_vectors for part in open_rounds] == [6, 5, 5]
    result = estimate(rows, secure_sum="secagg", **PRIVATE)
    assert [sketch.num_silos for sketch in result.sketches] == [6, 6, 6]
    assert result.plan.privacy is not None
    assert result.plan.privacy.event.participations == 3
    assert str(result.plan.schedule) == "shared"
    exact = estimate(rows, seed=1, **SMALL)
    assert (exact.num_clients, exact.num_contributions) == (sum(SIZES), sum(SIZES))


@pytest.mark.parametrize("secure_sum", ["ideal", "secagg"])
def test_a_silo_of_several_rounds_is_one_silo(secure_sum: str, tmp_path: Path) -> None:
    rows = table()
    first = rows | {"rounds": ["1"] * len(rows["items"])}
    # in the second month all silos but the last have the same people again
    again = [i for i, site in enumerate(rows["silos"]) if site != "Zug"]
    second = {name: [column[i] for i in again] for name, column in rows.items()}
    held = {name: first[name] + second.get(name, ["2"] * len(again)) for name in first}
    number, twice = len(held["items"]), 2 * sum(SIZES) - SIZES[-1]
    assert number == twice
    exact = estimate(held, seed=1, secure_sum=secure_sum, **SMALL)
    assert [sketch.num_silos for sketch in exact.sketches] == [6, 5]
    assert (exact.num_silos, exact.num_clients, exact.num_contributions) == (6, sum(SIZES), twice)
    assert exact.decoded(recovery="median").num_silos == 6
    for wrong, bound in ((0, "at least 1"), (12, ".* 11")):
        with pytest.raises(InvalidInputError, match=f"num_silos must be {bound}"):
            fedtally.Result(exact.plan, exact.domain, exact.sketches, num_silos=wrong)
    with pytest.raises(InvalidInputError, match="the item of one person drawn at random"):
        estimate(table(), **PRIVATE, delta=0.1)
    exact.save(tmp_path / "exact.fedtally")
    assert fedtally.Result.load(tmp_path / "exact.fedtally").num_silos == 6
    said = shown(exact)
    assert f"among {twice} contributions of {sum(SIZES)} people in 6 silos" in said
    assert "each counted 1.91 times on average" in said
    # how many people came again is private
    private = estimate(held, secure_sum=secure_sum, **PRIVATE)
    assert (private.num_silos, private.unit, private.attendance) == (
        6,
        "contributions",
        [private.num_contributions],
    )
    said = shown(private)
    assert f"{private.num_contributions} contributions of people in 6 silos" in said
    assert "of how many people is private" in said
    # at worst everybody is there twice: half as many people are the sample
    assert private.top(1)[0].sampling_error == pytest.approx(
        float(
            sampling_error(
                np.array([private.top(1)[0].frequency]),
                private.num_contributions // 2,
                private.confidence,
            )[0]
        )
    )
    # the noise on that number is of all silos in all sums
    terms = private.plan.privacy
    assert terms is not None and private.intervals is not None
    if terms.by_clients:
        relative = 100 * terms.largest_stddev(12) / private.num_contributions
        assert f"how many took part, {relative:.2g} %" in private.intervals.about


def test_a_person_of_several_silos_counts_in_each() -> None:
    rows = table()
    twice = {name: [*column, *column] for name, column in rows.items()}
    twice["silos"] = [*rows["silos"], *["Lucerne"] * len(rows["items"])]
    exact = estimate(twice, seed=1, **SMALL)
    assert (exact.num_silos, exact.num_clients, exact.unit) == (7, sum(SIZES), "contributions")
    asked = PRIVATE | {"people": 94, "silos_per_person": 2}
    assert estimate(twice, **asked).unit == "contributions"
    assert estimate(twice, **PRIVATE | {"people": 94}).unit == "people"


def shown(result: fedtally.Result) -> str:
    """Return what the terminal shows, details included, as one line."""
    said = screen.plain(screen.answer(result, result.top(3), result.estimates([1]), details=True))
    return " ".join(said.split())


@pytest.mark.parametrize(
    ("secure_sum", "asked"),
    [("ideal", {}), ("secagg", {"months": 2}), ("secagg", {"epsilon": 8.0, "people": 40})],
)
def test_an_answer_speaks_of_people_and_silos(
    secure_sum: str, asked: dict[str, Any], tmp_path: Path
) -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    rows, asked = table(), dict(asked)
    if months := asked.pop("months", 0):
        rows["rounds"] = [f"{i % months}" for i in range(sum(SIZES))]
    result = estimate(rows, secure_sum=secure_sum, **SMALL, **asked)
    page.write_page(result, result.top(3), [], command="", path=tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    text = re.sub("<(script|style).*?</\\1>|<[^>]*>", " ", text, flags=re.DOTALL)
    for said in (shown(result), " ".join(text.split())):
        # a population's name, and the names of a plan's fields
        said = re.sub("[Pp]opulation clients|(num|per) clients?", "", said)
        assert "client" not in said, said[max(0, said.index("client") - 60) :][:120]
    # what a sum says that was made elsewhere, and so has no numbers of a run
    elsewhere = fedtally.Result(result.plan, result.domain, result.sketches)
    assert "client" not in " ".join(text for _, text in of_sum(elsewhere))


def of_sum(result: fedtally.Result) -> list[tuple[str, str]]:
    return sections.trust.rows(result.plan, result.secure_sum, "silo")


def test_merged_results_count_people() -> None:
    results = [estimate(table(), seed=seed, **SMALL) for seed in (1, 2)]
    merged = Answer(results)
    assert (merged.unit, merged.num_clients) == ("people", 2 * sum(SIZES))


def test_people_without_items_count_under_privacy_alone() -> None:
    rows = {"items": [7, None, 99], "clients": [1, 2, 3], "silos": ["a", "a", "b"]}
    [private] = tallied(rows, **PRIVATE)
    assert [silo.num_clients for silo in private.silos] == [2, 1]
    [exact] = tallied(rows, outside="drop", **SMALL)
    assert [silo.num_clients for silo in exact.silos] == [1]


def test_a_plan_of_silos_runs(tmp_path: Any) -> None:
    rows = table()
    made = estimate(rows, secure_sum="secagg", **PRIVATE).plan.without_keys()
    again = estimate(rows, plan=made, domain="range:1..50")
    assert again.plan.without_keys() == made and again.num_silos == 6
    less = dict(rows, rounds=["1"] * len(rows["items"]))
    assert estimate(less, plan=made, domain="range:1..50").num_silos == 6
    ideal = estimate(rows, seed=1, **SMALL).plan
    secure = estimate(rows, plan=ideal, secure_sum="secagg", domain="range:1..50", seed=1)
    assert secure.secure_sum["equals_plain_sum"]
    twice = estimate(rows, num_rounds=2, seed=3, **PRIVATE, not_private=True).plan
    natural = [f"{i % 2}" for i in range(len(rows["items"]))]
    with pytest.raises(InvalidInputError, match="protects its people in 1 of 2"):
        estimate(dict(rows, rounds=natural), plan=twice, domain="range:1..50")


def test_a_file_names_its_silos(tmp_path: Any) -> None:
    rows = table()
    lines = [
        "item,person,site",
        *(",".join(map(str, row)) for row in zip(*rows.values(), strict=True)),
    ]
    path = tmp_path / "visits.csv"
    path.write_text("\n".join(lines))
    found = fedtally.estimate(path, item="item", client="person", silo="site", seed=1, **SMALL)
    assert found.sketches[0].counters.tolist() == (
        estimate(rows, seed=1, **SMALL).sketches[0].counters.tolist()
    )
    private = fedtally.estimate(path, item="item", client="person", silo="site", **PRIVATE)
    assert private.num_silos == 6
    [batch] = open_source(path, Columns("item", "person", silo="site")).batches()
    assert batch.silos.to_pylist() == rows["silos"]


OTHER = Plan(
    3,
    32,
    "shared",
    1,
    6,
    6,
    {"kind": "range", "size": 50, "public": True, "first": 1, "last": 50},
    1,
    bytes(32),
)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"epsilon": 1.0}, "goes with people= above 1, .* must be public"),
        ({"people": 1}, "people must be at least 2"),
        ({"silos_per_person": 2}, "silos_per_person= goes with epsilon="),
        ({"secure_sum": "two-server"}, "not summed by two servers"),
        (
            {"max_rounds": 2, "epsilon": 1.0, "people": 40},
            "max_rounds= is not for silos: a silo takes part in every",
        ),
        ({"num_rounds": 7}, "at most the number of silos, 6, got 7"),
        ({"schedule": "hybrid"}, "schedule= is not for several rounds of silos, got hybrid"),
        ({"neighbours": "zero-out", "epsilon": 1.0, "people": 40}, "must be add-remove"),
        ({"tau": 0.1}, "silos are few"),
    ],
)
def test_what_silos_are_not_asked(asked: dict[str, Any], message: str) -> None:
    given = {k: v for k, v in SMALL.items() if "tau" not in asked or k == "domain"}
    with pytest.raises(InvalidInputError, match=message):
        estimate(table(), **{**given, **asked})


def test_columns_and_plans_agree_on_silos() -> None:
    rows = table()
    bare = {"items": rows["items"], "clients": rows["clients"]}
    with pytest.raises(InvalidInputError, match="a silo column goes with a client column"):
        estimate({"items": rows["items"], "silos": rows["silos"]}, **SMALL)
    with pytest.raises(InvalidInputError, match="people= goes with silos"):
        estimate(bare, people=40, **SMALL)
    with pytest.raises(InvalidInputError, match="silo= goes with a plan of silos: leave silo= out"):
        estimate(rows, plan=OTHER, domain="range:1..50")
    made = estimate(rows, seed=1, **SMALL).plan
    with pytest.raises(InvalidInputError, match="silos in plan= go with silo=: name the columns"):
        estimate(bare, plan=made, domain="range:1..50")
    with pytest.raises(InvalidInputError, match="a plan already says people="):
        estimate(rows, plan=made, people=40, domain="range:1..50")
    small = estimate({name: column[:43] for name, column in rows.items()}, seed=1, **SMALL).plan
    with pytest.raises(InvalidInputError, match="allows 2 silos in a round, the input has 6"):
        estimate(rows, plan=small, domain="range:1..50")
    many = {"items": [1] * 5000, "clients": [1] * 5000, "silos": [*range(5000)]}
    with pytest.raises(InvalidInputError, match="more than 4,096 distinct values; is it a silo"):
        estimate(many, **SMALL)
