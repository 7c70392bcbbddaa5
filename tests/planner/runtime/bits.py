"""Two results, bit by bit."""

from typing import Any

from planner.runtime.benchmark.check import answers


def differences(expected: Any, got: Any) -> list[str]:
    """A line for each leaf that differs in any bit."""
    return list(answers(expected, got, {}).wrong)
