"""Durable state: the operator's ledger, a client's record, the campaigns and batches of servers.

All SQL of the package is here. A `Ledger` lives in an SQLite file or in a PostgreSQL database, a
`ClientRecord` in an SQLite file. `Campaigns` and `Batches` are SQLite files too: they hold what a
campaign's server, and one of two servers, must not lose, erase it when it is done, and have
guarantees of their own (`store/campaigns.py`, `store/two_server.py`). Ledger and record give the
same guarantees:

- *Reserved before opened.* `reserve` and `take_part` return when the fact is on disk. From then on
  it counts as spent, whatever happens next.
- *Once.* A campaign has one owner: the run that charged it first. Only that owner can reserve a
  release of its plan, again after a crash too. A release lands once. Primary keys enforce this even
  against other programs that write. A landing is one row, which holds the noised sketch and stands
  for its cost. A ledger has no column for the sum without noise.
- *At a constant price.* A campaign's row holds the cost of all campaigns of its population up to
  it. So a reservation reads one of these rows, however many there are.
- *One writer at a time.* A writing transaction first takes the lock of the whole database (`BEGIN
  IMMEDIATE`; on PostgreSQL an advisory lock, at READ COMMITTED). Then it reads what was spent, and
  adds to it.
- *Append-only.* Triggers refuse to change or to delete a row. The owner of the database can drop
  them: they protect from mistakes, not from the owner.
- *Durable.* SQLite syncs file and folder at each commit; PostgreSQL commits synchronously. A copy
  restored from a backup does not know what was spent since. Do not continue with it: start a
  population of another name with a smaller grant.

Times are arguments, Unix seconds; only `Campaigns.claim` takes a clock. A name of this package
imports SQLAlchemy on first use, which is slow: import it inside the functions that need it.

The rooms are `database` (connections, transactions, triggers), `ledger`, `campaigns`,
`two_server` (one of two servers), `dap` (one server of a DAP task), `client_record`, `outbox` (a
client's reports to two servers), `claims` (which process writes?), `writes` (how many writes has a
file seen?), and `marks` (does a file lag behind what was said?).

>>> import tempfile
>>> from fedtally.privacy.budget import Charge
>>> from fedtally.privacy.events import Event
>>> from fedtally.store import Ledger
>>> with tempfile.TemporaryDirectory() as folder:
...     ledger = Ledger.open(f"{folder}/ledger.db", create=True)
...     _ = ledger.grant("phones", epsilon=2.0, delta=1e-6, time=0)
...     event = Event("rounded-gaussian", 16, "zero-out", variance=16 * 4.2247**2)
...     reservation = ledger.reserve(Charge("phones", "plan-a", 0, event), owner="run 1", time=1)
...     landing = ledger.land(reservation, b"the noised sketch", owner="run 1", time=2)
...     print(ledger.spent("phones"))
...     print(ledger.sketch("plan-a", 0))
epsilon 0.9999 at delta 1e-06 (zero-out, central trust, privacy-loss-distribution)
b'the noised sketch'
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedtally.base.lazy import loader

if TYPE_CHECKING:
    from fedtally.store.campaigns import (
        IMPOSSIBLE,
        Campaigns,
        CampaignStatus,
        CampaignStore,
        EndedSession,
        OpenSession,
        SavedSession,
    )
    from fedtally.store.client_record import ClientRecord, Journal, Part
    from fedtally.store.dap_state import DapFile, DapStore
    from fedtally.store.database import WAIT_SECONDS, StoreError
    from fedtally.store.ledger import EXPORT, Landing, Ledger, Reservation
    from fedtally.store.outbox import Fate, Said, Unsent
    from fedtally.store.two_server import AggregateBooks, Batch, Batches, BatchStore

# Loaded on first use: an agent has a client's record, and neither campaigns nor a ledger.
_HOMES = {
    "campaigns": (
        "IMPOSSIBLE",
        "Campaigns",
        "CampaignStatus",
        "CampaignStore",
        "EndedSession",
        "OpenSession",
        "SavedSession",
    ),
    "client_record": (
        "ClientRecord",
        "Journal",
        "Part",
    ),
    "dap_state": (
        "DapFile",
        "DapStore",
    ),
    "database": (
        "WAIT_SECONDS",
        "StoreError",
    ),
    "ledger": (
        "EXPORT",
        "Landing",
        "Ledger",
        "Reservation",
    ),
    "outbox": (
        "Fate",
        "Said",
        "Unsent",
    ),
    "two_server": (
        "AggregateBooks",
        "Batch",
        "Batches",
        "BatchStore",
    ),
}

__all__ = [
    "EXPORT",
    "IMPOSSIBLE",
    "WAIT_SECONDS",
    "AggregateBooks",
    "Batch",
    "BatchStore",
    "Batches",
    "CampaignStatus",
    "CampaignStore",
    "Campaigns",
    "ClientRecord",
    "DapFile",
    "DapStore",
    "EndedSession",
    "Fate",
    "Journal",
    "Landing",
    "Ledger",
    "OpenSession",
    "Part",
    "Reservation",
    "Said",
    "SavedSession",
    "StoreError",
    "Unsent",
]

__getattr__ = loader(__name__, _HOMES)
