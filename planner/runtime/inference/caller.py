"""Caller: PyTorch settings of the calling thread that change the model's answer and do not reach the devices' threads.

Grad mode and inference mode do not change it: results carry no gradient. ``torch.device`` as a mode does not either:
operators are told their device. Everything else is refused.
"""

from collections.abc import Iterable

import torch
from torch.autograd import forward_ad
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from graphs.errors import InputError


def check_surroundings(kinds: Iterable[str]) -> None:
    """Check that operators compute on the devices' threads what they would compute on the calling thread.

    Raises:
        InputError: if autocast is on for one of these types of torch devices, or a mode or a transform of tensors is
            active.
    """
    if mode := _mode():
        raise InputError(
            f"{mode} is active, and the operators of a runner are called on other threads, which it does not see; call "
            "the runner outside of it, or the model itself"
        )
    for kind in kinds:
        if torch.is_autocast_enabled(kind):
            dtype = str(torch.get_autocast_dtype(kind))
            raise InputError(
                f"torch.autocast('{kind}', {dtype}) is on, and a plan is for the dtypes that the model was imported "
                f"with; call the runner outside of it, or plan for the cast model (model.to({dtype}))"
            )


def check_gradients(names: Iterable[str], inputs: Iterable[torch.Tensor]) -> None:
    """Check that no input asks for a gradient; raise InputError if one does."""
    for name, tensor in zip(names, inputs, strict=True):
        if (tensor.requires_grad and torch.is_grad_enabled()) or _has_tangent(tensor):
            raise InputError(
                f"input '{name}' asks for a gradient, and none goes through a runner; pass {name}.detach(), call it "
                "under torch.no_grad(), or train with planner.train"
            )


def _mode() -> str:
    """Return the name of what changes the meaning of operators on this thread; empty if nothing does."""
    interpreter = torch._C._functorch.peek_interpreter_stack()
    if interpreter is not None:
        return f"torch.func's {interpreter.key().name.lower()}"
    if torch.jit.is_tracing():
        return "torch.jit.trace"
    modes = (*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack())
    return next((f"the mode '{type(mode).__name__}'" for mode in modes if not isinstance(mode, DeviceContext)), "")


def _has_tangent(tensor: torch.Tensor) -> bool:
    if forward_ad._current_level < 0:
        return False
    return forward_ad.unpack_dual(tensor).tangent is not None  # type: ignore[no-untyped-call]  # torch has no types here
