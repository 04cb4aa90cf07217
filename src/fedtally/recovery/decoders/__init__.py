"""The registry of decoders: the facts about each that a plan needs, and access to its code.

To add a decoder, write a module or a package NAME beside this file that defines `KIND`
(`kind.DecoderKind`). Add a member NAME to `Recovery` below, and the name to `options.DECODERS`.
Other code finds decoders here, with few exceptions: for example, the end of a campaign
(`known_error`) and pilots use the class of joint recovery directly.

A decoder's code is loaded when it is first used, so that planning starts faster.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

from fedtally.base import validate
from fedtally.base.encoding import Encoding
from fedtally.errors import InvalidInputError, opt

if TYPE_CHECKING:
    from fedtally.recovery.decoders.kind import DecoderKind

_WHY = (
    "with fewer, rows do not tell which of the candidates of a cell is heavy; take more rows, or"
    " recovery median"
)


class Recovery(StrEnum):
    """The decoders of landed sums (the sums of rounds that took place), by name.

    `JOINT` fits the heavy items together. `MEDIAN` is the decoder of the paper (see the module
    `median.median`). `BELIEF` is belief propagation between all items and all cells (counters).
    `DIRECT` reads the counters of a histogram: the counts, with the noise of privacy if there is
    any.

    Joint recovery and belief propagation, which starts from it, need three rows. With one row,
    nothing distinguishes a heavy item from the other candidates in its cell. If two rows disagree,
    nothing shows which of them is right.

    Attributes:
        fewest_rows: the smallest number of rows that the decoder can decode.
        encoding: the encoding of the sums that the decoder can decode.

    >>> str(Recovery.DIRECT.encoding), Recovery.JOINT.fewest_rows
    ('histogram', 3)
    """

    fewest_rows: int
    encoding: Encoding

    JOINT = "joint", 3
    MEDIAN = "median", 1
    BELIEF = "belief", 3
    DIRECT = "direct", 1, Encoding.HISTOGRAM

    def __new__(cls, name: str, fewest_rows: int = 1, encoding: Encoding = Encoding.SKETCH) -> Self:
        """Make a member: a str equal to `name`, with the two attributes."""
        row = str.__new__(cls, name)
        row._value_, row.fewest_rows, row.encoding = name, fewest_rows, encoding
        return row

    @classmethod
    def parse(cls, name: str, argument: str = "recovery") -> Recovery:
        """Return the decoder with a given name.

        Args:
            name: the name of the decoder.
            argument: what the error message calls the argument that held the name.

        Raises:
            InvalidInputError: no decoder has this name.

        >>> str(Recovery.parse("joint"))
        'joint'
        """
        try:
            return cls(name)
        except ValueError:
            raise InvalidInputError(
                f"{argument} must be {', '.join(list(cls)[:-1])} or {list(cls)[-1]}, got {name!r}"
                + validate.did_you_mean(name, map(str, cls))
            ) from None

    @property
    def kind(self) -> DecoderKind:
        """The facts and functions of the decoder: the `KIND` of its module.

        The module is imported when this is first read.

        >>> Recovery.MEDIAN.kind.usual_rows
        15
        """
        found: DecoderKind = import_module(f"{__name__}.{self}").KIND
        return found

    def check_encoding(self, encoding: Encoding) -> None:
        """Raise InvalidInputError if the decoder cannot decode sums of this encoding.

        >>> Recovery.JOINT.check_encoding(Encoding.HISTOGRAM)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        fedtally.errors.InvalidInputError: recovery='joint' is for a sketch, ...
        """
        if encoding is not self.encoding:
            raise InvalidInputError(
                f"{opt.recovery(self)} is for a {self.encoding}, and the encoding is a {encoding}:"
                f" leave {opt.recovery} out"
            )

    def check_rows(self, rows: int) -> None:
        """Raise InvalidInputError if the decoder needs more than `rows` rows.

        >>> Recovery.JOINT.check_rows(1)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        fedtally.errors.InvalidInputError: joint recovery needs at least 3 rows, got 1: ...
        """
        if rows < self.fewest_rows:
            raise InvalidInputError(
                f"{self} recovery needs at least {self.fewest_rows} rows, got {rows}: {_WHY}"
            )


# The decoder that plans and pilots use by default.
USUAL = Recovery.JOINT
# The decoder that finds the hashes of an open domain: strings that nobody has listed.
OPEN = Recovery.JOINT
# For each encoding, the decoder that makes no assumptions about the sums. For sketches it is the
# paper's decoder.
SIMPLEST: Mapping[Encoding, Recovery] = MappingProxyType(
    {Encoding.SKETCH: Recovery.MEDIAN, Encoding.HISTOGRAM: Recovery.DIRECT}
)


# A campaign may end early when the predicted error of the decoder ENDS_BY is small enough. Its sums
# must then be decoded by a decoder in AS_EXACT: the errors of such a decoder are usually not larger
# than those of ENDS_BY.
ENDS_BY = Recovery.JOINT
AS_EXACT = (Recovery.JOINT, Recovery.BELIEF)
