"""Times of a link by size: the points, the line through them, and what arrived."""

from math import inf

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from costmodels.calibrate.linktimes import EMPTY, check_arrived, fit_line, link_times, pattern
from graphs.common.errors import InputError
from tests.costmodels.calibrate.hosts import device

A, B = device("a"), device("b")


@given(latency_s=st.floats(1e-7, 1e-3), s_per_byte=st.floats(1e-12, 1e-6))
def test_points_on_a_line_give_the_line(latency_s: float, s_per_byte: float) -> None:
    sizes = [2.0**16, 2.0**18, 2.0**20]
    fitted = fit_line(sizes, [latency_s + size * s_per_byte for size in sizes])
    assert fitted == pytest.approx((latency_s, s_per_byte), rel=1e-6, abs=1e-12)


def test_times_that_fall_with_the_size_are_a_latency() -> None:
    # least squares of (4 - a) / 4 and (2 - a) / 2: a = (1/4 + 1/2) / (1/16 + 1/4) = 2.4
    assert fit_line([1, 3], [4, 2]) == pytest.approx((2.4, 0))


@given(st.floats(1e-7, 1e-3))
def test_equal_times_are_a_latency_without_a_rest_from_rounding(latency_s: float) -> None:
    found_s, s_per_byte = fit_line([0.0, *(2.0**n for n in range(16, 27))], [latency_s] * 12)
    assert s_per_byte == 0
    assert found_s == pytest.approx(latency_s)


def test_times_that_grow_faster_than_the_size_are_a_bandwidth() -> None:
    # the line through (1, 1) and (2, 4) starts at -2; least squares of 1 - b and (4 - 2 b) / 4:
    # b = (1 + 1/2) / (1 + 1/4) = 1.2
    assert fit_line([1, 2], [1, 4]) == pytest.approx((0, 1.2))


def test_points_are_medians_and_the_line_goes_through_them() -> None:
    times = link_times({EMPTY: [1e-3] * 3, 1000: [2e-3, 1e-3, 9e-3], 2000: [3e-3, 3e-3, 3e-3]})
    assert times.latency_s == 1e-3
    assert times.points == ((0.0, 1e-3), (1000.0, 2e-3), (2000.0, 3e-3))
    assert times.bytes_per_s == pytest.approx(1e6, rel=0.01)  # 1 ms for each 1000 bytes; the empty message has 4
    assert times.spread == {EMPTY: 0.0, 1000: pytest.approx(2.0), 2000: 0.0}  # quartiles 1.5 and 5.5 around 2


def test_a_larger_message_takes_at_least_as_long() -> None:
    times = link_times({EMPTY: [4e-3], 1000: [2e-3], 2000: [-5.0]})  # a difference of two times may be below 0
    assert [seconds for _, seconds in times.points] == pytest.approx([2e-3, 2e-3, 2e-3], rel=1e-3)
    assert times.bytes_per_s == inf


@pytest.mark.parametrize("n_bytes", [1, 4, 4096, 2**26])
def test_every_element_of_a_message_is_different_and_so_are_messages(n_bytes: int) -> None:
    tensor = pattern(n_bytes, 7)
    assert tensor.nbytes == max(4, n_bytes)
    assert bool((tensor.diff() == 1).all())  # float32 still tells the largest from the next
    assert not torch.equal(tensor, pattern(n_bytes, 8))


def test_what_arrives_must_be_what_was_sent() -> None:
    sent = pattern(4000, 0)
    check_arrived(A, B, sent, sent.clone())
    wrong = sent.clone()
    wrong[3] = 5
    with pytest.raises(InputError) as error:
        check_arrived(A, B, sent, wrong)
    assert str(error.value) == (
        "the link from 'a' to 'b' corrupts data: of 3.91 KiB, element 3 arrived as 5 instead of -997; "
        "mend it, or leave out one of the devices"
    )
    with pytest.raises(InputError, match=r"of 3\.91 KiB, 1\.95 KiB arrived; mend it"):
        check_arrived(A, B, sent, sent[:500])
