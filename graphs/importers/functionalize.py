"""Rewrites of a traced graph that make every operator a function: it reads tensors and writes new ones."""

from copy import deepcopy
from typing import Any

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
        False, with the graph half rewritten, if somebody does, or if an operator has no twin that yields the same.
    """
    shown: dict[fx.Node, frozenset[fx.Node]] = {}  # whose storages a node may show
    position = {node: i for i, node in enumerate(graph.nodes)}
    by_address = any(  # as_strided reads the storage itself, beyond what the view before it shows
        node.target is torch.ops.aten.as_strided.default for node in graph.nodes
    )
    for node in list(graph.nodes):
        if _updates_statistics(node):
            return False
        if not isinstance(node.target, OpOverload) or not node.target._schema.is_mutable:
            shown[node] = _shown(node, shown)
            continue
        target = node.args[0] if node.args else None
        if by_address or not isinstance(target, fx.Node):
            return False
        twin = _functional_twin(node)
        if twin is None:
            return False
        if any(owner.op != "call_function" for owner in shown[target]):  # an input, a parameter or a buffer
            return False
        if _read_elsewhere(target, node, shown, position):
            return False
        for user in [user for user in target.users if position[user] > position[node]]:
            user.replace_input_with(target, node)
        node.target = twin
        shown[node] = _shown(node, shown)
    return True


def _updates_statistics(node: fx.Node) -> bool:
    """A normalisation in training mode writes its running mean and variance; its schema keeps that to itself."""
    if node.target not in (torch.ops.aten.batch_norm.default, torch.ops.aten.instance_norm.default):
        return False
    _input, _weight, _bias, running_mean, _variance, training, *_ = node.args
    return bool(training) and running_mean is not None


def _functional_twin(node: fx.Node) -> OpOverload | None:
    """``aten.add.Tensor`` for ``aten.add_.Tensor``, if it yields what that leaves in its first argument.

    It does not if another argument is written too, or where a dtype is promoted: ``half.add_(float)`` stays half.
    """
    target = node.target
    assert isinstance(target, OpOverload)
    schema = target._schema
    written = [argument.alias_info is not None and argument.alias_info.is_write for argument in schema.arguments]
    packet_name = schema.name.split("::")[1]
    if not packet_name.endswith("_") or written[1:] != [False] * (len(written) - 1):
        return None
    packet = getattr(getattr(torch.ops, target.namespace), packet_name[:-1], None)
    twin: OpOverload | None = getattr(packet, target._overloadname, None)
    if twin is None:
        return None
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda argument: argument.meta["val"])
    return twin if twin(*args, **kwargs).dtype == node.meta["val"].dtype else None


def _shown(node: fx.Node, shown: dict[fx.Node, frozenset[fx.Node]]) -> frozenset[fx.Node]:
    """The nodes whose storages this one may show: itself, and for a view what is viewed."""
    if isinstance(node.target, OpOverload):
        schema = node.target._schema
        declared = any(result.alias_info is not None for result in schema.returns)
        if not declared and schema.name.removeprefix("aten::") not in UNDECLARED_VIEWS:
            return frozenset([node])
    return frozenset([node]).union(*(shown[parent] for parent in node.all_input_nodes))


def _read_elsewhere(
    target: fx.Node, node: fx.Node, shown: dict[fx.Node, frozenset[fx.Node]], position: dict[fx.Node, int]
) -> bool:
    """Whether the storage that ``node`` writes is read after it through another name than ``target``."""
    return any(
        other is not target
        and not storages.isdisjoint(shown[target])
        and any(position[user] > position[node] for user in other.users)
        for other, storages in shown.items()
    )
