"""Mailbox: tensors on their way between the devices of one training step."""

import threading
from collections.abc import Hashable, Iterable, Mapping
from typing import NamedTuple

import torch

from costmodels.host.affinity import Stopped


class SentTensor(NamedTuple):
    """A tensor, and the event that is over when a GPU has written it; no tensor if there is no gradient."""

    tensor: torch.Tensor | None
    written: torch.cuda.Event | None = None


class Mailbox:
    """Tensors that one thread posts and one other takes, each once, under names that both know."""

    def __init__(self) -> None:
        self._posted: dict[Hashable, SentTensor] = {}
        self._changed = threading.Condition()
        self._stopped = False

    def post(self, sent: Mapping[Hashable, SentTensor]) -> None:
        """Put tensors in without waiting."""
        with self._changed:
            self._posted.update(sent)
            self._changed.notify_all()

    def take(self, names: Iterable[Hashable]) -> list[SentTensor]:
        """Wait until all are there and take them out; raise Stopped after `stop`."""
        names = list(names)
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or all(name in self._posted for name in names))
            if self._stopped:
                raise Stopped
            return [self._posted.pop(name) for name in names]

    def stop(self) -> None:
        """Let every thread that waits, now or later, raise `Stopped`."""
        with self._changed:
            self._stopped = True
            self._posted.clear()
            self._changed.notify_all()
