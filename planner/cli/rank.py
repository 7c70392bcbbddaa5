"""The command of a rank: ``python -m planner.runtime PLAN MODEL``, with the environment that torchrun makes.

Rank 0 has the coordinator: it checks, measures and prints as `planner run` does. The others work until it is done.
"""

import argparse
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from pathlib import Path

import torch
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # they are public

from costmodels.host.affinity import usable_cores
from graphs.errors import InputError, first_line
from graphs.program.program import Program
from planner.cli.files import check_writes
from planner.cli.models import import_for
from planner.cli.numbers import positive_seconds
from planner.cli.run_ import declare_measuring, run_with
from planner.cli.statuses import BAD_INPUT, BROKEN, DONE, INTERRUPTED
from planner.cli.streams import complain, documents_alone
from planner.plans.files import load_plan
from planner.plans.plan import Plan
from planner.runtime.checkpoint.shards import is_shards, read_shard
from planner.runtime.distributed.inference.launcher import READY, STORE_S
from planner.runtime.distributed.inference.rank import Rank
from planner.runtime.distributed.inference.worker import Worker
from planner.runtime.distributed.transport.connections import ProcessGroup
from planner.runtime.distributed.transport.failures import RankError
from planner.runtime.distributed.transport.layout import COORDINATOR, layout_of, used_devices
from planner.runtime.distributed.transport.liveness import FAR_SILENT_S
from planner.runtime.distributed.transport.rendezvous import (
    MEET_S,
    PeerInfo,
    asking,
    join,
    meet,
    peer_info_of,
    tell_trouble,
)
from planner.runtime.inference.runner import check_runs
from planner.runtime.stages.numerics import use_numerics
from planner.runtime.stages.random_generators import check_seed


