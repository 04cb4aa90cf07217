"""Options are written once: their checks, their names, and what is made of them."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import click
import pytest

import fedtally
from fedtally.base.encoding import Encoding
from fedtally.cli.app import run
from fedtally.cli.shared import positive
from fedtally.options import (
    DECODERS,
    ENCODINGS,
    OPTIONS,
    SECTIONS,
    SIZINGS,
    Door,
    Option,
    help_of,
    keywords_of,
    options_of,
    read_positive,
    read_share,
    read_size,
)
from fedtally.plan.design import DEFAULT_ROWS
from fedtally.plan.rules import SIZES
from fedtally.recovery.decoders import Recovery
from fedtally.recovery.decoding import Decoding
from fedtally.simulation.simulation import OPTIONS as SIMULATED
from fedtally.simulation.simulation import Sizing

SOURCE = Path(fedtally.__file__).parent
# the functions that take a table's partition, and `estimate`, by the file of each
FUNCTIONS = {
    "estimate": "simulation/estimate.py",
    "partial_tally": "simulation/partitions.py",
    "tally_dask": "simulation/dataframe/dask.py",
    "tally_spark": "simulation/dataframe/spark.py",
}


@cache
def reads(where: str, function: str = "") -> frozenset[str]:
    """Return what is read in a file, or a function of it: `name`, `object.name`, `object["name"]`.

    A keyword in a signature and a name that is assigned are not read.
    """
    tree: ast.AST = ast.parse((SOURCE / where).read_text(encoding="utf-8"))
    if function:
        tree = next(each for each in ast.walk(tree) if getattr(each, "name", "") == function)
    kinds = (ast.Name, ast.Attribute, ast.Subscript)
    return frozenset(
        ast.unparse(each)
        for each in ast.walk(tree)
        if isinstance(each, kinds) and isinstance(each.ctx, ast.Load)
    )


def unread(known: Iterable[Option]) -> list[str]:
    """Return the names of options that nobody reads where their door leads to."""
    request, simulation = reads("plan/request.py"), reads("simulation/simulation.py")
    below, commands = (
        frozenset[str]().union(*map(reads, files(room))) for room in ("simulation", "cli")
    )
    of_source = reads(FUNCTIONS["estimate"], "estimate")
    read_at = {
        Door.REQUEST: lambda name: f"self.{name}" in request or name in SIZES,
        Door.SIMULATION: lambda name: f"self.{name}" in simulation or f"simulation.{name}" in below,
        Door.MARK: lambda name: name in SIMULATED,  # `resolve` refuses a mark that it does not know
        Door.SOURCE: lambda name: name in of_source,
        Door.NONE: lambda name: bool({name, f"options[{name!r}]"} & commands),
    }
    return [each.name for each in known if not read_at[each.door](each.name)]


def files(folder: str) -> Iterator[str]:
    """Yield the files of a folder of the package, as `reads` takes them."""
    return (str(each.relative_to(SOURCE)) for each in (SOURCE / folder).glob("*.py"))


def test_every_option_is_read() -> None:
    assert unread(OPTIONS.values()) == []


@pytest.mark.parametrize("door", Door)
def test_an_option_that_nobody_reads_is_found(door: Door) -> None:
    forgotten = dataclasses.replace(OPTIONS["tau"], name="max_seconds", door=door)
    assert unread([*OPTIONS.values(), forgotten]) == ["max_seconds"]


@pytest.mark.parametrize(("function", "where"), list(FUNCTIONS.items())[1:])
def test_a_tally_reads_each_of_its_keywords(function: str, where: str) -> None:
    known = {each.name for each in options_of(function)}
    assert known and known <= reads(where, function)


def test_names_are_those_of_the_code_that_reads_them() -> None:
    assert tuple(map(str, Recovery)) == DECODERS
    assert ("auto", *map(str, Encoding)) == ENCODINGS
    assert tuple(map(str, Sizing)) == SIZINGS
    assert Decoding().confidence == OPTIONS["confidence"].default == 0.95


def test_a_keyword_of_estimate_is_an_option_and_every_option_of_python_a_keyword() -> None:
    found = inspect.signature(fedtally.estimate).parameters
    of_python = keywords_of(Door.SOURCE, Door.REQUEST, Door.MARK, Door.SIMULATION)
    assert [name for name in found if name != "data"] == list(of_python)
    for name in of_python:
        assert found[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert found[name].default == OPTIONS[name].default, name
        assert found[name].annotation == OPTIONS[name].type, name


def test_a_tally_has_the_keywords_that_name_it() -> None:
    found = list(inspect.signature(fedtally.partial_tally).parameters)
    written = [known.name for known in options_of("partial_tally")]
    assert found == ["data", "partition", *written, "private"]


def test_a_section_is_a_frozen_dataclass_with_the_defaults() -> None:
    for section in SECTIONS:
        made = section()
        for each in dataclasses.fields(section):
            assert getattr(made, each.name) == OPTIONS[each.name].default
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(made, each.name, None)


def test_names_and_flags_are_unique() -> None:
    names = [each.name for section in SECTIONS for each in dataclasses.fields(section)]
    flags = [known.flag for known in OPTIONS.values() if known.flag]
    assert len(names) == len(set(names)) and len(flags) == len(set(flags))


def test_a_command_may_have_its_own_text_and_default() -> None:
    assert OPTIONS["max_bytes"].shown_default().startswith("32kB for a sketch")
    assert OPTIONS["max_bytes"].places["demo"].shown_default() == "8kB"
    assert help_of(OPTIONS["rows"].places["estimate"]).endswith("[7; with --tau chosen]")
    assert help_of(OPTIONS["rows"].places["plan"]).endswith("[chosen]")
    places = OPTIONS["rows"].places
    assert places["demo"].shown_default() == str(DEFAULT_ROWS) == places["simulate"].default
    assert OPTIONS["num_rounds"].flag == "--rounds"
    assert OPTIONS["domain"].places["plan"].section == "Fleet"


def test_sizes_are_decimal_or_binary() -> None:
    typed = ("1", "1B", "1k", "1 KB", "1KiB", "2.5MB", "1GiB")
    assert [read_size(text) for text in typed] == [1, 1, 1000, 1000, 1024, 2_500_000, 2**30]
    for text in ("", "kB", "-1", "0", "1e3", "0.1", "1TBB"):
        with pytest.raises(ValueError, match="is no size"):
            read_size(text)


def test_integers_may_have_leading_zeros() -> None:
    assert read_positive("007") == 7


@pytest.mark.parametrize("read", [read_size, read_positive, read_share])
def test_a_reader_raises_a_value_error_that_says_what_is_wrong(read: object) -> None:
    assert callable(read)
    with pytest.raises(ValueError, match="'many' is no"):
        read("many")


def test_a_reader_of_the_command_line_speaks_as_click_does() -> None:
    assert positive("1e6") == 10**6
    with pytest.raises(click.BadParameter, match="'0' is no integer of 1 or more"):
        positive("0")


def test_whoever_means_another_option_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["estimate", "words.txt", "--encoding", "latin-1"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "The encoding of text files is --text-encoding" in said


def test_options_import_neither_click_nor_numpy() -> None:
    check = (
        "import sys, fedtally.options;"
        " sys.exit(sorted({'click', 'numpy', 'pyarrow'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
