"""Predictions for a language model that generates: seconds to the first token, and tokens a second.

::

    one sequence alone     prompt, prompt, prompt │ token, token, token, ...     each pass ends before the next begins
                           ◄── first_token_s ───► ◄ token_s ►
    n groups of sequences  group 0   ██──██──██──                                a device computes one group's pass
                           group 1   ──██──██──██                                while the next one's is on another

Each phase is a plan of its own with the same placement, so its pass alone and its period are simulated as ever.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from costmodels.memory.device import lasting_bytes, op_bytes
from costmodels.operators.pace import Paces
from graphs.common.arrays import Floats
from graphs.common.brief import Brief
from graphs.phases import Phase
from planner.plans.compare import pace_change
from planner.plans.plan import Plan
from planner.plans.ranges import Range


@dataclass(frozen=True)
class PhasePrediction(Brief):
    """A phase of a plan.

    Attributes:
        phase: the sizes of one pass.
        prompt: passes over the prompts of a group, side by side; of an encoder, one for each row.
        output: passes for the tokens after the first one.
        alone_s: seconds of a pass of one group while no other one is on its way.
        period_s: seconds from one pass to the next while all groups are on their way.
    """

    phase: Phase
    prompt: int
    output: int
    alone_s: float
    period_s: float

    @property
    def named(self) -> str:
        """The phase in words."""
        if not self.phase.tokens:
            return f"a source of {self.phase.length:,} positions"
        return f"{self.phase.tokens:,} token{'s' * (self.phase.tokens > 1)} of {self.phase.length:,} positions"


@dataclass(frozen=True)
class GenerationPrediction(Brief):
    """How fast a plan generates for its workload.

    Attributes:
        phases: those of the plan, the most tokens first.
        rows: sequences of a group.
        groups: on their way at the same time.
        sequences: of all groups, which may have free rows.
        output: tokens of a sequence after its prompt.
        factor: by what 80 % of runs take at most longer or shorter, of one sequence alone and of all.
    """

    phases: tuple[PhasePrediction, ...]
    rows: int
    groups: int
    sequences: int
    output: int
    factor: tuple[float, float]

    @property
    def first_token_s(self) -> float:
        """Seconds from the prompt of one sequence to its first token, while nothing else runs."""
        return sum(each.prompt / (1 if each.phase.tokens else self.rows) * each.alone_s for each in self.phases)

    @property
    def all_first_tokens_s(self) -> float:
        """Seconds until all sequences have their first token, which begin at the same time."""
        return self.groups * sum(each.prompt * each.period_s for each in self.phases)

    @property
    def token_s(self) -> float:
        """Seconds from one token to the next of a sequence alone; of the only token, those of its prompt."""
        passes = sum(each.output for each in self.phases)
        return sum(each.output * each.alone_s for each in self.phases) / passes if passes else self.first_token_s

    @property
    def all_s(self) -> float:
        """Seconds for the prompts and all tokens of all sequences."""
        return self.groups * sum((each.prompt + each.output) * each.period_s for each in self.phases)

    @property
    def tokens_per_s_one(self) -> float:
        """Generated tokens a second of one sequence alone; the time for its prompt counts too."""
        alone_s = self.first_token_s + sum(each.output * each.alone_s for each in self.phases)
        return self.output / alone_s if alone_s > 0 else float("inf")

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens a second of all sequences together; the time for their prompts counts too."""
        return self.sequences * self.output / self.all_s if self.all_s > 0 else float("inf")

    @property
    def first_token_range(self) -> Range:
        """The range around ``first_token_s`` in which 80 % of runs are expected."""
        return Range(self.first_token_s / self.factor[0], self.first_token_s * self.factor[0])

    @property
    def range_per_s(self) -> tuple[float, float]:
        """The range around ``tokens_per_s`` in which 80 % of runs are expected."""
        return self.tokens_per_s / self.factor[1], self.tokens_per_s * self.factor[1]

    @property
    def range_per_s_one(self) -> tuple[float, float]:
        """The range around ``tokens_per_s_one`` in which 80 % of runs are expected."""
        return self.tokens_per_s_one / self.factor[0], self.tokens_per_s_one * self.factor[0]


def phase_plan(plan: Plan, number: int) -> Plan:
    """Return a plan with the costs of one of its phases instead of the mean of all."""
    return replace(plan, table=plan.phases[number].table, phases=())


def generation_of(plan: Plan) -> GenerationPrediction:
    """Return how fast a plan for generation generates."""
    work = plan.workload
    return GenerationPrediction(
        tuple(
            PhasePrediction(each.phase, each.prompt, each.output, own.latency_s, own.period_s)
            for each, own in ((each, phase_plan(plan, number)) for number, each in enumerate(plan.phases))
        ),
        work.batch,
        work.in_flight,
        work.sequences,
        work.output,
        (plan.spread(alone=True).factor, plan.spread().factor),
    )


def paced(found: GenerationPrediction, plan: Plan, paces: Paces) -> GenerationPrediction:
    """Return a plan's prediction at the pace of a run, see `pace_change`.

    Passes over prompts compute where those of single tokens wait for memory, so each phase has a pace of its own.
    """
    changes = [pace_change(phase_plan(plan, number), paces) for number in range(len(plan.phases))]
    phases = (
        each
        if change is None
        else replace(each, alone_s=each.alone_s * change.network, period_s=each.period_s * change.contended)
        for each, change in zip(found.phases, changes, strict=True)
    )
    return replace(found, phases=tuple(phases))


def held_bytes(plan: Plan) -> tuple[Floats, Floats]:
    """[n_devices] each, bytes of the weights and of the caches of all sequences on the devices."""
    cache = plan.workload.in_flight * lasting_bytes(plan.graph)
    held: Sequence[Floats] = [
        plan.placement.held_bytes(n_bytes, plan.table.n_devices)
        for n_bytes in (op_bytes(plan.graph, plan.workload) - cache, cache)
    ]
    return np.asarray(held[0]), np.asarray(held[1])
