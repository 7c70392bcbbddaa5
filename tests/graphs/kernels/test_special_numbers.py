"""NaN, infinities, large and tiny numbers come out of quick kernels where eager PyTorch has them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import inf, nan

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from costmodels.calibrate.clock import clock_of
from costmodels.calibrate.runs import Inference
from costmodels.cluster.cluster import Device
from costmodels.host.affinity import use_threads
from graphs.importers.from_torch import program_from_module
from graphs.kernels.float_status import INVALID, clear, raised
from graphs.kernels.quick import quick_kernel
from graphs.program.program import Program
from graphs.rewrites.fuse import find_fusions

X86_NAN = (torch.tensor(inf) - torch.tensor(inf)).item()  # its sign bit is set on x86
SPECIAL = [nan, X86_NAN, inf, -inf, 1e30, -1e30, 1e-40, -1e-40, -0.0]
OFF = 2e-5  # of the largest finite number of a result; Winograd's rounding is four times that of a direct convolution


class Net(nn.Module):
    """A function of modules and inputs."""

    def __init__(self, function: Callable[..., Tensor], *modules: nn.Module) -> None:
        super().__init__()
        self.parts, self.function = nn.ModuleList(modules), function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*self.parts, *inputs)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "nothing": lambda x: x,
    "relu": functional.relu,
    "relu6": functional.relu6,
    "hardtanh": lambda x: functional.hardtanh(x, -0.3, 0.6),
    "clamp": lambda x: x.clamp(-0.5, 0.25),
    "clamp to one number": lambda x: x.clamp(2.0, 1.0),
    "at least": lambda x: x.clamp(min=-0.5),
    "at most": lambda x: x.clamp(max=0.5),
    "leaky relu": lambda x: functional.leaky_relu(x, 0.2),
    "leaky relu of slope 0": lambda x: functional.leaky_relu(x, 0.0),
    "falling leaky relu": lambda x: functional.leaky_relu(x, -0.5),
    "silu": functional.silu,
    "silu spelled out": lambda x: x * torch.sigmoid(x),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "gelu": functional.gelu,
    "gelu by tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "hardswish": functional.hardswish,
    "hardsigmoid": functional.hardsigmoid,
    "elu": functional.elu,
    "mish": functional.mish,
    "softplus": functional.softplus,
    "exp": torch.exp,
    "log": torch.log,
    "softmax": lambda x: x.softmax(-1),
    "logarithm of softmax": lambda x: x.softmax(-1).log(),
}
IMAGES, LARGE_IMAGES = (2, 8, 6, 5), (1, 64, 28, 28)


def after(multiplication: nn.Module, shape: Sequence[int], activation: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Net(lambda m, x: ACTIVATIONS[activation](m(x)), multiplication), (torch.randn(*shape),)


def residual(multiplication: nn.Module, shape: Sequence[int], activation: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    other = torch.randn_like(multiplication(torch.randn(*shape)))
    return Net(lambda m, x, r: ACTIVATIONS[activation](m(x) + r), multiplication), (torch.randn(*shape), other)


MULTIPLICATIONS: dict[str, Callable[[], tuple[nn.Module, Sequence[int]]]] = {
    "product": lambda: (nn.Linear(8, 12), (3, 8)),
    "product with one row": lambda: (nn.Linear(8, 12), (1, 8)),
    "convolution": lambda: (nn.Conv2d(8, 16, 3, padding=1), IMAGES),
    "convolution with a norm": lambda: (nn.Sequential(nn.Conv2d(8, 16, 3, bias=False), nn.BatchNorm2d(16)), IMAGES),
    "convolution by depth": lambda: (nn.Conv2d(8, 8, 3, padding=1, groups=8), IMAGES),
    "convolution in groups": lambda: (nn.Conv2d(8, 16, 3, stride=2, groups=2), IMAGES),
    "sequences": lambda: (nn.Conv1d(8, 16, 3), (2, 8, 9)),
    "winograd": lambda: (nn.Conv2d(64, 64, 3, padding=1), LARGE_IMAGES),
}


def check(network: nn.Module, given: tuple[Tensor, ...], numbers: Sequence[float] = SPECIAL) -> None:
    """Hold every special number in each input, then in each parameter, against the module as PyTorch runs it."""
    program = program_from_module(network.eval(), given, name="net")
    program = replace(program, graph=find_fusions(program.graph)(program.graph))
    assert any(quick_kernel(program, each) for op in program.graph.ops for each in (op, *op.members))
    run = quickly(program)
    for number, place in product(numbers, range(len(given))):
        odd = [x.clone() for x in given]
        odd[place].view(-1)[odd[place].numel() // 3] = number
        hold(run(*odd), network, odd, f"{number} in input {place}")
    hold(run(*given), network, given, "nothing special, after all these")
    for number, (name, parameter) in product((nan, -inf, 1e30), network.named_parameters()):
        before = parameter.detach().clone()
        parameter.data.view(-1)[parameter.numel() // 3] = number
        hold(quickly(program)(*given), network, given, f"{number} in {name}")
        parameter.data.copy_(before)


def quickly(program: Program) -> Callable[..., list[Tensor]]:
    """A function of a program's inputs that runs its quick kernels."""
    device = Device("cpu0", "cpu", 1e9, {"float32": 1e11}, 1e10, cores=(0,))
    inference = Inference(program, torch.device("cpu"), clock_of(device), kernels="quick")
    names = [tensor.name for tensor in program.graph.tensors if tensor.role.value == "input"]

    def run(*given: Tensor) -> list[Tensor]:
        env = inference.given | dict(zip(names, given, strict=True))
        with torch.no_grad():
            inference.run(env, 0, len(inference.ops))
        return [env[name] for name in program.graph.outputs]

    return run


