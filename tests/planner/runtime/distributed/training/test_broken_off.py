"""Ranks of a user's own program, of which one fails, ends, is stopped or leaves: the others are told, and go on."""

import os
import signal
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
import torch.distributed as dist

from costmodels.host.stores import served_store, visited_store
from planner.runtime.distributed.training.trainer import PipelineTrainer
from planner.runtime.errors import RankError, RemoteError
from tests.planner.runtime.distributed.pipelines import CONTEXT, Case, data_of, loss_of, plan_for, program_for, sgd
from tests.planner.runtime.small import PATIENCE_S

pytestmark = pytest.mark.slow

HALVES = Case("transformer", ("layers.1.first",), 2)
LONG = timedelta(days=1)  # torch waits
AT = 3  # step, before which it happens


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def lose_data() -> None:
    raise KeyError("sample 7")


FATES: Mapping[str, Callable[[], None]] = {"stop": stop, "die": die, "lose_data": lose_data}


def train(case: Case, victim: int, fate: str, rank: int, port: int, end: Connection) -> None:
    """Steps without end, but for one rank; says how they end."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", store=visited_store(port), rank=rank, world_size=case.n_ranks, timeout=LONG)
    program = program_for(case)
    try:
        with PipelineTrainer(plan_for(case, program), program, loss_of, sgd) as trainer:
            for number in range(1_000_000):
                if number == AT:
                    if rank == victim:
                        FATES[fate]()
                    elif fate == "stop":
                        dist.barrier()  # what a program waits for itself
                trainer.step(*data_of(case, number))
    except Exception as error:  # whatever it is
        end.send((type(error), str(error), type(error.__cause__), str(error.__cause__)))
    dist.destroy_process_group()


def ends_of(case: Case, victim: int, fate: str) -> list[Any]:
    """What each rank says at its end; None for one that cannot."""
    context, said, store = CONTEXT, [], served_store()
    with ExitStack() as undo:
        for rank in range(case.n_ranks):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=train, args=(case, victim, fate, rank, store.port, theirs))
            process.start()
            theirs.close()
            undo.callback(process.join)
            undo.callback(process.kill)
            said.append((process, ours))
        found: list[Any] = []
        for rank, (process, end) in enumerate(said):
            if rank == victim and fate != "lose_data":
                found.append(None)
                continue
            assert end.poll(PATIENCE_S)
            found.append(end.recv())
            process.join(PATIENCE_S)
            assert process.exitcode == 0
    return found


def test_a_rank_that_is_stopped() -> None:
    """Its replica waits for it, and the other one for that."""
    replicas = Case("transformer", HALVES.cuts, 2, replicas=2)
    *others, _ = ends_of(replicas, 3, "stop")
    why = "rank 3 ('cpu1') is gone: it is stopped; start all ranks again"
    assert {told[:3] for told in others} == {(RankError, why, RuntimeError)}


def test_a_rank_that_is_killed() -> None:
    told, _ = ends_of(HALVES, 1, "die")
    assert told[:2] == (RankError, "rank 1 ('cpu1') is gone: its connection broke; start all ranks again")


def test_a_rank_that_leaves_by_an_error() -> None:
    """The other one has its traceback."""
    left, other = ends_of(HALVES, 0, "lose_data")
    assert left[:2] == (KeyError, "'sample 7'")
    assert other[:3] == (RankError, "rank 0 ('cpu0') failed: KeyError: 'sample 7'; start all ranks again", RemoteError)
    assert other[3].startswith("\nTraceback (most recent call last):\n")
    assert other[3].endswith("KeyError: 'sample 7'\n")
