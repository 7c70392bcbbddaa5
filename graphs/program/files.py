"""A Program without its weights as JSON, so that it runs without the model and the model's code.

The graph is in another file (graph.json, plan.json). This document adds the exact arguments of each operator, the
strides of the weights, and the structure of the model's arguments and results (its forms). A form may name classes of
the model's code. torch knows those whose modules have been imported; no module is imported because a file names it.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from graphs.common.documents import DAMAGED, check_version, parse_json
from graphs.common.errors import InputError, first_line
from graphs.importers.functionalize import AUTOCAST
from graphs.ir import STATE, Graph, Op, Role, Tensor, unfused
from graphs.program.calls import known_operator
from graphs.program.pieces import Pieces
from graphs.program.program import BufferUpdate, Call, Leaf, Program
from graphs.program.traced_strides import STRIDED

VERSION = 1

MARKS = (AUTOCAST, STRIDED)
"""Keys of the ``meta`` of a call's node that a file keeps."""

_TORCH_TYPES: Mapping[str, type] = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}
"""Types whose values torch names, such as torch.float32."""


class UnavailableModule(nn.Module):
    """Replaces the module of a program that was read from a file, which has only the operators."""

    def forward(self, *_args: Any, **_kwargs: Any) -> Any:
        """Raise an InputError, since there is no module to call."""
        raise InputError("this program was read from a file, without its module; give the model itself")


def program_to_dict(program: Program) -> dict[str, Any]:
    """A program as a JSON document, without its graph, weights and example inputs.

    Raises:
        InputError: if an argument, or the structure of the model's arguments or results, has no written form.
    """
    return {
        "version": VERSION,
        "fingerprint": program.graph.fingerprint,
        "training": program.training,
        "calls": {op.name: _call_to_dict(program, op) for op in unfused(program.graph.ops)},
        "state": {
            name: {"stride": list(_stride(tensor)), "requires_grad": tensor.requires_grad}
            for name, tensor in program.state.items()
        },
        "slices": Pieces.of(program).to_dict(program.slices),
        "strides": {name: list(strides) for name, strides in program.strides.items()},
        "statistics": sorted(program.statistics),
        "updates": {
            name: {
                "shape": list(update.tensor.shape),
                "dtype": str(update.tensor.dtype).removeprefix("torch."),
                "increment": update.increment,
            }
            for name, update in program.updates.items()
        },
        "in_spec": form_to_text(program.in_spec),
        "in_leaves": [_leaf_to_json(leaf) for leaf in program.in_leaves],
        "out_spec": form_to_text(program.out_spec),
        "out_leaves": [_leaf_to_json(leaf) for leaf in program.out_leaves],
    }


def program_from_dict(document: Mapping[str, Any], graph: Graph, example_inputs: tuple[torch.Tensor, ...]) -> Program:
    """The inverse of `program_to_dict`; every weight is on the meta device, with its former shape and strides.

    Raises:
        InputError: if the version or the graph is another, torch does not know an operator, or the document is
            malformed.
    """
    check_version(document, "program", VERSION, "update the planner or write it anew")
    if document.get("fingerprint") != graph.fingerprint:
        raise InputError(
            f"the program is that of the graph {document.get('fingerprint')!r}, the plan's is {graph.fingerprint}; "
            "write both anew"
        )
    with reading_program():
        calls, tensor_of = _calls(document["calls"], graph)
        pieces = Pieces.from_dict(document.get("slices", {}))
        return Program(
            module=UnavailableModule(),
            graph=graph,
            calls=calls,
            tensor_of=tensor_of,
            state={name: _hollow(graph.tensor[name], about) for name, about in document["state"].items()},
            example_inputs=example_inputs,
            in_spec=form_from_text(document["in_spec"]),
            in_leaves=tuple(_leaf_from_json(leaf) for leaf in document["in_leaves"]),
            out_spec=form_from_text(document["out_spec"]),
            out_leaves=tuple(_leaf_from_json(leaf) for leaf in document["out_leaves"]),
            training=bool(document["training"]),
            statistics=frozenset(document["statistics"]),
            updates={name: _hollow_update(about) for name, about in document["updates"].items()},
            slices=pieces.slices,
            sources={name: _hollow_source(name, pieces, graph) for name in pieces.names},
            strides={name: _strides(graph.tensor[name], each) for name, each in document.get("strides", {}).items()},
        )


