"""Old addresses of the site lead to where their text stands now: docs/moves.toml says where.

A page that is gone leaves a stub in the built site. A page that stayed and gave sections away
leads a visitor of one of these on, by a script in its head.
"""

from __future__ import annotations

import json
import tomllib
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

MOVES = "moves.toml"
# Without scripts a visitor comes to the new page, and chooses the section from the list.
_STUB = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="robots" content="noindex">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} has moved</title>
<noscript><meta http-equiv="refresh" content="5; url={page}"></noscript>
<script>
const moved = {sections};
location.replace(moved[decodeURIComponent(location.hash.slice(1))] ?? {page_in_script});
</script>
<p>{title} stands at <a href="{page}">{page}</a> now. Its sections:</p>
<ul>
{links}
</ul>
</html>
"""
_SCRIPT = """<script>
addEventListener("DOMContentLoaded", () => {{
  const moved = {sections}, name = decodeURIComponent(location.hash.slice(1));
  if (name in moved && !document.getElementById(name)) location.replace(moved[name]);
}});
</script>
"""


def moves(folder: Path) -> dict[str, dict[str, str]]:
    """Return where each section of each old page stands now.

    Args:
        folder: the sources, with `MOVES` in them.

    Returns:
        By the name of the old page and its section ("" for the page itself), "page#section".
    """
    return tomllib.loads((folder / MOVES).read_text(encoding="utf-8"))


def addresses(slugs: dict[str, dict[str, str]], moved: dict[str, str]) -> dict[str, str]:
    """Return the links of a built site to where the sections of an old page stand.

    Args:
        slugs: by page, the `id` in the built page of each section that links name.
        moved: of an old page, from `moves`.

    Raises:
        KeyError: no page has this section.
    """
    links = {}
    for old, new in moved.items():
        page, _, section = new.partition("#")
        link = f"{page}.html" + (f"#{slugs[page][section]}" if section else "")
        links[old] = link
        # Sites of old named a section by its `id`, which leaves out what links keep.
        links.setdefault(nodes.make_id(old), link)
    return links


def stub(title: str, links: dict[str, str]) -> str:
    """Return the page that an old address leaves, which leads to each new one."""
    page = links[""]
    items = "\n".join(
        f'<li><a href="{escape(link)}">{escape(old)}</a></li>' for old, link in links.items() if old
    )
    return _STUB.format(
        title=escape(title),
        page=escape(page),
        page_in_script=json.dumps(page),
        sections=json.dumps(links),
        links=items,
    )


def _slugs(app: Sphinx) -> dict[str, dict[str, str]]:
    return {
        page: {slug: found[1] for slug, found in fields.get("myst_slugs", {}).items()}
        for page, fields in app.env.metadata.items()
    }


def _lead_on(app: Sphinx, page: str, _: str, context: dict[str, Any], __: Any) -> None:
    """Let a page that stayed lead on to the sections that it gave away."""
    moved = moves(Path(app.srcdir)).get(page, {})
    gone = {old: new for old, new in moved.items() if new.partition("#")[0] != page}
    if gone:
        sections = json.dumps(addresses(_slugs(app), gone))
        context["metatags"] = context.get("metatags", "") + _SCRIPT.format(sections=sections)


def _write_stubs(app: Sphinx, failure: Exception | None) -> None:
    """Write a stub at the address of each page that is gone."""
    if failure is not None or app.builder.format != "html":
        return
    slugs = _slugs(app)
    for old, moved in moves(Path(app.srcdir)).items():
        if old not in app.env.found_docs:
            text = stub(old, addresses(slugs, moved))
            (Path(app.outdir) / f"{old}.html").write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register what is above."""
    app.connect("html-page-context", _lead_on)
    app.connect("build-finished", _write_stubs)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
