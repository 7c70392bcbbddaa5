"""Rewrites of a graph that was traced in training mode: it removes counters, and detaches blocks without gradients.

Hooks of the forward pass are a part of the trace; those of the backward pass are refused, since no trace shows them.

::

    num_batches_tracked.add_(1)                 an entry of `Program.updates`; no operator
    with torch.no_grad(): m = x.mean()   ─►     m = mean(detach(x))
"""

import operator
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules import module as modules

from graphs.common.errors import InputError
from graphs.importers.functionalize import GRADIENTS, is_view, written_by

ADDITIONS = (torch.ops.aten.add.Tensor, torch.ops.aten.add.Scalar)
ADDITIONS_IN_PLACE = (torch.ops.aten.add_.Tensor, torch.ops.aten.add_.Scalar)
COUNTING = (*ADDITIONS, *ADDITIONS_IN_PLACE, torch.ops.aten.copy_.default)


def take_counters(graph: fx.Graph, buffers: Mapping[str, str]) -> dict[str, float]:
    """Remove additions of a number to a buffer without other use, such as a batch norm's count of batches, in place.

    The graph has no blocks; ``buffers`` are the names of buffers by the names of their nodes. Return the increment that
    one run of the graph adds to each buffer, by the buffer's name.
    """
    increments: dict[str, float] = {}
    for buffer in [node for node in graph.nodes if node.name in buffers and node.users]:
        if not all(user.target in COUNTING for user in buffer.users):
            continue
        users = _followers(graph, buffer)
        increment = _increment(buffer, users)
        if increment is not None:
            increments[buffers[buffer.name]] = increment
            for user in reversed(users):
                graph.erase_node(user)
    return increments


def _followers(graph: fx.Graph, node: fx.Node) -> list[fx.Node]:
    """The nodes that depend on a node, in the order of the graph."""
    dependent = {node: None}
    for other in graph.nodes:
        if not dependent.keys().isdisjoint(other.all_input_nodes):
            dependent[other] = None
    return list(dependent)[1:]


def _increment(buffer: fx.Node, users: list[fx.Node]) -> float | None:
    """The number that is added to a buffer in total; None if the buffer is changed otherwise, or read."""
    total: float = 0
    shows = {buffer}  # nodes that are the buffer itself
    more: dict[fx.Node, float] = {}  # by how much other tensors exceed the buffer's first value
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
    """Detach the inputs of operators from a block without gradients (``torch.no_grad``), in place.

    `inline_blocks` has marked the operators of blocks; the nodes named in ``parameters`` get gradients. Return the
    first operator of a block that writes in place to a tensor with a gradient outside of the block, or None. No
    operator can express such a write.
    """
    differentiable: set[fx.Node] = set()
    detached: dict[fx.Node, fx.Node] = {}
    shown: set[fx.Node] = set()  # nodes that share storage with a detached tensor
    unseen: fx.Node | None = None
    for node in list(graph.nodes):
        if node.target is operator.getitem or node.meta.get(GRADIENTS) is not False:
            if _has_gradient(node, differentiable, parameters):
                differentiable.add(node)
            continue
        for parent in node.all_input_nodes:
            if parent in differentiable:
                if parent not in detached:
                    detached[parent] = _call(graph, torch.ops.aten.detach.default, (parent,), node, "detach")
                    shown.add(detached[parent])
                node.replace_input_with(parent, detached[parent])
        if unseen is None and not shown.isdisjoint(written_by(node)):
            unseen = node
        if is_view(node) and not shown.isdisjoint(node.all_input_nodes):
            shown.add(node)
    return unseen


def _has_gradient(node: fx.Node, differentiable: set[fx.Node], parameters: frozenset[str]) -> bool:
    """Whether a node is a parameter, or computes a tensor that can have a gradient from differentiable inputs."""
    if node.op == "placeholder":
        return node.name in parameters
    reads_any = not differentiable.isdisjoint(node.all_input_nodes)
    return reads_any and node.op == "call_function" and _is_floating(node.meta.get("val"))


def differentiable_copies(graph: fx.Graph) -> None:
    """Replace ``aten.copy(x, y)``, which has no backward pass, by y with x's dtype, shape and strides; in place."""
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


def _call(graph: fx.Graph, target: Any, args: tuple[Any, ...], before: fx.Node, name: str | None = None) -> fx.Node:
    """Insert an operator before a node."""
    with graph.inserting_before(before):
        made = graph.create_node("call_function", target, args, name=name)
    made.meta = before.meta | {"val": target(*fx.map_arg(args, lambda argument: argument.meta["val"]))}
    return made


def _is_floating(value: Any) -> bool:
    """Whether a tensor, or one of several tensors, can have a gradient."""
    if isinstance(value, torch.Tensor):
        return value.is_floating_point() or value.is_complex()
    return isinstance(value, tuple | list) and any(map(_is_floating, value))


WAY_OUT = (
    "which the stages of a plan would not call; remove it, and change gradients in the optimizer "
    "(torch.optim.Optimizer.register_step_pre_hook)"
)


def check_hooks(name: str, module: nn.Module, state: Mapping[str, Tensor] | None = None) -> None:
    """Check that a model to be trained has no hooks of the backward pass.

    ``state`` has the tensors that it reads besides its parameters and buffers, by name. Raise InputError if it has such
    a hook.
    """
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers()), **(state or {})}
    for place, hook in (*_on_tensors(tensors), *_on_modules(module)):
        raise InputError(f"model '{name}' has a hook on {place} ({hook}), {WAY_OUT}")


def check_batch_norms(name: str, module: nn.Module) -> None:
    """Raise InputError if a batch norm averages its statistics over all batches: how much each counts changes."""
    for path, part in module.named_modules():
        averages = isinstance(part, nn.modules.batchnorm._BatchNorm) and part.training and part.track_running_stats
        if averages and part.momentum is None:
            raise InputError(
                f"model '{name}' has a {type(part).__name__} ('{path}') with momentum=None, whose averages over all "
                "batches depend on the number of batches, which a traced graph does not see; give it a momentum "
                "(momentum=0.1), or freeze it (.eval())"
            )


def _on_tensors(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, str]]:
    for name, tensor in tensors.items():
        if tensor._backward_hooks:
            yield f"'{name}'", "register_hook"
        if getattr(tensor, "_post_accumulate_grad_hooks", None):
            yield f"'{name}'", "register_post_accumulate_grad_hook"


def _on_modules(module: nn.Module) -> Iterator[tuple[str, str]]:
    if modules._global_backward_hooks or modules._global_backward_pre_hooks:
        yield "every module", "torch.nn.modules.module.register_module_full_backward_hook"
    for path, part in module.named_modules():
        if part._backward_hooks or part._backward_pre_hooks:
            yield f"the module '{path}'", "register_full_backward_hook"
