"""Rewrites a traced graph so that every operator is a function, which reads tensors and writes new ones."""

import operator
from copy import deepcopy
from typing import Any, TypeAlias

import torch
from torch import fx
from torch._ops import OpOverload

from graphs.program.strides import repeats

UNDECLARED_VIEWS = frozenset(
    {"dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout", "einsum", "type_as", "dequantize"}
    | {"conj_physical", "to_dense", "sum_to_size", "native_channel_shuffle", "histogramdd", "cartesian_prod"}
    | {"atleast_1d", "atleast_2d", "atleast_3d", "broadcast_tensors", "meshgrid"}
    | {"unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes", "_unsafe_view", "unflatten_dense_tensors"}
)
"""Operators that may return their input or a view of it without a declaration in their schema."""

FUNCTIONAL = {
    torch.ops.aten.bernoulli_.float: torch.ops.aten.bernoulli.p,
    torch.ops.aten.normal_.default: torch.ops.aten.normal_functional.default,
}
"""Functional variants with other arguments or another name than their in-place operator."""

GRADIENTS, AUTOCAST = "gradients", "autocast"
"""Keys of a node's ``meta``: False for a node from a block without gradients, or from one that disables autocast."""

Storages: TypeAlias = dict[fx.Node, frozenset[fx.Node]]
"""For each node, the nodes whose storages it may share."""


def inline_blocks(module: fx.GraphModule) -> None:
    """Replace each block that torch.export wraps in a submodule by its operators.

    Such blocks are ``torch.no_grad()`` and the like, and ``torch.autocast(..., enabled=False)``, which do not change
    the results of operators. The ``meta`` of the operators names their block. Blocks with enabled autocast stay.
    """
    graph = module.graph
    for node in list(graph.nodes):
        inlined = _body(node)
        if inlined is None:
            continue
        body, inputs, mark = inlined
        wrapped = module.get_submodule(str(body.target))
        assert isinstance(wrapped, fx.GraphModule)
        inner = fx.GraphModule(wrapped, deepcopy(wrapped.graph))  # the exported program keeps its blocks
        inline_blocks(inner)
        for inside in inner.graph.nodes:
            inside.meta = mark | inside.meta  # an inner block takes precedence
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


def _body(node: fx.Node) -> tuple[fx.Node, list[Any], dict[str, bool]] | None:
    """For a block that can be inlined: the node of its submodule, its inputs, and the ``meta`` of its operators."""
    args: tuple[Any, ...] = node.args
    if node.target is torch.ops.higher_order.wrap_with_set_grad_enabled:
        enabled, body, *inputs = args
        return body, inputs, {GRADIENTS: enabled}
    if node.target is torch.ops.higher_order.wrap_with_autocast:
        _device, _dtype, enabled, _cache, body, *inputs = args
        return None if enabled else (body, inputs, {AUTOCAST: enabled})
    return None


def functionalize(graph: fx.Graph, buffers: frozenset[str] = frozenset()) -> bool:
    """Replace in-place operators by their functional variants (``relu_`` by ``relu``), in place.

    ::

        x = conv(...)           x  = conv(...)
        relu_(x)          ─►    x2 = relu(x)
        y = pool(x)             y  = pool(x2)

    The computation stays the same if no operator reads the written storage through another tensor afterwards. The graph
    has no blocks; a normalisation may update the nodes named in ``buffers`` as its running statistics.

    Returns:
        False if an operator does, or an operator has no equivalent variant; the graph is then partly rewritten, and
        still computes the same.
    """
    shown: Storages = {}
    position = _positions(graph)
    by_address = any(  # as_strided may read the storage beyond its input
        node.target is torch.ops.aten.as_strided.default for node in graph.nodes
    )
    for node in list(graph.nodes):
        if any(updated.name not in buffers for updated in running_statistics(node)):
            return False
        if written := written_by(node):
            target = written[0]
            is_state = any(owner.op != "call_function" for owner in shown[target])  # state or an input
            if by_address or is_state or _read_elsewhere(target, node, shown, position):
                return False
            if node.target in FUNCTIONAL:
                node.args = with_defaults(node)
            variant = _functional_variant(node)
            if variant is None:
                return False
            for user in [user for user in target.users if position[user] > position[node]]:
                user.replace_input_with(target, node)
            node.target = variant
        shown[node] = _shown(node, shown)
    return True


