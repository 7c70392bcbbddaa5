"""Costs of a network whose layers a group shares: by hand, for a column, a row and what lies between them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from costmodels.cluster.cluster import Cluster, Device, Replicas
from costmodels.cluster.fabric import fabric_of
from costmodels.cluster.links import Level
from costmodels.table import CostTable
from costmodels.tabulate import tabulate
from costmodels.workload import RECOMPUTE_MODES, ZERO_STAGES, RecomputeMode, Workload
from graphs.importers.from_torch import program_from_module
from planner.parallelism.closed_form.half_precision import in_bfloat16
from planner.parallelism.closed_form.memory import ADAM, zero_states
from planner.parallelism.closed_form.shared_costs import SharedNetwork, ZeroStage
from simulator.training import stage_costs

WORK = Workload("training", batch=4, optimizer="adam")
PAIR = Cluster(
    "pair", tuple(Device(f"d{n}", "gpu", 1e9, {"float32": 1e9}, 1e18) for n in range(2)), levels=(Level(2, 1e6, 1e-3),)
)
GRAPH = program_from_module(
    nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)), (torch.ones(4, 8),), training=True
).graph
TABLE = tabulate(GRAPH, PAIR.divided(2), WORK, {})


def shared(tensor: int, zero: ZeroStage = ZeroStage()) -> CostTable:  # noqa: B008 - a constant
    network = SharedNetwork.of(GRAPH, tensor)
    assert network is not None
    return network.costs(TABLE, fabric_of(PAIR), np.zeros(1), WORK, zero)


def test_two_devices_do_half_of_columns_and_rows_and_add_up_the_results() -> None:
    halved = shared(2)
    column, between, row = range(3)
    reduce_s = 2 * (1e-3 + 4 * 8 * 4 / 2 / 1e6)  # a ring of two over the 4 x 8 results in float32
    assert halved.forward_s[:, 0] == pytest.approx(
        [TABLE.forward_s[column, 0] / 2, TABLE.forward_s[between, 0] / 2, TABLE.forward_s[row, 0] / 2 + reduce_s]
    )
    assert halved.backward_s[:, 0] == pytest.approx(TABLE.backward_s[:, 0] / 2)  # the caller's input has no gradient
    assert halved.update is not None
    weights, biases = 4 * 2 * 128, (4 * 16, 4 * 8)
    assert halved.update.gradient_bytes.sum() == weights / 2 + biases[0] / 2 + biases[1]  # the bias of rows is whole
    assert halved.together == ((column, between, row),)


def test_three_devices_share_nothing_of_it() -> None:
    assert SharedNetwork.of(GRAPH, 3) is None


@pytest.mark.parametrize(("stage", "parts"), [(1, (1, 1, 0.5)), (2, (1, 0.5, 0.5)), (3, (0.5, 0.5, 0.5))])
def test_zero_divides_states_and_sends_them_for_each_micro_batch(stage: int, parts: tuple[float, ...]) -> None:
    """Parameters, gradients, moments; a ring's halves are a reduce-scatter and an all-gather."""
    divided = shared(1, ZeroStage(stage, 2))
    assert TABLE.update is not None
    assert divided.update is not None
    n_bytes = TABLE.update.gradient_bytes.sum()
    rest = TABLE.op_bytes.sum() - 4 * n_bytes  # Adam's counters
    assert divided.op_bytes.sum() - rest == pytest.approx(n_bytes * (parts[0] + parts[1] + 2 * parts[2]))
    assert divided.update.optimizer_s_per_byte == pytest.approx(TABLE.update.optimizer_s_per_byte / 2)
    ops = range(3)
    once_s, whole_s = divided.update.sync_s(ops, 0), TABLE.update.sync_s(ops, 0)
    assert once_s == pytest.approx(whole_s * {1: 1, 2: 0.5, 3: 0}[stage])
    longer_s = (divided.backward_s - TABLE.backward_s).sum()
    assert longer_s > 0 if stage > 1 else longer_s == 0
    assert (divided.forward_s.sum() > TABLE.forward_s.sum()) == (stage == 3)


