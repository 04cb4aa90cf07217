"""The registry of the decoders: the facts that a plan needs, and access to their code.

To add a decoder, write a module or a package NAME beside this file, which ends with its `KIND`
(`kind.DecoderKind`). Add its row to `Recovery` and its name to `options.DECODERS`. Other code looks
a decoder up here. Only the end of a campaign (`known_error`) and pilots use the class of joint
recovery directly.

A decoder's code is loaded when it is first used, so that a plan need not wait for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

from fedtally.base.encoding import Encoding
from fedtally.errors import InvalidInputError, opt

if TYPE_CHECKING:
    from fedtally.recovery.decoders.kind import DecoderKind

_WHY = (
    "with fewer, rows do not tell which of the candidates of a cell is heavy; take more rows, or"
    " recovery median"
)


class Recovery(StrEnum):
    """The decoder of landed sums: its name, the fewest rows that it needs, and the encoding.

    `JOINT` fits the heavy items together, `MEDIAN` is the paper's decoder, and `BELIEF` is belief
    propagation between all items and all cells. `DIRECT` reads the counters of a histogram, which
    are the counts.

    Joint recovery needs three rows, and so does belief propagation, which starts from it. With one
    row nothing tells a heavy item from another candidate of its cell. With two rows that disagree,
    nothing tells which of them is right.

    Attributes:
        fewest_rows: the fewest rows that the decoder needs.
        encoding: the encoding whose sums the decoder decodes.

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
        """Return a member: a text that equals the name, with the two attributes."""
        row = str.__new__(cls, name)
        row._value_, row.fewest_rows, row.encoding = name, fewest_rows, encoding
        return row

    @classmethod
    def parse(cls, name: str, argument: str = "recovery") -> Recovery:
        """Return the decoder of that name.

        Args:
            name: its name.
            argument: the argument that held the name, for the error.

        Raises:
            InvalidInputError: there is no such decoder.

        >>> str(Recovery.parse("joint"))
        'joint'
        """
        try:
            return cls(name)
        except ValueError:
            raise InvalidInputError(
                f"{argument} must be {', '.join(list(cls)[:-1])} or {list(cls)[-1]}, got {name!r}"
            ) from None

    @property
    def kind(self) -> DecoderKind:
        """The facts and functions of the decoder: `KIND` of the module with its name.

        >>> Recovery.MEDIAN.kind.usual_rows
        15
        """
        found: DecoderKind = import_module(f"{__name__}.{self}").KIND
        return found

    def check_encoding(self, encoding: Encoding) -> None:
        """Raise InvalidInputError unless the decoder decodes sums of this encoding.

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
        """Raise InvalidInputError unless the decoder can decode sketches of this number of rows.

        >>> Recovery.JOINT.check_rows(1)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        fedtally.errors.InvalidInputError: joint recovery needs at least 3 rows, got 1: ...
        """
        if rows < self.fewest_rows:
            raise InvalidInputError(
                f"{self} recovery needs at least {self.fewest_rows} rows, got {rows}: {_WHY}"
            )


# The decoder that plans and pilots rest on where none is asked for.
USUAL = Recovery.JOINT
# The decoder that finds the hashes of an open domain.
OPEN = Recovery.JOINT
# The decoder of each encoding that assumes nothing of the sums: for sketches it is the paper's.
SIMPLEST: Mapping[Encoding, Recovery] = MappingProxyType(
    {Encoding.SKETCH: Recovery.MEDIAN, Encoding.HISTOGRAM: Recovery.DIRECT}
)


# A campaign may end early, once the predicted error of the decoder ENDS_BY is small enough. It must
# then be decoded by one of the decoders in AS_EXACT: their errors are no larger.
ENDS_BY = Recovery.JOINT
AS_EXACT = (Recovery.JOINT, Recovery.BELIEF)
