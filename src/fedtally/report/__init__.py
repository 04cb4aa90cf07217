"""Results as text for a person at a terminal, and as JSON for a program.

The rooms are `fields` (JSON, and what its fields are called), `wording` (lines of text),
`terminal` (tables and headings), `page` (HTML), `merged` (several results together) and `show`
(a page to try the protocol on).
Frequencies are shown in percent of the clients, their errors in percentage points, and sizes in
decimal units (1 kB = 1000 bytes).
"""

from fedtally.report.fields import (
    SCHEMA,
    document,
    estimate_fields,
    field_name,
    intervals_fields,
    plan_fields,
    privacy_fields,
    told,
)
from fedtally.report.merged import merged_answer, merged_document, write_merged_page
from fedtally.report.page import check_report_path, write_page
from fedtally.report.tables import Column, FittedTable, new_table, printable
from fedtally.report.terminal import (
    Screen,
    answer,
    estimates_table,
    facts,
    heading,
    is_told_from_zero,
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
    size,
    sizing_rows,
    target_rows,
    validity,
    who,
)

__all__ = [
    "COVERS",
    "NO_PRIVACY",
    "SCHEMA",
    "Column",
    "FittedTable",
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
    "estimate_fields",
    "estimates_table",
    "facts",
    "field_name",
    "guarantee",
    "heading",
    "honesty",
    "intervals_fields",
    "is_told_from_zero",
    "level",
    "merged_answer",
    "merged_document",
    "new_table",
    "percent",
    "plain",
    "plan_fields",
    "points",
    "printable",
    "privacy_fields",
    "privacy_rows",
    "secure_sum_rows",
    "size",
    "sizing_rows",
    "target_rows",
    "told",
    "validity",
    "who",
    "write_merged_page",
    "write_page",
]
