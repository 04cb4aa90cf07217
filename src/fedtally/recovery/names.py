"""Reads the names of heavy hashes from the part of the sums that spells strings.

A string is spelled by symbols at positions: copies of its bytes with an end mark, then parity
(`fedtally.domain.symbols`). For each position t, the sums hold a sketch of the integers
hash * 256 + symbol_t, over the clients that spell this position. For a hash that joint recovery
found, only 256 integers have to be estimated at each position. Each gets a score z: the mean of its
signed counters over the rows, divided by the standard deviation of the noise of such a mean. A name
is accepted on three conditions. Its own hash is the found one. The scores of its symbols fit a
string of that frequency. No other string with that hash has scores that are nearly as good. A hash
whose name cannot be read is reported as a hash.

Hashes are read from the most frequent to the rarest, in several sweeps. After a hash is read, its
symbols are subtracted from the sums. The amount is estimated for each position, since each position
is spelled by a different sample of clients.

Symbols are decoded softly. A score z times the expected score (at most `_SURE`) is a log
likelihood, up to a constant. Names that were read before give a prior for the next names, a Markov
chain of bytes. Words are tried in the order that log likelihoods and prior suggest, at most
`MOST_TRIES` for each hash. With hashes of b bits, a wrong word has the right hash by chance with
probability 2^-b. docs/protocol.md states the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedtally import kernels
from fedtally.domain import OpenStrings, symbols
from fedtally.domain.open_strings import hashes_of
from fedtally.kernels import letters
from fedtally.recovery.linear_system import F64, I64
from fedtally.sketch import CountSketch

U8 = npt.NDArray[np.uint8]
Progress = Callable[[int, int], None]
MOST_TRIES = 16_384  # words that are tried for one hash, in all sweeps together
MOST_NAMES = 4096  # the most hashes that are read: those with the largest frequencies
SWEEPS = 6
_PATIENT_FROM = 2  # from this sweep on (the first is 0), more lengths and more words are tried
_MAY_STOP_FROM = 3  # from this sweep on, reading ends after a sweep without a new name
_MEASURE_EVERY = 16  # the noise is measured again after this number of hashes
# The largest weight of a score. Larger expected scores get no larger weight, since the main errors
# are then due to other hashes in the same counters, not to noise.
_SURE = 6.0
_STANDS_OUT = 3.0  # without a name, a symbol is subtracted only if its score is above this ...
_LEADS = 1.0  # ... and exceeds the second best score by this
# A length of names is tried only if the expected score of a symbol, all copies and parity together,
# is above _READABLE. A hash is skipped if this fails even for names of _SHORT symbols, unless an
# earlier sweep looked at it.
_READABLE, _SHORT = 1.5, 4
# The symbols of a name must have more than the share _FITS of the expected scores. With less than
# _WHOLE, a second string may have the same hash, and is searched for.
_FITS, _WHOLE = 0.5, 0.8
# The words of a public list are compared only if the expected scores together are at least _STRONG.
# A word becomes the name only if its scores together exceed those of any other word of its hash by
# at least _AHEAD. Both numbers are in standard deviations.
_STRONG, _AHEAD = 6.0, 4.0
_BRANCHES = 16  # how many bytes `_likeliest` tries at each place
# Names with parity that have more symbols than this are only guessed by `_interpolated`, not by
# `_likeliest`.
_LISTED = 24
SINGLE = 3.0  # the shares of single bytes have the weight of this number of observed pairs
_TINY = 1e-300  # replaces a probability of 0


class _Effort(NamedTuple):
    """How many words are tried for a hash in a sweep.

    `_interpolated` chooses the surest places of a name, as many as it has symbols.

    Attributes:
        lengths: the number of name lengths to try, clearest end marks first.
        words: the most words that `_likeliest` returns for a length.
        flips: how many of the chosen places, the least sure ones, also get their second-best
            symbol, in all combinations.
        replaced: how many of the chosen places, the least sure ones, are replaced, one at a time,
            by the surest place that was not chosen.
    """

    lengths: int
    words: int
    flips: int
    replaced: int


_QUICK = _Effort(lengths=2, words=256, flips=3, replaced=0)
_PATIENT = _Effort(lengths=4, words=512, flips=8, replaced=5)


def read_names(
    sketches: Sequence[CountSketch],
    domain: OpenStrings,
    frequencies: Mapping[int, float],
    progress: Progress | None = None,
    words: Mapping[int, Sequence[str]] = MappingProxyType({}),
) -> dict[int, str]:
    """Return the names of hashes, by hash; hashes whose names cannot be read are left out.

    Args:
        sketches: the sums of the rounds that took place, with a spelling.
        domain: the open domain, with the seed of the campaign.
        frequencies: the frequencies of the heavy hashes; only the MOST_NAMES largest are read.
        progress: called with the number of hashes looked at so far and in all, over all sweeps.
        words: for a hash, the words of a public list that have it, in normal form if the domain
            normalises. If the scores are strong enough, these words compete with the spelled ones.

    >>> from fedtally.domain import Names
    >>> from fedtally.sketch import SketchSpec, Spelling
    >>> strings = OpenStrings(max_length=8, seed=bytes(32))
    >>> spec = SketchSpec(5, 50, "shared", 1, bytes(32), Spelling(3, 16, 8))
    >>> names, sketch = Names(strings, ["tea", "coffee"]), CountSketch(spec, 0)
    >>> sketch.add(names.spell(names.ids, spec.num_positions), np.array([30, 50]))
    >>> found = {int(hash): 0.4 for hash in strings.hashes(names.ids)}
    >>> sorted(read_names([sketch], strings, found).values())
    ['coffee', 'tea']
    """
    return _Reader(sketches, domain, words).read(frequencies, progress or (lambda *_: None))


class _Taken(NamedTuple):
    """What was subtracted from the sums for one hash.

    Attributes:
        cells: the counters of its symbols, [positions, rows].
        signs: the signs of its symbols in these counters, [positions, rows].
        values: the subtracted frequencies, [positions].
    """

    cells: I64
    signs: F64
    values: F64


class _Reader:
    """Reads names; holds what is left of the sums, and what was subtracted for each hash."""

    def __init__(
        self,
        sketches: Sequence[CountSketch],
        domain: OpenStrings,
        words: Mapping[int, Sequence[str]],
    ) -> None:
        spec, spelling = sketches[0].spec, sketches[0].spec.spelling
        assert spelling is not None
        self._domain, self._max_size = domain, domain.max_length + 1
        self._listed = {
            h: [word for word in (text.encode() for text in texts) if domain.name(word) is not None]
            for h, texts in words.items()
        }
        self._positions, self._rows = spec.num_positions, spelling.rows
        size = spelling.rows * spelling.width
        sums, clients = np.zeros((self._positions, size)), np.zeros(self._positions)
        for sketch in sketches:
            # Part 0 counts the hashes. The part with column t + 1 spells position t.
            for part in spec.parts(sketch.round)[1:]:
                sums[part.column - 1] += part.of(sketch.vector).reshape(-1)
                clients[part.column - 1] += sketch.num_clients
        # A position that nobody spelled gives no information.
        self._is_missing = clients == 0
        self._clients = np.maximum(clients, 1.0)
        self._left = sums / self._clients[:, None]
        self._width = spelling.width
        self._tables = np.stack(
            [spec.position_hash(position).location for position in range(self._positions)]
        )
        self._row_starts = np.arange(spelling.rows) * spelling.width
        self._places = np.arange(self._positions)
        # Row size - 1 has a 1 at each position with an end mark of a name of `size` symbols.
        self._ends = np.zeros((self._max_size, self._positions))
        for size in range(1, self._max_size + 1):
            self._ends[size - 1, size - 1 : self._positions - self._positions % size : size] = 1.0
        self._taken: dict[int, _Taken] = {}
        self._tries: dict[int, int] = {}
        self._names: dict[int, U8] = {}
        self._prior = _Prior()
        self._measure()

    def read(self, frequencies: Mapping[int, float], progress: Progress) -> dict[int, str]:
        """Return the names by hash; see `read_names`."""
        order = sorted(frequencies, key=lambda h: (-frequencies[h], h))[:MOST_NAMES]
        for sweep in range(SWEEPS):
            before = len(self._names)
            for place, h in enumerate(order):
                if place % _MEASURE_EVERY == 0:
                    self._measure()
                self._look_at(h, frequencies[h], _PATIENT if sweep >= _PATIENT_FROM else _QUICK)
                progress(sweep * len(order) + place + 1, SWEEPS * len(order))
            if sweep >= _MAY_STOP_FROM and len(self._names) == before:
                break
        self._measure()
        for h in order:
            if h in self._names:
                self._check(h, frequencies[h])
        progress(SWEEPS * len(order), SWEEPS * len(order))
        return {h: name.tobytes().decode() for h, name in self._names.items()}

    def _measure(self) -> None:
        """Measure the noise of a mean over rows at each position, as a frequency."""
        scale = 1.4826 * np.median(np.abs(self._left), axis=1) / self._rows**0.5
        # If most counters are 0, the median is 0. At least 0.3 clients keep the scores finite.
        self._scale = np.maximum(scale, 0.3 / self._clients)

    def _look_at(self, h: int, frequency: float, effort: _Effort) -> None:
        """Try to read the name of a hash, and subtract the hash's symbols from the sums.

        Without a name, only symbols whose scores stand out are subtracted. A hash that is too rare
        for a short name to be readable is skipped, unless an earlier sweep looked at it. What an
        earlier sweep subtracted for the hash is added back first.

        Args:
            h: the hash.
            frequency: its frequency.
            effort: how many words are tried.
        """
        expected = self._expected(frequency)
        weights = np.minimum(expected, _SURE)
        if h not in self._taken and not self._is_readable(weights, _SHORT):
            return
        if h in self._taken:
            self._add(self._taken[h], 1.0)
        means, z = self._scores(h, frequency)
        if h not in self._names:
            self._name(h, z, expected, effort)
        if h in self._names:
            chosen, clear = self._symbols(self._names[h]), ~self._is_missing
        else:
            chosen = z.argmax(axis=1)
            best = z[self._places, chosen]
            z[self._places, chosen] = -np.inf
            clear = (best > _STANDS_OUT) & (best - z.max(axis=1) > _LEADS)
        # The clients of a position are a sample, so the frequency of the hash varies among them,
        # with the variance `drawn`. The observed mean has noise of the variance _scale^2 as well.
        # So the value keeps the share drawn / (drawn + _scale^2) of the distance of the mean from
        # the frequency.
        drawn = frequency / self._clients
        kept = drawn / (drawn + self._scale**2)
        values = frequency + kept * (means[self._places, chosen] - frequency)
        self._taken[h] = _Taken(*self._counters(h, chosen), values * clear)
        self._add(self._taken[h], -1.0)

    def _expected(self, frequency: float) -> F64:
        """Return the expected score of a symbol at each position: float64 [positions].

        It assumes that all clients with the same hash hold the same string.
        """
        expected: F64 = frequency / self._scale * ~self._is_missing
        return expected

    def _counters(self, h: int, chosen: I64) -> tuple[I64, F64]:
        """Return the counters of a hash's symbol at each position, and their signs.

        Both are [positions, rows].

        Args:
            h: the hash.
            chosen: the symbol at each position, int64 [positions].
        """
        word = h << 8
        words = np.bitwise_xor.reduce(
            [self._tables[:, :, byte, word >> 8 * byte & 255] for byte in range(1, 8)]
        )
        words ^= self._tables[self._places, :, 0, chosen]
        return kernels.locations(words, self._width) + self._row_starts, 1.0 - 2.0 * (words & 1)

    def _scores(self, h: int, frequency: float) -> tuple[F64, F64]:
        """Return the mean of each symbol's signed counters, and the score z of each symbol.

        The means are frequencies, the scores are in standard deviations: both [positions, 256]. A
        counter is first cut to the largest size that the clients of the hash are likely to give it.
        A larger part comes from other hashes.
        """
        # The largest likely size of a counter: the frequency, plus 3 standard deviations of the
        # sample of clients, plus 2 of the noise of one counter.
        most = frequency + 3 * np.sqrt(frequency / self._clients)
        most += 2 * self._scale * self._rows**0.5
        left = self._left.reshape(self._positions, self._rows, -1)
        means = kernels.symbol_means(self._tables, left, h << 8, most)
        return means, means / self._scale[:, None]

    def _add(self, taken: _Taken, sign: float) -> None:
        values = sign * taken.signs * taken.values[:, None]
        # the rows of a position have different counters, so += adds every value
        self._left[self._places[:, None], taken.cells] += values

    def _symbols(self, name: U8) -> I64:
        offsets = np.array([0, len(name)])
        found = symbols.encode(name, offsets, self._domain.max_length, self._positions)
        first: I64 = found[0].astype(np.int64)
        return first

    # ---- one name ----

    def _is_readable(self, weights: F64, size: int) -> bool:
        """Return whether names of `size` symbols are worth trying (`_READABLE`).

        Args:
            weights: the expected score of a symbol at each position, at most `_SURE`, [positions].
            size: the length of a name in symbols, end mark included.
        """
        return bool(weights.mean() * (self._positions / size) ** 0.5 > _READABLE)

    def _name(self, h: int, z: F64, expected: F64, effort: _Effort) -> None:
        """Give a hash the name that fits, if no other word of this hash is nearly as good.

        The search continues after the first word that fits, because many clients may hold another
        string with the same hash, perhaps chosen by an attacker. If two words fit, or the best word
        is hardly better than another one, the hash gets no name.
        """
        weights = np.minimum(expected, _SURE)
        sizes = self._sizes(z, expected, effort)
        sizes = [size for size in sizes if self._is_readable(weights, size)]
        found = self._ahead(h, self._spelled(h, z, expected, sizes, effort), z, expected)
        if found is not None:
            self._names[h] = np.frombuffer(found, np.uint8)
            self._prior.learn(self._names[h])

    def _check(self, h: int, frequency: float) -> None:
        """Delete the name of a hash if there may be a second string with this hash.

        The symbols of the name hide those of a second string. So if the name has only a part of the
        expected scores, this part is subtracted from the scores of its symbols, and the hash is
        spelled again, as far as `MOST_TRIES` allows. The name stays only if it still fits, no other
        word fits, and none comes close. This is done after all sweeps: then everything that other
        hashes explain is subtracted, and no hash gets a name later.
        """
        expected, name = self._expected(frequency), self._names[h]
        self._add(self._taken[h], 1.0)
        _, z = self._scores(h, frequency)
        self._add(self._taken[h], -1.0)
        share = self._score(name.tobytes(), z, expected) / _length(expected)
        if share >= _WHOLE:
            return
        rest = z.copy()
        rest[self._places, self._symbols(name)] -= share * expected
        hidden = (1 - share) * expected
        sizes = self._sizes(rest, hidden, _PATIENT)
        others = self._spelled(h, rest, hidden, sizes, _PATIENT)
        if self._ahead(h, {name.tobytes(), *others}, z, expected) != name.tobytes():
            del self._names[h]

    def _ahead(self, h: int, spelled: set[bytes], z: F64, expected: F64) -> bytes | None:
        """Return the only word of a hash that fits, if it is better than all others by enough.

        Returns None if no word or several words fit, or if another word is too close. The words are
        `spelled`, and if the scores are strong enough also those of the public list.
        """
        strength = _length(expected)
        listed = self._listed.get(h, []) if strength >= _STRONG else []
        found = {*listed, *spelled}
        scores = {word: self._score(word, z, expected) for word in found}
        if sum(score > _FITS * strength for score in scores.values()) != 1:
            return None
        first, *others = sorted(found, key=lambda word: -scores[word])
        if others and scores[first] - scores[others[0]] < _AHEAD:
            return None
        return first

    def _score(self, word: bytes, z: F64, expected: F64) -> float:
        """Return the joint score of a word's symbols at all positions, in standard deviations."""
        scores = z[self._places, self._symbols(np.frombuffer(word, np.uint8))]
        return float(scores @ expected) / _length(expected)

    def _spelled(
        self, h: int, z: F64, expected: F64, sizes: list[int], effort: _Effort
    ) -> set[bytes]:
        """Return those of the likely words that have the hash h, as UTF-8 bytes."""
        found: set[bytes] = set()
        if self._tries.get(h, 0) >= MOST_TRIES:
            return found
        # log likelihoods, up to a constant for each position
        likely = z * np.minimum(expected, _SURE)[:, None]
        for words in _words(likely, sizes, self._prior, effort):
            words = words[: MOST_TRIES - self._tries.get(h, 0)]
            if not len(words):
                continue
            self._tries[h] = self._tries.get(h, 0) + len(words)
            for place in np.flatnonzero(hashes_of(words, self._domain) == np.uint64(h)):
                word = words[place].tobytes()
                if self._domain.name(word) is not None:
                    found.add(word)
        return found

    def _sizes(self, z: F64, expected: F64, effort: _Effort) -> list[int]:
        """Return the likeliest lengths of the name, in symbols, the clearest end marks first."""
        # A share is about 1 at an end mark of the hash, and about 0 elsewhere. A mark that is found
        # counts for a length, a missing mark counts against it. Weights are at most _SURE:
        # otherwise a few strong marks, of another length or another string with this hash, would
        # outweigh the missing marks.
        shares = z[:, symbols.END] / np.maximum(expected, _TINY)
        clarity = np.minimum(expected, _SURE) ** 2 * (shares - 0.5)
        clearest = 1 + np.argsort(-(self._ends @ clarity), kind="stable")[: effort.lengths]
        found: list[int] = clearest.tolist()
        return found


