"""The engine against sums by hand, against a second engine written for clarity, and against the laws of scheduling."""

from collections.abc import Sequence
from itertools import pairwise
from math import inf, nan
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphs.common.errors import InputError
from simulator.engine import Task, times


def starts(tasks: Sequence[Task]) -> list[float]:
    return times(tasks)[0]


def test_the_picture_in_the_docstring() -> None:
    tasks = [Task(3, (0,)), Task(2, (0,), needs=(0,)), Task(4, (1,)), Task(2, (1,), needs=(0, 2))]
    assert starts(tasks) == [0, 3, 0, 4]


def test_no_tasks_take_no_time() -> None:
    assert starts([]) == []


def test_the_smallest_priority_goes_first_and_the_number_breaks_ties() -> None:
    #   r0  ddaabbcc       priorities a 1, b 1, c 2, d 0
    tasks = [Task(2, (0,), priority=priority) for priority in (1, 1, 2, 0)]
    assert starts(tasks) == [2, 4, 6, 0]


def test_a_task_that_holds_two_resources_waits_for_both() -> None:
    #   r0  aaacc
    #   r1  b..cc          c holds both: it waits for a, though r1 is free from 1 on
    tasks = [Task(3, (0,)), Task(1, (1,)), Task(2, (0, 1))]
    assert starts(tasks) == [0, 0, 3]


def test_a_worse_task_takes_what_a_better_one_cannot_use_yet() -> None:
    #   r0  aaa...bb
    #   r1  .cccccbb       b (better than c) waits for r0 until 3; r1 does not stay idle for it, and b waits on
    tasks = [Task(3, (0,)), Task(2, (0, 1), priority=0), Task(1, (2,)), Task(5, (1,), needs=(2,), priority=1)]
    assert starts(tasks) == [0, 6, 0, 1]


def test_the_better_of_two_that_become_free_together_blocks_the_other() -> None:
    #   r0  aabb           at 2 both resources are given back before anything starts: b holds both and is better than c
    #   r1  aabbc
    tasks = [Task(2, (0, 1)), Task(2, (0, 1)), Task(1, (1,))]
    assert starts(tasks) == [0, 2, 4]


def test_tasks_without_duration_follow_each_other_within_one_instant() -> None:
    tasks = [Task(1, (0,)), Task(0, (1,), needs=(0,)), Task(0, (0,), needs=(1,)), Task(2, (0,), needs=(2,))]
    assert starts(tasks) == [0, 1, 1, 1]


def test_what_a_task_without_duration_makes_ready_may_still_be_the_best() -> None:
    #   r0  aaadc          at 3, b (on r1) takes no time and makes d ready, which is better than c
    tasks = [Task(3, (0,)), Task(0, (1,), needs=(0,)), Task(1, (0,), priority=2), Task(1, (0,), needs=(1,), priority=1)]
    assert starts(tasks) == [0, 3, 4, 3]


def test_a_task_without_duration_waits_for_its_resource_too() -> None:
    assert starts([Task(2, (0,)), Task(0, (0,)), Task(1, (1,), needs=(1,))]) == [0, 2, 2]


def test_a_need_named_twice_counts_once_each_way() -> None:
    assert starts([Task(1, (0,)), Task(1, (1,), needs=(0, 0))]) == [0, 1]


def test_a_long_pipeline_takes_the_sum_and_the_slowest_for_each_further_item() -> None:
    # 25,000 items through stations of 1, 3 and 2 seconds: (1 + 3 + 2) + 24,999 · 3 = 75,003
    seconds = (1, 3, 2)
    tasks = [
        Task(duration, (station,), (3 * item + station - 1,) if station else (), item)
        for item in range(25_000)
        for station, duration in enumerate(seconds)
    ]
    assert starts(tasks)[-1] + seconds[-1] == 75_003


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([Task(-1, (0,), name="a")], "task 0 'a' takes -1 s; it must be a finite number, 0 or more"),
        ([Task(nan, (0,), name="a")], "task 0 'a' takes nan s; it must be a finite number, 0 or more"),
        ([Task(inf, (0,), name="a")], "task 0 'a' takes inf s; it must be a finite number, 0 or more"),
        ([Task(1, (), name="a")], "task 0 'a' holds the resources (); give one or more, from 0"),
        ([Task(1, (0, -2), name="a")], "task 0 'a' holds the resources (0, -2); give one or more, from 0"),
        ([Task(1, (0,), (1,), name="a")], "task 0 'a' needs task 1; tasks run from 0 to 0"),
        ([Task(1, (0,)), Task(1, (0,), (-1,), name="b")], "task 1 'b' needs task -1; tasks run from 0 to 1"),
        (
            [Task(1, (0,), (0,), name="a")],
            "tasks wait for each other in a circle: 0 'a' needs 0 'a'; take one of these needs away",
        ),
        (
            # a starts, b and c wait for each other, d waits behind them and is no part of the circle
            [
                Task(1, (0,), name="a"),
                Task(1, (0,), (0, 2), name="b"),
                Task(1, (1,), (1,), name="c"),
                Task(1, (1,), (2,), name="d"),
            ],
            "tasks wait for each other in a circle: 1 'b' needs 2 'c' needs 1 'b'; take one of these needs away",
        ),
        (
            [Task(1, (0,), (2,), name="d"), Task(1, (0,), (2,), name="b"), Task(1, (1,), (1,), name="c")],
            "tasks wait for each other in a circle: 2 'c' needs 1 'b' needs 2 'c'; take one of these needs away",
        ),
        (
            [Task(1, (0,), ((number - 1) % 9,), name="abcdefghi"[number]) for number in range(9)],
            "tasks wait for each other in a circle: 0 'a' needs 8 'i' needs 7 'h' needs 6 'g' needs 5 'f' needs ... "
            "needs 0 'a'; take one of these needs away",
        ),
    ],
)
def test_bad_tasks_are_named(tasks: list[Task], message: str) -> None:
    with pytest.raises(InputError) as error:
        starts(tasks)
    assert str(error.value) == message


