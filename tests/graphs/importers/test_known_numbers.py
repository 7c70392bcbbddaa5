"""Whole numbers in a module's buffers may decide shapes and branches: they are known while it is traced."""

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorConverter
from torch.nn import functional as F  # noqa: N812  # its usual name

from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module
from graphs.importers.tracing_guards import known_numbers
from tests.graphs.importers.modules import assert_same

CONVERTER = FakeTensorConverter.from_real_tensor


class Padded(nn.Module):
    """As audio codecs have it: how much is padded follows from numbers in buffers, and so does the branch."""

    stride: Tensor
    total: Tensor

    def __init__(self, stride: int = 3) -> None:
        super().__init__()
        self.register_buffer("stride", torch.tensor(stride))
        self.register_buffer("total", torch.tensor([4]), persistent=False)
        self.conv = nn.Conv1d(2, 2, 5, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        frames = (x.shape[-1] - self.total) / self.stride + 1
        extra = (torch.ceil(frames).to(torch.int64) - 1) * self.stride + self.total - x.shape[-1]
        if extra > 0:
            x = F.pad(x, (int(self.total) - 1, int(extra)))
        result: Tensor = self.conv(x)
        return result


class Counted(nn.Module):
    """A number that the module writes to itself."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return x * int(self.calls)


class Asked(nn.Module):
    """A number that is known and one that is not."""

    least: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("least", torch.tensor(2))

    def forward(self, x: Tensor) -> Tensor:
        return x[: int(self.least)] if x.sum() > self.least else x


@pytest.mark.parametrize("length", [8, 9, 10, 11])
@pytest.mark.parametrize("stride", [2, 3])
def test_shapes_follow_from_numbers_in_buffers(stride: int, length: int) -> None:
    torch.manual_seed(0)
    module, x = Padded(stride).eval(), torch.randn(1, 2, length)
    program = program_from_module(module, (x,))
    want = module(x).detach()
    assert program.graph.tensor[program.graph.outputs[0]].shape == tuple(want.shape)
    assert_same(program.run(x), want)
    assert (int(module.stride), int(module.total)) == (stride, 4)


def test_in_training_too() -> None:
    program = program_from_module(Padded(), (torch.randn(1, 2, 9),), training=True)
    assert [op.kind for op in program.graph.ops][-1] == "aten.conv1d.default"
    assert dict(program.updates) == {}


@pytest.mark.parametrize("training", [False, True])
def test_a_number_that_is_written_is_not_known(training: bool) -> None:
    module = Counted()
    with pytest.raises(InputError, match="model 'Counted' writes to 'calls' while it runs"):
        program_from_module(module, (torch.ones(2),), training=training)
    assert int(module.calls) == 0


def test_a_batch_norm_that_averages_over_all_batches_is_refused_in_training() -> None:
    """Its momentum follows from the number of batches."""
    module = nn.Sequential(nn.BatchNorm1d(4, momentum=None))
    said = r"'Sequential' has a BatchNorm1d \('0'\) with momentum=None, .*; give it a momentum \(momentum=0\.1\), or fr"
    with pytest.raises(InputError, match=said):
        program_from_module(module, (torch.ones(3, 4),), training=True)
    assert len(program_from_module(module, (torch.ones(3, 4),)).graph.ops) == 1
    frozen = nn.Sequential(nn.Linear(4, 4), module.eval()).train()
    frozen[1].eval()
    assert len(program_from_module(frozen, (torch.ones(3, 4),), training=True).graph.ops) == 2


def test_values_of_inputs_are_those_of_the_example() -> None:
    program = program_from_module(Asked(), (torch.ones(3),))
    assert_same(program.run(torch.ones(3)), torch.ones(2))  # the sum is 3, which is more than 2


def test_only_whole_numbers_on_a_real_device() -> None:
    module = nn.Module()
    buffers = {
        "number": torch.tensor(3),
        "flag": torch.tensor([[True]]),
        "fraction": torch.tensor(0.5),
        "several": torch.ones(2, dtype=torch.int64),
        "shape": torch.ones((), dtype=torch.int64, device="meta"),
    }
    for name, buffer in buffers.items():
        module.register_buffer(name, buffer)
    with known_numbers(module) as numbers:
        assert FakeTensorConverter.from_real_tensor is not CONVERTER
        assert [(buffer is buffers[name], known.item()) for name, (buffer, known) in zip(buffers, numbers)] == [  # noqa: B905  # two of five
            (True, 3),
            (True, True),
        ]
        assert all(buffer is not known for buffer, known in numbers)
    assert FakeTensorConverter.from_real_tensor is CONVERTER


def test_the_converter_is_put_back_after_an_error() -> None:
    with pytest.raises(ValueError, match="no"), known_numbers(nn.ReLU()):
        raise ValueError("no")
    assert FakeTensorConverter.from_real_tensor is CONVERTER
