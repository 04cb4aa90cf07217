"""The error that a plan was made for."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

from fedtally.base import validate
from fedtally.errors import InvalidInputError
from fedtally.recovery.decoders import Recovery

_SAID = re.compile("[ -~]{1,200}")  # what a target says of frequencies


@dataclass(frozen=True)
class Target:
    """The largest error that a plan was made for; `fedtally simulate --plan` checks it.

    Args:
        linf: the largest error of any candidate's frequency, above 0, below 1.
        failure_probability: the probability with which it may be exceeded, above 0, below 1.
        recovery: the name of the decoder of the sums.
        frequencies: the frequencies of the target, in 1 to 200 printable ASCII characters:
            "any" if it holds whatever they are, or what they are assumed to be like, such as
            "zipf:a=1.1". None: the plan does not say.
        until_known: the fewest clients whose sums may end the campaign before its last round, as
            soon as they are known to be within `linf` (`plan.stopping`); None: it goes on.

    >>> Target(0.001, 0.1, "joint").to_dict()
    {'linf': 0.001, 'failure_probability': 0.1, 'recovery': 'joint'}
    """

    linf: float
    failure_probability: float
    recovery: str
    frequencies: str | None = None
    until_known: int | None = None

    def __post_init__(self) -> None:
        said = self.frequencies
        if said is not None and not (isinstance(said, str) and _SAID.fullmatch(said)):
            raise InvalidInputError(
                f"target.frequencies must be 1 to 200 printable ASCII characters, got {said!r:.80}"
            )
        for name in ("linf", "failure_probability"):
            object.__setattr__(self, name, validate.inside(**{name: getattr(self, name)}))
        if self.until_known is not None:
            least = validate.integer(1, **{"target.until_known": self.until_known})
            object.__setattr__(self, "until_known", least)
        object.__setattr__(self, "recovery", str(Recovery.parse(self.recovery, "target.recovery")))

    def to_dict(self) -> dict[str, Any]:
        """Return the entries as JSON-able values; what the plan does not say is absent."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @staticmethod
    def fields_of(target: Target | None) -> dict[str, Any] | None:
        """Return what `to_dict` does; None where a plan has no target."""
        return None if target is None else target.to_dict()

    @classmethod
    def from_dict(cls, values: Any) -> Target:
        """Return the target that `to_dict` described.

        Raises:
            InvalidInputError: an entry is missing, unknown or out of bounds.
        """
        optional = ["frequencies", "until_known"]
        found = validate.table("target", values, list(cls.__dataclass_fields__), optional=optional)
        for name in optional:
            if found.get(name, "") is None:  # JSON's null would be another text of one plan
                raise InvalidInputError(f"target.{name} must be given, or be left out, got null")
        return cls(**found)
