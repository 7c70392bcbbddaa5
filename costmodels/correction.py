"""Correction: what stages really took, as factors of the operators' times in a cost table and in a profile.

A run measures stages, not operators. The predicted seconds of a stage are a sum over its operators, so each measured
stage is a linear equation for the factors of its operators, and stages of several plans that overlap distinguish
operators. There are fewer stages than operators: ridge regression takes the factors that are nearest to 1.

::

    minimise  Σ_s (Σ_k a_sk f_k − m_s)² / Σ_k a_sk   +   λ Σ_k w_k (f_k − 1)²

    a_sk  predicted seconds of time k in stage s        m_s  measured seconds of stage s
    f_k   factor of time k                              w_k  seconds of time k in a micro-batch, whatever part counts

Errors are taken to grow with the time like those of a sum of independent parts, in a stage as in an operator. So a
single stage that takes 1.2 times as long gives each of its operators the factor 1 + 0.2 / (1 + λ).

Operators with the same key share their times, on all devices of a kind. Each has an isolated time, a contended one and
one in copies, as in a profile, and a stage holds as much of these as its device has contention: what a plan did not use
is not corrected, and what it hardly used hardly.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from costmodels.measured import DIGITS, Measurement, Profile, TrainingMeasurement, nearest_count
from costmodels.table import CostTable
from graphs.common.arrays import Floats
from graphs.common.brief import Brief

RIDGE = 0.05  # λ: how much a stage that was measured once is believed less than completely, about 5 %
LIMIT = 10.0  # factors are between its inverse and it

Way: TypeAlias = Literal["isolated", "contended", "copies"]
"""How an operator was timed, see `costmodels.measured.Profile`."""

Factors: TypeAlias = Mapping[tuple[int, str], float]
"""By the contention group of a device and the key of an operator; what is missing has the factor 1."""


@dataclass(frozen=True)
class StageTime(Brief):
    """Measured time of a stage of a plan."""

    ops: tuple[int, ...]  # indices of its operators
    device: int  # index of its device
    contention: float  # the share of its work during which other devices computed, 0 to 1
    seconds: float  # measured, of one micro-batch, at the pace of the table
    copies: bool = False  # whether the others then computed copies of it


@dataclass(frozen=True)
class Correction(Brief):
    """Factors of the isolated times, of the contended ones, and of those in copies."""

    isolated: Factors
    contended: Factors
    copies: Factors = field(default_factory=dict)

    def table(self, table: CostTable, keys: Sequence[str]) -> CostTable:
        """The table with corrected times; ``keys`` are those of its operators, [n_ops]."""
        contends = np.asarray(table.slowdown.any(axis=0))
        ways = (self.isolated, self.contended, self.copies)
        isolated, contended, copies = (_factors(each, table, keys) for each in ways)
        contention = table.contention and replace(
            table.contention,
            slowdown=np.where(contends, (1 + table.slowdown) * contended / isolated - 1, 0.0),
            copies_slowdown=np.where(contends, (1 + table.copies_slowdown) * copies / isolated - 1, 0.0),
        )
        training = table.training and replace(table.training, backward_s=table.backward_s * isolated)
        return replace(table, forward_s=table.forward_s * isolated, training=training, contention=contention)

    def profile(self, profile: Profile, group: int, n_devices: int, training: bool) -> Profile:
        """The profile with corrected measurements, from which the corrected table follows.

        Args:
            profile: of the devices of a contention group.
            group: number of that group.
            n_devices: how many devices the group has.
            training: correct the times of training, not of inference.
        """
        isolated = _of_group(self.isolated, group)
        times: Mapping[str, Any] = profile.training if training else profile.ops
        changed: dict[str, Any] = {
            "training" if training else "ops": {key: _scaled(one, isolated.get(key, 1.0)) for key, one in times.items()}
        }
        ways: Mapping[str, tuple[Factors, Callable[[str, int], float]]]
        if training:
            ways = {"training_contended": (self.contended, partial(profile.slowdown, training=True))}
        else:
            ways = {
                "contended": (self.contended, profile.slowdown),
                "copies": (self.copies, profile.copies_slowdown),
            }
        for name, (factors, slowdown_of) in ways.items():
            by_count: Mapping[int, Mapping[str, Any]] = getattr(profile, name)
            count, part = nearest_count(by_count, n_devices)
            if not part:
                continue
            own, corrected = _of_group(factors, group), dict(by_count[count])
            for key, old in by_count[count].items():
                if key in times and key in isolated.keys() | own.keys() and old.seconds > 0:
                    factor = own.get(key, 1.0) / isolated.get(key, 1.0)
                    slowdown = ((1 + slowdown_of(key, n_devices)) * factor - 1) / part
                    alone_s = times[key].seconds * isolated.get(key, 1.0)
                    corrected[key] = _scaled(old, alone_s * max(1 / LIMIT, 1 + slowdown) / old.seconds)
            changed[name] = {**by_count, count: corrected}
        return replace(profile, **changed)


def fit_correction(
    table: CostTable, keys: Sequence[str], stages: Iterable[StageTime], ridge: float = RIDGE
) -> Correction:
    """Return the factors that explain measured stages.

    Args:
        table: cost table from which the stages were predicted.
        keys: [n_ops], keys of the operators, see `costmodels.operators.keys`.
        stages: measured; one without predicted seconds is ignored.
        ridge: λ, above 0.
    """
    both_s = table.forward_s + table.backward_s
    contends = np.asarray(table.slowdown.any(axis=0))
    columns: dict[tuple[Way, int, str], int] = {}
    rows: list[dict[int, float]] = []
    whole_s: dict[int, float] = {}  # by column
    measured_s: list[float] = []
    for stage in stages:
        device, group = stage.device, int(table.contention_group[stage.device])
        share = stage.contention if contends[device] else 0.0
        at_once: Way = "copies" if stage.copies else "contended"
        slowdown = table.copies_slowdown if stage.copies else table.slowdown
        row: dict[int, float] = {}
        whole: dict[int, float] = {}
        for op in stage.ops:
            isolated_s = float(both_s[op, device])
            shares: tuple[tuple[Way, float, float], ...] = (
                ("isolated", 1 - share, isolated_s),
                (at_once, share, isolated_s * float(1 + slowdown[op, device])),
            )
            for way, part, seconds in shares:
                if part * seconds > 0:
                    column = columns.setdefault((way, group, keys[op]), len(columns))
                    row[column] = row.get(column, 0.0) + part * seconds
                    whole[column] = whole.get(column, 0.0) + seconds
        if row:
            rows.append(row)
            measured_s.append(stage.seconds)
            whole_s |= {column: max(seconds, whole_s.get(column, 0.0)) for column, seconds in whole.items()}
    predicted_s = np.zeros((len(rows), len(columns)))
    for number, row in enumerate(rows):
        predicted_s[number, list(row)] = list(row.values())
    time_s = np.array([whole_s[column] for column in range(len(columns))])
    factors = fit_factors(predicted_s, time_s, np.array(measured_s), ridge)
    found: dict[Way, dict[tuple[int, str], float]] = {way: {} for way in get_args(Way)}
    for (way, group, key), column in columns.items():
        found[way][group, key] = float(np.clip(factors[column], 1 / LIMIT, LIMIT))
    return Correction(**found)


def fit_factors(predicted_s: Floats, time_s: Floats, measured_s: Floats, ridge: float) -> Floats:
    """[n_times], the factors of times by the ridge regression above, in closed form.

    Args:
        predicted_s: [n_stages, n_times], what each time contributes to each stage; every stage has some seconds.
        time_s: [n_times], seconds of each time, at least what it contributes to a stage; 0 for one in no stage.
        measured_s: [n_stages].
        ridge: λ, above 0.
    """
    stage_s = predicted_s.sum(axis=1)
    root = np.sqrt(np.where(time_s > 0, time_s, np.inf))  # a time in no stage keeps the factor 1
    scaled = predicted_s / np.sqrt(stage_s)[:, None] / root
    kernel = scaled @ scaled.T + ridge * np.eye(len(stage_s))
    prices = np.linalg.solve(kernel, (measured_s - stage_s) / np.sqrt(stage_s))
    return np.asarray(1 + scaled.T @ prices / root)


def _factors(factors: Factors, table: CostTable, keys: Sequence[str]) -> Floats:
    """[n_ops, n_devices]."""
    groups = table.contention_group.tolist()
    return np.array([[factors.get((group, key), 1.0) for group in groups] for key in keys])


def _of_group(factors: Factors, group: int) -> dict[str, float]:
    """The factors of a contention group by key."""
    return {key: factor for (number, key), factor in factors.items() if number == group}


def _scaled(one: Measurement | TrainingMeasurement, factor: float) -> Measurement | TrainingMeasurement:
    """A measurement with its seconds multiplied; its spread is a share of them."""
    if isinstance(one, TrainingMeasurement):
        return TrainingMeasurement(_times(one.forward, factor), _times(one.backward, factor))
    return _times(one, factor)


def _times(one: Measurement, factor: float) -> Measurement:
    return one if factor == 1 else replace(one, seconds=float(f"{one.seconds * factor:.{DIGITS}g}"))
