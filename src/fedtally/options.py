"""Define each option once, for the command line and for the keywords of the library.

Four things are made from this file: the options of the commands; the keywords of
`fedtally.estimate`, `partial_tally`, `tally_dask` and `tally_spark`; the fields of
`plan.request.Request`; the reference page of all options. A section is a class whose fields are
options. To add an option, add a field to a section and run `tools/keywords.py`.

1. A help text is one clause of at most 12 words, and its first word is a verb.
2. `more` is for the reference and for docstrings: a noun phrase, clear without the option's name.
3. `{name}` in a text stands for another option. `spoken` replaces it by the spelling of this
   option in a shell or in Python.
4. Sections, and options in a section, stand in the order in which a user needs them.
5. This file imports neither click nor NumPy, which would make `--help` slow.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from decimal import Decimal
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Self, dataclass_transform

from fedtally.base import validate
from fedtally.base.text import shortened
from fedtally.errors import InvalidInputError

# The names are copied from `fedtally.recovery.decoders.Recovery`, `fedtally.base.encoding.Encoding`
# and `fedtally.simulation.simulation.Sizing`. They are not imported: `fedtally.simulation` would
# import NumPy. A test compares the copies.
DECODERS = ("joint", "median", "belief", "direct")
ENCODINGS = ("auto", "sketch", "histogram")
SIZINGS = ("model", "two-phase", "minimax", "linear", "oracle")
# The suffixes of files to which tables are written. `fedtally.answer.exports` pairs its writers
# with these suffixes by their order.
TABLES = (".csv", ".parquet")
AS_TABLE = f"{', '.join(TABLES[:-1])} or {TABLES[-1]}"
# Defaults that help texts of this module show.
MAX_CORRUPT = 0.05
MIN_DROPOUT = 0.05  # by default, cohorts tolerate at least this share of dropouts


# ---- checks: turn a typed text into a value, or raise ValueError ----


@dataclass(frozen=True)
class Check:
    """Which values an option accepts.

    Args:
        kind: the form of the values: "text", "path", "flag", "choice", "int", "range", "float" or
            "read".
        metavar: the name of a value in a help text, such as FILE.
        read: for the kind "read": a function that turns a typed text into a value, or raises
            ValueError.
        choices: for the kind "choice": the accepted values.
        bounds: for the kind "range": the least and the largest integer; None: no bound.
        own: for the kind "choice": the form of further values that are accepted, such as
            module:Class.
        is_many: whether the option may be repeated.
        instead: for the kind "choice": a hint for users whose value is not accepted.
    """

    kind: str
    metavar: str | None = None
    read: Callable[[str], Any] = str
    choices: tuple[str, ...] = ()
    bounds: tuple[int | None, int | None] = (None, None)
    own: str = ""
    is_many: bool = False
    instead: str = ""


def read_size(text: str) -> int:
    """Return the number of bytes that a text means, such as 32kB, 1.5MB, 64KiB or 17; at least 1.

    A text that is no size raises ValueError.

    >>> read_size("32kB"), read_size("64KiB"), read_size("1.5 mb"), read_size("17")
    (32000, 65536, 1500000, 17)
    """
    try:
        return validate.size(size=text)
    except InvalidInputError as error:
        raise ValueError(str(error).removeprefix("size ")) from None


def read_positive(text: str) -> int:
    """Return the integer that a text means, from 1 to 10^18 - 1. Other texts raise ValueError.

    >>> [read_positive(text) for text in ("12", "1_000_000", "1e6", "1.500e2")]
    [12, 1000000, 1000000, 150]
    """
    plain = text.strip().replace("_", "")
    # Expand powers of ten such as 2.5e6. Decimal is exact; a float would round large numbers.
    if re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,15})?[eE][0-9]{1,2}", plain):
        plain = re.sub(r"\.0+$", "", f"{Decimal(plain):f}")
    if re.fullmatch("0*[1-9][0-9]{18,}", plain):
        raise ValueError(f"{shortened(text, 40)!r} is too large: at most {10**18 - 1:,}")
    if not re.fullmatch("[0-9]{1,18}", plain) or int(plain) < 1:
        raise ValueError(f"{text!r} is no integer of 1 or more")
    return int(plain)


def read_seed(text: str) -> str:
    """Return the text of a seed. An empty text, as of an unset variable, raises ValueError.

    >>> read_seed("7")
    '7'
    """
    if not text:
        raise ValueError("the seed is empty: write a number or a word, or leave --seed out")
    return text


def read_share(text: str) -> float:
    """Return the share that a text means, such as 0.001 or 0.1%, as a float.

    Whether it is from 0 to 1 is not checked here, but where the share is used. So "nan" and "inf"
    pass here. A text that is no number raises ValueError.

    >>> read_share("0.001"), read_share("0.1%"), read_share("0.1 %"), read_share("1e-3")
    (0.001, 0.001, 0.001, 0.001)
    """
    number = text.strip().removesuffix("%")
    try:
        # Divide as Decimal: the float 0.1 / 100 may differ from the float 0.001.
        return float(Decimal(number.strip()) / (100 if number != text.strip() else 1))
    except (ArithmeticError, ValueError):  # a signalling NaN raises ValueError
        raise ValueError(f"{text!r} is no share: write it as 0.001 or 0.1%") from None


def read_list(text: str) -> tuple[str, ...]:
    """Return the values in a comma-separated list, without the spaces around them.

    An empty text gives one empty value.

    >>> read_list("hybrid, fresh")
    ('hybrid', 'fresh')
    """
    return tuple(part.strip() for part in text.split(","))


def read_window(text: str) -> str:
    """Return the text of a window of rounds without spaces around it, after checking its form.

    The form is all, auto, last:K with a positive integer K, or A..B with two texts A and B,
    neither of them empty, which name rounds. Other texts raise ValueError.

    >>> read_window("last:7"), read_window("2026-12-01..2026-12-07")
    ('last:7', '2026-12-01..2026-12-07')
    """
    window = text.strip()
    if window in ("all", "auto") or re.fullmatch("last:[1-9][0-9]{0,17}", window):
        return window
    first, dots, last = window.partition("..")
    if not (first and dots and last):
        one = window if re.fullmatch("[0-9]+(-[0-9]+)*", window) else "3"
        raise ValueError(
            f"{text!r} is no window: write all, auto, last:7 or 3..9; for one round {one}..{one}"
        )
    return window


def read_against(text: str) -> int | None:
    """Return the number of earlier rounds with which a window (some rounds) is compared.

    None means all earlier rounds.

    The text is "before" (None) or a positive integer. Other texts raise ValueError.

    >>> read_against("7"), read_against("before")
    (7, None)
    """
    if text.strip() == "before":
        return None
    if not re.fullmatch("[1-9][0-9]{0,17}", text.strip()):
        raise ValueError(f"{text!r} is no number of rounds: write before, or 7")
    return int(text)


def _text(metavar: str, *, is_many: bool = False) -> Check:
    return Check("text", metavar, is_many=is_many)


def _path(metavar: str = "FILE") -> Check:
    return Check("path", metavar)


def _choice(*choices: str, own: str = "", instead: str = "") -> Check:
    metavar = f"[{'|'.join((*choices, *own.split()))}]"
    return Check("choice", metavar, choices=choices, own=own, instead=instead)


def _positive(metavar: str) -> Check:
    return Check("read", metavar, read_positive)


def _size(metavar: str = "SIZE") -> Check:
    return Check("read", metavar, read_size)


def _share(metavar: str) -> Check:
    return Check("read", metavar, read_share)


def _number(metavar: str) -> Check:
    return Check("float", metavar)


def _integer(metavar: str) -> Check:
    return Check("int", metavar)


def _between(metavar: str, low: int, high: int | None = None) -> Check:
    return Check("range", metavar, bounds=(low, high))


_FLAG = Check("flag")


# ---- options ----


class Door(StrEnum):
    """The part of the Python API that takes an option as a keyword argument.

    Options of all doors except `NONE` are keywords of `fedtally.estimate`.
    """

    SOURCE = "source"  # a column of the data: its name in a table, or an array of values
    REQUEST = "request"  # a field of `plan.request.Request`
    MARK = "mark"  # an argument of `Request.resolve`, or a field of its argument `silos`
    SIMULATION = "simulation"  # a field of `simulation.simulation.Simulation`
    NONE = "none"  # no keyword: only the command line has the option


class _Required:
    """The default of an option that must be given.

    It counts as false, so no help text shows it as a default.
    """

    def __bool__(self) -> bool:
        return False


REQUIRED = _Required()


@dataclass(frozen=True, kw_only=True)
class Option:
    """An option, with its variants: a command may give it another help text or default.

    Attributes:
        help: the help text: one clause of at most 12 words, verb first.
        check: the values that the option accepts.
        default: the value if the option is not given; `REQUIRED`: the command fails without it.
        usual: the default in words, if the value alone does not explain it.
        more: the description in the reference, a noun phrase.
        door: the part of the Python API that takes the option.
        type: the type annotation of the keyword; "": the annotation of the field.
        flag: the spelling in a shell, where `{name}` stands for the name; "": only Python has the
            option.
        is_often: whether the short help `-h` shows the option.
        needs: another option as it is typed: commands refuse this one without it; "": none.
        section: the heading above the option in the help; "": the name of its section.
        places: a dict from each command and function that takes the option to the variant of the
            option there.
    """

    help: str
    check: Check
    default: Any = None
    usual: str = ""
    more: str = ""
    door: Door = Door.NONE
    type: str = ""
    flag: str = "--{name}"
    is_often: bool = False
    needs: str = ""
    section: str = ""
    places: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def on(self, *places: str, **own: Any) -> Self:
        """Return a copy of the option that is also taken by further commands or functions.

        Args:
            places: the names of commands, without the leading `fedtally`, and of functions.
            own: the fields of `Option` that have other values in these places.
        """
        here = replace(self, places={}, **own)
        return replace(self, places={**self.places, **dict.fromkeys(places, here)})

    def named(self, name: str, type: str, section: str) -> NamedOption:
        """Return the option, and its variants, with the name that its field in a section gives it.

        Args:
            name: the name of the field.
            type: the type annotation of the field.
            section: the name of the section.
        """
        places = {where: here.named(name, type, section) for where, here in self.places.items()}
        settings = {each.name: getattr(self, each.name) for each in fields(Option)} | {
            "type": self.type or type,
            "flag": self.flag.replace("{name}", name.replace("_", "-")),
            "section": self.section or section,
            "places": places,
        }
        return NamedOption(name=name, **settings)

    def shown_default(self) -> str:
        """Return the default as text for a help text; "": none is shown."""
        return self.usual or str(self.default or "")


@dataclass(frozen=True, kw_only=True)
class NamedOption(Option):
    """An option with the name that its field in a section gives it.

    Attributes:
        name: the name of the field, which is also the keyword in Python.
    """

    name: str


def option(help: str, check: Check, **settings: Any) -> Any:
    """Return an `Option` for a field of a section. `settings` are further fields of the option."""
    return Option(help=help, check=check, **settings)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(option,))
def _section(cls: type[Any]) -> Any:
    """Turn a section into a dataclass: each field's default and metadata come from its option."""
    for name, type_ in cls.__annotations__.items():
        known: NamedOption = getattr(cls, name).named(name, type_, cls.__name__)
        setattr(cls, name, field(default=known.default, metadata={"option": known}))
    # Nobody makes objects of a section, so it needs no methods to compare or to print them. Its
    # class attributes are the defaults of its options.
    return dataclass(frozen=True, kw_only=True, eq=False, repr=False)(cls)


