"""The written form of actions and schedules, and what is no schedule."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphs.common.errors import InputError
from simulator.schedule import COMPUTATIONS, Action, Schedule
from tests.simulator.pipelines import schedules

# Stage 0 on device 0 goes back at once, stage 1 on device 1 in two parts.
TWO = Schedule.parse(["0F0 0F1 0B0 0B1", "1F0 1I0 1F1 1W0 1I1 1W1"])

actions = st.builds(Action, st.integers(0, 999_999_999), st.sampled_from(COMPUTATIONS), st.integers(0, 999_999_999))


def error_of(*rows: str) -> str:
    with pytest.raises(InputError) as error:
        Schedule.parse(rows)
    return str(error.value)


# --- actions ---------------------------------------------------------------------------------------------------------


def test_an_action_is_written_as_stage_computation_and_micro_batch() -> None:
    examples = Action(2, "F", 0), Action(1, "I", 3), Action(0, "B", 1), Action(10, "W", 12)
    assert [str(action) for action in examples] == ["2F0", "1I3", "0B1", "10W12"]


@given(actions)
def test_what_is_written_is_read_back(action: Action) -> None:
    assert Action.parse(str(action)) == action
    assert Action.parse(f" {action}\n") == action


@pytest.mark.parametrize(
    "text", ["", "2X0", "F0", "2F", "-1F0", "2F0.5", "2f0", "2F0 2F1", "0REDUCE_GRAD", "٢F0", "9" * 10 + "F0"]
)
def test_what_is_no_action_is_named(text: str) -> None:
    with pytest.raises(InputError) as error:
        Action.parse(text)
    assert str(error.value) == f"'{text}' is no action; write stage, F, B, I or W, and micro-batch, as in 2F0"


# --- schedules -------------------------------------------------------------------------------------------------------


def test_a_schedule_knows_its_stages_devices_and_micro_batches() -> None:
    assert (TWO.n_devices, TWO.n_stages, TWO.micro_batches, TWO.trains) == (2, 2, 2, True)
    assert TWO.actions[1][:2] == (Action(1, "F", 0), Action(1, "I", 0))


def test_stages_may_be_anywhere() -> None:
    # three stages: the outer ones on device 2, the one in between on device 0, device 1 has none
    schedule = Schedule.parse(["1F0", ".", "0F0 2F0"])
    assert (schedule.device, schedule.n_devices, schedule.trains) == ((2, 0, 2), 3, False)


def test_idle_moments_are_left_out() -> None:
    assert Schedule.parse(["0F0 . 0B0", ". 1F0 1B0"]) == Schedule.parse(["0F0 0B0", "1F0 1B0"])


def test_a_csv_has_a_line_for_each_device() -> None:
    assert TWO.to_csv() == "0F0,0F1,0B0,0B1\n1F0,1I0,1F1,1W0,1I1,1W1\n"


@given(schedules(runnable=False))
def test_a_schedule_is_read_back(schedule: Schedule) -> None:
    assert Schedule.parse(str(schedule).splitlines()) == schedule


@given(schedules(runnable=False))
def test_columns_and_positions_are_the_actions(schedule: Schedule) -> None:
    flat = [action for row in schedule.actions for action in row]
    stage, computation, micro_batch, device = (column.tolist() for column in schedule.columns)
    letters = [COMPUTATIONS[number] for number in computation]
    assert [Action(*columns) for columns in zip(stage, letters, micro_batch, strict=True)] == flat
    assert [schedule.device[action.stage] for action in flat] == device
    for number, letter in enumerate(COMPUTATIONS):
        for s in range(schedule.n_stages):
            for i in range(schedule.micro_batches):
                action, at = Action(s, letter, i), int(schedule.position[number, s, i])
                assert flat[at] == action if at >= 0 else action not in flat


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "the schedule is empty; give each device its actions, such as 0F0"),
        ([".", ""], "the schedule is empty; give each device its actions, such as 0F0"),
        (["0F0 2F0"], "no device runs stage 1; the stages go from 0 to 2"),
        (["1F0"], "no device runs stage 0; the stages go from 0 to 1"),
        (["0F0", "1F0 0B0"], "stage 0 is on the devices 0 and 1; put all its actions on one device"),
        (["0F1"], "0F0 is missing; each of 2 micro-batches goes through 1 stages"),
        (["0F0 0F1", "1F1"], "1F0 is missing; each of 2 micro-batches goes through 2 stages"),
        (["0B0"], "0F0 is missing; each of 1 micro-batches goes through 1 stages"),
        (["0F999999999"], "0F0 is missing; each of 1000000000 micro-batches goes through 1 stages"),
        (["0F0 0B0 0F0"], "0F0 is in the schedule more than once; leave one"),
        (["0F0 0F1 0B1 0B1"], "0B1 is in the schedule more than once; leave one"),
        (["0F0 0F1 0B0"], "micro-batch 1 has no backward in stage 0; give it 0B1, or both 0I1 and 0W1"),
        (["0F0 0I0"], "micro-batch 0 has 0I0 in stage 0; give it 0B0, or both 0I0 and 0W0"),
        (["0F0", "1F0 1B0"], "micro-batch 0 has no backward in stage 0; give it 0B0, or both 0I0 and 0W0"),
        (["0F0 0B0 0W0"], "micro-batch 0 has 0B0 and 0W0 in stage 0; give it 0B0, or both 0I0 and 0W0"),
        (
            ["0F0 0B0 0I0 0W0"],
            "micro-batch 0 has 0B0 and 0I0 and 0W0 in stage 0; give it 0B0, or both 0I0 and 0W0",
        ),
        (["0B0 0F0"], "device 0 runs 0B0 before 0F0; turn them round"),
        (["0F0 0B0", "1I0 1F0 1W0"], "device 1 runs 1I0 before 1F0; turn them round"),
        (["0F0 0F1 0I0 0W1 0I1 0W0"], "device 0 runs 0W1 before 0I1; turn them round"),
    ],
)
def test_what_is_no_schedule_is_named(rows: list[str], message: str) -> None:
    assert error_of(*rows) == message


def test_stages_and_micro_batches_are_not_negative() -> None:
    for action in (Action(-1, "F", 0), Action(0, "F", -1)):
        with pytest.raises(InputError) as error:
            Schedule(((action,),))
        assert str(error.value) == "an action has a negative stage or micro-batch; both are numbered from 0"
