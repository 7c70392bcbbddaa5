"""Small networks in training, and ranks that train them, each in a process of its own."""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F  # noqa: N812  # its usual name

from costmodels.cluster.cluster import Replicas
from costmodels.host.stores import served_store, visited_store
from costmodels.tabulate import tabulate
from costmodels.workload import Workload
from graphs.importers.from_torch import program_from_module
from graphs.program.program import Program
from planner.plans.files import load_plan
from planner.plans.plan import Plan
from planner.problem.problem import Goal
from planner.runtime.checkpoint.shards import read_shard
from planner.runtime.distributed.training.trainer import PipelineTrainer
from planner.runtime.errors import RankError
from planner.runtime.training.any_trainer import divide
from planner.runtime.training.options import TrainerOptions
from planner.runtime.training.prepare import stage_layout
from planner.runtime.training.states import join_states
from planner.runtime.training.trainer import Trainer
from simulator.placement import Placement
from tests.planner.runtime.small import desk, make_plan

BATCH = 2  # samples of a micro-batch
LIMIT_S = 120.0
END_S = 5.0  # for the others, when one has failed
DOUBLE = torch.float64
TWO_STAGES = ("interleaved", "breadth-first", "zbv")  # a device

CONTEXT = get_context("forkserver")
"""Starts processes as forks of one that has imported this module and runs nothing, which saves seconds for each."""

CONTEXT.set_forkserver_preload([__name__])


class Layer(nn.Module):
    """Attention and an MLP with their skips, and dropout."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(self.first(x)).chunk(3, -1))
        scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~mask, float("-inf"))
        x = x + self.dropout(self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2)))
        result: torch.Tensor = x + self.down(F.gelu(self.up(self.second(x))))
        return result


class Transformer(nn.Module):
    """Words to scores; the mask and the words themselves are read by all layers, on every device."""

    def __init__(self, n_layers: int = 3, width: int = 8, dropout: float = 0.0) -> None:
        super().__init__()
        self.words = nn.Embedding(11, width)
        self.layers = nn.ModuleList(Layer(width, dropout) for _ in range(n_layers))
        self.head = nn.Linear(width, 11)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        there = (words > 0)[:, None, None, :]
        x = self.words(words)
        for layer in self.layers:
            x = layer(x, there)
        result: torch.Tensor = self.head(x)
        return result


class Frozen(Transformer):
    """Of which the first half is not trained, so that no gradient comes back to it."""

    def __init__(self) -> None:
        super().__init__(n_layers=2)
        for part in (self.words, self.layers[0]):
            part.requires_grad_(False)


class Odd(nn.Module):
    """Two names for one weight, layers and a buffer that nobody reads, and a buffer that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.middle, self.unread = (nn.Linear(4, 4) for _ in range(3))
        self.again = self.enter
        self.norm, self.leave = nn.BatchNorm1d(4), nn.Linear(4, 5)
        self.register_buffer("scale", torch.full((4,), 0.5), persistent=False)
        self.register_buffer("idle", torch.arange(3))
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.again(x) * self.scale)
        result: torch.Tensor = self.leave(self.norm(self.middle(x)) * self.scale + self.shift)
        return result


class Handing(nn.Module):
    """Returns a parameter as it is, and an input; a tied weight is read in the first and the third stage."""

    def __init__(self) -> None:
        super().__init__()
        self.tied, self.inner = nn.Linear(4, 4), nn.Linear(4, 4)
        self.end = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.tanh(self.inner(torch.tanh(self.tied(x))))
        return self.end(torch.tanh(self.tied(y))), self.end.weight


class Skipping(nn.Module):
    """Convolutions, a normalisation, a skip over everything, and an output on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b = (nn.Conv2d(c, 4, 3, padding=1) for c in (3, 4, 4))
        self.norm = nn.BatchNorm2d(4)
        self.aux, self.head = nn.Linear(4, 5), nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.relu(self.stem(x))
        y = torch.relu(self.norm(self.a(x)))
        z = torch.relu(self.b(y) * x) + x + y
        return self.head(z.mean((2, 3))), self.aux(y.mean((2, 3)))


class Recurrent(nn.Module):
    """A recurrent network, written in place by PyTorch's own kernels, and activations with random slopes."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.inner = nn.Embedding(11, 8), nn.GRU(8, 8, 2, batch_first=True, dropout=0.3)
        self.leaky, self.head = nn.RReLU(), nn.Linear(8, 11)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.leaky(self.inner(self.words(words))[0]))
        return result


@dataclass(frozen=True)
class Case:
    """What the ranks do.

    Attributes:
        network: a key of `NETWORKS`.
        cuts: the modules or operators with which the stages behind the first begin.
        micro_batches: of a step.
        schedule: its name.
        steps: how many, after one whose gradients are returned.
        trainer_options: how.
        folder: of shards, if not every rank has the whole model.
        replicas: of the devices.
        begin: number of the first step.
        resume: a file or a folder of parts to go on from.
        save: folder for the parts of the ranks.
        ignores: leave out some targets, and all of the last micro-batch.
    """

    network: str
    cuts: tuple[str, ...]
    micro_batches: int = 1
    schedule: str = "1f1b"
    steps: int = 0
    trainer_options: TrainerOptions = field(default_factory=TrainerOptions)
    folder: str = ""
    replicas: int = 1
    begin: int = 0
    resume: str = ""
    save: str = ""
    ignores: bool = False

    @property
    def n_devices(self) -> int:
        """As many as there are stages, or half as many."""
        return (len(self.cuts) + 1) // (2 if self.schedule in TWO_STAGES else 1)

    @property
    def n_ranks(self) -> int:
        """One for each device of each replica."""
        return self.n_devices * self.replicas

    @property
    def dtype(self) -> torch.dtype:
        """Of the parameters."""
        return DOUBLE if self.trainer_options.autocast is None else torch.float32

    @property
    def numbers(self) -> range:
        """Of the steps."""
        return range(self.begin, self.begin + 1 + self.steps)


@dataclass(frozen=True)
class Done:
    """What a rank returns."""

    gradients: Mapping[str, torch.Tensor | None]
    losses: Sequence[float]
    state: Mapping[str, torch.Tensor]
    n_real: int  # bytes of the weights that it was given
    whole: Mapping[str, Any] | None = None  # what `whole_state_dict` returns
    part: Mapping[str, Any] | None = None


NETWORKS: Mapping[str, tuple[Callable[[], nn.Module], Callable[[int], torch.Tensor]]] = {
    "transformer": (Transformer, lambda n: torch.randint(1, 11, (n, 5))),
    "dropout": (lambda: Transformer(dropout=0.3), lambda n: torch.randint(1, 11, (n, 5))),
    "recurrent": (Recurrent, lambda n: torch.randint(1, 11, (n, 5))),
    "unknown word": (Transformer, lambda n: torch.full((n, 5), 11 if n > BATCH else 1)),
    "frozen": (Frozen, lambda n: torch.randint(1, 11, (n, 5))),
    "odd": (Odd, lambda n: torch.randn(n, 4, dtype=DOUBLE)),
    "handing": (Handing, lambda n: torch.randn(n, 4, dtype=DOUBLE)),
    "skipping": (Skipping, lambda n: torch.randn(n, 3, 4, 4, dtype=DOUBLE)),
}


def loss_of(result: Any, target: torch.Tensor) -> torch.Tensor:
    """For any of them."""
    outputs = result if isinstance(result, tuple) else (result,)
    losses = [
        F.cross_entropy(out.flatten(0, -2), target.flatten()) if len(out) == len(target) else out.square().sum()
        for out in outputs
    ]
    return losses[0] if len(losses) == 1 else sum(losses, torch.zeros((), dtype=DOUBLE))


def no_loss(result: Any, target: Any) -> Any:  # noqa: ARG001  # none
    return None


def sum_of_squares(result: torch.Tensor, target: Any) -> torch.Tensor:  # noqa: ARG001  # there is none
    return result.square().sum()


def model_of(case: Case) -> nn.Module:
    torch.manual_seed(0)
    return NETWORKS[case.network][0]().to(case.dtype).train()


def inputs_of(case: Case, n: int) -> torch.Tensor:
    """Samples for its network."""
    batch = NETWORKS[case.network][1](n)
    return batch.to(case.dtype) if batch.is_floating_point() else batch


def data_of(case: Case, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch and its target."""
    torch.manual_seed(100 + step)
    n = BATCH * case.micro_batches * case.replicas
    batch = inputs_of(case, n)
    target = torch.randint(5, (n,) if batch.is_floating_point() else (n, 5))
    if case.ignores:
        target[torch.rand(target.shape) < 0.5] = -100
        target[-BATCH:] = -100
    return batch, target


def program_for(case: Case) -> Program:
    program = _imported(Case(case.network, (), trainer_options=TrainerOptions(autocast=case.trainer_options.autocast)))
    torch.manual_seed(1)
    return program


@cache
def _imported(case: Case) -> Program:
    """The program of a network, which trainers leave as it is."""
    return program_from_module(model_of(case), (inputs_of(case, BATCH),), training=True)


def plan_for(case: Case, program: Program) -> Plan:
    """Stages that begin with the first operators of these modules, on one device after the other."""
    starts = [next(i for i, op in enumerate(program.graph.ops) if cut in (op.module, op.name)) for cut in case.cuts]
    n_devices = case.n_devices
    rows = [*range(n_devices), *reversed(range(n_devices))] if case.schedule == "zbv" else [*range(n_devices)] * 2
    cluster = replace(desk(n_devices), replicas=Replicas(case.replicas, 1e9) if case.replicas > 1 else None)
    device = tuple(rows[sum(start <= i for start in starts)] for i in range(len(program.graph.ops)))
    workload = Workload(
        mode="training", batch=BATCH, micro_batches=case.micro_batches, schedule=case.schedule,
        recompute=case.trainer_options.recompute or "none",
    )  # fmt: skip
    plan = make_plan(program, Placement((0,) * len(device)), cluster)
    table = tabulate(program.graph, cluster, workload, {})
    return replace(plan, workload=workload, table=table, goal=Goal.TRAINING, placement=Placement(device))


def sgd(parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def work(cases: Sequence[Case], rank: int, n_ranks: int, port: int) -> list[Done]:
    """One rank, in its own process, one case after the other."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo", store=visited_store(port), rank=rank, world_size=n_ranks, timeout=timedelta(seconds=60)
    )
    try:
        return [rank_of(case, rank) for case in cases]
    finally:
        dist.destroy_process_group()


def rank_of(case: Case, rank: int) -> Done:
    """Gradients of a first step, and what becomes of the weights."""
    if case.folder:
        device = stage_layout(load_plan(Path(case.folder) / "plan.json")).devices[rank % case.n_devices]
        plan, program = read_shard(Path(case.folder), device.name)
    else:
        program = program_for(case)
        plan = plan_for(case, program)
    n_bytes = sum(tensor.nbytes for tensor in program.state.values() if not tensor.is_meta)
    gradients: dict[str, torch.Tensor | None] = {}
    losses = []
    with PipelineTrainer(plan, program, loss_of, sgd, case.trainer_options) as trainer:
        if case.resume:
            trainer.load_state_dict(saved_in(case.resume))
        for number in case.numbers:
            batch, target = data_of(case, number)
            parts = divide(program, BATCH, case.micro_batches * case.replicas, batch, target)
            losses.append(trainer._go_through(parts).item())
            summed = trainer._update(keeps=True)
            if number == case.begin:
                gradients = summed
        whole = part = None
        if case.save:
            whole, part = trainer.whole_state_dict(), trainer.state_dict()
            torch.save(part, Path(case.save) / f"{rank}.pt")
        return Done(gradients, losses, trainer.model_state_dict(), n_bytes, whole, part)


def saved_in(path: str) -> dict[str, Any]:
    """A state that was saved whole, or in parts."""
    files = sorted(Path(path).glob("*.pt")) if Path(path).is_dir() else [Path(path)]
    return join_states(torch.load(file, weights_only=True, mmap=True) for file in files)


def run(cases: Sequence[Case]) -> list[list[Done]]:
    """All ranks of each case; all cases have as many."""
    ranks = attempt(cases)
    errors = [error for rank in ranks if (error := rank.exception()) is not None]
    if errors:
        raise min(errors, key=lambda error: isinstance(error, RankError | BrokenProcessPool))
    return [list(dones) for dones in zip(*(rank.result() for rank in ranks), strict=True)]


def attempt(cases: Sequence[Case]) -> "list[Future[list[Done]]]":
    """What each rank has returned, or how it has failed."""
    (n_ranks,) = {case.n_ranks for case in cases}
    store = served_store()
    with ProcessPoolExecutor(n_ranks, CONTEXT) as pool:
        ranks = [pool.submit(work, cases, rank, n_ranks, store.port) for rank in range(n_ranks)]
        if wait(ranks, LIMIT_S, FIRST_EXCEPTION).not_done:
            wait(ranks, END_S)
            for process in pool._processes.values():  # one that waits for another
                process.kill()
        return ranks


def on_threads(case: Case) -> Done:
    """The same on devices that are threads of one process; what replicas do, one device does."""
    case = replace(case, micro_batches=case.micro_batches * case.replicas, replicas=1)
    program = program_for(case)
    losses = []
    with Trainer(plan_for(case, program), program, loss_of, sgd, case.trainer_options) as trainer:
        if case.resume:
            trainer.load_state_dict(saved_in(case.resume))
        for number in case.numbers:
            losses.append(trainer.step(*data_of(case, number)).item())
        return Done({}, losses, trainer.model_state_dict(), 0, trainer.state_dict())


def whole(case: Case) -> Done:
    """The same with the model itself, unsplit; for networks without chance."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # sums of floating-point numbers depend on it
    try:
        model = model_of(case)
        optimizer = sgd([parameter for parameter in model.parameters() if parameter.requires_grad])
        gradients: dict[str, torch.Tensor | None] = {}
        losses = []
        for number in range(1 + case.steps):
            batch, target = data_of(case, number)
            n_parts = 1 if case.ignores else case.micro_batches
            parts = zip(batch.chunk(n_parts), target.chunk(n_parts), strict=True)
            found = [loss_of(model(part), wanted) for part, wanted in parts]
            for loss in found:
                (loss / n_parts).backward()  # type: ignore[no-untyped-call]  # torch has no types
            losses.append(torch.stack(found).mean().item())
            if not number:
                gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
            optimizer.step()
            optimizer.zero_grad()
        return Done(gradients, losses, model.state_dict(), 0)
    finally:
        torch.set_num_threads(threads)
