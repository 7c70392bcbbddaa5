"""Random networks to train, and what two steps have to give: the same with and without recomputation, on any schedule.

Layers that draw random numbers, keep states or run in place stand between layers that are trained. Without random
numbers the steps have to be those that a user would write, with the same loss, optimizer and largest norm.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # its usual name

from costmodels.workload import TRAINING_SCHEDULES, RecomputeMode
from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module
from graphs.program.program import Program
from planner.plans.plan import Plan
from planner.runtime.start import train
from planner.runtime.training.options import TrainerOptions
from simulator.placement import Placement
from simulator.training import IN_TURNS, TURNS_BACK
from tests.planner.runtime.training.loops import SGD, Make
from tests.planner.runtime.training.nets import BATCH, Case, plan_for

WORDS, WIDTH = 3, 8
STEPS, MICRO_BATCHES = 2, 4
LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "smooth l1": F.smooth_l1_loss,
    "huber": F.huber_loss,
    "cross-entropy": lambda x, y: F.cross_entropy(x.flatten(0, 1), y.flatten(0, 1).softmax(-1)),
    "divergence": lambda x, y: F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean"),
    "binary": lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()),
}
EPS = 1e-2  # an optimizer that divides by the gradient's size would make rounding as large as any gradient
OPTIMIZERS: dict[str, Make] = {
    "sgd": SGD,
    "momentum": lambda ps: torch.optim.SGD(ps, 0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda ps: torch.optim.Adam(ps, 0.01, eps=EPS),
    "adamw": lambda ps: torch.optim.AdamW(ps, 0.01, eps=EPS, amsgrad=True),
    "rmsprop": lambda ps: torch.optim.RMSprop(ps, 0.01, eps=EPS, centered=True),
    "adagrad": lambda ps: torch.optim.Adagrad(ps, 0.01, eps=EPS),
}
MOVES = 3  # of a batch by a last digit, to see how much a training makes of rounding
MODES: tuple[RecomputeMode, ...] = ("full", "selective")


class First(nn.Module):
    """A recurrent layer without its last state."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layer(x)[0]
        return result


class Along(nn.Module):
    """A layer of [batch, channels, length] along the words of [batch, words, channels]."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layer(x.mT).mT
        return result


class Apply(nn.Module):
    """A function of the tensor, and of whether the network is trained."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Scaled(nn.Module):
    """A learned number for each channel, and a mask that is held."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(WIDTH))
        self.register_buffer("mask", torch.arange(WIDTH) % 3 > 0)

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(self.mask, x * self.scale, x.expand_as(x))


class Twice(nn.Module):
    """A layer that is called twice, and whose weight is read a third time."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(torch.tanh(self.layer(x)))
        return F.linear(y, self.layer.weight.t())


class Itself(nn.Module):
    """Attention of several heads of a sequence to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.attention(x, x, x, need_weights=False)[0]
        return result


def _halved(x: Tensor) -> Tensor:
    """Write in place to a part of a copy."""
    y = x.clone()
    y[:, 0] *= 0.5
    return y


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda x: x.softmax(-1),
    "log softmax": lambda x: x.log_softmax(-1),
    "glu": lambda x: F.glu(torch.cat([x, x.flip(-1)], -1), -1),
    "cumsum": lambda x: x.cumsum(1),
    "product": lambda x: x @ x.mT @ x / WIDTH,
    "einsum": lambda x: torch.einsum("bwc,bwd->bcd", x, x)[:, :WORDS] / WIDTH,
    "normalize": lambda x: F.normalize(x, dim=-1),
    "sorted": lambda x: x.sort(-1)[0],
    "largest": lambda x: x + x.topk(2, -1)[0].sum(-1, keepdim=True),
    "turned": lambda x: x.flip(1).roll(1, -1).mT.contiguous().mT,
    "gathered": lambda x: x.gather(-1, x.argsort(-1).flip(-1)),
    "broadcast": lambda x: x * x.mean(1, keepdim=True).expand_as(x) + x[:, :1],
    "parts": lambda x: torch.cat([a * b for a, b in zip(x.chunk(2, -1), x.tensor_split(2, -1)[::-1], strict=True)], -1),
    "halved": _halved,
    "scattered": lambda x: torch.zeros_like(x).index_add(1, torch.tensor([0, 0, 2]), x),
    "average pool": lambda x: F.avg_pool1d(x, 3, 1, 1),
    "detached": lambda x: x + x.detach().sin(),
    "clamped": lambda x: x.clamp(-0.9, 0.9) + x.abs().sqrt().maximum(x),
    "distance": lambda x: x + torch.cdist(x, x).sum(-1, keepdim=True),
    "cubed": lambda x: x.pow(3).tan().atan() + x.logsumexp(-1, keepdim=True),
}


class Skip(nn.Module):
    """Layers, and what they read added to what they return."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.layers(x.clone())  # of which a layer in place may change its own
        return result


