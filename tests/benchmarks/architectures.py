"""Every architecture of transformers, from a tiny config: imported, planned, run on two devices, and right or why not.

    python -m tests.benchmarks.architectures [MODEL_TYPE ...] [--minutes N] [--results FILE] [--write] [--json FILE]

It goes on where it stopped: FILE has a line for each architecture that was tried with this version of transformers.
Those that are right on docs/architectures.md are not tried again; its other rows stay until they are. ``--write``
writes its table. Each architecture has a process of its own and a time limit.
"""

import argparse
import json
import os
import re
import resource
import select
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.benchmarks.bars import Bar, at_least, report
from tests.benchmarks.tiny_configs import tiny_config

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architectures.md"
LIMIT_S = 60  # of processor time, of one architecture
PATIENCE = 10.0  # times as long by the clock, on a busy machine
WANTED = 150
WIDTH = 150  # of a reason in the table, in characters
MARK = "<!-- table -->\n"
LOADED = (
    *("transformers.modeling_layers", "transformers.generation", "graphs.importers.from_config"),
    *("graphs.importers.from_torch", "planner", "planner.runtime.start", "planner.runtime.benchmark.check"),
    *("planner.planning.find_plan", "tests.planner.runtime.small"),
)
"""Modules that every architecture needs: loaded once, before the forks."""


@dataclass(frozen=True)
class Row:
    """What came of one architecture."""

    name: str  # its model_type
    version: str  # of transformers
    operators: int = 0  # of the imported network
    imported: bool = False
    planned: bool = False
    right: bool = False
    why: str = ""  # why not, or with what alone
    seconds: float = 0.0


def tried(name: str, version: str) -> Row:
    """Import, plan and run one architecture in this process."""
    start_s, row = time.perf_counter(), Row(name, version)
    try:
        for step in _steps(row, tiny_config(name)):
            row = step
    except Exception as error:  # whatever a foreign model raises
        row = replace(row, why=f"{type(error).__name__}: {' '.join(str(error).split())}"[:300])
    return replace(row, seconds=round(time.perf_counter() - start_s, 1))


def _steps(row: Row, document: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the row after each step."""
    import planner
    from graphs.common.errors import fallbacks
    from graphs.importers.from_config import read_config
    from planner.plans.plan import plan_by_hand
    from planner.runtime.benchmark.check import compare_outputs
    from simulator.placement import Placement
    from tests.planner.runtime.small import desk

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(document), encoding="utf-8")
        program = read_config(path, 1, weights=True)
    count, alone = len(program.graph.ops), "".join(f"texts alone: {text}" for _, text in fallbacks())
    yield (row := replace(row, imported=True, operators=count))
    search = planner.Search(time_limit_s=2.0, rewrites="none", autotuning=False)
    plan = planner.plan(program, cluster=desk(2), goal="throughput", search=search)
    yield (row := replace(row, planned=True))
    divided = plan_by_hand(plan, Placement(tuple(int(i >= count // 2) for i in range(count))))
    with planner.start(divided, program) as runner:
        answers = compare_outputs(runner)
    wrong = "; ".join(answers.wrong) or answers.unknown
    yield replace(row, right=not wrong, why=(wrong or alone)[:300])


def in_a_process(name: str, version: str) -> Row:
    """Try an architecture in a fork, which may crash or hang."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(read)
        resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S))
        with warnings.catch_warnings(), os.fdopen(write, "w") as stream:
            warnings.simplefilter("ignore")
            stream.write(json.dumps(asdict(tried(name, version))))
        os._exit(0)
    os.close(write)
    text = b""
    end_s = time.monotonic() + PATIENCE * LIMIT_S
    while select.select([read], [], [], max(0.0, end_s - time.monotonic()))[0] and (part := os.read(read, 2**16)):
        text += part
    os.close(read)
    if not text:
        os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    if text:
        return Row(**json.loads(text))
    late = time.monotonic() >= end_s or os.WTERMSIG(status) == signal.SIGKILL
    why = f"no end in {LIMIT_S} s of processor time" if late else f"the process died ({status})"
    return Row(name, version, why=why)


