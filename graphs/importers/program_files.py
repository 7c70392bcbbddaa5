"""A Program without its weights as JSON, so that it runs where neither the model nor its code is.

The graph stands elsewhere (graph.json, plan.json). This is what the graph does not say: the arguments of each operator
to the bit, how the weights lie in memory, and the form of what the model takes and returns.
"""

import json
import math
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from graphs.errors import InputError, first_line
from graphs.importers.functionalize import AUTOCAST
from graphs.importers.program import Call, Leaf, Program, Update
from graphs.ir import Graph, Op, Role, Tensor

VERSION = 1

_TORCH_TYPES: Mapping[str, type] = {
    "dtype": torch.dtype,
    "layout": torch.layout,
    "memory_format": torch.memory_format,
}
"""Values that are names of torch's, such as torch.float32."""


class Unavailable(nn.Module):
    """Stands for the module of a program that was read from a file: only its operators are there."""

    def forward(self, *_args: Any, **_kwargs: Any) -> Any:
        """There is nothing to call.

        Raises:
            InputError: always.
        """
        raise InputError("this program was read from a file, without its module; give the model itself")


def program_to_dict(program: Program) -> dict[str, Any]:
    """A program, without its graph, weights and example inputs, as what JSON can hold.

    Raises:
        InputError: if an argument, or the form of what the model takes or returns, cannot be written down.
    """
    return {
        "version": VERSION,
        "fingerprint": program.graph.fingerprint,
        "training": program.training,
        "calls": {op.name: _call_to_dict(program, op) for op in program.graph.ops},
        "state": {
            name: {"stride": list(_stride(tensor)), "requires_grad": tensor.requires_grad}
            for name, tensor in program.state.items()
        },
        "statistics": sorted(program.statistics),
        "updates": {
            name: {
                "shape": list(update.tensor.shape),
                "dtype": str(update.tensor.dtype).removeprefix("torch."),
                "increment": update.increment,
            }
            for name, update in program.updates.items()
        },
        "in_spec": _spec_to_text(program.in_spec),
        "in_leaves": [_leaf_to_json(leaf) for leaf in program.in_leaves],
        "out_spec": _spec_to_text(program.out_spec),
        "out_leaves": [_leaf_to_json(leaf) for leaf in program.out_leaves],
    }


def program_from_dict(document: Mapping[str, Any], graph: Graph, example_inputs: tuple[torch.Tensor, ...]) -> Program:
    """The inverse of `program_to_dict`; every weight is on the meta device, with the shape and strides that it had.

    Raises:
        InputError: if the version is newer, it is of another graph, an operator is not known here, or it is damaged.
    """
    version = document.get("version")
    if isinstance(version, bool) or version != VERSION:
        raise InputError(
            f"the program has the version {version!r}, this planner reads {VERSION}; "
            "update the planner or write it anew"
        )
    if document.get("fingerprint") != graph.fingerprint:
        raise InputError(
            f"the program is that of the graph {document.get('fingerprint')!r}, the plan's is {graph.fingerprint}; "
            "write both anew"
        )
    try:
        calls, tensor_of = _calls(document["calls"], graph)
        return Program(
            module=Unavailable(),
            graph=graph,
            calls=calls,
            tensor_of=tensor_of,
            state={name: _hollow(graph.tensor[name], about) for name, about in document["state"].items()},
            example_inputs=example_inputs,
            in_spec=_spec_from_text(document["in_spec"]),
            in_leaves=tuple(_leaf_from_json(leaf) for leaf in document["in_leaves"]),
            out_spec=_spec_from_text(document["out_spec"]),
            out_leaves=tuple(_leaf_from_json(leaf) for leaf in document["out_leaves"]),
            training=bool(document["training"]),
            statistics=frozenset(document["statistics"]),
            updates={name: _hollow_update(about) for name, about in document["updates"].items()},
        )
    except InputError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"the program is damaged: {error!r}; write it anew") from error


def _call_to_dict(program: Program, op: Op) -> dict[str, Any]:
    call = program.calls[op.name]

    def tensor(node: fx.Node) -> dict[str, str]:
        return {"tensor": program.tensor_of[node.name]}

    where = f"operator '{op.name}' of '{program.graph.name}'"
    document: dict[str, Any] = {"args": [_to_json(value, tensor, where) for value in call.node.args]}
    if call.node.kwargs:
        document["kwargs"] = {name: _to_json(value, tensor, where) for name, value in call.node.kwargs.items()}
    if call.unpack:
        document["unpack"] = True
    if AUTOCAST in call.node.meta:
        document[AUTOCAST] = call.node.meta[AUTOCAST]
    return document


