"""Keys of operators, which determine their times. `costmodels.operators.keys` parses them."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from costmodels.operators.views import STRIDING_KINDS, bases, differentiated, operation
from graphs.common.documents import parse_json
from graphs.common.errors import InputError
from graphs.ir import Attr, Graph, Role, Tensor

BESIDE = " + "  # between the keys of a fused operator's members


def op_keys(graph: Graph) -> tuple[str, ...]:
    """[n_ops], the keys of operators; operators with the same key take the same time in any network.

    A key has the kind, shapes and dtypes of inputs and outputs, and attributes. An input is followed by the views
    between its base and the operator, which determine its strides::

        aten.add.Tensor(float32[1,768], float32[1,768]<select)->float32[1,768]{"alpha":2}

    The key of a fused operator is made of those of its members, see `is_fused`.
    """
    return _keys(graph, frozenset())


def training_keys(graph: Graph) -> tuple[str, ...]:
    """[n_ops], the keys in training, where "+grad" follows an input that gets a gradient.

    An operator without such an input has the key of `op_keys`, and no backward pass::

        aten.mm.default(float32[4,5], float32[5,5]<t+grad)->float32[4,5]
    """
    return _keys(graph, differentiated(graph))


def _keys(graph: Graph, with_gradient: frozenset[str]) -> tuple[str, ...]:
    base, keys = bases(graph), []
    seen_through: dict[str, tuple[str, ...]] = {}
    for op in graph.ops:
        if op.members:
            keys.append(BESIDE.join(_keys(graph.inside(op), with_gradient)))
            continue
        inputs, outputs = (tuple(graph.tensor[name] for name in names) for names in (op.inputs, op.outputs))
        views = tuple(seen_through.get(name, ()) for name in op.inputs)
        gradients = tuple(name in with_gradient for name in op.inputs)
        keys.append(KeyContent(op.kind, inputs, outputs, views, gradients, op.attrs).key)
        name = operation(op.kind)
        for output in op.outputs:
            if output in base:  # a view, so it has an input
                own = (name.removeprefix("aten."),) if name in STRIDING_KINDS else ()
                seen_through[output] = own + seen_through.get(op.inputs[0], ())
    return tuple(keys)


def is_fused(key: str) -> bool:
    """Return whether a key is that of a fused operator: the keys of its members."""
    return BESIDE in key


_KEY = re.compile(r"(?P<kind>[^()]*)\((?P<inputs>[^()]*)\)->(?P<outputs>[^{]*)(?P<attrs>\{.*\})?", re.DOTALL)
_TENSOR = re.compile(r"(?P<dtype>\w+)\[(?P<shape>[\d,]*)\](?P<views>(?:<\w+)*)(?P<gradient>\+grad)?")


@dataclass(frozen=True)
class KeyContent:
    """The content of an operator's key."""

    kind: str  # kind with its overload
    inputs: tuple[Tensor, ...]  # inputs in the order of the arguments; a key does not have their names and roles
    outputs: tuple[Tensor, ...]  # outputs in their order
    views: tuple[tuple[str, ...], ...]  # for each input the views between its base and the operator, the last one first
    gradients: tuple[bool, ...]  # for each input whether it gets a gradient
    attrs: Mapping[str, Attr] = field(default_factory=dict)  # the other arguments

    @property
    def operation(self) -> str:
        """The kind without its overload."""
        return operation(self.kind)

    @property
    def key(self) -> str:
        """The key."""
        inputs = ", ".join(
            _written(tensor) + "".join(f"<{view}" for view in views) + ("+grad" if gradient else "")
            for tensor, views, gradient in zip(self.inputs, self.views, self.gradients, strict=True)
        )
        attrs = json.dumps(dict(sorted(self.attrs.items())), separators=(",", ":")) if self.attrs else ""
        return f"{self.kind}({inputs})->{', '.join(map(_written, self.outputs))}{attrs}"


def parse_key(key: str) -> KeyContent:
    """Parse a key.

    Raises:
        InputError: for a text that is no key.
    """
    match = _KEY.fullmatch(key)
    try:
        if match is None:
            raise ValueError("it is not of the form kind(inputs)->outputs{attributes}")
        inputs = [_input(text) for text in _split(match["inputs"])]
        outputs = [_input(text) for text in _split(match["outputs"])]
        attrs = {name: _frozen(value) for name, value in parse_json(match["attrs"] or "{}").items()}
    except ValueError as error:  # from numbers, JSON, or a tensor's record
        raise InputError(f"'{key}' is no operator's key: {error}; delete the file it is from, measure again") from error
    tensors, views, gradients = zip(*inputs, strict=True) if inputs else ((), (), ())
    return KeyContent(match["kind"], tensors, tuple(tensor for tensor, _, _ in outputs), views, gradients, attrs)


def _written(tensor: Tensor) -> str:
    return f"{tensor.dtype}[{','.join(map(str, tensor.shape))}]"


def _split(text: str) -> list[str]:
    return text.split(", ") if text else []


def _input(text: str) -> tuple[Tensor, tuple[str, ...], bool]:
    match = _TENSOR.fullmatch(text)
    if match is None:
        raise ValueError(f"'{text}' is no tensor")
    shape = tuple(int(d) for d in match["shape"].split(",")) if match["shape"] else ()
    tensor = Tensor(text, shape, match["dtype"], Role.ACTIVATION)
    return tensor, tuple(match["views"].split("<")[1:]), match["gradient"] is not None


def _frozen(value: object) -> Attr:
    if isinstance(value, list):
        return tuple(_frozen(item) for item in value)
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    raise ValueError(f"the attribute {value!r} is neither a number, a text nor a list of them")
