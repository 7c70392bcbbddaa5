"""Caches in parts: who divides one, what a split program takes and returns, where borders are."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from costmodels.memory.device import lasting_bytes, tied_groups
from graphs.caches import in_place
from graphs.files import graph_from_dict, graph_to_dict
from graphs.phases import Phase
from graphs.program.files import program_from_dict, program_to_dict
from graphs.program.pieces import sliced
from graphs.program.program import Program
from graphs.program.rewritten import rewritten_program
from graphs.rewrites.layouts import Slice
from graphs.rewrites.network_shardings import network_shardings, phase_shardings
from graphs.rewrites.split import Split
from tests.planner.runtime.generation.tiny import CONTEXT, imported

WRITES, READS = ("axis 1", "heads")
LAYER = {"index_put": WRITES, "index_put_1": WRITES, "scaled_dot_product_attention": READS}


def choices(parts: int, **changes: str) -> dict[str, tuple[str, int]]:
    """The first layer's operators with a cache in parts, some of them otherwise; an empty name leaves one whole."""
    return {name: (how, parts) for name, how in {**LAYER, **changes}.items() if how}


def given(program: Program) -> list[torch.Tensor]:
    """Inputs with caches that are not empty."""
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.zeros_like(each) for each in program.example_inputs]
    for name, tensor in zip(program.graph.inputs, inputs, strict=True):
        if name.startswith("caches"):
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
        elif name == "ids":
            tensor += 7
        elif name == "positions":
            tensor += torch.arange(tensor.shape[1]) + 3
    return inputs


def check(program: Program, chosen: Mapping[str, tuple[str, int]]) -> Program:
    """The split program, which computes the same from caches in parts."""
    split = rewritten_program(program, [Split(chosen)])
    inputs = given(program)
    expected = program.run(**program.arguments_of(inputs).kwargs)
    layouts = Split(chosen).applied(program.graph).caches
    parts: list[torch.Tensor] = []
    for name, whole in zip(program.graph.inputs, inputs, strict=True):
        parts += [sliced(whole, Slice(name, r)) for r in layouts[name].indices] if name in layouts else [whole]
    logits, caches = split.run(**split.arguments_of(parts).kwargs)
    torch.testing.assert_close(logits, expected[0], rtol=1e-5, atol=1e-5)
    for got, want in zip(caches, expected[1], strict=True):
        torch.testing.assert_close(torch.cat(got, 1) if isinstance(got, list) else got, want, rtol=1e-5, atol=1e-5)
    return split


@pytest.mark.parametrize("phase", [Phase(1, CONTEXT), Phase(8, CONTEXT)])
def test_a_cache_that_all_divide_alike_becomes_several(phase: Phase) -> None:
    split = check(imported("gpt2").phases[phase], choices(3))
    graph = split.graph
    heads = [graph.tensor[name].shape[1] for name, _ in graph.caches]
    assert heads == [2, 1, 1, 2, 1, 1, 4, 4]  # of keys and values; the other layer's are whole
    assert graph.caches[0] == ("caches_0[0/3]", "index_put[0/3]")
    assert in_place(graph)["index_put_1[2/3]"] == ("caches_1[2/3]", "index_put_1[2/3]")
    assert not {"caches_0", "index_put", "index_put_1"} & graph.tensor.keys()
    assert lasting_bytes(graph).sum() == lasting_bytes(imported("gpt2").decode.graph).sum()
    groups = [{graph.ops[number].name for number in group} for group in tied_groups(graph)]
    names = ("index_put", "index_put_1", "scaled_dot_product_attention")
    for part in range(3):
        assert {f"{name}[{part}/3]" for name in names} in groups


def test_grouped_queries_follow_their_keys_and_values() -> None:
    chosen = choices(2) | {"linear": ("output features", 2), "linear_1": ("output features", 2)}
    graph = check(imported("llama").decode, chosen).graph
    assert [graph.tensor[name].shape[1] for name, _ in graph.caches] == [1, 1, 1, 1, 2, 2]
    assert graph.tensor["linear[0/2]"].shape == (2, 1, 16)  # two query heads of eight for one of keys


@pytest.mark.parametrize(
    "changes",
    [
        {"scaled_dot_product_attention": ""},  # somebody reads all heads
        {"scaled_dot_product_attention": "sequence"},
        {"index_put": "", "index_put_1": "axis 3"},  # each by another axis than attention
    ],
)
def test_a_cache_that_is_used_in_two_ways_stays_whole(changes: dict[str, Any]) -> None:
    program = imported("gpt2").phases[Phase(8, CONTEXT)]
    split = check(program, choices(2, **changes))
    assert split.graph.inputs == program.graph.inputs
    assert [name for name, _ in split.graph.caches] == [name for name, _ in program.graph.caches]


def test_a_split_with_caches_has_a_written_form() -> None:
    split = rewritten_program(imported("gpt2").decode, [Split(choices(2))])
    graph = graph_from_dict(graph_to_dict(split.graph))
    assert graph == split.graph
    again = program_from_dict(program_to_dict(split), graph, split.example_inputs)
    assert (again.in_spec, again.out_spec, again.in_leaves) == (split.in_spec, split.out_spec, split.in_leaves)


def test_operators_of_a_language_model_divide_their_caches_or_none() -> None:
    graphs = [program.graph for program in imported("llama").phases.values()]
    alike = phase_shardings(graphs)
    assert {one.name for one in alike["scaled_dot_product_attention"]} == {"batch", "heads"}
    assert {one.inputs[0].axis for one in alike["index_put"] if one.inputs[0]} == {1, 3}  # heads, or their numbers
    assert all(one.inputs[0] and one.inputs[0] == one.outputs[0] for one in alike["index_put"])  # none has the whole
    assert network_shardings(graphs[0])["index_put"] == ()  # whoever calls it once has the whole
