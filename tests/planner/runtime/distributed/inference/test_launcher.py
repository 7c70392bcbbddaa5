"""Real processes of this host: they answer, they fail, they are killed, and nothing of them is left."""

import errno
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module
from planner.plans.plan import Plan
from planner.runtime.distributed.inference import launcher as launcher
from planner.runtime.distributed.inference.launcher import environment, start_processes
from planner.runtime.errors import RankError, StageError
from planner.runtime.start import start
from simulator.placement import Placement
from tests.children import ran, running
from tests.planner.runtime.bits import differences
from tests.planner.runtime.distributed.leftovers import descriptors, left, processes, wait_until_closed
from tests.planner.runtime.forks import in_fork, refusal
from tests.planner.runtime.small import (
    CORE,
    PATIENCE_S,
    Tied,
    alternating,
    begin,
    cpu,
    fresh_arguments,
    make_plan,
    program_of,
    reference,
    with_device,
)

SOON_S = 15.0  # 5 s and less on an idle machine; whoever had to wait for silence would take 30
GOOD, BAD = torch.zeros(1, 5, dtype=torch.int64), torch.full((1, 5), 6)  # the embedding knows the words 0 to 5


def plan_of(name: str = "tied") -> Plan:
    program = program_of(name)
    return make_plan(program, Placement(tuple(i % 2 for i in range(len(program.graph.ops)))))


@pytest.fixture(autouse=True)
def _nothing_is_left(apart: None) -> Iterator[None]:  # noqa: ARG001  # makes what is ours known
    before, had, open_before = left(), processes(), descriptors()
    yield
    assert processes() <= had
    assert left() <= before  # somebody else's may go meanwhile
    wait_until_closed(open_before)


def of_one_buffer(n_batches: int) -> Iterator[torch.Tensor]:
    """Words that are written over each other, and then one that the embedding does not know."""
    buffer = torch.empty(1, 5, dtype=torch.int64)
    for i in range(n_batches):
        yield buffer.fill_(i % 6)
    yield buffer.fill_(6)


@pytest.mark.slow
@pytest.mark.attack("answer")
@pytest.mark.usefixtures("afresh")
def test_the_whole_life_of_a_runner() -> None:
    program, plan = program_of("tied"), plan_of()
    with start(plan, program, processes=True) as runner:
        assert len(processes() & set(runner.pids)) == 2
        assert len(list(Path("/proc/self/task").iterdir())) < 50
        for seed in range(3):
            (ids,), _ = arguments = fresh_arguments("tied", seed)
            assert differences(reference(program, arguments), runner(ids)) == []
        assert len(list(runner.stream([GOOD] * 50))) == 50
        with pytest.raises(StageError, match="stage 0 on 'cpu0' failed in micro-batch 53: IndexError: index out of"):
            runner(BAD)
        runner(GOOD)
        stream = runner.stream(of_one_buffer(20))
        results = list(islice(stream, 20))
        with pytest.raises(StageError, match="IndexError: index out of"):
            next(stream)
        expected = [reference(program, ((torch.full((1, 5), i % 6),), {})) for i in range(20)]
        assert differences(expected, results) == []
        runner.record()
        runner(GOOD)
        assert {span.resource for span in runner.timeline().spans} == {
            "cpu0",
            "cpu1",
            "cpu0 → cpu1",
            "cpu1 → cpu0",
        }
        for pid in runner.pids:
            cores = ran(["taskset", "-pc", str(pid)]).stdout
            assert cores.split()[-1] == str(CORE)
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            assert b"OMP_NUM_THREADS=1" in variables
    runner.close()
    with pytest.raises(RuntimeError, match="the runner is closed; start a new one"):
        runner(GOOD)


class Halved(nn.Module):
    """Whose result has the default dtype."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return ids / 2 + torch.zeros(5)


@pytest.fixture
def _wide() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(False)


@pytest.mark.slow
@pytest.mark.attack("process")
@pytest.mark.usefixtures("_wide")
def test_a_runner_that_nobody_closes_is_no_forks_and_ends_with_the_last_reference() -> None:
    open_before = descriptors()
    program = program_from_module(Halved(), (GOOD,))
    runner = start(make_plan(program, alternating(program, 2)), program, processes=True)
    assert in_fork(partial(runner, GOOD)) == refusal("runner")
    assert in_fork(runner.close) == "None"
    torch.use_deterministic_algorithms(True)
    with pytest.raises(InputError, match=r"torch\.use_deterministic_algorithms is \[True, False\] here, and was"):
        runner(GOOD)
    torch.use_deterministic_algorithms(False)
    assert differences(Halved()(GOOD), runner(GOOD)) == []  # as the default dtype has gone to the processes
    del runner
    wait_until_closed(open_before)  # its processes have ended before


@pytest.mark.slow
def test_a_killed_process_is_told_at_once_and_it_can_be_started_again() -> None:
    program, plan = program_of("tied"), plan_of()
    for victim in (0, 1):
        with start(plan, program, processes=True) as runner:
            stream = runner.stream([GOOD] * 1_000_000)
            for _ in range(10):
                next(stream)
            os.kill(runner.pids[victim], signal.SIGKILL)
            killed_s = time.monotonic()
            with pytest.raises(RankError) as error:
                for _ in stream:
                    pass
            assert time.monotonic() - killed_s < SOON_S
            name = plan.cluster.devices[victim].name
            assert str(error.value) == (
                f"rank {victim + 1} ('{name}') is gone: killed by SIGKILL; start the runner again"
            )
            with pytest.raises(RankError, match="is gone"):
                runner(GOOD)
            closing_s = time.monotonic()
        assert time.monotonic() - closing_s < SOON_S


@pytest.mark.slow
def test_a_stopped_process_is_told_soon() -> None:
    with start(plan_of(), program_of("tied"), processes=True) as runner:
        waiting = begin(lambda: list(runner.stream([GOOD] * 1_000_000)))
        os.kill(runner.pids[1], signal.SIGSTOP)
        stopped_s = time.monotonic()
        error = waiting.exception(PATIENCE_S)
        assert time.monotonic() - stopped_s < SOON_S
        assert isinstance(error, RankError)
        assert str(error) == "rank 2 ('cpu1') is gone: it is stopped; start the runner again"
        closing_s = time.monotonic()
    assert time.monotonic() - closing_s < 2 * SOON_S


@pytest.mark.slow
def test_a_stopped_process_does_not_keep_the_runner_from_closing() -> None:
    with start(plan_of(), program_of("tied"), processes=True) as runner:
        os.kill(runner.pids[1], signal.SIGSTOP)
        waiting = begin(lambda: runner(GOOD))
        closing_s = time.monotonic()
    assert time.monotonic() - closing_s < 2 * SOON_S  # it is killed after 4
    assert isinstance(waiting.exception(PATIENCE_S), RuntimeError)


PROGRAM = """
import os, signal, sys
import torch
import planner
from tests.planner.runtime.distributed.inference.test_launcher import GOOD, plan_of, program_of

