"""The reference network, operator by operator: every tensor, and the contribution of every argument to a gradient.

PyTorch adds up the contributions to a tensor's gradient from the latest reader to the first. Here they are kept apart,
so that the sum can end where a stage ends. The stages run one after the other, each on its device, and read what the
stages before have computed, as in a real run; each tensor that crosses between them has its value in the reference.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import torch

from costmodels.cluster.cluster import Device
from costmodels.host.affinity import run_on, torch_device_of
from graphs.common.errors import InputError, running
from graphs.ir import Op
from graphs.program.program import Program, on_device
from planner.runtime.stages.compile import CompiledStage, compile_stages
from planner.runtime.stages.failures import stage_failure
from planner.runtime.stages.random_generators import Generators, randomized, seeded_target
from planner.runtime.training.options import TrainerOptions
from planner.runtime.training.stages import TrainingStage, compile_training, leaf_view
from planner.runtime.training.wiring import Wiring
from simulator.stages import Stage

STEP, MICRO_BATCH, SEED = 0, 0, 0  # whose random numbers are drawn

Function: TypeAlias = Callable[..., tuple[torch.Tensor, ...]]
"""Takes the arguments of an operator, as often as they are read; returns what it writes."""


@dataclass(frozen=True)
class Reference:
    """One run of the network. The reader of the network's outputs has the number after the last operator's."""

    values: Mapping[str, torch.Tensor]  # every tensor by its name
    contributions: Mapping[tuple[int, int], torch.Tensor]  # by (reader, argument), if it has a gradient
    gradients: Mapping[str, torch.Tensor]  # of each tensor, the sum of all contributions


@dataclass(frozen=True)
class BackwardResult:
    """The gradients that a backward pass begins with."""

    learned: frozenset[str]  # names of the tensors that get a gradient
    roots: Mapping[str, torch.Tensor]  # the gradients of outputs, by name


def run_reference(
    program: Program,
    torch_device: torch.device,
    seed: int,
    backward: BackwardResult | None = None,
    micro_batch: int = MICRO_BATCH,
) -> Reference:
    """Run the example inputs through the network on the calling thread; ``backward`` is None without gradients.

    Raise InputError if the network fails with them.
    """
    inputs = dict(zip(program.graph.inputs, program.example_inputs, strict=True))
    values = {name: tensor.detach().to(torch_device) for name, tensor in {**program.state, **inputs}.items()}
    if backward:
        roots = {name: gradient.to(torch_device) for name, gradient in backward.roots.items()}
        backward = BackwardResult(backward.learned, roots)
    asking = backward.learned if backward else program.asking
    random_ops = random_operators(program)
    applied: list[AppliedOperator] = []
    for i, op in enumerate(program.graph.ops):
        function = imported_function(program, op, torch_device, i in random_ops)
        generators = Generators([i] if i in random_ops else [], torch_device, seed)
        arguments = operand_leaves(program, op, values, asking)
        with running(f"operator '{op.name}' ({op.kind})"):
            done = AppliedOperator.of(function, arguments, generators, backward is not None, micro_batch)
        values.update(zip(op.outputs, (tensor.detach() for tensor in done.results), strict=True))
        if backward:
            applied.append(done)
    return Reference(values, *_go_back(program, applied, backward)) if backward else Reference(values, {}, {})


@dataclass(frozen=True)
class AppliedOperator:
    """An operator that has run."""

    arguments: tuple[torch.Tensor, ...]  # what it has read, as leaves
    results: tuple[torch.Tensor, ...]  # what it has written

    @classmethod
    def of(
        cls,
        function: Function,
        arguments: tuple[torch.Tensor, ...],
        generators: Generators,
        trains: bool,
        micro_batch: int = MICRO_BATCH,
    ) -> "AppliedOperator":
        """Run an operator; in training, a gradient can be sent back if an argument asks for one."""
        with torch.set_grad_enabled(trains and any(tensor.requires_grad for tensor in arguments)):
            return cls(arguments, function(*arguments, *generators.at(STEP, micro_batch)))

    def contributions(self, gradients: Sequence[torch.Tensor | None]) -> dict[int, torch.Tensor]:
        """Return the gradient of each argument, from the gradients of the results."""
        roots = [
            (result, gradient)
            for result, gradient in zip(self.results, gradients, strict=True)
            if gradient is not None and result.requires_grad
        ]
        asking = [position for position, tensor in enumerate(self.arguments) if tensor.requires_grad]
        if not roots:
            return {}
        gradients_of_arguments = torch.autograd.grad(
            [result for result, _ in roots],
            [self.arguments[position] for position in asking],
            [gradient for _, gradient in roots],
            allow_unused=True,
        )
        return {
            position: tensor
            for position, tensor in zip(asking, gradients_of_arguments, strict=True)
            if tensor is not None
        }


def operand_leaves(
    program: Program, op: Op, values: Mapping[str, torch.Tensor], asking: frozenset[str]
) -> tuple[torch.Tensor, ...]:
    """Return what an operator reads, each time as a new leaf; statistics, which it writes to, as copies."""
    return tuple(
        values[name].clone() if name in program.statistics else values[name].detach().requires_grad_(name in asking)
        for name in op.inputs
    )


def random_operators(program: Program) -> frozenset[int]:
    """Return the indices of operators that draw random numbers; raise InputError if one cannot be seeded."""
    names = randomized(program)
    return frozenset(i for i, op in enumerate(program.graph.ops) if op.name in names)


def imported_function(program: Program, op: Op, torch_device: torch.device, random: bool) -> Function:
    """Return the operator as it was imported, not as the runtime compiles it; a fused one as its members."""
    if op.members:
        return _in_turn(program, op, torch_device)
    call = program.calls[op.name]
    target: Any = seeded_target(call.node) if random else call.node.target
    if torch_device.type != "cpu" and target is torch.ops.aten.view.default:
        target = torch.ops.aten.reshape.default  # results may lie in another order than on the CPU of the import

    def function(*arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
        reads = iter(arguments)
        args, kwargs = program.arguments(op, lambda _: next(reads))
        seeded = {"generator": next(reads)} if random else {}
        result = target(*on_device(args, torch_device), **{**on_device(kwargs, torch_device), **seeded})
        return tuple(result) if call.unpack else (result,)

    return function


def _in_turn(program: Program, op: Op, torch_device: torch.device) -> Function:
    """Return a function that runs the members of a fused operator one after the other."""
    functions = [(member, imported_function(program, member, torch_device, False)) for member in op.members]

    def function(*arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
        env = dict(zip(op.inputs, arguments, strict=True))
        for member, compute in functions:
            env.update(zip(member.outputs, compute(*(env[name] for name in member.inputs)), strict=True))
        return tuple(env[name] for name in op.outputs)

    return function


def _go_back(
    program: Program, applied: Sequence[AppliedOperator], backward: BackwardResult
) -> tuple[dict[tuple[int, int], torch.Tensor], dict[str, torch.Tensor]]:
    """Return contributions and gradients, added up from the latest reader to the first, argument by argument."""
    contributions: dict[tuple[int, int], torch.Tensor] = {}
    gradients: dict[str, torch.Tensor] = {}

    def add(reader: int, position: int, name: str, contribution: torch.Tensor) -> None:
        contributions[reader, position] = contribution
        gradients[name] = gradients[name] + contribution if name in gradients else contribution

    for position, name in enumerate(program.graph.outputs):
        if name in backward.roots:
            add(len(applied), position, name, backward.roots[name])
    for i in reversed(range(len(applied))):
        op = program.graph.ops[i]
        try:
            returned = applied[i].contributions([gradients.get(name) for name in op.outputs])
        except RuntimeError as error:
            if "is not implemented" not in str(error):
                raise
            raise InputError(
                f"operator '{op.name}' ({op.kind}) has no backward pass in PyTorch, so the network cannot be trained"
            ) from error
        for position, contribution in returned.items():
            add(i, position, op.inputs[position], contribution)
    return contributions, gradients


T = TypeVar("T")

_ForwardRun: TypeAlias = tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], tuple[torch.Tensor, ...]]
"""The tensors that a stage has received, as leaves; the tensors that its operators read instead, and that it has sent;
and its results: the tensors that it has sent, then the outputs."""


@dataclass(frozen=True)
class StageUnderTest:
    """A stage, for inference or training."""

    ops: tuple[int, ...]  # operators in the order in which they run
    device: Device  # of the stage
    state: Mapping[str, torch.Tensor]  # the parameters and buffers that it holds


def run_stage(number: int, part: StageUnderTest, work: Callable[[], T]) -> T:
    """Run a function on the device of a stage; raise StageError if it fails; its cause is the original exception."""
    try:
        return run_on(part.device, work)
    except Exception as error:
        raise stage_failure(f"stage {number} on '{part.device.name}' failed", part.device, error) from error


@dataclass(frozen=True)
class Crossing:
    """A tensor that a stage has computed for others."""

    stage: int  # number of the stage
    tensor: str  # its name
    backward: bool  # whether it is the gradient of the tensor
    expected: torch.Tensor  # its value in the reference network
    got: torch.Tensor  # its value in the stage


class InferenceStages:
    """The stages of a plan for inference."""

    def __init__(
        self, program: Program, stages: tuple[Stage, ...], devices: Sequence[Device], pairs: bool = False
    ) -> None:
        """Compile the stages; with ``pairs``, what two micro-batches at once have computed is yielded as well."""
        compiled, state = compile_stages(program, stages, devices, pairs=pairs)
        self._program, self._stages = program, tuple(compiled.values())
        self.parts = tuple(StageUnderTest(s.ops, devices[s.device], dict(state.owned(s.device))) for s in stages)

    def crossings(self, reference: Reference) -> Iterator[Crossing]:
        """Run the stages; yield what each has computed."""
        values: dict[str, torch.Tensor] = {}
        for number, (stage, part) in enumerate(zip(self._stages, self.parts, strict=True)):
            if not number or stage.stage.copy > self._stages[number - 1].stage.copy:
                values = _inputs(self._program)
            results = run_stage(number, part, lambda: self._run(stage, part, values))  # noqa: B023 - called at once
            for name, got in zip(stage.outputs * (3 if stage.pair else 1), results, strict=True):
                values[name] = got
                yield Crossing(number, name, False, reference.values[name], got)

    def _run(
        self, stage: CompiledStage, part: StageUnderTest, values: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        """Call a stage, then its function for two micro-batches with the same inputs twice."""
        torch_device = torch_device_of(part.device)
        generators = Generators(stage.random, torch_device, SEED).at(STEP, MICRO_BATCH)
        inputs = [values[name].to(torch_device) for name in stage.inputs]
        pair = stage.pair(*inputs, *inputs) if stage.pair else ()
        return _done((*stage.call(*generators, *inputs), *pair), torch_device)


class TrainingStages:
    """The stages of a training step, with gradients."""

    def __init__(self, program: Program, wiring: Wiring, devices: Sequence[Device], backward: BackwardResult) -> None:
        """Compile the stages; ``devices`` has the device of each, ``backward`` the gradients of the outputs."""
        rows = {device.name: device for device in devices}
        torch_devices = [torch_device_of(device) for device in rows.values()]
        self._program, self._wiring, self._backward = program, wiring, backward
        numbers = [list(rows).index(device.name) for device in devices]
        self._stages, _ = compile_training(program, wiring, numbers, torch_devices, TrainerOptions(seed=SEED))
        self.parts = tuple(
            StageUnderTest(stage.wired.ops, device, dict(zip(stage.wired.state, stage.state, strict=True)))
            for stage, device in zip(self._stages, devices, strict=True)
        )

    def crossings(self, reference: Reference) -> Iterator[Crossing]:
        """Run the stages forward and backward; yield what each has computed."""
        values = _inputs(self._program)
        runs: list[_ForwardRun] = []
        for number, (stage, part) in enumerate(zip(self._stages, self.parts, strict=True)):
            torch_device = torch_device_of(part.device)
            run = run_stage(number, part, lambda: _run_forward(stage, torch_device, values))  # noqa: B023 - called at once
            runs.append(run)
            last = self._wiring.names[self._wiring.loss] if number == len(self._stages) - 1 else ()
            names = (*stage.wired.sends, *last)
            values |= dict(zip(names, run[-1], strict=True))
            tensors = {self._wiring.tensor_of.get(name, name): values[name] for name in names}
            for name, got in tensors.items():
                yield Crossing(number, name, False, reference.values[name], got.detach())
        yield from self._back(reference, runs)

    def _back(self, reference: Reference, runs: Sequence[_ForwardRun]) -> Iterator[Crossing]:
        returned: dict[tuple[str, int], torch.Tensor | None] = {}
        for number in reversed(range(len(runs))):
            stage, (leaves, tensors, results) = self._stages[number], runs[number]
            roots = [(tensors[name], returned[name, source]) for name, source in stage.wired.awaits]
            if number == len(runs) - 1:
                outputs = zip(self._program.graph.outputs, results[len(stage.wired.sends) :], strict=True)
                roots += [(result, self._backward.roots.get(name)) for name, result in outputs]
            run_stage(number, self.parts[number], lambda: _run_backward(roots))  # noqa: B023 - called at once
            for name in stage.wired.returns:
                got = returned[name, number] = leaves[name].grad
                tensor = self._wiring.tensor_of.get(name, name)
                yield from _gradient(number, tensor, self._partial(reference, name, number), got)
            for name, parameter in self.parts[number].state.items():
                if name in self._wiring.learned:
                    yield from _gradient(number, name, reference.gradients.get(name), parameter.grad)

    def _partial(self, reference: Reference, name: str, stage: int) -> torch.Tensor | None:
        """Return the contributions of the readers in this stage and later ones to a gradient, added up."""
        total: torch.Tensor | None = None
        for (reader, position), contribution in reference.contributions.items():  # the latest reader first
            if self._wiring.names[reader][position] == name and self._wiring.stage_of[reader] >= stage:
                total = contribution if total is None else total + contribution
        return total


def _run_forward(stage: TrainingStage, torch_device: torch.device, values: Mapping[str, torch.Tensor]) -> _ForwardRun:
    names, returns = stage.wired.receives, stage.wired.returns
    leaves = tuple(values[name].to(torch_device).detach().requires_grad_(name in returns) for name in names)
    received = tuple(map(leaf_view, leaves))
    with torch.enable_grad():
        results = _done(stage(received, STEP, MICRO_BATCH), torch_device)
    tensors = dict(zip((*names, *stage.wired.sends), (*received, *results), strict=False))
    return dict(zip(names, leaves, strict=True)), tensors, results


def _run_backward(roots: Sequence[tuple[torch.Tensor, torch.Tensor | None]]) -> None:
    asked = [(tensor, gradient) for tensor, gradient in roots if gradient is not None and tensor.requires_grad]
    if asked:
        torch.autograd.backward(
            [tensor for tensor, _ in asked], [gradient.to(tensor.device) for tensor, gradient in asked]
        )


def _gradient(stage: int, tensor: str, expected: torch.Tensor | None, got: torch.Tensor | None) -> Iterator[Crossing]:
    """Yield a crossing for a gradient; a missing one counts as zeros, unless both are missing."""
    if expected is not None or got is not None:
        zeros = torch.zeros_like(expected if expected is not None else got)  # type: ignore[arg-type]  # one is there
        yield Crossing(stage, tensor, True, zeros if expected is None else expected, zeros if got is None else got)


def _inputs(program: Program) -> dict[str, torch.Tensor]:
    return dict(zip(program.graph.inputs, program.example_inputs, strict=True))


def _done(results: tuple[torch.Tensor, ...], torch_device: torch.device) -> tuple[torch.Tensor, ...]:
    if torch_device.type == "cuda":
        torch.cuda.synchronize(torch_device)  # others read it on streams of their own
    return results
