"""Differential privacy: integer noise, exact accounting of what is opened, and the terms that a plan guarantees."""

NOT_PRIVATE = "not private"  # what every output carries if more was used than a private run may use
LARGE_EPSILON = 10.0  # beyond it the factor on odds is more than 22,000


def guarantees_little(epsilon: float) -> str:
    """Say what a large epsilon means; "" for others.

    >>> guarantees_little(11.0)[:25], guarantees_little(1.0)
    ('epsilon 11 is above 10: o', '')
    """
    if epsilon <= LARGE_EPSILON:
        return ""
    return (
        f"epsilon {epsilon:g} is above {LARGE_EPSILON:g}: one client's part may change the odds of"
        f" what is seen by a factor of e^{epsilon:g}, which guarantees little"
    )
