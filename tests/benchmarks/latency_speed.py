"""How many placements a second the search for latency evaluates, and how far it gets below the list schedulers.

    python -m tests.benchmarks.latency_speed [--quick] [--json FILE]

A random graph of 1,000 operators on 8 devices: every operator but the last writes one tensor for up to three of the
next twenty. Three placements: every operator on a device by chance, runs of ten operators, eight blocks. Seconds are
those of the processor, which other processes do not lengthen. The search gets a graph of 150 operators on 4 devices and
ten seconds.
"""

import argparse
import sys
from collections.abc import Callable
from time import process_time

import numpy as np

from costmodels.table import CostTable, Source
from graphs.common.arrays import Ints
from graphs.ir import Flow
from planner.problem.problem import Goal, Problem
from planner.solvers.base import Budget, objective_of
from planner.solvers.latency.latency_search import LatencySearch
from planner.solvers.latency.makespan import makespan_s
from planner.solvers.list_scheduling.heft import LIST_SCHEDULERS
from simulator.placement import Placement
from simulator.simulate import simulate
from tests.benchmarks.bars import at_least, at_most, declare, report
from tests.planner.solvers.latency.makespans import Makespan

OPS, DEVICES, NEAR = 1_000, 8, 20
FEWER_OPS, FEWER_DEVICES, SEARCH_S = 150, 4, 10.0
FOR_S = 1.0


def random_table(n: int, k: int, overlap: bool = True, bus: bool = False) -> CostTable:
    """The graph on devices that are unlike each other; a channel for each pair, or one for all."""
    rng = np.random.default_rng(0)
    flows = []
    for writer in range(n - 1):
        readers = {min(n - 1, writer + 1 + int(rng.integers(NEAR))) for _ in range(rng.integers(1, 4))}
        flows.append(Flow(f"t{writer}", writer, tuple(sorted(readers))))
    flow_bytes = rng.random(len(flows))
    between = ~np.eye(k, dtype=bool)
    channel = np.full((k, k), -1)
    channel[between] = 0 if bus else np.arange(int(between.sum()))
    return CostTable(
        ops=tuple(f"op{i}" for i in range(n)),
        devices=tuple(f"dev{i}" for i in range(k)),
        forward_s=rng.random((n, k)) + 0.1,
        op_bytes=np.zeros(n),
        working_bytes=0.0,
        flows=tuple(flows),
        flow_bytes=flow_bytes,
        link_class=np.where(between, 0, -1),
        link_s=flow_bytes[:, None] / 4,
        link_latency_s=np.zeros(1),
        channel=channel,
        capacity_bytes=np.full(k, 1e9),
        overlap=overlap,
        together=(),
        source=np.full((n, k), str(Source.GIVEN)),
    )


def rate(table: CostTable, device: Ints) -> float:
    """Evaluations a second of one placement in the graph's order, after a check against the simulator."""
    makespan, order = Makespan(table), np.arange(table.n_ops)
    placement = Placement(tuple(device.tolist()))
    assert makespan(placement) == simulate(table, placement).makespan_s

    def evaluate() -> None:
        makespan_s(makespan.costs, makespan.work, device, order)

    return _per_second(evaluate)


def _per_second(work: Callable[[], None]) -> float:
    count, begin_s = 0, process_time()
    while process_time() - begin_s < FOR_S:
        work()
        count += 1
    return count / (process_time() - begin_s)


def main() -> int:
    """Measure and judge the bars."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    declare(parser)
    options = parser.parse_args()
    rng = np.random.default_rng(1)
    placements = {
        "by chance": rng.integers(0, DEVICES, OPS),
        "runs of ten": np.repeat(rng.integers(0, DEVICES, OPS // 10), 10),
        "eight blocks": np.repeat(np.arange(DEVICES), OPS // DEVICES),
    }
    rates = {}
    for overlap, bus in ((True, False), (True, True), (False, False)):
        table = random_table(OPS, DEVICES, overlap, bus)
        for name, device in placements.items():
            rates[overlap, bus, name] = found = rate(table, device)
            kind = f"{'one bus' if bus else 'a channel a pair'}, {'overlap' if overlap else 'no overlap'}"
            print(f"{kind:32} {name:14} {found:10,.0f} a second")
    problem = Problem(random_table(FEWER_OPS, FEWER_DEVICES), Goal.LATENCY)
    listed_s = min(_found_s(problem, scheduler.search(problem, Budget(60)).placement) for scheduler in LIST_SCHEDULERS)
    searched_s = _found_s(problem, LatencySearch().search(problem, Budget(SEARCH_S)).placement)
    print(f"best list schedule {listed_s:.4f} s, after the search {searched_s:.4f} s")
    return report(
        [
            at_least(
                "evaluations a second, 1,000 operators by chance on 8 devices", rates[True, False, "by chance"], 2e3
            ),
            at_most("makespan after the search, of that before", searched_s / listed_s, 0.98),
        ],
        options.json,
    )


def _found_s(problem: Problem, placement: Placement | None) -> float:
    return float("inf") if placement is None else objective_of(problem, placement)


if __name__ == "__main__":
    sys.exit(main())
