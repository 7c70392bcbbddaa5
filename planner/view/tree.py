"""The tree of groups in which a reader opens and closes a network: its modules, without the levels that say nothing.

::

    conv1.conv, conv1.bn            conv1            a module with several operators: a group
    model.layer.0.linear            model.layer      one module inside another and nothing else: one group
    model.layer.1.linear              0.linear       one operator in a module: the operator itself, with its path
    pool                            pool
    act, then conv2, then act       act conv2 act    a module that is called again with what came out of it: a group
                                                     for each call, so that groups do not need each other in circles
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from typing import TypeAlias

from graphs.ir import Graph

ROOT = -1
LONG = 120  # more members than this are cut into blocks: nobody reads such a list
BLOCKS = 48  # at most, at one level

Path: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """What can be opened and closed."""

    label: str  # what stands on it; unique among its siblings only by chance
    path: str  # module path; for a block that of the module around it
    parent: int  # index of the group around it, `ROOT` for none. Parents come before children


@dataclass(frozen=True, slots=True)
class Tree:
    """Groups and where the operators hang."""

    groups: tuple[Group, ...]  # parents before children
    parent: tuple[int, ...]  # [n_ops], index of the innermost group, or `ROOT`
    labels: tuple[str, ...]  # [n_ops], what stands on the operator inside its group


@dataclass(frozen=True, slots=True)
class _ModulePart:
    """Operators of a module, ascending; all of them, or those of some calls."""

    path: Path
    ops: list[int]


@dataclass(frozen=True, slots=True)
class _Block:
    """Consecutive members of something too long to read."""

    path: Path
    members: "Sequence[_Member]"


_Member: TypeAlias = "tuple[int, str] | _ModulePart | _Block"
"""An operator with its label, or what holds several."""


def group_tree(graph: Graph) -> Tree:
    """The groups of a graph by module path; long lists of members are cut into blocks of consecutive ones."""
    builder = _Builder(graph)
    groups: list[Group] = []
    parent = [ROOT] * len(graph.ops)
    labels = [op.name for op in graph.ops]
    pending: list[tuple[_ModulePart | _Block, int]] = [(builder.whole(), ROOT)]  # a stack: modules may be nested deeply
    while pending:
        outer, number = pending.pop()
        for member in _blocks(outer.path, builder.members(outer)):
            if isinstance(member, tuple):
                index, label = member
                parent[index], labels[index] = number, label
            else:
                pending.append((member, len(groups)))
                groups.append(Group(_label(member, len(outer.path)), ".".join(member.path), number))
    return Tree(tuple(groups), tuple(parent), tuple(labels))


class _Builder:
    """Takes modules apart, one level at a time."""

    def __init__(self, graph: Graph) -> None:
        self.names = [op.name for op in graph.ops]
        self.paths: list[Path] = [tuple(op.module.split(".")) if op.module else () for op in graph.ops]
        self.writers: list[list[int]] = [[] for _ in graph.ops]
        for writer, reader in graph.edges:
            self.writers[reader].append(writer)

    def whole(self) -> _ModulePart:
        """All operators."""
        return self._skip(_ModulePart((), list(range(len(self.names)))))

    def members(self, outer: _ModulePart | _Block) -> list[_Member]:
        """What stands directly inside, in the order of the first operators."""
        if isinstance(outer, _Block):
            return list(outer.members)
        depth = len(outer.path)
        inner: dict[str, list[int]] = {}
        found: list[tuple[int, _Member]] = []
        for op in outer.ops:
            if len(self.paths[op]) == depth:
                found.append((op, (op, self.names[op])))
            else:
                inner.setdefault(self.paths[op][depth], []).append(op)
        for name, ops in inner.items():
            for call in self._calls(outer.ops, ops):
                part = self._skip(_ModulePart((*outer.path, name), call))
                sole = (call[0], _relative(self.paths[call[0]], depth))
                found.append((call[0], sole if len(call) == 1 else part))
        return [member for _, member in sorted(found, key=lambda pair: pair[0])]

    def _skip(self, part: _ModulePart) -> _ModulePart:
        """The innermost module around the same operators."""
        while True:
            depth = len(part.path)
            names = {self.paths[op][depth : depth + 1] for op in part.ops}
            if len(names) != 1 or names == {()}:
                return part
            part = _ModulePart((*part.path, *names.pop()), part.ops)

    def _calls(self, around: list[int], ops: list[int]) -> Iterator[list[int]]:
        """Cut operators where one needs what others around them made of an earlier one."""
        inside = set(ops)
        call: list[int] = []
        members: set[int] = set()
        followers: set[int] = set()  # others that need a member
        for op in around[bisect_left(around, ops[0]) :]:
            follows = not followers.isdisjoint(self.writers[op])
            if op in inside:
                if follows:
                    yield call
                    call, members, followers = [], set(), set()
                call.append(op)
                members.add(op)
            elif follows or not members.isdisjoint(self.writers[op]):
                followers.add(op)
            if op == ops[-1]:
                break
        yield call


def _blocks(path: Path, members: list[_Member]) -> Iterator[_Member]:
    if len(members) <= LONG:
        yield from members
        return
    size = ceil(len(members) / min(BLOCKS, ceil(sqrt(len(members)))))
    for start in range(0, len(members), size):
        yield _Block(path, members[start : start + size])


def _label(member: _ModulePart | _Block, depth: int) -> str:
    if isinstance(member, _ModulePart):
        return _relative(member.path, depth)
    first = member.members[0]
    return f"{first[1] if isinstance(first, tuple) else _label(first, depth)} …"


def _relative(path: Path, depth: int) -> str:
    """The path below the module at this depth; a mere number takes the name of its list along."""
    start = depth - 1 if depth and path[depth].isdigit() else depth
    return ".".join(path[start:])
