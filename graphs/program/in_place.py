"""A program that keeps its caches, for a run: it writes them in place, or copies their successors over them."""

from dataclasses import replace
from operator import attrgetter

import torch
from torch import fx

from graphs.caches import WRITERS, in_place
from graphs.ir import Op, Tensor
from graphs.program.program import Call, Program

COPY = torch.ops.aten.copy_.default


def keeping_caches(program: Program) -> Program:
    """Return the program with operators that write its caches.

    Those of `graphs.caches.in_place` become their variants that write in place. For each other cache an operator is
    appended that copies the successor over it, which has to run after all that read the cache.
    """
    graph, calls, tensor_of = program.graph, dict(program.calls), dict(program.tensor_of)
    ops = {op.name: op for op in graph.ops}
    direct = in_place(graph)
    calls |= {name: _in_place(calls[name], ops[name]) for name in direct}
    written = {after for _, after in direct.values()}
    added: list[tuple[Op, Tensor]] = []
    for cache, after in graph.caches:
        if after in graph.writer and after not in written:
            op = Op(f"{cache}.kept", str(COPY), (cache, after), (f"{cache}.kept",))
            calls[op.name] = Call(_copy(program, op), False)
            tensor_of |= {
                node.name: name for node, name in zip(calls[op.name].node.all_input_nodes, op.inputs, strict=True)
            }
            added.append((op, replace(graph.tensor[after], name=op.name)))
    kept = replace(
        graph, ops=(*graph.ops, *(op for op, _ in added)), tensors=(*graph.tensors, *(tensor for _, tensor in added))
    )
    return replace(program, graph=kept, calls=calls, tensor_of=tensor_of)


def _copy(program: Program, op: Op) -> fx.Node:
    """Return the call of an operator that copies its second argument over its first one."""
    code = fx.Graph()
    args = tuple(code.placeholder(f"{op.name}.{number}") for number in range(2))
    node = code.call_function(COPY, args)
    nodes = (each for call in program.calls.values() for each in call.node.all_input_nodes)
    cache = next((each for each in nodes if program.tensor_of[each.name] == op.inputs[0]), None)
    node.meta["val"] = None if cache is None else cache.meta.get("val")
    return node


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
