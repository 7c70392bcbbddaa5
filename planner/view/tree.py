"""The tree of groups that a reader of the page opens and closes: the modules of a network, without useless levels.

::

    conv1.conv, conv1.bn            conv1            a module with several operators: a group
    model.layer.0.linear            model.layer      one module inside another and nothing else: one group
    model.layer.1.linear              0.linear       one operator in a module: the operator itself, with its path
    pool                            pool
    act, then conv2, then act       act conv2 act    a module that is called again with its own results: a group for
                                                     each call, so that groups do not depend on each other in circles
    layers.0, layers.1, ...         layers           equal modules one after the other: a ribbon, see `Group`
    arange, cumsum, eq, ...         masks and ...    what takes neither time nor memory: a capsule
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from math import ceil, sqrt
from typing import TypeAlias, TypeVar

from graphs.common.arrays import Floats
from graphs.ir import Graph

ROOT = -1
LONG = 120  # members of a group; a longer list is hard to read, so it is cut into blocks
BLOCKS = 48  # at one level, at most
RIBBON = 8  # from this many on, equal modules one after the other are a ribbon
SMALL, SMALL_PART = 1e-3, 1e-2  # shares of the network and of the group around it below which a member is small,
SMALL_BESIDE = 5e-3  # and this share of a member that counts
CAPSULE = 3  # from this many on, small members one after the other are a capsule
INDICES = ("int", "uint", "bool")  # dtypes of masks and positions
MOSTLY = 2 / 3  # of a capsule's tensors have these dtypes where the capsule has their name

Path: TypeAlias = tuple[str, ...]
_Key = TypeVar("_Key")


@dataclass(frozen=True, slots=True)
class Group:
    """A node of the tree that can be opened and closed."""

    label: str  # not necessarily unique among its siblings
    path: str  # of the module; of the parent module for a block
    parent: int  # index of the parent group, or `ROOT`
    kind: str = ""  # "ribbon": its members are equal modules in a row; "capsule": all of its operators are small


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


@dataclass(frozen=True, slots=True)
class _Row:
    """Members one after the other: a ribbon or a capsule."""

    kind: str
    label: str
    members: "list[_Member]"


_Member: TypeAlias = tuple[int, str] | _ModulePart | _Row
"""An operator with its label, or a group."""


def group_tree(graph: Graph, weight: Floats | None = None) -> Tree:
    """Return the groups of a graph by module path; long lists of members are cut into blocks of consecutive ones.

    Args:
        graph: the network.
        weight: [n_ops], the share of each operator in what the network takes; without it, no operator is small.
    """
    builder = _Builder(graph, weight)
    groups: list[Group] = []
    parent = [ROOT] * len(graph.ops)
    labels = [op.name for op in graph.ops]
    whole = builder.skip(_ModulePart((), list(range(len(graph.ops)))))
    pending = [(builder.inside(whole), whole.path, ROOT)]  # a stack: modules may be nested deeply
    while pending:
        members, path, number = pending.pop()
        if len(members) == 1 and number != ROOT and isinstance(members[0], _Row):  # all that is in a group
            groups[number] = replace(groups[number], kind=members[0].kind)
            members = members[0].members
        elif len(members) > LONG and (number == ROOT or not groups[number].kind):
            size = ceil(len(members) / min(BLOCKS, ceil(sqrt(len(members)))))
            for start in range(0, len(members), size):
                pending.append((members[start : start + size], path, len(groups)))
                groups.append(Group(f"{_label(members[start], len(path))} …", ".".join(path), number))
            continue
        for member in members:
            if isinstance(member, tuple):
                index, label = member
                parent[index], labels[index] = number, label
            elif isinstance(member, _Row):
                pending.append((member.members, path, len(groups)))
                groups.append(Group(member.label, ".".join(path), number, member.kind))
            else:
                pending.append((builder.inside(member), member.path, len(groups)))
                groups.append(Group(_label(member, len(path)), ".".join(member.path), number))
    return Tree(tuple(groups), tuple(parent), tuple(labels))


class _Builder:
    """Takes modules apart, one level at a time."""

    def __init__(self, graph: Graph, weight: Floats | None) -> None:
        self.graph = graph
        self.weight = [SMALL] * len(graph.ops) if weight is None else weight.tolist()
        self.names = [op.name for op in graph.ops]
        self.paths: list[Path] = [tuple(op.module.split(".")) if op.module else () for op in graph.ops]
        self.writers: list[list[int]] = [[] for _ in graph.ops]
        for writer, reader in graph.edges:
            self.writers[reader].append(writer)

    def members(self, outer: _ModulePart) -> list[_Member]:
        """Return the operators and groups directly in a group, in the order of their first operators."""
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

    def inside(self, outer: _ModulePart) -> list[_Member]:
        """Return the members of a group, with ribbons and capsules for their contents."""
        members, depth = self.members(outer), len(outer.path)
        shares = [self._weight(member) for member in members]
        around = sum(shares)
        counts = (
            sum(share * share for share in shares) / around if around else 0.0
        )  # of the member that an instant falls into
        limit = max(min(SMALL, SMALL_PART * around), SMALL_BESIDE * counts)
        found: list[_Member] = []
        for equal, ribbon in _in_a_row(members, self._signature):
            if equal and len(ribbon) >= RIBBON:
                label = f"{_label(ribbon[0], depth)} – {_label(ribbon[-1], depth).rpartition('.')[2]}"
                found.append(_Row("ribbon", label, ribbon))
            else:
                found += ribbon
        folded: list[_Member] = []
        for small, capsule in _in_a_row(found, lambda member: self._weight(member) < limit):
            whole = len(capsule) == len(found)
            if small and len(capsule) >= CAPSULE and not whole:
                folded.append(_Row("capsule", self._name(capsule, depth), capsule))
            else:
                folded += capsule
        return folded

    def _name(self, capsule: list[_Member], depth: int) -> str:
        """Return a name for a capsule that says what its members are."""
        if len(capsule) == CAPSULE:
            return ", ".join(_label(member, depth) for member in capsule)
        ops = [op for member in capsule for op in _ops(member)]
        outputs = [self.graph.tensor[name].dtype for op in ops for name in self.graph.ops[op].outputs]
        indices = sum(dtype.startswith(INDICES) for dtype in outputs)
        return "masks and positions" if indices >= MOSTLY * len(outputs) else f"{len(ops)} small operators"

    def _weight(self, member: _Member) -> float:
        return sum(self.weight[op] for op in _ops(member))

    def _signature(self, member: _Member) -> tuple[object, ...]:
        """Return the kinds and shapes that equal modules share; nothing for an operator."""
        ops = (self.graph.ops[op] for op in member.ops) if isinstance(member, _ModulePart) else ()
        return tuple((op.kind, *(self.graph.tensor[name].shape for name in op.outputs)) for op in ops)

    def skip(self, part: _ModulePart) -> _ModulePart:
        """Return the innermost module that holds the same operators."""
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


def _in_a_row(members: list[_Member], key: Callable[[_Member], _Key]) -> Iterator[tuple[_Key, list[_Member]]]:
    """Return the members by equal keys one after the other."""
    return ((common, list(run)) for common, run in groupby(members, key))


def _ops(member: _Member) -> list[int]:
    """Return the operators of a member."""
    if isinstance(member, _ModulePart):
        return member.ops
    return [member[0]] if isinstance(member, tuple) else [op for inner in member.members for op in _ops(inner)]


def _label(member: _Member, depth: int) -> str:
    if isinstance(member, _ModulePart):
        return _relative(member.path, depth)
    return member[1] if isinstance(member, tuple) else member.label


def _relative(path: Path, depth: int) -> str:
    """Return the path below a depth; a number comes with the name of its list."""
    start = depth - 1 if depth and path[depth].isdigit() else depth
    return ".".join(path[start:])
