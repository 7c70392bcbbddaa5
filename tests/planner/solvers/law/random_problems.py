"""Random small problems of every kind, each the same for the same seed.

What makes proofs wrong is mixed at random: several hosts or none, devices alike and not, operators that some devices
cannot run, groups, memory that binds, times, tensors and links of 0 or ten billion times as long as others, missing
links, contiguous operators, slowdown.
"""

from collections.abc import Callable, Mapping, Sequence
from math import inf
from random import Random
from types import MappingProxyType
from typing import Any

import numpy as np

from costmodels.step_update import StepUpdate
from costmodels.table import CostTable
from planner.literature.placement.offload import Offload
from planner.literature.placement.public_format import problem_from_dict
from planner.problem.problem import Goal, Problem
from simulator.training import TrainingStep
from tests.costmodels.parts import table_with
from tests.planner.literature.placement.offloads import with_offload
from tests.planner.problem.problems import make_table
from tests.planner.solvers.law.step import ONE_STAGE_EACH

PALETTES = (
    (0.0, 1.0, 2.0, 3.0),
    (1.0, 2.0, 3.0, 5.0, 8.0),
    (0.0, 0.5, 1.0, 4.0, 20.0),
    (0.25, 3.0, 6.0),
    (0.0, 0.0, 0.0, 1.0, 100.0),
    (0.0, 1e-6, 1.0, 1e3),
    (1e-7, 2e-7, 5.0, 1e4),
)
MOST_OPS = 7
DEAR = (0.2, 1.0, 1.0, 5.0, 20.0)  # transfers through a host beside what operators take


def random_problem(kind: str, seed: int) -> Problem:
    """The problem of a kind with this seed."""
    return KINDS[kind](Random(f"{kind} {seed}"))