@contextmanager
def reading_program() -> Iterator[None]:
    """Context for code that reads a program's file, which may be damaged or come from a stranger.

    Raises:
        InputError: if the content is malformed.
    """
    try:
        yield
    except InputError:
        raise
    except (*DAMAGED, RuntimeError) as error:  # a RecursionError is a RuntimeError
        raise InputError(f"the program is damaged: {error!r}; write it anew") from error


def _call_to_dict(program: Program, op: Op) -> dict[str, Any]:
    call, tensor_of = program.calls[op.name], program.tensor_of
    where = f"operator '{op.name}' of '{program.graph.name}'"
    document: dict[str, Any] = {"args": [_to_json(value, tensor_of, where) for value in call.node.args]}
    if call.node.kwargs:
        document["kwargs"] = {name: _to_json(value, tensor_of, where) for name, value in call.node.kwargs.items()}
    if call.unpack:
        document["unpack"] = True
    document |= {mark: call.node.meta[mark] for mark in MARKS if mark in call.node.meta}
    return document


def _calls(documents: Mapping[str, Any], graph: Graph) -> tuple[dict[str, Call], dict[str, str]]:
    """The calls by operator, with a placeholder for each tensor, and the tensor of each placeholder's name."""
    code = fx.Graph()
    nodes = {tensor.name: code.placeholder(f"tensor{number}") for number, tensor in enumerate(graph.tensors)}
    calls = {}
    for op in unfused(graph.ops):
        document = documents[op.name]
        args = tuple(_from_json(value, nodes) for value in document["args"])
        kwargs = {name: _from_json(value, nodes) for name, value in document.get("kwargs", {}).items()}
        node = code.call_function(known_operator(op), args, kwargs)
        node.meta |= {mark: document[mark] for mark in MARKS if mark in document}
        calls[op.name] = Call(node, document.get("unpack", False))
    return calls, {node.name: name for name, node in nodes.items()}


def _hollow(tensor: Tensor, about: Mapping[str, Any]) -> torch.Tensor:
    """A parameter or buffer on the meta device, whose storage has no holes."""
    if tensor.role not in STATE:
        raise InputError(f"the program has '{tensor.name}' among the weights, which is an {tensor.role}")
    empty = torch.empty_strided(tensor.shape, about["stride"], dtype=getattr(torch, tensor.dtype), device="meta")
    if empty.stride() != _stride(empty):
        raise InputError(f"the program has '{tensor.name}' of {list(tensor.shape)} with the strides {about['stride']}")
    if tensor.role is Role.PARAMETER:
        return nn.Parameter(empty, requires_grad=about["requires_grad"])
    return empty.requires_grad_(about["requires_grad"])


def _strides(tensor: Tensor, given: Any) -> tuple[int, ...]:
    """The strides that a result has in the trace."""
    if len(given) != len(tensor.shape) or not all(type(each) is int and each >= 0 for each in given):
        raise InputError(f"the program has '{tensor.name}' of {list(tensor.shape)} with the strides {given}")
    return tuple(given)


def _hollow_source(name: str, pieces: Pieces, graph: Graph) -> torch.Tensor:
    """A tensor on the meta device that the parameters or buffers of a graph are parts of."""
    return hollow_of({"shape": pieces.shapes[name], "dtype": graph.tensor[pieces.names[name][0]].dtype})


def hollow_of(about: Mapping[str, Any]) -> torch.Tensor:
    """A tensor on the meta device, with the shape and the dtype of a document."""
    return torch.empty(about["shape"], dtype=_named("dtype", about["dtype"]), device="meta")


def _hollow_update(about: Mapping[str, Any]) -> BufferUpdate:
    increment = about["increment"]
    if isinstance(increment, bool) or not isinstance(increment, int | float):
        raise InputError(f"the program adds {increment!r} to a counter, which is no number")
    return BufferUpdate(hollow_of(about), increment)


