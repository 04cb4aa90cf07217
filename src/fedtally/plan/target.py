"""The target of a plan: the largest error that the plan was made for."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

from fedtally.base import validate
from fedtally.errors import InvalidInputError
from fedtally.recovery.decoders import Recovery

_SAID = re.compile("[ -~]{1,200}")  # the texts that `Target.frequencies` may be


@dataclass(frozen=True)
class Target:
    """The largest error that a plan was made for, and the conditions under which the plan keeps it.

    `fedtally simulate --plan` tests in simulated campaigns whether a plan keeps its target.

    Args:
        linf: the largest error that any candidate's frequency may have, above 0 and below 1.
        failure_probability: the probability with which some error may exceed `linf`, above 0 and
            below 1.
        recovery: the name of the decoder that estimates frequencies from the sums.
        frequencies: the frequencies for which the target holds, in 1 to 200 printable ASCII
            characters: "any" for any frequencies, or an assumed shape, such as "zipf:a=1.1". None:
            the plan does not say for which frequencies the target holds.
        until_known: a number of clients, at least 1. The campaign may end before its last round,
            once three conditions hold: its estimated error is at most `linf`; at least
            `until_known` clients took part; and enough rounds took place (`plan.stopping`). None:
            the campaign runs all its rounds.

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
        """Return the target's entries by name, as values for JSON; omit entries that are None."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @staticmethod
    def fields_of(target: Target | None) -> dict[str, Any] | None:
        """Return the entries of `target` as `to_dict` does; None if `target` is None."""
        return None if target is None else target.to_dict()

    @classmethod
    def from_dict(cls, values: Any) -> Target:
        """Return the target with the entries `values`, which `to_dict` returned.

        Raises:
            InvalidInputError: an entry is missing, unknown, null or out of bounds.
        """
        optional = ["frequencies", "until_known"]
        found = validate.table("target", values, list(cls.__dataclass_fields__), optional=optional)
        for name in optional:
            if found.get(name, "") is None:  # with null, one plan could be written in two ways
                raise InvalidInputError(f"target.{name} must be given, or be left out, got null")
        return cls(**found)
