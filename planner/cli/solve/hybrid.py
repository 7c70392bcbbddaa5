"""``planner solve`` for a hybrid pipeline: stages, each data- and tensor-parallel."""

import argparse
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from costmodels.units import format_bytes
from planner.cli.console import Console
from planner.cli.solve.solution import Solution, no_solution, proof, searched, until_then
from planner.cli.text import table
from planner.literature.hybrid_pipeline.network import HybridNetwork, hybrid_network
from planner.literature.hybrid_pipeline.stages import loads_of, stages_document

if TYPE_CHECKING:
    from planner.literature.hybrid_pipeline.hybrid_dp import HybridResult

FIELDS = {
    "devices": "maxDevices",
    "memory": "maxMemoryPerDevice",
    "micro_batches": "mbsInBatch",
    "bandwidth": "bandwidth",
}
"""Options that take the place of a field of the file."""

HEADS = ("stage", "nodes", "data", "tensor", "time", "memory", "in flight")


def solve_hybrid_pipeline(document: Mapping[str, Any], options: argparse.Namespace, console: Console) -> Solution:
    """Return the stages of the fastest pipeline."""
    from planner.literature.hybrid_pipeline.hybrid_dp import solve_hybrid  # late: numba takes half a second to load

    given = {field: getattr(options, name) for name, field in FIELDS.items() if getattr(options, name) is not None}
    network = hybrid_network({**document, **given})
    console.on_search(f"solving {options.problem}", options.time_limit)
    result, interrupted = searched(lambda: solve_hybrid(network, options.time_limit))
    if result.stages is None:
        memory = format_bytes(network.memory_bytes)
        fit = "fit" if result.complete else "were found, in some of the ways to cut the network, that fit"
        return no_solution(
            f"{result.status}: no stages {fit} {network.devices} devices of {memory}; add devices or memory"
        )
    status = "interrupted" if interrupted else str(result.status)
    stages = stages_document(network, result.stages)
    answer = {
        "status": status,
        "time_s": result.time_s,
        "bound_s": result.bound_s,
        "wall_s": round(result.wall_s, 3),
        **stages,
    }
    solution = Solution("pipeline", stages, answer, _lines(network, result, status))
    return until_then(solution, options.output) if interrupted else solution


def _lines(network: HybridNetwork, result: "HybridResult", status: str) -> Iterator[str]:
    """Yield a row for each stage, then the proof."""
    stages = result.stages or ()
    rows = [
        (
            str(number),
            str(len(stage.variant)),
            str(stage.data),
            str(stage.tensor),
            f"{load.time_s:.7g} s",
            format_bytes(load.memory_bytes),
            str(load.in_flight),
        )
        for number, (stage, load) in enumerate(zip(stages, loads_of(network, stages), strict=True))
    ]
    yield from table(HEADS, rows)
    if not result.complete:
        yield "the network can be cut in too many ways to try all; joining nodes that need not be apart leaves fewer"
    used = sum(stage.data * stage.tensor for stage in stages)
    yield (
        f"{status}: {result.time_s:.12g} s a sample on {used} of {network.devices} devices "
        f"in {result.wall_s:.1f} s{proof(result.status, f'no pipeline takes less than {result.bound_s:.7g} s')}"
    )
