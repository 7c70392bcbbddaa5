"""Times every operator of a program on a device, in the order in which they run.

In sequence, each operator finds in the caches what its predecessors left there, and memory is used again as in a real
run. Only the operator itself and the release of what nobody reads any more are timed; arguments are bound before.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

from costmodels.calibrate.clock import Clock, clock_of
from costmodels.calibrate.fingerprint import fingerprint_of, machine_of
from costmodels.calibrate.host import ROOT, free_bytes
from costmodels.calibrate.pinned import place_of, run_on
from costmodels.cluster import Device
from costmodels.measured import Measurement, Profile, op_keys
from costmodels.memory import peak_activation_bytes
from costmodels.table import Floats
from costmodels.units import format_bytes
from graphs.errors import InputError
from graphs.importers.program import Program, on_device
from graphs.ir import Op

OnStep: TypeAlias = Callable[[str, int, int], object]
"""Hears (what, done, total) now and then, from any thread."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure: ``passes`` over the program and ``least_s`` seconds, but no pass starts after ``most_s``."""

    passes: int = 7
    least_s: float = 1.0
    most_s: float = 10.0


def profile_program(
    program: Program, device: Device, effort: Effort = Effort(), on_step: OnStep = lambda *_: None
) -> Profile:
    """Measure every operator of a program.

    An operator's time is the median over the passes; equal operators (see `op_keys`) share the mean of theirs.

    Args:
        program: with the shapes of one micro-batch.
        device: of this host.
        effort: how long.
        on_step: hears about every pass.

    Raises:
        InputError: if this host does not have the device, the device was calibrated with other hard- or software, or
            the program has shapes without values and does not fit into the memory that is free.
    """
    machine = machine_of(device)
    fingerprint = fingerprint_of(machine)
    if device.profile not in ("", fingerprint):
        raise InputError(
            f"device '{device.name}' has the profile '{device.profile}', this host and its software are "
            f"'{fingerprint}'; calibrate again"
        )
    seconds = run_on(device, lambda: _passes(program, device, effort, on_step))
    return Profile(fingerprint, machine, _pooled(op_keys(program.graph), seconds))


def _passes(program: Program, device: Device, effort: Effort, on_step: OnStep) -> Floats:
    """[n_passes, n_ops], seconds."""
    run = _Run(program, place_of(device), clock_of(device))
    what = f"measuring {program.graph.name} on {device.name}"
    run.one_pass()  # warms caches, allocators and kernels that are chosen at their first call
    rows: list[list[float]] = []
    start_s = time.perf_counter()
    while True:
        rows.append(run.one_pass())
        elapsed_s = time.perf_counter() - start_s
        total = max(effort.passes, len(rows), round(len(rows) * effort.least_s / elapsed_s))
        done = (len(rows) >= effort.passes and elapsed_s >= effort.least_s) or elapsed_s >= effort.most_s
        on_step(what, total if done else min(len(rows), total - 1), total)
        if done:
            return np.array(rows)


class _Run:
    """A program on one device, with its state there."""

    def __init__(self, program: Program, place: torch.device, clock: Clock) -> None:
        self.program = program
        self.place = place
        self.clock = clock
        given = dict(program.state) | dict(zip(program.graph.inputs, program.example_inputs, strict=True))
        _check_room(program, given, place)
        self.given = {name: _brought(tensor, place) for name, tensor in given.items()}
        self.dead = _dead_after(program)

    def one_pass(self) -> list[float]:
        """[n_ops], seconds."""
        env = dict(self.given)
        marks = [self._timed(op, env, dead) for op, dead in zip(self.program.graph.ops, self.dead, strict=True)]
        self.clock.settle()
        return [self.clock.seconds(start, end) for start, end in marks]

    def _timed(self, op: Op, env: dict[str, torch.Tensor], dead: Sequence[str]) -> tuple[Any, Any]:
        """Run one operator, keep what it writes, drop what nobody reads any more; the marks before and after."""
        call = self.program.calls[op.name]
        args, kwargs = self.program.arguments(op, env.__getitem__)
        args, kwargs = on_device(args, self.place), on_device(kwargs, self.place)
        target: Any = call.node.target
        mark = self.clock.mark
        start = mark()
        result = target(*args, **kwargs)
        del args, kwargs
        if call.unpack:
            env.update(zip(op.outputs, result, strict=True))
        else:
            env[op.outputs[0]] = result
        del result
        for name in dead:
            del env[name]
        return start, mark()


def _brought(tensor: torch.Tensor, place: torch.device) -> torch.Tensor:
    """A tensor where the device can read it; one without values gets some that are as quick to compute with as any."""
    if not tensor.is_meta:
        return tensor.detach().to(place)
    harmless = 0.01 if tensor.is_floating_point() else 0  # no overflow, no denormal; a valid index
    return torch.full(tensor.shape, harmless, dtype=tensor.dtype, device=place)


def _check_room(program: Program, given: Mapping[str, torch.Tensor], place: torch.device) -> None:
    """What has no values yet is about to be allocated: better refuse than be killed for it."""
    n_bytes = sum(tensor.nbytes for tensor in given.values() if tensor.is_meta)
    free = torch.cuda.mem_get_info(place)[0] if place.type == "cuda" else free_bytes(ROOT)
    if n_bytes and n_bytes + peak_activation_bytes(program.graph) > free:
        raise InputError(
            f"model '{program.graph.name}' takes {format_bytes(n_bytes)}, of which {format_bytes(free)} are free; "
            "it cannot be measured as a whole here: plan without measuring"
        )


def _dead_after(program: Program) -> list[list[str]]:
    """For each operator the activations that nobody reads after it."""
    graph = program.graph
    last = {name: i for i, op in enumerate(graph.ops) for name in (*op.inputs, *op.outputs)}
    dead: list[list[str]] = [[] for _ in graph.ops]
    for op in graph.ops:
        for name in op.outputs:
            if name not in graph.outputs:
                dead[last[name]].append(name)
    return dead


def _pooled(keys: Sequence[str], seconds: Floats) -> dict[str, Measurement]:
    """The measurements by key, from seconds [n_passes, n_ops]."""
    columns: dict[str, list[int]] = {}
    for i, key in enumerate(keys):
        columns.setdefault(key, []).append(i)
    low, middle, high = np.quantile(seconds, (0.25, 0.5, 0.75), axis=0)
    pooled = {}
    for key, ops in columns.items():
        median_s = float(middle[ops].mean())
        quartiles_s = float((high - low)[ops].mean())
        spread = quartiles_s / median_s if median_s > 0 else 0.0
        pooled[key] = Measurement(float(f"{median_s:.4g}"), float(f"{spread:.2g}"), len(ops) * len(seconds))
    return pooled
