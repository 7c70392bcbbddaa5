"""Measures the operators of a program on a device, unless the cache has their times.

The program runs in passes (see `costmodels.calibrate.runs`). Measurements are written to the cache every few seconds,
so that an interrupted calibration continues, and equal operators of other programs are not measured again.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import inf, sqrt
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from costmodels.calibrate.clock import clock_of, mean_s
from costmodels.calibrate.contention import CoRun, Parts, balanced_parts
from costmodels.calibrate.pace import PaceMeter
from costmodels.calibrate.runs import Inference, Pass, Training
from costmodels.cluster.cluster import Device
from costmodels.host.affinity import Stopped, run_on, torch_device_of
from costmodels.host.fingerprint import fingerprint_of, machine_of
from costmodels.measured import Measurement, Profile, TrainingMeasurement, moment_now, noisy
from costmodels.operators.keys import op_keys, training_keys
from costmodels.operators.pace import PaceKind, likely_pace, operator_paces, pace_kinds, pace_ratios
from costmodels.profilefile import add_profile, read_profile
from graphs.common.arrays import Floats
from graphs.common.errors import InputError
from graphs.ir import Graph
from graphs.program.program import Program

OnStep: TypeAlias = Callable[[str, int, int], object]
"""Is called with (activity, done, total) from any thread."""

Phase: TypeAlias = Mapping[str, Measurement]
"""Measurements by key; inference has one phase, training has two: forward and backward."""

Rows: TypeAlias = Sequence[list[list[float]]]
"""[n_passes][n_phases][n_ops], seconds."""

SAVE_S = 2.0  # between two writes of the cache
PACED = 3  # passes at least for each sample of the machine's pace
PACE_S = 0.5  # between two samples at least
BATCHES = 8  # parts of a measurement
REFINED_S = 4.0  # after which passes are not added for the sake of the mean
KNOWN = 3  # least passes of a measurement; `MeasurementEffort.passes` make a good one
PATIENCE = 3


@dataclass(frozen=True, slots=True)
class MeasurementEffort:
    """The effort of a measurement: ``passes`` over the program and ``least_s`` seconds, with no pass after ``most_s``.

    If some operators are in the cache, ``least_s`` is multiplied by the share of the others; ``again`` ignores the
    cache. If an operator is noisy, up to ``patience`` times as many passes are run. Passes are also added until the
    standard error of their mean is at most ``error``, a share of the mean, but for no longer than `REFINED_S`: a host
    whose pace drifts is measured longer.
    """

    passes: int = 7
    least_s: float = 1.0
    most_s: float = 10.0
    again: bool = False
    patience: int = PATIENCE
    error: float = inf


def profile_program(
    program: Program,
    device: Device,
    effort: MeasurementEffort = MeasurementEffort(),
    on_step: OnStep = lambda *_: None,
    training: bool = False,
    cache: Path | None = None,
) -> Profile:
    """Measure the operators of a program that are not in the cache, or not well enough; nothing runs if all are.

    An operator's time is the median over the passes, see `pooled`; equal operators (see `op_keys`) share the mean.
    Between passes the machine's pace is measured, and all times of a profile are those at the pace of its first ones.
    ``cache`` is the folder of profiles, which is read before and written during the measurement.

    Raise InputError if this host does not have the device, the device was calibrated with other hard- or software, the
    program has weights without values that do not fit into free memory, or the cache is damaged.
    """
    machine, fingerprint = _identified(device)
    keys = training_keys(program.graph) if training else op_keys(program.graph)
    cached = read_profile(cache, fingerprint) if cache else None
    known = (cached.training if training else cached.ops) if cached and not effort.again else {}
    pace = SessionPace(program.graph, (device,), cached.pace if cached else {}, here=True)
    moments: Mapping[int, Mapping[str, float]] = cached.moments if cached else {}

    def profile(measured: Any) -> Profile:
        inference, in_training = ({}, measured) if training else (measured, {})
        return Profile(
            fingerprint, machine, inference, in_training, pace=pace.reference, moments={**moments, **pace.moment}
        )

    session = _Session(keys, _phases(known, training, keys), effort, training, profile, cache, pace)

    def run() -> Rows:
        torch_device, clock = torch_device_of(device), clock_of(device)
        n_ops = session.task.wanted[-1] + 1  # later operators are not needed
        pass_ = (
            Training(program, torch_device, clock)
            if training
            else Inference(program, torch_device, clock, n_ops, device.kernels)
        )
        return _passes(pass_, session, partial(on_step, f"measuring {program.graph.name} on {device.name}"))

    return session.result(run_on(device, run) if session.task.wanted else [])


def profile_contended(
    program: Program,
    devices: Sequence[Device],
    effort: MeasurementEffort = MeasurementEffort(),
    on_step: OnStep = lambda *_: None,
    training: bool = False,
    cache: Path | None = None,
) -> Profile:
    """Measure the operators of a program while two or more equal CPU devices of this host compute (see `CoRun`).

    They are measured while each device computes a part, and in inference also while each computes a copy;
    isolated times that the cache lacks are measured on the first device. Raise InputError as `profile_program`.
    """
    isolated = profile_program(program, devices[0], effort, on_step, training, cache)
    keys, count = training_keys(program.graph) if training else op_keys(program.graph), len(devices)
    cached = read_profile(cache, isolated.fingerprint) if cache and not effort.again else None
    alone: Mapping[str, Measurement | TrainingMeasurement] = isolated.training if training else isolated.ops
    alone_s = np.array([alone[key].seconds for key in keys])
    divided = balanced_parts(alone_s, count)
    ways: dict[str, Parts] = {"training_contended" if training else "contended": divided}
    if not training:
        ways["copies"] = (range(len(keys)),) * count
    found = isolated
    for name, parts in ways.items():
        known = getattr(cached, name, {}).get(count, {})
        pace = SessionPace(program.graph, devices, found.pace, here=False)
        keep = partial(_with_contended, found, pace, name, count)
        session = _Session(keys, _phases(known, training, keys), effort, training, keep, cache, pace)
        activity = partial(on_step, f"measuring {program.graph.name} on {count} devices at once")
        make = partial(CoRun, program, devices, parts, training, pace.watch, alone_s.tolist())
        found = session.result(_passes_at_once(make, session, activity))
    return found


def _passes_at_once(make: Callable[[], CoRun], session: "_Session", activity: Callable[[int, int], object]) -> Rows:
    """The passes of devices at once; what they have packed is released before the next ones pack theirs."""
    if not session.task.wanted:
        return []
    with closing(make()) as together:
        return _passes(together, session, activity)


def _identified(device: Device) -> tuple[Mapping[str, str], str]:
    """The description of a device, and its fingerprint."""
    machine = machine_of(device)
    fingerprint = fingerprint_of(machine)
    if device.profile not in ("", fingerprint):
        raise InputError(
            f"device '{device.name}' has the profile '{device.profile}', this host and its software are "
            f"'{fingerprint}'; calibrate again"
        )
    return machine, fingerprint


@dataclass(frozen=True, slots=True)
class UnmeasuredPart:
    """The part of a program that has to be measured."""

    wanted: tuple[int, ...]  # indices of operators, ascending
    passes: int  # least number of passes
    least_s: float  # least seconds of all passes
    patience: int = PATIENCE  # factor of the passes if an operator is noisy


def what_is_left(keys: Sequence[str], phases: Sequence[Phase], effort: MeasurementEffort) -> UnmeasuredPart:
    """The operators, by their keys [n_ops], without a measurement in a phase, or with one of too few passes."""
    missing: dict[str, int] = {}  # key -> passes
    for phase in phases:
        for key in dict.fromkeys(keys):
            count = phase[key].count if key in phase else 0
            if count < min(KNOWN, effort.passes):
                missing[key] = max(missing.get(key, 0), effort.passes - count)
    wanted = tuple(i for i, key in enumerate(keys) if key in missing)
    least_s = effort.least_s * len(wanted) / max(1, len(keys))
    return UnmeasuredPart(wanted, max(missing.values(), default=0), least_s, effort.patience)


class SessionPace:
    """The machine's pace during a measurement, against the pace that times are given for."""

    def __init__(self, graph: Graph, devices: Sequence[Device], reference: Mapping[str, float], here: bool) -> None:
        """Prepare for the operators of a graph on devices that are measured at once.

        What the ``reference``, the pace that times are given for, lacks is the pace of this measurement; ``here`` is
        whether `sample` is called on the device's own thread.
        """
        self._graph, self._given, self.here, self._n_devices = graph, reference, here, len(devices)
        self._meter = PaceMeter(devices)
        self._measured_s, self._begun = -inf, moment_now()

    @cached_property
    def _kinds(self) -> Sequence[PaceKind]:
        return pace_kinds(self._graph)

    @property
    def reference(self) -> Mapping[str, float]:
        """The pace that times are given for; empty before the first sample."""
        return {**self._meter.figures, **self._given}

    @property
    def moment(self) -> Mapping[int, Mapping[str, float]]:
        """The pace of this measurement, by when it began; empty before the first sample."""
        return {self._begun: figures} if (figures := self._meter.figures) else {}

    @property
    def paces(self) -> Floats:
        """[n_ops], how many times as long each operator took as at the reference pace."""
        reference = self.reference
        likely = likely_pace(self._meter.samples, reference)
        return operator_paces(self._kinds, pace_ratios(likely, reference, self._n_devices))

    def watch(self) -> None:
        """Measure the pace of the calling thread, a device's, from time to time."""
        self._meter.watch(self._n_devices)

    def sample(self, run: Pass) -> bool:
        """Measure the pace between two passes if the last time is some time ago; return whether it was measured."""
        if time.perf_counter() < self._measured_s + PACE_S:
            return False
        run.pause()
        (self._meter.sample_here if self.here else self._meter.sample)()
        self._measured_s = time.perf_counter()
        return True


