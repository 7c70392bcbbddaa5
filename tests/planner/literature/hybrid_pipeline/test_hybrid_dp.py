"""The search for hybrid pipelines, against all pipelines, and the published ones."""

import json
from collections.abc import Iterator
from itertools import product
from math import inf
from pathlib import Path

import pytest

from planner.literature.hybrid_pipeline.hybrid_dp import solve_hybrid
from planner.literature.hybrid_pipeline.network import HybridNetwork, hybrid_network
from planner.literature.hybrid_pipeline.stages import HybridStage, loads_of
from planner.literature.hybrid_pipeline.tables import MOST_DOWNSETS
from planner.problem.result import Status
from tests.planner.literature.hybrid_pipeline.networks import drawn, network

PIPER = Path(__file__).parents[5] / ".." / "shared" / "bench" / "piper" / "bert32a100.json"
GIB = 2**30


def cuts(net: HybridNetwork) -> Iterator[list[list[int]]]:
    """Every way to put the nodes into stages that follow one another."""
    n = len(net.node_ids)
    for stage_of in product(range(n), repeat=n):
        used = max(stage_of) + 1
        ordered = all(stage_of[u] <= stage_of[v] for u, v, _ in net.edges)
        if set(stage_of) == set(range(used)) and ordered:
            yield [[node for node in range(n) if stage_of[node] == stage] for stage in range(used)]


