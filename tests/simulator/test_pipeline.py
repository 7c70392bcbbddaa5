"""Simulated pipelines: messages, saved activations and the timeline by hand, and the laws that every run obeys."""

from dataclasses import replace
from itertools import pairwise
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphs.common.errors import InputError
from simulator.lower_schedule import StageCost
from simulator.pipeline import PipelineRun, simulate_schedule
from simulator.schedule import Action, Schedule
from simulator.schedules import SCHEDULES
from simulator.timeline import Span, Timeline
from tests.simulator.pipelines import drawn, needs, peaks, schedules, stage_costs


def sent(run: PipelineRun) -> list[tuple[str, str, float, float]]:
    """The messages: what, on which link, from when until when."""
    spans = [span for span in run.timeline.spans if span.kind == "transfer"]
    return [(span.label, span.resource, span.start_s, span.end_s) for span in spans]


# --- by hand ---------------------------------------------------------------------------------------------------------


def test_the_timeline_has_actions_and_messages_in_the_order_in_which_they_start() -> None:
    #   a      0F0 0F0 .   .   .   .   0B0 0B0 0B0       F 2 s, B 3 s on stage 0; F 1 s, B 1 s on stage 1
    #   a → b          >>>                               an activation 1 s, a gradient 1 s
    #   b      .   .   .   1F0 1B0
    #   b → a                      <<<
    schedule = Schedule.parse(["0F0 0B0", "1F0 1B0"])
    run = simulate_schedule(schedule, [StageCost(2, 1, 2, 1), StageCost(1, 0.5, 0.5, 7, 1)], devices=["a", "b"])
    assert run.timeline == Timeline(
        devices=("a", "b"),
        micro_batches=1,
        spans=(
            Span("compute", "a", "0F0", 0, 0, 0.0, 2.0),
            Span("transfer", "a → b", "0SEND_F0", 0, 0, 2.0, 3.0),
            Span("compute", "b", "1F0", 0, 1, 3.0, 4.0),
            Span("compute", "b", "1B0", 0, 1, 4.0, 5.0),
            Span("transfer", "b → a", "1SEND_B0", 0, 1, 5.0, 6.0),
            Span("compute", "a", "0B0", 0, 0, 6.0, 9.0),
        ),
    )
    assert run.makespan_s == run.timeline.makespan_s == 9
    assert run.span_s.tolist() == [9, 5 - 3]


def test_a_link_carries_one_message_at_a_time() -> None:
    #   0      0F0 0F1 0F2
    #   0 → 1      >>>>>>> >>>>>>> >>>>>>>
    #   1                  1F0     1F1     1F2
    run = simulate_schedule(SCHEDULES["forward-only"](2, 3), [StageCost(1, activation_s=2)] * 2)
    assert sent(run) == [("0SEND_F0", "0 → 1", 1, 3), ("0SEND_F1", "0 → 1", 3, 5), ("0SEND_F2", "0 → 1", 5, 7)]
    assert drawn(run) == ["0F0 0F1 0F2 .   .   .   .   .", ".   .   .   1F0 .   1F1 .   1F2"]


def test_a_link_has_two_directions() -> None:
    # the second activation and the first gradient pass each other between 6 and 7
    schedule = Schedule.parse(["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"])
    run = simulate_schedule(schedule, [StageCost(1, 1, 0, 3, 3)] * 2)
    assert sent(run) == [
        ("0SEND_F0", "0 → 1", 1, 4),
        ("0SEND_F1", "0 → 1", 4, 7),
        ("1SEND_B0", "1 → 0", 6, 9),
        ("1SEND_B1", "1 → 0", 9, 12),
    ]


