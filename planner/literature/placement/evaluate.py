"""Costs of a placement for a host with accelerators."""

from graphlib import CycleError, TopologicalSorter
from math import inf

import numpy as np

from costmodels.table import CostTable
from graphs.common.arrays import Floats
from planner.literature.placement.offload import OffloadTable, offload_of
from planner.problem.evaluate import PlacementCosts, costs_of_placement
from planner.problem.problem import Goal
from planner.solvers.boundary import BoundaryCosts, boundary_costs
from simulator.placement import Placement

CIRCLE = "accelerators that are called once wait for each other in a circle"


@costs_of_placement.register
def judged_by_calls(table: OffloadTable, placement: Placement, goal: Goal) -> PlacementCosts:
    """Judge a placement: devices pay for what they store and fetch, and an accelerator is called once for latency."""
    load_s = call_seconds(table, placement)
    if goal is Goal.THROUGHPUT:
        return PlacementCosts(float(load_s.max()), load_s)
    if goal is Goal.COST:
        return PlacementCosts(float(load_s.sum()), load_s)
    objective_s = offload_latency_s(table, placement)
    return PlacementCosts(objective_s, load_s, (CIRCLE,) if objective_s == inf else ())


@boundary_costs.register
def boundary_costs_of_transfers(table: OffloadTable) -> BoundaryCosts:
    """Return the costs: fetching for what enters, storing for what leaves."""
    return BoundaryCosts(table.offload.fetch_s, table.offload.store_s)


def call_seconds(table: CostTable, placement: Placement) -> Floats:
    """Return [n_devices], seconds that one micro-batch occupies each device: fetching, computing and storing."""
    offload, seconds = offload_of(table), placement.busy_s(table)
    for number, flow in enumerate(table.flows):
        src = placement.device[flow.writer]
        remote = {placement.device[reader] for reader in flow.readers} - {src}
        if remote:
            seconds[src] += offload.store_s[number, src]
        for dst in remote:
            seconds[dst] += offload.fetch_s[number, dst]
    return np.asarray(seconds)


def offload_latency_s(table: CostTable, placement: Placement) -> float:
    """Return the second at which the last operator ends, if each accelerator of a host is called once.

    ::

        host          a ──┐              ┌── d     d starts when the call that writes its input has stored everything
        accelerator       └─ fetch b c store ─┘    the call starts when all its inputs have been written

    It is infinite if calls wait for each other in a circle (Tarnawski et al., Efficient Algorithms for Device Placement
    of DNN Graph Operators, NeurIPS 2020, section 4).

    The host runs any number of operators at once, each as soon as its inputs have been written.
    """
    host = offload_of(table).host.tolist()
    calls = call_seconds(table, placement).tolist()
    # A unit is a call of an accelerator (the number of the device) or an operator on the host.
    unit = [table.n_devices + op if host[device] else device for op, device in enumerate(placement.device)]
    seconds = {
        number: calls[device] if number == device else float(table.forward_s[op, device])
        for op, (number, device) in enumerate(zip(unit, placement.device, strict=True))
    }
    needs: dict[int, set[int]] = {number: set() for number in unit}
    for writer, reader in table.edges:
        if unit[writer] != unit[reader]:
            needs[unit[reader]].add(unit[writer])
    finish_s: dict[int, float] = {}
    try:
        for number in TopologicalSorter(needs).static_order():
            finish_s[number] = max((finish_s[need] for need in needs[number]), default=0.0) + seconds[number]
    except CycleError:
        return inf
    return max(finish_s.values(), default=0.0)