class _Prior:
    """A Markov chain of the bytes of names, learned from the names that were read so far.

    Attributes:
        pairs: how often each byte (column) followed each byte (row), float64 [257, 256]. Row 256
            is the start of a name. The end mark counts as a byte of the name.
        single: the share of each byte, at any place, float64 [256].
        follow: the probability of each byte given the byte before, shaped like `pairs`.
        log: the logarithms of `follow`.
    """

    def __init__(self) -> None:
        self.pairs = np.zeros((257, 256))  # the 257th row: the first byte of a name
        usual = np.zeros(256)
        usual[: symbols.FIRST_UNUSED] = 1e-4
        usual[0x20:0x7F] = 1.0  # printable ASCII
        usual[ord("a") : ord("z") + 1] = 4.0
        usual[symbols.END] = 1.0
        self._usual = usual / usual.sum()
        self._update()

    def learn(self, name: U8) -> None:
        """Learn the pairs of successive bytes in a name."""
        word = np.append(name, np.uint8(symbols.END)).astype(np.int64)
        np.add.at(self.pairs, (np.append(256, word[:-1]), word), 1.0)
        self._update()

    def _update(self) -> None:
        # The usual shares have the weight of 20 observed bytes. The shares of single bytes have the
        # weight of 3 observed pairs when the shares of the next byte are computed.
        single = self.pairs.sum(axis=0)
        self.single = (single + 20 * self._usual) / (single.sum() + 20)
        more = self.pairs.sum(axis=1, keepdims=True) + SINGLE
        self.follow = (self.pairs + SINGLE * self.single) / more
        self.log = np.log(np.maximum(self.follow, _TINY))


