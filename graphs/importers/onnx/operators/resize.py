"""Resize and Upsample."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from graphs.importers.onnx.operators.registry import Node, operator

_LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}


@operator("Upsample", known=(1,))
def upsample(node: Node, x: Tensor, scales: list[float] | None = None) -> Tensor:
    """The predecessor of Resize, with asymmetric coordinates."""
    scales = list(node.attributes["scales"]) if scales is None else scales
    sizes = [math.floor(n * s) for n, s in zip(x.shape, scales, strict=True)]
    return _resized(node, x, sizes, scales, "asymmetric")


@operator("Resize", known=(1, 2, 3), ignores=("cubic_coeff_a", "extrapolation_value", "nearest_mode"))
def resize(node: Node, x: Tensor, first: Any = None, scales: Any = None, sizes: Any = None) -> Tensor:
    """Nearest, linear or cubic interpolation.

    The operands are [n, channels, spatial dimensions], in opset 10 the scales, from opset 11 on the region of interest,
    scales and sizes.
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


@dataclass(frozen=True)
class _Axis:
    """One axis of a resize from ``n`` to ``size`` pixels; the scale need not be their exact ratio."""

    n: int
    size: int
    scale: float
    counting: str  # coordinate_transformation_mode

    @property
    def changed(self) -> bool:
        return self.size != self.n or self.scale != 1.0

    @property
    def places(self) -> list[float]:
        """For every pixel of the result, its position among the operand's pixels."""
        place = _PLACES[self.counting]
        return [place(pixel, self) for pixel in range(self.size)]


_PLACES: dict[str, Callable[[int, _Axis], float]] = {
    "align_corners": lambda pixel, axis: (
        pixel * (axis.n - 1) / (axis.n * axis.scale - 1) if axis.n * axis.scale != 1 else 0.0
    ),
    "asymmetric": lambda pixel, axis: pixel / axis.scale,
    "half_pixel": lambda pixel, axis: (pixel + 0.5) / axis.scale - 0.5,
    "half_pixel_symmetric": lambda pixel, axis: (
        axis.n / 2 * (1 - axis.size / (axis.scale * axis.n)) + (pixel + 0.5) / axis.scale - 0.5
    ),
    "pytorch_half_pixel": lambda pixel, axis: (pixel + 0.5) / axis.scale - 0.5 if axis.size > 1 else 0.0,
}


def _resized(node: Node, x: Tensor, sizes: list[int], scales: list[float], counting: str) -> Tensor:
    """Interpolate with PyTorch's function if it counts pixels as ONNX does, and axis by axis otherwise."""
    mode = node.text("mode", "nearest")
    axes = [_Axis(n, size, scale, counting) for n, size, scale in zip(x.shape, sizes, scales, strict=True)]
    if not any(axis.changed for axis in axes):
        return x
    if counting not in _PLACES:
        raise node.unsupported(f"coordinate_transformation_mode={counting!r}")
    if name := _interpolation(node, mode, axes):
        corners = None if name == "nearest" else counting == "align_corners"
        return functional.interpolate(x, sizes[2:], mode=name, align_corners=corners)
    if mode not in ("nearest", "linear"):
        raise node.unsupported(f"mode={mode!r} with coordinate_transformation_mode={counting!r} and these sizes")
    for dim, axis in enumerate(axes):
        if axis.changed:
            x = _select(x, dim, _nearest(node, axis)) if mode == "nearest" else _linear(x, dim, axis)
    return x


def _interpolation(node: Node, mode: str, axes: list[_Axis]) -> str | None:
    """The mode of PyTorch's function that has the same result, if there is one."""
    counting, n_spatial = axes[0].counting, len(axes) - 2
    if n_spatial not in _LINEAR or any(axis.size != axis.n for axis in axes[:2]):
        return None
    if mode == "nearest":
        same = all(_nearest(node, axis) == [d * axis.n // axis.size for d in range(axis.size)] for axis in axes)
        return "nearest" if same else None
    # In spite of its name, PyTorch does not count a single pixel as pytorch_half_pixel does.
    one_pixel = any(axis.size == 1 for axis in axes if axis.changed)
    countings = ("half_pixel", "align_corners") if one_pixel else ("half_pixel", "align_corners", "pytorch_half_pixel")
    exact = all(axis.size == axis.n * axis.scale for axis in axes)
    if counting not in countings or not exact or node.number("cubic_coeff_a", -0.75) != -0.75:
        return None
    return {"linear": _LINEAR[n_spatial], "cubic": "bicubic" if n_spatial == 2 else None}.get(mode)


def _nearest(node: Node, axis: _Axis) -> list[int]:
    """For every pixel of the result, the nearest pixel of the operand."""
    rounding = {
        "round_prefer_floor": lambda at: math.ceil(at - 0.5),
        "round_prefer_ceil": lambda at: math.floor(at + 0.5),
        "floor": math.floor,
        "ceil": math.ceil,
    }
    by_default = "round_prefer_floor" if node.opset >= 11 else "floor"
    nearest = rounding[node.text("nearest_mode", by_default)]
    return [min(max(nearest(place), 0), axis.n - 1) for place in axis.places]


def _linear(x: Tensor, dim: int, axis: _Axis) -> Tensor:
    """Along one axis, the mean of the two pixels around each place, weighted by their distance."""
    places = [min(max(place, 0.0), axis.n - 1.0) for place in axis.places]
    below = [min(math.floor(place), axis.n - 1) for place in places]
    above = [min(position + 1, axis.n - 1) for position in below]
    share = torch.tensor([place - b for place, b in zip(places, below, strict=True)], dtype=x.dtype, device=x.device)
    share = share.reshape([-1] + [1] * (x.dim() - 1 - dim))
    lower = _select(x, dim, below)
    return lower + share * (_select(x, dim, above) - lower)


def _select(x: Tensor, dim: int, positions: list[int]) -> Tensor:
    return x.index_select(dim, torch.tensor(positions, dtype=torch.int64, device=x.device))
