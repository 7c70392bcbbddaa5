"""Explain a plan: what limits it, who does what, what the cuts cost, what would help, how good it is.

planner explain plan.json
planner explain plan.json --cuts 20 --time-limit 30
planner explain plan.json --op conv1
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from costmodels.table import Source
from costmodels.units import format_bytes, format_rate, format_seconds
from graphs.rewrites.sharding import REPLICATED
from planner.cli.console import Console
from planner.cli.generation import phase_lines
from planner.cli.models import declare_search
from planner.cli.numbers import at_least_one
from planner.cli.statuses import DONE, INTERRUPTED
from planner.cli.text import aligned, change, clipped, count, first_items, relative, short, unbroken, wrapped
from planner.explanations.bottleneck import Leg
from planner.explanations.cuts import Cut, CutEffect, CutMove
from planner.explanations.elsewhere import DeviceAlternatives, elsewhere
from planner.explanations.explain import MOVED_CUTS, SEARCH, Explanation, KindShare, explain
from planner.explanations.regions import TimeShare
from planner.explanations.rests import EstimateBasis
from planner.explanations.what_if import Method
from planner.problem.problem import Goal
from planner.problem.result import Interrupted, Status

PARTS, LEGS, REGIONS = 6, 12, 12  # the most of each kind that are shown; --json has all
NAME = 22  # characters of a name in a table of many columns
SLOWER = 1.01  # ratio of a stream's period to its objective that filling and draining alone do not explain
CORRECTED = 0.005  # a factor nearer to 1 changes no digit that is shown
KINDS = 4  # of operators that are shown, of the estimated ones and of those in one kernel; --json has all
VISIBLE = 1e-3  # a smaller share is not shown
HOW = {
    Method.BOUND: "bound: no plan is below",
    Method.JUDGED: "this placement, judged again",
    Method.SIMULATED: "this placement, simulated",
    Method.REPLANNED: "planned again",
}
SOURCES = {
    Source.MEASURED: "measured",
    Source.GIVEN: "given",
    Source.LEARNED: "learned",
    Source.ESTIMATED: "estimated from data sheets",
    Source.ROOFLINE: "estimated from peaks",
}


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``planner explain``."""
    parser.add_argument("plan", type=Path, metavar="PLAN", help="plan.json")
    parser.add_argument(
        "--cuts",
        type=at_least_one,
        default=MOVED_CUTS,
        metavar="N",
        help=f"number of cuts to show, and to try moved by one operator ({MOVED_CUTS})",
    )

    parser.add_argument("--op", metavar="NAME", help="one operator: its price on each device, or what forbids it")
    declare_search(parser, SEARCH.time_limit_s, "to plan again without each constraint, with more devices, ...")


def run(options: argparse.Namespace, console: Console) -> int:
    """Explain and print; on Ctrl-C, print what has been found so far."""
    search = replace(SEARCH, time_limit_s=options.time_limit, seed=options.seed, reporter=console)
    status = DONE
    if options.op is not None:
        prices = elsewhere(options.plan, options.op)
        console.tell(asdict(prices), _elsewhere(prices))
        return DONE
    try:
        explanation = explain(options.plan, options.cuts, search)
    except Interrupted as stopped:
        explanation, status = stopped.best, INTERRUPTED
    console.tell(asdict(explanation), explanation_lines(explanation, options.cuts))
    if status == INTERRUPTED:
        console.error("interrupted: what would help is shown as far as it was planned again")
    return status


def explanation_lines(explanation: Explanation, n_cuts: int) -> Iterator[str]:
    """The lines for people."""
    yield from _summary(explanation)
    yield from _generation(explanation)
    yield from _limit(explanation)
    yield from _devices(explanation)
    yield from _cuts(explanation, n_cuts)
    yield from _divided(explanation)
    yield from _fused(explanation)
    yield from _recomputed(explanation)
    yield from _prices(explanation)
    yield from _helps(explanation)
    yield from _proof(explanation)


def _generation(e: Explanation) -> Iterator[str]:
    """Yield tokens a second, and what the micro-batches of the other lines are."""
    if e.generation is None:
        return
    all_of_them, one = (format_rate(each) for each in (e.generation.tokens_per_s, e.generation.tokens_per_s_one))
    yield from wrapped(
        f"Generation: {all_of_them} tokens/s of all sequences, {one} of one alone, prompts included; its first "
        f"token comes after {format_seconds(e.generation.first_token_s)}. A micro-batch is a pass of one group, in the "
        "mean of these:"
    )
    for line in phase_lines(e.generation):
        yield from wrapped(f"{line}.")


