from collections import OrderedDict
from dataclasses import replace

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from graphs.importers.from_torch import program_from_module
from graphs.rewrites.split import Split
from planner.view.tree import LONG, RIBBON, ROOT, Group, group_tree
from tests.planner.view.samples import chain_graph, fork_graph


def test_modules_with_several_operators_are_groups() -> None:
    tree = group_tree(fork_graph())
    assert tree.groups == (Group("stem", "stem", ROOT), Group("block", "block", ROOT))
    assert tree.parent == (0, 0, 1, 1, 1, ROOT)


def test_an_operator_alone_in_its_module_takes_the_modules_name() -> None:
    assert group_tree(fork_graph()).labels == ("conv", "relu", "left", "right", "cat", "head")
    assert group_tree(chain_graph(["a.x", "a.x", "b.c"])).labels == ("op0", "op1", "b.c")


def test_a_module_inside_another_and_nothing_else_is_one_group() -> None:
    tree = group_tree(chain_graph(["", "encoder.layer.0", "encoder.layer.0", "encoder.layer.1", "encoder.layer.1"]))
    assert tree.groups == (
        Group("encoder.layer", "encoder.layer", ROOT),
        Group("layer.0", "encoder.layer.0", 0),
        Group("layer.1", "encoder.layer.1", 0),
    )
    assert tree.parent == (ROOT, 1, 1, 2, 2)


def test_a_module_around_everything_is_left_out() -> None:
    tree = group_tree(chain_graph(["model.a", "model.a", "model"]))
    assert tree.groups == (Group("a", "model.a", ROOT),)
    assert tree.parent == (0, 0, ROOT)


def test_a_module_that_is_called_again_with_its_own_result_is_a_group_for_each_call() -> None:
    tree = group_tree(chain_graph(["act", "act", "", "act", "act", "", "act"]))
    assert tree.groups == (Group("act", "act", ROOT), Group("act", "act", ROOT))
    assert tree.parent == (0, 0, ROOT, 1, 1, ROOT, ROOT)
    assert tree.labels[-1] == "act"


def test_a_module_stays_one_group_around_operators_that_do_not_need_it() -> None:
    graph = chain_graph(["a", "", "a"])
    apart = replace(graph.ops[1], inputs=("x",))
    last = replace(graph.ops[2], inputs=("op0", "op1"))
    tree = group_tree(replace(graph, ops=(graph.ops[0], apart, last)))
    assert tree.groups == (Group("a", "a", ROOT),)
    assert tree.parent == (0, ROOT, 0)


def test_long_lists_are_cut_into_blocks_of_consecutive_operators() -> None:
    tree = group_tree(chain_graph([""] * (LONG + 1)))
    # 121 operators in 11 blocks, the square root
    assert [group.label for group in tree.groups] == [f"op{11 * i} …" for i in range(11)]
    assert tree.parent == tuple(i // 11 for i in range(LONG + 1))
    assert group_tree(chain_graph([""] * LONG)).groups == ()


def test_blocks_are_cut_again_if_they_are_long() -> None:
    tree = group_tree(chain_graph([""] * 7000))
    # 48 blocks of 146, each in 12 blocks of 13
    assert sum(group.parent == ROOT for group in tree.groups) == 48
    assert tree.groups[tree.parent[0]].parent != ROOT


def test_operators_are_small_beside_what_takes_the_time_and_not_beside_each_other() -> None:
    crumbs = ["", "", "", ""]
    graph = chain_graph([*crumbs, "layers", "layers"])
    beside_layers = group_tree(graph, np.array([0.002] * 4 + [0.496] * 2))  # each above SMALL
    assert beside_layers.groups[0] == Group("4 small operators", "", ROOT, "capsule")
    assert beside_layers.parent == (0, 0, 0, 0, 1, 1)
    assert [group.kind for group in group_tree(chain_graph(crumbs * 100), np.full(400, 1 / 400)).groups] == [""] * 20


@given(st.lists(st.sampled_from(["", "a", "a.0", "a.1", "a.1.b.c", "d.e"]), min_size=1, max_size=300))
def test_every_group_holds_something_and_is_short(modules: list[str]) -> None:
    tree = group_tree(chain_graph(modules))
    members = [*tree.parent, *(group.parent for group in tree.groups)]
    assert len(tree.parent) == len(tree.labels) == len(modules)
    for number, group in enumerate(tree.groups):
        assert group.parent < number
        assert 2 <= members.count(number) <= LONG or group.label.endswith("…")
    assert members.count(ROOT) <= LONG


def test_the_layers_of_a_split_network_are_a_ribbon() -> None:
    """Sums and slices that put parts together belong to the layers that read them."""
    n_layers = RIBBON + 1
    model = nn.Sequential(OrderedDict(layers=nn.Sequential(*(layer() for _ in range(n_layers))), head=nn.Linear(8, 2)))
    graph = program_from_module(model.eval(), torch.randn(2, 8)).graph
    by = {"up": "output features", "act": "axis 1", "down": "input features"}
    halves = {op.name: (by[op.module.split(".")[-1]], 2) for op in graph.ops[:-1]}
    split = Split(halves)(graph)
    tree = group_tree(split)
    (ribbon,) = (number for number, group in enumerate(tree.groups) if group.kind == "ribbon")
    cells = [number for number, group in enumerate(tree.groups) if group.parent == ribbon]
    assert len(cells) == n_layers - 1  # the first reads no sum
    assert all(op.module for op in split.ops)


def layer() -> nn.Sequential:
    """Two products that can be divided between them, as those of a transformer."""
    return nn.Sequential(OrderedDict(up=nn.Linear(8, 16), act=nn.ReLU(), down=nn.Linear(16, 8)))
