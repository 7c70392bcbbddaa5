"""Shared channels: by hand, against an exact engine written for clarity, and the laws."""

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.cluster.cluster import SHARINGS, Sharing
from graphs.common.errors import InputError
from simulator.engine import Task, times
from simulator.lower_schedule import Channels, StageCost
from simulator.pipeline import PipelineRun, simulate_schedule
from simulator.placement import Placement
from simulator.schedule import Schedule
from simulator.schedules import SCHEDULES
from simulator.simulate import lower, repeat, simulate
from simulator.timeline import Timeline
from simulator.training import TrainingStep, simulate_training
from tests.costmodels.parts import table_with
from tests.simulator.pipelines import schedules, stage_costs
from tests.simulator.tables import make_table, placements, tables


def sending(duration_s: float, needs: tuple[int, ...] = (), latency_s: float = 0.0, channel: int = 0) -> Task:
    return Task(duration_s, (), needs, channel=channel, latency_s=latency_s)


def test_two_messages_have_half_of_the_channel_each() -> None:
    #   a  ====----====      4 + 4 / 2 + ...: a needs 8 s alone, b 2 s; b comes at 4
    #   b      ----          while both are there, 4 s pass for 2 s each; a then has 2 s left
    tasks = [sending(8), sending(2, needs=(2,)), Task(4, (0,))]
    assert times(tasks) == ([0, 4, 0], [10, 8, 4])


def test_all_messages_that_start_together_end_as_one_after_the_other_would() -> None:
    # 1, 2 and 3 s: after 3 s the first has its 1 s, after 5 s the second its 2 s, and 6 s are sent in all
    assert times([sending(1), sending(2), sending(3)])[1] == [3, 5, 6]


def test_a_latency_does_not_occupy_the_channel() -> None:
    # b's first 2 s are latency: a has the channel alone until 2, then shares it: 3 s left of 5, b has 1 s to send
    assert times([sending(5), sending(3, latency_s=2)])[1] == [6, 4]


def test_a_message_without_bytes_passes() -> None:
    assert times([sending(5), sending(2, latency_s=2), sending(0)])[1] == [5, 2, 0]


def test_channels_do_not_share_with_each_other() -> None:
    assert times([sending(5), sending(3, channel=1)])[1] == [5, 3]


def test_a_task_without_resources_needs_a_channel() -> None:
    with pytest.raises(InputError, match=r"task 0 '' holds the resources \(\); give one or more, from 0"):
        times([Task(1, ())])


def test_a_latency_is_part_of_the_duration() -> None:
    with pytest.raises(InputError) as error:
        times([sending(1, latency_s=2)])
    assert str(error.value) == "task 0 '' has a latency of 2 s; give 0 to its 1 s"


def test_the_sharing_has_three_names() -> None:
    with pytest.raises(InputError) as error:
        simulate(make_table([1]), Placement((0,)), sharing="half")  # type: ignore[arg-type]  # that is the point
    assert str(error.value) == "the sharing of channels is 'half'; it must be one of fifo, fair, unlimited"


def brute_force(tasks: list[Task]) -> list[Fraction]:
    """When each task ends. Time goes from event to event; everything is looked at again each time, in fractions."""
    left = {i: Fraction(task.duration_s) for i, task in enumerate(tasks)}
    waits = {i: Fraction(task.latency_s) for i, task in enumerate(tasks)}
    end: dict[int, Fraction] = {}
    running: set[int] = set()
    now = Fraction(0)
    while len(end) < len(tasks):
        changed = True
        while changed:
            changed = False
            for i in sorted(set(left) - running - set(end), key=lambda i: (tasks[i].priority, i)):
                held = {resource for j in running for resource in tasks[j].resources}
                if set(tasks[i].needs) <= set(end) and held.isdisjoint(tasks[i].resources):
                    running.add(i)
                    if left[i] == 0:
                        running.remove(i)
                        end[i] = now
                    changed = True
                    break
        rate = {}
        for i in running:
            channel = tasks[i].channel
            rivals = [j for j in running if tasks[j].channel == channel and waits[j] == 0]
            rate[i] = Fraction(1, len(rivals)) if channel >= 0 and waits[i] == 0 else Fraction(1)
        if not running:
            break
        step = min(min(left[i] / rate[i], waits[i] or left[i] / rate[i]) for i in running)
        now += step
        for i in list(running):
            left[i] -= step * rate[i]
            waits[i] = max(Fraction(0), waits[i] - step)
            if left[i] == 0:
                running.remove(i)
                end[i] = now
    return [end[i] for i in range(len(tasks))]


@st.composite
def messages(draw: st.DrawFn) -> list[Task]:
    """Messages on two channels and work on devices of its own, some behind others."""
    tasks: list[Task] = []
    for number in range(draw(st.integers(1, 7))):
        needs = draw(st.sets(st.integers(0, number - 1), max_size=2)) if number else set()
        seconds = draw(st.integers(0, 6))
        if draw(st.booleans()):
            tasks.append(Task(seconds, (number,), tuple(sorted(needs))))
        else:
            latency_s = draw(st.integers(0, seconds))
            tasks.append(sending(seconds, tuple(sorted(needs)), latency_s, draw(st.integers(0, 1))))
    return tasks


