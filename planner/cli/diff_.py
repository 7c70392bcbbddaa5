"""Compare two plans for one network: what is divided, what moved, what is sent, and what that changes.

planner diff plan.json other.json
"""

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain
from math import isfinite
from pathlib import Path

from costmodels.units import format_bytes, format_rate, format_seconds
from planner.cli.console import Console
from planner.cli.text import aligned, clipped, count, first_items, relative, short, unbroken, wrapped
from planner.explanations.diff import CutTensor, PlanDifference, diff
from planner.problem.problem import Goal

CHANGES, CUTS, REGIONS = 12, 6, 12  # the most of each kind that are shown; --json has all
NAME = 40  # characters of a name in a table


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``planner diff``."""
    parser.add_argument("before", type=Path, metavar="BEFORE", help="plan.json")
    parser.add_argument("after", type=Path, metavar="AFTER", help="another plan.json for the same network")


def run(options: argparse.Namespace, console: Console) -> int:
    """Compare and print."""
    difference = diff(options.before, options.after)
    document = asdict(difference) | {"same_placement": difference.same_placement, "same": difference.same}
    title = clipped(f"{difference.model}: {options.before} → {options.after}")
    console.tell(document, chain([title], difference_lines(difference)))
    return 0


def difference_lines(d: PlanDifference) -> Iterator[str]:
    """The lines for people, without the title."""
    if d.same:
        yield "  The plans are the same."
        return
    yield from _figures(d)
    yield from _given(d)
    yield from _divided(d)
    yield from _moved(d)
    yield from _cuts(d)


def _figures(d: PlanDifference) -> Iterator[str]:
    a, b = d.before, d.after
    rows = [("", "before", "after", ""), *_speeds(d)]
    for quantity, *both_s in (("objective", a.objective_s, b.objective_s), ("no plan is below", a.bound_s, b.bound_s)):
        row = _seconds(quantity, *both_s)
        rows.append(row if a.goal is b.goal else (*row[:3], ""))  # the change of a goal means nothing
    rows += [
        ("gap", f"{a.gap:.2%}", f"{b.gap:.2%}", ""),
        ("found by", f"{a.solver} ({a.status})", f"{b.solver} ({b.status})", ""),
    ]
    if a.measured != b.measured:
        rows.append(("costs measured", f"{a.measured:.1%}", f"{b.measured:.1%}", ""))
    yield from aligned(rows, "<>>>")
    if a.goal is b.goal and not d.sure and a.objective_s != b.objective_s:
        yield "  Predictions are not sure enough to tell which of both is faster."


def _seconds(quantity: str, before_s: float, after_s: float) -> tuple[str, str, str, str]:
    return quantity, format_seconds(before_s), format_seconds(after_s), relative(before_s, after_s)


def _speeds(d: PlanDifference) -> Iterator[tuple[str, str, str, str]]:
    """Yield rows of simulated times. A step is compared only with a step; replicas count only in samples per second."""
    a, b = d.before, d.after
    n_training = (a.goal is Goal.TRAINING) + (b.goal is Goal.TRAINING)
    yield _seconds("a micro-batch, streaming", a.period_s, b.period_s)
    if n_training != 1:
        yield _seconds("one step" if n_training else "a micro-batch, alone", a.latency_s, b.latency_s)
    if n_training:
        both = format_rate(a.samples_per_s), format_rate(b.samples_per_s)
        yield "samples/s", *both, relative(a.samples_per_s, b.samples_per_s)
    if a.tokens_per_s is not None and b.tokens_per_s is not None:
        both = format_rate(a.tokens_per_s), format_rate(b.tokens_per_s)
        yield "tokens/s", *both, relative(a.tokens_per_s, b.tokens_per_s)
    if a.first_token_s is not None and b.first_token_s is not None:
        yield _seconds("first token of one alone", a.first_token_s, b.first_token_s)


def _given(d: PlanDifference) -> Iterator[str]:
    if d.changes:
        yield from ("", "Asked for and given")
        rows = [
            (change.what, short(change.before or "none", NAME), "→", change.after or "none")
            for change in d.changes[:CHANGES]
        ]
        yield from aligned(rows, "<><<")
        if len(d.changes) > CHANGES:
            yield f"  … and {len(d.changes) - CHANGES} more"
    if d.costs:
        yield from ("", "Costs")
        for cost in d.costs:
            yield f"  {count(cost.n_ops, 'operator')} on {cost.device}: {_changed_s(cost.before_s, cost.after_s)}"


def _divided(d: PlanDifference) -> Iterator[str]:
    if not d.divided:
        return
    n_divided = sum(divided.n_ops for divided in d.divided)
    yield from ("", f"Divided in another way: {n_divided:,} of {count(d.n_ops, 'operator')}")
    for divided in d.divided:
        what = f"{divided.before or 'whole'} → {divided.after or 'whole'}: {count(divided.n_ops, 'operator')}"
        yield clipped(f"  {what}, {_changed_s(divided.before_s, divided.after_s)}")
        yield from wrapped(first_items([unbroken(str(region)) for region in divided.what], REGIONS), indent=6)
    before, after = d.between
    if before.n_ops or after.n_ops:
        number = f"{before.n_ops:,} → {count(after.n_ops, 'operator')}"
        yield f"  to slice and to put together: {number}, {_changed_s(before.seconds, after.seconds)}"


def _changed_s(before_s: float, after_s: float) -> str:
    """Return seconds before and after, and the change if there is one to speak of."""
    change = f" ({relative(before_s, after_s)})" if before_s and isfinite(before_s + after_s) else ""
    return f"{format_seconds(before_s)} → {format_seconds(after_s)}{change}"


def _moved(d: PlanDifference) -> Iterator[str]:
    yield ""
    if not d.moved:
        order = "but they run in another order" if d.reordered else "and they run in the same order"
        yield f"Every {'other ' if d.divided else ''}operator is on the same device, {order}"
        return
    n_moved = sum(moved.n_ops for moved in d.moved)
    yield f"Moved: {n_moved:,} of {count(d.n_ops, 'operator')}"
    for moved in d.moved:
        work = f"{format_seconds(moved.before_s)} of work there, {format_seconds(moved.after_s)} now"
        yield clipped(f"  {moved.src} → {moved.dst}: {count(moved.n_ops, 'operator')}, {work}")
        yield from wrapped(first_items([unbroken(str(region)) for region in moved.what], REGIONS), indent=6)


def _cuts(d: PlanDifference) -> Iterator[str]:
    cuts = d.cuts
    yield ""
    if not (cuts.gone or cuts.new):
        yield f"Cuts: the same {count(cuts.n_kept, 'transfer')}, {format_bytes(cuts.after_bytes)} for each micro-batch"
        return
    n_before, n_after = cuts.n_kept + len(cuts.gone), cuts.n_kept + len(cuts.new)
    sizes = f"{format_bytes(cuts.before_bytes)} → {format_bytes(cuts.after_bytes)} for each micro-batch"
    yield f"Cuts: {n_before} → {count(n_after, 'transfer')}, {sizes}"
    rows = [*_rows("gone", cuts.gone), *_rows("new", cuts.new)]
    yield from aligned(rows, "<<<>")
    if cuts.n_kept:
        yield f"  {cuts.n_kept:,} as before"


def _rows(word: str, cuts: tuple[CutTensor, ...]) -> Iterator[tuple[str, str, str, str]]:
    for cut in cuts[:CUTS]:
        yield word, short(cut.tensor, NAME), short(f"{cut.src} → {cut.dst}", NAME), format_bytes(cut.n_bytes)
    if rest := cuts[CUTS:]:
        yield word, f"{len(rest)} more", "", format_bytes(sum(cut.n_bytes for cut in rest))
