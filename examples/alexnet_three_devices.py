"""AlexNet on three devices, each layer divided by filters and neurons: what was published, and what the planner finds.

The published plan keeps a third of the filters of each layer, and of the neurons of the first two fully connected
layers, on each of three devices, and the last layer on one of them. Where a layer reads all filters, each device gets
those of the others. What is sent for a batch of 128 images follows: MB are 2**20 bytes, of pooled outputs in float32.
Nothing is counted before the grouped layers, as if they read the filters of their own device; two groups do not allow
that on three devices, so the division is run with three groups of 85 filters in the place of two of 128.

    python -m examples.alexnet_three_devices      prints tables and leaves alexnet_three_devices.svg here
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import planner
from costmodels.cluster.cluster import Cluster
from costmodels.cluster.file import cluster_of
from costmodels.tabulate import tabulate
from costmodels.units import format_seconds
from examples.chains import MB, alexnet
from graphs.ir import Graph, Role
from graphs.rewrites.sharding_rules import shardings
from graphs.rewrites.split import Split
from planner.cli.console import Console
from planner.planning.splitting import side_by_side
from planner.planning.team import Team
from planner.plans.plan import Plan, plan_by_hand
from planner.view.picture import svg_picture
from simulator.placement import Placement

BATCH, DEVICES = 128, 3
GPU, LINK = "V100-PCIe-16GB", "Ethernet-40"
LAYERS = ("conv1", "conv2", "conv3", "conv4", "conv5", "fc1", "fc2", "fc3")
PUBLISHED = {  # parameters, MB of the pooled output, MB sent before the layer
    "conv1": ("34.9K", 34.2, 0.0),
    "conv2": ("307K", 21.1, 0.0),
    "conv3": ("885K", 31.7, 42.25),
    "conv4": ("664K", 31.7, 0.0),
    "conv5": ("442K", 4.5, 0.0),
    "fc1": ("37.8M", 2.0, 9.0),
    "fc2": ("16.8M", 2.0, 4.0),
    "fc3": ("4M", 0.5, 1.33),
}
PUBLISHED_MB = 56.58  # sent in all
GROUPED = ("conv2", "conv4", "conv5")


def cluster() -> Cluster:
    """Three GPUs with links of 40 Gbit/s."""
    names = [f"gpu{i}" for i in range(DEVICES)]
    devices = [{"name": name, "kind": "gpu", "like": GPU} for name in names]
    return cluster_of({"version": 1, "device": devices, "link": [{"between": names, "like": LINK}]}, "three devices")


def parameters(graph: Graph) -> dict[str, int]:
    """The number of parameters of each layer."""
    counts: Counter[str] = Counter()
    for tensor in graph.tensors:
        if tensor.role is Role.PARAMETER:
            counts[tensor.name.split(".")[0]] += tensor.n_elements
    return counts


def output_mb(graph: Graph) -> dict[str, float]:
    """MB of what each layer gives to the next one."""
    return {op.module.split(".")[0]: graph.tensor[op.outputs[0]].n_bytes / MB for op in graph.ops}


def gathered_mb(graph: Graph) -> dict[str, float]:
    """MB that are sent before each layer: all that the others have, to each device or to the one of the last layer."""
    output, sent = output_mb(graph), dict.fromkeys(LAYERS, 0.0)
    for before, layer in pairwise(LAYERS):
        if layer not in GROUPED:
            readers = 1 if layer == LAYERS[-1] else DEVICES
            sent[layer] = readers * (DEVICES - 1) / DEVICES * output[before]
    return sent


def sent_mb(plan: Plan) -> float:
    """MB that a plan sends."""
    flow_bytes = plan.table.flow_bytes
    return sum(float(flow_bytes[flow]) for flow, _, _ in plan.placement.cuts(plan.table)) / MB


def division(graph: Graph) -> Split:
    """The published division of a network with as many groups as devices; the last layer stays whole."""
    chosen = {}
    for op in graph.ops:
        if not op.module.startswith(LAYERS[-1]):
            by_axis_1 = [one for one in shardings(graph, op) if one.outputs[0] and one.outputs[0].axis == 1]
            chosen[op.name] = (by_axis_1[0].name, DEVICES)
    return Split(chosen)


def by_filters(asked: Plan) -> Plan:
    """The published division as a plan: part i of each operator on device i."""
    split = division(asked.graph)
    graph = split(asked.graph)
    table = tabulate(graph, asked.cluster, asked.workload, {})
    team = Team.of(asked.cluster)
    assert team is not None
    found = replace(asked, graph=graph, table=table, rewrites=(split,), network=asked.graph.fingerprint, bound_s=0.0)
    return plan_by_hand(found, Placement(side_by_side(graph, team)))


def planned(groups: int, rewrites: str) -> Plan:
    """What the planner finds for one batch."""
    return planner.plan(
        alexnet(BATCH, groups), cluster=cluster(), goal="latency", search=planner.Search(rewrites=rewrites)
    )


def divided(plan: Plan) -> Iterator[str]:
    """By which loop a plan divides the product of each layer."""
    choices = {name: how for one in plan.rewrites if isinstance(one, Split) for name, (how, _) in one.choices.items()}
    graph = alexnet(BATCH)
    for op in graph.ops:
        if op.kind.startswith(("aten.conv", "aten.linear")):
            yield f"{op.module.split('.')[0]} {choices.get(op.name, 'whole')}"


def main() -> int:
    """Print the tables and draw the plan."""
    console, graph = Console(), alexnet(BATCH)
    counts, output, sent = parameters(graph), output_mb(graph), gathered_mb(graph)
    head = ("layer", "parameters", "published", "output MB", "published", "sent before", "published")
    rows = [
        (
            *(layer, f"{counts[layer]:,}", PUBLISHED[layer][0]),
            *(f"{output[layer]:.1f}", f"{PUBLISHED[layer][1]:.1f}"),
            *(f"{sent[layer]:.2f}", f"{PUBLISHED[layer][2]:.2f}"),
        )
        for layer in LAYERS
    ]
    rows.append(("in all", f"{sum(counts.values()):,}", "", "", "", f"{sum(sent.values()):.2f}", f"{PUBLISHED_MB:.2f}"))
    title = f"AlexNet, {BATCH} images, filters and neurons on {DEVICES} devices; MB of 2**20 bytes"
    console.show({}, title, head, rows)
    alone, plan = planned(2, "none"), planned(2, "split")
    published = by_filters(planned(DEVICES, "none"))
    compared = [
        ("one device", planner.plan(alexnet(BATCH), cluster=cluster().first(1), goal="latency")),
        ("whole operators, the planner", alone),
        ("filters and neurons, 3 groups", published),
        ("operators in parts, the planner", plan),
    ]
    best_s = compared[0][1].latency_s
    lines = [
        (name, format_seconds(one.latency_s), f"{best_s / one.latency_s:.2f}", f"{sent_mb(one):.2f} MB")
        for name, one in compared
    ]
    console.show({}, f"one batch on {GPU}, {LINK}", ("plan", "one batch", "× one device", "sent"), lines)
    console.say(f"the planner divides {', '.join(divided(plan))}")
    Path("alexnet_three_devices.svg").write_text(svg_picture(plan), encoding="utf-8")
    console.say("alexnet_three_devices.svg is written")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
