"""A campaign of attacks that goes on where it stopped: rounds of every kind in turns, each in a process of its own.

The corpus is a folder: ``counts.json`` has the next seed of each target, ``counted.json`` how many of these are on
docs/attacks.md already, and whatever broke through lies there as a file with its reason, until it is mended. A round
that dies or hangs is a fault itself.
"""

import atexit
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TextIO

from tests.attacks.strikes import end_with_parent
from tests.children import Process, running

ROOT = Path(__file__).parents[2]
SLICE_S, PATIENCE_S = 20.0, 300.0
CALM = {**os.environ, "OMP_WAIT_POLICY": "passive"}  # threads that wait take six times as long as they work
FOUND = "found: "  # begins a line of a round's process
BUSY = 10  # times as long by the clock as of processor time, on a machine that others use, too

Attack = Callable[[int], tuple[str, str]]
"""What is wrong, or nothing, and the input, of a seed."""


@dataclass(frozen=True)
class Kind:
    """Attacks of one kind.

    Attributes:
        names: what they attack.
        attack: makes the attack on a name, with an empty folder.
        longer: so many times as long is a slice of those that compile or load for half a minute.
        computes: whether this process does the work, whose processor time then counts.
        most: so many inputs end a slice, for targets of which some take ten times as long as others; 0 for any number.
    """

    names: Callable[[], Sequence[str]]
    attack: Callable[[str, Path], Attack]
    longer: int = 1
    computes: bool = True
    most: int = 0


