"""Are the answers the same? Compare a runner with the unsplit model, bit by bit."""

from typing import Any

import torch
from torch.utils import _pytree as pytree

from planner.runtime.measure import Eager
from planner.runtime.runner import Runner


def check_outputs(runner: Runner) -> list[str]:
    """Run the example inputs through both.

    The unsplit model runs on a thread bound to the plan's first device, with as many intra-op threads: sums of
    floating-point numbers depend on how many threads share them.

    Returns:
        One line for each output that differs in any bit; empty if the answers are the same.
    """
    program = runner.program
    first = runner.plan.cluster.devices[min(runner.plan.placement.device, default=0)]
    args, kwargs = program.example_arguments
    return differences(Eager(program, first, "unsplit").result(), runner(*args, **kwargs))


def differences(expected: Any, got: Any) -> list[str]:
    """One line for each leaf of two results that differs in any bit."""
    wanted, structure = pytree.tree_flatten_with_path(expected)
    given, structure_given = pytree.tree_flatten(got)
    if structure != structure_given:
        return [f"the result is {structure_given}, expected {structure}"]
    lines = (_difference(pytree.keystr(path), a, b) for (path, a), b in zip(wanted, given, strict=True))
    return [line for line in lines if line]


def _difference(name: str, a: Any, b: Any) -> str:
    where = f"output {name}" if name else "the output"
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
        same = type(a) is type(b) and a == b
        return "" if same else f"{where} is {_shown(b)}, expected {_shown(a)}"
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"{where} is {_shown(b)}, expected {_shown(a)}"
    b = b.to(a.device)
    differing = (_bits(a) != _bits(b)).any(dim=1)
    if not differing.any():
        return ""
    wide = torch.complex128 if a.is_complex() else torch.float64
    by = (a.to(wide) - b.to(wide)).abs().reshape(-1)[differing].max().item()
    return f"{where} differs in {int(differing.sum())} of {a.numel()} elements, by {by:.3g} at most"


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """[n_elements, bytes of one], so that NaN equals itself and -0.0 is not 0.0."""
    return tensor.clone(memory_format=torch.contiguous_format).reshape(-1, 1).view(torch.uint8)


def _shown(leaf: Any) -> str:
    if isinstance(leaf, torch.Tensor):
        return f"{list(leaf.shape)} {str(leaf.dtype).removeprefix('torch.')}"
    return repr(leaf)
