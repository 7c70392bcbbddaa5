"""If, Loop and Scan without control flow: the branch of a known condition, and a known number of rounds in a row."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from onnx import GraphProto, NodeProto, helper

from graphs.common.errors import InputError

KINDS = frozenset({"If", "Loop", "Scan"})
MOST_ROUNDS = 2000  # more of them make a graph that nobody can plan for


class Scope(Protocol):
    """The values computed so far, by name."""

    keys: dict[str, str]  # name -> key

    def read(self, name: str, reader: str) -> str:
        """Return the key of a name."""

    def write(self, name: str, value: torch.Tensor) -> str:
        """Give a value a key and bind the name to it."""

    def value(self, name: str, reader: str) -> torch.Tensor:
        """Return the tensor of a name, on the meta device if it depends on the inputs."""

    def run(self, graph: GraphProto) -> None:
        """Compute all nodes of a graph."""

    def compute(self, proto: NodeProto) -> None:
        """Compute a node."""


def nodes_of(graph: GraphProto) -> Iterator[NodeProto]:
    """All nodes, including those of branches and loop bodies."""
    for inner in graphs_of(graph):
        yield from inner.node


def graphs_of(graph: GraphProto) -> Iterator[GraphProto]:
    """The graph, its branches and its loop bodies."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in [attribute.g, *attribute.graphs]:
                if inner.node or inner.output:
                    yield from graphs_of(inner)


def expand(proto: NodeProto, frame: Scope) -> None:
    """Compute an If, a Loop or a Scan. Raise InputError if the values of the inputs decide the way."""
    {"If": _choose, "Loop": _loop, "Scan": _scan}[proto.op_type](proto, frame)


def _choose(proto: NodeProto, frame: Scope) -> None:
    """Replace an If with a known condition by its branch."""
    condition = frame.value(proto.input[0], proto.name)
    if condition.is_meta:
        raise InputError(
            f"node {node_name(proto)!r} (If) decides by its inputs' values; a graph with one way "
            f"through is needed: export the model with static shapes"
        )
    branch = _attribute(proto, "then_branch" if condition.item() else "else_branch")
    frame.run(branch)
    for name, output in zip(proto.output, branch.output, strict=True):
        frame.keys[name] = frame.read(output.name, proto.name)


def _loop(proto: NodeProto, frame: Scope) -> None:
    """Replace a Loop by its rounds; their number must be known, and so must the conditions."""
    body, count = _attribute(proto, "body"), None
    if proto.input[0]:
        count = int(_known(proto, frame.value(proto.input[0], proto.name), "the number of its rounds"))
    going = len(proto.input) < 2 or not proto.input[1] or _known(proto, frame.value(proto.input[1], proto.name), "it")
    state = [frame.read(name, proto.name) for name in proto.input[2:]]
    stacks: list[list[str]] = [[] for _ in body.output[1 + len(state) :]]
    done = 0
    while going and (count is None or done < count):
        _check_rounds(proto, done)
        frame.write(body.input[0].name, torch.tensor(done))
        frame.write(body.input[1].name, torch.tensor(True))
        _bind(frame, body.input[2:], state)
        frame.run(body)
        going = bool(_known(proto, frame.value(body.output[0].name, proto.name), "the next round"))
        state, results = _results(frame, body.output[1:], len(state))
        _push(stacks, results)
        done += 1
    _finish(proto, frame, state, stacks, [0] * len(stacks))


