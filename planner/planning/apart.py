"""Plans with the experts of a mixture apart: some on one device, some on another, where they fit.

Parts are placed like any other operators, on devices of any kinds; the fewest parts that fit are taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from graphs.ir import Graph
from graphs.rewrites.experts_apart import experts_apart
from graphs.rewrites.sharding import Sharding
from graphs.rewrites.split import Split
from planner.planning.candidates import Candidate, best_of
from planner.planning.rewriting import AUTO_REWRITES, SPLIT, allows
from planner.plans.plan import PlacementTask, Plan
from planner.problem.result import NoPlanError

PARTS = (2, 4, 8, 16, 32)  # of each mixture, tried one after the other


def splits_of_experts(graph: Graph, known: Mapping[str, Sequence[Sharding]] | None = None) -> Iterator[Split]:
    """Yield the splits of a network's experts, the fewest parts first; none if there are no experts.

    ``known`` are the shardings of operators by name, by default all.
    """
    before: Split | None = None
    for parts in PARTS:
        split = experts_apart(graph, parts, known)
        if split is None or split == before:
            return
        yield split
        before = split


def with_experts_apart(
    find: Callable[[], Plan],
    whole: PlacementTask,
    asked: str,
    splits: Callable[[], Iterator[Split]],
    search: Callable[[Split], Plan],
) -> Plan:
    """Return the plan that is found, or one with experts apart if there is none, or if it is better and was asked for.

    Args:
        find: finds a plan of the whole network.
        whole: its task.
        asked: the rewrites that a plan may have.
        splits: of the experts, see `splits_of_experts`.
        search: finds a plan of the split network.

    Raises:
        NoPlanError, Interrupted: from the searches; that of the whole network if no split has a plan.
    """
    alone = len(whole.cluster.devices) == 1
    if alone or whole.workload.trains or whole.constraints or not allows(asked, SPLIT):
        return find()
    try:
        found = find()
    except NoPlanError:
        for split in splits():
            try:
                return search(split)
            except NoPlanError:
                continue
        raise
    if asked == AUTO_REWRITES or any(isinstance(rewrite, Split) for rewrite in found.rewrites):
        return found
    apart = (search(split) for split in [*splits()][:1])
    return best_of(map(Candidate, (found, *apart))) or found
