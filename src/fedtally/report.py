"""Result -> what a person reads in a terminal, and the JSON document that a program reads.

The terminal renderables are rich's, imported inside the functions. Frequencies are shown in percent
of the clients, sizes in decimal units (1 kB = 1000 bytes). Items are data of strangers: control
characters, which could drive a terminal, are shown escaped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fedtally.domain import Domain
from fedtally.plan import Plan
from fedtally.recovery.decoding import listed_kind, named_kind
from fedtally.result import Estimate, Evaluation, Result

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

SCHEMA = "fedtally-result/1"
_LONGEST_SHOWN = 300  # characters of an item in a table
NO_PRIVACY = "no differential privacy: the sums of each round are exact"
COVERS = "frequencies among the clients that took part"
_MOST_DECIMALS = 6


def document(
    result: Result, estimates: Sequence[Estimate], queried: Sequence[Estimate] = ()
) -> dict[str, Any]:
    """Return the JSON document of a result; what later versions compute is null.

    Args:
        result: the whole answer.
        estimates: its top items.
        queried: estimates of items that were asked for by name; without any the document has no
            ``queries``.

    >>> import fedtally
    >>> result = fedtally.estimate(["tea"] * 3 + ["milk"], seed=1)
    >>> document(result, result.top(1))["estimates"][0]["frequency"]
    0.75
    """
    filled: dict[str, Any] = {
        "schema": SCHEMA,
        "warnings": list(result.warnings),
        "plan": plan_fields(result.plan) | {"num_clients": result.num_clients},
        "num_contributions": result.num_contributions,
        "draw": result.draw,
        "privacy": privacy_fields(result.plan, result.secure_sum),
        "secure_sum": result.secure_sum,
        "sizing": result.sizing,
        "recovery": result.recovery,
        "objective": result.objective,
        "intervals": intervals_fields(result),
        "estimates": [asdict(estimate) for estimate in estimates],
        "evaluation": None if result.evaluation is None else result.evaluation._asdict(),
        "timings": result.timings,
    }
    return filled | ({"queries": [asdict(estimate) for estimate in queried]} if queried else {})


def privacy_fields(plan: Plan, traffic: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
    """Return what documents say of a plan's privacy; None where it has none.

    Args:
        plan: the plan.
        traffic: of the secure sum, where it has happened.
    """
    if plan.privacy is None:
        return None
    from fedtally.privacy import guarantee_text

    seen = traffic or {}
    return guarantee_text.fields(plan.privacy, seen.get("fewest_survivors"), seen.get("corrupt", 0))


def guarantee(fields: Mapping[str, Any]) -> str:
    """Say in one line what `privacy_fields` hold.

    >>> guarantee({"epsilon": 1.00491, "delta": 1e-6, "neighbours": "zero-out", "trust": "central", "not_private": True,
    ...          "mechanism": "rounded-gaussian"})
    'not private: epsilon 1.005, delta 1e-06 (zero-out, central trust, rounded-gaussian noise)'
    """
    from fedtally.privacy import NOT_PRIVATE
    from fedtally.privacy.accounting import rounded_up

    numbers = f"epsilon {rounded_up(fields['epsilon']):g}, delta {rounded_up(fields['delta']):g}"
    how = f"{fields['neighbours']}, {fields['trust']} trust, {fields['mechanism']} noise"
    return f"{f'{NOT_PRIVATE}: ' if fields['not_private'] else ''}{numbers} ({how})"


def intervals_fields(result: Result) -> dict[str, Any] | None:
    """Return what documents say of a result's intervals; None where it has none.

    >>> import fedtally
    >>> fields = intervals_fields(fedtally.estimate(["tea", "milk"], seed=1))
    >>> fields["kind"], fields["list"]["kind"], fields["named"]["kind"]
    ('auto', 'selective', 'pointwise')
    """
    intervals = result.intervals
    if intervals is None:
        return None
    said = limits_fields(result.confidence, result.interval_kind, intervals.about)
    return said | {"predicted_linf": intervals.predicted_linf}


def limits_fields(confidence: float, kind: str, about: str) -> dict[str, Any]:
    """Return what documents say of limits, whatever made them: what was asked for, what they hold for, and how."""
    return {
        "confidence": confidence,
        "kind": kind,
        "list": {"kind": (listed := listed_kind(kind)), "covers": covers(listed)},
        "named": {"kind": (named := named_kind(kind)), "covers": covers(named)},
        "about": about,
    }


def covers(kind: str) -> str:
    """Say what intervals of a kind hold for.

    >>> covers("simultaneous")
    'frequencies among the clients that took part; of all candidates at once, so also of a list chosen by its estimates'
    """
    which = {
        "selective": "of a list chosen by its estimates, on average over its items",
        "simultaneous": "of all candidates at once, so also of a list chosen by its estimates",
    }
    return (
        f"{COVERS};"
        f" {which.get(kind, 'of items named beforehand, not of a list chosen by its estimates')}"
    )


def level(confidence: float) -> str:
    """Return a confidence in percent, never rounded to 100.

    >>> level(0.95), level(0.9999999)
    ('95 %', '99.99999 %')
    """
    return f"{100 * confidence:.12g} %"


def plan_fields(plan: Plan) -> dict[str, Any]:
    """Return what documents say of a plan: its size, its clients, its domain, its cost and its fingerprint.

    >>> plan = Plan(rows=7, width=200, schedule="shared", num_rounds=1, num_clients=50, max_round_clients=50,
    ...             domain={"kind": "range", "size": 9, "public": True}, max_items=1, seed=bytes(32))
    >>> plan_fields(plan)["bytes_per_client"]
    1225
    """
    return {
        "rows": plan.rows,
        "width": plan.width,
        "num_rounds": plan.num_rounds,
        "schedule": str(plan.schedule),
        "num_clients": plan.num_clients,
        "domain_size": plan.domain_size,
        "domain_public": bool(plan.domain["public"]),
        "modulus_bits": plan.modulus_bits,
        "bytes_per_client": plan.bytes_per_client,
        "one_hot_bytes_per_client": plan.one_hot_bytes_per_client,
        "binary_bytes_per_client": plan.binary_bytes_per_client,
        "fingerprint": plan.fingerprint,
    }


def answer(
    result: Result, estimates: Sequence[Estimate], queried: Sequence[Estimate] = ()
) -> RenderableType:
    """Return the terminal's view of a result: its top items, those asked for, and how they came about and at what cost.

    Args:
        result: the whole answer.
        estimates: its top items.
        queried: estimates of items that were asked for by name.

    >>> import fedtally
    >>> result = fedtally.estimate(["tea"] * 3 + ["milk"], seed=1)
    >>> text = plain(answer(result, result.top(1)))
    >>> "75.00 %" in text, "no differential privacy" in text
    (True, True)
    """
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [
        heading(
            f"Most frequent of {counted(result.domain.size, 'candidate')} among"
            f" {_contributions(result)}"
        ),
        Text(),
        _top_table(result, estimates),
        *_indistinct(estimates),
    ]
    if queried:
        truth = result.true_frequencies([e.item for e in queried])
        table = estimates_table(
            queried, truth, ranked=False, confidence=result.confidence, unit=result.unit
        )
        parts += [Text(), heading("Items asked for"), Text(), table]
    return Group(*parts, Text(), facts([*_how(result, estimates, queried), *_notes(result)]))


def footnotes(result: Result, shown: Sequence[Estimate]) -> RenderableType:
    """Return what must be said below estimates from a saved result: certainty, privacy and warnings.

    >>> import fedtally
    >>> result = fedtally.estimate(["tea", "milk"], seed=1)
    >>> NO_PRIVACY in plain(footnotes(result, result.top(1)), 200)
    True
    """
    rows: list[tuple[str, RenderableType]] = [
        ("", ""),
        *_certainty(result, (), shown),
        *privacy_rows(result.plan, result.secure_sum),
    ]
    return facts([*rows, *_notes(result)])


def privacy_rows(plan: Plan, traffic: Mapping[str, Any] | None = None) -> list[tuple[str, str]]:
    """Return what a reader must know of a plan's privacy, and of what is seen of the sums.

    Args:
        plan: the plan.
        traffic: of the secure sum, where it has happened.

    >>> domain = {"kind": "range", "size": 900, "public": True}
    >>> privacy_rows(Plan(rows=7, width=8, schedule="shared", num_rounds=1, num_clients=50, max_round_clients=50,
    ...                   domain=domain, max_items=1, seed=bytes(32)))
    [('Privacy', 'no differential privacy: the sums of each round are exact')]
    """
    seen = "" if traffic is None else f" ({_seen(traffic)})"
    if plan.privacy is None:
        return [("Privacy", f"{NO_PRIVACY}{seen}")]
    from fedtally.privacy import guarantee_text

    split = (traffic or {}).get("cohorts", 0) if plan.privacy.by_clients else 0
    said = guarantee_text.sentences(
        plan.privacy, num_releases=split or len(plan.releases), is_two_server=plan.is_two_server
    )
    rows = [("Privacy", said[0]), *(("", line) for line in said[1:])]
    is_seen = traffic is not None and plan.privacy.event.trust == "distributed"
    return [*rows, ("", _seen(traffic or {}))] if is_seen else rows


def _notes(result: Result) -> list[tuple[str, RenderableType]]:
    from rich.text import Text

    return [("Note", Text(warning, style="yellow")) for warning in result.warnings]


def _top_table(result: Result, estimates: Sequence[Estimate]) -> RenderableType:
    from rich.text import Text

    if not estimates:
        return Text("none is shown: no estimate is large enough, or none was asked for")
    truth = result.true_frequencies([estimate.item for estimate in estimates])
    return estimates_table(estimates, truth, confidence=result.confidence, unit=result.unit)


def _contributions(result: Result) -> str:
    clients = counted(result.num_clients, "client")
    return (
        clients
        if result.unit == "clients"
        else f"{result.num_contributions:,} contributions of {clients}"
    )


def _indistinct(estimates: Sequence[Estimate]) -> list[RenderableType]:
    """Return a line that says how many of a list cannot be told from 0; none where all can."""
    from rich.text import Text

    number = sum(not is_told_from_zero(estimate) for estimate in estimates)
    if not number:
        return []
    which = {len(estimates): "None of these can"}.get(
        number, f"{number:,} of these {len(estimates):,} cannot"
    )
    return [Text(f"{which} be told from 0: the interval reaches down to it", style="dim")]


def is_told_from_zero(estimate: Estimate) -> bool:
    """Return whether an estimate's interval, if it has one, excludes 0.

    >>> [is_told_from_zero(Estimate("tea", 0.1, low, 0.2, 10.0)) for low in (0.0, 0.01, None)]
    [False, True, True]
    """
    return estimate.low is None or estimate.low > 0


def estimates_table(
    estimates: Sequence[Estimate],
    truth: Sequence[float] | None = None,
    ranked: bool = True,
    confidence: float = 0.0,
    unit: str = "clients",
) -> Table:
    """Return a table of estimates, with their limits, true frequencies and errors where these are known.

    What cannot be told from 0 is dim, and of its interval the upper limit alone is shown.

    >>> print(plain(estimates_table([Estimate("tea", 0.25, None, None, 500.0)], truth=[0.24])).splitlines()[0].split())
    ['#', 'item', 'frequency', 'true', 'error', 'clients']
    """
    table = new_table()
    if ranked:
        table.add_column("#", justify="right", style="dim")
    table.add_column("item", overflow="fold", style="bold")
    halves = [(e.high - e.low) / 2 for e in estimates if e.low is not None and e.high is not None]
    limits = (f"{level(confidence)} interval",) if halves else ()
    for name in ("frequency", *limits, *(("true", "error") if truth is not None else ()), unit):
        table.add_column(name, justify="right", no_wrap=True)
    digits = decimals(
        [*(estimate.frequency for estimate in estimates), *(half for half in halves if half > 1e-9)]
    )
    errors = [
        estimate.frequency - true for estimate, true in zip(estimates, truth or (), strict=False)
    ]
    error_digits = decimals([max(map(abs, errors), default=0.0)])
    for place, estimate in enumerate(estimates):
        cells = [str(place + 1)] if ranked else []
        cells += [printable(estimate.item), percent(estimate.frequency, digits)]
        if estimate.low is not None and estimate.high is not None:
            low = (
                f"{percent(estimate.low, digits).removesuffix(' %')} .."
                if is_told_from_zero(estimate)
                else "up to"
            )
            cells.append(f"{low} {percent(estimate.high, digits)}")
        if truth is not None:
            cells += [
                percent(truth[place], digits),
                percent(errors[place], error_digits, signed=True),
            ]
        table.add_row(
            *cells, f"{estimate.count:,.0f}", style=None if is_told_from_zero(estimate) else "dim"
        )
    return table


def _how(
    result: Result, listed: Sequence[Estimate], named: Sequence[Estimate]
) -> list[tuple[str, RenderableType]]:
    """Return what the reader of the numbers must know, as (name, text)."""
    plan = result.plan
    sketch = f"{plan.rows} rows x {plan.width:,} counters of {plan.modulus_bits} bits"
    most = "one item each" if plan.max_items == 1 else f"at most {plan.max_items:,} items each"
    shrunk = ", estimates shrunk for a small squared error" if result.objective == "l2" else ""
    rows = [
        ("Upload", cost(plan)),
        *privacy_rows(plan, result.secure_sum),
        *secure_sum_rows(result.secure_sum, result.unit.removesuffix("s")),
        ("Candidates", candidates(result.domain)),
        ("Clients", _attended(result, most)),
        ("Sketch", f"{sketch}, {plan.schedule} schedule, {result.recovery} recovery{shrunk}"),
        *sizing_rows(result.sizing),
        *_certainty(result, listed, named),
    ]
    if result.evaluation is not None:
        rows.append(("Errors", _errors(result.evaluation)))
    rows.append(("Plan", plan.fingerprint[:16]))
    if result.timings:
        rows.append(
            (
                "Time",
                ", ".join(f"{stage} {seconds:.2g} s" for stage, seconds in result.timings.items()),
            )
        )
    return list(rows)


def _attended(result: Result, most: str) -> str:
    rounds = counted(result.plan.num_rounds, "round")
    if result.unit == "clients":
        return f"{result.num_clients:,} in {rounds}, {most}"
    mean = result.num_contributions / result.num_clients
    return f"{result.num_clients:,}, each in {mean:.3g} of {rounds} on average, {most} in a round"


def sizing_rows(said: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Return what a reader must know of how the size of a sketch was chosen; nothing where it was given.

    >>> sizing_rows({"sizing": "minimax", "tau": 0.001, "failure_probability": 0.1, "predicted_linf": None,
    ...              "pilot": None, "message": ""})
    [('Sized', 'by the formula minimax for a largest error of 0.10 %, which guarantees nothing')]
    """
    if said is None:
        return []
    chance = f"exceeded in at most {100 * said['failure_probability']:.3g} % of campaigns"
    tau = percent(said["tau"], decimals([said["tau"]]))
    rows = [("Sized", f"by {said['sizing']} for a largest error of {tau}, {chance}")]
    if said["sizing"] != "model":
        rows = [
            (
                "Sized",
                (
                    f"by the formula {said['sizing']} for a largest error of {tau}, which"
                    " guarantees nothing"
                ),
            )
        ]
    pilot = said["pilot"]
    if pilot is not None:
        sketch = (
            f"{pilot['rows']} x {pilot['width']:,} counters, {size(pilot['bytes_per_client'])} each"
        )
        who = counted(pilot["num_clients"], "client")
        noised = f" and noised for epsilon {pilot['epsilon']:g}" if pilot.get("epsilon") else ""
        rows.append(("", f"from a pilot of {who} ({sketch}), who are not in the estimates{noised}"))
    return [*rows, *([("", said["message"])] if said["message"] else [])]