@given(messages())
def test_messages_end_as_in_the_exact_engine(tasks: list[Task]) -> None:
    np.testing.assert_allclose(times(tasks)[1], [float(end) for end in brute_force(tasks)], rtol=1e-9, atol=1e-9)


@given(st.data())
def test_placements_run_as_in_the_exact_engine(data: st.DataObject) -> None:
    table = data.draw(tables(shared=True, overlap=True))
    table = replace(table, link_latency_s=np.array([float(data.draw(st.integers(0, 2)))]))
    _, tasks = repeat(lower(table, data.draw(placements(table, copies=3)), "fair"), 1)
    np.testing.assert_allclose(times(tasks)[1], [float(end) for end in brute_force(tasks)], rtol=1e-9, atol=1e-9)


def overlapping(timeline: Timeline, resource: str) -> bool:
    spans = sorted(
        (span.start_s, span.end_s) for span in timeline.spans if span.resource == resource and span.end_s > span.start_s
    )
    return any(later[0] < earlier[1] for earlier, later in pairwise(spans))


@given(st.data(), st.integers(1, 3), st.sampled_from(["fifo", "fair"]))
def test_devices_run_one_thing_at_a_time_and_nothing_is_lost(data: st.DataObject, n: int, sharing: Sharing) -> None:
    table = data.draw(tables(shared=True))
    placement = data.draw(placements(table))
    timeline = simulate(table, placement, n, sharing=sharing)
    assert not any(overlapping(timeline, device) for device in table.devices)
    np.testing.assert_allclose(timeline.busy_s, n * placement.busy_s(table), atol=1e-9)
    sent_s = sum(table.send_s(*cut) for cut in placement.cuts(table))
    transfers = [span for span in timeline.spans if span.kind == "transfer"]
    assert len(transfers) == n * len(list(placement.cuts(table)))
    if sharing == "fair":  # one channel is never faster than its bandwidth
        assert sum(span.end_s - span.start_s for span in transfers) >= n * sent_s * (1 - 1e-9)
        assert timeline.makespan_s >= n * sent_s * (1 - 1e-9)


@given(st.data())
def test_a_single_message_at_a_time_takes_as_long_either_way(data: st.DataObject) -> None:
    table = data.draw(tables(n_devices=2, shared=True))
    placement = data.draw(placements(table, contiguous=True))
    if len(list(placement.cuts(table))) <= 1:
        assert simulate(table, placement) == simulate(table, placement, sharing="fair")


@given(schedules(), st.data(), st.floats(0, 1))
def test_more_bandwidth_never_makes_an_order_slower(schedule: Schedule, data: st.DataObject, part: float) -> None:
    """Where the order of devices and links is given, everything starts when the last of what it waits for has ended."""
    seconds = st.integers(0, 5)
    costs = [StageCost(*(data.draw(seconds) for _ in range(5))) for _ in range(schedule.n_stages)]
    faster = [replace(cost, activation_s=part * cost.activation_s, gradient_s=part * cost.gradient_s) for cost in costs]
    slow, fast = (simulate_schedule(schedule, these) for these in (costs, faster))
    assert fast.makespan_s <= slow.makespan_s * (1 + 1e-9)


# --- schedules -------------------------------------------------------------------------------------------------------


def bus(n_devices: int, sharing: Sharing, latency_s: float = 0.0) -> Channels:
    """One channel for all."""
    pairs = (n_devices, n_devices)
    return Channels(np.zeros(pairs, dtype=np.int64), np.full(pairs, latency_s), sharing)


def arrivals(run: PipelineRun) -> dict[str, tuple[float, float]]:
    return {s.label: (s.start_s, s.end_s) for s in run.timeline.spans if s.kind == "transfer"}


@pytest.mark.parametrize(
    ("sharing", "arrives"),
    [
        # one after the other, from 1 on
        ("fifo", {"0SEND_F0": (1, 4), "0SEND_F1": (4, 7), "1SEND_F0": (7, 10), "1SEND_F1": (10, 13)}),
        # 1 s alone, then two of them until the first has its other 2 s, at 6; the second has 1 s left. Then again
        ("fair", {"0SEND_F0": (1, 6), "0SEND_F1": (2, 7), "1SEND_F0": (7, 12), "1SEND_F1": (8, 13)}),
        ("unlimited", {"0SEND_F0": (1, 4), "0SEND_F1": (2, 5), "1SEND_F0": (5, 8), "1SEND_F1": (6, 9)}),
    ],
)
def test_links_of_a_schedule_share_a_bus(sharing: Sharing, arrives: dict[str, tuple[float, float]]) -> None:
    costs = [StageCost(1, activation_s=3)] * 3
    run = simulate_schedule(SCHEDULES["forward-only"](3, 2), costs, channels=bus(3, sharing))
    assert arrivals(run) == arrives


