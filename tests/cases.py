"""Tests of many cases that need no name of their own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

Test = Callable[..., None]


def each_case(
    names: str | tuple[str, ...], values: Iterable[Any], ids: Callable[[Any], str] = repr
) -> Callable[[Test], Test]:
    """Run a test once for each value, as `pytest.mark.parametrize` does, but as one test.

    Thousands of tests of a millisecond each take pytest far longer than a millisecond each. What a
    case raises names it. All cases share what fixtures give, so that this is for tests that leave
    nothing behind.
    """
    arguments, cases = (names,) if isinstance(names, str) else names, list(values)
    assert cases, "a test without cases tests nothing"

    def fold(test: Test) -> Test:
        @wraps(test)
        def run(**fixtures: Any) -> None:
            for case in cases:
                own = (case,) if isinstance(names, str) else case
                try:
                    test(**fixtures, **dict(zip(arguments, own, strict=True)))
                except BaseException as error:
                    error.add_note(f"case: {', '.join(arguments)} = {ids(case)}")
                    raise

        # pytest reads here which fixtures to give.
        signature = inspect.signature(test)
        others = [p for name, p in signature.parameters.items() if name not in arguments]
        run.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return run

    return fold