@st.composite
def task_lists(draw: st.DrawFn) -> list[Task]:
    """Random DAGs; small whole durations, so that many things happen at once and all sums are exact."""
    tasks: list[Task] = []
    for number in range(draw(st.integers(0, 14))):
        needs = draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else set()
        held = draw(st.sets(st.integers(0, 3), min_size=1, max_size=3))
        tasks.append(Task(draw(st.integers(0, 4)), tuple(held), tuple(needs), draw(st.integers(0, 3)), str(number)))
    return tasks


def brute_force(tasks: Sequence[Task]) -> list[float]:
    """The rule of the engine, word by word: at every instant look at everything, again after every start."""
    best_first = sorted(range(len(tasks)), key=lambda number: (tasks[number].priority, number))
    start: dict[int, float] = {}
    now = 0.0
    while len(start) < len(tasks):
        ended = {number for number in start if start[number] + tasks[number].duration_s <= now}
        held = {resource for number in start if number not in ended for resource in tasks[number].resources}
        can_start = [
            number
            for number in best_first
            if number not in start
            and ended.issuperset(tasks[number].needs)
            and held.isdisjoint(tasks[number].resources)
        ]
        if can_start:
            start[can_start[0]] = now
        else:
            now = min(start[number] + tasks[number].duration_s for number in start if number not in ended)
    return [start[number] for number in range(len(tasks))]


@given(task_lists())
def test_equal_to_the_brute_force_engine(tasks: list[Task]) -> None:
    assert starts(tasks) == brute_force(tasks)


@given(task_lists(), st.randoms(use_true_random=False))
def test_the_numbering_matters_only_between_equal_priorities(tasks: list[Task], random: Random) -> None:
    tasks = [task._replace(priority=number) for number, task in enumerate(tasks)]
    place = list(range(len(tasks)))  # old number -> new number
    random.shuffle(place)
    shuffled = sorted(tasks, key=lambda task: place[int(task.name)])
    shuffled = [task._replace(needs=tuple(place[need] for need in task.needs)) for task in shuffled]
    start_s = starts(shuffled)
    assert [start_s[place[number]] for number in range(len(tasks))] == starts(tasks)


@given(task_lists())
def test_nothing_is_held_twice(tasks: list[Task]) -> None:
    start_s = starts(tasks)
    for resource in range(4):
        held = [
            (start, start + task.duration_s)
            for start, task in zip(start_s, tasks, strict=True)
            if resource in task.resources
        ]
        held.sort()
        assert all(end <= start for (_, end), (start, _) in pairwise(held))


@given(task_lists())
def test_nothing_starts_before_what_it_needs_has_ended(tasks: list[Task]) -> None:
    start_s = starts(tasks)
    for start, task in zip(start_s, tasks, strict=True):
        assert all(start_s[need] + tasks[need].duration_s <= start for need in task.needs)


@given(task_lists())
def test_nobody_waits_without_a_reason(tasks: list[Task]) -> None:
    """From the moment a task is ready until it starts, one of its resources is held at every instant."""
    start_s = starts(tasks)
    ends = [start + task.duration_s for start, task in zip(start_s, tasks, strict=True)]
    for number, task in enumerate(tasks):
        ready = max((ends[need] for need in task.needs), default=0.0)
        instants = sorted({moment for moment in (ready, *start_s, *ends) if ready <= moment < start_s[number]})
        for moment in instants:
            assert any(
                start_s[other] <= moment < ends[other] and not set(tasks[other].resources).isdisjoint(task.resources)
                for other in range(len(tasks))
            )
