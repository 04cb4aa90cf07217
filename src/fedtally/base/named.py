"""Base class of enumerations whose members are the choices of an option, such as `--trust`."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, Self

from fedtally.errors import InvalidInputError, arg


class Named(StrEnum):
    """Base class of an enumeration. A member's value is the text that users write to choose it.

    Args:
        option: the name of the option in Python, such as secure_sum, for error messages.

    >>> class Colour(Named, option="colour"):
    ...     RED = "red"
    ...     BLUE = "blue"
    >>> Colour.parse("red") is Colour.RED
    True
    """

    _asked: ClassVar[str]

    def __init_subclass__(cls, *, option: str) -> None:
        """Store the name of the option, which error messages use."""
        super().__init_subclass__()
        cls._asked = option

    @classmethod
    def parse(cls, name: str) -> Self:
        """Return the member with the value `name`.

        Raises:
            InvalidInputError: no member has this value; the message lists all values.
        """
        try:
            return cls(name)
        except ValueError:
            *others, last = cls
            known = f"{', '.join(others)} or {last}"
            raise InvalidInputError(f"{arg[cls._asked]} must be {known}, got {name!r}") from None
