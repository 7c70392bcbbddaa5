"""Precedence: which operators wait for which, and topological orders of them."""

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

from costmodels.table import CostTable


def successors(n: int, edges: Iterable[tuple[int, int]]) -> tuple[list[list[int]], list[int]]:
    """[n] each: where the edges of each operator lead, in the order of the edges, and how many edges lead to it."""
    after: list[list[int]] = [[] for _ in range(n)]
    n_before = [0] * n
    for first, second in edges:
        after[first].append(second)
        n_before[second] += 1
    return after, n_before


def by_priority(priority: Sequence[float], edges: Iterable[tuple[int, int]]) -> list[int]:
    """The topological order that takes, of the operators that are ready, the one with the highest priority, [n_ops].

    Among equals the smallest number comes first. Operators on a cycle, and all that wait for them, are left out.
    """
    readers, missing = successors(len(priority), edges)
    ready = [(-priority[op], op) for op, count in enumerate(missing) if not count]
    heapify(ready)
    order: list[int] = []
    while ready:
        order.append(heappop(ready)[1])
        for reader in readers[order[-1]]:
            missing[reader] -= 1
            if not missing[reader]:
                heappush(ready, (-priority[reader], reader))
    return order


def inputs_of(table: CostTable) -> list[list[int]]:
    """[n_ops], the flows that each operator reads."""
    inputs: list[list[int]] = [[] for _ in range(table.n_ops)]
    for number, flow in enumerate(table.flows):
        for reader in flow.readers:
            inputs[reader].append(number)
    return inputs
