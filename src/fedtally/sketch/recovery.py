"""The names of the decoders, and how many rows of a sketch each needs.

A plan must know no more of them. Everything else stands in `fedtally.recovery.decoding.DECODERS`.
"""

from __future__ import annotations

from enum import StrEnum

from fedtally.base.encoding import Encoding
from fedtally.errors import InvalidInputError, opt

_FEWEST_ROWS = {"joint": 3, "median": 1, "belief": 3, "direct": 1}
_WHY = (
    "with fewer, rows do not tell which of the candidates of a cell is heavy; take more rows, or"
    " recovery median"
)


class Recovery(StrEnum):
    """The decoder of landed sums.

    `JOINT` fits the heavy items together, `MEDIAN` is the paper's decoder, and `BELIEF` is belief
    propagation between all items and all cells. `DIRECT` reads the counters of a histogram, which
    are the counts.
    """

    JOINT = "joint"
    MEDIAN = "median"
    BELIEF = "belief"
    DIRECT = "direct"

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
    def encoding(self) -> Encoding:
        """The encoding whose sums the decoder decodes.

        >>> str(Recovery.DIRECT.encoding)
        'histogram'
        """
        return Encoding.HISTOGRAM if self is Recovery.DIRECT else Encoding.SKETCH

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

    @property
    def fewest_rows(self) -> int:
        """The fewest rows that the decoder needs.

        Joint recovery needs three, and so does belief propagation, which starts from it. With one
        row nothing tells a heavy item from another candidate of its cell. With two rows that
        disagree, nothing tells which of them is right.
        """
        return _FEWEST_ROWS[self]

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
