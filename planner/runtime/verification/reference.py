"""The reference network, operator by operator: every tensor, and the contribution of every argument to a gradient.

PyTorch adds up the contributions to a tensor's gradient from the latest reader to the first. Here they are kept apart,
so that the sum can end where a stage ends.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from graphs.errors import InputError
from graphs.ir import Op
from graphs.program.program import Program, on_device
from planner.runtime.stages.random_generators import Generators, randomized, seeded_target

STEP, MICRO_BATCH = 0, 0  # whose random numbers are drawn

Function: TypeAlias = Callable[..., tuple[torch.Tensor, ...]]
"""Takes the arguments of an operator, as often as they are read; returns what it writes."""


@dataclass(frozen=True)
class Reference:
    """One run of the network. Behind the operators is the reader of the network's outputs, with the next number."""

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
    """Run the example inputs through the network on the calling thread; ``backward`` is None without gradients."""
    inputs = dict(zip(program.graph.inputs, program.example_inputs, strict=True))
    values = {name: tensor.detach().to(torch_device) for name, tensor in {**program.state, **inputs}.items()}
    asking = backward.learned if backward else program.asking
    random_ops = random_operators(program)
    applied: list[Applied] = []
    for i, op in enumerate(program.graph.ops):
        function = plain(program, op, torch_device, i in random_ops)
        generators = Generators([i] if i in random_ops else [], torch_device, seed)
        arguments = arguments_of(program, op, values, asking)
        done = Applied.of(function, arguments, generators, backward is not None, micro_batch)
        values.update(zip(op.outputs, (tensor.detach() for tensor in done.results), strict=True))
        if backward:
            applied.append(done)
    return Reference(values, *_go_back(program, applied, backward)) if backward else Reference(values, {}, {})


@dataclass(frozen=True)
class Applied:
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
    ) -> "Applied":
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


def arguments_of(
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


def plain(program: Program, op: Op, torch_device: torch.device, random: bool) -> Function:
    """Return the operator as it was imported, not as the runtime compiles it."""
    call = program.calls[op.name]
    target: Any = seeded_target(call.node) if random else call.node.target
    if torch_device.type != "cpu" and target is torch.ops.aten.view.default:
        target = torch.ops.aten.reshape.default  # results may lie in another order than on the CPU of the import

    def function(*arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
        reads = iter(arguments)
        args, kwargs = program.arguments(op, lambda _: next(reads))
        seeded = {"generator": next(reads)} if random else {}
        result = target(*on_device(args, torch_device), **on_device(kwargs, torch_device), **seeded)
        return tuple(result) if call.unpack else (result,)

    return function


def _go_back(
    program: Program, applied: Sequence[Applied], backward: BackwardResult
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
