"""The section on what a client sends: its size in bytes, and other costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from fedtally.answer import amounts
from fedtally.answer.sections import counted, dap_sums
from fedtally.base.encoding import Encoding
from fedtally.base.text import in_number
from fedtally.plan import Plan
from fedtally.plan.calendar import Calendar, time_text

if TYPE_CHECKING:
    from fedtally.plan.bill import Bill
    from fedtally.plan.proposal import Proposal

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class _Words(NamedTuple):
    """Texts about plans of one encoding (sketch or histogram).

    Each field but `heading` is a function that takes the plan and returns a text.

    Attributes:
        heading: the heading for what a client sends.
        counters: returns the counters in words; its second argument says how many bits a counter
            has.
        dimensions: returns the size of the sketch or histogram in few words.
        instead: returns what a client could send without a sketch; its second argument is a text on
            the binary encoding of the items, which a server can read.
        beside: returns a text to append to the bytes of an upload: how many bytes a histogram
            takes. If the upload is a histogram, the text says instead that each candidate has a
            counter.
    """

    heading: str
    counters: Callable[[Plan, str], str]
    dimensions: Callable[[Plan], str]
    instead: Callable[[Plan, str], str]
    beside: Callable[[Plan], str]


def _beside_sketch(plan: Plan) -> str:
    """Return how many bytes a histogram takes, as a text to append to the bytes of a sketch.

    A histogram needs a list of candidates that all clients know. If the candidates are not public,
    the text says "over a declared list".
    """
    exact = plan.one_hot_bytes_per_client
    takes = "takes only" if exact <= plan.bytes_per_client else "takes"
    over = "" if plan.domain["public"] else "over a declared list "
    # under privacy a histogram would have noise, too, and would not be exact
    histogram = "an exact histogram" if plan.privacy is None else "a histogram"
    return f"; {over}{histogram} {takes} {amounts.size(exact)}"


_WORDS = {
    Encoding.SKETCH: _Words(
        "Sketch",
        lambda plan, bits: (
            f"{plan.rows} rows x {plan.width:,} counters of {bits}, {plan.schedule} schedule"
        ),
        lambda plan: f"{plan.rows} x {plan.width:,}",
        lambda plan, binary: (
            f"one-hot vector: {amounts.size(plan.one_hot_bytes_per_client)}; {binary}"
        ),
        _beside_sketch,
    ),
    Encoding.HISTOGRAM: _Words(
        "Histogram",
        lambda plan, bits: (
            f"a counter of {bits} for each of {amounts.counted(plan.domain_size, 'candidate')}:"
            " no collisions"
        ),
        lambda plan: f"histogram of {plan.width:,}",
        lambda plan, binary: binary,  # a histogram is the one-hot vector itself
        lambda plan: ", a counter for each candidate",
    ),
}


def encoded(plan: Plan) -> tuple[str, str]:
    """Return two texts: a heading for what a client sends under a plan, and the counters in words.

    >>> plan = Plan(rows=7, width=8, schedule="shared", num_rounds=1, num_clients=50,
    ...             max_round_clients=50, max_items=1, seed=bytes(32),
    ...             domain={"kind": "range", "size": 8, "public": True, "first": 1, "last": 8})
    >>> encoded(plan)
    ('Sketch', '7 rows x 8 counters of 7 bits, shared schedule')
    >>> from dataclasses import replace
    >>> encoded(replace(plan, rows=1, encoding="histogram"))
    ('Histogram', 'a counter of 6 bits for each of 8 candidates: no collisions')
    """
    words = _WORDS[plan.encoding]
    return words.heading, words.counters(plan, f"{plan.modulus_bits} bits")


def dimensions(plan: Plan) -> str:
    """Return the size of a plan's sketch, or histogram, in few words.

    >>> dimensions(Plan(rows=7, width=8, schedule="shared", num_rounds=1, num_clients=50,
    ...                 max_round_clients=50, max_items=1, seed=bytes(32),
    ...                 domain={"kind": "range", "size": 900, "public": True}))
    '7 x 8'
    """
    return _WORDS[plan.encoding].dimensions(plan)


def upload(plan: Plan) -> str:
    """Return the bytes that a client uploads, in words, with the bytes of exact encodings.

    An exact encoding is a one-hot vector, which is left out if the plan has a histogram, or the
    item itself, which the server would then see. In an open domain, the text has the numbers of
    counters for hashes and for names instead of the exact encodings.

    >>> plan = Plan(rows=7, width=8, schedule="shared", num_rounds=1, num_clients=50,
    ...             max_round_clients=50, domain={"kind": "range", "size": 900, "public": True},
    ...             max_items=1, seed=bytes(32))
    >>> upload(plan).split("; ")[0]
    '49 B per client (one-hot vector: 675 B'
    >>> upload(plan).split("; ")[1]
    'the item itself, binary: 2 B, but then the server would see it)'
    """
    sends = _sends(plan)
    if plan.spelling is not None:
        return f"{sends}; {spelled(plan)}"
    items = in_number(plan.most_items, "the item itself", "the items themselves")
    seen = in_number(plan.most_items, "it", "them")
    binary = f"{items}, binary: {amounts.size(plan.binary_bytes_per_client)}"
    exact = _WORDS[plan.encoding].instead(plan, binary)
    return f"{sends} ({exact}, but then the server would see {seen})"


def rows(plan: Plan, traffic: Mapping[str, Any] = _NOTHING) -> list[tuple[str, str]]:
    """Return a list with the row "Upload", a pair of (name, text), on what a client sends.

    Args:
        plan: the plan of the campaign.
        traffic: the field `secure_sum` of a result, which says how the sums were made; empty: there
            is no result yet.
    """
    return [("Upload", dap_sums.upload(traffic) if dap_sums.is_dap(traffic) else upload(plan))]


def _sends(plan: Plan) -> str:
    """Return the bytes of one upload in words, such as "49 B per client and round"."""
    rounds = " and round" * (plan.num_rounds > 1)
    return f"{amounts.size(plan.bytes_per_client)} per {counted.who(plan)}{rounds}"


def line(plan: Plan, traffic: Mapping[str, Any] = _NOTHING) -> str:
    """Return the bytes that a client uploads, in words, and the bytes that a histogram would take.

    The bytes of a histogram are left out in three cases: the domain is open, so that no candidates
    are listed; DAP servers made the sums; or the plan has a calendar, which takes no histogram. For
    a plan with a histogram, the text says instead that each candidate has a counter.

    Args:
        plan: the plan of the campaign.
        traffic: the field `secure_sum` of a result, which says how the sums were made; empty: there
            is no result yet.

    >>> plan = Plan(rows=7, width=8, schedule="shared", num_rounds=1, num_clients=50,
    ...             max_round_clients=50, domain={"kind": "range", "size": 900, "public": True},
    ...             max_items=1, seed=bytes(32))
    >>> from dataclasses import replace
    >>> line(plan)
    '49 B per client; an exact histogram takes 675 B'
    >>> line(replace(plan, domain=plan.domain | {"public": False}))
    '49 B per client; over a declared list an exact histogram takes 675 B'
    """
    if dap_sums.is_dap(traffic):
        return dap_sums.upload(traffic)
    sends = _sends(plan)
    # nobody has the list that a histogram needs, or a calendar refuses histograms
    if not plan.candidates.num_listed or plan.calendar is not None:
        return sends
    return sends + _WORDS[plan.encoding].beside(plan)


def planned(proposal: Proposal) -> str:
    """Return in words what a client of a plan uploads, and the bytes and error of a histogram.

    The error of the histogram is left out if `Proposal.histogram_linf` is None. For example, a plan
    without privacy has None, since its histogram would be exact.
    """
    said, linf = line(proposal.plan), proposal.histogram_linf
    return said if linf is None else f"{said} for {amounts.points(linf)}"


def spelled(plan: Plan) -> str:
    """Return in words how many counters a plan with an open domain has for hashes and for names.

    >>> from fedtally.domain import OpenStrings
    >>> from fedtally.sketch import Spelling
    >>> spelled(Plan(rows=7, width=8, schedule="shared", num_rounds=1, num_clients=50,
    ...              max_round_clients=50, domain=OpenStrings().describe(), max_items=1,
    ...              seed=bytes(32), spelling=Spelling(4, 20, 64)))
    '56 counters for hashes; 4 rows x 20 for each of 65 positions of names of up to 64 bytes'
    """
    spelling = plan.spelling
    assert spelling is not None
    batches = plan.spec.num_batches
    blocks, positions = spelling.blocks(batches), spelling.positions(batches)
    some = f"{blocks} of {positions}" if batches > 1 else f"each of {positions}"
    return (
        f"{plan.rows * plan.width:,} counters for hashes; {spelling.rows} rows x"
        f" {spelling.width:,} for {some} positions of names of up to {spelling.max_length} bytes"
    )


def fields(plan: Plan, traffic: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the JSON fields of a plan: its size, clients, domain, cost and fingerprint.

    If DAP servers made the sums, "bytes_per_client" has the bytes of a DAP report.

    Args:
        plan: the plan of the campaign.
        traffic: the field `secure_sum` of a result; None: there is no result yet.

    >>> plan = Plan(rows=7, width=200, schedule="shared", num_rounds=1, num_clients=50,
    ...             max_round_clients=50, domain={"kind": "range", "size": 9, "public": True},
    ...             max_items=1, seed=bytes(32))
    >>> fields(plan)["bytes_per_client"]
    1225
    """
    return {
        "encoding": str(plan.encoding),
        "rows": plan.rows,
        "width": plan.width,
        "num_rounds": plan.num_rounds,
        "schedule": str(plan.schedule),
        "num_clients": plan.num_clients,
        "people": plan.people,
        "domain_size": plan.domain_size,
        "domain_public": bool(plan.domain["public"]),
        "spelling": plan.to_dict().get("spelling"),
        "modulus_bits": plan.modulus_bits,
        "bytes_per_client": dap_sums.report_bytes(traffic or {}) or plan.bytes_per_client,
        "one_hot_bytes_per_client": plan.one_hot_bytes_per_client,
        "binary_bytes_per_client": plan.binary_bytes_per_client,
        "fingerprint": plan.fingerprint,
        # absent without a calendar, so that older documents do not change
        **({} if plan.calendar is None else {"calendar": _calendar(plan.calendar)}),
    }


def _calendar(calendar: Calendar) -> dict[str, str]:
    return {**calendar.to_dict(), "end": time_text(calendar.end)}


def effort(proposal: Proposal, bill: Bill) -> str:
    """Return in one line what a campaign costs besides the upload of a client.

    The line has the bytes that a client downloads (if any), the client's CPU time, the bytes that
    the server receives, and the server's CPU time.
    """
    down = f"{amounts.size(bill.download_bytes)} down, " if bill.download_bytes else ""
    cpu = amounts.seconds(server_seconds(proposal, bill))
    return (
        f"a {counted.who(proposal.plan)}: {down}{amounts.seconds(bill.client_seconds)} CPU;"
        f" the server: {amounts.size(bill.received_bytes)}, {cpu} CPU"
    )


def server_seconds(proposal: Proposal, bill: Bill) -> float:
    """Return the CPU seconds of the servers in a campaign, with decoding and reading names."""
    names = 0.0 if proposal.names is None else proposal.names.seconds
    return bill.server_seconds + bill.decoding_seconds + names
