"""Rows of a server whose prompts are computed on some GPUs and tokens on the others (disaggregated).

::

    prompts   n GPUs    the ways of which none computes more prompts a second, and each of them sooner
    link                the cache of a prompt, which the GPUs of a replica send at the same time
    tokens    the rest  every way and batch that the prompts keep up with, and the batch at which both are as fast

The time to the first token is that of its prompt, of the cache's transfer, and of one step; the time for each token is
that of a step. Arrivals are even, so no request waits where the pools are matched.

Sources: Zhong et al., DistServe, OSDI 2024; Patel et al., Splitwise, ISCA 2024.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from costmodels.generation.rates import Rates
from costmodels.generation.serving import PromptPool, Requests, Served, Steady, steady_state_apart
from costmodels.generation.work import LayerShare, Machine
from planner.generation.question import GenerationQuestion
from planner.generation.serving_row import ServingGPUs, ServingRow, batches, ways_of

MOST_POOLS = 16  # numbers of GPUs for prompts that are tried, evenly spread
PLACES = 2  # prompts that a GPU has room for: one that is computed, and one whose cache is on its way


@dataclass(frozen=True)
class _Apart:
    """The question and the GPUs that the rows share."""

    question: GenerationQuestion
    machine: Machine
    rates: Rates
    room: float

    @property
    def link_bytes_per_s(self) -> float:
        """Bandwidth between the pools, which are in one host or in several."""
        within = len(self.question.cluster.devices) <= self.machine.host_devices
        return self.machine.link_bytes_per_s if within else self.machine.far_bytes_per_s


_States: TypeAlias = dict[tuple[LayerShare, int, int], Steady]
"""Steady states of a replica that computes tokens, by its division, its stages and its batch."""


class _TokenWay(NamedTuple):
    """A division of the GPUs that compute tokens, and its steady state for each batch that memory has room for."""

    served: Served
    replicas: int
    states: tuple[tuple[int, Steady], ...]


def rows_apart(
    question: GenerationQuestion, machine: Machine, rates: Rates, room: float, most: int | None
) -> list[ServingRow]:
    """Return a row for each division of both pools and each batch up to the one at which they are as fast.

    Args:
        question: the model, the GPUs and the requests.
        machine: peaks of a GPU and of its links.
        rates: the engine on them.
        room: bytes of a GPU for weights and caches.
        most: sequences at once; None for any.
    """
    apart, gpus = _Apart(question, machine, rates, room), len(question.cluster.devices)
    step = max(1, gpus // MOST_POOLS)
    rows: list[ServingRow] = []
    known: _States = {}
    for prompts in range(step, gpus, step):
        pools = _prompt_pools(apart, prompts)
        for way in _token_ways(apart, gpus - prompts, most, known) if pools else ():
            for pool in pools:
                rows += _matched(apart, way, pool)
    return rows


def _prompt_pools(apart: _Apart, gpus: int) -> list[PromptPool]:
    """Return the ways to compute prompts on some GPUs, of which none is beaten in rate and in time."""
    tokens = apart.question.prompt
    found: list[tuple[float, float, int, PromptPool]] = []
    for number, served in enumerate(ways_of(apart.question, apart.machine, gpus)):
        if served.places(apart.room, tokens) >= PLACES:
            pool = PromptPool(served, apart.rates, gpus // served.devices, apart.link_bytes_per_s)
            prompt_s = pool.prompt_s(tokens)
            found.append((prompt_s, -pool.workers * served.share.data * served.pipeline / prompt_s, number, pool))
    best: list[PromptPool] = []
    reached = 0.0
    for _, minus_rate, _, pool in sorted(found, key=lambda each: each[:3]):
        if minus_rate < reached:
            best.append(pool)
            reached = minus_rate
    return best


def _token_ways(apart: _Apart, gpus: int, most: int | None, known: _States) -> Iterator[_TokenWay]:
    """Yield every division of some GPUs for tokens; a replica is the same in pools of any size."""
    for served in ways_of(apart.question, apart.machine, gpus):
        replicas = gpus // served.devices
        sizes = tuple(batches(served, apart.room, apart.question, gpus, most))
        for size in sizes:
            key = (served.share, served.pipeline, size)
            if key not in known:
                known[key] = _state(apart, served, 1, size, None)
        if sizes:
            states = tuple((size, known[served.share, served.pipeline, size]) for size in sizes)
            yield _TokenWay(served, replicas, states)


def _state(apart: _Apart, served: Served, replicas: int, sequences: float, pool: PromptPool | None) -> Steady:
    requests = Requests(apart.question.prompt, apart.question.output, sequences)
    return steady_state_apart(served, apart.rates, requests, apart.room, replicas, pool)


def _matched(apart: _Apart, way: _TokenWay, pool: PromptPool) -> Iterator[ServingRow]:
    """Yield a row for each batch that the prompts keep up with; instead of a larger one, the batch of the match."""
    tokens = apart.question.prompt
    computed = pool.requests_per_s(tokens, way.served, way.replicas)
    before_s = pool.prompt_s(tokens) + pool.transfer_s(tokens, way.served)
    for sequences, state in way.states:
        matched = state.requests_per_s * way.replicas <= computed
        own = state if matched else _state(apart, way.served, way.replicas, sequences, pool)
        if matched or own.running >= 1:
            yield _row(apart, way, pool, own, before_s)
        if not matched:
            return


def _row(apart: _Apart, way: _TokenWay, pool: PromptPool, state: Steady, before_s: float) -> ServingRow:
    served, other, gpus = way.served, pool.served, len(apart.question.cluster.devices)
    tokens_per_s = state.requests_per_s * way.replicas * apart.question.output
    return ServingRow(
        served.devices,
        way.replicas,
        served.share.tensor,
        served.pipeline,
        served.share.data,
        served.share.experts,
        round(state.running * served.share.data * way.replicas),
        before_s + state.token_s,
        state.token_s,
        tokens_per_s / gpus,
        served.weight_bytes(),
        state.running * served.cache_bytes(apart.question.context),
        ServingGPUs(
            other.devices,
            pool.workers,
            other.share.tensor,
            other.pipeline,
            other.share.data,
            other.share.experts,
        ),
    )
