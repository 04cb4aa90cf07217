"""The order in which the driver writes and speaks, as a model: every schedule of it, not samples.

Three clients; two processes, each of which may start, stop for any time, go on and die between any
two steps; a store of which a step is one transaction. `test_driver_schedules.py` runs the driver
itself; here each error in the order must show.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from typing import NamedTuple

import pytest

CLIENTS, LEAST = range(3), 2  # a sum needs two survivors
Bitmap = frozenset[int]


class Order(NamedTuple):
    """What a process does on its way from the vectors to the landing of their sum.

    Attributes:
        opening: what it does, step by step, before it shows the survivors.
        restoring: what it does first if it starts where the sum can be opened.
        closing: what it does, step by step, when it has the sum.
        compares: whether a write is refused to a process that was overtaken.
        repeats: whether the owner may reserve again.
        named: whether a sum lands under the name of its session, and its checkpoint is erased in
            the same transaction.
    """

    opening: tuple[str, ...] = ("reserve", "save")
    restoring: tuple[str, ...] = ("reserve",)
    closing: tuple[str, ...] = ("land",)
    compares: bool = True
    repeats: bool = True
    named: bool = True


class Store(NamedTuple):
    """What is on disk."""

    epoch: int = 0
    phase: str = "collect"
    survivors: Bitmap = frozenset()
    is_reserved: bool = False
    sums: int = 0


class Process(NamedTuple):
    """What a process has in memory. It speaks only when it has no steps left."""

    epoch: int
    phase: str
    survivors: Bitmap
    answered: Bitmap = frozenset()
    steps: tuple[str, ...] = ()


class State(NamedTuple):
    """A moment.

    `clients` holds what each client gave: nothing, its vector, or its shares under a bitmap.
    """

    store: Store = Store()
    processes: tuple[Process | None, Process | None] = (None, None)
    clients: tuple[str | Bitmap, ...] = ("",) * len(CLIENTS)
    shown: frozenset[Bitmap] = frozenset()
    opened_unreserved: bool = False
    deaths: int = 2  # that may still come


def following(state: State, order: Order) -> Iterator[State]:
    """Yield the states that one step of one process leads to."""
    for which, process in enumerate(state.processes):

        def become(
            changed: Process | None, store: Store = state.store, which: int = which
        ) -> State:
            both = [changed if i == which else one for i, one in enumerate(state.processes)]
            return state._replace(processes=(both[0], both[1]), store=store)

        store = state.store
        if process is None:
            if store.phase != "landed":
                first = order.restoring if store.phase != "collect" else ()
                first += ("land",) if store.phase == "done" else ()
                store = store._replace(epoch=store.epoch + 1)
                yield become(Process(store.epoch, store.phase, store.survivors, steps=first), store)
            continue
        if state.deaths:
            yield become(None)._replace(deaths=state.deaths - 1)
        if process.steps:
            yield from stepped(process, store, order, become)
        elif process.phase == "collect":
            for client in CLIENTS:
                if state.clients[client] in ("", "vector"):
                    given = tuple(
                        "vector" if c == client else one for c, one in enumerate(state.clients)
                    )
                    for got in (process.answered, process.answered | {client}):  # lost, or taken
                        yield become(process._replace(answered=got))._replace(clients=given)
            if len(process.answered) >= LEAST:
                changed = process._replace(
                    phase="unmask", survivors=process.answered, answered=frozenset()
                )
                yield become(changed._replace(steps=order.opening))
        elif process.phase == "unmask":
            for client in process.survivors:
                asked = state._replace(
                    shown=state.shown | {process.survivors},
                    opened_unreserved=state.opened_unreserved or not store.is_reserved,
                )
                if state.clients[client] in ("vector", process.survivors):
                    given = tuple(
                        process.survivors if c == client else one
                        for c, one in enumerate(state.clients)
                    )
                    changed = process._replace(answered=process.answered | {client})
                    asked = become(changed)._replace(
                        clients=given,
                        shown=asked.shown,
                        opened_unreserved=asked.opened_unreserved,
                    )
                yield asked
            if len(process.answered) >= LEAST:
                yield become(process._replace(phase="done", steps=order.closing))


def stepped(process: Process, store: Store, order: Order, become: object) -> Iterator[State]:
    """Yield the state after the next step of a process, if it may take it."""
    assert callable(become)
    step, rest = process.steps[0], process.steps[1:]
    if step == "reserve":
        if order.repeats or not store.is_reserved:  # else it is stuck
            yield become(process._replace(steps=rest), store._replace(is_reserved=True))
        return
    if order.compares and process.epoch != store.epoch:
        return  # it was overtaken, and is silent for ever
    if step == "save":
        saved = store._replace(phase=process.phase, survivors=process.survivors)
        yield become(process._replace(steps=rest), saved)
    elif step == "land":
        if order.named:
            if store.phase != "landed":
                yield become(process._replace(steps=()), store._replace(phase="landed", sums=1))
        else:
            yield become(
                process._replace(steps=("erase",)), store._replace(sums=min(store.sums + 1, 2))
            )
    else:
        yield become(process._replace(steps=()), store._replace(phase="landed"))


def broken(order: Order, enough: str | None = None) -> set[str]:
    """Return what some schedule of an order breaks; look no further once that is among it."""
    start, found = State(), set()
    before: dict[State, list[State]] = defaultdict(list)
    known, queue = {start}, deque([start])
    while queue and enough not in found:
        state = queue.popleft()
        if len(state.shown) > 1:
            found.add("two bitmaps")
        if state.opened_unreserved:
            found.add("opened unreserved")
        if state.store.sums > 1:
            found.add("counted twice")
        for after in following(state, order):
            before[after].append(state)
            if after not in known:
                known.add(after)
                queue.append(after)
    landed = [state for state in known if state.store.phase == "landed"]
    good = set(landed)
    while landed:
        for state in before[landed.pop()]:
            if state not in good:
                good.add(state)
                landed.append(state)
    if good != known:
        found.add("stuck")
    return found


@pytest.mark.promise
def test_the_order_holds() -> None:
    assert broken(Order()) == set()
    # Earlier versions wrote the sum first, and landed it in the next step.
    assert broken(Order(closing=("save", "land"))) == set()


ERRORS = {
    "a write that does not compare": (Order(compares=False), "two bitmaps"),
    "survivors shown before they are saved": (Order(opening=("reserve",)), "two bitmaps"),
    "saved, then reserved, and restored without": (
        Order(opening=("save", "reserve"), restoring=()),
        "opened unreserved",
    ),
    "never reserved": (Order(opening=("save",), restoring=()), "opened unreserved"),
    "a reservation that refuses its owner": (Order(repeats=False), "stuck"),
    "saved, then reserved, and refused to its owner": (
        Order(opening=("save", "reserve"), repeats=False),
        "stuck",
    ),
    "a landing without a name": (Order(named=False), "counted twice"),
    "a landing that is forgotten": (Order(closing=("save",), restoring=()), "stuck"),
}


@pytest.mark.promise
@pytest.mark.parametrize(("order", "error"), ERRORS.values(), ids=ERRORS)
def test_every_error_in_the_order_shows(order: Order, error: str) -> None:
    assert error in broken(order, error)