if __name__ == "__main__":
    with planner.start(plan_of(), program_of("tied"), processes=True) as runner:
        runner(GOOD)
        print(*runner.pids, flush=True)
        for _ in runner.stream(GOOD for _ in range(10**9)):
            pass
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize(("sent", "status"), [(signal.SIGKILL, -9), (signal.SIGINT, 1)])
def test_the_processes_end_with_the_one_that_started_them(sent: int, status: int, tmp_path: Path) -> None:
    (tmp_path / "starter.py").write_text(PROGRAM, encoding="utf-8")
    variables = os.environ | {"PYTHONPATH": str(launcher.ROOT)}
    with running([sys.executable, "-m", "starter"], cwd=tmp_path, env=variables) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 2
        parent.send_signal(sent)
        _, errors = parent.communicate(timeout=PATIENCE_S)
        assert parent.returncode in (status, -2 if sent == signal.SIGINT else status)
        assert sent != signal.SIGINT or "KeyboardInterrupt" in errors
    end_s = time.monotonic() + SOON_S
    while any(map(alive, pids)) and time.monotonic() < end_s:
        time.sleep(0.01)
    assert not any(map(alive, pids))


@pytest.mark.slow
def test_a_device_that_is_not_here() -> None:
    program = program_of("tied")
    far = with_device(plan_of(), 1, cpu("cpu1", cores=(CORE + 4096,)))
    with pytest.raises(InputError) as error:
        start(far, program, processes=True)
    assert str(error.value).startswith(
        f"rank 2 ('cpu1') cannot start: device 'cpu1' is bound to core {CORE + 4096}, which this process may not use"
    )


def test_a_model_without_weights_starts_no_process() -> None:
    from graphs.importers.from_torch import program_from_module

    with torch.device("meta"):
        program = program_from_module(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
    with pytest.raises(InputError, match="has a shape but no values"):
        start(make_plan(program, Placement((0,) * len(program.graph.ops))), program, processes=True)


def test_a_plan_for_another_model_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "LocalLauncher", None)
    with pytest.raises(InputError, match="the plan is for 'Tied'"):
        start(plan_of(), program_of("branches"), processes=True)


def test_a_process_that_ends_before_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        launcher, "rank_command", lambda *_: [sys.executable, "-c", "print('first', flush=True); exit('no luck')"]
    )
    with pytest.raises(RankError) as error:
        start_processes(plan_of(), program_of("tied"))
    # both do; whoever is seen first is told
    assert re.match(
        r"rank (1 \('cpu0'\)|2 \('cpu1'\)) ended before it came: it ended with status 1 \(no luck\)", str(error.value)
    )


def test_a_process_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "rank_command", lambda *_: ["sleep", "100"])
    with pytest.raises(RankError, match=r"rank 1 \('cpu0'\) did not come within 1 s; see that its process runs"):
        start_processes(plan_of(), program_of("tied"), timeout_s=0.6)


@pytest.mark.attack("process")
def test_a_process_that_is_stopped_before_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"]
    monkeypatch.setattr(launcher, "rank_command", lambda *_: stop)
    with pytest.raises(RankError, match=r"rank (1 \('cpu0'\)|2 \('cpu1'\)) did not come: it is stopped; start again"):
        start_processes(plan_of(), program_of("tied"))


@pytest.mark.attack("file")
def test_a_folder_that_cannot_be_removed_at_first_goes_with_the_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Removing a folder takes a descriptor, and there may be none before the processes have ended."""

    def remove(*args: Any, **options: Any) -> None:
        if processes():
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        rmtree(*args, **options)

    rmtree = shutil.rmtree
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(shutil, "rmtree", remove)
    with pytest.raises(OSError, match="Too many open files"):
        start_processes(plan_of(), program_of("tied"))
    assert [*tmp_path.iterdir()] == []


def test_what_a_process_is_told() -> None:
    told = environment(2, 3, 4321, 4)
    wanted = {"RANK": "2", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "4321"}
    assert wanted.items() <= told.items()
    assert (told["OMP_NUM_THREADS"], told["MKL_NUM_THREADS"]) == ("4", "4")
    assert told["PYTHONPATH"].split(os.pathsep)[0] == str(launcher.ROOT)


@pytest.mark.slow
def test_start_takes_the_module_itself() -> None:
    torch.manual_seed(0)
    model = Tied().eval()
    with start(plan_of(), model, (GOOD,), processes=True) as runner:
        assert differences(model(GOOD).detach(), runner(GOOD)) == []
