"""The paper's figures, and the basis of the design, remade: ``python -m experiments --help``.

Not part of the wheel. Run from the root of the repository; every experiment is a function of its
seed.
"""
