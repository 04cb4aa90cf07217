"""One step of belief propagation: items and cells exchange messages about the items' counts.

`docs/accuracy.md` has the algorithm, and `recovery.decoders.belief` repeats the steps. An item has
one cell (counter) in each row of a sketch. `read_messages` combines what the cells of each item say
about its count. `exchange_messages` also computes the items' new messages to their cells. Both have
a compiled kernel (native/messages.h). The NumPy functions in this file define the results.

Items are kept in blocks of `LANES`, so that the kernel reads memory in order. The last block is
filled up:

- words: uint32 [blocks, groups, rows, LANES], the hash words that give cells and signs. Under
  "fresh" (each batch has its own locations) there is one group for each batch. Otherwise a group
  gives the signs of 8 batches, and the first group gives the cells.
- beliefs: float32 [blocks, rows, batches, LANES], the messages: expected counts, in clients.
- unsure: float32 [blocks, rows, kinds, LANES], the variances of the messages. Under "fresh" each
  batch has one (kinds = batches). Otherwise it is the variance of the sum over batches (kinds = 1).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedtally.base import validate
from fedtally.errors import InvalidInputError
from fedtally.kernels import reference
from fedtally.kernels.arguments import F64, U32
from fedtally.kernels.backends import backend, blocks, in_threads, native, num_threads

F32 = npt.NDArray[np.float32]

LANES = 32
# If a value exceeds 0 by this many standard deviations of its noise or more, no table is needed:
# the value itself is the estimate.
FAR = 8.0
COLUMNS = 161  # columns of a table, for values from -FAR to FAR standard deviations
STEP = 2 * FAR / (COLUMNS - 1)
LEAST = 1e-9  # the least variance, as a share of the noise's: a smaller one is only rounding
TINY = 1e-9  # used in place of a variance of 0; in squared clients
OWN_SHARE = 0.05  # the least share of a cell's variance that remains without the item's own part
# The items are split into parts, each with its own sums. The number of parts must not depend on the
# number of threads: otherwise the order of additions, and so the rounding, would depend on it.
_PARTS = 8
_FEWEST = 1 << 10  # the fewest items in a part, except in the last one


class Cells(NamedTuple):
    """What the cells tell the items: the observed sums without the items' known parts.

    A cell is a counter of a sum of sketches. A batch is a group of rounds with the same signs. A
    message is an item's expected count, which it sends to its cell in each row.

    Attributes:
        residual: the observed sums minus the messages of all items, in clients: float64 [rows,
            width, batches].
        variance: the variance of each residual, above 0: float64 [rows, width, kinds]. Under
            `fresh` kinds is the number of batches. Otherwise kinds is 1, and the variance is that
            of the residual summed over batches.
        fresh: whether each batch has its own locations.
        inflation: a factor by which all variances are multiplied.
    """

    residual: F64
    variance: F64
    fresh: bool
    inflation: float


class Table(NamedTuple):
    """The posterior mean and variance of an item's count, tabulated for values with normal noise.

    A row stands for a standard deviation of the noise, and a column for a value.

    Attributes:
        first: the logarithm of the noise's standard deviation in the first row.
        ratio: how much this logarithm increases from one row to the next.
        entries: the mean of the count, in standard deviations of the noise, and its variance, in
            variances of the noise: float64 [scales, COLUMNS, 2].
    """

    first: float
    ratio: float
    entries: F64


class Rule(NamedTuple):
    """How new messages are computed.

    Attributes:
        table: the posterior of counts given values.
        weights: each batch's share of all clients, float64 [batches].
        shares: each batch's share of the variance of a cell's noise, float64 [batches]; all 1 under
            "fresh" (each batch has its own locations).
        clearly: the share by which the spread of an item's counts between batches must exceed what
            noise explains (1: twice as large). If it does not, Poisson noise is assumed.
        update: the step from the old message to the new one, 0 to 1; 1 takes the new one.
        gate: a number of standard deviations. If the value of an item from the other rows is
            smaller, the item's new message to a cell is 0.
    """

    table: Table
    weights: F64
    shares: F64
    clearly: float
    update: float
    gate: float


class Read(NamedTuple):
    """The values of the items, as their cells tell them.

    A value is an estimate of the item's count, before the prior of counts is applied.

    Attributes:
        value: the value of each item, from all rows and batches, in clients, float64 [n].
        stddev: the standard deviation of each value, float64 [n].
        scales: the smallest and the largest standard deviation that occurs, among values from all
            rows and values from all rows except one.
    """

    value: F64
    stddev: F64
    scales: tuple[float, float]


class Exchanged(NamedTuple):
    """The values before a step, and the sums of the messages after it.

    Attributes:
        read: the items' values before the step, as `read_messages` returns them.
        explained: the sum of all new messages in each cell, float64, shaped like the residual.
        unknown: the sum of the variances of these messages, float64, shaped like the variance.
        moved: how much the step changes messages: sqrt(sum of squared changes / sum of the
            variances of the counts). A change is summed over batches, and not multiplied by
            `Rule.update`.
        fits: three means of squared error / predicted variance, float64 [3]. An error is the
            value of an item in one row minus its prediction from the item's other rows. Rows to
            which the item sends no message are left out. The means are over the predictions from a
            value of at most 2, of 2 to FAR, and of more than FAR standard deviations. A quotient
            above 25 counts as 25. Without quotients a mean is 0.
        numbers: the number of quotients in each of these means, float64 [3].
    """

    read: Read
    explained: F64
    unknown: F64
    moved: float
    fits: F64
    numbers: F64


def pack_words(words: U32) -> U32:
    """Arrange hash words in blocks of items: [groups, rows, n] -> [blocks, groups, rows, LANES].

    Both arrays are uint32. The last block is filled up with zeros.

    >>> pack_words(np.zeros((2, 5, 33), np.uint32)).shape
    (2, 2, 5, 32)
    """
    groups, rows, size = words.shape
    packed = np.zeros((-(-size // LANES), groups, rows, LANES), np.uint32)
    for some in blocks(len(packed), 1 << 10):
        part = words[..., some.start * LANES : some.stop * LANES]
        whole = np.zeros((groups, rows, (some.stop - some.start) * LANES), np.uint32)
        whole[..., : part.shape[-1]] = part
        packed[some] = np.moveaxis(whole.reshape(groups, rows, -1, LANES), 2, 0)
    return packed


def read_messages(
    cells: Cells, words: U32, count: int, beliefs: F32 | None = None, unsure: F32 | None = None
) -> Read:
    """Combine what the cells of each item say about its count, for `count` items.

    Nothing is changed. Arrays in blocks have the shapes that the text of this module gives.

    Args:
        cells: the state of the cells.
        words: the items' hash words, in blocks (`pack_words`).
        count: the number of items, at least 1.
        beliefs: the messages (expected counts) that the items sent, in blocks; None: none yet.
        unsure: the variances of these messages, in blocks; None: no messages yet.

    Raises:
        InvalidInputError: there are fewer than 2 rows, `count` is below 1, or an array has a wrong
            dtype or shape or is not C-contiguous.
    """
    _check(cells, words, count, beliefs, unsure)
    if backend() == "numpy":
        return _joined(cells, words, count, beliefs, unsure)[0]
    return _native(cells, words, count, beliefs, unsure, None).read


def exchange_messages(
    cells: Cells, words: U32, count: int, beliefs: F32, unsure: F32, rule: Rule
) -> Exchanged:
    """Compute the values of `count` items and their new messages to the cells.

    The arrays `beliefs` and `unsure`, which hold the messages, are changed in place; `cells` is
    not. Arrays in blocks have the shapes that the text of this module gives.

    Args:
        cells: the state of the cells.
        words: the items' hash words, in blocks (`pack_words`).
        count: the number of items, at least 1.
        beliefs: the messages (expected counts), in blocks.
        unsure: the variances of the messages, in blocks.
        rule: how new messages are computed.

    Raises:
        InvalidInputError: there are fewer than 2 rows, `count` is below 1, or an array has a wrong
            dtype or shape or is not C-contiguous.
    """
    _check(cells, words, count, beliefs, unsure)
    batches = cells.residual.shape[2]
    if rule.weights.shape != (batches,) or rule.shares.shape != (batches,):
        raise InvalidInputError(f"weights and shares must be float64 ({batches},)")
    entries = rule.table.entries
    if entries.dtype != np.float64 or entries.shape[1:] != (COLUMNS, 2) or len(entries) < 2:
        raise InvalidInputError(
            f"a table must be float64 [2 or more, {COLUMNS}, 2], got {entries.shape}"
        )
    if backend() == "numpy":
        return _exchanged(cells, words, count, beliefs, unsure, rule)
    return _native(cells, words, count, beliefs, unsure, rule)


def posterior(table: Table, values: F64, stddevs: F64) -> tuple[F64, F64]:
    """Return the mean and the variance of each count, given its noisy value: shaped like `values`.

    They are interpolated in the table. For a value of FAR standard deviations or more, the mean is
    the value itself, and the variance is the variance of the noise.

    Args:
        table: the posterior of counts given values.
        values: the noisy values, in clients.
        stddevs: the standard deviation of the noise of each value, in clients, above 0.
    """
    scales = len(table.entries)
    row, column = place(table, values, stddevs)
    i = np.minimum(row.astype(np.intp), scales - 2)
    j = np.minimum(column.astype(np.intp), COLUMNS - 2)
    down, right = row - i, column - j
    at = i * COLUMNS + j

    def read(which: int) -> F64:
        flat = table.entries[..., which].reshape(-1)
        upper = flat[at] * (1 - right) + flat[at + 1] * right
        lower = flat[at + COLUMNS] * (1 - right) + flat[at + COLUMNS + 1] * right
        found: F64 = upper * (1 - down) + lower * down
        return found

    near = values < FAR * stddevs
    square = stddevs**2
    return (
        np.where(near, read(0) * stddevs, values),
        np.where(near, np.maximum(read(1), LEAST), 1.0) * square,
    )


def place(table: Table, values: F64, stddevs: F64) -> tuple[F64, F64]:
    """Return the row and the column of each value in a table, as floats, clipped to the table.

    Their fractions say where the value is between two rows and two columns. The arguments are as in
    `posterior`.
    """
    last = len(table.entries) - 1.0
    row = np.clip((np.log(stddevs) - table.first) / table.ratio, 0.0, last)
    return row, np.clip((values / stddevs + FAR) / STEP, 0.0, COLUMNS - 1.0)


def clearly_larger(excess: F64, poisson: F64, square: F64, clearly: float, spread: float) -> F64:
    """Return an item's variance between batches: the observed one if it clearly exceeds noise.

    Otherwise it is the variance of Poisson noise.

    Args:
        excess: the sum over batches of squared deviations, minus what the cells' noise explains.
        poisson: the variance of Poisson noise.
        square: the variance of the cells' noise.
        clearly: the share by which the squared deviations must exceed what both kinds of noise
            explain.
        spread: 1 minus the sum of the squared weights of the batches.
    """
    found: F64 = np.where(
        excess > (poisson + clearly * (square + poisson)) * spread, excess / spread, poisson
    )
    return found


# ---- the reference ----


def _joined(
    cells: Cells, words: U32, count: int, beliefs: F32 | None, unsure: F32 | None
) -> tuple[Read, dict[str, F64]]:
    """Compute the items' values from all rows, weighted by precision, and the numbers behind them.

    The arguments are as in `read_messages`. The numbers are arrays [rows, batches or kinds, n] by
    name; kinds is the number of batches under "fresh", else 1. "heard" is what the cell of each row
    says of the item's count, and "variance" its variance. For each row, "others" is the item's
    value from all rows but this row, and "noise" the variance of "others". "scale", [rows, n], is
    the standard deviation of the sum of "others" over batches. "landed" has the indices of the
    cells in the flattened `cells.residual`, and "owned" their indices in the flattened
    `cells.variance`. "sign" is the item's sign in the cell.
    """
    rows, width, batches = cells.residual.shape
    own = np.moveaxis(words, 0, 2).reshape(words.shape[1], rows, -1)[..., :count]
    groups = np.arange(batches) if cells.fresh else np.arange(batches) // 8
    bits = np.zeros(batches, int) if cells.fresh else np.arange(batches) % 8
    at = reference.locations(own if cells.fresh else own[:1], width)
    at += width * np.arange(rows)[:, None]
    sign = np.stack(
        [reference.signs(own[g], int(b)) for g, b in zip(groups, bits, strict=True)], axis=1
    )
    at = np.moveaxis(at, 0, 1)  # [rows, kinds, n]
    kinds = at.shape[1]
    owned = at * kinds + np.arange(kinds)[:, None]
    landed = at * batches + np.arange(batches)[:, None]
    heard = sign * cells.residual.reshape(-1)[landed]
    if beliefs is not None:
        heard += _flat(beliefs, count)
    variance = cells.variance.reshape(-1)[owned]
    known = 0.0 if unsure is None else _flat(unsure, count)
    variance = cells.inflation * np.maximum(variance - known, OWN_SHARE * variance)
    precision = 1.0 / variance
    total = precision.sum(axis=0)
    sums = (precision * heard).sum(axis=0)
    # `left` has a lower bound: if one row has nearly all of the precision, the difference is only
    # rounding error
    left = np.maximum(total - precision, 1e-9 * precision)
    scale = np.sqrt((1.0 / left).sum(axis=1))
    stddev = np.sqrt((1.0 / total).sum(axis=0))
    read = Read(
        (sums / total).sum(axis=0),
        stddev,
        (
            float(min(scale.min(initial=np.inf), stddev.min(initial=np.inf))),
            float(scale.max(initial=0.0)),
        ),
    )
    return read, {
        "heard": heard,
        "variance": variance,
        "others": (sums - precision * heard) / left,
        "noise": 1.0 / left,
        "scale": scale,
        "owned": owned,
        "landed": landed,
        "sign": sign,
    }


def _flat(blocked: F32, count: int) -> F32:
    """Return an array in blocks of LANES items as an array [rows, batches or kinds, n].

    Args:
        blocked: the array, [blocks, rows, batches or kinds, LANES].
        count: the number n of items; what fills up the last block is left out.
    """
    _, rows, batches, _ = blocked.shape
    return np.moveaxis(blocked, 0, 2).reshape(rows, batches, -1)[..., :count]


def _store(blocked: F32, flat: F32) -> None:
    """Write `flat`, [rows, batches or kinds, n], into the array in blocks `blocked`."""
    size, rows, batches, _ = blocked.shape
    whole = np.zeros((rows, batches, size * LANES), np.float32)
    whole[..., : flat.shape[-1]] = flat
    blocked[:] = np.moveaxis(whole.reshape(rows, batches, size, LANES), 2, 0)


def _exchanged(
    cells: Cells, words: U32, count: int, beliefs: F32, unsure: F32, rule: Rule
) -> Exchanged:
    weights = rule.weights[:, None]
    concentration = float(rule.weights @ rule.weights)
    spread = 1.0 - concentration
    total = _Total(cells)
    parts = []
    for some in blocks(-(-count // LANES), max(1, (1 << 19) // (beliefs[0].size + 1))):
        size = min(count - some.start * LANES, (some.stop - some.start) * LANES)
        read, found = _joined(cells, words[some], size, beliefs[some], unsure[some])
        parts.append(read)
        each, noise, scale = found["others"], found["noise"], found["scale"]
        others, square = each.sum(axis=1), scale**2
        mean, variance = posterior(rule.table, others, scale)
        sends = others / scale >= rule.gate
        total.judge(found, others / scale, mean, variance, sends)
        mean, variance = mean[:, None], variance[:, None]
        sent = mean * weights
        left_over = variance * weights**2
        if spread > 1e-9:
            noise = noise * rule.shares[:, None]
            deviation = each - weights * others[:, None]
            explained = square * (1.0 + concentration) - 2.0 * (noise * weights).sum(axis=1)
            between = clearly_larger(
                (deviation**2).sum(axis=1) - explained,
                np.maximum(mean[:, 0], 0.0),
                square,
                rule.clearly,
                spread,
            )
            prior = between[:, None] * weights + TINY
            kept = prior / (prior + noise)
            free = kept * noise
            part = free / free.sum(axis=1, keepdims=True)
            deviation *= kept
            sent = sent + deviation - part * deviation.sum(axis=1, keepdims=True)
            left_over = left_over + free * (1.0 - part)
        if not cells.fresh:
            left_over = left_over.sum(axis=1, keepdims=True)
        before, own = _flat(beliefs[some], size), _flat(unsure[some], size)
        change = sends[:, None] * sent - before
        total.moves += float((change.sum(axis=1) ** 2).sum())
        step = np.float32(rule.update)
        now = before + step * change.astype(np.float32)
        own = own + step * (sends[:, None] * left_over - own).astype(np.float32)
        _store(beliefs[some], now)
        _store(unsure[some], own)
        total.add(found, now, own)
    return total.result(
        Read(
            np.concatenate([one.value for one in parts]),
            np.concatenate([one.stddev for one in parts]),
            (min(one.scales[0] for one in parts), max(one.scales[1] for one in parts)),
        )
    )


class _Total:
    """Adds up the results of a step over blocks of items, for the fields of `Exchanged`."""

    def __init__(self, cells: Cells) -> None:
        self.explained = np.zeros(cells.residual.shape)
        self.unknown = np.zeros(cells.variance.shape)
        self.moves, self.unsure = 0.0, 0.0
        self.surprise, self.number = np.zeros(3), np.zeros(3)

    def judge(
        self, found: dict[str, F64], z: F64, mean: F64, variance: F64, sends: npt.NDArray[np.bool_]
    ) -> None:
        """Add squared errors / predicted variances to `surprise`, and their number to `number`.

        The variances of the predictions are added to `unsure`. A prediction says, from the item's
        other rows, what a row's value is (`Exchanged.fits`).

        Args:
            found: the numbers that `_joined` returned.
            z: the item's value from the other rows, in standard deviations, [rows, n].
            mean: the predicted count, [rows, n].
            variance: the variance of the prediction, [rows, n].
            sends: whether the item sends a message to the row's cell, [rows, n].
        """
        kind = ((z > 2.0).astype(np.intp) + (z > FAR))[sends]
        known = found["variance"].sum(axis=1) + variance
        error = np.minimum((found["heard"].sum(axis=1) - mean) ** 2 / known, 25.0)[sends]
        self.surprise += np.bincount(kind, error, 3)
        self.number += np.bincount(kind, minlength=3)
        self.unsure += float(variance[sends].sum())

    def add(self, found: dict[str, F64], beliefs: F32, unsure: F32) -> None:
        """Add the messages of items, and their variances, to the sums of their cells.

        Args:
            found: the numbers that `_joined` returned for these items.
            beliefs: the messages, [rows, batches, n].
            unsure: the variances of the messages, [rows, batches or kinds, n].
        """
        for into, at, values in (
            (self.explained, found["landed"], found["sign"] * beliefs),
            (self.unknown, found["owned"], unsure),
        ):
            added = np.bincount(at.ravel(), values.ravel(), into.size)
            into += added.reshape(into.shape)

    def result(self, read: Read) -> Exchanged:
        """Return the sums over all blocks, and the values `read` of all items."""
        return Exchanged(
            read,
            self.explained,
            self.unknown,
            (self.moves / max(self.unsure, TINY)) ** 0.5,
            self.surprise / np.maximum(self.number, 1.0),
            self.number,
        )


# ---- the compiled kernel ----


def _check(cells: Cells, words: U32, count: int, beliefs: F32 | None, unsure: F32 | None) -> None:
    validate.integer(1, count=count)
    rows, _, batches = cells.residual.shape
    kinds = batches if cells.fresh else 1
    size = -(-count // LANES)
    groups = batches if cells.fresh else -(-batches // 8)
    wanted = (
        ("residual", cells.residual, np.float64, cells.residual.shape),
        ("variance", cells.variance, np.float64, (*cells.residual.shape[:2], kinds)),
        ("words", words, np.uint32, (size, groups, rows, LANES)),
        ("beliefs", beliefs, np.float32, (size, rows, batches, LANES)),
        ("unsure", unsure, np.float32, (size, rows, kinds, LANES)),
    )
    for name, array, dtype, shape in wanted:
        if array is None:
            continue
        if array.dtype != dtype or array.shape != shape or not array.flags.c_contiguous:
            raise InvalidInputError(
                f"{name} must be C-contiguous {np.dtype(dtype)} {shape}, got {array.dtype}"
                f" {array.shape}"
            )
    if rows < 2:
        raise InvalidInputError(f"messages need at least 2 rows, got {rows}: no other row speaks")


def _native(
    cells: Cells, words: U32, count: int, beliefs: F32 | None, unsure: F32 | None, rule: Rule | None
) -> Exchanged:
    level = backend()
    batches = cells.residual.shape[2]
    value, stddev = np.empty(count), np.empty(count)
    # A part consists of whole blocks, since the kernel reads whole blocks.
    size = max(-(-count // (_PARTS * LANES)), _FEWEST // LANES)
    parts = list(blocks(-(-count // LANES), size))
    stats = np.zeros((len(parts), 10))
    # Without a rule there are no new messages, so their sums get no memory.
    shapes = (cells.residual.shape, cells.variance.shape) if rule else ((0, 0, 0), (0, 0, 0))
    sums = [[np.zeros(shape) for shape in shapes] for _ in parts]
    table, weights, numbers = None, np.zeros(batches), np.zeros(10)
    shares = weights
    if rule:
        table = np.ascontiguousarray(rule.table.entries)
        weights, shares = np.ascontiguousarray(rule.weights), np.ascontiguousarray(rule.shares)
        spread = 1.0 - float(weights @ weights)
        numbers[:6] = rule.table.first, 1.0 / rule.table.ratio, 1.0 / STEP, FAR, LEAST, TINY
        numbers[6:] = spread, rule.clearly, rule.update, rule.gate

    def one(job: tuple[int, slice]) -> None:
        index, part = job
        items = slice(part.start * LANES, min(part.stop * LANES, count))
        native.exchange(
            level,
            words[part],
            cells.residual,
            cells.variance,
            cells.fresh,
            cells.inflation,
            OWN_SHARE,
            None if beliefs is None else beliefs[part],
            None if unsure is None else unsure[part],
            value[items],
            stddev[items],
            table,
            weights,
            shares,
            numbers,
            *sums[index],
            stats[index],
        )

    in_threads(one, enumerate(parts), min(num_threads(), len(parts)))
    read = Read(value, stddev, (float(stats[:, 0].min()), float(stats[:, 1].max())))
    explained, unknown = (np.sum([one[which] for one in sums], axis=0) for which in (0, 1))
    moves, unsure_sum = stats[:, 2].sum(), stats[:, 3].sum()
    number = stats[:, 7:].sum(axis=0)
    return Exchanged(
        read,
        explained,
        unknown,
        float(moves / max(unsure_sum, TINY)) ** 0.5,
        stats[:, 4:7].sum(axis=0) / np.maximum(number, 1.0),
        number,
    )
