"""The tree of groups that a reader of the page opens and closes: the modules of a network, without useless levels.

::

    conv1.conv, conv1.bn            conv1            a module with several operators: a group
    model.layer.0.linear            model.layer      one module inside another and nothing else: one group
    model.layer.1.linear              0.linear       one operator in a module: the operator itself, with its path
    pool                            pool
    act, then conv2, then act       act conv2 act    a module that is called again with its own results: a group for
                                                     each call, so that groups do not depend on each other in circles
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, sqrt
from typing import TypeAlias

from graphs.ir import Graph

ROOT = -1
LONG = 120  # members of a group; a longer list is hard to read, so it is cut into blocks
BLOCKS = 48  # at one level, at most

Path: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """A node of the tree that can be opened and closed."""

    label: str  # not necessarily unique among its siblings
    path: str  # of the module; of the parent module for a block
    parent: int  # index of the parent group, or `ROOT`


@dataclass(frozen=True, slots=True)
class Tree:
    """Groups, and the operators in them."""

    groups: tuple[Group, ...]  # parents before children
    parent: tuple[int, ...]  # [n_ops], index of the innermost group, or `ROOT`
    labels: tuple[str, ...]  # [n_ops], the operator's name in its group


@dataclass(frozen=True, slots=True)
class _ModulePart:
    """All operators of a module, or those of some calls."""

    path: Path
    ops: list[int]  # ascending


_Member: TypeAlias = tuple[int, str] | _ModulePart
"""An operator with its label, or a group."""


def group_tree(graph: Graph) -> Tree:
    """The groups of a graph by module path; long lists of members are cut into blocks of consecutive ones."""
    builder = _Builder(graph)
    groups: list[Group] = []
    parent = [ROOT] * len(graph.ops)
    labels = [op.name for op in graph.ops]
    whole = builder.skip(_ModulePart((), list(range(len(graph.ops)))))
    pending = [(builder.members(whole), whole.path, ROOT)]  # a stack: modules may be nested deeply
    while pending:
        members, path, number = pending.pop()
        if len(members) > LONG:
            size = ceil(len(members) / min(BLOCKS, ceil(sqrt(len(members)))))
            for start in range(0, len(members), size):
                pending.append((members[start : start + size], path, len(groups)))
                groups.append(Group(f"{_label(members[start], len(path))} …", ".".join(path), number))
            continue
        for member in members:
            if isinstance(member, tuple):
                index, label = member
                parent[index], labels[index] = number, label
            else:
                pending.append((builder.members(member), member.path, len(groups)))
                groups.append(Group(_label(member, len(path)), ".".join(member.path), number))
    return Tree(tuple(groups), tuple(parent), tuple(labels))


class _Builder:
    """Takes modules apart, one level at a time."""

    def __init__(self, graph: Graph) -> None:
        self.names = [op.name for op in graph.ops]
        self.paths: list[Path] = [tuple(op.module.split(".")) if op.module else () for op in graph.ops]
        self.writers: list[list[int]] = [[] for _ in graph.ops]
        for writer, reader in graph.edges:
            self.writers[reader].append(writer)

    def members(self, outer: _ModulePart) -> list[_Member]:
        """The operators and groups directly in a group, in the order of their first operators."""
        depth = len(outer.path)
        inner: dict[str, list[int]] = {}
        members: dict[int, _Member] = {}  # by first operator
        for op in outer.ops:
            if len(self.paths[op]) == depth:
                members[op] = op, self.names[op]
            else:
                inner.setdefault(self.paths[op][depth], []).append(op)
        for name, ops in inner.items():
            for call in self._calls(outer.ops, ops):
                part = self.skip(_ModulePart((*outer.path, name), call))
                members[call[0]] = part if len(call) > 1 else (call[0], _relative(self.paths[call[0]], depth))
        return [members[op] for op in sorted(members)]

    def skip(self, part: _ModulePart) -> _ModulePart:
        """The innermost module that holds the same operators."""
        while True:
            depth = len(part.path)
            names = {self.paths[op][depth : depth + 1] for op in part.ops}
            if len(names) != 1 or names == {()}:
                return part
            part = _ModulePart((*part.path, *names.pop()), part.ops)

    def _calls(self, around: list[int], ops: list[int]) -> Iterator[list[int]]:
        """Divide the operators of a module into calls: a call begins where the module reads its own results again.

        These results have passed through other operators of the parent module, which are ``around``.
        """
        inside = set(ops)
        call: list[int] = []
        members: set[int] = set()  # of the call
        followers: set[int] = set()  # other operators that depend on the call
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


def _label(member: _Member, depth: int) -> str:
    return member[1] if isinstance(member, tuple) else _relative(member.path, depth)


def _relative(path: Path, depth: int) -> str:
    """The path below a depth; a number comes with the name of its list."""
    start = depth - 1 if depth and path[depth].isdigit() else depth
    return ".".join(path[start:])
