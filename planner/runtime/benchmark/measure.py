"""Measure a plan against what its user has today: the reference model on one device, and with PyTorch's own threads.

Wall-clock time on a shared machine drifts, so contenders take turns within one run and medians are kept; the processor
time that other processes took meanwhile and the machine's pace are reported with the figures.
"""

import copy
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import nn
from torch.utils import _pytree as pytree

from costmodels.calibrate.pace import PaceMeter
from costmodels.cluster.cluster import Device
from costmodels.host.affinity import run_on, start_on, torch_device_of
from costmodels.operators.pace import Paces
from graphs.common.brief import brief
from graphs.common.errors import running
from graphs.importers.tracing_guards import without_caches
from graphs.program.program import Program
from planner.problem.result import Interrupted
from planner.runtime.benchmark.load import Load, watching
from planner.runtime.inference.runner import Runner
from simulator.timeline import Timeline

T = TypeVar("T")

MEET_S = 600.0  # for the slowest of several copies to run a first micro-batch
SINGLES = 5  # micro-batches timed alone in each turn, less where one takes long


@dataclass(frozen=True)
class ContenderResult:
    """The figures of one contender."""

    name: str  # of the contender
    period_s: float  # seconds from one micro-batch to the next when they stream, of the round in the middle
    latency_s: float  # seconds of one micro-batch alone, median
    periods_s: tuple[float, ...]  # the rounds, in order; those of two contenders compare pair by pair
    latencies_s: tuple[float, ...] = ()  # likewise, the median of each round
    stream: Timeline | None = field(default=None, repr=False)  # of the round in the middle, where it was recorded
    paces: Paces = ()  # samples while this stream and micro-batches alone ran, others of what was not watched then


@dataclass(frozen=True)
class BenchmarkResult:
    """All contenders of one run."""

    contenders: tuple[ContenderResult, ...]  # in the order given
    foreign_cores: float  # processors that others used on average; above 0.1 they disturb the figures
    paces: Paces = ()  # all samples of the run

    __repr__ = brief

    def __getitem__(self, name: str) -> ContenderResult:
        """Return the contender of that name."""
        return {measured.name: measured for measured in self.contenders}[name]

    def speedup(self, name: str, over: str) -> float:
        """Return the throughput of one contender over another's: the median of the rounds' ratios."""
        return speedup(self[over].periods_s, self[name].periods_s)

    def latency_speedup(self, name: str, over: str) -> float:
        """Return how many times as fast one micro-batch alone is: the median of the rounds' ratios."""
        return speedup(self[over].latencies_s, self[name].latencies_s)


class ContenderTurn(NamedTuple):
    """One contender's part of a round."""

    period_s: float  # of the stream
    latencies_s: list[float]  # of single micro-batches
    recorded: Timeline | None  # the stream
    streaming: Paces = ()  # samples while it streamed
    alone: Paces = ()  # samples while micro-batches were alone


class Contender(Protocol):
    """One of several programs that take turns in a measurement."""

    name: str

    @property
    def recorded(self) -> Timeline | None:
        """The last stream; None where streams are not recorded."""
        ...

    def stream(self, count: int) -> float:
        """Stream micro-batches; return the seconds for each, in steady state."""
        ...

    def single(self, count: int) -> list[float]:
        """Run micro-batches alone; return the seconds of each."""
        ...


class PlannedContender:
    """A runner as a contender, whose streams are recorded, and whose devices measure their pace if there is a meter."""

    def __init__(self, runner: Runner, name: str = "plan", meter: PaceMeter | None = None) -> None:
        self.name = name
        self.recorded: Timeline | None = None
        self._runner = runner
        self._meter = meter
        self._batch = runner.program.example_arguments

    def stream(self, count: int) -> float:
        """Stream micro-batches; the first and the last ones fill and drain the devices, and do not count."""
        margin = self._runner.plan.workload.in_flight
        self._runner.record()
        with watching(self._meter, self._runner, self._runner.plan.n_used):
            start_s = time.perf_counter()
            for _ in self._runner.replay(self._batch, count + 2 * margin):
                pass
            end_s = time.perf_counter()
        self.recorded = self._runner.timeline()
        used = self._runner.plan.usage_of(self.recorded)
        return used.period_s if used else (end_s - start_s) / (count + 2 * margin)

    def single(self, count: int) -> list[float]:
        """Run micro-batches; the next one enters when the last one has left."""
        with watching(self._meter, self._runner, 1):
            return [timed(lambda: self._runner(*self._batch[0], **self._batch[1])) for _ in range(count)]


