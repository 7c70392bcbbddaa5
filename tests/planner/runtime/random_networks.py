"""Random networks that nobody chose; `random_answers` judges what plans of them answer.

A network is a list of steps, each of which reads earlier values. It is drawn from a seed step by step; a step that the
module refuses is drawn again. Sizes are tiny, those of real layers, for which other kernels are chosen, or 0 and 1.
Results may be the input, a value twice, or views of values.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # its usual name

from graphs.program.strides import repeats

Values = Sequence[Tensor]


@dataclass(frozen=True)
class Step:
    """One step: what it is called with, in words, and how it makes a value of those before it."""

    words: str
    call: Callable[[Sequence[nn.Module], Values], Tensor]
    modules: tuple[nn.Module, ...] = ()


class Network(nn.Module):
    """Steps, one after another; the result is the last value, or several values and views of them."""

    def __init__(self, steps: Sequence[Step], results: str = "last") -> None:
        super().__init__()
        self.steps, self.results = tuple(steps), results
        self.parts = nn.ModuleList(nn.ModuleList(step.modules) for step in steps)

    def forward(self, x: Tensor) -> Any:
        return self.moved(x, 0.0)

    def moved(self, x: Tensor, share: float) -> Any:
        """Return the result if each value is moved at random by a share of itself."""
        values = [x]
        for step, parts in zip(self.steps, self.parts, strict=True):
            value = step.call(list(parts), values)  # type: ignore[call-overload]
            values.append(value * (1 + share * (2 * torch.rand_like(value) - 1)) if share else value)
        return RESULTS[self.results](values)


RESULTS: dict[str, Callable[[list[Tensor]], Any]] = {
    "last": lambda values: values[-1],
    "last two": lambda values: tuple(values[-2:]),
    "twice": lambda values: (values[-1], values[-1]),
    "with its input": lambda values: (values[-1], values[0]),
    "all": tuple,
    "a view and its values": lambda values: (values[-1].unsqueeze(0), values[-1], values[len(values) // 2].detach()),
}


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "hardtanh": F.hardtanh,
    "leaky": lambda x: F.leaky_relu(x, 0.1),
    "elu": F.elu,
    "mish": F.mish,
    "softplus": F.softplus,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "clamp": lambda x: x.clamp(-0.5, 0.7),
    "clamp_min": lambda x: x.clamp(min=0.0),
    "by hand": lambda x: x * torch.sigmoid(x),
    "selu": F.selu,
    "celu": F.celu,
    "squared": lambda x: F.relu(x).square(),
}
IN_PLACE: dict[str, Callable[[Tensor], Tensor]] = {
    "relu_": F.relu_,
    "relu6_": lambda x: F.relu6(x, inplace=True),
    "silu_": lambda x: F.silu(x, inplace=True),
    "hardswish_": lambda x: F.hardswish(x, inplace=True),
    "hardsigmoid_": lambda x: F.hardsigmoid(x, inplace=True),
    "hardtanh_": lambda x: F.hardtanh(x, inplace=True),
    "leaky_": lambda x: F.leaky_relu(x, 0.1, inplace=True),
    "elu_": lambda x: F.elu(x, inplace=True),
    "mish_": lambda x: F.mish(x, inplace=True),
    "sigmoid_": torch.sigmoid_,
    "tanh_": torch.tanh_,
    "clamp_": lambda x: x.clamp_(-0.5, 0.7),
    "mul_": lambda x: x.mul_(0.5),
    "scaled_": lambda x: x.add_(1.0),
}


def _convolution(random: Random, x: Tensor) -> Step:
    n_axes, channels = x.dim() - 2, x.shape[1]
    groups = random.choice([g for g in (1, 1, 1, 2, 4, 8, channels) if channels % g == 0])
    out = groups * random.choice((1, 2, 4)) if channels < 16 else random.choice((channels, 2 * channels, channels // 2))
    size, stride, dilation = random.choice((1, 3, 3, 3, 5)), random.choice((1, 1, 1, 2)), random.choice((1, 1, 1, 2))
    kind = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[n_axes]
    padding = random.choice((dilation * (size - 1) // 2, dilation * (size - 1) // 2, 0))
    module = kind(
        channels, max(groups, out // groups * groups), size, stride, padding, dilation, groups, random.random() < 0.7
    )
    return Step(str(module), lambda m, v: m[0](v[-1]), (module,))


def _transposed(random: Random, x: Tensor) -> Step:
    module = nn.ConvTranspose2d(x.shape[1], random.choice((2, 8)), random.choice((2, 3)), random.choice((1, 2)))
    return Step(str(module), lambda m, v: m[0](v[-1]), (module,))


def _linear(random: Random, x: Tensor) -> Step:
    inputs = x.shape[-1]
    outputs = random.choice((0, 1, 4, 16, inputs, inputs, 4 * inputs))
    module = nn.Linear(inputs, outputs if inputs * outputs <= MOST_WEIGHTS else 16, random.random() < 0.7)
    return Step(str(module), lambda m, v: m[0](v[-1]), (module,))


def _activation(random: Random, values: Values) -> Step:
    given, x = values[0].untyped_storage(), values[-1].untyped_storage()
    own = given.data_ptr() != x.data_ptr() and not repeats(values[-1])  # else a change in place is refused
    known = ACTIVATIONS | IN_PLACE if own else ACTIVATIONS
    name = random.choice(list(known))
    return Step(name, lambda _, v: known[name](v[-1]))


COMBINED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda a, b: a + b,
    "other way": lambda a, b: b + a,
    "add_": lambda a, b: a.add_(b),
    "mul": lambda a, b: a * b,
    "sub": lambda a, b: a - b,
    "alpha": lambda a, b: torch.add(a, b, alpha=0.5),
}


def _block(random: Random, x: Tensor) -> Step:
    """Draw what residual networks are made of: a multiplication, maybe a norm, an addition, maybe one more norm."""
    n_axes, width = x.dim() - 2, x.shape[1] if x.dim() > 2 else x.shape[-1]
    if n_axes in (1, 2, 3) and random.random() < 0.8:
        size, groups = random.choice((1, 3, 3, 5)), random.choice([g for g in (1, 1, 2, 4, width) if width % g == 0])
        kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[n_axes - 1]
        multiply: nn.Module = kind(width, width, size, padding=size // 2, groups=groups, bias=random.random() < 0.7)
        norms = [_with_statistics((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[n_axes - 1](width)) for _ in "ab"]
    else:
        width, biased = x.shape[-1], random.random() < 0.7
        multiply = nn.Linear(width, width, biased) if width**2 <= MOST_WEIGHTS else nn.Identity()
        norms = [nn.LayerNorm(x.shape[-1]), nn.RMSNorm(x.shape[-1])]
    before, after = (norm if random.random() < 0.4 else nn.Identity() for norm in norms)
    combine, activate = random.choice(("none", *COMBINED)), random.choice(("none", *ACTIVATIONS, *IN_PLACE))
    known: dict[str, Callable[[Tensor], Tensor]] = {"none": lambda t: t, **ACTIVATIONS, **IN_PLACE}

    def call(m: Sequence[nn.Module], v: Values) -> Tensor:
        y = m[1](m[0](v[-1]))
        result: Tensor = m[2](known[activate](y if combine == "none" else COMBINED[combine](y, v[-1])))
        return result

    return Step(f"[{multiply}, {before}, {combine}, {activate}, {after}]", call, (multiply, before, after))


def _again(random: Random, steps: Sequence[Step]) -> Step:
    """Draw a layer that was there before: it is called twice."""
    earlier = random.choice([step for step in steps if step.modules])
    return Step(f"again {earlier.words}", earlier.call, earlier.modules)


def _residual(random: Random, x: Tensor, values: Values) -> Step:
    others = [i for i, value in enumerate(values) if value.shape == x.shape and value.dtype == x.dtype]
    i, name = random.choice(others), random.choice([name for name in ("add", *COMBINED) if name != "add_"])
    return Step(f"{name} value {i}", lambda _, v: COMBINED[name](v[-1], v[i]))


def _norm(random: Random, x: Tensor) -> Step:
    if x.dim() > 2 and random.random() < 0.6:
        batch = {3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[x.dim()]
        module: nn.Module = random.choice((batch, lambda n: nn.GroupNorm(1, n), nn.LocalResponseNorm))(x.shape[1])
    else:
        module = random.choice((nn.LayerNorm, nn.RMSNorm))(x.shape[-1])
    return Step(str(module), lambda m, v: m[0](v[-1]), (_with_statistics(module),))


def _with_statistics(module: nn.Module) -> nn.Module:
    for buffer in (b for b in module.buffers() if b.is_floating_point()):
        buffer.uniform_(0.5, 1.5)
    return module


def _pool(random: Random, x: Tensor) -> Step:
    name = random.choice(("max", "average", "adaptive"))
    calls: dict[str, Callable[[Tensor], Tensor]] = {
        "max": lambda t: F.max_pool2d(t, 3, 1, 1), "average": lambda t: F.avg_pool2d(t, 2),
        "adaptive": lambda t: F.adaptive_avg_pool2d(t, max(1, x.shape[-1] // 2)),
    }  # fmt: skip
    return Step(f"{name} pooling", lambda _, v: calls[name](v[-1]))


def _memory(random: Random, x: Tensor) -> Step:
    """Draw an operator that looks at memory, or makes another view of it."""
    half = max(1, x.numel() // 2)
    calls: dict[str, Callable[[Tensor], Tensor]] = {
        "as_strided": lambda t: torch.as_strided(t, (half, 2), (1, half // 2)),
        "view int32": lambda t: t.view(torch.int32).view(t.dtype),
        "complex": lambda t: torch.view_as_complex(t.reshape(*t.shape[:-1], -1, 2)).abs(),
        "view": lambda t: t.view(x.shape[0], -1),
        "flatten": lambda t: t.flatten(1),
        "tokens": lambda t: t.flatten(2).transpose(1, 2),
        "transpose": lambda t: t.transpose(-1, -2),
        "unfold": lambda t: t.unfold(-1, 2, 1).sum(-1),
        "chunk": lambda t: torch.cat(t.chunk(2, 1)[::-1], 1),
        "shuffle": lambda t: t.reshape(t.shape[0], 2, -1, *t.shape[2:]).transpose(1, 2).flatten(1, 2),
        "slice": lambda t: t[..., ::2],
        "flip": lambda t: t.flip(-1),
        "pad": lambda t: F.pad(t, (1, 1)),
        "upsample": lambda t: F.interpolate(t, scale_factor=2.0),
        "pixels": lambda t: t.movedim(1, -1),
        "channels": lambda t: t.movedim(-1, 1),
        "expand": lambda t: t[:, :1].expand_as(t),
        "mean": lambda t: t.mean((2, 3)),
        "scaled": lambda t: t * t.mean((2, 3), keepdim=True).sigmoid(),
        "product": lambda t: t @ t.mT / t.shape[-1],
        "last": lambda t: t.contiguous(memory_format=torch.channels_last),
    }
    name = random.choice(list(calls))
    return Step(name, lambda _, v: calls[name](v[-1]))


def _sequence(random: Random, x: Tensor) -> Step:
    kind = random.choice(("softmax", "attention", "masked", "lstm", "gru", "rnn"))
    size = x.shape[-1]
    if kind == "softmax":
        return Step(kind, lambda _, v: torch.softmax(v[-1] * 3, -1))
    if kind in ("attention", "masked"):
        causal = kind == "masked"
        return Step(kind, lambda _, v: F.scaled_dot_product_attention(v[-1], v[-1], v[-1], is_causal=causal))
    module = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}[kind](size, min(size, 32), batch_first=True)
    return Step(str(module), lambda m, v: m[0](v[-1])[0], (module,))


def _draw(random: Random, values: Values, steps: Sequence[Step]) -> Step:
    x = values[-1]
    makers: list[Callable[[], Step]] = [
        lambda: _activation(random, values), lambda: _activation(random, values), lambda: _residual(random, x, values),
        lambda: _residual(random, x, values), lambda: _norm(random, x), lambda: _memory(random, x),
        lambda: _block(random, x), lambda: _block(random, x), lambda: _again(random, steps),
    ]  # fmt: skip
    if x.dim() in (3, 4, 5):
        makers += [lambda: _convolution(random, x)] * 5
    if x.dim() == 4:
        makers += [lambda: _pool(random, x), lambda: _transposed(random, x)]
    if x.dim() > 3:
        makers += [lambda: _linear(random, x)]
    if x.dim() in (2, 3):
        makers += [lambda: _linear(random, x)] * 3
    if x.dim() == 3:
        makers += [lambda: _sequence(random, x)] * 2
    return random.choice(makers)()


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "turned": lambda x: x.mT.contiguous().mT,
    "sliced": lambda x: torch.stack([x, x], -1)[..., 0],
    "channels last": lambda x: x.movedim(1, -1).contiguous().movedim(-1, 1),
    "further on": lambda x: torch.cat([x.new_zeros(1), x.reshape(-1)])[1:].view(x.shape),
    "wide": lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]],
}
MOST_ELEMENTS = 1 << 21  # of a value
MOST_WEIGHTS = 1 << 22  # of a product; the judge holds several copies, in float64
SHAPES = {
    "tiny": ((1, 4, 6, 6), (2, 8, 9, 9), (1, 6), (2, 6), (4, 16), (1, 5, 8), (2, 3, 16), (1, 4, 3, 4, 4)),
    "real": (
        *((1, 64, 28, 28), (1, 32, 56, 56), (2, 96, 14, 14), (8, 16, 7, 7), (8, 256), (1, 512), (1, 64, 128)),
        *((2, 32, 256), (1, 16, 8, 16, 16)),
    ),
    "edge": (
        *((0, 4, 6, 6), (1, 1, 1, 1), (2, 8, 1, 1), (1, 4, 1, 9), (0, 6), (1, 1), (3, 0), (0, 5, 8), (1, 1, 8)),
        *((3, 7, 1), (3, 1, 4), (2, 0, 8), (1, 1, 1, 1, 1), (2, 4, 1, 5, 1), (1, 16, 1)),
    ),
}
SIZES = ("tiny", "tiny", "tiny", "edge", "edge", "real")
DTYPES = (*[torch.float32] * 12, torch.bfloat16, torch.float16, torch.float64)


def _reads_unwritten(module: nn.Module) -> bool:
    """Return whether a layer of bfloat16 may have random results: oneDNN's kernel for AMX reads beyond flat volumes."""
    return isinstance(module, nn.Conv3d) and module.in_channels == module.groups


def random_network(seed: int) -> tuple[Network, Tensor]:
    """Return a network in evaluation mode and its input."""
    random, _ = Random(seed), torch.manual_seed(seed)
    x, dtype = torch.randn(random.choice(SHAPES[random.choice(SIZES)])), random.choice(DTYPES)
    x = x.to(dtype)
    if random.random() < 0.3:
        x = LAYOUTS[random.choice(list(LAYOUTS))](x)
    steps: list[Step] = []
    values = [x]
    for _ in range(200):
        if len(steps) >= random.randint(2, 9):
            break
        try:
            step = _draw(random, values, steps)
            with torch.no_grad():
                value = step.call([m.eval().to(dtype) for m in step.modules], values)
        except (RuntimeError, ValueError, IndexError, KeyError, ZeroDivisionError, AssertionError):
            continue  # the module itself cannot have this step here
        if dtype is torch.bfloat16 and any(map(_reads_unwritten, step.modules)):
            continue
        if value.numel() <= MOST_ELEMENTS and value.is_floating_point() and bool(value.isfinite().all()):
            steps.append(step)
            values.append(value)
    return Network(steps, random.choice(["last", "last two", *RESULTS])).eval(), x
