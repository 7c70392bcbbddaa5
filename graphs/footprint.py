"""Footprints: the memory of one run of an operator, as an importer recorded it. The records do not need PyTorch.

::

    conv ──► relu ──► conv         relu   run       writes (3136,)       its own storage, 3136 bytes
                                          backward  saved  ("relu",)     kept from the forward to the backward pass
                                                    gradients conv: 3136
    x ──► view ──► linear          view   run       writes ("x",)        a view of x's storage
                                          backward  gradients x: "view"  a view of the incoming gradient
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from graphs.common.errors import InputError

Storage: TypeAlias = str | int
"""The name of the tensor whose storage is shared, or the bytes of a new storage."""


class Gradient(NamedTuple):
    """The gradient of one input."""

    tensor: str  # name of the input
    storage: Storage  # bytes of a new storage, or the output or earlier input whose gradient shares its storage
    viewed: bool = False  # whether the gradient is a view; autograd then adds nothing to it in place


@dataclass(frozen=True, slots=True)
class Run:
    """One forward run."""

    writes: tuple[Storage, ...]  # the storage of each output, in their order
    extra_bytes: int = 0  # peak of allocated memory beyond what stays allocated afterwards


@dataclass(frozen=True, slots=True)
class Backward:
    """One backward pass."""

    saved: tuple[str, ...] = ()  # the operator's inputs and outputs that are kept from the forward to the backward pass
    saved_bytes: int = 0  # bytes of other saved data: masks, indices, statistics
    gradients: tuple[Gradient, ...] = ()  # one for each input that gets a gradient
    extra_bytes: int = 0  # peak of allocated memory beyond the saved data and these gradients


@dataclass(frozen=True, slots=True)
class Footprint:
    """The memory of an operator in inference and in training."""

    inference: Run  # the forward run in inference
    training: Run | None = None  # the forward run of a training step; None if it could not be recorded
    backward: Backward | None = None  # the backward pass; None if it could not be recorded


def check_footprint(footprint: Footprint, name: str, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Check that a footprint is one of an operator with these inputs and outputs.

    Raises:
        InputError: if it names other tensors, leaves an output out, or has negative bytes.
    """
    known, backward = {*inputs, *outputs}, footprint.backward
    runs = [run for run in (footprint.inference, footprint.training) if run is not None]
    storages = [storage for run in runs for storage in run.writes]
    sizes = [run.extra_bytes for run in runs]
    tensors: list[str] = []
    if backward is not None:
        storages += [gradient.storage for gradient in backward.gradients]
        sizes += [backward.saved_bytes, backward.extra_bytes]
        tensors += [*backward.saved, *(gradient.tensor for gradient in backward.gradients)]
    tensors += [storage for storage in storages if isinstance(storage, str)]
    sizes += [storage for storage in storages if isinstance(storage, int)]
    whole = all(len(run.writes) == len(outputs) for run in runs)
    if not (whole and known.issuperset(tensors) and all(0 <= size < 2**63 for size in sizes)):
        raise InputError(f"the footprint of operator '{name}' does not fit its tensors; import the model again")


def footprint_to_dict(footprint: Footprint) -> dict[str, Any]:
    """A footprint as a JSON document."""
    document: dict[str, Any] = {}
    for name, run in (("inference", footprint.inference), ("training", footprint.training)):
        if run is not None:
            document[name] = [list(run.writes), run.extra_bytes]
    if (backward := footprint.backward) is not None:
        gradients = [[name, storage, int(viewed)] for name, storage, viewed in backward.gradients]
        document["backward"] = [list(backward.saved), backward.saved_bytes, gradients, backward.extra_bytes]
    return document


def footprint_from_dict(document: Mapping[str, Any]) -> Footprint:
    """The inverse of `footprint_to_dict`.

    Raises:
        KeyError, TypeError, ValueError: if the document is malformed.
    """
    training, backward = document.get("training"), document.get("backward")
    return Footprint(
        inference=_run_from_list(document["inference"]),
        training=None if training is None else _run_from_list(training),
        backward=None if backward is None else _backward_from_list(backward),
    )


def _run_from_list(document: list[Any]) -> Run:
    writes, extra_bytes = document
    return Run(tuple(map(_storage, writes)), int(extra_bytes))


def _backward_from_list(document: list[Any]) -> Backward:
    saved, saved_bytes, gradients, extra_bytes = document
    records = tuple(Gradient(str(name), _storage(item), bool(viewed)) for name, item, viewed in gradients)
    return Backward(tuple(map(str, saved)), int(saved_bytes), records, int(extra_bytes))


def _storage(value: Any) -> Storage:
    if not isinstance(value, str | int):
        raise TypeError(f"a storage is a name or a number of bytes, not {value!r}")
    return value
