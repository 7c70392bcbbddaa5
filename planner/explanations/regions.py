"""Regions: a set of operators in words, by the modules that hold them.

::

    conv1 [d0]                          d0 holds  conv1, block: left, relu (2 of 3 operators of norm)
    block   left [d0]  right [d1]       d1 holds  block.right – head
    head    linear [d1]  softmax [d1]
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import isclose
from typing import NamedTuple

from graphs.ir import Graph

EVERYTHING = "everything"
LARGE = 1 / 3  # a part with a larger share is divided: a single line "encoder 98 %" would not help
ALIKE = 1e-6  # relative difference of the times of layers that are alike
MANY = 6  # the most regions that describe a set of operators, if that is enough


@dataclass(frozen=True, slots=True)
class Region:
    """Operators of one module, or of several that stand next to each other."""

    first: str  # path of the first module; an operator of a module with several is ``module:operator``
    last: str  # path of the last module
    n_ops: int  # operators in the set
    n_of: int  # operators from the first to the last module

    def __str__(self) -> str:
        """Return the region in words: "conv1", "layer.0 – 3", "norm (2 of 3)"."""
        text = self.first or EVERYTHING
        if self.last != self.first:
            around = max(self.first.rfind("."), self.first.rfind(":"))
            shared = around > 0 and self.last.startswith(self.first[:around])
            text = f"{self.first} – {self.last[around + 1 :] if shared else self.last}"
        return text if self.n_ops == self.n_of else f"{self.first or 'operators'} ({self.n_ops:,} of {self.n_of:,})"


@dataclass(frozen=True, slots=True)
class TimeShare:
    """A share of some seconds."""

    name: str  # path of a module, or of the first and the last of several alike; or another use of time
    seconds: float
    share: float  # of the whole, 0 to 1
    n_ops: int
    alike: int = 1  # number of consecutive modules with equally many operators that take equally long


@dataclass(frozen=True, slots=True)
class _Module:
    """A module, or one operator of a module with several."""

    name: str  # for people
    ops: tuple[int, ...]  # all operators in it, ascending
    around: str = ""  # name of the parent module
    number: int = 0  # position in the parent module

    def follows(self, before: "_Module") -> bool:
        """Return whether this module directly follows another one in the same parent."""
        return (self.around, self.number) == (before.around, before.number + 1)


class _ModuleShare(NamedTuple):
    """The seconds of some operators of one module."""

    module: _Module
    seconds: float
    n_ops: int

    def is_like(self, before: "_ModuleShare") -> bool:
        """Return whether this module directly follows another one, with as many operators and the same time."""
        alike = self.n_ops == before.n_ops and isclose(self.seconds, before.seconds, rel_tol=ALIKE)
        return alike and self.module.follows(before.module)


def regions(graph: Graph, ops: Iterable[int], limit: int = MANY) -> tuple[Region, ...]:
    """Describe a set of operators by modules at the least depth that separates them from the others.

    A module that is only partly in the set is divided into its children, the largest first, as long as there are at
    most ``limit`` regions; an undivided one says how many of its operators are in the set. Consecutive whole modules
    become a range.
    """
    chosen = frozenset(ops)
    if not chosen:
        return ()
    shown = [_Module("", tuple(range(len(graph.ops))))]
    closed: set[_Module] = set()
    while True:
        partial = [module for module in shown if module not in closed and not chosen.issuperset(module.ops)]
        if not partial:
            return tuple(_merge(shown, chosen))
        module = max(partial, key=lambda module: len(chosen.intersection(module.ops)))
        inside = [inner for inner in _inside(graph, module) if not chosen.isdisjoint(inner.ops)]
        at = shown.index(module)
        divided = [*shown[:at], *inside, *shown[at + 1 :]]
        if len(shown) == 1 or sum(1 for _ in _merge(divided, chosen)) <= limit:
            shown = divided
        else:
            closed.add(module)


def parts(graph: Graph, seconds: Mapping[int, float]) -> tuple[TimeShare, ...]:
    """Divide the seconds of some operators by module, the largest part first.

    A module with more than `LARGE` of all seconds is divided into its children. Then consecutive modules that are
    alike, such as the layers of a transformer, become one part. ``seconds`` are given by the indices of operators.
    """
    total_s = sum(seconds.values())
    pending = [_Module("", tuple(range(len(graph.ops))))]
    runs: list[list[_ModuleShare]] = []
    while pending:
        module = pending.pop()
        mine = [seconds[op] for op in module.ops if op in seconds]
        share = _ModuleShare(module, sum(mine), len(mine))
        if share.seconds > LARGE * total_s and (inside := _inside(graph, module)):
            pending += reversed(inside)
        elif mine and runs and share.is_like(runs[-1][-1]):
            runs[-1].append(share)
        elif mine:
            runs.append([share])
    shares = []
    for run in runs:
        run_s, n_ops = sum(share.seconds for share in run), sum(share.n_ops for share in run)
        name = str(_region([share.module for share in run]))
        shares.append(TimeShare(name, run_s, run_s / total_s if total_s else 0.0, n_ops, len(run)))
    return tuple(sorted(shares, key=lambda part: -part.seconds))


def _inside(graph: Graph, module: _Module) -> tuple[_Module, ...]:
    """Return the modules and operators directly in a module, by their first operators; empty for an operator."""
    if len(module.ops) == 1:
        return ()
    members: dict[str, list[int]] = {}
    for op in module.ops:
        below = graph.ops[op].module.removeprefix(module.name).removeprefix(".").partition(".")[0]
        mark, name = (".", below) if below else (":", graph.ops[op].name)
        members.setdefault(f"{mark}{name}", []).append(op)
    return tuple(
        _Module(f"{module.name}{name}" if module.name else name[1:], tuple(ops), module.name, number)
        for number, (name, ops) in enumerate(members.items())
    )


def _merge(modules: list[_Module], chosen: Collection[int]) -> Iterator[Region]:
    """Yield the regions of some modules; consecutive whole modules of one parent become one region."""
    run: list[_Module] = []
    for module in modules:
        n_ops = sum(op in chosen for op in module.ops)
        whole = n_ops == len(module.ops)
        if run and not (whole and module.follows(run[-1])):
            yield _region(run)
            run = []
        if whole:
            run.append(module)
        else:
            yield Region(module.name, module.name, n_ops, len(module.ops))
    if run:
        yield _region(run)


def _region(run: list[_Module]) -> Region:
    n_ops = sum(len(module.ops) for module in run)
    return Region(run[0].name, run[-1].name, n_ops, n_ops)
