"""Keys taken apart: whatever `op_keys` writes can be read, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.operators.keys import KeyContent, op_keys, parse_key, training_keys
from graphs.common.errors import InputError
from graphs.ir import Attr, Graph, Op, Role, Tensor
from tests.costmodels.sketches import sketch
from tests.graphs.random_graphs import ATTRS, DTYPES, NAMES, SHAPES

KINDS = st.sampled_from([f"aten.{name}" for name in ("add.Tensor", "t.default", "slice.Tensor", "reshape.default")])


def shapes(tensors: tuple[Tensor, ...]) -> list[tuple[str, tuple[int, ...]]]:
    return [(tensor.dtype, tensor.shape) for tensor in tensors]


def test_a_key_taken_apart() -> None:
    key = 'aten.add.Tensor(float32[1,768], float32[768]<select<t+grad, int64[])->float32[1,768]{"alpha":2,"d":[0,"x"]}'
    op = parse_key(key)
    assert (op.kind, op.operation) == ("aten.add.Tensor", "aten.add")
    assert shapes(op.inputs) == [("float32", (1, 768)), ("float32", (768,)), ("int64", ())]
    assert shapes(op.outputs) == [("float32", (1, 768))]
    assert op.views == ((), ("select", "t"), ())
    assert op.gradients == (False, True, False)
    assert op.attrs == {"alpha": 2, "d": (0, "x")}
    assert op.key == key


def test_no_inputs_and_several_outputs() -> None:
    assert parse_key('aten.zeros.default()->float32[2]{"size":[2]}').inputs == ()
    assert shapes(parse_key("aten.split.Tensor(float32[4])->float32[2], float32[2]").outputs) == [("float32", (2,))] * 2


@st.composite
def lines(draw: st.DrawFn) -> Graph:
    """A few operators one behind the other, each with an input of its own."""
    first = Tensor("x", draw(SHAPES), draw(DTYPES), Role.INPUT)
    tensors, ops = [first], []
    for i in range(draw(st.integers(1, 4))):
        weight = Tensor(f"w{i}", draw(SHAPES), draw(DTYPES), Role.PARAMETER)
        out = Tensor(f"a{i}", draw(SHAPES), draw(DTYPES), Role.ACTIVATION)
        attrs: dict[str, Attr] = draw(st.dictionaries(NAMES, ATTRS, max_size=3))
        ops.append(Op(f"op{i}", draw(KINDS), (tensors[-1].name, weight.name), (out.name,), attrs=attrs))
        tensors += [weight, out]
    return Graph("lines", tuple(ops), tuple(tensors), ("x",), ())


@given(lines())
def test_what_is_read_is_what_was_written(graph: Graph) -> None:
    for op, key in zip(graph.ops, op_keys(graph), strict=True):
        read = parse_key(key)
        assert read.key == key
        assert read.kind == op.kind
        assert shapes(read.inputs) == shapes(tuple(graph.tensor[name] for name in op.inputs))
        assert shapes(read.outputs) == shapes(tuple(graph.tensor[name] for name in op.outputs))
        assert read.attrs == op.attrs


def test_keys_of_training_too() -> None:
    graph = sketch(
        {"x": (4, 5), "w": (5, 5), "t": (5, 5), "a": (4, 5)},
        [("aten.t.default", "w", "t"), ("aten.mm.default", "x t", "a")],
        "a",
    )
    keys = training_keys(graph)
    assert [parse_key(key).key for key in keys] == list(keys)
    assert parse_key(keys[1]).gradients == (False, True)


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("aten.relu", "it is not of the form kind(inputs)->outputs{attributes}"),
        ("aten.relu(float32[4)->float32[4]", "'float32[4' is no tensor"),
        ("aten.relu(float31[4])->float32[4]", "tensor 'float31[4]' has the unknown dtype 'float31'"),
        ("aten.relu(float32[4])->float32[4]{1}", "Expecting property name enclosed in double quotes"),
        (
            'aten.relu(float32[4])->float32[4]{"a":{}}',
            "the attribute {} is neither a number, a text nor a list of them",
        ),
    ],
)
def test_anything_else_is_refused(key: str, why: str) -> None:
    with pytest.raises(InputError) as error:
        parse_key(key)
    assert str(error.value).startswith(f"'{key}' is no operator's key: {why}")
    assert str(error.value).endswith("; delete the file it is from, measure again")


def test_a_described_operator_is_a_value() -> None:
    op = KeyContent("aten.relu.default", (), (), (), ())
    assert op == KeyContent("aten.relu.default", (), (), (), ())
    assert op.key == "aten.relu.default()->"
