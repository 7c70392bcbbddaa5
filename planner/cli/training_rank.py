"""The command of a rank whose plan is for training: check the gradients, and compare what was predicted with the clock.

All ranks take every step together. Rank 0 decides whether there is one more, and prints.
"""

import argparse
import os
import statistics
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]  # it is public

from costmodels.units import format_seconds
from graphs.errors import InputError
from graphs.importers.program import Program
from planner.cli.console import Console
from planner.cli.run_ import WRONG, figure_rows, figures_document
from planner.cli.training_run import compare_step
from planner.compare import Comparison
from planner.plans import Plan
from planner.runs import save_run
from planner.runtime.engine import StageError
from planner.runtime.processes.failures import RankError
from planner.runtime.processes.pipelining import PipelineTrainer
from planner.runtime.shards import is_shards, read_shard
from planner.runtime.training.check import (
    TINY_STEPS,
    Difference,
    differing,
    example_batches,
    mean_square,
    unsplit_gradients,
)
from planner.runtime.training.prepare import layout_of
from planner.runtime.training.step import MicroBatch
from simulator.timeline import Timeline

FIRST = 0  # the rank that prints
LIMIT_S = 600.0  # for a rank to come, and for one to wait for another in a step


def train_rank(options: argparse.Namespace, plan: Plan, store: Store, rank: int, n_ranks: int) -> int:
    """Train some steps with a loss that any network has; returns the exit status.

    Args:
        options: ``model``, a model or a folder of shards, ``batch``, ``rounds``, ``output`` and ``json``.
        plan: for training.
        store: where the ranks meet.
        rank: our own.
        n_ranks: how many there are.

    Raises:
        InputError: if there are more or fewer ranks than devices, or ours cannot run here.
        RankError: if another rank fails.
    """
    devices = layout_of(plan).devices
    if n_ranks != len(devices):
        names = ", ".join(device.name for device in devices)
        raise InputError(f"the plan trains on {len(devices)} devices ({names}); start as many ranks, not {n_ranks}")
    if _is_here():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the name of the host need not resolve
    backend = "cpu:gloo,cuda:nccl" if any(device.cuda is not None for device in devices) else "gloo"
    limit = timedelta(seconds=LIMIT_S)
    dist.init_process_group(backend, store=store, rank=rank, world_size=n_ranks, timeout=limit)
    try:
        program = _program(options, plan, devices[rank].name)
        batches = example_batches(program, plan.workload.micro_batches)
        with PipelineTrainer(plan, program, mean_square, TINY_STEPS[plan.workload.optimizer]) as trainer:
            differences = None if is_shards(Path(options.model)) else _differences(trainer, batches)
            steps_s, recorded = _measured(trainer, batches, options.rounds)
        if rank != FIRST:
            return 0
        if options.output is not None:
            save_run(plan, recorded, options.output)
        return _show(plan, steps_s, compare_step(plan, recorded, statistics.median(steps_s)), differences, options)
    except StageError as error:
        print(f"planner: rank {rank}: {error}", file=sys.stderr)
        traceback.print_exception(error.__cause__, file=sys.stderr)
        return WRONG
    except RankError:
        raise
    except RuntimeError as error:  # from torch.distributed
        raise RankError(f"another rank is gone: {str(error).splitlines()[0]}; see what it says") from error
    finally:
        dist.destroy_process_group()


def _is_here() -> bool:
    """Whether all ranks are on this host, as far as torchrun tells."""
    return os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")


def _program(options: argparse.Namespace, plan: Plan, device: str) -> Program:
    """Our shard, where there are shards; else the whole model."""
    folder = Path(options.model)
    if is_shards(folder):
        return read_shard(folder, device)[1]
    from graphs.importers.load import load_program

    return load_program(options.model, options.batch or plan.workload.batch, training=True)


def _differences(trainer: PipelineTrainer, batches: Sequence[MicroBatch]) -> list[Difference]:
    """Of the gradients on all ranks, each of which compares its own with the unsplit model's."""
    trainer.go_through(batches)
    alone = replace(layout_of(trainer.plan), devices=(trainer.device,))  # this process keeps to its own device
    expected = unsplit_gradients(trainer.program, alone, mean_square, batches)
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, differing(expected, trainer.gradients()))
    trainer.update()
    return sorted((one for part in every for one in part), key=lambda one: -one.share)


def _measured(trainer: PipelineTrainer, batches: Sequence[MicroBatch], rounds: int) -> tuple[list[float], Timeline]:
    """Seconds of some steps, behind one that does not count, and a recording of one more."""
    steps_s = []
    for _ in range(1 + rounds):
        dist.barrier()
        start_s = time.perf_counter()
        trainer.step_through(batches)
        steps_s.append(time.perf_counter() - start_s)
    trainer.record()
    trainer.step_through(batches)
    return steps_s[1:], trainer.timeline()


def _show(
    plan: Plan,
    steps_s: Sequence[float],
    comparison: Comparison,
    differences: Sequence[Difference] | None,
    options: argparse.Namespace,
) -> int:
    """Predicted and measured steps, then every device and stage, then whether the gradients are the same."""
    console = Console(json=options.json)
    work, step_s = plan.workload, statistics.median(steps_s)
    samples = work.batch * work.micro_batches
    wrong = [one for one in differences or () if one.share > one.allowed]
    document = {
        "bit_equal": None if differences is None else not differences,
        "differences": [str(one) for one in differences or ()],
        "predicted": {"samples_per_s": plan.samples_per_s, "step_s": plan.latency_s},
        "measured": {"samples_per_s": samples / step_s, "step_s": step_s},
        "against_prediction": figures_document(comparison),
    }
    rows = [
        (what, f"{samples / seconds:.4g}", format_seconds(seconds))
        for what, seconds in (("predicted", plan.latency_s), ("measured", step_s))
    ]
    title = f"{plan.graph.name}, steps of {work.micro_batches} micro-batches of {work.batch} by {work.schedule}"
    console.show(document, title, ("", "samples/s", "step"), rows)
    if not console.json:
        heads = ("a step; per micro-batch", "predicted", "measured", "off by")
        console.show({}, "predicted against measured", heads, list(figure_rows(comparison)))
    for one in wrong:
        console.error(str(one))
    if differences is None:
        console.say("no rank has the whole model, so the gradients were not compared; planner verify does")
    elif not differences:
        console.say("the gradients are bit-equal to the unsplit model's")
    elif not wrong:
        console.say(f"the gradients are the unsplit model's within {differences[0].share:.1g} of their norm")
    return WRONG if wrong else 0
