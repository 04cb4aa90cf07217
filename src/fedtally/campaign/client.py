"""The client's side of a campaign, which takes part in secure summation; it does no I/O.

`FrequencyClient` makes a sketch (a small table of counters) of a client's items, for the round that
the client joins. It takes part in the protocol that the `Plan` names. `FrequencyServer` runs one
session of the protocol for each cohort, a group of clients, and adds the sums of all cohorts of a
round. This gives the round's sketch. The caller carries the bytes between client and server.

>>> from fedtally.domain import IntegerRange
>>> from fedtally.plan import Plan
>>> domain = IntegerRange(1, 100)
>>> plan = Plan(rows=3, width=8, schedule="shared", num_rounds=1, num_clients=50,
...             max_round_clients=50, domain=domain.describe(), max_items=1, seed=bytes(32))
>>> client = FrequencyClient(plan, domain, [7])
>>> client
FrequencyClient(hidden)
>>> int(abs(client.contribution(0)).sum())  # one counter in each row
3
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, Self, SupportsIndex

import numpy as np
import numpy.typing as npt

from fedtally.base import validate
from fedtally.campaign.candidate_ids import ids_inside, is_of_arrow, texts_inside
from fedtally.crypto.keys import KEY_BYTES, Secret, SigningKey
from fedtally.domain import Domain, Grid, Names, names_of
from fedtally.errors import FedtallyError, InvalidInputError, OutsideDomainError
from fedtally.plan import MAX_CLIENTS, Plan
from fedtally.secagg import two_server
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.client import Client, Journal, Pinned
from fedtally.secagg.config import SecAggConfig
from fedtally.secagg.messages import LocalProtocolError
from fedtally.secagg.params import ClientPolicy
from fedtally.sketch import CountSketch
from fedtally.sketch.clip import (
    bound_items,
    bound_items_of_each,
    by_owner,
    draw_words,
    places_of,
)

if TYPE_CHECKING:
    from fedtally.privacy.policy import PrivacyPolicy

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
_NOTHING = np.zeros(0, np.uint64)


class FrequencyClient:
    """One client of a campaign, with its items.

    An item that the plan counts is a candidate. An error about the items shows no item: its
    message, the errors that it is chained to and the variables in its traceback contain none. Only
    the caller's own frames in the traceback may show items.

    Args:
        plan: the plan of the campaign, from a channel that the client trusts.
        domain: the candidates. The plan has their description.
        items: the client's items, as a list, a NumPy or Arrow array, or a series, of text or
            integers, or as coordinates [n, 2]. An item that comes more than once counts once. See
            below for items that are not counted.
        bounded: whether a plan without privacy treats items like a plan with privacy does: it
            leaves out items that are no candidates, and draws items if there are more than
            max_items. With privacy this is always done. Without privacy, an error is still raised
            if no item is left.

    Raises:
        OutsideDomainError: an item is no candidate, the plan is without privacy, and `bounded` is
            False.
        InvalidInputError: the domain is not the plan's; or the type or dimensions of `items` are
            not allowed, for instance a table, bytes, or, for a grid, a NumPy array of single
            numbers. If the plan is without privacy, also: no item is left. If the plan is without
            privacy and `bounded` is False, also: an item cannot be read, or there are more distinct
            items than the plan's max_items.

    With privacy, items that are no candidates are left out. If more than the plan's max_items are
    left, `contribution` draws max_items of them. It may leave out more, until the sketch is within
    the plan's bound on its norm. If none is left, the client takes part with zeros. No error
    depends on the values of the items, with one exception. A grid refuses a one-dimensional NumPy
    array of numbers, but accepts the array if it is empty or has only missing values.
    """

    # int64 [people + 1]. Person p of a silo (a client with many people) has the ids
    # _ids[_starts[p] : _starts[p + 1]]. People without items are not numbered. None: all ids belong
    # to one person.
    _starts: I64 | None = None
    _without_items = 0
    # The strings that the ids stand for, if the domain is open (has no list); else None.
    _names: Names | None = None

    def __init__(self, plan: Plan, domain: Domain, items: Any, *, bounded: bool = False) -> None:
        self._plan = plan
        leave_out = bounded or plan.protection.is_charged
        self._ids, self._names, problem = _read(plan, domain, items, leave_out=leave_out)
        # otherwise a tool that logs the variables of a traceback's frames would log the items
        del items
        if problem is not None:
            raise problem
        self._check_number(bounded)

    @classmethod
    def of_ids(cls, plan: Plan, ids: npt.NDArray[np.uint64], names: Names | None = None) -> Self:
        """Return a client with some items, which are given by their ids.

        Args:
            plan: the plan of the campaign, from a channel that the client trusts.
            ids: the ids of the items in the plan's domain, uint64 [n]. In an open domain, which has
                no list of candidates, they are the fingerprints of the strings.
            names: in an open domain, the strings of these ids, and possibly other strings; else
                None.

        Raises:
            InvalidInputError: `ids` has another type or shape; the domain is open and `names` is
                missing; or, without privacy, there is no id, or there are more distinct ids than
                the plan's max_items.
        """
        form = validate.form_of(ids)
        client, is_column = (
            cls.__new__(cls),
            isinstance(ids, np.ndarray) and ids.dtype == np.uint64 and ids.ndim == 1,
        )
        client._plan, client._ids = plan, np.unique(ids) if is_column else _NOTHING
        client._names = names
        del ids, names
        if not is_column:
            raise InvalidInputError(f"ids must be uint64 [n], got {form}")
        if problem := plan.candidates.unspelled(client._names):
            raise InvalidInputError(problem)
        client._check_number()
        return client

    @classmethod
    def of_people(
        cls,
        plan: Plan,
        ids: npt.NDArray[np.uint64],
        people: npt.ArrayLike,
        without_items: int = 0,
        names: Names | None = None,
    ) -> Self:
        """Return a silo: a client that holds the items of many people.

        Each person contributes what one client would. If a person has more distinct items than the
        plan's max_items, max_items of them are drawn. With privacy, further items of a person are
        left out until the sketch of the rest is within the plan's bound on its norm. `contribution`
        adds up the contributions of all people. Behind the counters it puts the number of people.

        With privacy, a silo may have more people than the plan allows. Each call of `contribution`
        then draws as many people as the plan allows, and leaves out all other people. An error in
        place of the draw would show that the silo has too many people.

        Args:
            plan: a plan for silos, with `people` above 1.
            ids: the ids of the items of all people, uint64 [n], in any order. An id that comes more
                than once for the same person counts once.
            people: [n], a label of the person who holds each id: integers, text, or whatever else
                `np.unique` can sort.
            without_items: the number of people in the silo who hold no item. They count as people
                of the silo, too. Without privacy it must be 0.
            names: in an open domain, which has no list of candidates, the strings of these ids, and
                possibly other strings; else None.

        Raises:
            InvalidInputError: the plan is not for silos; `ids` or `people` has another type or
                shape; a label is missing or cannot be sorted; the domain is open and `names` is
                missing; `without_items` is out of range; or, without privacy, the silo has no
                people, a person without items, or too many people.
        """
        form = validate.form_of(ids)
        is_column = isinstance(ids, np.ndarray) and ids.dtype == np.uint64 and ids.ndim == 1
        client = cls.__new__(cls)
        client._plan, client._ids, client._starts = plan, _NOTHING, np.zeros(1, np.int64)
        client._names = names
        client._without_items = validate.integer(0, MAX_CLIENTS, without_items=without_items)
        problem = plan.clients.why_no_silos or plan.candidates.unspelled(names)
        if not problem and not is_column:
            problem = f"ids must be uint64 [n], got {form}"
        elif not problem:
            labels = None
            try:
                labels = np.asarray(people)
                if labels.shape != ids.shape:
                    problem = (
                        f"people must name the person of each of {len(ids)} ids, got labels of"
                        f" shape {labels.shape}"
                    )
                # A missing number or time is unequal to itself; None is not.
                elif (labels != labels).any() or (
                    labels.dtype == object and any(label is None for label in labels)
                ):
                    problem = "people must name a person for each id, got a missing label"
                else:
                    client._ids, client._starts = by_owner(ids, labels)
            except Exception:  # an error of NumPy's may quote a label
                problem = "people must be labels that can be sorted, such as integers or text"
            del labels
        del ids, people, names
        if not problem:
            problem = client._refused_number()
        if problem:
            raise InvalidInputError(problem)
        return client

    def _refused_number(self) -> str:
        """Return why the plan refuses the people of this silo, or "" if it accepts them.

        Without privacy, a silo must have people, not too many, and none without items. With privacy
        every number is accepted: `contribution` draws people if there are too many.
        """
        number, most = self._num_people, self._plan.people
        if self._plan.protection.is_charged:  # otherwise an error would depend on what people hold
            return ""
        if number > most:
            return (
                f"a silo must have at most {most} people by the plan, got {number}; leave some out,"
                " drawn uniformly, or take part in a plan with more people"
            )
        if number == 0 or self._without_items:
            return "without privacy each person must hold an item, and a silo one person at least"
        return ""

    @property
    def _num_people(self) -> int:
        return 1 if self._starts is None else len(self._starts) - 1 + self._without_items

    def _check_number(self, bounded: bool = False) -> None:
        number, most = len(self._ids), self._plan.max_items
        if self._plan.protection.is_charged:
            return
        if not number:
            raise InvalidInputError(
                "there is no item that the plan counts: under a plan without epsilon, a client"
                " needs at least one such item to take part"
            )
        if number > most and not bounded:
            raise InvalidInputError(
                f"a client has at most {most} distinct items by the plan, got {number}: draw {most}"
                " of them uniformly"
            )

    def __repr__(self) -> str:
        return "FrequencyClient(hidden)"

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> NoReturn:
        raise InvalidInputError("a client's items are secret: they cannot be copied or pickled")

    def contribution(self, round: int, random: Callable[[int], bytes] | None = None) -> I64:
        """Return the sketch of the items for a round, as one vector, int64 [plan.vector_length].

        The vector has the counters row by row. In a plan for silos, the number of people follows.
        With privacy, each person's contribution is bounded. If the plan lets clients add the noise,
        the vector also contains this client's share of the noise.

        The vector is secret: secure summation masks it before it is sent. Use the vector of one
        call only. Each call draws anew, so two vectors together would show more of the client's
        items than one vector does. Proof: docs/privacy-proofs/shares.md.

        Args:
            round: 0 .. num_rounds - 1.
            random: `random(n)` returns n uniform bytes. It is needed with privacy, and if the
                client, or a person of a silo, has more than max_items items.

        Raises:
            InvalidInputError: there is no such round, or `random` is needed and missing.
        """
        protection = self._plan.protection
        if random is None and protection.is_charged:
            raise InvalidInputError(
                "a contribution with privacy draws items and noise: give `random`"
            )
        sketch = CountSketch(self._plan.spec, round)
        vector = np.zeros(self._plan.vector_length, np.int64)
        size = sketch.vector.size
        sketch.vector = vector[:size]
        # In a plan without silos, the slice is empty.
        vector[size:] = min(self._num_people, self._plan.people)
        if not protection.is_charged:
            ids, _ = self._bounded(self._ids, self._starts, round, random)
            sketch.add(self._spelled(ids), num_clients=1)
            return vector
        assert random is not None
        # This copy can be erased after an error, whose traceback would otherwise show the items.
        held = ids = self._ids.copy()
        try:
            held, starts = self._drawn_people(held, random)
            ids = self._spelled(self._bounded(held, starts, round, random)[0])
            sketch.add(ids, num_clients=1)
            # The noise is drawn by a lookup in a table. The time of a usual lookup depends on the
            # noise, so whoever measures it could subtract the noise. If the table is small, a
            # lookup in constant time is used, which compares with every entry.
            if (share := protection.of_client()) is not None:
                vector += share.draw(
                    Secret(random(KEY_BYTES)), len(vector), constant_time=share.is_small
                )
        except BaseException:  # otherwise the traceback's frames would show these arrays
            for secret in (held, ids, vector):
                secret.fill(0)
            raise
        return vector

    def drawn(self, round: int, random: Callable[[int], bytes]) -> Self:
        """Return a new client with only the items that this client contributes to a round.

        This method draws the people of a silo, and at most max_items items of each person. The
        `contribution` of the new client draws no people and items again. So the running time of
        that call shows nothing of the items that were not drawn. With privacy, `contribution` still
        needs `random`, for example for the noise. Make one vector only, either from the new client
        or from this one: two vectors together would show more of the items than one vector does.

        Args:
            round: 0 .. num_rounds - 1. The new client is for this round alone.
            random: the source of uniform bytes, as for `contribution`; always needed.
        """
        drawn = type(self).__new__(type(self))
        drawn._plan, drawn._names = self._plan, self._names
        held, starts = self._drawn_people(self._ids, random)
        drawn._ids, drawn._starts = self._bounded(held, starts, round, random)
        if drawn._starts is not None:
            people = min(self._num_people, self._plan.people)
            drawn._without_items = people - (len(drawn._starts) - 1)
        return drawn

    def _spelled(self, ids: U64) -> U64:
        """Return what a sketch counts for some ids: the same ids or, in an open domain, rows.

        Without an open domain the result is uint64 [n]. With an open domain it is uint64 [n, 1 +
        positions]: each row has a hash of a string and one number for each position of the string.
        """
        if self._names is None:
            return ids
        return self._names.spell(ids, self._plan.spec.num_positions)

    def _drawn_people(self, ids: U64, random: Callable[[int], bytes]) -> tuple[U64, I64 | None]:
        """Return the ids that the contributing people hold, and where each person's ids begin.

        If the silo has more people than the plan allows, the allowed number of people is drawn
        uniformly. The draw sorts people by random numbers, so it does not depend on anybody's
        items. Both results have the form of `_ids` and `_starts`.
        """
        starts, number, most = self._starts, self._num_people, self._plan.people
        if starts is None or number <= most:
            return ids, starts
        # The numbers below len(starts) - 1 are people with items, larger numbers are people without
        # items.
        drawn = np.sort(np.argsort(draw_words(number, random))[:most])
        holding = drawn[drawn < len(starts) - 1]
        sizes = starts[holding + 1] - starts[holding]
        return ids[places_of(holding, starts)], np.append(0, np.cumsum(sizes))

    def _bounded(
        self, ids: U64, starts: I64 | None, round: int, random: Callable[[int], bytes] | None
    ) -> tuple[U64, I64 | None]:
        """Return at most max_items ids of each person, and where each person's ids begin.

        A client that is no silo is one person. If a person's sketch is still above the plan's bound
        on its norm, further ids are left out. Both results have the form of `ids` and `starts`.

        Args:
            ids: the ids of the items of the client, or of all people of the silo.
            starts: where the ids of each person of a silo begin; None: all belong to one person.
            round: the number of the round.
            random: `random(n)` returns n uniform bytes; None: a person with more than max_items
                items is an error.
        """
        most, clip = self._plan.max_items, self._plan.clip(round, self._spelled)
        if starts is None and random is not None:
            return bound_items(ids, most, random, clip), None
        if starts is None:
            if len(ids) > most:
                del ids  # a tool that logs the variables of a traceback's frames must not log them
                raise InvalidInputError(
                    f"this client holds more than {most} items, so {most} of them must be drawn:"
                    " give `random`"
                )
            return ids, None

        def words(block: I64) -> U64:
            if random is None:
                raise InvalidInputError(
                    f"some people of this silo hold more than {most} items, so {most} of each must"
                    " be drawn: give `random`"
                )
            return draw_words(int((starts[block + 1] - starts[block]).sum()), random)

        stays = bound_items_of_each(ids, starts, most, words, clip)
        return ids[stays], np.append(0, np.cumsum(stays))[starts]

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
        """Return this client's side of one session of secure summation.

        The returned object sends the sketch of this client's items for the round. It refuses an
        Invite (the server's first message) for another round or plan.

        Args:
            round: 0 .. num_rounds - 1. Read it from the Invite with `secagg.client.read_invite`.
            policy: the client's own demands on the secure sum, whatever the plan says.
            journal: records that the items were used, so that they cannot get into a second sum.
                One journal lets the client use its items once. If the journal has a round, it must
                be this `round`. A `store.Journal` of another round may let the client use its items
                again, as often as the plan's participations allow.
            random: a cryptographic source; `random(n)` returns n uniform bytes.
            identity: the client's registered key, if the plan's adversary is active (a server that
                may lie); else None.
            allow_list: the registered keys of all clients, if the plan's adversary is active; else
                None.
            privacy: the client's demands on the plan's differential privacy. None demands nothing.
                Then the client also accepts a plan without differential privacy, a plan with an
                epsilon of 100, and a plan whose server sees exact sums.

        Raises:
            UnsafeParametersError: the policy refuses the plan.
            WeakPrivacyError: `privacy` refuses the plan.
            InvalidInputError: the plan's secure sum is not secagg, or the plan lacks a key; there
                is no such round; the journal is for another plan or round; the allow-list is not
                the plan's; the plan needs `identity` and `allow_list`, and one is None; the plan
                needs neither, and one is given; or the identity is not in the list.
        """
        terms = _secagg(self._plan)
        # The policy is checked before memory is allocated, since a plan can ask for any amount of
        # memory.
        policy.check_invite(terms.parameters)
        if privacy is not None:
            privacy.check(self._plan.privacy)
        round = self._checked_round(round, journal)
        if allow_list is not None and allow_list.digest != terms.allow_list:
            raise InvalidInputError("this allow-list is not the one that the plan names")
        assert terms.server_key is not None  # `_secagg` refuses a plan without a server key
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
        """Return `round`, if the plan has it and the journal is not for another plan or round.

        Raises:
            InvalidInputError: the plan has no such round, or the journal is for another plan or
                round.
        """
        # A journal of another plan or round would record that the items were used there, and not
        # where they are sent. They could then be sent again.
        round = validate.integer(0, self._plan.num_rounds - 1, round=round)
        of = getattr(journal, "fingerprint", self._plan.fingerprint)
        if of != self._plan.fingerprint:
            raise InvalidInputError(
                f"the journal is that of another plan, {of[:16]}: use one of this plan"
            )
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
        now: int,
        journal: Journal,
        identity: SigningKey,
        random: Callable[[int], bytes],
        privacy: PrivacyPolicy | None = None,
    ) -> two_server.Report:
        """Return this client's report to two servers, with a proof if the plan asks for one.

        The proof shows that the report has the right form. The servers are called helper and
        leader. For each release (a published sum) they accept one report of each registered key.
        Send `Report.helper` to the helper first. Once the helper has accepted it, send
        `Report.leader` to the leader.

        Args:
            round: 0 .. num_rounds - 1.
            policy: the client's own demands on the two servers' sum.
            now: the time, Unix seconds. It is part of the signed report: servers refuse an old
                report.
            journal: records that the items were used, before the report is returned. If the journal
                has a round, it must be this `round`. A `store.Journal` also stores the report in
                its outbox, in the same transaction.
            identity: the client's registered key.
            random: a cryptographic source; `random(n)` returns n uniform bytes.
            privacy: the client's demands on the plan's differential privacy. They are checked
                before anything is drawn or recorded. None demands nothing, as in `join`.

        Raises:
            UnsafeParametersError: the policy refuses the plan.
            WeakPrivacyError: `privacy` refuses the plan.
            LocalProtocolError: the journal refuses. For instance, the items are in a report or a
                sum already, the client took part in as many rounds as it may, or the privacy costs
                of the client's campaigns cannot be added up.
            InvalidInputError: two servers do not compute the plan's sums, the plan lacks a key,
                there is no such round, the journal is for another plan or round, or `identity` is
                no SigningKey.
            Exception: an error that `journal` or `random` raised, unchanged.
        """
        parameters, proof = _two_server(self._plan), self._plan.report_proof
        # The policy is checked before memory is allocated, since a plan can ask for any amount of
        # memory.
        policy.check(parameters, has_proofs=proof is not None)
        if privacy is not None:
            privacy.check(self._plan.privacy)
        round = self._checked_round(round, journal)
        vector = self.contribution(round, random)
        try:
            named: dict[str, Any] = {"round": round, "now": now, "identity": identity}
            named["policy"] = policy
            if proof is None:
                report = two_server.make_report(parameters, vector, **named, random=random)
            else:
                report = two_server.make_proven_report(proof, vector, **named, random=random)
        finally:
            # the vector is not masked, and the frames of a later error would show it
            vector.fill(0)
        # The journal records on the disk that the items were used, and only then is the report
        # returned. Otherwise, after a crash, the items could get into a second sum, and the
        # difference of the sums would show them.
        if isinstance(journal, two_server.ReportJournal):
            is_spent = journal.spend_report(report)
        else:
            is_spent = journal.spend(parameters.context if proof is None else proof.context)
        if not is_spent:
            why = (
                getattr(journal, "refusal", "")
                or "they are perhaps spent already, and a second report would count them twice"
            )
            raise LocalProtocolError(f"the journal refuses these items: {why}")
        return report


def _read(
    plan: Plan, domain: Domain, items: Any, *, leave_out: bool
) -> tuple[U64, Names | None, FedtallyError | None]:
    """Return the distinct ids of a client's items, their names, and an error or None.

    The ids are uint64 [n]. The names are None unless the domain is open (without a list of
    candidates). The caller must raise the error. If there is one, the ids are empty, and the error
    shows no item. If this function raised the error itself, Python would attach a decoder's error
    to it, and the decoder's error shows an item.

    Args:
        plan: the plan of the campaign.
        domain: the candidates, which must be the plan's.
        items: the items, as for `FrequencyClient`.
        leave_out: whether to leave out items that are no candidates; otherwise they give an error.
    """
    problem: FedtallyError
    if not plan.has_domain(domain.describe()):
        problem = InvalidInputError(
            "the domain is not the one that the plan describes; use the plan's candidates"
        )
        return _NOTHING, None, problem
    try:
        if not _is_column(domain, items):
            raise TypeError
        domain = domain.with_seed(plan.seed)
        names = names_of(domain, lambda: texts_inside(domain, items) if leave_out else items)
        if names is not None:
            return names.ids, names, None
        ids = ids_inside(domain, items) if leave_out else domain.encode(items)
        return np.unique(ids), None, None
    except OutsideDomainError:
        problem = OutsideDomainError(
            "an item is none of the plan's candidates; leave it out, and contribute nothing if no"
            " other is left"
        )
    except Exception:  # an error of a codec, of Arrow, or of the items' own classes
        problem = InvalidInputError(
            f"items must be a list, an array or a series, got {type(items).__name__}; it must have"
            " one dimension, or hold coordinates [n, 2]; and each item must have the form that the"
            f" domain {domain} takes"
        )
    return _NOTHING, None, problem


def _is_column(domain: Domain, items: Any) -> bool:
    """Return whether a container's type and dimensions are right for a column of items.

    The caller chose the type and the dimensions, so a refusal shows nothing of the items. The
    values matter in one case only: a grid refuses a one-dimensional array of numbers, but accepts
    it if it is empty or has only missing values. The entries of a list, of an array of objects or
    of a one-dimensional series may be anything. The result is also True for text, bytes, a set or a
    mapping: reading these as a column raises an error later.
    """
    if isinstance(items, bytearray | memoryview):  # otherwise the bytes would be read as integers
        return False
    if is_of_arrow(items):
        import pyarrow as pa

        return not pa.types.is_nested(items.type)
    shape = getattr(items, "shape", (0,))  # a list has no shape, and is treated as one-dimensional
    if not isinstance(items, np.ndarray):
        return len(shape) == 1
    if items.dtype.names is not None:  # a structured array: each entry is a record
        return False
    if not isinstance(domain, Grid) or len(shape) != 1:
        return len(shape) == 1 or (isinstance(domain, Grid) and shape[1:] == (2,))
    # A grid takes coordinates, so an array of single numbers is refused. But NumPy also makes an
    # array of numbers from an empty list of texts, or from one with only missing values (NaN). To
    # refuse such an array would show that the client holds no item.
    return items.dtype.kind not in "iuf" or bool(np.isnan(items).all())


def _secagg(plan: Plan) -> SecAggConfig:
    """Return the parameters of secure summation in a plan, for cohorts of clients.

    Raises:
        InvalidInputError: the plan's secure sum is not secagg, or the plan lacks a key.
    """
    agreed = plan.summing.of_cohorts()
    plan.check_published()
    return agreed


def _two_server(plan: Plan) -> two_server.TwoServerParameters:
    """Return the parameters of secure summation in a plan, for two servers.

    Raises:
        InvalidInputError: two servers do not compute the plan's sums, or the plan lacks a key.
    """
    agreed = plan.summing.of_servers()
    plan.check_published()
    return agreed.parameters(
        bytes.fromhex(plan.fingerprint), plan.spec.row_widths, signed=plan.encoding.is_signed
    )
