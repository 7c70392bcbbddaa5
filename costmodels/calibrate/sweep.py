"""Sweep: measures all probes, some of them in training too, once for each kind of device, in about a minute.

The file has the measurements so far, so that an interrupted sweep continues.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from costmodels.calibrate.ops import SAVE_S, MeasurementEffort, OnStep, profile_program
from costmodels.calibrate.probes import Built, Probe, interleaved, probes
from costmodels.cluster.cluster import Device
from costmodels.host.fingerprint import fingerprint_of, machine_of
from costmodels.learning.features import pass_bytes
from costmodels.measured import TrainingMeasurement
from costmodels.profilefile import ProbeMeasurement, Sweep, read_sweep, write_sweep
from graphs.importers.from_torch import program_from_module

PASSES, MOST_S = 3, 1.0
"""Passes and time limit of one probe. The model is fitted to thousands of operators, so that none has to be exact: five
passes, and more for noisy operators, did not reduce the error on networks that were left out."""

TRAINING = MeasurementEffort(passes=2, least_s=0.1, most_s=1.0, patience=1)


def sweep(
    device: Device, directory: Path, on_step: OnStep = lambda *_: None, wanted: tuple[Probe, ...] | None = None
) -> Sweep:
    """Measure the probes that the file of the device lacks: all, or those that are ``wanted``.

    The file is in the cache of profiles, and written every few seconds and at the end in any case. Raise InputError if
    this host does not have the device, or the file cannot be read or written.
    """
    wanted = interleaved(probes() if wanted is None else wanted)
    fingerprint = fingerprint_of(machine_of(device))
    measured = written = read_sweep(directory, fingerprint) or Sweep(fingerprint, {})
    saved_s = time.perf_counter()
    try:
        for done, probe in enumerate(wanted, 1):
            before = measured.probes.get(probe.name)
            probed = before or _probed(probe, device)
            if probe.training and not probed.training:
                probed = replace(probed, training=_trained(probe.name, probe.training, device))
            if probed is not before:
                measured = measured.extended(probe.name, probed)
            if measured is not written and time.perf_counter() - saved_s > SAVE_S:
                write_sweep(directory, measured)
                written, saved_s = measured, time.perf_counter()
            on_step(f"sweeping operators on {device.name}", done, len(wanted))
    finally:
        if measured is not written:
            write_sweep(directory, measured)
    return measured


def _probed(probe: Probe, device: Device) -> ProbeMeasurement:
    module, inputs = probe.build()
    program = program_from_module(module.eval(), inputs, name=probe.name, footprints=False)
    profile = profile_program(program, device, MeasurementEffort(PASSES, probe.least_s, MOST_S, patience=1))
    return ProbeMeasurement(float(pass_bytes(program.graph)), profile.ops)


def _trained(name: str, build: Callable[[], Built], device: Device) -> Mapping[str, TrainingMeasurement]:
    """Measurements of a probe in training."""
    module, inputs = build()
    program = program_from_module(module.train(), inputs, name=name, training=True, footprints=False)
    return profile_program(program, device, TRAINING, training=True).training
