"""Differential privacy: integer noise, exact accounting of what is opened, and the terms that a plan promises."""

STUDY = "for study, not private"  # what every output carries if more was used than a private run may use
