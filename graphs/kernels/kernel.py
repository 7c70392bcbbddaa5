"""The record of a kernel: a function that computes an operator, what it is given, and the weights packed for it."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch

from graphs.ir import STATE, Op
from graphs.kernels.gelu import GELU, contiguous_gelu, is_strided, strided_gelu
from graphs.program.program import Program, on_device

CPU = torch.device("cpu")
VIEW = torch.ops.aten.view.default
RESULT = "result"  # name of the argument that is the tensor to which a `Writer` writes


@dataclass(frozen=True)
class Read:
    """An argument that is a tensor, or a packed weight."""

    name: str


@dataclass(frozen=True)
class Pack:
    """How a packed weight is made of weights of the model.

    It is called on the device's own thread, since the packed form depends on the number of threads; oneDNN packs a
    weight of another form again at every call.
    """

    reads: tuple[str, ...]  # names of the weights
    function: Callable[..., torch.Tensor]  # takes these weights
    form: Hashable = None  # packs of the same weights with equal forms are one tensor; None if no other is known to be
    growth: float = 1.0  # its bytes over those of the first of these weights; the others are small

    def __call__(self, weight: Callable[[str], torch.Tensor]) -> torch.Tensor:
        """The packed weight, from a function that gives a weight by its name."""
        return self.function(*map(weight, self.reads))


@dataclass(frozen=True)
class Strided:
    """The shape of a tensor, and how far apart its elements lie along each axis."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def contiguous(cls, shape: Sequence[int]) -> "Strided":
        """The usual layout."""
        return cls(tuple(shape), tuple(prod(shape[axis + 1 :]) for axis in range(len(shape))))

    @classmethod
    def channels_last(cls, shape: Sequence[int]) -> "Strided":
        """Return the layout of images [n, channels, height, width], or sequences, with adjacent channels."""
        n, c, *sizes = shape
        return cls((n, c, *sizes), (prod(sizes) * c, 1, *(prod(sizes[i + 1 :]) * c for i in range(len(sizes)))))


class Writer:
    """A function that computes a float32 tensor, in a tensor that is given as ``result`` or in a new one.

    Attributes:
        result: how its result lies.
        memory_format: the order of the elements of what it reads.
    """

    memory_format = torch.contiguous_format

    def __init__(self, name: str, x_strides: tuple[int, ...], result: Strided) -> None:
        """Prepare for a first operand with these strides; torch.fx calls the function by ``name``."""
        self.__name__ = name
        self._x_strides = x_strides
        self.result = result

    def ends(self, x: torch.Tensor, result: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the first operand in the layout that is read, and the tensor to write."""
        if x.stride() != self._x_strides:
            x = self.as_read(x)
        return x, self.room(x) if result is None else result

    def as_read(self, x: torch.Tensor) -> torch.Tensor:
        """Return a tensor in the layout that is read, itself if it has that layout."""
        return x.contiguous(memory_format=self.memory_format)

    def room(self, x: torch.Tensor) -> torch.Tensor:
        """Return a new tensor to write, on the device of ``x``."""
        return x.new_empty_strided(self.result.shape, self.result.strides)

    @staticmethod
    def written(computed: torch.Tensor, result: torch.Tensor | None) -> torch.Tensor:
        """Return PyTorch's result, copied to the tensor to write if there is one."""
        return computed if result is None else result.copy_(computed)


class OutOperator(Writer):
    """An operator of PyTorch that takes ``out``; its result is contiguous, or images in channels-last layout."""

    def __init__(self, function: Callable[..., torch.Tensor], shape: Sequence[int], images: bool = False) -> None:
        """The operator by a function of the tensors that it reads, and of ``out``."""
        result = Strided.channels_last(shape) if images else Strided.contiguous(shape)
        super().__init__("out_operator", result.strides, result)
        self._function = function

    def __call__(self, *tensors: torch.Tensor, result: torch.Tensor | None = None) -> torch.Tensor:
        """Compute; ``result`` is written if it is given."""
        return self._function(*tensors, out=self.room(tensors[0]) if result is None else result)


@dataclass(frozen=True)
class Kernel:
    """The kernel of one operator.

    Attributes:
        op: what it computes.
        target: function of the operator's arguments.
        torch_device: torch device of the operator.
        packs: how weights are packed once for the kernel, by the name that the kernel knows them by.
        arguments: `Read` for a tensor or a packed weight; None for the arguments of the operator's own call.
        pair: the results of two calls, of two micro-batches, from the arguments of each; None if two calls of the
            target take no longer.
    """

    op: Op
    target: Callable[..., Any]
    torch_device: torch.device = CPU
    packs: Mapping[str, Pack] = field(default_factory=dict)
    arguments: tuple[Any, ...] | None = None
    pair: Callable[[Sequence[Sequence[Any]]], Sequence[Any]] | None = None

    @property
    def result(self) -> Strided | None:
        """Layout of the result, if the kernel writes it to a given tensor."""
        return self.target.result if isinstance(self.target, Writer) else None

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the tensors and packed weights that it reads, as often as it does."""
        if self.arguments is None:
            return self.op.inputs
        return tuple(each.name for each in self.arguments if isinstance(each, Read))

    def bound(self, program: Program, read: Callable[[str], Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call, with what a function gives for the name of each tensor or packed weight."""
        if self.arguments is not None:
            return tuple(read(each.name) if isinstance(each, Read) else each for each in self.arguments), {}
        args, kwargs = program.arguments(self.op, read)
        return on_device(args, self.torch_device), on_device(kwargs, self.torch_device)

    def unpacks(self, program: Program) -> bool:
        """Whether it returns the outputs in a tuple or list."""
        return program.calls[self.op.name].unpack if self.arguments is None else len(self.op.outputs) > 1


def by_pytorch(program: Program, op: Op, torch_device: torch.device = CPU, moves: bool = True) -> Kernel:
    """The kernel that is PyTorch's own operator.

    Where results may have other strides than in the trace (``moves``), views are reshaped, and GELU is computed as for
    the strides of the trace.
    """
    call = program.calls[op.name]
    target: Any = call.node.target
    if moves and target is VIEW:
        target = torch.ops.aten.reshape.default
    if moves and target is GELU and torch_device.type == "cpu":
        target = strided_gelu if is_strided(call) else contiguous_gelu
    return Kernel(op, target, torch_device)


def as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    """The kernel of an operator that returns what it reads."""
    return tensor


def as_they_are(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The kernel of a group whose results are what it reads."""
    return tensors


def held(program: Program, *names: str | None) -> bool:
    """Return whether all given tensors are weights that do not change from run to run; None is skipped."""
    given = [name for name in names if name]
    return all(program.graph.tensor[name].role in STATE for name in given) and program.statistics.isdisjoint(given)
