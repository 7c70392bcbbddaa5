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
    return _resized(node, x, [_Axis(*each, "asymmetric") for each in zip(x.shape, sizes, scales, strict=True)])


@operator(
    "Resize",
    holds=True,
    known=(1, 2, 3),
    ignores=("antialias", "cubic_coeff_a", "exclude_outside", "extrapolation_value", "nearest_mode"),
)
def resize(node: Node, x: Tensor, first: Any = None, scales: Any = None, sizes: Any = None) -> Tensor:
    """Nearest, linear or cubic interpolation.

    The operands are [n, channels, spatial dimensions], in opset 10 the scales, from opset 11 on the region of interest,
    scales and sizes.
    """
    if node.opset < 11:
        first, scales = None, first
    counting = node.text("coordinate_transformation_mode", "half_pixel" if node.opset >= 11 else "asymmetric")
    policy = node.text("keep_aspect_ratio_policy", "stretch")
    axes = [node.axis(axis, x.dim()) for axis in node.integers("axes", range(x.dim()))]
    if sizes:
        scales = [size / x.shape[axis] for axis, size in zip(axes, sizes, strict=True)]
        if policy != "stretch":
            scales = [min(scales) if policy == "not_larger" else max(scales)] * len(axes)
            sizes = [int(scale * x.shape[axis] + 0.5) for axis, scale in zip(axes, scales, strict=True)]
    elif scales:
        sizes = [math.floor(x.shape[axis] * scale) for axis, scale in zip(axes, scales, strict=True)]
    else:
        raise node.unsupported("a result without scales or sizes")
    if counting == "tf_crop_and_resize":
        regions = [(first[i], first[i + len(axes)]) for i in range(len(axes))]
    else:
        regions = [(0.0, 1.0)] * len(axes)
    full = [_Axis(n, n, 1.0, counting) for n in x.shape]
    for axis, size, scale, region in zip(axes, sizes, scales, regions, strict=True):
        full[axis] = _Axis(x.shape[axis], size, scale, counting, region)
    return _resized(node, x, full)


@dataclass(frozen=True)
class _Axis:
    """One axis of a resize from ``n`` to ``size`` pixels; the scale need not be their exact ratio."""

    n: int
    size: int
    scale: float
    counting: str  # coordinate_transformation_mode
    region: tuple[float, float] = (0.0, 1.0)  # the part that is resized, as shares of the axis

    @property
    def changed(self) -> bool:
        return self.size != self.n or self.scale != 1.0 or self.region != (0.0, 1.0)

    @property
    def span(self) -> float:
        """Pixels of the result, before they are rounded to a whole number."""
        return self.n * self.scale

    @property
    def places(self) -> list[float]:
        """For every pixel of the result, its position among the operand's pixels."""
        place = _PLACES[self.counting]
        return [place(pixel, self) for pixel in range(self.size)]

    @property
    def beyond(self) -> list[bool]:
        """For every pixel of the result, whether it lies beyond the operand, which a region may leave."""
        return [self.region != (0.0, 1.0) and not 0 <= place <= self.n - 1 for place in self.places]


def _in_region(pixel: int, axis: _Axis) -> float:
    start, end = (share * (axis.n - 1) for share in axis.region)
    return (end - start) / 2 + start if axis.span == 1 else start + pixel * (end - start) / (axis.span - 1)


_PLACES: dict[str, Callable[[int, _Axis], float]] = {
    "align_corners": lambda pixel, axis: pixel * (axis.n - 1) / (axis.span - 1) if axis.span != 1 else 0.0,
    "asymmetric": lambda pixel, axis: pixel / axis.scale,
    "half_pixel": lambda pixel, axis: (pixel + 0.5) / axis.scale - 0.5,
    "half_pixel_symmetric": lambda pixel, axis: (
        axis.n / 2 * (1 - axis.size / axis.span) + (pixel + 0.5) / axis.scale - 0.5
    ),
    "pytorch_half_pixel": lambda pixel, axis: (pixel + 0.5) / axis.scale - 0.5 if axis.span != 1 else -0.5,
    "tf_crop_and_resize": _in_region,
}


def _resized(node: Node, x: Tensor, axes: list[_Axis]) -> Tensor:
    """Interpolate with PyTorch's function if it counts pixels as ONNX does, and axis by axis otherwise."""
    mode, counting = node.text("mode", "nearest"), axes[0].counting
    if not any(axis.changed for axis in axes):
        return x
    if counting not in _PLACES or mode not in ("nearest", *_KERNELS):
        raise node.unsupported(f"mode={mode!r} with coordinate_transformation_mode={counting!r}")
    if x.is_floating_point() and (name := _interpolation(node, mode, axes)):
        corners = None if name == "nearest" else counting == "align_corners"
        return functional.interpolate(x, [axis.size for axis in axes[2:]], mode=name, align_corners=corners)
    result = x if mode == "nearest" or x.is_floating_point() else x.double()
    for dim, axis in enumerate(axes):
        if axis.changed:
            result = _along_axis(node, result, dim, axis)
    if result.dtype != x.dtype:
        limits = torch.iinfo(x.dtype)
        result = result.round().clamp(limits.min, limits.max).to(x.dtype)
    return result


