"""Parts of `planner explain`: the price of each constraint, what would help, and the proof."""

from collections.abc import Iterator, Sequence

from costmodels.table import Source
from costmodels.units import format_seconds
from planner.cli.text import aligned, relative, wrapped
from planner.explain.explain import Explanation, KindShare
from planner.explain.what_if import How
from planner.problem.result import Status

KINDS = 4  # of estimated operators that are shown; --json has all
VISIBLE = 1e-3  # a smaller share is not shown
HOW = {
    How.BOUND: "bound: no plan is below",
    How.JUDGED: "this placement, judged again",
    How.SIMULATED: "this placement, simulated",
    How.REPLANNED: "planned again",
}
SOURCES = {
    Source.MEASURED: "measured",
    Source.GIVEN: "given",
    Source.LEARNED: "learned",
    Source.ROOFLINE: "estimated from peaks",
}


def prices(e: Explanation) -> Iterator[str]:
    """A table of what each constraint costs."""
    if not e.replanned.prices:
        return
    yield from ("", "What each constraint costs")
    rows = [("", "with it", "without", "")]
    for price in e.replanned.prices:
        both = format_seconds(price.with_s), format_seconds(price.without_s)
        rows.append((price.constraint, *both, relative(price.with_s, price.without_s)))
    yield from aligned(rows, "<>>>")


def helps(e: Explanation) -> Iterator[str]:
    """A table of what more devices, bandwidth, memory or micro-batches in flight would bring."""
    yield from ("", "What would help")
    if e.replanned.again_s < e.now_s * (1 - VISIBLE):
        again, now = format_seconds(e.replanned.again_s), format_seconds(e.now_s)
        yield from wrapped(
            f"Searched again, a plan of {again} was found, not {now}. What is planned again starts from it."
        )
    rows = [("", "now", "then", "", "")]
    remedies = (*e.replanned.helps, *e.helps)
    for remedy in remedies:
        now, then = format_seconds(remedy.now_s), format_seconds(remedy.seconds)
        rows.append((remedy.change, now, then, relative(remedy.now_s, remedy.seconds), HOW[remedy.how]))
    heading, *table = aligned(rows, "<>>><")
    yield heading
    for remedy, row in zip(remedies, table, strict=True):
        yield row
        if remedy.remark:
            yield from wrapped(remedy.remark, indent=6)


def proof(e: Explanation) -> Iterator[str]:
    """How good the plan is, why, and how much of its costs was measured."""
    yield from ("", "How good it is")
    proof = e.proof
    better = f"A plan could be {max(proof.gap, 1e-4):.2%} better at most"
    if proof.status == Status.OPTIMAL or not proof.gap:
        better = "No plan is better"
    yield from wrapped(
        f"{better}: none is below {format_seconds(proof.bound_s)}, {proof.because}. "
        f"Found by {proof.solver} ({proof.status})."
    )
    shares = ", ".join(f"{e.sources[source]:.1%} {word}" for source, word in SOURCES.items() if e.sources.get(source))
    if shares:
        yield from wrapped(f"The operators' time is {shares}{_most(e.estimated, 'mostly')}.")
    guessed = [kind for kind in e.estimated if kind.guessed]
    if guessed:
        yield from wrapped(f"Even the work is a guess, for want of a formula{_most(guessed, 'in')}.")
    if e.estimated:
        yield from wrapped("`planner calibrate MODEL` measures operators.")


def _most(kinds: Sequence[KindShare], words: str) -> str:
    """The largest of these kinds with their shares."""
    shown = [f"{kind.kind} {kind.share:.1%}" for kind in kinds[:KINDS] if kind.share >= VISIBLE]
    return f", {words} {', '.join(shown)}" if shown else ""
