"""Fusions of a graph: which groups are found, and that they compute what their members do."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from graphs.common.errors import InputError
from graphs.files import graph_from_dict, graph_to_dict
from graphs.ir import unfused
from graphs.operator_kinds import plain
from graphs.rewrites.fuse import Fuse, find_fusions
from tests.graphs.rewrites.nets import FUSED, Positions, Spelled, imported


def kinds(groups: tuple[tuple[str, ...], ...], program: object) -> list[str]:
    graph = program.graph  # type: ignore[attr-defined]
    return [
        " ".join(plain(graph.ops[graph.index[name]].kind).removeprefix("aten.") for name in group) for group in groups
    ]


@pytest.mark.parametrize(("make", "expected"), FUSED.values(), ids=FUSED)
def test_finds_what_one_kernel_computes(make: Callable[[], nn.Module], expected: list[str]) -> None:
    program = imported(make())
    assert kinds(find_fusions(program.graph).groups, program) == expected


@pytest.mark.parametrize("make", [make for make, _ in FUSED.values()], ids=FUSED)
def test_a_fused_program_has_the_bits_of_its_members(make: Callable[[], nn.Module]) -> None:
    from dataclasses import replace

    program = imported(make())
    fused = replace(program, graph=find_fusions(program.graph)(program.graph))
    arguments = program.example_arguments
    expected, got = (each.run(*arguments.args, **arguments.kwargs) for each in (program, fused))
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


def test_the_graph_keeps_its_ends_its_tensors_and_in_its_members_its_operators() -> None:
    graph = imported(Spelled()).graph
    fused = find_fusions(graph)(graph)
    assert (fused.inputs, fused.outputs, fused.tensors) == (graph.inputs, graph.outputs, graph.tensors)
    assert sorted(op.name for op in unfused(fused.ops)) == sorted(op.name for op in graph.ops)
    assert fused.fingerprint != graph.fingerprint
    assert graph_from_dict(graph_to_dict(fused)) == fused


def test_what_the_caller_reads_is_not_hidden_in_a_group() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            hidden = self.layer(x)
            return hidden, hidden.relu()

    assert not find_fusions(imported(Both(), torch.ones(2, 4)).graph).groups


def test_a_group_without_a_reader_still_writes_its_result() -> None:
    program = imported(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 2, 1)))
    unread = replace(program.graph, ops=program.graph.ops[:2], outputs=program.graph.inputs)
    (op,) = find_fusions(unread)(unread).ops
    assert op.outputs == program.graph.ops[1].outputs


def test_fusing_twice_finds_nothing_more() -> None:
    graph = imported(Spelled()).graph
    fused = find_fusions(graph)(graph)
    assert not find_fusions(fused).groups


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (((),), "is empty"),
        ((("linear", "nothing"),), "operator 'nothing' is to be fused, and .* has none"),
        ((("linear", "mul"), ("mul", "linear_1")), "shares an operator"),
        ((("linear", "linear_1"),), "before any operator has written it"),
    ],
)
def test_refuses_groups_that_do_not_fit(groups: tuple[tuple[str, ...], ...], message: str) -> None:
    graph = imported(Spelled()).graph
    with pytest.raises(InputError, match=message):
        Fuse(groups)(graph)


def test_refuses_to_fuse_what_is_fused() -> None:
    graph = imported(Spelled()).graph
    fusions = find_fusions(graph)
    with pytest.raises(InputError, match="is fused already"):
        fusions(fusions(graph))


def test_what_never_changes_is_one_operator_before_its_first_reader() -> None:
    program = imported(Positions(), torch.randn(2, 5, 8))
    fused = find_fusions(program.graph)(program.graph)
    once = [op for op in fused.ops if op.members]
    assert [op.inputs for op in once] == [("turns",)]
    assert len(once[0].outputs) == 2  # cosines and sines; the caller may write to the mask, which the caller gets


def test_sums_of_single_numbers_are_no_rows() -> None:
    class Numbers(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sum() + x.mean() + x.amax()

    assert find_fusions(imported(Numbers(), torch.randn(2, 5)).graph).groups == ()


def test_random_numbers_and_what_nobody_reads_are_no_constants() -> None:
    class Noise(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.rand(8)

    assert not find_fusions(imported(Noise(), torch.randn(2, 8)).graph).groups
