"""Which tensors get a gradient."""

from costmodels.gradients import differentiated
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
        {"w": (2,), "a": (2,), "d": (2,), "o": (2,)},
        [("aten.detach.default", "w", "a"), ("aten.relu.default", "a", "d"), ("aten.ones_like.default", "w", "o")],
    )
    assert differentiated(graph) == {"w"}


def test_a_network_without_parameters_learns_nothing() -> None:
    assert differentiated(sketch({"x": (2,), "a": (2,)}, [("aten.relu.default", "x", "a")])) == frozenset()