def _words(likely: F64, sizes: list[int], prior: _Prior, effort: _Effort) -> Iterator[U8]:
    """Yield the words of some lengths that are worth trying, in arrays: uint8 [n, size - 1].

    The words of an array are in the order to try.

    Args:
        likely: [positions, 256], the log likelihoods of symbols.
        sizes: the lengths of names in symbols, end marks included, in the order to try.
        prior: the prior of the names' bytes.
        effort: how many words are tried.
    """
    positions, every = len(likely), []
    for size in sizes:
        whole = likely[: positions - positions % size].reshape(-1, size, 256)
        copies = whole.sum(axis=0)[:-1]
        copies[:, symbols.FIRST_UNUSED :] = -np.inf
        every.append(copies)
    for size, copies, posterior in zip(sizes, every, _posteriors(every, prior), strict=True):
        rest = positions % size
        if size == 1:
            yield np.empty((1, 0), np.uint8)
            continue
        if size <= _LISTED or not rest:
            yield _likeliest(copies, posterior, prior, effort.words)
        if rest:
            parity = likely[positions - rest :]
            yield _interpolated(posterior, parity - _log_sum(parity)[:, None], effort)


def _length(vector: F64) -> float:
    """Return the Euclidean norm of a vector, or `_TINY` if the norm is smaller."""
    return max(float(np.sqrt(vector @ vector)), _TINY)