def _with_contended(before: Profile, pace: SessionPace, name: str, count: int, measured: Any) -> Profile:
    """Return a profile whose field ``name`` holds these contended measurements of ``count`` devices."""
    changed: dict[str, Any] = {name: {count: measured}, "moments": {**before.moments, **pace.moment}}
    return replace(before, pace=pace.reference, **changed)


@dataclass(frozen=True)
class _Session:
    """One measurement of a program."""

    keys: tuple[str, ...]  # [n_ops], keys of all operators
    before: Sequence[Phase]  # cached measurements of each phase
    effort: MeasurementEffort  # effort of the measurement
    training: bool  # whether it is in training
    profile: Callable[[Any], Profile]  # makes a profile of measurements by key
    cache: Path | None  # folder of profiles, or None
    pace: SessionPace  # of the machine during the measurement

    @cached_property
    def task(self) -> UnmeasuredPart:
        return what_is_left(self.keys, self.before, self.effort)

    def measured(self, rows: Rows) -> Any:
        """Measurements by key, of the cache and of the rows."""
        wanted = self.task.wanted
        seconds = np.array(rows) / self.pace.paces[list(wanted)] if rows else None
        phases = _joined(self.before, [self.keys[i] for i in wanted], seconds)
        return _steps(phases) if self.training else phases[0]

    def result(self, rows: Rows) -> Profile:
        return self.profile(self.measured(rows))

    def keep(self, rows: Rows) -> None:
        if self.cache:
            add_profile(self.cache, self.result(rows))

    def n_passes(self, rows: Rows) -> int:
        """Return how many passes there should be: more than asked for if these show that a wanted operator is noisy."""
        few, many = self.task.passes, self.task.patience * self.task.passes
        if not few <= len(rows) < many:
            return few
        noise = {operator.key for operator in noisy(self.keys, self.measured(rows))}
        return many if any(self.keys[i] in noise for i in self.task.wanted) else few

    def progress(self, rows: Rows, elapsed_s: float, mean: "MeanPass") -> tuple[bool, int]:
        """Return whether these passes are enough, and how many there will be."""
        over = elapsed_s >= self.task.least_s
        n_passes = self.n_passes(rows) if over else self.task.passes
        total = max(n_passes, len(rows), round(len(rows) * self.task.least_s / elapsed_s))
        enough = over and len(rows) >= n_passes and (mean.known or elapsed_s >= REFINED_S)
        return enough or elapsed_s >= self.effort.most_s, total


