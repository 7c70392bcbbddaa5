"""Plans for one network side by side, of which some divide or fuse its operators."""

from dataclasses import replace

import pytest

from graphs.common.errors import InputError
from graphs.program.rewritten import rewritten_program
from graphs.rewrites.fuse import Fuse
from graphs.rewrites.rewrite import Rewrite
from graphs.rewrites.split import Split
from planner.explanations.diff import Change, JoiningOps, diff
from planner.plans.files import plan_from_dict, plan_to_dict
from planner.plans.plan import Plan
from simulator.placement import Placement
from tests.planner.planning.test_splitting import Block, imported, pair
from tests.planner.runtime.small import make_plan

PROGRAM = imported(Block())  # linear, gelu, linear_1
MEGATRON = Split({"linear": ("output features", 2), "gelu": ("axis 2", 2), "linear_1": ("input features", 2)})
PARTS = ["linear[0/2]", "linear[1/2]", "gelu[0/2]", "gelu[1/2]", "linear_1[0/2]", "linear_1[1/2]", "linear_1"]


def made(devices: str, *rewrites: Rewrite) -> Plan:
    program = rewritten_program(PROGRAM, rewrites)
    plan = make_plan(program, Placement(tuple(map(int, devices))), pair())
    return replace(plan, rewrites=rewrites, network=PROGRAM.graph.fingerprint)


def test_what_is_divided_and_what_that_changes() -> None:
    before, after = made("000"), made("0101010", MEGATRON)
    assert [op.name for op in after.graph.ops] == PARTS
    difference = diff(before, after)
    assert difference.changes == (Change("rewrites", "", "3 splits"),)
    assert [(d.before, d.after, d.n_ops, ", ".join(map(str, d.what))) for d in difference.divided] == [
        ("", "in 2 by output features", 1, "up"),
        ("", "in 2 by axis 2", 1, "gelu"),
        ("", "in 2 by input features", 1, "down"),
    ]
    whole_s, part_s = (plan.table.forward_s[:, 0] for plan in (before, after))
    assert [d.before_s for d in difference.divided] == whole_s.tolist()
    assert [d.after_s for d in difference.divided] == part_s[[0, 2, 4]].tolist()
    assert difference.between == (JoiningOps(0, 0.0), JoiningOps(1, part_s[6]))
    assert (difference.n_ops, difference.moved, difference.same_placement) == (3, (), False)
    assert [(cut.tensor, cut.src, cut.dst) for cut in difference.cuts.new] == [("linear_1[1/2]", "gpu1", "gpu0")]


def test_the_other_way_round() -> None:
    back = diff(made("0101010", MEGATRON), made("000"))
    assert next((d.before, d.after) for d in back.divided) == ("in 2 by output features", "")
    assert (back.between[1], back.n_ops) == (JoiningOps(0, 0.0), 3)


def test_two_ways_to_divide_a_network() -> None:
    other = Split({"linear": ("output features", 3)})
    difference = diff(made("0101010", MEGATRON), made("010000", other))
    assert [(d.before, d.after, d.n_ops) for d in difference.divided] == [
        ("in 2 by output features", "in 3 by output features", 1),
        ("in 2 by axis 2", "", 1),
        ("in 2 by input features", "", 1),
    ]


def test_fused_operators_are_on_the_device_of_the_group() -> None:
    difference = diff(made("000"), made("11", Fuse((("linear", "gelu"),))))
    assert difference.changes == (Change("rewrites", "", "1 fusion"),)
    (moved,) = difference.moved
    assert (moved.src, moved.dst, moved.n_ops) == ("gpu0", "gpu1", 3)
    assert moved.after_s == pytest.approx(made("11", Fuse((("linear", "gelu"),))).table.forward_s[:, 1].sum())


def test_parts_that_change_places_are_operators_of_one_graph() -> None:
    difference = diff(made("0101010", MEGATRON), made("1001010", MEGATRON))
    assert [(m.src, m.dst, m.n_ops) for m in difference.moved] == [("gpu0", "gpu1", 1), ("gpu1", "gpu0", 1)]
    assert difference.divided == ()


def test_a_plan_that_does_not_say_what_it_was_made_of() -> None:
    split = made("0101010", MEGATRON)
    document = plan_to_dict(split)
    assert plan_from_dict(document).network == PROGRAM.graph.fingerprint
    silent = plan_from_dict(document | {"network": None})
    message = "the plan for 'net' has fused or split operators, and does not say of which network"
    with pytest.raises(InputError, match=message):
        diff(made("000"), silent)
    assert diff(split, silent).same  # one graph is one network
