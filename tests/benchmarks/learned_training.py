"""Training steps of networks that were never measured, learned from the sweep, against what they take.

    python -m tests.benchmarks.learned_training [NETWORK ...] [--quick] [--json FILE]

Whatever equals an operator of the network is left out of the sweep, in inference and in training, and no other network
counts. Then the forward and the backward pass of all its operators are predicted, and their sum is compared with a step
of the whole model on one device, loss and all but the optimizer: the median, in processor time of the thread. ``rule``
is what is predicted if nothing was measured in training: a backward pass takes as many forward passes as it has
products. ``sum`` is that of the operators measured one by one, how well one can do; ``forward`` and ``backward`` are
compared with those. The first run sweeps, as that of `tests.benchmarks.learned`; later ones find that in the cache.
"""

import argparse
import copy
import json
import sys
import time
from dataclasses import dataclass, replace
from statistics import fmean, median

import torch

from costmodels.calibrate import MeasurementEffort, profile_program
from costmodels.calibrate.clock import clock_of
from costmodels.calibrate.probes import probes
from costmodels.calibrate.sweep import sweep
from costmodels.cluster.cluster import Cluster, Device
from costmodels.host.affinity import run_on, settle
from costmodels.host.fingerprint import fingerprint_of, machine_of
from costmodels.learning.learned import LearnedModel, fit_learned
from costmodels.operator_times import OperatorTimes, operator_times
from costmodels.operators.keys import op_keys, training_keys
from costmodels.profile_cache import cache_folder
from costmodels.profilefile import Sweep
from costmodels.workload import Workload
from graphs.common.documents import read_json
from graphs.files import write_text
from graphs.ir import Graph
from graphs.program.program import Program
from planner.cli.console import Console
from planner.runtime.training.check import mean_square
from tests.benchmarks.bars import declare, errors_at_most, report
from tests.benchmarks.learned import this_device
from tests.benchmarks.networks import program_of

BATCHES = {"mnist": 16, "cifar10": 16, "mlp": 16, "googlenet": 4, "resnet50": 2, "bert_base": 1, "lstm_seq2seq": 4}
QUICK = ("mnist", "mlp")
QUICK_STEP = 2  # one probe in so many of those that are measured in training
EFFORT = MeasurementEffort(passes=5, least_s=0.5, most_s=6.0)
STEPS, STEPS_S = 5, 1.5  # of a whole model, at least
HEAD = f"{'network':14}{'batch':>6}{'whole':>11}{'sum':>8}{'learned':>9}{'rule':>9}{'forward':>10}{'backward':>10}"
HEAD += "   kinds not learned"


@dataclass(frozen=True)
class Measured:
    """One network at one batch.

    Attributes:
        name: of the network.
        batch: samples.
        graph: its operators, in training.
        whole_s: of a forward and a backward pass on one device.
        forward_s: of the operators, measured one by one.
        backward_s: likewise.
    """

    name: str
    batch: int
    graph: Graph
    whole_s: float
    forward_s: float
    backward_s: float

    def error(self, seconds: float) -> float:
        """Relative to the whole."""
        return seconds / self.whole_s - 1


def measured(name: str, batch: int, device: Device, console: Console) -> Measured:
    """Measure a network as a whole, and its operators, as far as the cache does not have them."""
    program = program_of(name, batch, training=True)
    path = cache_folder() / f"{fingerprint_of(machine_of(device))}.steps.json"
    known = read_json(path, "times of training steps") if path.exists() else {}
    key = f"{program.graph.fingerprint} {name} {batch}"
    whole_s = known[key] if key in known else run_on(device, lambda: _whole_s(program, device))
    write_text(json.dumps({**known, key: whole_s}, indent=1) + "\n", path)
    steps = profile_program(program, device, EFFORT, console.on_step, training=True, cache=cache_folder()).training
    of = [steps[key] for key in training_keys(program.graph)]
    forward_s, backward_s = sum(step.forward.seconds for step in of), sum(step.backward.seconds for step in of)
    return Measured(name, batch, program.graph, whole_s, forward_s, backward_s)


