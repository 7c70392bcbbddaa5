"""Clusters and figures that others published whole: prima.cpp's home, KTransformers' server, vLLM's balanced stages."""

from collections.abc import Mapping, Sequence
from typing import Any

from costmodels.cluster.cluster import Cluster, Device, Link
from costmodels.cluster.tables import device_of
from costmodels.generation.rates import rates_of
from costmodels.generation.stages import HostProcessors, Unit, away_demand, head_seconds, layer_seconds
from costmodels.generation.work import LayerShare, Tokens, pass_demand, peaks_of, works_of
from costmodels.language_model.formats import format_named
from costmodels.language_model.read import read_language_model
from planner.generation.fit import fit
from planner.generation.plan import GenerationPlan
from planner.generation.question import generation_question
from tests.benchmarks.language_models.configs import CONFIGS, config_of

GIB = 2.0**30
WIFI_BYTES_PER_S, WIFI_LATENCY_S = 600e6 / 8, 2e-3
PCIE_BYTES_PER_S, PCIE_LATENCY_S = 15.75e9, 5e-6


def home() -> Cluster:
    """Return prima.cpp's cluster, with the memories of its README: a Mac, a laptop, a desktop and a phone on Wi-Fi."""
    devices = (
        _on("mac", "mac-gpu", "Apple-M1", 8),
        _on("laptop", "laptop-gpu", "RTX-3070", 8),
        _on("laptop", "laptop-cpu", "Core-i9-13900K", 8, bytes_per_s=51.2e9),
        _on("desktop", "desktop-gpu", "RTX-2080-Ti", 11),
        _on("desktop", "desktop-cpu", "Core-i9-13900K", 16, bytes_per_s=51.2e9),
        Device("phone", "cpu Kirin-9000", 8 * GIB, {"float32": 150e9}, 44e9, host="phone", reserve_bytes=4 * GIB),
    )
    links = tuple(
        Link(a.name, b.name, PCIE_BYTES_PER_S, PCIE_LATENCY_S)
        if a.host == b.host
        else Link(a.name, b.name, WIFI_BYTES_PER_S, WIFI_LATENCY_S, channel="Wi-Fi")
        for a in devices
        for b in devices
        if a is not b
    )
    return Cluster("prima.cpp's home", devices, links)


def _on(host: str, name: str, like: str, memory_gib: float, bytes_per_s: float | None = None) -> Device:
    own: dict[str, Any] = {"name": name, "like": like, "host": host, "memory": f"{memory_gib} GiB"}
    if bytes_per_s is not None:
        own["memory_bandwidth"] = f"{bytes_per_s:g} B/s"
    return device_of(own)


def home_plans(entries: Sequence[Mapping[str, Any]]) -> list[tuple[str, float, GenerationPlan]]:
    """Return the plan of each model of a heterogeneous entry, with prima.cpp's milliseconds a token."""
    found = []
    for entry in entries:
        config = config_of(entry["model"])
        if entry.get("split") == "heterogeneous" and config is not None:
            model = read_language_model(config).with_weights(format_named("q4_K"))
            plan = fit(model, cluster=home(), context=1024, prompt=64, output=128)
            found.append((entry["model"], entry["ms_per_token"]["prima.cpp"], plan))
    return found


def balanced_blocks(even_blocks: int) -> float:
    """Return the blocks of vLLM's cache (16 tokens) with balanced stages, from those with even ones.

    The devices are 8 L4, the model is Llama-3-70B in FP8 (vllm-project/vllm, pull request 6920).

    What an L4 has left besides weights and cache is not published; the even division says it, as its last stage has the
    head too. The best division of the 80 layers then has the most blocks in its fullest stage.
    """
    model = read_language_model(CONFIGS["LLaMA-3-70B"]).with_weights(format_named("fp8"))
    question = generation_question(model, home(), context=2048, engine="vllm")
    layer = sum(question.works[0].bytes.values())
    head = 2.0 * model.head_tensor.elements  # in 16 bits, as FP8 checkpoints have it, like the embedding
    block = 16 * model.layers[0].cache_bytes(1, 2.0)
    stages, layers = 8, len(model.layers)
    even = layers // stages
    room = even_blocks * even * block + even * layer + head
    best = 0.0
    for first in range(1, even + 1):
        for last in range(1, even + 1):
            middle = -(-(layers - first - last) // (stages - 2))
            blocks = [
                (room - own * layer - end) / (own * block) for own, end in ((first, head), (middle, 0.0), (last, head))
            ]
            best = max(best, min(blocks))
    return best


def shared_experts(entry: Mapping[str, Any]) -> list[tuple[float, float, float]]:
    """Return for each share of experts on GPUs KTransformers' tokens a second, and the predicted ones.

    Four RTX 4090 share every product and their part of the experts; the processors have the other experts, of which a
    token takes as large a part, with two crossings for each layer that has some.
    """
    model = read_language_model(CONFIGS["Qwen3-Next-80B-A3B"]).with_weights(format_named("fp8"))
    gpu, cpu = (device_of({"name": name, "like": name}) for name in ("RTX-4090", "Xeon-Gold-6454S"))
    engine = "vllm"
    unit = Unit(peaks_of(gpu, PCIE_BYTES_PER_S, 4), rates_of(engine, gpu), LayerShare(4, 1, 1))
    host = HostProcessors(peaks_of(cpu), rates_of("llama-cpp", cpu))
    tokens, found = Tokens.decode(1.0, 512), []
    for key, rate in entry["tokens_per_s"].items():
        share, seconds = float(key.rstrip("%")) / 100, head_seconds(unit, model, 1.0)
        for work in works_of(model):
            here = layer_seconds(unit, work, tokens, 2.0).device
            bare = unit.rates.seconds(pass_demand(work, unit.machine, unit.share, tokens, 2.0, away=True))
            away = host.rates.seconds(away_demand(host, work, tokens))
            seconds += here if share == 1 else bare + share * (here - bare) + (1 - share) * away
        found.append((share, rate, 1 / seconds))
    return found
