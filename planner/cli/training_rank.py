"""The command of a rank whose plan is for training: check the gradients, and compare what was predicted with the clock.

All ranks take every step together. Rank 0 decides whether there is one more, and prints.
"""

import argparse
import os
import statistics
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]  # they are public

from costmodels.units import format_rate, format_seconds
from graphs.program.pieces import Pieces
from graphs.program.program import Program
from planner.cli.console import Console
from planner.cli.figures import figures_document, show_figures
from planner.cli.rank_model import import_part
from planner.cli.statuses import BROKEN, DONE
from planner.cli.streams import complain
from planner.cli.training_run import STEP, compare_step, show_gradients, steps_of
from planner.plans.compare import Comparison
from planner.plans.plan import Plan
from planner.plans.runs import MeasuredRun, save_run
from planner.runtime.checkpoint.shards import is_shards, read_shard
from planner.runtime.distributed.training.process_groups import check_ranks
from planner.runtime.distributed.training.trainer import PipelineTrainer
from planner.runtime.distributed.training.worker import CommandLoop, read_tools
from planner.runtime.distributed.transport.backends import backend_for
from planner.runtime.distributed.transport.connections import FOREVER
from planner.runtime.distributed.transport.layout import training_layout
from planner.runtime.distributed.transport.rendezvous import RankEnvironment, meet, peer_info_of
from planner.runtime.errors import StageError
from planner.runtime.training.check import (
    TINY_STEPS,
    GradientDifference,
    differing,
    example_batches,
    mean_square,
    reference_gradients,
)
from planner.runtime.training.prepare import replica_count, stage_layout
from planner.runtime.training.step import MicroBatch
from simulator.timeline import Timeline

FIRST = 0  # the rank that prints
LIMIT_S = 600.0  # for a rank to come


def train_rank(options: argparse.Namespace, plan: Plan, store: Store, rank_environment: RankEnvironment) -> int:
    """Train some steps with the mean square as the loss, and return the exit status.

    Raise InputError if there are more or fewer ranks than devices, or this rank cannot run here; RankError if another
    rank fails, is stopped or sends no heartbeat.
    """
    devices = stage_layout(plan).devices
    check_ranks(plan, stage_layout(plan), rank_environment.n_ranks)
    program = import_part(plan, options, devices[rank_environment.rank % len(devices)].name)
    assert isinstance(program, Program), "a language model that generates is not trained"
    if os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE"):  # all ranks are on this host
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the name of the host need not resolve
    meet(store, training_layout(plan), rank_environment.rank, peer_info_of(plan), timeout_s=LIMIT_S)
    _join(plan, store, rank_environment.rank, rank_environment.n_ranks)
    try:
        return _train(options, plan, program)
    except StageError as error:
        complain(f"planner: rank {rank_environment.rank}: {error}")
        traceback.print_exception(error.__cause__, file=sys.stderr)
        return BROKEN
    finally:
        dist.destroy_process_group()


def _train(options: argparse.Namespace, plan: Plan, program: Program) -> int:
    """Train, when all ranks have met."""
    console = Console(json=options.json)
    batches = example_batches(program, plan.workload.micro_batches * replica_count(plan))
    optimizer = TINY_STEPS[plan.workload.optimizer]
    with PipelineTrainer(plan, program, mean_square, optimizer, silence_s=options.silence) as trainer:
        differences = None if is_shards(Path(options.model)) else _differences(trainer, batches)
        steps_s, recorded = _measured(trainer, batches, options.rounds, console)
    if dist.get_rank() != FIRST:
        return DONE
    if options.output is not None:
        save_run(plan, MeasuredRun(recorded, statistics.median(steps_s)), options.output)
    return _show(plan, steps_s, compare_step(plan, recorded, statistics.median(steps_s)), differences, console)


def serve_rank(options: argparse.Namespace, plan: Plan, store: Store, rank: int) -> None:
    """Run a rank that `planner.train` has started, until something fails; the coordinator gets the reason.

    MODEL is a folder of shards. The rank is 1 or more; the coordinator, which trains nothing, is 0. Raise InputError if
    the shard, the loss or the optimizer of this rank cannot be read; RankError if another rank does not come.
    """
    folder, layout = Path(options.model), training_layout(plan, coordinator=True)
    (device,) = layout.devices[rank]
    program = read_shard(folder, plan.cluster.devices[device].name)[1]
    tools = read_tools(folder.parent)
    meet(store, layout, rank, peer_info_of(plan))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the name of the host need not resolve

    def make() -> PipelineTrainer:
        _join(plan, PrefixStore("training", store), rank - 1, len(layout.others))
        return PipelineTrainer(plan, program, tools.loss, tools.optimizer, tools.trainer_options)

    try:
        CommandLoop(store, folder.parent, rank).serve(make)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _join(plan: Plan, store: Store, rank: int, n_ranks: int) -> None:
    """Initialise torch.distributed without a timeout for messages: heartbeats tell whether another rank lives."""
    backend = backend_for(any(device.cuda is not None for device in stage_layout(plan).devices))
    dist.init_process_group(backend, store=store, rank=rank, world_size=n_ranks, timeout=timedelta(seconds=LIMIT_S))
    dist.distributed_c10d._set_pg_timeout(FOREVER)


def _differences(trainer: PipelineTrainer, batches: Sequence[MicroBatch]) -> list[GradientDifference]:
    """Return the differences of all gradients; each rank compares its own gradients with the reference model's."""
    alone = replace(stage_layout(trainer.plan), devices=(trainer.device,))  # this process uses only its own device
    expected = Pieces.of(trainer.program).divided(reference_gradients(trainer.program, alone, mean_square, batches))
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, differing(expected, trainer.gradients(batches)))
    return sorted((one for part in every for one in part), key=lambda one: -one.share)


def _measured(
    trainer: PipelineTrainer, batches: Sequence[MicroBatch], rounds: int, console: Console
) -> tuple[list[float], Timeline]:
    """Return the seconds of some steps after a first one that does not count, and a recording of one more step."""
    steps_s = []
    for number in range(1 + rounds):
        if dist.get_rank() == FIRST:
            console.on_step("measuring", number, 1 + rounds)
        dist.barrier()
        steps_s.append(trainer.step_s(batches))
    return steps_s[1:], trainer.recorded(batches)


def _show(
    plan: Plan,
    steps_s: Sequence[float],
    comparison: Comparison,
    differences: Sequence[GradientDifference] | None,
    console: Console,
) -> int:
    """Predicted and measured steps, then every device and stage, then whether the gradients are the same."""
    work, step_s = plan.workload, statistics.median(steps_s)
    samples = work.batch * work.micro_batches
    document = {
        "bit_equal": None if differences is None else not differences,
        "differences": [str(one) for one in differences or ()],
        "predicted": {"samples_per_s": plan.samples_per_s, "step_s": plan.latency_s},
        "measured": {"samples_per_s": samples / step_s, "step_s": step_s},
        "against_prediction": figures_document(comparison),
    }
    rows = [
        (what, format_rate(samples / seconds), format_seconds(seconds))
        for what, seconds in (("predicted", plan.latency_s), ("measured", step_s))
    ]
    console.show(document, steps_of(plan), ("", "samples/s", "step"), rows)
    show_figures(comparison, STEP, console)
    if differences is None:
        console.say("no rank has the whole model, so the gradients were not compared; planner verify does")
        return DONE
    return show_gradients(differences, console)