def _recurrent(kind: Callable[..., nn.Module], random: Random, **options: Any) -> nn.Module:
    both = random.random() < 0.5
    n_layers = 2 if options.get("dropout") else random.choice((1, 2))  # it drops between layers
    return First(kind(WIDTH, WIDTH // (1 + both), n_layers, batch_first=True, bidirectional=both, **options))


CERTAIN: dict[str, Callable[[Random], nn.Module]] = {
    "linear": lambda _: nn.Linear(WIDTH, WIDTH),
    "lstm": lambda random: _recurrent(nn.LSTM, random),
    "gru": lambda random: _recurrent(nn.GRU, random),
    "rnn": lambda random: _recurrent(nn.RNN, random, nonlinearity=random.choice(("tanh", "relu"))),
    "batch norm": lambda _: Along(nn.BatchNorm1d(WIDTH)),
    "instance norm": lambda _: Along(nn.InstanceNorm1d(WIDTH, affine=True, track_running_stats=True)),
    "layer norm": lambda _: nn.LayerNorm(WIDTH),
    "convolution": lambda random: Along(nn.Conv1d(WIDTH, WIDTH, 3, padding=1, groups=random.choice((1, 2, WIDTH)))),
    "attention": lambda _: Apply(lambda x: F.scaled_dot_product_attention(x, x, x)),
    "in place": lambda random: random.choice((nn.ReLU, nn.SiLU, nn.Hardswish, nn.ELU))(inplace=True),
    "activation": lambda random: random.choice((nn.GELU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Mish, nn.PReLU))(),
    "max pool": lambda _: Along(nn.MaxPool1d(3, 1, 1)),
    "group norm": lambda _: Along(nn.GroupNorm(2, WIDTH)),
    "rms norm": lambda _: nn.RMSNorm(WIDTH),
    "response norm": lambda _: Along(nn.LocalResponseNorm(3)),
    "transposed": lambda _: Along(nn.ConvTranspose1d(WIDTH, WIDTH, 3, padding=1)),
    "heads": lambda _: Itself(),
    "encoder": lambda random: nn.TransformerEncoderLayer(
        WIDTH, 2, 16, 0.0, batch_first=True, norm_first=random.random() < 0.5
    ),
    "weight norm": lambda _: nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)),
    "scaled": lambda _: Scaled(),
    "twice": lambda _: Twice(),
    "function": lambda random: Apply(FUNCTIONS[random.choice(list(FUNCTIONS))]),
    "functions": lambda random: nn.Sequential(*(Apply(FUNCTIONS[random.choice(list(FUNCTIONS))]) for _ in "ab")),
}
DRAWING: dict[str, Callable[[Random], nn.Module]] = {
    "dropout": lambda random: nn.Dropout(random.choice((0.0, 0.3, 1.0)), random.random() < 0.5),
    "channel dropout": lambda _: Along(nn.Dropout1d(0.3)),
    "alpha dropout": lambda random: random.choice((nn.AlphaDropout, nn.FeatureAlphaDropout))(0.3),
    "rrelu": lambda random: nn.RReLU(inplace=random.random() < 0.5),
    "lstm that drops": lambda random: _recurrent(nn.LSTM, random, dropout=0.4),
    "gru that drops": lambda random: _recurrent(nn.GRU, random, dropout=0.4),
    "rnn that drops": lambda random: _recurrent(nn.RNN, random, dropout=0.4),
    "attention that drops": lambda _: Apply(lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.3)),
    "noise": lambda _: Apply(lambda x: x + torch.randn_like(x)),
    "gumbel": lambda _: Apply(lambda x: F.gumbel_softmax(x)),
}