def _seen(traffic: Mapping[str, Any]) -> str:
    if traffic["method"] == "ideal":
        return "ideal secure summation: the server would see these sums alone"
    if traffic["method"] == "two-server":
        return "the servers, unless they collude, see these sums alone"
    # the plan says how rounds are summed, and not in how many parts they were
    if "cohorts" not in traffic:
        return "the server sees these sums alone, or those of the cohorts that add up to them"
    sums = "these sums" if traffic["cohorts"] == 1 else "the sum of each cohort"
    return f"the server sees {sums} alone"


def secure_sum_rows(traffic: Mapping[str, Any], unit: str = "client") -> list[tuple[str, str]]:
    """Return what a reader must know of how the sums were made; nothing where they were ideal.

    Args:
        traffic: of the secure sum; what only the run knows may be missing.
        unit: what is in a sum: a client, or a contribution of one.

    >>> secure_sum_rows({"method": "ideal"})
    []
    """
    if traffic["method"] == "ideal":
        return []
    bits = f"{traffic['bits']}-bit counters"
    if "cohorts" not in traffic:
        return [
            ("Secure sum", _trust(traffic)),
            (
                "",
                (
                    f"up to {traffic['corrupt']:,} clients of a sum corrupt; {bits}; summed"
                    " elsewhere, by the plan"
                ),
            ),
        ]
    return [
        ("Secure sum", _trust(traffic)),
        ("", f"{_cohorts(traffic)}, up to {traffic['corrupt']:,} of each corrupt; {bits}"),
        ("", _attendance(traffic, unit)),
        ("Messages", _traffic(traffic, "up")),
        ("", _traffic(traffic, "down")),
        *_cpu(traffic),
    ]


