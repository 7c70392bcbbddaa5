"""Shapes: what shape an operator of a sharding program writes, given the shapes of its inputs."""

from collections.abc import Callable, Mapping, Sequence
from math import prod

from graphs.common.errors import InputError
from planner.literature.strategies.program import ELEMENTWISE, SOURCES, Shape, TensorOp

MOST_VALUES = 10**15  # more would not be exact as a float


def check_shape(op: TensorOp, inputs: Sequence[TensorOp]) -> None:
    """Compare the shape of an operator with what follows from the shapes of its inputs.

    Raises:
        InputError: if they differ, or if axes do not fit.
    """
    if prod(op.shape) > MOST_VALUES:
        raise InputError(f"{op.name} has shape {list(op.shape)}; give it at most {MOST_VALUES:,} values")
    if op.kind == "tuple":
        return
    least, most = _N_INPUTS.get(op.kind, (1, 1))
    if not least <= len(inputs) <= most:
        number = f"{least}" if least == most else f"{least} to {most}"
        raise InputError(f"{op.name} has {len(inputs)} inputs; a {op.kind} has {number}")
    expected = _SHAPES.get(op.kind, _same_shape)(op, [tensor.shape for tensor in inputs])
    if expected is not None and expected != op.shape:
        read = ", ".join(f"{tensor.name} {list(tensor.shape)}" for tensor in inputs)
        raise InputError(
            f"{op.name} has shape {list(op.shape)}, but of {read} follows {list(expected)}; mend one of them"
        )


_N_INPUTS: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(SOURCES, (0, 0)),
    **dict.fromkeys(ELEMENTWISE, (1, 3)),
    "dot": (2, 2),
}


def _axis(op: TensorOp, axis: int, shape: Shape) -> int:
    """Return the size of an axis of an input."""
    if axis >= len(shape):
        raise InputError(f"{op.name} names axis {axis} of an input of shape {list(shape)}; axes count from 0")
    return shape[axis]


def _distinct(op: TensorOp, axes: Sequence[int], field: str) -> None:
    if len(set(axes)) < len(axes):
        raise InputError(f"{op.name} has {field} = {list(axes)}; name each axis once")


def _same_shape(op: TensorOp, shapes: Sequence[Shape]) -> Shape | None:
    """Elementwise operators and replicate; numbers without axes fit every shape."""
    return next((shape for shape in shapes if shape and shape != op.shape), op.shape)


def _broadcast_shape(op: TensorOp, shapes: Sequence[Shape]) -> Shape:
    (shape,) = shapes
    _distinct(op, op.axes, "axes")
    if len(op.axes) != len(shape):
        raise InputError(
            f"{op.name} has {len(op.axes)} axes for an input of shape {list(shape)}; name one for each axis"
        )
    expected = list(op.shape)
    for axis, size in zip(op.axes, shape, strict=True):
        _axis(op, axis, op.shape)
        expected[axis] = size
    return tuple(expected)


def _transpose_shape(op: TensorOp, shapes: Sequence[Shape]) -> Shape:
    (shape,) = shapes
    if sorted(op.axes) != list(range(len(shape))):
        raise InputError(
            f"{op.name} has axes = {list(op.axes)} for an input of shape {list(shape)}; name each axis once"
        )
    return tuple(shape[axis] for axis in op.axes)


def _reduce_shape(op: TensorOp, shapes: Sequence[Shape]) -> Shape:
    (shape,) = shapes
    _distinct(op, op.axes, "axes")
    for axis in op.axes:
        _axis(op, axis, shape)
    return tuple(size for axis, size in enumerate(shape) if axis not in op.axes)


def _reshape_shape(op: TensorOp, shapes: Sequence[Shape]) -> Shape:
    (shape,) = shapes
    return op.shape if prod(shape) == prod(op.shape) else shape


def _dot_shape(op: TensorOp, shapes: Sequence[Shape]) -> Shape:
    """Batch axes, then the free axis of the left input, then that of the right one."""
    free: list[int] = []
    for shape, batch, summed in zip(shapes, op.batch, op.contract, strict=True):
        _distinct(op, (*batch, summed), "batch and contract")
        for axis in (*batch, summed):
            _axis(op, axis, shape)
        rest = [size for axis, size in enumerate(shape) if axis not in (*batch, summed)]
        if len(rest) != 1:
            raise InputError(
                f"{op.name} has an input of shape {list(shape)} with {len(rest)} free axes; leave one besides batch "
                "and contract"
            )
        free += rest
    sizes = [
        [shape[axis] for axis in (*batch, summed)]
        for shape, batch, summed in zip(shapes, op.batch, op.contract, strict=True)
    ]
    if sizes[0] != sizes[1]:
        raise InputError(f"{op.name} pairs batch and summed axes of sizes {sizes[0]} with {sizes[1]}; make them equal")
    return (*sizes[0][:-1], *free)


_SHAPES: Mapping[str, Callable[[TensorOp, Sequence[Shape]], Shape | None]] = {
    **dict.fromkeys(SOURCES, lambda op, _: op.shape),
    "broadcast": _broadcast_shape,
    "transpose": _transpose_shape,
    "reduce": _reduce_shape,
    "reshape": _reshape_shape,
    "dot": _dot_shape,
}
