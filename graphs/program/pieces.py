"""Parameters of a split program and those of the network: values lead from one to the other."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import torch

from graphs.common.errors import InputError
from graphs.program.program import Program
from graphs.rewrites.layouts import Indices, Slice


def sliced(tensor: torch.Tensor, one: Slice) -> torch.Tensor:
    """A part of a tensor, without its gradient: a view of it where that is possible."""
    part = tensor.detach()
    if one.region is None:
        return part
    axis, ranges = one.region
    pieces = [part.narrow(axis, start, stop - start) for start, stop in ranges]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, axis)


@dataclass(frozen=True)
class Pieces:
    """The parts of tensors, whose names are their own."""

    slices: Mapping[str, Slice]  # what each part is, by its name
    shapes: Mapping[str, Sequence[int]]  # of the tensors that are in parts, by name

    @classmethod
    def of(cls, program: Program) -> Self:
        """The parts of a program's parameters and buffers."""
        return cls(program.slices, {name: tuple(tensor.shape) for name, tensor in program.sources.items()})

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        slices, shapes = dict[str, Slice](), dict[str, Sequence[int]]()
        for name, about in document.items():
            ranges = tuple((int(start), int(stop)) for start, stop in about["ranges"])
            slices[name] = Slice(str(about["of"]), Indices(int(about["axis"]), ranges) if ranges else None)
            shapes[slices[name].source] = tuple(map(int, about["shape"]))
        return cls(slices, shapes)

    def to_dict(self, names: Collection[str]) -> dict[str, Any]:
        """Return the named parts as a JSON document; a part without ranges is the whole tensor."""
        document = {}
        for name in (name for name in self.slices if name in names):
            source, region = self.slices[name]
            axis, ranges = region or (0, ())
            document[name] = {
                "of": source,
                "shape": list(self.shapes[source]),
                "axis": axis,
                "ranges": [list(each) for each in ranges],
            }
        return document

    @cached_property
    def names(self) -> dict[str, list[str]]:
        """The names of the parts of each tensor."""
        found: dict[str, list[str]] = {}
        for name, one in self.slices.items():
            found.setdefault(one.source, []).append(name)
        return found

    def whole(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Values of tensors, of which those of parts are put together.

        None stands for zeros among others, and for itself where all are None.

        Raises:
            InputError: if there are some parts of a tensor, and others are missing.
        """
        whole = {name: value for name, value in values.items() if name not in self.slices}
        for source, names in self.names.items():
            given = [name for name in names if name in values and source not in values]
            parts = {name: value for name in given if (value := values[name]) is not None}
            if given and not self._complete(source, given):
                raise InputError(f"of '{source}' there are only the parts {', '.join(given)}; give those of all ranks")
            if parts:
                whole[source] = self._joined(source, parts)
            elif given:
                whole[source] = None
        return whole

    def divided(self, values: Mapping[str, Any], names: Collection[str] | None = None) -> dict[str, Any]:
        """The inverse of `whole`, for parts with these names; all by default."""
        own = {name: value for name, value in values.items() if name not in self.shapes}
        for name, one in self.slices.items():
            if one.source in values and (names is None or name in names):
                value = values[one.source]
                own[name] = None if value is None else sliced(value, one)
        return own

    def whole_optimizer(self, saved: Mapping[str, Any]) -> dict[str, Any]:
        """The state of an optimizer, see `Optimizers.state_dict`, in which the parts are put together."""
        state, options = dict(saved["state"]), dict(saved["options"])
        for source, names in self.names.items():
            kept = {name: state.pop(name) for name in names if name in state}
            given = [options.pop(name) for name in names if name in options]
            options |= {source: given[0]} if given else {}
            for key in next(iter(kept.values()), ()):
                values = {name: each[key] for name, each in kept.items()}
                by_element = all(_fits(value, self._shape(name)) for name, value in values.items())
                value = self.whole(values)[source] if by_element else next(iter(values.values()))
                state.setdefault(source, {})[key] = value
        return {**saved, "state": state, "options": options}

    def optimizer_of_parts(self, saved: Mapping[str, Any]) -> dict[str, Any]:
        """The inverse of `whole_optimizer`."""
        state, options = dict(saved["state"]), dict(saved["options"])
        for name, one in self.slices.items():
            shape = self.shapes[one.source]
            if one.source in saved["options"]:
                options[name] = saved["options"][one.source]
            if one.source in saved["state"]:
                kept = saved["state"][one.source]
                state[name] = {key: sliced(value, one) if _fits(value, shape) else value for key, value in kept.items()}
        return {**saved, "state": state, "options": options}

    def _shape(self, name: str) -> tuple[int, ...]:
        """The shape of a part."""
        source, region = self.slices[name]
        return region.shape(self.shapes[source]) if region else tuple(self.shapes[source])

    def _complete(self, source: str, given: Sequence[str]) -> bool:
        """Whether parts make up a tensor."""
        there: dict[int, set[int]] = {}
        for region in (self.slices[name].region for name in given):
            if region is None:
                return True
            there.setdefault(region.axis, set()).update(*(range(start, stop) for start, stop in region.ranges))
        return any(len(indices) == self.shapes[source][axis] for axis, indices in there.items())

    def _joined(self, source: str, parts: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """A tensor of its parts; those that are missing are zero."""
        first = next(iter(parts.values()))
        whole = torch.zeros(self.shapes[source], dtype=first.dtype)
        for name, part in parts.items():
            region = self.slices[name].region
            if region is None:
                return part.detach().to("cpu", copy=True)
            at = 0
            for start, stop in region.ranges:
                target = whole.narrow(region.axis, start, stop - start)
                target.copy_(part.detach().narrow(region.axis, at, stop - start))
                at += stop - start
        return whole


def _fits(value: Any, shape: Sequence[int]) -> bool:
    """Whether an optimizer keeps a number for each element."""
    return isinstance(value, torch.Tensor) and value.shape == tuple(shape)


def check_trains(program: Program, trained: Iterable[str]) -> None:
    """Check that each element of a parameter is in one part, since two would be trained apart.

    Raises:
        InputError: if it is not.
    """
    learned = set(trained)
    for source, names in Pieces.of(program).names.items():
        held = [name for name in (*names, source) if name in learned and name in program.state]
        n_elements = sum(program.state[name].numel() for name in held)
        if held and n_elements != program.sources[source].numel():
            raise InputError(
                f"parameter '{source}' is divided into {', '.join(held)}, of which several have the same elements, or "
                "none has some; divide all its readers alike, or none of them (shared=True for whole ones)"
            )