def _elsewhere(e: DeviceAlternatives) -> Iterator[str]:
    """Yield the lines for people about one operator."""
    along = f", with {count(e.along, 'operator')} that must share its device" if e.along else ""
    yield clipped(f"{_at(e.op, e.module)}, {e.kind}{along}: on {' and '.join(p.device for p in e.prices if p.here)}")
    rows = [("device", "takes", "the plan then", "change", "")]
    for price in e.prices:
        takes = "cannot run" if price.seconds is None else format_seconds(price.seconds)
        if price.objective_s is None or price.obstacle:
            then, differs, remark = "", "", price.obstacle
        else:
            then, differs = format_seconds(price.objective_s), relative(e.objective_s, price.objective_s)
            remark = "the plan has it here" if price.here else ""
        rows.append((price.device, takes, then, differs, remark))
    yield from aligned(rows, "<>>><")


def _summary(e: Explanation) -> Iterator[str]:
    goal = str(e.goal) if e.generation is None else f"generation, by the {e.goal} of its passes"
    yield f"{e.model} on {e.cluster}, for {goal}: {format_seconds(e.objective_s)} {_each(e)} of {e.batch}"
    if e.isolated is None:
        under = " under these constraints" if e.replanned.prices else ""
        yield f"  No device alone could run and hold all of it{under}."
    elif sum(device.n_ops > 0 for device in e.devices) == 1:
        yield "  All of it runs on one device."
    else:
        alone = f"{e.isolated.device} alone takes {format_seconds(e.isolated.objective_s)}"
        yield f"  {e.times_one_device:.3g} \N{MULTIPLICATION SIGN} one device: {alone}."
    if max(e.copies, e.replicas) > 1:
        pairs = " in pairs, which read large weights once" if e.in_pairs else ""
        yield f"  {e.division[0].upper()}{e.division[1:]}: micro-batches take turns{pairs}."
    if e.simpler:
        yield from wrapped(f"The simplest of the plans that predictions cannot tell apart: {e.simpler}.")
    if e.out_of_reach:
        yield from wrapped(f"{e.out_of_reach[0].upper()}{e.out_of_reach[1:]}.")
    stream = f"Streaming with {e.in_flight} in flight, the simulator sees one leave every {format_seconds(e.period_s)}"
    if e.goal is Goal.TRAINING:
        return
    if e.goal is Goal.LATENCY:
        yield from wrapped(f"{stream}.")
        return
    if e.period_s > SLOWER * e.objective_s:
        idle = 1 - e.objective_s / e.period_s
        stream += f": what is busiest stands still {idle:.0%} of the time and waits for the others"
    yield from wrapped(f"{stream}. One alone takes {format_seconds(e.latency_s)}.")


def _divided(e: Explanation) -> Iterator[str]:
    """Yield which operators are in parts, and how long the parts take."""
    if e.divided is None:
        return
    yield ""
    total, seconds = sum(count for _, count in e.divided.by), format_seconds(e.divided.seconds)
    yield f"Split: {total:,} operators in {e.divided.parts} parts, {seconds} where they take longest"
    ways = [f"{count:,} {name if name == REPLICATED else f'by {name}'}" for name, count in e.divided.by]
    yield from wrapped(first_items(ways, KINDS))


def _fused(e: Explanation) -> Iterator[str]:
    """Yield the fusions, each with the reads and writes of memory that it saves."""
    if not e.fused:
        return
    n_ops = sum(each.count * len(each.members) for each in e.fused)
    yield ""
    yield f"Fused: {n_ops:,} operators in {count(sum(each.count for each in e.fused), 'kernel')}"
    for each in e.fused:
        spared = f", spares {format_bytes(each.saved_bytes)} of reading and writing" if each.saved_bytes > 0 else ""
        first, *others = each.members
        kinds = " + ".join([first, *others] if len(others) < KINDS else [first, "...", others[-1]])
        yield clipped(f"  {each.count} × {kinds}: {format_seconds(each.seconds)}{spared}")


