"""The model's state under its own names: what training has made of it goes back into the module it came from."""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import nn

from graphs import checks
from graphs.errors import InputError
from graphs.importers.paths import home_of
from graphs.program.files import Unavailable, hollow_of
from graphs.program.program import Program


def names_in_model(program: Program) -> dict[str, str]:
    """For each entry of the module's ``state_dict()`` that the program has, its name there.

    A tensor that the module has under two names has one in the program, so it comes twice.
    """
    known = {name: program.state[name] for name in program.state} | {n: u.tensor for n, u in program.updates.items()}
    by_place = {_place(tensor): name for name, tensor in known.items() if tensor.numel()}
    found = {}
    for entry, tensor in program.module.state_dict(keep_vars=True).items():
        name = by_place.get(_place(tensor), entry) if isinstance(tensor, torch.Tensor) else entry
        if name in known:
            found[entry] = name
    return found


def unread(program: Program) -> dict[str, torch.Tensor]:
    """What the module's ``state_dict()`` has beside: tensors that no operator reads."""
    names = names_in_model(program)
    entries = program.module.state_dict().items()
    return {entry: own for entry, own in entries if entry not in names and isinstance(own, torch.Tensor)}


def model_state(program: Program, values: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """The module's ``state_dict()`` with these values; what the program does not have is the module's own.

    Args:
        program: the model.
        values: parameters and buffers by their names in the program; all, or those of one device, whose part of the
            state this is then.

    Returns:
        Copies on the CPU; one for all entries that are one tensor.
    """
    names = names_in_model(program)
    copies = {name: tensor.detach().to("cpu", copy=True) for name, tensor in values.items()}
    state = {}
    for entry, own in program.module.state_dict().items():
        if entry not in names:
            if not (isinstance(own, torch.Tensor) and own.is_meta):  # of a shard, which does not have it
                state[entry] = own
        elif names[entry] in copies:
            state[entry] = copies[names[entry]]
    return state


def values_of(program: Program, state: Mapping[str, Any], wanted: Collection[str]) -> dict[str, torch.Tensor]:
    """The inverse of `model_state`: parameters and buffers by their names in the program.

    Args:
        program: the model.
        state: of the whole model, or at least of what is wanted.
        wanted: names in the program; those that the module does not save are left out.

    Raises:
        InputError: if one is missing, has another form, or there is one that the model does not have.
    """
    own = program.module.state_dict()
    for entry in state:
        if entry not in own:
            raise InputError(f"the state has '{entry}', which the model '{program.graph.name}' does not have")
    values = {}
    for entry, name in names_in_model(program).items():
        if name not in wanted:
            continue
        if entry not in state:
            raise InputError(f"the state has no '{entry}', which the model '{program.graph.name}' has")
        checks.instance(state[entry], torch.Tensor, f"'{entry}' of the state", "a tensor")
        if state[entry].shape != own[entry].shape or state[entry].dtype != own[entry].dtype:
            ours, theirs = (f"{list(t.shape)} {_dtype(t)}" for t in (own[entry], state[entry]))
            raise InputError(f"'{entry}' is {theirs} in the state and {ours} in the model; they must be the same")
        values[name] = state[entry]
    return values


def entries_to_dict(program: Program) -> dict[str, Any]:
    """The entries of the module's ``state_dict()``, for JSON: the program's name for each, or its form if unread."""
    names, beside = names_in_model(program), unread(program)
    forms = {entry: {"shape": list(own.shape), "dtype": _dtype(own)} for entry, own in beside.items()}
    return {
        entry: names.get(entry) or forms[entry]
        for entry in program.module.state_dict()
        if entry in names or entry in forms
    }


def module_from_dict(entries: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> nn.Module:
    """The inverse of `entries_to_dict`: a module that cannot be called, with the state of the model under its names.

    Args:
        entries: from `entries_to_dict`.
        tensors: all that the program has, by name, and what is there of the unread ones; others are on the meta device.
    """
    module = Unavailable()
    for entry, about in entries.items():
        if isinstance(about, str):
            hold(module, entry, tensors[about])
        elif entry in tensors:
            hold(module, entry, tensors[entry])
        else:
            hold(module, entry, hollow_of(about))
    return module


def hold(module: nn.Module, name: str, tensor: torch.Tensor) -> None:
    """Register a parameter or buffer under a path such as ``layer1.conv.weight``, with modules on the way."""
    home, last = home_of(module, name)
    if isinstance(tensor, nn.Parameter):
        home.register_parameter(last, tensor)
    else:
        home.register_buffer(last, tensor)


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _place(tensor: torch.Tensor) -> tuple[object, ...]:
    """Two tensors with the same are one."""
    if tensor.is_meta:
        return (id(tensor),)
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype
