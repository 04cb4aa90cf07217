"""Plans, answers and help are what tests/golden/ holds; tools/golden.py says how to renew them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from fedtally import kernels

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures("errors_once")
FEW = ["plans/0", "plans/1", "answers/0", "help/0"]


@pytest.fixture(scope="module")
def golden() -> ModuleType:
    spec = importlib.util.spec_from_file_location("golden", ROOT / "tools" / "golden.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.promise
@pytest.mark.parametrize("part", FEW)
def test_commands_answer_as_they_did(golden: ModuleType, part: str) -> None:
    """Plans need nothing of each other: two processes share them."""
    name, _, number = part.partition("/")
    if name == "answers" and kernels.backend() == "numpy":
        pytest.skip("the same answers, in many times the time")
    step = 2 if name == "plans" else 1
    found = golden.difference(name, slice(int(number), None, step), is_exact=False)
    assert not found, f"{found}\nrun: python tools/golden.py --renew {name}, and look at git diff"


def test_what_is_listed_is_enough(golden: ModuleType) -> None:
    """Each kind of a campaign is among the plans, and half of the commands with --json answer."""
    plans, answers = golden.lines_of("plans"), golden.lines_of("answers")
    assert len(set(plans)) == len(plans) >= 60 and len(set(answers)) == len(answers) >= 40
    for kind in (
        *("--people", "--domain open", "--encoding histogram", "--encoding sketch", "--epsilon"),
        *("secagg", "two-server", "--adversary active", "--trust central", "--schedule fresh"),
        *("batched", "replace-one", "add-remove", "geometric", "--max-items", "--validity none"),
    ):
        assert any(kind in line for line in plans), kind
    text = (golden.FOLDER / "plans.txt").read_text("utf-8")
    assert text.count('"fingerprint"') >= 60


def test_a_digit_that_moves_is_seen(golden: ModuleType, tmp_path: Path) -> None:
    stable, shown = golden.stable, golden.shown
    assert stable({"a": 0.12345678, "timings": {"read": 1.0}}) == {"a": 0.123457}
    assert stable([1e-9, 12345678, {"time": 3}]) == [1e-9, 12345678, {}]
    long = {"a": ["x" * 60, "y" * 60], "b": {"c": 1}}
    assert shown(long).splitlines()[-2:] == [' "b": {"c": 1}', "}"]
    assert shown({"a": 1}) == '{"a": 1}'
    lines = golden.blocks("$ fedtally a\none\n\n$ fedtally b\ntwo\n")
    assert lines == {"fedtally a": "one\n", "fedtally b": "two\n"}


def test_a_saved_result_has_one_digest(golden: ModuleType, tmp_path: Path) -> None:
    from fedtally import Dictionary, estimate

    digests = []
    for number, seed in enumerate((1, 1, 2)):  # seconds differ each time, counters with the seed
        path = tmp_path / f"{number}.fedtally"
        estimate(["a", "b"] * 9, domain=Dictionary(["a", "b"]), width=9, seed=seed).save(path)
        digests.append(golden.saved(path))
    assert digests[0] == digests[1] != digests[2]


def test_a_saved_result_counts_where_its_plan_is_the_same(golden: ModuleType) -> None:
    def told(fingerprint: str, digest: str) -> dict[str, str]:
        return {"fedtally a": f'"fingerprint": "{fingerprint}"\na.fedtally: {digest}\n'}

    first = told("1a", "0" * 64)
    for other, is_same in (
        (told("1a", "0" * 64), True),
        (told("1a", "1" * 64), False),
        (told("2b", "1" * 64), True),  # the last digit of its plan is another one
    ):
        before, now = golden._without_last_digits(first, other)
        assert (before == now) == is_same
