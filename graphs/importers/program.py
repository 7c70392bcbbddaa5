"""Program: a graph together with what executes each of its operators in PyTorch.

Every importer ends here, and calibration and the runtime begin here; neither knows where the network came from.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from graphs.errors import InputError
from graphs.ir import Graph, Op

Leaf: TypeAlias = "str | tuple[Any]"
"""One leaf of the arguments or of the result: the name of a tensor, or a constant in a 1-tuple."""


def on_device(arguments: Any, place: torch.device) -> Any:
    """Operators that make tensors name the device of the traced model; here they make them where they run."""
    return fx.node.map_aggregate(arguments, lambda value: place if isinstance(value, torch.device) else value)


def as_held(tensor: torch.Tensor, place: torch.device, copied: bool = False) -> torch.Tensor:
    """A parameter or buffer as a device holds it, with no gradient to share; one that asks for gradients does so there.

    PyTorch multiplies by a weight that asks for gradients in another way, which rounds otherwise, even where none are
    kept (``should_fold`` in aten/src/ATen/native/LinearAlgebra.cpp). So a run without gradients has to hold weights as
    the model does.
    """
    return tensor.detach().to(place, copy=copied).requires_grad_(tensor.requires_grad)


@dataclass(frozen=True)
class Call:
    """How PyTorch executes one operator.

    Attributes:
        node: the node of the traced graph: its target, and its arguments with nodes for tensors.
        unpack: whether the target returns a tuple, whose items are the operator's outputs; else it has one output.
    """

    node: fx.Node
    unpack: bool


@dataclass(frozen=True)
class Update:
    """What one run of the network adds to a buffer that is used for nothing else.

    Attributes:
        tensor: the model's own buffer.
        increment: what is added.
    """

    tensor: torch.Tensor
    increment: float


@dataclass(frozen=True)
class Program:
    """What an importer returns.

    Attributes:
        module: the unsplit model, as its user calls it: the reference that a plan is compared with.
        graph: the operators; the name of an operator is that of its node.
        calls: one for each operator, by its name.
        tensor_of: the tensor that a node stands for, by the node's name.
        state: parameters and buffers by tensor name; the model's own tensors, not copies.
        example_inputs: a flat tuple that fits ``graph.inputs``.
        in_spec: structure of ``(args, kwargs)`` of the model.
        in_leaves: the leaves of its arguments.
        out_spec: structure of what the model returns.
        out_leaves: the leaves of what it returns.
        training: whether it is the network as it is trained: dropout drops, a batch norm takes its batch's statistics.
        statistics: names in ``state`` that an operator updates in place when it runs, as a batch norm in training does;
            that operator is their only reader.
        updates: buffers that only count, by their names: no operator uses them, and they are not in ``state``.
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
    updates: Mapping[str, Update] = field(default_factory=dict)

    def arguments(self, op: Op, value: Callable[[str], Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments of an operator, with ``value(tensor name)`` in the place of each tensor."""
        node = self.calls[op.name].node

        def bound(argument: fx.Node) -> Any:
            return value(self.tensor_of[argument.name])

        return fx.map_arg(node.args, bound), fx.map_arg(node.kwargs, bound)

    def execute(self, op: Op, env: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Run one operator on tensors by name; the tensors it writes, in the order of ``op.outputs``."""
        call = self.calls[op.name]
        args, kwargs = self.arguments(op, env.__getitem__)
        result = call.node.target(*args, **kwargs)  # type: ignore[operator]  # always callable: see from_torch
        return tuple(result) if call.unpack else (result,)

    @property
    def asking(self) -> frozenset[str]:
        """Names of the parameters and buffers that ask for a gradient; see `as_held`."""
        return frozenset(name for name, tensor in self.state.items() if tensor.requires_grad)

    @property
    def example_arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments for the model, from the example inputs."""
        return self.arguments_of(self.example_inputs)

    def arguments_of(self, inputs: Iterable[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments for the model, from a flat tuple that fits ``graph.inputs``."""
        tensors = iter(inputs)
        leaves = [next(tensors) if isinstance(leaf, str) else leaf[0] for leaf in self.in_leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self.in_spec)
        return tuple(args), dict(kwargs)

    def flatten(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
        """The model's arguments as the flat tuple of ``graph.inputs``, checked.

        Raises:
            InputError: if the structure, a shape or a dtype differs from what the model was imported with.
        """
        leaves = self.leaves_of(args, kwargs)
        tensors = []
        for want, got in zip(self.in_leaves, leaves, strict=True):
            if isinstance(want, str):
                tensors.append(self._checked(want, got))
            elif isinstance(got, torch.Tensor) or got != want[0]:
                called = "a tensor" if isinstance(got, torch.Tensor) else repr(got)
                raise InputError(
                    f"the model was imported with the argument {want[0]!r}, called with {called}; plan again"
                )
        return tuple(tensors)

    def leaves_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """The leaves of the model's arguments, in the order of ``in_leaves``; their shapes are not looked at.

        Raises:
            InputError: if the structure differs from what the model was imported with.
        """
        in_order = {name: kwargs[name] for name in self.in_spec.child(1).context if name in kwargs}
        leaves, spec = pytree.tree_flatten((tuple(args), in_order | dict(kwargs)))
        if spec != self.in_spec:
            raise InputError(
                f"the model was imported with arguments of the form {_form(self.in_spec)}, called with {_form(spec)}; "
                "pass the same arguments, or import the model again"
            )
        return leaves

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
        return value

    def unflatten(self, tensors: Mapping[str, torch.Tensor]) -> Any:
        """What the model returns, from its output tensors by name."""
        leaves = [tensors[leaf] if isinstance(leaf, str) else leaf[0] for leaf in self.out_leaves]
        return pytree.tree_unflatten(leaves, self.out_spec)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run the whole model, operator by operator, on the calling thread; its statistics stay as they are."""
        env = dict(self.state) | {name: self.state[name].clone() for name in self.statistics}
        env |= dict(zip(self.graph.inputs, self.flatten(args, kwargs), strict=True))
        with torch.no_grad():
            for op in self.graph.ops:
                env.update(zip(op.outputs, self.execute(op, env), strict=True))
        return self.unflatten(env)


def _form(spec: pytree.TreeSpec) -> str:
    """Structure of ``(args, kwargs)``, with a star for each leaf: ``((*, [*, *]), {'mask': *})``."""
    return repr(pytree.tree_unflatten(["*"] * spec.num_leaves, spec)).replace("'*'", "*")
