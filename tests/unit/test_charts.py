"""Figures: what is drawn, where it is written, and what is said without matplotlib."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fedtally.answer import charts, maps
from fedtally.errors import InvalidInputError, MissingExtraError


class Item(NamedTuple):
    item: str | int
    frequency: float
    low: float | None = None
    high: float | None = None
    population_low: float | None = None
    population_high: float | None = None


ITEMS = [
    Item("tea", 0.5),
    Item(7, 0.25),
    Item("a$b$ \x1b[31m" + "x" * 99, 0.125),
    Item("rare", -0.001),
]


@pytest.fixture(autouse=True)
def fonts(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Leave the fonts that come with matplotlib, whatever the machine has, and return them."""
    if find_spec("matplotlib") is None:
        return []
    import matplotlib as mpl
    from matplotlib import font_manager

    manager = font_manager.fontManager
    own = [font for font in manager.ttflist if font.fname.startswith(mpl.get_data_path())]
    monkeypatch.setattr(manager, "ttflist", own)
    return own


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
    assert labels[2] == r"a\$b\$ \x1b[31mx…xxxxxxxxxxxxxx"  # 30 columns
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
    assert legend_of(figure) == ["estimated", "90 %: among these clients"]


def legend_of(figure: Any) -> list[str]:
    [legend] = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def test_pale_bars_behind_the_limits_are_of_more_people() -> None:
    pytest.importorskip("matplotlib")
    items = [Item("tea", 0.5, 0.4, 0.6, 0.3, 0.7), Item("milk", 0.25, 0.25, 0.25, 0.125, 0.375)]
    figure = charts.top_items(items, 1000, confidence=0.95, unit="people", truth=[0.5, 0.25])
    axes: Any = figure.axes[0]
    bars, pale = axes.containers
    assert [(bar.get_x(), bar.get_width()) for bar in pale] == [
        (pytest.approx(30), pytest.approx(40)),
        (12.5, 25),
    ]
    # the bar is behind, the line in front
    [lines] = axes.collections
    assert bars[0].get_zorder() < pale[0].get_zorder() < lines.get_zorder()
    assert legend_of(figure) == [
        "estimated",
        "95 %: among these people",
        "95 %: if they stand for more people",
        "true",
    ]
    # exact counts have no width among the clients, and still stand for more
    exact = charts.top_items(items[1:], 1000)
    assert not exact.axes[0].collections and len(exact.axes[0].containers) == 2
    assert legend_of(exact) == ["estimated", "limits: if they stand for more people"]


def test_what_cannot_be_told_from_zero_has_no_bar() -> None:
    """A thin line, with an end at the most that it may be alone."""
    pytest.importorskip("matplotlib")
    sure = Item("tea", 0.5, 0.4, 0.6, 0.3, 0.7)
    rare, none = Item("rare", 0.1, 0.0, 0.2, 0.0, 0.25), Item("none", 0.0, 0.0, 0.0, 0.0, 0.125)
    doubtful = [False, True, False]
    axes: Any = charts.top_items([sure, rare, none], 1000, doubtful=doubtful).axes[0]
    assert [bar.get_width() for bar in axes.containers[0]] == [50.0, 0.0, 0.0]
    [lines] = axes.collections
    wide, thin, _ = lines.get_linewidths()
    assert lines.get_segments()[1].tolist() == [[0, 1], [20, 1]] and thin < wide
    ends = [tuple(end) for end in axes.lines[0].get_xydata().tolist()]
    assert (20.0, 1.0) in ends and (0.0, 1.0) not in ends
    pale = [bar.get_height() for bar in axes.containers[1]]
    assert pale[1] < pale[0] == pale[2]  # a count that is exactly 0 is told from 0


def test_a_legend_names_no_bar_that_is_not_there() -> None:
    """Nor are there clients where there is one."""
    pytest.importorskip("matplotlib")
    rare = Item("rare", 0.1, 0.0, 0.2, 0.0, 0.25)
    figure = charts.top_items([rare], 1, doubtful=[True], confidence=0.95)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "95 %: among this one client",
        "95 %: if they stand for more people",
    ]
    assert figure.axes[0].get_xlabel() == "share of 1 client, in %"
    figure = charts.top_items([rare], 2, doubtful=[False], confidence=0.95)
    named = [text.get_text() for text in figure.legends[0].get_texts()]
    assert named[:2] == ["estimated", "95 %: among these clients"]


