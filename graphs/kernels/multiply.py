"""Convolutions and products by packed weights, with what follows them, in one kernel of oneDNN.

PyTorch's operators describe their tensors and look the kernel up at each call. That takes 22 µs for a convolution,
which is most of the time of a small one. So devices of one core call oneDNN themselves: convolutions have the same bits
then; products are oneDNN's "matmul", which with weights that come from memory is 3 to 14 % faster than PyTorch's "inner
product". Threads of a device of several cores are PyTorch's; a second library's would spin on the same cores.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from math import isfinite, prod
from threading import get_ident
from typing import Any, ClassVar

import torch

from graphs.kernels.dnnl import library
from graphs.kernels.gelu import contiguous_gelu, strided_gelu
from graphs.kernels.kernel import Strided, Writer
from graphs.kernels.primitive import Primitive, loses_nan
from graphs.kernels.winograd import Winograd
from graphs.rewrites.patterns import Step, activation

BINARY: dict[str, Callable[..., torch.Tensor]] = {"add": torch.add, "mul": torch.mul}


class Multiply(Writer, ABC):
    """A multiplication by a packed weight, and what follows.

    Attributes:
        primitive: what oneDNN computes.
    """

    def __init__(self, primitive: Primitive | Winograd, x: Strided, result: Strided) -> None:
        """The multiplication; its input and its result lie as those of the primitive, maybe with other shapes."""
        super().__init__(primitive.kind, x.strides, result)
        self.primitive = primitive
        self._bound: dict[int, tuple[torch.Tensor, Callable[..., object]]] = {}  # with the packed weight, by thread

    def pack(self, weight: torch.Tensor) -> torch.Tensor:
        """Pack a weight on the thread of the device; one that is not finite stays as it is.

        oneDNN does not multiply it by the zeros around images, as PyTorch may.
        """
        if not isfinite(weight.sum().item()):
            return weight.detach()
        dnnl = library() if torch.get_num_threads() == 1 else None
        packed = self.primitive.pack(dnnl, weight) if dnnl else None
        return self.pack_for_torch(weight) if packed is None else packed

    def __call__(
        self,
        x: torch.Tensor,
        packed: torch.Tensor,
        bias: torch.Tensor | None = None,
        other: torch.Tensor | None = None,
        result: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Multiply; ``other`` is the second operand of a step, ``result`` is written if it is given."""
        if packed.is_mkldnn:
            return self.written(self.by_torch(x, packed, bias, other), result)
        known, execution = self._bound.get(get_ident(), (None, None))
        if execution is None or known is not packed:
            execution = self._execution(packed, bias)
            self._bound[get_ident()] = packed, execution
        x, result = self.ends(x, result)
        if other is None:
            spoilt = execution(x.data_ptr(), result.data_ptr())
        else:
            other = self.as_read(other)
            spoilt = execution(x.data_ptr(), result.data_ptr(), other.data_ptr())
        return result.copy_(self._by_operators(x, packed, bias, other)) if spoilt else result

    def _execution(self, packed: torch.Tensor, bias: torch.Tensor | None) -> Callable[..., object]:
        """Return this thread's function of addresses that multiplies by a packed weight; it returns True on failure."""
        dnnl = library()
        return (lambda *_: True) if dnnl is None or _is_plain(packed) else self.primitive.bound(dnnl, packed, bias)

    def _by_operators(
        self, x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, other: torch.Tensor | None
    ) -> torch.Tensor:
        """Compute what oneDNN or Winograd's algorithm cannot: PyTorch's operators, one after the other."""
        dnnl = library()
        weight = packed if dnnl is None or _is_plain(packed) else self.primitive.unpack(dnnl, packed)
        y = self.multiplied(x, weight, bias)
        for step in self.primitive.steps:
            if step.other:
                assert other is not None
                y = BINARY[step.function](y, other.reshape(y.shape))
            else:
                y = _activated(y, step)
        return y

    @abstractmethod
    def multiplied(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Multiply by a weight that is not packed, with PyTorch's operator, without what follows."""

    @abstractmethod
    def pack_for_torch(self, weight: torch.Tensor) -> torch.Tensor:
        """Pack a weight for PyTorch's operator."""

    @abstractmethod
    def by_torch(
        self, x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, other: torch.Tensor | None
    ) -> torch.Tensor:
        """Multiply with PyTorch's operator."""

    def _activation(self) -> tuple[tuple[str, list[float], str], Step | None]:
        """The activation that PyTorch's fused operator computes, as it takes it, and the one that has to follow it.

        It is oneDNN's, which loses NaN; and after a second operand it knows ReLU alone.
        """
        found = activation(self.primitive.steps)
        if found is None or loses_nan(found) or any(step.other for step in self.primitive.steps):
            return ("none", [], ""), found
        return (found.function, list(found.scalars), found.algorithm), None


def _activated(y: torch.Tensor, step: Step) -> torch.Tensor:
    """Apply an activation by PyTorch's own operator, in place if it is not GELU."""
    if step.function == "gelu":
        return (strided_gelu if step.strided else contiguous_gelu)(y, step.algorithm)
    name = {"swish": "silu", "hardtanh": "clamp"}.get(step.function, step.function)
    result: torch.Tensor = getattr(torch.ops.aten, f"{name}_")(y, *step.scalars)
    return result


def _is_plain(packed: torch.Tensor) -> bool:
    """Return whether a weight was not packed: oneDNN's packed weights are bytes."""
    return packed.dtype == torch.float32


class PackedConvolution(Multiply):
    """A convolution of images [n, channels, height, width]; images are in channels-last layout from then on."""

    memory_format = torch.channels_last
    by_tiles: ClassVar[bool] = False
    """Whether Winograd's algorithm computes it where that is quicker."""

    def __init__(
        self,
        x: Sequence[int],
        filters: Sequence[int],
        geometry: Sequence[Any],
        bias: bool,
        steps: Sequence[Step] = (),
        border: Sequence[int] | None = None,
    ) -> None:
        """Prepare the convolution of images of the shape ``x`` with filters of the shape ``filters``.

        ``geometry`` is stride, padding, dilation and groups, or the first of them; ``border`` the zeros left, right,
        above and below, in addition to this padding.
        """
        given: tuple[Any, ...] = (*geometry, *((1, 1), (0, 0), (1, 1), 1)[len(geometry) :])
        stride, padding, dilation, groups = given
        self._geometry = tuple(padding), tuple(stride), tuple(dilation), groups
        self._border = tuple(border or (0, 0, 0, 0))
        left, right, above, below = self._border
        self._padded = (*x[:2], x[2] + above + below, x[3] + left + right)
        before, behind = (padding[0] + above, padding[1] + left), (padding[0] + below, padding[1] + right)
        extents = zip(x[2:], filters[2:], stride, before, behind, dilation, strict=True)
        size = [(extent + pre + post - gap * (k - 1) - 1) // step + 1 for extent, k, step, pre, post, gap in extents]
        y = Strided.channels_last([x[0], filters[0], *size])
        weight = (groups, filters[0] // groups, *filters[1:]) if groups > 1 else tuple(filters)
        axes = tuple(stride), tuple(gap - 1 for gap in dilation), before, behind
        added = Strided.contiguous(filters[:1]) if bias else None
        images = Strided.channels_last(x)
        tiled = Winograd(images, tuple(filters), y, before, tuple(steps))
        plain = tuple(stride) == tuple(dilation) == (1, 1) and groups == 1
        direct = Primitive("convolution", images, weight, y, added, tuple(steps), axes)
        super().__init__(tiled if self.by_tiles and plain and tiled.gains() else direct, images, y)

    def pack_for_torch(self, weight: torch.Tensor) -> torch.Tensor:
        """Pack the filters for PyTorch's operator."""
        reorder = torch.ops.mkldnn._reorder_convolution_weight.default
        packed: torch.Tensor = reorder(weight, *self._geometry, self._padded)
        return packed

    def by_torch(
        self, x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, other: torch.Tensor | None
    ) -> torch.Tensor:
        """Convolve with PyTorch's operator."""
        convolve = torch.ops.mkldnn._convolution_pointwise
        x = torch.nn.functional.pad(x, self._border) if any(self._border) else x
        fused, then = self._activation()
        if other is None:
            result: torch.Tensor = convolve.default(x, packed, bias, *self._geometry, *fused)
        else:
            function = self.primitive.steps[0].function
            result = convolve.binary(x, other, packed, bias, *self._geometry, function, None, None, [], "")
        return _activated(result, then) if then else result

    def multiplied(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Convolve with PyTorch's operator of filters that are not packed."""
        padding, stride, dilation, groups = self._geometry
        x = torch.nn.functional.pad(x, self._border) if any(self._border) else x
        filters = weight.reshape(self.result.shape[1], -1, *weight.shape[-2:])
        return torch.conv2d(x.contiguous(), filters, bias, stride, padding, dilation, groups)


class TiledConvolution(PackedConvolution):
    """A convolution by Winograd's algorithm where that is quicker; its rounding differs from PyTorch's."""

    by_tiles = True


class SequenceConvolution(PackedConvolution):
    """A convolution of sequences [n, channels, length], which are images of one row to oneDNN; channels are last."""

    def __init__(
        self, x: Sequence[int], filters: Sequence[int], geometry: Sequence[Any], bias: bool, steps: Sequence[Step] = ()
    ) -> None:
        """Prepare the convolution of sequences of a shape with filters of a shape; see `PackedConvolution`."""
        one_row = (*((row, *own) for row, own in zip((1, 0, 1), geometry, strict=False)), *geometry[3:])
        super().__init__((*x[:2], 1, x[2]), (*filters[:2], 1, filters[2]), one_row, bias, steps)
        n, channels, _, length = self.result.shape
        self.result = Strided.channels_last((n, channels, length))
        self._x_strides = Strided.channels_last(x).strides

    def as_read(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sequences with adjacent channels, copied if they lie differently."""
        return x.mT.contiguous().mT

    def pack_for_torch(self, weight: torch.Tensor) -> torch.Tensor:
        """Pack the filters for PyTorch's operator."""
        return super().pack_for_torch(weight.unsqueeze(2))

    def by_torch(
        self, x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, other: torch.Tensor | None
    ) -> torch.Tensor:
        """Convolve with PyTorch's operator."""
        second = None if other is None else other.unsqueeze(2)
        return super().by_torch(x.unsqueeze(2), packed, bias, second).squeeze(2)

    def multiplied(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Convolve with PyTorch's operator of filters that are not packed."""
        weight = weight.unsqueeze(-2) if weight.dim() == 3 else weight
        return super().multiplied(x.unsqueeze(2), weight, bias).squeeze(2)


class PackedProduct(Multiply):
    """A product of rows [..., inputs] with a weight [outputs, inputs]."""

    def __init__(
        self,
        x: Sequence[int],
        outputs: int,
        bias: bool,
        steps: Sequence[Step] = (),
        shape: Sequence[int] | None = None,
    ) -> None:
        """The product of rows of a shape with as many outputs; the result may have another shape."""
        n, inputs = prod(x[:-1]), x[-1]
        self._product = (*x[:-1], outputs)
        rows, added = Strided.contiguous((n, inputs)), Strided.contiguous((1, outputs)) if bias else None
        y = Strided.contiguous((n, outputs))
        primitive = Primitive("matmul", rows, (inputs, outputs), y, added, tuple(steps))
        super().__init__(primitive, Strided.contiguous(x), Strided.contiguous(shape or self._product))

    def pack_for_torch(self, weight: torch.Tensor) -> torch.Tensor:
        """Pack the weight for PyTorch's operator."""
        n_rows = self.primitive.x.shape[0]
        packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight.default(weight.contiguous(), n_rows)
        return packed

    def by_torch(
        self, x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, other: torch.Tensor | None
    ) -> torch.Tensor:
        """Multiply with PyTorch's operator."""
        multiply = torch.ops.mkldnn._linear_pointwise
        fused, then = self._activation()
        if other is None:
            result: torch.Tensor = multiply.default(x, packed, bias, *fused)
        else:
            function = self.primitive.steps[0].function
            result = multiply.binary(x, other.reshape(self._product), packed, bias, function)
        return (_activated(result, then) if then else result).view(self.result.shape)

    def multiplied(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Multiply by a weight that is not packed, with PyTorch's operator."""
        return torch.nn.functional.linear(x, weight, bias).view(self.result.shape)
