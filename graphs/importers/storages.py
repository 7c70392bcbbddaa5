"""Counts the bytes of the storages that are alive, as PyTorch's dispatcher sees them.

Temporary memory inside a kernel (oneDNN's scratch memory, a copy in another layout) does not pass the dispatcher and is
not counted.
"""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class Meter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """Counts every storage that appears inside its ``with`` block, until the storage is freed.

    ::

        with Meter() as meter:
            ...
        meter.peak_bytes

    Enter the meter after a mode that replaces kernels (fake tensors), so that it sees the results of that mode.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.n_bytes = 0
        self.peak_bytes = 0
        self._alive: dict[int, Any] = {}

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.add(leaf)
        return result

    def add(self, tensor: torch.Tensor) -> None:
        """Count the storage of a tensor, unless it is counted already."""
        self._watch(tensor, tensor.untyped_storage().nbytes())

    def ignore(self, tensor: torch.Tensor) -> None:
        """Never count the storage of a tensor."""
        self._watch(tensor, 0)

    def restart(self) -> None:
        """Set the peak to the bytes that are alive now."""
        self.peak_bytes = self.n_bytes

    def _watch(self, tensor: torch.Tensor, n_bytes: int) -> None:
        storage = tensor.untyped_storage()
        key = storage_key(tensor)
        if key in self._alive:
            return

        def freed(_: object) -> None:
            del self._alive[key]
            self.n_bytes -= n_bytes

        self._alive[key] = weakref.ref(storage, freed)  # a storage keeps its Python object for as long as it lives
        self.n_bytes += n_bytes
        self.peak_bytes = max(self.peak_bytes, self.n_bytes)


class Names:
    """Names of storages, each while its storage is alive; a later storage may have the same address."""

    def __init__(self) -> None:
        self._names: dict[int, tuple[str, weakref.ref[torch.UntypedStorage]]] = {}

    def add(self, storage: torch.UntypedStorage, name: str) -> None:
        """Name a storage that has no name yet."""
        if self.of(storage) is None:
            self._names[storage._cdata] = name, weakref.ref(storage)

    def of(self, storage: torch.UntypedStorage) -> str | None:
        """The name of a storage; None if it has no name."""
        name, named = self._names.get(storage._cdata, (None, None))
        return name if named is not None and named() is not None else None


def storage_key(tensor: torch.Tensor) -> int:
    """A number that is equal for all tensors of one storage, while the storage is alive."""
    return int(tensor.untyped_storage()._cdata)