def _recomputed(e: Explanation) -> Iterator[str]:
    """Yield what is kept, what is recomputed, and the seconds and bytes that this costs and saves."""
    own = e.recomputed
    if own is None:
        return
    yield ""
    yield f"Recomputation: {own.mode}"
    results = f"results of {_counted(own.kept)}, " if own.kept else ""
    yield from wrapped(
        f"Kept for each micro-batch: {results}inputs and results of the network, {format_bytes(own.kept_bytes)} in all "
        f"instead of {format_bytes(own.saved_bytes)}, and what stages receive."
    )
    yield from wrapped(f"Runs again: {_counted(own.again)}, {format_seconds(own.again_s)} for each micro-batch.")
    yield from wrapped(
        f"A step takes {format_seconds(own.step_s)} instead of {format_seconds(own.plain_step_s)} "
        f"({relative(own.plain_step_s, own.step_s)}), and the fullest device holds {format_bytes(own.peak_bytes)} "
        f"instead of {format_bytes(own.plain_peak_bytes)} ({relative(own.plain_peak_bytes, own.peak_bytes)})."
    )


def _counted(kinds: Sequence[tuple[str, int]]) -> str:
    return first_items([f"{number:,} {kind}" for kind, number in kinds], KINDS)


def _each(e: Explanation) -> str:
    """Return the unit of work that the seconds of the objective are for."""
    if e.goal is Goal.TRAINING:
        return f"for each step of {e.micro_batches} micro-batches"
    return "for each micro-batch" if e.goal is Goal.THROUGHPUT else "for one micro-batch"


def _limit(e: Explanation) -> Iterator[str]:
    """Yield the bottleneck and its parts."""
    limit = e.bottleneck
    seconds, names = format_seconds(limit.seconds), ", ".join(limit.names)
    yield ""
    if limit.kind == "path":
        yield clipped(f"Critical path: {seconds} without a gap on {names}, of which")
    elif limit.kind == "total":
        yield clipped(f"Everything: {seconds} for each micro-batch on {names}, of which")
    else:
        yield clipped(f"Bottleneck: the {limit.kind} {names}, {seconds} {_each(e)}, of which")
    rows, shown = [], list(limit.parts[:PARTS])
    if rest := limit.parts[PARTS:]:
        seconds_share = sum(part.seconds for part in rest), sum(part.share for part in rest)
        shown.append(TimeShare(f"{len(rest)} more", *seconds_share, sum(part.n_ops for part in rest)))
    for part in shown:
        alike = f"{part.alike} alike, " if part.alike > 1 else ""
        size = f"{alike}{count(part.n_ops, 'operator')}" if part.n_ops else ""  # empty for transfers
        rows.append((f"{part.share:.1%}", format_seconds(part.seconds), part.name, size))
    yield from aligned(rows, ">><<")
    if len(limit.path) > 1:
        yield from _path(limit.path)


def _path(path: tuple[Leg, ...]) -> Iterator[str]:
    """Yield the longest legs of the critical path in the order of time."""
    longest = sorted(path, key=lambda leg: -leg.seconds)
    rows = [("start", "takes", "waited", "where", "what")]
    for leg in sorted(longest[:LEGS], key=path.index):
        held = f"{leg.tensor} is sent" if leg.kind == "transfer" else first_items(leg.holds, REGIONS)
        wait = format_seconds(leg.wait_s) if leg.wait_s > 0 else ""
        rows.append((format_seconds(leg.start_s), format_seconds(leg.seconds), wait, short(leg.resource, NAME), held))
    yield ""
    yield from aligned(rows, ">>><<")
    if shorter := longest[LEGS:]:
        shorter_s = format_seconds(sum(leg.seconds for leg in shorter))
        yield f"  … and {count(len(shorter), 'shorter leg')} between these, {shorter_s} in all"
    yield "  waited: how long the device stood still before, or the tensor lay there before it was sent"


def _devices(e: Explanation) -> Iterator[str]:
    yield from ("", "Devices")
    for device in e.devices:
        head = f"  {device.name}: "
        if not device.n_ops:
            yield f"{head}not used"
            continue
        memory = f"{format_bytes(device.memory_bytes)} of {format_bytes(device.capacity_bytes)}"
        busy = f"{format_seconds(device.load_s)} for each micro-batch, {device.share:.1%} of all load"
        yield clipped(f"{head}{busy}; {count(device.n_ops, 'operator')}; {memory} memory")
        yield from wrapped(first_items([unbroken(str(region)) for region in device.holds], REGIONS), indent=6)