def hold(got: Sequence[Tensor], network: nn.Module, given: Sequence[Tensor], case: str) -> None:
    with torch.no_grad():
        expected = network(*given)
    for own, answer in zip(got, [expected] if isinstance(expected, Tensor) else expected, strict=True):
        assert torch.equal(own.isnan(), answer.isnan()), f"{case}: {own} instead of {answer}"
        assert torch.equal(own.isinf() * own.sign().nan_to_num(), answer.isinf() * answer.sign().nan_to_num()), case
        finite = answer.isfinite()
        if finite.any():
            off = (own.double() - answer.double())[finite].abs().max()
            assert off <= OFF * max(1e-3, answer[finite].abs().max().item()), f"{case}: off by {off}"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = use_threads(1)
    torch.manual_seed(0)
    yield
    use_threads(before)


FUSED = ["nothing", "relu", "relu6", "leaky relu", "silu", "gelu by tanh", "hardswish"]
OTHERS = [name for name in MULTIPLICATIONS if name not in ("product", "convolution", "winograd")]
CASES = [*product(["product", "convolution"], ACTIVATIONS), *product(OTHERS, FUSED)]


@pytest.mark.parametrize(("multiplication", "activation"), CASES)
def test_an_activation_after_a_multiplication(multiplication: str, activation: str) -> None:
    check(*after(*MULTIPLICATIONS[multiplication](), activation))


@pytest.mark.parametrize("activation", ["nothing", "relu", "relu6", "silu", "gelu by tanh", "hardswish", "sigmoid"])
@pytest.mark.parametrize("multiplication", ["product", "convolution", "convolution by depth", "sequences"])
def test_an_activation_after_a_residual_sum(multiplication: str, activation: str) -> None:
    check(*residual(*MULTIPLICATIONS[multiplication](), activation))


@pytest.mark.parametrize("activation", ["nothing", "relu", "silu", "tanh", "hardtanh"])
@pytest.mark.parametrize("arranged", [after, residual])
def test_winograd_gives_way(arranged: Callable[..., tuple[nn.Module, tuple[Tensor, ...]]], activation: str) -> None:
    check(*arranged(*MULTIPLICATIONS["winograd"](), activation), numbers=[X86_NAN, inf, -inf, 1e30])


def test_a_product_by_a_gate() -> None:
    gate = Net(lambda m, x, y: m(x) * y, nn.Conv2d(8, 8, 1))
    check(gate, (torch.randn(*IMAGES), torch.randn(*IMAGES)))
    gate = Net(lambda m, x, y: m(x) * y, nn.Linear(8, 8))
    check(gate, (torch.randn(3, 8), torch.randn(3, 8)))


@pytest.mark.parametrize("activation", ["relu", "relu6", "silu"])
def test_pytorch_s_threads(activation: str) -> None:
    use_threads(2)
    for name in ("product", "convolution"):
        check(*after(*MULTIPLICATIONS[name](), activation), numbers=[X86_NAN, -inf])


def channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


GELU: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "after a convolution": lambda m, x: functional.gelu(m(x)),
    "of images that it gets with their channels last": lambda m, x: functional.gelu(m(channels_last(x))),
    "of a result that others read": lambda m, x: functional.gelu(y := m(x)) + y,
    "of channels-last results": lambda m, x: functional.gelu(y := m(channels_last(x))) * y,
    "of pixels": lambda m, x: functional.gelu(m(x).flatten(2).transpose(1, 2)),
    "of pixels in the order that they have": lambda m, x: functional.gelu(m(channels_last(x)).movedim(1, -1)),
    "of a slice": lambda m, x: functional.gelu(m(x)[..., ::2]),
    "of an odd number of numbers": lambda m, x: functional.gelu(m(x)[:1, :5, 0, :1].mT),
    "of two numbers": lambda m, x: functional.gelu(channels_last(m(x))[:1, :1, :1, :2]),
    "by tanh, of channels-last results": lambda m, x: functional.gelu(m(channels_last(x)), approximate="tanh"),
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", GELU)
def test_gelu_of_an_infinity_is_that_of_the_strides_of_the_trace(name: str, threads: int) -> None:
    """PyTorch has NaN if the tensor is contiguous, else an infinity."""
    use_threads(threads)
    check(Net(GELU[name], nn.Conv2d(8, 8, 1)), (torch.randn(*IMAGES),), numbers=[nan, inf, -inf])


