"""Operators over all element types that the standard allows them, shapes from nothing to three dimensions, attributes.

ONNX's reference implementation is the truth, but where it departs from the specification (`DEPARTS`).
"""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from onnx import defs, numpy_helper
from onnx.reference import ReferenceEvaluator

from graphs.common.errors import InputError
from graphs.importers.onnx.operators.registry import tensor_of
from tests.graphs.onnx_models import ints, run, single

OPSET = 23
SHAPES: list[tuple[int, ...]] = [(2, 3, 4), (0, 3), (), (5,)]
NAMES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float", "double"]
DTYPES = {f"tensor({name})": np.dtype({"float": "float32", "double": "float64"}.get(name, name)) for name in NAMES}

DEPARTS = {
    "ReduceSumSquare": "numpy's sum widens whole numbers, and the specification keeps their type",
}


def grid(**values: list[Any]) -> list[dict[str, Any]]:
    """All combinations."""
    return [dict(zip(values, each, strict=True)) for each in itertools.product(*values.values())]


def numbers(dtype: np.dtype[Any], shape: Any, least: int = -3) -> np.ndarray:
    """Few different numbers, so that some are equal; none is below 0 in an unsigned type, or below ``least``."""
    rng = np.random.default_rng(int(np.prod(shape)) + 7 * len(shape))
    if dtype.kind == "b":
        return np.asarray(rng.random(shape) < 0.5)
    low = max(least, 0) if dtype.kind == "u" else least
    values = rng.integers(low, 5, shape)
    return np.asarray(values / 2 + least / 2 if dtype.kind == "f" else values).astype(dtype)


def of_one(shape: tuple[int, ...], least: int = -3) -> Any:
    return lambda dtype: [numbers(dtype, shape, least)]


def of_two(shape: tuple[int, ...], least: int = -3) -> Any:
    return lambda dtype: [numbers(dtype, shape), numbers(dtype, shape[-1:], least)]


UNARY = "Abs Ceil Erf Exp Floor Neg Relu Round Sigmoid Sign Sin Tanh Not BitwiseNot Softplus Softsign Identity Shrink"
BINARY = (
    "Add Sub Mul Max Min Sum Mean Equal Greater GreaterOrEqual Less LessOrEqual And Or Xor BitwiseAnd BitwiseOr PRelu"
)
REDUCED = "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare"

Case = tuple[str, Any, dict[str, Any], int]  # operator, operands of a dtype, attributes, number of outputs


def elementwise() -> Iterator[Case]:
    for shape in SHAPES:
        yield from ((kind, of_one(shape), {}, 1) for kind in UNARY.split())
        yield from ((kind, of_two(shape), {}, 1) for kind in BINARY.split())
        yield "Div", of_two(shape, 1), {}, 1
        yield "Clip", lambda d, s=shape: [numbers(d, s), None, numbers(d, ())], {}, 1
        yield "Pow", lambda d, s=shape: [numbers(d, s, 1), np.array(2.0, np.float32)], {}, 1
        yield from (("Mod", of_two(shape, 1), {"fmod": fmod}, 1) for fmod in (0, 1))


def reductions() -> Iterator[Case]:
    for shape, kind in itertools.product(SHAPES, REDUCED.split()):
        for axes in (None, [], [0], [-1], [0, -1]):
            if (axes and not shape) or (axes == [0, -1] and len(shape) < 2):
                continue
            given = [] if axes is None else [ints(*axes)]
            for keys in grid(keepdims=[0, 1], noop_with_empty_axes=[0, 1]):
                yield f"Reduce{kind}", lambda d, s=shape, g=given: [numbers(d, s, 1), *g], keys, 1


def along_an_axis() -> Iterator[Case]:
    for shape in SHAPES:
        for axis in range(-len(shape), len(shape)):
            size = shape[axis]
            keys = grid(axis=[axis])
            for one in grid(exclusive=[0, 1], reverse=[0, 1]):
                yield "CumSum", lambda d, s=shape, a=axis: [numbers(d, s), np.array(a)], one, 1
            yield "Slice", lambda d, s=shape, a=axis: [numbers(d, s), ints(-1), ints(-99), ints(a), ints(-1)], {}, 1
            yield "Concat", lambda d, s=shape: [numbers(d, s), numbers(d, s)], keys[0], 1
            yield "Split", lambda d, s=shape, n=size: [numbers(d, s), ints(0, n)], keys[0], 2
            if not size:
                continue
            last = np.array([[-1, 0], [-size, size - 1]])
            yield "Gather", lambda d, s=shape, i=last: [numbers(d, s), i], keys[0], 1
            yield "Gather", lambda d, s=shape: [numbers(d, s), np.array(-1, np.int32)], keys[0], 1
            yield "GatherElements", lambda d, s=shape: [numbers(d, s), np.full(s, -1)], keys[0], 1
            for how in ("add", "mul", "max", "min"):
                every = keys[0] | {"reduction": how}
                yield "ScatterElements", lambda d, s=shape: [numbers(d, s), np.full(s, -1), numbers(d, s)], every, 1
            for one in grid(axis=[axis], keepdims=[0, 1], select_last_index=[0, 1]):
                yield from ((kind, of_one(shape), one, 1) for kind in ("ArgMax", "ArgMin"))
            for one in grid(axis=[axis], largest=[0, 1]):
                yield "TopK", lambda d, s=shape, n=size: [numbers(d, s), ints(min(n, 3))], one, 2


