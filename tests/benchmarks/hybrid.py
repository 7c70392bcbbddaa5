"""Hybrid parallelism: ``planner solve`` on the published problems, beside the best known answers.

    python -m tests.benchmarks.hybrid [KIND ...] [--problems DIR] [--quick] [--json FILE]

DIR holds a folder for each KIND with its problems and an independent ``evaluate.py``, which judges every answer:
``sharding``, tensor programs on a mesh of devices, by their price; ``layerwise``, settings of a stack of equal layers,
by samples a second, and the plans that are published for them; ``piper`` (in ``../piper``), pipelines of stages that
are copied and shared, by seconds a sample, beside what the authors' program finds; ``layout``, named dimensions by
their peak memory; ``classic``, data or model parallelism a layer, by bytes. Other answers are proved optima.

``memory``, ``communication`` and ``megatron`` compare closed forms and predicted steps with published figures;
``choose`` times ``planner choose`` for 80 layers on 64 and 1,024 GPUs, which takes half a minute. Seconds are those of
the whole process. ``--quick`` leaves out the 1,024 GPUs, and searches for four of the ten settings.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from costmodels.cluster.cluster import Replicas
from costmodels.cluster.one_line import catalogue_cluster
from costmodels.cluster.writer import write_cluster
from planner.parallelism.closed_form.config import Demands
from planner.parallelism.closed_form.search import choose_config
from tests.benchmarks.bars import Bar, at_least, at_most, declare, report
from tests.benchmarks.hybrid_closed_forms import Figure, collective_figures, memory_figures
from tests.benchmarks.hybrid_megatron import left_out, published_runs

ROOT = Path(__file__).parents[2]
PROBLEMS = ROOT / ".." / "shared" / "bench" / "hybrid"
MOST_S = 600.0  # for one problem, before a process is taken for stuck
EXACT = 1e-9  # relative; costs are added up in another order
NEAR = 1e-6  # relative; what is published was worked out in another arithmetic
PRINTED = 1e-10  # relative; what is published has twelve digits

# Seconds a sample that the authors' program finds, for devices, GiB of each and micro-batches, with either bandwidth.
PIPER_BYTES_PER_S = (25 << 30, 25_000_000_000)
PIPER: Mapping[tuple[int, int, int], tuple[float, float]] = {
    (8, 8, 1920): (0.16585575, 0.16690426656),
    (8, 80, 1920): (0.12200726935, 0.1220367122),
    (16, 8, 1920): (0.0829622169611, 0.08348900768),
    (32, 8, 1920): (0.0415154504417, 0.04178137824),
    (64, 8, 1920): (0.0202005502945, 0.0203202246933),
    (64, 2, 1920): (0.0320300812349, 0.03255382624),
    (128, 8, 1920): (0.0101208803239, 0.0101822369867),
    (64, 8, 480): (0.0203035761779, 0.0204308478933),
    (512, 8, 1920): (0.0025611278460, 0.0025787462067),
}


class Row(NamedTuple):
    """One answer, judged."""

    name: str
    ours: float  # as ``planner solve`` says
    judged: float
    best: float  # known
    wall_s: float
    tolerance: float = EXACT

    @property
    def exact(self) -> bool:
        """Whether the answer is as good as the best known one, and its price the judge's."""
        return max(abs(self.judged / self.best - 1), abs(self.judged / self.ours - 1)) <= self.tolerance

    def __str__(self) -> str:
        return f"{self.name:44}{self.ours:18.10g}{self.judged:18.10g}{self.best:18.10g}{self.wall_s:8.2f} s"


def output_of(*command: str) -> Any:
    """What a command prints as JSON, line by line."""
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, timeout=MOST_S, check=True)
    return done.stdout


def solved(path: Path, answer: Path, *options: str) -> tuple[dict[str, Any], float]:
    """What ``planner solve`` says, and the seconds that it takes."""
    start_s = time.perf_counter()
    command = [sys.executable, "-m", "planner", "solve", str(path), "-o", str(answer), "--force", "--json", *options]
    said: dict[str, Any] = json.loads(output_of(*command))
    return said, time.perf_counter() - start_s


def sharding(folder: Path) -> Iterator[Row]:
    """Every mesh of every program."""
    with tempfile.TemporaryDirectory() as scratch:
        for path in sorted(folder.glob("*.json")):
            said, wall_s = solved(path, Path(scratch, "all.json"))
            for case in said["cases"]:
                mesh, answer = case["mesh"], Path(scratch, "one.json")
                answer.write_text(json.dumps(case["assignment"]), encoding="utf-8")
                judge = (sys.executable, str(folder / "evaluate.py"), str(path), str(answer), "--mesh", mesh)
                judged = json.loads(output_of(*judge))
                yield Row(f"{path.stem} {mesh}", case["price"], judged["price"], judged["expected"]["optimum"], wall_s)


