"""A plan over two hosts: predicted against measured, through cables of several latencies and bandwidths.

    python -m tests.benchmarks.hosts [NETWORK ...] [--rounds N] [--quick] [--json FILE]

The hosts are network namespaces of this machine, each with one core, so it takes the rights of root. Every rank reads
its own shard alone. The plan is made for the cable, so where that is slow less crosses it. What the caller gets comes
back to the first host, which the plan does not count: the latency of the cable is added to what is predicted.
"""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import planner
from costmodels.cluster.cluster import Cluster, Link
from graphs.program.program import Program
from planner.cli.console import Console
from planner.planning.calibrate import profile
from planner.runtime.checkpoint.shard_folder import PLAN
from planner.runtime.checkpoint.shards import write_shards
from planner.runtime.distributed.inference.launcher import ROOT
from tests.benchmarks.bars import at_most, report
from tests.benchmarks.networks import parser_of, program_of
from tests.planner.runtime.distributed.hosts import two_hosts

CABLES = [(2e-3, 12.5e6), (10e-3, 12.5e6), (2e-3, 125e6)]  # seconds, bytes a second: 100 Mb/s twice, 1 Gb/s
QUICK = CABLES[:1]
NETWORK = "resnet50"
PORT = 29_518
HEAD = f"{'network':13}{'latency':>9}{'bandwidth':>12}{'crosses':>12}{'a micro-batch':>22}{'one alone':>22}"
HEAD += f"{'foreign':>9}"


@dataclass(frozen=True)
class Row:
    """One network through one cable, in seconds."""

    name: str
    cable: tuple[float, float]
    crossing_bytes: float
    predicted: tuple[float, float]
    measured: tuple[float, float]
    foreign_cores: float

    @property
    def errors(self) -> tuple[float, float]:
        """Of the time from one micro-batch to the next, and of one alone."""
        return tuple(p / m - 1 for p, m in zip(self.predicted, self.measured, strict=True))  # type: ignore[return-value]

    def __str__(self) -> str:
        times = "".join(
            f"{p * 1e3:8.1f}{m * 1e3:7.1f}{error:+7.1%}"
            for p, m, error in zip(self.predicted, self.measured, self.errors, strict=True)
        )
        latency_s, bytes_per_s = self.cable
        return (
            f"{self.name:13}{latency_s * 1e3:6.0f} ms{bytes_per_s * 8e-6:7.0f} Mb/s{self.crossing_bytes / 1e3:9.0f} kB"
            f"{times}{self.foreign_cores:9.2f}"
        )


def joined(cluster: Cluster, cable: tuple[float, float]) -> Cluster:
    """The devices of a cluster, each on a host of its own."""
    a, b = cluster.devices
    latency_s, bytes_per_s = cable
    links = tuple(Link(x.name, y.name, bytes_per_s, latency_s) for x, y in ((a, b), (b, a)))
    return Cluster("two hosts", (a, b), links)


def one(name: str, program: Program, cluster: Cluster, cable: tuple[float, float], rounds: int) -> Row:
    """Plan for a cable, run through it."""
    plan = planner.plan(program, cluster=joined(cluster, cable))
    with tempfile.TemporaryDirectory() as folder:
        shards = Path(folder) / "shards"
        write_shards(plan, program, shards)
        document = run(shards, cable, rounds)
    measured = document["measured"]["plan"]
    crossing = {flow for flow, _, _ in plan.placement.cuts(plan.table)}
    return Row(
        name,
        cable,
        float(sum(plan.table.flow_bytes[flow] for flow in crossing)),
        (plan.period_s, plan.latency_s + cable[0]),
        (plan.workload.batch / measured["samples_per_s"], measured["latency_s"]),
        document["foreign_cores"],
    )


def run(shards: Path, cable: tuple[float, float], rounds: int) -> dict[str, Any]:
    """What `planner run` says, of the ranks on two hosts."""
    command = ["planner", "rank", str(shards / PLAN), str(shards), "--json"]
    with two_hosts(*cable) as hosts:
        told = {"WORLD_SIZE": "2", "MASTER_ADDR": hosts[0].address, "MASTER_PORT": str(PORT), "OMP_NUM_THREADS": "1"}
        ranks = [
            subprocess.Popen(
                host.command([*command, "--rounds", str(rounds)]),
                env={**os.environ, **told, "RANK": str(rank)},
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
            for rank, host in enumerate(hosts)
        ]
        said = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise RuntimeError(f"the ranks ended with {[rank.returncode for rank in ranks]}")
    document: dict[str, Any] = json.loads(said[0])
    return document


def main() -> int:
    """Measure and judge the bars."""
    options = parser_of(__doc__, NETWORK, 5).parse_args()
    console = Console()
    cluster = planner.calibrate(reporter=console).first(2)
    rows = []
    print(HEAD)
    for name in options.networks or [NETWORK]:
        program = program_of(name)
        profile(program, cluster.devices, console)
        for cable in QUICK if options.quick else CABLES:
            rows.append(one(name, program, cluster, cable, 2 if options.quick else options.rounds))
            console.say(str(rows[-1]))
    bars = [
        at_most(f"predicted against measured, {what}, mean error", mean(abs(row.errors[i]) for row in rows), 0.1)
        for i, what in enumerate(["time of a micro-batch", "one alone"])
    ]
    return report(bars, options.json)


if __name__ == "__main__":
    sys.exit(main())
