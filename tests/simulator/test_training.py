"""A training step: stages, what crosses their borders, memory by the schedule; against the closed forms."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.step_update import StepUpdate
from costmodels.table import CostTable
from costmodels.workload import TRAINING_SCHEDULES
from graphs.common.errors import InputError
from simulator.placement import Placement
from simulator.schedules import SCHEDULES
from simulator.training import TrainingStep, simulate_training, stage_costs, training_stages
from tests.costmodels.parts import table_with
from tests.simulator.tables import chain, make_table, placements, tables


def trained(table: CostTable, backward: float = 2.0, saved: float = 1.0, gradients: bool = True) -> CostTable:
    """The table with a backward pass of so many times the forward pass; each operator saves so many bytes."""
    return table_with(
        table,
        backward_s=backward * table.forward_s,
        saved_bytes=np.full(table.n_ops, saved),
        gradient=np.full(len(table.flows), gradients),
        capacity_bytes=np.full(table.n_devices, 100.0),
    )


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("p", "m"), [(1, 1), (1, 5), (2, 4), (4, 4), (4, 9)])
def test_equal_stages_take_the_closed_form(schedule: str, p: int, m: int) -> None:
    # (m + p - 1) (F + B) with F = 1 and B = 2
    table = trained(make_table([1] * p, chain([1] * p), n_devices=p))
    run = simulate_training(table, Placement(tuple(range(p))), TrainingStep(schedule, m))
    assert run.makespan_s == pytest.approx((m + p - 1) * 3, rel=1e-9)


def test_memory_is_what_the_schedule_holds() -> None:
    # 3 stages, 5 micro-batches: 1F1B holds min(p - r, m) = 3, 2, 1, GPipe all 5. Each operator saves 2 bytes of a
    # micro-batch and receives 1, but for the first one, and keeps 10 for good
    table = replace(
        trained(make_table([1] * 3, chain([1] * 3, 1.0), n_devices=3), saved=2.0), op_bytes=np.full(3, 10.0)
    )
    placement = Placement((0, 1, 2))
    held = [simulate_training(table, placement, TrainingStep(name, 5)).memory_bytes for name in ("1f1b", "gpipe")]
    assert [memory.tolist() for memory in held] == [
        [10 + 3 * 2, 10 + 2 * 3, 10 + 3],
        [10 + 5 * 2, 10 + 5 * 3, 10 + 5 * 3],
    ]


def test_messages_and_gradients_cross_the_borders() -> None:
    #  a(1) ─2 s─► b(3): forward 1 + 2 + 3, backward 6 + 2 + 2
    table = trained(make_table([1, 3], chain([1, 1], 2.0)))
    run = simulate_training(table, Placement((0, 1)), TrainingStep("1f1b", 1))
    assert run.makespan_s == 1 + 2 + 3 + 6 + 2 + 2
    frozen = table_with(table, gradient=np.array([False]))
    assert simulate_training(frozen, Placement((0, 1)), TrainingStep("1f1b", 1)).makespan_s == 1 + 2 + 3 + 6 + 2


def test_what_skips_a_stage_passes_its_borders() -> None:
    # a* is read by b and c: with a stage each, it crosses both borders; b* crosses the second one
    table = trained(make_table([1, 1, 1], [(0, (1, 2), 5.0), (1, (2,), 1.0)], n_devices=3))
    costs = stage_costs(table, [[0], [1], [2]], [0, 1, 2])
    assert [cost.activation_s for cost in costs] == [5, 5 + 1, 0]
    assert [cost.gradient_s for cost in costs] == [0, 5, 5 + 1]


def test_handing_over_occupies_both_ends() -> None:
    table = replace(trained(make_table([1, 1], chain([1, 1]))), overhead_s=np.array([0.25, 0.5]))
    costs = stage_costs(table, [[0], [1]], [0, 1])
    assert [cost.forward_s for cost in costs] == [1.25, 1.5]
    assert [cost.input_grad_s + cost.weight_grad_s for cost in costs] == [2.25, 2.5]


def test_recomputing_keeps_inputs_and_runs_forward_again() -> None:
    # F = 1, B = 2, each B one second more: (m + p - 1) (2 F + B). Of a micro-batch a stage saves 8 and what it
    # receives, 3; the first one keeps the network's input of 2 bytes, the others those 3. One is there in full
    table = replace(trained(make_table([1] * 3, chain([1] * 3, 3.0), n_devices=3), saved=8.0), overlap=True)
    table = table_with(table, ends_bytes=np.array([2.0, 0, 0]), link_s=np.zeros((2, 1)))
    run = simulate_training(table, Placement((0, 1, 2)), TrainingStep("1f1b", 5, recompute="full"))
    assert run.makespan_s == pytest.approx((5 + 2) * 4)
    assert run.load_s.tolist() == [4, 4, 4]
    assert run.memory_bytes.tolist() == [2 * 2 + 8, 3 + 11, 11]
    whole = simulate_training(table, Placement((0, 1, 2)), TrainingStep("1f1b", 5))
    assert whole.memory_bytes.tolist() == [3 * 8, 2 * 11, 11]


def test_a_hand_over_is_not_recomputed() -> None:
    table = replace(trained(make_table([1, 1], chain([1, 1]))), overhead_s=np.array([0.25, 0.5]))
    costs = stage_costs(table, [[0], [1]], [0, 1], recompute="full")
    assert [cost.recompute_s for cost in costs] == [1, 1]
    assert [cost.forward_s for cost in costs] == [1.25, 1.5]


def test_a_backward_pass_in_two_parts_keeps_everything_until_its_second_one() -> None:
    # zb-h1 on 2 devices: device 0 holds both until W has ended, device 1 puts its first W off behind the next I
    table = trained(make_table([1, 1], chain([1, 1]), n_devices=2), saved=10.0)
    run = simulate_training(table, Placement((0, 1)), TrainingStep("zb-h1", 4))
    assert run.memory_bytes.tolist() == [20, 20]
    again = simulate_training(table, Placement((0, 1)), TrainingStep("zb-h1", 4, recompute="full"))
    assert again.memory_bytes.tolist() == [10, 20]  # nothing waits for I but inputs of no bytes; for W, two may


def test_a_step_ends_with_the_optimizer() -> None:
    # 4 bytes of gradients on each device; device 1 takes 2 s a byte, and ends its last B 3 s before device 0 does
    table = trained(make_table([1, 1], chain([1, 1])))
    update = StepUpdate(np.array([4.0, 4.0]), np.array([0.5, 2.0]), np.zeros(2), np.zeros(2))
    step, placement = TrainingStep("1f1b", 4), Placement((0, 1))
    alone_s = simulate_training(table, placement, step).makespan_s
    assert alone_s == (4 + 1) * 3
    assert simulate_training(table_with(table, update=update), placement, step).makespan_s == max(15 + 2, 13 + 8)


def test_replicas_add_up_their_gradients_first() -> None:
    update = StepUpdate(np.array([4.0, 4.0]), np.array([0.5, 0.5]), np.full(2, 0.25), np.full(2, 1.5))
    table = table_with(trained(make_table([1, 1], chain([1, 1]))), update=update)
    run = simulate_training(table, Placement((0, 1)), TrainingStep("1f1b", 4))
    assert run.makespan_s == 15 + (1.5 + 4 * 0.25) + 2
    (first, second) = run.pipeline.step_end.syncs
    assert (first.start_s, first.end_s, second.end_s) == (15, 17.5, 13 + 2.5)


def test_rings_share_an_uplink_while_they_run_at_once() -> None:
    # 1 s a byte alone: device 1 has sent 2 of its 4 bytes when device 0 begins, both send 2 in 4 s, device 0 its last 2
    table = trained(make_table([1, 1], chain([1, 1])))
    update = StepUpdate(np.array([4.0, 4.0]), np.zeros(2), np.ones(2), np.zeros(2), np.zeros(2, dtype=np.int64))
    step, placement = TrainingStep("1f1b", 4), Placement((0, 1))
    run = simulate_training(table_with(table, update=update), placement, step)
    assert [(sync.start_s, sync.end_s) for sync in run.pipeline.step_end.syncs] == [(15, 21), (13, 19)]
    later = replace(update, sync_latency_s=np.ones(2))  # which leaves the uplink free: 14 to 20, 16 to 22
    run = simulate_training(table_with(table, update=later), placement, step)
    assert [sync.end_s for sync in run.pipeline.step_end.syncs] == [22, 20]
    of_its_own = replace(update, uplink=np.arange(2))
    assert simulate_training(table_with(table, update=of_its_own), placement, step).makespan_s == 19


@pytest.mark.parametrize(("p", "m"), [(1, 1), (2, 4), (3, 6), (4, 9)])
def test_a_v_has_both_ends_on_the_first_device(p: int, m: int) -> None:
    table = trained(make_table([1] * 2 * p, chain([1] * 2 * p), n_devices=p))
    placement = Placement((*range(p), *reversed(range(p))))
    assert training_stages(table, placement, "zbv") == tuple((op,) for op in range(2 * p))
    run = simulate_training(table, placement, TrainingStep("zbv", m))
    # where F, I and W take equally long, no device idles between its first and its last action: 2 m stages of 3 s
    assert run.pipeline.span_s == pytest.approx([2 * m * 3] * p if m >= 2 * p - 1 else run.pipeline.span_s)
    assert run.makespan_s >= 2 * m * 3


def test_the_turn_is_cut_where_both_parts_take_most_nearly_equally_long() -> None:
    # x: a, y: b(1) c(2) d(4) e(2), x: f; b c d | e is 7 and 2, b c | d e is 3 and 6
    table = trained(make_table([1, 1, 2, 4, 2, 1], chain([1] * 6)))
    stages = training_stages(table, Placement((0, 1, 1, 1, 1, 0)), "zbv")
    assert stages == ((0,), (1, 2), (3, 4), (5,))


def test_interleaved_stages_are_runs_of_the_order() -> None:
    table = trained(make_table([1] * 4, chain([1] * 4)))
    placement = Placement((0, 1, 0, 1))
    assert training_stages(table, placement) == ((0,), (1,), (2,), (3,))
    run = simulate_training(table, placement, TrainingStep("interleaved", 4))
    # m v (F + B) + (p - 1) (F + B) of a stage: 4 · 2 · 3 + 3
    assert run.makespan_s == pytest.approx(27)


def test_stages_follow_the_flow_not_the_numbers_of_the_devices() -> None:
    table = make_table([1] * 3, chain([1] * 3), n_devices=3)
    assert training_stages(table, Placement((2, 0, 0))) == ((0,), (1, 2))


def test_branches_on_one_device_are_one_stage() -> None:
    # a ─► b, c ─► d with b and c on a device of their own
    table = make_table([1] * 4, [(0, (1, 2), 0), (1, (3,), 0), (2, (3,), 0)], n_devices=3)
    assert training_stages(table, Placement((0, 1, 0, 1))) == ((0, 2), (1, 3))


@pytest.mark.parametrize(
    ("device", "schedule", "told"),
    [
        ((0, 1, 0, 1), "1f1b", "stages"),
        (
            (0, 1, 0),
            "gpipe",
            "the placement has 3 stages on 2 devices, in the order 0 1 0; the schedule 'gpipe' cannot",
        ),
        (
            (0, 1, 0),  # its turn has one operator, which cannot be cut
            "zbv",
            "the placement has 3 stages on 2 devices, in the order 0 1 0; the schedule 'zbv' cannot run that",
        ),
        ((0, 0, 1, 1, 0, 1), "zbv", "in the order 0 1 0 1; the schedule 'zbv' cannot run that"),
        ((0, 1, 2, 0, 1, 2), "interleaved", "that: 4 micro-batches on 3 devices; interleaved needs a multiple"),
    ],
)
def test_what_a_schedule_cannot_run_is_refused(device: tuple[int, ...], schedule: str, told: str) -> None:
    table = trained(make_table([1] * len(device), chain([1] * len(device)), n_devices=max(device) + 1))
    with pytest.raises(InputError, match=told):
        simulate_training(table, Placement(device), TrainingStep(schedule, 4))


def test_neighbours_need_links_both_ways() -> None:
    table = trained(make_table([1, 1], chain([1, 1])))
    one_way = replace(table, link_class=np.array([[-1, 0], [-1, -1]]), channel=np.array([[-1, 0], [-1, -1]]))
    with pytest.raises(InputError, match="a pipeline needs links between '0' and '1', both ways"):
        simulate_training(one_way, Placement((0, 1)), TrainingStep())


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ({"schedule": "fast"}, "the schedule is 'fast'; it must be one of gpipe, 1f1b, "),
        ({"schedule": "forward-only"}, "the schedule is 'forward-only'; it must be one of gpipe, "),
        ({"micro_batches": 0}, "0 micro-batches; it must be 1 or more"),
    ],
)
def test_a_step_checks_itself(step: dict[str, object], told: str) -> None:
    with pytest.raises(InputError, match=told):
        TrainingStep(**step)  # type: ignore[arg-type]  # that is the point


@given(st.data())
def test_a_step_is_at_least_the_busiest_device_and_at_most_everything_in_turn(data: st.DataObject) -> None:
    table = trained(data.draw(tables(n_devices=3)))
    placement = data.draw(placements(table, contiguous=True))
    m = data.draw(st.integers(1, 5))
    run = simulate_training(table, placement, TrainingStep("1f1b", m))
    busy_s = placement.busy_s(table) + placement.busy_s(replace(table, forward_s=table.backward_s))
    sent_s = sum(cost.activation_s + cost.gradient_s for cost in run.pipeline.lowered.costs)
    assert m * busy_s.max() <= run.makespan_s * (1 + 1e-9)
    assert run.makespan_s <= m * (busy_s.sum() + sent_s) * (1 + 1e-9)


def test_every_schedule_that_a_workload_may_name_can_be_made() -> None:
    assert {*TRAINING_SCHEDULES, "forward-only"} == SCHEDULES.keys()
