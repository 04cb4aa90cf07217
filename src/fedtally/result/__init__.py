"""The answer of a campaign: estimates from landed sums, their errors, tables and files.

The rooms are `result` (the answer itself), `notes` (what its reader must know), `estimates` (one
item's), `evaluation` (the truth of a simulation, and the errors), `frames` (tables for other
libraries, and for notebooks) and `files` (saved answers and exported tables).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedtally.base.lazy import loader

if TYPE_CHECKING:
    from fedtally.result.estimates import (
        Estimate,
        Uncertainty,
        clip_limits,
        is_told_from_zero,
        largest_uncertainty,
        uncertainty,
        uncertainty_of,
        with_doubts,
    )
    from fedtally.result.evaluation import Evaluation, NameEvaluation, Truth
    from fedtally.result.files import (
        check_export_path,
        check_table_fits,
        physical_memory,
        write_table,
    )
    from fedtally.result.frames import NOTEBOOK_ROWS, Tabular, notebook_table
    from fedtally.result.notes import RARE_ITEMS
    from fedtally.result.result import Progress, Result
    from fedtally.result.told import SCHEMA

# Loaded on first use: a word on one estimate needs neither a decoder nor SciPy.
_HOMES = {
    "estimates": (
        "Estimate",
        "Uncertainty",
        "clip_limits",
        "is_told_from_zero",
        "largest_uncertainty",
        "uncertainty",
        "uncertainty_of",
        "with_doubts",
    ),
    "evaluation": (
        "Evaluation",
        "NameEvaluation",
        "Truth",
    ),
    "files": (
        "check_export_path",
        "check_table_fits",
        "physical_memory",
        "write_table",
    ),
    "frames": (
        "NOTEBOOK_ROWS",
        "Tabular",
        "notebook_table",
    ),
    "notes": ("RARE_ITEMS",),
    "result": (
        "Progress",
        "Result",
    ),
    "told": ("SCHEMA",),
}

__all__ = [
    "NOTEBOOK_ROWS",
    "RARE_ITEMS",
    "SCHEMA",
    "Estimate",
    "Evaluation",
    "NameEvaluation",
    "Progress",
    "Result",
    "Tabular",
    "Truth",
    "Uncertainty",
    "check_export_path",
    "check_table_fits",
    "clip_limits",
    "is_told_from_zero",
    "largest_uncertainty",
    "notebook_table",
    "physical_memory",
    "uncertainty",
    "uncertainty_of",
    "with_doubts",
    "write_table",
]

__getattr__ = loader(__name__, _HOMES)
