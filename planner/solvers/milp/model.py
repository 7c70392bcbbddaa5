"""The integer program that all goals share: the device of every block, the transfers, and how busy devices are.

Times are in units of ``scale_s``, so that the objective is a little more than 1, or at most `MOST_UNITS`. A transfer
that takes longer than the upper bound counts as twice the upper bound.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import inf
from typing import Any, NamedTuple

import numpy as np

from graphs.common.arrays import Floats, Ints
from planner.problem.blocks import Blocks
from planner.problem.deadline import loading
from planner.problem.devices import interchangeable, uniform_links
from planner.solvers.base import Budget
from planner.solvers.milp.highs import MINIMISING, SAFETY, allowance, minimise
from simulator.placement import Placement

ROUNDING = 1e-9  # relative
TINY = 1e-7  # units that are too short to matter; HiGHS keeps no coefficient below 1e-9
WEIGHT = 2.0**20  # of a unit in the objective: HiGHS may round an objective that is constant after presolving
FEW_UNITS = 0.5  # a bound below may be off by the tolerance of every variable; `ILP` solves again in larger units
MOST_UNITS = 1e2  # solvers of integer programs lose numbers that are much smaller than the largest one


class Sending(NamedTuple):
    """A variable of the model that stands for a transfer or one end of it, and the devices that it occupies."""

    variable: Any  # 1 if the transfer happens; the number of copies if ``dst`` is -1
    net: int  # index in ``Blocks.nets``
    src: int  # the sending device, or -1 if the variable does not say
    dst: int  # the receiving device, or -1


class PlacementModel:
    """Minimise the busiest device or channel: the program for throughput, and the base of those for the other goals.

    Args:
        blocks: what is placed.
        lower_s: a lower bound that is known already.
        upper_s: worse placements are excluded. If it is equal to ``lower_s``, the program only asks whether there is a
            placement this good, which takes less time.
    """

    def __init__(self, blocks: Blocks, lower_s: float, upper_s: float) -> None:
        with loading():
            import pulp  # late: see milp

        self.pulp = pulp
        self.blocks, self.table = blocks, blocks.table
        self.scale_s = max(lower_s, upper_s / MOST_UNITS) if lower_s else upper_s
        self.upper = upper_s / self.scale_s
        self.model = pulp.LpProblem("placement", pulp.LpMinimize)
        self.busiest = self.model.add_variable("busiest", self._floor(lower_s / self.scale_s), self.upper)
        self.model += WEIGHT * self.busiest
        self.classes = interchangeable(self.table)
        self.is_on: dict[tuple[int, int], Any] = {}
        self.sendings: list[Sending] = []

    def _floor(self, lower: float) -> float:
        """A bound in units for rounded solutions too: HiGHS proves wrong bounds if one is a billionth below it."""
        return lower if lower >= self.upper else max(0.0, lower - SAFETY * max(1.0, lower) - TINY * self.blocks.n)

    @property
    def families(self) -> Sequence[Callable[[], None]]:
        """The constraints, in the order in which they are added."""
        sent = self._sent_either_way if self._compact else self._sent_by_pair
        return (self._somewhere, sent, self._devices_busy, self._channels_busy, self._memory)

    def build(self, budget: Budget) -> bool:
        """Add all constraints; False if time runs out before the end."""
        for family in self.families:
            family()
            if budget.brake_s <= 0:
                return False
        return True

    def minimise(
        self, budget: Budget, start: Placement | None, tell: Callable[[Placement], None]
    ) -> tuple[float, float]:
        """Solve the program and tell of every better placement.

        Returns:
            A bound in seconds, infinite if there is no placement; and the share of the time limit that the steps take.
        """
        values = self.start(start) if start is not None and self.expresses(start) else None
        pace = MINIMISING
        most_steps = allowance(self.model, budget.time_limit_s, pace)
        heard = self.heard(budget)
        outcome = minimise(self.model, heard, most_steps, lambda solution: tell(self.read(solution)), values, pace)
        return self.proved_s(outcome.bound), pace.share * min(1.0, outcome.steps / max(1, most_steps))

    def heard(self, budget: Budget) -> Budget:
        """Return a budget that hears of bounds on the objective in seconds."""
        upper_s = self.upper * self.scale_s
        return replace(budget, prove=lambda bound: budget.prove(min(upper_s, self.proved_s(bound))))

    def expresses(self, placement: Placement) -> bool:
        """Return whether a placement keeps the operators of each block together."""
        return self.blocks.spread(self.blocks.devices_of(placement)).device == placement.device

    def proved_s(self, bound: float) -> float:
        """The lower bound in seconds that follows from a bound on the objective; infinite if there is no solution."""
        lower = bound / WEIGHT
        all_off = max(1.0, self.upper) * (1 + len(self.is_on) + len(self.sendings))
        off = SAFETY * (max(1.0, lower) if lower >= FEW_UNITS else all_off)
        return max(0.0, lower - off) * self.scale_s if bound < inf else inf

    # --- constraints ---------------------------------------------------------------------------------------------

    def _somewhere(self) -> None:
        """sum_d on[b, d] = 1 for every block b.

        Interchangeable devices are used in the order of their numbers: the i-th heaviest block is on one of the first
        i devices of a class. No block is on a device where it alone takes longer than the upper bound.
        """
        most_s = self.upper * self.scale_s * (1 + ROUNDING)
        allowed = self.blocks.fits & (self.blocks.forward_s <= most_s)
        place = {device: number for alike in self.classes for number, device in enumerate(alike)}
        for rank, block in enumerate(self.heaviest_first):
            for device in np.flatnonzero(allowed[block]).tolist():
                if place[device] <= rank:
                    self.is_on[block, device] = self.binary(f"on_{block}_{device}")
            self.add([(v, 1.0) for v in self.on(block).values()], "==", 1.0)

    def _sent_either_way(self) -> None:
        """If all links are alike, variables for receivers and senders are enough; no pair of devices needs its own.

        ::

            in[n, d] >= on[r, d] - on[w, d]         for every reader r of net n, written by block w
            sum_s out[n, s] = sum_d in[n, d]        every copy has a sender,
            out[n, s] <= copies * on[w, s]          which is the writer's device
            out[n, s] >= on[w, s] - on[r, s]        (implied for whole numbers; it tightens the relaxation)
        """
        for number, net in enumerate(self.blocks.nets):
            copies = float(min(len(net.readers), self.table.n_devices - 1))
            ins, outs = [], []
            for device in range(self.table.n_devices):
                on_writer = self.is_on.get((net.writer, device))
                on_readers = [self.is_on[r, device] for r in net.readers if (r, device) in self.is_on]
                if on_readers:
                    ins.append(self.share(f"in_{number}_{device}", 1.0))
                    self.sendings.append(Sending(ins[-1], number, -1, device))
                for on_reader in on_readers:
                    self.add([(ins[-1], 1.0), (on_reader, -1.0), *self._term(on_writer, 1.0)], ">=", 0.0)
                if on_writer is None:
                    continue
                outs.append(self.share(f"out_{number}_{device}", copies))
                self.sendings.append(Sending(outs[-1], number, device, -1))
                self.add([(outs[-1], 1.0), (on_writer, -copies)], "<=", 0.0)
                for reader in net.readers:
                    on_reader = self._term(self.is_on.get((reader, device)), 1.0)
                    self.add([(outs[-1], 1.0), (on_writer, -1.0), *on_reader], ">=", 0.0)
            self.add([*((v, 1.0) for v in outs), *((v, -1.0) for v in ins)], "==", 0.0)

    def _sent_by_pair(self) -> None:
        """There is one variable for each net and each linked pair of devices.

        ::

            sum_s sent[n, s, d] >= on[r, d] - on[w, d]     for every reader r of net n, written by block w
            sent[n, s, d] <= on[w, s]
        """
        for number, net in enumerate(self.blocks.nets):
            sources = [s for s in range(self.table.n_devices) if (net.writer, s) in self.is_on]
            for device in range(self.table.n_devices):
                on_readers = [self.is_on[r, device] for r in net.readers if (r, device) in self.is_on]
                if not on_readers:
                    continue
                arriving = []
                for src in sources:
                    if src != device and self.table.linked[src, device]:
                        arriving.append(self.share(f"sent_{number}_{src}_{device}", 1.0))
                        self.sendings.append(Sending(arriving[-1], number, src, device))
                        self.add([(arriving[-1], 1.0), (self.is_on[net.writer, src], -1.0)], "<=", 0.0)
                on_writer = self._term(self.is_on.get((net.writer, device)), 1.0)
                for on_reader in on_readers:
                    self.add([*((v, 1.0) for v in arriving), (on_reader, -1.0), *on_writer], ">=", 0.0)

    def _devices_busy(self) -> None:
        """Computing, overheads and, without overlap, transfers: at most ``busiest`` on every device."""
        busy: list[list[tuple[Any, float]]] = [[] for _ in range(self.table.n_devices)]
        for (block, device), variable in self.is_on.items():
            busy[device].append((variable, float(self.blocks.forward_s[block, device]) / self.scale_s))
        for sending in self.sendings:
            transfer = 0.0 if self.table.overlap else self._seconds(sending)
            for device in {sending.src, sending.dst} - {-1}:
                overhead_s = float(self.table.overhead_s[device]) * len(self.blocks.nets[sending.net].flows)
                if occupied := transfer + self.units(overhead_s):
                    busy[device].append((sending.variable, occupied))
        for terms in busy:
            self.add([*terms, (self.busiest, -1.0)], "<=", 0.0)

    def _channels_busy(self) -> None:
        """Transfers: at most ``busiest`` on every channel, except where one device counts all of them anyway."""
        for channel in range(int(self.table.channel.max(initial=-1)) + 1):
            if self._counted_by_a_device(channel) or self.table.sharing == "unlimited":
                continue
            terms = [
                (sending.variable, self._seconds(sending))
                for sending in self.sendings
                if sending.dst >= 0 and (sending.src < 0 or self.table.channel[sending.src, sending.dst] == channel)
            ]
            self.add([*terms, (self.busiest, -1.0)], "<=", 0.0)

    def _memory(self) -> None:
        """sum_b n_bytes[b] * on[b, d] <= room[d], for every device d that has no room for all of its blocks."""
        for device, room in enumerate(self.blocks.room_bytes.tolist()):
            terms = [(v, float(self.blocks.n_bytes[b])) for (b, d), v in self.is_on.items() if d == device]
            if sum(n_bytes for _, n_bytes in terms) > room:
                self.add([(variable, n_bytes / room) for variable, n_bytes in terms], "<=", 1.0)

    # --- start and end -------------------------------------------------------------------------------------------

    def start(self, placement: Placement) -> Mapping[Any, float]:
        """The value of every variable for a placement."""
        device = self._canonical(self.blocks.devices_of(placement))
        values = {variable: float(device[block] == d) for (block, d), variable in self.is_on.items()}
        for variable, net, src, dst in self.sendings:
            writer, readers = self.blocks.nets[net].writer, self.blocks.nets[net].readers
            remote = {int(device[reader]) for reader in readers} - {int(device[writer])}
            if dst < 0:
                values[variable] = float(len(remote)) if device[writer] == src else 0.0
            else:
                values[variable] = float(dst in remote and src in (-1, device[writer]))
        values[self.busiest] = self.upper
        return values

    def read(self, value: Mapping[str, float]) -> Placement:
        """The placement of a solution, which maps each variable's name to its value."""
        device = []
        for block in range(self.blocks.n):
            share = {d: value[variable.name] for d, variable in self.on(block).items()}
            device.append(max(share, key=share.__getitem__))
        return self.blocks.spread(device)

    def _canonical(self, device: Ints) -> Ints:
        """The same placement with interchangeable devices in the order in which the heaviest blocks use them."""
        renamed: dict[int, int] = {}
        for alike in self.classes:
            used = dict.fromkeys(device[b] for b in self.heaviest_first if device[b] in alike)
            renamed |= dict(zip(used, alike, strict=False))
        return np.asarray([renamed[d] for d in device.tolist()])

    # --- terms and variables -------------------------------------------------------------------------------------

    @cached_property
    def heaviest_first(self) -> list[int]:
        """The blocks by falling seconds."""
        return sorted(range(self.blocks.n), key=lambda b: (-float(self.blocks.forward_s[b].min()), b))

    @cached_property
    def net_s(self) -> list[Floats]:
        """[n_devices, n_devices] for each net, its transfer times in units."""
        return [np.minimum(net.seconds(self.table) / self.scale_s, 2 * self.upper) for net in self.blocks.nets]

    def units(self, seconds: float) -> float:
        """Return the seconds of overheads or transfers in units."""
        return min(seconds / self.scale_s, 2 * self.upper)

    @property
    def _compact(self) -> bool:
        """Whether all links are alike, and no constraint needs to know which channel a transfer takes."""
        channels = set(self.table.channel[~np.eye(self.table.n_devices, dtype=bool)].tolist())
        return uniform_links(self.table) and (len(channels) == 1 or all(map(self._counted_by_a_device, channels)))

    def _counted_by_a_device(self, channel: int) -> bool:
        """Return whether some device is at an end of all links of a channel, and so counts all of its transfers."""
        ends = [set(pair) for pair in np.argwhere(self.table.channel == channel).tolist()]
        return not self.table.overlap and bool(set.intersection(*ends)) if ends else True

    def _seconds(self, sending: Sending) -> float:
        """The transfer time in units; all links are alike if the variable does not name both ends."""
        if sending.src >= 0 and sending.dst >= 0:
            return float(self.net_s[sending.net][sending.src, sending.dst])
        return float(self.net_s[sending.net][0, -1])

    def on(self, block: int) -> dict[int, Any]:
        """The variables of a block by device."""
        return {d: self.is_on[block, d] for d in range(self.table.n_devices) if (block, d) in self.is_on}

    def binary(self, name: str) -> Any:
        """A variable that is 0 or 1."""
        return self.model.add_variable(name, 0, 1, self.pulp.LpInteger)

    def share(self, name: str, most: float) -> Any:
        """A variable between 0 and ``most``."""
        return self.model.add_variable(name, 0, most)

    def add(self, terms: Sequence[tuple[Any, float]], sense: str, right: float) -> None:
        """Add a linear constraint, without the terms that are too small to matter."""
        senses = {"<=": self.pulp.LpConstraintLE, "==": self.pulp.LpConstraintEQ, ">=": self.pulp.LpConstraintGE}
        expression = self.pulp.LpAffineExpression([(v, factor) for v, factor in terms if abs(factor) >= TINY])
        self.model.addConstraint(self.pulp.LpConstraint(expression, senses[sense], rhs=right))

    def _term(self, variable: Any, factor: float) -> list[tuple[Any, float]]:
        return [] if variable is None else [(variable, factor)]


