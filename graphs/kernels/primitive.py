"""A primitive of oneDNN: a convolution or a product with its layouts and steps, and its calls by packed weight."""

from collections.abc import Callable
from ctypes import c_int64
from dataclasses import astuple, dataclass
from math import ceil, prod
from typing import Literal

import torch

from graphs.common.compiled import compiled_kernel
from graphs.kernels.activations import sigmoid, swish, tanh_gelu
from graphs.kernels.buffers import LINE
from graphs.kernels.dnnl import (
    BIAS,
    DESTINATION,
    DIRECT,
    INFERENCE,
    OTHER,
    PACKS_NOTHING,
    SOURCE,
    WEIGHTS,
    WEIGHTS_LAYOUT,
    Execution,
    Library,
    Object,
)
from graphs.kernels.kernel import Strided
from graphs.rewrites.patterns import Step

LOSE_NAN = ("relu", "hardtanh")
"""Activations that oneDNN computes by the larger or smaller one of two numbers, which of NaN and a number is this.

Like what makes NaN of an infinity, that raises the flag of `graphs.kernels.float_status`.
"""

OWN = {Step("gelu", algorithm="tanh"): tanh_gelu, Step("swish"): swish, Step("sigmoid"): sigmoid}
"""Activations that a pass of our own computes after a primitive, if they are its last step."""


@dataclass(frozen=True)
class Primitive:
    """A multiplication of float32 tensors, described for oneDNN.

    Attributes:
        kind: oneDNN's name.
        x, y: layouts of the input and of the result; a second operand of a step lies as the result does.
        weight: shape of the weight.
        bias: layout of the bias, if there is one.
        steps: operations on the result; the first may have a second operand.
        geometry: of a convolution, for each axis: strides, dilations (0 for none), paddings before and after.
    """

    kind: Literal["convolution", "matmul"]
    x: Strided
    weight: tuple[int, ...]
    y: Strided
    bias: Strided | None
    steps: tuple[Step, ...]
    geometry: tuple[tuple[int, ...], ...] = ()

    growth = 1.0  # bytes of a packed weight over those of the weight

    @property
    def second(self) -> Step | None:
        """The step that has a second operand, if there is one."""
        return next((step for step in self.steps if step.other), None)

    @property
    def own(self) -> Callable[..., None] | None:
        """The kernel of the last step, if it is no part of the primitive."""
        return OWN.get(self.steps[-1]) if self.steps else None

    @property
    def loses_nan(self) -> bool:
        """Whether a step turns NaN into a number, or an infinity into NaN where PyTorch does not."""
        return any(loses_nan(step) for step in self.steps)

    def described(self, dnnl: Library) -> Object:
        """Return the description of the primitive on one thread; raise OSError if oneDNN has no quick one."""
        dnnl.use_threads(1)
        x, y, weight = dnnl.layout(*astuple(self.x)), dnnl.layout(*astuple(self.y)), dnnl.layout(self.weight)
        bias = dnnl.layout(*astuple(self.bias)) if self.bias else None
        geometry = ((c_int64 * len(each))(*each) for each in self.geometry)
        after = dnnl.attributes(self.steps[:-1] if self.own else self.steps, y)
        if self.kind == "matmul":
            description = dnnl.describe("matmul", dnnl.engine, x, weight, bias, y, after)
            if dnnl.implementation(description).startswith(PACKS_NOTHING):
                apart = dnnl.layout(self.weight, _rows_apart(self.weight[1]))
                description = dnnl.describe("matmul", dnnl.engine, x, apart, bias, y, after)
            return description
        name = "convolution_forward"
        return dnnl.describe(name, dnnl.engine, INFERENCE, DIRECT, x, weight, bias, y, *geometry, after)

    def pack(self, dnnl: Library, weight: torch.Tensor) -> torch.Tensor | None:
        """Return a weight in the layout that the primitive prefers, as bytes; None if oneDNN has no quick primitive."""
        try:
            description = self.described(dnnl)
        except OSError:  # PyTorch may know what to do with a shape that oneDNN has no quick primitive for
            return None
        weight = weight.detach().t() if self.kind == "matmul" else weight.detach().reshape(self.weight)
        return dnnl.reorder(weight, *dnnl.asked(description, WEIGHTS_LAYOUT))

    def unpack(self, dnnl: Library, packed: torch.Tensor) -> torch.Tensor:
        """Return the weight that was packed; that of a convolution may have another shape."""
        weight = dnnl.restore(packed, dnnl.asked(self.described(dnnl), WEIGHTS_LAYOUT)[0], self.weight)
        return weight.t() if self.kind == "matmul" else weight

    def bound(self, dnnl: Library, packed: torch.Tensor, bias: torch.Tensor | None) -> Callable[..., object]:
        """Return the calling thread's function of the addresses of input, result and operand, with a packed weight.

        The function returns True if a step has lost NaN.
        """
        description = self.described(dnnl)
        held = {WEIGHTS: (dnnl.asked(description, WEIGHTS_LAYOUT)[0], packed)}
        if bias is not None and self.bias:
            held[BIAS] = dnnl.layout(*astuple(self.bias)), bias.contiguous()
        y = dnnl.layout(*astuple(self.y))
        moving = {SOURCE: dnnl.layout(*astuple(self.x)), DESTINATION: y}
        moving |= {OTHER: y} if self.second else {}
        execution = Execution(dnnl, description, moving, held, self.loses_nan)
        return _followed(execution, self.own, prod(self.y.shape)) if self.own else execution


def loses_nan(step: Step) -> bool:
    """Return whether oneDNN turns NaN into a number, or an infinity into NaN, in a step."""
    return step.function in LOSE_NAN or step.strided


def _rows_apart(length: int) -> tuple[int, int]:
    """Return the strides of a matrix whose rows begin an odd number of the cache's lines apart.

    Rows that are a multiple of 4 KiB apart collide in the cache: a product with 3,072 columns took twice as long.
    """
    return (ceil(length / LINE) | 1) * LINE, 1


def _followed(execution: Execution, own: Callable[..., None], n: int) -> Callable[..., None]:
    """Return a primitive of n results that the kernel of an activation follows."""
    activate = compiled_kernel(own, "pn")

    def run(x: int, result: int, *other: int) -> None:
        execution(x, result, *other)
        activate(result, n)

    return run
