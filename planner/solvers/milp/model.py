"""The integer program that both goals share: where every block is, what is sent, and how busy everything is.

Times are in units of ``scale_s``, so that the objective is a little more than 1, or at most `MOST_UNITS`; a transfer
that takes longer than any placement of interest counts as twice as long as that.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from math import inf
from typing import Any, NamedTuple

import numpy as np

from costmodels.table import Floats, Ints
from planner.problem.blocks import Blocks
from planner.solvers.base import Budget
from planner.solvers.devices import interchangeable, uniform_links
from planner.solvers.milp.highs import MINIMISING, SAFETY, allowance, minimise
from simulator.placement import Placement

ROUNDING = 1e-9  # relative
TINY = 1e-7  # in units, what is too short to matter; HiGHS keeps no coefficient below 1e-9
WEIGHT = 2.0**20  # of a unit in the objective: HiGHS may take one that is constant after presolving for a whole number
MOST_UNITS = 1e2  # solvers of integer programs lose what is much smaller than the largest number


class Sending(NamedTuple):
    """A variable of the model that stands for (part of) a transfer, and what it keeps busy."""

    variable: Any  # 1 if it happens; the number of copies for ``src`` alone
    net: int  # index in ``Blocks.nets``
    src: int  # the sending device, or -1 if the variable does not say
    dst: int  # the receiving device, or -1


class PlacementModel:
    """Minimise the busiest device or channel: the program for throughput, and the frame of those for the other goals.

    Args:
        blocks: what is placed.
        lower_s: a bound that holds already.
        upper_s: only placements that are at least this good are of interest; equal to ``lower_s`` it makes the
            program ask whether there is any placement that good, which is quicker to answer.
    """

    def __init__(self, blocks: Blocks, lower_s: float, upper_s: float) -> None:
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
        """Units that no solution is below, though rounded: where one is, by a billionth, HiGHS proves wrong things."""
        return lower if lower >= self.upper else max(0.0, lower - SAFETY * max(1.0, lower) - TINY * self.blocks.n)

    @property
    def families(self) -> Sequence[Callable[[], None]]:
        """The constraints, in the order in which they are added."""
        sent = self._sent_either_way if self._compact else self._sent_by_pair
        return (self._somewhere, sent, self._devices_busy, self._channels_busy, self._memory)

    def build(self, budget: Budget) -> bool:
        """Write the model down; False if time ran out on the way."""
        for family in self.families:
            family()
            if budget.left_s <= 0:
                return False
        return True

    def minimise(
        self, budget: Budget, start: Placement | None, tell: Callable[[Placement], None]
    ) -> tuple[float, float]:
        """Tell of every better placement.

        Returns:
            A bound in seconds, infinite if there is no placement; and the share of the time limit that the steps take.
        """
        known = start is not None and self.blocks.spread(self.blocks.devices_of(start)).device == start.device
        values = self.start(start) if start and known else None
        most_steps = allowance(self.model, budget.time_limit_s)
        found = minimise(self.model, budget, most_steps, lambda solution: tell(self.read(solution)), values)
        return self.proved_s(found.bound), MINIMISING.share * min(1.0, found.steps / max(1, most_steps))

    def proved_s(self, bound: float) -> float:
        """What is proved in seconds if no objective is below a bound, infinite if there is no solution."""
        lower = bound / WEIGHT
        return max(0.0, lower - SAFETY * max(1.0, lower)) * self.scale_s if bound < inf else inf

    # --- constraints ---------------------------------------------------------------------------------------------

    def _somewhere(self) -> None:
        """sum_d on[b, d] = 1 for every block b.

        Interchangeable devices are numbered as they come into use: the i-th heaviest block cannot be on a later
        one than the i-th of its class. No block is where it takes longer than the upper bound on its own.
        """
        most_s = self.upper * self.scale_s * (1 + ROUNDING)
        allowed = self.blocks.fits & (self.blocks.forward_s <= most_s)
        place = {device: number for known in self.classes for number, device in enumerate(known)}
        for rank, block in enumerate(self.heaviest_first):
            for device in np.flatnonzero(allowed[block]).tolist():
                if place[device] <= rank:
                    self.is_on[block, device] = self.binary(f"on_{block}_{device}")
            self.add([(v, 1.0) for v in self.on(block).values()], "==", 1.0)

    def _sent_either_way(self) -> None:
        """With links all alike it is enough to know who receives and who sends, not from whom and to whom.

        ::

            in[n, d] >= on[r, d] - on[w, d]         for every reader r of net n, written by block w
            sum_s out[n, s] = sum_d in[n, d]        every copy has a sender,
            out[n, s] <= copies * on[w, s]          who has the writer
            out[n, s] >= on[w, s] - on[r, s]        (implied for whole numbers; helps the relaxation)
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
                    here = self._term(self.is_on.get((reader, device)), 1.0)
                    self.add([(outs[-1], 1.0), (on_writer, -1.0), *here], ">=", 0.0)
            self.add([*((v, 1.0) for v in outs), *((v, -1.0) for v in ins)], "==", 0.0)

    def _sent_by_pair(self) -> None:
        """One variable for each net and linked pair of devices.

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
                here = self._term(self.is_on.get((net.writer, device)), 1.0)
                for on_reader in on_readers:
                    self.add([*((v, 1.0) for v in arriving), (on_reader, -1.0), *here], ">=", 0.0)

    def _devices_busy(self) -> None:
        """Computing, handing over and, without overlap, the transfers: at most ``busiest`` on every device."""
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
        """At most ``busiest`` on every channel, unless it is the affair of one device that counts it anyway."""
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
        """What is placed on a device has room there."""
        for device, room in enumerate(self.blocks.room_bytes.tolist()):
            here = [(v, float(self.blocks.n_bytes[b])) for (b, d), v in self.is_on.items() if d == device]
            if sum(n_bytes for _, n_bytes in here) > room:
                self.add([(variable, n_bytes / room) for variable, n_bytes in here], "<=", 1.0)

    # --- start and end -------------------------------------------------------------------------------------------

    def start(self, placement: Placement) -> Mapping[Any, float]:
        """The value of every variable for a placement."""
        device = self._canonical(self.blocks.devices_of(placement))
        values = {variable: float(device[block] == d) for (block, d), variable in self.is_on.items()}
        for variable, net, src, dst in self.sendings:
            writer, readers = self.blocks.nets[net].writer, self.blocks.nets[net].readers
            there = {int(device[reader]) for reader in readers} - {int(device[writer])}
            if dst < 0:
                values[variable] = float(len(there)) if device[writer] == src else 0.0
            else:
                values[variable] = float(dst in there and src in (-1, device[writer]))
        values[self.busiest] = self.upper
        return values

    def read(self, value: Mapping[str, float]) -> Placement:
        """The placement of a solution, which is a value for each variable's name."""
        device = []
        for block in range(self.blocks.n):
            share = {d: value[variable.name] for d, variable in self.on(block).items()}
            device.append(max(share, key=share.__getitem__))
        return self.blocks.spread(device)

    def _canonical(self, device: Ints) -> Ints:
        """The same placement with interchangeable devices in the order in which the heaviest blocks use them."""
        new_name: dict[int, int] = {}
        for known in self.classes:
            used = dict.fromkeys(device[b] for b in self.heaviest_first if device[b] in known)
            new_name |= dict(zip(used, known, strict=False))
        return np.asarray([new_name[d] for d in device.tolist()])

    # --- words ---------------------------------------------------------------------------------------------------

    @cached_property
    def heaviest_first(self) -> list[int]:
        """The blocks by falling time."""
        return sorted(range(self.blocks.n), key=lambda b: (-float(self.blocks.forward_s[b].min()), b))

    @cached_property
    def net_s(self) -> list[Floats]:
        """[n_devices, n_devices] for each net, in units."""
        return [np.minimum(net.seconds(self.table) / self.scale_s, 2 * self.upper) for net in self.blocks.nets]

    def units(self, seconds: float) -> float:
        """Seconds of handing over, or of transfers, in units."""
        return min(seconds / self.scale_s, 2 * self.upper)

    @property
    def _compact(self) -> bool:
        """Whether links are alike and no channel has to be told from another one."""
        between = self.table.channel[~np.eye(self.table.n_devices, dtype=bool)]
        told = (c for c in set(between.tolist()) if not self._counted_by_a_device(c))
        return uniform_links(self.table) and (not any(True for _ in told) or len(set(between.tolist())) == 1)

    def _counted_by_a_device(self, channel: int) -> bool:
        """Whether some device is at an end of all links of the channel, and counts their transfers as its own."""
        ends = [set(pair) for pair in np.argwhere(self.table.channel == channel).tolist()]
        return not self.table.overlap and bool(set.intersection(*ends)) if ends else True

    def _seconds(self, sending: Sending) -> float:
        """What a transfer takes; links are all alike where the variable does not say which one."""
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
        """A linear constraint, without what is too short to matter."""
        senses = {"<=": self.pulp.LpConstraintLE, "==": self.pulp.LpConstraintEQ, ">=": self.pulp.LpConstraintGE}
        expression = self.pulp.LpAffineExpression([(v, factor) for v, factor in terms if abs(factor) >= TINY])
        self.model.addConstraint(self.pulp.LpConstraint(expression, senses[sense], rhs=right))

    def _term(self, variable: Any, factor: float) -> list[tuple[Any, float]]:
        return [] if variable is None else [(variable, factor)]
