"""Differential privacy: integer noise, exact accounting, and the terms that a plan guarantees."""

# These words mark an output if its run used something that is forbidden to private runs, such as
# true counts.
NOT_PRIVATE = "not private"
LARGE_EPSILON = 10.0  # a larger epsilon brings a warning: e^10 is 22,000


def guarantees_little(epsilon: float) -> str:
    """Return a warning that an epsilon above 10 guarantees little, or "" up to 10.

    >>> guarantees_little(11.0)[:25], guarantees_little(1.0)
    ('epsilon 11 is above 10: o', '')
    """
    if epsilon <= LARGE_EPSILON:
        return ""
    return (
        f"epsilon {epsilon:g} is above {LARGE_EPSILON:g}: one client's part may change the"
        f" probability of what is seen by a factor of e^{epsilon:g}, which guarantees little"
    )


def allows_publishing(delta: float, people: int, noun: str = "clients") -> str:
    """Return a warning if delta is at least 1 / people, or "" if delta is smaller.

    The warning says that such a delta allows publishing one of these people's items.

    Args:
        delta: the delta of a guarantee.
        people: the number of people who are protected.
        noun: the plural noun for these people.

    >>> allows_publishing(0.01, 100)[:28], allows_publishing(1e-6, 100)
    ('delta 0.01 is not below 1 / ', '')
    """
    if delta < 1 / max(1, people):
        return ""
    return (
        f"delta {delta:g} is not below 1 / {people:,} {noun}: publishing the item of one of them,"
        " drawn at random, would be as private"
    )
