"""The tables of a plan: what each stage costs, and what other sizes cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fedtally.plan.bill import Bill


def stages(bill: Bill, unit: str) -> RenderableType:
    """Return the table of what each stage of a campaign costs a client and the server.

    Args:
        bill: the costs of the plan, by stage.
        unit: the noun for one client, as "client" or "silo".
    """
    from fedtally.answer import amounts, tables

    figures: list[tuple[str, Sequence[float]]] = [
        (
            stage.stage,
            (
                stage.upload_bytes,
                stage.download_bytes,
                stage.client_seconds,
                stage.received_bytes,
                stage.sent_bytes,
                stage.server_seconds,
            ),
        )
        for stage in bill.stages
    ]
    figures.append(("decoding", (0, 0, 0, 0, 0, bill.decoding_seconds)))
    totals = [sum(column) for column in zip(*(line for _, line in figures), strict=True)]
    figures.append(("together", totals))
    columns = (  # last field: a narrow table leaves out 1 first, then 2 and 3; it keeps 0
        (f"a {unit}", "sends", _bytes, 0),
        (f"a {unit}", "gets", _bytes, 3),
        (f"a {unit}", "CPU", amounts.seconds, 2),
        ("the server", "gets", _bytes, 0),
        ("the server", "sends", _bytes, 1),
        ("the server", "CPU", amounts.seconds, 0),
    )
    return tables.FittedTable(
        heading="stage",
        names=[tables.printable(name) for name, _ in figures],
        after=[
            tables.Column(name, [shown(line[place]) for _, line in figures], rank, True, group)
            for place, (group, name, shown, rank) in enumerate(columns)
        ],
        noun="stages",
        styles=[*("" for _ in figures[1:]), "bold"],
    )


class Size(NamedTuple):
    """A row of the table of sizes, as text.

    Attributes:
        name: the rows and width of a sketch, or another name such as "one-hot vector".
        upload: the bytes that a client sends.
        client: the CPU time of a client.
        received: the bytes that the servers receive.
        server: the CPU time of the servers.
        error: the largest error in percentage points.
    """

    name: str
    upload: str
    client: str = ""
    received: str = ""
    server: str = ""
    error: str = ""

    @classmethod
    def of(cls, name: str, bill: Bill, error: str) -> Size:
        """Return the row of a plan.

        Args:
            name: the rows and width of the sketch.
            bill: the costs of the plan.
            error: the largest error in percentage points, as text.
        """
        from fedtally.answer import amounts

        return cls(
            name,
            amounts.size(bill.upload_bytes),
            amounts.seconds(bill.client_seconds),
            amounts.size(bill.received_bytes),
            amounts.seconds(bill.server_seconds + bill.decoding_seconds),
            error,
        )


def sizes(rows: Iterable[Size], unit: str, nouns: tuple[str, str]) -> RenderableType:
    """Return the table that compares the costs and errors of several sizes.

    Args:
        rows: the rows of the table, in order.
        unit: the noun for one client, as "client" or "silo".
        nouns: the noun for one size, and the noun for several.
    """
    from fedtally.answer import tables

    listed = list(rows)
    columns = (  # the last field is as in `stages`
        (f"a {unit}", "sends", 0),
        (f"a {unit}", "CPU", 2),
        ("the server", "gets", 3),
        ("the server", "CPU", 1),
        ("", "largest\nerror in\npoints", 0),
    )
    return tables.FittedTable(
        heading=nouns[0],
        names=[tables.printable(row.name) for row in listed],
        after=[
            tables.Column(name, [row[place] for row in listed], rank, True, group)
            for place, (group, name, rank) in enumerate(columns, 1)
        ],
        noun=nouns[1],
    )


def _bytes(number: float) -> str:
    from fedtally.answer import amounts

    return amounts.size(number) if number else ""
