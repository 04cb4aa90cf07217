"""Decoders and schedules that a user wrote: a study loads them by a name `module:Class`.

Loading such a name imports the module, and so runs its code. Only studies accept such names.
`Decoding` and `Result.load` never do: reading a file must not run code that the file names. See
docs/library.md.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fedtally.base import validate
from fedtally.domain import Domain
from fedtally.errors import InvalidInputError
from fedtally.kernels import range_ids
from fedtally.recovery.decoding import kind_of
from fedtally.recovery.linear_system import Decoder
from fedtally.simulation.round_tally import RoundTally
from fedtally.sketch import CountSketch, Schedule, SketchSpec
from fedtally.sketch.count_sketch import MAX_ROUNDS
from fedtally.sketch.hashing import round_seed

F64 = npt.NDArray[np.float64]
U64 = npt.NDArray[np.uint64]
_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


class OwnDecoder(Protocol):
    """The interface of a user's decoder, which estimates counts from sums of sketches.

    Args:
        sketches: the sums.
        domain: the candidates.
    """

    def __init__(self, sketches: Sequence[CountSketch], domain: Domain) -> None: ...

    def at(self, ids: U64) -> F64:
        """Return the estimated counts of the items with the given ids: float64 [n], for ids uint64
        [n].
        """


class OwnSchedule(Protocol):
    """The interface of a user's schedule, which decides which rounds use the same hashes.

    A study makes an object of the class without arguments.
    """

    def hashes(self, num_rounds: int) -> Sequence[tuple[int, int]]:
        """Return a pair of numbers for each round: one for the cells of items, one for their signs.

        Rounds with equal pairs use the same hashes. Rounds whose pairs have the same first number
        use the same cells, but other signs. Rounds with different first numbers share nothing, so
        their signs differ even if the second numbers are equal. All numbers are at least 0 and
        below 2^20.
        """


def is_own(name: str) -> bool:
    """Return whether a name has the form `module:Class` and does not begin with `batched:`.

    >>> [is_own(name) for name in ("mine:Decoder", "batched:4", "batched:auto", "joint")]
    [True, False, False, False]
    """
    return bool(_NAME.fullmatch(name)) and not name.startswith("batched:")


def load(name: str, method: str) -> type[Any]:
    """Import a class by its name `module:Class`, and return it.

    Args:
        name: the name; `is_own(name)` must be True.
        method: the name of a method that the class must have.

    Raises:
        InvalidInputError: there is no such module or class, the import fails, or the class lacks
            the method.

    >>> load("fedtally:MedianDecoder", "at").__name__
    'MedianDecoder'
    >>> load("fedtally:MedianDecoders", "at")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    fedtally.errors.InvalidInputError: fedtally:MedianDecoders: the module fedtally has no ...
    """
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ModuleNotFoundError as error:
        # The missing module may be one that the user's module imports, so the error's own name is
        # shown.
        raise InvalidInputError(
            f"{name}: there is no module {error.name}; a module is looked for in the current"
            " folder, and among installed packages"
        ) from error
    except Exception as error:  # a user's module may raise any error
        raise InvalidInputError(
            f"{name}: importing {module} raised {type(error).__name__}: {error}"
        ) from error
    if found is None:
        there = importlib.import_module(module)
        # The modules that it imports are not suggested. Names that it loads only when they are used
        # are suggested, too.
        known = [name for name in dir(there) if not inspect.ismodule(vars(there).get(name))]
        meant = validate.did_you_mean(attribute, known)
        raise InvalidInputError(f"{name}: the module {module} has no {attribute}{meant}")
    if not isinstance(found, type) or not callable(getattr(found, method, None)):
        raise InvalidInputError(
            f"{name} must be a class with a method {method}: see docs/library.md#a-decoder"
        )
    return found


def fits_items(name: str) -> bool:
    """Return whether a decoder fits the counts of the heavy items together; False for a user's
    decoder.

    Heavy items are the most frequent ones.

    >>> fits_items("median"), fits_items("joint"), fits_items("mine:Decoder")
    (False, True, False)
    """
    return not is_own(name) and kind_of(name).fits_items


def make_decoder(name: str, sketches: Sequence[CountSketch], domain: Domain) -> Decoder:
    """Return a decoder for sums of sketches, by the name of one of fedtally's decoders or of a
    user's.

    Args:
        name: the name of the decoder.
        sketches: the sums.
        domain: the candidates.

    Raises:
        InvalidInputError: there is no such decoder, or a user's decoder cannot be loaded.
    """
    if not is_own(name):
        return kind_of(name).make(sketches, domain)
    return _Checked(name, load(name, "at")(sketches, domain))


class _Checked:
    """A user's decoder whose results are checked: they must be finite numbers, one for each id."""

    def __init__(self, name: str, decoder: OwnDecoder) -> None:
        self._name, self._decoder = name, decoder

    def at(self, ids: U64) -> F64:
        counts = np.asarray(self._decoder.at(ids))
        if counts.shape != ids.shape or counts.dtype.kind not in "iuf":
            raise InvalidInputError(
                f"{self._name}.at must return float64 [{len(ids)}], a number for each of"
                f" {len(ids):,} ids, got {counts.dtype} {list(counts.shape)}"
            )
        if not np.isfinite(counts).all():
            raise InvalidInputError(
                f"{self._name}.at must return finite numbers, got"
                f" {counts[~np.isfinite(counts)][0]} for one of {len(ids):,} ids"
            )
        return counts.astype(np.float64)  # a copy, because `Summed` adds to it in place

    def range(self, first_id: int, count: int) -> F64:
        return self.at(range_ids(first_id, count))


