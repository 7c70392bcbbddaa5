"""Schedule: the order of each device's actions, in a readable form.

::

    device 0  0F0 0F1 .   .   0B0 0B1      stage 0, F forward, micro-batch 1: 0F1
    device 1  .   1F0 1F1 1B0 1B1          B is a whole backward pass; or I, then W, for the gradients of the
                                           inputs (which the stage before waits for) and of the weights

torch.distributed.pipelining has the same form, so that each side reads the other's files.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Literal, NamedTuple, Self, TypeAlias, TypeVar, cast, get_args

import numpy as np
from numpy.typing import NDArray

from graphs.common.arrays import Ints
from graphs.common.brief import Brief
from graphs.common.errors import InputError

Computation: TypeAlias = Literal["F", "B", "I", "W"]
"""Forward (F); backward as a whole (B) or split: gradient of the inputs (I), then of the weights (W)."""

COMPUTATIONS: tuple[Computation, ...] = get_args(Computation)
F, B, I, W = range(4)  # noqa: E741 - the letters of the schedules; as numbers, they index arrays
Number = TypeVar("Number", bound=np.number[Any])
ACTION = re.compile(r"([0-9]{1,9})([FBIW])([0-9]{1,9})")


class Action(NamedTuple):
    """One computation of one micro-batch in one stage. A tuple, because there are a hundred thousand of them."""

    stage: int
    computation: Computation
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.computation}{self.micro_batch}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the written form, such as 2F0.

        Raises:
            InputError: for anything else.
        """
        match = ACTION.fullmatch(text.strip())
        if match is None:
            raise InputError(f"'{text}' is no action; write stage, F, B, I or W, and micro-batch, as in 2F0")
        stage, computation, micro_batch = match.groups()
        return cls(int(stage), cast("Computation", computation), int(micro_batch))


class Columns(NamedTuple):
    """The actions of all devices, one device after the other, as arrays [n_actions]."""

    stage: Ints  # number of the stage
    computation: Ints  # F, B, I or W, as the numbers of this module
    micro_batch: Ints  # number of the micro-batch
    device: Ints  # number of the device


@dataclass(frozen=True)
class Schedule(Brief):
    """For each device its actions in order.

    A device may have several stages or none. Only a simulation shows whether the devices' orders form a circle.

    Raises:
        InputError: unless each micro-batch goes through each stage once: one F, then one B or one I and later one W,
            or no backward pass at all in the whole schedule; or if a stage is on two devices.
    """

    actions: tuple[tuple[Action, ...], ...]  # [n_devices] sequences of actions

    def __post_init__(self) -> None:
        if not any(self.actions):
            raise InputError("the schedule is empty; give each device its actions, such as 0F0")
        _check_stages(self.columns)
        _check_forward(self, self.columns)
        _check_backward(self)
        _check_own_order(self)

    @classmethod
    def parse(cls, rows: Sequence[str]) -> Self:
        """Read one text for each device: actions between spaces, and dots for idle moments, which are left out.

        Raises:
            InputError: for a text that is no action, or actions that are no schedule.
        """
        return cls(tuple(tuple(Action.parse(text) for text in row.split() if text != ".") for row in rows))

    def to_csv(self) -> str:
        """Return one line for each device.

        torch's ``_PipelineScheduleRuntime._load_csv(path, "compute_only")`` reads it if every device has actions.
        """
        return "".join(",".join(map(str, row)) + "\n" for row in self.actions)

    def __str__(self) -> str:
        return "\n".join(" ".join(map(str, row)) or "." for row in self.actions)

    @property
    def n_devices(self) -> int:
        """Number of devices."""
        return len(self.actions)

    @cached_property
    def n_stages(self) -> int:
        """Number of stages."""
        return int(self.columns.stage.max()) + 1

    @cached_property
    def micro_batches(self) -> int:
        """Number of micro-batches."""
        return int(self.columns.micro_batch.max()) + 1

    @cached_property
    def device(self) -> tuple[int, ...]:
        """[n_stages], the device of each stage."""
        return tuple(self.columns.device[self.position[F, :, 0]].tolist())

    @cached_property
    def trains(self) -> bool:
        """Whether there is a backward pass."""
        return bool((self.columns.computation != F).any())

    @cached_property
    def columns(self) -> Columns:
        """The actions as arrays."""
        actions = list(chain.from_iterable(self.actions))
        number = {letter: index for index, letter in enumerate(COMPUTATIONS)}
        return Columns(
            np.array([action.stage for action in actions], dtype=np.int64),
            np.array([number[action.computation] for action in actions], dtype=np.int64),
            np.array([action.micro_batch for action in actions], dtype=np.int64),
            np.repeat(np.arange(self.n_devices), [len(row) for row in self.actions]),
        )

    def split(self, values: NDArray[Number]) -> list[NDArray[Number]]:
        """Return [n_devices], the values of each device's actions, from a value for each action in the columns."""
        return np.split(values, np.cumsum([len(row) for row in self.actions])[:-1])

    @cached_property
    def position(self) -> Ints:
        """[4, n_stages, micro_batches], index of each computation in the columns; -1 if it is not in the schedule."""
        stage, computation, micro_batch, _ = self.columns
        position = np.full((len(COMPUTATIONS), self.n_stages, self.micro_batches), -1, dtype=np.int64)
        position[computation, stage, micro_batch] = np.arange(len(stage))
        return position


