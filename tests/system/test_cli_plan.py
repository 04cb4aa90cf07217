"""`fedtally plan` as a user sees it: what is printed, written and refused."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cases import each_case

from fedtally.answer import amounts, screen, sections
from fedtally.campaign.enrolment import save_allow_list
from fedtally.cli import plan_view
from fedtally.cli.app import run
from fedtally.crypto.hpke import PrivateKey
from fedtally.crypto.keys import Secret, SigningKey
from fedtally.plan import Plan
from fedtally.plan.costs import REFERENCE
from fedtally.privacy.guarantee_text import right_guesses
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.config import SecAggConfig

if TYPE_CHECKING:
    from rich.console import RenderableType

pytestmark = pytest.mark.usefixtures("errors_once")
FLEET = ("--clients", "50000", "--domain-size", "2000")
PRIVATE_BY_TWO = ("--encoding", "histogram", "--secure-sum", "two-server", "--epsilon", "1")
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _quiet_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("FEDTALLY_NUM_THREADS", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    def run_and_read(*arguments: str) -> tuple[int, str, str]:
        code = run(["plan", *arguments])
        return code, *capsys.readouterr()

    return run_and_read


@pytest.fixture
def account(call: Call) -> Call:
    """Return a function that runs the command with --details."""
    return lambda *arguments: call(*arguments, "--details")


def words_of(text: str) -> str:
    return " ".join(text.split())


def test_a_plan_says_what_it_is_for_and_costs(account: Call) -> None:
    asked = ("--tau", "0.005", "--encoding", "sketch", "--rows", "8")
    code, out, err = account(*FLEET, *asked, "--output", "plan.toml")
    assert code == 0
    plan = Plan.load("plan.toml")
    said = words_of(out)
    assert "Plan for 50,000 clients and 2,000 candidates" in said
    assert (
        "largest error of all frequencies 0.50 points, exceeded in at most 10 % of campaigns"
        in said
    )
    assert "the fewest bytes for that in one round (--rounds 10 may take fewer); predicted" in said
    assert "any: the target holds for all; the hardest here are" in said
    assert re.search(r"zipf:a=1.1 0.\d+ points; zipf:a=0.8 0.\d+ points; geometric:q=0.99", said)
    assert plan.target is not None and plan.target.frequencies == "any"
    # what they would save who know more: the command that is named makes that plan
    cheaper = re.search(r"--like (zipf:a=1.1,d=2000) would take (\d+ x \d+) and", said)
    assert cheaper is not None
    assumed = words_of(account(*FLEET, *asked, "--like", cheaper[1])[1])
    in_rounds = words_of(account(*FLEET, *asked, "--like", cheaper[1], "--rounds", "10")[1])
    assert "the fewest bytes for that; predicted" in in_rounds
    assert _upload(in_rounds) < _upload(assumed)
    assert f"{cheaper[2]} (the plan)" in assumed
    assert f"assumed to be like {cheaper[1]}; if they are not, the target may be missed" in assumed
    assert re.search(r"predicted for the hardest, \d+ items of equal frequency: \d", assumed)
    assert "no differential privacy" in said
    assert f"{plan.rows} x {plan.width} (the plan)" in said
    assert "(minimax)" in said and "one-hot vector" in said
    assert "CPU is of a reference machine" in said
    assert plan.target is not None and plan.target.linf == 0.005
    assert err == "wrote plan.toml\n"
    assert all(line == line.rstrip() for line in out.splitlines())


def lines_of(out: str) -> dict[str, str]:
    """Return the texts of a screen by their names; a name without a text of its own is joined."""
    found: dict[str, str] = {}
    name = ""
    for line in out.splitlines()[2:]:
        name = line[:9].strip() or name
        found[name] = f"{found.get(name, '')} {line[9:].strip()}".strip()
    return found


def test_a_plan_opens_with_bytes_error_and_epsilon(call: Call) -> None:
    """Below the title, at most 80 columns wide; the rest is behind --details."""
    asked = (*FLEET, "--max-bytes", "6kB", "--rows", "8", "--rounds", "4", "--secure-sum", "secagg")
    code, out, err = call(*asked, "--epsilon", "2", "--failure-probability", "0.05", "--seed", "1")
    assert (code, err) == (0, "")
    again = (*asked, "--epsilon", "2", "--failure-probability", "0.05", "--seed", "1")
    found = json.loads(call(*again, "--json", "--output", "plan.toml")[1])
    title, blank, *_ = out.splitlines()
    facts = lines_of(out)
    assert list(facts)[:4] == ["Bytes", "Error", "Privacy", "Trust"]
    assert (title, blank) == ("Plan for 50,000 clients and 2,000 candidates", "")
    plan, bill = found["plan"], found["bill"]
    size, exact = map(amounts.size, (plan["bytes_per_client"], plan["one_hot_bytes_per_client"]))
    # what a plan that must have a histogram says of itself
    wide = [part for part in again if part not in ("--rows", "8")]
    whole = json.loads(call(*wide, "--encoding", "histogram", "--max-bytes", "1MB", "--json")[1])
    keeps = amounts.points(whole["target"]["linf"])
    assert facts["Bytes"] == f"{size} per client and round; a histogram takes {exact} for {keeps}"
    most = amounts.points(found["target"]["linf"])
    assert facts["Error"] == f"at most {most} in 19 of 20 campaigns, whatever the frequencies"
    # e^2 : 1, rounded up, in the words of `fedtally estimate`, for each guess
    made = Plan.load("plan.toml")
    assert made.privacy is not None
    replaced = right_guesses(made.privacy.replace_one)
    said = facts["Privacy"].removeprefix("epsilon 2: ")
    assert said == (
        "a guess is right in at most 88.1 % of cases (does a client have its items or none?),"
        f" or {replaced} % (which of two sets of items does it have?); 50 % is chance"
    )
    assert sections.privacy.line(made).startswith(f"{said} (epsilon 2, ")
    down, in_all = amounts.size(bill["download_bytes"]), amounts.size(bill["received_bytes"])
    cost = facts["Cost"]
    assert cost.startswith(f"a client: {down} down, ")
    assert f" CPU; the server: {in_all}, " in cost and cost.endswith(" CPU")
    said = words_of(out)
    assert "not published: it can be simulated" in said and "Try --details" in said
    # what no decision waits for is behind --details
    hidden = ("rho", "honest", "standard deviation", "What it costs", "minimax", "CPU is of a")
    details = words_of(call(*asked, "--epsilon", "2", "--details")[1])
    assert all(word not in words_of(out) and word in details for word in hidden)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ("--max-bytes", "2kB", "--rows", "8"),
            {
                "Privacy": "no differential privacy: the sums of each round are exact",
                "Trust": "the server sees what each client sends (--secure-sum secagg: only sums)",
                "Note": "for simulations: devices run plans of --secure-sum secagg",
            },
        ),
        (
            ("--tau", "0.01", "--rows", "8", "--like", "zipf:a=1.1,d=2000", "--epsilon", "none"),
            {"Note": "frequencies are assumed to be like zipf:a=1.1,d=2000; if they are not,"},
        ),
        (
            ("--encoding", "histogram"),
            {"Error": "none: each candidate has a counter of its own, and counts are exact"},
        ),
        (
            ("--encoding", "histogram", "--epsilon", "1"),
            {"Bytes": "per client, a counter for each candidate", "Error": "whatever the freq"},
        ),
        (
            ("--encoding", "histogram", "--epsilon", "1", "--not-private"),
            {"Privacy": "not private: nothing is guaranteed; the noise is for epsilon 1"},
        ),
        (
            ("--encoding", "histogram", "--epsilon", "20"),
            {"Privacy": "hides next to nothing: a guess may be right in nearly all cases"},
        ),
        (
            ("--encoding", "histogram", "--secure-sum", "two-server"),
            {"Note": "nobody may run it without leader_key", "Bytes": " per client, a counter"},
        ),
        (
            ("--encoding", "histogram", "--secure-sum", "secagg"),
            {
                "Trust": "the server follows the protocol (--adversary active: it may lie); at most"
                " 100 clients of a sum work with it"
            },
        ),
        (
            ("--encoding", "histogram", "--secure-sum", "secagg", "--adversary", "active"),
            {"Trust": "the server may lie, but did not choose the list of keys; at most "},
        ),
        (
            PRIVATE_BY_TWO,
            {
                "Trust": "the two servers do not work together: epsilon then holds however many"
                " clients are corrupt; for at least 45,000 honest clients in a sum, neither chose"
                " the list of keys, and at most 2,500 of all 50,000 listed clients work with one"
            },
        ),
        (
            ("--encoding", "histogram", "--secure-sum", "two-server"),
            {
                "Trust": "the two servers do not work together, and neither chose the list of keys;"
                " at most 2,500 of all 50,000 listed clients work with one of them"
            },
        ),
        (
            (*PRIVATE_BY_TWO, "--trust", "central"),
            {
                "Trust": "the two servers do not work together, and neither chose the list of keys;"
                " at most 2,500 of all 50,000 listed clients work with one of them; the leader sees"
            },
        ),
        (
            (*PRIVATE_BY_TWO, "--not-private"),
            {"Trust": "the two servers do not work together, and neither chose the list of keys"},
        ),
    ],
)
def test_each_kind_of_plan_says_in_short_what_matters(
    call: Call, options: tuple[str, ...], said: dict[str, str]
) -> None:
    code, out, _ = call(*FLEET, *options)
    found = lines_of(out)
    assert code == 0 and [*found][:4] == ["Bytes", "Error", "Privacy", "Trust"]
    assert {name: text in found[name] for name, text in said.items()} == dict.fromkeys(said, True)
    assert ("whatever the frequencies" in found["Error"]) == (
        "--like" not in options and "none: " not in found["Error"]
    )


@pytest.mark.parametrize(
    ("protocol", "said", "warned"),
    [
        (
            "secagg --max-cohort 80",
            "at most 4 clients of a sum work with it",
            "--max-corrupt 0.05 is of one sum, and clients are drawn for it",
        ),
        ("secagg --max-cohort 240", "at most 12 clients of a sum work with it", ""),
        # whoever may lie picks who sums together, so that 5 % of a sum are fewer of the list
        (
            "secagg --adversary active --max-cohort 80",
            "at most 4 of all 240 listed clients work with it",
            "4 of all 240 listed clients (at most 1.67 %) may be corrupt",
        ),
        (
            "secagg --adversary active --max-cohort 240",
            "at most 12 of all 240 listed clients work with it",
            "",
        ),
        (
            "two-server",
            "neither chose the list of keys; at most 12 of all 240 listed clients work with one",
            "",
        ),
    ],
)
def test_where_a_server_may_lie_corrupt_clients_are_counted_over_the_whole_list(
    call: Call, protocol: str, said: str, warned: str
) -> None:
    fleet = ("--clients", "240", "--domain-size", "50", "--encoding", "histogram")
    code, out, _ = call(*fleet, "--secure-sum", *protocol.split())
    assert code == 0 and said in lines_of(out)["Trust"]
    assert ("--max-corrupt" in out) == bool(warned) and warned in " ".join(out.split())


def _exceeds(population: int, corrupt: int, drawn: int, bound: int) -> Fraction:
    """Return the chance that a draw has more corrupt clients than the bound, exactly."""
    ways = range(bound + 1, min(corrupt, drawn) + 1)
    more = sum(math.comb(corrupt, i) * math.comb(population - corrupt, drawn - i) for i in ways)
    return Fraction(more, math.comb(population, drawn))


@pytest.mark.parametrize(
    ("clients", "rounds", "cohort", "sums", "most"),
    [(2000, 1, 200, 10, 200), (2000, 3, 150, 15, 150), (401, 1, 200, 3, 134)],
)
def test_corrupt_clients_of_a_sum_are_said_as_a_share_of_all_from_whom_sums_are_drawn(
    call: Call, clients: int, rounds: int, cohort: int, sums: int, most: int
) -> None:
    fleet = ("--clients", str(clients), "--domain-size", "50", "--encoding", "histogram")
    fleet += ("--rounds", str(rounds), "--secure-sum", "secagg", "--max-cohort", str(cohort))
    note = re.compile(
        r"--max-corrupt (\S+) is of one sum, and clients are drawn for it: with ([\d,]+) of all"
        rf" {clients:,} corrupt .*?, none of {sums} sums has more than (\d+), but for a chance of"
        r" 1 in 1,000,000; --max-corrupt (\S+) bears (\S+) % of all"
    )

    def said(*more: str) -> list[float]:
        found = note.search(words_of(call(*fleet, *more)[1]))
        assert found
        return [float(each.replace(",", "")) for each in found.groups()]

    share, borne, bound, larger, percent = said()
    assert (share, bound, percent) == (0.05, math.ceil(0.05 * most), 5)
    chances = [_exceeds(clients, int(borne) + i, most, int(bound)) * sums for i in (0, 1)]
    assert chances[0] <= Fraction(1, 10**6) < chances[1]
    # the way out holds: the larger C bears the share, and a smaller one would not
    share, borne, bound, _, _ = said("--max-corrupt", f"{larger:g}")
    asked = math.ceil(0.05 * clients)
    assert share == larger and borne >= asked
    assert _exceeds(clients, asked, most, int(bound) - 1) * sums > Fraction(1, 10**6)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("secagg", "; it sees exact sums, and adds the noise"),
        ("two-server", "; the leader sees exact"),
    ],
)
def test_a_server_that_adds_the_noise_is_said_to_see_exact_sums(
    call: Call, method: str, said: str
) -> None:
    asked = (*FLEET, "--encoding", "histogram", "--epsilon", "1", "--secure-sum", method, "--trust")
    assert said in lines_of(call(*asked, "central")[1])["Trust"]
    assert said not in lines_of(call(*asked, "distributed")[1])["Trust"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            ("10",),
            (
                "all 10 clients must come: a sum begins with 10, and if one of them stays away,"
                " there is no answer (--cohort 10 --cohort-min 8 lets it begin with fewer)"
            ),
        ),
        (
            ("401", "--max-cohort", "200"),
            (
                "all 401 clients must come: a sum begins with 133, and if one of them stays away,"
                " its other 132 are not counted (--cohort 134 --cohort-min 108 lets it begin with"
                " fewer)"
            ),
        ),
        (
            ("10", "--max-dropout", "0"),
            (
                "one client that goes offline ends a sum of 10, and its other clients are not asked"
                " again (--max-dropout 0.05 bears more)"
            ),
        ),
    ],
)
def test_a_sum_that_can_spare_nobody_says_so_and_its_way_out_holds(
    call: Call, asked: tuple[str, ...], said: str
) -> None:
    fleet = ("--domain-size", "100", "--encoding", "histogram", "--secure-sum", "secagg")
    code, out, _ = call("--clients", *asked, *fleet)
    assert code == 0 and said in words_of(out)
    way = said.partition("(")[2].split()[:2]  # the option that the note names
    code, out, _ = call("--clients", asked[0], *way, *fleet)
    assert code == 0
    gone = "one client that goes offline" if "dropout" in way[0] else "must come"
    assert gone in said and gone not in out


def test_a_start_that_is_not_safe_is_not_recommended(call: Call) -> None:
    asked = (
        "--people",
        "5000",
        "--domain-size",
        "1000",
        "--epsilon",
        "1",
        "--secure-sum",
        "secagg",
    )
    for number, adversary, way in (("5", "semi-honest", True), ("6", "active", False)):
        out = call("--clients", number, *asked, "--adversary", adversary)[1]
        assert f"all {number} silos must come" in words_of(out)
        assert ("--cohort-min" in out) is way
    smaller = ("--cohort", "6", "--cohort-min", "5")
    code, _, err = call("--clients", "6", *asked, "--adversary", "active", *smaller)
    said = "sums that begin with 5 silos (--cohort-min) cannot be summed safely"
    assert code == 2 and said in words_of(err)


def test_two_servers_say_how_many_reports_a_sum_needs(call: Call) -> None:
    asked = ("--clients", "5000", "--domain-size", "100", "--secure-sum", "two-server")
    assert "a sum needs 4,750 of 5,000 clients" in words_of(call(*asked)[1])
    out = words_of(call(*asked, "--max-dropout", "0")[1])
    assert "a sum needs all 5,000 clients" in out
    # less C, 5 % of the 5,000: what an owner may demand
    assert "owners need min_honest = 4500 or less" in words_of(call(*asked, "--details")[1])


def test_of_many_sums_one_that_does_not_begin_is_little(call: Call) -> None:
    fleet = ("--domain-size", "100", "--encoding", "histogram", "--secure-sum", "secagg")
    for sums, is_said in ((4, True), (5, False)):
        out = call("--clients", str(40 * sums), "--max-cohort", "40", *fleet)[1]
        assert ("must come" in out) is is_said


def test_silos_and_open_domains_say_in_short_who_is_seen(call: Call) -> None:
    found = lines_of(call(*SILOS, "--epsilon", "1", "--secure-sum", "secagg")[1])
    assert re.search(r"learns a silo's size to ± \d+ people, if it knows all others", found["Note"])
    assert found["Cost"].startswith("a silo: ") and "per silo" in found["Bytes"]
    found = lines_of(call(*SILOS, "--secure-sum", "secagg")[1])
    assert "learns a silo's size exactly" in found["Note"]
    found = lines_of(call("--clients", "20000", "--domain", "open", "--tau", "0.01")[1])
    assert re.search(r"names held by about [\d,]+ clients or more can be read", found["Names"])
    assert "assumed to fall like i^-1.1" in found["Note"]


def test_the_next_step_is_a_command_that_runs(
    call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = (*FLEET, "--tau", "0.02", "--encoding", "sketch", "--rows", "8")
    out = call(*asked)[1]
    tries = lines_of(out)["Try"]
    for line in ("--details", "-o plan.toml", "--like zipf:a=1.1,d=2000", "--rounds 10"):
        assert line in tries
        assert call(*asked, *line.split())[0] == 0
    assert "-o plan.toml" not in lines_of(call(*asked, "-o", "my plan.toml")[1])["Try"]
    out = call(*asked, "-o", "my plan.toml")[1]
    assert "fedtally simulate --plan 'my plan.toml' SOURCE" in out
    source = "zipf:a=1.1,d=2000,n=50000"
    assert run(["simulate", "--plan", "my plan.toml", source, "--repeats", "1"]) == 0
    assert "Target" in capsys.readouterr().out
    assert "simulate" not in call(*SILOS, "-o", "silos.toml")[1]


def test_a_plan_for_known_frequencies_names_the_smaller_one(
    account: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where little is saved, none is named."""
    asked = ("--rounds", "5", "--rows", "8", "--like", "zipf:a=1.2,d=5000")
    asked = ("--clients", "400000", "--tau", "0.0003", *asked)
    smaller = re.search(
        r"if they are sure, --recovery belief would take (8 x \d+) and",
        words_of(account(*asked)[1]),
    )
    assert smaller is not None
    monkeypatch.setattr(plan_view, "_WORTH", 0.1)
    assert "if they are sure" not in words_of(account(*asked)[1])
    found = json.loads(account(*asked, "--json")[1])["by_belief"]
    assert f"{found['rows']} x {found['width']}" == smaller[1]


