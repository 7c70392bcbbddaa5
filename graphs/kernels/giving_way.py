"""Give way to PyTorch: a kernel of this package that fails is replaced by PyTorch's operators, and the work goes on.

A kernel may fail when it is built, when it packs its weights, or when it is called: a library may lack something on
this processor, or for this shape. None of that ends a calibration or a run. The operators of which the kernel was to
compute several at once then run one after the other, as they were imported, and a `FallbackWarning` says so.
"""

from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import NamedTuple, TypeAlias

import torch
from torch._ops import OpOverload

from graphs.common.errors import warn_once
from graphs.ir import Op, unfused
from graphs.kernels.kernel import Kernel, by_pytorch
from graphs.operator_kinds import plain
from graphs.program.program import Program

KernelsOf: TypeAlias = Mapping[int, Sequence[Kernel]]
"""The kernels of operators, by operator, in their order."""

Function: TypeAlias = Callable[..., tuple[torch.Tensor, ...]]


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
    kernels: KernelsOf,
    compile_with: Callable[[KernelsOf], Compiled],
    restart: Callable[[], object] = lambda: None,
) -> Function:
    """Return a function of operators, which is compiled again with PyTorch's own operators where a kernel fails.

    A call in which one fails begins again, with the same random numbers; ``restart`` is called before it does.
    """
    current, failed = dict(kernels), set[int]()

    def give_way(number: int) -> Op:
        op = program.graph.ops[number]
        failed.add(number)
        current[number] = plain_kernels(program, op)
        return op

    def compiled() -> Compiled:
        while True:
            try:
                return compile_with(current)
            except UnpackedError as error:
                warn(error.__cause__ or error, give_way(error.number))

    now = compiled()

    def again(error: Exception, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Return the results of a call that failed, without the kernels that fail."""
        nonlocal now
        reasons: list[tuple[Exception, Op]] = []
        while True:
            kernel = now.at_fault(error)
            number = next((number for number, each in current.items() if any(one is kernel for one in each)), None)
            if number is None or number in failed:
                raise error  # PyTorch's own
            reasons.append((error.with_traceback(None), give_way(number)))  # without frames, which hold tensors
            now = compiled()
            for generator in inputs:
                if isinstance(generator, torch.Generator):
                    generator.manual_seed(generator.initial_seed())
            restart()
            try:
                result: tuple[torch.Tensor, ...] = now.stage(*now.held, *inputs)
            except Exception as another:  # whatever a kernel raises
                error = another
            else:
                for reason in reasons:
                    warn(*reason)
                return result

    def call(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        try:
            result: tuple[torch.Tensor, ...] = now.stage(*now.held, *inputs)
        except Exception as error:  # whatever a kernel raises
            return again(error, inputs)
        return result

    return call


def plain_kernels(program: Program, op: Op) -> tuple[Kernel, ...]:
    """Return PyTorch's own operators that compute an operator on a CPU, one after the other."""
    return tuple(by_pytorch(program, member) for member in op.members or (op,))


def warn(error: BaseException, op: Op) -> None:
    """Warn that PyTorch computes an operator whose kernel has failed."""
    kinds = " + ".join(plain(member.kind).removeprefix("aten.") for member in unfused([op]))
    warn_once(f"the kernel of {kinds}", error, "PyTorch's operators compute it instead")