def _log_sum(logs: F64) -> F64:
    top = logs.max(axis=-1)
    total: F64 = top + np.log(np.exp(logs - top[..., None]).sum(axis=-1))
    return total


def _posteriors(every: list[F64], prior: _Prior) -> list[F64]:
    """Return the log probability of each byte at each place, given the scores of all places.

    This is the forward-backward algorithm (Baum and others 1970), scaled at each step. Here a
    "name" is one of the possible lengths of the name. All lengths are processed together, because
    multiplying a matrix by a few vectors takes as long as multiplying it by one.

    Args:
        every: for each length, the log likelihoods of the bytes of the name, [places, 256].
        prior: the prior of the bytes.

    Returns:
        For each length, [places, 256].
    """
    if kernels.backend() != "numpy":
        own = [np.exp(one - one.max(axis=1, keepdims=True)) for one in every]
        shares = letters.posteriors(own, prior.pairs, prior.single, SINGLE, symbols.END)
        return [np.log(share + _TINY) for share in shares]
    # The longest name comes first, so the names that have a given place are the first rows.
    order = sorted(range(len(every)), key=lambda name: -len(every[name]))
    lengths = np.array([len(every[name]) for name in order], np.int64)
    shape = (len(order), int(lengths.max(initial=0)), 256)
    # In `ahead` and `before`, places are numbered from the first one; in `back` and `after`, from
    # the last one. `ahead` and `back` hold the likelihoods of the bytes at each place alone.
    # `before` also includes the earlier places. `after` holds the likelihood of the later places
    # and the end mark.
    ahead, back, before, after = (np.zeros(shape) for _ in range(4))
    for row, name in enumerate(order):
        own = np.exp(every[name] - every[name].max(axis=1, keepdims=True))
        ahead[row, : len(own)], back[row, : len(own)] = own, own[::-1]
    follow = prior.follow[:256]
    state, next_state = prior.follow[256][None], follow[:, symbols.END][None]
    for place in range(shape[1]):
        having = int((lengths > place).sum())
        state = state[:having] * ahead[:having, place]
        before[:having, place] = state / np.maximum(state.sum(axis=1, keepdims=True), _TINY)
        state = before[:having, place] @ follow
        next_state = next_state[:having]
        after[:having, place] = next_state / np.maximum(
            next_state.max(axis=1, keepdims=True), _TINY
        )
        next_state = (back[:having, place] * after[:having, place]) @ follow.T
    found = [np.empty(0)] * len(order)
    for row, name in enumerate(order):
        size = len(every[name])
        both = before[row, :size] * after[row, :size][::-1]
        found[name] = np.log(both / np.maximum(both.sum(axis=1, keepdims=True), _TINY) + _TINY)
    return found