def test_activations_and_gradients_share_a_direction_in_the_order_in_which_they_are_made() -> None:
    # two devices, stages 0 and 2 on the first: 0's activation and 2's gradient both go 0 → 1
    run = simulate_schedule(SCHEDULES["interleaved"](2, 2, 2), [StageCost(1, 1, 0, 2, 2)] * 4)
    there = [(name, start_s, end_s) for name, link, start_s, end_s in sent(run) if link == "0 → 1"]
    assert [name for name, *_ in there] == ["0SEND_F0", "0SEND_F1", "2SEND_F0", "2SEND_F1", "2SEND_B0", "2SEND_B1"]
    assert all(end_s <= start_s for (_, _, end_s), (_, start_s, _) in pairwise(there))


def test_without_overlap_a_message_holds_both_its_ends() -> None:
    #   0  0F0 >>> 0F1 >>> 0F2 >>> .
    #   1  .   >>> 1F0 >>> 1F1 >>> 1F2
    run = simulate_schedule(SCHEDULES["forward-only"](2, 3), [StageCost(1, activation_s=1)] * 2, overlap=False)
    assert sent(run) == [("0SEND_F0", "0 → 1", 1, 2), ("0SEND_F1", "0 → 1", 3, 4), ("0SEND_F2", "0 → 1", 5, 6)]
    assert drawn(run) == ["0F0 .   0F1 .   0F2 .   .", ".   .   1F0 .   1F1 .   1F2"]


def test_without_overlap_a_message_waits_for_both_its_ends_and_goes_before_computing() -> None:
    #   0  0F0 >>> 0F1 0F2 >>> >>> .   .   .   .       at 3, 0F1 is there to be sent, but device 1 computes until 4;
    #   1  .   >>> 1F0 -   >>> >>> 1F1 -   1F2 -       at 5, 0F2 is sent before 1F1 starts
    costs = [StageCost(1, activation_s=1), StageCost(2)]
    run = simulate_schedule(SCHEDULES["forward-only"](2, 3), costs, overlap=False)
    assert drawn(run) == ["0F0 .   0F1 0F2 .   .   .   .   .   .", ".   .   1F0 -   .   .   1F1 -   1F2 -"]


def test_stages_need_not_be_spread_evenly() -> None:
    # stage 0 on device 0; the stages 1 and 2 on device 1, between which nothing is sent
    schedule = Schedule.parse(["0F0 0F1 0B0 0B1", "1F0 2F0 2B0 1B0 1F1 2F1 2B1 1B1"])
    run = simulate_schedule(schedule, [StageCost(1, 0.5, 0.5, 1, 1)] * 3)
    assert drawn(run) == [
        "0F0 0F1 .   .   .   .   .   0B0 .   .   .   0B1",
        ".   .   1F0 2F0 2B0 1B0 1F1 2F1 2B1 1B1 .   .",
    ]
    assert [name for name, *_ in sent(run)] == ["0SEND_F0", "0SEND_F1", "1SEND_B0", "1SEND_B1"]


def test_a_device_without_a_stage_does_nothing() -> None:
    run = simulate_schedule(Schedule.parse([".", "0F0 0B0"]), [StageCost(1, 1, 1, saved_bytes=5)])
    assert (run.span_s.tolist(), peaks(run)) == ([0, 3], [0, 5])
    assert run.timeline.busy_s.tolist() == [0, 3]


# --- what is saved ---------------------------------------------------------------------------------------------------


def test_saved_bytes_over_time() -> None:
    #   0F0 0F1 0I0 -   0W0 0B1 -   -
    #   10  20          13  10          0      F keeps 10 from its start; I lets 10 go and keeps 3; B lets 10 go
    run = simulate_schedule(Schedule.parse(["0F0 0F1 0I0 0W0 0B1"]), [StageCost(1, 2, 1, 0, 0, 10, 3)])
    (saved,) = run.saved
    assert saved.time_s.tolist() == [0, 1, 4, 5, 8]
    assert saved.held_bytes.tolist() == [10, 20, 13, 10, 0]
    assert saved.peak_bytes == 20


