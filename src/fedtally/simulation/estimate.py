"""The entry point for Python: `fedtally.estimate`, whose keywords are the options of a campaign."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from fedtally.answer.result import Result
from fedtally.base import validate
from fedtally.base.encoding import Encoding
from fedtally.campaign.screening import Screen
from fedtally.domain import Domain
from fedtally.errors import InvalidInputError, opt
from fedtally.plan import Plan
from fedtally.simulation.partial import Tallied, is_tally
from fedtally.simulation.randomness import population_rng
from fedtally.simulation.run import run
from fedtally.simulation.simulation import OPTIONS, Simulation, Sizing
from fedtally.sketch import Schedule
from fedtally.sources import (
    Columns,
    Source,
    from_items,
    from_table,
    is_table,
    item_columns,
    list_path,
    open_source,
)

_P = ParamSpec("_P")
_R = TypeVar("_R")


# options of the command line that say how a file is read
_OF_FILES = {"delimiter", "format", "text_encoding"}


def suggests_keywords(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return the function with better errors about keywords. Other calls do not change.

    A `TypeError` for an unknown keyword suggests a similar one that is known. An error about a file
    says what to do if it names an option that only the command line has.
    """
    known = list(inspect.signature(function).parameters)

    @wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        for name in kwargs:
            if name not in known:
                raise TypeError(
                    f"{function.__name__}() got an unexpected keyword argument {name!r}"
                    + validate.did_you_mean(name, known)
                )
        try:
            return function(*args, **kwargs)
        except InvalidInputError as error:
            if _OF_FILES.isdisjoint(error.options):
                raise
            raise type(error)(
                f"{error.marked}; {function.__name__}() has no option for that: read the file by"
                " pandas, such as by pandas.read_csv(..., dtype=str), and pass the frame"
            ) from error

    return call


