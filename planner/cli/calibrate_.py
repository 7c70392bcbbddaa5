"""Measure this host: its devices, its links and, given a model, every operator of it."""

import argparse
from pathlib import Path

from costmodels.cluster import Cluster
from costmodels.clusterfile import cluster_to_dict, write_cluster
from costmodels.units import format_bytes, format_bytes_per_s, format_flops_per_s, format_seconds
from planner.cli.console import Console
from planner.cli.models import declare_model


def declare(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``planner calibrate``."""
    declare_model(parser, optional=True)
    parser.add_argument("-o", "--output", type=Path, default=Path("cluster.toml"), help="file to write (cluster.toml)")


def run(options: argparse.Namespace, console: Console) -> int:
    """Measure, write cluster.toml, print peaks and links."""
    from graphs.importers.load import load_program
    from planner.calibrate import calibrate

    program = None
    if options.model is not None:
        console.on_step(f"importing {options.model}", 0, 0)
        program = load_program(options.model, options.batch)
    cluster = calibrate(program, reporter=console)
    write_cluster(cluster, options.output)
    show_cluster(cluster, options.output, console)
    return 0


def show_cluster(cluster: Cluster, output: Path, console: Console) -> None:
    """A table of devices and links."""
    rows = [
        (
            device.name,
            device.kind,
            format_bytes(device.memory_bytes),
            format_flops_per_s(next(iter(device.flops_per_s.values()))),
            format_bytes_per_s(device.memory_bytes_per_s),
            format_seconds(device.launch_s),
        )
        for device in cluster.devices
    ]
    rows += [
        (
            f"{link.src} → {link.dst}",
            "link",
            "",
            "",
            format_bytes_per_s(link.bytes_per_s),
            format_seconds(link.latency_s),
        )
        for link in cluster.links
    ]
    dtype = next(iter(cluster.devices[0].flops_per_s))
    columns = ("", "kind", "memory", f"peak {dtype}", "bandwidth", "latency")
    console.show(cluster_to_dict(cluster), f"{cluster.name} → {output}", columns, rows)
