"""Which operators are split: layouts and their prices by hand, and Megatron's divisions found unprompted."""

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import planner
from costmodels.cluster.cluster import Cluster, Device, Link
from costmodels.tabulate import tabulate
from costmodels.workload import Workload
from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module
from graphs.program.program import Program
from graphs.rewrites.sharding import Shard
from graphs.rewrites.split import Split
from planner.planning.sharding_search import SplitSearch
from planner.planning.splitting import Splits
from planner.planning.team import EVERYWHERE, SUMMED, WHOLE, Held, Overlapping, Team
from planner.plans.files import plan_from_dict, plan_to_dict
from planner.problem.constraints import Constraint, pin
from planner.runtime.benchmark.check import compare_outputs
from tests.planner.runtime.small import cpu

FAST = 100e9  # bytes a second, of links


def pair(n: int = 2, memory_bytes: float = 1e12, latency_s: float = 1e-6) -> Cluster:
    """Equal devices on paper with fast links, on which arithmetic takes all the time."""
    devices = tuple(Device(f"gpu{i}", "gpu", memory_bytes, {"float32": 1e10}, 1e12) for i in range(n))
    links = tuple(Link(a.name, b.name, FAST, latency_s) for a in devices for b in devices if a is not b)
    return Cluster("pair", devices, links)


class Block(nn.Module):
    """The feed-forward part of a transformer's layer."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.down(functional.gelu(self.up(x)))
        return y


class Attention(nn.Module):
    """Attention by heads."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(64, 64) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (each(x).view(1, 16, 4, 16).transpose(1, 2) for each in (self.query, self.key, self.value))
        y: torch.Tensor = self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(1, 16, 64))
        return y


def imported(module: nn.Module, *shape: int) -> Program:
    torch.manual_seed(0)
    return program_from_module(module.eval(), (torch.randn(shape or (1, 16, 64)),), name="net")


def splitting(program: Program, cluster: Cluster) -> SplitSearch:
    graph = program.graph
    found = SplitSearch.of(graph, graph, tabulate(graph, cluster, Workload(), {}), cluster)
    assert found is not None
    return found


def chosen(program: Program, cluster: Cluster) -> dict[str, str]:
    split = splitting(program, cluster).found(10.0)
    assert split is not None
    assert {parts for _, parts in split.choices.values()} == {len(cluster.devices)}
    return {name: sharding for name, (sharding, _) in split.choices.items()}


def test_prices_of_layouts() -> None:
    """A tensor of 1 MB between two devices of 1e12 bytes/s with links of 1e11 bytes/s and 1 us."""
    team = Team.of(pair())
    assert team is not None
    mb, rows = 1e6, Shard(1)
    moved_s: dict[tuple[Held, Held], float] = {
        (WHOLE, WHOLE): 0,
        (WHOLE, EVERYWHERE): 11e-6,  # the other device gets all of it
        (WHOLE, rows): 6e-6,  # or its half
        (EVERYWHERE, rows): 0,
        (EVERYWHERE, WHOLE): 0,
        (rows, rows): 0,
        (rows, EVERYWHERE): 6e-6 + 2e-6,  # halves are sent and put together
        (rows, Shard(2)): 3.5e-6 + 1e-6,  # quarters
        (rows, Overlapping(rows, 0.1)): 2e-6 + 1e-6,
        (SUMMED, WHOLE): 11e-6 + 3e-6,
        (SUMMED, EVERYWHERE): 11e-6 + 3e-6,
        (SUMMED, rows): 6e-6 + 1.5e-6,
    }
    for (written, read), expected_s in moved_s.items():
        assert team.relaid_s(written, read, mb) == pytest.approx(expected_s), (written, read)


def test_the_feed_forward_part_is_divided_by_columns_and_then_by_rows() -> None:
    """As Megatron-LM does (Shoeybi et al., arXiv 1909.08053): one sum at the end, nothing between.

    A bias is added once. Columns then rows send 4 kB once; rows of the batch would send the same, but read all weights.
    """
    cluster = pair(latency_s=0.0)
    slow = replace(cluster, devices=tuple(replace(each, memory_bytes_per_s=1e8) for each in cluster.devices))
    found = chosen(imported(Block()), slow)
    assert (found["linear"], found["linear_1"]) == ("output features", "input features")


def test_attention_is_divided_by_heads() -> None:
    cluster = pair(latency_s=0.0)
    slow = replace(cluster, devices=tuple(replace(each, memory_bytes_per_s=1e8) for each in cluster.devices))
    found = chosen(imported(Attention()), slow)
    assert found["scaled_dot_product_attention"] == "heads"
    assert [found[name] for name in ("linear", "linear_1", "linear_2", "linear_3")] == [
        *["output features"] * 3,
        "input features",
    ]


