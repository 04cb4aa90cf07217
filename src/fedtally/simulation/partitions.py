"""Count a table on several machines: each counts a partition, and one machine adds the counts up.

The sums of a campaign depend only on counts. So any system that runs a function on each partition
can count: Dask, Spark, Ray, Beam, or a shell on several machines.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any

from fedtally.base import validate
from fedtally.domain import Domain, OpenStrings
from fedtally.errors import InvalidInputError, arg, opt
from fedtally.plan.rules import OUTSIDE_TELLS, check, given, unmet
from fedtally.simulation.census import declared, encoder_of
from fedtally.simulation.estimate import is_input, source_of, suggests_keywords
from fedtally.simulation.item_ids import fate_outside
from fedtally.simulation.partial import Content, Rules, is_tally, merged
from fedtally.simulation.randomness import campaign_seed, simulation_rng
from fedtally.simulation.row_counts import Tally
from fedtally.simulation.simulation import row_bytes
from fedtally.sources import Columns, domain_of, item_columns

if TYPE_CHECKING:
    import pyarrow as pa


@suggests_keywords
def partial_tally(
    data: Any,
    *,
    partition: str | int,
    # keywords: written by tools/keywords.py
    item: str | tuple[str, str] | None = None,
    client: str | None = None,
    count: str | None = None,
    clients: Any = None,
    rounds: Any = None,
    counts: Any = None,
    domain: Domain | str | os.PathLike[str] | Sequence[str | int] | None = None,
    outside: str | None = None,
    num_rounds: int | None = None,
    max_items: int | None = None,
    round: str | None = None,
    seed: int | str | bytes | None = None,
    memory: int | str | None = None,
    # end of keywords
    private: bool = False,
) -> pa.Table:
    """Count the rows of one partition of a table, for a campaign over the whole table.

    `merge_tallies` adds up the counts of all partitions, and `estimate` takes the sum instead of
    the table. Without `private` and with one `seed`, the result is bit for bit the result of
    `estimate` on the whole table, however the rows of the table are spread over partitions.

    With `client`, all rows of a client must be **in one partition**: shuffle the table by client
    first. A client in two partitions would contribute twice. `merge_tallies` finds this if it
    concerns many clients, but may miss a few.

    The counts are exact and, unless candidates are declared, come with the items. They are as
    secret as the table.

    Args:
        data: the rows of the partition, as for `estimate`: a table, its path, or a column of items.
            A file is read as one of a folder: folders such as ``day=2026-11-24`` above it may be
            the rounds.
        partition: the name of the partition, different for each. A partition that is counted twice
            under one name, for instance since a worker died, counts once.
        item: the table's column of the items, or for a grid a pair (latitude, longitude), also
            written "latitude,longitude"; by default the only column that plays no other part, or
            the one called "item".
        client: the table's column of the clients; None: each row is a client of its own. It does
            not go with `round`, since a client's draws depend on all rounds.
        count: the table's column of the number of clients that each row stands for.
        clients: with a column of items, the client of each row.
        rounds: with a column of items, the natural round of each row.
        counts: with a column of items, the number of clients that each row stands for.
        domain: the candidates of the campaign, as for `estimate`, but not open; None: the distinct
            items of the input.
        outside: the fate of items outside the domain: "error" (the default) or "drop" (the default
            with `private`).
        num_rounds: the number of rounds, of which each client has one, drawn uniformly (1); not
            where the rows name their rounds.
        max_items: the most items of one client, drawn uniformly from its distinct items (1).
        round: the table's column of natural rounds; None: clients are split over rounds at random.
            A client in several of them contributes to each.
        seed: the seed of the campaign. It is needed where the candidates are the items of the
            input, or clients are named. With `private` it is a secret of the workers, and the
            campaign has another.
        memory: the bytes that rows may take, or a text such as "2GiB" (1 GiB). Rows of clients
            beyond it go to disk. Reading takes half a gigabyte of it, even if it is smaller; the
            libraries, the distinct items and the answer come on top.
        private: whether the campaign has an epsilon. If so, a row that cannot be read is no error,
            and clients without items take part.

    Returns:
        The counts, for `merge_tallies`: a `pyarrow.Table` with the columns ``round`` (the number of
        the round from 0, int32), ``id`` (of the item, uint64) and ``count`` (how many clients hold
        the item, int64). Unless candidates are declared, rows with the items follow, in a column
        ``item``. Keep the metadata of the schema: `merge_tallies` needs it.

    Raises:
        InvalidInputError: data or options cannot be used.

    >>> import fedtally
    >>> parts = [["tea", "rice"], ["tea"]]
    >>> counted = [fedtally.partial_tally(x, partition=i, seed=7) for i, x in enumerate(parts)]
    >>> result = fedtally.estimate(fedtally.merge_tallies(counted), seed=7)
    >>> [(each.item, round(each.count)) for each in result.top(2)]
    [('tea', 2), ('rice', 1)]
    """
    name = _name_of(partition)
    if private and is_input(data, domain):
        raise InvalidInputError(
            "the domain is the partition itself: with private the candidates must be public;"
            " declare a list that does not come from the clients"
        )
    held = {"clients": clients, "silos": None, "rounds": rounds, "counts": counts}
    columns = Columns(item_columns(item, domain), client, round, count)
    source = source_of(data, columns, held, seed, is_one_of_many=True)
    is_natural, by_client = not round is rounds is None, not client is clients is None
    candidates = declared(candidates_of(domain), source)
    most = validate.integer(1, max_items=1 if max_items is None else max_items)
    split = validate.integer(1, num_rounds=1 if num_rounds is None else num_rounds)
    _check_candidates(candidates, private)
    fate = _fate_outside(outside, private)
    _check_columns(is_natural, by_client, num_rounds, most)
    told = _seed_of(seed, is_needed=by_client or candidates is None)
    own_seed = 0 if told is None else told
    hashes = campaign_seed(own_seed)
    rules = Rules.of(
        told,
        candidates,
        hashes=hashes,
        num_rounds=None if is_natural else split,
        max_items=most,
        outside=fate,
        private=private,
    )
    encoder = encoder_of(candidates, hashes, fate, private)
    rng = simulation_rng(hashes, own_seed, is_private=private, has_plan=False)
    tally = Tally(encoder, rules.num_rounds, most, rng, row_bytes(memory), keep_itemless=private)
    for batch in source.batches(private=private, may_be_empty=True):
        tally.add(batch)
    part = tally.part(by_client=by_client)
    return Content.of_partition(name, rules, part, encoder.items(), tally.columns).table()


def _name_of(partition: object) -> str:
    """Return the name of a partition as text; it may be given as a number.

    Raises:
        InvalidInputError: the name is neither a number nor a text, or is empty.
    """
    is_number = isinstance(partition, Integral) and not isinstance(partition, bool)
    if not is_number and (not isinstance(partition, str) or partition == ""):
        raise InvalidInputError(
            f"partition must be the name or the number of the partition, got {partition!r}"
        )
    return str(partition)


def _seed_of(seed: int | str | bytes | None, *, is_needed: bool) -> int | str | bytes | None:
    """Return the seed if ids or draws depend on it, else None.

    Args:
        seed: the seed of the campaign, or None.
        is_needed: whether ids or draws depend on the seed. If so, it must not be None.

    Raises:
        InvalidInputError: the seed is needed, and is None.
    """
    if seed is None and is_needed:
        raise InvalidInputError(
            f"{arg.seed} must be given, the same for all partitions: draws and the ids of items"
            " follow from it"
        )
    return seed if is_needed else None


def candidates_of(domain: Any) -> Domain | str | None:
    """Return the candidates that the caller declared, read from a file or a column if need be.

    If `domain` is None or "input", it is returned unchanged: the caller declared no candidates.
    """
    return None if domain is None else domain_of(domain)


def _check_candidates(domain: Domain | None, private: bool) -> None:
    """Refuse an open domain and, with `private`, the input's own items as candidates."""
    if isinstance(domain, OpenStrings):
        raise InvalidInputError(
            "partitions cannot be counted for an open domain yet: declare the candidates, or take"
            " those of the input (domain=None)"
        )
    if private and domain is None:
        raise InvalidInputError("with private the candidates must be public: declare them (domain)")