class _Dice:
    """What is drawn for one problem.

    Attributes:
        random: the dice.
        n: operators.
        k: devices.
        palette: seconds.
    """

    def __init__(self, random: Random, most_placements: int, most_ops: int = MOST_OPS) -> None:
        self.random = random
        self.k = random.choice((1, 2, 2, 2, 3, 3, 3, 4, 5))
        fit = [n for n in range(1, most_ops + 1) if self.k**n <= most_placements]
        self.n = random.choice(fit[-4:])
        self.palette = random.choice(PALETTES)

    def chance(self, share: float) -> bool:
        """True in this share of all cases."""
        return self.random.random() < share

    def seconds(self) -> float:
        """One of the palette's."""
        return self.random.choice(self.palette)

    def forward_s(self) -> list[list[float]]:
        """[n, k]: kinds of devices alike, and operators that some of them cannot run."""
        kind = [self.random.randrange(self.random.randint(1, self.k)) for _ in range(self.k)]
        slower = [self.random.choice((1.0, 1.0, 2.0, 3.0)) for _ in range(self.k)]
        related, barred = self.chance(0.4), self.random.choice((0.0, 0.0, 0.1, 0.3, 0.6))
        rows = []
        for _ in range(self.n):
            seconds, each = self.seconds(), [self.seconds() for _ in range(self.k)]
            row = [seconds * slower[group] if related else each[group] for group in kind]
            cannot = [self.chance(barred) for _ in range(self.k)]
            rows.append([inf if cannot[group] else s for group, s in zip(kind, row, strict=True)])
            if min(rows[-1]) == inf:
                rows[-1] = row
        return rows

    def flows(self) -> list[tuple[int, tuple[int, ...], float]]:
        """Tensors with one reader or several, from no operator to two from each; some have no bytes."""
        many, readers = self.random.choice((0.5, 0.9, 1.4)), self.random.choice((1, 1, 2, 3))
        found = []
        for writer in range(self.n - 1):
            for _ in range(int(many + self.random.random())):
                last = self.n if self.chance(0.5) else min(self.n, writer + 3)
                ends = {self.random.randrange(writer + 1, last) for _ in range(self.random.randint(1, readers))}
                twice = tuple(ends)[:1] if self.chance(0.1) else ()  # an operator may read a tensor twice
                found.append((writer, tuple(sorted([*ends, *twice])), self.seconds()))
        return found

    def memory(self) -> dict[str, Any]:
        """Bytes of the operators, and room that mostly does not bind, but often enough does."""
        op_bytes = [float(self.random.choice((0, 1, 1, 2, 3, 5))) for _ in range(self.n)]
        if self.chance(0.6):
            return {"op_bytes": op_bytes, "capacity_bytes": [inf] * self.k}
        total = sum(op_bytes)
        room = [float(self.random.choice((4, total / 2 + 1, total / 2 + 3, total))) for _ in range(self.k)]
        if self.chance(0.5):
            room = room[:1] * self.k
        working_bytes = float(self.random.choice((0, 0, 1, 2)))
        return {"op_bytes": op_bytes, "capacity_bytes": room, "working_bytes": working_bytes}

    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Operators that must share a device: none, or one or two groups, which may overlap."""
        if self.n < 2 or self.chance(0.6):
            return ()
        return tuple(
            tuple(sorted(self.random.sample(range(self.n), self.random.randint(2, min(3, self.n)))))
            for _ in range(self.random.randint(1, 2))
        )

    def links(self) -> dict[str, Any]:
        """All links alike, or each with its own speed or missing; channels, overhead, overlap and sharing."""
        uniform, missing = self.chance(0.6), self.random.choice((0.0, 0.0, 0.15))
        link_s: Any = self.random.choice((0.0, 0.0, 1.0))
        per_byte: Any = self.random.choice((0.0, 0.5, 1.0))
        if not uniform:
            pick = self.random.choice
            link_s = [[inf if self.chance(missing) else pick((0.0, 1.0)) for _ in range(self.k)] for _ in range(self.k)]
            per_byte = [[pick((0.0, 0.5, 1.0)) for _ in range(self.k)] for _ in range(self.k)]
        overhead_s = [self.random.choice((0.5, 1.0))] * self.k
        if self.chance(0.5):
            overhead_s = [self.random.choice((0.0, 0.5, 2.0)) for _ in range(self.k)]
        return {
            "link_s": link_s,
            "per_byte": per_byte,
            "overhead_s": overhead_s if self.chance(0.4) else [0.0] * self.k,
            "channel": self.random.choice(("pair", "pair", "bus")),
            "overlap": self.chance(0.5),
            "sharing": self.random.choice(("fifo", "fifo", "fair", "unlimited")),
        }

    def slowdown(self) -> dict[str, Any]:
        """None as a rule; else what others slow a device down by, up to threefold, or even speed it up by."""
        if self.chance(0.75):
            return {}
        shares = self.random.choice(((0.0, 0.25, 1.0), (1.0,), (0.0, 3.0), (-0.5, 0.0, 0.5)))
        slowdown = [[self.random.choice(shares) for _ in range(self.k)] for _ in range(self.n)]
        contention_group = np.array([self.random.randrange(2) for _ in range(self.k)])
        return {"slowdown": np.array(slowdown)} | ({"contention_group": contention_group} if self.chance(0.5) else {})


def _direct(dice: _Dice) -> CostTable:
    """Devices that send to each other."""
    fields = dice.memory() | dice.links() | dice.slowdown()
    return make_table(dice.forward_s(), dice.flows(), together=dice.groups(), **fields)


def _beside(dice: _Dice) -> CostTable:
    """Any number of accelerators and hosts: some are like each other, some pay and some do not."""
    table = make_table(dice.forward_s(), dice.flows(), together=dice.groups(), overlap=False, **dice.memory())
    random, shape = dice.random, (len(table.flows), dice.k)
    n_hosts = random.choice((0, 1, 1, 2, 2, dice.k))
    host, dear = np.arange(dice.k) >= dice.k - n_hosts, random.choice(DEAR)

    def drawn() -> Any:
        each = np.array([[dice.seconds() for _ in range(dice.k)] for _ in table.flows]).reshape(shape) * dear
        return each if dice.chance(0.3) else np.broadcast_to(each[:, :1], shape)

    store_s = drawn()
    fetch_s = store_s if dice.chance(0.6) else drawn()
    pays = ~host if dice.chance(0.8) else np.array([dice.chance(0.6) for _ in range(dice.k)])
    return with_offload(table, Offload(np.where(pays, store_s, 0.0), np.where(pays, fetch_s, 0.0), host))


def _public(dice: _Dice, goal: Goal) -> Problem:
    """A problem in the public format: accelerators alike, CPUs alike and with any amount of memory."""
    random = dice.random
    n_cpus = random.choice((0, 1, 2, 2, 3))
    accelerators = max(dice.k - n_cpus, 0 if n_cpus else 1)
    n_cpus = min(n_cpus, dice.k)
    dear = random.choice(DEAR)
    cost = [dice.seconds() * dear for _ in range(dice.n)]
    barred = 0.2 if n_cpus and dice.chance(0.5) else 0.0
    nodes = [
        {
            "id": op,
            "supportedOnFpga": int(not dice.chance(barred)),
            "cpuLatency": dice.seconds() * random.choice((0.5, 1, 1, 5)),
            "fpgaLatency": dice.seconds(),
            "isBackwardNode": int(op * 2 > dice.n and dice.chance(0.3)),
            "size": random.choice((0, 1, 2, 3)),
        }
        | ({"colorClass": random.randrange(3)} if dice.chance(0.2) else {})
        for op in range(dice.n)
    ]
    edges = [
        {"sourceId": writer, "destId": reader, "cost": cost[writer]}
        for writer, readers, _ in dice.flows()
        for reader in readers
    ]
    devices = {"maxFPGAs": accelerators, "maxCPUs": n_cpus, "maxSizePerFPGA": random.choice((3, 6, 100))}
    contiguous = goal is Goal.THROUGHPUT and dice.chance(0.3)
    return problem_from_dict(devices | {"nodes": nodes, "edges": edges}, goal, contiguous).problem


def _contiguous(dice: _Dice, drawn: Callable[[_Dice], CostTable]) -> Problem:
    """All operators contiguous, or some."""
    table = drawn(dice)
    inside = range(dice.n) if dice.chance(0.6) else dice.random.sample(range(dice.n), dice.random.randint(1, dice.n))
    goal = dice.random.choice((Goal.THROUGHPUT, Goal.THROUGHPUT, Goal.THROUGHPUT, Goal.COST))
    return Problem(table, goal, frozenset(inside))


def _training(dice: _Dice) -> Problem:
    """A step under a schedule with one stage a device; memory by the micro-batch, perhaps an optimizer."""
    table, random = _direct(dice), dice.random

    def some(values: Sequence[float]) -> Any:
        return np.array([random.choice(values) for _ in range(dice.n)])

    saved_bytes, ones = some((0.0, 1.0, 2.0)), np.ones(dice.k)
    forward_s = table.forward_s
    table = table_with(
        table,
        backward_s=np.where(np.isfinite(forward_s), random.choice((1.0, 2.0)) * forward_s, 0.0),
        saved_bytes=saved_bytes,
        ends_bytes=np.minimum(some((0.0, 1.0)), saved_bytes),
        held=random.choice((0.0, 1.0)),
        gradient=np.array([dice.chance(0.8) for _ in table.flows], dtype=bool),
        update=StepUpdate(
            some((0.0, 1.0, 4.0)),
            ones * dice.seconds(),
            ones * 0.5,
            ones * random.choice((0.0, 1.0)),
            np.array([random.choice((0, device)) for device in range(dice.k)]),
        )
        if dice.chance(0.5)
        else None,
    )
    step = TrainingStep(random.choice(ONE_STAGE_EACH), random.randint(1, 3), "full" if dice.chance(0.3) else "none")
    return Problem(table, Goal.TRAINING, step=step)


KINDS: Mapping[str, Callable[[Random], Problem]] = MappingProxyType(
    {
        "throughput": lambda random: Problem(_direct(_Dice(random, 800)), Goal.THROUGHPUT),
        "throughput beside a host": lambda random: Problem(_beside(_Dice(random, 600)), Goal.THROUGHPUT),
        "public throughput": lambda random: _public(_Dice(random, 1500), Goal.THROUGHPUT),
        "cost": lambda random: Problem(_direct(_Dice(random, 300)), Goal.COST),
        "cost beside a host": lambda random: Problem(_beside(_Dice(random, 600)), Goal.COST),
        "latency": lambda random: Problem(_direct(_Dice(random, 64, most_ops=5)), Goal.LATENCY),
        "latency beside a host": lambda random: Problem(_beside(_Dice(random, 300)), Goal.LATENCY),
        "public latency": lambda random: _public(_Dice(random, 300), Goal.LATENCY),
        "contiguous": lambda random: _contiguous(_Dice(random, 300), _direct),
        "contiguous beside a host": lambda random: _contiguous(_Dice(random, 600), _beside),
        "training": lambda random: _training(_Dice(random, 32, most_ops=5)),
    }
)
"""What there is to solve, by name."""