def _scan(proto: NodeProto, frame: Scope) -> None:
    """Replace a Scan by a round for each slice of what it goes over."""
    body, n_read = _attribute(proto, "body"), _attribute(proto, "num_scan_inputs")
    if len(proto.input) != len(body.input):  # opset 8 has the lengths of sequences, too
        raise InputError(
            f"node {node_name(proto)!r} is a Scan of opset 8, which is not supported; export the model anew"
        )
    read, (state_names, names) = len(proto.input) - n_read, (proto.input[:-n_read], proto.input[-n_read:])
    state = [frame.read(name, proto.name) for name in state_names]
    axes = _attribute(proto, "scan_input_axes") or [0] * n_read
    backward = _attribute(proto, "scan_input_directions") or [0] * n_read
    n_written = len(body.output) - read
    out_axes = _attribute(proto, "scan_output_axes") or [0] * n_written
    out_backward = _attribute(proto, "scan_output_directions") or [0] * n_written
    length = frame.value(names[0], proto.name).shape[axes[0]]
    stacks: list[list[str]] = [[] for _ in range(n_written)]
    for done in range(length):
        _check_rounds(proto, done)
        _bind(frame, body.input[:read], state)
        for name, inner, axis, last in zip(names, body.input[read:], axes, backward, strict=True):
            at = frame.write(f"{inner.name}/at", torch.tensor(length - 1 - done if last else done))
            frame.keys[at] = at
            frame.compute(helper.make_node("Gather", [name, at], [inner.name], f"{node_name(proto)}/slice", axis=axis))
        frame.run(body)
        state, results = _results(frame, body.output, read)
        _push(stacks, results)
    stacks = [stack[::-1] if last else stack for stack, last in zip(stacks, out_backward, strict=True)]
    _finish(proto, frame, state, stacks, out_axes)


def _bind(frame: Scope, inputs: Sequence[Any], keys: Sequence[str]) -> None:
    """Bind the names of a body's inputs to the values of the round before."""
    frame.keys.update(zip((each.name for each in inputs), keys, strict=True))


def _results(frame: Scope, outputs: Sequence[Any], n_state: int) -> tuple[list[str], list[str]]:
    """The keys of a round's results: what the next round reads, and what is stacked."""
    keys = [frame.read(each.name, each.name) for each in outputs]
    return keys[:n_state], keys[n_state:]


def _push(stacks: list[list[str]], keys: Sequence[str]) -> None:
    for stack, key in zip(stacks, keys, strict=True):
        stack.append(key)


def _finish(proto: NodeProto, frame: Scope, state: Sequence[str], stacks: list[list[str]], axes: Sequence[int]) -> None:
    """Bind the names of the results: the last state, and the results of all rounds along a new axis."""
    names = list(proto.output)
    for name, key in zip(names, state, strict=False):
        frame.keys[name] = key
    for name, stack, axis in zip(names[len(state) :], stacks, axes, strict=False):
        if not name:
            continue
        if not stack:
            raise InputError(
                f"node {node_name(proto)!r} ({proto.op_type}) has no rounds, so that {name!r} has no shape"
            )
        parts = []
        for number, key in enumerate(stack):
            frame.keys[key] = key  # a key as a name of its own
            parts.append(f"{name}/{number}")
            frame.compute(helper.make_node("Unsqueeze", [key], [parts[-1]], f"{node_name(proto)}/stack", axes=[axis]))
        frame.compute(helper.make_node("Concat", parts, [name], f"{node_name(proto)}/stack", axis=axis))


def _known(proto: NodeProto, value: torch.Tensor, what: str) -> Any:
    if value.is_meta:
        raise InputError(
            f"node {node_name(proto)!r} ({proto.op_type}): the values of the inputs decide {what}; export the model "
            f"with a fixed number of rounds, or the PyTorch model itself (.pt2 or package.module:factory)"
        )
    return value.item()


def _check_rounds(proto: NodeProto, done: int) -> None:
    if done >= MOST_ROUNDS:
        raise InputError(
            f"node {node_name(proto)!r} ({proto.op_type}) has more than {MOST_ROUNDS} rounds, which would make a graph "
            f"too large to plan for; export the PyTorch model itself (.pt2 or package.module:factory)"
        )


def _attribute(proto: NodeProto, name: str) -> Any:
    """The value of an attribute; None without it."""
    return next((helper.get_attribute_value(each) for each in proto.attribute if each.name == name), None)


def node_name(proto: NodeProto) -> str:
    """The name of a node; of one without, its first output's, if it has any."""
    return str(proto.name or next(iter(proto.output), ""))
