"""Sharding rules: for each kind of operator, parts that run on slices make up the whole."""

from collections.abc import Callable
from itertools import pairwise
from math import prod
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
import transformers.integrations.moe  # noqa: F401  # defines an operator
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module
from graphs.ir import Graph, Op, Role
from graphs.ir import Tensor as GraphTensor
from graphs.program.program import Program
from graphs.program.rewritten import rewritten_program
from graphs.rewrites.network_shardings import network_shardings
from graphs.rewrites.sharding import Sharding, ranges, sharding_named, shares
from graphs.rewrites.sharding_rules import RULES, shardings
from graphs.rewrites.split import Split

Shape = tuple[int, ...]
Case: TypeAlias = "tuple[Callable[..., Any], list[Shape], list[Shape], list[str]]"
"""A function, the shapes of its inputs and of its parameters, and shardings that it has."""


class Function(nn.Module):
    """A function of tensors, with parameters."""

    def __init__(self, function: Callable[..., Any], *shapes: Shape) -> None:
        super().__init__()
        self.function = function
        self.weights = nn.ParameterList(nn.Parameter(torch.rand(shape) + 0.5) for shape in shapes)

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs, *self.weights)


def imported(
    function: Callable[..., Any], inputs: list[Shape], *weights: Shape, dtype: torch.dtype = torch.float64
) -> Program:
    """A function, by default in float64, so that a wrong rule differs by more than the order of sums."""
    torch.manual_seed(0)
    examples = tuple(torch.randn(shape, dtype=dtype) for shape in inputs)
    return program_from_module(Function(function, *weights).to(dtype).eval(), examples, name="net", footprints=False)


def check(program: Program, op: str, sharding: Sharding, parts: int) -> None:
    """A program with one operator in parts returns what it returned."""
    split = rewritten_program(program, [Split({op: (sharding.name, parts)})])
    assert sum(each.name.startswith(f"{op}[") and each.name.endswith(f"/{parts}]") for each in split.graph.ops) == parts
    expected, got = program.run(*program.example_inputs), split.run(*program.example_inputs)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


attention = functional.scaled_dot_product_attention
F: Any = functional
AT = torch.arange(2)


def put(*indices: Tensor | None) -> Callable[[Tensor, Tensor], Tensor]:
    """A function that writes values to indices of a tensor."""
    return lambda x, values: torch.ops.aten.index_put(x, indices, values)


