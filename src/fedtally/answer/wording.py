"""The words and numbers of a report, as lines of text and as (name, text) rows.

Shares of the clients are written in percent. The difference of two shares, such as an error, is
written in percentage points: "an error of 0.1 %" could be read as a tenth of a percent of the
frequency itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedtally.answer.estimates import Estimate, largest_uncertainty, uncertainty_of
from fedtally.answer.evaluation import NameEvaluation
from fedtally.base.text import escaped, in_number, in_range, one_of
from fedtally.domain import Domain, Grid, OpenStrings
from fedtally.plan import Plan, Sums

if TYPE_CHECKING:  # loaded on first use: who shows a plan alone needs none of them
    from fedtally.answer.result import Result
    from fedtally.privacy.config import PrivacyConfig
    from fedtally.recovery.limits import Intervals

NO_PRIVACY = "no differential privacy: the sums of each round are exact"
EXACT = "each count is exact"
NOT_ESTIMATED = "not estimated: the confidence is 0"
COVERS = "frequencies among those that took part"
_MOST_LOOKED = 1 << 16  # candidates that are decoded again to say how many a list left out
_ROUNDING = 1e-9  # of a share: a smaller error is none
_MOST_DECIMALS = 6  # of a percentage: smaller errors are rounding


def covers(kind: str) -> str:
    """Return the frequencies for which intervals of a kind hold, in words.

    >>> covers("simultaneous").partition("; ")[2]
    'of all candidates at once, so also of a list chosen by its estimates'
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
    """Return a confidence in percent, never rounded to 100, which would promise too much.

    >>> level(0.95), level(0.9999999)
    ('95 %', '99.99999 %')
    """
    return f"{100 * confidence:.12g} %"


def percent(share: float, digits: int = 2) -> str:
    """Return a share of the clients in percent.

    >>> percent(0.05126), percent(-1e-12)
    ('5.13 %', '0.00 %')
    """
    return f"{100 * share:z.{digits}f} %"  # z: without a minus before a rounded 0


def points(error: float, digits: int | None = None, signed: bool = False) -> str:
    """Return the error of a frequency in percentage points.

    Args:
        error: the difference of two shares.
        digits: the decimals to show; None: as many as `decimals` finds.
        signed: write a plus, too.

    >>> points(0.05126), points(-0.0001, 2, signed=True)
    ('5.13 points', '-0.01 points')
    """
    digits = decimals([error]) if digits is None else digits
    return f"{100 * error:{'+' if signed else ''}z.{digits}f} points"


def decimals(shares: Iterable[float]) -> int:
    """Return how many decimals of a percentage show two digits of the smallest share: 2 to 6.

    >>> decimals([0.25, 0.031]), decimals([0.25, 0.000031])
    (2, 4)
    """
    smallest = min((abs(share) for share in shares if share), default=1.0)
    return min(_MOST_DECIMALS, max(2, 1 - math.floor(math.log10(100 * smallest))))


def size(number: float) -> str:
    """Return a number of bytes in decimal units, with three digits.

    >>> size(17), size(31_987), size(282_878), size(1_500_000)
    ('17 B', '32.0 kB', '283 kB', '1.50 MB')
    """
    for unit, bytes_ in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= 0.9995 * bytes_:  # what rounds to 1.00 of a unit is written in that unit
            value = number / bytes_
            return f"{value:,.{max(0, 2 - math.floor(math.log10(max(value, 1))))}f} {unit}"
    return f"{number:.0f} B"


