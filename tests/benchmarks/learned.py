"""Times of networks that were never measured, learned from others and from the sweep, against what they take.

    python -m tests.benchmarks.learned [NETWORK ...] [--quick] [--json FILE]

For each network, whatever was measured of it is left out, and so is every equal operator of another network and of the
sweep. Then all its operators are predicted, and their sum is compared with the time of the whole model on one device:
the median of calls, in processor time of the thread. The first run sweeps, which takes about a minute, and measures
the networks; later ones find all of it in the cache, and nothing is measured anew, since a machine that is busier now
than it was during the sweep would look like an error of what was learned. ``sum`` is that of the measured operators:
how well one can do.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from costmodels.calibrate import MeasurementEffort, profile_program
from costmodels.calibrate.clock import clock_of
from costmodels.calibrate.peaks import measure_peaks
from costmodels.calibrate.probes import probes
from costmodels.calibrate.sweep import sweep
from costmodels.cluster.cluster import Device
from costmodels.host.affinity import run_on, settle
from costmodels.host.discovery import discover
from costmodels.host.fingerprint import fingerprint_of, machine_of
from costmodels.learning.learned import Predictions, fit_learned
from costmodels.measured import Measurement, Profile
from costmodels.operators.flops import roofline_s, work_of
from costmodels.operators.keys import op_keys
from costmodels.profile_cache import cache_folder
from costmodels.profilefile import Sweep
from examples.networks import NETWORKS
from graphs.common.documents import read_json
from graphs.files import write_text
from graphs.importers.from_torch import program_from_module
from graphs.ir import Graph
from graphs.program.program import Program
from planner.cli.console import Console
from planner.runtime.stages.compile import compile_stages
from simulator.stages import Stage
from tests.benchmarks.bars import declare, errors_at_most, report

ELEVEN = ["alexnet", "nin", "googlenet", "vgg16", "resnet50", "inception_v3"]
ELEVEN += ["bert_base", "gpt2", "vit_b16", "mlp", "lstm_seq2seq"]
QUICK = ["alexnet", "nin", "googlenet", "bert_base", "mlp"]
QUICK_STEP = 4  # one probe in so many
EFFORT = MeasurementEffort(passes=5, least_s=1.0, most_s=6.0)
CALLS, CALLS_S = 5, 1.5  # of a whole model, at least
HEAD = f"{'network':14}{'batch':>6}{'whole':>11}{'sum':>8}{'learned':>9}{'±':>6}{'roofline':>10}   kinds not measured"


@dataclass(frozen=True)
class Measured:
    """One network at one batch.

    Attributes:
        name: of the network.
        batch: samples.
        graph: its operators.
        whole_s: of one pass on one device.
        ops: its operators by key.
    """

    name: str
    batch: int
    graph: Graph
    whole_s: float
    ops: Mapping[str, Measurement]

    @property
    def sum_s(self) -> float:
        """Of the measured operators."""
        return sum(self.ops[key].seconds for key in op_keys(self.graph))

    def error(self, seconds: float) -> float:
        """Relative to the whole."""
        return seconds / self.whole_s - 1


def measured(name: str, batch: int, device: Device, console: Console) -> Measured:
    """Measure a network as a whole, and its operators, as far as the cache does not have them."""
    model, inputs = NETWORKS[name](batch=batch)
    program = program_from_module(model, inputs, name=name)
    path = cache_folder() / f"{fingerprint_of(machine_of(device))}.wholes.json"
    known = read_json(path, "times of whole networks") if path.exists() else {}
    key = f"{program.graph.fingerprint} {name} {batch}"
    whole_s = known[key] if key in known else run_on(device, lambda: _whole_s(program, device))
    write_text(json.dumps({**known, key: whole_s}, indent=1) + "\n", path)
    profile = profile_program(program, device, EFFORT, console.on_step, cache=cache_folder())
    return Measured(name, batch, program.graph, whole_s, profile.ops)


def _whole_s(program: Program, device: Device) -> float:
    """Median of calls of all operators as one stage, as a plan for one device runs them, after one to warm up."""
    whole = Stage(0, tuple(range(len(program.graph.ops))), (), (), ())
    compiled, _ = compile_stages(program, (whole,), [device])
    (stage,) = compiled.values()
    given = dict(zip(program.graph.inputs, program.example_inputs, strict=True))
    arguments = [given[name] for name in stage.inputs]
    clock = clock_of(device)
    stage.call(*arguments)
    times_s: list[float] = []
    end_s = time.perf_counter() + CALLS_S
    while len(times_s) < CALLS or time.perf_counter() < end_s:
        start = clock.mark()
        stage.call(*arguments)
        stop = clock.mark()
        clock.settle()
        times_s.append(clock.seconds(start, stop))
    return median(times_s)


def without(name: str, networks: list[Measured], swept: Sweep) -> tuple[Profile, Sweep]:
    """What is left of all measurements when a network, and whatever equals one of its operators, is taken away."""
    gone = {key for network in networks if network.name == name for key in op_keys(network.graph)}
    ops = {key: m for network in networks for key, m in network.ops.items() if key not in gone}
    kept = {
        probe: replace(probed, ops={key: m for key, m in probed.ops.items() if key not in gone})
        for probe, probed in swept.probes.items()
    }
    return Profile(swept.fingerprint, {}, ops), Sweep(swept.fingerprint, kept)


def this_device() -> Device:
    """The first device of this host, with its peaks for the roofline."""
    found = discover()[0]
    peaks = measure_peaks(found)
    return Device(
        found.name,
        found.kind,
        found.memory_bytes,
        peaks.flops_per_s,
        peaks.memory_bytes_per_s,
        peaks.launch_s,
        cores=found.cores,
        cuda=found.cuda,
    )


def row(network: Measured, predicted: Predictions, device: Device) -> tuple[float, str]:
    """The relative error, and a line of the table; operators of which nothing is known take the roofline's time."""
    roofline = roofline_s(work_of(network.graph), device)
    learned_s = float(np.where(np.isnan(predicted.seconds), roofline, predicted.seconds).sum())
    guessed = ", ".join(kind.removeprefix("aten.") for kind in (*predicted.guessed, *predicted.unknown)) or "none"
    error = network.error(learned_s)
    spread = float(np.nansum(predicted.seconds * predicted.spread) / np.nansum(predicted.seconds))
    return error, (
        f"{network.name:14}{network.batch:6}{network.whole_s * 1e3:8.2f} ms{network.error(network.sum_s):+8.1%}"
        f"{error:+9.1%}{spread:6.0%}{network.error(float(roofline.sum())):+10.1%}   {guessed}"
    )