# The commands that read a table, and the functions that count a table in partitions.
_READERS = ("estimate", "simulate")
_TALLIES = ("partial_tally", "tally_dask", "tally_spark")


@_section
class Data:
    """What is counted, and where it is read."""

    item: str | tuple[str, str] | None = (
        option(
            "Count the items in this column; LAT,LON for a grid",
            _text("COL"),
            usual="the only one, or `item`",
            more="the table's column of the items, or for a grid a pair (latitude, longitude), also"
            ' written "latitude,longitude"; by default the only column that plays no other part, or'
            ' the one called "item"',
            door=Door.SOURCE,
            is_often=True,
        )
        .on(*_READERS, *_TALLIES)
        .on(
            "trends",
            help="Show the line of this item over the rounds; may be repeated",
            check=_text("ITEM", is_many=True),
            usual="",
        )
    )
    client: str | None = (
        option(
            "Take the rows of one name in this column as one client",
            _text("COL"),
            usual="each row is a client",
            more="the table's column of the clients; None: each row is a client of its own, and"
            " with {epsilon} each row is protected as a person",
            door=Door.SOURCE,
            is_often=True,
        )
        .on(*_READERS)
        .on(
            *_TALLIES,
            more="the table's column of the clients; None: each row is a client of its own. It does"
            " not go with {round}, since a client's draws depend on all rounds",
        )
    )
    count: str | None = option(
        "Take each row for as many clients as this column says",
        _text("COL"),
        usual="1 each",
        more="the table's column of the number of clients that each row stands for",
        door=Door.SOURCE,
    ).on(*_READERS, *_TALLIES)
    format: str | None = option(
        "Read the file in this format",
        _choice("csv", "tsv", "json", "parquet", "feather", "text"),
        usual="by its name",
    ).on(*_READERS)
    delimiter: str | None = option(
        "Split the columns of CSV at this character",
        _text("CHAR"),
        usual="a comma; a tab for TSV",
    ).on(*_READERS)
    no_header: bool = option(
        "Read the first row as data, and call columns 1, 2, ...", _FLAG, default=False
    ).on(*_READERS)
    text_encoding: str = option(
        "Read text in this encoding, such as latin-1", _text("NAME"), default="utf8"
    ).on(*_READERS)
    clients: Any = option(
        "Name the client of each item",
        _text("COLUMN"),
        more="with a column of items, the client of each row",
        door=Door.SOURCE,
        flag="",
    ).on("partial_tally")
    rounds: Any = option(
        "Name the natural round of each item",
        _text("COLUMN"),
        more="with a column of items, the natural round of each row",
        door=Door.SOURCE,
        flag="",
    ).on("partial_tally")
    counts: Any = option(
        "Give the number of clients of each item",
        _text("COLUMN"),
        more="with a column of items, the number of clients that each row stands for",
        door=Door.SOURCE,
        flag="",
    ).on("partial_tally")


