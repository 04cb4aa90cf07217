"""No noise and no key comes from numpy.random.

Its generators can be predicted from what they gave. Noise and keys are made of the bytes of a
function `random`: the operating system's, or in a study those of a seed. The linter could ban a
name everywhere or nowhere, and simulations may use numpy.random: so the rule is a test.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fedtally

PACKAGE = Path(fedtally.__file__).parent

# Simulated populations, who takes part when and drops out, bootstraps, an audit's coins: no privacy
# and no secrecy rests on these. A new module here is a decision. Distributions and shares of noise,
# keys and masks live elsewhere: in privacy and crypto.
MAY_USE_NUMPY_RANDOM = {
    "cli/estimate.py",
    "studies/audit.py",
    "studies/audit_clients.py",
    "studies/audit_evidence.py",
    "studies/audit_silos.py",
    "simulation/cohorts.py",
    "simulation/pilot_clients.py",
    "studies/dependence_checks.py",
    "simulation/round_tally.py",
    "studies/noise_checks.py",
    "simulation/sizing.py",
    "simulation/randomness.py",
    "simulation/demonstration.py",
    "studies/validation.py",
    "studies/schedules.py",
    "simulation/row_counts.py",
    "plan/trials.py",
    "recovery/decoders/belief/belief.py",
    "recovery/decoders/joint/joint.py",
    "recovery/found.py",
    "recovery/linear_system.py",
    "recovery/phantoms.py",
    "recovery/decoders/median/median_intervals.py",
    "sources/__init__.py",
    "sources/sample_tables.py",
    "sources/stdlib.py",
    "sources/synthetic.py",
}
MAY_TAKE_BYTES = {
    "studies/validation.py": 1,  # the public seed of a study's hashes
    "studies/schedules.py": 1,  # the public seed of a study's hashes
    "plan/trials.py": 1,  # the public seed of hashes that the planner tries
}
MAY_DRAW_FROM_A_LAW = {
    "simulation/round_tally.py": 1,  # how many of an item's clients are in which round
    "plan/trials.py": 2,  # clients and noise of campaigns that the planner runs for itself
    "recovery/decoders/joint/joint_intervals.py": 1,  # a bootstrap of counts
    "recovery/decoders/joint/joint.py": 1,  # probes of a linear fit
    "sources/sample_tables.py": 1,  # places that are made up, in the tables to try the commands on
}
LAWS = {  # that could serve as noise
    *(
        "binomial",
        "exponential",
        "geometric",
        "laplace",
        "logistic",
        "multivariate_normal",
        "negative_binomial",
    ),
    *("normal", "poisson", "standard_exponential", "standard_normal"),
}


def uses_numpy_random(tree: ast.AST) -> int:
    """Count imports and mentions of numpy.random, whatever numpy is called."""
    return sum(name == "numpy.random" or name.startswith("numpy.random.") for name in _names(tree))


def _names(tree: ast.AST) -> Iterator[str]:
    numpy = {"numpy"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            numpy |= {
                alias.asname for alias in node.names if alias.name == "numpy" and alias.asname
            }
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in numpy
        ):
            yield f"numpy.{node.attr}"


def takes_bytes(tree: ast.AST) -> int:
    """Count mentions of a method `bytes`, which a generator has: called, or handed on as a source
    of keys."""
    return sum(isinstance(node, ast.Attribute) and node.attr == "bytes" for node in ast.walk(tree))


def draws_from_a_law(tree: ast.AST) -> int:
    """Count mentions of a method that draws from one of LAWS."""
    return sum(isinstance(node, ast.Attribute) and node.attr in LAWS for node in ast.walk(tree))


def other_keys(tree: ast.AST) -> int:
    """Count keys, `Secret(...)`, made of anything but random(size), self.random(size) or
    run.random(size)."""

    def is_random(value: ast.expr) -> bool:
        return isinstance(value, ast.Call) and ast.unparse(value.func) in (
            "random",
            "self.random",
            "run.random",
        )

    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Secret"
    ]
    return sum(not (len(call.args) == 1 and is_random(call.args[0])) for call in calls)


def found(rule: Callable[[ast.AST], int]) -> dict[str, int]:
    """Return how often something occurs in each module of the package where it does."""
    counted = {
        path.relative_to(PACKAGE).as_posix(): rule(ast.parse(path.read_text(encoding="utf-8")))
        for path in PACKAGE.rglob("*.py")
    }
    assert len(counted) > 60
    return {name: times for name, times in counted.items() if times}


def test_numpy_random_stays_where_it_may_be() -> None:
    assert found(uses_numpy_random).keys() == MAY_USE_NUMPY_RANDOM
    inner = (
        "crypto",
        "domain",
        "kernels",
        "plan.",
        "privacy",
        "result",
        "secagg",
        "session",
        "sketch",
        "store",
    )
    assert not [name for name in MAY_USE_NUMPY_RANDOM if name.startswith(inner)]


def test_nobody_draws_noise_from_it() -> None:
    assert found(draws_from_a_law) == MAY_DRAW_FROM_A_LAW


def test_its_bytes_are_no_keys() -> None:
    assert found(takes_bytes) == MAY_TAKE_BYTES
    assert not found(other_keys).keys() & MAY_USE_NUMPY_RANDOM


@pytest.mark.parametrize(
    "source",
    [
        "import numpy.random",
        "import numpy.random as r",
        "from numpy import random",
        "from numpy import random as r",
        "from numpy.random import default_rng",
        "from numpy.random._generator import Generator",
        "import numpy as np\nnoise = np.random.default_rng().integers(9)",
        "import numpy as xp\ndef f():\n    return xp.random.bytes(32)",
        "import numpy\ndef f(rng: numpy.random.Generator) -> None: ...",
        (
            "from __future__ import annotations\nimport numpy as np\ndef f(rng:"
            " np.random.Generator) -> None: ..."
        ),
        "def f():\n    import numpy as late\n    return late.random",
    ],
)
def test_numpy_random_is_found(source: str) -> None:
    assert uses_numpy_random(ast.parse(source))


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        (draws_from_a_law, "noise = rng.normal(size=3)"),
        (draws_from_a_law, "noise = self._rng.poisson(4) - self._rng.poisson(4)"),
        (draws_from_a_law, "draw = rng.laplace"),
        (takes_bytes, "key = rng.bytes(32)"),
        (takes_bytes, "client = FrequencyClient.join(policy, random=rng.bytes)"),
        (other_keys, "noise.draw(Secret(rng.bytes(32)), 12)"),
        (other_keys, "Secret(self.rng.random(32))"),
        (other_keys, "Secret(rng.integers(0, 256, 32, np.uint8).tobytes())"),
        (other_keys, "Secret(key)"),
    ],
)
def test_noise_and_keys_are_found(rule: Callable[[ast.AST], int], source: str) -> None:
    assert rule(ast.parse(source)) > 0


@pytest.mark.parametrize("rule", [uses_numpy_random, draws_from_a_law, takes_bytes, other_keys])
@pytest.mark.parametrize(
    "source",
    [
        '"""Not np.random."""\nimport random\nimport numpy as np\nnp.zeros(3)',
        "noise.draw(Secret(random(KEY_BYTES)), 12)\nSecret(self.random(32))",
        "order = rng.permutation(12)",
    ],
)
def test_other_things_are_not(rule: Callable[[ast.AST], int], source: str) -> None:
    assert rule(ast.parse(source)) == 0
