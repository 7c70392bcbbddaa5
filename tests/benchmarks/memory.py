"""Predicted memory against what is allocated: inference and training of real networks, and Caffe's published figures.

    python -m tests.benchmarks.memory [NETWORK ...] [--quick] [--json FILE]

A dispatch mode counts the storages that are alive. ``hollow`` rows run without kernels: all allocations are made and
dropped as ever, by autograd, its engine and the optimizer, but nothing is computed. ``real`` rows compute. What a
kernel takes and gives back inside itself passes no dispatcher: the ``allocator`` rows show what PyTorch's own
allocator saw of it (oneDNN's scratch memory is not even there), and are no bar.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from costmodels.workload import Workload
from examples.networks import NETWORKS
from graphs.importers.from_torch import program_from_module
from graphs.ir import Graph
from graphs.program.program import Program
from tests.benchmarks.bars import Bar, at_least, at_most, declare, report
from tests.benchmarks.caffe_published import MIB, log_bars, torch_bars
from tests.benchmarks.steps import OPTIMIZERS, allocator_peak_bytes, inference_peak_bytes, training_peak_bytes
from tests.costmodels.memory.exact import device_bytes
from tests.costmodels.sketches import unrecorded

ELEVEN = ["alexnet", "nin", "googlenet", "vgg16", "resnet50", "inception_v3", "bert_base", "gpt2", "vit_b16", "mlp"]
ELEVEN += ["lstm_seq2seq"]
BATCHES = (1, 4)
OVER = 0.03


@dataclass(frozen=True)
class Row:
    """One figure beside what happened."""

    network: str
    batch: int
    use: str
    how: str
    predicted: int
    measured: int
    wall_s: float

    @property
    def over(self) -> float:
        """How much more is predicted, of the measured."""
        return self.predicted / self.measured - 1

    def __str__(self) -> str:
        sizes = f"{self.predicted / MIB:12.2f}{self.measured / MIB:12.2f}{self.over:+10.4%}"
        return f"{self.network:14}{self.batch:6}  {self.use:10}{self.how:10}{sizes}{self.wall_s:8.1f}"


def predicted(graph: Graph, use: str) -> int:
    """Bytes by our model: all operators on one device, one micro-batch."""
    if use == "inference":
        return device_bytes(graph, Workload(in_flight=1))[0]
    return device_bytes(graph, Workload(mode="training", optimizer=use))[0]


def imported(name: str, batch: int) -> tuple[Program, Program]:
    """A network of the examples, in evaluation mode and as it is trained."""
    module, inputs = NETWORKS[name](batch)
    evaluated = program_from_module(module, inputs, name=name)
    return evaluated, program_from_module(module, inputs, name=name, training=True)


def rows(name: str, batch: int, how: str, uses: Sequence[str]) -> Iterator[Row]:
    """One network in all its uses."""
    evaluated, trained = imported(name, batch)
    for use in uses:
        program = evaluated if use == "inference" else trained
        start_s = time.perf_counter()
        if use == "inference":
            measured = inference_peak_bytes(program, how == "hollow")
        elif how == "allocator":
            measured = allocator_peak_bytes(program.module, program.example_inputs, use)
        else:
            measured = training_peak_bytes(program.module, program.example_inputs, use, how == "hollow")
        yield Row(name, batch, use, how, predicted(program.graph, use), measured, time.perf_counter() - start_s)
    if missing := unrecorded(trained.graph, training=True):
        print(f"{name}: taken by rule: {', '.join(missing)}")


def bars(found: Sequence[Row]) -> list[Bar]:
    """Never under, and hardly over."""
    judged = [row for row in found if row.how != "allocator"]
    return [
        at_least(f"least of predicted over measured peak, {len(judged)} rows", 1 + min(r.over for r in judged), 1.0),
        at_most("most of predicted over measured peak", 1 + max(r.over for r in judged), 1 + OVER),
    ]


def main() -> int:
    """Print the table and judge the bars."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", help="all eleven if left out")
    declare(parser)
    options = parser.parse_args()
    names = options.networks or ELEVEN
    torch.set_num_threads(1)
    uses = ["inference", *OPTIMIZERS]
    plan = [(name, batch, "hollow", uses) for name in names for batch in BATCHES]
    if options.quick:
        plan = [(name, 1, "hollow", ["inference", "sgd", "adam"]) for name in names]
        plan += [(name, 1, "real", ["inference", "sgd"]) for name in names if name in ("nin", "mlp")]
    else:
        plan += [(name, 1, "real", ["inference", "adam"]) for name in names]
        plan += [(name, 1, "allocator", ["sgd"]) for name in names]
    print(
        f"{'network':14}{'batch':>6}  {'use':10}{'how':10}{'predicted':>12}{'measured':>12}{'over':>10}{'s':>8}   MiB"
    )
    found: list[Row] = []
    for entry in plan:
        for row in rows(*entry):
            print(row, flush=True)
            found.append(row)
    return report([*bars(found), *log_bars(), *torch_bars()], options.json)


if __name__ == "__main__":
    sys.exit(main())
