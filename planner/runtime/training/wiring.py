"""Which stage hands what to which in a training step, and in which order gradients are added up.

PyTorch goes back through a network in the opposite order of its calls, so a tensor's gradient is the sum over those who
read it, the latest first. Divided, the sum begins where it is latest, and each earlier stage goes on from there::

    t ──► a (stage 0) ──► b (stage 1) ──► c (stage 2)      reference (gc + gb) + ga
                                                           stage 2   gc ──► stage 1   gc + gb ──► stage 0   ... + ga

Floating-point sums depend on their order; so this one is bit by bit the reference model's. Where the stages that read a
tensor do not follow each other like that, the tensor *forks*: each reader has a copy of its own, and the stage that
writes the tensor adds up, the latest first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from graphs.errors import InputError
from graphs.ir import Graph, Role

OUTSIDE = -1
"""The stage, so to speak, where the inputs of the network come from."""


@dataclass(frozen=True, slots=True)
class WiredStage:
    """A stage of a training step.

    Attributes:
        ops: operators in the order of the graph, which is that of the reference model.
        state: parameters and buffers that it holds.
        receives: what it reads from elsewhere: inputs of the network, what other stages write, parameters that an
            earlier stage of the device holds.
        sends: what it writes or holds and later stages read.
        returns: of what it receives, that for which it sends a gradient back.
        awaits: of what it receives or sends, that to whose gradient a later stage contributes first, and that stage.
    """

    ops: tuple[int, ...]
    state: tuple[str, ...]
    receives: tuple[str, ...]
    sends: tuple[str, ...]
    returns: tuple[str, ...]
    awaits: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Wiring:
    """How the stages of a network hang together in training.

    Attributes:
        graph: the network.
        members: [n_stages], operators of each stage; a tensor is written in no later stage than it is read.
        learned: names of the tensors that get a gradient, see `costmodels.gradients.differentiated`.
    """

    graph: Graph
    members: tuple[tuple[int, ...], ...]
    learned: frozenset[str]

    @property
    def loss(self) -> int:
        """The number of the one that reads the outputs of the network, behind all operators and in the last stage."""
        return len(self.graph.ops)

    @cached_property
    def names(self) -> tuple[tuple[str, ...], ...]:
        """[n_ops + 1], what each operator reads, and the loss, argument by argument: of what forks, a copy of its own.

        A copy is named after its tensor, ``relu#0`` for the latest reader of relu.
        """
        found = [list(op.inputs) for op in self.graph.ops] + [list(self.graph.outputs)]
        for tensor, arguments in self._arguments.items():
            if tensor in self.forks:
                for copy, (reader, position) in zip(self.forks[tensor], arguments, strict=True):
                    found[reader][position] = copy
        return tuple(map(tuple, found))

    @cached_property
    def forks(self) -> dict[str, tuple[str, ...]]:
        """The copies of each tensor that forks, in the order in which their gradients are added up."""
        found = {}
        for tensor in self.learned & self._arguments.keys():
            stages = [self._stage_of[reader] for reader, _ in self._arguments[tensor]]
            if any(first < then for first, then in pairwise(stages)):
                found[tensor] = tuple(f"{tensor}#{number}" for number in range(len(stages)))
        return found

    @cached_property
    def readers(self) -> dict[str, tuple[int, ...]]:
        """The stages that read each tensor or copy, ascending."""
        found: dict[str, set[int]] = {}
        for reader, names in enumerate(self.names):
            for name in names:
                found.setdefault(name, set()).add(self._stage_of[reader])
        return {name: tuple(sorted(stages)) for name, stages in found.items()}

    @cached_property
    def home(self) -> dict[str, int]:
        """The stage from which others get a tensor or copy; not for state that each reader holds for itself."""
        found = dict.fromkeys(self.graph.inputs, OUTSIDE)
        for i, op in enumerate(self.graph.ops):
            found |= dict.fromkeys(op.outputs, self._stage_of[i])
        for tensor in self._arguments.keys() & self.learned - found.keys():  # parameters
            found[tensor] = min(self._stage_of[reader] for reader, _ in self._arguments[tensor])
        return found | {copy: found[tensor] for tensor, copies in self.forks.items() for copy in copies}

    @cached_property
    def stages(self) -> tuple[WiredStage, ...]:
        """The stages in order."""
        return tuple(self._stage(number, tuple(sorted(ops))) for number, ops in enumerate(self.members))

    def readers_behind(self, name: str, stage: int) -> tuple[int, ...]:
        """The stages that read a tensor or copy later than this one, ascending."""
        return tuple(reader for reader in self.readers.get(name, ()) if reader > stage)

    @cached_property
    def _stage_of(self) -> tuple[int, ...]:
        """[n_ops + 1], the stage of each operator and of the loss."""
        found = {op: number for number, ops in enumerate(self.members) for op in ops}
        return (*(found[op] for op in range(len(self.graph.ops))), len(self.members) - 1)

    @cached_property
    def _arguments(self) -> dict[str, list[tuple[int, int]]]:
        """For each tensor its (reader, argument), in the order in which PyTorch adds up what comes back from them.

        The latest reader comes first, and of one reader the first argument.
        """
        found: dict[str, list[tuple[int, int]]] = {}
        reads = [*(op.inputs for op in self.graph.ops), self.graph.outputs]
        for reader in reversed(range(len(reads))):
            for position, name in enumerate(reads[reader]):
                found.setdefault(name, []).append((reader, position))
        return found

    def _stage(self, number: int, ops: tuple[int, ...]) -> WiredStage:
        last = (self.loss,) if number == len(self.members) - 1 else ()
        read = list(dict.fromkeys(name for reader in (*ops, *last) for name in self.names[reader]))
        own = [t.name for t in self.graph.tensors if t.role is Role.PARAMETER and self.home.get(t.name) == number]
        state = own + [name for name in read if name not in self.home]
        written = [*own, *(name for op in ops for name in self.graph.ops[op].outputs)]
        offered = [copy for name in written for copy in self.forks.get(name, (name,))]
        receives = tuple(name for name in read if self.home.get(name, number) != number)
        sends = tuple(name for name in offered if self.readers_behind(name, number))
        learned = self.learned.union(*self.forks.values())
        later = ((name, self.readers_behind(name, number)) for name in (*receives, *sends) if name in learned)
        return WiredStage(
            ops=ops,
            state=tuple(state),
            receives=receives,
            sends=sends,
            returns=tuple(name for name in receives if name in learned),
            awaits=tuple((name, stages[0]) for name, stages in later if stages),
        )


def check_owners(wiring: Wiring, devices: Sequence[int], names: Sequence[str]) -> None:
    """Check that each parameter that is trained is on one device.

    Args:
        wiring: of the stages.
        devices: [n_stages], the device of each.
        names: of the devices.

    Raises:
        InputError: if operators of two devices read one.
    """
    owner: dict[str, int] = {}
    for ops, device in zip(wiring.members, devices, strict=True):
        for op in ops:
            for name in wiring.graph.ops[op].inputs:
                known = owner.setdefault(name, device) if _trained(wiring, name) else device
                if known != device:
                    raise InputError(
                        f"parameter '{name}' is read on '{names[known]}' and '{names[device]}'; operators that train "
                        "the same parameter belong on one device: plan again"
                    )


def _trained(wiring: Wiring, name: str) -> bool:
    return name in wiring.learned and wiring.graph.tensor[name].role is Role.PARAMETER
