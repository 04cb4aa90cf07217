"""The site's search finds a section by its heading, and leads to the section.

Sphinx lists pages alone, unless what a reader types is half of a heading. A word of a heading
ranks its page, but the link leads to the page's first line, and many pages are long.
"""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx

# A heading that has all words typed stands before pages that have them in their text (5 points) or
# in some heading (15), and the higher, the more of the heading was typed: up to 25 points. The
# name of an object of Python, typed as a whole, has 16.
_SCRIPT = """
document.addEventListener("DOMContentLoaded", () => {
  const stemmer = new Stemmer(), search = Search._performSearch;
  const words = (text) => new Set(splitQuery(text.toLowerCase())
    .map(String).filter((word) => !stopwords.has(word)).map((word) => stemmer.stemWord(word)));
  Search._performSearch = (query, terms, ...rest) => {
    const results = search(query, terms, ...rest), index = Search._index;
    const typed = [...terms].map(String), place = (result) => result[0] + result[2];
    const headings = new Map();
    for (const [title, places] of typed.length ? Object.entries(index.alltitles) : []) {
      const held = words(title);
      if (!typed.every((word) => held.has(word))) continue;
      for (const [page, id] of places) {
        const result = [
          index.docnames[page],
          id === null ? title : `${index.titles[page]} > ${title}`,
          id === null ? "" : "#" + id,
          null,
          15 + Math.round(10 * typed.length / held.size),
          index.filenames[page],
          SearchResultKind.title,
        ];
        headings.set(place(result), result);
      }
    }
    const pages = results.filter((result) => {
      const heading = headings.get(place(result));
      if (heading) heading[4] = Math.max(heading[4], result[4]);
      return !heading;
    });
    const isEntry = (result) => result[6] === SearchResultKind.index;  // of the index: shown last
    return [
      ...pages.filter(isEntry),
      ...[...pages.filter((result) => !isEntry(result)), ...headings.values()]
        .sort(_orderResultsByScoreThenName),
    ];
  };
});
"""


def _add(app: Sphinx, page: str, *_: Any) -> None:
    """Add the script to the page of the search: it runs before the search does."""
    if page == "search":
        app.add_js_file(None, body=_SCRIPT)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register what is above."""
    app.connect("html-page-context", _add)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
