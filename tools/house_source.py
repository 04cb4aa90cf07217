"""The source of the package as tools/house.py reads it: files, imports, layers, and walks.

A walk is the files that a parameter enters, with all that it is made into. Nothing is imported or
run: all comes from the text.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent

Function = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_GENERATED = re.compile(r"^ *# keywords: written by .*?^ *# end of keywords$", re.M | re.S)


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
            if isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS)):
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
        if isinstance(child, (ast.ClassDef, *FUNCTIONS)):
            name = f"{holder}{child.name}"
            if isinstance(child, FUNCTIONS):
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
    `__init__` that is a carrier, a class derived from one, and a *record*, a class of at least
    eight fields, that is a field of a carrier or is returned by a method of one. The walk ends at a
    plan and at a result.
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
            for argument in arguments_of(function)
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
                bases = {self.resolve(place[0], ast.unparse(base)) for base in node.bases}
                if (held | bases) & carriers:
                    carriers.add(place)
                if place in carriers:
                    carriers |= {
                        found
                        for kind in (*_kinds_held(node), *_kinds_returned(node))
                        if (found := self.class_of(place[0], kind)) is not None
                        and found[1] not in _ENDS
                        and len(fields_of(self._classes[found])) >= _RECORD
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
        return fields_of(self._classes[place])

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
        for argument in arguments_of(function):
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
        names = [argument.arg for argument in arguments_of(function)]
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
        if place and function and [a.arg for a in arguments_of(function)][:1] == ["self"]:
            self.walk.enter(self.place, place, "self")


def fields_of(node: ast.ClassDef) -> list[ast.AnnAssign]:
    """Return the fields of a class that its body declares."""
    return [
        field
        for field in node.body
        if isinstance(field, ast.AnnAssign) and "ClassVar" not in ast.unparse(field.annotation)
    ]


def _kinds_held(node: ast.ClassDef) -> list[ast.expr]:
    """Return the types of what an object of a class is made of."""
    made = [f for f in node.body if isinstance(f, FUNCTIONS) and f.name == "__init__"]
    given = [argument.annotation for f in made for argument in arguments_of(f)]
    return [*(field.annotation for field in fields_of(node)), *(kind for kind in given if kind)]


def _kinds_returned(node: ast.ClassDef) -> list[ast.expr]:
    """Return the types of what methods of a class return."""
    return [f.returns for f in node.body if isinstance(f, FUNCTIONS) and f.returns]


def arguments_of(function: Function) -> list[ast.arg]:
    """Return the parameters of a function, in their order, and then the starred ones."""
    a = function.args
    rest = [argument for argument in (a.vararg, a.kwarg) if argument]
    return [*a.posonlyargs, *a.args, *a.kwonlyargs, *rest]


def _given(node: ast.Call) -> list[ast.expr]:
    return [*node.args, *(keyword.value for keyword in node.keywords)]
