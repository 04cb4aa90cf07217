"""How fast and how small fedtally is, against peers and the machine's own limits: ``python -m benchmarks --help``.

Hosts differ, so a goal is a ratio measured in one run. Not part of the wheel; run from the root of
the repository.
"""
