"""The kernels in NumPy. They define the correct results.

Where no compiled kernels are installed, these kernels run. Tests compare the compiled kernels with
them.

Hash tables are uint32 [rows, 8, 256] (simple tabulation, see docs/protocol.md). Counters are int64
[rows, width].
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
F32 = npt.NDArray[np.float32]

PRIME = (1 << 61) - 1  # modulus of fingerprints; reducing mod 2^61 - 1 needs no division
BUCKETS = 64
# 2^64 / golden ratio. Multiplying consecutive numbers by it spreads them over all buckets (Knuth's
# multiplicative hashing).
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_BUCKET_SHIFT = np.uint64(64 - 6)  # the upper 6 bits of a hash give one of 64 buckets
BLOCK = 1 << 16  # the most ids that are processed at once, to bound the memory


def hash_words(tables: U32, ids: U64) -> U32:
    """Return the hash word of each id in each row, uint32 [rows, n].

    It is the XOR over c of tables[row, c, byte c of the id], where byte 0 is the least significant.
    """
    characters = ids.astype("<u8", copy=False).view(np.uint8).reshape(-1, 8)
    words = tables[:, 0, characters[:, 0]]
    for c in range(1, 8):
        words = words ^ tables[:, c, characters[:, c]]
    return words


def locations(words: U32, width: int) -> npt.NDArray[np.intp]:
    """Return the index of the cell that each hash word gives: intp, shaped like `words`.

    It is the number of the word's upper 24 bits, scaled down to 0 .. width - 1.
    """
    return (((words >> np.uint32(8)).astype(np.uint64) * np.uint64(width)) >> np.uint64(24)).astype(
        np.intp
    )


def signs(words: U32, bit: int) -> I64:
    """Return the sign that bit `bit` of each hash word gives: 1 if the bit is 0, and -1 if it is 1.

    The result is int64, shaped like `words`.
    """
    return 1 - 2 * ((words >> np.uint32(bit)) & np.uint32(1)).astype(np.int64)


def accumulate(
    counters: I64, location: U32, sign: U32, sign_bit: int, ids: U64, counts: I64 | None
) -> None:
    """Add sign * count of each id to its cell in each row, in place; see `kernels.accumulate`."""
    rows, width = counters.shape
    for start in range(0, len(ids), BLOCK):
        block = ids[start : start + BLOCK]
        words = hash_words(location, block)
        values = signs(words if sign is location else hash_words(sign, block), sign_bit)
        if counts is not None:
            values = values * counts[start : start + BLOCK]
        cells = locations(words, width) + width * np.arange(rows)[:, None]
        np.add.at(counters.reshape(-1), cells.reshape(-1), values.reshape(-1))


def decode(
    sums: npt.NDArray[np.int64] | F64 | F32,
    tables: U32,
    ids: U64,
    fold: str = "median",
    signed: bool = True,
) -> F64:
    """Estimate the count of each id, by the median or mean over rows of the id's values.

    The value in a row is the sum over batches of sign * counter. The arguments are as in
    `kernels.Decoder`: `sums` is [batches, rows, width], and `tables` is [groups, rows, 8, 256].
    Words of group 0 give the cell. Bit b % 8 of the word of group b // 8 is the sign of batch b; if
    not `signed`, every sign is +1. The median of an even number of rows is the mean of the two
    middle values.

    Returns:
        float64 [n].
    """
    rows, width = sums.shape[1:]
    estimates = np.empty(len(ids))
    row_index = np.arange(rows)[:, None]
    for start in range(0, len(ids), BLOCK):
        block = ids[start : start + BLOCK]
        words = hash_words(tables[0], block)
        cells = locations(words, width)
        total = np.zeros((rows, len(block)), np.int64 if sums.dtype == np.int64 else np.float64)
        for b, batch in enumerate(sums):
            if b and b % 8 == 0:
                words = hash_words(tables[b // 8], block)
            total += (signs(words, b % 8) if signed else 1) * batch[row_index, cells]
        estimates[start : start + BLOCK] = (
            np.median(total, axis=0) if fold == "median" else total.mean(axis=0)
        )
    return estimates


def symbol_means(tables: U32, sums: F64, first_id: int, most: F64) -> F64:
    """Return means over rows of sign * counter: float64 [sketches, 256].

    Each product is first cut to -most .. most. `tables` is [sketches, rows, 8, 256], and `sums` is
    [sketches, rows, width]. The ids are first_id .. first_id + 255, where first_id is a multiple of
    256. Bit 0 of a hash word is the sign. The rows are added one by one, so that rounding is the
    same in all implementations.
    """
    sketches, rows, width = sums.shape
    upper = tables[:, :, 1, first_id >> 8 & 255].copy()
    for byte in range(2, 8):
        upper ^= tables[:, :, byte, first_id >> 8 * byte & 255]
    words = tables[:, :, 0] ^ upper[:, :, None]
    values = np.take_along_axis(sums, locations(words, width), axis=2)
    values *= signs(words, 0)
    bound = most[:, None]
    total = np.zeros((sketches, 256))
    for row in range(rows):
        total += np.minimum(np.maximum(values[:, row], -bound), bound)
    total /= rows
    return total


def refit(
    cells: I64,
    signs: npt.NDArray[np.int8],
    clients: F64,
    residual: F64,
    values: F64,
    shrinkage: F64,
    sweeps: int,
    frozen: bool,
) -> None:
    """Fit the frequencies of items to the cells, in place; see `kernels.refit`.

    A sweep updates the items in order. For one item, z_m is its old frequency in batch m plus the
    mean over rows of sign * residual. The new frequency in batch m is the mean of z over all
    batches, weighted by clients, plus the share k_m of the deviation of z_m from this mean.

    A batch without clients gets the frequency 0.

    Unless `frozen`, k_m = v / (v + noise). Here noise is the variance due to the cells' noise, and
    v is the variance of sampling clients (Poisson). But if the frequencies vary between batches
    clearly more than both variances explain, v is their variance. If nearly all clients are in one
    batch, k_m is 1.
    Items that share no cell are updated together if this does not change the result (`_turns`).
    """
    rows, batches = signs.shape[1:]
    weights = clients / clients.sum()
    cell = residual.reshape(-1)
    effective = 1.0 / float(weights @ weights)
    together = _turns(cells)
    for _ in range(sweeps):
        noise = np.mean(residual**2, axis=(0, 1)) / rows
        mean_noise = float(weights @ noise)
        for items in together:
            places = cells[items] + (np.arange(batches) if cells.shape[2] == 1 else 0)
            z = values[items] + (signs[items] * cell[places]).sum(axis=1) / rows
            mean = (z @ weights)[:, None]
            if not frozen and effective <= 1.0 + 1e-9:
                shrinkage[items] = 1.0
            elif not frozen:
                poisson = np.where(
                    clients > 0, np.maximum(mean, 0.0) / np.maximum(clients, 1.0), 0.0
                )
                expected = (poisson @ weights)[:, None]
                spread = ((z - mean) ** 2 @ weights)[:, None] / (1.0 - 1.0 / effective) - mean_noise
                # `limit` is 3 standard deviations of the spread in the case that only the cells'
                # noise and sampling cause it. The spread is used if it exceeds `expected` by more.
                limit = 3.0 * np.sqrt(2.0 / (effective - 1.0)) * (mean_noise + expected)
                variance = np.where(spread > expected + limit, spread, poisson)
                # 1e-300 avoids 0 / 0
                shrinkage[items] = variance / (variance + noise + 1e-300)
            new = np.where(clients > 0, mean + shrinkage[items] * (z - mean), 0.0)
            cell[places] -= signs[items] * (new - values[items])[:, None, :]
            values[items] = new


def _turns(cells: I64) -> list[I64]:
    """Group the items into turns: the items of one turn share no cell and can be updated together.

    A cell is a counter. The turn of an item comes after the turns of all earlier items with which
    it shares a cell.

    Args:
        cells: the indices of each item's cells, int64 [n, rows, 1 or batches].

    Returns:
        The indices of the items of each turn, ascending.
    """
    last: dict[int, int] = {}
    turns: list[list[int]] = []
    for item, own in enumerate(cells.reshape(len(cells), cells.shape[1] * cells.shape[2]).tolist()):
        turn = max((last.get(cell, 0) for cell in own), default=0)
        last.update(dict.fromkeys(own, turn + 1))
        if turn == len(turns):
            turns.append([])
        turns[turn].append(item)
    return [np.array(items) for items in turns]


def fingerprint(data: npt.NDArray[np.uint8], offsets: I64, k: int, k2: int) -> U64:
    """Return the keyed fingerprint of each byte string data[offsets[i]:offsets[i+1]]: uint64 [n].

    The arguments are as in `kernels.fingerprint`. A fingerprint is a polynomial in k, multiplied by
    k2, mod 2^61 - 1. Its first coefficient is length + 1, so that strings that differ only in the
    number of zero bytes at their ends have different polynomials.
    """
    lengths = np.diff(offsets)
    h = (lengths + 1).astype(np.uint64)
    padded = np.concatenate([data, np.zeros(7, np.uint8)])
    active = np.flatnonzero(lengths > 0)
    step = 0
    while len(active):
        starts, left = offsets[active] + 7 * step, lengths[active] - 7 * step
        chunk = np.zeros(len(active), np.uint64)
        for byte in range(7):
            value = padded[starts + byte].astype(np.uint64)
            chunk |= np.where(byte < left, value, np.uint64(0)) << np.uint64(8 * byte)
        h[active] = _fold(_multiply(h[active], k) + chunk)
        active = active[left > 7]
        step += 1
    return _multiply(h, k2)


def _fold(x: U64) -> U64:
    """Return values below 2^64 reduced mod PRIME, to 0 .. PRIME - 1."""
    x = (x & np.uint64(PRIME)) + (x >> np.uint64(61))
    return np.where(x >= np.uint64(PRIME), x - np.uint64(PRIME), x)


def _multiply(a: U64, b: int) -> U64:
    """Return a * b mod PRIME for a, b < PRIME.

    NumPy has no products of 128 bits, so the factors are split into halves of 32 bits. Mod PRIME,
    2^61 is 1, and hence 2^64 is 8: the product of the upper halves is only shifted by 3 bits.
    """
    low = np.uint64(0xFFFFFFFF)
    a1, a0 = a >> np.uint64(32), a & low
    b1, b0 = np.uint64(b >> 32), np.uint64(b & 0xFFFFFFFF)
    cross = a1 * b0 + a0 * b1  # < 2^62
    # cross * 2^32 mod PRIME: the bits of `cross` from 29 on would pass 2^61, and are added at bit 0
    shifted = (cross >> np.uint64(29)) + ((cross & np.uint64((1 << 29) - 1)) << np.uint64(32))
    return _fold(_fold((a1 * b1) << np.uint64(3)) + _fold(shifted) + _fold(a0 * b0))


def heavy(tables: U32, values: F32, need: int, least: float, first_id: int, count: int) -> U64:
    """Return the ids of a range that are in heavy cells, ascending: uint64 [n].

    An id has a value in each row: the entry of `values` for its cell and its signs there. If `need`
    is 0, the sum of an id's values must exceed `least`. Otherwise at least `need` of its values
    must exceed `least`.

    Args:
        tables: the hash tables, uint32 [rows, 8, 256].
        values: the value that an id has in each cell, for each pattern of signs (the signs of all
            batches, as the bits of one number): float32 [rows, width, patterns of signs].
        need: the least number of rows, or 0.
        least: the value to exceed.
        first_id: the first id of the range.
        count: the number of ids in the range.
    """
    found = [np.empty(0, np.uint64)]
    rows, width, patterns = values.shape
    for start in range(0, count, BLOCK):
        ids = np.arange(min(BLOCK, count - start), dtype=np.uint64) + np.uint64(first_id + start)
        words = hash_words(tables, ids)
        own = values[np.arange(rows)[:, None], locations(words, width), words % patterns]
        heavy = (own > least).sum(axis=0) >= need if need else own.sum(axis=0) > least
        found.append(ids[heavy])
    return np.concatenate(found)


def invert(
    words: U64, low: U64 | None, cumulative: tuple[U64, U64], first: int, scan: bool
) -> I64 | None:
    """Return for each word `first` plus the number of entries that are at most u: int64 [n].

    Here u = 2^64 * word + low. The results are the draws of `kernels.Inversion`. `cumulative` holds
    the upper and the lower 64 bits of the entries of the distribution's table, ascending. `low` is
    needed only for words that equal the upper half of an entry. If a word equals the upper half of
    an entry and `low` is None, the function returns None. With `scan`, each word is compared with
    every entry; otherwise a binary search is used.
    """
    upper, lower = cumulative
    below = np.zeros(len(words), np.int64)
    if scan:
        for entry in upper:
            below += entry < words
    else:
        below += np.searchsorted(upper, words)
    tied = np.flatnonzero(upper[np.minimum(below, len(upper) - 1)] == words)
    if low is None:
        return None if len(tied) else below + first
    for i in tied.tolist():
        end = int(np.searchsorted(upper, words[i : i + 1], "right")[0])
        below[i] += np.count_nonzero(lower[below[i] : end] <= low[i])
    return below + first


def group(ids: U64) -> tuple[I64, I64]:
    """Return the index of each distinct id's first occurrence, and how often the id occurs.

    Both are int64, with one entry for each distinct id. The indices ascend: the ids are in the
    order in which they first occur.
    """
    _, first, counts = np.unique(ids, return_index=True, return_counts=True)
    order = np.argsort(first)
    return first[order].astype(np.int64), counts[order].astype(np.int64)


def bucket_of(clients: U64) -> npt.NDArray[np.uint8]:
    """Return the bucket of each client, 0 .. 63, by a hash of the client's number: uint8 [n]."""
    return ((clients * GOLDEN) >> _BUCKET_SHIFT).astype(np.uint8)