def without_noise(graph: fx.Graph) -> None:
    """Replace random leaky ReLUs as torch.export's own functionalization writes them by ``rrelu``, in place.

    They read slopes and return new ones; PyTorch's backward pass multiplies by those that were read, which are memory
    that nobody wrote (``RreluWithNoiseFunctionalBackward0``).
    """
    for node in list(graph.nodes):
        if node.target is not torch.ops.aten.rrelu_with_noise_functional.default:
            continue
        x, slopes, *options = node.args
        results = {user.args[1]: user for user in node.users}
        if set(results) != {0}:
            continue  # the slopes are read
        with graph.inserting_before(node):
            made = graph.call_function(torch.ops.aten.rrelu.default, (x, *options[:3]))
        made.meta = results[0].meta
        results[0].replace_all_uses_with(made)
        for unread in (results[0], node, slopes):
            if not unread.users and unread.op == "call_function":  # an input stays
                graph.erase_node(unread)


def without_unread(graph: fx.Graph, buffers: frozenset[str]) -> None:
    """Leave out operators whose results nobody reads, in place: a question that the trace has answered, for example.

    What draws at random stays, and what reads these ``buffers``, which it may update. torch's assertions about types
    go: a trace has fixed ones.
    """

    def stays(node: fx.Node) -> bool:
        return node.is_impure() or any(read.name in buffers for read in node.all_input_nodes)

    for node in graph.find_nodes(op="call_function", target=torch.ops.aten._assert_tensor_metadata.default):
        graph.erase_node(node)
    graph.eliminate_dead_code(stays)


def is_mapped(graph: fx.Graph) -> bool:
    """Whether a graph uses ``torch.vmap``, in which operators act on one sample of their inputs.

    torch.export's own functionalization replaces them by operators on all samples.
    """
    targets = (node.target for node in graph.nodes if node.op == "call_function")
    return any(getattr(target, "__module__", "").startswith("torch._functorch") for target in targets)


def misread_write(graph: fx.Graph, state: frozenset[str] = frozenset()) -> fx.Node | None:
    """The first in-place operator that torch.export's own functionalization treats wrongly, or None.

    It treats an undeclared view as a copy, so that a write to the view does not change the viewed tensor. The graph has
    no blocks; ``state`` has the names of the nodes whose tensors the next run of the network reads again.
    """
    shown: Storages = {}
    declared: Storages = {}
    position = _positions(graph)
    for node in graph.nodes:
        for target in written_by(node):
            read = _read_elsewhere(target, node, shown, position)
            missed = {owner.name for owner in shown[target] - declared[target]}
            if read != _read_elsewhere(target, node, declared, position) or not missed.isdisjoint(state):
                return node  # type: ignore[no-any-return]  # graph.nodes has no element type
        shown[node] = _shown(node, shown)
        declared[node] = _shown(node, declared, undeclared=frozenset())
    return None


def repeated_write(graph: fx.Graph) -> fx.Node | None:
    """The first in-place operator that writes to a tensor whose elements share memory, or None.

    After ``expand``, torch.export's own functionalization adds the change to the old value, which rounds, and yields
    NaN for infinite elements. In other cases it keeps one of the writes.
    """
    shown: Storages = {}
    position = _positions(graph)
    for node in graph.nodes:
        for target in written_by(node):
            if any(map(_repeats, shown[target])) and _read_elsewhere(target, node, shown, position):
                return node  # type: ignore[no-any-return]  # graph.nodes has no element type
        shown[node] = _shown(node, shown)
    return None


