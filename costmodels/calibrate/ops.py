"""Measures the operators of a program on a device, as far as they are not known yet.

The program runs in passes (see `costmodels.calibrate.runs`). What they measured goes to the cache every few seconds,
so that an interrupted calibration continues where it was, and equal operators of other programs need no measuring.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from costmodels.calibrate.clock import clock_of
from costmodels.calibrate.contention import balanced_cuts, co_run
from costmodels.calibrate.runs import Inference, Pass, Training
from costmodels.cluster import Device
from costmodels.host.affinity import Stopped, run_on, torch_device_of
from costmodels.host.fingerprint import fingerprint_of, machine_of
from costmodels.measured import Measurement, Profile, TrainingMeasurement, noisy
from costmodels.opkeys import op_keys, training_keys
from costmodels.profilefile import add_profile, read_profile
from costmodels.table import Floats
from graphs.errors import InputError
from graphs.program.program import Program

OnStep: TypeAlias = Callable[[str, int, int], object]
"""Hears (what, done, total) now and then, from any thread."""

Phase: TypeAlias = Mapping[str, Measurement]
"""Measurements by key; inference has one phase, training has two: forward and backward."""

Rows: TypeAlias = Sequence[list[list[float]]]
"""[n_passes][n_phases][n_ops], seconds."""

SAVE_S = 2.0  # between two writes of the cache
KNOWN = 3  # passes make a measurement; `Effort.passes` make a good one
PATIENCE = 3


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure: ``passes`` over the program and ``least_s`` seconds, but no pass starts after ``most_s``.

    Where some operators are known, ``least_s`` shrinks with the share of those that are not. With ``again`` none is.
    Where an operator is noisy, ``patience`` times as many passes are spent; then it stays noisy.
    """

    passes: int = 7
    least_s: float = 1.0
    most_s: float = 10.0
    again: bool = False
    patience: int = PATIENCE


def profile_program(
    program: Program,
    device: Device,
    effort: Effort = Effort(),
    on_step: OnStep = lambda *_: None,
    training: bool = False,
    cache: Path | None = None,
) -> Profile:
    """Measure the operators of a program that are not in the cache, or not well enough; nothing runs if all are.

    An operator's time is the median over the passes; equal operators (see `op_keys`) share the mean of theirs.

    Args:
        program: with the shapes of one micro-batch.
        device: of this host.
        effort: how long.
        on_step: hears about every pass.
        training: measure forward and backward passes instead of inference.
        cache: folder of profiles, read before and written meanwhile; nothing is kept without one.

    Returns:
        All operators of the program, found and measured.

    Raises:
        InputError: if this host does not have the device, the device was calibrated with other hard- or software, the
            program has shapes without values and does not fit into the memory that is free, or the cache is damaged.
    """
    machine, fingerprint = _identified(device)
    keys = training_keys(program.graph) if training else op_keys(program.graph)
    cached = read_profile(cache, fingerprint) if cache and not effort.again else None
    before = _phases((cached.training if training else cached.ops) if cached else {}, training, keys)
    task = what_is_left(keys, before, effort)

    def result(rows: Rows) -> Profile:
        phases = _joined(before, keys, task.wanted, rows)
        return (
            Profile(fingerprint, machine, {}, _steps(phases)) if training else Profile(fingerprint, machine, phases[0])
        )

    def keep(rows: Rows) -> None:
        if cache:
            add_profile(cache, result(rows))

    def quiet(rows: Rows) -> bool:
        return _quiet(task, keys, result(rows).training if training else result(rows).ops)

    def run() -> Rows:
        torch_device, clock = torch_device_of(device), clock_of(device)
        n_ops = task.wanted[-1] + 1  # nobody waits for what comes after
        one = (
            Training(program, torch_device, clock)
            if training
            else Inference(program, torch_device, clock, n_ops, device.kernels)
        )
        what = f"measuring {program.graph.name} on {device.name}"
        return _passes(one, task, effort.most_s, _Listeners(keep, quiet, lambda *n: on_step(what, *n)))

    return result(run_on(device, run) if task.wanted else [])


def profile_contended(
    program: Program,
    devices: Sequence[Device],
    effort: Effort = Effort(),
    on_step: OnStep = lambda *_: None,
    training: bool = False,
    cache: Path | None = None,
) -> Profile:
    """Measure the operators of a program again while all of several equal devices compute (see `co_run`).

    Args:
        program: with the shapes of one micro-batch.
        devices: CPU devices of this host, of one kind, two or more; the first one is measured alone as well, as far as
            the cache does not know it.
        effort: how long, for each.
        on_step: hears about every pass.
        training: as for `profile_program`.
        cache: likewise.

    Returns:
        All operators of the program, alone and beside the others.

    Raises:
        InputError: as `profile_program`.
    """
    isolated = profile_program(program, devices[0], effort, on_step, training, cache)
    keys, count = training_keys(program.graph) if training else op_keys(program.graph), len(devices)
    cached = read_profile(cache, isolated.fingerprint) if cache and not effort.again else None
    company = (cached.training_contended if training else cached.contended) if cached else {}
    before = _phases(company.get(count, {}), training, keys)
    task = what_is_left(keys, before, effort)

    def result(rows: Rows) -> Profile:
        phases = _joined(before, keys, task.wanted, rows)
        if training:
            return replace(isolated, training_contended={count: _steps(phases)})
        return replace(isolated, contended={count: phases[0]})

    def keep(rows: Rows) -> None:
        if cache:
            add_profile(cache, result(rows))

    def quiet(rows: Rows) -> bool:
        found = result(rows)
        return _quiet(task, keys, found.training_contended[count] if training else found.contended[count])

    if not task.wanted:
        return result([])
    known: Mapping[str, Measurement | TrainingMeasurement] = isolated.training if training else isolated.ops
    cuts = balanced_cuts(np.array([known[key].seconds for key in keys]), count)
    what = f"measuring {program.graph.name} on {count} devices at once"
    with co_run(program, devices, cuts, training) as one:
        return result(_passes(one, task, effort.most_s, _Listeners(keep, quiet, lambda *n: on_step(what, *n))))


