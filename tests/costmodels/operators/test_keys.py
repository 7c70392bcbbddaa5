"""Keys of operators, written out."""

from costmodels.operators.keys import op_keys, training_keys
from graphs.ir import Attr
from tests.costmodels.sketches import sketch


def test_a_key_says_what_the_time_depends_on() -> None:
    graph = sketch(
        {"x": (4, 5), "w": (5, 5), "t": (5, 5), "a": (4, 5), "c": ((4, 5), "float64")},
        [
            ("aten.t.default", "w", "t"),
            ("aten.mm.default", "x t", "a"),
            ("aten.to.dtype", "a", "c", {"dtype": "float64", "copy": True}),
        ],
        "c",
    )
    assert op_keys(graph) == (
        "aten.t.default(float32[5,5])->float32[5,5]",
        "aten.mm.default(float32[4,5], float32[5,5]<t)->float32[4,5]",
        'aten.to.dtype(float32[4,5])->float64[4,5]{"copy":true,"dtype":"float64"}',
    )


def relu_key(shape: tuple[int, ...] = (4,), dtype: str = "float32", attrs: dict[str, Attr] | None = None) -> str:
    shapes = {"x": (shape, dtype), "a": (shape, dtype)}
    return op_keys(sketch(shapes, [("aten.relu.default", "x", "a", attrs or {})]))[0]


def test_shape_dtype_and_attributes_make_another_key_but_names_do_not() -> None:
    keys = {relu_key(), relu_key((2, 2)), relu_key(dtype="int8"), relu_key(attrs={"a": 1}), relu_key(attrs={"a": 2})}
    assert len(keys) == 5
    assert relu_key(attrs={"a": 1, "b": 2}) == relu_key(attrs={"b": 2, "a": 1})
    graph = sketch({"w": (4,), "a": (4,)}, [("aten.relu.default", "w", "a")])  # a parameter is read like an input
    assert op_keys(graph)[0] == relu_key()


def test_the_views_on_the_way_count_if_they_change_strides() -> None:
    graph = sketch(
        {"x": (4, 6), "t": (6, 4), "u": (1, 6, 4), "s": (1, 6, 2), "a": (1, 6, 2), "r": (12,), "c": (12,)},
        [
            ("aten.t.default", "x", "t"),
            ("aten.unsqueeze.default", "t", "u"),  # changes none
            ("aten.slice.Tensor", "u", "s"),
            ("aten.relu.default", "s", "a"),
            ("aten.reshape.default", "s", "r"),  # copies
            ("aten.relu.default", "r", "c"),
        ],
    )
    assert op_keys(graph)[3] == "aten.relu.default(float32[1,6,2]<slice<t)->float32[1,6,2]"
    assert op_keys(graph)[5] == "aten.relu.default(float32[12])->float32[12]"


def test_a_key_for_training_marks_what_gets_a_gradient() -> None:
    graph = sketch(
        {"x": (4, 5), "w": (5, 5), "t": (5, 5), "a": (4, 5), "r": (4, 5), "y": (4, 5), "c": ((4, 5), "bool")},
        [
            ("aten.relu.default", "x", "r"),
            ("aten.t.default", "w", "t"),
            ("aten.mm.default", "r t", "a"),
            ("aten.add.Tensor", "a r", "y"),
            ("aten.gt.Scalar", "y", "c"),
        ],
    )
    assert training_keys(graph) == (
        "aten.relu.default(float32[4,5])->float32[4,5]",
        "aten.t.default(float32[5,5]+grad)->float32[5,5]",
        "aten.mm.default(float32[4,5], float32[5,5]<t+grad)->float32[4,5]",
        "aten.add.Tensor(float32[4,5]+grad, float32[4,5])->float32[4,5]",
        "aten.gt.Scalar(float32[4,5]+grad)->bool[4,5]",
    )
    assert training_keys(graph)[0] == op_keys(graph)[0]
