"""Latency on accelerators beside a host, each of which is called once for all its operators.

::

    host          a ──┐              ┌── d         d starts when the call that writes its input has stored everything
    accelerator       └─ fetch b c store ─┘        the call starts when all its inputs have been written

Source: Tarnawski et al., Efficient Algorithms for Device Placement of DNN Graph Operators, NeurIPS 2020, section 4.
"""

from graphlib import CycleError, TopologicalSorter
from math import inf

import numpy as np

from costmodels.table import CostTable, Floats
from simulator.placement import Placement


def call_seconds(table: CostTable, placement: Placement) -> Floats:
    """[n_devices], seconds that one micro-batch occupies each device: fetching, computing and storing."""
    assert table.offload is not None
    seconds = placement.busy_s(table)
    for number, flow in enumerate(table.flows):
        src = placement.device[flow.writer]
        remote = {placement.device[reader] for reader in flow.readers} - {src}
        if remote:
            seconds[src] += table.offload.store_s[number, src]
        for dst in remote:
            seconds[dst] += table.offload.fetch_s[number, dst]
    return np.asarray(seconds)


def offload_latency_s(table: CostTable, placement: Placement) -> float:
    """The second at which the last operator ends; infinite if calls wait for each other in a circle.

    The host runs any number of operators at once, each as soon as its inputs have been written.
    """
    assert table.offload is not None
    host = table.offload.host.tolist()
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