@_section
class Candidates:
    """Which items can be named: those of a list, or strings that the sums show."""

    domain: Any = (
        option(
            "Name the candidates: FILE, FILE:COL, range:A..B, grid:..., open or input",
            _path("DOMAIN"),
            usual="input; synthetic: its range",
            more="the candidate items: a `Domain`, a list or another column of distinct items, text"
            " that `domain.parse` reads such as range:1..9 or grid:25..50,-130..-60,0.1, the path"
            ' of a file with one item a line, or FILE:COL, a table\'s column, "open" for strings'
            ' that nobody has listed, "input" for the distinct items of the input, or None: the'
            ' own domain of a synthetic source, "input" elsewhere',
            door=Door.REQUEST,
            type="Domain | str | os.PathLike[str] | Sequence[str | int] | None",
            is_often=True,
        )
        .on(*_READERS)
        .on(
            "plan",
            help="Name the candidates: FILE, range:A..B, grid:... or open",
            usual="",
            section="Fleet",
        )
        .on(
            *_TALLIES,
            more="the candidates of the campaign, as for `estimate`, but not open; None: the"
            " distinct items of the input",
        )
    )
    outside: str | None = (
        option(
            "Refuse items outside the domain, or drop them",
            _choice("error", "drop"),
            usual="error; with {epsilon} drop",
            more='the fate of items outside a declared domain: "error" (the default) or "drop" (the'
            " default with {epsilon})",
            door=Door.SIMULATION,
        )
        .on(*_READERS)
        .on(
            *_TALLIES,
            more='the fate of items outside the domain: "error" (the default) or "drop" (the'
            " default with `private`)",
        )
    )
    dictionary: Any = option(
        "Read names of an open domain sooner, from this public list",
        _path("FILE[:COL]"),
        more="a public list of words that may be the names of an open domain: the path of a file,"
        " FILE or FILE:COLUMN, or a column of text. Words are named sooner; no frequency changes",
        door=Door.SIMULATION,
    ).on("estimate")
    max_length: int | None = option(
        "Name no string of an open domain longer than this",
        _positive("BYTES"),
        usual="64",
        more="with {domain} open, the longest string that is named; longer ones are counted",
    ).on(*_READERS, "plan")
    normalise: str | None = option(
        "Count strings of an open domain by their Unicode normal form",
        _choice("nfc"),
        usual="as they are",
        more="with {domain} open, the normal form C of Unicode: strings count as one, however they"
        " are written",
    ).on(*_READERS, "plan")
    name_length: int | None = option(
        "Plan for names of an open domain of at most this length",
        _positive("BYTES"),
        usual="16",
        more="with {tau} and an open domain, bytes that 9 of 10 frequent names do not exceed (16);"
        " longer names need more clients",
        door=Door.SIMULATION,
    ).on("estimate", "plan", "simulate")
    allow_rare_names: bool = option(
        "Allow sums that show single clients' strings, without {epsilon}",
        _FLAG,
        default=False,
        more="whether an open domain without {epsilon} is counted even if whoever opens a sum can"
        " read what single clients hold",
        door=Door.SIMULATION,
    ).on(*_READERS, "plan")


