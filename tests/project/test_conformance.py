"""tools/conformance.py finds wrong answers, missing ones and missing refusals, and the client in
TypeScript gives none of them."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from web_built import WEB, need

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "conformance.py"
# Knows two operations of plans.
HONEST = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    given, answer = asked["given"], {"unknown": True}
    if asked["operation"] == "plan: batches":
        small, large = divmod(given["num_rounds"], given["batches"])
        starts = [i * small + min(i, large) for i in range(given["batches"] + 1)]
        rounds = [[str(r) for r in range(*pair)] for pair in zip(starts, starts[1:])]
        answer = {"result": {"rounds": rounds}}
    if asked["operation"] == "plan: text":
        answer = {"result": {"canonical": json.dumps(given["value"], ensure_ascii=False)}}
    print(json.dumps({"id": asked["id"], **answer}), flush=True)
"""


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("conformance", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def conform(*arguments: str) -> tuple[int, str]:
    done = subprocess.run([sys.executable, TOOL, *arguments], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def asked(tmp_path: Path, program: str, *operations: str) -> tuple[int, str]:
    path = tmp_path / "mine.py"
    path.write_text(program)
    only = [part for name in operations for part in ("--only", name)]
    return conform(*only, "--", sys.executable, str(path))


def test_right_answers_pass_and_what_is_unknown_is_said(tmp_path: Path) -> None:
    status, said = asked(tmp_path, HONEST, "plan: batches", "plan: number")
    assert status == 0, said
    assert "6 of 6 right" in said and "plan: number                   unknown" in said


@pytest.mark.parametrize(
    ("change", "operation", "complaint"),
    [
        ("min(i, large)", "plan: batches", "rounds is"),
        ('"id": asked["id"]', "plan: batches", "no answer to 1"),
        ('{"unknown": True}', "sketch: refuse", "must be refused"),
        ('{"unknown": True}', "sketch: encode", "counters is None"),
    ],
)
def test_planted_errors_are_found(
    tmp_path: Path, change: str, operation: str, complaint: str
) -> None:
    wrong = {
        "min(i, large)": "0",
        '"id": asked["id"]': '"id": 0',
        '{"unknown": True}': '{"result": {}}',
    }
    status, said = asked(tmp_path, HONEST.replace(change, wrong[change]), operation)
    assert status == 1 and complaint in said, said


def test_who_refuses_all_knows_nothing_or_ends_does_not_pass(tmp_path: Path) -> None:
    refuses = HONEST.replace('{"unknown": True}', '{"refused": "no"}')
    assert asked(tmp_path, refuses, "two servers: seal")[0] == 1
    status, said = asked(tmp_path, HONEST, "plan: number")
    assert status == 1 and "0 right, 0 wrong" in said
    status, said = asked(tmp_path, "", "plan: number")
    assert status == 1 and "no answer to 1" in said


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ('sys.stdout.buffer.write(b"\\xff\\xfe\\n")', "no answer to 1"),
        ('print("[" * 100_000)', "nested too deeply"),
        ('print(json.dumps({"id": asked["id"], "refused": "\\ud800"}))', "refused"),
        ("print()", "no answer to 1"),
        ("os._exit(3)", "no answer to 1: ''"),
        # it hangs, and what it started holds the pipe open
        ("subprocess.Popen(['sleep', '600']); time.sleep(600)", "no answer to 1: ''"),
        ("subprocess.Popen(['sleep', '600']); os._exit(3)", "no answer to 1: ''"),
        ("[sys.stdout.write('a' * 1000) for _ in iter(int, 1)]", "no answer to 1: 'aaa"),
    ],
)
def test_what_is_no_answer_is_said_and_ends(
    tmp_path: Path, answer: str, complaint: str, tool: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = "import json, os, subprocess, sys, time\n"
    program += f"for line in sys.stdin:\n    asked = json.loads(line)\n    {answer}\n"
    program += "    sys.stdout.flush()\n"
    (tmp_path / "mine.py").write_text(program)
    monkeypatch.setattr(tool, "SECONDS", 1)
    monkeypatch.setattr(tool, "LONGEST", 10_000)
    operations = [each for each in tool.OPERATIONS if each.name == "plan: text"]
    found = list(tool.ask([sys.executable, str(tmp_path / "mine.py")], operations))
    assert complaint in found[0][2]


def test_a_command_that_is_none_is_named() -> None:
    status, said = conform("--", "/nowhere/mine")
    assert status == 1 and said == "/nowhere/mine cannot be started: No such file or directory\n"


def test_every_document_is_asked_for(tool: ModuleType) -> None:
    """But messages of live exchanges, which are no vectors, and what servers do in order."""
    others = {"dap09", "dap18_exchange", "schemas", "secagg_servers"}
    text = TOOL.read_text()
    names = {path.stem for path in tool.VECTORS.glob("*.json")}
    assert {name for name in names if f'"{name}"' not in text} == others
    page = (ROOT / "docs" / "evidence.md").read_text()
    for operation in tool.OPERATIONS:
        assert next(operation.cases(), None) is not None, operation.name
        [row] = [line for line in page.splitlines() if line.startswith(f"| `{operation.name}` |")]
        assert f"]({operation.page}) |" in row, operation.name  # tools/style.py follows all links
    readme = (tool.VECTORS / "README.md").read_text()
    for path in tool.VECTORS.iterdir():
        assert f"`{path.name}`" in readme or path.name == "README.md", path.name


def test_all_vectors_are_of_one_version(tool: ModuleType) -> None:
    for path in tool.VECTORS.glob("*.json"):
        document = json.loads(path.read_text())
        if isinstance(document, dict) and "version" in document:
            assert document["version"] == tool.VERSION, path.name
    assert f"`{tool.VERSION}`" in (tool.VECTORS / "README.md").read_text()


def test_the_client_in_typescript_conforms_and_a_planted_error_in_it_is_found(
    tmp_path: Path,
) -> None:
    need(WEB / "build" / "test" / "conform.js")
    copy = tmp_path / "tests" / "a" / "b"  # vectors are found from where it lies
    shutil.copytree(WEB / "build", copy / "build")
    (copy / "node_modules").symlink_to(WEB / "node_modules")
    (copy / "package.json").write_text('{"type": "module"}')
    program = ("--", "node", str(copy / "build" / "test" / "conform.js"))
    status, said = conform(*program)
    assert status == 0 and "plan: fingerprint              5 of 23 right, 18 unknown" in said, said
    sketch = copy / "build" / "src" / "sketch.js"
    text = sketch.read_text()
    assert text.count("turn % 8") == 1
    sketch.write_text(text.replace("turn % 8", "turn % 7"))  # the signs of every eighth round
    status, said = conform("--only", "sketch: encode", *program)
    assert status == 1 and "counters is" in said, said
