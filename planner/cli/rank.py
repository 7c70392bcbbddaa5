"""The command of a rank: ``python -m planner rank PLAN MODEL``, with the environment that torchrun makes.

Rank 0 has the coordinator: it checks, measures and prints as `planner run` does. The others work until it is done.
"""

import argparse
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path

import torch
from torch.distributed import Store  # type: ignore[attr-defined]  # it is public

from costmodels.host.affinity import usable_cores
from graphs.common.errors import InputError, fallbacks_said, foreign_code, kind_and_line
from graphs.program.generation import GenerationProgram
from graphs.program.program import Program
from planner.cli.endings import status_of
from planner.cli.files import check_writes
from planner.cli.generation_run import check_generate, generate_with
from planner.cli.numbers import positive_seconds
from planner.cli.progress import Progress
from planner.cli.rank_model import import_part
from planner.cli.run_ import declare_generate, declare_measuring, run_with
from planner.cli.statuses import BROKEN, DONE, INTERRUPTED
from planner.cli.streams import complain, documents_alone
from planner.parallelism.closed_form.config_file import is_config
from planner.plans.files import load_plan
from planner.plans.plan import Plan
from planner.runtime.checkpoint.shards import is_shards
from planner.runtime.distributed.inference.launcher import READY
from planner.runtime.distributed.inference.rank import Rank, Worker
from planner.runtime.distributed.transport.connections import ProcessGroup
from planner.runtime.distributed.transport.layout import COORDINATOR, rank_layout
from planner.runtime.distributed.transport.liveness import FAR_SILENT_S
from planner.runtime.distributed.transport.rendezvous import (
    MEET_S,
    PeerInfo,
    RankEnvironment,
    asking,
    join,
    meet,
    open_store,
    peer_info_of,
    tell_trouble,
)
from planner.runtime.matching import check_runs, rewritten_for
from planner.runtime.stages.numerics import use_numerics
from planner.runtime.stages.random_generators import check_seed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one rank and return its exit status."""
    options = _parser().parse_args(arguments)
    if options.hosted:
        threading.Thread(target=_end_with_input, daemon=True).start()
    who = f"planner: rank {os.environ.get('RANK', '?')}"

    def say(line: str) -> None:
        complain(f"{who}: {line}")

    def command() -> int:
        with documents_alone(options.json), fallbacks_said(say):
            return _run(options, RankEnvironment.of(os.environ))

    try:
        return status_of(command, say)
    except KeyboardInterrupt:
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="planner rank",
        description="Run one rank of a plan in several processes, as torchrun starts it.",
        epilog="MODEL may be a folder from planner shard: then each rank reads only its own part.",
    )
    declare_measuring(parser)
    declare_generate(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--force", action="store_true", help="overwrite existing files")
    parser.add_argument(
        "--silence",
        type=positive_seconds,
        default=FAR_SILENT_S,
        metavar="S",
        help=f"seconds without a heartbeat after which a rank of another host counts as failed ({FAR_SILENT_S:g})",
    )
    parser.add_argument(
        "--import",
        dest="modules",
        action="append",
        default=[],
        metavar="MODULE",
        help="for shards: a module with classes that the model takes or returns, such as transformers.modeling_outputs",
    )
    parser.add_argument("--hosted", metavar="NUMERICS", help=argparse.SUPPRESS)  # started by planner.start
    return parser


def _run(options: argparse.Namespace, rank_environment: RankEnvironment) -> int:
    """Run the coordinator or another rank."""
    if is_config(options.plan):
        from planner.cli.hybrid_rank import train_row  # late: plans do without

        return train_row(options, rank_environment)
    if options.hosted:
        use_numerics(options.hosted)
    progress = Progress(shown=rank_environment.rank == COORDINATOR and not (options.hosted or options.json))
    progress.step("meeting the other ranks at the store", 0, 0)
    store = open_store(rank_environment)
    progress.step("reading the plan", 0, 0)
    with _telling(store, rank_environment.rank):
        if rank_environment.rank == COORDINATOR:
            check_writes(options)
        if options.hosted:
            with asking():
                store.wait([READY])
        for module in options.modules:
            _import_classes(module)
        plan = load_plan(options.plan)
        if not options.hosted:
            check_generate(plan, options)
    if plan.workload.trains:
        from planner.cli.training_rank import serve_rank, train_rank  # late: inference does without

        with _telling(store, rank_environment.rank):
            if not options.hosted:
                return train_rank(options, plan, store, rank_environment)
            serve_rank(options, plan, store, rank_environment.rank)
            return BROKEN
    with _telling(store, rank_environment.rank):
        progress.step("importing the model", 0, 0)
        program, rank = _take(options, rank_environment, plan)
    progress.step(f"waiting for {rank_environment.n_ranks} ranks", 0, 0)
    group, peer_infos = _joined(options, rank_environment, plan, rank, store)
    progress.clear()
    if rank_environment.rank != COORDINATOR:
        return DONE if Worker(rank).serve(group, peer_infos) else BROKEN
    return _coordinate(options, plan, program, rank, (group, peer_infos))


def _coordinate(
    options: argparse.Namespace,
    plan: Plan,
    program: Program | GenerationProgram,
    rank: Rank,
    joined: tuple[ProcessGroup, tuple[PeerInfo, ...]],
) -> int:
    """Run the model with all ranks, which have joined a group, and print the figures."""
    from planner.cli.console import Console
    from planner.runtime.distributed.inference.coordinator import Coordinator
    from planner.runtime.inference.runner import Runner

    group, peer_infos = joined
    clocks = {number: peer_info.clock for number, peer_info in enumerate(peer_infos)}
    near = [device for device, number in rank.layout.rank_of.items() if clocks[number] == clocks[COORDINATOR]]
    beside = [] if is_shards(Path(options.model)) else [plan.cluster.devices[device] for device in near]
    executor, console = Coordinator(rank, group, peer_infos), Console(json=options.json)
    if isinstance(program, GenerationProgram):
        from planner.runtime.generation.runner import GenerationRunner

        with GenerationRunner(plan, program, executor=executor) as generates:
            return generate_with(generates, options, console, bool(beside))
    with Runner(plan, program, executor, options.seed) as runner:
        return run_with(runner, options, console, beside)


def _import_classes(module: str) -> None:
    """Import a module with classes that the model takes or returns, to which a shard alone does not lead."""
    with foreign_code(
        lambda error: f"the module '{module}' cannot be imported here ({kind_and_line(error)}); install it"
    ):
        import_module(module)


def _take(
    options: argparse.Namespace, rank_environment: RankEnvironment, plan: Plan
) -> tuple[Program | GenerationProgram, Rank]:
    """Import this rank's part of the model, on the cores of its devices."""
    layout = rank_layout(plan, rank_environment.n_ranks)
    mine = [plan.cluster.devices[device] for device in layout.devices[rank_environment.rank]]
    cores = {core for device in mine for core in device.cores}
    if rank_environment.rank != COORDINATOR and cores and cores <= usable_cores():  # else `Rank` names the missing
        os.sched_setaffinity(0, cores)
        torch.set_num_threads(len(cores))
    check_seed(options.seed)
    device = (layout.devices[rank_environment.rank] or plan.placement.used)[0]
    program = import_part(plan, options, plan.cluster.devices[device].name)
    if not isinstance(program, GenerationProgram):
        program = rewritten_for(plan, program)
        check_runs(plan, program)
    return program, Rank(plan, program, layout, rank_environment.rank, options.silence)


def _joined(
    options: argparse.Namespace, rank_environment: RankEnvironment, plan: Plan, rank: Rank, store: Store
) -> tuple[ProcessGroup, tuple[PeerInfo, ...]]:
    """Meet the other ranks and connect to them."""
    with ExitStack() as undo:
        undo.callback(rank.engine.close)
        own = peer_info_of(plan, options.seed)
        peer_infos = meet(store, rank.layout, rank_environment.rank, own, timeout_s=MEET_S)
        group = join(store, rank_environment.rank, rank_environment.n_ranks, rank_environment.address)
        undo.pop_all()
    return group, peer_infos


@contextmanager
def _telling(store: Store, rank: int) -> Iterator[None]:
    """Tell the other ranks why this one cannot start."""
    try:
        yield
    except InputError as error:
        tell_trouble(store, rank, str(error))
        raise


def _end_with_input() -> None:
    """End this process at once when the process at the other end of its stdin ends."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(BROKEN)
