"""What an operator would cost on each device, and what forbids it there."""

import re
from dataclasses import replace

import numpy as np
import pytest

from graphs.common.errors import InputError
from planner.explanations.elsewhere import DevicePrice, elsewhere
from planner.problem.constraints import forbid, pin
from tests.planner.explanations.small import diamond
from tests.planner.view.samples import chain_plan


def test_every_device_has_its_price() -> None:
    found = elsewhere(diamond(), "c")
    assert (found.op, found.module, found.along, found.objective_s) == ("c", "block.right", 0, 6.0)
    assert found.prices == (DevicePrice("cpu0", False, 4.0, 10.0, ""), DevicePrice("cpu1", True, 4.0, 6.0, ""))


def test_of_many_operators_an_error_names_some() -> None:
    with pytest.raises(InputError, match=r"is 'op7x'; .* op39, \.\.\. \(500 in all\); did you mean 'op7'\?$"):
        elsewhere(chain_plan([""] * 500, n_devices=2), "op7x")


def test_what_forbids_a_device_is_named() -> None:
    plan = replace(diamond(n_devices=3), constraints=(forbid("c", "cpu0"), pin("a", "cpu0")))
    seconds = plan.table.forward_s.copy()
    seconds[plan.graph.index["c"], 2] = np.inf
    plan = replace(plan, table=replace(plan.table, forward_s=seconds))
    first, second, third = elsewhere(plan, "c").prices
    assert (first.seconds, first.objective_s, first.obstacle) == (4.0, None, "a constraint: forbid c on cpu0")
    assert second.here
    assert (third.seconds, third.obstacle) == (None, "the device cannot run it")


def test_a_device_without_room_says_by_how_much() -> None:
    plan = diamond()
    table = replace(plan.table, op_bytes=np.array([60.0, 0, 60, 0]), capacity_bytes=np.full(2, 80.0))
    assert re.search(r"'cpu0' .* bytes", elsewhere(replace(plan, table=table), "c").prices[0].obstacle)


def test_an_unknown_operator_names_the_nearest() -> None:
    with pytest.raises(InputError, match="the operator"):
        elsewhere(diamond(), "cc")
