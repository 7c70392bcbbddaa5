"""Throughput of planned networks: predicted against measured, over one device, over intra-op threads, near the ceiling.

    python -m tests.benchmarks.throughput [NETWORK ...] [--batch N] [--rounds N] [--quick] [--json FILE]

Contenders take turns within one run and medians of the rounds' ratios are shown. The ceiling is a replica of the whole
model on each device, which needs as many copies of the weights. ``foreign`` is the processor time that other processes
took meanwhile, in cores: above 0.1 a row is disturbed.
"""

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import geometric_mean

import planner
from costmodels.cluster import Cluster, Device
from examples.networks import NETWORKS
from graphs.importers.from_torch import program_from_module
from graphs.importers.program import Program
from planner.calibrate import Care, profile
from planner.cli.console import Console
from planner.runtime.check import check_outputs
from planner.runtime.measure import Eager, Measurement, Planned, baselines, measure
from tests.benchmarks.bars import at_least, at_most, declare, report

TEN = ["alexnet", "nin", "googlenet", "vgg16", "resnet50", "bert_base", "gpt2", "vit_b16", "mlp", "lstm_seq2seq"]
QUICK = ["mlp", "googlenet"]
DEVICES = 2
HEAD = f"{'network':14}{'cuts':>5}{'gap':>8}{'predicted':>11}{'measured':>10}{'error':>8}{'×1 dev':>8}{'×threads':>10}"
HEAD += f"{'ceiling':>9}{'equal':>7}{'foreign':>9}"


@dataclass(frozen=True)
class Row:
    """One network: what the plan promised and what it did."""

    name: str
    plan: planner.Plan
    measurement: Measurement
    equal: bool

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
    def ceiling(self) -> float:
        """Throughput of replicas over one device's."""
        return self.measurement.speedup("replicas", "one device")

    def __str__(self) -> str:
        cuts = sum(1 for _ in self.plan.placement.cuts(self.plan.table))
        predicted = self.plan.samples_per_s
        measured = self.plan.workload.batch / self.measurement["plan"].period_s
        return (
            f"{self.name:14}{cuts:5}{self.plan.gap:8.2%}{predicted:9.2f}/s{measured:8.2f}/s{self.error:+8.1%}"
            f"{self.over('one device'):8.2f}{self.over(self.threads):10.2f}{self.ceiling:9.2f}"
            f"{'yes' if self.equal else 'NO':>7}{self.measurement.foreign_cores:9.2f}"
        )


class Replicas:
    """The whole model on each device, each with its own stream of micro-batches."""

    name = "replicas"

    def __init__(self, program: Program, devices: Sequence[Device]) -> None:
        self._replicas = [Eager(program, device, device.name) for device in devices]

    def stream(self, count: int) -> float:
        """Seconds for each micro-batch, over all replicas."""
        with ThreadPoolExecutor(len(self._replicas)) as pool:
            periods_s: list[float] = list(pool.map(lambda replica: replica.stream(count), self._replicas))
        return 1 / sum(1 / period_s for period_s in periods_s)

    def single(self, count: int) -> list[float]:
        """Replicas do not help one micro-batch alone."""
        return self._replicas[0].single(count)


def one(name: str, batch: int, cluster: Cluster, rounds: int, console: Console) -> Row:
    """Profile, plan, run and measure one network."""
    model, inputs = NETWORKS[name](batch=batch)
    program = program_from_module(model, inputs, name=name)
    profile(program, cluster.devices[0], console, Care(again=True))
    plan = planner.plan(program, cluster=cluster)
    with planner.start(plan, program) as runner:
        equal = not check_outputs(runner)
        contenders = [Planned(runner), *baselines(program, cluster.devices), Replicas(program, cluster.devices)]
        return Row(name, plan, measure(contenders, rounds, console.on_step), equal)


def main() -> int:
    """Measure the networks and judge the bars."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", choices=[[], *NETWORKS], metavar="NETWORK", help="default: ten")
    parser.add_argument("--batch", type=int, default=1, help="samples in one micro-batch")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contender")
    declare(parser)
    options = parser.parse_args()
    console = Console()
    cluster = planner.calibrate(reporter=console).first(DEVICES)
    rows = []
    print(HEAD)
    for name in options.networks or (QUICK if options.quick else TEN):
        rows.append(one(name, options.batch, cluster, 2 if options.quick else options.rounds, console))
        console.say(str(rows[-1]))
    bars = [
        at_least("outputs bit-equal, share of networks", sum(row.equal for row in rows) / len(rows), 1.0),
        at_least(
            "throughput over one device, geometric mean", geometric_mean(row.over("one device") for row in rows), 1.87
        ),
        at_least(
            "throughput over intra-op threads, geometric mean",
            geometric_mean(row.over(row.threads) for row in rows),
            1.2,
        ),
        at_most("predicted against measured, mean error", sum(abs(row.error) for row in rows) / len(rows), 0.05),
    ]
    return report(bars, options.json)


if __name__ == "__main__":
    sys.exit(main())