@pytest.mark.parametrize("latency_s", [0.0, 1e-6, 1e-5, 1e-3])
def test_no_other_choice_costs_less(latency_s: float) -> None:
    """All choices of a small network, priced one by one."""
    found = splitting(imported(nn.Sequential(nn.Linear(8, 64), nn.Linear(64, 8)), 4, 8), pair(latency_s=latency_s))
    sizes = [range(len(cost)) for cost in found.problem.node_cost]
    least = min(map(found.problem.cost, product(*sizes)))
    split = found.found(10.0)
    whole_s = float(found.seconds.sum())
    assert (split is None) == (least > 0.98 * whole_s)
    assert split is not None or latency_s > 0


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("make", [Block, Attention])
def test_a_split_plan_is_sooner_and_computes_the_same(make: Callable[[], nn.Module], n: int) -> None:
    """Part i of every operator is on device i, and the prediction is near the ideal."""
    program = imported(make())
    plan = planner.plan(program, cluster=pair(n), goal="latency")
    assert [type(rewrite) for rewrite in plan.rewrites] == [Split]
    whole_s = float(splitting(program, pair(n)).seconds.sum())
    assert whole_s / plan.latency_s > 0.8 * n
    assert plan.times_one_device == pytest.approx(whole_s / plan.latency_s)  # of the network, not of its parts
    assert plan_from_dict(plan_to_dict(plan)).times_one_device == plan.times_one_device
    devices = tuple(cpu(f"gpu{i}") for i in range(n))
    here = replace(plan, cluster=replace(plan.cluster, devices=devices))
    with planner.start(here, program) as runner:
        answers = compare_outputs(runner)
    assert not answers.wrong


def test_a_layer_that_no_device_holds_is_divided() -> None:
    """Without being asked, whatever the goal is: 64 kB of weights on devices of 48 kB."""
    program = imported(nn.Sequential(nn.Linear(64, 256, bias=False)), 1, 64)
    small = pair(memory_bytes=48e3)
    with pytest.raises(planner.NoPlanError):
        planner.plan(program, cluster=small, search=planner.Search(rewrites="none"))
    for goal in ("throughput", "latency"):
        plan = planner.plan(program, cluster=small, goal=goal)
        assert plan.evaluation.feasible
        assert max(plan.evaluation.memory_bytes) < 48e3


def test_nothing_is_split_where_that_does_not_pay() -> None:
    program = imported(Block())
    assert planner.plan(program, cluster=pair(latency_s=1.0), goal="latency").rewrites == ()
    assert planner.plan(program, cluster=pair(), goal="throughput").rewrites == ()
    assert planner.plan(program, cluster=pair().first(1), goal="latency").rewrites == ()


def test_parts_that_were_not_measured_take_their_share_of_what_was() -> None:
    program = imported(nn.Sequential(nn.Linear(64, 256, bias=False)), 1, 64)
    cluster = pair()
    table = tabulate(program.graph, cluster, Workload(), {})
    known = replace(table, forward_s=np.full((1, 2), 1.0), source=np.full((1, 2), "measured"))
    splits = Splits.of(program.graph, program.graph, known, cluster)
    assert splits is not None
    request = planner.plan(program, cluster=cluster, goal="latency", search=planner.Search(rewrites="none"))
    parts = replace(request, graph=splits.graph, table=tabulate(splits.graph, cluster, Workload(), {}))
    costed = splits.with_costs(parts.task).table
    numbers = [number for number, op in enumerate(splits.graph.ops) if op.name.startswith("linear[")]
    assert costed.forward_s[numbers] == pytest.approx(0.5, rel=0.02)
    assert set(costed.source[numbers].flat) == {"learned"}


@pytest.mark.parametrize(
    ("cluster", "goal", "constraints", "text"),
    [
        (pair(), "training", (), "the rewrite 'split' is for inference without constraints, and the goal is training"),
        (pair(), "latency", (pin("linear", "gpu0"),), "without constraints, and there are constraints; leave"),
        (replace(pair(), links=()), "latency", (), "no links lead from 'gpu0' to 'gpu1' and back; add a [[link]] to"),
    ],
)
def test_what_does_not_go_with_splits(
    cluster: Cluster, goal: str, constraints: tuple[Constraint, ...], text: str
) -> None:
    torch.manual_seed(0)
    program = program_from_module(Block(), (torch.randn(1, 16, 64),), name="net", training=goal == "training")
    search = planner.Search(rewrites="split")
    with pytest.raises(InputError, match=re.escape(text)):
        planner.plan(program, cluster=cluster, goal=goal, constraints=constraints, search=search)


def test_what_parts_take_changes_the_choice() -> None:
    """Products by columns then rows are chosen, turn out ten times as slow, and others are."""
    cluster = pair(latency_s=0.0)
    slow = replace(cluster, devices=tuple(replace(each, memory_bytes_per_s=1e8) for each in cluster.devices))
    graph = imported(Block()).graph
    splits = Splits.of(graph, graph, tabulate(graph, slow, Workload(), {}), slow)
    assert splits is not None
    table = tabulate(splits.graph, slow, Workload(), {})
    assert splits.again(splits.graph, table, 10.0) is None  # as it was thought
    slowed = np.array([10.0 if "linear" in op.name else 1.0 for op in splits.graph.ops])[:, None]
    again = splits.again(splits.graph, replace(table, forward_s=table.forward_s * slowed), 10.0)
    assert again is not None
    assert again.split.choices.get("linear", ("", 2))[0] != "output features"
    assert again.split.choices.get("linear_1", ("", 2))[0] != "input features"
