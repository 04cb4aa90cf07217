"""The options of a simulated campaign: options of any campaign, and of a simulation only."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import Any, Self

from fedtally.base import validate
from fedtally.base.encoding import Encoding
from fedtally.base.named import Named
from fedtally.campaign.screening import Screen
from fedtally.domain import OpenStrings
from fedtally.errors import InvalidInputError, arg
from fedtally.plan import Plan
from fedtally.plan.request import CampaignSpec, Request
from fedtally.plan.rules import check, given, unmet
from fedtally.plan.silos import Silos
from fedtally.privacy.config import checked_epsilon
from fedtally.secagg.config import SecureSum
from fedtally.simulation.item_ids import fate_outside

_DEFAULT_MEMORY = 1 << 30
_LEAST_MEMORY = 1 << 20  # the least `memory`: a smaller number probably lacks its unit
_READING = 1 << 29  # about how many bytes batches take while they are read and prepared


class Sizing(Named, option="sizing"):
    """How the size of a sketch is found for a target error.

    `MODEL` is the error model of this package. All other values are methods of Wu and others
    (2023), see `plan.paper`.
    """

    MODEL = "model"
    TWO_PHASE = "two-phase"
    MINIMAX = "minimax"
    LINEAR = "linear"
    ORACLE = "oracle"

    @property
    def has_pilot(self) -> bool:
        """Whether the size follows from a pilot: from sums of clients that are drawn for it."""
        return self in (Sizing.MODEL, Sizing.TWO_PHASE)


def row_bytes(memory: int | str | None) -> int:
    """Return the most bytes of client rows to hold in memory; the rest of `memory` is for reading.

    If `memory` is None, 1 GiB is taken.

    >>> row_bytes(None) >> 20, row_bytes("2GiB") >> 20, row_bytes("64MiB") >> 20
    (512, 1536, 16)
    >>> row_bytes(3)
    Traceback (most recent call last):
    ...
    fedtally.errors.InvalidInputError: memory must be at least 1MiB, got 3 bytes: write its unit, \
such as 4GiB, or leave it out (1GiB)
    """
    whole = _DEFAULT_MEMORY if memory is None else validate.size(memory=memory)
    if whole < _LEAST_MEMORY:
        raise InvalidInputError(
            f"{arg.memory} must be at least 1MiB, got {whole:,} byte{'s' * (whole > 1)}: write its"
            " unit, such as 4GiB, or leave it out (1GiB)"
        )
    return max(whole - _READING, whole // 4)


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """A campaign whose clients are simulated; `Simulation.of` makes it from options.

    Args:
        spec: the campaign that the caller asked for. It holds also the share of clients that drop
            out, and the permission to use the truth, a seed or the input's own items in a private
            campaign.

    All other fields are keywords of `fedtally.estimate`, whose docstring explains them.

    Raises:
        InvalidInputError: an option is out of bounds, or some options exclude each other.
    """

    spec: CampaignSpec
    # keywords: written by tools/keywords.py
    outside: str | None = None
    dictionary: Any = None
    name_length: int | None = None
    allow_rare_names: bool = False
    top: int = 20
    evaluate: bool = False
    sizing: Sizing | str | None = None
    pilot_share: float | None = None
    until_known: bool = False
    min_clients: int | None = None
    ledger: str | os.PathLike[str] | None = None
    screen: Screen | str | None = None
    seed: int | str | bytes | None = None
    memory: int | str | None = None
    # end of keywords

    def __post_init__(self) -> None:
        if isinstance(self.seed, bool):
            raise InvalidInputError(
                f"{arg.seed} must be an integer, text or bytes, got {self.seed!r}"
            )
        validate.flag(evaluate=self.evaluate, allow_rare_names=self.allow_rare_names)
        check(given(dictionary=self.dictionary), unmet(open=self._open_domain is None))
        if self.ledger is not None and not isinstance(self.ledger, str | os.PathLike):
            raise InvalidInputError(f"{arg.ledger} must be a path or a URL, got {self.ledger!r}")
        self._check_screen()
        self._check_privacy()
        self._check_end()
        if self.memory is not None:
            _ = self.row_bytes
        validate.integer(0, top=self.top)
        fate_outside(self.outside, is_private=self.spec.is_private)
        self._check_sizing()

    @classmethod
    def of(cls, *, of_silos: bool = False, **options: Any) -> Self:
        """Return the simulation with these options.

        Options are the fields of `Request` (whose `plan` may also be the path of a file), the
        fields of this class except `spec`, and four more:

        - `dropout`: the share of each cohort's clients that drop out of it (0);
        - `not_private`: with epsilon, allow a seed, the truth, and the input's own items as
          candidates. The result is then marked not private;
        - `people` and `silos_per_person`, if clients are silos: see `Silos`.

        Args:
            of_silos: whether the input names silos; its clients are then people in silos.
            options: the options, by name.

        Raises:
            InvalidInputError: an option is unknown or out of bounds, or some options exclude each
                other.
            UnreadableFileError: the plan's file is missing, or holds no plan.

        >>> Simulation.of(epsilon=1.0, seed=7)
        Traceback (most recent call last):
        ...
        fedtally.errors.InvalidInputError: seed= is not for a private run: whoever knows a seed \
