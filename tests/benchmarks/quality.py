"""Quality of answers: ``planner solve`` on the public placement problems, beside what others have reached.

    python -m tests.benchmarks.quality [KIND ...] [--problems DIR] [--time-limit S] [--quick] [--json FILE]

DIR holds ``throughput/*.json``, ``latency/*.json`` and an independent ``evaluate.py``, which judges every answer. A
KIND is throughput, contiguous (the largest load again, but devices follow one another), latency, layered: seeded graphs
of 1,000 operators on 4, 8 and 16 devices, or anytime: seeded layered graphs with several time limits, more of which
must never give a worse answer or a wider gap. ``first`` is from the start of the process to the first answer; ``load``
is the machine's load average when a problem was done: above the number of cores, times say little.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from threading import Timer
from typing import Any

from planner.problem.problem import Goal, Problem
from planner.problem.result import Result
from planner.solvers.solve import solve
from tests.benchmarks.bars import Bar, at_least, at_most, declare, report
from tests.benchmarks.scale import make_table

ROOT = Path(__file__).parents[2]
PROBLEMS = ROOT / ".." / "shared" / "bench" / "msr"
KINDS = ("throughput", "contiguous", "latency")
LAYERED, ANYTIME = "layered", "anytime"
LIMITS_S, QUICK_LIMITS_S = (5.0, 20.0, 60.0), (1.0, 4.0)
WIDE = ((1000, 4), (1000, 8), (1000, 16))  # operators and devices of layered graphs
GRAPHS = ((40, 4), (100, 3), (300, 8), (1000, 16))
QUICK = {
    "throughput": ("layer-bert24_inference", "op-bert_l-3_inference"),
    "contiguous": ("layer-bert24_training",),
    "latency": ("layer-bert24_inference", "op-bert_l-3_inference"),
}
QUICK_S = 7.0
LAYERED_HEAD = f"\n{{:28}}{'limit s':>8}{'ours, ms':>12}{'our bound':>12}{'gap':>8}{'wall s':>7}{'load':>6}"
GRACE_S = 60.0  # to start, stop and write, before a process is taken for stuck

# Milliseconds. Columns of throughput: what the dynamic program (contiguous), the local search, Scotch and the human
# expert of Tarnawski et al. (NeurIPS 2020) reach, from running their programs; then the best known and the best proved
# bound, found with annealing and HiGHS. Columns of latency: their greedy, their dynamic program with splitting, and
# the best known, from annealing. All were measured with the evaluator that lies beside the problems.
THROUGHPUT_HEAD = ("peer DP", "peer LS", "Scotch", "expert", "best known", "bound")
THROUGHPUT: Mapping[str, tuple[float | None, ...]] = {
    "layer-bert24_inference": (17.7899, 17.7776, 18.0259, 20.0840, 17.714719, 17.714719),
    "layer-bert24_training": (41.7458, 39.9432, 42.0078, 49.4049, 39.789539, 39.789539),
    "layer-inceptionv3_inference": (None, 54.0803, 55.6272, 102.4821, 51.535344, 51.033067),
    "layer-inceptionv3_training": (None, 122.995, 120.5699, 213.6542, 117.655847, 116.514426),
    "op-bert_l-3_inference": (27.9186, 27.5741, 35.9352, None, 21.908376, 21.908376),
    "op-bert_l-3_training": (65.3031, 68.0629, 403.77, None, 54.207399, 54.207399),
    "op-bert_l-6_inference": (29.5795, 39.9903, 58.0815, None, 28.332191, 28.332191),
    "op-bert_l-6_training": (72.8650, 104.173, 98.1384, None, 71.642260, 65.782368),
}
CONTIGUOUS_HEAD = ("optimum",)
CONTIGUOUS: Mapping[str, str] = {  # proved; to the digits that are known
    "layer-bert24_inference": "17.7899",
    "layer-bert24_training": "41.7458",
    "layer-inceptionv3_inference": "51.551864",
    "layer-inceptionv3_training": "122.761616",
    "op-bert_l-3_inference": "27.9186",
    "op-bert_l-3_training": "65.3031",
    "op-bert_l-6_inference": "29.5795",
    "op-bert_l-6_training": "72.8650",
}
LATENCY_HEAD = ("peer greedy", "peer DP", "best known")
LATENCY: Mapping[str, tuple[float | None, ...]] = {
    "layer-bert24_inference": (100.2185, 108.031, 100.2185),
    "layer-inceptionv3_inference": (2485.24, 1851.14, 1199.70),
    "op-bert_l-3_inference": (416.204, 414.441, 408.474),
    "op-bert_l-6_inference": (494.135, 444.020, 438.062),
}


@dataclass(frozen=True)
class Case:
    """A problem and what is asked of it."""

    kind: str
    name: str
    path: Path

    @property
    def goal(self) -> str:
        """As ``--goal`` wants it."""
        return "latency" if self.kind == "latency" else "throughput"

    @property
    def best_ms(self) -> float:
        """The best that is known."""
        if self.kind == "contiguous":
            return float(CONTIGUOUS[self.name])
        known = LATENCY[self.name][-1] if self.kind == "latency" else THROUGHPUT[self.name][-2]
        assert known is not None
        return known

    @property
    def published(self) -> tuple[str, ...]:
        """What others have reached, a cell each."""
        if self.kind == "contiguous":
            return (CONTIGUOUS[self.name],)
        row = (LATENCY if self.kind == "latency" else THROUGHPUT)[self.name]
        return tuple("–" if value is None else f"{value:.6g}" for value in row)


@dataclass(frozen=True)
class Row:
    """One answer, judged.

    Attributes:
        case: what was asked.
        answer: what ``planner solve`` wrote; empty if it wrote nothing.
        judged_ms: by the independent judge; infinite if it found the answer infeasible.
        wall_s: of the process.
        first_s: from the start of the process to its first answer.
        load: the machine's load average afterwards.
    """

    case: Case
    answer: Mapping[str, Any]
    judged_ms: float
    wall_s: float
    first_s: float
    load: float

    @property
    def gap(self) -> float:
        """As the answer says, but of the evaluator's figure."""
        return 1 - (self.answer.get("bound") or 0.0) / self.judged_ms if self.judged_ms < inf else 1.0

    @property
    def ratio(self) -> float:
        """Over the best that is known."""
        return self.judged_ms / self.case.best_ms

    @property
    def confirmed(self) -> bool:
        """Whether the evaluator says what the answer says."""
        return self.judged_ms < inf and abs(self.judged_ms / self.answer["objective"] - 1) < 1e-6

    @property
    def exact(self) -> bool:
        """Whether it is the optimum to the digits that are known."""
        known = CONTIGUOUS[self.case.name]
        return f"{self.judged_ms:.{len(known.partition('.')[2])}f}" == known

    def __str__(self) -> str:
        published = "".join(f"{cell:>12}" for cell in self.case.published)
        bound = self.answer.get("bound")
        return (
            f"{self.case.name:28}{published}{self.judged_ms:12.7g}{'–' if bound is None else format(bound, '.7g'):>12}"
            f"{self.gap:8.2%}{self.ratio - 1:+9.3%}{self.wall_s:7.1f}{self.first_s:7.2f}{self.load:6.1f}"
            f"  {self.answer.get('status', 'no answer')} by {self.answer.get('solver', '–')}"
            f"{'' if self.confirmed else ', NOT CONFIRMED'}"
        )


