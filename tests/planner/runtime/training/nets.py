"""Networks that are hard to train in parts, plans made by hand, and the reference model to compare with."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  # its usual name

from costmodels.host.affinity import run_on
from costmodels.tabulate import tabulate
from costmodels.workload import RecomputeMode, Workload
from graphs.importers.from_torch import program_from_module
from graphs.program.program import Program
from planner.plans.plan import Plan
from planner.problem.problem import Goal
from planner.problem.result import Status
from planner.runtime.training.any_trainer import divide
from planner.runtime.training.options import TrainerOptions
from planner.runtime.training.prepare import StageLayout, prepare
from planner.runtime.training.step import Loss
from planner.runtime.training.trainer import Loop
from simulator.placement import Placement
from simulator.schedule import Action, Schedule
from tests.planner.runtime.small import cpu, desk

BATCH = 2  # samples in a micro-batch


class Skips(nn.Module):
    """A tensor that every layer reads, and a skip connection over all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(4, 6)
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))
        self.leave = nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = y = torch.tanh(self.enter(x))
        for layer in self.layers:
            y = torch.tanh(layer(y) * first + first)
        result: torch.Tensor = self.leave(torch.cat([y, first], dim=1))
        return result


class Branches(nn.Module):
    """Four branches of one tensor, added up in another order than they are made."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(4, 5)
        self.branches = nn.ModuleList(nn.Linear(5, 5) for _ in range(4))
        self.leave = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.gelu(self.enter(x))
        a, b, c, d = (F.relu(branch(y)) for branch in self.branches)
        result: torch.Tensor = self.leave((c + a) * (d + b) + y * y)
        return result


class Tied(nn.Module):
    """One weight for the words that come in and the scores that go out, and one layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 6)
        self.inner = nn.Linear(6, 6)
        self.scores = nn.Linear(6, 7)
        self.scores.weight = self.words.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        y = self.inner(torch.tanh(self.inner(self.words(ids))))
        result: torch.Tensor = self.scores(y.mean(1))
        return result


class Heads(nn.Module):
    """Outputs from the first, a middle and the last layer; some of an operator's that nobody reads."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(4, 6)
        self.aside = nn.Linear(6, 3)
        self.middle = nn.Linear(6, 6)
        self.leave = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        y = torch.tanh(self.enter(x))
        largest, _ = y.topk(2)
        z = torch.tanh(self.middle(y))
        return {"main": self.leave(z), "aside": [self.aside(y), largest], "hidden": z, "x": x, "three": 3}


class Frozen(nn.Module):
    """The first layer and a bias in the middle are not trained; one layer has no influence on the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(4, 6).requires_grad_(False)
        self.middle = nn.Linear(6, 6)
        self.middle.bias.requires_grad_(False)
        self.unused = nn.Linear(6, 2)
        self.leave = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.tanh(self.enter(x))
        z = torch.tanh(self.middle(y))
        return self.leave(z), self.unused(z).detach()


