"""Cells of a CSV file that a spreadsheet would run as formulas, or show differently.

Items may be written by strangers. A spreadsheet takes a cell that begins with "=" as a formula,
even if quotes surround it, and a formula can send other cells to a stranger. An apostrophe at the
start of a cell says that it is text (OWASP, "CSV Injection").
"""

from __future__ import annotations

from typing import Any

# _FORMULA: a sign that begins a formula, also in its full-width form, at the start of a cell or
# after a sign that may end a cell. _DROPPED: signs that a program may drop before a formula.
_FORMULA = r"(^|[;\t\r\n])([\"']*[=+\-@\x{FF1D}\x{FF0B}\x{FF0D}\x{FF20}])"
_DROPPED = r"^()([\"']*[\t\r])"
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_NUMBERS = rf"^{_NUMBER}(?:,{_NUMBER})*$"  # also the two numbers of a grid cell: latitude,longitude
# Invisible characters that reverse the direction of the text around them.
_TURNS = {
    chr(code): f"\\u{code:04x}"
    for code in (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}


def as_text(table: Any) -> tuple[Any, int]:
    r"""Return a table whose cells no spreadsheet runs, and the number of changed cells.

    A cell that begins like a formula gets an apostrophe before it. Invisible characters that
    reverse text are written as escapes such as \u202e. Numbers do not change, even in a column of
    text.

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
