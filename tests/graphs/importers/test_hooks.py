"""Hooks on the way back are refused where a model is to be trained: no stage of a plan would call them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.nn.modules import module as modules
from torch.utils.checkpoint import checkpoint

from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module
from graphs.importers.training import WAY_OUT
from tests.graphs.importers.modules import Function, X

pytestmark = pytest.mark.attack("answer")


def net(middle: Callable[[Tensor], Tensor] = torch.tanh) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), Function(middle), nn.BatchNorm1d(4))


def doubled(*gradients: Any) -> Any:
    first, *_ = gradients
    return first * 2


def kept(*_: Any) -> None:
    """Changes nothing, which nobody can know."""


HUNG: dict[str, tuple[Callable[[Any], Any], str]] = {
    "parameter": (lambda m: m[0].weight.register_hook(doubled), "'0.weight' (register_hook)"),
    "accumulated": (
        lambda m: m[2].bias.register_post_accumulate_grad_hook(kept),
        "'2.bias' (register_post_accumulate_grad_hook)",
    ),
    "buffer": (
        lambda m: m[2].running_mean.requires_grad_().register_hook(doubled),
        "'2.running_mean' (register_hook)",
    ),
    "module": (lambda m: m[0].register_full_backward_hook(kept), "the module '0' (register_full_backward_hook)"),
    "before": (lambda m: m.register_full_backward_pre_hook(kept), "the module '' (register_full_backward_hook)"),
    "as it was": (lambda m: m[2].register_backward_hook(kept), "the module '2' (register_full_backward_hook)"),
}


@pytest.mark.parametrize("name", HUNG)
def test_what_is_hung_on_a_model_is_refused(name: str) -> None:
    hang, text = HUNG[name]
    model: Any = net()
    handle = hang(model)
    with pytest.raises(InputError) as refusal:
        program_from_module(model, (X,), name="net", training=True)
    assert str(refusal.value) == f"model 'net' has a hook on {text}, {WAY_OUT}"
    assert program_from_module(model, (X,)).graph.ops  # nobody goes back
    handle.remove()
    model[2].running_mean.requires_grad_(False)
    assert program_from_module(model, (X,), training=True).graph.ops


@pytest.mark.parametrize("register", ["full_backward_hook", "full_backward_pre_hook"])
def test_what_is_hung_on_all_modules_is_refused(register: str) -> None:
    handle = getattr(modules, f"register_module_{register}")(kept)
    try:
        with pytest.raises(InputError, match="has a hook on every module"):
            program_from_module(net(), (X,), training=True)
    finally:
        handle.remove()
    assert program_from_module(net(), (X,), training=True).graph.ops


def hooked(x: Tensor) -> Tensor:
    y = torch.tanh(x)
    y.register_hook(doubled)  # type: ignore[no-untyped-call]  # torch's
    return y


def saved_otherwise(x: Tensor) -> Tensor:
    with saved_tensors_hooks(doubled, lambda tensor: tensor):
        return torch.tanh(x)


@pytest.mark.parametrize(("function", "what"), [(hooked, "register_hook"), (saved_otherwise, "saved_tensors_hooks")])
def test_what_a_forward_hangs_on_is_refused(function: Callable[[Tensor], Tensor], what: str) -> None:
    with pytest.raises(InputError, match=f"has a backward pass of its own \\('{what}'\\), which a traced graph"):
        program_from_module(net(function), (X,), training=True)
    y = torch.tanh(X.clone().requires_grad_())
    handle: Any = y.register_hook(doubled)  # type: ignore[no-untyped-call]  # torch's
    handle.remove()  # what was put in its place to notice it is gone


def test_what_a_forward_hook_hangs_on_is_refused() -> None:
    model = net()
    model[0].register_forward_hook(lambda _, _args, result: result.register_hook(doubled) and None)
    with pytest.raises(InputError, match=r"has a backward pass of its own \('register_hook'\)"):
        program_from_module(model, (X,), training=True)


def in_a_checkpoint(x: Tensor) -> Tensor:
    y: Tensor = checkpoint(torch.tanh, x, use_reentrant=False)
    return y


def elsewhere(x: Tensor) -> Tensor:
    with save_on_cpu():
        return torch.tanh(x)


@pytest.mark.parametrize("function", [in_a_checkpoint, elsewhere])
def test_where_tensors_are_kept_does_not_matter(function: Callable[[Tensor], Tensor]) -> None:
    assert program_from_module(net(function), (X,), training=True).graph.ops


def test_hooks_on_the_way_forward_are_traced() -> None:
    model = net()
    before = len(program_from_module(model, (X,), training=True).graph.ops)
    model[0].register_forward_hook(lambda _, _args, result: result * 2)
    model[2].register_forward_pre_hook(lambda _, args: (args[0] + 1,))
    assert len(program_from_module(model, (X,), training=True).graph.ops) == before + 2
