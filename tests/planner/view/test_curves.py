from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from planner.view.numbers import number
from planner.view.timelines import thinned, with_transfers
from simulator.memory import memory_of
from simulator.timeline import Timeline
from tests.planner.view.samples import MS, fork_plan


def test_few_steps_stay_as_they_are() -> None:
    time_s, held_bytes = np.array([0.0, 1.0]), np.array([5.0, 7.0])
    assert thinned(time_s, held_bytes)[0] is time_s


def test_of_many_steps_the_most_of_each_piece_is_left() -> None:
    time_s, held_bytes = np.arange(8.0), np.array([1.0, 9, 2, 3, 8, 4, 1, 0])
    # pieces from 0, 1.75, 3.5 and 5.25 on; what was there when one begins counts
    edges_s, most_bytes = thinned(time_s, held_bytes, 4)
    assert edges_s.tolist() == [0.0, 1.75, 3.5, 5.25]
    assert most_bytes.tolist() == [9.0, 9.0, 8.0, 4.0]


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(0, 9)), min_size=1, max_size=60), st.integers(1, 20))
def test_thinning_never_hides_a_peak_nor_invents_one(steps: list[tuple[float, int]], most: int) -> None:
    times = sorted({0.0, *(time for time, _ in steps)})
    held: list[float] = [float(steps[i % len(steps)][1]) for i in range(len(times))]
    edges_s, most_bytes = thinned(np.array(times), np.array(held), most)
    assert len(edges_s) <= max(most, 1) or len(times) <= most
    assert most_bytes.max() == max(held)
    for time_s, n_bytes in zip(times, held, strict=True):  # the curve is nowhere below what it stands for
        assert most_bytes[np.searchsorted(edges_s, time_s, side="right") - 1] >= n_bytes


def test_numbers_are_short_and_json() -> None:
    values: list[Any] = [1.0, 0.1234567, 123456789.0, float("inf"), None]
    assert [number(value) for value in values] == [1, 0.123457, 123457000, None, None]


def test_a_run_without_copies_gets_its_tensors_when_they_are_written() -> None:
    plan = fork_plan()
    run = plan.simulate(2)
    computed = Timeline(run.devices, 2, tuple(span for span in run.spans if span.kind == "compute"))
    whole = with_transfers(plan, computed)
    sent = [span for span in whole.spans if span.kind == "transfer"]
    assert [(span.resource, span.label, span.micro_batch) for span in sent if span.micro_batch == 0] == [
        ("cpu0 → cpu1", "b", 0),
        ("cpu1 → cpu0", "c", 0),
    ]
    assert sent[0].start_s == sent[0].end_s == 5 * MS  # the end of conv and relu
    assert memory_of(plan.table, plan.placement, whole)[1].peak_bytes > 0
    assert with_transfers(plan, run) == run  # nothing is missing
