"""simulate_training: what one training step takes, and the memory that it needs, when a placement runs as a pipeline.

::

    placement   a b │ c d │ e          stages 0, 1, 2 on the devices x, y, z
    1f1b     x  0F0 0F1 0F2 ... 0B0    a step is all micro-batches, forward and backward
             y      1F0 1F1 ...
"""

from collections.abc import Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

import numpy as np

from costmodels.table import CostTable, Floats
from graphs.errors import InputError
from simulator.lower_schedule import StageCost
from simulator.pipeline import PipelineRun, simulate_schedule
from simulator.placement import Placement
from simulator.schedule import Schedule
from simulator.schedules import SCHEDULES

INPUT_SHARE = 0.5  # of a backward pass that goes into the gradient of the input; only zero-bubble schedules ask


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """How a step is run.

    Attributes:
        schedule: a name from `simulator.schedules.SCHEDULES`.
        micro_batches: that a batch is divided into.

    Raises:
        InputError: for an unknown schedule or less than one micro-batch.
    """

    schedule: str = "1f1b"
    micro_batches: int = 8

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise InputError(f"there is no schedule '{self.schedule}'; known: {', '.join(SCHEDULES)}")
        if self.micro_batches < 1:
            raise InputError(f"{self.micro_batches} micro-batches; it must be 1 or more")


@dataclass(frozen=True)
class TrainingRun:
    """A predicted step.

    Attributes:
        pipeline: when every action runs.
        stages: [n_stages], the operators of each stage.
        load_s: [n_devices] of the table, what each device does for one micro-batch.
        memory_bytes: [n_devices] of the table, the most that each device needs.
    """

    pipeline: PipelineRun
    stages: tuple[tuple[int, ...], ...]
    load_s: Floats
    memory_bytes: Floats

    @property
    def makespan_s(self) -> float:
        """Seconds of the step, without the optimizer."""
        return self.pipeline.makespan_s


def simulate_training(table: CostTable, placement: Placement, step: TrainingStep) -> TrainingRun:
    """Predict one step: forward and backward of every micro-batch in the order of the schedule.

    What crosses the border between two stages, whoever reads it behind that border, is one message there. Half of a
    backward pass counts as the gradient of the input, where a schedule tells them apart.

    Raises:
        InputError: if the placement is no pipeline that the schedule can run, or neighbours have no link.
    """
    placement.check(table)
    stages = training_stages(table, placement)
    devices = [placement.device[ops[0]] for ops in stages]
    rows = list(dict.fromkeys(devices))
    schedule = _schedule(step, [rows.index(device) for device in devices], len(rows))
    costs = stage_costs(table, stages, devices)
    run = simulate_schedule(schedule, costs, table.overlap, [table.devices[device] for device in rows])
    memory_bytes = np.zeros(table.n_devices)
    np.add.at(memory_bytes, np.asarray(placement.device), table.op_bytes)
    for device, saved in zip(rows, run.saved, strict=True):
        memory_bytes[device] += saved.peak_bytes + table.working_bytes
    load_s = np.zeros(table.n_devices)
    for device, cost in zip(devices, costs, strict=True):
        load_s[device] += cost.forward_s + cost.input_grad_s + cost.weight_grad_s
    return TrainingRun(run, stages, load_s, memory_bytes)


def training_stages(table: CostTable, placement: Placement) -> tuple[tuple[int, ...], ...]:
    """[n_stages], the operators of each stage, in the order in which a micro-batch goes through.

    One stage for each device, if no tensor comes back to a device that it has left; else the runs of one device along
    the placement's order.
    """
    after: dict[int, set[int]] = {device: set() for device in dict.fromkeys(placement.device)}
    for writer, reader in table.edges:
        src, dst = placement.device[writer], placement.device[reader]
        if src != dst:
            after[dst].add(src)
    try:
        order = list(TopologicalSorter(after).static_order())
    except CycleError:
        return _runs(placement)
    members: dict[int, list[int]] = {device: [] for device in order}
    for op in placement.order:
        members[placement.device[op]].append(op)
    return tuple(map(tuple, members.values()))


def stage_costs(table: CostTable, stages: Sequence[Sequence[int]], devices: Sequence[int]) -> list[StageCost]:
    """[n_stages], what each stage costs on its device, with what crosses its borders.

    Of each micro-batch a stage keeps what its operators save, and a copy of what it receives.

    Raises:
        InputError: if something crosses a border between devices without a link.
    """
    stage_of = {op: number for number, ops in enumerate(stages) for op in ops}
    borders = len(stages) - 1
    ahead_s, back_s, handed, returned, received = np.zeros((5, len(stages)))
    for number, flow in enumerate(table.flows):
        for stage in {stage_of[reader] for reader in flow.readers} - {stage_of[flow.writer]}:
            received[stage] += table.flow_bytes[number] if devices[stage] != devices[stage_of[flow.writer]] else 0.0
        first, last = stage_of[flow.writer], max(stage_of[reader] for reader in flow.readers)
        for border in range(first, min(last, borders)):
            src, dst = devices[border], devices[border + 1]
            if src == dst:
                continue
            if not (table.linked[src, dst] and table.linked[dst, src]):
                ends = f"between '{table.devices[src]}' and '{table.devices[dst]}'"
                raise InputError(f"a pipeline needs links {ends}, both ways; add a [[link]] to cluster.toml")
            ahead_s[border] += table.send_s(number, src, dst)
            handed[border] += 1
            if table.gradient[number]:
                back_s[border + 1] += table.send_s(number, dst, src)
                returned[border + 1] += 1
    costs = []
    for number, (ops, device) in enumerate(zip(stages, devices, strict=True)):
        forward_s, backward_s = (float(s[list(ops), device].sum()) for s in (table.forward_s, table.backward_s))
        before, behind = max(number - 1, 0), min(number + 1, borders)
        handover_s = float(table.handover_s[device])
        forward_s += handover_s * (handed[number] + (handed[before] if number else 0))
        backward_s += handover_s * (returned[number] + (returned[behind] if number < borders else 0))
        costs.append(
            StageCost(
                forward_s,
                INPUT_SHARE * backward_s,
                (1 - INPUT_SHARE) * backward_s,
                float(ahead_s[number]),
                float(back_s[number]),
                round(float(table.saved_bytes[list(ops)].sum()) + received[number]),
            )
        )
    return costs


def _runs(placement: Placement) -> tuple[tuple[int, ...], ...]:
    """The operators in the placement's order, cut wherever the device changes."""
    runs: list[list[int]] = []
    last = -1
    for op in placement.order:
        if placement.device[op] != last:
            runs.append([])
            last = placement.device[op]
        runs[-1].append(op)
    return tuple(map(tuple, runs))


def _schedule(step: TrainingStep, rows: Sequence[int], n_rows: int) -> Schedule:
    """The schedule for stages on these rows, [n_stages].

    Raises:
        InputError: if it places the stages otherwise.
    """
    per_row, rest = divmod(len(rows), n_rows)
    if not rest:
        make = SCHEDULES[step.schedule]
        schedule = make(n_rows, step.micro_batches, per_row)
        stage, _, _, row = schedule.columns
        if (np.asarray(rows)[stage] == row).all():
            return schedule
    raise InputError(
        f"the placement has {len(rows)} stages on {n_rows} devices, in the order {' '.join(map(str, rows))}; "
        f"the schedule '{step.schedule}' cannot run that"
    )