def head(kind: str) -> str:
    """The line above the rows of a kind."""
    columns = {"throughput": THROUGHPUT_HEAD, "contiguous": CONTIGUOUS_HEAD, "latency": LATENCY_HEAD}[kind]
    ours = f"{'ours, ms':>12}{'our bound':>12}{'gap':>8}{'to best':>9}{'wall s':>7}{'first':>7}{'load':>6}"
    return f"\n{kind:28}" + "".join(f"{column:>12}" for column in columns) + ours


def cases(kinds: list[str], problems: Path, quick: bool) -> Iterator[Case]:
    """What to measure."""
    known = {"throughput": THROUGHPUT, "contiguous": CONTIGUOUS, "latency": LATENCY}
    for kind in kinds:
        folder = problems / ("latency" if kind == "latency" else "throughput")
        for path in sorted(folder.glob("*.json")):
            if path.stem in known[kind] and (not quick or path.stem in QUICK[kind]):
                yield Case(kind, path.stem, path)


def measure(case: Case, objective_of: Path, time_limit_s: float) -> Row:
    """Run ``planner solve`` as a user does, and let the evaluator look at what it wrote."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "answer.json")
        command = [sys.executable, "-m", "planner", "solve", str(case.path), "--goal", case.goal]
        command += ["--time-limit", str(time_limit_s), "-o", str(output)]
        command += ["--contiguous"] if case.kind == "contiguous" else []
        start_s = time.perf_counter()
        first_s = _run(command, start_s, time_limit_s + GRACE_S)
        wall_s = time.perf_counter() - start_s
        answer = json.loads(output.read_text(encoding="utf-8")) if output.exists() else {}
        return Row(
            case, answer, _judged_ms(case, answer, objective_of, Path(folder)), wall_s, first_s, os.getloadavg()[0]
        )


def _run(command: list[str], start_s: float, most_s: float) -> float:
    """Run it to its end; returns the seconds until it told of a first answer."""
    first_s, last = inf, ""
    with subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        stuck = Timer(most_s, process.kill)
        stuck.start()
        for line in process.stderr:
            last = line
            if " ms by " in line:
                first_s = min(first_s, time.perf_counter() - start_s)
        stuck.cancel()
    if process.returncode:
        print(f"exit status {process.returncode}: {last.strip()}")
    return first_s


def _judged_ms(case: Case, answer: Mapping[str, Any], objective_of: Path, folder: Path) -> float:
    if not answer.get("assignment"):
        return inf
    assignment = folder / "assignment.json"
    assignment.write_text(json.dumps(answer["assignment"]), encoding="utf-8")
    objective = "latency" if case.kind == "latency" else "load"
    command = [sys.executable, str(objective_of), str(case.path), str(assignment), "--objective", objective]
    command += ["--contiguous"] if case.kind == "contiguous" else []
    verdict = json.loads(subprocess.run(command, capture_output=True, text=True, check=False).stdout)
    if not verdict["feasible"]:
        print(f"{case.name}: {'; '.join(verdict['violations'])}")
        return inf
    return float(verdict["latency" if case.kind == "latency" else "max_load"])


def layered(time_limit_s: float, quick: bool) -> list[Bar]:
    """Solve seeded graphs of many operators; the bar on the mean of their gaps."""
    print(LAYERED_HEAD.format(LAYERED))
    gaps = [layered_row(n_ops, n_devices, 0, time_limit_s).gap for n_ops, n_devices in WIDE[: 1 if quick else None]]
    return [at_most("layered graphs of 1,000 operators, mean gap", sum(gaps) / len(gaps), 0.03)]


def anytime(quick: bool) -> list[Bar]:
    """Solve seeded graphs with more and more time; what has to hold of that."""
    worse = [0, 0]
    print(LAYERED_HEAD.format(ANYTIME))
    for seed, (n_ops, n_devices) in enumerate(GRAPHS[:2] if quick else GRAPHS):
        before: Result | None = None
        for limit_s in QUICK_LIMITS_S if quick else LIMITS_S:
            found = layered_row(n_ops, n_devices, seed, limit_s)
            if before is not None:
                worse[0] += found.objective_s > before.objective_s
                worse[1] += found.gap > before.gap
            before = found
    return [at_most(f"more time, worse {name}", n, 0) for name, n in zip(("answers", "gaps"), worse, strict=True)]


def layered_row(n_ops: int, n_devices: int, seed: int, limit_s: float) -> Result:
    """Solve a seeded layered graph, and print a row on it."""
    problem = Problem(make_table("layered", n_ops, seed, n_devices), Goal.THROUGHPUT)
    found = solve(problem, time_limit_s=limit_s, gap=0.0)
    print(
        f"{f'{n_ops} on {n_devices}, seed {seed}':28}{limit_s:8g}{1e3 * found.objective_s:12.7g}"
        f"{1e3 * found.bound_s:12.7g}{found.gap:8.2%}{found.wall_s:7.1f}{os.getloadavg()[0]:6.1f}"
        f"  {found.status} by {found.solver}{', by the clock' if found.by_clock else ''}",
        flush=True,
    )
    return found


def bars(rows: list[Row]) -> list[Bar]:
    """What has to hold of everything that was measured."""
    if not rows:
        return []
    kind = {name: [row for row in rows if row.case.kind == name] for name in KINDS}
    found = [
        at_least("answers that the evaluator confirms, share", sum(row.confirmed for row in rows) / len(rows), 1.0),
        at_most("first answer, slowest, s", max(row.first_s for row in rows), 2.0),
    ]
    if throughput := kind["throughput"]:
        found.append(at_most("throughput over best known, worst", max(row.ratio for row in throughput), 1.005))
        for graphs, most in (("layer", 0.01), ("op", 0.05)):
            gaps = [row.gap for row in throughput if row.case.name.startswith(graphs)]
            found += [at_most(f"throughput, {graphs} graphs, largest gap", max(gaps), most)] if gaps else []
    if contiguous := kind["contiguous"]:
        n_exact = sum(row.exact for row in contiguous)
        n_proved = sum(row.answer.get("status") == "optimal" for row in contiguous)
        found.append(at_least("contiguous, known optima reached", n_exact, len(contiguous)))
        found.append(at_least("contiguous, optima proved", n_proved, len(contiguous)))
        found.append(at_most("contiguous, slowest, s", max(row.wall_s for row in contiguous), 30.0))
    if latency := kind["latency"]:
        found.append(at_most("latency over best known, worst", max(row.ratio for row in latency), 1.01))
        smallest = sorted(latency, key=lambda row: row.case.path.stat().st_size)[:2]
        found.append(at_most("latency, largest gap of the two smallest", max(row.gap for row in smallest), 0.1))
        found.append(at_most("latency, largest gap", max(row.gap for row in latency), 0.3))
    return found


def main() -> int:
    """Solve, judge, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", choices=[[], *KINDS, LAYERED, ANYTIME], metavar="KIND", help="default: all")
    parser.add_argument("--problems", type=Path, default=PROBLEMS, metavar="DIR", help="where the problems are")
    parser.add_argument(
        "--time-limit", type=float, metavar="S", help=f"for each problem (60; {QUICK_S:g} with --quick)"
    )
    declare(parser)
    options = parser.parse_args()
    problems = options.problems.resolve()
    time_limit_s = options.time_limit or (QUICK_S if options.quick else 60.0)
    rows: list[Row] = []
    kinds = options.kinds or [*KINDS, LAYERED, ANYTIME]
    for case in cases([kind for kind in kinds if kind in KINDS], problems, options.quick):
        if not rows or rows[-1].case.kind != case.kind:
            print(head(case.kind))
        rows.append(measure(case, problems / "evaluate.py", time_limit_s))
        print(rows[-1], flush=True)
    if not rows and not {LAYERED, ANYTIME} & {*kinds}:
        print(f"there are no known problems in {problems}; name their folder with --problems")
        return 2
    held = bars(rows) + (layered(time_limit_s, options.quick) if LAYERED in kinds else [])
    held += anytime(options.quick) if ANYTIME in kinds else []
    print(f"\n{os.cpu_count()} cores, {time_limit_s:g} s for each problem")
    return report(held, options.json)


if __name__ == "__main__":
    sys.exit(main())
