"""Ranks that are started by hand."""

import os
import socket
import sys
from contextlib import ExitStack
from pathlib import Path

from costmodels.host.stores import HERE
from planner.runtime.closing import Closing
from planner.runtime.distributed.inference.launcher import ROOT
from tests.children import Process, running


class Started(Closing):
    """Ranks of this host, each started by hand."""

    def __init__(self) -> None:
        with socket.create_server((HERE, 0)) as free:
            self.port = free.getsockname()[1]
        self.ranks: list[Process] = []
        self._undo = ExitStack()

    def start(self, rank: int, n_ranks: int, *arguments: str | Path, **more: str) -> Process:
        told = {"RANK": str(rank), "WORLD_SIZE": str(n_ranks), "MASTER_ADDR": HERE, "MASTER_PORT": str(self.port)}
        command = [sys.executable, "-m", "planner", "rank", *map(str, arguments)]
        environment = {**os.environ, **told, "OMP_NUM_THREADS": "1", **more}
        process = self._undo.enter_context(running(command, env=environment, cwd=ROOT))
        self.ranks.append(process)
        return process

    def ends(self) -> list[tuple[int, str, str]]:
        """Exit status, output and errors of each; one that does not end is killed by `running`."""
        said = [process.communicate() for process in self.ranks]
        return [(process.returncode, *texts) for process, texts in zip(self.ranks, said, strict=True)]

    def close(self) -> None:
        self._undo.close()
