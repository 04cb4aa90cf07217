"""Chance against secure summation: servers that say anything, messages in any order, bytes of any
kind.

`FEDTALLY_FUZZ_SECONDS` sets how long each of the two searches for an attack runs; 6 by default.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
import os
import random  # noqa: TID251 - as in the tool
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from secagg_adversaries import LyingServer, Run, Session, View, World, both_shares, complete, learnt
from test_secagg_attacks import CASES

from fedtally.errors import UnreadableFileError
from fedtally.secagg import wire
from fedtally.secagg.messages import Kind, ServerState
from fedtally.secagg.params import Adversary

SECONDS = float(os.environ.get("FEDTALLY_FUZZ_SECONDS", "6"))
ROOT = Path(__file__).parents[2]


def _tool() -> ModuleType:
    path = ROOT / "tools" / "fuzz_secagg.py"
    spec = importlib.util.spec_from_file_location("fuzz_secagg", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fuzz_secagg"] = module
    spec.loader.exec_module(module)
    return module


tool = _tool()


# ---- servers that say anything ----


class RandomServer(LyingServer):
    """Chooses by chance what it tells each client, near to what the client would accept.

    It tells of one or several rosters, which differ in members or in the advert of a corrupt
    client; it leaves out clients by region or by chance, gives garbage, reflected and swapped
    ciphertexts, shows survivors that suit one client, a region or somebody else, and gives all
    signatures, some of them, or those on other survivors.
    """

    def __init__(self, world: World, dice: random.Random) -> None:
        super().__init__(world)
        self.dice = dice

    def begin(self, session: Session | None = None) -> None:
        super().begin(session)
        self.style = self.dice.random()
        self.block = {rank: self.dice.randrange(2) for rank in range(len(self.world.identities))}
        self.twins = {rank: self.world.puppet(self.session, rank, "twin") for rank in self.puppets}
        self.views = [self._some_roster() for _ in range(self.dice.choice([1, 1, 2, 3]))]
        if self.puppets and self.dice.random() < 0.2:
            view = self.views[0]
            known = dict(zip(view.members, view.adverts, strict=True))
            known |= {rank: twin.advert for rank, twin in self.twins.items() if rank in known}
            self.views.append(self.world.view(self.session, known))
        self.heard: dict[Run, set[int]] = {}
        self.sets: list[set[int]] = []

    def _some_roster(self) -> View:
        adverts = {rank: puppet.advert for rank, puppet in self.puppets.items()}
        adverts |= {run.rank: run.advert for run in self.runs}
        p = self.world.parameters
        size = self.dice.randint(p.n_min, min(p.n_max, len(adverts)))
        return self.world.view(
            self.session, {rank: adverts[rank] for rank in self.dice.sample(sorted(adverts), size)}
        )

    def roster(self, run: Run) -> View:
        fitting = [view for view in self.views if run.rank in view.members] or self.views
        return (
            self.dice.choice(fitting)
            if self.dice.random() < 0.1
            else fitting[self.block[run.rank] % len(fitting)]
        )

    def sealed(self, owner: int, run: Run) -> bytes:
        assert run.view is not None
        if owner in self.puppets and self.puppets[owner].advert not in run.view.adverts:
            return self.twins[owner].seal(run.view, run.rank)
        return super().sealed(owner, run)

    def inbox(self, run: Run) -> dict[int, bytes]:
        dice, sealed, keep = self.dice, super().inbox(run), self.dice.choice([1.0, 1.0, 0.9, 0.7])
        out = {}
        for peer, ciphertext in sealed.items():
            chance = keep
            if self.style > 0.8:
                chance = dice.choice([0.5, 0.8])
            elif self.style > 0.4:
                near = peer in self.puppets or self.block[peer] == self.block[run.rank]
                chance = 1.0 if near else dice.choice([0.0, 0.3, 0.7])
            if dice.random() < chance:
                out[peer] = ciphertext
        if dice.random() < 0.2:
            shares = run.said(Kind.SHARES) or b""
            for peer in out:
                if dice.random() < 0.3:
                    at = wire.SEALED_BYTES * dice.randrange(len(sealed))
                    reflected = shares[at : at + wire.SEALED_BYTES]
                    out[peer] = dice.choice(
                        [bytes(wire.SEALED_BYTES), reflected, dice.choice(list(sealed.values()))]
                    )
        self.heard[run] = set(out) | {run.rank}
        return out

    def survivors(self, run: Run) -> Iterable[int]:
        assert run.view is not None
        dice, mine, choice = self.dice, self.heard[run], self.dice.random()
        if choice < 0.5 and self.sets:
            return dice.choice(self.sets)
        alive = set(run.view.members)
        if choice < 0.7:
            alive = set(mine)
        elif choice < 0.8:
            alive = {
                rank
                for rank in alive
                if rank in self.puppets or self.block[rank] == self.block[run.rank]
            }
        if dice.random() < 0.5:
            alive = {rank for rank in alive if dice.random() < dice.choice([0.6, 0.8, 0.9])}
        if dice.random() < 0.7:
            alive = (alive & mine) | {run.rank}
        missing = self.world.parameters.min_survivors - len(alive)
        if missing > 0 and dice.random() < 0.8:
            rest = sorted(mine - alive)
            alive |= set(dice.sample(rest, min(missing, len(rest))))
        self.sets.append(alive)
        return alive

    def confirmations(self, run: Run) -> dict[int, bytes]:
        given, choice = super().confirmations(run), self.dice.random()
        if choice < 0.6:
            return given
        if choice < 0.8:
            return self.signed(run, self.runs)
        return {rank: signature for rank, signature in given.items() if self.dice.random() < 0.8}


def random_world(dice: random.Random, seed: object) -> World:
    """Return 3 to 6 clients a roster, 0 or 1 of them corrupt, and up to 3 identities more than a
    roster holds."""
    while True:
        n, corrupt, more = dice.randint(3, 6), dice.randrange(2), dice.choice([0, 0, 0, 1, 3])
        threshold = (n + corrupt) // 2 + 1
        few = dice.randint(max(3, min(n, threshold + corrupt)), n)
        if few - corrupt >= threshold and few - 2 * corrupt >= 2:
            least = dice.randint(max(threshold, corrupt + 2), few - corrupt)
            parameters = complete(Adversary.ACTIVE, n, corrupt, least, n_min=few)
            return World(n + more, corrupt=corrupt, parameters=parameters, seed=seed)


def random_attack(number: int) -> tuple[list[str], int]:
    """Return what attack number i learns beyond the claim, and how many sums."""
    dice = random.Random(f"attack {number}")
    world = random_world(dice, number)
    found = RandomServer(world, dice).attack()
    return found + both_shares(world), len(learnt(world))


def test_whatever_a_server_says_it_learns_at_most_one_sum_over_enough_clients() -> None:
    deadline, sums = time.monotonic() + SECONDS, 0
    for number in itertools.count():
        found, learns = random_attack(number)
        assert found == [], f"attack {number}"
        sums += learns
        if time.monotonic() > deadline and number >= 100:
            break
    assert sums > number // 50, "the search hardly ever gets as far as a sum: it would find nothing"


def test_the_search_finds_what_the_inbox_check_prevents(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same search against a client without one check: an attack is found within 2,000 tries."""
    next(case for case in CASES if case.check.startswith("(d)")).mutation(monkeypatch)
    assert any(random_attack(number)[0] for number in range(2000))


class ChosenServer(LyingServer):
    """Tells each client one of the views that it would not refuse outright."""

    def __init__(
        self, world: World, views: dict[int, tuple[frozenset[int], frozenset[int], bool]]
    ) -> None:
        super().__init__(world)
        self.views = views

    def inbox(self, run: Run) -> dict[int, bytes]:
        return {
            peer: sealed
            for peer, sealed in super().inbox(run).items()
            if peer in self.views[run.rank][0]
        }

    def survivors(self, run: Run) -> Iterable[int]:
        return self.views[run.rank][1]

    def confirmations(self, run: Run) -> dict[int, bytes]:
        return super().confirmations(run) if self.views[run.rank][2] else {}


def views_of(
    rank: int, n: int, least: int, *, withhold: bool
) -> list[tuple[frozenset[int], frozenset[int], bool]]:
    """Return all (present, alive, whether it is given signatures) that one client accepts in one
    roster."""

    def subsets(of: Iterable[int], size: int) -> Iterator[frozenset[int]]:
        pool = sorted(of)
        for count in range(size, len(pool) + 1):
            yield from map(frozenset, itertools.combinations(pool, count))

    return [
        (present, alive | {rank}, given)
        for present in subsets(set(range(n)) - {rank}, least - 1)
        for alive in subsets(present, least - 1)
        for given in ((True, False) if withhold else (True,))
    ]


