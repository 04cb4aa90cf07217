"""How errors name options: as the reader types them, and nothing else changes."""

from __future__ import annotations

import ast
import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import fedtally
from fedtally.base.text import escaped
from fedtally.cli.app import cli, run
from fedtally.errors import (
    FedtallyError,
    InvalidInputError,
    MissingExtraError,
    arg,
    flag,
    opt,
    reason,
    render,
)
from fedtally.plan.rules import RULES, Need, check, given, unmet
from fedtally.simulation.simulation import OPTIONS

MARKS = {letter for mark in (opt.seed, arg.seed) for letter in mark if not letter.isascii()}
SOURCE = Path(fedtally.__file__).parent


def commands(group: click.Group) -> Iterator[click.Command]:
    for command in group.commands.values():
        if isinstance(command, click.Group):
            yield from commands(command)
        else:
            yield command


def options() -> set[str]:
    """Return every option of every command, as it is typed."""
    return {
        name
        for command in commands(cli)
        for one in command.params
        if isinstance(one, click.Option)
        for name in one.opts
    }


def named() -> Iterator[tuple[str, str]]:
    """Yield each `opt.NAME` of the package, and where it stands."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == "opt"
            ):
                yield node.attr, f"{path.name}:{node.lineno}"


def test_each_option_that_a_message_names_is_one() -> None:
    known = options()
    found = list(named())
    assert len(found) > 100
    assert [place for name, place in found if flag(name) not in known] == []


def test_no_mark_is_left_in_braces() -> None:
    """A message that lost the f before its quotes would show them."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                is_example = ">>>" in node.value  # of a docstring
                assert is_example or not re.search(r"\{(opt|arg)[.\[]", node.value), path


def test_each_option_of_a_rule_is_one() -> None:
    known = options()
    asked = [option for rule in RULES for option in rule.options]
    assert [name for name in asked if flag(name) not in known] == []
    assert {rule.need for rule in RULES} == set(Need)  # no need without a row


def test_each_row_of_the_rules_refuses() -> None:
    for rule in RULES:
        for option in rule.options:
            value = rule.values[0] if rule.values else "1"
            with pytest.raises(InvalidInputError) as caught:
                check(given(**{option: value}), {rule.need: "something else"})
            said = render(caught.value.marked, for_="shell")
            assert caught.value.option == option
            assert flag(option) in said and "got something else" in said
            assert "{" not in said and not MARKS & set(said)
            check(given(**{option: value}), {})  # the need is met
            if rule.values:
                check(given(**{option: "another"}), {rule.need: ""})


def test_a_rule_shows_no_value_but_those_it_is_for() -> None:
    """A seed, a path of a ledger with a password: what was given may be a secret."""
    for rule in RULES:
        if not rule.values:
            error = rule.refusal(rule.options[0], "hunter2 {0} {seed}", "")
            assert "hunter2" not in error.marked


def test_what_is_given() -> None:
    assert given(a=None, b=False, c="auto", d=0, e=0.0, f="", g=True) == {
        "d": 0,
        "e": 0.0,
        "f": "",
        "g": True,
    }
    assert unmet(epsilon=None, tau="") == {}


@pytest.mark.parametrize(
    ("message", "python", "shell", "file"),
    [
        (opt.seed, "seed=", "--seed", "seed"),
        (opt.num_rounds, "num_rounds=", "--rounds", "num_rounds"),
        (opt.text_encoding, "encoding=", "--text-encoding", "encoding"),
        (opt.not_private(True), "not_private=True", "--not-private", "not_private = True"),
        (opt.top(5), "top=5", "--top 5", "top = 5"),
        (opt.tau(0.001), "tau=0.001", "--tau 0.001", "tau = 0.001"),
        (opt.delimiter(","), "delimiter=','", "--delimiter ','", "delimiter = ','"),
        (opt.delimiter("\t"), r"delimiter='\t'", r"--delimiter '\t'", r"delimiter = '\t'"),
        (opt.epsilon("..."), "epsilon=...", "--epsilon ...", "epsilon = ..."),
        (opt.save("a'b"), """save="a'b\"""", """--save 'a'"'"'b'""", """save = "a'b\""""),
        (opt.ledger("a b"), "ledger='a b'", "--ledger 'a b'", "ledger = 'a b'"),
        (arg.seed, "seed", "seed", "seed"),
        ("a seed, seed= and --seed", *["a seed, seed= and --seed"] * 3),
        ("", "", "", ""),
    ],
)
def test_a_name_as_its_reader_types_it(message: str, python: str, shell: str, file: str) -> None:
    assert render(message, for_="python") == python
    assert render(message, for_="shell") == shell
    assert render(message, for_="file") == file


