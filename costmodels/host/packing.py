"""The weights that kernels pack, and whether there is room for them."""

from collections.abc import Callable, Hashable, Iterable
from threading import Lock

import torch

from costmodels.host.affinity import release_heap
from costmodels.host.discovery import ROOT, free_bytes
from costmodels.units import format_bytes
from graphs.common.errors import InputError
from graphs.ir import Graph
from graphs.kernels.kernel import Kernel, Pack


class PackedWeights:
    """Packed weights, each made once, however many operators and devices of this host read it.

    They are in memory of their own if they are to stay ``apart`` from the model's, which may change.
    """

    def __init__(self, apart: bool = False) -> None:
        self._apart = apart
        self._tensors: dict[Hashable, torch.Tensor] = {}
        self._packing = Lock()  # devices that begin together would each pack a weight for itself

    def get(self, kernel: Kernel, name: str, weight: Callable[[str], torch.Tensor], n_cores: int) -> torch.Tensor:
        """Return a weight as a kernel packs it for a device of ``n_cores`` cores, on that device's thread.

        ``weight`` returns a weight of the model by its name.
        """
        key = _key(kernel, name, n_cores)
        with self._packing:
            if key not in self._tensors:
                self._tensors[key] = self._packed(kernel.packs[name], weight)
            return self._tensors[key]

    def _packed(self, pack: Pack, weight: Callable[[str], torch.Tensor]) -> torch.Tensor:
        packed = pack(weight)
        if (
            self._apart
            and not packed.is_mkldnn
            and address_of(packed) in {address_of(weight(name)) for name in pack.reads}
        ):
            return packed.clone()
        return packed

    def check_room(self, graph: Graph, kernels: Iterable[Kernel], n_cores: int) -> None:
        """Raise InputError if what is to be packed for kernels of a device takes more than the free memory."""
        packs = {_key(kernel, name, n_cores): pack for kernel in kernels for name, pack in kernel.packs.items()}
        missing = (pack for key, pack in packs.items() if key not in self._tensors)
        n_bytes = sum(pack.growth * graph.tensor[name].n_bytes for pack in missing for name in pack.reads[:1])
        check_room(
            graph, n_bytes, "quick kernels copy", "calibrate exact kernels (--kernels exact), or plan without measuring"
        )


def check_room(graph: Graph, n_bytes: float, who: str, way_out: str) -> None:
    """Raise InputError if copies of weights take more than the free memory; ``who`` copies them, as "runners copy"."""
    if n_bytes and n_bytes > free_bytes(ROOT):
        release_heap()
        if n_bytes > (free := free_bytes(ROOT)):
            raise InputError(
                f"model '{graph.name}' has {format_bytes(n_bytes)} of weights that {who}, and {format_bytes(free)} "
                f"are free; {way_out}"
            )


def check_room_on_gpu(graph: Graph, n_bytes: float, gpu: torch.device) -> None:
    """Raise InputError if weights take more than the memory of a GPU that nothing uses, or that PyTorch can reuse."""
    free, total = torch.cuda.mem_get_info(gpu)
    free += torch.cuda.memory_reserved(gpu) - torch.cuda.memory_allocated(gpu)
    if n_bytes > free:
        raise InputError(
            f"model '{graph.name}' has {format_bytes(n_bytes)} of weights for '{gpu}', of whose {format_bytes(total)} "
            f"{format_bytes(free)} are free; end what else runs on it, or plan for less memory (cluster.toml)"
        )


def address_of(tensor: torch.Tensor) -> int:
    """Return the address of the memory that a tensor is a part of."""
    return tensor.untyped_storage().data_ptr()


def _key(kernel: Kernel, name: str, n_cores: int) -> Hashable:
    """Return the key of a packed weight, which has the number of cores, since oneDNN packs differently for each."""
    pack = kernel.packs[name]
    return (kernel.op.name, name, n_cores) if pack.form is None else (pack.reads, pack.form, n_cores)
