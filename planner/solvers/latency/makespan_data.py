"""A cost table as flat arrays, and room to work in: what the compiled searches for latency share."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodels.table import CostTable, Floats, Ints


class MakespanCosts(NamedTuple):
    """A cost table as flat arrays; every array is writable and its own, so that compiled code sees one type."""

    forward_s: Floats  # [n_ops, n_devices], infinite where an operator cannot run
    link_s: Floats  # [n_flows, n_link_classes], seconds
    link_class: Ints  # [n_devices, n_devices], -1 without a link
    # [n_devices, n_devices], numbered behind the devices; -1 without a link, or where nobody waits for one
    channel: Ints
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
    """Room to work in, of no meaning between two calls. A step is a stage or a transfer."""

    # [2], how many placements were cut: what is stamped with it belongs to the present one; and the step that ended
    # last
    clock: Ints
    seen: Ints  # [n_flows, n_devices], the stamp of a flow that has a reader on a device
    taker: Ints  # [n_flows, n_devices], the stage that receives it
    latest: Ints  # [n_devices], the latest stage of each device; -1 before the first
    stage_of: Ints  # [n_ops], of each stage: its device
    first_op: Ints  # [n_ops], of each stage
    last_op: Ints  # [n_ops], of each stage
    stage_s: Floats  # [n_ops], of each stage: seconds
    missing: Ints  # [n_ops], of each stage: what it waits for
    handed: Ints  # [n_ops], of each stage: how many tensors it receives and sends
    after: Ints  # [n_ops], of each stage: the next one of its device, or -1
    stage_step: Ints  # [n_ops], of each stage: its step
    stage_at: Ints  # [n_steps], the stage of a step, if it is one
    line: Ints  # [n_steps], of each step
    step_s: Floats  # [n_steps], seconds
    follower: Ints  # [n_steps], the stage that waits for this step, or -1
    cause: Ints  # [n_steps], the step whose end let this one start; -1 if none had to
    sends: Ints  # [n_steps], how many of the next steps are its transfers; -1 for a transfer
    behind: Ints  # [n_steps], neighbours in a line, or -1
    before: Ints  # [n_steps], neighbours in a line, or -1
    head: Ints  # [n_lines], ends of a line, or -1
    tail: Ints  # [n_lines], ends of a line, or -1
    busy: NDArray[np.bool_]  # [n_resources]
    heap: Ints  # [n_steps], steps that may be able to start, the smallest first
    in_heap: NDArray[np.bool_]  # [n_steps]
    ends_s: Floats  # [n_steps], when the running steps end, the first end last
    running: Ints  # [n_steps], these steps


def costs_of(table: CostTable) -> MakespanCosts:
    """The table as arrays."""
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
        *_rows(inputs),
        *_rows(outputs),
        *_rows([sorted(set(flow.readers)) for flow in table.flows]),
        *_rows(touch),
    )


def work_for(table: CostTable) -> Workspace:
    """Room for the largest placement of a table."""
    n, k, n_flows = table.n_ops, table.n_devices, len(table.flows)
    n_steps = n + sum(min(k - 1, len(flow.readers)) for flow in table.flows)
    n_resources = k + int(table.channel.max(initial=-1)) + 1

    def ints(*shape: int) -> Ints:
        return np.zeros(shape, dtype=np.int64)

    return Workspace(
        clock=ints(2),
        seen=ints(n_flows, k),
        taker=ints(n_flows, k),
        latest=ints(k),
        stage_of=ints(n),
        first_op=ints(n),
        last_op=ints(n),
        stage_s=np.zeros(n),
        missing=ints(n),
        handed=ints(n),
        after=ints(n),
        stage_step=ints(n),
        stage_at=ints(n_steps),
        line=ints(n_steps),
        step_s=np.zeros(n_steps),
        follower=ints(n_steps),
        cause=ints(n_steps),
        sends=ints(n_steps),
        behind=ints(n_steps),
        before=ints(n_steps),
        head=ints(k * (k + 1)),
        tail=ints(k * (k + 1)),
        busy=np.zeros(n_resources, dtype=np.bool_),
        heap=ints(n_steps),
        in_heap=np.zeros(n_steps, dtype=np.bool_),
        ends_s=np.zeros(n_steps),
        running=ints(n_steps),
    )


def _rows(rows: list[list[int]]) -> tuple[Ints, Ints]:
    """Where each row begins, and all rows one behind the other."""
    start = np.cumsum([0, *(len(row) for row in rows)])
    return start.astype(np.int64), np.asarray([entry for row in rows for entry in row], dtype=np.int64)
