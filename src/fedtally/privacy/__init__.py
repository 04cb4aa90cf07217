"""Differential privacy: integer noise, exact accounting, and the terms that a plan guarantees."""

# Every output is marked so if its run used what a private run must not use, such as true counts.
NOT_PRIVATE = "not private"
LARGE_EPSILON = 10.0  # e^10 is 22,000: one client may change odds by that factor


def guarantees_little(epsilon: float) -> str:
    """Return a sentence on what a large epsilon means, or "" for a smaller one.

    >>> guarantees_little(11.0)[:25], guarantees_little(1.0)
    ('epsilon 11 is above 10: o', '')
    """
    if epsilon <= LARGE_EPSILON:
        return ""
    return (
        f"epsilon {epsilon:g} is above {LARGE_EPSILON:g}: one client's part may change the odds of"
        f" what is seen by a factor of e^{epsilon:g}, which guarantees little"
    )


def allows_publishing(delta: float, clients: int) -> str:
    """Return a sentence on a delta that is too large for the clients, or "" for a smaller one.

    >>> allows_publishing(0.01, 100)[:28], allows_publishing(1e-6, 100)
    ('delta 0.01 is not below 1 / ', '')
    """
    if delta * clients < 1:
        return ""
    return (
        f"delta {delta:g} is not below 1 / {clients:,} clients: publishing the item of one client"
        " drawn at random would be as private"
    )