class OwnRounds:
    """The rounds of a user's schedule, grouped into campaigns of the hybrid schedule.

    In the hybrid schedule all rounds use the same cells, and each round has its own signs. So
    rounds with the same cells form a campaign. Rounds of a campaign with the same signs form one
    round of the campaign. Different campaigns use different cells and signs, so their estimated
    counts are added up.

    Args:
        name: the name of the schedule, `module:Class`.
        num_rounds: the number of rounds of the study.

    Raises:
        InvalidInputError: there is no such class, or its `hashes` did not return a pair of numbers
            for each round.
    """

    def __init__(self, name: str, num_rounds: int) -> None:
        made: OwnSchedule = load(name, "hashes")()
        self._pairs = _checked_pairs(name, made.hashes(num_rounds), num_rounds)
        signs_of: dict[int, set[int]] = {}
        for cells, signs in self._pairs:
            signs_of.setdefault(cells, set()).add(signs)
        self._places: Mapping[int, dict[int, int]] = {
            cells: {number: place for place, number in enumerate(sorted(signs))}
            for cells, signs in signs_of.items()
        }

    def land(self, spec: SketchSpec, rounds: Sequence[RoundTally]) -> list[list[CountSketch]]:
        """Return the sums of sketches, one list for each campaign; rounds without clients have no
        sum.

        If all rounds have the same cells, the hashes come from the seed itself, as in the schedule
        `hybrid`. Otherwise each campaign gets its own seed, as each round does in the schedule
        `fresh`.

        Args:
            spec: the sketch's rows, width and seed; its schedule and number of rounds are not used.
            rounds: the items of the clients of each round.
        """
        alone = len(self._places) == 1
        sums: dict[int, dict[int, CountSketch]] = {}
        for (cells, signs), tally in zip(self._pairs, rounds, strict=True):
            if tally.num_clients:  # a round without clients is left out
                places = self._places[cells]
                seed = spec.seed if alone else round_seed(spec.seed, cells)
                own = SketchSpec(spec.rows, spec.width, Schedule.parse("hybrid"), len(places), seed)
                place = places[signs]
                landed = sums.setdefault(cells, {}).setdefault(place, CountSketch(own, place))
                landed.add(tally.ids, tally.counts, tally.num_clients)
        return [list(of.values()) for of in sums.values()]


def _checked_pairs(name: str, pairs: object, num_rounds: int) -> list[tuple[int, int]]:
    try:
        listed = [
            tuple(validate.integer(0, MAX_ROUNDS - 1, number=number) for number in pair)
            for pair in pairs  # type: ignore[attr-defined]  # a user's code may return anything
        ]
        checked = [(cells, signs) for cells, signs in listed]
    except (TypeError, ValueError, InvalidInputError) as error:
        raise InvalidInputError(
            f"{name}.hashes must return two integers (cells, signs), each at least 0 and below"
            f" 2^20, for each round: {error}"
        ) from error
    if len(checked) != num_rounds:
        raise InvalidInputError(
            f"{name}.hashes must return a pair for each of {num_rounds} rounds, got {len(checked)}"
        )
    return checked
