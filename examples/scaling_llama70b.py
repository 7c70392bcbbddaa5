"""Training a Llama of 70 billion parameters on 8 to 1024 GPUs, on paper: pipelines, and replicas of them.

One layer is traced on the meta device, so nothing is allocated; its costs are estimated from the data sheet
(`costmodels.estimates`): what was published stands below the table. Nodes have eight H100 with NVLink between
them; each GPU has its own InfiniBand to the other nodes. A pipeline takes neighbouring GPUs, its replicas are on other
nodes. Every step has the same number of sequences, so more replicas have fewer micro-batches each, and the pipelines'
bubbles grow.

    python -m examples.scaling_llama70b      prints a table and leaves scaling_llama70b.svg in the current folder
"""

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log10
from pathlib import Path

import numpy as np
import torch

from costmodels.cluster.catalogue import entry
from costmodels.cluster.cluster import Cluster, Link
from costmodels.cluster.collectives import Port, ring_all_reduce
from costmodels.cluster.file import cluster_of
from costmodels.operators.flops import work_of
from costmodels.tabulate import tabulate
from costmodels.units import format_bytes, format_seconds
from costmodels.workload import Workload
from graphs.importers.from_config import build
from graphs.importers.from_torch import program_from_module
from graphs.ir import Graph, Role
from planner.cli.console import Console
from simulator.lower_schedule import StageCost
from simulator.pipeline import simulate_schedule
from simulator.schedules import SCHEDULES

LAYERS, HIDDEN, TOKENS, SEQUENCES = 80, 8192, 4096, 1024  # of the network, of a sequence, of a step
GPUS = (8, 16, 32, 64, 128, 256, 512, 1024)
NODE = 8  # GPUs of a node
PIPELINES = (8, 16, 32)  # GPUs of a pipeline
GPU, DTYPE = "H100-SXM-80GB", "bfloat16"
MOVED = 7  # Adam reads parameter, gradient and two moments, and writes all but the gradient
PUBLISHED = (  # share of the peak that went into the model's own FLOP, on H100 in bfloat16
    ("70B on 64, sharded, recomputing (MosaicML, llm-foundry, training benchmarks, 2023)", 0.4257),
    ("405B on 8,192, tensors and pipelines (Dubey et al., The Llama 3 Herd of Models, 2024, table 4)", 0.43),
)
BORDER_BYTES = TOKENS * HIDDEN * 2  # what a micro-batch of one sequence sends from stage to stage
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": HIDDEN,
    "intermediate_size": 28672,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "num_hidden_layers": 1,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "torch_dtype": DTYPE,
    "tie_word_embeddings": False,
}


@dataclass(frozen=True)
class Part:
    """Some operators of the network, together; for one sequence."""

    forward_s: float
    backward_s: float
    flop: float
    resident_bytes: float
    parameter_bytes: float
    saved_bytes: float


@dataclass(frozen=True)
class Network:
    """The three kinds of parts, and what a GPU needs besides to compute."""

    embedding: Part
    layer: Part
    head: Part
    working_bytes: float

    @property
    def flop(self) -> float:
        """FLOP of a step: forward, and twice that backward."""
        return 3 * SEQUENCES * (self.embedding.flop + LAYERS * self.layer.flop + self.head.flop)


@dataclass(frozen=True)
class Way:
    """How GPUs are used.

    Attributes:
        gpus: all of them.
        pipeline: those of one replica.
        per_gpu: stages of a GPU.
        recompute: whether stages keep only their inputs for the way back.
    """

    gpus: int
    pipeline: int
    per_gpu: int
    recompute: bool

    @property
    def replicas(self) -> int:
        """How many pipelines."""
        return self.gpus // self.pipeline

    @property
    def micro_batches(self) -> int:
        """Of each pipeline, one sequence each."""
        return SEQUENCES // self.replicas


@dataclass(frozen=True)
class Outcome:
    """What a way comes to: seconds of a step and bytes of the fullest GPU."""

    way: Way
    step_s: float
    memory_bytes: float


def cluster() -> Cluster:
    """Three GPUs: the second one shares a node with the first one, the third does not."""
    devices = [{"name": name, "like": GPU} for name in ("here", "beside", "away")]
    links = [
        {"from": "here", "to": "beside", "like": "NVLink4"},
        {"from": "here", "to": "away", "like": "InfiniBand-400"},
    ]
    return cluster_of({"version": 1, "device": devices, "link": links})