def _repeats(node: fx.Node) -> bool:
    """Whether several elements of a tensor share memory."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or any(isinstance(size, torch.SymInt) for size in value.shape):
        return False  # the translation refuses shapes that are not fixed
    return repeats(value)


def _positions(graph: fx.Graph) -> dict[fx.Node, int]:
    return {node: i for i, node in enumerate(graph.nodes)}


def written_by(node: fx.Node) -> list[fx.Node]:
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


def running_statistics(node: fx.Node) -> tuple[fx.Node, ...]:
    """The running mean and variance that a normalisation in training mode writes, which its schema does not declare."""
    if node.target not in (torch.ops.aten.batch_norm.default, torch.ops.aten.instance_norm.default):
        return ()
    _input, _weight, _bias, mean, variance, training, *_ = node.args
    return tuple(n for n in (mean, variance) if isinstance(n, fx.Node)) if training else ()


def with_defaults(node: fx.Node) -> tuple[Any, ...]:
    """All positional arguments with defaults filled in, since the variant may have no defaults."""
    assert isinstance(node.target, OpOverload)
    left_out = node.target._schema.arguments[len(node.args) :]
    return (*node.args, *(argument.default_value for argument in left_out if not argument.kwarg_only))


def _functional_variant(node: fx.Node) -> OpOverload | None:
    """``aten.add.Tensor`` for ``aten.add_.Tensor``, if its result equals the first argument after the in-place write.

    The results differ where PyTorch promotes a dtype: ``half.add_(float)`` stays half.
    """
    assert isinstance(node.target, OpOverload)
    packet_name = node.target._schema.name.split("::")[1]
    if not packet_name.endswith("_") or written_by(node) != list(node.args[:1]):
        return None
    packet = getattr(getattr(torch.ops, node.target.namespace), packet_name[:-1], None)
    overloads = (getattr(packet, overload) for overload in packet.overloads()) if packet else ()
    alike = (overload for overload in overloads if _takes(overload) == _takes(node.target))
    variant: OpOverload | None = FUNCTIONAL.get(node.target) or next(alike, None)
    if variant is None:
        return None
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda argument: argument.meta["val"])
    return variant if variant(*args, **kwargs).dtype == node.meta["val"].dtype else None


def _takes(function: OpOverload) -> list[tuple[str, str]]:
    """Type and name of each argument, the first without its name; ``pow.Scalar`` differs from ``pow_.Scalar`` here."""
    arguments = function._schema.arguments
    return [(str(argument.type), argument.name if number else "") for number, argument in enumerate(arguments)]


def _shown(node: fx.Node, shown: Storages, undeclared: frozenset[str] = UNDECLARED_VIEWS) -> frozenset[fx.Node]:
    """The nodes whose storages this node may share: itself, and the storages that a view shares.

    The results of an operator that is no view are tensors of their own.
    """
    source = node.args[0] if node.target is operator.getitem else None
    if isinstance(source, fx.Node) and not is_view(source, undeclared):
        return frozenset(other for other in source.users if other.args[1:] == node.args[1:])
    if not is_view(node, undeclared):
        return frozenset([node])
    return frozenset([node]).union(*(shown[parent] for parent in node.all_input_nodes))


def is_view(node: fx.Node, undeclared: frozenset[str] = UNDECLARED_VIEWS) -> bool:
    """Whether a node may share a storage with its inputs; a node without a schema may."""
    if not isinstance(node.target, OpOverload):
        return True
    schema = node.target._schema
    if any(result.alias_info is not None for result in schema.returns):
        return True
    _input, p, train, *_ = (*node.args, None, None, None)
    drops = "dropout" in str(node.target) and train is True and p != 0  # it writes a new tensor
    operands = node.args[1] if node.target is torch.ops.aten.einsum.default else ()
    multiplies = isinstance(operands, list | tuple) and len(operands) > 1  # so does a product of several tensors
    return schema.name.removeprefix("aten::") in undeclared and not drops and not multiplies


def _read_elsewhere(target: fx.Node, node: fx.Node, shown: Storages, position: dict[fx.Node, int]) -> list[fx.Node]:
    """The nodes other than ``target`` that share the storage written by ``node`` and are read after it."""
    return [
        other
        for other, storages in shown.items()
        if other is not target
        and not storages.isdisjoint(shown[target])
        and any(position[user] > position[node] for user in other.users)
    ]
