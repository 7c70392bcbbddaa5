"""Compile the stages of a training step into functions, which hold the parameters that they train."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import fx

from costmodels.memory.recomputation import runs_once
from costmodels.operators.views import differentiated
from graphs.importers.functionalize import AUTOCAST
from graphs.ir import Role
from graphs.kernels.functions import add_call, function_of
from graphs.kernels.kernels import kernel_of
from graphs.program.program import Call, Program
from planner.runtime.stages.compile import ShardedState
from planner.runtime.stages.random_generators import Generators, randomized, seeded_target
from planner.runtime.stages.recomputation import once
from planner.runtime.training.means import averages
from planner.runtime.training.options import TrainerOptions
from planner.runtime.training.wiring import WiredStage, Wiring


@dataclass(frozen=True)
class TrainingStage:
    """A stage that can be called. The last stage also returns the outputs of the network."""

    wired: WiredStage  # what it reads, and what other stages read from it
    state: tuple[torch.Tensor, ...]  # its parameters and buffers, in the order of ``wired.state``
    statistics: tuple[torch.Tensor, ...]  # the buffers that its operators update when they run
    generators: Generators  # of its random operators
    averages: bool  # whether it computes means that may leave targets out, see `planner.runtime.training.means`
    function: Callable[..., tuple[torch.Tensor, ...]]  # takes state, generators, received; returns sent, outputs

    def __call__(
        self, received: Sequence[torch.Tensor], step: int, micro_batch: int, again: bool = False
    ) -> tuple[torch.Tensor, ...]:
        """Run the stage on tensors in the order of ``wired.receives``; random numbers follow from step and micro-batch.

        If it runs again for the same micro-batch, it leaves statistics as they are.
        """
        state = self.state
        if again:
            written = set(map(id, self.statistics))
            state = tuple(tensor.clone() if id(tensor) in written else tensor for tensor in state)
        return self.function(*state, *self.generators.at(step, micro_batch), *received)


def trained_parameters(program: Program) -> frozenset[str]:
    """Return the names of the parameters that ask for a gradient."""
    roles = {tensor.name: tensor.role for tensor in program.graph.tensors}
    return frozenset(
        name for name, tensor in program.state.items() if tensor.requires_grad and roles[name] is Role.PARAMETER
    )


def wire(program: Program, members: Sequence[Sequence[int]]) -> Wiring:
    """Wire the stages of a network, [n_stages] with the operators of each; other parameters stay as they are."""
    frozen = program.state.keys() - trained_parameters(program)
    return Wiring(program.graph, tuple(map(tuple, members)), differentiated(program.graph, frozen))


def compile_training(
    program: Program,
    wiring: Wiring,
    devices: Sequence[int],
    torch_devices: Sequence[torch.device],
    trainer_options: TrainerOptions,
) -> tuple[tuple[TrainingStage, ...], ShardedState]:
    """Generate the function of each stage, and return the stages and copies of the state that they hold.

    ``devices`` has the number of each stage's device, for ``torch_devices``. Raise InputError if a parameter has no
    values, or an operator draws random numbers that cannot be seeded.
    """
    state = ShardedState(program.state, tuple(torch_devices), copied=True)
    stages = []
    for wired, device in zip(wiring.stages, devices, strict=True):
        held = [state.get(device, name).requires_grad_(name in wiring.learned) for name in wired.state]
        stages.append(compile_training_stage(program, wiring, wired, held, torch_devices[device], trainer_options))
    return tuple(stages), state


def compile_training_stage(
    program: Program,
    wiring: Wiring,
    wired: WiredStage,
    held: Sequence[torch.Tensor],
    torch_device: torch.device,
    trainer_options: TrainerOptions,
) -> TrainingStage:
    """Generate the function of one stage; ``held`` are its parameters and buffers, in the order of ``wired.state``."""
    random_names = randomized(program)
    random = [i for i in wired.ops if program.graph.ops[i].name in random_names]
    kept = np.flatnonzero(runs_once(program.graph)) if trainer_options.recompute == "selective" else ()
    return TrainingStage(
        wired=wired,
        state=tuple(held),
        statistics=tuple(t for n, t in zip(wired.state, held, strict=True) if n in program.statistics),
        generators=Generators(random, torch_device, trainer_options.seed),
        averages=any(averages(program.graph, program.graph.ops[i]) for i in wired.ops),
        function=function_of(_code(program, wiring, wired, (random, frozenset(kept)), torch_device), []),
    )


def _code(
    program: Program,
    wiring: Wiring,
    wired: WiredStage,
    special: tuple[Sequence[int], frozenset[int]],
    torch_device: torch.device,
) -> fx.Graph:
    """Build the graph of a stage: placeholders, a line for each operator and fork, and a tuple of results.

    ``special`` are the operators that draw random numbers, and those that selective recomputation does not run again.
    """
    graph = fx.Graph()
    random, kept = special
    value: dict[str, fx.Node] = {}

    def define(name: str, node: fx.Node) -> None:
        value[name] = node
        copies = wiring.forks.get(name, ())
        if copies:
            forked = graph.call_function(fork, (node, len(copies)))
            for i, copy in enumerate(copies):
                value[copy] = graph.call_function(operator.getitem, (forked, i))

    for number, name in enumerate(wired.state):
        define(name, graph.placeholder(f"state{number}"))
    nodes = {i: program.calls[program.graph.ops[i].name].node for i in random}
    seeded = {i: (seeded_target(node), graph.placeholder(f"generator{i}")) for i, node in nodes.items()}
    for number, name in enumerate(wired.receives):
        define(name, graph.placeholder(f"arg{number}"))
    updating: set[fx.Node] = set()  # calls that update statistics, whether their results are read or not
    for i in wired.ops:
        op = program.graph.ops[i]
        kernel = kernel_of(program, op, torch_device)
        reads = [value[name] for name in wiring.names[i]]
        written = add_call(graph, program, kernel, reads, seeded.get(i))
        node = written[0].all_input_nodes[0] if program.calls[op.name].unpack else written[0]
        node.target = _called(node.target, program.calls[op.name], torch_device, i in kept)
        if not program.statistics.isdisjoint(op.inputs):
            updating.add(written[0])
        for name, node in zip(op.outputs, written, strict=True):
            define(name, node)
    outputs = wiring.names[wiring.loss] if wired is wiring.stages[-1] else ()
    graph.output(tuple(value[name] for name in (*wired.sends, *outputs)))
    graph.eliminate_dead_code(lambda node: node in updating or node.is_impure())
    return graph


def _called(target: fx.node.Target, call: Call, torch_device: torch.device, runs_once: bool) -> Callable[..., Any]:
    """Return the function of an operator, with autocast off and run once where the operator needs it."""
    assert callable(target)
    called: Callable[..., Any] = target
    if keeps_precision(call):
        called = torch.autocast(torch_device.type, enabled=False)(called)
    return once(called) if runs_once else called


def keeps_precision(call: Call) -> bool:
    """Return whether the model itself switches autocast off around an operator."""
    return call.node.meta.get(AUTOCAST) is False


def fork(tensor: torch.Tensor, count: int) -> tuple[torch.Tensor, ...]:
    """Return copies that share the tensor's memory; its gradient is the sum of theirs, from the first to the last."""
    copies: tuple[torch.Tensor, ...] = _Fork.apply(tensor, count)  # type: ignore[no-untyped-call]  # torch has no types
    return copies


class _Fork(torch.autograd.Function):
    """PyTorch itself adds gradients up in the order in which they come."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, count: int) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)  # a copy without a gradient is left out, not zero
        return tuple(tensor.detach() for _ in range(count))  # views forget the stride of an axis of one element

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, None]:  # noqa: ARG004 (torch)
        total: torch.Tensor | None = None
        for gradient in gradients:
            if gradient is not None:
                total = gradient if total is None else total + gradient
        return total, None


def leaf_view(leaf: torch.Tensor) -> torch.Tensor:
    """Return what stands for a leaf in the operators of a stage, so that the leaf's gradient keeps its strides.

    The ``grad`` of a leaf has the strides of the leaf, and with others PyTorch adds up numbers in another order.
    """
    with torch.enable_grad():
        return _GradientToLeaf.apply(leaf) if leaf.requires_grad else leaf  # type: ignore[no-untyped-call]


class _GradientToLeaf(torch.autograd.Function):
    """Hands the gradient to the leaf itself."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor) -> torch.Tensor:
        ctx.leaf = leaf
        return leaf.detach()  # views forget the stride of an axis of one element

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> None:
        ctx.leaf.grad = gradient
