"""What one run of an operator takes in memory, as an importer saw it; records without a word of PyTorch.

::

    conv ──► relu ──► conv         relu   run       writes (3136,)       its own storage, 3136 bytes
                                          backward  saved  ("relu",)     kept from the forward to the backward pass
                                                    gradients conv: 3136
    x ──► view ──► linear          view   run       writes ("x",)        it shows what x shows
                                          backward  gradients x: "view"  the gradient that comes in, seen differently
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

Storage: TypeAlias = str | int
"""The name of a tensor whose storage is shown, or the bytes of a storage of one's own."""


class Gradient(NamedTuple):
    """The gradient of one input.

    Attributes:
        tensor: the input.
        storage: its own, or that of the gradient of this output, or of this input before it.
        viewed: whether it is a view of what was computed; then nothing is added to it in place.
    """

    tensor: str
    storage: Storage
    viewed: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """One forward run.

    Attributes:
        writes: the storage of each output, in their order.
        extra_bytes: the most that is allocated at any moment besides what stays afterwards.
    """

    writes: tuple[Storage, ...]
    extra_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Backward:
    """What a backward pass keeps, gives and takes.

    Attributes:
        saved: the operator's inputs and outputs that are kept from the forward to the backward pass.
        saved_bytes: what is kept besides: masks, indices, statistics.
        gradients: of each input that gets one.
        extra_bytes: the most that is allocated at any moment besides what was saved and all these gradients.
    """

    saved: tuple[str, ...] = ()
    saved_bytes: int = 0
    gradients: tuple[Gradient, ...] = ()
    extra_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Footprint:
    """What an operator takes in inference and in training.

    Attributes:
        inference: without a backward pass to come.
        training: the forward run of a training step, with gradients to come; None if it could not be recorded.
        backward: None if it could not be recorded.
    """

    inference: Run
    training: Run | None = None
    backward: Backward | None = None


def footprint_to_dict(footprint: Footprint) -> dict[str, Any]:
    """A footprint as what JSON can hold."""
    document: dict[str, Any] = {"inference": _run_to_list(footprint.inference)}
    if footprint.training is not None:
        document["training"] = _run_to_list(footprint.training)
    if (backward := footprint.backward) is not None:
        gradients = [[name, storage, int(viewed)] for name, storage, viewed in backward.gradients]
        document["backward"] = [list(backward.saved), backward.saved_bytes, gradients, backward.extra_bytes]
    return document


def footprint_from_dict(document: Mapping[str, Any]) -> Footprint:
    """The inverse of `footprint_to_dict`.

    Raises:
        KeyError, TypeError, ValueError: if it is damaged.
    """
    training, backward = document.get("training"), document.get("backward")
    return Footprint(
        inference=_run_from_list(document["inference"]),
        training=None if training is None else _run_from_list(training),
        backward=None if backward is None else _backward_from_list(backward),
    )


def _run_to_list(run: Run) -> list[Any]:
    return [list(run.writes), run.extra_bytes]


def _run_from_list(document: list[Any]) -> Run:
    writes, extra_bytes = document
    return Run(tuple(_storage(item) for item in writes), int(extra_bytes))


def _backward_from_list(document: list[Any]) -> Backward:
    saved, saved_bytes, gradients, extra_bytes = document
    found = tuple(Gradient(str(name), _storage(item), bool(viewed)) for name, item, viewed in gradients)
    return Backward(tuple(str(name) for name in saved), int(saved_bytes), found, int(extra_bytes))


def _storage(value: Any) -> Storage:
    if not isinstance(value, str | int):
        raise TypeError(f"a storage is a name or a number of bytes, not {value!r}")
    return value