def _upload(said: str) -> float:
    number, unit = re.search(r"Upload ([0-9.]+) (kB|B) per client", said).groups()  # type: ignore[union-attr]
    return float(number) * (1000 if unit == "kB" else 1)


def test_bytes_that_gain_little_are_said_to(account: Call) -> None:
    noisy = (*FLEET, "--epsilon", "0.5", "--trust", "distributed", "--rows", "8")
    noisy += ("--like", "zipf:a=1.1,d=2000")
    note = "of the bytes: its error is hardly larger"
    assert note in words_of(account(*noisy, "--max-bytes", "64kB")[1])
    assert note not in words_of(account(*FLEET, "--max-bytes", "2kB", "--rows", "8")[1])


def test_few_rows_are_said_to_say_less(account: Call) -> None:
    note = "with fewer than 7 rows campaigns differ more than is predicted"
    few, enough = (account(*FLEET, "--max-bytes", "2kB", "--rows", rows)[1] for rows in ("4", "7"))
    assert note in words_of(few) and note not in words_of(enough)


def test_clients_may_be_written_short(call: Call) -> None:
    code, out, _ = call(
        "--clients", "5e4", "--domain-size", "2_000", "--max-bytes", "2kB", "--rows", "8"
    )
    assert code == 0 and "Plan for 50,000 clients and 2,000 candidates" in out
    code, _, err = call("--clients", "5e-4", "--domain-size", "2000")
    assert code == 2 and "'5e-4' is no integer of 1 or more" in err


