"""One rank of a row of `planner choose`: train some steps with the others, and compare them with the model itself."""

import argparse
import os

import torch
import torch.distributed as dist

from costmodels.units import format_seconds
from graphs.importers.from_config import read_config
from graphs.importers.load import load_program
from graphs.importers.sources import model_file
from planner.cli.console import Console
from planner.cli.run_ import check_row_options
from planner.cli.statuses import BROKEN, DIFFERENT, DONE
from planner.cli.text import count
from planner.parallelism.closed_form.config import ParallelConfig
from planner.parallelism.closed_form.config_file import load_config
from planner.runtime.distributed.transport.backends import backend_for, gpus_for_all
from planner.runtime.distributed.transport.rendezvous import RankEnvironment, open_store
from planner.runtime.errors import StageError
from planner.runtime.hybrid.check import HybridRun, compare_steps


def train_row(options: argparse.Namespace, rank_environment: RankEnvironment) -> int:
    """Train some steps as one rank of a row; rank 0 compares and prints."""
    check_row_options(options)
    config = load_config(options.plan)
    if os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE"):  # all ranks are on this host
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the name of the host need not resolve
    torch.manual_seed(options.seed)  # weights that a factory draws are the same on all ranks
    path = model_file(options.model)
    if path is not None and path.suffix == ".json":
        program = read_config(path, config.shape.samples, training=True, weights=True)
    else:
        program = load_program(options.model, config.shape.samples, True, dict(options.sizes))
    store = open_store(rank_environment)
    rank, n_ranks = rank_environment.rank, rank_environment.n_ranks
    dist.init_process_group(backend_for(gpus_for_all(store, rank, n_ranks)), store=store, rank=rank, world_size=n_ranks)
    try:
        found = compare_steps(config, program, options.rounds)
    except StageError as error:
        Console(json=options.json).error(str(error))
        return BROKEN
    finally:
        dist.destroy_process_group()
    return DONE if found is None else _show(config, program.graph.name, found, Console(json=options.json))


def _show(config: ParallelConfig, name: str, found: HybridRun, console: Console) -> int:
    """Print the steps, then how far losses and gradients are from the model's own; return the exit status."""
    shape = config.shape
    document = {
        "equal": None if found.random else found.equal,
        "losses": list(found.losses),
        "reference_losses": list(found.reference),
        "differences": [str(one) for one in found.differences],
        "step_s": found.step_s,
        "reference_s": found.reference_s,
    }
    samples = shape.data * shape.micro_batches * shape.samples
    steps = f"{name}, steps of {count(samples, 'sample')}"
    title = f"{steps}: {config.title}, ZeRO {config.zero}, recomputing {config.recompute}"
    rows = [
        ("row", str(config.devices), f"{found.losses[-1]:.6g}", format_seconds(found.step_s)),
        ("the model itself", "1", f"{found.reference[-1]:.6g}", format_seconds(found.reference_s)),
    ]
    console.show(document, title, ("", "processes", f"loss of step {len(found.losses)}", "step"), rows)
    worst = max((one.share for one in found.differences), default=0.0)
    within = f"losses within {found.loss_difference:.1g}, gradients within {worst:.1g} of their norm"
    if found.random:
        console.say(
            f"not compared: '{found.random}' draws random numbers, on each rank others; train without dropout to"
        )
        return DONE
    if not found.equal:
        console.error(f"the row trains differently from the model itself: {within}")
        return DIFFERENT
    console.say(f"the row trains as the model itself: {within}")
    return DONE
