"""Count what the next change to the package costs, and let none of it grow.

    python tools/house.py                # the numbers, beside the last accepted ones
    python tools/house.py --show kinds   # every place that one number counts
    python tools/house.py --check        # exits 1 if a number is worse than accepted
    python tools/house.py --renew        # accept what is better
    python tools/house.py --renew --allow kinds='a decoder more'    # and this one, which is worse

`NUMBERS` holds the numbers, and says how each is counted. All come from the text of the source:
nothing is imported or run. `house.toml` holds the accepted numbers. The lines of the package are
shown there, and held to nothing: they follow from the others.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from house_source import FUNCTIONS, Function, House, Module, Parameter, arguments_of, fields_of

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "fedtally"
ACCEPTED = Path(__file__).with_suffix(".toml")

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class Count(NamedTuple):
    """What a number is, and the places that it counts."""

    number: float
    places: list[str]


def _of(places: Iterable[str]) -> Count:
    listed = list(places)
    return Count(len(listed), listed)


def _walks(start: Parameter) -> tuple[Callable[[House], Count], Callable[[House], Count]]:
    """Return the counts of a walk's rooms and climbs."""

    def rooms(house: House) -> Count:
        return _of(house.walk(start).rooms)

    def climbs(house: House) -> Count:
        return _of(f"{a} -> {b}" for a, b in sorted(house.walk(start).climbs))

    return rooms, climbs


PLAN = Parameter("fedtally.cli.plan", "plan", "options", "Request")
DOOR = Parameter("fedtally.simulation.run", "run", "simulation")

# ---- kinds ----

# Where a kind may be asked for: a part of the plan, and a decoder.
PARTS = ("plan/parts/", "recovery/decoders/")
# Who adds noise is asked there, too.
NOISE = ("plan/", "privacy/")
# The kinds that a campaign may have: classes, and properties or functions that say which it is.
PROTECTION = (
    *("by_clients", "is_noised", "is_noised_before", "is_noised_once", "is_once", "noises_sums"),
    *("folds_sums", "noises_of_sum", "has_secret_sums", "noised_by_release", "Trust", "NoiseBy"),
)
KINDS = (
    *("Silos", "is_of_silos"),
    *("OpenStrings", "is_open"),
    *("Encoding", "is_histogram"),
    *("SecureSum", "SecAggConfig", "TwoServerConfig", "is_ideal", "is_secagg", "is_two_server"),
    *("Adversary", "Validity", "has_proofs"),
    *PROTECTION,
    *("Mechanism", "Geometric", "is_pure", "is_skellam"),
    *("Relation", "hides_number"),
    *("Recovery", "JointDecoder", "BeliefDecoder", "MedianDecoder", "DirectDecoder", "by_belief"),
    "ScheduleKind",
)


def _member(node: ast.AST, kinds: Collection[str]) -> bool:
    """Return whether a node is a member of one of these classes, or several with one."""
    if isinstance(node, (ast.Tuple, ast.Set, ast.List)):
        return any(_member(part, kinds) for part in node.elts)
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in kinds
        and node.attr.isupper()
    )


