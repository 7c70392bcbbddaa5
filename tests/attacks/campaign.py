"""A campaign of attacks that goes on where it stopped: slices of every kind in turns, each in a process of its own.

The corpus is a folder: ``counts.json`` has the next seed of each target, and whatever broke through lies there as a
file with its reason. A slice that dies or hangs is a fault itself.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
SLICE_S, PATIENCE_S = 60.0, 300.0
BUSY = 10  # times as long by the clock as of processor time, on a machine that others use, too
LONGER = {
    "problems": 10,
    "networks": 5,
    "trainings": 5,
}  # times as long a slice: they compile or load for half a minute
FAULTS_S = 8.0  # in which most commands end
WANTED = {
    "readers": 1_000_000,
    "options": 1_000_000,
    "problems": 20_000,
    "networks": 20_000,
    "trainings": 2_000,
    "faults": 200,
}
"""How many there should be: files and command lines together, problems, networks, and faults of each command."""


def targets() -> list[tuple[str, str]]:
    """Return what is attacked, as (kind, name), in the order of a round."""
    from planner.cli import COMMANDS as EVERY
    from tests.attacks.faults import COMMANDS
    from tests.attacks.options import LIGHT
    from tests.attacks.readers import NAMES

    heavy = [name for name in ("import", "plan", "choose", "verify", "shard") if name in EVERY]
    return [
        *(("readers", name) for name in NAMES),
        *(("options", name) for name in (*LIGHT, *heavy)),
        ("problems", "all"),
        ("networks", "all"),
        ("networks", "samples"),
        ("trainings", "all"),
        *(("faults", name) for name in COMMANDS),
    ]


@dataclass
class Corpus:
    """Counts and faults of a campaign, in a folder."""

    folder: Path
    counts: dict[str, int] = field(default_factory=dict)  # next seed by "kind name"
    faults: int = 0

    @classmethod
    def of(cls, folder: Path) -> "Corpus":
        """Read what is there, if anything is."""
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "counts.json"
        counts = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        return cls(folder, counts, sum(1 for _ in folder.rglob("*.txt")))

    def keep(self, kind: str, name: str, found: Mapping[str, object]) -> None:
        """Add what a slice has found."""
        key = f"{kind} {name}"
        self.counts[key] = self.counts.get(key, 0) + int(str(found["tried"]))
        for fault in found["faults"]:  # type: ignore[attr-defined]
            self.faults += 1
            place = self.folder / kind / f"{name.replace(' ', '-')}-{fault['seed']}"
            place.parent.mkdir(exist_ok=True)
            place.with_suffix(".txt").write_text(f"{fault['said']}\n{fault['input']}\n", encoding="utf-8")
            print(f"wrong: {kind} {name} {fault['seed']}: {fault['said'][:300]}", flush=True)
        text = json.dumps(self.counts, indent=1, sort_keys=True) + "\n"
        (self.folder / "counts.json").write_text(text, encoding="utf-8")

    def total(self, kind: str) -> int:
        """Return how many inputs of a kind were tried."""
        return sum(count for key, count in self.counts.items() if key.partition(" ")[0] == kind)


def run(hours: float, corpus: Corpus, slice_s: float = SLICE_S) -> None:
    """Attack in turns until the time is over."""
    end_s = time.monotonic() + 3600 * hours
    while True:
        for kind, name in targets():
            if time.monotonic() >= end_s:
                return
            first = corpus.counts.get(f"{kind} {name}", 0)
            corpus.keep(kind, name, _in_a_process(kind, name, first, slice_s * LONGER.get(kind, 1)))


def _in_a_process(kind: str, name: str, first: int, slice_s: float) -> Mapping[str, object]:
    command = [sys.executable, "-m", "tests.attacks.campaign", kind, name, str(first), str(slice_s)]
    limit_s = slice_s + PATIENCE_S
    try:
        done = subprocess.run(
            ["prlimit", f"--cpu={limit_s:.0f}", *command],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=BUSY * limit_s,
            env={**os.environ, "OMP_WAIT_POLICY": "passive"},  # threads that wait take six times as long as they work
            check=True,
        )
        found: Mapping[str, object] = json.loads(done.stdout.splitlines()[-1])
    except subprocess.SubprocessError as error:
        said = f"the process ended: {error} {(getattr(error, 'stderr', '') or '')[-1000:]}"
        found = {"tried": 1, "faults": [{"seed": first, "said": said, "input": "from this seed on"}]}
    return found


def attacked(kind: str, name: str, first: int, slice_s: float, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield what is wrong, or nothing, and the input, from a seed on, for some seconds."""
    seed, attack = first, ATTACKS[kind](name, folder)
    end_s = time.monotonic() + slice_s  # without the seconds that it takes to get ready
    while time.monotonic() < end_s:
        yield attack(seed)
        seed += 1


