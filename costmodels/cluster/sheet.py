"""DataSheet: the figures of a device's data sheet, besides peaks and bandwidth, from which its times are estimated."""

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from costmodels.cluster.links import check_positive
from graphs.common.checks import check_fields
from graphs.common.errors import InputError, nearest

Nvidia: TypeAlias = Literal["Volta", "Turing", "Ampere", "Ada", "Hopper", "Blackwell"]
OtherGpu: TypeAlias = Literal["CDNA2", "CDNA3", "CDNA4", "RDNA2", "RDNA3", "RDNA4", "Alchemist", "Battlemage", "Apple"]
Processor: TypeAlias = Literal["AVX2", "AVX-512", "AMX"]

NVIDIA: tuple[str, ...] = get_args(Nvidia)
PROCESSORS: tuple[str, ...] = get_args(Processor)
FAMILIES: tuple[str, ...] = (*NVIDIA, *get_args(OtherGpu), *PROCESSORS)
"""Generations of GPUs, and of processors the widest instructions that they have."""


@dataclass(frozen=True, slots=True)
class DataSheet:
    """Figures of a data sheet.

    Raises:
        InputError: for an unknown family, or a figure that is not above 0.
    """

    family: str  # one of `FAMILIES`
    units: int  # multiprocessors, compute units or Xe cores of a GPU; cores of a processor
    clock_hz: float  # boost clock of a GPU, base clock of a processor
    cache_bytes: float  # of the last cache before memory

    def __post_init__(self) -> None:
        where = "a data sheet"
        check_fields(self, where)
        if self.family not in FAMILIES:
            raise InputError(
                f"{where} has the unknown family '{self.family}'; known: {', '.join(FAMILIES)}"
                f"{nearest(self.family, FAMILIES)}"
            )
        check_positive(where, "units", self.units)
        check_positive(where, "clock", self.clock_hz)
        check_positive(where, "cache", self.cache_bytes)

    @property
    def is_processor(self) -> bool:
        """Whether it is a processor and no GPU."""
        return self.family in PROCESSORS
