"""Launcher: starts the processes of a plan's ranks on this host and ends them, whatever happens.

Each process reads its shard from a folder that is removed when all have met. It ends with its standard input, so that
none outlives the process that started it, however that ended.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path

from costmodels.host.stores import HERE, served_store
from graphs.program.calls import modules_of_operators
from graphs.program.files import modules_of
from graphs.program.generation import GenerationProgram
from graphs.program.program import Program
from planner.plans.plan import Plan
from planner.runtime.checkpoint.shard_folder import PLAN
from planner.runtime.checkpoint.shards import write_shards
from planner.runtime.distributed.inference.coordinator import Coordinator
from planner.runtime.distributed.inference.rank import Rank
from planner.runtime.distributed.transport.layout import COORDINATOR, RankLayout, rank_layout
from planner.runtime.distributed.transport.liveness import STOPPED_S, stopped_state
from planner.runtime.distributed.transport.rendezvous import LOOK_S, MEET_S, PeerInfo, join, meet, peer_info_of
from planner.runtime.stages.numerics import numerics_to_text

END_S = 1.0  # for a process to end by itself, or after a signal
FATE_S = 1.0  # for a process to end after its connection broke
READY = "shards"  # key in the store once they are written
FOLDER = "planner-"  # prefix of folders for processes
ROOT = Path(__file__).parents[4]


def start_processes(
    plan: Plan, program: Program | GenerationProgram, timeout_s: float = MEET_S, seed: int = 0
) -> Coordinator:
    """Give each device of a plan a process of its own on this host; the coordinator is in the calling process.

    Raise InputError if a process cannot have its device or its weights, RankError if one ends or does not come within
    ``timeout_s``.
    """
    layout = rank_layout(plan, len(plan.placement.used) + 1)
    with ExitStack() as undo:
        folder = tempfile.TemporaryDirectory(prefix=FOLDER)
        undo.callback(folder.cleanup)  # again, if it failed: what is closed until then leaves descriptors for it
        launcher = LocalLauncher(layout, plan, program, Path(folder.name))
        undo.callback(launcher.close)
        rank = Rank(plan, program, layout, COORDINATOR)
        peer_infos = launcher.meet(peer_info_of(plan, seed), timeout_s)
        group = join(launcher.store, COORDINATOR, len(layout.devices), HERE)
        coordinator = Coordinator(rank, group, peer_infos, launcher.fate, launcher.close)
        undo.callback(coordinator.close)
        folder.cleanup()
        undo.pop_all()
    return coordinator


class LocalLauncher:
    """Processes of this host, one for each rank except the coordinator's. All ranks meet at ``store``."""

    def __init__(self, layout: RankLayout, plan: Plan, program: Program | GenerationProgram, folder: Path) -> None:
        """Start the processes, which read shards from the folder; raise InputError if these cannot be written."""
        shards = folder / "shards"
        self.store = served_store()
        self._layout = layout
        self._logs = {rank: tempfile.TemporaryFile() for rank in layout.others}  # noqa: SIM115  # until `close`
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._stopped = Counter[int]()  # looks in a row at which a rank was stopped
        self._reading = threading.Lock()  # logs, which another thread may close
        with ExitStack() as undo:
            undo.callback(self.close)
            for rank in layout.others:
                n_threads = max(len(plan.cluster.devices[device].cores) for device in layout.devices[rank])
                self._processes[rank] = subprocess.Popen(
                    rank_command(shards, program),
                    env=environment(rank, len(layout.devices), self.store.port, max(1, n_threads)),
                    stdin=subprocess.PIPE,
                    stdout=self._logs[rank],
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C is for the one who ends them
                )
            write_shards(plan, program, shards)  # they load torch meanwhile
            self.store.set(READY, "")
            undo.pop_all()

    def meet(self, peer_info: PeerInfo, timeout_s: float) -> tuple[PeerInfo, ...]:
        """Wait for all ranks, and return the information about them; see `rendezvous.meet`."""
        return meet(self.store, self._layout, COORDINATOR, peer_info, self.ended, timeout_s)

    def gone(self) -> tuple[int, ...]:
        """Return the ranks whose processes have ended."""
        return tuple(rank for rank, process in self._processes.items() if process.poll() is not None)

    def ended(self) -> str:
        """Return which process has ended, or stays stopped, and how; empty while all run."""
        for rank in self.gone():
            return f"{self._layout.title(rank)} ended before it came: {self.fate(rank)}"
        for rank, process in self._processes.items():
            why = stopped_state(process.pid)
            self._stopped[rank] = self._stopped[rank] + 1 if why else 0
            if self._stopped[rank] * LOOK_S >= STOPPED_S:
                return f"{self._layout.title(rank)} did not come: {why}; start again"
        return ""

    def fate(self, rank: int) -> str:
        """Return how a process ended, with the last line that it wrote; empty if it has not."""
        process = self._processes[rank]
        try:
            status = process.wait(FATE_S)
        except subprocess.TimeoutExpired:
            return ""
        if status < 0:
            return f"killed by {signal.Signals(-status).name}"
        lines, log = [], self._logs[rank]
        with self._reading:
            if not log.closed:
                log.seek(0)
                lines = log.read().decode(errors="replace").strip().splitlines()
        return f"it ended with status {status}" + (f" ({lines[-1]})" if lines else "")

    def close(self) -> None:
        """End all processes within a few seconds. May be called again."""
        for process in self._processes.values():
            if process.stdin is not None:
                process.stdin.close()  # which ends it
        for end in (subprocess.Popen.terminate, subprocess.Popen.kill):
            end_s = time.monotonic() + END_S
            for process in self._processes.values():
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, end_s - time.monotonic()))
                if process.poll() is None:
                    end(process)
        for process in self._processes.values():
            process.wait()
        with self._reading:
            for log in self._logs.values():
                log.close()


def rank_command(shards: Path, program: Program | GenerationProgram) -> list[str]:
    """Return the command that runs a rank.

    It imports the modules of the classes that the model takes and returns, and of operators that are defined in Python.
    """
    program = program.decode if isinstance(program, GenerationProgram) else program
    modules = modules_of(program.in_spec) | modules_of(program.out_spec) | modules_of_operators(program.graph.ops)
    imports = [f"--import={name}" for name in sorted(modules)]
    start = [sys.executable, "-m", "planner", "rank", "--hosted", numerics_to_text(), *imports]
    return [*start, str(shards / PLAN), str(shards)]


def environment(rank: int, n_ranks: int, port: int, n_threads: int) -> dict[str, str]:
    """Return the environment of a rank: torchrun's variables, and how many threads libraries start."""
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": str(n_ranks),
        "MASTER_ADDR": HERE,
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": str(n_threads),
        "MKL_NUM_THREADS": str(n_threads),
        "PYTHONPATH": os.pathsep.join(path),
    }
