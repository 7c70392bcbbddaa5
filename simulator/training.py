"""simulate_training: predicts the time and memory of one training step of a placement that runs as a pipeline.

::

    placement   a b │ c d │ e          stages 0, 1, 2 on the devices x, y, z
    1f1b     x  0F0 0F1 0F2 ... 0B0    a step is all micro-batches, forward and backward
             y      1F0 1F1 ...
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from math import inf
from typing import NamedTuple

import numpy as np

from costmodels.cluster.cluster import SHARINGS, Sharing
from costmodels.table import CostTable
from costmodels.workload import RECOMPUTE_MODES, RecomputeMode
from costmodels.workload import TRAINING_SCHEDULES as TRAINING_SCHEDULES
from graphs.common.arrays import Floats
from graphs.common.brief import Brief
from graphs.common.checks import check_fields, one_of
from graphs.common.errors import InputError
from simulator.lower_schedule import Channels, StageCost
from simulator.pipeline import PipelineRun, simulate_schedule
from simulator.placement import Placement
from simulator.schedule import Schedule
from simulator.schedules import SCHEDULES
from simulator.stage_sums import stage_sums

INPUT_SHARE = 0.5  # share of a backward pass for the gradient of the input; only zero-bubble schedules use it
MOST_PASSES = 2**17  # forward passes of all devices in a step; such a schedule takes a second, its evaluation several
IN_TURNS = frozenset({"interleaved", "breadth-first"})  # schedules that go round the devices several times
TURNS_BACK = frozenset({"zbv"})  # schedules that go down the devices and up again
SPLIT_BACKWARD = frozenset({"zb-h1", "zb-h2", "zbv"})  # schedules with split backward passes


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """The options of a training step.

    Raises:
        InputError: for an unknown schedule or recomputation, or less than one micro-batch.
    """

    schedule: str = "1f1b"  # a name from `TRAINING_SCHEDULES`
    micro_batches: int = 8  # number of micro-batches in a batch
    recompute: RecomputeMode = "none"  # what stages run forward again before their backward pass

    def __post_init__(self) -> None:
        check_fields(self, "the training step")
        one_of(self.schedule, "the schedule", TRAINING_SCHEDULES)
        one_of(self.recompute, "the recomputation", RECOMPUTE_MODES)
        if self.micro_batches < 1:
            raise InputError(f"{self.micro_batches} micro-batches; it must be 1 or more")


def most_micro_batches(n_devices: int) -> int:
    """Return the limit of micro-batches in a step on ``n_devices`` devices."""
    return max(1, MOST_PASSES // n_devices)


@dataclass(frozen=True)
class TrainingRun(Brief):
    """A predicted step.

    A load is of forward, recomputation and backward, and of the device's transfers unless they overlap.
    """

    pipeline: PipelineRun  # run of the schedule
    stages: tuple[tuple[int, ...], ...]  # [n_stages], the operators of each stage
    load_s: Floats  # [n_devices] of the table, seconds of each device for one micro-batch
    memory_bytes: Floats  # [n_devices] of the table, the peak memory of each device
    link_s: Mapping[tuple[int, int], float] = field(default_factory=dict)  # seconds in both passes, by a link's ends
    stage_devices: tuple[int, ...] = ()  # [n_stages], the device of each stage in the table

    @property
    def makespan_s(self) -> float:
        """Seconds of the step, to the end of the last optimizer."""
        return self.pipeline.makespan_s


def simulate_training(
    table: CostTable, placement: Placement, step: TrainingStep, sharing: Sharing | None = None, below_s: float = inf
) -> TrainingRun:
    """Predict one step: forward and backward of every micro-batch in the order of the schedule, then the optimizers.

    The tensors that cross the border between two stages are one message, whichever later stage reads them. Half of a
    split backward pass counts as the gradient of the input. The default of ``sharing`` is the table's. For ``below_s``
    see `simulate_schedule`; a run that takes as long has no saved memory.

    Raises:
        InputError: if the placement is no pipeline that the schedule can run, or neighbours have no link.
    """
    placement.check(table)
    stages = training_stages(table, placement, step.schedule)
    devices = [placement.device[ops[0]] for ops in stages]
    rows = list(dict.fromkeys(devices))
    schedule = _schedule(step, [rows.index(device) for device in devices], len(rows))
    costs = stage_costs(table, stages, devices, step.recompute)
    names, channels = [table.devices[device] for device in rows], _channels(table, rows, sharing or table.sharing)
    run = simulate_schedule(schedule, costs, table.overlap, names, channels, below_s)
    memory_bytes = np.zeros(table.n_devices)
    np.add.at(memory_bytes, np.asarray(placement.device), table.op_bytes)
    for device, saved in zip(rows, run.saved, strict=True) if run.makespan_s < below_s else ():
        memory_bytes[device] += saved.peak_bytes + table.working_bytes
    load_s = np.zeros(table.n_devices)
    for device, cost in zip(devices, costs, strict=True):
        load_s[device] += cost.forward_s + cost.recompute_s + cost.input_grad_s + cost.weight_grad_s
    link_s = _link_seconds(costs, devices)
    if not table.overlap:
        for ends, seconds in link_s.items():
            load_s[list(ends)] += seconds
    return TrainingRun(run, stages, load_s, memory_bytes, link_s, tuple(devices))


def training_stages(table: CostTable, placement: Placement, schedule: str = "1f1b") -> tuple[tuple[int, ...], ...]:
    """Return [n_stages], the operators of each stage, in the order in which a micro-batch passes the stages.

    Each device is one stage if the devices depend on each other without a cycle; otherwise, each run of one device in
    the placement's order is a stage. A schedule that goes down the devices and up again has two consecutive stages on
    the last device: the run in the middle is cut into two parts of almost equal seconds.
    """
    if schedule in TURNS_BACK:
        return _cut_at_the_turn(table, placement, _runs(placement))
    after: dict[int, set[int]] = {device: set() for device in dict.fromkeys(placement.device)}
    for src, dst in set(map(tuple, np.asarray(placement.device)[table.reads[1:]].T.tolist())):
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


def stage_costs(
    table: CostTable, stages: Sequence[Sequence[int]], devices: Sequence[int], recompute: RecomputeMode = "none"
) -> list[StageCost]:
    """Return [n_stages], the cost of each stage on its device, with the messages across its borders.

    For each micro-batch, a stage keeps the tensors that its operators save and a copy of its received tensors, in a
    split backward pass until the end of W. With recomputation, it keeps the tensors from other stages, the network's
    inputs and results, and results of operators that run once; it runs the others again, without the overhead of
    messages: all at once, or one layer after the other, each of which then keeps its own inputs.

    Raises:
        InputError: if a tensor crosses a border between devices without a link.
    """
    crossing = _crossing(table, stages, devices)
    costs = []
    for number, (ops, device) in enumerate(zip(stages, devices, strict=True)):
        sums = stage_sums(table, tuple(ops), device, recompute)
        entering_bytes = (crossing.received_bytes if recompute == "none" else crossing.entering_bytes)[number]
        saved_bytes = round(float(sums.saved_bytes + entering_bytes))
        overhead_s, messages, gradients = table.overhead_s[device], crossing.messages, crossing.gradients
        cost = StageCost(
            sums.forward_s + float(overhead_s * (messages[number] + messages[number + 1])),
            input_grad_s=INPUT_SHARE * sums.backward_s
            + float(overhead_s * (gradients[number] + gradients[number + 1])),
            weight_grad_s=(1 - INPUT_SHARE) * sums.backward_s,
            activation_s=float(crossing.ahead_s[number]),
            gradient_s=float(crossing.back_s[number]),
            saved_bytes=saved_bytes,
            kept_bytes=saved_bytes,
            sync_s=sums.sync_s,
            sync_latency_s=min(sums.sync_s, float(table.update.sync_latency_s[device])) if table.update else 0.0,
            optimizer_s=sums.optimizer_s,
        )
        if recompute != "none":
            waiting_bytes = round(float(sums.waiting_bytes + entering_bytes)) + round(sums.inputs_bytes)
            cost = cost.recomputing(waiting_bytes, sums.again_s, round(sums.again_bytes))
        costs.append(cost)
    return costs


def _link_seconds(costs: Sequence[StageCost], devices: Sequence[int]) -> dict[tuple[int, int], float]:
    """Return the seconds of a micro-batch's messages on each link, by the devices at its ends."""
    link_s: dict[tuple[int, int], float] = {}
    for stage, (cost, src) in enumerate(zip(costs, devices, strict=True)):
        for other, seconds in ((stage + 1, cost.activation_s), (stage - 1, cost.gradient_s)):
            if 0 <= other < len(devices) and devices[other] != src and seconds:
                ends = src, devices[other]
                link_s[ends] = link_s.get(ends, 0.0) + seconds
    return link_s


