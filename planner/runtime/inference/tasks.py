"""Tasks of each device for a micro-batch: its stages in the order of the placement, and the slots of their tensors.

Threads of devices run at the same time without a lock. Each device has slots of its own for the tensors that its
stages read, and empties a slot after the last stage that reads it, so readers need not be counted. A stage fills slots
that no other stage fills, and is then marked as ended::

    x ─► [y = 2x] 0 ─► [z = y + x] 1 ─► caller

    slot     0    1    2    3
    tensor   x    x    y    z
    reader   0    1    1    caller
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch

from graphs.common.promises import Promise
from planner.runtime.stages.compile import CompiledStage

Tensors: TypeAlias = dict[str, torch.Tensor]

CALLER = -1  # reads the answer; others that read are devices by their numbers


@dataclass(frozen=True, slots=True)
class DeviceTask:
    """A stage, and what its device does before and after it."""

    number: int  # of the stage
    stage: CompiledStage
    needs: frozenset[int]  # stages of other devices that must end first
    reads: tuple[int, ...]  # the slots of its inputs
    empties: tuple[int, ...]  # the slots that no later stage of its device reads
    fills: tuple[tuple[int, ...], ...]  # for each of its outputs the slots
    wakes: tuple[int, ...]  # other devices with stages that need it
    last: bool  # whether its device has no further stage


class NetworkCopy:
    """Tasks for each micro-batch that goes through one copy of the network.

    Attributes:
        tasks: by device, the last one first.
        slots: of each tensor by name.
        answer: the slot of each output by name.
        wakes: for each stage, here or elsewhere, the devices with stages that need it.
        ends: how many devices and stages elsewhere a micro-batch waits for.
    """

    def __init__(self, stages: Mapping[int, CompiledStage], outputs: Sequence[str], awaited: Collection[int]) -> None:
        """Prepare for stages by their numbers, and stages elsewhere that are ``awaited``."""
        in_order = sorted(stages.items())
        last = {(stage.stage.device, name): number for number, stage in in_order for name in stage.inputs}
        slot = {key: i for i, key in enumerate([*last, *((CALLER, name) for name in outputs)])}
        self.answer = {name: slot[CALLER, name] for name in outputs}
        self.slots: dict[str, tuple[int, ...]] = {}
        for (_, name), i in slot.items():
            self.slots[name] = (*self.slots.get(name, ()), i)
        self.wakes = _readers(stages.values())
        self.tasks: dict[int, list[DeviceTask]] = {}
        for number, stage in reversed(in_order):
            device = stage.stage.device
            later = self.tasks.setdefault(device, [])
            own = {each for each in stage.stage.needs if each in stages and stages[each].stage.device == device}
            task = DeviceTask(
                number,
                stage,
                needs=frozenset(stage.stage.needs) - own,
                reads=tuple(slot[device, name] for name in stage.inputs),
                empties=tuple(slot[device, name] for name in stage.inputs if last[device, name] == number),
                fills=tuple(self.slots.get(name, ()) for name in stage.outputs),
                wakes=tuple(each for each in self.wakes.get(number, ()) if each != device),
                last=not later,
            )
            later.append(task)
        self.ends = len(self.tasks) + len(awaited)


def _readers(stages: Iterable[CompiledStage]) -> dict[int, tuple[int, ...]]:
    """Return the devices that need each stage, by its number."""
    readers: dict[int, tuple[int, ...]] = {}
    for stage in stages:
        for needed in stage.stage.needs:
            readers[needed] = tuple({*readers.get(needed, ()), stage.stage.device})
    return readers


@dataclass(eq=False, slots=True)
class InFlight:
    """One micro-batch on its way."""

    number: int
    inputs: Tensors  # until it begins
    done: "Promise[Tensors]"
    events: dict[str, torch.cuda.Event]  # of tensors that a GPU is still writing
    beside: "tuple[InFlight, ...]" = ()  # what runs at once with it, and follows it everywhere
    leads: bool = True  # whether it follows no other, and its copy is idle after it
    copy: int | None = None  # the copy of the network that it runs through, once it has begun
    slots: dict[int, torch.Tensor] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)  # stages, here and elsewhere
    left: Iterator[int] = field(default_factory=lambda: iter(()))  # ends to come; see `NetworkCopy.ends`

    @property
    def together(self) -> "tuple[InFlight, ...]":
        """The micro-batches that run at once: this one, and those of `beside`."""
        return self, *self.beside

    def begin(self, number: int, copy: NetworkCopy) -> None:
        """Enter a copy of the network, which has a number."""
        self.copy, self.left = number, iter(range(copy.ends - 1, -1, -1))
        self.store(copy, self.inputs)
        self.inputs = {}

    def store(self, copy: NetworkCopy, tensors: Mapping[str, torch.Tensor]) -> None:
        """Give tensors to those who read them."""
        for name, tensor in tensors.items():
            for slot in copy.slots.get(name, ()):
                self.slots[slot] = tensor

    def finish(self, task: DeviceTask, results: Sequence[torch.Tensor]) -> None:
        """Store what a stage wrote, drop what its device reads no more, and mark it as ended."""
        for slots, result in zip(task.fills, results, strict=True):
            for slot in slots:
                self.slots[slot] = result
        for slot in task.empties:
            del self.slots[slot]
        self.ended.add(task.number)