def _readers(name: str, folder: Path) -> Callable[[int], tuple[str, str]]:
    from tests.attacks import readers

    readers.readers()

    def attack(seed: int) -> tuple[str, str]:
        said, content = readers.attacked(name, seed, folder)
        return said, repr(readers.shrunk(name, content, folder)) if said else ""

    return attack


def _options(name: str, folder: Path) -> Callable[[int], tuple[str, str]]:
    from tests.attacks import options

    options.folder_with_files(folder)

    def attack(seed: int) -> tuple[str, str]:
        said, line = options.attacked(name, seed, folder)
        return said, " ".join(map(repr, line))

    return attack


def _problems(_: str, __: Path) -> Callable[[int], tuple[str, str]]:
    from tests.planner.solvers.law.law import break_law
    from tests.planner.solvers.law.random_problems import KINDS

    def attack(seed: int) -> tuple[str, str]:
        own, kinds = seed // len(KINDS), [*KINDS][seed % len(KINDS) :][:1]
        claims = [claim for each in break_law(kinds, range(own, own + 1)) for claim in each]
        return "; ".join(map(str, claims)), str(kinds)

    return attack


def _networks(name: str, _: Path) -> Callable[[int], tuple[str, str]]:
    from tests.planner.runtime import random_answers, sampled_answers

    if name == "samples":
        return sampled_answers.failure

    def attack(seed: int) -> tuple[str, str]:
        said = random_answers.failure(seed)
        return said or "", str([step.words for step in random_answers.shrunk(seed).steps]) if said else ""

    return attack


def _trainings(_: str, __: Path) -> Callable[[int], tuple[str, str]]:
    from tests.planner.runtime.training import random_steps

    def attack(seed: int) -> tuple[str, str]:
        said = random_steps.failure(seed)
        step = random_steps.drawn(seed) if said else None
        return said or "", f"{step.words} with {step.case.schedule}" if step else ""

    return attack


def _faults(name: str, folder: Path) -> Callable[[int], tuple[str, str]]:
    from tests.attacks import faults
    from tests.attacks.readers import readers

    (folder / "plan.json").write_bytes(readers()["plan"].good)
    kinds = [each for each in faults.FAULTS if faults.possible(each)]

    def attack(seed: int) -> tuple[str, str]:
        kind = kinds[seed % len(kinds)]
        return faults.attacked(name, kind, seed, folder, FAULTS_S), kind

    return attack


ATTACKS: Mapping[str, Callable[[str, Path], Callable[[int], tuple[str, str]]]] = {
    "readers": _readers,
    "options": _options,
    "problems": _problems,
    "networks": _networks,
    "trainings": _trainings,
    "faults": _faults,
}


def main(words: list[str]) -> None:
    """Run one slice: KIND NAME SEED SECONDS; the last line of stdout is what was found."""
    kind, name, first, slice_s = words[0], words[1], int(words[2]), float(words[3])
    tried, found = 0, []
    with tempfile.TemporaryDirectory() as folder:
        for said, given in attacked(kind, name, first, slice_s, Path(folder)):
            if said:
                found.append({"seed": first + tried, "said": said, "input": given[:5000]})
            tried += 1
    print(f"\n{json.dumps({'tried': tried, 'faults': found})}")


if __name__ == "__main__":
    main(sys.argv[1:])
