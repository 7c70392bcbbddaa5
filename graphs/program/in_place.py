"""A program whose caches are written in place, for a run that keeps them."""

from dataclasses import replace
from operator import attrgetter

import torch
from torch import fx

from graphs.caches import WRITERS, in_place
from graphs.ir import Op
from graphs.program.program import Call, Program


def writing_in_place(program: Program) -> Program:
    """Return the program with the operators of `graphs.caches.in_place` in their variants that write in place."""
    ops = {op.name: op for op in program.graph.ops}
    calls = {name: _in_place(program.calls[name], ops[name]) for name in in_place(program.graph)}
    return replace(program, calls={**program.calls, **calls})


def _in_place(call: Call, op: Op) -> Call:
    """Return the call of an operator that writes to its first argument."""
    code, held = fx.Graph(), dict[str, fx.Node]()

    def bound(node: fx.Node) -> fx.Node:
        if node.name not in held:
            held[node.name] = code.placeholder(node.name)
            held[node.name].name = node.name
        return held[node.name]

    target = attrgetter(WRITERS[op.kind])(torch.ops)
    args, kwargs = fx.map_arg(call.node.args, bound), fx.map_arg(call.node.kwargs, bound)
    node = code.create_node("call_function", target, args, kwargs, name=op.name)
    node.meta = dict(call.node.meta)
    return replace(call, node=node)