def main() -> int:
    """Sweep, measure, leave out, predict and judge the bars."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", choices=[[], *NETWORKS], metavar="NETWORK", help="default: eleven")
    declare(parser)
    options = parser.parse_args()
    console = Console()
    settle()
    device = this_device()
    swept = sweep(device, cache_folder(), console.on_step, probes()[:: QUICK_STEP if options.quick else 1])
    names = options.networks or (QUICK if options.quick else ELEVEN)
    networks = [
        measured(name, batch, device, console) for name in names for batch in ((1,) if options.quick else (1, 4))
    ]
    errors, fits_s, predictions_s = [], [], []
    print(HEAD)
    for name in names:
        start_s = time.perf_counter()
        learned = fit_learned(*without(name, networks, swept))
        fits_s.append(time.perf_counter() - start_s)
        for network in (network for network in networks if network.name == name):
            start_s = time.perf_counter()
            predicted = learned.predict(network.graph)
            predictions_s.append(time.perf_counter() - start_s)
            error, line = row(network, predicted, device)
            errors.append(abs(error))
            console.say(line)
    print(f"fitting {median(fits_s):.2f} s, predicting {median(predictions_s) * 1e3:.1f} ms, on the clock, medians")
    return report(errors_at_most("learned whole model against measured", errors, mean=0.10, worst=0.20), options.json)


if __name__ == "__main__":
    sys.exit(main())
