"""An answer, section by section: each is one module, and says its part in every form.

`fields` are those of JSON documents, `line` is for the first screen, and `rows` are for --details.
"""

from fedtally.answer.sections import changed, cost, counted, dap_sums, error, listed, privacy, trust

__all__ = ["changed", "cost", "counted", "dap_sums", "error", "listed", "privacy", "trust"]
