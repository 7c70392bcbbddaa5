"""Where a placement is cut, by hand and as laws."""

from hypothesis import given
from hypothesis import strategies as st

from simulator.placement import Placement
from simulator.stages import Stage, split_stages
from tests.simulator.tables import chain, make_table, placements, tables


def test_one_device_is_one_stage() -> None:
    table = make_table([1, 1, 1], chain([1, 1, 1]))
    assert split_stages(table, Placement((1, 1, 1))) == (Stage(1, (0, 1, 2), (), (), ()),)


def test_the_picture_in_the_docstring() -> None:
    # a ─► c ─► e ─► f on device 0, b ─► d on device 1, b ─► e
    table = make_table([1] * 6, [(0, (2,), 1), (1, (3, 4), 1), (2, (4,), 1), (4, (5,), 1)])
    assert split_stages(table, Placement((0, 1, 0, 1, 0, 0))) == (
        Stage(0, (0, 2), (), (), ()),
        Stage(1, (1,), (), ((1, 0),), ()),
        Stage(1, (3,), (), (), (1,)),
        Stage(0, (4, 5), ((1, 1),), (), (0, 1)),
    )


def test_a_tensor_that_has_arrived_is_not_waited_for_again() -> None:
    # a (device 0) is read by b and c (device 1): b waits for it, c does not, and they are one stage
    table = make_table([1, 1, 1], [(0, (1, 2), 1)])
    assert split_stages(table, Placement((0, 1, 1))) == (
        Stage(0, (0,), (), ((0, 1),), ()),
        Stage(1, (1, 2), ((0, 0),), (), (0,)),
    )


def test_the_first_reader_in_the_order_receives() -> None:
    # the same with c before b
    table = make_table([1, 1, 1], [(0, (1, 2), 1)])
    assert split_stages(table, Placement((0, 1, 1), (0, 2, 1)))[1] == Stage(1, (2, 1), ((0, 0),), (), (0,))


def test_a_stage_may_receive_and_send_several_tensors() -> None:
    # a, b (device 0 and 1) ─► c (device 2) ─► d, e (device 0 and 1)
    table = make_table([1] * 5, [(0, (2,), 1), (1, (2,), 1), (2, (3, 4), 1)], n_devices=3)
    assert split_stages(table, Placement((0, 1, 2, 0, 1)))[2] == Stage(
        2, (2,), ((0, 0), (1, 1)), ((2, 0), (2, 1)), (0, 1)
    )


@given(st.data())
def test_every_operator_is_in_one_stage_of_its_device_in_the_devices_order(data: st.DataObject) -> None:
    table = data.draw(tables())
    placement = data.draw(placements(table, copies=3))
    stages = split_stages(table, placement)
    for device in range(table.n_devices):
        for number, copy in enumerate(placement.copies):
            mine = [op for s in stages if (s.device, s.copy) == (device, number) for op in s.ops]
            assert mine == [op for op in copy.order if copy.device[op] == device]


@given(st.data())
def test_every_cut_is_sent_once_and_received_once(data: st.DataObject) -> None:
    table = data.draw(tables())
    placement = data.draw(placements(table, copies=3))
    stages = split_stages(table, placement)
    cuts = sorted(placement.all_cuts(table))
    assert sorted((flow, stage.device, dst) for stage in stages for flow, dst in stage.sends) == cuts
    assert sorted((flow, src, stage.device) for stage in stages for flow, src in stage.receives) == cuts


@given(st.data())
def test_stages_need_only_earlier_ones(data: st.DataObject) -> None:
    """Which senders, and the previous stage of the device: so the stages form a DAG in their own order."""
    table = data.draw(tables())
    placement = data.draw(placements(table, copies=3))
    stages = split_stages(table, placement)
    for index, stage in enumerate(stages):
        senders = {
            i
            for i, other in enumerate(stages)
            for flow, _ in stage.receives
            if (flow, stage.device) in other.sends and other.copy == stage.copy
        }
        before = [i for i in range(index) if (stages[i].device, stages[i].copy) == (stage.device, stage.copy)]
        assert set(stage.needs) == senders | set(before[-1:])
        assert all(need < index for need in stage.needs)