def _cpu(traffic: Mapping[str, Any]) -> list[tuple[str, str]]:
    if traffic["client_seconds"] is None:
        return []
    text = (
        f"{1e3 * traffic['client_seconds']:.2g} ms a client, {traffic['server_seconds']:.2g} s at"
        " the server"
    )
    return [("CPU", text)]


def _trust(traffic: Mapping[str, Any]) -> str:
    if traffic["method"] == "two-server":
        return (
            f"two servers that do not collude; at least {traffic['min_survivors']:,} clients in"
            " a sum"
        )
    server = (
        "that follows the protocol" if traffic["adversary"] == "semi-honest" else "that may lie"
    )
    return (
        f"secagg against a server {server}: {traffic['neighbours']} neighbours, any"
        f" {traffic['threshold']} of {traffic['neighbours'] + 1} shares open a mask, at least"
        f" {traffic['min_survivors']:,} clients in a sum"
    )


def _cohorts(traffic: Mapping[str, Any]) -> str:
    least, most = traffic["smallest_cohort"], traffic["largest_cohort"]
    of = f"{most:,}" if least == most else f"{least:,} to {most:,}"
    return f"{counted(traffic['cohorts'], 'cohort')} of {of} clients"


def _attendance(traffic: Mapping[str, Any], unit: str) -> str:
    gone = f"{traffic['dropouts']:,} dropped out" if traffic["dropouts"] else "nobody dropped out"
    equal = (
        "the sums equal the plain sums exactly"
        if traffic["equals_plain_sum"]
        else "not compared with plain sums"
    )
    return (
        f"{traffic['survivors']:,} of {counted(traffic['clients'], unit)} in the sums, {gone};"
        f" {equal}"
    )


