"""A plan in a notebook."""

from costmodels.units import format_bytes, format_rate, format_seconds
from graphs.common.notebook import html_file, html_picture, html_table
from planner.plans.generation import generation_of
from planner.plans.plan import Plan
from planner.problem.result import Status
from planner.view.page import render
from planner.view.picture import svg_picture

MOST_ROWS = 16  # of devices
MOST_OPS = 10_000  # of a network whose page a notebook holds


def plan_html(plan: Plan) -> str:
    """Return the picture, a table with a row for each device, and a link to the page."""
    evaluation = plan.evaluation
    rows = [
        (
            device.name,
            f"{len(plan.placement.operators(number)):,}",
            format_seconds(evaluation.load_s[number]),
            f"{format_bytes(evaluation.memory_bytes[number])} of {format_bytes(device.usable_bytes)}",
        )
        for number, device in enumerate(plan.cluster.devices)
    ]
    times = f" ({plan.times_one_device:.3g} \N{MULTIPLICATION SIGN} one device)" if plan.times_one_device else ""
    proved = "optimal" if plan.status == Status.OPTIMAL else plan.proved
    tokens = generation_of(plan).tokens_per_s if plan.workload.generates else None
    speed = f"{format_rate(plan.samples_per_s)} samples/s" if tokens is None else f"{format_rate(tokens)} tokens/s"
    title = (
        f"{plan.graph.name} for {plan.goal} on {plan.division}: {speed}{times}, "
        f"{format_seconds(plan.latency_s)}; {proved}"
    )
    picture = html_picture(svg_picture(plan), f"where the operators of {plan.graph.name} run")
    if len(rows) > MOST_ROWS:
        rows = [*rows[:MOST_ROWS], (f"and {len(rows) - MOST_ROWS} more", "", "", "")]
    heads = ("device", "operators", "busy per micro-batch", "memory")
    link = ""
    if len(plan.graph.ops) <= MOST_OPS:
        link = html_file(render(plan), f"{plan.graph.name}.html", "the page: every operator, time and byte")
    return picture + html_table(title, heads, rows) + link
