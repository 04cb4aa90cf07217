"""The site's search finds numbers of three digits, such as 502, and with commas, such as 20,000.

A status is typed as a number. Sphinx leaves numbers out of the index, and out of what a reader
types, and takes a comma for the end of a word.
"""

from __future__ import annotations

import re

from sphinx.application import Sphinx
from sphinx.search.en import SearchEnglish

KEPT = r"[1-9]\d\d"
COMMAS = r"[1-9][0-9]{0,2}(?:,[0-9]{3})+"
LETTER = r"[\p{Letter}\p{Number}_\p{Emoji_Presentation}]"  # of a word, for the page's script


class EnglishWithNumbers(SearchEnglish):
    """English, of which the index also holds numbers of three digits, and numbers with commas."""

    _word_re = re.compile(rf"{COMMAS}(?!\w)|\w+")

    # The page's script drops each term that a pattern knows as a number. So a number that is kept
    # is an object that no pattern matches.
    js_splitter_code = (
        r"""
var splitQuery = (query) => (query
  .match(/COMMAS(?!LETTER)|LETTER+/gu) ?? [])
  .map((term) => /^KEPT$/.test(term) ? Object.assign(new String(term), {match: () => null}) : term);
"""
    ).replace("COMMAS", COMMAS)
    js_splitter_code = js_splitter_code.replace("LETTER", LETTER).replace("KEPT", KEPT)

    def word_filter(self, word: str) -> bool:
        """Tell whether the index holds a word."""
        return bool(re.fullmatch(KEPT, word)) or super().word_filter(word)


def setup(app: Sphinx) -> dict[str, bool]:
    """Take the place of Sphinx's English."""
    app.add_search_language(EnglishWithNumbers)
    return {"parallel_read_safe": True}
