"""The base class of closed lists of kinds, which users name in options."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, Self

from fedtally.errors import InvalidInputError, arg


class Named(StrEnum):
    """A closed list of kinds: a member is the text by which an option names it.

    Args:
        option: the option that names a member.

    >>> class Colour(Named, option="colour"):
    ...     RED = "red"
    ...     BLUE = "blue"
    >>> Colour.parse("red") is Colour.RED
    True
    """

    _asked: ClassVar[str]

    def __init_subclass__(cls, *, option: str) -> None:
        """Store the name of the option for error messages."""
        super().__init_subclass__()
        cls._asked = option

    @classmethod
    def parse(cls, name: str) -> Self:
        """Return the member called `name`.

        Raises:
            InvalidInputError: no member is called so.
        """
        try:
            return cls(name)
        except ValueError:
            *others, last = cls
            known = f"{', '.join(others)} or {last}"
            raise InvalidInputError(f"{arg[cls._asked]} must be {known}, got {name!r}") from None
