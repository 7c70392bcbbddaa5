"""Long tests: the tests and rows of parameters that long.txt leaves to `make long`."""

from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path

LIST = Path(__file__).with_name("long.txt")


@cache
def listed() -> frozenset[str]:
    """Return the tests of long.txt, without rows of parameters."""
    lines = LIST.read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


def long_ones(collected: Sequence[str], listed: Collection[str]) -> set[str]:
    """Return which of the collected tests are long: of those listed, all rows but the first, or one without rows."""
    begun, found = set[str](), set[str]()
    for name in collected:
        test, bracket, _ = name.partition("[")
        if test in listed and (test in begun or not bracket):
            found.add(name)
        begun.add(test)
    return found
