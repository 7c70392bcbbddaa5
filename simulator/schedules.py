"""The known schedules, by name.

::

    gpipe           0  0F0 0F1 0F2 .   .   0B0 0B1 0B2
                    1  .   1F0 1F1 1F2 1B0 1B1 1B2 .

    breadth-first   0  0F0 0F1 2F0 2F1 .   2B1 2B0 0B1 0B0      device 0 has the stages 0 and 2
                    1  .   1F0 1F1 3F0 3F1 3B1 3B0 1B1 1B0      device 1 has the stages 1 and 3

    1f1b            0  0F0 0F1 0F2 .   .   0B0 0F3 0B1 .   0B2 .   0B3      after a warm-up, forward and backward passes
                    1  .   1F0 1F1 .   1B0 1F2 1B1 1F3 1B2 .   1B3 .        alternate; the warm-up has a forward pass
                    2  .   .   2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3 .   .        for each later device

    zb-h1           0  0F0 0F1 .   0I0 0W0 0F2 0I1 0W1 0I2 0W2      device 1 postpones each W until the next I has run,
                    1  .   1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2      so that neither 1I1 nor 0I1 after it waits
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TypeAlias

from graphs.common.errors import InputError
from simulator.schedule import Action, Computation, Schedule

Row: TypeAlias = list[Action]
"""The actions of one device."""

DOWN, UP = 0, 1  # the two arms of ZBV's V
SPLIT: tuple[Computation, ...] = ("F", "I", "W")  # the computations of a split backward pass
Move: TypeAlias = tuple[int, Computation]
"""A computation on one of the arms."""


@dataclass(frozen=True)
class Generator:
    """Makes a schedule for any number of devices and micro-batches."""

    row: Callable[[int, int, int, int], Iterable[Action]]  # from device, devices, micro-batches and stages a device
    usual: int = 1  # stages a device
    only: bool = True  # whether it is for no other number of stages a device

    def __call__(self, n_devices: int, micro_batches: int, stages_per_device: int | None = None) -> Schedule:
        """Return the schedule.

        Raises:
            InputError: for a count below 1, or counts that the schedule does not allow.
        """
        per_device = self.usual if stages_per_device is None else stages_per_device
        counts = {"devices": n_devices, "micro-batches": micro_batches, "stages a device": per_device}
        for name, count in counts.items():
            if count < 1:
                raise InputError(f"a schedule of {count} {name}; it must be 1 or more")
        if self.only and per_device != self.usual:
            raise InputError(f"a schedule of {per_device} stages a device; this one is for {self.usual}")
        rows = (self.row(device, n_devices, micro_batches, per_device) for device in range(n_devices))
        return Schedule(tuple(map(tuple, rows)))


def _row(stage: int, computation: Computation, micro_batches: Iterable[int]) -> Row:
    """Return the same computation of one stage for one micro-batch after the other."""
    return [Action(stage, computation, micro_batch) for micro_batch in micro_batches]


def _one_by_one(forward: Row, backward: Sequence[Row], warm_up: int) -> Row:
    """``warm_up`` forward actions, then one forward action and one backward step alternately."""
    row = forward[:warm_up]
    for action, step in zip_longest(forward[warm_up:], backward):
        row += [action] if action is not None else []
        row += step
    return row


def _forward_only(device: int, _n_devices: int, micro_batches: int, _per_device: int) -> Row:
    """Pipelined inference: no backward pass."""
    return _row(device, "F", range(micro_batches))


def _gpipe(device: int, _n_devices: int, micro_batches: int, _per_device: int) -> Row:
    """Return all micro-batches forward, then all backward in the same order.

    Source: Huang et al. 2019, GPipe: efficient training of giant neural networks using pipeline parallelism.
    """
    return _row(device, "F", range(micro_batches)) + _row(device, "B", range(micro_batches))


def _breadth_first(device: int, n_devices: int, micro_batches: int, per_device: int) -> Row:
    """Return all micro-batches through a device's first stage, then all through its next one; backward the other way.

    Stages go round the devices: stage s is on device s mod n_devices. There is no idle time between stages with at
    least as many micro-batches as devices.

    Source: Lamy-Poirier 2022, Breadth-first pipeline parallelism.
    """
    stages = range(device, n_devices * per_device, n_devices)
    row = [action for stage in stages for action in _row(stage, "F", range(micro_batches))]
    return row + [action for stage in stages[::-1] for action in _row(stage, "B", range(micro_batches)[::-1])]


def _one_f_one_b(device: int, n_devices: int, micro_batches: int, _per_device: int) -> Row:
    """1F1B, also PipeDream-Flush: as fast as GPipe, with at most as many micro-batches in flight as devices.

    Source: Narayanan et al. 2021, Efficient large-scale language model training on GPU clusters.
    """
    backward = [[action] for action in _row(device, "B", range(micro_batches))]
    return _one_by_one(_row(device, "F", range(micro_batches)), backward, warm_up=n_devices - 1 - device)


def _interleaved(device: int, n_devices: int, micro_batches: int, per_device: int) -> Row:
    """Interleaved 1F1B: several stages a device shorten the warm-up, in which devices are idle.

    Stages go round the devices: stage s is on device s mod n_devices. A group has as many micro-batches as there are
    devices, and passes all stages of a device before the next group enters.

    Source: Narayanan et al. 2021, Efficient large-scale language model training on GPU clusters, section 2.2.
    """
    if micro_batches % n_devices:
        raise InputError(f"{micro_batches} micro-batches on {n_devices} devices; interleaved needs a multiple of these")
    groups = [range(first, first + n_devices) for first in range(0, micro_batches, n_devices)]
    stages = range(device, n_devices * per_device, n_devices)
    forward = [Action(stage, "F", i) for group in groups for stage in stages for i in group]
    backward = [[Action(stage, "B", i)] for group in groups for stage in stages[::-1] for i in group]
    return _one_by_one(forward, backward, (per_device - 1) * n_devices + 2 * (n_devices - 1 - device))


def _zero_bubble(depth: int) -> Callable[[int, int, int, int], Row]:
    """If F, I and W take equally long: ZB-H1 (depth 1) has a third of the bubbles of 1F1B, with hardly more memory.

    ZB-H2 (depth 2) has no bubbles between a device's first and last action, and twice the memory. F and I alternate;
    each W, which has no reader, follows the I that is as many micro-batches later as there are devices before, times
    the depth.

    Source: Qi et al. 2024, Zero bubble pipeline parallelism, sections 2.1 and 2.2.
    """

    def row(device: int, n_devices: int, micro_batches: int, _per_device: int) -> Row:
        put_off, weights = depth * device, _row(device, "W", range(micro_batches))
        backward: list[Row] = [[action] for action in _row(device, "I", range(micro_batches))]
        for step, action in zip(backward[put_off:], weights, strict=False):
            step.append(action)
        backward[-1] += weights[max(micro_batches - put_off, 0) :]
        return _one_by_one(_row(device, "F", range(micro_batches)), backward, depth * (n_devices - 1 - device))

    return row


def _zbv(device: int, n_devices: int, micro_batches: int, _per_device: int) -> Row:
    """ZB-V: if F, I and W take equally long, no bubbles between a device's first and last action, in 1F1B's memory.

    The two stages of the devices have the form of a V: device d has stage d, on the way down, and stage
    2 · n_devices - 1 - d, on the way up, so that the first device also has the last stage.

    Source: Qi et al. 2024, Zero bubble pipeline parallelism, section 6, in the order of torch.distributed.pipelining.
    """
    stages, counts, row = (device, 2 * n_devices - 1 - device), Counter[Move](), []
    for arm, computation in _zbv_pattern(n_devices, device, max(micro_batches, 2 * n_devices - 1)):
        row.append(Action(stages[arm], computation, counts[arm, computation]))
        counts[arm, computation] += 1
    return [action for action in row if action.micro_batch < micro_batches]


def _zbv_pattern(n_devices: int, device: int, micro_batches: int) -> list[Move]:
    """Return a device's computations by arm, each for its next micro-batch; 2 · n_devices - 1 micro-batches fill it."""
    behind, left = n_devices - device, micro_batches - 2 * n_devices + 1
    (f_down, i_down, w_down), (f_up, i_up, w_up) = ([(arm, letter) for letter in SPLIT] for arm in (DOWN, UP))
    return [
        *(2 * behind - 1) * [f_down],
        *device * [f_up, f_down],
        *behind * [f_up, i_up, w_up],
        *(left + device) * [f_down, i_down, w_down, f_up, i_up, w_up],
        *(behind - 1) * [i_down, w_down, f_up, i_up, w_up],
        *device * [i_down, i_up],
        *behind * [i_down, w_down],
        *device * [w_up],
        *device * [w_down],
    ]


SCHEDULES: dict[str, Generator] = {
    "forward-only": Generator(_forward_only),
    "gpipe": Generator(_gpipe),
    "1f1b": Generator(_one_f_one_b),
    "interleaved": Generator(_interleaved, usual=2, only=False),
    "breadth-first": Generator(_breadth_first, usual=2, only=False),
    "zb-h1": Generator(_zero_bubble(1)),
    "zb-h2": Generator(_zero_bubble(2)),
    "zbv": Generator(_zbv, usual=2),
}