# The keywords are written out, so that editors and type checkers know them.
@suggests_keywords
def estimate(
    data: Any,
    *,
    # keywords: written by tools/keywords.py
    item: str | tuple[str, str] | None = None,
    client: str | None = None,
    count: str | None = None,
    clients: Any = None,
    rounds: Any = None,
    counts: Any = None,
    domain: Domain | str | os.PathLike[str] | Sequence[str | int] | None = None,
    outside: str | None = None,
    dictionary: Any = None,
    name_length: int | None = None,
    allow_rare_names: bool = False,
    top: int = 20,
    evaluate: bool = False,
    recovery: str = "auto",
    objective: str = "linf",
    confidence: float = 0.95,
    intervals: str = "auto",
    max_bytes: int | str | None = None,
    tau: float | None = None,
    failure_probability: float = 0.1,
    width: int | None = None,
    rows: int | None = None,
    encoding: Encoding | str = "auto",
    sizing: Sizing | str | None = None,
    pilot_share: float | None = None,
    num_rounds: int | None = None,
    max_items: int | None = None,
    round: str | None = None,
    schedule: Schedule | str = "auto",
    until_known: bool = False,
    min_clients: int | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    population: str | None = None,
    ledger: str | os.PathLike[str] | None = None,
    trust: str | None = None,
    mechanism: str | None = None,
    neighbours: str | None = None,
    not_private: bool = False,
    max_rounds: int | None = None,
    max_clients: int | None = None,
    certify: bool = False,
    secure_sum: str | None = None,
    dropout: float = 0.0,
    adversary: str | None = None,
    max_dropout: float | None = None,
    max_corrupt: float | None = None,
    max_cohort: int | None = None,
    validity: str | None = None,
    screen: Screen | str | None = None,
    cohort: int | None = None,
    cohort_min: int | None = None,
    silo: str | None = None,
    people: int | None = None,
    silos_per_person: int | None = None,
    silos: Any = None,
    plan: Plan | str | os.PathLike[str] | None = None,
    seed: int | str | bytes | None = None,
    memory: int | str | None = None,
    # end of keywords
) -> Result:
    """Estimate how frequent each item is among simulated clients, through sketches.

    Args:
        data: the items, one a row, as a column: a list, NumPy array, Arrow array, pandas or Polars
            series of text or integers, or a float array (n, 2) of latitudes and longitudes for a
            grid. Or a table with named columns: the path of a CSV, TSV, Parquet, Feather, JSON
            lines or text file, also compressed (gz, bz2, xz, zst); a folder or a glob of such
            files; a pandas or Polars data frame, a Polars lazy frame, an Arrow table. Or a
            synthetic population such as "zipf:d=1000,n=20000". Or the table of `merge_tallies`,
            for a table that was counted in partitions.
        item: the table's column of the items, or for a grid a pair (latitude, longitude), also
            written "latitude,longitude"; by default the only column that plays no other part, or
            the one called "item".
        client: the table's column of the clients; None: each row is a client of its own, and with
            `epsilon` each row is protected as a person.
        count: the table's column of the number of clients that each row stands for.
        clients: with a column of items, the client of each row.
        rounds: with a column of items, the natural round of each row.
        counts: with a column of items, the number of clients that each row stands for.
        domain: the candidate items: a `Domain`, a list or another column of distinct items, text
            that `domain.parse` reads such as range:1..9 or grid:25..50,-130..-60,0.1, the path of a
            file with one item a line, or FILE:COL, a table's column, "open" for strings that nobody
            has listed, "input" for the distinct items of the input, or None: the own domain of a
            synthetic source, "input" elsewhere.
        outside: the fate of items outside a declared domain: "error" (the default) or "drop" (the
            default with `epsilon`).
        dictionary: a public list of words that may be the names of an open domain: the path of a
            file, FILE or FILE:COLUMN, or a column of text. Words are named sooner; no frequency
            changes.
        name_length: with `tau` and an open domain, bytes that 9 of 10 frequent names do not exceed
            (16); longer names need more clients.
        allow_rare_names: whether an open domain without `epsilon` is counted even if whoever opens
            a sum can read what single clients hold.
        top: the number of items that are listed, and that `evaluate` compares.
        evaluate: whether the true frequencies are computed, too, and shown beside the estimates,
            with the largest error. With `epsilon` this shows what noise hides, and needs
            `not_private`.
        recovery: the decoder of the sums: "joint", which fits the heavy items together and needs 3
            rows, "median", the paper's decoder, "belief", which starts from joint and has smaller
            errors where messages settle, "direct", the counters of a histogram, or "auto": direct
            for a histogram, and for a sketch belief from 5 rows on, up to 2^17 candidates and 2^24
            of candidates x rows x batches, else joint from 3 rows on, up to 2^28 candidates. Plans
            rest on joint under auto.
        objective: what is made small: "linf", the largest error, or "l2", the sum of squares, by
            shrinkage.
        confidence: the confidence of the intervals, below 1; 0 for none.
        intervals: the kind of the intervals: "pointwise", each holds with the `confidence`,
            "simultaneous", all hold at once, or "auto", pointwise, but those of a list allow for
            the choice of its items.
        max_bytes: the most that a client uploads in a round: bytes, or a text such as "16kB".
            Without it a sketch has 32 kB at most, and a histogram that auto takes 64 kB; with
            `tau`, `width` or `encoding` histogram it has the bytes that these need.
        tau: the largest error of any frequency; the sketch is made as small as it may be.
        failure_probability: the probability with which `tau` may be exceeded.
        width: counters per row; by default the widest that fits `max_bytes`.
        rows: rows of the sketch (7; with `tau` chosen).
        encoding: what a client sends: "sketch", or "histogram", with a counter for each candidate,
            or "auto": a histogram where it costs no more than a sketch may, or is worth its bytes.
        sizing: the way to find the sketch for `tau`: "model" (the default, from a pilot), or the
            paper's "two-phase" (from a pilot), "minimax", "linear" or "oracle" (from the truth).
        pilot_share: the share of the clients that are the pilot, and not in the campaign (as many
            as `tau` needs, at most 0.1).
        num_rounds: the number of rounds, of which each client has one, drawn uniformly (1); not
            where the rows name their rounds.
        max_items: the most items of one client, drawn uniformly from its distinct items (1).
        round: the table's column of natural rounds; None: clients are split over rounds at random.
            A client in several of them contributes to each.
        schedule: a schedule, or "auto": shared for one round, else hybrid, and under noise of a
            trusted aggregator, or of two servers, batches; "batched:auto": as many batches as are
            best.
        until_known: whether a campaign of several rounds ends as soon as its largest error is known
            to be at most `tau`; the rounds after that do not take place.
        min_clients: with `until_known`, the fewest clients before the campaign ends, who count in
            each round that they take part in; None: no bound.
        epsilon: the epsilon of an (epsilon, delta)-differentially private campaign; None: it is not
            private.
        delta: the delta of the guarantee (1e-6, or a tenth of one over the number of people if that
            is less); 0 asks for the mechanism geometric, whose guarantee needs none, and which
            `mechanism` auto may choose for a histogram.
        population: the population whose budget is charged ("clients").
        ledger: the path or URL of the ledger that is charged; None: none is.
        trust: who adds the noise: "central", the party that opens the sums (the default with an
            ideal secure sum), or "distributed" (the default with any other), clients or servers
            that do not trust each other.
        mechanism: the noise that an aggregator adds: "rounded-gaussian", or for a histogram
            "geometric"; None or "auto": the one with the smaller error, and with a `ledger`
            "rounded-gaussian", which composes better.
        neighbours: the change that must not show: "zero-out" (the default), a client's items are
            taken away, "replace-one", they are replaced, or "add-remove", the client itself is
            taken away.
        not_private: whether a seed, the truth, and the input's own items as candidates are allowed
            with `epsilon`. The result is marked not private.
        max_rounds: the most natural rounds that one client takes part in (all).
        max_clients: with the neighbours "add-remove", a public bound on the number of clients.
        certify: whether the worst pair of candidates is looked for, which needs less noise; with
            the neighbours "replace-one".
        secure_sum: who adds up: "ideal", a trusted server, or the real protocol between clients:
            "secagg" or "two-server"; by default what the plan says, else ideal.
        dropout: the share of each cohort's clients that drop out of it, at a stage drawn for each.
        adversary: the server that "secagg" protects from: "semi-honest", which follows the protocol
            (the default), or "active", which may lie.
        max_dropout: the share of a cohort that may drop out without loss of the sum (as many as do,
            at least 0.05).
        max_corrupt: the share of a cohort that may collude with the server (0.05). If clients are
            drawn for several sums, a smaller share of all clients may, which `fedtally plan` says.
            If the server may lie (active, two-server), the number of clients for one cohort holds
            for the whole list of clients, since the server picks who sums together.
        max_cohort: the most clients that sum together; larger rounds are split (2000; with the
            adversary active 200).
        validity: what "two-server" asks of a report: "proofs", so that a report without the form of
            one item is refused, or "none"; by default ("auto") proofs where they can be had: for
            one item a client.
        screen: what happens to cohorts of "secagg" whose sums honest clients cannot have: "refuse",
            "warn" or "off" ("warn", where the plan allows it; docs/threat-model.md).
        cohort: the clients of a full cohort of "secagg", instead of `max_cohort`: for a real
            campaign, whose sessions open with `cohort_min` to `cohort` clients (by default five
            quarters of `cohort_min`).
        cohort_min: the fewest clients with which a session may open (four fifths of `cohort`).
            Noise by clients is sized for so few.
        silo: the table's column of the silos, such as hospitals: then each holds the rows of its
            people, whom `client` names, and a person is what is counted and protected.
        people: the most people of a silo (as many as the largest has; with `epsilon` it must be
            given, since the sizes of silos are private).
        silos_per_person: the most silos that one person is counted in (1), drawn uniformly; more
            costs more noise.
        silos: with a column of items, the silo of each row.
        plan: a plan whose sizes, schedule and hash seed are used: a `Plan`, or the path of its
            .toml or .json file.
        seed: the seed of hashes and draws: an int, text or bytes; None: from the operating system.
            The order of rows and the number of threads change nothing; other kernels may change
            last digits.
        memory: the bytes that rows may take, or a text such as "2GiB" (1 GiB). Rows of clients
            beyond it go to disk. Reading takes half a gigabyte of it, even if it is smaller; the
            libraries, the distinct items and the answer come on top.

    Returns:
        The estimates of all candidates.

    Raises:
        InvalidInputError: data or options cannot be used; the message names keywords.
        AbortedRoundError: the protocol aborted a secure sum.
        PoisonedError: screening refused every round that has a sum.

    >>> words = ["the"] * 50 + ["of"] * 30 + ["and"] * 20
    >>> result = estimate(words, num_rounds=2, rows=5, width=256, seed=7, evaluate=True)
    >>> [(e.item, e.count) for e in result.top(3)]
    [('the', 50.0), ('of', 30.0), ('and', 20.0)]
    >>> result.evaluation.linf
    0.0
    """
    given = locals()
    of_silos = silo is not None or silos is not None
    simulation = Simulation.of(of_silos=of_silos, **{name: given[name] for name in OPTIONS})
    columns = Columns(item_columns(item, domain), client, round, count, silo)
    held = {"clients": clients, "silos": silos, "rounds": rounds, "counts": counts}
    source = source_of(data, columns, held, seed)
    if simulation.spec.is_private and not simulation.spec.accounting.is_not_private:
        check_public(data, domain)
        check_list(data, dictionary)
    return run(source, simulation)