def moved() -> Iterator[Case]:
    for shape in SHAPES:
        yield "Transpose", of_one(shape), {}, 1
        yield "Tile", lambda d, s=shape: [numbers(d, s), ints(*[2] * len(s))], {}, 1
        yield "Expand", lambda d, s=shape: [numbers(d, s), ints(2, *s)], {}, 1
        for axes in ([], [-1], [0, -1]):
            yield "Squeeze", lambda d, s=shape, a=axes: [numbers(d, (1, *s, 1)), ints(*a)], {}, 1
            yield "Unsqueeze", lambda d, s=shape, a=axes: [numbers(d, s), ints(*a)], {}, 1
    for how in ("none", "add", "mul", "max", "min"):
        at = ints([-1, 0], [0, -2], [-1, 0]) if how != "none" else ints([-1, 0], [0, -2])
        yield "ScatterND", lambda d, i=at: [numbers(d, (4, 3)), i, numbers(d, (len(i),))], {"reduction": how}, 1
    for mode in ("constant", "edge", "reflect", "wrap"):
        yield "Pad", lambda d: [numbers(d, (3, 4)), ints(1, 2, 0, 1)], {"mode": mode}, 1


def resized() -> Iterator[Case]:
    countings = ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric"]
    for scale, counting in itertools.product([(2, 3), (0.6, 1.5), (0.25, 0.2)], countings):
        scales = np.array([1, 1, *scale], np.float32)
        ways = grid(mode=["nearest"], nearest_mode=["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
        ways += grid(mode=["linear", "cubic"], antialias=[0, 1], exclude_outside=[0, 1])
        for way in ways:
            keys = way | {"coordinate_transformation_mode": counting}
            yield "Resize", lambda d, s=scales: [numbers(d, (1, 2, 4, 5)), None, s], keys, 1


GROUPS = {"elementwise": elementwise, "reduced": reductions, "axis": along_an_axis, "moved": moved, "resized": resized}


def dtypes_of(kind: str) -> list[np.dtype[Any]]:
    """The types of the first operand that the specification allows and numpy has."""
    schema = defs.get_schema(kind, OPSET)
    allowed = {each.type_param_str: each.allowed_type_strs for each in schema.type_constraints}
    return [DTYPES[name] for name in allowed[schema.inputs[0].type_str] if name in DTYPES]


def differs(results: Any, truth: list[Any]) -> str:
    """How our results differ from the reference's; empty if they do not."""
    for result, wanted in zip(results, truth, strict=True):
        other = tensor_of(numpy_helper.from_array(np.asarray(wanted)))
        if (result.dtype, result.shape) != (other.dtype, other.shape):
            return f"{result.dtype} {list(result.shape)} instead of {other.dtype} {list(other.shape)}"
        a, b = result.double(), other.double()
        bound = 1e-2 if result.dtype == torch.float16 else 1e-4
        if not torch.allclose(a, b, rtol=bound, atol=bound, equal_nan=True):
            return f"{a.flatten()[:8].tolist()} instead of {b.flatten()[:8].tolist()}"
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_all_types_and_attributes_are_as_the_reference_has_them(group: str) -> None:
    wrong, n_cases = [], 0
    for kind, operands, attributes, n_outputs in GROUPS[group]():
        known = attributes.keys() <= defs.get_schema(kind, OPSET).attributes.keys()
        assert known
        dtypes = [np.dtype("float32")] if group == "resized" else dtypes_of(kind)
        for dtype in dtypes if kind not in DEPARTS else filter(lambda each: each.kind == "f", dtypes):
            model, feeds = single(kind, operands(dtype), attributes, OPSET, n_outputs)
            try:
                with np.errstate(all="ignore"):
                    truth: Any = ReferenceEvaluator(model).run(None, feeds)
            except Exception:  # the reference is incomplete, and says so in many ways
                continue
            n_cases += 1
            case = f"{kind} of {dtype} {[np.shape(value) for value in feeds.values()]} {attributes}"
            try:
                found = differs(run(model, feeds), truth)
            except InputError as error:
                refused = "large numbers PyTorch can't put in order" in str(error) and dtype == np.uint64
                found = "" if refused else str(error)
            if found:
                wrong.append(f"{case}: {found}")
    assert wrong == []
    assert n_cases > 100
