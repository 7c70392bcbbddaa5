"""Measures the probes: once for each kind of device, about a minute, kept in a file, taken up where it was left."""

from pathlib import Path

from costmodels.calibrate.fingerprint import fingerprint_of, machine_of
from costmodels.calibrate.ops import Effort, OnStep, profile_program
from costmodels.calibrate.probes import Probe, probes
from costmodels.cluster import Device
from costmodels.learning.features import pass_bytes
from costmodels.learning.samples import Probed, Sweep, read_sweep, write_sweep
from graphs.importers.from_torch import program_from_module

PASSES = 5
MOST_S = 1.5  # for one probe


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
        if probe.name not in known.probes:
            known = known.extended(probe.name, _probed(probe, device))
            write_sweep(directory, known)
        on_step(f"sweeping operators on {device.name}", done, len(wanted))
    return known


def _probed(probe: Probe, device: Device) -> Probed:
    module, inputs = probe.build()
    program = program_from_module(module.eval(), inputs, name=probe.name)
    profile = profile_program(program, device, Effort(PASSES, probe.least_s, MOST_S))
    return Probed(float(pass_bytes(program.graph)), profile.ops)
