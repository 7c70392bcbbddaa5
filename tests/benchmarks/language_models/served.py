"""Rows of served.csv: what was served on what, and the measured milliseconds.

What the rows leave out is read so, for all rows alike:

- a degree of experts that says the square of the number of GPUs (64 on hosts of 8) counts them twice;
- where the pool of a ``disagg`` row is left out, published recipes have attention data-parallel on 16 GPUs and more or
  from 200 requests a GPU on, in one or two replicas, and else tensor-parallel in four replicas;
- 4 bits of a mixture are of its experts, and 16 bits of the rest, as published checkpoints have it; embedding and head
  have 16 bits; TensorRT-LLM keeps the cache of quantised models in 8 bits, the others in 16.
"""

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import isqrt
from pathlib import Path
from zlib import crc32

from costmodels.cluster.catalogue import entry
from costmodels.cluster.cluster import Device
from costmodels.cluster.tables import device_of
from costmodels.generation.serving import Requests, Served
from costmodels.generation.work import LayerShare, LayerWork, Machine, works_of
from costmodels.language_model.formats import format_named
from costmodels.language_model.model import ModelDescription
from costmodels.language_model.read import read_language_model
from costmodels.units import parse_bytes_per_s
from tests.benchmarks.language_models.configs import config_of

SYSTEMS = {
    "h100_sxm": ("H100-SXM-80GB", "NVLink4", 8),
    "h200_sxm": ("H200-SXM-141GB", "NVLink4", 8),
    "b200_sxm": ("B200-SXM-180GB", "NVLink5", 8),
    "b300_sxm": ("B300-SXM-288GB", "NVLink5", 8),
    "gb200": ("GB200-186GB", "NVLink5", 72),
    "gb300": ("GB300-277GB", "NVLink5", 72),
    "a100_sxm": ("A100-SXM-80GB", "NVLink3", 8),
    "a100_pcie": ("A100-PCIe-80GB", "PCIe4-x16", 8),
    "h100_pcie": ("H100-PCIe-80GB", "PCIe5-x16", 8),
    "l40s": ("L40S", "PCIe4-x16", 8),
    "mi300x": ("MI300X", "InfinityFabric-MI300X", 8),
}
"""Devices, links, and how many devices such links join."""

FORMATS = {"fp8": "float8_e4m3fn tensors", "fp8_block": "float8_e4m3fn blocks of 128x128", "nvfp4": "nvfp4"} | {
    "int4_wo": "gptq",
    "int8_wo": "int8 rows",
    "w4a16_mxfp4": "mxfp4",
    "mxfp4": "mxfp4",
    "bf16": "bf16",
    "": "bf16",
}
PACKED_BITS = 4
WIDE, CROWDED = 16, 200  # GPUs; requests under way for each GPU
LEFT_OUT, PARTS = 0, 4
"""A quarter of the deployments (model, machine, engine, precision, degrees) is left out of every fit."""


@dataclass(frozen=True)
class Degrees:
    """Degrees of parallelism of a pool of GPUs, as a row has them."""

    tensor: int
    data: int
    expert_tensor: int
    experts: int


@dataclass(frozen=True)
class Row:
    """A measurement."""

    name: str
    model: str
    system: str
    engine: str
    precision: str
    formats: tuple[str, str]  # of products, of experts
    prompt: int
    output: int
    degrees: Degrees
    sequences: float  # of each data-parallel group
    apart: bool
    replicas: int
    prompts: tuple[Degrees, int] | None  # the pool of prompts and its replicas, if the row says so
    known: bool  # whether the row says how many replicas there are
    token_s: float
    first_token_s: float

    @property
    def held(self) -> bool:
        """Whether the row is left out of every fit."""
        key = f"{self.model} {self.system} {self.engine} {self.precision} {self.apart} {self.degrees}"
        return crc32(key.encode()) % PARTS == LEFT_OUT


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a file like served.csv."""
    with path.open(encoding="utf-8", newline="") as file:
        return [_row(cells) for cells in csv.DictReader(file)]


def served_of(row: Row) -> tuple[Served, Machine]:
    """Return the model of a row on the GPUs of a replica, and the peaks of a GPU."""
    return _served(row, row.degrees), machine(row.system)


def prompt_pool(row: Row) -> tuple[Served, int] | None:
    """Return the model on the GPUs that compute prompts, and how many replicas; None if the row leaves them out."""
    return None if row.prompts is None else (_served(row, row.prompts[0]), row.prompts[1])


def requests_of(row: Row) -> Requests:
    """Return the requests of a row that are under way."""
    return Requests(row.prompt, row.output, row.sequences)


def _served(row: Row, degrees: Degrees) -> Served:
    model = model_of(row.model, *row.formats)
    eight = row.engine == "trtllm" and row.precision in ("fp8", "fp4") and "gpt-oss" not in row.model
    share = LayerShare(degrees.tensor, degrees.data, degrees.experts)
    return Served(model, works(row.model, *row.formats), machine(row.system), share, 1.0 if eight else 2.0)


@cache
def model_of(name: str, products: str, experts: str) -> ModelDescription:
    """Return a model with its weights in the formats of a row."""
    config = config_of(name)
    if config is None:
        raise KeyError(f"no configuration of {name}; add it to configs.py")
    model = read_language_model(config)
    own, mixture = format_named(FORMATS[products]), format_named(FORMATS[experts or products])
    if "gpt-oss" in name:
        mixture = format_named("mxfp4")
        own = format_named("bf16")
    elif any(layer.active_share < 1 for layer in model.layers) and own.bits == PACKED_BITS:
        own = format_named("bf16")
    layers = {}
    for layer in model.layers:
        if id(layer) not in layers:
            tensors = tuple(
                replace(tensor, format=mixture if tensor.part in ("experts", "shared") else own)
                if tensor.part in ("mixer", "dense", "experts", "shared") and len(tensor.shape) >= 2
                else tensor
                for tensor in layer.tensors
            )
            layers[id(layer)] = replace(layer, tensors=tensors)
    return replace(model, layers=tuple(layers[id(layer)] for layer in model.layers))


@cache
def works(name: str, products: str, experts: str) -> tuple[LayerWork, ...]:
    """Return the layers of a model of a row."""
    return works_of(model_of(name, products, experts))


@cache
def machine(system: str) -> Machine:
    """Return the peaks of a GPU of a system, and of its links; InfiniBand of 400 Gb/s joins hosts."""
    name, link, joined = SYSTEMS[system]
    device = device_of({"name": system, "like": name})
    near, far = (parse_bytes_per_s(entry("link", each).keys["bandwidth"], each) for each in (link, "InfiniBand-400"))
    return Machine(device.memory_bytes_per_s, device.flops_per_s, near, joined, far)


def device_of_system(system: str) -> Device:
    """Return a GPU of a system."""
    return device_of({"name": system, "like": SYSTEMS[system][0]})


def usable_bytes(system: str) -> float:
    """Return the memory of a GPU of a system that weights and caches may fill: data sheets' GB are GiB there."""
    return device_of_system(system).usable_bytes * 2**30 / 1e9


