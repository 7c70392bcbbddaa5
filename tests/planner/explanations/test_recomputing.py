"""What `explain` says of recomputation, by hand: three linear layers and two of tanh on two devices."""

import pytest
import torch
from torch import nn

from costmodels.cluster.cluster import Cluster, Device
from costmodels.cluster.links import Level
from costmodels.workload import RecomputeMode, Workload
from graphs.importers.from_torch import program_from_module
from planner.cli.explain_ import explanation_lines
from planner.explanations.explain import explain
from planner.explanations.recomputing import RecomputationEffect, recomputed
from planner.planning.find_plan import plan
from planner.planning.make_plan import Search
from planner.plans.plan import Plan

BYTES = 4 * 4  # of each feature of 4 samples


def trained(recompute: RecomputeMode) -> Plan:
    layers = (nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 8))
    graph = program_from_module(nn.Sequential(*layers), (torch.ones(4, 8),), training=True).graph
    devices = tuple(Device(f"d{n}", "gpu", 1e9, {"float32": 1e9}, 1e18) for n in range(2))
    cluster = Cluster("pair", devices, levels=(Level(2, 1e9, 0.0),))
    work = Workload("training", batch=4, micro_batches=4, recompute=recompute)
    search = Search(time_limit_s=5.0, gap=0.0, rewrites="none")
    return plan(graph, cluster=cluster, goal="training", workload=work, search=search)


def test_without_recomputation_there_is_nothing_to_say() -> None:
    assert recomputed(trained("none")) is None


@pytest.mark.parametrize("mode", ["selective", "full"])
def test_it_says_what_is_kept_and_what_runs_again(mode: RecomputeMode) -> None:
    """The network's input and result have 8 features, results of linear layers 32 and 32; autograd keeps x and tanh's.

    The last linear layer's result is the network's. Tanh runs again in either mode, linear layers with "full".
    """
    own = trained(mode)
    found = recomputed(own)
    assert isinstance(found, RecomputationEffect)
    assert found.saved_bytes == (8 + 32 + 32 + 8) * BYTES
    assert found.kept_bytes == (8 + 8 + (32 + 32 if mode == "selective" else 0)) * BYTES
    assert found.kept == ((("aten.linear", 3),) if mode == "selective" else ())
    assert dict(found.again) == {"aten.tanh": 2} | ({} if mode == "selective" else {"aten.linear": 3})
    assert (found.step_s, found.plain_step_s) == (own.objective_s, found.plain_step_s)
    assert found.step_s > found.plain_step_s
    assert found.again_s == pytest.approx(
        sum(own.costs.again_s(mode)[op, d] for op, d in enumerate(own.placement.device))
    )
    told = "\n".join(explanation_lines(explain(own), 0))
    assert f"Recomputation: {mode}" in told
    assert "Runs again: 3 aten.linear, 2 aten.tanh" in told or mode == "selective"
    assert "and the fullest device holds" in told.replace("\n", " ")
