"""Names of the imported network's operators, by which an operator of a rewritten graph can be called.

::

    imported     pad ─► conv ─► relu ─► up           'pad', 'conv' and 'relu' name the fused operator,
    rewritten    conv (pad, conv, relu) ─► up[0/2]   'up' both of its parts
                                        ─► up[1/2]
"""

from collections.abc import Sequence
from dataclasses import replace

from graphs.common.checks import one_of
from graphs.common.errors import InputError
from graphs.ir import Graph, Op
from graphs.rewrites.split import stands_between, undivided


def imported_names(op: Op) -> tuple[str, ...]:
    """Return every name of an operator: its own, those of its members, and those of what they are parts of."""
    own = [op, *op.members]
    whole = [undivided(each.name) for each in own if not stands_between(each)]
    return tuple(dict.fromkeys([*(each.name for each in own), *whole]))


def number_of(graph: Graph, name: object) -> int:
    """Return the operator that has this name or holds the imported operator of this name.

    Raises:
        InputError: if there is none, or there are several parts.
    """
    if isinstance(name, str) and name in graph.index:
        return graph.index[name]
    held = [number for number, op in enumerate(graph.ops) if name in imported_names(op)]
    if len(held) > 1:
        parts = ", ".join(f"'{graph.ops[number].name}'" for number in held)
        raise InputError(f"operator '{name}' is split into {parts}; name one of them")
    if not held:
        one_of(name, "the operator", dict.fromkeys(name for op in graph.ops for name in imported_names(op)))
    return held[0]


def taken_apart(graph: Graph) -> tuple[Graph, Sequence[int]]:
    """Return a graph with the members of its fused operators, and for each operator the one that held it."""
    pairs = [(number, member) for number, op in enumerate(graph.ops) for member in op.members or (op,)]
    return replace(graph, ops=tuple(member for _, member in pairs)), [number for number, _ in pairs]
