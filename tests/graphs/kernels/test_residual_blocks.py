"""Ordinary residual blocks of real size, on devices of one core and of two: oneDNN computes there, or PyTorch."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # its usual name

from costmodels.host.affinity import use_threads
from tests.graphs.kernels.test_quick import fused, run_all
from tests.graphs.rewrites.nets import imported

TOLERANCE = 1e-4  # of the largest element, which an activation may have made small; Winograd's rounding is coarse

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu by tanh": lambda x: F.gelu(x, approximate="tanh"),
    "hardswish": F.hardswish,
    "relu6": F.relu6,
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 0.7),
    "clamp": lambda x: x.clamp(-0.2, 0.3),
    "leaky relu": lambda x: F.leaky_relu(x, 0.1),
    "sigmoid": F.sigmoid,
    "tanh": F.tanh,
}

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "3 x 3": (lambda: nn.Conv2d(64, 64, 3, padding=1), (1, 64, 56, 56)),
    "grouped": (lambda: nn.Conv2d(64, 64, 3, padding=1, groups=8), (1, 64, 28, 28)),
    "depthwise": (lambda: nn.Conv2d(48, 48, 5, padding=2, groups=48), (1, 48, 28, 28)),
    "with a norm": (lambda: nn.Sequential(nn.Conv2d(64, 64, 1), nn.BatchNorm2d(64)), (2, 64, 28, 28)),
    "padded": (lambda: nn.Sequential(nn.ZeroPad2d((1, 2, 2, 1)), nn.Conv2d(32, 32, 4)), (1, 32, 28, 28)),
    "of sequences": (lambda: nn.Conv1d(96, 96, 9, padding=4, groups=4), (1, 96, 200)),
    "linear": (lambda: nn.Linear(96, 96), (1, 50, 96)),
}


class Residual(nn.Module):
    """A layer and its input, added or multiplied, before each activation."""

    def __init__(self, make: Callable[[], nn.Module], multiplies: bool) -> None:
        super().__init__()
        self.layers, self.multiplies = nn.ModuleList(make() for _ in ACTIVATIONS), multiplies

    def forward(self, x: Tensor) -> list[Tensor]:
        ys = [layer(x) for layer in self.layers]
        together = [y * x if self.multiplies else y + x for y in ys]
        return [activation(y) for activation, y in zip(ACTIVATIONS.values(), together, strict=True)]


@pytest.fixture(params=[1, 2], ids=["one core", "two cores"])
def cores(request: pytest.FixtureRequest) -> Iterator[int]:
    before = use_threads(request.param)
    torch.manual_seed(0)
    yield request.param
    use_threads(before)


@pytest.mark.usefixtures("cores")
@pytest.mark.parametrize("multiplies", [False, True], ids=["a sum", "a product"])
@pytest.mark.parametrize("layer", LAYERS)
def test_an_activation_follows(layer: str, multiplies: bool) -> None:
    make, shape = LAYERS[layer]
    program = imported(Residual(make, multiplies), torch.randn(shape))
    expected, found = run_all(program, "exact"), run_all(fused(program), "quick")
    for (name, want), got in zip(expected.items(), found.values(), strict=True):
        assert float((got - want).abs().max()) <= TOLERANCE * float(want.abs().max()), name


EMPTY: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(4, 0), (2, 4)),
    "linear and gelu": (lambda: nn.Sequential(nn.Linear(4, 0), nn.GELU()), (2, 3, 4)),
    "of nothing": (lambda: nn.Sequential(nn.Linear(4, 0), nn.Linear(0, 3)), (2, 4)),
    "no rows": (lambda: nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Softmax(-1)), (1, 0, 4)),
    "no rows and relu": (lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU()), (3, 0, 8)),
}


@pytest.mark.usefixtures("cores")
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("name", EMPTY)
def test_tensors_without_elements(name: str) -> None:
    make, shape = EMPTY[name]
    program = imported(make(), torch.randn(shape))
    together = fused(program)
    (expected,), (got,) = (each.values() for each in (run_all(program, "exact"), run_all(together, "quick")))
    torch.testing.assert_close(got, expected)
