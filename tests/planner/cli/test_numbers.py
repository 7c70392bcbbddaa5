"""Numbers of the command line: where they begin and end, and what is said of what is none."""

import argparse
from collections.abc import Callable

import pytest

from planner.cli.numbers import at_least_one, positive_seconds, share, whole


@pytest.mark.parametrize(
    ("reader", "text", "number"),
    [
        (whole, "0", 0),
        (at_least_one, "1", 1),
        (at_least_one, "1_000", 1000),
        (share, "0", 0.0),
        (share, "0.999", 0.999),
        (positive_seconds, "1e-9", 1e-9),
        (positive_seconds, "60", 60.0),
    ],
)
def test_what_is_read(reader: Callable[[str], float], text: str, number: float) -> None:
    assert reader(text) == number
    assert type(reader(text)) is type(number)


@pytest.mark.parametrize(
    ("reader", "texts", "what"),
    [
        (whole, ["-1", "0.5", "x"], "a whole number of 0 or more"),
        (at_least_one, ["0", "-1", "1.5", "one", "", "inf"], "a whole number of 1 or more"),
        (share, ["-0.1", "1", "nan", "half", ""], "a number from 0 to below 1, such as 0.01"),
        (positive_seconds, ["0", "-1", "inf", "nan", "1s", ""], "a number of seconds above 0"),
    ],
)
def test_what_is_refused(reader: Callable[[str], float], texts: list[str], what: str) -> None:
    for text in texts:
        with pytest.raises(argparse.ArgumentTypeError) as refused:
            reader(text)
        assert str(refused.value) == f"'{text}' is not {what}"