def test_the_oldest_micro_batch_has_the_bus_first() -> None:
    # at 7, both 0SEND_F2 (since 3) and 1SEND_F0 (since 5) wait: 1SEND_F0 is of an older micro-batch
    costs = [StageCost(1, activation_s=3)] * 3
    sent = arrivals(simulate_schedule(SCHEDULES["forward-only"](3, 3), costs, channels=bus(3, "fifo")))
    assert sorted(sent, key=sent.__getitem__) == [
        *("0SEND_F0", "0SEND_F1", "1SEND_F0", "1SEND_F1", "0SEND_F2", "1SEND_F2")
    ]


def test_the_latency_of_a_schedules_message_does_not_occupy_the_bus() -> None:
    # 2 s of latency and 1 s on the bus: they follow each other a second apart, and never meet there
    costs = [StageCost(1, activation_s=3)] * 2
    run = simulate_schedule(SCHEDULES["forward-only"](2, 3), costs, channels=bus(2, "fair", 2.0))
    assert arrivals(run) == {"0SEND_F0": (1, 4), "0SEND_F1": (2, 5), "0SEND_F2": (3, 6)}


def test_a_training_step_shares_channels_as_its_table_says() -> None:
    #  a(1) ─3─► b(1) ─3─► c(1) on three devices and one bus; the gradients too
    table = make_table([1, 1, 1], [(0, (1,), 3.0), (1, (2,), 3.0)], n_devices=3, shared=True)
    table = table_with(table, backward_s=table.forward_s, gradient=np.ones(2, dtype=bool))
    step, placement = TrainingStep("gpipe", 2), Placement((0, 1, 2))
    own = replace(table, channel=np.where(table.channel >= 0, np.arange(9).reshape(3, 3), -1))
    seconds = {sharing: simulate_training(table, placement, step, sharing).makespan_s for sharing in SHARINGS}
    assert simulate_training(table, placement, step).makespan_s == seconds["fifo"]
    assert simulate_training(replace(table, sharing="fair"), placement, step).makespan_s == seconds["fair"]
    assert seconds["unlimited"] < simulate_training(own, placement, step).makespan_s < seconds["fifo"]
    assert seconds["fifo"] >= 8 * 3  # eight messages on one bus
    with pytest.raises(InputError, match="the sharing of channels is 'half'; it must be one of fifo, fair, unlimited"):
        simulate_training(table, placement, step, "half")  # type: ignore[arg-type]  # that is the point


@given(schedules(), st.data(), st.sampled_from(["fifo", "fair"]), st.booleans())
def test_a_schedule_on_a_bus_runs_as_in_the_exact_engine(
    schedule: Schedule, data: st.DataObject, sharing: Sharing, overlap: bool
) -> None:
    costs = data.draw(stage_costs(schedule.n_stages, whole=True))
    channels = bus(schedule.n_devices, sharing, float(data.draw(st.integers(0, 2))))
    run = simulate_schedule(schedule, costs, overlap, channels=channels)
    tasks = run.lowered.tasks(overlap)
    if sharing == "fifo":
        assert all(set(range(schedule.n_devices)) & set(task.resources) for task in tasks[: len(run.start_s)])
    expected = [float(end) for end in brute_force(tasks)]
    if run.lowered.links:
        np.testing.assert_allclose(run.end_s, expected[: len(run.end_s)], rtol=1e-9, atol=1e-9)
        arrived_s = run.arrived_s[run.lowered.senders]
        np.testing.assert_allclose(arrived_s, expected[len(run.end_s) :], rtol=1e-9, atol=1e-9)


@given(schedules(), st.data(), st.sampled_from(["fifo", "fair"]))
def test_a_free_channel_is_never_slower_and_a_bus_never_faster_than_its_bandwidth(
    schedule: Schedule, data: st.DataObject, sharing: Sharing
) -> None:
    costs = data.draw(stage_costs(schedule.n_stages, whole=True))
    shared, free = (
        simulate_schedule(schedule, costs, channels=bus(schedule.n_devices, how)) for how in (sharing, "unlimited")
    )
    assert (free.start_s <= shared.start_s * (1 + 1e-9)).all()
    assert shared.lowered.message_s.sum() <= shared.makespan_s * (1 + 1e-9)


@given(schedules(), st.data(), st.sampled_from(SHARINGS), st.booleans(), st.integers(0, 40))
def test_a_run_that_is_not_short_enough_is_told_apart_from_one_that_is(
    schedule: Schedule, data: st.DataObject, sharing: Sharing, overlap: bool, below_s: float
) -> None:
    costs = data.draw(stage_costs(schedule.n_stages, whole=True))
    costs = [replace(cost, optimizer_s=float(number)) for number, cost in enumerate(costs)]
    channels = bus(schedule.n_devices, sharing)
    exact_s = simulate_schedule(schedule, costs, overlap, channels=channels).makespan_s
    found_s = simulate_schedule(schedule, costs, overlap, channels=channels, below_s=below_s).makespan_s
    assert found_s == exact_s if exact_s < below_s else found_s >= below_s