@dataclass(frozen=True)
class Drawn:
    """A network that was drawn, and how it is trained."""

    words: tuple[str, ...]  # its layers
    module: nn.Module
    dtype: torch.dtype
    case: Case
    device: tuple[float, ...]  # where, of the operators, the next stage begins
    certain: bool  # whether it draws no random numbers
    loss: str
    optimizer: str
    clip_norm: float | None


def drawn(seed: int) -> Drawn:
    """Return a network and how it is trained."""
    random, _ = Random(seed), torch.manual_seed(seed)
    certain = random.random() < 0.5
    known = CERTAIN if certain else CERTAIN | DRAWING
    words = ["linear", *random.choices(list(known), k=random.randint(2, 5)), "linear"]
    layers = [known[word](random) for word in words]
    for i in range(1, len(layers) - 1):
        if random.random() < 0.25:
            layers[i] = Skip(layers[i])
    if random.random() < 0.2:
        layers[0].requires_grad_(False)
    schedule = random.choice(TRAINING_SCHEDULES)
    n_devices = random.choice((1, 2, 2, 3))
    n_stages = n_devices * (2 if schedule in IN_TURNS else 1) + (n_devices - 1) * (schedule in TURNS_BACK)
    case = Case(f"random {seed}", schedule, MICRO_BATCHES, n_devices, n_stages)
    cuts = tuple(sorted(random.uniform(0.1, 0.9) for _ in range(n_stages - 1)))
    dtype = random.choice((torch.float64, torch.float32))
    how = random.choice(list(LOSSES)), random.choice(list(OPTIMIZERS)), random.choice((None, None, 0.05, 10.0))
    return Drawn(tuple(words), nn.Sequential(*layers).to(dtype), dtype, case, cuts, certain, *how)


def training_complaints(seed: int) -> Iterator[str]:
    """Yield how two steps of a random network differ: with recomputation from without, or from the user's own."""
    this = drawn(seed)
    shape = (BATCH, WORDS, WIDTH)
    program = program_from_module(this.module, (torch.randn(shape, dtype=this.dtype),), training=True)
    batches = [
        tuple(torch.randn(MICRO_BATCHES * BATCH, WORDS, WIDTH, dtype=this.dtype) for _ in range(2))
        for _ in range(STEPS)
    ]
    try:
        own = _own_steps(this, batches)
    except RuntimeError:  # of a layer in place: its user cannot train it either
        return
    try:
        found = _steps(program, this, "none", batches)
    except InputError:  # a weight has readers on two devices, or a schedule too few stages
        this = replace(this, case=replace(this.case, devices=1, stages=1), device=())
        found = _steps(program, this, "none", batches)
    for mode in MODES:
        again = _steps(program, this, mode, batches)
        yield from (f"{mode}: {wrong}" for wrong in differences(again, found, exact=True))
    if this.certain:
        moved = (_own_steps(this, _moved(batches)) for _ in range(MOVES))
        yield from (f"reference: {wrong}" for wrong in differences(found, own, exact=False, moved=moved))


Steps = tuple[list[float], dict[str, Tensor]]
"""The losses of steps, and the state of the network after them."""


def _steps(program: Program, this: Drawn, mode: RecomputeMode, batches: Sequence[Sequence[Tensor]]) -> Steps:
    plan = _cut(plan_for(program, replace(this.case, recompute=mode)), this)
    options = TrainerOptions(seed=5, clip_norm=this.clip_norm)
    loss, optimizer = LOSSES[this.loss], OPTIMIZERS[this.optimizer]
    with train(plan, program, loss=loss, optimizer=optimizer, trainer_options=options) as trainer:
        return [trainer.step(x, y).item() for x, y in batches], trainer.model_state_dict()


