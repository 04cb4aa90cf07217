"""A campaign over its rounds: what a client contributes and how the sums land, joined to secure summation. Sans-IO.

`FrequencyClient` makes a sketch of a client's items for the round that it joins, and takes part in the protocol that
the `Plan` names. `FrequencyServer` opens a session for each cohort, and adds the sums of a round's
cohorts to its sketch. What carries the bytes, and when, is the caller's.

>>> from fedtally.domain import IntegerRange
>>> from fedtally.plan import Plan
>>> domain = IntegerRange(1, 100)
>>> plan = Plan(rows=3, width=8, schedule="shared", num_rounds=1, num_clients=50, cohort=50,
...             domain=domain.describe(), max_items=1, seed=bytes(32))
>>> client = FrequencyClient(plan, domain, [7])
>>> client
FrequencyClient(hidden)
>>> int(abs(client.contribution(0)).sum())  # one counter in each row
3
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Set
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, Self, SupportsIndex
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from fedtally import _validate
from fedtally.crypto.hpke import OpeningKey
from fedtally.crypto.keys import KEY_BYTES, Secret, SigningKey
from fedtally.domain import Domain
from fedtally.errors import FedtallyError, InvalidInputError, OutsideDomainError
from fedtally.plan import Plan
from fedtally.privacy.events import Trust
from fedtally.secagg import two_server
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.client import Client, Journal, Pinned
from fedtally.secagg.messages import LocalProtocolError
from fedtally.secagg.params import ClientPolicy
from fedtally.secagg.server import Server
from fedtally.secagg.terms import SecAggTerms, TwoServerTerms
from fedtally.sketch import CountSketch
from fedtally.sketch.clip import clipped, drawn

if TYPE_CHECKING:
    from fedtally.privacy.policy import PrivacyPolicy

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
_NOTHING = np.zeros(0, np.uint64)


class RejectedSumError(FedtallyError):
    """Refuse a sum that no sketches of so many clients can have: somebody sent something else."""


class FrequencyClient:
    """One client of a campaign, with its items.

    Args:
        plan: the campaign's, from a channel that the client trusts.
        domain: the candidate items, of which the plan holds the description.
        items: what the client holds: text or integers, or [n, 2] coordinates; repeated ones count once. Under a plan
            with privacy nothing that others can see depends on them: items that are no candidates are left out, of too
            many some are drawn, and who holds none takes part with zeros.

    Raises:
        OutsideDomainError: an item is no candidate, and the plan is without privacy.
        InvalidInputError: the domain is another; the items are no column; or an item cannot be read, there is none, or
            there are more than the plan's max_items, and the plan is without privacy.

    An error about the items shows none of them: neither in its message, nor in what it is chained to, nor in the
    variables of its traceback.
    """

    def __init__(self, plan: Plan, domain: Domain, items: Any) -> None:
        self._plan = plan
        self._ids, problem = _read(plan, domain, items)
        del items  # tools that log the variables of each frame of a traceback would show them
        if problem is not None:
            raise problem
        self._check_number()

    @classmethod
    def of_ids(cls, plan: Plan, ids: npt.NDArray[np.uint64]) -> Self:
        """Return the client that holds the items of these ids: uint64 [n], of the plan's domain.

        Raises:
            InvalidInputError: the ids are of another type or shape; or there is none, or there are more than the plan's
                max_items, without privacy.
        """
        form = f"{ids.dtype} {ids.shape}" if isinstance(ids, np.ndarray) else type(ids).__name__
        client, is_column = cls.__new__(cls), isinstance(ids, np.ndarray) and ids.dtype == np.uint64 and ids.ndim == 1
        client._plan, client._ids = plan, np.unique(ids) if is_column else _NOTHING
        del ids
        if not is_column:
            raise InvalidInputError(f"ids must be uint64 [n], got {form}")
        client._check_number()
        return client

    def _check_number(self) -> None:
        if self._plan.privacy is None and not 1 <= len(self._ids) <= self._plan.max_items:
            raise InvalidInputError(
                f"a client must have 1 to {self._plan.max_items} distinct items by the plan, got {len(self._ids)}; "
                "draw that many uniformly"
            )

    def __repr__(self) -> str:
        return "FrequencyClient(hidden)"

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> NoReturn:
        raise InvalidInputError("a client's items are secret: they cannot be copied or pickled")

    def contribution(self, round: int, random: Callable[[int], bytes] | None = None) -> I64:
        """Return the sketch of the items for a round, as one vector: int64 [rows * width]. It is not yet hidden.

        Under a plan with privacy it is bounded, and holds this client's share of the noise if clients add it: the
        vector is to be used once. Another call draws anew, and two vectors would show more than one. Proof:
        docs/privacy-proofs/shares.md.

        Args:
            round: 0 .. num_rounds - 1.
            random: returns as many uniform bytes as it is asked for; needed with privacy.

        Raises:
            InvalidInputError: there is no such round, or no randomness where it is needed.
        """
        sketch = CountSketch(self._plan.spec, round)
        privacy = self._plan.privacy
        if privacy is None:
            sketch.add(self._ids, num_clients=1)
            return sketch.counters.reshape(-1)
        if random is None:
            raise InvalidInputError("a contribution with privacy draws items and noise: give it randomness")
        held = ids = self._ids.copy()
        vector = sketch.counters.reshape(-1)
        try:
            ids = drawn(held, self._plan.max_items, random)
            if privacy.event.clip_norm is not None:
                ids = clipped(self._plan.spec, round, ids, privacy.event.clip_norm, random)
            sketch.add(ids, num_clients=1)
            if privacy.by_clients:
                share = privacy.share()
                vector += share.draw(Secret(random(KEY_BYTES)), len(vector), constant_time=share.is_small)
        except BaseException:  # the frames of its traceback hold these
            for secret in (held, ids, vector):
                secret.fill(0)
            raise
        return vector

    def join(
        self,
        round: int,
        policy: ClientPolicy,
        *,
        journal: Journal,
        random: Callable[[int], bytes],
        identity: SigningKey | None = None,
        allow_list: AllowList | None = None,
        privacy: PrivacyPolicy | None = None,
    ) -> Client:
        """Return this client's side of one session, which takes an Invite for this round of the plan alone.

        Args:
            round: 0 .. num_rounds - 1; `secagg.client.read_invite` says which one an Invite is for.
            policy: what the client demands, whatever the plan says.
            journal: that of these items, and of this round if it is of one round: they are counted once in the whole
                campaign.
            random: returns as many uniform bytes as it is asked for, from a cryptographic source.
            identity: the client's registered key, in `active`.
            allow_list: the registered identities, in `active`.
            privacy: what the client demands of the plan's differential privacy. None demands nothing: a plan without
                any, with an epsilon of 100, or of a server that sees exact sums will do.

        Raises:
            UnsafeParametersError: the policy refuses the plan.
            WeakPrivacyError: `privacy` refuses it.
            InvalidInputError: the plan is not summed so, there is no such round, the journal is of another plan or
                round, or the allow-list is not the plan's.
        """
        terms = _secagg(self._plan)
        policy.check_invite(terms.parameters)
        if privacy is not None:
            privacy.check(self._plan.privacy)
        round = self._checked_round(round, journal)
        if allow_list is not None and allow_list.digest != terms.allow_list:
            raise InvalidInputError("this allow-list is not the one that the plan names")
        pinned = Pinned(
            server_key=terms.server_key,
            fingerprint=bytes.fromhex(self._plan.fingerprint),
            allow_list=allow_list,
            parameters=terms.parameters,
            round=round,
        )
        return Client(
            policy,
            pinned,
            lambda _: self.contribution(round, random),
            journal=journal,
            random=random,
            identity=identity,
        )

    def _checked_round(self, round: int, journal: Journal) -> int:
        """Return the round, if it is the plan's and the journal books no other: what is sent is what is booked."""
        round = _validate.integer(0, self._plan.num_rounds - 1, round=round)
        of = getattr(journal, "fingerprint", self._plan.fingerprint)
        if of != self._plan.fingerprint:
            raise InvalidInputError(f"the journal is that of another plan, {of[:16]}: use one of this plan")
        booked = getattr(journal, "round", round)
        if booked != round:
            raise InvalidInputError(
                f"the journal is that of round {booked}, and the client joins round {round}: "
                "use a journal of that round"
            )
        return round

    def report(
        self,
        round: int,
        policy: two_server.BatchPolicy,
        *,
        journal: Journal,
        identity: SigningKey,
        random: Callable[[int], bytes],
        privacy: PrivacyPolicy | None = None,
    ) -> two_server.Report:
        """Return this client's report to two servers, who take one of an identity in each opening.

        Args:
            round: 0 .. num_rounds - 1.
            policy: what the client demands, whatever the plan says; it is asked first.
            journal: that of these items, and of this round if it is of one round; they are spent before the report is
                returned.
            identity: the client's registered key.
            random: returns as many uniform bytes as it is asked for, from a cryptographic source.
            privacy: what the client demands of the plan's differential privacy, asked as early; None demands nothing,
                as in `join`.

        Raises:
            UnsafeParametersError: the policy refuses the plan.
            WeakPrivacyError: `privacy` refuses it.
            LocalProtocolError: the journal refuses: the items were reported, or summed, before, or the part in the
                round is one too many or cannot be counted.
            InvalidInputError: the plan is not summed so, there is no such round, or the journal is of another plan or
                round.
            Exception: what `journal` or `random` raised, as it was.
        """
        parameters = _two_server(self._plan)
        policy.check(parameters)  # before anything of its size is allocated
        if privacy is not None:
            privacy.check(self._plan.privacy)
        round = self._checked_round(round, journal)
        vector = self.contribution(round, random)
        try:
            report = two_server.make_report(
                parameters, vector, round=round, identity=identity, policy=policy, random=random
            )
        finally:
            vector.fill(0)  # it is not masked, and an error that follows has it in its frames
        if not journal.spend(parameters.context):
            why = getattr(journal, "refusal", "") or "they may be spent, and a second report would count them twice"
            raise LocalProtocolError(f"the journal refuses these items: {why}")
        return report


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

        Under central trust they are exact: whoever releases them adds the noise (`engines.privacy.released`). Where the
        noise is in the clients' vectors, or two servers add it, they are marked so.
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