def test_an_argument_is_an_option_where_the_command_has_it() -> None:
    assert render(arg.num_rounds, for_="shell", flags=["--rounds"]) == "--rounds"
    assert render(arg.num_rounds, for_="python", flags=["--rounds"]) == "num_rounds"
    assert arg["target.tau"] == "target.tau"  # an entry of a plan is no argument


def test_an_error_knows_its_options_and_holds_no_marks() -> None:
    error = InvalidInputError(f"{arg.top} is odd beside {opt.seed}")
    assert (error.option, error.options) == ("top", ("top", "seed"))
    assert str(error) == "top is odd beside seed=" and error.args == (str(error),)
    assert error.in_shell == "top is odd beside --seed"
    assert InvalidInputError("odd").option is None and FedtallyError().option is None
    again = copy.copy(error)  # made of its arguments and attributes, as between processes
    assert (str(again), again.marked, again.option) == (str(error), error.marked, "top")
    # within another error it keeps its marks, and of a file it names entries
    assert InvalidInputError(f"of {error.marked}").options == error.options
    assert reason(error) == ": top is odd beside seed"


@pytest.mark.parametrize("kind", [InvalidInputError, MissingExtraError])
def test_an_error_that_speaks_shell_prints_so(kind: type[FedtallyError]) -> None:
    """Also an ImportError, whose text is not made of its arguments."""
    error = kind(f"{arg.top} needs an extra: leave {opt.seed} out")
    assert str(error) == "top needs an extra: leave seed= out"
    error.speak_shell(["--top"])
    assert str(error) == "--top needs an extra: leave --seed out" == error.args[0]


@pytest.mark.parametrize(
    "name",
    [
        "{opt.seed}",
        "{0}{seed}",
        "%s --seed seed=",
        "\ue000seed\ue001",
        "\uf8ff",
        "\ufdd0seed\ufdd1",
    ],
)
def test_values_stay_as_they_are(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"{name}.csv"
    with pytest.raises(InvalidInputError) as caught:
        fedtally.estimate(str(path), item="word")
    assert str(path) in str(caught.value) and caught.value.option is None
    assert run(["estimate", str(path)]) == 2
    assert escaped(str(path)) in capsys.readouterr().err
    assert run(["estimate", str(path), "--json"]) == 2
    said = json.loads(capsys.readouterr().err)["error"]["message"]
    assert str(path) in said


def test_no_bytes_hold_a_mark(tmp_path: Path) -> None:
    """Names of files, words of a command line and items are decoded from bytes."""
    for mark in MARKS:
        with pytest.raises(UnicodeEncodeError):
            mark.encode()
        with pytest.raises(UnicodeEncodeError):
            (tmp_path / mark).write_text("")
        with pytest.raises(UnicodeDecodeError):
            mark.encode(errors="surrogatepass").decode()
        assert mark not in bytes(range(256)).decode(errors="surrogateescape")
        assert escaped(mark) != mark and mark not in repr(mark)


def test_a_value_from_json_makes_no_option(tmp_path: Path) -> None:
    """JSON alone can write half a surrogate pair: such a value is shown with escapes."""
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"schema": f"{opt.seed}"}))
    with pytest.raises(InvalidInputError) as caught:
        fedtally.Plan.load(path)
    assert caught.value.option is None and "seed=" not in str(caught.value)


