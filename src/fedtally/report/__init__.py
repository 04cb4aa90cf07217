"""Results as text for a person at a terminal, and as JSON for a program.

The rooms are `fields` (JSON, and what its fields are called), `wording` (lines of text),
`terminal` (tables and headings), `page` (HTML), `merged` (several results together) and `show`
(a page to try the protocol on).
Frequencies are shown in percent of the clients, their errors in percentage points, and sizes in
decimal units (1 kB = 1000 bytes).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedtally.base.lazy import loader

if TYPE_CHECKING:
    from fedtally.report.fields import (
        SCHEMA,
        document,
        error_fields,
        estimate_fields,
        field_name,
        intervals_fields,
        plan_fields,
        privacy_fields,
        told,
    )
    from fedtally.report.merged import merged_answer, merged_document, write_merged_page
    from fedtally.report.page import Head, check_report_path, write_page
    from fedtally.report.tables import (
        Column,
        FittedTable,
        facts,
        heading,
        new_table,
        printable,
    )
    from fedtally.report.terminal import (
        Screen,
        answer,
        estimates_table,
        next_rows,
        plain,
    )
    from fedtally.report.wording import (
        COVERS,
        NO_PRIVACY,
        candidates,
        collisions,
        cost,
        counted,
        covers,
        decimals,
        dimensions,
        encoded,
        guarantee,
        honesty,
        level,
        percent,
        points,
        privacy_rows,
        secure_sum_rows,
        short_cost,
        size,
        sizing_rows,
        target_rows,
        validity,
        who,
    )

# Loaded on first use: who shows a plan needs no results, and no SciPy.
_HOMES = {
    "fields": (
        "SCHEMA",
        "document",
        "error_fields",
        "estimate_fields",
        "field_name",
        "intervals_fields",
        "plan_fields",
        "privacy_fields",
        "told",
    ),
    "merged": (
        "merged_answer",
        "merged_document",
        "write_merged_page",
    ),
    "page": (
        "Head",
        "check_report_path",
        "write_page",
    ),
    "tables": (
        "Column",
        "FittedTable",
        "facts",
        "heading",
        "new_table",
        "printable",
    ),
    "terminal": (
        "Screen",
        "answer",
        "estimates_table",
        "next_rows",
        "plain",
    ),
    "wording": (
        "COVERS",
        "NO_PRIVACY",
        "candidates",
        "collisions",
        "cost",
        "counted",
        "covers",
        "decimals",
        "dimensions",
        "encoded",
        "guarantee",
        "honesty",
        "level",
        "percent",
        "points",
        "privacy_rows",
        "secure_sum_rows",
        "short_cost",
        "size",
        "sizing_rows",
        "target_rows",
        "validity",
        "who",
    ),
}

__all__ = [
    "COVERS",
    "NO_PRIVACY",
    "SCHEMA",
    "Column",
    "FittedTable",
    "Head",
    "Screen",
    "answer",
    "candidates",
    "check_report_path",
    "collisions",
    "cost",
    "counted",
    "covers",
    "decimals",
    "dimensions",
    "document",
    "encoded",
    "error_fields",
    "estimate_fields",
    "estimates_table",
    "facts",
    "field_name",
    "guarantee",
    "heading",
    "honesty",
    "intervals_fields",
    "level",
    "merged_answer",
    "merged_document",
    "new_table",
    "next_rows",
    "percent",
    "plain",
    "plan_fields",
    "points",
    "printable",
    "privacy_fields",
    "privacy_rows",
    "secure_sum_rows",
    "short_cost",
    "size",
    "sizing_rows",
    "target_rows",
    "told",
    "validity",
    "who",
    "write_merged_page",
    "write_page",
]

__getattr__ = loader(__name__, _HOMES)