def _passes(run: Pass, session: _Session, on_step: Callable[[int, int], object]) -> Rows:
    """Return the seconds of the wanted operators in repeated passes."""
    task = session.task
    rows: list[list[list[float]]] = []
    mean = MeanPass(session.effort.error)
    try:
        run.one_pass()  # warms up caches, allocators and kernels that are chosen at their first call
        start_s = saved_s = time.perf_counter()
        done = False
        while not done:
            if len(rows) % PACED == 0 and session.pace.sample(run):
                run.one_pass()  # fills the caches again: it takes 2 % longer
            rows.append([[phase[i] for i in task.wanted] for phase in run.one_pass()])
            if session.pace.here:
                session.pace.watch()
            mean.add(sum(map(sum, rows[-1])))
            now_s = time.perf_counter()
            done, total = session.progress(rows, now_s - start_s, mean)
            if not done and now_s - saved_s > SAVE_S:
                saved_s = now_s
                session.keep(rows)
            on_step(total if done else min(len(rows), total - 1), total)
        run.pause()  # passes that are ahead measure the pace, too
        session.pace.sample(run)
    except Stopped:
        pass  # the caller needs no more passes
    finally:
        if rows:
            session.keep(rows)
    return rows


class MeanPass:
    """The mean of the passes so far, and whether it is known well enough."""

    def __init__(self, error: float) -> None:
        """``error`` is the largest standard error, as a share of the mean, of a mean that is known."""
        self.known = error == inf
        self._error = error
        self._seconds: list[float] = []
        self._looked = 0  # passes when the error was last computed

    def add(self, seconds: float) -> None:
        """Count a pass; look at the error whenever there are a tenth more passes than last time."""
        self._seconds.append(seconds)
        if self._error < inf and len(self._seconds) > 1.1 * self._looked:
            self._looked = len(self._seconds)
            self.known = standard_error(self._seconds) <= self._error


