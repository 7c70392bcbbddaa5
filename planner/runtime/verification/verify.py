"""Compare every tensor that leaves a stage of a plan with the reference network's, and find the operator that differs.

::

    reference   a ─► b ─► c ─► d ─► e        every operator as it was imported, on the plan's first device
    stages      [a b] ─► [c d] ─► [e]        as they are compiled for the plan, each on its device
                     ▲        ▲     ▲        compared in this order, gradients in the opposite one

A network in parts is also compared with the network as it was imported, in all tensors that both have.

In the first stage that differs, each operator is run alone on its inputs from the reference network, until one
differs.
"""

from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch._ops import OpOverload

from costmodels.cluster.cluster import Device
from costmodels.host.affinity import run_on, torch_device_of
from graphs.common import checks
from graphs.common.brief import brief
from graphs.common.errors import InputError
from graphs.importers.functionalize import is_view
from graphs.ir import Role
from graphs.kernels.functions import add_call, function_of
from graphs.kernels.kernels import kernels_of
from graphs.program.program import Program
from planner.plans.given import ModelName, Named, given_plan
from planner.plans.plan import Plan
from planner.problem.reporter import SILENT, Reporter
from planner.runtime.matching import check_same, program_for, rewritten_for
from planner.runtime.stages.random_generators import Generators, seeded_target
from planner.runtime.training.stages import wire
from planner.runtime.training.wiring import check_owners
from planner.runtime.verification.deviation import TOLERANCE, Deviation, deviation, round_alike
from planner.runtime.verification.reference import (
    SEED,
    AppliedOperator,
    BackwardResult,
    Crossing,
    Function,
    InferenceStages,
    Reference,
    StageUnderTest,
    TrainingStages,
    operand_leaves,
    random_operators,
    run_reference,
)
from simulator.training import training_stages

Compare = Callable[[torch.Tensor, torch.Tensor], Deviation | None]
"""Takes the expected tensor and the one to check; returns None if they are equal."""


@dataclass(frozen=True)
class FirstMismatch:
    """An operator whose result differs although its inputs are the same."""

    op: str  # its name
    kind: str  # what it computes
    module: str  # path of the module that it came from
    result: str  # what differs, such as "output 'relu'" or "gradient of 'conv.weight'"
    deviation: Deviation  # by how much
    repeatable: bool  # whether another run has the same result


