"""What a graph that was traced in training mode needs besides: counters leave it, blocks without gradients detach.

::

    num_batches_tracked.add_(1)                 an entry of `Program.updates`; no operator
    with torch.no_grad(): m = x.mean()   ─►     m = mean(detach(x))
"""

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from graphs.importers.functionalize import GRADIENTS, is_view, written_by

ADDITIONS = (torch.ops.aten.add.Tensor, torch.ops.aten.add.Scalar)
ADDITIONS_IN_PLACE = (torch.ops.aten.add_.Tensor, torch.ops.aten.add_.Scalar)
COUNTING = (*ADDITIONS, *ADDITIONS_IN_PLACE, torch.ops.aten.copy_.default)


def take_counters(graph: fx.Graph, buffers: Mapping[str, str]) -> dict[str, float]:
    """Remove the additions of a number to a buffer that is used for nothing else, as a batch norm counts its batches.

    Args:
        graph: without blocks; changed in place.
        buffers: names of nodes, with the name of the buffer that each stands for.

    Returns:
        By the name of the buffer, what one run of the graph adds to it.
    """
    found: dict[str, float] = {}
    for buffer in [node for node in graph.nodes if node.name in buffers and node.users]:
        if not all(user.target in COUNTING for user in buffer.users):
            continue
        users = _followers(graph, buffer)
        increment = _increment(buffer, users)
        if increment is not None:
            found[buffers[buffer.name]] = increment
            for user in reversed(users):
                graph.erase_node(user)
    return found


def _followers(graph: fx.Graph, node: fx.Node) -> list[fx.Node]:
    """Who reads it, who reads what they return, and so on, in the order of the graph."""
    found = {node}
    for other in graph.nodes:
        if not found.isdisjoint(other.all_input_nodes):
            found.add(other)
    return [other for other in graph.nodes if other in found and other is not node]


def _increment(buffer: fx.Node, users: list[fx.Node]) -> float | None:
    """What is added to a buffer in the end; None if something else happens to it, or anybody wants to know it."""
    total: float = 0
    shows = {buffer}  # the buffer itself, as it is then
    more: dict[fx.Node, float] = {}  # by how much other tensors are above what the buffer was at first
    numbers = int | float if buffer.meta["val"].is_floating_point() else int
    for user in users:
        of, number = user.args if len(user.args) == 2 and not user.kwargs else (None, None)
        if user.target is torch.ops.aten.copy_.default and of in shows and number in shows | more.keys():
            total = more.get(number, total)  # type: ignore[arg-type]  # a node
            shows.add(user)
        elif not isinstance(number, numbers):
            return None
        elif user.target in ADDITIONS_IN_PLACE and of in shows:
            total += number
            shows.add(user)
        elif user.target in ADDITIONS:
            more[user] = more.get(of, total) + number  # type: ignore[arg-type]  # a node
        else:
            return None
    return total


def detach_blocks(graph: fx.Graph, parameters: frozenset[str]) -> fx.Node | None:
    """Let no gradient into what came from a block without gradients (``torch.no_grad``), in place.

    Args:
        graph: from `inline_blocks`, which notes where operators came from.
        parameters: names of the nodes that gradients go to.

    Returns:
        The first operator of a block that writes in place to what has a gradient outside, if there is one: that would
        go past it, which no operator does.
    """
    learning: set[fx.Node] = set()  # what gradients come back from
    detached: dict[fx.Node, fx.Node] = {}
    shown: set[fx.Node] = set()  # what shows the storage of something detached
    unseen: fx.Node | None = None
    for node in list(graph.nodes):
        reads = [parent for parent in node.all_input_nodes if parent in learning]
        if node.op == "placeholder" and node.name in parameters:
            learning.add(node)
        elif node.target is not operator.getitem and node.meta.get(GRADIENTS) is False:
            for parent in reads:
                if parent not in detached:
                    detached[parent] = _detach(graph, parent, node)
                    shown.add(detached[parent])
                node.replace_input_with(parent, detached[parent])
            if unseen is None and not shown.isdisjoint(written_by(node)):
                unseen = node
            if is_view(node) and not shown.isdisjoint(node.all_input_nodes):
                shown.add(node)
        elif reads and node.op == "call_function" and _is_floating(node.meta.get("val")):
            learning.add(node)
    return unseen


def differentiable_copies(graph: fx.Graph) -> None:
    """Replace ``aten.copy(x, y)``, which has no backward pass, by y itself in the form of x; in place."""
    for node in [node for node in graph.nodes if node.target is torch.ops.aten.copy.default]:
        like, source = node.meta["val"], node.args[1]
        value, shown = source, source.meta["val"]
        if shown.dtype != like.dtype:
            value = _call(graph, torch.ops.aten.to.dtype, (value, like.dtype), node)
        if shown.shape != like.shape:
            value = _call(graph, torch.ops.aten.expand.default, (value, list(like.shape)), node)
        if value.meta["val"].stride() != like.stride():
            value = _call(graph, torch.ops.aten.contiguous.default, (value,), node)
        node.replace_all_uses_with(value)
        graph.erase_node(node)


def _call(graph: fx.Graph, target: Any, args: tuple[Any, ...], before: fx.Node) -> fx.Node:
    """An operator that stands where another is."""
    with graph.inserting_before(before):
        made = graph.call_function(target, args)
    made.meta = before.meta | {"val": target(*fx.map_arg(args, lambda argument: argument.meta["val"]))}
    return made


def _detach(graph: fx.Graph, tensor: fx.Node, before: fx.Node) -> fx.Node:
    with graph.inserting_before(before):
        made = graph.create_node("call_function", torch.ops.aten.detach.default, (tensor,), name="detach")
    made.meta = before.meta | {"val": tensor.meta["val"]}
    return made


def _is_floating(value: Any) -> bool:
    """Whether a tensor, or one of several, can have a gradient."""
    if isinstance(value, torch.Tensor):
        return value.is_floating_point() or value.is_complex()
    return isinstance(value, tuple | list) and any(map(_is_floating, value))