def _along_axis(node: Node, x: Tensor, dim: int, axis: _Axis) -> Tensor:
    """Interpolate along one axis; places outside of the operand get the extrapolation value."""
    nearest = node.text("mode", "nearest") == "nearest"
    result = _select(x, dim, _nearest(node, axis)) if nearest else _mixed(node, x, dim, axis)
    if not any(axis.beyond):
        return result
    beyond = torch.tensor(axis.beyond, device=x.device).reshape(_along(dim, x))
    return torch.where(beyond, node.number("extrapolation_value", 0.0), result)


def _along(dim: int, x: Tensor) -> list[int]:
    """Return the shape in which a vector lies along a dimension."""
    return [-1] + [1] * (x.dim() - 1 - dim)


def _interpolation(node: Node, mode: str, axes: list[_Axis]) -> str | None:
    """The mode of PyTorch's function that has the same result, if there is one."""
    counting, n_spatial = axes[0].counting, len(axes) - 2
    if n_spatial not in _LINEAR or any(axis.size != axis.n for axis in axes[:2]) or any(map(_leaves, axes)):
        return None
    if mode == "nearest":
        same = all(_nearest(node, axis) == [d * axis.n // axis.size for d in range(axis.size)] for axis in axes)
        return "nearest" if same else None
    # In spite of its name, PyTorch does not count a single pixel as pytorch_half_pixel does.
    one_pixel = any(axis.size == 1 for axis in axes if axis.changed)
    countings = ("half_pixel", "align_corners") if one_pixel else ("half_pixel", "align_corners", "pytorch_half_pixel")
    if counting not in countings or not _is_exact(node, axes):
        return None
    return {"linear": _LINEAR[n_spatial], "cubic": "bicubic" if n_spatial == 2 else None}.get(mode)


def _is_exact(node: Node, axes: list[_Axis]) -> bool:
    """Return whether sizes are as scales say, and a node has none of the options that PyTorch's function lacks."""
    options = node.flag("antialias") or node.flag("exclude_outside")
    return not options and node.number("cubic_coeff_a", -0.75) == -0.75 and all(axis.size == axis.span for axis in axes)


def _leaves(axis: _Axis) -> bool:
    return axis.counting == "tf_crop_and_resize" or axis.size == 0


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


def _cubic(distance: float, a: float) -> float:
    """Keys' kernel (1981)."""
    if distance <= 1:
        return ((a + 2) * distance - (a + 3)) * distance**2 + 1
    return ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a if distance < 2 else 0.0


_KERNELS: dict[str, tuple[int, Callable[[float, float], float]]] = {
    "linear": (1, lambda distance, _: max(0.0, 1 - distance)),
    "cubic": (2, _cubic),
}
"""By mode: the reach of the kernel in pixels, and a pixel's share at a distance."""


def _mixed(node: Node, x: Tensor, dim: int, axis: _Axis) -> Tensor:
    """Along one axis, the mean of the pixels around each place, weighted by the kernel of the mode.

    With antialias, a kernel that makes an image smaller is as much wider.
    """
    result = None
    for column in zip(*(_shares(node, axis, place) for place in axis.places), strict=True):
        if any(share for _, share in column):
            weights = torch.tensor([share for _, share in column], dtype=x.dtype, device=x.device)
            part = _select(x, dim, [at for at, _ in column]) * weights.reshape(_along(dim, x))
            result = part if result is None else result + part
    return _select(x, dim, []) if result is None else result


def _shares(node: Node, axis: _Axis, place: float) -> list[tuple[int, float]]:
    """Return the pixels around a place with their shares, which add up to 1."""
    reach, kernel = _KERNELS[node.text("mode")]
    narrow = min(axis.scale, 1.0) if node.flag("antialias") else 1.0
    first, a, start = math.floor(-reach / narrow) + 1, node.number("cubic_coeff_a", -0.75), math.ceil(place) - 1
    shares = {start + i: kernel(abs(start + i - place) * narrow, a) for i in range(first, 2 - first)}
    if node.flag("exclude_outside"):
        shares = {at: share if 0 <= at < axis.n else 0.0 for at, share in shares.items()}
    total = sum(shares.values()) or 1.0
    return [(min(max(at, 0), axis.n - 1), share / total) for at, share in shares.items()]


def _select(x: Tensor, dim: int, positions: list[int]) -> Tensor:
    return x.index_select(dim, torch.tensor(positions, dtype=torch.int64, device=x.device))