def counted(number: int, noun: str) -> str:
    """Return a number and its noun, in the plural unless the number is 1.

    >>> counted(1, "client"), counted(12_000, "client")
    ('1 client', '12,000 clients')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def contributions(result: Result) -> str:
    """Return what the frequencies of a result are shares of, in words.

    >>> import fedtally
    >>> contributions(fedtally.estimate(["tea", "milk"], seed=1))
    '2 clients'
    """
    by = result.columns.get("round")
    rounds = f" by {escaped(by[0])}" if by else ""
    if result.plan.is_of_silos:
        people = f"people in {counted(result.num_silos, 'silo')}"
        if result.unit == "people":
            return f"{result.num_clients:,} {people}"
        number = "" if result.repeats_are_private else f"{result.num_clients:,} "
        return f"{result.num_contributions:,} contributions of {number}{people}{rounds}"
    named = result.columns.get("client")
    clients = counted(result.num_clients, "client") + (f" ({escaped(named[0])})" if named else "")
    if result.unit == "clients":
        return clients
    return f"{result.num_contributions:,} contributions of {clients}{rounds}"


def question(result: Result) -> str:
    """Return what was counted, in words of the table where it named its columns.

    >>> import fedtally
    >>> question(fedtally.estimate(["tea", "milk"], seed=1))
    'Share of each item among 2 clients; 2 candidates'
    """
    named = result.columns.get("item", [])
    item = escaped(named[0]) if len(named) == 1 else "item"
    # Under privacy nobody may know whether a client had more than were drawn.
    is_hidden = result.plan.privacy is not None and "client" in result.columns
    most, drawn = result.plan.max_items, "drawn " * bool(drawn_away(result.draw) or is_hidden)
    number = counted(result.domain.size, "candidate")
    if result.plan.is_open:
        number = "no list of candidates"
    if most == 1:
        return f"Share of each {drawn}{item} among {contributions(result)}; {number}"
    held = f"hold each {item} among at most {most:,} {drawn}items"
    return f"Share of {contributions(result)} that {held}; {number}"


def left_out(result: Result, listed: Sequence[Estimate]) -> str:
    """Return how many candidates a list lacks since nothing is left of them; "" for none.

    Args:
        result: the whole answer.
        listed: the top items.

    >>> import fedtally
    >>> result = fedtally.estimate(["tea"] * 3, domain=["tea", "milk", "rice"], seed=1)
    >>> left_out(result, result.top(20)), left_out(result, [])
    ('2 more candidates have an estimate below half a client', '')
    """
    rest = 0 if result.plan.is_open else result.domain.size - len(listed)
    if not listed or not 0 < rest < _MOST_LOOKED:
        return ""
    if len(result.top(len(listed) + 1)) > len(listed):  # it lacks others, too
        return ""
    have = in_number(rest, "has", "have")
    unit = one_of(result.unit)
    return f"{counted(rest, 'more candidate')} {have} an estimate below half a {unit}"


def drawn_away(draw: Mapping[str, Any] | None) -> str:
    """Return the share of the clients' items that the bound on them left out; "" for none.

    Args:
        draw: the field `draw` of a result.

    >>> drawn_away({"max_items": 1, "pairs": 100, "drawn_away": 73, "share_with_several": 0.5,
    ...             "max_items_for_all": 15})
    "The draw left out 73 % of the clients' items: --max-items 15 counts all"
    """
    if draw is None or not draw["drawn_away"]:
        return ""
    # Rounded down below 100: not all of them can be left out. More than none are.
    share = math.floor(100 * draw["drawn_away"] / draw["pairs"])
    return (
        f"The draw left out {share or 'under 1'} % of the clients' items: --max-items"
        f" {draw['max_items_for_all']} counts all"
    )


def who(plan: Plan) -> str:
    """Return what a client of a plan is called: a silo holds the items of many people."""
    return plan.clients.senders[0]


def encoded(plan: Plan) -> tuple[str, str]:
    """Return the heading and the words for what a client sends under a plan.

    >>> plan = Plan(rows=7, width=8, schedule="shared", num_rounds=1, num_clients=50,
    ...             max_round_clients=50, max_items=1, seed=bytes(32),
    ...             domain={"kind": "range", "size": 8, "public": True, "first": 1, "last": 8})
    >>> encoded(plan)
    ('Sketch', '7 rows x 8 counters of 7 bits, shared schedule')
    >>> from dataclasses import replace
    >>> encoded(replace(plan, rows=1, encoding="histogram"))
    ('Histogram', 'a counter of 6 bits for each of 8 candidates: no collisions')
    """
    bits = f"{plan.modulus_bits} bits"
    if plan.is_histogram:
        each = counted(plan.domain_size, "candidate")
        return "Histogram", f"a counter of {bits} for each of {each}: no collisions"
    return (
        "Sketch",
        f"{plan.rows} rows x {plan.width:,} counters of {bits}, {plan.schedule} schedule",
    )


def dimensions(plan: Plan) -> str:
    """Return the size of a plan's sketch, or histogram, in few words.

    >>> dimensions(Plan(rows=7, width=8, schedule="shared", num_rounds=1, num_clients=50,
    ...                 max_round_clients=50, max_items=1, seed=bytes(32),
    ...                 domain={"kind": "range", "size": 900, "public": True}))
    '7 x 8'
    """
    return f"histogram of {plan.width:,}" if plan.is_histogram else f"{plan.rows} x {plan.width:,}"


def cost(plan: Plan) -> str:
    """Return what a client uploads, beside the cost of the two exact encodings, in words.

    >>> plan = Plan(rows=7, width=8, schedule="shared", num_rounds=1, num_clients=50,
    ...             max_round_clients=50, domain={"kind": "range", "size": 900, "public": True},
    ...             max_items=1, seed=bytes(32))
    >>> cost(plan).split("; ")[0]
    '49 B per client (one-hot vector: 675 B'
    >>> cost(plan).split("; ")[1]
    'the item itself, binary: 2 B, but then the server would see it)'
    """
    per = _per(plan)
    if plan.is_open:
        return f"{size(plan.bytes_per_client)} {per}; {spelled(plan)}"
    items = in_number(plan.most_items, "the item itself", "the items themselves")
    seen = in_number(plan.most_items, "it", "them")
    binary = f"{items}, binary: {size(plan.binary_bytes_per_client)}"
    exact = f"one-hot vector: {size(plan.one_hot_bytes_per_client)}; {binary}"
    if plan.is_histogram:  # which is one
        exact = binary
    return f"{size(plan.bytes_per_client)} {per} ({exact}, but then the server would see {seen})"


def _per(plan: Plan) -> str:
    """Return of what uploads are the size."""
    return f"per {who(plan)}{' and round' * (plan.num_rounds > 1)}"


def short_cost(plan: Plan) -> str:
    """Return what a client uploads, beside a histogram, in words.

    A histogram needs candidates that all clients know. Those of the input itself are none.

    >>> plan = Plan(rows=7, width=8, schedule="shared", num_rounds=1, num_clients=50,
    ...             max_round_clients=50, domain={"kind": "range", "size": 900, "public": True},
    ...             max_items=1, seed=bytes(32))
    >>> from dataclasses import replace
    >>> short_cost(plan)
    '49 B per client; an exact histogram takes 675 B'
    >>> short_cost(replace(plan, domain=plan.domain | {"public": False}))
    '49 B per client; over a declared list an exact histogram takes 675 B'
    """
    per = _per(plan)
    if plan.is_open:
        return f"{size(plan.bytes_per_client)} {per}"
    if plan.is_histogram:
        return f"{size(plan.bytes_per_client)} {per}, a counter for each candidate"
    exact = plan.one_hot_bytes_per_client
    takes = "takes only" if exact <= plan.bytes_per_client else "takes"
    over = "" if plan.domain["public"] else "over a declared list "
    histogram = "an exact histogram" if plan.privacy is None else "a histogram"  # as noisy
    return f"{size(plan.bytes_per_client)} {per}; {over}{histogram} {takes} {size(exact)}"


def spelled(plan: Plan) -> str:
    """Return what spells names under a plan with an open domain, in words.

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


