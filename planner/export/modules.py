"""The modules of a graph, as its operators name them.

::

    path          operators under it        own: those that name exactly this path
    (root)        conv1 add fc
    block         conv1 add                 add
    block.conv    conv1                     conv1
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from itertools import pairwise

from graphs.errors import InputError
from graphs.ir import Graph

ROOT = ""


def ancestors(path: str) -> tuple[str, ...]:
    """The root, every module around a path, and the path itself, outermost first."""
    parts = path.split(".") if path else []
    return tuple(".".join(parts[:depth]) for depth in range(len(parts) + 1))


@dataclass(frozen=True)
class Modules:
    """The modules of a graph."""

    graph: Graph  # whose

    @cached_property
    def under(self) -> dict[str, tuple[int, ...]]:
        """The operators under each path, ascending; paths in the order in which the model first enters them."""
        found: dict[str, list[int]] = {ROOT: []}
        for number, op in enumerate(self.graph.ops):
            for path in ancestors(op.module):
                found.setdefault(path, []).append(number)
        return {path: tuple(ops) for path, ops in found.items()}

    @cached_property
    def children(self) -> dict[str, tuple[str, ...]]:
        """The modules right under each path."""
        found: dict[str, list[str]] = {path: [] for path in self.under}
        for path in self.under:
            if path != ROOT:
                found[path.rpartition(".")[0]].append(path)
        return {path: tuple(inside) for path, inside in found.items()}

    @cached_property
    def called(self) -> frozenset[str]:
        """Paths that have operators of their own: modules that are surely called, unlike an nn.ModuleList."""
        return frozenset(op.module for op in self.graph.ops)

    def whole(self, device: Sequence[int], path: str = ROOT) -> Iterator[tuple[str, int]]:
        """The outermost modules at or under a path that are on one device each, with that device.

        Args:
            device: [n_ops], of each operator.
            path: where to begin.
        """
        homes = {device[op] for op in self.under[path]}
        if len(homes) == 1:
            yield path, homes.pop()
        else:
            for child in self.children[path]:
                yield from self.whole(device, child)

    def cover(self, ops: Collection[int], path: str = ROOT) -> list[str]:
        """Patterns for --together that name these operators and no others: whole modules, and operators."""
        wanted = [op for op in self.under[path] if op in ops]
        if path != ROOT and len(wanted) == len(self.under[path]):
            return [path]
        own = [self.graph.ops[op].name for op in wanted if self.graph.ops[op].module == path]
        inside = [pattern for child in self.children[path] for pattern in self.cover(ops, child)]
        return [*own, *inside]

    def layer(self, path: str) -> str:
        """The outermost numbered module around a path, such as ``layers.3``, which models have many of; else itself."""
        return next((around for around in ancestors(path) if around.rpartition(".")[2].isdecimal()), path)

    def one_run(self, path: str) -> bool:
        """Whether the model works through a module without doing anything else in between."""
        return all(later == earlier + 1 for earlier, later in pairwise(self.under[path]))

    def known(self, path: str) -> str:
        """The path itself.

        Raises:
            InputError: if no operator is under it.
        """
        if path not in self.under:
            close = get_close_matches(path, [known for known in self.under if known], n=3, cutoff=0.5)
            hint = f"close to it: {', '.join(close)}" if close else f"there are {', '.join(list(self.under)[1:4])}, ..."
            raise InputError(f"no operator of '{self.graph.name}' is in a module '{path}'; {hint}")
        return path


def common(one: str, other: str) -> str:
    """The innermost module around both."""
    return max(set(ancestors(one)) & set(ancestors(other)), key=len)
