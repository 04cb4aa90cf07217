"""The numbers of tools/house.py: what each counts, and that none is worse than accepted."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
BRANCHES = "\n".join(f"    if x == {i}: return {i}" for i in range(21))


@pytest.fixture(scope="module")
def house() -> ModuleType:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        return importlib.import_module("house")
    finally:
        sys.path.remove(str(ROOT / "tools"))


def test_no_number_of_the_package_is_worse_than_accepted(house: ModuleType) -> None:
    """Green where it is better, too: then `python tools/house.py --renew` accepts it."""
    accepted = house.accepted(house.ACCEPTED.read_text("utf-8"))
    assert house.worse(house.counted(house.House.of(house.PACKAGE)), accepted) == []


# What one file, or several, add to a number.
SAMPLES = {
    "conditionals": (
        {
            "a.py": "def f(x):\n"
            "    if x and x > 1 and x > 2: return 1 if x else 2\n"
            "    while x: pass\n"
            "    assert x\n"
            "    match x:\n"
            "        case 1: pass\n"
            "    return [y for y in x if y if y > 1]\n"
        },
        9,
    ),
    "kinds": (
        {
            "a.py": "x = plan.encoding is Encoding.SKETCH\n"
            "y = kind in (Trust.CENTRAL, Trust.LOCAL)\n"
            "z = plan.is_two_server and isinstance(domain, OpenStrings)\n"
            "match trust:\n"
            "    case Trust.CENTRAL: pass\n"
            "w = rows == 3 or Encoding.SKETCH  # neither compares a kind\n",
            "plan/parts/vector.py": "x = encoding is Encoding.SKETCH\n",
            "recovery/decoders/joint.py": "x = isinstance(y, JointDecoder)\n",
            "encoding.py": "class Encoding: pass\nx = y is Encoding.SKETCH\n",
        },
        5,
    ),
    "noise_askers": (
        {
            "agent/a.py": "x = plan.by_clients\ny = plan.by_clients\n",
            "store/b.py": "x = terms.trust is Trust.CENTRAL\n",
            "report/c.py": "x = plan.rows\n",
            "privacy/d.py": "x = plan.by_clients\n",
            "plan/e.py": "x = plan.by_clients\n",
            "plan/parts/f.py": "x = plan.by_clients\n",
        },
        2,
    ),
    "long_functions": (
        {
            "a.py": 'def f():\n    """Say it."""\n' + "    x = 1\n" * 36,
            "b.py": 'def f():\n    """Say it.\n\n    At length.\n    """\n' + "    x = 1\n" * 35,
        },
        1,
    ),
    "twisted_functions": (
        {"a.py": f"def f(x):\n{BRANCHES}\n", "b.py": "def f(x):\n    if x: return 1\n"},
        1,
    ),
    "busy_classes": (
        {
            "a.py": "class A:\n" + "".join(f"    def f{i}(self): pass\n" for i in range(26)),
            "b.py": "class B:\n" + "".join(f"    def f{i}(self): pass\n" for i in range(25)),
        },
        1,
    ),
    "wide_classes": (
        {
            "a.py": "class A:\n" + "".join(f"    x{i}: int\n" for i in range(13)),
            "b.py": "class B:\n    c: ClassVar[int]\n"
            + "".join(f"    x{i}: int\n" for i in range(12)),
            "c.py": "class C:\n    # keywords: written by a tool\n"
            + "".join(f"    x{i}: int\n" for i in range(13))
            + "    # end of keywords\n",
        },
        1,
    ),
    "circles": (
        {
            "a.py": "from fedtally.b import x\n",
            "b.py": "def f():\n    from fedtally import c\n",
            "c.py": "if TYPE_CHECKING:\n    from fedtally.d import A\n",
            "d/__init__.py": "from fedtally.d.e import A\n",
            "d/e.py": "import fedtally.a\n",
            "f.py": "from fedtally.a import x\n",
        },
        1,
    ),
    "twins": (
        {"a/x.py": "", "b/x.py": "", "c/x.py": "", "d/y.py": "", "a/__init__.py": "", "y.py": ""},
        2,
    ),
    "headless": (
        {
            "a.py": 'def f():\n    """Say it.\n\n    Args:\n        x: of a plan.\n'
            "        y: the rows of a plan,\n            of which one is: of no use.\n"
            '        z: That of all.\n    """\n'
        },
        2,
    ),
    "so_many": ({"a.py": '"""So many of\nso\nmany."""\nx = "so many"  # so many\n'}, 2),
    "lines": ({"a.py": '"""Doc."""\n\nx = 1  # why\n# more\n'}, 4),
    "code_lines": ({"a.py": '"""Doc."""\n\nx = 1  # why\ny = (\n    2,\n)\n# more\n'}, 4),
    "option_homes": (
        {
            "simulation/estimate.py": "def estimate(x, *, a, b, c, d, e, f, g, h): pass\n",
            "cli/estimate.py": 'option("Size", "--a", "-a")\noption("Size", "--b/--no-b")\n',
            "asked.py": "class Asked:\n" + "".join(f"    {name}: int\n" for name in "abcdefgh"),
            "names.py": "NAMES = ('a', 'b', 'c', 'd', 'e', 'f', 'g', 'h')\n",
            "few.py": "def few(a, b, c): pass\n",  # a function that takes some, and no home
            # what a campaign is in numbers has a number of its own
            "privacy/config.py": "def propose(a, b, c, d, e, f, g, h): pass\n",
        },
        3.25,
    ),
    "campaign_homes": (
        {
            "simulation/estimate.py": "def estimate(x, *, a, b, c, d, e, f, g, h): pass\n",
            "privacy/config.py": "def propose(a, b, c, d, e, f, g, h): pass\n",
            "plan/plan.py": "class Plan:\n    a: int\n    b: int\n",  # too few of them
        },
        1,
    ),
}


