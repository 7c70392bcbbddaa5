"""Ranks of a hybrid training as processes of this host; rank 0 speaks for all."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import IO, NamedTuple

from costmodels.host.affinity import usable_cores
from costmodels.host.stores import served_store
from planner.runtime.distributed.inference.launcher import environment

LOOK_S = 0.05
END_S = 5.0  # for the others once one has failed


class RanksEnd(NamedTuple):
    """How the ranks ended.

    Attributes:
        status: the exit status of the first one that failed, or 0.
        said: what rank 0 wrote to stdout; its stderr is that of this process.
        trouble: what the first one that failed wrote last, if it is not rank 0.
    """

    status: int
    said: str
    trouble: str


def run_ranks(words: Sequence[str], n_ranks: int) -> RanksEnd:
    """Run ``planner rank`` with these words in ``n_ranks`` processes, and wait for them."""
    store = served_store()
    threads = max(1, len(usable_cores()) // n_ranks)
    with ExitStack() as made:
        logs = [made.enter_context(tempfile.TemporaryFile()) for _ in range(n_ranks)]
        ranks = []
        for rank in range(n_ranks):
            own = environment(rank, n_ranks, store.port, threads) | {
                "TORCHELASTIC_USE_AGENT_STORE": "True",
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(n_ranks),
            }
            command = [sys.executable, "-m", "planner", "rank", *words]
            stderr = subprocess.STDOUT if rank else None
            ranks.append(subprocess.Popen(command, env=own, stdin=subprocess.DEVNULL, stdout=logs[rank], stderr=stderr))
            made.callback(_end, ranks[-1])
        while None in (states := [rank.poll() for rank in ranks]) and not any(states):
            time.sleep(LOOK_S)
        failed = next((number for number, state in enumerate(states) if state), 0)
        lines = _text(logs[failed]).splitlines()
        return RanksEnd(abs(states[failed] or 0), _text(logs[0]), lines[-1] if failed and lines else "")


def _text(log: IO[bytes]) -> str:
    log.seek(0)
    return log.read().decode(errors="replace").strip()


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a process that waits for others, perhaps for one that is gone."""
    if process.poll() is None:
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
