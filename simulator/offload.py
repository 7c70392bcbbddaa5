"""Latency on accelerators beside a host: each is called once, for all of its operators.

::

    host          a ──┐              ┌── d         d starts when the call that writes its input has stored everything
    accelerator       └─ fetch b c store ─┘        the call starts when all that it fetches is there

Source: Tarnawski et al., Efficient Algorithms for Device Placement of DNN Graph Operators, NeurIPS 2020, section 4.
"""

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
    """When the last operator finishes; infinite if calls wait for each other in a circle.

    The host runs any number of operators at once, each as soon as its inputs are there.
    """
    assert table.offload is not None
    host = table.offload.host.tolist()
    calls = call_seconds(table, placement).tolist()
    unit = [table.n_devices + op if host[device] else device for op, device in enumerate(placement.device)]
    needs: dict[int, set[int]] = {u: set() for u in unit}
    readers: dict[int, set[int]] = {u: set() for u in unit}
    for writer, reader in table.edges:
        if unit[writer] != unit[reader]:
            needs[unit[reader]].add(unit[writer])
            readers[unit[writer]].add(unit[reader])
    takes = {
        u: calls[device] if u == device else float(table.forward_s[op, device])
        for op, (u, device) in enumerate(zip(unit, placement.device, strict=True))
    }
    missing = {u: len(before) for u, before in needs.items()}
    ready = [u for u, count in missing.items() if not count]
    finish: dict[int, float] = {}
    while ready:
        u = ready.pop()
        finish[u] = max((finish[before] for before in needs[u]), default=0.0) + takes[u]
        for reader in readers[u]:
            missing[reader] -= 1
            if not missing[reader]:
                ready.append(reader)
    return max(finish.values(), default=0.0) if len(finish) == len(needs) else float("inf")
