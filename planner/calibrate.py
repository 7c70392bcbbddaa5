"""calibrate: measure this host, and the operators of a model on it, as far as the cache does not know them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodels.cluster import Cluster, Device
from costmodels.clusterfile import cluster_from_dict, cluster_to_dict
from costmodels.measured import Noise, Profile, noisy, op_keys, read_profile, training_keys
from costmodels.tabulate import guessed_kinds
from graphs.errors import InputError
from graphs.files import read_json, write_text
from graphs.ir import Graph
from planner.plan import cache_folder
from planner.reporter import SILENT, Reporter

if TYPE_CHECKING:  # torch takes seconds to load
    from torch import nn

    from costmodels.calibrate import Host
    from graphs.importers.program import Program

VERSION = 1  # of a host in the cache
PEAK_SPREAD = 0.25  # of single measurements around a peak; more is told
LINK_SPREAD = 0.5  # likewise of a link at one size


@dataclass(frozen=True)
class Care:
    """What to measure, beside peaks, links and inference.

    Attributes:
        training: forward and backward passes instead of inference.
        again: everything anew, whatever the cache knows.
        channel: what carries tensors between devices, "threads" or "gloo".
        sweep: a sample of every kind of operator too, once for each kind of device, in some minutes; from then on the
            times of operators that were never measured are learned, not guessed.
    """

    training: bool = False
    again: bool = False
    channel: str = "threads"
    sweep: bool = False


@dataclass(frozen=True)
class Operators:
    """What is known now of a model's operators on one kind of device.

    Attributes:
        kind: of device.
        measured: how many different operators were measured just now.
        found: how many the cache knew.
        noise: those whose time is not known well.
        named: for each of them the names of the operators.
        seconds: of all operators of one micro-batch.
    """

    kind: str
    measured: int
    found: int
    noise: tuple[Noise, ...]
    named: Mapping[str, tuple[str, ...]]
    seconds: float


@dataclass(frozen=True)
class Calibration:
    """What calibration found, and how sure it is.

    Attributes:
        cluster: devices and links.
        spread: of single measurements of it, as shares, by what was measured.
        found: whether devices and links were in the cache.
        operators: for each kind of device; empty without a model.
        guessed: kinds of operator without a formula: where they are not measured, their work is a guess.
    """

    cluster: Cluster
    spread: Mapping[str, float]
    found: bool
    operators: tuple[Operators, ...] = ()
    guessed: tuple[str, ...] = ()

    @property
    def unsure(self) -> Mapping[str, float]:
        """Peaks and links with a large spread."""
        limit = {what: LINK_SPREAD if "→" in what else PEAK_SPREAD for what in self.spread}
        return {what: share for what, share in self.spread.items() if share > limit[what]}


def calibrate(
    model: nn.Module | Program | None = None,
    example_inputs: tuple[Any, ...] | None = None,
    reporter: Reporter = SILENT,
    care: Care = Care(),
) -> Cluster:
    """Measure the devices of this host, the links between them and the operators of a model.

    What was measured goes to the cache, where `planner.plan` and the next calibration find it: what is there is not
    measured again. An interrupted calibration continues where it was.

    Args:
        model: a module with ``example_inputs`` of one micro-batch, or what an importer made of one.
        example_inputs: positional arguments.
        reporter: hears of progress.
        care: what to measure.

    Raises:
        InputError: if the model cannot be imported, the cache is damaged, or a link corrupts data.
    """
    return survey(model, example_inputs, reporter, care).cluster


def survey(
    model: nn.Module | Program | None = None,
    example_inputs: tuple[Any, ...] | None = None,
    reporter: Reporter = SILENT,
    care: Care = Care(),
) -> Calibration:
    """The same, with how sure each number is."""
    from graphs.importers.from_torch import program_from_module
    from graphs.importers.program import Program

    host, found = _host(care, reporter)
    cluster = host.cluster
    if care.sweep:
        _sweep(cluster, reporter)
    if model is None:
        return Calibration(cluster, host.spread, found)
    if not isinstance(model, Program):
        model = program_from_module(model, example_inputs or ())
    operators = tuple(
        profile(model, next(device for device in cluster.devices if device.kind == kind), reporter, care)
        for kind in cluster.kinds
    )
    return Calibration(cluster, host.spread, found, operators, guessed_kinds(model.graph))


def profile(program: Program, device: Device, reporter: Reporter = SILENT, care: Care = Care()) -> Operators:
    """Measure the operators of a program on a device of this host and keep the times in the cache.

    Raises:
        InputError: if this host does not have the device, or is not the one that it was calibrated on.
    """
    from costmodels.calibrate import Effort, profile_program

    cache, effort = cache_folder(), Effort(again=care.again)
    before = read_profile(cache, device.profile) if device.profile else None
    after = profile_program(program, device, effort, reporter.on_step, care.training, cache)
    return _operators(program.graph, device.kind, before, after, care.training)


def _operators(graph: Graph, kind: str, before: Profile | None, after: Profile, training: bool) -> Operators:
    keys = training_keys(graph) if training else op_keys(graph)
    known = after.training if training else after.ops
    old = (before.training if training else before.ops) if before else {}
    found = sum(old.get(key) == known[key] for key in set(keys))
    noise = noisy(keys, known)
    named = {n.key: tuple(op.name for op, key in zip(graph.ops, keys, strict=True) if key == n.key) for n in noise}
    return Operators(kind, len(known) - found, found, noise, named, sum(known[key].seconds for key in keys))


def _sweep(cluster: Cluster, reporter: Reporter) -> None:
    """Measure the probes on one device of each kind, as far as the cache does not know them."""
    from costmodels.calibrate.sweep import sweep

    for kind in cluster.kinds:
        device = next(device for device in cluster.devices if device.kind == kind)
        sweep(device, cache_folder(), reporter.on_step)


def _host(care: Care, reporter: Reporter) -> tuple[Host, bool]:
    """Devices and links, and whether the cache knew them."""
    from costmodels.calibrate import calibrate_host, host_fingerprint

    path = cache_folder() / "hosts" / f"{host_fingerprint(channel=care.channel)}.json"
    if path.exists() and not care.again:
        return read_host(path), True
    measured = calibrate_host(channel=care.channel, on_step=reporter.on_step)
    host = replace(measured, cluster=_with_handover(measured.cluster, reporter))
    write_host(host, path)
    return host, False


def read_host(path: Path) -> Host:
    """A host from the cache.

    Raises:
        InputError: if the file is damaged.
    """
    from costmodels.calibrate import Host

    try:
        document = read_json(path, "calibrated host")
        if document["version"] != VERSION:
            raise InputError(f"version {document['version']}")
        spread = {str(what): float(share) for what, share in document["spread"].items()}
        return Host(cluster_from_dict(document["cluster"]), spread)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"the calibrated host '{path}' is damaged or foreign ({error}); delete it and calibrate again"
        ) from error


def write_host(host: Host, path: Path) -> None:
    """Write a host to the cache, whole or not at all.

    Raises:
        InputError: if the folder cannot be written.
    """
    document = {"version": VERSION, "spread": dict(host.spread), "cluster": cluster_to_dict(host.cluster)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot make the folder '{path.parent}': {error.strerror}; set PLANNER_CACHE to another one"
        ) from error
    write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", path)


def _with_handover(cluster: Cluster, reporter: Reporter) -> Cluster:
    """The cluster with what the runtime needs for each tensor that it hands over."""
    from planner.runtime.handover import measure_handover

    reporter.on_step("measuring the hand-over between devices", 0, 1)
    handover_s = measure_handover(cluster.devices)
    reporter.on_step("measuring the hand-over between devices", 1, 1)
    return replace(cluster, devices=tuple(replace(device, handover_s=handover_s) for device in cluster.devices))
