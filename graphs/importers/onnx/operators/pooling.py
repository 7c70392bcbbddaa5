"""Pooling operators."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from graphs.importers.onnx.operators.registry import Node, operator
from graphs.importers.onnx.operators.windows import Window, pad_spatial

_MAX = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}
_AVERAGE: dict[int, Callable[..., Tensor]] = {
    1: functional.avg_pool1d,
    2: functional.avg_pool2d,
    3: functional.avg_pool3d,
}
_GLOBAL_AVERAGE: dict[int, Callable[[Tensor, int], Tensor]] = {
    1: functional.adaptive_avg_pool1d,
    2: functional.adaptive_avg_pool2d,
    3: functional.adaptive_avg_pool3d,
}


def _fits_pytorch(window: Window) -> bool:
    """Whether PyTorch's pooling can pad so: equally at both ends, by at most half a kernel."""
    return window.begin == window.end and all(2 * b <= k for b, k in zip(window.begin, window.kernel, strict=True))


def _window(node: Node, x: Tensor) -> Window:
    window = Window.of(node, node.integers("kernel_shape"), list(x.shape[2:]))
    if len(window.kernel) not in _MAX:
        raise node.unsupported(f"an operand with {len(window.kernel)} spatial dimensions")
    return window


def _hangs_over(node: Node) -> bool:
    """Whether the last window may extend beyond the operand, which auto_pad=VALID excludes."""
    return node.flag("ceil_mode") and node.text("auto_pad", "NOTSET") != "VALID"


@operator("MaxPool", ignores=("storage_order",))
def max_pool(node: Node, x: Tensor) -> Tensor:
    """The largest element of every window."""
    if node.wants(1):
        raise node.unsupported("the second output (Indices)")
    window, ceil = _window(node, x), _hangs_over(node)
    padding = window.begin
    if not _fits_pytorch(window):
        size = list(x.shape[2:])
        lowest = float("-inf") if x.is_floating_point() else torch.iinfo(x.dtype).min
        x = pad_spatial(x, window.begin, window.end_for(size, window.count(size, ceil)), lowest)
        padding, ceil = [0] * len(padding), False
    return _MAX[len(padding)](x, window.kernel, window.stride, padding, window.dilation, ceil)


@operator("AveragePool")
def average_pool(node: Node, x: Tensor) -> Tensor:
    """The mean of every window, with or without the padding counted."""
    window, ceil, whole = _window(node, x), _hangs_over(node), node.flag("count_include_pad")
    if any(d != 1 for d in window.dilation):
        raise node.unsupported(f"dilations={window.dilation}")
    if _fits_pytorch(window):
        return _average(x, window, window.begin, ceil, whole)
    size, no_padding = list(x.shape[2:]), [0] * len(window.kernel)
    hanging = [
        e - given for e, given in zip(window.end_for(size, window.count(size, ceil)), window.end, strict=True)
    ]  # beyond the padding, where nothing is counted
    counted = torch.ones([1, 1, *size], dtype=x.dtype, device=x.device)
    counted = pad_spatial(counted, window.begin, window.end, 1.0 if whole else 0.0)
    counted = pad_spatial(counted, no_padding, hanging)
    x = pad_spatial(pad_spatial(x, window.begin, window.end), no_padding, hanging)
    return _average(x, window, no_padding) / _average(counted, window, no_padding)


def _average(x: Tensor, window: Window, padding: list[int], ceil: bool = False, whole: bool = True) -> Tensor:
    return _AVERAGE[len(padding)](x, window.kernel, window.stride, padding, ceil, whole)


@operator("GlobalAveragePool")
def global_average_pool(_node: Node, x: Tensor) -> Tensor:
    """The mean over all spatial dimensions."""
    n_dims = x.dim() - 2
    if n_dims in _GLOBAL_AVERAGE:
        return _GLOBAL_AVERAGE[n_dims](x, 1)
    return x.mean(dim=list(range(2, x.dim())), keepdim=True)


@operator("GlobalMaxPool")
def global_max_pool(_node: Node, x: Tensor) -> Tensor:
    """The largest element over all spatial dimensions."""
    return x.amax(dim=list(range(2, x.dim())), keepdim=True)
