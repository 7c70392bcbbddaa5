"""States and temporaries of optimizers, by hand and as PyTorch takes them."""

import pytest
import torch

from costmodels.memory.optimizers import OPTIMIZERS
from graphs.importers.storages import Meter
from tests.benchmarks import steps

SIZES = [(30, 40), (40,), (50, 30), (7,)]
BYTES = [4800, 160, 6000, 28]


def test_states_by_hand() -> None:
    assert OPTIMIZERS["sgd"].state_bytes(BYTES) == 0
    assert OPTIMIZERS["momentum"].state_bytes(BYTES) == 4800 + 160 + 6000 + 28
    assert OPTIMIZERS["adam"].state_bytes(BYTES) == 2 * (4800 + 160 + 6000 + 28) + 4 * 4


def test_temporaries_by_hand() -> None:
    assert OPTIMIZERS["sgd"].step_bytes(BYTES) == OPTIMIZERS["momentum"].step_bytes(BYTES, foreach=True) == 0
    assert OPTIMIZERS["adam"].step_bytes(BYTES) == 2 * 6000 + 160  # of the third two, of the second still one
    assert OPTIMIZERS["adam"].step_bytes(BYTES, foreach=True) == 4800 + 160 + 6000 + 28
    assert OPTIMIZERS["adam"].step_bytes([]) == 0


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_torch_takes_as_much(name: str, foreach: bool) -> None:
    parameters = [torch.zeros(size, requires_grad=True) for size in SIZES]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    update = steps.OPTIMIZERS[name](parameters)
    update.param_groups[0]["foreach"] = foreach  # as it is on a GPU if nobody says so
    with Meter() as meter:
        update.step()
        state_bytes = sum(t.nbytes for s in update.state.values() for t in s.values() if isinstance(t, torch.Tensor))
        assert state_bytes == OPTIMIZERS[name].state_bytes(BYTES)
        before_bytes = meter.n_bytes
        meter.restart()
        update.step()
    scalars = 64  # numbers that a step computes with
    assert 0 <= meter.peak_bytes - before_bytes - OPTIMIZERS[name].step_bytes(BYTES, foreach) <= scalars
