"""The advice where there is no placement; that none is given in vain is tested in tests/planner/law."""

import numpy as np

from costmodels.table import CostTable
from planner.problem.bounds import lower_bound
from planner.problem.infeasible import infeasible_because
from planner.problem.problem import Goal, Problem
from tests.planner.problem.problems import make_table

GIB = 2.0**30


def advice(table: CostTable) -> str:
    return infeasible_because(table, lower_bound(Problem(table, Goal.THROUGHPUT)))


def test_a_feasible_problem_gets_no_advice() -> None:
    assert advice(make_table([[1, 1]] * 2, [(0, (1,), 1)])) == ""


def test_advice_for_an_operator_that_fits_nowhere() -> None:
    table = make_table([[1, 1]], op_bytes=[3 * GIB], capacity_bytes=[2 * GIB, GIB], working_bytes=GIB / 2)
    assert lower_bound(Problem(table, Goal.THROUGHPUT)) == np.inf
    assert advice(table) == (
        "operator 'op0' needs 3.00 GiB, but no device that can run it has more than 1.50 GiB for it; "
        "take a device with more memory, or smaller micro-batches"
    )


def test_advice_where_no_device_has_room_to_work() -> None:
    table = make_table([[1, 1]], capacity_bytes=[2 * GIB, GIB], working_bytes=5 * GIB)
    assert advice(table) == (
        "every device needs 5.00 GiB to work with, and the largest has 2.00 GiB; "
        "take devices with more memory, smaller micro-batches, or fewer of them in flight"
    )


def test_advice_for_a_group_that_fits_nowhere() -> None:
    table = make_table([[1, 1]] * 2, op_bytes=[600, 600], capacity_bytes=[1000, 1000], together=((0, 1),))
    assert advice(table).startswith(
        "operator 'op0' and 1 more that share its device need 1,200 bytes, but no device that can run it has more"
    )


def test_advice_for_a_group_that_no_device_can_run() -> None:
    table = make_table([[1, np.inf], [np.inf, 1]], together=((0, 1),))
    assert advice(table) == (
        "operator 'op0' and 1 more that share its device have no device that can run them all; "
        "give them one, or take the group apart"
    )


def test_advice_for_too_little_memory_in_all() -> None:
    table = make_table([[1, 1]] * 3, op_bytes=[GIB] * 3, capacity_bytes=[1.5 * GIB, GIB])
    assert advice(table) == "the operators need 3.00 GiB in all, the devices have 2.50 GiB; add memory or devices"


def test_advice_for_too_little_memory_where_it_is_needed() -> None:
    table = make_table([[1, np.inf]] * 2, op_bytes=[600, 600], capacity_bytes=[1000, 9000])
    assert advice(table) == (
        "the operators need 1,200 bytes in all and the devices have 10,000 bytes, but those that can run only "
        "on some devices do not fit there; add memory to those, or let more devices run them"
    )


def test_advice_for_a_missing_link() -> None:
    table = make_table([[1, np.inf], [np.inf, 1]], [(0, (1,), 4)], link_s=np.inf)
    assert advice(table) == ("tensor 't0' must go from 'op0' to 'op1', but their devices have no link; add a [[link]]")
