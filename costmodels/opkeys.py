"""Keys of operators, which determine their times. `costmodels.learning.keys` parses them."""

import json

from costmodels.views import STRIDING_KINDS, bases, differentiated, operation
from graphs.ir import Graph, Op


def op_keys(graph: Graph) -> tuple[str, ...]:
    """[n_ops], the keys of operators; operators with the same key take the same time in any network.

    A key has the kind, shapes and dtypes of inputs and outputs, and attributes. An input is followed by the views
    between its base and the operator, which determine its strides::

        aten.add.Tensor(float32[1,768], float32[1,768]<select)->float32[1,768]{"alpha":2}
    """
    return _keys(graph, frozenset())


def training_keys(graph: Graph) -> tuple[str, ...]:
    """[n_ops], the keys in training, where "+grad" follows an input that gets a gradient.

    An operator without such an input has the key of `op_keys`, and no backward pass::

        aten.mm.default(float32[4,5], float32[5,5]<t+grad)->float32[4,5]
    """
    return _keys(graph, differentiated(graph))


def _keys(graph: Graph, with_gradient: frozenset[str]) -> tuple[str, ...]:
    base = bases(graph)
    seen_through: dict[str, str] = {}

    def described(name: str) -> str:
        tensor = graph.tensor[name]
        return f"{tensor.dtype}[{','.join(map(str, tensor.shape))}]"

    def read(name: str) -> str:
        return described(name) + seen_through.get(name, "") + ("+grad" if name in with_gradient else "")

    def key(op: Op) -> str:
        inputs = ", ".join(map(read, op.inputs))
        outputs = ", ".join(map(described, op.outputs))
        attrs = json.dumps(dict(sorted(op.attrs.items())), separators=(",", ":")) if op.attrs else ""
        return f"{op.kind}({inputs})->{outputs}{attrs}"

    keys = []
    for op in graph.ops:
        keys.append(key(op))
        name = operation(op.kind)
        for output in op.outputs:
            if output in base:  # a view, so it has an input
                own = f"<{name.removeprefix('aten.')}" if name in STRIDING_KINDS else ""
                seen_through[output] = own + seen_through.get(op.inputs[0], "")
    return tuple(keys)
