"""Turn a graph of calls into one Python function: a line for each call, each value dropped behind its last use.

The text consists of numbered names and of nothing that a graph holds: what is called, its constants and the names of
its keywords are values of the function's own namespace. So nothing that a model contains is executed as text.

::

    def stage(v0, v1):
        v2 = f2(v0, c0)                     f2 = torch.ops.aten.add.Tensor, c0 = 1
        v3 = f3([v2, v1], **{c1: v0})       c1 = 'out_dtype'
        del v0, v1, v2
        return (v3,)
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import fx


def function_of(graph: fx.Graph, state: list[torch.Tensor]) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Return the graph as a function: its first placeholders are the state, the others its arguments."""
    text, namespace = _GeneratedSource(graph).written()
    exec(text, namespace)
    stage = namespace["stage"]

    def call(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        result: tuple[torch.Tensor, ...] = stage(*state, *inputs)
        return result

    return call


class _GeneratedSource:
    """Writes a graph of placeholders, calls and an output as text, in one pass."""

    def __init__(self, graph: fx.Graph) -> None:
        self._nodes = list(graph.nodes)
        self._number = {node: number for number, node in enumerate(self._nodes)}
        self._last = {value: node for node in self._nodes for value in node.all_input_nodes}
        self._namespace: dict[str, Any] = {}
        self._constants = 0

    def written(self) -> tuple[str, dict[str, Any]]:
        """Return the text of ``stage``, and the namespace for its names."""
        parameters = [self._value(node) for node in self._nodes if node.op == "placeholder"]
        lines = [f"def stage({', '.join(parameters)}):"]
        for number, node in enumerate(self._nodes):
            if node.op == "call_function":
                lines.append(f"    v{number} = {self._call(number, node)}")
            elif node.op == "output":
                lines.append(f"    return {self._argument(node.args[0])}")
            if ended := [self._value(value) for value in self._ending(node)]:
                lines.append(f"    del {', '.join(ended)}")
        return "\n".join(lines) + "\n", self._namespace

    def _call(self, number: int, node: fx.Node) -> str:
        self._namespace[f"f{number}"] = node.target
        arguments = [self._argument(value) for value in node.args]
        if node.kwargs:
            pairs = (f"{self._constant(name)}: {self._argument(value)}" for name, value in node.kwargs.items())
            arguments.append(f"**{{{', '.join(pairs)}}}")
        return f"f{number}({', '.join(arguments)})"

    def _argument(self, value: Any) -> str:
        """Write a value, a list or tuple with values among its items, or a constant."""
        if isinstance(value, fx.Node):
            return self._value(value)
        if isinstance(value, list):
            return f"[{', '.join(map(self._argument, value))}]"
        if isinstance(value, tuple):
            return f"({''.join(f'{self._argument(item)}, ' for item in value)})"
        return self._constant(value)

    def _constant(self, value: Any) -> str:
        name = f"c{self._constants}"
        self._constants += 1
        self._namespace[name] = value
        return name

    def _value(self, node: fx.Node) -> str:
        return f"v{self._number[node]}"

    def _ending(self, node: fx.Node) -> list[fx.Node]:
        """Return the values whose last use a node is; a call whose result nobody reads is among them itself."""
        if node.op != "call_function":
            return []
        ends = [value for value in node.all_input_nodes if self._last[value] is node]
        return ends if node.users else [*ends, node]
