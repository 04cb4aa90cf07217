"""Results as text for a person at a terminal, and as JSON for a program.

The rooms are `fields` (JSON), `wording` (lines of text), `terminal` (tables and headings) and
`page` (HTML).
Frequencies are shown in percent of the clients, their errors in percentage points, and sizes in
decimal units (1 kB = 1000 bytes).
"""

from fedtally.report.fields import (
    SCHEMA,
    document,
    estimate_fields,
    intervals_fields,
    limits_fields,
    plan_fields,
    privacy_fields,
)
from fedtally.report.page import check_report_path, write_page
from fedtally.report.terminal import (
    answer,
    estimates_table,
    facts,
    heading,
    is_told_from_zero,
    new_table,
    plain,
    printable,
)
from fedtally.report.wording import (
    COVERS,
    NO_PRIVACY,
    candidates,
    collisions,
    contributions,
    cost,
    counted,
    covered,
    covers,
    decimals,
    guarantee,
    level,
    percent,
    points,
    privacy_rows,
    secure_sum_rows,
    size,
    sizing_rows,
    who,
)

__all__ = [
    "COVERS",
    "NO_PRIVACY",
    "SCHEMA",
    "answer",
    "candidates",
    "check_report_path",
    "collisions",
    "contributions",
    "cost",
    "counted",
    "covered",
    "covers",
    "decimals",
    "document",
    "estimate_fields",
    "estimates_table",
    "facts",
    "guarantee",
    "heading",
    "intervals_fields",
    "is_told_from_zero",
    "level",
    "limits_fields",
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
    "who",
    "write_page",
]