def _traffic(traffic: Mapping[str, Any], way: str) -> str:
    name = f"{way}load_bytes"
    parts = [f"{stage['stage']} {size(stage[name])}" for stage in traffic["stages"] if stage[name]]
    return f"{way} {size(traffic[name])} a client{': ' if parts else ''}{', '.join(parts)}"


def _certainty(
    result: Result, listed: Sequence[Estimate], named: Sequence[Estimate]
) -> list[tuple[str, str]]:
    """Return what the intervals of a list and of named items cover, what they leave out, and the error to expect."""
    intervals = result.intervals
    if intervals is None:
        return []
    rows = covered(result.confidence, result.interval_kind, intervals.about, listed, named)
    if not intervals.predicted_linf:
        return [*rows, ("Expected", "no error beyond rounding: recovery looks exact")]
    before = " before shrinkage" if result.objective == "l2" else ""
    expected = (
        f"largest error of all candidates{before} about {_plus_minus(intervals.predicted_linf)}"
    )
    return [*rows, ("Expected", f"{expected}, predicted from the sums")]


def covered(
    confidence: float, asked: str, about: str, listed: Sequence[Estimate], named: Sequence[Estimate]
) -> list[tuple[str, str]]:
    """Return what intervals of a list and of named items cover, how they came about, and what they leave out."""
    kinds = [listed_kind(asked)] * bool(listed) + [named_kind(asked)] * bool(named)
    said = []
    for kind in dict.fromkeys(kinds or [named_kind(asked)]):
        each = " each" if kind in ("pointwise", "order") else ""
        said.append(f"{level(confidence)}{each}, for {covers(kind)}")
    rows = [("Intervals", said[0]), *(("", more) for more in [*said[1:], about] if more)]
    sampling = max((e.sampling_error or 0.0 for e in [*listed, *named]), default=0.0)
    if sampling:
        text = (
            "not in the intervals: the clients as a sample of a wider population, up to"
            f" {_plus_minus(sampling)} here"
        )
        rows.append(("Sampling", text))
    return rows


