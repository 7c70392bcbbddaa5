"""Rewrites of a traced graph that make every operator a function: it reads tensors and writes new ones."""

from copy import deepcopy
from typing import Any, TypeAlias

import torch
from torch import fx
from torch._ops import OpOverload

UNDECLARED_VIEWS = frozenset(
    {"dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout", "einsum", "type_as", "dequantize"}
    | {"conj_physical", "to_dense", "sum_to_size", "native_channel_shuffle", "histogramdd", "cartesian_prod"}
    | {"atleast_1d", "atleast_2d", "atleast_3d", "broadcast_tensors", "meshgrid"}
    | {"unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes", "_unsafe_view", "unflatten_dense_tensors"}
)
"""Operators that at times return their input or a view of it although their schema does not say so."""

Storages: TypeAlias = dict[fx.Node, frozenset[fx.Node]]
"""Of each node, those whose storages it may show."""


def inline_blocks(module: fx.GraphModule) -> None:
    """Replace each block that export wraps in a submodule by its operators.

    Those are ``torch.no_grad()`` and the like, and ``torch.autocast(..., enabled=False)``, inside of which operators
    do what they do anywhere else. One of autocast that is enabled stays.
    """
    graph = module.graph
    for node in list(graph.nodes):
        inlined = _body(node)
        if inlined is None:
            continue
        body, inputs = inlined
        wrapped = module.get_submodule(str(body.target))
        assert isinstance(wrapped, fx.GraphModule)
        inner = fx.GraphModule(wrapped, deepcopy(wrapped.graph))  # the exported program keeps its blocks
        inline_blocks(inner)
        ends = dict(zip((n for n in inner.graph.nodes if n.op == "placeholder"), inputs, strict=True))
        with graph.inserting_before(node):
            results = graph.graph_copy(inner.graph, ends)
        assert isinstance(results, tuple | list)
        for user in list(node.users):
            user.replace_all_uses_with(results[user.args[1]])
            graph.erase_node(user)
        graph.erase_node(node)
        if not body.users:
            graph.erase_node(body)


def _body(node: fx.Node) -> tuple[fx.Node, list[Any]] | None:
    """Of a block that can be inlined: the node that holds its submodule, and what is passed in."""
    args: tuple[Any, ...] = node.args
    if node.target is torch.ops.higher_order.wrap_with_set_grad_enabled:
        _enabled, body, *inputs = args
        return body, inputs
    if node.target is torch.ops.higher_order.wrap_with_autocast:
        _device, _dtype, enabled, _cache, body, *inputs = args
        return None if enabled else (body, inputs)
    return None


def functionalize(graph: fx.Graph) -> bool:
    """Replace in-place operators by their functional twins (``relu_`` by ``relu``), in place.

    ::

        x = conv(...)           x  = conv(...)
        relu_(x)          ─►    x2 = relu(x)
        y = pool(x)             y  = pool(x2)

    That is the same computation as long as nobody reads the old storage through another name afterwards.

    Returns:
        False if somebody does, or if an operator has no twin that yields the same; the graph is then half rewritten,
        and still computes the same.
    """
    shown: Storages = {}
    position = _positions(graph)
    by_address = any(  # as_strided reads the storage itself, beyond what the view before it shows
        node.target is torch.ops.aten.as_strided.default for node in graph.nodes
    )
    for node in list(graph.nodes):
        if _updates_statistics(node):
            return False
        if written := _written(node):
            target = written[0]
            is_state = any(owner.op != "call_function" for owner in shown[target])  # or an input
            if by_address or is_state or _read_elsewhere(target, node, shown, position):
                return False
            twin = _functional_twin(node)
            if twin is None:
                return False
            for user in [user for user in target.users if position[user] > position[node]]:
                user.replace_input_with(target, node)
            node.target = twin
        shown[node] = _shown(node, shown)
    return True


def misread_write(graph: fx.Graph) -> fx.Node | None:
    """The first in-place operator that torch.export's own functionalization gets wrong.

    It takes an undeclared view for a copy, so what is written through one of the two is missed through the other.
    """
    shown: Storages = {}
    declared: Storages = {}
    position = _positions(graph)
    for node in graph.nodes:
        for target in _written(node):
            read = _read_elsewhere(target, node, shown, position)
            if read != _read_elsewhere(target, node, declared, position):
                return node  # type: ignore[no-any-return]  # graph.nodes has no element type
        shown[node] = _shown(node, shown)
        declared[node] = _shown(node, declared, undeclared=frozenset())
    return None


def _positions(graph: fx.Graph) -> dict[fx.Node, int]:
    return {node: i for i, node in enumerate(graph.nodes)}


def _written(node: fx.Node) -> list[fx.Node]:
    """The arguments that an operator writes in place."""
    if not isinstance(node.target, OpOverload) or not node.target._schema.is_mutable:
        return []
    arguments = node.target._schema.arguments
    given = dict(zip((argument.name for argument in arguments), node.args, strict=False)) | node.kwargs
    written: list[fx.Node] = []
    for argument in arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            fx.map_arg(given.get(argument.name), written.append)
    return written


def _updates_statistics(node: fx.Node) -> bool:
    """A normalisation in training mode writes its running mean and variance; its schema keeps that to itself."""
    if node.target not in (torch.ops.aten.batch_norm.default, torch.ops.aten.instance_norm.default):
        return False
    _input, _weight, _bias, running_mean, _variance, training, *_ = node.args
    return bool(training) and running_mean is not None


def _functional_twin(node: fx.Node) -> OpOverload | None:
    """``aten.add.Tensor`` for ``aten.add_.Tensor``, if it yields what that leaves in its first argument, and only that.

    It does not where a dtype is promoted: ``half.add_(float)`` stays half.
    """
    assert isinstance(node.target, OpOverload)
    packet_name = node.target._schema.name.split("::")[1]
    if not packet_name.endswith("_") or _written(node) != list(node.args[:1]):
        return None
    packet = getattr(getattr(torch.ops, node.target.namespace), packet_name[:-1], None)
    twin: OpOverload | None = getattr(packet, node.target._overloadname, None)
    if twin is None:
        return None
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda argument: argument.meta["val"])
    return twin if twin(*args, **kwargs).dtype == node.meta["val"].dtype else None


def _shown(node: fx.Node, shown: Storages, undeclared: frozenset[str] = UNDECLARED_VIEWS) -> frozenset[fx.Node]:
    """The nodes whose storages this one may show: itself, and for a view what is viewed."""
    if isinstance(node.target, OpOverload):
        schema = node.target._schema
        declared = any(result.alias_info is not None for result in schema.returns)
        if not declared and schema.name.removeprefix("aten::") not in undeclared:
            return frozenset([node])
    return frozenset([node]).union(*(shown[parent] for parent in node.all_input_nodes))


def _read_elsewhere(target: fx.Node, node: fx.Node, shown: Storages, position: dict[fx.Node, int]) -> list[fx.Node]:
    """The names other than ``target`` through which the storage that ``node`` writes is read after it."""
    return [
        other
        for other, storages in shown.items()
        if other is not target
        and not storages.isdisjoint(shown[target])
        and any(position[user] > position[node] for user in other.users)
    ]
