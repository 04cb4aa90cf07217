"""Sum vectors with two servers: each client sends one report, and the sum of a batch is opened.

The leader gets the client's vector under a mask, and the helper the seed of the mask. Each server
gets its part sealed. A batch is opened once: the leader asks, and the helper answers with the sum
of the masks. As long as the two servers do not collude, nothing of the vectors leaves them but a
sum over at least `min_batch - corrupt` honest clients, even if one of the two lies.
docs/protocol.md has every byte, and what is not claimed.

Without proofs nothing protects the sum from clients that report false vectors. With proofs,
`make_proven_report` makes the reports, and `Leader` and `Helper` get a `ReportProof` in place of
the parameters.

The modules have no input, output or clock: frames come and go as bytes. Randomness is an argument,
except for the keys that HPKE draws for each sealed message (`crypto.hpke`). What a server must not
forget is in its `Journal`.

>>> import hashlib
>>> import numpy as np
>>> from fedtally.crypto.hpke import PrivateKey
>>> from fedtally.secagg.allow_list import AllowList
>>> from fedtally.crypto.keys import Secret, SigningKey
>>> def source(name):  # of random bytes; here none at all
...     state = hashlib.shake_256(name)
...     return lambda n: state.update(b".") or state.digest(n)
>>> keys = [PrivateKey(Secret(source(server)(32))) for server in (b"leader", b"helper")]
>>> people = [SigningKey(Secret(source(b"%d" % i)(32))) for i in range(3)]
>>> allowed = AllowList(sorted(person.public for person in people))
>>> parameters = TwoServerParameters(
...     widths=(2,), bits=8, n_max=10, min_batch=3, corrupt=1, leader_key=keys[0].public,
...     helper_key=keys[1].public, allow_list=allowed.digest, fingerprint=bytes(32))
>>> policy = BatchPolicy(min_honest=2, corrupt=1)
>>> leader = Leader(parameters, range(1), allowed, policy, MemoryJournal(), keys[0])
>>> helper = Helper(parameters, range(1), allowed, policy, MemoryJournal(), keys[1])
>>> for i, person in enumerate(people):
...     item = np.array([1, -1]) * (-1) ** i
...     report = make_report(
...         parameters, item, round=0, now=0, identity=person, policy=policy,
...         random=source(b"client %d" % i))
...     print(helper.receive(report.helper, now=9), leader.receive(report.leader, now=9))
accepted accepted
accepted accepted
accepted accepted
>>> leader.stop()
>>> leader.finish(helper.answer(leader.query(helper.offer()))).tolist()
[1, -1]
"""

from fedtally.secagg.params import Validity
from fedtally.secagg.two_server.journal import (
    Journal,
    MemoryJournal,
    ReportJournal,
    Reports,
    Side,
)
from fedtally.secagg.two_server.proofs import ReportProof
from fedtally.secagg.two_server.proven import make_proven_report
from fedtally.secagg.two_server.reports import (
    BatchPolicy,
    BatchRefusedError,
    Kind,
    Refused,
    Report,
    TwoServerParameters,
    Verdict,
    make_report,
)
from fedtally.secagg.two_server.servers import (
    BatchState,
    Helper,
    Leader,
    LostReportError,
    Outcome,
)

__all__ = [
    "BatchPolicy",
    "BatchRefusedError",
    "BatchState",
    "Helper",
    "Journal",
    "Kind",
    "Leader",
    "LostReportError",
    "MemoryJournal",
    "Outcome",
    "Refused",
    "Report",
    "ReportJournal",
    "ReportProof",
    "Reports",
    "Side",
    "TwoServerParameters",
    "Validity",
    "Verdict",
    "make_proven_report",
    "make_report",
]