def _identified(device: Device) -> tuple[Mapping[str, str], str]:
    """What the device is, and the fingerprint of that."""
    machine = machine_of(device)
    fingerprint = fingerprint_of(machine)
    if device.profile not in ("", fingerprint):
        raise InputError(
            f"device '{device.name}' has the profile '{device.profile}', this host and its software are "
            f"'{fingerprint}'; calibrate again"
        )
    return machine, fingerprint


@dataclass(frozen=True, slots=True)
class Unmeasured:
    """What is left to measure of a program.

    Attributes:
        wanted: indices of operators, ascending.
        passes: at least.
        least_s: to spend at least.
        patience: times as many passes are spent where an operator is noisy.
    """

    wanted: tuple[int, ...]
    passes: int
    least_s: float
    patience: int = PATIENCE


def what_is_left(keys: Sequence[str], phases: Sequence[Phase], effort: Effort) -> Unmeasured:
    """Operators without a measurement, or with one of too few passes.

    Args:
        keys: [n_ops], of all operators.
        phases: what is known of each.
        effort: what is enough.
    """
    missing: dict[str, int] = {}  # passes by key
    for known in phases:
        for key in dict.fromkeys(keys):
            count = known[key].count if key in known else 0
            if count < min(KNOWN, effort.passes):
                missing[key] = max(missing.get(key, 0), effort.passes - count)
    wanted = tuple(i for i, key in enumerate(keys) if key in missing)
    least_s = effort.least_s * len(wanted) / max(1, len(keys))
    return Unmeasured(wanted, max(missing.values(), default=0), least_s, effort.patience)


@dataclass(frozen=True)
class _Listeners:
    """Who hears of passes.

    Attributes:
        keep: gets all rows every few seconds and at the end.
        quiet: whether all rows together know every operator well.
        step: gets how many passes there were, and of how many.
    """

    keep: Callable[[Rows], None]
    quiet: Callable[[Rows], bool]
    step: Callable[[int, int], object]


def _passes(run: Pass, task: Unmeasured, most_s: float, listeners: _Listeners) -> Rows:
    """Of the wanted operators."""
    rows: list[list[list[float]]] = []
    try:
        run.one_pass()  # warms caches, allocators and kernels that are chosen at their first call
        start_s = saved_s = time.perf_counter()
        done = False
        while not done:
            rows.append([[phase[i] for i in task.wanted] for phase in run.one_pass()])
            now_s = time.perf_counter()
            elapsed_s = now_s - start_s
            total = max(task.passes, len(rows), round(len(rows) * task.least_s / elapsed_s))
            enough = len(rows) >= task.passes and elapsed_s >= task.least_s
            if enough and len(rows) < task.patience * task.passes and not listeners.quiet(rows):
                enough, total = False, task.patience * task.passes
            done = enough or elapsed_s >= most_s
            if not done and now_s - saved_s > SAVE_S:
                saved_s = now_s
                listeners.keep(rows)
            listeners.step(total if done else min(len(rows), total - 1), total)
    except Stopped:
        pass  # nobody waits for more
    finally:
        if rows:
            listeners.keep(rows)
    return rows


def _phases(known: Mapping[str, Any], training: bool, keys: Iterable[str]) -> list[Phase]:
    """What is known of these operators: measurements in inference, steps in training."""
    found = {key: known[key] for key in keys if key in known}
    if not training:
        return [found]
    return [{key: step.forward for key, step in found.items()}, {key: step.backward for key, step in found.items()}]


def _steps(phases: Sequence[Phase]) -> dict[str, TrainingMeasurement]:
    """From two phases."""
    forward, backward = phases
    return {key: TrainingMeasurement(forward[key], backward[key]) for key in forward}


def _quiet(
    task: Unmeasured, keys: Sequence[str], known: Mapping[str, Measurement] | Mapping[str, TrainingMeasurement]
) -> bool:
    """Whether all that was left to measure is known well."""
    loud = {found.key for found in noisy(keys, known)}
    return not any(keys[i] in loud for i in task.wanted)


def _joined(before: Sequence[Phase], keys: Sequence[str], wanted: Sequence[int], rows: Rows) -> list[Phase]:
    """What was known, and what the passes found; an operator that was known badly has both."""
    if not rows:
        return list(before)
    seconds = np.array(rows)  # [n_passes, n_phases, n_wanted]
    after: list[Phase] = []
    for i, known in enumerate(before):
        fresh = pooled([keys[op] for op in wanted], seconds[:, i])
        after.append({**known, **{k: known[k].joined(m) if k in known else m for k, m in fresh.items()}})
    return after


def pooled(keys: Sequence[str], seconds: Floats) -> dict[str, Measurement]:
    """The measurements by key, from seconds [n_passes, n_ops]."""
    columns: dict[str, list[int]] = {}
    for i, key in enumerate(keys):
        columns.setdefault(key, []).append(i)
    low, middle, high = np.quantile(seconds, (0.25, 0.5, 0.75), axis=0)
    return {
        key: Measurement.rounded(float(middle[ops].mean()), float((high - low)[ops].mean()), len(seconds))
        for key, ops in columns.items()
    }