def targets(kinds: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Return what is attacked, as (kind, name), in the order of a round; without kinds, all."""
    return [(kind, name) for kind in kinds or KINDS for name in KINDS[kind].names()]


@dataclass
class Corpus:
    """Counts and faults of a campaign, in a folder."""

    folder: Path
    counts: dict[str, int] = field(default_factory=dict)  # next seed by "kind name"
    counted: dict[str, int] = field(default_factory=dict)  # the first seed that no page has counted

    @classmethod
    def of(cls, folder: Path) -> "Corpus":
        """Read what is there, if anything is."""
        folder.mkdir(parents=True, exist_ok=True)
        files = [folder / "counts.json", folder / "counted.json"]
        return cls(folder, *(json.loads(file.read_text("utf-8")) if file.exists() else {} for file in files))

    def start(self, tried: Mapping[str, int]) -> None:
        """Begin targets that are new here after the seeds that were tried elsewhere."""
        for key in tried.keys() - self.counts.keys():
            self.counts[key] = self.counted[key] = tried[key]

    def keep(self, kind: str, name: str, found: Mapping[str, object]) -> None:
        """Add what a slice has found."""
        key = f"{kind} {name}"
        self.counts[key] = self.counts.get(key, 0) + int(str(found["tried"]))
        for fault in found["faults"]:  # type: ignore[attr-defined]
            place = self.folder / kind / f"{name.replace(' ', '-')}-{fault['seed']}.txt"
            place.parent.mkdir(exist_ok=True)
            place.write_text(f"{fault['said']}\n{fault['input']}\n", encoding="utf-8")
            print(f"wrong: {kind} {name} {fault['seed']}: {fault['said'][:300]}", flush=True)
        self.save()

    def save(self) -> None:
        """Write the counts."""
        for file, counts in (("counts.json", self.counts), ("counted.json", self.counted)):
            text = json.dumps(counts, indent=1, sort_keys=True) + "\n"
            (self.folder / file).write_text(text, encoding="utf-8")

    def new(self, key: str) -> int:
        """Return how many inputs of a target no page has counted."""
        return self.counts[key] - self.counted.get(key, 0)

    def broken_through(self, key: str | None = None) -> list[int]:
        """Return the seeds that broke through, of a target or of all, as far as their files are there."""
        kind, _, name = (key or "* *").partition(" ")
        files = self.folder.glob(f"{kind}/{name.replace(' ', '-')}-*.txt")
        seeds = [(file.stem.rpartition("-")) for file in files]
        return sorted(int(seed) for of, _, seed in seeds if key is None or of == name.replace(" ", "-"))


def run(hours: float, corpus: Corpus, kinds: Sequence[str] = (), slice_s: float = SLICE_S) -> None:
    """Attack in turns until the time is over."""
    end_s = time.monotonic() + 3600 * hours
    while time.monotonic() < end_s:
        for kind in kinds or KINDS:
            for name, found in _round(kind, corpus, slice_s * KINDS[kind].longer, end_s):
                corpus.keep(kind, name, found)


def _round(kind: str, corpus: Corpus, slice_s: float, end_s: float) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Attack targets of a kind for a slice each, all in one process; yield what was found as soon as it is known."""
    first = lacking(kind, {name: corpus.counts.get(f"{kind} {name}", 0) for name in KINDS[kind].names()})
    command = [sys.executable, "-m", "tests.attacks.campaign", kind, json.dumps(first), str(slice_s)]
    limit_s = slice_s * len(first) + PATIENCE_S
    left_s = min(BUSY * limit_s, end_s - time.monotonic())
    limited = ["prlimit", f"--cpu={limit_s:.0f}", *command]
    waiting = [*first]
    with tempfile.TemporaryFile("w+") as said, _ending(limited, left_s, said) as process:
        for line in process.stdout or ():
            if line.startswith(FOUND):
                yield waiting.pop(0), json.loads(line.removeprefix(FOUND))
        if process.wait() and waiting and time.monotonic() < end_s:
            said.seek(0)
            why = f"the process ended with {process.returncode}: {said.read()[-1000:]}"
            yield waiting[0], {"tried": 1, "faults": [_fault(first[waiting[0]], why, "from this seed on")]}


def lacking(kind: str, tried: Mapping[str, int]) -> dict[str, int]:
    """Return the names that lack their share of what is wanted of a kind, with how much was tried; all if none does."""
    share = next(
        wanted / (1 if kinds == EACH else len(targets(kinds))) for kinds, wanted in WANTED.items() if kind in kinds
    )
    return {name: count for name, count in tried.items() if count < share} or dict(tried)


def _ending(command: Sequence[str], left_s: float, said: TextIO) -> AbstractContextManager[Process]:
    """Run a program that is killed at the end of the block, or with this process, however that ends."""
    return running(command, left_s, cwd=ROOT, stderr=said, env=CALM, preexec_fn=end_with_parent)


def attacked(kind: str, name: str, first: int, slice_s: float) -> Mapping[str, object]:
    """Attack for some seconds, from a seed on; return how many inputs were tried, and what broke through."""
    clock = time.process_time if KINDS[kind].computes else time.monotonic
    faults, seed, most = [], first, KINDS[kind].most or sys.maxsize
    with tempfile.TemporaryDirectory() as folder:
        attack = KINDS[kind].attack(name, Path(folder))
        end_s = clock() + slice_s  # without the seconds that it takes to get ready
        while clock() < end_s and seed - first < most:
            said, given = attack(seed)
            if said:
                faults.append(_fault(seed, said, given))
            seed += 1
    return {"tried": seed - first, "faults": faults}


def _fault(seed: int, said: str, given: str) -> Mapping[str, object]:
    return {"seed": seed, "said": said, "input": given[:5000]}


def _readers(name: str, folder: Path) -> Attack:
    from tests.attacks import readers

    readers.reader(name)

    def attack(seed: int) -> tuple[str, str]:
        said, content = readers.attacked(name, seed, folder)
        return said, repr(readers.shrunk(name, content, folder)) if said else ""

    return attack


def _reader_names() -> Sequence[str]:
    from tests.attacks.readers import NAMES

    return NAMES


def _options(name: str, folder: Path) -> Attack:
    from tests.attacks import options

    options.folder_with_files(folder)

    def attack(seed: int) -> tuple[str, str]:
        said, line = options.attacked(name, seed, folder)
        return said, " ".join(map(repr, line))

    return attack


def _option_names() -> Sequence[str]:
    from tests.attacks.options import HEAVY, LIGHT

    return (*LIGHT, *HEAVY)


def _problems(_: str, __: Path) -> Attack:
    from tests.planner.solvers.law.law import break_law
    from tests.planner.solvers.law.random_problems import KINDS as FORMS

    def attack(seed: int) -> tuple[str, str]:
        own, forms = seed // len(FORMS), [*FORMS][seed % len(FORMS) :][:1]
        claims = [claim for each in break_law(forms, range(own, own + 1)) for claim in each]
        return "; ".join(map(str, claims)), str(forms)

    return attack


def _networks(name: str, _: Path) -> Attack:
    from tests.planner.runtime import random_answers, sampled_answers

    if name == "samples":
        return sampled_answers.failure

    def attack(seed: int) -> tuple[str, str]:
        said = random_answers.failure(seed)
        return said or "", str([step.words for step in random_answers.shrunk(seed).steps]) if said else ""

    return attack


def _trainings(_: str, __: Path) -> Attack:
    from tests.planner.runtime.training import random_steps

    def attack(seed: int) -> tuple[str, str]:
        said = random_steps.failure(seed)
        step = random_steps.drawn(seed) if said else None
        return said or "", f"{step.words} with {step.case.schedule}" if step else ""

    return attack


def _faults(name: str, folder: Path, of: Sequence[str] = ()) -> Attack:
    from tests.attacks import faults

    faults.folder_for(folder)
    lasts_s, kinds = faults.lasting(name, folder), faults.faults_of(name, of)

    def attack(seed: int) -> tuple[str, str]:
        kind = kinds[seed % len(kinds)]
        return faults.attacked(name, kind, seed, folder, lasts_s), kind

    return attack


def _fault_names(of: Sequence[str] = ()) -> Sequence[str]:
    from tests.attacks.commands import COMMANDS
    from tests.attacks.faults import faults_of

    return tuple(name for name in COMMANDS if faults_of(name, of))


def _of_faults(of: Sequence[str], most: int) -> Kind:
    """Return the kind of some faults alone, of which each command meets few among all."""
    return Kind(partial(_fault_names, of), partial(_faults, of=of), longer=15, computes=False, most=most)


def _requests(_: str, __: Path) -> Attack:
    from tests.attacks.long import requests

    atexit.register((until := ExitStack()).close)
    return _long(requests(until))


def _starts(_: str, __: Path) -> Attack:
    from tests.attacks.long import starts

    return _long(starts())


def _losses(_: str, __: Path) -> Attack:
    from tests.attacks.long import losses

    atexit.register((until := ExitStack()).close)
    return _long(losses(until))


def _long(judged: Callable[[int], str]) -> Attack:
    return lambda seed: (judged(seed), "")


def _all() -> Sequence[str]:
    return ("all",)


KINDS: Mapping[str, Kind] = {
    "readers": Kind(_reader_names, _readers),
    "options": Kind(_option_names, _options),
    "problems": Kind(_all, _problems, longer=5),
    "networks": Kind(lambda: ("all", "samples"), _networks, longer=3),
    "trainings": Kind(_all, _trainings, longer=3),
    "faults": Kind(_fault_names, _faults, longer=15, computes=False, most=200),
    "lies": _of_faults(("rank lies",), 200),
    "pauses": _of_faults(("pause", "rank pauses", "clock leaps"), 10),
    "512MiB": _of_faults(("512 MiB",), 10),
    "requests": Kind(_all, _requests, longer=3),
    "starts": Kind(_all, _starts, longer=3),
    "losses": Kind(_all, _losses, longer=3, computes=False),
}
EACH = ("faults",)
WANTED: Mapping[tuple[str, ...], int] = {
    ("readers", "options"): 1_000_000,
    ("problems",): 20_000,
    ("networks",): 20_000,
    ("trainings",): 2_000,
    EACH: 200,
    ("lies",): 600,
    ("pauses",): 200,
    ("512MiB",): 200,
    ("requests",): 100,
    ("starts",): 1_000,
    ("losses",): 12,
}
"""How many there should be, of some kinds together, but of `EACH` of each command; requests in rounds of 1,000."""


def main(words: list[str]) -> None:
    """Run a round: KIND, the first seed of each name in JSON, SECONDS; a line for each name says what was found."""
    kind, slice_s = words[0], float(words[2])
    for name, first in json.loads(words[1]).items():
        print(f"\n{FOUND}{json.dumps(attacked(kind, name, first, slice_s))}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
