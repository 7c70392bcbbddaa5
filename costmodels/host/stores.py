"""Stores of torch.distributed by which processes of this host find each other.

A store of a file would need no port, but processes that wait lock the file so often that another one may not get the
lock for a minute.
"""

import socket
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # it is public

HERE = "127.0.0.1"
STORE_S = 30.0  # for one word with a store


def served_store() -> TCPStore:
    """Return a store that only processes of this host reach; by default torch listens on every network of the host.

    The store is there as long as this object is.
    """
    with socket.socket() as door:
        door.bind((HERE, 0))
        door.listen()
        port, fd = door.getsockname()[1], door.detach()  # the store closes it
    limit = timedelta(seconds=STORE_S)
    return TCPStore(HERE, port, is_master=True, wait_for_workers=False, timeout=limit, master_listen_fd=fd)


def visited_store(port: int) -> TCPStore:
    """Return the connection of another process of this host, or of a thread, to a store that is served at a port."""
    return TCPStore(HERE, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=STORE_S))