_SECAGG = ("--secure-sum", "secagg")
_TWO_SERVERS = ("--secure-sum", "two-server")
_NO_FILE = "cannot read '' (No such file or directory)"


@each_case(
    ("words", "said"),
    [
        # an unset variable of a shell is an empty text, and not an option that was left out
        (("--server-key", "", *_SECAGG), f"{_NO_FILE}: give the 64 hexadecimal digits"),
        (("--leader-key", "", *_TWO_SERVERS), f"{_NO_FILE}: give the 64 hexadecimal digits"),
        (("--helper-key", "", *_TWO_SERVERS), f"{_NO_FILE}: give the 64 hexadecimal digits"),
        (("--allow-list", "", *_TWO_SERVERS), f"{_NO_FILE}: give an allow-list"),
        (("--start", "2130-01-01", "--rounds", "3", "--period", ""), "--period must be a whole"),
        (("--seed", ""), "the seed is empty: write a number or a word, or leave --seed out"),
        (("--population", "", "--epsilon", "1"), "--population must be 1 to 200 printable"),
        (("--like", ""), "--like '': there is no such file; give a RESULT"),
        (("--host", ""), "cannot read --host ''"),
        # too large is no other kind of text
        (("--clients", "99999999999999999999"), "is too large: at most 999,999,999,999,999,999"),
        (("--rounds", "1e99"), "is too large: at most 999,999,999,999,999,999"),
        (("--max-bytes", "99999999999999999999"), "no size from 1 byte to below 4,294,967,296 GiB"),
        (("--max-bytes", "0"), "'0' is no size from 1 byte to below"),
        (("--threads", "1e99"), "'1e99' is no integer of 1 to 1,024"),
        (("--threads", "0"), "'0' is no integer of 1 to 1,024"),
        (("--max-dropout", "10 parsecs", *_SECAGG), "is no number: write it as 0.05 or 1e-6"),
        (("--max-corrupt", "nan", *_SECAGG), "--max-corrupt must be finite, got nan"),
        (("--delta", "-1", "--epsilon", "1"), "--delta must be at least 0.0, got -1.0"),
        # a folder where a file is meant
        (("--domain", "folder"), "--domain folder is a folder: give a file in it, or FILE:COL"),
        (("--host", "folder"), "cannot read --host folder: Is a directory; measure again:"),
        (("--like", "folder"), "folder is not a file that fedtally saved"),
        (("--output", "folder"), "cannot write folder: it is a folder; name a file"),
        (("--server-key", "folder", *_SECAGG), "cannot read 'folder' (Is a directory): give the"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_in_one_line(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    """The line names the value, what it may be, and a way out."""
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir(exist_ok=True)
    own = {"--domain": (), "--like": ()}.get(words[0], ("--domain-size", "100"))
    clients = () if words[0] == "--clients" else ("--clients", "1000")
    code, out, err = call(*clients, *own, "--tau", "0.05", *words)
    assert code == 2 and not out and said in err
    assert err.replace("planning\n", "").count("\n") == 1


def test_a_plan_to_continue_that_is_no_file_is_named(call: Call) -> None:
    for path, shown in (("", "''"), ("nowhere.toml", "nowhere.toml"), (".", ".")):
        code, _, err = call("--after", path)
        assert code == 2 and f"cannot read the plan {shown} (" in err
        assert "give the file, .toml or .json, that fedtally plan wrote" in err


def test_the_document_holds_what_is_printed(call: Call) -> None:
    code, out, err = call(
        *FLEET,
        "--max-bytes",
        "6kB",
        "--epsilon",
        "2",
        "--rounds",
        "4",
        "--secure-sum",
        "secagg",
        "--json",
    )
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["schema"] == "fedtally-proposal/1"
    assert found["found"] == "error"
    assert found["plan"]["bytes_per_client"] <= 6000
    assert found["predicted_linf"] <= found["target"]["linf"]
    assert found["privacy"]["epsilon"] <= 2
    assert found["bill"]["method"] == "secagg"
    assert found["bill"]["upload_bytes"] == sum(
        stage["upload_bytes"] for stage in found["bill"]["stages"]
    )
    # the largest cohort's
    assert abs(found["bill"]["upload_bytes"] - found["plan"]["bytes_per_client"]) <= 100
    assert found["bill"]["calibrated"] is False
    assert [other["width"] for other in found["neighbours"]] == sorted(
        other["width"] for other in found["neighbours"]
    )
    shapes = found["shapes"]
    assert found["frequencies"] == found["target"]["frequencies"] == "any"
    assert set(shapes) == {"hardest", "zipf:a=1.1", "zipf:a=0.8", "geometric:q=0.99"}
    assert shapes["hardest"]["predicted_linf"] == found["predicted_linf"]
    assert found["predicted_linf"] >= max(one["predicted_linf"] for one in shapes.values())
    assert found["usual"] is found["by_belief"] is None  # no target was asked for
    assert set(found["minimax"]) == {"rows", "width", "bytes_per_client"}
    assert found["missing_keys"] == ["server_key"]


SECURE = (
    "--clients",
    "600",
    "--domain-size",
    "2000",
    "--max-bytes",
    "4kB",
    "--rows",
    "7",
    "--secure-sum",
)


@pytest.mark.parametrize(
    ("method", "option", "said"),
    [
        ("secagg", "--server-key", "without server_key (fedtally keys add --server-key)"),
        (
            "two-server",
            "--helper-key",
            (
                "without leader_key (fedtally keys add --leader-key) and helper_key (fedtally keys"
                " add --helper-key) and allow_list, who may take part (fedtally keys add"
                " --allow-list)"
            ),
        ),
    ],
)
def test_a_plan_has_no_keys_but_those_that_are_given(
    call: Call, method: str, option: str, said: str
) -> None:
    again = ("--seed", "1", "--output")
    code, out, _ = call(*SECURE, method, *again, "plan.toml")
    plan = Plan.load("plan.toml")
    assert code == 0 and "not published: it can be simulated, and nobody may run it" in words_of(
        out
    )
    assert said in words_of(out)
    assert not any(
        f"{name} =" in Path("plan.toml").read_text()
        for name in ("server_key", "leader_key", "helper_key", "allow_list")
    )
    key = (
        SigningKey(Secret(bytes(32))).public
        if method == "secagg"
        else PrivateKey(Secret(bytes(32))).public
    )
    code, out, _ = call(*SECURE, method, *again, "keyed.toml", option, key.hex())
    keyed = Plan.load("keyed.toml")
    assert keyed == plan.with_keys(**{option[2:].replace("-", "_"): key}, may_lack=True)
    assert ("not published" in words_of(out)) == (method == "two-server")
    assert "for simulations" not in words_of(out)
    assert keyed.fingerprint != plan.fingerprint and keyed.bytes_per_client == plan.bytes_per_client


@pytest.mark.promise
def test_a_plan_says_whether_reports_have_proofs_and_why_not(account: Call) -> None:
    again = ("--seed", "1", "--output", "plan.toml")
    none = "reports have no proofs: a client that lies is not found out"
    for options, said, named in (
        ((), "each report has a proof", "proofs"),
        (("--validity", "none"), "reports have no proofs: --validity proofs asks for them", "none"),
        (("--max-items", "2"), "a client contributes up to 2", "none"),
    ):
        code, out, _ = account(*SECURE, "two-server", *options, *again)
        plan = Plan.load("plan.toml")
        assert code == 0 and said in words_of(out), options
        assert (none in words_of(out)) == (named == "none")
        assert plan.secure_sum.summary()["validity"] == named  # type: ignore[union-attr]
        found = json.loads(account(*SECURE, "two-server", *options, "--json")[1])["validity"]
        assert (found["proofs"], found["reason"] == "") == (named == "proofs",) * 2
        assert found["reason"] in words_of(out)
    assert json.loads(account(*SECURE, "ideal", "--json")[1])["validity"] is None


def test_a_plan_for_the_clients_of_a_list(account: Call) -> None:
    people = AllowList(sorted(SigningKey(Secret(bytes([n]) * 32)).public for n in range(1, 41)))
    save_allow_list("clients.allow", people)
    save_allow_list("few.allow", AllowList(people.key(rank) for rank in range(39)))
    asked = (*SECURE[:-1], "--secure-sum", "secagg", "--adversary", "active", "--cohort", "40")
    listed = (*asked, "--cohort-min", "30", "--output", "plan.toml", "--allow-list")
    code, out, _ = account(*listed, "clients.allow")
    plan = Plan.load("plan.toml")
    assert code == 0 and isinstance(plan.secure_sum, SecAggConfig)
    assert "secagg, active: cohorts of 30 to 40 clients" in words_of(out)
    assert "without server_key (fedtally keys add --server-key)" in words_of(out)
    assert plan.missing_keys == ("server_key",)
    assert plan.secure_sum.allow_list == people.digest
    assert (plan.secure_sum.parameters.n_min, plan.secure_sum.parameters.n_max) == (30, 40)
    Path("plan.toml").unlink()
    code, out, err = account(*listed, "few.allow")
    assert (code, out) == (2, "")
    assert "at least 40 clients, as many as a full cohort of the plan, got 39: enrol" in err
    code, out, err = account(*SECURE, "two-server", "--cohort", "40", "--output", "plan.toml")
    assert (code, "cohort goes with the secure sum secagg, got two-server" in err) == (2, True)
    assert not Path("plan.toml").exists()


def test_a_histogram_is_tried_on_other_candidates_by_rank(
    call: Call, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The plan has the integers 1 and 2, and the clients have words."""
    (tmp_path / "drinks.txt").write_text("tea\nmilk\ntea\n" * 20)
    (tmp_path / "list.txt").write_text("tea\nmilk\n")
    plan, drinks, listed = (
        str(tmp_path / name) for name in ("plan.toml", "drinks.txt", "list.txt")
    )
    assert call("--clients", "60", "--domain-size", "2", "--tau", "0.1", "-o", plan)[0] == 0
    tried = ["simulate", "--plan", plan, drinks, "--repeats", "2"]
    assert run([*tried, "--domain", listed]) == 0
    assert "0 of 2 repeats" in words_of(capsys.readouterr().out)
    assert run(tried) == 2  # without a list they are read as the plan's candidates
    assert "other items need another domain" in words_of(capsys.readouterr().err)
    assert run([*tried, "--domain", "open"]) == 2
    assert "--domain open goes with a plan for an open domain" in words_of(capsys.readouterr().err)


def test_no_frequencies_are_named_that_like_refuses(account: Call) -> None:
    asked = (*FLEET, "--tau", "0.01", "--encoding", "sketch")
    assert "--like zipf" in words_of(account(*asked)[1])
    assert "--like zipf" not in words_of(account(*asked, "--max-items", "3")[1])


def test_two_of_three_find_the_third(call: Call) -> None:
    code, out, _ = call(
        *FLEET, "--like", "zipf:a=1.1,d=2000", "--tau", "0.01", "--max-bytes", "2kB", "--json"
    )
    found = json.loads(out)
    assert (code, found["found"]) == (0, "epsilon")
    epsilon = found["privacy"]["epsilon"]
    little = (
        "--clients",
        "1000",
        "--domain-size",
        "2000",
        "--tau",
        "0.005",
        "--max-bytes",
        "4kB",
        "--json",
        "--like",
        "zipf:a=1.1,d=2000",
    )
    assert json.loads(call(*little)[1])["privacy"]["epsilon"] > 1
    code, out, _ = call(
        *FLEET,
        "--like",
        "zipf:a=1.1,d=2000",
        "--tau",
        "0.01",
        "--epsilon",
        str(round(1.2 * epsilon, 4)),
        "--json",
    )
    assert json.loads(out)["plan"]["bytes_per_client"] <= 2000
    code, out, _ = call(
        *FLEET,
        "--like",
        "zipf:a=1.1,d=2000",
        "--tau",
        "0.01",
        "--max-bytes",
        "2kB",
        "--epsilon",
        "none",
        "--json",
    )
    assert (code, json.loads(out)["privacy"]) == (0, None)


def test_frequencies_may_be_like_others(call: Call, tmp_path: Path) -> None:
    sizes = {}
    for like in ("zipf:a=1.05,d=2000", "zipf:a=3,d=2000", "geometric:d=2000"):
        code, out, _ = call(*FLEET, "--tau", "0.002", "--like", like, "--json")
        assert code == 0
        sizes[like] = json.loads(out)["plan"]["bytes_per_client"]
    assert sizes["zipf:a=1.05,d=2000"] > 2 * sizes["zipf:a=3,d=2000"]
    assert (
        run(
            [
                "estimate",
                "zipf:d=2000,n=5000",
                "--save",
                "old.fedtally",
                "--quiet",
                "--seed",
                "1",
                "--top",
                "0",
            ]
        )
        == 0
    )
    code, out, _ = call("--clients", "50000", "--like", "old.fedtally", "--tau", "0.005", "--json")
    assert code == 0


def test_results_that_are_not_private_choose_no_private_plan(call: Call) -> None:
    assert (
        run(
            [
                "estimate",
                "zipf:d=2000,n=5000",
                "--save",
                "old.fedtally",
                "--quiet",
                "--seed",
                "1",
                "--top",
                "0",
            ]
        )
        == 0
    )
    like = ("--clients", "50000", "--like", "old.fedtally", "--tau", "0.02", "--epsilon", "1")
    code, _, err = call(*like)
    assert code == 2
    assert "what chooses a private campaign must be public or noised" in err
    code, out, _ = call(*like, "--not-private", "--json")
    assert (code, json.loads(out)["privacy"]["not_private"]) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--clients and --domain-size are missing"),
        (("--clients", "1000"), "--domain-size is missing"),
        ((*FLEET, "--epsilon", "much"), "--epsilon must be a number or none, got 'much'"),
        ((*FLEET, "--width", "5"), "No such option"),
        ((*FLEET, "--like", "zipf:d=500", "--max-items", "3"), "its clients hold one item each"),
        ((*FLEET, "--domain", "input"), "--domain-size does not go with --domain"),
        ((*FLEET, "--like", "nothing.here"), "there is no such file"),
        (
            (*FLEET, "--like", "zipf:d=5000"),
            "--like has 5,000 items, and there are 2,000 candidates: write d=2000 in it",
        ),
        ((*FLEET, "--output", "plan.txt"), "must end in .toml or .json"),
        ((*FLEET, "--tau", "2"), "tau must be above 0 and below 1, got 2"),
        ((*FLEET, "--delta", "1e-6"), "--delta goes with --epsilon"),
        (
            (*FLEET, "--server-key", "77" * 32),
            "the secure sum ideal has no --server-key: it uses no key",
        ),
        (
            (*FLEET, "--server-key", "77" * 32, "--secure-sum", "two-server"),
            "two-server has no --server-key",
        ),
        (
            (*FLEET, "--secure-sum", "two-server", "--validity", "proofs", "--max-items", "2"),
            "--validity cannot be proofs: a proof is of one item a client, and here a client",
        ),
        ((*FLEET, "--validity", "none"), "--validity goes with the secure sum two-server, got"),
        (
            (*FLEET, "--helper-key", "77" * 32, "--secure-sum", "secagg"),
            "secagg (semi-honest) has no --helper-key",
        ),
        (
            (*FLEET, "--server-key", "nowhere.pub", "--secure-sum", "secagg"),
            "cannot read 'nowhere.pub'",
        ),
        (
            (*FLEET, "--server-key", "00" * 32, "--secure-sum", "secagg"),
            "server_key is no valid key",
        ),
        ((*FLEET, "--tau", "0.0001", "--epsilon", "0.5"), "any of these would do: tau 0.0"),
        (("--domain-size", "9"), "--clients is missing: how many clients"),
        (("--clients", "9", "--domain", "input"), "--domain input goes with an input: give a FILE"),
        (
            ("--clients", "9", "--like", "zipf:d=9", "--max-items", "2"),
            "--max-items does not go with a family in --like, got zipf:d=9: its clients hold one",
        ),
        ((*FLEET, "--rounds", "60000"), "--rounds must be at most the number of clients"),
        (
            ("--clients", "2", "--domain-size", "9", "--secure-sum", "secagg"),
            "a secure sum needs at least 3 clients, and there are 2 in all",
        ),
        (
            ("--clients", "1000", "--domain-size", "9", "--tau", ".01", "--max-bytes", "3"),
            "tau 0.01 cannot be met at any epsilon up to 100 with 1,000 clients within 3 bytes",
        ),
        ((*FLEET, "--max-bytes", "4"), "buys no sketch of width 2: give at least 30"),
    ],
)
def test_what_cannot_be_planned_is_one_line(
    call: Call, arguments: tuple[str, ...], message: str
) -> None:
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
    assert not list(Path().glob("plan.*"))


def test_the_host_of_a_file_is_used(call: Call, tmp_path: Path) -> None:
    from dataclasses import replace

    from fedtally import __version__, kernels

    seconds = {name: 7 * value for name, value in REFERENCE.seconds.items()}
    mine = replace(REFERENCE, kernels=kernels.backend(), version=__version__, seconds=seconds)
    (tmp_path / "host.toml").write_text(mine.to_toml(), encoding="utf-8")
    asked = (*FLEET, "--tau", "0.01")
    bills = [
        json.loads(call(*asked, "--json", *more)[1])["bill"]
        for more in ((), ("--host", "host.toml"))
    ]
    assert [bill["calibrated"] for bill in bills] == [False, True]
    assert bills[1]["client_seconds"] == pytest.approx(7 * bills[0]["client_seconds"])
    notes = [call(*asked, "--details", *more)[1] for more in ((), ("--host", "host.toml"))]
    assert ["reference machine" in text for text in notes] == [True, False]


def test_a_host_that_cannot_be_read_is_said_before_any_work(call: Call, tmp_path: Path) -> None:
    (tmp_path / "host.toml").write_text("", encoding="utf-8")
    code, out, err = call(*FLEET, "--tau", "0.01", "--host", "host.toml", "-o", "plan.toml")
    assert (code, out) == (2, "")
    assert "--host host.toml: the host lacks schema, kernels, version, seconds" in err
    assert not (tmp_path / "plan.toml").exists()


def test_the_chart_marks_the_plan(call: Call) -> None:
    pytest.importorskip("matplotlib")
    code, _, err = call(*FLEET, "--tau", "0.01", "--plot", "plan.svg")
    assert code == 0
    drawn = Path("plan.svg").read_text(encoding="utf-8")
    assert re.search("the plan", drawn)
    assert "wrote plan.svg" in err


SILOS = ("--clients", "10", "--people", "5000", "--domain-size", "1000", "--tau", "0.01")


def test_a_plan_of_silos_is_published_and_says_what_is_special(account: Call) -> None:
    key = SigningKey(Secret(bytes(range(32)))).public.hex()
    asked = (*SILOS, "--epsilon", "1", "--secure-sum", "secagg", "--server-key", key)
    code, out, err = account(*asked, "-o", "plan.toml")
    assert code == 0
    plan, said = Plan.load("plan.toml"), words_of(out)
    assert plan.is_published and plan.people == 5000 and plan.num_clients == 10
    assert "Plan for 10 silos and 1,000 candidates" in said
    assert "of at most 5,000 people each; 50,000 people are expected" in said
    assert "4 to 12 with up to 20 % dropouts" in said
    assert "simulate" not in err
    assert plan.privacy is not None
    shown = 1.96 * plan.privacy.stddev
    assert f"a silo's size to ± {shown:.0f} people" in said
    code, out, _ = account(*asked, "--silos-per-person", "2", "--expected-people", "9000", "--json")
    found = json.loads(out)["silos"]
    assert (found["people"], found["expected_people"]) == (5000, 9000)
    assert found["size_shown"] > 1.9 * shown
    assert found["fitting"][0] == {"max_dropout": 0.0, "silos": [*range(3, 13)]}


@pytest.mark.parametrize("flag", ["--silos-per-person", "--expected-people"])
def test_options_of_silos_need_people(call: Call, flag: str) -> None:
    code, _, err = call(*FLEET, "--tau", "0.01", flag, "2")
    assert code == 2
    assert f"for silos {flag} goes with --people above 1" in err


def test_a_one_hot_vector_costs_its_protocol_too(account: Call) -> None:
    """Compared without it, a vector of 600 counters looked smaller than a sketch of 400."""
    asked = ("--clients", "3000", "--domain", "range:0..599", "--max-bytes", "4kB", "--rows", "7")
    code, out, _ = account(*asked, "--secure-sum", "secagg", "--output", "plan.toml")
    plan = Plan.load("plan.toml")
    assert code == 0 and isinstance(plan.secure_sum, SecAggConfig)
    entries = 600 - plan.rows * plan.width
    assert plan.one_hot_bytes_per_client == plan.bytes_per_client + entries * plan.modulus_bits / 8
    assert "a one-hot vector is no larger" not in words_of(out)


def test_the_tables_of_a_bill_are_whole_in_any_terminal(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[RenderableType] = []
    view = plan_view.view
    monkeypatch.setattr(plan_view, "view", lambda *given: shown.append(view(*given)) or "-")
    asked = ("--clients", "2000", "--domain-size", "99", "--max-bytes", "4kB", "--rows", "7")
    assert call(*asked, "--secure-sum", "secagg", "--details")[0] == 0
    figures = set(screen.plain(shown[0], 200).partition("What it costs")[2].split())
    for columns in (36, 60, 72, 80):
        out = screen.plain(shown[0], columns)
        assert max(map(len, out.splitlines())) <= columns
        tables = out.partition("What it costs")[2]
        rows = [line for line in tables.splitlines() if re.search(r" [kMG]?B( |$)", line)]
        assert len(rows) >= 11  # of stages, with their sum, and of sizes; one stage gets alone
        for row in rows:
            name, *rest = re.split(r" {2,}", row.strip())
            assert len(name) >= 6 and set(" ".join(rest).split()) <= figures
        gone = "columns: without the server sends, a client CPU; --json has all" in words_of(tables)
        assert gone is (columns == 60)
        assert ("columns: without" in tables) is (columns < 72)


# ---- ways out ----

_WAYS = {  # the words of a way out, and the option with which it is typed
    r"tau (\S+)": "--tau",
    r"epsilon (\S+)": "--epsilon",
    r"([\d,]+) clients": "--clients",
    r"([\d,]+) silos of as many people each": "--clients",
    r"cohorts of up to ([\d,]+) \(--max-cohort\)": "--max-cohort",
    r"([\d,]+) bytes": "--max-bytes",
}
_SMALL = "--clients 5000 --domain-size 300"
_slow = partial(pytest.param, marks=pytest.mark.slow)


def typed(arguments: list[str], way: str) -> tuple[str, list[str]]:
    """Return the option that a refusal says to change, and the arguments with that change."""
    [(number, option)] = [
        (found[1].replace(",", ""), option)
        for words, option in _WAYS.items()
        if (found := re.fullmatch(words, way))
    ]
    if option not in arguments:
        return option, [*arguments, option, number]
    place = arguments.index(option) + 1
    return option, [*arguments[:place], number, *arguments[place + 1 :]]


@pytest.mark.parametrize(
    ("asked", "options"),
    [
        _slow(f"{_SMALL} --tau 0.002 --epsilon 0.5 --recovery median", "tau epsilon clients"),
        _slow(f"{_SMALL} --tau 0.002 --epsilon 1 --max-bytes 200 --recovery median", "tau"),
        _slow(f"{_SMALL} --tau 0.002 --epsilon 1 --max-bytes 200", "tau"),
        _slow(f"{_SMALL} --tau 0.0002 --epsilon 1", "tau epsilon clients"),
        _slow(f"{_SMALL} --tau 0.01 --max-bytes 100", "tau max-bytes"),
        _slow(f"{_SMALL} --tau 0.01 --max-bytes 100 --like zipf:d=300", "tau max-bytes"),
        (f"{_SMALL} --tau 0.0001 --epsilon 1 --like zipf:d=300", "tau epsilon clients"),
        (f"{_SMALL} --tau 0.0001 --epsilon 1 --delta 0", "tau epsilon clients"),
        _slow(f"{_SMALL} --tau 0.001 --epsilon 0.5 --encoding histogram", "tau epsilon clients"),
        (f"{_SMALL} --tau 0.001 --epsilon 0.5 --rounds 4", "tau epsilon clients"),
        _slow(f"{_SMALL} --tau 0.001 --epsilon 1 --max-items 3", "tau epsilon clients"),
        (
            f"{_SMALL} --tau 0.01 --epsilon 0.5 --secure-sum secagg --max-cohort 100",
            "tau epsilon clients max-cohort",
        ),
        _slow(
            f"{_SMALL} --tau 0.0005 --epsilon 0.5 --secure-sum two-server", "tau epsilon clients"
        ),
        _slow(
            "--clients 10 --people 500 --domain-size 100 --tau 0.0005 --epsilon 1",
            "tau epsilon clients",
        ),
    ],
)
def test_each_way_out_of_a_target_can_be_typed(call: Call, asked: str, options: str) -> None:
    arguments = [*asked.split(), "--quiet"]
    code, _, err = call(*arguments)
    found = re.search("; (any of these|this) would do: (.*)", err)
    assert code == 2 and found is not None, err
    ways = found[2].split("; ")
    assert (found[1] == "this") == (len(ways) == 1)
    changed = dict(typed(arguments, way) for way in ways)
    assert " ".join(option.removeprefix("--") for option in changed) == options, err
    for new in changed.values():
        assert call(*new)[0] == 0, new
