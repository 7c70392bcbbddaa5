"""Vigil: the ranks of a training see that all live, over connections of their own.

torch waits for a rank that is stopped, or behind a cut cable, as long as its limit says. So the first rank and each of
the others give signs of life (see `life`), and what the first one misses it tells all. ::

    rank 0 ◄── lives ──► rank 1       rank 2 is silent: 0 tells 1, and both say so
       ▲
       └────── lives ──► rank 2
"""

import threading
from collections.abc import Callable, Sequence

from planner.runtime.closing import Closing
from planner.runtime.processes.layout import FRONT, Layout
from planner.runtime.processes.life import FAR_SILENT_S, LOOK_S, NEAR_SILENT_S, Patience
from planner.runtime.processes.meeting import Card
from planner.runtime.processes.messages import Kind, Message
from planner.runtime.processes.routes import Routes
from planner.runtime.processes.wires import Group, Wire, leave, why_lost

LEAVE_S = 2.0  # for the others to say goodbye
GRACE_S = 1.0  # for the thread that trains to end by itself, and to hear why


class Vigil(Closing):
    """A rank's watch over the others, until it is closed."""

    def __init__(
        self,
        group: Group,
        layout: Layout,
        rank: int,
        cards: Sequence[Card],
        give_up: Callable[[str], None],
        silence_s: float = FAR_SILENT_S,
    ) -> None:
        """Begin.

        Args:
            group: all ranks.
            layout: of them.
            rank: our own number.
            cards: of all ranks.
            give_up: told which rank is gone and why if `GRACE_S` later this is not closed; on a thread of its own.
            silence_s: after which a rank of another host is given up.
        """
        self._layout = layout
        self._give_up = give_up
        self._known = threading.Event()
        self._why = ""
        self._closing = threading.Event()

        def patience(peer: int) -> Patience:
            near = cards[peer].seen_by(cards[rank])
            return Patience(NEAR_SILENT_S, cards[peer].pid) if near else Patience(silence_s)

        peers = layout.others if rank == FRONT else (FRONT,)
        self._wires = {peer: Wire(group, rank, peer, Routes(()), self, patience(peer)) for peer in peers}
        for wire in self._wires.values():
            wire.start()
        self._watching = threading.Thread(target=self._watch, name=f"vigil-{rank}", daemon=True)
        self._watching.start()

    def why(self) -> str:
        """Which rank is gone, and why, as soon as that is known; empty if it is not known within `GRACE_S`."""
        self._known.wait(GRACE_S)
        return self._why

    def hear(self, peer: int, message: Message) -> None:  # noqa: ARG002  # only the first rank says this
        """A word from another rank."""
        if message.kind is Kind.LOST:
            self._learn(message.text)

    def lose(self, peer: int, error: Exception) -> None:
        """A connection is lost."""
        self._learn(f"{self._layout.title(peer)} is gone: {why_lost(error)}; start all ranks again")

    def close(self) -> None:
        """Say goodbye, and wait a little for the others to do so. May be called again."""
        if not self._closing.is_set():
            self._closing.set()
            self._watching.join()
            leave(self._wires.values(), LEAVE_S)
            self._wires = {}  # with the last of them, the sockets close

    def _learn(self, why: str) -> None:
        """A rank is gone; the first one tells the others."""
        if self._known.is_set() or self._closing.is_set():
            return
        self._why = why
        self._known.set()
        for wire in self._wires.values():
            wire.send(Message(Kind.LOST, text=why))
        timer = threading.Timer(GRACE_S, self._end)
        timer.daemon = True
        timer.start()

    def _end(self) -> None:
        if not self._closing.is_set():
            self._give_up(self._why)

    def _watch(self) -> None:
        """See that every peer gives signs of life."""
        while not self._closing.wait(LOOK_S):
            for wire in self._wires.values():
                wire.check()
