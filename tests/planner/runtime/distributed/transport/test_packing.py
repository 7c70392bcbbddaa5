"""A tensor comes out of a row of bytes as it went in: shape, strides, dtype and bits."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from planner.runtime.distributed.transport.messages import Packing
from tests.planner.runtime.bits import differences

COMPLEX = (torch.complex32, torch.complex64)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool, *COMPLEX)


def round_trip(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What comes out, and the row."""
    packing = Packing.of(tensor)
    row = torch.full((packing.n_bytes,), 255, dtype=torch.uint8)
    packing.put(tensor, row)
    return packing.take(row), row


def check(tensor: torch.Tensor) -> torch.Tensor:
    came, row = round_trip(tensor)
    assert differences(tensor, came) == []
    assert came.stride() == tensor.stride()
    return row


@st.composite
def views(draw: st.DrawFn) -> torch.Tensor:
    """A tensor of up to four dimensions, seen in some ways one after the other."""
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    tensor = (torch.randn(shape) * 100).to(draw(st.sampled_from(DTYPES)))
    for _ in range(draw(st.integers(0, 4))):
        match draw(st.sampled_from(["permute", "slice", "step", "expand", "unsqueeze", "select"])):
            case "permute":
                tensor = tensor.permute(draw(st.permutations(range(tensor.ndim))))
            case "unsqueeze":
                tensor = tensor.unsqueeze(draw(st.integers(0, tensor.ndim)))
            case "expand":
                tensor = tensor.unsqueeze(0).expand(draw(st.integers(1, 3)), *tensor.shape)
            case seen if tensor.ndim and tensor.shape[0]:
                tensor = {"slice": tensor[1:], "step": tensor[::2], "select": tensor[0]}[seen]
    return tensor


@given(views())
def test_whatever_it_looks_like(tensor: torch.Tensor) -> None:
    check(tensor)


def test_a_dense_one_is_read_where_it_lies() -> None:
    tensor = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    came, row = round_trip(tensor)
    assert came.data_ptr() == row.data_ptr()
    assert len(row) == 2 * 3 * 4 * 5 * 4
    # the row is the memory: the last channel is next to the one before, as channels_last has it
    assert torch.equal(row.view(torch.float32)[:3], tensor[0, :, 0, 0])


def test_what_is_repeated_travels_once() -> None:
    tensor = torch.randn(3, 1).expand(3, 1000)
    assert len(check(tensor)) == 3 * 4
    assert len(check(torch.ones(()).expand(7, 7))) == 4


def test_gaps_do_not_travel_but_come_back() -> None:
    wide = torch.randn(4, 30)
    row = check(wide[:, 10:20])  # 4 × 10 of 4 × 30 elements
    assert len(row) == 4 * 10 * 4


def test_overlapping_windows_keep_their_values() -> None:
    check(torch.arange(10.0).unfold(0, 3, 1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_scalars_and_empty_ones(dtype: torch.dtype) -> None:
    assert len(check(torch.ones((), dtype=dtype))) == dtype.itemsize
    assert len(check(torch.ones((0, 3), dtype=dtype))) == 0
