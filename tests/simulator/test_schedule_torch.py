"""The same orders as torch.distributed.pipelining makes, and files that it takes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch.distributed.pipelining import schedules as theirs

from graphs.common.errors import InputError
from simulator.lower_schedule import StageCost
from simulator.pipeline import simulate_schedule
from simulator.schedule import Schedule
from simulator.schedules import SCHEDULES
from tests.simulator.pipelines import schedules


class FakeStage:
    """What a schedule asks of a stage, so that no process group is needed; it writes down what it is told to do."""

    def __init__(self, n_devices: int, n_stages: int, index: int = 0) -> None:
        self.group_rank, self.group_size, self.num_stages, self.stage_index = 0, n_devices, n_stages, index
        self.is_last = False
        self.submod = torch.nn.Identity()
        self.done: list[str] = []

    def forward_one_chunk(self, micro_batch: int, *_: object, **__: object) -> None:
        self.done.append(f"{self.stage_index}F{micro_batch}")

    def backward_one_chunk(self, micro_batch: int, *_: object, **__: object) -> None:
        self.done.append(f"{self.stage_index}B{micro_batch}")

    def nothing(self, *_: object) -> list[Any]:
        return []

    get_fwd_recv_ops = get_fwd_send_ops = get_bwd_recv_ops = get_bwd_send_ops = perform_reduce_grad = nothing


def fake_stages(n_devices: int, stages_per_device: int) -> list[Any]:
    return [FakeStage(n_devices, n_devices * stages_per_device) for _ in range(stages_per_device)]


def their_order(order: dict[int, list[Any]]) -> Schedule:
    """Their lists without idle moments and without what they add for data parallelism."""
    rows = [
        [str(action) for action in order[rank] if action is not None and action.is_compute_op] for rank in sorted(order)
    ]
    return Schedule.parse([" ".join(row) for row in rows])


SIZES = [(1, 2), (2, 2), (2, 6), (3, 6), (4, 4), (4, 12), (5, 10)]


@pytest.mark.parametrize(("n_devices", "micro_batches"), SIZES)
@pytest.mark.parametrize(("name", "schedule_class"), [("gpipe", theirs.ScheduleGPipe), ("1f1b", theirs.Schedule1F1B)])
def test_one_stage_a_device(name: str, schedule_class: Any, n_devices: int, micro_batches: int) -> None:
    """These have no order to compare (that of torch 2.13's 1F1B is wrong on the last device), so they are run."""
    rows = []
    for index in range(n_devices):
        schedule = schedule_class(stage := FakeStage(n_devices, n_devices, index), micro_batches)
        schedule._initialize_stage = stage.nothing
        schedule._step_microbatches([()] * micro_batches, [{}] * micro_batches)
        rows.append(" ".join(stage.done))
    assert Schedule.parse(rows) == SCHEDULES[name](n_devices, micro_batches)


@pytest.mark.parametrize(("n_devices", "micro_batches"), SIZES)
@pytest.mark.parametrize(
    ("name", "schedule_class", "stages_per_device"),
    [
        ("interleaved", theirs.ScheduleInterleaved1F1B, 1),
        ("interleaved", theirs.ScheduleInterleaved1F1B, 2),
        ("interleaved", theirs.ScheduleInterleaved1F1B, 3),
        ("breadth-first", theirs.ScheduleLoopedBFS, 2),
        ("breadth-first", theirs.ScheduleLoopedBFS, 3),
        ("zb-h1", theirs.ScheduleInterleavedZeroBubble, 1),
        ("zbv", theirs.ScheduleZBVZeroBubble, 2),
    ],
)
def test_several_stages_a_device(
    name: str, schedule_class: Any, stages_per_device: int, n_devices: int, micro_batches: int
) -> None:
    order = schedule_class(fake_stages(n_devices, stages_per_device), micro_batches).pipeline_order
    assert their_order(order) == SCHEDULES[name](n_devices, micro_batches, stages_per_device)


def load(schedule: Schedule, folder: Path) -> Any:
    """Hand a schedule over as a file; torch checks it and adds the messages."""
    (path := folder / "schedule.csv").write_text(schedule.to_csv(), encoding="utf-8")
    runtime_class: Any = theirs._PipelineScheduleRuntime  # without types
    runtime = runtime_class([FakeStage(schedule.n_devices, schedule.n_stages)], schedule.micro_batches)
    runtime._load_csv(str(path), "compute_only")
    return runtime


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name != "forward-only"])
def test_torch_takes_our_files(name: str, tmp_path: Path) -> None:
    schedule = SCHEDULES[name](4, 8)
    runtime = load(schedule, tmp_path)
    assert their_order(runtime.pipeline_order) == schedule
    assert tuple(runtime.stage_index_to_group_rank[stage] for stage in range(schedule.n_stages)) == schedule.device


def test_torch_takes_uneven_stages(tmp_path: Path) -> None:
    # three stages on two devices: the middle one shares device 1 with the last
    schedule = Schedule.parse(["0F0 0F1 0B0 0B1", "1F0 2F0 2I0 1B0 1F1 2F1 2I1 2W0 1B1 2W1"])
    assert [load(schedule, tmp_path).stage_index_to_group_rank[stage] for stage in range(3)] == [0, 1, 1]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schedules(runnable=False).filter(lambda schedule: schedule.trains))
def test_torch_can_run_what_we_can_run(tmp_path: Path, schedule: Schedule) -> None:
    schedule = Schedule(tuple(row for row in schedule.actions if row))  # torch has no devices without work
    try:
        simulate_schedule(schedule, [StageCost(1)] * schedule.n_stages)
    except InputError:
        with pytest.raises(AssertionError, match="Malformed compute schedule"):
            load(schedule, tmp_path)
    else:
        assert their_order(load(schedule, tmp_path).pipeline_order) == schedule


def test_we_take_their_files(tmp_path: Path) -> None:
    made = theirs.ScheduleZBVZeroBubble(fake_stages(3, 2), 6)
    made._dump_csv(str(path := tmp_path / "theirs.csv"), "compute_only")
    assert Schedule.parse(path.read_text(encoding="utf-8").replace(",", " ").splitlines()) == SCHEDULES["zbv"](3, 6)
