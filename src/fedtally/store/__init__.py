"""Durable state: the operator's ledger, a client's record, the campaigns and batches of servers.

All SQL of the package is here. A `Ledger` (what populations have spent) is an SQLite file or a
PostgreSQL database. A `ClientRecord` (the rounds that one client took part in) is an SQLite file.
`Campaigns` (the memory of a campaign's server) and `Batches` (the memory of one of two servers) are
SQLite files, too. They erase what is no longer needed, and have guarantees of their own
(`store/campaigns.py`, `store/two_server.py`). `Ledger` and `ClientRecord` give these guarantees:

- *Reserved before opened.* When `Ledger.reserve` or `ClientRecord.take_part` returns, the row of
  the release or of the round is on disk. From then on its cost counts as spent, whatever happens
  next.
- *Once.* A campaign has one owner: the run that charged it first. Only this owner can reserve a
  release of its plan. After a crash the owner may reserve the same release again. A release lands
  (`Ledger.land` stores its sum with noise) once, in one row. Primary keys enforce this, even
  against programs other than fedtally. A ledger has no column for a sum without noise.
- *In constant time.* A campaign's row holds the total cost of its population's campaigns up to and
  with this campaign. So a reservation reads only the row of the population's last campaign, however
  many campaigns there were.
- *One writer at a time.* A writing transaction first locks the whole database (`BEGIN IMMEDIATE`;
  on PostgreSQL an advisory lock, at READ COMMITTED). Then it reads what was spent, and adds to it.
- *Append-only.* Triggers refuse to change or to delete a row. Two kinds of rows are excepted: the
  rows of a client's outbox, and the two rows that count a file's writes (`store/writes.py`).
  Triggers protect from mistakes, not from the owner of the database, who can drop them.
- *Durable.* SQLite syncs file and folder at each commit; PostgreSQL commits synchronously. A
  database restored from a backup does not know what was spent after the backup. Do not go on with
  it: start a population with another name, and grant it only the rest of the epsilon.

Times are arguments, in Unix seconds. The first use of a name of this package imports SQLAlchemy,
which is slow: import the name inside the functions that need it.

The modules are `database` (connections, transactions, triggers), `ledger`, `campaigns`,
`two_server` (one of two servers), `dap_state` (one server of a DAP task), `client_record`, `outbox`
(a client's unsent reports to two servers), `claims` (one process at a time writes a file), `writes`
(the number of writes to a file), `marks` (is a file an old copy of itself?) and `room` (is there
room on the disk?).

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

# Loaded on first use: an agent needs a client's record, but neither campaigns nor a ledger.
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