def test_what_zero_sends_for_each_micro_batch_shares_the_uplink() -> None:
    """Both groups of a host send all the time, so that each has half of the uplink."""
    hosts = Cluster(
        "hosts",
        tuple(Device(f"d{n}", "gpu", 1e9, {"float32": 1e9}, 1e18) for n in range(4)),
        levels=(Level(2, 1e6, 1e-3), Level(4, 1e3)),
    )
    network = SharedNetwork.of(GRAPH, 1)
    assert network is not None
    part = hosts.divided(2)
    assert part.replicas == Replicas(2, 1e3, rings=2)
    seconds = []
    for ring in (part.replicas, Replicas(2, 0.5e3)):
        table = tabulate(GRAPH, replace(part, replicas=ring), WORK, {})
        costs = network.costs(table, fabric_of(hosts), np.zeros(2), WORK, ZeroStage(2, 2))
        seconds.append((costs.backward_s - table.backward_s).sum())
    assert seconds[0] == pytest.approx(seconds[1])
    assert seconds[0] > 0


@pytest.mark.parametrize("gradients", [2, 4])
@pytest.mark.parametrize("stage", ZERO_STAGES)
def test_in_bfloat16_states_are_those_of_mixed_precision(stage: int, gradients: int) -> None:
    """Parameters of 2 bytes, and 12 of Adam: parameters and two moments in float32."""
    graph = in_bfloat16(GRAPH)
    network = SharedNetwork.of(graph, 1)
    assert network is not None
    table = tabulate(graph, PAIR.divided(2), WORK, {})
    zero = ZeroStage(stage, 2, gradients / 2, 2.0)
    costs = network.costs(table, fabric_of(PAIR), np.zeros(1), WORK, zero)
    parameters = 2 * 128 + 16 + 8
    counters = 4 * 4
    assert costs.op_bytes.sum() == pytest.approx(counters + zero_states(parameters, 2, stage, ADAM, gradients))
    assert TABLE.update is not None
    assert costs.update is not None
    sent = {0: 2 * gradients, 1: gradients + 2, 2: 2, 3: 0}[stage]  # of each parameter, out of 8 bytes in float32
    whole_s = TABLE.update.sync_s_per_byte * 4 * parameters
    assert costs.update.sync_s_per_byte * costs.update.gradient_bytes.sum() == pytest.approx(sent / 8 * whole_s)
    step_s = costs.update.optimizer_s(range(3), 0)
    assert step_s == pytest.approx(TABLE.update.optimizer_s(range(3), 0) / (2 if stage else 1))
    assert (
        costs.trained.saved_bytes.sum() < 0.75 * TABLE.trained.saved_bytes.sum()
    )  # the caller's input stays in float32


class Block(nn.Module):
    """A layer whose result is a sum, which no product has written."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(8, 32, bias=False), nn.Linear(32, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = x + self.narrow(torch.tanh(self.wide(x)))
        return result


@pytest.mark.parametrize("recompute", RECOMPUTE_MODES)
def test_layers_run_again_one_by_one(recompute: RecomputeMode) -> None:
    """Three layers of 4 samples between two linear layers, by hand; autograd saves of a layer x and tanh's result.

    A waiting micro-batch keeps what the first and the last linear layer read, the result, and of each layer x, with
    products' results (32 and 8 wide) if these run once. The layer that runs again saves x and tanh's result.
    """
    blocks = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Sequential(*(Block() for _ in range(3))), nn.Linear(8, 8))
    graph = program_from_module(blocks, (torch.ones(4, 8),), training=True).graph
    network = SharedNetwork.of(graph, 1)
    assert network is not None
    assert len(network.layers.layers) == 3
    table = network.costs(tabulate(graph, PAIR.first(1), WORK, {}), fabric_of(PAIR), np.zeros(1), WORK)
    (cost,) = stage_costs(table, [range(table.n_ops)], [0], recompute)
    wide, narrow = 4 * 32 * 4, 4 * 8 * 4
    none = 3 * (narrow + wide) + 3 * narrow
    assert stage_costs(table, [range(table.n_ops)], [0])[0].saved_bytes == none
    layers = {"none": none - 3 * narrow, "selective": 3 * (narrow + wide + narrow), "full": 3 * narrow}
    assert cost.saved_bytes == layers[recompute] + 3 * narrow
    assert cost.recomputed_bytes == (0 if recompute == "none" else narrow + wide)
    own = [op for layer in network.layers.layers for op in layer]
    assert {"none": [], "selective": [op for op in own if not table.trained.runs_once[op]], "full": own}[recompute] == (
        np.flatnonzero(table.again_s(recompute)[:, 0]).tolist()
    )
