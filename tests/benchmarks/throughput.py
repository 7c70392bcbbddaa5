"""Throughput of planned networks: predicted against measured, over one device, over intra-op threads, over copies.

    python -m tests.benchmarks.throughput [NETWORK ...] [--batch N ...] [--rounds N] [--quick] [--json FILE]

Contenders take turns within one run and medians of the rounds' ratios are shown. ``one device`` and ``threads`` are
the module as PyTorch runs it, ``1 plan`` is the plan for one device: what it is faster by is not owed to more devices,
but to quicker kernels (`graphs.kernels.kernels`), so a bar compares the plans with each other too. With
``--kernels quick`` plans round otherwise than the module; by how much is shown instead of ``yes``. ``copies`` is the
module on each device at once, with one set of weights. ``foreign`` is the processor time that other processes took
meanwhile, in cores: above 0.1 a row is disturbed.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import geometric_mean, mean

import planner
from costmodels.cluster.cluster import Cluster
from examples.networks import NETWORKS
from graphs.importers.from_torch import program_from_module
from graphs.kernels.choice import KERNELS, Kernels
from planner.cli.console import Console
from planner.planning.calibrate import CalibrationOptions, profile
from planner.runtime.benchmark.check import Answers, compare_outputs
from planner.runtime.benchmark.measure import BenchmarkResult, Contender, PlannedContender, baselines, measure
from tests.benchmarks.bars import Bar, at_least, at_most, declare, report

TEN = ["alexnet", "nin", "googlenet", "vgg16", "resnet50", "bert_base", "gpt2", "vit_b16", "mlp", "lstm_seq2seq"]
UNEVEN = ["googlenet", "alexnet", "lstm_seq2seq"]  # no cut between modules divides them well
QUICK = ["mlp", "alexnet"]
BATCHES = [1, 8]
DEVICES = 2
ONE, ALONE = "one device", "one-device plan"
HEAD = f"{'network':13}{'batch':>6}{'cuts':>5}{'gap':>8}{'predicted':>12}{'measured':>11}{'error':>8}{'×1 dev':>8}"
HEAD += f"{'×1 plan':>9}{'×threads':>10}{'×copies':>9}{'1 plan':>8}{'equal':>7}{'foreign':>9}"


@dataclass(frozen=True)
class Row:
    """One network: what the plan promised and what it did."""

    name: str
    plan: planner.Plan
    measurement: BenchmarkResult
    answers: Answers

    @property
    def batch(self) -> int:
        """Samples in a micro-batch."""
        return self.plan.workload.batch

    @property
    def error(self) -> float:
        """Predicted time per micro-batch against measured, relative to the measured."""
        return self.plan.period_s / self.measurement["plan"].period_s - 1

    def over(self, name: str) -> float:
        """Throughput of the plan over another contender's."""
        return self.measurement.speedup("plan", name)

    @property
    def threads(self) -> str:
        """Name of the contender that uses PyTorch's own threads."""
        return next(one.name for one in self.measurement.contenders if one.name.endswith("threads"))

    @property
    def copies(self) -> float:
        """Throughput of the plan over that of the module on each device at once."""
        name = next(one.name for one in self.measurement.contenders if one.name.endswith("copies"))
        return self.over(name)

    @property
    def isolated(self) -> float:
        """Throughput of the plan for one device over the module's on that device."""
        return self.measurement.speedup(ALONE, ONE)

    @property
    def equal(self) -> str:
        """Whether the answers are the module's: every bit, or by what share of the largest element they are off."""
        rounding = f"{self.answers.rounding:.0e}" if self.answers.rounding else "yes"
        return "NO" if self.answers.wrong else rounding

    def __str__(self) -> str:
        cuts = sum(1 for _ in self.plan.placement.all_cuts(self.plan.table))
        measured = self.batch / self.measurement["plan"].period_s
        return (
            f"{self.name:13}{self.batch:6}{cuts:5}{self.plan.gap:8.2%}{self.plan.samples_per_s:10.2f}/s"
            f"{measured:9.2f}/s{self.error:+8.1%}{self.over(ONE):8.2f}{self.over(ALONE):9.2f}"
            f"{self.over(self.threads):10.2f}{self.copies:9.2f}{self.isolated:8.3f}"
            f"{self.equal:>7}{self.measurement.foreign_cores:9.2f}"
        )


