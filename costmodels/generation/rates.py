"""Rates: the seconds that an engine takes on a kind of device for each amount of work, from rates.toml in this folder.

The figures are fitted to published measurements by ``python -m tests.benchmarks.language_models --fit``; each table of
the file says to which, and of a kind of device that nobody measured, whose figures it has instead.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from costmodels.cluster.cluster import Device
from costmodels.generation.work import CLASSES, Demand
from costmodels.units import parse_seconds
from graphs.common.brief import Brief
from graphs.common.errors import InputError, nearest

FILE = Path(__file__).with_name("rates.toml")

Origin = Literal["fitted", "estimated"]

PACED = {"layers": "layer", "expert layers": "expert_layer", "latent layers": "latent_layer"} | {
    "selecting layers": "selecting_layer",
    "recurrent layers": "recurrent_layer",
}
"""Starts of kernels, which the pace of a family multiplies, and their keys."""
COUNTED = {"steps": "step", "sequences": "sequence", "prompts": "prompt", "hops": "hop", "crossings": "crossing"} | {
    "reduces": "reduce",
    "reduce members": "reduce_member",
    "far reduces": "far_reduce",
    "exchanges": "exchange",
}
"""Seconds each, and their keys."""
LINKED = {"reduced": "reduced", "far reduced": "far_reduced", "exchanged": "exchanged"}
"""Shares of a link's bandwidth, and their keys."""
SHARES = {"weights": "weights", "experts": "experts", "cache": "cache"} | {
    "attention": "attention",
    "prompt attention": "prompt_attention",
}
"""Shares of a device's peak, and their keys."""

PARTS: Mapping[str, tuple[str, ...]] = {
    "starting": (*PACED, "steps", "sequences", "prompts", "values"),
    "weights": ("weights", "experts", "unpacking"),
    "cache": ("cache", "attention", "prompt attention"),
    "products": tuple(f"{name} {kind}" for name in ("rows", "products") for kind in CLASSES),
    "messages": ("hops", "crossings", "reduces", "reduce members", "far reduces", "exchanges", *LINKED),
}
"""Where time goes, by amounts of work."""


@dataclass(frozen=True)
class Family(Brief):
    """Kinds of devices that an engine reaches the same shares of the peak on.

    Attributes:
        name: of the family.
        engines: the engines that the figures are for.
        devices: how the names of its devices begin.
        figures: shares of the peak, passes over values, operations to unpack, and the pace, by key of rates.toml.
        products: shares of the peak that products of many rows reach, by class of format.
        like: whose figures these are; empty if they are fitted to this family.
        source: the measurements.
    """

    name: str
    engines: tuple[str, ...]
    devices: tuple[str, ...]
    figures: Mapping[str, float]
    products: Mapping[str, float]
    like: str = ""
    source: str = ""


@dataclass(frozen=True)
class ServingEngine(Brief):
    """A program that serves language models.

    Attributes:
        name: of the engine.
        seconds: of each start, by key of rates.toml.
        shares: of a link's bandwidth, by key.
        chunk_tokens: tokens of a prompt that it computes at once.
        overlaps: whether it computes chunks of a prompt on several stages at once.
        fused_attention: whether attention keeps no scores in memory (FlashAttention).
        batches: whether it mixes prompts of some sequences with tokens of others (continuous batching).
        decode_range: factors between which 80 % of measured times of a token lie, of those predicted.
        prefill_range: likewise of prompts.
        source: the measurements.
    """

    name: str
    seconds: Mapping[str, float]
    shares: Mapping[str, float]
    chunk_tokens: int
    overlaps: bool
    fused_attention: bool
    batches: bool
    decode_range: tuple[float, float]
    prefill_range: tuple[float, float]
    source: str = ""


@dataclass(frozen=True)
class Rates(Brief):
    """Prices of amounts of work: of an engine on a kind of device.

    Attributes:
        engine: the engine.
        family: the kind of device.
        origin: whether the figures of the device are fitted to it, or estimated as another family's.
        prices: seconds of each amount.
    """

    engine: ServingEngine
    family: Family
    origin: Origin
    prices: Mapping[str, float] = field(repr=False)

    def seconds(self, demand: Demand) -> float:
        """Return the seconds of a demand."""
        return sum(amount * self.prices[name] for name, amount in demand.items())

    def parts(self, demand: Demand) -> dict[str, float]:
        """Return the seconds of a demand by where they go: the keys of `PARTS`."""
        return {
            part: sum(demand[name] * self.prices[name] for name in names if name in demand)
            for part, names in PARTS.items()
        }


