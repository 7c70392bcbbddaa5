"""Processes that tests start: with the signals that a shell starts programs with, and every wait for them ends."""

import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import Any

LIMIT_S = 240.0  # for a process that tests wait for; more than any needs on a loaded machine
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

Command = Sequence[str | Path]


def start_with_default_signals() -> None:
    """Signals that we were started to ignore, as a job in the background is, are ignored by us and not by our children.

    What is ignored stays so in a new program; a handler does not.
    """
    for number in SIGNALS:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def ran(command: Command, check: bool = True, limit_s: float = LIMIT_S, **settings: Any) -> "Completed":
    """A program that has run, with what it printed.

    Args:
        command: its words.
        check: whether another status than 0 is an error.
        limit_s: for it to end; then it is killed.
        settings: as `subprocess.run` takes them.
    """
    settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | settings
    return subprocess.run(command, check=check, timeout=limit_s, **settings)


@contextmanager
def running(
    command: Command, limit_s: float = LIMIT_S, start: "type[Process] | None" = None, **settings: Any
) -> Iterator["Process"]:
    """A program that runs, at most until the block ends: it is killed then, or when the limit is over.

    So whoever reads what it prints, or waits for it, comes to an end.

    Args:
        command: its words.
        limit_s: for it to end.
        start: starts it; `subprocess.Popen` if left out.
        settings: as `subprocess.Popen` takes them.
    """
    settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | settings
    with (start or subprocess.Popen)(command, **settings) as process:
        end = Timer(limit_s, process.kill)
        end.daemon = True
        end.start()
        try:
            yield process
        finally:
            end.cancel()
            process.kill()


Completed = subprocess.CompletedProcess[str]
Process = subprocess.Popen[str]