@_section
class Answer:
    """What is shown, and how it is read from the sums."""

    top: int = (
        option(
            "Show this many items",
            _integer("K"),
            default=20,
            more="the number of items that are listed, and that {evaluate} compares",
            door=Door.SIMULATION,
            is_often=True,
        )
        .on("estimate", "demo", "merge")
        .on("report", help="List this many items")
        .on("trends", help="Show this many items that changed")
        .on("campaign result", "aggregate leader result", check=_between("N", 0))
    )
    query: tuple[str, ...] = (
        option("Estimate this item, too; may be repeated", _text("ITEM", is_many=True), default=())
        .on("estimate", "merge")
        .on("demo", is_often=True)
    )
    evaluate: bool = option(
        "Compare with the truth, which a simulation knows",
        _FLAG,
        default=False,
        more="whether the true frequencies are computed, too, and shown beside the estimates, with"
        " the largest error. With {epsilon} this shows what noise hides, and needs {not_private}",
        door=Door.SIMULATION,
        is_often=True,
    ).on("estimate")
    disjoint: bool = option(
        "Say that no client is in two of these results", _FLAG, default=False
    ).on("merge")
    min_frequency: float | None = option(
        "List no estimates below this share, such as 0.001 or 0.1%",
        _share("F"),
        usual="none",
        more="on the screen, in {as_json} and in the report; the file of {output} has all rows",
    ).on("estimate", "demo")
    details: bool = (
        option("Print how the answer was made, with every note", _FLAG, default=False)
        .on("estimate", "query", "merge", "campaign result", "aggregate leader result")
        .on("demo", is_often=True)
        .on("plan", help="Print the whole account: privacy, sums, stages, sizes", is_often=True)
    )
    window: str = (
        option(
            "Take these landed rounds alone: all, auto, last:K or A..B",
            Check("read", "W", read_window),
            default="all",
        )
        .on("estimate", "query", "report", "campaign result", "aggregate leader result")
        .on(
            "trends",
            help="Compare these landed rounds: last:K, A..B or auto",
            default="last:1",
            is_often=True,
        )
    )
    history: int = option(
        "Use this many landed rounds to read a window; 0: its own",
        _between("N", 0),
        default=64,
    ).on("estimate", "query", "report", "campaign result", "aggregate leader result", "trends")
    recovery: str = (
        option(
            "Decode the sums in this way",
            _choice("auto", *DECODERS),
            default="auto",
            more='the decoder of the sums: "joint", which fits the heavy items together and needs 3'
            ' rows, "median", the paper\'s decoder, "belief", which starts from joint and has'
            ' smaller errors where messages settle, "direct", the counters of a histogram, or'
            ' "auto": direct for a histogram, and for a sketch belief from 5 rows on, up to 2^17'
            " candidates and 2^24 of candidates x rows x batches, else joint from 3 rows on, up to"
            " 2^28 candidates. Plans rest on joint under auto",
            door=Door.REQUEST,
        )
        .on("estimate")
        .on("demo", is_often=True)
        .on("plan", help="Plan for this decoder")
        .on(
            "simulate",
            help="Decode the sums in this way, or by a decoder of yours",
            check=_choice("auto", *DECODERS, own="module:Class"),
            section="Study",
            is_often=True,
        )
        .on(
            "query",
            "trends",
            help="Decode the sums anew, in this way",
            default=None,
            usual="as saved",
        )
    )
    objective: str = option(
        "Make small the largest error, or the sum of squares",
        _choice("linf", "l2"),
        default="linf",
        more='what is made small: "linf", the largest error, or "l2", the sum of squares, by'
        " shrinkage",
        door=Door.REQUEST,
    ).on("estimate", "demo")
    confidence: float = (
        option(
            "Set the confidence of the intervals; 0 for none, which is faster",
            _number("P"),
            default=0.95,
            more="the confidence of the intervals, below 1; 0 for none",
            door=Door.REQUEST,
        )
        .on("estimate")
        .on("demo", is_often=True)
        .on("query", default=None, usual="as saved")
        .on("trends", help="Set the confidence of the limits", default=None, usual="as saved")
    )
    intervals: str = (
        option(
            "Choose what the confidence holds for: each interval, or all",
            _choice("auto", "pointwise", "simultaneous"),
            default="auto",
            more='the kind of the intervals: "pointwise", each holds with the {confidence},'
            ' "simultaneous", all hold at once, or "auto", pointwise, but those of a list allow for'
            " the choice of its items",
            door=Door.REQUEST,
        )
        .on("estimate", "demo")
        .on("query", default=None, usual="as saved")
    )


@_section
class Files:
    """What is written."""

    save: str | None = option(
        "Save the whole result, for fedtally query and merge",
        _path("RESULT"),
        is_often=True,
    ).on("estimate", "demo")
    report: str | None = (
        option("Write a report to share, one .html file (extra `report`)", _path(), is_often=True)
        .on("estimate", "demo", "merge")
        .on("plan", help="Write a page of error against bytes, .html (extra `report`)")
    )
    output: str | None = (
        option(f"Write all estimates, as {AS_TABLE}", _path())
        .on("estimate", "demo", "merge")
        .on("simulate", help=f"Write all repeats, as {AS_TABLE}", is_often=True)
    )
    plot: str | None = (
        option("Draw the top items, as .png, .svg or .pdf (extra `plot`)", _path())
        .on("estimate", "demo")
        .on("plan", "simulate", help="Draw error against bytes (extra `plot`)")
        .on(
            "trends",
            help="Draw up to seven lines with bands (extra `plot`)",
            is_often=True,
        )
    )
    title: str | None = option(
        "Give the report this title",
        _text("TEXT"),
        usual="made of the source's name",
        needs="--report FILE.html",
    ).on("estimate", "demo", "merge", "report")


