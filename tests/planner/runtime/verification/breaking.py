"""Operators that are broken on purpose."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch

from costmodels.cluster import Kernels
from costmodels.host.kernels import Kernel, kernel_of
from graphs.ir import Op
from graphs.program.program import Program
from planner.runtime.stages import compile as compile_module
from planner.runtime.training import stages as stages_module
from planner.runtime.verification import verify as mismatch_module


@contextmanager
def broken(op: str, wrong: Callable[..., Any]) -> Iterator[None]:
    """The runtime compiles another function for an operator."""

    def changed(program: Program, record: Op, torch_device: torch.device, inference: Kernels | None = None) -> Kernel:
        kernel = kernel_of(program, record, torch_device, inference)
        return replace(kernel, target=wrong) if record.name == op else kernel

    with ExitStack() as patched:
        for module in (compile_module, stages_module, mismatch_module):
            patched.enter_context(patch.object(module, "kernel_of", changed))
        yield
