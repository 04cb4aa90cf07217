"""The Distributed Aggregation Protocol (DAP), an IETF standard for private sums by two servers.

A client reports a measurement, without an identity; its program may be another one than fedtally.
Two servers, the leader and the helper, verify the reports and add them up. A collector learns the
sum of a batch. A batch is all reports of one time interval.

- `presentation`: encodes and decodes all messages
- `draft18`: the messages of draft-ietf-ppm-dap-18, and the bytes that name this draft
- `draft09`: the reports of clients that use draft 09
- `versions`: a table of both drafts, which lists how their reports differ
- `task`: the parameters that all parties agree on, in a public and a secret file
- `sealing`: encrypts and decrypts with HPKE; each key has a number
- `client`: makes the report of a measurement
- `aggregator`: the common code of both servers; `leader` and `helper`: the code of each one
- `noise`: the noise that a server may add to its share of a batch
- `state`: the data that a server stores, and a store in memory
- `problems`: the errors that a server answers, as the draft names them
- `collector`: makes the request for a batch, and opens the result

No module reads or writes files, uses the network or reads a clock: times and random bytes are
arguments. Only HPKE draws random bytes itself, a key for each sealed message (`crypto.hpke_aad`).
Two threads must not call the same server object at the same time.

Three clients report which of four answers they gave:

>>> from secrets import token_bytes
>>> from fedtally.crypto.hpke_aad import RecipientKey
>>> from fedtally.crypto.keys import Secret
>>> keys = [Keyring({1: RecipientKey(Secret(token_bytes(32)))}) for _ in range(3)]
>>> leaders, helpers, collectors = [ring.configs.configs[0] for ring in keys]
>>> task = Task.make("histogram", {"buckets": 4, "chunk": 2}, info=token_bytes(16),
...     leader="https://leader.example/", helper="https://helper.example/", precision=3600,
...     min_batch=3, start=0, end=7200, collector=collectors)
>>> secret = TaskSecret(task.id, Secret(token_bytes(32)))
>>> leader = Leader(task, secret, keys[0], MemoryStore())
>>> helper = Helper(task, secret, keys[1], MemoryStore())
>>> reports = [make_report(task, answer, leader=leaders, helper=helpers, now=60.0,
...     random=token_bytes(random_bytes(task))) for answer in (2, 0, 2)]
>>> for report in reports:
...     _ = leader.upload(report.encode(), now=60.0)
>>> job = leader.make_job()
>>> leader.finish_job(job.id, helper.aggregate(job.request, now=60.0).answer)
JobEnd(added=3, refused=0)
>>> query = make_query(task, start=0, end=3600)
>>> asked = leader.collect(query.encode())
>>> done = leader.finish_collection(asked.id, helper.share(asked.ask).answer)
>>> open_result(task, keys[2], query, done.answer)
Collected(count=3, start=0, end=3600, result=[1, 0, 2, 0])
"""

from fedtally.dap.client import make_report, random_bytes
from fedtally.dap.collector import Collected, make_query, open_result
from fedtally.dap.helper import Helper
from fedtally.dap.leader import AbandonedError, Leader
from fedtally.dap.noise import Noise
from fedtally.dap.problems import Problem, ProblemType, UnknownResourceError
from fedtally.dap.sealing import Keyring
from fedtally.dap.state import MemoryStore, Store
from fedtally.dap.task import Task, TaskSecret

__all__ = [
    "AbandonedError",
    "Collected",
    "Helper",
    "Keyring",
    "Leader",
    "MemoryStore",
    "Noise",
    "Problem",
    "ProblemType",
    "Store",
    "Task",
    "TaskSecret",
    "UnknownResourceError",
    "make_query",
    "make_report",
    "open_result",
    "random_bytes",
]
