"""Stages of a language model: its network at several sizes, each a copy that a runner's engine knows."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from graphs.caches import ops_of_pass, users
from graphs.ir import Graph
from graphs.phases import Phase
from graphs.program.generation import GenerationProgram
from graphs.program.in_place import keeping_caches
from planner.plans.plan import Plan
from planner.runtime.matching import phases_for
from planner.runtime.stages.caches import Caches
from planner.runtime.stages.compile import CompiledStage, ShardedState, compile_stages
from simulator.stages import Stage, stages_of_operators


class GenerationStages:
    """A language model as a plan runs it.

    Attributes:
        model: it, after the rewrites of the plan.
        programs: of its phases, in their order, which write the caches.
        stages: those of all phases.
        logits: the name of what a pass returns, [rows, vocabulary].
    """

    def __init__(self, plan: Plan, model: GenerationProgram) -> None:
        """Prepare a model; raise InputError if the plan is for another one."""
        self._plan = plan
        self.model = phases_for(plan, model)
        self.programs = tuple(keeping_caches(program) for program in self.model.phases.values())
        self.stages = phase_stages(self.programs[0].graph, plan.stages, tuple(self.model.phases))
        kept = {after for _, after in plan.graph.caches}
        (self.logits,) = (name for name in plan.graph.outputs if name not in kept)

    def compiled(
        self, local: Collection[int] | None = None, apart: bool = False
    ) -> tuple[dict[int, CompiledStage], ShardedState]:
        """Compile the stages of some devices; arguments and errors as those of `compile_stages`."""
        return compile_stages(self.programs, self.stages, self._plan.cluster.devices, local, apart=apart)

    def caches(self, local: Collection[int] | None = None) -> Caches:
        """Allocate the caches of some devices, by default of all."""
        return Caches(self._plan, self.model, local)


def phase_stages(graph: Graph, stages: Sequence[Stage], phases: Sequence[Phase]) -> tuple[Stage, ...]:
    """Return the stages of all phases, each a copy of the network; those of a phase after those of the one before.

    A pass of a network with an encoder leaves out the operators that it does not run.
    ``graph`` is that of `graphs.program.in_place.keeping_caches`. An operator that it has and the plan has not is in
    the last stage that uses its cache.
    """
    planned = sum(len(stage.ops) for stage in stages)
    last = {op: number for number, stage in enumerate(stages) for op in stage.ops}
    extra: dict[int, list[int]] = {}
    for (cache, _), of_cache in zip(graph.caches, users(graph), strict=True):
        copies = [op for op in of_cache if op >= planned]
        for op in copies:
            assert cache in graph.ops[op].inputs
            extra.setdefault(max(last[user] for user in of_cache if user < planned), []).append(op)
    own = [replace(stage, ops=(*stage.ops, *extra.get(number, ()))) for number, stage in enumerate(stages)]
    found: list[Stage] = []
    for copy, phase in enumerate(phases):
        first = len(found)
        for stage in stages_of_operators(own, ops_of_pass(graph, phase.tokens)):
            found.append(replace(stage, copy=copy, needs=tuple(first + needed for needed in stage.needs)))
    return tuple(found)
