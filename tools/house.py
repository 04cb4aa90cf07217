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
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "fedtally"
ACCEPTED = Path(__file__).with_suffix(".toml")

Function = ast.FunctionDef | ast.AsyncFunctionDef
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class Count(NamedTuple):
    """What a number is, and the places that it counts."""

    number: float
    places: list[str]


def _of(places: Iterable[str]) -> Count:
    listed = list(places)
    return Count(len(listed), listed)


class Import(NamedTuple):
    """An import.

    Attributes:
        found: the dotted name of the module, or of what is imported from it.
        here: the name it gets.
        is_typed: whether it is there for type checking alone.
    """

    found: str
    here: str
    is_typed: bool


class Module:
    """A file of the package."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text
        self.tree = ast.parse(text)

    @property
    def name(self) -> str:
        """The dotted name, as `fedtally.plan`."""
        parts = ["fedtally", *self.path.removesuffix(".py").split("/")]
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the file."""
        return list(ast.walk(self.tree))

    @cached_property
    def functions(self) -> list[tuple[str, Function]]:
        """All functions and methods, with their names within the file."""
        return list(_functions(self.tree, ""))

    @cached_property
    def classes(self) -> list[ast.ClassDef]:
        """All classes."""
        return [node for node in self.nodes if isinstance(node, ast.ClassDef)]

    @cached_property
    def docstrings(self) -> list[tuple[ast.AST, str, str]]:
        """What has a docstring, its name, and the docstring."""
        found = []
        for node in self.nodes:
            if isinstance(node, (ast.Module, ast.ClassDef, *_FUNCTIONS)):
                text = ast.get_docstring(node)
                if text:
                    found.append((node, getattr(node, "name", self.name), text))
        return found

    @cached_property
    def generated(self) -> frozenset[int]:
        """The lines that tools/keywords.py writes: they stand between two comments."""
        return frozenset(
            line
            for found in _GENERATED.finditer(self.text)
            for line in range(
                self.text.count("\n", 0, found.start()) + 1,
                self.text.count("\n", 0, found.end()) + 1,
            )
        )

    @cached_property
    def imports(self) -> list[Import]:
        """What is imported from anywhere in the file, also in functions and for types."""
        return list(_imports(self.tree, is_typed=False))

    def at(self, node: ast.AST, what: str = "") -> str:
        """Return where a node stands."""
        return f"{self.path}:{getattr(node, 'lineno', 1)} {what}".rstrip()


def _functions(node: ast.AST, holder: str) -> Iterator[tuple[str, Function]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.ClassDef, *_FUNCTIONS)):
            name = f"{holder}{child.name}"
            if isinstance(child, _FUNCTIONS):
                yield name, child
            yield from _functions(child, f"{name}.")
        else:
            yield from _functions(child, holder)


def _imports(node: ast.AST, *, is_typed: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, alias.asname or alias.name, is_typed)
        elif isinstance(child, ast.ImportFrom) and child.module:
            for alias in child.names:
                yield Import(f"{child.module}.{alias.name}", alias.asname or alias.name, is_typed)
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from _imports(child, is_typed=True)
        elif isinstance(child, (ast.stmt, ast.excepthandler)):
            yield from _imports(child, is_typed=is_typed)


