"""Speed and size of fedtally, against peers and the machine's limits: ``python -m benchmarks``.

Hosts differ, so a goal is a ratio measured in one run. Not part of the wheel; run from the root of
the repository.
"""
