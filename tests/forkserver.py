"""Python programs that start as forks of one process that has imported torch, which saves seconds for each.

A program starts as `subprocess` would start it: a child of the test's process, with its own words, folder, environment,
standard streams, signals and exit status. What differs: its modules are there before its environment is, and a
``preexec_fn`` comes to it by name.
"""

import atexit
import ctypes
import gc
import os
import pickle
import runpy
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, AnyStr, Self

PROGRAM = [sys.executable, "-m"]
"""How a command begins that is forked; any other is started as ever."""

ROOT = Path(__file__).parents[1]
MODULES = (
    "torch._dynamo",
    "torch.export._trace",
    "torch.distributed",
    "numba",
    "examples.networks",
    "planner.cli.plan_",
    "planner.cli.rank",
    "planner.cli.run_",
    "planner.cli.shard_",
    "tests.planner.runtime.distributed.pipelines",
    "tests.planner.runtime.small",
)
"""What the server imports."""

PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")  # as `Popen` names their ends
SET_CHILD_SUBREAPER = 36  # of prctl(2)
MESSAGE = 1 << 20  # bytes of the longest request


class Server:
    """The process that is forked; it ends with this one."""

    def __init__(self, requests: socket.socket, wait: Callable[[], object]) -> None:
        """Ask a child of this process by that socket; ``wait`` returns when it has ended."""
        self._socket, self._wait = requests, wait
        self._one = threading.Lock()
        atexit.register(self._close)

    @classmethod
    def started(cls, *modules: str) -> Self:
        """Start a new interpreter that imports these modules."""
        ours, theirs = _pair()
        command = [sys.executable, "-m", __name__, str(theirs.fileno()), *modules]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=ROOT)
        theirs.close()
        return cls(ours, process.wait)

    def fork(self, request: Mapping[str, Any], streams: Sequence[int]) -> int:
        """Start a program, and return the number of its process, whose parent is this process."""
        prctl = ctypes.CDLL(None).prctl
        with self._one:
            prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            socket.send_fds(self._socket, [pickle.dumps(request)], list(streams))
            pid = int(self._socket.recv(64))
            prctl(SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        return pid

    def _close(self) -> None:
        self._socket.close()
        self._wait()


class Forked(subprocess.Popen[AnyStr]):
    """A `subprocess.Popen` whose Python modules start as forks of the server."""

    server: Callable[[], Server] = staticmethod(cache(lambda: Server.started(*MODULES)))

    def _execute_child(self, *given: Any) -> None:
        start = super()._execute_child  # type: ignore[misc]  # typeshed leaves it out
        asked = signature(start).bind(*given).arguments
        words, environment = list(asked["args"]), asked["env"]
        if sys.platform != "linux" or words[:2] != PROGRAM or asked["pass_fds"]:
            start(*given)
            return
        request = {
            "words": [str(word) for word in words[2:]],
            "folder": str(asked["cwd"] or Path.cwd()),
            "environment": dict(os.environ if environment is None else environment),
            "session": asked["start_new_session"],
            "before": asked["preexec_fn"],
        }
        theirs = (asked[name] for name in ("p2cread", "c2pwrite", "errwrite"))
        streams = [own if fd == -1 else fd for own, fd in enumerate(theirs)]
        self.pid = self.server().fork(request, streams)
        self._child_created = True
        self._close_pipe_fds(*(asked[name] for name in PIPES))  # type: ignore[attr-defined]


def fork_as_it_is() -> None:
    """Let Python modules that this process starts be forks of it as it is now, with its limits and patches.

    It has no threads yet.
    """
    ours, theirs = _pair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        become(**serve(theirs))
        sys.exit()
    theirs.close()
    server = Server(ours, lambda: os.waitpid(pid, 0))
    Forked.server = staticmethod(lambda: server)
    subprocess.Popen = Forked  # type: ignore[misc]


def _pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def serve(requests: socket.socket) -> Mapping[str, Any]:
    """Fork for every request; return it in the process that is its own, and exit when there are no more."""
    while True:
        message = b""
        with suppress(ConnectionResetError):  # who asks was killed
            message, streams, _, _ = socket.recv_fds(requests, MESSAGE, 3)
        if not message:
            sys.exit()
        read, write = os.pipe()
        between = os.fork()
        if between == 0:
            between = os.getpid()
            if os.fork():
                os._exit(0)  # so that the program becomes a child of who asked for it
            while os.getppid() == between:
                time.sleep(0.001)
            os.write(write, str(os.getpid()).encode())
            for own, fd in enumerate(streams):
                os.dup2(fd, own)
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
            requests.detach()
            found: Mapping[str, Any] = pickle.loads(message)
            return found
        os.waitpid(between, 0)
        with suppress(BrokenPipeError):  # who asked has ended
            requests.send(os.read(read, 64))
        for fd in (read, write, *streams):
            os.close(fd)


def become(
    words: Sequence[str],
    folder: str,
    environment: Mapping[str, str],
    session: bool,
    before: Callable[[], object] | None,
) -> None:
    """Run a module as the interpreter does with ``-m``."""
    import torch

    if session:
        os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:1] = [folder, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv = ["", *words[1:]]
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(fd, mode, 1 if fd == 2 or os.isatty(fd) else -1, errors=errors, closefd=False)
        for fd, (mode, errors) in enumerate([("r", None), ("w", None), ("w", "backslashreplace")])
    )
    tempfile.tempdir = None
    if "OMP_NUM_THREADS" in environment:
        torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))  # which has been loaded without it
    if before is not None:
        before()
    try:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if not isinstance(end.code, int):
            raise
        threading._shutdown()  # type: ignore[attr-defined]  # the end of an interpreter, but for its modules
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code)


if __name__ == "__main__":
    for module in sys.argv[2:]:
        import_module(module)
    gc.freeze()  # forks copy only what they change
    become(**serve(socket.socket(fileno=int(sys.argv[1]))))
