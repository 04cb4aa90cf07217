"""The paper's figures and what the design rests on, remade with fedtally: ``python -m experiments --help``.

Not part of the wheel. Run from the root of the repository; every experiment is a function of its
seed.
"""