@_section
class Size:
    """What an upload may cost, or how large the error of the answer may be."""

    max_bytes: int | str | None = (
        option(
            "Bound the upload per client and round, such as 16kB or 64KiB",
            _size(),
            usual="32kB for a sketch, and up to 64kB for a histogram",
            more='the most that a client uploads in a round: bytes, or a text such as "16kB".'
            " Without it a sketch has 32 kB at most, and a histogram that auto takes 64 kB; with"
            " {tau}, {width} or {encoding} histogram it has the bytes that these need",
            door=Door.REQUEST,
            is_often=True,
        )
        .on("estimate", "plan")
        .on(
            "simulate",
            help="Plan an open domain for this upload, such as 16kB",
            usual="32kB",
            is_often=False,
        )
        .on("demo", usual="8kB")
    )
    tau: float | None = (
        option(
            "Take the smallest sketch whose largest error stays below this share",
            _share("ERR"),
            more="the largest error of any frequency; the sketch is made as small as it may be",
            door=Door.REQUEST,
            is_often=True,
        )
        .on("estimate", "plan")
        .on("simulate", help="Plan an open domain for this largest error")
    )
    failure_probability: float = option(
        "Allow a larger error than {tau} with this probability",
        _number("P"),
        default=0.1,
        more="the probability with which {tau} may be exceeded",
        door=Door.REQUEST,
    ).on("estimate", "plan")
    width: int | None = (
        option(
            "Set the counters per row of the sketch",
            _positive("W"),
            usual="what fits {max_bytes}",
            more="counters per row; by default the widest that fits {max_bytes}",
            door=Door.REQUEST,
        )
        .on("estimate")
        .on("demo", is_often=True)
        .on(
            "simulate",
            help="Compare these numbers of counters per row",
            check=Check("read", "LIST", read_list),
            default="200,1000",
            usual="",
            section="Study",
            is_often=True,
        )
    )
    rows: int | None = (
        option(
            "Set the rows of the sketch",
            _positive("L"),
            usual="7; with {tau} chosen",
            more="rows of the sketch (7; with {tau} chosen)",
            door=Door.REQUEST,
        )
        .on("estimate")
        .on("demo", usual="7", is_often=True)
        .on("plan", usual="chosen")
        .on("simulate", section="Study", default="7", usual="", is_often=True)
    )
    encoding: Any = option(
        "Send a sketch, or a histogram: a counter for each candidate",
        _choice(*ENCODINGS, instead="The encoding of text files is --text-encoding."),
        default="auto",
        more='what a client sends: "sketch", or "histogram", with a counter for each candidate, or'
        ' "auto": a histogram where it costs no more than a sketch may, or is worth its bytes',
        door=Door.REQUEST,
        type="Encoding | str",
    ).on("estimate", "demo", "plan")
    sizing: Any = option(
        "Find the size for {tau} by the model, or the paper's formulas",
        _choice(*SIZINGS),
        usual="model",
        more='the way to find the sketch for {tau}: "model" (the default, from a pilot), or the'
        ' paper\'s "two-phase" (from a pilot), "minimax", "linear" or "oracle" (from the truth)',
        door=Door.SIMULATION,
        type="Sizing | str | None",
    ).on("estimate")
    pilot_share: float | None = option(
        "Take this share of the clients as the pilot, outside the estimates",
        _number("SHARE"),
        usual="what {tau} needs, at most 0.1",
        more="the share of the clients that are the pilot, and not in the campaign (as many as"
        " {tau} needs, at most 0.1)",
        door=Door.SIMULATION,
    ).on("estimate")


@_section
class Rounds:
    """When clients take part, and with how many items."""

    num_rounds: int | None = (
        option(
            "Split the clients at random over this many rounds",
            _positive("M"),
            usual="1",
            more="the number of rounds, of which each client has one, drawn uniformly (1); not"
            " where the rows name their rounds",
            door=Door.REQUEST,
            flag="--rounds",
            is_often=True,
        )
        .on("estimate", "plan", *_TALLIES)
        .on("demo", usual="10")
        .on("simulate", section="Study", default="10", usual="")
    )
    max_items: int | None = (
        option(
            "Count at most K items of each client, drawn at random",
            _positive("K"),
            usual="1",
            more="the most items of one client, drawn uniformly from its distinct items (1)",
            door=Door.REQUEST,
            is_often=True,
        )
        .on("estimate", *_TALLIES)
        .on("plan", help="Plan for clients of at most K items", section="Fleet")
    )
    round: str | None = option(
        "Take the rounds from this column, instead of {num_rounds}",
        _text("COL"),
        more="the table's column of natural rounds; None: clients are split over rounds at random."
        " A client in several of them contributes to each",
        door=Door.SOURCE,
    ).on("estimate", *_TALLIES)
    schedule: Any = option(
        "Hash as shared, fresh, hybrid, batched:B or batched:auto over the rounds",
        _text("NAME"),
        default="auto",
        more='a schedule, or "auto": shared for one round, else hybrid, and under noise of a'
        ' trusted aggregator, or of two servers, batches; "batched:auto": as many batches as'
        " are best",
        door=Door.REQUEST,
        type="Schedule | str",
    ).on("estimate", "demo", "plan")
    until_known: bool = option(
        "End as soon as the error is known to be within {tau}",
        _FLAG,
        default=False,
        more="whether a campaign of several rounds ends as soon as its largest error is known to be"
        " at most {tau}; the rounds after that do not take place",
        door=Door.SIMULATION,
    ).on("estimate", "plan")
    min_clients: int | None = option(
        "Count at least N clients before {until_known} ends the campaign",
        _positive("N"),
        usual="no bound",
        more="with {until_known}, the fewest clients before the campaign ends, who count in each"
        " round that they take part in; None: no bound",
        door=Door.SIMULATION,
        needs="--until-known",
    ).on("estimate", "plan")
    start: str | None = option(
        "Open the first round on this day, or at this time, UTC",
        _text("DAY"),
        usual="rounds have no calendar",
    ).on("plan")
    period: str | None = option(
        "Open each round for this long, as 6h, 1d or 7d",
        _text("TIME"),
        usual="1d",
        needs="--start DAY",
    ).on("plan")
    participations: int | None = option(
        "Let a client take part in at most K rounds, with epsilon",
        _positive("K"),
        usual="1",
        needs="--start DAY",
    ).on("plan")
    per_rounds: int | None = option(
        "Count {participations}, and {epsilon}, over any R rounds in a row",
        _positive("R"),
        usual="over all rounds",
        needs="--start DAY",
    ).on("plan")


