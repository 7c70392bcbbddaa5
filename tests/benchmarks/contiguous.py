"""Contiguous placements of graphs with 10,000 to 100,000 downsets: how long the proof of the optimum takes.

    python -m tests.benchmarks.contiguous [KIND ...] [--seeds N ...] [--quick] [--json FILE]

A KIND is lanes (chains that wait for each other), grid (each operator waits for the one above and the one on its left),
planar (random orders of two dimensions), layered (random layers) or branches (sections of parallel branches, one after
the other). Each graph is placed on six devices in four ways: without transfers, with links that occupy the devices at
both ends, with devices of two kinds and these links, and with memory for hardly more than everything. Seconds are those
of a processor: the clock stops a search only after many times the limit, so that other work on the machine matters
little.
"""

import argparse
import os
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np

from planner.problem import deadline
from planner.problem.blocks import merge_blocks
from planner.problem.problem import Goal, Problem
from planner.problem.result import Status
from planner.solvers.base import Budget
from planner.solvers.dp.downsets.lattice import elements_of
from planner.solvers.dp.downsets.reduce import kinds_of
from planner.solvers.solve import solve
from tests.benchmarks.bars import Bar, at_least, at_most, declare, report
from tests.planner.problem.problems import make_table

DOWNSETS = (10_000, 100_000)
DEVICES = 6
LIMIT_S, BRAKE = 60.0, 20.0
ROOM = 1.15  # of all devices together, in multiples of what the operators need
Edges = set[tuple[int, int]]