def _read(plan: Plan, domain: Domain, items: Any) -> tuple[U64, FedtallyError | None]:
    """Return the distinct ids of a client's items, or what is wrong with these in words that show nothing of them.

    The error is returned, to be raised elsewhere: that of a codec, which shows an item, would stay attached to it.
    """
    problem: FedtallyError
    if domain.describe() != dict(plan.domain):
        problem = InvalidInputError("the domain is not the one that the plan describes; use the plan's candidates")
        return _NOTHING, problem
    try:
        ids = domain.encode(items) if plan.privacy is None else _ids_inside(domain, items)
        return np.unique(ids), None
    except OutsideDomainError:
        problem = OutsideDomainError(
            "an item is none of the plan's candidates; leave it out, and contribute nothing if no other is left"
        )
    except Exception:  # of codecs, Arrow, or the items themselves
        problem = InvalidInputError(
            f"items must be a list, an array or a series, got {type(items).__name__}, "
            f"and each of the form that the domain {domain} has"
        )
    return _NOTHING, problem


def _ids_inside(domain: Domain, items: Any) -> U64:
    """Return the ids of those of the items that are candidates, one by one: no other says anything by an error.

    Raises:
        TypeError: the items are no column.
    """
    if isinstance(items, str | bytes | Set | Mapping) or not isinstance(items, Collection | np.ndarray):
        raise TypeError
    points = isinstance(items, np.ndarray) and items.ndim == 2
    each: list[Any] = [item[None] for item in items] if points else [[_whole(item)] for item in items]
    return np.concatenate([_NOTHING, *(_id_inside(domain, one) for one in each)])


def _id_inside(domain: Domain, one: Any) -> U64:
    """Return the id of a column of one item, or none if it is no candidate, whatever it is instead."""
    with suppress(Exception):
        if domain.inside(one)[0]:
            return domain.encode(one)
    return _NOTHING


def _whole(item: Any) -> Any:
    """Return the integer that a float is: integers beside a missing one come as floats."""
    return int(item) if isinstance(item, float | np.floating) and float(item).is_integer() else item


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


def _secagg(plan: Plan) -> SecAggTerms:
    if not isinstance(plan.secure_sum, SecAggTerms):
        raise InvalidInputError("this plan is not summed by secure aggregation between clients (secure_sum secagg)")
    return plan.secure_sum


def _two_server(plan: Plan) -> two_server.TwoServerParameters:
    if not isinstance(plan.secure_sum, TwoServerTerms):
        raise InvalidInputError("this plan is not summed by two servers (secure_sum two-server)")
    return plan.secure_sum.parameters(bytes.fromhex(plan.fingerprint))
