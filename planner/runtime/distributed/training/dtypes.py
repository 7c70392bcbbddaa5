"""Find the dtype of each tensor under mixed precision: ranks agree on it before they exchange tensors."""

from collections.abc import Mapping
from contextlib import nullcontext

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from graphs.program.program import Program, on_device
from planner.runtime.training.stages import keeps_precision


def types_of(program: Program, torch_device: torch.device, autocast: torch.dtype | None) -> Mapping[str, torch.dtype]:
    """Return the dtype of each tensor, by its name, under mixed precision with ``autocast``, if any.

    The network runs once on tensors without values, as autocast decides by the operator and its arguments.
    """
    types = {tensor.name: getattr(torch, tensor.dtype) for tensor in program.graph.tensors}
    if autocast is None:
        return types
    written = {name for op in program.graph.ops for name in op.outputs}
    with FakeTensorMode(), torch.no_grad(), torch.autocast(torch_device.type, autocast, cache_enabled=False):
        tensors = {
            tensor.name: torch.empty(tensor.shape, dtype=types[tensor.name], device=torch_device)
            for tensor in program.graph.tensors
            if tensor.name not in written
        }
        for op in program.graph.ops:
            call = program.calls[op.name]
            args, kwargs = on_device(program.arguments(op, tensors.__getitem__), torch_device)
            with torch.autocast(torch_device.type, enabled=False) if keeps_precision(call) else nullcontext():
                result = call.node.target(*args, **kwargs)  # type: ignore[operator]  # always callable: see from_torch
            tensors.update(zip(op.outputs, result if call.unpack else (result,), strict=True))
    return {name: tensor.dtype for name, tensor in tensors.items()}
