"""Make a page, or an extension, whose owner reports one item to two servers.

    npm --prefix clients/web ci --ignore-scripts && npm --prefix clients/web run bundle
    python examples/web/make.py site --title Fruit --registrar registrar.key.pub \
      --purpose "fruit 2026" --helper https://helper.example.net \
      --leader https://leader.example.org
    # once the plan is published, with the same options and
    #   --plan plan.toml --candidates fruits.txt --min-honest 1000
    # an extension: --extension survey@example.org

Copy the folder to a host that neither server's operator controls.
"""

from __future__ import annotations

import argparse
import hashlib
import html
import json
import shutil
from base64 import b64encode
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import urlsplit

from fedtally import Plan
from fedtally.campaign.key_files import read_public_key
from fedtally.errors import FedtallyError

HERE = Path(__file__).resolve().parent
LIBRARY = HERE.parents[1] / "clients" / "web" / "dist" / "fedtally.js"


def integrity(text: str, name: str = "sha384") -> str:
    """Return the hash with which a page loads a script."""
    return f"{name}-{b64encode(hashlib.new(name, text.encode()).digest()).decode()}"


def manifest(title: str, name: str, policy: str, addresses: list[str]) -> dict[str, Any]:
    """Return the manifest of an extension that may ask both servers, and nobody else."""
    hosts = [urlsplit(each) for each in addresses]
    return {
        "manifest_version": 3,
        "name": title,
        "version": "1.0",
        "action": {"default_title": title, "default_popup": "index.html"},
        # without ports, which Firefox refuses here; the policy has them
        "host_permissions": sorted({f"{each.scheme}://{each.hostname}/*" for each in hosts}),
        "content_security_policy": {"extension_pages": policy},
        "browser_specific_settings": {"gecko": {"id": name}},
    }


def make(
    folder: Path,
    *,
    title: str,
    registrar: str,
    purpose: str,
    helper: str,
    leader: str,
    plan: Plan | None = None,
    candidates: list[str] | None = None,
    min_honest: int = 2,
    extension: str | None = None,
) -> None:
    """Write the files.

    Args:
        folder: where they go; it is made.
        title: what the page is called.
        registrar: the registrar's key, 64 hexadecimal digits.
        purpose: what clients are enrolled for.
        helper: the helper's address, without a slash at its end.
        leader: the leader's.
        plan: the published plan; None: the page enrols, and does not report yet.
        candidates: the plan's candidates, in its order.
        min_honest: the fewest honest identities in a sum.
        extension: the id of an extension for Firefox; None: a page.
    """
    survey = {
        "registrar": registrar,
        "purpose": purpose,
        "servers": {"helper": helper, "leader": leader},
        "plan": None if plan is None else plan.canonical,
        "fingerprint": None if plan is None else plan.fingerprint,
        "candidates": candidates,
        "minHonest": min_honest,
    }
    scripts = {
        "fedtally": LIBRARY.read_text(),
        "survey": f"export const survey = {json.dumps(survey, indent=2)};\n",
        "page": (HERE / "page.js").read_text(),
    }
    hashes = {name: integrity(text) for name, text in scripts.items()}
    checked, allowed = "", ""
    if extension is None:  # the files of an extension are checked as a whole
        # Without it an `import` would load a script that its tag has refused.
        rules = json.dumps({"integrity": {f"./{name}.js": each for name, each in hashes.items()}})
        checked = f'<script type="importmap">{rules}</script>'
        allowed = f" '{integrity(rules, 'sha256')}'"
    policy = (
        f"default-src 'none'; script-src 'self'{allowed}; connect-src {helper} {leader};"
        " base-uri 'none'; form-action 'none'"
    )
    folder.mkdir(parents=True, exist_ok=True)
    # Whoever hands the library on hands its licences on, too.
    shutil.copy(LIBRARY.with_name("licences.txt"), folder)
    for name, text in scripts.items():
        (folder / f"{name}.js").write_text(text)
    page = Template((HERE / "index.html").read_text())
    words = {"title": html.escape(title), "policy": policy, "checked": checked}
    (folder / "index.html").write_text(page.substitute(words | hashes))
    if extension is not None:
        found = manifest(title, extension, policy, [helper, leader])
        (folder / "manifest.json").write_text(json.dumps(found, indent=2) + "\n")


def main() -> None:
    """Make what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where the files go")
    for name in ("title", "purpose", "helper", "leader"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--registrar", required=True, help="the file of its public key")
    parser.add_argument("--plan", type=Path, help="the published plan")
    parser.add_argument("--candidates", type=Path, help="the plan's candidates, one a line")
    parser.add_argument("--min-honest", type=int, default=2, help="fewest honest people in a sum")
    parser.add_argument("--extension", metavar="ID", help="make an extension with this id")
    given = vars(parser.parse_args())
    if (given["plan"] is None) != (given["candidates"] is None):
        parser.error("--plan and --candidates go together")
    try:
        if given["plan"] is not None:
            given["plan"] = Plan.load(given["plan"])
            given["candidates"] = given["candidates"].read_text(encoding="utf-8").splitlines()
        given["registrar"] = read_public_key(given["registrar"], "registrar").hex()
        make(given.pop("folder"), **given)
    except (FedtallyError, OSError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
