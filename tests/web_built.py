"""What tests need of `clients/web`: that it was built, from the sources that lie there."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

WEB = Path(__file__).resolve().parents[1] / "clients" / "web"
HOW = "it needs Node.js 20, 'npm ci --ignore-scripts' in clients/web, then .ci/web"


def need(made: Path) -> None:
    """Skip a test that has no node, no product of `clients/web`, or one of older sources.

    It fails instead where FEDTALLY_REQUIRE_WEB=1, as in CI: nothing is skipped silently there.

    Args:
        made: the product, below `clients/web`.
    """
    if shutil.which("node") is None:
        _lack("there is no node")
    elif not made.exists():
        _lack(f"{made.relative_to(WEB)} is not built")
    elif made.stat().st_mtime < max(each.stat().st_mtime for each in _sources(made)):
        _lack(f"{made.relative_to(WEB)} is older than its sources")


def _sources(made: Path) -> list[Path]:
    is_test = "test" in made.relative_to(WEB).parts
    return [each for part in ("src", "test")[: 1 + is_test] for each in (WEB / part).glob("*.ts")]


def _lack(what: str) -> None:
    said = f"not tested: {what}; {HOW}"
    if os.environ.get("FEDTALLY_REQUIRE_WEB") == "1":
        pytest.fail(said)
    pytest.skip(said)
