"""tools/planned.py draws the same requests for a seed, and tells plans that changed."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from fedtally.options import DECODERS
from fedtally.privacy.events import NoiseBy

TOOLS = Path(__file__).resolve().parents[2] / "tools"


@pytest.fixture(scope="module")
def planned() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TOOLS))
        spec = importlib.util.spec_from_file_location("planned", TOOLS / "planned.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module


def test_requests_are_of_all_kinds_and_the_same_for_a_seed(planned: ModuleType) -> None:
    drawn = planned.requests(300, 48)
    assert drawn == planned.requests(300, 48) != planned.requests(300, 49)
    words = {word for request in drawn for word in request}
    kinds = "estimate open --people --like histogram secagg two-server active"
    noise = "add-remove replace-one distributed central"
    goals = "--max-bytes --tau --epsilon"
    registered = {*DECODERS, *NoiseBy.AGGREGATOR.mechanisms}
    assert registered | set(f"{kinds} {noise} {goals}".split()) <= words


def test_a_changed_answer_is_told(
    planned: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = "plan --clients 20 --domain-size 9 --tau 0.9 --seed 1 -o plan.toml"
    monkeypatch.setattr(planned, "requests", lambda *_: [command.split(), ["plan", "--no"]])
    before, now = (str(tmp_path / name) for name in ("before.json", "now.json"))
    for status, arguments in ((0, [before]), (0, [now, "--beside", before])):
        monkeypatch.setattr(sys, "argv", ["planned.py", *arguments])
        assert planned.main() == status
    assert "0 of 2 changed" in capsys.readouterr().out
    held = json.loads(Path(before).read_text("utf-8"))
    [plan, _] = held
    held[plan][0] = "another digest"
    Path(before).write_text(json.dumps(held), "utf-8")
    assert planned.main() == 1
    assert f"{plan}\n1 of 2 changed" in capsys.readouterr().out
