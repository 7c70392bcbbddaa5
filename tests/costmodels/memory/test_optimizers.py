"""States, temporaries and traffic of optimizers, by hand and as PyTorch takes them."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from costmodels.memory.optimizers import OPTIMIZERS
from graphs.importers.footprints import Meter
from tests.benchmarks import steps

SIZES = [(30, 40), (40,), (50, 30), (7,)]
BYTES = [4800, 160, 6000, 28]


def test_states_by_hand() -> None:
    assert OPTIMIZERS["sgd"].state_bytes(BYTES) == 0
    assert OPTIMIZERS["momentum"].state_bytes(BYTES) == 4800 + 160 + 6000 + 28
    assert OPTIMIZERS["adam"].state_bytes(BYTES) == 2 * (4800 + 160 + 6000 + 28) + 4 * 4


def test_temporaries_by_hand() -> None:
    assert OPTIMIZERS["sgd"].step_bytes(BYTES) == OPTIMIZERS["momentum"].step_bytes(BYTES) == 0
    assert OPTIMIZERS["adam"].step_bytes(BYTES) == 2 * 6000 + 160  # of the third two, of the second still one
    assert OPTIMIZERS["adam"].step_bytes([]) == 0


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_torch_takes_as_much(name: str) -> None:
    parameters = [torch.zeros(size, requires_grad=True) for size in SIZES]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    update = steps.OPTIMIZERS[name](parameters)
    with Meter() as meter:
        update.step()
        state_bytes = sum(t.nbytes for s in update.state.values() for t in s.values() if isinstance(t, torch.Tensor))
        assert state_bytes == OPTIMIZERS[name].state_bytes(BYTES)
        before_bytes = meter.n_bytes
        meter.restart()
        update.step()
    scalars = 64  # numbers that a step computes with
    assert 0 <= meter.peak_bytes - before_bytes - OPTIMIZERS[name].step_bytes(BYTES) <= scalars


class Traffic(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not type it
    """Bytes that operators read and write; what one operator reads twice counts once."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.n_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):  # else it is none of the optimizer's
            read = {t.data_ptr(): t.nbytes for t in args if isinstance(t, torch.Tensor)}
            self.n_bytes += sum(read.values()) + result.nbytes
        return result


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_torch_reads_and_writes_as_much(name: str) -> None:
    parameter = torch.zeros(1000, requires_grad=True)
    parameter.grad = torch.ones_like(parameter)
    update = steps.OPTIMIZERS[name]([parameter])
    update.step()
    with Traffic() as traffic:
        update.step()
    scalars = 64  # Adam counts its steps
    assert 0 <= traffic.n_bytes - OPTIMIZERS[name].moves * parameter.nbytes <= scalars