def candidates(domain: Domain) -> str:
    """Return what the candidate items are, and whether they are public, in words.

    >>> from fedtally.domain import Grid, IntegerRange, Strings
    >>> candidates(IntegerRange(1, 9)), candidates(Strings(["tea"], bytes(32)))
    ('9 integers, public', '1 string, not public: taken from the input itself')
    >>> candidates(Grid(25, 50, -130, -60, 0.1))
    '175,000 cells, public; each is 0.1 degrees wide, and named by its centre'
    """
    noun = {
        "range": "integer",
        "integers": "integer",
        "dictionary": "item",
        "strings": "string",
        "grid": "cell",
    }
    if isinstance(domain, OpenStrings):
        return f"any string, by a hash of {domain.bits} bits: nobody has the list"
    known = "public" if domain.public else "not public: taken from the input itself"
    if isinstance(domain, Grid):
        known = f"{known}; each is {degrees(domain.step)} wide, and named by its centre"
    return f"{counted(domain.size, noun.get(domain.kind, 'item'))}, {known}"


def degrees(step: float) -> str:
    """Return the width of a cell of a grid, in words.

    >>> degrees(0.1), degrees(1.0)
    ('0.1 degrees', '1 degree')
    """
    return f"{step:g} degree{'s' * (step != 1)}"


