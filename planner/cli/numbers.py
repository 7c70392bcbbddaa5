"""Types for argparse that read numbers, and their error messages."""

import argparse
from collections.abc import Callable
from math import inf
from typing import TypeVar

from costmodels.units import parse_bytes, parse_bytes_per_s, parse_seconds
from graphs.common.errors import InputError

Number = TypeVar("Number", int, float)


def _reader(read: Callable[[str], Number], allows: Callable[[Number], bool], what: str) -> Callable[[str], Number]:
    """Return a type for argparse that reads a number and refuses others than those that ``what`` names."""

    def reader(text: str) -> Number:
        try:
            number = read(text)
        except ValueError:
            number = None
        if number is None or not allows(number):
            raise argparse.ArgumentTypeError(f"'{text}' is not {what}")
        return number

    return reader


whole = _reader(int, lambda number: number >= 0, "a whole number of 0 or more")
at_least_one = _reader(int, lambda number: number >= 1, "a whole number of 1 or more")
share = _reader(float, lambda number: 0 <= number < 1, "a number from 0 to below 1, such as 0.01")
positive_seconds = _reader(float, lambda number: 0 < number < inf, "a number of seconds above 0")


def _with_unit(parse: Callable[[str, str], float], what: str) -> Callable[[str], float]:
    """Return a type for argparse: a number in SI units, or one with a unit."""

    def reader(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            try:
                number = parse(text, what)
            except InputError as error:
                raise argparse.ArgumentTypeError(str(error)) from error
        if not 0 < number < inf:
            raise argparse.ArgumentTypeError(f"'{text}' is no {what} above 0")
        return number

    return reader


size = _with_unit(parse_bytes, "number of bytes")
bandwidth = _with_unit(parse_bytes_per_s, "number of bytes a second")
seconds = _with_unit(parse_seconds, "time")