def test_what_b_lets_go_at_an_instant_makes_room_for_f_at_that_instant() -> None:
    (saved,) = simulate_schedule(Schedule.parse(["0F0 0B0 0F1 0B1"]), [StageCost(1, 1, 1, saved_bytes=10)]).saved
    assert saved.time_s.tolist() == [0, 3, 3, 6]
    assert saved.peak_bytes == 10


def test_the_gradient_parts_may_need_more_than_the_activations() -> None:
    (saved,) = simulate_schedule(Schedule.parse(["0F0 0I0 0W0"]), [StageCost(1, 1, 1, 0, 0, 10, 30)]).saved
    assert saved.held_bytes.tolist() == [10, 30, 0]
    assert saved.peak_bytes == 30


def test_each_stage_of_a_device_saves_what_is_its_own() -> None:
    schedule = Schedule.parse(["0F0 1F0 1B0 0B0"])
    (saved,) = simulate_schedule(schedule, [StageCost(1, saved_bytes=1), StageCost(1, saved_bytes=20)]).saved
    assert saved.held_bytes.tolist() == [1, 21, 1, 0]


def test_inference_saves_nothing() -> None:
    run = simulate_schedule(SCHEDULES["forward-only"](2, 3), [StageCost(1, saved_bytes=10)] * 2)
    assert peaks(run) == [0, 0]


# --- laws ------------------------------------------------------------------------------------------------------------


@st.composite
def runs(draw: st.DrawFn, overlap: bool | None = None) -> tuple[PipelineRun, bool]:
    schedule = draw(schedules())
    costs = draw(stage_costs(schedule.n_stages, whole=True))
    overlap = draw(st.booleans()) if overlap is None else overlap
    return simulate_schedule(schedule, costs, overlap), overlap


def disjoint(spans: list[Span]) -> bool:
    times_s = sorted((span.start_s, span.end_s) for span in spans)
    return all(end_s <= start_s for (_, end_s), (start_s, _) in pairwise(times_s))


@given(runs())
def test_devices_and_links_do_one_thing_at_a_time(run_overlap: tuple[PipelineRun, bool]) -> None:
    run, overlap = run_overlap
    spans = run.timeline.spans
    for resource in {span.resource for span in spans}:
        mine = [span for span in spans if span.resource == resource]
        if not overlap and resource in run.devices:
            mine += [span for span in spans if span.kind == "transfer" and resource in span.resource.split(" → ")]
        assert disjoint(mine)


@given(runs())
def test_devices_keep_their_order(run_overlap: tuple[PipelineRun, bool]) -> None:
    run, _ = run_overlap
    starts_s = run.lowered.schedule.split(run.start_s)
    assert all((start_s == sorted(start_s)).all() for start_s in starts_s)
    for name, row in zip(run.devices, run.lowered.schedule.actions, strict=True):
        labels = [span.label for span in run.timeline.spans if span.resource == name]
        assert sorted(labels) == sorted(map(str, row))


@given(runs())
def test_nothing_starts_before_what_it_reads_has_arrived(run_overlap: tuple[PipelineRun, bool]) -> None:
    run, _ = run_overlap
    schedule, costs = run.lowered.schedule, run.lowered.costs
    actions = run.lowered.actions
    start_s, end_s = (dict(zip(actions, times_s.tolist(), strict=True)) for times_s in (run.start_s, run.end_s))
    split = [Action(stage, "I", 0) in start_s for stage in range(schedule.n_stages)]
    for action in actions:
        for need in needs(action, schedule.n_stages, split):
            message_s = 0.0
            if schedule.device[need.stage] != schedule.device[action.stage]:
                cost = costs[need.stage]
                message_s = cost.activation_s if need.computation == "F" else cost.gradient_s
            assert end_s[need] + message_s <= start_s[action]


