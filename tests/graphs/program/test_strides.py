"""Copies of inputs: the same elements with the strides of the trace, made by the calling thread alone."""

import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphs.program.strides import WORDS, copy_alone, laid
from tests.children import ran

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8, torch.bool]
DTYPES += [torch.complex64, torch.complex128]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 4, 5), (1, 8, 2, 2)])
def test_a_copy_has_the_bits_and_other_memory(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (torch.arange(float(torch.Size(shape).numel())) - 2.5).reshape(shape).to(dtype)
    found = laid(tensor, tensor.stride(), copied=True)
    assert torch.equal(found, tensor)
    assert found.dtype is dtype
    assert not tensor.numel() or found.data_ptr() != tensor.data_ptr()


def test_nan_and_negative_zero_keep_their_bits() -> None:
    tensor = torch.tensor([float("nan"), -0.0, float("-inf")])
    assert torch.equal(laid(tensor, (1,), copied=True).view(torch.int32), tensor.view(torch.int32))


@given(st.permutations(range(3)), st.permutations(range(3)))
def test_strides_of_any_order(had: list[int], wanted: list[int]) -> None:
    tensor = (
        torch.arange(24.0).reshape(2, 3, 4).permute(had).contiguous().permute(sorted(range(3), key=had.__getitem__))
    )
    strides = (
        torch.empty(2, 3, 4).permute(wanted).contiguous().permute(sorted(range(3), key=wanted.__getitem__)).stride()
    )
    found = laid(tensor, strides, copied=True)
    assert found.stride() == strides
    assert torch.equal(found, tensor)


def test_what_numpy_does_not_know_is_copied_by_pytorch() -> None:
    conjugated = torch.tensor([1 + 2j]).conj()
    assert copy_alone(torch.empty(1, dtype=torch.complex64), conjugated).tolist() == [1 - 2j]
    negative = torch.tensor([1 + 2j]).conj().imag
    assert negative.is_neg()
    assert copy_alone(torch.empty(1), negative).tolist() == [-2.0]
    meta = torch.empty(2, device="meta")
    assert copy_alone(torch.empty_like(meta), meta).is_meta


def test_gradients_are_not_followed() -> None:
    tensor = torch.ones(3, requires_grad=True)
    assert not laid(tensor, (1,), copied=True).requires_grad


def test_every_width_has_a_word() -> None:
    assert {torch.empty(0, dtype=dtype).element_size() for dtype in DTYPES} == set(WORDS)


COUNTED = """
from pathlib import Path
import torch
from graphs.program.strides import laid

def count():
    return len(list(Path("/proc/self/task").iterdir()))

torch.set_num_threads(4)
image, before = torch.ones(1, 3, 512, 512), count()
kept = [laid(image, image.stride(), copied=True) for _ in range(3)]
alone = count()
torch.empty_like(image).copy_(image)  # as everybody copies
print(before, alone, count())
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux")
def test_a_copy_starts_no_threads() -> None:
    before, alone, divided = map(int, ran([sys.executable, "-c", COUNTED]).stdout.split())
    assert alone == before
    assert divided > before, "PyTorch's own copy is not divided here, so this test shows nothing"