def _fate_outside(asked: str | None, private: bool) -> str:
    """Return what to do with items outside the domain: "error" or "drop".

    Args:
        asked: "error" or "drop"; None: the default, which is "drop" if `private`, else "error".
        private: whether the campaign has an epsilon.

    Raises:
        InvalidInputError: `asked` is another text, or is "error" although the campaign is private.
    """
    fate = fate_outside(asked, is_private=private)
    if private and fate == "error":
        raise InvalidInputError(f"with private, {OUTSIDE_TELLS}: leave {opt.outside} out")
    return fate


def _check_columns(
    is_natural: bool, by_client: bool, num_rounds: int | None, max_items: int
) -> None:
    """Refuse options that the columns of the partition do not allow.

    Named rounds exclude named clients and `num_rounds`. A `max_items` above 1 needs named clients.
    """
    if is_natural and by_client:
        raise InvalidInputError(
            "a client's draws within natural rounds depend on all rounds, which a partition does"
            " not know: leave out client or round, or estimate the whole table in one place"
        )
    check(
        given(num_rounds=num_rounds, max_items=max_items if max_items > 1 else None),
        unmet(no_round_column=is_natural, clients=not by_client),
    )


@suggests_keywords
def merge_tallies(tallies: Iterable[pa.Table]) -> pa.Table:
    """Add up the counts of several partitions of a table.

    The order does not matter, and merged tallies can be merged again, as in a tree. A partition
    that comes several times counts once.

    Args:
        tallies: tables that `partial_tally` or this function returned, at least one.

    Returns:
        The counts of all partitions, for `estimate`: a `pyarrow.Table` of the same form.

    Raises:
        InvalidInputError: there are no tallies; they were counted with different options, such as
            another seed; items, clients or rounds are integers in one tally and text in another;
            two tallies of one partition differ; merged tallies overlap so that one can neither be
            added nor be left out; or a client is in two partitions, as far as samples of 65,536
            clients of each partition show.
        UnreadableFileError: a tally is damaged, or was made by another version.
    """
    if is_tally(tallies) or isinstance(tallies, bytes):
        raise InvalidInputError("tallies must be a list of them, got one: write [tally]")
    return merged(map(Content.of, tallies)).table()
