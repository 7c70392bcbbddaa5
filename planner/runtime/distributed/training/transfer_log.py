"""Transfer log: when the messages of a rank in a pipeline leave it and when they come to it.

torch asks whether a message has come when it needs the message, which may be much later. So a thread waits for each
message, as long as times are kept.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import torch.distributed as dist

from planner.runtime.training.recorder import MessageEnd
from simulator.schedule import Action


class MessageLog:
    """Keeps the times of messages while it is on."""

    def __init__(self) -> None:
        self.on = False
        self.ends: list[MessageEnd] = []  # of the last step

    def leaving(self, sender: Action, ops: list[dist.P2POp]) -> list[dist.P2POp]:
        """Note what torch is about to send behind an action; return ``ops``."""
        if self.on and ops:
            self.ends.append(MessageEnd(sender, True, time.perf_counter()))
        return ops

    def coming(self, sender: Action, ops: list[dist.P2POp]) -> list[dist.P2POp]:
        """Watch what torch is about to receive from an action of another stage, except what goes from GPU to GPU."""
        if self.on:
            for op in ops:
                if not op.tensor.is_cuda:
                    op.op = self._watched(sender, op.op)
        return ops

    def _watched(self, sender: Action, receive: Callable[..., Any]) -> "Callable[..., _Watched]":
        def begin(*args: Any, **options: Any) -> _Watched:
            return _Watched(receive(*args, **options), come)

        def come() -> None:
            self.ends.append(MessageEnd(sender, False, time.perf_counter()))

        return begin


class _Watched:
    """Stands for torch's work that receives a tensor."""

    def __init__(self, work: dist.Work, come: Callable[[], None]) -> None:
        self._work, self._come = work, come
        self._done: Future[None] = Future()
        threading.Thread(target=self._receive, daemon=True).start()

    def wait(self) -> bool:
        """Wait until the tensor is there."""
        self._done.result()
        return True

    def _receive(self) -> None:
        try:
            self._work.wait()
        except BaseException as error:  # raised where torch waits
            self._done.set_exception(error)
        else:
            self._come()
            self._done.set_result(None)