def one(name: str, batch: int, cluster: Cluster, rounds: int, console: Console) -> Row:
    """Profile, plan, run and measure one network."""
    model, inputs = NETWORKS[name](batch=batch)
    program = program_from_module(model, inputs, name=name)
    profile(program, cluster.devices, console, CalibrationOptions(again=True))
    plan, isolated = (planner.plan(program, cluster=cluster.first(count)) for count in (len(cluster.devices), 1))
    with ExitStack() as stack:
        runner, other = (stack.enter_context(planner.start(one, program)) for one in (plan, isolated))
        answers = compare_outputs(runner)
        contenders: list[Contender] = [PlannedContender(runner), *baselines(program, cluster.devices)]
        contenders.append(PlannedContender(other, ALONE))
        return Row(name, plan, measure(contenders, rounds, console.on_step), answers)


def bars_of(rows: Sequence[Row], batch: int, kernels: Kernels) -> Iterator[Bar]:
    """What the rows of one batch should reach."""
    suffix = f", micro-batch {batch}" + (", quick kernels" if kernels == "quick" else "")
    over_one = geometric_mean(row.over(ONE) for row in rows)
    if kernels == "exact":
        equal = mean(row.equal == "yes" for row in rows)
        yield at_least(f"outputs bit-equal, share of networks{suffix}", equal, 1.0)
    else:
        off = max(row.answers.rounding if not row.answers.wrong else 1.0 for row in rows)
        yield at_most(f"outputs off by, share of the largest element{suffix}", off, 1e-4)
    yield at_least(f"over one device, geometric mean{suffix}", over_one, 1.97)
    over_plan = geometric_mean(row.over(ALONE) for row in rows)
    yield at_least(f"over the plan for one device, geometric mean{suffix}", over_plan, 1.87)
    worst = min(row.copies for row in rows)
    yield at_least(f"over two copies of the module with one set of weights, worst{suffix}", worst, 0.99)
    threads = [row.over(row.threads) for row in rows]
    yield at_least(f"over intra-op threads, geometric mean{suffix}", geometric_mean(threads), 1.2)
    better = sum(ratio > 1 for ratio in threads) / len(rows)
    yield at_least(f"better than intra-op threads, share of networks{suffix}", better, 0.9)
    for row in rows:
        if row.name in UNEVEN:
            yield at_least(f"{row.name} over one device{suffix}", row.over(ONE), 1.8)
        yield at_least(f"{row.name}: plan for one device over the module{suffix}", row.isolated, 0.98)
    yield at_most(f"predicted against measured, mean error{suffix}", mean(abs(row.error) for row in rows), 0.05)


def main() -> int:
    """Measure the networks and judge the bars."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", choices=[[], *NETWORKS], metavar="NETWORK", help="default: ten")
    parser.add_argument("--batch", type=int, nargs="+", metavar="N", help="samples in one micro-batch (1 8; quick: 1)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contender")
    parser.add_argument("--kernels", choices=KERNELS, default=KERNELS[0], help="of the plans' devices (exact)")
    declare(parser)
    options = parser.parse_args()
    console = Console()
    cluster = planner.calibrate(
        reporter=console, calibration_options=CalibrationOptions(kernels=options.kernels)
    ).first(DEVICES)
    rounds = 2 if options.quick else options.rounds
    bars: list[Bar] = []
    print(HEAD)
    for batch in options.batch or (BATCHES[:1] if options.quick else BATCHES):
        rows = []
        for name in options.networks or (QUICK if options.quick else TEN):
            rows.append(one(name, batch, cluster, rounds, console))
            console.say(str(rows[-1]))
        bars += bars_of(rows, batch, options.kernels)
    return report(bars, options.json)


if __name__ == "__main__":
    sys.exit(main())
