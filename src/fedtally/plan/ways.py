"""The smallest changes of a request that help if no plan meets its target."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from fedtally.base.encoding import Encoding
from fedtally.errors import InvalidInputError, opt
from fedtally.plan import MAX_CLIENTS
from fedtally.plan.design import Design
from fedtally.plan.frequencies import hardest
from fedtally.plan.frequencies.distribution import Frequencies
from fedtally.plan.search import (
    PRECISION,
    OutOfReachError,
    is_made,
    least,
    reaches,
    rounded_up,
    smallest,
)
from fedtally.plan.sizes import UnreachableError
from fedtally.plan.sketches import Sketches
from fedtally.privacy.config import MAX_EPSILON

# The most clients that a search tries, as multiples of the given number. If a search up to one
# multiple finds nothing, the search for the next multiple follows.
_MORE_CLIENTS = (100, 10, 3)
_TRIES, _ENOUGH = 5, 1.1  # how many values are tested, and the factor between the first two


class Way(NamedTuple):
    """One change of the request that alone is enough to meet the target.

    Attributes:
        what: the quantity that changes: "tau", "epsilon", "clients", "cohort" or "bytes".
        value: the new value of the quantity, rounded up to two digits.
        text: the change in words, for an error message.
    """

    what: str
    value: float
    text: str

    @classmethod
    def of(cls, what: str, value: float, text: str) -> Way:
        """Return a way whose value is rounded up to two digits.

        Args:
            what: the quantity that changes.
            value: the new value of the quantity.
            text: the change in words, with braces in place of the value; "{:,}" for an integer.
        """
        rounded = rounded_up(value)
        is_whole = "," in text
        return cls(what, float(rounded), text.format(int(float(rounded)) if is_whole else rounded))


def smallest_or_ways(design: Design, frequencies: Frequencies, *, with_linf: bool = True) -> Design:
    """Return the design with the size that meets tau with the fewest bytes.

    The arguments and the result are the same as for `fedtally.plan.search.smallest`. Only the
    message differs if no size meets tau.

    Raises:
        InvalidInputError: no size meets tau, and the message names the smallest changes that help,
            if there are any; or the request allows only histograms, and no histogram is possible.
    """

    def keeps(other: Design) -> bool:
        return is_made(lambda: smallest(other, frequencies, with_linf=False))

    try:
        return smallest(design, frequencies, with_linf=with_linf)
    except OutOfReachError as error:
        raise unreachable(error.design, error.frequencies, keeps) from None


def unreachable(
    design: Design, frequencies: Frequencies, keeps: Callable[[Design], bool] = lambda _: True
) -> InvalidInputError:
    """Return the error for a target that no plan meets.

    The error names the smallest changes that help, if there are any.

    Args:
        design: the design whose target is not met.
        frequencies: the frequencies for which the target is not met.
        keeps: a function that returns whether a plan can be made from a changed design. By default,
            changes are only estimated, and are not tested in this way.
    """
    ways = ways_out([way.text for way in ways_to_meet(design, frequencies, keeps)])
    return InvalidInputError(f"tau {design.spec.tau:g} {why_unreachable(design)}; {ways}")


def ways_out(ways: Sequence[str]) -> str:
    """Return a text for an error message: a list of changes, each of which alone is enough.

    If there are no changes, the text says that no single change is enough.

    >>> ways_out(["tau 0.1"]), ways_out(["tau 0.1", "900 bytes"])
    ('this would do: tau 0.1', 'any of these would do: tau 0.1; 900 bytes')
    """
    if not ways:
        return "no single change of it would do"
    return f"{'any of these' if len(ways) > 1 else 'this'} would do: {'; '.join(ways)}"


def why_unreachable(design: Design) -> str:
    """Return the part of an error message that says with which options a target cannot be met."""
    spec, clients = design.spec, f"{design.fleet:,} clients"
    if spec.silos is not None:
        clients = f"{design.clients[0]:,} silos and {design.expected:,} people"
    within = "" if spec.size.max_bytes is None else f" within {spec.size.max_bytes:,} bytes"
    if spec.privacy is None:
        return f"cannot be met with {clients}{within}"
    epsilon = spec.privacy.epsilon
    at = f"any epsilon up to {MAX_EPSILON:g}" if epsilon == MAX_EPSILON else f"epsilon {epsilon:g}"
    return f"cannot be met at {at} with {clients}{within}"


def ways_to_meet(
    design: Design, frequencies: Frequencies, keeps: Callable[[Design], bool] = lambda _: True
) -> Iterator[Way]:
    """Yield the smallest changes, each of which alone makes a design meet its target.

    Each change is first estimated: by `reaches`, but a number of bytes by `Sketches.smallest`. Then
    `keeps` tests it.

    Args:
        design: the design whose target is not met.
        frequencies: the frequencies for which the target is not met.
        keeps: a function that returns whether a plan can be made from a changed design. By default,
            each estimated change is taken to be enough.
    """
    looked = _Looked(design, frequencies, keeps)
    for found in (looked.tau, looked.epsilon, looked.clients, looked.cohort, looked.upload):
        way = found()
        if way is not None:
            yield way


@dataclass(frozen=True)
class _Looked:
    """The search for single changes that make a design meet its target; see `ways_to_meet`.

    Each method tries one quantity. A method returns None if it finds no value that is enough, or if
    the request does not have the quantity, such as epsilon without privacy.
    """

    design: Design
    frequencies: Frequencies
    keeps: Callable[[Design], bool]

    def tau(self) -> Way | None:
        """Return the change to the least tau that can be met."""
        spec = self.design.spec
        size = self.design.domain.size
        assert spec.tau is not None

        def known(tau: float) -> Frequencies:  # the hardest frequencies depend on tau
            if not self.frequencies.is_hardest:
                return self.frequencies
            return hardest.usual_plateau(tau, size, max_items=spec.max_items)

        value = self._least(self.design.with_tau, spec.tau, 0.5, known)
        return None if value is None else Way.of("tau", value, "tau {}")

    def epsilon(self) -> Way | None:
        """Return the change to the least epsilon that is enough."""
        asked = self.design.spec.privacy
        if asked is None:
            return None
        value = self._least(self.design.with_epsilon, asked.epsilon, MAX_EPSILON)
        return None if value is None else Way.of("epsilon", value, "epsilon {}")

    def clients(self) -> Way | None:
        """Return the change to the fewest clients that are enough."""
        few, most_of_all = self.design.fleet, MAX_CLIENTS // self.design.spec.lifetime
        for times in _MORE_CLIENTS:
            most = min(most_of_all, times * few)
            value = self._least(
                lambda number: self.design.with_clients(math.ceil(number)), few, most
            )
            if value is not None:
                is_of_silos = self.design.spec.silos is not None
                unit = "silos of as many people each" if is_of_silos else "clients"
                return Way.of("clients", value, f"{{:,}} {unit}")
        return None

    def cohort(self) -> Way | None:
        """Return the change to the smallest size of cohorts that is enough.

        The sum of each cohort is opened, and each opened sum holds the noise that the whole sum
        needs. So fewer and larger cohorts mean less noise in total. Returns None, too, if the
        largest round fits one cohort or secagg is not used, if the request has no privacy, or if
        the request has a smallest cohort (`min_cohort`).
        """
        spec, summation, whole = (
            self.design.spec,
            self.design.spec.summation,
            self.design.clients[1],
        )
        most = summation.most_clients
        if not summation.is_split(whole) or not spec.is_private or summation.min_cohort is not None:
            return None
        value = self._least(lambda number: self.design.with_cohorts(math.ceil(number)), most, whole)
        if value is None:
            return None
        return Way.of("cohort", value, f"cohorts of up to {{:,}} ({opt.max_cohort})")

    def upload(self) -> Way | None:
        """Return the change to the fewest upload bytes with which a sketch is enough."""
        spec = self.design.spec
        if spec.size.max_bytes is None or not spec.size.allows(Encoding.SKETCH):
            return None
        with suppress(UnreachableError):
            sketches = Sketches.of(self.design, self.frequencies, spec.size.rows)
            tau = self.design.tau_of_sketch(self.frequencies)
            cost = sketches.cost(sketches.smallest(tau, with_linf=False))
            value = _enough(lambda x: self.keeps(self.design.with_bytes(math.ceil(x))), cost)
            if value is not None:
                return Way.of("bytes", value, "{:,} bytes")
        return None

    def _least(
        self,
        changed: Callable[[float], Design],
        low: float,
        high: float,
        known: Callable[[float], Frequencies] | None = None,
    ) -> float | None:
        """Return about the least value from low to high that is enough; None if none is found.

        Args:
            changed: a function that returns the design after a change to this value.
            low: the smallest value that is tried.
            high: the largest value that is tried.
            known: a function that returns the frequencies for a value; None: the attribute
                `frequencies` is used for all values.
        """

        def suffices(value: float) -> bool:
            try:
                other = changed(value)
            except InvalidInputError:  # for example, a secure sum cannot have so many clients
                return False
            return reaches(other, self.frequencies if known is None else known(value))

        value = least(suffices, low, high, PRECISION)
        return None if value is None else _enough(lambda x: self.keeps(changed(x)), value, high)


def _enough(keeps: Callable[[float], bool], value: float, most: float = math.inf) -> float | None:
    """Return about the least value that is enough, to two digits; None if no value is found.

    Only a few values are tested, because each test takes as long as making a plan.

    Args:
        keeps: a function that returns whether a value is enough.
        value: an estimate of the least value, where the tests begin.
        most: the largest value to test.

    >>> _enough(lambda value: value > 131, 120.4), _enough(lambda value: value > 131, 120.4, 125)
    (140.0, None)
    """
    few, factor = 0.0, _ENOUGH
    for _ in range(_TRIES):
        value = float(rounded_up(value))
        if value > most:
            return None
        if keeps(value):
            middle = float(rounded_up(math.sqrt(few * value or value**2)))
            return middle if middle < value and keeps(middle) else value
        few, value, factor = value, value * factor, factor**2  # by 1.1, then 1.21, 1.46, 2.14
    return None