def test_a_title_names_an_item_that_is_surely_the_most_frequent() -> None:
    pytest.importorskip("matplotlib")
    first, second, third = (
        Item(name, f, f - 0.01, f + 0.01)
        for name, f in (("tea $1", 0.5123), ("b", 0.3), ("c", 0.29))
    )
    for listed, title in (
        ([first, second, third], r"The most frequent is tea \$1: 51.2 %"),
        ([second, third], "Most frequent items"),  # their limits meet
        ([first], "Most frequent items"),
        ([Item("tea", 0.5), Item("b", 0.3)], "Most frequent items"),  # nobody knows
    ):
        assert charts.top_items(listed, 1000).axes[0].get_title(loc="left") == title
    narrow = charts.top_items([first, second], 1000, narrow=True)
    assert narrow.axes[0].get_title(loc="left").splitlines()[0] == "The most frequent is tea"


def test_a_second_panel_shows_the_errors_where_the_truth_is_known() -> None:
    pytest.importorskip("matplotlib")
    drinks = [Item("tea", 0.5, 0.4, 0.625), Item("milk", 0.25)]
    errors: Any = charts.top_items(drinks, 1000, truth=[0.375, 0.5]).axes[1]
    assert "truth" in errors.get_title(loc="left")
    assert errors.lines[0].get_xdata() == pytest.approx([2.5, 25.0])  # milk has no limits
    assert list(errors.lines[1].get_xdata()) == [12.5, -25.0]
    # without the truth it would repeat the limits; a phone has no room for it
    assert len(charts.top_items(drinks, 1000).axes) == 1
    assert len(charts.top_items(drinks, 1000, truth=[0.375, 0.5], narrow=True).axes) == 1


LONG = "https://example.org/shop/checkout/step-%d?campaign=summer"
AWKWARD = [
    *(LONG % number for number in (1, 2)),
    "日本語" * 30,
    "\u200b\ufdd0 \x1b[31m",
    "$x_1$",
    "W" * 30,
    "مرحبا",
]


@pytest.mark.parametrize("has_truth", [False, True])
@pytest.mark.parametrize("has_limits", [False, True])
@pytest.mark.filterwarnings("error")  # matplotlib warns of letters that the font lacks
def test_any_item_fits_and_is_drawn(has_truth: bool, has_limits: bool, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    limits = (0.499944, 0.500056, 0.49, 0.51) if has_limits else ()
    items = [Item(item, 0.5, *limits) for item in [*AWKWARD, 12345678901]]
    figure = charts.top_items(
        items,
        123_456_789,
        truth=[0.5] * len(items) if has_truth else None,
        confidence=0.95,
        note="not private",
        unit="contributions",
        path=tmp_path / "top.png",
    )
    assert_texts_fit(figure)
    axes = figure.axes[0]
    shown = [label.get_text() for label in axes.get_yticklabels()]
    assert shown[0] == "https://exampl…ampaign=summer"
    assert shown[2] == "3. ������…������" and shown[3] == r"\u200b\ufdd0 \x1b[31m"
    assert "�: not in the fonts; numbers are ranks" in axes.get_xlabel()
    # at least a third of the figure is left for what is drawn
    assert sum(axes.get_window_extent().width for axes in figure.axes) > figure.bbox.width / 3


@pytest.mark.parametrize("size", [1.0, 1.8e-2, 1.8e-4, 1e-6])
def test_errors_of_any_size_have_numbers_apart(size: float) -> None:
    pytest.importorskip("matplotlib")
    names = ("self", "if", "return", "def")
    low, high = 0.5 - 0.45 * size, 0.5 + 0.48 * size
    items = [Item(name, 0.5, low, high, low / 2, high * 1.1) for name in names]
    figure = charts.top_items(items, 1000, truth=[0.5] * len(items))
    assert_texts_fit(figure)


@pytest.mark.filterwarnings("error")
def test_letters_of_a_further_font_are_drawn(tmp_path: Path) -> None:
    """A letter that another font of the settings has is no letter that is missing."""
    pytest.importorskip("matplotlib")
    import matplotlib as mpl

    narrow = "STIXGeneral"  # comes with matplotlib, and has no Arabic letters
    for fonts, shown in (([narrow], "1. �����"), ([narrow, "DejaVu Sans"], "مرحبا")):
        with mpl.rc_context({"font.family": fonts}):
            figure = charts.top_items([Item("مرحبا", 0.5)], 10, path=tmp_path / "top.png")
        axes = figure.axes[0]
        assert axes.get_yticklabels()[0].get_text() == shown
        assert ("not in the fonts" in axes.get_xlabel()) == ("�" in shown)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["Other", "Last Resort", "Noto Color Emoji"])