class _BorderTraffic(NamedTuple):
    """The transfers across the borders between stages; a border's number is that of the stage after it."""

    ahead_s: Floats  # [n_stages], seconds of the tensors that a stage sends to the next one
    back_s: Floats  # [n_stages], seconds of the gradients that a stage sends to the one before
    messages: Floats  # [n_stages + 1], number of tensors that cross a border, both ends of the pipeline included
    gradients: Floats  # [n_stages + 1], number of gradients that cross it in the backward pass
    received_bytes: Floats  # [n_stages], bytes of the tensors that a stage reads from other devices
    entering_bytes: Floats  # [n_stages], bytes of the tensors that a stage reads from other stages


def _crossing(table: CostTable, stages: Sequence[Sequence[int]], devices: Sequence[int]) -> _BorderTraffic:
    n, stage_of = len(stages), np.empty(table.n_ops, dtype=np.int64)
    for stage, ops in enumerate(stages):
        stage_of[list(ops)] = stage
    numbers, writer, reader = table.reads
    crossing = numbers[stage_of[writer] != stage_of[reader]]
    traffic = _BorderTraffic(*(np.zeros(size) for size in (n, n, n + 1, n + 1, n, n)))
    for number in dict.fromkeys(crossing.tolist()):
        flow = table.flows[number]
        first, readers = stage_of[flow.writer], {stage_of[reader] for reader in flow.readers}
        for stage in readers - {first}:
            traffic.entering_bytes[stage] += table.flow_bytes[number]
            if devices[stage] != devices[first]:
                traffic.received_bytes[stage] += table.flow_bytes[number]
        for border in range(first + 1, max(readers) + 1):
            src, dst = devices[border - 1], devices[border]
            if src == dst:
                continue
            if not (table.linked[src, dst] and table.linked[dst, src]):
                ends = f"between '{table.devices[src]}' and '{table.devices[dst]}'"
                raise InputError(f"a pipeline needs links {ends}, both ways; add a [[link]] to cluster.toml")
            traffic.ahead_s[border - 1] += table.send_s(number, src, dst)
            traffic.messages[border] += 1
            if table.trained.gradient[number]:
                traffic.back_s[border] += table.send_s(number, dst, src)
                traffic.gradients[border] += 1
    return traffic