def _cut(plan: Plan, this: Drawn) -> Plan:
    """Return a plan whose stages begin elsewhere; they go round the devices, or down and up again."""
    n, k = len(plan.graph.ops), this.case.devices
    stages = [sum(i >= cut * n for cut in this.device) for i in range(n)]
    back = this.case.schedule in TURNS_BACK
    return replace(plan, placement=Placement(tuple(min(s, 2 * k - 2 - s) if back else s % k for s in stages)))


def _own_steps(this: Drawn, batches: Sequence[Sequence[Tensor]]) -> Steps:
    """Train a copy of the module as its user would."""
    model = copy.deepcopy(this.module).train()
    optimizer = OPTIMIZERS[this.optimizer]([parameter for parameter in model.parameters() if parameter.requires_grad])
    losses = []
    with torch.enable_grad():
        for batch in batches:
            parts = [
                LOSSES[this.loss](model(x), y) / MICRO_BATCHES
                for x, y in zip(*(each.chunk(MICRO_BATCHES) for each in batch), strict=True)
            ]
            sum(parts, torch.zeros(())).backward()  # type: ignore[no-untyped-call]
            losses.append(sum(part.item() for part in parts))
            if this.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), this.clip_norm)
            optimizer.step()
            optimizer.zero_grad()
    return losses, model.state_dict()


def _moved(batches: Sequence[Sequence[Tensor]]) -> Sequence[Sequence[Tensor]]:
    """Return the batches with each number up or down by a last digit, at random."""
    return [
        tuple(x * (1 + torch.finfo(x.dtype).eps * torch.randint_like(x, 0, 2).mul(2).sub(1)) for x in batch)
        for batch in batches
    ]


def differences(got: Steps, expected: Steps, exact: bool, moved: Iterable[Steps] = ()) -> Iterator[str]:
    """Yield how losses and states differ: in a bit, or beyond rounding.

    Where they differ beyond what rounding is as a rule, they may be four times as far from the expected ones as those
    ``moved`` by a last digit are: a step next to a pole of the tangent makes 4e-2 of 1e-7.
    """
    if got[1].keys() != expected[1].keys():
        yield f"only one of the states has {sorted(got[1].keys() ^ expected[1].keys())}"
        return
    rounding = 1e-4 if any(tensor.dtype == torch.float32 for tensor in expected[1].values()) else 1e-9
    wanted, values = _numbers(expected), _numbers(got)
    others = [_numbers(steps) for steps in moved] if not exact and any(_unlike(values, wanted, rounding)) else []
    for name in _unlike(values, wanted, 0.0 if exact else rounding):
        error = _off(values[name], wanted[name])
        if not error <= 4 * max((_off(other[name], wanted[name]) for other in others), default=0.0):
            yield f"{name}: off by {error:.1e}"


def _numbers(steps: Steps) -> dict[str, Tensor]:
    """Return the losses and the state in float64."""
    return {"losses": torch.tensor(steps[0], dtype=torch.float64), **{name: x.double() for name, x in steps[1].items()}}


def _unlike(values: dict[str, Tensor], wanted: dict[str, Tensor], rounding: float) -> Iterator[str]:
    """Yield the names of tensors that differ by more than rounding; the model's own may have NaN, too."""
    for name, tensor in wanted.items():
        if not torch.allclose(values[name], tensor, rounding, rounding / 10, equal_nan=True):
            yield name


def _off(values: Tensor, wanted: Tensor) -> float:
    return float((values - wanted).abs().max())


def failure(seed: int) -> str:
    """Return the first complaint about a seed's training, or the error that it ended with; else nothing."""
    try:
        return next(training_complaints(seed), "")
    except Exception as error:  # whatever it is, the user's own loop has none
        return f"{type(error).__name__}: {error}"
