"""Measures the probes, and some of them in training too: once for each kind of device, in some minutes.

The file holds what was measured so far, so that an interrupted sweep is taken up where it was.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from costmodels.calibrate.fingerprint import fingerprint_of, machine_of
from costmodels.calibrate.ops import Effort, OnStep, profile_program
from costmodels.calibrate.probes import Built, Probe, probes
from costmodels.cluster import Device
from costmodels.learning.features import pass_bytes
from costmodels.learning.samples import Probed, Sweep, read_sweep, write_sweep
from costmodels.measured import Step
from graphs.importers.from_torch import program_from_module

PASSES, MOST_S = 5, 1.5  # of one probe
TRAINING = Effort(passes=3, least_s=0.15, most_s=1.0)


def sweep(
    device: Device, directory: Path, on_step: OnStep = lambda *_: None, wanted: tuple[Probe, ...] | None = None
) -> Sweep:
    """Measure what is not in the file yet, and write the file after each probe.

    Args:
        device: of this host.
        directory: of the file, the cache of profiles.
        on_step: hears about every probe.
        wanted: which probes; all if left out.

    Raises:
        InputError: if this host does not have the device, or the file cannot be read or written.
    """
    wanted = probes() if wanted is None else wanted
    fingerprint = fingerprint_of(machine_of(device))
    known = read_sweep(directory, fingerprint) or Sweep(fingerprint, {})
    for done, probe in enumerate(wanted, 1):
        before = known.probes.get(probe.name)
        probed = before or _probed(probe, device)
        if probe.training and not probed.training:
            probed = replace(probed, training=_trained(probe.name, probe.training, device))
        if probed is not before:
            known = known.extended(probe.name, probed)
            write_sweep(directory, known)
        on_step(f"sweeping operators on {device.name}", done, len(wanted))
    return known


def _probed(probe: Probe, device: Device) -> Probed:
    module, inputs = probe.build()
    program = program_from_module(module.eval(), inputs, name=probe.name, footprints=False)
    profile = profile_program(program, device, Effort(PASSES, probe.least_s, MOST_S))
    return Probed(float(pass_bytes(program.graph)), profile.ops)


def _trained(name: str, build: Callable[[], Built], device: Device) -> Mapping[str, Step]:
    """Forward and backward passes."""
    module, inputs = build()
    program = program_from_module(module.train(), inputs, name=name, training=True, footprints=False)
    return profile_program(program, device, TRAINING, training=True).training