class RmsNorm(nn.Module):
    """As LLaMA has it."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(n))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def scaled(x: Tensor) -> Tensor:
    return x * functional.adaptive_avg_pool2d(x, 1)


PASSES: dict[str, tuple[Callable[[], nn.Module], list[Sequence[int]]]] = {
    "layer norm of 8": (lambda: nn.LayerNorm(8), [(3, 8)]),
    "layer norm of 17": (lambda: nn.LayerNorm(17), [(2, 3, 17)]),
    "layer norm of 64": (lambda: nn.LayerNorm(64), [(3, 64)]),
    "root mean square": (lambda: RmsNorm(24), [(3, 24)]),
    "response norm": (lambda: nn.LocalResponseNorm(3), [(1, 20, 6, 6)]),
    "response norm of 5": (lambda: nn.LocalResponseNorm(5, 1e-4, 0.75, 2.0), [(2, 4, 5, 6)]),
    "batch norm and relu": (lambda: nn.Sequential(nn.BatchNorm2d(20), nn.ReLU()), [(2, 20, 5, 5)]),
    "softmax": (lambda: nn.Softmax(-1), [(3, 40)]),
    "sum of three": (lambda: Net(lambda x, y, z: x + y + z), [(3, 20)] * 3),
    "concatenation": (lambda: Net(lambda x, y: torch.cat([x, y], 1)), [(3, 20), (3, 5)]),
    "mean of pixels": (lambda: nn.AdaptiveAvgPool2d(1), [(2, 20, 5, 6)]),
    "mean of axes": (lambda: Net(lambda x: x.mean((2, 3))), [(2, 20, 5, 6)]),
    "scaled channels": (lambda: Net(scaled), [(2, 20, 5, 6)]),
    "lstm": (lambda: Net(lambda m, x: m(x)[0], nn.LSTM(8, 12, 2, bidirectional=True)), [(5, 1, 8)]),
    "lstm with a state": (
        lambda: Net(lambda m, x, h, c: m(x, (h, c))[0], nn.LSTM(8, 12)),
        [(5, 1, 8), *[(1, 1, 12)] * 2],
    ),
    "gru": (lambda: Net(lambda m, x, h: m(x, h)[0], nn.GRU(8, 12)), [(5, 1, 8), (1, 1, 12)]),
    "images pooled by their largest": (
        lambda: nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.MaxPool2d(3, 2, 1)),
        [(1, 8, 24, 24)],
    ),
    "which is largest": (lambda: Net(lambda m, x: m(x).argmax(-1), nn.Linear(8, 5)), [(3, 8)]),
}


@pytest.mark.parametrize("name", PASSES)
def test_a_pass(name: str) -> None:
    make, shapes = PASSES[name]
    check(make(), tuple(torch.randn(*shape) for shape in shapes))


def test_a_response_norm_without_a_constant_is_pytorch_s() -> None:
    """Its sum of squares may be 0."""
    norm, x = nn.LocalResponseNorm(3, k=0.0), torch.zeros(1, 20, 6, 6)
    x[0, 10:] = 1e-30
    program = program_from_module(norm, (x,), name="net")
    run = quickly(replace(program, graph=find_fusions(program.graph)(program.graph)))
    hold(run(x), norm, (x,), "no constant")


@pytest.mark.parametrize("large", [1e18, 1e19, 1.8e19, 1e20, 3e38])
@pytest.mark.parametrize("n", [1, 7, 8, 17, 64, 768])
def test_squares_of_a_layer_norm_overflow_as_pytorch_s(n: int, large: float) -> None:
    """PyTorch's result is NaN or 0, by where the large number stands in the row."""
    norm = nn.LayerNorm(n)
    run = quickly(program_from_module(norm, (torch.randn(2, n),), name="net"))
    for place in (0, n // 2, n - 1):
        x = torch.randn(2, n)
        x[0, place] = large
        hold(run(x), norm, (x,), f"{large} at {place}")
    level = torch.full((2, n), large)
    hold(run(level), norm, (level,), f"all {large}")


HIDDEN = torch.ones(40, 40, dtype=torch.bool).tril()
MASKS: dict[str, Callable[[], Tensor | None]] = {
    "none": lambda: None,
    "later keys": lambda: HIDDEN,
    "added": lambda: torch.zeros(40, 40).masked_fill(~HIDDEN, -inf),
    "a row": lambda: HIDDEN & (torch.arange(40) != 7)[:, None],
    "a key": lambda: (torch.arange(40) != 39).expand(1, 40),
    "a large number": lambda: torch.zeros(40, 40).masked_fill(~HIDDEN, -1e9),
}


class Attend(nn.Module):
    """Attention with a mask that never changes, or with one that is given."""

    def __init__(self, mask: Tensor | None, causal: bool = False) -> None:
        super().__init__()
        self.register_buffer("hidden", mask)
        self.causal = causal

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        hidden = self.get_buffer("hidden") if mask is None and self.hidden is not None else mask
        return functional.scaled_dot_product_attention(q, k, v, hidden, is_causal=self.causal)


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("mask", MASKS)
def test_attention_with_a_mask(mask: str, fixed: bool) -> None:
    hidden, given = MASKS[mask](), tuple(torch.randn(2, 4, 40, 64) for _ in range(3))
    if fixed or hidden is None:
        check(Attend(hidden), given, numbers=[nan, X86_NAN, inf, -inf, 1e-40])
    else:
        more = (hidden,) if hidden.dtype != torch.bool else (torch.zeros(hidden.shape).masked_fill(~hidden, -inf),)
        check(Attend(None), (*given, *more), numbers=[nan, X86_NAN, -inf, 1e-40])


def test_causal_attention() -> None:
    given = tuple(torch.randn(1, 4, 200, 32) for _ in range(3))
    check(Attend(None, causal=True), given, numbers=[nan, X86_NAN, inf, -inf, 1e-40])


def test_all_of_a_softmax_down_to_the_smallest_number() -> None:
    for n in (3, 40):
        x = torch.zeros(1, n)
        x[0, 1:3] = torch.tensor([-85.0, -95.0])
        for least in (-103.0, -104.5, -1e9, -inf):
            x[0, 0] = least
            check(Net(lambda x: x.softmax(-1).log()), (x,), numbers=[0.0])


def test_ordinary_numbers_raise_nothing() -> None:
    """Else kernels would run twice."""
    masked = torch.randn(2, 4, 40, 40).masked_fill(~HIDDEN, -inf)
    checks: list[tuple[nn.Module, tuple[Tensor, ...]]] = [
        (nn.Softmax(-1), (masked,)),
        (Attend(HIDDEN), tuple(torch.randn(2, 4, 40, 64) for _ in range(3))),
        *(after(*make(), each) for make in MULTIPLICATIONS.values() for each in ("relu", "silu")),
        *((make(), tuple(torch.randn(*shape) for shape in shapes)) for make, shapes in PASSES.values()),
    ]
    for network, given in checks:
        program = program_from_module(network.eval(), given, name="net")
        run = quickly(replace(program, graph=find_fusions(program.graph)(program.graph)))
        run(*given)
        clear(INVALID)
        run(*given)
        assert not raised(INVALID), network
