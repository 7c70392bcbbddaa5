"""The operators that two plans for one network have in common, whatever their rewrites have made of them.

::

    network      up ──► gelu ──► down
    one plan     up ──► gelu ──► down
    other plan   up[0/2] ──► gelu[0/2] ──► down[0/2] ──► down        an operator of the network is in two parts, and
                 up[1/2] ──► gelu[1/2] ──► down[1/2] ───┘            an operator between parts is in this plan only
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from graphs.ir import Graph, Op, unfused
from graphs.rewrites.sharding import REPLICATED
from graphs.rewrites.split import Split, part_number, stands_between, undivided
from planner.plans.plan import Plan


@dataclass(frozen=True)
class NetworkOps:
    """The operators of a network in the graph of a plan.

    Attributes:
        plan: the plan.
        rewritten: whether parts stand for the operator that was divided; else each operator stands for itself.
    """

    plan: Plan
    rewritten: bool

    @cached_property
    def choices(self) -> Mapping[str, tuple[str, int]]:
        """The sharding and the number of parts of each operator that is divided."""
        splits = (rewrite for rewrite in self.plan.rewrites if isinstance(rewrite, Split) and self.rewritten)
        return {name: choice for split in splits for name, choice in split.choices.items()}

    @cached_property
    def members(self) -> Mapping[str, tuple[int, ...]]:
        """The operators of the graph that compute each operator of the network, or some part of it."""
        found: dict[str, list[int]] = {}
        for number, op in enumerate(self.plan.graph.ops):
            for name in self._named(op):
                found.setdefault(name, []).append(number)
        return {name: tuple(dict.fromkeys(numbers)) for name, numbers in found.items()}

    @cached_property
    def graph(self) -> Graph:
        """The graph without fused operators."""
        return replace(self.plan.graph, ops=tuple(unfused(self.plan.graph.ops)))

    def how(self, name: str) -> str:
        """Return how an operator is divided, in words; empty for a whole one."""
        sharding, parts = self.choices.get(name, ("", 0))
        if sharding == REPLICATED:
            return f"repeated {parts} times"
        return f"in {parts} by {sharding}" if parts else ""

    def parts_on(self, name: str) -> tuple[int, ...]:
        """Return [n_parts], the device of each part of an operator that is divided."""
        found: dict[int, int] = {}
        for number in self.members[name]:
            op = self.plan.graph.ops[number]
            for member in op.members or (op,):
                part = part_number(member.name)
                if part is not None and undivided(member.name) == name:
                    found.setdefault(part, self.plan.placement.device[number])
        return tuple(found[part] for part in sorted(found))

    def devices(self, name: str) -> tuple[str, ...]:
        """Return the devices of an operator of the network."""
        homes = (home for number in self.members[name] for home in self.plan.placement.homes[number])
        return tuple(self.plan.table.devices[home] for home in dict.fromkeys(homes))

    def seconds(self, names: Collection[str]) -> float:
        """Return the seconds of operators on the device that is busiest with them, in the mean of all copies.

        A fused operator counts with its first member.
        """
        wanted = set(names)
        return self.seconds_of([number for number, name in enumerate(self._first) if name in wanted])

    @cached_property
    def seconds_each(self) -> Mapping[str, float]:
        """Map each operator of the network to its seconds, as `seconds` counts them."""
        numbers: dict[str, list[int]] = {name: [] for name in self.members}
        for number, name in enumerate(self._first):
            if name:
                numbers[name].append(number)
        return {name: self.seconds_of(own) for name, own in numbers.items()}

    def seconds_of(self, numbers: Collection[int]) -> float:
        """Return the seconds of operators of the graph, given by their numbers, as `seconds` counts them."""
        ops, copies = list(numbers), self.plan.placement.copies
        if not ops:
            return 0.0
        total_s = 0.0
        for copy in copies:
            device = np.asarray(copy.device)[ops]
            total_s += float(np.bincount(device, self.plan.costs.forward_s[ops, device]).max())
        return total_s / len(copies)

    def apart(self, names: Collection[str]) -> tuple[int, ...]:
        """Return the operators of the graph that belong to none of these operators of the network."""
        return tuple(number for number, op in enumerate(self.plan.graph.ops) if {*self._named(op)}.isdisjoint(names))

    @cached_property
    def _first(self) -> tuple[str, ...]:
        """[n_ops], the first operator of the network that an operator of the graph has something of, if any."""
        return tuple(next(self._named(op), "") for op in self.plan.graph.ops)

    def _named(self, op: Op) -> Iterator[str]:
        """Yield the operators of the network that an operator of the graph has something of."""
        if not self.rewritten:
            yield op.name
            return
        for member in op.members or (op,):
            name = undivided(member.name)
            if name != member.name or (name not in self.choices and not stands_between(member)):
                yield name  # an operator between parts may have the name of the one that was divided


@dataclass(frozen=True)
class CommonOps:
    """The operators of a network in two plans."""

    before: NetworkOps
    after: NetworkOps

    @classmethod
    def of(cls, before: Plan, after: Plan) -> "CommonOps":
        """Return the operators that two plans for one network have in common."""
        rewritten = before.graph.fingerprint != after.graph.fingerprint
        return cls(NetworkOps(before, rewritten), NetworkOps(after, rewritten))

    @property
    def both(self) -> tuple[NetworkOps, NetworkOps]:
        """Both plans, the earlier one first."""
        return self.before, self.after

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The operators of the network, in the order of the first plan's graph."""
        return tuple(name for name in self.before.members if name in self.after.members)

    @cached_property
    def graph(self) -> Graph:
        """A graph without splits, if one of the plans has one."""
        return next((each.graph for each in self.both if not each.choices), self.before.graph)

    def numbers(self, names: Collection[str]) -> list[int]:
        """Return the operators of `graph` with these names."""
        wanted = set(names)
        named = undivided if self.before.choices and self.after.choices else str
        return [number for number, op in enumerate(self.graph.ops) if named(op.name) in wanted]