def test_generated_keywords_and_the_table_of_options_are_one_home(house: ModuleType) -> None:
    """What stands between the two comments is no home; a keyword beside them is one."""
    keywords = "".join(f"    {name}: int = 1,\n" for name in "abcdefgh")
    marks = ("    # keywords: written by a tool\n", "    # end of keywords\n")
    door = f"def estimate(\n    x,\n    *,\n{marks[0]}{keywords}{marks[1]}): pass\n"
    fields = "".join(f"    {name}: int = (option('Do {name}').on('x'))\n" for name in "abcdefg")
    files = {
        "simulation/estimate.py": door,
        "options.py": f"class Size:\n{fields}    h: int = option('Do h', flag='--long-h')\n",
    }
    assert house.option_homes(house.House(files)).number == 1
    files["cli/estimate.py"] = 'option("Size", "--long-h")\noption("Size", "--other")\n'
    assert house.option_homes(house.House(files)).number == 1.12
    files["cli/estimate.py"] = 'option("Size", "--h")\n'  # another option of that name
    assert house.option_homes(house.House(files)).number == 1
    files["simulation/estimate.py"] = door.replace(marks[0], "")
    assert house.option_homes(house.House(files)).number == 2


def test_each_number_counts_what_it_says(house: ModuleType) -> None:
    walks = {name for name in house.NUMBERS if name.startswith(("plan_", "door_"))}
    assert SAMPLES.keys() | walks == house.NUMBERS.keys()
    for name, (files, number) in SAMPLES.items():
        count = house.NUMBERS[name].count(house.House(files))
        assert (name, count.number) == (name, number)
        assert not count.places or name == "option_homes" or len(count.places) == number


WALK = {
    "cli.py": "from fedtally.ask import Request\n"
    "def plan(**options):\n"
    "    shown(options)\n"
    "    request = Request(**options)\n"
    "    request.resolve().draft()\n"
    "def shown(options): pass\n",
    "ask.py": "from fedtally.spec import Spec\n"
    "class Request:\n"
    "    rows: int\n"
    "    def resolve(self) -> Spec:\n"
    "        return Spec(check(self.rows))\n"
    "def check(rows): pass\n",
    "spec.py": "from fedtally import sizes\n"
    "from fedtally.draft import Draft\n"
    "class Spec:\n"
    + "".join(f"    x{i}: int\n" for i in range(8))
    + "    def draft(self) -> Draft:\n"
    "        return sizes.smallest(Draft(self))\n",
    "draft.py": "from fedtally.numbers import add\n"
    "if TYPE_CHECKING:\n    from fedtally.spec import Spec\n"
    "class Draft:\n"
    "    rows: int\n"
    "    def __init__(self, spec: Spec) -> None: pass\n"
    "    def bytes(self): return add(self.rows)\n",
    "sizes.py": "from typing import TYPE_CHECKING\n"
    "if TYPE_CHECKING:\n    from fedtally.draft import Draft\n"
    "def smallest(draft: Draft) -> Draft:\n"
    "    return draft if draft.bytes() else draft\n",
    "numbers.py": "def add(rows): pass\n",  # gets a number, and nothing that carries what is asked
    "other.py": "def alone(draft): pass\n",
}


