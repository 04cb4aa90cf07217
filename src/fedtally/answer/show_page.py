"""The page of `fedtally show`: one phone's upload, the sum, and how noise hides an item.

The page is one file that loads nothing. Readers can change what it shows. Its data come as a
mapping, since this package may not import the simulation that makes them
(`fedtally.simulation.demonstration.Demonstration`).
"""

from __future__ import annotations

import base64
import html
import json
import math
import re
from collections.abc import Mapping
from importlib import metadata
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt

from fedtally.answer.page import policy
from fedtally.errors import InvalidInputError

_MOST_BITS = 16  # the most bits of a counter: the page's script adds 16-bit integers


def show_page(shown: Mapping[str, Any]) -> str:
    """Return the page as an HTML document of less than 1.5 MB.

    Args:
        shown: the fields of `fedtally.simulation.demonstration.Demonstration`, by name.

    Raises:
        InvalidInputError: the counters of the uploads have more than 16 bits.
    """
    if shown["bits"] > _MOST_BITS:
        raise InvalidInputError(f"bits must be at most {_MOST_BITS}, got {shown['bits']}")
    folder = files("fedtally.answer")
    template, style, script = (
        (folder / f"show_page.{kind}").read_text("utf-8") for kind in ("html", "css", "js")
    )
    phones, counters = shown["sketches"].shape
    texts = {
        "policy": policy(style, script),
        "style": style,
        "script": script,
        # Escape "<". Otherwise a text with "</script>" could end the HTML element that it is in.
        "data": json.dumps(_document(shown)).replace("<", "\\u003c"),
        "table": _table(shown),
        "phones": f"{phones:,}",
        "before": f"{phones - 1:,}",
        "more": f"{1000 * phones:,}",
        "rows": str(shown["rows"]),
        "counters": f"{counters:,}",
        "candidates": f"{shown['candidates']:,}",
        "modulus": f"{2 ** shown['bits']:,}",
        "delta": f"{max(level.delta for level in shown['levels']):g}",
        "bytes": f"{counters * shown['bits'] // 8:,} bytes",
        "last": str(len(shown["levels"]) - 1),
        "version": metadata.version("fedtally"),
    }
    # Replace all placeholders in one pass. Otherwise a placeholder inside an inserted text would be
    # replaced, too.
    return re.sub(r"{{(\w+)}}", lambda found: texts[found[1]], template)


def at_most(share: float) -> str:
    r"""Return an upper bound in percent, rounded up, with a no-break space before the sign.

    It has one decimal, or two above 99 %. Zeros at the end are left out.

    >>> [at_most(share) for share in (0.05, 0.1359150, 0.3694536, 0.9996813, 1.0)]
    ['5\xa0%', '13.6\xa0%', '37\xa0%', '99.97\xa0%', '100\xa0%']
    """
    digits = 2 if share > 0.99 else 1
    # Round to the nearest 10^-6 first. Otherwise a floating-point error could make 5.1 % of 5 %.
    text = f"{math.ceil(round(share * 100 * 10**digits, 6)) / 10**digits:.{digits}f}"
    return f"{text.rstrip('0').rstrip('.')}\xa0%"


def _document(shown: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data for the page's script: counters in base64, counts, and bounds as text.

    `shown` is as in `show_page`. The result becomes JSON.
    """
    truth = np.bincount(shown["held"], minlength=len(shown["words"])).tolist()
    return {
        **{name: shown[name] for name in ("bits", "rows", "width", "words")},
        "false_alarms": at_most(shown["false_alarms"]),
        "held": shown["held"].tolist(),
        "truth": truth,
        # The page first shows a phone whose word nobody else holds: the clearest example.
        "chosen": next((at for at, place in enumerate(shown["held"]) if truth[place] == 1), 0),
        "uploads": _packed(shown["uploads"]),
        "opened": _packed(shown["opened"]),
        "marks": _packed(_marks(shown["sketches"])),
        "levels": [
            {
                "epsilon": level.epsilon,
                "released": _packed(level.released.astype("<i2")),
                **{name: _rounded(getattr(level, name)) for name in ("counts", "low", "high")},
                "promised": at_most(level.promised),
                "proven": at_most(level.proven),
            }
            for level in shown["levels"]
        ],
    }


def _marks(sketches: npt.NDArray[np.int64]) -> npt.NDArray[np.int16]:
    """Return which counters each phone's word changes, and how: int16 [phones, rows].

    A word changes one counter in each row, by +1 or -1. Entry [p, r] is the number in the whole
    sketch, from 1, of the counter of row r that phone p changes, times the change.

    Args:
        sketches: the sketch of each phone without noise, int64 [phones, counters].
    """
    phones, places = np.nonzero(sketches)
    found = ((places + 1) * sketches[phones, places]).astype("<i2")
    return found.reshape(len(sketches), -1)


def _packed(values: npt.NDArray[Any]) -> str:
    """Return 16-bit integers as base64 of their little-endian bytes."""
    return base64.b64encode(values.astype(values.dtype.newbyteorder("<")).tobytes()).decode()


def _rounded(values: npt.NDArray[np.float64]) -> list[float]:
    return [round(value, 3) for value in values.tolist()]


def _table(shown: Mapping[str, Any], rows: int = 8) -> str:
    """Return the first `rows` words with their estimates as HTML, for readers without JavaScript.

    There is a column for each level of noise. An estimate that cannot be told from 0 is shown as
    "lost". A last row bounds the probability that one phone is recognised. `shown` is as in
    `show_page`.
    """
    levels = shown["levels"]
    truth = np.bincount(shown["held"], minlength=len(shown["words"])).tolist()
    names = ["no noise", *(f"epsilon {level.epsilon:g}" for level in levels[1:])]
    lines = [
        [
            word,
            str(truth[at]),
            *(f"{level.counts[at]:.0f}" if level.low[at] > 0 else "lost" for level in levels),
        ]
        for at, word in enumerate(shown["words"][:rows])
    ]
    caught = [
        "one phone is recognised in at most",
        "",
        *(at_most(level.promised) for level in levels),
    ]
    head = "".join(f"<th scope=col>{name}</th>" for name in ("word", "true", *names))
    body = "".join(
        f"<tr><th scope=row>{html.escape(first)}</th>"
        + "".join(f"<td>{html.escape(text)}</td>" for text in rest)
        + "</tr>"
        for first, *rest in [*lines, caught]
    )
    caption = "Phones that hold each word, as decoded; “lost” cannot be told from 0"
    return (
        f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table>"
    )
