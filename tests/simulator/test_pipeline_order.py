"""Start times in static order: those of the engine, and what is said where devices wait in a circle."""

from dataclasses import replace
from math import isnan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphs.common.errors import InputError
from simulator.engine import Task, times
from simulator.lower_schedule import StageCost, lower_schedule
from simulator.pipeline import start_times
from simulator.schedule import Action, Schedule
from simulator.schedules import SCHEDULES
from tests.simulator.pipelines import CIRCLE, needs, schedules, stage_costs


def test_tasks_are_actions_then_messages() -> None:
    # F 1 s, B 2 s, an activation 3 s, a gradient 4 s
    schedule = Schedule.parse(["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"])
    lowered = lower_schedule(schedule, [StageCost(1, 1, 1, 3, 4)] * 2)
    # Resources: the devices 0 and 1, then a channel for each pair of them: 3 is 0 → 1, 4 is 1 → 0.
    assert lowered.tasks(overlap=True) == [
        Task(1, (0,), (), 2, "0F0"),
        Task(1, (0,), (0,), 2, "0F1"),
        Task(2, (0,), (1, 10), 2, "0B0"),
        Task(2, (0,), (2, 11), 2, "0B1"),
        Task(1, (1,), (8,), 2, "1F0"),
        Task(2, (1,), (4,), 2, "1B0"),
        Task(1, (1,), (5, 9), 2, "1F1"),
        Task(2, (1,), (6,), 2, "1B1"),
        Task(3, (3,), (0,), 0, "0SEND_F0"),
        Task(3, (3,), (1, 8), 1, "0SEND_F1"),
        Task(4, (4,), (5,), 0, "1SEND_B0"),
        Task(4, (4,), (7, 10), 1, "1SEND_B1"),
    ]
    assert [task.resources for task in lowered.tasks(overlap=False)[8:]] == [(3, 0, 1)] * 2 + [(4, 1, 0)] * 2


def test_messages_within_a_device_and_free_ones_are_left_out() -> None:
    # the stages 0 and 1 share device 0; only stage 2's gradients take time
    schedule = Schedule.parse(["0F0 1F0 1I0 0B0 1W0", "2F0 2B0"])
    free = StageCost(1, 1, 1, activation_s=0, gradient_s=0)
    costs = [replace(free, activation_s=5), free, replace(free, gradient_s=5)]
    assert [task.name for task in lower_schedule(schedule, costs).tasks(overlap=True)[7:]] == ["2SEND_B0"]
    assert lower_schedule(schedule, [free] * 3).links == ()


@given(st.data(), schedules())
def test_equal_to_the_engine(data: st.DataObject, schedule: Schedule) -> None:
    lowered = lower_schedule(schedule, data.draw(stage_costs(schedule.n_stages)))
    start_s, sent_s = start_times(lowered)
    assert times(lowered.tasks(overlap=True))[0] == start_s + [sent_s[sender] for sender in lowered.senders]
    assert [isnan(second) for second in sent_s] == [i not in lowered.senders for i in range(len(sent_s))]


@pytest.mark.parametrize("name", SCHEDULES)
def test_equal_to_the_engine_in_every_known_schedule(name: str) -> None:
    schedule = SCHEDULES[name](5, 15)
    costs = [StageCost(1 + s / 7, 0.9 + s % 3, 0.3, 0.4, 1.7 - s / 9) for s in range(schedule.n_stages)]
    lowered = lower_schedule(schedule, costs)
    start_s, sent_s = start_times(lowered)
    assert times(lowered.tasks(overlap=True))[0] == start_s + [sent_s[sender] for sender in lowered.senders]


@given(schedules())
def test_every_action_behind_what_it_needs(schedule: Schedule) -> None:
    """Told by its letters alone; in a run with seconds for everything, all of that has ended."""
    lowered = lower_schedule(schedule, [StageCost(1, 0.5, 0.5)] * schedule.n_stages)
    start_s, _ = start_times(lowered)
    end_s = {
        action: start + duration
        for action, start, duration in zip(lowered.actions, start_s, lowered.duration_s.tolist(), strict=True)
    }
    split = [Action(stage, "I", 0) in end_s for stage in range(schedule.n_stages)]
    for action, start in zip(lowered.actions, start_s, strict=True):
        assert all(end_s[need] <= start for need in needs(action, schedule.n_stages, split))


# --- circles ---------------------------------------------------------------------------------------------------------


def stop(*rows: str) -> str:
    schedule = Schedule.parse(rows)
    with pytest.raises(InputError) as error:
        start_times(lower_schedule(schedule, [StageCost(1, 1, 1)] * schedule.n_stages))
    return str(error.value)


@pytest.mark.parametrize(
    ("rows", "waits"),
    [
        # device 0 wants a micro-batch back that it has sent, but device 1 wants another one first
        (
            ["0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"],
            "device 0 at 0B0 for 1B0, device 1 at 1F1 for 0F1",
        ),
        # stage 1 before stage 0, on one device
        (["1F0 0F0 1B0 0B0"], "device 0 at 1F0 for 0F0"),
        # the circle is between 1 and 2; device 0 waits for them and is no part of it
        (
            ["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1", "2F0 2F1 2B0 2B1"],
            "device 1 at 1B0 for 2B0, device 2 at 2F1 for 1F1",
        ),
        # a circle of three: 0 waits for 2 (over stage 1), 2 for 1 and 1 for 0
        (
            ["3F0 0F0", "4F0 1F0", "5F0 2F0"],
            "device 0 at 3F0 for 2F0, device 2 at 5F0 for 4F0, device 1 at 4F0 for 3F0",
        ),
    ],
)
def test_the_circle_is_named(rows: list[str], waits: str) -> None:
    message = f"the schedule comes to a stop, waiting in a circle: {waits}; run one of these earlier"
    assert stop(*rows) == message


def test_a_long_circle_is_shortened() -> None:
    # devices with the stages d and d + 8 begin with the later one: 8F0 needs 7F0 behind 15F0, which needs 14F0 ...
    assert stop(*[f"{device + 8}F0 {device}F0" for device in range(8)]) == (
        "the schedule comes to a stop, waiting in a circle: device 0 at 8F0 for 7F0, device 7 at 15F0 for 14F0, "
        "device 6 at 14F0 for 13F0, device 5 at 13F0 for 12F0, device 4 at 12F0 for 11F0, ..., "
        "device 1 at 9F0 for 8F0; run one of these earlier"
    )


@given(schedules(runnable=False))
def test_what_stops_in_the_engine_stops_here_and_the_circle_is_one(schedule: Schedule) -> None:
    lowered = lower_schedule(schedule, [StageCost(1, 1, 1, 1, 1)] * schedule.n_stages)
    try:
        times(lowered.tasks(overlap=True))
    except InputError:
        with pytest.raises(InputError) as error:
            start_times(lowered)
        _check_circle(schedule, str(error.value))
    else:
        assert not any(map(isnan, start_times(lowered)[0]))


def _check_circle(schedule: Schedule, message: str) -> None:
    """Each device is at one of its actions, which needs one that the next device has behind its own."""
    split = [Action(stage, "I", 0) in schedule.actions[device] for stage, device in enumerate(schedule.device)]
    waits = [(int(d), Action.parse(at), Action.parse(awaited)) for d, at, awaited in CIRCLE.findall(message)]
    assert waits
    for (device, at, awaited), (next_device, next_at, _) in zip(waits, waits[1:] + waits[:1], strict=True):
        assert at in schedule.actions[device]
        assert awaited in needs(at, schedule.n_stages, split)
        row = schedule.actions[next_device]
        assert row.index(awaited) >= row.index(next_at)