CASES: dict[str, Case] = {
    "linear": (F.linear, [(3, 4, 6)], [(7, 6), (7,)], ["output features", "batch", "sequence", "input features"]),
    "linear of rows": (F.linear, [(3, 6)], [(7, 6)], ["output features", "batch", "input features"]),
    "addmm": (lambda x, b, w: torch.addmm(b, x, w), [(4, 6)], [(5,), (6, 5)], ["output features", "input features"]),
    "mm": (torch.mm, [(4, 6)], [(6, 5)], ["batch", "output features", "input features"]),
    "bmm": (torch.bmm, [(2, 4, 6), (2, 6, 5)], [], ["batch", "rows", "output features", "input features"]),
    "matmul": (torch.matmul, [(2, 3, 4, 6), (2, 3, 6, 5)], [], ["batch", "heads", "rows", "input features"]),
    "broadcast": (torch.matmul, [(2, 3, 4, 6), (3, 6, 5)], [], ["batch", "heads", "rows", "input features"]),
    "experts": (
        lambda x, w, c: torch.ops.transformers.grouped_mm_fallback(x * c, w, (c[:, 0] * 1.2).cumsum(0).int()[:4]) * c,
        [(7, 6)],
        [(4, 6, 5), (7, 1)],
        ["experts", "axis 0 by slice_1"],
    ),
    "conv1d": (F.conv1d, [(2, 4, 9)], [(6, 4, 3), (6,)], ["batch", "output channels", "input channels"]),
    "conv2d": (
        lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=(1, 2)),
        [(2, 4, 11, 9)],
        [(6, 4, 3, 5), (6,)],
        ["batch", "output channels", "input channels", "rows"],
    ),
    "conv2d without padding": (
        F.conv2d,
        [(1, 4, 11, 9)],
        [(6, 4, 3, 3)],
        ["output channels", "input channels", "rows"],
    ),
    "conv2d dilated": (
        lambda x, w: F.conv2d(x, w, padding=2, dilation=2),
        [(1, 4, 11, 9)],
        [(6, 4, 3, 3)],
        ["output channels", "rows"],
    ),
    "conv2d in groups": (
        lambda x, w, b: F.conv2d(x, w, b, padding=1, groups=3),
        [(2, 6, 8, 8)],
        [(12, 2, 3, 3), (12,)],
        ["batch", "channels", "output channels", "rows"],
    ),
    "depthwise": (lambda x, w: F.conv2d(x, w, groups=6), [(2, 6, 8, 8)], [(6, 1, 3, 3)], ["channels", "rows"]),
    "conv3d": (F.conv3d, [(2, 4, 5, 5, 5)], [(6, 4, 3, 3, 3)], ["batch", "output channels", "input channels"]),
    "attention": (attention, [(2, 3, 4, 6), (2, 3, 5, 6), (2, 3, 5, 6)], [], ["batch", "heads", "sequence"]),
    "attention with a mask": (
        lambda q, k, v, m: attention(q, k, v, m),
        [*[(2, 3, 4, 6)] * 3, (2, 1, 4, 4)],
        [],
        ["batch", "heads", "sequence"],
    ),
    "causal attention": (
        lambda q, k, v: attention(q, k, v, is_causal=True),
        [(2, 3, 4, 6)] * 3,
        [],
        ["batch", "heads"],
    ),
    "grouped queries": (
        lambda q, k, v: attention(q, k, v, enable_gqa=True),
        [(1, 6, 4, 6), (1, 3, 4, 6), (1, 3, 4, 6)],
        [],
        ["heads", "sequence"],
    ),
    "embedding": (
        lambda x, w: F.embedding(x.abs().long() % 9, w),
        [(2, 3)],
        [(9, 6)],
        ["batch", "sequence", "output features"],
    ),
    "batch norm": (
        lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b),
        [(2, 4, 3, 5)],
        [(4,)] * 4,
        ["batch", "channels", "axis 2", "axis 3"],
    ),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (5,), w, b), [(2, 4, 5)], [(5,)] * 2, ["batch", "sequence"]),
    "rms norm": (lambda x, w: F.rms_norm(x, (5,), w), [(2, 4, 5)], [(5,)], ["batch", "sequence"]),
    "group norm": (lambda x, w, b: F.group_norm(x, 3, w, b), [(2, 6, 3)], [(6,)] * 2, ["batch", "channels"]),
    "softmax": (lambda x: x.softmax(1), [(2, 4, 5)], [], ["axis 0", "axis 2"]),
    "cumsum": (lambda x: x.cumsum(-1), [(2, 4, 5)], [], ["axis 0", "axis 1"]),
    "gelu": (F.gelu, [(2, 4, 5)], [], ["axis 0", "axis 1", "axis 2"]),
    "add": (torch.add, [(2, 4, 5), (4, 1)], [], ["axis 0", "axis 1", "axis 2"]),
    "where": (lambda x, y: torch.where(x > 0, x, y), [(2, 4), (4,)], [], ["axis 0", "axis 1"]),
    "sum": (lambda x: x.sum((0, 2)), [(2, 4, 5)], [], ["axis 1", "axis 0", "axis 2"]),
    "mean": (lambda x: x.mean(1, keepdim=True), [(2, 4, 5)], [], ["axis 0", "axis 2"]),
    "max pool": (lambda x: F.max_pool2d(-x.abs() - 1, 3, 2, 1), [(2, 4, 11, 9)], [], ["batch", "channels", "rows"]),
    "pool without stride": (lambda x: F.max_pool2d(x, 2), [(2, 4, 8, 8)], [], ["batch", "channels", "rows"]),
    "average pool": (lambda x: F.avg_pool2d(x, 3, 2, 1), [(2, 4, 11, 9)], [], ["batch", "channels", "rows"]),
    "average of the image": (
        lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        [(2, 4, 11, 9)],
        [],
        ["batch", "channels"],
    ),
    "adaptive pool": (lambda x: F.adaptive_avg_pool2d(x, (3, 2)), [(2, 4, 8, 8)], [], ["batch", "channels"]),
    "one image": (lambda x: F.adaptive_avg_pool2d(x, 2), [(4, 8, 8)], [], ["replicated"]),
    "sum of all": (lambda x: x.sum(), [(2, 4)], [], ["axis 0", "axis 1"]),
    "scaled addmm": (
        lambda x, b, w: torch.addmm(b, x, w, beta=2, alpha=3),
        [(4, 6)],
        [(5,), (6, 5)],
        ["batch", "output features"],
    ),
    "view": (
        lambda x: x.view(2, 5, 3, 4, 2),
        [(2, 5, 24)],
        [],
        ["axis 0", "axis 1", "axis 2", "axis 3", "axis 4"],
    ),
    "merge": (lambda x: x.reshape(10, 24), [(2, 5, 24)], [], ["axis 0", "axis 0 in 2 runs", "axis 1"]),
    "flatten": (lambda x: x.flatten(1), [(2, 4, 3, 1)], [], ["axis 0", "axis 1", "axis 1 in 4 runs"]),
    "unsqueeze": (lambda x: x.unsqueeze(1), [(2, 4)], [], ["axis 0", "axis 2"]),
    "squeeze": (lambda x: x.squeeze(), [(2, 1, 4)], [], ["axis 0", "axis 1"]),
    "permute": (lambda x: x.permute(2, 0, 1), [(2, 4, 5)], [], ["axis 0", "axis 1", "axis 2"]),
    "transpose": (lambda x: x.transpose(-1, 0), [(2, 4, 5)], [], ["axis 0", "axis 1", "axis 2"]),
    "t": (lambda x: x.t(), [(2, 4)], [], ["axis 0", "axis 1"]),
    "expand": (lambda x: x.expand(3, 2, 4), [(2, 1)], [], ["axis 0", "axis 1", "axis 2"]),
    "slice": (lambda x: x[:, 1:3], [(2, 4, 5)], [], ["axis 0", "axis 2"]),
    "select": (lambda x: x[:, 1], [(2, 4, 5)], [], ["axis 0", "axis 2"]),
    "split": (lambda x: x.split(4, 2), [(2, 3, 12)], [], ["axis 0", "axis 1", "axis 2"]),
    "split in sizes": (lambda x: x.split([2, 4], 1), [(2, 6, 3)], [], ["axis 0", "axis 2"]),
    "chunk": (lambda x: x.chunk(3, -1), [(2, 3, 12)], [], ["axis 0", "axis 1", "axis 2"]),
    "unbind": (lambda x: x.unbind(1), [(2, 3, 4)], [], ["axis 0", "axis 2"]),
    "cat": (lambda x, y: torch.cat([x, y], 1), [(2, 4), (2, 4)], [], ["axis 0", "axis 1"]),
    "cat of unequal": (lambda x, y: torch.cat([x, y], 1), [(2, 4), (2, 3)], [], ["axis 0"]),
    "stack": (lambda x, y: torch.stack([x, y], 1), [(2, 4), (2, 4)], [], ["axis 0", "axis 2"]),
    "pad": (lambda x: F.pad(x, (1, 2)), [(2, 4, 3)], [], ["axis 0", "axis 1"]),
    "dropout": (lambda x: F.dropout(x, 0.5, False), [(2, 4)], [], ["axis 0", "axis 1"]),
    "keys of some positions": (put(AT[:, None], None, AT), [(2, 4, 5, 3), (2, 2, 4, 3)], [], ["axis 1", "axis 3"]),
    "rows and columns": (put(None, AT, AT + 1), [(3, 4, 5, 6), (3, 2, 6)], [], ["axis 0", "axis 3"]),
    "one value for all": (put(AT), [(3, 4, 5), (5,)], [], ["axis 1", "axis 2"]),
    "a mask": (put(AT > 0), [(2, 4), (4,)], [], ["replicated"]),
    "index copy": (lambda x, y: x.index_copy(1, AT, y), [(2, 4, 3), (2, 2, 3)], [], ["axis 0", "axis 2"]),
    "index add": (lambda x, y: x.index_add(-1, AT, y), [(2, 4, 3), (2, 4, 2)], [], ["axis 0", "axis 1"]),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_parts_of_every_sharding_make_up_the_whole(case: Case) -> None:
    function, inputs, weights, expected = case
    program = imported(function, inputs, *weights)
    found = {op.name: network_shardings(program.graph)[op.name] for op in program.graph.ops}
    assert set(expected) <= {one.name for each in found.values() for one in each}
    for op, each in found.items():
        for one in each:
            for parts in {2, 3, min(4, one.units)}:
                if parts <= one.units:
                    check(program, op, one, parts)
            for runs in (2, 3):
                if one.refines(runs):
                    assert sharding_named({one.name: one}, f"{one.name} in {runs} runs") == one.refined(runs)
                    check(program, op, one.refined(runs), 2)


