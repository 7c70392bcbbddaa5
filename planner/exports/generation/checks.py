"""Checks that several tools need: that whole layers are on devices, and that all devices are of one host."""

from planner.exports.generation.division import GenerationDivision
from planner.plans.exported import refuse


def check_whole_layers(division: GenerationDivision, name: str) -> None:
    """Check that no devices share the products of a layer; raise InputError that names the tool if some do."""
    shared = next((stage for stage in division.stages if len(stage.devices) > 1), None)
    if shared is not None:
        reason = f"{' and '.join(shared.devices)} share every product"
        raise refuse(name, reason, "has whole layers on devices", "plan with --engine llama-cpp")


def check_one_host(division: GenerationDivision, name: str, rule: str) -> None:
    """Check that all devices are of one host; raise InputError that names the tool and its rule if they are not."""
    hosts = sorted({division.hosts[device] for stage in division.stages for device in stage.devices})
    if len(hosts) > 1:
        reason = f"the plan is on the hosts {', '.join(hosts)}"
        raise refuse(name, reason, rule, "plan for the devices of one host")
