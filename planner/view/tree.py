"""The tree of groups in which a reader opens and closes a network: its modules, without the levels that say nothing.

::

    conv1.conv, conv1.relu          conv1            a module with several operators: a group
    model.layer.0.linear            model.layer      one module inside another and nothing else: one group
    model.layer.1.linear              0.linear       one operator in a module: the operator itself, with its path
    pool                            pool
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil, sqrt
from typing import TypeAlias

from graphs.ir import Graph

ROOT = -1
LONG = 120  # more members than this are cut into blocks: nobody reads such a list
BLOCKS = 48  # at most, at one level


@dataclass(frozen=True, slots=True)
class Group:
    """What can be opened and closed.

    Attributes:
        label: what stands on it; unique among its siblings only by chance.
        path: module path; for a block that of the module around it.
        parent: index of the group around it, `ROOT` for none. Parents come before children.
    """

    label: str
    path: str
    parent: int


@dataclass(frozen=True, slots=True)
class Tree:
    """Groups and where the operators hang.

    Attributes:
        groups: parents before children.
        parent: [n_ops], index of the innermost group, or `ROOT`.
        labels: [n_ops], what stands on the operator inside its group.
    """

    groups: tuple[Group, ...]
    parent: tuple[int, ...]
    labels: tuple[str, ...]


@dataclass(slots=True)
class _Module:
    path: tuple[str, ...]
    ops: list[int] = field(default_factory=list)
    children: dict[str, "_Module"] = field(default_factory=dict)

    @property
    def first(self) -> int:
        """The first operator in it or below."""
        return min([*self.ops[:1], *(child.first for child in self.children.values())])


@dataclass(frozen=True, slots=True)
class _Block:
    """Consecutive members of something too long to read."""

    path: tuple[str, ...]
    members: "Sequence[_Member]"


_Member: TypeAlias = "tuple[int, str] | _Module | _Block"
"""An operator with its label, or what holds several."""


def group_tree(graph: Graph) -> Tree:
    """The groups of a graph by module path; long lists of members are cut into blocks of consecutive ones."""
    root = _Module(())
    for i, op in enumerate(graph.ops):
        module = root
        for name in op.module.split(".") if op.module else ():
            module = module.children.setdefault(name, _Module((*module.path, name)))
        module.ops.append(i)
    groups: list[Group] = []
    parent = [ROOT] * len(graph.ops)
    labels = [op.name for op in graph.ops]
    pending: list[tuple[_Module | _Block, int]] = [(_skip(root), ROOT)]  # a stack: modules may be nested deeply
    while pending:
        outer, number = pending.pop()
        for member in _blocks(outer.path, _members(outer, graph)):
            if isinstance(member, tuple):
                index, label = member
                parent[index], labels[index] = number, label
            else:
                pending.append((member, len(groups)))
                groups.append(Group(_label(member, len(outer.path), graph), ".".join(member.path), number))
    return Tree(tuple(groups), tuple(parent), tuple(labels))


def _skip(module: _Module) -> _Module:
    """The innermost module around the same operators."""
    while not module.ops and len(module.children) == 1:
        (module,) = module.children.values()
    return module


def _members(outer: _Module | _Block, graph: Graph) -> list[_Member]:
    """What stands directly inside, in the order of the first operators."""
    if isinstance(outer, _Block):
        return list(outer.members)
    depth = len(outer.path)
    found: list[tuple[int, _Member]] = [(op, (op, graph.ops[op].name)) for op in outer.ops]
    for child in map(_skip, outer.children.values()):
        sole = len(child.ops) == 1 and not child.children
        member: _Member = (child.ops[0], _relative(child.path, depth)) if sole else child
        found.append((child.first, member))
    return [member for _, member in sorted(found, key=lambda pair: pair[0])]


def _blocks(path: tuple[str, ...], members: list[_Member]) -> Iterator[_Member]:
    if len(members) <= LONG:
        yield from members
        return
    size = ceil(len(members) / min(BLOCKS, ceil(sqrt(len(members)))))
    for start in range(0, len(members), size):
        yield _Block(path, members[start : start + size])


def _label(member: _Module | _Block, depth: int, graph: Graph) -> str:
    if isinstance(member, _Module):
        return _relative(member.path, depth)
    first = member.members[0]
    return f"{first[1] if isinstance(first, tuple) else _label(first, depth, graph)} …"


def _relative(path: tuple[str, ...], depth: int) -> str:
    """The path below the module at this depth; a mere number takes the name of its list along."""
    start = depth - 1 if depth and path[depth].isdigit() else depth
    return ".".join(path[start:])
