"""Each claim of the security pages names a test or a command that exists (docs/evidence.md)."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "evidence.md"


def section(path: Path, title: str) -> str:
    """Return the text of a section, up to the next of the same rank."""
    text = path.read_text(encoding="utf-8")
    start = text.index(f"\n## {title}\n") + 1
    end = text.find("\n## ", start)
    return text[start : end if end > 0 else None]


def table(text: str) -> dict[str, str]:
    """Return the second cell of each row by the first one, without the heading."""
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", text, re.M)
    return dict(row for row in rows[1:] if not row[0].startswith("---"))


def missing(claims: list[str], shown: dict[str, str], *, whole: bool) -> list[str]:
    """Return the claims without a row, and the rows without a claim."""

    def fits(claim: str, row: str) -> bool:
        return claim == row if whole else claim.startswith(row)

    found = [claim for claim in claims if not any(fits(claim, row) for row in shown)]
    return found + [row for row in shown if not any(fits(claim, row) for claim in claims)]


def test_each_attack_of_the_threat_model_names_its_tests() -> None:
    text = section(ROOT / "docs" / "threat-model.md", "Where each defence is")
    shown = table(section(PAGE, "Where each defence is"))
    assert len(shown) > 30
    assert missing(list(table(text)), shown, whole=True) == []


def test_each_guarantee_names_its_tests() -> None:
    text = section(ROOT / "SECURITY.md", "What is guaranteed today")
    claims = re.findall(r"^- (.+)$", text, re.M)
    assert len(claims) > 5
    assert missing(claims, table(section(PAGE, "What is guaranteed today")), whole=False) == []


def test_what_shows_a_claim_exists() -> None:
    for title in (
        "Where each defence is",
        "What is guaranteed today",
        "Two servers, DAP, silos and an epsilon",
    ):
        for claim, tests in table(section(PAGE, title)).items():
            named = re.findall(r"`(tests/\S+?\.py)::(test_\w+)`", tests)
            assert named and len(named) == tests.count("`") / 2, claim
            for path, name in named:
                text = (ROOT / path).read_text(encoding="utf-8")
                assert re.search(rf"^(async )?def {name}\(", text, re.M), (claim, path, name)
    for claim, command in table(section(PAGE, "Claims that a command measures")).items():
        tool = re.fullmatch(r"`python (tools/\w+\.py)[^`]*`", command)
        assert tool and (ROOT / tool[1]).exists(), claim


def test_a_claim_without_a_test_and_a_test_without_a_claim_are_found() -> None:
    assert missing(["a", "b"], {"a": "x", "c": "y"}, whole=True) == ["b", "c"]
    assert missing(["a thing. more"], {"a thing": "x"}, whole=False) == []