def _plus_minus(share: float) -> str:
    return f"± {percent(share, decimals([share]))}"


def cost(plan: Plan) -> str:
    """Say what a client uploads and what the two exact ways would cost.

    >>> plan = Plan(rows=7, width=8, schedule="shared", num_rounds=1, num_clients=50, max_round_clients=50,
    ...             domain={"kind": "range", "size": 900, "public": True}, max_items=1, seed=bytes(32))
    >>> cost(plan)
    '49 B per client (one-hot vector: 788 B; the item itself, binary: 2 B, but then the server would see it)'
    """
    per = "per client" if plan.num_rounds == 1 else "per client, in its round"
    items = "the item itself, binary" if plan.max_items == 1 else "the items themselves, binary"
    seen = "it" if plan.max_items == 1 else "them"
    exact = (
        f"one-hot vector: {size(plan.one_hot_bytes_per_client)}; {items}:"
        f" {size(plan.binary_bytes_per_client)}"
    )
    return f"{size(plan.bytes_per_client)} {per} ({exact}, but then the server would see {seen})"


def candidates(domain: Domain) -> str:
    """Say what the candidate items are and whether they are public.

    >>> from fedtally.domain import Dictionary, IntegerRange, Strings
    >>> candidates(IntegerRange(1, 9)), candidates(Strings(["tea"], bytes(32)))
    ('9 integers, public', '1 string, not public: taken from the input itself')
    """
    noun = {
        "range": "integer",
        "integers": "integer",
        "dictionary": "item",
        "strings": "string",
        "grid": "cell",
    }
    known = "public" if domain.public else "not public: taken from the input itself"
    return f"{counted(domain.size, noun.get(domain.kind, 'item'))}, {known}"


