"""Hybrid parallelism: ``planner solve`` on the published problems, beside the best known answers.

    python -m tests.benchmarks.hybrid [KIND ...] [--problems DIR] [--quick] [--json FILE]

DIR holds a folder for each KIND with its problems and an independent ``evaluate.py``, which judges every answer:
``sharding``, tensor programs on a mesh of devices, by their price; ``layerwise``, settings of a stack of equal layers,
by samples a second, and the plans that are published for them; ``piper`` (in ``../piper``), pipelines of stages that
are copied and shared, by seconds a sample, beside what the authors' program finds. Other answers are proved optima.
Seconds are those of the whole process. All of it takes less than 50 s, so that ``--quick`` leaves nothing out.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from tests.benchmarks.bars import Bar, at_least, at_most, declare, report

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


KINDS: Mapping[str, Callable[[Path], Iterator[Row]]] = {"sharding": sharding, "layerwise": layerwise, "piper": piper}
FOLDERS = {"piper": "../piper"}  # where it is not the name of the kind
MOST_SECONDS = {"sharding": 5.0, "layerwise": 10.0, "piper": 10.0}


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
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"some of {', '.join(KINDS)} (all)")
    parser.add_argument("--problems", type=Path, default=PROBLEMS, metavar="DIR", help="the published problems")
    declare(parser)
    options = parser.parse_args()
    bars = []
    for kind in options.kinds or KINDS:
        print(f"\n{kind:44}{'ours':>18}{'judged':>18}{'best known':>18}")
        rows = []
        for row in KINDS[kind](options.problems / FOLDERS.get(kind, kind)):
            print(row, flush=True)
            rows.append(row)
        bars += bars_of(kind, rows)
    return report(bars, options.json)


if __name__ == "__main__":
    sys.exit(main())
