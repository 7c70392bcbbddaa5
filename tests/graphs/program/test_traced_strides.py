"""Which results have to lie as in the trace, and how they lay there."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # its usual name

from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module
from graphs.ir import unfused
from graphs.kernels.gelu import is_strided
from graphs.program.files import program_from_dict, program_to_dict
from graphs.program.rewritten import rewritten_program
from graphs.program.traced_strides import laying, lying_as_traced
from graphs.rewrites.split import Split
from tests.planner.runtime.small import NETWORKS, program_of


class Net(nn.Module):
    """A convolution, and what a function makes of its result."""

    def __init__(self, after: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.after = nn.Conv2d(3, 4, 3), after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.conv(x))


def found(after: Callable[[Tensor], Tensor]) -> dict[str, tuple[int, ...]]:
    return lying_as_traced(program_from_module(Net(after).eval(), (torch.randn(2, 3, 6, 6),)))


def test_the_result_alone() -> None:
    assert found(lambda x: F.relu(x)) == {"relu": (64, 16, 4, 1)}


def test_what_the_result_is_a_view_of() -> None:
    strides = {"conv2d": (64, 16, 4, 1), "slice_1": (64, 16, 4, 1), "m_t": (64, 16, 1, 4)}
    assert found(lambda x: x[:, 1:].mT) == strides


def test_what_is_looked_at() -> None:
    looked = found(lambda x: F.relu(torch.as_strided(F.silu(x)[0], (2, 2), (3, 1), 5).clone()))
    assert looked["silu"] == (64, 16, 4, 1)
    assert "conv2d" not in looked


@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "options"])  # whose result no file has
def test_fake_tensors_say_what_the_trace_says(name: str) -> None:
    program = program_of(name)
    of_file = program_from_dict(program_to_dict(program), program.graph, program.example_inputs)
    assert lying_as_traced(of_file) == lying_as_traced(program)
    assert set(lying_as_traced(program)) >= set(program.graph.outputs) & {
        name for op in unfused(program.graph.ops) for name in op.outputs
    }


def test_parts_put_together_lie_as_the_whole_did() -> None:
    program = program_from_module(Net(lambda x: F.silu(x)[..., ::2]).eval(), (torch.randn(2, 3, 6, 6),))
    whole = lying_as_traced(program)
    assert whole["slice_1"] == (64, 16, 4, 2)
    choices = {"conv2d": ("batch", 2), "silu": ("axis 0", 2), "slice_1": ("axis 0", 2)}
    split = rewritten_program(program, [Split(choices)])
    assert lying_as_traced(split) == {"slice_1": (64, 16, 4, 2)}
    assert split.run(*program.example_inputs).shape == (2, 4, 4, 2)
    document = program_to_dict(split)
    of_file = program_from_dict(document, split.graph, split.example_inputs)
    assert lying_as_traced(of_file) == lying_as_traced(split)
    document["strides"]["slice_1"] = [64, 16, -4, 2]
    with pytest.raises(InputError, match=r"'slice_1' of \[2, 4, 4, 2\] with the strides \[64, 16, -4, 2\]"):
        program_from_dict(document, split.graph, split.example_inputs)


@pytest.mark.parametrize("marked", [True, False])
def test_a_file_keeps_which_kernel_of_gelu_the_trace_takes(marked: bool) -> None:
    program = program_from_module(Net(lambda x: F.gelu(x.mT if marked else x)).eval(), (torch.randn(2, 3, 6, 6),))
    of_file = program_from_dict(program_to_dict(program), program.graph, program.example_inputs)
    split = rewritten_program(program, [Split({"gelu": ("axis 0", 2)})])
    for each, name in ((program, "gelu"), (of_file, "gelu"), (split, "gelu[1/2]")):
        assert is_strided(each.calls[name]) is marked


def test_a_tensor_is_laid_once() -> None:
    x = torch.randn(2, 3, 4)
    assert laying(x.stride())(x) is x
    y = laying((12, 1, 3))(x)
    assert y.stride() == (12, 1, 3)
    assert torch.equal(y, x)
    assert laying((0, 4, 1))(x) is x, "elements that share memory cannot be written apart"


class Pixels(nn.Module):
    """A layer of images whose axes are moved."""

    def __init__(self, layer: Callable[[Tensor], Tensor], axis: int) -> None:
        super().__init__()
        self.layer, self.axis = layer, axis

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.movedim(self.axis, 1 if self.axis == -1 else -1))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    ("layer", "axis", "shape"),
    [
        (nn.BatchNorm2d(5), 1, (2, 4, 5, 3)),
        (nn.BatchNorm2d(5), -1, (2, 3, 4, 5)),
        (nn.Conv3d(4, 8, 5, 2, 2, groups=2, dtype=torch.bfloat16), -1, (1, 3, 4, 3, 4)),
        (nn.Conv2d(4, 8, 3, dtype=torch.bfloat16), 1, (1, 3, 4, 4)),
        (nn.ReflectionPad3d(1), -1, (2, 3, 4, 3, 2)),
        (nn.ReplicationPad3d(1), -1, (2, 3, 4, 3, 2)),
        (nn.ChannelShuffle(2), -1, (2, 3, 4, 6)),
        (lambda x: F.max_unpool2d(x, torch.zeros_like(x, dtype=torch.int64), (2, 2)), -1, (2, 3, 4, 6)),
        (nn.MaxPool1d(2), -1, (2, 6, 4)),
        (nn.Sequential(nn.PReLU(), nn.MaxPool1d(2)), -1, (2, 6, 4)),  # with gradients, another kernel
        (lambda x: F.multilabel_margin_loss(x.flatten(), torch.zeros(24).long(), reduction="none"), -1, (2, 3, 4)),
        (lambda x: F.binary_cross_entropy(x.sigmoid(), torch.ones(2, 4, 3), reduction="none"), -1, (2, 3, 4)),
        (lambda x: torch.isin(x, torch.zeros(2)), -1, (2, 3, 4)),
        (nn.LogSigmoid(), -1, (2, 3, 4)),
        (lambda x: torch.complex(x, x).angle(), -1, (2, 3, 4)),
        (nn.Upsample(5), -1, (2, 3, 4)),
        (nn.Sequential(nn.PReLU(), nn.Upsample(5, mode="nearest-exact")), -1, (2, 3, 4)),
        (lambda x: F.one_hot((x > 0).long(), 3), -1, (2, 3, 4)),
        (lambda x: x.long() // (x.long() + 5), -1, (2, 3, 4)),
        (lambda x: torch.cat([x / 2, x], -1), -1, (2, 4, 5, 6, 1)),
        (lambda x: torch.cat([x[:, :1].relu(), x[:, :1]], -1), -1, (2, 4, 5, 3)),
        (lambda x: torch.gradient(x)[1], -1, (2, 4, 5, 6, 3)),
    ],
)
def test_strides_are_those_of_kernels(
    layer: Callable[[Tensor], Tensor], axis: int, shape: tuple[int, ...], training: bool
) -> None:
    weights = layer.parameters() if isinstance(layer, nn.Module) else iter(())
    x = torch.randn(shape).to(next(weights, torch.ones(1)).dtype)
    program = program_from_module(Pixels(layer, axis), (x,), training=training)
    with torch.set_grad_enabled(training):
        strides = Pixels(layer, axis).train(training)(x).stride()
    of_file = program_from_dict(program_to_dict(program), program.graph, program.example_inputs)
    for each in (program, of_file):
        (result,) = each.graph.outputs
        assert lying_as_traced(each)[result] == strides


def test_a_view_of_what_a_kernel_lays_is_traced() -> None:
    module = nn.Sequential(Pixels(nn.BatchNorm2d(5), 1), nn.Flatten(0)).eval()
    program = program_from_module(ViewOf(module[0]), (x := torch.randn(2, 4, 5, 3),))
    assert torch.equal(program.run(x), module(x))


class ViewOf(nn.Module):
    """A view of a module's result."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.module(x)
        return result.view(-1)
