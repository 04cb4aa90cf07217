"""The section on sums that two servers of DAP made (the IETF's protocol for private sums)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedtally.answer import amounts

if TYPE_CHECKING:
    from fedtally.secagg.config import TwoServerConfig

ENGINE = "dap"  # the value of "engine" in `Result.secure_sum`
# Phrases about clients -> the phrases about reports that replace them. DAP does not know which
# client sent a report, so its guarantees are about reports.
_OF_REPORTS = {
    "one client's items are replaced by any others": "one report is replaced by any other",
    "a client takes part in one round with one item": "a report is in one batch",
    "one client of the population, all its items": "one report, and not all of a person's",
    "the whole campaign, with one round for each client": "all batches of the task",
    "which of two sets of items does a client have?": "which of two values does a report hold?",
    "what one client contributed": "what one report holds",
}


def is_dap(traffic: Mapping[str, Any]) -> bool:
    """Return whether two servers of DAP made the sums.

    Args:
        traffic: the field `secure_sum` of a result.
    """
    return traffic.get("engine") == ENGINE


def method(traffic: Mapping[str, Any]) -> str:
    """Return the name of the method that made the sums, such as "secagg", "ideal" or "dap".

    Plans do not name DAP, so "dap" comes from the entry "engine" of `traffic`.

    Args:
        traffic: the field `secure_sum` of a result.
    """
    return ENGINE if is_dap(traffic) else str(traffic["method"])


def report_bytes(traffic: Mapping[str, Any]) -> int | None:
    """Return the bytes of a DAP report; None if DAP servers did not make the sums.

    Args:
        traffic: the field `secure_sum` of a result; empty if there are no sums.
    """
    return traffic["report_bytes"] if is_dap(traffic) else None


def of_reports(text: str, traffic: Mapping[str, Any] | None) -> str:
    """Return a statement about privacy, made to be about reports if DAP servers made the sums.

    DAP does not know which client sent a report, so phrases about clients are replaced by phrases
    about reports. For other sums the text is returned unchanged.

    Args:
        text: a statement about clients.
        traffic: the field `secure_sum` of a result; None: there are no sums yet.

    >>> of_reports("This protects one client of the population, all its items.", summed(10, 2_700))
    "This protects one report, and not all of a person's."
    """
    if is_dap(traffic or {}):
        for of_client, of_report in _OF_REPORTS.items():
            text = text.replace(of_client, of_report)
    return text


def summed(least: int, report_bytes: int, noised: TwoServerConfig | None = None) -> dict[str, Any]:
    """Return the field `Result.secure_sum` of a result that DAP servers made.

    Args:
        least: the fewest reports of a batch.
        report_bytes: the bytes of one report.
        noised: the plan's terms of the two servers' noise; None: the servers added no noise.
    """
    # Without noise, the plan of a DAP result names no secure sum: it is only used to decode.
    planned = {"method": "ideal"} if noised is None else noised.summary()
    of_dap = {
        "engine": ENGINE,
        "min_survivors": least,
        "report_bytes": report_bytes,
        "validity": "proofs",  # the proofs of the DAP standard itself
    }
    return planned | of_dap


def seen(_: Mapping[str, Any]) -> str:
    """Return in words which party sees the sums that DAP servers made. The argument is not used."""
    return "only the collector sees these sums, unless both servers of DAP work together"


def line(traffic: Mapping[str, Any]) -> str:
    """Return in words who saw the sums that DAP servers made, for the first screen."""
    return f"DAP: {seen(traffic)}"


def rows(traffic: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return rows of (name, text) on how DAP servers made the sums, for --details.

    Args:
        traffic: the field `secure_sum` of a result.
    """
    least = f"at least {traffic['min_survivors']:,} reports in a batch"
    return [
        ("Secure sum", f"DAP: two servers that do not work together; {least}"),
        ("", "each report has a proof of its form; any other is refused"),
    ]


def learned(traffic: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return rows of (who, text) on who could learn what from sums that DAP servers made.

    Args:
        traffic: the field `secure_sum` of a result.
    """
    return [
        ("The two servers", "when reports came, and from which addresses"),
        ("", "no report, as long as they do not work together"),
        ("The collector", f"sums over at least {traffic['min_survivors']:,} reports"),
        ("Nobody", "whether two reports are of one person"),
    ]


def upload(traffic: Mapping[str, Any]) -> str:
    """Return in words how many bytes a client uploads.

    Args:
        traffic: the field `secure_sum` of a result whose sums DAP servers made.

    >>> upload(summed(least=10, report_bytes=2_700))
    '2.70 kB per report, which goes to the leader'
    """
    return f"{amounts.size(traffic['report_bytes'])} per report, which goes to the leader"
