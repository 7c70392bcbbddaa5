"""How large a graph can be placed, how fast, in how much memory, and how near to the bound.

    python -m tests.benchmarks.scale [--quick] [--json FILE]

Two kinds of graphs on 64 devices, eight to a machine: a layered random one and a deep transformer. An operator takes
tens of microseconds, a tensor between machines four times as long as within one. Seconds are those of all of `solve`,
on the wall. What is compiled once for an installation is compiled before, and told apart. --quick leaves 100,000
operators out.
"""

import argparse
import resource
import sys
from collections.abc import Callable, Mapping
from time import perf_counter
from types import MappingProxyType

import numpy as np

from costmodels.table import CostTable, Source
from graphs.common.arrays import Floats, Ints
from graphs.ir import Flow
from planner.problem.problem import Goal, Problem
from planner.solvers.solve import solve
from tests.benchmarks.bars import Bar, at_most, declare, report

DEVICES, PER_MACHINE = 64, 8
LINK_LATENCY_S = (2e-6, 10e-6)  # within a machine and between machines
LINK_BYTES_PER_S = (100e9, 25e9)
SECONDS_MAX: Mapping[int, float] = MappingProxyType({10_000: 10.0, 100_000: 60.0})
GAP_MAX: Mapping[int, float] = MappingProxyType({10_000: 0.08, 100_000: 0.05})  # the bound leaves transfers out
GIB_MAX = 4.0
GIB = 2**30


def layered(n_ops: int, rng: np.random.Generator) -> list[tuple[int, ...]]:
    """The readers of each operator: in layers of 8, each reads 1 to 3 of the layer before, some of an earlier one."""
    readers: list[list[int]] = [[] for _ in range(n_ops)]
    for op in range(8, n_ops):
        first = (op // 8 - 1) * 8
        for place in rng.choice(8, size=int(rng.integers(1, 4)), replace=False).tolist():
            readers[first + place].append(op)
        if rng.random() < 0.05:
            far = max(0, first - 8 * int(rng.integers(1, 10)))
            if op not in readers[far]:
                readers[far].append(op)
    return [tuple(found) for found in readers]


def transformer(n_ops: int, _rng: np.random.Generator) -> list[tuple[int, ...]]:
    """The readers of each operator: blocks of norm, query, key, value, attention in heads, and a residual sum."""
    block = 25  # norm, 3 projections, 16 heads, join, add, up, down, add
    readers: list[set[int]] = [set() for _ in range(n_ops)]
    for op in range(1, n_ops):
        base, place = op - op % block, op % block
        if place == 0:
            inputs = [op - 1]
        elif place <= 3:
            inputs = [base]
        elif place <= 19:
            inputs = [base + 1, base + 2, base + 3]
        elif place == 20:
            inputs = list(range(base + 4, base + 20))
        elif place == 21:
            inputs = [base + 20, max(0, base - 1)]
        elif place == 24:
            inputs = [base + 23, base + 21]
        else:
            inputs = [op - 1]
        for source in inputs:
            readers[source].add(op)
    return [tuple(sorted(found - {op})) for op, found in enumerate(readers)]


GRAPHS: Mapping[str, Callable[[int, np.random.Generator], list[tuple[int, ...]]]] = MappingProxyType(
    {"layered": layered, "transformer": transformer}
)


def make_table(kind: str, n_ops: int, seed: int = 0, n_devices: int = DEVICES) -> CostTable:
    """A table with random seconds and bytes, and memory for 1.3 times what there is."""
    rng = np.random.default_rng(seed)
    readers = GRAPHS[kind](n_ops, rng)
    flows = tuple(Flow(f"t{op}", op, found) for op, found in enumerate(readers) if found)
    seconds = rng.lognormal(np.log(50e-6), 0.8, n_ops)
    speed = np.where(np.arange(n_devices) % 4 == 3, 0.8, 1.0)  # a quarter of the devices is slower
    flow_bytes = rng.lognormal(np.log(500e3), 0.7, len(flows))
    op_bytes = rng.lognormal(np.log(4e6), 1.0, n_ops)
    link_class, channel = links(n_devices)
    return CostTable(
        ops=tuple(f"op{op}" for op in range(n_ops)),
        devices=tuple(f"gpu{device}" for device in range(n_devices)),
        forward_s=seconds[:, None] / speed,
        op_bytes=op_bytes,
        working_bytes=1e9,
        flows=flows,
        flow_bytes=flow_bytes,
        link_class=link_class,
        link_s=send_s(flow_bytes),
        link_latency_s=np.asarray(LINK_LATENCY_S),
        channel=channel,
        capacity_bytes=np.full(n_devices, 1e9 + 1.3 * op_bytes.sum() / n_devices),
        overlap=False,
        together=(),
        source=np.broadcast_to(np.asarray(str(Source.GIVEN)), (n_ops, n_devices)),
    )


def send_s(flow_bytes: Floats) -> Floats:
    """[n_flows, 2], within a machine and between machines."""
    return np.asarray(LINK_LATENCY_S + np.outer(flow_bytes, np.reciprocal(LINK_BYTES_PER_S)))


def links(n_devices: int) -> tuple[Ints, Ints]:
    """Which wire joins two devices, and the channel: one for each ordered pair."""
    machine = np.arange(n_devices) // PER_MACHINE
    link_class = np.where(machine[:, None] == machine, 0, 1)
    np.fill_diagonal(link_class, -1)
    channel = np.full_like(link_class, -1)
    channel[link_class >= 0] = np.arange(int((link_class >= 0).sum()))
    return link_class, channel


def measure(kind: str, n_ops: int) -> list[Bar]:
    """Place one graph and judge."""
    table = make_table(kind, n_ops)
    start_s = perf_counter()
    result = solve(Problem(table, Goal.THROUGHPUT), time_limit_s=0.75 * SECONDS_MAX[n_ops], gap=0.01)
    wall_s = perf_counter() - start_s
    name = f"{kind}, {n_ops:,} operators on {DEVICES} devices"
    answer = f"{result.objective_s * 1e3:.3f} ms by {result.solver}, bound {result.bound_s * 1e3:.3f} ms"
    print(f"{name}: {wall_s:.1f} s, {answer}", flush=True)
    return [
        at_most(f"{name}: seconds", wall_s, SECONDS_MAX[n_ops]),
        at_most(f"{name}: gap to the bound", float(result.objective_s / result.bound_s - 1), GAP_MAX[n_ops]),
    ]


def main() -> int:
    """Measure and judge the bars."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    declare(parser)
    options = parser.parse_args()
    start_s = perf_counter()
    solve(Problem(make_table("layered", 1000), Goal.THROUGHPUT), solver="local-search", time_limit_s=60.0, gap=0.5)
    print(f"the search is compiled, or loaded if it was before: {perf_counter() - start_s:.1f} s", flush=True)
    sizes = [10_000] if options.quick else list(SECONDS_MAX)
    bars = [bar for n_ops in sizes for kind in GRAPHS for bar in measure(kind, n_ops)]
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB
    return report([*bars, at_most("memory, GiB", peak_bytes / GIB, GIB_MAX)], options.json)


if __name__ == "__main__":
    sys.exit(main())
