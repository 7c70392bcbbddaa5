"""Measures the contended times of operators: several devices of one host run a program at once.

Cores of one processor share its last cache and its memory's bandwidth. An operator that streams its weights from there
takes up to a fifth longer under contention than isolated. So the devices run the program as a pipeline would::

    device 0    a b c   of micro-batch k        all parts have about the same isolated time
    device 1    d e f   of micro-batch k - 1

or as copies of the network do::

    device 0    a b c d e f   of micro-batch k
    device 1    a b c d e f   of micro-batch k + 1

A copy runs for two micro-batches at once where it gains by it, as in a stream (see `graphs.kernels.pairs`).

Every operator is timed on its device. All parts of a micro-batch start at the same moment. Copies start together and go
on by themselves, as they do in a stream: in step they read each weight from memory once for all of them, and it is
unknown for how long they stay in step. In training, each device runs the backward pass of its part right after the
forward pass, with ones as gradients from the next device.
"""

import queue
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from threading import Barrier, BrokenBarrierError
from typing import TypeAlias

import numpy as np
import torch

from costmodels.calibrate.clock import clock_of
from costmodels.calibrate.runs import Inference, Pass, Training, drawing_apart
from costmodels.cluster.cluster import Device
from costmodels.host.affinity import run_on, start_on, torch_device_of
from graphs.common.arrays import Floats
from graphs.program.program import Program

Tensors: TypeAlias = dict[str, torch.Tensor]
PartResult: TypeAlias = "list[list[float]] | BaseException"
Parts: TypeAlias = Sequence[range]
"""The operators that each device runs."""

MEET_S = 60.0  # time limit of a device for the slowest part of a pass


class CoRun(Pass):
    """Equal devices that run parts of a program, or all of it, at once, each a thread, until it is closed."""

    def __init__(
        self,
        program: Program,
        devices: Sequence[Device],
        parts: Parts,
        training: bool = False,
        behind: Callable[[], object] = lambda: None,
        alone_s: Sequence[float] = (),
    ) -> None:
        """Bring the program's state to CPU devices of this host, which share it; tensors without values get values.

        ``parts`` has [n_devices], the operators of each; together they are all operators. Parts that begin with the
        first operator are copies. A device's thread calls the function ``behind`` after each part. ``alone_s`` are the
        seconds of the operators alone, which decide whether copies run pairs; without them, no copy does.
        """
        self._ahead = sum(part.start == 0 for part in parts) - 1  # passes that are begun before the last one has ended
        torch_device, kernels = torch_device_of(devices[0]), devices[0].kernels
        copies_s = alone_s if self._ahead else ()
        clock = clock_of(devices[0], waits=not training)  # a step calls the interpreter more seldom than `Training`

        def brought() -> Inference | Training:
            return (
                Training(program, torch_device, clock)
                if training
                else Inference(program, torch_device, clock, kernels=kernels, copies_s=copies_s)
            )

        self._run = run_on(devices[0], brought)
        self._torch_device = torch_device
        self._parts = parts
        self._behind = behind
        self._start = Barrier(1 if self._ahead else len(devices))
        self._inbox: list[queue.SimpleQueue[Tensors | None]] = [queue.SimpleQueue() for _ in devices]
        self._outbox: list[queue.SimpleQueue[PartResult]] = [queue.SimpleQueue() for _ in devices]
        self._on_way: deque[list[Tensors]] = deque()
        self._inputs = [self._inputs_of(part) for part in parts]
        self._threads = [start_on(device, partial(self._serve, part)) for part, device in enumerate(devices)]
        self._drawing = ExitStack()
        self._drawing.enter_context(drawing_apart(self._torch_device))

    def one_pass(self) -> list[list[float]]:
        """[n_phases][n_ops], seconds, in the mean of the devices that ran an operator."""
        while len(self._on_way) <= self._ahead:
            for inbox, env in zip(self._inbox, self._inputs, strict=True):
                inbox.put(env)
            self._on_way.append(self._inputs)
            self._inputs = [dict(self._run.given) for _ in self._parts]
        return self._next_ended()

    def pause(self) -> None:
        """Wait for the passes that are ahead."""
        while self._on_way:
            self._next_ended()

    def _next_ended(self) -> list[list[float]]:
        envs, results = self._on_way.popleft(), [outbox.get() for outbox in self._outbox]
        errors = [result for result in results if isinstance(result, BaseException)]
        for error in sorted(errors, key=lambda error: isinstance(error, BrokenBarrierError)):
            raise error  # the cause; parts that it aborted have a BrokenBarrierError
        passed = {part.stop: env for part, env in zip(self._parts, envs, strict=True)}
        for number, part in enumerate(self._parts):
            if part.start:
                self._inputs[number] = dict(passed[part.start])
        timed = [np.array(result) for result in results if not isinstance(result, BaseException)]
        total_s = np.zeros((len(timed[0]), max(part.stop for part in self._parts)))
        times = np.zeros(total_s.shape[1])
        for part, seconds in zip(self._parts, timed, strict=True):
            total_s[:, part.start : part.stop] += seconds
            times[part.start : part.stop] += 1
        return [list(map(float, phase)) for phase in total_s / times]

    def close(self) -> None:
        """End the other threads."""
        with self._drawing:
            self._start.abort()
            for inbox in self._inbox:
                inbox.put(None)
            for thread in self._threads:
                thread.result()

    def _inputs_of(self, part: range) -> Tensors:
        """The tensors of a micro-batch before this part."""
        env = dict(self._run.given)
        with torch.no_grad(), drawing_apart(self._torch_device):
            self._run.run(env, 0, part.start)
        return env

    def _tried(self, part: int, env: Tensors) -> PartResult:
        """The seconds of a part of one pass, or its error, which also aborts the other parts."""
        try:
            self._start.wait(MEET_S)
            seconds = self._run.run(env, self._parts[part].start, self._parts[part].stop)
            self._behind()
            return seconds
        except BaseException as error:  # `one_pass` raises it
            self._start.abort()
            return error

    def _serve(self, part: int) -> None:
        """Run a device's part of one pass after the other, on the device's thread."""
        while (env := self._inbox[part].get()) is not None:
            self._outbox[part].put(self._tried(part, env))
            del env


def balanced_parts(seconds: Floats, n: int) -> Parts:
    """[n], a sequence of operators in parts of about the same time.

    An operator belongs to the part that contains the middle of its time. ``seconds`` is [n_ops].
    """
    ends_s = np.cumsum(seconds)
    middles_s = ends_s - seconds / 2
    inner = [int(np.searchsorted(middles_s, ends_s[-1] * part / n)) for part in range(1, n)] if len(seconds) else []
    cuts = (0, *(inner or [0] * (n - 1)), len(seconds))
    return tuple(map(range, cuts, cuts[1:]))