def source_of(
    data: Any,
    columns: Columns,
    held: dict[str, Any],
    seed: int | str | bytes | None,
    *,
    is_one_of_many: bool = False,
) -> Source:
    """Return the source of items that the first argument of `estimate` describes.

    Args:
        data: the first argument of `estimate`.
        columns: the columns of a table.
        held: the columns that the caller gave beside a column of items, by keyword ("clients",
            "rounds", ...). The value of a keyword is None if its column was not given.
        seed: the seed of a synthetic population; None: from the operating system.
        is_one_of_many: whether a file is one of several files of one table. If so, a folder such as
            `day=2026-11-24` above the file may state the round of all rows in the file.

    Raises:
        InvalidInputError: the data and the columns do not go together, or cannot be read.
    """
    if isinstance(number := held.get("rounds"), int):
        raise InvalidInputError(
            f"rounds is a column with the round of each row, got {number}; the number of rounds is"
            f" num_rounds={number}"
        )
    apart = [name for name, column in held.items() if column is not None]
    if isinstance(data, bytes) or is_tally(data):
        if apart or columns.names():
            raise InvalidInputError(
                "a merged tally has no columns: those of its rows were named when they were counted"
            )
        return Tallied.of(data)
    is_file = isinstance(data, str | os.PathLike)
    if not is_file and not is_table(data):
        if columns.names():
            keyword = next(
                name
                for name in ("item", "client", "silo", "round", "count")
                if getattr(columns, name) is not None
            )
            hint = "" if keyword == "item" else f", or pass the column itself as {keyword}s"
            raise InvalidInputError(
                f"{keyword} names a column of a table, and {type(data).__name__} is no table: pass"
                f" a data frame or a path{hint}"
            )
        return from_items(data, **held)
    if apart:
        raise InvalidInputError(
            f"{apart[0]} is a column beside a column of items, and here is a table: name its"
            f" column by {apart[0].removesuffix('s')}=..."
        )
    if not is_file:
        return from_table(data, columns)
    path = os.fspath(data)
    if not isinstance(path, str):
        raise InvalidInputError(f"a path must be text, got {path!r}")
    try:
        return open_source(path, columns, rng=population_rng(seed), is_one_of_many=is_one_of_many)
    except InvalidInputError as error:
        if isinstance(data, str) and not os.path.exists(path) and path.isprintable():
            raise type(error)(f"{error.marked}; one item is written [{data[:60]!r}]") from None
        raise


