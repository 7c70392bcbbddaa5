"""Other programs that run a network on CPUs, as contenders of a measurement: ONNX Runtime and OpenVINO.

They read the network as ONNX, in the precision of the model. Each is measured in its two modes, since which of them
streams faster depends on the network: one run that all cores share, and as many runs at once as there are devices.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from costmodels.cluster.cluster import Device
from costmodels.host.affinity import run_on
from graphs.common.checks import one_of
from graphs.common.errors import InputError, first_line, last_line
from graphs.importers.tracing_guards import quiet
from graphs.program.program import Program
from planner.runtime.benchmark.measure import Contender, evaluating, timed

Feeds: TypeAlias = Mapping[str, NDArray[Any]]
"""The inputs of a network by their names in the ONNX file."""

EXTRA = "pip install 'placement-planner[peers]'"


class OnnxRuntime:
    """Sessions of ONNX Runtime, each bound to some cores, with its own stream of micro-batches."""

    recorded = None

    def __init__(self, model: Path, feeds: Feeds, groups: Sequence[Device], name: str) -> None:
        """Load a model once for each group of cores."""
        self.name, self._feeds, self._groups = name, feeds, groups
        self._sessions = [run_on(group, partial(self._load, model, len(group.cores))) for group in groups]

    @staticmethod
    def _load(model: Path, threads: int) -> Any:
        onnxruntime = _installed("onnxruntime")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3  # errors only
        return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])

    def result(self) -> list[NDArray[Any]]:
        """Return the outputs for the example inputs."""
        results: list[NDArray[Any]] = self._sessions[0].run(None, self._feeds)
        return results

    def stream(self, count: int) -> float:
        """Stream micro-batches through every session; return the seconds for each, over all sessions."""
        with ThreadPoolExecutor(len(self._sessions)) as pool:
            numbers = range(len(self._sessions))
            rates = pool.map(lambda number: 1 / float(np.mean(self._turn(number, count))), numbers)
            return 1 / sum(rates)

    def single(self, count: int) -> list[float]:
        """Run micro-batches alone in the first session."""
        return self._turn(0, count)

    def _turn(self, number: int, count: int) -> list[float]:
        def work() -> list[float]:
            session.run(None, self._feeds)
            return [timed(lambda: session.run(None, self._feeds)) for _ in range(count)]

        session = self._sessions[number]
        return run_on(self._groups[number], work)


class OpenVino:
    """A model compiled by OpenVINO for throughput or for latency, which divides the cores among its streams itself."""

    recorded = None

    def __init__(self, model: Path, feeds: Feeds, threads: int, hint: str, precision: str, name: str) -> None:
        """Compile a model for a number of cores, a performance hint and a precision of arithmetic.

        OpenVINO computes float32 networks in bfloat16 where the processor can, unless the precision is given.
        """
        self.name, self._feeds = name, dict(feeds)
        self._openvino = _installed("openvino")
        asked = {"PERFORMANCE_HINT": hint, "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": precision}
        self._compiled = self._openvino.Core().compile_model(str(model), "CPU", asked)
        self._request = self._compiled.create_infer_request()

    def result(self) -> list[NDArray[Any]]:
        """Return the outputs for the example inputs."""
        self._request.infer(self._feeds)
        return [np.array(self._request.get_output_tensor(i).data) for i in range(len(self._compiled.outputs))]

    def stream(self, count: int) -> float:
        """Keep as many requests running as OpenVINO likes best; the first and the last ones do not count."""
        queue = self._openvino.AsyncInferQueue(self._compiled)
        ends_s: list[float] = []
        lock = Lock()

        def ended(*_: object) -> None:
            with lock:
                ends_s.append(time.perf_counter())

        queue.set_callback(ended)
        margin = len(queue)
        for _ in range(count + 2 * margin):
            queue.start_async(self._feeds)
        queue.wait_all()
        return (ends_s[count + margin - 1] - ends_s[margin - 1]) / count

    def single(self, count: int) -> list[float]:
        """Run micro-batches alone."""
        self._request.infer(self._feeds)
        return [timed(lambda: self._request.infer(self._feeds)) for _ in range(count)]


def _onnx_runtime(model: Path, feeds: Feeds, together: Device, apart: Sequence[Device]) -> Iterator[Contender]:
    """Yield a contender of one session with a thread for each core, and one of a session for each core."""
    yield OnnxRuntime(model, feeds, [together], f"onnxruntime, {len(together.cores)} threads")
    if len(apart) > 1:
        yield OnnxRuntime(model, feeds, apart, f"onnxruntime, {len(apart)} sessions")


def _openvino(model: Path, feeds: Feeds, together: Device, _: Sequence[Device], precision: str) -> Iterator[Contender]:
    """Yield a model compiled for throughput, and one for latency."""
    called = "" if precision == "f32" else f", {precision}"
    for hint in ("throughput", "latency"):
        yield OpenVino(model, feeds, len(together.cores), hint.upper(), precision, f"openvino{called}, {hint}")


Make: TypeAlias = Callable[[Path, Feeds, Device, Sequence[Device]], Iterator[Contender]]

PEERS: Mapping[str, Make] = {
    "onnxruntime": _onnx_runtime,
    "openvino": partial(_openvino, precision="f32"),
    "openvino-bf16": partial(_openvino, precision="bf16"),
}
"""Functions that make the contenders of each peer, by its name; the name begins with that of the peer's package."""


