"""Normalisations that update running statistics, while torch's own functionalization takes in-place operators apart.

It would take a normalisation apart as well, and turn its update into a result. An operator stands in for it meanwhile::

    y[0] += 1                                                               z = select_scatter(y, ...)
    batch_norm(y, mean, variance)  ─►  normalised([y, mean, variance])  ─►  batch_norm(z, mean, variance)
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx

from graphs.importers.functionalize import running_statistics
from graphs.program.expectations import NAMESPACE

Replaced: TypeAlias = dict[str, tuple[Any, tuple[Any, ...], dict[str, Any], list[fx.Node]]]
"""Calls by the names of their nodes: the function, its arguments, and which of them are nodes."""

_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define("normalised(Tensor[] reads, str name, int[] shape, int[] strides) -> Tensor")  # type: ignore[no-untyped-call]


def _normalised(reads: Sequence[Tensor], _name: str, shape: Sequence[int], strides: Sequence[int]) -> Tensor:
    return reads[0].new_empty_strided(shape, strides)


_LIBRARY.impl("normalised", _normalised, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
NORMALISED = torch.ops.placement_planner.normalised.default


def stand_in(graph: fx.Graph, buffers: frozenset[str]) -> Replaced:
    """Replace each normalisation that updates nodes named in ``buffers``, in place, and return what was replaced."""
    replaced: Replaced = {}
    for node in [node for node in graph.nodes if buffers.intersection(n.name for n in running_statistics(node))]:
        reads, value = node.all_input_nodes, node.meta["val"]
        replaced[node.name] = (node.target, node.args, node.kwargs, reads)
        args = (reads, node.name, list(value.shape), list(value.stride()))
        _replace(graph, node, NORMALISED, args, {}).name = node.name  # results go by their names
    return replaced


def put_back(graph: fx.Graph, replaced: Replaced) -> None:
    """Replace what stands in for normalisations by these, in place."""
    for node in [node for node in graph.nodes if node.target is NORMALISED]:
        now, name, *_ = node.args
        target, args, kwargs, before = replaced[name]
        args, kwargs = fx.map_arg((args, kwargs), dict(zip(before, now, strict=True)).__getitem__)
        _replace(graph, node, target, args, kwargs).name = name


def _replace(graph: fx.Graph, node: fx.Node, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
    with graph.inserting_before(node):
        made = graph.call_function(target, args, kwargs)
    made.meta = dict(node.meta)
    node.replace_all_uses_with(made)
    graph.erase_node(node)
    return made
