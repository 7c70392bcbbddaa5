"""Compare predicted times of generation with those that others measured; fit the rates anew.

python -m tests.benchmarks.language_models
python -m tests.benchmarks.language_models --quick --json bars.json
python -m tests.benchmarks.language_models --served served.csv --local local.json
python -m tests.benchmarks.language_models --fit
"""

import argparse
import resource
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from costmodels.cluster.one_line import cluster_in_one_line
from costmodels.generation.rates import FILE, Rates, rates_of
from costmodels.generation.stages import prompt_seconds
from costmodels.language_model.formats import format_named
from costmodels.language_model.read import read_language_model
from planner.generation.fit import fit
from tests.benchmarks.bars import Bar, at_least, at_most, declare, report
from tests.benchmarks.language_models.clusters import balanced_blocks, home_plans, shared_experts
from tests.benchmarks.language_models.configs import CONFIGS
from tests.benchmarks.language_models.fit import case_seconds, fit_local, fit_served, steady_at
from tests.benchmarks.language_models.local import Case, cases, read_entries
from tests.benchmarks.language_models.parameters import LOCAL, SERVING, rates_text
from tests.benchmarks.language_models.predict import decode_demand, overlaps, prompt_demands
from tests.benchmarks.language_models.served import Row, device_of_system, read_rows

ROOT = Path(__file__).parents[3].parent / "shared" / "bench" / "llm"
QUICK = 7  # with --quick every so many rows are judged
TAILS = (0.08, 0.92)  # a little more than 80 %, as there are few measurements
Array = NDArray[np.float64]