def test_every_rule_has_a_case() -> None:
    covered = set()
    for function, inputs, weights, _ in CASES.values():
        covered |= {
            RULES.get(".".join(op.kind.split(".")[:2])) for op in imported(function, inputs, *weights).graph.ops
        }
    assert set(RULES.values()) <= covered


@settings(max_examples=15)
@given(
    groups=st.sampled_from([1, 2, 3]),
    channels=st.tuples(st.integers(1, 2), st.integers(1, 3)),
    rows=st.integers(5, 12),
    window=st.integers(1, 4),
    stride=st.integers(1, 3),
    padding=st.integers(0, 3),
    dilation=st.integers(1, 2),
    parts=st.integers(2, 5),
)
def test_convolutions_of_any_shape_divide(
    groups: int,
    channels: tuple[int, int],
    rows: int,
    window: int,
    stride: int,
    padding: int,
    dilation: int,
    parts: int,
) -> None:
    read, written = (n * groups for n in channels)
    reach = (window - 1) * dilation + 1
    if rows + 2 * padding < reach:
        return

    def convolve(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return functional.conv2d(x, w, b, stride, padding, dilation, groups)

    program = imported(convolve, [(2, read, rows, 6)], (written, channels[0], window, 1), (written,))
    (op,) = program.graph.ops
    for one in shardings(program.graph, op):
        if parts <= one.units:
            check(program, op.name, one, parts)


@given(
    digits=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    ends=st.tuples(st.sets(st.integers(1, 4)), st.sets(st.integers(1, 4))),
)
def test_a_reshape_divides_both_shapes_by_the_same_elements(digits: list[int], ends: tuple[set[int], set[int]]) -> None:
    def shape(bounds: set[int]) -> Shape:
        shards = [0, *sorted(bound for bound in bounds if bound < len(digits)), len(digits)]
        return tuple(prod(digits[start:stop]) for start, stop in pairwise(shards))

    old, new = (shape(each) for each in ends)
    tensors = GraphTensor("x", old, "float32", Role.INPUT), GraphTensor("y", new, "float32", Role.ACTIVATION)
    op = Op("y", "aten.reshape.default", ("x",), ("y",))
    graph = Graph("reshape", (op,), tensors, ("x",), ("y",))
    elements = np.arange(prod(old))
    for one in shardings(graph, op)[:-1]:
        (read,), (written,) = one.inputs, one.outputs
        assert read
        assert written
        for share in shares(one.units, min(one.units, 3)):
            before, after = (
                np.concatenate(
                    [elements.reshape(s).take(range(*r), c.axis) for r in ranges(c, s[c.axis], one.units, share)],
                    c.axis,
                )
                for s, c in ((old, read), (new, written))
            )
            assert before.reshape(after.shape).tolist() == after.tolist()


@given(units=st.integers(1, 50), parts=st.integers(1, 50))
def test_shares_are_as_equal_as_can_be(units: int, parts: int) -> None:
    if parts > units:
        with pytest.raises(InputError, match=f"{units} can be divided into 1 to {units} parts, not into {parts}"):
            shares(units, parts)
        return
    sizes = [stop - start for start, stop in shares(units, parts)]
    assert sum(sizes) == units
    assert max(sizes) - min(sizes) <= 1
