"""tools/release.py refuses what is no release, and tools/locks.py a lock that does not fit."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def locks() -> ModuleType:
    return _tool("locks")


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return _tool("release")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with what says the version."""
    for name in ("CHANGELOG.md", "CITATION.cff", "src/fedtally/__init__.py"):
        copy = tmp_path / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes((ROOT / name).read_bytes())
    return tmp_path


def test_a_stranger_refuses_a_file_that_is_another_or_has_no_hash(tmp_path: Path) -> None:
    sys.path.insert(0, str(ROOT / "tools"))
    stranger = _tool("stranger")
    wheel = tmp_path / "fedtally-0.1.0-cp311-cp311-manylinux_2_34_x86_64.whl"
    wheel.write_bytes(b"a wheel")
    digest = hashlib.sha256(b"a wheel").hexdigest()
    (tmp_path / "SHA256SUMS").write_text(f"{digest}  {wheel.name}\n")
    assert stranger.hashes(tmp_path) == "1 files"
    wheel.write_bytes(b"another")
    with pytest.raises(stranger.release.Refused, match="has another hash"):
        stranger.hashes(tmp_path)
    wheel.write_bytes(b"a wheel")
    (tmp_path / "more.whl").write_bytes(b"")
    with pytest.raises(stranger.release.Refused, match=r"more\.whl is in SHA256SUMS or in"):
        stranger.hashes(tmp_path)
    (tmp_path / "more.whl").unlink()
    for text in (f"{digest}  {wheel.name}\n" * 2, f"{digest} {wheel.name}", "deadbeef  a\n"):
        (tmp_path / "SHA256SUMS").write_text(text)
        with pytest.raises(stranger.release.Refused, match="a line that is none, or a file twice"):
            stranger.hashes(tmp_path)