def _check_stages(columns: Columns) -> None:
    """Check that stages are numbered without a gap, and that each is on one device."""
    present, first = np.unique(columns.stage, return_index=True)
    if columns.stage.min() < 0 or columns.micro_batch.min() < 0:
        raise InputError("an action has a negative stage or micro-batch; both are numbered from 0")
    for expected, stage in enumerate(present.tolist()):
        if stage != expected:
            raise InputError(f"no device runs stage {expected}; the stages go from 0 to {present[-1]}")
    home = columns.device[first][columns.stage]
    if (columns.device != home).any():
        at = int(np.argmax(columns.device != home))
        both = f"devices {home[at]} and {columns.device[at]}"
        raise InputError(f"stage {columns.stage[at]} is on the {both}; put all its actions on one device")


def _check_forward(schedule: Schedule, columns: Columns) -> None:
    """Check that each micro-batch has one forward pass in each stage."""
    stage, computation, micro_batch, _ = columns
    n_stages, micro_batches = schedule.n_stages, schedule.micro_batches
    forward = set(zip(stage[computation == F].tolist(), micro_batch[computation == F].tolist(), strict=True))
    if len(forward) < n_stages * micro_batches:  # checked before any array of this size is made
        pairs = ((s, i) for s in range(n_stages) for i in range(micro_batches))
        s, i = next(pair for pair in pairs if pair not in forward)
        raise InputError(f"{s}F{i} is missing; each of {micro_batches} micro-batches goes through {n_stages} stages")
    key = (computation * n_stages + stage) * micro_batches + micro_batch
    if (repeated := np.bincount(key)[key] > 1).any():
        at = int(repeated.argmax())
        action = Action(int(stage[at]), COMPUTATIONS[computation[at]], int(micro_batch[at]))
        raise InputError(f"{action} is in the schedule more than once; leave one")


def _check_backward(schedule: Schedule) -> None:
    """Check that each micro-batch has one backward pass in each stage, or none has."""
    present = schedule.position >= 0
    whole, parts = present[B] & ~present[I] & ~present[W], ~present[B] & present[I] & present[W]
    if schedule.trains and not (whole | parts).all():
        s, i = np.argwhere(~(whole | parts))[0]
        passes = [f"{s}{COMPUTATIONS[letter]}{i}" for letter in (B, I, W) if present[letter, s, i]]
        has = " and ".join(passes) or "no backward"
        raise InputError(f"micro-batch {i} has {has} in stage {s}; give it {s}B{i}, or both {s}I{i} and {s}W{i}")


def _check_own_order(schedule: Schedule) -> None:
    """Check that on its device an F comes before its B or I, and an I before its W."""
    position = schedule.position
    for earlier, later in ((F, B), (F, I), (I, W)):
        wrong = (position[later] >= 0) & (position[later] < position[earlier])
        if wrong.any():
            s, i = np.argwhere(wrong)[0]
            first, then = (f"{s}{COMPUTATIONS[letter]}{i}" for letter in (earlier, later))
            raise InputError(f"device {schedule.device[s]} runs {then} before {first}; turn them round")