def check_list(data: Any, dictionary: Any) -> None:
    """Refuse a list of known words that is the input itself: under privacy it must be public.

    Args:
        data: the input: a path, or any data.
        dictionary: the list of known words, as `estimate` takes it.

    Raises:
        InvalidInputError: list and input are the same object, or paths of the same file.
    """
    check_public(data, dictionary, "dictionary", "words")


def is_input(data: Any, domain: Any) -> bool:
    """Return whether the candidates are the input itself: the same object, or the same file."""
    if isinstance(data, str | os.PathLike) and isinstance(domain, str | os.PathLike):
        listed = list_path(os.fspath(domain))[0]
        known = os.path.exists(data) and os.path.exists(listed)
        return known and os.path.samefile(data, listed)
    return domain is not None and domain is data


def check_public(data: Any, domain: Any, name: str = "domain", what: str = "candidates") -> None:
    """Refuse candidates that are the input itself: under privacy they must be public.

    Args:
        data: the input: a path, or any data.
        domain: the domain, as the caller gave it.
        name: the name of the option with these candidates.
        what: the plural noun for the candidates.

    Raises:
        InvalidInputError: input and domain are the same object, or paths of the same file.
    """
    if is_input(data, domain):
        raise InvalidInputError(
            f"the {name} is the input itself: with {opt.epsilon} the {what} must be public; declare"
            f" a list that does not come from the clients ({opt[name]('FILE')}), or mark the run"
            f" with {opt.not_private(True)}"
        )
