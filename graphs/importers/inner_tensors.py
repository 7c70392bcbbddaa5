"""Weights that are kept in another format, such as int8 with scales: inner tensors become state of their own.

Libraries such as torchao replace a weight by a tensor subclass that holds others. torch.export reads these by name::

    weight ─► access_subclass_inner_tensor(., "qdata") ─► ...        weight.qdata ─► ...
           └► access_subclass_inner_tensor(., "scale") ─► ...   ─►   weight.scale ─► ...

So bytes are counted and weights are held as they are kept, whatever library made them.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import InputSpec, TensorArgument

from graphs.importers.expansion import Trace

INNER = torch.ops.export.access_subclass_inner_tensor.default


def with_inner_tensors(trace: Trace) -> Trace:
    """Return a trace whose state has inner tensors for those that its operators read by name."""
    accesses = trace.code.find_nodes(op="call_function", target=INNER)
    if not accesses:
        return trace
    specs: dict[Any, InputSpec] = dict(zip(_placeholders(trace.code), trace.inputs, strict=True))
    state, inners = dict(trace.state), dict[str, fx.Node]()
    for access in accesses:
        outer, name = access.args
        own = str(specs[outer].target) if outer in specs else ""
        if own not in state:
            continue  # made by an operator, so it is no state
        target = f"{own}.{name}"
        if target not in inners:
            state[target] = getattr(state[own], name)
            with trace.code.inserting_before(outer):
                inner = trace.code.placeholder(f"{outer.name}_{name}")
            inner.meta, inners[target] = dict(access.meta), inner
            specs[inner] = InputSpec(specs[outer].kind, TensorArgument(inner.name), target, specs[outer].persistent)
        access.replace_all_uses_with(inners[target])
        trace.code.erase_node(access)
    for outer in [node for node, spec in specs.items() if not node.users and _is_wrapped(state.get(str(spec.target)))]:
        state.pop(str(specs.pop(outer).target))
        trace.code.erase_node(outer)
    return replace(trace, inputs=[specs[node] for node in _placeholders(trace.code)], state=state)


def _placeholders(code: fx.Graph) -> list[fx.Node]:
    return list(code.find_nodes(op="placeholder"))


def _is_wrapped(tensor: object) -> bool:
    """Return whether a tensor of the state holds others."""
    return isinstance(tensor, torch.Tensor) and hasattr(tensor, "__tensor_flatten__")
