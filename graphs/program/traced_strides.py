"""Strides of the results of a traced network, and what depends on them.

A kernel may lay its results out as it likes, images with their channels last. But an operator that looks at memory, and
the caller, get the strides of the trace; an operator for which PyTorch chooses a kernel by strides is marked.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode

from graphs.common.shortages import failures
from graphs.ir import Op, Role, unfused
from graphs.operator_kinds import changes
from graphs.program.fake_strides import strides_of_kernels
from graphs.program.program import Program
from graphs.program.strides import repeats

LOOKS_AT_MEMORY = frozenset(
    f"aten::{name}"
    for name in [
        *(
            "as_strided",
            "as_strided_",
            "as_strided_copy",
            "as_strided_scatter",
            "_reshape_alias",
            "_reshape_alias_copy",
        ),
        *("view.dtype", "view_copy", "view_copy.dtype", "view_as", "view_as_complex", "view_as_complex_copy"),
    ]
)
"""Operators whose results, or whether they can run, depend on strides; a view is reshaped and is none of them."""

COMPOSED_BUT_FRESH = frozenset(
    f"aten::{name}"
    for name in [
        *("linear", "matmul", "conv1d", "conv2d", "conv3d", "scaled_dot_product_attention"),
        *("max_pool2d", "adaptive_avg_pool2d", "softmax.int", "log_softmax.int", "relu6"),
        *("layer_norm", "group_norm", "batch_norm", "instance_norm", "rms_norm"),
    ]
)
"""Operators that PyTorch composes of others, and whose results are never their inputs."""


STRIDED = "strided"
"""Key of a node's ``meta``: True if PyTorch has another kernel for what it reads since that is not contiguous."""


def mark_strided(code: fx.Graph) -> None:
    """Mark the operators of a trace for which PyTorch has another kernel than for contiguous tensors."""
    for node in code.nodes:
        by_erf = node.target is torch.ops.aten.gelu.default and node.kwargs.get("approximate", "none") == "none"
        if by_erf and not node.args[0].meta["val"].is_contiguous():
            node.meta[STRIDED] = True


def shares_memory(target: OpOverload) -> bool | None:
    """Return whether results of an operator share memory with what it reads; None if that is not known.

    PyTorch's dispatcher relies on what the schema of an operator says of this. Only operators that are composed of
    others may return their inputs all the same.
    """
    if any(result.alias_info is not None for result in target._schema.returns):
        return True
    name = str(target.name())  # type: ignore[no-untyped-call]  # torch has no types here
    composed = torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")
    return None if composed and name not in COMPOSED_BUT_FRESH else False


def looks_at_memory(op: Op, target: OpOverload) -> bool:
    """Return whether the strides of what an operator reads matter to it.

    They may matter to any operator that is not PyTorch's own. Random numbers are drawn in the order of the memory.
    """
    name = str(target.name())  # type: ignore[no-untyped-call]  # torch has no types here
    return target.namespace != "aten" or name in LOOKS_AT_MEMORY or changes(op)


def lying_as_traced(program: Program) -> dict[str, tuple[int, ...]]:
    """Return the strides of the activations that have to lie as in the trace, by name.

    They are the network's results, what an operator that looks at memory reads, and what those are views of.
    """
    graph, calls = program.graph, program.calls
    wanted = set(graph.outputs)
    for op in reversed([*unfused(graph.ops)]):
        target: Any = calls[op.name].node.target
        if looks_at_memory(op, target) or (wanted.intersection(op.outputs) and shares_memory(target) is not False):
            wanted.update(op.inputs)
    activations = {name for name in wanted if name in graph.tensor and graph.tensor[name].role is Role.ACTIVATION}
    traced = {**_traced(program), **program.strides}  # parts put together lie as the whole did
    return {name: strides for name, strides in traced.items() if name in activations}


def _traced(program: Program) -> dict[str, tuple[int, ...]]:
    """Return the strides of results in the trace, by name; results whose strides are unknown are missing."""
    ops = [*unfused(program.graph.ops)]
    values = [program.calls[op.name].node.meta.get("val") for op in ops]
    if any(value is None for value in values):  # the program is from a file, or was split
        return {name: tensor.stride() for name, tensor in _on_fake_tensors(program, ops).items()}
    results = (value if isinstance(value, list | tuple) else (value,) for value in values)
    return {
        name: result.stride()
        for op, of_op in zip(ops, results, strict=True)
        for name, result in zip(op.outputs, of_op, strict=True)
    }


def _on_fake_tensors(program: Program, ops: Sequence[Op]) -> dict[str, torch.Tensor]:
    """Return the tensors of a program, which have strides but no values."""
    fake: dict[str, torch.Tensor] = {}
    gradients = torch.enable_grad if program.training else torch.no_grad
    with strides_of_kernels(), enable_python_dispatcher(), gradients(), FakeTensorMode():
        given = [*program.state.items(), *zip(program.graph.inputs, program.example_inputs, strict=True)]
        for name, tensor in given:
            if tensor.layout is torch.strided:
                made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
                fake[name] = made.requires_grad_(tensor.requires_grad)
        for op in ops:
            if fake.keys() >= {*op.inputs}:
                with failures():  # of an operator without a fake kernel: results from there on keep their strides
                    fake.update(zip(op.outputs, program.execute(op, fake), strict=True))
    return fake


def laying(strides: tuple[int, ...]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that returns a tensor with these strides, as it is if it has them."""

    def as_traced(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.stride() == strides:
            return tensor
        copy = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
        return tensor if repeats(copy) else copy.copy_(tensor)

    return as_traced
