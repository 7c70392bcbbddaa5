"""How many micro-batches a stream prefetches: takes before a copy of the network is idle for them.

The thread that feeds a stream shares the devices' cores. Each time it wakes up, the caches hold weights and none of its
code, so what takes it 10 µs takes 200. With micro-batches that wait at the copies, it wakes up once for several::

    prefetched 0   a a a a a a a a       a: takes a micro-batch and hands out a result
    prefetched 4   aaaa    aaaa

The price is that a result is handed out later, and the memory of inputs and results that wait.
"""

from planner.plans.plan import Plan

MOST = 8  # micro-batches; with more, a network of 0.2 ms gains less than 3 % further
LATE_S = 0.02  # a result waits so long for others at most
MOST_BYTES = 2**24  # of inputs and results that wait


def prefetched(plan: Plan, at_once: int) -> int:
    """Return how many micro-batches a stream prefetches if the plan's copies run ``at_once`` at once; maybe none."""
    graph = plan.graph
    each_bytes = sum(graph.tensor[name].n_bytes for name in {*graph.inputs, *graph.outputs})

    def fits(count: int) -> bool:
        return count * plan.period_s <= LATE_S and count * each_bytes <= MOST_BYTES

    return next(filter(fits, range(MOST, 1, -at_once)), 0)