@_section
class Privacy:
    """What an answer may tell of one client."""

    epsilon: float | None = (
        option(
            "Make the campaign (epsilon, delta)-differentially private",
            _number("E"),
            usual="off",
            more="the epsilon of an (epsilon, delta)-differentially private campaign; None: it is"
            " not private",
            door=Door.REQUEST,
            is_often=True,
        )
        .on("estimate")
        .on("demo", help="Add the noise of this epsilon; marks the run not private")
        .on("simulate", help="Add the noise of this epsilon")
        .on(
            "plan",
            help="Plan differential privacy with this epsilon; none for no privacy",
            check=_text("E"),
            usual="none; with both {tau} and {max_bytes} the least",
        )
        .on(
            "ledger grant",
            help="Grant this total; replaces an earlier grant",
            usual="",
            section="Budget",
            default=REQUIRED,
        )
        .on(
            "dap leader init",
            "dap helper init",
            help="Add noise at each server, for this epsilon of a report",
            usual="none",
            section="Noise",
        )
        .on(
            "dap collect",
            help="Say which epsilon the servers add noise for",
            usual="none",
            section="Noise",
        )
    )
    delta: float | None = (
        option(
            "Set the delta of the guarantee; only histograms allow 0",
            _number("D"),
            usual="1e-6, or 0.1/clients if less; none with geometric noise",
            more="the delta of the guarantee (1e-6, or a tenth of one over the number of people if"
            " that is less); 0 asks for the mechanism geometric, whose guarantee needs none, and"
            " which {mechanism} auto may choose for a histogram",
            door=Door.REQUEST,
        )
        .on("estimate", "demo", "plan")
        .on("simulate", help="Set the delta of the guarantee")
        .on(
            "ledger grant",
            help="Grant this total for good, below 1/clients; 0 for geometric noise",
            usual="",
            section="Budget",
            default=REQUIRED,
        )
        .on(
            "dap leader init",
            "dap helper init",
            "dap collect",
            help="Allow this delta beside epsilon",
            default=1e-6,
            usual="1e-6",
            section="Noise",
        )
    )
    population: str | None = (
        option(
            "Charge the budget of this population",
            _text("NAME"),
            usual="clients",
            more='the population whose budget is charged ("clients")',
            door=Door.REQUEST,
        )
        .on("estimate", "plan")
        .on("dap leader init", "dap helper init", default="clients", section="Noise")
        .on(
            "ledger grant",
            help="Grant to this population; those that overlap are one",
            usual="",
            section="Ledger",
            default=REQUIRED,
        )
        .on(
            "ledger show",
            "ledger export",
            help="Show this population alone",
            usual="all",
            section="Ledger",
        )
    )
    ledger: str | os.PathLike[str] | None = (
        option(
            "Charge this ledger: see fedtally ledger",
            _text("PATH|URL"),
            usual="none",
            more="the path or URL of the ledger that is charged; None: none is",
            door=Door.SIMULATION,
        )
        .on("estimate")
        .on(
            "campaign init",
            "aggregate leader init",
            "aggregate helper init",
            help="Charge this ledger, for a plan with privacy",
            section="Files",
        )
        .on(
            "dap leader init",
            "dap helper init",
            help="Charge this ledger before noise is drawn",
            usual="required with --epsilon",
            section="Noise",
        )
        .on(
            "ledger grant",
            "ledger show",
            "ledger export",
            help="Use this SQLite file, or postgresql://...",
            usual="",
            section="Ledger",
            default=REQUIRED,
        )
    )
    trust: str | None = (
        option(
            "Let the aggregator add the noise, or clients or servers",
            _choice("central", "distributed"),
            usual="central with ideal sums, else distributed",
            more='who adds the noise: "central", the party that opens the sums (the default with an'
            ' ideal secure sum), or "distributed" (the default with any other), clients or servers'
            " that do not trust each other",
            door=Door.REQUEST,
        )
        .on("estimate", "plan")
        .on("simulate", help="Add noise to shared sums, or to every round", usual="central")
    )
    mechanism: str | None = option(
        "Add this noise; geometric is for histograms and needs no delta",
        _choice("auto", "rounded-gaussian", "geometric"),
        usual="auto: the smaller error",
        more='the noise that an aggregator adds: "rounded-gaussian", or for a histogram'
        ' "geometric"; None or "auto": the one with the smaller error, and with a {ledger}'
        ' "rounded-gaussian", which composes better',
        door=Door.REQUEST,
    ).on("estimate", "plan")
    neighbours: str | None = option(
        "Hide this change: items removed or replaced, or a client removed",
        _choice("zero-out", "replace-one", "add-remove"),
        usual="zero-out",
        more='the change that must not show: "zero-out" (the default), a client\'s items are taken'
        ' away, "replace-one", they are replaced, or "add-remove", the client itself is taken away',
        door=Door.REQUEST,
    ).on("estimate", "plan")
    not_private: bool = (
        option(
            "Allow {seed}, {evaluate} and {domain} input with {epsilon}, and say so",
            _FLAG,
            default=False,
            more="whether a seed, the truth, and the input's own items as candidates are allowed"
            " with {epsilon}. The result is marked not private",
            door=Door.MARK,
        )
        .on("estimate")
        .on("plan", help="Allow --like a RESULT that is not private")
    )
    max_rounds: int | None = option(
        "Bound the natural rounds of one client",
        _positive("K"),
        usual="all",
        more="the most natural rounds that one client takes part in (all)",
        door=Door.REQUEST,
    ).on("estimate")
    max_clients: int | None = option(
        "Bound the clients in public, for {neighbours} add-remove",
        _positive("N"),
        more='with the neighbours "add-remove", a public bound on the number of clients',
        door=Door.REQUEST,
    ).on("estimate")
    certify: bool = option(
        "Look at all pairs of candidates, for less noise with replace-one",
        _FLAG,
        default=False,
        more="whether the worst pair of candidates is looked for, which needs less noise; with the"
        ' neighbours "replace-one"',
        door=Door.REQUEST,
    ).on("estimate")


