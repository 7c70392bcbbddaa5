"""Parameters: shares of a device's peaks that kinds of kernels reach, from parameters.toml in this folder."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from costmodels.cluster.sheet import NVIDIA, DataSheet
from costmodels.estimates.kernels import KERNEL_KINDS
from graphs.common.arrays import Floats

FILE = Path(__file__).with_name("parameters.toml")

OTHER_FAMILY, OTHER_MAKER = 0.08, 0.3
"""By how much the logarithm of times varies more on a device of a family that was not in the fit, or of a maker."""

Group: TypeAlias = Literal["gpu", "gpu training", "processor"]
"""Devices and uses with a set of parameters: GPUs under PyTorch without compiling, processors with it."""

NUMBERS = ("start_s", "fill", "narrow", "cache_gain", "group_width", "other_groups", "padding")
"""Parameters that do not belong to a kind of kernel."""


@dataclass(frozen=True)
class Parameters:
    """One set of parameters.

    Attributes:
        arithmetic_share: of the peak, by kind of kernel.
        memory_share: of the bandwidth, by kind of kernel; above 1 where the last cache or a fused kernel saves bytes.
        backward: by kind of kernel, how many times as long its backward pass takes as its forward pass.
        start_s: seconds from one kernel to the next on the device.
        fill: terms of a sum that take as long as filling the pipeline of a tile.
        narrow: how many times as long arithmetic takes in a tile of half as many columns.
        cache_gain: by how much the bandwidth grows for what fits the last cache, as a share.
        group_width: power with which grouped convolutions lose speed as their groups become narrower.
        other_groups: how many times as long a grouped convolution takes for which libraries have none of their own.
        padding: share that is really moved of the bytes that pad images to channels that tensor cores take.
        spread: standard deviation of the logarithm of a network's time that was not in the fit.
        fitted_to: families of the devices in the fit.
    """

    arithmetic_share: Mapping[str, float]
    memory_share: Mapping[str, float]
    backward: Mapping[str, float]
    start_s: float
    fill: float
    narrow: float
    cache_gain: float
    group_width: float
    other_groups: float
    padding: float
    spread: float
    fitted_to: tuple[str, ...] = ()

    @cached_property
    def arithmetic(self) -> Floats:
        """[n_kinds], the shares of the peak."""
        return np.array([self.arithmetic_share.get(kind, 1.0) for kind in KERNEL_KINDS])

    @cached_property
    def memory(self) -> Floats:
        """[n_kinds], the shares of the bandwidth."""
        return np.array([self.memory_share.get(kind, 1.0) for kind in KERNEL_KINDS])

    @cached_property
    def backward_multiples(self) -> Floats:
        """[n_kinds], the multiples of a backward pass."""
        return np.array([self.backward.get(kind, 1.0) for kind in KERNEL_KINDS])


@cache
def all_parameters() -> Mapping[Group, Parameters]:
    """Return every set of parameters by its group."""
    tables: dict[Group, dict[str, Any]] = tomllib.loads(FILE.read_text(encoding="utf-8"))["parameters"]
    return {
        group: Parameters(
            arithmetic_share=table["arithmetic"],
            memory_share=table["memory"],
            backward=table.get("backward", {}),
            fitted_to=tuple(table["fitted_to"]),
            **{name: table[name] for name in (*NUMBERS, "spread")},
        )
        for group, table in tables.items()
    }


def parameters_for(sheet: DataSheet, training: bool = False) -> Parameters:
    """Return the parameters of a kind of device.

    Devices of makers of which none was in a fit have those of GPUs; `strangeness` says how much less is known of them.
    """
    group: Group = "processor" if sheet.is_processor else "gpu training" if training else "gpu"
    return all_parameters()[group]


def strangeness(sheet: DataSheet, parameters: Parameters) -> tuple[float, str]:
    """Return by how much the logarithm of times varies more on a device, and why; 0 for families in the fit."""
    if sheet.family in parameters.fitted_to:
        return 0.0, ""
    if sheet.is_processor:
        return OTHER_FAMILY, f"no processor with {sheet.family} was in the fit"
    if sheet.family in NVIDIA:
        return OTHER_FAMILY, f"no GPU of the {sheet.family} family was in the fit"
    return OTHER_MAKER, f"no GPU of the maker of {sheet.family} was in the fit"
