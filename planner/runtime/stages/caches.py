"""Caches of a language model on the devices of a process.

A pass is given the number of its group of sequences instead of the caches. So a pass in several processes sends none::

    ids, positions, ..., group 1 ──► process of cpu0: caches of group 1, layers 0 to 3 ──► process of cpu1: ...
"""

from collections.abc import Collection, Mapping

import torch

from costmodels.host.affinity import torch_device_of
from graphs.caches import users
from graphs.ir import Role, Tensor
from graphs.program.generation import GenerationProgram
from planner.plans.plan import Plan

GROUP = Tensor("group", (), "int64", Role.INPUT)
"""Which group of sequences a pass is of, besides the inputs of the network."""


class Caches:
    """The caches of all groups of sequences that are on devices of this process.

    Attributes:
        groups: by group, the tensors by name.
        home: the device of each cache of the network, by its number.
    """

    def __init__(self, plan: Plan, model: GenerationProgram, local: Collection[int] | None = None) -> None:
        """Allocate empty caches on the ``local`` devices, by default on all, for the groups that a plan has in flight.

        The model has had the plan's rewrites.
        """
        graph, devices = plan.graph, plan.cluster.devices
        pairs = zip(graph.caches, users(graph), strict=True)
        self.home = {cache: plan.placement.device[ops[0]] for (cache, _), ops in pairs}
        self._growing, self._encoded, self._phases = model.growing, model.encoded, tuple(model.phases)
        places = {
            name: torch_device_of(devices[home]) for name, home in self.home.items() if local is None or home in local
        }
        self.groups: tuple[Mapping[str, torch.Tensor], ...] = tuple(
            {name: _empty(graph.tensor[name], place) for name, place in places.items()}
            for _ in range(plan.workload.in_flight)
        )
        self._attended = {
            (group, phase): {name: self._positions(name, held[name], *self._phases[phase]) for name in held}
            for group, held in enumerate(self.groups)
            for phase in range(len(self._phases))
        }

    def joined(self, inputs: Mapping[str, torch.Tensor], phase: int) -> dict[str, torch.Tensor]:
        """Return the inputs of a pass with its group's caches, of as many positions as its phase attends to.

        Caches are zero in rows whose sequence begins: positions that are masked weigh 0, and 0 times NaN is NaN.
        """
        given = dict(inputs)
        group = int(given.pop(GROUP.name))
        tokens = self._phases[phase].tokens
        begins = _beginning(given) if tokens else given["row"].tolist() if "row" in given else []
        for name, cache in self.groups[group].items() if begins else ():
            if (name in self._encoded) == (tokens == 0):
                for row in begins:
                    cache[row].zero_()
        return given | self._attended[group, phase]

    def _positions(self, name: str, cache: torch.Tensor, tokens: int, length: int) -> torch.Tensor:
        """Return the part of a cache that a phase attends to."""
        return cache[:, :, :length] if name in (self._growing if tokens else self._encoded) else cache


def _beginning(given: Mapping[str, torch.Tensor]) -> list[int]:
    """Return the rows whose sequence begins with a pass.

    Python looks for them: torch's ``nonzero`` starts threads, which take 11 ms where the caller shares its cores.
    """
    rows = zip(given["active"].tolist(), given["positions"][:, 0].tolist(), strict=True)
    return [row for row, (active, first) in enumerate(rows) if active and first == 0]


def _empty(tensor: Tensor, place: torch.device) -> torch.Tensor:
    return torch.zeros(tensor.shape, dtype=getattr(torch, tensor.dtype), device=place)