def collisions(domain: Domain) -> str:
    """Return the probability that two candidates share an id, in words.

    It is empty where the ids are the items themselves.

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


def guarantee(fields: Mapping[str, Any]) -> str:
    """Return the guarantee that `privacy_fields` hold, in one line.

    >>> guarantee({"epsilon": 1.00491, "delta": 1e-6, "neighbours": "zero-out", "trust": "central",
    ...            "not_private": True, "mechanism": "rounded-gaussian"})
    'not private: epsilon 1.005, delta 1e-06 (zero-out, central trust, rounded-gaussian noise)'
    """
    from fedtally.privacy import NOT_PRIVATE
    from fedtally.privacy.accounting import numbers

    how = f"{fields['neighbours']}, {fields['trust']} trust, {fields['mechanism']} noise"
    said = numbers(fields["epsilon"], fields["delta"])
    return f"{f'{NOT_PRIVATE}: ' if fields['not_private'] else ''}{said} ({how})"


def privacy_sentence(plan: Plan) -> str:
    """Return in one sentence what a plan protects: how often a guess is right, and epsilon.

    >>> domain = {"kind": "range", "size": 900, "public": True}
    >>> privacy_sentence(Plan(rows=7, width=8, schedule="shared", num_rounds=1, num_clients=50,
    ...                       max_round_clients=50, domain=domain, max_items=1, seed=bytes(32)))
    'no differential privacy: the sums of each round are exact, and may show rare items'
    """
    if plan.privacy is None:
        return f"{NO_PRIVACY}, and may show rare items"
    from fedtally.privacy import NOT_PRIVATE
    from fedtally.privacy.accounting import numbers

    terms = plan.privacy
    said_numbers = numbers(terms.guarantee.epsilon, terms.guarantee.delta)
    if terms.not_private:
        return f"{NOT_PRIVATE}: nothing is guaranteed; the noise is that of {said_numbers}"
    return f"{guesses(terms, plan.nouns[0])} ({said_numbers})"


def guesses(terms: PrivacyConfig, whom: str) -> str:
    """Return how often a guess about one person is right, for each guess that may be meant.

    Args:
        terms: the privacy of the plan.
        whom: the noun of who is guessed about.

    >>> from fedtally.privacy.config import propose
    >>> terms = propose(epsilon=1.0, delta=1e-6, rows=5, width=1000, relation="replace-one")
    >>> print(guesses(terms, "client").partition(" (")[2])
    which of two sets of items does a client have?); 50 % is chance
    """
    from fedtally.privacy.events import Relation
    from fedtally.privacy.guarantee_text import right_guesses

    question = {
        Relation.ZERO_OUT: f"does a {whom} have its items or none?",
        Relation.REPLACE_ONE: f"which of two sets of items does a {whom} have?",
        Relation.ADD_REMOVE: f"does a {whom} take part?",
    }[terms.event.relation]
    right = right_guesses(terms.guarantee)
    said = f"a guess is right in at most {right} % of cases ({question})"
    if terms.event.relation is not Relation.REPLACE_ONE:
        replaced = right_guesses(terms.replace_one)
        said += f", or {replaced} % (which of two sets of items does it have?)"
    return f"{said}; 50 % is chance"


def privacy_rows(plan: Plan, traffic: Mapping[str, Any] | None = None) -> list[tuple[str, str]]:
    """Return the rows on a plan's privacy and on the parties that see the sums.

    Args:
        plan: the plan.
        traffic: the traffic of the secure sum, where it has happened.

    >>> domain = {"kind": "range", "size": 900, "public": True}
    >>> privacy_rows(Plan(rows=7, width=8, schedule="shared", num_rounds=1, num_clients=50,
    ...                   max_round_clients=50, domain=domain, max_items=1, seed=bytes(32)))
    [('Privacy', 'no differential privacy: the sums of each round are exact')]
    """
    seen = "" if traffic is None else f" ({_seen(traffic)})"
    if plan.privacy is None:
        return [("Privacy", f"{NO_PRIVACY}{seen}")]
    from fedtally.privacy import guarantee_text

    # Where clients add the noise, each cohort's sum holds noise of its own and is a release.
    split = 0 if plan.protection.of_client() is None else (traffic or {}).get("cohorts", 0)
    said = guarantee_text.sentences(
        plan.privacy,
        num_releases=split or len(plan.releases),
        is_two_server=plan.is_two_server,
        is_of_silos=plan.is_of_silos,
    )
    rows = [("Privacy", said[0]), *(("", line) for line in said[1:])]
    # Under central trust the server sees sums without noise, and the sentences above say so.
    is_seen = traffic is not None and plan.protection.of_release() is None
    return [*rows, ("", _seen(traffic or {}))] if is_seen else rows


def _seen(traffic: Mapping[str, Any]) -> str:
    """Return which party sees which sums, in words."""
    if traffic["method"] == "ideal":
        return "ideal secure summation: the server would see only these sums"
    if traffic["method"] == "two-server":
        return "the servers, unless they collude, see only these sums"
    # A result made by hand of landed sums has what the plan says, which knows no number of cohorts.
    if "cohorts" not in traffic:
        return "the server sees only these sums, or those of the cohorts that add up to them"
    sums = in_number(traffic["cohorts"], "these sums", "the sum of each cohort")
    return f"the server sees only {sums}"


def sizing_rows(said: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Return the rows on the choice of a sketch's size; none where the size was given.

    >>> sizing_rows({"sizing": "minimax", "tau": 0.001, "failure_probability": 0.1,
    ...              "predicted_linf": None, "pilot": None, "message": ""})[0][1]
    'by the formula minimax for a largest error of 0.10 points, which guarantees nothing'
    """
    if said is None:
        return []
    chance = f"exceeded in at most {100 * said['failure_probability']:.3g} % of campaigns"
    tau = points(said["tau"])
    if said["sizing"] == "model":
        text = f"by the model for a largest error of {tau}, {chance}"
    else:  # only the model comes with a probability of failure
        formula = f"by the formula {said['sizing']}"
        text = f"{formula} for a largest error of {tau}, which guarantees nothing"
    rows = [("Sized", text)]
    pilot = said["pilot"]
    if pilot is not None:
        sketch = (
            f"{pilot['rows']} x {pilot['width']:,} counters, {size(pilot['bytes_per_client'])} each"
        )
        who = counted(pilot["num_clients"], "client")
        noised = ""
        if pilot.get("epsilon"):
            noised = (
                f" and noised for epsilon {pilot['epsilon']:g}; if many items are all a little"
                " above that error, more campaigns may exceed it"
            )
        rows.append(("", f"from a pilot of {who} ({sketch}), who are not in the estimates{noised}"))
    named = said.get("names")
    if named is not None:
        above, length = f"{100 * named['threshold']:.3g} %", counted(named["name_length"], "byte")
        assumed = f"if names have at most {length}, and frequencies fall like i^-1.1 (assumed)"
        rows.append(("", f"so that strings above {above} are named, {assumed}"))
    return [*rows, *([("", said["message"])] if said["message"] else [])]


