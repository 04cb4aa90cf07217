"""Notes for the reader of an answer: on the source, rows that were left out, noise and cohorts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedtally.base.dropped import Dropped
from fedtally.base.text import in_number
from fedtally.errors import Note, opt
from fedtally.plan import Plan
from fedtally.privacy import NOT_PRIVATE, allows_publishing, guarantees_little
from fedtally.simulation.row_counts import Tally
from fedtally.sources import Source


def warnings(
    source: Source,
    tally: Tally,
    dropped: Dropped,
    plan: Plan,
    attended: Sequence[int] | None,
    drops: bool,
) -> list[str]:
    """Return notes on the source, on rows that were left out, and on privacy.

    Args:
        source: the source of the rows.
        tally: the counted rows.
        dropped: the numbers of rows that were left out, without numbers that privacy hides.
        plan: the plan of the campaign.
        attended: a list whose entry k - 1 is the number of clients in exactly k rounds, or None
            (see `round_tally.attendance`).
        drops: whether the caller asked to drop items outside the domain.
    """
    notes = []
    if source.about:
        notes.append(source.about)
    if plan.privacy is not None:
        notes += _privacy_warnings(plan, plan.num_clients if attended is None else sum(attended))
        if drops:  # the number of items outside is private, so it is not in the note
            notes.append(
                f"shares are of all {plan.nouns[1]}: with epsilon, whoever has nothing in the"
                " domain counts too"
            )
    if dropped.incomplete:
        notes.append(skipped(dropped, tally))
    if tally.headers and plan.privacy is None:
        one, many = "1 row repeats the header and is", "{} rows repeat the header and are"
        rows = in_number(tally.headers, one, many)
        notes.append(
            f"{rows} counted: is the first row an item (--no-header), or were files joined? Name"
            " files by a pattern, 'parts/*.csv'"
        )
    if dropped.outside:
        # With counts, one row stands for several clients.
        of = f"{tally.most_clients:,} clients" if tally.has_counts else f"{tally.rows:,} rows"
        notes.append(
            f"{dropped.outside:,} of {of} skipped: outside the domain; shares are of the others"
        )
    return notes


def skipped(dropped: Dropped, tally: Tally) -> str:
    """Return the note on rows that were left out: they lack an item, client, silo or round."""
    lacking = " or ".join(part.partition(" ")[0] for part in tally.columns.needed())
    return f"{dropped.incomplete:,} of {tally.rows:,} rows skipped: no {lacking}"


def _privacy_warnings(plan: Plan, clients: int) -> list[str]:
    """Return notes on the privacy of a private run; they do not depend on what clients hold.

    `clients` is the number of different clients that take part.
    """
    terms = plan.privacy
    assert terms is not None
    notes = []
    if terms.not_private:
        notes.append(
            f"{NOT_PRIVATE}: a seed, the truth or the input's own items may show what the noise"
            " hides; the figures are those of a private run"
        )
    if large := guarantees_little(terms.epsilon):
        notes.append(large)
    # only in a run marked not_private: other plans refuse so large a delta
    if loose := allows_publishing(terms.delta, clients):
        notes.append(loose)
    return notes


def of_cohorts(plan: Plan, traffic: Mapping[str, Any] | None) -> list[str]:
    """Return a note, in a list, if clients add noise and there are more cohorts than rounds.

    Otherwise the list is empty. The sum of each cohort has all the noise of a round. So fewer and
    larger cohorts have smaller errors.
    """
    if traffic is None or plan.protection.of_client() is None:
        return []
    number = traffic["cohorts"]
    if number <= plan.num_rounds:
        return []
    note = Note(
        f"{number:,} cohorts are opened, each with all the noise of a round: larger ones"
        f" ({opt.max_cohort}) are better"
    )
    return [note]
