"""The server's side of a campaign."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from fedtally import _validate
from fedtally.crypto.hpke import OpeningKey
from fedtally.crypto.keys import KEY_BYTES, Secret, SigningKey
from fedtally.errors import FedtallyError, InvalidInputError
from fedtally.plan import Plan
from fedtally.privacy.events import Trust
from fedtally.secagg import two_server
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.messages import LocalProtocolError
from fedtally.secagg.server import Server
from fedtally.sketch import CountSketch

if TYPE_CHECKING:
    pass

from fedtally.campaign.client import _secagg, _two_server

I64 = npt.NDArray[np.int64]


class RejectedSumError(FedtallyError):
    """Refuse a sum that no sketches of so many clients can have: somebody sent something else."""


class FrequencyServer:
    """The server of a campaign: one session for every cohort, one landed sketch for every round.

    Args:
        plan: the campaign's.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._landed: dict[int, CountSketch] = {}
        self._sessions_opened: set[bytes] = set()
        self._sessions_landed: set[bytes] = set()
        self._leaders: WeakSet[two_server.Leader] = WeakSet()  # those whose noise is the plan's

    @property
    def sketches(self) -> list[CountSketch]:
        """The sums that have landed, in the order of their rounds.

        Under central trust they are exact: whoever releases them adds the noise (`campaign.release.released`).
        Where the noise is in the clients' vectors, or two servers add it, they are marked so.
        """
        return [self._landed[round] for round in sorted(self._landed)]

    def open(
        self,
        round: int,
        *,
        session: bytes,
        signing_key: SigningKey,
        salt: bytes,
        random: Callable[[int], bytes],
        not_before: int,
        not_after: int,
        allow_list: AllowList | None = None,
        journal: Callable[[bytes], None] | None = None,
    ) -> Server:
        """Return the server's side of a new session for one cohort of a round.

        Args:
            round: 0 .. num_rounds - 1.
            session: 32 uniform bytes, never used before.
            signing_key: the key that the plan names.
            salt: 32 uniform bytes, for the digest of the sum.
            random: returns as many uniform bytes as it is asked for, from a cryptographic source; draws the order of
                the roster in `semi_honest`.
            not_before: Unix seconds.
            not_after: Unix seconds.
            allow_list: the registered identities, in `active`.
            journal: writes checkpoints; see `secagg.server.Server`.

        Raises:
            InvalidInputError: the plan is not summed so, or it names another key or allow-list.
        """
        terms = _secagg(self.plan)
        _validate.integer(0, self.plan.num_rounds - 1, round=round)
        if signing_key.public != terms.server_key:
            raise InvalidInputError("this signing key is not the one that the plan names")
        if (None if allow_list is None else allow_list.digest) != terms.allow_list:
            raise InvalidInputError("this allow-list is not the one that the plan names")
        if session in self._sessions_opened:
            raise InvalidInputError("this session was opened before; draw 32 new bytes for each")
        self._sessions_opened.add(session)
        return Server(
            terms.parameters,
            session=session,
            signing_key=signing_key,
            fingerprint=bytes.fromhex(self.plan.fingerprint),
            round=round,
            not_before=not_before,
            not_after=not_after,
            salt=salt,
            random=random,
            allow_list=allow_list,
            journal=journal,
        )

    def leader(
        self,
        opening: int,
        policy: two_server.BatchPolicy,
        allow_list: AllowList,
        journal: two_server.Journal,
        *,
        random: Callable[[int], bytes] | None = None,
    ) -> two_server.Leader:
        """Return the leader's side of a batch: the reports of one of the plan's openings.

        Args:
            opening: which of the plan's openings.
            policy: the leader's own.
            allow_list: whose digest is in the plan.
            journal: the leader's own.
            random: returns as many uniform bytes as it is asked for, from a cryptographic source; needed where the plan
                says that the servers add noise, which is the plan's and drawn from it.

        Raises:
            UnsafeParametersError: the policy refuses the plan.
            InvalidInputError: the plan is not summed so, there is no such opening, or no randomness where it is needed.
        """
        parameters, rounds = _two_server(self.plan), self._rounds(opening)
        made = two_server.Leader(parameters, rounds, allow_list, policy, journal, self._server_noise(random))
        self._leaders.add(made)
        return made

    def helper(
        self,
        opening: int,
        policy: two_server.BatchPolicy,
        allow_list: AllowList,
        journal: two_server.Journal,
        key: OpeningKey,
        *,
        random: Callable[[int], bytes] | None = None,
    ) -> two_server.Helper:
        """Return the helper's side of a batch, as `leader`; `key` is the one that clients seal to."""
        parameters, rounds = _two_server(self.plan), self._rounds(opening)
        return two_server.Helper(parameters, rounds, allow_list, policy, journal, key, self._server_noise(random))

    def _server_noise(self, random: Callable[[int], bytes] | None) -> Callable[[], I64] | None:
        """Return what draws the plan's noise of one of two servers; None: the plan has none for them to add.

        Proof: docs/privacy-proofs/two_servers.md.
        """
        privacy = self.plan.privacy
        if privacy is None or privacy.event.trust is not Trust.DISTRIBUTED:
            return None
        if random is None:
            raise InvalidInputError("each server adds the plan's noise before a sum is opened: give it randomness")
        noise, counters = privacy.noise(), self.plan.rows * self.plan.width
        return lambda: noise.draw(Secret(random(KEY_BYTES)), counters)

    def land(self, session: Server) -> CountSketch:
        """Add the sum of a cohort to its round's sketch, once.

        Args:
            session: that of the cohort, done: from `open`, or restored from its checkpoint.

        Returns:
            The round's sketch, so far.

        Raises:
            RejectedSumError: no sketches of so many clients have this sum: a counter, or the sum of |counters| of a
                row, is too large, or the sum of a row is odd where it must be even or the other way round. Nothing has
                landed.
            LocalProtocolError: the session is not done, or its sum has landed.
            InvalidInputError: it is a session of another plan.
        """
        if session.outcome is None:
            raise LocalProtocolError(f"there is no sum to land: the session is {session.state.value}")
        terms = _secagg(self.plan)
        # A session can name the plan's fingerprint and have fewer clients than its noise counts on.
        listed = bytes(KEY_BYTES) if terms.allow_list is None else terms.allow_list
        agreed = (self.plan.fingerprint, terms.parameters, listed)
        if (session.terms.fingerprint.hex(), session.terms.parameters, session.terms.allow_list) != agreed:
            raise InvalidInputError("the session is of another plan")
        if session.session in self._sessions_landed:
            raise LocalProtocolError("the sum of this session has landed; a second time would count its clients twice")
        sketch = self._add(session.terms.round, session.outcome.total, session.outcome.survivors)
        self._sessions_landed.add(session.session)
        return sketch

    def land_batch(self, leader: two_server.Leader) -> CountSketch:
        """Make the sum of a batch the sketch of the first round of its opening: two servers open one batch each.

        Args:
            leader: that of the batch, done: one that `leader` made, so that the plan's noise is in its sum. After a
                restart it is made again, of its journal.

        Raises:
            RejectedSumError: as for `land`.
            LocalProtocolError: the batch is not done, or the opening has landed.
            InvalidInputError: the plan is not summed so, or the leader is of another plan, or made elsewhere.
        """
        if leader.parameters != _two_server(self.plan):
            raise InvalidInputError("the batch is of another plan")
        if leader not in self._leaders:
            raise InvalidInputError(
                "this leader was made elsewhere, with any noise or none: make it by FrequencyServer.leader"
            )
        round, total = leader.rounds.start, leader.total
        if round in self._landed:
            raise LocalProtocolError(f"round {round} has landed; a second batch would count its clients twice")
        return self._add(round, total, leader.count)

    def _rounds(self, opening: int) -> range:
        openings = self.plan.openings
        return openings[_validate.integer(0, len(openings) - 1, opening=opening)]

    def _add(self, round: int, total: I64, num_clients: int) -> CountSketch:
        sketch = CountSketch(self.plan.spec, round)
        sketch.counters = total.reshape(sketch.counters.shape).copy()
        sketch.num_clients = num_clients
        privacy = self.plan.privacy
        if privacy is not None and privacy.noised_by != "aggregator":  # the noise was in what was summed
            sketch.noise = self.plan.noise_mark
        _check_plausible(sketch, self.plan)
        if round in self._landed:
            self._landed[round].merge(sketch)
        else:
            self._landed[round] = sketch
        return self._landed[round]


