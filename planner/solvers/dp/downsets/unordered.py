"""Unordered: devices for the blocks that may be anywhere, once all other blocks have a device."""

from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np

from costmodels.table import Floats, Ints
from planner.problem.blocks import Net
from planner.solvers.dp.downsets.lattice import Elements

ROUNDS = 3  # of moving each unordered block to where it is cheapest


@dataclass(frozen=True)
class Unordered:
    """The unordered blocks of a placement."""

    elements: Elements
    device: Ints  # [n_blocks], of all blocks; `settle` changes the devices of unordered blocks

    def settle(self) -> None:
        """Move each unordered block to the device where it costs least in all, several times."""
        fits = self.elements.blocks.fits
        for _ in range(ROUNDS):
            for block in self.elements.unordered.tolist():
                able = [device for device in range(fits.shape[1]) if fits[block, device]]
                self.device[block] = min(able, key=lambda device: self._total_s(block, device))

    def counted_too_low(self, least_s: float = 0.0) -> int:
        """An operator of the unordered block that the search undercounts most, by more than ``least_s``; else -1.

        A block on a device without room for it comes first, because the search does not count its bytes at all.
        """
        worst, most_s, blocks = -1, least_s, self.elements.blocks
        n_bytes = np.bincount(self.device, blocks.n_bytes, minlength=blocks.table.n_devices)
        full = n_bytes > blocks.room_bytes
        for number, block in enumerate(self.elements.unordered.tolist()):
            for device, true_s in self._true_s(block).items():
                missing_s = true_s - self._counted_s(number, device)
                if full[device] and device == self.device[block]:
                    missing_s = inf
                if missing_s > most_s:
                    worst, most_s = blocks.members[block][0], missing_s
        return worst

    @cached_property
    def _kind(self) -> dict[int, int]:
        return {device: kind for kind, devices in enumerate(self.elements.kinds.devices) for device in devices}

    @cached_property
    def _nets(self) -> dict[int, list[Net]]:
        """The nets of each unordered block."""
        nets_of: dict[int, list[Net]] = {block: [] for block in self.elements.unordered.tolist()}
        for net in self.elements.blocks.nets:
            for end in {net.writer, *net.readers} & nets_of.keys():
                nets_of[end].append(net)
        return nets_of

    def _total_s(self, block: int, device: int) -> float:
        """Seconds of a block and its nets on all devices, after a move of the block to one device."""
        self.device[block] = device
        return sum(self._true_s(block).values())

    def _true_s(self, block: int) -> dict[int, float]:
        """Seconds of a block and its nets on each device."""
        elements, own = self.elements, int(self.device[block])
        seconds = {own: float(elements.blocks.forward_s[block, own])}
        for net in self._nets[block]:
            src = int(self.device[net.writer])
            remote = {int(self.device[reader]) for reader in net.readers} - {src}
            enter_s, leave_s = elements.kinds.seconds(net.flows)
            for device in remote:
                seconds[device] = seconds.get(device, 0.0) + float(enter_s[self._kind[device]])
            if remote:
                seconds[src] = seconds.get(src, 0.0) + float(leave_s[self._kind[src]])
        return seconds

    def _counted_s(self, number: int, device: int) -> float:
        """The seconds that the search counts for an unordered block on a device, see `Elements`."""
        elements, kind = self.elements, self._kind[device]
        pins, near_s, far_s = elements.ties
        mine = slice(pins.start[number], pins.start[number + 1])
        inside = self.device[elements.element[pins.element[mine]]] == device
        if not inside.any():
            return 0.0
        alone_s = float(elements.blocks.forward_s[elements.unordered[number], device])
        near: Floats = near_s[kind, mine][inside]
        return min(float(near.sum()), alone_s + float(far_s[kind, mine][~inside].sum()))
