"""Mail: tensors on their way between the devices of one training step."""

import threading
from collections.abc import Hashable, Iterable, Mapping
from typing import NamedTuple

import torch

from costmodels.host.affinity import Stopped


class SentTensor(NamedTuple):
    """A tensor, and the event that is over when a GPU has written it; no tensor where there is no gradient."""

    tensor: torch.Tensor | None
    written: torch.cuda.Event | None = None


class Mail:
    """What is posted by one thread and taken by one other, each once, under names that they agree on."""

    def __init__(self) -> None:
        self._there: dict[Hashable, SentTensor] = {}
        self._changed = threading.Condition()
        self._stopped = False

    def post(self, sent: Mapping[Hashable, SentTensor]) -> None:
        """Leave some; never waits."""
        with self._changed:
            self._there.update(sent)
            self._changed.notify_all()

    def take(self, names: Iterable[Hashable]) -> list[SentTensor]:
        """Wait until all are there and take them away.

        Raises:
            Stopped: if nobody will post any more.
        """
        names = list(names)
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or all(name in self._there for name in names))
            if self._stopped:
                raise Stopped
            return [self._there.pop(name) for name in names]

    def stop(self) -> None:
        """Let everybody go who waits, now or later."""
        with self._changed:
            self._stopped = True
            self._there.clear()
            self._changed.notify_all()
