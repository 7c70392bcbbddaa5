"""Cost of a plan: prices of devices, and the time and money that a number of tokens or samples takes."""

import argparse
import re
from typing import Any

from costmodels.cluster.prices import HOUR_S, HourlyPrice
from graphs.common.errors import InputError
from graphs.ir import Graph
from planner.cli.text import count
from planner.plans.plan import Plan
from planner.plans.speed import model_flops_utilisation, tokens_per_s, tokens_per_sample, what_tokens

_SCALES = {"": 1.0, "k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
DAY_S = 24 * HOUR_S


def declare_costs(parser: argparse.ArgumentParser) -> None:
    """Declare --price, --tokens and --samples."""
    parser.add_argument(
        "--price", type=_price, metavar="PRICE", help="of each device an hour, such as 2.49USD/h (the cluster's)"
    )
    target = parser.add_mutually_exclusive_group()
    target.add_argument("--tokens", type=_amount, metavar="N", help="print what N tokens take, such as 300B")
    target.add_argument("--samples", type=_amount, metavar="N", help="print what N samples take, such as 90M")


def check_token_target(options: argparse.Namespace, graph: Graph) -> None:
    """Refuse a target of tokens for a network that reads none."""
    if options.tokens is not None and tokens_per_sample(graph, 1) is None:
        raise InputError("--tokens is for networks that read tokens, and this one reads none; give --samples")


def speed_and_cost(plan: Plan, options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Speed in the units of language models, and time and cost until the target: for ``--json``, and lines for people.

    There are no lines where a network reads no tokens and nothing is asked.
    """
    price, rate, utilisation = plan.cluster.price, tokens_per_s(plan), model_flops_utilisation(plan)
    target, what, per_s = options.samples, "samples", plan.samples_per_s
    if options.tokens is not None and rate:
        target, what, per_s = options.tokens, "tokens", rate
    seconds = None if target is None else target / per_s
    document = {
        "tokens_per_s": rate,
        "mfu": utilisation,
        "price_per_h": price.per_h if price else None,
        "currency": price.currency if price else None,
        "target_s": seconds,
        "target_cost": price.per_h * seconds / HOUR_S if price and seconds is not None else None,
    }
    lines = []
    if rate is not None:
        replicas = plan.cluster.replicas.count if plan.cluster.replicas else 1
        devices = count(replicas * plan.n_used, "device")
        mfu = f"model FLOPs utilisation {utilisation:.1%} of {devices}, counting full attention"
        lines.append(f"{rate:,.0f} {what_tokens(plan)}; {mfu}")
    if price:
        lines.append(f"all devices together cost {price}")
    if seconds is not None:
        cost = f" and cost {price.of(seconds)}" if price else ""
        lines.append(f"{_written(target)} {what} take {_duration(seconds)}{cost}")
    return document, lines


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
