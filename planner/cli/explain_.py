"""Explain a plan: what limits it, who does what, what the cuts cost, what would help, how good it is."""

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from costmodels.table import Source
from costmodels.units import format_bytes, format_seconds
from planner.cli.console import Console
from planner.cli.models import at_least_one
from planner.cli.text import aligned, change, clipped, count, listed, relative, wrapped
from planner.explain import MOVED_CUTS, Explanation, explain
from planner.plans import load_plan
from planner.problem import Goal
from planner.why.critical_path import Leg
from planner.why.cuts import Cut, Effect
from planner.why.what_if import How, Move

PARTS, LEGS, REGIONS, KINDS = 6, 12, 12, 4  # of each, what is shown at most; --json has all
HOW = {
    How.BOUND: "bound: no plan can be below",
    How.JUDGED: "this placement, judged again",
    How.SIMULATED: "this placement, streaming",
}


def declare(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``planner explain``."""
    parser.add_argument("plan", type=Path, metavar="PLAN", help="plan.json")
    parser.add_argument(
        "--cuts",
        type=at_least_one,
        default=MOVED_CUTS,
        metavar="N",
        help=f"how many cuts to show and to try one operator further and back ({MOVED_CUTS})",
    )


def run(options: argparse.Namespace, console: Console) -> int:
    """Explain and print."""
    explanation = explain(load_plan(options.plan), options.cuts)
    if console.json:
        console.show(asdict(explanation), "", (), ())
    else:
        for line in lines(explanation, options.cuts):
            console.say(line)
    return 0


def lines(explanation: Explanation, n_cuts: int) -> Iterator[str]:
    """What a person reads."""
    yield from _summary(explanation)
    yield from _limit(explanation)
    yield from _devices(explanation)
    yield from _cuts(explanation, n_cuts)
    yield from _helps(explanation)
    yield from _proof(explanation)


def _summary(e: Explanation) -> Iterator[str]:
    yield f"{e.model} on {e.cluster}, for {e.goal}"
    now = format_seconds(e.objective_s)
    if e.goal is Goal.THROUGHPUT:
        said = f"A micro-batch of {e.batch} every {now}, as far as the load of the devices goes"
    else:
        said = f"A micro-batch of {e.batch} takes {now} from start to end"
    yield from wrapped(f"{said}.{_alone(e)}")
    stream = f"With {e.in_flight} in flight, one leaves every {format_seconds(e.period_s)} in the simulator"
    alone = f", and one alone takes {format_seconds(e.latency_s)}" if e.goal is Goal.THROUGHPUT else ""
    yield from wrapped(f"{stream}{alone}.{_idle(e)}")


def _alone(e: Explanation) -> str:
    """What the division is worth."""
    if e.alone is None:
        return " No device alone could run or hold it all."
    if sum(device.n_ops > 0 for device in e.devices) == 1:
        return " Everything runs on one device."
    times = f", {e.alone.objective_s / e.objective_s:.2f} times as long" if e.objective_s > 0 else ""
    return f" {e.alone.device} alone would take {format_seconds(e.alone.objective_s)}{times}."


def _idle(e: Explanation) -> str:
    """Why a stream may be slower than the busiest device."""
    if e.goal is Goal.LATENCY or e.period_s <= 1.01 * e.objective_s:
        return ""
    return f" So what is busiest stands still {1 - e.objective_s / e.period_s:.0%} of the time, waiting for the others."


def _limit(e: Explanation) -> Iterator[str]:
    limit = e.bottleneck
    seconds, names = format_seconds(limit.seconds), ", ".join(limit.names)
    yield ""
    if limit.kind == "device":
        yield f"Bottleneck: device {names}, occupied {seconds} by each micro-batch, with"
    elif limit.kind == "link":
        yield f"Bottleneck: link {names}, occupied {seconds} by each micro-batch, with"
    else:
        yield f"Critical path: {seconds} without a gap, over {names}, in"
    shown = [(part.name, part.share, part.seconds, part.n_ops) for part in limit.parts[:PARTS]]
    if rest := limit.parts[PARTS:]:
        share, seconds_s = sum(part.share for part in rest), sum(part.seconds for part in rest)
        shown.append((f"{len(rest)} more", share, seconds_s, sum(part.n_ops for part in rest)))
    rows = [
        (f"{share:.1%}", format_seconds(s), name, count(n_ops, "operator") if n_ops else "")
        for name, share, s, n_ops in shown
    ]
    yield from aligned(rows, "rrlr")
    if limit.path:
        yield from _path(limit.path)


def _path(path: tuple[Leg, ...]) -> Iterator[str]:
    """The longest legs in the order of time."""
    longest = sorted(range(len(path)), key=lambda number: -path[number].seconds)[:LEGS]
    shown = [path[number] for number in sorted(longest)]
    rows = [("start", "takes", "waited", "where", "what")]
    for leg in shown:
        what = f"{leg.tensor} is sent" if leg.kind == "transfer" else listed(leg.holds, REGIONS)
        rows.append(
            (
                format_seconds(leg.start_s),
                format_seconds(leg.seconds),
                format_seconds(leg.wait_s) if leg.wait_s > 0 else "",
                leg.resource,
                what,
            )
        )
    yield ""
    yield from aligned(rows, "rrrll")
    if len(path) > len(shown):
        left_s = sum(leg.seconds for leg in path) - sum(leg.seconds for leg in shown)
        yield f"  … and {len(path) - len(shown)} shorter legs between these, {format_seconds(left_s)} in all"
    yield "  waited: how long the device stood still before, or the tensor lay there before it was sent"


def _devices(e: Explanation) -> Iterator[str]:
    yield ""
    yield "Devices"
    for device in e.devices:
        head = f"  {device.name}: "
        if not device.n_ops:
            yield f"{head}not used"
            continue
        memory = f"{format_bytes(device.memory_bytes)} of {format_bytes(device.capacity_bytes)}"
        busy = f"{format_seconds(device.load_s)} for each micro-batch, {device.share:.1%} of all load"
        yield f"{head}{busy}; {device.n_ops:,} operators; {memory}"
        yield from wrapped(listed(device.holds, REGIONS), indent=6)


def _cuts(e: Explanation, n_shown: int) -> Iterator[str]:
    yield ""
    if not e.cuts:
        yield "Cuts: none, nothing is sent between devices"
        return
    n_bytes, seconds = sum(cut.n_bytes for cut in e.cuts), sum(cut.seconds for cut in e.cuts)
    handover_s = sum(cut.handover_s for cut in e.cuts)
    total = f"{format_bytes(n_bytes)} and {format_seconds(seconds)} on links for each micro-batch"
    if handover_s > 0:
        total += f", {format_seconds(handover_s)} of hand-over on devices"
    yield from wrapped(f"Cuts: {count(len(e.cuts), 'tensor')}, {total}; {_effects(e)}")
    shown = e.cuts[:n_shown]
    head = [("tensor", "from → to", "bytes", "time", "effect", "its writer", "first reader")]
    for cut in shown:
        head.append(
            (
                cut.tensor,
                f"{cut.src} → {cut.dst}",
                format_bytes(cut.n_bytes),
                format_seconds(cut.seconds + cut.handover_s),
                str(cut.effect),
                *(_outcome(moved, e.objective_s) for moved in cut.moves),
            )
        )
    table = list(aligned(head, "llrrlrr"))
    yield f"{'if moved to the other side:':>{len(table[0])}}"
    yield table[0]
    for cut, row in zip(shown, table[1:], strict=True):
        yield row
        yield clipped(f"      {_ends(cut)}")
    if len(e.cuts) > len(shown):
        yield f"  … and {len(e.cuts) - len(shown)} more, of less time, not tried (--cuts {len(e.cuts)} has all)"
    yield from wrapped(_verdict(e))


def _effects(e: Explanation) -> str:
    """How many of the cuts limit, and what the others do."""
    n_limits = sum(cut.effect is Effect.LIMITS for cut in e.cuts)
    others = "go on while devices compute (hidden)" if e.overlap else "occupy devices that have time to spare (slack)"
    if n_limits == len(e.cuts):
        return "all are part of what limits"
    if n_limits:
        return f"{n_limits} of them part of what limits, the others {others}"
    return f"all {others}"


def _outcome(moved: Move, now_s: float) -> str:
    """What a move would change, or that it cannot be."""
    if moved.objective_s is None:
        return "cannot run"
    return "no room" if moved.obstacle else change(now_s, moved.objective_s)


def _ends(cut: Cut) -> str:
    """From where to where in the network."""
    readers = f" and {len(cut.readers) - 1} more" if len(cut.readers) > 1 else ""
    along = [f"; {moved.op} takes {moved.n_ops - 1} more along" for moved in cut.moves if moved.n_ops > 1]
    return f"{_at(cut.writer, cut.written_in)} → {_at(cut.readers[0], cut.read_in)}{readers}{''.join(along)}"


def _at(op: str, module: str) -> str:
    return f"{op} in {module}" if module else op


def _verdict(e: Explanation) -> str:
    """What the moves say together."""
    moves = list(e.moves)
    possible = [moved for moved in moves if moved.objective_s is not None and not moved.obstacle]
    best = min(possible, key=lambda moved: moved.objective_s or 0.0, default=None)
    tried = f"Of {count(len(moves), 'move')} of one operator"
    if best is None or best.objective_s is None:
        return f"{tried}, none is possible."
    if best.objective_s < e.objective_s and (gain := change(e.objective_s, best.objective_s)) != "same":
        return f"{tried}, the best is {best.op} to {best.to}: {gain}. The search stopped before it found that."
    return f"{tried}, none is better than the plan: each border is where it costs the least."


def _helps(e: Explanation) -> Iterator[str]:
    yield ""
    yield "What would help"
    rows = [("", "now", "then", "", "")]
    for found in e.helps:
        how = f"{HOW[found.how]}; {found.remark}" if found.remark else HOW[found.how]
        rows.append(
            (
                found.change,
                format_seconds(found.now_s),
                format_seconds(found.seconds),
                relative(found.now_s, found.seconds),
                how,
            )
        )
    yield from aligned(rows, "lrrrl")


def _proof(e: Explanation) -> Iterator[str]:
    yield ""
    yield "How good it is"
    proof = e.proof
    yield from wrapped(
        f"No plan can be more than {proof.gap:.2%} better: below {format_seconds(proof.bound_s)} there is none, "
        f"{proof.because}. Found by {proof.solver} ({proof.status})."
    )
    shares = ", ".join(f"{share:.1%} {source}" for source, share in e.sources.items())
    if shares:
        yield from wrapped(f"The operators' time, where they run, is {shares}.")
    if e.sources.get(Source.ROOFLINE, 0.0) > 0:
        most = [f"{kind.kind} {kind.share:.1%}" for kind in e.estimated[:KINDS]]
        yield from wrapped(
            f"Estimated from peaks (roofline) most: {', '.join(most)}. `planner calibrate MODEL` measures."
        )
    guessed = [f"{kind.kind} {kind.share:.1%}" for kind in e.estimated if kind.guessed]
    if guessed:
        yield from wrapped(f"Without a formula, so a guess of what they have to do: {listed(guessed, KINDS)}.")
