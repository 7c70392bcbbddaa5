"""What `planner explain` says of everything but this placement: constraints, other means, and how good it is."""

from collections.abc import Iterator, Sequence

from costmodels.table import Source
from costmodels.units import format_seconds
from planner.cli.text import aligned, relative, wrapped
from planner.explain.explain import Explanation, KindShare
from planner.explain.what_if import How
from planner.problem.result import Status

KINDS = 4  # of operators that were estimated, that are shown; --json has all
VISIBLE = 1e-3  # a smaller share is not worth a word
HOW = {
    How.BOUND: "bound: no plan is below",
    How.JUDGED: "this placement, judged again",
    How.SIMULATED: "this placement, simulated",
    How.REPLANNED: "planned again",
}


def prices(e: Explanation) -> Iterator[str]:
    """What each constraint costs; nothing where there is none."""
    if not e.replanned.prices:
        return
    yield ""
    yield "What each constraint costs"
    rows = [("", "with it", "without", "")]
    for price in e.replanned.prices:
        both = format_seconds(price.with_s), format_seconds(price.without_s)
        rows.append((price.constraint, *both, relative(price.with_s, price.without_s)))
    yield from aligned(rows, "lrrr")


def helps(e: Explanation) -> Iterator[str]:
    """What more devices, bandwidth, memory or micro-batches in flight would bring."""
    yield ""
    yield "What would help"
    if e.replanned.again_s < e.now_s * (1 - VISIBLE):
        again, now = format_seconds(e.replanned.again_s), format_seconds(e.now_s)
        yield from wrapped(
            f"Searched again, a plan of {again} was found, not {now}. What is planned again starts from it."
        )
    rows = [("", "now", "then", "", "")]
    everything = (*e.replanned.helps, *e.helps)
    for found in everything:
        now, then = format_seconds(found.now_s), format_seconds(found.seconds)
        rows.append((found.change, now, then, relative(found.now_s, found.seconds), HOW[found.how]))
    heading, *table = aligned(rows, "lrrrl")
    yield heading
    for found, row in zip(everything, table, strict=True):
        yield row
        if found.remark:
            yield from wrapped(found.remark, indent=6)


def proof(e: Explanation) -> Iterator[str]:
    """How good the plan is, how that is known, and how much of it rests on guesses."""
    yield ""
    yield "How good it is"
    proof = e.proof
    better = f"A plan could be {max(proof.gap, 1e-4):.2%} better at most"
    if proof.status == Status.OPTIMAL or not proof.gap:
        better = "No plan is better"
    yield from wrapped(
        f"{better}: none is below {format_seconds(proof.bound_s)}, {proof.because}. "
        f"Found by {proof.solver} ({proof.status})."
    )
    shares = {
        "measured": e.sources.get(Source.MEASURED, 0.0),
        "given": e.sources.get(Source.GIVEN, 0.0),
        "learned": e.sources.get(Source.LEARNED, 0.0),
        "estimated from peaks": e.sources.get(Source.ROOFLINE, 0.0),
    }
    known = ", ".join(f"{share:.1%} {word}" for word, share in shares.items() if share)
    if known:
        yield from wrapped(f"The operators' time is {known}{_most(e.estimated, 'mostly')}.")
    guessed = [kind for kind in e.estimated if kind.guessed]
    if guessed:
        yield from wrapped(f"Even the work is a guess, for want of a formula{_most(guessed, 'in')}.")
    if e.estimated:
        yield from wrapped("`planner calibrate MODEL` measures operators.")


def _most(kinds: Sequence[KindShare], words: str) -> str:
    """The largest of these kinds with their shares."""
    shown = [f"{kind.kind} {kind.share:.1%}" for kind in kinds[:KINDS] if kind.share >= VISIBLE]
    return f", {words} {', '.join(shown)}" if shown else ""
