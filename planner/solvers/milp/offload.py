"""The integer program for accelerators beside a host: each pays for what enters and leaves it."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from costmodels.table import Floats
from planner.solvers.milp.model import PlacementModel
from simulator.placement import Placement


class Share(NamedTuple):
    """Nets that cross the boundary of a device together."""

    writer: int  # a block; -1 if it does not matter who writes
    pins: tuple[int, ...]  # all blocks, ascending
    store_s: Floats  # [n_devices], seconds of the writer's device
    fetch_s: Floats  # [n_devices], seconds of another one that reads


class TransferVariables(NamedTuple):
    """A variable that is 1 if a share is stored by a device, fetched by it, or either."""

    variable: Any
    share: Share
    device: int
    stores: bool
    fetches: bool


class OffloadModel(PlacementModel):
    """Minimise the busiest device.

    Source: Tarnawski et al., Efficient Algorithms for Device Placement of DNN Graph Operators, NeurIPS 2020, section
    5, with one variable where a device pays the same to store as to fetch, and nets with the same ends as one.
    """

    @property
    def families(self) -> Sequence[Callable[[], None]]:
        """The constraints, in the order in which they are added."""
        return (self._somewhere, self._crosses, self._busy, self._memory)

    def _crosses(self) -> None:
        """A share crosses the boundary of a device that has some of its blocks but not all.

        ::

            store[n, d] >= on[w, d] - on[r, d]         for every reader r, if block w writes
            fetch[n, d] >= on[r, d] - on[w, d]
            cross[n, d] >= |on[a, d] - on[b, d]|       if it costs the same; a is the heaviest block, b any other
        """
        self.crossings: list[TransferVariables] = []
        for number, share in enumerate(self.shares):
            for device in range(self.table.n_devices):
                if share.writer < 0:
                    kinds = [("cross", True, True)] if share.store_s[device] > 0 else []
                else:
                    kinds = [("store", True, False)] if share.store_s[device] > 0 else []
                    kinds += [("fetch", False, True)] if share.fetch_s[device] > 0 else []
                for name, stores, fetches in kinds:
                    variable = self.share(f"{name}_{number}_{device}", 1.0)
                    self.crossings.append(TransferVariables(variable, share, device, stores, fetches))
                    self._at_boundary(self.crossings[-1])

    def _at_boundary(self, crossing: TransferVariables) -> None:
        device, pins = crossing.device, crossing.share.pins
        heaviest = min(pins, key=self._rank.__getitem__)
        first = heaviest if crossing.share.writer < 0 else crossing.share.writer
        one = self.is_on.get((first, device))
        for pin in pins:
            other = self.is_on.get((pin, device))
            if pin == first or (one is None and other is None):
                continue
            if crossing.stores and one is not None:
                self.add([(crossing.variable, 1.0), (one, -1.0), *self._term(other, 1.0)], ">=", 0.0)
            if crossing.fetches and other is not None:
                self.add([(crossing.variable, 1.0), (other, -1.0), *self._term(one, 1.0)], ">=", 0.0)

    def _busy(self) -> None:
        """sum_b takes[b, d] * on[b, d] + what crosses d <= busiest, for every device d."""
        for device in range(self.table.n_devices):
            self.add([*self._load(device), (self.busiest, -1.0)], "<=", 0.0)

    def _load(self, device: int) -> list[tuple[Any, float]]:
        """The seconds of a device."""
        takes = self.blocks.forward_s[:, device] / self.scale_s
        terms = [(variable, float(takes[b])) for (b, d), variable in self.is_on.items() if d == device]
        return terms + [(c.variable, self._pays(c)) for c in self.crossings if c.device == device]

    def _pays(self, crossing: TransferVariables) -> float:
        seconds = crossing.share.store_s if crossing.stores else crossing.share.fetch_s
        return self.units(float(seconds[crossing.device]))

    def start(self, placement: Placement) -> Mapping[Any, float]:
        """The value of every variable for a placement."""
        device = self._canonical(self.blocks.devices_of(placement)).tolist()
        values = {variable: float(device[block] == d) for (block, d), variable in self.is_on.items()}
        for crossing in self.crossings:
            share, here = crossing.share, crossing.device
            inside = [device[pin] == here for pin in share.pins]
            if crossing.stores and crossing.fetches:
                values[crossing.variable] = float(any(inside) and not all(inside))
            elif crossing.stores:
                values[crossing.variable] = float(device[share.writer] == here and not all(inside))
            else:
                values[crossing.variable] = float(device[share.writer] != here and any(inside))
        values[self.busiest] = self.upper
        return values

    @cached_property
    def _rank(self) -> dict[int, int]:
        """The position of each block by falling time."""
        return {block: rank for rank, block in enumerate(self.heaviest_first)}

    @cached_property
    def shares(self) -> list[Share]:
        """The nets, those with the same ends as one."""
        offload = self.table.offload
        assert offload is not None
        found: dict[tuple[int, tuple[int, ...]], Share] = {}
        for net in self.blocks.nets:
            flows = list(net.flows)
            store_s, fetch_s = offload.store_s[flows].sum(axis=0), offload.fetch_s[flows].sum(axis=0)
            writer = -1 if np.array_equal(store_s, fetch_s) else net.writer
            key = writer, tuple(sorted((net.writer, *net.readers)))
            known = found.get(key, Share(*key, np.zeros_like(store_s), np.zeros_like(fetch_s)))
            found[key] = Share(*key, known.store_s + store_s, known.fetch_s + fetch_s)
        return list(found.values())


class OffloadCostModel(OffloadModel):
    """Minimise the seconds of all devices together."""

    def _busy(self) -> None:
        """The loads of all devices <= total."""
        loads = [term for device in range(self.table.n_devices) for term in self._load(device)]
        self.add([*loads, (self.busiest, -1.0)], "<=", 0.0)
