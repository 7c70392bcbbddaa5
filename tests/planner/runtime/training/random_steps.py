"""Random networks to train, and what two steps have to give: the same with and without recomputation, on any schedule.

Layers that draw random numbers, keep states or run in place stand between layers that are trained. Without random
numbers the steps have to be those that a user would write.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # its usual name

from costmodels.workload import RecomputeMode
from graphs.importers.from_torch import program_from_module
from graphs.program.program import Program
from planner.plans.plan import Plan
from planner.runtime.start import train
from planner.runtime.training.options import TrainerOptions
from simulator.placement import Placement
from tests.planner.runtime.training.loops import SGD
from tests.planner.runtime.training.nets import BATCH, Case, plan_for

WORDS, WIDTH = 3, 8
STEPS, MICRO_BATCHES = 2, 4
SCHEDULES = ("gpipe", "1f1b", "zb-h1")
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
    device: tuple[float, ...]  # where, of the operators, the devices take turns
    certain: bool  # whether it draws no random numbers


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
    case = Case(f"random {seed}", random.choice(SCHEDULES), MICRO_BATCHES)
    cuts = (random.uniform(0.1, 0.9),)
    dtype = random.choice((torch.float64, torch.float32))
    return Drawn(tuple(words), nn.Sequential(*layers).to(dtype), dtype, case, cuts, certain)


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
        own = _own_steps(this.module, batches)
    except RuntimeError:  # of a layer in place: its user cannot train it either
        return
    found = _steps(program, this, "none", batches)
    for mode in MODES:
        again = _steps(program, this, mode, batches)
        yield from (f"{mode}: {wrong}" for wrong in differences(again, found, exact=True))
    if this.certain:
        yield from (f"reference: {wrong}" for wrong in differences(found, own, exact=False))


Steps = tuple[list[float], dict[str, Tensor]]
"""The losses of steps, and the state of the network after them."""


def _steps(program: Program, this: Drawn, mode: RecomputeMode, batches: Sequence[Sequence[Tensor]]) -> Steps:
    plan = _cut(plan_for(program, replace(this.case, recompute=mode)), this.device)
    with train(plan, program, loss=F.mse_loss, optimizer=SGD, trainer_options=TrainerOptions(seed=5)) as trainer:
        return [trainer.step(x, y).item() for x, y in batches], trainer.model_state_dict()


def _cut(plan: Plan, cuts: Sequence[float]) -> Plan:
    """Return a plan whose second device begins elsewhere."""
    n = len(plan.graph.ops)
    return replace(plan, placement=Placement(tuple(sum(i >= cut * n for cut in cuts) for i in range(n))))


def _own_steps(module: nn.Module, batches: Sequence[Sequence[Tensor]]) -> Steps:
    """Train a copy of the module as its user would."""
    model = copy.deepcopy(module).train()
    optimizer = SGD([parameter for parameter in model.parameters() if parameter.requires_grad])
    losses = []
    with torch.enable_grad():
        for batch in batches:
            parts = [
                F.mse_loss(model(x), y) / MICRO_BATCHES
                for x, y in zip(*(each.chunk(MICRO_BATCHES) for each in batch), strict=True)
            ]
            sum(parts, torch.zeros(())).backward()  # type: ignore[no-untyped-call]
            losses.append(sum(part.item() for part in parts))
            optimizer.step()
            optimizer.zero_grad()
    return losses, model.state_dict()


def differences(got: Steps, expected: Steps, exact: bool) -> Iterator[str]:
    """Yield how losses and states differ: in a bit, or beyond rounding."""
    own, wanted = (torch.tensor(losses, dtype=torch.float64) for losses, _ in (got, expected))
    pairs: list[tuple[str, Tensor, Tensor]] = [("losses", own, wanted)]
    if got[1].keys() != expected[1].keys():
        yield f"only one of the states has {sorted(got[1].keys() ^ expected[1].keys())}"
        return
    pairs += [(name, got[1][name], tensor) for name, tensor in expected[1].items()]
    rounding = 1e-4 if any(tensor.dtype == torch.float32 for tensor in expected[1].values()) else 1e-9
    for name, a, b in pairs:
        same = torch.equal(a, b) if exact else torch.allclose(a.double(), b.double(), rounding, rounding / 100)
        if not same:
            yield f"{name}: off by {float((a.double() - b.double()).abs().max()):.1e}"


def failure(seed: int) -> str:
    """Return the first complaint about a seed's training, or the error that it ended with; else nothing."""
    try:
        return next(training_complaints(seed), "")
    except Exception as error:  # whatever it is, the user's own loop has none
        return f"{type(error).__name__}: {error}"