def _likeliest(copies: F64, posterior: F64, prior: _Prior, most: int) -> U8:
    """Return likely words, the likeliest one first: uint8 [n, size - 1].

    They are judged by the copies of their bytes and by the prior, not by the parity symbols. The
    search keeps the best beginnings of words, place by place, so it may miss a likely word.

    Args:
        copies: [places, 256], the log likelihoods of the bytes at each place.
        posterior: [places, 256], the log probabilities by which the bytes to try are chosen.
        prior: the prior of the bytes.
        most: the most words to return.
    """
    if kernels.backend() != "numpy":
        return letters.likeliest(copies, posterior, prior.log, _BRANCHES, most)
    branches = np.argsort(-posterior, axis=1, kind="stable")[:, :_BRANCHES]
    score = prior.log[256, branches[0]] + copies[0, branches[0]]
    words = branches[0][:, None]
    for place in range(1, len(copies)):
        next_bytes = branches[place]
        grown = prior.log[words[:, -1:], next_bytes] + copies[place, next_bytes] + score[:, None]
        flat = grown.reshape(-1)
        most_here = min(most, len(flat))
        chosen = np.argpartition(-flat, most_here - 1)[:most_here]
        parent, branch = np.divmod(chosen, _BRANCHES)
        words = np.hstack([words[parent], next_bytes[branch][:, None]])
        score = flat[chosen]
    order = np.argsort(-score, kind="stable")
    words, score = words[order], score[order]
    possible: U8 = words[score > -np.inf].astype(np.uint8)
    return possible