@pytest.mark.parametrize(
    ("typed", "keywords", "option"),
    [
        (["--epsilon", "1", "--seed", "7"], {"epsilon": 1.0, "seed": 7}, "seed"),
        (["--max-items", "2"], {"max_items": 2}, "max_items"),
        (["--max-corrupt", "2"], {"max_corrupt": 2}, "max_corrupt"),
        (["--delta", "0.1"], {"delta": 0.1}, "delta"),
    ],
)
def test_one_refusal_in_two_languages(
    typed: list[str],
    keywords: dict[str, object],
    option: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "words.txt"
    path.write_text("tea\nrice\n")
    domain = "range:1..9" if "epsilon" in keywords else None
    with pytest.raises(InvalidInputError) as caught:
        fedtally.estimate(path, domain=domain, **keywords)  # type: ignore[arg-type]
    assert caught.value.option == option and "--" not in str(caught.value)
    asked = ["estimate", str(path), *typed, *(["--domain", domain] if domain else [])]
    assert run(asked) == 2
    said = capsys.readouterr().err
    assert flag(option) in said and f"{option}=" not in said


def test_keywords_have_the_names_of_options() -> None:
    known = options()
    assert {name for name in OPTIONS if flag(name) not in known} == set()


@pytest.mark.parametrize(
    ("keywords", "python", "shell"),
    [
        # each refusal names what its reader must type, and no bare word or flag of another door
        ({"dropout": 0.3, "max_dropout": 0.1, "secure_sum": "secagg"}, "dropout", "--dropout"),
        ({"silo": "silo", "client": "who", "secure_sum": "two-server"}, "='secagg'", "m secagg"),
        ({"silo": "silo", "client": "who", "epsilon": 1}, "people=N", "--people N"),
        ({"tau": 0.3, "recovery": "median"}, "sizing='minimax'", "--sizing minimax"),
        ({"client": "who", "count": "n"}, "count= or client=", "--count or --client"),
        ({"recovery": "joint", "encoding": "histogram"}, "recovery= out", "--recovery out"),
        ({"epsilon": 1, "delta": 1.0}, "delta", "--delta"),
    ],
)
def test_refusals_name_what_is_typed(
    keywords: dict[str, object],
    python: str,
    shell: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("item,who,n,silo\n" + "".join(f"{i % 5},{i},1,{i % 3}\n" for i in range(60)))
    with pytest.raises(InvalidInputError) as caught:
        fedtally.estimate(
            path,
            item="item",
            domain="range:0..9",
            top=3,
            **keywords,  # type: ignore[arg-type]
        )
    assert caught.value.option is not None
    assert python in str(caught.value) and "--" not in str(caught.value)
    typed = [word for name, value in keywords.items() for word in (flag(name), str(value))]
    assert run(["estimate", str(path), "--item", "item", "--domain", "range:0..9", *typed]) == 2
    assert shell in capsys.readouterr().err


def test_a_refusal_names_options_that_its_command_has(capsys: pytest.CaptureFixture[str]) -> None:
    fleet = ["--clients", "100", "--domain-size", "10", "--secure-sum", "secagg"]
    assert run(["plan", *fleet, "--adversary", "active", "--max-corrupt", "0.4"]) == 2
    assert "lower --max-corrupt or --max-dropout" in capsys.readouterr().err


def test_columns_of_what_has_none_are_named() -> None:
    with pytest.raises(InvalidInputError, match="leave item= and client= out") as caught:
        fedtally.estimate("zipf:d=9,n=9", item="word", client="who")
    assert caught.value.options == ("item", "client")


def test_candidates_that_are_the_input_are_refused_in_the_words_of_python() -> None:
    words = ["tea", "rice", "rye"]
    with pytest.raises(InvalidInputError, match="domain=FILE") as caught:
        fedtally.estimate(words, domain=words, epsilon=1)
    assert "--" not in str(caught.value)
