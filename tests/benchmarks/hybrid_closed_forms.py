"""Closed forms of memory and of collectives beside published figures: each case computed by our formulas.

Cases are those of ``../shared/bench/hybrid/memory`` and ``classic``, whose fields name the formula and its arguments.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from costmodels.cluster.collectives import (
    CollectiveCost,
    Port,
    flat_ring_all_reduce,
    hierarchical_all_reduce,
    parameter_server,
    ring_all_reduce,
    sharded_parameter_server,
)
from planner.parallelism.closed_form.memory import LayerSplit, layer_activations, zero_states
from planner.parallelism.closed_form.transformer import Transformer
from tests.benchmarks.transformer_memory import (
    deepspeed_states,
    first_stage_activations,
    layer_states,
    megatron_activations,
    megatron_states,
)

Arguments = Mapping[str, Any]
EXACT = 1e-9  # where a case says nothing; relative
PRINTED = 1e-6  # of what has ten digits
MOST_HEADS = 1024  # of a share of key heads that a case has as a decimal fraction


class Figure(NamedTuple):
    """One figure of ours beside a published one."""

    name: str
    ours: float
    published: float
    tolerance: float

    @property
    def holds(self) -> bool:
        """Whether both are the same within the tolerance."""
        return abs(self.ours - self.published) <= self.tolerance * abs(self.published)


def _network(a: Arguments) -> Transformer:
    share = Fraction(a.get("kv_share", 1.0)).limit_denominator(MOST_HEADS)
    heads = a.get("heads", share.denominator)  # where heads do not matter, as few as have the share of key heads
    return Transformer(
        a.get("layers", 1),
        a["hidden"],
        heads,
        a.get("sequence", 2048),
        a.get("vocabulary", 51200),
        a.get("ffn", 0),
        kv_heads=round(heads * share),
        gated=a.get("gated", False),
        norm_vectors=a.get("norm", 2),
        untied=a.get("untied", False),
    )


def _split(a: Arguments) -> LayerSplit:
    return LayerSplit(a.get("tensor", 1), a.get("sequence_parallel", False), a.get("recompute", "none"))


def _percent(a: Arguments) -> float:
    network, plain = _network(a), LayerSplit(a.get("tensor", 1))
    kept = layer_activations(network, a["batch"], _split(a))
    return 100 * kept / layer_activations(network, a["batch"], plain)


FORMULAS: Mapping[str, Callable[[Arguments], float]] = {
    "zero_states": lambda a: zero_states(**a),
    "deepspeed_states": lambda a: deepspeed_states(**a),
    "layer_states": lambda a: layer_states(_network(a), a["tensor"], a["pipeline"], a.get("bytes_each", 18)),
    "parameters": lambda a: _network(a).parameters,
    "activations_layer": lambda a: layer_activations(_network(a), a["batch"], _split(a)),
    "activations_first_stage": lambda a: first_stage_activations(
        _network(a), a["batch"], _split(a), a.get("pipeline", 1), a.get("chunks", 1)
    ),
    "activations_percent": _percent,
    "megatron_states": lambda a: megatron_states(
        _network(a), a["tensor"], a["pipeline"], a.get("data", 1), a.get("distributed_optimizer", False)
    ),
    "megatron_activations": lambda a: megatron_activations(
        _network(a), a["batch"], a["tensor"], a["pipeline"], a.get("chunks", 1), a.get("micro_batches")
    ),
}
"""Our formula for each that a case may name."""


def memory_figures(path: Path) -> Iterator[Figure]:
    """Every case of the file."""
    for case in json.loads(path.read_text(encoding="utf-8"))["cases"]:
        ours = FORMULAS[case["formula"]](case["args"]) / case.get("unit", 1)
        yield Figure(f"{case['formula']} {case['args']}", ours, case["expected"], case.get("tolerance", EXACT))


def collective_figures(path: Path) -> Iterator[Figure]:
    """Bytes and seconds of every scheme of every case."""
    for case in json.loads(path.read_text(encoding="utf-8"))["synchronise"]:
        costs = _schemes(case)
        for scheme, fields in case["expected"].items():
            for field, published in fields.items():
                cost = costs[scheme]
                by_field = {"seconds": cost.time_s, "server_link_bytes": cost.carried_bytes}
                name = f"{scheme} {field}, {case['nodes']} nodes × {case.get('devices', 1)}"
                yield Figure(name, by_field.get(field, cost.sent_bytes), published, PRINTED)


def _schemes(case: Mapping[str, Any]) -> dict[str, CollectiveCost]:
    n_bytes, nodes, devices = case["bytes"], case["nodes"], case.get("devices", 1)
    port = Port(case["latency"], case["bandwidth"])
    inside = Port(case.get("latency_inside", 0.0), case.get("bandwidth_inside", 1.0))
    return {
        "server": parameter_server(n_bytes, nodes, port),
        "sharded_server": sharded_parameter_server(n_bytes, nodes, port),
        "ring": ring_all_reduce(n_bytes, nodes, port),
        "flat_ring": flat_ring_all_reduce(n_bytes, nodes, devices, port),
        "hierarchical": hierarchical_all_reduce(n_bytes, nodes, devices, port, inside),
        "hierarchical_leader": hierarchical_all_reduce(n_bytes, nodes, devices, port, inside, leader=True),
    }
