"""Strides of the tensors of a traced network.

A trace is valid for the strides of its example inputs: it does not record ``contiguous`` of a contiguous tensor, and
the results of ``is_contiguous`` and ``stride`` are constants. So a traced network takes tensors with these strides.
Kernels may lay results out in another way, but operators that look at memory, and the caller, get the trace's strides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from graphs.ir import Op, Role, unfused
from graphs.rewrites.patterns import changes

if TYPE_CHECKING:
    from graphs.program.program import Program

UNDIVIDED = 2**15 - 1  # elements, of which PyTorch copies so many on the calling thread

WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
"""Dtypes that numpy knows, by their bytes."""


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
    return {name: strides for name, strides in _traced(program).items() if name in activations}


def _traced(program: Program) -> dict[str, tuple[int, ...]]:
    """Return the strides of all tensors in the trace, from fake tensors; of some they cannot be told."""
    fake: dict[str, torch.Tensor] = {}
    with torch.no_grad(), FakeTensorMode():
        given = [*program.state.items(), *zip(program.graph.inputs, program.example_inputs, strict=True)]
        for name, tensor in given:
            fake[name] = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
        for op in unfused(program.graph.ops):
            try:
                fake.update(zip(op.outputs, program.execute(op, fake), strict=True))
            except Exception:  # an operator without a fake kernel: what reads it is left as it lies
                continue
    return {name: tensor.stride() for name, tensor in fake.items()}


def laying(strides: tuple[int, ...]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that returns a tensor with these strides, as it is if it has them."""

    def as_traced(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.stride() == strides or repeats(tensor):
            return tensor
        return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)

    return as_traced


def repeats(tensor: torch.Tensor) -> bool:
    """Whether several elements share memory, as after ``expand`` and in overlapping windows."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return False
    reach = 0  # from the first element to the last one along the dimensions so far
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def unrepeated(examples: Any) -> Any:
    """Example inputs without shared elements, so that inputs with other values fit the strides."""
    return pytree.tree_map_only(
        torch.Tensor,
        lambda tensor: tensor.clone(memory_format=torch.contiguous_format) if repeats(tensor) else tensor,
        examples,
    )


def laid(tensor: torch.Tensor, strides: tuple[int, ...], copied: bool = False) -> torch.Tensor:
    """The tensor itself or a copy of it, with these strides.

    With ``copied`` it is always a copy. Kernels read memory as it is, so no bit says that it means something else.
    """
    if tensor.is_neg() or tensor.is_conj():
        tensor = tensor.resolve_conj().resolve_neg()
    if not copied and tensor.stride() == strides:
        return tensor
    if tensor.numel() <= UNDIVIDED and tensor.stride() == strides and not tensor.requires_grad and _plain(tensor):
        copy = tensor.clone()
        if copy.stride() == strides:
            return copy
    with torch.no_grad():
        given = zip(tensor.shape, tensor.stride(), strides, strict=True)
        if not copied and (not tensor.numel() or all(size == 1 or had == wanted for size, had, wanted in given)):
            return tensor.as_strided(tensor.shape, strides)
        pinned = tensor.is_pinned()  # a pinned copy goes to a GPU as quickly
        copy = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device, pin_memory=pinned)
        return copy_alone(copy, tensor)


def copy_alone(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Copy a tensor to another of its shape and dtype on the calling thread alone, and return the target.

    PyTorch divides the copy of an image among the intra-op threads of the caller. These wait for more afterwards, busy,
    on the processors that the devices compute on: that took a third of the throughput of convolutional networks.
    """
    if not _plain(source):
        return target.copy_(source)
    word = WORDS[source.element_size()]
    np.copyto(target.view(word).numpy(), source.detach().view(word).numpy())
    return target


def _plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is nothing but numbers in the memory of the host."""
    usual = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
    return usual and tensor.device.type == "cpu" and not (tensor.is_conj() or tensor.is_neg() or tensor.is_quantized)