class House:
    """The files of a package, by their paths below it, and its layers, the outermost first."""

    def __init__(self, files: Mapping[str, str], layers: Iterable[str] = ()) -> None:
        self.modules = [Module(path, text) for path, text in sorted(files.items())]
        self._walks: dict[Parameter, Walk] = {}
        self._layer = {name: -i for i, line in enumerate(layers) for name in line.split(" | ")}

    @classmethod
    def of(cls, folder: Path) -> House:
        """Read a package, and the layers that the contracts of this project say."""
        paths = sorted(folder.rglob("*.py"))
        project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
        layers = project["tool"]["importlinter"]["contracts"][0]["layers"]
        return cls(
            {path.relative_to(folder).as_posix(): path.read_text("utf-8") for path in paths}, layers
        )

    @cached_property
    def by_name(self) -> dict[str, Module]:
        """The files by their dotted names."""
        return {module.name: module for module in self.modules}

    @cached_property
    def imported(self) -> dict[str, dict[str, str]]:
        """What each name of each module stands for: the dotted name that it was imported by."""
        return {
            module.name: {known.here: known.found for known in module.imports}
            for module in self.modules
        }

    def home(self, name: str) -> str:
        """Return the module of a dotted name, or the one that a facade has the name from."""
        module, _, last = name.rpartition(".")
        if name in self.by_name or module not in self.by_name:
            return name
        handed_on = self.imported[module].get(last)
        return module if handed_on is None else self.home(handed_on)

    def graph(self, *, with_types: bool) -> dict[str, set[str]]:
        """Return the modules that each module imports. A facade, `__init__`, is no node."""
        names = {module.name for module in self.modules if not module.path.endswith("__init__.py")}
        return {
            module.name: names.intersection(
                self.home(known.found)
                for known in module.imports
                if with_types or not known.is_typed
            )
            - {module.name}
            for module in self.modules
            if module.name in names
        }

    def walk(self, start: Parameter) -> Walk:
        """Return the walk that begins at a parameter, found once."""
        if start not in self._walks:
            self._walks[start] = Walk(self, start)
        return self._walks[start]

    @cached_property
    def circles(self) -> list[list[str]]:
        """The sets of modules that know each other: by imports in functions or for types, too."""
        parts = _components(self.graph(with_types=True))
        return [sorted(part) for part in parts if len(part) > 1]

    @cached_property
    def floors(self) -> dict[str, tuple[int, int]]:
        """The layer of each module, and in it the longest path of imports; a circle is a floor."""
        depth: dict[str, int] = {}
        graph = self.graph(with_types=False)
        for part in _components(graph):  # what is below comes first
            below = [depth[other] + 1 for name in part for other in graph[name] - set(part)]
            depth |= dict.fromkeys(part, max(below, default=0))
        return {name: (self._layer.get(name.split(".")[1], 0), depth[name]) for name in depth}


