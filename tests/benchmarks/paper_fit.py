"""The fit of `costmodels.estimates` to published figures: few parameters, drawn towards likely values."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import least_squares

from costmodels.estimates.kernels import COMPUTING, KERNEL_KINDS
from costmodels.estimates.parameters import NUMBERS, Group, Parameters
from graphs.common.arrays import Floats
from tests.benchmarks.paper_networks import Networks

NOISE: Mapping[Group, float] = {"gpu": 0.08, "gpu training": 0.08, "processor": 0.15}
"""Spread of a network's logarithm that the fit takes for chance; the parameters' own are in `Prior`."""

STEPS = 12  # of the regression
STREAMING = KERNEL_KINDS[len(COMPUTING) : -1]


@dataclass(frozen=True)
class Prior:
    """Values before any measurement, and how far their logarithms are let go from them."""

    arithmetic: Mapping[str, float]
    memory: Mapping[str, float]
    backward: Mapping[str, float]
    numbers: Mapping[str, float]

    @property
    def entries(self) -> list[tuple[str, str, float, float]]:
        """Section, name, value and standard deviation of the logarithm of each parameter."""
        kinds = [kind for kind in COMPUTING if kind != "recurrence"]
        found: list[tuple[str, str, float, float]] = []
        found += [("arithmetic", kind, self.arithmetic[kind], 0.5) for kind in COMPUTING]
        found += [("memory", kind, self.memory.get(kind, 0.8), 0.4) for kind in (*kinds, *STREAMING)]
        found += [("backward", kind, value, 0.3) for kind, value in self.backward.items()]
        return found + [("", name, self.numbers[name], 0.2 if name == "narrow" else 0.7) for name in NUMBERS]


_GPU = Prior(
    arithmetic={
        "product": 0.8,
        "small product": 0.5,
        "convolution": 0.6,
        "grouped convolution": 0.3,
        "depthwise convolution": 0.15,
        "large depthwise convolution": 0.08,
        "attention": 0.5,
        "recurrence": 0.2,
    },
    memory={
        "convolution": 0.5,
        "grouped convolution": 0.4,
        "depthwise convolution": 0.5,
        "large depthwise convolution": 0.5,
        "copy": 0.6,
        "irregular": 0.4,
    },
    backward={},
    numbers={
        "start_s": 2e-6,
        "fill": 64.0,
        "narrow": 1.15,
        "cache_gain": 0.5,
        "group_width": 0.5,
        "other_groups": 2.0,
        "padding": 1.0,
    },
)
_BACKWARD: dict[str, float] = {kind: 2.0 if kind in COMPUTING else 1.5 for kind in KERNEL_KINDS[:-1]}
PRIORS: Mapping[Group, Prior] = {
    "gpu": _GPU,
    "gpu training": replace(_GPU, backward=_BACKWARD | {"batch normalization": 1.7, "copy": 1.0}),
    "processor": Prior(
        arithmetic={
            "product": 0.5,
            "small product": 0.3,
            "convolution": 0.5,
            "grouped convolution": 0.2,
            "depthwise convolution": 0.1,
            "large depthwise convolution": 0.1,
            "attention": 0.3,
            "recurrence": 0.1,
        },
        memory={},
        backward={},
        numbers={
            "start_s": 5e-6,
            "fill": 16.0,
            "narrow": 1.1,
            "cache_gain": 2.0,
            "group_width": 0.5,
            "other_groups": 1.0,
            "padding": 1.0,
        },
    ),
}


def fitted(group: Group, several: Sequence[Networks]) -> Parameters:
    """Parameters of a group, by a regression of the logarithms that outliers pull little (soft L1)."""
    entries, noise = PRIORS[group].entries, NOISE[group]
    prior, deviation = np.log([value for *_, value, _ in entries]), np.array([each for *_, each in entries])

    def residuals(logs: Floats) -> Floats:
        parameters = _parameters(entries, logs, several)
        off = np.concatenate([networks.logs(parameters) for networks in several]) / noise
        return np.concatenate([np.sign(off) * np.sqrt(2 * (np.sqrt(1 + off**2) - 1)), (logs - prior) / deviation])

    found = least_squares(residuals, prior, x_scale=deviation, max_nfev=STEPS)
    return _parameters(entries, np.log([float(f"{value:.4g}") for value in np.exp(found.x)]), several)


def _parameters(entries: list[tuple[str, str, float, float]], logs: Floats, several: Sequence[Networks]) -> Parameters:
    sections: dict[str, dict[str, float]] = {"arithmetic": {}, "memory": {}, "backward": {}, "": {}}
    for (section, name, *_), value in zip(entries, np.exp(logs).tolist(), strict=True):
        sections[section][name] = value
    families = tuple(dict.fromkeys(each.device.sheet.family for each in several if each.device.sheet))
    numbers = sections[""]
    return Parameters(
        sections["arithmetic"], sections["memory"], sections["backward"], **numbers, spread=0.1, fitted_to=families
    )


def spread_of(logs: Floats) -> float:
    """The standard deviation of a normal distribution that holds as much as 80 % of these errors."""
    return float(f"{np.quantile(np.abs(logs), 0.8) / 1.2816:.3g}")


def toml_of(found: Mapping[Group, Parameters], sources: Mapping[Group, str]) -> str:
    """The text of parameters.toml."""
    lines = [
        "# Shares of peaks that kinds of kernels reach, written by `python -m tests.benchmarks.paper --fit`.",
        "# `costmodels.estimates.parameters` says what each is. Do not edit by hand.",
    ]
    for group, one in found.items():
        lines += ["", f"[parameters.{json.dumps(group)}]", f"source = {json.dumps(sources[group])}"]
        lines += [f"fitted_to = {json.dumps(list(one.fitted_to))}"]
        lines += [f"{name} = {getattr(one, name):.4g}" for name in (*NUMBERS, "spread")]
        shares = (("arithmetic", one.arithmetic_share), ("memory", one.memory_share), ("backward", one.backward))
        for section, values in shares:
            if values:
                pairs = ", ".join(f"{json.dumps(kind)} = {value:.4g}" for kind, value in values.items())
                lines.append(f"{section} = {{ {pairs} }}")
    return "\n".join(lines) + "\n"
