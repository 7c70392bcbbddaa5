"""Small networks with a placement by module, as a plan."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from costmodels.cluster.cluster import Cluster, Device, Link
from costmodels.tabulate import tabulate
from costmodels.workload import Workload
from graphs.importers.from_torch import program_from_module
from graphs.ir import Graph
from planner.exports.device_map import op_devices
from planner.plans.plan import Plan
from planner.problem.problem import Goal
from simulator.placement import Placement

X = torch.ones(2, 8)


def cluster(**kinds: str) -> Cluster:
    """Devices on paper by name, each linked with each."""
    names = list(kinds)
    devices = tuple(Device(name, kind, 1e9, {"float32": 1e9}, 1e12) for name, kind in kinds.items())
    return Cluster("paper", devices, tuple(Link(a, b, 1e9) for a in names for b in names if a != b))


CPUS = cluster(cpu0="cpu", cpu1="cpu", cpu2="cpu")
GPUS = cluster(gpu0="A100", gpu1="A100", gpu2="V100")
MIXED = cluster(gpu0="A100", host="cpu")


def graph_of(module: nn.Module, *inputs: Tensor) -> Graph:
    return program_from_module(module, inputs or (X,)).graph


def plan_of(
    graph: Graph, device: Mapping[str, int] | tuple[int, ...], on: Cluster = CPUS, workload: Workload | None = None
) -> Plan:
    """A plan with each module, or each operator, where the test says."""
    workload = workload or Workload(batch=2)
    placed = device if isinstance(device, tuple) else op_devices(graph, device)
    return Plan(
        graph=graph,
        cluster=on,
        workload=workload,
        table=tabulate(graph, on, workload, {}),
        goal=Goal.TRAINING if workload.trains else Goal.THROUGHPUT,
        placement=Placement(placed),
        status="feasible",
        solver="exhaustive",
        bound_s=0.0,
    )


class Block(nn.Module):
    """y = x + down(relu(up(x)))."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.down(torch.relu(self.up(x)))
        return y


class Decoder(nn.Module):
    """Like a language model: embedding, a list of blocks, a norm and a head."""

    def __init__(self, n_layers: int = 4) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 8)
        self.layers = nn.ModuleList(Block() for _ in range(n_layers))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        y: Tensor = self.head(torch.tanh(self.norm(x)))
        return y


def chain(n_layers: int = 4) -> nn.Sequential:
    """Linear layers with an activation behind each."""
    layers = [layer for _ in range(n_layers) for layer in (nn.Linear(8, 8), nn.ReLU())]
    return nn.Sequential(*layers[:-1])