def _names(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _asks(node: ast.AST, kinds: Collection[str]) -> bool:
    """Return whether a node compares one of these kinds, or asks what says which it is."""
    if isinstance(node, ast.Compare):
        return any(_member(part, kinds) for part in (node.left, *node.comparators))
    if isinstance(node, ast.MatchValue):
        return _member(node.value, kinds)
    if isinstance(node, ast.MatchClass):
        return not _names(node.cls).isdisjoint(kinds)
    if isinstance(node, ast.Attribute):
        return node.attr in kinds and node.attr.islower() and isinstance(node.ctx, ast.Load)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id == "isinstance" and len(node.args) == 2:
            return not _names(node.args[1]).isdisjoint(kinds)
        return node.func.id in kinds and node.func.id.islower()
    return False


def kinds(house: House) -> Count:
    """Count the places that compare a kind, but where it is defined and in parts and decoders."""
    return _of(
        module.at(node, ast.unparse(node)[:70])
        for module in house.modules
        if not module.path.startswith(PARTS)
        for others in [frozenset(KINDS) - {node.name for node in module.classes}]
        for node in module.nodes
        if _asks(node, others)
    )


def noise_askers(house: House) -> Count:
    """Count the files that ask who adds noise, but those of plan/ and privacy/."""
    return _of(
        module.path
        for module in house.modules
        if not module.path.startswith(NOISE)
        and any(_asks(node, PROTECTION) for node in module.nodes)
    )


# ---- shapes ----

MAX_LINES, MAX_COMPLEXITY, MAX_METHODS, MAX_FIELDS = 35, 20, 25, 12


def _choices(node: ast.AST) -> int:
    """Return the conditions that a node adds."""
    if isinstance(node, ast.BoolOp):
        return len(node.values) - 1
    if isinstance(node, ast.comprehension):
        return len(node.ifs)
    return isinstance(node, (ast.If, ast.IfExp, ast.While, ast.Assert, ast.match_case))


def conditionals(house: House) -> Count:
    """Count the conditions of the package."""
    return _of(
        module.at(getattr(node, "target", node))  # a comprehension has no place of its own
        for module in house.modules
        for node in module.nodes
        for _ in range(_choices(node))
    )


def _length(function: Function) -> int:
    """Return the lines of a body, without its docstring."""
    body = function.body[ast.get_docstring(function) is not None :]
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def long_functions(house: House) -> Count:
    """Count the functions whose bodies have more than 35 lines."""
    return _of(
        module.at(function, f"{name}: {_length(function)}")
        for module in house.modules
        for name, function in module.functions
        if _length(function) > MAX_LINES
    )


def complexity(function: Function) -> int:
    """Return one more than the ways that a function may turn: conditions, loops, handlers."""
    turns = (ast.For, ast.AsyncFor, ast.ExceptHandler, ast.comprehension)
    nodes = list(ast.walk(function))
    loops = sum(isinstance(node, turns) for node in nodes)
    filters = sum(len(node.ifs) for node in nodes if isinstance(node, ast.comprehension))
    return 1 + loops + sum(map(_choices, nodes)) - filters


def twisted_functions(house: House) -> Count:
    """Count the functions that may turn more than 20 ways."""
    return _of(
        module.at(function, f"{name}: {complexity(function)}")
        for module in house.modules
        for name, function in module.functions
        if complexity(function) > MAX_COMPLEXITY
    )


def _methods(node: ast.ClassDef) -> int:
    return sum(isinstance(part, FUNCTIONS) for part in node.body)


def busy_classes(house: House) -> Count:
    """Count the classes with more than 25 methods."""
    return _of(
        module.at(node, f"{node.name}: {_methods(node)}")
        for module in house.modules
        for node in module.classes
        if _methods(node) > MAX_METHODS
    )


def wide_classes(house: House) -> Count:
    """Count the classes that declare more than 12 fields, but those that a tool writes."""
    return _of(
        module.at(node, f"{node.name}: {len(fields)}")
        for module in house.modules
        for node in module.classes
        for fields in [[field for field in fields_of(node) if field.lineno not in module.generated]]
        if len(fields) > MAX_FIELDS
    )


def circles(house: House) -> Count:
    """Count the sets of modules that know each other."""
    return _of(" <-> ".join(part) for part in house.circles)


def twins(house: House) -> Count:
    """Count the names of files that several folders have."""
    paths = defaultdict(list)
    for module in house.modules:
        if not module.path.endswith("__init__.py"):
            paths[module.path.rpartition("/")[2]].append(module.path)
    return _of(", ".join(same) for same in paths.values() if len(same) > 1)


# ---- words ----

_HEADLESS = re.compile(r"^    (\w+): (?:of|that|those|by|as)\b", re.M | re.I)
_ENTRIES = re.compile(r"^(?:Args|Attributes):\n((?:    .*\n?|\n)+)", re.M)


def headless(house: House) -> Count:
    """Count the entries of Args and Attributes that begin with of, that, those, by or as."""
    return _of(
        module.at(node, f"{name}: {entry}")
        for module in house.modules
        for node, name, text in module.docstrings
        for part in _ENTRIES.findall(text)
        for entry in _HEADLESS.findall(part)
    )


def so_many(house: House) -> Count:
    """Count "so many" and "so much" in docstrings: quantities without a name."""
    return _of(
        module.at(node, name)
        for module in house.modules
        for node, name, text in module.docstrings
        for _ in re.findall(r"\bso\s+m(?:any|uch)\b", text, re.I)
    )


# ---- options ----

DOOR_OF_OPTIONS = ("simulation/estimate.py", "estimate")
LEAST_OPTIONS = 8  # declared together, so that a place is a home of options
TABLE_OF_OPTIONS = "options.py"
# What a campaign is in numbers, resolved from options: another number counts these places.
CAMPAIGN = frozenset(
    {
        ("plan/plan.py", "Plan"),
        ("plan/privacy.py", "Privacy"),
        ("plan/request.py", "CampaignSpec"),
        ("privacy/config.py", "propose"),
        ("privacy/guarantee_text.py", "Dict"),
        ("answer/saving.py", "Dict"),
    }
)


def _declared(node: ast.AST) -> list[str]:
    """Return the names that a node declares: parameters, fields, or texts of a list."""
    if isinstance(node, FUNCTIONS):
        return [argument.arg for argument in arguments_of(node)]
    if isinstance(node, ast.ClassDef):
        return [ast.unparse(field.target) for field in fields_of(node)]
    if isinstance(node, (ast.Tuple, ast.Set, ast.List)):
        texts = [part.value for part in node.elts if isinstance(part, ast.Constant)]
        return [text for text in texts if isinstance(text, str)]
    if isinstance(node, ast.Dict):
        keys = [key.value for key in node.keys if isinstance(key, ast.Constant)]
        return [key for key in keys if isinstance(key, str)]
    return []


def _call(node: ast.AST, *names: str) -> ast.Call | None:
    """Return a call of one of these functions in a node, if there is one."""
    calls = (part for part in ast.walk(node) if isinstance(part, ast.Call))
    return next((call for call in calls if ast.unparse(call.func) in names), None)


def _clicked(node: ast.AST) -> str:
    """Return the option of the command line that a call declares, as a name of Python."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("option", "click.option"):
        for part in node.args:
            if isinstance(part, ast.Constant) and str(part.value).startswith("--"):
                return str(part.value)[2:].partition("/")[0].replace("-", "_")
    return ""


def _written(house: House) -> dict[str, str | None]:
    """Return the fields of the table of options, and the name of each on the command line."""
    found: dict[str, str | None] = {}
    for module in house.modules:
        if module.path != TABLE_OF_OPTIONS:
            continue
        for field in (field for node in module.classes for field in fields_of(node)):
            call = field.value and _call(field.value, "option")
            if call:
                name = ast.unparse(field.target)
                flags = [part.value for part in call.keywords if part.arg == "flag"]
                typed = ast.literal_eval(flags[0]) if flags else f"--{name}"
                found[name] = typed and typed[2:].replace("-", "_")
    return found


def _by_hand(module: Module, node: ast.AST) -> set[str]:
    """Return the names that a node declares, but those that a tool writes between two comments."""
    names = set(_declared(node))
    inner = [*arguments_of(node)] if isinstance(node, FUNCTIONS) else []
    inner += [*fields_of(node)] if isinstance(node, ast.ClassDef) else []
    for part in inner:
        name = part.arg if isinstance(part, ast.arg) else ast.unparse(part.target)
        if part.lineno in module.generated:
            names.discard(name)
    return names


def _homes(house: House) -> Iterator[tuple[str, str, str]]:
    """Yield where each option of `estimate` is written down by hand: path, place, option."""
    options = _options(house)
    written = _written(house)
    names = {typed: name for name, typed in written.items() if typed}
    for module in house.modules:
        if module.path == TABLE_OF_OPTIONS:
            yield from ((module.path, "", name) for name in written if name in options)
            continue
        for node in module.nodes:
            declared = options & _by_hand(module, node)
            if len(declared) >= LEAST_OPTIONS:
                place = getattr(node, "name", type(node).__name__)
                yield from ((module.path, place, name) for name in declared)
            typed = _clicked(node)
            name = names.get(typed, "") if written else typed
            if name in options:
                yield module.path, "--", name


def _options(house: House) -> set[str]:
    """Return the keywords of `estimate`."""
    path, name = DOOR_OF_OPTIONS
    for module in house.modules:
        for known, function in module.functions:
            if (module.path, known) == (path, name):
                return {argument.arg for argument in function.args.kwonlyargs}
    raise ValueError(f"no function {name} in {path}: name its new place")


def option_homes(house: House) -> Count:
    """Count, for an option of `estimate`, where it is written by hand: a mean over its options.

    That is its field in the table of options, its option on the command line, and wherever at
    least eight options are declared together: in a signature, as fields, in a list or a
    dictionary. What a tool writes between two comments does not count, and what a campaign is in
    numbers is counted by `campaign_homes`.
    """
    homes = Counter(
        option for path, place, option in _homes(house) if (path, place) not in CAMPAIGN
    )
    places = [f"{number} {option}" for option, number in homes.most_common()]
    return Count(round(sum(homes.values()) / len(_options(house)), 2), places)


def campaign_homes(house: House) -> Count:
    """Count the places of `CAMPAIGN`, which hold what was asked, resolved to numbers."""
    return _of(
        f"{path}: {place}"
        for path, place in sorted({(path, place) for path, place, _ in _homes(house)} & CAMPAIGN)
    )


# ---- lines ----


def lines(house: House) -> Count:
    """Count all lines."""
    return Count(sum(module.text.count("\n") for module in house.modules), [])


def _code_lines(module: Module) -> int:
    """Return the lines with code, and not docstrings, comments or nothing alone."""
    said = set()
    for node in module.nodes:
        if isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS)) and ast.get_docstring(node):
            said.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    blank = (
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    )
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type not in blank:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code - said)


def code_lines(house: House) -> Count:
    """Count the lines of code: without docstrings, comments and empty lines."""
    return Count(sum(map(_code_lines, house.modules)), [])


class Number(NamedTuple):
    """A number of the house.

    Attributes:
        says: how it is counted, in a line.
        count: counts it.
        is_held: whether a check fails where it grows.
    """

    says: str
    count: Callable[[House], Count]
    is_held: bool = True


_PLAN_ROOMS, _PLAN_CLIMBS = _walks(PLAN)
_DOOR_ROOMS, _DOOR_CLIMBS = _walks(DOOR)
NUMBERS = {
    "plan_rooms": Number("files that the options of `fedtally plan` enter, see Walk", _PLAN_ROOMS),
    "plan_climbs": Number(
        "calls of that walk to a higher floor: layer, then imports", _PLAN_CLIMBS
    ),
    "door_rooms": Number("files that the options of a simulation enter", _DOOR_ROOMS),
    "door_climbs": Number("calls of that walk to a higher floor", _DOOR_CLIMBS),
    "conditionals": Number(
        "if, while, assert, case, each further part of and/or, each filter", conditionals
    ),
    "kinds": Number("comparisons of KINDS outside PARTS", kinds),
    "noise_askers": Number("files outside NOISE that ask who adds noise: PROTECTION", noise_askers),
    "option_homes": Number(
        "places that write an option of estimate down by hand, on average", option_homes
    ),
    "campaign_homes": Number(
        "places that hold what options mean in numbers: CAMPAIGN", campaign_homes
    ),
    "long_functions": Number("functions of more than 35 lines, docstring aside", long_functions),
    "twisted_functions": Number("functions of a complexity above 20", twisted_functions),
    "busy_classes": Number("classes of more than 25 methods", busy_classes),
    "wide_classes": Number("classes of more than 12 fields", wide_classes),
    "circles": Number(
        "sets of modules that import each other, in functions or for types, too", circles
    ),
    "twins": Number("names of files that several folders have", twins),
    "headless": Number("entries of docstrings that begin with of, that, those, by, as", headless),
    "so_many": Number('"so many" and "so much" in docstrings', so_many),
    "lines": Number("lines of the package (not held)", lines, is_held=False),
    "code_lines": Number("its lines of code (not held)", code_lines, is_held=False),
}


# ---- the ratchet ----


def counted(house: House, names: Iterable[str] = NUMBERS) -> dict[str, float]:
    """Return the numbers of a package."""
    return {name: NUMBERS[name].count(house).number for name in names}


def accepted(text: str) -> dict[str, float]:
    """Return the accepted numbers that a file holds.

    Raises:
        ValueError: the file does not hold exactly the numbers.
    """
    found = tomllib.loads(text)
    if found.keys() != NUMBERS.keys():
        differ = ", ".join(sorted(found.keys() ^ NUMBERS.keys()))
        raise ValueError(f"{ACCEPTED.name} and NUMBERS differ in {differ}: run --renew")
    return found


def worse(now: Mapping[str, float], before: Mapping[str, float]) -> list[str]:
    """Return a line for each held number that is worse than accepted."""
    return [
        f"{name}: {now[name]:g}, accepted {before[name]:g} ({number.says}); bring it down, or run"
        f" tools/house.py --renew --allow {name}='REASON'"
        for name, number in NUMBERS.items()
        if number.is_held and now[name] > before.get(name, now[name])
    ]


def renewed(now: Mapping[str, float], text: str, allowed: Mapping[str, str]) -> str:
    """Return the file with the numbers of now; a reason stays until its number falls.

    Raises:
        ValueError: a number is worse, and no reason allows it.
    """
    before = tomllib.loads(text)
    bad = [
        line
        for line in worse(now, before)
        if line.partition(":")[0] not in allowed and "all" not in allowed
    ]
    if bad:
        raise ValueError("\n".join(bad))
    reasons = dict(re.findall(r"^(\w+) = [^#\n]*# (.*)$", text, re.M))
    out = ["# Written by tools/house.py --renew.\n"]
    for name in NUMBERS:
        is_same = now[name] == before.get(name)
        reason = reasons.get(name, "") if is_same else ""
        if NUMBERS[name].is_held and now[name] > before.get(name, now[name]):
            reason = allowed.get(name) or allowed["all"]
        out.append(f"{name} = {now[name]:g}{f'  # {reason}' if reason else ''}\n")
    return "".join(out)


def _reason(text: str) -> tuple[str, str]:
    name, _, why = text.partition("=")
    if (name not in NUMBERS and name != "all") or not why.strip():
        raise argparse.ArgumentTypeError(f"must be NAME=REASON with a name of a number, got {text}")
    return name, " ".join(why.split())


def main() -> int:
    """Print the numbers, check them, or accept them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--show", choices=NUMBERS, metavar="NAME", help="print what it counts")
    parser.add_argument("--check", action="store_true", help="fail if a number is worse")
    parser.add_argument("--renew", action="store_true", help="accept better numbers")
    parser.add_argument(
        "--allow",
        action="append",
        default=[],
        type=_reason,
        metavar="NAME=REASON",
        help="with --renew: accept a worse number, or all of them",
    )
    options = parser.parse_args()
    house = House.of(PACKAGE)
    if options.show:
        print(*NUMBERS[options.show].count(house).places, sep="\n")
        return 0
    now = counted(house)
    text = ACCEPTED.read_text("utf-8") if ACCEPTED.exists() else ""
    if options.renew:
        try:
            ACCEPTED.write_text(renewed(now, text, dict(options.allow)), "utf-8")
        except ValueError as error:
            print(error, file=sys.stderr)
            return 1
        text = ACCEPTED.read_text("utf-8")
    before = accepted(text)
    if options.check:
        bad = worse(now, before)
        print(*bad, sep="\n", end="\n" * bool(bad), file=sys.stderr)
        return bool(bad)
    for name, number in NUMBERS.items():
        print(f"{name:18} {now[name]:>8g} {before[name]:>8g}  {number.says}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
