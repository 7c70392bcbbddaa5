"""calibrate: measure this host, and the operators of a model on it, unless the cache has the measurements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodels.cluster.cluster import Cluster, Device
from costmodels.cluster.dictionary import VERSION as CLUSTER_VERSION
from costmodels.cluster.dictionary import cluster_from_dict, cluster_to_dict
from costmodels.measured import Noise, Profile, noisy
from costmodels.operators.keys import op_keys, training_keys
from costmodels.profile_cache import cache_folder, cached_profiles, learned_costs
from costmodels.profilefile import read_profile
from costmodels.table import CostTable
from costmodels.tabulate import guessed_kinds, tabulate
from costmodels.workload import Workload
from graphs.common.brief import Brief
from graphs.common.checks import check_fields, instance, one_of
from graphs.common.documents import read_json
from graphs.common.errors import InputError
from graphs.files import reading_cached, write_cached
from graphs.ir import Graph
from graphs.kernels.choice import KERNELS, Kernels
from graphs.rewrites.rewrite import rewritten
from planner.planning.cpu_partitions import AUTO, Split, widths
from planner.planning.rewriting import AUTO_REWRITES, SPLIT, allows, check_rewrites, optional, rewrites_for
from planner.planning.splitting import ROUNDS, SPLITS_S, Splits
from planner.plans.given import ModelName, NamedModel, given_model, is_generation_program, runnable
from planner.problem.reporter import SILENT, Reporter

if TYPE_CHECKING:  # torch takes seconds to load
    from torch import nn

    from costmodels.calibrate import Host
    from graphs.program.generation import GenerationProgram
    from graphs.program.program import Program

CHANNELS = ("threads", "gloo")
VERSION = 1  # of a host in the cache; one of another version is measured again
ERROR = 0.015  # standard error of a pass over a network that measuring aims at, if time allows
PEAK_SPREAD = 0.25  # spread of single measurements of a peak, above which the peak is reported as unsure
LINK_SPREAD = 0.5  # the same for a link at one size


@dataclass(frozen=True)
class CalibrationOptions:
    """The measurements to take besides peaks and links.

    Attributes:
        training: measure forward and backward passes instead of inference.
        again: measure everything again, including measurements in the cache.
        channel: what carries tensors between devices, "threads" or "gloo".
        sweep: also measure a sample of every kind of operator, in inference and in training, once for each kind of
            device, in about a minute; then times of unmeasured operators are learned, not guessed.
        split_cpu: the number of equal devices that the CPU is divided into, or "auto" for every possible division; by
            default each core is a device.
        kernels: of CPUs: "quick" for inference, which rounds differently, or "exact" for the reference model's bits; by
            default quick where this PyTorch has oneDNN, and exact elsewhere.
        rewrites: measure the operators of the network after these, as `Search` has them.

    Raises:
        InputError: for a field that is not of its type, or an unknown channel.
    """

    training: bool = False
    again: bool = False
    channel: str = "threads"
    sweep: bool = False
    split_cpu: Split | None = None
    kernels: Kernels | None = None
    rewrites: str = AUTO_REWRITES

    def __post_init__(self) -> None:
        check_fields(self, "the calibration options")
        check_rewrites(self.rewrites)
        one_of(self.channel, "the channel", CHANNELS)


@dataclass(frozen=True)
class Operators(Brief):
    """The measured operators of a model on one kind of device."""

    kind: str  # of device, with its cores if it has several
    measured: int  # number of different operators that were measured now
    found: int  # number of different operators that the cache had
    noise: tuple[Noise, ...]  # operators whose time varies
    named: Mapping[str, tuple[str, ...]]  # key of an operator in ``noise`` → the names of its operators
    seconds: float  # of all operators for one micro-batch
    slowdown: float | None = None  # share that contention adds to ``seconds``; None if it was not measured


@dataclass(frozen=True)
class Calibration(Brief):
    """The result of a calibration with its uncertainty."""

    cluster: Cluster
    spread: Mapping[str, float]  # name of a peak or a link → spread of its single measurements, as a share
    found: bool  # whether devices and links were in the cache
    operators: tuple[Operators, ...] = ()  # for each kind of device; empty without a model
    guessed: tuple[str, ...] = ()  # kinds of operator without a formula, whose work is a guess unless measured

    @property
    def unsure(self) -> Mapping[str, float]:
        """Peaks and links with a large spread."""
        limit = {name: LINK_SPREAD if "→" in name else PEAK_SPREAD for name in self.spread}
        return {name: share for name, share in self.spread.items() if share > limit[name]}


def calibrate(
    model: nn.Module | Program | GenerationProgram | ModelName | None = None,
    example_inputs: Any = None,
    reporter: Reporter = SILENT,
    calibration_options: CalibrationOptions = CalibrationOptions(),
) -> Cluster:
    """Measure the devices of this host, the links between them and the operators of a model.

    The measurements go to the cache, where `planner.plan` and the next calibration find them; nothing in the cache is
    measured again. An interrupted calibration continues where it stopped.

    Args:
        model: a module with ``example_inputs`` of one micro-batch, a program from an importer, a name as on the command
            line, or a `NamedModel`; of what `planner.generation_program` returns, the operators of each phase.
        example_inputs: in any form that `planner.plan` takes.
        reporter: receives the progress.
        calibration_options: what to measure.

    Returns:
        The devices and links; for several divisions of the CPU the one with the most devices.

    Raises:
        InputError: if the model cannot be imported, the cache is damaged, or a link corrupts data.
    """
    return surveys(model, example_inputs, reporter, calibration_options)[-1].cluster


def surveys(
    model: nn.Module | Program | GenerationProgram | ModelName | None = None,
    example_inputs: Any = None,
    reporter: Reporter = SILENT,
    calibration_options: CalibrationOptions = CalibrationOptions(),
) -> tuple[Calibration, ...]:
    """Calibrate as `calibrate` does, and return each division of the CPU with its uncertainty, fewest devices first."""
    from costmodels.calibrate import host_divisions
    from costmodels.host.affinity import settle
    from graphs.importers.from_torch import imported

    instance(reporter, Reporter, "the reporter", "a Reporter")
    instance(calibration_options, CalibrationOptions, "the calibration options", "a CalibrationOptions")
    training = calibration_options.training
    programs: list[Program] = []
    if is_generation_program(model):
        programs += model.phases.values()
    elif model is not None:
        given = given_model(model)
        if isinstance(given, NamedModel):
            given = given.load_program(training, reporter)
        elif isinstance(given, Graph):
            given = runnable(given)
        programs.append(imported(given, example_inputs, training=training))
    if programs:
        settle(max(program.graph.largest_bytes for program in programs))
    cores = (1,) if calibration_options.split_cpu is None else widths(calibration_options.split_cpu, host_divisions())
    return tuple(_survey(programs, reporter, calibration_options, width) for width in cores)


def divisions(split_cpu: Split = AUTO, channel: str = "threads", kernels: Kernels | None = None) -> tuple[Cluster, ...]:
    """This host as a cluster for each division of its CPU, from the cache; fewest devices first.

    ``planner.calibrate`` with ``CalibrationOptions(split_cpu="auto")`` puts them there; `planner.plan` takes them all.

    Args:
        split_cpu: the number of devices that the CPU is divided into, or "auto" for every possible division.
        channel: what carries tensors between devices.
        kernels: of CPUs, as `CalibrationOptions` has them.

    Raises:
        InputError: if the CPU cannot be divided so, or the division is not calibrated.
    """
    from costmodels.calibrate import host_divisions, host_fingerprint, with_kernels

    one_of(channel, "the channel", CHANNELS)
    if kernels is not None:
        one_of(kernels, "the kernels", KERNELS)
    found = []
    for cores in widths(split_cpu, host_divisions()):
        host = read_host(_host_path(host_fingerprint(cores, channel)))
        if host is None:
            raise InputError(
                f"this host was not measured with {cores} core{'s'[: cores - 1]} in each device; run "
                f"`planner calibrate MODEL --split-cpu {split_cpu}`"
            )
        found.append(with_kernels(host.cluster, kernels))
    return tuple(found)


def _survey(
    programs: Sequence[Program], reporter: Reporter, calibration_options: CalibrationOptions, cores_per_device: int
) -> Calibration:
    """Calibrate one division of the CPU."""
    from costmodels.calibrate import with_kernels

    host, found = _host(calibration_options, cores_per_device, reporter)
    cluster = with_kernels(host.cluster, calibration_options.kernels)
    if calibration_options.sweep:
        _sweep(cluster, reporter)
    operators = [
        profile(program, [device for device in cluster.devices if device.kind == kind], reporter, calibration_options)
        for program in programs
        for kind in cluster.kinds
    ]
    if len(programs) == 1:  # phases are not split
        operators += _parts(programs[0], cluster, reporter, calibration_options)
    guessed = dict.fromkeys(kind for program in programs for kind in guessed_kinds(program.graph))
    return Calibration(cluster, host.spread, found, tuple(operators), tuple(guessed))


def _parts(
    program: Program, cluster: Cluster, reporter: Reporter, calibration_options: CalibrationOptions
) -> Iterator[Operators]:
    """Measure the parts of operators that would be split, by the times of the whole ones."""
    from graphs.program.rewritten import rewritten_program

    if calibration_options.training or not allows(calibration_options.rewrites, SPLIT):
        return

    def known(graph: Graph) -> tuple[Graph, CostTable]:
        """Return a network as it is planned for, with its known costs."""
        planned = rewritten(graph, rewrites_for(calibration_options.rewrites, graph, cluster.devices, trains=False))
        return planned, tabulate(planned, cluster, Workload(), cached_profiles(cluster), learned_costs)

    with optional(calibration_options.rewrites, SPLIT):
        splits = Splits.of(program.graph, *known(program.graph), cluster, SPLITS_S)
        for _ in range(ROUNDS):
            if splits is None:
                break
            devices = [cluster.devices[number] for number in splits.search.team.numbers]
            divided = rewritten_program(program, (splits.split,))
            own = profile(divided, devices, reporter, calibration_options)
            yield replace(own, kind=f"{own.kind}, split")
            splits = splits.again(*known(divided.graph), SPLITS_S)


def profile(
    program: Program,
    devices: Sequence[Device],
    reporter: Reporter = SILENT,
    calibration_options: CalibrationOptions = CalibrationOptions(),
) -> Operators:
    """Measure the operators of a program on devices of one kind and keep the times in the cache.

    One device is measured isolated, and several parts of a CPU also contended.

    Raises:
        InputError: if this host does not have the devices, or they were calibrated on another host.
    """
    from costmodels.calibrate import MeasurementEffort, profile_contended, profile_program
    from graphs.program.rewritten import rewritten_program

    device, cache, training = devices[0], cache_folder(), calibration_options.training
    rewrites = rewrites_for(calibration_options.rewrites, program.graph, devices, training)
    program = rewritten_program(program, rewrites)
    how = MeasurementEffort(again=calibration_options.again, error=ERROR), reporter.on_step, training, cache
    before = read_profile(cache, device.profile) if device.profile else None
    contended = len(devices) > 1 and device.cores
    after = profile_contended(program, devices, *how) if contended else profile_program(program, device, *how)
    kind = f"{device.kind} of {len(device.cores)} cores" if len(device.cores) > 1 else device.kind
    return _operators(program.graph, kind, before, after, training)


def _operators(graph: Graph, kind: str, before: Profile | None, after: Profile, training: bool) -> Operators:
    keys = training_keys(graph) if training else op_keys(graph)
    times = after.training if training else after.ops
    old = (before.training if training else before.ops) if before else {}
    found = sum(old.get(key) == times[key] for key in set(keys))
    noise = noisy(keys, times)
    named = {n.key: tuple(op.name for op, key in zip(graph.ops, keys, strict=True) if key == n.key) for n in noise}
    seconds = sum(times[key].seconds for key in keys)
    contended = after.training_contended if training else after.contended
    longer_s = sum(times[key].seconds * after.slowdown(key, max(contended), training) for key in keys if contended)
    slowdown = longer_s / seconds if contended and seconds > 0 else None
    return Operators(kind, len(times) - found, found, noise, named, seconds, slowdown)


def _sweep(cluster: Cluster, reporter: Reporter) -> None:
    """Measure the probes on one device of each kind, unless the cache has them."""
    from costmodels.calibrate.sweep import sweep

    for kind in cluster.kinds:
        device = next(device for device in cluster.devices if device.kind == kind)
        sweep(device, cache_folder(), reporter.on_step)


def _host(calibration_options: CalibrationOptions, cores: int, reporter: Reporter) -> tuple[Host, bool]:
    """Return devices of ``cores`` cores with their links, and whether they were in the cache."""
    from costmodels.calibrate import calibrate_host, host_fingerprint

    path = _host_path(host_fingerprint(cores, calibration_options.channel))
    if not calibration_options.again and (known := read_host(path)):
        return known, True
    measured = calibrate_host(cores_per_device=cores, channel=calibration_options.channel, on_step=reporter.on_step)
    host = replace(measured, cluster=_with_overheads(measured.cluster, reporter))
    write_host(host, path)
    return host, False


def _host_path(fingerprint: str) -> Path:
    return cache_folder() / "hosts" / f"{fingerprint}.json"


def read_host(path: Path) -> Host | None:
    """Return a host from the cache, or None without a file of this version; a damaged file is an InputError."""
    from costmodels.calibrate import Host

    if not path.exists():
        return None
    with reading_cached("calibrated host", path, "calibrate"):
        document = read_json(path, "calibrated host")
        if document["version"] != VERSION or document["cluster"]["version"] != CLUSTER_VERSION:
            return None
        spread = {str(what): float(share) for what, share in document["spread"].items()}
        return Host(cluster_from_dict(document["cluster"]), spread)


def write_host(host: Host, path: Path) -> None:
    """Write a host to the cache, whole or not at all; a write-protected folder is an InputError."""
    write_cached({"version": VERSION, "spread": dict(host.spread), "cluster": cluster_to_dict(host.cluster)}, path)


def _with_overheads(cluster: Cluster, reporter: Reporter) -> Cluster:
    """Return the cluster with the runtime's measured overheads of a tensor between devices and of a request."""
    from planner.runtime.benchmark import overheads

    reporter.on_step("measuring the overhead between devices", 0, 2)
    overhead_s = overheads.measure_overhead(cluster.devices)
    reporter.on_step("measuring the overhead of a request", 1, 2)
    request_s = overheads.measure_request(cluster.devices)
    reporter.on_step("measuring the overhead of a request", 2, 2)
    return replace(
        cluster,
        devices=tuple(replace(each, overhead_s=overhead_s, request_s=request_s) for each in cluster.devices),
    )
