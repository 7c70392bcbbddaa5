"""Which stage sends which tensor to which in a training step, and in which order gradients are added up.

PyTorch runs the backward pass in the opposite order of its calls, so a tensor's gradient is the sum over its readers,
the latest first. In a plan, the sum begins in the stage of the latest reader, and each earlier stage adds its part::

    t ──► a (stage 0) ──► b (stage 1) ──► c (stage 2)      reference (gc + gb) + ga
                                                           stage 2   gc ──► stage 1   gc + gb ──► stage 0   ... + ga

Floating-point sums depend on their order; this sum is bit by bit the reference model's. Where the stages that read a
tensor do not follow each other like that, the tensor *forks*: each reader has a copy of its own, and the stage that
writes the tensor adds up, the latest first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from graphs.common.errors import InputError
from graphs.ir import Graph, Role

OUTSIDE = -1
"""Stands for the stage that inputs of the network come from."""


@dataclass(frozen=True, slots=True)
class WiredStage:
    """A stage of a training step."""

    ops: tuple[int, ...]  # operators in the order of the graph, which is that of the reference model
    state: tuple[str, ...]  # parameters and buffers that it holds
    receives: tuple[str, ...]  # what it reads and neither holds nor writes; parameters may be held by an earlier stage
    sends: tuple[str, ...]  # what it writes or holds and later stages read
    returns: tuple[str, ...]  # received tensors for which it sends a gradient back
    awaits: tuple[tuple[str, int], ...]  # tensors whose gradient later stages contribute to, with the first of these


@dataclass(frozen=True)
class Wiring:
    """The tensors that the stages of a network send to each other in training."""

    graph: Graph  # the network
    members: tuple[tuple[int, ...], ...]  # [n_stages], operators; a tensor is written no later than read
    learned: frozenset[str]  # names of the tensors that get a gradient, see `costmodels.operators.views.differentiated`

    @property
    def loss(self) -> int:
        """The number of the loss among the readers: it reads the outputs, after all operators, in the last stage."""
        return len(self.graph.ops)

    @cached_property
    def names(self) -> tuple[tuple[str, ...], ...]:
        """[n_ops + 1], names of the arguments of each operator, and of the loss; each reader has its own copy of forks.

        A copy is named after its tensor, ``relu#0`` for the latest reader of relu.
        """
        names = [list(op.inputs) for op in self.graph.ops] + [list(self.graph.outputs)]
        for tensor, arguments in self._arguments.items():
            if tensor in self.forks:
                for copy, (reader, position) in zip(self.forks[tensor], arguments, strict=True):
                    names[reader][position] = copy
        return tuple(map(tuple, names))

    @cached_property
    def forks(self) -> dict[str, tuple[str, ...]]:
        """The copies of each tensor that forks, in the order in which their gradients are added up."""
        forks = {}
        for tensor in self.learned & self._arguments.keys():
            stages = [self.stage_of[reader] for reader, _ in self._arguments[tensor]]
            if any(first < then for first, then in pairwise(stages)):
                forks[tensor] = tuple(f"{tensor}#{number}" for number in range(len(stages)))
        return forks

    @cached_property
    def tensor_of(self) -> dict[str, str]:
        """The tensor of each copy."""
        return {copy: tensor for tensor, copies in self.forks.items() for copy in copies}

    @cached_property
    def readers(self) -> dict[str, tuple[int, ...]]:
        """The stages that read each tensor or copy, ascending."""
        readers: dict[str, set[int]] = {}
        for reader, names in enumerate(self.names):
            for name in names:
                readers.setdefault(name, set()).add(self.stage_of[reader])
        return {name: tuple(sorted(stages)) for name, stages in readers.items()}

    @cached_property
    def home(self) -> dict[str, int]:
        """The stage that other stages get a tensor or copy from; without state that each reader holds for itself."""
        home = dict.fromkeys(self.graph.inputs, OUTSIDE)
        for i, op in enumerate(self.graph.ops):
            home |= dict.fromkeys(op.outputs, self.stage_of[i])
        for tensor in self._arguments.keys() & self.learned - home.keys():  # parameters
            home[tensor] = min(self.stage_of[reader] for reader, _ in self._arguments[tensor])
        return home | {copy: home[tensor] for copy, tensor in self.tensor_of.items()}

    @cached_property
    def stages(self) -> tuple[WiredStage, ...]:
        """The stages in order."""
        return tuple(self._stage(number, tuple(sorted(ops))) for number, ops in enumerate(self.members))

    @cached_property
    def stage_of(self) -> tuple[int, ...]:
        """[n_ops + 1], the stage of each operator and of the loss."""
        stages = {op: number for number, ops in enumerate(self.members) for op in ops}
        return (*(stages[op] for op in range(len(self.graph.ops))), len(self.members) - 1)

    def readers_behind(self, name: str, stage: int) -> tuple[int, ...]:
        """Return the stages that read a tensor or copy later than this one, ascending."""
        return tuple(reader for reader in self.readers.get(name, ()) if reader > stage)

    @cached_property
    def _arguments(self) -> dict[str, list[tuple[int, int]]]:
        """For each tensor its readers and their arguments, in the order in which PyTorch adds up their gradients.

        The latest reader comes first, and of one reader the first argument.
        """
        readings: dict[str, list[tuple[int, int]]] = {}
        reads = [*(op.inputs for op in self.graph.ops), self.graph.outputs]
        for reader in reversed(range(len(reads))):
            for position, name in enumerate(reads[reader]):
                readings.setdefault(name, []).append((reader, position))
        return readings

    def _stage(self, number: int, ops: tuple[int, ...]) -> WiredStage:
        last = (self.loss,) if number == len(self.members) - 1 else ()
        read = list(dict.fromkeys(name for reader in (*ops, *last) for name in self.names[reader]))
        own = [t.name for t in self.graph.tensors if t.role is Role.PARAMETER and self.home.get(t.name) == number]
        state = own + [name for name in read if name not in self.home]
        receives = tuple(name for name in read if self.home.get(name, number) != number)
        written = [*own, *(name for op in ops for name in self.graph.ops[op].outputs)]
        copies = (copy for name in written for copy in self.forks.get(name, (name,)))
        sends = tuple(copy for copy in copies if self.readers_behind(copy, number))
        learned = self.learned.union(*self.forks.values())
        returns = tuple(filter(learned.__contains__, receives))
        crossing = (*returns, *filter(learned.__contains__, sends))
        return WiredStage(
            ops=ops,
            state=tuple(state),
            receives=receives,
            sends=sends,
            returns=returns,
            awaits=tuple((name, behind[0]) for name in crossing if (behind := self.readers_behind(name, number))),
        )


def check_owners(wiring: Wiring, devices: Sequence[int], names: Sequence[str]) -> None:
    """Check that each parameter that is trained is on one device; raise InputError if operators of two read it.

    ``devices`` has the number of each stage's device among the ``names`` of devices.
    """
    owner: dict[str, int] = {}
    for ops, device in zip(wiring.members, devices, strict=True):
        for op in ops:
            for name in wiring.graph.ops[op].inputs:
                if name not in wiring.learned or wiring.graph.tensor[name].role is not Role.PARAMETER:
                    continue
                if (first := owner.setdefault(name, device)) != device:
                    raise InputError(
                        f"parameter '{name}' is read on '{names[first]}' and '{names[device]}'; operators that train "
                        "the same parameter belong on one device: plan again"
                    )