def prices_of(engine: ServingEngine, family: Family) -> dict[str, float]:
    """Return the seconds of each amount of work."""
    own, shares = family.figures, engine.shares
    prices = {name: engine.seconds[key] * own["pace"] for name, key in PACED.items()}
    prices |= {name: engine.seconds[key] for name, key in COUNTED.items()}
    prices |= {name: 1 / shares[key] for name, key in LINKED.items()}
    prices |= {name: 1 / own[key] for name, key in SHARES.items()}
    prices |= {f"products {kind}": 1 / family.products[kind] for kind in CLASSES}
    prices |= {f"rows {kind}": 1 / (own["few_rows"] * family.products[kind]) for kind in CLASSES}
    return prices | {"values": own["values"] / own["weights"], "unpacking": own["unpacking"]}


def rates_of(engine: str, device: Device) -> Rates:
    """Return the rates of an engine on a device, by the name of its kind.

    Raises:
        InputError: for an unknown engine.
    """
    found = engine_named(engine)
    family, origin = family_of(found.name, device)
    return Rates(found, family, origin, prices_of(found, family))


def engine_named(name: str) -> ServingEngine:
    """Return an engine by its name.

    Raises:
        InputError: for an unknown one, with the nearest.
    """
    known = engines()
    if name not in known:
        raise InputError(f"there is no engine '{name}'; known: {', '.join(known)}{nearest(name, known)}")
    return known[name]


def family_of(engine: str, device: Device) -> tuple[Family, Origin]:
    """Return the family of a device: the one with the longest beginning of its kind's name, or else the general one.

    A device that is nobody's kind is a processor if it has cores or is called so, and else a GPU.
    """
    own = [family for family in families() if engine in family.engines]
    kind = device.kind.casefold()
    begun = [
        (len(start), -number)
        for number, family in enumerate(own)
        for start in family.devices
        if kind.startswith(start.casefold())
    ]
    if begun:
        family = own[-max(begun)[1]]
        return family, "estimated" if family.like else "fitted"
    general = "processors" if device.cores or kind.startswith("cpu") else "gpus"
    return next(family for family in own if family.name == general), "estimated"


@cache
def engines() -> Mapping[str, ServingEngine]:
    """Return all engines by name."""
    return {name: _engine(name, table) for name, table in _document()["engine"].items()}


@cache
def families() -> tuple[Family, ...]:
    """Return all families, in the order of the file."""
    tables = _document()["family"]
    by_name = {table["name"]: table for table in tables}
    return tuple(_family(table, by_name) for table in tables)


@cache
def _document() -> Mapping[str, Any]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def _engine(name: str, table: Mapping[str, Any]) -> ServingEngine:
    where = f"the engine '{name}' of {FILE.name}"
    keys = (*PACED.values(), *COUNTED.values())
    seconds = {key: parse_seconds(table[key], f"{where}: {key}") for key in keys}
    shares = {key: float(table[key]) for key in LINKED.values()}
    (low, high), (first, last) = table["decode_range"], table["prefill_range"]
    return ServingEngine(
        name,
        seconds,
        shares,
        table["chunk_tokens"],
        table["overlaps"],
        table["fused_attention"],
        table["batches"],
        (low, high),
        (first, last),
        table["source"],
    )


def _family(table: Mapping[str, Any], others: Mapping[str, Mapping[str, Any]]) -> Family:
    """Return a family; one that is ``like`` another has its figures, where it has none of its own."""
    whole = {**others[table["like"]], **table} if "like" in table else table
    figures = {key: float(whole[key]) for key in (*SHARES.values(), "few_rows", "values", "unpacking", "pace")}
    products = {kind: float(whole["products"][kind]) for kind in CLASSES}
    names = {key: tuple(table[key]) for key in ("engines", "devices")}
    return Family(
        table["name"], **names, figures=figures, products=products, like=table.get("like", ""), source=table["source"]
    )
