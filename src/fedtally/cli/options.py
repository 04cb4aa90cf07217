"""The options that commands share, and the sources and domains that they name.

The text in brackets at the end of a help text is the default.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import click

from fedtally.base import validate
from fedtally.cli.console import check_standard_input, note
from fedtally.cli.layout import option, options
from fedtally.errors import InvalidInputError

if TYPE_CHECKING:
    from fedtally.domain import Domain, OpenStrings
    from fedtally.sources import Source

# The names in `fedtally.sketch.Recovery`. They are repeated here, once for all commands, because
# that package imports NumPy, for which no --help should wait. A test compares the two.
DECODERS = ("joint", "median", "belief", "direct")
# those of `fedtally.base.encoding.Encoding`, for the same reason
ENCODINGS = ("auto", "sketch", "histogram")


def size(text: str) -> int:
    """Return the number of bytes in a text such as 32kB, 1.5MB, 64KiB or 17, at least 1.

    >>> size("32kB"), size("64KiB"), size("1.5 mb"), size("17")
    (32000, 65536, 1500000, 17)
    """
    try:
        return validate.size(size=text)
    except InvalidInputError as error:
        raise click.BadParameter(str(error).removeprefix("size ")) from None


def positive(text: str) -> int:
    """Return the integer in a text, at least 1 and of at most 18 digits.

    >>> positive("12"), positive("1_000_000"), positive("1e6"), positive("2.5e6")
    (12, 1000000, 1000000, 2500000)
    """
    plain = text.strip().replace("_", "")
    # 1e6 and 2.5e6, but nothing that a float would round
    if re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,15})?[eE][0-9]{1,2}", plain):
        plain = f"{Decimal(plain):f}".removesuffix(".0")
    if not re.fullmatch("[0-9]{1,18}", plain) or int(plain) < 1:
        raise click.BadParameter(f"{text!r} is no integer of 1 or more")
    return int(plain)


def share(text: str) -> float:
    """Return the share in a text such as 0.001 or 0.1%; its bounds are checked where it is used.

    >>> share("0.001"), share("0.1%"), share("0.1 %"), share("1e-3")
    (0.001, 0.001, 0.001, 0.001)
    """
    number = text.strip().removesuffix("%")
    try:
        # decimals: 0.1 / 100 in binary need not be the number that 0.001 is
        return float(Decimal(number.strip()) / (100 if number != text.strip() else 1))
    except (ArithmeticError, ValueError):  # the latter: a signalling NaN
        raise click.BadParameter(f"{text!r} is no share: write it as 0.001 or 0.1%") from None


def listed(text: str) -> tuple[str, ...]:
    """Return the values between the commas.

    >>> listed("hybrid, fresh")
    ('hybrid', 'fresh')
    """
    return tuple(part.strip() for part in text.split(","))


table_options = options(
    option(
        "Data",
        "--item",
        metavar="COL",
        help="Column of the items (the only column, or `item`); LAT,LON for a grid.",
    ),
    option(
        "Data",
        "--client",
        metavar="COL",
        help=(
            "Column of the clients: rows of one client belong together (each row is a client; with"
            " --epsilon, each row is protected as a person)."
        ),
    ),
    option(
        "Data",
        "--count",
        metavar="COL",
        help="Column of counts: each row stands for that many clients.",
    ),
    option(
        "Data",
        "--format",
        type=click.Choice(["csv", "tsv", "json", "parquet", "feather", "text"]),
        help="Format (by the file's name).",
    ),
    option(
        "Data",
        "--delimiter",
        metavar="CHAR",
        help="Separator of CSV columns (a comma; a tab for TSV).",
    ),
    option(
        "Data",
        "--no-header",
        is_flag=True,
        help="The first row holds data; columns are called 1, 2, ...",
    ),
    option(
        "Data",
        "--text-encoding",
        default="utf8",
        metavar="NAME",
        help="Encoding of text, such as latin-1 (utf8).",
    ),
)
domain_options = options(
    option(
        "Data",
        "--domain",
        metavar="DOMAIN",
        help=(
            "Candidate items: a FILE with one a line, a table's column as FILE:COL, `range:A..B`,"
            " `grid:S..N,W..E,STEP`, `open` for strings of which nobody has the list, or `input`,"
            " the distinct items of the input (input; for a synthetic source its range)."
        ),
    ),
    option(
        "Data",
        "--outside",
        type=click.Choice(["error", "drop"]),
        help="What becomes of items outside the domain (error; with --epsilon drop).",
    ),
)


class _EncodingChoice(click.Choice):  # type: ignore[type-arg]  # Click 8.1 has no arguments of it
    """The encodings; whoever means that of a text file is told its option."""

    def fail(self, message: str, param: Any = None, ctx: Any = None) -> NoReturn:
        super().fail(f"{message} The encoding of text files is --text-encoding.", param, ctx)


max_bytes_option = option(
    "Size",
    "--max-bytes",
    type=size,
    metavar="SIZE",
    help="Upload per client and round, such as 32kB or 64KiB (32kB).",
)
_encoding = option(
    "Size",
    "--encoding",
    type=_EncodingChoice(ENCODINGS),
    default="auto",
    help=(
        "What a client sends: a sketch, or a histogram, with a counter for each candidate. auto is"
        " the histogram where it costs no more than a sketch may, or is worth its bytes (auto)."
    ),
)
budget_options = options(
    max_bytes_option,
    _encoding,
    option("Size", "--rows", type=positive, metavar="L", help="Rows of the sketch (chosen)."),
)
size_options = options(
    max_bytes_option,
    _encoding,
    option(
        "Size",
        "--rows",
        type=positive,
        metavar="L",
        help="Rows of the sketch (7; with --tau chosen).",
    ),
    option(
        "Size",
        "--width",
        type=positive,
        metavar="W",
        help="Counters per row (what fits --max-bytes).",
    ),
)
round_options = options(
    option(
        "Rounds",
        "--rounds",
        type=positive,
        metavar="M",
        help="Rounds that the clients are split over at random (1).",
    ),
    option(
        "Rounds",
        "--schedule",
        default="auto",
        metavar="NAME",
        help=(
            "Hashes of the rounds: shared, fresh, hybrid, batched:B, or batched:auto, the best"
            " number of batches (auto: shared for one round, else hybrid; batched where noise is"
            " added to the opened sums)."
        ),
    ),
)
tau_option = option(
    "Size",
    "--tau",
    type=share,
    metavar="ERR",
    help=(
        "The largest error of any frequency, such as 0.001 or 0.1%; the sketch becomes as small"
        " as that allows."
    ),
)
target_options = options(
    tau_option,
    option(
        "Size",
        "--failure-probability",
        type=click.FLOAT,
        default=0.1,
        metavar="P",
        help="Probability with which --tau may be exceeded (0.1).",
    ),
)
trust_options = options(
    option(
        "Trust",
        "--secure-sum",
        type=click.Choice(["ideal", "secagg", "two-server"]),
        help=(
            "ideal: a trusted server's sums; secagg, two-server: the real protocol, simulated"
            " (ideal)."
        ),
    ),
    option(
        "Trust",
        "--adversary",
        type=click.Choice(["semi-honest", "active"]),
        help=(
            "secagg protects from a server that follows the protocol, or from one that lies"
            " (semi-honest)."
        ),
    ),
    option(
        "Trust",
        "--max-dropout",
        type=click.FLOAT,
        metavar="SHARE",
        help=(
            "Share of a cohort that may drop out without loss of its sum (0.05, or --dropout of a"
            " simulation if that is more)."
        ),
    ),
    option(
        "Trust",
        "--max-corrupt",
        type=click.FLOAT,
        metavar="SHARE",
        help="Share of a cohort that may collude with the server (0.05).",
    ),
    option(
        "Trust",
        "--max-cohort",
        type=positive,
        metavar="N",
        help="Most clients that sum together; larger rounds are split (2000; active: 200).",
    ),
    option(
        "Trust",
        "--validity",
        type=click.Choice(["auto", "proofs", "none"]),
        help=(
            "two-server: proofs, so that a report is refused that is not of one item's form, or"
            " none (auto: proofs where they can be had)."
        ),
    ),
)
screen_option = option(
    "Trust",
    "--screen",
    type=click.Choice(["refuse", "warn", "off"]),
    help=(
        "If the sums of some secagg cohorts do not fit honest clients, leave these cohorts out"
        " (refuse) or say so (warn, the default where the plan allows it)."
    ),
)
answer_options = options(
    option(
        "Answer",
        "--top",
        type=click.INT,
        default=20,
        metavar="K",
        help="How many items are shown (20).",
    ),
    option(
        "Answer",
        "--min-frequency",
        type=share,
        metavar="F",
        help="Leave out smaller estimates; a share of clients such as 0.001 or 0.1% (none).",
    ),
    option(
        "Answer",
        "--query",
        multiple=True,
        metavar="ITEM",
        help="Also estimate this item; may be repeated.",
    ),
)
details_option = option(
    "Answer",
    "--details",
    is_flag=True,
    help="Also say how the answer was made, with every note.",
)
delta_option = option(
    "Privacy",
    "--delta",
    type=click.FLOAT,
    metavar="D",
    help=(
        "The delta of the guarantee (1e-6, or 1 / (10 clients) if that is less); 0: pure epsilon,"
        " for histograms."
    ),
)
mechanism_option = option(
    "Privacy",
    "--mechanism",
    type=click.Choice(["auto", "rounded-gaussian", "geometric"]),
    help=(
        "The noise that an aggregator adds: geometric noise is for histograms, and its guarantee"
        " needs no delta (auto: the one with the smaller error)."
    ),
)
trust_option = option(
    "Privacy",
    "--trust",
    type=click.Choice(["central", "distributed"]),
    help=(
        "central: the party that opens the sums adds the noise. distributed: clients or servers"
        " that do not trust each other do (central with an ideal secure sum, else distributed)."
    ),
)
neighbours_option = option(
    "Privacy",
    "--neighbours",
    type=click.Choice(["zero-out", "replace-one", "add-remove"]),
    help=(
        "The change that must not show: a client's items are taken away, or replaced, or the client"
        " itself is (zero-out)."
    ),
)
population_option = option(
    "Privacy", "--population", metavar="NAME", help="Population whose budget is charged (clients)."
)
privacy_options = options(
    option(
        "Privacy",
        "--epsilon",
        type=click.FLOAT,
        metavar="E",
        help="Make the campaign (epsilon, delta)-differentially private (off).",
    ),
    delta_option,
    mechanism_option,
    trust_option,
    neighbours_option,
    option(
        "Privacy",
        "--max-rounds",
        type=positive,
        metavar="K",
        help="Most natural rounds that one client takes part in (all).",
    ),
    option(
        "Privacy",
        "--max-clients",
        type=positive,
        metavar="N",
        help="add-remove: a public bound on the number of clients.",
    ),
    option(
        "Privacy",
        "--certify",
        is_flag=True,
        help="replace-one: look at all pairs of candidates, for less noise.",
    ),
    population_option,
    option(
        "Privacy",
        "--ledger",
        metavar="PATH|URL",
        help="Charge the campaign to this ledger: see fedtally ledger.",
    ),
    option(
        "Privacy",
        "--not-private",
        is_flag=True,
        help=(
            "Allow --seed, --evaluate and --domain input with --epsilon; every output then says so."
        ),
    ),
)
# names of options that are passed on as they are, to `Simulation.of`
PRIVACY = (
    "epsilon",
    "delta",
    "mechanism",
    "trust",
    "neighbours",
    "max_rounds",
    "max_clients",
    "certify",
    "population",
    "ledger",
    "not_private",
)
DECODING = ("recovery", "objective", "confidence", "intervals")
decoding_options = options(
    option(
        "Answer",
        "--recovery",
        type=click.Choice(["auto", *DECODERS]),
        default="auto",
        help=(
            "How sums are decoded: joint fits the heavy items together and undoes their collisions;"
            " belief propagation starts from joint and fits all items, with smaller errors; median"
            " is the paper's decoder; direct reads a histogram (auto: direct for a histogram;"
            " belief from 5 rows on, up to 2^17 candidates and 2^24 of candidates x rows x batches,"
            " and joint where that does not fit the sums; else joint from 3 rows on, up to 2^28"
            " candidates)."
        ),
    ),
    option(
        "Answer",
        "--objective",
        type=click.Choice(["linf", "l2"]),
        default="linf",
        help=(
            "The error to make small: the largest one, or the sum of squares, by shrinkage (linf)."
        ),
    ),
    option(
        "Answer",
        "--confidence",
        type=float,
        default=0.95,
        metavar="P",
        help="Confidence of the intervals; 0 for none, which is faster (0.95).",
    ),
    option(
        "Answer",
        "--intervals",
        type=click.Choice(["auto", "pointwise", "simultaneous"]),
        default="auto",
        help=(
            "auto: that share of the intervals in the list of the largest holds, on average, and"
            " each interval of an item named with --query holds with that confidence. pointwise:"
            " the latter for all items. simultaneous: all hold at once (auto)."
        ),
    ),
)
seed_option = option(
    "Run", "--seed", metavar="S", help="Repeat a run exactly (drawn by the operating system)."
)
run_options = options(
    seed_option,
    option(
        "Run", "--threads", type=click.IntRange(1, 1024), metavar="N", help="Threads (all cores)."
    ),
    option(
        "Run",
        "--json",
        "as_json",
        is_flag=True,
        help="Print one JSON document; errors too, on stderr.",
    ),
    option("Run", "--quiet", is_flag=True, help="No progress and no notes on stderr."),
)
title_option = option(
    "Files",
    "--title",
    needs="--report FILE.html",
    metavar="TEXT",
    help="Title of the report (made of the source's name).",
)
save_options = options(
    option(
        "Files",
        "--output",
        type=click.Path(),
        metavar="FILE",
        help="All estimates, as .csv or .parquet.",
    ),
    option(
        "Files",
        "--save",
        type=click.Path(),
        metavar="RESULT",
        help="The whole result, for `fedtally query` and `fedtally inspect`.",
    ),
    option(
        "Files",
        "--plot",
        type=click.Path(),
        metavar="FILE",
        help="Chart of the top items, as .png, .svg or .pdf (extra `plot`).",
    ),
    option(
        "Files",
        "--report",
        type=click.Path(),
        metavar="FILE",
        help="A report to share: one .html file (extra `report`).",
    ),
    title_option,
)


def use_threads(threads: int | None) -> None:
    """Bound the threads of the kernels in this process."""
    if threads is not None:
        os.environ["FEDTALLY_NUM_THREADS"] = str(threads)


open_options = options(
    option(
        "Data",
        "--max-length",
        type=positive,
        metavar="BYTES",
        help=(
            "With --domain open, for strings of which nobody has the list: longer ones are counted"
            " but not named (64)."
        ),
    ),
    option(
        "Data",
        "--normalise",
        type=click.Choice(["nfc"]),
        help=(
            "With --domain open: strings in normal form C of Unicode count as one, however they are"
            " written (each as it is)."
        ),
    ),
    option(
        "Privacy",
        "--allow-rare-names",
        is_flag=True,
        help=(
            "With --domain open and without --epsilon, run even if whoever opens a sum can read"
            " what single clients hold."
        ),
    ),
)


name_length_option = option(
    "Size",
    "--name-length",
    type=positive,
    metavar="BYTES",
    help=(
        "With --domain open: names of 9 of 10 frequent strings have at most so many bytes; longer"
        " ones need more clients (16)."
    ),
)


def read_name_length(options: dict[str, Any], domain: OpenStrings) -> int:
    """Return the bytes of the names that are planned for.

    Raises:
        InvalidInputError: longer than the longest that can be read.
    """
    from fedtally.base import validate
    from fedtally.planner.names import NAME_LENGTH

    if options["name_length"] is None:
        return min(NAME_LENGTH, domain.max_length)
    return validate.integer(1, domain.max_length, name_length=options["name_length"])


def read_open_domain(
    options: dict[str, Any], *more: str
) -> Domain | Literal["input", "open"] | None:
    """Return the candidates, of which nobody has the list where `--domain` is open.

    It is "open" where nothing else is said, so that a plan may say it.

    Args:
        options: the options of the command, with those of `open_options`.
        more: names of further options that go with an open domain alone.

    Raises:
        InvalidInputError: as `read_domain`; or an option goes with an open domain, and there is
            none.
    """
    from fedtally.domain import OpenStrings
    from fedtally.domain.open_strings import USUAL_LENGTH

    length, form = options["max_length"], options["normalise"]
    if options["domain"] == OpenStrings.kind:
        if length is None and form is None:
            return "open"
        return OpenStrings(USUAL_LENGTH if length is None else length, normalise=form)
    for name in ("max_length", "normalise", *more):
        if options[name]:
            flag = f"--{name.replace('_', '-')}"
            raise InvalidInputError(f"{flag} goes with --domain open: leave it out")
    return read_domain(options["domain"])


def read_domain(text: str | None) -> Domain | Literal["input"] | None:
    """Return the candidates that `--domain` names: a range, a grid, those in a file, or "input".

    Raises:
        InvalidInputError: the text is no file, and has none of these forms; or it is "open", which
            not all commands know.
    """
    from fedtally.domain import parse
    from fedtally.sources import list_path, read_candidates

    if text == "open":
        raise InvalidInputError(
            "--domain open is not for this command, which looks at a list of candidates: try an"
            " open domain with fedtally estimate or simulate; give a file, range:A..B or"
            " grid:S..N,W..E,STEP here"
        )
    if text is None:
        return None
    if text == "input":
        return "input"
    if text.startswith(("range:", "grid:")):
        return parse(text)
    if not os.path.exists(list_path(text)[0]):
        meant = validate.did_you_mean(text, ("input", "open")) or validate.did_you_mean_file(text)
        raise InvalidInputError(
            f"--domain {text}: there is no such file; give a FILE or FILE:COL, input, open,"
            f" range:A..B or grid:S..N,W..E,STEP{meant}"
        )
    return read_candidates(text)


def as_named(domain: Domain, texts: Sequence[str]) -> list[str | int]:
    """Return items in the type of the domain; a command line names them all as text.

    >>> from fedtally.domain import IntegerRange
    >>> as_named(IntegerRange(1, 9), ["7", "8"])
    [7, 8]

    Raises:
        InvalidInputError: the domain holds integers, and a text is none.
    """
    if domain.kind not in ("range", "integers"):
        return list(texts)
    for text in texts:
        if not re.fullmatch("-?[0-9]{1,30}", text):
            raise InvalidInputError(f"the domain holds integers, and {text[:60]!r} is none")
    # Integers beyond 64 bits stay text, which the domain refuses with an error of its own. NumPy
    # could not hold them.
    return (
        list(texts)
        if any(abs(int(text)) >= 2**63 for text in texts)
        else [int(text) for text in texts]
    )


def open_input(text: str, options: dict[str, Any]) -> Source:
    """Return the source that an argument and the data options name."""
    from fedtally.engines.local.seeds import population_rng
    from fedtally.sources import Columns, item_columns, open_source

    check_standard_input(text)
    if text == "-" and sys.stdin.isatty():
        note("reading items from the terminal, one a line; end with Ctrl-D", options["quiet"])
    columns = Columns(
        item_columns(options["item"], options["domain"]),
        options["client"],
        options.get("round"),
        options["count"],
        options.get("silo"),
    )
    return open_source(
        text,
        columns,
        format=options["format"],
        delimiter=options["delimiter"],
        header=not options["no_header"],
        encoding=options["text_encoding"],
        rng=population_rng(options["seed"]),
    )
