"""Small networks with what kernels compute together."""

from collections.abc import Callable
from math import pi, sqrt

import torch
from torch import Tensor, nn
from torch.nn import functional

from graphs.importers.from_torch import program_from_module
from graphs.program.program import Program


class Block(nn.Module):
    """Two convolutions with batch norms, and a shortcut with a third."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.Conv2d(8, 8, 3, padding=1)
        self.shortcut = nn.Conv2d(3, 8, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(3))
        for norm in self.norms:
            assert isinstance(norm, nn.BatchNorm2d)
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            nn.init.normal_(norm.bias)
            assert norm.running_mean is not None
            assert norm.running_var is not None
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 1.5)

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.relu(self.norms[0](self.first(x)))
        y: Tensor = functional.relu(self.norms[1](self.second(hidden)) + self.norms[2](self.shortcut(x)))
        return y


class Residual(nn.Module):
    """A product with an activation, and one whose result is added to the input."""

    def __init__(self, activation: Callable[[Tensor], Tensor] = functional.gelu) -> None:
        super().__init__()
        self.up, self.down, self.drop = nn.Linear(8, 16), nn.Linear(16, 8), nn.Dropout(0.1)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.drop(self.down(self.activation(self.up(x))))
        return y


class Gated(nn.Module):
    """A product with a gate, as in LLaMA."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(8, 16, bias=False), nn.Linear(8, 16, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = functional.silu(self.gate(x)) * self.up(x)
        return y


class Spelled(nn.Module):
    """GELU by its formula, as in GPT-2."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.up(x)
        h = 0.5 * h * (1.0 + torch.tanh(sqrt(2.0 / pi) * (h + 0.044715 * torch.pow(h, 3.0))))
        y: Tensor = self.down(h)
        return y


class Transposed(nn.Module):
    """A product of a matrix with a bias, in the shape of rows, as in GPT-2."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(8, 16)), nn.Parameter(torch.randn(16))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.view(-1, 8), self.weight).view(2, 5, 16).tanh()


def product(activation: nn.Module) -> Callable[[], nn.Module]:
    """A product of images in a convolution with an activation."""
    return lambda: nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, groups=1), activation)


def bordered(pad: nn.Module) -> Callable[[], nn.Module]:
    """A convolution of images with something around them."""
    return lambda: nn.Sequential(pad, nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())


SPELLED_NORM = "mul view pad avg_pool3d squeeze view mul add pow div"


class Preactivated(nn.Module):
    """A batch norm and a relu before a convolution, as in DenseNet."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.first = nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(3)
        assert self.first.running_mean is not None
        self.first.running_mean.normal_()
        assert self.first.running_var is not None
        self.first.running_var.uniform_(0.5, 1.5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(functional.relu(self.first(x)))
        return y


class RootMeanSquare(nn.Module):
    """A norm as LLaMA spells it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(8) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        y: Tensor = self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
        return y


class Sums(nn.Module):
    """A sum of three, of which one lies in another shape first."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.drop = nn.Parameter(torch.randn(5, 8)), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, 8)
        y: Tensor = x.tanh() + self.drop((rows.sin() + rows.cos()).reshape(x.shape))
        return y * self.weight


class Positions(nn.Module):
    """Masks and positions that are the same at each call, some of which the caller gets."""

    turns: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("turns", torch.rand(8))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        angles = torch.arange(5)[:, None] * self.turns
        places = torch.arange(5)
        mask = ((places[:, None] > places[None]) & (places[None] < 4)).to(x.dtype)
        y: Tensor = self.layer(x) * angles.cos() + mask.sum(-1, keepdim=True)
        return y + angles.sin(), mask.transpose(0, 1)


class SequenceBlock(nn.Module):
    """Convolutions of sequences with norms, the second one with what skips it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Conv1d(3, 8, 3, padding=2, dilation=2),
            nn.Conv1d(8, 8, 3, padding="same", groups=2),
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(8) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(self.norms[1](self.second(y)) + y) + y


FUSED: dict[str, tuple[Callable[[], nn.Module], list[str]]] = {
    "block": (Block, ["conv2d batch_norm relu", "conv2d batch_norm add relu", "conv2d batch_norm"]),
    "sequences": (SequenceBlock, ["conv1d batch_norm relu", "conv1d batch_norm add relu"]),
    "residual": (Residual, ["linear gelu", "linear dropout add"]),
    "gated": (Gated, ["linear silu", "linear mul"]),
    "spelled": (Spelled, ["linear mul pow mul add mul tanh add mul"]),
    "transposed": (Transposed, ["addmm view tanh"]),
    "relu6": (product(nn.ReLU6()), ["conv2d hardtanh"]),
    "clamp": (product(nn.Hardtanh(-0.3, 0.4)), ["conv2d hardtanh"]),
    "leaky": (product(nn.LeakyReLU(0.2)), ["conv2d leaky_relu"]),
    "hardswish": (product(nn.Hardswish()), ["conv2d hardswish"]),
    "swish": (product(nn.SiLU()), ["conv2d silu"]),
    "sigmoid": (product(nn.Sigmoid()), ["conv2d sigmoid"]),
    "response norm": (product(nn.LocalResponseNorm(5, 1e-2, 0.75, 2.0)), [SPELLED_NORM]),
    "root mean square": (RootMeanSquare, ["pow mean add rsqrt mul to mul"]),
    "preactivated": (Preactivated, ["batch_norm relu"]),
    "sum of three": (Sums, ["add reshape dropout add"]),
    "gelu of tanh": (product(nn.GELU("tanh")), ["conv2d gelu"]),
    "border of zeros": (bordered(nn.ZeroPad2d((1, 0, 0, 2))), ["pad conv2d batch_norm relu"]),
    "border of other numbers": (bordered(nn.ConstantPad2d(1, 0.5)), ["conv2d batch_norm relu"]),
    "no border": (bordered(nn.ZeroPad2d((-1, 0, 0, 2))), ["conv2d batch_norm relu"]),
}
"""Networks by name, with the kinds of the members of their fused operators."""


def imported(module: nn.Module, x: Tensor | None = None) -> Program:
    """A network in evaluation mode, with inputs that fit its first weight."""
    if x is None:
        first = next(iter(module.parameters()))
        x = torch.randn({4: (1, 3, 9, 9), 3: (2, 3, 9)}.get(first.dim(), (2, 5, 8)))
    return program_from_module(module.eval(), x, name="net")
