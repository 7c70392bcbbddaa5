"""Translates a functional traced graph into a Program: names, roles, shapes, module paths and attributes."""

import math
import operator
from typing import Any

import torch
from torch import fx, nn
from torch._ops import OpOverload
from torch.export.graph_signature import ConstantArgument, InputKind, InputSpec
from torch.utils import _pytree as pytree

from graphs.common.errors import InputError
from graphs.importers.expansion import Trace
from graphs.importers.functionalize import running_statistics, with_defaults, written_by
from graphs.importers.source_location import at_node, module_path
from graphs.ir import Attr, Graph, Op, Role, Tensor
from graphs.program.program import Call, Leaf, Program

STATE_ROLES = {
    InputKind.PARAMETER: Role.PARAMETER,
    InputKind.BUFFER: Role.BUFFER,
    InputKind.CONSTANT_TENSOR: Role.BUFFER,
}

NUMBERED = {
    torch.ops.aten.conv1d.padding: torch.ops.aten.conv1d.default,
    torch.ops.aten.conv2d.padding: torch.ops.aten.conv2d.default,
    torch.ops.aten.conv3d.padding: torch.ops.aten.conv3d.default,
}
"""Convolutions that are padded by numbers, for those that are padded by a name."""


def translate(trace: Trace, name: str, module: nn.Module) -> Program:
    """Build the Program of a trace.

    Raise InputError if a shape is not fixed, an operator yields no tensors, or updated statistics have another reader.
    """
    _drop_checks(trace.code)
    _number_paddings(trace.code)
    return _Translation(trace, name).program(module)


def _drop_checks(code: fx.Graph) -> None:
    """Remove assertions, and operators that only they read, such as a number from a tensor."""
    read_by_checks: set[fx.Node] = set()
    for node in reversed(list(code.nodes)):
        if node.op != "call_function" or node.users or written_by(node):
            continue
        value = node.meta.get("val")  # assertions have none; an operator yields one or several tensors, or a number
        if value is None or (node in read_by_checks and not isinstance(value, torch.Tensor | tuple | list)):
            read_by_checks.update(node.all_input_nodes)
            code.erase_node(node)


