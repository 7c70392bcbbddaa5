"""Ranks for tests: threads of this process, joined by gloo as processes would be."""

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import nn

from costmodels.host.stores import HERE, served_store, visited_store
from graphs.program.generation import GenerationProgram
from graphs.program.program import Program
from planner.plans.plan import Plan
from planner.runtime.distributed.inference.coordinator import Coordinator
from planner.runtime.distributed.inference.rank import Rank, Worker
from planner.runtime.distributed.transport.layout import COORDINATOR, RankLayout, rank_layout
from planner.runtime.distributed.transport.rendezvous import join, meet, peer_info_of
from planner.runtime.inference.runner import Runner
from tests.planner.runtime.small import PATIENCE_S, Tied, alternating, begin, make_plan, program_of


@dataclass
class Others:
    """The coordinator of ranks, and what the other ones will say when they end."""

    coordinator: Coordinator
    served: "list[Future[bool]]"
    workers: list[Worker]


@dataclass
class Ranks:
    """A runner, and what its other ranks will say when they end."""

    runner: Runner
    served: "list[Future[bool]]"
    workers: list[Worker]


def rank_of(plan: Plan, program: Program | GenerationProgram, layout: RankLayout, number: int) -> Rank:
    return Rank(plan, program, layout, number)


@contextmanager
def joined(
    plan: Plan, program: Program, beside: bool = False, clocks: tuple[str, ...] = (), seed: int = 0
) -> Iterator[Ranks]:
    """A runner of `coordinated` ranks; arguments as there."""
    with (
        coordinated(plan, program, beside, clocks, seed) as others,
        Runner(plan, program, others.coordinator, seed) as runner,
    ):
        yield Ranks(runner, others.served, others.workers)


@contextmanager
def coordinated(
    plan: Plan,
    program: Program | GenerationProgram,
    beside: bool = False,
    clocks: tuple[str, ...] = (),
    seed: int = 0,
) -> Iterator[Others]:
    """A plan with a rank for each device, and one for the coordinator unless it is beside the first.

    Args:
        plan: of `small`.
        program: its model.
        beside: whether the coordinator is on the rank of the first device.
        clocks: names of the ranks' clocks; one and the same if left out.
        seed: of random operators, which only the coordinator is told.
    """
    layout = rank_layout(plan, len(plan.placement.used) + (not beside))
    n_ranks = len(layout.devices)
    store = served_store()
    ranks = [rank_of(plan, program, layout, number) for number in range(n_ranks)]
    workers = [Worker(rank) for rank in ranks[1:]]

    def peer_info(number: int):  # type: ignore[no-untyped-def]  # a Card
        return replace(peer_info_of(plan), clock=clocks[number]) if clocks else peer_info_of(plan)

    def serve(number: int) -> bool:
        own = visited_store(store.port)
        peer_infos = meet(own, layout, number, peer_info(number))
        return workers[number - 1].serve(join(own, number, n_ranks, HERE), peer_infos)

    served = [begin(lambda number=number: serve(number)) for number in layout.others]  # type: ignore[misc]
    peer_infos = meet(store, layout, COORDINATOR, replace(peer_info(COORDINATOR), seed=seed))
    coordinator = Coordinator(ranks[COORDINATOR], join(store, COORDINATOR, n_ranks, HERE), peer_infos)
    yield Others(coordinator, served, workers)
    for end in served:
        end.result(PATIENCE_S)


@contextmanager
def scattered(name: str, in_flight: int = 4, beside: bool = False) -> Iterator[Runner]:
    """A runner of a network of `small` with every operator on another rank than the one before."""
    program = program_of(name)
    with joined(make_plan(program, alternating(program), in_flight=in_flight), program, beside) as ranks:
        yield ranks.runner


def tied(**_: int) -> tuple[nn.Module, tuple[torch.Tensor]]:
    """A MODEL for the command line: the network of that name in `small`, whatever the batch."""
    torch.manual_seed(0)
    torch.randint(6, (1, 5))  # as the arguments are drawn before the network there
    return Tied().eval(), (torch.zeros(1, 5, dtype=torch.int64),)
