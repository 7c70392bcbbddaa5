"""Random networks that nobody chose, and what default plans of them have to give: the answers of the module itself.

A network is a list of steps, each of which reads earlier values. It is drawn from a seed step by step; a step that the
module refuses is drawn again. Sizes are tiny, or those of real layers, for which other kernels are chosen.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # its usual name

import planner
from costmodels.cluster.cluster import Cluster, Device, Link
from tests.planner.runtime.small import CORE

Values = Sequence[Tensor]
SECONDS = 0.2  # for the search


@dataclass(frozen=True)
class Step:
    """One step: what it is called with, in words, and how it makes a value of those before it."""

    words: str
    call: Callable[[Sequence[nn.Module], Values], Tensor]
    modules: tuple[nn.Module, ...] = ()


class Network(nn.Module):
    """Steps, one after another; the result is the last value, or the last two."""

    def __init__(self, steps: Sequence[Step], n_results: int = 1) -> None:
        super().__init__()
        self.steps, self.n_results = tuple(steps), n_results
        self.parts = nn.ModuleList(nn.ModuleList(step.modules) for step in steps)

    def forward(self, x: Tensor) -> Any:
        values = [x]
        for step, parts in zip(self.steps, self.parts, strict=True):
            values.append(step.call(list(parts), values))  # type: ignore[call-overload]
        return values[-1] if self.n_results == 1 else tuple(values[-self.n_results :])


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
    module = nn.Linear(
        x.shape[-1], random.choice((0, 1, 4, 16, x.shape[-1], x.shape[-1], 4 * x.shape[-1])), random.random() < 0.7
    )
    return Step(str(module), lambda m, v: m[0](v[-1]), (module,))


def _activation(random: Random, _: Tensor) -> Step:
    name = random.choice(list(ACTIVATIONS))
    return Step(name, lambda _, v: ACTIVATIONS[name](v[-1]))


def _residual(random: Random, x: Tensor, values: Values) -> Step:
    others = [i for i, value in enumerate(values) if value.shape == x.shape and value.dtype == x.dtype]
    i, name = random.choice(others), random.choice(("add", "add", "other way", "mul", "sub", "alpha"))
    calls: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "add": lambda a, b: a + b,
        "other way": lambda a, b: b + a,
        "mul": lambda a, b: a * b,
        "sub": lambda a, b: a - b,
        "alpha": lambda a, b: torch.add(a, b, alpha=0.5),
    }
    return Step(f"{name} value {i}", lambda _, v: calls[name](v[-1], v[i]))


def _norm(random: Random, x: Tensor) -> Step:
    if x.dim() > 2 and random.random() < 0.6:
        batch = {3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[x.dim()]
        module: nn.Module = random.choice((batch, lambda n: nn.GroupNorm(1, n), nn.LocalResponseNorm))(x.shape[1])
    else:
        module = random.choice((nn.LayerNorm, nn.RMSNorm))(x.shape[-1])
    for buffer in (b for b in module.buffers() if b.is_floating_point()):
        buffer.uniform_(0.5, 1.5)
    return Step(str(module), lambda m, v: m[0](v[-1]), (module,))


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
        "view int32": lambda t: t.view(torch.int32).view(torch.float32),
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


def _draw(random: Random, values: Values) -> Step:
    x = values[-1]
    makers: list[Callable[[], Step]] = [
        lambda: _activation(random, x), lambda: _activation(random, x), lambda: _residual(random, x, values),
        lambda: _residual(random, x, values), lambda: _norm(random, x), lambda: _memory(random, x),
    ]  # fmt: skip
    if x.dim() in (3, 4, 5):
        makers += [lambda: _convolution(random, x)] * 5
    if x.dim() == 4:
        makers += [lambda: _pool(random, x), lambda: _transposed(random, x)]
    if x.dim() in (2, 3):
        makers += [lambda: _linear(random, x)] * 3
    if x.dim() == 3:
        makers += [lambda: _sequence(random, x)] * 2
    return random.choice(makers)()


MOST_ELEMENTS = 1 << 21  # of a value
SHAPES = {
    "tiny": ((1, 4, 6, 6), (2, 8, 9, 9), (2, 6), (4, 16), (1, 5, 8), (2, 3, 16), (1, 4, 3, 4, 4)),
    "real": ((1, 64, 28, 28), (1, 32, 56, 56), (2, 96, 14, 14), (8, 256), (1, 64, 128), (2, 32, 256)),
}


def random_network(seed: int) -> tuple[Network, Tensor]:
    """Return a network in evaluation mode and its input."""
    random, _ = Random(seed), torch.manual_seed(seed)
    x = torch.randn(random.choice(SHAPES[random.choice(("tiny", "real"))]))
    steps: list[Step] = []
    values = [x]
    for _ in range(200):
        if len(steps) >= random.randint(2, 9):
            break
        try:
            step = _draw(random, values)
            with torch.no_grad():
                value = step.call([m.eval() for m in step.modules], values)
        except (RuntimeError, ValueError, IndexError, KeyError, ZeroDivisionError):
            continue  # the module itself cannot have this step here
        if value.numel() <= MOST_ELEMENTS and value.is_floating_point() and bool(value.isfinite().all()):
            steps.append(step)
            values.append(value)
    return Network(steps, random.choice((1, 1, 2)) if len(steps) > 1 else 1).eval(), x


def devices_of(seed: int) -> Cluster:
    """Return two devices of one core each, which are the same core here, or one device of all cores."""
    cores = ((CORE,), (CORE,)) if seed % 3 else (tuple(sorted(os.sched_getaffinity(0))),)
    devices = tuple(
        Device(
            f"cpu{i}",
            "cpu",
            memory_bytes=2**33,
            flops_per_s={"float32": 5e10},
            memory_bytes_per_s=2e10,
            cores=c,
            kernels="quick",
        )
        for i, c in enumerate(cores)
    )
    links = tuple(Link(a.name, b.name, 1e11, 1e-6) for a in devices for b in devices if a is not b)
    return Cluster("random", devices, links)


def complaints(seed: int, network: Network | None = None) -> Iterator[str]:
    """Yield in which ways a default plan of a random network differs from the module."""
    drawn, x = random_network(seed)
    network, random = network or drawn, Random(seed)
    goal = random.choice(("throughput", "latency"))
    search = planner.Search(time_limit_s=SECONDS, rewrites=random.choice(("auto", "auto", "none", "copies")))
    plan = planner.plan(network, (x,), cluster=devices_of(seed), goal=goal, search=search)
    with planner.start(plan, network, (x,)) as runner:
        for name, given in {"the example": x, **_other_inputs(x, random)}.items():
            with torch.no_grad():
                expected, exact = network(given.clone()), _in_double(network, given)
            for got in (runner(given), *runner.stream([given] * 2)):
                yield from (f"{name}: {wrong}" for wrong in differences(got, expected, exact))
        yield from _after_new_weights(network, runner, x)


def _other_inputs(x: Tensor, random: Random) -> dict[str, Tensor]:
    i = random.randrange(x.numel())
    nan, infinite, made = x.clone(), x.clone(), x.clone()
    nan.view(-1)[i] = float("nan")
    infinite.view(-1)[i] = float("inf")
    made.view(-1)[i] = torch.tensor(float("inf")) - torch.tensor(float("inf"))  # with the sign that x86 gives it
    return {
        "a NaN": nan,
        "an infinity": infinite,
        "inf - inf": made,
        "a negated view": torch._neg_view(torch.randn_like(x)),
    }


def _in_double(network: Network, x: Tensor) -> Any:
    try:
        return deepcopy(network).double()(x.double())
    except RuntimeError:  # a view of bits knows its own type only
        return network(x.clone())


def _after_new_weights(network: Network, runner: Any, x: Tensor) -> Iterator[str]:
    """Yield a complaint unless the runner sees all new weights or refuses them."""
    new = deepcopy(network)
    for parameter in new.parameters():
        parameter.data.mul_(0.5)
    if not any(True for _ in new.parameters()):
        return
    network.load_state_dict(new.state_dict())
    try:
        got = runner(x)
    except planner.InputError:
        return
    with torch.no_grad():
        yield from (f"new weights: {w}" for w in differences(got, new(x.clone()), _in_double(new, x)))


def differences(got: Any, expected: Any, exact: Any) -> Iterator[str]:
    """Yield how results differ from the module's: in shapes, strides, NaN, infinities or, beyond rounding, values."""
    for i, (a, b, c) in enumerate(zip(*(leaves(value) for value in (got, expected, exact)), strict=True)):
        if (a.shape, a.dtype, a.stride()) != (b.shape, b.dtype, b.stride()):
            yield f"[{i}] is {a.dtype} {tuple(a.shape)} {a.stride()}, should be {b.dtype} {tuple(b.shape)} {b.stride()}"
            continue
        finite = b.isfinite()
        if not torch.equal(a.isnan(), b.isnan()) or not torch.equal(a[~finite & ~b.isnan()], b[~finite & ~b.isnan()]):
            counts = [int(n) for t in (a, b) for n in (t.isnan().sum(), t.isinf().sum())]
            yield "[{}] has {} NaN and {} inf, should be {} and {}".format(i, *counts)
            continue
        finite &= c.isfinite()
        if not finite.any():
            continue
        largest = max(float(c[finite].abs().max()), 1e-30)
        error, own = (float((t[finite].double() - c[finite]).abs().max()) / largest for t in (a, b))
        if error > max(1e-4, 4 * own):
            yield f"[{i}] is off by {error:.1e} of the largest value, PyTorch by {own:.1e}"


def leaves(value: Any) -> list[Tensor]:
    """Return the tensors of a result."""
    return [value] if isinstance(value, Tensor) else list(value)


def shrunk(seed: int) -> Network:
    """Return the network of a seed without the steps that it does not take to be wrong."""
    network, x = random_network(seed)
    steps = list(network.steps)
    for step in reversed(network.steps):
        fewer = Network([s for s in steps if s is not step], 1).eval()
        if fewer.steps and _is_wrong(seed, fewer, x):
            steps = list(fewer.steps)
    return Network(steps, 1).eval()


def _is_wrong(seed: int, network: Network, x: Tensor) -> bool:
    try:
        network(x.clone())
    except (RuntimeError, ValueError, IndexError):  # it no longer fits together
        return False
    return bool(failure(seed, network))


def failure(seed: int, network: Network | None = None) -> str:
    """Return the first complaint about a seed's network, or the error that a plan or run ended with; else nothing."""
    try:
        return next(complaints(seed, network), "")
    except Exception as error:  # whatever it is, eager PyTorch has none
        return f"{type(error).__name__}: {error}"