class Eager:
    """The reference model on a thread bound to a device, in evaluation mode as it was imported."""

    recorded = None

    def __init__(self, program: Program, device: Device, name: str) -> None:
        self.name = name
        self.device = device
        torch_device = torch_device_of(device)
        self._module = program.module if torch_device.type == "cpu" else copy.deepcopy(program.module).to(torch_device)
        self._args, self._kwargs = pytree.tree_map_only(
            torch.Tensor, lambda tensor: tensor.to(torch_device), program.example_arguments
        )

    def result(self) -> Any:
        """Return the result of the model, with the operators that a trace of it has; raise InputError if it fails."""
        with _by_operators(), running("the model"):
            return self._turn(self.call)

    def stream(self, count: int) -> float:
        """Call the model again and again, after a call to warm up."""

        def work() -> float:
            self.call()
            return sum(timed(self.call) for _ in range(count)) / count

        return self._turn(work)

    def single(self, count: int) -> list[float]:
        """Call the model again and again, and time each call."""

        def work() -> list[float]:
            self.call()
            return [timed(self.call) for _ in range(count)]

        return self._turn(work)

    def _turn(self, work: Callable[[], T]) -> T:
        with self.ready():
            return run_on(self.device, work)

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Context in which `call` runs the model as it was imported."""
        with evaluating(self._module), without_caches(self._module):
            yield

    def call(self) -> Any:
        """Run the model on the calling thread."""
        result = self._module(*self._args, **self._kwargs)
        if self.device.cuda is not None:
            torch.cuda.synchronize(self.device.cuda)
        return result


class EagerCopies:
    """The reference model on several devices at once: each takes the next micro-batch when it is through with one.

    Devices of a CPU share the model's weights.
    """

    recorded = None

    def __init__(self, program: Program, devices: Sequence[Device]) -> None:
        self.name = f"{len(devices)} copies"
        self._copies = [Eager(program, device, device.name) for device in devices]

    def stream(self, count: int) -> float:
        """Run micro-batches on all devices, after one on each to warm up; return the seconds for each."""
        copies, left = self._copies, threading.Semaphore(count)
        meeting = threading.Barrier(len(copies), timeout=MEET_S)
        times_s: list[tuple[float, float]] = []

        def work(copy: Eager) -> None:
            copy.call()
            meeting.wait()
            start_s = time.perf_counter()
            while left.acquire(blocking=False):
                copy.call()
            times_s.append((start_s, time.perf_counter()))

        with ExitStack() as stack:
            for copy in copies:
                stack.enter_context(copy.ready())
            threads = [start_on(copy.device, partial(work, copy)) for copy in copies]
            for thread in threads:
                thread.result()
        return (max(end_s for _, end_s in times_s) - min(start_s for start_s, _ in times_s)) / count

    def single(self, count: int) -> list[float]:
        """Run micro-batches on the first device, one after the other; return the seconds of each."""
        return self._copies[0].single(count)


def baselines(program: Program, devices: Sequence[Device]) -> list[Contender]:
    """Return one device, on the CPU PyTorch's own intra-op threads on all cores of the devices, and copies on each."""
    contenders: list[Contender] = [Eager(program, devices[0], "one device")]
    cores = tuple(sorted({core for device in devices for core in device.cores}))
    if all(device.cores for device in devices) and len(cores) > len(devices[0].cores):
        together = replace(devices[0], name="all cores", cores=cores)
        contenders.append(Eager(program, together, f"{len(cores)} threads"))
    if len(cores) == sum(len(device.cores) for device in devices) > len(devices[0].cores):
        contenders.append(EagerCopies(program, devices))
    return contenders


def measure(
    contenders: Sequence[Contender],
    rounds: int = 5,
    on_step: Callable[[str, int, int], Any] = lambda *_: None,
    load: Load | None = None,
) -> BenchmarkResult:
    """Let contenders take turns and keep medians; raise Interrupted with the complete rounds on Ctrl-C.

    ``on_step`` is called with (what, done, total) after every turn. The load knows which processes are our own and
    whose pace to measure; by default this process, and no pace.
    """
    load = load or Load()
    counts = {each.name: max(2, round(load.turn_s / each.stream(2))) for each in contenders}

    def turn(contender: Contender) -> ContenderTurn:
        count, before = counts[contender.name], len(load.paces)
        period_s, between = contender.stream(count), len(load.paces)
        latencies_s, paces = contender.single(min(SINGLES, count)), load.paces
        return ContenderTurn(period_s, latencies_s, contender.recorded, paces[before:between], paces[between:])

    turns = {each.name: partial(turn, each) for each in contenders}
    return _take_turns(turns, rounds, "measuring", on_step, load)