class CostModel(PlacementModel):
    """Minimise the sum of all computing, overheads and transfers."""

    @property
    def families(self) -> Sequence[Callable[[], None]]:
        """The constraints, in the order in which they are added."""
        sent = self._sent_either_way if self._compact else self._sent_by_pair
        return (self._somewhere, sent, self._all_together, self._memory)

    @property
    def _compact(self) -> bool:
        """Channels do not matter here."""
        return uniform_links(self.table)

    def _all_together(self) -> None:
        """sum over b, d of takes[b, d] * on[b, d] + sum over sendings of seconds * sent <= total."""
        terms: list[tuple[Any, float]] = [(self.busiest, -1.0)]
        for (block, device), variable in self.is_on.items():
            terms.append((variable, float(self.blocks.forward_s[block, device]) / self.scale_s))
        terms += [(sending.variable, self._cost(sending)) for sending in self.sendings]
        self.add(terms, "<=", 0.0)

    def _cost(self, sending: Sending) -> float:
        """A transfer and the overheads of its devices; if each end has a variable, each counts its own overhead."""
        flows = len(self.blocks.nets[sending.net].flows)
        overhead_s = sum(float(self.table.overhead_s[end]) for end in (sending.src, sending.dst) if end >= 0)
        sends = self._seconds(sending) if sending.dst >= 0 else 0.0
        return sends + self.units(flows * overhead_s)
