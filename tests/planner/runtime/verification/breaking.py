"""Operators that are broken on purpose."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch

from graphs.ir import Op
from graphs.kernels.choice import Kernels
from graphs.kernels.kernel import Kernel, by_pytorch
from graphs.kernels.kernels import kernel_of, kernels_of
from graphs.program.program import Program
from planner.runtime.stages import compile as compile_module
from planner.runtime.training import stages as stages_module
from planner.runtime.verification import verify as mismatch_module


@contextmanager
def broken(op: str, wrong: Callable[..., Any]) -> Iterator[None]:
    """The runtime compiles another function for an operator."""

    def one(program: Program, record: Op, torch_device: torch.device, inference: Kernels | None = None) -> Kernel:
        kernel = kernel_of(program, record, torch_device, inference)
        return replace(kernel, target=wrong) if record.name == op else kernel

    def all_of(*of: Any) -> tuple[Kernel, ...]:
        return tuple(replace(k, target=wrong) if k.op.name == op else k for k in kernels_of(*of))

    with ExitStack() as patched:
        patched.enter_context(patch.object(stages_module, "kernel_of", one))
        for module in (compile_module, mismatch_module):
            patched.enter_context(patch.object(module, "kernels_of", all_of))
        yield


@contextmanager
def failing_for_good(op: str, failing: Callable[..., Any]) -> Iterator[None]:
    """Let an operator fail, and PyTorch's operator, which would be computed instead, as well."""

    def also(program: Program, record: Op) -> Kernel:
        return replace(by_pytorch(program, record), target=failing)

    with broken(op, failing), patch("graphs.kernels.giving_way.by_pytorch", also):
        yield
