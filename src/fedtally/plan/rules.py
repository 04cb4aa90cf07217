"""The rules about which options may be combined: a table with one row for each rule.

The caller of `check` passes the options that are given, and the needs that are not met. `check`
raises the error of the first row that is broken. All texts of these errors are here.
`docs/troubleshooting.md` is generated from this table.

The bounds of single values are checked elsewhere, by the parts of a plan (`plan.parts`). The parts
also check the files of plans. Where a plan has the same needs as an option, the parts use this
table, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from fedtally.base.encoding import Encoding
from fedtally.errors import InvalidInputError, opt
from fedtally.recovery.decoders import OPEN, Recovery

_AUTO = "auto"


class Need(Enum):
    """What an option may need. The value is the sentence for an error; {} stands for the option."""

    NO_PLAN = "a plan already says {}"
    PRIVATE_PLAN = "{} is not for a plan without privacy"
    EPSILON = f"{{}} goes with {opt.epsilon}"
    GUARANTEE = f"{{}} is not for a run that is marked {opt.not_private(True)}"
    NOT_PRIVATE = "{} is not for a private run"
    ADD_REMOVE = "{} goes with the relation add-remove"
    REPLACE_ONE = "{} goes with the relation replace-one"
    SECAGG = "{} goes with the secure sum secagg"
    TWO_SERVER = "{} goes with the secure sum two-server"
    NOT_TWO_SERVER = "{} is not for the secure sum two-server"
    PROTOCOL = "{} goes with a real secure sum, secagg or two-server"
    SKETCH = "{} is not for a histogram"
    GAUSSIAN = "{} is not for geometric noise (or delta 0), which is for histograms"
    HISTOGRAM = "{} goes with a histogram"
    DELTA = "{} goes with a delta above 0"
    OPEN = f"{{}} goes with {opt.domain('open')}"
    OPEN_PLAN = "{} goes with a plan for an open domain"
    UNSIZED = "{} goes with an open domain that no plan has sized yet"
    LIST = "{} is not for an open domain"
    SILOS = "{} goes with silos"
    PERSONS = "{} is not for silos"
    PEOPLE = f"for silos {{}} goes with {opt.people} above 1, the most people of one"
    SILO_PLAN = "{} goes with a plan of silos"
    SILO_COLUMN = f"silos in {{}} go with {opt.silo}"
    ONE_ROUND_OF_SILOS = "{} is not for several rounds of silos"
    NOISE_OF_CLIENTS = "{} goes with noise that clients add"
    TAU = f"{{}} goes with {opt.tau}, the error that is asked for"
    NO_WIDTH = f"{{}} does not go with {opt.width}"
    NO_MAX_COHORT = f"{{}} does not go with {opt.max_cohort}"
    NO_ROUND_COLUMN = "a round column already says {}"
    ROUND_COLUMN = "{} goes with natural rounds"
    CLIENTS = "{} goes with the clients of the rows"
    PLAN_POPULATION = "{} is not the one in the plan"
    NO_DOMAIN = f"{{}} does not go with {opt.domain}"
    INPUT = "{} goes with an input"
    RESULT = f"{{}} does not go with a family in {opt.like}"
    UNTIL_KNOWN = f"{{}} goes with {opt.until_known}"
    OWN_HASHES = f"{{}} with {opt.start} must be hybrid or fresh"
    COUNTED = f"{{}} does not go with {opt.start}"
    NO_TESTED_PLAN = f"{{}} is not for fedtally simulate {opt.plan}"
    NO_OPEN_TEST = f"{{}} is not for fedtally simulate {opt.domain('open')}"
    OPEN_TEST = f"{{}} goes with fedtally simulate {opt.domain('open')}"


@dataclass(frozen=True)
class Rule:
    """A row of the table: options, what each of them needs, the reason, and the way out.

    Attributes:
        options: the names of the options to which the row applies.
        need: what each of these options needs.
        because: the reason for the need, if the sentence of the need does not say it.
        way: what the user can do instead; {} stands for the option.
        values: the values of the option to which the row applies, as texts; the message then shows
            the value. Empty: all values.
    """

    options: tuple[str, ...]
    need: Need
    because: str = ""
    way: str = "leave {} out"
    values: tuple[str, ...] = ()

    def refusal(self, option: str, value: Any, instead: str) -> InvalidInputError:
        """Return the error of this row.

        Args:
            option: the name of the option.
            value: the value of the option.
            instead: what is given instead of what the option needs, or "".
        """
        named = opt[option](value) if self.values else opt[option]
        got = f", got {instead}" if instead else ""
        because = f"{self.because}; " if self.because else ""
        way = self.way.format(opt[option])
        return InvalidInputError(f"{self.need.value.format(named)}{got}: {because}{way}")


PRIVACY = ("delta", "mechanism", "trust", "neighbours", "max_rounds", "max_clients", "certify")
SIZES = ("rows", "width", "max_bytes", "num_rounds", "max_items")
COHORTS = ("max_corrupt", "max_cohort", "max_dropout", "cohort", "cohort_min", "validity")
_OR_NO_PLAN = "leave {} out, or the plan"
_EITHER = "give one, or leave {} out"
_PILOT = ("sizing", "pilot_share")
_OF_OPEN = ("max_length", "normalise", "name_length", "allow_rare_names")
_OF_SKETCHES, _OF_HISTOGRAMS = (
    tuple(str(name) for name in Recovery if name.encoding is encoding)
    for encoding in (Encoding.SKETCH, Encoding.HISTOGRAM)
)
# the reason why a private run may not end with an error at an item outside the domain
OUTSIDE_TELLS = "an error for an item outside the domain would tell what a client holds"
_MARK = f"leave it out, or mark it with {opt.not_private(True)}"

RULES = (
    Rule(("epsilon", *PRIVACY), Need.PRIVATE_PLAN, way=_OR_NO_PLAN),
    Rule((*COHORTS, "epsilon", *PRIVACY), Need.NO_PLAN, way=_OR_NO_PLAN),
    Rule((*SIZES, "schedule", "encoding", "tau"), Need.NO_PLAN, way=_OR_NO_PLAN),
    Rule(("until_known", "min_clients"), Need.NO_PLAN, "it is in the plan", _OR_NO_PLAN),
    Rule(("people", "silos_per_person"), Need.NO_PLAN, way=_OR_NO_PLAN),
    Rule(("population",), Need.PLAN_POPULATION),
    Rule(("methods", *_OF_OPEN), Need.NO_TESTED_PLAN, "it is in the plan", _OR_NO_PLAN),
    Rule(
        ("domain",),
        Need.OPEN_PLAN,
        "this one has a list of candidates",
        "name the list",
        values=("open",),
    ),
    Rule((*PRIVACY, "population", "not_private"), Need.EPSILON, way=_EITHER),
    Rule(("silos_per_person", "ledger"), Need.EPSILON, way=_EITHER),
    Rule(
        ("per_rounds", "participations"),
        Need.EPSILON,
        "without privacy a client takes part in one round",
        _EITHER,
    ),
    Rule(
        ("ledger",),
        Need.GUARANTEE,
        "nothing of such a run is charged",
        f"leave {{}} or {opt.not_private(True)} out",
    ),
    Rule(
        ("outside",),
        Need.NOT_PRIVATE,
        OUTSIDE_TELLS,
        "leave {} out (such clients contribute zeros), or mark the run with"
        f" {opt.not_private(True)}",
        values=("error",),
    ),
    Rule(("seed",), Need.NOT_PRIVATE, "whoever knows a seed can take the noise off", _MARK),
    Rule(("evaluate",), Need.NOT_PRIVATE, "the truth is not private", _MARK),
    Rule(
        ("sizing",),
        Need.NOT_PRIVATE,
        "it reads the truth, which is not private",
        f"use another one, or mark the run with {opt.not_private(True)}",
        values=("oracle",),
    ),
    Rule(("max_clients",), Need.ADD_REMOVE, "for others the number of clients is public"),
    Rule(("certify",), Need.REPLACE_ONE),
    Rule(
        ("mechanism",),
        Need.DELTA,
        way="give a delta, or leave {} out",
        values=("rounded-gaussian", "skellam"),
    ),
    Rule(
        ("secure_sum",),
        Need.PERSONS,
        "silos are not summed by two servers yet",
        f"use {opt.secure_sum('secagg')} or {opt.secure_sum('ideal')}",
        values=("two-server",),
    ),
    Rule(("max_clients",), Need.PERSONS, "the number of silos is public"),
    Rule(("max_rounds",), Need.PERSONS, "a silo takes part in every natural round"),
    Rule(("start",), Need.PERSONS, "the rounds of silos are added up before they are opened"),
    Rule(("schedule",), Need.OWN_HASHES, "each round is opened by itself"),
    Rule(
        ("neighbours",),
        Need.COUNTED,
        "the number of clients is noised over all rounds together",
        "use zero-out or replace-one",
        values=("add-remove",),
    ),
    Rule(
        ("tau",),
        Need.PERSONS,
        "it takes a pilot of some clients, and silos are few",
        f"make a plan of silos beforehand (fedtally plan), and give it ({opt.plan})",
    ),
    Rule(
        ("people", "silos_per_person"),
        Need.SILOS,
        way=f"name their column ({opt.silo}), or leave {{}} out",
    ),
    Rule(("silos_per_person", "expected_people"), Need.PEOPLE),
    Rule(
        ("epsilon",),
        Need.PEOPLE,
        "that number must be public, whatever silos have",
        f"say how many ({opt.people('N')})",
    ),
    Rule(
        ("silo",),
        Need.SILO_PLAN,
        way=f"leave {{}} out, or make a plan with the most people of a silo ({opt.people})",
    ),
    Rule(
        ("plan",),
        Need.SILO_COLUMN,
        way=f"name the columns of the silos and of the people ({opt.silo}, {opt.client})",
    ),
    Rule(
        ("schedule",),
        Need.ONE_ROUND_OF_SILOS,
        "silos differ, and errors are predicted for rounds that do not",
        "leave {} out (shared)",
    ),
    Rule(("validity",), Need.TWO_SERVER, way="leave {} out, or use two-server"),
    Rule(("adversary",), Need.SECAGG, values=("active",)),
    Rule(("screen",), Need.SECAGG, values=("refuse", "warn")),
    Rule(("cohort", "cohort_min", "max_cohort"), Need.SECAGG),
    Rule(("dropout",), Need.PROTOCOL),
    Rule(
        ("cohort", "cohort_min"),
        Need.NO_MAX_COHORT,
        "both say how large cohorts are",
        "give one of them",
    ),
    Rule(
        ("rows", "width", "schedule", "certify", "start"),
        Need.GAUSSIAN,
        way="leave {} out, or take another mechanism, with a delta",
    ),
    Rule(("encoding",), Need.GAUSSIAN, way="leave one of them out", values=("sketch",)),
    Rule(
        ("domain",),
        Need.GAUSSIAN,
        "it lists no candidates",
        "leave {} out, or take another mechanism, with a delta",
        values=("open",),
    ),
    Rule(
        ("rows", "width", "schedule", "certify", "start"),
        Need.SKETCH,
        way="leave {} out, or take the encoding sketch",
    ),
    Rule(
        ("domain",),
        Need.SKETCH,
        "it lists no candidates",
        "leave {} out, or take the encoding sketch",
        values=("open",),
    ),
    Rule(
        ("sizing",),
        Need.SKETCH,
        "it sizes a sketch, and a histogram has as many counters as candidates",
        "leave {} out, or take the encoding sketch",
        values=("two-phase", "minimax", "linear", "oracle"),
    ),
    Rule(
        ("recovery",),
        Need.GAUSSIAN,
        way="leave {} out, or take another mechanism, with a delta",
        values=_OF_SKETCHES,
    ),
    Rule(("recovery",), Need.SKETCH, values=_OF_SKETCHES),
    Rule(("recovery",), Need.HISTOGRAM, values=_OF_HISTOGRAMS),
    Rule(("width",), Need.LIST, f"its sketches share {opt.max_bytes}, or follow from {opt.tau}"),
    Rule(("certify",), Need.LIST, "there is no list of candidates to look at"),
    Rule(
        ("recovery",),
        Need.LIST,
        f"{OPEN} recovery finds what stands out",
        values=tuple(str(name) for name in Recovery if name is not OPEN),
    ),
    Rule(
        ("schedule",),
        Need.LIST,
        "the best number of batches is not known, so name one",
        values=("batched:auto",),
    ),
    Rule(
        _PILOT,
        Need.LIST,
        "its size follows from assumed frequencies, without a pilot",
        "leave {} out, or make a plan for known ones (fedtally plan --like)",
    ),
    Rule(("plot",), Need.LIST, "it draws the error for a list of candidates"),
    Rule(
        ("methods", "rows"),
        Need.NO_OPEN_TEST,
        f"the sizes follow from {opt.tau} or {opt.max_bytes}",
    ),
    Rule((*_PILOT, "until_known"), Need.TAU, way=_EITHER),
    Rule(("min_clients",), Need.UNTIL_KNOWN, way=_EITHER),
    # the next five rules are checked for a request, and by `plan.stopping.check_stopping` for plans
    Rule(("until_known",), Need.LIST, "its candidates are decoded after each round"),
    Rule(("until_known",), Need.SKETCH, "each of its rounds is exact"),
    Rule(("until_known",), Need.PERSONS, "their rounds are opened together"),
    Rule(("until_known",), Need.NOT_TWO_SERVER, "two servers close each release by themselves"),
    Rule(
        ("until_known",),
        Need.NOISE_OF_CLIENTS,
        "a trusted aggregator draws it once, at the end",
        f"give {opt.secure_sum('secagg')} and {opt.trust('distributed')}, or leave {{}} out",
    ),
    Rule(
        ("dictionary",),
        Need.OPEN,
        "its names may be in the list",
        "take an open domain, or make the list the domain itself",
    ),
    Rule(_OF_OPEN, Need.OPEN),
    Rule(("name_length",), Need.UNSIZED),
    Rule(("tau", "max_bytes"), Need.OPEN_TEST, way="leave {} out, or take an open domain"),
    Rule(("domain_size",), Need.NO_DOMAIN, "both say the candidates", "give one of them"),
    Rule(
        ("domain",),
        Need.INPUT,
        way=f"give a FILE, range:A..B, grid:... or open, or give {opt.domain_size}",
        values=("input",),
    ),
    Rule(("max_bytes",), Need.NO_WIDTH, "both size the sketch", "give one of them"),
    Rule(("tau",), Need.NO_WIDTH, "it chooses the width", f"leave {opt.width} out, or {{}}"),
    Rule(("num_rounds",), Need.NO_ROUND_COLUMN),
    Rule(
        ("max_rounds",),
        Need.ROUND_COLUMN,
        way=f"name their column ({opt.round}), or leave {{}} out",
    ),
    Rule(
        ("max_items",),
        Need.CLIENTS,
        "here each row or count is a client of one item",
        f"name the clients ({opt.client}), or leave {{}} out",
    ),
    Rule(
        ("max_items",),
        Need.RESULT,
        "its clients hold one item each",
        f"leave {opt.like} out, or name a RESULT of such clients",
    ),
)


def given(**options: Any) -> dict[str, Any]:
    """Return the options that the user gave, by name.

    An option is left out if its value is None, False or "auto".

    >>> given(rows=5, max_rounds=0, certify=False, encoding="auto", width=None)
    {'rows': 5, 'max_rounds': 0}
    """
    return {
        name: value
        for name, value in options.items()
        if not (value is None or value is False or (isinstance(value, str) and value == _AUTO))
    }


def check(options: Mapping[str, Any], lacking: Mapping[Need, str]) -> None:
    """Refuse a combination of options, if a rule in the table `RULES` forbids it.

    The rules are tried in the order of the table. A rule is broken if its need is in `lacking`, and
    `options` has one of the rule's options. If the rule lists values, the option must have one of
    these values. A need that is not in `lacking` counts as met.

    Args:
        options: the options that the user gave, by name; `given` returns them.
        lacking: the needs that are not met, each with a text about what is given instead, or "";
            `unmet` returns them.

    Raises:
        InvalidInputError: a rule is broken; the message is about the first broken rule.

    The second example passes: the rule about `adversary` is only for the value "active".

    >>> check(given(delta=1e-6), unmet(epsilon=True))
    Traceback (most recent call last):
    ...
    fedtally.errors.InvalidInputError: delta= goes with epsilon=: give one, or leave delta= out
    >>> check(given(adversary="semi-honest"), unmet(secagg="ideal"))
    """
    for rule in RULES:
        if rule.need not in lacking:
            continue
        for option in rule.options:
            if option in options and (not rule.values or str(options[option]) in rule.values):
                raise rule.refusal(option, options[option], lacking[rule.need])


def unmet(**needs: bool | str | None) -> dict[Need, str]:
    """Return the needs that are not met, each with a text about what is given instead, or "".

    Args:
        needs: keywords, the names of members of `Need` in lower case. The value is falsy if the
            need is met. Otherwise it is True, or a text about what is given instead.

    >>> unmet(epsilon=False, secagg="ideal")
    {<Need.SECAGG: '{} goes with the secure sum secagg'>: 'ideal'}
    """
    return {
        Need[name.upper()]: value if isinstance(value, str) else ""
        for name, value in needs.items()
        if value
    }