def _interpolated(posterior: F64, parity: F64, effort: _Effort) -> U8:
    """Return words that are interpolated from the surest places of the name and of its parity.

    This is the order-statistics decoding of Fossorier and Lin (1995). The symbols at any `size`
    places determine a word of `size` symbols. So the `size` surest places are chosen, and words are
    made from their best symbols; the least sure of them also get their second-best symbols, in all
    combinations. Then this is repeated with one place replaced by the surest place that was not
    chosen: first the least sure place, then the second least sure one, and so on.

    Args:
        posterior: [size - 1, 256], the log probabilities of the bytes of the name.
        parity: [parity symbols, 256], the log probabilities of the parity symbols.
        effort: how many places are flipped and replaced.

    Returns:
        uint8 [n, size - 1], the bytes without the end mark, in the order to try.
    """
    size = len(posterior) + 1
    flips = min(effort.flips, size - 1)
    replaced = min(effort.replaced, len(parity), size - 1)
    if kernels.backend() != "numpy":
        tried = replaced, _by_flips(flips)
        return letters.interpolated(posterior, parity, *tried, symbols.END, symbols.FIRST_UNUSED)
    logs = np.vstack([posterior, np.full((1, 256), -np.inf), parity])
    # The end mark is certain, so its gap is infinite and it is the first in `order`. The bounds
    # `size - 1` above keep it from being flipped or replaced.
    logs[size - 1, symbols.END] = 0.0
    every = np.arange(len(logs))
    best = logs.argmax(axis=1)
    gap = logs[every, best]
    logs[every, best] = -np.inf
    second = logs.argmax(axis=1)
    gap -= logs[every, second]
    order = np.argsort(-gap, kind="stable")
    found = []
    for out in range(replaced + 1):
        places = order[:size]
        if out:
            places = np.append(np.delete(places, size - out), order[size])
        word = _combined(places, best, best ^ second, flips)[_by_flips(flips)]
        is_name = (word[:, -1] == symbols.END) & (word[:, :-1] < symbols.FIRST_UNUSED).all(axis=1)
        found.append(word[is_name, :-1])
    return np.vstack(found)