def _row(cells: Mapping[str, str]) -> Row:
    apart = cells["mode"] == "disagg"
    config = config_of(cells["model_path"])
    mixture = any(key in (config or {}) for key in ("n_routed_experts", "num_experts", "num_local_experts"))
    concurrency = re.search(r"silicon_concurrency=(\d+)", cells["silicon_data_source"])
    under_way = float(concurrency[1]) if concurrency else 0.0
    degrees = _degrees(cells, "decode_" if apart else "")
    sequences = float(cells["decode_batch_size" if apart else "batch_size"] or 0)
    replicas = int(cells["decode_num_workers"] or 0) if apart else 1
    known = bool(sequences and replicas)
    groups = degrees.data
    degrees = _once(degrees, mixture) if not apart else _whole(degrees, mixture)
    if not known:
        degrees, replicas, sequences = _usual_pool(degrees, under_way)
    elif degrees.data != groups and under_way:
        sequences = max(1.0, under_way / degrees.data)
    prompts = None
    if apart and known and cells["prefill_num_workers"]:
        prompts = (_whole(_degrees(cells, "prefill_"), mixture), int(cells["prefill_num_workers"]))
    return Row(
        name=cells["id"],
        model=cells["model_path"],
        system=cells["system"],
        engine=cells["backend"],
        precision=cells["precision"],
        formats=(cells["gemm_quant_mode"], cells["moe_quant_mode"]),
        prompt=int(cells["isl"]),
        output=int(cells["osl"]),
        degrees=degrees,
        sequences=sequences,
        apart=apart,
        replicas=replicas,
        prompts=prompts,
        known=known,
        token_s=float(cells["silicon_tpot_ms"]) / 1e3,
        first_token_s=float(cells["silicon_ttft_ms"]) / 1e3,
    )


def _degrees(cells: Mapping[str, str], prefix: str) -> Degrees:
    names = ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
    return Degrees(*(max(1, int(cells[prefix + name] or 1)) for name in names))


def _once(degrees: Degrees, mixture: bool) -> Degrees:
    """Return the degrees with what counts the same GPUs twice counted once."""
    parts = degrees.expert_tensor * degrees.experts
    side = isqrt(parts)
    if mixture and side > 1 and side * side == parts:
        if (degrees.expert_tensor, degrees.experts) == (side, side) and degrees.tensor * degrees.data == parts:
            tensor = side if degrees.tensor == parts else 1
            return Degrees(tensor, side // tensor, 1, side)
        if degrees.tensor == degrees.data == side:
            return Degrees(1, side, 1, side)
    return _whole(degrees, mixture)


def _whole(degrees: Degrees, mixture: bool) -> Degrees:
    """Return the degrees with the experts on as many GPUs as the rest."""
    gpus = degrees.tensor * degrees.data
    if not mixture:
        return replace(degrees, expert_tensor=gpus, experts=1)
    if degrees.expert_tensor * degrees.experts == gpus:
        return degrees
    return (
        replace(degrees, expert_tensor=1, experts=gpus) if degrees.experts > 1 else replace(degrees, expert_tensor=gpus)
    )


def _usual_pool(degrees: Degrees, under_way: float) -> tuple[Degrees, int, float]:
    """Return degrees, replicas and sequences of a group, where a row leaves out how many replicas there are."""
    gpus = degrees.tensor
    if gpus >= WIDE or under_way >= CROWDED * gpus:
        replicas = 1 if gpus >= WIDE else 2
        return Degrees(1, gpus, 1, gpus), replicas, max(1.0, under_way / gpus / replicas)
    replicas = max(1, min(int(under_way), 4))
    return Degrees(gpus, 1, 1, gpus), replicas, max(1.0, under_way / replicas)
