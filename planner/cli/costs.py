"""What a plan costs: prices of devices, and the time and money until a target of tokens or samples."""

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

from costmodels.cluster import Cluster
from costmodels.prices import HOUR_S, HourlyPrice
from graphs.errors import InputError
from graphs.ir import Graph
from planner.cli.text import count
from planner.plans.plan import Plan
from planner.plans.speed import model_flops_utilisation, tokens_per_s, tokens_per_sample

_SCALES = {"": 1.0, "k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
DAY_S = 24 * HOUR_S


def declare_costs(parser: argparse.ArgumentParser) -> None:
    """Declare --price, --tokens and --samples."""
    parser.add_argument(
        "--price", type=_price, metavar="PRICE", help="of each device an hour, such as 2.49USD/h (the cluster's)"
    )
    target = parser.add_mutually_exclusive_group()
    target.add_argument("--tokens", type=_amount, metavar="N", help="say what so many tokens take, such as 300B")
    target.add_argument("--samples", type=_amount, metavar="N", help="say what so many samples take, such as 90M")


def priced(cluster: Cluster, price: HourlyPrice | None) -> Cluster:
    """The cluster with a price for each device, unless that is None."""
    if price is None:
        return cluster
    return replace(cluster, devices=tuple(replace(device, price=price) for device in cluster.devices))


def check_target(options: argparse.Namespace, graph: Graph) -> None:
    """Refuse a target of tokens for a network that reads none."""
    if options.tokens is not None and tokens_per_sample(graph, 1) is None:
        raise InputError("--tokens is for networks that read tokens, and this one reads none; give --samples")


class Target(NamedTuple):
    """Tokens or samples whose time and cost are asked for; at most one of them."""

    tokens: float | None = None
    samples: float | None = None


NO_TARGET = Target()


def target_of(options: argparse.Namespace) -> Target:
    """What the options of `declare_costs` ask for."""
    return Target(options.tokens, options.samples)


@dataclass(frozen=True)
class SpeedAndCost:
    """Speed in the units of language models, and time and cost until a target."""

    samples_per_s: float  # of all replicas together
    tokens_per_s: float | None  # None for a network that reads no tokens
    mfu: float  # model FLOPs utilisation
    devices: str  # in words, those that ``mfu`` is about
    price: HourlyPrice | None  # of all devices; None if that is unknown
    target: Target = NO_TARGET  # what time and cost are asked for

    @classmethod
    def of(cls, plan: Plan, target: Target = NO_TARGET) -> Self:
        """Those of a plan."""
        speeds = plan.samples_per_s, tokens_per_s(plan), model_flops_utilisation(plan)
        replicas = plan.cluster.replicas.count if plan.cluster.replicas else 1
        return cls(*speeds, count(replicas * plan.n_used, "device"), plan.cluster.price, target)

    @property
    def target_s(self) -> float | None:
        """Seconds until the target."""
        tokens, samples = self.target
        if tokens is not None and self.tokens_per_s:
            return tokens / self.tokens_per_s
        return None if samples is None else samples / self.samples_per_s

    def document(self) -> dict[str, Any]:
        """What ``--json`` shows."""
        seconds, price = self.target_s, self.price
        return {
            "tokens_per_s": self.tokens_per_s,
            "mfu": self.mfu,
            "price_per_h": price.per_h if price else None,
            "currency": price.currency if price else None,
            "target_s": seconds,
            "target_cost": price.per_h * seconds / HOUR_S if price and seconds is not None else None,
        }

    def lines(self) -> Iterator[str]:
        """What people read: nothing, where a network reads no tokens and nothing is asked."""
        if self.tokens_per_s is not None:
            yield f"{self.tokens_per_s:,.0f} tokens/s; model FLOPs utilisation {self.mfu:.1%} of {self.devices}"
        if self.price:
            yield f"all devices together cost {self.price}"
        if (seconds := self.target_s) is not None:
            tokens, samples = self.target
            number, what = (samples, "samples") if tokens is None else (tokens, "tokens")
            cost = f" and cost {self.price.of(seconds)}" if self.price else ""
            yield f"{_written(number or 0.0)} {what} take {_duration(seconds)}{cost}"


def _price(text: str) -> HourlyPrice:
    try:
        return HourlyPrice.parse(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _amount(text: str) -> float:
    match = re.fullmatch(r"(\d+\.?\d*(?:e\d{1,2})?)([kMBT]?)", text)
    if match is None or not float(match[1]):
        raise argparse.ArgumentTypeError(f"'{text}' is no number above 0, such as 5000, 1e9, 90M, 300B or 1.5T")
    return float(match[1]) * _SCALES[match[2]]


def _written(number: float) -> str:
    scale, factor = next(pair for pair in reversed(_SCALES.items()) if number >= pair[1] or pair[1] == 1)
    return f"{number / factor:g}{scale}"


def _duration(seconds: float) -> str:
    if seconds >= 2 * DAY_S:
        return f"{seconds / DAY_S:,.1f} days"
    return f"{seconds / HOUR_S:.1f} hours" if seconds >= HOUR_S else f"{seconds / 60:.3g} minutes"