def layerwise(folder: Path) -> Iterator[Row]:
    """Every setting, and the published plan of each, priced."""
    with tempfile.TemporaryDirectory() as scratch:
        for path in sorted(folder.glob("*.json")):
            answers = json.loads(path.read_text(encoding="utf-8"))["answers"]
            plan, answer = Path(scratch, "plan.json"), Path(scratch, "answer.json")
            plan.write_text(json.dumps(answers["peer"]["plan"]), encoding="utf-8")
            said, wall_s = solved(path, answer, "--given", str(plan))
            peer = answers["peer"]["samples_per_second"]
            yield Row(f"{path.stem}, published", said["samples_per_s"], peer, peer, wall_s, NEAR)
            said, wall_s = solved(path, answer)
            judged = json.loads(output_of(sys.executable, str(folder / "evaluate.py"), str(path), str(answer)))
            best = answers["optimum"]["samples_per_second"]
            ours = judged[str(answer)]["samples_per_second"]
            yield Row(path.stem, said["samples_per_s"], ours, best, wall_s)


def piper(folder: Path) -> Iterator[Row]:
    """BERT-32 on 8 to 512 devices, with both bandwidths."""
    path = folder / "bert32a100.json"
    with tempfile.TemporaryDirectory() as scratch:
        answer = Path(scratch, "answer.json")
        for (devices, gib, micro_batches), published_s in PIPER.items():
            for bytes_per_s, best_s in zip(PIPER_BYTES_PER_S, published_s, strict=True):
                setting = (devices, gib << 30, micro_batches, bytes_per_s)
                names = ("--devices", "--memory", "--micro-batches", "--bandwidth")
                said, wall_s = solved(path, answer, *_options(names, setting))
                judge = (sys.executable, str(folder / "evaluate.py"), str(path), str(answer))
                judged = json.loads(output_of(*judge, *_options(("--k", "--mem", "--mbs", "--bw"), setting)))
                time_s = inf if judged["violations"] else judged["tps"]
                name = f"bert32 {devices} x {gib} GiB, {micro_batches}, {bytes_per_s / 1e9:.4g} GB/s"
                yield Row(name, said["time_s"], time_s, best_s, wall_s, PRINTED)


def _options(names: tuple[str, ...], values: tuple[int, ...]) -> list[str]:
    return [word for name, value in zip(names, values, strict=True) for word in (name, str(value))]


def layout(folder: Path) -> Iterator[Row]:
    """Every case of named dimensions."""
    path = folder / "cases.json"
    with tempfile.TemporaryDirectory() as scratch:
        said, wall_s = solved(path, Path(scratch, "answer.json"))
    for case, answer in zip(json.loads(path.read_text(encoding="utf-8"))["cases"], said["cases"], strict=True):
        text = ";".join(f"{name}:{axis}" for name, axis in sorted(answer["layout"].items()))
        judge = (sys.executable, str(folder / "evaluate.py"), str(path), case["name"], text)
        judged = json.loads(output_of(*judge))
        judged_bytes = judged["peak_bytes"] if judged["legal"] and text == case["expected"] else inf
        yield Row(case["name"], answer["peak_bytes"], judged_bytes, case["expected_bytes"], wall_s)


def classic(folder: Path) -> Iterator[Row]:
    """Data or model parallelism for each layer; the judge compares our choice and its bytes with the best of all."""
    path = folder / "cases.json"
    with tempfile.TemporaryDirectory() as scratch:
        own = Path(scratch, "case.json")
        said, wall_s = solved(path, Path(scratch, "answer.json"))
        content = json.loads(path.read_text(encoding="utf-8"))
        for case, answer in zip(content["layers"], said["cases"], strict=True):
            modes, sent_bytes = answer["modes"], answer["sent_bytes"]
            judged = {**case, "choices": {"ours": modes}, "expected": {"ours": sent_bytes, "best": modes}}
            own.write_text(json.dumps({**content, "layers": [judged]}), encoding="utf-8")
            judge = (sys.executable, str(folder / "evaluate.py"), "layers", str(own))
            agrees = subprocess.run(judge, capture_output=True, timeout=MOST_S, check=False).returncode == 0
            name = f"{case['network']}, {case['batch']} on {case['gpus']}: {modes}"
            yield Row(name, sent_bytes, sent_bytes if agrees else inf, sent_bytes, wall_s)


KINDS: Mapping[str, Callable[[Path], Iterator[Row]]] = {
    "sharding": sharding,
    "layerwise": layerwise,
    "piper": piper,
    "layout": layout,
    "classic": classic,
}
FOLDERS = {"piper": "../piper"}  # where it is not the name of the kind
MOST_SECONDS = {"sharding": 5.0, "layerwise": 10.0, "piper": 10.0, "layout": 5.0, "classic": 5.0}


