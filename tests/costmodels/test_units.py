"""Text with units to SI and back."""

from collections.abc import Callable
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels import units
from graphs.common.errors import InputError


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (units.parse_bytes, "16GiB", 17179869184),  # 16 * 1024**3
        (units.parse_bytes, "16 GB", 16_000_000_000),
        (units.parse_bytes, " 1.5 kB ", 1500),
        (units.parse_bytes, "0 B", 0),
        (units.parse_bytes, "1e3 MiB", 1048576000),
        (units.parse_seconds, "20us", 0.00002),
        (units.parse_seconds, "20 µs", 0.00002),  # the micro sign
        (units.parse_seconds, "20 μs", 0.00002),  # the Greek letter
        (units.parse_seconds, "3 ms", 0.003),
        (units.parse_seconds, ".5 s", 0.5),
        (units.parse_bytes_per_s, "25 GB/s", 25e9),
        (units.parse_bytes_per_s, "1 GiB/s", 1073741824),
        (units.parse_bytes_per_s, "100Gb/s", 12.5e9),  # bits
        (units.parse_bytes_per_s, "100 Gbit/s", 12.5e9),
        (units.parse_bytes_per_s, "unlimited", inf),
        (units.parse_flops_per_s, "1.5 TFLOP/s", 1.5e12),
        (units.parse_flops_per_s, "900 GFLOPS", 9e11),
    ],
)
def test_text_becomes_the_nearest_float(parse: Callable[[object, str], float], text: str, value: float) -> None:
    assert parse(text, "x") == value


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (units.parse_bytes, "16", "x is '16'; write a number and a unit, for example '16 GiB'"),
        (units.parse_bytes, 16, "x is 16; write a number and a unit, for example '16 GiB'"),
        (units.parse_bytes, "16 gigs", "x is '16 gigs', and 'gigs' is no unit for it; write for example '16 GiB'"),
        (
            units.parse_bytes,
            "16 Gb",
            "x is '16 Gb', and 'Gb' is no unit for it; write for example '16 GiB'; did you mean 'GB'?",
        ),
        (
            units.parse_bytes,
            "16 KB",
            "x is '16 KB', and 'KB' is no unit for it; write for example '16 GiB'; did you mean 'kB'?",
        ),
        (units.parse_bytes, "nan B", "x is 'nan B'; write a number and a unit, for example '16 GiB'"),
        (units.parse_bytes, "", "x is ''; write a number and a unit, for example '16 GiB'"),
        (units.parse_bytes, "-1 GiB", "x is '-1 GiB'; it must be 0 or more, for example '16 GiB'"),
        (units.parse_bytes, "1e999 B", "x is '1e999 B', which is too large; for example '16 GiB'"),
        (units.parse_seconds, "5 min", "x is '5 min', and 'min' is no unit for it; write for example '20 us'"),
        (
            units.parse_bytes_per_s,
            "25 GB",
            "x is '25 GB', and 'GB' is no unit for it; write for example '25 GB/s'; did you mean 'GB/s'?",
        ),
        (units.parse_flops_per_s, "3 TF", "x is '3 TF', and 'TF' is no unit for it; write for example '1.5 TFLOP/s'"),
        (units.parse_flops_per_s, None, "x is None; write a number and a unit, for example '1.5 TFLOP/s'"),
    ],
)
def test_what_is_wrong_is_said_with_an_example(
    parse: Callable[[object, str], float], text: object, message: str
) -> None:
    with pytest.raises(InputError) as error:
        parse(text, "x")
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (units.write_bytes, 2**34, "16 GiB"),
        (units.write_bytes, 64e9, "64 GB"),
        (units.write_bytes, 0, "0 B"),
        (units.write_bytes, 10847 * 2**20, "10847 MiB"),
        (units.write_bytes, 123456789, "123.456789 MB"),
        (units.write_seconds, 2e-5, "20 us"),
        (units.write_seconds, 1.531e-6, "1.531 us"),
        (units.write_seconds, 1 / 3, "333.3333333333333 ms"),
        (units.write_bytes_per_s, 12.5e9, "12.5 GB/s"),
        (units.write_bytes_per_s, inf, "unlimited"),
        (units.write_flops_per_s, 1.284e12, "1.284 TFLOP/s"),
    ],
)
def test_files_hold_few_digits(write: Callable[[float], str], value: float, text: str) -> None:
    assert write(value) == text


@pytest.mark.parametrize(
    ("write", "parse"),
    [
        (units.write_bytes, units.parse_bytes),
        (units.write_seconds, units.parse_seconds),
        (units.write_bytes_per_s, units.parse_bytes_per_s),
        (units.write_flops_per_s, units.parse_flops_per_s),
    ],
)
@given(value=st.floats(min_value=0, allow_nan=False, allow_infinity=False))
def test_what_is_written_is_read_as_the_same_number(
    write: Callable[[float], str], parse: Callable[[object, str], float], value: float
) -> None:
    assert parse(write(value), "x") == value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (units.format_bytes(2**34), "16 GiB"),
        (units.format_bytes(64e9), "59.6 GiB"),
        (units.format_bytes(1010), "1010 B"),
        (units.format_bytes(1048575), "1 MiB"),  # it is 1 MiB in three digits, not 1023.999 KiB
        (units.format_bytes(123456, digits=5), "120.56 KiB"),
        (units.format_bytes(0), "0 B"),
        (units.format_seconds(0.0000123456), "12.3 us"),
        (units.format_seconds(0.0000123456, digits=5), "12.346 us"),
        (units.format_seconds(0.00099999), "1 ms"),
        (units.format_seconds(1e-12), "0.001 ns"),
        (units.format_seconds(0), "0 s"),
        (units.format_seconds(inf), "inf s"),
        (units.format_bytes_per_s(25e9), "25 GB/s"),
        (units.format_bytes_per_s(inf), "unlimited"),
        (units.format_flops_per_s(1.5e12), "1.5 TFLOP/s"),
    ],
)
def test_people_see_three_digits(text: str, expected: str) -> None:
    assert text == expected


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (9.2512, "9.251"), (999.96, "1,000"), (23118.4, "23,120"), (1.5e7, "15,000,000"), (0.00312, "0.00312"),
     (inf, "inf")],
)  # fmt: skip
def test_rates_are_written_as_people_write_them(value: float, text: str) -> None:
    assert units.format_rate(value) == text