@_section
class Trust:
    """Who adds up what clients send, and who may lie or drop out."""

    secure_sum: str | None = (
        option(
            "Sum by a trusted server, or by the real protocol, simulated",
            _choice("ideal", "secagg", "two-server"),
            usual="ideal",
            more='who adds up: "ideal", a trusted server, or the real protocol between clients:'
            ' "secagg" or "two-server"; by default what the plan says, else ideal',
            door=Door.REQUEST,
            is_often=True,
        )
        .on("estimate")
        .on("plan", help="Sum by a trusted server, or by one of these protocols")
    )
    dropout: float = option(
        "Let this share of the clients drop out",
        _number("SHARE"),
        default=0.0,
        usual="0",
        more="the share of each cohort's clients that drop out of it, at a stage drawn for each",
        door=Door.MARK,
    ).on("estimate")
    adversary: str | None = option(
        "Protect from a server that follows secagg, or from one that lies",
        _choice("semi-honest", "active"),
        usual="semi-honest",
        more='the server that "secagg" protects from: "semi-honest", which follows the protocol'
        ' (the default), or "active", which may lie',
        door=Door.REQUEST,
    ).on("estimate", "plan")
    max_dropout: float | None = (
        option(
            "Keep the sum of a cohort if this share drops out",
            _number("SHARE"),
            usual=f"{MIN_DROPOUT}, or {{dropout}} if more",
            more="the share of a cohort that may drop out without loss of the sum (as many as do,"
            f" at least {MIN_DROPOUT})",
            door=Door.REQUEST,
        )
        .on("estimate")
        .on("plan", usual=str(MIN_DROPOUT))
    )
    max_corrupt: float | None = option(
        "Protect although SHARE of one sum, not of everybody, helps the server",
        _number("SHARE"),
        usual=str(MAX_CORRUPT),
        more=f"the share of a cohort that may collude with the server ({MAX_CORRUPT}). If clients"
        " are drawn for several sums, a smaller share of all clients may, which `fedtally plan`"
        " says. If the server may lie (active, two-server), the number of clients for one cohort"
        " holds for the whole list of clients, since the server picks who sums together",
        door=Door.REQUEST,
    ).on("estimate", "plan")
    max_cohort: int | None = option(
        "Sum at most N clients together; larger rounds are split",
        _positive("N"),
        usual="2000; active 200",
        more="the most clients that sum together; larger rounds are split (2000; with the adversary"
        " active 200)",
        door=Door.REQUEST,
    ).on("estimate", "plan")
    validity: str | None = option(
        "Ask for proofs that reports to two servers have the right form",
        _choice("auto", "proofs", "none"),
        usual="auto: where they can be had",
        more='what "two-server" asks of a report: "proofs", so that a report without the form of'
        ' one item is refused, or "none"; by default ("auto") proofs where they can be had: for one'
        " item a client",
        door=Door.REQUEST,
    ).on("estimate", "plan")
    screen: Any = option(
        "Leave out, or report, secagg cohorts whose sums no honest clients have",
        _choice("refuse", "warn", "off"),
        usual="warn where the plan allows it",
        more='what happens to cohorts of "secagg" whose sums honest clients cannot have: "refuse",'
        ' "warn" or "off" ("warn", where the plan allows it; docs/threat-model.md)',
        door=Door.SIMULATION,
        type="Screen | str | None",
    ).on("estimate", "campaign init")
    cohort: int | None = option(
        "Plan sessions of secagg that open with at most N clients",
        _positive("N"),
        usual="5/4 of {cohort_min}",
        more='the clients of a full cohort of "secagg", instead of {max_cohort}: for a real'
        " campaign, whose sessions open with {cohort_min} to {cohort} clients (by default five"
        " quarters of {cohort_min})",
        door=Door.REQUEST,
    ).on("plan")
    cohort_min: int | None = option(
        "Open a session of secagg with at least N clients",
        _positive("N"),
        usual="4/5 of {cohort}",
        more="the fewest clients with which a session may open (four fifths of {cohort}). Noise by"
        " clients is sized for so few",
        door=Door.REQUEST,
    ).on("plan")


@_section
class Silos:
    """Many people behind one client, such as the patients of a hospital."""

    silo: str | None = option(
        "Read the silo, such as a hospital, from this column",
        _text("COL"),
        more="the table's column of the silos, such as hospitals: then each holds the rows of its"
        " people, whom {client} names, and a person is what is counted and protected",
        door=Door.SOURCE,
    ).on("estimate")
    people: int | None = (
        option(
            "Bound the people of a silo; needed with {epsilon}",
            _positive("N"),
            usual="as many as the largest has",
            more="the most people of a silo (as many as the largest has; with {epsilon} it must be"
            " given, since the sizes of silos are private)",
            door=Door.MARK,
        )
        .on("estimate")
        .on(
            "plan",
            help="Plan for silos, such as hospitals, of at most N people",
            usual="clients are no silos",
            section="Fleet",
            is_often=True,
        )
    )
    silos_per_person: int | None = (
        option(
            "Count one person in at most K silos, drawn at random",
            _positive("K"),
            usual="1",
            more="the most silos that one person is counted in (1), drawn uniformly; more costs"
            " more noise",
            door=Door.MARK,
        )
        .on("estimate")
        .on("plan", help="Plan for people who are in at most K silos")
    )
    silos: Any = option(
        "Name the silo of each item",
        _text("COLUMN"),
        more="with a column of items, the silo of each row",
        door=Door.SOURCE,
        flag="",
    )


