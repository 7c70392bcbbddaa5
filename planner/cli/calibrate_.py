"""Measure this host: its devices, its links and, given a model, every operator of it.

planner calibrate
planner calibrate examples.networks:googlenet -o cluster.toml
planner calibrate examples.networks:googlenet --training --again
planner calibrate examples.networks:googlenet --split-cpu auto
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from costmodels.cluster import Cluster, Link
from costmodels.clusterdict import cluster_to_dict
from costmodels.clusterwriter import write_cluster
from costmodels.units import format_bytes, format_bytes_per_s, format_flops_per_s, format_seconds
from planner.cli.console import Console
from planner.cli.files import declare_output
from planner.cli.models import declare_kernels, declare_model, declare_split
from planner.cli.text import aligned, count, listed, short, wrapped
from planner.planning.calibrate import CHANNELS, Calibration, CalibrationOptions, Operators

NAME = 16  # characters of a link's name beside its times
SHOWN = 6  # names of a kind of thing; --json has all


def declare(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``planner calibrate``."""
    declare_model(parser, optional=True)
    declare_output(parser, "cluster.toml")
    parser.add_argument("--training", action="store_true", help="measure forward and backward passes, not inference")
    parser.add_argument(
        "--sweep",
        action="store_true",
        help="measure a sample of every kind of operator, once, in about a minute: times not measured are then learned",
    )
    parser.add_argument("--again", action="store_true", help="measure anew what the cache knows")
    parser.add_argument(
        "--channel",
        choices=CHANNELS,
        default=CHANNELS[0],
        help="what carries tensors between devices: threads of one process, or gloo between two (threads)",
    )
    declare_kernels(parser)
    declare_split(parser, "divide the CPU into N equal devices (one for each core); auto: every N")


def run(options: argparse.Namespace, console: Console) -> int:
    """Measure, write cluster.toml, print peaks, links, and what is not known well."""
    from graphs.importers.load import load_program
    from planner.planning.calibrate import surveys

    program = None
    if options.model is not None:
        console.on_step(f"importing {options.model}", 0, 0)
        program = load_program(options.model, options.batch, options.training, dict(options.sizes))
    calibration_options = CalibrationOptions(
        options.training, options.again, options.channel, options.sweep, options.split_cpu, options.kernels
    )
    *others, written = surveys(program, reporter=console, calibration_options=calibration_options)
    write_cluster(written.cluster, options.output)
    if console.json:
        divisions = {"divisions": [document(one) for one in others]} if others else {}
        console.show(document(written) | divisions, "", (), ())
        return 0
    for found in (*others, written):
        show_cluster(found.cluster, options.output if found is written else None, console)
        for line in lines(found):
            console.say(line)
        if found is not written:
            console.say("")
    return 0


def document(found: Calibration) -> dict[str, Any]:
    """The cluster, and beside it what was measured and how sure that is."""
    about = {
        "host_from_cache": found.found,
        "spread": dict(found.spread),
        "unsure": dict(found.unsure),
        "operators": [asdict(operators) for operators in found.operators],
        "kinds_without_formula": list(found.guessed),
    }
    return cluster_to_dict(found.cluster) | {"calibration": about}


def show_cluster(cluster: Cluster, output: Path | None, console: Console) -> None:
    """A table of devices and links, and the file that they went to; equal links are one row."""
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
            _between(links),
            links[0].via or "link",
            "",
            "",
            format_bytes_per_s(links[0].bytes_per_s),
            format_seconds(links[0].latency_s),
        )
        for links in alike(cluster)
    ]
    dtype = next(iter(cluster.devices[0].flops_per_s))
    columns = ("", "kind", "memory", f"peak {dtype}", "bandwidth", "latency")
    where = f"→ {output}" if output else f"as {count(len(cluster.devices), 'device')}"
    console.show(cluster_to_dict(cluster), f"{cluster.name} {where}", columns, rows)


def lines(found: Calibration) -> Iterator[str]:
    """What a person reads below the table of peaks."""
    yield from _by_size(found.cluster)
    yield ""
    if found.found:
        yield "devices and links are from the cache; --again measures them anew"
    for operators in found.operators:
        yield (
            f"{operators.kind}: {count(operators.measured, 'operator')} measured, "
            f"{operators.found:,} found in the cache; {format_seconds(operators.seconds)} for one micro-batch"
            + ("" if operators.slowdown is None else f", {operators.slowdown:+.1%} while all of them compute")
        )
    for text in doubts(found):
        yield from wrapped(f"not sure of {text}", indent=0)


def doubts(found: Calibration) -> Iterator[str]:
    """What is not known well, each with why."""
    for operators in found.operators:
        if operators.noise:
            yield _noise(operators)
    if found.unsure:
        worst = sorted(found.unsure.items(), key=lambda item: -item[1])
        yield listed([f"{what} (spread {share:.0%})" for what, share in worst], SHOWN)
    if found.guessed:
        kinds = listed(found.guessed, SHOWN)
        yield f"kinds without a formula, whose work is a guess on devices that were not measured: {kinds}"


def _noise(operators: Operators) -> str:
    share = sum(noise.share for noise in operators.noise)
    named = [
        f"{names[0]}{f' and {len(names) - 1} like it' if len(names) > 1 else ''} (spread {noise.spread:.0%})"
        for noise in operators.noise
        for names in [operators.named[noise.key]]
    ]
    number = count(len(named), "noisy operator")
    return f"{number} on {operators.kind}, {share:.1%} of the time: {listed(named, SHOWN)}"


def alike(cluster: Cluster) -> list[list[Link]]:
    """Links with the same numbers, in order of appearance."""
    groups: dict[tuple[object, ...], list[Link]] = {}
    for link in cluster.links:
        groups.setdefault((link.bytes_per_s, link.latency_s, link.points, link.via), []).append(link)
    return list(groups.values())


def _between(links: Sequence[Link]) -> str:
    more = f" and {len(links) - 1} like it" if len(links) > 1 else ""
    return f"{links[0].src} → {links[0].dst}{more}"


def _by_size(cluster: Cluster) -> Iterator[str]:
    """A row for each kind of link, a column for each size."""
    examples = [links[0] for links in alike(cluster) if links[0].points]
    for sizes in dict.fromkeys(_sizes(link) for link in examples):
        rows = [["one way", *map(format_bytes, sizes)]]
        for link in examples:
            if _sizes(link) == sizes:
                times = (format_seconds(seconds) for _, seconds in link.points)
                rows.append([short(f"{link.src} → {link.dst}", NAME), *times])
        yield ""
        yield from aligned(rows, "l" + "r" * len(sizes), indent=0)


def _sizes(link: Link) -> tuple[float, ...]:
    return tuple(size for size, _ in link.points)
