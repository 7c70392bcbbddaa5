"""The known schedules, by name."""

from typing import Protocol

from simulator.schedule import Schedule
from simulator.schedules.all_forward import breadth_first, forward_only, gpipe
from simulator.schedules.one_f_one_b import interleaved, one_f_one_b
from simulator.schedules.zbv import zbv
from simulator.schedules.zero_bubble import zb_h1, zb_h2


class Generator(Protocol):
    """Makes a schedule for any number of devices and micro-batches."""

    def __call__(self, n_devices: int, micro_batches: int, stages_per_device: int = ...) -> Schedule:
        """The schedule; each kind has its own default of stages a device.

        Raises:
            InputError: for a count below 1, or counts that the schedule does not allow.
        """


SCHEDULES: dict[str, Generator] = {
    "forward-only": forward_only,
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "breadth-first": breadth_first,
    "zb-h1": zb_h1,
    "zb-h2": zb_h2,
    "zbv": zbv,
}
