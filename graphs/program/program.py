"""Program: a graph together with the PyTorch call of each of its operators.

Every importer returns a Program, and calibration and the runtime start from it without knowing the network's source.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from graphs.common.brief import Brief
from graphs.common.errors import InputError
from graphs.ir import STATE, Graph, Op, unfused
from graphs.program.arguments import Arguments, named_alike, same
from graphs.program.calls import check_call
from graphs.program.strides import laid
from graphs.rewrites.layouts import Slice

Leaf: TypeAlias = "str | tuple[Any]"
"""One leaf of the arguments or of the results: the name of a tensor, or a constant in a 1-tuple."""


def on_device(arguments: Any, place: torch.device) -> Any:
    """The arguments of an operator with the device of the trace replaced by the device that runs the operator."""
    return fx.node.map_aggregate(arguments, lambda value: place if isinstance(value, torch.device) else value)


def as_held(tensor: torch.Tensor, place: torch.device, copied: bool = False) -> torch.Tensor:
    """A device's detached copy of a parameter or buffer, with the same ``requires_grad``.

    PyTorch multiplies by a weight that requires gradients with other rounding, even where no gradients are kept
    (``should_fold`` in aten/src/ATen/native/LinearAlgebra.cpp). So a run without gradients keeps the flag, too.
    Elements that an expanded tensor repeats are copied once.
    """
    held = tensor.detach().resolve_neg()
    if held.layout is torch.strided and 0 in held.stride():
        once = held[tuple(slice(None) if stride else slice(1) for stride in held.stride())]
        held = once.to(place, copy=copied).expand(held.shape)
    else:
        held = held.to(place, copy=copied)
    return held.requires_grad_(tensor.requires_grad)


def home_of(root: nn.Module, path: str) -> tuple[nn.Module, str]:
    """The module that owns the attribute at a dotted path, and the attribute's name; missing modules are created.

    Raises:
        KeyError: if an attribute on the path is no module.
    """
    *names, last = path.split(".")
    for name in names:
        if name not in root._modules:
            root.add_module(name, nn.Module())
        root = root.get_submodule(name)
    return root, last


@dataclass(frozen=True)
class Call(Brief):
    """The PyTorch call of one operator."""

    node: fx.Node  # the node of the traced graph: its target, and its arguments with nodes for tensors
    unpack: bool  # whether the target returns a tuple with the operator's outputs; else it returns the only output


@dataclass(frozen=True)
class BufferUpdate(Brief):
    """The increment that one run of the network adds to a buffer without other use."""

    tensor: torch.Tensor  # the model's own buffer
    increment: float  # the number that is added


@dataclass(frozen=True)
class Program(Brief):
    """An imported network that can run.

    Attributes:
        module: the reference model, as its user calls it; plans are compared with it.
        graph: the operators; the name of an operator is the name of its node.
        calls: the call of each operator, or of each member of a fused one, by its name.
        tensor_of: the tensor that a node stands for, by the node's name.
        state: parameters and buffers by tensor name; the model's own tensors, not copies.
        example_inputs: a flat tuple that fits ``graph.inputs``, with the strides of the trace.
        in_spec: structure of the model's arguments ``(args, kwargs)``.
        in_leaves: leaves of the model's arguments.
        out_spec: structure of the model's result.
        out_leaves: leaves of the model's result.
        training: whether the network is in training mode: dropout is active, a batch norm uses its batch's statistics.
        statistics: names in ``state`` that an operator updates in place when it runs, as a batch norm in training does;
            that operator is their only reader.
        updates: counters by buffer name; no operator uses them, and they are not in ``state``.
        default_dtype: PyTorch's default dtype at the import, which the dtypes of the tensors depend on.
        slices: of a split network, names in ``state`` that are parts of the model's own, see `graphs.program.pieces`.
        sources: what they are parts of, by its name.
        strides: of a split network, strides that results have in the trace of the whole one, by name, where they
            matter; see `graphs.program.traced_strides`.

    Raises:
        InputError: if a call breaks its schema or differs from the graph, or the ends do not fit.
    """

    module: nn.Module
    graph: Graph
    calls: Mapping[str, Call]
    tensor_of: Mapping[str, str]
    state: Mapping[str, torch.Tensor]
    example_inputs: tuple[torch.Tensor, ...]
    in_spec: pytree.TreeSpec
    in_leaves: tuple[Leaf, ...]
    out_spec: pytree.TreeSpec
    out_leaves: tuple[Leaf, ...]
    training: bool = False
    statistics: frozenset[str] = frozenset()
    updates: Mapping[str, BufferUpdate] = field(default_factory=dict)
    default_dtype: torch.dtype = field(default_factory=torch.get_default_dtype)
    slices: Mapping[str, Slice] = field(default_factory=dict)
    sources: Mapping[str, torch.Tensor] = field(default_factory=dict)
    strides: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for op in unfused(self.graph.ops):
            call = self.calls[op.name]
            check_call(op, call.node, self.tensor_of)
            if not (call.unpack or len(op.outputs) == 1):
                raise InputError(f"operator '{op.name}' returns one tensor; its graph has {len(op.outputs)}")
        kept = {tensor.name for tensor in self.graph.tensors if tensor.role in STATE}
        for name in sorted(kept ^ self.state.keys() | self.statistics - kept):
            raise InputError(f"'{name}' must be a parameter or buffer of both the graph and the program; import again")
        self._check_ends()

    def _check_ends(self) -> None:
        """Check that the leaves of arguments and results name the inputs and outputs of the graph."""
        for verb, leaves, spec, names in (
            ("takes", self.in_leaves, self.in_spec, self.graph.inputs),
            ("returns", self.out_leaves, self.out_spec, self.graph.outputs),
        ):
            tensors = tuple(dict.fromkeys(leaf for leaf in leaves if isinstance(leaf, str)))
            if tensors != names or len(leaves) != spec.num_leaves:
                raise InputError(
                    f"the model {verb} {spec.num_leaves} values, of which {list(tensors)} are tensors; its graph "
                    f"{verb} {list(names)}; import the model again"
                )

    def arguments(self, op: Op, value: Callable[[str], Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments of an operator, with ``value(name of the tensor)`` for each tensor."""
        node = self.calls[op.name].node

        def bound(argument: fx.Node) -> Any:
            return value(self.tensor_of[argument.name])

        return fx.map_arg(node.args, bound), fx.map_arg(node.kwargs, bound)

    def execute(self, op: Op, env: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Run one operator on tensors by name, and return its outputs in the order of ``op.outputs``.

        The members of a fused operator run one after another.
        """
        if op.members:
            inner = dict(env)
            for member in op.members:
                inner.update(zip(member.outputs, self.execute(member, inner), strict=True))
            return tuple(inner[name] for name in op.outputs)
        call = self.calls[op.name]
        args, kwargs = self.arguments(op, env.__getitem__)
        result = call.node.target(*args, **kwargs)  # type: ignore[operator]  # always callable: see from_torch
        return tuple(result) if call.unpack else (result,)

    @property
    def asking(self) -> frozenset[str]:
        """Names of the parameters and buffers that require gradients; see `as_held`."""
        return frozenset(name for name, tensor in self.state.items() if tensor.requires_grad)

    @property
    def example_arguments(self) -> Arguments:
        """The model's positional and keyword arguments, from the example inputs."""
        return self.arguments_of(self.example_inputs)

    def arguments_of(self, inputs: Iterable[torch.Tensor]) -> Arguments:
        """The model's positional and keyword arguments, from a flat tuple that fits ``graph.inputs``."""
        tensors = iter(inputs)
        leaves = [next(tensors) if isinstance(leaf, str) else leaf[0] for leaf in self.in_leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self.in_spec)
        return Arguments(tuple(args), dict(kwargs))

    def flatten(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
        """The model's arguments as the flat tuple of ``graph.inputs``, checked.

        Raises:
            InputError: if the structure, a shape or a dtype differs from the import.
        """
        leaves = self.leaves_of(args, kwargs)
        tensors, examples = [], iter(self.example_inputs)
        for want, got in zip(self.in_leaves, leaves, strict=True):
            if isinstance(want, str):
                tensors.append(got if _like(got, next(examples)) else self._checked(want, got))
            elif not same(got, want[0]):
                called = "a tensor" if isinstance(got, torch.Tensor) else repr(got)
                raise InputError(
                    f"the model was imported with the argument {want[0]!r}, called with {called}; plan again"
                )
        return tuple(tensors)

    def inputs(self, tensors: Iterable[torch.Tensor], copied: bool = False) -> dict[str, torch.Tensor]:
        """The graph's inputs by name, with the strides of the trace.

        Args:
            tensors: the caller's tensors, from `flatten`.
            copied: whether to copy even where the strides are right.
        """
        return {
            name: laid(tensor, example.stride(), copied)
            for name, tensor, example in zip(self.graph.inputs, tensors, self.example_inputs, strict=True)
        }

    def leaves_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """The leaves of the model's arguments, in the order of ``in_leaves``, without a check of their shapes.

        Raises:
            InputError: if the structure differs from the import.
        """
        if not kwargs and len(args) == self._n_tensors and all(isinstance(each, torch.Tensor) for each in args):
            return list(args)  # as most models are called; a tree takes ten times as long
        given = Arguments(args, dict(kwargs))
        leaves, spec = self._flat(given)
        if spec == self.in_spec:
            return leaves
        positional, named = self.in_spec.children()
        leaves, alike = self._flat(named_alike(self.module.forward, given, positional.num_children, named.context))
        if alike == self.in_spec:
            return leaves
        raise InputError(
            f"the model was imported with arguments of the form {_form(self.in_spec)}, called with {_form(spec)}; "
            "pass the same arguments, or import the model again"
        )

    @cached_property
    def _n_tensors(self) -> int:
        """How many tensors the model takes, if they are its positional arguments and all that it takes; else -1."""
        plain = pytree.tree_structure((tuple(self.in_leaves), {})) == self.in_spec
        return len(self.in_leaves) if plain and all(isinstance(leaf, str) for leaf in self.in_leaves) else -1

    def _flat(self, given: Arguments) -> tuple[list[Any], pytree.TreeSpec]:
        """Leaves and structure of the arguments, with keyword arguments in the order of the import."""
        in_order = {name: given.kwargs[name] for name in self.in_spec.child(1).context if name in given.kwargs}
        return pytree.tree_flatten((given.args, in_order | given.kwargs))

    def _checked(self, name: str, value: Any) -> torch.Tensor:
        want = self.graph.tensor[name]
        if not isinstance(value, torch.Tensor):
            raise InputError(
                f"input '{name}' is a {type(value).__name__}; pass a tensor {list(want.shape)} {want.dtype}"
            )
        if (tuple(value.shape), str(value.dtype)) != (want.shape, f"torch.{want.dtype}"):
            raise InputError(
                f"input '{name}' is {list(value.shape)} {str(value.dtype).removeprefix('torch.')}, the model was "
                f"imported for {list(want.shape)} {want.dtype}; plan again for this input"
            )
        if value.layout is not torch.strided:
            raise InputError(
                f"input '{name}' is {str(value.layout).removeprefix('torch.')}, the model was imported for strided; "
                f"pass {name}.to_dense(), or plan for that input"
            )
        if not (value.is_cpu or value.is_cuda):
            way_out = "pass a tensor that has values" if value.is_meta else f"pass {name}.cpu()"
            raise InputError(
                f"input '{name}' is on '{value.device}', and a plan takes tensors of CPUs and GPUs; {way_out}"
            )
        return value

    def unflatten(self, tensors: Mapping[str, torch.Tensor]) -> Any:
        """The model's result, from its output tensors by name."""
        leaves = [tensors[leaf] if isinstance(leaf, str) else leaf[0] for leaf in self.out_leaves]
        return pytree.tree_unflatten(leaves, self.out_spec)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run the whole model, operator by operator, on the calling thread, without a change of its statistics."""
        env = dict(self.state) | {name: self.state[name].clone() for name in self.statistics}
        env |= self.inputs(self.flatten(args, kwargs))
        with torch.no_grad():
            for op in self.graph.ops:
                env.update(zip(op.outputs, self.execute(op, env), strict=True))
        return self.unflatten(env)


def _like(value: Any, example: torch.Tensor) -> bool:
    """Whether a value is a dense tensor, of a CPU or a GPU as a rule, with the shape and the dtype of an example."""
    plain = isinstance(value, torch.Tensor) and value.layout is torch.strided
    plain = plain and (value.is_cpu or value.is_cuda or value.device == example.device)
    return plain and value.shape == example.shape and value.dtype is example.dtype


def _form(spec: pytree.TreeSpec) -> str:
    """Structure of ``(args, kwargs)``, with a star for each leaf: ``((*, [*, *]), {'mask': *})``."""
    return repr(pytree.tree_unflatten(["*"] * spec.num_leaves, spec)).replace("'*'", "*")