@pytest.mark.parametrize(("n", "corrupt", "least"), [(3, 0, 2), (4, 1, 3), (4, 0, 3), (5, 1, 4)])
def test_all_views_of_a_few_clients(n: int, corrupt: int, least: int) -> None:
    """All of them where there are few, else an even sample, in a bounded time."""
    choices = [views_of(rank, n, least, withhold=SECONDS > 30) for rank in range(corrupt, n)]
    total = math.prod(map(len, choices))
    few, deadline, sums = total <= 400, time.monotonic() + SECONDS / 4, 0
    for number in random.Random(n).sample(range(total), total):
        picked, rest = {}, number
        for rank, views in enumerate(choices, corrupt):
            rest, place = divmod(rest, len(views))
            picked[rank] = views[place]
        world = World(n, corrupt=corrupt, min_survivors=least)
        assert ChosenServer(world, picked).attack() == [], picked
        sums += bool(learnt(world))
        if time.monotonic() > deadline and sums and not few:
            break
    assert sums > 0


# ---- messages in any order ----


class CohortMachine(RuleBasedStateMachine):
    """Two sessions of one cohort on a network that loses, repeats, reorders and changes what it
    carries.

    What must hold after every step is checked by the tool's `Machines`: nothing is raised, states
    move along the table, who has aborted says nothing more, nobody sends two different messages of
    one type, no item is in two sessions, no forgery is taken, a sum is exact over the survivors
    that it names.
    """

    def __init__(self) -> None:
        super().__init__()
        self.game: Any = None

    @precondition(lambda self: self.game is None)
    @rule(setting=st.integers(0, len(tool.SETTINGS) - 1), label=st.integers(0, 3))
    def start(self, setting: int, label: int) -> None:
        self.game = tool.Machines(setting, label)

    def _out(self, number: int) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = self.game.cohorts[number].outgoing()
        return found

    @precondition(lambda self: self.game)
    @rule(number=st.integers(0, 1), lost=st.sets(st.integers(0, 5), max_size=1))
    def carry_all(self, number: int, lost: set[int]) -> None:
        """Ask everybody, but for the lost."""
        for i, frame in self._out(number):
            if i not in lost:
                answer = self.game.tell(number, i, frame)
                if answer is not None:
                    self.game.hand(number, i, answer)

    @precondition(lambda self: self.game)
    @rule(number=st.integers(0, 1), order=st.randoms(use_true_random=False), repeat=st.booleans())
    def carry_some(self, number: int, order: random.Random, repeat: bool) -> None:
        """Ask some, in another order, perhaps twice."""
        outgoing = self._out(number)
        order.shuffle(outgoing)
        for i, frame in outgoing[: 1 + len(outgoing) // 2]:
            for _ in range(1 + repeat):
                answer = self.game.tell(number, i, frame)
                if answer is not None:
                    self.game.hand(number, i, answer)

    @precondition(lambda self: self.game and self.game.frames)
    @rule(
        number=st.integers(0, 1),
        i=st.integers(0, 3),
        at=st.integers(0, 500),
        to_server=st.booleans(),
    )
    def replay(self, number: int, i: int, at: int, to_server: bool) -> None:
        """Give somebody an old message, whoever it was for."""
        frame = self.game.frames[at % len(self.game.frames)]
        self.game.hand(number, i, frame) if to_server else self.game.tell(number, i, frame)

    @precondition(lambda self: self.game)
    @rule(
        number=st.integers(0, 1),
        at=st.integers(0, 10**6),
        by=st.integers(1, 255),
        to_server=st.booleans(),
    )
    def corrupt_a_byte(self, number: int, at: int, by: int, to_server: bool) -> None:
        """Change a byte on the way to a client, or from it."""
        outgoing = self._out(number)
        if not outgoing:
            return
        i, frame = outgoing[at % len(outgoing)]
        if to_server:
            answer = self.game.tell(number, i, frame)
            if answer is not None:
                self.game.hand(number, i, _changed(answer, at, by))
        else:
            self.game.tell(number, i, _changed(frame, at, by))

    @precondition(lambda self: self.game)
    @rule(number=st.integers(0, 1), i=st.integers(0, 3))
    def drop_out(self, number: int, i: int) -> None:
        self.game.cohorts[number].clients[i].abandon()

    @precondition(lambda self: self.game)
    @rule(number=st.integers(0, 1), late=st.integers(0, 9))
    def close(self, number: int, late: int) -> None:
        self.game.close(number, tool.NOW + (5000 if late == 9 else 0))

    @precondition(lambda self: self.game)
    @rule(number=st.integers(0, 1))
    def crash(self, number: int) -> None:
        """Restore the server from what it wrote last: it says the very same."""
        server = self.game.cohorts[number].server
        said = list(server.outgoing())
        self.game.cohorts[number].restart()
        again = self.game.cohorts[number].server
        assert again.state is server.state and list(again.outgoing()) == said

    @invariant()
    def done_is_done(self) -> None:
        if self.game:
            for cohort in self.game.cohorts:
                assert (cohort.server.state is ServerState.DONE) == (
                    cohort.server.outcome is not None
                )


def _changed(frame: bytes, at: int, by: int) -> bytes:
    out = bytearray(frame)
    out[at % len(out)] ^= by
    return bytes(out)


TestCohortMachine = CohortMachine.TestCase
TestCohortMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


# ---- the tool ----


@pytest.mark.filterwarnings("ignore:Reading `.npy`")
@pytest.mark.parametrize("what", ["decoders", "machines"])
def test_the_tool_finds_nothing_in_a_short_run(
    what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = {"decoders": "30000", "machines": "60"}[what]
    assert tool.main([what, "--runs", runs, "--seed", "1"]) == 0, capsys.readouterr().out
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(f"{what}: {int(runs):,} of {int(runs):,} runs")
    assert ", 0 taken" not in last and ", 0 sums" not in last


def test_the_tool_says_what_it_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A decoder that forgets the padding takes what it does not give back."""
    unpack_bits = wire.unpack_bits

    def careless(data: bytes, count: int) -> Any:
        return unpack_bits(data, 8 * len(data))[:count]

    monkeypatch.setattr(wire, "unpack_bits", careless)
    assert tool.main(["decoders", "--runs", "30000"]) == 1
    out = capsys.readouterr().out
    assert "FAILED: run" in out
    bytes.fromhex(out.rsplit("input: ", 1)[1].strip())


def test_every_decoder_has_seeds_that_it_takes() -> None:
    for target in tool.targets():
        assert target.seeds, target.name
        if target.name.startswith("restore"):
            for seed in target.seeds:
                target.check(seed)
            with pytest.raises(UnreadableFileError):
                target.check(seed[:-1])