def _number_paddings(code: fx.Graph) -> None:
    """Give convolutions that are padded by a name, ``same`` or ``valid``, the numbers that PyTorch calls them with.

    One that would need more zeros on one side than on the other is left as it is.
    """
    for node in code.nodes:
        if node.op != "call_function" or node.target not in NUMBERED or node.kwargs:
            continue
        x, weight, bias, stride, padding, dilation, groups = with_defaults(node)
        sizes = weight.meta["val"].shape[2:]
        gaps = [*dilation] * (len(sizes) if len(dilation) == 1 else 1)
        zeros = [gap * (size - 1) if padding == "same" else 0 for size, gap in zip(sizes, gaps, strict=True)]
        if not any(both % 2 for both in zeros):
            node.target = NUMBERED[node.target]
            node.args, node.kwargs = (x, weight, bias, stride, [both // 2 for both in zeros], dilation, groups), {}


class _Translation:
    """Fills the tables of a Program in one pass over the nodes."""

    def __init__(self, trace: Trace, name: str) -> None:
        self.trace = trace
        self.code = code = trace.code
        self.name = name
        self.tensors: dict[str, Tensor] = {}
        self.tensor_of: dict[str, str] = {}
        self.state: dict[str, torch.Tensor] = {}
        self.ops: list[Op] = []
        self.calls: dict[str, Call] = {}
        self.reserved = {name for node in code.nodes for name in (node.name, *_output_names(node))}

    def program(self, module: nn.Module) -> Program:
        in_leaves = self._in_leaves()
        for node in self.code.nodes:
            if node.op == "call_function" and node.target is not operator.getitem:
                self._add_op(node)
            elif node.op == "get_attr":
                raise self._unplaceable(node)
        out_leaves = self._out_leaves()
        inputs, outputs = (
            tuple(dict.fromkeys(leaf for leaf in leaves if isinstance(leaf, str))) for leaves in (in_leaves, out_leaves)
        )
        used = {*inputs, *outputs, *(name for op in self.ops for name in (*op.inputs, *op.outputs))}
        tensors = tuple(tensor for tensor in self.tensors.values() if tensor.name in used)
        graph = Graph(self.name, tuple(self.ops), tensors, inputs, outputs)
        spec = self.trace.call_spec
        return Program(
            module=module,
            graph=graph,
            calls=self.calls,
            tensor_of=self.tensor_of,
            state={name: tensor for name, tensor in self.state.items() if name in used},
            example_inputs=self._example_inputs(in_leaves),
            in_spec=spec.in_spec,
            in_leaves=in_leaves,
            out_spec=spec.out_spec,
            out_leaves=out_leaves,
            statistics=self._statistics(graph),
        )

    def _in_leaves(self) -> tuple[Leaf, ...]:
        """The leaves of the model's arguments; the state is added first, so that it keeps its own names."""
        placeholders = [node for node in self.code.nodes if node.op == "placeholder"]
        specs = list(zip(placeholders, self.trace.inputs, strict=True))
        for node, spec in specs:
            if spec.kind in STATE_ROLES:
                self._add_state(node, spec)
            elif spec.kind is not InputKind.USER_INPUT:
                raise self._stateful(node, spec)
        return tuple(self._in_leaf(node, spec) for node, spec in specs if spec.kind is InputKind.USER_INPUT)

    def _statistics(self, graph: Graph) -> frozenset[str]:
        """The state that operators update; each tensor has one reader, so that its value depends on no order."""
        updater: dict[str, str] = {}  # tensor -> operator
        for call in self.calls.values():
            updater |= {self.tensor_of[node.name]: call.node.name for node in running_statistics(call.node)}
        for op in graph.ops:
            for name in op.inputs:
                if updater.get(name, op.name) != op.name:
                    raise self._used_beside(name, updater[name], f"'{op.name}'")
        for name in graph.outputs:
            if name in updater:
                raise self._used_beside(name, updater[name], "what the model returns")
        return frozenset(updater)

    def _used_beside(self, name: str, op: str, other: str) -> InputError:
        return InputError(
            f"model '{self.name}' updates '{name}' in '{op}' and uses it in {other} too, so that its value depends on "
            "their order; call each normalisation once, or switch that part to evaluation mode (.eval())"
        )

    def _unplaceable(self, block: fx.Node) -> InputError:
        if any(user.target is torch.ops.higher_order.wrap_with_autocast for user in block.users):
            return InputError(
                f"model '{self.name}' enables torch.autocast in its forward ('{block.target}'), "
                "which casts while it runs; cast the model as a whole, for example by model.to(torch.bfloat16)"
            )
        return InputError(
            f"model '{self.name}' has control flow that depends on tensor values ('{block.target}'), "
            "which cannot be placed; import a model without it"
        )

    def _stateful(self, node: fx.Node, spec: InputSpec) -> InputError:
        user = next(iter(node.users), node)
        if isinstance(self.trace.state.get(str(spec.target)), torch.Generator):
            return InputError(
                f"model '{self.name}' draws from a torch.Generator of its own ('{user.name}'{at_node(user)}), whose "
                "state no graph keeps between calls; draw from PyTorch's own numbers (leave generator= out), or pass "
                "the drawn tensor in as an argument"
            )
        kind = str(getattr(spec.arg, "class_fqn", spec.kind.name.lower()))
        return InputError(
            f"model '{self.name}' reads a '{kind}' ('{user.name}'{at_node(user)}), and a graph reads tensors only; "
            "import a model without it"
        )

    def _add_state(self, node: fx.Node, spec: InputSpec) -> None:
        """Add a parameter, buffer or constant under its path; a tensor with two paths keeps the first."""
        path = spec.target or node.name
        value = self.trace.state.get(path)
        if not isinstance(value, torch.Tensor):
            raise InputError(f"model '{self.name}' has the state '{path}', a {type(value).__name__}; only tensors fit")
        for name, earlier in self.state.items():
            if _same(earlier, value):
                self.tensor_of[node.name] = name
                return
        name = path if path not in self.reserved else node.name  # an input may have the name of a buffer
        self.tensor_of[node.name] = name
        self.state[name] = value
        self._add_tensor(name, value, STATE_ROLES[spec.kind])

    def _in_leaf(self, node: fx.Node, spec: InputSpec) -> Leaf:
        if isinstance(spec.arg, ConstantArgument):
            return (spec.arg.value,)
        self.tensor_of[node.name] = node.name
        self._add_tensor(node.name, node.meta["val"], Role.INPUT)
        return node.name

    def _add_op(self, node: fx.Node) -> None:
        if not isinstance(node.target, OpOverload):
            raise InputError(
                f"model '{self.name}' calls '{node.target}' at '{node.name}'{at_node(node)}, which is no tensor "
                "operator; import a model without it"
            )
        value = node.meta["val"]
        outputs = _output_names(node)
        unpack = isinstance(value, tuple | list)
        if unpack:
            for user in node.users:
                self.tensor_of[user.name] = outputs[user.args[1]]  # type: ignore[index]  # export unpacks by number
        else:
            self.tensor_of[node.name] = node.name
        for name, item in zip(outputs, value if unpack else (value,), strict=True):
            self._add_tensor(name, item, Role.ACTIVATION, at_node(node))
        self.calls[node.name] = Call(node, unpack)
        self.ops.append(
            Op(node.name, str(node.target), tuple(self._reads(node)), outputs, module_path(node), _attributes(node))
        )

    def _reads(self, node: fx.Node) -> list[str]:
        arguments: list[fx.Node] = []
        fx.map_arg((node.args, node.kwargs), arguments.append)
        return [self.tensor_of[argument.name] for argument in arguments]

    def _add_tensor(self, name: str, value: Any, role: Role, place: str = "") -> None:
        if not isinstance(value, torch.Tensor) or any(isinstance(d, torch.SymInt) for d in value.shape):
            raise InputError(
                f"model '{self.name}' has '{name}'{place} without a fixed shape ({value}); "
                "import it with example inputs of fixed shapes and without values that depend on data"
            )
        if value.layout is not torch.strided and (role is Role.INPUT or value.layout is not torch.sparse_coo):
            layout = str(value.layout).removeprefix("torch.")
            way_out = "" if role is Role.INPUT else f", or as {name}.to_sparse()"
            raise InputError(
                f"model '{self.name}' has '{name}'{place} in the layout {layout}, for which memory and work are not "
                f"known; give it as {name}.to_dense(){way_out}"
            )
        dtype = str(value.dtype).removeprefix("torch.")
        self.tensors[name] = Tensor(name, tuple(int(d) for d in value.shape), dtype, role)

    def _out_leaves(self) -> tuple[Leaf, ...]:
        (results,) = self.code.output_node().args
        assert isinstance(results, tuple | list)
        return tuple(self.tensor_of[result.name] if isinstance(result, fx.Node) else (result,) for result in results)

    def _example_inputs(self, in_leaves: tuple[Leaf, ...]) -> tuple[torch.Tensor, ...]:
        values = pytree.tree_leaves(self.trace.example_inputs)
        return tuple(value for leaf, value in zip(in_leaves, values, strict=True) if isinstance(leaf, str))


def _output_names(node: fx.Node) -> tuple[str, ...]:
    """The name of an operator for its only output, or a numbered name for each item of a returned tuple."""
    value = node.meta.get("val")
    return tuple(f"{node.name}.{i}" for i in range(len(value))) if isinstance(value, tuple | list) else (node.name,)


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are one; the address decides, except on the meta device, which has no addresses."""
    return a is b or (a.data_ptr() == b.data_ptr() != 0 and _layout(a) == _layout(b))


def _layout(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype


def _attributes(node: fx.Node) -> dict[str, Attr]:
    """The arguments that are no tensors, by their names in the schema; devices are left to the placement."""
    assert isinstance(node.target, OpOverload)
    names = [argument.name for argument in node.target._schema.arguments]
    given = dict(zip(names, node.args, strict=False)) | node.kwargs
    return {
        name: _attribute(value)
        for name, value in given.items()
        if name not in ("device", "pin_memory") and not _only_tensors(value)
    }


def _only_tensors(value: Any) -> bool:
    return isinstance(value, fx.Node) or (
        isinstance(value, list | tuple) and bool(value) and all(isinstance(item, fx.Node) for item in value)
    )


def _attribute(value: Any) -> Attr:
    """A value as JSON; ``tensor`` stands for a tensor in a mixed list."""
    if isinstance(value, fx.Node):
        return "tensor"
    if isinstance(value, list | tuple):
        return tuple(_attribute(item) for item in value)
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return str(value).removeprefix("torch.")