def _whole_s(program: Program, device: Device) -> float:
    """Median of steps of the model itself, after one to warm up; gradients add up, as those of micro-batches do."""
    model, clock = copy.deepcopy(program.module).train(), clock_of(device)
    arguments, named = program.arguments_of(list(program.example_inputs))
    times_s: list[float] = []
    end_s = time.perf_counter() + STEPS_S
    with torch.enable_grad():
        while len(times_s) <= STEPS or time.perf_counter() < end_s:
            start = clock.mark()
            mean_square(model(*arguments, **named), None).backward()  # type: ignore[no-untyped-call]  # torch has no types here
            stop = clock.mark()
            clock.settle()
            times_s.append(clock.seconds(start, stop))
    return median(times_s[1:])


def without(graph: Graph, swept: Sweep, training: bool) -> Sweep:
    """What is left of a sweep when whatever equals an operator of the network is taken away."""
    gone = {*op_keys(graph), *training_keys(graph)}
    kept = {
        name: replace(
            probed,
            ops={key: m for key, m in probed.ops.items() if key not in gone},
            training={key: step for key, step in probed.training.items() if key not in gone and training},
        )
        for name, probed in swept.probes.items()
    }
    return Sweep(swept.fingerprint, kept)


def predicted(network: Measured, device: Device, learned: LearnedModel) -> OperatorTimes:
    """Of all operators, as a plan has them: of which nothing is known take the roofline's time."""
    known = replace(device, profile=learned.fingerprint)
    cluster = Cluster("one", (known,), ())
    return operator_times(network.graph, cluster, Workload("training", network.batch), {}, lambda _: learned)


def row(network: Measured, times: OperatorTimes, by_rule: OperatorTimes) -> tuple[float, float, str]:
    """The relative errors of what was learned and of the rule, and a line of the table."""
    forward_s, backward_s = float(times.forward_s.sum()), float(times.backward_s.sum())
    error = network.error(forward_s + backward_s)
    rule = network.error(float((by_rule.forward_s + by_rule.backward_s).sum()))
    guessed = sorted({op.kind for op, of in zip(network.graph.ops, times.source[:, 0], strict=True) if of != "learned"})
    return (
        error,
        rule,
        f"{network.name:14}{network.batch:6}{network.whole_s * 1e3:8.2f} ms"
        f"{network.error(network.forward_s + network.backward_s):+8.1%}{error:+9.1%}{rule:+9.1%}"
        f"{forward_s / network.forward_s - 1:+10.1%}{backward_s / network.backward_s - 1:+10.1%}"
        f"   {', '.join(guessed) or 'none'}",
    )


def main() -> int:
    """Sweep, measure, leave out, predict and judge the bars."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", choices=[[], *BATCHES], metavar="NETWORK", help="default: seven")
    declare(parser)
    options = parser.parse_args()
    console = Console()
    settle()
    device = this_device()
    wanted = tuple(probe for probe in probes() if probe.training)[::QUICK_STEP] if options.quick else probes()
    swept = sweep(device, cache_folder(), console.on_step, wanted)
    errors, rules = [], []
    print(HEAD)
    for name in options.networks or (QUICK if options.quick else BATCHES):
        network = measured(name, BATCHES[name], device, console)
        learned, by_rule = (fit_learned(None, without(network.graph, swept, training)) for training in (True, False))
        error, rule, line = row(network, predicted(network, device, learned), predicted(network, device, by_rule))
        errors.append(abs(error))
        rules.append(abs(rule))
        console.say(line)
    print(f"by the rule, mean |error| {fmean(rules):.1%}, worst {max(rules):.1%}")
    return report(errors_at_most("learned training step against measured", errors, mean=0.10, worst=0.20), options.json)


if __name__ == "__main__":
    sys.exit(main())