def standard_error(seconds: Sequence[float]) -> float:
    """The standard error of the mean of repeated times, as a share of the mean, by batch means (Conway 1963).

    Times that follow each other are alike where a host's pace drifts; the means of longer parts are less so.
    """
    means = np.array([part.mean() for part in np.array_split(seconds, min(BATCHES, len(seconds)))])
    return float(means.std(ddof=1) / sqrt(len(means)) / means.mean()) if len(means) > 1 else inf


def _phases(cached: Mapping[str, Any], training: bool, keys: Iterable[str]) -> list[Phase]:
    """The cached measurements of operators by phase."""
    wanted = {key: cached[key] for key in keys if key in cached}
    if not training:
        return [wanted]
    return [{key: step.forward for key, step in wanted.items()}, {key: step.backward for key, step in wanted.items()}]


def _steps(phases: Sequence[Phase]) -> dict[str, TrainingMeasurement]:
    """The measurements in training from the two phases."""
    forward, backward = phases
    return {key: TrainingMeasurement(forward[key], backward[key]) for key in forward}


def _joined(before: Sequence[Phase], keys: Sequence[str], seconds: Floats | None) -> list[Phase]:
    """The cached measurements of each phase with new ones; an operator that has both gets the two joined.

    ``keys`` are those of the operators that were measured, in ``seconds`` [n_passes, n_phases, n_measured].
    """
    if seconds is None:
        return list(before)
    after: list[Phase] = []
    for i, old in enumerate(before):
        fresh = pooled(keys, seconds[:, i])
        after.append({**old, **{k: old[k].joined(m) if k in old else m for k, m in fresh.items()}})
    return after


def pooled(keys: Sequence[str], seconds: Floats) -> dict[str, Measurement]:
    """The measurements by key, from seconds [n_passes, n_ops].

    A disturbance makes a time longer and never shorter, so a pass takes longer in the mean than the sum of its
    operators' medians; all of them get that share.
    """
    columns: dict[str, list[int]] = {}
    for i, key in enumerate(keys):
        columns.setdefault(key, []).append(i)
    low, middle, high = np.quantile(seconds, (0.25, 0.5, 0.75), axis=0)
    middle *= mean_s(seconds.sum(axis=1)) / middle.sum() if middle.sum() > 0 else 1.0
    return {
        key: Measurement.rounded(float(middle[ops].mean()), float((high - low)[ops].mean()), len(seconds))
        for key, ops in columns.items()
    }
