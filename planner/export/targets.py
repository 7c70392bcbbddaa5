"""The targets by name."""

from graphs.errors import InputError
from planner.export import deepspeed, device_map, graph_json, megatron, node_link, schedule_csv, split_spec, torchgpipe
from planner.export.records import Export, Target
from planner.plans.plan import Plan

TARGETS: dict[str, Target] = {
    device_map.NAME: device_map.hf_device_map,
    split_spec.NAME: split_spec.torch_split_spec,
    schedule_csv.NAME: schedule_csv.torch_schedule_csv,
    megatron.NAME: megatron.megatron_layout,
    deepspeed.NAME: deepspeed.deepspeed,
    torchgpipe.NAME: torchgpipe.torchgpipe,
    graph_json.NAME: graph_json.graph_json,
    node_link.NAME: node_link.node_link,
}


def export(plan: Plan, target: str) -> Export:
    """A plan in the format of another tool.

    Raises:
        InputError: for an unknown target, or a target that cannot express the plan.
    """
    if target not in TARGETS:
        raise InputError(f"there is no target '{target}'; known: {', '.join(TARGETS)}")
    return TARGETS[target](plan)
