"""Parameters of a split program and those of the network: values lead from one to the other."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from graphs.errors import InputError
from graphs.program.program import Program
from graphs.rewrites.layouts import Slice


def sliced(tensor: torch.Tensor, one: Slice) -> torch.Tensor:
    """A part of a tensor, without its gradient: a view of it where that is possible."""
    part = tensor.detach()
    if one.region is None:
        return part
    axis, ranges = one.region
    pieces = [part.narrow(axis, start, stop - start) for start, stop in ranges]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, axis)


def pieces_of(program: Program) -> dict[str, list[str]]:
    """The names of the parts of each parameter and buffer that a program has in parts."""
    found: dict[str, list[str]] = {}
    for name, one in program.slices.items():
        found.setdefault(one.source, []).append(name)
    return found


def whole_values(program: Program, values: Mapping[str, torch.Tensor | None]) -> dict[str, torch.Tensor | None]:
    """Values under the network's names: those of parts are put together where all parts are there.

    None stands for zeros among others, and for itself where all are None.
    """
    whole = {name: value for name, value in values.items() if name not in program.slices}
    for source, names in pieces_of(program).items():
        parts = {name: value for name in names if (value := values.get(name)) is not None}
        if parts:
            whole[source] = _joined(program, source, parts)
        elif values.keys() >= set(names):
            whole[source] = values[names[0]]
    return whole


def values_of_pieces(program: Program, values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The inverse of `whole_values`."""
    own = {name: value for name, value in values.items() if name not in program.sources}
    return own | {name: sliced(values[one.source], one) for name, one in program.slices.items() if one.source in values}


def whole_optimizer(program: Program, saved: Mapping[str, Any]) -> dict[str, Any]:
    """The state of an optimizer under the network's names, see `Optimizers.state_dict`."""
    state, options = dict(saved["state"]), dict(saved["options"])
    for source, names in pieces_of(program).items():
        kept = {name: state.pop(name) for name in names if name in state}
        given = [options.pop(name) for name in names if name in options]
        options |= {source: given[0]} if given else {}
        for key in kept[names[0]] if kept else ():
            values = {name: each[key] for name, each in kept.items()}
            by_element = all(_fits(value, program.state[name]) for name, value in values.items())
            value = whole_values(program, values)[source] if by_element else values[names[0]]
            state.setdefault(source, {})[key] = value
    return {**saved, "state": state, "options": options}


def optimizer_of_pieces(program: Program, saved: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `whole_optimizer`."""
    state, options = dict(saved["state"]), dict(saved["options"])
    for name, one in program.slices.items():
        whole = program.sources[one.source]
        if one.source in saved["options"]:
            options[name] = saved["options"][one.source]
        if one.source in saved["state"]:
            kept = saved["state"][one.source]
            state[name] = {key: sliced(value, one) if _fits(value, whole) else value for key, value in kept.items()}
    return {**saved, "state": state, "options": options}


def _fits(value: Any, parameter: torch.Tensor) -> bool:
    """Whether an optimizer keeps a number for each element."""
    return isinstance(value, torch.Tensor) and value.shape == parameter.shape


def check_trains(program: Program, trained: Iterable[str]) -> None:
    """Check that each element of a parameter is in one part, since two would be trained apart.

    Raises:
        InputError: if it is not.
    """
    learned = set(trained)
    for source, names in pieces_of(program).items():
        held = [name for name in (*names, source) if name in learned and name in program.state]
        n_elements = sum(program.state[name].numel() for name in held)
        if held and n_elements != program.sources[source].numel():
            raise InputError(
                f"parameter '{source}' is divided into {', '.join(held)}, of which several have the same elements, or "
                "none has some; divide all its readers alike, or none of them (shared=True for whole ones)"
            )


def _joined(program: Program, source: str, parts: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """A parameter of its parts; those that are missing are zero."""
    first = next(iter(parts.values()))
    whole = torch.zeros(program.sources[source].shape, dtype=first.dtype)
    for name, part in parts.items():
        region = program.slices[name].region
        if region is None:
            return part.detach().to("cpu", copy=True)
        at = 0
        for start, stop in region.ranges:
            target = whole.narrow(region.axis, start, stop - start)
            target.copy_(part.detach().narrow(region.axis, at, stop - start))
            at += stop - start
    return whole
