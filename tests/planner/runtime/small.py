"""Small networks with everything that makes dividing hard, and plans for them made by hand."""

import gc
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, starmap
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  # its usual name

from costmodels.cluster.cluster import Cluster, Device, Link
from costmodels.host.affinity import run_on
from costmodels.tabulate import tabulate
from costmodels.workload import Workload
from graphs.importers.from_torch import program_from_module
from graphs.program.program import Program
from planner.plans.plan import Plan
from planner.problem.problem import Goal
from planner.problem.result import Status
from planner.runtime.inference.runner import Runner
from simulator.placement import Placement
from tests.graphs.importers.modules import Turned

T = TypeVar("T")

CORE = min(os.sched_getaffinity(0))
PATIENCE_S = 60.0  # a test that waits longer has found a deadlock


class Branches(nn.Module):
    """In-place operators, two branches, a skip connection over both."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.left = nn.Sequential(nn.Conv2d(4, 2, 1), nn.ReLU(inplace=True))
        self.right = nn.Sequential(nn.Conv2d(4, 2, 3, padding=1), nn.ReLU(inplace=True), nn.Dropout(0.5))
        self.head = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        y = torch.cat([self.left(x), self.right(x)], 1)
        y += x
        result: torch.Tensor = self.head(F.relu_(y).mean((2, 3)))
        return result


class Recurrent(nn.Module):
    """Operators with several outputs, some of which nobody reads."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 3)
        self.gru = nn.GRU(4, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        a, b, _ = torch.split(x, 4, dim=2)
        y, (h, _) = self.lstm(a)
        z, _ = self.gru(b)
        values, places = (y + z).topk(2)
        return values, (h.flatten(), places)


class Tied(nn.Module):
    """One weight for the embedding and for the scores; whole numbers as input."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(6, 4)
        self.inner = nn.Linear(4, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return F.linear(F.gelu(self.inner(self.words(ids))), self.words.weight)


class Handed(nn.Module):
    """Returns an input, a parameter, constants and a tensor twice, in a dictionary; one input is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(3.0))

    def forward(self, x: torch.Tensor, y: torch.Tensor, _unused: torch.Tensor) -> dict[str, Any]:
        total = (x + y) * self.weight
        return {"x": x, "weight": self.weight, "total": total, "again": [total, x], "none": None, "three": 3}


@dataclass
class Answer:
    """What `Options` returns."""

    scores: torch.Tensor
    shape: torch.Tensor


torch.export.register_dataclass(Answer)


class Options(nn.Module):
    """Arguments of all kinds: numbers, None, nested ones and keywords."""

    def forward(
        self,
        x: torch.Tensor,
        times: int,
        mask: torch.Tensor | None,
        *,
        shift: torch.Tensor,
        pair: dict[str, torch.Tensor],
    ) -> Answer:
        y = x * times + shift if mask is None else x * mask
        return Answer(y @ pair["a"] - pair["b"], y.T)


class Attention(nn.Module):
    """Views of views, tensors that are made on the way, a buffer and a constant that several operators read."""

    mask: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.qkv = nn.Linear(8, 24)
        self.register_buffer("mask", torch.ones(5, 5).tril().bool())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + torch.arange(5, device=x.device)[:, None] * torch.tensor([0.5], device=x.device)
        q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask)
        scores = torch.where(self.mask, q @ k.mT, torch.zeros(5, 5, device=x.device))
        y = y.transpose(1, 2).flatten(2)
        y[:, 0] = scores.sum((1, 2, 3))[:, None]
        return y + x


class Halves(nn.Module):
    """Complex numbers of halves: a parameter, a buffer, a constant, and what is between operators."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8, dtype=torch.float16)
        self.weight = nn.Parameter(torch.randn(3, 4, dtype=torch.complex32))
        self.turn = nn.Buffer(torch.randn(4, dtype=torch.complex32))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.view_as_complex(self.layer(x).unflatten(-1, (4, 2)))
        z = y * self.turn + self.weight * torch.tensor([1j, 1, -1, 2], dtype=torch.complex32)
        return torch.view_as_real(z.mT.contiguous()).sin(), z.conj()


class Nothing(nn.Module):
    """No operator at all."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


Arguments = tuple[tuple[Any, ...], dict[str, Any]]