def measure_steps(
    contenders: Mapping[str, Callable[[], float]],
    rounds: int = 5,
    on_step: Callable[[str, int, int], Any] = lambda *_: None,
    load: Load | None = None,
) -> BenchmarkResult:
    """Let contenders take a training step in every round and return its seconds, after one that does not count.

    The rest is that of `measure`; a step takes the place of a stream and of a micro-batch alone.
    """
    for step in contenders.values():
        step()

    def turn_of(step: Callable[[], float]) -> Callable[[], ContenderTurn]:
        return lambda: ContenderTurn(step_s := step(), [step_s], None)

    turns = {name: turn_of(step) for name, step in contenders.items()}
    return _take_turns(turns, rounds, "training", on_step, load or Load())


def _take_turns(
    contenders: Mapping[str, Callable[[], ContenderTurn]],
    rounds: int,
    verb: str,
    on_step: Callable[[str, int, int], Any],
    load: Load,
) -> BenchmarkResult:
    """Call each contender once in every round and measure the pace; on Ctrl-C, complete rounds are in Interrupted."""
    turns: dict[str, list[ContenderTurn]] = {name: [] for name in contenders}
    try:
        for number in range(rounds):
            for position, (name, turn) in enumerate(contenders.items()):
                load.sample_pace()
                turns[name].append(turn())
                on_step(f"{verb} {name}", number * len(contenders) + position + 1, rounds * len(contenders))
        load.sample_pace()
    except KeyboardInterrupt as stopped:
        complete = min(map(len, turns.values()))
        if not complete:
            raise
        raise Interrupted(_result({name: done[:complete] for name, done in turns.items()}, load)) from stopped
    return _result(turns, load)


def _result(turns: Mapping[str, Sequence[ContenderTurn]], load: Load) -> BenchmarkResult:
    measured = tuple(_measured(name, done, load.paces) for name, done in turns.items())
    return BenchmarkResult(measured, load.foreign_cores(), load.paces)


def _measured(name: str, turns: Sequence[ContenderTurn], paces: Paces) -> ContenderResult:
    """Summarise the rounds of a contender; the stream and its period are those of one round, so that they agree."""
    middle = sorted(turns, key=lambda turn: turn.period_s)[(len(turns) - 1) // 2]
    return ContenderResult(
        name=name,
        period_s=middle.period_s,
        latency_s=statistics.median(chain.from_iterable(turn.latencies_s for turn in turns)),
        periods_s=tuple(turn.period_s for turn in turns),
        latencies_s=tuple(statistics.median(turn.latencies_s) for turn in turns),
        stream=middle.recorded,
        paces=_with_others((*middle.streaming, *chain.from_iterable(turn.alone for turn in turns)), paces),
    )


def _with_others(own: Paces, paces: Paces) -> Paces:
    """Samples of a contender, and those of the whole run of what the contender has no sample of."""
    known = {name for sample in own for name in sample}
    others = ({name: seconds for name, seconds in sample.items() if name not in known} for sample in paces)
    return (*own, *filter(None, others))


def speedup(base_s: Sequence[float], own_s: Sequence[float]) -> float:
    """Return how many times as fast a contender is: the median of the ratios, round by round."""
    return statistics.median(base / own for base, own in zip(base_s, own_s, strict=True))


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Switch to evaluation mode and back, submodule by submodule; an exported module has no ``eval()``."""
    modes = {part: part.training for part in module.modules()}
    for part in modes:
        part.training = False
    try:
        yield
    finally:
        for part, training in modes.items():
            part.training = training


@contextmanager
def _by_operators() -> Iterator[None]:
    """Switch off the fused kernels that ``nn.TransformerEncoder`` calls without gradients.

    They round in another way, and write zeros where the padding mask says so. torch.export does not trace them.
    """
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


def timed(work: Callable[[], object]) -> float:
    """Return the seconds of a call."""
    start_s = time.perf_counter()
    work()
    return time.perf_counter() - start_s
