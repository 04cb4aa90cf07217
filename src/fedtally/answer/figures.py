"""What all figures need: an empty figure, colours, fonts, ticks, and writing to a file.

Drawing needs matplotlib (extra ``plot``), which is imported inside functions. Figures are made
without pyplot, so no global state changes, no figure stays in memory, and no display is needed. The
colours are from Okabe and Ito (2008): colour-blind readers can tell them apart, even in grey.
"""

from __future__ import annotations

import io
import math
import os
import re
import warnings
from collections.abc import Callable, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtally.base.archive import replacing
from fedtally.base.text import UNKNOWN, escaped
from fedtally.errors import InvalidInputError, MissingExtraError

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")
BLUE, ORANGE, GREY, DARK = "#0072B2", "#D55E00", "#5F5F5F", "#1A1A1A"
NARROW = 4.0  # inches, the width of a figure for a phone: its text gets the size of the page's text
_NO_LETTERS = re.compile("last ?resort|color", re.IGNORECASE)  # fonts of boxes or of emoji


def check(path: str | os.PathLike[str]) -> None:
    """Raise an error unless `path` ends in .png, .svg or .pdf, and matplotlib is installed.

    Call it before a long run. Otherwise the error would come after the run.

    Raises:
        MissingExtraError: matplotlib is not installed.
        InvalidInputError: the path has another suffix.

    >>> check("answer.gif")
    Traceback (most recent call last):
    ...
    fedtally.errors.InvalidInputError: a plot must end in .png, .svg or .pdf, got 'answer.gif'
    """
    if Path(path).suffix.lower() not in FORMATS:
        raise InvalidInputError(f"a plot must end in .png, .svg or .pdf, got {os.fspath(path)!r}")
    new_figure(1.0, 1.0)


def inches_across(narrow: bool) -> float:
    """Return the width of a whole figure in inches: 4 for a phone (`narrow`), else 7."""
    return NARROW if narrow else 7.0


def label_ticks(axis: Axis, label: Callable[[float, object], str]) -> None:
    """Put ticks with labels at round numbers of a logarithmic axis, at least four of them.

    Args:
        axis: the axis, with its limits set.
        label: a function that returns the text of a tick. It gets the value, and the tick's index,
            as matplotlib's formatters do.
    """
    low, high = axis.get_view_interval()
    axis.set_ticks(_round_numbers(low, high))
    axis.set_major_formatter(label)
    axis.set_minor_formatter("")


def _round_numbers(low: float, high: float) -> list[float]:
    """Return at least four round numbers from `low` to `high`, rising; both must be above 0.

    The ratios between neighbours are about equal. If `low` and `high` are too close for this, the
    differences between neighbours are equal.

    >>> _round_numbers(0.9, 2000), _round_numbers(90, 700)
    ([1.0, 10.0, 100.0, 1000.0], [100.0, 150.0, 200.0, 300.0, 500.0, 700.0])
    >>> _round_numbers(21, 34)
    [22.0, 24.0, 26.0, 28.0, 30.0, 32.0, 34.0]
    """
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for leading in ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)):
        found = [digit * 10.0**power for power in decades for digit in leading]
        within = [number for number in found if low <= number <= high]
        if len(within) >= 4:
            return within
    power = 10.0 ** math.floor(math.log10((high - low) / 4))
    step = max(digit * power for digit in (1, 2, 5) if digit * power <= (high - low) / 4)
    return [step * place for place in range(math.ceil(low / step), math.floor(high / step) + 1)]


def written(figure: Figure, path: str | os.PathLike[str] | None) -> Figure:
    """Return the figure; if `path` is not None, first write it there, whole or not at all."""
    if path is not None:
        check(path)
        with replacing(path) as temporary:
            figure.savefig(temporary, format=Path(path).suffix.lower()[1:], dpi=150)
    return figure


def note_above(figure: Figure, note: str) -> None:
    """Write a note above a figure, in small orange letters; nothing if the note is "".

    The note may contain labels of rounds in any script, so fonts are chosen for its letters.
    """
    if note:
        families, drawn = fonts_for(note)
        text = drawable(note, drawn).replace("$", r"\$")
        look: dict[str, Any] = {"fontsize": "small", "color": ORANGE, "fontfamily": families}
        figure.suptitle(text, x=0.99, ha="right", **look)


def drawable(label: str | int, drawn: Set[int]) -> str:
    """Return a label in which each letter that no font can show is a replacement character.

    Control characters are escaped first.

    Args:
        label: the label: a text or a number.
        drawn: the code points that the fonts can show.
    """
    letters = escaped(str(label))
    return "".join(letter if ord(letter) in drawn else UNKNOWN for letter in letters)


def fonts_for(text: str) -> tuple[list[str], set[int]]:
    """Return names of fonts for the letters of a text, and the code points that these fonts have.

    The fonts of matplotlib's settings (`font.family`) come first. Other fonts of this machine
    follow if they have letters that the earlier ones lack.
    """
    import matplotlib as mpl
    from matplotlib import font_manager

    def shown(name: str) -> set[int]:
        # The letters of the one font that matplotlib chooses for this family: it draws with no
        # other font of the family.
        path = font_manager.findfont(font_manager.FontProperties(family=[name]))
        return set(font_manager.get_font(path).get_charmap())

    families = list(font_manager.FontProperties().get_family())
    drawn = set().union(*map(shown, families))
    lacking = set(map(ord, text)) - drawn
    own = mpl.get_data_path()  # fonts in matplotlib's own folder are for formulas
    others = {  # upright fonts of usual weight: matplotlib warns if a family has none
        font.name
        for font in font_manager.fontManager.ttflist
        if font.weight in (400, "normal")
        and font.style == "normal"
        and not font.fname.startswith(own)
    }
    for name in sorted(others):
        if lacking and not _NO_LETTERS.search(name) and lacking & (found := shown(name)):
            families.append(name)
            drawn |= found
            lacking -= found
    return families, drawn


def as_svg(figure: Figure) -> bytes:
    """Return a figure as an SVG document, without the time at which it was drawn.

    >>> as_svg(new_figure(1.0, 1.0)[0])[:5]
    b'<?xml'
    """
    stream = io.BytesIO()
    with warnings.catch_warnings():  # no warning of a glyph that no font has: a box is drawn
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure.savefig(stream, format="svg", metadata={"Date": None})
    return stream.getvalue()


def new_figure(width: float, height: float, ratios: Sequence[int] = (1,)) -> list[Any]:
    """Return a list: an empty figure, and its panels from left to right.

    The panels share the vertical axis.

    Args:
        width: the width of the figure in inches.
        height: the height of the figure in inches.
        ratios: the relative width of each panel.
    """
    figure = empty_figure(width, height)
    panels = figure.subplots(1, len(ratios), sharey=True, squeeze=False, width_ratios=ratios)
    for axes in panels.flat:
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_axisbelow(True)  # draw the grid behind the bars
    return [figure, *panels.flat]


def empty_figure(width: float, height: float) -> Figure:
    """Return a figure without panels, `width` x `height` in inches.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError(
            "charts need matplotlib, which is not installed: pip install 'fedtally[plot]'"
        ) from error

    class Shown(Figure):
        """A figure that a notebook shows even if nothing has imported pyplot."""

        def _repr_png_(self) -> bytes:
            written = io.BytesIO()
            self.savefig(written, format="png")
            return written.getvalue()

    return Shown(figsize=(width, height), layout="constrained")
