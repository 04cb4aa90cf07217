"""The site's search finds sections: what is typed may stand in a heading, in text, or in both.

Sphinx finds pages alone, and only those that have every word. Many pages are long, and a reader
types words that no page has together. So each section is listed with its words, in the page of
the search, and the sections that answer best come first, whether or not they have every word.

A comment under a heading, which begins with ``<!-- asked:``, holds other words for it, which only
the search sees. Each of its lines is a heading of its own for the search.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.search import SearchLanguage

# Points of a word: in the section's heading, in the page's title or a heading above, and in text.
# A word that fills the text has nearly the last, and one that stands once in a long text has few.
# So a word is in the heading if it has HEADING points or more.
HEADING, ABOVE, TEXT = 20, 6, 10
USUAL_LENGTH = 150  # words of a section, near the mean of the documentation
# Words of questions, which are in most headings of *Questions and words*, and say nothing.
ASKED = """
    about an any been being can could did do does from get had has have he her here him his how i
    just made make many may me might much must my only our out she should so than them they up us
    use used using we were what when where which who whom whose why without would you your
"""

_ASKED = re.compile(r"<!-- asked:\n(.*?)\n-->", re.DOTALL)

# A word counts the more, the fewer sections have it. A section that lacks some of the words typed,
# or that has them once in a long text, loses the more, the rarer they are; and a section gains the
# more, the more of its heading was typed. What no section has is no reason to leave a section out.
_SCRIPT = """
document.addEventListener("DOMContentLoaded", () => {
  const SHOWN = 20, ENOUGH = 8, search = Search._performSearch;
  const {places, words, heading} = SECTIONS;
  const rarity = (holders) => Math.log(1 + places.length / holders);
  const holders = (word) => {
    const forms = Object.hasOwn(words, word) ? [word]
      : word.length < 3 ? [] : Object.keys(words).filter((form) => form.startsWith(word));
    const points = new Map();
    for (const form of forms) {
      for (let at = 0; at < words[form].length; at += 2) {
        const [place, more] = words[form].slice(at, at + 2);
        points.set(place, Math.max(points.get(place) ?? 0, more));
      }
    }
    return points;
  };
  const headings = places.map(() => 0);  // the rarity of all words of each heading
  for (const held of Object.values(words)) {
    for (let at = 0; at < held.length; at += 2) {
      if (held[at + 1] >= heading) headings[held[at]] += rarity(held.length / 2);
    }
  }
  Search._performSearch = (query, terms, ...rest) => {
    const others = search(query, terms, ...rest);
    const found = new Map();
    let most = 0;  // the rarity of all words that some section has
    for (const term of terms) {
      const points = holders(String(term));
      if (!points.size) continue;
      const rare = rarity(points.size);
      most += rare;
      for (const [place, more] of points) {
        const [held, sum, typed] = found.get(place) ?? [0, 0, 0];
        found.set(place, [
          held + rare * Math.min(1, more / ENOUGH), sum + rare * more,
          typed + (more >= heading ? rare : 0),
        ]);
      }
    }
    const all = [...found].map(([place, [held, sum, typed]]) => {
      const [page, id, title, above] = places[place];
      const shown = above ? `${above} > ${title}` : title;
      const whole = typed && Math.min(1, typed / headings[place]);  // how much of the heading
      const points = sum * (held / most) ** 2 * (1 + 2 * whole);
      return [page, shown, id && "#" + id, null, points, page, SearchResultKind.title];
    }).sort((a, b) => a[4] - b[4] || (a[1] < b[1] ? 1 : -1));
    // The last is shown first. A name of Python that was typed as a whole stands above sections.
    const place = (result) => result[0] + result[2];
    const best = new Map(all.map((result) => [place(result), result]));  // the last of each
    const sections = all.filter((result) => best.get(place(result)) === result).slice(-SHOWN);
    const listed = new Set(sections.map(place));
    const isName = (result) => result[6] === SearchResultKind.object
      && result[1].toLowerCase().split(".").at(-1) === query.toLowerCase().split(".").at(-1);
    const left = others.filter((result) => !listed.has(place(result)));
    return [...left.filter((r) => !isName(r)), ...sections, ...left.filter(isName)];
  };
});
"""


class Section(NamedTuple):
    """A section of a page, without the sections inside of it.

    Attributes:
        id: its anchor in the page; "" for a page as a whole.
        title: its heading.
        above: the titles of the page and of the sections around it, the page's first.
        text: what stands in it.
        asked: other words for the heading.
    """

    id: str
    title: str
    above: tuple[str, ...]
    text: str
    asked: tuple[str, ...]


def sections(node: nodes.Element, above: tuple[str, ...] = ()) -> Iterator[Section]:
    """Yield the sections of a page, each before those inside of it."""
    for section in node.children:
        if not isinstance(section, nodes.section):
            continue
        parts = list(section.children)
        inner = [part for part in parts if isinstance(part, nodes.section)]
        title = next(part.astext() for part in parts if isinstance(part, nodes.title))
        text = "\n".join(
            part.astext()
            for part in parts
            if not isinstance(part, nodes.section | nodes.title | nodes.raw)
        )
        raw = "\n".join(part.astext() for part in parts if isinstance(part, nodes.raw))
        asked = tuple(line for found in _ASKED.findall(raw) for line in found.split("\n"))
        yield Section(section["ids"][0] if above else "", title, above, text, asked)
        if inner:
            yield from sections(section, (*above, title))


def points(section: Section, language: SearchLanguage) -> dict[str, int]:
    """Return the points of each word (its stem) of a section, its heading, or those above."""

    def stems(text: str) -> Counter[str]:
        kept = (word for word in language.split(text) if language.word_filter(word))
        return Counter(language.stem(word.lower()) for word in kept)

    text = stems(section.text)
    long = (1 + text.total() / USUAL_LENGTH) / 2
    sums = Counter({word: round(TEXT * times / (times + long)) for word, times in text.items()})
    sums.update(dict.fromkeys(stems(section.title), HEADING))
    sums.update(dict.fromkeys(stems(" ".join(section.above)), ABOVE))
    return sums


def index(app: Sphinx) -> dict[str, Any]:
    """Return the places of all pages (page, anchor, title, page's title), and those of each word.

    A section is a place for each of its headings.
    """
    language: SearchLanguage = app.builder.indexer.lang  # type: ignore[attr-defined]
    places: list[tuple[str, str, str, str]] = []
    words: dict[str, list[int]] = {}  # of each word: place, points, place, points, ...
    for page in sorted(app.env.found_docs):
        for section in sections(app.env.get_doctree(page)):
            for heading in (section.title, *section.asked):
                for word, more in points(section._replace(title=heading), language).items():
                    words.setdefault(word, []).extend((len(places), more))
                title = section.above[0] if section.above else ""
                places.append((page, section.id, section.title, title))
    words |= {language.stem(word): [] for word in ASKED.split()}  # no section has these
    return {"places": places, "words": words, "heading": HEADING}


def _add(app: Sphinx, page: str, *_: Any) -> None:
    """Add the sections and the script to the page of the search, before the search runs."""
    if page == "search":
        data = json.dumps(index(app), ensure_ascii=False, separators=(",", ":"))
        data = data.replace("<", "\\u003c")  # no text may end the script
        app.add_js_file(None, body=f"const SECTIONS = {data};{_SCRIPT}")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register what is above."""
    app.connect("html-page-context", _add)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
