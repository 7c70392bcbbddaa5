"""The optimizers of all devices, whose states are kept by the names of the parameters."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.utils import _pytree as pytree

from graphs.common import checks
from graphs.common.checks import fits, shown
from graphs.common.errors import InputError
from planner.runtime.training.device_threads import DeviceContext

Factory: TypeAlias = Callable[[list[torch.Tensor]], torch.optim.Optimizer]
"""Makes an optimizer for the parameters of one device."""

NO_KIND = "none"
"""The kind of optimizer that is saved where nothing is trained."""


class Optimizers:
    """One optimizer for each device that has something to train."""

    def __init__(self, make: Factory, owned: Sequence[Mapping[str, torch.Tensor]]) -> None:
        """Make an optimizer for each of [n_devices] with parameters; raise InputError if a plan cannot use it."""
        self.owned = owned
        self.each = [_made(make, list(parameters.values())) if parameters else None for parameters in owned]

    def norms(self, context: DeviceContext) -> dict[str, torch.Tensor]:
        """Return the norm of each gradient of a device, by the name of the parameter, on the CPU."""
        return {name: torch.linalg.vector_norm(values).cpu() for name, values in self._gradients(context)}

    def multiply(self, context: DeviceContext, factor: float | torch.Tensor) -> None:
        """Multiply the gradients of a device by a factor."""
        for _, values in self._gradients(context):
            values.mul_(factor.to(values.device) if isinstance(factor, torch.Tensor) else factor)

    def unscale(self, context: DeviceContext, scale: float) -> bool:
        """Divide the gradients of a device by the scale of the loss; return whether all are finite."""
        self.multiply(context, 1.0 / scale)
        return all(bool(values.isfinite().all()) for _, values in self._gradients(context))

    def step(self, context: DeviceContext, factor: torch.Tensor | None) -> None:
        """Let the optimizer of a device take a step, with its gradients times a factor if there is one."""
        optimizer = self.each[context.number]
        if optimizer is None:
            return
        if factor is not None:
            self.multiply(context, factor)
        optimizer.step()
        self.forget(context)

    def forget(self, context: DeviceContext) -> None:
        """Drop the gradients of a device."""
        for parameter in self.owned[context.number].values():
            parameter.grad = None

    def change(self, options: Mapping[str, Any]) -> None:
        """Give all optimizers these options; raise InputError and change nothing if one does not fit."""
        groups = [group for optimizer, _ in self._pairs() for group in optimizer.param_groups]
        for name in options:
            if name == "params" or any(name not in group for group in groups):
                names = ", ".join(sorted(groups[0].keys() - {"params"}))
                raise InputError(f"the optimizer {self._kind} has no option '{name}'; it has {names}")
        for group in groups:
            for name, value in options.items():
                _check_option(name, value, group[name])
        for group in groups:
            group.update(options)

    def state_dict(self) -> dict[str, Any]:
        """Return what the optimizers keep and their options, by the names of the parameters; copies on the CPU."""
        state: dict[str, Any] = {}
        options: dict[str, Any] = {}
        for optimizer, parameters in self._pairs():
            name_of = {id(parameter): name for name, parameter in parameters.items()}
            for group in optimizer.param_groups:
                shared = {key: _copied(value) for key, value in group.items() if key != "params"}
                options |= {name_of[id(parameter)]: shared for parameter in group["params"]}
            for parameter, kept in optimizer.state.items():
                state[name_of[id(parameter)]] = {key: _copied(value) for key, value in kept.items()}
        return {"kind": self._kind, "state": state, "options": options}

    def divided(self, saved: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Divide a state into the parts that each device's optimizer loads, for any division of the parameters.

        Raise InputError if it is of another kind of optimizer, lacks a parameter, or some share options only here.
        """
        if self._kind not in (saved["kind"], NO_KIND):
            raise InputError(f"the state is of the optimizer {saved['kind']}, this one is {self._kind}; use the same")
        parts = []
        for optimizer, parameters in zip(self.each, self.owned, strict=True):
            name_of = {id(parameter): name for name, parameter in parameters.items()}
            groups = optimizer.param_groups if optimizer is not None else []
            parts.append(_as_torch_has_it(saved, [[name_of[id(p)] for p in group["params"]] for group in groups]))
        return parts

    def load(self, context: DeviceContext, state: dict[str, Any]) -> None:
        """Give the optimizer of a device its part of `divided`, as copies, since torch would keep the tensors."""
        optimizer = self.each[context.number]
        if optimizer is not None:
            optimizer.load_state_dict(pytree.tree_map_only(torch.Tensor, torch.clone, state))

    def _gradients(self, context: DeviceContext) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the values of each gradient of a device, to read and to change; only those stored if it is sparse."""
        for name, parameter in self.owned[context.number].items():
            if parameter.grad is not None and parameter.grad.is_sparse:
                parameter.grad = parameter.grad.coalesce()  # else it may hold several parts of one element
                yield name, parameter.grad.values().detach()
            elif parameter.grad is not None:
                yield name, parameter.grad.detach()

    @property
    def _kind(self) -> str:
        return next((type(optimizer).__name__ for optimizer in self.each if optimizer is not None), NO_KIND)

    def _pairs(self) -> Iterator[tuple[torch.optim.Optimizer, Mapping[str, torch.Tensor]]]:
        for optimizer, parameters in zip(self.each, self.owned, strict=True):
            if optimizer is not None:
                yield optimizer, parameters


def _check_option(name: str, value: Any, current: Any) -> None:
    """Check that an option stays a switch, a number or a tuple of numbers; other types are not checked."""
    if isinstance(current, bool):
        checks.instance(value, bool, f"the option '{name}'", "True or False")
    elif isinstance(current, tuple):
        same_form = isinstance(value, tuple | list) and len(value) == len(current)
        if not (same_form and all(fits(number, float) for number in value)):
            raise InputError(f"the option '{name}' is {shown(value)}; give a tuple of {len(current)} numbers")
    elif fits(current, float) and not fits(value, float):
        raise InputError(f"the option '{name}' is {shown(value)}; give a number")


def check_own_hooks() -> None:
    """Raise InputError if a hook is on all optimizers of this process, as other processes do not have it."""
    if _global_optimizer_pre_hooks or _global_optimizer_post_hooks:
        raise InputError(
            "there is a hook on all optimizers (register_optimizer_step_pre_hook or _post_hook), which other processes "
            "do not have; register it on the optimizer, in the function that makes it"
        )


def _made(make: Factory, parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
    """Make the optimizer of one device, and check that a plan can use it."""
    optimizer = make(parameters)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InputError(
            f"the optimizer is a {type(optimizer).__name__}; pass a function that makes one, for example "
            "lambda parameters: torch.optim.Adam(parameters, lr=1e-3)"
        )
    kind, own = type(optimizer).__name__, set(map(id, parameters))
    if any(id(parameter) not in own for group in optimizer.param_groups for parameter in group["params"]):
        raise InputError(
            f"the optimizer {kind} trains other tensors than the parameters that its function was given, which are the "
            "copies on the devices; make it of those: lambda parameters: torch.optim.Adam(parameters, lr=1e-3)"
        )
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        raise InputError(
            f"the optimizer {kind} needs a closure that works out the loss again and again within one step, which a "
            "plan does once; use one that does without, such as torch.optim.Adam"
        )
    return optimizer


def clip_factor(
    norms: Iterable[Mapping[str, torch.Tensor]], order: Iterable[str], largest: float
) -> torch.Tensor | None:
    """Return the factor that ``torch.nn.utils.clip_grad_norm_`` would apply; None without gradients.

    The norms (see `Optimizers.norms`) are added up in the order of the model's parameters, on any placement.
    """
    by_name = {name: norm for of_device in norms for name, norm in of_device.items()}
    in_order = [by_name[name] for name in order if name in by_name]
    if not in_order:
        return None
    return torch.clamp(largest / (torch.linalg.vector_norm(torch.stack(in_order)) + 1e-6), max=1.0)


def copies(gradients: Mapping[str, torch.Tensor | None]) -> dict[str, torch.Tensor | None]:
    """Gradients as they are now, which optimizers change."""
    return {name: None if gradient is None else gradient.clone() for name, gradient in gradients.items()}


def _as_torch_has_it(saved: Mapping[str, Any], groups: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Convert a state into what ``torch.optim.Optimizer.load_state_dict`` reads, for parameters in these groups."""
    every = [name for names in groups for name in names]
    number = {name: i for i, name in enumerate(every)}
    for names in groups:
        for name in names:
            if name not in saved["options"]:
                raise InputError(f"the optimizer's state has no parameter '{name}'; it was saved for another model")
            if saved["options"][name] != saved["options"][names[0]]:
                raise InputError(
                    f"the optimizer's state has other options for '{name}' than for '{names[0]}', which share theirs "
                    "here; make the optimizer with the same groups"
                )
    return {
        "state": {number[name]: saved["state"][name] for name in every if name in saved["state"]},
        "param_groups": [
            {**saved["options"][names[0]], "params": [number[name] for name in names]} for names in groups
        ],
    }


def _copied(value: Any) -> Any:
    return value.detach().to("cpu", copy=True) if isinstance(value, torch.Tensor) else value
