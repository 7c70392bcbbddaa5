"""Compare the answers of a runner and of the reference model: bit by bit, or within the rounding of quick kernels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from costmodels.cluster.cluster import Device
from costmodels.host.affinity import run_on, torch_device_of
from graphs.common.brief import brief
from planner.runtime.benchmark.measure import Eager
from planner.runtime.inference.runner import Runner
from planner.runtime.stages.random_generators import randomized
from planner.runtime.verification.deviation import TOLERANCE, Deviation, deviation, form_of, round_alike
from planner.runtime.verification.reference import run_reference


@dataclass(frozen=True, slots=True)
class Answers:
    """A plan's answers compared with the reference model's."""

    wrong: tuple[str, ...]  # a line for each output that differs
    rounding: float = 0.0  # largest difference of the others, as a share of the largest element; 0 if bits are equal
    unknown: str = ""  # why nothing could be compared; empty if it could

    __repr__ = brief


def compare_outputs(runner: Runner) -> Answers:
    """Run the example inputs through the runner and the reference model, and compare.

    The reference model runs on a thread bound to the plan's first device, with as many intra-op threads: sums of
    floating-point numbers depend on how many threads share them. Every bit counts, unless devices of the plan do not
    `round_alike`, or operators are split: then differences up to `TOLERANCE` are rounding.

    A runner that streams in pairs is called once, and given a pair.

    Where operators draw random numbers, which only seeds make the same, the reference model is its program, operator by
    operator with the same seeds. Nobody else may call the runner meanwhile.
    """
    program, devices = runner.program, runner.plan.cluster.devices
    used = runner.plan.placement.used or (0,)
    alike = round_alike([devices[number] for number in used], training=False)
    allowed = {} if alike and not runner.plan.is_split else TOLERANCE
    args, kwargs = program.example_arguments
    if not randomized(program):
        expected = Eager(program, devices[used[0]], "reference").result()
        got = runner.replay((args, kwargs), 2) if runner.in_pairs else ()  # other kernels compute a pair
        return worst([answers(expected, each, allowed) for each in (runner(*args, **kwargs), *got)])
    if len({devices[number].cuda is None for number in used}) > 1:
        return Answers((), unknown="operators draw other random numbers on a GPU than on a CPU")
    return answers(_seeded(runner, devices[used[0]]), runner(*args, **kwargs), allowed)


def _seeded(runner: Runner, device: Device) -> Any:
    """Return the reference program's result for the runner's next micro-batch."""
    program, number = runner.program, runner.begun
    reference = run_on(device, lambda: run_reference(program, torch_device_of(device), runner.seed, micro_batch=number))
    return program.unflatten({name: reference.values[name] for name in program.graph.outputs})


def answers(expected: Any, got: Any, allowed: Mapping[torch.dtype, float]) -> Answers:
    """Compare two results; ``allowed`` says by dtype by how much an element may differ, as a share of the largest."""
    expected_leaves, structure = pytree.tree_flatten_with_path(expected)
    got_leaves, got_structure = pytree.tree_flatten(got)
    if structure != got_structure:
        return Answers((f"the result is {got_structure}, expected {structure}",))
    wrong, rounding = [], 0.0
    for (path, a), b in zip(expected_leaves, got_leaves, strict=True):
        tensors = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
        difference = deviation(a, b, any_nan=a.dtype.to_real() in allowed) if tensors else None
        tolerance = allowed.get(a.dtype.to_real(), 0.0) if tensors else 0.0
        if difference is not None and tolerance and difference.within(tolerance, a.dtype):
            rounding = max(rounding, min(difference.share, tolerance))
        elif difference is not None or not (tensors or (type(a) is type(b) and a == b)):
            wrong.append(_line(pytree.keystr(path), a, b, difference))
    return Answers(tuple(wrong), rounding)


def worst(several: Sequence[Answers]) -> Answers:
    """Return the union of the differences of several answers, with the largest rounding error."""
    wrong = dict.fromkeys(line for each in several for line in each.wrong)
    return Answers(tuple(wrong), max(each.rounding for each in several))


def _line(name: str, expected: Any, got: Any, difference: Deviation | None) -> str:
    where = f"output {name}" if name else "the output"
    if difference is None or difference.form:
        return f"{where} is {_shown(got)}, expected {_shown(expected)}"
    counts = f"{difference.n_different} of {difference.n_elements} elements"
    return f"{where} differs in {counts}, by {difference.by:.3g} at most"


def _shown(leaf: Any) -> str:
    return form_of(leaf) if isinstance(leaf, torch.Tensor) else repr(leaf)
