"""The steps of one micro-batch, and how many micro-batches hang together."""

import pytest

from simulator.engine import Task
from simulator.placement import Placement
from simulator.simulate import LoweredStep, lower, repeat
from tests.simulator.tables import chain, make_table

PING_PONG = ([1, 2, 3], chain([1, 2, 3], [4, 5]))  # a and c on device 0, b on device 1


@pytest.mark.parametrize("overlap", [True, False])
def test_steps_follow_the_placement_and_each_stage_its_transfers(overlap: bool) -> None:
    # Devices are the resources 0 and 1. The links are the channels 1 (0 → 1) and 2 (1 → 0): resources 3 and 4.
    there, back = ((3,), (4,)) if overlap else ((3, 0, 1), (4, 1, 0))
    assert lower(make_table(*PING_PONG, overlap=overlap), Placement((0, 1, 0))) == (
        LoweredStep("compute", "0", 0, Task(1, (0,), (), name="a")),
        LoweredStep("transfer", "0 → 1", 0, Task(4, there, (0,), name="a*")),
        LoweredStep("compute", "1", 1, Task(2, (1,), (1,), name="b")),
        LoweredStep("transfer", "1 → 0", 1, Task(5, back, (2,), name="b*")),
        LoweredStep(
            "compute", "0", 2, Task(3, (0,), (0, 3), name="c")
        ),  # after b* and after a, the device's previous stage
    )


def test_a_stage_is_named_after_its_first_and_last_operator() -> None:
    (step,) = lower(make_table(*PING_PONG), Placement((0, 0, 0)))
    assert step == LoweredStep("compute", "0", 0, Task(6, (0,), name="a … c"))


def test_micro_batches_are_independent_without_a_limit() -> None:
    steps = lower(make_table(*PING_PONG), Placement((0, 0, 1)))  # [a b] b* [c]
    _, tasks = repeat(steps, micro_batches=2)
    assert [(task.name, task.needs, task.priority) for task in tasks] == [
        ("a … b", (), 0),
        ("b*", (0,), 0),
        ("c", (1,), 0),
        ("a … b", (), 1),
        ("b*", (3,), 1),
        ("c", (4,), 1),
    ]


def test_the_first_stages_need_the_last_ones_of_the_micro_batch_that_makes_room() -> None:
    # a and b start without inputs, c reads a: the first steps are a (0) and b (2), the last ones b (2) and c (3)
    steps = lower(make_table([1, 1, 1], [(0, (2,), 1)], n_devices=3), Placement((0, 1, 2)))
    assert [step.task.name for step in steps] == ["a", "a*", "b", "c"]
    _, tasks = repeat(steps, micro_batches=3, in_flight=2)
    assert [task.needs for task in tasks] == [
        *[(), (0,), (), (1,)],
        *[(), (4,), (), (5,)],
        *[(2, 3), (8,), (2, 3), (9,)],  # micro-batch 2 needs all of micro-batch 0
    ]