@_section
class Run:
    """How a command runs, and how it prints."""

    plan: Any = (
        option(
            "Take sizes, rounds, schedule and hashes from this plan",
            _path(),
            more="a plan whose sizes, schedule and hash seed are used: a `Plan`, or the path of its"
            " .toml or .json file",
            door=Door.REQUEST,
            type="Plan | str | os.PathLike[str] | None",
        )
        .on("Request", type="Plan | None")
        .on("estimate")
        .on(
            "simulate",
            help="Test this plan against its target, instead of comparing methods",
            section="Study",
            is_often=True,
        )
        .on(
            "campaign init",
            help="Copy this published plan, which secagg sums",
            section="Files",
            default=REQUIRED,
        )
        .on(
            "aggregate leader init",
            "aggregate helper init",
            help="Copy this published plan, which two servers sum",
            section="Files",
            default=REQUIRED,
            is_often=True,
        )
        .on(
            "agent check",
            help="Check this plan",
            usual="those that were accepted",
            section="Files",
        )
    )
    as_json: bool = (
        option(
            "Print one JSON document; errors too, on stderr",
            _FLAG,
            default=False,
            more="most other commands that print an answer or a state take it, too: query, merge,"
            " trends, ledger show, campaign status",
            flag="--json",
        )
        .on("estimate", "simulate", "demo", is_often=True)
        .on("plan")
        .on("agent run", help="Print one JSON document a line on stderr")
    )
    seed: int | str | bytes | None = (
        option(
            "Repeat a run exactly",
            Check("read", "S", read_seed),
            usual="drawn by the operating system",
            more="the seed of hashes and draws: an int, text or bytes; None: from the operating"
            " system. The order of rows and the number of threads change nothing; other kernels"
            " may change last digits",
            door=Door.SIMULATION,
        )
        .on("estimate", "plan", "simulate")
        .on(
            *_TALLIES,
            more="the seed of the campaign. It is needed where the candidates are the items of the"
            " input, or clients are named. With `private` it is a secret of the workers, and the"
            " campaign has another",
        )
        .on("demo", help="Draw words, rounds and hashes from S", usual="demo", is_often=True)
        .on(
            "sample",
            help="Draw other tables than the documentation's",
            check=_between("S", 0),
            default=0,
            usual="0",
        )
        .on(
            "show",
            help="Draw words, hashes, masks and noise from S",
            check=_between("S", 0),
            usual="at random",
        )
    )
    memory: int | str | None = (
        option(
            "Bound the memory for rows, and for --output",
            _size(),
            usual="1GiB for rows; half of the machine's for the file",
            more='the bytes that rows may take, or a text such as "2GiB" (1 GiB). Rows of clients'
            " beyond it go to disk. Reading takes half a gigabyte of it, even if it is smaller; the"
            " libraries, the distinct items and the answer come on top",
            door=Door.SIMULATION,
        )
        .on("estimate", "partial_tally")
        .on(
            "tally_dask",
            "tally_spark",
            more="the memory for the rows of each partition that is being counted, as for"
            " `estimate`",
        )
    )
    threads: int | None = option(
        "Use this many threads", _between("N", 1, 1024), usual="all cores"
    ).on("estimate", "demo", "plan", "simulate")
    quiet: bool = (
        option("Print no progress and no notes", _FLAG, default=False)
        .on("estimate", "demo", "plan", "simulate")
        .on("audit", help="Print no progress")
        .on("campaign run", help="Print no progress; problems are still printed")
    )


SECTIONS: tuple[type, ...] = (
    Data,
    Candidates,
    Answer,
    Files,
    Size,
    Rounds,
    Privacy,
    Trust,
    Silos,
    Run,
)
# All options by name, in the order in which the sections list them.
OPTIONS: Mapping[str, NamedOption] = MappingProxyType(
    {each.name: each.metadata["option"] for section in SECTIONS for each in fields(section)}
)


def options_of(place: str) -> Iterator[NamedOption]:
    """Yield the options of one command or function, in the order of the sections.

    Each option is the variant that this command or function takes. An unknown name has no options.

    Args:
        place: the name of the command, without the leading `fedtally`, or of the function.

    >>> [each.flag for each in options_of("report")]
    ['--top', '--window', '--history', '--title']
    """
    return (each.places[place] for each in OPTIONS.values() if place in each.places)


def keywords_of(*doors: Door) -> tuple[str, ...]:
    """Return the names of the options of these doors, in the order of the sections.

    A door is a part of the Python API, see `Door`.

    >>> keywords_of(Door.MARK)
    ('not_private', 'dropout', 'people', 'silos_per_person')
    """
    return tuple(each.name for each in OPTIONS.values() if each.door in doors)


def spoken(text: str, name: Callable[[NamedOption], str]) -> str:
    """Return a text in which each `{option}` is replaced by the reader's spelling of this option.

    Args:
        text: a text with names of options in braces.
        name: a function that returns the spelling of an option.

    >>> spoken("7; with {tau} chosen", lambda option: option.flag)
    '7; with --tau chosen'
    """
    return re.sub(r"\{(\w+)\}", lambda found: name(OPTIONS[found[1]]), text)


def help_of(known: Option) -> str:
    """Return the help text of an option on the command line.

    If a default is shown (`Option.shown_default`), it follows in brackets.

    >>> help_of(OPTIONS["max_bytes"].places["demo"])
    'Bound the upload per client and round, such as 16kB or 64KiB [8kB]'
    """
    default = known.shown_default()
    text = f"{known.help} [{default}]" if default else known.help
    return spoken(text, lambda other: other.flag)