def _named(key: str, name: object) -> Any:
    """torch's value of this name, if it has the type that the key stands for."""
    value = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(value, _TORCH_TYPES[key]):
        raise InputError(f"the program names the {key} {name!r}, which torch does not have")
    return value


def _stride(tensor: torch.Tensor) -> tuple[int, ...]:
    """The strides of a copy: those of the tensor, unless its storage has holes or shares elements."""
    return torch.empty_like(tensor, device="meta", memory_format=torch.preserve_format).stride()


def _to_json(value: Any, tensor_of: Mapping[str, str], where: str) -> Any:
    """An argument as JSON; a value of a type that JSON lacks becomes an object with one key."""
    if isinstance(value, fx.Node):
        return {"tensor": tensor_of[value.name]}
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, complex):
        return {"complex": str(value)}
    if isinstance(value, list):
        return [_to_json(item, tensor_of, where) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [_to_json(item, tensor_of, where) for item in value]}
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
        return _named(key, content)
    return {"float": float, "complex": complex, "device": torch.device}[key](content)


def _leaf_to_json(leaf: Leaf) -> Any:
    if isinstance(leaf, str):
        return leaf
    (constant,) = leaf
    return {"constant": _to_json(constant, {}, "the model")}


def _leaf_from_json(leaf: Any) -> Leaf:
    return leaf if isinstance(leaf, str) else (_from_json(leaf["constant"], {}),)


FACTORIES = frozenset({"list", "dict", "set", "tuple", "int", "float", "str", "bool"})
"""The builtins that a defaultdict in a file may have as its factory."""


def form_to_text(spec: pytree.TreeSpec) -> str:
    """The text that `form_from_text` reads.

    Raises:
        InputError: if the form has a class that was registered without a serialized name.
    """
    try:
        return pytree.treespec_dumps(spec)
    except (NotImplementedError, TypeError) as error:
        raise InputError(
            f"the form of what the model takes or returns cannot be written to a file ({first_line(error)}); "
            "use tuples, lists and dictionaries, or register its class with serialized_type_name='its.module.Class'"
        ) from error


def form_from_text(text: str) -> pytree.TreeSpec:
    """The inverse of `form_to_text`.

    Raises:
        InputError: if it holds a class that is not known here, or something that would have to be imported.
        ValueError, KeyError, TypeError: if it is damaged, or nested too deeply.
    """
    _, root = parse_json(text)
    left = [root]
    while left:
        node = left.pop()
        _check_node(node["type"], node["context"])
        left += node["children_spec"]
    return pytree.treespec_loads(text)


def modules_of(spec: pytree.TreeSpec) -> set[str]:
    """The modules of a form's classes, which a process has to import before it can read the form."""
    modules = {spec.type.__module__} if spec.type is not None else set()
    return modules.union(*map(modules_of, spec.children())) - {"builtins", "collections", "__main__"}


def _check_node(name: Any, context: Any) -> None:
    if name is not None and name not in pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE:
        module = str(name).rpartition(".")[0] or name
        raise InputError(
            f"the model takes or returns a '{name}', which is not known here; import its module first "
            f"(import {module}, or --import {module} for planner rank)"
        )
    if name == "collections.defaultdict":
        factory = (context["default_factory_module"], context["default_factory_name"])
        if factory[0] != "builtins" or factory[1] not in FACTORIES:
            raise InputError(
                f"the model takes or returns a defaultdict of '{'.'.join(map(str, factory))}'; a file may hold those "
                f"of {', '.join(sorted(FACTORIES))}"
            )
    if isinstance(context, str):
        _check_no_enumeration(parse_json(context))


def _check_no_enumeration(context: Any) -> None:
    """Refuse members of enumerations, whose modules torch would import."""
    if isinstance(context, dict) and "__enum__" in context:
        raise InputError(
            "the model takes or returns a dictionary with members of an enumeration as keys, which a file cannot hold; "
            "use text or numbers"
        )
    for item in context.values() if isinstance(context, dict) else context if isinstance(context, list) else ():
        _check_no_enumeration(item)
