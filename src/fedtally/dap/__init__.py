"""The Distributed Aggregation Protocol (DAP), the standard of sums by two servers. Sans-IO.

Clients of any maker report measurements, without an identity. Two servers verify the reports and
add them up, and a collector learns the sum of a batch. A batch has the reports of a time interval.

- `presentation`: the encoding of all messages
- `draft18`: the messages of draft-ietf-ppm-dap-18, and the names of the version
- `draft09`: the reports of clients that use draft 09
- `versions`: a table of the drafts, with all differences of their reports
- `task`: the parameters that all parties agree on, in a public and a secret file
- `sealing`: HPKE keys with numbers
- `client`: making the report of a measurement
- `aggregator`: the common code of both servers; `leader` and `helper`: the code of each one
- `noise`: the noise that a server may add to its share of a batch
- `state`: the stored data of a server, and a store in memory
- `problems`: the errors that a server answers, from the draft
- `collector`: the request for a batch, and its result

The modules have no input, output or clock. A server object is for one thread at a time.

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