def network() -> Network:
    """Trace one layer with the embedding before and the head behind, and add up what their operators cost."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(CONFIG), encoding="utf-8")
        module = build(path)
    with torch.device("meta"):
        tokens = torch.zeros(1, TOKENS, dtype=torch.long)
    graph = program_from_module(module, (), {"input_ids": tokens}).graph
    inside = [i for i, op in enumerate(graph.ops) if op.module.startswith("model.layers.0")]
    groups = [range(inside[0]), range(inside[0], inside[-1] + 1), range(inside[-1] + 1, len(graph.ops))]
    workload = Workload("training", batch=1, optimizer="adam", micro_batches=2)
    table = tabulate(graph, Cluster("one", cluster().devices[:1]), workload, {})
    columns = (
        table.forward_s[:, 0],
        table.backward_s[:, 0],
        work_of(graph).flop,
        table.op_bytes,
        _parameter_bytes(graph),
        table.trained.saved_bytes,
    )
    embedding, layer, head = (Part(*(float(column[list(ops)].sum()) for column in columns)) for ops in groups)
    return Network(embedding, layer, head, table.working_bytes)


def simulate(net: Network, way: Way, devices: Cluster) -> Outcome:
    """A step: interleaved 1F1B where GPUs have several stages, a ring over the replicas, Adam."""
    n_stages = way.pipeline * way.per_gpu
    layers = [LAYERS * (stage + 1) // n_stages - LAYERS * stage // n_stages for stage in range(n_stages)]
    costs, resident_bytes = [], np.full(way.pipeline, net.working_bytes)
    for stage, n_layers in enumerate(layers):
        parts = [net.layer] * n_layers + [net.embedding] * (stage == 0) + [net.head] * (stage == n_stages - 1)
        costs.append(_stage_cost(parts, stage, way, devices))
        resident_bytes[stage % way.pipeline] += sum(part.resident_bytes for part in parts)
    name = "interleaved" if way.per_gpu > 1 else "1f1b"
    run = simulate_schedule(SCHEDULES[name](way.pipeline, way.micro_batches, way.per_gpu), costs)
    saved_bytes = np.array([saved.peak_bytes for saved in run.saved])
    return Outcome(way, run.makespan_s, float((resident_bytes + saved_bytes).max()))


def ways(gpus: int) -> Iterator[Way]:
    """All that these GPUs can be used for."""
    for pipeline in PIPELINES:
        if gpus % pipeline == 0:
            for per_gpu in (1, 2):
                for recompute in (False, True):
                    way = Way(gpus, pipeline, per_gpu, recompute)
                    if per_gpu == 1 or way.micro_batches % pipeline == 0:
                        yield way


def best(net: Network, gpus: int, devices: Cluster) -> Outcome:
    """The fastest way that fits into memory; the smallest if none does."""
    outcomes = [simulate(net, way, devices) for way in ways(gpus)]
    fitting = [outcome for outcome in outcomes if outcome.memory_bytes <= devices.devices[0].memory_bytes]
    if not fitting:
        return min(outcomes, key=lambda outcome: outcome.memory_bytes)
    return min(fitting, key=lambda outcome: outcome.step_s)


def plot(gpus: Sequence[int], tokens_per_s: Sequence[float], fits: Sequence[bool]) -> str:
    """Tokens/s against GPUs, both logarithmic, beside the line of the first point; hollow where memory is too small."""
    width, height, edge = 640, 400, 60
    ideal = [tokens_per_s[0] * n / gpus[0] for n in gpus]
    low, high = log10(min(tokens_per_s)), log10(max(ideal))

    def points(values: Sequence[float]) -> list[tuple[float, float]]:
        return [
            (
                edge + (width - 2 * edge) * i / (len(gpus) - 1),
                height - edge - (height - 2 * edge) * (log10(value) - low) / (high - low),
            )
            for i, value in enumerate(values)
        ]

    def line(values: Sequence[float], look: str) -> str:
        return f'<polyline class="{look}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points(values))}"/>'

    labels = [
        f'<circle class="{"" if there else "out"}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
        f'<text x="{x:.1f}" y="{y + 20:.1f}">{value:,.0f}</text>'
        f'<text x="{x:.1f}" y="{height - edge / 2.5:.1f}">{n}</text>'
        for (x, y), value, n, there in zip(points(tokens_per_s), tokens_per_s, gpus, fits, strict=True)
    ]
    style = (
        "svg { background: var(--g); --g: #fff; --i: #1f2328; font: 11px system-ui, sans-serif; } "
        "@media (prefers-color-scheme: dark) { svg { --g: #0d1117; --i: #e6edf3; } } "
        "text { fill: var(--i); text-anchor: middle; } polyline { fill: none; stroke: #0072B2; stroke-width: 2; } "
        ".ideal { stroke: #999; stroke-dasharray: 4; } circle { fill: #0072B2; stroke: #0072B2; } "
        ".out { fill: var(--g); }"
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
    title = "Llama 70B on H100: tokens/s (dashed: in step with the GPUs; hollow: does not fit into memory)"
    body = [line(ideal, "ideal"), line(tokens_per_s, "real"), *labels]
    caption = f'<text x="{width / 2}" y="24">{title}</text><text x="{width / 2}" y="{height - 5}">GPUs</text>'
    return "\n".join([head, f"<title>{title}</title><style>{style}</style>", caption, *body, "</svg>"]) + "\n"


def main() -> int:
    """Print the table and write the plot."""
    net, devices = network(), cluster()
    peak_flop_per_s = devices.devices[0].flops_per_s[DTYPE]
    outcomes = [best(net, gpus, devices) for gpus in GPUS]
    fits = [outcome.memory_bytes <= devices.devices[0].memory_bytes for outcome in outcomes]
    rows = []
    for outcome, there in zip(outcomes, fits, strict=True):
        way, used = outcome.way, net.flop / (outcome.step_s * outcome.way.gpus * peak_flop_per_s)
        rows.append(
            (
                f"{way.gpus}",
                f"{way.pipeline} × {way.replicas}",
                "interleaved" if way.per_gpu > 1 else "1f1b",
                "yes" if way.recompute else "no",
                format_seconds(outcome.step_s),
                f"{_tokens_per_s(outcome):,.0f}",
                f"{used:.1%}",
                format_bytes(outcome.memory_bytes),
                "yes" if there else "no",
            )
        )
    columns = ("GPUs", "pipeline × replicas", "schedule", "recompute", "step", "tokens/s", "MFU", "memory", "fits")
    title = f"Llama 70B, {SEQUENCES} sequences of {TOKENS} tokens a step, on {GPU} ({entry('device', GPU).source})"
    console = Console()
    console.show({}, title, columns, rows)
    for what, share in PUBLISHED:
        console.say(f"published MFU {share:.1%}: {what}")
    path = Path("scaling_llama70b.svg")
    path.write_text(plot(GPUS, [_tokens_per_s(outcome) for outcome in outcomes], fits), encoding="utf-8")
    console.say(f"{path} is written")
    return 0


def _stage_cost(parts: Sequence[Part], stage: int, way: Way, devices: Cluster) -> StageCost:
    """What a stage costs for one sequence, and at the end of the step."""
    beside, away = (devices.link[0, there] for there in (1, 2))
    rank = stage % way.pipeline
    to_next = _hop(rank, (rank + 1) % way.pipeline, beside, away)
    to_before = _hop(rank, (rank - 1) % way.pipeline, beside, away)
    border_bytes = np.array([float(BORDER_BYTES)])
    parameter_bytes = sum(part.parameter_bytes for part in parts)
    backward_s = sum(part.backward_s for part in parts)
    cost = StageCost(
        forward_s=sum(part.forward_s for part in parts),
        input_grad_s=backward_s / 2,
        weight_grad_s=backward_s / 2,
        activation_s=float(to_next.seconds(border_bytes)[0]),
        gradient_s=float(to_before.seconds(border_bytes)[0]),
        saved_bytes=round(sum(part.saved_bytes for part in parts)),
        sync_s=ring_all_reduce(parameter_bytes, way.replicas, Port(away.latency_s, away.bytes_per_s)).time_s,
        optimizer_s=MOVED * parameter_bytes / devices.devices[0].memory_bytes_per_s,
    )
    return cost.recomputing(BORDER_BYTES, cost.forward_s) if way.recompute else cost


def _hop(rank: int, other: int, beside: Link, away: Link) -> Link:
    """The link between two GPUs of a pipeline."""
    return beside if rank // NODE == other // NODE else away


def _parameter_bytes(graph: Graph) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """[n_ops], of the parameters that each operator reads; none is read twice."""
    return np.array([float(sum(t.n_bytes for t in graph.state(op) if t.role is Role.PARAMETER)) for op in graph.ops])


def _tokens_per_s(outcome: Outcome) -> float:
    return SEQUENCES * TOKENS / outcome.step_s


if __name__ == "__main__":
    raise SystemExit(main())
