"""The windows of a convolution or a pooling: strides, dilations, and ONNX's five forms of padding."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from graphs.importers.onnx.operators.registry import Node


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

        Args:
            node: the node.
            kernel: elements of the window, by dimension.
            size: elements of the operand, by dimension.
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