def _cuts(e: Explanation, n_shown: int) -> Iterator[str]:
    yield ""
    if not e.cuts:
        yield "Cuts: none, nothing is sent between devices"
        return
    sent, seconds = format_bytes(sum(cut.n_bytes for cut in e.cuts)), format_seconds(sum(cut.seconds for cut in e.cuts))
    total = f"{sent}, {seconds} on links"
    if overhead_s := sum(cut.overhead_s for cut in e.cuts):
        total += f", {format_seconds(overhead_s)} of overhead"
    yield f"Cuts: {count(len(e.cuts), 'transfer')} for each micro-batch, {total}"
    yield from wrapped(f"{_effects(e)}.")
    shown = e.cuts[:n_shown]
    rows: list[tuple[str, ...]] = [("tensor", "from → to", "bytes", "time", "effect", "its writer", "first reader")]
    for cut in shown:
        link, time = f"{cut.src} → {cut.dst}", format_seconds(cut.seconds + cut.overhead_s)
        outcomes = [_outcome(moved, e.objective_s) for moved in cut.moves]
        n_bytes = format_bytes(cut.n_bytes)
        rows.append((short(cut.tensor, NAME), short(link, NAME), n_bytes, time, str(cut.effect), *outcomes))
    heading, *table = aligned(rows, "<<>><>>")
    yield f"{'change if the other side took':>{len(heading)}}"
    yield heading
    for cut, row in zip(shown, table, strict=True):
        yield row
        yield clipped(f"      {_ends(cut)}")
    if len(e.cuts) > len(shown):
        yield f"  … and {len(e.cuts) - len(shown)} more, not tried (--cuts {len(e.cuts)} shows and tries all)"
    yield from wrapped(_verdict(e))


def _effects(e: Explanation) -> str:
    """Return how many of the cuts are part of the bottleneck, and what the others do."""
    n_limits, n_cuts = sum(cut.effect is CutEffect.LIMITS for cut in e.cuts), len(e.cuts)
    limit = "the critical path" if e.goal is Goal.LATENCY else "the bottleneck"
    rest = "go on while devices compute (hidden)" if e.overlap else "occupy devices that have time to spare (slack)"
    if not n_limits:
        return f"None is part of {limit}; they {rest}"
    if n_limits == n_cuts:
        return f"All are part of {limit} (limits)"
    return f"Part of {limit} (limits): {n_limits} of {n_cuts}; the others {rest}"


def _outcome(moved: CutMove, now_s: float) -> str:
    """Return the change that a move would bring, or why it is impossible."""
    if moved.objective_s is None:
        return "cannot run"
    if moved.obstacle:
        return "no room" if moved.roomless else "not allowed"
    return change(now_s, moved.objective_s)


def _ends(cut: Cut) -> str:
    """Return the writer and the readers of a cut with their modules."""
    readers = f" and {len(cut.readers) - 1} more" if len(cut.readers) > 1 else ""
    along = [f"; {moved.op} takes {moved.n_ops - 1} more along" for moved in cut.moves if moved.n_ops > 1]
    return f"{_at(cut.writer, cut.written_in)} → {_at(cut.readers[0], cut.read_in)}{readers}{''.join(along)}"


def _at(op: str, module: str) -> str:
    return f"{op} in {module}" if module else op


def _verdict(e: Explanation) -> str:
    """Return the best of all moves, or that there is none."""
    moves = list(e.moves)
    possible = [(m.objective_s, m) for m in moves if m.objective_s is not None and not m.obstacle]
    tried = f"Of the {len(moves)} moves tried"
    if not possible:
        return f"{tried}, none is possible."
    best_s, best = min(possible, key=lambda pair: pair[0])
    better = [pair for pair in possible if pair[1].better]
    if better:
        best_s, best = min(better, key=lambda pair: pair[0])
        why = "The plan gave that away to be simpler." if e.simpler else "The search did not find that."
        return f"{tried}, {best.op} to {best.to} is best: {change(e.objective_s, best_s)}. {why}"
    if best_s < e.objective_s * (1 - VISIBLE) and (gain := change(e.objective_s, best_s)) != "same":
        but = "but streaming, simulated, it gains nothing, or not the 5 % that going to and fro has to bring"
        return f"{tried}, {best.op} to {best.to} takes least: {gain}; {but}."
    return f"{tried}, none is better: these borders are where they cost least."


