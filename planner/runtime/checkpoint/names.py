"""The model's state under its own names, so that trained parameters go back into the module that they came from."""

from collections import ChainMap
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from graphs.common import checks
from graphs.common.errors import InputError
from graphs.program.files import UnavailableModule, hollow_of
from graphs.program.pieces import Pieces
from graphs.program.program import Program, home_of
from graphs.rewrites.layouts import Slice
from planner.runtime.verification.deviation import form_of


def names_in_model(program: Program) -> dict[str, str]:
    """Return the program's name for each entry of the module's ``state_dict()`` that the program has.

    A tensor that the module has under two names has one in the program, so it comes twice.
    """
    updates = {name: update.tensor for name, update in program.updates.items()}
    own = {name: tensor for name, tensor in program.state.items() if name not in program.slices}
    tensors = {**own, **program.sources, **updates}
    by_identity = {_identity(tensor): name for name, tensor in tensors.items() if tensor.numel()}
    names = {}
    for entry, tensor in program.module.state_dict(keep_vars=True).items():
        name = by_identity.get(_identity(tensor), entry) if isinstance(tensor, torch.Tensor) else entry
        if name in tensors:
            names[entry] = name
    return names


def unread(program: Program) -> dict[str, torch.Tensor]:
    """Return the tensors of the module's ``state_dict()`` that no operator reads."""
    names = names_in_model(program)
    entries = program.module.state_dict().items()
    return {entry: own for entry, own in entries if entry not in names and isinstance(own, torch.Tensor)}


def model_state(program: Program, values: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Return the module's ``state_dict()`` with these values, copied to the CPU; other entries are the module's own.

    With the values of one device, by their names in the program, it is that device's part of the state. The parts of
    an entry that a split network has have entries of their own, see `pieces_in_model` and `whole_model_state`.
    """
    names, parts = names_in_model(program), Pieces.of(program).names
    copies = {name: tensor.detach().to("cpu", copy=True) for name, tensor in values.items()}
    state = {}
    for entry, own in program.module.state_dict().items():
        if entry not in names:
            if not (isinstance(own, torch.Tensor) and own.is_meta):  # a shard lacks the values of other devices
                state[entry] = own
            continue
        for name in (names[entry], *parts.get(names[entry], ())):
            if name in copies:
                state[_entry(program, entry, name)] = copies[name]
    return state


def pieces_in_model(program: Program) -> Pieces:
    """Return the parts of the entries of the module's ``state_dict()`` that a split network has."""
    shapes, slices = Pieces.of(program), {}
    names = {entry: name for entry, name in names_in_model(program).items() if name in shapes.shapes}
    for entry, source in names.items():
        for name in shapes.names[source]:
            if (region := program.slices[name].region) is not None:
                slices[_entry(program, entry, name)] = Slice(entry, region)
    return Pieces(slices, {entry: shapes.shapes[name] for entry, name in names.items()})


def whole_model_state(program: Program, parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the module's ``state_dict()`` of what `model_state` returns for all devices."""
    found = pieces_in_model(program).whole(ChainMap(*map(dict, parts)))
    return {entry: found[entry] for entry in program.module.state_dict() if entry in found}


def _entry(program: Program, entry: str, name: str) -> str:
    """Return the name of an entry of the state, or of a part of it."""
    part = program.slices.get(name)
    return entry if part is None or part.region is None else f"{entry}{name.removeprefix(part.source)}"


def values_of(program: Program, state: Mapping[str, Any], wanted: Collection[str]) -> dict[str, torch.Tensor]:
    """Return those parameters and buffers that are wanted, by their names in the program; the inverse of `model_state`.

    Raise InputError if one is missing, has another form, or there is one that the model does not have.
    """
    own = program.module.state_dict()
    for entry in state:
        if entry not in own:
            raise InputError(f"the state has '{entry}', which the model '{program.graph.name}' does not have")
    pieces = Pieces.of(program)
    wanted_pieces = {source: set(names) & set(wanted) for source, names in pieces.names.items()}
    values = {}
    for entry, name in names_in_model(program).items():
        if name not in wanted and not wanted_pieces.get(name):
            continue
        if entry not in state:
            raise InputError(f"the state has no '{entry}', which the model '{program.graph.name}' has")
        checks.instance(state[entry], torch.Tensor, f"'{entry}' of the state", "a tensor")
        if state[entry].shape != own[entry].shape or state[entry].dtype != own[entry].dtype:
            ours, theirs = form_of(own[entry]), form_of(state[entry])
            raise InputError(f"'{entry}' is {theirs} in the state and {ours} in the model; they must be the same")
        values[name] = state[entry]
    return {name: value for name, value in pieces.divided(values, wanted).items() if name in wanted}


def entries_to_dict(program: Program) -> dict[str, Any]:
    """Return the module's ``state_dict()`` for JSON: the program's name for each entry, or its form if unread."""
    entries: dict[str, Any] = dict(names_in_model(program))
    for entry, own in unread(program).items():
        entries[entry] = {"shape": list(own.shape), "dtype": str(own.dtype).removeprefix("torch.")}
    return {entry: entries[entry] for entry in program.module.state_dict() if entry in entries}


def module_from_dict(entries: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> nn.Module:
    """Return a module that cannot be called, with the state of the model under its names; see `entries_to_dict`.

    Unread tensors may be missing; they are on the meta device then.
    """
    module = UnavailableModule()
    for entry, about in entries.items():
        name = about if isinstance(about, str) else entry
        register_tensor(module, entry, tensors[name] if name in tensors else hollow_of(about))
    return module


def register_tensor(module: nn.Module, name: str, tensor: torch.Tensor) -> None:
    """Register a parameter or buffer under a path such as ``layer1.conv.weight``, with modules on the way."""
    home, last = home_of(module, name)
    if isinstance(tensor, nn.Parameter):
        home.register_parameter(last, tensor)
    else:
        home.register_buffer(last, tensor)


def _identity(tensor: torch.Tensor) -> tuple[object, ...]:
    """Return a key that is equal for two tensors if they are one."""
    if tensor.is_meta:
        return (id(tensor),)
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype
