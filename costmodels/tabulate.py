"""Graph, cluster and workload into a CostTable: the times of operators, and what follows from the descriptions."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from costmodels.cluster.cluster import Cluster
from costmodels.contention_costs import ContentionCosts
from costmodels.measured import Profile
from costmodels.memory.device import ends_bytes, gradient_bytes, op_bytes, saved_bytes, tied_groups, working_bytes
from costmodels.memory.footprints import Footprints
from costmodels.memory.optimizers import OPTIMIZERS
from costmodels.memory.recomputation import once_bytes, once_saved_bytes, runs_once
from costmodels.operator_times import LearnedOf, OperatorTimes, operator_times
from costmodels.operators.device_kinds import only_on
from costmodels.operators.flops import work_of
from costmodels.step_update import StepUpdate
from costmodels.table import CostTable
from costmodels.training_costs import TrainingCosts
from costmodels.workload import Workload
from graphs.common.arrays import Floats, Ints
from graphs.common.errors import InputError
from graphs.ir import ITEM_BYTES, Graph, Role


def tabulate(
    graph: Graph,
    cluster: Cluster,
    workload: Workload,
    profiles: Mapping[str, Profile],
    learned: LearnedOf = lambda _: None,
) -> CostTable:
    """Return every number that a planner needs.

    Args:
        graph: with the shapes of one micro-batch.
        cluster: devices and links.
        workload: what the network is used for.
        profiles: measurements by fingerprint; a device uses the one that its ``profile`` names.
        learned: what was learned from measurements, for operators that were not measured.

    Raises:
        InputError: if no operator is to be trained, a device has no arithmetic as wide as a parameter, or PyTorch has
            an operator for no kind of device there.
    """
    if workload.trains and not graph.ops:
        raise InputError(f"network '{graph.name}' has no operators, so there is nothing to train")
    _check_arithmetic(graph, cluster)
    times = operator_times(graph, cluster, workload, profiles, learned)
    _check_kinds(graph, cluster, times)
    return assemble(graph, cluster, workload, times)


def _check_kinds(graph: Graph, cluster: Cluster, times: OperatorTimes) -> None:
    """Check that every operator runs on one of the devices."""
    for number in np.flatnonzero(np.isinf(times.forward_s).all(axis=1)):
        op = graph.ops[number]
        raise InputError(
            f"operator '{op.name}' of '{graph.name}' ({op.kind}) is one that PyTorch has for {only_on(op)} alone, and "
            f"'{cluster.name}' has none; add one, or give the model as it is for the devices that there are"
        )


def _check_arithmetic(graph: Graph, cluster: Cluster) -> None:
    """Check that devices can compute in the parameters' dtype, or a wider one; 16 bits cannot stand in for 32."""
    floating = [t for t in graph.tensors if t.role is Role.PARAMETER and "float" in t.dtype]
    widest = max(floating, key=lambda tensor: ITEM_BYTES[tensor.dtype], default=None)
    for device in cluster.devices:
        known = [dtype for dtype in device.flops_per_s if "float" in dtype]
        width = max((ITEM_BYTES[dtype] for dtype in known), default=0)
        if widest is not None and width < min(ITEM_BYTES[widest.dtype], ITEM_BYTES["float32"]):
            raise InputError(
                f"device '{device.name}' computes in {' and '.join(known) or 'no floating-point numbers'}, and "
                f"parameter '{widest.name}' of '{graph.name}' is {widest.dtype}; convert the model, such as "
                f"model.to(torch.bfloat16), or give the device flops.{widest.dtype}"
            )


def assemble(graph: Graph, cluster: Cluster, workload: Workload, times: OperatorTimes) -> CostTable:
    """Return the table of operator times that are known; everything else follows from the three descriptions.

    Args:
        graph: with the shapes of one micro-batch.
        cluster: devices and links.
        workload: what the network is used for.
        times: [n_ops, n_devices].
    """
    flow_bytes = np.array([float(graph.tensor[flow.tensor].n_bytes) for flow in graph.flows])
    return CostTable(
        ops=tuple(op.name for op in graph.ops),
        devices=tuple(device.name for device in cluster.devices),
        forward_s=times.forward_s,
        source=times.source,
        spread=times.spread,
        op_bytes=op_bytes(graph, workload),
        working_bytes=working_bytes(graph, workload),
        flows=graph.flows,
        flow_bytes=flow_bytes,
        **_links(cluster, flow_bytes),
        capacity_bytes=np.array([float(device.usable_bytes) for device in cluster.devices]),
        overlap=cluster.overlap,
        sharing=cluster.sharing,
        together=tied_groups(graph),
        overhead_s=np.array([device.overhead_s for device in cluster.devices]),
        training=_training(graph, cluster, workload, times) if workload.trains else None,
        contention=_contention(cluster, times),
    )


def with_flows(table: CostTable, cluster: Cluster, flow_bytes: Floats) -> CostTable:
    """Return a table whose flows have other sizes, [n_flows] bytes: those of another phase of the network."""
    return replace(table, flow_bytes=flow_bytes, **_links(cluster, flow_bytes))


def with_times(table: CostTable, times: OperatorTimes, cluster: Cluster) -> CostTable:
    """Return a table for inference with other times of its operators."""
    contention = _contention(cluster, times)
    return replace(table, forward_s=times.forward_s, source=times.source, spread=times.spread, contention=contention)


def _training(graph: Graph, cluster: Cluster, workload: Workload, times: OperatorTimes) -> TrainingCosts:
    learning, once, kept_bytes = Footprints(graph).behind, runs_once(graph), saved_bytes(graph, workload)
    return TrainingCosts(
        backward_s=times.backward_s,
        gradient=np.array([flow.tensor in learning for flow in graph.flows], dtype=bool),
        saved_bytes=kept_bytes,
        ends_bytes=np.minimum(ends_bytes(graph, workload), kept_bytes),
        runs_once=once,
        once_bytes=np.where(once, once_bytes(graph), 0.0),
        once_saved_bytes=once_saved_bytes(graph),
        update=_update(graph, cluster, workload),
    )


def _contention(cluster: Cluster, times: OperatorTimes) -> ContentionCosts | None:
    """Return what slows devices down; None if each is alone."""
    contention = ContentionCosts(times.slowdown, times.copies_slowdown, _contention_groups(cluster))
    alone = len(set(contention.group.tolist())) == len(cluster.devices)
    return None if alone and not contention.slows else contention


def guessed_kinds(graph: Graph) -> tuple[str, ...]:
    """Return the kinds of operators whose work the roofline can only guess, in order of appearance."""
    return work_of(graph).guessed


def _contention_groups(cluster: Cluster) -> Ints:
    """Return [n_devices], one number for devices of a kind of this host, and one for each that was not measured."""
    first = {device.profile: number for number, device in reversed(list(enumerate(cluster.devices))) if device.profile}
    return np.array([first.get(device.profile, number) for number, device in enumerate(cluster.devices)])


def _update(graph: Graph, cluster: Cluster, workload: Workload) -> StepUpdate:
    """Return what ends a step: an optimizer that memory bounds, and sums of gradients if there are replicas."""
    moves, ring = OPTIMIZERS[workload.optimizer].moves, cluster.replicas
    n = len(cluster.devices)
    optimizer_s_per_byte = np.array([moves / device.memory_bytes_per_s for device in cluster.devices])
    sync_s_per_byte, sync_latency_s = (ring.sync_s_per_byte, ring.sync_latency_s) if ring else (0.0, 0.0)
    return StepUpdate(
        gradient_bytes(graph),
        optimizer_s_per_byte,
        np.full(n, sync_s_per_byte),
        np.full(n, sync_latency_s),
        np.arange(n) // (ring.rings if ring else 1),
    )


def _links(cluster: Cluster, flow_bytes: Floats) -> dict[str, Any]:
    """Return the links as the arrays of a `CostTable`."""
    link_class, channel, examples = cluster.wired_pairs
    link_s = np.array([link.seconds(flow_bytes) for link in examples]).reshape(len(examples), len(flow_bytes))
    latency_s = np.array([link.latency_s for link in examples])
    return {"link_class": link_class, "link_s": link_s.T, "link_latency_s": latency_s, "channel": channel}
