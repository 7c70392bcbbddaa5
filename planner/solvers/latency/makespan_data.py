"""The data of the compiled searches for latency: a cost table as flat arrays, and scratch arrays."""

from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodels.table import CostTable
from graphs.common.arrays import Floats, Ints
from planner.solvers.compiled import flat, zeros


class MakespanCosts(NamedTuple):
    """A cost table as flat arrays; each is writable and owns its memory, so that compiled code sees the same types."""

    forward_s: Floats  # [n_ops, n_devices], infinite where an operator cannot run
    link_s: Floats  # [n_flows, n_link_classes], seconds
    link_class: Ints  # [n_devices, n_devices], -1 without a link
    channel: Ints  # [n_devices, n_devices], numbered after the devices; -1 without a link or with unlimited sharing
    overhead_s: Floats  # [n_devices], seconds for each tensor that is sent or received
    overlap: bool  # whether devices compute while they send or receive
    writer: Ints  # [n_flows]
    in_start: Ints  # [n_ops + 1], where the flows that each operator reads begin in ``in_flow``
    in_flow: Ints  # [n_inputs]
    out_start: Ints  # [n_ops + 1], where the flows that each operator writes begin in ``out_flow``
    out_flow: Ints  # [n_flows], ascending for each operator
    read_start: Ints  # [n_flows + 1], where the readers of each flow begin in ``reader``
    reader: Ints  # [n_inputs]
    touch_start: Ints  # [n_resources + 1], where the lines that hold each resource begin in ``touch``
    touch: Ints  # [n_touches]


class Workspace(NamedTuple):
    """Scratch arrays without meaning between two calls. A step is a stage or a transfer; stages are [n_ops]."""

    clock: Annotated[Ints, 2]  # the number of the placement, which stamps ``seen``; and the step that ends last
    seen: Annotated[Ints, "n_flows", "n_devices"]  # the stamp of a flow that has a reader on a device
    taker: Annotated[Ints, "n_flows", "n_devices"]  # the stage that receives the flow
    latest: Annotated[Ints, "n_devices"]  # the latest stage of each device, or -1
    stage_of: Annotated[Ints, "n_ops"]  # of each stage: its device
    first_op: Annotated[Ints, "n_ops"]  # of each stage: its first operator
    last_op: Annotated[Ints, "n_ops"]  # of each stage: its last operator
    stage_s: Annotated[Floats, "n_ops"]  # of each stage: its seconds
    missing: Annotated[Ints, "n_ops"]  # of each stage: the number of steps that it waits for
    received: Annotated[Ints, "n_ops"]  # of each stage: the tensors that it receives
    after: Annotated[Ints, "n_ops"]  # of each stage: the next one of its device, or -1
    stage_step: Annotated[Ints, "n_ops"]  # of each stage: its step
    stage_at: Annotated[Ints, "n_steps"]  # the stage of a step, if it is one
    line: Annotated[Ints, "n_steps"]  # the line in which a step waits
    step_s: Annotated[Floats, "n_steps"]
    follower: Annotated[Ints, "n_steps"]  # the stage that waits for a step, or -1
    cause: Annotated[Ints, "n_steps"]  # the step whose end let a step start, or -1
    sends: Annotated[Ints, "n_steps"]  # of a stage: the number of its transfers, the next steps; -1 for a transfer
    behind: Annotated[Ints, "n_steps"]  # the next step in the line, or -1
    before: Annotated[Ints, "n_steps"]  # the previous step in the line, or -1
    head: Annotated[Ints, "n_lines"]  # the first step of a line, or -1
    tail: Annotated[Ints, "n_lines"]  # the last step of a line, or -1
    busy: Annotated[NDArray[np.bool_], "n_resources"]
    heap: Annotated[Ints, "n_steps"]  # steps that may be able to start, as a heap
    in_heap: Annotated[NDArray[np.bool_], "n_steps"]
    ends_s: Annotated[Floats, "n_steps"]  # the ends of the running steps, the first end last
    running: Annotated[Ints, "n_steps"]  # the running steps in that order


def costs_of(table: CostTable) -> MakespanCosts:
    """Return the flat arrays of a table."""
    k = table.n_devices
    inputs: list[list[int]] = [[] for _ in range(table.n_ops)]
    outputs: list[list[int]] = [[] for _ in range(table.n_ops)]
    for number, flow in enumerate(table.flows):
        outputs[flow.writer].append(number)
        for reader in sorted(set(flow.readers)):
            inputs[reader].append(number)
    touch: list[list[int]] = [[device] for device in range(k)]
    touch += [[] for _ in range(int(table.channel.max(initial=-1)) + 1)]
    for src, dst in np.argwhere(table.link_class >= 0).tolist():
        held = [k + int(table.channel[src, dst])] if table.sharing != "unlimited" else []
        for resource in (*held, *(() if table.overlap else (src, dst))):
            touch[resource].append(k * (1 + src) + dst)
    return MakespanCosts(
        table.forward_s.copy(),
        table.link_s.copy(),
        table.link_class.copy(),
        np.where((table.link_class >= 0) & (table.sharing != "unlimited"), table.channel + k, -1),
        table.overhead_s.copy(),
        table.overlap,
        np.asarray([flow.writer for flow in table.flows], dtype=np.int64),
        *flat(inputs),
        *flat(outputs),
        *flat([sorted(set(flow.readers)) for flow in table.flows]),
        *flat(touch),
    )


def work_for(table: CostTable) -> Workspace:
    """Scratch arrays for any placement of a table."""
    n, k, n_flows = table.n_ops, table.n_devices, len(table.flows)
    n_steps = n + sum(min(k - 1, len(flow.readers)) for flow in table.flows)
    n_resources = k + int(table.channel.max(initial=-1)) + 1
    sizes = {"n_ops": n, "n_devices": k, "n_flows": n_flows, "n_steps": n_steps, "n_lines": k * (k + 1)}
    return zeros(Workspace, sizes | {"n_resources": n_resources})