def _prices(e: Explanation) -> Iterator[str]:
    """Yield a table of what each constraint costs."""
    if not e.replanned.prices:
        return
    yield from ("", "What each constraint costs")
    rows = [("", "with it", "without", "")]
    for price in e.replanned.prices:
        both = format_seconds(price.with_s), format_seconds(price.without_s)
        rows.append((price.constraint, *both, relative(price.with_s, price.without_s)))
    yield from aligned(rows, "<>>>")


def _helps(e: Explanation) -> Iterator[str]:
    """Yield a table of what more devices, bandwidth, memory or micro-batches in flight would bring."""
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


def _proof(e: Explanation) -> Iterator[str]:
    """Yield how good the plan is, why, and how much of its costs was measured."""
    yield from ("", "How good it is")
    proof = e.proof
    better = f"A plan could be {max(proof.gap, 1e-4):.2%} better at most"
    if proof.status == Status.OPTIMAL or not proof.gap:
        better = "No plan is better"
    yield from wrapped(
        f"{better}: none is below {format_seconds(proof.bound_s)} for {proof.among}, {proof.because}. "
        f"Found by {proof.solver} ({proof.status})."
    )
    spread = e.spread
    yield from wrapped(
        f"80 % of runs should take {spread.range(e.now_s)} {_each(e)} of {e.batch}: runs differ by {spread.total:.0%}, "
        f"of which {spread.pace:.0%} is the machine's pace, {spread.costs:.0%} costs that were not measured, and "
        f"{spread.model:.0%} what the simulation leaves out."
    )
    shares = ", ".join(f"{e.sources[source]:.1%} {word}" for source, word in SOURCES.items() if e.sources.get(source))
    if shares:
        yield from wrapped(f"The operators' time is {shares}{_most(e.estimated, 'mostly')}.")
    guessed = [kind for kind in e.estimated if kind.guessed]
    if guessed:
        yield from wrapped(
            f"Even the work is a guess, for want of a formula{_most(guessed, 'in')}; ranges are wider for it."
        )
    yield from _rests(e.rests)
    if e.estimated:
        yield from wrapped(f"`planner calibrate {e.calibrate}` measures operators.")


def _rests(rests: Sequence[EstimateBasis]) -> Iterator[str]:
    """Yield what estimates from data sheets rest on, kind by kind."""
    shown = [basis for basis in rests if basis.share >= VISIBLE]
    if not shown:
        return
    families = " and ".join(shown[0].fitted_to)
    yield from wrapped(
        f"Estimates follow from a data sheet, with shares of its peaks fitted to published times on {families}:"
    )
    corrected = any(abs(basis.correction - 1) > CORRECTED for basis in shown)
    more = ("corrected",) if corrected else ()
    rows: list[tuple[str, ...]] = [("kernels", "on", "time", "operators", "of the peak", "of the bandwidth", *more)]
    for basis in shown:
        peak = "" if basis.arithmetic_share is None else f"{basis.arithmetic_share:.0%}"
        of = f"{basis.share:.1%}", f"{basis.n_ops:,}", peak, f"{basis.memory_share:.0%}"
        more = (f"× {basis.correction:.2f}",) if corrected else ()
        rows.append((basis.kernel_kind, basis.device_kind, *of, *more))
    yield from aligned(rows, "<<".ljust(len(rows[0]), ">"))
    if corrected:
        yield from wrapped("Each kind is corrected by what its operators here were measured to take on another device.")
    for reason in dict.fromkeys(basis.reason for basis in shown if basis.reason):
        yield from wrapped(f"Less is known of these times, so ranges are wider: {reason}.")


def _most(kinds: Sequence[KindShare], words: str) -> str:
    """Return the largest of these kinds with their shares."""
    shown = [f"{kind.kind} {kind.share:.1%}" for kind in kinds[:KINDS] if kind.share >= VISIBLE]
    return f", {words} {', '.join(shown)}" if shown else ""
