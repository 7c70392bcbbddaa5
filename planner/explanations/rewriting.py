"""Explain the rewrites of a plan: what each of them changed, and what it gains."""

from collections import Counter
from dataclasses import dataclass, replace

from costmodels.operators.flops import work_of
from graphs.common.brief import brief
from graphs.ir import unfused
from graphs.operator_kinds import plain
from graphs.rewrites.experts import BY, EXPERTS
from graphs.rewrites.fuse import KIND
from graphs.rewrites.split import Split, part_number
from planner.plans.plan import Plan


@dataclass(frozen=True, slots=True)
class FusedOperators:
    """The fused operators with the same kinds of members."""

    members: tuple[str, ...]  # kinds, without library and overload
    count: int  # how many there are
    saved_bytes: float  # that are neither written nor read again, of each micro-batch
    seconds: float  # of all of them on their devices, for each micro-batch

    __repr__ = brief


@dataclass(frozen=True, slots=True)
class DividedOperators:
    """The operators in parts."""

    by: tuple[tuple[str, int], ...]  # the sharding, and how many operators are divided so
    parts: int  # of each operator
    seconds: float  # of all parts on the device where they take longest, for each micro-batch

    __repr__ = brief


def divided(plan: Plan) -> DividedOperators | None:
    """Return the splits of a plan, the most frequent sharding first; None without any."""
    choices = [choice for one in plan.rewrites if isinstance(one, Split) for choice in one.choices.values()]
    if not choices:
        return None
    parts = max(count for _, count in choices)
    names = Counter(EXPERTS if BY in name else name for name, _ in choices)
    numbers = [number for number, op in enumerate(plan.graph.ops) if part_number(op.name) is not None]
    on = [[number for number in numbers if plan.placement.device[number] == d] for d in plan.placement.used]
    seconds = max(float(plan.costs.forward_s[here, d].sum()) for here, d in zip(on, plan.placement.used, strict=True))
    return DividedOperators(tuple(names.most_common()), parts, seconds)


def fused(plan: Plan) -> tuple[FusedOperators, ...]:
    """Return the fusions of a plan that one kernel may compute, the longest time first."""
    graph = plan.graph
    work = work_of(graph).n_bytes
    members = tuple(unfused(graph.ops))
    bytes_apart = work_of(replace(graph, ops=members)).n_bytes.tolist()  # that each reads and writes if none is fused
    apart = dict(zip((op.name for op in members), bytes_apart, strict=True))
    found: dict[tuple[str, ...], FusedOperators] = {}
    for number, op in enumerate(graph.ops):
        if op.kind == KIND:
            kinds = tuple(plain(member.kind).rpartition(".")[2] for member in op.members)
            before = found.get(kinds, FusedOperators(kinds, 0, 0.0, 0.0))
            found[kinds] = replace(
                before,
                count=before.count + 1,
                saved_bytes=before.saved_bytes + sum(apart[member.name] for member in op.members) - float(work[number]),
                seconds=before.seconds + float(plan.costs.forward_s[number, plan.placement.device[number]]),
            )
    return tuple(sorted(found.values(), key=lambda each: -each.seconds))
