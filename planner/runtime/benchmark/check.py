"""Compare the answers of a runner and of the reference model: bit by bit, unless a device may round otherwise."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from costmodels.cluster import Device
from costmodels.host.affinity import run_on, torch_device_of
from graphs.brief import brief
from planner.runtime.benchmark.measure import Eager
from planner.runtime.inference.runner import Runner
from planner.runtime.stages.random_generators import randomized
from planner.runtime.verification.deviation import TOLERANCE, deviation
from planner.runtime.verification.reference import run_reference


@dataclass(frozen=True, slots=True)
class Answers:
    """A plan's answers beside the reference model's.

    Attributes:
        wrong: a line for each output that is another.
        rounding: the largest difference of the others, as a share of the largest element of its output; 0 if every
            bit is the same.
        unknown: why nothing could be compared; empty where it was.
    """

    wrong: tuple[str, ...]
    rounding: float = 0.0
    unknown: str = ""

    __repr__ = brief


def compare_outputs(runner: Runner) -> Answers:
    """Run the example inputs through both.

    The reference model runs on a thread bound to the plan's first device, with as many intra-op threads: sums of
    floating-point numbers depend on how many threads share them. Every bit counts, unless a device of the plan has
    quick kernels: then differences up to `TOLERANCE` are rounding.

    Where operators draw random numbers, which only seeds make the same, the reference model is its program, operator by
    operator with the same seeds. Nobody else may call the runner meanwhile.
    """
    program, devices = runner.program, runner.plan.cluster.devices
    used = sorted(set(runner.plan.placement.device)) or [0]
    allowed = TOLERANCE if any(devices[number].quick for number in used) else {}
    args, kwargs = program.example_arguments
    if not randomized(program):
        return answers(Eager(program, devices[used[0]], "reference").result(), runner(*args, **kwargs), allowed)
    if len({devices[number].cuda is None for number in used}) > 1:
        return Answers((), unknown="operators draw other random numbers on a GPU than on a CPU")
    return answers(_seeded(runner, devices[used[0]]), runner(*args, **kwargs), allowed)


def _seeded(runner: Runner, device: Device) -> Any:
    """What the reference program returns for the runner's next micro-batch."""
    program, number = runner.program, runner.begun
    reference = run_on(device, lambda: run_reference(program, torch_device_of(device), runner.seed, micro_batch=number))
    return program.unflatten({name: reference.values[name] for name in program.graph.outputs})


def answers(expected: Any, got: Any, allowed: Mapping[torch.dtype, float]) -> Answers:
    """Compare two results.

    Args:
        expected: what the reference model returns.
        got: what the plan returns.
        allowed: by dtype, how far an element may be off, as a share of the largest.
    """
    wanted, structure = pytree.tree_flatten_with_path(expected)
    given, structure_given = pytree.tree_flatten(got)
    if structure != structure_given:
        return Answers((f"the result is {structure_given}, expected {structure}",))
    wrong, rounding = [], 0.0
    for (path, a), b in zip(wanted, given, strict=True):
        share = _rounding(a, b, allowed)
        rounding = max(rounding, share or 0.0)
        line = _difference(pytree.keystr(path), a, b) if share is None else ""
        if line:
            wrong.append(line)
    return Answers(tuple(wrong), rounding)


def differences(expected: Any, got: Any) -> list[str]:
    """One line for each leaf of two results that differs in any bit."""
    return list(answers(expected, got, {}).wrong)


def _rounding(a: Any, b: Any, allowed: Mapping[torch.dtype, float]) -> float | None:
    """By how much two leaves differ, as a share of the largest element; None if they may not differ so."""
    limit = allowed.get(a.dtype) if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) else None
    if limit is None:
        return None
    found = deviation(a, b)
    if found is None:
        return 0.0
    return found.share if found.share <= limit else None


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