def target_rows(plan: Plan) -> list[tuple[str, str]]:
    """Return the row on the target of a plan; none where it does not say for which frequencies.

    What is planned for is an assumption, unless it is any frequencies: then it is said to be one.
    """
    target = plan.target
    if target is None or target.frequencies is None:
        return []
    chance = f"exceeded in at most {100 * target.failure_probability:.3g} % of campaigns"
    promised = f"largest error of all frequencies {points(target.linf)}, {chance}"
    if target.frequencies == "any":
        return [("Target", f"{promised}, whatever the frequencies")]
    assumed = f"if frequencies are like {target.frequencies}, which is an assumption"
    return [("Target", f"{promised}, {assumed}")]


def secure_sum_rows(
    traffic: Mapping[str, Any], unit: str = "client", noun: str = "client"
) -> list[tuple[str, str]]:
    """Return the rows on the secure sum; none where it was ideal.

    Args:
        traffic: the traffic of the secure sum; fields that only a run knows may be missing.
        unit: the noun for a part of a sum, "client", "contribution" or "silo".
        noun: what a client is called, "client" or "silo".

    >>> secure_sum_rows({"method": "ideal"})
    []
    """
    if traffic["method"] == "ideal":
        return []
    bits = f"{traffic['bits']}-bit counters"
    if "cohorts" not in traffic:
        corrupt = f"up to {traffic['corrupt']:,} {noun}s of a sum corrupt"
        return [
            ("Secure sum", _trust(traffic, noun)),
            *_validity(traffic),
            ("", f"{corrupt}; {bits}; summed elsewhere, by the plan"),
        ]
    rows = [
        ("Secure sum", _trust(traffic, noun)),
        *_validity(traffic),
        ("", f"{_cohorts(traffic, noun)}, up to {traffic['corrupt']:,} of each corrupt; {bits}"),
        ("", _attendance(traffic, unit)),
        *([("Screening", screened(traffic["screening"]))] if "screening" in traffic else []),
    ]
    # Real clients count their own bytes and seconds; a simulation counts those of all.
    if "engine" in traffic:
        return rows
    return [
        *rows,
        ("Messages", _traffic(traffic, "up", noun)),
        ("", _traffic(traffic, "down", noun)),
        *_cpu(traffic, noun),
    ]


def _validity(traffic: Mapping[str, Any]) -> list[tuple[str, str]]:
    said = validity(traffic.get("validity"))
    return [("", said)] if said else []


def validity(name: str | None) -> str:
    """Return what two servers know of the reports that they add up; "" if nothing is said of it.

    >>> validity(None), validity("none")
    ('', 'reports have no proofs: a client that lies is not found out')
    """
    if name is None:
        return ""
    if name == "none":
        return "reports have no proofs: a client that lies is not found out"
    return "each report has a proof that it has the form of one item; any other is refused"


def part_of_sum(result: Result) -> str:
    """Return the noun for a part of a result's sums: a client, a contribution or a silo."""
    if not result.plan.is_of_silos:
        return result.unit.removesuffix("s")
    parts = sum(sketch.num_silos for sketch in result.sketches)
    return "silo" if parts == result.num_silos else "contribution"


def attendance(traffic: Mapping[str, Any], unit: str) -> str:
    """Return who saw the secure sums, and how many parts they have; "" where they were ideal.

    Args:
        traffic: the traffic of the secure sum.
        unit: the noun for a part of a sum.

    >>> attendance({"method": "ideal"}, "client")
    ''
    """
    if traffic["method"] == "ideal":
        return ""
    said = f"{traffic['method']}: {_seen(traffic)}"
    # What the plan says of a sum that was made elsewhere has no numbers.
    said = f"{said}; {_attendance(traffic, unit)}" if "cohorts" in traffic else said
    # where there are proofs, the list is as it should be, and needs no word
    return f"{said}; {validity('none')}" if traffic.get("validity") == "none" else said


def _cpu(traffic: Mapping[str, Any], noun: str) -> list[tuple[str, str]]:
    # A private run has no seconds: they could tell how much a client holds.
    if traffic["client_seconds"] is None:
        return []
    text = (
        f"{1e3 * traffic['client_seconds']:.2g} ms a {noun}, {traffic['server_seconds']:.2g} s at"
        " the server"
    )
    return [("CPU", text)]


def _trust(traffic: Mapping[str, Any], noun: str) -> str:
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
        f" {traffic['min_survivors']:,} {noun}s in a sum"
    )


def honesty(least: int) -> str:
    """Return what owners of agents must have written to take a plan whose sums have so many.

    >>> honesty(3)
    'owners need min_honest = 3 or less in agent.toml'
    """
    return f"owners need min_honest = {least} or less in agent.toml"


def _cohorts(traffic: Mapping[str, Any], noun: str) -> str:
    least, most = traffic["smallest_cohort"], traffic["largest_cohort"]
    return f"{counted(traffic['cohorts'], 'cohort')} of {in_range(least, most)} {noun}s"