def collisions(domain: Domain) -> str:
    """Say with which probability two candidates are confused: empty where ids are the items.

    >>> from fedtally.domain import IntegerRange, Strings
    >>> collisions(IntegerRange(1, 9)), collisions(Strings(["tea", "milk"], bytes(32)))
    ('', 'two candidates share a 61-bit id with probability at most 1e-18')
    """
    if not domain.collision_probability:
        return ""
    return (
        "two candidates share a 61-bit id with probability at most"
        f" {domain.collision_probability:.1g}"
    )


def _errors(found: Evaluation) -> str:
    digits = decimals([found.linf, found.l2])
    figures = (
        f"largest {percent(found.linf, digits)}, l2 {percent(found.l2, digits)} over all candidates"
    )
    covered = (
        "" if found.coverage is None else f"; {found.coverage:.1%} of the intervals hold the truth"
    )
    return (
        f"{figures}; top {found.k}: precision {found.precision_at_k:.0%}, recall"
        f" {found.recall_at_k:.0%}{covered}"
    )


def facts(rows: Iterable[tuple[str, RenderableType]]) -> Table:
    """Return a two-column listing of names and texts.

    >>> print(plain(facts([("Upload", "32.0 kB")])).strip())
    Upload  32.0 kB
    """
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="cyan", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in rows:
        grid.add_row(name, text)
    return grid


