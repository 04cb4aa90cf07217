"""`fedtally ledger`: what it prints, writes and refuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedtally.cli.app import cli, run
from fedtally.privacy import accounting
from fedtally.privacy.budget import Charge
from fedtally.privacy.events import Event
from fedtally.store import Ledger

EVENT = Event("skellam", 5, "zero-out", variance=2e5, honest_survivors=90, participations=2)
COMMANDS = ["show", "grant", "export"]
BUDGET = ["--population", "phones", "--epsilon", "4", "--delta", "1e-8"]

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    def run_and_read(*arguments: str) -> tuple[int, str, str]:
        code = run(["ledger", *arguments])
        return code, *capsys.readouterr()

    return run_and_read


@pytest.fixture
def books(call: Call) -> Ledger:
    assert call("grant", "--ledger", "books.db", *BUDGET)[0] == 0
    return Ledger.open("books.db")


def test_granting(call: Call) -> None:
    code, out, err = call("grant", "--ledger", "books.db", *BUDGET)
    assert (code, out) == (0, "")
    assert err == "granted: population phones may spend epsilon 4 at delta 1e-08 in all\n"
    code, out, _ = call(
        "grant", "--ledger", "books.db", *BUDGET[:2], "--epsilon", "5", "--delta", "1e-8", "--json"
    )
    assert code == 0
    (entry,) = json.loads(out)["populations"]
    assert (entry["epsilon_granted"], entry["delta"], len(entry["grants"])) == (5.0, 1e-8, 2)
    assert entry["grants"][0]["time"] > 1_700_000_000
    code, _, err = call(
        "grant", "--ledger", "books.db", *BUDGET[:2], "--epsilon", "11", "--delta", "1e-8"
    )
    assert code == 0
    assert "warning: epsilon 11 is above 10" in err


def test_a_look_alike_of_a_population_is_warned_of(
    call: Call, books: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    alike = ["--population", "\N{CYRILLIC SMALL LETTER ER}hones", *BUDGET[2:]]
    code, out, err = call("grant", "--ledger", "books.db", *alike)
    assert (code, out) == (0, "")
    assert err.startswith(
        "warning: population '\\u0440hones' is new here and looks like 'phones': two names are two"
    )
    # it is not new any more
    assert "warning" not in call("grant", "--ledger", "books.db", *alike)[2]
    assert (
        "warning"
        not in call("grant", "--ledger", "books.db", "--population", "tablets", *BUDGET[2:])[2]
    )
    campaign = [
        "estimate",
        "zipf:d=50,n=200",
        "--epsilon",
        "1",
        "--ledger",
        "books.db",
        "--population",
    ]
    for population, warned in ((alike[1], True), (alike[1], False), ("tablets", False)):
        assert run([*campaign, population]) == 0
        assert ("is new here and looks like 'phones'" in capsys.readouterr().err) is warned
    assert run([*campaign, "Phones"]) == 2
    assert (
        "grants nothing to population 'Phones', but to what looks like it: 'phones', "
        in capsys.readouterr().err
    )


def test_showing(call: Call, books: Ledger) -> None:
    code, out, _ = call("show", "--ledger", "books.db")
    assert code == 0
    assert re.search(r"Population phones\ngranted +epsilon 4 at delta 1e-08\nspent +nothing\n", out)
    reservation = books.reserve(Charge("phones", "c0ffee" * 10, 0, EVENT), "a run", time=86400)
    books.land(reservation, b"noised", "a run", time=86401)
    books.reserve(Charge("phones", "c0ffee" * 10, 1, EVENT), "a run", time=86400)
    code, out, _ = call("show", "--ledger", "books.db", "--population", "phones")
    assert code == 0
    assert f"spent    {accounting.epsilon(EVENT, 1e-8)}\n" in out
    rho, delta = accounting.concentrated(EVENT)
    assert (
        f"zCDP     rho {accounting.rounded_up(rho):g}, except with probability"
        f" {accounting.rounded_up(delta):g}\n" in out
    )
    assert "unit     one client of the population (a row, where no column names" in out
    assert "period   from the first grant on" in out
    row = " ".join(out[out.index("c0ffee") :].split())  # the last column may be folded
    words = "skellam, variance 200000, 5 rows; 2 rounds, 1 item"
    assert re.fullmatch(rf"c0ffeec0ffeec0ff 1970-01-02 2 1 {re.escape(words)}", row)


def test_exporting(call: Call, books: Ledger, tmp_path: Path) -> None:
    books.reserve(Charge("phones", "plan", 0, EVENT), "a run", time=1)
    code, out, _ = call("export", "--ledger", "books.db")
    assert code == 0
    written = json.loads(out)
    (entry,) = written["populations"]
    assert [entry.pop(name) for name in ("rho", "rho_delta")] == list(
        accounting.concentrated(EVENT)
    )
    assert "one client of the population" in entry.pop("unit") and "for good" in entry.pop("period")
    assert written == books.export()
    assert call("show", "--ledger", "books.db", "--json")[1] == out
    assert call("export", "--ledger", "books.db", "--output", "books.json", "--json") == (0, "", "")
    assert (tmp_path / "books.json").read_text() == out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["show", "--ledger", "nowhere.db"], "there is no ledger at nowhere.db"),
        (
            ["show", "--ledger", "books.db", "--population", "nobody"],
            "knows no population 'nobody'",
        ),
        (["export", "--ledger", "books.db", "--output", "books.db"], "it is read by this run"),
        (["grant", "--ledger", "books.db", *BUDGET[:4], "--delta", "1e-7"], "for good, not 1e-07"),
        (
            ["grant", "--ledger", "new.db", *BUDGET[:4], "--delta", "1"],
            "delta from 1e-15 to below 1",
        ),
        (
            ["grant", "--ledger", "new.db", "--population", "x", "--epsilon", "0", "--delta", ".1"],
            "epsilon above 0",
        ),
        (["grant", "--ledger", "mysql://host/books", *BUDGET], "SQLite or PostgreSQL"),
        (["grant", "--ledger", "new.db", *BUDGET[:4]], "Missing option '--delta'"),
    ],
)
def test_what_is_refused(
    call: Call, books: Ledger, tmp_path: Path, arguments: list[str], reason: str
) -> None:
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert reason in err
    assert err.count("\n") == 1
    assert not (tmp_path / "new.db").exists()
    code, out, err = call(*arguments, "--json")
    assert (code, out) == (2, "")
    assert reason in json.loads(err)["error"]["message"]


@pytest.mark.parametrize("command", COMMANDS)
def test_each_help_has_examples_that_parse(call: Call, command: str) -> None:
    code, out, _ = call(command, "--help")
    assert code == 0
    examples = re.findall(r"^  fedtally ledger (\S+) (.*)$", out[out.index("Examples:") :], re.M)
    assert command in [name for name, _ in examples]
    for name, line in examples:
        group = cli.commands["ledger"]
        with group.commands[name].make_context(name, line.split(" | ")[0].split()):  # type: ignore[attr-defined]
            pass


def test_help_lists_the_commands_and_imports_no_sql(call: Call) -> None:
    code, out, _ = call("--help")
    assert code == 0
    assert re.findall(r"^  (\w+)  ", out, re.M)[-3:] == COMMANDS
    code = (
        "import sys; from fedtally.cli.app import run; import fedtally; run(['ledger', 'show',"
        " '--help']); sys.exit(sorted({'sqlalchemy', 'numpy', 'rich', 'dp_accounting'} &"
        " set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("columns", [60, 72, 80])
def test_tables_of_long_names_fit_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    from fedtally.cli import campaign_view, ledger

    monkeypatch.setenv("COLUMNS", str(columns))
    name = "campaigns/a-survey-of-what-people-type-in-november-2026"
    rounds = [{"landed": 12_000}] * 3 + [{"landed": 0}]
    one = {"name": name, "state": "not begun", "rounds": rounds, "num_rounds": 10}
    one["open"] = [{"restorable": True}] * 2
    ended = {"name": "ended", "state": "over", "rounds": [], "open": []}  # without its database
    campaign_view.show_list([one, {**one, "name": "short"}, {**one, **ended}])
    out = capsys.readouterr().out
    assert re.search(r"^ended +over +\? of 10( +0)?$", out, re.MULTILINE)
    assert max(map(len, out.splitlines())) <= columns
    assert re.search(r"^campai\S*…\S*2026  not begun +3 of 10( +2)?$", out, re.MULTILINE)
    assert "names shortened" in out
    event = {"mechanism": "rounded-gaussian", "rows": 15, "variance": 123456.75}
    event |= {"participations": 12, "max_items": 3}
    releases = [{"landed": 1}, {"landed": None}]
    campaign = {"plan": "f" * 64, "time": 1_800_000_000, "event": event, "releases": releases}
    entry = {"population": "phones", "epsilon_granted": 4.0, "delta": 1e-8, "statement": ""}
    entry |= {"unit": "one", "period": "ever", "rho": 0.1, "rho_delta": 0.0}
    ledger._show_population({**entry, "campaigns": [campaign]})
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= columns and "…" not in out
    words = " ".join(out.split())
    assert "f" * 16 in words and "variance" in words and "12 rounds" in words
    assert (f"{columns} columns: without since" in words) is (columns == 60)
