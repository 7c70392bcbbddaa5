"""Predicted times of the measurements, as `planner fit` predicts them."""

from itertools import pairwise

from costmodels.generation.memory import compute_bytes
from costmodels.generation.stages import chunks_of, layers_demand
from costmodels.generation.work import Demand, LayerShare, LayerWork, Tokens, head_demand, peaks_of, total
from tests.benchmarks.language_models.local import Case, model_of, works

OTHERS_BYTES = 0.5e9  # of a GPU, which the driver and the display have
COPIES = 4  # of the compute buffers, for chunks of a prompt on several GPUs at once (GGML_SCHED_MAX_COPIES)


def engine_fuses(engine: str) -> bool:
    """Return whether the attention of an engine keeps no scores in memory."""
    return engine != "llama-cpp-2024"


def stages_of(case: Case) -> list[tuple[LayerWork, ...]]:
    """Return the layers of each device, as evenly as llama.cpp divides them."""
    layers, parts = works(case.model, case.weights), len(case.devices)
    cuts = [round(len(layers) * part / parts) for part in range(parts + 1)]
    return [layers[start:stop] for start, stop in pairwise(cuts)]


def overlaps(case: Case) -> bool:
    """Return whether several GPUs have room for the buffers that chunks of a prompt on all of them need."""
    model = model_of(case.model, case.weights)
    scores = 0 if engine_fuses(case.engine) else case.cached + case.tokens
    buffers = COPIES * compute_bytes(model, case.chunk, scores)
    room = sum(device.memory_bytes * 2**30 / 1e9 - OTHERS_BYTES for device in case.devices)
    cache = model.cache_bytes(case.cached + case.tokens, 2.0) * case.sequences
    return model.bytes + cache + buffers * len(case.devices) <= room


def decode_demand(case: Case) -> Demand:
    """Return the work of one token of every sequence."""
    model, rows = model_of(case.model, case.weights), float(case.sequences)
    tokens = Tokens.decode(rows, case.cached + case.tokens // 2)
    unit = peaks_of(case.devices[0])
    own = [(layers_demand(layers, unit, LayerShare(), tokens, 2.0), 1.0) for layers in stages_of(case)]
    once: Demand = {"steps": 1.0, "sequences": rows, "hops": len(case.devices) - 1.0}
    return total([*own, (head_demand(model, unit, 1, rows), 1.0), (once, 1.0)])


def prompt_demands(case: Case) -> list[list[Demand]]:
    """Return the work of each chunk of a prompt on each stage."""
    unit = peaks_of(case.devices[0])
    found = []
    for number, tokens in enumerate(chunks_of(case.tokens, case.chunk)):
        cached = Tokens.prefill(round(tokens.rows), case.cached + number * case.chunk)
        found.append([layers_demand(layers, unit, LayerShare(), cached, 2.0) for layers in stages_of(case)])
    return found
