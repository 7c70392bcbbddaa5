"""Routes: which tensors leave one rank for another, behind which stage.

A stage's tensors leave together, once for each rank that reads any of them. The coordinator gets a payload from the
stages whose outputs the caller gets, and an empty one from stages that no stage waits for: when all have come, every
stage of the micro-batch is done. ::

    [x] coordinator ─► rank 1 [a] ─┬─► rank 2 [b] ─► coordinator      a is read by b and c, and leaves for each once
                                   └─► rank 3 [c] ─► coordinator
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from graphs.ir import Graph, Tensor
from planner.runtime.distributed.transport.layout import COORDINATOR, RankLayout
from planner.runtime.stages.compile import inputs_of, outputs_of
from simulator.stages import Stage

INPUTS = -1  # stands for a stage: the coordinator itself, which writes the inputs of a micro-batch


@dataclass(frozen=True)
class Payload:
    """Tensors that travel together."""

    stage: int  # that writes them, or `INPUTS`
    src: int  # rank that has them
    dst: int  # another rank, which reads them
    tensors: tuple[Tensor, ...]  # may be empty if only the end of the stage matters

    @property
    def n_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.n_bytes for tensor in self.tensors)


@dataclass(frozen=True)
class Routes:
    """All payloads of a micro-batch."""

    payloads: tuple[Payload, ...]  # by stage, then rank

    @cached_property
    def behind(self) -> Mapping[int, tuple[Payload, ...]]:
        """The payloads that leave behind each stage."""
        payloads: dict[int, list[Payload]] = {}
        for payload in self.payloads:
            payloads.setdefault(payload.stage, []).append(payload)
        return {stage: tuple(payloads) for stage, payloads in payloads.items()}

    @cached_property
    def into(self) -> Mapping[tuple[int, int], Payload]:
        """The payloads that arrive, by (stage, destination)."""
        return {(payload.stage, payload.dst): payload for payload in self.payloads}

    def between(self, src: int, dst: int) -> tuple[Payload, ...]:
        """Return the payloads from one rank to another."""
        return tuple(payload for payload in self.payloads if (payload.src, payload.dst) == (src, dst))

    def awaited(self, rank: int) -> tuple[int, ...]:
        """Return the stages elsewhere whose end a rank is told."""
        return tuple(payload.stage for payload in self.payloads if payload.dst == rank and payload.stage != INPUTS)


def find_routes(graph: Graph, stages: Sequence[Stage], layout: RankLayout) -> Routes:
    """Find the payloads of a placement's stages under a layout."""
    written = outputs_of(graph, stages)
    read: dict[int, set[str]] = {rank: set() for rank in range(len(layout.devices))}  # what the stages of a rank read
    waiting: dict[int, set[int]] = {number: set() for number in range(len(stages))}  # ranks that wait for a stage
    for stage in stages:
        rank = layout.rank_of[stage.device]
        read[rank] |= set(inputs_of(graph, stage))
        for needed in stage.needs:
            waiting[needed].add(rank)
    read[COORDINATOR] |= set(graph.outputs)
    for number, ranks in waiting.items():
        if not ranks or not set(graph.outputs).isdisjoint(written[number]):
            ranks.add(COORDINATOR)

    def payload(stage: int, src: int, dst: int, names: Sequence[str]) -> Payload:
        return Payload(stage, src, dst, tuple(graph.tensor[name] for name in names if name in read[dst]))

    inputs = [payload(INPUTS, COORDINATOR, rank, graph.inputs) for rank in layout.others]
    behind = [
        payload(number, src, dst, written[number])
        for number, stage in enumerate(stages)
        for src in [layout.rank_of[stage.device]]
        for dst in sorted(waiting[number] - {src})
    ]
    return Routes((*inputs, *behind))
