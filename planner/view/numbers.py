"""Numbers as the payload has them."""

from math import isfinite
from typing import Any

DIGITS = 6  # significant; no cost model is more precise


def number(value: float | None) -> float | int | None:
    """Return the number rounded for JSON, an int if it is whole; None for infinity and NaN."""
    if value is None or not isfinite(value):
        return None
    rounded = float(f"{value:.{DIGITS}g}")
    return int(rounded) if rounded.is_integer() else rounded


class Numbers(dict[Any, int]):
    """Numbers of values in the order in which they are first asked for."""

    def __missing__(self, value: Any) -> int:
        return self.setdefault(value, len(self))
