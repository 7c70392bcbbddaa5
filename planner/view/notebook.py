"""A plan in a notebook."""

from costmodels.units import format_bytes, format_seconds
from graphs.notebook import html_picture, html_table
from planner.plans.plan import Plan
from planner.view.picture import svg_picture


def plan_html(plan: Plan) -> str:
    """The picture and a table with a row for each device."""
    evaluation = plan.evaluation
    rows = [
        (
            device.name,
            f"{len(plan.placement.operators(number)):,}",
            format_seconds(evaluation.load_s[number]),
            f"{format_bytes(evaluation.memory_bytes[number])} of {format_bytes(device.memory_bytes)}",
        )
        for number, device in enumerate(plan.cluster.devices)
    ]
    times = f" ({plan.times_one_device:.3g} \N{MULTIPLICATION SIGN} one device)" if plan.times_one_device else ""
    title = (
        f"{plan.graph.name} for {plan.goal}: {plan.samples_per_s:.4g} samples/s{times}, "
        f"{format_seconds(plan.latency_s)}; no plan can be more than {plan.gap:.2%} better"
    )
    picture = html_picture(svg_picture(plan), f"where the operators of {plan.graph.name} run")
    return picture + html_table(title, ("device", "operators", "busy per micro-batch", "memory"), rows)