def stages_of(net: HybridNetwork, nodes: list[int]) -> list[HybridStage]:
    """Every way to run a stage."""
    found = []
    for tensor in net.degrees:
        if all(tensor in net.sharing[node] for node in nodes):
            variants = [range(len(net.sharing[node][tensor].variants)) for node in nodes]
            for data in range(1, net.devices // tensor + 1):
                if net.micro_batches % data == 0:
                    chosen = product(*variants)
                    found += [HybridStage(dict(zip(nodes, pick, strict=True)), data, tensor) for pick in chosen]
    return found


def best_s(net: HybridNetwork) -> float:
    """The least time of all pipelines."""
    best = inf
    for cut in cuts(net):
        if len(cut) > net.devices:
            continue
        for stages in product(*(stages_of(net, nodes) for nodes in cut)):
            copies = sum(stage.data for stage in stages)
            if sum(stage.data * stage.tensor for stage in stages) > net.devices or copies > net.micro_batches:
                continue
            loads = loads_of(net, stages)
            if max(load.memory_bytes for load in loads) <= net.memory_bytes:
                best = min(best, max(load.time_s for load in loads))
    return best


@pytest.mark.parametrize("seed", range(25))
def test_no_pipeline_is_faster(seed: int) -> None:
    net = hybrid_network(drawn(seed))
    result = solve_hybrid(net)
    expected_s = best_s(net)
    assert result.time_s == pytest.approx(expected_s, rel=1e-9)
    assert result.bound_s <= expected_s
    if result.stages is None:
        assert (expected_s, result.status) == (inf, Status.INFEASIBLE)
    else:
        loads = loads_of(net, result.stages)
        assert max(load.memory_bytes for load in loads) <= net.memory_bytes
        assert max(load.time_s for load in loads) == result.time_s


def test_a_stage_that_is_copied() -> None:
    """3 s and 1 s on four devices: three copies of the first; N = 3 and free parameters and transfers."""
    document = network([3.0, 1.0], [(0, 1)], maxDevices=4, mbsInBatch=12, bandwidth=1e30, maxMemoryPerDevice=1e9)
    result = solve_hybrid(hybrid_network(document))
    assert result.time_s == pytest.approx(1.0)  # 4 s on four copies of both; or 3 copies of the first beside the second
    assert result.status is Status.OPTIMAL


def test_what_costs_nothing_takes_no_time() -> None:
    document = network([0.0, 0.0, 0.0], [(0, 1), (1, 2)], maxDevices=3, bandwidth=1e30, maxMemoryPerDevice=1e9)
    result = solve_hybrid(hybrid_network(document))
    assert (result.status, result.bound_s) == (Status.OPTIMAL, 0.0)
    assert result.time_s == pytest.approx(0.0, abs=1e-18)


@pytest.mark.parametrize("nodes", [MOST_DOWNSETS.bit_length(), 40])
def test_of_too_many_cuts_some_are_tried(nodes: int) -> None:
    """Equal nodes beside each other: their own order is as good as any."""
    document = network([1.0] * nodes, [], maxDevices=4, mbsInBatch=12, bandwidth=1e30, maxMemoryPerDevice=1e9)
    net = hybrid_network(document)
    result = solve_hybrid(net)
    assert result.stages is not None
    assert not result.complete
    assert result.time_s == pytest.approx(nodes / 4)  # four copies of everything, or a quarter on each
    assert result.bound_s <= result.time_s
    assert max(load.time_s for load in loads_of(net, result.stages)) == result.time_s
    assert sorted(node for stage in result.stages for node in stage.variant) == list(range(nodes))


def test_many_nodes_in_a_line_and_branches_have_a_gap_and_no_refusal() -> None:
    """Three branches of 20 nodes can be cut in 21 ** 3 ways; the memory holds a quarter of all."""
    edges = [(3 * i + branch, 3 * i + branch + 3) for i in range(19) for branch in range(3)]
    document = network([1.0] * 60, edges, maxDevices=4, mbsInBatch=12, bandwidth=1e30, maxMemoryPerDevice=1e9)
    result = solve_hybrid(hybrid_network(document))
    assert (result.complete, result.status) == (False, Status.OPTIMAL)  # the bound of busy devices proves it
    assert result.time_s == pytest.approx(15.0)


@pytest.mark.parametrize("seed", range(25))
def test_what_some_of_the_cuts_give_is_a_pipeline_and_its_bound_holds(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planner.literature.hybrid_pipeline.hybrid_dp.MOST_DOWNSETS", 4)
    net = hybrid_network(drawn(seed))
    result, expected_s = solve_hybrid(net), best_s(net)
    assert result.bound_s <= expected_s * (1 + 1e-9)
    if result.stages is None:
        assert result.status is Status.UNKNOWN or (expected_s, result.status) == (inf, Status.INFEASIBLE)
    else:
        loads = loads_of(net, result.stages)
        assert max(load.memory_bytes for load in loads) <= net.memory_bytes
        assert expected_s * (1 - 1e-9) <= max(load.time_s for load in loads) == result.time_s


def test_where_there_is_no_room_for_all_stages_fewer_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.literature.hybrid_pipeline.tables.MOST_TIMES", 200)
    edges = [(i, i + 1) for i in range(29)]
    document = network([1.0] * 30, edges, maxDevices=4, mbsInBatch=12, bandwidth=1e30, maxMemoryPerDevice=1e9)
    result = solve_hybrid(hybrid_network(document))
    assert not result.complete
    assert result.time_s == pytest.approx(7.5)


@pytest.mark.skipif(not PIPER.exists(), reason="the published network is not beside the repository")
@pytest.mark.parametrize(
    ("devices", "memory_gib", "micro_batches", "published_s"),
    [(8, 8, 1920, 0.16585575), (16, 8, 1920, 0.0829622169611), (64, 2, 1920, 0.0320300812349)],
)
def test_published_pipelines(devices: int, memory_gib: int, micro_batches: int, published_s: float) -> None:
    document = json.loads(PIPER.read_text()) | {"maxDevices": devices, "mbsInBatch": micro_batches}
    document |= {"maxMemoryPerDevice": memory_gib * GIB, "bandwidth": 25 * GIB}
    result = solve_hybrid(hybrid_network(document))
    assert result.status is Status.OPTIMAL
    assert result.time_s <= published_s * (1 + 1e-11)
