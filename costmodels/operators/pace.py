"""Pace: how long a machine takes for two reference computations, now and when its operators were measured.

::

    computing    seconds of arithmetic in a core's own cache
    memory       how many times as long streaming a large matrix takes, right after it

The clock rate, the neighbours on a shared host and the state of memory change from minute to minute, and not alike for
all operators: one that reads memory may take longer while one that computes in a core's own cache takes the same.
Operators are therefore of a kind. A core that computes more slowly also reads more slowly, so an operator that streams
takes as many times as long as both figures say together (see `costmodels.calibrate.pace`).

Where a tenant of the host has the other thread of a core, the core has two paces, of which one lasts for one to eight
seconds; most networks take 1.2 to 1.3 times as long at the slower one. Samples count by their mean then, as their
median jumps from one pace to the other, and the samples of a measurement are taken in the midst of it.
"""

from collections.abc import Mapping, Sequence
from math import exp, hypot, log, sqrt
from statistics import fmean
from typing import Literal, TypeAlias, get_args

import numpy as np

from costmodels.operators.flops import Work, work_of
from graphs.common.arrays import Floats
from graphs.ir import Graph

PaceKind: TypeAlias = Literal["computing", "streaming"]
"""Kinds of work: arithmetic or calls of small operators, and work that waits for memory."""

PaceName: TypeAlias = Literal["computing", "memory"]
PACE_NAMES: tuple[PaceName, ...] = get_args(PaceName)

Paces: TypeAlias = Sequence[Mapping[str, float]]
"""Samples of a machine's pace: of each, the figures that were measured, by the names that `contended` gives."""

USUAL_SPREADS: Mapping[PaceName, float] = {"computing": 0.02, "memory": 0.04}
"""The spread of each figure of a machine from moment to moment: tenants of a host share its memory."""

SAMPLED = 0.02  # by how much a measured pace is off by chance at least
DIGITS = 4  # significant digits of figures
INTENSE = 8.0  # FLOP for each byte, from which the arithmetic of a processor counts and not its memory
SMALL_BYTES = 2**18  # that an operator reads and writes, below which calling it takes longer than memory does


def pace_kinds(graph: Graph, work: Work | None = None) -> tuple[PaceKind, ...]:
    """[n_ops], the kind of each operator of a graph; ``work`` is the graph's, if it is at hand."""
    work = work or work_of(graph)
    return tuple(
        _kind(op.leading.kind, flop, n_bytes)
        for op, flop, n_bytes in zip(graph.ops, work.flop.tolist(), work.n_bytes.tolist(), strict=True)
    )


def _kind(name: str, flop: float, n_bytes: float) -> PaceKind:
    streams = n_bytes >= SMALL_BYTES and flop < INTENSE * n_bytes and "conv" not in name
    return "streaming" if streams else "computing"


def contended(name: PaceName, n_devices: int) -> str:
    """Return the name of a figure while ``n_devices`` devices of a host compute at once."""
    return f"{name} on {n_devices}" if n_devices > 1 else name


def usual_spread(name: str) -> float:
    """Return the spread of a figure, by its name, on a machine that was not watched, see `USUAL_SPREADS`."""
    for known, spread in USUAL_SPREADS.items():
        if name.startswith(known):
            return spread
    raise KeyError(name)


def kind_spreads(spreads: Mapping[str, float], n_devices: int, unknown: float) -> dict[PaceKind, float]:
    """Return the spread of each kind's pace while ``n_devices`` compute at once, from the figures' spreads by name."""

    def of(name: PaceName) -> float:
        return spreads.get(contended(name, n_devices), spreads.get(name, unknown))

    return {"computing": of("computing"), "streaming": hypot(of("computing"), of("memory"))}


def mean_pace(samples: Paces) -> dict[str, float]:
    """The mean of each figure, of the samples that have it, without the outermost.

    Of four or more, the lowest and the highest twentieth does not count, one each at least: a core that another process
    has for a moment is no pace.
    """
    names = dict.fromkeys(name for sample in samples for name in sample)
    figures = {name: sorted(sample[name] for sample in samples if name in sample) for name in names}
    return {name: float(f"{fmean(_inner(each)):.{DIGITS}g}") for name, each in figures.items()}


def _inner(ascending: Sequence[float]) -> Sequence[float]:
    """The values without the outermost."""
    left_out = max(1, len(ascending) // 20) if len(ascending) >= 4 else 0
    return ascending[left_out : len(ascending) - left_out]


def pace_ratios(now: Mapping[str, float], reference: Mapping[str, float], n_devices: int = 1) -> dict[PaceKind, float]:
    """Return how many times as long each kind takes now; a figure that either side lacks counts as unchanged.

    Args:
        now: figures by the names that `contended` gives.
        reference: the same at another time.
        n_devices: how many devices of a host compute at once; figures unknown for this number are those of one.
    """

    def of(figure: PaceName) -> float:
        names = (contended(figure, n_devices), figure)
        both = (now[name] / reference[name] for name in names if now.get(name, 0) > 0 < reference.get(name, 0))
        return next(both, 1.0)

    return {"computing": of("computing"), "streaming": of("computing") * of("memory")}


def likely_pace(samples: Paces, reference: Mapping[str, float]) -> dict[str, float]:
    """Return the most likely present value of each figure of a reference, as the mean of samples is off by chance.

    With the standard error s of the logarithm x of the ratio of both, the part 1 - (s / x)² of x is the machine's, and
    none of it below s (the non-negative garrote, Breiman 1995, https://doi.org/10.1080/00401706.1995.10484371). The
    error is that of the mean and of the reference, which is taken for a mean of as many samples, and at least
    `SAMPLED`.

    Args:
        samples: figures by name; figures that a sample lacks were not measured then.
        reference: figures by name; those that no sample has are returned unchanged.
    """
    mean = mean_pace(samples)
    likely = dict(reference)
    for name, before in reference.items():
        if mean.get(name, 0) > 0 < before:
            error = _error([log(sample[name]) for sample in samples if name in sample])
            likely[name] = before * exp(_machine_part(log(mean[name] / before), error))
    return likely


def _error(logs: Sequence[float]) -> float:
    """The standard error of the difference of two means, each of as many logarithms as these, which scatter alike."""
    return hypot(SAMPLED, sqrt(2 / len(logs)) * float(np.std(logs, ddof=1))) if len(logs) > 1 else SAMPLED


def _machine_part(change: float, error: float) -> float:
    return change - error**2 / change if abs(change) > error else 0.0


def network_pace(kinds: Sequence[PaceKind], seconds: Floats, ratios: Mapping[PaceKind, float]) -> float:
    """Return how many times as long a network takes, each kind of operator in proportion to its time.

    Args:
        kinds: [n_ops], of its operators, as from `pace_kinds`.
        seconds: [n_ops], of each operator, at the reference pace.
        ratios: as from `pace_ratios`.
    """
    total_s = float(seconds.sum())
    return float(seconds @ operator_paces(kinds, ratios)) / total_s if total_s > 0 else 1.0


def operator_paces(kinds: Sequence[PaceKind], ratios: Mapping[PaceKind, float]) -> Floats:
    """[n_ops], the ratio of each operator's kind."""
    return np.array([ratios[kind] for kind in kinds], dtype=float)
