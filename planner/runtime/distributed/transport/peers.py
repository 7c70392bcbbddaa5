"""Peers: the connections of a rank, and a thread that checks that the peers live."""

import threading
import time
from collections.abc import Iterable, Mapping

from planner.runtime.distributed.transport.connections import Connection
from planner.runtime.distributed.transport.liveness import LOOK_S
from planner.runtime.distributed.transport.messages import Kind, Message


class Peers:
    """All connections of a rank, by peer, from `join` to `part`."""

    def __init__(self) -> None:
        self.connections: Mapping[int, Connection] = {}
        self._parted = threading.Event()
        self._watching: threading.Thread | None = None

    def join(self, connections: Mapping[int, Connection], name: str) -> None:
        """Start the connections, and watch them on a thread of that name."""
        self.connections = connections
        for connection in connections.values():
            connection.start()
        self._watching = threading.Thread(target=self._watch, name=name, daemon=True)
        self._watching.start()

    def send(self, peer: int, message: Message) -> None:
        """Send a message to one peer."""
        self.connections[peer].send(message)

    def tell(self, message: Message) -> None:
        """Send a message to all peers."""
        for connection in self.connections.values():
            connection.send(message)

    def leave(self, timeout_s: float) -> None:
        """Say goodbye, and wait for the peers that live to do so too."""
        self.tell(Message(Kind.BYE))
        _wait_for((connection for connection in self.connections.values() if not connection.given_up), timeout_s)

    def part(self, timeout_s: float) -> None:
        """Drop the connections, when the peers have left or are gone; their threads have a moment to notice."""
        _wait_for(self.connections.values(), timeout_s)
        self._parted.set()
        if self._watching is not None:
            self._watching.join()
        self.connections = {}  # with the last of them, the sockets close

    def _watch(self) -> None:
        while not self._parted.wait(LOOK_S):
            for connection in self.connections.values():
                connection.check()


def _wait_for(connections: Iterable[Connection], timeout_s: float) -> None:
    """Wait until goodbyes have been said on all these connections, or they are lost."""
    end_s = time.monotonic() + timeout_s
    for connection in connections:
        connection.join(end_s)