def _channels(table: CostTable, rows: Sequence[int], sharing: Sharing) -> Channels:
    """Return the channels of the links between these devices."""
    if sharing not in SHARINGS:
        raise InputError(f"the sharing of channels is '{sharing}'; it must be one of {', '.join(SHARINGS)}")
    links = np.ix_(rows, rows)
    latency_s = np.append(table.link_latency_s, 0.0)[table.link_class[links]]
    return Channels(table.channel[links], latency_s, sharing, table.update.uplink[list(rows)] if table.update else None)


def _cut_at_the_turn(
    table: CostTable, placement: Placement, runs: tuple[tuple[int, ...], ...]
) -> tuple[tuple[int, ...], ...]:
    """Cut the run in the middle in two, unless it has a single operator or there is no middle."""
    middle, even = len(runs) // 2, len(runs) % 2 == 0
    turn = list(runs[middle])
    if even or len(turn) == 1:
        return runs
    seconds = (table.forward_s + table.backward_s)[turn, placement.device[turn[0]]]
    before_s = seconds.cumsum()[:-1]
    at = int(np.abs(seconds.sum() - 2 * before_s).argmin()) + 1
    return (*runs[:middle], tuple(turn[:at]), tuple(turn[at:]), *runs[middle + 1 :])


def _runs(placement: Placement) -> tuple[tuple[int, ...], ...]:
    """Return the operators in the placement's order, cut wherever the device changes."""
    runs: list[list[int]] = []
    last = -1
    for op in placement.order:
        if placement.device[op] != last:
            runs.append([])
            last = placement.device[op]
        runs[-1].append(op)
    return tuple(map(tuple, runs))


@lru_cache(maxsize=8)  # a search needs the same schedules repeatedly
def _made(name: str, n_devices: int, micro_batches: int, per_device: int) -> Schedule:
    return SCHEDULES[name](n_devices, micro_batches, per_device)


def _schedule(step: TrainingStep, rows: Sequence[int], n_rows: int) -> Schedule:
    """Return the schedule for stages on these rows, [n_stages]."""
    order = f"the placement has {len(rows)} stages on {n_rows} devices, in the order {' '.join(map(str, rows))}"
    refused = f"{order}; the schedule '{step.schedule}' cannot run that"
    per_row, rest = divmod(len(rows), n_rows)
    if rest:
        raise InputError(refused)
    try:
        schedule = _made(step.schedule, n_rows, step.micro_batches, per_row)
    except InputError as error:
        raise InputError(f"{refused}: {error}") from error
    stage, _, _, row = schedule.columns
    if (np.asarray(rows)[stage] != row).any():
        raise InputError(refused)
    return schedule