@cache
def _by_flips(flips: int) -> I64:
    """Return all combinations of flips as bit masks, those with few flips first: int64."""
    # Likelier words come first, because the limit on tries cuts off the last words.
    flipped = np.arange(1 << flips)
    return np.argsort((flipped[:, None] >> np.arange(flips) & 1).sum(axis=1), kind="stable")


def _combined(places: I64, best: I64, changes: I64, flips: int) -> U8:
    """Return the words that symbols at some places determine, in all combinations of flips.

    A flip replaces the best symbol of a place by the second-best one.

    Args:
        places: int64 [size], the places, the surest first.
        best: int64 [n], the best symbol at each place of the name and its parity.
        changes: int64 [n], the xor of the best and the second-best symbol at each of these places.
        flips: how many of `places`, the last ones, may be flipped.

    Returns:
        uint8 [2^flips, size]: in row r, place size - flips + i is flipped if bit i of r is 1.
    """
    size = len(places)
    # The code is linear: a flip adds (xor) the same word whatever the other symbols are. So only
    # the word of the best symbols and one word for each flip are interpolated. All combinations are
    # sums of these words.
    known = np.zeros((1 + flips, size), np.uint8)
    known[0] = best[places]
    doubtful = np.arange(size - flips, size)
    known[1:, doubtful] = np.diag(changes[places[doubtful]])
    whole = np.empty((1 + flips, size), np.uint8)
    is_own = places < size
    whole[:, places[is_own]] = known[:, is_own]
    is_missing = np.ones(size, bool)
    is_missing[places[is_own]] = False
    if is_missing.any():
        missing = np.flatnonzero(is_missing)
        whole[:, missing] = symbols.interpolate(
            tuple(places.tolist()), known, tuple(missing.tolist())
        )
    word = np.empty((1 << flips, size), np.uint8)
    word[0] = whole[0]
    for flip in range(flips):
        half = 1 << flip
        np.bitwise_xor(word[:half], whole[1 + flip], out=word[half : 2 * half])
    return word
