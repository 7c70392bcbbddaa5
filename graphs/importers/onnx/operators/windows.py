"""Convolutions and poolings, whose windows have strides, dilations, and ONNX's five forms of padding."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from graphs.importers.onnx.operators.registry import Node, operator

MOST_DIMENSIONS = 3  # spatial dimensions of PyTorch's convolutions and poolings


def _of_dimensions(node: Node, name: str, n_dims: int) -> Any:
    """PyTorch's function for a number of spatial dimensions, such as ``conv2d``."""
    if not 1 <= n_dims <= MOST_DIMENSIONS:
        raise node.unsupported(f"an operand with {n_dims} spatial dimensions")
    return getattr(functional, f"{name}{n_dims}d")


@dataclass(frozen=True)
class Window:
    """A window that slides over the spatial dimensions; every list has one number for each dimension.

    ::

        begin=2       size=5        end=1        kernel=3, stride=2, dilation=1
        . .       x  x  x  x  x       .
        └──────────┘  └──────────┘
             └───────────┘
    """

    kernel: list[int]
    stride: list[int]
    dilation: list[int]
    begin: list[int]
    end: list[int]

    @classmethod
    def of(cls, node: Node, kernel: list[int], size: list[int]) -> "Window":
        """The window of a node with the attributes strides, dilations, pads and auto_pad.

        ``kernel`` and ``size`` are the elements of the window and of the operand, by dimension.
        """
        ones = [1] * len(kernel)
        stride, dilation = node.integers("strides", ones), node.integers("dilations", ones)
        reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
        auto_pad = node.text("auto_pad", "NOTSET")
        if auto_pad in ("SAME_UPPER", "SAME_LOWER"):  # as many windows as strides fit into the size
            total = [max(0, (-(-n // s) - 1) * s + r - n) for n, s, r in zip(size, stride, reach, strict=True)]
            begin, end = halves(total, auto_pad)
        else:
            begin, end = explicit_pads(node, len(kernel))
        return cls(kernel, stride, dilation, begin, end)

    @property
    def reach(self) -> list[int]:
        """Elements from the first to the last of a window, by dimension."""
        return [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True)]

    def count(self, size: list[int], ceil: bool) -> list[int]:
        """Number of windows by dimension; with ``ceil`` the last one may extend beyond the end if it starts inside."""
        counts = []
        for n, r, s, b, e in zip(size, self.reach, self.stride, self.begin, self.end, strict=True):
            span = n + b + e - r
            count = (-(-span // s) if ceil else span // s) + 1
            counts.append(count - 1 if ceil and (count - 1) * s >= n + b else count)
        return counts

    def end_for(self, size: list[int], counts: list[int]) -> list[int]:
        """The padding at the end with which these numbers of windows fit; negative where elements are left over."""
        return [
            (c - 1) * s + r - n - b
            for n, c, r, s, b in zip(size, counts, self.reach, self.stride, self.begin, strict=True)
        ]


def explicit_pads(node: Node, n_dims: int) -> tuple[list[int], list[int]]:
    """The padding at the begin and end of each dimension from the attribute pads; 0 for auto_pad=VALID."""
    pads = [0] * 2 * n_dims
    if node.text("auto_pad", "NOTSET") == "NOTSET":
        pads = node.integers("pads", pads)
    return pads[:n_dims], pads[n_dims:]


def halves(total: list[int], auto_pad: str) -> tuple[list[int], list[int]]:
    """The padding at the begin and end of each dimension for auto_pad; SAME_UPPER has an odd element at the end."""
    half = [p // 2 for p in total]
    rest = [p - h for p, h in zip(total, half, strict=True)]
    return (half, rest) if auto_pad == "SAME_UPPER" else (rest, half)


def pad_spatial(x: Tensor, begin: list[int], end: list[int], value: float = 0.0) -> Tensor:
    """The tensor with elements added around its spatial dimensions, or removed where a number is negative."""
    pairs = [amount for b, e in zip(reversed(begin), reversed(end), strict=True) for amount in (b, e)]
    return functional.pad(x, pairs, value=value) if any(pairs) else x


@operator("Conv", ignores=("kernel_shape",))
def conv(node: Node, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    """Convolution in one, two or three dimensions."""
    convolve = _of_dimensions(node, "conv", x.dim() - 2)
    window = Window.of(node, list(weight.shape[2:]), list(x.shape[2:]))
    padding = window.begin
    if window.begin != window.end:
        x, padding = pad_spatial(x, window.begin, window.end), [0] * len(padding)
    return convolve(x, weight, bias, window.stride, padding, window.dilation, node.integer("group", 1))


@operator("ConvTranspose", ignores=("kernel_shape", "pads"))
def conv_transpose(node: Node, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    """Transposed convolution, whose padding cuts off the result's border."""
    n_dims = x.dim() - 2
    convolve = _of_dimensions(node, "conv_transpose", n_dims)
    stride, dilation = node.integers("strides", [1] * n_dims), node.integers("dilations", [1] * n_dims)
    extra, group = node.integers("output_padding", [0] * n_dims), node.integer("group", 1)
    reach = [(k - 1) * d + 1 for k, d in zip(weight.shape[2:], dilation, strict=True)]
    full = [s * (n - 1) + o + r for s, n, o, r in zip(stride, x.shape[2:], extra, reach, strict=True)]
    begin, end = _cut(node, list(x.shape[2:]), stride, full)
    if begin == end and min(begin) >= 0:
        return convolve(x, weight, bias, stride, begin, extra, group, dilation)
    grows = min(*begin, *end) < 0  # the added border has the bias only
    uncut = convolve(x, weight, None if grows else bias, stride, [0] * n_dims, extra, group, dilation)
    result = pad_spatial(uncut, [-b for b in begin], [-e for e in end])
    return result + bias.reshape([-1] + [1] * n_dims) if grows and bias is not None else result


def _cut(node: Node, size: list[int], stride: list[int], full: list[int]) -> tuple[list[int], list[int]]:
    """The elements that are cut off a transposed convolution's full result at both ends of each dimension."""
    n_dims, auto_pad = len(size), node.text("auto_pad", "NOTSET")
    target = node.integers("output_shape")[-n_dims:]
    if not target and auto_pad in ("NOTSET", "VALID"):
        return explicit_pads(node, n_dims)
    target = target or [n * s for n, s in zip(size, stride, strict=True)]
    surplus = [f - t for f, t in zip(full, target, strict=True)]
    if auto_pad == "NOTSET" and min(surplus) < 0:  # the result grows at the end
        return [(max(s, 0) + 1) // 2 for s in surplus], [s - (max(s, 0) + 1) // 2 for s in surplus]
    return halves(surplus, auto_pad)


def _fits_pytorch(window: Window) -> bool:
    """Whether PyTorch's pooling can pad so: equally at both ends, by at most half a kernel."""
    return window.begin == window.end and all(2 * b <= k for b, k in zip(window.begin, window.kernel, strict=True))


def _hangs_over(node: Node) -> bool:
    """Whether the last window may extend beyond the operand, which auto_pad=VALID excludes."""
    return node.flag("ceil_mode") and node.text("auto_pad", "NOTSET") != "VALID"


@operator("MaxPool", ignores=("storage_order",))
def max_pool(node: Node, x: Tensor) -> Any:
    """The largest element of every window."""
    if node.wants(1):
        raise node.unsupported("the second output (Indices)")
    window, ceil = Window.of(node, node.integers("kernel_shape"), list(x.shape[2:])), _hangs_over(node)
    pool = _of_dimensions(node, "max_pool", len(window.kernel))
    padding = window.begin
    if not _fits_pytorch(window):
        size = list(x.shape[2:])
        lowest = float("-inf") if x.is_floating_point() else torch.iinfo(x.dtype).min
        x = pad_spatial(x, window.begin, window.end_for(size, window.count(size, ceil)), lowest)
        padding, ceil = [0] * len(padding), False
    return pool(x, window.kernel, window.stride, padding, window.dilation, ceil)


@operator("AveragePool")
def average_pool(node: Node, x: Tensor) -> Any:
    """The mean of every window, with or without the padding counted."""
    window, ceil = Window.of(node, node.integers("kernel_shape"), list(x.shape[2:])), _hangs_over(node)
    pool, whole = _of_dimensions(node, "avg_pool", len(window.kernel)), node.flag("count_include_pad")
    spread = any(d != 1 for d in window.dilation)
    if _fits_pytorch(window) and not spread:
        return pool(x, window.kernel, window.stride, window.begin, ceil, whole)
    size, no_padding = list(x.shape[2:]), [0] * len(window.kernel)
    hanging = [
        e - given for e, given in zip(window.end_for(size, window.count(size, ceil)), window.end, strict=True)
    ]  # beyond the padding, where nothing is counted
    counted = torch.ones([1, 1, *size], dtype=x.dtype, device=x.device)
    counted = pad_spatial(counted, window.begin, window.end, 1.0 if whole else 0.0)
    counted = pad_spatial(counted, no_padding, hanging)
    x = pad_spatial(pad_spatial(x, window.begin, window.end), no_padding, hanging)
    if spread:
        total, count = _spread_sum(node, x, window), _spread_sum(node, counted, window)
    else:
        total, count = (pool(tensor, window.kernel, window.stride) for tensor in (x, counted))
    return total / count


def _spread_sum(node: Node, x: Tensor, window: Window) -> Tensor:
    """The sum of every window with dilations, which PyTorch's mean pools lack: a convolution of each channel alone."""
    convolve = _of_dimensions(node, "conv", len(window.kernel))
    ones = torch.ones([x.shape[1], 1, *window.kernel], dtype=x.dtype, device=x.device)
    total: Tensor = convolve(x, ones, None, window.stride, 0, window.dilation, x.shape[1])
    return total


@operator("LpPool")
def norm_pool(node: Node, x: Tensor) -> Tensor:
    """The norm of every window."""
    window, ceil = Window.of(node, node.integers("kernel_shape"), list(x.shape[2:])), _hangs_over(node)
    size, p = list(x.shape[2:]), node.integer("p", 2)
    x = pad_spatial(x.abs(), window.begin, window.end_for(size, window.count(size, ceil)))
    return _spread_sum(node, x.pow(p), window).pow(1 / p)


@operator("Col2Im", known=(1, 2))
def col2im(node: Node, x: Tensor, image: list[int], block: list[int]) -> Tensor:
    """Overlapping blocks added up to an image, in one dimension or two."""
    n_dims = len(image)
    if n_dims > 2:
        raise node.unsupported(f"an image with {n_dims} dimensions")
    ones, zeros = [1] * n_dims, [0] * n_dims
    stride, dilation, pads = (
        node.integers(k, d) for k, d in (("strides", ones), ("dilations", ones), ("pads", zeros * 2))
    )
    begin, end = pads[:n_dims], pads[n_dims:]
    padded = [n + b + e for n, b, e in zip(image, begin, end, strict=True)]
    front = [1] * (2 - n_dims)  # a line is an image of one row
    sizes, blocks, dilations, strides = (tuple(front + each) for each in (padded, block, dilation, stride))
    whole = functional.fold(x, sizes, blocks, dilations, 0, strides)
    return pad_spatial(whole.reshape(*whole.shape[:2], *padded), [-b for b in begin], [-e for e in end])


@operator("GlobalAveragePool")
def global_average_pool(_node: Node, x: Tensor) -> Tensor:
    """The mean over all spatial dimensions."""
    n_dims = x.dim() - 2
    if 1 <= n_dims <= MOST_DIMENSIONS:
        mean: Tensor = getattr(functional, f"adaptive_avg_pool{n_dims}d")(x, 1)
        return mean
    return x.mean(dim=list(range(2, x.dim())), keepdim=True)


operator("GlobalMaxPool")(lambda _, x: x.amax(dim=list(range(2, x.dim())), keepdim=True))
