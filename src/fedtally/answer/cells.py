"""Make the cells of a CSV file safe: no spreadsheet runs them, or shows their letters reversed.

Items may be written by strangers. A spreadsheet takes a cell that begins with "=" as a formula,
even if quotes surround it, and a formula can send other cells to a stranger. An apostrophe at the
start of a cell tells the spreadsheet that the cell is text (OWASP, "CSV Injection").
"""

from __future__ import annotations

from typing import Any

from fedtally.base.text import FORMULA_SIGNS

# _FORMULA matches a character that begins a formula: at the start of a cell, or after a character
# that some programs take as the end of a cell.
# _DROPPED matches a leading tab or carriage return, which some programs remove before they look for
# a formula.
_FORMULA = rf"(^|[;\t\r\n])([\"']*[{FORMULA_SIGNS}])"
_DROPPED = r"^()([\"']*[\t\r])"
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
# A cell of numbers alone never changes, even if it begins with "-". A cell of a grid is two
# numbers: latitude,longitude.
_NUMBERS = rf"^{_NUMBER}(?:,{_NUMBER})*$"
# Invisible characters that change the direction in which text is shown -> their written escapes.
_TURNS = {
    chr(code): f"\\u{code:04x}"
    for code in (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}


def as_text(table: Any) -> tuple[Any, int]:
    r"""Return a table whose text no spreadsheet runs as a formula, and the number of changed cells.

    A cell that begins like a formula gets an apostrophe at its start. If a formula could begin
    inside a cell, after a semicolon, tab or line break, an apostrophe is put before the formula.
    Invisible characters that change the direction of text are written as escapes such as \u202e.
    Cells that are numbers do not change, even in a column of text. Columns that are not text do not
    change.

    Args:
        table: a `pyarrow.Table`.

    >>> import pyarrow as pa
    >>> table, changed = as_text(pa.table({"item": ["tea", "=1+1", "-5", "a\u202eb"]}))
    >>> table["item"].to_pylist(), changed
    (['tea', "'=1+1", '-5', 'a\\u202eb'], 2)
    """
    import pyarrow as pa

    changed = 0
    for place, field in enumerate(table.schema):
        column, kind = table.column(place), field.type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
            column = column.cast(kind)
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            column, count = _column_as_text(column)
            table = table.set_column(place, field.name, column)
            changed += count
    return table, changed


def _column_as_text(column: Any) -> tuple[Any, int]:
    import pyarrow.compute as pc

    text = column
    for runs in (_FORMULA, _DROPPED):
        text = pc.replace_substring_regex(text, runs, r"\1'\2")
    text = pc.if_else(pc.match_substring_regex(column, _NUMBERS), column, text)
    for letter, written in _TURNS.items():
        text = pc.replace_substring(text, letter, written)
    changed = pc.sum(pc.cast(pc.not_equal(text, column), "int64")).as_py()
    return text, changed or 0
