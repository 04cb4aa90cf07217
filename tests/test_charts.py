"""Figures: what is drawn, where it is written, and what is said without matplotlib."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fedtally import charts
from fedtally.errors import InvalidInputError, MissingExtraError


class Item(NamedTuple):
    item: str | int
    frequency: float
    low: float | None = None
    high: float | None = None


ITEMS = [Item("tea", 0.5), Item(7, 0.25), Item("a$b$ \x1b[31m" + "x" * 99, 0.125), Item("rare", -0.001)]


def test_a_missing_matplotlib_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'fedtally\[plot\]'"):
        charts.top_items(ITEMS, 100)


def test_bars_are_estimates_and_marks_are_the_truth() -> None:
    pytest.importorskip("matplotlib")
    figure = charts.top_items(ITEMS, 1000, truth=[0.4, 0.3, 0.1, 0.0])
    axes: Any = figure.axes[0]
    assert [bar.get_width() for bar in axes.patches] == [50.0, 25.0, 12.5, -0.1]
    assert list(axes.lines[0].get_xdata()) == [40.0, 30.0, 10.0, 0.0]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels[:2] == ["tea", "7"]
    assert len(labels[2]) <= 40
    assert "\x1b" not in labels[2]
    low, high = axes.get_ylim()
    assert low > high  # the first item is on top
    assert "1,000 clients" in axes.get_xlabel()


def test_intervals_are_drawn_where_there_are_any() -> None:
    pytest.importorskip("matplotlib")
    figure = charts.top_items([Item("tea", 0.5, 0.4, 0.6), Item("milk", 0.25)], 1000, confidence=0.9)
    axes: Any = figure.axes[0]
    assert axes.lines[0].get_xdata().tolist() == [40.0, 60.0]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["90 % interval", "estimated"]


@pytest.mark.parametrize(
    ("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF"), (".PNG", b"\x89PNG")]
)
def test_files_are_what_their_names_say(tmp_path: Path, suffix: str, start: bytes) -> None:
    pytest.importorskip("matplotlib")
    target = tmp_path / f"top{suffix}"
    charts.top_items(ITEMS, 1000, path=target)
    assert target.read_bytes().startswith(start)
    assert list(tmp_path.iterdir()) == [target]


def test_other_formats_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(InvalidInputError, match=r"\.png, \.svg or \.pdf"):
        charts.top_items(ITEMS, 1000, path=tmp_path / "top.gif")
    assert list(tmp_path.iterdir()) == []


def test_nothing_to_draw_is_an_empty_figure() -> None:
    pytest.importorskip("matplotlib")
    assert list(charts.top_items([], 10).axes[0].patches) == []


def test_curves_have_bands_and_exact_methods_a_line(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    points = [charts.Point(8000, 0.002, 0.001, 0.003), charts.Point(1000, 0.01, 0.008, 0.012)]
    figure = charts.error_against_bytes(
        {"hybrid": points, "fresh": points}, {"one-hot": 90_000}, path=tmp_path / "s.png"
    )
    axes: Any = figure.axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["one-hot (exact)", "hybrid", "fresh"]
    first = axes.lines[0]
    assert list(first.get_ydata()) == [1.0, 0.2]  # in percent, by rising bytes
    assert (tmp_path / "s.png").stat().st_size > 5000


def test_a_narrow_axis_is_labelled() -> None:
    pytest.importorskip("matplotlib")
    figure = charts.error_against_bytes(
        {"hybrid": [charts.Point(2000, 0.01, 0.01, 0.01), charts.Point(4000, 0.005, 0.004, 0.006)]}, {}
    )
    figure.canvas.draw()
    axes: Any = figure.axes[0]
    labels = [label.get_text() for label in axes.get_xticklabels(which="both")]
    assert "2 kB" in labels


def test_plot_of_a_result(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    import fedtally

    result = fedtally.estimate(["tea"] * 3 + ["milk"], width=99, seed=1)
    figure = result.plot(tmp_path / "top.png", k=1)
    assert len(figure.axes[0].patches) == 1
    assert (tmp_path / "top.png").exists()