def test_a_stranger_refuses_a_wheel_of_another_commit_with_right_hashes(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second build is faked: a whole run of the tool makes a real one."""
    sys.path.insert(0, str(ROOT / "tools"))
    stranger = _tool("stranger")
    wheel = "fedtally-0.1.0-cp311-cp311-manylinux_2_34_x86_64.whl"
    digests = {wheel: hashlib.sha256(b"of this commit").hexdigest()}
    monkeypatch.setattr(stranger.release, "built", lambda *_, **__: digests)
    monkeypatch.setattr(stranger.release.Release, "run", lambda self, *command, **more: "")
    for data in (b"of another commit", b"of this commit"):
        (tmp_path / wheel).write_bytes(data)
        tool.hashes(tool.Release(tmp_path, tmp_path))
        assert stranger.hashes(tmp_path) == "1 files"
        if data != b"of this commit":
            with pytest.raises(stranger.release.Refused, match="a second build gives another"):
                stranger.second_build(tmp_path)
    assert stranger.second_build(tmp_path) == "1 files are the same bytes"
    (tmp_path / wheel).unlink()  # a wheel under another name is not looked at
    with pytest.raises(stranger.release.Refused, match="a second build gives another"):
        stranger.second_build(tmp_path)


def test_a_build_that_fails_is_refused_in_a_line(tool: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(tool.Refused, match="-m no_build: .*No module named no_build"):
        tool.Release(tmp_path).python("-m", "no_build")
    with pytest.raises(tool.Refused, match="no clone has no requirements/build.txt"):
        tool.built(tmp_path / "no clone", tmp_path / "out", "0", anew=True)


def test_every_lock_fits_pyproject(locks: ModuleType) -> None:
    for lock in locks.LOCKS:
        assert not list(locks.faults(lock, lock.path.read_text())), "run python tools/locks.py"


def test_a_lock_that_was_changed_is_found(locks: ModuleType) -> None:
    lock = locks.LOCKS[0]
    text = lock.path.read_text()
    entry = text[: text.index("\n", text.index("click=="))]
    changes = {
        text.replace("click==", "clock=="): "has no click",
        text.replace("--hash=sha256:", "--hash=md5:"): "has no hash",
        "# see https://example.org\n" + text: "has an address",
        text.replace(entry, "click==7.0 \\"): "wants click",
        "--no-index\n" + text: "an option, --no-index",
        text + "-f /srv/wheels\n": "an option, -f",
    }
    for changed, fault in changes.items():
        assert any(fault in found for found in locks.faults(lock, changed)), fault


def test_one_version_stands_in_all_files(tool: ModuleType, root: Path) -> None:
    assert tool.one_version(tool.Release(root)) == tool.Release(ROOT).version
    for name in ("CHANGELOG.md", "CITATION.cff"):
        path = root / name
        kept = path.read_text()
        path.write_text(kept.replace("0.1.0", "9.9.9"))
        with pytest.raises(tool.Refused, match=f"{name} says 9.9.9"):
            tool.one_version(tool.Release(root))
        path.write_text(kept)


def test_what_is_not_committed_or_dated_is_no_release(tool: ModuleType, root: Path) -> None:
    release = tool.Release(root)
    release.run("git", "init", "--quiet")
    with pytest.raises(tool.Refused, match="not committed"):
        tool.clean(release)
    names = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    release.run("git", "add", ".")
    release.run("git", *names, "commit", "--quiet", "-m", "all")
    with pytest.raises(tool.Refused, match="Unreleased"):
        tool.clean(release)
    log = root / "CHANGELOG.md"
    log.write_text(log.read_text().replace("## Unreleased (0.1.0)", "## 0.1.0 (2026-12-01)"))
    release.run("git", *names, "commit", "--quiet", "-am", "a day")
    assert tool.clean(release) == release.run("git", "rev-parse", "HEAD")


def test_builds_that_differ_are_refused_and_equal_ones_are_kept(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Builds are faked: `--check --bytes`, which CI runs, makes real ones."""
    made: list[tuple[str, bool]] = []

    def built(root: Path, out: Path, when: str, *, anew: bool) -> dict[str, str]:
        out.mkdir(parents=True)
        made.append((when, anew))
        (out / "a.whl").write_bytes(root.parent.name.encode() if is_bad else b"the same")
        return {"a.whl": tool._digest(out / "a.whl")}

    monkeypatch.setattr(tool, "built", built)
    monkeypatch.setattr(tool.Release, "run", lambda self, *command, **more: "1700000000")
    is_bad = True
    with pytest.raises(tool.Refused, match=r"differ: a\.whl"):
        tool.same_bytes(tool.Release(ROOT, tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    is_bad = False
    assert tool.same_bytes(tool.Release(ROOT, tmp_path / "out")) == "a.whl"
    assert (tmp_path / "out" / "a.whl").read_bytes() == b"the same"
    # The commit's time, and not the clock's; what the first one compiled serves no second one.
    assert made == [("1700000000", False), ("1700000000", True)] * 2


@pytest.mark.parametrize("lacking", ["nothing", "a file", "the text"])
def test_a_build_without_the_notices_of_what_is_compiled_in_is_refused(
    tool: ModuleType, tmp_path: Path, lacking: str
) -> None:
    """Builds are faked: `--check --bytes`, which CI runs, looks at real ones."""
    names = ["LICENSE", "native/licenses/nanobind.txt", "native/licenses/robin_map.txt"]
    left_out = names[1] if lacking == "a file" else None
    with tarfile.open(tmp_path / "fedtally-0.1.0.tar.gz", "w:gz") as sdist:
        for name in names:
            sdist.add(ROOT / name, f"fedtally-0.1.0/{name}")
    with zipfile.ZipFile(tmp_path / "fedtally-0.1.0-cp312-abi3-a.whl", "w") as wheel:
        for name in names:
            text = b"" if lacking == "the text" else (ROOT / name).read_bytes()
            if name != left_out:
                wheel.writestr(f"fedtally-0.1.0.dist-info/licenses/{name}", text)
    if lacking == "nothing":
        tool.check_licences(ROOT, tmp_path)
        return
    with pytest.raises(tool.Refused, match=r"a\.whl lacks .*: see license-files"):
        tool.check_licences(ROOT, tmp_path)


def test_the_project_names_its_notices(tool: ModuleType) -> None:
    """What `license-files` names is put into the wheel and the sdist."""
    said = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license-files"]
    named = {path for pattern in said for path in ROOT.glob(pattern)}
    assert named == {ROOT / "LICENSE", *(ROOT / tool.NOTICES).iterdir()}
    assert {path.stem for path in (ROOT / tool.NOTICES).iterdir()} == set(tool.COMPILED_IN)


def test_notices_are_the_texts_of_what_is_compiled_in(tool: ModuleType, tmp_path: Path) -> None:
    """nanobind is faked: a build compares the real one's texts."""
    texts = {path.stem: path.read_text() for path in (ROOT / tool.NOTICES).iterdir()}
    licence = tmp_path / "nanobind-3.1.0.dist-info" / "licenses" / "LICENSE"
    header = tmp_path / "nanobind/ext/robin_map/include/tsl/robin_map.h"
    for path in (licence, header):
        path.parent.mkdir(parents=True)
    licence.write_text(texts["nanobind"].partition("\n\nOf src/")[0] + "\n")
    lines = [f" * {line}".rstrip() for line in texts["robin_map"].splitlines()]
    header.write_text("\n".join(["/**", *lines, " */", "#ifndef TSL_ROBIN_MAP_H", ""]))
    tool.check_notices(ROOT, tmp_path)
    header.write_text(header.read_text().replace("MIT", "BSD"))
    with pytest.raises(tool.Refused, match=r"robin_map\.txt is not what nanobind-3\.1\.0"):
        tool.check_notices(ROOT, tmp_path)


def test_hashes_are_those_that_sha256sum_checks(tool: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_bytes(b"wheel")
    release = tool.Release(ROOT, tmp_path)
    assert tool.hashes(release) == "1 files"
    assert release.run("sha256sum", "-c", "SHA256SUMS", cwd=tmp_path) == "a.whl: OK"
    (tmp_path / "a.whl").write_bytes(b"Wheel")
    with pytest.raises(tool.Refused):
        release.run("sha256sum", "-c", "SHA256SUMS", cwd=tmp_path)


def test_a_bill_has_no_place_that_packages_came_from(tool: ModuleType) -> None:
    bill = {"components": [{"name": "a", "externalReferences": [{"url": "https://a"}]}]}
    assert "https" not in json.dumps(tool.without_addresses(bill))


def test_a_bill_has_what_is_compiled_in(tool: ModuleType) -> None:
    """The environment has no nanobind: the wheel holds it."""
    components = [{"name": "fedtally", "bom-ref": "fedtally==0.1.0"}]
    needs = [{"ref": "fedtally==0.1.0", "dependsOn": ["click==8.5.1"]}]
    bill = tool.with_compiled({"components": components, "dependencies": needs}, "3.1.0")
    found = {each["name"]: each for each in bill["components"]}
    assert found["nanobind"]["version"] == "3.1.0"
    assert [part["name"] for part in found["nanobind"]["components"]] == ["robin_map"]
    assert bill["dependencies"][0]["dependsOn"] == ["click==8.5.1", "nanobind==3.1.0"]
    assert len(components) == 1 and needs[0]["dependsOn"] == ["click==8.5.1"]


def test_nothing_is_said_to_be_done_that_was_not(tool: ModuleType) -> None:
    release = tool.Release(ROOT)
    assert tool.tests(release).startswith("NOT RUN")
    assert tool.tag(release).startswith("NOT SIGNED")
    assert release.notes == ["tests did not run here (--tests)", "no tag was signed (--key)"]


def test_two_bills_of_one_environment_are_the_same_bytes(tool: ModuleType) -> None:
    """SHA256SUMS has the bill's hash, which a stranger compares with one of his own."""
    pytest.importorskip("cyclonedx_py")
    release = tool.Release(ROOT)
    bills = [tool.inventory(release, sys.executable) for _ in range(2)]
    assert bills[0] == bills[1] and bills[0]["components"]
    assert "serialNumber" not in bills[0] and "timestamp" not in bills[0].get("metadata", {})
