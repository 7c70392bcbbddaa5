"""dot: a plan in the language of Graphviz, with a cluster for each device.

::

    dot -Tpdf plan.dot -o plan.pdf
"""

from collections.abc import Iterator, Sequence

from costmodels.units import format_bytes, format_seconds
from graphs.common.visible import visible
from planner.plans.plan import Plan

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#f0e442", "#999999")
"""The colours of the page: Okabe and Ito, Color universal design, 2008."""


def dot_text(plan: Plan) -> str:
    """Return every operator in the cluster of its device, and every tensor; the same text for the same plan."""
    return "\n".join(_lines(plan)) + "\n"


def _lines(plan: Plan) -> Iterator[str]:
    yield f"digraph {_quoted(plan.graph.name)} {{"
    yield "  rankdir=LR;"
    yield '  node [shape=box, style="rounded,filled", fillcolor=white, fontname="Helvetica"];'
    yield '  edge [color="#98a2af", fontname="Helvetica"];'
    for number, device in enumerate(plan.table.devices):
        ops = [
            (copy, op)
            for copy, placed in enumerate(plan.placement.copies)
            for op, home in enumerate(placed.device)
            if home == number
        ]
        if ops:
            yield f"  subgraph cluster_{number} {{"
            load = format_seconds(plan.evaluation.load_s[number])
            yield f"    label={_quoted(f'{device}: {load} for each micro-batch')};"
            yield f'    color="{COLOURS[number % len(COLOURS)]}"; penwidth=3; fontname="Helvetica";'
            for copy, op in ops:
                seconds = format_seconds(plan.costs.forward_s[op, number] + plan.costs.backward_s[op, number])
                yield f"    {_node(copy, op)} [label={_quoted(plan.table.ops[op], plan.graph.ops[op].kind, seconds)}];"
            yield "  }"
    for copy, placement in enumerate(plan.placement.copies):
        yield from _arrows(plan, copy, placement.device)
    yield "}"


def _node(copy: int, op: int) -> str:
    """Return the name of an operator in one copy of the network."""
    return f"o{op}c{copy}" if copy else f"o{op}"


def _arrows(plan: Plan, copy: int, placed: Sequence[int]) -> Iterator[str]:
    """Yield the tensors of one copy of the network, whose operators are placed so."""
    for number, flow in enumerate(plan.table.flows):
        labelled: set[int] = set()  # devices; a tensor is sent to each device once
        for reader in flow.readers:
            src, dst = placed[flow.writer], placed[reader]
            ends = f"{_node(copy, flow.writer)} -> {_node(copy, reader)}"
            if src == dst:
                yield f"  {ends};"
                continue
            figures = format_bytes(plan.table.flow_bytes[number]), format_seconds(plan.table.send_s(number, src, dst))
            label = "" if dst in labelled else f", label={_quoted(*figures)}"
            labelled.add(dst)
            yield f'  {ends} [color="#15181d", penwidth=3{label}];'


def _quoted(*lines: str) -> str:
    """Return a label of several lines in quotes."""
    escaped = (visible(line).replace("\\", "\\\\").replace('"', '\\"') for line in lines)
    return '"' + "\\n".join(escaped) + '"'
