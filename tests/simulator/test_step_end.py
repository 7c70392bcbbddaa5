"""Recomputation, replicas and the optimizer: closed forms and runs by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.lower_schedule import StageCost
from simulator.memory import training_memory
from simulator.pipeline import StepEnd, simulate_schedule
from simulator.schedule import Schedule
from simulator.schedules import SCHEDULES
from simulator.training import TrainingRun
from tests.simulator.pipelines import peaks, schedules
from tests.simulator.tables import make_table

SIZES = pytest.mark.parametrize(("p", "m"), [(1, 1), (2, 3), (4, 4), (4, 9)])


@SIZES
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_recomputing_makes_each_backward_pass_a_forward_pass_longer(schedule: str, p: int, m: int) -> None:
    # (m + p - 1) (F + B) with F = 1 and B = 2 + 1
    costs = [StageCost(1, 1, 1, saved_bytes=10).recomputing(2, 1.0)] * p
    assert simulate_schedule(SCHEDULES[schedule](p, m), costs).makespan_s == (m + p - 1) * (1 + 3)


@SIZES
def test_recomputing_keeps_inputs_and_one_micro_batch_more(p: int, m: int) -> None:
    # 1F1B holds min(p - r, m) micro-batches: of each its input of 2 bytes, and of the one that goes back the other 8
    costs = [StageCost(1, 1, 1, saved_bytes=10).recomputing(2, 1.0)] * p
    run = simulate_schedule(SCHEDULES["1f1b"](p, m), costs)
    assert peaks(run) == [2 * min(p - rank, m) + 8 for rank in range(p)]


@SIZES
def test_the_parts_of_a_backward_pass_recompute_once(p: int, m: int) -> None:
    # on the last device of ZB-H1 F, I and W follow each other: m (1 + (1 + 1) + 1) s behind p - 1 forward passes
    costs = [StageCost(1, 1, 1, saved_bytes=10, kept_bytes=4).recomputing(2, 1.0)] * p
    run = simulate_schedule(SCHEDULES["zb-h1"](p, m), costs)
    assert run.span_s[-1] == 4 * m
    assert peaks(run)[-1] == 10 + 4 * min(p - 1, m - 1)  # an I, and what the others have left for the W put off


def test_what_waits_may_be_more_than_is_saved() -> None:
    cost = StageCost(1, 1, 1, saved_bytes=10)
    assert (cost.recomputing(12, 1.0).saved_bytes, cost.recomputing(12, 1.0).recomputed_bytes) == (12, 0)


@given(schedules(), st.data())
def test_the_two_accounts_of_memory_agree(schedule: Schedule, data: st.DataObject) -> None:
    n = schedule.n_stages
    seconds, sizes = st.integers(1, 5), st.integers(0, 9)
    costs = []
    for _ in range(n):
        forward_s, input_grad_s, weight_grad_s = (data.draw(seconds) for _ in range(3))
        cost = StageCost(forward_s, input_grad_s, weight_grad_s, 1, 2, data.draw(sizes), data.draw(sizes))
        costs.append(cost.recomputing(data.draw(sizes), forward_s))
    run = simulate_schedule(schedule, costs)
    training = TrainingRun(run, ((),) * n, run.span_s, run.span_s)
    assert [memory.peak_bytes for memory in training_memory(make_table([1]), training)] == peaks(run)
    assert all(saved.held_bytes[-1] == 0 for saved in run.saved if saved.held_bytes.size)


@SIZES
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_a_step_ends_with_the_sync_and_the_optimizer(schedule: str, p: int, m: int) -> None:
    # the first stage is the last to go back: (m + p - 1) (F + B) + sync + optimizer
    costs = [StageCost(1, 1, 1, sync_s=5, optimizer_s=0.5)] * p
    run = simulate_schedule(SCHEDULES[schedule](p, m), costs)
    assert run.makespan_s == run.timeline.makespan_s == (m + p - 1) * 3 + 5.5


def test_a_device_syncs_its_stages_one_after_the_other_while_it_computes() -> None:
    #   0  0F0 2F0 2B0 2B0 . . 0B0 0B0 [opt]        stage 2 is ready at 5, its sync of 4 s ends at 9;
    #   1      1F0   1B0 1B0                        stage 0 is ready at 9
    schedule = Schedule.parse(["0F0 2F0 2B0 0B0", "1F0 1B0"])
    costs = [StageCost(1, 1, 1, sync_s=s, optimizer_s=1) for s in (2, 0, 4)]
    run = simulate_schedule(schedule, costs)
    #   0F0 0-1, 1F0 1-2, 2F0 2-3, 2B0 3-5, 1B0 5-7, 0B0 7-9
    assert (*run.step_end,) == (((2, 0, 5, 9), (0, 0, 9, 11)), ((0, 0, 11, 13), (1, 1, 7, 8)))
    shown = [(span.label, span.resource) for span in run.timeline.spans if span.start_s >= 5 and "B" not in span.label]
    assert shown == [("2SYNC", "0 → replicas"), ("optimizer", "1"), ("0SYNC", "0 → replicas"), ("optimizer", "0")]
    waiting = simulate_schedule(schedule, costs, overlap=False)
    assert waiting.step_end.syncs == ((2, 0, 9, 13), (0, 0, 13, 15))


def test_inference_has_no_such_end() -> None:
    run = simulate_schedule(SCHEDULES["forward-only"](2, 2), [StageCost(1, sync_s=5, optimizer_s=5)] * 2)
    assert (run.makespan_s, run.step_end) == (3, StepEnd((), ()))
