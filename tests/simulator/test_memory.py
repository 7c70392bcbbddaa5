"""What devices hold over time: by hand, and the laws of it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.table import CostTable
from graphs.common.errors import InputError
from simulator.lower_schedule import StageCost
from simulator.memory import Allocation, DeviceMemory, memory_of, training_memory
from simulator.pipeline import simulate_schedule
from simulator.placement import Placement
from simulator.schedules import SCHEDULES
from simulator.simulate import simulate
from simulator.timeline import Timeline
from simulator.training import TrainingRun, TrainingStep, simulate_training
from tests.costmodels.parts import table_with
from tests.simulator.tables import chain, make_table, placements, tables


def steps(memory: DeviceMemory) -> list[tuple[float, float]]:
    return list(zip(*(column.tolist() for column in memory.steps), strict=True))


def placed(seconds: list[float], device: tuple[int, ...], sent_s: float) -> tuple[CostTable, Placement]:
    table = make_table(seconds, chain(seconds, sent_s))
    return replace(table, op_bytes=np.full(len(seconds), 100.0)), Placement(device)


def test_a_tensor_is_held_from_its_writer_to_its_last_reader() -> None:
    #   a(1) b(2) c(1) on one device, 3 bytes each: a* from 0 to 3, b* from 1 to 4
    table, placement = placed([1, 2, 1], (0, 0, 0), 3)
    here, there = memory_of(table, placement, simulate(table, placement))
    assert steps(here) == [(0, 303), (1, 306), (3, 303), (4, 300)]
    assert (here.peak_bytes, here.peak_s) == (306, 1)
    assert here.held(1) == [Allocation("a*", 0, 3), Allocation("b*", 0, 3)]
    assert steps(there) == [(0, 0)]


def test_what_is_sent_is_held_at_both_ends() -> None:
    #   0      a(2)                   a* here from 0 until it has arrived at 5
    #   0 → 1      ====3 s====        there from 2, when it departs, until b has ended
    #   1                     b(4)
    table, placement = placed([2, 4], (0, 1), 3)
    here, there = memory_of(table, placement, simulate(table, placement))
    assert steps(here) == [(0, 103), (5, 100)]
    assert steps(there) == [(0, 100), (2, 103), (9, 100)]


def test_each_micro_batch_has_its_own() -> None:
    #   0  a0 a1        2 s each; the link takes 3 s: a0* 0 to 5, a1* 2 to 8
    table, placement = placed([2, 0], (0, 1), 3)
    here, _ = memory_of(table, placement, simulate(table, placement, micro_batches=2))
    assert steps(here) == [(0, 103), (2, 106), (5, 103), (8, 100)]
    assert here.held(4) == [Allocation("a*", 0, 3), Allocation("a*", 1, 3)]


def test_operators_of_a_stage_share_its_time_as_their_costs_do() -> None:
    # measured, the stage [a b] of 1 s and 3 s took 8 s: a until 2; b* is no flow
    table, placement = placed([1, 3], (0, 0), 5)
    timeline = simulate(table, placement)
    slower = Timeline(timeline.devices, 1, tuple(replace(span, end_s=8.0) for span in timeline.spans))
    (memory, _) = memory_of(table, placement, slower)
    assert memory.until_s.tolist() == [8]
    longer = replace(table, flows=(replace(table.flows[0], readers=(1,)),))
    assert memory_of(longer, placement, slower)[0].from_s.tolist() == [0]


@pytest.mark.parametrize(
    ("kind", "text"), [("compute", "does not run every operator"), ("transfer", "does not send every tensor")]
)
def test_a_timeline_of_another_placement_is_refused(kind: str, text: str) -> None:
    table, placement = placed([1, 1], (0, 1), 1)
    timeline = simulate(table, placement)
    some = Timeline(timeline.devices, 1, tuple(span for span in timeline.spans if span.kind != kind))
    with pytest.raises(InputError, match=f"the timeline {text} of the placement; simulate that placement again"):
        memory_of(table, placement, some)


@given(st.data(), st.integers(1, 4), st.sampled_from(["fifo", "fair"]))
def test_memory_returns_to_its_start_and_covers_every_reader(data: st.DataObject, n: int, sharing: str) -> None:
    table = data.draw(tables(shared=True))
    placement = data.draw(placements(table, copies=3))
    timeline = simulate(table, placement, n, sharing=sharing)  # type: ignore[arg-type]  # one of the two words
    for memory in memory_of(table, placement, timeline):
        time_s, held_bytes = memory.steps
        assert (np.diff(time_s) > 0).all()
        assert held_bytes[-1] == memory.resident_bytes
        assert held_bytes.min() >= memory.resident_bytes
        held = sum(one.n_bytes for one in memory.held(memory.peak_s))
        assert memory.peak_bytes == memory.resident_bytes + held
        assert (memory.until_s <= timeline.makespan_s).all()


@given(st.sampled_from(["1f1b", "gpipe", "zb-h1"]), st.integers(1, 4), st.integers(1, 6), st.integers(1, 9))
def test_training_holds_what_the_schedule_keeps(name: str, p: int, m: int, saved: int) -> None:
    cost = StageCost(1, 1, 1, 0.5, 0.5, saved_bytes=saved, kept_bytes=saved // 2)
    run = simulate_schedule(SCHEDULES[name](p, m), [cost] * p)
    table = replace(make_table([1] * p, n_devices=p), op_bytes=np.full(p, 10.0), working_bytes=7.0)
    stages = tuple((i,) for i in range(p))
    memories = training_memory(table, TrainingRun(run, stages, np.zeros(p), np.zeros(p)))
    assert [memory.peak_bytes for memory in memories] == [17 + saved.peak_bytes for saved in run.saved]
    assert all(memory.steps[1][-1] == memory.resident_bytes == 17 for memory in memories)


def test_the_peak_of_training_is_what_the_judge_says() -> None:
    # 4 bytes saved of each micro-batch, and 1 that is received behind the first stage; 1F1B holds 3, 2 and 1 of them
    table = make_table([1, 1, 1], chain([1, 1, 1], 1.0), n_devices=3)
    table = table_with(table, backward_s=table.forward_s, saved_bytes=np.full(3, 4.0), gradient=np.full(2, True))
    run = simulate_training(table, Placement((0, 1, 2)), TrainingStep("1f1b", 5))
    memories = training_memory(table, run)
    assert [memory.peak_bytes for memory in memories] == run.memory_bytes.tolist() == [3 * 4, 2 * 5, 1 * 5]
    assert memories[0].held(memories[0].peak_s) == [Allocation("stage 0", number, 4) for number in range(3)]


def test_what_is_recomputed_has_a_name_of_its_own() -> None:
    # 4 bytes saved, of which the network's input of 1 is kept: during the first B, two inputs and 3 bytes made anew
    table = make_table([1, 1], chain([1, 1]))
    table = table_with(table, backward_s=table.forward_s, saved_bytes=np.array([4.0, 0]), ends_bytes=np.array([1.0, 0]))
    run = simulate_training(table, Placement((0, 1)), TrainingStep("1f1b", 2, recompute="full"))
    memory, _ = training_memory(table, run)
    assert memory.peak_bytes == run.memory_bytes[0] == 2 * 1 + 3
    assert memory.held(memory.peak_s) == [
        Allocation("stage 0, recomputed", 0, 3),
        Allocation("stage 0", 0, 1),
        Allocation("stage 0", 1, 1),
    ]


def test_pipelined_inference_keeps_nothing() -> None:
    run = simulate_schedule(SCHEDULES["forward-only"](2, 3), [StageCost(1, saved_bytes=5)] * 2)
    table = make_table([1, 1])
    memories = training_memory(table, TrainingRun(run, ((0,), (1,)), np.zeros(2), np.zeros(2)))
    assert [memory.peak_bytes for memory in memories] == [0, 0]