@dataclass(frozen=True)
class Suspects:
    """Runs operators alone, to find the first one that differs."""

    program: Program  # the network
    reference: Reference  # its reference run
    learned: frozenset[str]  # names of the tensors that get a gradient; none in inference
    compare: Compare  # what counts as a difference

    def first(self, ops: Iterable[int], part: StageUnderTest, backward: bool) -> FirstMismatch | None:
        """Return the first operator that differs on the device of a stage, with the weights of the stage."""
        for i in ops:
            op, results = self.program.graph.ops[i], dict(self._results(i, part, backward))
            for what, got in results.items():
                expected = (
                    self.reference.contributions[i, what] if backward else self.reference.values[op.outputs[what]]
                )
                difference = self.compare(expected, got)
                if difference is not None:
                    again = dict(self._results(i, part, backward))[what]
                    name = op.inputs[what] if backward else op.outputs[what]
                    return FirstMismatch(
                        op=op.name,
                        kind=op.kind,
                        module=op.module,
                        result=f"gradient of '{name}'" if backward else f"output '{name}'",
                        deviation=difference,
                        repeatable=self.compare(got, again) is None,
                    )
        return None

    def _results(self, i: int, part: StageUnderTest, backward: bool) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield what the operator writes, by output, or the gradients of its arguments, by argument."""
        op = self.program.graph.ops[i]
        applied, gradients = run_on(part.device, lambda: self._run(i, part, backward))
        if backward:
            expected = {position for reader, position in self.reference.contributions if reader == i}
            for position in sorted(expected):
                zeros = torch.zeros_like(self.reference.contributions[i, position])
                yield position, gradients.get(position, zeros)
        else:
            yield from enumerate(applied.results[: len(op.outputs)])

    def _run(self, i: int, part: StageUnderTest, backward: bool) -> tuple[AppliedOperator, Mapping[int, torch.Tensor]]:
        torch_device = torch_device_of(part.device)
        op = self.program.graph.ops[i]
        values = {name: part.state.get(name, self.reference.values[name]).to(torch_device) for name in op.inputs}
        random_ops = random_operators(self.program)
        arguments = operand_leaves(self.program, op, values, self.learned or self.program.asking)
        generators = Generators([i] if i in random_ops else [], torch_device, SEED)
        function = compile_alone(self.program, i, part.device, i in random_ops, bool(self.learned))
        applied = AppliedOperator.of(function, arguments, generators, bool(self.learned))
        if not backward:
            return applied, {}
        gradients = (self.reference.gradients.get(name) for name in op.outputs)
        return applied, applied.contributions([None if g is None else g.to(torch_device) for g in gradients])


def compile_alone(program: Program, op: int, device: Device, random: bool, training: bool) -> Function:
    """Compile an operator by itself, as the runtime does."""
    record, torch_device = program.graph.ops[op], torch_device_of(device)
    graph = fx.Graph()
    reads = [graph.placeholder(f"arg{number}") for number in range(len(record.inputs))]
    node = program.calls[record.name].node
    seeded = (seeded_target(node), graph.placeholder("generator")) if random else None
    kernels = kernels_of(program, record, torch_device, None if training else device.kernels)
    if len(kernels) == 1 and not kernels[0].packs and kernels[0].arguments is None:
        graph.output(add_call(graph, program, kernels[0], reads, seeded))
        return function_of(graph, [])
    value = dict(zip(record.inputs, reads, strict=True))
    for kernel in kernels:
        packed = {
            name: graph.call_function(pack.function, tuple(value[weight] for weight in pack.reads))
            for name, pack in kernel.packs.items()
        }
        written = add_call(graph, program, kernel, map(ChainMap(packed, value).__getitem__, kernel.reads), seeded)
        value.update(zip(kernel.op.outputs, written, strict=True))
    graph.output(tuple(value[name] for name in record.outputs))
    return function_of(graph, [])


EMPTY = frozenset({"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"})
"""Operators whose results have no values yet."""

PARTLY = frozenset(
    {"slice_scatter", "select_scatter", "diagonal_scatter", "as_strided_scatter"}
    | {"index_put", "index_copy", "scatter", "masked_scatter"}
)
"""Operators that return their first argument with some elements replaced."""


@dataclass(frozen=True)
class Finding:
    """The first tensor that differs."""

    tensor: str  # its name
    backward: bool  # whether its gradient differs
    stage: int  # number of the stage that has computed it
    label: str  # first and last operator of the stage
    device: str  # name of the device
    deviation: Deviation  # by how much
    mismatch: FirstMismatch | None  # the operator that differs; None if each operator of the stage is right by itself


@dataclass(frozen=True)
class Verification:
    """The result of a comparison."""

    n_stages: int  # stages of the plan
    n_tensors: int  # tensors that were compared
    n_gradients: int  # gradients that were compared
    tolerance: Mapping[torch.dtype, float]  # by dtype, as a share of the largest element; empty if every bit counts
    finding: Finding | None  # the first tensor that differs, if any
    n_imported: int = 0  # tensors of a split network that were compared with the network as it was imported

    __repr__ = brief

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return self.finding is None


def verify(
    plan: Plan | Named,
    model: nn.Module | Program | ModelName,
    example_inputs: Any = None,
    *,
    training: bool | None = None,
    tolerance: float | None = None,
    reporter: Reporter = SILENT,
) -> Verification:
    """Run the stages of a plan one after the other on the example inputs, and compare them with the reference network.

    Args:
        plan: a plan, or the path of a plan.json.
        model: the model that the plan was made for, its Program, or its name as on the command line.
        example_inputs: in any form that `planner.plan` takes; zeros of the planned shapes if left out.
        training: whether to compare gradients too; None for training plans only.
        tolerance: a share of the largest element of each tensor, 0 for every bit. With None every bit counts if all
            devices are of one kind and round as the reference model, else `TOLERANCE` for the dtype.
        reporter: receives the steps.

    Raises:
        InputError: if the plan is for another model, a device is not on this host, a weight has no values, or an
            operator draws random numbers that are not the same on all the devices.
        StageError: if a stage fails where the reference network does not.
    """
    plan = given_plan(plan)
    checks.instance(training, (bool, type(None)), "training", "True, False or None")
    checks.instance(tolerance, (int, float, type(None)), "the tolerance", "a number, or None")
    checks.instance(reporter, Reporter, "the reporter", "a Reporter")
    network = program_for(plan, model, example_inputs, reporter)
    reporter.on_step("comparing the stages", 0, 0)
    return _compared(plan, network, plan.workload.trains if training is None else training, tolerance)


def _compared(plan: Plan, network: Program, training: bool, tolerance: float | None) -> Verification:
    """Compare the stages, with gradients in ``training``."""
    program = rewritten_for(plan, network)
    check_same(plan.graph, program.graph)
    if not program.graph.ops:
        return Verification(0, 0, 0, {}, None)
    devices = [plan.cluster.devices[number] for number in plan.placement.used]
    allowed = _tolerance(devices, tolerance, training)
    _check_random(program, devices)
    backward = None
    if training:
        members, on = _members(plan)
        wiring = wire(program, members)
        check_owners(wiring, on, plan.table.devices)
        backward = BackwardResult(wiring.learned, _roots(program, wiring.learned))
        on_device = [plan.cluster.devices[number] for number in on]
        stages: TrainingStages | InferenceStages = TrainingStages(program, wiring, on_device, backward)
    else:
        stages = InferenceStages(program, plan.stages, plan.cluster.devices, plan.in_pairs)
    reference = run_on(devices[0], lambda: run_reference(program, torch_device_of(devices[0]), SEED, backward))

    def compare(expected: torch.Tensor, got: torch.Tensor) -> Deviation | None:
        return deviation(expected, got, allowed.get(expected.dtype.to_real(), 0.0))

    counts = {False: 0, True: 0}
    finding, unset = None, _unset(program)
    for crossing in stages.crossings(reference):
        if crossing.tensor in unset:
            continue
        counts[crossing.backward] += 1
        difference = compare(crossing.expected, crossing.got)
        if difference is not None:
            suspects = Suspects(program, reference, backward.learned if backward else frozenset(), compare)
            finding = _finding(crossing, difference, stages.parts, suspects)
            break
    n_imported = 0
    if plan.is_split and finding is None and network is not program:
        n_imported, finding = _compared_with(network, reference, program, stages.parts)
    return Verification(len(stages.parts), counts[False], counts[True], allowed, finding, n_imported)


def _unset(program: Program) -> set[str]:
    """Return the tensors without values of their own, which no operator reads, and those with some such elements."""
    unset: set[str] = set()
    for op in program.graph.ops:
        node = program.calls[op.name].node
        assert isinstance(node.target, OpOverload)
        name = node.target._schema.name.removeprefix("aten::")
        partly = name in PARTLY and op.inputs[0] in unset
        if name in EMPTY or partly or (op.inputs and unset.issuperset(op.inputs) and is_view(node)):
            unset.update(op.outputs)
    return unset


def _finding(crossing: Crossing, difference: Deviation, parts: Sequence[StageUnderTest], suspects: Suspects) -> Finding:
    """Search the stage for the operator; a parameter's gradient may be wrong in any stage that reads it."""
    graph = suspects.program.graph
    part = parts[crossing.stage]
    mismatch = None
    searched = [part]
    if crossing.backward and graph.tensor[crossing.tensor].role is Role.PARAMETER:
        searched = list(reversed(parts))
    for suspect in searched:
        ops = reversed(suspect.ops) if crossing.backward else suspect.ops
        mismatch = mismatch or suspects.first(ops, suspect, crossing.backward)
    names = [graph.ops[part.ops[end]].name for end in (0, -1)]
    label = names[0] if len(part.ops) == 1 else " … ".join(names)
    return Finding(crossing.tensor, crossing.backward, crossing.stage, label, part.device.name, difference, mismatch)


