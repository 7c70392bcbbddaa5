"""Give way to PyTorch: a kernel of this package that fails is replaced by PyTorch's operators, and the work goes on.

A kernel may fail when it is built, when it packs its weights, or when it is called: a library may lack something on
this processor, or for this shape. None of that ends a calibration or a run. The operators of which the kernel was to
compute several at once then run one after the other, as they were imported, and a `KernelWarning` says so.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import NamedTuple, TypeAlias

import torch
from torch._ops import OpOverload

from costmodels.host.kernel import Kernel, by_pytorch
from graphs.errors import first_line
from graphs.ir import Op, unfused
from graphs.program.program import Program
from graphs.rewrites.patterns import plain

Kernels: TypeAlias = Mapping[int, Sequence[Kernel]]
"""The kernels of operators, by operator, in their order."""

Function: TypeAlias = Callable[..., tuple[torch.Tensor, ...]]


class KernelWarning(RuntimeWarning):
    """A kernel of this package has failed, and PyTorch's operators compute in its place."""


class UnpackedError(Exception):
    """The weights of an operator cannot be packed; ``__cause__`` says why."""

    def __init__(self, number: int) -> None:
        """Name the operator by its number."""
        super().__init__(number)
        self.number = number


class Compiled(NamedTuple):
    """A function of operators, as text that was compiled."""

    stage: FunctionType
    held: Sequence[torch.Tensor]  # its first arguments
    kernels: Mapping[int, Kernel]  # what a line of the text calls

    def at_fault(self, error: BaseException) -> Kernel | None:
        """Return the kernel of this package whose call raised an error; None if it was raised elsewhere."""
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code is not self.stage.__code__:
            trace = trace.tb_next
        kernel = None if trace is None else self.kernels.get(trace.tb_lineno)
        return None if kernel is None or isinstance(kernel.target, OpOverload) else kernel


def giving_way(
    program: Program,
    kernels: Kernels,
    compile_with: Callable[[Kernels], Compiled],
    restart: Callable[[], object] = lambda: None,
) -> Function:
    """Return a function of operators, which is compiled again with PyTorch's own operators where a kernel fails.

    A call in which one fails begins again, with the same random numbers; ``restart`` is called before it does.
    """
    current = dict(kernels)

    def compiled() -> Compiled:
        while True:
            try:
                return compile_with(current)
            except UnpackedError as error:
                op = program.graph.ops[error.number]
                current[error.number] = plain_kernels(program, op)
                warn(kinds_of(op), error.__cause__ or error)

    now = compiled()

    def call(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        nonlocal now
        try:
            result: tuple[torch.Tensor, ...] = now.stage(*now.held, *inputs)
            return result
        except Exception as error:  # whatever a kernel raises
            failed = now.at_fault(error)
            if failed is None:
                raise
            reason = error.with_traceback(None)  # whose frames hold tensors
        number = next(number for number, each in current.items() if any(kernel is failed for kernel in each))
        current[number] = plain_kernels(program, program.graph.ops[number])
        now = compiled()
        for generator in inputs:
            if isinstance(generator, torch.Generator):
                generator.manual_seed(generator.initial_seed())
        restart()
        result = call(*inputs)  # if PyTorch refuses as well, its own error counts
        warn(kinds_of(program.graph.ops[number]), reason)
        return result

    return call


def plain_kernels(program: Program, op: Op) -> tuple[Kernel, ...]:
    """Return PyTorch's own operators that compute an operator on a CPU, one after the other."""
    return tuple(by_pytorch(program, member) for member in op.members or (op,))


def kinds_of(op: Op) -> str:
    """Return the kinds of the operators that a kernel is for, as "conv2d + add"."""
    return " + ".join(plain(member.kind).removeprefix("aten.") for member in unfused([op]))


_said: set[str] = set()
"""Reasons that this process has warned of."""


def warn(what: str, error: BaseException) -> None:
    """Warn that PyTorch computes what a kernel was to compute; a reason is said once, whatever else fails for it."""
    reason = f"{type(error).__name__}: {first_line(error)}"
    if reason not in _said:
        _said.add(reason)
        text = f"the kernel of {what} fails here ({reason}); PyTorch's operators compute it instead"
        warnings.warn(text, KernelWarning, stacklevel=2)
