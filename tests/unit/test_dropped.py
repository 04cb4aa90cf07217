"""What is left out of rows adds up over parts, is hidden under privacy, and survives a header."""

import json
from functools import reduce
from operator import add

import fedtally
from fedtally.base.dropped import NOTHING, Draw, Dropped
from fedtally.sources import from_items

PARTS = [
    Dropped(1, 2, Draw(10, 3, 14, 12, 4)),
    Dropped(0, 5),
    Dropped(7, 0, Draw(2, 1, 8, 2, 7)),
]


def test_parts_add_up_in_any_order() -> None:
    whole = Dropped(8, 7, Draw(12, 4, 22, 14, 7))
    assert reduce(add, PARTS) == reduce(add, reversed(PARTS)) == whole
    assert sum(PARTS, NOTHING) == whole
    assert NOTHING + PARTS[1] == PARTS[1]  # nothing was drawn: no draw of nobody


def test_under_privacy_nothing_is_told() -> None:
    for part in PARTS:
        assert part.told(is_private=True) == (0, 0, None)
        assert part.told(is_private=False) == part


def test_a_header_says_all_of_it() -> None:
    for part in (*PARTS, NOTHING):
        assert Dropped.of_header(json.loads(json.dumps(part.header()))) == part


def test_what_an_answer_says_is_what_was_left_out() -> None:
    items, clients = ["tea", "rice", "tea", None, "gin"], ["ann", "ann", "bob", "cy", "dee"]
    result = fedtally.estimate(
        items, clients=clients, domain=["tea", "rice"], outside="drop", seed=1
    )
    assert result.missing == 1
    assert result.draw == {
        "max_items": 1, "pairs": 3, "drawn_away": 1, "share_with_several": 0.5,
        "max_items_for_all": 2,
    }  # fmt: skip
    assert any("1 of 5 rows skipped: outside the domain" in note for note in result.warnings)
    [batch] = from_items(items).batches()
    assert batch.dropped == Dropped(incomplete=1)