def _attendance(traffic: Mapping[str, Any], unit: str) -> str:
    counted_in = f"{traffic['survivors']:,} of {counted(traffic['clients'], unit)}"
    left_out = traffic.get("screening", {}).get("clients_left_out", 0)
    screened_out = f" ({left_out:,} of them in cohorts that are left out)" if left_out else ""
    if traffic.get("engine") == "agents":
        counted_in += " that were asked are in the sums"
        return f"{counted_in}{screened_out}; an agent answered for each"
    if refused := traffic.get("refused", 0):
        counted_in += f" in the sums, {counted(refused, 'report')} refused"
    else:
        counted_in += f" in the sums{screened_out}"
    if "engine" in traffic:  # real servers: nobody knows who would have reported
        return counted_in
    gone = f"{traffic['dropouts']:,} dropped out" if traffic["dropouts"] else "nobody dropped out"
    # Some leave after their part is in the sum. Without them the numbers would not add up.
    if (late := traffic["survivors"] + traffic["dropouts"] - traffic["clients"]) > 0:
        gone += f", {late:,} of them after their part was in"
    equal = (
        "the sums equal the plain sums exactly"
        if traffic["equals_plain_sum"]
        else "not compared with plain sums"
    )
    return f"{counted_in}, {gone}; {equal}"


def screened(told: Mapping[str, Any]) -> str:
    """Return what screening says of the sums of cohorts.

    Args:
        told: the field `screening` of a secure sum.

    >>> screened({"screen": "off", "why": "", "rounds": []})
    'off'
    >>> found = {"round": 0, "cohorts": 20, "verdict": "consistent", "stand_out": 0,
    ...          "votes": 1.002, "votes_limit": 1.08, "mean_square": 0.99,
    ...          "mean_square_limit": 1.41}
    >>> screened({"screen": "warn", "why": "", "rounds": [found]})
    '20 cohorts fit honest clients: votes 1.00 (limit 1.08), mean square 0.99 (limit 1.41)'
    """
    if told["screen"] == "off":
        return f"off: {told['why']}" if told["why"] else "off"
    looked = [found for found in told["rounds"] if "votes" in found]
    missed = [found for found in told["rounds"] if "votes" not in found]
    if not looked:
        return f"off: {missed[0]['why']}" if missed else "off: no cohort landed"
    # the round that is nearest to a limit, or furthest beyond one
    worst = max(
        looked,
        key=lambda found: max(
            (found["votes"] - 1) / (found["votes_limit"] - 1),
            (found["mean_square"] - 1) / (found["mean_square_limit"] - 1),
        ),
    )
    fits = sum(found["verdict"] == "consistent" for found in looked)
    if len(looked) > 1:
        who = f"{fits:,} of {len(looked):,} rounds fit honest clients; at worst"
    elif worst["verdict"] == "poisoned":
        who = f"{worst['cohorts']:,} cohorts do not fit honest clients:"
    else:
        of = f"{worst['cohorts'] - worst['stand_out']:,} of " * (not fits)
        who = f"{of}{worst['cohorts']:,} cohorts fit honest clients:"
    figures = (
        f"votes {worst['votes']:.2f} (limit {worst['votes_limit']:.2f}), mean square"
        f" {worst['mean_square']:.2f} (limit {worst['mean_square_limit']:.2f})"
    )
    rest = f"; {counted(len(missed), 'round')} not screened: {missed[0]['why']}" if missed else ""
    return f"{who} {figures}{rest}"


def _traffic(traffic: Mapping[str, Any], way: str, noun: str) -> str:
    name = f"{way}load_bytes"
    parts = [f"{stage['stage']} {size(stage[name])}" for stage in traffic["stages"] if stage[name]]
    return f"{way} {size(traffic[name])} a {noun}{': ' if parts else ''}{', '.join(parts)}"


def expected_error(intervals: Intervals) -> str:
    """Return the predicted largest error: about how large it is, or between what it is.

    >>> import fedtally
    >>> asked = {"domain": "range:1..900", "rows": 6, "seed": 1}
    >>> for width in (90, 300):
    ...     result = fedtally.estimate("zipf:a=1.1,d=900,n=20000", width=width, **asked)
    ...     print(expected_error(result.intervals))
    0.039 to 0.111 points
    0.066 points
    """
    between = intervals.predicted_range
    if between is None:
        return points(intervals.predicted_linf)
    low, high = (points(error, decimals(between)) for error in between)
    return f"{low.removesuffix(' points')} to {high}"


def sure(result: Result, shown: Sequence[Estimate]) -> str:
    """Return how wrong an answer may be, with one number for each of its two readings.

    Args:
        result: the whole answer.
        shown: the estimates that are shown, in a list or since they were asked for.

    >>> import fedtally
    >>> result = fedtally.estimate(["tea", "milk"] * 500, seed=1)
    >>> sure(result, result.top(2))
    '± 0.10 points among these 1,000 clients; ± 3.09 if they stand for more people'
    """
    if result.intervals is None and result.evaluation is None:
        return NOT_ESTIMATED
    found = None if result.evaluation is None else result.evaluation.linf
    return doubt(shown, those(result.num_contributions, result.unit), found)


