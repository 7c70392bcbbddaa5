"""Which tensors show the storage of others."""

import pytest

from costmodels.operators.views import VIEW_KINDS, bases, operation
from graphs.ir import Attr
from tests.costmodels.sketches import sketch


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("aten.conv2d.default", "aten.conv2d"),
        ("aten.add_.Tensor", "aten.add"),
        ("aten.__and__.Tensor", "aten.__and__"),
        ("aten._softmax.default", "aten._softmax"),
        ("getitem", "getitem"),
        ("transformers.grouped_mm_fallback.default", "transformers.grouped_mm_fallback"),
    ],
)
def test_an_operation_has_no_overload(kind: str, name: str) -> None:
    assert operation(kind) == name


def test_views_of_views_show_the_first_storage() -> None:
    graph = sketch(
        {"x": (2, 6), "w": (3, 4), "a": (6, 2), "c": (1, 6, 2), "d": (6, 2), "t": (4, 3)},
        [
            ("aten.transpose.int", "x", "a"),
            ("aten.unsqueeze.default", "a", "c"),
            ("aten.relu.default", "c", "d"),
            ("aten.t.default", "w", "t"),
        ],
    )
    assert bases(graph) == {"a": "x", "c": "x", "t": "w"}


@pytest.mark.parametrize("kind", ["aten.split.Tensor", "aten.chunk.default", "aten.unbind.int"])
def test_every_piece_shows_the_whole(kind: str) -> None:
    graph = sketch({"x": (4, 6), "a": (2, 6), "c": (2, 6)}, [(kind, "x", "a c")])
    assert bases(graph) == {"a": "x", "c": "x"}


def test_broadcasting_shows_each_input_in_its_output() -> None:
    graph = sketch(
        {"x1": (4, 1), "x2": (1, 3), "a": (4, 3), "c": (4, 3)}, [("aten.broadcast_tensors.default", "x1 x2", "a c")]
    )
    assert bases(graph) == {"a": "x1", "c": "x2"}


@pytest.mark.parametrize(
    ("first", "shape", "copies"),
    [
        ("aten.relu.default", (4, 6), False),  # writes its result in order
        ("aten.unsqueeze.default", (1, 4, 6), False),
        ("aten.transpose.int", (6, 4), True),
        ("aten.slice.Tensor", (4, 5), True),
        ("aten.slice.Tensor", (4, 6), False),  # of everything
        ("aten.expand.default", (2, 4, 6), True),
        ("aten.expand.default", (4, 6), False),  # to its own shape
    ],
)
@pytest.mark.parametrize("second", ["aten.reshape.default", "aten.flatten.using_ints", "aten.contiguous.default"])
def test_reshaping_copies_only_what_is_scattered(first: str, shape: tuple[int, ...], copies: bool, second: str) -> None:
    n_elements = shape[0] * shape[1] * (shape[2] if len(shape) == 3 else 1)
    graph = sketch(
        {"x": (4, 6), "a": shape, "c": shape, "d": (n_elements,)},
        [(first, "x", "a"), ("aten.alias.default", "a", "c"), (second, "c", "d")],
    )
    assert ("d" not in bases(graph)) is copies


def test_moving_a_dimension_of_size_1_scatters_nothing() -> None:
    graph = sketch(
        {"x": (1, 4, 6), "a": (4, 1, 6), "c": (24,)},
        [("aten.transpose.int", "x", "a"), ("aten.reshape.default", "a", "c")],
    )
    assert bases(graph) == {"a": "x", "c": "x"}


def test_a_square_transposed_is_scattered_although_its_shape_stays() -> None:
    graph = sketch(
        {"x": (4, 4), "a": (4, 4), "c": (16,)}, [("aten.t.default", "x", "a"), ("aten.reshape.default", "a", "c")]
    )
    assert bases(graph) == {"a": "x"}


@pytest.mark.parametrize(
    ("kind", "dtype", "attrs", "is_view"),
    [
        ("aten.to.dtype", "float32", {}, True),
        ("aten.to.dtype", "float64", {}, False),
        ("aten.dropout.default", "float32", {"train": False}, True),
        ("aten.dropout.default", "float32", {"train": True}, False),
        ("aten.dropout.default", "float32", {"p": 0.0, "train": True}, True),
        ("aten.clone.default", "float32", {}, False),
    ],
)
def test_some_operators_return_what_they_are_given(
    kind: str, dtype: str, attrs: dict[str, Attr], is_view: bool
) -> None:
    graph = sketch({"x": (3,), "a": ((3,), dtype)}, [(kind, "x", "a", attrs)])
    assert bases(graph) == ({"a": "x"} if is_view else {})


def test_an_operator_that_reads_nothing_shows_nothing() -> None:
    assert bases(sketch({"a": (3,)}, [("aten.to.dtype", "", "a")])) == {}


def test_the_kinds_are_named_without_overload() -> None:
    assert all(operation(kind) == kind for kind in VIEW_KINDS)