def test_letters_of_another_font_of_the_machine_are_drawn(
    name: str, fonts: list[Any], tmp_path: Path
) -> None:
    """A font with these names has no letters, or none that matplotlib draws."""
    pytest.importorskip("matplotlib")
    import matplotlib as mpl
    from matplotlib import font_manager

    [known] = [font for font in fonts if font.fname.endswith("DejaVuSans.ttf")]
    copy = tmp_path / "other.ttf"
    copy.write_bytes(Path(known.fname).read_bytes())
    fonts[:] = [font for font in fonts if font.name == "STIXGeneral"]
    fonts.append(font_manager.FontEntry(fname=str(copy), name=name))
    with mpl.rc_context({"font.family": ["STIXGeneral"]}):
        figure = charts.top_items([Item("مرحبا", 0.5)], 10, path=tmp_path / "top.png")
    label = figure.axes[0].get_yticklabels()[0]
    assert label.get_text() == ("مرحبا" if name == "Other" else "1. �����")
    assert (name in label.get_fontfamily()) == (name == "Other")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("narrow", [False, True], ids=["screen", "phone"])
def test_labels_without_letters_are_told_apart(narrow: bool, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    odd = ["日本語", "中文字", "a\tb", "a\nb", "a\x1bb", "한국어" * 9]
    items = [Item(item, 0.1, 0.05, 0.15, 0.01, 0.2) for item in odd]
    figure = charts.top_items(items, 10, narrow=narrow, path=tmp_path / "top.png")
    assert_texts_fit(figure)
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels[:5] == ["1. ���", "2. ���", r"a\tb", r"a\nb", r"a\x1bb"]
    assert labels[5].startswith("6. ��") and len(set(labels)) == 6


def test_a_long_title_fits() -> None:
    pytest.importorskip("matplotlib")
    title = "2,993,123 clients in 1,000 rounds, 15 rows, median recovery, epsilon 1; median, 10 %"
    figure = charts.error_against_bytes(
        {"hybrid": [charts.Point(2000, 0.01, 0.01, 0.01)]}, {}, title=f"{title} and 90 %"
    )
    assert_texts_fit(figure)


def assert_texts_fit(figure: Any) -> None:
    """Check that every text of a figure is within it, and that none overlaps another one."""
    figure.draw_without_rendering()
    texts = list(figure.legends)
    texts += [figure._suptitle] if figure._suptitle else []
    for axes in figure.axes:
        texts += [axes._left_title, axes.xaxis.label, axes.yaxis.label]
        low, high = axes.get_xlim()  # ticks beyond the ends are not drawn
        texts += [each for each in axes.get_xticklabels() if low <= each.get_position()[0] <= high]
        texts += axes.get_yticklabels()
    boxes = [text.get_window_extent() for text in texts if text.get_visible()]
    boxes = [box for box in boxes if box.width > 0]
    assert len(boxes) > 5
    for box in boxes:
        assert box.x0 >= 0 and box.y0 >= 0
        assert box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


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

    options: dict[str, Any] = {"width": 99, "seed": 1}
    result = fedtally.estimate(["tea"] * 3 + ["milk"], **options)
    figure = result.plot(tmp_path / "top.png", k=1)
    assert len(figure.axes[0].containers[0]) == 1
    assert (tmp_path / "top.png").exists()
    known = fedtally.estimate(["tea"] * 3 + ["milk"], evaluate=True, **options)
    panel = known.plot(estimates=known.estimates(["milk"])).axes[1]
    assert "truth" in panel.get_title(loc="left")
    assert list(panel.lines[-2].get_xdata()) == [0.0]


def test_errors_that_are_all_zero_are_drawn() -> None:
    """A logarithmic axis has no room for them, and matplotlib would warn."""
    pytest.importorskip("matplotlib")
    curve = {"hybrid": [charts.Point(1e3, 0.0, 0.0, 0.0), charts.Point(5e3, 0.0, 0.0, 0.0)]}
    figure = charts.error_against_bytes(curve, {})
    assert figure.axes[0].get_yscale() == "linear"
    figure.draw_without_rendering()


def test_a_curve_says_where_its_error_is_0() -> None:
    pytest.importorskip("matplotlib")
    points = [
        charts.Point(1e3, 0.01, 0.0, 0.02),
        charts.Point(2e3, 0, 0, 0),
        charts.Point(4e3, 0, 0, 0),
    ]
    other = [charts.Point(1e3, 0.01, 0.008, 0.012)]
    figure = charts.error_against_bytes(
        {"hybrid": points, "fresh": other}, {}, title="7 rows\nmedian of 10 repeats"
    )
    shown = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert shown == ["hybrid: 0 from 2 kB", "fresh"]
    assert figure.axes[0].get_title(loc="left") == "7 rows\nmedian of 10 repeats"


def test_a_notebook_shows_a_figure_without_pyplot() -> None:
    pytest.importorskip("matplotlib")
    figure: Any = charts.top_items(ITEMS, 1000)
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_a_map_shows_every_cell_in_the_shape_that_it_has_there() -> None:
    """At 60 degrees north a degree of longitude is half as long as one of latitude."""
    pytest.importorskip("matplotlib")
    places = [(59.5 + 0.1 * row, 10.0 + 0.1 * column) for row in range(11) for column in range(5)]
    shares = [0.01 * (number + 1) for number in range(len(places))]
    figure = maps.cell_map(places, shares, 0.1)
    whole, bar = figure.axes
    assert whole.get_aspect() == pytest.approx(2.0, rel=1e-3)
    [cells] = [one for one in whole.collections if len(one.get_paths()) == len(places)]
    values = cells.get_array()
    assert sorted(values) == pytest.approx([100 * share for share in shares])
    corners = cells.get_paths()[int(values.argmax())].vertices
    assert corners.min(axis=0) == pytest.approx([10.35, 60.45])  # of the most frequent cell
    assert bar.get_ylabel() == "% of clients"
    figure.canvas.draw()
    drawn = [text.get_text() for text in bar.get_yticklabels() if text.get_text()]
    assert len(drawn) >= 2 and not any("e" in text for text in drawn)


def test_a_flat_map_names_few_latitudes() -> None:
    """More of them would overlap."""
    pytest.importorskip("matplotlib")
    places = [(-0.5, -159.5), (0.5, 159.5), (-16.5, 30.5), (-17.5, -59.5)]  # around the globe
    for narrow in (False, True):
        whole = maps.cell_map(places, [0.4, 0.3, 0.2, 0.1], 1.0, narrow=narrow).axes[0]
        whole.figure.canvas.draw()
        low, high = sorted(whole.get_ylim())
        assert 1 <= sum(low <= place <= high for place in whole.get_yticks()) <= 2


def test_cells_on_both_sides_of_the_date_line_lie_beside_each_other() -> None:
    pytest.importorskip("matplotlib")
    fiji = [(-16.5, 178.5), (-17.5, 179.5), (-18.5, -179.5), (-16.5, -178.5)]
    figure = maps.cell_map(fiji, [0.4, 0.3, 0.2, 0.1], 1.0)
    whole = figure.axes[0]
    west, east = whole.get_xlim()
    assert 177 < west < 178.0 and 182.0 < east < 183
    figure.canvas.draw()
    named = {text.get_text() for text in whole.get_xticklabels()}
    assert {"179° E", "180°", "179° W"} <= named
    assert not maps.has_closer_views(fiji, [0.4, 0.3, 0.2, 0.1], 1.0)
    # a map of the world begins in the west, and one of elsewhere stays
    for places in ([(0.0, -170.0), (0.0, -60.0), (0.0, 50.0), (0.0, 170.0)], [(1.0, 200.0)]):
        assert maps._side_by_side(places).tolist() == [list(place) for place in places]


def test_a_map_shows_crowds_closer() -> None:
    pytest.importorskip("matplotlib")
    crowds = [(40.0, -74.0), (34.0, -118.0), (41.9, -87.7), (29.8, -95.4)]
    near = [(0.0, 0.0), (0.1, 0.0), (0.0, 0.1), (0.1, 0.1), (0.2, 0.1)]
    places = [(y + dy, x + dx) for y, x in crowds for dy, dx in near] + [(47.0, -122.0)]
    shares = [0.5 ** (1 + number // len(near)) / 5 for number in range(len(places))]
    for narrow, views in ((False, 3), (True, 2)):
        whole, *others = maps.cell_map(places, shares, 0.1, narrow=narrow).axes
        closer = others[:-1]  # the last is the colour bar
        assert len(closer) == len(whole.patches) == views
        for (south, west), view, frame in zip(crowds, closer, whole.patches, strict=False):
            assert len(view.collections[0].get_paths()) == len(near)
            assert view.get_xlim()[0] < west < view.get_xlim()[1]
            assert view.get_ylim()[0] < south < view.get_ylim()[1]
            assert frame.get_xy() == pytest.approx((view.get_xlim()[0], view.get_ylim()[0]))
    assert maps.has_closer_views(places, shares, 0.1)
    assert not maps.has_closer_views(places[: len(near)], shares[: len(near)], 0.1)
