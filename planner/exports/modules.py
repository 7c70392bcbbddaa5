"""The modules of a graph, as the paths of its operators name them.

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

from graphs.common.errors import InputError
from graphs.ir import Graph

ROOT = ""


def ancestors(path: str) -> tuple[str, ...]:
    """Return the root, every module around a path, and the path itself, outermost first."""
    parts = path.split(".") if path else []
    return tuple(".".join(parts[:depth]) for depth in range(len(parts) + 1))


@dataclass(frozen=True)
class Modules:
    """The modules of a graph."""

    graph: Graph

    @cached_property
    def under(self) -> dict[str, tuple[int, ...]]:
        """Path → its operators, ascending; the paths are in the order in which the model first enters them."""
        under: dict[str, list[int]] = {ROOT: []}
        for number, op in enumerate(self.graph.ops):
            for path in ancestors(op.module):
                under.setdefault(path, []).append(number)
        return {path: tuple(ops) for path, ops in under.items()}

    @cached_property
    def children(self) -> dict[str, tuple[str, ...]]:
        """Path → the modules directly in it."""
        children: dict[str, list[str]] = {path: [] for path in self.under}
        for path in self.under:
            if path != ROOT:
                children[path.rpartition(".")[0]].append(path)
        return {path: tuple(inside) for path, inside in children.items()}

    def whole(self, device: Sequence[int], path: str = ROOT) -> Iterator[tuple[str, int]]:
        """Yield the outermost modules at or under a path on a single device, with that device; device: [n_ops]."""
        homes = {device[op] for op in self.under[path]}
        if len(homes) == 1:
            yield path, homes.pop()
        else:
            for child in self.children[path]:
                yield from self.whole(device, child)

    def cover(self, ops: Collection[int], path: str = ROOT) -> list[str]:
        """Patterns for --together that match these operators and no others: names of whole modules and of operators."""
        wanted = [op for op in self.under[path] if op in ops]
        if path != ROOT and len(wanted) == len(self.under[path]):
            return [path]
        own = [self.graph.ops[op].name for op in wanted if self.graph.ops[op].module == path]
        inside = [pattern for child in self.children[path] for pattern in self.cover(ops, child)]
        return [*own, *inside]

    def layer(self, path: str) -> str:
        """Return the outermost numbered module around a path, such as ``layers.3``; the path if there is none."""
        return next((around for around in ancestors(path) if around.rpartition(".")[2].isdecimal()), path)

    def layers(self, path: str) -> list[str]:
        """Return the outermost numbered module around a path, or those in it; the path itself if there are none."""
        layer = self.layer(path)
        inside = dict.fromkeys(self.layer(inner) for inner in self.under if inner.startswith(f"{layer}."))
        return [inner for inner in inside if inner.rpartition(".")[2].isdecimal()] or [layer]

    @cached_property
    def layer_numbers(self) -> list[int]:
        """The numbers of the root's children: ascending numbers as nn.Sequential names them, else their positions."""
        children = self.children[ROOT]
        named = [int(name) for name in children if name.isdecimal()]
        ascending = all(earlier < later for earlier, later in pairwise(named))
        return named if len(named) == len(children) and ascending else list(range(len(children)))

    def known(self, path: str) -> str:
        """Return the path itself. Raise InputError if no operator is under it."""
        if path not in self.under:
            close = get_close_matches(path, list(self.under)[1:], n=3, cutoff=0.5)
            hint = f"close to it: {', '.join(close)}" if close else f"there are {', '.join(list(self.under)[1:4])}, ..."
            raise InputError(f"no operator of '{self.graph.name}' is in a module '{path}'; {hint}")
        return path
