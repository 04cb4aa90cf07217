"""Figures: what is drawn, where it is written, and what is said without matplotlib."""

from __future__ import annotations

import sys
from itertools import pairwise
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


ITEMS = [
    Item("tea", 0.5),
    Item(7, 0.25),
    Item("a$b$ \x1b[31m" + "x" * 99, 0.125),
    Item("rare", -0.001),
]


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
    figure = charts.top_items(
        [Item("tea", 0.5, 0.4, 0.6), Item("milk", 0.25)], 1000, confidence=0.9
    )
    axes: Any = figure.axes[0]
    assert axes.lines[0].get_xdata().tolist() == [40.0, 60.0]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "90 % interval",
        "estimated",
    ]


@pytest.mark.parametrize(
    ("suffix", "start"),
    [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF"), (".PNG", b"\x89PNG")],
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
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "one-hot",
        "hybrid",
        "fresh",
    ]
    first = axes.lines[0]
    assert list(first.get_ydata()) == [1.0, 0.2]  # in percent, by rising bytes
    assert (tmp_path / "s.png").stat().st_size > 5000


def test_a_narrow_axis_is_labelled() -> None:
    pytest.importorskip("matplotlib")
    figure = charts.error_against_bytes(
        {"hybrid": [charts.Point(2000, 0.01, 0.01, 0.01), charts.Point(4000, 0.005, 0.004, 0.006)]},
        {},
    )
    figure.canvas.draw()
    axes: Any = figure.axes[0]
    labels = [label.get_text() for label in axes.get_xticklabels(which="both")]
    assert "2 kB" in labels


def labels(axis: Any) -> list[str]:
    axis.figure.canvas.draw()
    return [label.get_text() for label in axis.get_ticklabels()]


def test_a_plan_stands_out_among_predictions(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    median = [(4000.0, 0.001), (1000.0, 0.01), (9000.0, 0.0)]
    figure = charts.error_against_bytes(
        {"hybrid": [charts.Point(2000, 0.006, 0.005, 0.007)]},
        {},
        marked={
            "plan": charts.Point(3000, 0.002, 0.001, 0.004),
            "other": charts.Point(3500, 0.003, 0.003, 0.003),
        },
        predicted={"predicted, median": median, "predicted, 90 %": median},
        target=0.005,
        path=tmp_path / "plan.svg",
    )
    axes: Any = figure.axes[0]
    lines = {line.get_label(): line for line in axes.lines}
    # in order, and 0 left out
    assert list(lines["predicted, median"].get_xdata()) == [1000.0, 4000.0]
    assert list(lines["predicted, median"].get_ydata()) == [1.0, 0.1]
    assert lines["predicted, median"].get_linestyle() != lines["predicted, 90 %"].get_linestyle()
    assert set(lines["asked for"].get_ydata()) == {0.5}
    plan, other = (
        container for container in axes.containers if container.get_label() in ("plan", "other")
    )
    assert plan.lines[0].get_marker() == "*"
    assert list(plan.lines[0].get_ydata()) == [0.2]
    assert {tuple(end) for end in plan.lines[2][0].get_segments()[0].tolist()} == {
        (3000.0, 0.1),
        (3000.0, 0.4),
    }
    assert plan.lines[0].get_zorder() > max(
        line.get_zorder() for line in lines.values() if line.get_marker() != "*"
    )
    assert plan.lines[0].get_color() != other.lines[0].get_color()
    names = {text.get_text() for text in axes.get_legend().get_texts()}
    assert names == {"hybrid", "plan", "other", "predicted, median", "predicted, 90 %", "asked for"}


@pytest.mark.parametrize("high", [0.0, 0.004])
def test_an_exact_plan_stands_at_the_lower_end(high: float) -> None:
    pytest.importorskip("matplotlib")
    figure = charts.error_against_bytes(
        {},
        {},
        marked={"plan": charts.Point(3000, 0.0, 0.0, high)},
        predicted={"predicted": [(1e3, 0.01), (2e3, 0.001)]},
    )
    axes: Any = figure.axes[0]
    [plan] = axes.containers
    assert plan.get_label() == "plan: 0"
    [y] = plan.lines[0].get_ydata()
    assert 0.01 < y < 0.1  # below what is predicted, and on the axis, in percent
    assert axes.get_ylim()[0] < y
    assert plan.lines[2][0].get_segments()[0][1][1] == pytest.approx(max(y, 100 * high))


@pytest.mark.parametrize("ratio", [1.01, 1.3, 2.0, 5.0, 30.0, 1e6])
@pytest.mark.parametrize("start", [870.0, 9990.0])
def test_axes_of_any_reach_have_labels(start: float, ratio: float) -> None:
    pytest.importorskip("matplotlib")
    points = [charts.Point(x, x / 1e11, x / 1e11, x / 1e11) for x in (start, start * ratio)]
    figure = charts.error_against_bytes({"hybrid": points}, {})
    axes: Any = figure.axes[0]
    for axis in (axes.xaxis, axes.yaxis):
        shown = labels(axis)
        assert 4 <= len(shown) <= 12
        assert len(set(shown)) == len(shown)
        assert not [
            label.get_text() for label in axis.get_ticklabels(minor=True) if label.get_text()
        ]
    boxes = [label.get_window_extent() for label in axes.get_xticklabels()]
    assert all(one.x1 < next.x0 for one, next in pairwise(boxes))


def test_nothing_but_an_exact_plan_is_a_figure(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    charts.error_against_bytes(
        {}, {}, marked={"plan": charts.Point(3000, 0.0, 0.0, 0.0)}, path=tmp_path / "p.pdf"
    )
    assert (tmp_path / "p.pdf").stat().st_size > 1000


def test_plot_of_a_result(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    import fedtally

    result = fedtally.estimate(["tea"] * 3 + ["milk"], width=99, seed=1)
    figure = result.plot(tmp_path / "top.png", k=1)
    assert len(figure.axes[0].patches) == 1
    assert (tmp_path / "top.png").exists()
