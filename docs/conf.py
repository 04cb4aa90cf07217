"""The documentation as a site: python -m sphinx -W docs build/docs."""

import html
import shutil
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.ext.graphviz import graphviz, render_dot
from sphinx.ext.napoleon import GoogleDocstring

import fedtally
from fedtally.answer.show_page import show_page
from fedtally.simulation.demonstration import demonstrate

project = "fedtally"
author = "The fedtally authors"
copyright = "The fedtally authors, Apache License 2.0"
version = release = fedtally.__version__

sys.path.insert(0, str(Path(__file__).parent))  # for the three extensions beside this file
extensions = [
    "myst_nb",
    "numbers_found",
    "redirects",
    "sections_found",
    "sphinx.ext.autodoc",
    "sphinx.ext.graphviz",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
html_theme = "furo"
html_title = f"fedtally {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
smartquotes = False  # quotes and dashes of options and texts stay as they are typed
maximum_signature_line_length = 88  # longer ones have a parameter a line

# Pages are those that a repository shows: links name files and headings as it does.
myst_heading_anchors = 4
exclude_patterns = ["_static"]

nb_execution_mode = "force"  # a page that shows numbers computes them
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_merge_streams = True  # lines that a cell prints stand in one box

# What is typed gets a button to copy it, without prompts and what is printed.
copybutton_selector = ", ".join(
    f"div.highlight-{kind} pre" for kind in ("sh", "python", "toml", "ipython3")
)
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True

# Diagrams say what is drawn, and here is how. At most 300 points wide, they fit a phone's screen.
graphviz_dot_args = [
    *("-Gbgcolor=transparent", "-Granksep=0.35", "-Gnodesep=0.25"),
    *("-Nshape=box", "-Nstyle=rounded", "-Nheight=0.35", "-Nmargin=0.12,0.06", "-Earrowsize=0.7"),
    *(f"-{each}fontname=DejaVu Sans,Verdana,sans-serif" for each in "GNE"),
    *("-Gfontsize=11", "-Nfontsize=11", "-Efontsize=10"),
]

napoleon_use_ivar = True  # attributes are described once, with their class
default_role = "code"  # docstrings write `code` as the pages do
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": False}
python_use_unqualified_type_names = True

# What a property says is prose: "The unit: clients or people" names no type before its colon.
GoogleDocstring._parse_attribute_docstring = GoogleDocstring._consume_to_end


def without_aliases(_: Sphinx, __: str, ___: str, member: Any, *____: Any) -> bool | None:
    """Leave out the fields of named tuples, which their class describes."""
    return True if (member.__doc__ or "").startswith("Alias for field number") else None


def link_pictures(_: Sphinx, page: nodes.document) -> None:
    """Let a picture, which the page may shrink, lead to itself at its full size."""
    for picture in page.findall(nodes.image):
        picture["width"] = "100%"  # Sphinx links what is scaled; site.css enlarges nothing


def draw(page: Any, diagram: graphviz) -> None:
    """Put a diagram into a page as a picture; where `dot` is missing, its text says the result."""
    text, picture = html.escape(diagram["alt"]), None
    if shutil.which(page.builder.config.graphviz_dot):
        picture, _ = render_dot(page, diagram["code"], diagram["options"], "svg")
    page.body.append(
        f'<p><img class="diagram" src="{picture}" alt="{text}"></p>'
        if picture
        else f"<p>{text}</p>"
    )
    raise nodes.SkipNode


def write_show(app: Sphinx, failure: Exception | None) -> None:
    """Write the page of `fedtally show`, to which the front page leads."""
    page = Path(app.outdir) / "try.html"
    if failure is None and app.builder.format == "html" and not page.exists():
        text = show_page(demonstrate(seed=0)._asdict())  # one seed: each build has the same page
        page.write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Register what is above."""
    app.connect("autodoc-skip-member", without_aliases)
    app.connect("doctree-read", link_pictures)
    app.connect("build-finished", write_show)
    app.add_node(graphviz, override=True, html=(draw, None))