def figures(name: str, found: Iterable[Figure]) -> list[Bar]:
    """Closed forms beside published figures."""
    shown = list(found)
    print(f"\n{name}: {len(shown)} figures")
    for figure in shown:
        if not figure.holds:
            print(f"  {figure.name}: {figure.ours:.10g}, published {figure.published:.10g}")
    return [at_least(f"{name}: figures as published", sum(figure.holds for figure in shown), len(shown))]


def megatron(path: Path, quick: bool) -> list[Bar]:
    """Published settings fit, ours are no slower by our own prediction, and left-out seconds are predicted."""
    runs = published_runs(path)
    settings = [run for run in runs if len(run.name) < len("22B full")]  # the ten are named by their parameters alone
    prices = [run.predicted() for run in settings]
    unseen = [abs(run.error()) for run in left_out(runs)]
    choices = []
    for run, price in list(zip(settings, prices, strict=True))[: 4 if quick else None]:
        found = choose_config(replace(run.setting, demands=Demands(devices=run.config.shape.devices)), 20.0)
        choices.append(found.rows[0].price.step_s / price.step_s)
        seconds = f"theirs {price.step_s:8.2f} s, ours {choices[-1]:.1%} of it"
        print(f"{run.name:10}{price.peak_bytes / 1e9:8.1f} GB  {seconds}", flush=True)
    return [
        at_most("megatron: fullest of ten settings, GB", max(price.peak_bytes for price in prices) / 1e9, 80.0),
        at_most("megatron: ours beside the ten settings, worst ratio of predicted steps", max(choices), 1.0),
        at_most(f"megatron: {len(unseen)} steps left out of the fit, worst error", max(unseen), 0.1),
    ]


def choose(hosts: int, most_s: float) -> Bar:
    """``planner choose`` for 80 layers on hosts of eight GPUs, each pair joined by a link of its own."""
    cluster = catalogue_cluster("A100-SXM-80GB", 8, "NVLink3", hosts, "InfiniBand-400")
    with tempfile.TemporaryDirectory() as scratch:
        model, path = Path(scratch, "model.json"), Path(scratch, "cluster.toml")
        model.write_text(json.dumps({"layers": 80, "hidden": 8192, "heads": 64, "sequence": 4096}), encoding="utf-8")
        one = replace(cluster.first(8), replicas=Replicas(hosts, 6.25e9, 2e-6))
        write_cluster(one, path)
        start_s = time.perf_counter()
        command = ("choose", str(model), "--cluster", str(path), "--global-batch", str(16 * hosts * 8), "--json")
        said = json.loads(output_of(sys.executable, "-m", "planner", *command))
        wall_s = time.perf_counter() - start_s
    print(f"\nchoose on {hosts * 8} GPUs: {said['status']}, {said['shapes']} shapes, gap {said['gap']:.2%}")
    return at_most(f"choose: 80 layers on {hosts * 8} GPUs, s", wall_s, most_s)


COMPARED: Mapping[str, Callable[[Path, bool], list[Bar]]] = {
    "memory": lambda problems, _: figures("memory", memory_figures(problems / "memory" / "cases.json")),
    "communication": lambda problems, _: figures(
        "communication", collective_figures(problems / "classic" / "cases.json")
    ),
    "megatron": lambda problems, quick: megatron(problems / "megatron" / "cases.json", quick),
    "choose": lambda _, quick: [choose(8, 30.0), *([] if quick else [choose(128, 120.0)])],
}


def bars_of(kind: str, rows: list[Row]) -> list[Bar]:
    """Every answer at its optimum, in time."""
    return [
        at_least(
            f"{kind}: cases at the best known answer, or priced as published", sum(row.exact for row in rows), len(rows)
        ),
        at_most(f"{kind}: slowest process, s", max(row.wall_s for row in rows), MOST_SECONDS[kind]),
    ]


def main() -> int:
    """Solve and judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"some of {', '.join((*KINDS, *COMPARED))} (all)")
    parser.add_argument("--problems", type=Path, default=PROBLEMS, metavar="DIR", help="the published problems")
    declare(parser)
    options = parser.parse_args()
    bars: list[Bar] = []
    for kind in options.kinds or (*KINDS, *COMPARED):
        if kind in COMPARED:
            bars += COMPARED[kind](options.problems, options.quick)
            continue
        print(f"\n{kind:44}{'ours':>18}{'judged':>18}{'best known':>18}")
        rows = []
        for row in KINDS[kind](options.problems / FOLDERS.get(kind, kind)):
            print(row, flush=True)
            rows.append(row)
        bars += bars_of(kind, rows)
    return report(bars, options.json)


if __name__ == "__main__":
    sys.exit(main())
