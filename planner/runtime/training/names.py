"""The model's state under its own names: what training has made of it goes back into the module it came from."""

from collections.abc import Mapping
from typing import Any

import torch

from graphs.errors import InputError
from graphs.importers.program import Program


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


def model_state(program: Program, values: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """The module's ``state_dict()`` with these values; what the program does not have is the module's own.

    Args:
        program: the model.
        values: parameters and buffers by their names in the program.

    Returns:
        Copies on the CPU; one for all entries that are one tensor.
    """
    names = names_in_model(program)
    copies = {name: tensor.detach().to("cpu", copy=True) for name, tensor in values.items()}
    return {
        entry: copies[names[entry]] if names.get(entry) in copies else own
        for entry, own in program.module.state_dict().items()
    }


def values_of(program: Program, state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The inverse of `model_state`: parameters and buffers by their names in the program.

    Raises:
        InputError: if one is missing, has another form, or there is one that the model does not have.
    """
    own = program.module.state_dict()
    for entry in state:
        if entry not in own:
            raise InputError(f"the state has '{entry}', which the model '{program.graph.name}' does not have")
    values = {}
    for entry, name in names_in_model(program).items():
        if entry not in state:
            raise InputError(f"the state has no '{entry}', which the model '{program.graph.name}' has")
        if state[entry].shape != own[entry].shape or state[entry].dtype != own[entry].dtype:
            ours, theirs = (
                f"{list(t.shape)} {str(t.dtype).removeprefix('torch.')}" for t in (own[entry], state[entry])
            )
            raise InputError(f"'{entry}' is {theirs} in the state and {ours} in the model; they must be the same")
        values[name] = state[entry]
    return values


def _place(tensor: torch.Tensor) -> tuple[object, ...]:
    """Two tensors with the same are one."""
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype
