"""Parsimony: what plans on paper give away for fewer tensors between devices.

    python -m tests.benchmarks.parsimony [NETWORK ...] [--goal GOAL] [--quick] [--json FILE]

Each network is planned on some of the catalogue's devices, at batch 8, with one copy: the plan that the search found
and the simplest of those that predictions cannot tell apart from it (`planner.planning.parsimony`).
"""

import argparse
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

import torch

from costmodels.cluster.cluster import Cluster
from costmodels.cluster.file import cluster_of
from costmodels.workload import Workload
from examples.networks import NETWORKS
from graphs.importers.from_torch import program_from_module
from planner.planning.make_plan import Search, make_plan
from planner.problem.problem import Goal
from tests.benchmarks.bars import Bar, at_most, declare, report

TWO = ("A100-PCIe-80GB", "V100-PCIe-16GB")
THREE = ("RTX-4090", "RTX-3090", "T4")
FOUR = ("A100-SXM-40GB", "A100-SXM-40GB", "V100-SXM2-32GB", "T4")
EIGHT = ("RTX-4090", "RTX-4090", "RTX-3090", "RTX-3090", "A10", "A10", "T4", "T4")
DEVICES = {
    "googlenet": TWO,
    "resnet50": THREE,
    "bert_base": FOUR,
    "gpt2": TWO,
    "vit_b16": EIGHT,
    "inception_v3": THREE,
    "lstm_seq2seq": TWO,
    "llama": FOUR,
    "mixtral": EIGHT,
    "vgg16": THREE,
}
QUICK = ("googlenet", "gpt2", "inception_v3")
GOALS = (Goal.THROUGHPUT, Goal.LATENCY)
MOST_SLOWER, MOST_SHARE = 0.02, 0.5


class Row(NamedTuple):
    """A network on some devices for a goal."""

    slower: float  # share of the predicted time
    tensors: int  # between devices
    former_tensors: int  # of the plan that the search found

    @property
    def share(self) -> float:
        """The tensors that are left, as a share."""
        return self.tensors / self.former_tensors


def planned(name: str, goal: Goal) -> Row:
    """Plan a network on its devices, and print a line."""
    with torch.device("meta"):
        module, inputs = NETWORKS[name](8)
    graph = program_from_module(module, inputs).graph
    plan = make_plan(graph, _cluster(DEVICES[name]), goal, Workload(batch=8), (), Search(rewrites="none"))
    tensors = len(list(plan.placement.cuts(plan.table)))
    before = plan.simplification
    print(f"{name:14}{goal:12}{len(DEVICES[name])} devices  {plan.simpler or f'as it was found, {tensors} tensors'}")
    return Row(before.slower, tensors, before.tensors) if before else Row(0.0, tensors, tensors)


def main() -> int:
    """Plan all networks for both goals and judge what was given away."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", choices=[[], *DEVICES], metavar="NETWORK", help="default: all ten")
    parser.add_argument("--goal", choices=list(map(str, GOALS)), help="default: both")
    declare(parser)
    options = parser.parse_args()
    names = options.networks or (QUICK if options.quick else tuple(DEVICES))
    bars: list[Bar] = []
    for goal in GOALS if options.goal is None else (Goal(options.goal),):
        bars += _judged(goal, [planned(name, goal) for name in names])
    return report(bars, options.json)


def _judged(goal: Goal, rows: Sequence[Row]) -> list[Bar]:
    cut = [row for row in rows if row.former_tensors]
    all_of_it = sum(row.tensors for row in cut) / (sum(row.former_tensors for row in cut) or 1)
    print(f"{goal}: {fmean(row.share for row in cut):.2f} of a plan's tensors in the mean of the networks that are cut")
    return [
        at_most(f"{goal}: slower on paper, at most", max(row.slower for row in rows), MOST_SLOWER),
        at_most(f"{goal}: tensors between devices, mean over networks, as a share", all_of_it, MOST_SHARE),
    ]


def _cluster(kinds: Sequence[str]) -> Cluster:
    """Return a cluster of these devices, every two of which are joined by PCIe 4."""
    names = [f"gpu{number}" for number in range(len(kinds))]
    devices = [{"name": name, "like": kind} for name, kind in zip(names, kinds, strict=True)]
    return cluster_of({"version": 1, "device": devices, "link": [{"between": names, "like": "PCIe4-x16"}]})


if __name__ == "__main__":
    raise SystemExit(main())