def rows_of(file: Path, version: str) -> dict[str, Row]:
    """Return what was tried before, by name."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    rows = [Row(**json.loads(line)) for line in lines]
    return {row.name: row for row in rows if row.version == version}


def rows_of_page(version: str) -> dict[str, Row]:
    """Return the rows of the page for this version, by name."""
    text = PAGE.read_text(encoding="utf-8")
    lines = text.splitlines() if f"transformers {version}," in text else []
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| ")]
    yes = "yes"
    return {
        name: Row(name, version, int(count or 0), imported == yes, planned == yes, right == yes, why)
        for name, count, imported, planned, right, why in cells
        if name not in ("architecture", "---")
    }


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a table of a page."""
    head = [
        "| architecture | operators | imported | planned | right | why not, or not with all inputs |",
        "| --- | ---: | --- | --- | --- | --- |",
    ]
    yes = {True: "yes", False: "no"}
    lines = [
        f"| {row.name} | {row.operators or ''} | {yes[row.imported]} | {yes[row.planned]} | {yes[row.right]} "
        f"| {reason(row.why)} |"
        for row in sorted(rows, key=lambda row: row.name)
    ]
    return "\n".join([*head, *lines]) + "\n"


def reason(why: str) -> str:
    """Return why an architecture is not right, in the words of a table."""
    if "Unrecognized configuration class" in why:
        return "a part of another model: transformers has no class that builds it alone"
    plain = re.sub(r"'/tmp/\S*'", "the config", why.removeprefix("InputError: "))
    return (plain[:WIDTH] + "…" if len(plain) > WIDTH else plain).replace("|", "/").replace("<", "‹").replace("`", "")


def write_page(rows: Sequence[Row], version: str, n_known: int) -> None:
    """Write the page's table, and how many there are of each kind."""
    right = sum(row.right for row in rows)
    said = (
        f"Of the {n_known} architectures of transformers {version}, {len(rows)} were tried: {right} ran on two devices "
        f"with PyTorch's bits, {sum(row.imported for row in rows)} were imported.\n\n"
    )
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(text.partition(MARK)[0] + MARK + said + table(rows), encoding="utf-8")


def main() -> int:
    """Try what was not tried yet, as long as there is time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="MODEL_TYPE", help="all by default")
    parser.add_argument("--minutes", type=float, default=60.0, help="for so long (60)")
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "architectures.jsonl", metavar="FILE")
    parser.add_argument("--write", action="store_true", help="write docs/architectures.md")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the bars here")
    options = parser.parse_args()
    import transformers

    for each in LOADED:
        import_module(each)
    transformers.MODEL_MAPPING.keys()  # imports every config
    version, end_s = transformers.__version__, time.monotonic() + 60 * options.minutes
    known = sorted(transformers.CONFIG_MAPPING.keys())
    earlier = rows_of(options.results, version)
    rows = rows_of_page(version) | earlier
    done = earlier.keys() | {name for name, row in rows.items() if row.right}
    options.results.parent.mkdir(exist_ok=True)
    for name in options.names or [each for each in known if each not in done]:
        if time.monotonic() >= end_s:
            break
        rows[name] = row = in_a_process(name, version)
        print(f"{name:32}{row.operators:7}  {'right' if row.right else row.why}", flush=True)
        with options.results.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(asdict(row)) + "\n")
    if options.write:
        write_page([*rows.values()], version, len(known))
    wrong = [row.name for row in rows.values() if row.planned and not row.right and "output" in row.why]
    bars = [
        at_least("architectures that run and are right", sum(row.right for row in rows.values()), WANTED),
        Bar(f"architectures with a wrong answer {wrong}", len(wrong), 0, not wrong),
    ]
    return report(bars, options.json)


if __name__ == "__main__":
    sys.exit(main())
