"""Operators that are broken on purpose."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch

from costmodels.calibrate.kernels import Kernel, kernel_of
from costmodels.cluster import Kernels
from graphs.importers.program import Program
from graphs.ir import Op
from planner.runtime import compile as compile_module
from planner.runtime.training import stages as stages_module
from planner.runtime.verification import culprit as culprit_module


@contextmanager
def broken(op: str, wrong: Callable[..., Any]) -> Iterator[None]:
    """The runtime compiles another function for an operator."""

    def changed(program: Program, record: Op, place: torch.device, inference: Kernels | None = None) -> Kernel:
        kernel = kernel_of(program, record, place, inference)
        return replace(kernel, target=wrong) if record.name == op else kernel

    with ExitStack() as patched:
        for module in (compile_module, stages_module, culprit_module):
            patched.enter_context(patch.object(module, "kernel_of", changed))
        yield