@given(runs())
def test_work_is_neither_lost_nor_made(run_overlap: tuple[PipelineRun, bool]) -> None:
    run, _ = run_overlap
    schedule, work_s = run.lowered.schedule, [0.0] * len(run.devices)
    for device, cost in zip(schedule.device, run.lowered.costs, strict=True):
        backward_s = cost.input_grad_s + cost.weight_grad_s if schedule.trains else 0
        work_s[device] += schedule.micro_batches * (cost.forward_s + backward_s)
    assert run.timeline.busy_s.tolist() == work_s
    assert run.makespan_s >= max(work_s)


@given(runs())
def test_memory_returns_to_its_start(run_overlap: tuple[PipelineRun, bool]) -> None:
    run, _ = run_overlap
    for saved, row in zip(run.saved, run.lowered.schedule.actions, strict=True):
        assert (saved.held_bytes >= 0).all()
        assert saved.held_bytes[-1:].tolist() == [0] * bool(row)
        assert saved.time_s.tolist() == sorted(saved.time_s)


@given(st.data(), schedules(), st.floats(0, 1))
def test_more_bandwidth_is_never_slower(data: st.DataObject, schedule: Schedule, share: float) -> None:
    """In a static order, every start is a maximum of sums of what came before; so it only moves forward."""
    costs = data.draw(stage_costs(schedule.n_stages))
    faster = [replace(c, activation_s=share * c.activation_s, gradient_s=share * c.gradient_s) for c in costs]
    assert (simulate_schedule(schedule, faster).start_s <= simulate_schedule(schedule, costs).start_s).all()


@given(st.data(), schedules())
def test_overlap_is_never_slower(data: st.DataObject, schedule: Schedule) -> None:
    costs = data.draw(stage_costs(schedule.n_stages))
    overlapped, held = (simulate_schedule(schedule, costs, overlap) for overlap in (True, False))
    assert (overlapped.start_s <= held.start_s).all()


@given(st.data(), schedules())
def test_overlap_does_not_matter_without_messages(data: st.DataObject, schedule: Schedule) -> None:
    costs = [replace(cost, activation_s=0, gradient_s=0) for cost in data.draw(stage_costs(schedule.n_stages))]
    one, other = (simulate_schedule(schedule, costs, overlap) for overlap in (True, False))
    assert one.timeline == other.timeline


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["forward_s", "input_grad_s", "weight_grad_s", "activation_s", "gradient_s", "saved_bytes", "kept_bytes"],
)
@pytest.mark.parametrize("value", [-1, inf, nan])
def test_costs_are_finite_and_not_negative(name: str, value: float) -> None:
    changed: dict[str, Any] = {name: value}
    with pytest.raises(InputError) as error:
        replace(StageCost(1), **changed)
    assert str(error.value) == f"the {name} of a stage is {value}; it must be a finite number, 0 or more"


def test_there_is_one_cost_for_each_stage() -> None:
    with pytest.raises(InputError) as error:
        simulate_schedule(SCHEDULES["1f1b"](2, 4), [StageCost(1)] * 3)
    assert str(error.value) == "there are costs of 3 stages; the schedule has 2"


def test_there_is_one_name_for_each_device() -> None:
    with pytest.raises(InputError) as error:
        simulate_schedule(SCHEDULES["1f1b"](2, 4), [StageCost(1)] * 2, devices=["a"])
    assert str(error.value) == "there are names of 1 devices; the schedule has 2"


@pytest.mark.parametrize("overlap", [True, False])
def test_a_schedule_that_stops_is_an_error(overlap: bool) -> None:
    schedule = Schedule.parse(["0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"])
    with pytest.raises(InputError) as error:
        simulate_schedule(schedule, [StageCost(1, 1, 1, 1, 1)] * 2, overlap)
    assert str(error.value) == (
        "the schedule comes to a stop, waiting in a circle: device 0 at 0B0 for 1B0, device 1 at 1F1 for 0F1; "
        "run one of these earlier"
    )
