"""Estimate: seconds of a network's operators on a device of which only the data sheet is known."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodels.cluster.cluster import Device
from costmodels.estimates.kernels import Kernels
from costmodels.estimates.model import chain_seconds, kernel_seconds
from costmodels.estimates.parameters import Parameters, parameters_for, strangeness
from graphs.common.arrays import Floats
from graphs.common.brief import Brief
from graphs.common.errors import InputError

GUESSED = 0.5
"""Standard deviation of the logarithm of the time of an operator whose kind has no formula."""


@dataclass(frozen=True)
class Estimate(Brief):
    """Times of operators on a device of a known kind.

    Attributes:
        forward_s: [n_ops], seconds of the forward pass.
        backward_s: [n_ops], of the backward pass; zeros in inference.
        deviation: [n_ops], standard deviation of the logarithm of the time of a network of such operators.
        reason: why less is known of this device than of those in the fit; empty if it is like them.
    """

    forward_s: Floats
    backward_s: Floats
    deviation: Floats
    reason: str


def estimated(
    kernels: Kernels, device: Device, guessed: Sequence[bool] | NDArray[np.bool_] = (), passes: Floats | None = None
) -> Estimate:
    """Return the times of operators on a device with a data sheet.

    Args:
        kernels: of the network, see `network_kernels`.
        device: with its data sheet.
        guessed: [n_ops], whether the kind of an operator has no formula.
        passes: [n_ops], in training how many passes forward a backward pass is like, 0 for none; None in inference.

    Raises:
        InputError: for a device without a data sheet.
    """
    if device.sheet is None:
        raise InputError(f"device '{device.name}' has no data sheet; give it family, units, clock and cache")
    parameters = parameters_for(device.sheet, passes is not None)
    forward_s, backward_s = pass_seconds(kernels, device, parameters, passes)
    if not device.sheet.is_processor:
        forward_s = chain_seconds(forward_s, kernels.n_launches, device.launch_s)
        backward_s = chain_seconds(backward_s, np.where(backward_s > 0, kernels.n_launches, 0.0), device.launch_s)
    strange, reason = strangeness(device.sheet, parameters)
    deviation = np.full(len(forward_s), np.hypot(parameters.spread, strange))
    if len(guessed):
        deviation = np.where(guessed, np.hypot(deviation, GUESSED), deviation)
    return Estimate(forward_s, backward_s, deviation, reason)


def pass_seconds(
    kernels: Kernels, device: Device, parameters: Parameters, passes: Floats | None = None
) -> tuple[Floats, Floats]:
    """Return [n_ops] each, seconds forward and backward of kernels that wait for no host; arguments as `estimated`."""
    forward_s = kernel_seconds(kernels, device, parameters)
    if passes is None:
        return forward_s, np.zeros_like(forward_s)
    return forward_s, forward_s * parameters.backward_multiples[kernels.kind] * np.minimum(passes, 1.0)