def test_a_walk_enters_the_files_whose_functions_get_what_is_asked(house: ModuleType) -> None:
    start = house.Parameter("fedtally.cli", "plan", "options", "Request")
    walk = house.House(WALK).walk(start)
    assert walk.rooms == [f"fedtally.{name}" for name in ("ask", "cli", "draft", "sizes", "spec")]
    # The draft was handed down to a file that does not import it, which asks it something.
    assert walk.climbs == {("fedtally.sizes.smallest", "fedtally.draft.Draft.bytes")}
    longer = WALK | {
        "cli.py": WALK["cli.py"]
        .replace("    shown(", "    alone(")
        .replace("from", "from fedtally.other import alone\nfrom", 1)
    }
    assert len(house.House(longer).walk(start).rooms) == 6
    with pytest.raises(ValueError, match="no function fedtally.cli.gone: name its new place"):
        house.House(WALK).walk(start._replace(function="gone"))


def test_a_class_that_is_derived_from_a_carrier_is_followed(house: ModuleType) -> None:
    start = house.Parameter("fedtally.cli", "plan", "options", "Request")
    draft = (
        WALK["draft.py"]
        .replace("class Draft:\n", "class Draft(Setting):\n")
        .replace("    def __init__(self, spec: Spec) -> None: pass\n", "")
        + "class Setting:\n    def __init__(self, spec: Spec) -> None: pass\n"
    )
    assert "Draft(Setting)" in draft and draft.count("__init__") == 1
    walk, plain = (house.House(files).walk(start) for files in (WALK | {"draft.py": draft}, WALK))
    assert (walk.rooms, walk.climbs) == (plain.rooms, plain.climbs)


@pytest.mark.parametrize(
    ("body", "enters"),
    [
        ("    draft, number = pair(draft)\n    alone(number)\n", False),
        ("    draft, number = pair(draft)\n    alone(draft)\n", True),
        ("    number, (held, also) = 3, (draft, 4)\n    alone(also)\n", False),
        ("    number, (held, also) = 3, (draft, 4)\n    alone(held)\n", True),
        ("    draft, number = several(draft)\n    alone(number)\n", True),  # of any length
        ("    first, *rest = draft, 3, 4\n    alone(rest)\n", True),  # which is which is not read
    ],
)
def test_a_name_of_several_holds_what_it_gets_itself(
    house: ModuleType, body: str, enters: bool
) -> None:
    start = house.Parameter("fedtally.cli", "plan", "options", "Request")
    sizes = (
        "from fedtally.other import alone\n"
        "from fedtally.draft import Draft\n"
        "def pair(draft: Draft) -> tuple[Draft, int]: pass\n"
        "def several(draft: Draft) -> tuple[Draft, ...]: pass\n"
        f"def smallest(draft: Draft) -> Draft:\n{body}    return draft\n"
    )
    rooms = house.House(WALK | {"sizes.py": sizes}).walk(start).rooms
    assert ("fedtally.other" in rooms) == enters


def test_a_layer_is_a_floor(house: ModuleType) -> None:
    """What asks a question of an object from a layer below climbs nowhere, whatever it imports."""
    start = house.Parameter("fedtally.cli", "plan", "options", "Request")
    layers = ("sizes", "draft | spec | ask | cli", "numbers")
    climbs = house.House(WALK, layers).walk(start).climbs
    assert climbs == {("fedtally.spec.Spec.draft", "fedtally.sizes.smallest")}


def test_a_worse_number_needs_a_reason(house: ModuleType) -> None:
    before = dict.fromkeys(house.NUMBERS, 5.0)
    text = house.renewed(before, "", {})
    assert house.accepted(text) == before and house.worse(before, before) == []
    better, worse = before | {"kinds": 4.0}, before | {"kinds": 6.0, "lines": 9.0}
    assert house.worse(better, before) == []
    [line] = house.worse(worse, before)  # lines are held to nothing
    assert line.startswith("kinds: 6, accepted 5")
    assert "\nkinds = 4\n" in house.renewed(better, text, {})
    with pytest.raises(ValueError, match="kinds: 6, accepted 5"):
        house.renewed(worse, text, {"twins": "a reason of another"})
    allowed = house.renewed(worse, text, {"kinds": "one decoder more"})
    assert "\nkinds = 6  # one decoder more\n" in allowed
    assert "# one decoder more" in house.renewed(worse, allowed, {})  # as long as it is so
    assert "# one decoder more" not in house.renewed(better, allowed, {})
    assert "\nkinds = 6  # new\n" in house.renewed(worse, text, {"all": "new"})
    with pytest.raises(ValueError, match=r"house.toml and NUMBERS differ in so_many"):
        house.accepted(text.replace("so_many = 5\n", ""))