def main() -> int:
    """Judge, or fit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    declare(parser)
    parser.add_argument("--fit", action="store_true", help="fit the rates and write rates.toml")
    parser.add_argument("--served", type=Path, default=ROOT / "served.csv", metavar="FILE", help="like served.csv")
    parser.add_argument("--local", type=Path, default=ROOT / "local.json", metavar="FILE", help="like local.json")
    options = parser.parse_args()
    rows, entries = read_rows(options.served), read_entries(options.local)
    own = list(cases(entries))
    if options.fit:
        _fit(rows, own)
        return 0
    if options.quick:
        rows = rows[::QUICK]
    bars = [*_local_bars(own), *_served_bars(rows), *_whole_bars(entries), *_speed_bars()]
    return report(bars, options.json)


def _fit(rows: Sequence[Row], own: Sequence[Case]) -> None:
    """Fit the rates to what is not left out, and write them with the ranges of what is left out."""
    local = fit_local(own, [not case.held for case in own])
    served = fit_served(rows, [not row.held and not doubtful(row) for row in rows])
    measured = np.array([case_seconds(case) for case in own]) / local.predicted
    tokens = np.array([row.token_s for row in rows]) / served.predicted
    ranges, held = {}, [case.held for case in own]
    for name in LOCAL:
        ranges[name] = (
            _range(measured, [case.engine == name and not case.prompt for case in own], held),
            _range(measured, [case.engine == name and case.prompt for case in own], held),
        )
    first = np.array([row.first_token_s for row in rows]) / served.first
    for name in SERVING:
        chosen, held = [row.engine == name and row.known for row in rows], [row.held for row in rows]
        ranges[name] = (_range(tokens, chosen, held), _range(first, chosen, held))
    FILE.write_text(rates_text(local.values, served.values, ranges), encoding="utf-8")
    print(f"wrote {FILE}")


def doubtful(row: Row) -> bool:
    """Return whether a row says neither its pool nor whether it guesses tokens ahead, which half of such rows do."""
    return not row.known and "DeepSeek" in row.model


def _rates_of_row(row: Row) -> Rates:
    return rates_of(row.engine, device_of_system(row.system))


def _range(factors: Array, chosen: Sequence[bool], held: Sequence[bool]) -> tuple[float, float]:
    """Return the factors between which 80 % lie, both of all and of what was left out of the fit."""
    every = np.array(chosen)
    parts = [part for part in (every, every & np.array(held)) if part.any()]
    lows, highs = zip(*(np.quantile(factors[part], TAILS) for part in parts), strict=True)
    return float(min(lows)), float(max(highs))


def _local_bars(own: Sequence[Case]) -> list[Bar]:
    measured = np.array([case_seconds(case) for case in own])
    predicted = np.array([local_seconds(case) for case in own])
    errors = np.abs(measured / predicted - 1)  # of the tokens a second
    held, prompt = (np.array([getattr(case, name) for case in own]) for name in ("held", "prompt"))
    two = np.array([len(case.devices) > 1 for case in own])
    bars = []
    for name, part in (("", np.ones(len(own), bool)), (", left out of the fit", held)):
        bars += _pair(f"local decode{name}", errors[part & ~prompt], 0.08, 0.20)
        bars += _pair(f"local prefill{name}", errors[part & prompt], 0.15, 0.35)
    bars += _pair("local decode on two GPUs", errors[two & ~prompt], 0.08, 0.20)
    return [*bars, *_within("local decode", own, measured / predicted, ~prompt)]


def _within(name: str, own: Sequence[Case], factors: Array, chosen: Array) -> list[Bar]:
    """Return the share of what was left out that lies in the ranges that are said to hold 80 %."""
    inside = []
    for case, factor, take in zip(own, factors, chosen, strict=True):
        if take and case.held:
            low, high = rates_of(case.engine, case.devices[0]).engine.decode_range
            inside.append(low <= factor <= high)
    return [at_least(f"{name}, left out, share within the range", float(np.mean(inside)), 0.8)] if inside else []


def local_seconds(case: Case) -> float:
    """Return the predicted seconds of a prompt, or of one token of every sequence."""
    rates = rates_of(case.engine, case.devices[0])
    if not case.prompt:
        return rates.seconds(decode_demand(case))
    chunks = [[rates.seconds(each) for each in stages] for stages in prompt_demands(case)]
    return prompt_seconds(chunks, len(case.devices) > 1 and overlaps(case)) + rates.engine.seconds["prompt"]


def _served_bars(rows: Sequence[Row]) -> list[Bar]:
    found = [steady_at(row, _rates_of_row(row)) for row in rows]
    errors = np.abs(np.array([each.token_s / row.token_s - 1 for each, row in zip(found, rows, strict=True)]))
    held, known = (np.array([getattr(row, name) for row in rows]) for name in ("held", "known"))
    every = np.ones(len(rows), bool)
    bars = [at_least("served, share of rows answered", float(np.isfinite(errors).mean()), 1.0)]
    for name, part in (
        ("", every),
        (", left out of the fit", held),
        (", whose pool is known", known),
        (", left out, whose pool is known", held & known),
    ):
        bars += _pair(f"served ms a token{name}", errors[part], 0.12, 0.30)
    first = np.array([each.first_token_s / row.first_token_s for each, row in zip(found, rows, strict=True)])
    low, middle, high = np.quantile(first, (0.1, 0.5, 0.9))
    print(
        f"time to the first token: {middle:.2f} of the measured in the median, 80 % within {low:.2f} to {high:.2f}; "
        "rows include waiting for a place, and for the prompts of all requests that start at once"
    )
    return bars


def _pair(name: str, errors: Array, median: float, most: float) -> list[Bar]:
    if not len(errors):
        return []
    return [
        at_most(f"{name}, median error ({len(errors)})", float(np.median(errors)), median),
        at_most(f"{name}, error of 90 % ({len(errors)})", float(np.quantile(errors, 0.9)), most),
    ]


def _whole_bars(entries: Sequence[dict[str, object]]) -> list[Bar]:
    plans = home_plans(entries)
    bars = []
    for name, ms, plan in plans:
        speeds = plan.speeds
        token_ms = np.inf if speeds is None else speeds.one_token_s * 1e3
        print(f"home: {name}: {token_ms:.1f} ms a token on {len(plan.stages)} devices, prima.cpp {ms}")
    if plans:
        small = [len(plan.stages) for _, ms, plan in plans if ms < 50]
        bars.append(at_most("home: devices of the small models", max(small, default=1), 1))
        order = sorted(plans, key=lambda each: each[1])
        predicted = [plan.cost_s for _, _, plan in order]
        wrong = sum(a > b for i, a in enumerate(predicted) for b in predicted[i + 1 :])
        bars.append(at_most("home: pairs of models in the wrong order", wrong, 0))
    for entry in entries:
        if str(entry.get("split", "")).startswith("experts"):
            found = shared_experts(entry)
            errors = [abs(guess / rate - 1) for _, rate, guess in found]
            print(
                "experts on GPUs: " + ", ".join(f"{share:.0%} {rate:.0f} ({guess:.0f})" for share, rate, guess in found)
            )
            print(f"experts on GPUs: median error {np.median(errors):.3f}")
    blocks = balanced_blocks(1476)
    return [*bars, at_most("vLLM's balanced stages: error of the blocks", abs(blocks / 3078 - 1), 0.05)]


def _speed_bars() -> list[Bar]:
    """Return the time and memory of a plan for 120 layers."""
    config = CONFIGS["LLaMA-3-70B"] | {"num_hidden_layers": 120}
    model = read_language_model(config).with_weights(format_named("q4_K"))
    cluster = cluster_in_one_line("4xRTX-4090+4xRTX-3090+2xRTX-5090+EPYC-9654:PCIe4")
    seconds = _timed(lambda: fit(model, cluster=cluster, context=16384))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 2**30
    print(f"peak memory of this process, transformers and all rows included: {peak:.2f} GiB")
    return [at_most("fit of 120 layers on 11 devices, processor seconds", seconds, 5.0)]


def _timed(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


if __name__ == "__main__":
    raise SystemExit(main())
