"""Two hosts on one machine: network namespaces joined by a cable with a latency and a bandwidth.

The cable is this process: it reads packets from a TUN device of one namespace and writes them to that of the other when
they would arrive (https://docs.kernel.org/networking/tuntap.html), as ``tc netem`` would, which not every kernel has.
"""

import ctypes
import fcntl
import os
import runpy
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from tests.children import LIMIT_S, ran

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
CLONE_NEWNET, CLONE_NEWPID, CLONE_NEWNS = 0x40000000, 0x20000000, 0x00020000
MS_REC, MS_PRIVATE = 0x4000, 0x40000
PR_SET_PDEATHSIG = 1
MTU = 65_000  # bytes; the larger, the fewer packets have to pass through Python
DEVICE = "cable"
LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Host:
    """One of them.

    Attributes:
        namespace: its name.
        address: under which the other reaches it.
        cut: when it is set, nothing arrives over the cable any more.
    """

    namespace: str
    address: str
    cut: threading.Event

    def command(self, words: Sequence[str], alone: bool = False) -> list[str]:
        """The command that runs a Python module there; alone, it sees no processes but its own, as on a real host."""
        return [sys.executable, "-m", __name__, self.namespace, "alone" if alone else "beside", *words]


@contextmanager
def two_hosts(latency_s: float, bytes_per_s: float) -> Iterator[tuple[Host, Host]]:
    """Two hosts and a cable between them, as long as the block lasts.

    Args:
        latency_s: one way.
        bytes_per_s: each way.

    Raises:
        OSError: if this machine does not let us.
    """
    cut = threading.Event()
    hosts = tuple(Host(f"planner-{os.getpid()}-{i}", f"10.77.0.{i + 1}", cut) for i in range(2))
    with ExitStack() as undo:
        ends = []
        for host in hosts:
            _run("ip", "netns", "add", host.namespace)
            undo.callback(_run, "ip", "netns", "del", host.namespace)
            ends.append(_open_tun(host.namespace))
            undo.callback(os.close, ends[-1])
            within = ("ip", "-n", host.namespace)
            _run(*within, "addr", "add", f"{host.address}/24", "dev", DEVICE)
            _run(*within, "link", "set", DEVICE, "mtu", str(MTU), "up")
            _run(*within, "link", "set", "lo", "up")
        for a, b in (ends, reversed(ends)):
            undo.enter_context(_direction((a, b), latency_s, bytes_per_s, cut))
        yield hosts[0], hosts[1]


@contextmanager
def _direction(ends: tuple[int, int], latency_s: float, bytes_per_s: float, cut: threading.Event) -> Iterator[None]:
    """Packets from one end to the other: one after the other, each in time."""
    src, dst = ends
    over = threading.Event()
    on_way: SimpleQueue[tuple[float, bytes] | None] = SimpleQueue()

    def take() -> None:
        free_s = 0.0
        while not over.is_set():
            if select.select([src], [], [], 0.05)[0]:
                packet = os.read(src, MTU + 100)
                free_s = max(free_s, time.perf_counter()) + len(packet) / bytes_per_s
                on_way.put((free_s + latency_s, packet))
        on_way.put(None)

    def give() -> None:
        while (each := on_way.get()) is not None:
            due_s, packet = each
            time.sleep(max(0.0, due_s - time.perf_counter()))
            if not cut.is_set():
                os.write(dst, packet)

    threads = [threading.Thread(target=work, daemon=True) for work in (take, give)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(LIMIT_S)


def _open_tun(namespace: str) -> int:
    """A new TUN device in a namespace, and its other end here."""
    found: list[int | OSError] = []

    def enter() -> None:  # on a thread of its own, because a thread stays where it has gone
        try:
            _go_to(namespace)
            end = os.open("/dev/net/tun", os.O_RDWR)
            fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH", DEVICE.encode(), IFF_TUN | IFF_NO_PI))
            found.append(end)
        except OSError as error:
            found.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join(LIMIT_S)
    if isinstance(found[0], OSError):
        raise found[0]
    return found[0]


def _go_to(namespace: str) -> None:
    """Let this thread, and those that it starts, be in a network namespace."""
    with Path(f"/var/run/netns/{namespace}").open() as there:
        _done(LIBC.setns(there.fileno(), CLONE_NEWNET))


def _go_alone() -> None:
    """Go on in a child that sees no processes but its own; this process ends with it, and it with this process."""
    _done(LIBC.unshare(CLONE_NEWPID | CLONE_NEWNS))
    if child := os.fork():
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF)
    _done(LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    _done(LIBC.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))
    _done(LIBC.mount(b"proc", b"/proc", b"proc", 0, None))


def _done(status: int) -> None:
    if status:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _run(*words: str) -> None:
    try:
        ran(words)
    except subprocess.CalledProcessError as error:
        raise OSError(f"{' '.join(words)}: {error.stderr.strip()}") from error


if __name__ == "__main__":
    where, kind, *sys.argv = sys.argv[1:]
    _go_to(where)
    if kind == "alone":
        _go_alone()
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
