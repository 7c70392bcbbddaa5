"""Attacks on what the project promises: false proofs, wrong answers, lost files, processes that hang, first tries.

    python -m tests.benchmarks.attack [PROMISE ...] [--problems N] [--networks N] [--seed SEED] [--quick] [--json FILE]
    python -m tests.benchmarks.attack --hours N [--kinds KIND ...] [--corpus FOLDER] [--write] [--json FILE]

Each attack is a test with the mark ``attack(promise)``; this script runs all of them. With PROMISE, only these:
proof, answer, file, process, first-try. Against proofs it also holds what all solvers say of N random problems of every
kind against the truth (`tests.planner.law`): 10,000, or with --quick a few hundred. Against answers it runs default
plans of N random networks (`tests.planner.runtime.random_answers`): 2,000, or with --quick a few. For each ten of
these it trains a random network too (`tests.planner.runtime.training.random_steps`).

With --hours, a campaign goes on where it stopped (`tests.attacks.campaign`). ``--write`` moves the counts of the folder
to the table of docs/attacks.md, also with ``--hours 0``, so that the counts of several folders and days add up.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.attacks.campaign import EACH, KINDS, WANTED, Corpus, run, targets
from tests.attacks.ledger import Row, merged, read_page, write_page
from tests.benchmarks.bars import Bar, at_least, at_most, declare, report

ROOT = Path(__file__).parents[2]
PROMISES = ("proof", "answer", "file", "process", "first-try")
PROBLEMS, FEW_PROBLEMS = 10_000, 400
NETWORKS, FEW_NETWORKS = 2_000, 20
APART = 1_000_000  # seeds of problems from one --seed to the next


class Attacks:
    """A pytest plugin: keeps the tests with the mark ``attack`` and counts them by promise."""

    def __init__(self, promises: tuple[str, ...]) -> None:
        self._promises = promises
        self._promise: dict[str, str] = {}
        self.tried: Counter[str] = Counter()
        self.succeeded: Counter[str] = Counter()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out every other test."""
        for item in items:
            for mark in item.iter_markers("attack"):
                self._promise[item.nodeid] = mark.args[0]
        items[:] = [item for item in items if self._promise.get(item.nodeid) in self._promises]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count an attack once, and once more if it succeeds: if its test fails."""
        promise = self._promise[report.nodeid]
        self.tried[promise] += report.when == "call" and not report.skipped
        self.succeeded[promise] += report.failed


def attacks(promises: tuple[str, ...], quick: bool) -> list[Bar]:
    """Run the marked tests; a bar for each promise that was attacked."""
    plugin = Attacks(promises)
    pytest.main([str(ROOT / "tests"), "-p", "no:cacheprovider", *(("-m", "not slow") if quick else ())], [plugin])
    for promise in promises:
        print(f"{promise}: {plugin.tried[promise]} attacks, {plugin.succeeded[promise]} of them succeed")
    return [_bar(promise, plugin.tried[promise], plugin.succeeded[promise]) for promise in promises]


def _bar(promise: str, tried: int, succeeded: int) -> Bar:
    return Bar(f"{promise}: attacks that succeed", succeeded, 0, tried > 0 and succeeded == 0)


def random_problems(count: int, seed: int) -> list[Bar]:
    """Ask solvers about random problems of all kinds in turns; print every claim that is not true, to be repeated."""
    from tests.planner.solvers.law.law import break_law  # late: pytest wants to be the first to import hypothesis
    from tests.planner.solvers.law.random_problems import KINDS

    per_kind = -(-count // len(KINDS))
    judged, broken = 0, set[tuple[str, int]]()
    for claims in break_law(KINDS, range(APART * seed, APART * seed + per_kind)):
        judged += 1
        for claim in claims:
            print(f"wrong: {claim}", flush=True)
            broken.add((claim.kind, claim.seed))
    return [
        at_least("proof: random problems judged", judged, count),
        at_most("proof: random problems with a wrong answer", len(broken), 0),
    ]


def random_networks(count: int, seed: int) -> list[Bar]:
    """Run default plans of random networks, and train a tenth of the number; print every seed that goes wrong."""
    from tests.planner.runtime import random_answers
    from tests.planner.runtime.training import random_steps

    def least(own: int) -> str:
        return str([step.words for step in random_answers.shrunk(own).steps])

    def layers(own: int) -> str:
        step = random_steps.drawn(own)
        return f"{step.words} with {step.case.schedule}"

    first, n_trained = APART * seed, -(-count // 10)
    return [
        *_answers("run", range(first, first + count), random_answers.failure, least),
        *_answers("trained", range(first, first + n_trained), random_steps.failure, layers),
    ]


def _answers(what: str, seeds: range, failure: Callable[[int], str], words: Callable[[int], str]) -> list[Bar]:
    """Judge the network of each seed; print those that go wrong in words, to be repeated."""
    wrong = 0
    for seed in seeds:
        if said := failure(seed):
            wrong += 1
            print(f"wrong: seed {seed}, {words(seed)}: {said}", flush=True)
    return [
        at_least(f"answer: random networks {what}", len(seeds), 1),
        at_most(f"answer: random networks {what} that go wrong", wrong, 0),
    ]


def campaign(corpus: Corpus, hours: float, kinds: Sequence[str], write: bool) -> list[Bar]:
    """Attack for some hours; bars for what broke through, and for how much of what is wanted was tried so far."""
    rows = read_page()
    corpus.start({key: row.tried for key, row in rows.items()})
    run(hours, corpus, kinds)
    rows = merged(rows, corpus)
    if write:
        write_page(rows, corpus)
    return [
        at_most("campaign: attacks that succeed and are not mended", len(corpus.broken_through()), 0),
        *(_tried(each, [rows.get(f"{kind} {name}", Row()).tried for kind, name in targets(each)]) for each in WANTED),
    ]


def _tried(kinds: tuple[str, ...], tried: Sequence[int]) -> Bar:
    """Return the bar of how much was tried of some kinds together; of faults, of the command with the fewest."""
    if kinds == EACH:
        return at_least("campaign: faults tried of each command", min(tried), WANTED[kinds])
    return at_least(f"campaign: {' and '.join(kinds)} tried", sum(tried), WANTED[kinds])


def main() -> int:
    """Run what was asked for and judge it."""
    parser = argparse.ArgumentParser(description="attacks on proofs, answers, files, processes and first tries")
    parser.add_argument("promises", nargs="*", metavar="PROMISE", choices=[*PROMISES, []], help=", ".join(PROMISES))
    parser.add_argument("--problems", type=int, metavar="N", help=f"random problems against proofs ({PROBLEMS:,})")
    parser.add_argument("--networks", type=int, metavar="N", help=f"random networks against answers ({NETWORKS:,})")
    parser.add_argument("--seed", type=int, default=0, help="of the random problems and networks (0)")
    parser.add_argument("--hours", type=float, metavar="N", help="a campaign instead, for so long")
    parser.add_argument("--kinds", nargs="+", default=[], choices=KINDS, help="of the campaign (all)")
    parser.add_argument("--write", action="store_true", help="move the counts of the campaign to docs/attacks.md")
    parser.add_argument("--corpus", type=Path, default=ROOT / "build" / "corpus", help="its folder (build/corpus)")
    declare(parser)
    arguments = parser.parse_args()
    if arguments.hours is not None:
        corpus = Corpus.of(arguments.corpus)
        return report(campaign(corpus, arguments.hours, arguments.kinds, arguments.write), arguments.json)
    promises = tuple(arguments.promises) or PROMISES
    count = arguments.problems if arguments.problems is not None else FEW_PROBLEMS if arguments.quick else PROBLEMS
    bars = attacks(promises, arguments.quick)
    bars += random_problems(count, arguments.seed) if "proof" in promises else []
    n_networks = arguments.networks if arguments.networks is not None else FEW_NETWORKS if arguments.quick else NETWORKS
    bars += random_networks(n_networks, arguments.seed) if "answer" in promises else []
    return report(bars, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