@dataclass(frozen=True)
class RankEnvironment:
    """Who we are among the ranks, and where they meet.

    Attributes:
        rank: our number.
        n_ranks: how many there are.
        address: of the store's host.
        port: of the store.
        served: whether the store is there already; else rank 0 serves it.
        attempt: how often torchrun has started all anew.
    """

    rank: int
    n_ranks: int
    address: str
    port: int
    served: bool
    attempt: int = 0

    @staticmethod
    def of(environment: Mapping[str, str]) -> "RankEnvironment":
        """What torchrun says.

        Raises:
            InputError: if it does not.
        """
        try:
            return RankEnvironment(
                rank=int(environment["RANK"]),
                n_ranks=int(environment["WORLD_SIZE"]),
                address=environment["MASTER_ADDR"],
                port=int(environment["MASTER_PORT"]),
                served=environment.get("TORCHELASTIC_USE_AGENT_STORE", "False") == "True",
                attempt=int(environment.get("TORCHELASTIC_RESTART_COUNT", "0")),
            )
        except (KeyError, ValueError) as error:
            raise InputError(
                f"the environment does not say which rank we are ({type(error).__name__}: {error}); start with "
                "torchrun --nproc-per-node=N -m planner.runtime PLAN MODEL, or with planner run --processes"
            ) from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one rank and return its exit status."""
    options = _parser().parse_args(arguments)
    if options.hosted:
        threading.Thread(target=_end_with_input, daemon=True).start()
    who = f"rank {os.environ.get('RANK', '?')}"
    try:
        with documents_alone(options.json):
            return _run(options, RankEnvironment.of(os.environ))
    except InputError as error:
        complain(f"planner: {who}: {error}")
        return BAD_INPUT
    except RankError as error:
        complain(f"planner: {who}: {error}")
        return BROKEN
    except KeyboardInterrupt:
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m planner.runtime",
        description="One rank of a plan in several processes, as torchrun starts it.",
        epilog="MODEL may be a folder from planner shard: then each rank reads its own part alone.",
    )
    declare_measuring(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--force", action="store_true", help="overwrite what is there")
    parser.add_argument(
        "--silence",
        type=positive_seconds,
        default=FAR_SILENT_S,
        metavar="S",
        help=f"seconds without a heartbeat after which a rank of another host is given up ({FAR_SILENT_S:g})",
    )
    parser.add_argument(
        "--import",
        dest="modules",
        action="append",
        default=[],
        metavar="MODULE",
        help="a module with classes that the model takes or returns, such as transformers.modeling_outputs, for shards",
    )
    parser.add_argument("--hosted", metavar="NUMERICS", help=argparse.SUPPRESS)  # started by planner.start
    return parser


def _run(options: argparse.Namespace, rank_environment: RankEnvironment) -> int:
    """Run the coordinator or another rank."""
    if options.hosted:
        use_numerics(options.hosted)
    store = open_store(rank_environment)
    with _telling(store, rank_environment.rank):
        if rank_environment.rank == COORDINATOR:
            check_writes(options)
        if options.hosted:
            with asking():
                store.wait([READY])
        _import(options.modules)
        plan = load_plan(options.plan)
    if plan.workload.trains:
        from planner.cli.training_rank import serve_rank, train_rank

        with _telling(store, rank_environment.rank):
            if not options.hosted:
                return train_rank(options, plan, store, rank_environment)
            serve_rank(options, plan, store, rank_environment.rank)
            return BROKEN
    taken = _take(options, rank_environment, plan, store)
    if rank_environment.rank == COORDINATOR:
        return _lead(options, taken)
    return DONE if Worker(taken.rank).serve(taken.group, taken.peer_infos) else BROKEN


def _import(modules: Sequence[str]) -> None:
    """Modules that the caller names: a shard alone leads to none."""
    for name in modules:
        try:
            import_module(name)
        except Exception as error:  # whatever the module's code raises
            raise InputError(
                f"the module '{name}' cannot be imported here ({type(error).__name__}: {first_line(error)}); install it"
            ) from error


def _lead(options: argparse.Namespace, taken: "Taken") -> int:
    """The coordinator: what `planner run` does."""
    from planner.cli.console import Console
    from planner.runtime.distributed.inference.coordinator import Coordinator
    from planner.runtime.inference.runner import Runner

    clocks = {rank: peer_info.clock for rank, peer_info in enumerate(taken.peer_infos)}
    near = [device for device, rank in taken.rank.layout.rank_of.items() if clocks[rank] == clocks[COORDINATOR]]
    beside = [] if is_shards(Path(options.model)) else [taken.plan.cluster.devices[device] for device in near]
    coordinator = Coordinator(taken.rank, taken.group, taken.peer_infos, Elsewhere())
    with Runner(taken.plan, taken.program, coordinator, options.seed) as runner:
        return run_with(runner, options, Console(json=options.json), beside)


@dataclass(frozen=True)
class Taken:
    """What a rank has when all are joined."""

    plan: Plan
    program: Program
    rank: Rank
    group: ProcessGroup
    peer_infos: tuple[PeerInfo, ...]


def _take(options: argparse.Namespace, rank_environment: RankEnvironment, plan: Plan, store: Store) -> Taken:
    """Import our part of the model, meet the other ranks and connect to them.

    Raises:
        InputError: if we, or another rank, cannot start; then all other ranks get the reason.
        RankError: if another rank does not come.
    """
    with _telling(store, rank_environment.rank):
        layout = layout_of(plan, rank_environment.n_ranks)
        if rank_environment.rank != COORDINATOR:
            _keep_to(layout.devices[rank_environment.rank], plan)
        check_seed(options.seed)
        program = _program(options, plan, layout.devices[rank_environment.rank])
        check_runs(plan, program)
        rank = Rank(plan, program, layout, rank_environment.rank, options.silence)
    with ExitStack() as undo:
        undo.callback(rank.engine.close)
        peer_infos = meet(store, layout, rank_environment.rank, peer_info_of(plan, options.seed), timeout_s=MEET_S)
        group = join(store, rank_environment.rank, rank_environment.n_ranks, rank_environment.address)
        undo.pop_all()
    return Taken(plan, program, rank, group, peer_infos)


def open_store(rank_environment: RankEnvironment) -> Store:
    """The store where the ranks meet.

    Raises:
        RankError: if nobody serves it.
    """
    serves = rank_environment.rank == COORDINATOR and not rank_environment.served
    try:
        store = TCPStore(
            rank_environment.address,
            rank_environment.port,
            is_master=serves,
            wait_for_workers=False,
            timeout=timedelta(seconds=STORE_S),
        )
    except RuntimeError as error:
        raise RankError(
            f"no store at {rank_environment.address}:{rank_environment.port}: {str(error).splitlines()[0]}; "
            "see that rank 0 runs there"
        ) from error
    return PrefixStore(f"planner {rank_environment.attempt}", store) if rank_environment.attempt else store


@contextmanager
def _telling(store: Store, rank: int) -> Iterator[None]:
    """Tell the other ranks why this one cannot start."""
    try:
        yield
    except InputError as error:
        tell_trouble(store, rank, str(error))
        raise


def _program(options: argparse.Namespace, plan: Plan, devices: tuple[int, ...]) -> Program:
    """Our shard, where there are shards; else the whole model."""
    folder = Path(options.model)
    if is_shards(folder):
        number = devices[0] if devices else used_devices(plan)[0]
        program = read_shard(folder, plan.cluster.devices[number].name)[1]
        torch.set_default_dtype(program.default_dtype)  # the process is ours
        return program
    return import_for(plan, options)


def _keep_to(devices: tuple[int, ...], plan: Plan) -> None:
    """Pin all threads of this process to the cores of its devices, and give PyTorch a thread for each core."""
    cores = {core for device in devices for core in plan.cluster.devices[device].cores}
    if cores and cores <= usable_cores():  # else `Rank` reports the missing cores
        os.sched_setaffinity(0, cores)
        torch.set_num_threads(len(cores))


class Elsewhere:
    """The other ranks, which another program has started."""

    def fate(self, rank: int) -> str:  # noqa: ARG002  # unknown for every rank
        """How a rank ended: unknown."""
        return ""

    def close(self) -> None:
        """Do nothing: the program that has started the ranks ends them."""


def _end_with_input() -> None:
    """End this process at once when the process at the other end of its stdin ends."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(BROKEN)