def _calls(documents: Mapping[str, Any], graph: Graph) -> tuple[dict[str, Call], dict[str, str]]:
    """The calls by operator, with a placeholder for each tensor, and the tensor of each placeholder's name."""
    code = fx.Graph()
    nodes = {tensor.name: code.placeholder(f"tensor{number}") for number, tensor in enumerate(graph.tensors)}
    calls = {}
    for op in graph.ops:
        document = documents[op.name]
        args = tuple(_from_json(value, nodes) for value in document["args"])
        kwargs = {name: _from_json(value, nodes) for name, value in document.get("kwargs", {}).items()}
        node = code.call_function(_target(op), args, kwargs)
        if AUTOCAST in document:
            node.meta[AUTOCAST] = document[AUTOCAST]
        calls[op.name] = Call(node, document.get("unpack", False))
    return calls, {node.name: name for name, node in nodes.items()}


def _target(op: Op) -> Callable[..., Any]:
    """torch.ops.aten.conv2d.default for ``aten.conv2d.default``."""
    namespace, _, rest = op.kind.partition(".")
    name, _, overload = rest.rpartition(".")
    try:
        target: Callable[..., Any] = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    except AttributeError as error:
        raise InputError(
            f"operator '{op.name}' is of the kind '{op.kind}', which torch {torch.__version__} does not know; "
            "import the library that defines it, or install the torch that the model was imported with"
        ) from error
    return target


def _hollow(tensor: Tensor, about: Mapping[str, Any]) -> torch.Tensor:
    """A tensor on the meta device."""
    empty = torch.empty_strided(tensor.shape, about["stride"], dtype=getattr(torch, tensor.dtype), device="meta")
    if tensor.role is Role.PARAMETER:
        return nn.Parameter(empty, requires_grad=about["requires_grad"])
    return empty.requires_grad_(about["requires_grad"])


def _hollow_update(about: Mapping[str, Any]) -> Update:
    empty = torch.empty(about["shape"], dtype=getattr(torch, about["dtype"]), device="meta")
    return Update(empty, about["increment"])


def _stride(tensor: torch.Tensor) -> tuple[int, ...]:
    """How it lies in memory of its own: as it does, unless that has holes or shows elements twice."""
    return torch.empty_like(tensor, device="meta", memory_format=torch.preserve_format).stride()


def _to_json(value: Any, tensor: Callable[[fx.Node], Any], where: str) -> Any:
    """An argument; what JSON does not know becomes an object with one key."""
    if isinstance(value, fx.Node):
        return tensor(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, complex):
        return {"complex": str(value)}
    if isinstance(value, list):
        return [_to_json(item, tensor, where) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [_to_json(item, tensor, where) for item in value]}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    for key, kind in _TORCH_TYPES.items():
        if isinstance(value, kind):
            return {key: str(value).removeprefix("torch.")}
    raise InputError(f"{where} has an argument of the type {type(value).__name__}, which cannot be written to a file")


def _from_json(value: Any, nodes: Mapping[str, fx.Node]) -> Any:
    """The inverse of `_to_json`."""
    if isinstance(value, list):
        return [_from_json(item, nodes) for item in value]
    if not isinstance(value, dict):
        return value
    ((key, content),) = value.items()
    if key == "tensor":
        return nodes[content]
    if key == "tuple":
        return tuple(_from_json(item, nodes) for item in content)
    if key in _TORCH_TYPES:
        return getattr(torch, content)
    return {"float": float, "complex": complex, "device": torch.device}[key](content)


def _leaf_to_json(leaf: Leaf) -> Any:
    if isinstance(leaf, str):
        return leaf
    (constant,) = leaf
    return {"constant": _to_json(constant, _no_tensor, "the model")}


def _no_tensor(node: fx.Node) -> Any:
    raise AssertionError(f"'{node.name}' is a tensor, not a constant")


def _leaf_from_json(leaf: Any) -> Leaf:
    return leaf if isinstance(leaf, str) else (_from_json(leaf["constant"], {}),)


def _spec_to_text(spec: pytree.TreeSpec) -> str:
    try:
        return pytree.treespec_dumps(spec)
    except (NotImplementedError, TypeError) as error:
        raise InputError(
            f"the form of what the model takes or returns cannot be written to a file ({first_line(error)}); "
            "use tuples, lists and dictionaries, or register its class with serialized_type_name='its.module.Class'"
        ) from error


def _spec_from_text(text: str) -> pytree.TreeSpec:
    """A form may hold classes of the model's code, which torch knows once their module is imported."""
    try:
        return pytree.treespec_loads(text)
    except NotImplementedError as error:
        for name in _class_names(text):
            try:
                import_module(name.rpartition(".")[0])
            except (ImportError, ValueError) as missing:  # ValueError for a name without a module
                raise InputError(
                    f"the model takes or returns a '{name}', whose module cannot be imported here; install it"
                ) from missing
        try:
            return pytree.treespec_loads(text)
        except NotImplementedError:
            raise InputError(
                f"the form of what the model takes or returns is not known here ({first_line(error)}); "
                "see that the module of its class registers it with torch when it is imported"
            ) from error


def _class_names(text: str) -> list[str]:
    """The classes that a form names and torch does not know, each once."""
    found: dict[str, None] = {}
    _, schema = json.loads(text)
    left = [schema]
    while left:
        node = left.pop()
        if node["type"] is not None and node["type"] not in pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE:
            found[node["type"]] = None
        left += node["children_spec"]
    return list(found)
