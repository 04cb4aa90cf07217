"""`fedtally plan` by the calendar: days, two promises, and a successor."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fedtally.answer import sections
from fedtally.cli.app import run
from fedtally.cli.plan_facts import demand_rows
from fedtally.domain import IntegerRange
from fedtally.plan import Plan
from fedtally.plan.calendar import DAY, Calendar, Recurring
from fedtally.plan.design import Design
from fedtally.plan.request import Request
from fedtally.privacy import accounting

Call = Callable[..., tuple[int, str, str]]
NOW = datetime(2026, 11, 20, tzinfo=UTC)
ASKED = ("plan", "--clients", "20000", "--domain-size", "500", "--tau", "0.02", "--rounds", "28")
DAYS = (*ASKED, "--start", "2026-12-01")
WEEKS = (*DAYS, "--epsilon", "1", "--per-rounds", "7")


@pytest.fixture
def call(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Call:
    """Return a function that runs a command in an empty folder: its code, and what it printed."""
    monkeypatch.chdir(tmp_path)

    def run_and_read(*arguments: str) -> tuple[int, str, str]:
        code = run(arguments)
        return code, *capsys.readouterr()

    return run_and_read


@pytest.fixture
def on_the_20th(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", NOW.timestamp)


pytestmark = pytest.mark.usefixtures("on_the_20th", "errors_once")


def test_epsilon_is_that_of_a_week_and_both_promises_are_printed(call: Call) -> None:
    code, out, _ = call(*WEEKS, "--output", "weekly.toml")
    assert code == 0
    said = " ".join(out.split())
    plan = Plan.load("weekly.toml")
    terms = plan.privacy
    assert terms is not None and terms.event.per_rounds == 7
    assert 0.999 < terms.promised.epsilon <= 1
    life = f"{accounting.rounded_up(terms.guarantee.epsilon):g}"
    assert f"epsilon 1 in any 7 days in a row and {life} in all 28" in said
    assert "28 days, from 2026-12-01T00:00Z to 2026-12-29T00:00Z, UTC" in said
    # what a ledger charges is the whole life: four parts
    assert terms.event.contributions == 4
    for view in (("--details",), ()):
        assert life in call(*WEEKS, *view)[1]
    found = json.loads(call(*WEEKS, "--json")[1])
    in_a_row = found["privacy"]["in_a_row"]
    assert (in_a_row["rounds"], in_a_row["num_rounds"], in_a_row["participations"]) == (7, 28, 1)
    assert in_a_row["epsilon"] < found["privacy"]["epsilon"]
    assert found["privacy"]["participations"] == 4


def test_a_plan_calls_its_rounds_the_same_wherever_it_is_shown(call: Call) -> None:
    call(*WEEKS, "--output", "weekly.toml")
    code, out, _ = call("inspect", "weekly.toml")
    assert code == 0 and "epsilon 1 in any 7 days in a row; in all 28" in " ".join(out.split())


def test_no_histogram_is_offered_that_a_calendar_refuses(call: Call) -> None:
    few = ("plan", "--clients", "20000", "--domain-size", "20", "--tau", "0.02", "--rounds", "28")
    offer = "a one-hot vector is no larger than this sketch"
    assert offer in " ".join(call(*few, "--encoding", "sketch", "--details")[1].split())
    code, out, _ = call(*few, "--start", "2026-12-01", "--details")
    assert code == 0 and "sketch" in out and offer not in " ".join(out.split())
    assert "an exact histogram takes" in " ".join(call(*few, "--encoding", "sketch")[1].split())
    assert "histogram" not in call(*few, "--start", "2026-12-01")[1]
    assert "histogram" not in call(*few, "--start", "2026-12-01", "--epsilon", "1")[1]


def test_one_round_in_a_row_is_called_by_its_name(call: Call) -> None:
    alone = (*DAYS, "--period", "7d", "--epsilon", "1", "--per-rounds", "1")
    code, out, _ = call(*alone, "--output", "alone.toml")
    assert code == 0
    shown = call("inspect", "alone.toml")[1]
    plan = Plan.load("alone.toml")
    protects = " ".join(sections.privacy.protects(plan))
    for text in (out, shown, sections.privacy.line(plan), protects):
        said = " ".join(text.split())
        assert "any one week" in said and "any 1 " not in said
    asked = " ".join(text for row in demand_rows(plan) for text in row)
    assert ", in 28 of 28 rounds " in asked and "any 1 " not in asked


def test_a_calendar_of_one_week_has_one_week() -> None:
    assert str(Calendar(NOW, 7 * DAY, 1)).startswith("1 week, from ")


def test_without_rounds_in_a_row_epsilon_is_that_of_all(call: Call) -> None:
    assert call(*DAYS, "--epsilon", "1", "--participations", "4", "--output", "all.toml")[0] == 0
    terms = Plan.load("all.toml").privacy
    assert terms is not None and terms.event.per_rounds is None
    assert 0.999 < terms.guarantee.epsilon <= 1
    assert terms.event.contributions == 4


def test_a_period_may_be_hours_or_weeks(call: Call) -> None:
    for period, hours in (("6h", 6), ("7d", 168)):
        assert call(*DAYS, "--period", period, "--output", f"{period}.toml")[0] == 0
        calendar = Plan.load(f"{period}.toml").calendar
        assert calendar is not None
        assert calendar.period == hours * DAY / 24


def test_a_successor_goes_on_where_a_plan_ends(call: Call) -> None:
    call(*WEEKS, "--output", "one.toml")
    code, out, err = call("plan", "--after", "one.toml", "--output", "two.toml")
    assert code == 0 and "wrote two.toml" in err
    assert "start: 2026-12-29T00:00Z" in " ".join(out.split())
    one, two = Plan.load("one.toml"), Plan.load("two.toml")
    assert one.seed != two.seed and one.privacy == two.privacy
    assert one.calendar is not None and two.calendar is not None
    assert two.calendar.start == one.calendar.end
    found = json.loads(call("plan", "--after", "one.toml", "--start", "2027-01-05", "--json")[1])
    assert found["calendar"]["start"] == "2027-01-05T00:00Z"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ((*ASKED, "--start", "2026-11-19"), "--start must be later than now"),
        ((*ASKED, "--start", "soon"), "--start must be a day or a time of UTC"),
        ((*DAYS, "--period", "7h"), "--period must divide a day"),
        ((*DAYS, "--period", "fortnight"), "--period must be a whole number of days"),
        ((*DAYS, "--schedule", "shared"), "--schedule with --start must be hybrid or fresh"),
        ((*DAYS, "--epsilon", "1", "--neighbours", "add-remove"), "does not go with --start"),
        ((*DAYS, "--per-rounds", "7"), "--per-rounds goes with --epsilon"),
        ((*WEEKS, "--participations", "8"), "at most 7, the rounds of --per-rounds, got 8"),
        ((*ASKED, "--per-rounds", "7"), "--per-rounds"),
        ((*ASKED[:-2], "--start", "2026-12-01"), "--start needs --rounds"),
        ((*ASKED[:-1], "5000", "--start", "2026-12-01"), "at most 4,096 with a calendar"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_calendar_that_cannot_be_is_one_line(
    call: Call, asked: tuple[str, ...], said: str
) -> None:
    code, out, err = call(*asked, "--output", "never.toml")
    assert (code, out) == (2, "")
    assert said in " ".join(err.split())
    assert not Path("never.toml").exists()


def test_a_successor_that_cannot_be_is_one_line(call: Call) -> None:
    call(*WEEKS, "--output", "one.toml")
    call(*ASKED, "--output", "without.toml")
    for asked, said in [
        (("--after", "one.toml", "--start", "2026-12-10"), "must not be before the plan in"),
        (("--after", "one.toml", "--population", "others"), "must be that of the plan in --after"),
        (("--after", "one.toml", "--tau", "0.01"), "--tau does not go with --after"),
        (("--after", "without.toml"), "--after needs a plan with a calendar"),
        (("--after", "missing.toml"), "missing.toml"),
    ]:
        code, _, err = call("plan", *asked, "--output", "never.toml")
        assert code == 2 and said in " ".join(err.split()), err
        assert not Path("never.toml").exists()


TWICE = ("--start", "2026-12-01", "--rounds", "4", "--participations", "2", "--epsilon", "2")


def test_each_client_is_said_once_however_often_it_takes_part(call: Call) -> None:
    strings = ("plan", "--clients", "200000", "--domain", "open", "--tau", "0.01", *TWICE)
    code, out, _ = call(*strings)
    assert code == 0 and "Plan for 200,000 clients" in out
    # a plan counts them once for each of their rounds
    assert json.loads(call(*strings, "--json")[1])["plan"]["num_clients"] == 400_000


def test_the_number_of_clients_that_an_error_names_is_enough(call: Call) -> None:
    asked = ("--domain", "open", "--tau", "0.001", *TWICE[:-1], "0.1")
    code, _, err = call("plan", "--clients", "2000", *asked)
    assert code == 2 and "cannot be met at epsilon 0.1 with 2,000 clients" in err
    enough = int(err.rsplit("; ", 1)[1].split(" clients")[0].replace(",", ""))
    assert call("plan", "--clients", str(enough), *asked)[0] == 0


def test_a_design_that_changes_keeps_its_clients() -> None:
    calendar = Calendar(datetime(2026, 12, 1, tzinfo=UTC), DAY, 4)
    recurring = Recurring(calendar=calendar, participations=2)
    spec = Request(num_rounds=4, tau=0.01, secure_sum="secagg", epsilon=2.0).resolve(
        recurring=recurring
    )
    design = Design.for_fleet(spec, IntegerRange(1, 500), 2000, bytes(32))
    assert (design.fleet, design.clients[0]) == (2000, 4000)
    for changed in (design.with_rounds(4), design.with_cohorts(300), design.with_clients(2000)):
        assert (changed.fleet, changed.clients[0]) == (2000, 4000)
    assert design.with_clients(3000).clients[0] == 6000


@pytest.mark.parametrize("adversary", ["semi-honest", "active"])
def test_notes_on_corrupt_clients_count_each_client_once(call: Call, adversary: str) -> None:
    """A client may be in a round of each of four weeks: a plan counts it four times."""
    protocol = ("--secure-sum", "secagg", "--adversary", adversary, "--max-cohort", "200")
    code, out, _ = call(*WEEKS, *protocol, "--max-bytes", "60kB")
    said = " ".join(out.split())
    assert code == 0
    if adversary == "active":
        assert "10 of all listed clients (at most 0.05 %)" in said
    else:
        assert re.search(r"with [\d,]+ of all 20,000 corrupt", said)
