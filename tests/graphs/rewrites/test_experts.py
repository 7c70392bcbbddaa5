"""Experts apart: parts that hold ranges of a mixture's weights give the network's own numbers."""

import pytest
import torch

from graphs.ir import Role
from graphs.program.program import Program
from graphs.program.rewritten import rewritten_program
from graphs.rewrites.experts_apart import experts_apart
from graphs.rewrites.network_shardings import network_shardings
from graphs.rewrites.split import Split
from tests.graphs.rewrites.mixtures import MIXTURES, imported, tokens


def by_experts(program: Program, parts: int) -> Split:
    """The split of all operators that can be divided by rows of experts."""
    found = network_shardings(program.graph)
    apart = ((name, one) for name, each in found.items() for one in each if any(s and s.ends for s in one.outputs))
    return Split({name: (one.name, parts) for name, one in apart})


@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize("family", MIXTURES)
def test_experts_apart_give_the_same_numbers(family: str, parts: int) -> None:
    program = imported(family)
    apart = experts_apart(program.graph, parts)
    assert apart is not None
    for split in (apart, by_experts(program, parts)):
        if not split.choices:  # the experts have equal numbers of rows
            assert family == "llama4_text"
            continue
        divided = rewritten_program(program, [split])
        for seed in range(3):  # other tokens find other experts
            given = tokens(seed=seed)
            expected = program.module(input_ids=given, use_cache=False).logits
            assert torch.equal(divided.run(input_ids=given, use_cache=False).logits, expected)


@pytest.mark.parametrize("family", MIXTURES)
def test_parts_hold_ranges_of_the_weights(family: str) -> None:
    program = imported(family)
    split = experts_apart(program.graph, 3)
    assert split is not None
    graph = split(program.graph)
    for tensor in program.graph.tensors:
        if tensor.role is Role.PARAMETER and len(tensor.shape) == 3:
            held = [part for part in graph.tensors if part.name.startswith(f"{tensor.name}[")]
            assert len(held) == 3
            assert sum(part.shape[0] for part in held) == tensor.shape[0]
            assert tensor.name not in graph.tensor