def _components(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected parts of a graph, each after those below it (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    parts: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in index:
                visit(other)
            if other in stack:
                low[name] = min(low[name], low[other])
        if low[name] == index[name]:
            at = stack.index(name)
            parts.append(stack[at:])
            del stack[at:]

    for name in sorted(graph):
        if name not in index:
            visit(name)
    return parts


# ---- walks ----


_ENDS = ("Plan", "Result")
_RECORD = 8  # fields of a class that carries what is asked, and is no part of it


class Parameter(NamedTuple):
    """A parameter of a function, from which a walk begins or which it enters.

    Attributes:
        module: the dotted name of the file.
        function: the name of the function, with its class.
        name: the name of the parameter.
        made_into: where it begins with a dictionary, the class that is made of it.
    """

    module: str
    function: str
    name: str
    made_into: str = ""


class Walk:
    """The files that a parameter enters.

    Followed are the parameter and its *carriers*: objects of the classes that it is made into.
    Such are, again and again, the class of the parameter, a class with a field or an argument of
    `__init__` that is a carrier, and a *record*, a class of at least eight fields, that is a field
    of a carrier or is returned by a method of one. The walk ends at a plan and at a result.
    A carrier *enters* a file with each call of a function there that gets it, as an argument or as
    `self`. A method is found by the class of its object: that of its annotation, or the one that
    made it.
    """

    def __init__(self, house: House, start: Parameter) -> None:
        self.house = house
        self.steps: set[tuple[str, str]] = set()  # from a function's file into another one's
        self.climbs: set[tuple[str, str]] = set()  # from a function to one on a higher floor
        self._functions = {
            (module.name, name): node for module in house.modules for name, node in module.functions
        }
        self._classes = {
            (module.name, node.name): node for module in house.modules for node in module.classes
        }
        if (start.module, start.function) not in self._functions:
            raise ValueError(f"no function {start.module}.{start.function}: name its new place")
        self.carriers = self._carriers(start)
        self._seen: set[Parameter] = set()
        self._open = [start]
        while self._open:
            parameter = self._open.pop()
            if parameter not in self._seen:
                self._seen.add(parameter)
                _Follow(self, parameter).run()

    def _carriers(self, start: Parameter) -> set[tuple[str, str]]:
        """Return the classes of what is followed."""
        function = self._functions[start.module, start.function]
        named = {
            self.class_of(start.module, argument.annotation)
            for argument in _arguments(function)
            if argument.arg == start.name
        }
        carriers = {
            place for place in self._classes if place in named or place[1] == start.made_into
        }
        size = -1
        while size != len(carriers):
            size = len(carriers)
            for place, node in self._classes.items():
                if place[1] in _ENDS:
                    continue
                held = {self.class_of(place[0], kind) for kind in _kinds_held(node)}
                if held & carriers:
                    carriers.add(place)
                if place in carriers:
                    carriers |= {
                        found
                        for kind in (*_kinds_held(node), *_kinds_returned(node))
                        if (found := self.class_of(place[0], kind)) is not None
                        and found[1] not in _ENDS
                        and len(_fields(self._classes[found])) >= _RECORD
                    }
        return carriers

    @property
    def rooms(self) -> list[str]:
        """The files entered, with the one it begins in."""
        return sorted({parameter.module for parameter in self._seen})

    def enter(self, source: tuple[str, str], target: tuple[str, str], name: str) -> None:
        """Go into a parameter of a function."""
        self._open.append(Parameter(*target, name))
        floors = self.house.floors
        if floors.get(target[0], (0, 0)) > floors.get(source[0], (0, 0)):
            self.climbs.add((".".join(source), ".".join(target)))

    def resolve(self, module: str, name: str) -> tuple[str, str] | None:
        """Return where the function or class of that name, in that module, is defined."""
        for _ in range(4):  # facades hand names on
            if (module, name) in self._functions or (module, name) in self._classes:
                return module, name
            found = self.house.imported.get(module, {}).get(name)
            if found is None:
                return None
            module, _, name = found.rpartition(".")
        return None

    def function(self, place: tuple[str, str] | None) -> Function | None:
        """Return the function there."""
        return None if place is None else self._functions.get(place)

    def fields(self, place: tuple[str, str]) -> list[ast.AnnAssign]:
        """Return the fields that the class there declares."""
        return _fields(self._classes[place])

    def is_class(self, place: tuple[str, str] | None) -> bool:
        """Return whether a class is defined there."""
        return place in self._classes

    def method(self, name: str, owner: tuple[str, str] | None) -> tuple[str, str] | None:
        """Return where a method of a class is defined."""
        while owner is not None:
            place = (owner[0], f"{owner[1]}.{name}")
            if place in self._functions:
                return place
            bases = [ast.unparse(base) for base in self._classes[owner].bases]
            found = [self.resolve(owner[0], base) for base in bases]
            owner = next((base for base in found if base in self._classes), None)
        return None

    def class_of(self, module: str, annotation: ast.expr | None) -> tuple[str, str] | None:
        """Return the first class of the package that an annotation names."""
        for node in ast.walk(annotation) if annotation is not None else ():
            if isinstance(node, ast.Name):
                place = self.resolve(module, node.id)
                if place in self._classes:
                    return place
        return None


class _Follow:
    """What is followed inside one function, once it is entered."""

    def __init__(self, walk: Walk, parameter: Parameter) -> None:
        self.walk = walk
        self.module = parameter.module
        self.place = (parameter.module, parameter.function)
        self.held = {parameter.name}
        self.classes: dict[str, tuple[str, str]] = {}
        function = walk.function(self.place)
        assert function is not None
        self.body = function
        for argument in _arguments(function):
            owner = walk.class_of(self.module, argument.annotation)
            if owner is not None:
                self.classes[argument.arg] = owner
        holder = (self.module, parameter.function.rpartition(".")[0])
        if walk.is_class(holder):
            self.classes["self"] = self.classes["cls"] = holder

    def run(self) -> None:
        """Find the names that hold what is followed, then enter what is called with them."""
        size = 0
        while size != len(self.held):  # until no name is new
            size = len(self.held)
            for node in ast.walk(self.body):
                self._bind(node)
        for node in ast.walk(self.body):
            if isinstance(node, ast.Call):
                self._call(node)
            elif isinstance(node, ast.Attribute) and self.is_held(node.value):
                self._method(node)  # a property, or the method of a call

    def _bind(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            targets, value = [node.target], node.value
        elif isinstance(node, (ast.For, ast.comprehension)):
            targets, value = [node.target], node.iter
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            targets, value = [node.optional_vars], node.context_expr
        else:
            return
        for target in targets:
            self._assign(target, value)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        """Hold what a target names, of several targets those alone that get a carrier."""
        if not self.is_held(value):
            return
        parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else []
        if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(parts):
            for part, given in zip(parts, value.elts, strict=True):
                self._assign(part, given)
            return
        classes = self._tuple(value)
        if parts and len(classes) == len(parts):
            for part, owner in zip(parts, classes, strict=True):
                if owner in self.walk.carriers:
                    self._hold(part, owner)
            return
        self._hold(target, self.owner(value))

    def _hold(self, target: ast.expr, owner: tuple[str, str] | None) -> None:
        for name in ast.walk(target):
            if isinstance(name, ast.Name):
                self.held.add(name.id)
                if owner is not None:
                    self.classes[name.id] = owner

    def _tuple(self, value: ast.expr) -> list[tuple[str, str] | None]:
        """Return the class of each part, where an expression's type is a tuple of some length."""
        module, annotation = self.type_of(value)
        for node in ast.walk(annotation) if annotation is not None else ():
            if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "tuple":
                kinds = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
                if not any(isinstance(kind, ast.Constant) for kind in kinds):  # tuple[X, ...]
                    return [self.walk.class_of(module, kind) for kind in kinds]
        return []

    def is_held(self, node: ast.AST) -> bool:
        """Return whether an expression is a carrier, or several things with one among them."""
        if isinstance(node, ast.Name):
            return node.id in self.held or self.owner(node) in self.walk.carriers
        if isinstance(node, (ast.Attribute, ast.Call)):
            is_copy = isinstance(node, ast.Call) and ast.unparse(node.func) in ("replace", "dict")
            if is_copy and any(map(self.is_held, _given(node))):
                return True
            return self.owner(node) in self.walk.carriers
        if isinstance(node, (ast.Starred, ast.Await, ast.NamedExpr)):
            return self.is_held(node.value)
        if isinstance(node, (ast.Tuple, ast.List)):
            return any(map(self.is_held, node.elts))
        if isinstance(node, ast.IfExp):
            return self.is_held(node.body) or self.is_held(node.orelse)
        if isinstance(node, ast.BoolOp):
            return any(map(self.is_held, node.values))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):  # of dictionaries
            return self.is_held(node.left) or self.is_held(node.right)
        return False

    def owner(self, node: ast.expr) -> tuple[str, str] | None:
        """Return the class of an expression, or the class that it names."""
        if isinstance(node, ast.Name):
            known = self.classes.get(node.id)
            found = known or self.walk.resolve(self.module, node.id)
            return found if self.walk.is_class(found) else None
        if isinstance(node, ast.Call):
            target = self.target(node.func)
            if self.walk.is_class(target):
                return target
            function = self.walk.function(target)
            if function is not None and function.returns is not None and target is not None:
                holder = (target[0], target[1].rpartition(".")[0])
                if ast.unparse(function.returns) == "Self":
                    return holder if self.walk.is_class(holder) else None
        return self.walk.class_of(*self.type_of(node))

    def type_of(self, node: ast.expr) -> tuple[str, ast.expr | None]:
        """Return the module and the annotation of what a call or an attribute gives."""
        if isinstance(node, ast.Call):
            target = self.target(node.func)
            function = self.walk.function(target)
            if target is not None and function is not None:
                return target[0], function.returns
        elif isinstance(node, ast.Attribute):
            owner = self.owner(node.value)
            place = self.walk.method(node.attr, owner)
            function = self.walk.function(place)
            if place is not None and function is not None:
                return place[0], function.returns
            if owner is not None:
                for field in self.walk.fields(owner):
                    if ast.unparse(field.target) == node.attr:
                        return owner[0], field.annotation
        return self.module, None

    def target(self, node: ast.expr) -> tuple[str, str] | None:
        """Return what a call calls: a function, a method or a class."""
        if isinstance(node, ast.Name):
            if node.id == "cls":
                return self.classes.get("cls")
            return self.walk.resolve(self.module, node.id)
        if not isinstance(node, ast.Attribute):
            return None
        if isinstance(node.value, ast.Name):  # module.function
            found = self.walk.house.imported.get(self.module, {}).get(node.value.id)
            if found in self.walk.house.by_name:
                return self.walk.resolve(found, node.attr)
        owner = self.owner(node.value)
        if owner is None and not self.is_held(node.value):
            return None
        return self.walk.method(node.attr, owner)

    def _call(self, node: ast.Call) -> None:
        target = self.target(node.func)
        if target is None:
            return
        if self.walk.is_class(target):
            target = (target[0], f"{target[1]}.__init__")
        function = self.walk.function(target)
        if function is None:
            return
        names = [argument.arg for argument in _arguments(function)]
        keywords = set(names)
        if names and names[0] in ("self", "cls"):
            names = names[1:]
        for i, argument in enumerate(node.args):
            if self.is_held(argument):
                entered = names[i:] if isinstance(argument, ast.Starred) else names[i : i + 1]
                rest = function.args.vararg
                for name in entered or ([rest.arg] if rest else []):
                    self.walk.enter(self.place, target, name)
        for keyword in node.keywords:
            if self.is_held(keyword.value):
                rest = function.args.kwarg
                known = keyword.arg if keyword.arg in keywords else rest.arg if rest else None
                if known is not None:
                    self.walk.enter(self.place, target, known)
                elif keyword.arg is None:
                    for name in keywords - {"self", "cls"}:
                        self.walk.enter(self.place, target, name)

    def _method(self, node: ast.Attribute) -> None:
        place = self.walk.method(node.attr, self.owner(node.value))
        function = self.walk.function(place) if place else None
        if place and function and [a.arg for a in _arguments(function)][:1] == ["self"]:
            self.walk.enter(self.place, place, "self")


def _fields(node: ast.ClassDef) -> list[ast.AnnAssign]:
    """Return the fields of a class that its body declares."""
    return [
        field
        for field in node.body
        if isinstance(field, ast.AnnAssign) and "ClassVar" not in ast.unparse(field.annotation)
    ]


def _kinds_held(node: ast.ClassDef) -> list[ast.expr]:
    """Return the types of what an object of a class is made of."""
    made = [f for f in node.body if isinstance(f, _FUNCTIONS) and f.name == "__init__"]
    given = [argument.annotation for f in made for argument in _arguments(f)]
    return [*(field.annotation for field in _fields(node)), *(kind for kind in given if kind)]


def _kinds_returned(node: ast.ClassDef) -> list[ast.expr]:
    """Return the types of what methods of a class return."""
    return [f.returns for f in node.body if isinstance(f, _FUNCTIONS) and f.returns]


def _arguments(function: Function) -> list[ast.arg]:
    a = function.args
    rest = [argument for argument in (a.vararg, a.kwarg) if argument]
    return [*a.posonlyargs, *a.args, *a.kwonlyargs, *rest]


def _given(node: ast.Call) -> list[ast.expr]:
    return [*node.args, *(keyword.value for keyword in node.keywords)]


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
    return sum(isinstance(part, _FUNCTIONS) for part in node.body)


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
        for fields in [[field for field in _fields(node) if field.lineno not in module.generated]]
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
_GENERATED = re.compile(r"^ *# keywords: written by .*?^ *# end of keywords$", re.M | re.S)
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
    if isinstance(node, _FUNCTIONS):
        return [argument.arg for argument in _arguments(node)]
    if isinstance(node, ast.ClassDef):
        return [ast.unparse(field.target) for field in _fields(node)]
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
        for field in (field for node in module.classes for field in _fields(node)):
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
    inner = [*_arguments(node)] if isinstance(node, _FUNCTIONS) else []
    inner += [*_fields(node)] if isinstance(node, ast.ClassDef) else []
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
        if isinstance(node, (ast.Module, ast.ClassDef, *_FUNCTIONS)) and ast.get_docstring(node):
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