def spread(columns: Sequence[U64]) -> tuple[U64, I64]:
    """Return the rows sorted by the buckets of their clients, and where each bucket begins.

    `kernels.rows.spread` describes the arguments and the results.
    """
    bucket = bucket_of(columns[0])
    # NumPy sorts bytes stably by counting, which is faster than comparing
    order = np.argsort(bucket, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(bucket, minlength=BUCKETS))])
    return np.stack([column[order] for column in columns]), starts.astype(np.int64)


def distinct_rows(rows: U64) -> U64:
    """Return the distinct rows in order of bucket, client, round (if given) and id.

    `kernels.rows.distinct_rows` describes the argument and the result.
    """
    clients, ids, *rounds = rows
    rows = rows[:, np.lexsort((ids, *rounds, clients, bucket_of(clients)))]
    is_new = np.ones(rows.shape[1], np.bool_)
    is_new[1:] = np.any(rows[:, 1:] != rows[:, :-1], axis=0)
    return rows[:, is_new]


def quotes_are_closed(data: bytes, delimiter: str) -> bool:
    """Return whether the quotes in whole lines of a CSV file are well formed.

    The number of quotes must be even. Numbered from 1, each odd quote must follow a delimiter, a
    line end, a quote or the start of `data`. Each even quote must precede a delimiter, a line end
    or a quote.
    """
    letters = np.frombuffer(b"\n" + data, np.uint8)
    quotes = np.flatnonzero(letters == ord('"'))
    if len(quotes) % 2 or len(letters) - 1 in quotes[-1:]:
        return False
    may_be_beside = np.zeros(256, np.bool_)
    may_be_beside[list(b'"\n\r' + delimiter.encode())] = True
    return bool(
        may_be_beside[letters[quotes[::2] - 1]].all()
        and may_be_beside[letters[quotes[1::2] + 1]].all()
    )