can take the noise off; leave it out, or mark it with not_private=True
        """
        unknown = [name for name in options if name not in OPTIONS]
        if unknown:
            raise InvalidInputError(
                f"unknown option {unknown[0]!r}; known are {', '.join(OPTIONS)}"
            )
        asked = {name: options.pop(name) for name in _ASKED if name in options}
        marks = {name: options.pop(name) for name in _MARKS if name in options}
        silos = _silos(of_silos, *(options.pop(name, None) for name in _OF_SILOS))
        check(given(tau=asked.get("tau")), unmet(persons=silos is not None))
        asked["plan"] = _plan(asked.get("plan"))
        spec = Request(**asked).resolve(silos=silos, **marks)
        if options.get("ledger") is not None:
            spec = spec.for_ledger()
        return cls(spec=spec, **options)

    @property
    def _open_domain(self) -> OpenStrings | None:
        """The open domain, whose candidates nobody has listed; None if the domain is not open."""
        return self.spec.domain if isinstance(self.spec.domain, OpenStrings) else None

    @property
    def row_bytes(self) -> int:
        """The most bytes of client rows to hold in memory before they go to disk."""
        return row_bytes(self.memory)

    @property
    def sizing_method(self) -> Sizing:
        """The method that finds the size of the sketch for `tau`."""
        return Sizing.MODEL if self.sizing is None else Sizing.parse(self.sizing)

    @property
    def pilots(self) -> bool:
        """Whether a pilot may be needed. A pilot's clients do not take part in the campaign.

        No pilot is needed if a histogram is chosen (`sizing.without_pilot`).
        """
        return self.spec.tau is not None and self.sizing_method.has_pilot and not self.sizes_open

    @property
    def sizes_open(self) -> bool:
        """Whether the domain is open and there is no plan, so that size and rounds are chosen."""
        return self.spec.plan is None and self._open_domain is not None

    @property
    def needs_clients(self) -> bool:
        """Whether the items of each client may be needed, so that counts of items are not enough.

        They may be needed in four cases:

        - A protocol sends each client's vector.
        - Vectors are clipped.
        - Clients with several items are drawn, for a pilot or for the rounds of an open domain.
        - People are drawn from a silo that has too many people.
        """
        spec = self.spec
        is_clipped = spec.is_private and (spec.max_items > 1 or spec.plan is not None)
        if not spec.summation.is_ideal or is_clipped:
            return True
        # Under privacy, if a silo has too many people, the people who stay are drawn.
        is_drawn = spec.silos is not None and spec.is_private
        return is_drawn or ((self.pilots or self.sizes_open) and spec.max_items > 1)

    def ending(self, plan: Plan) -> Plan:
        """Return the plan, with a stopping rule if the caller asked for `until_known`.

        By this rule the campaign ends as soon as its largest error is known to be at most `tau`,
        but not before it has `min_clients` clients.
        """
        return plan.until_known(self.min_clients) if self.until_known else plan

    def _check_screen(self) -> None:
        if self.screen is None:
            return
        object.__setattr__(self, "screen", Screen.parse(self.screen))
        # `campaign.screening.checked_screen` checks the screen against the plan
        method = self.spec.summation.method
        check(given(screen=self.screen), unmet(secagg=method is not SecureSum.SECAGG and method))

    def _check_privacy(self) -> None:
        spec = self.spec
        is_guaranteed = spec.is_private and not spec.accounting.is_not_private
        if is_guaranteed and spec.privacy is not None:  # checked first: this error is plainer
            checked_epsilon(spec.privacy.epsilon)
        check(
            given(
                ledger=self.ledger,
                outside=self.outside,
                seed=self.seed,
                evaluate=self.evaluate,
                sizing=self.sizing,
            ),
            unmet(
                epsilon=not spec.is_private,
                guarantee=spec.is_private and spec.accounting.is_not_private,
                not_private=is_guaranteed,
            ),
        )

    def _check_end(self) -> None:
        """Refuse options that end the campaign early if other options exclude them."""
        validate.flag(until_known=self.until_known)
        check(
            given(until_known=self.until_known, min_clients=self.min_clients),
            unmet(
                no_plan=self.spec.plan is not None,
                tau=self.spec.tau is None,
                until_known=not self.until_known,
                list=self.sizes_open,
            )
            | self.spec.cannot_end(),
        )

    def _check_sizing(self) -> None:
        if self.sizing is not None:
            object.__setattr__(self, "sizing", Sizing.parse(self.sizing))
        sizes_sketch = self.spec.size.encoding is not Encoding.HISTOGRAM
        check(
            given(name_length=self.name_length, sizing=self.sizing, pilot_share=self.pilot_share),
            unmet(
                unsized=not self.sizes_open,
                list=self.sizes_open,
                tau=self.spec.tau is None,
                sketch=not sizes_sketch,
            ),
        )
        if self.name_length is not None:
            assert self._open_domain is not None
            validate.integer(1, self._open_domain.max_length, name_length=self.name_length)
        if self.sizes_open or self.spec.tau is None:
            return
        if self.sizing_method is not Sizing.MODEL:
            object.__setattr__(self, "spec", self.spec.with_encoding(Encoding.SKETCH))
        if self.pilot_share is not None:
            validate.inside(pilot_share=self.pilot_share)


def _plan(of: Any) -> Plan | None:
    """Return the given plan, or load it if a path is given; None: no plan is given.

    Raises:
        InvalidInputError: `of` is neither a plan nor a path.
        UnreadableFileError: the file is missing, or holds no plan.
    """
    if isinstance(of, str | os.PathLike):
        return Plan.load(of)
    if of is not None and not isinstance(of, Plan):
        raise InvalidInputError(
            f"{arg.plan} must be a Plan, or the path of the file of one, got {type(of).__name__}"
        )
    return of


def _silos(of_silos: bool, people: int | None, each: int | None) -> Silos | None:
    """Return the options of silos; None if the input names no silos.

    Args:
        of_silos: whether the input names silos.
        people: the most people in a silo; None: the caller gave no number.
        each: the most silos of one person; None: 1.
    """
    if of_silos:
        return Silos(people, 1 if each is None else each)
    check(given(people=people, silos_per_person=each), unmet(silos=True))
    return None


# The options of `Simulation.of`, in four groups: fields of `Request`, arguments of
# `Request.resolve`, options of silos, fields of `Simulation`.
_ASKED = tuple(each.name for each in fields(Request))
_MARKS = ("dropout", "not_private")
_OF_SILOS = ("people", "silos_per_person")
_OWN = tuple(each.name for each in fields(Simulation) if each.name != "spec")
OPTIONS = (*_ASKED, *_MARKS, *_OF_SILOS, *_OWN)
