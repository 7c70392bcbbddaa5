"""Whether there is room for the weights that kernels pack."""

from collections.abc import Iterable

from costmodels.host.affinity import release_heap
from costmodels.host.discovery import ROOT, free_bytes
from costmodels.host.kernel import Pack
from costmodels.units import format_bytes
from graphs.errors import InputError
from graphs.program.program import Program


def check_room_to_pack(program: Program, packs: Iterable[Pack]) -> None:
    """Raise InputError if the weights that are to be packed take more than the free memory."""
    weights = (name for pack in packs for name in pack.reads[:1])  # others are a number for each channel
    n_bytes = sum(program.graph.tensor[name].n_bytes for name in weights)
    if n_bytes and n_bytes > free_bytes(ROOT):
        release_heap()
        if n_bytes > (free := free_bytes(ROOT)):
            raise InputError(
                f"model '{program.graph.name}' has {format_bytes(n_bytes)} of weights that quick kernels copy, and "
                f"{format_bytes(free)} are free; calibrate exact kernels (--kernels exact), or plan without measuring"
            )
