"""Converts texts with units to SI numbers and back.

::

    "16 GiB"  ─parse_bytes─►  17179869184.0  ─write_bytes─►   "16 GiB"      exact, for files
                              17179869184.0  ─format_bytes─►  "16 GiB"      rounded to three digits, for display
    "100 Gbit/s"  ─parse_bytes_per_s─►  12.5e9
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from graphs.common.errors import InputError, nearest

UNLIMITED = "unlimited"
"""The text of an infinite bandwidth."""

_NUMBER = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*(.*?)\s*", re.ASCII)
_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


@dataclass(frozen=True)
class _Quantity:
    """A quantity with its units."""

    factors: Mapping[str, Fraction]  # SI value of each unit; exact, so that "20 us" is the float nearest to 0.00002
    shown: tuple[str, ...]  # the units for display, ascending
    base: str  # the unit with the factor 1
    example: str  # example for error messages
    also_written: tuple[str, ...] = ()  # further units for files
    limited: bool = True  # whether "unlimited" is no value

    def parse(self, text: object, field: str) -> float:
        """The number for a text of a number and a unit, such as "16 GiB" (2**34) or "100 Gbit/s" (12.5e9).

        Args:
            text: a number and a unit, or "unlimited" for a bandwidth.
            field: name of the value in messages, for example "device 'gpu0': memory".

        Raises:
            InputError: for a missing or unknown unit or a negative number.
        """
        if text == UNLIMITED and not self.limited:
            return math.inf
        match = _NUMBER.fullmatch(text) if isinstance(text, str) else None
        if match is None or not match[2]:
            raise InputError(f"{field} is {text!r}; write a number and a unit, for example {self.example!r}")
        if match[2] not in self.factors:
            reason = f"'{match[2]}' is no unit for it; write for example {self.example!r}"
            raise InputError(f"{field} is {text!r}, and {reason}{nearest(match[2], self.factors)}")
        if match[1].startswith("-"):
            raise InputError(f"{field} is {text!r}; it must be 0 or more, for example {self.example!r}")
        try:
            return float(Fraction(match[1]) * self.factors[match[2]])
        except OverflowError as error:
            raise InputError(f"{field} is {text!r}, which is too large; for example {self.example!r}") from error

    def format(self, value: float, digits: int = 3) -> str:
        """A rounded text in the largest unit with a number of 1 or more, for display: 999.99 kB is 1 MB."""
        if value == math.inf and not self.limited:
            return UNLIMITED
        if value == 0 or not math.isfinite(value):
            return f"{value:g} {self.base}"
        for unit in reversed(self.shown):
            number = float(f"{value / float(self.factors[unit]):.{digits}g}")
            if number >= 1 or unit == self.shown[0]:
                break
        return f"{_plain(number)} {unit}"

    def write(self, value: float) -> str:
        """The shortest text that `parse` turns into exactly this value; among equal ones, that in the largest unit."""
        if value == math.inf and not self.limited:
            return UNLIMITED
        exact = Fraction(repr(float(value)))  # the shortest decimal form, not the exact binary fraction
        texts = []
        for unit in sorted({*self.shown, *self.also_written}, key=self.factors.__getitem__, reverse=True):
            if 1 <= exact / self.factors[unit] < 10**15:
                number = _plain(float(exact / self.factors[unit]))
                if float(Fraction(number) * self.factors[unit]) == value:
                    texts.append((len(number.replace(".", "")), f"{number} {unit}"))
        return min(texts, key=lambda text: text[0], default=(0, f"{_plain(float(value))} {self.base}"))[1]


def _scaled(prefixes: Mapping[str, int], unit: str, scale: Fraction = Fraction(1)) -> dict[str, Fraction]:
    return {prefix + unit: factor * scale for prefix, factor in prefixes.items()}


def _plain(number: float) -> str:
    """The shortest digits of a float, without a useless ".0"."""
    return repr(number).removesuffix(".0")


_BYTES = _Quantity(
    _scaled(_DECIMAL | _BINARY, "B"),
    shown=("B", *_scaled(_BINARY, "B")),
    also_written=tuple(_scaled(_DECIMAL, "B")),
    base="B",
    example="16 GiB",
)
_SECONDS = _Quantity(
    {"s": Fraction(1), "ms": Fraction(1, 10**3), "ns": Fraction(1, 10**9)}
    | dict.fromkeys(("us", "µs", "μs"), Fraction(1, 10**6)),  # Unicode has two signs that look like a mu
    shown=("ns", "us", "ms", "s"),
    base="s",
    example="20 us",
)
_BYTES_PER_S = _Quantity(
    _scaled(_DECIMAL | _BINARY, "B/s")
    | _scaled(_DECIMAL, "b/s", Fraction(1, 8))
    | _scaled(_DECIMAL, "bit/s", Fraction(1, 8)),
    shown=tuple(_scaled(_DECIMAL, "B/s")),
    base="B/s",
    example="25 GB/s",
    limited=False,
)
_HERTZ = _Quantity(_scaled(_DECIMAL, "Hz"), shown=tuple(_scaled(_DECIMAL, "Hz")), base="Hz", example="1695 MHz")
_FLOPS_PER_S = _Quantity(
    _scaled(_DECIMAL, "FLOP/s") | _scaled(_DECIMAL, "FLOPS"),
    shown=tuple(_scaled(_DECIMAL, "FLOP/s")),
    base="FLOP/s",
    example="1.5 TFLOP/s",
)


parse_bytes, write_bytes, format_bytes = _BYTES.parse, _BYTES.write, _BYTES.format
parse_seconds, write_seconds, format_seconds = _SECONDS.parse, _SECONDS.write, _SECONDS.format
parse_bytes_per_s, write_bytes_per_s, format_bytes_per_s = _BYTES_PER_S.parse, _BYTES_PER_S.write, _BYTES_PER_S.format
parse_flops_per_s, write_flops_per_s, format_flops_per_s = _FLOPS_PER_S.parse, _FLOPS_PER_S.write, _FLOPS_PER_S.format
parse_hertz, write_hertz, format_hertz = _HERTZ.parse, _HERTZ.write, _HERTZ.format


def format_rate(value: float) -> str:
    """A rounded number for each second, in figures as people write them: 23,120 and 9.25."""
    number = float(f"{value:.4g}")
    return f"{number:,.0f}" if 1e3 <= number < 1e15 else f"{number:.4g}"
