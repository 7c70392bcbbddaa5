"""Which tensors get a gradient."""

import pytest

from costmodels.operators.views import backward_products, differentiated
from tests.costmodels.sketches import sketch


def test_what_parameters_reach_in_floating_point_gets_a_gradient() -> None:
    shapes = dict.fromkeys(("x", "w", "b", "a", "y", "n", "z"), (2,)) | {"i": ((2,), "int64"), "wi": ((2,), "int8")}
    graph = sketch(
        shapes,
        [
            ("aten.mul.Tensor", "x b", "a"),  # inputs and buffers are not learned
            ("aten.add.Tensor", "a w", "y"),
            ("aten.argmax.default", "y", "i"),
            ("aten.to.dtype", "i", "n"),  # nothing comes back through an index
            ("aten.mul.Tensor", "y n", "z"),
        ],
    )
    assert differentiated(graph) == {"w", "y", "z"}


def test_nothing_is_learned_through_a_constant_or_what_is_detached() -> None:
    graph = sketch(
        dict.fromkeys(("w", "a", "d", "o", "r"), (2,)),
        [
            ("aten.detach.default", "w", "a"),
            ("aten.relu.default", "a", "d"),
            ("aten.ones_like.default", "w", "o"),
            ("aten.uniform.default", "w", "r"),
        ],
    )
    assert differentiated(graph) == {"w"}


def test_a_network_without_parameters_learns_nothing() -> None:
    assert differentiated(sketch({"x": (2,), "a": (2,)}, [("aten.relu.default", "x", "a")])) == frozenset()


def test_what_is_computed_from_frozen_parameters_alone_gets_none() -> None:
    calls = [("aten.mul.Tensor", "x w", "y"), ("aten.mul.Tensor", "y wo", "z")]
    graph = sketch(dict.fromkeys(("x", "w", "wo", "y", "z"), (2,)), calls)
    assert differentiated(graph) == {"w", "wo", "y", "z"}
    assert differentiated(graph, frozen=("w",)) == {"wo", "z"}
    assert differentiated(graph, frozen=("w", "wo")) == frozenset()


@pytest.mark.parametrize(
    ("shapes", "products"),
    [
        ([], 0),  # nobody learns
        ([(4,)], 1),
        ([(4, 5)], 1),
        ([(4, 5), (5, 6)], 2),
        ([(4, 5), (5, 6), (6,)], 2),  # a bias costs one pass over the gradient
        ([(4, 5)] * 9, 2),  # as of a concatenation
    ],
)
def test_a_backward_pass_has_a_product_for_each_matrix_that_learns(
    shapes: list[tuple[int, ...]], products: int
) -> None:
    assert backward_products(shapes) == products
