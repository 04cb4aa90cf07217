"""What a file tells of how its answer was made is refused, or can be shown."""

from __future__ import annotations

import copy

import pytest

import fedtally
from fedtally.answer import documents, sections
from fedtally.answer import provenance as told
from fedtally.base import archive
from fedtally.cli.app import run
from fedtally.errors import InvalidInputError, UnreadableFileError

WORDS = ["tea"] * 60 + ["milk"] * 30
ROUND = {"round": 0, "cohorts": 20, "rejected": 1, "verdict": "cohorts stand out", "stand_out": 2}
ROUND |= {"votes": 1.0, "votes_limit": 1.08, "mean_square": 0.99, "mean_square_limit": 1.41}
UNSEEN = {"why": "few", "round": 0, "cohorts": 3, "rejected": 0, "verdict": "not screened"}
SCREENING = {"screen": "warn", "why": "", "clients_left_out": 0, "rounds": [ROUND, UNSEEN]}
# as `CampaignFolder.secure_sum` says it of agents
OF_AGENTS = ("cohorts", "smallest_cohort", "largest_cohort", "clients", "survivors")
OF_AGENTS += ("fewest_survivors",)
ODD = (None, -1, 1.0, "x", [], {}, [3], True, 2**70)


def paths(value, path=()):
    """Yield the path of each part of a JSON value."""
    yield path
    if isinstance(value, dict | list):
        for place in value if isinstance(value, dict) else range(len(value)):
            yield from paths(value[place], (*path, place))


def changed(value, path, odd):
    """Return a JSON value with one part replaced; ...: without it."""
    if not path:
        return odd
    whole = copy.deepcopy(value)
    part = whole
    for place in path[:-1]:
        part = part[place]
    part[path[-1]] = odd
    if odd is ...:
        del part[path[-1]]
    return whole


@pytest.fixture(scope="module", params=["secagg", "two-server", "agents", "noised", "ideal"])
def result(request):
    method = {"agents": "secagg", "noised": "secagg"}.get(request.param, request.param)
    noise = {"epsilon": 5.0, "trust": "distributed", "not_private": True}
    noise = noise if request.param == "noised" else {}
    found = fedtally.estimate(WORDS, seed=1, secure_sum=method, num_rounds=1, **noise)
    if request.param == "agents":
        planned = told.planned_sum(found.plan)
        said = {name: found.secure_sum[name] for name in OF_AGENTS}
        found.secure_sum = planned | {"engine": "agents"} | said | {"screening": SCREENING}
    return found


def show(result):
    """Show all that is said of the sums."""
    plan, said = result.plan, result.secure_sum
    sections.trust.rows(plan, said, sections.counted.part_of_sum(result))
    sections.trust.line(said, sections.counted.part_of_sum(result))
    sections.trust.learned(plan, said)
    sections.privacy.rows(plan, said)
    documents.of_result(result, result.top(1))
    return result.warnings


def test_what_was_saved_is_read(tmp_path, result):
    result.save(tmp_path / "run.fed")
    assert fedtally.Result.load(tmp_path / "run.fed").secure_sum == result.secure_sum
    assert told.secure_sum(told.planned_sum(result.plan), result.plan)
    assert told.secure_sum(None, result.plan) is None


def test_what_is_read_can_be_shown(result):
    """Whatever a stranger changes: it is refused by name, or it is shown without an error."""
    whole, refused = result.secure_sum, 0
    for path in paths(whole):
        for odd in (*ODD, ...) if path else ODD:
            try:
                said = told.secure_sum(changed(whole, path, odd), result.plan)
            except InvalidInputError:
                refused += 1
                continue
            result.secure_sum = said or told.planned_sum(result.plan)
            show(result)
    result.secure_sum = whole
    assert refused > 5


def test_other_tables_are_refused_or_shown():
    several = fedtally.estimate(
        ["tea"] * 500 + ["milk"] * 500, clients=[*range(500)] * 2, max_items=1, tau=0.2, seed=1
    )
    assert several.draw["drawn_away"] and several.sizing["tau"] == 0.2
    pilot = {"rows": 5, "width": 9, "bytes_per_client": 90, "num_clients": 7, "epsilon": 1.0}
    sized = several.sizing | {"pilot": pilot, "names": {"threshold": 0.1, "name_length": 16}}
    for whole, check, shown in (
        (several.draw, told.draw, sections.counted.drawn_away),
        (sized, told.sizing, sections.error.sizing_rows),
    ):
        refused = 0
        for path in paths(whole):
            for odd in (*ODD, ...) if path else ODD:
                try:
                    shown(check(changed(whole, path, odd)))
                except InvalidInputError:
                    refused += 1
        assert refused > 20
    with pytest.raises(InvalidInputError, match="warnings must be text"):
        told.texts("warnings", [3])


def test_a_file_that_says_nonsense_of_its_sums_is_damaged(tmp_path, capsys):
    result = fedtally.estimate(WORDS, seed=1, secure_sum="secagg", num_rounds=1)
    path = tmp_path / "run.fed"
    result.save(path)
    schema, meta, arrays = archive.read(path)
    for said, message in (
        ({"method": "secagg"}, "secure_sum lacks adversary"),
        ({"method": "ideal"}, "secure_sum.method must be secagg, as in the plan, got 'ideal'"),
        ([1], "secure_sum must be a table, got list"),
        (meta["secure_sum"] | {"bits": -1}, "secure_sum.bits must be a whole number"),
    ):
        archive.write(path, schema, meta | {"secure_sum": said}, arrays)
        with pytest.raises(UnreadableFileError, match="is damaged: secure_sum"):
            fedtally.Result.load(path)
        assert run(["query", str(path), "tea"]) == 2
        assert message in " ".join(capsys.readouterr().err.split())
