"""summary: a plan in ten lines, for people; nothing is simulated for it."""

from costmodels.units import format_bytes, format_seconds
from graphs.visible import visible
from planner.plans.plan import Plan

MOST_DEVICES = 6  # that have a line of their own


def summary(plan: Plan) -> str:
    """What the plan is for, how good it is, and what the busiest devices do: ten lines at most."""
    table, judged, device = plan.table, plan.evaluation, plan.placement.device
    used = sorted(set(device), key=lambda number: (-judged.load_s[number], number))
    sent_bytes = sum(float(table.flow_bytes[flow]) for flow, _, _ in plan.placement.cuts(table))
    lines = [
        f"{plan.graph.name} for {plan.goal}: {table.n_ops:,} operators on {len(used)} of {table.n_devices} devices of "
        f"{plan.cluster.name}",
        f"  {_workload(plan)}, {format_bytes(sent_bytes)} between devices for each",
        f"  {format_seconds(plan.objective_s)} by {plan.solver}; no plan can be more than {plan.gap:.2%} better "
        f"({plan.status})",
    ]
    for number in used[:MOST_DEVICES]:
        load, n_bytes = format_seconds(judged.load_s[number]), format_bytes(judged.memory_bytes[number])
        room = format_bytes(table.capacity_bytes[number])
        lines.append(f"  {table.devices[number]}: {device.count(number):,} operators, {load}, {n_bytes} of {room}")
    if used[MOST_DEVICES:]:
        lines.append(f"  and {len(used) - MOST_DEVICES} more devices, none of them busier")
    return "\n".join(map(visible, lines))


def _workload(plan: Plan) -> str:
    workload = plan.workload
    if workload.trains:
        return f"steps of {workload.micro_batches} micro-batches of {workload.batch} by {workload.schedule}"
    return f"micro-batches of {workload.batch}, {workload.in_flight} in flight"