def check_peers(names: Sequence[str], devices: Sequence[Device]) -> None:
    """Check that peers are known and installed, and that devices are CPUs of this process. Raise InputError if not."""
    for name in names:
        one_of(name, "the peer", PEERS)
    for name in ("onnxscript", *names) if names else ():
        _installed(name.split("-")[0])
    if names and not (devices and all(device.cores for device in devices)):
        raise InputError(
            f"{' and '.join(names)} run on the cores of a plan's CPUs, and this plan has a GPU or other hosts; "
            "leave --against out"
        )


@contextmanager
def peers(program: Program, devices: Sequence[Device], names: Sequence[str]) -> Iterator[list[Contender]]:
    """Make the contenders of some peers on the cores of CPU devices of this host, each peer in all its modes.

    Raise InputError as `check_peers`, or if a peer cannot take the network.
    """
    check_peers(names, devices)
    if not names:
        yield []
        return
    cores = tuple(sorted({core for device in devices for core in device.cores}))
    together = replace(devices[0], name="all cores", cores=cores)
    apart = [replace(devices[0], name=f"core {core}", cores=(core,)) for core in cores]
    with TemporaryDirectory() as folder:
        model, feeds = _exported(program, Path(folder))
        made: list[Contender] = []
        for name in names:
            try:
                made += PEERS[name](model, feeds, together, apart)
            except Exception as error:  # each peer has exceptions of its own
                why = last_line(error).lstrip("- ")  # OpenVINO's first ones are places in its own source
                raise InputError(
                    f"{name} cannot take '{program.graph.name}': {why}; leave it out of --against"
                ) from error
        yield made


def _exported(program: Program, folder: Path) -> tuple[Path, Feeds]:
    """Write a network as ONNX, and return the file and its inputs."""
    args, kwargs = program.example_arguments
    path = folder / "model.onnx"
    try:
        with quiet(), evaluating(program.module):  # as it was imported
            exported = torch.onnx.export(program.module, tuple(args), kwargs=dict(kwargs), dynamo=True, verbose=False)
        assert exported is not None
        exported.save(path, external_data=True)
    except Exception as error:  # the exporter raises what its passes raise
        why = first_line(error.__cause__ or error)  # the first one tells how to report it
        raise InputError(f"'{program.graph.name}' cannot be written as ONNX: {why}; leave --against out") from error
    names = [each.name for each in exported.model.graph.inputs]
    return path, {name: tensor.numpy() for name, tensor in zip(names, program.example_inputs, strict=True)}


def _installed(name: str) -> Any:
    """Import the package of a peer."""
    try:
        return import_module(name)
    except ImportError as error:
        raise InputError(f"{name} is not installed; run {EXTRA}") from error
