"""calibrate: measure this host, and the operators of a model on it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from costmodels.cluster import Cluster, Device
from costmodels.measured import read_profile, write_profile
from planner.plan import cache_folder
from planner.reporter import SILENT, Reporter

if TYPE_CHECKING:  # torch takes seconds to load
    from torch import nn

    from graphs.importers.program import Program


def calibrate(
    model: nn.Module | Program | None = None,
    example_inputs: tuple[Any, ...] | None = None,
    reporter: Reporter = SILENT,
) -> Cluster:
    """Measure the devices of this host, the links between them and the operators of a model.

    Measured operators go to the cache, where `planner.plan` finds them.

    Args:
        model: a module with ``example_inputs`` of one micro-batch, or what an importer made of one.
        example_inputs: positional arguments.
        reporter: hears of progress.

    Raises:
        InputError: if the model cannot be imported.
    """
    from costmodels.calibrate import calibrate_host
    from graphs.importers.from_torch import program_from_module
    from graphs.importers.program import Program

    cluster = _with_handover(calibrate_host(on_step=reporter.on_step), reporter)
    if model is None:
        return cluster
    if not isinstance(model, Program):
        model = program_from_module(model, example_inputs or ())
    for kind in cluster.kinds:
        profile(model, next(device for device in cluster.devices if device.kind == kind), reporter)
    return cluster


def profile(program: Program, device: Device, reporter: Reporter = SILENT) -> None:
    """Measure every operator of a program on a device of this host and keep the times in the cache.

    Raises:
        InputError: if this host does not have the device, or is not the one that it was calibrated on.
    """
    from costmodels.calibrate import profile_program

    fresh = profile_program(program, device, on_step=reporter.on_step)
    known = read_profile(cache_folder(), fresh.fingerprint)
    write_profile(cache_folder(), known.updated(fresh) if known else fresh)


def _with_handover(cluster: Cluster, reporter: Reporter) -> Cluster:
    """The cluster with what the runtime needs for each tensor that it hands over."""
    from planner.runtime.handover import measure_handover

    reporter.on_step("measuring the hand-over between devices", 0, 1)
    handover_s = measure_handover(cluster.devices)
    reporter.on_step("measuring the hand-over between devices", 1, 1)
    return replace(cluster, devices=tuple(replace(device, handover_s=handover_s) for device in cluster.devices))