def those(number: int, unit: str) -> str:
    """Return those that took part, as they are counted.

    >>> those(3000, "clients"), those(1, "people")
    ('these 3,000 clients', 'this one person')
    """
    return in_number(number, f"this one {one_of(unit)}", f"these {{}} {unit}")


def doubt(shown: Sequence[Estimate], among: str, found: float | None = None) -> str:
    """Return how far off estimates may be: among those that took part, and if they stand for more.

    Args:
        shown: the estimates. Those that cannot be told from 0 count only if none can.
        among: those that took part, as `those` says it.
        found: the largest error of all candidates, where the truth is known.

    >>> tea, rare = (Estimate("tea", f, low, f + 0.03, 9.0, 0.04, 0.0, f + 0.05)
    ...              for f, low in ((0.5, 0.47), (0.01, 0.0)))
    >>> doubt([tea, rare], "these 900 clients")
    '± 3.00 points among these 900 clients; ± 5.00 if they stand for more people'
    >>> doubt([rare], "these 900 clients").partition("; ")[0]
    'each is at most 4.00 % among these 900 clients'
    >>> doubt([tea], "these 900 clients", found=0.0123).partition("; ")[0]
    'largest error found: 1.23 points among these 900 clients'
    """
    here, more = _readings(shown)
    if found is not None:
        here = f"largest error found: {points(found)}" if found > _ROUNDING else "no error found"
    said = [f"{here} among {among}"] * bool(here)
    said += [f"{more} if they stand for more people"] * bool(more)
    return "; ".join(said) or "no item is shown"


def _readings(shown: Sequence[Estimate]) -> tuple[str, str]:
    """Return the uncertainty among the clients, and if they stand for more; "" where unknown."""
    if (off := largest_uncertainty(shown)) is not None:
        clients, wider = off
        # limits of small noise have a width below rounding, which no reader can use
        within = f"± {points(clients if clients > _ROUNDING else 0.0)}"
        return within if clients else "exact", f"± {_bare(wider)}"
    highest = [(e.high, e.population_high) for e in shown if e.high is not None]
    if not highest:
        return "", ""
    clients, wider = (max(filter(None, each), default=0.0) for each in zip(*highest, strict=True))
    return f"each is at most {percent(clients)}", f"at most {percent(wider)}"


def _bare(error: float) -> str:
    return points(error).removesuffix(" points")


def none_expected(result: Result, estimates: Sequence[Estimate]) -> str:
    """Return what is said of the error where recovery looks exact, and what the limits still allow.

    Limits may be wider than the error that is expected: a reader would see a contradiction.

    Args:
        result: the whole answer, with intervals, whose predicted error is 0.
        estimates: those that are shown.

    >>> import fedtally
    >>> none_expected(fedtally.estimate(["tea"], seed=1), [])
    'none beyond rounding: recovery looks exact'
    """
    half = max(
        (
            max(e.frequency - e.low, e.high - e.frequency)
            for e in estimates
            if e.low is not None and e.high is not None
        ),
        default=0.0,
    )
    most = round(half * result.num_contributions)
    said = "none beyond rounding: recovery looks exact"
    if result.plan.privacy is not None:  # no item's noise is likely to count, and some may
        said = "most likely none: the plan's noise is small"
    if not most:
        return said
    one = result.unit.removesuffix("s")
    return f"{said}, though the limits allow {counted(most, one)} more or less"


def evaluated_names(found: NameEvaluation) -> list[str]:
    """Return in a few words how the names of an open domain compare with the true strings.

    >>> found = NameEvaluation(0.02, 3, 1.0, 1.0, 5, 0, 0.001, 0.002, 1.0)
    >>> evaluated_names(found)[1]
    'all 3 strings above 2 % are named'
    """
    above = f"above {100 * found.threshold:.3g} %"
    digits = decimals([found.linf, found.l2])
    said = [f"largest {points(found.linf, digits)} of all strings that somebody holds"]
    if found.recall is None:
        said.append(f"no string is {above}")
    elif found.strings == 1:
        said.append(f"the only string {above} is {'named' if found.recall else 'not named'}")
    elif found.recall == 1.0:
        said.append(f"all {found.strings:,} strings {above} are named")
    else:
        number = round(found.recall * found.strings)
        said.append(f"{number:,} of the {found.strings:,} strings {above} are named")
    wrong = f"{found.wrong:,} wrong" if found.wrong else "none of them wrong"
    said.append(f"{counted(found.named, 'name')}, {wrong}")
    if found.precision is not None:
        said.append(f"precision {found.precision:.0%}")
    rest = [f"l2 {points(found.l2, digits)}"]
    if found.coverage is not None:
        rest.append(f"{found.coverage:.1%} of the intervals of named strings hold the truth")
    return [*said, "; ".join(rest)]