def lanes(rng: np.random.Generator) -> Edges:
    """Three or four chains; some operators wait for an earlier one of another chain."""
    width = int(rng.integers(3, 5))
    length = {3: 30, 4: 15}[width] + int(rng.integers(0, 8))
    edges = {(place, place + width) for place in range(width * (length - 1))}
    for _ in range(int(rng.integers(length // 2, 2 * length))):
        first, second = rng.choice(width, 2, replace=False).tolist()
        row = int(rng.integers(0, length - 1))
        later = row + int(rng.integers(1, 8))
        if later < length:
            edges.add((row * width + first, later * width + second))
    return edges


def grid(rng: np.random.Generator) -> Edges:
    """Rows and columns."""
    rows, columns = int(rng.integers(5, 11)), int(rng.integers(7, 16))
    places = [(row, column) for row in range(rows) for column in range(columns)]
    down = {(row * columns + column, (row + 1) * columns + column) for row, column in places if row + 1 < rows}
    return down | {
        (row * columns + column, row * columns + column + 1) for row, column in places if column + 1 < columns
    }


def planar(rng: np.random.Generator) -> Edges:
    """Points in a plane: each waits for those on its left and below it that no other one is between."""
    height = rng.permutation(int(rng.integers(35, 75))).tolist()
    edges: Edges = set()
    for place, own in enumerate(height):
        least = -1
        for other in reversed(range(place)):
            if least < height[other] < own:
                edges.add((other, place))
                least = height[other]
    return edges


def layered(rng: np.random.Generator) -> Edges:
    """Layers of equal widths: each operator waits for one or two of the layer before, some for any earlier one."""
    width = int(rng.integers(3, 7))
    edges: Edges = set()
    for place in range(width, width * int(rng.integers(8, 24))):
        first = (place // width - 1) * width
        edges |= {(first + int(one), place) for one in rng.choice(width, int(rng.integers(1, 3)), replace=False)}
        if rng.random() < 0.1:
            edges.add((int(rng.integers(0, first + 1)), place))
    return edges


def branches(rng: np.random.Generator) -> Edges:
    """Sections of up to five branches of up to twelve operators."""
    edges: Edges = set()
    most, join, n_ops = int(rng.integers(60, 140)), 0, 1
    while n_ops < most:
        ends = []
        for length in rng.integers(1, 13, int(rng.integers(1, 6))).tolist():
            branch = [join, *range(n_ops, n_ops + length)]
            edges |= set(pairwise(branch))
            ends.append(branch[-1])
            n_ops += length
        edges |= {(end, n_ops) for end in ends}
        join, n_ops = n_ops, n_ops + 1
    return edges


GRAPHS: Mapping[str, Callable[[np.random.Generator], Edges]] = MappingProxyType(
    {"lanes": lanes, "grid": grid, "planar": planar, "layered": layered, "branches": branches}
)
WAYS = ("free", "linked", "unlike", "tight")


def drawn(kind: str, seed: int) -> tuple[dict[str, Problem], int]:
    """Return the problems of a graph by the way in which it is placed, and the number of its downsets."""
    rng = np.random.default_rng([seed, list(GRAPHS).index(kind)])
    while True:
        edges = GRAPHS[kind](rng)
        problems = _problems(edges, rng)
        count = _downsets(problems["free"])
        if DOWNSETS[0] <= count <= DOWNSETS[1]:
            return problems, count


def _problems(edges: Edges, rng: np.random.Generator) -> dict[str, Problem]:
    n_ops = 1 + max(end for edge in edges for end in edge)
    takes_s, n_bytes = rng.gamma(2.0, 1.0, n_ops)[:, None], rng.integers(1, 100, n_ops)
    half = np.arange(DEVICES) < DEVICES // 2
    alike = np.repeat(takes_s, DEVICES, axis=1)
    unlike = np.where(half, takes_s, 2 * takes_s * rng.uniform(0.7, 1.4, (n_ops, 1)))
    sent_s = rng.exponential(0.3, n_ops)
    readers = {op: tuple(sorted(b for a, b in edges if a == op)) for op in sorted({a for a, _ in edges})}
    flows = [(op, found, float(sent_s[op])) for op, found in readers.items()]
    tight: dict[str, Any] = {"op_bytes": n_bytes, "capacity_bytes": [ROOM * n_bytes.sum() / DEVICES] * DEVICES}

    def posed(forward_s: Any, per_byte: float = 1.0, **memory: Any) -> Problem:
        table = make_table(forward_s, flows, per_byte=per_byte, overlap=False, **memory)
        return Problem(table, Goal.THROUGHPUT, frozenset(range(n_ops)))

    return dict(zip(WAYS, (posed(alike, 0.0), posed(alike), posed(unlike), posed(alike, **tight)), strict=True))


def _downsets(problem: Problem) -> int:
    """Return the number of downsets; more than the largest number of interest if there are more."""
    elements = elements_of(merge_blocks(problem.table), problem.contiguous, kinds_of(problem.table), frozenset())
    everything = np.asarray([[-np.inf, np.inf]])
    lattice = elements.lattice(np.zeros(len(elements.element)), everything, DOWNSETS[1], Budget(1e9))
    return DOWNSETS[1] + 1 if lattice is None else lattice.n


def rows(kinds: list[str], seeds: list[int]) -> Iterator[tuple[bool, float]]:
    """Yield whether each problem was proved, and the seconds of a processor."""
    deadline.BRAKE = BRAKE
    solve(drawn("branches", 0)[0]["linked"], "downset-dp", 1.0)  # compiles
    for kind, seed in ((kind, seed) for kind in kinds for seed in seeds):
        problems, count = drawn(kind, seed)
        for way, problem in problems.items():
            begun_s = time.process_time()
            found = solve(problem, time_limit_s=LIMIT_S, gap=0.0)
            took_s = time.process_time() - begun_s
            said = f"{kind:8} {seed:3} {way:7} {count:7,} {found.status:9} {found.gap:6.2%} {took_s:6.1f} s"
            print(f"{said}, load {os.getloadavg()[0]:.1f}", flush=True)
            yield found.status == Status.OPTIMAL, took_s


def main() -> int:
    """Run what was asked for and judge it."""
    parser = argparse.ArgumentParser(description="proofs of contiguous placements")
    parser.add_argument("kinds", nargs="*", metavar="KIND", choices=[*GRAPHS, []], help=", ".join(GRAPHS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1], help="of the graphs (0 1)")
    declare(parser)
    arguments = parser.parse_args()
    kinds = arguments.kinds or list(GRAPHS)
    found = list(rows(kinds, arguments.seeds[:1] if arguments.quick else arguments.seeds))
    bars: list[Bar] = [
        at_least("contiguous: problems that are proved", sum(proved for proved, _ in found), len(found)),
        at_most("contiguous: seconds of a processor for the slowest", max(took_s for _, took_s in found), LIMIT_S),
    ]
    return report(bars, arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())