def new_table() -> Table:
    """Return an empty table of the house style, which takes items as they are (no markup).

    >>> new_table().show_edge
    False
    """
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim")


def heading(text: str) -> RenderableType:
    """Return a title.

    >>> heading("Answer").plain
    'Answer'
    """
    from rich.text import Text

    return Text(text, style="bold")


def plain(renderable: RenderableType, columns: int = 100) -> str:
    r"""Return what a terminal of that many columns would show, without colours.

    >>> plain("tea")
    'tea\n'
    """
    from rich.console import Console

    console = Console(
        width=columns, no_color=True, color_system=None, markup=False, highlight=False, emoji=False
    )
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def percent(share: float, digits: int = 2, signed: bool = False) -> str:
    """Return a share of the clients in percent.

    >>> percent(0.05126), percent(-0.0001, 2, signed=True)
    ('5.13 %', '-0.01 %')
    """
    text = f"{100 * share:{'+' if signed else ''}z.{digits}f}"
    return f"{text} %"


def decimals(shares: Iterable[float]) -> int:
    """Return how many decimals of a percentage show two digits of the smallest share: 2 to 6.

    >>> decimals([0.25, 0.031]), decimals([0.25, 0.000031])
    (2, 4)
    """
    smallest = min((abs(share) for share in shares if share), default=1.0)
    return min(_MOST_DECIMALS, max(2, 1 - math.floor(math.log10(100 * smallest))))


def size(number: float) -> str:
    """Return a number of bytes in decimal units, three digits.

    >>> size(17), size(31_987), size(282_878), size(1_500_000)
    ('17 B', '32.0 kB', '283 kB', '1.50 MB')
    """
    for unit, bytes_ in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= 0.9995 * bytes_:
            value = number / bytes_
            return f"{value:,.{max(0, 2 - math.floor(math.log10(max(value, 1))))}f} {unit}"
    return f"{number:.0f} B"


def counted(number: int, noun: str) -> str:
    """Return the number and the noun, in the plural where it must be.

    >>> counted(1, "client"), counted(12_000, "client")
    ('1 client', '12,000 clients')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def printable(item: str | int) -> Any:
    r"""Return an item as text for a terminal: control characters escaped, no markup; an empty one as two quotes.

    >>> printable("tab\there\x1b[31m").plain
    'tab\\there\\x1b[31m'
    """
    from rich.text import Text

    letters = (
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in str(item)
    )
    text = "".join(letters) or '""'
    return Text(text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}...")
