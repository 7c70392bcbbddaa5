"""Entries of local.json: models on devices that people own, and the measured tokens a second.

What the entries leave out is read so, for all alike: the months before 2025 are llama.cpp without flash attention;
Q4_K_M is llama.cpp's mixture (q6_K for the head, and for the values and down products of half of the layers, else
q4_K); prompts are computed in chunks of 512, or of what the source names; 4 GB of a GPU are others' on two GPUs.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

from costmodels.cluster.catalogue import catalogue
from costmodels.cluster.cluster import Device
from costmodels.cluster.tables import device_of
from costmodels.generation.work import LayerWork, works_of
from costmodels.language_model.formats import format_named
from costmodels.language_model.model import ModelDescription
from costmodels.language_model.read import read_language_model
from tests.benchmarks.language_models.configs import config_of

TEST = re.compile(r"(pp|tg)(\d+)(?:@(?:d(\d+)|p(\d+)b(\d+)))?")
ALIAS = {"A100-80GB": "A100-SXM-80GB", "A100-40GB": "A100-SXM-40GB", "H100-80GB": "H100-SXM-80GB"} | {
    "V100-16GB": "V100-PCIe-16GB",
    "Xeon-6454S": "Xeon-Gold-6454S",
}
CORES = {"M1": 8, "M1-Pro": 16, "M1-Max": 32, "M1-Ultra": 64, "M2": 10, "M2-Pro": 19, "M2-Max": 38, "M2-Ultra": 76} | {
    "M3": 10,
    "M3-Pro": 18,
    "M3-Max": 40,
    "M3-Ultra": 80,
    "M4": 10,
    "M4-Pro": 20,
    "M4-Max": 40,
}
"""GPU cores of Apple's chips that the catalogue's peaks are for."""
OLD = ("2023", "2024", "discussion 4167")
LEFT_OUT, PARTS = 0, 3
"""A third of the triples of device, model and format is left out of every fit."""
FORMATS = {"F16": "float16", "BF16": "bf16", "F32": "float32"}


@dataclass(frozen=True)
class Case:
    """A measurement.

    Attributes:
        devices: equal devices, one after the other.
        model: name of the model.
        weights: format, by llama.cpp's name.
        engine: name of the engine's rates.
        prompt: whether it is of a prompt.
        tokens: of the prompt, or generated.
        cached: tokens in the cache before.
        sequences: at once.
        tokens_per_s: measured, of all sequences together.
        chunk: tokens of a prompt that are computed at once.
        source: where it is from.
    """

    devices: tuple[Device, ...]
    model: str
    weights: str
    engine: str
    prompt: bool
    tokens: int
    cached: int
    sequences: int
    tokens_per_s: float
    chunk: int
    source: str

    @property
    def held(self) -> bool:
        """Whether the measurement is left out of every fit."""
        key = f"{self.devices[0].kind} {self.devices[0].flops_per_s['float32']:.3g} {self.model} {self.weights}"
        return crc32(key.encode()) % PARTS == LEFT_OUT


def read_entries(path: Path) -> list[dict[str, Any]]:
    """Return the entries of a file like local.json."""
    entries: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return entries


def cases(entries: list[dict[str, Any]]) -> Iterator[Case]:
    """Yield the measurements of whole models on equal devices."""
    for entry in entries:
        if entry.get("split") not in ("one", "layer"):
            continue
        for name, rate in entry["tokens_per_s"].items():
            found = TEST.fullmatch(name)
            if found is None or config_of(entry["model"]) is None:
                continue
            kind, tokens, depth, prompt, sequences = found.groups()
            source = entry["source"]
            yield Case(
                devices=tuple(device(each, entry) for each in entry["devices"]),
                model=entry["model"],
                weights=entry["quant"],
                engine="llama-cpp-2024" if any(each in source for each in OLD) else "llama-cpp",
                prompt=kind == "pp",
                tokens=int(tokens),
                cached=int(depth or prompt or 0),
                sequences=int(sequences or 1),
                tokens_per_s=rate,
                chunk=2048 if "ubatch 2048" in source else 512,
                source=source,
            )


def device(name: str, entry: Mapping[str, Any]) -> Device:
    """Return a device of an entry, with the cores and the bandwidth that the entry gives."""
    known = ALIAS.get(name, name)
    if known not in catalogue("device"):
        known = next((each for each in catalogue("device") if each.startswith(known)), known)
    found = device_of({"name": name, "like": known})
    whole = CORES.get(name.removeprefix("Apple-"))
    if "gpu_cores" in entry and whole:
        share = entry["gpu_cores"] / whole
        found = replace(found, flops_per_s={each: rate * share for each, rate in found.flops_per_s.items()})
    if "bandwidth_gb_s" in entry:
        found = replace(found, memory_bytes_per_s=entry["bandwidth_gb_s"] * 1e9)
    return found


@cache
def model_of(name: str, weights: str) -> ModelDescription:
    """Return a model in a format of llama.cpp."""
    config = config_of(name)
    if config is None:
        raise KeyError(f"no configuration of {name}; add it to configs.py")
    model = read_language_model(config)
    if weights == "MXFP4":  # experts alone; the rest is in q8_0
        return _mixed(model.with_weights(format_named("q8_0")), {"experts": "mxfp4"})
    mixture = re.fullmatch(r"(Q\d_K)(?:_[SML])?|IQ\d_K", weights)
    if mixture:
        kind = (mixture[1] or "Q3_K").replace("Q", "q")
        return _mixture(model.with_weights(format_named(kind)))
    return model.with_weights(format_named(FORMATS.get(weights, weights)))


@cache
def works(name: str, weights: str) -> tuple[LayerWork, ...]:
    """Return the layers of a model in a format of llama.cpp."""
    return works_of(model_of(name, weights))


def _mixed(model: ModelDescription, formats: Mapping[str, str]) -> ModelDescription:
    layers = {}
    for layer in model.layers:
        if id(layer) not in layers:
            tensors = tuple(
                replace(each, format=format_named(formats[each.part])) if each.part in formats else each
                for each in layer.tensors
            )
            layers[id(layer)] = replace(layer, tensors=tensors)
    return replace(model, layers=tuple(layers[id(layer)] for layer in model.layers))


def _mixture(model: ModelDescription) -> ModelDescription:
    """Return a model with q6_K for the head, and for the values and down products of every other layer."""
    better = format_named("q6_K")
    precise = {}
    for layer in model.layers:
        if id(layer) not in precise:
            tensors = tuple(
                replace(each, format=better) if re.search(r"v_proj|down_proj", each.name) else each
                for each in layer.tensors
            )
            precise[id(layer)] = replace(layer, tensors=tensors)
    layers = tuple(precise[id(each)] if number % 2 else each for number, each in enumerate(model.layers))
    head = tuple(replace(each, format=better) if each.part == "head" else each for each in model.tensors)
    return replace(model, layers=layers, tensors=head)
