"""Refuses hooks of the backward pass, which no trace shows and no stage of a plan would call.

Hooks of the forward pass are a part of the trace.
"""

from collections.abc import Iterator, Mapping

from torch import Tensor, nn
from torch.nn.modules import module as modules

from graphs.errors import InputError

WAY_OUT = (
    "which the stages of a plan would not call; remove it, and change gradients in the optimizer "
    "(torch.optim.Optimizer.register_step_pre_hook)"
)


def check_hooks(name: str, module: nn.Module, state: Mapping[str, Tensor] | None = None) -> None:
    """Check that a model to be trained has no hooks of the backward pass.

    ``state`` has the tensors that it reads besides its parameters and buffers, by name.

    Raises:
        InputError: if it has such a hook.
    """
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers()), **(state or {})}
    for place, hook in (*_on_tensors(tensors), *_on_modules(module)):
        raise InputError(f"model '{name}' has a hook on {place} ({hook}), {WAY_OUT}")


def _on_tensors(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, str]]:
    for name, tensor in tensors.items():
        if tensor._backward_hooks:
            yield f"'{name}'", "register_hook"
        if getattr(tensor, "_post_accumulate_grad_hooks", None):
            yield f"'{name}'", "register_post_accumulate_grad_hook"


def _on_modules(module: nn.Module) -> Iterator[tuple[str, str]]:
    if modules._global_backward_hooks or modules._global_backward_pre_hooks:
        yield "every module", "torch.nn.modules.module.register_module_full_backward_hook"
    for path, part in module.named_modules():
        if part._backward_hooks or part._backward_pre_hooks:
            yield f"the module '{path}'", "register_full_backward_hook"