def main_loss(result: Any, target: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of the main output; the heads count for less, and not all of them."""
    if isinstance(result, dict):
        aside, largest = result["aside"]
        total: torch.Tensor = F.cross_entropy(result["main"], target) + largest.mean()
        return total + 0.3 * F.cross_entropy(aside, target)
    loss: torch.Tensor = F.cross_entropy(result[0] if isinstance(result, tuple) else result, target)
    return loss


def numbers(n: int) -> torch.Tensor:
    return torch.randn(n, 4, dtype=torch.float64)


def ids(n: int) -> torch.Tensor:
    return torch.randint(7, (n, 5))


NETWORKS: Mapping[str, tuple[type[nn.Module], Callable[[int], torch.Tensor]]] = {
    "skips": (Skips, numbers),
    "branches": (Branches, numbers),
    "tied": (Tied, ids),
    "heads": (Heads, numbers),
    "frozen": (Frozen, numbers),
}


@cache
def program_of(name: str) -> Program:
    """A network of `NETWORKS` in float64, imported; in float32, if the name says so."""
    make, inputs = NETWORKS[name.removesuffix("32")]
    torch.manual_seed(0)
    dtype = torch.float32 if name.endswith("32") else torch.float64
    return program_from_module(make().to(dtype), (_as(inputs(BATCH), dtype),), name=name)


def samples(name: str, count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch and its target."""
    torch.manual_seed(seed)
    dtype = torch.float32 if name.endswith("32") else torch.float64
    return _as(NETWORKS[name.removesuffix("32")][1](count), dtype), torch.randint(3, (count,))


def _as(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return x.to(dtype) if x.is_floating_point() else x


def in_runs(program: Program, *cuts: int) -> tuple[tuple[int, ...], ...]:
    """Operators in the order of the graph, cut before these."""
    ends = (*cuts, len(program.graph.ops))
    return tuple(tuple(range(a, b)) for a, b in zip((0, *cuts), ends, strict=True))


def forth_and_back(devices: Sequence[int], micro_batches: int, halves: bool = False) -> Schedule:
    """All micro-batches forward through all stages, then back: runs for stages on any devices, [n_stages]."""
    stages, batches = range(len(devices)), range(micro_batches)
    order = [Action(s, "F", i) for i in batches for s in stages]
    order += [Action(s, "I" if halves else "B", i) for i in batches for s in reversed(stages)]
    order += [Action(s, "W", i) for i in batches for s in stages if halves]
    return Schedule(tuple(tuple(a for a in order if devices[a.stage] == d) for d in sorted({*devices})))


def gradients(
    program: Program,
    members: Sequence[Sequence[int]],
    devices: Sequence[int],
    batch: tuple[Any, Any],
    micro_batches: int = 1,
    loss: Loss = main_loss,
    trainer_options: TrainerOptions | None = None,
    halves: bool = False,
) -> tuple[torch.Tensor, dict[str, torch.Tensor | None]]:
    """The loss and the gradients by name, of stages on these devices, [n_stages], numbered from 0."""
    threads = tuple(cpu(f"cpu{i}") for i in range(max(devices) + 1))
    layout = StageLayout(tuple(map(tuple, members)), threads, forth_and_back(devices, micro_batches, halves))
    prepared = prepare(program, layout, loss, trainer_options or TrainerOptions())
    loop = Loop(prepared, lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    try:
        value = loop.run(divide(program, BATCH, micro_batches, *batch), 0, micro_batches).loss
        values = loop.values()
        return value, {name: values[name].grad for name in prepared.trained}
    finally:
        loop.close()


def reference_gradients(
    program: Program, batch: tuple[Any, Any], micro_batches: int = 1, loss: Loss = main_loss
) -> tuple[torch.Tensor, dict[str, torch.Tensor | None]]:
    """The same of the model itself, as its user would train it."""
    model = copy.deepcopy(program.module)

    def work() -> torch.Tensor:
        with torch.enable_grad():
            losses = []
            for part in divide(program, BATCH, micro_batches, *batch):
                value = loss(model(*part.inputs.values()), part.target)
                (value / micro_batches).backward()  # type: ignore[no-untyped-call]
                losses.append(value.detach())
            return torch.stack(losses).mean() if micro_batches > 1 else losses[0]

    value = run_on(cpu("reference"), work)
    trained = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.requires_grad}
    return value, trained


@dataclass(frozen=True)
class Case:
    """A network and how it is divided."""

    name: str
    schedule: str = "1f1b"
    micro_batches: int = 1
    devices: int = 2
    stages: int = 2
    recompute: RecomputeMode = "none"


def training_plan(case: Case) -> Plan:
    """A plan that nobody searched for, of a network of `NETWORKS`."""
    return plan_for(program_of(case.name), case)


def plan_for(program: Program, case: Case) -> Plan:
    """Runs of equal length, round and round the devices."""
    cluster = desk(case.devices)
    workload = Workload(
        mode="training",
        batch=BATCH,
        micro_batches=case.micro_batches,
        schedule=case.schedule,
        recompute=case.recompute,
    )
    n_ops = len(program.graph.ops)
    device = tuple(i * case.stages // n_ops % case.devices for i in range(n_ops))
    return Plan(
        graph=program.graph,
        cluster=cluster,
        workload=workload,
        table=tabulate(program.graph, cluster, workload, {}),
        goal=Goal.TRAINING,
        placement=Placement(device),
        status=str(Status.FEASIBLE),
        solver="by hand",
        bound_s=0.0,
    )