def covered(
    confidence: float, asked: str, about: str, listed: Sequence[Estimate], named: Sequence[Estimate]
) -> list[tuple[str, str]]:
    """Return the rows on what intervals cover, on how they were made, and on what they leave out.

    Args:
        confidence: the confidence of the intervals.
        asked: the kind of interval that was asked for.
        about: how they were made, in words.
        listed: estimates in a list that they chose themselves.
        named: estimates of items named beforehand.
    """
    from fedtally.recovery.decoding import listed_kind, named_kind

    kinds = [listed_kind(asked)] * bool(listed) + [named_kind(asked)] * bool(named)
    said = []
    for kind in dict.fromkeys(kinds or [named_kind(asked)]):
        each = " each" if kind == "pointwise" else ""
        said.append(f"{level(confidence)}{each}, for {covers(kind)}")
    rows = [("Intervals", said[0]), *(("", more) for more in [*said[1:], about] if more)]
    if off := uncertainty_of([*listed, *named]):
        text = (
            "not in the intervals: those that took part as a sample of a wider population, up"
            f" to ± {points(off.sampling.max())} here"
        )
        rows.append(("Sampling", text))
    return rows


def banner(plan: Plan) -> str:
    """Return what stands first in a report without privacy, or marked so; else "".

    >>> plan = Plan(rows=7, width=8, schedule="shared", num_rounds=1, num_clients=50,
    ...             max_round_clients=50, domain={"kind": "range", "size": 900, "public": True},
    ...             max_items=1, seed=bytes(32))
    >>> banner(plan)
    'No differential privacy: the sums of each round are exact'
    """
    if plan.privacy is None:
        return f"{NO_PRIVACY[0].upper()}{NO_PRIVACY[1:]}"
    return "Not private: nothing is guaranteed" if plan.privacy.not_private else ""


def protects(plan: Plan) -> list[str]:
    """Return what a plan protects, in sentences without formulas."""
    one, _ = plan.nouns
    if plan.privacy is None:
        return [
            (
                f"Nothing hides what one {one} contributed from somebody who sees exact sums and"
                " knows what the others contributed."
            )
        ]
    from fedtally.privacy.guarantee_text import changed, period, right_guesses, unit

    terms, of_silos = plan.privacy, plan.is_of_silos
    if terms.not_private:
        return ["This run is marked not private: nobody may rely on any protection."]
    return [
        f"What is published changes little {changed(terms.event.relation, of_silos)}.",
        (
            "Somebody who holds the two cases equally likely, and guesses from all that was"
            f" published, is right in at most {right_guesses(terms.guarantee)} % of cases, whatever"
            " else that person knows; 50 % is chance."
        ),
        f"This protects {unit(terms.event, of_silos)}, over {period(terms.event, of_silos)}.",
    ]


def learned(plan: Plan, traffic: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the rows on who could learn what, and on which conditions.

    Args:
        plan: the plan of the campaign.
        traffic: the traffic of its secure sum; fields that only a run knows may be missing.

    >>> plan = Plan(rows=7, width=8, schedule="shared", num_rounds=1, num_clients=50,
    ...             max_round_clients=50, domain={"kind": "range", "size": 900, "public": True},
    ...             max_items=1, seed=bytes(32))
    >>> learned(plan, {"method": "ideal"})[1]
    ('Whoever made the sums', 'all that each client holds, for no secure sum was run')
    """
    method, noun = traffic["method"], who(plan)
    central = plan.protection.of_release() is not None
    adds = ", and added the noise" * central
    reader = "what noised sums show: what it protects is above"
    if plan.privacy is None:
        reader = f"what exact sums show, also of what few {noun}s hold"
    elif plan.privacy.not_private:
        reader = "whatever the sums show: nothing is guaranteed"
    rows = [("Readers of this page", reader)]
    if method == "ideal":
        everything = f"all that each {noun} holds, for no secure sum was run{adds}"
        return [*rows, ("Whoever made the sums", everything)]
    exact = "noised" if plan.protection.sums is Sums.NOISED else "exact"
    sums = f"{exact} sums over at least {traffic['min_survivors']:,} {noun}s{adds}"
    if method == "two-server":
        proven = "; it is trusted to refuse wrong reports" * (traffic.get("validity") == "proofs")
        rows += [
            ("The two servers", "who took part"),
            ("", f"no {noun}'s part, as long as they do not work together"),
            ("The leading server", f"{sums}{proven}"),
            (f"Other {noun}s", "nothing"),
        ]
    else:
        is_curious = traffic["adversary"] == "semi-honest"
        follows = "it follows the protocol and " * is_curious
        corrupt = f"at most {counted(traffic['corrupt'], noun)} of a sum work with it"
        rows += [
            ("The server", f"who took part, and {sums}"),
            ("", f"no {noun}'s part, as long as {follows}{corrupt}"),
            (f"Other {noun}s", "how many took part" if is_curious else "who took part"),
        ]
    if "cohorts" in traffic and "engine" not in traffic:
        everything = f"all that each {noun} holds: the {noun}s were simulated"
        rows.append(("Whoever ran this", everything))
    return rows