def _check_plausible(sketch: CountSketch, plan: Plan) -> None:
    """Refuse a sum that no sketches have: an item adds +1 or -1 to one counter of each row, noise so much to each.

    Noise has a bound for each counter and one for the sizes of a row together; honest noise exceeds either in a sum
    with a probability of 2^-40 at most.
    """
    max_items, noise = plan.max_items, plan.noise_bound
    items = sketch.num_clients * max_items
    who = f"{sketch.num_clients} clients of at most {max_items} items {'and their noise ' * (noise > 0)}"
    for row in sketch.counters:
        largest = max(int(row.max()), -int(row.min()))
        if largest > items + noise:
            raise RejectedSumError(
                f"a counter of the sum is {largest}, and {who}cannot exceed {items + noise}: "
                "a client sent something else than a sketch"
            )
        total, bound = _sum_of_sizes(row), items + plan.row_noise_bound
        if total > bound:
            raise RejectedSumError(
                f"the counters of a row of the sum add up to {total} without their signs, and {who}cannot exceed "
                f"{bound}: a client sent something else than a sketch"
            )
    if plan.privacy is None and max_items == 1 and ((sketch.counters.sum(axis=1) - sketch.num_clients) % 2).any():
        raise RejectedSumError(
            "the sum of a row has another parity than the number of clients, each of whom adds or subtracts 1 in it: "
            "a client sent something else than a sketch of one item"
        )


def _sum_of_sizes(row: I64) -> int:
    """Return the sum of |counters|, exactly: in halves, since 2^24 counters of 2^63 do not fit 64 bits."""
    sizes = np.abs(row)
    return (int((sizes >> 32).sum()) << 32) + int((sizes & (2**32 - 1)).sum())
