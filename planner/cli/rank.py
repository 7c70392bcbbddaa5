"""The command of a rank: ``python -m planner.runtime PLAN MODEL``, with the environment that torchrun makes.

Rank 0 has the front: it checks, measures and prints as `planner run` does. The others work until it is done.
"""

import argparse
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # they are public

from costmodels.calibrate.pinned import usable_cores
from graphs.errors import InputError
from graphs.importers.program import Program
from planner.cli.models import import_for
from planner.cli.numbers import positive_seconds
from planner.cli.run_ import declare_measuring, run_with
from planner.cli.statuses import BAD_INPUT, BROKEN, DONE, INTERRUPTED
from planner.planfile import load_plan
from planner.plans import Plan
from planner.runtime.processes.failures import RankError
from planner.runtime.processes.hosting import READY, STORE_S
from planner.runtime.processes.layout import FRONT, layout_of, used_devices
from planner.runtime.processes.life import FAR_SILENT_S
from planner.runtime.processes.meeting import MEET_S, Card, asking, card_of, join, meet, tell_trouble
from planner.runtime.processes.rank import Rank
from planner.runtime.processes.wires import Group
from planner.runtime.processes.worker import Worker
from planner.runtime.runner import check_runs
from planner.runtime.shards import is_shards, read_shard
from planner.runtime.training.seeds import check_seed


@dataclass(frozen=True)
class Seat:
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
    def of(environment: Mapping[str, str]) -> "Seat":
        """What torchrun says.

        Raises:
            InputError: if it does not.
        """
        try:
            return Seat(
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
    """Run one rank; returns the exit status."""
    options = _parser().parse_args(arguments)
    if options.hosted:
        threading.Thread(target=_end_with_input, daemon=True).start()
    who = f"rank {os.environ.get('RANK', '?')}"
    try:
        return _run(options, Seat.of(os.environ))
    except InputError as error:
        print(f"planner: {who}: {error}", file=sys.stderr)
        return BAD_INPUT
    except RankError as error:
        print(f"planner: {who}: {error}", file=sys.stderr)
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
    parser.add_argument(
        "--silence",
        type=positive_seconds,
        default=FAR_SILENT_S,
        metavar="S",
        help=f"seconds without a sign of life after which a rank of another host is given up ({FAR_SILENT_S:g})",
    )
    parser.add_argument("--hosted", action="store_true", help=argparse.SUPPRESS)  # started by planner.start
    return parser


def _run(options: argparse.Namespace, seat: Seat) -> int:
    """Be the front, or one of the others."""
    store = open_store(seat)
    with _telling(store, seat.rank):
        if options.hosted:
            with asking():
                store.wait([READY])
        plan = load_plan(options.plan)
    if plan.workload.trains:
        from planner.cli.training_rank import serve_rank, train_rank

        with _telling(store, seat.rank):
            if not options.hosted:
                return train_rank(options, plan, store, seat)
            serve_rank(options, plan, store, seat.rank)
            return BROKEN
    taken = _take(options, seat, plan, store)
    if seat.rank == FRONT:
        return _lead(options, taken)
    return DONE if Worker(taken.rank).serve(taken.group, taken.cards) else BROKEN


def _lead(options: argparse.Namespace, taken: "Taken") -> int:
    """The front: what `planner run` does."""
    from planner.cli.console import Console
    from planner.runtime.processes.front import Front
    from planner.runtime.runner import Runner

    clocks = {rank: card.clock for rank, card in enumerate(taken.cards)}
    near = [device for device, rank in taken.rank.layout.rank_of.items() if clocks[rank] == clocks[FRONT]]
    beside = [] if is_shards(Path(options.model)) else [taken.plan.cluster.devices[device] for device in near]
    front = Front(taken.rank, taken.group, taken.cards, Elsewhere())
    with Runner(taken.plan, taken.program, front, options.seed) as runner:
        return run_with(runner, options, Console(json=options.json), beside)


@dataclass(frozen=True)
class Taken:
    """What a rank has when all are joined."""

    plan: Plan
    program: Program
    rank: Rank
    group: Group
    cards: tuple[Card, ...]


def _take(options: argparse.Namespace, seat: Seat, plan: Plan, store: Store) -> Taken:
    """Bring our part of the model here, meet the others, connect.

    Raises:
        InputError: if we, or another rank, cannot start; the others are told.
        RankError: if one does not come.
    """
    with _telling(store, seat.rank):
        layout = layout_of(plan, seat.n_ranks)
        if seat.rank != FRONT:
            _keep_to(layout.devices[seat.rank], plan)
        check_seed(options.seed)
        program = _program(options, plan, layout.devices[seat.rank])
        check_runs(plan, program)
        rank = Rank(plan, program, layout, seat.rank, options.silence)
    with ExitStack() as undo:
        undo.callback(rank.engine.close)
        cards = meet(store, layout, seat.rank, card_of(plan, options.seed), timeout_s=MEET_S)
        group = join(store, seat.rank, seat.n_ranks, seat.address)
        undo.pop_all()
    return Taken(plan, program, rank, group, cards)


def open_store(seat: Seat) -> Store:
    """The store where the ranks meet.

    Raises:
        RankError: if nobody serves it.
    """
    serves = seat.rank == FRONT and not seat.served
    try:
        store = TCPStore(
            seat.address, seat.port, is_master=serves, wait_for_workers=False, timeout=timedelta(seconds=STORE_S)
        )
    except RuntimeError as error:
        raise RankError(
            f"no store at {seat.address}:{seat.port}: {str(error).splitlines()[0]}; see that rank 0 runs there"
        ) from error
    return PrefixStore(f"planner {seat.attempt}", store) if seat.attempt else store


@contextmanager
def _telling(store: Store, rank: int) -> Iterator[None]:
    """Tell the others why we do not come."""
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
        return read_shard(folder, plan.cluster.devices[number].name)[1]
    return import_for(plan, options)


def _keep_to(devices: tuple[int, ...], plan: Plan) -> None:
    """Keep all threads of this process to the cores of its devices, and have a thread of PyTorch's own for each."""
    cores = {core for device in devices for core in plan.cluster.devices[device].cores}
    if cores and cores <= usable_cores():  # else the rank says what is missing
        os.sched_setaffinity(0, cores)
        torch.set_num_threads(len(cores))


class Elsewhere:
    """The other ranks, started by somebody else."""

    def fate(self, rank: int) -> str:  # noqa: ARG002  # nobody knows
        """Unknown."""
        return ""

    def close(self) -> None:
        """Whoever started them ends them."""


def _end_with_input() -> None:
    """End at once when the process that has the other end of our input does, whatever we are in the middle of."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(BROKEN)
