"""How long it takes to see something: `planner --help`, and plan.html in a browser from its address to its drawing.

    python -m tests.benchmarks.page [--quick] [--json page.json]

Times of the page are the browser's own (``performance.now()``, from the start of the navigation); needs chromium.
The pages of plans for a Llama of 80 layers on 64 devices, as `planner.plan` makes them for each goal,
have bars besides: size, height before anything is opened, what is seen without a click, and requests for anything
elsewhere. So has the highest page: 120 layers dealt out by chance to 256 unlike devices, many of them too small.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np

import planner
from costmodels.cluster.one_line import cluster_in_one_line
from costmodels.tabulate import tabulate
from costmodels.workload import Workload
from graphs.importers.from_config import read_config
from graphs.ir import Graph
from planner.plans.plan import Plan
from planner.plans.runs import MeasuredRun
from planner.problem.problem import Goal
from planner.view import render
from simulator.placement import Placement
from tests.benchmarks.bars import Bar, at_least, at_most, declare, report
from tests.planner.view.browser import BROWSER, browse
from tests.planner.view.samples import chain_plan

HELP_S, OPEN_S = 0.3, 2.0  # targets
LARGE, HUGE = 2_000, 20_000  # operators
LAYERS, HOSTS, GOALS = 80, "8x(8xH100-SXM:NVLink4):InfiniBand-400", tuple(Goal)[:4]  # one pass
HIGH_LAYERS, HIGH_HOSTS = 120, "16x(8xH100-SXM:NVLink4)+32x(4xL40S:PCIe4):InfiniBand-400"
WINDOWS = {"1400 × 1000": (1400, 1000), "800 × 1200": (800, 1200)}
LLAMA_S, LLAMA_PIXELS, LLAMA_BYTES = 1.0, 3_000, 2_000_000  # targets
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "dtype": "bfloat16",
}
SEEN = """
    const shown = (e) => { const b = e.getBoundingClientRect(); return b.width > 0 && b.height > 0; };
    const {scene} = planView, keys = ['ArrowRight', 'ArrowLeft', 'ArrowDown', 'ArrowUp'];
    const press = (e, key) => e.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}));
    const reached = new Set([scene.current]);
    for (const id of reached) for (const key of keys) {
      scene.focus(id); press(document.activeElement, key); reached.add(scene.current);
    }
    const lost = [...scene.boxes.keys()].filter((id) => !reached.has(id));
    one('[data-do=fit]').click();
    let tiles = all('.tile').length;
    for (const map of all('.map')) for (let e = map.querySelector('.tile'), last = null; e !== last; tiles -= 1) {
      last = e; e.focus(); press(e, 'ArrowRight'); e = document.activeElement;
    }
    const told = one('#reasons').innerText.includes('bottleneck');
    const ticks = all('.cell.cutting, .cell.within').filter(shown).length;
    const columns = all('#memory [data-device]').filter(shown);
    return {
      "where it is cut": ticks,
      "the bottleneck": told && all('.tile.bottleneck').filter(shown).length,
      "memory against limits": columns.length && all('#memory line.limit').length,
      "× one device": /× one device\\s+[\\d.,]+ ×/.test(one('#figures').innerText),
      "height": document.documentElement.scrollHeight,
      "wider than the window": Math.max(0, document.documentElement.scrollWidth - innerWidth),
      "out of the keyboard's reach": all('button:not(.tile), select, input, #timeline')
        .filter((e) => shown(e) && e.tabIndex < 0).length + lost.length + tiles,
      "without a name": all('.node, .cell, .title, .tile, button, svg[role=img]')
        .filter((e) => shown(e) && !(e.getAttribute('aria-label') || e.textContent.trim())).length,
    };
"""


def main() -> int:
    """Measure, print the bars."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    declare(parser)
    options = parser.parse_args()
    rounds = 3 if options.quick else 9
    bars = [at_most("planner --help, processor seconds", median(help_s, rounds), HELP_S)]
    if BROWSER is None:
        print("no chromium on the path: the page is not measured", file=sys.stderr)
    else:
        bars += [opened(LARGE, rounds), opened(HUGE, rounds), *llama_bars(rounds)]
    return report(bars, options.json)


def median(measure: Callable[[], float], rounds: int) -> float:
    """Of some measurements."""
    return statistics.median(measure() for _ in range(rounds))


def help_s() -> float:
    """Processor time of one `planner --help`, the interpreter's start included."""
    before = os.times()
    subprocess.run([sys.executable, "-m", "planner", "--help"], capture_output=True, check=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def opened(n_ops: int, rounds: int) -> Bar:
    """From the start of the navigation until the graph is drawn."""
    modules = [f"layers.{i // 40}.{'abcd'[i % 40 // 10]}" for i in range(n_ops)]
    begin_s = time.perf_counter()
    page = render(chain_plan(modules, n_devices=8))
    print(f"a page of {n_ops:,} operators: {len(page):,} characters in {time.perf_counter() - begin_s:.2f} s")

    return at_most(f"plan.html of {n_ops:,} operators, seconds to open", median(lambda: open_s(page), rounds), OPEN_S)


def open_s(page: str) -> float:
    """Seconds until a page is drawn."""
    with tempfile.TemporaryDirectory() as folder:
        milliseconds: float = browse(page, Path(folder), "return performance.now()")
    return milliseconds / 1e3


def llama_bars(rounds: int) -> list[Bar]:
    """The bars of the pages of plans for a large language model on many devices."""
    bars = high_bars(rounds)
    for goal in GOALS:
        begin_s = time.perf_counter()
        plan = planner.plan(llama(LAYERS, goal), cluster=HOSTS, goal=goal)
        name = f"Llama of {LAYERS} layers on {len(plan.cluster.devices)} devices for {goal}"
        print(
            f"{name}: planned in {time.perf_counter() - begin_s:.1f} s, {plan.gap:.1%} from its bound by {plan.solver}"
        )
        bars += page_bars(name, render(plan), rounds)
    return bars


def llama(layers: int, goal: Goal) -> Graph:
    """A large language model of so many layers."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.json"
        config.write_text(json.dumps(LLAMA | {"num_hidden_layers": layers}), encoding="utf-8")
        return read_config(config, training=goal is Goal.TRAINING).graph


def high_bars(rounds: int) -> list[Bar]:
    """The bars of the page that has most to say: no two stages alike, memory that does not suffice, and a run."""
    graph, cluster, workload = (
        llama(HIGH_LAYERS, Goal.THROUGHPUT),
        cluster_in_one_line(HIGH_HOSTS),
        Workload(in_flight=512),
    )
    table, random = tabulate(graph, cluster, workload, {}), Random(0)
    cuts = sorted(random.sample(range(1, table.n_ops), table.n_devices - 1))
    devices = random.sample(range(table.n_devices), table.n_devices)
    stage = np.searchsorted(cuts, range(table.n_ops), side="right")
    placement = Placement(tuple(devices[i] for i in stage))
    plan = Plan(graph, cluster, workload, table, Goal.THROUGHPUT, placement, "feasible", "by hand", 0.0)
    name = f"Llama of {HIGH_LAYERS} layers by chance on {table.n_devices} unlike devices"
    return page_bars(name, render(plan, MeasuredRun(plan.simulate(8))), rounds)


def page_bars(name: str, page: str, rounds: int) -> list[Bar]:
    """The bars of a page."""
    bars = [
        at_most(f"{name}, seconds to open", median(lambda: open_s(page), rounds), LLAMA_S),
        at_most(f"{name}, bytes", len(page.encode()), LLAMA_BYTES),
        at_most(f"{name}, addresses elsewhere", len(re.findall(r"(?:src|href|url)\s*[=(]\s*.?https?:", page)), 0),
    ]
    for window, size in WINDOWS.items():
        with tempfile.TemporaryDirectory() as folder:
            seen = browse(page, Path(folder), SEEN, size)
        bars.append(at_most(f"{name}, pixels high at {window}", seen.pop("height"), LLAMA_PIXELS))
        for what in ("wider than the window", "out of the keyboard's reach", "without a name"):
            bars.append(at_most(f"{name}, {what} at {window}", seen.pop(what), 0))
        bars += [at_least(f"{name}, seen at {window}: {what}", int(found), 1) for what, found in seen.items()]
    return bars


if __name__ == "__main__":
    sys.exit(main())
