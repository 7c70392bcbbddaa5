"""Resize and Upsample: which pixel of the operand lies under a pixel of the result."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from graphs.importers.onnx.operators.registry import Node, operator

_LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}


@operator("Upsample", known=(1,))
def upsample(node: Node, x: Tensor, scales: list[float] | None = None) -> Tensor:
    """The forerunner of Resize, with one way of counting."""
    scales = list(node.attributes["scales"]) if scales is None else scales
    sizes = [math.floor(n * s) for n, s in zip(x.shape, scales, strict=True)]
    return _resized(node, x, sizes, scales, "asymmetric")


@operator("Resize", known=(1, 2, 3), ignores=("cubic_coeff_a", "extrapolation_value", "nearest_mode"))
def resize(node: Node, x: Tensor, first: Any = None, scales: Any = None, sizes: Any = None) -> Tensor:
    """Another number of pixels, by nearest, linear or cubic interpolation.

    Args:
        node: mode, coordinate_transformation_mode, nearest_mode, axes and so on.
        x: [n, channels, spatial dimensions].
        first: the scales in opset 10, the region of interest from opset 11 on.
        scales: of every axis.
        sizes: of every axis.
    """
    if node.opset < 11:
        first, scales = None, first
    for key in ("antialias", "exclude_outside"):
        if node.flag(key):
            raise node.unsupported(f"{key}=1")
    if node.text("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise node.unsupported(f"keep_aspect_ratio_policy={node.text('keep_aspect_ratio_policy')!r}")
    axes = [axis % x.dim() for axis in node.integers("axes", range(x.dim()))]
    if sizes:
        full_sizes = _on_axes(list(x.shape), axes, sizes)
        full_scales = [out / n for out, n in zip(full_sizes, x.shape, strict=True)]
    elif scales:
        full_scales = _on_axes([1.0] * x.dim(), axes, scales)
        full_sizes = [math.floor(n * s) for n, s in zip(x.shape, full_scales, strict=True)]
    else:
        raise node.unsupported("a result without scales or sizes")
    by_default = "half_pixel" if node.opset >= 11 else "asymmetric"
    return _resized(node, x, full_sizes, full_scales, node.text("coordinate_transformation_mode", by_default))


def _on_axes(everywhere: list[Any], axes: list[int], values: list[Any]) -> list[Any]:
    given = dict(zip(axes, values, strict=True))
    return [given.get(axis, value) for axis, value in enumerate(everywhere)]


def _resized(node: Node, x: Tensor, sizes: list[int], scales: list[float], counting: str) -> Tensor:
    """Goes through PyTorch's own function where it counts pixels alike, axis by axis elsewhere."""
    mode = node.text("mode", "nearest")
    spatial = sizes[2:] if x.dim() > 2 and sizes[:2] == list(x.shape[:2]) else []
    changed = [axis for axis in range(x.dim()) if sizes[axis] != x.shape[axis] or scales[axis] != 1.0]
    if mode in ("linear", "cubic") and counting in ("half_pixel", "pytorch_half_pixel", "align_corners"):
        # In spite of its name PyTorch doesn't count a single pixel so.
        alike = counting != "pytorch_half_pixel" or all(sizes[axis] > 1 for axis in changed)
        name = _LINEAR.get(len(spatial)) if mode == "linear" else "bicubic" if len(spatial) == 2 else None
        exact = all(size == n * s for size, n, s in zip(sizes, x.shape, scales, strict=True))
        if name and alike and exact and node.number("cubic_coeff_a", -0.75) == -0.75:
            return functional.interpolate(x, spatial, mode=name, align_corners=counting == "align_corners")
    if mode == "nearest":
        positions = [_nearest(node, counting, sizes[axis], x.shape[axis], scales[axis]) for axis in range(x.dim())]
        whole = [[d * n // size for d in range(size)] for n, size in zip(x.shape, sizes, strict=True)]
        if spatial and len(spatial) in _LINEAR and positions == whole:
            return functional.interpolate(x, spatial, mode="nearest")
        for axis in changed:
            x = x.index_select(axis, torch.tensor(positions[axis], dtype=torch.int64, device=x.device))
        return x
    if mode == "linear":
        for axis in changed:
            x = _linear(node, x, axis, counting, sizes[axis], scales[axis])
        return x
    raise node.unsupported(f"mode={mode!r} with coordinate_transformation_mode={counting!r} and these sizes")


def _under(node: Node, counting: str, d: int, size: int, n: int, scale: float) -> float:
    """Where pixel d of `size` lies among the operand's n pixels."""
    if counting == "align_corners":
        return d * (n - 1) / (n * scale - 1) if n * scale != 1 else 0.0
    if counting == "asymmetric":
        return d / scale
    if counting == "half_pixel" or (counting == "pytorch_half_pixel" and size > 1):
        return (d + 0.5) / scale - 0.5
    if counting == "pytorch_half_pixel":
        return 0.0
    if counting == "half_pixel_symmetric":
        return n / 2 * (1 - size / (scale * n)) + (d + 0.5) / scale - 0.5
    raise node.unsupported(f"coordinate_transformation_mode={counting!r}")


def _nearest(node: Node, counting: str, size: int, n: int, scale: float) -> list[int]:
    """For every pixel of the result the nearest one of the operand, along one axis."""
    rounding = {
        "round_prefer_floor": lambda at: math.ceil(at - 0.5),
        "round_prefer_ceil": lambda at: math.floor(at + 0.5),
        "floor": math.floor,
        "ceil": math.ceil,
    }
    by_default = "round_prefer_floor" if node.opset >= 11 else "floor"
    nearest = rounding[node.text("nearest_mode", by_default)]
    found = [nearest(_under(node, counting, d, size, n, scale)) for d in range(size)]
    return [min(max(position, 0), n - 1) for position in found]


def _linear(node: Node, x: Tensor, axis: int, counting: str, size: int, scale: float) -> Tensor:
    """Along one axis, the mean of the two pixels around each place, weighted by how near they are."""
    n = x.shape[axis]
    places = [min(max(_under(node, counting, d, size, n, scale), 0.0), n - 1.0) for d in range(size)]
    below = [min(math.floor(place), n - 1) for place in places]
    above = [min(position + 1, n - 1) for position in below]
    share = torch.tensor([place - b for place, b in zip(places, below, strict=True)], dtype=x.dtype, device=x.device)
    share = share.reshape([-1] + [1] * (x.dim() - 1 - axis))
    lower = x.index_select(axis, torch.tensor(below, dtype=torch.int64, device=x.device))
    return lower + share * (x.index_select(axis, torch.tensor(above, dtype=torch.int64, device=x.device)) - lower)