NETWORKS: Mapping[str, tuple[type[nn.Module], Callable[[], Arguments]]] = {
    "branches": (Branches, lambda: ((torch.randn(2, 3, 4, 4),), {})),
    "recurrent": (Recurrent, lambda: ((torch.randn(4, 1, 12),), {})),
    "tied": (Tied, lambda: ((torch.randint(6, (1, 5)),), {})),
    "handed": (Handed, lambda: ((torch.randn(2, 3), torch.randn(3), torch.ones(1)), {})),
    "options": (
        Options,
        lambda: (
            (torch.randn(2, 3), 2, None),
            {"shift": torch.randn(3), "pair": {"a": torch.randn(3, 4), "b": torch.randn(4)}},
        ),
    ),
    "attention": (Attention, lambda: ((torch.randn(2, 5, 8),), {})),
    "turned": (Turned, lambda: ((torch.randn(2, 3, 16),), {})),
    "halves": (Halves, lambda: ((torch.randn(3, 8).half(),), {})),
    "nothing": (Nothing, lambda: ((torch.randn(2),), {})),
}


@cache
def program_of(name: str) -> Program:
    """A network of `NETWORKS`, imported."""
    make, arguments = NETWORKS[name]
    torch.manual_seed(0)
    args, kwargs = arguments()
    return program_from_module(make().eval(), args, kwargs)


def fresh_arguments(name: str, seed: int) -> Arguments:
    """Other values of the same form."""
    torch.manual_seed(seed)
    return NETWORKS[name][1]()


def cpu(name: str, cores: tuple[int, ...] = (CORE,)) -> Device:
    """A device of this host; several may share a processor."""
    return Device(name, "cpu", 2**30, {"float32": 1e9}, 1e9, cores=cores)


def desk(n_devices: int = 3) -> Cluster:
    """Devices cpu0, cpu1, ... that hand tensors over without a copy."""
    devices = tuple(cpu(f"cpu{i}") for i in range(n_devices))
    links = tuple(Link(a.name, b.name, float("inf")) for a in devices for b in devices if a is not b)
    return Cluster("desk", devices, links)


def make_plan(
    program: Program, placement: Placement, cluster: Cluster | None = None, in_flight: int = 4, goal: str = "throughput"
) -> Plan:
    """A plan that nobody searched for."""
    cluster = cluster or desk()
    workload = Workload(batch=2, in_flight=in_flight)
    table = tabulate(program.graph, cluster, workload, {})
    placement.check(table)
    return Plan(
        graph=program.graph,
        cluster=cluster,
        workload=workload,
        table=table,
        goal=Goal(goal),
        placement=placement,
        status=str(Status.FEASIBLE),
        solver="by hand",
        bound_s=0.0,
    )


def alternating(program: Program, n_devices: int = 3) -> Placement:
    """Every operator on another device than the one before."""
    return Placement(tuple(i % n_devices for i in range(len(program.graph.ops))))


def divided(name: str, in_flight: int = 4) -> Runner:
    """A runner of a network of which every operator is on another device than the one before."""
    program = program_of(name)
    return Runner(make_plan(program, alternating(program), in_flight=in_flight), program)


def reference(program: Program, arguments: Arguments) -> Any:
    """What the model itself returns, on one core."""
    args, kwargs = arguments
    return run_on(cpu("reference"), lambda: program.module(*args, **kwargs))


def with_device(plan: Plan, i: int, device: Device) -> Plan:
    """The same plan with another device i."""
    devices = (*plan.cluster.devices[:i], device, *plan.cluster.devices[i + 1 :])
    return replace(plan, cluster=Cluster("odd", devices, plan.cluster.links))


def begin(work: Callable[[], T]) -> "Future[T]":
    """Call a function on a thread of its own; wait for it with ``result(PATIENCE_S)``, so that a deadlock is seen."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return done


def eventually(condition: Callable[[], bool], seen: Callable[[], str] = str) -> None:
    """Wait until something that another thread does has been done, however long one look at it takes.

    If it is not done in time, the failure says what is seen instead.
    """
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, f"not within {PATIENCE_S:.0f} s {seen()}"
        time.sleep(0.001)


def live_tensors() -> int:
    """How many tensors Python holds.

    The objects are asked for inside one call that no other thread can interrupt: `gc.get_objects` also holds the tuples
    that other threads are building just then, and a tuple that somebody else holds cannot be built further.
    """
    gc.collect()
    kinds = list(map(type, chain.from_iterable(starmap(gc.get_objects, [()]))))
    return sum(issubclass(kind, torch.Tensor) for kind in kinds)


def settled(count: int) -> bool:
    """Whether no more tensors are left, once the devices have put theirs away."""
    pause = threading.Event()
    return any(live_tensors() <= count or pause.wait(0.01) for _ in range(2000))


def device_threads() -> list[str]:
    """Names of the runtime's threads that are alive."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("device-")]
