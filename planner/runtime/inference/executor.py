"""Executor: devices that somebody else has started, for a `Runner` to work with."""

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Protocol

import torch

from planner.runtime.inference.engine import Tensors
from planner.runtime.stages.compile import ShardedState
from simulator.timeline import Span


class Executor(Protocol):
    """Devices of several processes, as `planner.runtime.inference.engine.Engine` is those of one.

    Attributes:
        state: what the devices of the calling process hold.
        pids: other processes of this host.
    """

    state: ShardedState
    pids: tuple[int, ...]

    @property
    def begun(self) -> int:
        """How many micro-batches have entered; the next one has this number."""
        ...

    def submit(self, inputs: Mapping[str, torch.Tensor]) -> "Future[Tensors]":
        """Start one micro-batch; the future holds its output tensors by name."""
        ...

    def record(self) -> None:
        """Keep the spans of the micro-batches that enter from here on, for `spans`."""
        ...

    def spans(self) -> tuple[Span, ...]:
        """What ran since `record`, in the order in which it started; recording ends."""
        ...

    def close(self) -> None:
        """Fail what is on its way, and let go of the devices. May be called again."""
        ...