def _compared_with(
    network: Program, reference: Reference, program: Program, parts: Sequence[StageUnderTest]
) -> tuple[int, Finding | None]:
    """Count the tensors that a split network and the network as it was imported have in common, until one differs.

    Parts add up in another order, so the tolerance is that of devices of different kinds. Random numbers depend on the
    positions of operators, so networks with them are not compared.
    """
    if random_operators(network):
        return 0, None
    device = parts[0].device
    values = run_on(device, lambda: run_reference(network, torch_device_of(device), SEED)).values
    unset, count = _unset(network), 0
    for number, part in enumerate(parts):
        ops = [program.graph.ops[i] for i in part.ops]
        for name in (name for op in ops for name in op.outputs if name in values and name not in unset):
            expected, count = values[name], count + 1
            difference = deviation(expected, reference.values[name], TOLERANCE.get(expected.dtype.to_real(), 0.0))
            if difference is not None:
                label = " … ".join(dict.fromkeys((ops[0].name, ops[-1].name)))
                return count, Finding(name, False, number, label, part.device.name, difference, None)
    return count, None


def _members(plan: Plan) -> tuple[Sequence[tuple[int, ...]], list[int]]:
    """Return the operators of each stage with gradients, and its device."""
    if plan.workload.trains:
        members: Sequence[tuple[int, ...]] = training_stages(plan.costs, plan.placement, plan.workload.schedule)
    else:
        members = [stage.ops for stage in plan.stages if not stage.copy]  # gradients are those of any copy
    return members, [plan.placement.device[ops[0]] for ops in members]


def _roots(program: Program, learned: frozenset[str]) -> dict[str, torch.Tensor]:
    """Return different gradients for all elements of the outputs, so that no error is hidden by another one."""
    generator = torch.Generator().manual_seed(SEED)
    tensors = (program.graph.tensor[name] for name in program.graph.outputs if name in learned)
    return {
        tensor.name: torch.randn(tensor.shape, generator=generator).to(getattr(torch, tensor.dtype))
        for tensor in tensors
    }


def _tolerance(devices: Sequence[Device], tolerance: float | None, training: bool) -> Mapping[torch.dtype, float]:
    if tolerance is not None:
        if not 0 <= tolerance < 1:
            raise InputError(f"the tolerance is {tolerance}; it must be a number from 0 to below 1")
        return dict.fromkeys(TOLERANCE, tolerance) if tolerance else {}
    return {} if round_alike(devices, training) else TOLERANCE


def _check_random(program: Program, devices: Sequence[Device]) -> None:
    """Refuse random operators on devices of both kinds: generators of a CPU and of a GPU give other numbers."""
    if len({device.cuda is None for device in devices}) > 1 and (chance := random_operators(program)):
        raise InputError(
            f"operator '{program.graph.ops[min(chance)].name}' draws other random numbers on a GPU than on a CPU, so "
            "there is nothing to compare with; verify with the model in evaluation mode, or on devices of one kind"
        )
