"""The sections of an answer: each module describes one subject, in every form of output.

In most modules, `fields` returns entries of JSON documents, `line` a text for the first screen, and
`rows` rows of (name, text) for --details. Wherever these modules return rows, a row is such a pair.
A row with the name "" continues the row before it.
"""

from fedtally.answer.sections import changed, cost, counted, dap_sums, error, listed, privacy, trust

__all__ = ["changed", "cost", "counted", "dap_sums", "error", "listed", "privacy", "trust"]
