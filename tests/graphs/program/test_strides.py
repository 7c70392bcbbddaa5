"""Copies of inputs: the same elements with the strides of the trace, made by the calling thread alone."""

import os
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphs.program.strides import WORDS, comparable, copy_alone, laid
from tests.children import ran

ROOT = Path(__file__).parents[3]

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8, torch.bool]
DTYPES += [torch.complex32, torch.complex64, torch.complex128]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 4, 5), (1, 8, 2, 2)])
def test_a_copy_has_the_bits_and_other_memory(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (torch.arange(float(torch.Size(shape).numel())) - 2.5).reshape(shape).to(dtype)
    found = laid(tensor, tensor.stride(), copied=True)
    assert torch.equal(comparable(found), comparable(tensor))
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


WAITING = """
import time
from pathlib import Path
import torch
from graphs.program.strides import laid

def others_ms():
    own = str(__import__("threading").get_native_id())
    tasks = (task for task in Path("/proc/self/task").iterdir() if task.name != own)
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e6

def spent_ms(copy):
    time.sleep(0.1)
    before = others_ms()
    for _ in range(20):
        copy()
        time.sleep(0.01)
    return others_ms() - before

torch.set_num_threads(2)
image = torch.ones(1, 3, 224, 224)
print(spent_ms(lambda: laid(image, image.stride(), copied=True)), spent_ms(image.clone))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="needs Linux with statistics of its scheduler")
def test_no_thread_waits_busily_after_a_copy() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "MKL_"))}
    alone_ms, divided_ms = map(float, ran([sys.executable, "-c", WAITING], env=environment, cwd=ROOT).stdout.split())
    if divided_ms < 10:
        pytest.skip("the threads of this PyTorch do not wait busily")
    assert alone_ms < divided_ms / 4
