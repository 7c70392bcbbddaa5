"""The cost table: what it refuses, and what follows from its arrays, by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from costmodels.step_update import StepUpdate
from costmodels.table import CostTable, Source, arrays_of
from graphs.common.errors import InputError
from graphs.ir import Flow
from tests.costmodels.parts import table_with

INF = np.inf

#   a ─► b, c (10 bytes)      b ─► c (4 bytes), on two devices; c runs on the second one only.
#   The link 0 → 1 takes 2 s and 3 s a byte; there is none back.
TABLE = CostTable(
    ops=("a", "b", "c"),
    devices=("x", "y"),
    forward_s=np.array([[1.0, 2.0], [3.0, 4.0], [INF, 5.0]]),
    op_bytes=np.array([100.0, 0.0, 50.0]),
    working_bytes=7.0,
    flows=(Flow("t", 0, (1, 2)), Flow("u", 1, (2,))),
    flow_bytes=np.array([10.0, 4.0]),
    link_class=np.array([[-1, 0], [-1, -1]]),
    link_s=np.array([[2 + 10 * 3.0], [2 + 4 * 3.0]]),
    link_latency_s=np.array([2.0]),
    channel=np.array([[-1, 0], [-1, -1]]),
    capacity_bytes=np.array([1000.0, INF]),
    overlap=True,
    together=((0, 2),),
    source=np.array([["measured", "roofline"], ["measured", "measured"], ["given", "given"]]),
)


def test_it_counts_operators_and_devices() -> None:
    assert (TABLE.n_ops, TABLE.n_devices) == (3, 2)


def test_a_transfer_takes_the_latency_and_its_bytes() -> None:
    # t: 2 + 10 · 3 = 32, u: 2 + 4 · 3 = 14; nothing on one device; without a link it never arrives
    np.testing.assert_array_equal(TABLE.transfer_s, [[[0, 32], [INF, 0]], [[0, 14], [INF, 0]]])


def test_one_transfer_can_be_asked_for() -> None:
    assert (TABLE.send_s(0, 0, 1), TABLE.send_s(1, 0, 1)) == (32, 14)
    assert (TABLE.send_s(0, 1, 0), TABLE.send_s(0, 1, 1)) == (INF, 0)
    np.testing.assert_array_equal(TABLE.linked, [[True, True], [False, True]])


def test_what_is_left_out_is_nothing() -> None:
    assert TABLE.backward_s.tolist() == [[0, 0]] * 3
    assert (TABLE.trained.saved_bytes.tolist(), TABLE.trained.gradient.tolist()) == ([0] * 3, [False] * 2)
    assert TABLE.update is None
    assert not TABLE.slowdown.any()
    assert not TABLE.copies_slowdown.any()
    assert TABLE.contention_group.tolist() == [0, 1]  # nobody slows anybody down


def test_a_step_ends_with_what_its_parameters_take() -> None:
    # a has 10 bytes of gradients, c 30; the optimizer takes 2 s a byte on x, 1 s on y; only y has replicas
    update = StepUpdate(np.array([10.0, 0, 30]), np.array([2.0, 1]), np.array([0.0, 3]), np.array([0.0, 5]))
    assert (update.optimizer_s([0, 1], 0), update.optimizer_s([0, 2], 1)) == (20, 40)
    assert (update.sync_s([0, 2], 0), update.sync_s([0, 2], 1)) == (0, 5 + 3 * 40)
    assert update.sync_s([1], 1) == 0  # nothing to add up
    with pytest.raises(InputError, match=r"the cost table's training\.update\.gradient_bytes has the shape"):
        table_with(TABLE, update=replace(update, gradient_bytes=np.ones(2)))
    with pytest.raises(
        InputError, match=r"the cost table's training\.update\.sync_s_per_byte is -1.0; costs are 0 or more"
    ):
        table_with(TABLE, update=replace(update, sync_s_per_byte=np.array([0.0, -1])))


def test_contention_makes_times_longer() -> None:
    assert TABLE.contended is TABLE
    back_s = np.array([[4.0, 1.0], [2.0, 3.0], [2.0, 4.0]])
    table = table_with(TABLE, backward_s=back_s, slowdown=np.array([[0.25, 0.0], [0.0, 1.0], [0.5, -0.5]]))
    assert table.contended.forward_s.tolist() == [[1.25, 2.0], [3.0, 8.0], [INF, 2.5]]
    assert table.contended.backward_s.tolist() == [[5.0, 1.0], [2.0, 6.0], [3.0, 2.0]]
    assert not table.contended.slowdown.any()
    half = table.with_contention(np.array([0.0, 0.5]))
    assert half.forward_s.tolist() == [[1.0, 2.0], [3.0, 6.0], [INF, 3.75]]
    assert half.backward_s.tolist() == [[4.0, 1.0], [2.0, 4.5], [2.0, 3.0]]
    assert not half.slowdown.any()


def test_pairs_are_worth_a_share_of_the_time() -> None:
    assert not TABLE.gains_by_pairs.any()
    forward_s = np.array([[1.0, 1.0], [5.0, 4.0], [5.0, 4.0]])
    table = table_with(TABLE, forward_s=forward_s, copies_slowdown=np.array([[-0.4, -0.4], [0.1, 0.1], [0.0, 0.0]]))
    assert table.gains_by_pairs.tolist() == [False, True]  # an eleventh, and a ninth
    assert table.in_copies.forward_s[:, 0].tolist() == pytest.approx([0.6, 5.5, 5.0])


@pytest.mark.parametrize("value", [-1.0, np.nan, -INF])
def test_a_slowdown_that_leaves_no_time_is_named(value: float) -> None:
    with pytest.raises(InputError) as error:
        table_with(TABLE, slowdown=np.full((3, 2), value))
    assert str(error.value) == (
        "the cost table's slowdown holds a number that is not above -1; it is a share of the isolated time"
    )


def test_edges_are_pairs_of_operators_once() -> None:
    table = table_with(
        TABLE,
        flows=(*TABLE.flows, Flow("v", 0, (2,))),
        flow_bytes=np.ones(3),
        link_s=np.ones((3, 1)),
    )
    assert table.edges == ((0, 1), (0, 2), (1, 2))


def test_the_share_of_a_source_is_by_time() -> None:
    # all finite times: 1 + 2 + 3 + 4 + 5 = 15; measured 1 + 3 + 4 = 8, roofline 2, given 5
    assert TABLE.share(Source.MEASURED) == pytest.approx(8 / 15)
    assert TABLE.share(Source.ROOFLINE) == pytest.approx(2 / 15)
    assert TABLE.share(Source.GIVEN) == pytest.approx(5 / 15)


def test_the_share_of_no_time_is_nothing() -> None:
    assert replace(TABLE, forward_s=np.zeros((3, 2))).share(Source.MEASURED) == 0


def test_arrays_cannot_be_written() -> None:
    table = table_with(TABLE, backward_s=np.ones((3, 2)), slowdown=np.ones((3, 2)))
    assert {"forward_s", "training.layer", "contention.group"} <= {name for name, _ in arrays_of(table)}
    for _, value in arrays_of(table):
        with pytest.raises(ValueError, match="read-only"):
            value[:] = 0


@pytest.mark.parametrize(
    ("name", "found", "expected"),
    [
        ("forward_s", (2, 3), (3, 2)),
        ("source", (3,), (3, 2)),
        ("op_bytes", (2,), (3,)),
        ("flow_bytes", (3,), (2,)),
        ("link_class", (3, 3), (2, 2)),
        ("link_s", (2,), (2, 1)),
        ("training.backward_s", (2,), (3, 2)),
        ("training.saved_bytes", (2,), (3,)),
        ("training.gradient", (3,), (2,)),
        ("contention.copies_slowdown", (2,), (3, 2)),
        ("channel", (2, 3), (2, 2)),
        ("capacity_bytes", (2, 1), (2,)),
    ],
)
def test_a_wrong_shape_is_named(name: str, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
    changes: dict[str, Any] = {name.rpartition(".")[2]: np.ones(found)}
    with pytest.raises(InputError) as error:
        table_with(TABLE, **changes)
    assert str(error.value) == f"the cost table's {name} has the shape {found}, expected {expected}"


@pytest.mark.parametrize("value", [-1.0, np.nan, -INF])
@pytest.mark.parametrize(
    ("name", "owner"),
    [
        *(("forward_s", " for operator 'c'"), ("op_bytes", " for operator 'c'")),
        *(("flow_bytes", " for tensor 'u'"), ("link_s", " for tensor 'u'")),
        *(("link_latency_s", ""), ("capacity_bytes", "")),
    ],
)
def test_a_negative_or_undefined_number_is_named(name: str, owner: str, value: float) -> None:
    values = getattr(TABLE, name).copy()
    values[-1] = value
    changes: dict[str, Any] = {name: values}
    with pytest.raises(InputError) as error:
        replace(TABLE, **changes)
    assert str(error.value) == f"the cost table's {name} is {value}{owner}; costs are 0 or more"


def test_an_operator_that_can_run_nowhere_is_named() -> None:
    forward_s = TABLE.forward_s.copy()
    forward_s[1] = INF
    with pytest.raises(InputError) as error:
        replace(TABLE, forward_s=forward_s)
    assert str(error.value) == "operator 'b' can run on no device; give it a finite time on at least one"


@pytest.mark.parametrize(
    "flow", [Flow("t", 1, (0,)), Flow("t", 1, (1,)), Flow("t", 0, (1, 3)), Flow("t", -1, (1,)), Flow("t", 3, ())]
)
def test_a_flow_that_runs_backwards_or_out_of_the_table_is_named(flow: Flow) -> None:
    with pytest.raises(InputError) as error:
        replace(TABLE, flows=(flow, TABLE.flows[1]))
    assert str(error.value) == "flow 't' must run from an operator to later ones"


@pytest.mark.parametrize("group", [(0, 3), (-1, 0)])
def test_a_group_of_unknown_operators_is_named(group: tuple[int, ...]) -> None:
    with pytest.raises(InputError) as error:
        replace(TABLE, together=(group,))
    assert str(error.value) == f"the group {group} names an operator that does not exist; there are 3"
