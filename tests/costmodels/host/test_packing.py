"""Weights are packed once, and refused before they fill the memory."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from threading import Barrier
from time import sleep
from unittest.mock import patch

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  # its usual name

from costmodels.host import packing
from costmodels.host.packing import PackedWeights
from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module
from graphs.kernels.dnnl import library
from graphs.kernels.kernel import Kernel
from graphs.kernels.kernels import kernels_of
from graphs.program.program import Program

CPU = torch.device("cpu")


class Shared(nn.Module):
    """One layer three times, the last time for fewer rows, and a weight of its own in two orders."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(256, 256)
        self.square = nn.Parameter(torch.ones(256, 256))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        twice = self.layer(torch.sin(self.layer(x)))
        squared = torch.addmm(self.layer.bias, torch.sin(F.linear(torch.sin(twice), self.square)), self.square)
        return torch.sin(squared) + torch.arange(256) + torch.sin(self.layer(x[:8])).sum()


def kernels_with_packs(program: Program) -> list[Kernel]:
    found = (kernels_of(program, op, CPU, "quick") for op in program.graph.ops)
    return [kernel for each in found for kernel in each if kernel.packs]


def test_a_weight_is_packed_once_for_all_operators_that_read_it_in_the_same_form() -> None:
    program = program_from_module(Shared().eval(), torch.zeros(64, 256))
    packed, kernels = PackedWeights(), kernels_with_packs(program)

    def get(kernel: Kernel, n_cores: int = 1) -> torch.Tensor:
        (name,) = kernel.packs
        return packed.get(kernel, name, program.state.__getitem__, n_cores)

    first, second, straight, transposed, fewer = map(get, kernels)
    assert first is second
    assert first is not fewer, "oneDNN may lay out a weight otherwise for other shapes"
    assert straight is not transposed
    assert get(kernels[0]) is first
    assert get(kernels[0], n_cores=2) is not first


def test_devices_that_begin_together_share_what_one_of_them_packs() -> None:
    program, packed, threads = program_from_module(Shared().eval(), torch.zeros(64, 256)), PackedWeights(), 4
    (kernel, *_), together = kernels_with_packs(program), Barrier(threads)
    (name,) = kernel.packs

    def slow(read: str) -> torch.Tensor:
        sleep(0.01)  # as large weights are
        return program.state[read]

    def work(_: int) -> torch.Tensor:
        together.wait()
        return packed.get(kernel, name, slow, 1)

    with ThreadPoolExecutor(threads) as pool:
        first, *others = pool.map(work, range(threads))
    assert all(other is first for other in others)


def test_weights_that_cannot_be_packed_are_refused_before_they_fill_the_memory() -> None:
    program = program_from_module(Shared().eval(), torch.zeros(64, 256))
    kernels = kernels_with_packs(program)
    n_bytes = 4 * 256 * 256 * 4  # the layer for 64 rows and for 8, the square twice
    packed = PackedWeights()
    with patch.object(packing, "release_heap") as released:
        with patch.object(packing, "free_bytes", lambda _: n_bytes):
            packed.check_room(program.graph, kernels, 1)
        assert not released.called
        free = iter([100, n_bytes])  # enough once the heap is released
        with patch.object(packing, "free_bytes", lambda _: next(free)):
            packed.check_room(program.graph, kernels, 1)
        assert released.call_count == 1
        with (
            patch.object(packing, "free_bytes", lambda _: 100),
            pytest.raises(InputError, match=r"1 MiB of weights that quick kernels copy, and 100 B are free"),
        ):
            packed.check_room(program.graph, kernels, 1)


def test_what_is_packed_needs_no_room_again() -> None:
    program = program_from_module(Shared().eval(), torch.zeros(64, 256))
    packed, kernels = PackedWeights(), kernels_with_packs(program)
    for kernel in kernels:
        packed.get(kernel, next(iter(kernel.packs)), program.state.__getitem__, 1)
    with patch.object(packing, "free_bytes", lambda _: 0):
        packed.check_room(program.graph, kernels, 1)
        with pytest.raises(InputError, match="1 MiB of weights"):
            packed.check_room(program.graph, kernels, 2)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.skipif(library() is None, reason="oneDNN's wheel is for Linux on x86-64")
def test_room_is_asked_for_what_filters_grow_to() -> None:
    """Winograd's algorithm holds 36 numbers for 9 of a filter, and these for a direct convolution."""
    program = program_from_module(nn.Conv2d(64, 64, 3, padding=1).eval(), torch.zeros(1, 64, 32, 32))
    (kernel,) = kernels_with_packs(program)
    (pack,) = kernel.packs.values()
    n_bytes = len(pack(program.state.__getitem__))
    assert n_bytes == 4 * (36 + 9) * 64 * 64
    for free, fits in ((n_bytes, True), (n_bytes - 1, False)):
        with patch.object(packing, "free_bytes", lambda _, free=free: free), nullcontext() if fits else refused():
            PackedWeights().check_room(program.graph, [kernel], 1)


def refused() -> AbstractContextManager[object]:
    return pytest.raises(InputError, match="of weights that quick kernels copy")
